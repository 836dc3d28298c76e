"""Several fine-tuning runs, each of which is trained once; sweeps over values and seeds, whose best model is kept."""

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

TABLE, FOLDER = "sweep.tsv", "sweep"  # the results, and the runs, in the model folder
_OPTIONS = {entry.name: entry for entry in fields(Finetuning)}


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
    out, task, data, dev = Path(out), tasks.get(experiment.task), experiment.data, experiment.dev
    if isinstance(dev, float | int):
        data, dev = split([*read(task, data, options.columns)], dev, options.seed)
    dev_columns = options.columns if options.dev_columns is None else options.dev_columns
    rows = in_memory(task, data, options.columns), in_memory(task, dev, dev_columns)

    def run_of(values: Mapping[str, Any], seed: int) -> tuple[Run, str]:
        """A run, and its name."""
        name = ",".join(f"{key}={value}" for key, value in {**values, "seed": seed}.items())
        folder = out / FOLDER / _as_file_name(name)
        changed = {"seed": seed, "overwrite": True}  # of runs with other data
        if options.tensorboard is not None:
            changed["tensorboard"] = Path(options.tensorboard) / folder.name
        changed |= {key: value for key, value in values.items() if key in _OPTIONS}
        of_task = {**(task_options or {}), **{key: value for key, value in values.items() if key not in _OPTIONS}}
        run = Run(*rows, experiment.encoder, folder, task.name, replace(options, **changed), of_task)
        run.check_out(out)
        run.check()
        return run, name

    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    planned = [(values, seed) for values in combinations for seed in range(options.seed, options.seed + seeds)]
    first, *_ = [run_of(*each)[0].record().identity for each in planned]  # an error is raised before the first run
    if several_workers(choose(options.strategy)):
        raise ValueError("a sweep trains on one machine: start one on each machine, with other values")
    check_replaceable(out, first, options.overwrite or (out / TABLE).exists())
    done = []
    for number, each in enumerate(planned, 1):
        run, name = run_of(*each)
        history = train_once(run, name, f"{number} of {len(planned)}", observers)["history"]
        metric = next(key for key in history[0] if key.startswith("val_")).removeprefix("val_")
        done.append((metric, task.best(metric, (entry[f"val_{metric}"] for entry in history)), Path(run.out)))
    results = []
    for start, values in enumerate(combinations):
        metrics, scores, folders = zip(*done[start * seeds : (start + 1) * seeds], strict=True)
        results.append(SweepResult(values, metrics[0], scores, folders, metrics[0] in task.smaller))
    results.sort(key=lambda result: result.mean if result.smaller else -result.mean)  # stable: of equals the first
    with atomic_write(out / TABLE) as path:
        lines = table(results, options.seed)
        path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
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


def _copy(best: Path, out: Path) -> None:
    """Copies a model folder: the bundle, which has the hashes of the rest, after it, and then the record of the run."""
    files = filter(Path.is_file, best.iterdir())
    for file in sorted(files, key=lambda file: (file.name == NAME, file.name == bundles.NAME)):
        with atomic_write(out / file.name) as path:
            shutil.copyfile(file, path)
    if not (best / bundles.CARD).exists():  # that of an earlier model
        (out / bundles.CARD).unlink(missing_ok=True)
    checkpoints.remove(out)
