"""Tagging: one label for each word, such as named entities or parts of speech."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import eq
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep import options
from keras_ctxrep.options import option
from keras_ctxrep.tasks.abilities import Distillable, GraphFeatures, LabelsWords, Outputs, Query
from keras_ctxrep.tasks.classify import COLUMNS, class_name, cross_entropy, enough_labels, label_smoothing
from keras_ctxrep.tasks.evaluation import Metrics, f1_of, f1_table
from keras_ctxrep.tasks.reading import Columns, Reading, Record
from keras_ctxrep.tasks.task import Task
from keras_ctxrep.text import files, scores
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.decode import entities, softmax
from keras_ctxrep.text.features import Reads, Row
from keras_ctxrep.text.files import checked_text
from keras_ctxrep.text.tags import is_spans, spans, to_iob2
from keras_ctxrep.text.tokens import joined

__all__ = ["Options", "Tag", "TagOptions", "Tagged"]


@dataclass(frozen=True)
class Tagged:
    """A sentence split into words, with a tag for each; those of spans in IOB2.

    Attributes:
        types: those of its tags in Python objects, where they need not be text.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    source: str = field(default="", compare=False)
    types: frozenset[type] = field(default=frozenset(), compare=False, repr=False)


@dataclass(frozen=True)
class TagOptions(options.Options):
    """Options of taggers."""

    crf: bool = option(False, "predict a sentence's labels jointly, with a CRF")
    label_smoothing: float = label_smoothing()

    def __post_init__(self):
        super().__post_init__()
        if self.crf and self.label_smoothing:
            raise ValueError(
                f"label_smoothing={self.label_smoothing}: a CRF's loss is over whole sentences and has no distribution "
                "of a single label to smooth; leave crf or label_smoothing out"
            )


Options = TagOptions  # its former name


class SentenceReading(Reading):
    """Reads sentences that are split into words, with a tag for each."""

    # names of columns that a table has and a CoNLL file does not, whose sentences all have the same number of columns
    header: ClassVar[frozenset[str] | None] = frozenset({*chain(*COLUMNS.values()), "words", "tags", "label", "labels"})

    def examples(self, record: Record) -> Iterator[Any]:
        words = checked_words(record.value("text"))
        yield Tagged(words, checked_tags(words, record.value("label")), record.source, record.label_types())

    def rows(self, path: Path, columns: Columns):
        return files.named_rows(path) or self._conll(path, columns)

    def _conll(self, path: Path, columns: Mapping[str, str]) -> files.FileRows:
        files.conll_columns(path, columns)  # to check them
        for number, tokens in files.conll(path, self.header):
            yield number, partial(self.sentence, tokens, columns)

    def sentence(self, read: Callable[[], Sequence[files.Token]], columns: Mapping[str, str]) -> files.Sentence:
        """The row of a sentence of a CoNLL file, from a function that returns its tokens."""
        tokens = read()
        numbers = self.column_numbers(columns, len(tokens[0]))
        word, tag = numbers.get("text", 0), numbers.get("label", len(tokens[0]) - 1)
        row = files.Sentence(tokens, **{columns.get("text", "words"): files.column(tokens, word)})
        if word != tag:
            row[columns.get("label", "tags")] = files.column(tokens, tag)
        return row

    def column_numbers(self, columns: Mapping[str, str], width: int) -> dict[str, int]:
        """Field -> index of its column in a CoNLL file: those given, and the existing ones that a model knows."""
        of_model = {field: int(names[0]) - 1 for field, names in self.columns.items() if names[0].isdecimal()}
        of_model = {field: number for field, number in of_model.items() if number < width}
        return of_model | {field: int(number) - 1 for field, number in columns.items()}


