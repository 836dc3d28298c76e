"""Pictures and pages of a BERT's attention."""

import base64
import html
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from string import Template
from typing import Any

import keras
import numpy as np

from keras_ctxrep import saving, zoo
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.checks import of_kind
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.models.transformer import Config
from keras_ctxrep.plots.drawing import check_drawable, drawing, heat_map
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import WordPieceFeatures

__all__ = ["attention"]

TEMPLATE = Path(__file__).with_name("attention.html")


def attention(
    folder: str | Path,
    text: str,
    out: str | Path,
    pair: str | None = None,
    layer: int | str | None = None,
    head: int | None = None,
) -> dict[str, Any]:
    """Draws the attention between the word pieces of a text.

    A piece is shown as it stands in the text. Layers and heads are counted from 1; layer 0 is the embeddings.

    Args:
        folder: a BERT of any task.
        text: a sentence.
        out: FILE.png (.svg, .pdf), or FILE.html: one page with all layers and heads, without external files.
        pair: a second text.
        layer: of the picture, or "all" for an overview of small maps (default: the last layer). A page opens at it.
        head: of the picture (default: all heads of the layer, side by side).

    Returns: {"pieces": T texts, "attention": float32 (N, H, T, T), of each query a row with a sum of 1}.

    Raises:
        ValueError: not a BERT, a text longer than it reads, no such layer or head, or another file suffix.
    """
    page = Path(out).suffix == ".html"
    if not page:
        check_drawable(out, "or .html")
    model, bundle = saving.load(zoo.find(folder))
    config = _config(model, bundle, folder)
    if layer != "all" and layer is not None and not (isinstance(layer, int) and 1 <= layer <= config.layers):
        raise ValueError(f"layer={layer}: this model has layers 1 to {config.layers}; or choose all")
    if head is not None and not 1 <= head <= config.heads:
        raise ValueError(f"head={head}: this model has heads 1 to {config.heads}")
    pieces, weights = attention_of(model, bundle, folder)(text, pair)
    if page:
        with atomic_write(out) as path:
            path.write_text(_page(text, pieces, weights, layer, head), encoding="utf-8")
    else:
        with drawing(out, pieces) as figure:
            _maps(figure, pieces, weights, layer, head)
    return {"pieces": pieces, "attention": weights}


def attention_of(
    model: keras.Model, bundle: Bundle, name: str | Path
) -> Callable[[str, str | None], tuple[list[str], np.ndarray]]:
    """The function from a text, and a second one or None, to its pieces and their attention, as `attention` gives them.

    Args:
        model, bundle: a BERT of any task.
        name: of the model, for errors.

    Raises:
        ValueError: not a BERT; (the function) a text longer than it reads.
    """
    encoder = FAMILIES[bundle.family].encoder(_config(model, bundle, name), attention=True)
    copy_weights(model, encoder)

    def maps(text: str, pair: str | None = None) -> tuple[list[str], np.ndarray]:
        (row,) = bundle.features.encode([text], None if pair is None else [pair], offsets=True)
        if row.truncated:
            raise ValueError(f"longer than the {bundle.max_length} pieces this model reads: {text[:60]!r} ...")
        arrays = encoder(bundle.features.collate([row]), training=False)["attention"]
        weights = np.stack([np.asarray(keras.ops.convert_to_numpy(array))[0] for array in arrays])  # (N, H, T, T)
        wordpiece = of_kind(bundle.features, WordPieceFeatures).wordpiece
        pieces, markers = [], (wordpiece.cls, wordpiece.sep)
        for position, (start, end) in enumerate(row.offsets or []):
            piece = row.tokens[position]
            marker = bundle.vocab[piece] if piece in markers else None  # a special piece is not of a text
            pieces.append(marker or (text if position < row.first else pair or "")[start:end])
        return pieces, weights

    return maps


def packed(weights: np.ndarray) -> str:
    """Weights from 0 to 1 for a page: base64 of uint16, of which 65,535 is 1."""
    return base64.b64encode(np.round(weights * 65535).astype("<u2").tobytes()).decode()


def _config(model: keras.Model, bundle: Bundle, name: str | Path) -> Config:
    family = FAMILIES[bundle.family]
    if family.layout is None:
        raise ValueError(f"{name}: no attention in a model of the family {bundle.family!r}; give a BERT")
    return family.config(**saving.encoder_bundle(model, bundle).config)


def _maps(figure, pieces: list[str], weights: np.ndarray, layer: int | str | None, head: int | None) -> None:
    layers, heads, length, _ = weights.shape
    layer_numbers = range(1, layers + 1) if layer == "all" else [int(layer or layers)]
    head_numbers = [head] if head else range(1, heads + 1)
    columns = len(head_numbers) if layer == "all" else min(4, len(head_numbers))
    rows = -(-len(layer_numbers) * len(head_numbers) // columns)
    labelled = layer != "all" and length <= 64
    side = max(2.4, 0.17 * length) if labelled else 1.1
    side = min(side if rows * columns > 1 else max(4.0, side), 24 / columns)
    figure.set_layout_engine("compressed")
    figure.set_size_inches(columns * side + 1.8, rows * (side + (0.3 if labelled else 0.05)) + 1.2)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=labelled, sharey=labelled).flat
    names = [piece if len(piece) <= 16 else f"{piece[:15]}…" for piece in pieces] if labelled else []
    image = None
    for axes, (layer_number, head_number) in zip(grid, product(layer_numbers, head_numbers), strict=False):
        array = weights[layer_number - 1, head_number - 1]
        image = heat_map(axes, array, names, names, fontsize=8)
        axes.tick_params("x", labelrotation=90)
        if layer != "all" or layer_number == 1:
            axes.set_title(f"head {head_number}", fontsize=9 if layer == "all" else 10)
        if layer == "all" and head_number == head_numbers[0]:
            axes.set_ylabel(f"layer {layer_number}", fontsize=9)
    for axes in grid:  # unused cells
        axes.set_visible(False)
    where = "" if layer == "all" else f" in layer {layer_numbers[0]}"
    figure.suptitle(f"Attention{where}: the weights of each row sum to 1", fontsize=11)
    figure.colorbar(image, ax=figure.axes, shrink=min(1, 4 / (rows * side)), aspect=30, label="weight")


def _page(text: str, pieces: list[str], weights: np.ndarray, layer: int | str | None, head: int | None) -> str:
    layers, heads = weights.shape[:2]
    start = layer if isinstance(layer, int) else layers

    def options(kind: str, count: int, selected: int | None) -> str:
        states = (" selected" if number == selected else "" for number in range(1, count + 1))
        return "".join(f'<option value="{n}"{state}>{kind} {n}</option>' for n, state in enumerate(states, 1))

    def column(side: str) -> str:
        piece = '<div class="piece" data-side="{}" data-at="{}"><span></span><bdi>{}</bdi></div>'.format
        divs = "".join(piece(side, at, html.escape(text)) for at, text in enumerate(pieces))
        return f'<div class="column" id="{side}">{divs}</div>'

    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(text),
        layers=options("layer", layers, start),
        heads=options("head", heads, head),
        queries=column("from"),
        keys=column("to"),
        sizes=json.dumps(weights.shape[:3]),
        data=packed(weights),
    )
