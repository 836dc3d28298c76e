"""The bundle: everything a model needs besides its weights, in one JSON file that is part of every artifact."""

import glob
import hashlib
import json
import os
import platform
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from keras_ctxrep import fields
from keras_ctxrep.fields import Range, Rows
from keras_ctxrep.text.features import FAMILIES, Features, Reads
from keras_ctxrep.text.tokens import vocab_text

NAME, VOCAB, CARD, WEIGHTS = "bundle.json", "vocab.txt", "card.md", "model.weights.h5"
TFLITE_FIGURES = "## Export to .tflite"  # heading in the card of a .tflite file that was measured
TFLITE = "model.tflite"  # the part of a .tflite file that LiteRT reads
FORMAT = 2
# format 1: what `reads` is for tasks with other inputs than plain texts
_READS = {"tag": {"words": True}, "answer": {"windows": True}}
_RENAMED = {"beside": "extra_embeddings", "both_ends": "output_mix"}  # names of format 1 -> of format 2
_ANSWERING = {"stride": 128, "max_answer": 30, "null_threshold": None}  # fields of format 1, and their defaults
_CHECKED = {  # values of a config that text preparation reads, and the settings of predictions
    "config": {
        "max_characters": Annotated[int, Range(3, 1000)],
        "words": Annotated[int, Range(0, 1 << 31)],
        "buckets": Annotated[int, Range(0, 1 << 31)],
        "min_n": Annotated[int, Range(0, 100)],
        "max_n": Annotated[int, Range(0, 100)],
        "lowercase": bool,
    },
    "settings": {"stride": Rows, "max_answer": Rows, "null_threshold": float | None, "windows": str},
}
_CHECKED["extra_embeddings"] = _CHECKED["config"]
_REPLACED = "replaced"  # in a temporary folder: the old folder that is being replaced


@dataclass(frozen=True)
class Bundle:
    """What a model is and how its text is prepared; read by Keras, TF Serving and the edge runtime alike.

    Attributes:
        family: "elmo", "bert" or "static".
        task: the name of one of `keras_ctxrep.tasks`, or of a family's pretraining: "language_model" (ELMo),
            "pretrainer" (BERT).
        config: the fields of the family's Config.
        stack: keyword arguments of `models.stack.by_name`, for a task network over the encoder.
        extra_embeddings: fields of `models.static.Config`, of static vectors that the task network reads too.
        max_length: maximum number of tokens per text (words for ELMo, pieces with markers for BERT).
        labels: class names in the order of the logits.
        vocab: BERT's pieces, the words of static vectors, or the words that an ELMo language model predicts or reads;
            stored in vocab.txt.
        lowercase: whether word pieces are lower-cased and lose their accents.
        strip_accents: whether accents are removed, if that differs from `lowercase`; else None.
        split_cjk: whether each Chinese character is a word of its own, as published.
        card: the model card of the pretrained weights in Markdown: data, licence, figures, limits; stored in card.md,
            and kept by a model that was fine-tuned from them.
        reads: what the task reads of a text.
        head: keyword arguments of the head.
        settings: the task's own settings for predictions.
        columns: names of the columns, or their numbers, in the files that a task model was trained from.
        versions: of the packages that wrote it.
        files: SHA-256 of the files beside it.
    """

    family: str
    task: str
    config: dict
    max_length: int
    labels: tuple[str, ...] = ()
    vocab: tuple[str, ...] = ()
    lowercase: bool = True
    strip_accents: bool | None = None
    split_cjk: bool = True
    card: str = ""
    reads: Reads = field(default_factory=Reads)
    head: dict = field(default_factory=dict)
    stack: dict = field(default_factory=dict)
    extra_embeddings: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    columns: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)

    @cached_property
    def features(self) -> Features:
        """The function from texts to the model's input dict."""
        return FAMILIES[self.family].features(self)

    @cached_property
    def label_numbers(self) -> dict[str, int]:
        """Label -> its position in the logits."""
        return {label: number for number, label in enumerate(self.labels)}

    @property
    def pairs(self) -> bool:
        """Whether it reads pairs of texts."""
        return bool(self.reads.pair)

    def files_as_bytes(self, files: dict[str, str] | None = None) -> dict[str, bytes]:
        """The bundle as files, name -> contents: vocab.txt and card.md if it has them, and bundle.json.

        Args:
            files: SHA-256 of further files beside it.
        """
        content = {VOCAB: vocab_text(self.vocab).encode()} if self.vocab else {}
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()} | (files or {})
        fields = {name: value for name, value in asdict(self).items() if name not in ("vocab", "card")}
        content |= {CARD: self.card.encode()} if self.card else {}
        content[NAME] = (
            json.dumps({"format": FORMAT} | fields | {"files": hashes}, ensure_ascii=False, indent=1) + "\n"
        ).encode()
        return content


