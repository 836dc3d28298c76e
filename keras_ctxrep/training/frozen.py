"""The outputs of a frozen encoder, computed once for each row of the data and kept on disk."""

import hashlib
import math
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep.inference.keras_engine import runner
from keras_ctxrep.models import frozen
from keras_ctxrep.models.model import Model
from keras_ctxrep.text.features import Row

__all__ = ["FrozenOutputs"]

Arrays = dict[str, np.ndarray]
_Shapes = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]
_READ_BY_TASKS = ("mask", "starts")  # the inputs whose shape the targets have


class FrozenOutputs:
    """Trains what is over a frozen encoder on outputs that the encoder gives once for each row.

    A row's outputs are computed when a batch first has it, in the thread that prepares the batches, and read from a
    file afterwards, by a hash of the row: so they do not depend on the order of the data, and a resumed run computes
    them again. The file has no name and ends with the process. It takes at most half of the disk space that is free at
    the beginning; the outputs of rows that come later are computed whenever they are needed, with a warning. In memory
    there are about 300 bytes for each row.

    Outputs are stored as they are computed, in float32 or in the dtype of mixed precision. Rows of different length
    are computed apart, so that nothing is stored of padding, which is zero as in an encoder's outputs.

    Args:
        parts: of the model, as of `models.frozen.split`.
        collate: function from rows to the model's inputs, as of `features.collate`.
        folder: on whose disk the file is; it need not exist.
        limit: of the file in bytes (default: half of the free space).

    >>> from keras_ctxrep.models import bert, heads
    >>> from keras_ctxrep.text.features import WordPieceFeatures
    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
    >>> features = WordPieceFeatures(WordPiece((*SPECIAL_PIECES, "a", "b")))
    >>> encoder = bert.encoder(bert.Config(vocabulary_size=7, layers=1, width=64, dropout=0.0))
    >>> encoder.trainable = False
    >>> parts = frozen.split(heads.tag(encoder, classes=3, mix=True))
    >>> outputs = FrozenOutputs(parts, features.collate, ".")
    >>> {name: array.shape for name, array in outputs.collate(features.encode(["a", "a b a"])).items()}
    """

    def __init__(
        self,
        parts: frozen.Parts,
        collate: Callable[[Sequence[Row]], Arrays],
        folder: str | Path,
        limit: int | None = None,
    ):
        self.parts, self._collate = parts, collate
        self._run = runner(parts.frozen)
        self._kept = {*parts.trained.input, *_READ_BY_TASKS}
        path = Path(folder).absolute()
        self._folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
        self._limit = shutil.disk_usage(self._folder).free // 2 if limit is None else limit
        self._file: Any = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        self._lock = threading.Lock()  # an evaluation reads while batches are prepared
        self._places: dict[bytes, tuple[int, _Shapes]] = {}  # key -> where its arrays begin, and their shapes
        self._shapes: dict[_Shapes, _Shapes] = {}  # every tuple of shapes once
        self._size, self._full = 0, False

    def collate(self, rows: Sequence[Row]) -> Arrays:
        """The inputs of the trained part for some rows, padded to the longest, and the inputs that targets need."""
        keys = [_digest(repr(replace(row, source="")).encode()) for row in rows]
        known = {key: arrays for key in keys if (arrays := self._read(key)) is not None}
        missing = {key: row for key, row in zip(keys, rows, strict=True) if key not in known}
        for group in _alike(missing, self._collate):
            inputs = self._collate([missing[key] for key in group])
            arrays = {name: inputs[name] for name in self._kept & inputs.keys()} | self._run(inputs)
            for number, key in enumerate(group):
                known[key] = {name: array[number] for name, array in arrays.items()}
                self._write(key, known[key])
        return _padded([known[key] for key in keys])

    def answering(self, run: Callable[[Arrays], Mapping[str, Any]]) -> Callable[[Arrays], Mapping[str, Any]]:
        """What runs a batch of the model's inputs by a function `run` that runs the trained part on its inputs."""

        def answer(inputs: Arrays) -> Mapping[str, Any]:
            key = _digest(*(inputs[name] for name in self.parts.frozen.input))
            outputs = self._read(key)
            if outputs is None:
                outputs = self._run(inputs)
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
            self._file.close()

    def _read(self, key: bytes) -> Arrays | None:
        with self._lock:
            if key not in self._places:
                return None
            offset, shapes = self._places[key]
            self._file.seek(offset)
            buffer = self._file.read(_bytes(shapes))
        arrays, begin = {}, 0
        for name, dtype, shape in shapes:
            arrays[name] = np.frombuffer(buffer, dtype, math.prod(shape), begin).reshape(shape)
            begin += arrays[name].nbytes
        return arrays

    def _write(self, key: bytes, arrays: Arrays) -> None:
        shapes = tuple((name, array.dtype, array.shape) for name, array in arrays.items())
        shapes = self._shapes.setdefault(shapes, shapes)
        with self._lock:
            if key in self._places or self._full:
                return
            try:
                if self._size + _bytes(shapes) > self._limit:
                    raise OSError(f"{self._limit / 1e6:,.0f} MB are used, half of what was free")
                self._file.seek(self._size)
                self._file.write(b"".join(array.tobytes() for array in arrays.values()))
            except OSError as error:
                self._full = True
                rest = "those of other rows are computed in every epoch"
                warnings.warn(f"{self._folder}: outputs of the frozen encoder: {error}; {rest}", stacklevel=2)
                return
            self._places[key] = self._size, shapes
            self._size += _bytes(shapes)


def _digest(*parts: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else repr(part.shape).encode() + part.tobytes())
    return digest.digest()


def _bytes(shapes: _Shapes) -> int:
    return sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in shapes)


def _alike(rows: Mapping[bytes, Row], collate: Callable[[Sequence[Row]], Arrays]) -> Iterator[list[bytes]]:
    """The keys of rows whose inputs have the same shapes, so that a batch of them has no padding."""
    groups: dict[tuple, list[bytes]] = {}
    for key, row in rows.items():
        groups.setdefault(tuple(array.shape for array in collate([row]).values()), []).append(key)
    yield from groups.values()


def _padded(rows: Sequence[Arrays]) -> Arrays:
    """The arrays of some rows, padded with zeros to the largest.

    >>> _padded([{"mask": np.ones(1, int)}, {"mask": np.ones(2, int)}])["mask"].tolist()
    [[1, 0], [1, 1]]
    """
    batch = {}
    for name, first in rows[0].items():
        shape = np.max([row[name].shape for row in rows], axis=0) if first.ndim else ()
        batch[name] = np.zeros((len(rows), *shape), first.dtype)
        for target, row in zip(batch[name], rows, strict=True):
            target[tuple(map(slice, row[name].shape))] = row[name]
    return batch
