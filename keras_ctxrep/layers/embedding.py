"""Keras' embeddings, reading only the rows that a step needs: TensorFlow copies a table with sparse updates whenever it
is read as a whole. The classes have Keras' names, since saved weights contain them."""

from typing import Any

import keras
from keras import ops

from keras_ctxrep.layers.layer import Configured

__all__ = ["Embedding", "FactorizedEmbedding", "ReversibleEmbedding"]


def note(weight: Any, how: str) -> None:
    """Notes on a weight that it is read by "rows" or as a "whole", by which optimizers know what a gradient lacks.

    >>> weight = keras.Variable([1.0])
    >>> note(weight, "rows")
    >>> weight.read_by
    {'rows'}
    """
    if isinstance(weight, keras.Variable):
        weight.read_by = {*getattr(weight, "read_by", ()), how}


def take_rows(weight: Any, ids: Any):
    """Gathers rows of a weight without reading the other rows.

    >>> ops.convert_to_numpy(take_rows(keras.Variable([[1.0], [2.0]]), [1, 1])).tolist()
    [[2.0], [2.0]]
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(getattr(weight, "value", weight), ids)
    note(weight, "rows")
    return ops.take(weight, ids, axis=0)


def _whole(ids):
    """Ids as int32 or int64: those of a `keras.Sequential` without an Input are float32."""
    return ids if keras.backend.standardize_dtype(ids.dtype) in ("int32", "int64") else ops.cast(ids, "int32")


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Embedding(keras.layers.Embedding):
    """`keras.layers.Embedding` whose cost does not depend on the size of the table.

    Call:
        inputs: int32 (...), each at least 0; other numbers are cast, as by Keras.

    Returns: float32 (..., D).

    >>> Embedding(9, 2)(ops.array([[3, 8, 0]])).shape
    TensorShape([1, 3, 2])
    """

    def call(self, inputs) -> Any:
        return ops.cast(take_rows(self.embeddings, _whole(inputs)), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class ReversibleEmbedding(keras.layers.ReversibleEmbedding):
    """`keras.layers.ReversibleEmbedding` whose cost, unless reversed, does not depend on the size of the table.

    Call:
        inputs: int32 (...), each at least 0, other numbers are cast, as by Keras; or with `reverse` float32 (..., D).
        reverse: compute logits over the rows of the table.

    Returns: float32 (..., D), or with `reverse` (..., V).

    >>> ReversibleEmbedding(9, 2)(ops.array([[3, 8, 0]])).shape
    TensorShape([1, 3, 2])
    """

    def call(self, inputs, reverse=False) -> Any:
        if reverse:
            note(self.embeddings, "whole")
            return super().call(inputs, reverse=True)
        return ops.cast(take_rows(self.embeddings, _whole(inputs)), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class FactorizedEmbedding(Configured, ReversibleEmbedding):
    """`ReversibleEmbedding` with fewer weights: a table of narrow vectors, (V, R), times a projection, (R, D).

    Lan et al. 2019 (ALBERT), section 3.1, https://arxiv.org/abs/1909.11942.

    Args:
        input_dim: V.
        output_dim: R.
        units: D.
        **kwargs: as in `ReversibleEmbedding`; the initializer of the table is that of the product too, whose standard
            deviation it keeps.

    Call:
        inputs: int32 (...), each at least 0; or with `reverse` float32 (..., D).
        reverse: compute logits over the rows of the product.

    Returns: float32 (..., D), or with `reverse` (..., V).

    >>> FactorizedEmbedding(9, 2, 4)(ops.array([[3, 8, 0]])).shape
    TensorShape([1, 3, 4])
    """

    fields = ("units",)

    def __init__(self, input_dim: int, output_dim: int, units: int, **kwargs):
        super().__init__(input_dim, output_dim, **kwargs)
        self.units = units

    def build(self, input_shape=None) -> None:
        super().build(input_shape)
        start = keras.initializers.VarianceScaling(1.0, "fan_in", "truncated_normal")
        self.projection = self.add_weight((self.output_dim, self.units), start, name="projection")

    def call(self, inputs, reverse=False) -> Any:
        if reverse:
            return super().call(ops.matmul(inputs, ops.transpose(self.projection)), reverse=True)
        return ops.matmul(super().call(inputs), self.projection)

    def compute_output_shape(self, input_shape, reverse=False) -> tuple:
        return (*input_shape[:-1], self.input_dim) if reverse else (*input_shape, self.units)

    def compute_output_spec(self, inputs, reverse=False) -> keras.KerasTensor:
        return keras.KerasTensor(self.compute_output_shape(inputs.shape, reverse), dtype=self.compute_dtype)

    @property
    def variable_serialization_spec(self) -> dict:
        """The weights that a file has, by the layer's form of quantization; None: not quantized."""
        return super().variable_serialization_spec | {None: ["embeddings", "projection"]}