def save(bundle: Bundle, folder: str | Path) -> None:
    """Writes vocab.txt, card.md and then bundle.json, with the hash of the weights if they are in the folder."""
    folder = Path(folder)
    weights = folder / WEIGHTS
    for name, data in bundle.files_as_bytes({WEIGHTS: sha256(weights)} if weights.exists() else None).items():
        with written_whole(folder / name) as path:
            path.write_bytes(data)
    if not bundle.card:  # that of an earlier model
        (folder / CARD).unlink(missing_ok=True)


def write_tflite(path: str | Path, model: bytes, bundle: Bundle, files: Mapping[str, bytes] | None = None) -> None:
    """Writes a .tflite file: what LiteRT reads, then a zip archive with the bundle, uncompressed.

    Args:
        path: the file.
        model: what LiteRT reads.
        bundle: of the model.
        files: more files of the archive, name -> contents.
    """
    digest = hashlib.sha256(model).hexdigest()
    with written_whole(path) as temporary:
        temporary.write_bytes(model)
        with zipfile.ZipFile(temporary, "a", zipfile.ZIP_STORED) as archive:
            for name, data in {**bundle.files_as_bytes({TFLITE: digest}), **(files or {})}.items():
                archive.writestr(zipfile.ZipInfo(name), data)


def load(path: str | Path) -> Bundle:
    """The bundle of a model folder, a SavedModel folder (in its assets.extra) or a .tflite file (zipped at its end).

    Raises:
        ValueError: there is no bundle, it is damaged, or the hash of a file beside it does not match.
    """
    path = Path(path)
    if path.is_dir():
        folder = next((candidate for candidate in (path, path / "assets.extra") if (candidate / NAME).is_file()), None)
        if folder is None:
            raise ValueError(f"{path}: no {NAME} in it; a model folder is made by `ctxrep pretrain` or `ctxrep train`")
        bundle = _parse(folder, lambda name: (folder / name).read_bytes())
        for name, digest in bundle.files.items():
            file = folder / Path(name).name
            if not file.is_file() or sha256(file) != digest:
                state = "is not the file the bundle was written with" if file.is_file() else "is missing"
                raise ValueError(f"{path}: {file.name} {state}; copy the whole folder again, or train again")
        return bundle
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder")
    files, begin = _archived(path)
    bundle = _parse(path, files.__getitem__)
    if VOCAB in bundle.files and hashlib.sha256(files[VOCAB]).hexdigest() != bundle.files[VOCAB]:
        raise ValueError(f"{path}: {VOCAB} in it is damaged; copy the file again, or convert again")
    if TFLITE in bundle.files:
        digest = sha256(path, begin)
    elif json.loads(files[NAME])["format"] == 1:  # files of version 0.1 have no hash of it
        digest = ""
    else:
        raise ValueError(f"{path / NAME}: files has no hash of {TFLITE}; copy the file again, or convert again")
    if digest != bundle.files.get(TFLITE, ""):
        raise ValueError(f"{path}: the model in it is damaged; copy the file again, or convert again")
    return bundle


