"""Extractive question answering: the span of a text that answers a question."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep import options
from keras_ctxrep.checks import of_kind
from keras_ctxrep.options import option
from keras_ctxrep.tasks.abilities import Distillable, GraphFeatures, Outputs, Query
from keras_ctxrep.tasks.evaluation import Metrics
from keras_ctxrep.tasks.reading import Columns, Reading, Record
from keras_ctxrep.tasks.task import Task
from keras_ctxrep.text import files, scores
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.decode import best_answers
from keras_ctxrep.text.features import Reads, Row, WindowFeatures
from keras_ctxrep.text.files import checked_text

__all__ = ["Answer", "AnswerOptions", "Options", "Question", "answer_positions", "answers_in_graph", "null_threshold"]

PADDING = -1e4  # the logit of a masked token, as in `models.heads.answer`
UNANSWERABLE = "unanswerable"  # a trait of the training data: some questions have no answer


@dataclass(frozen=True)
class Question:
    """A question about a text.

    Attributes:
        answers: (answer, the character of the context where it begins); () if the context has none, None if unknown.
    """

    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None = None
    id: str = ""
    source: str = field(default="", compare=False)


@dataclass(frozen=True)
class AnswerOptions(options.Options):
    """Options of question answering."""

    stride: int = option(128, "N >0  pieces from one window of a long text to the next")
    max_answer: int = option(30, "N >0  pieces of the longest answer that is given")


Options = AnswerOptions  # its former name


class QuestionReading(Reading):
    """Reads questions with the text that answers them."""

    def examples(self, record: Record) -> Iterator[Question]:
        question, context, key = record.text("question"), record.text("context"), record.value("id")
        try:
            impossible = record.value("is_impossible") is True
            answers = () if impossible else _answers(record.value("answers"), context)
        except ValueError as error:
            raise ValueError(f"question {key!r}: {error}" if key is not None else str(error)) from None
        yield Question(question, context, answers, "" if key is None else checked_text(str(key)), record.source)

    def rows(self, path: Path, columns: Columns):
        suffix = files.suffix(path)
        if suffix == ".json":
            return files.squad(path, [*self.columns, *columns.values()])
        if rows := files.named_rows(path):
            return rows
        raise ValueError(f"{path}: questions are read from .jsonl and .parquet files and the .json of SQuAD")


class Answer(Task, Distillable):
    """The span of a context that answers a question, or none."""

    name = "answer"
    help = "the span that answers a question: SQuAD's JSON, or question, context, answers"
    page = ("Ask a text", "It finds the answer to a question in the text")
    reading = QuestionReading(
        {name: (name,) for name in ("question", "context", "answers", "id", "is_impossible")},
        labelled=("answers", "is_impossible"),
    )
    agrees = "the same answer"
    metrics: ClassVar[tuple[str, ...]] = ("f1", "exact_match", "has_answer_f1", "no_answer_f1")
    model_outputs: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")
    outputs: ClassVar[Mapping[str, str]] = {
        "answer": "the answer, empty if the context has none",
        "start": "where it begins, in characters of the context",
        "end": "where it ends, exclusive",
        "score": "the sum of its start and end logits",
        "null_score": "the same of no answer",
    }
    gold = "answers"
    reads = Reads(pair=True, windows=True)
    Options = AnswerOptions
    max_length = 384
    head_dropout = 0.0

    def traits(self, example: Any) -> Iterable[str]:
        return () if example.answers else (UNANSWERABLE,)

    def settings(self, options: Any, traits: set[Hashable]) -> dict:
        threshold = 0.0 if UNANSWERABLE in traits else None
        return {"stride": options.stride, "max_answer": options.max_answer, "null_threshold": threshold}

    def tuned(self, bundle: Bundle, examples: Sequence[Any], ask: Callable[[Sequence[Any]], list[dict]]) -> Bundle:
        if bundle.settings["null_threshold"] is None or all(example.answers for example in examples):
            return bundle
        return replace(bundle, settings=bundle.settings | {"null_threshold": null_threshold(examples, ask(examples))})

    def targets(self, bundle: Bundle, example: Any, rows: Sequence[Row]) -> list:
        return [answer_positions(row, example) for row in rows]

    def batch(self, bundle: Bundle, targets: list, inputs: Mapping[str, np.ndarray]) -> tuple[dict, ...]:
        starts, ends = np.array(targets, np.int32).T.copy()
        return ({"start_logits": starts, "end_logits": ends},)

    def head(self, encoder: Any, bundle: Bundle) -> Any:
        from keras_ctxrep.models import heads

        return heads.answer(encoder, **bundle.head)

    def check(self, bundle: Bundle) -> None:
        if missing := self.settings(AnswerOptions(), set()).keys() - bundle.settings.keys():
            raise ValueError(
                f"the settings {', '.join(sorted(missing))} are missing in the bundle: train the model again"
            )

    def labelled_by(self, example: Any, answer: dict) -> Any:
        answers = ((answer["answer"], answer["start"]),) if answer["answer"] else ()
        return replace(example, answers=answers)

    def teacher_logits(self, rows: Sequence[Row], outputs: Sequence[Outputs]) -> list[dict[str, np.ndarray]]:
        """By piece: float32 (T,) of each window."""
        return [
            {name: output[name][: len(row)] for name in ("start_logits", "end_logits")}
            for row, output in zip(rows, outputs, strict=True)
        ]

    def logits_of_student(self, row: Row, logits: Mapping[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
        if row.pair is not None:
            raise ValueError("stack='bidaf': a student reads question and context together, as a BERT; leave it out")
        if any(len(values) != len(row) for values in logits.values()):
            raise ValueError(
                f"{row.source}: the teacher's window has other pieces; a student needs the teacher's vocabulary, "
                "length and stride"
            )
        padding = (0, length - len(row))
        return {name: np.pad(values, padding, constant_values=PADDING) for name, values in logits.items()}

    def query(self, example: Any) -> Query:
        return Query(example.question, example.context)

    def encode(self, bundle: Bundle, queries: Sequence[Query]) -> list[list[Row]]:
        questions, contexts = [str(query.text) for query in queries], [query.pair or "" for query in queries]
        error = f"a model of the family {bundle.family!r} reads no questions with their contexts"
        features: WindowFeatures = of_kind(bundle.features, WindowFeatures, error)
        return features.windows(questions, contexts, bundle.settings["stride"])

    def decode(self, bundle: Bundle, query: Query, rows: Sequence[Row], outputs: Sequence[Outputs]) -> dict:
        settings = bundle.settings
        best, null = best_answers(rows, outputs, query.pair or "", settings["max_answer"])
        none = {"answer": "", "start": 0, "end": 0, "score": null}
        threshold = settings["null_threshold"]
        unanswered = not best or (threshold is not None and null - best[0]["score"] > threshold)
        top = none if unanswered else {name: best[0][name] for name in none}
        return top | {"null_score": null, "n_best": best}

    def empty(self, bundle: Bundle) -> dict[str, Any]:
        return dict.fromkeys(("answer", "start", "end", "score", "null_score")) | {"n_best": []}

    def served(self, bundle: Bundle, query: Query, output: Outputs) -> dict:
        offsets = {name: int(output[name]) for name in ("start", "end")}
        sums = {name: float(output[name]) for name in ("score", "null_score")}
        return {"answer": bytes(output["answer"]).decode("utf-8")} | offsets | sums

    def own_fields(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Without the context and the answers, if the question has an id."""
        fields = super().own_fields(row)
        long = ("context", "answers", "is_impossible") if self.reading.columns["id"][-1] in fields else ()
        return {name: value for name, value in fields.items() if name not in long}

    def cells(self, answer: dict) -> dict[str, Any]:
        return {"prediction": answer.get("answer")} | {name: answer.get(name) for name in ("start", "end", "score")}

    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        truths = [[text for text, _ in example.answers] for example in expected]
        predicted = [answer.get("answer") for answer in answers]
        f1, exact = (
            np.array([0.0 if text is None else of(text, gold) for text, gold in zip(predicted, truths, strict=True)])
            for of in (scores.answer_f1, scores.exact_match)
        )
        values = {"f1": float(f1.mean()), "exact_match": float(exact.mean())}
        answerable = np.array([bool(gold) for gold in truths])
        if answerable.any() and not answerable.all():
            values |= {"has_answer_f1": float(f1[answerable].mean()), "no_answer_f1": float(f1[~answerable].mean())}
        return Metrics(values, 1 - f1, lambda drawn: f1[drawn].mean())

    def shown(self, example: Any, answer: dict) -> dict[str, Any]:
        expected = " | ".join(dict.fromkeys(text for text, _ in example.answers)) or "(none)"
        shown = {"input": example.question, "expected": expected, "answer": answer.get("error") or answer["answer"]}
        return shown | {"texts": [example.question, example.context]}

    def agreement(self, reference: dict, answer: dict) -> list[tuple[bool, float]]:
        return [(reference["answer"] == answer["answer"], abs(reference["score"] - answer["score"]))]

    def inputs(self, bundle: Bundle) -> tuple[str, ...]:
        return ("question", "context")

    def in_graph(self, bundle: Bundle, features: GraphFeatures, ids: Any, inputs: dict) -> tuple[dict, Any]:
        windows = features.windows(inputs["question"], inputs["context"], bundle.settings["stride"])
        answers = answers_in_graph(windows.run(ids), windows, bundle.settings)
        return answers, self.has_words(bundle, windows.inputs, windows.example)


