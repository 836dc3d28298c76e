"""Weight maps: which tensor of a published format contains which weights of our model, and how to convert it."""

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_ctxrep.version import install_hint

__all__ = ["StoredTensor", "Tensor", "arrays", "check", "fill"]

BLOCK = 1 << 18  # numbers read at a time
TRANSPOSED: dict[str, Any] = {"forth": np.transpose, "back": np.transpose}  # fields of a `Tensor`


class Tensor(NamedTuple):
    """One row of a weight map."""

    name: str  #: of the tensor in the published format
    shape: tuple[int, ...]  #: of the tensor there
    ours: tuple[str, ...]  #: paths "layer/weight" of ours whose rows it contains, concatenated in this order
    skip: int = 0  #: number of first rows of our weight that the tensor lacks; they are zero
    columns: tuple[int, int] | None = None  #: of our weight in it; None: all. Those of a weight are consecutive
    forth: Callable[[np.ndarray], np.ndarray] | None = None  #: from the tensor to our array; None: they are equal
    back: Callable[[np.ndarray], np.ndarray] | None = None  #: from our array to the tensor


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, read as float32 when it is indexed: its shape, its dtype there, and a function that reads.

    >>> StoredTensor((3,), "float16", np.arange(3, dtype="float16").__getitem__)[1:]
    array([1., 2.], dtype=float32)
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[Any], Any]

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.asarray(self.read(index)).astype(np.float32, copy=False)


def check(
    weight_map: Sequence[Tensor],
    stored: Mapping[str, Any],
    source: object,
    ignored: Collection[str] = (),
    dtypes: Sequence[str] = ("float32",),
) -> None:
    """Checks that a file has the tensors of a weight map, without reading their values.

    Args:
        weight_map: the expected tensors.
        stored: name -> tensor, with a shape and a dtype.
        source: name of the file, for messages.
        ignored: names of tensors that are not weights of the model.
        dtypes: allowed dtypes.

    Raises:
        ValueError: a tensor is missing, unknown, or of another shape or dtype.

    >>> check([Tensor("B", (4,), ("forward_0/bias",))], {"B": np.zeros(4, "float32")}, "weights.hdf5")
    """
    missing = [f"{tensor.name} {tensor.shape}" for tensor in weight_map if tensor.name not in stored]
    surplus = set(stored) - {tensor.name for tensor in weight_map} - set(ignored)
    if missing or surplus:
        difference = _difference(missing, [f"{name} {stored[name].shape}" for name in sorted(surplus)])
        raise ValueError(f"{source}: its options call for other tensors: {difference}")
    for tensor in weight_map:
        shape, dtype = stored[tensor.name].shape, stored[tensor.name].dtype
        if shape != tensor.shape:
            raise ValueError(f"{source}: {tensor.name} has the shape {shape}; its options call for {tensor.shape}")
        if str(dtype) not in dtypes:
            raise ValueError(f"{source}: {tensor.name} is {dtype}; write it as {dtypes[0]}")


def fill(model: keras.Model, weight_map: Sequence[Tensor], stored: Mapping[str, Any], source: object) -> None:
    """Assigns every weight of a model; tensors that need no conversion are read a few megabytes at a time.

    Args:
        model: a model with the weights of the weight map, and no others.
        weight_map: as checked against `stored`.
        stored: name -> tensor, which returns an array when indexed.
        source: name of the file, for messages.

    Raises:
        ValueError: a tensor cannot be read or has numbers that are not finite, or a weight is not in the weight map.
    """
    weights = {weight.path: weight for weight in model.weights}
    parts: list[np.ndarray] = []
    for tensor in weight_map:
        read, row = partial(_finite, stored[tensor.name], f"{source}: {tensor.name}"), 0
        try:
            if tensor.columns is not None:
                (path,) = tensor.ours
                parts.append(read(()) if tensor.forth is None else tensor.forth(read(())))
                if tensor.columns[1] == weights[path].shape[-1]:
                    weights.pop(path).assign(np.concatenate(parts, axis=-1))
                    parts.clear()
                continue
            for path in tensor.ours:
                weight = weights.pop(path)
                if tensor.forth is not None:
                    weight.assign(tensor.forth(read(())))
                else:
                    _copy_rows(weight, tensor.skip, read, row)
                    row += weight.shape[0] - tensor.skip
        except OSError as error:
            raise ValueError(f"{source}: {tensor.name} can not be read; copy the file again: {error}") from None
    if weights:
        raise ValueError(f"{source}: nothing for {listed(sorted(weights))}; this format can not hold such a model")


