"""Metrics over predictions, as plain functions; each of `keras_ctxrep.tasks` picks its own."""

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import numpy as np

__all__ = [
    "accuracy",
    "answer_f1",
    "bootstrap",
    "confusion",
    "counts",
    "edit_distance",
    "error_rate",
    "exact_match",
    "f1",
    "matthews",
    "mean_squared_error",
    "nearest",
    "normalize_answer",
    "pearson",
    "precision_recall_f1",
    "spearman",
]


def accuracy(expected: Sequence, predicted: Sequence) -> float:
    """Fraction of positions where the labels are equal; for the labels of two models, their agreement.

    Args:
        expected, predicted: N labels.

    Raises:
        ValueError: the lengths differ or there is nothing to compare.

    >>> accuracy(["a", "b"], ["a", "c"])
    0.5
    """
    _check(expected, predicted)
    return float(np.mean([gold == label for gold, label in zip(expected, predicted, strict=True)]))


def bootstrap(
    statistic: Callable[[np.ndarray], float], count: int, samples: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Bootstrap confidence interval of a statistic, by resampling the examples with replacement.

    The percentile method of Efron 1979, https://doi.org/10.1214/aos/1176344552.

    Args:
        statistic: function from the indices of examples, int64 (count,), to a number.
        count: number of examples.
        samples, seed: number of resamples, and seed of the resampling.
        level: confidence level.

    >>> right = np.arange(100) < 80
    >>> bootstrap(lambda drawn: right[drawn].mean(), len(right))
    (0.72, 0.88)
    """
    rng = np.random.default_rng(seed)
    statistics = [statistic(rng.integers(count, size=count)) for _ in range(samples)]
    low, high = np.quantile(statistics, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def confusion(expected: Sequence, predicted: Sequence, labels: Sequence) -> np.ndarray:
    """Confusion matrix, int64 (C, C): expected labels by row, predicted ones by column; others are ignored.

    Args:
        expected, predicted: N labels.
        labels: the C labels to count.

    >>> confusion(["a", "a", "b"], ["a", "b", "b"], ["a", "b"]).tolist()
    [[1, 1], [0, 1]]
    """
    _check(expected, predicted)
    index = {label: number for number, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)), np.int64)
    for gold, label in zip(expected, predicted, strict=True):
        if gold in index and label in index:
            table[index[gold], index[label]] += 1
    return table


def matthews(expected: Sequence, predicted: Sequence) -> float:
    """Matthews' correlation coefficient for any number of classes; 0 if all expected or all predicted labels are equal.

    Gorodkin 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006.

    Args:
        expected, predicted: N labels.
    """
    table = confusion(expected, predicted, list({*expected, *predicted})).astype(np.float64)
    by_gold, by_prediction = table.sum(1), table.sum(0)
    variances = (table.sum() ** 2 - by_gold @ by_gold) * (table.sum() ** 2 - by_prediction @ by_prediction)
    return float((np.trace(table) * table.sum() - by_gold @ by_prediction) / np.sqrt(variances)) if variances else 0.0


def pearson(expected: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> float:
    """Pearson's correlation coefficient; 0 where it is undefined because one side is constant.

    Args:
        expected, predicted: N numbers.
    """
    _check(expected, predicted)
    x, y = (np.asarray(side, np.float64) for side in (expected, predicted))
    if x.min() == x.max() or y.min() == y.max():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


def spearman(expected: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> float:
    """Spearman's rank correlation; tied values get the mean of their ranks.

    Args:
        expected, predicted: N numbers.
    """

    def ranks(side: Any) -> np.ndarray:
        _, inverse, counts = np.unique(np.asarray(side, np.float64), return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # [5, 7, 7]: ranks 1, 2.5, 2.5

    return pearson(ranks(expected), ranks(predicted))


def mean_squared_error(expected: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> float:
    """Mean of the squared differences.

    Args:
        expected, predicted: N numbers.
    """
    _check(expected, predicted)
    return float(np.mean((np.asarray(expected, np.float64) - np.asarray(predicted, np.float64)) ** 2))


def counts(
    expected: Sequence[Collection],
    predicted: Sequence[Collection],
    kinds: Sequence[Hashable],
    kind: Callable[[Any], Hashable] = lambda item: item,
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of correct, predicted and expected items, for each example and for each kind.

    Args:
        expected, predicted: the items of each example, its labels or its spans, and those of a model.
        kinds: the kinds to count; other items are ignored.
        kind: function from an item to its kind.

    Returns: int64 (B, 3) and int64 (C, 3), for `precision_recall_f1`.

    >>> counts([{"a", "b"}, {"a"}], [{"a"}, {"b"}], ["a", "b"])[1].tolist()
    [[1, 1, 2], [0, 1, 1]]
    """
    _check(expected, predicted)
    kind_index = {name: number for number, name in enumerate(kinds)}
    by_example, by_kind = np.zeros((len(expected), 3), np.int64), np.zeros((len(kinds), 3), np.int64)
    for row, pair in enumerate(zip(expected, predicted, strict=True)):
        gold, predictions = map(set, pair)
        for column, items in enumerate((gold & predictions, predictions, gold)):
            for item in items:
                if (index := kind_index.get(kind(item))) is not None:
                    by_example[row, column] += 1
                    by_kind[index, column] += 1
    return by_example, by_kind


def precision_recall_f1(counts: np.ndarray) -> np.ndarray:
    """Precision, recall and F1, float64 (..., 3); 0 where nothing is predicted or expected.

    Args:
        counts: (..., 3), numbers of correct, predicted and expected items, from `counts`.

    >>> precision_recall_f1(np.array([1, 2, 1])).round(3).tolist()
    [0.5, 1.0, 0.667]
    """
    correct, predicted, expected = np.moveaxis(np.asarray(counts, np.float64), -1, 0)
    precision_recall = (correct / np.maximum(predicted, 1), correct / np.maximum(expected, 1))
    return np.stack([*precision_recall, 2 * correct / np.maximum(predicted + expected, 1)], -1)


def f1(expected: Sequence, predicted: Sequence, labels: Sequence[str], average: str = "macro") -> float:
    """F1 of labels; with a single label, the positive class, the binary F1.

    Args:
        expected, predicted: a label, or a collection of labels, for each example; None for no label.
        labels: the labels to count; others are ignored.
        average: "macro", the mean of the labels' F1, or "micro", the F1 of their summed counts.

    >>> f1(["no", "yes", "yes"], ["no", "no", "yes"], ["yes"])
    0.6666666666666666
    >>> f1([["a", "b"], []], [["a"], []], ["a", "b"])
    0.5
    """
    if average not in ("macro", "micro"):
        raise ValueError(f"average {average!r}; one of macro, micro")
    gold, predictions = (
        [[] if x is None else [x] if isinstance(x, str) else x for x in side] for side in (expected, predicted)
    )
    _, by_label = counts(gold, predictions, labels)
    return float(np.mean(precision_recall_f1(by_label if average == "macro" else by_label.sum(0))[..., 2]))


def normalize_answer(text: str) -> str:
    """Lower-cases an answer, removes ASCII punctuation and articles, and collapses white space, as SQuAD's evaluation.

    Rajpurkar et al. 2016, section 6.1, https://arxiv.org/abs/1606.05250.

    >>> normalize_answer("The  U.S. and a dog")
    'us and dog'
    """
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction: str, truths: Sequence[str]) -> float:
    """1 if the normalized prediction equals one of the true answers; for a question without answers, if it is empty.

    Args:
        prediction: an answer; "" for none.
        truths: the true answers; none, or only empty ones, of a question without answer.
    """
    return float(normalize_answer(prediction) in _answers(truths))


