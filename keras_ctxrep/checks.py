"""The one validator of options, configs and bundles; text of others, made printable; warnings at the caller's line."""

import json
import math
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import cache
from operator import ge, gt, le, lt
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = [
    "Range", "WrongType", "annotations", "check", "check_names", "check_value", "check_values", "first_line", "kinds",
    "make", "most", "printable", "read_json", "read_yaml", "regular", "warn",
]  # fmt: skip

T = TypeVar("T")
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}
_NAMES |= {dict: "an object", Mapping: "a mapping", NoneType: ""} | dict.fromkeys((list, tuple, Sequence), "a list")
# types of a value, if not the annotation
_ALLOWED = {float: (int, float), tuple: (tuple, list), Sequence: (tuple, list)}
_BOUNDS = {"least": (ge, "at least"), "above": (gt, "above"), "below": (lt, "below"), "most": (le, "at most")}


# control characters, terminal escapes among them, and what changes the direction of a line or cannot be encoded
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


MOST_VALUES = 100_000  # of a YAML text, aliases written out
LONGEST_NUMBER = 1000  # characters
_KEYS = re.compile(r'("(?:[^"\\]|\\.)*")\s*:|"(?:[^"\\]|\\.)*"|[{}]')  # in valid JSON; group 1: a key


class WrongType(TypeError, ValueError):
    """A value of another type than its annotation: a TypeError of a call, and a ValueError of a file that was read."""


@dataclass(frozen=True)
class Range:
    """The values that an annotation or an option allows.

    Args:
        least, most, above, below: bounds of a number.
        choices: all values, of a text.

    >>> str(Range(1, 256)), str(Range(0, below=1)), str(Range(choices=("a", "b")))
    ('at least 1 and at most 256', 'at least 0 and below 1', 'a or b')
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()

    def __contains__(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return all(holds(value, bound) for holds, _, bound in self._bounds())

    def __str__(self) -> str:
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        return " and ".join(f"{word} {bound:,}" for _, word, bound in self._bounds())

    def _bounds(self) -> list[tuple[Callable, str, float]]:
        bounds = ((*of, getattr(self, name)) for name, of in _BOUNDS.items())
        return [(holds, word, bound) for holds, word, bound in bounds if bound is not None]


Depth = Annotated[int, Range(1, 256)]  # number of layers
Size = Annotated[int, Range(1, 1 << 16)]  # width of a vector
RowCount = Annotated[int, Range(1, 1 << 31)]  # rows of a table
Fraction = Annotated[float, Range(0, below=1)]


def check(config: Any) -> None:
    """Checks every field of a dataclass, in its `__post_init__`; numbers of NumPy become those of Python.

    A field's `Range` stands in its annotation, or in its metadata as "range" and then also holds of what is not None.

    Raises:
        WrongType: a value of another type than the annotation, or a number that is not finite.
        ValueError: a value out of its range.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Config:
    ...     layers: Depth = 2
    ...     __post_init__ = check
    >>> Config(layers=100_000)
    Traceback (most recent call last):
    ...
    ValueError: layers=100000: must be at least 1 and at most 256
    """
    hints = annotations(type(config))
    for entry in fields(config):
        if hints[entry.name] is Any or entry.metadata.get("hidden"):  # a function
            continue
        value = getattr(config, entry.name)
        checked = check_value(entry.name, value, hints[entry.name], entry.metadata.get("range"))
        if checked is not value:
            object.__setattr__(config, entry.name, checked)


def check_value(name: str, value: Any, hint: Any, allowed: Range | None = None) -> Any:
    """Returns a value, its numbers of NumPy as those of Python, if it is what an annotation and a range allow.

    Args:
        name: what the value is called in errors.
        value: any.
        hint: its annotation.
        allowed: bounds or choices of it, which None always satisfies; None: all.

    Raises:
        WrongType, ValueError: see `check`; the message begins with the name.

    >>> check_value("rate", "fast", float | None)
    Traceback (most recent call last):
    ...
    keras_ctxrep.checks.WrongType: rate='fast': must be a number
    """
    value = _plain(value)
    try:
        _check(hint, value)
    except ValueError as error:
        raise type(error)(f"{name}={value!r:.60}: must be {error}") from None
    if allowed is not None and value is not None and value not in allowed:
        raise ValueError(f"{name}={value!r:.60}: must be {allowed}")
    return value


def check_values(hints: Mapping[str, Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Checks the values that have an annotation.

    Args:
        hints: name -> annotation, possibly with a `Range`.
        values: name -> value; tuples may be lists, as in JSON.
        prefix: prefix of the names in messages.

    Raises:
        WrongType, ValueError: see `check`.

    >>> check_values({"width": Size}, {"width": 0, "other": None}, "config.")
    Traceback (most recent call last):
    ...
    ValueError: config.width=0: must be at least 1 and at most 65,536
    """
    for name in values.keys() & hints.keys():
        check_value(f"{prefix}{name}", values[name], hints[name])


