"""Labelled examples of files; every error names file and line."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from keras_ctxrep.text.corpus import OPENERS, lines


@dataclass(frozen=True)
class Example:
    """One labelled sentence or sentence pair, and where it was read: "FILE:LINE"."""

    text: str
    label: str | None = None
    pair: str | None = None
    place: str = field(default="", compare=False)


def read_examples(path: str | Path) -> list[Example]:
    """Labelled examples from a .tsv (with a header) or .jsonl file.

    Columns / keys: `text` (or `sentence`), `label`, and for pairs a second text `pair` (or `sentence2`).

    Raises:
        ValueError: a column is missing, a row has too many or too few fields, a line is not JSON, or the file is empty;
            the message names file, line and value.
    """
    name = Path(path)
    suffix = name.with_suffix("").suffix if name.suffix in OPENERS else name.suffix
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
