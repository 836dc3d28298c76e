"""Models of the Hugging Face Hub as model folders, by names like hf://OWNER/NAME or hf://OWNER/NAME@REVISION; and back.

The cache, the tokens, the address and the offline mode of `huggingface_hub` apply; it does not download, for it makes
paths of what a server answers. Weights are read from safetensors only.
"""

import hashlib
import re
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request

from keras_ctxrep import places
from keras_ctxrep.atomic import atomic_write, sha256
from keras_ctxrep.checks import printable, read_json
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.families import TEXT_SIDES
from keras_ctxrep.transport import open_url, read_all, reason_of
from keras_ctxrep.version import __version__, install_hint
from keras_ctxrep.zoo import folders
from keras_ctxrep.zoo.download import fetch

__all__ = ["get", "push"]

PREFIX = "hf://"
WEIGHTS = "*.safetensors"
FILES = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "sentencepiece*.model",  # in place of tokenizer.json
    "spiece.model",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "modules.json",  # this and the next two files are of sentence-transformers
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "*_Pooling/config.json",
    "*.safetensors.index.json",
    WEIGHTS,
    bundles.NAME,  # a model folder as it is, of a family that has no form of `transformers`
    bundles.WEIGHTS,
)
PICKLED = ("pytorch_model*.bin", "pytorch_model.bin.index.json")  # read from a folder of one's own alone
WHOLE = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"}
SECONDS, LARGEST, PAGES = 60, 16 << 20, 20  # of a listing: time and bytes of a page, number of pages
_NAME = re.compile(r"hf://((?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)(?:@(\w[\w./-]*))?")
_COMMIT = re.compile("[0-9a-f]{40}")


def get(
    name: str, cache: str | Path | None = None, endpoint: str | None = None, report: folders.Report = print
) -> Path:
    """The model folder of a model on the Hub, with its heads: from the cache, or downloaded.

    A BERT in the form of `transformers` is converted; what `push` wrote of another family is a model folder.

    Args:
        name: hf://OWNER/NAME, the latest version of its main branch, or hf://OWNER/NAME@REVISION, a branch, tag or
            commit.
        cache: folder of the converted models (default: the environment variable CTXREP_CACHE, or
            ~/.cache/keras_ctxrep). What is downloaded is in the cache of `huggingface_hub`.
        endpoint: address of the Hub (default: the environment variable HF_ENDPOINT, or https://huggingface.co).
        report: called with messages for the user, of one line each.

    Raises:
        ValueError: not a name of this form, no such repository or revision, no safetensors in it, or a model that is
            not a BERT.
        OSError: no network, and the files are not in the cache of `huggingface_hub`; or the download fails.
        ImportError: `huggingface_hub` or `safetensors` is not installed.

    >>> get("hf://../etc")
    Traceback (most recent call last):
    ...
    ValueError: hf://../etc: give hf://OWNER/NAME or hf://OWNER/NAME@REVISION
    """
    repository = _Hub(name, endpoint)
    commit = repository.commit()
    folder = places.cache_folder(cache) / "hf" / repository.repository / commit
    source = repository.snapshot(commit)
    with folders.lock(folder, name, report):
        if not folders.is_whole(folder):
            paths, verified = _download(repository, commit)
            hashes = {path: sha256(source / path) for path in paths}
            origin = {"name": f"{PREFIX}{repository.repository}@{commit}", "found": hashes, "verified": verified}
            state = "as the Hub lists them" if verified else "from the cache, not compared with the Hub"
            _convert(source, folder, origin, state, report)
    repository.remember(commit)
    return folder


def is_published(path: Path) -> bool:
    """Whether a folder is one of `transformers`, with its configuration and weights, and no model folder."""
    files = {file.name for file in path.iterdir()} if path.is_dir() else set()
    return "config.json" in files and bundles.NAME not in files and bool(files & WHOLE)


def converted(source: str | Path, cache: str | Path | None = None, report: folders.Report = print) -> Path:
    """The model folder of a folder of `transformers`, such as a snapshot of the Hub, in the cache.

    It is converted when its files were not before: the name of the model folder is a hash of theirs.

    Args:
        source: the folder, see `is_published`.
        cache, report: as in `get`.

    Raises:
        ValueError: as in `convert.huggingface.read`.
    """
    source = Path(source)
    hashes = {path: sha256(source / path) for path in _wanted(source, (*FILES, *PICKLED))}
    identity = hashlib.sha256(repr((__version__, hashes)).encode()).hexdigest()
    folder = places.cache_folder(cache) / "hf" / "folders" / identity[:32]
    with folders.lock(folder, str(source), report):
        if not folders.is_whole(folder):
            report(f"{source} is converted, once, into {folder}")
            _convert(source, folder, {"name": str(source), "found": hashes}, "of a folder", report)
    return folder


