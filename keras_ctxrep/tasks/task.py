"""The interface of a task: everything that the rest of the library asks of one, with common defaults.

`Task` is what every task is. `InGraph` is its part in a SavedModel; `Distillable` and `LabelsWords` are further parts,
which a task has if it names them as bases.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from keras_ctxrep import options
from keras_ctxrep.tasks.reading import Reading, Record
from keras_ctxrep.text import files, scores
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Reads, Row, Span
from keras_ctxrep.text.pairs import PAIR

__all__ = [
    "Distillable",
    "EvaluationReport",
    "InGraph",
    "LabelsWords",
    "Metrics",
    "Query",
    "Searches",
    "Task",
    "pair_problem",
    "warn_of_unseen",
]

NO_WORDS = "no words in this text"  # the "error" of a text, or of both texts of a pair, without a token of its own
WORST = 10  # examples in a report
LABEL_TYPE = "label_type"  # the setting of a model whose labels were not text in Python
LABEL_TYPES: Mapping[str, Callable[[str], Any]] = {  # and how a label is made of its name
    "bool": {"False": False, "True": True}.__getitem__,
    "int": int,
    "float": float,
}
Outputs = Mapping[str, Any]  # a model's outputs for one row, by name


class Query(NamedTuple):
    """What a model is asked about one example.

    Attributes:
        text: a string, or the words of a sentence that is split already.
        pair: the second text.
        marks: spans of the text, in characters, or in words where it is split already.
    """

    text: str | tuple[str, ...]
    pair: str | None = None
    marks: tuple[Span, ...] = ()


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


class GraphFeatures(Protocol):
    """The text side of a model as TensorFlow operators, made by `keras_ctxrep_export.text_ops.features`.

    As `text.features.Features`, of string tensors; the families have those methods that `Reads` may ask of them.
    """

    def __call__(self, *texts: Any, **tensors: Any) -> dict[str, Any]:
        """The model's inputs of a batch of texts, "pair" and "marks" by name."""
        ...

    def plain(self, text: Any) -> dict[str, Any]:
        """The inputs of an encoder alone."""
        ...

    def inner(self, inputs: dict[str, Any]) -> Any:
        """The mask of an input's tokens that are of the text."""
        ...

    def tagging(self, text: Any, marks: Any = None) -> Any:
        """Sentences from texts, with the words that are read."""
        ...

    def given(self, words: Any, marks: Any = None) -> Any:
        """Sentences that are split already."""
        ...

    def text_windows(self, text: Any, stride: int) -> Any:
        """Texts in overlapping windows."""
        ...

    def windows(self, questions: Any, contexts: Any, stride: int) -> Any:
        """Questions, each with every window of its context."""
        ...


class InGraph:
    """What a SavedModel of a task answers, as TensorFlow operators.

    Attributes:
        outputs: what the answers of the raw-string signature mean, by name.
        example_api: which of TF Serving's APIs over tf.Example the answers fit, "classify" or "regress"; None: neither.
    """

    outputs: ClassVar[Mapping[str, str]] = {}
    example_api: str | None = None

    def inputs(self, bundle: Bundle) -> tuple[str, ...]:
        """The names of the raw-string signature's inputs; "marks" are int32 (B, M, 2), in characters of the text."""
        names = ("text", "pair")[: 1 + bundle.pairs]
        return (*names, "marks") if bundle.reads.marks else names

    def in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Any, inputs: dict) -> tuple[dict, Any]:
        """The raw-string signature.

        Args:
            bundle: of the model.
            features: the text preparation, of `keras_ctxrep_export.text_ops`.
            ids: the model, from its dict of tensors to its dict of outputs; of a task with several `Task.parts` these
                by name.
            inputs: tensors by the names of `inputs`.

        Returns: the model's outputs and the answers, by name; and bool (B,), which texts have words, see `has_words`.
        """
        raise NotImplementedError

    def has_words(self, bundle: Bundle, inputs: Mapping[str, Any], example: Any = None) -> Any:
        """Which texts have words, bool (B,).

        Args:
            bundle: of the model.
            inputs: the model's, a row for each text, or for each window of one.
            example: int64 (R,), which text each window is of, ascending; None: a row is a text.
        """
        import tensorflow as tf

        masks = [tf.reduce_sum(inputs[name], 1) for name in ("mask", f"{PAIR}mask") if name in inputs]
        read = tf.reduce_max(tf.stack(masks), 0) > bundle.empty_length
        return read if example is None else tf.math.segment_max(tf.cast(read, tf.int32), example) > 0

    def example_answers_in_graph(self, bundle: Bundle, answers: dict) -> dict:
        """The outputs of a signature for `example_api`, from those of the raw-string signature, "error" among them."""
        raise NotImplementedError

    def served(self, bundle: Bundle, query: Query, output: Outputs) -> dict:
        """The answer to a query, as `Task.decode` gives it, from the outputs of the raw-string signature."""
        raise NotImplementedError


