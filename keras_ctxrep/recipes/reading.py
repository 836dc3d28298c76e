"""Reads examples from a list, a file, or a prepared data set of TensorFlow Datasets."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep.tasks import Task


def read(
    task: Task,
    data: str | Path | Iterable[Any],
    columns: Mapping[str, str] | None = None,
    skipped: list[str] | None = None,
    split: str = "train",
) -> Iterator[Any]:
    """The examples of a task, one by one.

    Args:
        task: what they are examples of.
        data: examples, which are returned unchanged; a file, for `Reading.read`; or "tfds:NAME" or
            "tfds:NAME:SPLIT", e.g. "tfds:glue/sst2:validation" or "tfds:conll2003:train[:100]", which must be prepared.
        columns: names of the columns in a file or data set.
        skipped: collects a message for each malformed row, which is then left out.
        split: of a data set that names none.

    Raises:
        ValueError: a row is malformed, or the data set does not exist, is not prepared or has no such split.
        ImportError: TensorFlow Datasets is not installed.

    >>> from keras_ctxrep import tasks
    >>> from keras_ctxrep.tasks.classify import Example
    >>> list(read(tasks.get("classify"), [Example("a fine day", "good")]))
    [Example(text='a fine day', label='good', pair=None, source='')]
    """
    if isinstance(data, str) and data.startswith("tfds:"):
        name, _, own = data.removeprefix("tfds:").partition(":")
        task.reading.check_columns(columns)
        return _prepared(task, name, own or split, columns or {}, skipped)
    if isinstance(data, (str, Path)):
        return task.read(data, columns, skipped)
    return iter(data)


def _prepared(
    task: Task, name: str, split: str, columns: Mapping[str, str], skipped: list[str] | None
) -> Iterator[Any]:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            f'tfds:{name}: needs TensorFlow Datasets, pip install "keras_ctxrep[data]": {error}'
        ) from None
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
    parsed = ((number, partial(_plain, row, builder.info.features)) for number, row in rows)
    yield from task.reading.from_rows(f"tfds:{name}:{split}", parsed, columns, skipped)


def _plain(value: Any, feature: Any) -> Any:
    """A NumPy row as strings, numbers, lists and dicts; a class number as its name, -1, which is unknown, as None."""
    feature = getattr(feature, "feature", feature)  # of a sequence
    if isinstance(value, dict):
        return {name: _plain(item, feature[name]) for name, item in value.items()}
    if isinstance(value, np.ndarray) and value.ndim:
        return [_plain(item, feature) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if hasattr(feature, "int2str"):
        return feature.int2str(int(value)) if value >= 0 else None
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value
