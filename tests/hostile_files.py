"""Opens files that would run code, fill memory or disk, or never end: `python -m tests.hostile_files [NAME...]`.

Each is opened with `SECONDS` of time and `MEMORY` bytes more than the process had before; the process prints a line of
JSON for each, {"name", "error", "message", "written", "seconds"}: the class and message of the exception, null where
there is none, the files outside of the case's own folder that were not there before, and the time. A process that
hangs or crashes ends without one.
"""

import argparse
import gzip
import io
import json
import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import keras
import numpy as np

from keras_ctxrep import saving
from keras_ctxrep.cli.flags import read_config
from keras_ctxrep.convert import allennlp, huggingface, vectors
from keras_ctxrep.recipes import glue_sets
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.pretraining import read_masked
from keras_ctxrep.zoo import download
from keras_ctxrep_tflite import runtime
from tests import tiny

SECONDS, MEMORY = 20, 700 << 20
LIMIT = 50_000_000  # bytes that an archive may have when it is unpacked
BOMB = 10 << 30  # bytes


class Case(NamedTuple):
    """A hostile file: a function that writes it into a folder and opens it, and a pattern of the error's message."""

    run: Callable[[Path], Any]
    message: str


CASES: dict[str, Case] = {}


def case(name: str, message: str) -> Callable[[Callable], Callable]:
    def added(function: Callable) -> Callable:
        CASES[name] = Case(function, message)
        return function

    return added