def _convert(source: Path, folder: Path, origin: dict, state: str, report: folders.Report) -> None:
    """Writes the model folder of what is in a folder, which `state` says something of."""
    from keras_ctxrep import saving  # heavy, and not needed before
    from keras_ctxrep.convert import huggingface

    read = saving.load if bundles.NAME in origin["found"] else huggingface.read
    with folders.warnings_reported(report):
        model, bundle = read(source)
    folders.save(folder, model, replace(bundle, card=_card(origin, state) + bundle.card), origin)


def push(
    folder: str | Path,
    name: str,
    dry_run: bool = False,
    private: bool = False,
    endpoint: str | None = None,
    report: folders.Report = print,
) -> dict[str, int]:
    """Uploads a model to the Hub, in one commit.

    A BERT is uploaded in the form that `transformers` opens, as in `ctxrep convert --to huggingface`; a model of
    another family, or with a head that `transformers` does not have, as its model folder, which `get` opens, with its
    card. run.json and checkpoints, which name files of this machine, stay here.

    Args:
        folder: a model folder.
        name: hf://OWNER/NAME, which is made if it is not there, or hf://OWNER/NAME@BRANCH.
        dry_run: nothing is sent.
        private: of a repository that is made.
        endpoint: as in `get`.
        report: called with a line about each file, and the address in the end.

    Returns: the files that are, or would be, in the commit: path -> bytes.

    Raises:
        ValueError: not a name of this form, or not a model folder.
        OSError: the Hub cannot be reached, or refuses.
        ImportError: `huggingface_hub` is not installed.
    """
    repository = _Hub(name, endpoint)
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary)
        _write_files(Path(folder), files, report)
        sizes = {
            path.relative_to(files).as_posix(): path.stat().st_size
            for path in sorted(files.rglob("*"))
            if path.is_file()
        }
        for path, size in sizes.items():
            report(f"{size:>13,}  {path}")
        if not dry_run:
            repository.upload(files, private)
            report(f"{repository.endpoint}/{repository.repository}")
    return sizes


def _write_files(folder: Path, out: Path, report: folders.Report) -> None:
    """Writes the files of a model folder in the form that is uploaded."""
    bundle = bundles.load(folder)
    if TEXT_SIDES[bundle.family].transformers:
        from keras_ctxrep import saving
        from keras_ctxrep.convert import huggingface

        try:
            return huggingface.write(out, *saving.load(folder))
        except ValueError as error:  # a head that `transformers` does not have
            report(f"{error}; the model folder is uploaded as it is")
    from huggingface_hub import ModelCardData

    for file in (bundles.NAME, *bundle.files):
        shutil.copyfile(folder / file, out / file)
    data = ModelCardData(library_name="keras_ctxrep", tags=["keras", bundle.family, bundle.task])
    card = bundle.card.strip() or f"# {folders.name_of(folder)}"
    how = '`keras_ctxrep.load("hf://OWNER/NAME")` opens this model.'
    (out / "README.md").write_text(f"---\n{data.to_yaml()}\n---\n\n{card}\n\n{how}\n", encoding="utf-8")


def _download(repository: "_Hub", commit: str) -> tuple[list[str], bool]:
    """Fills the folder of a commit; returns the files to read, and whether they are those that the Hub lists."""
    cached = _wanted(repository.snapshot(commit))
    try:
        files = repository.files(commit)
    except (OSError, _Refused):
        if not _has_weights(cached):
            raise
        return cached, False
    if not _has_weights(files):
        raise ValueError(
            f"{repository.name}: no safetensors in this repository; pickled weights are not read from the Hub"
        )
    for path, file in files.items():
        repository.fetch(commit, path, file)
    return [*files], True


def _has_weights(paths: Collection[str]) -> bool:
    return any(path in paths for path in ("model.safetensors", "model.safetensors.index.json", bundles.WEIGHTS))


