"""Graphs: .tflite models without their weights, which are in the model folder that a graph is kept in."""

import hashlib
import itertools
import json
import lzma
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_ctxrep import updates
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.places import published
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import CARD, NAME, VOCAB, WEIGHTS
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep_tflite import weights

__all__ = ["ENCODER", "GRAPH", "MASKED", "Graph", "write"]

GRAPH, MASKED = "graph.xz", "masked_graph.xz"  # of what answers or encodes, and of a masked language model
ENCODER = "encoder_graph.xz"  # of the encoder of a model that answers
SMALLEST = 64  # elements: smaller constants stay in the graph
LARGEST = 64 << 20  # bytes of a graph that are read


class Constant(NamedTuple):
    """A constant that is left out of a graph."""

    begin: int  #: its first byte in the model
    names: tuple[str, ...]  #: of the weights that it is the sum of: datasets of the file of weights, and changes
    axes: tuple[int, ...]  #: of that sum, in the order of the constant
    size: int  #: of the constant, in elements: the first ones of the sum, as of a table of positions


def write(folder: str | Path, data: bytes, bundle: Bundle, name: str = GRAPH) -> Path:
    """Writes the graph of a model into the model folder that it was converted from.

    The graph lacks the constants that equal a weight of the folder, with its axes in any order, or its first rows; of a
    folder of changes a weight of the encoder with its change.

    Args:
        folder: of the model.
        data, bundle: the float32 model and its bundle, as `quantize.float_model` returns them.
        name: of the file, `GRAPH`, `MASKED` or `ENCODER`.

    Returns: the file.

    Raises:
        ValueError: the encoder that the folder changes is not here.
    """
    folder, model = Path(folder), np.frombuffer(data, np.uint8)
    holes = {
        values.ctypes.data - model.ctypes.data: values
        for _, values in weights.floats(model)
        if values.dtype == np.float32 and values.size >= SMALLEST
    }
    with _Weights(folder, bundles.load(folder)) as source:
        constants = sorted(_constants(source, holes))
    kept = np.ones(len(model), bool)
    for constant in constants:
        kept[constant.begin : constant.begin + holes[constant.begin].nbytes] = False
    fields = {"folder": _identity(folder), "bundle": bundle.files_as_bytes()[NAME].decode(), "constants": constants}
    with atomic_write(folder / name) as path:
        path.write_bytes(lzma.compress(json.dumps(fields).encode() + b"\n" + model[kept].tobytes(), preset=9))
    return folder / name


class Graph:
    """The graph in a model folder, from which its .tflite model is made without TensorFlow and Keras.

    Args:
        folder, bundle: of the model.
        name: of the file, `GRAPH`, `MASKED` or `ENCODER`.

    Attributes:
        path: the file.
        bundle: of the .tflite model.

    Raises:
        ValueError: the file is damaged.

    >>> folder = published("glove_50/6b")
    >>> graph = Graph(folder, bundles.load(folder))
    >>> len(graph.model()) > 1000 * graph.path.stat().st_size
    True
    """

    def __init__(self, folder: str | Path, bundle: Bundle, name: str = GRAPH):
        self.path, self._bundle = Path(folder) / name, bundle
        files = {each: self.path.with_name(each) for each in (VOCAB, CARD)}
        try:
            decompressor = lzma.LZMADecompressor()
            header, _, self._kept = decompressor.decompress(self.path.read_bytes(), LARGEST).partition(b"\n")
            if not decompressor.eof:
                raise ValueError("it is cut off, or too large")
            self._fields = json.loads(header)
            self._constants = [Constant(*entry) for entry in self._fields["constants"]]
            beside = {name: file.read_bytes() for name, file in files.items() if file.is_file()}
            self.bundle = bundles.from_files({NAME: self._fields["bundle"].encode()} | beside, self.path)
        except (lzma.LZMAError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path}: damaged: {error}; copy the whole folder again") from None

    @classmethod
    def of(cls, folder: str | Path, bundle: Bundle, name: str = GRAPH) -> "Graph | None":
        """The graph in a folder; None: there is none that can be used.

        It is of other weights than those in the folder, or the encoder that the folder changes or h5py is not here.
        """
        if not (Path(folder) / name).is_file() or find_spec("h5py") is None:
            return None
        graph = cls(folder, bundle, name)
        of_folder = graph._fields["folder"] == _identity(folder)
        return graph if of_folder and _holder(Path(folder), bundle) is not None else None

    def model(self) -> bytes:
        """The float32 model that `quantize.float_model` returns for the folder, bit for bit."""
        parts, at, size = [], 0, 0
        with _Weights(self.path.parent, self._bundle) as source:
            for begin, names, axes, count in self._constants:
                array = source[names].transpose(axes).reshape(-1)[:count]
                parts += [self._kept[at : at + begin - size], array.tobytes()]
                at, size = at + begin - size, begin + array.nbytes
        return b"".join([*parts, self._kept[at:]])


