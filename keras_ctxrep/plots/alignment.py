"""Pictures of where a decoder looked in a text while it wrote another one."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.plots.drawing import check_drawable, drawing, heat_map
from keras_ctxrep.tasks.translate import Translate, Translation

__all__ = ["alignment"]

MARK = "·"  # in place of a token of the text without characters of its own, as a marker, or of a space


def alignment(artifact: str | Path, text: str, out: str | Path) -> dict[str, Any]:
    """Draws the attention of a text-to-text model: a row for each token that it wrote, a column for each of the text.

    Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473, figure 3.

    Args:
        artifact: a model folder of the task "translate", or a .tflite file of one.
        text: what it reads.
        out: FILE.png (.svg, .pdf).

    Returns: {"text": the answer; "tokens": T strings; "read": S strings; "attention": float32 (T, S), rows of sum 1}.

    Raises:
        ValueError: another task, an engine that gives no attention, a text that is cut, has nothing to read or
            gets no answer, or another file suffix.
    """
    check_drawable(out)
    predictor = open_model(artifact).answer
    task, bundle = predictor.task, predictor.bundle
    if not isinstance(task, Translate):
        raise ValueError(f"{artifact}: an alignment is of a model that writes texts (translate), not of {task.name!r}")
    ((rows, outputs),) = predictor.outputs([Translation(text)])
    if not outputs:
        raise ValueError(f"{text[:60]!r}: nothing in it that the model reads")
    if "hypotheses" not in outputs[0]:
        raise ValueError(f"{artifact}: a SavedModel gives no attention; name the model folder or a .tflite file")
    (row,) = rows
    if row.truncated:
        raise ValueError(f"longer than the {bundle.max_length} tokens this model reads: {text[:60]!r} ...")
    answer, tokens, attention = task.written(bundle, outputs[0])
    read = [text[begin:end].strip() or MARK for begin, end in row.offsets or ()]
    if not tokens:
        raise ValueError(f"{text[:60]!r}: the model writes nothing for it")
    weights = np.array(attention, np.float32)[:, : len(read)]
    with drawing(out, [*tokens, *read], (1.8 + 0.32 * len(read), 1.6 + 0.32 * len(tokens))) as figure:
        figure.set_layout_engine("compressed")
        axes = figure.subplots()
        image = heat_map(axes, weights, tokens, read, fontsize=9)
        axes.xaxis.tick_top()
        figure.colorbar(image, ax=axes, shrink=0.9, aspect=20, label="weight")
    return {"text": answer, "tokens": tokens, "read": read, "attention": weights}
