"""Fine-tuning on the sets of GLUE, or on a table of one's own sets, with several seeds: one table of figures.

Wang et al. 2019, https://openreview.net/forum?id=rJ4km2R5t7. Each set is read from its original files or from
TensorFlow Datasets. As there, every set is trained by itself, and the weights at the end are scored.
"""

import gc
import html
import json
import random
import re
import shlex
import statistics
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from string import Template
from typing import Any

from keras_ctxrep import tasks, zoo
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.checks import read_yaml
from keras_ctxrep.commands.score import score
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.options import LEARNED, Finetuning, keywords
from keras_ctxrep.recipes.finetuning import Observers, Run
from keras_ctxrep.recipes.glue_sets import GLUE, SETS, TFDS, Layout, Set
from keras_ctxrep.recipes.reading import read
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.training.runs import NAME, finished

__all__ = ["Cell", "Selection", "glue", "results_table"]

RESULTS, MARKDOWN, PAGE, LOG = "glue.json", "glue.md", "glue.html", "log.jsonl"
SUBMISSION = "submission"  # folder and .zip
UNLABELLED = "-"  # in MultiNLI's and SNLI's files: the annotators did not agree
_PAGE = Path(__file__).with_suffix(".html")


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


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which runs there are.

    Attributes:
        sets: names in `glue_sets.SETS`, or in the table; None: all of the table, or all of GLUE that `data` has.
        table: a YAML file with sets of one's own in place of these: each name has `train` and `dev`, files in `data`,
            and if they are not the usual ones `task`, `columns`, `figures` and `positive`; `test` has rows to predict.
        rows: of each set, drawn at random, the same for all seeds; None: all.
        seeds: runs of each set, with the seeds from `seed` on.
    """

    sets: Sequence[str] | None = None
    table: str | Path | None = None
    rows: int | None = None
    seeds: int = 1


@keywords(Finetuning, selection=Selection, observers=Observers)
def glue(
    data: str | Path,
    encoder: str | Path,
    out: str | Path,
    *,
    selection: Selection,
    observers: Observers,
    options: Finetuning,
) -> list[Cell]:
    """Fine-tunes an encoder on each set with each seed and writes one table of the figures.

    OUT has a model folder of each run, OUT/SET/seed-N, with its run.json and log.jsonl; glue.md and glue.html, the
    table, written after each run; glue.json, the figures; and where a set has test rows without labels the
    leaderboard's files, submission/NAME.tsv and submission.zip, by the seed that is best on the development rows. The
    same call resumes an interrupted one, and repeats no run that is finished there.

    Args:
        data: a folder with a folder of each set in its original files, or "tfds" for TensorFlow Datasets.
        encoder, options: as in `finetune`; `evaluations` is 1 unless given: the weights at the end are scored.
        out: the folder to write.
        selection: or its fields as keywords.
        observers: or its fields as keywords; `announce` is called with a line about each run when it begins, and about
            each set that is left out.

    Returns: a `Cell` for each run.

    Raises:
        ValueError: there is no such set, its files are missing, a row is malformed, or an option does not fit; before
            the first run where that can be seen from the first rows.
    """
    sets, table, rows, seeds = selection.sets, selection.table, selection.rows, selection.seeds
    if seeds < 1 or (rows is not None and rows < 1):
        raise ValueError(f"seeds={seeds}, rows={rows}: at least 1")
    known = SETS if table is None else _of_yaml(Path(table))
    chosen = [known[name] for name in _named(sets, known)] if sets or table else _present(data)
    say, out = observers.announce or (lambda line: None), Path(out)
    parts = [part for entry in chosen if (part := _readable(_Rows(entry, data, rows), encoder, say))]
    if not parts:
        raise ValueError(f"{data}: no set in it that {encoder} reads")
    shared = {"data": data, "table": table, "rows": rows, "encoder": encoder, "out": out}
    options = replace(options, evaluations=options.evaluations or 1)
    known_cells = _finished(out)
    cells: list[Cell] = []
    for part in parts:
        own: list[Cell] = []
        for seed in range(options.seed, options.seed + seeds):
            line = f"run {len(cells) + len(own) + 1} of {len(parts) * seeds}: {part.name}, seed {seed}"
            run = _SeededRun(part, encoder, out, replace(options, seed=seed), shared)
            cell = known_cells.get(run.identity)
            say(line if cell is None else f"{line} (finished before)")
            own.append(cell or run.train(observers))
            _write(out, [*known_cells.values(), *cells, *own])
        cells += own
        _predict(part, max(own, key=part.figure), out)
        part.forget()
    _zip(out)
    return cells


class _Rows:
    """The rows of a set, read once they are needed."""

    def __init__(self, entry: Set, data: str | Path, rows: int | None):
        self.set, self.name, self.task, self._rows = entry, entry.name, tasks.get(entry.task), rows
        self._data, self._read = data, {}
        found = (layout for layout in entry.layouts if self._path(layout.train))
        layout = next(found, None)
        if layout is None:
            files = " or ".join(
                layout.train for layout in entry.layouts if self._is_tfds(layout.train) == (data == TFDS)
            )
            raise ValueError(f"{data}: the set {entry.name} is not in it: {files} is needed")
        self.layout: Layout = layout
        if missing := [file for file in layout.dev.values() if not self._path(file)]:
            raise ValueError(f"{data}: {missing[0]} of the set {entry.name} is missing")

    @staticmethod
    def _is_tfds(source: str) -> bool:
        return source.startswith(f"{TFDS}:")

    def _path(self, source: str) -> str | Path | None:
        """A file of the set, or the name of its data set; None if it is not there."""
        if self._data == TFDS or self._is_tfds(source):
            return source if self._data == TFDS and self._is_tfds(source) else None
        if (Path(self._data) / source).is_file():
            return Path(self._data) / source
        names, _, file = source.partition("/")
        folders = (folder for name in names.split("|") for folder in _like(Path(self._data) / name))
        return next((folder / file for folder in folders if (folder / file).is_file()), None)

    def _examples(self, source: str, labelled: bool) -> Iterator[Any]:
        path = self._path(source)
        assert path is not None
        columns = self.layout.columns
        if not labelled:  # such a file has a header, and no label
            columns = {name: column for name, column in (columns or {}).items() if not column.isdecimal()}
            columns.pop("label", None)
        for example in read(self.task, path, columns):
            if not labelled or _label(example) != UNLABELLED:
                yield example

    @property
    def pairs(self) -> bool:
        """Whether the first row is a pair of texts."""
        example = next(self._examples(self.layout.train, True))
        return self.task.query(example).pair is not None

    @property
    def train(self) -> list[Any]:
        """The rows to learn from, the same for all seeds."""
        if "train" not in self._read:
            examples = [*self._examples(self.layout.train, True)]
            if self._rows is not None and self._rows < len(examples):
                drawn = sorted(random.Random(f"{self.name} rows").sample(range(len(examples)), self._rows))
                examples = [examples[number] for number in drawn]
            self._read["train"] = examples
        return self._read["train"]

    def dev(self, name: str) -> list[Any]:
        """The rows that figures of this name are of."""
        if name not in self._read:
            self._read[name] = [*self._examples(self.layout.dev[name], True)]
        return self._read[name]

    def tests(self) -> Iterator[tuple[str, list[Any]]]:
        """Names of a submission's files that the data have rows for, and these."""
        for name, source in self.layout.test.items():
            if self._path(source):
                yield name, [*self._examples(source, False)]

    @property
    def positive(self) -> str | None:
        """The label of which F1 is, as these rows have it."""
        labels = {_label(example) for example in self.train} if self.set.positive else ()
        return next((label for label in self.set.positive if label in labels), None)

    def figure(self, cell: "Cell") -> float:
        """The first figure of a cell, larger where it is better."""
        name = self.set.figures[0]
        value = next(iter(cell.figures.values()))[name]
        return -value if name in self.task.smaller else value

    def forget(self) -> None:
        self._read.clear()


