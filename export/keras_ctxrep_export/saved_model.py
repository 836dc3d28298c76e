"""SavedModels for TF Serving, with raw strings as their input."""

import os
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the operators that a SavedModel with text in it needs

from keras_ctxrep.models import heads
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.predict import Predictor
from keras_ctxrep_export import text_ops

EXTRA = "assets.extra"  # the folder TF Serving leaves to others


def export(model: keras.Model, bundle: Bundle, folder: str | Path) -> Path:
    """Writes the next version of a SavedModel: FOLDER/1, FOLDER/2, ... as TF Serving polls them.

    Two signatures: `serving_default` takes {"text": string (B,)}, and {"pair": string (B,)} where the model reads
    pairs, and gives the model's outputs, for a classifier with
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
    if bundle.task not in ("classify", "embed"):
        raise ValueError(f"a {bundle.task} has nothing to serve: fine-tune it, or export its encoder")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    version = 1 + max((int(child.name) for child in folder.iterdir() if child.name.isdecimal()), default=0)
    temporary = tempfile.mkdtemp(prefix=f".{version}-", dir=folder)  # not a number, so that no poller picks it up
    try:
        made = Signatures(model, bundle)
        tf.saved_model.save(made, temporary, signatures={"serving_default": made.text, "ids": made.ids})
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
    serve = loaded.signatures["serving_default"]

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = serve(
            **{name: tf.constant([t.encode("utf-8", "replace") for t in texts]) for name, texts in batch.items()}
        )
        return {name: tensor.numpy() for name, tensor in found.items()}

    run.keep = loaded  # functions live only as long as the object they were loaded with
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


class Signatures(tf.Module):
    """Text preparation, model and answers as two functions of tensors, with what has to be saved along."""

    def __init__(self, model: keras.Model, bundle: Bundle):
        super().__init__()
        self.features = text_ops.features(bundle)
        self.weights = [weight.value for weight in model.weights]  # what is tracked is saved
        labels = tf.constant(bundle.labels) if bundle.labels else None
        spec = {name: tf.TensorSpec(model.input[name].shape, tf.int32, name) for name in bundle.features.keys}

        @tf.function(input_signature=[spec])
        def ids(inputs):
            return heads.flat(model(inputs, training=False))

        strings = [tf.TensorSpec([None], tf.string, name) for name in ("text", "pair")[: 1 + bundle.pairs]]

        @tf.function(input_signature=strings)
        def text(*texts):
            found = ids(self.features(*texts))
            if labels is None:
                return found
            probabilities = tf.nn.softmax(tf.cast(found["logits"], tf.float32))
            best = {"label": tf.gather(labels, tf.argmax(probabilities, axis=-1))}
            return found | best | {"score": tf.reduce_max(probabilities, -1), "probabilities": probabilities}

        self.ids, self.text = ids, text
