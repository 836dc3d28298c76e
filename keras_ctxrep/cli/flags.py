"""Command line flags and configuration files from option dataclasses."""

import argparse
import difflib
import json
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from keras_ctxrep.options import Options, check_type, check_value


class Flags:
    """The arguments of one subcommand.

    Args:
        parser: the subcommand's parser.
    """

    def __init__(self, parser: argparse.ArgumentParser):
        self.parser = parser
        self._actions: dict[str, argparse.Action] = {}
        self._fields: dict[str, Field] = {}

    def add(self, flag: str, help: str, **kwargs: Any) -> None:
        """An argument, as of `ArgumentParser.add_argument`."""
        action = self.parser.add_argument(flag, help=help, **kwargs)
        self._actions[action.dest] = action

    def add_options(self, options: type[Options], prefix: str = "", without: Collection[str] = (), **changes) -> None:
        """A flag for each field of a dataclass; what is not given is None, so that the dataclass has the defaults.

        Args:
            options: the dataclass.
            prefix: before the help texts.
            without: fields that get no flag.
            changes: field -> arguments of `add_argument` that override the generated ones.
        """
        for entry in fields(options):
            if entry.name in without or entry.name in self._actions:
                continue
            details = entry.metadata
            arguments: dict[str, Any] = {"default": None}
            help = prefix + details["help"]
            if entry.default is not None and entry.default is not False and "(default" not in help:
                help += f" (default: {entry.default})"
            kinds = [kind for kind in typing.get_args(entry.type) or (entry.type,) if kind is not type(None)]
            if bool in kinds:
                arguments["action"] = argparse.BooleanOptionalAction  # so that a flag overrides a configuration file
            elif "choices" in details:
                arguments["choices"] = details["choices"]
            else:
                arguments["type"] = _parser_of(entry.name, kinds[0], details)
            arguments |= {name: details[name] for name in ("metavar", "nargs") if name in details}
            arguments |= {"help": help} | changes.get(entry.name, {})
            self.add(f"--{entry.name.replace('_', '-')}", **arguments)
            self._fields[entry.name] = entry

    def configure(self, path: str | Path, argv: Sequence[str] = ()) -> None:
        """Takes defaults from a configuration file.

        Args:
            path: FILE.yaml or FILE.json, flags without the dashes and their values; or the run.json of a model folder.
            argv: the command line; one of --steps, --minutes and --epochs there takes the place of all three.

        Raises:
            ValueError: the file is no mapping, or has a name that is no flag of this command, or a value that is not
                one of its option.
        """
        lengths = {"steps", "minutes", "epochs"}
        given = lengths if lengths & {word.partition("=")[0].removeprefix("--") for word in argv} else set()
        for key, value in read_config(path).items():
            name = key.replace("-", "_")
            if name not in self._actions:
                nearest = difflib.get_close_matches(name, self._actions, 1, 0.0)[0]
                raise ValueError(f"{path}: {key!r} is not an option of this command; the nearest one is {nearest!r}")
            if name in given or value is None:
                continue
            action = self._actions[name]
            if not action.option_strings:  # `family`, which stands on the command line
                if value not in argv:
                    raise ValueError(
                        f"{path}: {name} is {value!r}; give it: ctxrep COMMAND {value} --config {path} ..."
                    )
                continue
            if isinstance(value, str) and action.nargs == "+" and action.type is None:
                value = [value]
            if name not in self._fields and action.type not in (None, str) and type(value) in (int, float):
                value = str(value)
            parsed = isinstance(value, str) and action.nargs is None and action.type not in (None, str)  # by argparse
            parts = value if isinstance(value, list) and action.nargs == "+" else [value]
            if name not in self._fields and not all(isinstance(part, str) for part in parts):
                raise ValueError(f"{path}: {name}={value!r}: a file or folder is needed")
            if name in self._fields and not parsed:
                try:
                    check_type(name, value, self._fields[name].type)
                    check_value(name, value, self._fields[name].metadata)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"{path}: {error}") from None
            action.required = False
            self.parser.set_defaults(**{name: value})


def read_config(path: str | Path) -> dict[str, Any]:
    """The options of a configuration file, see `Flags.configure`."""
    path = Path(path) / "run.json" if Path(path).is_dir() else path
    text = Path(path).read_text(encoding="utf-8")
    if Path(path).suffix == ".json":
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    else:
        import yaml

        try:
            values = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{path}: not YAML: {error}") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ValueError(f"{path}: options and their values are needed, one `name: value` a line")
    if "command" in values and "options" in values:  # a run.json
        values = values["arguments"] | values["options"]
    return values


