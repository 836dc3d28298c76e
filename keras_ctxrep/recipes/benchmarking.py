"""Fine-tuning on the sets of GLUE, or on a table of one's own sets, with several seeds: one table of figures."""

import json
import shlex
import statistics
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from keras_ctxrep import tasks, zoo
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.commands.printing import html_table
from keras_ctxrep.commands.score import score
from keras_ctxrep.deprecated import moved
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.options import LEARNED
from keras_ctxrep.recipes.finetuning import Observers, Run
from keras_ctxrep.recipes.glue_sets import GLUE, SETS, Set, located, of_yaml
from keras_ctxrep.recipes.sweeping import seed_table, train_once
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.training.runs import finished

if TYPE_CHECKING:
    from keras_ctxrep.commands.glue import Glue

__all__ = ["Cell", "results_table"]

__getattr__ = moved(__name__, "keras_ctxrep.commands.glue")

RESULTS, MARKDOWN, PAGE, LOG, SUBMISSION = "glue.json", "glue.md", "glue.html", "log.jsonl", "submission"
_PAGE = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>Figures by set</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body {font: 16px sans-serif} td, th {padding: .3em .8em; text-align: left; white-space: nowrap}</style>
<h1>Figures by set</h1>
<p>Mean and standard deviation over the seeds, times 100; the weights at the end of each run.</p>
"""


@dataclass(frozen=True)
class Cell:
    """One set with one seed.

    Attributes:
        set: its name.
        seed: of the run.
        figures: {what they are of: {metric: value}}.
        rows: that were learned from.
        scored: {what the figures are of: number of rows}.
        minutes: of training.
        command: that trains this cell again, to the digit on the same machine.
        identity: of the run, see `training.runs.RunRecord`.
    """

    set: str
    seed: int
    figures: Mapping[str, Mapping[str, float]]
    rows: int
    scored: Mapping[str, int]
    minutes: float
    command: str
    identity: str


def train_cells(command: "Glue") -> list[Cell]:
    """Trains and scores each set with each seed, but for what is finished, and writes the table after each."""
    out, sets, cells = Path(command.out), _sets(command), []
    written = {(cell.set, cell.seed): cell for cell in _finished(out)}
    observers = Observers(report=command.report, announce=command.announce)
    for entry in sets:
        data = entry.training(command.rows)
        dev = {name: [*entry.examples(file)] for name, file in entry.dev.items()}
        first, *others = dev
        for seed in range(command.seed, command.seed + command.seeds):
            options = replace(command, seed=seed, evaluations=command.evaluations or 1)
            folder, of_task = out / entry.name / f"seed-{seed}", {"positive": entry.positive} if entry.positive else {}
            run = Run(data, dev[first], command.encoder, folder, entry.task, options, of_task)
            number = f"{len(cells) + 1} of {len(sets) * command.seeds}"
            record = train_once(run, f"{entry.name}, seed {seed}", number, observers)
            cell = written.get((entry.name, seed))
            if cell is None or cell.identity != record["identity"]:
                log = "".join(json.dumps(evaluation) + "\n" for evaluation in record["history"])
                (folder / LOG).write_text(log, encoding="utf-8")
                scores = {first: record["dev"]} | {name: score(folder, dev[name]) for name in others}
                figures = {name: {key: values[key] for key in entry.figures} for name, values in scores.items()}
                sizes = len(data), {name: len(examples) for name, examples in dev.items()}
                shown = record["history"][-1]["minutes"], _command_line(command, entry.name, seed), record["identity"]
                cell = written[entry.name, seed] = Cell(entry.name, seed, figures, *sizes, *shown)
            cells.append(cell)
            _write(out, [*written.values()])
        _submit(entry, cells[-command.seeds :], out)
    return cells


def _sets(command: "Glue") -> list[Set]:
    """The sets that are chosen and that the encoder reads; of others it is announced that they are left out."""
    known, data, encoder = SETS if command.table is None else of_yaml(command.table), command.data, command.encoder
    names = {name.casefold(): name for name in known}
    if unknown := [name for name in command.sets or () if name.casefold() not in names]:
        raise ValueError(f"sets={unknown[0]!r}: one of {', '.join(known)}")
    present = []
    for name in dict.fromkeys(command.sets or (GLUE if command.table is None else known)):
        try:
            present.append(located(known[names[name.casefold()]], data))
        except ValueError:
            if command.sets or command.table:
                raise
    if not present:
        raise ValueError(f"{data}: no set of GLUE in it; a folder of each is needed: {', '.join(GLUE)}")
    reads_pairs, sets = encoder not in LEARNED and bundles.load(zoo.find(encoder)).features.pairs, []
    for entry in present:
        if reads_pairs or tasks.get(entry.task).query(next(entry.examples(entry.train))).pair is None:
            sets.append(entry)
        elif command.announce is not None:
            why = f"pairs of texts, and {encoder} reads one text; a BERT reads pairs"
            command.announce(f"{entry.name} is left out: {why}")
    if not sets:
        raise ValueError(f"{data}: no set in it that {encoder} reads")
    return sets


def _submit(entry: Set, cells: Sequence[Cell], out: Path) -> None:
    """Writes the best cell's answers to the rows without labels, as the leaderboard reads them."""
    if not entry.test:
        return
    metric, folder = entry.figures[0], out / SUBMISSION
    choose = min if metric in tasks.get(entry.task).smaller else max
    best = choose(cells, key=lambda cell: next(iter(cell.figures.values()))[metric])
    model = open_model(out / entry.name / f"seed-{best.seed}").answer
    folder.mkdir(exist_ok=True)
    for name, file in entry.test.items():
        answers = enumerate(model.ask([*entry.examples(file, labelled=False)]))
        with atomic_write(folder / f"{name}.tsv") as path:
            lines = (f"{number}\t{entry.submitted(answer)}\n" for number, answer in answers)
            path.write_text("index\tprediction\n" + "".join(lines), encoding="utf-8")
    with atomic_write(folder.with_suffix(".zip")) as path, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.glob("*.tsv")):
            archive.write(file, file.name)


