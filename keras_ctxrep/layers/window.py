"""Windows of words around each word of a block, for static word vectors; vectors of words from their n-grams."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ctxrep.layers.embedding import Embedding, take_rows
from keras_ctxrep.layers.layer import Layer

__all__ = ["SubwordEmbedding", "WindowMean"]


def window_mask(windows, span: int) -> Any:
    """Which words of a block are in the window of each of its centres, bool (B, P, P + 2 W).

    Args:
        windows: int32 (B, P, 2), words before and after each centre that are in its window, at most W.
        span: P + 2 W, the words of the block: its centres, and W words on both sides.

    >>> ops.convert_to_numpy(window_mask(ops.array([[[0, 1], [1, 0]]]), 4)).astype(int).tolist()
    [[[0, 0, 1, 0], [0, 1, 0, 0]]]
    """
    centres = windows.shape[1]
    distance = ops.arange(span)[None] - (span - centres) // 2 - ops.arange(centres)[:, None]  # (P, P + 2 W)
    inside = (distance >= -windows[..., :1]) & (distance <= windows[..., 1:])
    return inside & (distance != 0)


def _summed_gradient(total, mean):
    """The value of a mean, with the gradient of the sum."""
    return total + ops.stop_gradient(mean - total)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class WindowMean(Layer):
    """The mean of the vectors in each centre's window: the input of CBOW.

    Mikolov et al. 2013, https://arxiv.org/abs/1301.3781, section 3.1. As in word2vec.c, each vector gets the whole
    gradient of the mean, not its share of it: the learning rates that are published are for that.

    Call:
        x: float32 (B, P + 2 W, D), the words of a block.
        windows: int32 (B, P, 2), as of `window_mask`.

    Returns: float32 (B, P, D); zero where the window is empty.

    >>> x = ops.reshape(ops.arange(4.0), (1, 4, 1))
    >>> ops.convert_to_numpy(WindowMean()(x, ops.array([[[1, 1], [1, 1]]])))[0, :, 0].tolist()
    [1.0, 2.0]
    """

    def call(self, x, windows) -> Any:
        mask = ops.cast(window_mask(windows, x.shape[1]), x.dtype)
        total = ops.matmul(mask, x)
        size = ops.maximum(ops.sum(windows, -1, keepdims=True), 1)
        return _summed_gradient(total, total / ops.cast(size, x.dtype))

    def compute_output_spec(self, x, windows) -> Any:
        return keras.KerasTensor((*windows.shape[:2], x.shape[-1]), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class SubwordEmbedding(Embedding):
    """The vectors of words whose rows in a table are known: a word's own, and those of its n-grams. TensorFlow only.

    Bojanowski et al. 2017, https://arxiv.org/abs/1607.04606, where it is the sum; the mean, and the gradient of the
    sum, are those of https://github.com/facebookresearch/fastText, model.cc. Each distinct word is computed once.

    Args:
        input_dim, output_dim: rows and width of the table.
        subwords: the rows of each word, whose ids are 0 to `len(subwords)` - 1.
        **kwargs: as of `keras.layers.Embedding`.

    Call:
        inputs: int32 (B, T), ids of words.

    Returns: float32 (B, T, D).

    >>> layer = SubwordEmbedding(4, 1, [[1, 3], [2]])
    >>> layer.build()
    >>> layer.set_weights([np.array([[0.0], [1.0], [2.0], [5.0]])])
    >>> layer(ops.array([[0, 1, 0]])).numpy()[0, :, 0].tolist()
    [3.0, 2.0, 3.0]
    """

    def __init__(self, input_dim: int, output_dim: int, subwords: Sequence[Sequence[int]], **kwargs):
        super().__init__(input_dim, output_dim, **kwargs)
        self.subwords = subwords
        ends = np.cumsum([len(rows) for rows in subwords], dtype=np.int32)  # of each word's rows in `rows`
        rows = np.fromiter((row for rows in subwords for row in rows), np.int32, ends[-1])
        self._ends, self._rows = ops.convert_to_tensor(ends), ops.convert_to_tensor(rows)

    def call(self, inputs) -> Any:
        import tensorflow as tf

        words, index = tf.unique(tf.reshape(inputs, [-1]))  # (U,)
        begins = tf.where(words > 0, tf.gather(self._ends, tf.maximum(words - 1, 0)), 0)
        ends = tf.gather(self._ends, words)
        places = tf.ragged.range(begins, ends)  # (U, rows of the word)
        rows = tf.gather(self._rows, places.values)
        owners, count = places.value_rowids(), tf.size(words)
        total = tf.math.unsorted_segment_sum(take_rows(self.embeddings, rows), owners, count)  # (U, D)
        sizes = tf.cast(tf.maximum(ends - begins, 1), total.dtype)[:, None]
        vectors = tf.gather(_summed_gradient(total, total / sizes), index)
        shape = tf.concat([tf.shape(inputs), [self.output_dim]], 0)
        return tf.cast(tf.reshape(vectors, shape), self.compute_dtype)

    def compute_output_spec(self, inputs) -> Any:
        return keras.KerasTensor((*inputs.shape, self.output_dim), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"subwords": [[int(row) for row in rows] for rows in self.subwords]}
