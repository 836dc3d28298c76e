"""A task's report."""

import time

import numpy as np
import pytest

from keras_ctxrep import tasks
from keras_ctxrep.tasks.answer import Question, null_threshold
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.tag import Tagged


def evaluate(task, *args, **options):
    return tasks.get(task).evaluate(*args, **options)


def answer(label, score=0.6, other="x"):
    return {"label": label, "score": score, "probabilities": {label: score, other: 1 - score}}


def words(*labels):
    return {"words": [{"word": "w", "start": 0, "end": 1, "label": label, "score": 0.9} for label in labels]}


def test_classify():
    gold = [Example("", label) for label in ("no", "no", "yes", "yes", "yes")]
    answers = [answer("no"), answer("yes", 0.6, "no"), answer("no", 0.9, "yes"), answer("yes"), {"error": "no words"}]
    report = evaluate("classify", gold, answers, ["no", "yes"])
    assert (report.metric, report.value) == ("accuracy", 0.4)
    assert list(report.scores) == ["accuracy", "macro_f1", "matthews", "f1"]
    assert report.scores["f1"] == pytest.approx(2 / 5) and report.scores["macro_f1"] == pytest.approx(
        (1 / 2 + 2 / 5) / 2
    )
    assert report.table == [
        ["expected \\ answered", "no", "yes", "(none)"],
        ["no", "1", "1", "0"],
        ["yes", "1", "1", "1"],
    ]
    assert report.by_label == [
        ["", "precision", "recall", "f1", "support"],
        ["no", "0.500", "0.500", "0.500", "2"],
        ["yes", "0.500", "0.333", "0.400", "3"],
    ]
    assert report.worst == [4, 2, 1]  # no answer, then the least probable gold labels
    assert report.interval and report.interval[0] <= 0.4 <= report.interval[1]


def test_many_classes():
    """The largest confusions stand in place of a wide table."""
    labels = [f"l{number}" for number in range(11)]
    gold = [Example("", label) for label in [*labels, "l1", "l1", "l2", "l2", "l2"]]
    answers = [*map(answer, labels), answer("l3"), {"error": "no words"}, *[answer("l4")] * 3]
    report = evaluate("classify", gold, answers, labels)
    assert report.table == [
        ["expected", "answered", "texts"], ["l2", "l4", "3"], ["l1", "l3", "1"], ["l1", "(none)", "1"]
    ]  # fmt: skip
    assert [row[0] for row in report.by_label or ()] == ["", *labels]


def test_a_class_that_the_model_does_not_know_is_wrong():
    report = evaluate("classify", [Example("", "a"), Example("", "new")], [answer("a"), answer("a")], ["a", "b"])
    assert report.value == 0.5 and report.table == [
        ["expected \\ answered", "a", "b", "new"],
        ["a", "1", "0", "0"],
        ["b", "0", "0", "0"],
        ["new", "1", "0", "0"],
    ]
    assert report.scores["macro_f1"] == pytest.approx((2 / 3 + 0) / 2) and report.scores["f1"] == 0  # of "b"


