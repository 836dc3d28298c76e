"""Attention to the vectors of an encoder: of single vectors, of two texts, and in the blocks of decoders."""

from typing import Any

import keras
from keras import ops

from keras_ctxrep.layers.causal import CausalTransformerBlock, GatedConvolution, by_head
from keras_ctxrep.layers.dropout import Dropout
from keras_ctxrep.layers.initializers import RandomWeights
from keras_ctxrep.layers.layer import Layer
from keras_ctxrep.layers.softmax import MASKED, masked_softmax
from keras_ctxrep.layers.transformer import norm

__all__ = [
    "Attention",
    "AttentionalRNN",
    "ConvolutionalDecoderBlock",
    "MemoryAttention",
    "TransformerDecoderBlock",
    "TwoWayAttention",
]

SCORES = ("additive", "dot", "general")


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Attention(Layer):
    """The mean of an encoder's vectors h_s, weighted by the softmax over s of their scores with a query q.

    * additive: v^T tanh(W q + k_s), Bahdanau et al. 2014, https://arxiv.org/abs/1409.0473, appendix A.1.2, where the
      keys k_s = U h_s are computed once for all queries, by a dense layer without bias;
    * dot: q^T h_s, Luong et al. 2015, https://arxiv.org/abs/1508.04025, eq. 8;
    * general: q^T W h_s, of the same equation.

    Args:
        score: one of `SCORES`.

    Call:
        query: float32 (B, T, Q).
        keys: float32 (B, S, K), what the query is scored with: of "additive" U h_s; of the others h_s itself, where
            "dot" needs K = Q.
        mask: int32 (B, S), the real vectors of the encoder.
        values: float32 (B, S, D), h_s; None: the keys.

    Returns: the means, float32 (B, T, D), and the weights, float32 (B, T, S): zero where the mask is, and zero
        everywhere for a row without real vectors.

    Raises:
        ValueError: an unknown score, or keys of another width than that of the query of "dot".

    >>> mean, weights = Attention("dot")(ops.ones((1, 2, 3)), ops.ones((1, 4, 3)), mask=ops.array([[1, 1, 0, 0]]))
    >>> mean.shape, ops.convert_to_numpy(weights)[0, 0].tolist()
    (TensorShape([1, 2, 3]), [0.5, 0.5, 0.0, 0.0])
    """

    def __init__(self, score: str = "additive", **kwargs):
        super().__init__(**kwargs)
        if score not in SCORES:
            raise ValueError(f"score={score!r}: one of {', '.join(SCORES)}")
        self.score = score

    def build(self, query_shape, keys_shape, values_shape=None) -> None:
        query, key = query_shape[-1], keys_shape[-1]
        if self.score == "dot":
            if query != key:
                raise ValueError(f"score='dot': a query of width {query} and keys of width {key}; choose 'general'")
            return
        self.kernel = self.add_weight(name="kernel", shape=(query, key), initializer="glorot_uniform")
        if self.score == "additive":
            self.scale = self.add_weight(name="scale", shape=(key,), initializer="glorot_uniform")

    def call(self, query, keys, mask, values=None) -> Any:
        if self.score != "dot":
            query = ops.matmul(query, self.kernel)  # (B, T, K)
        if self.score == "additive":
            scores = ops.sum(self.scale * ops.tanh(query[:, :, None] + keys[:, None]), axis=-1)  # (B, T, S)
        else:
            scores = ops.matmul(query, ops.transpose(keys, (0, 2, 1)))
        weights = _weights(scores, mask[:, None])
        return ops.matmul(weights, keys if values is None else values), weights

    def compute_output_spec(self, query, keys, mask, values=None) -> Any:
        width = (keys if values is None else values).shape[-1]
        shapes = (*query.shape[:2], width), (*query.shape[:2], keys.shape[1])
        return tuple(keras.KerasTensor(shape, self.compute_dtype) for shape in shapes)


