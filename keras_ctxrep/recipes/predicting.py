"""The answers to the lines of a text or the rows of a file, written as JSON lines or as a table."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple

from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.options import Prediction
from keras_ctxrep.recipes.predicting_parts import json_line, predict_parts
from keras_ctxrep.recipes.reading import read_unlabelled
from keras_ctxrep.tasks import Task
from keras_ctxrep.tasks.abilities import LabelsWords
from keras_ctxrep.text import files
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import available_lines

__all__ = ["predict"]


class Answered(NamedTuple):
    """A row of a file, its example and the answer to it; of a line of text its texts by name, and no example."""

    row: Mapping[str, Any]
    example: Any
    answer: dict


def predict(
    artifact: str | Path,
    source: str | Path | IO[bytes],
    out: str | Path | IO[str],
    options: Prediction | None = None,
    rows: bool = False,
    threads: int | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Writes the answers of a model to the lines of a text, or to the rows of a file, as soon as there is one.

    With several processes or a runner, the answers to lines are written to a folder, as in
    `predicting_parts.predict_parts`.

    Args:
        artifact: a model folder, a SavedModel or a .tflite file, which is run without TensorFlow.
        source: text, a line each as `Predictor.lines` reads it, plain or compressed; with `rows` a file in one of the
            formats of `Reading.read`, whose rows need no label, or "tfds:NAME:SPLIT".
        out: the file to write, which is there whole or not at all, or a stream; with several processes or a runner the
            folder.
        options: columns and format; without a format tables are written to a .tsv or .csv file, JSON lines elsewhere.
        rows: whether `source` has rows. Their own fields are written beside the prediction.
        threads: of LiteRT; None: one for a .tflite file, all cores with engine="auto".
        report: called with messages about rows that are left out, cut, or without an answer.

    Raises:
        ValueError: the artifact cannot be opened or has no answers, `out` is a file that is read, a row is malformed or
            is a pair of texts where the model reads one, or the other way round, or nothing was answered.
    """
    options = options or Prediction()
    if options.in_parts:
        if rows or not isinstance(out, str | Path) or options.format not in (None, "jsonl"):
            raise ValueError("several processes and runners read lines, and write a folder of JSON lines: name one")
        predict_parts(artifact, source, out, options, threads or 1, report)
        return
    if isinstance(out, str | Path):
        for path in (artifact, source):
            if isinstance(path, str | Path) and os.path.realpath(path) == os.path.realpath(out):
                raise ValueError(f"{out}: it is read, and would be replaced; give --out another name")
    predictor = open_model(artifact, options.engine, threads, options.search).answer
    skipped: list[str] | None = [] if options.skip_bad else None
    if rows:
        examples = read_unlabelled(predictor.task, str(source), options.columns, skipped)
        answers = predictor.answered_rows(examples, skipped)
        entries = _of_rows(answers, skipped, report)
    else:
        answers = predictor.answered_lines(available_lines(source))
        entries = _of_lines(answers, predictor.bundle, source, report)
    form = options.format or next((name for name in ("tsv", "csv") if str(out).endswith(f".{name}")), "jsonl")
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
        report(message)
    if not answered:
        raise ValueError(f"{name}: nothing in it was answered: {first}")


def _of_lines(answers: Iterator, bundle: Bundle, source: Any, report: Callable[[str], None]) -> Iterator[Answered]:
    """The answers to lines; of a file that looks like one of rows, that it is not read as one is reported."""
    names = ("text", "pair")[: 1 + bundle.pairs]
    suffixes = {*files.TABLES} - ({".tsv"} if bundle.reads.pair else set())
    if isinstance(source, str | Path) and files.suffix(Path(source)) in suffixes and not bundle.reads.marks:
        report(f"{source}: read line by line; --data {source} reads its rows")
    for line, answer in answers:
        texts = zip_longest(names, line.split("\t", len(names) - 1), fillvalue="")
        yield Answered(dict(texts), None, answer)


def _of_rows(answers: Iterator, skipped: list[str] | None, report: Callable[[str], None]) -> Iterator[Answered]:
    """The answers to rows; what is wrong with rows is reported in the end."""
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


def as_json(task: Task) -> Callable[[Answered], str]:
    """A function to a line of JSON: of a row its own fields, or its source if it has none, and "prediction"."""

    def line(entry: Answered) -> str:
        content = entry.answer
        if entry.example is not None:
            fields = task.own_fields(entry.row) or {"source": entry.example.source}
            content = {**fields, _free("prediction", fields): entry.answer}
        return json_line(content)

    return line


def as_table(task: Task, form: str) -> Callable[[Answered], str]:
    """A function to lines of a table, the first time with a header; of a CoNLL sentence its words and their labels.

    The columns are those of the first row and those of `Task.cells`. With the form "csv" they are separated by commas,
    with quotes as in RFC 4180; with "tsv" by tabs, and tabs and line ends within a value become spaces.
    """
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
