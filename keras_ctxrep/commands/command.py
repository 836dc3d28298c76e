"""What a command is: a frozen dataclass whose fields are its arguments and its flags, with `run` and `show`."""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Generic, ParamSpec, Protocol, Self, TypeVar

from keras_ctxrep.options import KERAS, Options, split_head, unknown_option, with_range
from keras_ctxrep.places import is_tflite

P = ParamSpec("P")
R = TypeVar("R")
Result = TypeVar("Result", covariant=True)
FOLDER = "a model folder, or a name of `ctxrep zoo list` that is here"
_DERIVED: Any = object()
ENCODER = "a model folder, a SavedModel, a .tflite file of an encoder, or a name of `ctxrep zoo list`"


class Usage(ValueError):
    """Arguments that contradict each other; the command line ends with status 2."""


@dataclass(frozen=True)
class Command(Options, Generic[R]):
    """A command: `ctxrep NAME` on the command line, a function in `keras_ctxrep.recipes`.

    The docstring is the help: its first line in the list of commands, the paragraphs up to "Notes:" or "Returns:" in
    its own.

    Attributes:
        configurable: whether it takes --config.
        tensorflow: whether TensorFlow is imported at once, without the lines that it prints; or the argument with which
            it is, if that is given and no .tflite file, and `engine`, if there is that option, is "keras".
        any_backend: whether it runs under the backend that KERAS_BACKEND names; if not, under TensorFlow.
    """

    configurable: ClassVar[bool] = False
    tensorflow: ClassVar[bool | str] = True
    any_backend: ClassVar[bool] = True

    @classmethod
    def description(cls) -> str:
        """What its help says before the arguments."""
        return help_of(cls)[1]

    @classmethod
    def defaults(cls, family: str | None) -> Mapping[str, str]:
        """Defaults of fields in words, where another module decides them."""
        return {}

    @classmethod
    def without(cls, family: str | None) -> Collection[str]:
        """Fields that have no flag."""
        return ()

    @classmethod
    def of_tasks(cls) -> Mapping[str, type[Options]]:
        """Prefix of the help -> options of tasks that the command takes in `task_options`."""
        return {}

    @classmethod
    def from_flags(cls, values: dict[str, Any]) -> Self:
        """The command of the values that were given on the command line."""
        names = {name for kind in cls.of_tasks().values() for name in kind.__dataclass_fields__}
        if of_task := {name: values.pop(name) for name in names & values.keys()}:
            values["task_options"] = of_task
        printed = {entry.name: entry.metadata["prints"] for entry in fields(cls) if "prints" in entry.metadata}
        return cls(**printed | values)

    def run(self) -> R:
        """Does the work."""
        raise NotImplementedError

    def show(self, result: R) -> None:
        """Prints the result of `run`."""

    def main(self) -> None:
        """Does what the command line asks for: the work, and its result is shown."""
        self.show(self.run())

    def needs_tensorflow(self) -> bool:
        """Whether TensorFlow is imported at once, see `tensorflow`."""
        if isinstance(self.tensorflow, bool):
            return self.tensorflow
        model = getattr(self, self.tensorflow)
        return model is not None and not is_tflite(model) and getattr(self, "engine", KERAS) == KERAS


