"""The post-norm Transformer block of BERT, and the small layers around it."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ctxrep.layers import cpu
from keras_ctxrep.layers.dropout import Dropout
from keras_ctxrep.layers.initializers import RandomWeights
from keras_ctxrep.layers.layer import Configured, Layer
from keras_ctxrep.layers.softmax import masked_softmax

__all__ = [
    "Bias",
    "PositionEmbedding",
    "RelativePositionBias",
    "SinusoidalPositions",
    "TakePositions",
    "TransformerBlock",
]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
def gelu_tanh(x: Any):
    """The tanh approximation of GELU, Hendrycks & Gimpel 2016, section 2, https://arxiv.org/abs/1606.08415.

    >>> round(float(gelu_tanh(ops.ones(()))), 4)
    0.8412
    """
    return ops.gelu(x, approximate=True)


def _gelu_erf(x):
    """GELU with erf, in two thirds of the time of the form with erfc; within 2e-6 for inputs up to 12."""
    return x * (0.5 + 0.5 * ops.erf(x * 0.5**0.5))


ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": gelu_tanh, "relu": "relu"}  # name in a config -> Keras activation
_COMPILED = {"gelu": _gelu_erf, "gelu_tanh": gelu_tanh}  # these take long enough for it
_LEAST_WIDTH = 256  # below, the compilation of some 0.1 s for each number of rows takes longer than it saves


def activated(x: Any, name: str, training: bool | None):
    """An activation by its name in a config.

    >>> float(activated(ops.ones(()), "relu", training=False))
    1.0
    """
    if name in _COMPILED and x.shape[-1] >= _LEAST_WIDTH and cpu.compiles(training):
        return cpu.compiled(_COMPILED[name])(x)
    return keras.activations.get(ACTIVATIONS[name])(x)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class TransformerBlock(Layer):
    """Multi-head self-attention and a feed-forward layer, each followed by dropout, residual sum and layer norm.

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, in the post-norm form of Devlin et al. 2018,
    https://arxiv.org/abs/1810.04805. Queries, keys and values come from one matrix product.

    Args:
        heads: number of attention heads; divides the width.
        intermediate: width of the feed-forward layer (4 D in every published model).
        dropout: dropout rate of both sub-layers' outputs.
        attention_dropout: dropout rate of the attention weights.
        activation: activation of the feed-forward layer: "gelu" is the exact form with erf, as published, "gelu_tanh"
            its approximation; or "relu".
        epsilon: epsilon of the layer norms (1e-12 as published).
        initializer_range: standard deviation of the truncated normal that initializes the kernels.
        return_attention: return the attention weights too.

    Attributes:
        recompute: in training keep the block's input alone, and compute its activations again for the gradient (Chen et
            al. 2016, https://arxiv.org/abs/1604.06174). On TensorFlow.

    Call:
        x: float32 (B, T, D).
        mask: int32 (B, T); masked positions are not attended to.
        bias: float32 (B or 1, H, T, T), added to the scores of attention before their softmax; None: nothing is.

    Returns: float32 (B, T, D); values at masked positions are unspecified. With `return_attention` also the attention
        weights before dropout, float32 (B, H, T, T): one row per query, which sums to 1; zero where the key or the
        query is masked.

    Raises:
        ValueError: `heads` does not divide D, or an unknown activation.

    >>> TransformerBlock(heads=2, intermediate=8)(ops.ones((1, 3, 4)), mask=ops.ones((1, 3), "int32")).shape
    TensorShape([1, 3, 4])
    """

    recompute = False

    def __init__(
        self,
        heads: int,
        intermediate: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: str = "gelu",
        epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        return_attention: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation!r}: one of {', '.join(ACTIVATIONS)}")
        self.heads, self.intermediate, self.dropout, self.attention_dropout = (
            heads, intermediate, dropout, attention_dropout,
        )  # fmt: skip
        self.activation, self.epsilon, self.initializer_range = activation, epsilon, initializer_range
        self.return_attention = return_attention

    def enable_lora(self, rank: int) -> None:
        """Adds low-rank updates A B to the kernels of the dense layers, and freezes all other weights of the block.

        Hu et al. 2021, https://arxiv.org/abs/2106.09685, by `keras.layers.Dense.enable_lora`: B starts at zero, the
        scale (alpha / r in the paper) is 1, and `save_weights` adds the updates to the kernels it writes. Queries,
        keys and values share one A, since one matrix product computes them; each has its own part of B.

        Args:
            rank: columns of A.
        """
        self.trainable = True
        for norm in (self.attention_norm, self.feed_forward_norm):
            norm.trainable = False
        for dense in (self.qkv, self.attention_output, self.feed_forward, self.feed_forward_output):
            dense.bias.trainable = False
            dense.enable_lora(rank)

    def build(self, input_shape) -> None:
        width = input_shape[-1]
        if width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide the width {width}")

        def part(make, name, shape):
            layer = make(name=name, dtype=self.dtype_policy)
            layer.build(shape)
            return layer

        def dense(name, units, inputs):
            start = RandomWeights(keras.initializers.TruncatedNormal(stddev=self.initializer_range))
            return part(lambda **kw: keras.layers.Dense(units, kernel_initializer=start, **kw), name, (None, inputs))

        def norm(name):
            return part(lambda **kw: keras.layers.LayerNormalization(epsilon=self.epsilon, **kw), name, input_shape)

        self.qkv = dense("qkv", 3 * width, width)
        self.attention_output = dense("attention_output", width, width)
        self.attention_norm = norm("attention_norm")
        self.feed_forward = dense("feed_forward", self.intermediate, width)
        self.feed_forward_output = dense("feed_forward_output", width, self.intermediate)
        self.feed_forward_norm = norm("feed_forward_norm")
        self.drop_weights = Dropout(self.attention_dropout, dtype=self.dtype_policy)
        self.drop_output = Dropout(self.dropout, dtype=self.dtype_policy)

    def call(self, x, mask, bias=None, training=None) -> Any:
        if training and self.recompute:
            return self._recompute(x, mask, bias)
        return self._block(x, mask, bias, training)

    def _recompute(self, x, mask, bias):
        """The block, whose activations are computed again for its gradient; both times with the same dropout masks."""
        seeds = [layer.next_seed() for layer in (self.drop_weights, self.drop_output, self.drop_output)]

        @keras.remat
        def block(x, bias=None):
            with self.drop_weights.seeded(seeds[:1]), self.drop_output.seeded(seeds[1:]):
                return self._block(x, mask, bias, True)

        return block(x) if bias is None else block(x, bias)

    def _block(self, x, mask, bias, training):
        length, width = ops.shape(x)[1], x.shape[-1]
        x = ops.reshape(x, (-1, width))  # (B*T, D): in 2D, TensorFlow fuses the matrix product, bias and GELU
        mixed, weights = self._attention(x, mask, bias, length, training)
        x = norm(self.attention_norm, x + self.drop_output(self.attention_output(mixed), training=training), training)
        x = norm(self.feed_forward_norm, x + self._fed(x, training), training)
        x = ops.reshape(x, (-1, length, width))
        if not self.return_attention:
            return x
        real = ops.cast(mask, weights.dtype)
        return x, weights * real[:, None, None, :] * real[:, None, :, None]

    def _fed(self, x, training):
        """The feed-forward layer, with dropout."""
        hidden = activated(self.feed_forward(x), self.activation, training)
        return self.drop_output(self.feed_forward_output(hidden), training=training)

    def _attention(self, x, mask, bias, length, training):
        """The attended values of all heads, (B*T, D), and the weights, (B, H, T, T)."""
        width = x.shape[-1]
        head = width // self.heads
        parts = ops.transpose(ops.reshape(self.qkv(x), (-1, length, 3, self.heads, head)), (2, 0, 3, 1, 4))
        parts = ops.split(parts, 3)  # along the first axis TensorFlow copies nothing
        query, key, value = (ops.reshape(part, (-1, self.heads, length, head)) for part in parts)  # (B, H, T, D/H)
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) * (head**-0.5)  # (B, H, T, T)
        if bias is not None:
            scores = scores + ops.cast(bias, scores.dtype)
        if training or scores.dtype != "bfloat16" or not cpu.one_dnn():  # its softmax calculates in float32
            scores = ops.cast(scores, "float32")
        weights = ops.cast(masked_softmax(scores, mask[:, None, None]), value.dtype)
        mixed = ops.matmul(self.drop_weights(weights, training=training), value)  # (B, H, T, D/H)
        return ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (-1, width)), weights

    def compute_output_shape(self, input_shape) -> tuple:
        batch, length, _ = input_shape
        return (input_shape, (batch, self.heads, length, length)) if self.return_attention else input_shape


def norm(layer: keras.layers.LayerNormalization, x: Any, training: bool | None):
    """Layer norm of (rows, D). With oneDNN it is a batch norm over the rows: one fused kernel instead of ten.

    Args:
        layer: a `keras.layers.LayerNormalization`, over the last axis.

    >>> layer = keras.layers.LayerNormalization()
    >>> layer.build((None, 2))
    >>> ops.convert_to_numpy(norm(layer, ops.array([[1.0, 3.0]]), training=False)).round(2).tolist()
    [[-1.0, 1.0]]
    """
    if cpu.one_dnn(training) and x.dtype in ("float32", "bfloat16"):
        import tensorflow as tf

        rows, width = tf.shape(x)[0], x.shape[1]
        normal = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(x, (1, rows, width, 1)),
            scale=tf.fill([rows], 1.0),
            offset=tf.fill([rows], 0.0),
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            epsilon=layer.epsilon,
            data_format="NCHW",
            is_training=True,
        )[0]
        gamma, beta = (tf.cast(weight.value, x.dtype) for weight in (layer.gamma, layer.beta))
        return tf.reshape(normal, tf.shape(x)) * gamma + beta
    return layer(x)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Bias(keras.layers.Layer):
    """Adds a trained bias, for logits whose kernel is a weight of another layer.

    Call:
        x: float32 (..., V).

    Returns: float32 (..., V).

    >>> float(Bias()(ops.ones((1, 2)))[0, 0])
    1.0
    """

    def build(self, input_shape) -> None:
        self.bias = self.add_weight(name="bias", shape=(input_shape[-1],), initializer="zeros")

    def call(self, x) -> Any:
        return x + self.bias


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class PositionEmbedding(Configured, keras.layers.Layer):
    """Adds a learned vector for each position.

    Devlin et al. 2018, figure 2.

    Args:
        positions: rows of the table, the maximum length of the input.
        initializer_range: standard deviation of the truncated normal that initializes the table.

    Call:
        x: float32 (B, T, D).
        count: int32 (B, 1), the tokens before x; those for which there is no vector have the last one.

    Returns: float32 (B, T, D).

    Raises:
        ValueError: the input is longer than the table; if its length is not static, TensorFlow's InvalidArgumentError.

    >>> PositionEmbedding(4)(ops.ones((1, 3, 2))).shape
    TensorShape([1, 3, 2])
    """

    def __init__(self, positions: int, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.positions, self.initializer_range = positions, initializer_range

    def build(self, input_shape) -> None:
        start = RandomWeights(keras.initializers.TruncatedNormal(stddev=self.initializer_range))
        self.table = self.add_weight(name="table", shape=(self.positions, input_shape[-1]), initializer=start)

    def call(self, x, count=None) -> Any:
        if count is not None:
            places = ops.minimum(ops.arange(ops.shape(x)[1], dtype="int32")[None] + count, self.positions - 1)
            return x + ops.take(self.table, places, axis=0)
        length = x.shape[1]
        if length is None and keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            length = tf.shape(x)[1]
            message = "this model has no positions for an input of so many tokens:"
            fits = tf.debugging.Assert(length <= self.positions, [message, length, "the most is", self.positions])
            with tf.control_dependencies([fits] if fits is not None else []):
                length = tf.identity(length)
        elif length is not None and length > self.positions:
            raise ValueError(f"an input of {length} tokens; this model has positions for {self.positions}")
        return x + self.table[:length]

    def compute_output_spec(self, x, count=None) -> Any:
        return keras.KerasTensor(x.shape, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class RelativePositionBias(Configured, keras.layers.Layer):
    """A learned bias of attention scores for each distance between two tokens, one for each head.

    Raffel et al. 2020, section 2.1, https://arxiv.org/abs/1910.10683, in the form for both directions, which MPNet has:
    distances fall into buckets, half of them for keys after the query. In each half the first half has a bucket for
    each distance, and the others are wider the larger the distance is: their bounds grow in equal ratios up to
    `max_distance`, from which on all distances share the last one.

    Args:
        heads: number of attention heads.
        buckets: rows of the table, a multiple of 4 (32 in the source).
        max_distance: in tokens (128 in the source).
        initializer_range: standard deviation of the truncated normal that initializes the table.

    Call:
        x: float32 (B, T, D), of which the length is read.

    Returns: float32 (1, H, T, T), a row for each query.

    Raises:
        ValueError: `buckets` is no multiple of 4, or `max_distance` is not above a fourth of it.

    >>> RelativePositionBias(heads=2)(ops.ones((1, 3, 4))).shape
    TensorShape([1, 2, 3, 3])
    """

    def __init__(
        self, heads: int, buckets: int = 32, max_distance: int = 128, initializer_range: float = 0.02, **kwargs
    ):
        super().__init__(**kwargs)
        if buckets % 4 or not 0 < buckets // 4 < max_distance:
            raise ValueError(
                f"buckets={buckets}, max_distance={max_distance}: a multiple of 4, and more than a fourth of it"
            )
        self.heads, self.buckets, self.max_distance = heads, buckets, max_distance
        self.initializer_range = initializer_range

    def build(self, input_shape) -> None:
        start = RandomWeights(keras.initializers.TruncatedNormal(stddev=self.initializer_range))
        self.table = self.add_weight(name="table", shape=(self.buckets, self.heads), initializer=start)

    def call(self, x) -> Any:
        farthest = self.max_distance
        buckets = np.array([self.bucket(distance) for distance in range(-farthest, farthest + 1)], "int32")
        positions = ops.arange(ops.shape(x)[1], dtype="int32")
        distances = ops.clip(positions[None, :] - positions[:, None], -farthest, farthest)  # (T, T), key minus query
        numbers = ops.take(ops.convert_to_tensor(buckets), distances + farthest, axis=0)
        bias = ops.transpose(ops.take(self.table, numbers, axis=0), (2, 0, 1))[None]  # (1, H, T, T)
        return ops.cast(bias, self.compute_dtype)

    def bucket(self, distance: int) -> int:
        """The row of a distance, the position of the key minus that of the query.

        >>> [RelativePositionBias(1).bucket(distance) for distance in (0, -7, 7, -8, -16, -500, 500)]
        [0, 7, 23, 8, 10, 15, 31]
        """
        half, exact, size = self.buckets // 2, self.buckets // 4, abs(distance)
        if size >= exact:
            ratio = math.log(size / exact) / math.log(self.max_distance / exact)
            size = min(half - 1, exact + math.floor(ratio * (half - exact) + 1e-6))  # bounds that are powers are exact
        return size + (half if distance > 0 else 0)

    def compute_output_spec(self, x) -> Any:
        return keras.KerasTensor((1, self.heads, x.shape[1], x.shape[1]), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class SinusoidalPositions(keras.layers.Layer):
    """Adds a fixed vector of sines and cosines for each position; for any length.

    Vaswani et al. 2017, section 3.5: PE(t, 2i) = sin(t / 10000^(2i/D)), PE(t, 2i+1) = cos(t / 10000^(2i/D)).

    Call:
        x: float32 (B, T, D).
        before: int32 (B, 1), the tokens before the first one; None: none.

    Returns: float32 (B, T, D).

    >>> ops.convert_to_numpy(SinusoidalPositions()(ops.zeros((1, 2, 2)))).round(4).tolist()
    [[[0.0, 1.0], [0.8414999842643738, 0.5403000116348267]]]
    """

    def call(self, x, before=None) -> Any:
        length, width = ops.shape(x)[1], x.shape[-1]
        frequencies = 10000.0 ** (-np.arange(0, width, 2, dtype="float32") / width)
        # in float32 under any policy: bfloat16 cannot represent all integers above 256
        at = ops.arange(length, dtype="float32")[None]
        if before is not None:
            at = at + ops.cast(before, "float32")  # (B, T)
        angles = at[:, :, None] * frequencies  # (B or 1, T, D/2)
        table = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        table = ops.reshape(table, (-1, length, 2 * len(frequencies)))
        return x + ops.cast(table[:, :, :width], x.dtype)

    def compute_output_spec(self, x, before=None) -> Any:
        return keras.KerasTensor(x.shape, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class TakePositions(Layer):
    """Gathers the vectors at some positions of each row, e.g. to compute logits only there.

    Call:
        x: float32 (B, T, D).
        positions: int32 (B, P).

    Returns: float32 (B, P, D).

    >>> x = ops.reshape(ops.arange(6.0), (1, 3, 2))
    >>> ops.convert_to_numpy(TakePositions()(x, ops.array([[2, 0]]))).tolist()
    [[[4.0, 5.0], [0.0, 1.0]]]
    """

    def call(self, x, positions) -> Any:
        length, width = ops.shape(x)[1], x.shape[-1]
        offsets = ops.arange(ops.shape(x)[0], dtype="int32")[:, None] * length  # (B, 1)
        flat = ops.take(ops.reshape(x, (-1, width)), ops.reshape(positions + offsets, (-1,)), axis=0)
        return ops.reshape(flat, (-1, ops.shape(positions)[1], width))

    def compute_output_shape(self, x_shape, positions_shape) -> tuple:
        return (*positions_shape, x_shape[-1])