def _label(example: Any) -> Any:
    return getattr(example, "label", None)


def _like(folder: Path) -> Iterator[Path]:
    """The folders whose names begin so, but for case and punctuation: mrpc and MRPC, sst2_glue for SST-2."""

    def plain(name: str) -> str:
        return re.sub(r"\W|_", "", name.casefold())

    names = sorted(folder.parent.iterdir()) if folder.parent.is_dir() else []
    return (path for path in names if path.is_dir() and plain(path.name).startswith(plain(folder.name)))


def _named(names: Sequence[str] | None, known: Mapping[str, Set]) -> list[str]:
    """Names of sets as they are known, in the order given; None: all."""
    folded = {name.casefold(): name for name in known}
    if unknown := [name for name in names or () if name.casefold() not in folded]:
        raise ValueError(f"sets={unknown[0]!r}: one of {', '.join(known)}")
    return [folded[name.casefold()] for name in dict.fromkeys(names or known)]


def _present(data: str | Path) -> list[Set]:
    """The sets of GLUE whose rows are there."""
    present = []
    for name in GLUE:
        try:
            present.append(_Rows(SETS[name], data, None).set)
        except ValueError:
            continue
    if not present:
        raise ValueError(f"{data}: no set of GLUE in it; a folder of each is needed: {', '.join(GLUE)}")
    return present


