"""How a task answers: from an example or a line of text to a query, its rows, and the answer to it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from keras_ctxrep.tasks.abilities import Outputs, Query
from keras_ctxrep.tasks.reading import Reading, Record
from keras_ctxrep.text import files
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Reads, Row

NO_WORDS = "no words in this text"  # the "error" of a text, or of both texts of a pair, without a token of its own


class Answering(ABC):
    """The part of a task that a `Predictor` asks for.

    Attributes:
        reading: how its examples are read from files.
        reads: the inputs it asks of a family.
        activation: of the logits: "softmax", "sigmoid" or "linear".
        model_outputs: the outputs of the model that `decode` reads.
        model_parts: the names of `parts`; the first one reads texts.
    """

    reading: Reading
    reads = Reads()
    activation = "softmax"
    model_outputs: ClassVar[tuple[str, ...]] = ("logits",)
    model_parts: ClassVar[tuple[str, ...]] = ("ids",)

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
        return

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

    @abstractmethod
    def decode(self, bundle: Bundle, query: Query, rows: Sequence[Row], outputs: Sequence[Outputs]) -> dict:
        """The answer to a query from the outputs of its rows."""

    def typed(self, answer: dict, values: Mapping[str, Any]) -> dict:
        """An answer, which is no error, with its labels as they were in Python, from label -> value."""
        return answer

    @abstractmethod
    def empty(self, bundle: Bundle) -> dict[str, Any]:
        """The keys of an answer without a prediction: None for a value, an empty list or dict for several."""

    def unanswered(self, bundle: Bundle, error: str = NO_WORDS) -> dict[str, Any]:
        """What stands in the place of an answer: {"error"}, and the keys of an answer, which are `empty`."""
        return {"error": error} | self.empty(bundle)

    def own_fields(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a file's row that are repeated beside a prediction; {} of a row that has no names for them."""
        return {} if isinstance(row, files.Sentence) else dict(row)

    @abstractmethod
    def cells(self, answer: dict) -> dict[str, Any]:
        """The answer as values of a table's columns; the same columns for every answer, {"error"} included."""
