"""How the examples of a task are read from files: its columns and formats, and the rows that are malformed."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from keras_ctxrep.checks import warn
from keras_ctxrep.text import files

__all__ = ["Reading", "Record"]

Columns = Mapping[str, str]
Skipped = list[str] | None  # gets a message for each malformed row, which is left out; None: the first one is raised
RowExamples = Iterator[tuple[Mapping[str, Any], Any]]  # rows, each with its example
IN_PYTHON = "the data"  # the source of rows that are Python objects, in messages


@dataclass(frozen=True)
class Record:
    """A row, whose values are asked for by the fields of an example.

    Attributes:
        row: values by column or key.
        names: field -> names of the columns or keys that it may have.
        source: "FILE:LINE".
        in_python: whether it is of Python objects, and not of a file.
    """

    row: Mapping[str, Any]
    names: Mapping[str, tuple[str, ...]]
    source: str = ""
    in_python: bool = False

    def value(self, field: str) -> Any:
        """The value of the first column or key present, or None; case is ignored where only one can be meant."""
        names = self.names.get(field, ())
        if any(name in self.row for name in names):
            return next((self.row[name] for name in names if self.row.get(name) is not None), None)
        key = files.key_of(self.row, names)
        return None if key is None else self.row[key]

    def text(self, field: str) -> str:
        """A text that the row must have.

        Raises:
            ValueError: it has none.
        """
        value = self.value(field)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{field} {value!r}: a text is needed, not {type(value).__name__}")
        if value is not None and value.strip():
            return files.checked_text(value)
        if column := files.key_of(self.row, self.names[field]):
            raise ValueError(f"no {field} in column {column!r}; fill it, or leave the row out as skip_bad does")
        raise ValueError(
            f"no {field} (key or column {self.names[field][0]!r}); found {sorted(self.row)}: "
            f"{column_option(field, 'NAME', self.in_python)} gives it another name"
        )

    def label_types(self) -> frozenset[type]:
        """The types of a label of Python objects, or of its parts; none of a file's, whose labels are text."""
        value = self.value("label") if self.in_python else None
        return frozenset(map(type, value if isinstance(value, list) else [] if value is None else [value]))


def column_option(field: str, column: str, in_python: bool) -> str:
    """How the column of a field is named, on the command line or in Python.

    Args:
        field: of an example.
        column: its name in the data.
        in_python: whether the data are Python objects.

    >>> column_option("text", "a b", False), column_option("text", "a b", True)
    ('--columns text="a b"', 'columns={"text": "a b"}')
    """
    return f'columns={{"{field}": "{column}"}}' if in_python else f"--columns {field}={files.quoted(column)}"


