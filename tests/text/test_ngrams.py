"""Kneser-Ney by hand, by brute force, and as a distribution."""

import math
from collections import Counter

import numpy as np
import pytest

from keras_ctxrep.text.ngrams import KneserNey

BEGIN, END = 0, 1


@pytest.fixture
def sentences(rng):
    """Word ids 3..11 of 14, so that three words never occur."""
    return [list(map(int, rng.zipf(1.5, rng.integers(0, 9)).clip(max=9) + 2)) for _ in range(60)]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_sum_to_one(sentences, order):
    model = KneserNey(sentences, order, 14, BEGIN, END)
    seen = {tuple([BEGIN] * (order - 1)), tuple(sentences[0][: order - 1])} if order > 1 else {()}
    unseen = {(13,) * (order - 1), (3,) * (order - 2) + (12,) * min(1, order - 1), (12,) + (3,) * (order - 2)}
    for context in seen | unseen if order > 1 else seen:
        assert len(context) == order - 1
        probabilities = [model.probability(context, word) for word in range(14)]
        assert min(probabilities) > 0 and sum(probabilities) == pytest.approx(1, abs=1e-12)


def test_unigrams_by_hand():
    # counts 2: 2, end: 2, 3: 1; one word once, two words twice -> discount 1 / 5; 0.6 / 5 of the mass left over
    model = KneserNey([[2], [2, 3]], 1, 4, BEGIN, END)
    expected = [0.03, 1.8 / 5 + 0.03, 1.8 / 5 + 0.03, 0.8 / 5 + 0.03]
    assert [model.probability((), word) for word in range(4)] == pytest.approx(expected)
    assert model.perplexity([[3], []]) == pytest.approx((0.19 * 0.39 * 0.39) ** (-1 / 3))


def test_bigrams_by_hand():
    # (3,4) (4,end) (begin,3) twice, three bigrams once -> discount 3 / 9; every word follows two others -> 1/2 below
    model = KneserNey([[3, 4], [3, 4], [4, 3]], 2, 5, BEGIN, END)
    unigram = 1.5 / 6 + 0.25 / 5
    assert model.probability((3,), 4) == pytest.approx((2 - 1 / 3) / 3 + 2 / 9 * unigram)
    assert model.probability((3,), 3) == pytest.approx(2 / 9 * unigram)
    assert model.probability((2,), 4) == pytest.approx(unigram)  # nothing is known of this context
    first, second, end = 5 / 9 + 2 / 9 * unigram, 5 / 9 + 2 / 9 * unigram, 5 / 9 + 2 / 9 * unigram
    assert model.perplexity([[3, 4]]) == pytest.approx((first * second * end) ** (-1 / 3))


def brute_force_bigram(sentences, size):
    """Chen & Goodman 1998, eq. 4.33-4.37 for n = 2, as sums over all bigram occurrences."""
    occurrences = [pair for s in sentences for pair in zip([BEGIN, *s], [*s, END], strict=True)]
    kinds = set(occurrences)
    table = np.zeros((size, size))
    for pair in occurrences:
        table[pair] += 1

    def discount(values):
        ones, twos = sum(value == 1 for value in values), sum(value == 2 for value in values)
        return ones / (ones + 2 * twos) if ones and twos else 0.5

    before = [sum((v, w) in kinds for v in range(size)) for w in range(size)]  # N1+(. w)
    low = discount(before)
    left = low * sum(n > 0 for n in before) / sum(before)
    unigram = [max(n - low, 0) / sum(before) + left / size for n in before]
    high = discount(table.ravel())
    result = np.empty((size, size))
    for v in range(size):
        total = table[v].sum()
        for w in range(size):
            back_off = high * (table[v] > 0).sum() / total if total else 1
            result[v, w] = (max(table[v, w] - high, 0) / total if total else 0) + back_off * unigram[w]
    return result


