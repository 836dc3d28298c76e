"""The command `ctxrep`: parses, calls one function, prints."""

import argparse
import difflib
import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from keras_ctxrep.cli.flags import Flags, first_positional, given, read_config
from keras_ctxrep.commands import COMMANDS
from keras_ctxrep.commands.command import Command, Group, Usage, help_of
from keras_ctxrep.commands.printing import print_error
from keras_ctxrep.inference.silence import end_silently, leave_out_unused, start_backend, start_tensorflow
from keras_ctxrep.options import LEARNED
from keras_ctxrep.places import is_tflite
from keras_ctxrep.version import __version__, install_hint

DESCRIPTION = """\
Contextual text representations in Keras, from raw text to TF Serving and to the edge.

  ctxrep demo                                                the whole pipeline on a small text, in a few minutes

  ctxrep pretrain elmo --corpus text.txt --minutes 30 --out lm            learn a language model from text
  ctxrep train --data train.tsv --dev dev.tsv --encoder lm --out mine     fine-tune it to classify
  ctxrep score mine --data test.tsv                                       evaluate it
  ctxrep export mine --out serving/mine                                   a SavedModel for TF Serving
  ctxrep tflite mine --quantize dynamic --out mine.tflite                 a file for phones and boards
  echo "Some text" | ctxrep predict mine.tflite                           answers, without TensorFlow
"""


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong with the arguments in one line, and what was probably meant; --help has the usage."""

    def error(self, message: str) -> NoReturn:
        if match := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message, re.DOTALL):
            message += _meant(match[1], re.findall(r"[^\s',]+", match[2]))
        print_error(f"{self.prog}: {message}; see {self.prog} --help")
        raise SystemExit(2)


def _meant(word: str, known: Sequence[str]) -> str:
    """A question for the known word that is like another one, or ""."""
    close = difflib.get_close_matches(word, known, 1, 0.6)
    return f": did you mean {close[0]}?" if close else ""


def parser(name: str | None = None, family: str | None = None) -> tuple[argparse.ArgumentParser, Flags | None]:
    """The command's parser; to start fast, only the named subcommand gets its flags, or the named one of its kinds."""
    main = _Parser("ctxrep", description=DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter)
    main.add_argument("--version", action="version", version=f"keras_ctxrep {__version__}")
    subparsers: Any = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    flags = None
    for command_name, command in COMMANDS.items():
        if not isinstance(command, Group):
            help, description = help_of(command)
            sub = _add_parser(subparsers, command_name, help, description, command)
            if command_name == name:
                sub.description, flags = command.description(), _flags(sub, command)
        elif command.choose is not None:
            kind = family if command_name == name and family else next(iter(command.kinds))
            sub = _add_parser(subparsers, command_name, command.help, command.description, command.kinds[kind][0])
            if command_name == name:
                flags = _flags(sub, command.kinds[kind][0])
                flags.foreign, flags.reasons = _foreign(command, flags), command.reasons[kind]
        else:
            sub = _add_parser(subparsers, command_name, command.help, command.description)
            families: Any = sub.add_subparsers(dest="family", required=True, metavar="FAMILY", title="families")
            for kind_name, (kind, help, description) in command.kinds.items() if command_name == name else ():
                of_kind = _add_parser(families, kind_name, help, description, kind)
                if kind_name == family:
                    flags = _flags(of_kind, kind, kind_name)
                    flags.foreign = _foreign(command, flags)
    return main, flags


