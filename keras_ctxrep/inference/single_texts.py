"""A model folder that answers single texts through LiteRT, which packs its weights once, and many through Keras."""

import hashlib
import os
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep import tasks, zoo
from keras_ctxrep.inference.engines import Engine, open_engine
from keras_ctxrep.inference.predictor import Predictor, Runner
from keras_ctxrep.inference.silence import start_tensorflow
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.version import __version__
from keras_ctxrep.zoo.folders import cache_folder, lock

__all__ = ["NAME", "converted", "open_both", "predictor"]

NAME = "LiteRT and Keras"


def converted(folder: str | Path) -> Path:
    """The .tflite file in float32 of a model folder, in the cache.

    It is converted at the first call, and again when the folder has other weights: its name is a hash of bundle.json,
    which has those of the other files.

    Args:
        folder: of a task model or an encoder; of another pretraining model the encoder is taken.

    Warns:
        UserWarning: it is converted now, which takes up to a minute.
    """
    identity = hashlib.sha256((Path(folder) / bundles.NAME).read_bytes() + __version__.encode()).hexdigest()
    file = cache_folder() / "litert" / f"{identity[:32]}.tflite"
    if not file.is_file():
        from keras_ctxrep_tflite.quantize import convert

        with lock(file, str(folder), warnings.warn):
            if not file.is_file():
                warnings.warn(f"{folder} is converted for LiteRT, once, into {file}", stacklevel=2)
                convert(folder, file)
    return file


def predictor(
    folder: str | Path, bundle: Bundle, in_keras: Callable[[], Predictor], threads: int | None = None
) -> Predictor:
    """A `Predictor` through both engines, whose answers are the same but for rounding.

    Args:
        folder: as in `converted`.
        bundle: of the answers, that of the file in the cache or one with another search.
        in_keras: makes the predictor that runs several inputs together, the first time that there are some.
        threads: of LiteRT; None: one a core.
    """
    from keras_ctxrep_tflite import runtime

    opened = runtime.opened(converted(folder), bundle, threads or os.cpu_count() or 1)
    return Predictor(bundle, _Both(opened.runner, in_keras))


def open_both(path: str | Path, threads: int | None = None, search: Mapping[str, float] | None = None) -> Engine:
    """As `engines.open_engine`, of a model folder both engines.

    Args:
        path, search: as there.
        threads: as in `predictor`; of a .tflite file None is one.
    """
    files, bundle = bundles.located(zoo.find(path))
    if bundle.task not in tasks.SERVED or not (files / bundles.NAME).is_file():
        return open_engine(path, threads, search)
    if search:
        bundle = tasks.with_search(bundle, **search)
    return Engine(NAME, files, predictor(files, bundle, lambda: open_engine(path, search=search).predictor, threads))


class _Both(Runner):
    def __init__(self, one: Runner, many: Callable[[], Predictor]):
        super().__init__(self._run)
        self._one, self._many = one, cache(lambda: many().runner)

    def _run(self, batch: dict[str, np.ndarray]) -> Mapping[str, Any]:
        if len(next(iter(batch.values()))) == 1:
            return self._one.run(batch)
        start_tensorflow()
        runner = self._many()
        self.tokens = runner.tokens
        return runner.run(batch)
