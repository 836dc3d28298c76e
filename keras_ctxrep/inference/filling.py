"""Words for the [MASK]s of a text, by a masked language model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_ctxrep.inference import keras_engine
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.decode import softmax
from keras_ctxrep.text.features import Row, check_texts

__all__ = ["MASK", "Filler", "Filling"]

MASK = "[MASK]"
BATCH = 32


class Filling(NamedTuple):
    """A piece of the vocabulary in the place of a mask.

    Attributes:
        piece: a word, or "##" and the rest of one that begins before the mask.
        probability: that of the model.
    """

    piece: str
    probability: float


class Filler:
    """A masked language model that names pieces for masks; see `Model.fill`.

    Args:
        model: a BERT with its masked language model.
        bundle: of the model.

    Raises:
        ValueError: it has none.
    """

    def __init__(self, model: keras.Model, bundle: Bundle):
        outputs = model.output if isinstance(model.output, dict) else {}
        if "mlm_logits" not in outputs:
            raise ValueError(
                f"a {bundle.family} for the task {bundle.task!r} has no masked language model; name a BERT that was "
                "pretrained (`ctxrep pretrain bert`), or converted from a checkpoint that has one"
            )
        self._features: Any = bundle.features
        self._run = keras_engine.runner(keras.Model(model.input, {"mlm_logits": outputs["mlm_logits"]}))

    def __call__(self, texts: Sequence[str], top: int = 5) -> list[list[list[Filling]]]:
        rows = [_row(str(text), self._features) for text in check_texts(texts)]
        wordpiece, answers = self._features.wordpiece, []
        for begin in range(0, len(rows), BATCH):
            part = rows[begin : begin + BATCH]
            places = [[place for place, token in enumerate(row.tokens) if token == wordpiece.mask] for row in part]
            positions = np.zeros((len(part), max(map(len, places))), np.int32)
            for index, own in enumerate(places):
                positions[index, : len(own)] = own
            logits = self._run(self._features.collate(part) | {"mlm_positions": positions})["mlm_logits"]
            for own, each in zip(places, logits, strict=True):
                answers.append([_best(row, wordpiece.vocab, top) for row in each[: len(own)]])
        return answers


def _row(text: str, features: Any) -> Row:
    """[CLS] text [SEP], with the piece [MASK] where the text has that word."""
    parts = text.split(MASK)
    if len(parts) == 1:
        raise ValueError(f"{text!r}: no {MASK} in it; write {MASK} where a word is to be found")
    wordpiece = features.wordpiece
    ids = [[*part, wordpiece.mask] for part in wordpiece.ids_batch(parts)]
    tokens = [wordpiece.cls, *(token for part in ids for token in part)]
    tokens[-1] = wordpiece.sep  # no mask stands after the last part
    if len(tokens) > features.max_length:
        raise ValueError(f"{text[:60]!r}...: {len(tokens)} pieces; the model reads {features.max_length}: shorten it")
    return Row(tokens, first=len(tokens))


def _best(logits: np.ndarray, vocab: list[str], top: int) -> list[Filling]:
    """The pieces with the largest logits, and their softmax."""
    probabilities = softmax(logits)
    best = np.argsort(-probabilities, kind="stable")[:top]
    return [Filling(vocab[number], float(probabilities[number])) for number in best]