def _add_parser(
    subparsers: Any, name: str, help: str, description: str, command: type[Command] | None = None
) -> argparse.ArgumentParser:
    sub = subparsers.add_parser(
        name,
        help=help,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if command is not None:
        sub.set_defaults(declared=command)
        sub.add_argument("--debug", action="store_true", help="print the whole traceback of an error")
        if command.configurable:
            help = "options from a file, or from the run.json of a model folder"
            sub.add_argument("--config", metavar="FILE.yaml", help=help)
    return sub


def _flags(sub: argparse.ArgumentParser, command: type[Command], family: str | None = None) -> Flags:
    """The flags of a command, which are added to its parser."""
    flags = Flags(sub, {} if family is None else {"family": family})
    without, defaults = command.without(family), command.defaults(family)
    flags.add_options(command, without=without, defaults=defaults, family=family)
    for prefix, options in command.of_tasks().items():
        flags.add_options(options, prefix=prefix, group="task")
    flags.shorten_usage()
    sub.set_defaults(models=flags.models, files=flags.files, parser=sub)
    return flags


def _flags_of_kinds(group: Group) -> dict[str, Flags]:
    return {name: _flags(argparse.ArgumentParser(), kind, name) for name, (kind, *_) in group.kinds.items()}


def _foreign(group: Group, own: Flags) -> dict[str, dict[str, Any]]:
    """The options of a command that other kinds than this one have, see `Flags.foreign`."""
    options: dict[str, dict[str, Any]] = {}
    for family, flags in _flags_of_kinds(group).items():
        for name, default in flags.defaults().items():
            options.setdefault(name, {})[family] = default
    return {name: owners for name, owners in options.items() if name not in own.defaults()}


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    name = next((word for word in argv if not word.startswith("-")), None)
    command, family = COMMANDS.get(str(name)), None
    if isinstance(command, Group) and command.choose is not None:
        family = command.choose(_option_names(argv))
    elif isinstance(command, Group):
        argv, family = _family_first(argv, str(name), command)
    main, flags = parser(name, family)
    if flags is not None and flags.parser.get_default("declared").configurable:
        config = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        config.add_argument("--config")
        path = config.parse_known_args(argv)[0].config
        if path is not None:
            try:
                flags.configure(path, argv)
            except (OSError, ValueError) as error:
                flags.parser.error(str(error))
    args, unknown = main.parse_known_args(argv)
    if unknown:
        known = [flag for flag in flags.flags if flag.startswith("--")] if flags else []
        flag = unknown[0].partition("=")[0]
        option = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
        if flags and option in flags.foreign:
            flags.parser.error(flags.leave_out(option))
        meant = _meant(flag, known) if flag.startswith("--") else ""
        (flags.parser if flags else main).error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return args


def _option_names(argv: Sequence[str]) -> set[str]:
    """The names of the options on the command line and in its configuration file."""
    words = [part for word in argv for part in word.split("=", 1)]
    path = words[words.index("--config") + 1 :][:1] if "--config" in words else []
    try:
        configured = read_config(path[0]) if path else {}
    except (OSError, ValueError):  # which `configure` raises again
        configured = {}
    return {word.removeprefix("--") for word in words if word.startswith("--")} | {*configured}


def _family_first(argv: Sequence[str], name: str, group: Group) -> tuple[list[str], str | None]:
    """The arguments with the family right after the command's name, and the family; it may stand among the flags."""
    begin = argv.index(name) + 1
    before, words = [*argv[:begin]], [*argv[begin:]]
    if not words or words[0].startswith("-"):
        takes = {flag: count for flags in _flags_of_kinds(group).values() for flag, count in flags.takes().items()}
        index = first_positional(words, takes | {"--config": None})
        if index is None:  # none that argparse could take for the family
            return before + [word for word in words if word in ("-h", "--help")], None
        words = [words[index], *words[:index], *words[index + 1 :]]
    return before + words, words[0] if words else None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit status: 0 done, 1 failed, 2 wrong usage."""
    argv = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    chosen, os.environ["KERAS_BACKEND"] = os.environ.get("KERAS_BACKEND", ""), "tensorflow"
    leave_out_unused()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.showwarning = lambda message, *_: print_error(f"ctxrep: {message}")
    args = None
    try:
        args = _parse(argv)
        if chosen and getattr(args, "declared", Command).any_backend:
            os.environ["KERAS_BACKEND"] = chosen
        _check_files(args)
        _find_published(args)
        values = given(args)
        if "family" not in args.declared.__dataclass_fields__:
            values.pop("family", None)
        command = args.declared.from_flags(values)
        if command.needs_tensorflow():
            start_backend()
        config = getattr(args, "config", None) or ""
        if os.path.isdir(config) or os.path.basename(config) == "run.json":
            from keras_ctxrep.training.runs import options_from_run

            options_from_run(config)  # which warns of files that have changed
        command.main()
        return 0
    except Usage as error:
        (args.parser if args else parser()[0]).error(str(error))
    except BrokenPipeError:  # the reader of the output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("ctxrep: interrupted; the same command goes on from the last checkpoint, if it had one", file=sys.stderr)
    except Exception as error:
        message = _message(error)
        if message is None or "--debug" in argv:
            raise
        print_error(f"ctxrep: {message}")
    finally:
        if "ai_edge_litert.compiled_model" in sys.modules:
            end_silently()
    return 1


# ---------------------------------------------------------------------------------------------------------- details


# module -> what installs it; else "tf"
_EXTRAS = {"ai_edge_litert": "edge", "matplotlib": "plot", "grpc": "serving", "google": "serving", "usearch": "search"}
_EXTRAS |= {"sklearn": "demo"}
# lines of a TensorFlow error that stand before its reason
_NO_REASON = ("Graph execution error:", "Detected at node", "<stack traces unavailable>", " ")


def _message(error: Exception) -> str | None:
    """The message of an expected error; None for an internal one, which is raised again."""
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get(str(error.name).partition(".")[0], "tf")
        return f"{error.name} is not installed: {install_hint(extra)}"
    if isinstance(error, ValueError | OSError | RuntimeError | ImportError):
        return str(error)
    if type(error).__module__.partition(".")[0] == "tensorflow":
        lines = (line for line in str(error).splitlines() if line.strip() and not line.startswith(_NO_REASON))
        return f"TensorFlow: {type(error).__name__}: {next(lines, 'no reason given')}"
    return None


def _check_files(args: argparse.Namespace) -> None:
    """Raises an error for a file that is not there, before TensorFlow is loaded."""
    for argument in args.files:
        value = getattr(args, argument)
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, str) and path != "-" and not path.startswith("tfds:") and not os.path.exists(path):
                raise ValueError(f"--{argument.replace('_', '-')} {path}: no such file or folder")


def _find_published(args: argparse.Namespace) -> None:
    """Replaces the names of published models by their folders in the cache."""
    for argument in args.models:
        name = getattr(args, argument)
        if name not in (None, *LEARNED) and not is_tflite(name) and not os.path.exists(name):
            from keras_ctxrep import zoo

            if name.startswith("hf://"):  # which may have to be converted
                start_tensorflow()
            setattr(args, argument, str(zoo.find(name)))
