"""Text to answers from a .tflite file, with LiteRT and NumPy: neither TensorFlow nor Keras is imported."""

from pathlib import Path

import numpy as np

from keras_ctxrep.predict import Predictor
from keras_ctxrep.text import bundle as bundles


def load(path: str | Path, threads: int = 1) -> Predictor:
    """A predictor of a .tflite file written by `ctxrep tflite`.

    Each text runs through the signature of the smallest length that holds it.

    Args:
        path: the file.
        threads: of LiteRT.

    Raises:
        ValueError: the file is missing, damaged, or has no bundle in it.
        ImportError: LiteRT is not installed.

    >>> load("missing.tflite")
    Traceback (most recent call last):
    ValueError: missing.tflite: no such file or folder
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        raise ImportError('running .tflite files needs LiteRT: pip install "keras_ctxrep[edge]"') from None
    bundle = bundles.load(path)
    try:
        interpreter = Interpreter(model_path=str(path), num_threads=threads)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{path}: not a TFLite file that LiteRT can run: {error}") from None
    runners = {int(name.removeprefix("length_")): name for name in interpreter.get_signature_list()}
    ready: dict = {}

    def run(batch: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
        answers = [
            run_single({name: array[i : i + 1] for name, array in batch.items()}) for i in range(len(batch["mask"]))
        ]
        return {name: [answer[name][0] for answer in answers] for name in answers[0]}  # each of its signature's length

    def run_single(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tokens = int(inputs["mask"].sum())
        length = min(length for length in runners if length >= tokens)
        if length not in ready:
            runner = interpreter.get_signature_runner(runners[length])
            sizes = {name: int(details["shape"][1]) for name, details in runner.get_input_details().items()}
            ready[length] = runner, sizes
        runner, sizes = ready[length]
        return runner(**{name: _fit(inputs[name], size) for name, size in sizes.items()})

    return Predictor(bundle, run)


def _fit(array: np.ndarray, length: int) -> np.ndarray:
    """(1, T, ...) cut or padded with zeros to (1, length, ...); what is cut is padding."""
    array = array[:, :length]
    missing = [(0, 0)] * array.ndim
    missing[1] = (0, length - array.shape[1])
    return np.pad(array, missing)
