"""`ctxrep predict`: the answers to the lines of a text or the rows of a file, as JSON lines or as a table."""

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_ctxrep import options
from keras_ctxrep.commands.command import Command, Usage, argument, function, in_python
from keras_ctxrep.commands.printing import output, print_report
from keras_ctxrep.options import AnyPath

if TYPE_CHECKING:
    from keras_ctxrep.tasks import Task
    from keras_ctxrep.text.bundle import Bundle

__all__ = ["Predict", "predict"]


class Answered(NamedTuple):
    """A row of a file, its example and the answer to it; of a line of text its texts by name, and no example."""

    row: Mapping[str, Any]
    example: Any
    answer: dict


@dataclass(frozen=True)
class Predict(options.Prediction, Command[None]):
    """Predict line by line.

    Prints one JSON object for each line of input, as soon as it is read: a text, or two with a tab
    between them for a model that reads pairs; JSON for tasks over marked spans. With --data, one for each row
    of a file, with the row's own fields and "prediction"; --format tsv writes a table instead:

      ctxrep predict mine --data unlabelled.tsv --out answered.tsv
      ctxrep predict pairs --data pairs.tsv --columns text=question_a pair=question_b

    The columns that the model was trained from need not be named. A .tflite file runs without TensorFlow. The
    status is 1 if nothing was answered. Many lines are answered in parts, by several processes or on the
    machines of a runner; the same command goes on where it was interrupted:

      ctxrep predict mine.tflite --input lines.txt --processes 8 --out answers
      ctxrep predict mine.tflite --input lines.txt --runner spark --out answers

    Notes:
        In Python, `source` and `out` may be streams, and `rows` says that `source` has rows, as `data`. A file is there
        whole or not at all; with several processes or a runner `out` is a folder, as in
        `predicting_parts.predict_parts`. `report` is called with messages about rows that are left out, cut, or without
        an answer.

    Raises:
        ValueError: the artifact cannot be opened or has no answers, `out` is a file that is read, a row is malformed or
            is a pair of texts where the model reads one, or the other way round, or nothing was answered.
    """

    tensorflow = "artifact"
    artifact: AnyPath = argument("published  a model folder, a SavedModel folder or a .tflite file")
    source: Any = argument("""[--input FILE]  text, a line each, or - for standard input (the default); for a model that
        reads pairs the two texts with a tab between them, for tasks over marked spans a JSON object""")
    out: Any = argument("""[--out FILE] writes  the file to write (default: standard output); with --processes or
        --runner the folder of its parts""")
    rows: bool = in_python(False)
    threads: int | None = argument("[--threads N] >0  of LiteRT (default: 1 of a .tflite file, all of a model folder)")
    report: Callable[[str], None] = in_python(print, prints=print_report)
    data: AnyPath | None = argument("""[--data FILE]  rows instead of lines: the files that `train` and `score` read,
        .tsv or .csv with a header, .jsonl, .parquet, CoNLL or SQuAD's JSON, or tfds:NAME:SPLIT; labels are not needed.
        The row's own fields are written beside the prediction""")

    def __post_init__(self):
        super().__post_init__()
        if self.data is not None and self.source is not None:
            raise Usage("give either --data or --input")
        rows = self.rows or self.data is not None
        if not rows and (self.columns or self.skip_bad):
            raise Usage("--columns and --skip-bad are for the rows of --data; --input is read line by line")
        if self.threads is not None and self.needs_tensorflow():
            raise Usage("--threads is for LiteRT, not for --engine keras; TensorFlow reads TF_NUM_INTRAOP_THREADS")
        if self.in_parts and (rows or not isinstance(self.out, str | Path) or self.format not in (None, "jsonl")):
            raise Usage("--processes and --runner read lines (--input), and write JSON lines: --out FOLDER")

    def run(self) -> None:
        from keras_ctxrep.atomic import atomic_write
        from keras_ctxrep.inference.engines import open_model
        from keras_ctxrep.recipes.predicting_parts import predict_parts
        from keras_ctxrep.recipes.reading import read_unlabelled
        from keras_ctxrep.text.corpus import available_lines

        source, out = self.source if self.data is None else self.data, output() if self.out is None else self.out
        source = sys.stdin.buffer if source in (None, "-") else source
        if self.in_parts:
            predict_parts(self.artifact, source, out, self, self.threads or 1, self.report)
            return
        if isinstance(out, str | Path):
            for path in (self.artifact, source):
                if isinstance(path, str | Path) and os.path.realpath(path) == os.path.realpath(out):
                    raise ValueError(f"{out}: it is read, and would be replaced; give --out another name")
        predictor = open_model(self.artifact, self.engine, self.threads, self.search).answer
        skipped: list[str] | None = [] if self.skip_bad else None
        if self.rows or self.data is not None:
            examples = read_unlabelled(predictor.task, str(source), self.columns, skipped)
            answers = predictor.answered_rows(examples, skipped)
            entries = _of_rows(answers, skipped, self.report)
        else:
            answers = predictor.answered_lines(available_lines(source))
            entries = _of_lines(answers, predictor.bundle, source, self.report)
        form = self.format or next((name for name in ("tsv", "csv") if str(out).endswith(f".{name}")), "jsonl")
        to_text = as_table(predictor.task, form) if form != "jsonl" else as_json(predictor.task)
        answered, first = 0, "the input is empty"
        with ExitStack() as stack:
            if isinstance(out, str | Path):
                stream = stack.enter_context(open(stack.enter_context(atomic_write(out)), "w", encoding="utf-8"))
            else:
                stream = out
            for entry in entries:
                entry = entry if form != "jsonl" else entry._replace(answer=predictor.typed(entry.answer))
                print(to_text(entry), end="", file=stream, flush=stream is out)
                first = entry.answer["error"] if not answered and "error" in entry.answer else first
                answered += "error" not in entry.answer
        name = str(source) if isinstance(source, str | Path) else "standard input"
        if message := predictor.unread.message(name):
            self.report(message)
        if not answered:
            raise ValueError(f"{name}: nothing in it was answered: {first}")


