"""Coreference of a pronoun: which of two names in a text it means, or neither."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep.tasks.abilities import Query
from keras_ctxrep.tasks.classify import LabelTask, LossOptions
from keras_ctxrep.tasks.evaluation import Metrics, confidence, f1_of
from keras_ctxrep.tasks.reading import Reading, Record
from keras_ctxrep.text import scores
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Reads, Span

__all__ = ["Coreference", "Pronoun"]

LABELS = ("A", "B", "neither")
TRUTH = {"TRUE": True, "FALSE": False, "True": True, "False": False, "true": True, "false": False}
# pronouns by gender, as the GAP scorer has them
GENDERS = {"masculine": ("he", "him", "his"), "feminine": ("she", "her", "hers")}


@dataclass(frozen=True)
class Pronoun:
    """A text with a pronoun and two names.

    Attributes:
        pronoun, a, b: where each stands, [begin, end) in characters of the text.
        label: "A", "B" or "neither"; None if it is unknown.
    """

    text: str
    pronoun: Span
    a: Span
    b: Span
    label: str | None = None
    source: str = field(default="", compare=False)


class PronounReading(Reading):
    """Reads pronouns with two names."""

    def examples(self, record: Record) -> Iterator[Pronoun]:
        text = record.text("text")
        pronoun, a, b = (_span(record, text, name) for name in ("pronoun", "a", "b"))
        meant = [_is_meant(record.value(f"{name}_coref"), name) for name in ("a", "b")]
        if meant == [True, True]:
            raise ValueError("a_coref and b_coref are both true; at most one of them is")
        label = None if None in meant else LABELS[meant.index(True)] if True in meant else "neither"
        yield Pronoun(text, pronoun, a, b, label, record.source)


def _span(record: Record, text: str, name: str) -> Span:
    mention, offset = record.text(name), record.value(f"{name}_offset")
    if isinstance(offset, bool) or not str(offset).isdecimal():
        raise ValueError(f"{name}_offset {offset!r}: the character of the text where {mention!r} begins is needed")
    begin = int(offset)
    excerpt = text[begin : begin + len(mention)]
    if excerpt != mention:
        raise ValueError(f"{name} {mention!r} is not at character {begin} of its text; found {excerpt!r}")
    return begin, begin + len(mention)


def _is_meant(value: Any, name: str) -> bool | None:
    if value in (None, ""):
        return None
    if str(value) not in TRUTH:
        raise ValueError(f"{name}_coref {value!r}: TRUE or FALSE is needed")
    return TRUTH[str(value)]


class Coreference(LabelTask):
    """Which of two names a pronoun means.

    The task and the format of GAP (Webster et al. 2018, https://arxiv.org/abs/1810.05201); the metric of its scorer,
    https://github.com/google-research-datasets/gap-coreference: F1 over the decisions "A is meant" and "B is meant", of
    all pronouns, of masculine and of feminine ones, and the ratio of these two, "bias". The network is that of Lee et
    al. 2017, reduced to one pronoun and two candidates: `models.heads.coreference`.
    """

    name = "coreference"
    help = "which of two names a pronoun means: GAP's columns, or text, pronoun, a, b and their offsets"
    reading = PronounReading(
        {name: (name, name.capitalize()) for name in ("text", "pronoun", "a", "b")}
        | {f"{name}_offset": (f"{name}_offset", f"{name.capitalize()}-offset") for name in ("pronoun", "a", "b")}
        | {f"{name}_coref": (f"{name}_coref", f"{name.capitalize()}-coref") for name in ("a", "b")},
        labelled=("a_coref", "b_coref"),
    )
    metrics: ClassVar[tuple[str, ...]] = ("f1", "masculine_f1", "feminine_f1", "precision", "recall", "accuracy")
    reads = Reads(marks=3)
    max_length = 256
    Options = LossOptions

    def labels(self, used: Mapping[str, int], source: str, options: Any) -> tuple[str, ...]:
        if not used:
            raise ValueError(f"{source}: no labels")
        return LABELS

    def head(self, encoder: Any, bundle: Bundle) -> Any:
        from keras_ctxrep.models import heads

        return heads.coreference(encoder, **bundle.head)

    def query(self, example: Any) -> Query:
        return Query(example.text, None, (example.pronoun, example.a, example.b))

    def answer(self, bundle: Bundle, query: Query, scores: np.ndarray) -> dict:
        answer = super().answer(bundle, query, scores)
        return {"label": answer["label"], "name": _name(query, answer["label"])} | answer

    def empty(self, bundle: Bundle) -> dict[str, Any]:
        return {"label": None, "name": None} | super().empty(bundle)

    def cells(self, answer: dict) -> dict[str, Any]:
        return {"prediction": answer.get("label"), "name": answer.get("name"), "score": answer.get("score")}

    def compute_metrics(self, expected: Sequence[Any], answers: Sequence[dict], labels: Sequence[str]) -> Metrics:
        counts = np.array([_decisions(e.label, a.get("label")) for e, a in zip(expected, answers, strict=True)])
        words = [example.text[slice(*example.pronoun)].lower() for example in expected]
        by_gender = {name: counts[np.isin(words, pronouns)].sum(0) for name, pronouns in GENDERS.items()}
        precision, recall, f1 = scores.precision_recall_f1(counts.sum(0)).tolist()
        values = {"f1": f1} | {f"{name}_f1": f1_of(gender) for name, gender in by_gender.items()}
        if values["masculine_f1"]:
            values["bias"] = values["feminine_f1"] / values["masculine_f1"]
        right = [e.label == a.get("label") for e, a in zip(expected, answers, strict=True)]
        values |= {"precision": precision, "recall": recall, "accuracy": float(np.mean(right))}
        return Metrics(values, counts @ [-2, 1, 1], lambda drawn: f1_of(counts[drawn].sum(0)))

    def shown(self, example: Any, answer: dict) -> dict[str, Any]:
        query = self.query(example)
        begin, end = example.pronoun
        text = f"{example.text[max(0, begin - 60) : begin]}[{example.text[begin:end]}]{example.text[end : end + 20]}"
        expected = _name(query, example.label) or "neither"
        shown = {"input": text, "expected": expected, "answer": answer.get("error") or answer["name"] or "neither"}
        return shown | confidence(answer)


def _name(query: Query, label: str | None) -> str | None:
    """The name that a label stands for."""
    spans = dict(zip(LABELS, query.marks[1:], strict=False))
    return str(query.text)[slice(*spans[label])] if label in spans else None


def _decisions(expected: str, predicted: str | None) -> list[int]:
    """Decisions that are right, that are predicted, and that are expected, of "A is meant" and "B is meant"."""
    named = {"A", "B"}
    return [int(expected == predicted and expected in named), int(predicted in named), int(expected in named)]
