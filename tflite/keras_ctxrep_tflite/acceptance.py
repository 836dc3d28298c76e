"""Exports that are measured on labelled or plain texts before they are accepted, and what each layer costs."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_ctxrep.options import Tflite
from keras_ctxrep.tasks import Task
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep_tflite import compare, runtime, weights

__all__ = ["Rejected", "Trial", "drop", "fewest", "layers_table", "sensitivity"]

EXPLAINED = 200  # examples that each layer is measured on


class Rejected(ValueError):
    """A file lost more accuracy than allowed; it was put aside."""


def drop(row: Mapping[str, Any], reference: Mapping[str, Any], task: Task) -> float:
    """What a file loses: points of the metric, or without labels percent of the answers that agree.

    >>> from keras_ctxrep import tasks
    >>> classify = tasks.get("classify")
    >>> round(drop({"metric": "accuracy", "quality": 0.9}, {"quality": 0.92}, classify), 6)
    2.0
    >>> round(drop({"metric": None, "agreement": 0.995}, {}, classify), 6)
    0.5
    """
    if row["metric"] is None:
        return 100 * (1 - row["agreement"])
    sign = -1 if row["metric"] in task.smaller else 1
    return 100 * (reference["quality"] - row["quality"]) * sign


def _summary(rows: Sequence[dict]) -> str:
    """The metrics of a file in words."""
    keras, file = rows
    agreement = f"agreement with Keras {file['agreement']:.2%}"
    if file["metric"] is None:
        return agreement
    points = f"{100 * file['quality_difference']:+.2f} points"
    return f"{file['metric']} {file['quality']:.2%} ({keras['quality']:.2%} in Keras, {points}), {agreement}"


def section(rows: Sequence[dict], options: Tflite, float_layers: Sequence[str], data: str, count: int) -> str:
    """The section of the model card on a file, from the rows of Keras and of the file, as in `compare.compare`."""
    lines = [
        bundles.TFLITE_FIGURES,
        "",
        f"- Number format: {options.quantize}" + (f"; in float32: {', '.join(float_layers)}" if float_layers else ""),
        f"- Measured on {count:,} examples of {data}: {_summary(rows)}",
    ]
    if options.calibrate:
        names = ", ".join(Path(path).name for path in options.calibrate)
        lines.insert(3, f"- Ranges of activations calibrated on {names}")
    return "\n".join(lines) + "\n"


def reason(rows: Sequence[dict], lost: float, options: Tflite, rejected: Path, out: str | Path) -> str:
    """Why a file that lost so much is not written to `out` but kept as `rejected`, and what to do about it."""
    unit = "points" if rows[1]["metric"] else "percent of the answers"
    remedies = [f"--quantize {name}" for name in ("dynamic", "float16") if name != options.quantize]
    return (
        f"{out} is not written: {_summary(rows)}; it loses {lost:.2f} {unit}, and --max-drop is "
        f"{options.max_drop:g}. The file is kept as {rejected}. Remedies: {', '.join(remedies)}; --explain to see what "
        "each layer costs, and --keep-float LAYER ... or --keep-float auto"
    )


class Trial:
    """Files with some weights quantized, run on the same examples and compared with the float32 file.

    Args:
        model: float32, with named weights.
        bundle: of the model.
        form: one of `options.QUANTIZATIONS`.
        ranges: of activations, for "int8".
        examples: of the model's task.
    """

    def __init__(self, model: bytes, bundle: Bundle, form: str, ranges: Mapping, examples: Sequence[Any]):
        self.model, self.bundle, self.form, self.ranges, self.examples = model, bundle, form, ranges, examples
        predictor, self.reference = self._answers(model)
        self.task = predictor.task
        self.float32 = compare.measure(predictor, examples, self.reference, self.reference)

    def measure(self, names: Sequence[str]) -> dict[str, Any]:
        """What `compare.measure` gives with these weights quantized."""
        predictor, answers = self._answers(weights.quantized(self.model, self.form, names, self.ranges))
        return compare.measure(predictor, self.examples, self.reference, answers)

    def drop(self, names: Sequence[str]) -> float:
        """What quantizing these weights loses, as in `drop`."""
        return drop(self.measure(names), self.float32, self.task)

    def _answers(self, data: bytes) -> tuple[Any, list[dict]]:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "trial.tflite"
            bundles.write_tflite(path, data, self.bundle)
            predictor = runtime.load(path)
            return predictor, predictor.ask(self.examples)


def sensitivity(trial: Trial, names: Iterable[str]) -> list[dict]:
    """What each layer costs when it alone is quantized, the most harmful first.

    Returns: {"layer", "agreement", "mean_difference" (of a probability, or of a value or score), "difference" (the
        largest), "metric", "quality", "quality_difference" (from float32; None without labels)}.
    """
    rows: list[dict[str, Any]] = [{"layer": name} | trial.measure([name]) for name in names]
    for row in rows:
        quality = row["quality"]
        row["quality_difference"] = None if quality is None else quality - trial.float32["quality"]
    return sorted(rows, key=lambda row: -row["mean_difference"])


def fewest(names: Sequence[str], trial: Trial, bound: float) -> list[str]:
    """The fewest layers, the most harmful first, that bring the drop within a bound when they stay float32.

    Args:
        names: layers, the most harmful first.
        trial: the model and the examples.
        bound: largest drop, as in `drop`.
    """
    low, high = 0, len(names)  # with `high` layers in float32 the drop is within the bound
    while low < high:
        middle = (low + high) // 2
        if trial.drop(names[middle:]) <= bound:
            high = middle
        else:
            low = middle + 1
    return list(names[:low])


def layers_table(rows: Sequence[dict]) -> list[list[str]]:
    """The rows of `sensitivity` as text, the first a header."""
    metric = next((row["metric"] for row in rows if row["metric"]), None)
    header = ["layer", "mean difference", "largest", "agreement"] + ([f"{metric}, points"] if metric else [])
    cells = [
        [row["layer"], f"{row['mean_difference']:.1e}", f"{row['difference']:.1e}", f"{row['agreement']:.1%}"]
        + ([f"{100 * row['quality_difference']:+.2f}"] if metric else [])
        for row in rows
    ]
    return [header, *cells]
