"""Model folders: build, save, load."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import keras
import tokenizers

from keras_ctxrep import backend, checks, tasks, updates
from keras_ctxrep.layers.initializers import no_random_weights
from keras_ctxrep.models import bert, stack, static
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.models.model import Model, copy_weights
from keras_ctxrep.places import published
from keras_ctxrep.text import artifacts
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.training import checkpoints
from keras_ctxrep.training.strategy import is_chief, of_model
from keras_ctxrep.version import __version__

__all__ = [
    "ModelFolder",
    "build",
    "encoder_bundle",
    "finish",
    "load",
    "load_encoder",
    "load_served",
    "save",
    "save_changes",
    "versions",
]


class ModelFolder(NamedTuple):
    """The contents of a model folder: a model and its bundle, which says how text becomes the model's input.

    >>> from dataclasses import asdict
    >>> from keras_ctxrep.models import bert
    >>> config = bert.Config(vocabulary_size=6, layers=1, width=4, heads=1, intermediate=8)
    >>> vocab = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a")
    >>> bundle = Bundle("bert", "classify", asdict(config), 8, labels=("yes", "no"), vocab=vocab)
    >>> classifier = ModelFolder(build(bundle), bundle)
    >>> model, bundle = classifier.encoder()
    >>> sorted(model.output), bundle.task
    (['layers', 'pooled', 'sequence', 'vector'], 'embed')
    """

    model: keras.Model
    bundle: Bundle

    def save(self, folder: str | Path) -> None:
        """Writes a model folder; see the function `save`."""
        save(folder, self.model, self.bundle)

    def encoder(self) -> "ModelFolder":
        """The encoder alone, a copy, with the task "embed"."""
        bundle = encoder_bundle(self.model, self.bundle)
        with no_random_weights():
            encoder = build(bundle)
        copy_weights(self.model, encoder)
        return ModelFolder(encoder, bundle)

    def answering(self) -> "ModelFolder":
        """What answers: a task model itself; of a BERT's pretraining model the classifier of its next sentences."""
        if "nsp_logits" not in self.model.output:
            return self
        inputs = {name: tensor for name, tensor in self.model.input.items() if name != "mlm_positions"}
        classifier = keras.Model(inputs, {"logits": self.model.output["nsp_logits"]})
        fields = tasks.bundle_fields("classify", pair=True)
        return ModelFolder(classifier, replace(self.bundle, labels=bert.NEXT_SENTENCE, **fields))

    def served(self) -> "ModelFolder":
        """What can be served of it: a model that answers or generates itself, of others the encoder."""
        return self if self.bundle.task in tasks.SERVED or self.bundle.generates else self.encoder()


def build(bundle: Bundle) -> keras.Model:
    """The model a bundle describes, with fresh weights."""
    family = FAMILIES[bundle.family]
    config = family.config(**bundle.config)
    if bundle.task in family.pretraining:
        return family.pretraining[bundle.task](config, len(bundle.vocab))
    return finish(family.encoder(config), bundle)


def finish(encoder: keras.Model, bundle: Bundle) -> keras.Model:
    """The task network and the head that a bundle describes, with fresh weights, over an encoder.

    Args:
        encoder: of the bundle's family.
        bundle: of the task model.
    """
    if bundle.stack:
        extra = static.encoder(static.Config(**bundle.extra_embeddings)) if bundle.extra_embeddings else None
        marks = bundle.reads.marks if bundle.reads.indicate and not bundle.features.indicate else 0
        encoder = stack.by_name(encoder, **bundle.stack, extra_embeddings=extra, marks=marks)
    return tasks.get(bundle.task).head(encoder, bundle)


