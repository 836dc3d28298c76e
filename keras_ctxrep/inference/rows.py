"""The answers to the rows of a file, written beside the rows' own fields as JSON lines or as a table."""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from keras_ctxrep import tasks
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.tasks import Task
from keras_ctxrep.tasks.task import LabelsWords, pair_problem
from keras_ctxrep.text import files

TOGETHER = 256  # rows that are answered together


class Answered(NamedTuple):
    """A row of a file, its example and the answer to it."""

    row: Mapping[str, Any]
    example: Any
    answer: dict


def predict(
    predictor: Predictor,
    data: str | Path,
    columns: Mapping[str, str] | None = None,
    skipped: list[str] | None = None,
) -> Iterator[Answered]:
    """The answers to the rows of a file, in its order; rows need no label, and a label that is there is not read.

    Args:
        predictor: of any engine.
        data: a file in one of the formats of `Reading.read`.
        columns: names of its columns; those that the model was trained from need none.
        skipped: collects a message for each malformed row, which is then left out.

    Raises:
        ValueError: a row is malformed, or is a pair of texts where the model reads one, or the other way round.
    """
    bundle = predictor.bundle
    task = tasks.of_model(bundle)
    rows = task.reading.read_unlabelled(data, columns, skipped)
    while part := list(islice(rows, TOGETHER)):
        fitting = []
        for row, example in part:
            message = pair_problem(task.query(example).pair is not None, bundle.pairs)
            if message is None:
                fitting.append((row, example))
            elif skipped is None:
                raise ValueError(f"{example.source}: {message}")
            else:
                skipped.append(f"{example.source}: {message}")
        answers = predictor.ask([example for _, example in fitting])
        yield from (Answered(row, example, answer) for (row, example), answer in zip(fitting, answers, strict=True))


def as_json(task: Task) -> Callable[[Answered], str]:
    """A function to a line of JSON: the row's own fields, or its source if it has none, and "prediction"."""

    def line(entry: Answered) -> str:
        own = task.own_fields(entry.row) or {"source": entry.example.source}
        return json.dumps({**own, _free("prediction", own): entry.answer}, ensure_ascii=False) + "\n"

    return line


def as_table(task: Task) -> Callable[[Answered], str]:
    """A function to tab-separated lines, the first time with a header; of a CoNLL sentence its words and their labels.

    The columns are those of the first row and those of `Task.cells`; tabs and line ends within a value become spaces.
    """
    header: list[str] = []

    def line(entry: Answered) -> str:
        if isinstance(entry.row, files.Sentence) and isinstance(task, LabelsWords):
            labels = [label or "_" for label in task.labels_of_words(entry.example, entry.answer)]
            words = zip(entry.row.tokens, labels, strict=True)
            return "".join(_line([*token, label]) for token, label in words) + "\n"
        own, cells = task.own_fields(entry.row), task.cells(entry.answer)
        first = not header
        if first:
            header.extend(own)
        values = _line([*(own.get(name) for name in header), *cells.values()])
        return _line([*header, *(_free(name, own) for name in cells)]) + values if first else values

    return line


FORMATS: Mapping[str, Callable[[Task], Callable[[Answered], str]]] = {"jsonl": as_json, "tsv": as_table}


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """A name that a row's own fields do not have."""
    while name in taken:
        name = f"{name}_of_model"
    return name


def _line(values: list) -> str:
    return "\t".join(map(_cell, values)) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return " ".join(text.splitlines()).replace("\t", " ")
