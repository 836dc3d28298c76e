"""Reading text: corpora of sentences and documents, and labelled examples; every error names file and line."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass(frozen=True)
class Example:
    """One labelled sentence or sentence pair."""

    text: str
    label: str | None = None
    pair: str | None = None


def open_binary(path: str | Path) -> IO[bytes]:
    """A file's bytes; .gz, .bz2 and .xz are decompressed as they are read."""
    return _OPENERS.get(Path(path).suffix, open)(path, "rb")  # pyright: ignore[reportReturnType]


def lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """(line number, line) of a UTF-8 text file, without line ends and byte-order mark, plain or compressed.

    Raises:
        ValueError: a line is not UTF-8 or the compressed stream is damaged; the message names file and line.
    """
    number = 0
    try:
        with open_binary(path) as file:
            for number, raw in enumerate(file, 1):
                text = raw.rstrip(b"\r\n").decode("utf-8")
                yield number, text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{number}: not UTF-8 (byte {error.start}: {error.reason})") from None
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}:{number + 1}: damaged compressed file ({error})") from None


def documents(paths: Iterable[str | Path]) -> Iterator[list[str]]:
    """Documents of a corpus, each a list of sentences: one sentence a line, an empty line between documents.

    Raises:
        ValueError: a file holds no text.
    """
    for path in paths:
        document: list[str] = []
        found = False
        for _, line in lines(path):
            line = line.strip()
            if line:
                document.append(line)
                found = True
            elif document:
                yield document
                document = []
        if document:
            yield document
        if not found:
            raise ValueError(f"{path}: no text in it")


def read_examples(path: str | Path) -> list[Example]:
    """Labelled examples from a .tsv (with a header) or .jsonl file.

    Columns / keys: `text` (or `sentence`), `label`, and for pairs a second text `pair` (or `sentence2`).

    Raises:
        ValueError: a column is missing, a row has too many or too few fields, a line is not JSON, or the file is empty;
            the message names file, line and value.
    """
    name = Path(path)
    suffix = name.with_suffix("").suffix if name.suffix in _OPENERS else name.suffix
    rows = _json_rows(path) if suffix in (".jsonl", ".json") else _tsv_rows(path)
    examples = []
    for number, row in rows:
        text = row.get("text", row.get("sentence", row.get("sentence1")))
        label, pair = row.get("label"), row.get("pair", row.get("sentence2"))
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{path}:{number}: no text (key or column 'text'); found {sorted(row)}")
        if pair is not None and not isinstance(pair, str):
            raise ValueError(f"{path}:{number}: the pair is {pair!r}; it must be a text")
        if isinstance(label, (dict, list, float)):
            raise ValueError(f"{path}:{number}: label {label!r}: a class label is a string or a whole number")
        examples.append(Example(text, None if label is None else str(label), pair))
    if not examples:
        raise ValueError(f"{path}: no examples in it")
    return examples


def _json_rows(path: str | Path) -> Iterator[tuple[int, dict]]:
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(row, dict):
            raise ValueError(
                f'{path}:{number}: {type(row).__name__}; each line is an object {{"text": ..., "label": ...}}'
            )
        yield number, row


def _tsv_rows(path: str | Path) -> Iterator[tuple[int, dict]]:
    header: list[str] | None = None
    for number, line in lines(path):
        fields = next(csv.reader(io.StringIO(line), delimiter="\t", quoting=csv.QUOTE_NONE), [])
        if header is None:
            header = fields
            if not {"text", "sentence", "sentence1"} & set(header):
                raise ValueError(f"{path}:{number}: the header must name a column 'text'; found {header}")
        elif fields:
            if len(fields) != len(header):
                raise ValueError(f"{path}:{number}: {len(fields)} fields where the header has {len(header)}: {header}")
            yield number, dict(zip(header, fields, strict=True))