def save(folder: str | Path, model: keras.Model, bundle: Bundle) -> None:
    """Writes a model folder: model.weights.h5 (without the optimizer's state), vocab.txt and bundle.json.

    Of several workers only the first one writes.

    Args:
        folder: the model folder; it is made if it is not there.
        model: what `build` gives for the bundle, trained.
        bundle: of the model.

    Raises:
        ValueError: the model has outputs or layers that the bundle does not describe, which the folder would lose; or
            it is a language model with `streams`.
    """
    if any(getattr(layer, "streams", None) for layer in model.layers):
        raise ValueError("a language model with streams: copy_weights(model, build(bundle)), and save that one")
    _check_described(model, bundle)
    if not is_chief(of_model(model)):
        return
    with of_model(model).scope():
        uncompiled = keras.Model(model.input, model.output, name=model.name)
        checkpoints.save_weights(uncompiled, Path(folder) / bundles.WEIGHTS)
    (Path(folder) / bundles.UPDATES).unlink(missing_ok=True)
    bundles.save(replace(bundle, versions=versions()), folder)
    checkpoints.remove(folder)  # of the run that ended with these weights


def _check_described(model: keras.Model, bundle: Bundle) -> None:
    """Raises a ValueError where a folder would lose a part of the model."""
    outputs = set(model.output if isinstance(model.output, dict) else model.output_names)
    lost = [f"the output {name!r}" for name in sorted(outputs - _outputs(bundle))]
    if not (lost or isinstance(model, Model)):  # a network of the user's own, whose outputs happen to have these names
        with no_random_weights():
            described = {layer.name for layer in build(bundle).layers if layer.weights}
        lost = [f"the layer {layer.name!r}" for layer in model.layers if layer.weights and layer.name not in described]
    if lost:
        raise ValueError(
            f"a model folder with the task {bundle.task!r} would lose {', '.join(lost)} of this model; save all of it "
            'as Keras does: model.save("FILE.keras"), which keras.models.load_model reads after `import keras_ctxrep`'
        )


def _outputs(bundle: Bundle) -> set[str]:
    """The names of the outputs that a model with this bundle may have."""
    if bundle.task not in tasks.SERVED:
        return {"forward_logits", "backward_logits", "mlm_logits", "nsp_logits", "logits", "state"}
    task = tasks.get(bundle.task)
    if "vector" in task.model_outputs:
        return {"layers", "sequence", "pooled", "vector", "attention", "mask", "state"}
    return {*task.model_outputs, *task.training_outputs, "tags"}


def versions() -> dict[str, str]:
    """The versions of the packages that a result depends on."""
    return {"keras_ctxrep": __version__, **backend.versions(), "tokenizers": tokenizers.__version__}


def load(folder: str | Path) -> ModelFolder:
    """The model of a folder, with its weights, and its bundle.

    Args:
        folder: a model folder; `zoo.find` gives that of a published name.

    Raises:
        ValueError: the folder is no model folder, or its files do not belong together.
    """
    if not Path(folder).exists():
        raise ValueError(f"{folder}: no such folder; zoo.find({str(folder)!r}) gives that of a published model")
    bundle = bundles.load(folder)
    return ModelFolder(restore(folder, bundle), bundle)


def restore(folder: str | Path, bundle: Bundle, merged: bool = True) -> keras.Model:
    """The model of a folder of which the bundle is read already, with its weights; errors as in `load`.

    Args:
        folder, bundle: of the model.
        merged: of a folder of changes, as in `updates.apply`.
    """
    path = Path(folder) / bundles.WEIGHTS
    if not {bundles.WEIGHTS, bundles.UPDATES} & {*bundle.files}:
        raise ValueError(f"{folder}: no {bundles.WEIGHTS} in it")
    try:
        checks.make(FAMILIES[bundle.family].config, bundle.config, "config")
        if bundle.extra_embeddings:
            checks.make(static.Config, bundle.extra_embeddings, "extra_embeddings")
        with no_random_weights():
            model = build(bundle)
    except (TypeError, ValueError, backend.OUT_OF_MEMORY) as error:
        raise ValueError(f"{path.with_name(bundles.NAME)}: {checks.first_line(error)}") from error
    if bundles.WEIGHTS not in bundle.files:
        path = path.with_name(bundles.UPDATES)
        _over_base(folder, model, bundle, merged)
    else:
        try:
            model.load_weights(path)
        except (ValueError, KeyError, OSError) as error:
            message = f"{path}: not the weights of the model in {bundles.NAME}: {checks.first_line(error)}"
            raise ValueError(message) from error
    artifacts.check_finite(path, ((weight.path, weight.numpy()) for weight in model.weights))
    return model


