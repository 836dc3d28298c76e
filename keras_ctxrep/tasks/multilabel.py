"""Classification with any number of labels for a text or a pair of texts."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep.tasks.abilities import Query
from keras_ctxrep.tasks.classify import COLUMNS, TextReading, TextTask, class_name
from keras_ctxrep.tasks.evaluation import Metrics, f1_of, f1_table
from keras_ctxrep.text import scores
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row

__all__ = ["Multilabel", "class_names"]

THRESHOLD = 0.5  # smallest probability of a predicted label


def class_names(value: Any) -> tuple[str, ...] | None:
    """The names of classes from a list, or from a string with commas between them; None if there is no value.

    >>> class_names("b, a"), class_names([3]), class_names("")
    (('b', 'a'), ('3',), ())
    """
    if value is None:
        return None
    if isinstance(value, str):  # of a tab-separated file
        value = [part.strip() for part in value.split(",")] if value.strip() else []
    if not isinstance(value, list):
        raise ValueError(f"label {value!r}: several labels are a list")
    names = [class_name(name) for name in value]
    if None in names:
        raise ValueError(f"labels {value!r}: one of them is empty")
    return tuple(name for name in dict.fromkeys(names) if name is not None)


class Multilabel(TextTask):
    """Any number of labels, each by itself."""

    name = "multilabel"
    help = "any number of labels: text, label (a,b,c)[, pair]"
    page = ("Which labels does the text have?", "It chooses any of")
    mediapipe = "TextClassifier"
    reading = TextReading(COLUMNS | {"label": ("labels", "label")}, label=class_names)
    agrees = "all labels of a text are the same"
    metrics: ClassVar[tuple[str, ...]] = ("micro_f1", "macro_f1", "exact_match")
    activation = "sigmoid"
    prediction = "labels"
    example_api = "classify"
    outputs: ClassVar[Mapping[str, str]] = {
        "labels": f"each label where its probability is {THRESHOLD} or more, else an empty string",
        "probabilities": "of every label, in their order in the model card",
    }

    def traits(self, example: Any) -> Iterable[Hashable]:
        return example.types

    def labels_of(self, example: Any) -> Sequence | None:
        return example.label

    def labels(self, used: Mapping[str, int], source: str, options: Any) -> tuple[str, ...]:
        if not used:
            raise ValueError(f"{source}: no labels")
        return tuple(sorted(used, key=lambda label: (label != "O", label)))

    def targets(self, bundle: Bundle, example: Any, rows: Sequence[Row]) -> list:
        return [[float(label in example.label) for label in bundle.labels]]

    def head(self, encoder: Any, bundle: Bundle) -> Any:
        from keras_ctxrep.models import heads

        return heads.classify(encoder, len(bundle.labels), **bundle.head)

    def loss(self, options: Any, counts: Mapping[str, int], traits: Collection[Hashable] = (), rows: int = 2) -> Any:
        import keras

        return keras.losses.BinaryCrossentropy(from_logits=True)

    def labelled_by(self, example: Any, answer: dict) -> Any:
        return replace(example, label=tuple(answer["labels"]))

    def answer(self, bundle: Bundle, query: Query, scores: np.ndarray) -> dict:
        probabilities = dict(zip(bundle.labels, map(float, scores), strict=True))
        labels = [label for label, probability in probabilities.items() if probability >= THRESHOLD]
        return {"labels": labels, "probabilities": probabilities}

    def typed(self, answer: dict, values: Mapping[str, Any]) -> dict:
        probabilities = {values[label]: probability for label, probability in answer["probabilities"].items()}
        return answer | {"labels": [values[label] for label in answer["labels"]], "probabilities": probabilities}

    def empty(self, bundle: Bundle) -> dict[str, Any]:
        return {"labels": [], "probabilities": {}}

    def answer_in_graph(self, bundle: Bundle, scores: Any) -> dict:
        import tensorflow as tf

        return {"labels": tf.where(scores >= THRESHOLD, tf.constant(bundle.labels), ""), "probabilities": scores}

    def cells(self, answer: dict) -> dict[str, Any]:
        return {"prediction": ",".join(answer.get("labels", ()))}

    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        gold, predicted = [example.label for example in expected], [answer.get("labels", ()) for answer in answers]
        labels = sorted({*labels, *(label for example in gold for label in example)})
        by_example, by_label = scores.counts(gold, predicted, labels)
        used = by_label[:, 1:].any(1)  # without labels that are neither predicted nor expected
        table, by_label = f1_table(labels, by_label), by_label[used]
        mistakes = by_example @ [-2, 1, 1] + ["error" in answer for answer in answers]
        values = {
            "micro_f1": f1_of(by_example.sum(0)),
            "macro_f1": float(scores.precision_recall_f1(by_label)[:, 2].mean()) if len(by_label) else 0.0,
            "exact_match": float((mistakes == 0).mean()),
        }
        return Metrics(values, mistakes, lambda drawn: f1_of(by_example[drawn].sum(0)), table)
