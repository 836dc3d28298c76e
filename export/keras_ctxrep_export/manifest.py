"""The manifest of an export: its signatures, hashes of its files and some answers, written once and replayed later."""

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the operators that a SavedModel with text in it needs
from tensorflow.core.protobuf import saved_model_pb2

from keras_ctxrep.atomic import sha256
from keras_ctxrep.checks import printable, read_json
from keras_ctxrep.text.artifacts import SAVED_MODEL, SIGNATURE
from keras_ctxrep.training.shards import serialized
from keras_ctxrep.version import __version__

__all__ = ["check", "described", "write"]

NAME = "assets.extra/manifest.json"
FORMAT = 1
LOADED = (SAVED_MODEL, "fingerprint.pb", "variables/", "assets/")  # what TensorFlow reads of a SavedModel
LEAST_SERVER = "2.20.0"  # the oldest TensorFlow, and so TF Serving, that exports are tested with
TOLERANCE = 1e-4  # of answers that are computed again, absolute and relative: kernels differ between processors
STORED = 64  # values of each output that are stored, evenly spaced over it

_TEXTS = ["The first text, with a café in it.", "中文 und English; 42% of it!", "over and over again " * 100]


def write(folder: Path, loaded: Any) -> None:
    """Writes the manifest of a SavedModel, the last of its files.

    JSON: "least_server", the oldest version of TF Serving that is known to serve it; "versions" of what wrote it;
    "signatures", as in `described`; "files": path -> SHA-256 of all other files; "answers": some "inputs" of each
    "signature" and, of each output, its shape and up to 64 "values", evenly spaced over it.

    Args:
        folder: the version folder.
        loaded: the SavedModel, from this folder.
    """
    signatures = described(folder)
    samples = {name: _sample(signature["inputs"], signatures) for name, signature in signatures.items()}
    answers = _answers(loaded, signatures, samples)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / NAME)
    content = {
        "format": FORMAT,
        "least_server": LEAST_SERVER,
        "versions": {"keras_ctxrep": __version__, "tensorflow": tf.__version__},
        "signatures": signatures,
        "files": {path.relative_to(folder).as_posix(): sha256(path) for path in files},
        "answers": [{"signature": name, "inputs": samples[name], "outputs": out} for name, out in answers.items()],
    }
    (folder / NAME).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def check(folder: str | Path) -> dict[str, int]:
    """Replays the manifest of an export: hashes, signatures, and answers, which may differ by 1e-4.

    Args:
        folder: a version folder, whose other files, added later, are not looked at.

    Returns: how many "files", "signatures" and "answers" were found to be as they were.

    Raises:
        ValueError: there is no manifest, or a file, a signature or an output, which is named, is not as it says.
    """
    folder = Path(folder)
    with _open(folder) as content:
        _check_files(folder, content["files"])
        if described(folder) != content["signatures"]:
            raise ValueError(f"{folder}: its signatures are not those of {NAME}")
        samples = {entry["signature"]: entry["inputs"] for entry in content["answers"]}
        answers = _answers(tf.saved_model.load(str(folder)), content["signatures"], samples)
        for entry in content["answers"]:
            _compare(f"{folder}: signature {entry['signature']}", answers[entry["signature"]], entry["outputs"])
        return {name: len(content[name]) for name in ("files", "signatures", "answers")}


def check_loaded(folder: str | Path) -> None:
    """Compares the files that TensorFlow loads with their hashes in the manifest, if there is one.

    It reads these files once more: 0.3 seconds for 440 MB on a processor with SHA instructions.

    Args:
        folder: a version folder.

    Raises:
        ValueError: a file, which is named, is not the one that was exported, or the manifest is damaged.
    """
    if not (Path(folder) / NAME).is_file():
        return
    with _open(Path(folder)) as content:
        names = {name: digest for name, digest in content["files"].items() if name.startswith(LOADED)}
        _check_files(Path(folder), names)