def check_names(kind: type, values: Any, prefix: str = "") -> None:
    """Checks that a JSON object has the fields of a dataclass, and no others.

    Args:
        kind: the dataclass.
        values: what was read from JSON.
        prefix: what stands before a field's name in errors.

    Raises:
        ValueError: it is not an object, lacks a field, or has an unknown one.
    """
    check_value(prefix.removesuffix(".") or kind.__name__, values, dict)
    entries = {field.name: field for field in fields(kind)}
    for name in values:
        if name not in entries:
            raise ValueError(f"{prefix}{name!s:.60}: no such key; it is damaged or of another version")
    for name, field in entries.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{prefix}{name} is missing")


def make(kind: type[T], values: Any, name: str) -> T:
    """An instance of a dataclass that checks its fields, from a JSON object.

    Args:
        kind: the dataclass.
        values: what was read from JSON.
        name: of the instance, for errors.

    Raises:
        ValueError: the message begins with NAME.FIELD.
    """
    check_names(kind, values, f"{name}.")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from None


def check_config(config: Any, kind: type, sizes: Collection[str] = ()) -> None:
    """Raises a TypeError unless the config of a model is of its class; the message says what a size's name stands for.

    Args:
        config: what was given.
        kind: the class.
        sizes: names of the sizes that the family has.

    >>> check_config("tiny", int)
    Traceback (most recent call last):
    TypeError: config='tiny': an object of the class int is needed
    """
    if not isinstance(config, kind):
        remedy = f"an object of the class {kind.__name__} is needed"
        if isinstance(config, str) and config in sizes:
            remedy = f"give SIZES[{config!r}] for random weights; a trained model is opened by keras_ctxrep.load(NAME)"
        raise TypeError(f"config={config!r}: {remedy}")


def of_kind(value: object, kind: type[T], error: str | None = None) -> T:
    """A value that has to be of a class.

    Args:
        value: the value.
        kind: the class, or a protocol that is checked at run time.
        error: the message for a value of another class.

    Raises:
        ValueError: it is of another class.

    >>> of_kind(1, str, "a text is needed")
    Traceback (most recent call last):
    ValueError: a text is needed
    """
    if not isinstance(value, kind):
        raise ValueError(error or f"{type(value).__name__}: {kind.__name__} is needed")
    return value


@contextmanager
def errors_of(place: object) -> Iterator[None]:
    """A block whose errors of values are those of a place: its name stands before their messages.

    >>> with errors_of("config.json"):
    ...     raise ValueError("not JSON")
    Traceback (most recent call last):
    ValueError: config.json: not JSON
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


@cache
def annotations(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass, with their metadata."""
    return get_type_hints(kind, include_extras=True)


