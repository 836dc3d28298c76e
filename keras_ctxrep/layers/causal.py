"""Layers that read a text in one direction, a part at a time: what they need of the tokens before is an input."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ctxrep.layers.layer import Layer
from keras_ctxrep.layers.softmax import masked_softmax
from keras_ctxrep.layers.transformer import TransformerBlock, norm

__all__ = ["CausalTransformerBlock", "GatedConvolution", "NgramContext"]


def joined(past: Any, x: Any, mask: Any):
    """The vectors of a text with those before it, and the ones that the next part of it needs.

    Args:
        past: (B, P, D), of the P tokens before.
        x: (B, T, D).
        mask: int32 (B, T), the real tokens first.

    Returns: (B, P + T, D), and (B, P, D), of the last P tokens up to the last real one.

    >>> past, x = ops.zeros((1, 2, 1)), ops.reshape(ops.arange(1.0, 4.0), (1, 3, 1))
    >>> [ops.convert_to_numpy(part)[0, :, 0].tolist() for part in joined(past, x, ops.array([[1, 1, 0]]))]
    [[0.0, 0.0, 1.0, 2.0, 3.0], [1.0, 2.0]]
    """
    whole = ops.concatenate([ops.cast(past, x.dtype), x], axis=1)
    length, width = past.shape[1], past.shape[2]
    real = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)  # (B, 1)
    first = ops.arange(ops.shape(whole)[0], dtype="int32")[:, None] * ops.shape(whole)[1] + real
    rows = ops.reshape(first + np.arange(length, dtype="int32"), (-1,))
    last = ops.take(ops.reshape(whole, (-1, width)), rows, axis=0)
    return whole, ops.reshape(last, (-1, length, width))


def by_head(x: Any, heads: int):
    """The parts of vectors that each head of an attention reads.

    Args:
        x: (B, T, D).

    Returns: (B, heads, T, D / heads).

    >>> by_head(ops.ones((1, 3, 4)), 2).shape
    TensorShape([1, 2, 3, 2])
    """
    parts = ops.reshape(x, (-1, ops.shape(x)[1], heads, x.shape[-1] // heads))
    return ops.transpose(parts, (0, 2, 1, 3))


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class NgramContext(Layer):
    """The ids of the last words at each position: the current word and those before it.

    Bengio et al. 2003, https://www.jmlr.org/papers/v3/bengio03a.html, section 2, of which an n-gram model reads n - 1.

    Args:
        words: words of each context, n - 1.

    Call:
        ids: int32 (B, T).
        mask: int32 (B, T), the real tokens first.
        past: float32 (B, words - 1), the ids before; zeros at the beginning of a text. None: a whole text.

    Returns: int32 (B, T, words), the oldest word first, and with `past` the new one.

    >>> ids, past = NgramContext(3)(ops.array([[5, 6]]), mask=ops.array([[1, 1]]), past=ops.zeros((1, 2)))
    >>> ops.convert_to_numpy(ids).tolist(), ops.convert_to_numpy(past).tolist()
    ([[[0, 0, 5], [0, 5, 6]]], [[5.0, 6.0]])
    """

    def __init__(self, words: int, **kwargs):
        super().__init__(**kwargs | {"dtype": "float32"})  # half precision has not all ids
        self.words = words

    def call(self, ids, mask, past=None) -> Any:
        ids = ops.cast(ids, "int32")[:, :, None]
        end, length = past, ops.shape(ids)[1]
        if past is None:
            whole = ops.pad(ids, ((0, 0), (self.words - 1, 0), (0, 0)))
        elif self.words == 1:
            whole = ids
        else:
            whole, end = joined(ops.cast(past, "int32")[:, :, None], ids, mask)
            end = ops.cast(end[:, :, 0], "float32")
        context = ops.concatenate([whole[:, i : i + length] for i in range(self.words)], axis=2)
        return context if past is None else (context, end)

    def compute_output_spec(self, ids, mask, past=None) -> Any:
        context = keras.KerasTensor((*ids.shape, self.words), "int32")
        return context if past is None else (context, keras.KerasTensor(past.shape, "float32"))


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class GatedConvolution(Layer):
    """A causal convolution with a gated linear unit and a residual sum.

    Dauphin et al. 2017, https://arxiv.org/abs/1612.08083, eq. 1: h = (X * W + b) sigmoid(X * V + c), where the kernel
    at a position reads it and the `kernel_size` - 1 positions before. The paper adds the residual over up to five
    layers, here it is over each; its weight normalization is left out.

    Args:
        kernel_size: positions that a filter reads.

    Call:
        x: float32 (B, T, D).
        mask: int32 (B, T), the real tokens first.
        past: float32 (B, kernel_size - 1, D), the inputs before; zeros at the beginning of a text. None: a whole text.

    Returns: float32 (B, T, D), unspecified at masked positions, and with `past` the new one.

    >>> x, past = GatedConvolution(3)(ops.ones((1, 5, 4)), mask=ops.ones((1, 5)), past=ops.zeros((1, 2, 4)))
    >>> x.shape, past.shape
    (TensorShape([1, 5, 4]), TensorShape([1, 2, 4]))
    """

    def __init__(self, kernel_size: int, **kwargs):
        super().__init__(**kwargs)
        self.kernel_size = kernel_size

    def build(self, input_shape) -> None:
        self._build_kernel(input_shape[-1], keras.initializers.HeNormal())

    def _build_kernel(self, width, start):
        self.kernel = self.add_weight(name="kernel", shape=(self.kernel_size, width, 2 * width), initializer=start)
        self.bias = self.add_weight(name="bias", shape=(2 * width,), initializer="zeros")

    def call(self, x, mask, past=None) -> Any:
        gated, end = self._gated(x, mask, past)
        x = x + gated
        return x if past is None else (x, end)

    def _gated(self, x, mask, past):
        """What is added to x, (B, T, D), and the new `past`."""
        if past is None:
            whole, end = ops.pad(x, ((0, 0), (self.kernel_size - 1, 0), (0, 0))), None
        else:
            whole, end = joined(past, x, mask)
        linear, gate = ops.split(ops.conv(whole, self.kernel, padding="valid") + self.bias, 2, axis=-1)
        return linear * ops.sigmoid(gate), end

    def compute_output_spec(self, x, mask, past=None) -> Any:
        return _like(x, past, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class CausalTransformerBlock(TransformerBlock):
    """The pre-norm Transformer block of language models, over a cache of the keys and values of the tokens before.

    Radford et al. 2019 (GPT-2), section 2.3: x + attention(norm(x)), then x + feed_forward(norm(x)). A token attends to
    itself and to the `context` tokens before it, with the rotary positions of Su et al. 2021,
    https://arxiv.org/abs/2104.09864, in place of learned ones: only distances count, so that a text may be of
    any length. The cache has unrotated keys; the halves of a head's vector are the two coordinates that are rotated,
    instead of its even and odd numbers.

    Args:
        heads, intermediate, dropout, attention_dropout, activation, epsilon, initializer_range: as of
            `TransformerBlock`.
        rotary: without, the positions are in the vectors that are read, as in GPT-2.

    Call:
        x: float32 (B, T, D).
        mask: int32 (B, T), the real tokens first.
        past: float32 (B, context, 2 D), keys and values, the latest last. None: a whole text.
        count: int32 (B, 1), how many of these there are.
        context: without `past`, the tokens before each that it attends to.

    Returns: float32 (B, T, D), unspecified at masked positions, and with `past` the new one.

    >>> block, mask = CausalTransformerBlock(heads=2, intermediate=8), ops.ones((1, 3), "int32")
    >>> x, past = block(ops.ones((1, 3, 4)), mask=mask, past=ops.zeros((1, 5, 8)), count=ops.zeros((1, 1), "int32"))
    >>> x.shape, past.shape
    (TensorShape([1, 3, 4]), TensorShape([1, 5, 8]))
    """

    def __init__(self, heads: int, intermediate: int, *args, rotary: bool = True, **kwargs):
        super().__init__(heads, intermediate, *args, **kwargs)
        self.rotary = rotary

    def call(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, mask, past=None, count=None, context=None, training=None
    ) -> Any:
        length, width = ops.shape(x)[1], x.shape[-1]
        x = ops.reshape(x, (-1, width))  # (B*T, D): in 2D, TensorFlow fuses the matrix product, bias and GELU
        attended, end = self._attend(x, length, mask, past, count, context, training)
        x = x + attended
        x = x + self._fed(norm(self.feed_forward_norm, x, training), training)
        x = ops.reshape(x, (-1, length, width))
        return x if past is None else (x, end)

    def _attend(self, x, length, mask, past, count, context, training):
        """What the attention adds, (B*T, D), and the new `past`."""
        width, before, end = x.shape[-1], 0, None
        projected = ops.reshape(self.qkv(norm(self.attention_norm, x, training)), (-1, length, 3 * width))
        query, pairs = ops.split(projected, [width], axis=-1)
        if past is not None:
            context = before = past.shape[1]
            pairs, end = joined(past, pairs, mask)  # (B, before + T, 2 D)
        key, value = ops.split(pairs, 2, axis=-1)
        whole = ops.shape(pairs)[1]
        at, positions = ops.arange(length, dtype="int32") + before, ops.arange(whole, dtype="int32")
        query = self._rotate(by_head(query, self.heads), at, (width // self.heads) ** -0.5)
        key = self._rotate(by_head(key, self.heads), positions)
        scores = ops.cast(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))), "float32")
        distance = at[:, None] - positions[None]  # (T, before + T)
        allowed = ops.logical_and(distance >= 0, distance <= context)[None]
        if past is not None:
            filled = positions[None] >= before - count  # (B, before + T)
            allowed = ops.logical_and(allowed, filled[:, None])  # (B, T, before + T)
        weights = ops.cast(masked_softmax(scores, allowed[:, None]), x.dtype)
        weights = self.drop_weights(weights, training=training)
        mixed = ops.transpose(ops.matmul(weights, by_head(value, self.heads)), (0, 2, 1, 3))  # (B, T, H, D/H)
        mixed = self.attention_output(ops.reshape(mixed, (-1, width)))
        return self.drop_output(mixed, training=training), end

    def _rotate(self, x, positions, scale=1.0):
        """Rotary positions: (a, b) -> (a cos - b sin, b cos + a sin) of the angles t / 10000^(2i / size), scaled."""
        if not self.rotary:
            return x * scale
        half = x.shape[-1] // 2
        frequencies = 10000.0 ** (-np.arange(half, dtype="float32") / half)
        angles = ops.cast(positions, "float32")[:, None] * frequencies  # (T, half)
        cos, sin = ops.cast(scale * ops.cos(angles), x.dtype), ops.cast(scale * ops.sin(angles), x.dtype)
        a, b = ops.split(x, 2, axis=-1)
        return ops.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def build(self, input_shape) -> None:
        super().build(input_shape)
        if self.rotary and (input_shape[-1] // self.heads) % 2:
            raise ValueError(f"heads={self.heads}: heads of odd width {input_shape[-1] // self.heads} have no halves")

    def compute_output_spec(self, x, mask, past=None, count=None, context=None, training=None) -> Any:
        return _like(x, past, self.compute_dtype)


def _like(x, past, dtype):
    """The output of a layer over a text, or over a part of it and the `past`."""
    out = keras.KerasTensor(x.shape, dtype)
    return out if past is None else (out, keras.KerasTensor(past.shape, dtype))
