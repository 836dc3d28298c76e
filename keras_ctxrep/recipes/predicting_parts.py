"""The answers to the lines of a large text, written part by part to a folder, in many processes or on many machines."""

import codecs
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from keras_ctxrep import zoo
from keras_ctxrep.atomic import atomic_write, lock_folder, sha256, temporary_folder
from keras_ctxrep.inference.engines import opened_once
from keras_ctxrep.inference.silence import end_silently
from keras_ctxrep.options import Prediction
from keras_ctxrep.parallel import run_in_processes, run_on
from keras_ctxrep.text import artifacts
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.corpus import available_lines
from keras_ctxrep.version import __version__

__all__ = ["predict_parts"]

PART = re.compile(r"part-\d{6}-[0-9a-f]{12}\.jsonl")


def json_line(content: Any) -> str:
    """A value as a line of JSON."""
    return json.dumps(content, ensure_ascii=False) + "\n"


def predict_parts(
    artifact: str | Path,
    source: str | Path | IO[bytes],
    out: str | Path,
    options: Prediction,
    threads: int = 1,
    report: Callable[[str], None] = print,
) -> None:
    """Writes the answers of a model to the lines of a text, as files part-*.jsonl of a folder.

    The files one after another, by their names, are what `predict` writes to one; a .tflite file gives the same bytes.
    A part's name has the hash of its lines, the model and the options, and a part is there whole or not at all: the
    same call goes on with the parts that are missing. The lines are first copied to files in a temporary folder beside
    `out`, and all machines must see both folders and the artifact under the same paths.

    Args:
        artifact, source, threads, report: as in `predict`.
        out: the folder.
        options: `processes` or `runner`, and `part_lines`; the search.

    Raises:
        ValueError: the artifact cannot be opened or has no answers, the folder has parts of another text, model or
            options, or another process is writing in it, a part was not written, or nothing was answered.
    """
    path, out = zoo.find(artifact).resolve(), Path(out).resolve()
    if out.is_file():
        raise ValueError(f"{out}: a file; --processes and --runner write a folder of parts")
    search = tuple(sorted(options.search.items()))
    model = path, threads, search
    _ = opened_once(*model).answer  # what is wrong with it is said before a worker fails
    setting = [__version__, _digest(path), search]
    with lock_folder(out), temporary_folder(out) as folder:
        names, missing = [], []
        for number, text in enumerate(_parts(chain.from_iterable(available_lines(source)), options.part_lines)):
            digest = hashlib.sha256(json.dumps(setting).encode() + text).hexdigest()
            names.append(f"part-{number:06}-{digest[:12]}.jsonl")
            if not (out / names[-1]).exists():
                missing.append(names[-1])
                (folder / names[-1]).write_bytes(text)
        _check(out, names)
        report(f"{len(names):,} parts, {len(names) - len(missing):,} of them were there")
        answer = partial(_answer_part, model, folder, out)
        if options.runner is None:
            run_in_processes(answer, ((name,) for name in missing), options.processes, start=end_silently)
        elif missing:
            run_on(options.runner, answer, missing, options.runner_options)
    for name in missing:
        if not (out / name).exists():
            raise ValueError(f"{out / name}: was not written; do all machines write to this folder?")
    if not any(_answer(out / name) for name in names):
        raise ValueError(f"{out}: nothing was answered; the parts say why")


def _parts(lines: Iterable[bytes], count: int) -> Iterator[bytes]:
    """The lines in parts, each a text that `available_lines` reads as these lines again."""
    lines = iter(lines)
    while part := [*islice(lines, count)]:
        yield codecs.BOM_UTF8 + b"".join(line + b"\r\n" for line in part)


def _check(out: Path, names: list[str]) -> None:
    if not names:
        raise ValueError("the input is empty")
    if others := {name for name in os.listdir(out) if PART.fullmatch(name)} - {*names}:
        raise ValueError(
            f"{out / min(others)}: one of {len(others):,} parts of another text, model or options; "
            "name another folder, or remove them"
        )


def _answer(part: Path) -> bool:
    """Whether a part has an answer other than an error."""
    with open(part, encoding="utf-8") as file:
        return any("error" not in json.loads(line) for line in file)


def _digest(path: Path) -> str:
    """A hash of an artifact."""
    path, name = artifacts.part(bundles.located(path)[0])
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return hashlib.sha256("".join([*map(sha256, files), name]).encode()).hexdigest()


def _answer_part(model: tuple[Path, int, tuple[tuple[str, float], ...]], texts: Path, out: Path, name: str) -> None:
    """Writes the answers to a part; the model is opened once in each process."""
    predictor = opened_once(*model).answer
    with atomic_write(out / name) as path, open(path, "w", encoding="utf-8", newline="\n") as file:
        for _, answer in predictor.answered_lines(available_lines(texts / name)):
            file.write(json_line(predictor.typed(answer)))