@contextmanager
def _open(folder: Path) -> Iterator[dict]:
    """The manifest of a folder; errors of keys and types in the block are of a damaged one."""
    try:
        content = read_json((folder / NAME).read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{folder}: no {NAME} in it to check it with; export the model again") from None
    except ValueError as error:
        raise ValueError(f"{folder / NAME}: damaged: {error}") from None
    form = content.get("format") if isinstance(content, dict) else None
    if form != FORMAT:
        raise ValueError(f"{folder / NAME}: format {form!r} is not {FORMAT}; export the model again")
    try:
        yield content
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        reason = printable(f"{type(error).__name__} {error}")
        raise ValueError(f"{folder / NAME}: damaged: {reason}; copy the folder again, or export again") from None


def _check_files(folder: Path, files: Mapping[str, str]) -> None:
    """Raises a ValueError unless the files, path -> SHA-256, are there."""
    for name, digest in files.items():
        path = folder / name
        if not path.is_file() or sha256(path) != digest:
            state = "is not the file that was exported" if path.is_file() else "is missing"
            raise ValueError(f"{printable(path)}: {state}; copy the whole folder again, or export again")


def described(folder: Path) -> dict[str, dict]:
    """The signatures of a SavedModel: name -> "inputs" and "outputs": name -> "dtype" and "shape", -1 for any size."""
    message = saved_model_pb2.SavedModel()
    message.ParseFromString((folder / SAVED_MODEL).read_bytes())

    def tensors(infos) -> dict[str, dict]:
        return {name: _described(info) for name, info in sorted(infos.items())}

    definitions = sorted(message.meta_graphs[0].signature_def.items())
    return {
        name: {"inputs": tensors(definition.inputs), "outputs": tensors(definition.outputs)}
        for name, definition in definitions
        if not name.startswith("__")
    }


def _described(info) -> dict[str, Any]:
    shape = info.tensor_shape
    sizes = None if shape.unknown_rank else [int(dimension.size) for dimension in shape.dim]
    return {"dtype": tf.as_dtype(info.dtype).name, "shape": sizes}


def _sample(inputs: Mapping[str, dict], signatures: Mapping[str, dict]) -> dict[str, list]:
    """Some input of a signature, as JSON has it."""
    if "inputs" in inputs:  # tf.Examples of the raw-string signature's inputs
        columns = _sample(signatures[SIGNATURE]["inputs"], signatures)
        features = [[[x.encode()] if isinstance(x, str) else np.ravel(x).tolist() for x in c] for c in columns.values()]
        rows = [serialized(dict(zip(columns, row, strict=True))) for row in zip(*features, strict=True)]
        return {"inputs": [base64.b64encode(row).decode() for row in rows]}
    sample = {}
    for name, tensor in inputs.items():
        sizes = tensor["shape"][1:]
        if tensor["dtype"] == "string" and not sizes:
            sample[name] = _TEXTS
        elif tensor["dtype"] == "string":
            sample[name] = [[*text.split()[:5], ""] for text in _TEXTS]
        else:  # marks begin at the first character or word
            values = np.ones([len(_TEXTS), *(3 if size < 0 else size for size in sizes)], int)
            if name == "marks":
                values[..., 0] = 0
            sample[name] = values.tolist()
    return sample


def _answers(loaded: Any, signatures: Mapping[str, Any], samples: Mapping[str, Any]) -> dict[str, dict]:
    """Of each signature, each output's shape, and values of it, for its sample."""
    answers = {}
    for name, inputs in samples.items():
        if "inputs" in inputs:
            inputs = {"inputs": [base64.b64decode(value) for value in inputs["inputs"]]}
        types = {key: tensor["dtype"] for key, tensor in signatures[name]["inputs"].items()}
        outputs = loaded.signatures[name](**{key: tf.constant(value, types[key]) for key, value in inputs.items()})
        answers[name] = {output: _summary(tensor) for output, tensor in sorted(outputs.items())}
    return answers


def _summary(tensor: tf.Tensor) -> dict[str, list]:
    flat = tensor.numpy().ravel()
    chosen = flat[np.linspace(0, flat.size - 1, min(STORED, flat.size)).round().astype(int)]
    values = [value.decode() if isinstance(value, bytes) else value for value in chosen.tolist()]
    return {"shape": tensor.shape.as_list(), "values": values}


def _compare(source: str, answers: Mapping[str, dict], expected: Mapping[str, dict]) -> None:
    """Raises a ValueError unless the answers are those expected."""
    for name, summary in expected.items():
        answer = answers[name]
        same = answer["shape"] == summary["shape"]
        if same and summary["values"] and isinstance(summary["values"][0], str):
            same = answer["values"] == summary["values"]
        elif same:
            same = np.allclose(answer["values"], summary["values"], TOLERANCE, TOLERANCE, equal_nan=True)
        if not same:
            raise ValueError(f"{source}: the output {name!r} is not what it was when it was exported")
