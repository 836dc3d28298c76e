"""Models of the Hugging Face Hub as model folders, by names like hf://OWNER/NAME or hf://OWNER/NAME@REVISION.

`huggingface_hub` downloads: its cache, its resumption, its tokens and its offline mode apply. Weights are read from
safetensors only.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from keras_ctxrep.atomic import atomic_folder
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.zoo.download import cache_folder, locked

if TYPE_CHECKING:
    import keras

PREFIX = "hf://"
SOURCE = "source.json"  # in a cached model folder: its source, and the hashes of the files if they are known
WEIGHTS = "*.safetensors"
FILES = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "modules.json",  # this and the next file are of sentence-transformers
    "sentence_bert_config.json",
    "*.safetensors.index.json",
    WEIGHTS,
)
_NAME = re.compile(r"hf://((?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")


def get(
    name: str, cache: str | Path | None = None, endpoint: str | None = None, report: Callable[[str], None] = print
) -> Path:
    """The model folder of a BERT on the Hub, with its heads: from the cache, or downloaded and converted.

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
    match = _NAME.fullmatch(name)
    if match is None or ".." in name:
        raise ValueError(f"{name}: give {PREFIX}OWNER/NAME or {PREFIX}OWNER/NAME@REVISION")
    repository, revision = match.groups()
    source = _downloaded(name, repository, revision, endpoint)
    if not list(source.glob(WEIGHTS)):
        raise ValueError(f"{name}: no safetensors in this repository; pickled weights are not read from the Hub")
    folder = cache_folder(cache) / "hf" / repository / source.name  # the commit
    with locked(folder.with_name(f"{folder.name}.lock"), name, report):
        try:
            bundles.load(folder)
        except ValueError:  # not there, or damaged
            _convert(source, folder, {"name": f"{PREFIX}{repository}@{source.name}"}, report)
    return folder


def _downloaded(name: str, repository: str, revision: str | None, endpoint: str | None) -> Path:
    """The folder of a version's files in the cache of `huggingface_hub`."""
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise ImportError(f"{name}: needs huggingface_hub: pip install 'keras_ctxrep[hub]'") from None
    try:
        return Path(snapshot_download(repository, revision=revision, endpoint=endpoint, allow_patterns=list(FILES)))
    except errors.GatedRepoError:
        raise ValueError(f"{name}: access must be granted on its page, and a token set: `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise ValueError(f"{name}: no such repository, or a private one: `hf auth login`") from None
    except errors.RevisionNotFoundError:
        raise ValueError(f"{name}: the repository has no branch, tag or commit {revision!r}") from None
    except errors.LocalEntryNotFoundError as error:
        raise OSError(
            f"{name}: the Hub cannot be reached, and the model is not in its cache: {str(error).splitlines()[0]}"
        ) from None
    except (OSError, ValueError):
        raise
    except Exception as error:  # of the HTTP library, which differs between versions of `huggingface_hub`
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise OSError(f"{name}: the download failed: {reason}; the same command goes on from there") from None


def _convert(source: Path, folder: Path, origin: dict, report: Callable[[str], None]) -> None:
    from keras_ctxrep.convert import huggingface  # heavy, and not needed before

    with warnings_reported(report):
        model, bundle = huggingface.read(source)
    save(folder, model, bundle, origin)


@contextmanager
def warnings_reported(report: Callable[[str], None]) -> Iterator[None]:
    """Passes the text of warnings on, once the block has ended without an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        report(str(warning.message))


def save(folder: Path, model: "keras.Model", bundle: bundles.Bundle, origin: dict) -> None:
    """Writes a model folder of the cache, with its origin in source.json."""
    from keras_ctxrep import saving  # heavy, and not needed before

    with atomic_folder(folder) as new:
        saving.save(new, model, bundle)
        (new / SOURCE).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
