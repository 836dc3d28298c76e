"""Count-based language models, the baselines for the neural ones."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence


class KneserNey:
    """Interpolated Kneser-Ney n-gram model over word ids.

    Kneser & Ney 1995 in the interpolated form of Chen & Goodman 1998 (eq. 4.6), https://arxiv.org/abs/cmp-lg/9606011,
    one discount per order, n1 / (n1 + 2 n2); the unigrams are interpolated with the uniform distribution, so that no
    word of the vocabulary has probability zero.

    Args:
        sentences: word ids, without markers.
        order: 1 for unigrams, 2 for bigrams, ...
        vocabulary_size: words that can be predicted, the end of the sentence and the unknown word included.
        begin, end: ids of the sentence markers.

    Raises:
        ValueError: `order` is below 1.

    >>> model = KneserNey([[3, 4], [3, 4], [4, 3]], order=2, vocabulary_size=5, begin=0, end=1)
    >>> round(sum(model.probability((3,), word) for word in range(5)), 12)
    1.0
    """

    def __init__(self, sentences: Iterable[Sequence[int]], order: int, vocabulary_size: int, begin: int, end: int):
        if order < 1:
            raise ValueError(f"order={order}: an n-gram has at least one word")
        self.order, self.vocabulary_size, self.begin, self.end = order, vocabulary_size, begin, end
        counts: Counter[tuple[int, ...]] = Counter()
        for sentence in sentences:
            padded = self._padded(sentence)
            counts.update(zip(*(padded[i:] for i in range(order)), strict=False))
        self._levels = []  # from the longest n-gram to the unigram: (discounted probabilities, back-off weights)
        while True:
            ones, twos = (sum(1 for n in counts.values() if n == k) for k in (1, 2))
            discount = ones / (ones + 2 * twos) if ones and twos else 0.5
            totals, kinds = Counter(), Counter()
            for gram, n in counts.items():
                totals[gram[:-1]] += n
                kinds[gram[:-1]] += 1
            discounted = {gram: (n - discount) / totals[gram[:-1]] for gram, n in counts.items()}
            backoff = {context: discount * kinds[context] / totals[context] for context in totals}
            self._levels.append((discounted, backoff))
            if len(self._levels) == order:
                break
            counts = Counter(
                gram[1:] for gram in counts
            )  # continuation counts: distinct words before the shorter n-gram

    def _padded(self, sentence: Sequence[int]) -> list[int]:
        return [self.begin] * (self.order - 1) + [*sentence, self.end]

    def probability(self, context: tuple[int, ...], word: int) -> float:
        """P(word | context), where the context is the `order - 1` preceding words."""
        probability, weight = 0.0, 1.0
        for k, (discounted, backoff) in enumerate(self._levels):
            tail = context[k:]
            if tail in backoff:
                probability += weight * discounted.get((*tail, word), 0.0)
                weight *= backoff[tail]
        return probability + weight / self.vocabulary_size

    def perplexity(self, sentences: Iterable[Sequence[int]]) -> float:
        """exp of the mean negative log-likelihood over all words and sentence ends."""
        total, count = 0.0, 0
        for sentence in sentences:
            padded = self._padded(sentence)
            for i in range(self.order - 1, len(padded)):
                total -= math.log(self.probability(tuple(padded[i - self.order + 1 : i]), padded[i]))
                count += 1
        return math.exp(total / count)