class Tag(Task, Distillable, LabelsWords):
    """One label for each word."""

    name = "tag"
    help = "one label for each word: CoNLL columns, or words, tags"
    page = ("What is in the text?", "It marks words as one of")
    reading = SentenceReading({"text": ("words", "tokens"), "label": ("tags", "labels", "ner_tags", "ner")})
    agrees = "the same label of a word"
    metrics: ClassVar[tuple[str, ...]] = ("span_f1", "precision", "recall", "token_accuracy", "accuracy", "macro_f1")
    outputs: ClassVar[Mapping[str, str]] = {
        "words": "the words of the text",
        "starts": "where each begins, in characters of the text",
        "ends": "where each ends, exclusive",
        "labels": "the tag of each; empty in padding and for words that were cut off",
        "scores": "the probability of each tag",
        "tags": "the numbers of the tags, of a model with a CRF",
    }
    gold = "tags"
    reads = Reads(words=True)
    Options = TagOptions

    def traits(self, example: Any) -> Iterable[Hashable]:
        return getattr(example, "types", ())

    def doubt(self, count: int, used: Mapping[str, int]) -> str | None:
        if count == 1:
            return "one sentence in it; an empty line stands between sentences"
        if len(used) > 2 and max(used.values()) == 1:
            return (
                f"each of its {len(used)} labels is used once; the label is in the last column, or in --columns label=N"
            )
        return None

    def labels_of(self, example: Any) -> Sequence | None:
        return example.tags

    def labels(self, used: Mapping[str, int], source: str, options: Any) -> tuple[str, ...]:
        if is_spans(used):
            kinds = {label[1:] for label in used if label != "O"}  # "-PER", or "" of bare B and I
            return enough_labels({"O"} | {f"{edge}{kind}" for kind in kinds for edge in "BI"}, source, "tagger")
        return enough_labels(used, source, "tagger")

    def targets(self, bundle: Bundle, example: Any, rows: Sequence[Row]) -> list:
        numbers = bundle.label_numbers
        starts = rows[0].starts or []
        tags = [tag for start, tag in zip(starts, example.tags, strict=True) if start is not None]
        # -1: not in the training data, or cut off where a teacher labelled the words
        return [[numbers.get(tag, -1) for tag in tags]]

    def batch(self, bundle: Bundle, targets: list, inputs: Mapping[str, np.ndarray]) -> tuple[dict, ...]:
        labels = np.full(inputs.get("starts", inputs["mask"]).shape, -1, np.int32)
        for row, target in zip(labels, targets, strict=True):
            row[: len(target)] = target
        if bundle.head.get("crf"):
            return ({"logits": labels},)
        weights = (labels >= 0).astype(np.float32)
        weights *= weights.size / max(1.0, weights.sum())  # so that the mean over all positions is that over words
        return {"logits": np.maximum(labels, 0)}, {"logits": weights}

    def head(self, encoder: Any, bundle: Bundle) -> Any:
        from keras_ctxrep.models import heads

        return heads.tag(encoder, len(bundle.labels), **bundle.head)

    def head_options(self, options: Any) -> dict:
        return {"crf": True} if options.crf else {}

    def loss(self, options: Any, counts: Mapping[str, int], traits: Collection[Hashable] = (), rows: int = 2) -> Any:
        return None if options.crf else cross_entropy(options.label_smoothing)

    def labelled_by(self, example: Any, answer: dict) -> Any:
        return replace(example, tags=tuple(predicted_tags(example, answer)))

    def teacher_logits(self, rows: Sequence[Row], outputs: Sequence[Outputs]) -> list[dict[str, np.ndarray]]:
        """By word, so that the student may have other pieces: float32 (words, C), NaN of words that were not read."""
        starts, logits = rows[0].starts or [], outputs[0]["logits"]
        by_word = np.full((len(starts), logits.shape[-1]), np.nan, np.float32)
        read = [number for number, start in enumerate(starts) if start is not None]
        by_word[read] = logits[: len(read)]
        return [{"logits": by_word}]

    def logits_of_student(self, row: Row, logits: Mapping[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
        read = [number for number, start in enumerate(row.starts or []) if start is not None]
        return {"logits": logits["logits"][read]}

    def query(self, example: Any) -> Query:
        return Query(example.words)

    def decode(self, bundle: Bundle, query: Query, rows: Sequence[Row], outputs: Sequence[Outputs]) -> dict:
        output, starts, text = outputs[0], rows[0].starts or [], query.text
        probabilities = softmax(output["logits"])  # (W, C), W or more
        tags = output["tags"] if "tags" in output else probabilities.argmax(-1)
        if isinstance(text, str):
            sentence, offsets = text, rows[0].words or []
        else:
            sentence, offsets = joined(text)
        words, number = [], 0
        for start, (begin, end) in zip(starts, offsets, strict=False):
            if start is not None:
                tag = int(tags[number])
                score = float(probabilities[number, tag])
                words.append(_word(sentence[begin:end], begin, end, bundle.labels[tag], score))
                number += 1
            elif not isinstance(text, str):  # cut off
                words.append(_word(sentence[begin:end], begin, end, None, 0.0))
        return self.answer(bundle, words, sentence)

    def served(self, bundle: Bundle, query: Query, output: Outputs) -> dict:
        if not isinstance(query.text, str):
            sentence, offsets = joined(query.text)
            columns = zip(query.text, offsets, output["labels"], output["scores"], strict=False)  # without padding
            words = [
                _word(word, begin, end, label.decode() or None, float(score))
                for word, (begin, end), label, score in columns
            ]
            return self.answer(bundle, words, sentence)
        columns = zip(*(output[name] for name in ("words", "starts", "ends", "labels", "scores")), strict=True)
        words = [
            _word(word.decode(), int(begin), int(end), label.decode(), float(score))
            for word, begin, end, label, score in columns
            if label
        ]
        return self.answer(bundle, words, str(query.text))

    def answer(self, bundle: Bundle, words: list[dict], sentence: str) -> dict:
        """The answer of labelled words: with "entities" where the labels mark spans."""
        if not is_spans(bundle.labels):
            return {"words": words}
        marked = []
        for kind, first, last in entities([word["label"] for word in words]):
            begin, end = words[first]["start"], words[last - 1]["end"]
            marked.append({"type": kind, "text": sentence[begin:end], "start": begin, "end": end})
        return {"words": words, "entities": marked}

    def typed(self, answer: dict, values: Mapping[str, Any]) -> dict:
        return answer | {"words": [word | {"label": values.get(word["label"])} for word in answer["words"]]}

    def empty(self, bundle: Bundle) -> dict[str, Any]:
        return self.answer(bundle, [], "")

    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        gold = [example.tags for example in expected]
        predicted = [predicted_tags(example, answer) for example, answer in zip(expected, answers, strict=True)]
        right = np.array([sum(map(eq, *pair)) for pair in zip(gold, predicted, strict=True)])
        size = np.array([len(sentence) for sentence in gold])
        accuracy = float(right.sum() / size.sum())
        tags = sorted({tag for side in (gold, predicted) for sentence in side for tag in sentence} - {""})
        if is_spans(labels or tags):
            return span_metrics(gold, predicted, {"token_accuracy": accuracy})
        gold, predicted = ([[*enumerate(sentence)] for sentence in side] for side in (gold, predicted))
        _, by_tag = scores.counts(gold, predicted, tags, lambda item: item[1])
        values = {"accuracy": accuracy, "macro_f1": float(scores.precision_recall_f1(by_tag)[:, 2].mean())}
        table = f1_table(tags, by_tag)
        return Metrics(values, size - right, lambda drawn: right[drawn].sum() / size[drawn].sum(), table)

    def labels_of_words(self, example: Any, answer: dict) -> Sequence[str]:
        return predicted_tags(example, answer)

    def cells(self, answer: dict) -> dict[str, Any]:
        return {"prediction": " ".join(word["label"] or "_" for word in answer.get("words", ()))}

    def shown(self, example: Any, answer: dict) -> dict[str, Any]:
        tags = predicted_tags(example, answer)
        return {
            "input": " ".join(example.words),
            "expected": _with_tags(example.words, example.tags),
            "answer": answer.get("error") or _with_tags(example.words, tags),
        }

    def agreement(self, reference: dict, answer: dict) -> list[tuple[bool, float]]:
        pairs = zip(reference["words"], answer["words"], strict=False)
        words = [(a["label"] == b["label"], abs(a["score"] - b["score"])) for a, b in pairs]
        return words + [(False, 1.0)] * abs(len(reference["words"]) - len(answer["words"]))

    def in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Any, inputs: dict) -> tuple[dict, Any]:
        return self._label(bundle, features.tagging(**inputs), ids)

    def words_in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Callable, inputs: dict) -> tuple[dict, Any]:
        marks = {name: value for name, value in inputs.items() if name != "words"}
        return self._label(bundle, features.given(inputs["words"], **marks), ids)

    def _label(self, bundle, sentences, ids) -> tuple[dict, Any]:
        """The model's outputs and the answers, a row for each word of `sentences`, and which of them have words."""
        import tensorflow as tf

        outputs = ids(sentences.inputs)
        probabilities = tf.nn.softmax(tf.cast(outputs["logits"], tf.float32))
        tags = outputs["tags"] if "tags" in outputs else tf.argmax(probabilities, axis=-1)
        labels = sentences.by_word(tf.gather(tf.constant(bundle.labels), tags), "")
        scores = sentences.by_word(tf.gather(probabilities, tags, batch_dims=2))
        by_word = {name: sentences.by_word(value) for name, value in outputs.items()}
        answers = by_word | sentences.words | {"labels": labels, "scores": scores}
        return answers, self.has_words(bundle, sentences.inputs)