def _holder(folder: Path, bundle: Bundle) -> Path | None:
    """The folder with the file of weights, the model's or its encoder's; None: that encoder is not here."""
    if WEIGHTS in bundle.files:
        return folder
    base = published(str(bundle.base.get("name", "")))
    return base if base and bundles.load(base).files.get(WEIGHTS) == bundle.base.get("weights") else None


class _Weights:
    """The weights of a model folder by name: datasets of a file of weights, and changes. Two names are of a sum.

    Raises:
        ValueError: the encoder is not here.
    """

    def __init__(self, folder: Path, bundle: Bundle):
        import h5py

        holder = _holder(folder, bundle)
        if holder is None:
            raise ValueError(f"{folder}: the encoder that it changes is not here")
        self.changes = {} if holder == folder else updates.read(folder)
        self.file = h5py.File(holder / WEIGHTS)

    def __enter__(self) -> "_Weights":
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def names(self) -> Iterator[tuple[str, ...]]:
        """The names of all weights, and of all sums of one and a change of its shape."""
        shapes: dict[str, tuple[int, ...]] = {}
        self.file.visititems(lambda name, item: shapes.update({name: item.shape} if hasattr(item, "shape") else {}))
        yield from ((name,) for name in (*shapes, *self.changes))
        for change, parts in self.changes.items():
            shape = updates.difference(parts).shape
            yield from ((name, change) for name in shapes if shapes[name] == shape)

    def __getitem__(self, names: tuple[str, ...]) -> np.ndarray:
        first, *second = (
            updates.difference(self.changes[name])
            if name in self.changes
            else self.file[name][()].astype("<f4", copy=False)
            for name in names
        )
        return first + second[0] if second else first


def _constants(source: _Weights, holes: Mapping[int, np.ndarray]) -> Iterator[Constant]:
    """Those among some arrays, by where they begin in a model, that are weights."""
    left = {begin: (values, _sum_of_bits(values)) for begin, values in holes.items()}
    for names in source.names():
        array = source[names]
        own, same = _sum_of_bits(array), tuple(range(array.ndim))
        for begin, (values, sum_of_bits) in [*left.items()]:
            if values.size > array.size or (values.size == array.size and sum_of_bits != own):
                continue
            for axes in itertools.permutations(same) if values.size == array.size else [same]:
                if array.transpose(axes).reshape(-1)[: values.size].tobytes() == values.tobytes():
                    yield Constant(begin, names, axes, values.size)
                    del left[begin]
                    break


def _sum_of_bits(array: np.ndarray) -> int:
    """What arrays of the same elements in another order have in common."""
    return int(np.ascontiguousarray(array).view(np.uint32).sum(dtype=np.uint64))


def _identity(folder: str | Path) -> str:
    """A hash of bundle.json, which has those of the weights and of the vocabulary."""
    return hashlib.sha256((Path(folder) / NAME).read_bytes()).hexdigest()
