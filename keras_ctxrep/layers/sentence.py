"""Sentence markers, padding, and pooling of tokens into one vector."""

from typing import Any

import keras
from keras import ops

from keras_ctxrep.layers.layer import Layer
from keras_ctxrep.layers.softmax import LOWEST

__all__ = ["MaskedPooling", "SentenceMarkers", "ZeroPadding"]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class SentenceMarkers(Layer):
    """Inserts ELMo's <S> before the first word and </S> after the last real one.

    https://github.com/allenai/bilm-tf, `Batcher`; the ids are those of `keras_ctxrep.text.tokens.Characters`, or word
    ids, of which <S> is 1 and </S> is 2.

    Call:
        ids: int32 (B, T, W), or (B, T) of words.
        mask: int32 (B, T), the real tokens first.

    Returns: int32 (B, T+2, W) or (B, T+2), and its mask, int32 (B, T+2).

    >>> ids, mask = SentenceMarkers()(ops.ones((1, 2, 4), "int32"), mask=ops.array([[1, 0]]))
    >>> ops.convert_to_numpy(ids)[0, :, 1].tolist(), ops.convert_to_numpy(mask)[0].tolist()
    ([257, 1, 258, 0], [1, 1, 1, 0])
    """

    BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261

    def call(self, ids, mask) -> Any:
        if len(ids.shape) == 2:
            marked, wider = self._mark(ids[:, :, None], mask, [[1], [2]])
            return marked[:, :, 0], wider
        fill = [self.PADDING] * (ids.shape[-1] - 3)
        markers = (self.BEGIN_SENTENCE, self.END_SENTENCE)
        return self._mark(ids, mask, [[self.BEGIN_WORD, marker, self.END_WORD, *fill] for marker in markers])

    def _mark(self, ids, mask, markers):
        begin, end = (ops.convert_to_tensor(marker, dtype="int32") for marker in markers)
        mask = ops.cast(mask, "int32")
        real = ops.pad(mask, ((0, 0), (1, 1)))  # (B, T+2), the words
        wider = ops.pad(mask, ((0, 0), (2, 0)), constant_values=1)  # the words and both markers
        first = ops.cast(ops.arange(ops.shape(wider)[1]) == 0, "int32")  # (T+2,)
        last = wider - real - first  # (B, T+2)
        ids = ops.pad(ops.cast(ids, "int32"), ((0, 0), (1, 1), (0, 0))) * real[:, :, None]
        return ids + first[None, :, None] * begin + last[:, :, None] * end, wider

    def compute_output_spec(self, ids, mask) -> Any:
        batch, length, *width = ids.shape
        marked = (batch, None if length is None else length + 2)
        return keras.KerasTensor((*marked, *width), "int32"), keras.KerasTensor(marked, "int32")


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class ZeroPadding(Layer):
    """Sets masked positions to zero.

    Args:
        carry_mask: the output carries the mask as a Keras mask, as that of an Embedding with `mask_zero` does, so that
            Keras' layers above it leave masked positions out.

    Call:
        x: float32 (B, T, D).
        mask: int32 (B, T).

    Returns: float32 (B, T, D).

    >>> ops.convert_to_numpy(ZeroPadding()(ops.ones((1, 2, 1)), mask=ops.array([[1, 0]])))[0, :, 0].tolist()
    [1.0, 0.0]
    """

    def __init__(self, carry_mask: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.carry_mask = carry_mask

    def compute_mask(self, inputs, previous_mask) -> Any:
        return ops.cast(previous_mask, "bool") if self.carry_mask else None

    def call(self, x, mask) -> Any:
        return x * ops.cast(mask, x.dtype)[:, :, None]

    def compute_output_shape(self, input_shape) -> Any:
        return input_shape


def unit_length(vectors: Any) -> Any:
    """Vectors scaled to length 1, (..., D), but for those below 1e-7, of which 0 stays 0; as `keras.ops.normalize`.

    That one has the reciprocal of the root of 0 in it, which is NaN in LiteRT.

    >>> ops.convert_to_numpy(unit_length(ops.array([[3.0, 4.0], [0.0, 0.0]]))).round(1).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    inverse = ops.rsqrt(ops.maximum(squares, 1e-14))
    # the converter would fuse all of it without the minimum, into an operator whose 8 bits are steps of 1 / 128
    return vectors * ops.minimum(inverse, 1e7)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class MaskedPooling(Layer):
    """Mean, maximum, or both concatenated, over the real tokens, or the first or last; zero if there are none.

    There may be more axes before that of the tokens, e.g. for the n-grams of each word.

    Args:
        how: "mean", "max", "mean_max", "cls", the first token's vector, or "last", that of the last real token.
        normalize: scale the result to length 1.

    Call:
        sequence: float32 (..., T, D).
        mask: int32 (..., T); None: the Keras mask that `sequence` carries.

    Returns: float32 (..., D), or (..., 2 D) for "mean_max".

    Raises:
        ValueError: `how` is none of the five, or there is no mask.

    >>> x = ops.reshape(ops.arange(4.0), (1, 4, 1))
    >>> [float(MaskedPooling(how)(x, mask=ops.array([[1, 1, 0, 0]]))[0, 0]) for how in ("mean", "max", "last")]
    [0.5, 1.0, 1.0]
    """

    def __init__(self, how: str = "mean", normalize: bool = False, **kwargs):
        super().__init__(**kwargs)
        if how not in ("mean", "max", "mean_max", "cls", "last"):
            raise ValueError(f"how={how!r}: choose 'mean', 'max', 'mean_max', 'cls' or 'last'")
        self.how, self.normalize = how, normalize

    def call(self, sequence, mask=None) -> Any:
        if mask is None:
            raise ValueError(f"{self.name}: needs the mask of the tokens: pooling(sequence, mask=mask)")
        pooled = self._pool(sequence, mask)
        if not self.normalize:
            return pooled
        return ops.cast(unit_length(ops.cast(pooled, "float32")), pooled.dtype)  # squares overflow in float16

    def _pool(self, sequence, mask):
        weights = ops.cast(mask, sequence.dtype)[..., None]  # (B, T, 1)
        count = ops.sum(weights, axis=-2)  # (B, 1)
        if self.how == "cls":
            return sequence[..., 0, :] * ops.minimum(count, 1)
        if self.how == "last":  # where the mask ends
            following = ops.concatenate([weights[..., 1:, :], ops.zeros_like(weights[..., :1, :])], axis=-2)
            return ops.sum(sequence * (weights - following), axis=-2)
        pooled = []
        if "mean" in self.how:
            pooled.append(ops.sum(sequence * weights, axis=-2) / ops.maximum(count, 1))
        if "max" in self.how:
            highest = ops.max(ops.where(weights > 0, sequence, ops.cast(LOWEST, sequence.dtype)), axis=-2)
            pooled.append(highest * ops.minimum(count, 1))
        return pooled[0] if len(pooled) == 1 else ops.concatenate(pooled, axis=-1)

    def compute_output_shape(self, input_shape) -> tuple:
        return (*input_shape[:-2], input_shape[-1] * (2 if self.how == "mean_max" else 1))
