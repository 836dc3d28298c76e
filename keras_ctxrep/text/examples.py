"""Reading text: corpora of sentences and documents, and labelled examples; every error names file and line."""

import bz2
import gzip
import json
import lzma
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

BLOCK = 10  # sentences that are held out together
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass(frozen=True)
class Example:
    """One labelled sentence or sentence pair, and where it was read: "FILE:LINE"."""

    text: str
    label: str | None = None
    pair: str | None = None
    place: str = field(default="", compare=False)


def open_binary(path: str | Path) -> IO[bytes]:
    """A file's bytes; .gz, .bz2 and .xz are decompressed as they are read."""
    return _OPENERS.get(Path(path).suffix, open)(path, "rb")


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
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file cannot be read at all
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


def hold_out(documents: Iterable[list[str]], share: float = 0.1, seed: int = 0) -> tuple[list, list]:
    """Documents to train on and documents held out, in the order of the corpus.

    Whole blocks of up to 10 sentences are held out, so that a corpus of a single document can be split, and what
    follows what stays true within a block. A sentence that occurs twice is kept only where it comes first, so that
    none stands on both sides.

    Raises:
        ValueError: too little text to hold any out.
    """
    seen: set[str] = set()
    blocks = []
    for number, document in enumerate(documents):
        fresh = [sentence for sentence in document if not (sentence in seen or seen.add(sentence))]
        blocks.extend((number, fresh[i : i + BLOCK]) for i in range(0, len(fresh), BLOCK))
    chosen = set(random.Random(seed).sample(range(len(blocks)), round(share * len(blocks))))
    if not chosen:
        raise ValueError(f"the corpus has {len(blocks)} blocks of {BLOCK} sentences: too few to hold {share:.0%} out")
    kept: list[list[str]] = []
    before = None  # the document of the block before, if that was kept: neighbours stay together
    for index, (number, block) in enumerate(blocks):
        if index in chosen:
            before = None
        elif number == before:
            kept[-1].extend(block)
        else:
            kept.append(list(block))
            before = number
    return kept, [block for index, (_, block) in enumerate(blocks) if index in chosen]


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
        for value in (text, label, pair):
            if isinstance(value, str) and not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
                raise ValueError(f"{path}:{number}: half a surrogate pair, which is no character, in {value[:60]!a}")
        examples.append(Example(text, None if label in (None, "") else str(label), pair, f"{path}:{number}"))
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
        except (ValueError, RecursionError) as error:  # too long a number, too deep a nesting
            raise ValueError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(
                f'{path}:{number}: {type(row).__name__}; each line is an object {{"text": ..., "label": ...}}'
            )
        yield number, row


def _tsv_rows(path: str | Path) -> Iterator[tuple[int, dict]]:
    header: list[str] | None = None
    for number, line in lines(path):
        fields = line.split("\t") if line else []
        if header is None:
            header = fields
            if not {"text", "sentence", "sentence1"} & set(header):
                raise ValueError(f"{path}:{number}: the header must name a column 'text'; found {header}")
        elif fields:
            if len(fields) != len(header):
                raise ValueError(f"{path}:{number}: {len(fields)} fields where the header has {len(header)}: {header}")
            yield number, dict(zip(header, fields, strict=True))