def _finite(stored: Any, source: str, index: Any) -> np.ndarray:
    """Values of a tensor, checked as they are read."""
    check_finite(values := stored[index], source)
    return values


def check_finite(values: np.ndarray, source: str) -> None:
    """Raises a ValueError that begins with `source` if a value is infinite or NaN.

    Args:
        values: of a tensor.
        source: what the message begins with.
    """
    if not np.isfinite(values).all():
        raise ValueError(f"{source}: a number that is not finite")


def _copy_rows(weight: keras.Variable, skip: int, read: Callable[[slice], np.ndarray], row: int) -> None:
    """Copies the rows of a tensor from `row` on to a weight's rows from `skip` on; the rows before become zero."""
    end = row + weight.shape[0] - skip
    if keras.backend.backend() != "tensorflow" or np.prod(weight.shape) <= BLOCK:
        rows = read(slice(row, end))
        weight.assign(np.concatenate([np.zeros((skip, *rows.shape[1:]), rows.dtype), rows]) if skip else rows)
        return
    step = max(1, BLOCK // int(np.prod(weight.shape[1:])))
    for replica in getattr(weight.value, "values", [weight.value]):  # a partial assignment changes only one replica
        replica[:skip].assign(keras.ops.zeros((skip, *weight.shape[1:]), weight.dtype))
        for begin in range(row, end, step):
            block = keras.ops.cast(read(slice(begin, min(begin + step, end))), weight.dtype)
            at = skip + begin - row
            replica[at : at + block.shape[0]].assign(block)


def arrays(model: keras.Model, weight_map: Sequence[Tensor]) -> Iterator[tuple[str, np.ndarray]]:
    """(name, float32 array) of every tensor of a weight map, from the weights of a model.

    Layers that are not in the weight map are ignored, and so is the state that a layer carries from batch to batch.

    Args:
        model: has the weights.
        weight_map: the tensors of the format.

    Raises:
        ValueError: a layer lacks a weight, or has one of another shape or one that is not in the weight map.
    """
    ours = {path for tensor in weight_map for path in tensor.ours}
    layers = {path.split("/")[0] for path in ours}
    weights = {weight.path: weight for weight in model.weights if weight.path.split("/")[0] in layers}
    weights = {path: weight for path, weight in weights.items() if weight.name != "state"}
    if ours != set(weights):
        difference = _difference(sorted(ours - set(weights)), sorted(set(weights) - ours))
        raise ValueError(f"the model {model.name!r} is not the one of its config: {difference}")
    for tensor in weight_map:
        parts = [keras.ops.convert_to_numpy(weights[path]) for path in tensor.ours]
        value = parts[0][tensor.skip :] if len(parts) == 1 else np.concatenate(parts)
        value = value if tensor.columns is None else value[..., slice(*tensor.columns)]
        value = value if tensor.back is None else tensor.back(value)
        if value.shape != tensor.shape:
            shapes = f"{tensor.name} the shape {value.shape}; its config calls for {tensor.shape}"
            raise ValueError(f"the model {model.name!r}: {' and '.join(tensor.ours)} give {shapes}")
        yield tensor.name, value.astype(np.float32, copy=False)


def package(name: str, extra: str) -> ModuleType:
    """Imports a package that only some formats need; an ImportError names the extra that installs it.

    Args:
        name: of the package.
        extra: of this distribution.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(f"{name} is not installed, and this format needs it: {install_hint(extra)}") from None


def single(files: Sequence[Path], message: str) -> Path:
    """The only file; else a ValueError says which there are, after a message.

    Args:
        files: those that were found.
        message: what comes before them.
    """
    if len(files) != 1:
        names = f"several: {', '.join(path.name for path in files)}; give the path of one" if files else "none"
        raise ValueError(f"{message} is needed in it; found {names}")
    return files[0]


def listed(names: Sequence[str], limit: int = 6) -> str:
    """The first names, and how many more there are.

    Args:
        names: all of them.
        limit: names that are listed.
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _difference(missing: Sequence[str], surplus: Sequence[str]) -> str:
    parts = (("missing", missing), ("left over", surplus))
    return "; ".join(f"{what}: {listed(names)}" for what, names in parts if names)
