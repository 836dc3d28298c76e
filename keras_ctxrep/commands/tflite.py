"""`ctxrep tflite`: a .tflite file of a model folder, measured before it is accepted, and a web page that runs it."""

import os
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from keras_ctxrep import options
from keras_ctxrep.commands.command import FOLDER, Command, Usage, argument, function, in_python
from keras_ctxrep.commands.printing import table
from keras_ctxrep.options import AnyPath

__all__ = ["Quantized", "Tflite", "tflite"]


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


def _lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r}: whole numbers with commas between them, 16,64 for example") from None


def _name(given: AnyPath) -> str:
    """What a model is called in a file: its folder's name, of a published one what stands before the slash.

    >>> _name("names_en"), _name("sentiment_en/sst2"), _name("hf://OWNER/NAME")
    ('names_en', 'sentiment_en', 'NAME')
    """
    from keras_ctxrep.zoo.folders import name_of

    known = name_of(Path(given).resolve()) if Path(given).exists() else str(given)
    return known.rpartition("/")[2] if known.startswith("hf://") else known.partition("/")[0]


def _print_layers(rows: list[dict], picture: Path) -> None:
    from keras_ctxrep_tflite import acceptance

    print(f"{table(acceptance.layers_table(rows))}\n{picture}: the same as a picture")


@dataclass(frozen=True)
class Tflite(options.Tflite, Command[Quantized]):
    """Write a .tflite file for phones and boards.

    One file that holds the model, its vocabulary and its labels. With --web also a web page that runs it. With --data
    the file is measured against Keras, see `keras_ctxrep_tflite.quantize.build`.

    Raises:
        ValueError: neither `out` nor `web`, or as in `quantize.convert`, `quantize.build` and `page.write_page`.
    """

    any_backend = False

    folder: AnyPath = argument(f"published  {FOLDER}; for a page alone also a FILE.tflite")
    out: AnyPath | None = argument("[--out FILE.tflite] writes  the file to write")
    lengths: Sequence | None = argument(parse=_lengths)(f"""[--lengths N,N,...]  input lengths, in tokens; a text
        runs at the smallest that holds it, and is cut if none does (default: {",".join(map(str, options.LENGTHS))}
        up to the length of the model, and that itself)""")
    data: AnyPath | None = argument("""[--data FILE]  examples of the model's task: the file is measured on them
        against Keras, and its figures are written into the model card in it""")
    web: AnyPath | None = argument("[--web FOLDER]  write a web page that runs the model, for any static server")
    litertjs: AnyPath | None = argument("""[--litertjs FOLDER]  with --web: node_modules/@litertjs of `npm install
        @litertjs/core`, copied into the page's folder (default: the page loads LiteRT from a CDN)""")
    more: Sequence | None = argument()("""[FOLDER ...]  more models for the same file, which has what they share once,
        such as the encoder of models with answers; FILE.tflite/NAME then opens each, by the name of its folder""")
    report: Callable[[list[dict], Path], object] | None = in_python(prints=_print_layers)

    def __post_init__(self):
        super().__post_init__()
        if self.web is None and (self.out is None or self.litertjs is not None):
            raise Usage("--out FILE.tflite or --web FOLDER is needed; --litertjs is for --web")
        alone = ("data", "web", "calibrate", "keep_float", "explain", "mediapipe")
        if self.more and (named := [name for name in alone if getattr(self, name)]):
            raise Usage(f"--{named[0].replace('_', '-')} is for one model")
        if self.data is None and self.max_drop != options.Tflite.max_drop:
            raise Usage("--max-drop is for --data")

    def run(self) -> Quantized:
        from keras_ctxrep import zoo
        from keras_ctxrep.text import bundle as bundles
        from keras_ctxrep_tflite import page, quantize

        folder = self.folder
        if self.more:
            several = {_name(given): zoo.find(given) for given in (folder, *self.more)}
            if len(several) <= len(self.more):
                names = ", ".join(map(_name, (folder, *self.more)))
                raise Usage(f"{names}: each model needs a name of its own; rename a folder")
            quantize.convert_several(several, str(self.out), self.quantize, self.lengths, self.fill)
            return Quantized(os.path.getsize(str(self.out)), (), ())
        folder = zoo.find(folder) if os.path.isdir(folder) or not os.path.exists(folder) else folder
        bundle = bundles.load(folder)
        if self.web is not None:
            page.check(bundle, folder, self.web, self.litertjs)
            if os.path.isfile(folder):
                self._check_converted()
                page.write(folder, self.web, self.litertjs)
                return Quantized(0, (), ())
        file = Path(self.out or f"{self.web}".rstrip(os.sep) + ".tflite")
        picture = file.with_suffix(".layers.png")
        if self.explain:
            from keras_ctxrep.plots.drawing import check_drawable

            check_drawable(picture)

        def draw(rows: list[dict]) -> None:
            from keras_ctxrep.plots.engines import draw_layers

            draw_layers(rows, picture)
            if self.report is not None:
                self.report(rows, picture)

        conversion = quantize.build(folder, bundle, file, self, self.lengths, self.data, draw)
        with tempfile.TemporaryDirectory() as scratch:
            path = conversion.write(self.out or Path(scratch) / page.MODEL)
            if self.web is not None:
                page.write(path, self.web, self.litertjs)
            return Quantized(path.stat().st_size, conversion.float_layers, conversion.rows)

    def _check_converted(self) -> None:
        """Refuses options of the conversion of a file that is converted already."""
        without = ("folder", "more", "web", "litertjs", "report")
        changed = (entry.name for entry in fields(self) if getattr(self, entry.name) != entry.default)
        if named := [name for name in changed if name not in without]:
            raise ValueError(f"{self.folder}: it is converted already; leave out {', '.join(named)}")

    def show(self, result: Quantized) -> None:
        from keras_ctxrep_tflite import compare

        if result.size:
            print(f"{self.out or 'the model'}: {result.size / 1e6:.2f} MB")
        if result.float_layers:
            print(f"in float32: {', '.join(result.float_layers)}")
        if result.rows:
            print(table(compare.engines_table(result.rows)))
        if self.web is not None:
            print(f"{self.web}: serve it with `python -m http.server --directory {shlex.quote(str(self.web))}`")


tflite = function(Tflite, "tflite")
