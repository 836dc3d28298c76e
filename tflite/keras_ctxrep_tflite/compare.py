"""Compares one model in several engines: agreement, quality, size and latency."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.inference.predictor import Engine, Predictor
from keras_ctxrep.tasks import Task
from keras_ctxrep.tasks.task import warn_of_unseen
from keras_ctxrep.text import artifacts, scores
from keras_ctxrep.text.bundle import Bundle

__all__ = ["compare", "engines_table", "lengths_table", "start"]

PART = 64  # examples that an engine is asked together
HEADER = ["engine", "size", "median latency", "agreement", "max difference", "cut texts", "quality"]


def compare(engines: Sequence[Engine], examples: Sequence[Any]) -> list[dict]:
    """Runs the same examples through every engine, the first being the reference.

    Latencies are of single examples, from string to answer, alternating between the engines, after a warm-up pass.

    Args:
        engines: of models of the same task and labels.
        examples: of that task, as `keras_ctxrep.tasks.Task.read` gives them, each with at least one word.

    Returns: for each engine {"engine", "bytes", "milliseconds" (median), "agreement" (fraction of texts, of a tagger's
        words, with the reference's answer), "difference" (largest of a probability, or of a value or score),
        "truncated" (number of texts longer than the engine reads, which were cut), "metric", "quality" (the task's
        figure; None without labels), "quality_difference" (from the reference's), "quality_interval" (of this
        difference: 95%, by bootstrap over the examples) and "lengths": for the texts of up to 16, 32, 64, ... tokens
        {"tokens", "texts" (their number), "p50" and "p95" (percentiles of their latencies, in milliseconds)}}.

    Raises:
        ValueError: an engine has another task or other labels than the reference, its task has no answers to compare,
            or a text has no words.
    """
    bundle, task = engines[0].answer.bundle, engines[0].answer.task
    check_task(engines[0].path or engines[0].name, bundle)
    for engine in engines:
        name = engine.path or engine.name
        labels, own = engine.answer.bundle.labels, engine.answer.task.name
        if own != task.name:
            raise ValueError(f"{name}: its task is {own!r}, not {task.name!r} as the reference's")
        if labels != bundle.labels:
            raise ValueError(f"{name}: its labels are {list(labels)}, not the reference's")
        engine.answer.check(examples, name)
    check_labels(task, bundle, examples)
    return measured(engines, examples)


def measured(
    engines: Sequence[Engine],
    examples: Sequence[Any],
    watch: Callable[[Sequence[Any], str, str], Iterable[Any]] = lambda items, text, unit: items,
) -> list[dict]:
    """What `compare` returns, of engines and examples that were checked already.

    Args:
        engines, examples: as in `compare`.
        watch: passes the items of a loop on and shows its progress, from what is done and what the items are.
    """
    task, labels = engines[0].answer.task, engines[0].answer.bundle.labels
    parts = [examples[begin : begin + PART] for begin in range(0, len(examples), PART)]
    results = [
        [answer for part in watch(parts, f"answers of {engine.name}", "parts") for answer in engine.answer.ask(part)]
        for engine in engines
    ]
    seconds = np.empty((len(engines), len(examples)))
    for column, example in watch([*enumerate(examples)], "latency of single texts", "texts"):
        for row, engine in enumerate(engines):
            begin = time.perf_counter()
            engine.answer.ask([example])
            seconds[row, column] = time.perf_counter() - begin
    tokens = np.array([_tokens(engines[0].answer, example) for example in examples])
    rows = []
    reference = None  # the statistic of the first engine's answers
    for engine, answers, times in zip(engines, results, seconds, strict=True):
        measured = measure(engine.answer, examples, results[0], answers)
        rows.append(
            {
                "engine": engine.name,
                "bytes": size(engine.path) if engine.path else 0,
                "milliseconds": float(np.median(times) * 1000),
                "agreement": measured["agreement"],
                "difference": measured["difference"],
                "truncated": sum(bool(answer.get("truncated")) for answer in answers),
                "metric": measured["metric"],
                "quality": measured["quality"],
                "quality_difference": None,
                "quality_interval": None,
                "lengths": _by_length(tokens, times),
            }
        )
        if measured["quality"] is not None:
            rows[-1]["quality_difference"] = measured["quality"] - rows[0]["quality"]
            own = task.compute_metrics(examples, answers, labels).statistic
            reference = reference or own
            rows[-1]["quality_interval"] = interval(own, reference, len(examples))
    return rows


def check_task(path: str | Path, bundle: Bundle) -> None:
    """Raises a ValueError unless a model was fine-tuned for a task, so that its answers can be compared."""
    if bundle.task not in tasks.SERVED:
        raise ValueError(f"{path}: its task is {bundle.task!r}; compare models that were fine-tuned for a task")


def check_labels(task: Task, bundle: Bundle, examples: Sequence[Any]) -> None:
    """Warns of labels that a model does not know; each counts as an error."""
    used = (task.unseen(example, bundle.label_numbers) for example in examples)
    warn_of_unseen(Counter(itertools.chain.from_iterable(used)), "the data")


def interval(own: Callable, reference: Callable, count: int) -> tuple[float, float]:
    """The interval of the difference of two models' figures, of the same examples in each resample.

    Args:
        own, reference: from the indices of examples to the figure, as `tasks.evaluation.Metrics.statistic`.
        count: of examples.
    """
    return scores.bootstrap(lambda drawn: own(drawn) - reference(drawn), count)


def _tokens(predictor: Predictor, example: Any) -> int:
    """The tokens of an example, of a long one in windows those of its longest window."""
    encodings = predictor.task.encode(predictor.bundle, predictor.task.queries(example))
    return max(len(row) for rows in encodings for row in rows)


def _by_length(tokens: np.ndarray, seconds: np.ndarray) -> list[dict]:
    """Percentiles of latencies, of the texts up to 16 tokens and of those up to each power of two above.

    >>> _by_length(np.array([3, 16, 40]), np.array([0.001, 0.001, 0.004]))[1]
    {'tokens': 64, 'texts': 1, 'p50': 4.0, 'p95': 4.0}
    """
    bounds = 2 ** np.maximum(4, np.ceil(np.log2(np.maximum(tokens, 1)))).astype(int)
    lengths = []
    for bound in np.unique(bounds):
        milliseconds = 1000 * seconds[bounds == bound]
        p50, p95 = np.percentile(milliseconds, [50, 95]).tolist()
        lengths.append({"tokens": int(bound), "texts": len(milliseconds), "p50": p50, "p95": p95})
    return lengths


def start(path: str | Path) -> dict[str, float]:
    """Opens an artifact in a process of its own, where it answers a short text and one as long as it reads.

    Returns: {"start_seconds": from the start of the process to the first answer, "peak_bytes": the largest memory that
        it held}.

    Raises:
        RuntimeError: the process failed; the message is the end of its output.
    """
    paths = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "keras_ctxrep.inference.engines", str(path)]
    environment = os.environ | {"PYTHONPATH": paths}
    with tempfile.TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        with process, cast(IO[str], process.stdout) as output:
            output.readline()  # after the first answer
            seconds = time.perf_counter() - begin
            peak = output.read()
        if process.returncode:
            errors.seek(0)
            last = "".join(errors.readlines()[-5:])
            raise RuntimeError(f"{path}: a process that opens it failed:\n{last}")
    return {"start_seconds": seconds, "peak_bytes": json.loads(peak)}


def measure(
    predictor: Predictor, examples: Sequence[Any], reference: Sequence[dict], answers: Sequence[dict]
) -> dict[str, Any]:
    """Agreement of the answers to some examples with those of a reference, and their quality.

    Returns: {"agreement", "difference", "metric", "quality"} as in `compare`, and "mean_difference".
    """
    task = predictor.task
    labelled = all(getattr(example, task.gold) is not None for example in examples)
    report = task.evaluate(examples, answers, predictor.bundle.labels, interval=False) if labelled else None
    pairs = [pair for both in zip(reference, answers, strict=True) for pair in _agreement(task, *both)]
    return {
        "agreement": float(np.mean([same for same, _ in pairs])),
        "difference": float(max(difference for _, difference in pairs)),
        "mean_difference": float(np.mean([difference for _, difference in pairs])),
        "metric": report and report.metric,
        "quality": report and report.value,
    }


def _agreement(task: Any, reference: dict, answer: dict) -> list[tuple[bool, float]]:
    """As `Task.agreement`; texts without words agree where neither engine has an answer."""
    if "error" in reference or "error" in answer:
        same = "error" in reference and "error" in answer
        return [(same, float(not same))]
    return task.agreement(reference, answer)


def size(path: Path) -> int:
    """Bytes of a file, also where one of the models in it is meant, or of all files below a folder."""
    path, _ = artifacts.part(path)
    return (
        path.stat().st_size
        if path.is_file()
        else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    )


def engines_table(rows: Sequence[dict]) -> list[list[str]]:
    """The rows of `compare` as text with a header; qualities with as many digits as tell them apart, up to five."""
    qualities = [row["quality"] for row in rows if row["quality"] is not None]
    digits = next((n for n in range(1, 4) if len({f"{q:.{n}%}" for q in qualities}) == len({*qualities})), 3)
    lines = [
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
    return [HEADER, *lines]


def _quality(row: dict, reference: dict, digits: int) -> str:
    """The figure of an engine, in how many points it differs from the reference's, and the interval of that."""
    if row["quality"] is None:
        return ""
    text = f"{row['metric']} {row['quality']:.{digits}%}"
    if row is reference:
        return text
    low, high = (f"{100 * edge:+.{digits}f}" for edge in row["quality_interval"])
    return f"{text} ({100 * row['quality_difference']:+.{digits}f}{'' if low == high else f'; {low} to {high}'})"


def lengths_table(rows: Sequence[dict]) -> list[list[str]]:
    """The latencies of `compare` by length, p50 / p95, and with `start` time and memory, with a header."""
    header = [f"to {entry['tokens']} tokens ({entry['texts']:,})" for entry in rows[0]["lengths"]]
    lines = [
        [row["engine"], *(f"{entry['p50']:.2f} / {entry['p95']:.2f} ms" for entry in row["lengths"])] for row in rows
    ]
    if "start_seconds" in rows[0]:
        header += ["first answer", "peak memory"]
        for line, row in zip(lines, rows, strict=True):
            line += [f"{row['start_seconds']:.2f} s", f"{row['peak_bytes'] / 1e6:,.0f} MB"]
    return [["latency, p50 / p95", *header], *lines]
