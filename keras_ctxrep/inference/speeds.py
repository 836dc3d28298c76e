"""How fast each engine is on this machine's processor, measured once for each size of model and kept in the cache."""

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.inference.predictor import Run
from keras_ctxrep.places import cache_folder
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.version import __version__

__all__ = ["SHAPES", "cache_file", "known", "measured", "shape"]

SHORT, LONG = 16, 128  # tokens of the texts that are measured
MANY = 8  # texts that are run together
BOUNDARY = 32  # tokens of the longest text that counts as short
ENOUGH = 0.1  # seconds after which a run is not repeated
LONGEST = 0.25  # seconds of a run of many texts, if two of them do not take longer

SHAPES = ("one short text", "many short texts", "one long text", "many long texts")
Seconds = dict[str, dict[str, float]]  # engine -> shape of a batch -> seconds a text


def shape(texts: int, tokens: int) -> str:
    """The class of a batch, within which one engine is the quickest.

    >>> shape(1, 12), shape(32, 200)
    ('one short text', 'many long texts')
    """
    return SHAPES[(texts > 1) + 2 * (tokens > BOUNDARY)]


def known(bundle: Bundle, threads: int) -> Seconds | None:
    """What was measured of models of this size on this processor; None: nothing.

    Args:
        bundle: of the model.
        threads: of LiteRT.
    """
    try:
        entry = _read()[_size(bundle, threads)]
        return {engine: {shape: float(entry[engine][shape]) for shape in SHAPES} for engine in entry}
    except (KeyError, TypeError, ValueError):  # it is not there, or damaged
        return None


def measured(bundle: Bundle, threads: int, runs: Mapping[str, Run]) -> Seconds:
    """Seconds a text of engines, for each shape of a batch; they are kept for `known`.

    Each shape is run once to warm up, and again up to three times within a tenth of a second.

    Args:
        bundle, threads: as in `known`.
        runs: name of an engine -> what runs a batch.
    """
    seconds: Seconds = {name: {} for name in runs}

    def measure(texts: int, tokens: int) -> None:
        batch = _batch(bundle, texts, tokens)
        for name, run in runs.items():
            seconds[name][shape(texts, tokens)] = _seconds(run, batch) / texts

    for tokens in (SHORT, LONG):
        measure(1, tokens)
        slowest = max(times[shape(1, tokens)] for times in seconds.values())
        measure(max(2, min(MANY, int(LONGEST / slowest))), tokens)
    with suppress(OSError):  # a cache that cannot be written
        content = _read() | {_size(bundle, threads): seconds}
        with atomic_write(cache_file()) as path:
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return seconds


def cache_file() -> Path:
    """The file of this processor in the cache."""
    return cache_folder() / "speeds" / f"{re.sub(r'[^A-Za-z0-9]+', '-', processor())}.json"


def processor() -> str:
    """The name of this machine's processor, and its cores."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        if names:
            return f"{names[0]} {os.cpu_count()} cores"
    return f"{platform.processor() or platform.machine()} {os.cpu_count()} cores"


def _read() -> dict[str, Seconds]:
    """What the file of this processor has; nothing, if it is not there or damaged."""
    with suppress(OSError, ValueError):
        content = json.loads(cache_file().read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def _size(bundle: Bundle, threads: int) -> str:
    """A name for models of one size, which are equally fast."""
    fields = [bundle.family, bundle.task, bundle.config, bundle.stack, bundle.max_length, len(bundle.labels), threads]
    digest = hashlib.sha256(json.dumps([*fields, __version__], sort_keys=True).encode()).hexdigest()
    return f"{bundle.family} {bundle.task} {digest[:12]}"


def _batch(bundle: Bundle, count: int, tokens: int) -> dict[str, np.ndarray]:
    """Inputs of some texts of about as many tokens."""
    pairs = ["a"] * count if bundle.pairs else None
    marks = [[(0, 1)] * bundle.reads.marks] * count if bundle.reads.marks else None
    return bundle.features.collate(bundle.features.encode(["a " * tokens] * count, pairs, bundle.reads.words, marks))


def _seconds(run: Run, batch: dict[str, np.ndarray]) -> float:
    """The shortest of a few runs."""
    run(batch)
    times: list[float] = []
    while len(times) < 3 and sum(times) < ENOUGH:
        begin = time.perf_counter()
        run(batch)
        times.append(time.perf_counter() - begin)
    return min(times)
