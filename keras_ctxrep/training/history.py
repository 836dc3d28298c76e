"""The evaluations of a run as files to look at: history.csv, and history.png where Matplotlib is installed; its record,
run.json, and the figures in it."""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keras_ctxrep.atomic import atomic_write

__all__ = ["draw", "metrics", "read", "record", "write", "write_record"]

TABLE, PICTURE, RECORD = "history.csv", "history.png", "run.json"


def write(folder: str | Path, history: Sequence[dict]) -> None:
    """Writes the evaluations of `train.fit` as a table, a line each.

    Args:
        folder: of the run.
        history: {"step", "minutes", "loss", ...} of each evaluation, numbers.
    """
    if not history:
        return
    columns = _columns(history)
    with atomic_write(Path(folder) / TABLE) as path, open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, columns)
        rows.writeheader()
        rows.writerows(history)


def read(folder: str | Path) -> list[dict[str, float]]:
    """The evaluations that `write` wrote; a figure that one of them lacks is left out of it."""
    with open(Path(folder) / TABLE, newline="", encoding="utf-8") as file:
        return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]


def record(folder: str | Path) -> dict[str, Any]:
    """The record of the run that wrote a model folder, see `training.runs.RunRecord.save`; {} if it has none."""
    try:
        written = json.loads((Path(folder) / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}


def write_record(folder: str | Path, record: Mapping[str, Any]) -> None:
    """Writes the record of a run, which `record` reads.

    Args:
        folder: the model folder.
        record: JSON values by name, and paths, which become absolute: the run can be repeated from another folder.
    """
    text = json.dumps(record, indent=1, ensure_ascii=False, default=os.path.abspath)
    with atomic_write(Path(folder) / RECORD) as path:
        path.write_text(f"{text}\n", encoding="utf-8")


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """The figures on held-out data of the weights that a run kept.

    Args:
        record: of the run. That of a fine-tuning has them; in pretraining they are those of the smallest loss.

    >>> history = [{"step": 1, "loss": 3.0, "val_loss": 2.0}, {"step": 2, "loss": 1.0, "val_loss": 2.5}]
    >>> metrics({"history": history})
    {'loss': 2.0}
    """
    if "dev" in record:
        return {name: value for name, value in record["dev"].items() if name not in ("examples", "interval")}
    evaluated = [entry for entry in record.get("history", ()) if "val_loss" in entry]
    best = min(evaluated, key=lambda entry: entry["val_loss"], default={})
    return {name.removeprefix("val_"): value for name, value in best.items() if name.startswith("val_")}


def draw(folder: str | Path, history: Sequence[dict]) -> None:
    """Draws the evaluations as curves over the steps, where Matplotlib is installed; it takes some tenths of a second.

    Losses are in one panel, each other figure in one of its own; a training figure and its "val_" share a panel.

    Args:
        folder, history: as in `write`.
    """
    if not history or find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    panels: dict[str, list[str]] = {}
    for name in _columns(history):
        if name in ("step", "minutes"):
            continue
        title = name.removeprefix("val_").replace("_", " ")
        panels.setdefault("loss" if title.endswith("loss") else title, []).append(name)
    height = 2.4 * len(panels)
    figure = Figure(figsize=(6, height))
    # in inches, since a layout that measures its labels takes as long as all of the drawing
    figure.subplots_adjust(left=0.8 / 6, right=1 - 0.1 / 6, bottom=0.5 / height, top=1 - 0.3 / height, hspace=0.3)
    rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, names) in zip(rows, panels.items(), strict=True):
        for name in names:
            points = [(entry["step"], entry[name]) for entry in history if name in entry]
            label = "validation" if name.startswith("val_") else "training"
            if len(names) > 2:
                label = name
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1.2, label=label)
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        if len(names) > 1:
            axes.legend(frameon=False, fontsize=8)
    rows[-1].set_xlabel("step")
    with atomic_write(Path(folder) / PICTURE) as temporary:
        figure.savefig(temporary, dpi=110)


def _columns(history: Sequence[dict]) -> list[str]:
    """The names in all evaluations, in the order in which they came."""
    return list(dict.fromkeys(name for entry in history for name in entry))
