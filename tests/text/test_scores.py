"""Metrics, against scikit-learn, SciPy and seqeval."""

import string
import warnings

import numpy as np
import pytest
import seqeval.metrics
from scipy import stats
from sklearn import metrics

from keras_ctxrep.text import scores
from keras_ctxrep.text.scores import accuracy, answer_f1, exact_match, normalize_answer
from keras_ctxrep.text.tags import spans


def test_accuracy():
    assert accuracy(["a", "b", "a", "c"], ["a", "b", "b", "c"]) == 0.75
    assert accuracy(np.array([1, 2]), [1, 2]) == 1.0 and isinstance(accuracy([1], [2]), float)


@pytest.mark.parametrize(("expected", "predicted"), [(["a"], []), ([], []), (["a"], ["a", "b"])])
def test_accuracy_of_nothing_or_different_lengths(expected, predicted):
    with pytest.raises(ValueError, match=f"{len(expected)} expected with {len(predicted)} predicted"):
        accuracy(expected, predicted)


@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "c", "d"]])
@pytest.mark.parametrize("count", [1, 2, 50])
def test_class_metrics_are_those_of_scikit_learn(rng, labels, count):
    for _ in range(50):
        first, second = (
            rng.choice(labels, p=rng.dirichlet([0.5] * len(labels)), size=count).tolist() for _ in range(2)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # undefined figures
            for average in ("macro", "micro"):
                expected = metrics.f1_score(first, second, labels=labels, average=average, zero_division=0)
                assert scores.f1(first, second, labels, average) == pytest.approx(expected)
            positive = metrics.f1_score(first, second, labels=["b"], average="macro", zero_division=0)
            assert scores.f1(first, second, ["b"]) == pytest.approx(positive)
            assert scores.matthews(first, second) == pytest.approx(metrics.matthews_corrcoef(first, second), abs=1e-12)
            table = metrics.confusion_matrix(first, second, labels=labels)
        assert scores.confusion(first, second, labels).tolist() == table.tolist()


def test_unknown_labels_are_wrong_but_not_in_the_confusion_table():
    assert scores.confusion(["a", "b", "x"], ["a", None, "a"], ["a", "b"]).tolist() == [[1, 0], [0, 0]]
    assert scores.f1(["a", "a"], ["a", None], ["a"]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="average 'weighted'; one of macro, micro"):
        scores.f1(["a"], ["a"], ["a"], "weighted")


def test_multilabel_f1_is_that_of_scikit_learn(rng):
    labels = ["a", "b", "c"]
    for _ in range(50):
        first, second = (rng.random((20, 3)) < rng.random(3) * 0.7 for _ in range(2))
        sets = [
            [[label for label, is_on in zip(labels, row, strict=True) if is_on] for row in side]
            for side in (first, second)
        ]
        for average in ("macro", "micro"):
            expected = metrics.f1_score(first, second, average=average, zero_division=0)
            assert scores.f1(*sets, labels, average) == pytest.approx(expected)


@pytest.mark.parametrize("count", [2, 3, 200])
def test_correlations_are_those_of_scipy(rng, count):
    for digits in (0, 1, 8):
        first = 1e3 + rng.normal(size=count).round(digits)
        second = rng.normal(size=count).round(digits) * 1e-3 + first
        if np.ptp(first) and np.ptp(second):
            assert scores.pearson(first, second) == pytest.approx(stats.pearsonr(first, second).statistic, abs=1e-9)
            assert scores.spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-9)
        assert scores.mean_squared_error(first, second) == pytest.approx(metrics.mean_squared_error(first, second))


def test_the_correlation_with_a_constant_is_zero():
    assert scores.pearson([1, 1, 1], [1, 2, 3]) == scores.spearman([1, 2], [0.1, 0.1]) == scores.pearson([1], [2]) == 0
    assert scores.matthews(["a", "a"], ["a", "a"]) == 0


def span_scores(expected, predicted):
    """Precision, recall, F1 and support of each type of span, "" for all, by the functions that `Tag` uses."""
    gold, answers = ([spans(tags) for tags in side] for side in (expected, predicted))
    kinds = sorted({kind for sentence in [*gold, *answers] for kind, _, _ in sentence})
    _, by_kind = scores.counts(gold, answers, kinds, lambda span: span[0])
    by_kind = np.concatenate([by_kind.sum(0, keepdims=True), by_kind])
    names = ("precision", "recall", "f1", "support")
    table = np.column_stack([scores.precision_recall_f1(by_kind), by_kind[:, 2]])
    return {kind: dict(zip(names, row, strict=True)) for kind, row in zip(["", *kinds], table.tolist(), strict=True)}