def checked_words(words: Any) -> tuple[str, ...]:
    """The words of a row.

    Raises:
        ValueError: there are none, or one of them is empty.
    """
    if not isinstance(words, list) or not words:
        raise ValueError(f"words {words!r}: a list of words is needed (key 'words')")
    for word in words:
        if not isinstance(word, str) or not word.strip():
            raise ValueError(f"{word!r} is not a word")
        checked_text(word)
    return tuple(words)


def checked_tags(words: Sequence[str], tags: Any) -> tuple[str, ...] | None:
    """The tags of a row's words, those of spans in IOB2.

    Args:
        words: of the row.
        tags: a list of strings; None: the row is not labelled.

    Raises:
        ValueError: there are more or fewer than words, or one of them is empty.
    """
    if tags is None:
        return None
    if not isinstance(tags, list) or len(tags) != len(words):
        raise ValueError(f"{len(words)} words and {len(tags) if isinstance(tags, list) else repr(tags)} tags")
    names = [class_name(tag) for tag in tags]
    if None in names:
        raise ValueError(f"word {names.index(None) + 1}, {words[names.index(None)]!r}, has no tag")
    return to_iob2([name for name in names if name is not None])


def predicted_tags(example: Any, answer: dict) -> list[str]:
    """The tag of each word in an answer, "" of a word that was cut off, and of all words if there is none.

    Args:
        example: a sentence that is split into words.
        answer: of a tagger.

    Raises:
        ValueError: the answer has other words than the example.
    """
    if "error" in answer:
        return [""] * len(example.words)
    tags = [word["label"] or "" for word in answer["words"]]
    if len(tags) != len(example.words):
        source = example.source or " ".join(example.words)[:60]
        raise ValueError(
            f"{source}: {len(example.words)} words, {len(tags)} in the answer; predict the words as they are"
        )
    return tags


