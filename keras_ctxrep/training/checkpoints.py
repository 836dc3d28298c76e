"""Checkpoints of a training run, from which an interrupted run resumes exactly, and which weights of it are kept."""

import json
import math
import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_ctxrep.atomic import atomic_write, reserve
from keras_ctxrep.training.strategy import of_model

__all__ = ["Checkpoint", "Metric", "State", "remove", "save_weights", "unfinished"]

CHECKPOINT, FOLDER, STATE = "keras_ctxrep.checkpoint.2", "checkpoint", "state.json"
# what `Checkpoint.write` writes, and the folders that it leaves behind if it is killed
_OWN_FILES = re.compile(r"ctxrep-\d+\.(weights\.h5|random\.npz|best\.npz)|\.(ctxrep-\d+|state\.json)\..*|state\.json")


@dataclass(frozen=True)
class Metric:
    """The metric of a validation by which the best weights are chosen."""

    name: str
    smaller_is_better: bool = False  #: as for a loss or a distance


@dataclass(frozen=True)
class State:
    """Progress of a run. Replaced as a whole, so that an interrupt never leaves half of an evaluation in it."""

    step: int = 0  #: batches trained on
    seconds: float = 0.0  #: time used
    history: tuple[dict, ...] = ()  #: the evaluations
    best: list | None = None  #: weights of the best evaluation, if any
    best_loss: float = np.inf  #: its metric, negated where larger is better
    stale: int = 0  #: evaluations since the best one, for `patience`
    epoch_end: int = 0  #: the step at which an epoch ended last, including its evaluation if one was due

    def evaluated(self, model: keras.Model, metric: Metric, value: float) -> "State":
        """The state after an evaluation, with the model's weights if no earlier one was as good.

        As long as no value was above 0 where larger is better, as a tagger's F1 at first, none counts for `patience`.

        Args:
            model: as it was evaluated.
            metric: by which evaluations are compared.
            value: of the metric.
        """
        loss = value if metric.smaller_is_better else -value
        if loss < self.best_loss:
            return replace(self, best=model.get_weights(), best_loss=loss, stale=0)
        has_learned = metric.smaller_is_better or min(loss, self.best_loss) < 0
        return replace(self, stale=self.stale + has_learned)

    def restore_best(self, model: keras.Model) -> None:
        """Sets the weights of the best evaluation.

        Raises:
            ValueError: no evaluation had a finite value.
        """
        if self.best is None:
            raise ValueError("no evaluation had a finite loss; try a lower learning rate")
        model.set_weights(self.best)


class Checkpoint(keras.callbacks.Callback):
    """Writes weights, optimizer, random states and the run's state at intervals, state.json last.

    Args:
        progress: of the run, with `trained`, the model, `steps_per_epoch`, `state`, `logs` and `metrics`.
        folder: the model folder; the checkpoint is a folder in it.
        identity: of the run; a checkpoint of another one is refused.
        minutes: time between two checkpoints.
    """

    def __init__(self, progress: Any, folder: str | Path, identity: str, minutes: float):
        super().__init__()
        self.progress, self.identity = progress, identity
        self.folder, self.seconds = Path(folder) / FOLDER, 60 * minutes
        self._last = time.monotonic()

    def restore(self) -> None:
        """Sets model, random states and progress to those of the checkpoint, if there is one."""
        saved = _saved_state(self.folder)
        if saved is None:
            return
        progress, model = self.progress, self.progress.trained
        if saved["shapes"] != _shapes(model):
            raise ValueError(f"{self.folder} holds a checkpoint of another model: remove it, or choose another folder")
        if saved["identity"] != self.identity:
            raise ValueError(f"{self.folder} holds a checkpoint of a run with other text or settings: remove it")
        with of_model(model).scope():
            model.load_weights(self.folder / saved["weights"])
            arrays = _read_arrays(self.folder / saved["random"])
            variables = _variables_beside_weights(model)
            for variable, value in zip(variables, arrays, strict=False):
                variable.assign(value)
        progress.metrics, progress.logs = arrays[len(variables) :], saved["logs"]
        best = None if saved["best"] is None else _read_arrays(self.folder / saved["best"])
        best_loss = np.inf if best is None else saved["best_loss"]
        numbers = {name: saved[name] for name in ("step", "seconds", "stale", "epoch_end")}
        progress.state = State(best=best, best_loss=best_loss, history=tuple(saved["history"]), **numbers)

    @property
    def resume_hint(self) -> str:
        """The checkpoint that the run can resume from, to be added to the message of an error; "" if there is none."""
        try:
            saved = _saved_state(self.folder)
        except (OSError, ValueError):  # the folder is none any more: not the error that is raised
            return ""
        return f"; the checkpoint of step {saved['step']} is kept in {self.folder}" if saved else ""

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        # called after Progress, whose evaluation belongs to the epoch
        if time.monotonic() - self._last > self.seconds:
            self.write()

    def write(self) -> None:
        """Writes a checkpoint and then removes the one before it."""
        progress, model, state = self.progress, self.progress.trained, self.progress.state
        stem = f"ctxrep-{state.step}"
        names: dict[str, Any] = {"weights": f"{stem}.weights.h5", "random": f"{stem}.random.npz", "best": None}
        save_weights(model, self.folder / names["weights"])
        midway = state.step % progress.steps_per_epoch and not progress.done
        means = model.metrics_variables if midway else []
        with atomic_write(self.folder / names["random"]) as path:
            np.savez(path, *(np.asarray(variable) for variable in [*_variables_beside_weights(model), *means]))
        if state.best is not None:
            names["best"] = f"{stem}.best.npz"
            with atomic_write(self.folder / names["best"]) as path:
                np.savez(path, *state.best)
        saved = names | {name: getattr(state, name) for name in ("step", "seconds", "history", "stale", "epoch_end")}
        saved |= {
            "format": CHECKPOINT,
            "best_loss": float(state.best_loss) if state.best is not None else None,
            "logs": {name: float(value) for name, value in progress.logs.items()},
            "shapes": _shapes(model),
            "identity": self.identity,
        }
        with atomic_write(self.folder / STATE) as path:
            path.write_text(json.dumps(saved))
        _remove_files(self.folder, {STATE, *names.values()})
        self._last = time.monotonic()


