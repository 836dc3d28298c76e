"""Coreference of a pronoun: which of two names in a text it means, or neither."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from keras_ctxrep.tasks.classify import Classify, LossOptions
from keras_ctxrep.tasks.task import Figures, Query, Task, confidence, f1_of
from keras_ctxrep.text import scores
from keras_ctxrep.text.features import Reads, Span

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


class Coreference(Classify):
    """Which of two names a pronoun means.

    The task and the format of GAP (Webster et al. 2018, https://arxiv.org/abs/1810.05201); the metric of its scorer,
    https://github.com/google-research-datasets/gap-coreference: F1 over the decisions "A is meant" and "B is meant", of
    all pronouns, of masculine and of feminine ones, and the ratio of these two, "bias". The network is that of Lee et
    al. 2017, reduced to one pronoun and two candidates: `models.heads.coreference`.
    """

    name = "coreference"
    metrics: ClassVar[tuple[str, ...]] = ("f1", "masculine_f1", "feminine_f1", "precision", "recall", "accuracy")
    help = "which of two names a pronoun means: GAP's columns, or text, pronoun, a, b and their offsets"
    columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text": ("text", "Text"),
        **{name: (name, name.capitalize()) for name in ("pronoun", "a", "b")},
        **{f"{name}_offset": (f"{name}_offset", f"{name.capitalize()}-offset") for name in ("pronoun", "a", "b")},
        **{f"{name}_coref": (f"{name}_coref", f"{name.capitalize()}-coref") for name in ("a", "b")},
    }
    labelled: ClassVar[tuple[str, ...]] = ("a_coref", "b_coref")
    reads = Reads(marks=3)
    max_length = 256
    Options = LossOptions
    settings = Task.settings
    with_positive = Task.with_positive

    def examples(self, row, source="", columns=None) -> Iterator[Any]:
        text = self.text(row, "text", columns)
        pronoun, a, b = (self._span(row, name, text, columns) for name in ("pronoun", "a", "b"))
        meant = [self._meant(self.value(row, f"{name}_coref", columns), name) for name in ("a", "b")]
        if meant == [True, True]:
            raise ValueError("a_coref and b_coref are both true; at most one of them is")
        label = None if None in meant else LABELS[meant.index(True)] if True in meant else "neither"
        yield Pronoun(text, pronoun, a, b, label, source)

    def _span(self, row: Mapping[str, Any], name: str, text: str, columns: Mapping[str, str] | None) -> Span:
        mention, offset = self.text(row, name, columns), self.value(row, f"{name}_offset", columns)
        if isinstance(offset, bool) or not str(offset).isdecimal():
            raise ValueError(f"{name}_offset {offset!r}: the character of the text where {mention!r} begins is needed")
        begin = int(offset)
        excerpt = text[begin : begin + len(mention)]
        if excerpt != mention:
            raise ValueError(f"{name} {mention!r} is not at character {begin} of its text; found {excerpt!r}")
        return begin, begin + len(mention)

    def _meant(self, value: Any, name: str) -> bool | None:
        if value in (None, ""):
            return None
        if str(value) not in TRUTH:
            raise ValueError(f"{name}_coref {value!r}: TRUE or FALSE is needed")
        return TRUTH[str(value)]

    def labels(self, used, source):
        if not used:
            raise ValueError(f"{source}: no labels")
        return LABELS

    def head(self, encoder, bundle):
        from keras_ctxrep.models import heads

        return heads.coreference(encoder, **bundle.head)

    def query(self, example):
        return Query(example.text, None, (example.pronoun, example.a, example.b))

    def answer(self, bundle, query, scores):
        answer = super().answer(bundle, query, scores)
        return {"label": answer["label"], "name": _name(query, answer["label"])} | answer

    def cells(self, answer):
        return {"prediction": answer.get("label"), "name": answer.get("name"), "score": answer.get("score")}

    def figures(self, expected: Sequence[Any], answers, labels) -> Figures:
        counts = np.array([_counts(e.label, a.get("label")) for e, a in zip(expected, answers, strict=True)])
        spoken = [example.text[slice(*example.pronoun)].lower() for example in expected]
        genders = {name: np.isin(spoken, pronouns) for name, pronouns in GENDERS.items()}
        precision, recall, f1 = scores.precision_recall_f1(counts.sum(0)).tolist()
        figures = {"f1": f1} | {f"{name}_f1": f1_of(counts[chosen].sum(0)) for name, chosen in genders.items()}
        if figures["masculine_f1"]:
            figures["bias"] = figures["feminine_f1"] / figures["masculine_f1"]
        right = [e.label == a.get("label") for e, a in zip(expected, answers, strict=True)]
        figures |= {"precision": precision, "recall": recall, "accuracy": float(np.mean(right))}
        return Figures(figures, counts @ [-2, 1, 1], lambda drawn: f1_of(counts[drawn].sum(0)))

    def shown(self, example, answer):
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


def _counts(expected: str, predicted: str | None) -> list[int]:
    """Decisions that are right, that are predicted, and that are expected, of "A is meant" and "B is meant"."""
    named = {"A", "B"}
    return [int(expected == predicted and expected in named), int(predicted in named), int(expected in named)]
