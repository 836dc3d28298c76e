"""The files of a search index: vectors, rows and a manifest in one folder, written whole and read by memory mapping.

    index.json         the manifest: format, number of rows, width, storage, the encoder, size and hash of each file
    vectors.7.npy      float32 or float16 (N, D), of length 1
    codes.7.npy        int8 (N, D), with the storage "int8"; scales.7.npy, float32 (N,), are theirs
    rows.7.jsonl       {"id", "text", "source", "fields"} a line; offsets.7.npy, int64 (N + 1,), say where each begins
    graph.7.bin        of a large index, the graph of an approximate search

The number is that of the version. A new version is written under new names, and then replaces the manifest, so that a
reader has the old index or the new one. Nothing is pickled.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from keras_ctxrep import checks
from keras_ctxrep.atomic import lock_folder, sha256, temporary_folder
from keras_ctxrep.checks import Range, Size

__all__ = [
    "STORAGES",
    "IndexRow",
    "Manifest",
    "Row",
    "Stored",
    "StoredRows",
    "encoded",
    "is_index",
    "manifest_of",
    "read",
    "write",
]

NAME = "index.json"
FORMAT = 1
BATCH = 4096  # vectors that are written at a time
STORAGES = ("float32", "float16", "int8")
_KINDS = {"vectors": "npy", "codes": "npy", "scales": "npy", "offsets": "npy", "rows": "jsonl", "graph": "bin"}
_FILE = re.compile(rf"({'|'.join(_KINDS)})\.\d{{1,18}}\.({'|'.join({*_KINDS.values()})})")
_REMEDY = "copy the whole folder again, or make it again with `ctxrep index`"


@dataclass(frozen=True)
class IndexRow:
    """A row of an index.

    Attributes:
        id: unique in the index; None of a row that is yet to get the next number.
        text: what was encoded; "" of vectors without texts.
        source: where it was read, "FILE:LINE"; "" if unknown.
        fields: other values of the row, as JSON has them.
    """

    id: str | None
    text: str = ""
    source: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


Row = IndexRow  # its former name


@dataclass(frozen=True)
class Manifest:
    """What index.json says.

    Attributes:
        rows, width: N and D.
        storage: one of `STORAGES`.
        next_id: the number that the next row without an id gets.
        encoder: what made the vectors: its name, family, pooling and the hashes of its files; {} if unknown.
        files: kind of a file -> its name.
        sizes: kind of a file -> its size in bytes.
        graph: the library of the graph, "" if there is none.
        graph_sha256: SHA-256 of the graph.
        version: how often the folder was written.
        hashes: kind of a file -> its SHA-256, of all files but the graph; {} of an index written before version 0.3.
    """

    rows: Annotated[int, Range(1, 1 << 40)]
    width: Size
    storage: str
    next_id: Annotated[int, Range(0, 1 << 53)]
    encoder: dict
    files: dict
    sizes: dict
    graph: str = ""
    graph_sha256: str = ""
    version: Annotated[int, Range(1, 1 << 53)] = 1
    format: int = FORMAT
    hashes: dict = field(default_factory=dict)

    def __post_init__(self):
        checks.check(self)
        if self.format != FORMAT:
            raise ValueError(f"format={self.format}: this version of the package reads {FORMAT}")
        if self.storage not in STORAGES:
            raise ValueError(f"storage={self.storage!r}: one of {', '.join(STORAGES)}")
        needed = {"vectors", "rows", "offsets"} | ({"codes", "scales"} if self.storage == "int8" else set())
        needed |= {"graph"} if self.graph else set()
        if {*self.files} != needed or {*self.sizes} != needed:
            raise ValueError(f"files={sorted(self.files)!r}: they are {', '.join(sorted(needed))}")
        if self.hashes and {*self.hashes} != needed - {"graph"}:
            raise ValueError(f"hashes={sorted(self.hashes)!r}: they are of {', '.join(sorted(needed - {'graph'}))}")
        for kind, name in self.files.items():
            if not isinstance(name, str) or not _FILE.fullmatch(name) or not name.startswith(f"{kind}."):
                raise ValueError(f"files.{kind}={name!r:.60}: not the name of such a file")
        for kind, size in self.sizes.items():
            checks.check_value(f"sizes.{kind}", size, int, Range(0))


class StoredRows(Sequence[IndexRow]):
    """The rows of a folder, each read when it is asked for.

    Args:
        path: rows.N.jsonl.
        offsets: int64 (N + 1,), where each begins.
    """

    def __init__(self, path: Path, offsets: np.ndarray):
        self._path, self._offsets = path, offsets
        self._bytes = np.memmap(path, np.uint8, "r")
        if offsets[0] != 0 or offsets[-1] != len(self._bytes):
            raise ValueError(f"{path}: of another size than its offsets say; {_REMEDY}")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        number %= len(self)
        begin, end = int(self._offsets[number]), int(self._offsets[number + 1])
        try:
            if not 0 <= begin < end <= len(self._bytes):
                raise ValueError("its offsets are damaged")
            values = checks.read_json(self._bytes[begin:end].tobytes())
            checks.check_names(IndexRow, values)
            row = IndexRow(**values)
            checks.check_values({"id": str, "text": str, "source": str, "fields": dict}, values)
        except ValueError as error:
            raise ValueError(f"{self._path}: row {number}: {error}; {_REMEDY}") from None
        return row


class Stored(NamedTuple):
    """The contents of a folder, memory-mapped; `codes` and `scales` of the storage "int8", else None."""

    manifest: Manifest
    vectors: np.ndarray
    codes: np.ndarray | None
    scales: np.ndarray | None
    rows: StoredRows
    graph: Path | None


def encoded(vectors: np.ndarray, storage: str) -> dict[str, np.ndarray]:
    """Vectors of length 1 as they are stored.

    With "int8" a row is also kept as codes, round(127 v / max |v|), with one scale a row: v is about scale * code, with
    an error of at most half a scale in each dimension.

    Args:
        vectors: float32 (N, D).
        storage: one of `STORAGES`.

    Returns: "vectors" and, with "int8", "codes" and "scales".

    >>> arrays = encoded(np.array([[0.6, -0.8]], np.float32), "int8")
    >>> arrays["codes"].tolist(), (127 * arrays["scales"]).round(2).tolist()
    ([[95, -127]], [0.800000011920929])
    """
    if storage == "float32":
        return {"vectors": np.asarray(vectors, np.float32)}
    halves = np.asarray(vectors, np.float16)
    if storage == "float16":
        return {"vectors": halves}
    values = halves.astype(np.float32)
    scales = np.maximum(np.abs(values).max(1, initial=0), 1e-9) / np.float32(127)
    codes = np.rint(values / scales[:, None]).astype(np.int8)
    return {"vectors": halves, "codes": codes, "scales": scales.astype(np.float32)}


def is_index(folder: str | Path) -> bool:
    """Whether a folder is one of an index."""
    return (Path(folder) / NAME).is_file()


def write(
    folder: str | Path,
    batches: Iterable[tuple[np.ndarray, Sequence[IndexRow]]],
    storage: str,
    encoder: Mapping[str, Any],
    next_id: int = 0,
    graph: Callable[[np.ndarray, Path], str] | None = None,
    replaces: Manifest | None = None,
) -> Manifest:
    """Writes an index from batches of rows, one batch in memory at a time; an index in its place is replaced.

    Args:
        folder: a new folder, an empty one, or one of an index.
        batches: vectors of length 1, float32 (n, D), and the rows they are of.
        storage: one of `STORAGES`.
        encoder: as in `Manifest`.
        next_id: as in `Manifest`.
        graph: writes the graph of an approximate search of vectors (N, D) to a path; returns the name of its library,
            "" if it has written none.
        replaces: the manifest of the index that `batches` are made from, as it was when they were read.

    Raises:
        ValueError: `folder` is something else, an id is there twice, there are no rows, or another process has replaced
            the index meanwhile.
    """
    folder = Path(folder).resolve()
    fresh = not folder.exists()
    if not fresh and not folder.is_dir():
        raise ValueError(f"{folder}: a file; name a folder")
    if not fresh and any(folder.iterdir()) and not is_index(folder):
        raise ValueError(f"{folder}: a folder with other files and without {NAME}; name another folder")
    try:
        with lock_folder(folder), temporary_folder(folder) as work:
            names = [path.name for path in folder.iterdir() if _FILE.fullmatch(path.name)]  # of a killed writer too
            version = 1 + max((int(name.split(".")[1]) for name in names), default=0)
            if replaces is not None and is_index(folder) and manifest_of(folder) != replaces:
                raise ValueError(
                    f"{folder}: another process has written it meanwhile; it was left so: open the index again, or "
                    "run the command again"
                )
            names = {kind: f"{kind}.{version}.{suffix}" for kind, suffix in _KINDS.items()}
            count, width, next_id = _write_rows(work, names, batches, storage, next_id)
            library = ""
            if graph is not None:
                vectors = np.lib.format.open_memmap(work / names["vectors"], mode="r")
                library = graph(vectors, work / names["graph"])
                del vectors
            kinds = {kind for kind in _KINDS if (work / names[kind]).exists()}
            manifest = Manifest(
                count,
                width,
                storage,
                next_id,
                dict(encoder),
                {kind: names[kind] for kind in kinds},
                {kind: (work / names[kind]).stat().st_size for kind in kinds},
                library,
                sha256(work / names["graph"]) if library else "",
                version,
                hashes={kind: sha256(work / names[kind]) for kind in kinds - {"graph"}},
            )
            text = json.dumps(asdict(manifest), ensure_ascii=False, indent=1, sort_keys=True) + "\n"
            (work / NAME).write_text(text, encoding="utf-8")
            for name in [*manifest.files.values(), NAME]:  # the manifest last
                os.replace(work / name, folder / name)
            for path in folder.iterdir():  # of earlier versions
                if _FILE.fullmatch(path.name) and path.name not in manifest.files.values():
                    with suppress(OSError):  # Windows keeps a file that is mapped; the next version removes it
                        path.unlink()
    except BaseException:
        if fresh and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return manifest


def _write_rows(
    work: Path,
    names: Mapping[str, str],
    batches: Iterable[tuple[np.ndarray, Sequence[IndexRow]]],
    storage: str,
    next_id: int,
) -> tuple[int, int, int]:
    """Writes the arrays and the rows; returns the number of rows, the width and the next id."""
    arrays: dict[str, _ArrayFile] = {}
    numbers: dict[str, int] = {}  # id -> row
    width, position = 0, 0
    try:
        with open(work / names["rows"], "wb") as file:
            for vectors, rows in batches:
                if not rows:
                    continue
                width = width or vectors.shape[1]
                if vectors.shape != (len(rows), width):
                    raise ValueError(f"vectors of shape {vectors.shape} for {len(rows)} rows of width {width}")
                ends = []
                for row in rows:
                    next_id, id = id_of(row, next_id, numbers)
                    numbers[id] = len(numbers)
                    values = {"id": id, "text": row.text, "source": row.source, "fields": dict(row.fields)}
                    try:
                        line = json.dumps(values, ensure_ascii=False, allow_nan=False)
                    except (TypeError, ValueError) as error:
                        raise ValueError(
                            f"{row.source or f'row {id!r}'}: fields that JSON cannot hold: {error}"
                        ) from None
                    position += file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
                    ends.append(position)
                parts = encoded(vectors, storage) | {"offsets": np.array(ends, np.int64)}
                for kind, part in parts.items():
                    if kind not in arrays:
                        arrays[kind] = _ArrayFile(work / names[kind], part)
                        if kind == "offsets":
                            arrays[kind].append(np.zeros(1, np.int64))
                    arrays[kind].append(part)
        if not numbers:
            raise ValueError("no rows to write; an index has at least one")
    finally:
        for array in arrays.values():
            array.close()
    return len(numbers), width, next_id


def id_of(row: IndexRow, next_id: int, numbers: Mapping[str, int]) -> tuple[int, str]:
    """The next number, and the id of a row: its own, or else the number.

    Args:
        row: the row.
        next_id: the first number that no row got.
        numbers: id -> number of its row, of the rows before.

    Raises:
        ValueError: a row before has the same id.
    """
    if row.id is not None:
        if row.id in numbers:
            where = f"{row.source}: " if row.source else ""
            raise ValueError(f"{where}id {row.id!r}: row {numbers[row.id]} has it already; ids are unique")
        return next_id, row.id
    while str(next_id) in numbers:
        next_id += 1
    return next_id + 1, str(next_id)


class _ArrayFile:
    """A .npy file that grows by rows, which have the type and the shape of those of a first part."""

    def __init__(self, path: Path, part: np.ndarray):
        self.file = open(path, "wb")  # noqa: SIM115
        self.dtype, self.shape, self.rows = part.dtype, part.shape[1:], 0
        self._header()

    def _header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.rows, *self.shape),
        }
        np.lib.format.write_array_header_1_0(self.file, header)  # NumPy leaves room in it for more rows

    def append(self, part: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(part).data)
        self.rows += len(part)

    def close(self) -> None:
        if not self.file.closed:
            with self.file:
                self.file.seek(0)
                self._header()


def manifest_of(folder: str | Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        ValueError: there is no index, or it is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    if not is_index(folder):
        raise ValueError(f"{folder}: no {NAME} in it; an index is made by `ctxrep index`")
    try:
        values = checks.read_json((folder / NAME).read_bytes())
        return checks.make(Manifest, values, "index")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / NAME}: {checks.printable(error, 400)}; {_REMEDY}") from None


def read(folder: str | Path) -> Stored:
    """The contents of a folder; vectors and rows stay on the disk until they are used.

    Every file but the graph is hashed first, at 1.5 GB a second on a processor with instructions for SHA-256: 0.1
    seconds for 100,000 vectors of 384 numbers in float32.

    Raises:
        ValueError: there is no index, or a file of it is missing, cut, or not the one that was written.
    """
    folder = Path(folder)
    while True:
        manifest = manifest_of(folder)
        try:
            return _read_stored(folder, manifest)
        except (ValueError, OSError):
            if manifest_of(folder) == manifest:  # else another process has replaced it meanwhile
                raise


def _read_stored(folder: Path, manifest: Manifest) -> Stored:
    """The files of a manifest, checked."""
    for kind, size in manifest.sizes.items():
        path = folder / manifest.files[kind]
        if not path.is_file():
            raise ValueError(f"{path}: missing; {_REMEDY}")
        if path.stat().st_size != size:
            raise ValueError(f"{path}: {path.stat().st_size:,} bytes, and the manifest says {size:,}; {_REMEDY}")
    count, width = manifest.rows, manifest.width
    kind = np.float32 if manifest.storage == "float32" else np.float16

    def array(name: str, dtype: Any, *shape: int) -> np.ndarray:
        return _array(folder / manifest.files[name], dtype, shape)

    vectors = array("vectors", kind, count, width)
    codes = scales = None
    if manifest.storage == "int8":
        codes, scales = array("codes", np.int8, count, width), array("scales", np.float32, count)
    rows = StoredRows(folder / manifest.files["rows"], array("offsets", np.int64, count + 1))
    for kind, digest in manifest.hashes.items():
        path = folder / manifest.files[kind]
        if sha256(path) != digest:
            raise ValueError(f"{path}: not the file that the index was written with; {_REMEDY}")
    graph = folder / manifest.files["graph"] if manifest.graph else None
    return Stored(manifest, vectors, codes, scales, rows, graph)


def _array(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A memory-mapped .npy file of one type and shape."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # of pickled objects, and of damaged headers whatever the parser raises
        reason = checks.printable(checks.first_line(error), 200)
        raise ValueError(f"{path}: not a whole .npy file of numbers ({reason}); {_REMEDY}") from None
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        wanted = f"{np.dtype(dtype)} {shape}"
        raise ValueError(f"{path}: {array.dtype} {array.shape}, and the manifest says {wanted}; {_REMEDY}")
    return array


def batches_of(vectors: np.ndarray, rows: Sequence[IndexRow]) -> Iterator[tuple[np.ndarray, Sequence[IndexRow]]]:
    """Vectors and rows in batches for `write`.

    Args:
        vectors: float32 (N, D).
        rows: one for each.
    """
    for begin in range(0, len(rows), BATCH):
        yield np.asarray(vectors[begin : begin + BATCH], np.float32), rows[begin : begin + BATCH]