def _wanted(folder: Path, patterns: Collection[str] = FILES) -> list[str]:
    """The files of a folder that a model is read from."""
    files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    return [file for file in files if any(fnmatchcase(file, pattern) for pattern in patterns)]


def _card(origin: dict, state: str) -> str:
    rows = "".join(f"- {printable(file)}: SHA-256 {digest}\n" for file, digest in origin["found"].items())
    return f"# {origin['name']}\n\nConverted from these files, {state}:\n\n{rows}"


class _File(NamedTuple):
    """What the Hub says of a file: SHA-256 of a large one (LFS), else the SHA-1 that git gives it."""

    size: int
    digest: str

    def check(self, path: Path) -> None:
        """Raises a ValueError unless a file is this one."""
        size, actual = path.stat().st_size, ""
        if size == self.size:
            blob = partial(hashlib.sha1, b"blob %d\0" % size, usedforsecurity=False)
            with path.open("rb") as file:
                actual = hashlib.file_digest(file, "sha256" if len(self.digest) == 64 else blob).hexdigest()
        if actual != self.digest:
            state = f"its hash is {actual}, not {self.digest}" if actual else f"{size:,} bytes, not {self.size:,}"
            raise ValueError(f"{path.name.removesuffix('.part')}: not the file that the Hub lists: {state}")


