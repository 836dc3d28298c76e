"""A table of names: which tensor of a published format holds which weights of ours, and how one becomes the other."""

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import keras
import numpy as np

BLOCK = 1 << 18  # numbers that are read at once
SHOWN = 6  # names in a message


class Tensor(NamedTuple):
    """One row of the table.

    Attributes:
        name: of the tensor in the published format.
        shape: of the tensor there.
        ours: the weights whose rows it holds, one below the other, as "layer/weight".
        skip: first rows of ours that it lacks; they are zero.
        columns: begin and end of the columns of ours that it holds, None: all; those of one weight stand in their
            order in the table, one after the other.
        forth: from the tensor to our array; None: they are the same.
        back: from our array to the tensor.
    """

    name: str
    shape: tuple[int, ...]
    ours: tuple[str, ...]
    skip: int = 0
    columns: tuple[int, int] | None = None
    forth: Callable[[np.ndarray], np.ndarray] | None = None
    back: Callable[[np.ndarray], np.ndarray] | None = None


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, read as float32 when it is indexed.

    Attributes:
        shape: of the tensor.
        dtype: that it has in the file.
        read: from an index to an array.

    >>> Stored((3,), "float16", np.arange(3, dtype="float16").__getitem__)[1:]
    array([1., 2.], dtype=float32)
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[Any], Any]

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.asarray(self.read(index)).astype(np.float32, copy=False)


def check(
    table: Sequence[Tensor],
    stored: Mapping[str, Any],
    source: object,
    known: Collection[str] = (),
    kinds: Sequence[str] = ("float32",),
) -> None:
    """Compares the table with what a file holds, without reading the values.

    Args:
        table: the tensors that are to be there.
        stored: name -> what has a shape and a dtype.
        source: name of the file, for messages.
        known: names of others that are no weights of the model.
        kinds: dtypes that are read.

    Raises:
        ValueError: a tensor is missing, left over, of another shape or dtype.

    >>> check([Tensor("B", (4,), ("forward_0/bias",))], {"B": np.zeros(4, "float32")}, "weights.hdf5")
    """
    missing = [f"{tensor.name} {tensor.shape}" for tensor in table if tensor.name not in stored]
    names = {tensor.name for tensor in table} | set(known)
    surplus = [f"{name} {stored[name].shape}" for name in sorted(set(stored) - names)]
    if missing or surplus:
        raise ValueError(f"{source}: its options call for other tensors: {_difference(missing, surplus)}")
    for tensor in table:
        shape, dtype = stored[tensor.name].shape, stored[tensor.name].dtype
        if shape != tensor.shape:
            raise ValueError(f"{source}: {tensor.name} has the shape {shape}; its options call for {tensor.shape}")
        if str(dtype) not in kinds:
            raise ValueError(f"{source}: {tensor.name} is {dtype}; write it as {kinds[0]}")


def fill(model: keras.Model, table: Sequence[Tensor], stored: Mapping[str, Any], source: object) -> None:
    """Gives every weight of a model its value, reading a few megabytes at a time where rows are rows.

    Args:
        model: with the weights that the table names, and no others.
        table: checked against `stored`.
        stored: name -> what gives an array when indexed.
        source: name of the file, for messages.

    Raises:
        ValueError: a tensor can not be read or has numbers that are not finite, or a weight of the model is not in the
            table.
    """
    weights = {weight.path: weight for weight in model.weights}
    parts: list[np.ndarray] = []
    for tensor in table:
        values, row = _Finite(stored[tensor.name], f"{source}: {tensor.name}"), 0
        try:
            if tensor.columns is not None:
                (path,) = tensor.ours
                parts.append(values[()] if tensor.forth is None else tensor.forth(values[()]))
                if tensor.columns[1] == weights[path].shape[-1]:
                    weights.pop(path).assign(np.concatenate(parts, axis=-1))
                    parts.clear()
                continue
            for path in tensor.ours:
                weight = weights.pop(path)
                if tensor.forth is not None:
                    weight.assign(tensor.forth(values[()]))
                else:
                    _copy_rows(weight, tensor.skip, values, row)
                    row += weight.shape[0] - tensor.skip
        except OSError as error:
            raise ValueError(f"{source}: {tensor.name} can not be read; copy the file again: {error}") from None
    if weights:
        raise ValueError(f"{source}: nothing for {_listed(sorted(weights))}; this format can not hold such a model")


