"""Plots of what a model has learned: its scalar mix, its attention, a word's neighbours and a word's senses."""

import base64
import heapq
import html
import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from string import Template
from typing import Any

import keras
import numpy as np

from keras_ctxrep import tasks, train
from keras_ctxrep.drawing import COLOURS, MARKERS, check_drawable, drawing
from keras_ctxrep.models import bert
from keras_ctxrep.recipes.embedding import learned_mixes, vectors
from keras_ctxrep.text.bundle import written_whole
from keras_ctxrep.text.tokens import Word, words

# ------------------------------------------------------------------------------------------------------ scalar mixes


def mix(folders: Sequence[str | Path], out: str | Path) -> list[dict]:
    """Draws the weights of the layers in the scalar mixes of models, a group of bars for each mix.

    As figure 2 of Peters et al. 2018, section 5.5, https://arxiv.org/abs/1802.05365.

    Args:
        folders: models that were trained with a mix.
        out: FILE.png (.svg, .pdf).

    Returns: {"folder", "mix": the layer's name, "gamma", "weights": of each layer, from 0 on} of each mix.

    Raises:
        ValueError: a model without a mix, or another file suffix.
    """
    check_drawable(out)
    entries = []
    for folder in folders:
        mixes = learned_mixes(train.load(folder)[0])
        if not mixes:
            raise ValueError(f"{folder}: no scalar mix in it; train it with one: `ctxrep train --mix`")
        for name, (weights, gamma) in mixes.items():
            entries.append({"folder": str(folder), "mix": name, "gamma": gamma, "weights": weights.tolist()})
    with drawing(out, map(str, folders)) as figure:
        _bars(figure, entries)
    return entries


