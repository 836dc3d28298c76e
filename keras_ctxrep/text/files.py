"""Readers of .jsonl, .tsv, .csv, Parquet, CoNLL and SQuAD files, plain or compressed, with line numbers.

The readers do not depend on a task: a row is a line number for messages and a function that returns its values by name,
or raises a ValueError if the row is malformed.
"""

import csv
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import ne
from pathlib import Path
from typing import Any

from keras_ctxrep.checks import JSONDecoder, errors_of
from keras_ctxrep.text.corpus import OPENERS, byte_lines, decoded, open_binary, raw_lines

__all__ = [
    "FileRows",
    "Sentence",
    "Token",
    "conll",
    "named_rows",
    "objects",
    "skipped_rows",
    "squad",
    "suffix",
    "table",
]

# (line number, function that returns the row's values by name or raises a ValueError)
FileRows = Iterator[tuple[int, Callable[[], Mapping[str, Any]]]]


def skipped_rows(messages: Sequence[str], title: str = "malformed rows left out") -> str:
    """A message with the number of skipped rows and the errors of the first 20.

    Args:
        messages: an error of each skipped row.
        title: what comes before the number.

    >>> print(skipped_rows(["a.tsv:3: no label"]))
    malformed rows left out: 1
      a.tsv:3: no label
    """
    rest = [f"and {len(messages) - 20:,} more"] if len(messages) > 20 else []
    return "\n  ".join([f"{title}: {len(messages):,}", *messages[:20], *rest])


class MalformedRow(ValueError):
    """An error in a row, on a line other than its first."""

    def __init__(self, message: str, line: int):
        super().__init__(message)
        self.line = line


_DECODER = JSONDecoder()
TABLES = (".tsv", ".csv", ".json", ".jsonl", ".parquet", ".conll")  # suffixes of files with rows of a task


def suffix(path: Path) -> str:
    """The suffix of a file in lower case, without that of its compression.

    >>> suffix(Path("train.TSV.gz"))
    '.tsv'
    """
    return (path.with_suffix("") if path.suffix.lower() in OPENERS else path).suffix.lower()


def key_of(keys: Collection[Any], names: Sequence[str]) -> str | None:
    """The first of some names that is among the keys; else the only key that equals one of them but for case.

    Args:
        keys: those of a row.
        names: in the order in which they are looked for.

    >>> key_of(["id", "Text"], ["text", "sentence"]), key_of(["TEXT", "Text"], ["text"])
    ('Text', None)
    """
    for name in names:
        if name in keys:
            return name
    folded = {name.casefold() for name in names}
    similar = [key for key in keys if isinstance(key, str) and key.casefold() in folded]
    return similar[0] if len(similar) == 1 else None


def objects(path: Path) -> FileRows:
    """The objects of a file with one JSON object per line, or of one with an array of objects."""
    lines = byte_lines(path)
    first: list[tuple[int, bytes]] = []
    begin = b""
    for number, raw in lines:
        first.append((number, raw))
        begin += raw.strip()
        if len(begin) > 1:
            break
    if _ARRAY.match(begin.decode("utf-8", "replace")):
        yield from _array(path, _whole_text(path))
        return
    yield from ((number, partial(json_object, raw)) for number, raw in chain(first, lines) if raw.strip())


_ARRAY = re.compile(r"\s*\[\s*(?=\{)")  # the begin of an array of objects


def _array(path: Path, text: str) -> FileRows:
    """The objects of a JSON array, with their lines."""
    begin = _ARRAY.match(text)
    line, counted, last = 1, 0, 0
    for start, end, value in _elements(path, text, begin.end() if begin else 0, "an object"):
        line, counted, last = line + text.count("\n", counted, start), start, end
        yield line, partial(_checked_object, value)
    close = text.index("]", last)
    if rest := text[close + 1 :].strip():
        line += text.count("\n", counted, close)
        raise ValueError(f"{path}:{line}: not JSON: the array is followed by {rest[:20]!r}")