def _of_yaml(path: Path) -> dict[str, Set]:
    """The sets of a YAML file, see `glue`."""
    try:
        entries = read_yaml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(entries, dict) or not all(isinstance(value, dict) for value in entries.values()):
        raise ValueError(f"{path}: a name for each set is needed, and under it train and dev")
    allowed = {"train", "dev", "test", "task", "columns", "figures", "positive"}
    sets = {}
    for name, values in entries.items():
        name = str(name)
        if not re.fullmatch(r"[\w.-]+", name) or name.strip(".") == "":
            raise ValueError(f"{path}: the set {name!r}: letters, digits, dots and dashes make a folder's name")
        if unknown := values.keys() - allowed:
            raise ValueError(f"{path}: {name}: {sorted(unknown)[0]!r} is none of {', '.join(sorted(allowed))}")
        if missing := {"train", "dev"} - values.keys():
            raise ValueError(f"{path}: {name}: no {sorted(missing)[0]}")
        kind = values.get("task", "classify")
        if kind not in tasks.TASKS:
            raise ValueError(f"{path}: {name}: task {kind!r}: one of {', '.join(tasks.TASKS)}")
        figures = values.get("figures") or tasks.get(kind).metrics[:1]
        if unknown := [figure for figure in figures if figure not in tasks.get(kind).metrics]:
            raise ValueError(
                f"{path}: {name}: {unknown[0]!r} is no figure of {kind}: {', '.join(tasks.get(kind).metrics)}"
            )
        columns = {key: str(column) for key, column in (values.get("columns") or {}).items()}
        test = {name: str(values["test"])} if "test" in values else {}
        layout = Layout(str(values["train"]), {"dev": str(values["dev"])}, test, columns or None)
        positive = (str(values["positive"]),) if "positive" in values else ()
        sets[name] = Set(name, tuple(figures), (layout,), kind, positive)
    return sets


def _readable(part: _Rows, encoder: str | Path, say: Callable[[str], object]) -> _Rows | None:
    """The rows if the encoder reads them; else it is said why not."""
    if not part.pairs:
        return part
    if encoder in LEARNED or not bundles.load(zoo.find(encoder)).features.pairs:
        say(f"{part.name} is left out: pairs of texts, and {encoder} reads one text; a BERT reads pairs")
        return None
    return part


class _SeededRun:
    """The run of one cell; `shared` are the arguments of `glue` for its command."""

    def __init__(self, part: _Rows, encoder: str | Path, out: Path, options: Finetuning, shared: Mapping[str, Any]):
        self.part, self.seed = part, options.seed
        self.folder = out / part.name / f"seed-{options.seed}"
        changed = {
            entry.name: getattr(options, entry.name)
            for entry in fields(options)
            if getattr(options, entry.name) != entry.default and entry.name != "overwrite"
        }
        if options.evaluations == 1:
            del changed["evaluations"]
        self.command = _command({**shared, "sets": part.name, "seed": options.seed, **changed})
        first = next(iter(part.layout.dev))
        task_options = {} if part.positive is None else {"positive": part.positive}
        self._run = Run(part.train, part.dev(first), encoder, self.folder, part.set.task, options, task_options)
        self._run.check()
        self.identity = self._run.record().identity

    def train(self, observers: Observers) -> Cell:
        """Trains and scores the cell; a finished run is scored alone."""
        part = self.part
        if not finished(self.folder, self.identity):
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / LOG, "a", encoding="utf-8") as log:

                def note(entry: dict) -> None:
                    log.write(json.dumps(entry) + "\n")
                    log.flush()
                    if observers.report is not None:
                        observers.report(entry)

                try:
                    self._run.train(replace(observers, report=note, announce=None))
                except ValueError as error:
                    raise ValueError(f"{part.name}: {error}") from error
            gc.collect()  # the model, whose parts refer to each other
        record = json.loads((self.folder / NAME).read_text(encoding="utf-8"))
        first, *others = part.layout.dev
        scores = {first: record["dev"]} | {name: score(self.folder, part.dev(name)) for name in others}
        figures = {name: {figure: values[figure] for figure in part.set.figures} for name, values in scores.items()}
        scored = {name: len(part.dev(name)) for name in scores}
        minutes = record["history"][-1]["minutes"]
        return Cell(part.name, self.seed, figures, len(part.train), scored, minutes, self.command, self.identity)


