"""What fine-tuning changed of an encoder: a model folder of a megabyte, which names the encoder that it needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.text.artifacts import UPDATES, read_arrays

if TYPE_CHECKING:
    import keras

__all__ = ["Updated", "apply", "changes", "difference", "read", "write"]

Changes = dict[str, tuple[np.ndarray, ...]]  # LAYER/NUMBER -> an array, or two factors of a difference


def changes(model: "keras.Model", base: "keras.Model", rank: int) -> Changes:
    """What a model has over its encoder: all weights of other layers, and differences of those of the encoder.

    The difference of a matrix is the product of two factors (Hu et al. 2021, https://arxiv.org/abs/2106.09685, section
    4.1), the nearest one of its rank by the singular values: of a model that was trained with `lora` of this rank or a
    lower one it is the difference itself, but for rounding to float16.

    Args:
        model: fine-tuned.
        base: the encoder that it began with.
        rank: of the differences of matrices.

    Returns: LAYER/NUMBER of a weight -> float16 (the weight or difference,), or ((M, rank), (rank, N)); nothing for a
        weight that is the encoder's.

    >>> from keras_ctxrep.models import bert, heads
    >>> base, other = (bert.encoder(bert.SIZES["bert_2_64_2"]) for _ in range(2))
    >>> sorted(changes(heads.classify(base, classes=2), base, rank=4))
    ['logits/0', 'logits/1']
    """
    known = {layer.name: layer.get_weights() for layer in base.layers if layer.weights}
    found: Changes = {}
    for layer in model.layers:
        for number, array in enumerate(layer.get_weights()):
            key, difference = f"{layer.name}/{number}", array
            if layer.name in known:
                difference = array - known[layer.name][number]
                if not difference.any():
                    continue
            parts = (difference,)
            if layer.name in known and difference.ndim == 2 and rank < min(difference.shape):
                left, values, right = np.linalg.svd(difference.astype(np.float64), full_matrices=False)
                root = np.sqrt(values[:rank])
                parts = left[:, :rank] * root, root[:, None] * right[:rank]
            found[key] = tuple(part.astype(np.float16) for part in parts)
    return found


class Updated:
    """A dense layer whose low-rank update is computed beside it: the layer of x, and x A B.

    The layer's own kernel stays that of the encoder, which several models in one file share.

    Args:
        dense: with the encoder's weights.
        factors: A, (M, rank), and B, (rank, N).
    """

    def __init__(self, dense: "keras.layers.Dense", factors: tuple[np.ndarray, ...]):
        from keras import ops

        self.dense, self.factors = dense, [ops.convert_to_tensor(factor, "float32") for factor in factors]

    def __call__(self, x: Any) -> Any:
        from keras import ops

        first, second = self.factors
        return self.dense(x) + ops.matmul(ops.matmul(x, first), second)


def difference(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """A change as one array, float32: itself, or the product of its factors.

    Args:
        parts: as `changes` gives them.

    >>> difference((np.ones((2, 1), np.float16), np.ones((1, 2), np.float16))).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    first, *second = (part.astype(np.float32) for part in parts)
    return first @ second[0] if second else first


def apply(
    model: "keras.Model", base: "keras.Model", found: Mapping[str, tuple[np.ndarray, ...]], merged: bool = True
) -> None:
    """Gives a model the weights of an encoder with changes.

    Args:
        model: to change, of any weights.
        base: the encoder.
        found: as `changes` gives them.
        merged: add the products of factors to the kernels; else those of the dense layers within blocks are computed
            beside them, see `Updated`, by a model that is then good for inference alone.

    Raises:
        ValueError: the changes are not of this model: a weight is missing, left over or of another shape.
    """
    known = {layer.name: layer.get_weights() for layer in base.layers if layer.weights}
    left = dict(found)
    for layer in model.layers:
        arrays = known.get(layer.name, [None] * len(layer.weights))
        for number, (array, weight) in enumerate(zip(arrays, layer.weights, strict=True)):
            parts = left.pop(f"{layer.name}/{number}", ())
            beside = None if merged or len(parts) < 2 else _dense(layer, weight)
            if beside is not None:
                object.__setattr__(layer, beside, Updated(getattr(layer, beside), parts))
                parts = ()
            change = difference(parts) if parts else None
            if change is None and array is None:
                raise ValueError(f"{layer.name}/{number} is missing")
            if change is not None and change.shape != (shape := tuple(weight.shape)):
                raise ValueError(f"{layer.name}/{number} has the shape {change.shape} in place of {shape}")
            weight.assign(change if array is None else array if change is None else array + change)
    if left:
        raise ValueError(f"{', '.join(sorted(left)[:3])} left over")


def _dense(layer: "keras.layers.Layer", weight: Any) -> str | None:
    """The attribute of a block that is the dense layer with this kernel; None: it has none."""
    import keras

    parts = ((name, part) for name, part in vars(layer).items() if isinstance(part, keras.layers.Dense))
    return next((name for name, part in parts if part.kernel is weight), None)


def write(folder: str | Path, found: Changes) -> None:
    """Writes changes into a model folder."""
    arrays: dict[str, Any] = {
        f"{key}:{part}": array for key, parts in found.items() for part, array in enumerate(parts)
    }
    with atomic_write(Path(folder) / UPDATES) as path, path.open("wb") as file:
        np.savez(file, **arrays)


def read(folder: str | Path) -> Changes:
    """The changes in a model folder.

    Raises:
        ValueError: the file is missing or damaged.
    """
    path = Path(folder) / UPDATES
    found: dict[str, dict[str, np.ndarray]] = {}
    try:
        arrays = read_arrays(path)
    except ValueError as error:
        raise ValueError(f"{path}: not a file of changes: {error}; copy the folder again") from None
    for name, array in arrays.items():
        key, _, part = name.rpartition(":")
        found.setdefault(key, {})[part] = array
    return {key: tuple(parts[number] for number in sorted(parts)) for key, parts in found.items()}