def test_bigrams_equal_brute_force(sentences):
    model = KneserNey(sentences, 2, 14, BEGIN, END)
    expected = brute_force_bigram(sentences, 14)
    probabilities = [[model.probability((v,), w) for w in range(14)] for v in range(14)]
    np.testing.assert_allclose(probabilities, expected, rtol=1e-12)
    logs = [math.log(expected[pair]) for s in sentences for pair in zip([BEGIN, *s], [*s, END], strict=True)]
    assert model.perplexity(sentences) == pytest.approx(math.exp(-np.mean(logs)))


def test_longer_contexts_help_on_text_with_order():
    train = [[3, 4, 5, 3, 4, 6], [7, 4, 8, 7, 4, 9]] * 5
    first, second, third = (
        KneserNey(train, order, 10, BEGIN, END).perplexity([[3, 4, 5], [7, 4, 8]]) for order in (1, 2, 3)
    )
    assert first > second > third


def test_a_context_that_is_too_short():
    model = KneserNey([[3, 4]], 3, 5, BEGIN, END)
    assert model.probability((2, 3, 3), 4) == model.probability((3, 3), 4)
    with pytest.raises(ValueError, match="a context of 1 words; order=3 needs 2"):
        model.probability((3,), 4)


def test_order_zero():
    with pytest.raises(ValueError, match="order=0"):
        KneserNey([], 0, 4, BEGIN, END)


def brute_force(sentences, order, size, modified):
    """P(word | context) by dictionaries of n-grams and the recursion of Chen & Goodman 1999, eq. 1 and section 3."""
    occurrences = Counter()
    for sentence in sentences:
        row = [*[BEGIN] * max(1, order - 1), *sentence, END]
        first = max(1, order - 1)
        occurrences.update(tuple(row[i - order + 1 : i + 1]) for i in range(first, len(row)))
    tables = {order: occurrences}
    for n in range(order - 1, 0, -1):  # a shorter n-gram counts the distinct words before it
        tables[n] = Counter(gram[1:] for gram in tables[n + 1])

    def discount(n, count):
        n1, n2, n3, n4 = ([*tables[n].values()].count(times) for times in (1, 2, 3, 4))
        share = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
        if not (modified and n1 and n2 and n3 and n4):
            return share
        three = {1: 1 - 2 * share * n2 / n1, 2: 2 - 3 * share * n3 / n2, 3: 3 - 4 * share * n4 / n3}
        return three[min(count, 3)] if min(three.values()) >= 0 else share

    def probability(context, word):
        n = len(context) + 1
        lower = probability(context[1:], word) if n > 1 else 1 / size
        seen = {gram: count for gram, count in tables[n].items() if gram[:-1] == context}
        if not seen:
            return lower
        total, count = sum(seen.values()), seen.get((*context, word), 0)
        left = sum(discount(n, each) for each in seen.values()) / total
        return (count - discount(n, count) if count else 0) / total + left * lower

    return probability


@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_equals_brute_force(sentences, order, modified):
    text = [*sentences, *sentences[::3], *sentences[::4], *sentences[::5]]  # n-grams of many counts
    model, expected = KneserNey(text, order, 14, BEGIN, END, modified), brute_force(text, order, 14, modified)
    contexts = [tuple(([BEGIN] * 4 + list(s))[-order + 1 :]) if order > 1 else () for s in [*text[::9], [13, 12, 13]]]
    for context in contexts:
        actual = [model.probability(context, word) for word in range(14)]
        np.testing.assert_allclose(actual, [expected(context, word) for word in range(14)], rtol=1e-10)
        assert sum(actual) == pytest.approx(1, abs=1e-12)


def test_three_discounts_differ_from_one(sentences):
    text = [*sentences, *sentences[::3], *sentences[::4], *sentences[::5]]
    one, three = (KneserNey(text, 3, 14, BEGIN, END, modified).perplexity(sentences) for modified in (False, True))
    assert one != pytest.approx(three, rel=1e-4)
    total, count = KneserNey(text, 3, 14, BEGIN, END, True).log_probability(sentences)
    assert three == pytest.approx(np.exp(-total / count)) and count == sum(len(s) + 1 for s in sentences)
