"""Predictions through any engine: the only module that prepares text for a model with answers."""

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import IO, Any

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.tasks.tag import joined
from keras_ctxrep.tasks.task import Query
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Marks, Row, check_texts

Text = str | Sequence[str]
Run = Callable[[dict[str, np.ndarray]], Mapping[str, Any]]  # arrays, or lists of them, over the batch


class Predictor:
    """Predicts answers to texts; the same code around a Keras model, a SavedModel or a .tflite file.

    Args:
        bundle: of the model.
        run: input dict -> output dict, both of arrays with a batch axis, or the outputs as lists over the batch.
        batch_size: texts given to `run` at once.
        raw: `run` prepares the text itself and is given strings, as a SavedModel's raw-string signature is.
        words: with `raw`: `run` is also given sentences that are split already, as {"words"}, string (B, W).

    Call:
        texts: strings; for a task over words also sentences already split into words.
        pairs: the second text of each, for a model that reads pairs; of a question its context.
        marks: the marked spans of each, for a model that reads some: (begin, end) in characters, the end exclusive, or
            in words where the text is split already; (0, 0) for none.

    Returns: one dict per text, by the model's task:

        * classify: {"label", "score", "probabilities"};
        * multilabel: {"labels", "probabilities"}, those of at least 0.5;
        * regress: {"value"};
        * tag: {"words": [{"word", "start", "end", "label", "score"}]} with character offsets into the text, and where
          the labels mark spans "entities": [{"type", "text", "start", "end"}]; of a sentence that came split, the
          offsets are those in its words joined by spaces, and a word that was cut off has the label None;
        * answer: {"answer", "start", "end", "score", "null_score", "n_best"}; a question without an answer has "";
        * semantic_roles: {"words", as of tag, "arguments", as the "entities" of tag};
        * coreference: {"label", "name", "score", "probabilities"};
        * embed: {"vector"};

        with "truncated": True where the text was longer than the model reads; {"error"} where nothing can be read.

    Raises:
        ValueError: the model has no answers to give (a language model without a head), or it reads pairs and is given
            single texts, or the other way round.

    >>> bundle = Bundle("elmo", "classify", {"max_characters": 50}, 8, ("no", "yes"))
    >>> def run(batch):
    ...     return {"logits": np.tile([0.0, np.log(3.0)], (len(batch["mask"]), 1))}
    >>> Predictor(bundle, run)(["a text", " "])
    [{'label': 'yes', 'score': 0.75, 'probabilities': {'no': 0.25, 'yes': 0.75}}, {'error': 'no words in this text'}]
    """

    def __init__(self, bundle: Bundle, run: Run, batch_size: int = 32, raw: bool = False, words: bool = False):
        if bundle.task not in tasks.SERVED:
            raise ValueError(
                f"a {bundle.task} answers nothing; fine-tune it with `ctxrep train`, or use `ctxrep embed`"
            )
        self.task = tasks.of_model(bundle)
        self.task.check(bundle)
        self.bundle, self.run, self.batch_size, self.raw, self.words = bundle, run, batch_size, raw, words
        pair = [""] if bundle.pairs else None
        # tokens of a text without words, which gets no answer; with windows every query gets one
        self._empty = 0 if bundle.reads.windows else len(bundle.features.encode([""], pair)[0])

    def __call__(
        self, texts: Sequence[Text], pairs: Sequence[str | None] | None = None, marks: Marks | None = None
    ) -> list[dict]:
        check_texts(texts)
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
        return self._answers([Query(*parts) for parts in zip(texts, pairs, marks, strict=True)])

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
        queries = [self.task.query(example) for example in examples]
        return self._answers([self._unsplit(query) for query in queries] if self.raw else queries)

    def _unsplit(self, query: Query) -> Query:
        """A query of one string where a SavedModel can only split text into words itself."""
        if isinstance(query.text, str) or self.words:
            return query
        text, offsets = joined(query.text)
        return Query(text, query.pair, tuple((offsets[a][0], offsets[b - 1][1]) for a, b in query.marks))

    def _answers(self, queries: Sequence[Query]) -> list[dict]:
        if self.raw and not self.words and not all(isinstance(query.text, str) for query in queries):
            raise ValueError("this SavedModel splits text into words itself: give strings, or export the model again")
        queries = [_valid(query) for query in queries]
        encoded, results = self._encoded_outputs(queries)
        answers: list[dict] = [{"error": "no words in this text"} for _ in queries]
        for index, outputs in results:
            query, own = queries[index], encoded[index]
            if self.raw:
                answers[index] = self.task.served(self.bundle, query, outputs[0])
            else:
                answers[index] = self.task.decode(self.bundle, query, own, outputs)
            answers[index] |= {"truncated": True} if any(row.truncated for row in own) else {}
        return answers

    def outputs(self, examples: Sequence[Any]) -> list[tuple[list[Row], list[dict[str, Any]]]]:
        """The rows of examples and what the model gives for each row; ([], []) of a text that has no words."""
        queries = [_valid(self.task.query(example)) for example in examples]
        encoded, results = self._encoded_outputs(queries)
        outputs = dict(results)
        return [(encoded[index], outputs[index]) if index in outputs else ([], []) for index in range(len(queries))]

    def _encoded_outputs(self, queries: Sequence[Query]) -> tuple[list[list[Row]], Iterator]:
        """The rows of each query, and (number of a query, the outputs of its rows) of all that have words."""
        encoded = self.task.encode(self.bundle, queries) if queries else []
        rows = [(index, row) for index, own in enumerate(encoded) for row in own if len(row) > self._empty]
        return encoded, self._outputs(queries, rows)

    def _outputs(
        self, queries: Sequence[Query], rows: Sequence[tuple[int, Row]]
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """(number of a query, the outputs of its rows); runs the rows, or if `raw` the queries' texts."""
        if self.raw:  # one output for all rows of a query
            rows = list(dict(rows).items())
        # Rows are bucketed by length, to keep padding small; strings and split sentences are inputs of their own.
        split = [self.raw and not isinstance(queries[index].text, str) for index, _ in rows]
        order = sorted(range(len(rows)), key=lambda i: (split[i], len(rows[i][1])))
        outputs: list[dict] = [{} for _ in rows]
        raw_strings = split.count(False)
        begins = [*range(0, raw_strings, self.batch_size), *range(raw_strings, len(order), self.batch_size)]
        for begin, end in pairwise([*begins, len(order)]):
            chosen = order[begin:end]
            if self.raw:
                batch = self._strings([queries[rows[i][0]] for i in chosen])
            else:
                batch = self.bundle.features.collate([rows[i][1] for i in chosen])
            results = self.run(batch)
            for position, i in enumerate(chosen):
                outputs[i] = {name: value[position] for name, value in results.items()}
        by_query: dict[int, list] = {}
        for (index, _), output in zip(rows, outputs, strict=True):
            by_query.setdefault(index, []).append(output)
        return iter(by_query.items())

    def _strings(self, queries: Sequence[Query]) -> dict[str, np.ndarray]:
        """The inputs of a SavedModel: of strings, or of sentences that are split already."""
        texts, pairs, marks = zip(*queries, strict=True)
        names = list(self.task.inputs(self.bundle))
        if isinstance(texts[0], str):
            columns = [np.array(texts, object)]
        else:
            names[0], columns = "words", [np.array([*zip_longest(*texts, fillvalue="")], object).T]
        if self.bundle.pairs:
            columns.append(np.array(pairs, object))
        if self.bundle.reads.marks:
            columns.append(np.array(marks, np.int32))
        return dict(zip(names, columns, strict=True))

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
        return (answer for _, answer in self.answered_lines(stream))

    def answered_lines(self, stream: IO[bytes]) -> Iterator[tuple[str, dict]]:
        """Each line of a byte stream and its answer, as of `lines`."""
        rest, mark = b"", codecs.BOM_UTF8  # of the first line
        read = getattr(stream, "read1", stream.read)  # the bytes available, without waiting for more
        while chunk := read(1 << 20):
            *complete, rest = (rest + chunk).split(b"\n")
            if complete:
                complete[0], mark = complete[0].removeprefix(mark), b""
            yield from self._answer_lines(complete)
        if rest:
            yield from self._answer_lines([rest.removeprefix(mark)])

    def _answer_lines(self, raw: list[bytes]) -> Iterator[tuple[str, dict]]:
        texts = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in raw]
        queries: dict[int, Query] = {}
        answers: dict[int, dict] = {}
        for number, text in enumerate(texts):
            try:
                query = self.task.query_of_line(text, self.bundle.pairs)
                queries[number] = self._unsplit(query) if self.raw else query
            except ValueError as error:
                answers[number] = {"error": str(error)}
        answers |= zip(queries, self._answers([*queries.values()]), strict=True)
        for number, (line, text) in enumerate(zip(raw, texts, strict=True)):
            answer = answers[number]
            if "\ufffd" in text and "\ufffd".encode() not in line:
                answer = answer | {"warning": "not UTF-8: the bytes that are not were left out"}
            yield text, {"error": "empty line"} if not text else answer


def _valid(query: Query) -> Query:
    """The query without lone surrogates, which cannot be encoded."""

    def valid(text: str) -> str:
        return text.encode("utf-8", "replace").decode("utf-8")

    text = valid(query.text) if isinstance(query.text, str) else tuple(map(valid, query.text))
    return Query(text, None if query.pair is None else valid(query.pair), query.marks)
