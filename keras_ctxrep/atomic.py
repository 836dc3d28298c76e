"""Files and folders that are written whole or not at all."""

import errno
import glob
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None

__all__ = [
    "NoSpace",
    "atomic_folder",
    "atomic_write",
    "check_folder",
    "lock_folder",
    "reserve",
    "sha256",
    "temporary_folder",
]

_REPLACED = "replaced"  # in a temporary folder: the old folder that is being replaced
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_locked: ContextVar[frozenset[str]] = ContextVar("_locked", default=frozenset())  # the folders of this thread


class NoSpace(OSError):
    """The disk is full, or a limit on the size of files or on a user's share of the disk is reached."""


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


def reserve(path: str | Path, size: int) -> None:
    """Raises an error if a file cannot be written for lack of space, before a library opens it that would crash.

    HDF5 ends the process when it cannot write. The space is allocated for a moment, in a file without a name, so that
    a user's share of the disk counts too.

    Args:
        path: the file that will be written, or that will grow.
        size: of it, in bytes.

    Raises:
        NoSpace: there is less, or files may not be as large.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     reserve(f"{folder}/model.weights.h5", 1 << 60)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    keras_ctxrep.atomic.NoSpace: ...model.weights.h5: 1152921504606.8 MB are needed...
    """
    path = Path(path)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0] if resource else -1
    if 0 <= limit < size:
        raise NoSpace(f"{path}: {size / 1e6:.1f} MB: {os.strerror(errno.EFBIG)}; see ulimit -f")
    size -= path.stat().st_size if path.exists() else 0
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    try:
        if hasattr(os, "posix_fallocate") and size > 0:
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(folder).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        if error.errno in _FULL:
            needed = f"{size / 1e6:.1f} MB are needed and {shutil.disk_usage(folder).free / 1e6:.1f} MB are free"
            raise NoSpace(f"{path}: {needed}: {os.strerror(error.errno)}") from None
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # of a disk that cannot allocate
            raise


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
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
def atomic_folder(path: str | Path, without: Collection[str] = ()) -> Iterator[Path]:
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

    Raises:
        NoSpace: an error for lack of space came up inside, from whichever library.

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
    except Exception as error:
        if isinstance(error, NoSpace) or (reason := _lack_of_space(error)) is None:
            raise
        written = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        raise NoSpace(f"{path}: not written: {reason}, after {written / 1e6:.1f} MB of it") from error
    finally:
        _remove(folder, path)


def _lack_of_space(error: Exception) -> str | None:
    """The system's reason if an error is for lack of space; TensorFlow and HDF5 have it in their messages only."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno) if error.errno in _FULL else None
    if isinstance(error, ValueError):  # about data, which it may quote
        return None
    return next((reason for reason in map(os.strerror, _FULL) if reason in str(error)), None)


@contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Keeps other processes from writing in the same folder, on systems and disks that lock files.

    The folder is made if it is missing, and is not left behind empty. A lock within a lock of the same folder is that.

    Raises:
        ValueError: another process is writing in it.
        OSError: an error of a file came up inside, and the folder is none any more, or cannot be written.
    """
    folder, name = Path(folder), os.path.realpath(folder)
    if name in _locked.get():
        yield
        return
    missing = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = None if fcntl is None else _locked_descriptor(folder)
    token = _locked.set(_locked.get() | {name})
    try:
        yield
    except OSError as error:
        if folder.is_dir() and os.access(folder, os.W_OK):
            raise
        raise OSError(f"{folder}: make it a folder that can be written, and start again: {error}") from error
    finally:
        _locked.reset(token)
        if missing:
            with suppress(OSError):  # it has files, or is gone
                folder.rmdir()
        if descriptor is not None:
            os.close(descriptor)


def _locked_descriptor(folder: Path) -> int:
    """Of a folder that is locked until it is closed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore[reportOptionalMemberAccess]
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(f"{folder}: another process is writing in it; wait for it, or stop it") from None
    except OSError:  # a network disk without locks
        pass
    return descriptor


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
