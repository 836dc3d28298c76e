"""SavedModels for TF Serving, with raw strings as their input."""

import contextlib
import errno
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the operators that a SavedModel with text in it needs

from keras_ctxrep import tasks
from keras_ctxrep.atomic import temporary_folder
from keras_ctxrep.checks import first_line, printable
from keras_ctxrep.inference.generator import Generator
from keras_ctxrep.inference.messages import predict_request
from keras_ctxrep.inference.predictor import Engine, Predictor, TextRunner
from keras_ctxrep.text import artifacts
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import SIGNATURE, latest, versions
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep_export import kit, manifest
from keras_ctxrep_export.generation import Generation
from keras_ctxrep_export.signatures import Signatures

__all__ = ["SavedModelEngine", "check", "encoder", "export", "generator", "latest", "load"]

EXTRA = "assets.extra"  # the folder TF Serving reserves for other files


def export(
    model: keras.Model,
    bundle: Bundle,
    folder: str | Path,
    windows: str | None = None,
    keep: int | None = None,
    source: str | Path | None = None,
    tflite: str | Path | None = None,
) -> Path:
    """Writes the next version of a SavedModel: FOLDER/1, FOLDER/2, ... as TF Serving polls them.

    Its signatures, of which a row of answers never depends on the other rows of the batch:

    * serving_default: raw strings to answers. It takes {"text": string (B,)}, with {"pair": string (B,)} where the
      model reads pairs, and {"marks": int32 (B, M, 2)}, in characters of the text, the end exclusive, where it reads
      marked spans; or {"question", "context"}. The answers, by the model's task, are added to the model's outputs, and
      "error" string (B,): "", or "no words in this text" where all outputs of the row are 0 or "":

      * classify, coreference: "label" string (B,), "score" float32 (B,), "probabilities" float32 (B, C);
      * multilabel: "probabilities", and "labels" string (B, C): each where its probability is 0.5 or more, else "";
      * regress: "value" float32 (B,);
      * tag, semantic_roles: "words" and "labels" string (B, W), "" in padding and for words that were cut off, "starts"
        and "ends" int32 (B, W), in characters of the text, the end exclusive, and "scores" float32 (B, W);
      * answer: "answer" string (B,), "start" and "end" int32 (B,), in characters of the context, "score" and
        "null_score" float32 (B,), over all windows of the context, and nothing else;
      * embed: an encoder's layers are one tensor "layers", (B, N, T, D).

    * words, of tag and semantic_roles: the same of sentences that are split already, {"words": string (B, W)}, "" where
      a row has no more words, and "marks" in words. "labels" and "scores" are (B, W), of these words.
    * classify, of classify, coreference and multilabel, and regress, of regress: for TF Serving's APIs of these names.
      "inputs", string (B,), are serialized tf.Examples whose features have the names of serving_default's inputs;
      "classes" string and "scores" float32 (B, C) are all labels with their probabilities; "outputs" float32 (B,).
    * embed, of every model: {"text"} to vectors of the encoder. "vector" float32 (B, D) is what a `Predictor` of the
      encoder gives, see `models.heads.embed`; "mean" float32 (B, D) that of `ctxrep embed --layers mean`: of the
      trained scalar mix, else of all layers, over the text's tokens; "layers" float32 (B, N, T, D) with "mask" int32
      (B, T).
    * query and passage, of an encoder that has these roles, see `Bundle.roles`: {"text"} as in serving_default, of
      which the signature puts the role's prefix before each; the other signatures read texts as they are.
    * ids: the model's own dict of int32 and float32 tensors, without text.

    Of a language model in one direction they are those of `generation.Generation`.

    A version is written whole or not at all and never replaces another: of two exports at once each gets its number.
    Characters are Unicode's code points. Texts may be empty, of any length, which is cut as in training, and of any
    bytes; a batch may be empty. The bundle, a manifest, see `manifest.write`, and warm-up requests lie in assets.extra;
    beside them are a README.md, batching_params.pbtxt and BASE/model.config, see `kit`. Whoever loads the SavedModel in
    Python imports `tensorflow_text` first.

    Args:
        model: a task model, an encoder or a language model in one direction, with its weights.
        bundle: of the model.
        folder: BASE/NAME; TF Serving is given `--model_base_path=BASE/NAME --model_name=NAME`.
        windows: "mean" or "max": of the probabilities, or a regression's numbers, of overlapping windows of a text
            longer than the model reads, see `tasks.classify.TextTask`, without "logits". None: it is cut.
        keep: remove all versions but this many, those of the highest numbers, in the end.
        source: the model folder it comes from, whose run.json the README.md of the version cites.
        tflite: a measured .tflite file of the same model, `ctxrep tflite --data`: the model card has what it loses.

    Returns: the folder of the new version.

    Raises:
        ValueError: a pretraining model, which has no answers to serve, `windows`
            of a model that has none, `keep` below 1, or a `tflite` of another model or without figures.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: at least 1, the new version")
    if bundle.generates and (windows or tflite):
        raise ValueError("windows and tflite are of models with answers, and this one generates text")
    if bundle.task not in tasks.SERVED and not bundle.generates:
        raise ValueError(f"a {bundle.task} has nothing to serve: fine-tune it, or export its encoder")
    if tflite is not None:
        bundle = _with_figures(bundle, tflite)
    if windows is not None:
        bundle = tasks.windowed(bundle, windows)
    signatures = Generation(model, bundle) if bundle.generates else Signatures(model, bundle)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder / "version") as work:  # not a number, so that no poller picks it up
        new = work / "new"
        tf.saved_model.save(signatures, str(new), signatures=dict(signatures.functions))
        (new / EXTRA).mkdir()
        for name, data in bundle.files_as_bytes().items():
            (new / EXTRA / name).write_bytes(data)
        loaded = tf.saved_model.load(str(new))  # what does not load, or fails, is not published
        if isinstance(signatures, Generation):
            _write_kit(new, folder, signatures, loaded)
        else:
            kit.write(new, folder, bundle, loaded, source)
        manifest.write(new, loaded)
        version = _publish(new, folder)
        exported = [name for name in versions(folder) if (folder / name / artifacts.SAVED_MODEL).is_file()]
        for old in exported[:-keep] if keep else ():
            with contextlib.suppress(FileNotFoundError):  # another export has removed it
                os.replace(folder / old, work / old)  # gone at once; a poller never sees a part of it
    return version


def _write_kit(new: Path, folder: Path, signatures: Generation, loaded: Any) -> None:
    """What a server needs of a model that generates text: warm-up requests, configurations, and a README."""
    name = Path(os.path.abspath(folder)).name
    rows = {SIGNATURE: kit.BATCH_SIZES, "step": kit.BATCH_SIZES[:1]}
    forms = [form for size in kit.BATCH_SIZES for form in signatures.requests(size) if size in rows[form[0]]]
    kit.write_requests(new, [predict_request(inputs, name, of) for of, inputs in forms], loaded)
    example = json.dumps({key: value.tolist()[0] for key, value in forms[0][1].items()})
    url = f"http://localhost:8501/v1/models/{name}:predict"
    readme = f"# {name}\n\n{inspect.getdoc(Generation)}\n\n"
    readme += f"    curl {url} -d '{{\"instances\": [{example}]}}'\n"
    (new / kit.README).write_text(readme, encoding="utf-8")
    kit.write_config(Path(os.path.abspath(folder)).parent, name)


def generator(path: str | Path) -> Generator:
    """What generates text by the signature `step` of a SavedModel; the signature serving_default gives the same text.

    Args:
        path: as in `load`.

    Raises:
        ValueError: there is no SavedModel of a language model in one direction, or its files are damaged.
    """
    return SavedModelEngine(path).generate


def _with_figures(bundle: Bundle, tflite: str | Path) -> Bundle:
    """The bundle with the card of a .tflite file, which says what the file loses."""
    other = bundles.load(tflite)
    if (other.task, other.labels, other.vocab) != (bundle.task, bundle.labels, bundle.vocab):
        raise ValueError(f"{tflite}: of another model: its task, labels or vocabulary differ")
    if bundles.TFLITE_FIGURES not in other.card:
        raise ValueError(f"{tflite}: it was not measured; write it with `ctxrep tflite --data FILE`")
    return replace(bundle, card=other.card)


def _publish(new: Path, folder: Path) -> Path:
    """Renames a folder to the next version that is free."""
    while True:
        version = folder / str(1 + max(map(int, versions(folder)), default=0))
        try:
            os.rename(new, version)
        except OSError as error:  # another export has taken the number: a folder with files is never replaced
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            return version


def loaded(path: str | Path) -> Any:
    """A SavedModel that TensorFlow has loaded, its files compared with the hashes in its manifest before.

    Args:
        path: the version folder.

    Raises:
        ValueError: a file is not the one that was exported, or TensorFlow cannot load it.
    """
    manifest.check_loaded(path)
    try:
        model = tf.saved_model.load(str(path))
    except Exception as error:  # of many classes
        reason = printable(first_line(error))
        remedy = "copy the whole folder again, or export again"
        raise ValueError(f"{path}: TensorFlow cannot load it: {reason}; {remedy}") from error
    weights = {id(weight): weight for function in model.signatures.values() for weight in function.variables}
    artifacts.check_finite(path, ((weight.name, weight.numpy()) for weight in weights.values()))
    return model


def load(path: str | Path, batch_size: int = 32) -> Predictor:
    """A predictor through the string signatures of a SavedModel: what a TF Serving client gets.

    Sentences that are split into words go through the signature `words`; exports of 0.1.0 have none.

    Args:
        path: a version folder, or BASE/NAME, of which the highest version is taken.
        batch_size: texts per call.

    Raises:
        ValueError: there is no SavedModel with a bundle, or a file is not the one that was exported.
    """
    engine = SavedModelEngine(path)
    return Predictor(engine.bundle, engine.answer.runner, batch_size)


class SavedModelEngine(Engine):
    """The signatures of a SavedModel as an engine.

    Args:
        path: as in `load`.
        bundle: of the model, or with another search; None: that in the folder.
        search: the options of that search.
    """

    exported = True

    def __init__(self, path: str | Path, bundle: Bundle | None = None, search: Mapping[str, float] | None = None):
        self.name, self.path = f"SavedModel {Path(path).name}", latest(path)
        self.bundle, self._model = bundle or bundles.load(self.path), loaded(self.path)
        if not self.bundle.generates:
            self.answer = Predictor(self.bundle, self._runner(SIGNATURE, search or {}))

    @cached_property
    def encode(self) -> Predictor:
        if self.bundle.encodes or self.bundle.generates:
            return super().encode
        return Predictor(self.bundle.of_encoder(), self._runner("embed", {}))

    @cached_property
    def generate(self) -> Generator:
        if not self.bundle.generates:
            return super().generate
        model = self._model

        def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            outputs = model.signatures["step"](**{name: tf.constant(array) for name, array in batch.items()})
            return {name: value.numpy() for name, value in outputs.items()}

        state = model.signatures["step"].structured_input_signature[1]["state"]
        return Generator(self.bundle, run, int(state.shape[-1]))

    def _runner(self, signature: str, search: Mapping[str, float]) -> TextRunner:
        """What runs a signature of strings, with options of a search the signature "search"."""
        model, options = self._model, {}
        if search:
            task: Any = tasks.get(self.bundle.task)
            options = task.search_options(self.bundle)
            if others := [name for name in search if name not in options]:
                raise ValueError(f"{others[0]}={search[others[0]]}: a SavedModel has that of its export")
            options = options | {name: int(value) for name, value in search.items()}

        def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            size = len(next(iter(batch.values())))
            batch = batch | {name: np.full(size, value, np.int32) for name, value in options.items()}
            # a function lives only as long as the object it was loaded with
            serve = model.signatures["words" if "words" in batch else "search" if options else signature]
            outputs = serve(**{name: tensor(column) for name, column in batch.items()})
            return {name: value.numpy() for name, value in outputs.items()}

        return TextRunner(run, words="words" in model.signatures)


def tensor(column: np.ndarray) -> tf.Tensor:
    """An input of a signature; arrays of objects have strings, as text or as bytes."""
    if column.dtype != object:
        return tf.constant(column)
    encoded = [text.encode("utf-8", "replace") if isinstance(text, str) else text for text in column.flat]
    return tf.reshape(tf.constant(encoded, tf.string), column.shape)


def encoder(path: str | Path, batch_size: int = 32) -> Callable[[Sequence[str]], np.ndarray]:
    """A function from texts to their vectors, float32 (B, D), by the signature `embed` of a SavedModel.

    A text without words has a vector of zeros; exports before 0.3 give it that of the tokens around a text.

    Args:
        path: as in `load`.
        batch_size: texts per call.

    Raises:
        ValueError: there is no SavedModel, or its files are damaged.
    """
    model = loaded(latest(path))

    def encode(texts: Sequence[str]) -> np.ndarray:
        embed = model.signatures["embed"]  # lives only as long as the object it was loaded with
        encoded = [text.encode("utf-8", "replace") for text in texts]
        batches = [encoded[begin : begin + batch_size] for begin in range(0, len(encoded), batch_size)] or [[]]
        return np.concatenate([embed(text=tf.constant(batch, tf.string))["vector"].numpy() for batch in batches])

    return encode


def check(path: str | Path) -> tuple[Path, dict[str, int]]:
    """Replays the manifest of an export: hashes of its files, signatures, answers to some inputs.

    Args:
        path: as in `load`.

    Returns: the version folder, and how many "files", "signatures" and "answers" are as they were exported.

    Raises:
        ValueError: there is no SavedModel, it has no manifest, or something in it differs.
    """
    folder = latest(path)
    return folder, manifest.check(folder)
