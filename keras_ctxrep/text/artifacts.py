"""The files that a model is kept in: model folders, SavedModels with their versions, .tflite files with an archive."""

import hashlib
import json
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_ctxrep import checks
from keras_ctxrep.atomic import atomic_write, sha256
from keras_ctxrep.options import SIGNATURE as SIGNATURE

NAME, VOCAB, CARD, WEIGHTS = "bundle.json", "vocab.txt", "card.md", "model.weights.h5"
TOKENIZER = "tokenizer.json"  # in place of vocab.txt: a subword tokenizer, see `text.subwords`
UPDATES = "updates.npz"  # in place of weights: the changes of those of another model
SAVED_MODEL = "saved_model.pb"  # in the folder of a SavedModel
TFLITE = "model.tflite"  # the part of a .tflite file that LiteRT reads
LARGEST = {NAME: 16 << 20, CARD: 16 << 20, VOCAB: 256 << 20, TOKENIZER: 256 << 20}  # bytes of each file that are read


def visible(paths: Iterable[Path]) -> list[Path]:
    """Sorted paths without hidden files, such as the ._NAME that macOS writes beside NAME."""
    return sorted(path for path in paths if not path.name.startswith("."))


def versions(folder: Path) -> list[str]:
    """The names of the SavedModel versions in a folder, ascending."""
    return sorted((child.name for child in folder.iterdir() if child.name.isdecimal()), key=int)


def latest(path: str | Path) -> Path:
    """The folder of a SavedModel: `path` itself, or its highest version.

    Raises:
        ValueError: there is none.
    """
    path = Path(path)
    names = versions(path) if path.is_dir() else []
    version_folder = path if (path / SAVED_MODEL).is_file() else path / (names or ["0"])[-1]
    if not (version_folder / SAVED_MODEL).is_file():
        made = "`ctxrep train` makes a model folder, `ctxrep export` a SavedModel"
        raise ValueError(f"{path}: no {NAME} in it, and no SavedModel in it; {made}")
    return version_folder


class Artifact(NamedTuple):
    """The files of a bundle in an artifact."""

    source: Path  #: the folder or file that has them, for messages
    read: Callable[[str], bytes]  #: from the name of a file to its contents
    #: raises a ValueError where a file is not that of these hashes, name -> SHA-256
    check: Callable[[Mapping[str, str]], None]


def part(path: str | Path) -> tuple[Path, str]:
    """A file, and the name of the model in it that is meant by FILE.tflite/NAME; of any other path no name.

    >>> part("nowhere/model.tflite")[1]
    ''
    """
    path = Path(path)
    inside = path.parent.suffix == ".tflite" and path.parent.is_file()
    return (path.parent, path.name) if inside else (path, "")


def opened(path: Path) -> Artifact:
    """The files of the bundle in a model folder, in the assets.extra of a SavedModel, or at the end of a .tflite file.

    Of a file with several models FILE.tflite/NAME has the bundle of one.

    Raises:
        ValueError: there is no bundle, or it cannot be read.
    """
    if path.is_dir():
        return _folder(path)
    file, name = part(path)
    if not file.exists():
        raise ValueError(f"{path}: no such file or folder")
    return _archive(file, name)


def _folder(path: Path) -> Artifact:
    folder = next((candidate for candidate in (path, path / "assets.extra") if (candidate / NAME).is_file()), None)
    if folder is None:
        raise ValueError(f"{path}: no {NAME} in it; a model folder is made by `ctxrep pretrain` or `ctxrep train`")

    def check(hashes: Mapping[str, str]) -> None:
        for name, digest in hashes.items():
            file = folder / Path(name).name
            if not file.is_file() or sha256(file) != digest:
                state = "is not the file the bundle was written with" if file.is_file() else "is missing"
                raise ValueError(
                    f"{path}: {checks.printable(file.name)} {state}; copy the whole folder again, or train again"
                )

    return Artifact(folder, lambda name: _content(folder / name), check)


def _archive(path: Path, part: str) -> Artifact:
    files, begin = _bundle_files(checks.regular(path), part)

    def check(hashes: Mapping[str, str]) -> None:
        for name in {VOCAB, TOKENIZER} & hashes.keys():
            if hashlib.sha256(files[name]).hexdigest() != hashes[name]:
                raise ValueError(f"{path}: {name} in it is damaged; copy the file again, or convert again")
        if TFLITE in hashes:
            digest = sha256(path, begin)
        elif json.loads(files[NAME])["format"] == 1:  # files of version 0.1 have no hash of it
            digest = ""
        else:
            raise ValueError(f"{path / NAME}: files has no hash of {TFLITE}; copy the file again, or convert again")
        if digest != hashes.get(TFLITE, ""):
            raise ValueError(f"{path}: the model in it is damaged; copy the file again, or convert again")

    return Artifact(path, files.__getitem__, check)


