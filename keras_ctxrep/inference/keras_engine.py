"""A Keras model as an engine: the function that a `Predictor` runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_ctxrep import backend, tasks
from keras_ctxrep.inference.filling import Filler
from keras_ctxrep.inference.generator import Generator
from keras_ctxrep.inference.predictor import Engine, Predictor, Run, Runner
from keras_ctxrep.layers.cpu import on_this_machine
from keras_ctxrep.models import elmo, heads
from keras_ctxrep.models.families import encoder_of
from keras_ctxrep.saving import ModelFolder, encoder_bundle, finish, load
from keras_ctxrep.text.bundle import Bundle

__all__ = ["KerasEngine", "answering", "filler", "generator", "predictor", "predictor_of", "runner", "scorer"]

CHEAP = 1 << 17  # multiplications a token below which a step costs more to start than to compute
TOKENS = 4096  # of a batch of such a model


@dataclass(frozen=True, eq=False)
class KerasEngine(Engine):
    """A Keras model as an engine, which always answers with its present weights.

    Args:
        model, bundle: of any task.
        path: the model folder that it was loaded from.
    """

    model: keras.Model
    bundle: Bundle
    path: Path | None = None
    name: str = "Keras"

    @cached_property
    def answer(self) -> Predictor:
        return predictor_of(self.model, self.bundle)

    @cached_property
    def encode(self) -> Predictor:
        return self.encoder.answer

    @cached_property
    def generate(self) -> Generator:
        return generator(self.model, self.bundle)

    @cached_property
    def fill(self) -> Filler:
        return filler(self.model, self.bundle)

    @property
    def keras(self) -> "KerasEngine":
        return self

    @property
    def width(self) -> int:
        return self.encoder.model.output["vector"].shape[-1]

    @cached_property
    def encoder(self) -> "KerasEngine":
        """The encoder alone, over the model's own layers."""
        bundle = encoder_bundle(self.model, self.bundle)
        return KerasEngine(finish(encoder_of(self.model, self.bundle.family, self.bundle.config), bundle), bundle)

    @cached_property
    def run(self) -> Run:
        """The model with all its outputs."""
        return runner(self.model)


def predictor(folder: str | Path, batch_size: int = 32) -> Predictor:
    """A `Predictor` that runs a model folder with Keras.

    Raises:
        ValueError: no model folder, or a pretraining model, which has no answers.
    """
    return predictor_of(*load(folder), batch_size)


def predictor_of(model: keras.Model, bundle: Bundle, batch_size: int = 32) -> Predictor:
    """A `Predictor` that runs a model, of whose outputs it computes those that the task's answers are made of.

    Of a model that computes little, a table of static vectors say, more than `batch_size` short inputs are run at once.

    Raises:
        ValueError: a pretraining model, which has no answers.
    """
    model, bundle = ModelFolder(model, bundle).answering()
    run = answering(model, bundle) if bundle.task in tasks.SERVED else runner(model)
    return Predictor(bundle, Runner(run, TOKENS if _multiplications(model) < CHEAP else 0), batch_size)


def answering(model: keras.Model, bundle: Bundle) -> Run:
    """What a `Predictor` runs of a task's model."""
    task = tasks.get(bundle.task)
    read = {"ids": (*task.model_outputs, "tags")}  # of other parts all outputs
    parts = {
        name: runner(part, [output for output in read.get(name, ()) if output in part.output])
        for name, part in task.parts(model).items()
    }
    return task.run(bundle, parts)


def _multiplications(model: keras.Model) -> int:
    """About how often a model multiplies for each token: the size of its weights but for tables of vectors."""
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.Embedding)]
    return sum(int(np.prod(weight.shape)) for layer in layers for weight in layer.weights)


def runner(model: keras.Model, outputs: Sequence[str] = (), frozen: bool = False) -> Run:
    """The model as a function from a dict of arrays to a dict of arrays.

    Args:
        model: with a dict of outputs.
        outputs: names of those that are computed; none: all.
        frozen: its weights are not trained while it is used.
    """

    def compute(inputs):
        with on_this_machine():
            results = model(inputs, training=False)
            return heads.flat({name: results[name] for name in outputs or results})

    return backend.compiled(compute, model, model.input, frozen)


def filler(model: keras.Model, bundle: Bundle) -> Filler:
    """A `Filler` that runs a masked language model with Keras.

    Raises:
        ValueError: another model.
    """
    if "mlm_logits" not in (model.output if isinstance(model.output, dict) else {}):
        raise ValueError(
            f"a {bundle.family} for the task {bundle.task!r} has no masked language model; name a BERT that was "
            "pretrained (`ctxrep pretrain bert`), or converted from a checkpoint that has one"
        )
    return Filler(bundle, runner(model, ["mlm_logits"]))


def generator(model: keras.Model, bundle: Bundle) -> Generator:
    """A `Generator` that runs a language model in one direction with Keras, or the forward half of a biLM.

    Raises:
        ValueError: another model.
    """
    words = len(bundle.tokens.vocab)  # an error of another model
    if not bundle.generates:  # a biLM, of which the forward half generates
        model = elmo.forward_language_model(elmo.Config(**bundle.config), words, model)
    return Generator(bundle, runner(model), model.input["state"].shape[-1])


def scorer(model: keras.Model) -> Callable[[dict, dict, dict], dict[str, np.ndarray]]:
    """A function from inputs, targets and masks to the sum of cross-entropies of each row, float32 (B,), per output."""

    def compute(inputs, targets, masks):
        logits = model(inputs, training=False)
        return {
            name: ops.sum(
                keras.losses.sparse_categorical_crossentropy(target, logits[name], from_logits=True)
                * ops.cast(masks[name], logits[name].dtype),
                axis=1,
            )
            for name, target in targets.items()
        }

    return backend.compiled(compute, model)
