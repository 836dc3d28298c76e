"""Words for the [MASK]s of a text, by a masked language model."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_ctxrep.checks import of_kind
from keras_ctxrep.inference.predictor import Run
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.decode import softmax
from keras_ctxrep.text.features import Row, WordPieceFeatures, check_texts

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
        bundle: of the model.
        run: {"token_ids", "segment_ids", "mask", "mlm_positions"} -> {"mlm_logits"}, as in `models.bert.pretrainer`.
        positions: masks of a text that are answered in one call; None: all.
    """

    def __init__(self, bundle: Bundle, run: Run, positions: int | None = None):
        self.bundle, self.run, self.positions = bundle, run, positions
        self._features = of_kind(bundle.features, WordPieceFeatures)

    def __call__(self, texts: Sequence[str], top: int = 5) -> list[list[list[Filling]]]:
        wordpiece, calls = self._features.wordpiece, []
        texts = check_texts(texts)
        answers: list[list[list[Filling]]] = [[] for _ in texts]
        for number, text in enumerate(texts):
            row = _row(str(text), self._features)
            places = [place for place, token in enumerate(row.tokens) if token == wordpiece.mask]
            size = self.positions or len(places)
            calls += [(number, row, places[begin : begin + size]) for begin in range(0, len(places), size)]
        for begin in range(0, len(calls), BATCH):
            part = calls[begin : begin + BATCH]
            positions = np.zeros((len(part), max(len(places) for _, _, places in part)), np.int32)
            for index, (_, _, places) in enumerate(part):
                positions[index, : len(places)] = places
            inputs = self._features.collate([row for _, row, _ in part]) | {"mlm_positions": positions}
            for (number, _, places), logits in zip(part, self.run(inputs)["mlm_logits"], strict=True):
                answers[number] += [_best(row, wordpiece.readable, top) for row in logits[: len(places)]]
        return answers


def _row(text: str, features: WordPieceFeatures) -> Row:
    """[CLS] text [SEP], with the vocabulary's piece for a mask where the text has the word [MASK]."""
    parts = text.split(MASK)
    if len(parts) == 1:
        raise ValueError(f"{text!r}: no {MASK} in it; write {MASK} where a word is to be found")
    wordpiece = features.wordpiece
    ids = [[*part, wordpiece.mask] for part in wordpiece.ids_around_masks(parts)]
    tokens = [wordpiece.cls, *(token for part in ids for token in part)]
    tokens[-1] = wordpiece.sep  # no mask stands after the last part
    if len(tokens) > features.max_length:
        raise ValueError(f"{text[:60]!r}...: {len(tokens)} pieces; the model reads {features.max_length}: shorten it")
    return Row(tokens, first=len(tokens))


def _best(logits: np.ndarray, vocab: Sequence[str], top: int) -> list[Filling]:
    """The pieces with the largest logits, and their softmax."""
    probabilities = softmax(logits)
    best = np.argsort(-probabilities, kind="stable")[:top]
    return [Filling(vocab[int(number)], float(probabilities[number])) for number in best]
