"""Downloads with resumption, and unpacking of archives that does not write outside its folder."""

import bz2
import errno
import gzip
import http.client
import lzma
import math
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import Request

from keras_ctxrep.atomic import NoSpace
from keras_ctxrep.transport import open_url, reason_of
from keras_ctxrep.version import __version__

SLOWEST = 60_000, 60  # bytes that must come in so many seconds; a slower download is stopped, and can be resumed
RESERVE = 100 << 20  # bytes of a disk that an answer of unknown size does not fill
BLOCK = 1 << 20  # bytes read at a time
MEMBERS = 1000  # maximum number of files in an archive
LONGEST = 1000  # characters of a file's name in an archive
FULL = (errno.ENOSPC, errno.EDQUOT)
COMPRESSED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


def fetch(
    url: str,
    path: Path,
    most: int,
    headers: Mapping[str, str] | None = None,
    check: Callable[[Path], object] = lambda part: None,
    remedy: str = "try again later",
) -> None:
    """Downloads a file unless it exists; an interrupted download is resumed.

    Args:
        url: https:// or http://; redirects from https:// to http:// are refused.
        path: the file.
        most: size in bytes that it must not pass.
        headers: of the request.
        check: called with the downloaded file before it gets its name; one that raises a ValueError is deleted.
        remedy: what to do where there is no answer.

    Raises:
        HTTPError: the server refuses.
        OSError: no network, an answer that ends or is too slow, or no room on the disk; the message says what to do.
        ValueError: the file is too large, or `check` raises it.
    """
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        _download(url, part, most, {"User-Agent": f"keras_ctxrep/{__version__}"} | dict(headers or {}))
        check(part)
        os.replace(part, path)
        _state(part).unlink(missing_ok=True)
    except ValueError:
        part.unlink(missing_ok=True)
        _state(part).unlink(missing_ok=True)
        raise
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, HTTPError):
            raise
        if isinstance(error, OSError) and error.errno in FULL:
            room = "free some, or choose another disk with --cache FOLDER (of hf://: with HF_HOME), and repeat it"
            raise NoSpace(f"{path.parent}: no room on the disk: {error.strerror}; {room}") from None
        if getattr(error, "filename", None) is not None:  # a local file
            raise
        reason = reason_of(error)
        size = part.stat().st_size if part.exists() else 0
        if size:
            then = "the same command goes on from there"
            raise OSError(f"{url}: interrupted after {size / 1e6:.1f} MB: {reason}; {then}") from None
        raise OSError(f"{url}: no answer: {reason}; {remedy}") from None


def _state(part: Path) -> Path:
    """The file that identifies what is being downloaded: size, validator."""
    return part.with_name(f"{part.name}.of")


