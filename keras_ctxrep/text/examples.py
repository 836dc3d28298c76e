"""Labelled examples of five tasks, read row by row from files; every error names file and line."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from keras_ctxrep.text.corpus import OPENERS, byte_lines
from keras_ctxrep.text.tags import to_iob2


@dataclass(frozen=True)
class Example:
    """A text or a pair of texts, and where it was read: "FILE:LINE".

    Attributes:
        text: what is read.
        label: a class (classify), a number (regress), some classes or none (multilabel); None if it is unknown.
        pair: the second text.
    """

    text: str
    label: str | float | tuple[str, ...] | None = None
    pair: str | None = None
    place: str = field(default="", compare=False)


@dataclass(frozen=True)
class Tagged:
    """A sentence split into words, with a tag for each; those of spans in IOB2."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    place: str = field(default="", compare=False)


@dataclass(frozen=True)
class Question:
    """A question about a text.

    Attributes:
        answers: (answer, the character of the context where it begins); () if the context has none, None if unknown.
    """

    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None = None
    id: str = ""
    place: str = field(default="", compare=False)


# (line number, what gives the row's values by name when it is called, and may then find it malformed)
Rows = Iterator[tuple[int, Callable[[], Mapping[str, Any]]]]

TEXTS = {
    "text": ("text", "sentence", "sentence1", "premise", "question1"),
    "pair": ("pair", "sentence2", "hypothesis", "question2"),
}
# task -> what it reads -> the columns or keys that may hold it, the first of them that is there
NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "classify": TEXTS | {"label": ("label",)},
    "multilabel": TEXTS | {"label": ("labels", "label")},
    "regress": TEXTS | {"label": ("label", "score")},
    "tag": {"text": ("words", "tokens"), "label": ("tags", "labels", "ner_tags", "ner")},
    "answer": {name: (name,) for name in ("question", "context", "answers", "id", "is_impossible")},
}
# task -> the attribute of its examples that holds what is right
GOLD = dict.fromkeys(NAMES, "label") | {"tag": "tags", "answer": "answers"}


def skipped_rows(messages: Sequence[str]) -> str:
    """How many rows were left out, and what is wrong with the first 20 of them.

    >>> print(skipped_rows(["a.tsv:3: no label"]))
    malformed rows left out: 1
      a.tsv:3: no label
    """
    rest = [f"and {len(messages) - 20:,} more"] if len(messages) > 20 else []
    return "\n  ".join([f"malformed rows left out: {len(messages):,}", *messages[:20], *rest])


class _Malformed(ValueError):
    """What is wrong with a row, if it is on a line other than its first."""

    def __init__(self, message: str, line: int):
        super().__init__(message)
        self.line = line


def read(
    task: str, path: str | Path, columns: Mapping[str, str] | None = None, skipped: list[str] | None = None
) -> Iterator[Any]:
    """The examples of a file, one by one: `Tagged` for "tag", `Question` for "answer", else `Example`.

    By the file's suffix, before .gz, .bz2 or .xz:

    - .jsonl, .json: an object a line, {"text", "label", "pair"}, {"words", "tags"} or {"question", "context",
      "answers": [{"text", "start"}], "id"}, and the names that published sets have; for "answer" also the official
      JSON of SQuAD 1.1 and 2.0, https://rajpurkar.github.io/SQuAD-explorer/. Several labels are a list.
    - .txt, unless it has `columns` or a header with tabs: one text a line, without a label.
    - other files for "tag": CoNLL columns, split by tabs, else by spaces; a word a line, the tag last, an empty line
      between sentences. Lines "-DOCSTART- ..." are left out, and those "# ..." that have not the columns of a word.
    - other files: tab-separated with a header; quotes are text. Several labels are separated by commas.

    Args:
        task: "classify", "multilabel", "regress", "tag" or "answer".
        path: the file.
        columns: "text", "pair" or "label" ("question", ... for "answer") -> the column's or key's name in this file, or
            its number from "1" on; a tab-separated file with numbers has no header, and may have columns not used.
        skipped: malformed rows are left out, and what is wrong with each is appended here, instead of raised.

    Raises:
        ValueError: a row is malformed, the file cannot be decompressed, or there is no example in it; the message names
            file and line.
    """
    columns = columns or {}
    check(task, columns)
    return from_rows(task, str(path), _rows(task, Path(path), columns), columns, skipped)


