"""Command line flags and configuration files from option dataclasses."""

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, get_args, get_origin

from keras_ctxrep.checks import check_value, errors_of, kinds, read_json, read_yaml
from keras_ctxrep.options import GROUPS, Options, nearest_option

_METAVARS = {int: "N", float: "X"}
_LONG = 12  # flags, from which on the usage lists the required ones alone


class Flags:
    """The arguments of one subcommand.

    Args:
        parser: the subcommand's parser.
        chosen: of a command that has several kinds: the name of that argument -> the kind.

    Attributes:
        models: the arguments that are model folders, or names of published models in their place.
        files: those that are files, or lists of them, which the command reads.
        foreign: option that only other kinds of the command have -> these, each with its default.
        reasons: other kind of the command -> why its options are to be left out; of kinds that options choose.
    """

    def __init__(self, parser: argparse.ArgumentParser, chosen: Mapping[str, str] = MappingProxyType({})):
        self.parser, self.chosen = parser, chosen
        self.models: list[str] = []
        self.files: list[str] = []
        self.foreign: dict[str, dict[str, Any]] = {}
        self.reasons: Mapping[str, str] = {}
        self._groups = {name: parser.add_argument_group(name) for name in GROUPS}
        self._actions: dict[str, argparse.Action] = {}
        self._fields: dict[str, Field] = {}

    @property
    def flags(self) -> list[str]:
        """The names of all flags, each with its dashes."""
        return [flag for action in self._actions.values() for flag in action.option_strings]

    def add_options(
        self,
        options: type[Options],
        prefix: str = "",
        without: Collection[str] = (),
        group: str | None = None,
        defaults: Mapping[str, str] | None = None,
        family: str | None = None,
    ) -> None:
        """A flag for each field of a dataclass; what is not given is None, so that the dataclass has the defaults.

        Args:
            options: the dataclass.
            prefix: before the help texts.
            without: fields that get no flag.
            group: of the help, of those that name none; None: what is shown first.
            defaults: field -> its default in words, where another module decides it.
            family: of pretraining, whose options alone get flags.
        """
        for entry in sorted(fields(options), key=lambda entry: not entry.metadata.get("argument")):
            families = entry.metadata.get("families")
            skip = entry.name in without or entry.name in self._actions or entry.metadata.get("hidden")
            if skip or (family is not None and families is not None and family not in families):
                continue
            details, types = entry.metadata, [kind for kind in kinds(entry.type) if kind is not NoneType]
            arguments: dict[str, Any] = {key: details[key] for key in ("metavar", "nargs", "action") if key in details}
            if bool in types and details.get("argument"):
                arguments |= {"action": "store_const", "const": True}
            elif bool in types:  # with --no-NAME a flag overrides a configuration file
                arguments["action"] = argparse.BooleanOptionalAction
            elif "parse" in details and get_origin(types[0]) is None:
                arguments["type"] = _reporting(details["parse"])
            elif choices := details["range"].choices or details.get("values", tuple)():
                arguments["choices"] = choices
            elif get_origin(types[0]) is not None:
                parse = label_weight if get_args(types[0])[1] is float else pairs
                arguments |= {"type": _reporting(details.get("parse", parse)), "action": _Merged}
            else:
                parse = _parser_of(entry, types[0]) if types[0] in (int, float) else str
                arguments = {"metavar": _METAVARS.get(types[0], "NAME"), "type": parse} | arguments
            default = (defaults or {}).get(entry.name, entry.default)
            text = families[family] if families is not None and family is not None else details["help"]
            silent = default in (None, "", MISSING) or default is False or "default:" in text or "const" in arguments
            help = f"{prefix}{text}{'' if silent else f' (default: {default})'}"
            flag = details.get("flag", f"--{entry.name.replace('_', '-')}")
            if flag is None:  # positional
                flag, arguments["metavar"] = entry.name, details.get("metavar")
            else:
                required = entry.default is MISSING and details.get("required", True)
                arguments |= {"dest": entry.name, "required": required}
            parser = self._groups.get(details.get("group", group), self.parser)
            self._actions[entry.name] = action = parser.add_argument(flag, help=help, default=None, **arguments)
            self._fields[entry.name] = entry
            if details.get("model"):
                self.models.append(entry.name)
            elif str(action.metavar).startswith("FILE") and not details.get("writes"):
                self.files.append(entry.name)

    def leave_out(self, name: str) -> str:
        """What is wrong with an option of other kinds of the command."""
        *owners, last = self.foreign[name]
        if self.reasons:
            return f"leave out --{name.replace('_', '-')} {self.reasons[[*owners, last][0]]}"
        listed = f"{', '.join(owners)} and {last}" if owners else last
        return f"leave out --{name.replace('_', '-')}: it is for {listed}, not for {', '.join(self.chosen.values())}"

    def defaults(self) -> dict[str, Any]:
        """The defaults of all arguments, by name."""
        return {name: entry.default for name, entry in self._fields.items()}

    def takes(self) -> dict[str, int | str | None]:
        """How many values each flag takes: None for one, "+" for some, 0."""
        return {flag: action.nargs for action in self._actions.values() for flag in action.option_strings}

    def shorten_usage(self) -> None:
        """Leaves the optional flags out of the usage if there are many."""
        if len(self._actions) > _LONG:
            formatter = argparse.HelpFormatter(self.parser.prog)
            required = [action for action in self._actions.values() if action.required]
            formatter.add_usage(None, required, [])
            self.parser.usage = f"{formatter.format_help().removeprefix('usage: ').rstrip()} [--FLAG ...]"

    def configure(self, path: str | Path, argv: Sequence[str] = ()) -> None:
        """Takes defaults from a configuration file.

        Args:
            path: FILE.yaml or FILE.json, flags without the dashes and their values; or the run.json of a model folder.
            argv: the command line; a flag there replaces all of the file's that it excludes, e.g. other lengths.

        Raises:
            ValueError: the file is no mapping, or has a name that is no flag of this command, or a value that is not
                one of its option.
        """
        names = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in argv if word[:2] == "--"}
        excludes = {name: entry.metadata.get("excludes") for name, entry in self._fields.items()}
        excluded = {excludes.get(name) for name in names} - {None}
        for key, value in read_config(path).items():
            name = key.replace("-", "_")
            if name in self.foreign:
                if value not in (None, *self.foreign[name].values()):  # a run.json has all defaults
                    raise ValueError(f"{path}: {self.leave_out(name)}")
                continue
            if name not in {*self._actions, *self.chosen}:
                nearest = nearest_option(name, self._actions)
                raise ValueError(f"{path}: {key!r} is not an option of this command; the nearest one is {nearest!r}")
            if excludes.get(name) in excluded or value is None:
                continue
            action = self._actions.get(name)
            if action is None or not action.option_strings:  # which stands on the command line
                if value not in argv:
                    raise ValueError(
                        f"{path}: {name} is {value!r}; give it: ctxrep COMMAND {value} --config {path} ..."
                    )
                continue
            action.required = False
            self.parser.set_defaults(**{name: self._configure(action, f"{path}: {name}", value)})

    def _configure(self, action: argparse.Action, name: str, value: Any) -> Any:
        """A value of a configuration file as the default of an argument; argparse parses strings."""
        by_argparse, entry = action.nargs is None and action.type not in (None, str), self._fields[action.dest]
        if not entry.metadata.get("argument"):
            if isinstance(value, str) and action.nargs == "+" and action.type is str:
                value = [value]
            if isinstance(value, str) and by_argparse:
                return value
            return check_value(name, value, entry.type, entry.metadata["range"])
        if by_argparse and type(value) in (int, float):
            return str(value)
        parts = value if isinstance(value, list) and action.nargs == "+" else [value]
        if not all(isinstance(part, str) for part in parts):
            raise ValueError(f"{name}={value!r}: a file or folder is needed")
        return parts if action.nargs == "+" else value


