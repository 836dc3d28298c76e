"""Training: what `model.fit` needs around it, and model folders. Plain `compile` and `fit` do as well without it.

with train.scope():                       # all GPUs, or what there is
    model = elmo.language_model(config, vocabulary_size)
history = train.fit(model, data, validation, steps=10_000, folder="run")
train.save("run", model, bundle)
model, bundle = train.load("run")
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tokenizers
from tqdm import tqdm

from keras_ctxrep import __version__, fields, tasks
from keras_ctxrep.layers import CRF
from keras_ctxrep.layers.transformer import on_this_machine
from keras_ctxrep.metrics import Accuracy, Perplexity
from keras_ctxrep.models import heads, stack, static
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.optimizers import AdamW
from keras_ctxrep.predict import Predictor, Run
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle, written_whole
from keras_ctxrep.text.features import Reads

# ---------------------------------------------------------------------------------------------------- model folders


def build(bundle: Bundle) -> keras.Model:
    """The model a bundle describes, with fresh weights."""
    family = FAMILIES[bundle.family]
    config = family.config(**bundle.config)
    if bundle.task in family.pretraining:
        return family.pretraining[bundle.task](config, len(bundle.vocab))
    return finish(family.encoder(config), bundle)


def finish(encoder: keras.Model, bundle: Bundle) -> keras.Model:
    """The task network and the head that a bundle describes, with fresh weights, over an encoder."""
    if bundle.stack:
        beside = {"beside": static.encoder(static.Config(**bundle.beside))} if bundle.beside else {}
        marks = bundle.reads.marks if bundle.reads.indicate and not bundle.features.indicate else 0
        encoder = stack.by_name(encoder, **bundle.stack, **beside, marks=marks)
    return tasks.get(bundle.task).head(encoder, bundle)


def save(folder: str | Path, model: keras.Model, bundle: Bundle) -> None:
    """Writes a model folder: model.weights.h5 (without the optimizer's state), vocab.txt and bundle.json.

    Raises:
        ValueError: a biLM with `streams`, which a folder does not describe.
    """
    if any(getattr(layer, "streams", None) for layer in model.layers):
        raise ValueError("a biLM with streams: copy_weights(model, build(bundle)), and save that one")
    with written_whole(Path(folder) / bundles.WEIGHTS) as path, model.distribute_strategy.scope():
        keras.Model(model.input, model.output, name=model.name).save_weights(path)  # without the optimizer
    bundles.save(replace(bundle, versions=versions()), folder)
    shutil.rmtree(Path(folder) / "checkpoint", ignore_errors=True)  # of the run that ends here


def versions() -> dict[str, str]:
    """Of the packages that a model was made with."""
    return {"keras_ctxrep": __version__} | {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "tokenizers": tokenizers.__version__,
    }


def load(folder: str | Path) -> tuple[keras.Model, Bundle]:
    """The model of a folder, with its weights, and its bundle.

    Raises:
        ValueError: the folder is no model folder, or its files do not belong together.
    """
    bundle = bundles.load(folder)
    path = Path(folder) / bundles.WEIGHTS
    if bundles.WEIGHTS not in bundle.files:
        raise ValueError(f"{folder}: no {bundles.WEIGHTS} in it")
    try:
        fields.make(FAMILIES[bundle.family].config, bundle.config, "config")
        if bundle.beside:
            fields.make(static.Config, bundle.beside, "beside")
        model = build(bundle)
    except (TypeError, ValueError, tf.errors.ResourceExhaustedError) as error:
        raise ValueError(f"{path.with_name(bundles.NAME)}: {_first_line(error)}") from error
    try:
        model.load_weights(path)
    except (ValueError, KeyError, OSError) as error:
        message = f"{path}: not the weights of the model in {bundles.NAME}: {_first_line(error)}"
        raise ValueError(message) from error
    return model, bundle


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def load_encoder(folder: str | Path) -> tuple[keras.Model, Bundle]:
    """The encoder of any model folder, whatever its task, and the bundle with the task "embed"."""
    return _encoder_of(*load(folder))


def _encoder_of(model: keras.Model, bundle: Bundle) -> tuple[keras.Model, Bundle]:
    embed = encoder_bundle(model, bundle)
    encoder = build(embed)
    copy_weights(model, encoder)
    return encoder, embed


def encoder_bundle(model: keras.Model, bundle: Bundle) -> Bundle:
    """The bundle of a model's encoder alone; without a pooler where the model's head reads none."""
    family = FAMILIES[bundle.family]
    config = family.encoder_config(model, bundle.config)
    vocab = bundle.vocab if family.reads_vocabulary(config) else ()
    bare = {"labels": (), "head": {}, "stack": {}, "beside": {}, "reads": Reads(), "settings": {}, "vocab": vocab}
    return replace(bundle, task="embed", config=config, **bare)


def load_served(folder: str | Path) -> tuple[keras.Model, Bundle]:
    """What of a model folder answers: a task model or an encoder as it is, of a pretraining model its encoder."""
    model, bundle = load(folder)
    return (model, bundle) if bundle.task in tasks.SERVED else _encoder_of(model, bundle)


def copy_weights(source: keras.Model, target: keras.Model, skip: Sequence[str] = ()) -> None:
    """Copies the weights of every layer of `target` from the layer of `source` that has its name.

    The state that a layer keeps of its streams is not copied.

    Args:
        source, target: models of the same sizes.
        skip: names of layers that are left as they are.

    Raises:
        ValueError: `source` lacks a layer.
    """
    for layer in target.layers:
        weights = _without_state(layer)
        if weights and layer.name not in skip:
            for weight, value in zip(weights, _without_state(source.get_layer(layer.name)), strict=True):
                weight.assign(value)


def reset_streams(model: keras.Model) -> None:
    """Sets the state that a biLM keeps of its streams to zero, as at the beginning of a text.

    Not only `fit` carries it on, `predict` and `evaluate` do as well.
    """
    for layer in model.layers:
        if getattr(layer, "streams", None):
            layer.state.assign(np.zeros(layer.state.shape))


def _without_state(layer: keras.layers.Layer) -> list:
    return [weight for weight in layer.weights if weight is not getattr(layer, "state", None)]


def predictor(folder: str | Path, batch_size: int = 32) -> Predictor:
    """The answers of a model folder, by Keras.

    Raises:
        ValueError: no model folder, or a pretraining model, which has no answers.
    """
    model, bundle = load(folder)
    return Predictor(bundle, runner(model), batch_size)


def runner(model: keras.Model) -> Run:
    """The model as a function from a dict of arrays to a dict of arrays, traced once for all sizes."""
    signature = {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in model.input.items()}

    @tf.function(input_signature=[signature])
    def traced(inputs):
        with on_this_machine():
            return heads.flat(model(inputs, training=False))

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), traced({name: batch[name] for name in signature}))

    return run


def scorer(model: keras.Model) -> Callable[[dict, dict, dict], dict[str, np.ndarray]]:
    """A function from inputs, targets and masks to the sum of cross-entropies of each row, float32 (B,), per output."""

    @tf.function(reduce_retracing=True)
    def run(inputs, targets, masks):
        logits = model(inputs, training=False)
        return {
            name: tf.reduce_sum(
                keras.losses.sparse_categorical_crossentropy(target, logits[name], from_logits=True)
                * tf.cast(masks[name], logits[name].dtype),
                axis=1,
            )
            for name, target in targets.items()
        }

    return lambda *batch: tf.nest.map_structure(lambda tensor: tensor.numpy(), run(*batch))


# ------------------------------------------------------------------------------------------------------- training


@contextmanager
def scope(precision: str = "float32", devices: Sequence[str] | None = None) -> Iterator[tf.distribute.Strategy]:
    """Where models are built: a distribution strategy and a precision.

    Args:
        precision: a Keras dtype policy, e.g. "mixed_bfloat16".
        devices: names like "GPU:0"; None: all GPUs, or the CPU. More than one gives a `tf.distribute.MirroredStrategy`.
    """
    if devices is None:
        devices = [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices("GPU")]
    strategy = _mirrored(tuple(devices)) if len(devices) > 1 else tf.distribute.get_strategy()
    before = keras.mixed_precision.dtype_policy()
    with ExitStack() as stack:
        stack.callback(keras.mixed_precision.set_dtype_policy, before)
        keras.mixed_precision.set_dtype_policy(precision)
        stack.enter_context(strategy.scope())
        yield strategy


@cache
def _mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """One strategy per process and set of devices: the collectives of two would get into each other's way."""
    return tf.distribute.MirroredStrategy(devices)


def compile(model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None, loss=None) -> keras.Model:
    """Compiles a model of this package: cross-entropy for each of its logits, or what its task is trained with.

    Without an optimizer it is compiled for `evaluate` alone, and then with metrics: perplexity for a biLM, else
    accuracy. Training goes without, since a metric over a vocabulary costs as much as the loss.

    Args:
        model: of this package.
        optimizer: to train with.
        task: "multilabel" is trained with a sigmoid cross-entropy of each class and "regress" with the squared error;
            every other one, and None, with the cross-entropy of the softmax, or by a CRF if there is one.

    Returns: the model.
    """
    directions = {"forward_logits", "backward_logits"}
    names = [name for name in model.output if name.endswith("logits")]
    metrics = {name: [Perplexity() if name in directions else Accuracy()] for name in names}
    crf = next((layer for layer in model.layers if isinstance(layer, CRF)), None)
    given = loss

    def loss_of():
        if crf is not None:
            return crf.loss
        return given or keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    with model.distribute_strategy.scope():
        model.compile(
            optimizer or "sgd",
            loss={name: loss_of() for name in names},
            loss_weights={name: 0.5 if name in directions else 1.0 for name in names},
            weighted_metrics=metrics if optimizer is None and loss is None else None,
            jit_compile=False,  # lengths vary from batch to batch, and XLA compiles anew for each
        )
    return model


def fit(
    model: keras.Model,
    data: tf.data.Dataset | Callable[[int], tf.data.Dataset],
    validation: tf.data.Dataset | Callable[[keras.Model], dict[str, float]] | None = None,
    judge: keras.Model | None = None,
    loss=None,
    steps: int | None = None,
    minutes: float | None = None,
    learning_rate: float = 1e-3,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    clip: float = 1.0,
    optimizer: Callable[[], keras.optimizers.Optimizer] | None = None,
    evaluations: int = 10,
    patience: int | None = None,
    folder: str | Path | None = None,
    identity: str = "",
    checkpoint_minutes: float = 5.0,
    tensorboard: str | Path | None = None,
    report: Callable[[dict], None] | None = None,
) -> list[dict]:
    """Trains with AdamW, a linear warm-up and a linear decay to zero, and keeps the weights that validated best.

    It only arranges `model.fit`: schedule, deadline, validation, checkpoints and progress are callbacks.

    Args:
        model: of this package; compiled here.
        data: endless batches, or a function from a number of batches to those after them.
        validation: one pass of it is an evaluation, and the smallest loss the best; or a function from the model to
            figures, of which the first one is the larger the better.
        judge: the model that is evaluated, if it is another one than `model`: it is given the weights of the layers
            that have its layers' names. A biLM with a sampled softmax or with streams needs one.
        task: as of `compile`.
        steps: length of the run in batches.
        minutes: length of the run in time, validation included; give this or `steps`.
        learning_rate: its peak.
        warmup: share of the run until the peak.
        weight_decay: of AdamW.
        clip: largest global norm of the gradient.
        optimizer: makes another one than that AdamW, which keeps its own learning rate all the way.
        evaluations: how often to validate, evenly over the run.
        patience: ends the run early after so many evaluations without a better one; as long as no figure of a function
            was above 0, as a tagger's F1 at first, they do not count.
        folder: keeps a checkpoint here; the same call after an interruption goes on from it, until `save` ends the run.
        identity: of the run; a checkpoint of another one is refused.
        checkpoint_minutes: time between two checkpoints.
        tensorboard: writes TensorBoard logs here (needs the package `tensorboard`).
        report: called with each evaluation's metrics, as they come.

    Returns: the evaluations, each {"step", "minutes", "loss", "val_loss", metrics ...}.

    Raises:
        ValueError: neither or both of `steps` and `minutes`, a value out of range, a checkpoint of another run, or
            a loss that became infinite.
    """
    if (steps is None) == (minutes is None):
        raise ValueError(f"steps={steps}, minutes={minutes}: give one of the two")
    for name, value in {"steps": steps, "minutes": minutes, "learning_rate": learning_rate, "clip": clip}.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value}: must be above 0")
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup={warmup}: a share of the run, 0 <= warmup < 1")

    if validation is not None and judge is None and any(getattr(layer, "streams", None) for layer in model.layers):
        raise ValueError("a biLM with streams would lose its place in them by validating: give a judge of its own")
    strategy = model.distribute_strategy
    with strategy.scope():  # an optimizer belongs to the strategy it was made under
        compile(model, AdamW(learning_rate, weight_decay, clip) if optimizer is None else optimizer(), loss)
        model.optimizer.build(model.trainable_variables)  # the first step would be traced twice, to make them
    peak = None if optimizer else learning_rate
    judge = judge or keras.Model(model.input, model.output)  # on one device: any number of examples will do
    if isinstance(validation, tf.data.Dataset):
        compile(judge)
    course = _Course(steps, minutes, peak, warmup, judge, validation, evaluations, patience, report)
    callbacks: list[keras.callbacks.Callback] = [course]
    if folder is not None:
        checkpoint = _Checkpoint(Path(folder) / "checkpoint", course, checkpoint_minutes, identity)
        callbacks.append(checkpoint)
        with strategy.scope():
            checkpoint.restore(model)
    if tensorboard is not None:
        try:
            import tensorboard as _  # noqa: F401
        except ImportError:
            raise ValueError("TensorBoard logs need its package: pip install tensorboard") from None
        callbacks.append(keras.callbacks.TensorBoard(str(tensorboard)))
    if not course.done:
        if callable(data):
            data = data(course.step)
        elif course.step:
            data = data.skip(course.step)
        try:
            model.fit(
                data,
                epochs=1_000_000,  # the course ends it
                steps_per_epoch=course.steps_per_epoch,
                callbacks=callbacks,
                shuffle=False,
                verbose=0,
            )
        except KeyboardInterrupt:
            course.on_train_end()
            course.step = int(model.optimizer.iterations.numpy())  # the step that was interrupted may have been taken
            if folder is not None and not course.done:
                checkpoint.write(model)
            raise
    course.finish(model)
    return course.history