def _archived(path: Path) -> tuple[dict[str, bytes], int]:
    """The bundle's files in the archive at the end of a .tflite file, and where the archive begins.

    Raises:
        ValueError: there is no bundle, or it cannot be read.
    """
    remedy = "copy the file again if it was cut off, or write it with `ctxrep tflite`"
    entries: dict[str, zipfile.ZipInfo] = {}
    files: dict[str, bytes | None] = {}
    begin = 0
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = {entry.filename: entry for entry in archive.infolist()}
                begin = min((entry.header_offset for entry in entries.values()), default=0)
                for name in {NAME, VOCAB, CARD} & set(entries):
                    stored = entries[name].compress_type == zipfile.ZIP_STORED
                    files[name] = archive.read(entries[name]) if stored else None
        except (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, OSError, OverflowError, struct.error) as error:
            if NAME in entries:
                raise ValueError(f"{path}: the bundle in it cannot be read ({error}); {remedy}") from None
    if NAME not in files:
        raise ValueError(f"{path}: no bundle in it; {remedy}")
    for name, data in files.items():
        if data is None:  # as written, and so no file grows while it is read
            raise ValueError(f"{path}: {name} in it is compressed; {remedy}")
    return {name: data for name, data in files.items() if data is not None}, begin


def from_files(files: Mapping[str, bytes], source: str | Path) -> Bundle:
    """The bundle of which `files` are the `files_as_bytes`.

    Args:
        source: where they come from, for the errors.

    Raises:
        ValueError: it is damaged.

    >>> bundle = Bundle("elmo", "embed", {}, max_length=2)
    >>> from_files(bundle.files_as_bytes(), "memory") == bundle
    True
    """
    return _parse(Path(source), files.__getitem__)


def _parse(source: Path, read: Callable[[str], bytes]) -> Bundle:
    """The bundle in a folder or an archive whose files `read` returns."""
    try:
        content: dict[str, Any] = _upgraded(json.loads(read(NAME)))
        for name in ("labels", "reads"):  # every one has them
            content[name]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{source}: {NAME} is damaged or of another version: {error}") from None
    except KeyError as error:
        raise ValueError(f"{source}: {NAME} is damaged or missing: {error.args[0]}") from None
    try:
        fields.check_names(Bundle, content)
        content["reads"] = fields.make(Reads, content["reads"], "reads")
        hints = fields.annotations(Bundle) | {"max_length": Rows}
        fields.check_values({name: hint for name, hint in hints.items() if name != "reads"}, content)
        for name, allowed in _CHECKED.items():
            fields.check_values(allowed, content.get(name, {}), f"{name}.")
        for name in ("files", "columns"):
            fields.check_values(dict.fromkeys(content.get(name, ()), str), content.get(name, {}), f"{name}.")
        content["labels"] = tuple(content["labels"])
        bundle = Bundle(**content)
        if bundle.family not in FAMILIES:
            raise ValueError(f"family={bundle.family!r}: one of {', '.join(FAMILIES)}")
        if FAMILIES[bundle.family].vocabulary and VOCAB not in bundle.files:
            raise ValueError(f"a {bundle.family} encoder needs {VOCAB}")
        if VOCAB in bundle.files:
            bundle = replace(bundle, vocab=tuple(read(VOCAB).decode("utf-8").removesuffix("\n").split("\n")))
    except ValueError as error:
        raise ValueError(f"{source / NAME}: {error}") from None
    except KeyError:
        raise ValueError(f"{source}: {VOCAB} is missing; copy the file again") from None
    except FileNotFoundError:
        raise ValueError(f"{source}: {VOCAB} is missing; copy the whole folder again, or train again") from None
    try:  # not hashed: a user may edit it
        return replace(bundle, card=read(CARD).decode("utf-8"))
    except (KeyError, FileNotFoundError):
        return bundle
    except ValueError as error:
        raise ValueError(f"{source / CARD}: {error}") from None


def _upgraded(fields: dict) -> dict:
    """Converts the fields of a bundle of any format to the current format."""
    version = fields.pop("format")
    if version not in (1, FORMAT):
        raise ValueError(f"format is not 1 to {FORMAT}")
    if version == 1:
        fields = {_RENAMED.get(name, name): value for name, value in fields.items()}
        if "stack" in fields:
            fields["stack"] = {_RENAMED.get(name, name): value for name, value in fields["stack"].items()}
        reads = fields["reads"] = {"pair": fields.pop("pairs", False)} | _READS.get(fields["task"], {})
        settings = {name: fields.pop(name, default) for name, default in _ANSWERING.items()}
        fields["settings"] = settings if "windows" in reads else {}
    return fields