def first_positional(argv: Sequence[str], takes: Mapping[str, int | str | None]) -> int | None:
    """The index of the first word that is neither a flag nor a value of one, see `Flags.takes`.

    >>> first_positional(["--corpus", "a", "b", "--steps", "3", "bert"], {"--corpus": "+", "--steps": None})
    5
    """
    index = 0
    while index < len(argv):
        flag, sign, _ = argv[index].partition("=")
        if not flag.startswith("-"):
            return index
        index += 1
        count = takes.get(flag, 0)
        index += count is None and not sign
        while count == "+" and index < len(argv) and not argv[index].startswith("-"):
            index += 1
    return None


def read_config(path: str | Path) -> dict[str, Any]:
    """The options of a configuration file, see `Flags.configure`."""
    path = Path(path) / "run.json" if Path(path).is_dir() else path
    text = Path(path).read_text(encoding="utf-8")
    with errors_of(path):
        values = read_json(text) if Path(path).suffix == ".json" else read_yaml(text)
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ValueError(f"{path}: options and their values are needed, one `name: value` a line")
    if "command" in values and "options" in values:  # a run.json
        values = values["options"] | values["arguments"]
    return values


def _parser_of(entry: Field, kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A function from an argument's text to its number, within its bounds."""
    checked = _reporting(lambda value: check_value(entry.name, value, entry.type, entry.metadata["range"]))

    def parse(text: str) -> Any:
        return checked(kind(text))

    parse.__name__ = getattr(kind, "__name__", "")  # the name in argparse's message
    return parse


def _reporting(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function whose ValueError argparse prints."""

    def parse_argument(text: Any) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


class _Merged(argparse.Action):
    """One mapping of all NAME=VALUE arguments; or the only word among them."""

    def __call__(self, parser, namespace, values, option_string=None):
        words = [part for part in values or () if isinstance(part, str)]
        if words and len(values or ()) > 1:
            raise ValueError(f"{self.dest}: {words[0]}: write {self.metavar} for each, or one word alone")
        mapping = {name: value for part in values or () if not isinstance(part, str) for name, value in part}
        setattr(namespace, self.dest, words[0] if words else mapping)


def pairs(text: str) -> list[tuple[str, str]]:
    """NAME=COLUMN,NAME=COLUMN,... as pairs of strings; a comma that no NAME= follows is part of a column's name.

    >>> pairs("text=Subject, body,label=Queue")
    [('text', 'Subject, body'), ('label', 'Queue')]
    """
    parts = [part.partition("=") for part in re.split(r",\s*(?=\w+=)", text)]
    if not all(name and sign and column for name, sign, column in parts):
        raise argparse.ArgumentTypeError(f"{text}: write NAME=COLUMN, e.g. text=sentence label=gold")
    return [(name, column) for name, _, column in parts]


def label_weight(text: str) -> list[tuple[str, float]] | str:
    """LABEL=X as a pair of a string and a number; a word alone as it is."""
    label, sign, number = text.rpartition("=")
    if not sign:
        return text
    try:
        return [(label, float(number))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: write LABEL=X with a number, e.g. {label or 'yes'}=2.5") from None


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments as keywords of the function behind a command; arguments not given keep their defaults."""
    return {name: value for name, value in vars(args).items() if name not in _OWN and value is not None}


_OWN = ("command", "declared", "parser", "debug", "config", "models", "files")
