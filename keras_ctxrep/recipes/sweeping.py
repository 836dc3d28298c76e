"""Several fine-tuning runs, each of which is trained once; sweeps over values and seeds, whose best model is kept."""

import gc
import hashlib
import itertools
import json
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_ctxrep import tasks
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.deprecated import moved
from keras_ctxrep.options import Finetuning, Options
from keras_ctxrep.recipes.finetuning import Observers, Run
from keras_ctxrep.recipes.reading import in_memory, read, split
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.training import checkpoints
from keras_ctxrep.training.runs import NAME, check_replaceable, finished
from keras_ctxrep.training.strategy import choose, several_workers

if TYPE_CHECKING:
    from keras_ctxrep.commands.train import Train

__getattr__ = moved(__name__, "keras_ctxrep.commands.train")

TABLE, FOLDER = "sweep.tsv", "sweep"  # the results, and the runs, in the model folder
_OPTIONS = Finetuning.__dataclass_fields__


def train_once(run: Run, name: str, number: str, observers: Observers) -> dict[str, Any]:
    """Trains one of several runs, unless it is finished in its folder.

    Args:
        run: the run.
        name, number: of it in messages, e.g. "seed 1" and "2 of 3".
        observers: `announce` is called with a line about the run when it begins.

    Returns: its record, run.json.
    """
    done = finished(run.out, run.record().identity)
    if observers.announce is not None:
        observers.announce(f"run {number}: {name}" + " (finished before)" * done)
    if not done:
        try:
            run.train(replace(observers, announce=None))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        gc.collect()  # the model, whose parts refer to each other
    return json.loads((Path(run.out) / NAME).read_text(encoding="utf-8"))


def seed_table(
    header: Sequence[str],
    rows: Sequence[tuple[Sequence[str], Mapping[int, float], Sequence[str]]],
    digits: int,
    more: Sequence[str] = (),
) -> list[list[str]]:
    """Rows of text, the first a header: mean of each row's scores and, of several seeds, standard deviation and each.

    Args:
        header, more: columns before these, of which the last is the mean, and after them.
        rows: cells before these, scores by seed, and cells after them.
        digits: after the point.

    >>> seed_table(["set", "mean"], [(["a"], {0: 1.0, 1: 2.0}, [])], 1)
    [['set', 'mean', 'std', 'seed 0', 'seed 1'], ['a', '1.5', '0.7', '1.0', '2.0']]
    """
    seeds = sorted({seed for _, scores, _ in rows for seed in scores})
    of_seeds = ["std", *(f"seed {seed}" for seed in seeds)] if len(seeds) > 1 else []
    lines = [[*header, *of_seeds, *more]]
    for before, scores, after in rows:
        deviation = statistics.stdev(scores.values()) if len(scores) > 1 else None
        shown = [statistics.fmean(scores.values()), deviation, *map(scores.get, seeds)][: len(of_seeds) + 1]
        lines.append([*before, *("" if value is None else f"{value:.{digits}f}" for value in shown), *after])
    return lines


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
    def score(self) -> float:
        """That of the best seed."""
        return (min if self.smaller else max)(self.scores)

    @property
    def best(self) -> Path:
        """The folder of the best seed, of equals the first."""
        return self.folders[self.scores.index(self.score)]


