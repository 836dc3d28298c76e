"""Models of the Hugging Face Hub as model folders, by names like hf://OWNER/NAME or hf://OWNER/NAME@REVISION.

`huggingface_hub` downloads: its cache, its resumption, its tokens and its offline mode apply. Weights are read from
safetensors only.
"""

import re
from pathlib import Path

from keras_ctxrep.zoo import folders

__all__ = ["get"]

PREFIX = "hf://"
WEIGHTS = "*.safetensors"
FILES = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "modules.json",  # this and the next file are of sentence-transformers
    "sentence_bert_config.json",
    "*_Pooling/config.json",
    "*.safetensors.index.json",
    WEIGHTS,
)
_NAME = re.compile(r"hf://((?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")


def get(
    name: str, cache: str | Path | None = None, endpoint: str | None = None, report: folders.Report = print
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
    source = _download(name, repository, revision, endpoint)
    if not list(source.glob(WEIGHTS)):
        raise ValueError(f"{name}: no safetensors in this repository; pickled weights are not read from the Hub")
    folder = folders.cache_folder(cache) / "hf" / repository / source.name  # the commit
    with folders.lock(folder, name, report):
        if not folders.is_whole(folder):
            from keras_ctxrep.convert import huggingface  # heavy, and not needed before

            with folders.warnings_reported(report):
                model, bundle = huggingface.read(source)
            folders.save(folder, model, bundle, {"name": f"{PREFIX}{repository}@{source.name}"})
    return folder


def _download(name: str, repository: str, revision: str | None, endpoint: str | None) -> Path:
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
        reason = str(error).splitlines()[0]
        raise OSError(f"{name}: the Hub cannot be reached, and the model is not in its cache: {reason}") from None
    except (OSError, ValueError):
        raise
    except Exception as error:  # of the HTTP library, which differs between versions of `huggingface_hub`
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise OSError(f"{name}: the download failed: {reason}; the same command goes on from there") from None
