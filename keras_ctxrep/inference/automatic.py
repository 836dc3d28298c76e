"""A model folder that LiteRT or Keras answers for, whichever is quicker."""

import hashlib
import os
import sys
from collections.abc import Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_ctxrep import tasks
from keras_ctxrep.checks import warn
from keras_ctxrep.inference import speeds
from keras_ctxrep.inference.predictor import Engine, Predictor, Runner
from keras_ctxrep.inference.silence import end_silently, start_backend
from keras_ctxrep.places import cache_folder
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.version import __version__
from keras_ctxrep.zoo.folders import lock

if TYPE_CHECKING:
    from keras_ctxrep.inference.filling import Filler
    from keras_ctxrep.inference.generator import Generator
    from keras_ctxrep.inference.keras_engine import KerasEngine
    from keras_ctxrep_tflite.graphs import Graph

__all__ = ["AutoEngine", "converted"]

START = 8.0  # seconds of the import of TensorFlow and the making of a Keras model


def converted(folder: str | Path) -> Path:
    """The .tflite file in float32 of a model folder, in the cache.

    It is converted at the first call, and again when the folder has other weights: its name is a hash of bundle.json,
    which has those of the other files.

    Args:
        folder: of a task model or an encoder; of another pretraining model the encoder is taken.

    Warns:
        UserWarning: it is converted now, which takes up to a minute.
    """
    file = _cached(folder)
    if not file.is_file():
        from keras_ctxrep_tflite.quantize import convert

        with lock(file, str(folder), warn):
            if not file.is_file():
                warn(f"{folder} is converted for LiteRT, once, into {file}")
                convert(folder, file)
    return file


def _cached(folder: str | Path) -> Path:
    """Where the converted file of a folder is, if it is there."""
    identity = hashlib.sha256((Path(folder) / bundles.NAME).read_bytes() + __version__.encode()).hexdigest()
    return cache_folder() / "litert" / f"{identity[:32]}.tflite"