def _elements(path: Path, text: str, position: int, kind: str) -> Iterator[tuple[int, int, Any]]:
    """(begin, end, value) of each element of a JSON array, parsed one at a time.

    The first element, or the closing bracket, is at a position of the text; messages name the kind of an element.
    """
    while text[position : position + 1] != "]":
        value, end = _element(path, text, position)
        yield position, end, value
        gap = re.compile(r"\s*(,\s*|(?=\]))").match(text, end)
        if gap is None:
            line = text.count("\n", 0, end) + 1
            raise ValueError(f"{path}:{line}: not JSON: {kind} is followed by {text[end : end + 20]!r}")
        position = gap.end()


def _element(path: Path, text: str, position: int) -> tuple[Any, int]:
    """The value that begins at a position, and its end."""
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None


def named_rows(path: Path) -> FileRows | None:
    """The rows of a .json, .jsonl or .parquet file, which are values by name; None of other files."""
    kind = suffix(path)
    return objects(path) if kind in (".json", ".jsonl") else _parquet(path) if kind == ".parquet" else None


def _parquet(path: Path) -> FileRows:
    """The rows of a Parquet file, which have numbers and no lines."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"{path}: Parquet is read by pyarrow, which is missing: pip install pyarrow ({error})"
        ) from None
    with open_binary(path) as file:
        try:
            batches = parquet.ParquetFile(file).iter_batches()
            rows: Any = enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1)
            yield from ((f" row {number}", partial(_present, row)) for number, row in rows)  # pyright: ignore[reportReturnType]
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path}: no readable Parquet file: {str(error).splitlines()[0]}") from None


def _present(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if is_missing(value) else value for name, value in row.items()}


def is_missing(value: Any) -> bool:
    """Whether a value of a table stands for none: None, NaN, and the NA and NaT of pandas.

    >>> is_missing(float("nan")), is_missing("nan"), is_missing([])
    (True, False, False)
    """
    if isinstance(value, str | list | dict):
        return False
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # no truth value: an array, or the NA of pandas
        return type(value).__name__ == "NAType"


def _cells(raw: bytes | list[str] | csv.Error) -> list[str]:
    """The fields of a line with tabs, or of the record of a .csv file; a ValueError if it is no UTF-8, or no record."""
    if isinstance(raw, csv.Error):
        remedy = "" if "new-line" in str(raw) else "; a field with quotes in it stands in quotes, and these are doubled"
        raise ValueError(f"not CSV: {raw}{remedy}")
    if isinstance(raw, bytes):
        return decoded(raw).split("\t")
    return [decoded(field.encode("utf-8", "surrogateescape")) for field in raw]


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """The records of a file as in RFC 4180, and the line where each begins; empty lines are left out.

    Commas or semicolons separate the fields, whichever the first line has more of outside quotes, or first.
    """
    lines = map(_csv_line, (raw for _, raw in raw_lines(path, _old_mac_csv)))
    first = next(lines, "")
    csv.field_size_limit((1 << 31) - 1)  # else 131,072 characters
    try:
        fields = {mark: next(csv.reader([first], delimiter=mark), []) for mark in ",;"}
    except csv.Error as error:
        yield 1, error
        return
    separator = max(fields, key=lambda mark: (len(fields[mark]), -first.find(mark)))
    reader = csv.reader(chain([first], lines), delimiter=separator, strict=True)
    begin = 1
    while True:
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield begin, error
        else:
            if record:
                yield begin, record
        begin = reader.line_num + 1


def _csv_line(raw: bytes) -> str:
    """A line with its end, which is "\\r" in a file of an old Mac alone, as a field may have it."""
    return raw.rstrip(b"\r\n").decode("utf-8", "surrogateescape") + ("\r" if raw.endswith(b"\r") else "\n")


def _old_mac_csv(first: bytes) -> bool:
    """Whether a first line has an end within it, outside quotes: its fields may hold a "\\n" of their own."""
    return b"\r" in re.sub(rb'"[^"]*("|$)', b"", first.rstrip(b"\r\n"))


def table(path: Path, names: Mapping[str, Sequence[str]], columns: Mapping[str, str]) -> FileRows:
    """The rows of a file with a header: a .csv file as in RFC 4180; others tab-separated, and quotes are text.

    A .csv file whose first line has a tab is tab-separated too. A .txt file without `columns` and without a header with
    tabs is read as one text per line, under the first of `names`.

    Args:
        path: the file.
        names: field -> the column names it may have; the first field is required. A number among the names is that of
            a column in a file without a header; it is used if the header has none of the first field's names.
        columns: field -> its column's name in this file, or its number from "1" on; with numbers the file has no
            header, and may have more columns, and a row has all of its columns under their numbers.

    Case is ignored in names where only one column is meant.

    Raises:
        ValueError: the header lacks a column or has it twice.
    """
    tabs = suffix(path) != ".csv" or b"\t" in next(raw_lines(path, _old_mac_csv), (1, b""))[1]
    lines: Iterator[tuple[int, Any]] = byte_lines(path) if tabs else _csv_rows(path)
    needed, plain = next(iter(names)), suffix(path) == ".txt"
    numbers = _numbers(path, columns)
    if numbers is not None:
        width = max(numbers.values()) + 1
        yield from ((number, partial(_number, raw, width)) for number, raw in lines if raw)
        return
    for number, raw in lines:
        with errors_of(f"{path}:{number}"):
            header = _cells(raw)
        number_of_text = next((name for name in names[needed] if name.isdecimal()), None)
        if number_of_text is not None and needed not in columns and key_of(header, names[needed]) is None:
            yield from (
                (at, partial(_number, line, int(number_of_text))) for at, line in chain([(number, raw)], lines) if line
            )
            return
        if plain and not columns and (len(header) < 2 or key_of(header, names[needed]) is None):
            yield number, partial(_line, raw, needed)
            yield from ((number, partial(_line, raw, needed)) for number, raw in lines if raw.strip())
            return
        _check_header(f"{path}:{number}", header, names, columns, lines)
        yield from ((number, partial(_fields, raw, header)) for number, raw in lines if raw)


def _check_header(
    where: str, header: list[str], names: Mapping[str, Sequence[str]], columns: Mapping[str, str], lines: Iterator
) -> None:
    """Raises a ValueError for a header that does not fit; the next of the lines shows which column is long."""
    if missing := [name for name in columns.values() if key_of(header, [name]) is None]:
        raise ValueError(f"{where}: the header has no column {missing[0]!r}; found {header}")
    used = {*columns.values(), *(alias for aliases in names.values() for alias in aliases)}
    if twice := [name for name in header if name in used and header.count(name) > 1]:
        raise ValueError(f"{where}: the header has {twice[0]!r} twice")
    needed, *others = names
    if needed in columns or key_of(header, names[needed]) is not None:
        return
    message = f"{where}: the header must name a column {needed!r}; found {header}"
    if len(header) == 1 and "," in header[0]:
        raise ValueError(f"{message}; fields are separated by tabs, and by commas in a file that is named .csv")
    claimed = {columns[name] if name in columns else key_of(header, names[name]) for name in others}
    free = [name for name in header if name and name not in claimed]
    try:
        first = _cells(next(lines, (0, b""))[1])
    except ValueError:
        first = []
    values = dict(zip(header, first, strict=False))
    longest = max(free or ["NAME"], key=lambda name: len(values.get(name, "")))  # most likely the text
    # sentence_A and sentence_B, question1 and question2: most likely a pair
    alike = [name for name in free if len(name) == len(longest) and sum(map(ne, name, longest)) < 2]
    proposed = (
        dict(zip((needed, "pair"), alike, strict=False)) if "pair" in others and len(alike) == 2 else {needed: longest}
    )
    raise ValueError(
        f"{message}. Give its name, e.g. --columns {' '.join(f'{f}={quoted(name)}' for f, name in proposed.items())}, "
        f"or, if the file has no header, its number: --columns {needed}=1. Known without it: {', '.join(names[needed])}"
    )


def quoted(name: str) -> str:
    """A name as it is written in a shell."""
    return name if re.fullmatch(r"[\w.:/-]+", name) else f'"{name}"'


def _line(raw: bytes, name: str) -> dict[str, str]:
    return {name: decoded(raw)}


def _fields(raw: Any, names: Sequence[str]) -> dict[str, str]:
    fields = _cells(raw)
    if len(fields) != len(names):
        raise ValueError(f"{len(fields)} fields where the header has {len(names)}: {list(names)}")
    return {name: value for name, value in zip(names, fields, strict=True) if name}


def _number(raw: Any, width: int) -> dict[str, str]:
    fields = _cells(raw)
    if len(fields) < width:
        raise ValueError(f"{len(fields)} fields where column {width} is needed")
    return {str(number): value for number, value in enumerate(fields, 1)}


class Token(tuple[str, ...]):
    """The columns of one word of a CoNLL file, and its line."""

    line: int

    def __new__(cls, columns: Sequence[str], line: int):
        token = super().__new__(cls, columns)
        token.line = line
        return token


def conll(path: Path, header: Collection[str] | None = None) -> Iterator[tuple[int, Callable[[], list[Token]]]]:
    """(number of its first line, function that returns its tokens) of each sentence of a CoNLL file.

    One word per line; its columns are separated by tabs if the line has any, so that a word may hold a space, else by
    spaces; an empty line between sentences. Lines "-DOCSTART- ..." are skipped, and so are comments: "# ..." whose
    number of columns or separator is not that of the words. All words of a sentence have the same number of columns.

    Args:
        path: the file.
        header: names of columns, in lower case, of which at most one is in the first line, and all sentences have the
            same number of columns; None: neither is checked.

    Raises:
        ValueError: the first line is a header.
    """
    width = 0  # of the first sentence
    shape = (0, True)  # of the last sentence: the number of columns, and whether tabs separate them
    block: list[tuple[int, bytes]] = []

    def sentence() -> Iterator[tuple[int, Callable[[], list[Token]]]]:
        nonlocal shape, width
        lines = [(number, fields, (len(fields), b"\t" in raw)) for number, raw in block for fields in [_split(raw)]]
        shape = next((line_shape for _, fields, line_shape in lines if fields[0][:1] != b"#"), shape)
        words = [
            (number, fields)
            for number, fields, line_shape in lines
            if fields[0] != b"-DOCSTART-" and (fields[0] != b"#" or line_shape == shape)
        ]
        if words:
            number, first = words[0]
            names = [field.decode(errors="replace").casefold() for field in first]
            allowed = 0 if any(" " in name for name in names) else 1  # a word has no space, and may be "text"
            if header and not width and sum(name in header for name in names) > allowed:
                raise ValueError(
                    f"{path}:{number}: a header, as in a table with a text in each row; this task reads CoNLL columns, "
                    "a word a line without a header, an empty line between sentences"
                )
            width = (width if header else 0) or len(first)
            yield words[0][0], partial(_tokens, words, width)
        block.clear()

    for number, raw in byte_lines(path):
        if raw.strip():
            block.append((number, raw))
        else:
            yield from sentence()
    yield from sentence()


def conll_columns(path: Path, columns: Mapping[str, str]) -> dict[str, int]:
    """The column indices, from 0 on, of the fields of a CoNLL file.

    Args:
        path: the file, for the message.
        columns: field -> number of its column, from "1" on.

    Raises:
        ValueError: a column is not a number.
    """
    numbers = _numbers(path, columns)
    if columns and numbers is None:
        raise ValueError(f"{path}: columns {dict(columns)}: those of a CoNLL file are numbers from 1 on")
    return numbers or {}


class Sentence(dict[str, Any]):
    """The row of a CoNLL sentence: values by name, and the columns of its words.

    Attributes:
        tokens: of all words.
    """

    def __init__(self, tokens: Sequence[Token], **values: Any):
        super().__init__(values)
        self.tokens = tokens


def _tokens(words: list[tuple[int, list[bytes]]], width: int) -> list[Token]:
    tokens = []
    for line, fields in words:
        if len(fields) != width:
            raise MalformedRow(f"{len(fields)} columns where the words before have {width}", line)
        try:
            tokens.append(Token([decoded(field) for field in fields], line))
        except ValueError as error:
            raise MalformedRow(str(error), line) from None
    return tokens


def column(tokens: Sequence[Token], number: int) -> list[str]:
    """One column of a sentence.

    Args:
        tokens: the rows of the sentence.
        number: of the column, from 0 on.

    Raises:
        ValueError: there are fewer columns, or the column of a word is empty.
    """
    for token in tokens:
        if number >= len(token):
            raise MalformedRow(f"{len(token)} columns; column {number + 1} is needed", token.line)
        if not token[number].strip():
            raise MalformedRow(f"column {number + 1} is empty", token.line)
    return [token[number] for token in tokens]


def _split(raw: bytes) -> list[bytes]:
    """Splits a line at tabs if there are any, so that a word may hold a space, else at spaces."""
    raw = raw.rstrip(b" \t")
    return raw.split(b"\t") if b"\t" in raw else re.split(b" +", raw.lstrip(b" "))


def _whole_text(path: Path) -> str:
    raw = b"\n".join(line for _, line in byte_lines(path))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8 (byte {error.start} of the file: {error.reason})") from None


def squad(path: Path, keys: Sequence[str]) -> FileRows:
    """The questions of an official SQuAD file, parsed one article at a time, or of a file of objects, as in `objects`.

    Args:
        path: FILE.json.
        keys: if the first object of the file begins with one of these keys, there is one object per line; as there is
            if the first line is an object and there is no "data".
    """
    text = _whole_text(path)
    if _ARRAY.match(text):
        yield from _array(path, text)
        return
    first_key = re.match(r'\s*\{\s*"([^"]*)"', text)
    data_key = re.search(r'"data"\s*:\s*\[\s*', text)
    first_line = text.lstrip().partition("\n")[0].rstrip()
    if first_key is not None and (first_key[1] in keys or (data_key is None and first_line.endswith("}"))):
        yield from objects(path)
        return
    if data_key is None:
        raise ValueError(f'{path}:1: neither the JSON of SQuAD, {{"data": [...]}}, nor an object a line')
    line, counted, last = 1, 0, data_key.end()
    for position, end, article in _elements(path, text, last, "an article"):
        last = end
        for row in _article(article):
            position = max(position, text.find(json.dumps(row.get("id"), ensure_ascii=False), position, end))
            line, counted = line + text.count("\n", counted, position), position
            yield line, partial(_question, row)
    articles = slice(data_key.end(), text.index("]", last))
    around = text[: articles.start] + "\n" * text[articles].count("\n") + text[articles.stop :]
    _element(path, around, len(text) - len(text.lstrip()))


def _article(article: Any) -> Iterator[dict]:
    try:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                yield row | {"context": paragraph["context"]}
    except (TypeError, KeyError) as error:
        problem = f"it lacks {error}" if isinstance(error, KeyError) else "a value in it has another type"
        yield {"malformed": f'not an article of SQuAD, {{"paragraphs": [{{"context", "qas"}}]}}: {problem}'}


def _question(row: dict) -> dict:
    if "malformed" in row:
        raise ValueError(row["malformed"])
    return row


def checked_text(text: str) -> str:
    """Returns the text; raises if it contains half a surrogate pair, which is not a character."""
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"half a surrogate pair, which is no character, in {text[:60]!a}")
    return text


def json_object(raw: bytes) -> dict:
    """Parses the JSON object of a line."""
    text = decoded(raw)
    try:
        row = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # a number too long, nesting too deep
        raise ValueError(f"not JSON: {error}") from None
    return _checked_object(row)


def _checked_object(row: Any) -> dict:
    if not isinstance(row, dict):
        raise ValueError(f'{type(row).__name__}; each line is an object such as {{"text": ..., "label": ...}}')
    return row


def _numbers(path: Path, columns: Mapping[str, str]) -> dict[str, int] | None:
    """The column indices, from 0 on, if the columns are given as numbers; None if they are names."""
    if not columns or not any(str(column).isdecimal() for column in columns.values()):
        return None
    if not all(str(column).isdecimal() and int(column) > 0 for column in columns.values()):
        raise ValueError(f"{path}: columns {dict(columns)}: all are names, or all are numbers from 1 on")
    return {name: int(column) - 1 for name, column in columns.items()}