def span_metrics(gold: Sequence, predicted: Sequence, more: dict[str, float], ignored: str | None = None) -> Metrics:
    """Precision, recall and F1 of the spans that tags mark, as conlleval counts them.

    Args:
        gold, predicted: the tags of each sentence.
        more: further metrics.
        ignored: spans of this type do not count.
    """
    expected, answered = (
        [[span for span in spans(tags) if span[0] != ignored] for tags in side] for side in (gold, predicted)
    )
    kinds = sorted({span[0] for side in (expected, answered) for sentence in side for span in sentence})
    by_sentence, by_kind = scores.counts(expected, answered, kinds, lambda span: span[0])
    precision, recall, f1 = scores.precision_recall_f1(by_sentence.sum(0)).tolist()
    values = {"span_f1": f1, "precision": precision, "recall": recall} | more
    mistakes, table = by_sentence @ [-2, 1, 1], f1_table(kinds, by_kind)
    return Metrics(values, mistakes, lambda drawn: f1_of(by_sentence[drawn].sum(0)), table)


def _word(word: str, start: int, end: int, label: str | None, score: float) -> dict:
    """A word of an answer."""
    return {"word": word, "start": start, "end": end, "label": label, "score": score}


def _with_tags(words: Sequence[str], tags: Sequence[str]) -> str:
    """The words with a tag other than O, each with its tag."""
    return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True) if tag not in ("O", ""))