def _over_base(folder: str | Path, model: keras.Model, bundle: Bundle, merged: bool) -> None:
    """Gives a model the weights of the encoder that its bundle names, with the changes in its folder."""
    base = _base(str(bundle.base.get("name", "")), str(folder))
    if base.bundle.files.get(bundles.WEIGHTS) != bundle.base.get("weights"):
        name, wrote = bundle.base["name"], bundle.versions.get("keras_ctxrep", "")
        raise ValueError(
            f"{folder}: made over another version of {name} than the one that is here; train it again, or save the "
            f"whole model, load(FOLDER).save(OTHER), with the keras_ctxrep that wrote it ({wrote})"
        )
    with checks.errors_of(f"{folder}: not the changes of the model in {bundles.NAME}"):
        updates.apply(model, base.model, updates.read(folder), merged)


def _base(name: str, asked: str) -> ModelFolder:
    """The encoder that a folder of changes names: a published one, never a path, so that it cannot point elsewhere."""
    folder = published(name)
    if folder is None:
        raise ValueError(f"{asked}: it changes {checks.printable(name)}, which is not here: `ctxrep zoo get {name}`")
    return load(folder)


def save_changes(folder: str | Path, model: keras.Model, bundle: Bundle, base: str, rank: int) -> None:
    """Writes a model folder that has what fine-tuning changed, and names the encoder that it needs.

    It is loaded like any other, if the encoder is there, and whole again wherever it is saved, exported or converted.

    Args:
        folder: the model folder; it is made if it is not there.
        model, bundle: fine-tuned, as in `save`.
        base: the name of the published encoder that the model began with.
        rank: of the differences of matrices, see `updates.changes`.

    Raises:
        ValueError: no published encoder of this name is here, or the model is not over it.
    """
    encoder = _base(base, str(folder))
    names = {layer.name for layer in encoder.model.layers if layer.weights}
    over = (encoder.bundle.family, encoder.bundle.vocab) == (bundle.family, bundle.vocab)
    if not over or names.isdisjoint(layer.name for layer in model.layers):
        raise ValueError(f"{base}: the model is not over this encoder: another family or vocabulary")
    Path(folder).mkdir(parents=True, exist_ok=True)
    updates.write(folder, updates.changes(model, encoder.model, rank))
    (Path(folder) / bundles.WEIGHTS).unlink(missing_ok=True)
    of_base = {"name": base, "weights": encoder.bundle.files[bundles.WEIGHTS]}
    bundles.save(replace(bundle, base=of_base, versions=versions()), folder)


def load_encoder(folder: str | Path) -> ModelFolder:
    """The encoder of a model folder of any task, and the bundle with the task "embed"."""
    return load(folder).encoder()


def load_served(folder: str | Path, merged: bool = True) -> ModelFolder:
    """The model of a folder that can be served: a task model or an encoder itself, a pretraining model's encoder.

    Args:
        folder: a model folder.
        merged: as in `restore`.
    """
    bundle = bundles.load(folder)
    return ModelFolder(restore(folder, bundle, merged), bundle).served()


def encoder_bundle(model: keras.Model, bundle: Bundle) -> Bundle:
    """The bundle of a model's encoder alone; without a pooler where the model's head reads none.

    Args:
        model: a task model, a pretraining model or an encoder.
        bundle: of the model.
    """
    family = FAMILIES[bundle.family]
    config = family.encoder_config(model, bundle.config)
    vocab = bundle.vocab if family.reads_vocabulary(config) else ()
    without_pooler = bundle.pooling == "pooler" and not config.get("pooler", True)
    pooling = "mean" if without_pooler else bundle.pooling
    return replace(bundle.of_encoder(), config=config, vocab=vocab, pooling=pooling)
