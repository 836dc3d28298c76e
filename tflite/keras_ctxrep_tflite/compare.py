"""One model in several engines: do they agree, how good, how large, how fast."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_ctxrep.text.predict import Predictor
from keras_ctxrep.text.scores import accuracy

HEADER = ("engine", "size", "median latency", "agreement", "max difference", "accuracy")


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


def compare(
    engines: Sequence[Engine],
    texts: Sequence[str],
    labels: Sequence[str] | None = None,
    pairs: Sequence[str | None] | None = None,
) -> list[dict]:
    """Runs the same texts through every engine, the first being the reference.

    Latencies are of single texts, from string to answer, in turns over the engines, after one pass to warm up.

    Args:
        engines: of the same classifier.
        texts: to predict, each with at least one word.
        labels: the right ones.
        pairs: the second text of each, for classifiers of pairs.

    Returns: for each engine {"engine", "bytes", "milliseconds" (median), "agreement" (share of texts with the
        reference's label), "difference" (largest of a probability), "accuracy" (None without labels)}.

    Raises:
        ValueError: an engine has no probabilities, other labels than the reference, or a text has no words.
    """
    for engine in engines:
        if engine.predictor.bundle.labels != engines[0].predictor.bundle.labels or not engine.predictor.bundle.labels:
            raise ValueError(
                f"{engine.path}: its labels are {list(engine.predictor.bundle.labels)}, not the reference's"
            )
    if pairs is not None and all(pair is None for pair in pairs):
        pairs = None
    found = [engine.predictor.probabilities(texts, pairs) for engine in engines]
    seconds = np.empty((len(engines), len(texts)))
    for column, text in enumerate(texts):
        pair = None if pairs is None else [pairs[column]]
        for row, engine in enumerate(engines):
            begin = time.perf_counter()
            engine.predictor([text], pair)
            seconds[row, column] = time.perf_counter() - begin
    names = engines[0].predictor.bundle.labels
    reference = found[0].argmax(1)
    rows = []
    for engine, probabilities, times in zip(engines, found, seconds, strict=True):
        best = probabilities.argmax(1)
        rows.append(
            {
                "engine": engine.name,
                "bytes": size(engine.path),
                "milliseconds": float(np.median(times) * 1000),
                "agreement": accuracy(reference, best),
                "difference": float(np.abs(probabilities - found[0]).max()),
                "accuracy": None if labels is None else accuracy(labels, [names[i] for i in best]),
            }
        )
    return rows


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
            "" if row["accuracy"] is None else f"{row['accuracy']:.1%}",
        ]
        for row in rows
    ]