def _predict(part: _Rows, cell: Cell, out: Path) -> None:
    """Writes the answers to the rows without labels, as the leaderboard reads them: index TAB prediction."""
    predictor = None
    for name, examples in part.tests():
        if predictor is None:
            predictor = open_model(out / part.name / f"seed-{cell.seed}").answer
        (out / SUBMISSION).mkdir(exist_ok=True)
        with atomic_write(out / SUBMISSION / f"{name}.tsv") as path, open(path, "w", encoding="utf-8") as file:
            file.write("index\tprediction\n")
            for number, answer in enumerate(predictor.ask(examples)):
                file.write(f"{number}\t{_submitted(part.set, answer)}\n")


def _submitted(entry: Set, answer: Mapping[str, Any]) -> str:
    if "value" in answer:  # STS-B's scores
        return f"{min(5.0, max(0.0, answer['value'])):.3f}"
    label = answer.get("label")
    return json.dumps(answer, ensure_ascii=False) if label is None else entry.submitted.get(label, label)


def _zip(out: Path) -> None:
    files = sorted((out / SUBMISSION).glob("*.tsv"))
    if files:
        with (
            atomic_write(out / f"{SUBMISSION}.zip") as path,
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for file in files:
                archive.write(file, file.name)


# ---------------------------------------------------------------------------------------------------------- the table


def results_table(cells: Sequence[Cell]) -> list[list[str]]:
    """Rows of text, the first a header: figures x 100, their mean and standard deviation over the seeds, the command.

    The average is that of the leaderboard: the mean of the sets' means, each of its figures.
    """
    seeds = sorted({cell.seed for cell in cells})
    several = len(seeds) > 1
    header = ["set", "figure", "mean", *(["std", *(f"seed {seed}" for seed in seeds)] if several else [])]
    lines, of_sets = [[*header, "rows", "scored", "minutes", "command"]], {}
    for name in dict.fromkeys(cell.set for cell in cells):
        own = {cell.seed: cell for cell in cells if cell.set == name}
        first = next(iter(own.values()))
        for part, metrics in first.figures.items():
            for metric in metrics:
                values = {seed: 100 * cell.figures[part][metric] for seed, cell in own.items()}
                mean = statistics.fmean(values.values())
                of_sets.setdefault(name, []).append(mean)
                spread = [f"{statistics.stdev(values.values()):.1f}" if len(values) > 1 else ""]
                spread += [f"{values[seed]:.1f}" if seed in values else "" for seed in seeds]
                minutes = statistics.fmean(cell.minutes for cell in own.values())
                counts = [f"{first.rows:,}", f"{first.scored[part]:,} ({part})", f"{minutes:.1f}"]
                shown = [name, metric.replace("_", " "), f"{mean:.1f}", *(spread if several else [])]
                lines.append([*shown, *counts, first.command])
    if len(of_sets) > 1 and of_sets.keys() <= {*GLUE}:
        average = statistics.fmean(statistics.fmean(values) for values in of_sets.values())
        lines.append([f"average of {len(of_sets)}", "", f"{average:.1f}", *[""] * (len(lines[0]) - 3)])
    return lines


def _finished(out: Path) -> dict[str, Cell]:
    """The cells that are finished in a folder, by the identities of their runs."""
    try:
        cells = [Cell(**values) for values in json.loads((out / RESULTS).read_text(encoding="utf-8"))]
        return {c.identity: c for c in cells if finished(out / c.set / f"seed-{c.seed}", c.identity)}
    except (OSError, ValueError, TypeError):
        return {}


def _write(out: Path, cells: Sequence[Cell]) -> None:
    """Writes the figures and the table; of cells with the same set and seed the last."""
    cells = list({(cell.set, cell.seed): cell for cell in cells}.values())
    lines = results_table(cells)
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    markdown = "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]]) + "\n"
    tags = ["th", *["td"] * len(lines)]
    head, *body = (
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line) + "</tr>"
        for tag, line in zip(tags, lines, strict=False)
    )
    page = Template(_PAGE.read_text("utf-8")).substitute(head=head, rows="\n".join(body))
    written = json.dumps([vars(cell) for cell in cells], indent=1)
    for name, text in ((RESULTS, written), (MARKDOWN, markdown), (PAGE, page)):
        with atomic_write(out / name) as path:
            path.write_text(text, encoding="utf-8")


def _command(arguments: Mapping[str, Any]) -> str:
    words = ["ctxrep", "glue"]
    for name, value in arguments.items():
        if value is not None:
            flag = name.replace("_", "-")
            words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return shlex.join(words)
