"""Training with `model.fit`; plain `compile` and `fit` work without this module."""

import gc
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_ctxrep.atomic import lock_folder
from keras_ctxrep.backend import LOST_WORKER, NAME, OF_DATA, TENSORFLOW, undistributed
from keras_ctxrep.layers import CRF, TransformerBlock, VocabularySoftmax
from keras_ctxrep.metrics import Accuracy, Perplexity
from keras_ctxrep.models.model import Model, copy_weights, reset_streams
from keras_ctxrep.optimizers import Adagrad, AdamW, LossScale, OptimizerSpec
from keras_ctxrep.options import Fit, keywords
from keras_ctxrep.training.checkpoints import Checkpoint, Metric
from keras_ctxrep.training.pipeline import Data
from keras_ctxrep.training.progress import EvaluationBar, Progress, tensorboard
from keras_ctxrep.training.strategy import is_chief, mean_over_workers, of_model, several_workers

__all__ = ["Evaluation", "Metric", "OptimizerSpec", "compile", "fit"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How a model is evaluated while it is trained.

    Attributes:
        eval_model: the model to evaluate, with layers of the same names, if not the trained one itself. A biLM with a
            sampled softmax or with streams needs one.
        metric: of the validation, by which the best weights are chosen (default: the loss on a data set, the first
            metric of a function, of which larger is better).
        report: called with each evaluation's metrics.
    """

    eval_model: keras.Model | None = None
    metric: Metric | None = None
    report: Callable[[dict], None] | None = None


def compile(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer | None = None,
    loss: keras.losses.Loss | Callable | Mapping[str, keras.losses.Loss] | None = None,
) -> keras.Model:
    """Compiles and returns a model of this package.

    Without an optimizer and a loss it is compiled for `evaluate` alone, and then with metrics: perplexity for a
    language model, else accuracy. Training has no metrics, since one over a vocabulary costs as much as the loss.

    Args:
        model, optimizer: of this package, and to train with.
        loss: of each of the model's logits, or of an encoder's vector; None: the cross-entropy of the logits' softmax,
            or that of its CRF. A mapping has the loss of each output by name.
    """
    directions = {"forward_logits", "backward_logits"}
    predicts_words = any(isinstance(layer, VocabularySoftmax) for layer in model.layers)
    names = [name for name in model.output if name.endswith("logits")] if not isinstance(loss, Mapping) else [*loss]
    if loss is not None and not names:
        names = ["vector"]
    cross_entropy = keras.losses.SparseCategoricalCrossentropy
    crf = next((layer for layer in model.layers if isinstance(layer, CRF)), None)
    default = crf.loss if crf is not None else cross_entropy(from_logits=True)
    losses = loss if isinstance(loss, Mapping) else dict.fromkeys(names, default if loss is None else loss)
    several = loss is None or isinstance(loss, Mapping)
    classify = {name for name in names if loss is None or (several and isinstance(losses[name], cross_entropy))}
    metrics = {name: [Perplexity() if predicts_words else Accuracy()] for name in classify}
    with of_model(model).scope():
        if isinstance(optimizer, AdamW | Adagrad) and model.dtype_policy.name == "mixed_float16":
            optimizer = LossScale(optimizer)
        model.compile(
            optimizer or "sgd",
            loss=losses,
            loss_weights={name: 0.5 if name in directions else 1.0 for name in names},
            weighted_metrics=metrics if optimizer is None and metrics else None,
            jit_compile=NAME == "jax",  # others compile again for each length, of which JAX is given few
        )
    if several and len(names) > 1 and of_model(model).num_replicas_in_sync == 1:
        # several losses have metrics of their own, made by their first call: in a step, that would be traced twice
        outputs = {name: ops.zeros([size or 1 for size in model.output[name].shape]) for name in names}
        classes = {name: ops.zeros(outputs[name].shape[:-1], "int32") for name in classify}
        model.compute_loss(y=outputs | classes, y_pred=outputs)
        model.reset_metrics()
    return model


@keywords(Fit, evaluation=Evaluation)
def fit(
    model: keras.Model,
    data: Data | Callable[[int], Data],
    validation: Data | Callable[[keras.Model], Mapping[str, float]] | None = None,
    loss: keras.losses.Loss | Callable | Mapping[str, keras.losses.Loss] | None = None,
    optimizer: OptimizerSpec | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    *,
    evaluation: Evaluation,
    options: Fit,
) -> list[dict]:
    """Trains with AdamW or another optimizer, a linear warm-up and a decay, and keeps the weights that validated best.

    It calls `model.fit`: schedule, deadline, validation, checkpoints and progress are callbacks. When interrupted
    (KeyboardInterrupt, or SIGTERM, which ends the process with status 143) it writes a checkpoint into `folder`; the
    same call then resumes, and gives the same weights as an uninterrupted run of the same `steps`.

    Of several workers (`keras_ctxrep.training.strategy`) each calls this with the same arguments; the first one writes,
    into a folder that all can read, and reports. A worker that ends early ends the others: start all of them again.

    Args:
        model: of this package; compiled here.
        data: endless batches, or a function from a number of batches to those after them.
        validation: a data set, one pass of which is an evaluation, or a function from the model to metrics.
        loss: as in `compile`.
        optimizer: the optimizer (default: `OptimizerSpec(AdamW)`).
        callbacks: of one's own, called after those of this function. An epoch is at most 20 steps to them; the logs of
            one at whose end the run was evaluated have `val_loss` or the metrics as `val_NAME`. One that sets
            `model.stop_training` ends the run, with an evaluation if the last step had none. They are not part of a
            checkpoint: of a run that resumes, `on_train_begin` is called again, at times twice. Each of several workers
            calls its own, and all of them must stop at the same step.
        evaluation: the model to evaluate, the metric, and who is told; or its fields one by one, as keywords.
        options: length of the run, learning rate, evaluations and so on; or its fields one by one, as keywords.

    Returns: the evaluations, each {"step", "minutes", "loss", "val_loss", metrics ...}.

    Raises:
        TypeError: no such option, or one of another type.
        ValueError: an option out of range, a checkpoint of another run, another process that trains in the same folder,
            or a loss that became infinite or NaN: a checkpoint that was written before is kept.
        ConnectionError: another worker has ended.
    """
    eval_model, metric = evaluation.eval_model, evaluation.metric
    _check(model, options, validation is not None and eval_model is None)
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            layer.recompute = options.recompute
    if isinstance(model, Model):
        model.microbatches = options.microbatches
        model.counts_tokens = "mask" in model.input
    optimizer = optimizer or OptimizerSpec(AdamW)
    peak = options.learning_rate if optimizer.scheduled else None
    with of_model(model).scope():  # an optimizer belongs to the strategy it was made under
        compile(model, optimizer.make(peak, options.weight_decay, options.clip), loss)
        model.optimizer.build(model.trainable_variables)  # else the first step is traced twice, to make its variables
    evaluate = None if validation is None else _evaluation(model, validation, eval_model, loss)
    if metric is None and validation is not None and not callable(validation):
        metric = Metric("loss", smaller_is_better=True)
    chief = is_chief(of_model(model))
    progress = Progress(model, options, peak, evaluate, metric, evaluation.report if chief else None)
    checkpoint = None
    with ExitStack() as resources:
        if options.folder is not None:
            if chief:
                resources.enter_context(lock_folder(options.folder))
            checkpoint = Checkpoint(progress, options.folder, options.identity, options.checkpoint_minutes)
            checkpoint.restore()
        others = [*(tensorboard(options.tensorboard) if chief else []), *callbacks]
        _run(model, data, progress, checkpoint if chief else None, others)
    gc.collect()  # ends the threads that read endless data; at exit they would wait for the interpreter for ever
    if evaluate is not None:
        progress.state.restore_best(model)
    return list(progress.state.history)


def _check(model: keras.Model, options: Fit, validates_itself: bool) -> None:
    """Raises an error for options that cannot work with this model or strategy."""
    if options.learning_rate is None:
        raise TypeError("learning_rate=None: must be float")
    streams = any(getattr(layer, "streams", None) for layer in model.layers)
    if several_workers(of_model(model)) and options.minutes:
        raise ValueError(f"minutes={options.minutes}: several workers would end at different steps; give steps")
    parts = options.microbatches
    if NAME == "jax" and not isinstance(model, Model):  # in which a callback cannot set the learning rate
        raise ValueError("under JAX build the model as keras_ctxrep.models.model.Model(inputs, outputs)")
    if parts > 1 and not TENSORFLOW:
        raise ValueError(f"microbatches={parts}: of TensorFlow, not of the backend {NAME}; give smaller batches")
    if parts > 1 and not isinstance(model, Model):
        raise ValueError(f"microbatches={parts}: build the model as keras_ctxrep.models.model.Model(inputs, outputs)")
    if parts > 1 and streams:
        raise ValueError(f"microbatches={parts}: a model that carries its state on is trained on whole batches")
    if streams and validates_itself:
        raise ValueError("a language model with streams would lose its state by validating: give an eval_model")


def _evaluation(
    model: keras.Model,
    validation: Data | Callable[[keras.Model], Mapping[str, float]],
    eval_model: keras.Model | None,
    loss: keras.losses.Loss | Callable | Mapping[str, keras.losses.Loss] | None,
) -> Callable[[], dict[str, float]]:
    """A function that evaluates a model while it is trained; its metrics are the means over the workers."""
    # a second model over the same layers is on one device, where any number of examples works
    evaluated = eval_model or keras.Model(model.input, model.output)
    if not callable(validation):
        compile(evaluated, loss=loss)
    bar = EvaluationBar(None if is_chief(of_model(model)) else True)

    def evaluate() -> dict[str, float]:
        if eval_model is not None:
            copy_weights(model, eval_model)
        reset_streams(evaluated)
        with undistributed():
            if not callable(validation):
                metrics: Any = evaluated.evaluate(validation, verbose=0, return_dict=True, callbacks=[bar])
            else:
                metrics = validation(evaluated)
        return mean_over_workers(of_model(model), metrics)

    return evaluate


def _run(model, data, progress: Progress, checkpoint: Checkpoint | None, callbacks: list) -> None:
    """Trains to the end of the run; an interrupt writes a checkpoint, unless there are other workers to agree with."""
    callbacks = [progress, *([checkpoint] if checkpoint else []), *callbacks]
    write = checkpoint.write if checkpoint else lambda: None
    several = several_workers(of_model(model))
    progress.start()
    try:
        with _terminable():
            _train(model, data, progress, callbacks)
            write()
    except (KeyboardInterrupt, SystemExit) as stop:
        if not several:
            progress.interrupted()
            write()
        if isinstance(stop, _Terminated):
            progress.close()
            written = checkpoint is not None and not several
            where = f"step {progress.state.step}" if written else "the last checkpoint, if it had one"
            print(f"terminated; the same command goes on from {where}", file=sys.stderr, flush=True)
        raise
    except (OSError, ValueError, *OF_DATA) as error:
        # a full disk, a loss that is no number, or a file of the data that is gone
        kind, message = _classify_error(error)
        hint = checkpoint.resume_hint if checkpoint else ""
        if kind is None or (isinstance(error, kind) and not hint):
            raise
        raise kind(f"{message}{hint}") from error
    except LOST_WORKER as error:
        if not several:
            raise
        traceback.clear_frames(error.__traceback__)  # a pool of TensorFlow's in them would fail as Python ends
        reason = f"step {progress.state.step}: another worker has ended, or its machine cannot be reached"
        remedy = "start all of them again, and the run goes on from its last checkpoint"
        raise ConnectionError(f"{reason}; {remedy}") from error
    finally:
        progress.close()


def _train(model, data, progress: Progress, callbacks: list) -> None:
    """Calls `model.fit` until the run is done."""
    step = progress.state.step
    if mean_over_workers(of_model(model), {"step": step})["step"] != step:
        raise ValueError(f"this worker read the checkpoint of step {step}, another one another: all need one disk")
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
        if model.stop_training and not progress.done:
            progress.stop()


def _classify_error(error: Exception) -> tuple[type[OSError] | type[ValueError] | None, str]:
    """The kind of an error, of what makes the batches too, and its message; None for one of TensorFlow's own."""
    if not isinstance(error, OF_DATA):
        return OSError if isinstance(error, OSError) else ValueError, str(error)
    found = re.search(r"^(\w+): (.*)\nTraceback", str(error), re.MULTILINE)  # as TensorFlow passes Python's on
    name, message = found.groups() if found else ("", "")
    if name in {kind.__name__ for kind in (OSError, *OSError.__subclasses__())}:
        return OSError, message
    return ValueError if name == "ValueError" else None, message


class _Terminated(SystemExit):
    """SIGTERM."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Within it SIGTERM, by which machines are taken away, raises SystemExit(143), unless it is handled already."""

    def end(number, frame):
        raise _Terminated(128 + number)

    first = threading.current_thread() is threading.main_thread()
    if not first or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