def _command_line(command: "Glue", name: str, seed: int) -> str:
    """That of one cell."""
    words, own = ["ctxrep", "glue"], {"sets": name, "seed": seed, "seeds": 1}
    for entry in fields(command):
        value, name = own.get(entry.name, getattr(command, entry.name)), entry.name.replace("_", "-")
        if entry.name == "seed" or (value != entry.default and entry.name not in ("overwrite", "report", "announce")):
            words += [f"--{'' if value else 'no-'}{name}"] if isinstance(value, bool) else [f"--{name}", str(value)]
    return shlex.join(words)


def results_table(cells: Sequence[Cell]) -> list[list[str]]:
    """Rows of text, the first a header: figures x 100, their mean and standard deviation over the seeds, the command.

    The average is that of the leaderboard: the mean of the sets' means, each of its figures.
    """
    rows, means = [], {}
    for name in dict.fromkeys(cell.set for cell in cells):
        own = [cell for cell in cells if cell.set == name]
        first, minutes = own[0], statistics.fmean(cell.minutes for cell in own)
        for part, metric in [(part, metric) for part, metrics in first.figures.items() for metric in metrics]:
            scores = {cell.seed: 100 * cell.figures[part][metric] for cell in own}
            means.setdefault(name, []).append(statistics.fmean(scores.values()))
            sizes = [f"{first.rows:,}", f"{first.scored[part]:,} ({part})", f"{minutes:.1f}", first.command]
            rows.append(([name, metric.replace("_", " ")], scores, sizes))
    lines = seed_table(["set", "figure", "mean"], rows, 1, ["rows", "scored", "minutes", "command"])
    if len(means) > 1 and means.keys() <= {*GLUE}:
        average = statistics.fmean(map(statistics.fmean, means.values()))
        lines.append([f"average of {len(means)}", "", f"{average:.1f}", *[""] * (len(lines[0]) - 3)])
    return lines


def _finished(out: Path) -> list[Cell]:
    """The cells that are finished in a folder."""
    try:
        cells = [Cell(**values) for values in json.loads((out / RESULTS).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
    return [cell for cell in cells if finished(out / cell.set / f"seed-{cell.seed}", cell.identity)]


def _write(out: Path, cells: Sequence[Cell]) -> None:
    """Writes the figures and the table."""
    lines = results_table(cells)
    marked = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    marked.insert(1, "|" + "---|" * len(lines[0]))
    texts = {RESULTS: json.dumps([vars(cell) for cell in cells], indent=1), PAGE: f"{_PAGE}{html_table(lines)}\n"}
    texts[MARKDOWN] = "\n".join(marked) + "\n"
    for name, text in texts.items():
        with atomic_write(out / name) as path:
            path.write_text(text, encoding="utf-8")
