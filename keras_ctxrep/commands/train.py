"""`ctxrep train`: an encoder, fine-tuned for a task."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, Field, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, Self

from keras_ctxrep.checks import check_value, kinds
from keras_ctxrep.commands.command import Command, Usage, argument, function, in_python
from keras_ctxrep.commands.pretrain import OUT
from keras_ctxrep.commands.printing import print_error, print_evaluation, print_line, table
from keras_ctxrep.options import AnyPath, Finetuning, Options, nearest_option

__all__ = ["Train", "finetune", "sweep"]

DEV = 0.1  # fraction of the labelled examples that is held out, unless --dev is given
DEV_HELP = f"labelled examples to choose the best weights by, or the fraction of --data to hold out (default: {DEV})"
SWEEP_HELP = """train with each of these values of an option, in every combination of several options; OUT is the best
    model, OUT/sweep has all, OUT/sweep.tsv the table"""
Grid = Sequence | Mapping[str, Sequence]  # the values of options to try


def file_or_fraction(text: str) -> str | float:
    """A number as such, unless a file has this name.

    >>> file_or_fraction("0.1"), file_or_fraction("dev.tsv")
    (0.1, 'dev.tsv')
    """
    return float(text) if re.fullmatch(r"\d*\.?\d+", text) and not Path(text).exists() else text


def _tasks() -> tuple[str, ...]:
    from keras_ctxrep import tasks

    return tuple(tasks.TASKS)


class Finetunes(Command[list]):
    """What `train` and `distill` share."""

    configurable = True
    data: Any
    dev: Any
    out: str | Path

    @classmethod
    def defaults(cls, family: str | None) -> Mapping[str, str]:
        from keras_ctxrep.models import tuning

        evaluations = "one per epoch, or 10 of a run of --steps or --minutes"
        patience = "3 of a run of --epochs with one evaluation each"
        return tuning.default_texts() | {"evaluations": evaluations, "patience": patience}

    @classmethod
    def of_tasks(cls) -> Mapping[str, type[Options]]:
        from keras_ctxrep import tasks

        return {f"{name}: ": task.Options for name, task in tasks.TASKS.items()}

    @classmethod
    def from_flags(cls, values: dict[str, Any]) -> Self:
        announce = {"announce": print_line} if values.keys() & {"sweep", "seeds"} else {}
        return super().from_flags({"dev": DEV} | announce | values)

    def show(self, result: list) -> None:
        """Prints the best value of the metric that chose the weights."""
        from keras_ctxrep import tasks

        metric = next(name for name in result[0] if name.startswith("val_")).removeprefix("val_")
        choose = min if any(metric in task.smaller for task in tasks.TASKS.values()) else max
        best = choose(entry[f"val_{metric}"] for entry in result)
        print_line(f"{self.out}: {metric.replace('_', ' ')} on {self.dev_name}: {best:.4f}")

    @property
    def dev_name(self) -> str:
        return self.dev if isinstance(self.dev, str) else f"{100 * self.dev:g}% of {self.data}, held out"


@dataclass(frozen=True)
class Train(Finetunes, Finetuning):
    """Fine-tune an encoder for a task.

    Notes:
        The defaults are those of the papers. BERT (Devlin et al. 2018, appendix A.3): all of it is trained, with AdamW,
        warm-up over 10% of the steps, 3 epochs. ELMo (Peters et al. 2018): the biLM is frozen, its layers are mixed
        with an L2 penalty of 0.001 on the weights, dropout 0.5. The weights with the best `metric` on `dev` are kept,
        and a threshold of no answer is chosen there. A file is read again in every epoch and need not fit into memory.

        In Python, `data` and `dev` are as in `reading.read`: a file, "tfds:NAME:SPLIT", columns, a table, or objects;
        labels are those of `data`; others in `dev` count as errors, and are warned of. A fraction as `dev` is drawn at
        random by the seed from `data`, which is then held in memory, and not trained on. `report` is called with each
        evaluation, `announce` once, before the training, with lines about what will be done, and why; `callbacks` are
        as in `training.fit.fit`, and the record of the run does not name them. `task_options` are the task's own
        `Options`, or a dict of its fields; these may also be keywords.

    Returns: the evaluations on `dev`; with `sweep` or `seeds` the combinations, the best one first.

    Raises:
        TypeError: there is no such option.
        ValueError: a row is malformed, there are fewer than two labels, an option does not fit the task or the
            encoder, or `out` has the finished model of another run and `overwrite` is not set. Rows that were skipped
            are warned of.
    """

    data: Any = argument("--data FILE  labelled examples to learn from")
    dev: Any = argument(f"[--dev FILE]  {DEV_HELP}", MISSING, parse=file_or_fraction)
    encoder: AnyPath = argument("""--encoder FOLDER published  a model folder of any task, a name of `ctxrep zoo
        list`, or embeddings that are learned from the data alone: `words` or `characters`""")
    out: AnyPath = argument(OUT)
    task: str = argument("[--task]  the task", "classify", values=_tasks)
    report: Callable[[dict], None] | None = in_python(prints=print_evaluation)
    announce: Callable[[str], object] | None = in_python(prints=print_error)
    callbacks: Sequence = in_python(())  # of Keras
    task_options: Options | Mapping[str, Any] | None = in_python()
    _: KW_ONLY
    sweep: Grid | None = argument(f"schedule [--sweep NAME=X,Y ...]  {SWEEP_HELP}", action="extend")
    seeds: int | None = argument("""schedule [--seeds N] >=1  train with N seeds each, from --seed on; combinations are
        compared by their mean (default: 1)""")

    @classmethod
    def description(cls) -> str:
        from keras_ctxrep import tasks

        width = max(map(len, tasks.TASKS)) + 2
        listed = "\n".join(f"  {name:{width}}{task.help}" for name, task in tasks.TASKS.items())
        return (
            f"Fine-tune a pretrained encoder.\n\n{listed}\n\n"
            "Files are .tsv or .csv with a header, .jsonl, .parquet, CoNLL columns, SQuAD's JSON, also compressed, or\n"
            "tfds:NAME:SPLIT."
        )

    @property
    def observers(self) -> Any:
        from keras_ctxrep.recipes.finetuning import Observers

        return Observers(report=self.report, announce=self.announce, callbacks=self.callbacks)

    def run(self) -> list:
        if self.sweep is None and self.seeds is None:
            from keras_ctxrep.recipes.finetuning import Run

            run = Run(self.data, self.dev, self.encoder, self.out, self.task, self, self.task_options)
            return run.train(self.observers)
        from keras_ctxrep.recipes.sweeping import train_all

        if isinstance(self.sweep, Mapping):
            return train_all(self, self.sweep)
        try:
            values = grid(self.sweep or [], Finetuning, *self.of_tasks().values())
        except ValueError as error:
            raise Usage(f"--sweep {error}") from None
        return train_all(self, values)

    def show(self, result: list) -> None:
        if self.sweep is None and self.seeds is None:
            return super().show(result)
        from keras_ctxrep.recipes import sweeping

        best = result[0]
        print(f"\n{table(sweeping.table(result, self.seed))}\n")
        score = f"{best.metric.replace('_', ' ')} on {self.dev_name}: {best.score:.4f}"
        print_line(f"{self.out}: {best.best.name}: {score}")


def grid(texts: Sequence[str], *options: type[Options]) -> dict[str, list]:
    """The values of options to try, from NAME=VALUE,VALUE,...

    Args:
        texts: one for each option; `none` is a value where an option may be None.
        options: the dataclasses of the options.

    Raises:
        ValueError: no such option, or a value of another type or out of bounds.

    >>> grid(["learning-rate=1e-5,3e-5", "lora=none,8"], Finetuning)
    {'learning_rate': [1e-05, 3e-05], 'lora': [None, 8]}
    """
    known = {entry.name: entry for kind in options for entry in fields(kind)}
    values: dict[str, list] = {}
    for text in texts:
        name, sign, listed = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name not in known:
            nearest = nearest_option(name, known)
            raise ValueError(f"{text}: {name!r} is no option; the nearest one is {nearest!r}")
        if name in values or not sign:
            raise ValueError(f"{text}: write {name}=VALUE,VALUE,... once")
        values[name] = [_value(known[name], part.strip()) for part in listed.split(",")]
    return values


def _value(entry: Field, text: str) -> Any:
    """The value of an option that a text is."""
    value: Any = text
    if text == "none" and NoneType in kinds(entry.type):
        return None
    for kind in kinds(entry.type):
        try:
            value = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
            break
        except (KeyError, ValueError, TypeError):
            continue
    return check_value(entry.name, value, entry.type, entry.metadata["range"])


finetune = function(Train, "finetune")


def sweep(grid: Mapping[str, Sequence], out: str | Path, seeds: int = 1, **given: Any) -> list:
    """Fine-tunes with every combination of some options' values, each with several seeds, and keeps the best model.

    Each run is a model folder in OUT/sweep; the same call resumes an interrupted sweep, and repeats no run that is
    finished there. The table is written to OUT/sweep.tsv. The best combination is that of the highest mean, and OUT
    becomes the model of its best seed. All seeds are compared on the same development data, on which the best weights
    of each run are chosen too: test data are needed for a figure to report.

    Args:
        grid: option, of the run or of its task -> the values to try, in place of that in the options.
        out: the model folder to write.
        seeds: runs of each combination, with the seeds from `seed` on.
        given: as in `finetune`. A fraction as `dev` is drawn once; `announce` is called with a line about each run when
            it begins, e.g. "run 2 of 9: learning_rate=3e-05,seed=1"; `tensorboard` gets a folder for each run.

    Returns: the combinations, the best one first.

    Raises:
        TypeError, ValueError: as in `finetune`, for any of the runs before the first one begins; or an option that
            cannot be swept, or several machines.
    """
    return finetune(out=out, sweep=grid, seeds=seeds, **given)
