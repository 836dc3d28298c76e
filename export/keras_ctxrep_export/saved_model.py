"""SavedModels for TF Serving, with raw strings as their input."""

import os
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the operators that a SavedModel with text in it needs

from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.predict import Predictor
from keras_ctxrep_export import text_ops

EXTRA = "assets.extra"  # the folder TF Serving leaves to others


def export(model: keras.Model, bundle: Bundle, folder: str | Path) -> Path:
    """Writes the next version of a SavedModel: FOLDER/1, FOLDER/2, ... as TF Serving polls them.

    Two signatures: `serving_default` takes {"text": string (B,)} and gives the model's outputs, for a classifier with
    "label" string (B,), "score" float32 (B,) and "probabilities" float32 (B, C); `ids` takes and gives the model's own
    dict of int32 and float32 tensors. An encoder's layers are one tensor "layers", (B, N, T, D). The bundle lies in
    assets.extra. Whoever loads the SavedModel in Python imports `tensorflow_text` first, which registers its operators.

    Args:
        model: a task model or an encoder, with its weights.
        bundle: of the model.
        folder: BASE/NAME; TF Serving is given `--model_base_path=BASE/NAME --model_name=NAME`.

    Returns: the folder of the new version.

    Raises:
        ValueError: a pretraining model, which has no answers to serve.
    """
    serving = module(model, bundle)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    version = 1 + max((int(child.name) for child in folder.iterdir() if child.name.isdecimal()), default=0)
    temporary = tempfile.mkdtemp(prefix=f".{version}-", dir=folder)  # not a number, so that no poller picks it up
    try:
        signatures = {"serving_default": serving.serve_text, "ids": serving.serve_ids}  # pyright: ignore
        tf.saved_model.save(serving, temporary, signatures=signatures)
        extra = Path(temporary) / EXTRA
        extra.mkdir()
        for name, data in bundle.files_as_bytes().items():
            (extra / name).write_bytes(data)
        os.chmod(temporary, 0o755)
        os.replace(temporary, folder / str(version))
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder / str(version)


def load(path: str | Path, batch_size: int = 32) -> Predictor:
    """A predictor through the raw-string signature of a SavedModel: what a TF Serving client gets.

    Args:
        path: a version folder, or BASE/NAME, of which the highest version is taken.
        batch_size: texts per call.

    Raises:
        ValueError: there is no SavedModel with a bundle.
    """
    path = latest(path)
    bundle = bundles.load(path)
    loaded = tf.saved_model.load(str(path))
    serve = loaded.signatures["serving_default"]  # pyright: ignore[reportAttributeAccessIssue]

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = serve(tf.constant([text.encode("utf-8", "replace") for text in batch["text"]]))
        return {name: tensor.numpy() for name, tensor in found.items()}

    run.keep = loaded  # pyright: ignore  functions live only as long as the object they were loaded with
    return Predictor(bundle, run, batch_size, raw=True)


def latest(path: str | Path) -> Path:
    """The folder of a SavedModel: `path` itself, or its highest version.

    Raises:
        ValueError: there is none.
    """
    path = Path(path)
    versions = [int(child.name) for child in path.iterdir() if child.name.isdecimal()] if path.is_dir() else []
    found = path if (path / "saved_model.pb").is_file() else path / str(max(versions, default=0))
    if not (found / "saved_model.pb").is_file():
        raise ValueError(f"{path}: no SavedModel in it; write one with `ctxrep export`")
    return found


def module(model: keras.Model, bundle: Bundle) -> tf.Module:
    """The two signatures as `serve_text` and `serve_ids` of a module that holds the model's variables.

    Raises:
        ValueError: a pretraining model, which has no answers to serve.
    """
    if bundle.task not in ("classify", "embed"):
        raise ValueError(f"a {bundle.task} has nothing to serve: fine-tune it, or export its encoder")
    features = text_ops.features(bundle)

    def outputs(inputs):
        found = model(inputs, training=False)
        if "layers" in found:  # a signature's outputs are tensors: (B, N, T, D)
            found = found | {"layers": tf.stack(found["layers"], axis=1)}
        return found

    def answers(text):
        found = outputs(features(text))
        if bundle.task != "classify":
            return found
        probabilities = tf.nn.softmax(tf.cast(found["logits"], tf.float32))
        best = tf.argmax(probabilities, axis=-1)
        answer = {"label": tf.gather(tf.constant(bundle.labels), best), "score": tf.reduce_max(probabilities, axis=-1)}
        return found | answer | {"probabilities": probabilities}

    made = tf.Module()
    made.kept = [weight.value for weight in model.weights]  # pyright: ignore  what is tracked is saved
    made.features = features  # pyright: ignore[reportAttributeAccessIssue]
    spec = {name: tf.TensorSpec(model.input[name].shape, tf.int32, name) for name in bundle.features.keys}
    made.serve_ids = tf.function(outputs, input_signature=[spec])  # pyright: ignore[reportAttributeAccessIssue]
    text = tf.TensorSpec([None], tf.string, "text")
    made.serve_text = tf.function(answers, input_signature=[text])  # pyright: ignore[reportAttributeAccessIssue]
    return made
