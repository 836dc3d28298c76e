"""What a subcommand is: what it runs, its flags, and its help."""

import argparse
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from keras_ctxrep.cli.flags import Flags, given
from keras_ctxrep.commands.command import Command as Declared
from keras_ctxrep.commands.command import help_of


@dataclass(frozen=True)
class Kind:
    """One of the kinds of a subcommand, such as `bert` of `ctxrep pretrain bert`: its flags, and its help."""

    flags: Callable[[Flags], None]
    help: str
    description: str


@dataclass(frozen=True)
class Command:
    """A subcommand: what it runs, its flags, and its help."""

    run: Callable[[argparse.Namespace], None]
    flags: Callable[[Flags], None] | None  # None: its kinds have them
    help: str
    description: str
    configurable: bool = False  # takes --config
    tensorflow: Callable[[argparse.Namespace], bool] = lambda args: True  # whether it needs TensorFlow
    kinds: Mapping[str, Kind] | None = None  # by the values of the argument "family", or as `choose` says
    choose: Callable[[Collection[str]], str] | None = None  # the kind, from the names of the options that are given
    reasons: Mapping[str, Mapping[str, str]] | None = None  # of each kind `Flags.reasons`, with `choose`


def subcommand(declared: type[Declared]) -> Command:
    """The subcommand of a command in `keras_ctxrep.commands`."""

    def add(flags: Flags) -> None:
        flags.parser.description = declared.description()
        _add(declared, None, flags)

    return _command(lambda args: declared.from_flags(given(args)), add, *help_of(declared), declared.configurable)


def subcommands(
    help: str, description: str, kinds: Mapping[str, tuple[type[Declared], str, str]], **chosen: Any
) -> Command:
    """A subcommand of several kinds.

    Args:
        help, description: of it.
        kinds: name -> (command, help, description).
        chosen: `choose` and `reasons` of `Command`.
    """

    def made(args: argparse.Namespace) -> Declared:
        kind = kinds[args.family][0]
        values = given(args)
        if "family" not in kind.__dataclass_fields__:
            del values["family"]
        return kind.from_flags(values)

    made_kinds = {name: Kind(partial(_add, kind, name), *text) for name, (kind, *text) in kinds.items()}
    configurable = next(iter(kinds.values()))[0].configurable
    return _command(made, None, help, description, configurable, kinds=made_kinds, **chosen)


def _command(made: Callable[[argparse.Namespace], Declared], *described: Any, **chosen: Any) -> Command:
    run, tensorflow = lambda args: made(args).main(), lambda args: made(args).needs_tensorflow()
    return Command(run, *described, tensorflow=tensorflow, **chosen)


def _add(declared: type[Declared], family: str | None, flags: Flags) -> None:
    without, defaults = declared.without(family), declared.defaults(family)
    flags.add_options(declared, without=without, defaults=defaults, family=family)
    for prefix, options in declared.of_tasks().items():
        flags.add_options(options, prefix=prefix, group="task")
