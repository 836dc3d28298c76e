"""What a subcommand is: what it runs, its flags, and its help."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
    kinds: Mapping[str, Kind] | None = None  # by the values of the argument "family"


def subcommand(declared: type[Declared]) -> Command:
    """The subcommand of a command in `keras_ctxrep.commands`."""

    def made(args: argparse.Namespace) -> Declared:
        return declared(**given(args))

    return Command(
        lambda args: made(args).main(),
        lambda flags: flags.add_options(declared),
        *help_of(declared),
        tensorflow=lambda args: made(args).needs_tensorflow(),
    )


def positive(text: str, kind: Callable = int):
    value = kind(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0")
    return value
