"""Model folders to .tflite files, with their bundle inside."""

import hashlib
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import written_whole

QUANTIZATIONS = ("none", "int8")
LENGTHS = (16, 32, 64, 128, 256)  # those below the model's own, which is the last one


def convert(folder: str | Path, out: str | Path, quantize: str = "none", lengths: Sequence[int] | None = None) -> Path:
    """Writes a .tflite file of a model folder, for one text at a time, with built-in operators only.

    The file has one signature per length, "length_16", "length_32", ..., which share the weights: {"char_ids"} or
    {"token_ids", "segment_ids"} and "mask", int32 (1, length), to the model's outputs. Longer texts are cut. The bundle
    and the vocabulary lie in a zip archive at the file's end, which LiteRT ignores and `runtime` reads, so that
    an app ships a single file.

    "int8" stores the weights of products, convolutions and embeddings as 8-bit integers with one scale per channel (or
    per table) and computes with 8-bit activations, quantized dynamically, without calibration.

    The conversion runs in a subprocess, since the converter aborts the process on an internal error.

    Args:
        folder: a task model or an encoder; of a pretraining model the encoder is taken.
        out: FILE.tflite.
        quantize: "none" (float32) or "int8".
        lengths: tokens per signature; those above the model's own maximum become that. None: those of `LENGTHS` below
            the model's own maximum, and that itself, so that the file reads as much as the model.

    Returns: `out`.

    Raises:
        ValueError: an unknown quantization, a length below 4, or a file name that does not end in .tflite.
        RuntimeError: the converter failed; the message holds the end of its output.

    Warns:
        UserWarning: the longest of the lengths is below that of the model, so that texts are cut that it reads.
    """
    bundle = bundles.load(folder)
    if quantize not in QUANTIZATIONS:
        raise ValueError(f"quantize={quantize!r}: choose one of {', '.join(QUANTIZATIONS)}")
    if Path(out).suffix != ".tflite":
        raise ValueError(f"{out}: the name must end in .tflite")
    signature_lengths = _signature_lengths(lengths, bundle.max_length)
    if signature_lengths[-1] < bundle.max_length:
        warnings.warn(
            f"{out}: reads {signature_lengths[-1]} tokens of a text, and the model {bundle.max_length}: longer texts "
            f"are cut; add the length {bundle.max_length} to read as much",
            stacklevel=2,
        )
    with written_whole(out) as path:
        command = [sys.executable, "-m", "keras_ctxrep_tflite.quantize", str(folder), str(path), quantize]
        process = subprocess.run([*command, *map(str, signature_lengths)], capture_output=True, text=True)
        if process.returncode:
            tail = "\n".join(process.stderr.strip().splitlines()[-12:])
            raise RuntimeError(f"{folder}: the TFLite converter failed (exit {process.returncode}):\n{tail}")
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


def _convert(folder: str, out: str, quantize: str, lengths: list[int]) -> None:
    """The conversion, run in the subprocess."""
    from dataclasses import replace

    import tensorflow as tf

    from keras_ctxrep import train
    from keras_ctxrep.models import heads

    model, bundle = train.load_served(folder)
    bundle = replace(bundle, max_length=lengths[-1])

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
        if quantize == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        model_bytes = converter.convert()
    Path(out).write_bytes(model_bytes)
    digest = hashlib.sha256(model_bytes).hexdigest()
    with zipfile.ZipFile(out, "a", zipfile.ZIP_STORED) as archive:
        for name, data in bundle.files_as_bytes({bundles.TFLITE: digest}).items():
            archive.writestr(zipfile.ZipInfo(name), data)


if __name__ == "__main__":
    _convert(sys.argv[1], sys.argv[2], sys.argv[3], list(map(int, sys.argv[4:])))
