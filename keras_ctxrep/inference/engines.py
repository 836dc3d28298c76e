"""How any artifact is opened: a model folder, a SavedModel or a .tflite file."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from keras_ctxrep import tasks, zoo
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.inference.silence import quiet_stderr
from keras_ctxrep.text import bundle as bundles

__all__ = ["Engine", "open_engine", "open_filler", "open_generator", "opened_once"]


class Engine(NamedTuple):
    """One way to run a model.

    Attributes:
        name: "Keras", "SavedModel NAME" or the name of the .tflite file.
        path: the files that it needs.
        predictor: of its answers, or the generator of its text, or what fills its masks.
    """

    name: str
    path: Path
    predictor: Any


def open_engine(path: str | Path, threads: int | None = None, search: Mapping[str, float] | None = None) -> Engine:
    """The engine of an artifact, a .tflite file, a SavedModel or a model folder, after a first prediction.

    Args:
        path: the artifact, or the name of a published model, see `zoo.find`.
        threads: of LiteRT, for a .tflite file; None: one.
        search: options of a search for answers, as in `tasks.with_search`, in place of those of the training.

    Raises:
        ValueError: the path is none of these, or a search does not fit it.
    """
    files, bundle = bundles.located(zoo.find(path))
    if search and bundle.task in tasks.SERVED:
        bundle = tasks.with_search(bundle, **search)
    if bundle.generates:
        raise ValueError(f"{path}: a language model in one direction; `ctxrep generate` takes it, `score` its folder")
    with quiet_stderr():
        if files.is_file():
            if bundle.fills:
                raise ValueError(f"{path}: a masked language model, which `ctxrep fill` takes")
            from keras_ctxrep_tflite import runtime

            return Engine(files.name, files, runtime.opened(files, bundle, threads or 1))
        if not (files / bundles.NAME).is_file():
            from keras_ctxrep_export import saved_model

            name, predictor = f"SavedModel {Path(path).name}", Predictor(bundle, saved_model.text_runner(files, search))
        else:
            from keras_ctxrep import saving
            from keras_ctxrep.inference import keras_engine

            name, predictor = "Keras", keras_engine.predictor_of(saving.restore(files, bundle), bundle)
        answer(predictor, "warm up")
    return Engine(name, files, predictor)


@lru_cache(1)
def opened_once(path: Path, threads: int = 1, search: tuple[tuple[str, float], ...] = ()) -> Engine:
    """As `open_engine`, once in a process that answers many parts; the last engine is kept."""
    return open_engine(path, threads, dict(search))


def open_generator(path: str | Path, threads: int = 1) -> Engine:
    """The engine of a language model in one direction, a .tflite file, a SavedModel or a model folder.

    Args:
        path, threads: as in `open_engine`.

    Raises:
        ValueError: the path is none of these, or of another model.
    """
    files, bundle = bundles.located(zoo.find(path))
    with quiet_stderr():
        if files.is_file():
            from keras_ctxrep_tflite import runtime

            return Engine(files.name, files, runtime.generator(files, bundle, threads))
        if not (files / bundles.NAME).is_file():
            from keras_ctxrep_export import saved_model

            return Engine(f"SavedModel {Path(path).name}", files, saved_model.generator(files))
        from keras_ctxrep import saving
        from keras_ctxrep.inference import keras_engine

        return Engine("Keras", files, keras_engine.generator(saving.restore(files, bundle), bundle))


def open_filler(path: str | Path, threads: int = 1) -> Engine:
    """The engine of a masked language model in a .tflite file.

    Args:
        path, threads: as in `open_engine`.

    Raises:
        ValueError: the path is none, or of another model.
    """
    from keras_ctxrep_tflite import runtime

    files, bundle = bundles.located(path)
    return Engine(files.name, files, runtime.filler(files, bundle, threads))


def answer(predictor: Predictor, text: str) -> None:
    """Has a model of any task answer a text."""
    reads = predictor.bundle.reads
    predictor([text], [text] if reads.pair else None, [[(0, 4)] * reads.marks])
    predictor.unread.clear()  # of texts of the user's alone
