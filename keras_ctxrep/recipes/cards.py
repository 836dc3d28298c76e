"""The model card of a fine-tuned or distilled model, card.md in its folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_ctxrep.options import Options
from keras_ctxrep.tasks import Task
from keras_ctxrep.text.bundle import FINE_TUNED, PRETRAINED, Bundle, pretrained_card
from keras_ctxrep.zoo import folders

LABELS = 50  # listed, of those that a model has


def fine_tuned(task: Task, bundle: Bundle, base: Mapping[str, Any], data: str, dev: str, figures: Mapping) -> str:
    """The card: task, labels, data, scores and base of a model, then the card of the weights that it began with.

    Args:
        task: of the model.
        bundle: of the model, with the base's card.
        base: what the model began with, and its teacher if it has one, by what they are.
        data, dev: names of the training and development data, with the number of their rows.
        figures: of the model on its development data, as `RunRecord.save` gets them.

    >>> from keras_ctxrep import tasks
    >>> bundle = Bundle("elmo", "classify", {}, 8, ("no", "yes"), card="# Ours")
    >>> figures = {"examples": 20, "interval": (0.7, 0.95), "accuracy": 0.85}
    >>> card = fine_tuned(tasks.get("classify"), bundle, {"encoder": "lm"}, "90 rows of a.tsv", "b.tsv", figures)
    >>> print(card.splitlines()[7])
    | scores on b.tsv | accuracy 0.8500 (0.7000 to 0.9500) |
    """
    interval = figures["interval"]
    scores = [f"{name} {value:.4f}" for name, value in figures.items() if name not in ("examples", "interval")]
    if interval:
        scores[0] += f" ({interval[0]:.4f} to {interval[1]:.4f})"
    labels = ", ".join(f"`{label}`" for label in bundle.labels[:LABELS]) + (", ..." * (len(bundle.labels) > LABELS))
    rows = {
        "task": f"{task.name}: {task.help.partition(':')[0]}",
        f"labels, {len(bundle.labels)}": labels,
        "data": data,
        f"scores on {dev}": ", ".join(scores),
        "text": f"at most {bundle.max_length} tokens",
        "family": bundle.family,
        **{name: folders.name_of(source) for name, source in base.items()},
    }
    card = f"{FINE_TUNED} {task.name}\n\n{_table(rows)}\n"
    pretrained = pretrained_card(bundle.card)
    return f"{card}\n{PRETRAINED}\n\n{pretrained}" if pretrained else card


def distilled(
    teacher: str | Path,
    bundle: Bundle,
    corpus: Sequence[str | Path],
    options: Options,
    history: Sequence[Mapping[str, Any]],
) -> str:
    """The card of a student that learned a teacher's vectors: what it was made from, then the teacher's card.

    Args:
        teacher: its folder or name.
        bundle: of the teacher.
        corpus: the files of the text.
        options: of the run.
        history: its evaluations.
    """
    last = history[-1] if history else {}
    kept = {name: value for name, value in options.plain(neutral=False).items() if value is not None}
    figures = {name: value for name, value in last.items() if name.startswith("val_")}
    rows = {
        "teacher": folders.name_of(teacher),
        "corpus": ", ".join(Path(path).name for path in corpus),
        "options": ", ".join(f"{name} {value}" for name, value in kept.items()),
        "steps": f"{last.get('step', 0):,}",
        "on held-out text": ", ".join(f"{name.removeprefix('val_')} {value:.4f}" for name, value in figures.items()),
    }
    card = f"# Distilled from {folders.name_of(teacher)}\n\n{_table(rows)}\n"
    return f"{card}\n## The teacher\n\n{bundle.card}" if bundle.card else card


def _table(rows: Mapping[str, str]) -> str:
    """A Markdown table of names and values, without the empty ones."""
    shown = {name.replace("|", r"\|"): value.replace("|", r"\|") for name, value in rows.items() if value}
    lines = [f"| {name} | {value} |".replace("\n", " ") for name, value in shown.items()]
    return "\n".join(["| | |", "|---|---|", *lines])
