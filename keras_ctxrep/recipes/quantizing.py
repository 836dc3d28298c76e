"""A .tflite file of a model folder, measured before it is accepted, and a web page that runs it."""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_ctxrep import zoo
from keras_ctxrep.options import Tflite, keywords
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep_tflite import page, quantize

__all__ = ["Quantized", "tflite"]


@dataclass(frozen=True)
class Quantized:
    """What was written.

    Attributes:
        size: bytes of the .tflite file; 0 if it was converted already.
        float_layers: the layers that are float32.
        rows: of Keras and of the file, as in `keras_ctxrep_tflite.compare.compare`; empty without data.
    """

    size: int
    float_layers: Sequence[str]
    rows: Sequence[dict]


@keywords(Tflite)
def tflite(
    folder: str | Path,
    out: str | Path | None = None,
    lengths: Sequence[int] | None = None,
    data: str | Path | None = None,
    web: str | Path | None = None,
    litertjs: str | Path | None = None,
    report: Callable[[list[dict], Path], None] | None = None,
    *,
    options: Tflite,
) -> Quantized:
    """Converts a model folder to a .tflite file, a web page that runs it, or both.

    With `data` the file is measured against Keras, see `keras_ctxrep_tflite.quantize.build`.

    Args:
        folder: a task model or an encoder; for a page alone also a .tflite file.
        out: FILE.tflite; None: the file is in the page's folder alone.
        lengths: tokens per signature, as in `keras_ctxrep_tflite.quantize.convert`.
        data: examples of the model's task.
        web, litertjs: folders of the page and of LiteRT, as in `keras_ctxrep_tflite.page.write_page`.
        report: with `explain` called with what each layer costs, and the picture of it, FILE.layers.png.
        options: number format, calibration, layers in float32, bound, `explain`; or its fields as keywords.

    Raises:
        ValueError: neither `out` nor `web`, or as in `quantize.convert`, `quantize.build` and `page.write_page`.
    """
    if out is None and web is None:
        raise ValueError("out or web is needed: where to write the model")
    file = Path(out or f"{web}".rstrip(os.sep) + ".tflite")
    picture = file.with_suffix(".layers.png")
    folder = zoo.find(folder) if os.path.isdir(folder) or not os.path.exists(folder) else folder
    bundle = bundles.load(folder)
    if web is not None:
        page.check(bundle, folder, web, litertjs)
        if os.path.isfile(folder):
            others = {"out": out, "data": data, "lengths": lengths}
            named = [name for name, value in others.items() if value is not None]
            if named := [*named, *(name for name, value in vars(options).items() if value != getattr(Tflite, name))]:
                raise ValueError(f"{folder}: it is converted already; leave out {', '.join(named)}")
            page.write(folder, web, litertjs)
            return Quantized(0, (), ())
    if options.explain:
        from keras_ctxrep.plots.drawing import check_drawable

        check_drawable(picture)

    def draw(rows: list[dict]) -> None:
        from keras_ctxrep.plots.engines import draw_layers

        draw_layers(rows, picture)
        if report is not None:
            report(rows, picture)

    conversion = quantize.build(folder, bundle, file, options, lengths, data, draw)
    with tempfile.TemporaryDirectory() as scratch:
        path = conversion.write(out or Path(scratch) / page.MODEL)
        if web is not None:
            page.write(path, web, litertjs)
        return Quantized(path.stat().st_size, conversion.float_layers, conversion.rows)
