"""A run as Keras callbacks: learning rate, steps, evaluations, progress bar, TensorBoard."""

import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from keras_ctxrep import backend
from keras_ctxrep.backend import NAME, TENSORFLOW, tf
from keras_ctxrep.layers import ScalarMix
from keras_ctxrep.options import Fit
from keras_ctxrep.training import history, schedule
from keras_ctxrep.training.checkpoints import Metric, State
from keras_ctxrep.training.strategy import is_chief, of_model

__all__ = ["Progress", "tensorboard"]

HALF_MINUTE, QUICK = 30.0, 2.0
MEASURED = 3  # steps after which the time left is told, of batches of sizes that were met before
DRAWN_EVERY = 10.0  # seconds at least between two pictures of the evaluations: each costs some tenths of a second


def evaluation_bar(unit: str, total: int | None = None, hidden: bool | None = None) -> tqdm:
    """A progress bar of an evaluation that takes longer than `QUICK`, on a terminal alone."""
    shown: dict[str, Any] = {"file": sys.stderr, "leave": False, "disable": hidden, "delay": QUICK}
    return tqdm(desc="evaluating", unit=f" {unit}", total=total, **shown)


class EvaluationBar(keras.callbacks.Callback):
    """Shows the progress of `model.evaluate`; the number of batches is known from the evaluation before.

    Args:
        hidden: whether to show nothing; None: where standard error is no terminal.
    """

    async_safe = True  # else Keras waits for the metrics of each batch

    def __init__(self, hidden: bool | None = None):
        super().__init__()
        self.hidden, self.batches = hidden, None

    def on_test_begin(self, logs: dict | None = None):
        self.bar = evaluation_bar("batches", self.batches, self.hidden)
        self._count = 0

    def on_test_batch_end(self, batch: int, logs: dict | None = None):
        self._count += 1
        self.bar.update()

    def on_test_end(self, logs: dict | None = None):
        self.bar.close()
        self.batches = self._count