def _parser_of(name: str, kind: Any, details: Mapping[str, Any]) -> Callable[[str], Any]:
    """A function from an argument's text to its value, within its bounds."""
    if typing.get_origin(kind) is not None:  # NAME=VALUE of a mapping
        return label_weight if typing.get_args(kind)[1] is float else pairs
    if kind not in (int, float):
        return str

    def parse(text: str) -> Any:
        value = kind(text)
        try:
            check_value(name, value, details)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return value

    parse.__name__ = kind.__name__  # the name in argparse's message
    return parse


class Pairs(tuple[tuple[str, str], ...]):
    """Names and columns of one argument."""


def pairs(text: str) -> Pairs:
    """NAME=COLUMN,NAME=COLUMN,... as pairs of strings; a comma that no NAME= follows is part of a column's name.

    >>> pairs("text=Subject, body,label=Queue")
    (('text', 'Subject, body'), ('label', 'Queue'))
    """
    parts = [part.partition("=") for part in re.split(r",\s*(?=\w+=)", text)]
    if not all(name and sign and column for name, sign, column in parts):
        raise argparse.ArgumentTypeError(f"{text}: write NAME=COLUMN, e.g. text=sentence label=gold")
    return Pairs((name, column) for name, _, column in parts)


def label_weight(text: str) -> tuple[str, float] | str:
    """LABEL=X as a string and a number; a word alone as it is."""
    label, sign, number = text.rpartition("=")
    if not sign:
        return text
    try:
        return label, float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: write LABEL=X with a number, e.g. {label or 'yes'}=2.5") from None


def grid(texts: Sequence[str], *options: type[Options]) -> dict[str, list]:
    """The values of options to try, from NAME=VALUE,VALUE,...

    Args:
        texts: one for each option; `none` is a value where an option may be None.
        options: the dataclasses of the options.

    Raises:
        ValueError: no such option, or a value of another type or out of bounds.

    >>> from keras_ctxrep.options import Finetuning
    >>> grid(["learning-rate=1e-5,3e-5", "lora=none,8"], Finetuning)
    {'learning_rate': [1e-05, 3e-05], 'lora': [None, 8]}
    """
    known = {entry.name: entry for kind in options for entry in fields(kind)}
    values: dict[str, list] = {}
    for text in texts:
        name, sign, listed = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1, 0.0)[0]
            raise ValueError(f"{text}: {name!r} is no option of this task; the nearest one is {nearest!r}")
        if name in values or not sign:
            raise ValueError(f"{text}: write {name}=VALUE,VALUE,... once")
        values[name] = [_value(known[name], part.strip()) for part in listed.split(",")]
    return values


def _value(entry: Field, text: str) -> Any:
    """The value of an option that a text is."""
    kinds = typing.get_args(entry.type) or (entry.type,)
    if text == "none" and type(None) in kinds:
        return None
    try:
        if bool in kinds:
            value: Any = {"true": True, "false": False}[text.lower()]
        else:
            value = int(text) if int in kinds else float(text) if float in kinds else text
    except (KeyError, ValueError):
        kind = next(kind.__name__ for kind in kinds if kind in (bool, int, float))
        raise ValueError(f"{entry.name}={text!r}: must be {'true or false' if kind == 'bool' else kind}") from None
    try:
        check_type(entry.name, value, entry.type)
    except TypeError as error:
        raise ValueError(f"{error}, which is not swept") from None
    check_value(entry.name, value, entry.metadata)
    return value


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments as keywords of the function behind a command; arguments not given keep their defaults."""
    values = {name: value for name, value in vars(args).items() if name not in _OWN and value is not None}
    for name, value in values.items():
        if isinstance(value, list) and all(isinstance(part, Pairs) for part in value):
            values[name] = {key: column for part in value for key, column in part}
    weights = values.get("class_weights")
    if isinstance(weights, list):
        alone = [part for part in weights if isinstance(part, str)]
        if alone and len(weights) > 1:
            raise ValueError(
                f"class_weights: {alone[0]}: write LABEL=X for each label, or a word such as balanced alone"
            )
        values["class_weights"] = weights[0] if isinstance(weights[0], str) and len(weights) == 1 else dict(weights)
    return values


_OWN = ("command", "run", "debug", "config")
