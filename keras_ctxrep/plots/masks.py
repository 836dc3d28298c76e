"""Which tokens each vector of a family of models depends on, measured on small models with random weights."""

from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_ctxrep.models import bert, elmo, lm, static
from keras_ctxrep.plots.drawing import check_drawable, drawing, heat_map

__all__ = ["masks"]

TEXT = "the cat sat on the mat"
PADDING, CONTEXT = 2, 2
PAD = "[PAD]"
MOST = 16  # words: on one further away the forward LSTM still depends by more than CHANGED
WIDTH = 16
SPREAD = 0.3  # standard deviation of the weights: the least change is then above 1e-3
CHANGED = 1e-5  # above the rounding errors of vectors, whose numbers are about 1
FIRST = 3  # id of the first word; those before are markers


class _Family(NamedTuple):
    model: keras.Model
    ids: str  # name of the input
    begin: int = 0  # of the numbers of a vector that are looked at
    end: int | None = None


def masks(out: str | Path, text: str = TEXT, padding: int = PADDING, context: int = CONTEXT) -> dict[str, Any]:
    """Draws which tokens each vector of a text depends on, in models of each family.

    Static vectors; the two directions of an ELMo; a causal Transformer with a window; and a BERT. Each is a model of
    `keras_ctxrep.models` with one layer and random weights. Each token of the text is replaced by another one: the
    vectors that change depend on it. In a deeper model a window reaches further, `context` tokens for each layer; the
    other pictures stay as they are.

    Args:
        out: FILE.png (.svg, .pdf).
        text: words between spaces, at most 16.
        padding: masked positions after them.
        context: tokens before each that the causal Transformer attends to.

    Returns: {"tokens": T strings, "masks": name -> bool (T, T), whether the vector of a row's token depends on a
        column's}.

    Raises:
        ValueError: no word, too many, a negative padding, a context below 1, or another file suffix.

    >>> import tempfile
    >>> masks(f"{tempfile.mkdtemp()}/a.png", "a b", padding=1)["masks"]["BERT"].astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    """
    check_drawable(out)
    words = text.split()
    if not 1 <= len(words) <= MOST:
        raise ValueError(f"{text[:60]!r}: {len(words)} words; give 1 to {MOST}, between spaces")
    if padding < 0:
        raise ValueError(f"padding={padding}: at least 0")
    tokens = words + padding * [PAD]
    families = _families(len(tokens), context)
    result = {name: _dependence(family, len(tokens), len(words)) for name, family in families.items()}
    _draw(out, tokens, result)
    return {"tokens": tokens, "masks": result}


def _families(length: int, context: int) -> dict[str, _Family]:
    rows = FIRST + length + 1
    bilm = elmo.Config(
        WIDTH, projection=None, layers=1, cell_clip=None, projection_clip=None, highways=0, dropout=0.0, words=rows
    )
    attention: dict[str, Any] = {"layers": 1, "width": WIDTH, "heads": 2, "intermediate": WIDTH, "dropout": 0.0}
    causal = lm.Config("transformer", context=context, vocabulary_size=rows, **attention)
    both = bert.Config(vocabulary_size=rows, max_positions=length, **attention)
    return {
        "static vectors": _Family(static.encoder(static.Config(words=rows, width=WIDTH)), "word_ids"),
        "ELMo, forward": _Family(elmo.encoder(bilm), "word_ids", end=WIDTH),
        "ELMo, backward": _Family(elmo.encoder(bilm), "word_ids", begin=WIDTH),
        f"causal Transformer, window of {context}": _Family(lm.encoder(causal), "token_ids"),
        "BERT": _Family(bert.encoder(both), "token_ids"),
    }


def _dependence(family: _Family, length: int, real: int) -> np.ndarray:
    """Which vectors (rows) change when a token (columns) is replaced, bool (T, T)."""
    rng = np.random.default_rng(0)
    family.model.set_weights([rng.normal(0, SPREAD, weight.shape) for weight in family.model.get_weights()])
    ids = np.tile(np.arange(FIRST, FIRST + length, dtype=np.int32), (length + 1, 1))
    np.fill_diagonal(ids, FIRST + length)  # row t has another token t, and the last row is the text itself
    mask = np.tile(np.arange(length) < real, (length + 1, 1)).astype(np.int32)
    inputs = {name: np.zeros_like(ids) for name in family.model.input} | {family.ids: ids, "mask": mask}
    vectors = ops.convert_to_numpy(family.model(inputs, training=False)["sequence"])[..., family.begin : family.end]
    return (np.abs(vectors[:-1] - vectors[-1]).max(-1) > CHANGED).T


def _draw(out: str | Path, tokens: list[str], result: dict[str, np.ndarray]) -> None:
    side = 0.9 + 0.24 * len(tokens)
    with drawing(out, tokens, (side * len(result), side + 0.8)) as figure:
        figure.set_layout_engine("compressed")
        for axes, (name, mask) in zip(figure.subplots(1, len(result), sharey=True), result.items(), strict=True):
            heat_map(axes, mask, tokens, tokens, fontsize=8)
            axes.tick_params("x", labelrotation=90)
            axes.set_title(name, fontsize=9)
            axes.set_xticks(np.arange(1, len(tokens)) - 0.5, minor=True)
            axes.set_yticks(np.arange(1, len(tokens)) - 0.5, minor=True)
            axes.grid(which="minor", color="#dddddd", linewidth=0.8)
            axes.tick_params(which="minor", length=0)
        figure.suptitle("The vector of a row's token depends on the tokens of the blue columns", fontsize=11)
