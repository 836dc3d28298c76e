"""Classification with any number of labels for a text or a pair of texts."""

from collections.abc import Mapping
from typing import ClassVar

from keras_ctxrep.tasks.classify import TextTask, class_name, classes_and_scores, probability_difference
from keras_ctxrep.tasks.task import Figures, f1_of
from keras_ctxrep.text import scores
from keras_ctxrep.text.decode import sigmoid

THRESHOLD = 0.5  # smallest probability of a predicted label


class Multilabel(TextTask):
    """Any number of labels, each by itself."""

    name = "multilabel"
    agrees = "all labels of a text are the same"
    metrics: ClassVar[tuple[str, ...]] = ("micro_f1", "macro_f1", "exact_match")
    help = "any number of labels: text, label (a,b,c)[, pair]"
    example_api = "classify"
    activation = "sigmoid"
    outputs: ClassVar[Mapping[str, str]] = {
        "labels": "each label where its probability is 0.5 or more, else an empty string",
        "probabilities": "of every label, in their order in the model card",
    }
    columns: ClassVar[Mapping[str, tuple[str, ...]]] = {**TextTask.columns, "label": ("labels", "label")}

    def label(self, value):
        if value is None:
            return None
        if isinstance(value, str):  # of a tab-separated file
            value = [part.strip() for part in value.split(",")] if value.strip() else []
        if not isinstance(value, list):
            raise ValueError(f"label {value!r}: several labels are a list")
        names = [class_name(name) for name in value]
        if None in names:
            raise ValueError(f"labels {value!r}: one of them is empty")
        return tuple(dict.fromkeys(names))

    def labels_of(self, example):
        return example.label

    def labels(self, used, source):
        if not used:
            raise ValueError(f"{source}: no labels")
        return tuple(sorted(used, key=lambda label: (label != "O", label)))

    def targets(self, bundle, example, rows):
        return [[float(label in example.label) for label in bundle.labels]]

    def head(self, encoder, bundle):
        from keras_ctxrep.models import heads

        return heads.classify(encoder, len(bundle.labels), **bundle.head)

    def loss(self, options, counts):
        import keras

        return keras.losses.BinaryCrossentropy(from_logits=True)

    def gold_of(self, answer):
        return tuple(answer["labels"])

    def scores(self, logits):
        return sigmoid(logits)

    def answer(self, bundle, query, scores):
        named = dict(zip(bundle.labels, map(float, scores), strict=True))
        return {"labels": [label for label, p in named.items() if p >= THRESHOLD], "probabilities": named}

    def cells(self, answer):
        return {"prediction": ",".join(answer.get("labels", ()))}

    def figures(self, expected, answers, labels) -> Figures:
        gold, predicted = [example.label for example in expected], [answer.get("labels", ()) for answer in answers]
        labels = sorted({*labels, *(label for example in gold for label in example)})
        by_example, by_label = scores.counts(gold, predicted, labels)
        seen = by_label[by_label[:, 1:].any(1)]
        mistakes = by_example @ [-2, 1, 1] + ["error" in answer for answer in answers]
        figures = {
            "micro_f1": f1_of(by_example.sum(0)),
            "macro_f1": float(scores.precision_recall_f1(seen)[:, 2].mean()) if len(seen) else 0.0,
            "exact_match": float((mistakes == 0).mean()),
        }
        return Figures(figures, mistakes, lambda drawn: f1_of(by_example[drawn].sum(0)))

    def summary(self, answer):
        return answer.get("error") or answer["labels"]

    def agreement(self, reference, answer):
        return [(reference["labels"] == answer["labels"], probability_difference(reference, answer))]

    def scores_in_graph(self, logits):
        import tensorflow as tf

        return tf.sigmoid(logits)

    def answer_in_graph(self, bundle, scores):
        import tensorflow as tf

        return {"labels": tf.where(scores >= THRESHOLD, tf.constant(bundle.labels), ""), "probabilities": scores}

    def example_answers_in_graph(self, bundle, answers):
        return classes_and_scores(bundle, answers["probabilities"])
