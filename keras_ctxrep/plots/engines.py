"""Plots of engines, and of the layers of a quantized model."""

from collections.abc import Sequence
from pathlib import Path

from keras_ctxrep.plots.drawing import COLOURS, check_drawable, drawing, style

__all__ = ["draw_engines", "draw_layers"]


def draw_layers(rows: Sequence[dict], out: str | Path) -> None:
    """Draws what each layer of a model costs when it alone is quantized.

    Args:
        rows: as in `keras_ctxrep_tflite.acceptance.sensitivity`.
        out: FILE.png (.svg, .pdf).
    """
    check_drawable(out)
    with drawing(out, [row["layer"] for row in rows], (8, 1.2 + 0.22 * len(rows))) as figure:
        axes = figure.subplots()
        axes.barh([row["layer"] for row in rows], [row["mean_difference"] for row in rows], color=COLOURS[0])
        axes.invert_yaxis()
        axes.set_xlabel("mean difference of the answers from float32")
        axes.set_title("What each layer costs when it alone is quantized")
        axes.tick_params(axis="y", labelsize=7)
        axes.margins(y=0.01)


def draw_engines(rows: Sequence[dict], out: str | Path) -> None:
    """Draws engines by size and median latency, both on logarithmic axes, each with its quality.

    Args:
        rows: as in `keras_ctxrep_tflite.compare.compare`.
        out: FILE.png (.svg, .pdf).
    """
    check_drawable(out)
    from matplotlib.ticker import LogLocator, NullFormatter

    with drawing(out, [row["engine"] for row in rows], (8, 5)) as figure:
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="size, MB", ylabel="median latency of a text, ms")
        for number, row in enumerate(rows):
            name, quality = row["metric"] or "agreement", row["agreement"] if row["metric"] is None else row["quality"]
            label = f"{row['engine']}: {name.replace('_', ' ')} {quality:.1%}"
            axes.plot(
                row["bytes"] / 1e6, row["milliseconds"], **style(number), markersize=10, linestyle="", label=label
            )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
        axes.set_title("To the left is smaller, below is faster")
        axes.margins(0.2)
        axes.grid(alpha=0.3, which="both")
        axes.spines[:].set_visible(True)
        figure.legend(loc="outside lower center", frameon=False)
