"""Pictures of the loss of runs: over the words that they have read, and over the hours that they took."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_ctxrep.plots.drawing import COLOURS, check_drawable, drawing
from keras_ctxrep.training import history as files
from keras_ctxrep.training.runs import NAME

__all__ = ["history"]

LOSSES = ("val_loss", "loss")  # what is drawn of a run: the first that it has


def history(folders: Sequence[str | Path], out: str | Path) -> list[dict]:
    """Draws the loss of runs in two panels: against the words or other tokens that were read, and against hours.

    Where a run does not say how many tokens a step reads (`RunRecord.save`), the first panel counts steps for all. The
    validation loss is drawn, or the training loss of a run without one. Losses of different tasks, vocabularies or
    kinds of tokens are no measure of each other.

    Args:
        folders: of runs, finished (with run.json) or going on (with history.csv).
        out: FILE.png (.svg, .pdf).

    Returns: {"folder", "loss": its name, "tokens": of each evaluation, None if unknown, "steps", "hours", "losses"} of
        each run.

    Raises:
        ValueError: a folder without evaluations, or another file suffix.
    """
    check_drawable(out)
    runs = [_run(Path(folder)) for folder in folders]
    with drawing(out, map(str, folders), (10, 4.2)) as figure:
        _draw(figure, runs)
    return runs


def _run(folder: Path) -> dict[str, Any]:
    """The evaluations of a run as columns."""
    tokens = None
    try:
        if (folder / NAME).is_file():
            record = json.loads((folder / NAME).read_text(encoding="utf-8"))
            entries, tokens = record["history"], record.get("tokens_per_step")
        else:
            entries = files.read(folder)
        key = next(key for key in LOSSES if all(key in entry for entry in entries)) if entries else ""
        columns = {name: [float(entry[name]) for entry in entries] for name in ("step", "minutes", key) if entries}
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise ValueError(f"{folder}: no evaluations of a run in its {NAME} or {files.TABLE}: {error}") from None
    if not entries:
        raise ValueError(f"{folder}: its run has no evaluations yet; wait for the first one")
    return {
        "folder": str(folder),
        "loss": key,
        "tokens": None if tokens is None else [step * tokens for step in columns["step"]],
        "steps": columns["step"],
        "hours": [minutes / 60 for minutes in columns["minutes"]],
        "losses": columns[key],
    }


def _draw(figure, runs: list[dict]) -> None:
    counted = all(run["tokens"] for run in runs)
    names = [Path(run["folder"]).resolve().name for run in runs]
    for panel, axes in enumerate(figure.subplots(1, 2, sharey=True)):
        for number, run in enumerate(runs):
            x = run["hours"] if panel else run["tokens"] if counted else run["steps"]
            name = names[number] if names.count(names[number]) == 1 else run["folder"]
            kind = "validation" if run["loss"] == "val_loss" else "training"
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(x, run["losses"], color=colour, marker="o", markersize=3, linewidth=1.4, label=f"{name}, {kind}")
        axes.set_xlabel("hours" if panel else "tokens read" if counted else "steps")
        axes.set_xlim(left=0)
        if panel:
            axes.legend(frameon=False, fontsize=9)
        else:
            axes.set_ylabel("loss")
