"""Reads examples from Python objects, a file, or a prepared data set of TensorFlow Datasets."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep.tasks import Task
from keras_ctxrep.text.files import FileRows, is_missing
from keras_ctxrep.version import install_hint

__all__ = ["read", "read_unlabelled", "split"]

Data = str | Path | Iterable[Any]
TFDS = "tfds:"  # before the name of a data set of TensorFlow Datasets


def read(
    task: Task,
    data: Data,
    columns: Mapping[str, str] | None = None,
    skipped: list[str] | None = None,
    split: str = "train",
) -> Iterator[Any]:
    """The examples of a task, one by one.

    Args:
        task: what they are examples of.
        data: a file, for `Reading.read`; "tfds:NAME" or "tfds:NAME:SPLIT", e.g. "tfds:glue/sst2:validation" or
            "tfds:conll2003:train[:100]", which must be prepared; a tuple of columns, (texts, labels) or (texts, pairs,
            labels), each a list, an array or a series; columns by name, as a mapping or a frame of pandas or Polars; a
            `tf.data.Dataset` of such tuples or dicts, one element a row; or the task's examples, returned unchanged.
        columns: names of the columns in a file, data set, mapping or frame.
        skipped: collects a message for each malformed row, which is then left out.
        split: of a data set that names none.

    Raises:
        TypeError: one of the objects is no example of the task, but a tuple or a mapping, say.
        ValueError: a row is malformed, the columns differ in length or are too few or many, or the data set does not
            exist, is not prepared or has no such split.
        ImportError: TensorFlow Datasets is not installed.

    >>> from keras_ctxrep import tasks
    >>> list(read(tasks.get("classify"), (["a fine day", "rain"], ["good", "bad"])))[1]
    Example(text='rain', label='bad', pair=None, source='the data: row 2')
    """
    if isinstance(data, str) and data.startswith(TFDS):
        task.reading.check_columns(columns)
        data = _with_split(data, split)
        return task.reading.from_rows(data, _read_prepared(data), columns, skipped)
    if isinstance(data, (str, Path)):
        return task.read(data, columns, skipped)
    rows = _rows_of(task, data, columns)
    if rows is None:
        return _examples(task, data)
    task.reading.check_columns(columns)
    parsed: Any = ((f" row {number}", partial(dict, row)) for number, row in enumerate(rows, 1))
    return task.reading.from_rows(None, parsed, columns, skipped)


def read_unlabelled(
    task: Task, data: str | Path, columns: Mapping[str, str] | None = None, skipped: list[str] | None = None
) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """The rows of a file or of a prepared data set, values by name, each with its example, which has no label.

    Args:
        task, columns, skipped: as in `read`; the columns of labels need not exist.
        data: a file, or "tfds:NAME:SPLIT".

    Raises:
        ValueError, ImportError: as in `read`.
    """
    if isinstance(data, str) and data.startswith(TFDS):
        task.reading.check_columns(columns)
        data = _with_split(data, "test")
        return task.reading.from_unlabelled_rows(data, _read_prepared(data), columns, skipped)
    return task.reading.read_unlabelled(data, columns, skipped)


def in_memory(
    task: Task, data: Data, columns: Mapping[str, str] | None = None, skipped: list[str] | None = None
) -> str | Path | list[Any]:
    """Data that can be read again and again: a file or a data set's name as it is, anything else as a list of examples.

    Args:
        task, data, columns, skipped: as in `read`.
    """
    return data if isinstance(data, (str, Path)) else [*read(task, data, columns, skipped)]


def split(examples: Sequence[Any], fraction: float, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """The examples in their order without a fraction of them that is drawn at random, and that fraction; each has one.

    Raises:
        ValueError: the fraction is not between 0 and 1, or there are fewer than two examples.

    >>> split("abcdefghij", 0.2)
    (['a', 'b', 'd', 'e', 'g', 'h', 'i', 'j'], ['c', 'f'])
    """
    if not 0 < fraction < 1 or len(examples) < 2:
        raise ValueError(f"dev={fraction} of {len(examples)} examples: a fraction above 0 and below 1, of at least two")
    count = min(max(1, round(fraction * len(examples))), len(examples) - 1)
    drawn = {*random.Random(f"{seed} held out").sample(range(len(examples)), count)}
    parts: tuple[list[Any], list[Any]] = [], []
    for number, example in enumerate(examples):
        parts[number in drawn].append(example)
    return parts


# ----------------------------------------------------------------------------------------------------- Python objects


def _rows_of(task: Task, data: Any, columns: Mapping[str, str] | None) -> Iterator[Mapping[str, Any]] | None:
    """The rows of columns, a table or a `tf.data.Dataset`; None of other objects."""
    if hasattr(data, "as_numpy_iterator"):
        return (_name(task, _plain(element, None), columns) for element in data.as_numpy_iterator())
    table: Any = data
    if isinstance(data, tuple) and data and all(isinstance(each, list) or hasattr(each, "__array__") for each in data):
        table = _name(task, data, columns)
    names = table if isinstance(table, Mapping) else getattr(table, "columns", None)
    return None if names is None else _rows({str(name): _values(table[name]) for name in names})


def _examples(task: Task, data: Iterable[Any]) -> Iterator[Any]:
    """The examples of a task, as they are."""
    for number, example in enumerate(data, 1):
        if not hasattr(example, task.gold):
            raise TypeError(
                f"the data: example {number} is {type(example).__name__}, {str(example)[:60]}; give columns, "
                "(texts, labels) or {'text': texts, 'label': labels}, a DataFrame, or examples of the task"
            )
        yield example


def _values(column: Any) -> list[Any]:
    """The values of a column as Python's, None in place of missing ones; a frame's own list keeps whole numbers."""
    if hasattr(column, "to_list"):
        column = column.to_list()
    elif not isinstance(column, list):
        column = column.tolist() if isinstance(column, np.ma.MaskedArray) else np.asarray(column, object).tolist()
    return [_plain(value, None) for value in column]


def _rows(columns: Mapping[str, list]) -> Iterator[dict[str, Any]]:
    """The rows of columns of equal length."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len({*lengths.values()}) > 1:
        raise ValueError(f"columns of different lengths: {lengths}")
    return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _name(task: Task, values: Any, columns: Mapping[str, str] | None) -> Mapping[str, Any]:
    """Columns by name; a tuple has the inputs of the task, then what is to be learned, in the order of its columns."""
    if isinstance(values, Mapping):
        return values
    names = task.reading.fields_of_columns(values) if isinstance(values, tuple) else []
    if not isinstance(values, tuple) or len(names) != len(values):
        inputs = [name for name in task.reading.columns if name not in task.reading.labelled]
        least, most = ([*inputs[:count], *task.reading.labelled[:1]] for count in (1, len(inputs)))
        raise ValueError(f"columns {', '.join(least)} to {', '.join(most)} are needed, in a tuple or by their names")
    return {
        (columns or {}).get(name, task.reading.columns[name][0]): value
        for name, value in zip(names, values, strict=True)
    }