def _answers(answers: Any, context: str) -> tuple[tuple[str, int], ...] | None:
    if answers is None:
        return None
    try:
        if isinstance(answers, dict):
            pairs = tuple(zip(answers["text"], answers["answer_start"], strict=True))
        else:
            pairs = tuple((entry["text"], entry.get("start", entry.get("answer_start"))) for entry in answers)
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ValueError(f'answers {str(answers)[:80]}: they are a list of {{"text", "start"}}') from None
    for text, start in pairs:
        if not isinstance(text, str) or type(start) is not int or not text.strip():
            raise ValueError(f"answer {text!r} at {start!r}: a text and a whole number are needed")
        excerpt = context[start : start + len(text)] if start >= 0 else ""
        if excerpt != text:
            raise ValueError(f"answer {text!r} is not at character {start} of its context; found {excerpt!r}")
    return pairs


def answer_positions(row: Row, question: Question) -> tuple[int, int]:
    """The logits of the first and the last piece that hold the first answer, or (0, 0) if a window has not all of it.

    As https://github.com/google-research/bert, run_squad.py.

    Args:
        row: a window, with offsets.
        question: with its answers.
    """
    assert question.answers is not None and row.offsets is not None
    if question.answers:
        text, begin = question.answers[0]
        assert row.context is not None
        inside = row.context
        pieces = [i for i in inside if row.offsets[i][1] > begin and row.offsets[i][0] < begin + len(text)]
        if pieces:
            first, last = row.offsets[pieces[0]][0], row.offsets[pieces[-1]][1]
            # the ends of a window may cut the answer; elsewhere a character of no piece, like an accent, is allowed
            begins, ends = first <= begin, begin + len(text.rstrip()) <= last
            if (begins or pieces[0] > inside[0]) and (ends or pieces[-1] < inside[-1]):
                return pieces[0], pieces[-1]
    return 0, 0