def _download(url: str, part: Path, most: int, headers: dict[str, str]) -> None:
    """Downloads to `part`, resuming if it is the beginning of the same file."""
    from tqdm import tqdm

    state = _state(part)
    old_state = state.read_text(errors="replace") if part.exists() and state.exists() else ""
    size, _, validator = old_state.partition(" ")
    have = part.stat().st_size if validator else 0
    if have and size == str(have):
        return
    asked = headers | {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = open_url(Request(url, headers=asked), SLOWEST[1], SLOWEST[0])
    except HTTPError as error:
        error.close()
        if error.code != 416 or not have:
            raise
        part.unlink()  # the file on the server is shorter than the part: it has changed
        return _download(url, part, most, headers)
    with response:
        begin, total = 0, response.length
        if response.status == 206:
            part_of = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", response.headers.get("Content-Range", ""))
            begin, total = (int(part_of[1]), int(part_of[2])) if part_of else (-1, None)
        new_state = f"{total} {response.headers.get('ETag') or response.headers.get('Last-Modified') or ''}"
        if response.status == 206 and (not have or begin != have or new_state != old_state):
            if not have:
                raise ConnectionError("a part of the file, which was not asked for")
            part.unlink()  # the file on the server has changed
            return _download(url, part, most, headers)
        if total and total > most:
            raise ValueError(f"{url}: {total:,} bytes; no more than {most:,} were expected")
        free = shutil.disk_usage(part.parent).free
        if total and free < total - begin:
            raise OSError(errno.ENOSPC, f"{(total - begin) / 1e6:.0f} MB to come, {free / 1e6:.0f} MB free")
        state.write_text(new_state)
        name, count = part.name.removesuffix(".part"), begin
        bar = tqdm(desc=name, total=total, initial=begin, unit="B", unit_scale=True, disable=None, leave=False)
        with open(part, "ab" if begin else "wb") as file, bar:
            while block := response.read1(BLOCK):
                count += len(block)
                if count > most:
                    raise ValueError(f"{url}: it does not end after the {most:,} bytes that were expected")
                if total is None and count - begin > free - RESERVE:
                    raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB free, and the answer does not say its size")
                file.write(block)
                bar.update(len(block))
        if total and count != total:
            raise ConnectionError(f"the connection closed before {total / 1e6:.1f} MB")


class _Bounded:
    """Limits what `tarfile` and `zipfile` read: one read, since they keep lists in memory, the total, and `left` bytes.

    >>> with open(__file__, "rb") as file:
    ...     len(_Bounded(file, 9).read(5))
    5
    """

    def __init__(self, file: IO[bytes], limit: int):
        self._file, self._limit, self.left = file, limit, math.inf
        self.tell, self.seekable = file.tell, file.seekable

    def read(self, size: int = BLOCK) -> bytes:
        self.left -= size
        if not 0 <= size <= BLOCK or self.left < 0 or self.tell() + size > self._limit + BLOCK:
            raise tarfile.ReadError("longer than what it says of its members")
        return self._file.read(size)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET and position > self._limit + BLOCK:
            raise tarfile.ReadError("longer than what it says of its members")
        return self._file.seek(position, whence)


def unpack(archive: Path, folder: Path, limit: int) -> None:
    """Unpacks a zip or tar archive of plain files and folders, none of them outside `folder`.

    Args:
        archive: the file.
        folder: the folder to unpack into, which must not exist.
        limit: maximum total size of the files in bytes.

    Raises:
        ValueError: not an archive, damaged, or with members other than plain files and folders.
        OSError: no room on the disk.
    """
    folder.mkdir(parents=True)
    try:
        (_unpack_zip if zipfile.is_zipfile(archive) else _unpack_tar)(archive, folder, _Members(archive, limit))
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            remedy = "free some, or choose another disk with --cache FOLDER"
            raise NoSpace(f"{folder}: no room on the disk: {error.strerror}; {remedy}") from None
        raise ValueError(f"{archive}: a damaged archive; get it again: {error}") from None


class _Members:
    """Checks the members of an archive, each before it is unpacked."""

    def __init__(self, archive: Path, limit: int):
        self.archive, self.limit, self._count, self._size = archive, limit, 0, 0

    def check(self, name: str, kind: str, size: int) -> None:
        """Raises ValueError for a member that is not unpacked; `kind` is "" for a file or a folder."""
        self._count += 1
        self._size += size
        if self._count > MEMBERS:
            raise ValueError(f"{self.archive}: more than {MEMBERS} files; not the published archive")
        if len(name) > LONGEST:  # a folder in a folder in a folder, which takes hours to make
            raise ValueError(f"{self.archive}: a name of {len(name):,} characters; not the published archive")
        path = Path(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:|.*\0", name, re.DOTALL):
            raise ValueError(
                f"{self.archive}: {name!r:.200} lies outside the archive's folder; it is not safe to unpack"
            )
        if kind:
            raise ValueError(f"{self.archive}: {name!r} is {kind}; an archive of plain files is needed")
        if self._size > self.limit:
            raise ValueError(f"{self.archive}: more than {self.limit / 1e6:.0f} MB unpacked; not the published archive")


def _unpack_zip(archive: Path, folder: Path, members: _Members) -> None:
    with open(archive, "rb") as file:
        bounded: Any = _Bounded(file, archive.stat().st_size)
        with zipfile.ZipFile(bounded) as zipped:
            for info in zipped.infolist():
                plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
                kind = "encrypted" if info.flag_bits & 1 else "" if plain else "a link or a device"
                members.check(info.filename, kind, info.file_size)
            zipped.extractall(folder)


def _headers(file: Any) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """An open tar archive with each of its members in turn; no more than a block is read of a member's headers."""
    file.left = BLOCK
    try:
        tarred = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115, it closes no file
        while member := tarred.next():
            file.left = member.size + BLOCK
            yield tarred, member
            file.left = BLOCK
    except (ValueError, IndexError) as error:  # numbers that are none
        raise tarfile.ReadError(f"its headers: {error}") from None


def _unpack_tar(archive: Path, folder: Path, members: _Members) -> None:
    with open(archive, "rb") as file:
        first = file.read(tarfile.BLOCKSIZE)
    opener = next((opener for begin, opener in COMPRESSED.items() if first.startswith(begin)), None)
    if opener is None:
        try:
            tarfile.TarInfo.frombuf(first, "utf-8", "replace")
        except tarfile.TarError:
            raise ValueError(f"{archive}: neither weights nor a zip or tar archive") from None
    with (opener or open)(archive, "rb") as file:
        bounded: Any = _Bounded(file, members.limit + 4 * tarfile.BLOCKSIZE * MEMBERS)
        for tarred, member in _headers(bounded):
            kind = "" if member.isreg() or member.isdir() else "a link or a device"
            members.check(member.name, kind, member.size)
            tarred.extract(member, folder, filter="data")
        bounded.left = math.inf
        while bounded.read(BLOCK):  # to the end, where the checksum of the compressed stream is checked
            pass