@dataclass(frozen=True)
class Reading(ABC):
    """Reads the examples of a task; a subclass defines `examples`, and `rows` if the task has formats of its own.

    Attributes:
        columns: field of an example -> names of the columns or keys it is read from; the first one present is taken.
        labelled: the fields in `columns` that the label is read from.
        trained: field -> name of the column that a model was trained from; another one in its place is warned of.
    """

    columns: Mapping[str, tuple[str, ...]]
    labelled: tuple[str, ...] = ("label",)
    trained: Columns = field(default_factory=dict)

    @abstractmethod
    def examples(self, record: Record) -> Iterable[Any]:
        """The examples of a row; of most tasks it is one.

        Raises:
            ValueError: a value is missing or of the wrong kind.
        """

    def fields_of_columns(self, columns: Sequence[Sequence[Any]]) -> list[str]:
        """The fields that columns without names are: the inputs of the task, then what is to be learned."""
        inputs = [name for name in self.columns if name not in self.labelled]
        return [*inputs[: len(columns) - 1], *self.labelled[:1]]

    def rows(self, path: Path, columns: Columns) -> files.FileRows:
        """The rows of a file in the formats that the task reads."""
        return files.named_rows(path) or files.table(path, self.columns, columns)

    def of_model(self, columns: Columns) -> Self:
        """The same, which first looks for the columns that a model was trained from."""
        names = {
            field: tuple(dict.fromkeys([columns[field], *names] if field in columns else names))
            for field, names in self.columns.items()
        }
        return replace(self, columns=names, trained=dict(columns))

    def names(self, columns: Columns | None) -> dict[str, tuple[str, ...]]:
        """Field -> names of its column or key in a file; `columns` as in `read`."""
        return {**self.columns, **{field: (name,) for field, name in (columns or {}).items()}}

    def read(self, path: str | Path, columns: Columns | None = None, skipped: Skipped = None) -> Iterator[Any]:
        """The examples of a file, one by one.

        By the file's suffix, before .gz, .bz2 or .xz:

        - .jsonl, .json: an object a line, whose keys are the names in `columns` of the task; for "answer" also the
          official JSON of SQuAD 1.1 and 2.0, https://rajpurkar.github.io/SQuAD-explorer/. Several labels are a list,
          or a string with commas between them.
        - .parquet: the same, by pyarrow; rows instead of lines are named in messages.
        - .csv of tasks over texts: with a header, separated by commas or semicolons, quotes as in RFC 4180.
        - .txt of tasks over texts, unless it has `columns` or a header with tabs: one text a line, without a label.
        - other files for tasks over words: CoNLL columns, split by tabs, else by spaces; a word a line, the tag last,
          an empty line between sentences. All lines have the same number of columns, and there is no header.
        - other files: tab-separated with a header; quotes are text. Several labels are separated by commas.

        Lines end as in `text.corpus.raw_lines`. A NUL and a JSON object with the same key twice are malformed.

        Args:
            path: the file.
            columns: a key of the attribute `columns` -> the column's or key's name in this file, or its number from
                "1" on; a tab-separated file with numbers has no header, and may have columns not used.
            skipped: malformed rows are left out, and a message for each is appended here, instead of raised.

        Raises:
            ValueError: a row is malformed, the file cannot be decompressed, or there is no example in it; the message
                names file and line.
        """
        self.check_columns(columns)
        return self.from_rows(str(path), self.rows(Path(path), columns or {}), columns, skipped)

    def read_unlabelled(self, path: str | Path, columns: Columns | None = None, skipped: Skipped = None) -> RowExamples:
        """The rows of a file, values by name, each with its example, which has no label: none is read.

        Arguments and errors are those of `read`; the columns of labels need not exist.
        """
        self.check_columns(columns)
        columns = self._of_inputs(columns)
        return self.from_unlabelled_rows(str(path), self.rows(Path(path), columns), columns, skipped)

    def from_unlabelled_rows(
        self, source: str, rows: files.FileRows, columns: Columns | None = None, skipped: Skipped = None
    ) -> RowExamples:
        """Rows and their examples as in `read_unlabelled`; arguments are those of `from_rows`."""
        columns = self._of_inputs(columns)
        hidden = {name.casefold() for field in self.labelled for name in self.columns[field]} - {*columns.values()}
        return self._parse(source, rows, columns, skipped, hidden)

    def _of_inputs(self, columns: Columns | None) -> dict[str, str]:
        return {field: name for field, name in (columns or {}).items() if field not in self.labelled}

    def from_rows(
        self, source: str | None, rows: files.FileRows, columns: Columns | None = None, skipped: Skipped = None
    ) -> Iterator[Any]:
        """The examples of rows, those that are malformed raised or left out, as `read` does it.

        Args:
            source: of the rows, for messages; None: they are Python objects.
            rows: (number, function to a row's values by name), see `text.files.FileRows`.
            columns, skipped: as in `read`.
        """
        return (example for _, example in self._parse(source, rows, columns, skipped))

    def check_columns(self, columns: Columns | None) -> None:
        """Raises a ValueError unless the task reads such columns."""
        if unknown := set(columns or ()) - set(self.columns):
            raise ValueError(f"columns {sorted(unknown)}: this task reads {', '.join(self.columns)}")
        for key, name in (columns or {}).items():
            if not isinstance(name, str):
                raise ValueError(f"columns {key}={name!r}: the name of a column, or its number as a string")

    def _check_trained(self, source: str | None, row: Mapping[str, Any], given: Collection[str]) -> None:
        """Warns of fields that a row has under other names than the data that the model was trained from."""
        for name, column in self.trained.items():
            if name in given or column.isdecimal() or isinstance(row, files.Sentence) or files.key_of(row, [column]):
                continue
            if other := files.key_of(row, self.columns[name]):
                option = column_option(name, other, source is None)
                warn(
                    f"{source or IN_PYTHON}: no column {column!r}, which the model was trained from; {other!r} is read "
                    f"as its {name}. {option} says that it is meant"
                )

    def _parse(
        self,
        source: str | None,
        rows: files.FileRows,
        columns: Columns | None,
        skipped: Skipped,
        hidden: Collection = (),
    ) -> RowExamples:
        """Rows and their examples, as in `from_rows`; these are made without the values of `hidden`, in lower case."""
        count, first, names, checked = 0, "", self.names(columns), False
        place = IN_PYTHON if source is None else source
        for number, read in rows:
            try:
                row = read()
                if not checked:
                    self._check_trained(source, row, {*(columns or ()), *(self.labelled if hidden else ())})
                    checked = True
                visible: Any = copy.copy(row) if hidden else row
                for name in [name for name in row if hidden and name.casefold() in hidden]:
                    del visible[name]
                examples = list(self.examples(Record(visible, names, f"{place}:{number}", source is None)))
            except ValueError as error:
                message = f"{place}:{getattr(error, 'line', number)}: {error}"
                if skipped is None:
                    raise ValueError(message) from None
                skipped.append(message)
                first = first or message
            else:
                count += len(examples)
                yield from ((row, example) for example in examples)
        if not count:
            reason = f"no row of it can be read; the first: {first}" if first else "no examples in it"
            raise ValueError(f"{place}: {reason}")