def null_threshold(expected: Sequence[Question], answers: Sequence[dict]) -> float:
    """The margin over the best answer from which no answer is given, for the largest F1 on some questions.

    Devlin et al. 2018, section 4.3. It lies halfway between the questions it tells apart; of equally good ones it is
    the nearest to 0.

    Args:
        expected: questions, with their answers.
        answers: of a `Predictor`, one for each, whatever its own threshold.

    >>> questions = [Question("", "rain or snow", (("rain", 0),)), Question("", "rain or snow", ())]
    >>> answers = [{"null_score": null, "n_best": [{"answer": "rain", "score": 1.0}]} for null in (3.0, 5.0)]
    >>> null_threshold(questions, answers)
    3.0
    """
    rows = []
    for question, answer in zip(expected, answers, strict=True):
        truths = [text for text, _ in question.answers or ()]
        if answer["n_best"]:  # else there is no choice
            best = answer["n_best"][0]
            gain = scores.answer_f1(best["answer"], truths) - scores.answer_f1("", truths)
            rows.append((answer["null_score"] - best["score"], gain))
    if not rows:
        return 0.0
    margins, gains = np.array(sorted(rows)).T  # answered are those up to the threshold
    edges = np.concatenate([[margins[0] - 2], margins, [margins[-1] + 2]])
    thresholds = (edges[:-1] + edges[1:]) / 2
    totals = np.concatenate([[0], np.cumsum(gains)])
    apart = edges[:-1] < edges[1:]
    best = apart & (totals >= totals[apart].max() - 1e-9)
    return float(min(thresholds[best], key=abs))