def train_all(command: "Train", grid: Mapping[str, Sequence]) -> list[SweepResult]:
    """The combinations of `commands.train.sweep`: the runs of a command, with other values and seeds."""
    _check(grid)
    out, task, data, dev = Path(command.out), tasks.get(command.task), command.data, command.dev
    if isinstance(dev, float | int):
        data, dev = split([*read(task, data, command.columns)], dev, command.seed)
    dev_columns = command.columns if command.dev_columns is None else command.dev_columns
    rows = in_memory(task, data, command.columns), in_memory(task, dev, dev_columns)

    given = command.task_options
    shared = given.plain() if isinstance(given, Options) else given or {}

    def run_of(values: Mapping[str, Any], seed: int) -> tuple[Run, str]:
        """A run, and its name."""
        name = ",".join(f"{key}={value}" for key, value in {**values, "seed": seed}.items())
        folder, of_task, changed = out / FOLDER / _as_file_name(name), {**shared}, {}
        for key, value in values.items():
            (changed if key in _OPTIONS else of_task)[key] = value
        if command.tensorboard is not None:
            changed["tensorboard"] = Path(command.tensorboard) / folder.name
        options = replace(command, **changed, seed=seed, overwrite=True)  # runs with other data
        run = Run(*rows, command.encoder, folder, task.name, options, of_task)
        run.check_out(out)
        run.check()
        return run, name

    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    seeds, number = range(command.seed, command.seed + (command.seeds or 1)), itertools.count(1)
    first, *_ = [run_of(values, seed)[0].record().identity for values in combinations for seed in seeds]
    if several_workers(choose(command.strategy)):
        raise ValueError("a sweep trains on one machine: start one on each machine, with other values")
    check_replaceable(out, first, command.overwrite or (out / TABLE).exists())
    results = []
    for values in combinations:
        metric, scores, folders = "", [], []
        for run, name in (run_of(values, seed) for seed in seeds):
            record = train_once(run, name, f"{next(number)} of {len(combinations) * len(seeds)}", command.observers)
            history = record["history"]
            metric = next(key for key in history[0] if key.startswith("val_")).removeprefix("val_")
            scores.append(task.best(metric, (entry[f"val_{metric}"] for entry in history)))
            folders.append(Path(run.out))
        results.append(SweepResult(values, metric, tuple(scores), tuple(folders), metric in task.smaller))
    results.sort(key=lambda result: result.mean if result.smaller else -result.mean)  # stable: of equals the first
    with atomic_write(out / TABLE) as path:
        lines = ("\t".join(line) + "\n" for line in table(results, command.seed))
        path.write_text("".join(lines), encoding="utf-8")
    _copy(results[0].best, out)
    return results


def table(results: Sequence[SweepResult], first_seed: int = 0) -> list[list[str]]:
    """Rows of text, the first a header: values, mean and standard deviation of the metric, the metric of each seed."""
    rows = [([*map(str, each.values.values())], dict(enumerate(each.scores, first_seed)), []) for each in results]
    return seed_table([*results[0].values, results[0].metric], rows, 4)


def _as_file_name(name: str) -> str:
    """A name without special characters; with a hash if it had some, or is too long.

    >>> _as_file_name("lora=8"), _as_file_name("positive=a b")
    ('lora=8', 'positive=a_b-e3b7db2b')
    """
    plain = re.sub(r"[^\w.,=+-]", "_", name)[:200]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _check(grid: Mapping[str, Sequence]) -> None:
    """Raises an error for what cannot be swept; the values themselves are checked by the options of each run."""
    if "seed" in grid:
        raise ValueError("seed cannot be swept: give the number of seeds, and with `seed` the first one")
    for name, values in grid.items():
        if name in _OPTIONS and _OPTIONS[name].metadata.get("neutral"):
            raise ValueError(f"{name} cannot be swept: the result does not depend on it")
        if isinstance(values, str) or not values:
            raise ValueError(f"{name}={values!r}: a list of values is needed")
        if len({repr(value) for value in values}) < len(values):
            raise ValueError(f"{name}={list(values)}: a value is there twice")


def _copy(best: Path, out: Path) -> None:
    """Copies a model folder: the bundle, which has the hashes of the rest, after it, and then the record of the run."""
    files = filter(Path.is_file, best.iterdir())
    for file in sorted(files, key=lambda file: (file.name == NAME, file.name == bundles.NAME)):
        with atomic_write(out / file.name) as path:
            shutil.copyfile(file, path)
    if not (best / bundles.CARD).exists():  # that of an earlier model
        (out / bundles.CARD).unlink(missing_ok=True)
    checkpoints.remove(out)