@dataclass(frozen=True)
class Group:
    """A command of several kinds, each of which is a command: `ctxrep NAME KIND`."""

    help: str
    description: str
    kinds: Mapping[str, tuple[type[Command], str, str]]  #: name -> (command, help, description)
    #: function from the names of the options that are given to the kind, which is then not named; or None
    choose: Callable[[Collection[str]], str] | None = None
    #: with `choose`: kind -> other kind -> why its options are to be left out
    reasons: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def argument(help: str | None = None, default: Any = _DERIVED, **metadata: Any) -> Any:
    """A field that is an argument of a command and no option: it is not kept among the options of a run.

    Args:
        help: as in `options.option`; before it, and before two spaces, how the usage shows it: `--out FOLDER`, a flag
            that is required; `FILE ...`, positional; `[--top N]`, `[TEXT]`, with a default; and the words of an option,
            or `writes`: a file that the command writes, which need not exist.
        default: of an argument in brackets (default: None, of a flag without a value False).
        metadata: as in `options.option`, and `parse`, the function from a word to the value; `values`, a function that
            gives the values it may have; `kw_only`, whether it has to be named in Python.
    """
    if help is None:
        return functools.partial(argument, default=default, **metadata)
    help, declared = split_head(help)
    kw_only, metadata = metadata.pop("kw_only", MISSING), declared | metadata
    positional = "flag" not in metadata
    if "required" in metadata:
        takes_value = positional or metadata.keys() & {"metavar", "choices", "parse", "values"}
        default = (None if takes_value else False) if default is _DERIVED else default
        if positional:
            metadata["nargs"] = "*" if "nargs" in metadata else "?"
    default = MISSING if default is _DERIVED else default
    metadata = {"help": help, "argument": True, "flag": None, **with_range(metadata)}
    return field(default=default, kw_only=kw_only, metadata=metadata)


def in_python(default: Any = None, **metadata: Any) -> Any:
    """A field without a flag; `prints` is the function that it is on the command line, which a command reports to."""
    return field(default=default, metadata={"hidden": True, "argument": True, "neutral": True, **metadata})


def help_of(command: type[Command]) -> tuple[str, str]:
    """The line of a command in the list of commands, and its description."""
    first, _, rest = inspect.cleandoc(command.__doc__ or "").partition("\n")
    description = re.split(r"^(?:Notes|Returns|Raises|Warns):|^>>> ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip()
    return first[0].lower() + first[1:].rstrip("."), description or first


class _Runs(Protocol[Result]):
    def run(self) -> Result: ...


def function(command: Callable[P, _Runs[R]], name: str) -> Callable[P, R]:
    """A function that makes a command of its arguments and runs it; `options=` has values of some fields.

    Raises:
        TypeError: (the function) there is no such option; the message names the nearest one.
    """
    kind: Any = command
    entries: dict[str, Field] = {entry.name: entry for entry in fields(kind)}
    own = [key for key, entry in entries.items() if not entry.metadata.get("argument")]
    signature = inspect.signature(kind)

    @functools.wraps(kind.run)
    def recipe(*args: Any, options: Options | None = None, **given: Any) -> Any:
        others = {key: given.pop(key) for key in [*given] if key not in entries}
        if others and "task_options" not in entries:
            raise unknown_option(name, next(iter(others)), own or [*entries])
        if others:
            given["task_options"] = dict(given.get("task_options") or {}) | others
        options = next((value for value in args if isinstance(value, Options)), options)
        args = tuple(value for value in args if not isinstance(value, Options))
        values = {} if options is None else {each.name: getattr(options, each.name) for each in fields(options)}
        return kind(**values | signature.bind_partial(*args, **given).arguments).run()

    recipe.__name__ = recipe.__qualname__ = name
    recipe.__doc__ = _document(kind, signature)
    vars(recipe)["__signature__"] = signature.replace(return_annotation=inspect.signature(kind.run).return_annotation)
    return recipe  # pyright: ignore[reportReturnType]


def _document(kind: type[Command], signature: inspect.Signature) -> str:
    """The docstring of a command with what each of its fields is."""
    helps = {entry.name: entry.metadata.get("help") for entry in fields(kind)}
    listed = "\n".join(f"    {name}: {helps[name]}" for name in signature.parameters if helps[name])
    head, *tail = re.split(
        r"^(?=(?:Notes|Returns|Raises|Warns):)", inspect.cleandoc(kind.__doc__ or ""), maxsplit=1, flags=re.M
    )
    return "\n\n".join([head.rstrip(), f"Args:\n{listed}", *tail])