def _bundle_files(path: Path, part: str) -> tuple[dict[str, bytes], int]:
    """The bundle's files in the archive at the end of a .tflite file, and where the archive begins.

    Of several models in a file `part` is the name of one, whose vocabulary is that of all where it has none; else "".
    """
    remedy = "copy the file again if it was cut off, or write it with `ctxrep tflite`"
    entries: dict[str, zipfile.ZipInfo] = {}
    files: dict[str, bytes | None] = {}
    parts: list[str] = []
    begin = 0
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = {entry.filename: entry for entry in archive.infolist()}
                begin = min((entry.header_offset for entry in entries.values()), default=0)
                parts = sorted(name.partition("/")[0] for name in entries if name.endswith(f"/{NAME}"))
                if part:
                    shared = {name: entries[name] for name in (VOCAB, TOKENIZER) if name in entries}
                    own = {
                        name.rpartition("/")[2]: each for name, each in entries.items() if name.startswith(f"{part}/")
                    }
                    entries = shared | own
                for name in {NAME, VOCAB, TOKENIZER, CARD} & set(entries):
                    _check_size(name, entries[name].file_size)
                    stored = entries[name].compress_type == zipfile.ZIP_STORED
                    files[name] = archive.read(entries[name]) if stored else None
        except (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, OSError, OverflowError, struct.error) as error:
            if NAME in entries:
                raise ValueError(f"{path}: the bundle in it cannot be read ({error}); {remedy}") from None
    if NAME not in files and parts:
        known = ", ".join(checks.printable(f"{path}/{name}") for name in parts)
        raise ValueError(f"{path}: {f'no model {checks.printable(part)}' if part else 'several models'} in it: {known}")
    if NAME not in files:
        raise ValueError(f"{path}: no bundle in it; {remedy}")
    for name, data in files.items():
        if data is None:  # as written, and so no file grows while it is read
            raise ValueError(f"{path}: {name} in it is compressed; {remedy}")
    return {name: data for name, data in files.items() if data is not None}, begin


def _content(path: Path) -> bytes:
    """The bytes of a file beside the weights."""
    _check_size(path.name, checks.regular(path).stat().st_size)
    return path.read_bytes()


def _check_size(name: str, size: int) -> None:
    if size > LARGEST[name]:
        raise ValueError(f"{name} has {size:,} bytes; no more than {LARGEST[name]:,} are read")


def append_archive(path: str | Path, data: bytes, files: Mapping[str, bytes]) -> None:
    """Writes a file with an uncompressed zip archive at its end.

    Args:
        path: the file.
        data: what comes before the archive.
        files: those of the archive, name -> contents.
    """
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
        with zipfile.ZipFile(temporary, "a", zipfile.ZIP_STORED) as archive:
            for name, content in files.items():
                archive.writestr(zipfile.ZipInfo(name), content)


def read_arrays(path: str | Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a .npz file that is not compressed, so that they cannot grow in memory.

    Args:
        path: the file.
        names: of the arrays to read (default: all).

    Raises:
        ValueError: the file or an array is missing, damaged or compressed; the message is the reason alone.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in arrays.zip.infolist()):
                raise ValueError("it is compressed")
            return {name: arrays[name] for name in (arrays.files if names is None else names)}
    except (OSError, ValueError, KeyError, EOFError, MemoryError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(checks.first_line(error)) from None


def check_finite(path: str | Path, weights: Iterable[tuple[str, np.ndarray]]) -> None:
    """Checks the weights of a model that is loaded: 0.04 seconds of a processor for the 110 million of BERT-base.

    Args:
        path: the file, for the error.
        weights: names and values; those that are no floating-point numbers are left out.

    Raises:
        ValueError: one is NaN or infinite.

    >>> check_finite("model.tflite", [("kernel", np.array([1.0, np.nan]))])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: model.tflite: the weights 'kernel' have 1 of 2 values that are NaN or infinite; ...
    """
    for name, values in weights:
        if values.dtype.kind not in "fV" or np.isfinite(values).all():  # V: bfloat16
            continue
        count = int(values.size - np.count_nonzero(np.isfinite(values)))
        raise ValueError(
            f"{path}: the weights {checks.printable(name)!r} have {count:,} of {values.size:,} values that are NaN or "
            "infinite; train it again, or take an earlier model"
        )