def answer_f1(prediction: str, truths: Sequence[str]) -> float:
    """F1 over the words of a prediction and of the best matching true answer; an empty one matches only an empty one.

    The rules of SQuAD 2.0, https://arxiv.org/abs/1806.03822, which differ from those of 1.1 only where normalization
    leaves an answer empty.

    Args:
        prediction: an answer; "" for none.
        truths: the true answers; none, or only empty ones, of a question without answer.

    >>> answer_f1("in the Denver hills", ["Denver Broncos", "Denver hills"])
    0.8
    """
    predicted = normalize_answer(prediction).split()

    def f1_of(words: list[str]) -> float:
        common = sum((Counter(predicted) & Counter(words)).values())
        return 2 * common / (len(predicted) + len(words)) if predicted and words else float(predicted == words)

    return max(f1_of(truth.split()) for truth in _answers(truths))


def edit_distance(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> int:
    """The least number of insertions, deletions and substitutions between two sequences, Levenshtein 1966.

    Args:
        reference, hypothesis: sequences of tokens; a string is one of characters.

    >>> edit_distance("kitten", "sitting")
    3
    """
    best = list(range(len(hypothesis) + 1))  # from the tokens of the reference so far to each beginning
    for row, token in enumerate(reference, 1):
        diagonal, best[0] = best[0], row
        for column, other in enumerate(hypothesis, 1):
            changed = diagonal + (token != other)
            diagonal = best[column]
            best[column] = min(changed, diagonal + 1, best[column - 1] + 1)
    return best[-1]


def nearest(references: Sequence[Sequence[Hashable]], hypothesis: Sequence[Hashable]) -> tuple[int, int]:
    """The edit distance to the nearest of some references, of equally near ones the first, and its length.

    Args:
        references: one or more sequences of tokens.
        hypothesis: a sequence of tokens.

    >>> nearest(["sitting", "kit"], "kitten")
    (3, 7)
    """
    distances = ((edit_distance(reference, hypothesis), len(reference)) for reference in references)
    return min(distances, key=lambda pair: pair[0])


def error_rate(references: Sequence[Sequence[Sequence[Hashable]]], hypotheses: Sequence[Sequence[Hashable]]) -> float:
    """Edit distances over the tokens of the references: the error rate of words, phonemes or characters.

    Of several references of a hypothesis the nearest one counts, of equally near ones the first.

    Args:
        references: of each hypothesis one or more sequences of tokens.
        hypotheses: sequences of tokens.

    Raises:
        ValueError: the lengths differ, there is nothing to compare, a hypothesis has no reference, or the references
            have no token.

    >>> error_rate([["K AE T".split(), "K AA T".split()]], ["K AA D".split()])
    0.3333333333333333
    """
    _check(references, hypotheses)
    edits = tokens = 0
    for number, (several, hypothesis) in enumerate(zip(references, hypotheses, strict=True), 1):
        if not several:
            raise ValueError(f"hypothesis {number} has no reference to compare with")
        distance, length = nearest(several, hypothesis)
        edits, tokens = edits + distance, tokens + length
    if not tokens:
        raise ValueError("references without tokens, over which no rate can be computed")
    return edits / tokens


def _answers(truths: Sequence[str]) -> list[str]:
    return [truth for truth in map(normalize_answer, truths) if truth] or [""]


def _check(expected: Any, predicted: Any) -> None:
    if len(expected) != len(predicted) or not len(expected):
        raise ValueError(f"cannot compare {len(expected)} expected with {len(predicted)} predicted labels")
