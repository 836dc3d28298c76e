"""Metrics over predictions, as plain functions; each of `keras_ctxrep.tasks` picks its own."""

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import numpy as np

from keras_ctxrep.text.tags import spans


def accuracy(expected: Sequence, predicted: Sequence) -> float:
    """Share of positions where both agree; of two models' labels it is their agreement.

    Raises:
        ValueError: the lengths differ or there is nothing to compare.

    >>> accuracy(["a", "b"], ["a", "c"])
    0.5
    """
    _check(expected, predicted)
    return float(np.mean([one == two for one, two in zip(expected, predicted, strict=True)]))


def standard_error(share: float, count: int) -> float:
    """Standard error of a share measured on `count` examples."""
    return float(np.sqrt(share * (1 - share) / count))


def bootstrap(
    statistic: Callable[[np.ndarray], float], count: int, samples: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """A confidence interval: the middle of what a statistic is on examples drawn anew with replacement.

    The percentile method of Efron 1979, https://doi.org/10.1214/aos/1176344552.

    Args:
        statistic: indices of examples, int64 (count,) -> a figure.
        count: of the examples.
        samples: times that they are drawn.
        seed: of the draws.
        level: share of the figures within the interval.

    >>> right = np.arange(100) < 80
    >>> bootstrap(lambda drawn: right[drawn].mean(), len(right))
    (0.72, 0.88)
    """
    rng = np.random.default_rng(seed)
    found = [statistic(rng.integers(count, size=count)) for _ in range(samples)]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def confusion(expected: Sequence, predicted: Sequence, labels: Sequence) -> np.ndarray:
    """int64 (C, C): how often a label, by row, was taken for another, by column; those not in `labels` do not count.

    >>> confusion(["a", "a", "b"], ["a", "b", "b"], ["a", "b"]).tolist()
    [[1, 1], [0, 1]]
    """
    _check(expected, predicted)
    place = {label: index for index, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)), np.int64)
    for one, two in zip(expected, predicted, strict=True):
        if one in place and two in place:
            table[place[one], place[two]] += 1
    return table


def matthews(expected: Sequence, predicted: Sequence) -> float:
    """Matthews' correlation coefficient, of any number of classes; 0 where one side has a single one.

    Gorodkin 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006.
    """
    table = confusion(expected, predicted, list({*expected, *predicted})).astype(np.float64)
    is_, said = table.sum(1), table.sum(0)
    spread = (table.sum() ** 2 - is_ @ is_) * (table.sum() ** 2 - said @ said)
    return float((np.trace(table) * table.sum() - is_ @ said) / np.sqrt(spread)) if spread else 0.0


