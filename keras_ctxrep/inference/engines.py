"""How any artifact is opened: a model folder, a SavedModel, a .tflite file, or a model on a server."""

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from keras_ctxrep import tasks, zoo
from keras_ctxrep.inference.predictor import Engine
from keras_ctxrep.inference.silence import quiet_stderr, start_backend, start_tensorflow
from keras_ctxrep.options import ENGINES, KERAS, LITERT
from keras_ctxrep.text import artifacts
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.version import install_hint

if TYPE_CHECKING:
    from keras_ctxrep.inference.client import Target

__all__ = ["Engine", "open_model", "opened_once"]

ADDRESSES = ("http://", "https://", "grpc://", "grpcs://")


def open_model(
    path: str | Path,
    engine: str = KERAS,
    threads: int | None = None,
    search: Mapping[str, float] | None = None,
    target: "Target | None" = None,
    bundle: bundles.Bundle | None = None,
) -> Engine:
    """The engine of an artifact, whose files are checked and loaded.

    Args:
        path: a model folder, a SavedModel, a .tflite file, the name of a published model, see `zoo.find`, or the
            address of a server, see `client.connect`.
        engine: of a model folder, "keras", "auto" or "litert", see `inference.model.load`.
        threads: of LiteRT; None: one for a .tflite file, all cores for a model folder.
        search: options of a search for answers, as in `tasks.with_search`, in place of those of the training.
        target, bundle: of a server, which model is asked, and its bundle.

    Raises:
        ValueError: the path is none of these, its files are damaged, a search does not fit it, or no such engine.
        ImportError: TensorFlow or LiteRT is needed and not installed; the message says what to install.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: {', '.join(ENGINES)}")
    if str(path).startswith(ADDRESSES):
        from keras_ctxrep.inference.client import ServerEngine

        if target is None or bundle is None:
            raise ValueError(f"{path}: a model on a server: give its target and its bundle")
        return ServerEngine(str(path), target, bundle)
    files, bundle = bundles.located(zoo.find(path))
    if search and bundle.task in tasks.SERVED:
        bundle = tasks.with_search(bundle, **search)
    with quiet_stderr():
        if artifacts.part(files)[0].is_file():
            from keras_ctxrep_tflite.runtime import LiteRTEngine

            return LiteRTEngine(files, bundle, threads or 1)
        if not (files / bundles.NAME).is_file():
            start_tensorflow()
            from keras_ctxrep_export.saved_model import SavedModelEngine

            return SavedModelEngine(path, bundle, search)
    if engine != KERAS and not bundle.generates:
        from keras_ctxrep.inference.automatic import AutoEngine

        automatic = AutoEngine.of(files, bundle, threads, convert=engine == LITERT)
        if automatic is not None:
            return automatic
    try:
        start_backend()
    except ImportError as error:
        if engine == KERAS or find_spec("ai_edge_litert") is not None:
            raise
        raise ImportError(f"{error}; the models of the package answer by LiteRT too: {install_hint('edge')}") from None
    from keras_ctxrep import saving
    from keras_ctxrep.inference.keras_engine import KerasEngine

    return KerasEngine(saving.restore(files, bundle), bundle, files)


@lru_cache(1)
def opened_once(path: Path, threads: int = 1, search: tuple[tuple[str, float], ...] = ()) -> Engine:
    """As `open_model`, once in a process that answers many parts; the last engine is kept."""
    return open_model(path, KERAS, threads, dict(search))


def _start(path: str) -> None:
    """Has an artifact answer a short and a long text; prints a line after each, and then the peak of the memory."""
    predictor = open_model(path).answer
    reads = predictor.bundle.reads
    for text in ("warm up", "word " * predictor.bundle.max_length):
        predictor([text], [text] if reads.pair else None, [[(0, 4)] * reads.marks])
        print(flush=True)
    if sys.platform == "linux":  # getrusage counts the process that started this one
        with open("/proc/self/status") as status:
            print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")))
    else:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(peak if sys.platform == "darwin" else peak * 1024)


if __name__ == "__main__":
    _start(sys.argv[1])  # for `keras_ctxrep_tflite.compare.start`
