"""Classification: one label for a text or a pair of texts."""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from keras_ctxrep import options
from keras_ctxrep.checks import Range, check_value
from keras_ctxrep.options import option, optional
from keras_ctxrep.tasks.abilities import (
    ChoosesPositive,
    Distillable,
    ExampleApi,
    GraphFeatures,
    Outputs,
    Query,
    ReadsWindows,
)
from keras_ctxrep.tasks.evaluation import Metrics, confidence, f1_table
from keras_ctxrep.tasks.reading import Reading, Record
from keras_ctxrep.tasks.task import Task
from keras_ctxrep.text import scores
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.decode import sigmoid, softmax
from keras_ctxrep.text.features import Reads, Row
from keras_ctxrep.text.files import checked_text

__all__ = ["Classify", "ClassifyOptions", "Example", "LossOptions", "Options", "TextReading", "TextTask"]

WINDOWS = ("mean", "max")  # how the scores of a text's windows are pooled
CONFUSION, LARGEST = 10, 20  # labels of a confusion table; with more of them the confusions that are listed
BALANCED = "balanced"  # class weights from the frequencies of the labels
COLUMNS = {  # of texts and pairs
    "text": ("text", "sentence", "sentence1", "premise", "question1"),
    "pair": ("pair", "sentence2", "hypothesis", "question2"),
}


@dataclass(frozen=True)
class Example:
    """A text or a pair of texts, and where it was read: "FILE:LINE".

    Attributes:
        text: the text, or the first one.
        label: a class (classify), a number (regress), some classes or none (multilabel); None if it is unknown.
        pair: the second text.
        types: those of its classes in Python objects, where they need not be text.
    """

    text: str
    label: str | float | tuple[str, ...] | None = None
    pair: str | None = None
    source: str = field(default="", compare=False)
    types: frozenset[type] = field(default=frozenset(), compare=False, repr=False)


def class_name(value: Any) -> str | None:
    """The name of a class from what a column or key holds, without spaces around it; 1.0 is one, 0.5 is none.

    >>> class_name(3), class_name(1.0), class_name("")
    ('3', '1.0', None)
    """
    if isinstance(value, dict | list) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"label {value!r}: a class label is a string or a whole number")
    if value is None:
        return None
    text = checked_text(str(value))
    name = text.strip()
    if name and name != text:
        warnings.warn(f"label {text!r}: the spaces around it are left out", stacklevel=2)
    return name or None


@dataclass(frozen=True)
class TextReading(Reading):
    """Reads texts or pairs of texts with a label.

    Attributes:
        label: from what a column or key holds to a label, None if it is empty.
    """

    label: Callable[[Any], Any] = class_name

    def examples(self, record: Record) -> Iterator[Example]:
        pair = record.value("pair")
        if pair is not None and not isinstance(pair, str):
            raise ValueError(f"the pair is {pair!r}; it must be a text")
        text, label = record.text("text"), self.label(record.value("label"))
        pair = None if pair is None else checked_text(pair)
        yield Example(text, label, pair, record.source, record.label_types())


