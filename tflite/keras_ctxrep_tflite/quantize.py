"""Model folders to .tflite files, with their bundle inside."""

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.checks import check_value
from keras_ctxrep.options import QUANTIZATIONS
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep_tflite import calibration, weights
from keras_ctxrep_tflite import mediapipe as for_mediapipe

LENGTHS = (16, 32, 64, 128, 256)  # those below the model's own, which is the last one


def convert(
    folder: str | Path,
    out: str | Path,
    quantize: str = "none",
    lengths: Sequence[int] | None = None,
    calibrate: Sequence[str | Path] | None = None,
    keep_float: Sequence[str] = (),
    mediapipe: bool = False,
) -> Path:
    """Writes a .tflite file of a model folder, for one text at a time, with built-in operators only.

    The file has one signature per length, "length_16", "length_32", ..., which share the weights: {"char_ids"} or
    {"token_ids", "segment_ids"} and "mask", int32 (1, length), to the model's outputs. Longer texts are cut. The bundle
    and the vocabulary lie in a zip archive at the file's end, which LiteRT ignores and `runtime` reads, so that
    an app ships a single file.

    The conversion runs in a subprocess, since the converter aborts the process on an internal error. It gives float32,
    and `weights.quantized` writes the other formats: that can leave single layers as they are, keeps a scale for each
    row of an embedding, and stores weights and biases once for all signatures. Neither TensorFlow's quantizer nor
    ai-edge-quantizer 0.10 does all three; docs/quantization.md has the figures.

    Args:
        folder: a task model or an encoder; of a pretraining model the encoder is taken.
        out: FILE.tflite.
        quantize: "none" (float32), "float16", "dynamic" (8-bit weights, activations quantized on the fly) or "int8"
            (as "dynamic", and dense layers with the fixed ranges of their activations on the texts of `calibrate`).
        lengths: tokens per signature; those above the model's own maximum become that. None: those of `LENGTHS` below
            the model's own maximum, and that itself, so that the file reads as much as the model; with `mediapipe`
            that itself alone.
        calibrate: files of text for "int8", as of `calibration.inputs_of`.
        keep_float: weights that stay float32, or layers all of whose weights do, e.g. "layer_0/qkv", "pooler".
        mediapipe: of a BERT classifier or encoder: TextClassifier and TextEmbedder of MediaPipe run the file too, see
            `mediapipe.describe`; they read files of one length.

    Returns: `out`.

    Raises:
        ValueError: an unknown quantization, a length below 4, a file name that does not end in .tflite or is that of a
            folder, calibration texts without "int8" or that the model cannot read, no layer of a name, or with
            `mediapipe` several lengths or a model that MediaPipe has no task for.
        TypeError: one string instead of a list of files or of layers.
        RuntimeError: the converter failed; the message holds the end of its output.

    Warns:
        UserWarning: the longest of the lengths is below that of the model, so that texts are cut that it reads; or
            "int8" without texts, which is "dynamic".
    """
    check_value("calibrate", calibrate, Sequence | None)
    check_value("keep_float", keep_float, Sequence)
    bundle, signature_lengths = checked(folder, out, quantize, lengths, calibrate, mediapipe)
    inputs = calibration.inputs_of(calibrate or (), bundle, signature_lengths[-1])
    data, bundle = float_model(folder, signature_lengths)
    names = chosen(weights.sizes(data), keep_float)
    ranges = calibration.ranges(data, inputs) if inputs else None
    return write(out, quantized(data, quantize, names, ranges), bundle, mediapipe)


def checked(
    folder: str | Path,
    out: str | Path,
    quantize: str,
    lengths: Sequence[int] | None,
    calibrate: Sequence[str | Path] | None,
    mediapipe: bool,
) -> tuple[Bundle, list[int]]:
    """The bundle of a model and the lengths of the signatures; checks and warns as `convert` says."""
    bundle = bundles.load(folder)
    if not (Path(folder) / bundles.WEIGHTS).is_file():
        raise ValueError(f"{folder}: no {bundles.WEIGHTS} in it; name the model folder that `ctxrep train` wrote")
    if "subword_ids" in bundle.features.keys:
        raise ValueError(f"{folder}: word vectors with character n-grams have no .tflite file: use Keras")
    if quantize not in QUANTIZATIONS:
        raise ValueError(f"quantize={quantize!r}: choose one of {', '.join(QUANTIZATIONS)}")
    if Path(out).suffix != ".tflite":
        raise ValueError(f"{out}: the name must end in .tflite")
    if Path(out).is_dir():
        raise ValueError(f"{out}: a folder; name a file")
    if calibrate and quantize != "int8":
        raise ValueError(f"quantize={quantize!r}: texts to calibrate with are for 'int8'")
    if mediapipe:
        served = bundle if bundle.task in tasks.SERVED else replace(bundle, task="embed")  # its encoder is written
        for_mediapipe.check(served, folder)
        lengths = (bundle.max_length,) if lengths is None else lengths
    signature_lengths = _signature_lengths(lengths, bundle.max_length)
    if mediapipe and len(signature_lengths) > 1:
        raise ValueError(f"lengths={signature_lengths}: MediaPipe reads files of one length")
    if signature_lengths[-1] < bundle.max_length:
        warnings.warn(
            f"{out}: reads {signature_lengths[-1]} tokens of a text, and the model {bundle.max_length}: longer texts "
            f"are cut; add the length {bundle.max_length} to read as much",
            stacklevel=3,
        )
    if quantize == "int8" and not calibrate:
        warnings.warn(
            f"{out}: int8 without texts to calibrate with is the same as dynamic; give texts for fixed ranges of "
            "the activations (--calibrate FILE), or choose dynamic",
            stacklevel=3,
        )
    return bundle, signature_lengths