def save_weights(model: keras.Model, path: str | Path) -> None:
    """Writes a model's weights, and its optimizer's, whole or not at all.

    Args:
        model: with the optimizer's variables if it is compiled.
        path: the file, .weights.h5.

    Raises:
        NoSpace: the disk has no space for them.
    """
    variables = [*model.variables, *(model.optimizer.variables if model.compiled else ())]
    size = sum(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize for variable in variables)
    with atomic_write(path) as temporary:
        reserve(path, size + 4096 * (len(variables) + 4))  # HDF5's own part is 1 to 2.5 kB for each
        model.save_weights(temporary)


def unfinished(folder: str | Path) -> bool:
    """Whether a model folder has the checkpoint of a run whose model has not been written."""
    return (Path(folder) / FOLDER / STATE).exists()


def _saved_state(folder: Path) -> dict | None:
    """The contents of a checkpoint's state file, or None if there is none; a ValueError if it is no such file."""
    try:
        saved = json.loads((folder / STATE).read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        saved = None
    if not isinstance(saved, dict) or saved.get("format") != CHECKPOINT:
        raise ValueError(f"{folder / STATE}: not a checkpoint of this version: move it away, or choose another folder")
    return saved


def remove(folder: str | Path) -> None:
    """Removes the checkpoint of a run from a model folder, and no file that the run did not write."""
    checkpoint = Path(folder) / FOLDER
    try:
        if _saved_state(checkpoint) is None:
            return
    except (ValueError, NotADirectoryError):
        return
    _remove_files(checkpoint, set())
    if not any(checkpoint.iterdir()):
        checkpoint.rmdir()


def _remove_files(folder: Path, keep: set) -> None:
    for path in folder.iterdir():
        if path.name not in keep and _OWN_FILES.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _read_arrays(path: Path) -> list[np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[f"arr_{index}"] for index in range(len(arrays.files))]


def _variables_beside_weights(model: keras.Model) -> list:
    """The variables that Keras' weight file lacks, random states, or changes: kernels, by adding low-rank updates."""
    weights = {id(weight) for weight in model.weights}
    random = [v for v in model.variables if id(v) not in weights and v.path.endswith("seed_generator_state")]
    updated = {weight.path.rpartition("/")[0] for weight in model.weights if weight.name.startswith("lora_kernel")}
    kernels = ("kernel", "lora_kernel_a", "lora_kernel_b")
    return random + [w for w in model.weights if w.path.rpartition("/")[0] in updated and w.name in kernels]


def _shapes(model: keras.Model) -> list:
    return [[weight.path, list(weight.shape)] for weight in model.trainable_variables]
