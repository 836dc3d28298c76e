"""SavedModels for TF Serving, with raw strings as their input."""

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the operators that a SavedModel with text in it needs

from keras_ctxrep import tasks
from keras_ctxrep.models import heads
from keras_ctxrep.predict import Predictor
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep_export import kit, text_ops

EXTRA = "assets.extra"  # the folder TF Serving reserves for other files


def export(model: keras.Model, bundle: Bundle, folder: str | Path, source: str | Path | None = None) -> Path:
    """Writes the next version of a SavedModel: FOLDER/1, FOLDER/2, ... as TF Serving polls them.

    Two signatures: `serving_default` takes raw strings and gives answers, `ids` takes and gives the model's own dict of
    int32 and float32 tensors. The strings are {"text": string (B,)}, with {"pair": string (B,)} where the model reads
    pairs, and {"marks": int32 (B, M, 2)}, in characters of the text, the end exclusive, where it reads marked spans; or
    {"question", "context"}; the answers, by the model's task, added to the model's outputs:

    * classify, coreference: "label" string (B,), "score" float32 (B,), "probabilities" float32 (B, C);
    * multilabel: "probabilities", and "labels" string (B, C): each where its probability is 0.5 or more, else "";
    * regress: "value" float32 (B,);
    * tag, semantic_roles: "words" and "labels" string (B, W), "starts" and "ends" int32 (B, W), in characters of the
      text, the end exclusive, and "scores" float32 (B, W); in padding and for words that were cut off the label is "";
    * answer: "answer" string (B,), "start" and "end" int32 (B,), in characters of the context, "score" and "null_score"
      float32 (B,), over all windows of the context, and nothing else;
    * embed: an encoder's layers are one tensor "layers", (B, N, T, D).

    Characters are Unicode's code points. The bundle lies in assets.extra, with warm-up requests; beside them are a
    README.md, batching_params.pbtxt and BASE/model.config, see `kit`. Whoever loads the SavedModel in Python imports
    `tensorflow_text` first, which registers its operators.

    Args:
        model: a task model or an encoder, with its weights.
        bundle: of the model.
        folder: BASE/NAME; TF Serving is given `--model_base_path=BASE/NAME --model_name=NAME`.
        source: the model folder it comes from, whose run.json the README.md of the version cites.

    Returns: the folder of the new version.

    Raises:
        ValueError: a pretraining model, which has no answers to serve, or word vectors with character n-grams.
    """
    if bundle.task not in tasks.SERVED:
        raise ValueError(f"a {bundle.task} has nothing to serve: fine-tune it, or export its encoder")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    version = 1 + max((int(child.name) for child in folder.iterdir() if child.name.isdecimal()), default=0)
    with bundles.temporary_folder(folder / "version") as work:  # not a number, so that no poller picks it up
        new = work / str(version)
        signatures = Signatures(model, bundle)
        tf.saved_model.save(
            signatures, str(new), signatures={"serving_default": signatures.text, "ids": signatures.ids}
        )
        (new / EXTRA).mkdir()
        for name, data in bundle.files_as_bytes().items():
            (new / EXTRA / name).write_bytes(data)
        kit.write(new, folder, bundle, source)
        os.replace(new, folder / str(version))
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

    def tensor(column: np.ndarray) -> tf.Tensor:
        if column.dtype == object:
            return tf.constant([text.encode("utf-8", "replace") for text in column])
        return tf.constant(column)

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        serve = loaded.signatures["serving_default"]  # a function lives only as long as the object it was loaded with
        outputs = serve(**{name: tensor(column) for name, column in batch.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    return Predictor(bundle, run, batch_size, raw=True)


def latest(path: str | Path) -> Path:
    """The folder of a SavedModel: `path` itself, or its highest version.

    Raises:
        ValueError: there is none.
    """
    path = Path(path)
    versions = [int(child.name) for child in path.iterdir() if child.name.isdecimal()] if path.is_dir() else []
    version_folder = path if (path / "saved_model.pb").is_file() else path / str(max(versions, default=0))
    if not (version_folder / "saved_model.pb").is_file():
        raise ValueError(f"{path}: no SavedModel in it; write one with `ctxrep export`")
    return version_folder


class Signatures(tf.Module):
    """Text preparation, model and answers as two functions of tensors, with the variables to save."""

    def __init__(self, model: keras.Model, bundle: Bundle):
        super().__init__()
        task = tasks.get(bundle.task)
        self.features: Any = text_ops.features(bundle)
        self.weights = [weight.value for weight in model.weights]  # tracked, hence saved
        spec = {name: tf.TensorSpec(tensor.shape, tf.int32, name) for name, tensor in model.input.items()}

        @tf.function(input_signature=[spec])
        def ids(inputs):
            return heads.flat(model(inputs, training=False))

        @tf.function(input_signature=[_spec(name, bundle) for name in task.inputs(bundle)])
        def text(*inputs):
            return task.in_graph(bundle, self.features, ids, dict(zip(task.inputs(bundle), inputs, strict=True)))

        self.ids, self.text = ids, text


def _spec(name: str, bundle: Bundle) -> tf.TensorSpec:
    """Of an input of the raw-string signature."""
    if name == "marks":
        return tf.TensorSpec([None, bundle.reads.marks, 2], tf.int32, name)
    return tf.TensorSpec([None], tf.string, name)
