"""Exports that are measured on labelled or plain texts before they are accepted, and what each layer costs."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_ctxrep import tasks
from keras_ctxrep.inference.engines import open_engine
from keras_ctxrep.options import Tflite
from keras_ctxrep.text.bundle import TFLITE_FIGURES, Bundle
from keras_ctxrep_tflite import calibration, compare, quantize, runtime, weights

EXPLAINED = 200  # examples that each layer is measured on


class Rejected(ValueError):
    """A file lost more accuracy than allowed; it was put aside."""


@dataclass(frozen=True)
class Export:
    """A file that was written.

    Attributes:
        path: the file.
        rows: of Keras and of the file, as of `compare.compare`; empty without data.
        kept: the layers that were kept in float32.
        layers: what each layer costs, as of `sensitivity`; empty unless it was asked for.
    """

    path: Path
    rows: list[dict]
    kept: tuple[str, ...]
    layers: list[dict]


def export(
    folder: str | Path,
    out: str | Path,
    options: Tflite,
    lengths: Sequence[int] | None = None,
    data: str | Path | None = None,
    report: Callable[[list[dict]], None] | None = None,
    name: str | Path | None = None,
) -> Export:
    """Writes a .tflite file as `quantize.convert` does, and measures it against Keras.

    The figures go into the model card within the file. A file that loses more than `options.max_drop` is kept as
    OUT.rejected.tflite, and OUT is not written.

    Args:
        folder, out, lengths: as of `quantize.convert`.
        options: number format, calibration, layers in float32, bound, and whether to measure each layer.
        data: examples of the model's task; None: nothing is measured.
        report: called with what each layer costs, with `options.explain`, before the file is accepted or not.
        name: what the file is called in the message of a rejection, and beside which a rejected one is kept, if `out`
            is temporary; None: `out`.

    Raises:
        ValueError: as of `quantize.convert`, or an option that needs data without it.
        Rejected: the drop is larger than allowed.
    """
    automatic = list(options.keep_float or ()) == ["auto"]
    if data is None and (automatic or options.explain):
        raise ValueError(f"{'keep_float auto' if automatic else 'explain'}: needs data to measure the layers with")
    bundle, signature_lengths = quantize.checked(
        folder, out, options.quantize, lengths, options.calibrate, options.mediapipe
    )
    examples = []
    if data is not None:
        compare.check_task(folder, bundle)
        examples = [*tasks.of_model(bundle).read(data, options.columns)]
        compare.check_examples(folder, bundle, examples)
    inputs = calibration.inputs_of(options.calibrate or (), bundle, signature_lengths[-1], options.columns)
    model, bundle = quantize.float_model(folder, signature_lengths)
    ranges = calibration.ranges(model, inputs) if inputs else None
    sizes = weights.sizes(model)
    trial = Trial(model, bundle, options.quantize, ranges, examples[:EXPLAINED]) if examples else None
    layers = sensitivity(trial, list(sizes)) if trial and (automatic or options.explain) else []
    if options.explain and report is not None:
        report(layers)
    keep = options.keep_float or ()
    if automatic and trial is not None:
        keep = fewest([row["layer"] for row in layers], trial, options.max_drop)
    content = quantize.quantized(model, options.quantize, quantize.chosen(sizes, keep), ranges)
    kept = tuple(keep)
    if not examples:
        return Export(quantize.write(out, content, bundle, options.mediapipe), [], kept, layers)
    aside = Path(name or out).with_suffix(".rejected.tflite")
    rows = _measured(folder, quantize.write(aside, content, bundle, options.mediapipe), out, examples)
    card = f"{bundle.card.rstrip()}\n\n{_section(rows, options, kept, Path(str(data)).name, len(examples))}".lstrip()
    quantize.write(aside, content, replace(bundle, card=card), options.mediapipe)
    if drop(rows[1], rows[0]) > options.max_drop:
        raise Rejected(_reason(rows, options, aside, name or out))
    shutil.move(aside, out)  # which may be on another disk, if it is temporary
    return Export(Path(out), rows, kept, layers)


def drop(row: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """What a file loses: points of the metric, or without labels percent of the answers that agree.

    >>> round(drop({"metric": "accuracy", "quality": 0.9}, {"quality": 0.92}), 6)
    2.0
    >>> round(drop({"metric": None, "agreement": 0.995}, {}), 6)
    0.5
    """
    if row["metric"] is None:
        return 100 * (1 - row["agreement"])
    sign = -1 if tasks.smaller_is_better(row["metric"]) else 1
    return 100 * (reference["quality"] - row["quality"]) * sign


def _measured(folder: str | Path, file: Path, out: str | Path, examples: Sequence[Any]) -> list[dict]:
    """The rows of Keras and of the file, under the name that it will have."""
    engines = [open_engine(folder), open_engine(file)._replace(name=Path(out).name)]
    return compare.compare(engines, examples)


def _figures(rows: Sequence[dict]) -> str:
    """The figures of a file in words."""
    keras, own = rows
    agreement = f"agreement with Keras {own['agreement']:.2%}"
    if own["metric"] is None:
        return agreement
    points = f"{100 * own['quality_difference']:+.2f} points"
    return f"{own['metric']} {own['quality']:.2%} ({keras['quality']:.2%} in Keras, {points}), {agreement}"


def _section(rows: Sequence[dict], options: Tflite, kept: Sequence[str], data: str, count: int) -> str:
    lines = [
        TFLITE_FIGURES,
        "",
        f"- Number format: {options.quantize}" + (f"; in float32: {', '.join(kept)}" if kept else ""),
        f"- Measured on {count:,} examples of {data}: {_figures(rows)}",
    ]
    if options.calibrate:
        names = ", ".join(Path(path).name for path in options.calibrate)
        lines.insert(3, f"- Ranges of activations calibrated on {names}")
    return "\n".join(lines) + "\n"


def _reason(rows: Sequence[dict], options: Tflite, aside: Path, out: str | Path) -> str:
    unit = "points" if rows[1]["metric"] else "percent of the answers"
    remedies = [f"--quantize {name}" for name in ("dynamic", "float16") if name != options.quantize]
    return (
        f"{out} is not written: {_figures(rows)}; it loses {drop(rows[1], rows[0]):.2f} {unit}, and --max-drop is "
        f"{options.max_drop:g}. The file is kept as {aside}. Remedies: {', '.join(remedies)}; --explain to see what "
        "each layer costs, and --keep-float LAYER ... or --keep-float auto"
    )


# ------------------------------------------------------------------------------------------------------- the layers


class Trial:
    """Files with some weights quantized, run on the same examples and compared with the float32 file.

    Args:
        model: float32, with named weights.
        bundle: of the model.
        form: one of `options.QUANTIZATIONS`.
        ranges: of activations, for "int8".
        examples: of the model's task.
    """

    def __init__(self, model: bytes, bundle: Bundle, form: str, ranges: dict | None, examples: Sequence[Any]):
        self.model, self.bundle, self.form, self.ranges, self.examples = model, bundle, form, ranges, examples
        predictor, self.reference = self._answers(model)
        self.float32 = compare.figures(predictor, examples, self.reference, self.reference)

    def figures(self, names: Sequence[str]) -> dict[str, Any]:
        """The figures of `compare.figures` with these weights quantized."""
        predictor, answers = self._answers(quantize.quantized(self.model, self.form, names, self.ranges))
        return compare.figures(predictor, self.examples, self.reference, answers)

    def drop(self, names: Sequence[str]) -> float:
        """What quantizing these weights loses, as of `drop`."""
        return drop(self.figures(names), self.float32)

    def _answers(self, data: bytes) -> tuple[Any, list[dict]]:
        with tempfile.TemporaryDirectory() as scratch:
            predictor = runtime.load(quantize.write(Path(scratch) / "trial.tflite", data, self.bundle))
            return predictor, predictor.ask(self.examples)


def sensitivity(trial: Trial, names: Sequence[str]) -> list[dict]:
    """What each layer costs when it alone is quantized, the most harmful first.

    Returns: {"layer", "agreement", "mean_difference" (of a probability, or of a value or score), "difference" (the
        largest), "metric", "quality", "quality_difference" (from float32; None without labels)}.
    """
    rows: list[dict[str, Any]] = [{"layer": name} | trial.figures([name]) for name in names]
    for row in rows:
        quality = row["quality"]
        row["quality_difference"] = None if quality is None else quality - trial.float32["quality"]
    return sorted(rows, key=lambda row: -row["mean_difference"])


def fewest(names: Sequence[str], trial: Trial, bound: float) -> list[str]:
    """The fewest layers, the most harmful first, that bring the drop within a bound when they stay float32.

    Args:
        names: layers, the most harmful first.
        trial: the model and the examples.
        bound: largest drop, as of `drop`.
    """
    low, high = 0, len(names)  # with `high` layers in float32 the drop is within the bound
    while low < high:
        middle = (low + high) // 2
        if trial.drop(names[middle:]) <= bound:
            high = middle
        else:
            low = middle + 1
    return list(names[:low])


def table(rows: Sequence[dict]) -> list[list[str]]:
    """The rows of `sensitivity` as text, the first a header."""
    labelled = any(row["metric"] for row in rows)
    metric = next((row["metric"] for row in rows if row["metric"]), "")
    header = ["layer", "mean difference", "largest", "agreement"] + ([f"{metric}, points"] if labelled else [])
    cells = [
        [row["layer"], f"{row['mean_difference']:.1e}", f"{row['difference']:.1e}", f"{row['agreement']:.1%}"]
        + ([f"{100 * row['quality_difference']:+.2f}"] if labelled else [])
        for row in rows
    ]
    return [header, *cells]