def test_span_scores_are_those_of_seqeval(rng):
    tags = ["O", "O", "O", *(f"{mark}-{kind}" for mark in "BI" for kind in ("x", "y"))]
    for _ in range(100):
        first = [rng.choice(tags, size=rng.integers(1, 12)).tolist() for _ in range(10)]
        second = [[tag if rng.random() < 0.8 else str(rng.choice(tags)) for tag in sentence] for sentence in first]
        actual = span_scores(first, second)
        report = seqeval.metrics.classification_report(first, second, output_dict=True, zero_division=0)
        for ours, theirs in {"": "micro avg", "x": "x", "y": "y"}.items():
            expected = report.get(theirs, dict.fromkeys(("precision", "recall", "f1-score", "support"), 0))
            expected = {name.removesuffix("-score"): float(value) for name, value in expected.items()}
            assert actual.get(ours, dict.fromkeys(expected, 0)) == pytest.approx(expected)


def test_a_sentence_without_spans():
    assert span_scores([["O"]], [["O"]]) == {"": {"precision": 0, "recall": 0, "f1": 0, "support": 0}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Theatre", "theatre"),
        ("a an THE", ""),
        ("U.S.A., an  ape", "usa ape"),
        ("it\u2019s", "it\u2019s"),  # only ASCII punctuation
        ("A\u00a0b\tc", "b c"),
        (string.punctuation, ""),
        ("a-b", "ab"),
    ],
)
def test_normalize_answer(text, expected):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "truths", "exact", "f1"),
    [
        ("the cat", ["Cat!"], 1, 1),
        ("a big cat", ["cat", "big dog"], 0, 2 / 3),
        ("cat cat", ["cat"], 0, 2 / 3),
        ("cat", ["cat cat dog"], 0, 0.5),
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", ["cat"], 0, 0),
        ("the", ["a"], 1, 1),
        ("", ["a", "cat"], 0, 0),  # the first is left out, since nothing is left of it
    ],
)
def test_answers(prediction, truths, exact, f1):
    assert exact_match(prediction, truths) == exact
    assert answer_f1(prediction, truths) == pytest.approx(f1)


def test_bootstrap(rng):
    """Its width is that of the standard error, and it holds the truth as often as it says."""
    right = rng.random((200, 400)) < 0.7
    rates = (lambda drawn, row=row: row[drawn].mean() for row in right)
    intervals = np.array([scores.bootstrap(rate, 400, samples=200) for rate in rates])
    assert np.mean(intervals[:, 1] - intervals[:, 0]) == pytest.approx(2 * 1.96 * np.sqrt(0.7 * 0.3 / 400), rel=0.1)
    assert 0.9 < np.mean((intervals[:, 0] <= 0.7) & (intervals[:, 1] >= 0.7)) <= 0.99
    low, high = scores.bootstrap(lambda drawn: right[0][drawn].mean(), 400, level=0.5)
    assert intervals[0][0] < low < high < intervals[0][1]
    assert (
        scores.bootstrap(np.mean, 10, seed=1) == scores.bootstrap(np.mean, 10, seed=1) != scores.bootstrap(np.mean, 10)
    )


def restated_distance(a, b):
    """The recursion itself."""
    if not a or not b:
        return len(a) + len(b)
    return min(
        restated_distance(a[1:], b) + 1,
        restated_distance(a, b[1:]) + 1,
        restated_distance(a[1:], b[1:]) + (a[0] != b[0]),
    )


def test_edit_distance(rng):
    for _ in range(50):
        a, b = (rng.integers(0, 3, rng.integers(0, 6)).tolist() for _ in range(2))
        assert scores.edit_distance(a, b) == restated_distance(a, b)


def test_error_rate_of_the_nearest_reference():
    references = [[["a", "b", "c", "d"], ["a"]], [["x", "y"]]]
    assert scores.error_rate(references, [["a", "c"], ["x", "y"]]) == pytest.approx(1 / 3)
    for wrong, message in (
        (([], []), "cannot compare"),
        (([[]], [["a"]]), "hypothesis 1 has no reference"),
        (([[[]]], [["a"]]), "without tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            scores.error_rate(*wrong)