predict = function(Predict, "predict")


def _of_lines(answers: Iterator, bundle: "Bundle", source: Any, report: Callable[[str], None]) -> Iterator[Answered]:
    """The answers to lines; of a file that looks like one of rows, that it is not read as one is reported."""
    from keras_ctxrep.text import files

    names = ("text", "pair")[: 1 + bundle.pairs]
    suffixes = {*files.TABLES} - ({".tsv"} if bundle.reads.pair else set())
    if isinstance(source, str | Path) and files.suffix(Path(source)) in suffixes and not bundle.reads.marks:
        report(f"{source}: read line by line; --data {source} reads its rows")
    for line, answer in answers:
        texts = zip_longest(names, line.split("\t", len(names) - 1), fillvalue="")
        yield Answered(dict(texts), None, answer)


def _of_rows(answers: Iterator, skipped: list[str] | None, report: Callable[[str], None]) -> Iterator[Answered]:
    """The answers to rows; what is wrong with rows is reported in the end."""
    from keras_ctxrep.text import files

    errors, cut = [], 0
    for (row, example), answer in answers:
        errors += [f"{example.source}: {answer['error']}"] if "error" in answer else []
        cut += bool(answer.get("truncated"))
        yield Answered(row, example, answer)
    for title, messages in (("malformed rows left out", skipped or []), ("rows without an answer", errors)):
        if messages:
            report(files.skipped_rows(messages, title))
    if cut:
        report(f"{cut:,} texts were longer than the model reads, and were cut")


def as_json(task: "Task") -> Callable[[Answered], str]:
    """A function to a line of JSON: of a row its own fields, or its source if it has none, and "prediction"."""
    from keras_ctxrep.recipes.predicting_parts import json_line

    def line(entry: Answered) -> str:
        content = entry.answer
        if entry.example is not None:
            fields = task.own_fields(entry.row) or {"source": entry.example.source}
            content = {**fields, _free("prediction", fields): entry.answer}
        return json_line(content)

    return line


def as_table(task: "Task", form: str) -> Callable[[Answered], str]:
    """A function to lines of a table, the first time with a header; of a CoNLL sentence its words and their labels.

    The columns are those of the first row and those of `Task.cells`. With the form "csv" they are separated by commas,
    with quotes as in RFC 4180; with "tsv" by tabs, and tabs and line ends within a value become spaces.
    """
    from keras_ctxrep.tasks.abilities import LabelsWords
    from keras_ctxrep.text import files

    header: list[str] = []
    _line = partial(_row, form)

    def line(entry: Answered) -> str:
        if isinstance(entry.row, files.Sentence) and isinstance(task, LabelsWords):
            labels = [label or "_" for label in task.labels_of_words(entry.example, entry.answer)]
            words = zip(entry.row.tokens, labels, strict=True)
            return "".join(_line([*token, label]) for token, label in words) + "\n"
        fields, cells = task.own_fields(entry.row), task.cells(entry.answer)
        first = not header
        if first:
            header.extend(fields)
        values = _line([*(fields.get(name) for name in header), *cells.values()])
        return _line([*header, *(_free(name, fields) for name in cells)]) + values if first else values

    return line


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """A name that a row's own fields do not have."""
    while name in taken:
        name = f"{name}_of_model"
    return name


def _row(form: str, values: list) -> str:
    cells = [*map(_cell, values)]
    if form == "csv":
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        return line.getvalue()
    return "\t".join(" ".join(cell.splitlines()).replace("\t", " ") for cell in cells) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
