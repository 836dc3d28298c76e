"""`ctxrep fill`: the words that a BERT expects in the place of [MASK]."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keras_ctxrep.commands.answering import Answering
from keras_ctxrep.commands.command import argument
from keras_ctxrep.options import AnyPath

__all__ = ["Fill"]


@dataclass(frozen=True)
class Fill(Answering):
    """The words that a BERT expects in the place of [MASK].

    ctxrep fill bert "Deep learning [MASK] fun."

    Each mask by itself; a piece that begins with ## goes on with the word before it.

    Returns: each text with its masks, as in `Model.fill`.
    """

    tensorflow = False
    folder: AnyPath = argument("""published  a BERT with its masked language model: a model folder, a name of the
        zoo, or a .tflite file of `ctxrep tflite --fill`""")
    text: str | None = argument("[TEXT]  a text with one [MASK] or more (default: the lines of --input)")
    top: int = argument("[--top N] >0  pieces for each mask", 5)

    def open(self) -> Callable[[list[str]], Iterable[Any]]:
        from keras_ctxrep.inference.model import load

        model = load(self.folder)
        return lambda texts: model.fill(texts, self.top)

    def shown(self, text: str, answer: Any) -> tuple[dict, list[str]]:
        return {"text": text, "masks": [[each._asdict() for each in pieces] for pieces in answer]}, mask_lines(answer)


def mask_lines(masks: Sequence[Sequence[tuple[str, float]]]) -> list[str]:
    """What is printed of the pieces for each mask of a text, and their probabilities.

    >>> print(*mask_lines([[("fun", 0.1), ("hard", 0.05)]]), sep="\\n")
     10.00%  fun   ███
      5.00%  hard  ██
    """
    lines = []
    for number, pieces in enumerate(masks, 1):
        lines += [f"mask {number}"] if len(masks) > 1 else []
        longest = max(len(piece) for piece, _ in pieces)
        lines += [f"{chance:7.2%}  {piece:{longest}}  {'█' * round(30 * chance)}".rstrip() for piece, chance in pieces]
    return lines