def answers_in_graph(outputs: dict, windows: Any, settings: dict) -> dict:
    """The best span of each question's context, over all of its windows, as TensorFlow operators.

    The sum of its first piece's start logit and its last piece's end logit decides, and it ends with whole words; of
    equal ones the first window, the smallest start and the smallest end. No answer has the smallest sum at [CLS] over
    the windows.

    Args:
        outputs: the model's "start_logits" and "end_logits", float32 (R, T).
        windows: the model's input, `keras_ctxrep_export.text_ops.Windows`.
        settings: as in `Answer.settings`.

    Returns: "answer" string (B,), "start" and "end" int32 (B,) in characters, "score" and "null_score" float32 (B,).
    """
    import tensorflow as tf

    max_answer, threshold = settings["max_answer"], settings["null_threshold"]
    starts, ends = (tf.cast(outputs[f"{edge}_logits"], tf.float32) for edge in ("start", "end"))
    rows, length = tf.unstack(tf.shape(starts, tf.int64))
    null = tf.math.segment_min(starts[:, 0] + ends[:, 0], windows.example)
    position = tf.range(length) - windows.first[:, None]
    inside = (position >= 0) & (position < windows.size[:, None])
    starts, ends = (tf.where(inside, logits, -np.inf) for logits in (starts, ends))
    ends = tf.pad(ends, [[0, 0], [0, max_answer]], constant_values=-np.inf)
    shifted = tf.gather(ends, tf.range(length)[:, None] + tf.range(max_answer, dtype=tf.int64), axis=1)
    sums = tf.reshape(starts[:, :, None] + shifted, [rows, length * max_answer])
    score, best = tf.reduce_max(sums, 1), tf.argmax(sums, 1)
    top = tf.math.segment_max(score, windows.example)
    number = tf.range(rows)
    row = tf.math.segment_min(tf.where(score == tf.gather(top, windows.example), number, rows - 1), windows.example)
    answered = top > -np.inf
    if threshold is not None:
        answered &= null - top <= threshold
    best, first = tf.gather(best, row), tf.gather(windows.piece - windows.first, row)
    piece = first + best // max_answer
    start, end = (
        tf.gather(tf.concat([edge, [0]], 0), tf.where(answered, at, tf.size(edge, tf.int64)))
        for edge, at in ((windows.start, piece), (windows.end, piece + best % max_answer))
    )
    answer = windows.substrings(start, end)
    return {"answer": answer, "start": start, "end": end, "score": tf.where(answered, top, null), "null_score": null}
