"""How good the answers of a task are: its metrics, the report on them, and when two engines agree."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep.text import scores

WORST = 10  # examples in a report


@dataclass(frozen=True)
class EvaluationReport:
    """The quality of a model's answers.

    Attributes:
        metric: name of the main metric.
        value: of the main metric; fractions are from 0 to 1.
        interval: its 95% interval over examples.
        scores: all metrics by name, the main one included.
        table: rows of text, the first a header: the metrics of each type (tag) or label (multilabel); the confusion
            table (classify), with more than 10 labels the largest confusions.
        by_label: rows of text, the first a header: precision, recall and F1 of each label (classify).
        worst: indices of up to 10 examples, the worst first.
        of: metric -> the label that it is of, where that is one.
    """

    metric: str
    value: float
    interval: tuple[float, float] | None
    scores: dict[str, float]
    table: list[list[str]] | None
    worst: list[int]
    of: dict[str, str] = field(default_factory=dict)
    by_label: list[list[str]] | None = None


@dataclass
class Metrics:
    """The metrics of a task on some answers.

    Attributes:
        scores: metrics by name, the main one first.
        errors: float (examples,), how bad each answer is; 0 is right.
        statistic: indices of examples -> the main metric of these alone, for its interval.
        table, of, by_label: as in `EvaluationReport`.
    """

    scores: dict[str, float]
    errors: np.ndarray
    statistic: Callable[[np.ndarray], float]
    table: list[list[str]] | None = None
    of: dict[str, str] = field(default_factory=dict)
    by_label: list[list[str]] | None = None


class Evaluation(ABC):
    """The part of a task that measures answers.

    Attributes:
        gold: the attribute of an example that holds the expected answer.
        metrics: the metrics that may choose the best weights, as in `compute_metrics`, which leaves out those that do
            not apply to the labels.
        smaller: those of them of which a smaller value is better.
        agrees: when two engines agree, in a few words.
    """

    gold: str
    metrics: ClassVar[tuple[str, ...]] = ()
    smaller: ClassVar[tuple[str, ...]] = ()
    agrees = "the same label"

    def best(self, metric: str, values: Iterable[float]) -> float:
        """The best of some values of a metric."""
        return min(values) if metric in self.smaller else max(values)

    @abstractmethod
    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        """The task's metrics on labelled examples, with an answer for each; {"error"} is wrong."""

    def evaluate(
        self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str] = (), interval: bool = True
    ) -> EvaluationReport:
        """A report on a model's answers.

        Args:
            expected: examples, with their labels.
            answers: of a `Predictor`, one for each; {"error"} is wrong.
            labels: of the model; else those that are expected. An expected label that is none of them is an error, as
                in seqeval and scikit-learn.
            interval: whether to compute it.

        Raises:
            ValueError: nothing to compare, an example has no label, a sentence has other words than its answer, or a
                number could not be computed; the message names the example's source.
        """
        if len(expected) != len(answers) or not expected:
            raise ValueError(f"cannot compare {len(expected)} examples with {len(answers)} answers")
        for number, example in enumerate(expected, 1):
            if getattr(example, self.gold) is None:
                raise ValueError(f"{example.source or f'example {number}'}: no {self.gold} to compare with")
        metrics = self.compute_metrics(expected, answers, labels)
        metric, value = next(iter(metrics.scores.items()))
        worst = np.argsort(-metrics.errors, kind="stable")[:WORST]
        return EvaluationReport(
            metric,
            value,
            scores.bootstrap(metrics.statistic, len(expected)) if interval else None,
            metrics.scores,
            metrics.table,
            [int(index) for index in worst if metrics.errors[index] > 0],
            metrics.of,
            metrics.by_label,
        )

    @abstractmethod
    def shown(self, example: Any, answer: dict) -> dict[str, Any]:
        """An example and its answer in readable form: {"input", "expected", "answer"}.

        With "texts", of a pair the list of both, and "confidence", the answer's probability if it has one.
        """

    @abstractmethod
    def agreement(self, reference: dict, answer: dict) -> list[tuple[bool, float]]:
        """(same decision, difference of the scores) for each decision in the answers of two engines."""


def confidence(answer: dict) -> dict[str, float]:
    """{"confidence"} of an answer with a probability, else {}."""
    return {"confidence": answer["score"]} if answer.get("probabilities") and "score" in answer else {}


def f1_table(kinds: Sequence[str], counts: np.ndarray) -> list[list[str]]:
    """Precision, recall and F1 of each kind as rows of text; int (C, 3) as in `scores.counts`.

    Args:
        kinds: names of the rows.
        counts: of each kind those that are right, predicted and expected.
    """
    rows = zip(kinds, scores.precision_recall_f1(counts), counts[:, 2], strict=True)
    return [["", "precision", "recall", "f1", "support"]] + [
        [kind, *(f"{value:.3f}" for value in values), str(support)] for kind, values, support in rows
    ]


def f1_of(counts: np.ndarray) -> float:
    """F1 of int (3,) counts."""
    return float(scores.precision_recall_f1(counts)[2])