def has_gpu() -> bool:
    """Whether TensorFlow may find a GPU, which is not asked itself: its import takes seconds."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and os.path.exists("/proc/driver/nvidia/version")


class AutoEngine(Engine):
    """LiteRT and Keras as one engine, whose answers are the same but for rounding.

    LiteRT answers as long as nothing has imported TensorFlow, whose import takes longer than most work; Keras once it
    would have gained as much time, by what `speeds` has measured. Where TensorFlow is imported, which of them answers a
    batch is by `speeds`, which measures them then if it has not yet. The Keras model is loaded when it is first needed,
    and answers alone from the first use of `keras` on, since it may be trained.

    Args:
        folder: of the model.
        bundle: of the model, or with another search.
        model: what LiteRT runs: the graph in the folder, or a .tflite file.
        masked: the graph of its masked language model, if it has one.
        threads: of LiteRT; None: one a core.
        always: LiteRT answers whatever Keras would gain.
    """

    name = "LiteRT and Keras"

    def __init__(
        self,
        folder: Path,
        bundle: Bundle,
        model: "Graph | Path",
        masked: "Graph | None" = None,
        threads: int | None = None,
        always: bool = False,
    ):
        self.path = self._folder = folder
        self.bundle = bundle
        self._masked, self.threads = masked, threads or os.cpu_count() or 1
        self.always, self.trainable = always, False
        served = bundle.task in tasks.SERVED
        read = bundle if served else bundles.load(model) if isinstance(model, Path) else model.bundle
        self._quicker = _Quicker(self, read, model)
        self._both = Predictor(read, self._quicker)

    @classmethod
    def of(cls, folder: Path, bundle: Bundle, threads: int | None = None, convert: bool = False) -> "AutoEngine | None":
        """The engine of a folder with a graph, as those of the package have it, or that was converted; else None.

        Args:
            folder, bundle, threads: as for the class.
            convert: convert a folder without a graph now, see `converted`, and let LiteRT answer always. Otherwise None
                too where LiteRT is not installed or the machine has a GPU.
        """
        if not convert and (find_spec("ai_edge_litert") is None or has_gpu()):
            return None
        from keras_ctxrep_tflite.graphs import MASKED, Graph

        model, file = Graph.of(folder, bundle), _cached(folder)
        if model is None and (convert or file.is_file()):
            model = converted(folder)
        return None if model is None else cls(folder, bundle, model, Graph.of(folder, bundle, MASKED), threads, convert)

    @cached_property
    def answer(self) -> Predictor:
        return self._both if self.bundle.task in tasks.SERVED else self._keras.answer

    @cached_property
    def encode(self) -> Predictor:
        if self._both.bundle.encodes:
            return self._both
        from keras_ctxrep_tflite.graphs import ENCODER, Graph

        graph = Graph.of(self._folder, self.bundle, ENCODER)
        return self._keras.encode if graph is None else Predictor(graph.bundle, _Quicker(self, graph.bundle, graph))

    @cached_property
    def generate(self) -> "Generator":
        return self._keras.generate

    @property
    def fill(self) -> "Filler":  # pyright: ignore[reportIncompatibleVariableOverride]  until `keras` is asked for
        return self._keras.fill if self.trainable or self._masked is None else self._filler

    @property
    def keras(self) -> "KerasEngine":
        self.trainable = True
        return self._keras

    @cached_property
    def _keras(self) -> "KerasEngine":
        start_backend()
        from keras_ctxrep import saving
        from keras_ctxrep.inference.keras_engine import KerasEngine

        return KerasEngine(saving.restore(self._folder, self.bundle), self.bundle, self.path)

    @cached_property
    def _filler(self) -> "Filler":
        from keras_ctxrep_tflite import runtime

        assert self._masked is not None
        end_silently()
        return runtime.filler(self._masked.path, self._masked.bundle, self.threads, self._masked.model())

    def keras_runner(self, encodes: bool) -> Runner:
        """What runs the Keras model, or its encoder."""
        return (self._keras.encode if encodes else self._keras.answer).runner

    @property
    def seconds(self) -> speeds.Seconds:
        """The seconds a text of "LiteRT" and "Keras", as in `speeds.measured`, measured now unless they are known."""
        return self._quicker.seconds


class _Quicker(Runner):
    """Runs a model by LiteRT or by Keras, as `AutoEngine` says.

    Args:
        engine: whose Keras model it is.
        bundle: of what LiteRT runs.
        model: as for `AutoEngine`.
    """

    def __init__(self, engine: AutoEngine, bundle: Bundle, model: "Graph | Path"):
        super().__init__(self._run)
        self._engine, self._bundle, self._model, self._gain = engine, bundle, model, 0.0

    def _run(self, batch: dict[str, np.ndarray]) -> Mapping[str, Any]:
        if not self._engine.trainable and (self._engine.always or self._litert_is_quicker(*batch["mask"].shape)):
            return self._litert.run(batch)
        runner = self._keras
        self.tokens = runner.tokens
        return runner.run(batch)

    @cached_property
    def _litert(self) -> Runner:
        from keras_ctxrep_tflite import runtime

        end_silently()
        path, data = (self._model, None) if isinstance(self._model, Path) else (self._model.path, self._model.model())
        return runtime.opened(path, self._bundle, self._engine.threads, data).runner

    @property
    def _keras(self) -> Runner:
        return self._engine.keras_runner(self._bundle.encodes)

    def _litert_is_quicker(self, texts: int, tokens: int) -> bool:
        started = sys.modules.get("tensorflow") is not None
        seconds = self.seconds if started else self._known
        if seconds is None:
            return True
        shape = speeds.shape(texts, tokens)
        gain = texts * (seconds["LiteRT"][shape] - seconds["Keras"][shape])
        self._gain += max(0.0, gain)
        return gain <= 0 if started else self._gain < START

    @cached_property
    def _known(self) -> speeds.Seconds | None:
        return speeds.known(self._bundle, self._engine.threads)

    @cached_property
    def seconds(self) -> speeds.Seconds:
        """As in `AutoEngine`."""
        if self._known is not None:
            return self._known
        runs = {"LiteRT": self._litert.run, "Keras": self._keras.run}
        return speeds.measured(self._bundle, self._engine.threads, runs)
