"""The record of a run, run.json in its model folder: command, arguments, options, files, versions, evaluations."""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from keras_ctxrep import saving
from keras_ctxrep.atomic import sha256
from keras_ctxrep.options import LEARNED, Options
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.pretraining import PREPARED
from keras_ctxrep.training import checkpoints
from keras_ctxrep.training import history as history_files
from keras_ctxrep.training.history import RECORD as NAME

__all__ = ["Recorded", "RunRecord", "check_replaceable", "finished", "options_from_run"]


@dataclass(frozen=True)
class RunRecord:
    """A command with its options and arguments."""

    command: str  #: "pretrain", for example
    options: Options
    arguments: Mapping[str, Any]  #: by name: numbers, strings, lists of them, and files and folders as `Path`
    files: Mapping[str, str]  #: path -> SHA-256 of every file that they name, of a folder the files that belong to it

    @classmethod
    def of(cls, command: str, options: Options, **arguments) -> "RunRecord":
        """The run, once its files are read and hashed.

        Args:
            command: its name, "pretrain" for example.
            options: of the run.
            arguments: by name, see `RunRecord`.
        """
        paths = dict.fromkeys(_paths([*arguments.values(), *_as_paths(options).values()]))
        files = {name: digest for path in paths for name, digest in _hashes(path).items()}
        return cls(command, options, arguments, files)

    @property
    def identity(self) -> str:
        """A hash of everything the result depends on; files count by their contents, not their names."""

        def content(path: Path) -> Any:  # of a file, or of the files in a folder
            name = os.path.abspath(path)
            inside = sorted(key for key in self.files if key == name or Path(name) in Path(key).parents)
            return [self.files[key] for key in inside] or str(path)

        relevant = self.options.plain(neutral=False)
        options = {name: value for name, value in _as_paths(self.options).items() if name in relevant}
        text = json.dumps([self.command, options, dict(self.arguments)], sort_keys=True, default=content)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def save(
        self,
        folder: str | Path,
        history: list[dict],
        dev: Mapping[str, Any] | None = None,
        tokens_per_step: float | None = None,
        epochs: float | None = None,
    ) -> None:
        """Writes run.json, which `options_from_run` reads.

        Args:
            folder: of the model.
            history: the evaluations of the run.
            dev: figures of the finished model on its development set: "examples", how many; the task's metrics, the
                main one first; "interval", its 95% interval.
            tokens_per_step: words or other tokens that a step reads, for pictures of the run; None: they vary.
            epochs: passes over the data, of a run whose length they say.
        """
        record = {
            "command": self.command,
            "identity": self.identity,
            "arguments": dict(self.arguments),
            "options": _as_paths(self.options),
            "seed": getattr(self.options, "seed", None),
            "files": dict(self.files),
            "versions": saving.versions(),
            "history": history,
        }
        record |= {} if dev is None else {"dev": dict(dev)}
        record |= {} if tokens_per_step is None else {"tokens_per_step": tokens_per_step}
        record |= {} if epochs is None else {"epochs": epochs}
        history_files.write_record(folder, record)


def finished(folder: str | Path, identity: str) -> bool:
    """Whether a model folder is the result of a run.

    Args:
        folder: the model folder.
        identity: of the run, as in `RunRecord`.
    """
    return _has_model(folder) and history_files.record(folder).get("identity") == identity


def check_replaceable(folder: str | Path, identity: str, overwrite: bool) -> None:
    """Refuses a folder with a finished model that is not of the run with this identity, unless `overwrite`.

    Args:
        folder: to write to; it may not exist.
        identity: of the run that would write.
        overwrite: allow it all the same.

    Raises:
        ValueError: it has one.
    """
    if _has_model(folder) and not overwrite and not finished(folder, identity):
        raise ValueError(
            f"{folder}: has the finished model of another run; choose another folder, or replace it with --overwrite "
            "(overwrite=True)"
        )


def _has_model(folder: str | Path) -> bool:
    return (Path(folder) / bundles.NAME).exists() and not checkpoints.unfinished(folder)


class Recorded(NamedTuple):
    """What is needed to repeat a run: `recipes.pretrain(**arguments, out=..., **options)` if that was the command."""

    command: str
    arguments: dict[str, Any]
    options: dict[str, Any]


def options_from_run(path: str | Path) -> Recorded:
    """Command, arguments and options of a run.json.

    Args:
        path: the file, or the model folder it is in.

    Raises:
        ValueError: it cannot be read, or is no run.json.

    Warns:
        UserWarning: a file of the run is missing or has changed since.
    """
    path = Path(path)
    path = path / NAME if path.is_dir() else path
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        recorded = Recorded(record["command"], dict(record["arguments"]), dict(record["options"]))
        files = dict(record["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a readable record of a run: {error}") from None
    for name, digest in files.items():
        if not os.path.isfile(name):
            warnings.warn(f"{name}: is missing; {path} was made with it", stacklevel=2)
        elif sha256(name) != digest:
            warnings.warn(f"{name}: has changed since {path} was made with it", stacklevel=2)
    return recorded


def _as_paths(options: Options) -> dict[str, Any]:
    """The options by name; those that are files or folders as `Path`."""
    entries = (entry for entry in fields(options) if not entry.metadata.get("argument"))
    values = {entry.name: (getattr(options, entry.name), str(entry.type)) for entry in entries}
    return {
        name: Path(value) if isinstance(value, str) and value not in LEARNED and "Path" in kind else value
        for name, (value, kind) in values.items()
    }


def _paths(value: Any) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _paths(part)


def _hashes(path: Path) -> dict[str, str]:
    path = Path(os.path.abspath(path))
    if path.is_file():
        return {str(path): sha256(path)}
    for manifest in (path / bundles.NAME, path / PREPARED):
        if manifest.is_file():
            listed = json.loads(manifest.read_text(encoding="utf-8"))["files"]
            return {str(manifest): sha256(manifest)} | {str(path / name): digest for name, digest in listed.items()}
    return {}
