"""Predictions through any engine: the only module that prepares text for a model with answers."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.tasks import Task
from keras_ctxrep.tasks.abilities import Query
from keras_ctxrep.tasks.answering import NO_WORDS
from keras_ctxrep.tasks.learning import label_values
from keras_ctxrep.tasks.task import pair_problem
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import available_lines
from keras_ctxrep.text.features import Marks, Row, check_texts
from keras_ctxrep.text.tokens import joined
from keras_ctxrep.text.unread import Unread

if TYPE_CHECKING:
    from keras_ctxrep.inference.filling import Filler
    from keras_ctxrep.inference.generator import Generator
    from keras_ctxrep.inference.keras_engine import KerasEngine

__all__ = ["Engine", "Predictor", "Run", "Runner", "TextRunner"]

T = TypeVar("T")
TOGETHER = 256  # rows of a file that are answered together
GENERATES = "a language model in one direction has no answers: call generate(prompts), as `ctxrep generate` does"
Text = str | Sequence[str]
Run = Callable[[dict[str, np.ndarray]], Mapping[str, Any]]  # arrays, or lists of them, over the batch
NumberedRow = tuple[int, Row]  # the number of a query, and one of its rows


class Runner:
    """Runs a model on token ids, as Keras and LiteRT do: each row of a query is one input.

    Args:
        run: input dict -> output dict, both of arrays with a batch axis, or the outputs as lists over the batch.
        tokens: of a batch, padding included, whose inputs may then be more than the `Predictor`'s `batch_size`.
    """

    def __init__(self, run: Run, tokens: int = 0):
        self.run, self.tokens = run, tokens

    def readable(self, query: Query) -> Query:
        """An example's query in a form that the model reads."""
        return query

    def inputs(self, rows: Sequence[NumberedRow]) -> Sequence[NumberedRow]:
        """The rows that stand for one input each."""
        return rows

    def signature(self, query: Query) -> str:
        """The name of the signature that reads a query; a batch is for one signature."""
        return "ids"

    def batch(self, task: Task, bundle: Bundle, queries: Sequence[Query], rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """The input dict of some inputs, each a query and its row."""
        return bundle.features.collate(rows)

    def answer(self, task: Task, bundle: Bundle, query: Query, rows: Sequence[Row], outputs: Sequence[Mapping]) -> dict:
        """The answer to a query.

        Args:
            rows: of the query.
            outputs: of each of its inputs.
        """
        return task.decode(bundle, query, rows, outputs)


class TextRunner(Runner):
    """Runs a model that prepares text itself, as a SavedModel's string signatures do: each query is one input.

    Args:
        run: as in `Runner`, from strings: {"text"} or the other inputs of the task's signature, string (B,).
        words: `run` also takes sentences that are split already, as {"words"}, string (B, W).
    """

    def __init__(self, run: Run, words: bool = False):
        super().__init__(run)
        self.words = words

    def readable(self, query: Query) -> Query:
        if isinstance(query.text, str) or self.words:
            return query
        text, offsets = joined(query.text)
        return Query(text, query.pair, tuple((offsets[a][0], offsets[b - 1][1]) for a, b in query.marks))

    def inputs(self, rows: Sequence[NumberedRow]) -> Sequence[NumberedRow]:
        return list(dict(rows).items())

    def signature(self, query: Query) -> str:
        if not isinstance(query.text, str) and not self.words:
            raise ValueError("this SavedModel splits text into words itself: give strings, or export the model again")
        return "text" if isinstance(query.text, str) else "words"

    def batch(self, task: Task, bundle: Bundle, queries: Sequence[Query], rows: Sequence[Row]) -> dict[str, np.ndarray]:
        texts, pairs, marks = zip(*queries, strict=True)
        names = list(task.inputs(bundle))
        if isinstance(texts[0], str):
            columns = [np.array(texts, object)]
        else:
            names[0], columns = "words", [np.array([*zip_longest(*texts, fillvalue="")], object).T]
        if bundle.pairs:
            columns.append(np.array(pairs, object))
        if bundle.reads.marks:
            columns.append(np.array(marks, np.int32))
        return dict(zip(names, columns, strict=True))

    def answer(self, task: Task, bundle: Bundle, query: Query, rows: Sequence[Row], outputs: Sequence[Mapping]) -> dict:
        error = outputs[0].get("error", b"")  # exports before 0.3 have none
        return task.unanswered(bundle, error.decode()) if error else task.served(bundle, query, outputs[0])


class Predictor:
    """Predicts answers to texts; the same code around a Keras model, a SavedModel or a .tflite file.

    Args:
        bundle: of the model.
        runner: of the model; a plain function is the `run` of a `Runner`.
        batch_size: inputs of the model that are run at once; more of them where `Runner.tokens` allows it.

    Call:
        texts: strings; for a task over words also sentences already split into words.
        pairs: the second text of each, for a model that reads pairs; of a question its context.
        marks: the marked spans of each, for a model that reads some: (begin, end) in characters, the end exclusive, or
            in words where the text is split already; (0, 0) for none.
        batch_size: in place of that of the predictor.
        role: of the texts, for an encoder that has some, see `Bundle.roles`.

    Returns: one dict per text, by the model's task:

        * classify: {"label", "score", "probabilities"};
        * multilabel: {"labels", "probabilities"}, those of at least 0.5;
        * regress: {"value"};
        * tag: {"words": [{"word", "start", "end", "label", "score"}]} with character offsets into the text, and where
          the labels mark spans "entities": [{"type", "text", "start", "end"}]; of a sentence that came split, the
          offsets are those in its words joined by spaces, and a word that was cut off has the label None;
        * answer: {"answer", "start", "end", "score", "null_score", "n_best"}; a question without an answer has "";
        * semantic_roles: {"words", as in tag, "arguments", as the "entities" of tag};
        * coreference: {"label", "name", "score", "probabilities"};
        * translate: {"text", "score", "alignment"}, with several beams "n_best", and "unfinished" where it has no end;
        * embed: {"vector"};

        with "truncated": True where the text was longer than the model reads. A text without words, of a pair both
        texts, has {"error": "no words in this text"} and the same keys without a prediction: None, [] or {}. The labels
        of a model that was trained on whole numbers, truth values or floats in Python are such, the keys of
        "probabilities" too; `answers` has their names.

    Raises:
        ValueError: the model has no answers to give (a language model without a head), or it reads pairs and is given
            single texts, or the other way round.

    >>> bundle = Bundle("elmo", "classify", {"max_characters": 50}, 8, ("no", "yes"))
    >>> def run(batch):
    ...     return {"logits": np.tile([0.0, np.log(3.0)], (len(batch["mask"]), 1))}
    >>> for answer in Predictor(bundle, run)(["a text", " "]):
    ...     print(answer)
    {'label': 'yes', 'score': 0.75, 'probabilities': {'no': 0.25, 'yes': 0.75}}
    {'error': 'no words in this text', 'label': None, 'score': None, 'probabilities': {}}
    """

    def __init__(self, bundle: Bundle, runner: Runner | Run, batch_size: int = 32):
        if bundle.task not in tasks.SERVED:
            nothing = f"a {bundle.task} answers nothing; fine-tune it with `ctxrep train`, or use `ctxrep embed`"
            raise ValueError(GENERATES if bundle.generates else nothing)
        self.task = tasks.of_model(bundle)
        self.task.check(bundle)
        self._label_values = label_values(bundle)
        self.bundle, self.batch_size = bundle, batch_size
        self.unread = Unread(bundle)  #: counts the tokens of all texts so far
        self.runner = runner if isinstance(runner, Runner) else Runner(runner)

    def __call__(
        self,
        texts: Sequence[Text],
        pairs: Sequence[str | None] | None = None,
        marks: Marks | None = None,
        batch_size: int | None = None,
        role: str | None = None,
    ) -> list[dict]:
        return [self.typed(answer) for answer in self.answers(texts, pairs, marks, batch_size, role)]

    def typed(self, answer: dict) -> dict:
        """An answer with labels as they were in Python, from one with their names."""
        plain = "error" in answer or not self._label_values
        return answer if plain else self.task.typed(answer, self._label_values)

    def answers(
        self,
        texts: Sequence[Text],
        pairs: Sequence[str | None] | None = None,
        marks: Marks | None = None,
        batch_size: int | None = None,
        role: str | None = None,
    ) -> list[dict]:
        """As the call, but labels are text, as those of examples and of the bundle are."""
        texts = check_texts(texts)
        pairs = None if pairs is None else list(pairs)
        if len(texts) and self.bundle.pairs != any(pair is not None for pair in pairs or []):
            needed = "pairs of texts" if self.bundle.pairs else "one text at a time"
            raise ValueError(f"this model reads {needed}")
        pairs = [pair or "" for pair in pairs or []] if self.bundle.pairs else [None] * len(texts)
        marks = [()] * len(texts) if marks is None else [tuple(map(tuple, np.asarray(m).tolist())) for m in marks]
        if not len(texts) == len(pairs) == len(marks):
            raise ValueError(
                f"{len(texts)} texts, {len(pairs)} pairs and marks of {len(marks)}; give one for each text"
            )
        for number, (text, spans) in enumerate(zip(texts, marks, strict=True)):
            self._check_marks(number, text, spans)
        texts = [text if isinstance(text, str) else tuple(text) for text in texts]
        return self._answers([Query(*parts) for parts in zip(texts, pairs, marks, strict=True)], batch_size, role)

    def _check_marks(self, number: int, text: Text, spans: Sequence) -> None:
        count = self.bundle.reads.marks
        if len(spans) != count:
            raise ValueError(f"marks {spans!r} of text {number}: this model reads {count} marked spans of each text")
        unit = "characters" if isinstance(text, str) else "words"
        for span in spans:
            if span != (0, 0) and (len(span) != 2 or not 0 <= span[0] < span[1] <= len(text)):
                raise ValueError(f"marks {span!r} of text {number}: not [begin, end) within its {len(text)} {unit}")

    def ask(self, examples: Sequence[Any]) -> list[dict]:
        """The answers to examples of the model's task."""
        asked = [self.task.queries(example) for example in examples]
        answers = (answer for _, answer in self.answered([[(None, query) for queries in asked for query in queries]]))
        return [self.task.joined([*islice(answers, len(queries))]) for queries in asked]

    def answered(self, parts: Iterable[Sequence[tuple[T, Query | str]]]) -> Iterator[tuple[T, dict]]:
        """Each thing with the answer to its query, or with what is wrong with it as "error"; a part is run together."""
        for part in parts:
            queries = [self.runner.readable(query) for _, query in part if isinstance(query, Query)]
            answers = iter(self._answers(queries))
            for entry, query in part:
                yield entry, next(answers) if isinstance(query, Query) else self.task.unanswered(self.bundle, query)

    def _answers(self, queries: Sequence[Query], batch_size: int | None = None, role: str | None = None) -> list[dict]:
        queries = [_encodable(query) for query in queries]
        rows, outputs = self._run(queries, batch_size, role)
        answers = [self.task.unanswered(self.bundle) for _ in queries]
        for number, results in outputs.items():
            if not _finite(results):
                answers[number] = self.task.unanswered(self.bundle, "the model's outputs for this text are not finite")
                continue
            answers[number] = self.runner.answer(self.task, self.bundle, queries[number], rows[number], results)
            answers[number] |= {"truncated": True} if any(row.truncated for row in rows[number]) else {}
        return answers

    def check(self, examples: Sequence[Any], name: str | Path = "this model") -> None:
        """Raises a ValueError unless a model, of this name, can read all of some examples."""
        asked = [(example, _encodable(query)) for example in examples for query in self.task.queries(example)]
        for example, query in asked:
            if message := pair_problem(query.pair is not None, self.bundle.pairs, name):
                raise ValueError(f"{example.source or example}: {message}")
        encodings = self.task.encode(self.bundle, [query for _, query in asked]) if asked else []
        for (example, _), rows in zip(asked, encodings, strict=True):
            if all(len(row) <= self.bundle.empty_length for row in rows):
                raise ValueError(f"{example.source or example}: {NO_WORDS}")

    def outputs(self, examples: Sequence[Any]) -> list[tuple[list[Row], list[dict[str, Any]]]]:
        """The rows of examples and what the model gives for each row; ([], []) of a text that has no words."""
        rows, outputs = self._run([_encodable(self.task.query(example)) for example in examples])
        return [(rows[number], outputs[number]) if number in outputs else ([], []) for number in range(len(rows))]

    def _run(
        self, queries: Sequence[Query], batch_size: int | None = None, role: str | None = None
    ) -> tuple[list[list[Row]], dict[int, list[dict[str, Any]]]]:
        """The rows of each query, and number of a query -> the model's outputs for it, of those that have words."""
        prefix, nothing = self.bundle.prefix(role), None
        if prefix:  # with which a text's first letters may make one piece
            queries = [query._replace(text=_prefixed(query.text, prefix)) for query in queries]
            nothing = self.bundle.features.encode([prefix])[0].tokens
        rows = self.task.encode(self.bundle, queries) if queries else []
        self.unread.add(queries, rows)
        empty = self.bundle.empty_length
        filled = [
            (number, row)
            for number, parts in enumerate(rows)
            for row in parts
            if len(row) > empty and row.tokens != nothing
        ]
        inputs = self.runner.inputs(filled)
        signatures = [self.runner.signature(queries[number]) for number, _ in inputs]
        results: list[dict] = [{} for _ in inputs]
        # inputs are bucketed by length, to keep padding small
        lengths = [len(row) for _, row in inputs]
        order = sorted(range(len(inputs)), key=lambda i: (signatures[i], lengths[i]))
        for _, group in groupby(order, signatures.__getitem__):
            for part in self._batches([*group], lengths, batch_size or self.batch_size):
                batch_queries, batch_rows = [queries[inputs[i][0]] for i in part], [inputs[i][1] for i in part]
                batch = self.runner.batch(self.task, self.bundle, batch_queries, batch_rows)
                columns = self.runner.run(batch)  # all layers of all texts would be large, and no answer reads them
                names = [name for name in columns if not name.startswith(("layer", "seque"))]
                for i, *values in zip(part, *(columns[name] for name in names), strict=True):
                    results[i] = dict(zip(names, values, strict=True))
        outputs: dict[int, list] = {}
        for (number, _), result in zip(inputs, results, strict=True):
            outputs.setdefault(number, []).append(result)
        return rows, outputs

    def _batches(self, order: Sequence[int], lengths: Sequence[int], batch_size: int) -> Iterator[Sequence[int]]:
        """Inputs of ascending length in parts that are run together."""
        begin = 0
        for end in range(1, len(order) + 1):
            size = end + 1 - begin  # with the next input
            limit = batch_size
            if end < len(order) and self.runner.tokens:
                limit = max(limit, self.runner.tokens // lengths[order[end]])
            if end == len(order) or size > limit:
                yield order[begin:end]
                begin = end

    def probabilities(self, texts: Sequence[str], pairs: Sequence[str | None] | None = None) -> np.ndarray:
        """float64 (B, C): a classifier's probabilities, in the order of its labels.

        Raises:
            ValueError: a text has no words.
        """
        answers = self(texts, pairs)
        for text, answer in zip(texts, answers, strict=True):
            if "error" in answer:
                raise ValueError(f"{answer['error']}: {text!r}")
        return np.array([list(answer["probabilities"].values()) for answer in answers])

    def lines(self, stream: IO[bytes]) -> Iterator[dict]:
        """One answer for each line of a byte stream, as soon as it is read; a bad line gives an answer too.

        A tab separates the two texts of a pair.
        Bytes that are not UTF-8 become U+FFFD, which no tokenizer reads, and the answer carries a "warning".
        """
        return (self.typed(answer) for _, answer in self.answered_lines(available_lines(stream)))

    def answered_lines(self, lines: Iterable[Sequence[bytes]]) -> Iterator[tuple[str, dict]]:
        """Each line and its answer, as in `lines`; those that come together are answered together."""
        for line, answer in self.answered([(line, self._query_of_line(line)) for line in part] for part in lines):
            text = line.decode("utf-8", "replace")
            if "\ufffd" in text and "\ufffd".encode() not in line:
                answer = answer | {"warning": "not UTF-8: the bytes that are not were left out"}
            yield text, answer

    def answered_rows(
        self, examples: Iterator[tuple[Mapping[str, Any], Any]], skipped: list[str] | None = None
    ) -> Iterator[tuple[tuple[Mapping[str, Any], Any], dict]]:
        """Each row with its example, as in `Reading.read_unlabelled`, and its answer.

        Args:
            examples: rows and their examples.
            skipped: a message for each that the model does not read is appended here, instead of raised.
        """
        while part := list(islice(examples, TOGETHER)):
            queries = []
            for row, example in part:
                query = self.task.query(example)
                if problem := pair_problem(query.pair is not None, self.bundle.pairs):
                    if skipped is None:
                        raise ValueError(f"{example.source}: {problem}")
                    skipped.append(f"{example.source}: {problem}")
                else:
                    queries.append(((row, example), query))
            yield from self.answered([queries])

    def _query_of_line(self, line: bytes) -> Query | str:
        """The query of a line, or what is wrong with it."""
        try:
            return self.task.query_of_line(line.decode("utf-8", "replace"), self.bundle.pairs) if line else "empty line"
        except ValueError as error:
            return str(error)


class Engine(Protocol):
    """One way to run a model, as `inference.engines.open_model` gives it; what it lacks raises a ValueError.

    Attributes:
        name: "Keras", "SavedModel NAME", the name of the .tflite file, or the address of the server.
        path: the files that it needs; None: the model is in memory, or on a server.
        bundle: of the model.
        exported: whether its path is a SavedModel or a .tflite file.
    """

    name: str
    path: Path | None
    bundle: Bundle
    exported: bool = False

    @cached_property
    def answer(self) -> Predictor:
        """The function from texts to answers."""
        fills = "a masked language model has no answers: call fill(texts), as `ctxrep fill` does"
        raise self._refusal(GENERATES if self.bundle.generates else fills)

    @cached_property
    def encode(self) -> Predictor:
        """The function from texts to their vectors, {"vector"}."""
        if self.bundle.encodes:
            return self.answer
        remedy = "write one of the encoder: load(FOLDER).encoder.tflite(OUT), or export(OUT)"
        raise self._refusal(f"a model for the task {self.bundle.task!r} has no vectors of texts; {remedy}")

    @cached_property
    def generate(self) -> "Generator":
        """The function from prompts to what continues them."""
        remedy = "a language model of `ctxrep pretrain lm` does"
        raise self._refusal(f"a model for the task {self.bundle.task!r} generates no text; {remedy}")

    @cached_property
    def fill(self) -> "Filler":
        """The function from texts with masks to pieces for them."""
        remedy = "`ctxrep tflite BERT --fill` keeps that of a pretrained BERT"
        raise self._refusal(f"a model for the task {self.bundle.task!r} without a masked language model; {remedy}")

    @property
    def keras(self) -> "KerasEngine":
        """The engine with the Keras model, which may be trained."""
        raise self._refusal("not a Keras model; load the model folder that it was made from")

    @property
    def width(self) -> int:
        """Numbers of a vector of a text."""
        return self.bundle.dims or len(self.encode(["a"])[0]["vector"])

    @property
    def predictor(self) -> Any:
        """The old name of `answer`, of a language model of `generate` or `fill`, until version 0.4."""
        warnings.warn("engine.predictor is engine.answer now", DeprecationWarning, stacklevel=2)
        return vars(self).get("fill") or (self.generate if self.bundle.generates else self.answer)

    def _refusal(self, problem: str) -> ValueError:
        return ValueError(f"{self.path or self.name}: {problem}")


def _finite(outputs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the numbers that a model gives are none that JSON lacks."""
    arrays = (np.asarray(value) for output in outputs for value in output.values() if hasattr(value, "dtype"))
    return all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")


def _prefixed(text: Text, prefix: str) -> Text:
    return prefix + text if isinstance(text, str) else (prefix, *text)


def _encodable(query: Query) -> Query:
    """The query without lone surrogates, which cannot be encoded."""

    def without(text: str) -> str:
        return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")

    text = without(query.text) if isinstance(query.text, str) else tuple(map(without, query.text))
    return Query(text, None if query.pair is None else without(query.pair), query.marks)