@dataclass(frozen=True)
class _Finite:
    """A tensor whose numbers are checked as they are read."""

    stored: Any
    source: str

    def __getitem__(self, index: Any) -> np.ndarray:
        values = self.stored[index]
        check_finite(values, self.source)
        return values


def check_finite(values: np.ndarray, source: str) -> None:
    """Checks that there is neither an infinite number nor NaN.

    Raises:
        ValueError: there is; the message begins with `source`.

    >>> check_finite(np.array([1.0, np.nan]), "weights.hdf5: RNN_0/B")
    Traceback (most recent call last):
    ...
    ValueError: weights.hdf5: RNN_0/B: a number that is not finite
    """
    if not np.isfinite(values).all():
        raise ValueError(f"{source}: a number that is not finite")


def _copy_rows(weight: keras.Variable, skip: int, source: Any, row: int) -> None:
    """Rows of a tensor from `row` on to those of a weight from `skip` on, whose first ones become zero."""
    end = row + weight.shape[0] - skip
    if keras.backend.backend() != "tensorflow" or np.prod(weight.shape) <= BLOCK:
        rows = source[row:end]
        weight.assign(np.concatenate([np.zeros((skip, *rows.shape[1:]), rows.dtype), rows]) if skip else rows)
        return
    step = max(1, BLOCK // int(np.prod(weight.shape[1:])))
    for replica in getattr(weight.value, "values", [weight.value]):  # an assignment to a part reaches only one
        replica[:skip].assign(keras.ops.zeros((skip, *weight.shape[1:]), weight.dtype))
        for begin in range(row, end, step):
            block = keras.ops.cast(source[begin : min(begin + step, end)], weight.dtype)
            at = skip + begin - row
            replica[at : at + block.shape[0]].assign(block)


def arrays(model: keras.Model, table: Sequence[Tensor]) -> Iterator[tuple[str, np.ndarray]]:
    """(name, float32 array) of every tensor of the table, from a model that has the layers it names.

    Other layers of the model are no part of the format, and neither is a state that a layer carries from batch to
    batch.

    Raises:
        ValueError: these layers lack a weight, have one of another shape, or one that the table lacks.
    """
    ours = {path for tensor in table for path in tensor.ours}
    layers = {path.split("/")[0] for path in ours}
    weights = {weight.path: weight for weight in model.weights if weight.path.split("/")[0] in layers}
    weights = {path: weight for path, weight in weights.items() if weight.name != "state"}
    if ours != set(weights):
        difference = _difference(sorted(ours - set(weights)), sorted(set(weights) - ours))
        raise ValueError(f"the model {model.name!r} is not the one of its config: {difference}")
    for tensor in table:
        parts = [keras.ops.convert_to_numpy(weights[path]) for path in tensor.ours]
        value = parts[0][tensor.skip :] if len(parts) == 1 else np.concatenate(parts)
        value = value if tensor.columns is None else value[..., slice(*tensor.columns)]
        value = value if tensor.back is None else tensor.back(value)
        if value.shape != tensor.shape:
            raise ValueError(
                f"the model {model.name!r}: {' and '.join(tensor.ours)} give {tensor.name} the shape {value.shape}; "
                f"its config calls for {tensor.shape}"
            )
        yield tensor.name, value.astype(np.float32, copy=False)


def package(name: str, extra: str) -> ModuleType:
    """A package that only some formats need.

    Args:
        name: to import.
        extra: of ours that installs it.

    Raises:
        ImportError: it is not installed; the message says how to.

    >>> package("json", "convert").__name__
    'json'
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(
            f'{name} is not installed, and this format needs it: pip install "keras_ctxrep[{extra}]"'
        ) from None


def visible(paths: Iterable[Path]) -> list[Path]:
    """Paths in order, without hidden ones, such as the ._NAME that macOS writes beside NAME.

    >>> [path.name for path in visible([Path("b.index"), Path("._b.index"), Path("a.index")])]
    ['a.index', 'b.index']
    """
    return sorted(path for path in paths if not path.name.startswith("."))


def first_line(error: Exception) -> str:
    """Of what a library says, or the kind of error where it says nothing.

    >>> first_line(ValueError("not whole\\nbyte 7")), first_line(KeyError())
    ('not whole', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _difference(missing: Sequence[str], surplus: Sequence[str]) -> str:
    parts = (("missing", missing), ("left over", surplus))
    return "; ".join(f"{what}: {_listed(names)}" for what, names in parts if names)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