def sha256(path: str | Path, size: int | None = None) -> str:
    """SHA-256 of a file, in hexadecimal, or of its first `size` bytes; little of it is in memory at a time."""
    if size is None:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest, left = hashlib.sha256(), size
    with open(path, "rb", buffering=0) as file:
        while left > 0 and (chunk := file.read(min(left, 1 << 18))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A temporary name for a file, renamed to `path` at the end; nothing is left behind after an error.

    The suffixes stay at the end of the name, for writers that read the format from them.
    """
    path = Path(path)
    with temporary_folder(path) as folder:
        yield folder / path.name
        os.replace(folder / path.name, path)


def check_folder(path: str | Path) -> Path:
    """The absolute path of a folder to write.

    Raises:
        ValueError: it is a file or a mount point.

    >>> check_folder("/")
    Traceback (most recent call last):
    ValueError: /: a mount point, which cannot be replaced; name a folder in it
    """
    path = Path(path).resolve()
    if path.exists() and (not path.is_dir() or path.is_mount()):
        kind = "a mount point, which cannot be replaced" if path.is_dir() else "a file"
        raise ValueError(f"{path}: {kind}; name a folder{' in it' if path.is_dir() else ''}")
    return path


@contextmanager
def written_whole_folder(path: str | Path, without: Collection[str] = ()) -> Iterator[Path]:
    """A temporary folder that replaces the folder `path` at the end; after an error that folder is unchanged.

    A reader sees the old folder, the new one or, between two renames, none. If the process is killed between them, the
    next write to the same path first restores the old folder.

    Args:
        path: the folder, which need not exist.
        without: entries of the old folder to delete; all others that the new folder lacks are moved into it.

    Raises:
        ValueError: `path` is a file or a mount point.
    """
    path = check_folder(path)
    with temporary_folder(path) as work:
        new, old = work / "new", work / _REPLACED
        new.mkdir()
        yield new
        if path.exists():
            shutil.copymode(path, new)
            os.replace(path, old)
        os.replace(new, path)
        for name in without:
            if (old / name).exists():
                os.replace(old / name, work / name)


@contextmanager
def temporary_folder(path: str | Path) -> Iterator[Path]:
    """A new folder beside `path`, removed at the end, as are the folders that killed processes left for the same path.

    Its name contains the machine and the process. Folders of other machines on a shared disk are not touched.

    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with temporary_folder(f"{parent}/model") as folder:
    ...         print(folder.name.startswith(".model."), folder.parent == Path(parent))
    ...     print(list(Path(parent).iterdir()))
    True True
    []
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = f".{path.name}.{platform.node()}-"
    for folder in path.parent.glob(f"{glob.escape(mark)}*"):
        process, _, random = folder.name.removeprefix(mark).partition("-")
        # with another "-" it is a folder of the machine NODE-NUMBER
        if process.isdecimal() and "-" not in random and not _lives(int(process)):
            _remove(folder, path)
    folder = Path(tempfile.mkdtemp(prefix=f"{mark}{os.getpid()}-", dir=path.parent))
    try:
        yield folder
    finally:
        _remove(folder, path)


def _lives(process: int) -> bool:
    if os.name != "posix":  # elsewhere signal 0 does not just test for the process
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


def _remove(temporary: Path, path: Path) -> None:
    """Removes a temporary folder of `path`, after moving back entries of the replaced folder that `path` lacks."""
    old = temporary / _REPLACED
    if old.is_dir() and not path.exists():
        os.replace(old, path)
    elif old.is_dir():
        for entry in old.iterdir():
            if not os.path.lexists(path / entry.name):
                os.replace(entry, path / entry.name)
    shutil.rmtree(temporary, ignore_errors=True)
