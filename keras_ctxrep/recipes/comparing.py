"""Agreement, quality, size and latency of a model's exports."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_ctxrep.inference.engines import open_model
from keras_ctxrep_tflite import compare as engines_compared

__all__ = ["compare"]


def compare(
    folder: str | Path,
    artifacts: Sequence[str | Path],
    data: str | Path,
    columns: Mapping[str, str] | None = None,
    start: bool = False,
    plot: str | Path | None = None,
) -> tuple[list[dict], str]:
    """Runs the same examples through a model folder and its exports.

    Args:
        folder: the model folder, which is the reference.
        artifacts: SavedModel folders and .tflite files.
        data: examples of the model's task.
        columns: names of the columns in `data`, as in `Task.read`.
        start: also start each engine in a process of its own, as in `keras_ctxrep_tflite.compare.start`.
        plot: FILE.png of size, latency and quality.

    Returns: a dict for each engine, as in `keras_ctxrep_tflite.compare.compare`, and what agreement means for the task.

    Raises:
        ValueError: an artifact cannot be opened or is of another model, or the examples do not fit the model.
    """
    if plot is not None:
        from keras_ctxrep.plots.drawing import check_drawable

        check_drawable(plot)
    engines = [open_model(path) for path in (folder, *artifacts)]
    task = engines[0].answer.task
    rows = engines_compared.compare(engines, list(task.read(data, columns)))
    if start:
        rows = [row | engines_compared.start(path) for path, row in zip((folder, *artifacts), rows, strict=True)]
    if plot is not None:
        from keras_ctxrep.plots.engines import draw_engines

        draw_engines(rows, plot)
    return rows, f"agreement with {engines[0].name}: {task.agrees}"
