"""ELMo's context-free token encoder: characters, convolutions, highways, projection."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_ctxrep.layers.layer import Layer

__all__ = ["CharCNN"]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class CharCNN(Layer):
    """Token vectors from character ids: convolutions of several widths, max over positions, highways, projection.

    Kim et al. 2016, https://arxiv.org/abs/1508.06615, as used by Peters et al. 2018,
    https://arxiv.org/abs/1802.05365 and https://github.com/allenai/bilm-tf. A highway is
    g * relu(x Wt + bt) + (1 - g) * x with g = sigmoid(x Wc + bc); as in the published files the gate of the transformed
    part is called carry. Word padding (id 261) is convolved like any character, as published.

    Differs from the source: training uses the ids of inference too (0 = no word), so no row has to be inserted into the
    table after it; positions without a word give zeros. In TensorFlow graphs of unknown batch size each distinct word
    is computed once and columns of padding alone are skipped, which does not change the result.

    Args:
        filters: (width in characters, number of filters) of each convolution.
        embedding_dim: width of a character vector (16 in every published model).
        highways: number of highway layers.
        projection: width of the output; None: no projection, the width is the sum of the filters.
        activation: after the max, "relu" or "tanh".
        characters: number of character ids, without 0 for "no word".

    Call:
        char_ids: int32 (B, T, W); a position whose ids are all 0 holds no word.

    Returns: float32 (B, T, D), D = `projection` or the number of filters.

    Raises:
        ValueError: a filter is wider than a word.

    >>> layer = CharCNN(filters=[(1, 4), (2, 4)], projection=6)
    >>> layer(ops.ones((2, 3, 50), "int32")).shape
    TensorShape([2, 3, 6])
    """

    def __init__(
        self,
        filters: Sequence[Sequence[int]],
        embedding_dim: int = 16,
        highways: int = 1,
        projection: int | None = None,
        activation: str = "relu",
        characters: int = 261,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = [tuple(pair) for pair in filters]
        self.embedding_dim, self.highways, self.projection = embedding_dim, highways, projection
        self.activation, self.characters = activation, characters

    def build(self, input_shape) -> None:
        width = input_shape[-1]
        if width is not None and max(w for w, _ in self.filters) > width:
            raise ValueError(f"filters={self.filters}: the widest needs words of as many characters, not {width}")
        uniform, normal = keras.initializers.RandomUniform, keras.initializers.RandomNormal
        total = sum(number for _, number in self.filters)
        self.char_embed = self.add_weight(
            name="char_embed", shape=(self.characters, self.embedding_dim), initializer=uniform(-1.0, 1.0)
        )
        self.convolutions = []
        for index, (w, number) in enumerate(self.filters):
            spread = uniform(-0.05, 0.05) if self.activation == "relu" else normal(0, (w * self.embedding_dim) ** -0.5)
            kernel = self.add_weight(name=f"W_cnn_{index}", shape=(w, self.embedding_dim, number), initializer=spread)
            bias = self.add_weight(name=f"b_cnn_{index}", shape=(number,), initializer="zeros")
            self.convolutions.append((kernel, bias))
        self.highway = []
        for index in range(self.highways):
            gates = []
            for name, start in (("carry", -2.0), ("transform", 0.0)):
                kernel = self.add_weight(
                    name=f"high_{index}_W_{name}", shape=(total, total), initializer=normal(0, total**-0.5)
                )
                start = keras.initializers.Constant(start)
                bias = self.add_weight(name=f"high_{index}_b_{name}", shape=(total,), initializer=start)
                gates.append((kernel, bias))
            self.highway.append(gates)
        if self.projection is not None:
            self.W_proj = self.add_weight(
                name="W_proj", shape=(total, self.projection), initializer=normal(0, total**-0.5)
            )
            self.b_proj = self.add_weight(name="b_proj", shape=(self.projection,), initializer="zeros")

    def call(self, char_ids) -> Any:
        shape = ops.shape(char_ids)
        flat = ops.reshape(char_ids, (-1, char_ids.shape[2]))  # (B*T, W)
        if keras.backend.backend() == "tensorflow" and char_ids.shape[0] is None:
            import tensorflow as tf

            # with a position without a word, since TensorFlow's convolution of no rows has a wrong shape on a CPU
            distinct, index = tf.raw_ops.UniqueV2(x=tf.pad(flat, [[0, 1], [0, 0]]), axis=[0])
            x = tf.gather(self._encode(self._without_padding(distinct)), index[:-1])
        else:
            x = self._encode(flat)
        return ops.reshape(x, (-1, shape[1], x.shape[-1]))  # (B, T, D)

    def _without_padding(self, words):
        """Drops columns of padding after the longest word, except as many as the widest filter needs."""
        import tensorflow as tf

        used = tf.reduce_any((words > 0) & (words < self.characters), axis=0)  # (W,), the last id is padding
        longest = tf.reduce_max(tf.where(used, tf.range(1, tf.size(used) + 1), 0))
        return words[:, : tf.maximum(longest, 1) + max(width for width, _ in self.filters)]

    def _encode(self, words):
        """int32 (words, W) -> float32 (words, D)."""
        x = ops.take(self.char_embed, ops.maximum(words - 1, 0), axis=0)  # (words, W, embedding_dim)
        activation = keras.activations.get(self.activation)
        # adding the bias and the activation are monotonic, so they can follow the max, at 1/50 of the cost
        pooled = [
            activation(ops.max(ops.conv(x, kernel, padding="valid"), axis=1) + bias)
            for kernel, bias in self.convolutions
        ]
        x = ops.concatenate(pooled, axis=-1)  # (words, sum of filters)
        for (carry_kernel, carry_bias), (transform_kernel, transform_bias) in self.highway:
            gate = ops.sigmoid(ops.matmul(x, carry_kernel) + carry_bias)
            x = gate * ops.relu(ops.matmul(x, transform_kernel) + transform_bias) + (1 - gate) * x
        if self.projection is not None:
            x = ops.matmul(x, self.W_proj) + self.b_proj
        return x * ops.cast(ops.any(words > 0, axis=1, keepdims=True), x.dtype)

    def compute_output_shape(self, input_shape) -> tuple:
        return (*input_shape[:2], self.projection or sum(number for _, number in self.filters))
