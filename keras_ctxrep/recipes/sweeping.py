"""Fine-tuning with several values of some options and several seeds; the best model is kept."""

import gc
import hashlib
import itertools
import json
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from keras_ctxrep import tasks
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.options import Finetuning, keywords
from keras_ctxrep.recipes.finetuning import Observers, Run
from keras_ctxrep.recipes.reading import Data, in_memory, read, split
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.training import checkpoints
from keras_ctxrep.training.runs import NAME, check_replaceable, finished
from keras_ctxrep.training.strategy import choose, several_workers

__all__ = ["Experiment", "sweep"]

TABLE = "sweep.tsv"
_FOLDER = "sweep"  # of the runs, in the model folder
_OPTIONS = {entry.name: entry for entry in fields(Finetuning)}


@dataclass(frozen=True)
class SweepResult:
    """One combination of values, over all seeds.

    Attributes:
        values: option -> value.
        metric: name of the main metric on the development data.
        scores: its value in the run of each seed, of the weights that were kept.
        folders: the model folder of each run.
        smaller: whether a smaller value is better.
    """

    values: Mapping[str, Any]
    metric: str
    scores: tuple[float, ...]
    folders: tuple[Path, ...]
    smaller: bool = False

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over the seeds, estimated from them as a sample; None for one seed."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def score(self) -> float:
        """That of the best seed."""
        return (min if self.smaller else max)(self.scores)

    @property
    def best(self) -> Path:
        """The folder of the best seed, of equals the first."""
        return self.folders[self.scores.index(self.score)]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What each run of a sweep has in common; its fields are those of `finetune`."""

    data: Data
    dev: Data | float
    encoder: str | Path
    task: str = "classify"


@keywords(Finetuning, experiment=Experiment, observers=Observers)
def sweep(
    grid: Mapping[str, Sequence],
    out: str | Path,
    seeds: int = 1,
    *,
    experiment: Experiment,
    observers: Observers,
    options: Finetuning,
    task_options: Mapping[str, Any] | None = None,
) -> list[SweepResult]:
    """Fine-tunes with every combination of some options' values, each with several seeds, and keeps the best model.

    Each run is a model folder in OUT/sweep; the same call resumes an interrupted sweep, and repeats no run that is
    finished there. The table is written to OUT/sweep.tsv. The best combination is that of the highest mean, and OUT
    becomes the model of its best seed. All seeds are compared on the same development data, on which the best weights
    of each run are chosen too: test data are needed for a figure to report.

    Args:
        grid: option, of the run or of its task -> the values to try, in place of that in the options.
        out: the model folder to write.
        seeds: runs of each combination, with the seeds from `seed` on.
        experiment: or its fields as keywords; a fraction as `dev` is drawn once.
        observers: or its fields as keywords; `announce` is called with a line about each run when it begins, e.g.
            "run 2 of 9: learning_rate=3e-05,seed=1".
        task_options: as in `finetune`.
        options: or its fields as keywords. `tensorboard` gets a folder for each run.

    Returns: the combinations, the best one first.

    Raises:
        TypeError, ValueError: as in `finetune`, for any of the runs before the first one begins; or an option that
            cannot be swept, or several machines.
    """
    _check(grid, seeds)
    trained, data, dev = tasks.get(experiment.task), experiment.data, experiment.dev
    if isinstance(dev, float | int):
        data, dev = split([*read(trained, data, options.columns)], dev, options.seed)
    data = in_memory(trained, data, options.columns)
    dev = in_memory(trained, dev, options.columns if options.dev_columns is None else options.dev_columns)
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    arguments = {"data": data, "dev": dev, "encoder": experiment.encoder, "task": experiment.task}
    runs = [
        _SeededRun(values, options.seed + number, Path(out), arguments, options, task_options or {})
        for values in combinations
        for number in range(seeds)
    ]
    if several_workers(choose(options.strategy)):
        raise ValueError("a sweep trains on one machine: start one on each machine, with other values")
    goes_on = (Path(out) / TABLE).exists()
    check_replaceable(out, runs[0].record.identity, options.overwrite or goes_on)
    for number, run in enumerate(runs, 1):
        line = f"run {number} of {len(runs)}: {run.name}"
        done = finished(run.folder, run.record.identity)
        if observers.announce is not None:
            observers.announce(f"{line} (finished before)" if done else line)
        if not done:
            run.train(observers)
    rows = [_row([run for run in runs if run.values == values]) for values in combinations]
    rows.sort(key=lambda row: row.mean if row.smaller else -row.mean)  # stable: of equals the first
    _write(rows, Path(out), options.seed)
    _copy(rows[0].best, Path(out))
    return rows


def table(rows: Sequence[SweepResult], first_seed: int = 0) -> list[list[str]]:
    """Rows of text, the first a header: values, mean and standard deviation of the metric, the metric of each seed."""
    seeds = [f"seed {first_seed + number}" for number in range(len(rows[0].scores))]
    header = [*rows[0].values, rows[0].metric, *(["std", *seeds] if len(seeds) > 1 else [])]
    lines = [header]
    for row in rows:
        scores = [f"{score:.4f}" for score in row.scores]
        deviation = [] if row.deviation is None else [f"{row.deviation:.4f}", *scores]
        lines.append([*map(str, row.values.values()), f"{row.mean:.4f}", *deviation])
    return lines


class _SeededRun:
    """One combination with one seed."""

    def __init__(
        self,
        values: Mapping[str, Any],
        seed: int,
        out: Path,
        arguments: Mapping[str, Any],
        options: Finetuning,
        task_options: Mapping[str, Any],
    ):
        self.values = dict(values)
        self.name = ",".join(f"{name}={value}" for name, value in {**values, "seed": seed}.items())
        self.folder = out / _FOLDER / _as_file_name(self.name)
        changed = {name: value for name, value in values.items() if name in _OPTIONS}
        changed |= {"seed": seed, "overwrite": True}  # of runs with other data
        if options.tensorboard is not None:
            changed["tensorboard"] = Path(options.tensorboard) / self.folder.name
        task_options = {**task_options, **{name: value for name, value in values.items() if name not in _OPTIONS}}
        self._arguments = {
            **arguments,
            "out": self.folder,
            "options": replace(options, **changed),
            "task_options": task_options,
        }
        run = Run(**self._arguments)
        run.check_out(out)
        run.check()
        self.record, self.task = run.record(), run.task

    def train(self, observers: Observers) -> None:
        try:
            _train(replace(observers, announce=None), **self._arguments)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        gc.collect()  # the model, whose parts refer to each other

    def score(self) -> tuple[str, float]:
        """Name and value of the main metric, of the best evaluation."""
        history = json.loads((self.folder / NAME).read_text(encoding="utf-8"))["history"]
        metric = next(name for name in history[0] if name.startswith("val_"))
        name = metric.removeprefix("val_")
        return name, self.task.best(name, (entry[metric] for entry in history))


def _train(observers: Observers, **arguments: Any) -> None:
    Run(**arguments).train(observers)


def _as_file_name(name: str) -> str:
    """A name without special characters; with a hash if it had some, or is too long.

    >>> _as_file_name("lora=8"), _as_file_name("positive=a b")
    ('lora=8', 'positive=a_b-e3b7db2b')
    """
    plain = re.sub(r"[^\w.,=+-]", "_", name)[:200]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _check(grid: Mapping[str, Sequence], seeds: int) -> None:
    """Raises an error for what cannot be swept; the values themselves are checked by the options of each run."""
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: must be at least 1")
    if "seed" in grid:
        raise ValueError("seed cannot be swept: give the number of seeds, and with `seed` the first one")
    for name, values in grid.items():
        if name in _OPTIONS and _OPTIONS[name].metadata.get("neutral"):
            raise ValueError(f"{name} cannot be swept: the result does not depend on it")
        if isinstance(values, str) or not values:
            raise ValueError(f"{name}={values!r}: a list of values is needed")
        if len({repr(value) for value in values}) < len(values):
            raise ValueError(f"{name}={list(values)}: a value is there twice")


def _row(runs: Sequence[_SeededRun]) -> SweepResult:
    metrics, scores = zip(*(run.score() for run in runs), strict=True)
    smaller = metrics[0] in runs[0].task.smaller
    return SweepResult(runs[0].values, metrics[0], scores, tuple(run.folder for run in runs), smaller)


def _write(rows: Sequence[SweepResult], out: Path, first_seed: int) -> None:
    with atomic_write(out / TABLE) as path:
        path.write_text("".join("\t".join(line) + "\n" for line in table(rows, first_seed)), encoding="utf-8")


def _copy(best: Path, out: Path) -> None:
    """Copies a model folder: the bundle, which has the hashes of the rest, after it, and then the record of the run."""
    files = filter(Path.is_file, best.iterdir())
    for file in sorted(files, key=lambda file: (file.name == NAME, file.name == bundles.NAME)):
        with atomic_write(out / file.name) as path:
            shutil.copyfile(file, path)
    if not (best / bundles.CARD).exists():  # that of an earlier model
        (out / bundles.CARD).unlink(missing_ok=True)
    checkpoints.remove(out)