def check(task: str, columns: Mapping[str, str]) -> None:
    """Raises a ValueError unless the task is known and has such columns."""
    if task not in NAMES:
        raise ValueError(f"task {task!r}; one of {', '.join(NAMES)}")
    if unknown := set(columns) - set(NAMES[task]):
        raise ValueError(f"columns {sorted(unknown)}: for the task {task!r} they are {', '.join(NAMES[task])}")


def from_rows(
    task: str, source: str, rows: Rows, columns: Mapping[str, str], skipped: list[str] | None
) -> Iterator[Any]:
    """The examples of rows, those that are malformed raised or left out, as `read` does it.

    Args:
        task: as `read` has it.
        source: what the rows are of, for messages.
        rows: (number, what gives a row's values by name), see `Rows`.
        columns: as `read` has them.
        skipped: as `read` has it.
    """
    count, first = 0, ""
    for number, row in rows:
        try:
            found = example(task, row(), f"{source}:{number}", columns)
        except ValueError as error:
            message = f"{source}:{getattr(error, 'line', number)}: {error}"
            if skipped is None:
                raise ValueError(message) from None
            skipped.append(message)
            first = first or message
        else:
            count += 1
            yield found
    if not count:
        what = f"no row of it can be read; the first: {first}" if first else "no examples in it"
        raise ValueError(f"{source}: {what}")


def example(task: str, row: Mapping[str, Any], place: str = "", columns: Mapping[str, str] | None = None) -> Any:
    """One example from a row's values by name.

    Args:
        task: as `read` has it.
        row: names -> values.
        place: where the row stands; it is not part of the messages.
        columns: as `read` has them.

    Raises:
        ValueError: a value is missing or of the wrong kind.

    >>> example("multilabel", {"sentence": "a red fish", "labels": ["colour", "animal"]}).label
    ('colour', 'animal')
    """

    def value(name: str) -> Any:
        names = (columns[name],) if columns and name in columns else NAMES[task][name]
        return next((row[name] for name in names if row.get(name) is not None), None)

    def text(name: str) -> str:
        found = value(name)
        if not isinstance(found, str) or not found.strip():
            raise ValueError(f"no {name} (key or column {(columns or {}).get(name, name)!r}); found {sorted(row)}")
        return _whole(found)

    if task == "tag":
        return _tagged(value("text"), value("label"), place)
    if task == "answer":
        question, context, key = text("question"), text("context"), value("id")
        try:
            answers = () if value("is_impossible") is True else _answers(value("answers"), context)
        except ValueError as error:
            raise ValueError(f"question {key!r}: {error}" if key is not None else str(error)) from None
        return Question(question, context, answers, "" if key is None else _whole(str(key)), place)
    pair = value("pair")
    if pair is not None and not isinstance(pair, str):
        raise ValueError(f"the pair is {pair!r}; it must be a text")
    return Example(text("text"), _LABELS[task](value("label")), None if pair is None else _whole(pair), place)


def _whole(text: str) -> str:
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"half a surrogate pair, which is no character, in {text[:60]!a}")
    return text


def _class(label: Any) -> str | None:
    if isinstance(label, dict | list | float):
        raise ValueError(f"label {label!r}: a class label is a string or a whole number")
    return None if label in (None, "") else _whole(str(label))


def _classes(label: Any) -> tuple[str, ...] | None:
    if label is None:
        return None
    if isinstance(label, str):  # of a tab-separated file
        label = [part.strip() for part in label.split(",")] if label.strip() else []
    if not isinstance(label, list):
        raise ValueError(f"label {label!r}: several labels are a list")
    found = [_class(one) for one in label]
    if None in found:
        raise ValueError(f"labels {label!r}: one of them is empty")
    return tuple(dict.fromkeys(one for one in found if one is not None))


def _number(label: Any) -> float | None:
    if label is None or label == "":
        return None
    try:
        found = math.nan if isinstance(label, bool) or "_" in str(label) else float(label)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"label {label!r} is not a finite number")
    return found


_LABELS: dict[str, Callable[[Any], Any]] = {"classify": _class, "multilabel": _classes, "regress": _number}


