"""Masked softmax, and the output softmax over a vocabulary of words: full, or sampled in training."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ctxrep.layers.embedding import note, take_rows
from keras_ctxrep.layers.initializers import RandomWeights
from keras_ctxrep.layers.layer import Layer

__all__ = ["TiedSoftmax", "VocabularySoftmax"]

MASKED = -1e4  # the score of what is masked: fits float16, in which some devices compute, and its exponential is 0
LOWEST = -6e4  # below every real logit and vector, and fits float16


def masked_softmax(scores: Any, mask: Any):
    """The softmax over the last axis of the scores where the mask is 1, in their own type.

    Args:
        scores: float (..., S).
        mask: 1 or true for real ones, of a shape that broadcasts to that of the scores.

    Returns: the weights, as `scores`; unspecified where no score of a row is real.

    >>> ops.convert_to_numpy(masked_softmax(ops.zeros((1, 3)), ops.array([[1, 1, 0]]))).tolist()
    [[0.5, 0.5, 0.0]]
    """
    scores += ops.cast(MASKED * (1 - ops.cast(mask, "float32")), scores.dtype)
    return ops.ones_like(scores) if scores.shape[-1] == 1 else ops.softmax(scores)  # of one score, Keras warns


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class VocabularySoftmax(Layer):
    """Logits of all words of a vocabulary, or, given the true words, of these and of sampled ones.

    Sampled softmax of Jean et al. 2015, https://arxiv.org/abs/1412.2007, section 3, as in
    https://github.com/allenai/bilm-tf: words are drawn without replacement from the log-uniform distribution
    P(id) = (log(id + 2) - log(id + 1)) / log(V + 1), so the vocabulary must be sorted by count; the log of the expected
    count -expm1(n log1p(-P)), where n is the number of draws, is subtracted from each logit; a sampled word that is the
    true word is masked. A call draws one set for the whole batch, the same on every replica. Only the needed rows of
    kernel and bias are read, and their gradients are sparse, so that a step's cost does not depend on V.

    Args:
        vocabulary_size: V.
        samples: words drawn per call; None: the full softmax.
        seed: seed of the draws.

    Call:
        x: float32 (B, T, D).
        targets: int32 (B, T), the true words; None: the full softmax, whatever `samples` is.

    Returns: float32 (B, T, V); with `targets` (B, T, 1 + `samples`), the true word's logit first.

    Raises:
        ValueError: more samples than words.

    >>> layer = VocabularySoftmax(1000, samples=20)
    >>> layer(ops.ones((2, 3, 4)), targets=ops.ones((2, 3), "int32")).shape
    TensorShape([2, 3, 21])
    """

    only_embeds = False

    def __init__(self, vocabulary_size: int, samples: int | None = None, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        if samples is not None and not 0 < samples <= vocabulary_size:
            raise ValueError(
                f"samples={samples}: there are {vocabulary_size} words; sample fewer, or choose None "
                "for the full softmax"
            )
        self.vocabulary_size, self.samples, self.seed = vocabulary_size, samples, seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape) -> None:
        width = input_shape[-1]
        spread = RandomWeights(keras.initializers.RandomNormal(0, width**-0.5))
        shape = (self.vocabulary_size, width)
        # without autocast: a cast of the whole kernel would cost as much as the full softmax
        self.kernel = self.add_weight(name="softmax_kernel", shape=shape, initializer=spread, autocast=False)
        start = {"initializer": "zeros", "trainable": not self.only_embeds}
        self.bias = self.add_weight(name="softmax_bias", shape=shape[:1], autocast=False, **start)

    def call(self, x, targets=None) -> Any:
        if targets is None or not self.samples:
            note(self.kernel, "whole")
            return ops.matmul(x, ops.transpose(ops.cast(self.kernel, x.dtype))) + ops.cast(self.bias, x.dtype)
        sampled, draws = self.sample()
        rows = ops.concatenate([ops.reshape(targets, (-1,)), sampled])  # (B*T + S,), one read for both
        kernel = ops.cast(take_rows(self.kernel, rows), x.dtype)
        ids = ops.cast(rows, "float32")
        probability = ops.log1p(1 / (ids + 1)) / float(np.log(self.vocabulary_size + 1))
        expected = -ops.expm1(draws * ops.log1p(-probability))  # count of each among the draws
        bias = take_rows(self.bias, rows) - ops.log(expected)
        width = x.shape[-1]
        flat = ops.reshape(x, (-1, width))
        split = ops.shape(flat)[0]
        true = ops.sum(flat * kernel[:split], axis=-1, keepdims=True) + ops.cast(bias[:split, None], x.dtype)
        others = ops.matmul(flat, ops.transpose(kernel[split:])) + ops.cast(bias[split:], x.dtype)  # (B*T, S)
        hit = ops.equal(ops.reshape(targets, (-1, 1)), sampled)
        others = ops.where(hit, ops.cast(LOWEST, x.dtype), others)
        shape = ops.shape(targets)
        return ops.reshape(ops.concatenate([true, others], axis=-1), (shape[0], shape[1], 1 + self.samples))

    def sample(self) -> tuple[Any, Any]:
        """Distinct words, int32 (S,), and the number of draws until there were as many, float32."""
        # Enough words are drawn at once, and the first S distinct ones taken. With S = 2 and the draws [3, 3, 0, 1],
        # order is [2, 3, 0, 1], by_word [0, 1, 3, 3], first [T, T, T, F] and positions [0, 2]: words 3 and 0, 3 draws.
        count = _draws(self.vocabulary_size, self.samples or 1)
        # in float32 some rare words of a large vocabulary would never be drawn
        dtype = "float64" if keras.backend.backend() == "tensorflow" else "float32"
        uniform = keras.random.uniform((count,), dtype=dtype, seed=self.seed_generator)
        drawn = ops.cast(ops.exp(uniform * float(np.log(self.vocabulary_size + 1))), "int32") - 1
        drawn = ops.clip(drawn, 0, self.vocabulary_size - 1)
        order = ops.argsort(drawn)  # stable: among equal words the first draw comes first
        by_word = ops.take(drawn, order)
        first = ops.concatenate([ops.ones((1,), "bool"), ops.not_equal(by_word[1:], by_word[:-1])])
        positions = ops.sort(ops.where(first, ops.cast(order, "int32"), count - 1))[: self.samples]
        return ops.take(drawn, positions), ops.cast(positions[-1] + 1, "float32")

    def compute_output_spec(self, x, targets=None) -> Any:
        wide = self.vocabulary_size if targets is None or not self.samples else 1 + self.samples
        return keras.KerasTensor((*x.shape[:2], wide), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class TiedSoftmax(VocabularySoftmax):
    """A `VocabularySoftmax` whose kernel is the table of the words' vectors too.

    Press & Wolf 2017, https://arxiv.org/abs/1608.05859; Inan et al. 2017, https://arxiv.org/abs/1611.01462.

    Args:
        vocabulary_size, samples, seed: as in `VocabularySoftmax`.
        width: D.
        only_embeds: it is called with `embed` alone, as in an encoder: its bias is then not trained.

    Call:
        x: float32 (B, T, D); with `embed` int32 (B, T), ids of words.
        targets: as in `VocabularySoftmax`.
        embed: give the vectors of words instead of logits.

    Returns: logits as in `VocabularySoftmax`; with `embed` float32 (B, T, D).

    >>> layer = TiedSoftmax(1000, 4)
    >>> layer(layer(ops.ones((2, 3), "int32"), embed=True)).shape
    TensorShape([2, 3, 1000])
    """

    def __init__(self, vocabulary_size: int, width: int, *args, only_embeds: bool = False, **kwargs):
        super().__init__(vocabulary_size, *args, **kwargs)
        self.width, self.only_embeds = width, only_embeds

    def build(self, input_shape) -> None:
        super().build((None, None, self.width))

    def call(self, x, targets=None, embed=False) -> Any:
        if embed:
            return ops.cast(take_rows(self.kernel, x), self.compute_dtype)
        return super().call(x, targets)

    def compute_output_spec(self, x, targets=None, embed=False) -> Any:
        if embed:
            return keras.KerasTensor((*x.shape, self.width), self.compute_dtype)
        return super().compute_output_spec(x, targets)


def _draws(vocabulary_size: int, samples: int) -> int:
    """A number of log-uniform draws with at least `samples` distinct words, except with probability 10^-9."""
    ids = np.arange(vocabulary_size)
    never = np.log1p(
        -np.log1p(1 / (ids + 1)) / np.log(vocabulary_size + 1)
    )  # log probability that a draw is not this word
    draws = samples
    while True:
        missed = np.exp(draws * never)
        spread = np.sqrt((missed * (1 - missed)).sum())
        if vocabulary_size - missed.sum() - 6 * spread >= samples or missed.sum() < 1e-9:
            return draws
        draws = int(draws * 1.25) + 1
