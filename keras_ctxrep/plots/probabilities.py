"""What a language model expects of each token of a text: on the terminal and as a page."""

import html
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np

from keras_ctxrep import saving, zoo
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.inference import keras_engine

__all__ = ["Token", "coloured", "probabilities"]

TEMPLATE = Path(__file__).with_name("probabilities.html")
BITS = (1, 3, 6, 10)  # bounds of the colours: probabilities of 1/2, 1/8, 1/64 and 1/1024
COLOURS = ("#ffffff", "#fee5d9", "#fcae91", "#fb6a4a", "#cb181d")  # ColorBrewer's Reds, from expected to not
TERMINAL = (None, 224, 216, 203, 160)  # the nearest of the 256 colours of a terminal


class Token(NamedTuple):
    """A token of a text.

    Attributes:
        text: what it adds to the text.
        bits: -log2 of its probability after the tokens before it.
    """

    text: str
    bits: float


def probabilities(folder: str | Path, text: str, out: str | Path | None = None) -> list[Token]:
    """The probability of each token of a text, by a language model in one direction.

    Args:
        folder: a model of `ctxrep pretrain lm`.
        text: one line or several.
        out: FILE.html: a page with the text, each token on a colour, without external files; None: no page.

    Returns: its tokens, those that end a line among them.

    Raises:
        ValueError: another model, an empty text, or another file suffix.
    """
    if out is not None and Path(out).suffix != ".html":
        raise ValueError(f"{out}: the name must end in .html")
    model, bundle = saving.load(zoo.find(folder))
    if not bundle.generates:
        raise ValueError(
            f"{folder}: a {bundle.family} for the task {bundle.task!r} gives no probabilities of the next token; "
            "name a model of `ctxrep pretrain lm`"
        )
    if not text.strip():
        raise ValueError("the text is empty")
    features = bundle.tokens
    ids = features.prompt(text)
    inputs = {"token_ids": np.array([ids[:-1]], np.int32), "mask": np.ones((1, len(ids) - 1), np.int32)}
    state = np.zeros((1, model.input["state"].shape[1]), np.float32)
    logits = keras_engine.runner(model)(inputs | {"state": state})["logits"][0].astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    chosen = logits[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(logits).sum(-1))
    strings = features.strings(ids[1:])
    tokens = [Token(string, float(bits)) for string, bits in zip(strings, -chosen / np.log(2), strict=True)]
    if out is not None:
        with atomic_write(out) as path:
            path.write_text(_page(str(folder), text, tokens), encoding="utf-8")
    return tokens


def coloured(tokens: Sequence[Token]) -> str:
    """The text for a terminal of 256 colours: the darker the red, the less a token is expected.

    >>> coloured([Token("a", 0.5), Token(" b", 4.0)])
    'a\\x1b[30;48;5;216m b\\x1b[0m'
    """
    parts = []
    for text, bits in tokens:
        colour = TERMINAL[_level(bits)]
        parts.append(text if colour is None or text == "\n" else f"\x1b[30;48;5;{colour}m{text}\x1b[0m")
    return "".join(parts)


def _level(bits: float) -> int:
    """The number of its colour."""
    return sum(bits > bound for bound in BITS)


def _page(model: str, text: str, tokens: Sequence[Token]) -> str:
    spans = []
    for token, bits in tokens:
        level = _level(bits)
        style = f"background: {COLOURS[level]}" + ("; color: #fff" if level == len(COLOURS) - 1 else "")
        title = f"{2.0**-bits:.3g} ({bits:.1f} bits)"
        shown = "↵\n" if token == "\n" else html.escape(token)
        spans.append(f'<span style="{style}" title="{title}">{shown}</span>')
    names = [f"at least 1/{2 ** BITS[0]}", *(f"1/{2**bound}" for bound in BITS[1:]), "less"]
    scale = [f'<span style="background: {colour}">{name}</span>' for colour, name in zip(COLOURS, names, strict=True)]
    mean = sum(token.bits for token in tokens) / len(tokens)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(text[:60]),
        model=html.escape(model),
        scale="".join(scale),
        tokens="".join(spans),
        bits=f"{mean:.2f}",
        perplexity=f"{2.0**mean:.1f}",
    )
