"""Compares one model in several engines: agreement, quality, size and latency."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.predict import Predictor

HEADER = ("engine", "size", "median latency", "agreement", "max difference", "cut texts", "quality")


class Engine(NamedTuple):
    """One way to run a model: its name, the files that it needs, and its predictor."""

    name: str
    path: Path
    predictor: Predictor


def open_engine(path: str | Path) -> Engine:
    """The engine of an artifact, a .tflite file, a SavedModel or a model folder, after a first prediction.

    Raises:
        ValueError: the path is none of these.
    """
    with quiet_stderr():
        engine = _open(Path(path))
        reads = engine.predictor.bundle.reads
        engine.predictor(["warm up"], ["engine"] if reads.pair else None, [[(0, 4)] * reads.marks])
    return engine


def _open(path: Path) -> Engine:
    if path.suffix == ".tflite":
        from keras_ctxrep_tflite import runtime

        return Engine(path.name, path, runtime.load(path))
    if (path / "bundle.json").is_file():
        from keras_ctxrep import train

        return Engine("Keras", path, train.predictor(path))
    from keras_ctxrep_export import saved_model

    folder = saved_model.latest(path)
    return Engine(f"SavedModel {path.name}", folder, saved_model.load(folder))


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Silences standard error while TensorFlow or LiteRT starts: both log before their log level is read."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)


def compare(engines: Sequence[Engine], examples: Sequence[Any]) -> list[dict]:
    """Runs the same examples through every engine, the first being the reference.

    Latencies are of single examples, from string to answer, alternating between the engines, after a warm-up pass.

    Args:
        engines: of models of the same task and labels.
        examples: of that task, as `keras_ctxrep.tasks.Task.read` gives them, each with at least one word.

    Returns: for each engine {"engine", "bytes", "milliseconds" (median), "agreement" (fraction of texts, of a tagger's
        words, with the reference's answer), "difference" (largest of a probability, or of a value or score),
        "truncated" (number of texts longer than the engine reads, which were cut), "metric", "quality" (the task's
        figure; None without labels) and "quality_difference" (from the reference's)}.

    Raises:
        ValueError: an engine has another task or other labels than the reference, its task has no answers to compare,
            or a text has no words.
    """
    bundle = engines[0].predictor.bundle
    task = engines[0].predictor.task
    if bundle.task not in tasks.TASKS:
        raise ValueError(
            f"{engines[0].path}: its task is {bundle.task!r}; compare models that were fine-tuned for a task"
        )
    for engine in engines:
        labels = engine.predictor.bundle.labels
        if (engine.predictor.task.name, labels) != (task.name, bundle.labels):
            raise ValueError(f"{engine.path}: its labels are {list(labels)}, not the reference's")
    results = [engine.predictor.ask(examples) for engine in engines]
    for example, answer in zip(examples, results[0], strict=True):
        if "error" in answer:
            raise ValueError(f"{example.source or example}: {answer['error']}")
    seconds = np.empty((len(engines), len(examples)))
    for column, example in enumerate(examples):
        for row, engine in enumerate(engines):
            begin = time.perf_counter()
            engine.predictor.ask([example])
            seconds[row, column] = time.perf_counter() - begin
    labelled = all(getattr(example, task.gold) is not None for example in examples)
    rows = []
    for engine, answers, times in zip(engines, results, seconds, strict=True):
        report = task.evaluate(examples, answers, bundle.labels, interval=False) if labelled else None
        pairs = [pair for both in zip(results[0], answers, strict=True) for pair in task.agreement(*both)]
        rows.append(
            {
                "engine": engine.name,
                "bytes": size(engine.path),
                "milliseconds": float(np.median(times) * 1000),
                "agreement": float(np.mean([same for same, _ in pairs])),
                "difference": float(max(difference for _, difference in pairs)),
                "truncated": sum(bool(answer.get("truncated")) for answer in answers),
                "metric": report and report.metric,
                "quality": report and report.value,
            }
        )
    for row in rows:
        row["quality_difference"] = row["quality"] - rows[0]["quality"] if labelled else None
    return rows


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    return (
        path.stat().st_size
        if path.is_file()
        else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    )


def table(rows: Sequence[dict]) -> list[list[str]]:
    """The rows of `compare` as text, under HEADER; qualities with as many digits as tell them apart, up to five."""
    qualities = [row["quality"] for row in rows if row["quality"] is not None]
    digits = next((n for n in range(1, 4) if len({f"{q:.{n}%}" for q in qualities}) == len({*qualities})), 3)
    return [
        [
            row["engine"],
            f"{row['bytes'] / 1e6:.2f} MB",
            f"{row['milliseconds']:.2f} ms",
            f"{row['agreement']:.1%}",
            f"{row['difference']:.1e}",
            f"{row['truncated']:,}",
            _quality(row, rows[0], digits),
        ]
        for row in rows
    ]


def _quality(row: dict, reference: dict, digits: int) -> str:
    """The figure of an engine, and in how many points it differs from the reference's."""
    if row["quality"] is None:
        return ""
    text = f"{row['metric']} {row['quality']:.{digits}%}"
    return text if row is reference else f"{text} ({100 * (row['quality'] - reference['quality']):+.{digits}f})"
