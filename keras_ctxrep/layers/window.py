"""Windows of words around each word of a block, for static word vectors; vectors of words from their n-grams."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ctxrep.layers.embedding import Embedding, take_rows
from keras_ctxrep.layers.layer import Layer

__all__ = ["SubwordEmbedding", "WindowMean"]


def window_mask(windows: Any, span: int) -> Any:
    """Which words of a block are in the window of each of its centres: 1 or 0, float32 (B, P, P + 2 W).

    The rows are looked up, which takes a fifth of the time of comparisons.

    Args:
        windows: int32 (B, P, 2), words before and after each centre that are in its window, at most W.
        span: P + 2 W, the words of the block: its centres, and W words on both sides.

    >>> ops.convert_to_numpy(window_mask(ops.array([[[0, 1], [1, 0]]]), 4)).astype(int).tolist()
    [[[0, 0, 1, 0], [0, 1, 0, 0]]]
    """
    centres = windows.shape[1]
    widest = (span - centres) // 2
    distance = np.arange(span) - widest - np.arange(centres)[:, None, None]  # (P, 1, P + 2 W)
    size = np.arange(widest + 1)[:, None]
    sides = (distance < 0) & (distance >= -size), (distance > 0) & (distance <= size)  # (P, W + 1, P + 2 W)
    first = (widest + 1) * np.arange(centres, dtype=np.int32)
    before, after = (
        ops.take(np.reshape(side, (-1, span)).astype(np.float32), first + windows[..., number], 0)
        for number, side in enumerate(sides)
    )
    return before + after


@ops.custom_gradient
def _scale(total, scale):
    """A sum times a scale, with the gradient of the sum."""

    def gradient(*args, upstream=None):
        return args[0] if upstream is None else upstream, ops.zeros_like(scale)

    return total * scale, gradient


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class WindowMean(Layer):
    """The mean of the vectors in each centre's window: the input of CBOW.

    Mikolov et al. 2013, https://arxiv.org/abs/1301.3781, section 3.1. As in word2vec.c, each vector gets the whole
    gradient of the mean, not its share of it: the learning rates that are published are for that.

    Call:
        x: float32 (B, P + 2 W, D), the words of a block.
        windows: int32 (B, P, 2), as in `window_mask`.

    Returns: float32 (B, P, D); zero where the window is empty.

    >>> x = ops.reshape(ops.arange(4.0), (1, 4, 1))
    >>> ops.convert_to_numpy(WindowMean()(x, ops.array([[[1, 1], [1, 1]]])))[0, :, 0].tolist()
    [1.0, 2.0]
    """

    def call(self, x, windows) -> Any:
        mask = ops.cast(window_mask(windows, x.shape[1]), x.dtype)
        size = ops.maximum(ops.sum(windows, -1, keepdims=True), 1)
        return _scale(ops.matmul(mask, x), 1 / ops.cast(size, x.dtype))

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
        **kwargs: as in `keras.layers.Embedding`.

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
        total = tf.math.segment_sum(take_rows(self.embeddings, rows), places.value_rowids())  # (U, D)
        total = tf.pad(total, [[0, tf.size(words) - tf.shape(total)[0]], [0, 0]])  # last words that have no rows
        sizes = tf.cast(tf.maximum(ends - begins, 1), total.dtype)[:, None]
        vectors = tf.gather(_scale(total, 1 / sizes), index)
        shape = tf.concat([tf.shape(inputs), [self.output_dim]], 0)
        return tf.cast(tf.reshape(vectors, shape), self.compute_dtype)

    def compute_output_spec(self, inputs) -> Any:
        return keras.KerasTensor((*inputs.shape, self.output_dim), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"subwords": [[int(row) for row in rows] for rows in self.subwords]}
