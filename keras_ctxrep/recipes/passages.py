"""Texts of files as the rows of a search index: read, split into passages, and encoded."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from keras_ctxrep.inference.model import Model
from keras_ctxrep.options import Indexing
from keras_ctxrep.tasks.classify import COLUMNS
from keras_ctxrep.tasks.reading import Reading, Record
from keras_ctxrep.text import files
from keras_ctxrep.text.corpus import lines
from keras_ctxrep.text.index_files import IndexRow
from keras_ctxrep.text.retrieval import unit

__all__ = ["passages"]

TOGETHER = 512  # texts that are encoded together
NAMES = {"text": (*COLUMNS["text"], "passage", "context", "body", "content"), "id": ("id", "_id")}


@dataclass(frozen=True)
class RowReading(Reading):
    """Reads the rows of an index: a text, an id if there is one, and everything else as it is."""

    def examples(self, record: Record) -> Iterator[IndexRow]:
        text, id = record.text("text"), record.value("id")
        if id is not None and not str(id).strip():
            raise ValueError("an empty id; --columns id=NAME reads another column")
        used = {files.key_of(record.row, self.names(None)[name]) for name in self.columns}
        used |= {key for name in self.columns for key in record.names[name]}
        others = {str(key): value for key, value in record.row.items() if key not in used}
        fields = json.loads(json.dumps(others, default=str))  # as JSON has them; of other types, as dates, their text
        yield IndexRow(None if id is None else files.checked_text(str(id)), text, record.source, fields)


def passages(text: str, words: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Where the passages of a text are, in characters: of so many words, each repeating the end of the one before it.

    Args:
        text: split into words at spaces.
        words: of a passage.
        overlap: words that are repeated, fewer than `words`.

    >>> text = "one two three four five"
    >>> [text[begin:end] for begin, end in passages(text, 3, 1)]
    ['one two three', 'three four five']
    """
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    for first in range(0, max(1, len(spans) - overlap), words - overlap):
        part = spans[first : first + words]
        if part:
            yield part[0][0], part[-1][1]


class Counts:
    """What became of texts: messages of those that were left out, and how many were cut."""

    def __init__(self):
        self.unread: list[str] = []
        self.cut = 0


def read(path: str | Path, options: Indexing, skipped: list[str] | None) -> Iterator[IndexRow]:
    """The rows of a file: of a table or of objects, else its lines or, with passages, its paragraphs."""
    if files.suffix(Path(path)) in files.TABLES or options.columns:
        yield from RowReading(NAMES, ()).read(path, options.columns, skipped)
        return
    paragraph, first = [], 0
    for number, line in chain(lines(path), [(0, "")]):
        if paragraph and not (line.strip() and options.passages):
            yield IndexRow(None, " ".join(paragraph), f"{path}:{first}")
            paragraph = []
        if line.strip():
            first = first if paragraph else number
            paragraph.append(line.strip())


def split(row: IndexRow, options: Indexing) -> Iterator[IndexRow]:
    """The passages of a row; of several, each has its number in the id, and "begin", where in the text it begins."""
    if options.passages is None:
        yield row
        return
    overlap = options.passages // 5 if options.overlap is None else options.overlap
    spans = list(passages(row.text, options.passages, overlap))
    for number, (begin, end) in enumerate(spans):
        if len(spans) == 1:
            yield row
        else:
            id = None if row.id is None else f"{row.id}#{number}"
            yield replace(row, id=id, text=row.text[begin:end], fields={**row.fields, "begin": begin})


def encoded(
    rows: Iterator[IndexRow],
    model: Model,
    progress: Callable[[int], object],
    counts: Counts,
    role: str | None = None,
) -> Iterator[tuple[np.ndarray, list[IndexRow]]]:
    """Batches of vectors and rows; texts without words are left out."""
    done = 0
    while batch := list(islice(rows, TOGETHER)):
        answers = model.encodings([row.text for row in batch], role=role)
        pairs = [*zip(batch, answers, strict=True)]
        counts.unread += [f"{row.source}: {answer['error']}" for row, answer in pairs if "error" in answer]
        counts.cut += sum("truncated" in answer for answer in answers)
        kept = [(row, answer["vector"]) for row, answer in pairs if "error" not in answer]
        done += len(kept)
        if kept:
            yield unit(np.array([vector for _, vector in kept], np.float32), "vector"), [row for row, _ in kept]
        progress(done)
