"""Modules under the names they had before, which warn; the next minor version but one removes this folder."""

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def moved(old: str, *new: str) -> Callable[[str], Any]:
    """A module's `__getattr__` that takes each name from the module it has moved to, with a DeprecationWarning.

    Args:
        old: name of the module.
        new: names of the modules that have its contents now.
    """

    def get(name: str) -> Any:
        for module in new:
            if not name.startswith("__") and hasattr(importlib.import_module(module), name):
                message = f"{old}.{name} is {module}.{name} now; the old name works until version 0.4"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return get


def move_modules(package: str, modules: Mapping[str, str | Sequence[str]]) -> None:
    """Keeps modules importable under their old names.

    Args:
        package: in which they were.
        modules: old name in it -> name of the module, or of those, that have its contents now.
    """
    for old, new in modules.items():
        module = sys.modules[f"{package}.{old}"] = ModuleType(f"{package}.{old}")
        vars(module)["__getattr__"] = moved(module.__name__, *([new] if isinstance(new, str) else new))