class Searches:
    """A task whose answers are searched for, with options that a request may choose."""

    def search_options(self, bundle: Bundle) -> dict[str, int]:
        """Inputs of the signature "search", int32 (B,), beside those of the raw-string one, and their defaults."""
        raise NotImplementedError

    def searched_in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Any, inputs: dict) -> tuple[dict, Any]:
        """As `InGraph.in_graph`, with the options among the inputs."""
        raise NotImplementedError


class Distillable:
    """A task whose answers and logits a small model can learn from a larger one."""

    def labelled_by(self, example: Any, answer: dict) -> Any:
        """An example whose labels are a model's answer to it."""
        raise NotImplementedError

    def teacher_logits(self, rows: Sequence[Row], outputs: Sequence[Outputs]) -> list[dict[str, np.ndarray]]:
        """The logits of a teacher for one example in a form that does not depend on its tokens, where there is one.

        Args:
            rows: of the example.
            outputs: of the teacher for each of them.

        Returns: for each row, output name -> float32 (..., C).
        """
        return [{"logits": output["logits"]} for output in outputs]

    def logits_of_student(self, row: Row, logits: Mapping[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
        """The logits that a student shall give for its row.

        Args:
            row: of the student.
            logits: as `teacher_logits` gives them for this row.
            length: tokens of the row's batch, with padding.

        Returns: output name -> (..., C), NaN where the teacher gave nothing.
        """
        return dict(logits)


class LabelsWords:
    """A task that labels the words of sentences, which may come split into words."""

    def labels_of_words(self, example: Any, answer: dict) -> Sequence[str]:
        """The label of each word of an example that came split, "" if it has none."""
        raise NotImplementedError

    def words_in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Callable, inputs: dict) -> tuple[dict, Any]:
        """As `InGraph.in_graph`, of sentences that are split already.

        `inputs` has "words", string (B, W), "" where a row has no more, in place of "text", and "marks" in words.
        """
        raise NotImplementedError


class Task(InGraph):
    """One task: its examples, what it reads, its head and loss, its answers and its metrics.

    A subclass sets the attributes and overrides what is different for it. Everything outside this package asks the
    task and compares no names; NumPy alone is imported here, Keras and TensorFlow inside the functions that need them.

    Attributes:
        name: as in bundles and on the command line.
        help: one line for the command line: what it is, and its columns.
        reading: how its examples are read from files.
        gold: the attribute of an example that holds the expected answer.
        reads: the inputs it asks of a family.
        metrics: the metrics that may choose the best weights, as in `compute_metrics`, which leaves out those that do
            not apply to the labels.
        smaller: those of them of which a smaller value is better.
        agrees: when two engines agree, in a few words.
        Options: a frozen dataclass of its own training options, made with `options.option`.
        together: whether the rows of an example stay together in a batch, so that the loss can compare them.
        needs_context: over vectors that know nothing of their context there is a task network, chosen or not.
        max_length: tokens per text to train with, if the encoder reads as many; None: as the encoder was trained.
        head_dropout: before the head's dense layer; None: as the family has it.
        activation: of the logits: "softmax", "sigmoid" or "linear".
        model_outputs: the outputs of the model that `decode` reads.
        training_outputs: the outputs of the model beside these, while it is trained.
        model_parts: the names of `parts`; the first one reads texts.
        label_type: of a model, one of `LABEL_TYPES`: what its labels were in Python; None: text.
    """

    name: str
    help: str
    reading: Reading
    gold = "label"
    reads = Reads()
    metrics: ClassVar[tuple[str, ...]] = ()
    smaller: ClassVar[tuple[str, ...]] = ()
    agrees = "the same label"
    Options: type[options.Options] = options.Options
    together = False
    needs_context = False
    max_length: int | None = None
    head_dropout: float | None = None
    activation = "softmax"
    model_outputs: ClassVar[tuple[str, ...]] = ("logits",)
    training_outputs: ClassVar[tuple[str, ...]] = ()
    model_parts: ClassVar[tuple[str, ...]] = ("ids",)
    label_type: str | None = None

    def of_model(self, bundle: Bundle) -> Self:
        """This task as a model has it, which reads the columns that the model was trained from before others."""
        task = copy.copy(self)
        task.reading = self.reading.of_model(bundle.columns)
        task.label_type = bundle.settings.get(LABEL_TYPE)
        return task

    def best(self, metric: str, values: Iterable[float]) -> float:
        """The best of some values of a metric."""
        return min(values) if metric in self.smaller else max(values)

    # ------------------------------------------------------------------------------------------------- examples

    def read(
        self, path: str | Path, columns: Mapping[str, str] | None = None, skipped: list[str] | None = None
    ) -> Iterator[Any]:
        """The examples of a file, one by one: `Reading.read`."""
        return self.reading.read(path, columns, skipped)

    def problem(self, example: Any) -> str | None:
        """What is wrong with an example to learn from or to compare with, beyond its labels."""
        return None

    def kind(self, example: Any) -> str:
        """What an example is, in words, where all examples of a data set must be the same; else ""."""
        return ""

    # --------------------------------------------------------------------------------------------------- labels

    def labels_of(self, example: Any) -> Sequence | None:
        """The labels an example uses, or None if it has not been labelled."""
        return None if getattr(example, self.gold) is None else ()

    def labels(self, used: Mapping[str, int], source: str, options: Any) -> tuple[str, ...]:
        """All labels in the order of the logits.

        Args:
            used: label of the training data -> how often it is used.
            source: its name, for messages.
            options: of the class `Options`.

        Raises:
            ValueError: they are too few to train on.
        """
        return ()

    def unseen(self, example: Any, known: Collection[str]) -> list[str]:
        """The labels of an example that a model does not know; models of some tasks have none."""
        return [label for label in self.labels_of(example) or () if label not in known] if known else []

    def doubt(self, count: int, used: Mapping[str, int]) -> str | None:
        """What makes it unlikely that the training data were read as they are meant.

        Args:
            count: examples.
            used: label -> how often it is used.
        """
        return None

    def traits(self, example: Any) -> Iterable[Hashable]:
        """Properties of the training data that `settings` and `loss` depend on."""
        return ()

    def settings(self, options: Any, traits: set[Hashable]) -> dict:
        """Settings of the answers, kept in the bundle, from options of the class `Options` and all examples' traits."""
        types = {trait.__name__ for trait in traits if isinstance(trait, type)}
        label_type = self.label_type or (types.pop() if len(types) == 1 else None)
        return {LABEL_TYPE: label_type} if label_type in LABEL_TYPES else {}

    def tuned(self, bundle: Bundle, examples: Sequence[Any], ask: Callable[[Sequence[Any]], list[dict]]) -> Bundle:
        """The bundle with settings that are chosen on development examples, once the model is trained.

        Args:
            bundle: of the trained model.
            examples: development examples.
            ask: examples -> answers.
        """
        return bundle

    def with_positive(self, bundle: Bundle, label: str) -> Bundle:
        """The bundle of a model whose `f1` is that of a label.

        Raises:
            ValueError: it is no classifier, or has no such label.
        """
        raise ValueError(f"positive={label!r}: of a classifier alone, and the task is {self.name!r}")

    def with_search(self, bundle: Bundle, **options: Any) -> Bundle:
        """The bundle of the same model whose answers are searched for with other options.

        Raises:
            ValueError: the task has no such answers, or an option is out of range.
        """
        name, value = next(iter(options.items()))
        raise ValueError(f"{name}={value}: of the task translate alone, and the task is {self.name!r}")

    def windowed(self, bundle: Bundle, how: str) -> Bundle:
        """The bundle of the same model that reads a long text in overlapping windows instead of cutting it.

        Args:
            bundle: of a model.
            how: its answer comes from the "mean" or the "max" over the windows.

        Raises:
            ValueError: the task has no such answers, or it reads more than one text.
        """
        raise ValueError(f"windows={how!r}: a {self.name} model gives no scores of a whole text to pool; leave it out")

    # -------------------------------------------------------------------------------------------------- training

    def targets(self, bundle: Bundle, example: Any, rows: Sequence[Row]) -> list:
        """The target of each row of an example."""
        raise NotImplementedError

    def batch(self, bundle: Bundle, targets: list, inputs: Mapping[str, np.ndarray]) -> tuple[dict, ...]:
        """The targets of a batch by output name, and their weights if there are any."""
        return ({"logits": np.array(targets, np.float32)},)

    def target_inputs(self, targets: list) -> dict[str, np.ndarray]:
        """What a model is given of a batch's targets while it is trained, beside its inputs, by name."""
        return {}

    def fields(self, options: options.Finetuning, task_options: Any, bundle: Bundle) -> dict[str, Any]:
        """Fields of a trained model's bundle that differ from the encoder's, beside labels, settings and what is read.

        Args:
            options, task_options: of the run, those of the task of the class `Options`.
            bundle: of the encoder.

        Raises:
            ValueError: an option does not fit the task.
        """
        return {}

    def head(self, encoder, bundle: Bundle) -> Any:
        """The task's model over an encoder, with fresh weights."""
        raise NotImplementedError

    def head_options(self, options: Any) -> dict:
        """Keyword arguments of the head that follow from the task's options."""
        return {}

    def loss(
        self, options: Any, counts: Mapping[str, int], traits: Collection[Hashable] = frozenset(), rows: int = 2
    ) -> Any:
        """The loss of its outputs, a new `keras.losses.Loss`; None: softmax cross-entropy, or that of the CRF.

        Args:
            options: of the class `Options`.
            counts: every label, in the order of the logits -> its frequency in the training data.
            traits: of all training examples, as in `traits`.
            rows: examples of a batch.

        Raises:
            ValueError: the options do not fit these labels or examples.
        """
        return None

    # --------------------------------------------------------------------------------------------------- answers

    def parts(self, model: Any) -> dict[str, Any]:
        """The models that answer, of a trained one, by name: of most tasks one, "ids"."""
        return {"ids": model}

    def run(self, bundle: Bundle, parts: Mapping[str, Callable]) -> Callable:
        """What a `Predictor` runs, from functions that run the `parts` in an engine: arrays by name in and out.

        Of a .tflite file what it has `composed` is among them.
        """
        return parts["ids"]

    def composed(self, bundle: Bundle, parts: Mapping[str, Callable]) -> dict[str, Callable]:
        """Functions of the inputs of one text that the `parts` are run in, as TensorFlow graphs of fixed shapes.

        A .tflite file has them beside the parts, so that a device runs a whole answer in one call.
        """
        return {}

    def check(self, bundle: Bundle) -> None:
        """Raises a ValueError if this model has no answers to give."""

    def query(self, example: Any) -> Query:
        """The query about an example."""
        return Query(example.text, getattr(example, "pair", None))

    def queries(self, example: Any) -> tuple[Query, ...]:
        """All that a model is asked about an example, of most tasks one query."""
        return (self.query(example),)

    def training_queries(self, example: Any) -> tuple[Query, ...]:
        """The queries whose rows a model learns an example from, one for each of its targets."""
        return self.queries(example)

    def joined(self, answers: Sequence[dict]) -> dict:
        """The answer to an example, from those to its queries."""
        (answer,) = answers
        return answer

    def query_of_line(self, line: str, pairs: bool) -> Query:
        """The query of a line of text; for marked spans, a JSON object with the keys of an example.

        Raises:
            ValueError: the line has not the form that is needed.
        """
        if self.reads.marks:
            (example,) = self.reading.examples(Record(files.json_object(line.encode()), self.reading.columns))
            return self.query(example)
        parts = line.split("\t") if pairs else [line]
        if len(parts) != 1 + pairs:
            raise ValueError("a pair has one tab between its texts")
        return Query(parts[0], parts[1] if pairs else None)

    def encode(self, bundle: Bundle, queries: Sequence[Query]) -> list[list[Row]]:
        """The rows of each query: one, or one for every window of its text."""
        pairs = [query.pair for query in queries] if bundle.pairs else None
        marks = [query.marks for query in queries] if bundle.reads.marks else None
        rows = bundle.features.encode([query.text for query in queries], pairs, bundle.reads.words, marks)
        return [[row] for row in rows]

    def decode(self, bundle: Bundle, query: Query, rows: Sequence[Row], outputs: Sequence[Outputs]) -> dict:
        """The answer to a query from the outputs of its rows."""
        raise NotImplementedError

    def typed(self, answer: dict, values: Mapping[str, Any]) -> dict:
        """An answer, which is no error, with its labels as they were in Python, from label -> value."""
        return answer

    def empty(self, bundle: Bundle) -> dict[str, Any]:
        """The keys of an answer without a prediction: None for a value, an empty list or dict for several."""
        raise NotImplementedError

    def unanswered(self, bundle: Bundle, error: str = NO_WORDS) -> dict[str, Any]:
        """What stands in the place of an answer: {"error"}, and the keys of an answer, which are `empty`."""
        return {"error": error} | self.empty(bundle)

    def own_fields(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a file's row that are repeated beside a prediction; {} of a row that has no names for them."""
        return {} if isinstance(row, files.Sentence) else dict(row)

    def cells(self, answer: dict) -> dict[str, Any]:
        """The answer as values of a table's columns; the same columns for every answer, {"error"} included."""
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------------- metrics

    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        """The task's metrics on labelled examples, with an answer for each; {"error"} is wrong."""
        raise NotImplementedError

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

    def shown(self, example: Any, answer: dict) -> dict[str, Any]:
        """An example and its answer in readable form: {"input", "expected", "answer"}.

        With "texts", of a pair the list of both, and "confidence", the answer's probability if it has one.
        """
        raise NotImplementedError

    def agreement(self, reference: dict, answer: dict) -> list[tuple[bool, float]]:
        """(same decision, difference of the scores) for each decision in the answers of two engines."""
        raise NotImplementedError


def label_values(bundle: Bundle) -> dict[str, Any]:
    """Label -> what it was in Python, of a model that was trained on labels other than text; else {}.

    Raises:
        ValueError: a label is not of the type in the bundle.

    >>> label_values(Bundle("elmo", "classify", {}, 8, ("0", "1"), settings={"label_type": "int"}))
    {'0': 0, '1': 1}
    """
    name = bundle.settings.get(LABEL_TYPE)
    try:
        return {} if name is None else {label: LABEL_TYPES[name](label) for label in bundle.labels}
    except (KeyError, ValueError):
        raise ValueError(f"settings.{LABEL_TYPE}={name!r}: its labels are {', '.join(bundle.labels)}") from None


def pair_problem(pair: bool, pairs: bool, model: str | Path = "this model") -> str | None:
    """What is wrong with one text where a model reads pairs of texts, or with a pair where it reads one.

    >>> pair_problem(False, True)
    'one text; this model reads a pair of texts'
    """
    kinds = ("one text", "a pair of texts")
    return None if pair == pairs else f"{kinds[pair]}; {model} reads {kinds[pairs]}"


def warn_of_unseen(unseen: Counter[str], source: str) -> None:
    """Warns once of the labels of some data that were not in the training data, with their counts."""
    if unseen:
        listed = ", ".join(f"{label!r} ({count:,})" for label, count in unseen.most_common(10))
        more = f" and {len(unseen) - 10:,} more" if len(unseen) > 10 else ""
        warnings.warn(f"{source}: labels that the model cannot predict count as errors: {listed}{more}", stacklevel=3)


def confidence(answer: dict) -> dict[str, float]:
    """{"confidence"} of an answer with a probability, else {}."""
    return {"confidence": answer["score"]} if answer.get("probabilities") and "score" in answer else {}


def f1_table(kinds: Sequence[str], counts: np.ndarray) -> list[list[str]]:
    """Precision, recall and F1 of each kind as rows of text; int (C, 3) as in `scores.counts`."""
    rows = zip(kinds, scores.precision_recall_f1(counts), counts[:, 2], strict=True)
    return [["", "precision", "recall", "f1", "support"]] + [
        [kind, *(f"{value:.3f}" for value in values), str(support)] for kind, values, support in rows
    ]


def f1_of(counts: np.ndarray) -> float:
    """F1 of int (3,) counts."""
    return float(scores.precision_recall_f1(counts)[2])
