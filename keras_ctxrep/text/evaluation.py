"""A task's metrics over a model's answers: the figure that stands for it, the others, and where it goes wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any

import numpy as np

from keras_ctxrep.text import scores
from keras_ctxrep.text.examples import GOLD, Question
from keras_ctxrep.text.tags import is_spans, spans

WORST = 10  # examples in a report


@dataclass(frozen=True)
class Report:
    """How good a model's answers are.

    Attributes:
        metric: name of the figure that stands for the task.
        value: that figure; shares are from 0 to 1.
        interval: its 95% interval over examples.
        scores: all figures, this one included, by name.
        table: rows of text, the first a header: what was taken for what (classify), or each type's figures (tag).
        worst: indices of up to 10 examples, the worst first.
    """

    metric: str
    value: float
    interval: tuple[float, float] | None
    scores: dict[str, float]
    table: list[list[str]] | None
    worst: list[int]


@dataclass
class _Found:
    """What a task makes of its examples: figures, how bad each example is, and its metric over some of them."""

    scores: dict[str, float]
    badness: np.ndarray
    statistic: Callable[[np.ndarray], float]
    table: list[list[str]] | None = None


def evaluate(
    task: str, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str] = (), interval: bool = True
) -> Report:
    """A task's report.

    The metric, and the figures beside it: "classify" accuracy, macro_f1, matthews, and f1 of the second of two labels;
    "multilabel" micro_f1, macro_f1, exact_match; "regress" pearson, spearman, mean_squared_error; "tag" span_f1,
    precision, recall, token_accuracy, or, if the tags mark no spans, accuracy, macro_f1; "answer" f1, exact_match, and
    has_answer_f1, no_answer_f1 if there are questions of both kinds.

    Args:
        task: as `text.examples.read` has it.
        expected: examples of that task, with their labels.
        answers: of a `Predictor`, one for each; {"error"} is wrong.
        labels: of the model; else those that are expected.
        interval: whether to compute it.

    Raises:
        ValueError: nothing to compare, an example has no label, a sentence has other words than its answer, or a
            number could not be computed; the message names the example's place.

    >>> from keras_ctxrep.text.examples import Example
    >>> report = evaluate("regress", [Example("a", 1.0), Example("b", 3.0)], [{"value": 2.0}, {"value": 3.0}])
    >>> report.metric, report.value, report.scores["mean_squared_error"], report.worst
    ('pearson', 1.0, 0.5, [0])
    """
    if task not in _TASKS:
        raise ValueError(f"task {task!r}; one of {', '.join(_TASKS)}")
    if len(expected) != len(answers) or not expected:
        raise ValueError(f"cannot compare {len(expected)} examples with {len(answers)} answers")
    gold_of = GOLD[task]
    for number, one in enumerate(expected, 1):
        if getattr(one, gold_of) is None:
            raise ValueError(f"{one.place or f'example {number}'}: no {gold_of} to compare with")
    found = _TASKS[task](expected, answers, labels)
    metric, value = next(iter(found.scores.items()))
    worst = np.argsort(-found.badness, kind="stable")[:WORST]
    return Report(
        metric,
        value,
        scores.bootstrap(found.statistic, len(expected)) if interval else None,
        found.scores,
        found.table,
        [int(index) for index in worst if found.badness[index] > 0],
    )


def _classify(expected, answers, labels) -> _Found:
    gold, said = [one.label for one in expected], [answer.get("label") for answer in answers]
    labels = [*labels, *sorted({*gold} - {*labels})]
    right = np.array([one == two for one, two in zip(gold, said, strict=True)])
    doubt = [1 - answer.get("probabilities", {}).get(one, 0.0) for one, answer in zip(gold, answers, strict=True)]
    figures = {
        "accuracy": float(right.mean()),
        "macro_f1": scores.f1(gold, said, [label for label in labels if label in {*gold, *said}]),
        "matthews": scores.matthews(gold, said),
    }
    if len(labels) == 2:
        figures["f1"] = scores.f1(gold, said, labels[1:])
    columns = [*labels, *([None] if None in said else [])]
    counted = scores.confusion(gold, said, columns)[: len(labels)].tolist()
    table = [["", *(label or "(none)" for label in columns)]]
    table += [[label, *map(str, row)] for label, row in zip(labels, counted, strict=True)]
    return _Found(figures, ~right * (1 + np.array(doubt)), lambda drawn: right[drawn].mean(), table)


def _multilabel(expected, answers, labels) -> _Found:
    gold, said = [one.label for one in expected], [answer.get("labels", ()) for answer in answers]
    labels = sorted({*labels, *(label for one in gold for label in one)})
    by_example, by_label = scores.counts(gold, said, labels)
    seen = by_label[by_label[:, 1:].any(1)]
    mistakes = by_example @ [-2, 1, 1]
    figures = {
        "micro_f1": _f1(by_example.sum(0)),
        "macro_f1": float(scores.precision_recall_f1(seen)[:, 2].mean()) if len(seen) else 0.0,
        "exact_match": float((mistakes == 0).mean()),
    }
    return _Found(figures, mistakes, lambda drawn: _f1(by_example[drawn].sum(0)))


def _regress(expected, answers, labels) -> _Found:
    for one, answer in zip(expected, answers, strict=True):
        if "error" in answer:
            raise ValueError(f"{one.place or repr(one.text[:60])}: {answer['error']}, so no number to compare")
    gold, said = np.array([one.label for one in expected]), np.array([answer["value"] for answer in answers])
    names = ("pearson", "spearman", "mean_squared_error")
    figures = {name: getattr(scores, name)(gold, said) for name in names}
    return _Found(figures, np.abs(gold - said), lambda drawn: scores.pearson(gold[drawn], said[drawn]))


def _tag(expected, answers, labels) -> _Found:
    gold, said = [one.tags for one in expected], []
    for one, answer in zip(expected, answers, strict=True):
        found = [word["label"] or "O" for word in answer["words"]] if "words" in answer else [""] * len(one.tags)
        if len(found) != len(one.tags):
            place = one.place or " ".join(one.words)[:60]
            raise ValueError(
                f"{place}: {len(one.tags)} words, {len(found)} in the answer; predict the words as they are"
            )
        said.append(found)
    right = np.array([sum(map(eq, *pair)) for pair in zip(gold, said, strict=True)])
    size = np.array([len(sentence) for sentence in gold])
    accuracy = float(right.sum() / size.sum())
    tags = sorted({tag for side in (gold, said) for sentence in side for tag in sentence} - {""})
    if not is_spans(labels or tags):
        one, two = ([[*enumerate(sentence)] for sentence in side] for side in (gold, said))
        _, by_tag = scores.counts(one, two, tags, lambda item: item[1])
        figures = {"accuracy": accuracy, "macro_f1": float(scores.precision_recall_f1(by_tag)[:, 2].mean())}
        table = _table(tags, by_tag)
        return _Found(figures, size - right, lambda drawn: right[drawn].sum() / size[drawn].sum(), table)
    one, two = ([spans(sentence) for sentence in side] for side in (gold, said))
    kinds = sorted({span[0] for side in (one, two) for sentence in side for span in sentence})
    by_sentence, by_kind = scores.counts(one, two, kinds, lambda span: span[0])
    shares = scores.precision_recall_f1(by_sentence.sum(0)).tolist()
    figures = {"span_f1": shares[2], "precision": shares[0], "recall": shares[1], "token_accuracy": accuracy}
    table = _table(kinds, by_kind)
    return _Found(figures, by_sentence @ [-2, 1, 1], lambda drawn: _f1(by_sentence[drawn].sum(0)), table)


def _answer(expected, answers, labels) -> _Found:
    truths = [[text for text, _ in one.answers] for one in expected]
    said = [answer.get("answer") for answer in answers]
    f1, exact = (
        np.array([0.0 if one is None else of(one, two) for one, two in zip(said, truths, strict=True)])
        for of in (scores.answer_f1, scores.exact_match)
    )
    figures = {"f1": float(f1.mean()), "exact_match": float(exact.mean())}
    has = np.array([bool(one) for one in truths])
    if has.any() and not has.all():
        figures |= {"has_answer_f1": float(f1[has].mean()), "no_answer_f1": float(f1[~has].mean())}
    return _Found(figures, 1 - f1, lambda drawn: f1[drawn].mean())


def null_threshold(expected: Sequence[Question], answers: Sequence[dict]) -> float:
    """By how much no answer must be better than the best one to be given, for the best F1 on some questions.

    Devlin et al. 2018, section 4.3. It lies halfway between the questions it tells apart; of equally good ones it is
    the nearest to 0.

    Args:
        expected: questions, with their answers.
        answers: of a `Predictor`, one for each, whatever its own threshold.

    >>> asked = [Question("", "rain or snow", (("rain", 0),)), Question("", "rain or snow", ())]
    >>> said = [{"null_score": null, "n_best": [{"answer": "rain", "score": 1.0}]} for null in (3.0, 5.0)]
    >>> null_threshold(asked, said)
    3.0
    """
    rows = []
    for one, answer in zip(expected, answers, strict=True):
        truths = [text for text, _ in one.answers or ()]
        if answer["n_best"]:  # else there is nothing to choose
            best = answer["n_best"][0]
            gain = scores.answer_f1(best["answer"], truths) - scores.answer_f1("", truths)
            rows.append((answer["null_score"] - best["score"], gain))
    if not rows:
        return 0.0
    margins, gains = np.array(sorted(rows)).T  # answered are those up to the threshold
    edges = np.concatenate([[margins[0] - 2], margins, [margins[-1] + 2]])
    thresholds = (edges[:-1] + edges[1:]) / 2
    totals = np.concatenate([[0], np.cumsum(gains)])
    apart = edges[:-1] < edges[1:]
    best = apart & (totals >= totals[apart].max() - 1e-9)
    return float(min(thresholds[best], key=abs))


def _f1(counts: np.ndarray) -> float:
    return float(scores.precision_recall_f1(counts)[2])


def _table(kinds: Sequence[str], by_kind: np.ndarray) -> list[list[str]]:
    rows = zip(kinds, scores.precision_recall_f1(by_kind), by_kind[:, 2], strict=True)
    return [["", "precision", "recall", "f1", "support"]] + [
        [kind, *(f"{share:.3f}" for share in shares), str(support)] for kind, shares, support in rows
    ]


_TASKS: dict[str, Callable[..., _Found]] = {
    "classify": _classify,
    "multilabel": _multilabel,
    "regress": _regress,
    "tag": _tag,
    "answer": _answer,
}