class Progress(keras.callbacks.Callback):
    """Sets the learning rate, counts the steps, ends the run, validates, and shows a progress bar.

    Epochs begin at the multiples of `steps_per_epoch`, whether the run was interrupted or not.

    Args:
        model: the model that is trained.
        options: of the run.
        peak: of the learning rate, which follows `keras_ctxrep.training.schedule`; None: it is left as it is.
        evaluate: a function without arguments to metrics; None: no validation.
        metric: the one of these by which the best weights are chosen; None: the first, of which larger is better.
        report: as in `fit`.
    """

    def __init__(
        self,
        model: keras.Model,
        options: Fit,
        peak: float | None,
        evaluate: Callable[[], Mapping[str, float]] | None = None,
        metric: Metric | None = None,
        report: Callable[[dict], None] | None = None,
    ):
        super().__init__()
        self.trained, self.options, self.peak = model, options, peak
        self.evaluate, self.metric, self.report = evaluate, metric, report
        self.state = State()
        self.logs: dict = {}  # means over the epoch so far
        self.metrics: list = []  # the state of these means, of an epoch that was interrupted
        self.evaluations = options.evaluations or 1  # None: at the end alone
        steps = options.steps
        self.steps_per_epoch = 20 if steps is None else max(1, min(20, int(steps // self.evaluations)))
        self._before_batch = (0, 0)  # the optimizer's iterations and the run's step when the last batch began
        self._tokens, self._token_seconds = 0.0, 0.0  # read, and of training, since the last evaluation
        self._batch_end: float | None = None  # when the last step ended, or training went on
        self._sizes: Counter[float | None] = Counter()  # of the batches, positions with padding, in this process
        self._step_seconds: deque[float] = deque(maxlen=100)  # of the last steps that count, by the position
        self._evaluation_seconds: float | None = None  # of the last evaluation
        self._pause_seconds, self._evaluated = 0.0, 0.0  # between epochs but for evaluations; of one in this pause
        self._stopped = False  # by a callback of the user's
        self._midway_logs: dict = {}  # of an evaluation within the epoch, for TensorBoard
        self._printed = 0.0  # when the last line about the progress was written
        self._drawn = 0.0  # when the evaluations were drawn, or training began
        self._drawn_count = 0  # how many they were

    @property
    def fraction(self) -> float:
        """Completed fraction of the run."""
        steps, minutes = self.options.steps, self.options.minutes
        return self.state.step / steps if steps else self.state.seconds / (60 * (minutes or 1))

    @property
    def done(self) -> bool:
        patience = self.options.patience
        return self._stopped or self.fraction >= 1 or (patience is not None and self.state.stale >= patience)

    @property
    def due(self) -> bool:
        """Whether an evaluation is due."""
        return self.done or len(self.state.history) + 1 <= self.fraction * self.evaluations

    @property
    def evaluation_missing(self) -> bool:
        """Whether an epoch, or the steps until an evaluation, have ended without it."""
        ended = self.state.step % self.steps_per_epoch == 0 or (self.options.steps is not None and self.due)
        return (ended or self.done) and self.state.step != self.state.epoch_end

    def start(self) -> None:
        """Starts the clock, shows the bar, and says where a run resumes."""
        chief = is_chief(of_model(self.trained))
        if self.state.step and chief:
            print(f"resuming from step {self._steps_so_far}", file=sys.stderr, flush=True)
        self._printed = self._drawn = time.monotonic()
        self._since = self._printed - self.state.seconds
        steps, minutes = self.options.steps, self.options.minutes
        numbers = "{n:.0f}/{total} s" if minutes else "{n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}]"
        unit: dict[str, Any] = {"total": steps, "initial": self.state.step, "unit": " steps"}
        if minutes:
            unit = {"total": round(60 * minutes)}
        unit["bar_format"] = "{desc}: {percentage:3.0f}%|{bar}| " + numbers + "{postfix}"
        hidden = None if chief else True
        self._bar = tqdm(desc="training", file=sys.stderr, leave=False, disable=hidden, mininterval=0.5, **unit)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None):
        for variable, value in zip(self.trained.metrics_variables, self.metrics, strict=bool(self.metrics)):
            variable.assign(value)
        self.metrics = []

    def on_train_batch_begin(self, batch: int, logs: dict | None = None):
        if self._batch_end is not None and self.state.step == self.state.epoch_end:
            now = time.monotonic()  # evaluations and checkpoints are no part of a step
            self._pause_seconds += now - self._batch_end - self._evaluated
            self._batch_end, self._evaluated = now, 0.0
        if self.peak is not None:
            rate = schedule.learning_rate(self.fraction, self.peak, self.options.warmup, self.options.decay)
            self.trained.optimizer.learning_rate = rate
        self._before_batch = backend.taken(self.trained), self.state.step

    def on_train_batch_end(self, batch: int, logs: dict):
        seconds = time.monotonic() - self._since
        self._count_tokens(logs)
        self.logs = logs
        self.state = replace(self.state, step=self.state.step + 1, seconds=seconds)
        if not np.isfinite(logs["loss"]):
            raise ValueError(self._divergence(logs["loss"]))
        self._bar.n = self.state.step if self.options.steps else min(seconds, self._bar.total)
        if not self._bar.disable:
            left = self._minutes_left()
            shown = f"loss={logs['loss']:.3f}" + ("" if left is None else f", {left:.1f} min left")
            self._bar.set_postfix_str(shown, refresh=False)
            self._bar.update(0)
        self._print_progress(logs["loss"])
        if self.done:
            self.trained.stop_training = True
        elif self.evaluation_missing and self.state.step % self.steps_per_epoch:  # else at the end of the epoch
            self._midway_logs = dict(logs)
            self.end_epoch(self._midway_logs)

    def _print_progress(self, loss: float) -> None:
        """Without a progress bar, a line every half minute."""
        now = time.monotonic()
        if not self._bar.disable or not is_chief(of_model(self.trained)) or now - self._printed < HALF_MINUTE:
            return
        self._printed, seconds = now, now - self._since
        left = self._minutes_left()
        text = f"step {self._steps_so_far}, loss {loss:.3f}, {seconds / 60:.1f} min"
        if left is not None:
            beside = " beside evaluations" if self._evaluations_left and self._evaluation_seconds is None else ""
            text += f", at most {left:.1f} min of training left{beside}"
        print(text, file=sys.stderr, flush=True)

    @property
    def _steps_so_far(self) -> str:
        return f"{self.state.step} of {self.options.steps}" if self.options.steps else f"{self.state.step}"

    @property
    def _evaluations_left(self) -> float:
        return self.evaluations * (1 - self.fraction) if self.evaluate is not None else 0.0

    def _minutes_left(self) -> float | None:
        """The time left, if the run is not ended by `patience`; None until some steps have been measured.

        The first step of each size is traced or compiled, which takes up to hundreds of times as long as a step, and
        does not count. The others are measured by the position, since the sizes differ, and count as their median.
        """
        steps, minutes, state = self.options.steps, self.options.minutes, self.state
        if steps is None:
            left = 60 * (minutes or 0) - state.seconds
        elif state.step >= steps:
            left = 0.0
        elif len(self._step_seconds) < MEASURED:
            return None
        else:
            count = self._sizes.total()
            size = sum((positions or 1) * times for positions, times in self._sizes.items()) / count
            seconds = size * statistics.median(self._step_seconds) + self._pause_seconds / count
            left = seconds * (steps - state.step) + (self._evaluation_seconds or 0) * self._evaluations_left
        return max(0.0, left) / 60

    def _divergence(self, loss: float) -> str:
        """The message about a loss that is no number."""
        backend.sync(self.trained)
        step, rate = self.state.step, self.peak or float(self.trained.optimizer.learning_rate.numpy())
        batch = f"; its batch is from {self.options.source}" if self.options.source else ""
        return f"step {step}: the loss became {loss}; try a learning rate below {rate:.3g}{batch}"

    def _count_tokens(self, logs: dict) -> None:
        """Takes the numbers of tokens and of positions out of the logs of a step, and its time."""
        now, tokens, size = time.monotonic(), float(logs.pop("tokens", 0)), logs.pop("positions", None)
        if self._batch_end is not None:  # the first step is traced, and does not count
            replicas = of_model(self.trained).num_replicas_in_sync if TENSORFLOW else 1  # JAX counts all at once
            self._tokens += tokens * replicas
            self._token_seconds += now - self._batch_end
            if size is None or size in self._sizes:
                self._step_seconds.append((now - self._batch_end) / (size or 1))
        self._sizes[size] += 1
        self._batch_end = now

    def on_epoch_end(self, epoch: int, logs: dict):
        for name in ("tokens", "positions"):
            logs.pop(name, None)
        logs.update({name: value for name, value in self._midway_logs.items() if name not in logs})
        self._midway_logs = {}
        if self.state.step != self.state.epoch_end:  # else it has been evaluated
            self.end_epoch(logs)

    def end_epoch(self, logs: dict) -> None:
        """Validates if an evaluation is due, and records it; adds the metrics to the means over the epoch in `logs`."""
        state, due = self.state, self.due
        if due and self.evaluate is not None:
            backend.sync(self.trained)
            begin = time.monotonic()
            metrics = self.evaluate()
            self._evaluation_seconds = self._evaluated = time.monotonic() - begin
            logs.update({f"val_{name}": value for name, value in metrics.items()})
            metric = self.metric or Metric(next(iter(metrics)))
            state = state.evaluated(self.trained, metric, metrics[metric.name])
        if due:
            seconds = time.monotonic() - self._since
            if self._tokens:
                logs["tokens_per_second"] = self._tokens / self._token_seconds
                self._tokens, self._token_seconds = 0.0, 0.0
            entry = {"step": state.step, "minutes": seconds / 60} | {name: float(x) for name, x in logs.items()}
            state = replace(state, seconds=seconds, history=(*state.history, entry))
        self.state = replace(state, epoch_end=state.step)
        if self.done:
            self.trained.stop_training = True
        if due and self.options.folder is not None and is_chief(of_model(self.trained)):
            history.write(self.options.folder, state.history)
        if due and (self.done or time.monotonic() - self._drawn >= DRAWN_EVERY):
            self.draw()
        if due and self.report is not None:
            self._bar.clear()
            self.report(state.history[-1])

    def stop(self) -> None:
        """Ends the run after the last step, with an evaluation, as a callback of the user's has asked for."""
        self._stopped = True
        if not self.state.history or self.state.history[-1]["step"] != self.state.step:
            self.end_epoch(dict(self.logs))

    def draw(self) -> None:
        """Draws the evaluations into the folder of the run, unless they are drawn already."""
        count = len(self.state.history)
        if count > self._drawn_count and self.options.folder is not None and is_chief(of_model(self.trained)):
            history.draw(self.options.folder, self.state.history)
            self._drawn, self._drawn_count = time.monotonic(), count

    def interrupted(self) -> None:
        """Counts the step that had been taken, but not yet counted, at the interrupt."""
        iterations, step = self._before_batch
        if step == self.state.step and backend.taken(self.trained) > iterations:
            self.logs = {name: float(value) for name, value in self.trained.get_metrics_result().items()}
            self.state = replace(self.state, step=step + 1)

    def close(self) -> None:
        """Ends the bar, and draws what an interrupt or an error has left undrawn."""
        self._bar.close()
        if sizes := getattr(self.trained, "sizes", 0):
            print(f"sizes of batches that were compiled: {sizes}", file=sys.stderr, flush=True)
        with suppress(OSError):  # the disk may be full, which is then the error that is raised
            self.draw()


def tensorboard(folder: str | Path | None) -> list[keras.callbacks.Callback]:
    """The callbacks that write TensorBoard logs into a folder, none for None; a ValueError if it is not installed."""
    if folder is None:
        return []
    if not TENSORFLOW:
        raise ValueError(
            f"tensorboard={str(folder)!r}: TensorFlow writes its logs, not the backend {NAME}; leave it out"
        )
    try:
        import tensorboard as _  # noqa: F401
    except ImportError:
        raise ValueError("TensorBoard logs need its package: pip install tensorboard") from None
    return [keras.callbacks.TensorBoard(str(folder)), _MixLogs(Path(folder) / "mix")]


class _MixLogs(keras.callbacks.Callback):
    """The weights of the layers in every scalar mix, in each epoch: a histogram, and a curve for each layer."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder

    def on_train_begin(self, logs=None):
        self.mixes = [layer for layer in self.model.layers if isinstance(layer, ScalarMix)]
        self.writer: Any = tf.summary.create_file_writer(str(self.folder)) if self.mixes else None

    def on_epoch_end(self, epoch, logs=None):
        for layer in self.mixes:
            weights, gamma = layer.learned()
            with self.writer.as_default(step=epoch):
                tf.summary.histogram(f"{layer.name}/weights", weights)
                tf.summary.scalar(f"{layer.name}/gamma", gamma)
                for number, weight in enumerate(weights):
                    tf.summary.scalar(f"{layer.name}/layer_{number}", weight)
