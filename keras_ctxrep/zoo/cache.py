"""Published models as model folders: found in the package or the cache, or downloaded, checked and converted.

Of the names in the list only `get` downloads.
"""

import importlib
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from keras_ctxrep import places
from keras_ctxrep.atomic import sha256, temporary_folder
from keras_ctxrep.checks import printable
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import NAME, part, visible
from keras_ctxrep.zoo import folders, hub
from keras_ctxrep.zoo.download import fetch, unpack
from keras_ctxrep.zoo.entries import PATTERNS, Entry, lookup

if TYPE_CHECKING:
    import keras

__all__ = ["cached", "describe", "find", "get", "load"]


def cached(entry: Entry, cache: str | Path | None = None) -> Path | None:
    """The model folder of an entry in the package or in the cache, or None if it is in neither.

    Args:
        entry: of the list.
        cache: its folder (default: the environment variable CTXREP_CACHE, or ~/.cache/keras_ctxrep).

    >>> cached(lookup("elmo_2x2048_256_2048cnn_1xhighway"), "/nowhere") is None
    True
    """
    folder = (places.SHIPPED if entry.shipped else places.cache_folder(cache)) / entry.name
    return folder if (folder / NAME).is_file() else None


def describe(entry: Entry, cache: str | Path | None = None) -> dict[str, Any]:
    """What `ctxrep zoo list --json` prints of an entry: its properties, and "cached", its model folder or None.

    Args:
        entry: of the zoo.
        cache: the folder of downloads; None: the usual one.

    >>> describe(lookup("elmo_2x2048_256_2048cnn_1xhighway"), "/nowhere")["parameters"]
    28027728
    """
    folder = cached(entry, cache)
    return entry.as_dict() | {"cached": folder and str(folder)}


def find(name: str | Path, cache: str | Path | None = None) -> Path:
    """The path of a model: a path that exists, or the folder of a published model in the package or in the cache.

    Only a model of the Hugging Face Hub is downloaded: its name is an address. A folder of `transformers` is converted
    into the cache, see `hub.converted`.

    Args:
        name: a folder or a file, FILE.tflite/NAME of one with several models, a name of the list, or hf://OWNER/NAME.
        cache: see `cached`.

    Raises:
        ValueError: no such path and no such name, or the model is not in the cache.

    >>> print(find("."))
    .
    """
    if hub.is_published(Path(name)):
        return hub.converted(name, cache, report=warnings.warn)
    if part(name)[0].exists():
        return Path(name)
    if places.is_tflite(name):
        raise ValueError(f"{name}: no such file or folder")
    if str(name).startswith(hub.PREFIX):
        return hub.get(str(name), cache, report=warnings.warn)
    try:
        entry = lookup(str(name))
    except ValueError as error:
        raise ValueError(f"{name}: no such folder; as a published model: {str(error).partition(': ')[2]}") from None
    folder = cached(entry, cache)
    if folder is None and entry.shipped:
        remedy = "install it again"
        raise ValueError(f"{entry.name}: its weights are missing from this installation of keras_ctxrep: {remedy}")
    if folder is None:
        same = f", or give hf://google-bert/{name}" if f"{name}".startswith("bert-") else ""
        raise ValueError(f"{entry.name}: not downloaded yet: `ctxrep zoo get {entry.name}`{same}")
    return folder


