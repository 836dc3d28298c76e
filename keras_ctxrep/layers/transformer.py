"""The post-norm Transformer block of BERT, and the small layers around it."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class TransformerBlock(keras.layers.Layer):
    """Multi-head self-attention and a feed-forward layer, each followed by dropout, the residual sum and layer norm.

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, in the post-norm form of Devlin et al. 2018,
    https://arxiv.org/abs/1810.04805. Queries, keys and values come from one matrix product.

    Args:
        heads: number of attention heads; divides the width.
        intermediate: width of the feed-forward layer (4 D in every published model).
        dropout: of attention weights and of both sub-layers' outputs.
        activation: of the feed-forward layer; "gelu" is the exact form with erf.
        epsilon: of the layer norms (1e-12 as published).
        initializer_range: standard deviation of the truncated normal that kernels start from.

    Call:
        x: float32 (B, T, D).
        mask: int32 (B, T); masked positions are not attended to.

    Returns: float32 (B, T, D); what stands at masked positions is unspecified.

    Raises:
        ValueError: `heads` does not divide D.

    >>> TransformerBlock(heads=2, intermediate=8)(ops.ones((1, 3, 4)), mask=ops.ones((1, 3), "int32")).shape
    TensorShape([1, 3, 4])
    """

    def __init__(
        self,
        heads,
        intermediate,
        dropout=0.0,
        activation="gelu",
        epsilon=1e-12,
        initializer_range=0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.heads, self.intermediate, self.dropout = heads, intermediate, dropout
        self.activation, self.epsilon, self.initializer_range = activation, epsilon, initializer_range

    def compute_mask(self, inputs, previous_mask):
        return None  # the mask is passed by hand, where it is needed

    def build(self, input_shape):
        width = input_shape[-1]
        if width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide the width {width}")

        def part(make, name, shape):
            layer = make(name=name, dtype=self.dtype_policy)
            layer.build(shape)
            return layer

        def dense(name, units, inputs, activation=None):
            start = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
            return part(
                lambda **kw: keras.layers.Dense(units, activation, kernel_initializer=start, **kw), name, (None, inputs)
            )

        def norm(name):
            return part(lambda **kw: keras.layers.LayerNormalization(epsilon=self.epsilon, **kw), name, input_shape)

        self.qkv = dense("qkv", 3 * width, width)
        self.attention_output = dense("attention_output", width, width)
        self.attention_norm = norm("attention_norm")
        self.feed_forward = dense("feed_forward", self.intermediate, width, self.activation)
        self.feed_forward_output = dense("feed_forward_output", width, self.intermediate)
        self.feed_forward_norm = norm("feed_forward_norm")
        self.attention_dropout = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)
        self.output_dropout = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)

    def call(self, x, mask, training=None):
        attended = self.attention_output(self._attention(x, mask, training))
        x = self.attention_norm(x + self.output_dropout(attended, training=training))
        fed = self.feed_forward_output(self.feed_forward(x))
        return self.feed_forward_norm(x + self.output_dropout(fed, training=training))

    def _attention(self, x, mask, training):
        length, width = ops.shape(x)[1], x.shape[-1]
        head = width // self.heads

        def by_head(part):  # (B, T, D) -> (B, H, T, D/H)
            return ops.transpose(ops.reshape(part, (-1, length, self.heads, head)), (0, 2, 1, 3))

        query, key, value = map(by_head, ops.split(self.qkv(x), 3, axis=-1))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) * (head**-0.5)  # (B, H, T, T)
        away = (1 - ops.cast(mask, scores.dtype)) * ops.cast(-1e4, scores.dtype)  # (B, T)
        weights = ops.softmax(scores + away[:, None, None, :])
        mixed = ops.matmul(self.attention_dropout(weights, training=training), value)  # (B, H, T, D/H)
        return ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (-1, length, width))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        names = ("heads", "intermediate", "dropout", "activation", "epsilon", "initializer_range")
        return super().get_config() | {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Bias(keras.layers.Layer):
    """Adds a trained bias, for logits whose kernel belongs to another layer.

    Call:
        x: float32 (..., V).

    Returns: float32 (..., V).

    >>> float(Bias()(ops.ones((1, 2)))[0, 0])
    1.0
    """

    def build(self, input_shape):
        self.bias = self.add_weight(name="bias", shape=(input_shape[-1],), initializer="zeros")

    def call(self, x):
        return x + self.bias


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class PositionEmbedding(keras.layers.Layer):
    """Adds a learned vector for each position.

    Devlin et al. 2018, figure 2.

    Args:
        positions: rows of the table, the longest input.
        initializer_range: standard deviation of the truncated normal the table starts from.

    Call:
        x: float32 (B, T, D).

    Returns: float32 (B, T, D).

    Raises:
        ValueError: the input is longer than the table.

    >>> PositionEmbedding(4)(ops.ones((1, 3, 2))).shape
    TensorShape([1, 3, 2])
    """

    def __init__(self, positions, initializer_range=0.02, **kwargs):
        super().__init__(**kwargs)
        self.positions, self.initializer_range = positions, initializer_range

    def build(self, input_shape):
        start = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        self.table = self.add_weight(name="table", shape=(self.positions, input_shape[-1]), initializer=start)

    def call(self, x):
        if x.shape[1] is not None and x.shape[1] > self.positions:
            raise ValueError(f"an input of {x.shape[1]} tokens; this model has positions for {self.positions}")
        return x + self.table[: ops.shape(x)[1]]

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return super().get_config() | {"positions": self.positions, "initializer_range": self.initializer_range}


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class TakePositions(keras.layers.Layer):
    """The vectors at some positions of each row, so that a vocabulary's logits are computed only there.

    Call:
        x: float32 (B, T, D).
        positions: int32 (B, P).

    Returns: float32 (B, P, D).

    >>> x = ops.reshape(ops.arange(6.0), (1, 3, 2))
    >>> ops.convert_to_numpy(TakePositions()(x, ops.array([[2, 0]]))).tolist()
    [[[4.0, 5.0], [0.0, 1.0]]]
    """

    def call(self, x, positions):
        length, width = ops.shape(x)[1], x.shape[-1]
        offsets = ops.arange(ops.shape(x)[0], dtype="int32")[:, None] * length  # (B, 1)
        flat = ops.take(ops.reshape(x, (-1, width)), ops.reshape(positions + offsets, (-1,)), axis=0)
        return ops.reshape(flat, (-1, ops.shape(positions)[1], width))

    def compute_output_shape(self, x_shape, positions_shape):
        return (*positions_shape, x_shape[-1])
