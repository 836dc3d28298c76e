"""The record of a run: what a model folder was trained with, so that it can be trained again."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import sha256, written_whole

NAME = "run.json"


@dataclass(frozen=True)
class Run:
    """A command with its arguments and options, and the files that it reads.

    Attributes:
        command: the recipe.
        arguments: what is trained on, by name.
        options: all options by name.
        files: path -> SHA-256, of a model folder that of its bundle, which has the hashes of the rest.
        neutral: options that the result does not depend on.
    """

    command: str
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    files: Mapping[str, str]
    neutral: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """A short name of all that the result depends on, to tell whether a checkpoint belongs to this run."""
        options = {name: value for name, value in self.options.items() if name not in self.neutral}
        parts = (self.command, sorted(self.arguments.items()), sorted(options.items()), sorted(self.files.values()))
        return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:16]

    def write(self, folder: str | Path, history: list[dict], versions: Mapping[str, str]) -> None:
        """Writes run.json into a model folder."""
        fields = {name: getattr(self, name) for name in ("command", "arguments", "options", "files")}
        with written_whole(Path(folder) / NAME) as path:
            record = fields | {"versions": versions, "history": history}
            path.write_text(json.dumps(record, indent=1, ensure_ascii=False, default=str) + "\n", "utf-8")


def hashes(*paths: Any) -> dict[str, str]:
    """Path -> SHA-256 of the files and model folders among some values."""
    found = {}
    for path in paths:
        if isinstance(path, str | Path) and Path(path).is_file():
            found[str(path)] = sha256(path)
        elif isinstance(path, str | Path) and (Path(path) / bundles.NAME).is_file():
            found[str(path)] = sha256(Path(path) / bundles.NAME)
    return found
