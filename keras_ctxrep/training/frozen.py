"""The outputs of a frozen encoder, computed once for each row of the data and kept on disk."""

import hashlib
import math
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_ctxrep.inference.keras_engine import runner
from keras_ctxrep.models import frozen
from keras_ctxrep.models.model import Model
from keras_ctxrep.text.features import Row

__all__ = ["FrozenOutputs"]

Arrays = dict[str, np.ndarray]
Fields = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]  # name, dtype and shape of the arrays of a record
TOGETHER = 500  # examples that are encoded together
ENCODED = 200_000  # examples whose targets are kept in memory; those of others are encoded in every epoch
_READ_BY_TASKS = ("mask", "starts")  # the inputs whose shape the targets have


class FrozenOutputs:
    """Trains what is over a frozen encoder on outputs that the encoder gives once for each row.

    A row's outputs are computed when a batch first has it, in the thread that prepares the batches, and read from a
    file afterwards, by a hash of the row: so they do not depend on the order of the data, and a resumed run computes
    them again, in other batches, which may change their last bits. The file has no name and ends with the process. It
    takes at most half of the disk space that is free at the beginning; the outputs of rows that come later are computed
    whenever they are needed, after a warning. In memory there are some hundred bytes for each row.

    Outputs are stored as they are computed, in float32 or in the dtype of mixed precision. Rows of different length
    are computed apart, so that nothing is stored of padding, which is zero as in an encoder's outputs.

    Args:
        parts: of the model, as in `models.frozen.split`.
        collate: function from rows to the model's inputs, as in `features.collate`.
        folder: on whose disk the file is; it need not exist.
        limit: of the file in bytes (default: half of the free space).

    >>> from keras_ctxrep.models import elmo, heads
    >>> from keras_ctxrep.text.features import CharacterFeatures
    >>> encoder, features = elmo.encoder(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"]), CharacterFeatures(8, 32)
    >>> encoder.trainable = False
    >>> outputs = FrozenOutputs(frozen.split(heads.tag(encoder, classes=3)), features.collate, ".")
    >>> {name: array.shape for name, array in outputs.collate(features.encode(["One.", "Some words."])).items()}
    {'mask': (2, 3), 'frozen_0': (2, 3, 128)}
    """

    def __init__(
        self,
        parts: frozen.Parts,
        collate: Callable[[Sequence[Row]], Arrays],
        folder: str | Path,
        limit: int | None = None,
    ):
        self.parts, self._collate = parts, collate
        self._run = runner(parts.frozen, frozen=True)
        self._kept = {*parts.trained.input, *_READ_BY_TASKS}
        path = Path(folder).absolute()
        self._folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
        self._limit = shutil.disk_usage(self._folder).free // 2 if limit is None else limit
        self._file: Any = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        self._close = weakref.finalize(self, self._file.close)  # where a run fails before it begins to train
        self._lock = threading.Lock()  # an evaluation reads while batches are prepared
        self._places: dict[bytes, tuple[int, int, Fields]] = {}  # key -> where its record begins, its size and fields
        self._fields: dict[Fields, Fields] = {}  # one object for all records that are alike
        self._encoded: dict[bytes, tuple[list[_Stored], list]] = {}  # key of an example -> its rows and targets
        self._size, self._full = 0, False

    def encoded(self, encode: Callable[[Iterable], Iterable[tuple]], examples: Iterable) -> Iterator[tuple]:
        """The rows of each example and their targets, as `encode` gives them; stored rows are not encoded again.

        Args:
            encode: from examples to the rows and targets of each.
            examples: those of an epoch.
        """
        source = iter(examples)
        while part := list(islice(source, TOGETHER)):
            keys = [_digest(repr(example).encode()) for example in part]
            stored = [self._read_stored(key) for key in keys]
            fresh = iter(encode([example for example, own in zip(part, stored, strict=True) if own is None]))
            for key, own in zip(keys, stored, strict=True):
                if own is None:
                    rows, targets = own = next(fresh)
                    if len(self._encoded) < ENCODED:
                        self._encoded[key] = [_Stored(_key(row), len(row)) for row in rows], targets
                yield own

    def _read_stored(self, key: bytes) -> tuple[list, list] | None:
        """The rows and targets of an example, if the outputs of all its rows are stored."""
        rows, targets = self._encoded.get(key, ([None], []))
        return (rows, targets) if all(row and row.key in self._places for row in rows) else None

    def collate(self, rows: Sequence["Row | _Stored"]) -> Arrays:
        """The inputs of the trained part for some rows, padded to the longest, and the inputs that targets need."""
        keys = [row.key if isinstance(row, _Stored) else _key(row) for row in rows]
        known = {key: arrays for key in keys if (arrays := self._read(key)) is not None}
        # of a stored row the outputs are known
        missing: dict[bytes, Any] = {key: row for key, row in zip(keys, rows, strict=True) if key not in known}
        groups: dict[tuple, list[bytes]] = {}  # of inputs of the same shapes, so that a batch has no padding
        for key, row in missing.items():
            groups.setdefault(tuple(array.shape for array in self._collate([row]).values()), []).append(key)
        for group in groups.values():
            inputs = self._collate([missing[key] for key in group])
            arrays = {name: inputs[name] for name in inputs if name in self._kept} | dict(self._run(inputs))
            for number, key in enumerate(group):
                known[key] = own = {name: array[number] for name, array in arrays.items()}
                self._write(key, own)
        return _pad([known[key] for key in keys])

    def answering(self, run: Callable[[Arrays], Mapping[str, Any]]) -> Callable[[Arrays], Mapping[str, Any]]:
        """What runs a batch of the model's inputs by a function `run` that runs the trained part on its inputs."""

        def answer(inputs: Arrays) -> Mapping[str, Any]:
            key = _digest(*(inputs[name] for name in self.parts.frozen.input))
            outputs = self._read(key)
            if outputs is None:
                outputs = dict(self._run(inputs))
                self._write(key, outputs)
            return run(inputs | outputs)

        return answer

    @contextmanager
    def training(self, model: Model) -> Iterator[None]:
        """Within it, the model takes batches of `collate`; at its end the file is closed."""
        part = self.parts.trained
        model.trained_part = lambda inputs, **kwargs: part({name: inputs[name] for name in part.input}, **kwargs)
        try:
            yield
        finally:
            model.trained_part = None
            self._close()

    def _read(self, key: bytes) -> Arrays | None:
        with self._lock:
            if key not in self._places:
                return None
            offset, size, fields = self._places[key]
            self._file.seek(offset)
            buffer = self._file.read(size)
        arrays, begin = {}, 0
        for name, dtype, shape in fields:
            arrays[name] = np.frombuffer(buffer, dtype, math.prod(shape), begin).reshape(shape)
            begin += arrays[name].nbytes
        return arrays

    def _write(self, key: bytes, arrays: Arrays) -> None:
        fields = tuple((name, array.dtype, array.shape) for name, array in arrays.items())
        size = sum(array.nbytes for array in arrays.values())
        with self._lock:
            if key in self._places or self._full:
                return
            try:
                if self._size + size > self._limit:
                    raise OSError(f"{self._limit / 1e6:,.0f} MB are used, half of what was free")
                self._file.seek(self._size)
                if self._file.write(b"".join(array.tobytes() for array in arrays.values())) < size:
                    raise OSError("the disk is full")
            except OSError as error:
                self._full = True
                rest = "those of other rows are computed in every epoch"
                warnings.warn(f"{self._folder}: outputs of the frozen encoder: {error}; {rest}", stacklevel=2)
                return
            self._places[key] = self._size, size, self._fields.setdefault(fields, fields)
            self._size += size


class _Stored(NamedTuple):
    """A row whose outputs are stored."""

    key: bytes
    length: int

    def __len__(self) -> int:
        return self.length


def _key(row: Row) -> bytes:
    return _digest(repr(replace(row, source="")).encode())


def _digest(*parts: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else repr(part.shape).encode() + part.tobytes())
    return digest.digest()


def _pad(rows: Sequence[Arrays]) -> Arrays:
    """The arrays of some rows, padded with zeros to the largest.

    >>> _pad([{"mask": np.ones(1, int)}, {"mask": np.ones(2, int)}])["mask"].tolist()
    [[1, 0], [1, 1]]
    """
    batch = {}
    for name in rows[0]:
        arrays = [row[name] for row in rows]
        shapes = {array.shape for array in arrays}
        if len(shapes) == 1:
            batch[name] = np.stack(arrays)
            continue
        batch[name] = np.zeros((len(rows), *map(max, zip(*shapes, strict=True))), arrays[0].dtype)
        for padded, array in zip(batch[name], arrays, strict=True):
            padded[tuple(map(slice, array.shape))] = array
    return batch
