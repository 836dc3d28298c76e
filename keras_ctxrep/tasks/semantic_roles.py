"""Semantic role labelling: who did what to whom, as tags of a sentence's words for one predicate in it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep.tasks.abilities import Query
from keras_ctxrep.tasks.evaluation import Metrics
from keras_ctxrep.tasks.reading import Record
from keras_ctxrep.tasks.tag import SentenceReading, Tag, checked_tags, checked_words, predicted_tags, span_metrics
from keras_ctxrep.text import files
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Reads
from keras_ctxrep.text.files import checked_text

__all__ = ["Roles", "SemanticRoles"]

PREDICATE = "V"  # the type of the predicate's own words, ignored by the metrics
NONE = "-"  # in the predicate's column: not a predicate


@dataclass(frozen=True)
class Roles:
    """A sentence split into words, one of its predicates, and a tag for each word in IOB2.

    Attributes:
        predicate: the number of its word, from 0 on.
    """

    words: tuple[str, ...]
    predicate: int
    tags: tuple[str, ...] | None = None
    source: str = field(default="", compare=False)


class PredicateReading(SentenceReading):
    """Reads sentences with a predicate, one example for each predicate of a CoNLL sentence."""

    header = None  # a sentence has as many columns of tags as predicates

    def examples(self, record: Record) -> Iterator[Roles]:
        row = record.row
        if isinstance(row, files.Sentence):
            words = checked_words(row["words"])
            for number, predicate in enumerate(row["predicates"]):
                tags = row["tags"][number] if row.get("tags") else None
                yield Roles(words, predicate, checked_tags(words, tags), record.source)
            return
        words, predicate = checked_words(record.value("text")), record.value("predicate")
        if isinstance(predicate, bool) or not isinstance(predicate, int) or not 0 <= predicate < len(words):
            raise ValueError(f"predicate {predicate!r}: the number of its word, 0 to {len(words) - 1}, is needed")
        yield Roles(words, predicate, checked_tags(words, record.value("label")), record.source)

    def sentence(self, read: Callable[[], Sequence[files.Token]], columns: Mapping[str, str]) -> files.Sentence:
        """Of a CoNLL sentence its words, the numbers of its predicates, and a column of tags for each, or none."""
        tokens = read()
        numbers = self.column_numbers(columns, len(tokens[0]))
        text, predicate = numbers.get("text", 0), numbers.get("predicate", 2)
        frames = files.column(tokens, predicate)
        predicates = [number for number, frame in enumerate(frames) if frame != NONE]
        behind = len(tokens[0]) - predicate - 1
        if behind not in (0, len(predicates)):
            raise ValueError(
                f"{len(predicates)} predicates in column {predicate + 1} (a word that is none has {NONE!r}) and "
                f"{behind} columns of tags behind it"
            )
        tags = [files.column(tokens, predicate + 1 + order) for order in range(behind)]
        return files.Sentence(tokens, words=files.column(tokens, text), predicates=predicates, tags=tags)


class SemanticRoles(Tag):
    """The arguments of a predicate, as tags of words.

    He et al. 2017, https://aclanthology.org/P17-1044/, and Shi and Lin 2019, https://arxiv.org/abs/1904.05255: a
    sentence is read once for each of its predicates. In a BERT the predicate is marked by segment id 1, as in
    AllenNLP's version of the latter: the paper appends the predicate, [CLS] sentence [SEP] predicate [SEP]; here its
    own pieces have segment id 1, which distinguishes repeated words. Over other encoders the task network has an
    indicator embedding. Tags are predicted one by one, or together by a CRF.
    """

    name = "semantic_roles"
    page = None
    agrees = "the same label of a word"
    metrics: ClassVar[tuple[str, ...]] = ("span_f1", "precision", "recall", "token_accuracy")
    help = "the arguments of a predicate: CoNLL with a BIO column per predicate, or words, predicate, tags"
    reading = PredicateReading(
        {"text": ("words", "tokens"), "predicate": ("predicate", "verb"), "label": ("tags", "labels", "roles")}
    )
    reads = Reads(words=True, marks=1, indicate=True)

    def query(self, example: Any) -> Query:
        return Query(example.words, None, ((example.predicate, example.predicate + 1),))

    def query_of_line(self, line: str, pairs: bool) -> Query:
        row = files.json_object(line.encode())
        if "text" not in row:
            return super().query_of_line(line, pairs)
        text, span = row["text"], row.get("predicate")
        edges = span if isinstance(span, list) and [type(edge) for edge in span] == [int, int] else [0, 0]
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text {text!r}: a sentence is needed")
        if not 0 <= edges[0] < edges[1] <= len(text):
            raise ValueError(f"predicate {span!r}: [begin, end) in characters of the text is needed")
        return Query(checked_text(text), None, ((edges[0], edges[1]),))

    def answer(self, bundle: Bundle, words: list[dict], sentence: str) -> dict:
        answer = super().answer(bundle, words, sentence)
        arguments = [span for span in answer.get("entities", ()) if span["type"] != PREDICATE]
        return {"words": answer["words"], "arguments": arguments}

    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        gold = [example.tags for example in expected]
        predicted = [predicted_tags(example, answer) for example, answer in zip(expected, answers, strict=True)]
        pairs = [pair for both in zip(gold, predicted, strict=True) for pair in zip(*both, strict=True)]
        right = [tag == answer for tag, answer in pairs]
        return span_metrics(gold, predicted, {"token_accuracy": float(np.mean(right))}, ignored=PREDICATE)

    def shown(self, example: Any, answer: dict) -> dict[str, Any]:
        columns = super().shown(example, answer)
        words = [f"[{word}]" if i == example.predicate else word for i, word in enumerate(example.words)]
        return columns | {"input": " ".join(words)}