def get(
    name: str,
    source: str | Path | None = None,
    mirror: str | None = None,
    cache: str | Path | None = None,
    report: folders.Report = print,
) -> Path:
    """The model folder of a published model: shipped, from the cache, or downloaded, checked, converted and cached.

    Calling it again resumes an interrupted download and replaces a damaged folder in the cache. If two processes get
    the same model, the second waits for the first and uses its result.

    Args:
        name: of the list, or hf://OWNER/NAME, see `hub.get`.
        source: the published files, already here: a folder, an archive or a weight file. Nothing is downloaded.
        mirror: URL that replaces scheme and host of the published URLs, "https://host" or "https://host/path".
        cache: see `cached`.
        report: called with messages for the user, of one line each.

    Raises:
        ValueError: no such name; no source for it; files that are not those published, damaged, or of another model.
        OSError: no network, no such file on the server, or no room on the disk.

    >>> import tempfile
    >>> from dataclasses import asdict
    >>> from keras_ctxrep.convert import allennlp
    >>> from keras_ctxrep.models import elmo
    >>> from keras_ctxrep.text.bundle import Bundle
    >>> config = elmo.SIZES["elmo_2x1024_128_2048cnn_1xhighway"]
    >>> with tempfile.TemporaryDirectory() as tmp:
    ...     allennlp.write(tmp, elmo.encoder(config), Bundle("elmo", "embed", asdict(config), 128))
    ...     folder = get("elmo_2x1024_128_2048cnn_1xhighway", source=tmp, cache=tmp, report=lambda line: None)
    ...     sorted(path.name for path in folder.iterdir())
    ['bundle.json', 'model.weights.h5', 'source.json']
    """
    if name.startswith(hub.PREFIX):
        if source is not None:
            raise ValueError(f"{name} is downloaded; for local files: `ctxrep convert {source} --from huggingface`")
        return hub.get(name, cache, mirror, report)
    entry = lookup(name)
    if entry.shipped:
        if source is not None:
            raise ValueError(f"{entry.name}: it comes with the package, so {source} is not read")
        return find(entry.name)
    folder = places.cache_folder(cache) / entry.name
    if cached(entry, cache) is not None:
        try:
            bundles.load(folder)
        except ValueError as error:
            report(f"{error}; it is made again")
        else:
            if source is not None:
                report(f"{entry.name}: it is cached already, so {source} is not read; to read it delete {folder}")
            return folder
    if source is None and not entry.urls:
        raise ValueError(f"{entry.name}: no source: {entry.note}")
    downloads = places.cache_folder(cache) / "downloads" / entry.name
    with folders.lock(downloads, entry.name, report):
        if folders.is_whole(folder):  # another process has made it meanwhile
            return folder
        if source is None:
            for url in [_mirrored(url, mirror) for url in entry.urls]:
                _fetch(url, downloads / _file_name(url), _largest(entry))
        _make(entry, folder, source, downloads, mirror or "", report)
        shutil.rmtree(downloads, ignore_errors=True)
    return folder


def load(name: str, cache: str | Path | None = None) -> "tuple[keras.Model, bundles.Bundle]":
    """The model of a published name and its bundle; it is downloaded unless it is in the package or in the cache.

    Args:
        name, cache: as in `get`.

    Raises:
        ValueError, OSError: as in `get`.
    """
    from keras_ctxrep import saving  # heavy, and not needed before

    return saving.load(get(name, cache=cache))


def _make(
    entry: Entry, folder: Path, source: str | Path | None, downloads: Path, mirror: str, report: folders.Report
) -> None:
    """Writes the model folder from published files: those of `source`, or else those in `downloads`."""
    with temporary_folder(folder) as work:
        verified = False
        try:
            files, hashes, verified = _check(entry, downloads if source is None else Path(source), work)
            if source is None and entry.sha256 and not verified:  # whoever renames a file evades its hash
                absent = ", ".join(sorted(set(entry.sha256) - set(hashes))) or f"weights of {entry.format}"
                raise ValueError(f"{entry.name}: not the published archive: no {absent} in it; try another --mirror")
            with folders.warnings_reported(report):
                model, bundle = _read(entry, files)
        except (ValueError, RuntimeError):
            if source is None and not verified:  # the downloaded files are unusable
                shutil.rmtree(downloads, ignore_errors=True)
            raise
        if not verified:
            digests = ", ".join(f"{file} {digest}" for file, digest in sorted(hashes.items()))
            reason = "could not be verified, no SHA-256 of these files is published"
            reason = "not the published files, so not verified" if entry.sha256 else reason
            report(f"{entry.name}: {reason}; found: {digests}")
    origin = entry.as_dict() | {"from": str(source or mirror), "found": hashes, "verified": verified}
    folders.save(folder, model, bundle, origin)


def _largest(entry: Entry) -> int:
    """Bytes that the published files cannot pass: weights with an optimizer's two moments."""
    return 16 * entry.parameters + (100 << 20)