def test_multilabel():
    gold = [Example("", ("a", "b")), Example("", ()), Example("", ("a",)), Example("", ("b",))]
    answers = [{"labels": ["a", "b"]}, {"labels": []}, {"labels": ["b", "c"]}, {"error": "no words"}]
    report = evaluate("multilabel", gold, answers, ["a", "b", "c"])
    assert (report.metric, report.value) == ("micro_f1", pytest.approx(2 * 2 / (4 + 4)))
    assert report.scores["exact_match"] == 0.5 and report.scores["macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert report.worst == [2, 3]
    assert report.table and report.table[2] == ["b", "0.500", "0.500", "0.500", "2"]
    assert evaluate("multilabel", [Example("", ())], [{"error": "no words"}], ["a"]).scores["exact_match"] == 0


def test_regress():
    gold = [Example(text, label) for text, label in zip("abc", (1.0, 2.0, 4.0), strict=True)]
    report = evaluate("regress", gold, [{"value": 1.0}, {"value": 2.5}, {"value": 3.0}])
    assert report.metric == "pearson" and report.value == pytest.approx(np.corrcoef([1, 2, 4], [1, 2.5, 3])[0, 1])
    assert report.scores["spearman"] == 1 and report.scores["mean_squared_error"] == pytest.approx(1.25 / 3)
    assert report.worst == [2, 1]
    with pytest.raises(ValueError, match=r"a\.tsv:7: no words in this text, so no number"):
        evaluate("regress", [Example("a", 1.0, source="a.tsv:7")], [{"error": "no words in this text"}])


def test_tag():
    gold = [("B-x", "I-x", "O", "B-y"), ("B-x", "O"), ("O",)]
    answers = [words("B-x", "I-x", "O", "I-y"), words("B-y", None), {"error": "no words"}]
    report = evaluate("tag", [Tagged(("w",) * len(tags), tags) for tags in gold], answers)
    assert (report.metric, report.value) == ("span_f1", pytest.approx(2 / 3))
    assert report.scores == pytest.approx(
        {
            "span_f1": 2 / 3,
            "precision": 2 / 3,
            "recall": 2 / 3,
            "token_accuracy": 3 / 7,
        }  # a word without a label is wrong
    )
    assert report.table == [
        ["", "precision", "recall", "f1", "support"],
        ["x", "1.000", "0.500", "0.667", "2"],
        ["y", "0.500", "1.000", "0.667", "1"],
    ]
    assert report.worst == [1]


def test_tags_that_mark_no_spans():
    gold = [Tagged(("a", "b"), ("NN", "VB")), Tagged(("c",), ("VB",))]
    report = evaluate("tag", gold, [words("NN", "NN"), words(None)])
    assert (report.metric, report.value, report.worst) == ("accuracy", pytest.approx(1 / 3), [0, 1])
    assert report.table and report.table[1] == ["NN", "0.500", "1.000", "0.667", "1"]
    assert [row[0] for row in report.table[1:]] == ["NN", "VB"]  # and no "O" for the word that was cut off
    outside = [Tagged(("a",), ("O",))]
    assert evaluate("tag", outside, [words("O")]).metric == "accuracy"
    assert evaluate("tag", outside, [words("O")], ["O", "B-x"]).metric == "span_f1"


def test_answer():
    gold = [
        Question("", "", (("the Rome", 0), ("Roma", 9)), "1"),
        Question("", "", (), "2"),
        Question("", "", (("big Rome", 0),), "3"),
        Question("", "", (), "4"),
    ]
    answers = [{"answer": "Roma"}, {"answer": "Rome"}, {"answer": "Rome"}, {"error": "no words"}]
    report = evaluate("answer", gold, answers)
    assert (report.metric, report.value) == ("f1", pytest.approx((1 + 0 + 2 / 3 + 0) / 4))
    assert report.scores["exact_match"] == 0.25 and report.worst == [1, 3, 2]
    assert report.scores["has_answer_f1"] == pytest.approx(5 / 6) and report.scores["no_answer_f1"] == 0
    assert set(evaluate("answer", gold[:1], answers[:1]).scores) == {"f1", "exact_match"}
    assert evaluate("answer", gold[1:2], [{"answer": ""}]).value == 1


@pytest.mark.parametrize(
    ("task", "gold", "answers", "message"),
    [
        ("sort", [Example("a", "x")], [answer("x")], "task 'sort': one of classify, "),
        ("classify", [], [], "0 examples with 0 answers"),
        ("classify", [Example("a", "x")], [], "1 examples with 0 answers"),
        ("classify", [Example("a", "x"), Example("a")], [answer("x")] * 2, "example 2: no label to compare"),
        ("tag", [Tagged(("a",), None, "a.conll:3")], [words("O")], "a.conll:3: no tags to compare"),
        ("tag", [Tagged(("a", "b"), ("O", "O"), "a.conll:3")], [words("O")], "a.conll:3: 2 words, 1 in the answer"),
        ("answer", [Question("", "", None, source="a.json:1")], [{"answer": ""}], "a.json:1: no answers to compare"),
    ],
)
def test_examples_that_cannot_be_evaluated(task, gold, answers, message):
    with pytest.raises(ValueError, match=message):
        evaluate(task, gold, answers)


def test_only_the_worst_are_named():
    report = evaluate(
        "classify", [Example("", "a")] * 30, [answer("b", 0.5 + i / 100) for i in range(30)], interval=False
    )
    assert report.worst == [*range(10)] and report.interval is None  # none gives "a" any probability


def test_evaluation_of_ten_thousand_examples_is_fast(rng):
    count = 10_000
    tags = [tuple(rng.choice(["O", "O", "B-x", "I-x", "B-y"], size=12).tolist()) for _ in range(count)]
    begin = time.process_time()
    report = evaluate("tag", [Tagged(("w",) * 12, tag) for tag in tags], [words(*tags[i // 2]) for i in range(count)])
    evaluate("regress", [Example("", float(i)) for i in range(count)], [{"value": i % 100} for i in range(count)])
    assert time.process_time() - begin < 20  # 2 to 3 seconds on an idle core
    assert report.interval and report.interval[1] - report.interval[0] < 0.02


@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_of_no_answer_is_the_best_of_all(seed):
    draw = np.random.default_rng(seed)
    asked, answers = [], []
    for _ in range(12):
        truths = [(), (("a", 0),), (("a b", 0),)][draw.integers(3)]
        asked.append(Question("", "a b c", truths))
        best = {"answer": str(draw.choice(["a", "a b", "c"])), "score": float(draw.integers(-3, 3))}
        answers.append({"null_score": float(draw.integers(-3, 3)), "n_best": [best] if draw.random() < 0.9 else []})

    def f1(threshold):
        given = []
        for answer in answers:
            best = answer["n_best"][:1]
            none = not best or answer["null_score"] - best[0]["score"] > threshold
            given.append({"answer": "" if none else best[0]["answer"]})
        return evaluate("answer", asked, given, interval=False).value

    result = null_threshold(asked, answers)
    assert f1(result) == pytest.approx(max(map(f1, [*np.arange(-8.0, 9.0) / 2, -100, 100])))
