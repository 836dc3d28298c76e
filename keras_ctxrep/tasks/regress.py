"""Regression: a number for a text or a pair of texts, as similarity is scored."""

import math
import unicodedata
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from keras_ctxrep.tasks.classify import TextTask
from keras_ctxrep.tasks.task import Figures
from keras_ctxrep.text import scores
from keras_ctxrep.text.tokens import words

TOLERANCE = 0.01  # largest difference of two engines that agree, relative to the number, or to 1 if it is smaller


def _without_accents(text: str) -> str:
    """A text as a model sees it that removes accents, of which alone a text may consist."""
    return "".join(char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")


class Regress(TextTask):
    """A number."""

    name = "regress"
    agrees = f"values within {TOLERANCE:.0%} of the reference's, or within {TOLERANCE} of one below 1"
    metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman", "mean_squared_error")
    smaller: ClassVar[tuple[str, ...]] = ("mean_squared_error",)
    help = "a number for a text or a pair: text, label[, pair]"
    example_api = "regress"
    scored = "value"
    activation = "linear"
    outputs: ClassVar[Mapping[str, str]] = {
        "value": "the predicted value",
    }
    columns: ClassVar[Mapping[str, tuple[str, ...]]] = {**TextTask.columns, "label": ("label", "score")}

    def label(self, value):
        if value is None or value == "":
            return None
        try:
            number = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"label {value!r} is not a finite number")
        return number

    def problem(self, example):
        if not any(words(_without_accents(text)) for text in (example.text, example.pair or "")):
            return "no words in this text, of which a number could be computed"
        return None

    def targets(self, bundle, example, rows):
        return [[example.label]]

    def head(self, encoder, bundle):
        from keras_ctxrep.models import heads

        return heads.regress(encoder, **bundle.head)

    def loss(self, options, counts):
        import keras

        return keras.losses.MeanSquaredError()

    def gold_of(self, answer):
        return answer["value"]

    def scores(self, logits):
        return logits

    def answer(self, bundle, query, scores):
        return {"value": float(scores[0])}

    def cells(self, answer):
        return {"prediction": answer.get("value")}

    def figures(self, expected, answers, labels) -> Figures:
        for example, answer in zip(expected, answers, strict=True):
            if "error" in answer:
                source = example.source or repr(example.text[:60])
                raise ValueError(f"{source}: {answer['error']}, so no number to compare")
        gold = np.array([example.label for example in expected])
        predicted = np.array([answer["value"] for answer in answers])
        names = ("pearson", "spearman", "mean_squared_error")
        figures = {name: getattr(scores, name)(gold, predicted) for name in names}
        return Figures(figures, np.abs(gold - predicted), lambda drawn: scores.pearson(gold[drawn], predicted[drawn]))

    def summary(self, answer):
        return answer.get("error") or answer["value"]

    def agreement(self, reference, answer):
        difference = abs(reference["value"] - answer["value"])
        return [(difference <= TOLERANCE * max(1.0, abs(reference["value"])), difference)]

    def scores_in_graph(self, logits):
        return logits

    def answer_in_graph(self, bundle, scores):
        import tensorflow as tf

        return {"value": tf.squeeze(scores, -1)}

    def example_answers_in_graph(self, bundle, answers):
        return {"outputs": answers["value"]}