class _Course(keras.callbacks.Callback):
    """Where the run is: sets the learning rate, ends it, validates, keeps the best weights, shows progress."""

    def __init__(self, steps, minutes, peak, warmup, judge, validation, evaluations, patience, report):
        super().__init__()
        self.steps, self.minutes, self.peak, self.warmup = steps, minutes, peak, warmup
        self.judge, self.validation, self.evaluations, self.report = judge, validation, evaluations, report
        self.patience, self.stale = patience, 0  # evaluations since the best one
        self.step, self.seconds, self.history = 0, 0.0, []
        self.best, self.best_loss = None, np.inf
        self.first_rate = 0.0
        self._bar: Any = None
        self.steps_per_epoch = 20 if steps is None else max(1, min(20, steps // evaluations))

    @property
    def progress(self) -> float:
        """Share of the run that is over."""
        return self.step / self.steps if self.steps else self.seconds / (60 * self.minutes)

    @property
    def done(self) -> bool:
        return self.progress >= 1 or (self.patience is not None and self.stale >= self.patience)

    def rate(self) -> float:
        """The learning rate now: linear warm-up, linear decay."""
        progress = max(self.progress, 1e-3)
        share = progress / self.warmup if progress < self.warmup else (1 - progress) / (1 - self.warmup)
        return self.peak * max(share, 1e-3)

    def on_train_begin(self, logs=None):
        self.first_rate = float(self.model.optimizer.learning_rate.numpy())
        self._since = time.monotonic() - self.seconds
        unit = {"total": self.steps, "initial": self.step, "unit": " steps"}
        if self.minutes:
            unit = {
                "total": round(60 * self.minutes),
                "bar_format": "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} s{postfix}",
            }
        self._bar = tqdm(desc="training", file=sys.stderr, leave=False, disable=None, mininterval=0.5, **unit)

    def on_train_batch_begin(self, batch, logs=None):
        if self.peak is not None:
            self.model.optimizer.learning_rate = self.rate()

    def on_train_batch_end(self, batch, logs):
        self.step += 1
        self.seconds = time.monotonic() - self._since
        self._bar.n = self.step if self.steps else min(self.seconds, 60 * self.minutes)
        if not self._bar.disable:
            self._bar.set_postfix(loss=f"{logs['loss']:.3f}", refresh=False)
            self._bar.update(0)
        if self.done:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs):
        due = len(self.history) + 1 <= self.progress * self.evaluations
        if self.validation is not None and (due or self.done):
            if self.judge.layers[0] is not self.model.layers[0]:
                copy_weights(self.model, self.judge)
            reset_streams(self.judge)
            if isinstance(self.validation, tf.data.Dataset):
                found = self.judge.evaluate(self.validation, verbose=0, return_dict=True)
                loss = found["loss"]
            else:
                found = self.validation(self.judge)
                loss = -next(iter(found.values())) if np.isfinite(logs["loss"]) else np.inf
            logs.update({f"val_{name}": value for name, value in found.items()})  # TensorBoard reads them too
            unlearned = not isinstance(self.validation, tf.data.Dataset) and min(loss, self.best_loss) >= 0
            self.stale += not unlearned
            if loss < self.best_loss:
                self.best, self.best_loss, self.stale = self.model.get_weights(), loss, 0
            if self.done:
                self.model.stop_training = True
        self.seconds = time.monotonic() - self._since
        if due or self.done:
            entry = {"step": self.step, "minutes": self.seconds / 60} | {name: float(x) for name, x in logs.items()}
            self.history.append(entry)
            if self.report is not None:
                self._bar.clear()
                self.report(entry)

    def on_train_end(self, logs=None):
        if self._bar is not None:
            self._bar.close()

    def finish(self, model: keras.Model) -> None:
        if self.best is not None:
            model.set_weights(self.best)
        elif self.validation is not None:
            raise ValueError(f"the loss became infinite; try a learning rate below {self.peak or self.first_rate:.3g}")


class _Checkpoint(keras.callbacks.Callback):
    """Writes weights, optimizer, random states and the course's place now and then, the state file last."""

    def __init__(self, folder: Path, course: _Course, minutes: float, identity: str):
        super().__init__()
        self.identity = identity
        self.folder, self.course, self.seconds = folder, course, 60 * minutes
        self._last = time.monotonic()

    def restore(self, model: keras.Model) -> None:
        state_file = self.folder / "state.json"
        if not state_file.exists():
            return
        state = json.loads(state_file.read_text())
        if state["shapes"] != _shapes(model):
            raise ValueError(f"{self.folder} holds a checkpoint of another model: remove it, or choose another folder")
        if state["identity"] != self.identity:
            raise ValueError(f"{self.folder} holds a checkpoint of a run with other text or settings: remove it")
        model.load_weights(self.folder / state["weights"])
        with np.load(self.folder / state["random"]) as arrays:
            for index, generator in enumerate(_random_states(model)):
                generator.assign(arrays[f"arr_{index}"])
        course = self.course
        course.step, course.seconds, course.history = state["step"], state["seconds"], state["history"]
        course.stale = state["stale"]
        if state["best"] is not None:
            with np.load(self.folder / state["best"]) as arrays:
                course.best = [arrays[f"arr_{index}"] for index in range(len(arrays.files))]
            course.best_loss = state["best_loss"]

    def on_epoch_end(self, epoch, logs=None):  # after the course, so that evaluations stay where they were due
        if time.monotonic() - self._last > self.seconds:
            self.write(self.model)

    def on_train_end(self, logs=None):
        self.write(self.model)

    def write(self, model: keras.Model) -> None:
        course = self.course
        names = {"weights": f"step-{course.step}.weights.h5", "random": f"random-{course.step}.npz", "best": None}
        with written_whole(self.folder / names["weights"]) as path:
            model.save_weights(path)
        with written_whole(self.folder / names["random"]) as path:
            np.savez(path, *(np.asarray(generator) for generator in _random_states(model)))
        if course.best is not None:
            names["best"] = f"best-{course.step}.npz"
            with written_whole(self.folder / names["best"]) as path:
                np.savez(path, *course.best)
        state = names | {
            "step": course.step,
            "seconds": course.seconds,
            "history": course.history,
            "stale": course.stale,
            "best_loss": float(course.best_loss) if course.best is not None else None,
            "shapes": _shapes(model),
            "identity": self.identity,
        }
        with written_whole(self.folder / "state.json") as path:
            path.write_text(json.dumps(state))
        for old in self.folder.iterdir():
            if old.name not in ("state.json", *names.values()):
                shutil.rmtree(old) if old.is_dir() else old.unlink()  # a folder: of a write that was killed
        self._last = time.monotonic()


def _random_states(model: keras.Model) -> list:
    """What dropout and the sampled softmax draw from; Keras does not count it among the weights."""
    weights = {id(weight) for weight in model.weights}
    return [v for v in model.variables if id(v) not in weights and v.path.endswith("seed_generator_state")]


def _shapes(model: keras.Model) -> list:
    return [[weight.path, list(weight.shape)] for weight in model.trainable_variables]
