"""What a task can do: answer in a SavedModel, which every task does, and what some tasks can do beside.

A task has an ability if the class is one of its bases, and whoever needs it asks for the class: `tasks.able`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row, Span
from keras_ctxrep.text.pairs import PAIR

__all__ = ["ChoosesPositive", "ExampleApi", "ReadsWindows"]

Outputs = Mapping[str, Any]  # a model's outputs for one row, by name


class Query(NamedTuple):
    """What a model is asked about one example."""

    text: str | tuple[str, ...]  #: a string, or the words of a sentence that is split already
    pair: str | None = None  #: the second text
    marks: tuple[Span, ...] = ()  #: spans of the text, in characters, or in words where it is split already


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


class InGraph(ABC):
    """What a SavedModel of a task answers, as TensorFlow operators.

    Attributes:
        outputs: what the answers of the raw-string signature mean, by name.
    """

    outputs: ClassVar[Mapping[str, str]] = {}

    def inputs(self, bundle: Bundle) -> tuple[str, ...]:
        """The names of the raw-string signature's inputs; "marks" are int32 (B, M, 2), in characters of the text."""
        names = ("text", "pair")[: 1 + bundle.pairs]
        return (*names, "marks") if bundle.reads.marks else names

    @abstractmethod
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

    @abstractmethod
    def served(self, bundle: Bundle, query: Query, output: Outputs) -> dict:
        """The answer to a query, as `Task.decode` gives it, from the outputs of the raw-string signature."""


class ExampleApi(ABC):
    """A task whose answers fit one of TF Serving's APIs over tf.Example.

    Attributes:
        example_api: "classify" or "regress".
    """

    example_api: str

    @abstractmethod
    def example_answers_in_graph(self, bundle: Bundle, answers: dict) -> dict:
        """The outputs of a signature for `example_api`, from those of the raw-string signature, "error" among them."""


class Searches(ABC):
    """A task whose answers are searched for, with options that a request may choose."""

    @abstractmethod
    def with_search(self, bundle: Bundle, **options: Any) -> Bundle:
        """As `tasks.with_search`; a ValueError if an option is out of range."""

    @abstractmethod
    def search_options(self, bundle: Bundle) -> dict[str, int]:
        """Inputs of the signature "search", int32 (B,), beside those of the raw-string one, and their defaults."""

    @abstractmethod
    def searched_in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Any, inputs: dict) -> tuple[dict, Any]:
        """As `InGraph.in_graph`, with the options among the inputs."""


class ReadsWindows(ABC):
    """A task whose models may read a long text in overlapping windows instead of cutting it."""

    @abstractmethod
    def windowed(self, bundle: Bundle, how: str) -> Bundle:
        """As `tasks.windowed`; a ValueError if the model reads more than one text."""


class ChoosesPositive(ABC):
    """A task with the metric `f1` of one of its labels."""

    @abstractmethod
    def with_positive(self, bundle: Bundle, label: str) -> Bundle:
        """As `tasks.with_positive`; a ValueError if the model has no such label."""


class Distillable(ABC):
    """A task whose answers and logits a small model can learn from a larger one."""

    @abstractmethod
    def labelled_by(self, example: Any, answer: dict) -> Any:
        """An example whose labels are a model's answer to it."""

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


class LabelsWords(ABC):
    """A task that labels the words of sentences, which may come split into words."""

    @abstractmethod
    def labels_of_words(self, example: Any, answer: dict) -> Sequence[str]:
        """The label of each word of an example that came split, "" if it has none."""

    @abstractmethod
    def words_in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Callable, inputs: dict) -> tuple[dict, Any]:
        """As `InGraph.in_graph`, of sentences that are split already.

        `inputs` has "words", string (B, W), "" where a row has no more, in place of "text", and "marks" in words.
        """