def kinds(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation names: of a union, or a tuple of types, its parts, else the annotation itself."""
    if isinstance(hint, tuple):
        return hint
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def printable(text: Any, longest: float = 200, keep: str = "") -> str:
    """What others wrote (labels, names of files, answers of servers), as it is safe to print.

    The escapes are those of Python and, since JSON escapes all control characters below "\\x20" itself, of JSON: the
    value of a line of JSON stays.

    Args:
        text: anything; bytes are read as UTF-8.
        longest: characters after which it is cut.
        keep: control characters that stay, as the ends of lines of a longer text.

    >>> printable("\\x1b]0;title\\x07 done\\n")
    '\\\\x1b]0;title\\\\x07 done\\\\n'
    """
    text = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)
    if len(text) > longest:
        text = f"{text[: int(longest)]}..."
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


class JSONDecoder(json.JSONDecoder):
    """A decoder that refuses an object with the same key twice, of which `json` silently takes the last.

    >>> json.loads('{"a": 1, "a": 2}', cls=JSONDecoder)
    Traceback (most recent call last):
    ...
    json.decoder.JSONDecodeError: the key 'a' stands twice in an object: line 1 column 10 (char 9)
    """

    def __init__(self, **options: Any):
        super().__init__(object_pairs_hook=_object, **options)

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        try:
            return super().raw_decode(s, idx)
        except KeyError:  # of `_object`
            key, position = _repeated_key(s, idx)
            message = f"the key '{printable(key, 60)}' stands twice in an object"
            raise json.JSONDecodeError(message, s, position) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise KeyError("a key stands twice")
    return values


def _repeated_key(text: str, begin: int) -> tuple[str, int]:
    """The first key that its object has already, and where it stands, of JSON that is valid up to there."""
    objects: list[set[str]] = []
    for match in _KEYS.finditer(text, begin):
        if match[0] == "{":
            objects.append(set())
        elif match[0] == "}":
            objects.pop()
        elif match[1]:
            key = json.loads(match[1], strict=False)
            if key in objects[-1]:
                return key, match.start()
            objects[-1].add(key)
    raise AssertionError("no key stands twice")


def regular(path: str | Path) -> Path:
    """The path of a file of a model; one that is not there is left to whoever opens it.

    Raises:
        ValueError: it is a pipe or a device, which may never end, or a folder.

    >>> regular("/dev/null")
    Traceback (most recent call last):
    ...
    ValueError: /dev/null is not a regular file: copy what it gives into one
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file: copy what it gives into one")
    return path


def read_json(text: bytes | str, **options: Any) -> Any:
    """What a JSON text says.

    Args:
        text: the JSON.
        options: of `json.loads`.

    Raises:
        ValueError: it is not JSON, or an object in it has a key twice; the message says where, and begins so that the
            name of a file can stand before it.

    >>> read_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: not JSON: nested too deeply
    """
    try:
        return json.loads(text, cls=JSONDecoder, **options)
    except json.JSONDecodeError as error:
        reason = str(error)
    except RecursionError:
        reason = "nested too deeply"
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except ValueError as error:
        reason = str(error).partition(";")[0]  # what follows of a number with too many digits is for programmers
    raise ValueError(f"not JSON: {reason}")


def read_yaml(text: str) -> Any:
    """What a YAML text says, of plain values alone.

    Raises:
        ValueError: it is not YAML, or its aliases repeat values so often that they would fill the memory; the message
            begins so that the name of a file can stand before it.

    >>> read_yaml("a: &b [x, y]\\nc: [*b, *b]")
    {'a': ['x', 'y'], 'c': [['x', 'y'], ['x', 'y']]}
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        counts: dict[int, float] = {}
        if _write_out(node, counts) > max(MOST_VALUES, len(counts)):
            raise ValueError(f"more than {MOST_VALUES:,} values with those that its aliases repeat")
        return loader.construct_document(node) if node else None
    except RecursionError:
        reason = "nested too deeply"
    except (yaml.YAMLError, ValueError) as error:
        reason = printable(" ".join(str(error).split()))
    raise ValueError(f"not YAML: {reason}")


def _write_out(node: Any, counts: dict[int, float]) -> float:
    """How many values a node of YAML has if aliases are written out, infinitely many where it is in itself.

    Args:
        counts: those of nodes that were counted before, by their `id`.
    """
    if node is None or id(node) in counts:
        return counts.get(id(node), 0)
    counts[id(node)] = math.inf  # until all in it are counted
    if isinstance(node.value, str):
        if node.tag.endswith(":int") and len(node.value) > LONGEST_NUMBER:
            raise ValueError(f"a number of {len(node.value):,} characters")
        parts = []
    else:
        parts = [part for entry in node.value for part in (entry if isinstance(entry, tuple) else [entry])]
    counts[id(node)] = 1 + sum(_write_out(part, counts) for part in parts)
    return counts[id(node)]


def _escape(character: str) -> str:
    return repr(character)[1:-1] if character < " " else f"\\u{ord(character):04x}"


def most(kind: type, name: str) -> float:
    """The largest value of a field that has a `Range`.

    Args:
        kind: the dataclass.
        name: of the field.
    """
    return get_args(annotations(kind)[name])[1].most


def _plain(value: Any) -> Any:
    """A value with Python's numbers in place of NumPy's, which JSON does not have."""
    if type(value) in (tuple, list) and any(_plain(part) is not part for part in value):
        return type(value)(map(_plain, value))
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _check(hint: Any, value: Any) -> None:
    """Raises an error, whose message is what is needed, for a value that an annotation does not allow."""
    names, parts = [], value
    for part in kinds(hint):
        kind, *ranges = get_args(part) if get_origin(part) is Annotated else [part]
        origin = get_origin(kind) or kind
        name = _NAMES[origin]
        if isinstance(value, _ALLOWED.get(origin, origin)) and (kind is bool or not isinstance(value, bool)):
            break
        names += [name] if name else []
    else:
        raise WrongType(" or ".join(names))
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongType("a finite number")
    if get_origin(kind) is tuple:
        hints = get_args(kind)
        hints = hints[:1] * len(parts) if hints[-1] is ... else hints
        if len(hints) != len(parts):
            raise ValueError(f"a list of {len(hints)} values")
        for pair in zip(hints, parts, strict=True):
            _check(*pair)
    for allowed in ranges:
        if value not in allowed:
            raise ValueError(allowed)


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the error's type if it has no message.

    >>> first_line(ValueError("no such file\\nTraceback")), first_line(KeyError())
    ('no such file', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def warn(message: str) -> None:
    """Issues a UserWarning at the line outside of this package that led to it.

    As `skip_file_prefixes` of `warnings.warn` does in Python 3.12.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("keras_ctxrep", "contextlib")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
