"""`ctxrep ask`: questions answered from the texts of an index."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_ctxrep.commands.answering import Answering
from keras_ctxrep.commands.command import ENCODER, argument
from keras_ctxrep.commands.search import hit_content, open_index
from keras_ctxrep.options import AUTO, AnyPath

if TYPE_CHECKING:
    from keras_ctxrep.inference.model import Model
    from keras_ctxrep.inference.predictor import Predictor
    from keras_ctxrep.text.search import Hit, Index

__all__ = ["Ask", "PassageAnswer", "ask"]


class PassageAnswer(NamedTuple):
    """An answer in a passage that was found.

    Attributes:
        answer: the text, a span of the passage.
        score: by how much the span's score, the sum of its start and end logits, exceeds that of no answer there.
        start, end: where it is in the passage, in characters, the end exclusive.
        hit: the passage.
    """

    answer: str
    score: float
    start: int
    end: int
    hit: "Hit"


@dataclass(frozen=True)
class Ask(Answering):
    """Answer a question from the texts of an index.

    Searches the index, and a model of the task `answer` reads the passages that were found. Prints the best
    answer, the difference of its score from that of no answer in its passage, and where it is.

    Returns: each question with its answers, as in `ask`.
    """

    tensorflow = False
    index: AnyPath = argument("INDEX  the folder of an index of passages")
    text: str | None = argument("[TEXT]  the question (default: the lines of --input)")
    reader: AnyPath = argument(
        "--reader MODEL published  a model of the task `answer`: a folder, a SavedModel or a .tflite file", kw_only=True
    )
    top: int = argument("[--top N] >0  passages that are read for each question", 5)
    encoder: AnyPath | None = argument(f"[--encoder MODEL] published  {ENCODER} (default: that of the index)")

    def open(self) -> Callable[[list[str]], Iterable[Any]]:
        from keras_ctxrep.inference.engines import open_model

        index, reader = open_index(self.index, self.encoder), open_model(self.reader, AUTO).answer
        return lambda questions: ask(index, questions, reader, self.top)

    def shown(self, text: str, answer: Any) -> tuple[dict, list[str]]:
        rows = [
            {"answer": each.answer, "score": each.score, "start": each.start, "end": each.end}
            | {"passage": hit_content(each.hit)}
            for each in answer
        ]
        lines = ["no answer in the passages that were found"]
        if answer:
            best = answer[0]
            lines = [f"{best.answer}  (score {best.score:.2f}; {best.hit.source or best.hit.id})", _excerpt(best)]
        return {"question": text, "answers": rows}, lines


def ask(
    index: "Index | str | Path", questions: Sequence[str], reader: "str | Path | Model | Predictor", top: int = 5
) -> list[list[PassageAnswer]]:
    """Answers to questions in the texts of an index: a search, then extractive question answering over what it finds.

    Retrieve and read, as DrQA: Chen et al. 2017, https://arxiv.org/abs/1704.00051. Their retriever compares words;
    here it is the index. As there, the reader's scores are not normalized within a passage, so that they can be
    compared across passages. The best answer is that with the largest difference of the score of its span and that of
    no answer in the same passage (Devlin et al. 2018, section 4.3, for one passage); of equal ones that of the better
    hit. A passage in which the reader finds no answer has none here.

    Args:
        index: of passages; or its folder.
        questions: strings.
        reader: a model of the task "answer", in any engine: a folder, a SavedModel or a .tflite file, or one opened.
        top: passages that are read for each question.

    Returns: the answers to each question, one a passage, the best first; [] where there is none.

    Raises:
        ValueError: the reader does not answer questions, or a question has no words.
    """
    from keras_ctxrep.text.features import check_texts
    from keras_ctxrep.text.search import Index

    questions = check_texts(questions)
    predictor = _reader(reader)
    opened = index if isinstance(index, Index) else open_index(index)
    found = opened.search(questions, top)
    pairs = [(question, hit) for question, hits in zip(questions, found, strict=True) for hit in hits]
    if empty := next((hit for _, hit in pairs if not hit.text), None):
        raise ValueError(f"row {empty.id!r}: it has no text to read an answer from")
    answers = iter(predictor([question for question, _ in pairs], [hit.text for _, hit in pairs]) if pairs else [])
    results = []
    for hits in found:
        spans = []
        for hit, answer in zip(hits, islice(answers, len(hits)), strict=True):
            if answer.get("answer"):
                score = float(answer["score"] - answer["null_score"])
                spans.append(PassageAnswer(answer["answer"], score, answer["start"], answer["end"], hit))
        results.append(sorted(spans, key=lambda span: -span.score))  # which keeps the order of equal ones
    return results


def _reader(reader: "str | Path | Model | Predictor") -> "Predictor | Callable[..., list[dict]]":
    """What answers questions, (texts, pairs) -> answers."""
    from keras_ctxrep import tasks
    from keras_ctxrep.inference.engines import open_model
    from keras_ctxrep.inference.model import Model

    opened = open_model(reader, AUTO).answer if isinstance(reader, str | Path) else reader
    bundle = opened.bundle
    answers = opened.predict if isinstance(opened, Model) else opened
    if not {"answer", "null_score"} <= tasks.of_model(bundle).outputs.keys():
        raise ValueError(
            f"the reader is a model of the task {bundle.task!r}; one that answers questions is made by "
            "`ctxrep train --task answer`"
        )
    return answers


def _excerpt(answer: Any, around: int = 60) -> str:
    """The answer's surroundings in its passage."""
    text = answer.hit.text
    begin, end = max(0, answer.start - around), answer.end + around
    return f"  {'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"