def pearson(expected: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> float:
    """Pearson's correlation coefficient; 0 where one side is constant, so that it is not defined."""
    _check(expected, predicted)
    one, two = (np.asarray(side, np.float64) for side in (expected, predicted))
    if one.min() == one.max() or two.min() == two.max():
        return 0.0
    one, two = one - one.mean(), two - two.mean()
    return float(np.clip(one @ two / np.sqrt((one @ one) * (two @ two)), -1, 1))


def spearman(expected: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> float:
    """Spearman's rank correlation; equal values have the mean of their ranks."""

    def ranks(side: Any) -> np.ndarray:
        _, place, counts = np.unique(np.asarray(side, np.float64), return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[place]

    return pearson(ranks(expected), ranks(predicted))


def mean_squared_error(expected: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> float:
    """Mean of the squared differences."""
    _check(expected, predicted)
    return float(np.mean((np.asarray(expected, np.float64) - np.asarray(predicted, np.float64)) ** 2))


def counts(
    expected: Sequence[Collection],
    predicted: Sequence[Collection],
    kinds: Sequence[Hashable],
    kind: Callable[[Any], Hashable] = lambda item: item,
) -> tuple[np.ndarray, np.ndarray]:
    """How many items of an example are found, predicted and expected: of each example, and of each kind.

    Args:
        expected: the items of each example: its labels, or its spans.
        predicted: the same of a model.
        kinds: those that count.
        kind: of an item.

    Returns: int64 (B, 3) and int64 (C, 3), for `precision_recall_f1`.

    >>> counts([{"a", "b"}, {"a"}], [{"a"}, {"b"}], ["a", "b"])[1].tolist()
    [[1, 1, 2], [0, 1, 1]]
    """
    _check(expected, predicted)
    place = {one: index for index, one in enumerate(kinds)}
    by_example, by_kind = np.zeros((len(expected), 3), np.int64), np.zeros((len(kinds), 3), np.int64)
    for row, pair in enumerate(zip(expected, predicted, strict=True)):
        gold, found = map(set, pair)
        for column, items in enumerate((gold & found, found, gold)):
            for item in items:
                if (index := place.get(kind(item))) is not None:
                    by_example[row, column] += 1
                    by_kind[index, column] += 1
    return by_example, by_kind


def precision_recall_f1(counts: np.ndarray) -> np.ndarray:
    """float64 (..., 3) of counts (..., 3) found, predicted and expected; 0 where nothing is predicted or expected.

    >>> precision_recall_f1(np.array([1, 2, 1])).round(3).tolist()
    [0.5, 1.0, 0.667]
    """
    found, predicted, expected = np.moveaxis(np.asarray(counts, np.float64), -1, 0)
    shares = (found / np.maximum(predicted, 1), found / np.maximum(expected, 1))
    return np.stack([*shares, 2 * found / np.maximum(predicted + expected, 1)], -1)


def f1(expected: Sequence, predicted: Sequence, labels: Sequence[str], average: str = "macro") -> float:
    """F1 of labels; of a single one, the positive, it is the binary F1.

    Args:
        expected: a label, or a collection of labels, for each example; None for no label.
        predicted: the same of a model.
        labels: those that count.
        average: "macro", the mean of the labels' F1, or "micro", of all of them counted together.

    >>> f1(["no", "yes", "yes"], ["no", "no", "yes"], ["yes"])
    0.6666666666666666
    >>> f1([["a", "b"], []], [["a"], []], ["a", "b"])
    0.5
    """
    if average not in ("macro", "micro"):
        raise ValueError(f"average {average!r}; one of macro, micro")
    one, two = ([[] if x is None else [x] if isinstance(x, str) else x for x in side] for side in (expected, predicted))
    _, by_label = counts(one, two, labels)
    return float(np.mean(precision_recall_f1(by_label if average == "macro" else by_label.sum(0))[..., 2]))


def span_scores(expected: Sequence[Sequence[str | None]], predicted: Sequence[Sequence[str | None]]) -> dict[str, dict]:
    """Precision, recall and F1 of the spans that sentences' tags mark, each whole or wrong, as conlleval counts them.

    Tjong Kim Sang and De Meulder 2003, https://aclanthology.org/W03-0419/.

    Returns: {"": of all together, type: of one, ...}, each {"precision", "recall", "f1", "support"}.

    >>> span_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "B-LOC"]])[""]
    {'precision': 0.5, 'recall': 0.5, 'f1': 0.5, 'support': 2}
    """
    gold, found = ([spans(tags) for tags in side] for side in (expected, predicted))
    kinds = sorted({kind for side in (gold, found) for sentence in side for kind, _, _ in sentence})
    _, by_kind = counts(gold, found, kinds, lambda span: span[0])
    by_kind = np.concatenate([by_kind.sum(0, keepdims=True), by_kind])
    return {
        kind: dict(zip(("precision", "recall", "f1"), map(float, shares), strict=True)) | {"support": int(support)}
        for kind, shares, support in zip(["", *kinds], precision_recall_f1(by_kind), by_kind[:, 2], strict=True)
    }


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, single spaces: as SQuAD's evaluation compares answers.

    Rajpurkar et al. 2016, section 6.1, https://arxiv.org/abs/1606.05250.

    >>> normalize_answer("The  U.S. and a dog")
    'us and dog'
    """
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction: str, truths: Sequence[str]) -> float:
    """1 if an answer is one of some, normalized; of a question without an answer, if it is none either."""
    return float(normalize_answer(prediction) in _answers(truths))


def answer_f1(prediction: str, truths: Sequence[str]) -> float:
    """F1 of an answer's words against the answer that it fits best; no answer fits only no answer.

    The rules of SQuAD 2.0, https://arxiv.org/abs/1806.03822, which differ from those of 1.1 only where nothing is left
    of an answer.

    >>> answer_f1("in the Denver hills", ["Denver Broncos", "Denver hills"])
    0.8
    """
    found = normalize_answer(prediction).split()
    best = 0.0
    for truth in _answers(truths):
        words = truth.split()
        common = sum((Counter(found) & Counter(words)).values())
        best = max(best, 2 * common / (len(found) + len(words)) if found and words else float(found == words))
    return best


def _answers(truths: Sequence[str]) -> list[str]:
    return [truth for truth in map(normalize_answer, truths) if truth] or [""]


def _check(expected: Any, predicted: Any) -> None:
    if len(expected) != len(predicted) or not len(expected):
        raise ValueError(f"cannot compare {len(expected)} expected with {len(predicted)} predicted labels")
