"""Pictures and pages of a BERT's attention."""

import base64
import html
import json
from itertools import product
from pathlib import Path
from string import Template
from typing import Any

import keras
import numpy as np

from keras_ctxrep import saving
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.models import bert
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.plots.drawing import check_drawable, drawing


def attention(
    folder: str | Path,
    text: str,
    out: str | Path,
    pair: str | None = None,
    layer: int | str | None = None,
    head: int | None = None,
) -> dict[str, Any]:
    """Draws the attention between the word pieces of a text.

    A piece is shown as it stands in the text. Layers are counted from 1, as layer 0 of an encoder is its embeddings;
    heads from 1 too.

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
    model, bundle = saving.load(folder)
    if "heads" not in bundle.config:
        raise ValueError(f"{folder}: no attention in a model of the family {bundle.family!r}; give a BERT")
    config = bert.Config(**saving.encoder_bundle(model, bundle).config)
    if layer != "all" and layer is not None and not (isinstance(layer, int) and 1 <= layer <= config.layers):
        raise ValueError(f"layer={layer}: this model has layers 1 to {config.layers}; or choose all")
    if head is not None and not 1 <= head <= config.heads:
        raise ValueError(f"head={head}: this model has heads 1 to {config.heads}")
    (row,) = bundle.features.encode([text], None if pair is None else [pair], offsets=True)
    if row.truncated:
        raise ValueError(f"longer than the {bundle.max_length} pieces this model reads: {text[:60]!r} ...")
    encoder = bert.encoder(config, attention=True)
    copy_weights(model, encoder)
    maps = encoder(bundle.features.collate([row]), training=False)["attention"]
    weights = np.stack([np.asarray(keras.ops.convert_to_numpy(array))[0] for array in maps])  # (N, H, T, T)
    pieces = []
    for position, (start, end) in enumerate(row.offsets or []):
        marker = "[CLS]" if position == 0 else "[SEP]" if position in (row.first - 1, len(row) - 1) else None
        pieces.append(marker or (text if position < row.first else pair or "")[start:end])
    if page:
        with atomic_write(out) as path:
            path.write_text(_page(text, pieces, weights, layer, head), encoding="utf-8")
    else:
        with drawing(out, pieces) as figure:
            _maps(figure, pieces, weights, layer, head)
    return {"pieces": pieces, "attention": weights}


def _maps(figure, pieces: list[str], weights: np.ndarray, layer: int | str | None, head: int | None) -> None:
    layers, heads, length, _ = weights.shape
    layer_numbers = range(1, layers + 1) if layer == "all" else [int(layer or layers)]
    head_numbers = [head] if head else range(1, heads + 1)
    if layer == "all":
        rows, columns = len(layer_numbers), len(head_numbers)
    else:
        columns = min(4, len(head_numbers))
        rows = -(-len(head_numbers) // columns)
    labelled = layer != "all" and length <= 64
    side = max(2.4, 0.17 * length) if labelled else 1.1
    side = min(side if rows * columns > 1 else max(4.0, side), 24 / columns)
    figure.set_layout_engine("compressed")
    figure.set_size_inches(columns * side + 1.8, rows * (side + (0.3 if labelled else 0.05)) + 1.2)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=labelled, sharey=labelled).flat
    names = [piece if len(piece) <= 16 else f"{piece[:15]}…" for piece in pieces] if labelled else []
    image = None
    for axes, (layer_number, head_number) in zip(grid, product(layer_numbers, head_numbers), strict=False):
        image = axes.imshow(
            weights[layer_number - 1, head_number - 1], cmap="Blues", vmin=0, vmax=1, interpolation="nearest"
        )
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_color("#bbbbbb")
        if layer != "all":
            axes.set_title(f"head {head_number}", fontsize=10)
        else:
            if head_number == head_numbers[0]:
                axes.set_ylabel(f"layer {layer_number}", fontsize=9)
            if layer_number == 1:
                axes.set_title(f"head {head_number}", fontsize=9)
    for axes in grid:  # unused cells
        axes.set_visible(False)
    where = "" if layer == "all" else f" in layer {layer_numbers[0]}"
    figure.suptitle(f"Attention{where}: the weights of each row sum to 1", fontsize=11)
    figure.colorbar(image, ax=figure.axes, shrink=min(1, 4 / (rows * side)), aspect=30, label="weight")


def _page(text: str, pieces: list[str], weights: np.ndarray, layer: int | str | None, head: int | None) -> str:
    layers, heads = weights.shape[:2]
    start = layer if isinstance(layer, int) else layers

    def options(kind: str, count: int, chosen: int | None) -> str:
        return "".join(
            f'<option value="{n}"{" selected" if n == chosen else ""}>{kind} {n}</option>' for n in range(1, count + 1)
        )

    def column(side: str) -> str:
        divs = (
            f'<div class="piece" data-side="{side}" data-at="{at}"><span></span><bdi>{html.escape(piece)}</bdi></div>'
            for at, piece in enumerate(pieces)
        )
        return f'<div class="column" id="{side}">{"".join(divs)}</div>'

    data = np.round(weights * 65535).astype("<u2").tobytes()
    return _PAGE.substitute(
        title=html.escape(text),
        layers=options("layer", layers, start),
        heads=options("head", heads, head),
        queries=column("from"),
        keys=column("to"),
        sizes=json.dumps(weights.shape[:3]),
        data=base64.b64encode(data).decode(),
    )


_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
 style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>Attention: $title</title>
<style>
body { font: 15px/22px system-ui, sans-serif; margin: 2em auto; max-width: 46em; padding: 0 1em; color: #222 }
p { color: #555 }
select { font: inherit; margin-right: 1em }
#picture { display: flex; margin-top: 1em }
.column { flex: 1 1 0; min-width: 0 }
#from { text-align: right }
.piece { height: 22px; padding: 0 .5em; white-space: pre; overflow: hidden; cursor: default; border-radius: 3px }
.piece span { color: #555; font-size: 12px; margin: 0 .6em }
#to .piece span { float: right }
#from .piece span { float: left }
.piece.chosen { outline: 2px solid #D55E00; outline-offset: -2px }
svg { flex: 0 0 240px }
line { stroke: #0072B2; stroke-width: 2 }
</style>
</head>
<body>
<h1>Attention</h1>
<p dir="auto">$title</p>
<select id="layer" aria-label="layer">$layers</select>
<select id="head" aria-label="head"><option value="0">mean of the heads</option>$heads</select>
<p>Each piece on the left attends to the pieces on the right. Point at a piece to see its weights alone.</p>
<div id="picture">$queries<svg id="lines" aria-hidden="true"></svg>$keys</div>
<script>
"use strict";
const sizes = $sizes, layers = sizes[0], heads = sizes[1], length = sizes[2], height = 22, width = 240;
const bytes = Uint8Array.from(atob("$data"), c => c.charCodeAt(0));
const all = new Uint16Array(bytes.buffer);
const get = id => document.getElementById(id);
const divs = { from: [...get("from").children], to: [...get("to").children] };
let weights = [];

function read() {
  const layer = get("layer").value - 1, chosen = +get("head").value;
  const which = chosen ? [chosen - 1] : [...Array(heads).keys()];
  weights = new Float64Array(length * length);
  for (const head of which)
    for (let i = 0, at = (layer * heads + head) * length * length; i < length * length; i++)
      weights[i] += all[at + i] / 65535 / which.length;
  draw(null, -1);
}

function draw(side, at) {
  const lines = [];
  for (let i = 0; i < length; i++)
    for (let j = 0; j < length; j++) {
      const w = weights[i * length + j], shown = side === null || at === (side === "from" ? i : j);
      if (shown && w > 0.02)
        lines.push('<line x1="0" x2="' + width + '" y1="' + (i + 0.5) * height + '" y2="' + (j + 0.5) * height
          + '" opacity="' + w.toFixed(3) + '"/>');
    }
  get("lines").innerHTML = lines.join("");
  for (const name of ["from", "to"])
    divs[name].forEach((div, k) => {
      const other = side !== null && name !== side;
      const w = other ? weights[side === "from" ? at * length + k : k * length + at] : 0;
      div.style.background = other ? "rgba(0, 114, 178, " + 0.75 * w + ")" : "";
      div.firstChild.textContent = other && w >= 0.005 ? (100 * w).toFixed(0) + "%" : "";
      div.classList.toggle("chosen", name === side && k === at);
    });
}

get("lines").style.height = length * height + "px";
get("layer").onchange = get("head").onchange = read;
get("picture").onmouseover = event => {
  const div = event.target.closest(".piece");
  if (div) draw(div.dataset.side, +div.dataset.at);
};
get("picture").onmouseleave = () => draw(null, -1);
read();
</script>
</body>
</html>
""")
