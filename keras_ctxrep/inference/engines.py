"""How any artifact is opened: a model folder, a SavedModel or a .tflite file."""

from pathlib import Path
from typing import NamedTuple

from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.inference.silence import quiet_stderr


class Engine(NamedTuple):
    """One way to run a model.

    Attributes:
        name: "Keras", "SavedModel NAME" or the name of the .tflite file.
        path: the files that it needs.
        predictor: of its answers.
    """

    name: str
    path: Path
    predictor: Predictor


def open_engine(path: str | Path, threads: int = 1) -> Engine:
    """The engine of an artifact, a .tflite file, a SavedModel or a model folder, after a first prediction.

    Args:
        path: the artifact.
        threads: of LiteRT, for a .tflite file.

    Raises:
        ValueError: the path is none of these.
    """
    with quiet_stderr():
        engine = _open(Path(path), threads)
        answer(engine.predictor, "warm up")
    return engine


def answer(predictor: Predictor, text: str) -> None:
    """Has a model of any task answer a text."""
    reads = predictor.bundle.reads
    predictor([text], [text] if reads.pair else None, [[(0, 4)] * reads.marks])


def _open(path: Path, threads: int) -> Engine:
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder")
    if path.suffix == ".tflite":
        from keras_ctxrep_tflite import runtime

        return Engine(path.name, path, runtime.load(path, threads))
    if (path / "bundle.json").is_file():
        from keras_ctxrep.inference import keras_engine

        return Engine("Keras", path, keras_engine.predictor(path))
    from keras_ctxrep_export import saved_model

    folder = saved_model.latest(path)
    return Engine(f"SavedModel {path.name}", folder, saved_model.load(folder))
