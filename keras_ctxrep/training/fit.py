"""Training with `model.fit`, and model folders. Plain `compile` and `fit` work without this module.

with train.scope():                       # all GPUs, several machines, or the CPU: see `keras_ctxrep.training.strategy`
    model = elmo.language_model(config, vocabulary_size)
history = train.fit(model, data, validation, steps=10_000, folder="run")
train.save("run", model, bundle)
model, bundle = train.load("run")
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from keras_ctxrep.layers import CRF, TransformerBlock
from keras_ctxrep.metrics import Accuracy, Perplexity
from keras_ctxrep.models.model import Model, copy_weights, reset_streams
from keras_ctxrep.optimizers import Adagrad, AdamW, LossScale
from keras_ctxrep.options import Fit
from keras_ctxrep.training import checkpoints
from keras_ctxrep.training.checkpoints import Checkpoint
from keras_ctxrep.training.progress import Progress, tensorboard
from keras_ctxrep.training.strategy import (
    agreed,
    is_chief,
    several_workers,
)

# ---------------------------------------------------------------------------------------------------- model folders


# ------------------------------------------------------------------------------------------------------- training


def compile(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer | None = None,
    loss: keras.losses.Loss | Callable | None = None,
) -> keras.Model:
    """Compiles a model of this package.

    Without an optimizer and a loss it is compiled for `evaluate` alone, and then with metrics: perplexity for a biLM,
    else accuracy. Training has no metrics, since one over a vocabulary costs as much as the loss.

    Args:
        model: of this package.
        optimizer: to train with.
        loss: of each of the model's logits; None: the cross-entropy of their softmax, or that of the CRF if the model
            has one.

    Returns: the model.
    """
    directions = {"forward_logits", "backward_logits"}
    names = [name for name in model.output if name.endswith("logits")]
    metrics = {name: [Perplexity() if name in directions else Accuracy()] for name in names}
    crf = next((layer for layer in model.layers if isinstance(layer, CRF)), None)
    default = crf.loss if crf is not None else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with model.distribute_strategy.scope():
        if isinstance(optimizer, AdamW | Adagrad) and model.dtype_policy.name == "mixed_float16":
            optimizer = LossScale(optimizer)
        model.compile(
            optimizer or "sgd",
            loss={name: default if loss is None else loss for name in names},
            loss_weights={name: 0.5 if name in directions else 1.0 for name in names},
            weighted_metrics=metrics if optimizer is None and loss is None else None,
            jit_compile=False,  # lengths vary from batch to batch, and XLA compiles again for each
        )
    if loss is None and len(names) > 1 and model.distribute_strategy.num_replicas_in_sync == 1:
        # several losses have metrics of their own, made by their first call: in a step, that would be traced twice
        shapes = {
            name: [1] * (len(model.output[name].shape) - 1) + [model.output[name].shape[-1] or 1] for name in names
        }
        targets = {name: tf.zeros(shape[:-1], "int32") for name, shape in shapes.items()}
        model.compute_loss(y=targets, y_pred={name: tf.zeros(shape) for name, shape in shapes.items()})
        model.reset_metrics()
    return model


def fit(
    model: keras.Model,
    data: tf.data.Dataset | Callable[[int], tf.data.Dataset],
    validation: tf.data.Dataset | Callable[[keras.Model], Any] | None = None,
    eval_model: keras.Model | None = None,
    loss: keras.losses.Loss | Callable | None = None,
    optimizer: Callable[[], keras.optimizers.Optimizer] | None = None,
    report: Callable[[dict], None] | None = None,
    sources: Callable[[int], Sequence[str]] | None = None,
    **options,
) -> list[dict]:
    """Trains with AdamW or another optimizer, a linear warm-up and a decay, and keeps the weights that validated best.

    It calls `model.fit`: schedule, deadline, validation, checkpoints and progress are callbacks. When interrupted
    (KeyboardInterrupt, or SIGTERM, which ends the process with status 143) it writes a checkpoint into `folder`; the
    same call then resumes, and gives the same weights as an uninterrupted run of the same `steps`.

    Args:
        model: of this package; compiled here.
        data: endless batches, or a function from a number of batches to those after them.
        validation: a data set, one pass of which is an evaluation, and the smallest loss is the best; or a function
            from the model to metrics, of which the largest value of the first is the best, or to metrics and a value
            of which the smallest is.
        eval_model: the model to evaluate, if not `model` itself: it gets the weights of the layers with the same
            names. A biLM with a sampled softmax or with streams needs one.
        loss: as of `compile`.
        optimizer: the class to use in place of `optimizers.AdamW`, e.g. `optimizers.LAMB`, or a `functools.partial` of
            one with more arguments; or a function that makes any optimizer, whose learning rate is left as it is.
        report: called with each evaluation's metrics.
        sources: a function from the number of a batch, from 0, to the files and lines of its examples, which the error
            of a loss that is no number names.
        options: fields of `keras_ctxrep.options.Fit`: `steps` or `minutes`, learning_rate, warmup, decay, weight_decay,
            clip, evaluations, patience, folder, identity, checkpoint_minutes, tensorboard, microbatches, recompute. As
            long as no figure of a `validation` function was above 0, as a tagger's F1 at first, evaluations do not
            count for `patience`.

    Of several workers (`keras_ctxrep.training.strategy`) each calls this with the same arguments; the first one writes,
    into a folder that all can read, and reports. A worker that ends early ends the others: start all of them again.

    Returns: the evaluations, each {"step", "minutes", "loss", "val_loss", metrics ...}.

    Raises:
        TypeError: no such option, or one of another type.
        ValueError: an option out of range, a checkpoint of another run, another process that trains in the same folder,
            or a loss that became infinite or NaN: a checkpoint that was written before is kept.
        ConnectionError: another worker has ended.
    """
    settings = Fit.of(options, "fit")
    _check(model, settings)
    if validation is not None and eval_model is None and any(getattr(layer, "streams", None) for layer in model.layers):
        raise ValueError("a biLM with streams would lose its state by validating: give an eval_model")
    make = optimizer or AdamW
    kind = make.func if isinstance(make, partial) else make
    scheduled = isinstance(kind, type) and issubclass(kind, AdamW)
    if scheduled:
        make = partial(make, settings.learning_rate, settings.weight_decay, settings.clip)
    with model.distribute_strategy.scope():  # an optimizer belongs to the strategy it was made under
        compile(model, make(), loss)
        model.optimizer.build(model.trainable_variables)  # else the first step is traced twice, to make its variables
    chief = is_chief(model.distribute_strategy)
    progress = Progress(model, settings, settings.learning_rate if scheduled else None, report if chief else None)
    progress.sources = sources
    if validation is not None:
        progress.validation = _Validation(model, validation, eval_model, loss)
    checkpoint = None
    with ExitStack() as stack:
        if settings.folder is not None:
            if chief:
                stack.enter_context(checkpoints.held(settings.folder))
            checkpoint = Checkpoint(progress, settings.folder, settings.identity, settings.checkpoint_minutes)
            checkpoint.restore()
        _run(model, data, progress, checkpoint if chief else None, tensorboard(settings.tensorboard) if chief else [])
    progress.keep_best()
    return list(progress.state.history)


def _check(model: keras.Model, settings: Fit) -> None:
    """Raises a ValueError for what cannot work with this model or strategy."""
    if several_workers(model.distribute_strategy) and settings.minutes:
        raise ValueError(f"minutes={settings.minutes}: several workers would end at different steps; give steps")
    parts = settings.microbatches
    if parts > 1 and not isinstance(model, Model):
        raise ValueError(f"microbatches={parts}: build the model as keras_ctxrep.models.model.Model(inputs, outputs)")
    if parts > 1 and any(getattr(layer, "streams", None) for layer in model.layers):
        raise ValueError(f"microbatches={parts}: a biLM that carries its state on is trained on whole batches")
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            layer.recompute = settings.recompute
    if isinstance(model, Model):
        model.microbatches = parts
        model.counts_tokens = "mask" in model.input


def _run(model, data, progress: Progress, checkpoint: Checkpoint | None, callbacks: list) -> None:
    """Trains to the end of the run; an interrupt writes a checkpoint, unless there are other workers to agree with."""
    callbacks = [progress, *([checkpoint] if checkpoint else []), *callbacks]
    write = checkpoint.write if checkpoint else lambda: None
    several = several_workers(model.distribute_strategy)
    progress.start()
    try:
        with _terminable():
            _train(model, data, progress, callbacks)
            write()
    except (KeyboardInterrupt, SystemExit):
        if not several:
            progress.interrupted()
            write()
        raise
    except (OSError, ValueError) as error:  # a full disk, or a loss that is no number
        if checkpoint is None or not checkpoint.kept:
            raise
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"{error}{checkpoint.kept}") from error
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError) as error:
        if not several:
            raise
        raise ConnectionError(
            f"step {progress.state.step}: another worker has ended, or its machine cannot be reached; start all of "
            "them again, and the run goes on from its last checkpoint"
        ) from error
    finally:
        progress.close()


def _train(model, data, progress: Progress, callbacks: list) -> None:
    """Calls `model.fit` until the run is done."""
    step = progress.state.step
    if agreed(model.distribute_strategy, {"step": step})["step"] != step:
        raise ValueError(
            f"this worker found the checkpoint of step {step}, another worker another one: all need one disk"
        )
    if progress.evaluation_missing:
        progress.end_epoch(dict(progress.logs))
    while not progress.done:
        epoch, begun = divmod(progress.state.step, progress.steps_per_epoch)
        model.fit(
            data(progress.state.step) if callable(data) else data.skip(progress.state.step),
            initial_epoch=epoch,
            epochs=epoch + 1 if begun else 1_000_000_000,  # ended by Progress
            steps_per_epoch=progress.steps_per_epoch - begun,
            callbacks=callbacks,
            shuffle=False,
            verbose=0,
        )


@contextmanager
def _terminable() -> Iterator[None]:
    """Within it SIGTERM, by which machines are taken away, raises SystemExit(143), unless it is handled already."""

    def end(number, frame):
        raise SystemExit(128 + number)

    first = threading.current_thread() is threading.main_thread()
    if not first or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Validation:
    """Metrics of a model on a data set, or by a function from a model to them."""

    def __init__(self, model, data, eval_model, loss):
        self.model, self.data = model, data
        # on one device, where any number of examples works
        self.eval_model = eval_model or keras.Model(model.input, model.output)
        self.by_loss = isinstance(data, tf.data.Dataset)
        self.minimised = self.by_loss  # else the first figure is to be as large as possible
        if self.by_loss:
            compile(self.eval_model, loss=loss)

    def __call__(self) -> tuple[dict[str, float], float]:
        """The metrics, and the value to minimise."""
        if self.eval_model.layers[0] is not self.model.layers[0]:
            copy_weights(self.model, self.eval_model)
        reset_streams(self.eval_model)
        if self.by_loss:
            figures = self.eval_model.evaluate(self.data, verbose=0, return_dict=True)
        else:
            figures = self.data(self.eval_model)
        strategy = self.model.distribute_strategy
        if isinstance(figures, tuple):
            figures, value = figures
            self.minimised = True
            return agreed(strategy, figures), agreed(strategy, {"value": value})["value"]
        figures = agreed(strategy, figures)
        return figures, figures["loss"] if self.by_loss else -next(iter(figures.values()))
