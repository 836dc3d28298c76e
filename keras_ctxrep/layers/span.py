"""Marked spans of a text: an indicator for each token, and a vector for each span."""

from typing import Any

import keras
from keras import ops

from keras_ctxrep.layers.layer import Layer
from keras_ctxrep.layers.softmax import masked_softmax

__all__ = ["MarkIndicator", "SpanMean", "SpanPooling"]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class MarkIndicator(Layer):
    """The number of the marked span that contains each token.

    Call:
        mask: int32 (B, T).
        marks: int32 (B, M, 2), the first token of each span and the one after its last; (0, 0) for none.

    Returns: int32 (B, T), from 1 on, the largest where spans overlap; 0 outside of all spans.

    >>> marked = MarkIndicator()(ops.ones((1, 4), "int32"), ops.array([[[0, 1], [2, 4]]]))
    >>> ops.convert_to_numpy(marked).tolist()
    [[1, 0, 2, 2]]
    """

    def call(self, mask, marks) -> Any:
        inside = inside_marks(mask, marks)  # (B, M, T)
        numbers = ops.arange(1, ops.shape(marks)[1] + 1, dtype="int32")
        return ops.max(ops.cast(inside, "int32") * numbers[:, None], axis=1)

    def compute_output_spec(self, mask, marks) -> Any:
        return keras.KerasTensor(mask.shape, "int32")


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class SpanMean(Layer):
    """The mean vector of the tokens of each marked span, such as the pieces of a word.

    Call:
        sequence: float32 (B, T, D).
        marks: int32 (B, M, 2), as in `MarkIndicator`.

    Returns: float32 (B, M, D), zero where a span is (0, 0).

    >>> x = ops.reshape(ops.arange(4.0), (1, 4, 1))
    >>> ops.convert_to_numpy(SpanMean()(x, ops.array([[[1, 4], [0, 0]]])))[0, :, 0].tolist()
    [2.0, 0.0]
    """

    def call(self, sequence, marks) -> Any:
        inside = ops.cast(inside_marks(sequence[..., 0], marks), sequence.dtype)  # (B, M, T)
        count = ops.maximum(ops.sum(inside, axis=-1, keepdims=True), 1)
        return ops.matmul(inside, sequence) / count

    def compute_output_shape(self, sequence_shape, marks_shape) -> tuple:
        return (*marks_shape[:2], sequence_shape[-1])


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class SpanPooling(Layer):
    """A vector for each marked span: its first token, its last token, and an attention-weighted mean of its tokens.

    Lee et al. 2017, section 4, https://arxiv.org/abs/1707.07045: [x_start, x_end, sum a_t x_t], where a is the softmax
    over the span's tokens of a score per token. The source computes the score by a feed-forward network, this layer by
    a dot product with a vector.

    Call:
        sequence: float32 (B, T, D).
        marks: int32 (B, M, 2), as in `MarkIndicator`.

    Returns: float32 (B, M, 3 D), zero where a span is (0, 0).

    >>> SpanPooling()(ops.ones((2, 5, 4)), ops.zeros((2, 3, 2), "int32")).shape
    TensorShape([2, 3, 12])
    """

    def build(self, sequence_shape, marks_shape) -> None:
        self.score = self.add_weight(shape=(sequence_shape[-1],), initializer="zeros", name="score")

    def call(self, sequence, marks) -> Any:
        inside = inside_marks(sequence[..., 0], marks)  # (B, M, T)
        scores = ops.cast(ops.sum(sequence * ops.cast(self.score, sequence.dtype), axis=-1), "float32")  # (B, T)
        weights = masked_softmax(scores[:, None, :], inside)  # (B, M, T)
        position = ops.arange(ops.shape(sequence)[1], dtype="int32")
        first = ops.equal(position, marks[..., :1])  # (B, M, T)
        last = ops.equal(position, marks[..., 1:] - 1)
        present = ops.cast(marks[..., 1:] > marks[..., :1], sequence.dtype)  # (B, M, 1)
        vectors = [ops.matmul(ops.cast(weight, sequence.dtype), sequence) for weight in (first, last, weights)]
        return ops.concatenate(vectors, axis=-1) * present

    def compute_output_shape(self, sequence_shape, marks_shape) -> tuple:
        return (*marks_shape[:2], 3 * sequence_shape[-1])


def inside_marks(tokens: Any, marks: Any):
    """Whether each token, of (B, T), lies in each marked span, of (B, M, 2): bool (B, M, T).

    >>> ops.convert_to_numpy(inside_marks(ops.ones((1, 3)), ops.array([[[1, 3]]]))).tolist()
    [[[False, True, True]]]
    """
    position = ops.arange(ops.shape(tokens)[1], dtype="int32")
    return ops.logical_and(position >= marks[..., :1], position < marks[..., 1:])
