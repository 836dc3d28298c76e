"""One model in several engines: do they agree, how good, how large, how fast."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_ctxrep.text.evaluation import evaluate
from keras_ctxrep.text.examples import GOLD
from keras_ctxrep.text.predict import Predictor

HEADER = ("engine", "size", "median latency", "agreement", "max difference", "quality")


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
        engine.predictor(["warm up"], ["engine"] if engine.predictor.bundle.pairs else None)
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
    """Sends standard error nowhere while TensorFlow or LiteRT starts: both log before their log level is read."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


def compare(engines: Sequence[Engine], examples: Sequence[Any]) -> list[dict]:
    """Runs the same examples through every engine, the first being the reference.

    Latencies are of single examples, from string to answer, in turns over the engines, after one pass to warm up.

    Args:
        engines: of models of the same task and labels.
        examples: of that task, as `keras_ctxrep.text.examples.read` gives them, each with at least one word.

    Returns: for each engine {"engine", "bytes", "milliseconds" (median), "agreement" (share of texts, of a tagger's
        words, with the reference's answer), "difference" (largest of a probability, or of a value or score), "metric"
        and "quality" (the task's figure; None without labels)}.

    Raises:
        ValueError: an engine has another task or other labels than the reference, its task has no answers to compare,
            or a text has no words.
    """
    bundle = engines[0].predictor.bundle
    if bundle.task not in GOLD:
        raise ValueError(
            f"{engines[0].path}: its task is {bundle.task!r}; compare models that were fine-tuned for a task"
        )
    for engine in engines:
        other = engine.predictor.bundle
        if (other.task, other.labels) != (bundle.task, bundle.labels):
            raise ValueError(f"{engine.path}: its labels are {list(other.labels)}, not the reference's")
    found = [engine.predictor.ask(examples) for engine in engines]
    for example, answer in zip(examples, found[0], strict=True):
        if "error" in answer:
            raise ValueError(f"{example.place or example}: {answer['error']}")
    seconds = np.empty((len(engines), len(examples)))
    for column, example in enumerate(examples):
        for row, engine in enumerate(engines):
            begin = time.perf_counter()
            engine.predictor.ask([example])
            seconds[row, column] = time.perf_counter() - begin
    labelled = all(getattr(example, GOLD[bundle.task]) is not None for example in examples)
    rows = []
    for engine, answers, times in zip(engines, found, seconds, strict=True):
        report = evaluate(bundle.task, examples, answers, bundle.labels, interval=False) if labelled else None
        pairs = [pair for both in zip(found[0], answers, strict=True) for pair in _compared(bundle.task, *both)]
        rows.append(
            {
                "engine": engine.name,
                "bytes": size(engine.path),
                "milliseconds": float(np.median(times) * 1000),
                "agreement": float(np.mean([same for same, _ in pairs])),
                "difference": float(max(difference for _, difference in pairs)),
                "metric": report and report.metric,
                "quality": report and report.value,
            }
        )
    return rows


def _compared(task: str, one: dict, two: dict) -> list[tuple[bool, float]]:
    """(Are they the same, how far are their figures apart), once or for each word."""
    if task == "tag":
        both = zip(one["words"], two["words"], strict=False)
        same = [(a["label"] == b["label"], abs(a["score"] - b["score"])) for a, b in both]
        return same + [(False, 1.0)] * abs(len(one["words"]) - len(two["words"]))
    if task == "answer":
        return [(one["answer"] == two["answer"], abs(one["score"] - two["score"]))]
    if task == "regress":
        difference = abs(one["value"] - two["value"])
        return [(difference <= 0.01 * max(1.0, abs(one["value"])), difference)]
    differences = [abs(share - two["probabilities"][label]) for label, share in one["probabilities"].items()]
    chosen = "label" if task == "classify" else "labels"
    return [(one[chosen] == two[chosen], max(differences))]


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    return (
        path.stat().st_size
        if path.is_file()
        else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    )


def table(rows: Sequence[dict]) -> list[list[str]]:
    """The rows of `compare` as text, under HEADER."""
    return [
        [
            row["engine"],
            f"{row['bytes'] / 1e6:.2f} MB",
            f"{row['milliseconds']:.2f} ms",
            f"{row['agreement']:.1%}",
            f"{row['difference']:.1e}",
            "" if row["quality"] is None else f"{row['metric']} {row['quality']:.1%}",
        ]
        for row in rows
    ]