class TextTask(Task, Distillable, ExampleApi, ReadsWindows):
    """Base of the tasks that label a text or a pair of texts.

    A text may be read in overlapping windows, each half of the last one and half new, so that nothing of it is cut
    off: `windowed`. What is pooled over the windows are the scores, not logits or vectors: probabilities, of which one
    confident window cannot outvote many others in a mean, or the numbers of a regression. The mean counts every window
    the same; the maximum is that of each label, and of one label per text it is divided by its sum over the labels.

    Attributes:
        prediction: the part of an answer that is compared with an example's label.
        scored: the output of a SavedModel that `answer` is given.
    """

    reads = Reads(pair=None)
    prediction = "label"
    scored = "probabilities"

    def check(self, bundle: Bundle) -> None:
        if "windows" not in bundle.settings:
            return
        how = bundle.settings["windows"]
        if how not in WINDOWS or "stride" not in bundle.settings:
            raise ValueError(f"windows={how!r}: choose {' or '.join(WINDOWS)}, with a stride")
        if bundle.pairs or bundle.reads.marks:
            what = "pairs of texts" if bundle.pairs else "marked spans"
            raise ValueError(f"windows={how!r}: of single texts only, and this model reads {what}; leave it out")

    def windowed(self, bundle: Bundle, how: str) -> Bundle:
        bundle = replace(bundle, settings=bundle.settings | {"windows": how, "stride": max(1, bundle.max_length // 2)})
        self.check(bundle)
        return bundle

    def encode(self, bundle: Bundle, queries: Sequence[Query]) -> list[list[Row]]:
        if "windows" not in bundle.settings:
            return super().encode(bundle, queries)
        return bundle.features.text_windows([query.text for query in queries], bundle.settings["stride"])

    def decode(self, bundle: Bundle, query: Query, rows: Sequence[Row], outputs: Sequence[Outputs]) -> dict:
        activation = {"softmax": softmax, "sigmoid": sigmoid, "linear": np.asarray}[self.activation]
        scores = activation(np.array([output["logits"] for output in outputs], np.float64))  # (windows, C)
        pooled = scores.max(0) if bundle.settings.get("windows") == "max" else scores.mean(0)
        return self.answer(bundle, query, pooled / pooled.sum() if self.activation == "softmax" else pooled)

    @abstractmethod
    def answer(self, bundle: Bundle, query: Query, scores: np.ndarray) -> dict:
        """The answer from the scores of a text, float64 (C,)."""

    def labelled_by(self, example: Any, answer: dict) -> Any:
        return replace(example, label=answer[self.prediction])

    def cells(self, answer: dict) -> dict[str, Any]:
        return {"prediction": answer.get("label"), "score": answer.get("score")}

    def shown(self, example: Any, answer: dict) -> dict[str, Any]:
        text = example.text if example.pair is None else f"{example.text} | {example.pair}"
        predicted = answer.get("error") or answer[self.prediction]
        texts = {} if example.pair is None else {"texts": [example.text, example.pair]}
        return {"input": text, "expected": example.label, "answer": predicted} | texts | confidence(answer)

    def agreement(self, reference: dict, answer: dict) -> list[tuple[bool, float]]:
        difference = max(abs(p - answer["probabilities"][label]) for label, p in reference["probabilities"].items())
        return [(reference[self.prediction] == answer[self.prediction], difference)]

    def in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Any, inputs: dict) -> tuple[dict, Any]:
        import tensorflow as tf

        activation = {"softmax": tf.nn.softmax, "sigmoid": tf.sigmoid, "linear": tf.identity}[self.activation]
        if "windows" not in bundle.settings:
            rows = features(**inputs)
            outputs = ids(rows)
            answers = self.answer_in_graph(bundle, activation(tf.cast(outputs["logits"], tf.float32)))
            return outputs | answers, self.has_words(bundle, rows)
        windows = features.text_windows(inputs["text"], bundle.settings["stride"])
        scores = activation(tf.cast(windows.run(ids)["logits"], tf.float32))
        pool = tf.math.segment_max if bundle.settings["windows"] == "max" else tf.math.segment_mean
        pooled = pool(scores, windows.example)  # (B, C)
        if self.activation == "softmax":
            pooled /= tf.reduce_sum(pooled, -1, keepdims=True)
        return self.answer_in_graph(bundle, pooled), self.has_words(bundle, windows.inputs, windows.example)

    @abstractmethod
    def answer_in_graph(self, bundle: Bundle, scores: Any) -> dict:
        """The answers to a batch of texts, from float32 (B, C)."""

    def example_answers_in_graph(self, bundle: Bundle, answers: dict) -> dict:
        """All labels and their probabilities, each (B, C), of a text without words "" and 0."""
        import tensorflow as tf

        labels = tf.where(answers["error"][:, None] == "", tf.constant(bundle.labels), "")
        return {"classes": labels, "scores": answers["probabilities"]}

    def served(self, bundle: Bundle, query: Query, output: Outputs) -> dict:
        return self.answer(bundle, query, np.atleast_1d(np.asarray(output[self.scored], np.float64)))


def label_smoothing() -> float:
    """The option of tasks whose loss is a softmax cross-entropy."""
    help = "the part of the target's probability that is shared among all labels, 0.1 for example"
    return option(0.0, help, least=0, below=1, metavar="X")


@dataclass(frozen=True)
class LossOptions(options.Options):
    """Options of a classifier's loss."""

    label_smoothing: float = label_smoothing()
    class_weights: Mapping[str, float] | str | None = optional("""LABEL=X ...  weights of labels in the loss, LABEL=X, 1
        for the others; or balanced: inverse to the frequency of each""")

    def __post_init__(self):
        super().__post_init__()
        weights = self.class_weights
        if isinstance(weights, Mapping):  # YAML has numbers, and truth values for yes, no, on and off
            if truth := [label for label in weights if isinstance(label, bool)]:
                raise ValueError(f"class_weights: the label {truth[0]}: write labels such as yes and no in quotes")
            weights = {str(label): weight for label, weight in weights.items()}
            object.__setattr__(self, "class_weights", weights)
        if isinstance(weights, str) and weights != BALANCED:
            raise ValueError(f"class_weights={weights!r}: {BALANCED}, or a weight for each of some labels, LABEL=X")
        for label, weight in weights.items() if isinstance(weights, Mapping) else ():
            check_value(f"class_weights: {label}", weight, float, Range(above=0))


@dataclass(frozen=True)
class ClassifyOptions(LossOptions):
    """Options of classifiers."""

    positive: str | None = optional("""LABEL  the label of which `f1` is reported (default: of two labels the second in
        order)""")


Options = ClassifyOptions  # its former name


class LabelTask(TextTask):
    """Base of the tasks that choose one of several labels."""

    example_api = "classify"
    outputs: ClassVar[Mapping[str, str]] = {
        "label": "the most probable label",
        "score": "its probability",
        "probabilities": "of every label, in their order in the model card",
    }

    def traits(self, example: Any) -> Iterable[Hashable]:
        return getattr(example, "types", ())

    def labels_of(self, example: Any) -> Sequence | None:
        return None if example.label is None else (example.label,)

    def targets(self, bundle: Bundle, example: Any, rows: Sequence[Row]) -> list:
        return [bundle.label_numbers.get(example.label, -1)]  # -1: not in the training data

    def batch(self, bundle: Bundle, targets: list, inputs: Mapping[str, np.ndarray]) -> tuple[dict, ...]:
        labels = np.array(targets, np.int32)
        if labels.min(initial=0) >= 0:
            return ({"logits": labels},)
        return {"logits": np.maximum(labels, 0)}, {"logits": (labels >= 0).astype(np.float32)}

    def loss(self, options: Any, counts: Mapping[str, int], traits: Collection[Hashable] = (), rows: int = 2) -> Any:
        weights = options.class_weights
        if weights == BALANCED:  # as scikit-learn has it: their mean over the training data is 1
            weights = {label: sum(counts.values()) / (len(counts) * count) for label, count in counts.items() if count}
        if unknown := sorted(set(weights or ()) - set(counts)):
            raise ValueError(f"class_weights: {unknown[0]!r} is no label of the data, which has {', '.join(counts)}")
        positive = getattr(options, "positive", None)
        if positive is not None and positive not in counts:
            raise ValueError(f"positive={positive!r}: no label of the data, which has {', '.join(counts)}")
        by_class = [weights.get(label, 1.0) for label in counts] if weights else None
        return cross_entropy(options.label_smoothing, by_class)

    def answer(self, bundle: Bundle, query: Query, scores: np.ndarray) -> dict:
        best = int(scores.argmax())
        probabilities = dict(zip(bundle.labels, map(float, scores), strict=True))
        return {"label": bundle.labels[best], "score": float(scores[best]), "probabilities": probabilities}

    def typed(self, answer: dict, values: Mapping[str, Any]) -> dict:
        probabilities = {values[label]: probability for label, probability in answer["probabilities"].items()}
        return answer | {"label": values[answer["label"]], "probabilities": probabilities}

    def empty(self, bundle: Bundle) -> dict[str, Any]:
        return {"label": None, "score": None, "probabilities": {}}

    def answer_in_graph(self, bundle: Bundle, scores: Any) -> dict:
        import tensorflow as tf

        best = tf.gather(tf.constant(bundle.labels), tf.argmax(scores, axis=-1))
        return {"label": best, "score": tf.reduce_max(scores, -1), "probabilities": scores}


class Classify(LabelTask, ChoosesPositive):
    """One of several classes."""

    name = "classify"
    help = "one label for a text or a pair: text, label[, pair]"
    page = ("Which label does the text have?", "It chooses one of")
    mediapipe = "TextClassifier"
    reading = TextReading(COLUMNS | {"label": ("label",)})
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1", "matthews", "f1")
    Options: type[options.Options] = ClassifyOptions
    positive: str | None = None  # of a model: the label of which `f1` is reported

    def of_model(self, bundle: Bundle) -> Self:
        task = super().of_model(bundle)
        task.positive = bundle.settings.get("positive")
        return task

    def with_positive(self, bundle: Bundle, label: str) -> Bundle:
        if label not in bundle.labels:
            raise ValueError(f"positive={label!r}: no label of this model, which has {', '.join(bundle.labels)}")
        return replace(bundle, settings=bundle.settings | {"positive": label})

    def settings(self, options: Any, traits: set[Hashable]) -> dict:
        positive = {} if options.positive is None else {"positive": options.positive}
        return positive | super().settings(options, traits)

    def labels(self, used: Mapping[str, int], source: str, options: Any) -> tuple[str, ...]:
        return enough_labels(used, source, "classifier")

    def head(self, encoder: Any, bundle: Bundle) -> Any:
        from keras_ctxrep.models import heads

        if len(bundle.labels) < 2:
            raise ValueError(f"classes={len(bundle.labels)}: at least 2")
        return heads.classify(encoder, len(bundle.labels), **bundle.head)

    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        gold, predicted = [example.label for example in expected], [answer.get("label") for answer in answers]
        own = labels or sorted({*gold})
        labels = [*own, *sorted({*gold} - {*own})]
        right = np.array([a == b for a, b in zip(gold, predicted, strict=True)])
        doubt = [1 - answer.get("probabilities", {}).get(a, 0.0) for a, answer in zip(gold, answers, strict=True)]
        values = {
            "accuracy": float(right.mean()),
            "macro_f1": scores.f1(gold, predicted, [label for label in labels if label in {*gold, *predicted}]),
            "matthews": scores.matthews(gold, predicted),
        }
        positive = own[1] if self.positive is None and len(own) == 2 else self.positive
        if positive is not None:
            values["f1"] = scores.f1(gold, predicted, [positive])
        columns = [*labels, *([None] if None in predicted else [])]
        counts = scores.confusion(gold, predicted, columns)[: len(labels)].tolist()
        shown = [label or "(none)" for label in columns]
        if len(labels) <= CONFUSION:
            table = [["expected \\ answered", *shown]]
            table += [[label, *map(str, row)] for label, row in zip(labels, counts, strict=True)]
        else:
            wrong = [(counts[a][b], labels[a], shown[b]) for a, b in np.argwhere(counts) if a != b]
            wrong = sorted(wrong, key=lambda entry: -entry[0])[:LARGEST]
            table = [["expected", "answered", "texts"], *([gold, label, str(n)] for n, gold, label in wrong)]
        expected_labels, answered = ([[label] for label in side] for side in (gold, predicted))
        by_label = f1_table(labels, scores.counts(expected_labels, answered, labels)[1])
        of = {} if positive is None else {"f1": positive}
        return Metrics(values, ~right * (1 + np.array(doubt)), lambda drawn: right[drawn].mean(), table, of, by_label)


def cross_entropy(label_smoothing: float, class_weights: Sequence[float] | None = None):
    """A `losses.CrossEntropy`, or None if Keras' own does the same.

    Args:
        label_smoothing: the part of the target's probability that is shared among all labels.
        class_weights: of each label, in the order of the logits; None: all 1.
    """
    if not label_smoothing and class_weights is None:
        return None
    from keras_ctxrep.losses import CrossEntropy

    return CrossEntropy(label_smoothing, class_weights)


def enough_labels(used: Collection[str], source: str, model: str) -> tuple[str, ...]:
    """Sorted labels, "O" first.

    Args:
        used: the labels of the training data.
        source: its name, for the message.
        model: what is trained, for the message.

    Raises:
        ValueError: there are fewer than two.
    """
    if len(used) < 2:
        only = f"only the label {next(iter(used))!r}" if used else "no labels"
        raise ValueError(f"{source}: {only}; a {model} needs at least two")
    return tuple(sorted(used, key=lambda label: (label != "O", label)))
