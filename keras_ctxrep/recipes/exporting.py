"""A model folder as the next version of a SavedModel for TF Serving."""

from pathlib import Path

from keras_ctxrep import saving, zoo
from keras_ctxrep_export import saved_model

__all__ = ["export"]


def export(
    folder: str | Path,
    out: str | Path,
    windows: str | None = None,
    keep: int | None = None,
    tflite: str | Path | None = None,
) -> Path:
    """Writes OUT/1, OUT/2, ..., whose README.md cites the run of the model folder.

    Args:
        folder: a task model or an encoder; of a pretraining model the encoder is exported.
        out, windows, keep, tflite: as in `keras_ctxrep_export.saved_model.export`.

    Returns: the folder of the new version.
    """
    model, bundle = saving.load_served(zoo.find(folder))
    return saved_model.export(model, bundle, out, windows=windows, keep=keep, source=folder, tflite=tflite)
