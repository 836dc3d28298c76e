"""The commands: one file each, which the command line, and the functions of `keras_ctxrep.recipes`, are made from."""

import importlib

from keras_ctxrep.commands.command import Command, Group

_NAMES = """pretrain prepare train glue distill score embed analogy neighbours fill plot index search ask convert zoo
    try serve export tflite predict generate client compare demo"""  # in the order of the help
_MODULES = {"try": "trying"}  # whose name is a word of Python


def _command(name: str) -> type[Command] | Group:
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, name)}")
    return getattr(module, "GROUP", None) or getattr(module, name.capitalize())


COMMANDS = {name: _command(name) for name in _NAMES.split()}
