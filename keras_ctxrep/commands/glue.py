"""`ctxrep glue`: an encoder, fine-tuned on the sets of GLUE, with several seeds."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from keras_ctxrep.commands.command import Command, argument, function, in_python
from keras_ctxrep.commands.printing import print_evaluation, print_line, table
from keras_ctxrep.options import AnyPath, Finetuning

__all__ = ["Glue", "glue"]


@dataclass(frozen=True)
class Glue(Finetuning, Command[list]):
    """Fine-tune on the sets of GLUE, with several seeds.

    Fine-tunes an encoder on each set of GLUE with each seed, and writes one table of the figures.

    The folder has a folder of each set in its original files: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE,
    WNLI, AX; and Yahoo for `--sets Yahoo`. The same command goes on where it was interrupted.

    Notes:
        OUT has a model folder of each run, OUT/SET/seed-N, with its run.json and log.jsonl; glue.md and glue.html, the
        table, written after each run; glue.json, the figures; and where a set has test rows without labels the
        leaderboard's files, submission/NAME.tsv and submission.zip, by the seed that is best on the development rows.
        No run that is finished there is repeated. `evaluations` is 1 unless given: the weights at the end are scored. A
        table of one's own has under each name `train` and `dev`, files in `data`, and if they are not the usual ones
        `task`, `columns`, `figures` and `positive`; `test` has rows to predict.

    Returns: a `Cell` for each run.

    Raises:
        ValueError: there is no such set, its files are missing, a row is malformed, or an option does not fit; before
            the first run where that can be seen from the first rows.
    """

    configurable: ClassVar[bool] = True

    data: AnyPath = argument("--data FOLDER  the folder with the sets, or `tfds`")
    encoder: AnyPath = argument("--encoder FOLDER published  as in `ctxrep train`")
    out: AnyPath = argument("--out FOLDER  the folder to write: a model of each run, and the table")
    sets: Sequence | None = argument("[--sets NAME ...]  these sets alone (default: all that there are)")
    table: AnyPath | None = argument("""[--table FILE.yaml]  sets of one's own: names, and under each train and dev,
        files in --data""")
    rows: int | None = argument("[--rows N] >=1  learn from N random rows of each set")
    seeds: int = argument("[--seeds N] >=1  runs of each set, from --seed on", 1)
    report: Callable[[dict], None] | None = in_python()
    announce: Callable[[str], object] | None = in_python()

    @classmethod
    def without(cls, family: str | None) -> Collection[str]:
        return ("columns", "dev_columns", "skip_bad")

    @classmethod
    def defaults(cls, family: str | None) -> Mapping[str, str]:
        from keras_ctxrep.models import tuning

        return tuning.default_texts() | {"evaluations": "1, so that the weights at the end are scored"}

    @classmethod
    def from_flags(cls, values: dict[str, Any]) -> Self:
        return super().from_flags(values | {"report": print_evaluation, "announce": print_line})

    def run(self) -> list:
        from keras_ctxrep.recipes.benchmarking import train_cells

        return train_cells(self)

    def show(self, result: list) -> None:
        from keras_ctxrep.recipes.benchmarking import MARKDOWN, results_table

        print(f"\n{table([line[:-1] for line in results_table(result)])}\n")
        print_line(f"{self.out}/{MARKDOWN}: this table, with the command of each row")


glue = function(Glue, "glue")
