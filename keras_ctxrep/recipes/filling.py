"""Words for the [MASK]s of a text, by a masked language model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_ctxrep import saving, zoo
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.saving import ModelFolder
from keras_ctxrep.text.features import Row, check_texts

__all__ = ["MASK", "Filling", "fill"]

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


def fill(model: str | Path | ModelFolder, texts: Sequence[str], top: int = 5) -> list[list[list[Filling]]]:
    """The most probable pieces for each [MASK] of some texts, each mask by itself (Devlin et al. 2018, section 3.1).

    Args:
        model: a model folder, or the name of a published model, of a BERT with its masked language model; or such a
            model that is loaded.
        texts: each with one [MASK] or more.
        top: pieces for a mask.

    Returns: for each text, for each of its masks in their order, `top` pieces, the most probable first.

    Raises:
        ValueError: the model has no masked language model, or a text has no mask or is longer than the model reads.
    """
    texts = [str(text) for text in check_texts(texts)]
    network, bundle = model if isinstance(model, ModelFolder) else saving.load(zoo.find(model))
    outputs = network.output if isinstance(network.output, dict) else {}
    if "mlm_logits" not in outputs:
        what = f"a {bundle.family} for the task {bundle.task!r}"
        raise ValueError(
            f"{what}: it has no masked language model; name a BERT that was pretrained (`ctxrep pretrain bert`, or "
            "`ctxrep convert` of a checkpoint that has one)"
        )
    features: Any = bundle.features
    rows = [_row(text, features) for text in texts]
    run = keras_engine.runner(keras.Model(network.input, {"mlm_logits": outputs["mlm_logits"]}))
    answers: list[list[list[Filling]]] = []
    for begin in range(0, len(rows), BATCH):
        part = rows[begin : begin + BATCH]
        places = [[index for index, token in enumerate(row.tokens) if token == features.wordpiece.mask] for row in part]
        positions = np.zeros((len(part), max(map(len, places))), np.int32)
        for index, own in enumerate(places):
            positions[index, : len(own)] = own
        logits = run(features.collate(part) | {"mlm_positions": positions})["mlm_logits"]
        answers += [
            [_best(row, features.wordpiece.vocab, top) for row in each[: len(own)]]
            for each, own in zip(logits, places, strict=True)
        ]
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


def _best(logits: np.ndarray, vocab: Sequence[str], top: int) -> list[Filling]:
    """The pieces with the largest logits, and their softmax."""
    weights = np.exp(logits - logits.max(), dtype=np.float64)
    probabilities = weights / weights.sum()
    best = np.argsort(-probabilities, kind="stable")[:top]
    return [Filling(vocab[number], float(probabilities[number])) for number in best]
