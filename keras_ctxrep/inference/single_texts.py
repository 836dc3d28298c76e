"""A model folder that answers single texts through LiteRT, which packs its weights once, and many through Keras."""

import hashlib
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.checks import warn
from keras_ctxrep.inference.predictor import Engine, Predictor, Runner
from keras_ctxrep.inference.silence import start_tensorflow
from keras_ctxrep.places import cache_folder
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.version import __version__
from keras_ctxrep.zoo.folders import lock

if TYPE_CHECKING:
    from keras_ctxrep.inference.filling import Filler
    from keras_ctxrep.inference.generator import Generator
    from keras_ctxrep.inference.keras_engine import KerasEngine

__all__ = ["SingleTextEngine", "converted"]


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

        with lock(file, str(folder), warn):
            if not file.is_file():
                warn(f"{folder} is converted for LiteRT, once, into {file}")
                convert(folder, file)
    return file


class SingleTextEngine(Engine):
    """LiteRT and Keras as one engine, whose answers are the same but for rounding.

    LiteRT answers a text by itself, Keras several, for which the model is loaded when it is first needed. Keras alone
    answers from the first use of `keras` on, since its model may be trained.

    Args:
        path: as in `converted`.
        bundle: of the model, or with another search.
        threads: of LiteRT; None: one a core.
    """

    name = "LiteRT and Keras"

    def __init__(self, path: Path, bundle: Bundle, threads: int | None = None):
        from keras_ctxrep_tflite import runtime

        self.path = self._folder = path
        self.bundle, self._trainable = bundle, False
        file = converted(path)
        read = bundle if bundle.task in tasks.SERVED else bundles.load(file)
        self._one = runtime.opened(file, read, threads or os.cpu_count() or 1).runner
        self._both = Predictor(read, Runner(self._run))

    @cached_property
    def answer(self) -> Predictor:
        return self._both if self.bundle.task in tasks.SERVED else self._keras.answer

    @cached_property
    def encode(self) -> Predictor:
        return self._both if self._both.bundle.encodes else self._keras.encode

    @cached_property
    def generate(self) -> "Generator":
        return self._keras.generate

    @cached_property
    def fill(self) -> "Filler":
        return self._keras.fill

    @property
    def keras(self) -> "KerasEngine":
        self._trainable = True
        return self._keras

    @cached_property
    def _keras(self) -> "KerasEngine":
        start_tensorflow()
        from keras_ctxrep import saving
        from keras_ctxrep.inference.keras_engine import KerasEngine

        return KerasEngine(saving.restore(self._folder, self.bundle), self.bundle, self.path)

    def _run(self, batch: dict[str, np.ndarray]) -> Mapping[str, Any]:
        if len(next(iter(batch.values()))) == 1 and not self._trainable:
            return self._one.run(batch)
        runner = (self._keras.answer if self.bundle.task in tasks.SERVED else self._keras.encode).runner
        self._both.runner.tokens = runner.tokens
        return runner.run(batch)
