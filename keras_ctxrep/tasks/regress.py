"""Regression: a number for a text or a pair of texts, as similarity is scored."""

import math
import unicodedata
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep.tasks.abilities import Query
from keras_ctxrep.tasks.classify import COLUMNS, TextReading, TextTask
from keras_ctxrep.tasks.evaluation import Metrics
from keras_ctxrep.text import scores
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row
from keras_ctxrep.text.tokens import words

__all__ = ["Regress", "finite_number"]

TOLERANCE = 0.01  # largest difference of two engines that agree, relative to the number, or to 1 if it is smaller


def finite_number(value: Any) -> float | None:
    """The number that a column or key holds, None if it is empty.

    >>> finite_number("4.5"), finite_number("")
    (4.5, None)
    """
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"label {value!r} is not a finite number")
    return number


def number_problem(value: Any) -> str | None:
    """What is wrong with the number of an example, if it has one."""
    try:
        finite_number(value)
    except ValueError as error:
        return str(error)
    return None


def _without_accents(text: str) -> str:
    """A text as a model sees it that removes accents, of which alone a text may consist."""
    return "".join(char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")


class Regress(TextTask):
    """A number."""

    name = "regress"
    help = "a number for a text or a pair: text, label[, pair]"
    page = ("A number for the text", "It predicts a number")
    reading = TextReading(COLUMNS | {"label": ("label", "score")}, label=finite_number)
    agrees = f"values within {TOLERANCE:.0%} of the reference's, or within {TOLERANCE} of one below 1"
    metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman", "mean_squared_error")
    smaller: ClassVar[tuple[str, ...]] = ("mean_squared_error",)
    activation = "linear"
    prediction = scored = "value"
    example_api = "regress"
    outputs: ClassVar[Mapping[str, str]] = {"value": "the predicted value"}

    def problem(self, example: Any) -> str | None:
        if message := number_problem(example.label):
            return message
        if not any(words(_without_accents(text)) for text in (example.text, example.pair or "")):
            return "no words in this text, of which a number could be computed"
        return None

    def targets(self, bundle: Bundle, example: Any, rows: Sequence[Row]) -> list:
        return [[example.label]]

    def head(self, encoder: Any, bundle: Bundle) -> Any:
        from keras_ctxrep.models import heads

        return heads.regress(encoder, **bundle.head)

    def loss(self, options: Any, counts: Mapping[str, int], traits: Collection[Hashable] = (), rows: int = 2) -> Any:
        import keras

        return keras.losses.MeanSquaredError()

    def answer(self, bundle: Bundle, query: Query, scores: np.ndarray) -> dict:
        return {"value": float(scores[0])}

    def empty(self, bundle: Bundle) -> dict[str, Any]:
        return {"value": None}

    def answer_in_graph(self, bundle: Bundle, scores: Any) -> dict:
        import tensorflow as tf

        return {"value": tf.squeeze(scores, -1)}

    def example_answers_in_graph(self, bundle: Bundle, answers: dict) -> dict:
        return {"outputs": answers["value"]}

    def cells(self, answer: dict) -> dict[str, Any]:
        return {"prediction": answer.get("value")}

    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        for example, answer in zip(expected, answers, strict=True):
            if "error" in answer:
                source = example.source or repr(example.text[:60])
                raise ValueError(f"{source}: {answer['error']}, so no number to compare")
        gold = np.array([example.label for example in expected])
        predicted = np.array([answer["value"] for answer in answers])
        values = {name: getattr(scores, name)(gold, predicted) for name in self.metrics}
        return Metrics(values, np.abs(gold - predicted), lambda drawn: scores.pearson(gold[drawn], predicted[drawn]))

    def agreement(self, reference: dict, answer: dict) -> list[tuple[bool, float]]:
        difference = abs(reference["value"] - answer["value"])
        return [(difference <= TOLERANCE * max(1.0, abs(reference["value"])), difference)]