def zeros(size: int = BOMB) -> bytes:
    """A deflated stream of so many zeros, a thousandth of it long, made in a moment."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = compressor.compress(bytes(1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return block * (size >> 20) + b"\x03\x00"


def zipped(path: Path, entries: Sequence[tuple[str, bytes, int, int]], times: int = 1) -> None:
    """A zip archive of (name, deflated data, size, mode), whatever is true of them; it has no checksums.

    Args:
        times: how often its directory lists them.
    """
    directory, count = b"", len(entries) * times
    with path.open("wb") as file:
        for name, data, size, mode in entries:
            begin, raw = file.tell(), name.encode()
            extra = struct.pack("<HHQQ", 1, 16, size, len(data))
            sizes = struct.pack("<IIIHH", 0, 0xFFFFFFFF, 0xFFFFFFFF, len(raw), len(extra))
            file.write(struct.pack("<IHHHHH", 0x04034B50, 45, 0, 8, 0, 0) + sizes + raw + extra + data)
            directory += struct.pack("<IHHHHHH", 0x02014B50, 0x032D, 45, 0, 8, 0, 0) + sizes
            directory += struct.pack("<HHHII", 0, 0, 0, mode << 16, begin) + raw + extra
        begin, size = file.tell(), len(directory) * times
        end = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, begin)
        locator = struct.pack("<IIQI", 0x07064B50, 0, begin + size, 1)
        file.write(directory * times + end + locator)
        file.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 65535, 65535, 0xFFFFFFFF, 0xFFFFFFFF, 0))


FOLDERS = tempfile.TemporaryDirectory()  # of models that are copied


@cache
def hugging_face(task: str) -> Path:
    """A Hugging Face folder."""
    huggingface.write(Path(FOLDERS.name) / f"hf_{task}", *made(task))
    return Path(FOLDERS.name) / f"hf_{task}"


@cache
def made(task: str, family: str = "bert", **fields: Any) -> tuple[keras.Model, bundles.Bundle]:
    """A tiny model, once."""
    return tiny.model(task, family, **fields)


# ---------------------------------------------------------------------------------------------------------- archives


def unpack(path: Path) -> None:
    download.unpack(path, path.parent / "unpacked", LIMIT)


@case("zip: 10 GB", r"a\.zip: more than 50 MB unpacked")
def _zip_bomb(folder: Path) -> None:
    zipped(folder / "a.zip", [("weights.hdf5", zeros(), BOMB, 0o644)])
    unpack(folder / "a.zip")


@case("zip: 10 GB that are called 1 kB", r"a\.zip: a damaged archive")
def _zip_that_lies(folder: Path) -> None:
    zipped(folder / "a.zip", [("weights.hdf5", zeros(), 1000, 0o644)])
    unpack(folder / "a.zip")


@case("zip: the same 10 GB a thousand times", r"a\.zip: more than 50 MB unpacked")
def _zip_overlaps(folder: Path) -> None:
    zipped(folder / "a.zip", [("x", zeros(1 << 23), BOMB, 0o644)], times=1000)
    unpack(folder / "a.zip")


@case("zip: a million files", r"a\.zip: (more than 1000 files|a damaged archive)")
def _zip_of_many(folder: Path) -> None:
    zipped(folder / "a.zip", [("x", b"\x03\x00", 0, 0o644)], times=2_000_000)
    unpack(folder / "a.zip")


@case("zip: a folder in a folder in a folder", r"a\.zip: a name of 60,000 characters")
def _zip_deep(folder: Path) -> None:
    zipped(folder / "a.zip", [("x/" * 30_000, b"\x03\x00", 0, 0o644)])
    unpack(folder / "a.zip")


@case("zip: a file and a folder of one name", r"a\.zip: a damaged archive")
def _zip_twice(folder: Path) -> None:
    zipped(folder / "a.zip", [("a", b"\x03\x00", 0, 0o644), ("a/b", b"\x03\x00", 0, 0o644)])
    unpack(folder / "a.zip")


KINDS = {"link": stat.S_IFLNK, "device": stat.S_IFCHR, "pipe": stat.S_IFIFO, "socket": stat.S_IFSOCK}
for name, kind in KINDS.items():

    @case(f"zip: a {name}", r"a\.zip: 'x' is a link or a device")
    def _zip_kind(folder: Path, kind: int = kind) -> None:
        zipped(folder / "a.zip", [("x", b"\x03\x00", 0, kind | 0o777)])
        unpack(folder / "a.zip")


for name in ("../escaped", "a/../../escaped", "/tmp/escaped", "..\\escaped", "C:\\escaped", "//host/escaped"):

    @case(f"zip: {name}", r"a\.zip: .*lies outside the archive's folder")
    def _zip_escapes(folder: Path, name: str = name) -> None:
        zipped(folder / "a.zip", [(name, b"\x03\x00", 0, 0o644)])
        unpack(folder / "a.zip")

    @case(f"tar: {name}", r"a\.tar: .*lies outside the archive's folder")
    def _tar_escapes(folder: Path, name: str = name) -> None:
        tarred(folder / "a.tar", tarfile.TarInfo(name))
        unpack(folder / "a.tar")


def tarred(path: Path, *members: tarfile.TarInfo, rest: bytes = bytes(1024)) -> None:
    """A tar archive of headers, and what follows them."""
    path.write_bytes(b"".join(member.tobuf() for member in members) + rest)


def member(name: str = "x", **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


for name, fields in {
    "link": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
    "hard link": {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"},
    "device": {"type": tarfile.CHRTYPE},
    "block device": {"type": tarfile.BLKTYPE},
    "pipe": {"type": tarfile.FIFOTYPE},
}.items():

    @case(f"tar: a {name}", r"a\.tar: 'x' is a link or a device")
    def _tar_kind(folder: Path, fields: dict = fields) -> None:
        tarred(folder / "a.tar", member(**fields))
        unpack(folder / "a.tar")


@case("tar.gz: 10 GB", r"a\.tar\.gz: more than 50 MB unpacked")
def _tar_bomb(folder: Path) -> None:
    head = gzip.compress(member(size=BOMB).tobuf())
    (folder / "a.tar.gz").write_bytes(head + b"\x1f\x8b\x08\0\0\0\0\0\0\3" + zeros() + bytes(8))
    unpack(folder / "a.tar.gz")


@case("tar.gz: 10 GB behind 1 kB", r"a\.tar\.gz: a damaged archive")
def _tar_tail(folder: Path) -> None:
    head = gzip.compress(member(size=1000).tobuf() + bytes(1024))
    (folder / "a.tar.gz").write_bytes(head + b"\x1f\x8b\x08\0\0\0\0\0\0\3" + zeros() + bytes(8))
    unpack(folder / "a.tar.gz")


@case("tar: a sparse file of 10 GB", r"a\.tar: more than 50 MB unpacked")
def _tar_sparse(folder: Path) -> None:
    unpack(sparse(folder / "a.tar", b"", BOMB))


@case("tar: a sparse file of a million parts", r"a\.tar\.gz: a damaged archive")
def _tar_sparse_parts(folder: Path) -> None:
    part = b"".join(b"%011o\0%011o\0" % (512 * i, 512) for i in range(21)) + b"\1" + bytes(7)
    unpack(sparse(folder / "a.tar.gz", part * 80_000, 1000))


def sparse(path: Path, parts: bytes, size: int) -> Path:
    """A tar archive of a file in GNU's old sparse form, with blocks that list its parts."""
    header = bytearray(member(type=tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    header[386:482] = bytes(96)
    header[482:495] = (b"\1" if parts else b"\0") + (b"\x80" + size.to_bytes(11, "big"))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data = bytes(header) + parts
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data + bytes(1024))
    return path


for name, headers in {
    "a size of 5,000 digits": {"size": "9" * 5000},
    "a size below zero": {"size": "-5"},
    "a sparse map that does not end": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"},
    "a sparse map of words": {"GNU.sparse.map": "a,b", "GNU.sparse.size": "9"},
    "a path of a megabyte": {"path": "x/" * 500_000},
}.items():

    @case(f"tar: {name}", r"a\.tar: (a damaged archive|a name of 999,999 characters)")
    def _tar_extended(folder: Path, headers: dict = headers) -> None:
        extended = b"".join(record(key, value) for key, value in headers.items())
        extended_header = member(type=tarfile.XHDTYPE, size=len(extended)).tobuf()
        padding = bytes(-len(extended) % 512)
        tarred(
            folder / "a.tar", rest=extended_header + extended + padding + member(size=512).tobuf() + b"1" * (60 << 20)
        )
        unpack(folder / "a.tar")


def record(key: str, value: str) -> bytes:
    """A record of an extended header of tar: its own length, and what it says."""
    text = f" {key}={value}\n".encode()
    length = len(text) + len(str(len(text)))
    length += len(str(length)) - len(str(len(text)))
    return b"%d" % length + text


# ------------------------------------------------------------------------------------------------------- safetensors

HEADERS: dict[str, tuple[Any, str]] = {}


def safetensors(folder: Path, change: Callable[[dict, bytes], bytes]) -> None:
    """A Hugging Face folder whose weights are what `change` makes of the header and the data."""
    shutil.copytree(hugging_face("embed"), folder / "hf")
    path = folder / "hf" / huggingface.WEIGHTS
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    path.write_bytes(change(json.loads(data[8 : 8 + size]), data[8 + size :]))
    huggingface.read(folder / "hf")


def framed(header: Any, data: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length % (1 << 64)) + text + data


WORD = "embeddings.word_embeddings.weight"
CHANGES: dict[str, Callable[[dict, bytes], bytes]] = {
    "a header of 2 ** 63 bytes": lambda header, data: framed(header, data, 1 << 63),
    "a header of -1 bytes": lambda header, data: framed(header, data, -1),
    "a header of no bytes": lambda header, data: framed(header, data, 0),
    "a header longer than the file": lambda header, data: framed(header, data, 10_000_000),
    "a header of 10 GB": lambda header, data: framed(header, data, BOMB),
    "deep": lambda header, data: framed(b'{"a":' * 200_000, data),
    "not JSON": lambda header, data: framed(b"\x80\x04K\x01.", data),
    "a list": lambda header, data: framed([header], data),
    "100,000 names": lambda header, data: framed(
        header | {f"{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)}, data
    ),
}
for name, fields in {
    "offsets beyond the end": {"data_offsets": [0, 1 << 40]},
    "offsets below zero": {"data_offsets": [-4, 0]},
    "offsets backwards": {"data_offsets": [800, 0]},
    "offsets that overlap": {"data_offsets": [0, 4]},
    "offsets of 2 ** 64": {"data_offsets": [0, 1 << 64]},
    "offsets as texts": {"data_offsets": ["0", "800"]},
    "a dtype that lies": {"dtype": "F64"},
    "a dtype of half the size": {"dtype": "F16"},
    "a dtype of nobody": {"dtype": "X9"},
    "a shape of 2 ** 63": {"shape": [1 << 62, 4]},
    "a shape that overflows to its size": {"shape": [1 << 32, 1 << 32, 200]},
    "a shape below zero": {"shape": [-25, -8]},
    "another shape": {"shape": [8, 25]},
}.items():
    CHANGES[name] = lambda header, data, fields=fields: framed(header | {WORD: header[WORD] | fields}, data)
for name, change in CHANGES.items():

    @case(f"safetensors: {name}", r"model\.safetensors: ")
    def _safetensors(folder: Path, change: Callable = change) -> None:
        safetensors(folder, change)


# --------------------------------------------------------------------------------------------------------------- .npz

PARTS = ("tokens", "sizes", "first", "positions", "labels", "counts", "follows")


def npz(folder: Path, **changes: Any) -> None:
    arrays = {name: np.zeros(1, np.int32) for name in PARTS} | changes
    np.savez(folder / "a.npz", **arrays)
    list(read_masked(folder / "a.npz"))


class Harmful:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@case("npz: pickled objects", r"a\.npz: .*pretraining examples")
def _npz_pickle(folder: Path) -> None:
    npz(folder, tokens=np.array([Harmful(folder.parent / "escaped")], object))


@case("npz: 10 GB", r"a\.npz: .*pretraining examples.*compressed")
def _npz_bomb(folder: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_2_0(header, {"descr": "|i1", "fortran_order": False, "shape": (BOMB,)})
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    begin = compressor.compress(header.getvalue()) + compressor.flush(zlib.Z_FULL_FLUSH)
    entries = [(f"{name}.npy", begin + zeros(), BOMB + len(header.getvalue()), 0o644) for name in PARTS[:1]]
    zipped(folder / "a.npz", entries)
    list(read_masked(folder / "a.npz"))


@case("npz: a shape of 10 GB, and no numbers", r"a\.npz: .*pretraining examples")
def _npz_shape(folder: Path) -> None:
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_2_0(header, {"descr": "<i8", "fortran_order": False, "shape": (1 << 50,)})
        for name in PARTS:
            archive.writestr(f"{name}.npy", header.getvalue())
    list(read_masked(folder / "a.npz"))


# ------------------------------------------------------------------------------------------------- Keras, model folders


@case("keras: a Lambda layer", "")
def _lambda(folder: Path) -> None:
    harm = str(folder.parent / "escaped")
    layer = keras.layers.Lambda(lambda x: (open(harm, "w").close(), x)[1])
    inputs = keras.Input((2,))
    keras.Model(inputs, layer(inputs)).save(folder / "m.keras")
    Path(harm).unlink(missing_ok=True)
    keras.models.load_model(folder / "m.keras")


@case("keras: a class of os", "")
def _class_of_os(folder: Path) -> None:
    config = {"module": "os", "class_name": "system", "config": {"command": f"touch {folder.parent / 'escaped'}"}}
    with zipfile.ZipFile(folder / "m.keras", "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": keras.__version__}))
        archive.writestr("config.json", json.dumps(config | {"registered_name": None}))
        archive.writestr("model.weights.h5", b"")
    keras.models.load_model(folder / "m.keras")


@case("keras: opened as a model of ours", r"m\.keras: no bundle in it")
def _keras_as_ours(folder: Path) -> None:
    tiny.model("embed")[0].save(folder / "m.keras")
    runtime.load(folder / "m.keras")


def weights(folder: Path, change: Callable[[h5py.File, str], None]) -> None:
    """A model folder whose weights are changed, with the hash of these."""
    model, bundle = made("classify")
    saving.save(folder / "m", model, bundle)
    names: list[str] = []
    with h5py.File(folder / "m" / bundles.WEIGHTS, "r+") as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        change(file, names[0])
    bundles.save(bundle, folder / "m")
    saving.load(folder / "m")


def _replaced(make: Callable[[h5py.File, str], Any]) -> Callable[[h5py.File, str], None]:
    def change(file: h5py.File, name: str) -> None:
        del file[name]
        make(file, name)

    return change


for name, change in {
    "10 GB": _replaced(
        lambda file, name: file.create_dataset(name, (BOMB // 4,), "<f4", chunks=(1 << 20,), compression=1)
    ),
    "3 GB": _replaced(
        lambda file, name: file.create_dataset(name, (3 << 28,), "<f4", chunks=(1 << 20,), compression=1)
    ),
    "a link to another file": _replaced(
        lambda file, name: file.__setitem__(name, h5py.ExternalLink("/etc/passwd", "/"))
    ),
    "a link in the file": _replaced(lambda file, name: file.__setitem__(name, h5py.SoftLink("/"))),
    "texts": _replaced(lambda file, name: file.create_dataset(name, data=["a", "b"])),
}.items():

    @case(f"weights: {name}", r"model\.weights\.h5: not the weights of the model in bundle\.json")
    def _weights(folder: Path, change: Callable = change) -> None:
        weights(folder, change)


# ------------------------------------------------------------------------------------------------------ JSON and YAML

DEEP = b"[" * 3000 + b"]" * 3000
DEEPER = b"[" * 200_000 + b"]" * 200_000
VALUES = {
    "deep": DEEP, "deeper": DEEPER, "open": b'{"a":' * 200_000, "4,000 digits": b"9" * 4000,
    "5,000 digits": b"9" * 5000, "1e999": b"1e999", "NaN": b"NaN", "-1": b"-1", "2 ** 70": b"1180591620717411303424",
}  # fmt: skip


def put(path: Path, key: str, value: bytes) -> None:
    """Sets a key of a JSON object in a file to what may not be JSON."""
    fields = json.loads(path.read_bytes()) | {key: "HERE"}
    path.write_bytes(json.dumps(fields).encode().replace(b'"HERE"', value, 1))


for kind, value in VALUES.items():
    for key in ("max_length", "labels", "config", "head", "settings", "family", "unknown"):

        @case(f"bundle.json: {key} {kind}", r"bundle\.json")
        def _bundle(folder: Path, key: str = key, value: bytes = value) -> None:
            model, bundle = made("classify", "static")
            saving.save(folder / "m", model, bundle)
            put(folder / "m" / bundles.NAME, key, value)
            saving.load(folder / "m")

    for key in ("vocab_size", "hidden_size", "id2label", "architectures", "problem_type"):

        @case(f"config.json: {key} {kind}", r"(config\.json|hf|model\.safetensors): ")
        def _config(folder: Path, key: str = key, value: bytes = value) -> None:
            shutil.copytree(hugging_face("classify"), folder / "hf")
            put(folder / "hf" / huggingface.OPTIONS, key, value)
            huggingface.read(folder / "hf")

    for key in ("model", "normalizer", "added_tokens"):

        @case(f"tokenizer.json: {key} {kind}", r"tokenizer\.json: ")
        def _tokenizer(folder: Path, key: str = key, value: bytes = value) -> None:
            shutil.copytree(hugging_face("classify"), folder / "hf")
            for name in (huggingface.TOKENIZER_OPTIONS, bundles.VOCAB):
                (folder / "hf" / name).unlink()
            put(folder / "hf" / huggingface.TOKENIZER, key, value)
            huggingface.read(folder / "hf")

    @case(f"--config: {kind} in JSON", r"a\.json: ")
    def _json_options(folder: Path, value: bytes = value) -> None:
        (folder / "a.json").write_bytes(value)
        read_config(folder / "a.json")


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(b)}: &{chr(b)} [{', '.join([f'*{chr(b - 1)}'] * 9)}]\n" for b in range(98, 118)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{chr(b)}: &{chr(b)} {{<<: [{', '.join([f'*{chr(b - 1)}'] * 9)}]}}\n" for b in range(98, 118)
)
for name, text in {
    "a billion laughs": LAUGHS,
    "a billion merged mappings": MERGES,
    "a list in itself": "a: &a [*a]\n",
    "deep": "a: " + "[" * 50_000,
    "deep and whole": "a: " + "[" * 3000 + "]" * 3000,
    "5,000 digits": "a: " + "9" * 5000,
    "a call": "a: !!python/object/apply:os.system ['touch /tmp/escaped']\n",
    "sixty times sixty": "a: 1" + ":59" * 100_000 + "\n",
    "a date": "2001-99-99: 1\n",
}.items():

    @case(f"--config: {name} in YAML", r"a\.yaml: ")
    def _yaml_options(folder: Path, text: str = text) -> None:
        (folder / "a.yaml").write_text(text)
        read_config(folder / "a.yaml")

    @case(f"glue --table: {name} in YAML", r"a\.yaml: ")
    def _yaml_table(folder: Path, text: str = text) -> None:
        (folder / "a.yaml").write_text(text)
        glue_sets.of_yaml(folder / "a.yaml")


# ---------------------------------------------------------------------------------------------------- other weights


@case("allennlp: options.json of 10 GB", r"options\.json: ")
def _options_bomb(folder: Path) -> None:
    allennlp.write(folder / "m", *tiny.model("embed", "elmo"))
    os.truncate(folder / "m" / "options.json", BOMB)
    allennlp.read(folder / "m")


@case("allennlp: 10 GB in 1 kB", r"weights\.hdf5: ")
def _hdf5_bomb(folder: Path) -> None:
    allennlp.write(folder / "m", *tiny.model("embed", "elmo", sizes={"words": 5}, vocab="abcde"))
    options = folder / "m" / "options.json"
    fields = json.loads(options.read_text())
    fields["n_tokens_vocab"] = rows = BOMB // 4 // 4
    options.write_text(json.dumps(fields))
    (folder / "m" / "vocab.txt").unlink()
    with h5py.File(folder / "m" / "weights.hdf5", "r+") as file:
        width = file["embedding"].shape[1]
        del file["embedding"]
        file.create_dataset("embedding", (rows, width), "<f4", chunks=(1 << 16, width), compression=1)
    allennlp.read(folder / "m")


@case("vectors: a line of 10 GB", r"a\.txt\.gz:1: ")
def _long_line(folder: Path) -> None:
    (folder / "a.txt.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\3" + zeros() + bytes(8))
    vectors.read(folder / "a.txt.gz")


@case("vectors: a header of 2 billion words", r"a\.bin: ")
def _many_words(folder: Path) -> None:
    (folder / "a.bin").write_bytes(b"2000000000 100000\nthe " + bytes(100))
    vectors.read(folder / "a.bin")


# ---------------------------------------------------------------------------------------------------------- the limits


def outcome(name: str, folder: Path) -> dict:
    """Opens a case in a folder of its own, with the limits of this process."""
    (folder / "own").mkdir()
    begin, escaped = time.monotonic(), Path("/tmp/escaped")
    escaped.unlink(missing_ok=True)
    signal.alarm(SECONDS)
    error: BaseException | None = None
    try:
        CASES[name].run(folder / "own")
    except Exception as raised:
        error = raised
    signal.alarm(0)
    written = [str(path) for path in (*folder.iterdir(), escaped) if path.exists() and path.name != "own"]
    shutil.rmtree(folder / "own")
    for path in written:
        Path(path).unlink()
    message = str(error).replace(str(folder), "FOLDER")
    seconds = round(time.monotonic() - begin, 2)
    outcome = {"error": error and type(error).__name__, "message": message[:2000], "written": written}
    return {"name": name} | outcome | {"seconds": seconds}


def limit() -> None:
    """Lets this process take `MEMORY` more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    for task, family in (("classify", "bert"), ("embed", "elmo")):  # what TensorFlow allocates once
        model, bundle = tiny.model(task, family)
    del model, bundle
    limit()
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(outcome(name, Path(folder))), flush=True)


def outcomes(names: Iterable[str] = ()) -> dict[str, dict]:
    """The outcomes of cases, by their names; a case that ends the process has the signal as its error."""
    left = [*(names or CASES)]
    results: dict[str, dict] = {}
    while left:
        command = [sys.executable, "-W", "ignore", "-m", "tests.hostile_files", *left]
        process = subprocess.run(command, capture_output=True, text=True, errors="replace")
        results |= {result["name"]: result for result in map(json.loads, process.stdout.splitlines())}
        left = [name for name in left if name not in results]
        if left:
            state = {"error": f"exit {process.returncode}", "message": process.stderr[-2000:], "written": []}
            name = left.pop(0)
            results[name] = {"name": name} | state
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    main(parser.parse_args().names)