def _bars(figure, entries: list[dict]) -> None:
    import matplotlib

    deepest = max(len(entry["weights"]) for entry in entries)
    names = {entry["folder"]: Path(entry["folder"]).resolve().name for entry in entries}
    bar = 0.8 / deepest
    figure.set_size_inches(min(16, max(5.0, 1.5 + len(entries) * (0.6 + 0.28 * deepest))), 4)
    axes, colours = figure.subplots(), matplotlib.colormaps["viridis"]
    for layer in range(deepest):
        groups = [(at, entry["weights"]) for at, entry in enumerate(entries) if layer < len(entry["weights"])]
        drawn = axes.bar(
            [at + (layer - (len(weights) - 1) / 2) * bar for at, weights in groups],
            [weights[layer] for _, weights in groups],
            0.92 * bar,
            color=colours(0.93 * layer / max(1, deepest - 1)),
            label="0 (tokens)" if layer == 0 else str(layer),
        )
        if len(entries) * deepest <= 24:
            axes.bar_label(drawn, fmt="{:.2f}", padding=2, fontsize=8)
    titles = []
    for at, entry in enumerate(entries):
        even, half = 1 / len(entry["weights"]), len(entry["weights"]) / 2 * bar
        label = None if at else "untrained"
        axes.plot([at - half, at + half], [even, even], color="#444444", linestyle=":", linewidth=1.2, label=label)
        folder = entry["folder"]
        unique = list(names.values()).count(names[folder]) == 1
        lines = [names[folder] if unique else folder]
        if [each["folder"] for each in entries].count(folder) > 1:
            lines.append(entry["mix"])
        titles.append("\n".join([*lines, f"γ = {entry['gamma']:.2f}"]))
    axes.set_xticks(range(len(entries)), titles)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("weight after the softmax")
    axes.set_title("Scalar mix of the layers")
    axes.legend(title="layer", frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


# --------------------------------------------------------------------------------------------------------- attention


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
    model, bundle = train.load(folder)
    if "heads" not in bundle.config:
        raise ValueError(f"{folder}: no attention in a model of the family {bundle.family!r}; give a BERT")
    config = bert.Config(**train.encoder_bundle(model, bundle).config)
    if layer != "all" and layer is not None and not (isinstance(layer, int) and 1 <= layer <= config.layers):
        raise ValueError(f"layer={layer}: this model has layers 1 to {config.layers}; or choose all")
    if head is not None and not 1 <= head <= config.heads:
        raise ValueError(f"head={head}: this model has heads 1 to {config.heads}")
    (row,) = bundle.features.encode([text], None if pair is None else [pair], offsets=True)
    if row.truncated:
        raise ValueError(f"longer than the {bundle.max_length} pieces this model reads: {text[:60]!r} ...")
    encoder = bert.encoder(config, attention=True)
    train.copy_weights(model, encoder)
    maps = encoder(bundle.features.collate([row]), training=False)["attention"]
    weights = np.stack([np.asarray(keras.ops.convert_to_numpy(array))[0] for array in maps])  # (N, H, T, T)
    pieces = []
    for position, (start, end) in enumerate(row.offsets or []):
        marker = "[CLS]" if position == 0 else "[SEP]" if position in (row.first - 1, len(row) - 1) else None
        pieces.append(marker or (text if position < row.first else pair or "")[start:end])
    if page:
        with written_whole(out) as path:
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


# -------------------------------------------------------------------------------------------------- words in context


def neighbours(
    folder: str | Path,
    word: str,
    sentences: Iterable[str],
    k: int = 10,
    sentence: str | None = None,
    layer: str | None = None,
    batch_size: int = 32,
) -> list[dict]:
    """The words in context whose vectors are nearest to that of a word in its sentence, by cosine similarity.

    Every word of every sentence is compared, including the same word in other sentences; of a BERT by the vector of its
    first piece. The sentences are read once, and only `k` words are in memory.

    Args:
        folder: a model of any task.
        word: one word, in lower or upper case.
        sentences: searched for neighbours.
        k: number of neighbours.
        sentence: context of the word, which is its first occurrence in it (default: the first sentence that has it).
        layer: "top"; "mix", the trained one; "mean" of all layers (default: the mix if there is one, else the top).
        batch_size: sentences computed together.

    Returns: the nearest first, {"score": cosine, "sentence", "word", "start", "end": its span in the sentence,
        in characters, "line": the number of the sentence, from 1 on}.

    Raises:
        ValueError: the word does not occur, a sentence is longer than a BERT reads, or there is no such layer.
    """
    if k < 1:
        raise ValueError(f"k={k}: at least 1")
    sentences = iter(sentences)
    before: list[str] = []
    if sentence is None:
        for candidate in sentences:
            before.append(candidate)
            if _first_occurrence(word, words(candidate)) is not None:
                sentence = candidate
                break
        else:
            raise ValueError(f"the word {word!r} does not occur in the sentences; give one that has it")
    own = _word_in(word, sentence)
    nearest: list[tuple[float, int, int, dict]] = []  # a heap: the worst first, of equals the last in the text
    query = None
    contexts = _word_vectors(folder, chain([sentence], before, sentences), layer, batch_size)
    for line, (text, context_words, array) in enumerate(contexts):
        unit = array / np.maximum(np.linalg.norm(array, axis=-1, keepdims=True), 1e-12)  # (T, D)
        if query is None:
            query = next((vector for vector, word_at in zip(unit, context_words, strict=True) if word_at == own), None)
            if query is None:
                raise ValueError(f"the model finds no piece in the word {word!r}")
            continue
        for score, neighbour in zip((unit @ query).tolist(), context_words, strict=True):
            if (len(nearest) == k and score < nearest[0][0]) or (neighbour == own and text == sentence):
                continue
            span = {"word": neighbour.text, "start": neighbour.start, "end": neighbour.end}
            entry = {"score": score, "sentence": text, **span, "line": line}
            add = heapq.heappush if len(nearest) < k else heapq.heappushpop
            add(nearest, (score, -line, -neighbour.start, entry))
    return [entry for *_, entry in sorted(nearest, key=lambda item: item[:3], reverse=True)]


def concordance(entries: Sequence[dict], width: int = 80) -> str:
    """The words of `neighbours` as a table: score, line, and the sentence with «word» aligned in a column.

    >>> entry = {"score": 0.75, "sentence": "They sat on the bank of the river.", "start": 16, "end": 20, "line": 3}
    >>> print(concordance([entry], width=40))
     score  line
     0.750     3  sat on the «bank» of the r
    """
    lines = [f"{'score':>6}  {'line':>4}"]
    for entry in entries:
        sentence, start, end = " ".join(entry["sentence"].splitlines()), entry["start"], entry["end"]
        head = f"{entry['score']:6.3f}  {entry['line']:>4}  "
        room = max(20, width - len(head))
        left = _cut(sentence[:start][::-1], room // 2 - 2)[::-1]
        left = " " * (room // 2 - 2 - _columns(left)) + left
        marked = f"{left}«{sentence[start:end]}»"
        lines.append(head + marked + _cut(sentence[end:], max(0, room - _columns(marked))))
    return "\n".join(lines)


def senses(
    folder: str | Path, word: str, data: str | Path, out: str | Path, layer: str | None = None
) -> dict[str, Any]:
    """Draws the vectors of one word in labelled sentences, projected on two axes, each in the colour of its sense.

    The axes are the first two principal components. How well the vectors separate the senses is measured in the full
    space: the fraction of vectors whose nearest neighbour among the others, by cosine, has the same sense.

    Args:
        folder: a model of any task.
        word: its first occurrence in each sentence is taken.
        data: labelled sentences, as for classification; a label is a sense.
        out: FILE.png (.svg, .pdf).
        layer: as of `neighbours`.

    Returns: {"coordinates": float (K, 2), "labels": K senses, "variance": fractions on the two axes, "accuracy":
        fraction of nearest neighbours with the same sense, "recall": that fraction for each sense, "majority": fraction
        of the most frequent sense}.

    Raises:
        ValueError: a sentence without the word or without a label, fewer than two senses, or another file suffix.
    """
    check_drawable(out)
    labels, array = _sense_vectors(folder, word, data, layer)
    names = sorted(set(labels), key=lambda name: (-labels.count(name), name))
    if len(names) < 2:
        raise ValueError(f"{data}: only the sense {names[0]!r}; at least two are needed")
    unit = array / np.maximum(np.linalg.norm(array, axis=-1, keepdims=True), 1e-12)
    nearest = [labels[np.argmax(np.where(np.arange(len(unit)) == at, -2, unit @ unit[at]))] for at in range(len(unit))]
    right = np.array([sense == label for sense, label in zip(nearest, labels, strict=True)])
    recall = {name: float(right[[label == name for label in labels]].mean()) for name in names}
    centred = array - array.mean(0)
    _, deviations, axes = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign([axis[np.argmax(np.abs(axis))] for axis in axes[:2]])  # so that a picture is not mirrored
    variance = deviations**2 / max(np.sum(deviations**2), 1e-300)
    result = {
        "coordinates": centred @ axes[:2].T * signs,
        "labels": labels,
        "variance": variance[:2].tolist(),
        "accuracy": float(right.mean()),
        "recall": recall,
        "majority": labels.count(names[0]) / len(labels),
    }
    _draw_senses(out, word, names, result)
    return result


def _sense_vectors(folder, word: str, data: str | Path, layer: str | None) -> tuple[list[str], np.ndarray]:
    """The sense of the word in each sentence, K of them, and its vectors, float64 (K, D)."""
    examples = [*tasks.get("classify").read(data)]
    labels, occurrences, vectors = [], [], []
    for example in examples:
        if example.label is None:
            raise ValueError(f"{example.source}: no label; each sentence needs the sense of {word!r}")
        labels.append(str(example.label))
        occurrences.append(_word_in(word, example.text, f"{example.source}: "))
    texts = (example.text for example in examples)
    contexts = _word_vectors(folder, texts, layer)
    for example, occurrence, (_, context_words, array) in zip(examples, occurrences, contexts, strict=True):
        if occurrence not in context_words:
            raise ValueError(f"{example.source}: the model finds no piece in the word {word!r}")
        vectors.append(array[context_words.index(occurrence)])
    return labels, np.asarray(vectors, np.float64)


def _draw_senses(out: str | Path, word: str, names: list[str], result: dict[str, Any]) -> None:
    labels, variance = result["labels"], result["variance"]
    with drawing(out, [word, *names]) as figure:
        figure.set_size_inches(7.5, 5.4)
        axes = figure.subplots()
        for number, name in enumerate(names):
            own = result["coordinates"][[label == name for label in labels]]
            axes.scatter(
                *own.T,
                s=26,
                c=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                alpha=0.7,
                linewidths=0,
                label=f"{name}: {len(own):,}, of which {result['recall'][name]:.1%}",
            )
        axes.set_xlabel(f"first principal component: {variance[0]:.0%} of the variance")
        axes.set_ylabel(f"second: {variance[1]:.0%}")
        axes.set_title(
            f"“{word}” in {len(labels):,} sentences. Nearest neighbour of the same sense: {result['accuracy']:.1%}",
            fontsize=11,
            loc="left",
        )
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.08), fontsize=9, ncols=2)


def _first_occurrence(word: str, candidates: Sequence[Word]) -> Word | None:
    return next((each for each in candidates if each.text.casefold() == word.casefold()), None)


def _word_in(word: str, sentence: str, where: str = "") -> Word:
    occurrence = _first_occurrence(word, words(sentence))
    if occurrence is None:
        parts = [part.text for part in words(word)]
        why = f"; as words it is {' '.join(parts)}: choose one of them" if len(parts) > 1 else ""
        raise ValueError(f"{where}the word {word!r} does not occur in {sentence[:60]!r}{why}")
    return occurrence


def _word_vectors(
    folder: str | Path, sentences: Iterable[str], layer: str | None, batch_size: int = 32
) -> Iterator[tuple[str, list[Word], np.ndarray]]:
    """Each sentence, its words that have a vector, and their vectors, (T, D)."""
    if layer not in (None, "top", "mix", "mean"):
        raise ValueError(f"layer={layer}: choose top, mix or mean")
    model, bundle = train.load(folder)
    mixes = learned_mixes(model)
    if layer == "mix" and not mixes:
        raise ValueError(f"{folder}: no scalar mix in it; choose top or mean")
    layer = layer or ("mix" if mixes else "top")

    def split(text: str) -> list[str]:
        return [word.text for word in words(text)]

    for text, numbers, layers in vectors(model, bundle, sentences, split, batch_size=batch_size):
        if layer == "mix":
            weights, gamma = next(iter(mixes.values()))
            array = gamma * np.tensordot(weights, layers, 1)
        else:
            array = layers[-1] if layer == "top" else layers.mean(0)
        context_words = words(text)
        yield text, [context_words[number] for number in numbers], array


def _columns(text: str) -> int:
    """The width of a text in a terminal, in columns."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _cut(text: str, room: int) -> str:
    while _columns(text) > room:
        text = text[: min(len(text) - 1, room)]
    return text


# ----------------------------------------------------------------------------------------------------------- drawing
