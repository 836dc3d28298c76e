"""Count-based language models, the baselines for the neural ones."""

from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["KneserNey"]


class KneserNey:
    """Interpolated Kneser-Ney n-gram model over word ids.

    Kneser & Ney 1995 in the interpolated form of Chen & Goodman 1998 (eq. 4.6), https://arxiv.org/abs/cmp-lg/9606011,
    one discount per order, Y = n1 / (n1 + 2 n2); the unigrams are interpolated with the uniform distribution, so that
    no word of the vocabulary has probability zero. With `modified` there are three, for n-grams that occur once, twice
    and more often (Chen & Goodman 1999, https://doi.org/10.1006/csla.1999.0128, section 3): 1 - 2 Y n2 / n1,
    2 - 3 Y n3 / n2 and 3 - 4 Y n4 / n3, where the text has n-grams of each of these counts and none of the three is
    negative.

    All n-grams of a text are handled at once: a k-gram is the number `row of its first k - 1 words * vocabulary_size +
    its last word`, and its row is its rank among the numbers of all k-grams. 24 million words take 76 s and
    3.6 GB at order 5.

    Args:
        sentences: word ids, without markers.
        order: 1 for unigrams, 2 for bigrams, ...
        vocabulary_size: words that can be predicted, the end of the sentence and the unknown word included.
        begin, end: ids of the sentence markers; they may be the same.
        modified: three discounts per order.

    Raises:
        ValueError: `order` is below 1.

    >>> model = KneserNey([[3, 4], [3, 4], [4, 3]], order=2, vocabulary_size=5, begin=0, end=1)
    >>> round(sum(model.probability((3,), word) for word in range(5)), 12)
    1.0
    """

    def __init__(
        self,
        sentences: Iterable[Sequence[int] | np.ndarray],
        order: int,
        vocabulary_size: int,
        begin: int,
        end: int,
        modified: bool = False,
    ):
        if order < 1:
            raise ValueError(f"order={order}: an n-gram has at least one word")
        self.order, self.vocabulary_size, self.begin, self.end = order, vocabulary_size, begin, end
        words, predicted = self._stream(sentences)
        self._numbers: list[np.ndarray] = []  # by length: those of all k-grams, ascending
        grams = np.zeros((order, len(words)), "int32")  # the row of the k-gram that ends at each word
        before = np.zeros(len(words), "int64")
        for k in range(order):
            numbers, grams[k] = np.unique(before * vocabulary_size + words, return_inverse=True)
            self._numbers.append(numbers)
            before[1:] = grams[k, :-1]
        # by length: the discounted probability of each k-gram, and the weight that each context leaves to shorter ones
        self._discounted: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []
        counted = np.flatnonzero(predicted)  # a word of the text for each k-gram that is counted
        for k in reversed(range(order)):
            kinds = len(self._numbers[k])
            counts = np.bincount(grams[k, counted], minlength=kinds)
            discounts = _discounts(counts, modified)[np.minimum(counts, 3)]
            context = self._numbers[k] // vocabulary_size
            contexts = len(self._numbers[k - 1]) if k else 1
            totals = np.maximum(np.bincount(context, counts, contexts), 1)
            left = np.bincount(context, discounts, contexts)  # of the counts of each context
            self._discounted.insert(0, (counts - discounts) / totals[context])
            self._weights.insert(0, np.where(left > 0, left / totals, 1.0))
            # a shorter n-gram counts the distinct words before it
            counted = counted[np.unique(grams[k, counted], return_index=True)[1]]

    def _stream(self, sentences: Iterable[Sequence[int] | np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """All sentences with their markers in one row of words, and which of the words are predicted."""
        padding = [self.begin] * max(1, self.order - 1)
        words, predicted = [], []
        for sentence in sentences:
            words += [*padding, *sentence, self.end]
            predicted += [False] * len(padding) + [True] * (len(sentence) + 1)
        return np.array(words, "int64"), np.array(predicted, bool)

    def _probabilities(self, words: np.ndarray) -> np.ndarray:
        """P(word | the `order - 1` words before it) of each word of a row; float64."""
        result = np.full(len(words), 1 / self.vocabulary_size)
        rows, known = np.zeros(len(words), "int64"), np.ones(len(words), bool)  # of the k words before each word
        for numbers, discounted, weights in zip(self._numbers, self._discounted, self._weights, strict=True):
            wanted = rows * self.vocabulary_size + words
            places = np.searchsorted(numbers, wanted).clip(max=len(numbers) - 1)
            seen = known & (numbers[places] == wanted)
            longer = np.where(seen, discounted[places], 0) + weights[rows] * result
            result = np.where(known, longer, result)
            rows, known = np.roll(np.where(seen, places, 0), 1), np.roll(seen, 1)
        return result

    def probability(self, context: Sequence[int], word: int) -> float:
        """P(word | context), where the context is the `order - 1` preceding words.

        Raises:
            ValueError: the context has fewer words.
        """
        if len(context) < self.order - 1:
            raise ValueError(f"a context of {len(context)} words; order={self.order} needs {self.order - 1}")
        return float(self._probabilities(np.array([*context, word], "int64"))[-1])

    def log_probability(self, sentences: Iterable[Sequence[int] | np.ndarray]) -> tuple[float, int]:
        """The log-probability of all words and sentence ends, in nats, and how many these are."""
        words, predicted = self._stream(sentences)
        return float(np.log(self._probabilities(words)[predicted]).sum()), int(predicted.sum())

    def perplexity(self, sentences: Iterable[Sequence[int] | np.ndarray]) -> float:
        """exp of the mean negative log-likelihood over all words and sentence ends."""
        total, count = self.log_probability(sentences)
        return float(np.exp(-total / count))


def _discounts(counts: np.ndarray, modified: bool) -> np.ndarray:
    """What is taken off n-grams that occur 0 times, once, twice, and more often; float64 (4,)."""
    n1, n2, n3, n4 = (int((counts == times).sum()) for times in (1, 2, 3, 4))
    share = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    if modified and n1 and n2 and n3 and n4:
        three = [1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3]
        if min(three) >= 0:
            return np.array([0.0, *three])
    return np.array([0.0, share, share, share])
