"""The ranges of a model's activations on some texts, for quantization with fixed ranges."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep.checks import errors_of
from keras_ctxrep.tasks import Task
from keras_ctxrep.text import files
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import lines
from keras_ctxrep_tflite import weights
from keras_ctxrep_tflite.weights import Ranges

__all__ = ["inputs_of", "ranges"]

TEXTS = 300  # of each file
WIDEST = 0.125  # a step of 256 over the range, in standard deviations: rounding adds at most 4% of noise


def ranges(data: bytes, texts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, Ranges]:
    """Smallest and largest inputs and outputs of the dense layers, over all real tokens and all signatures.

    Layers within loops are left out, and those where few values are so large that 256 steps over the whole range are
    too coarse for the others, as in what a Transformer block adds to its residual stream. They stay dynamic.

    Args:
        data: a float32 model with named weights.
        texts: its inputs, as in `inputs_of`.

    Returns: name of a weight -> the ranges of its layer.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=weights.watched(data))
    names = [name for name in interpreter.get_signature_list() if name.startswith("length_")]
    runners = {int(name.removeprefix("length_")): interpreter.get_signature_runner(name) for name in names}
    seen: dict[str, np.ndarray] = {}  # name and end -> smallest, largest value, their number, sum and sum of squares
    for inputs in texts:
        tokens = max(int(values.sum()) for name, values in inputs.items() if name.endswith("mask"))
        length = min((length for length in runners if length >= tokens), default=max(runners))
        details = runners[length].get_input_details()
        fitted = {name: _fit(inputs[name], details[name]["shape_signature"]) for name in details}
        for name, value in runners[length](**fitted).items():
            if name.endswith((" input", " output")):
                real = value.reshape(-1, value.shape[-1])
                real = real[:tokens] if len(real) == length else real  # no padding
                old = seen.get(name, np.array([np.inf, -np.inf, 0, 0, 0]))
                sums = real.size, real.sum(dtype=float), np.square(real, dtype=float).sum()
                seen[name] = np.array([min(old[0], real.min()), max(old[1], real.max()), *(old[2:] + sums)])
    names = [name.removesuffix(" input") for name in seen if name.endswith(" input")]
    pairs = {name: (seen[f"{name} input"], seen[f"{name} output"]) for name in names}
    return {
        name: Ranges(*((float(values[0]), float(values[1])) for values in pair))
        for name, pair in pairs.items()
        if all(coarseness(values) <= WIDEST for values in pair)
    }


def coarseness(values: np.ndarray) -> float:
    """One of 256 steps from the smallest to the largest value, in standard deviations.

    The values are the smallest and the largest, their number, their sum and the sum of their squares.

    >>> round(coarseness(np.array([-4.0, 4.0, 100, 0.0, 100.0])), 3)
    0.031
    """
    least, most, count, total, squares = values
    spread = np.sqrt(max(squares / count - (total / count) ** 2, 1e-12))
    return float((max(most, 0) - min(least, 0)) / 255 / spread)


def inputs_of(
    paths: Sequence[str | Path], task: Task, bundle: Bundle, columns: Mapping[str, str] | None = None
) -> list[dict[str, np.ndarray]]:
    """The inputs of a model from the first texts of some files, one row each.

    Args:
        paths: text, a line each as `ctxrep predict --input` reads it, or rows of the model's task, by the suffix;
            compressed files too. The first 300 of each file are read.
        task, bundle: of the model.
        columns: of rows, as in `Task.read`.

    Raises:
        ValueError: a line is none that the model reads, or a file has no text.
    """
    inputs = []
    for path in paths:
        if files.suffix(Path(path)) in files.TABLES:
            queries = (task.query(example) for _, example in task.reading.read_unlabelled(path, columns))
        else:
            queries = _queries(path, task, bundle.pairs)
        rows = (row for query in islice(queries, TEXTS) for row in task.encode(bundle, [query])[0])
        batches = [batch for row in rows if (batch := bundle.features.collate([row]))["mask"].any()]
        if not batches:
            raise ValueError(f"{path}: no text in it that the model reads, to calibrate with")
        inputs += batches
    return inputs


def _queries(path: str | Path, task: Task, pairs: bool) -> Iterator[Any]:
    for number, line in lines(path):
        if line.strip():
            with errors_of(f"{path}:{number}"):
                query = task.query_of_line(line, pairs)
            yield query


def _fit(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The array cut or padded with zeros; -1 is any size."""
    shape = [have if size < 0 else size for size, have in zip(shape, array.shape, strict=True)]
    array = array[tuple(slice(size) for size in shape)]
    return np.pad(array, [(0, size - have) for size, have in zip(shape, array.shape, strict=True)])