def _tagged(words: Any, tags: Any, place: str) -> Tagged:
    if not isinstance(words, list) or not words:
        raise ValueError(f"words {words!r}: a list of words is needed (key 'words')")
    for word in words:
        if not isinstance(word, str) or not word.strip():
            raise ValueError(f"{word!r} is no word")
        _whole(word)
    if tags is None:
        return Tagged(tuple(words), None, place)
    if not isinstance(tags, list) or len(tags) != len(words):
        raise ValueError(f"{len(words)} words and {len(tags) if isinstance(tags, list) else repr(tags)} tags")
    found = [_class(tag) for tag in tags]
    if None in found:
        raise ValueError(f"word {found.index(None) + 1}, {words[found.index(None)]!r}, has no tag")
    return Tagged(tuple(words), to_iob2([tag for tag in found if tag is not None]), place)


def _answers(answers: Any, context: str) -> tuple[tuple[str, int], ...] | None:
    if answers is None:
        return None
    try:
        if isinstance(answers, dict):
            found = tuple(zip(answers["text"], answers["answer_start"], strict=True))
        else:
            found = tuple((one["text"], one["start"] if "start" in one else one["answer_start"]) for one in answers)
    except (TypeError, KeyError, ValueError):
        raise ValueError(f'answers {str(answers)[:80]}: they are a list of {{"text", "start"}}') from None
    for text, start in found:
        if not isinstance(text, str) or not isinstance(start, int) or not text.strip():
            raise ValueError(f"answer {text!r} at {start!r}: a text and a whole number are needed")
        stands = context[start : start + len(text)] if start >= 0 else ""
        if stands != text:
            raise ValueError(f"answer {text!r} does not stand at character {start} of its context; found {stands!r}")
    return found


def _rows(task: str, path: Path, columns: Mapping[str, str]) -> Rows:
    suffix = path.with_suffix("").suffix if path.suffix in OPENERS else path.suffix
    if suffix == ".json" and task == "answer":
        text = _whole_text(path)
        first_key = re.match(r'\s*\{\s*"([^"]*)"', text)
        if first_key is None or first_key[1] not in {*NAMES[task], *columns.values()}:
            return _squad(path, text)
    if suffix in (".json", ".jsonl"):
        return ((number, partial(_object, raw)) for number, raw in byte_lines(path) if raw.strip())
    if task == "answer":
        raise ValueError(f"{path}: questions are read from .jsonl files and the .json of SQuAD")
    return _sentences(path, columns) if task == "tag" else _table(task, path, suffix == ".txt", columns)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start}: {error.reason})") from None


def _object(raw: bytes) -> dict:
    text = _decode(raw)
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # too long a number, too deep a nesting
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f'{type(row).__name__}; each line is an object such as {{"text": ..., "label": ...}}')
    return row


def _numbers(path: Path, columns: Mapping[str, str]) -> dict[str, int] | None:
    """Columns that are numbers, from 0 on; None if they are names."""
    if not columns or not any(str(column).isdecimal() for column in columns.values()):
        return None
    if not all(str(column).isdecimal() and int(column) > 0 for column in columns.values()):
        raise ValueError(f"{path}: columns {dict(columns)}: all are names, or all are numbers from 1 on")
    return {name: int(column) - 1 for name, column in columns.items()}


def _table(task: str, path: Path, plain: bool, columns: Mapping[str, str]) -> Rows:
    lines = byte_lines(path)
    numbers = _numbers(path, columns)
    if numbers is not None:
        width = max(numbers.values()) + 1
        names = [columns.get(next((name for name, at in numbers.items() if at == i), ""), "") for i in range(width)]
        yield from ((number, partial(_fields, raw, names, True)) for number, raw in lines if raw)
        return
    for number, raw in lines:
        try:
            header = _decode(raw).split("\t")
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        known = {columns["text"]} if "text" in columns else set(NAMES[task]["text"])
        if plain and not columns and not (len(header) > 1 and known & set(header)):
            yield number, partial(_line, raw)
            yield from ((number, partial(_line, raw)) for number, raw in lines if raw.strip())
            return
        if missing := [name for name in columns.values() if name not in header]:
            raise ValueError(f"{path}:{number}: the header has no column {missing[0]!r}; found {header}")
        used = {*columns.values(), *(name for names in NAMES[task].values() for name in names)}
        if twice := [name for name in header if name in used and header.count(name) > 1]:
            raise ValueError(f"{path}:{number}: the header has {twice[0]!r} twice")
        if not known & set(header):
            hint = "; fields are separated by tabs" if len(header) == 1 and "," in header[0] else ""
            raise ValueError(f"{path}:{number}: the header must name a column 'text'; found {header}{hint}")
        yield from ((number, partial(_fields, raw, header)) for number, raw in lines if raw)


def _line(raw: bytes) -> dict[str, str]:
    return {"text": _decode(raw)}