def _weights(scores, mask):
    """The softmax over the last axis in float32, zero where the mask is, in the type of the scores.

    >>> ops.convert_to_numpy(_weights(ops.zeros((2, 2)), ops.array([[1, 0], [0, 0]]))).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    weights = masked_softmax(ops.cast(scores, "float32"), mask)
    return ops.cast(weights * ops.cast(mask, "float32"), scores.dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class TwoWayAttention(Layer):
    """Attention flow of a context with a question, in both directions.

    Seo et al. 2017, https://arxiv.org/abs/1611.01603, section 2, "Attention Flow Layer". The similarity of a context's
    vector h_t and a question's u_j is S_tj = w^T [h_t; u_j; h_t * u_j] (eq. 1). Each h_t attends to the question: U_t
    is the mean of the u_j, weighted by the softmax of S_tj over j. The question attends to the context: H, the same for
    all t, is the mean of the h_t, weighted by the softmax over t of the maximum of S_tj over j. The result is
    [h_t; U_t; h_t * U_t; h_t * H] (eq. 2).

    Call:
        context: float32 (B, T, D).
        question: float32 (B, J, D).
        mask: int32 (B, T), the real vectors of the context.
        question_mask: int32 (B, J), those of the question.

    Returns: float32 (B, T, 4 D), unspecified at masked positions.

    Raises:
        ValueError: the vectors of context and question have different widths.

    >>> both = ops.ones((1, 2, 3))
    >>> ones = ops.ones((1, 2), "int32")
    >>> TwoWayAttention()(both, both, mask=ones, question_mask=ones).shape
    TensorShape([1, 2, 12])
    """

    def build(self, context_shape, question_shape) -> None:
        width = context_shape[-1]
        if question_shape[-1] != width:
            raise ValueError(f"a context of width {width} and a question of width {question_shape[-1]}; both need one")
        for name in ("context", "question", "product"):
            weight = self.add_weight(name=f"{name}_kernel", shape=(width, 1), initializer="glorot_uniform")
            setattr(self, f"{name}_kernel", weight)

    def call(self, context, question, mask, question_mask) -> Any:
        across = ops.transpose(question, (0, 2, 1))  # (B, D, J)
        scores = ops.matmul(context * self.product_kernel[:, 0], across)  # (B, T, J)
        scores += ops.matmul(context, self.context_kernel)
        scores += ops.transpose(ops.matmul(question, self.question_kernel), (0, 2, 1))
        asked = ops.matmul(_weights(scores, question_mask[:, None]), question)  # (B, T, D)
        real = ops.cast(question_mask, "bool")[:, None]
        best = ops.max(ops.where(real, ops.cast(scores, "float32"), MASKED), axis=-1)  # (B, T)
        weights = ops.cast(_weights(best, mask), context.dtype)
        attended = ops.matmul(weights[:, None], context)  # (B, 1, D)
        return ops.concatenate([context, asked, context * asked, context * attended], axis=-1)

    def compute_output_spec(self, context, question, mask, question_mask) -> Any:
        return keras.KerasTensor((*context.shape[:2], 4 * context.shape[-1]), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class AttentionalRNN(Layer):
    """A recurrent network that attends to an encoder at each step, with input feeding.

    Luong et al. 2015, https://arxiv.org/abs/1508.04025, section 3: from the state h_t of the uppermost cell and the
    mean c_t of its attention follows the attentional vector a_t = tanh(W [c_t; h_t]) (eq. 5), which is the output, and
    with the next token's vector the next input (section 3.3). With "additive" scores too the query is h_t, where
    Bahdanau et al. 2014 have h_{t-1}. A GRU is Keras', with the reset gate applied after the product, as in cuDNN.

    Args:
        units: width of the cells and of the attentional vectors.
        cell: "lstm" or "gru".
        layers: cells, each of which reads what the one below gives.
        score: of the attention, one of `SCORES`.
        dropout: of what each cell gives, before the attention reads it, and of the attentional vectors as an output,
            while training; one mask of a text for all its steps.

    Call:
        x: float32 (B, T, D), vectors of tokens.
        keys: float32 (B, S, K), as in `Attention`.
        values: float32 (B, S, M), the encoder's vectors.
        mask: int32 (B, S), which of them are real.
        state: float32 (B, Z), Z = `size_of_state`: the cells' states and the last attentional vector.

    Returns: the attentional vectors, float32 (B, T, units), the attention's weights, float32 (B, T, S), and the state
        after the last token, float32 (B, Z).

    Raises:
        ValueError: an unknown cell or score.

    >>> rnn, memory = AttentionalRNN(4, score="dot"), ops.ones((1, 5, 4))
    >>> x, weights, state = rnn(ops.ones((1, 2, 3)), memory, memory, ops.ones((1, 5), "int32"), ops.zeros((1, 12)))
    >>> x.shape, weights.shape, state.shape
    (TensorShape([1, 2, 4]), TensorShape([1, 2, 5]), TensorShape([1, 12]))
    """

    def __init__(
        self, units: int, cell: str = "lstm", layers: int = 1, score: str = "additive", dropout: float = 0.0, **kwargs
    ):
        super().__init__(**kwargs)
        kinds = {"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell}
        if cell not in kinds:
            raise ValueError(f"cell={cell!r}: choose 'lstm' or 'gru'")
        self.units, self.cell, self.layers, self.score, self.dropout = units, cell, layers, score, dropout
        self.cells = [kinds[cell](units, name=f"cell_{i}", dtype=self.dtype_policy) for i in range(layers)]
        self.attention = Attention(score, name="attention", dtype=self.dtype_policy)
        self.combine = keras.layers.Dense(units, "tanh", use_bias=False, name="combine", dtype=self.dtype_policy)
        self.drop = Dropout(dropout, name="drop", dtype=self.dtype_policy)

    @property
    def size_of_state(self) -> int:
        """Z, the numbers of a row's state."""
        return self.units * (self.layers * (2 if self.cell == "lstm" else 1) + 1)

    def build(self, x_shape, keys_shape, values_shape, state_shape=None) -> None:
        width = x_shape[-1] + self.units
        for cell in self.cells:
            cell.build((None, width))
            width = self.units
        self.attention.build((None, None, self.units), keys_shape)
        self.combine.build((None, None, values_shape[-1] + self.units))

    def call(self, x, keys, values, mask, state, training=False) -> Any:
        state = ops.cast(state, self.compute_dtype)
        # one mask of a text for all its steps (Gal & Ghahramani 2016, https://arxiv.org/abs/1512.05287)
        drops = self.drop(ops.ones_like(state), training=training) if training and self.dropout else None
        parts = len(self.cells)

        def dropped(vectors, part):
            if drops is None:
                return vectors
            return vectors * drops[:, part * self.units : (part + 1) * self.units]

        def step(state, token):
            own, fed = ops.split(state, [self.size_of_state - self.units], axis=1)
            read, states = ops.concatenate([token, fed], axis=1), []
            pairs = ops.split(own, self.size_of_state // self.units - 1, axis=1)
            each = len(pairs) // parts
            for index, cell in enumerate(self.cells):
                read, new = cell(read, pairs[index * each : (index + 1) * each])
                states += new
                read = dropped(read, index)
            mean, weights = self.attention(read[:, None], keys, mask, values)
            vector = self.combine(ops.concatenate([mean[:, 0], read], axis=1))
            return ops.concatenate([*states, vector], axis=1), (dropped(vector, parts), weights[:, 0])

        if x.shape[1] == 1:  # without a loop, which not every runtime has
            end, (vector, weights) = step(state, x[:, 0])
            return vector[:, None], weights[:, None], ops.cast(end, "float32")

        def scanned(carried, token):
            end, out = step(carried[0], token)
            return (end, *out), (end, *out)  # TensorFlow's scan gives what it carries

        blank = ops.zeros_like(state[:, : self.units]), ops.zeros_like(keys[:, :, 0])
        (end, *_), (_, vectors, weights) = ops.scan(scanned, (state, *blank), ops.transpose(x, (1, 0, 2)))
        return ops.transpose(vectors, (1, 0, 2)), ops.transpose(weights, (1, 0, 2)), ops.cast(end, "float32")

    def compute_output_spec(self, x, keys, values, mask, state, training=False) -> Any:
        batch, length = x.shape[:2]
        out = keras.KerasTensor((batch, length, self.units), self.compute_dtype)
        weights = keras.KerasTensor((batch, length, keys.shape[1]), self.compute_dtype)
        return out, weights, keras.KerasTensor(state.shape, "float32")


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class MemoryAttention(Layer):
    """Multi-head attention to an encoder, of which keys and values are computed once for all queries.

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2: softmax(Q K^T / sqrt(D / H)) V of each head, the
    queries from the decoder, keys and values from the encoder, here by a dense layer of width 2 D outside of this one.

    Args:
        heads: H, which divides the width D.
        dropout: of the weights.
        initializer_range: standard deviation of the truncated normal that initializes the kernels.

    Call:
        x: float32 (B, T, D).
        memory: float32 (B, S, 2 D), keys and values.
        mask: int32 (B, S), which of them are real.

    Returns: float32 (B, T, D), and the mean of the heads' weights, before dropout, float32 (B, T, S).

    Raises:
        ValueError: `heads` does not divide D, or the memory is not of width 2 D.

    >>> x, weights = MemoryAttention(2)(ops.ones((1, 3, 4)), ops.ones((1, 5, 8)), mask=ops.ones((1, 5), "int32"))
    >>> x.shape, weights.shape
    (TensorShape([1, 3, 4]), TensorShape([1, 3, 5]))
    """

    def __init__(self, heads: int, dropout: float = 0.0, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.dropout, self.initializer_range = heads, dropout, initializer_range

    def build(self, x_shape, memory_shape) -> None:
        width = x_shape[-1]
        if width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide the width {width}")
        if memory_shape[-1] != 2 * width:
            raise ValueError(f"memory of width {memory_shape[-1]}; keys and values have {2 * width}")
        for name in ("query", "output"):
            start = RandomWeights(keras.initializers.TruncatedNormal(stddev=self.initializer_range))
            dense = keras.layers.Dense(width, kernel_initializer=start, name=name, dtype=self.dtype_policy)
            dense.build((None, width))
            setattr(self, f"{name}_dense", dense)
        self.drop = Dropout(self.dropout, name="drop", dtype=self.dtype_policy)

    def call(self, x, memory, mask, training=False) -> Any:
        width = x.shape[-1]
        key, value = ops.split(ops.cast(memory, x.dtype), 2, axis=-1)
        query, key, value = (by_head(part, self.heads) for part in (self.query_dense(x), key, value))  # (B, H, T, D/H)
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) * ((width // self.heads) ** -0.5)
        weights = _weights(scores, mask[:, None, None])  # (B, H, T, S)
        mixed = ops.matmul(self.drop(weights, training=training), value)
        mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (-1, ops.shape(x)[1], width))
        return self.output_dense(mixed), ops.mean(weights, axis=1)

    def compute_output_spec(self, x, memory, mask, training=False) -> Any:
        weights = keras.KerasTensor((*x.shape[:2], memory.shape[1]), self.compute_dtype)
        return keras.KerasTensor(x.shape, self.compute_dtype), weights


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class TransformerDecoderBlock(CausalTransformerBlock):
    """A `CausalTransformerBlock` that attends to an encoder too, between self-attention and the feed-forward layer.

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.1, in the pre-norm form: x + attention(norm(x)),
    x + memory_attention(norm(x)), then x + feed_forward(norm(x)).

    Args:
        heads, intermediate, dropout, attention_dropout, activation, epsilon, initializer_range: as of
            `TransformerBlock`.

    Call:
        x, mask, past, count: as in `CausalTransformerBlock`.
        memory: float32 (B, S, 2 D), keys and values of the encoder, as in `MemoryAttention`.
        memory_mask: int32 (B, S), which of them are real.

    Returns: float32 (B, T, D), unspecified at masked positions, the new `past`, and the mean of the heads' weights
        over the memory, float32 (B, T, S).

    >>> block, mask = TransformerDecoderBlock(heads=2, intermediate=8), ops.ones((1, 3), "int32")
    >>> text = {"mask": mask, "past": ops.zeros((1, 5, 8)), "count": ops.zeros((1, 1), "int32")}
    >>> x, past, weights = block(ops.ones((1, 3, 4)), **text, memory=ops.ones((1, 6, 8)), memory_mask=ops.ones((1, 6)))
    >>> x.shape, past.shape, weights.shape
    (TensorShape([1, 3, 4]), TensorShape([1, 5, 8]), TensorShape([1, 3, 6]))
    """

    def build(self, input_shape) -> None:
        super().build(input_shape)
        self.memory_norm = keras.layers.LayerNormalization(
            epsilon=self.epsilon, name="memory_norm", dtype=self.dtype_policy
        )
        self.memory_norm.build(input_shape)
        self.memory_attention = MemoryAttention(
            self.heads, self.attention_dropout, self.initializer_range, name="memory_attention", dtype=self.dtype_policy
        )
        self.memory_attention.build(input_shape, (None, None, 2 * input_shape[-1]))

    def call(self, x, mask, past, count, memory, memory_mask, training=None) -> Any:  # pyright: ignore
        length, width = ops.shape(x)[1], x.shape[-1]
        x = ops.reshape(x, (-1, width))
        attended, end = self._attend(x, length, mask, past, count, None, training)
        x = x + attended
        query = ops.reshape(norm(self.memory_norm, x, training), (-1, length, width))
        attended, weights = self.memory_attention(query, memory, mask=memory_mask, training=training)
        x = x + self.drop_output(ops.reshape(attended, (-1, width)), training=training)
        x = x + self._fed(norm(self.feed_forward_norm, x, training), training)
        return ops.reshape(x, (-1, length, width)), end, weights

    def compute_output_spec(self, x, mask, past, count, memory, memory_mask, training=None) -> Any:  # pyright: ignore
        out, end = super().compute_output_spec(x, mask, past, count)
        return out, end, keras.KerasTensor((*x.shape[:2], memory.shape[1]), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class ConvolutionalDecoderBlock(GatedConvolution):
    """A causal convolution with a gated linear unit, and attention to an encoder: one block of a decoder.

    Gehring et al. 2017, https://arxiv.org/abs/1705.03122, sections 3.2 to 3.5. The convolution gives
    h = (x + A sigmoid(B)) / sqrt(2), where [A B] = X * W + b reads a position and the `kernel_size` - 1 before it. The
    query of the attention is d = W_d h + b_d + g (eq. 1), where g is the vector of the position's token. The mean of
    the encoder's m values, weighted by the softmax of d^T z_j over its keys z_j, is multiplied by sqrt(m), which is
    m sqrt(1/m) in section 3.4. The output is (h + mean) / sqrt(2).

    Unlike in the paper, the scores are divided by sqrt(D), as in Vaswani et al. 2017: the paper's vectors have a
    standard deviation of 0.1 at first, those of a trained encoder one of about 1. Kernels are drawn as in section 3.5,
    from normal distributions of the variance 4 (1 - dropout) / inputs before the gate and 1 / inputs elsewhere; weight
    normalization is left out.

    Args:
        kernel_size: positions that a filter reads.
        dropout: of the convolution's inputs.

    Call:
        x: float32 (B, T, D).
        mask: int32 (B, T), the real tokens first.
        past: float32 (B, kernel_size - 1, D), the inputs before; zeros at the beginning of a text.
        tokens: float32 (B, T, D), g.
        memory: float32 (B, S, 2 D), keys and values of the encoder.
        memory_mask: int32 (B, S), which of them are real.

    Returns: float32 (B, T, D), unspecified at masked positions, the new `past`, and the weights over the memory,
        float32 (B, T, S).

    Raises:
        ValueError: the memory is not of width 2 D.

    >>> block, mask = ConvolutionalDecoderBlock(3), ops.ones((1, 5), "int32")
    >>> x, memory, memory_mask = ops.ones((1, 5, 4)), ops.ones((1, 6, 8)), ops.ones((1, 6), "int32")
    >>> x, past, weights = block(x, mask, past=ops.zeros((1, 2, 4)), tokens=x, memory=memory, memory_mask=memory_mask)
    >>> x.shape, past.shape, weights.shape
    (TensorShape([1, 5, 4]), TensorShape([1, 2, 4]), TensorShape([1, 5, 6]))
    """

    def __init__(self, kernel_size: int, dropout: float = 0.0, **kwargs):
        super().__init__(kernel_size, **kwargs)
        self.dropout = dropout
        self.drop = Dropout(dropout, name="drop", dtype=self.dtype_policy)

    def build(self, x_shape, memory_shape) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        width = x_shape[-1]
        if memory_shape[-1] != 2 * width:
            raise ValueError(f"memory of width {memory_shape[-1]}; keys and values have {2 * width}")
        self._build_kernel(width, by_inputs(4 * (1 - self.dropout)))
        self.query = keras.layers.Dense(width, kernel_initializer=by_inputs(), name="query", dtype=self.dtype_policy)
        self.query.build(x_shape)
        self.attention = Attention("dot", name="attention", dtype=self.dtype_policy)
        self.attention.build(x_shape, x_shape)

    def call(self, x, mask, past, tokens, memory, memory_mask, training=False) -> Any:  # pyright: ignore
        gated, end = self._gated(self.drop(x, training=training), mask, past)
        hidden = (x + gated) * 0.5**0.5
        query = (self.query(hidden) + tokens) * x.shape[-1] ** -0.5
        keys, values = ops.split(ops.cast(memory, x.dtype), 2, axis=-1)
        mean, weights = self.attention(query, keys, mask=memory_mask, values=values)
        real = ops.sum(ops.cast(memory_mask, "float32"), axis=1)[:, None, None]
        return (hidden + mean * ops.cast(ops.sqrt(real), x.dtype)) * 0.5**0.5, end, weights

    def compute_output_spec(self, x, mask, past, tokens, memory, memory_mask, training=False) -> Any:  # pyright: ignore
        shapes = x.shape, past.shape, (*x.shape[:2], memory.shape[1])
        return tuple(keras.KerasTensor(shape, self.compute_dtype) for shape in shapes)


def by_inputs(scale: float = 1.0) -> keras.initializers.Initializer:
    """Draws kernels from a normal distribution of the variance `scale` / inputs of an output.

    >>> 0.09 < float(ops.std(by_inputs()((100, 100)))) < 0.11
    True
    """
    return keras.initializers.VarianceScaling(scale, "fan_in", "untruncated_normal")
