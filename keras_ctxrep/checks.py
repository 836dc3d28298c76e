"""Checks the values of configs against the types and bounds in the annotations of a dataclass."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
_KINDS: dict[type, tuple[tuple[type, ...], str]] = {  # annotation -> (allowed types, name in messages)
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    dict: ((dict,), "an object"),
    tuple: ((tuple, list), "a list"),
}


class Range(NamedTuple):
    """The range of a number: from `least` to `most`, or to below `most` if it is `excluded`."""

    least: float
    most: float
    excluded: bool = False

    def __str__(self) -> str:
        return f"at least {self.least:,} and {'below' if self.excluded else 'at most'} {self.most:,}"


Depth = Annotated[int, Range(1, 256)]  # number of layers
Size = Annotated[int, Range(1, 1 << 16)]  # width of a vector
RowCount = Annotated[int, Range(1, 1 << 31)]  # rows of a table
Fraction = Annotated[float, Range(0, 1, excluded=True)]


def check(config: Any) -> None:
    """Checks every field of a dataclass, in its `__post_init__`.

    Raises:
        ValueError: a value is of another type than the annotation, not finite, or out of its range.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Config:
    ...     layers: Depth = 2
    ...     __post_init__ = check
    >>> Config(layers=100_000)
    Traceback (most recent call last):
    ...
    ValueError: layers=100000: at least 1 and at most 256
    """
    check_values(annotations(type(config)), vars(config))


def check_values(hints: Mapping[str, Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Checks the values that have an annotation.

    Args:
        hints: name -> annotation, possibly with a `Range`.
        values: name -> value; tuples may be lists, as in JSON.
        prefix: prefix of the names in messages.

    Raises:
        ValueError: see `check`.

    >>> check_values({"width": Size}, {"width": "2", "other": None}, "config.")
    Traceback (most recent call last):
    ...
    ValueError: config.width='2': a whole number is needed
    """
    for name, value in values.items():
        needed = _needed(hints[name], value) if name in hints else None
        if needed is not None:
            raise ValueError(f"{prefix}{name}={value!r:.60}: {needed}")


def check_names(kind: type, values: Any, prefix: str = "") -> None:
    """Checks that a JSON object has the fields of a dataclass, and no others.

    Raises:
        ValueError: it is not an object, lacks a field, or has an unknown one.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{prefix.removesuffix('.') or kind.__name__}={values!r:.60}: an object is needed")
    known = fields(kind)
    for name in values:
        if name not in {field.name for field in known}:
            raise ValueError(f"{prefix}{name!s:.60}: no such key; it is damaged or of another version")
    for field in known:
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{prefix}{field.name} is missing")


def make(kind: type[T], values: Any, name: str) -> T:
    """An instance of a dataclass that checks its fields, from a JSON object.

    Args:
        kind: the dataclass.
        values: the object.
        name: name of the object, for messages.

    Raises:
        ValueError: the message begins with NAME.FIELD.
    """
    check_names(kind, values, f"{name}.")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from None


@cache
def annotations(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass, with their metadata."""
    return get_type_hints(kind, include_extras=True)


def most(kind: type, name: str) -> float:
    """The largest value of a field that has a `Range`."""
    return get_args(annotations(kind)[name])[1].most


def _needed(hint: Any, value: Any) -> str | None:
    """The requirement of an annotation that a value violates, or None."""
    if get_origin(hint) is Annotated:
        kind, bounds = get_args(hint)
        needed = _needed(kind, value)
        fine = needed or (bounds.least <= value <= bounds.most and not (bounds.excluded and value == bounds.most))
        return needed if fine else str(bounds)
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if type(None) in parts:
        return None if value is None else _needed(parts[0], value)
    types, name = _KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        return f"{name} is needed"
    if isinstance(value, float) and not abs(value) < float("inf"):
        return "a finite number is needed"
    if isinstance(value, tuple | list) and parts:
        hints = [parts[0]] * len(value) if parts[-1] is ... else parts
        if len(hints) != len(value):
            return f"{len(hints)} values are needed"
        return next((needed for pair in zip(hints, value, strict=True) if (needed := _needed(*pair))), None)
    return None