def _fields(raw: bytes, names: Sequence[str], more: bool = False) -> dict[str, str]:
    fields = _decode(raw).split("\t")
    if len(fields) < len(names) or (len(fields) > len(names) and not more):
        wanted = f"column {len(names)} is needed" if more else f"the header has {len(names)}: {list(names)}"
        raise ValueError(f"{len(fields)} fields where {wanted}")
    return {name: value for name, value in zip(names, fields, strict=False) if name}


def _sentences(path: Path, columns: Mapping[str, str]) -> Rows:
    numbers = _numbers(path, columns)
    if columns and numbers is None:
        raise ValueError(f"{path}: columns {dict(columns)}: those of a CoNLL file are numbers from 1 on")
    shape = (0, True)  # how many columns the sentence before has, and whether tabs part them
    block: list[tuple[int, bytes]] = []

    def sentence() -> Rows:
        nonlocal shape
        found = [(number, fields, (len(fields), b"\t" in raw)) for number, raw in block for fields in [_columns(raw)]]
        shape = next((its for _, fields, its in found if fields[0][:1] != b"#"), shape)
        words = [
            (number, fields)
            for number, fields, its in found
            if fields[0] != b"-DOCSTART-" and (fields[0] != b"#" or its == shape)
        ]
        if words:
            yield words[0][0], partial(_columns_of, words, numbers or {}, columns)
        block.clear()

    for number, raw in byte_lines(path):
        if raw.strip():
            block.append((number, raw))
        else:
            yield from sentence()
    yield from sentence()


def _columns(raw: bytes) -> list[bytes]:
    """Split by tabs where there are any, so that a word may hold a space, else by spaces."""
    raw = raw.rstrip(b" \t")
    return raw.split(b"\t") if b"\t" in raw else re.split(b" +", raw.lstrip(b" "))


def _columns_of(
    sentence: list[tuple[int, list[bytes]]], numbers: Mapping[str, int], columns: Mapping[str, str]
) -> dict[str, list[str]]:
    width = len(sentence[0][1])
    word, tag = numbers.get("text", 0), numbers.get("label", width - 1)
    words, tags = [], []
    for line, fields in sentence:
        if len(fields) != width:
            raise _Malformed(f"{len(fields)} columns where the sentence's first word has {width}", line)
        if max(word, tag) >= width:
            raise _Malformed(f"{width} columns; column {max(word, tag) + 1} is needed", line)
        try:
            words.append(_decode(fields[word]))
            tags.append(_decode(fields[tag]))
        except ValueError as error:
            raise _Malformed(str(error), line) from None
        if not words[-1].strip() or not tags[-1].strip():
            raise _Malformed(f"column {(tag if words[-1].strip() else word) + 1} is empty", line)
    found = {columns.get("text", "words"): words}
    return found if word == tag else found | {columns.get("label", "tags"): tags}


def _whole_text(path: Path) -> str:
    raw = b"\n".join(line for _, line in byte_lines(path))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8 (byte {error.start} of the file: {error.reason})") from None


def _squad(path: Path, text: str) -> Rows:
    """Questions of an official SQuAD file, of which one article at a time is parsed."""
    found = re.search(r'"data"\s*:\s*\[\s*', text)
    if found is None:
        raise ValueError(f'{path}:1: neither the JSON of SQuAD, {{"data": [...]}}, nor an object a line')
    line, counted, place = 1, 0, found.end()
    while text[place : place + 1] != "]":
        try:
            article, end = json.JSONDecoder().raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not JSON: {error}") from None
        for row in _article(article):
            place = max(place, text.find(json.dumps(row.get("id"), ensure_ascii=False), place, end))
            line, counted = line + text.count("\n", counted, place), place
            yield line, partial(_given, row)
        gap = re.compile(r"\s*(,\s*|(?=\]))").match(text, end)
        if gap is None:
            line += text.count("\n", counted, end)
            raise ValueError(f"{path}:{line}: not JSON: after an article stands {text[end : end + 20]!r}")
        place = gap.end()


def _article(article: Any) -> Iterator[dict]:
    try:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                yield row | {"context": paragraph["context"]}
    except (TypeError, KeyError) as error:
        yield {"malformed": f'not an article of SQuAD, {{"paragraphs": [{{"context", "qas"}}]}}: {error!r}'}


def _given(row: dict) -> dict:
    if "malformed" in row:
        raise ValueError(row["malformed"])
    return row
