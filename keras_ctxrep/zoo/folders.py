"""The cache on the disk: where it is, locks on its models, and model folders written into it with their origin."""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from keras_ctxrep.atomic import atomic_folder
from keras_ctxrep.text import bundle as bundles

if TYPE_CHECKING:
    import keras

SOURCE = "source.json"  # in a cached model folder: its source, and the hashes of the files if they are known
Report = Callable[[str], None]  # called with messages for the user, of one line each


@contextmanager
def lock(folder: Path, name: str, report: Report) -> Iterator[None]:
    """A lock on the making of a folder, in FOLDER.lock. It ends with its process; the file stays.

    Args:
        folder: the folder.
        name: of the model, for the message that another process holds the lock.
        report: called with this message.
    """
    from filelock import FileLock, Timeout  # of the extra "tf", as what it guards

    folder.parent.mkdir(parents=True, exist_ok=True)
    file_lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        report(f"{name}: another process is making it; waiting for that one")
        file_lock.acquire()
    try:
        yield
    finally:
        file_lock.release()


def name_of(folder: str | Path) -> str:
    """What a model folder is called: the name it was published under, SIZE/DATASET or hf://OWNER/NAME, or its own.

    >>> name_of("models/mine"), name_of("zoo/weights/bert_3_384_12/books_wiki_en")
    ('mine', 'bert_3_384_12/books_wiki_en')
    """
    folder = Path(folder)
    try:
        return str(json.loads((folder / SOURCE).read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        shipped = folder.parent.parent.name == "weights"
        return f"{folder.parent.name}/{folder.name}" if shipped else folder.name


def is_whole(folder: Path) -> bool:
    """Whether there is a model folder whose files have the hashes in its bundle."""
    try:
        bundles.load(folder)
    except ValueError:
        return False
    return True


@contextmanager
def warnings_reported(report: Report) -> Iterator[None]:
    """Passes the text of warnings on, once the block has ended without an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        report(str(warning.message))


def save(folder: Path, model: "keras.Model", bundle: bundles.Bundle, origin: dict) -> None:
    """Writes a model folder of the cache, with its origin in source.json.

    Args:
        folder: to write.
        model, bundle: of the model.
        origin: of its weights, as JSON.
    """
    from keras_ctxrep import saving  # heavy, and not needed before

    with atomic_folder(folder) as new:
        saving.save(new, model, bundle)
        (new / SOURCE).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