class _Hub:
    """The Hub's HTTP API. What it answers is checked before it becomes a path or an address.

    https://huggingface.co/docs/hub/api; https://huggingface.co/docs/huggingface_hub/guides/manage-cache for the cache.
    """

    def __init__(self, name: str, endpoint: str | None):
        match = _NAME.fullmatch(name)
        if match is None or ".." in name:
            raise ValueError(f"{printable(name)}: give {PREFIX}OWNER/NAME or {PREFIX}OWNER/NAME@REVISION")
        try:
            from huggingface_hub import constants
            from huggingface_hub.utils import build_hf_headers
        except ImportError:
            raise ImportError(f"{name}: needs huggingface_hub: {install_hint('hub')}") from None
        self.name, self.repository, self.revision = name, match[1], match[2] or "main"
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        if urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise ValueError(f"{self.endpoint}: the Hub's address begins with https:// or http://")
        self.headers, self.offline = build_hf_headers(), constants.HF_HUB_OFFLINE
        self.cache = Path(constants.HF_HUB_CACHE) / "--".join(["models", *self.repository.split("/")])

    def snapshot(self, commit: str) -> Path:
        """The folder of a commit's files in the cache."""
        return self.cache / "snapshots" / commit

    def commit(self) -> str:
        """The commit of the revision, by the Hub, or by the cache where the Hub does not answer."""
        if _COMMIT.fullmatch(self.revision):
            return self.revision
        try:
            info, _ = self._json(f"revision/{quote(self.revision, safe='')}")
        except (OSError, _Refused):
            if commit := self._remember():
                return commit
            raise
        commit = info.get("sha") if isinstance(info, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise self._strange(info, "as sha a commit of 40 hexadecimal digits is needed")
        return commit

    def remember(self, commit: str) -> None:
        """Keeps the commit of the revision, for use without a network."""
        if commit not in (self.revision, self._remember()):
            # of a cache that may not be written, or has a branch of another form, the model is there all the same
            with suppress(OSError), atomic_write(self.cache / "refs" / self.revision) as new:
                new.write_text(commit)

    def _remember(self) -> str:
        ref = self.cache / "refs" / self.revision
        commit = ref.read_text(errors="replace").strip() if ref.is_file() else ""
        return commit if _COMMIT.fullmatch(commit) else ""

    def files(self, commit: str) -> dict[str, _File]:
        """The files of a commit that a model is read from: path -> what they must be."""
        entries: list[Any] = []
        page, following = self._json(f"tree/{commit}?recursive=true&expand=false")
        for _ in range(PAGES):
            if not isinstance(page, list):
                raise self._strange(page, "a list of files is needed")
            entries += page
            if following is None:
                files = dict(self._file(entry) for entry in entries if self._is_wanted(entry))
                for path in files:
                    if any(str(parent) in files for parent in PurePosixPath(path).parents):
                        raise self._strange(path, "a file is no folder")
                return files
            page, following = self._json(following)
        raise self._strange(page, f"more than {PAGES} pages of files")

    def fetch(self, commit: str, path: str, file: _File) -> None:
        """Downloads a file into the cache, unless it is there."""
        target = self.snapshot(commit) / path
        try:
            if target.is_file():
                try:
                    return file.check(target)
                except ValueError:  # of an earlier, damaged download
                    target.unlink()
            fetch(self._url(f"resolve/{commit}/{quote(path)}", api=""), target, file.size, self.headers, file.check)
        except HTTPError as error:
            raise self._refuse(error) from None
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}; try again, or another endpoint") from None

    def upload(self, files: Path, private: bool) -> None:
        """Uploads a folder in one commit."""
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self.endpoint)
        try:
            api.create_repo(self.repository, private=private or None, exist_ok=True)
            api.upload_folder(
                repo_id=self.repository,
                folder_path=files,
                revision=self.revision,
                commit_message="Model of keras_ctxrep",
            )
        except Exception as error:  # of the libraries beneath, which have no class of errors in common
            code = getattr(getattr(error, "response", None), "status_code", None)
            remedy = "log in with a token that may write: `hf auth login`" if code in (401, 403) else "try again later"
            raise OSError(f"{self.name}: {self.endpoint}: {printable(error)}; {remedy}") from None

    def _is_wanted(self, entry: Any) -> bool:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise self._strange(entry, "an object with a path is needed")
        return entry.get("type") == "file" and any(fnmatchcase(entry["path"], pattern) for pattern in FILES)

    def _file(self, entry: dict) -> tuple[str, _File]:
        path, lfs = entry["path"], entry.get("lfs")
        parts = path.split("/")
        if {"", ".", ".."} & {*parts} or re.search(r"[\\:]", path) or not path.isprintable() or len(path) > 200:
            raise self._strange(path, "a path within the repository is needed")
        stored = entry if lfs is None else lfs
        size, digest = (stored.get(key) if isinstance(stored, dict) else None for key in ("size", "oid"))
        length = 40 if lfs is None else 64
        if type(size) is not int or size < 0 or not re.fullmatch(f"[0-9a-f]{{{length}}}", str(digest)):
            raise self._strange(entry, f"a size and a hash of {length} hexadecimal digits are needed")
        return path, _File(size, str(digest))

    def _url(self, path: str, api: str = "api/models/") -> str:
        return f"{self.endpoint}/{api}{self.repository}/{path}"

    def _json(self, path: str) -> tuple[Any, str | None]:
        """An answer of the API, and the address of its next page."""
        if self.offline:
            raise OSError(f"{self.name}: HF_HUB_OFFLINE is set, and the model is not in {self.cache.parent}")
        url = path if "://" in path else self._url(path)
        headers = self.headers if urlsplit(url)[:2] == urlsplit(self.endpoint)[:2] else {}
        try:
            with open_url(Request(url, headers=headers), SECONDS) as response:
                content, link = read_all(response, LARGEST), response.headers.get("Link") or ""
        except HTTPError as error:
            with error:
                raise self._refuse(error) from None
        except (OSError, HTTPException) as error:
            message = "the Hub cannot be reached, and the model is not in its cache"
            raise OSError(f"{self.name}: {message}: {self.endpoint}: {reason_of(error)}") from None
        except ValueError as error:
            raise self._strange("", str(error)) from None
        following = re.search(r'<(https?://[^<>\s]{1,2000})>; *rel="next"', link)
        try:
            return read_json(content), following and following[1]
        except ValueError as error:
            raise self._strange(content, str(error)) from None

    def _strange(self, answer: Any, needed: str) -> ValueError:
        return ValueError(
            f"{self.name}: {self.endpoint} does not answer as the Hub does: {printable(answer) or 'nothing'}; {needed}"
        )

    def _refuse(self, error: HTTPError) -> Exception:
        code = error.headers.get("X-Error-Code")
        if code == "GatedRepo":
            return _Refused(f"{self.name}: access must be granted on its page, and a token set: `hf auth login`")
        if code == "RevisionNotFound":
            return ValueError(f"{self.name}: the repository has no branch, tag or commit {self.revision!r}")
        if code == "RepoNotFound" or error.code == 401:
            return _Refused(f"{self.name}: no such repository, or a private one: `hf auth login`")
        return OSError(f"{self.name}: {self.endpoint} answers {error.code} {printable(error.reason)}; try again later")


class _Refused(ValueError):
    """No access, with the token that is set."""
