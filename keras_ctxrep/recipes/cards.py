"""The model card of a fine-tuned model, card.md in its folder."""

from collections.abc import Mapping
from typing import Any

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
    shown = {name.replace("|", r"\|"): value.replace("|", r"\|") for name, value in rows.items() if value}
    table = "\n".join(f"| {name} | {value} |".replace("\n", " ") for name, value in shown.items())
    card = f"{FINE_TUNED} {task.name}\n\n| | |\n|---|---|\n{table}\n"
    pretrained = pretrained_card(bundle.card)
    return f"{card}\n{PRETRAINED}\n\n{pretrained}" if pretrained else card
