"""Figures by matplotlib: colours, fonts for any script, files written whole."""

import importlib.util
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.checks import warn
from keras_ctxrep.version import install_hint

__all__ = ["check_drawable", "drawing", "heat_map"]

# A palette for colour-blind readers: Okabe and Ito 2008, https://jfly.uni-koeln.de/color/
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
MARKERS = "osD^vPX*"
DRAWN = (".png", ".svg", ".pdf")


def check_drawable(out: str | Path, *others: str) -> None:
    """Checks the suffix of a picture and that matplotlib is installed, before any computation."""
    if Path(out).suffix not in DRAWN:
        raise ValueError(f"{out}: the name must end in {', '.join([*DRAWN, *others])}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError(f"matplotlib is not installed: {install_hint('plot')}")


def style(number: int) -> dict[str, str]:
    """Colour and marker of a series of points."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


@contextmanager
def drawing(out: str | Path, texts: Iterable[str], size: tuple[float, float] | None = None) -> Iterator[Any]:
    """A figure to draw on, in fonts that have the letters of `texts`; written at the end with 150 dots per inch.

    Its axes have a line on the left and below; `size` is in inches.
    """
    import matplotlib
    from matplotlib import font_manager
    from matplotlib.figure import Figure

    fonts = ["DejaVu Sans"]  # which comes with matplotlib
    lacking = {char for char in "".join(texts) if not char.isspace()}
    files = [(fonts[0], font_manager.findfont(fonts[0]))]
    files += [(font.name, font.fname) for font in font_manager.fontManager.ttflist if "Last Resort" not in font.name]
    for name, path in files:
        if not lacking:
            break
        font = font_manager.get_font(path)
        if glyphs := {char for char in lacking if font.get_char_index(ord(char))}:
            lacking -= glyphs
            fonts.append(name)
    if lacking:
        characters = f"the characters {''.join(sorted(lacking)[:10])}; install one, or look at it as .html in a browser"
        warn(f"{out}: no installed font has {characters}")
    settings: Any = {"font.family": [*dict.fromkeys(fonts)], "text.parse_math": False}
    settings |= {"axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        with atomic_write(out) as path:
            figure.savefig(path, dpi=150, bbox_inches="tight")


def heat_map(axes: Any, weights: Any, rows: Sequence[str], columns: Sequence[str], fontsize: int) -> Any:
    """Draws weights from 0 to 1, (R, C), with a label for each row and column if there are some; gives the image."""
    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks(range(len(columns)), columns, fontsize=fontsize)
    axes.set_yticks(range(len(rows)), rows, fontsize=fontsize)
    axes.tick_params(length=0)
    axes.spines[:].set(color="#bbbbbb", visible=True)
    return image