def float_model(folder: str | Path, lengths: Sequence[int]) -> tuple[bytes, Bundle]:
    """The float32 model with a signature for each length, and its bundle, of a pretraining model its encoder's.

    The weights have the names of the Keras model's.

    Raises:
        RuntimeError: the converter failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.tflite"
        command = [sys.executable, "-m", "keras_ctxrep_tflite.quantize", str(folder), str(path)]
        process = subprocess.run([*command, *map(str, lengths)], capture_output=True, text=True)
        if process.returncode:
            tail = "\n".join(process.stderr.strip().splitlines()[-12:])
            raise RuntimeError(f"{folder}: the TFLite converter failed (exit {process.returncode}):\n{tail}")
        return path.read_bytes(), replace(bundles.load(scratch), max_length=lengths[-1])


def chosen(sizes: dict[str, int], keep_float: Sequence[str]) -> list[str]:
    """The names of the weights to quantize.

    >>> chosen({"layer_0/qkv/kernel": 3072, "pooler/kernel": 1024}, ["layer_0"])
    ['pooler/kernel']

    Raises:
        ValueError: a layer to keep is none of the model's.
    """
    for layer in keep_float:
        if not any(weights.within(name, [layer]) for name in sizes):
            raise ValueError(f"keep_float={layer!r}: this model has no such layer; they are {', '.join(sizes)}")
    return [name for name in sizes if not weights.within(name, keep_float)]


def quantized(data: bytes, quantize: str, names: Sequence[str], ranges: dict | None = None) -> bytes:
    """A float32 model in one of QUANTIZATIONS, except for the weights whose names are not given."""
    form = "dynamic" if quantize == "int8" and ranges is None else quantize
    return data if form == "none" else weights.quantized(data, form, names, ranges)


def write(out: str | Path, data: bytes, bundle: Bundle, mediapipe: bool = False) -> Path:
    """Writes a .tflite file: a model, and the files of its bundle in a zip archive behind it."""
    with atomic_write(out) as path:
        bundles.write_tflite(path, data, bundle)
        if mediapipe:
            for_mediapipe.describe(path)
    return Path(out)


def _signature_lengths(lengths: Sequence[int] | None, longest: int) -> list[int]:
    """The lengths of the signatures of a model that reads `longest` tokens.

    >>> _signature_lengths(None, 384), _signature_lengths((64, 512), 384)
    ([16, 32, 64, 128, 256, 384], [64, 384])
    """
    lengths = (*LENGTHS, longest) if lengths is None else lengths
    if not lengths or min(lengths) < 4:
        raise ValueError(f"lengths={list(lengths)}: each must be at least 4")
    return sorted({min(length, longest) for length in lengths})


def _convert(folder: str, out: str, lengths: list[int]) -> None:
    """The conversion, run in the subprocess: the only place that knows a converter.

    It writes float32 and built-in operators only. A model of the families here is a graph of fixed sizes whose loops
    are dense; another converter, such as that of litert-torch, has to keep the signatures and the names in `weights`.
    """
    import tensorflow as tf

    from keras_ctxrep import saving
    from keras_ctxrep.models import heads

    model, bundle = saving.load_served(folder)
    bundles.save(bundle, Path(out).parent)

    class Signatures(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = [weight.value for weight in model.weights]  # tracked, hence saved
            self.outputs = tf.function(lambda inputs: heads.flat(model(inputs, training=False)))

    module = Signatures()
    signatures = {}
    for length in lengths:
        spec = {
            name: tf.TensorSpec((1, *(length if size is None else size for size in tensor.shape[1:])), tf.int32, name)
            for name, tensor in model.input.items()
        }
        signatures[f"length_{length}"] = module.outputs.get_concrete_function(spec)
    with tempfile.TemporaryDirectory() as saved:
        tf.saved_model.save(module, saved, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=list(signatures))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        data = converter.convert()
    Path(out).write_bytes(weights.named(data, {weight.path: np.asarray(weight) for weight in model.weights}))


if __name__ == "__main__":
    _convert(sys.argv[1], sys.argv[2], list(map(int, sys.argv[3:])))
