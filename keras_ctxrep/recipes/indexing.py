"""Search indexes of texts: made from files, opened with their encoder, and asked questions through a reader."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.checks import printable
from keras_ctxrep.inference.engines import open_engine
from keras_ctxrep.inference.model import Model, load
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.options import KERAS, Indexing, keywords
from keras_ctxrep.tasks.classify import COLUMNS
from keras_ctxrep.tasks.reading import Reading, Record
from keras_ctxrep.text import files, index_files
from keras_ctxrep.text.corpus import lines
from keras_ctxrep.text.features import check_texts
from keras_ctxrep.text.index_files import IndexRow, batches_of
from keras_ctxrep.text.retrieval import unit
from keras_ctxrep.text.search import GRAPH_ROWS, Encoder, Hit, Index, build_graph, graph_library, identity
from keras_ctxrep.version import install_hint

__all__ = ["PassageAnswer", "ask", "delete", "index", "open_index", "passages"]

TOGETHER = 512  # texts that are encoded together
NAMES = {"text": (*COLUMNS["text"], "passage", "context", "body", "content"), "id": ("id", "_id")}


class PassageAnswer(NamedTuple):
    """An answer in a passage that was found.

    Attributes:
        answer: the text, a span of the passage.
        score: by how much the span's score, the sum of its start and end logits, exceeds that of no answer there.
        start, end: where it is in the passage, in characters, the end exclusive.
        hit: the passage.
    """

    answer: str
    score: float
    start: int
    end: int
    hit: Hit


@dataclass(frozen=True)
class RowReading(Reading):
    """Reads the rows of an index: a text, an id if there is one, and everything else as it is."""

    def examples(self, record: Record) -> Iterator[IndexRow]:
        text, id = record.text("text"), record.value("id")
        if id is not None and not str(id).strip():
            raise ValueError("an empty id; --columns id=NAME reads another column")
        used = {files.key_of(record.row, self.names(None)[name]) for name in self.columns}
        used |= {key for name in self.columns for key in record.names[name]}
        fields = {str(key): _plain(value) for key, value in record.row.items() if key not in used}
        yield IndexRow(None if id is None else files.checked_text(str(id)), text, record.source, fields)


@keywords(Indexing)
def index(
    sources: Sequence[str | Path],
    encoder: "str | Path | Model",
    out: str | Path,
    progress: Callable[[int], object] = lambda count: None,
    report: Callable[[str], None] = print,
    *,
    options: Indexing,
) -> int:
    """Writes a search index of the texts in files.

    Args:
        sources: files: .tsv and .csv with a header, .jsonl, .json and .parquet, a row each, whose other columns are
            kept; others have a text a line. Plain or compressed.
        encoder: a model folder, a SavedModel, a .tflite file of an encoder, or a published name; or a `Model`.
        out: the folder; it is written whole or not at all.
        progress: called with the number of rows encoded.
        report: called with messages: texts that were left out or cut, and which search a large index has.
        options: or its fields as keywords.

    Returns: the number of rows in the index.

    Raises:
        TypeError: there is no such option.
        ValueError: a row is malformed, an id is there twice, no text is in the files, the encoder gives no vectors, or
            `out` is an index and neither `add` nor `overwrite` is given.
    """
    if isinstance(sources, str | Path):
        raise TypeError(f"sources={str(sources)!r}: one file; give a list of files")
    exists = index_files.is_index(out)
    if exists and not (options.add or options.overwrite):
        raise ValueError(f"{out}: there is an index already; --add adds rows to it, --overwrite replaces it")
    if options.add and not exists:
        raise ValueError(f"{out}: no index to add rows to; leave out --add")
    model = encoder if isinstance(encoder, Model) else load(encoder)
    skipped: list[str] | None = [] if options.skip_bad else None
    rows = chain.from_iterable(_split(row, options) for path in sources for row in _read(path, options, skipped))
    counts = _Counts()
    batches: Iterator[tuple[np.ndarray, Sequence[IndexRow]]] = _encoded(rows, model, progress, counts)
    storage, next_id, made_by, replaces = options.storage or "float32", 0, identity(model), None
    if options.add:
        kept = Index.open(out, model)
        replaces = kept.manifest
        batches = chain(batches_of(kept.vectors, kept.rows), batches)
        storage, next_id, made_by = options.storage or kept.storage, kept.next_id, kept.made_by
    try:
        with model.unread.warning(", ".join(map(str, sources))):
            manifest = index_files.write(out, batches, storage, made_by, next_id, build_graph, replaces)
    except ValueError as error:
        if counts.unread and "no rows" in str(error):
            raise ValueError(f"no text with words in the files: {counts.unread[0]}") from None
        raise
    for title, messages in (("malformed rows left out", skipped or []), ("texts left out", counts.unread)):
        if messages:
            report(files.skipped_rows(messages, title))
    if counts.cut:
        report(f"{counts.cut:,} texts were longer than the model reads, and were cut; --passages N splits them")
    if manifest.rows >= GRAPH_ROWS and graph_library() is None:
        report(f"{out}: every row is compared in a search; for a faster, approximate one {install_hint('search')}")
    return manifest.rows


def delete(out: str | Path, ids: Sequence[str]) -> int:
    """Deletes rows of an index on the disk.

    Returns: the number of rows that are left.

    Raises:
        ValueError: there is no index, or no row with such an id; nothing is deleted then.
    """
    kept = Index.open(out)
    kept.delete(ids)
    if not len(kept):
        raise ValueError(f"{out}: no row would be left; remove the folder")
    kept.save(out)
    return len(kept)


def open_index(folder: str | Path, encoder: "str | Path | Encoder | None" = None, engine: str = KERAS) -> Index:
    """Opens an index, and its encoder.

    Args:
        folder: of the index.
        encoder: as in `index` (default: the one that made it, where it was then).
        engine: of the encoder's folder, as in `inference.model.load`; "auto" encodes a query that comes alone without
            TensorFlow.

    Raises:
        ValueError: there is no index, it is damaged, or its encoder is another one or no longer there.
    """
    if encoder is None:
        name = index_files.manifest_of(folder).encoder.get("name")
        if not isinstance(name, str):
            raise ValueError(f"{folder}: it does not say which encoder made it; give it with --encoder")
        if not Path(name).exists():
            raise ValueError(f"{folder}: its encoder, {printable(name)}, is not there; say with --encoder where it is")
        encoder = name
    return Index.open(folder, load(encoder, engine=engine) if isinstance(encoder, str | Path) else encoder)


def ask(
    index: Index | str | Path, questions: Sequence[str], reader: "str | Path | Model | Predictor", top: int = 5
) -> list[list[PassageAnswer]]:
    """Answers to questions in the texts of an index: a search, then extractive question answering over what it finds.

    Retrieve and read, as DrQA: Chen et al. 2017, https://arxiv.org/abs/1704.00051. Their retriever compares words;
    here it is the index. As there, the reader's scores are not normalized within a passage, so that they can be
    compared across passages. The best answer is that with the largest difference of the score of its span and that of
    no answer in the same passage (Devlin et al. 2018, section 4.3, for one passage); of equal ones that of the better
    hit. A passage in which the reader finds no answer has none here.

    Args:
        index: of passages; or its folder.
        questions: strings.
        reader: a model of the task "answer", in any engine: a folder, a SavedModel or a .tflite file, or one opened.
        top: passages that are read for each question.

    Returns: the answers to each question, one a passage, the best first; [] where there is none.

    Raises:
        ValueError: the reader does not answer questions, or a question has no words.
    """
    questions = check_texts(questions)
    predictor = _reader(reader)
    opened = index if isinstance(index, Index) else open_index(index)
    found = opened.search(questions, top)
    pairs = [(question, hit) for question, hits in zip(questions, found, strict=True) for hit in hits]
    if empty := next((hit for _, hit in pairs if not hit.text), None):
        raise ValueError(f"row {empty.id!r}: it has no text to read an answer from")
    answers = iter(predictor([question for question, _ in pairs], [hit.text for _, hit in pairs]) if pairs else [])
    results = []
    for hits in found:
        read = [(next(answers), hit) for hit in hits]
        spans = [
            PassageAnswer(
                answer["answer"], float(answer["score"] - answer["null_score"]), answer["start"], answer["end"], hit
            )
            for answer, hit in read
            if answer.get("answer")
        ]
        results.append(sorted(spans, key=lambda span: -span.score))  # which keeps the order of equal ones
    return results


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


# ------------------------------------------------------------------------------------------------------------- details


class _Counts:
    """What became of texts: messages of those that were left out, and how many were cut."""

    def __init__(self):
        self.unread: list[str] = []
        self.cut = 0


def _read(path: str | Path, options: Indexing, skipped: list[str] | None) -> Iterator[IndexRow]:
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


def _split(row: IndexRow, options: Indexing) -> Iterator[IndexRow]:
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


def _encoded(
    rows: Iterator[IndexRow], model: Model, progress: Callable[[int], object], counts: _Counts
) -> Iterator[tuple[np.ndarray, list[IndexRow]]]:
    """Batches of vectors and rows; texts without words are left out."""
    done = 0
    while batch := list(islice(rows, TOGETHER)):
        answers = model.encodings([row.text for row in batch])
        counts.unread += [
            f"{row.source}: {answer['error']}" for row, answer in zip(batch, answers, strict=True) if "error" in answer
        ]
        counts.cut += sum("truncated" in answer for answer in answers)
        kept = [(row, answer["vector"]) for row, answer in zip(batch, answers, strict=True) if "error" not in answer]
        done += len(kept)
        if kept:
            yield unit(np.array([vector for _, vector in kept], np.float32), "vector"), [row for row, _ in kept]
        progress(done)


def _reader(reader: "str | Path | Model | Predictor") -> Predictor | Callable[..., list[dict]]:
    """What answers questions, (texts, pairs) -> answers."""
    opened = open_engine(reader).predictor if isinstance(reader, str | Path) else reader
    bundle = opened.bundle
    answers = opened.predict if isinstance(opened, Model) else opened
    if not {"answer", "null_score"} <= tasks.of_model(bundle).outputs.keys():
        raise ValueError(
            f"the reader is a model of the task {bundle.task!r}; one that answers questions is made by "
            "`ctxrep train --task answer`"
        )
    return answers


def _plain(value: Any) -> Any:
    """A value as JSON has it; of other types, as dates of Parquet, their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