# ------------------------------------------------------------------------------------------------ TensorFlow Datasets


def _with_split(data: str, split: str) -> str:
    """tfds:NAME:SPLIT, where a name has no split with this one."""
    return data if ":" in data.removeprefix(TFDS) else f"{data}:{split}"


def _read_prepared(data: str) -> FileRows:
    """The rows of a prepared data set, tfds:NAME:SPLIT."""
    name, _, split = data.removeprefix(TFDS).partition(":")
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(f"tfds:{name}: needs TensorFlow Datasets, {install_hint('data')}: {error}") from None
    try:
        builder = tfds.builder(name)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:120]
        raise ValueError(f"tfds:{name}: no such data set in TensorFlow Datasets ({reason})") from None
    if not builder.is_prepared():
        code = f"import tensorflow_datasets as tfds; tfds.builder({name!r}).download_and_prepare()"
        raise ValueError(
            f'tfds:{name}: not prepared in {builder.data_dir} (TFDS_DATA_DIR); prepare it with: python -c "{code}"'
        )
    if (base := split.partition("[")[0]) not in builder.info.splits:
        raise ValueError(f"tfds:{name}: no split {base!r}; it has {', '.join(builder.info.splits)}")
    rows = enumerate(tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)), 1)
    yield from ((number, partial(_plain, row, builder.info.features)) for number, row in rows)


def _plain(value: Any, feature: Any) -> Any:
    """A value as strings, numbers, lists and dicts; a missing one, and the unknown class -1, as None.

    The feature, if there is one, is that of TensorFlow Datasets, which has the names of classes.
    """
    feature = getattr(feature, "feature", feature)  # of a sequence
    if isinstance(value, dict):
        return {name: _plain(item, feature and feature[name]) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(item, feature) for item in value)
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim):
        return [_plain(item, feature) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if hasattr(feature, "int2str"):
        return feature.int2str(int(value)) if value >= 0 else None
    if is_missing(value):
        return None
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value