def _fetch(url: str, path: Path, most: int) -> None:
    try:
        fetch(url, path, most, remedy="without network, --from PATH reads files that you have")
    except HTTPError as error:
        remedy = "--mirror URL takes it from elsewhere, --from PATH from a copy that you have"
        raise OSError(f"{url}: the server answers {error.code} {printable(error.reason)}; {remedy}") from None


def _file_name(url: str) -> str:
    return urlsplit(url).path.rsplit("/", 1)[-1]


def _mirrored(url: str, mirror: str | None) -> str:
    if mirror is None:
        return url
    if urlsplit(mirror).scheme not in ("http", "https"):
        raise ValueError(f"{mirror}: a mirror is an address that begins with https:// or http://")
    return mirror.rstrip("/") + urlsplit(url).path


# ----------------------------------------------------------------------------------------------- check and convert


def _check(entry: Entry, source: Path, work: Path) -> tuple[Path, dict[str, str], bool]:
    """The path for the converter, the hashes of the files, and whether all published hashes match."""
    if not source.exists():
        source = source.with_name(f"{source.name}.index")  # a checkpoint is named by the prefix of its files
        if not source.is_file():
            raise ValueError(f"{source.with_suffix('')}: no such file or folder")
    names = [_file_name(url) for url in entry.urls]
    if source.is_dir() and len(names) == 1 and (source / names[0]).is_file():
        source = source / names[0]
    hashes: dict[str, str] = {}
    if source.is_file() and _format(source) is None:
        hashes = _hashes(entry, [source])
        unpack(source, work / "files", _largest(entry))
        source = work / "files"
    if source.is_dir() and _format(source) is None:
        inside = [folder for folder in visible(source.iterdir()) if folder.name != "__MACOSX" and _format(folder)]
        if len(inside) != 1:
            state = f"; in several folders: {', '.join(folder.name for folder in inside)}" if inside else ""
            patterns = ", ".join(pattern for patterns in PATTERNS.values() for pattern in patterns)
            raise ValueError(f"{source}: no weights of {entry.name} in it; looked for {patterns}{state}")
        source = inside[0]
    form, folder = _format(source) or "", source if source.is_dir() else source.parent
    if form == entry.format:
        hashes |= _hashes(entry, [folder / name for name in {*names, *entry.sha256}])
    if not hashes:  # at least the weights, for the report
        weights = [path for pattern in PATTERNS[form] for path in visible(folder.glob(pattern))]
        hashes = {path.name: sha256(path) for path in (weights if source.is_dir() else [source])}
    verified = bool(entry.sha256) and form == entry.format and entry.sha256.items() <= hashes.items()
    return source, hashes, verified


def _hashes(entry: Entry, files: Iterable[Path]) -> dict[str, str]:
    """File name -> SHA-256 of the files that exist; raises if one is not that of the published file."""
    hashes = {path.name: sha256(path) for path in files if path.is_file()}
    for name, digest in hashes.items():
        published = entry.sha256.get(name, digest)
        if digest != published:
            raise ValueError(
                f"{entry.name}: {name} is not the published file: SHA-256 {digest}, not {published}; it is damaged or "
                "has changed: get it again, from elsewhere with --mirror URL"
            )
    return hashes


def _format(path: Path) -> str | None:
    """The format of a weight file, or of the weights in a folder."""
    for name, patterns in PATTERNS.items():
        if any(path.match(pattern) if path.is_file() else visible(path.glob(pattern)) for pattern in patterns):
            return name
    return None


def _read(entry: Entry, source: Path):
    """(model, bundle) of published files; raises if their sizes are not those of the entry."""
    name = _format(source)
    read = importlib.import_module(f"keras_ctxrep.convert.{name}").read
    if name == "google":  # its files do not have the casing
        model, bundle = read(source, lowercase=entry.lowercase)
    else:
        model, bundle = read(source.parent if name == "huggingface" and source.is_file() else source)
    sizes = {key: (bundle.config.get(key), size) for key, size in entry.config.items() if key != "filters"}
    differences = "; ".join(f"{key} {read}, not {size}" for key, (read, size) in sizes.items() if read != size)
    if differences:
        raise ValueError(f"{source}: not {entry.name}: {differences}")
    return model, bundle
