"""Pictures of scalar mixes."""

from collections.abc import Sequence
from pathlib import Path

from keras_ctxrep import saving, zoo
from keras_ctxrep.inference.contextual_vectors import learned_mixes
from keras_ctxrep.plots.drawing import check_drawable, drawing

__all__ = ["mix"]


def mix(folders: Sequence[str | Path], out: str | Path) -> list[dict]:
    """Draws the weights of the layers in the scalar mixes of models, a group of bars for each mix.

    As figure 2 of Peters et al. 2018, section 5.5, https://arxiv.org/abs/1802.05365.

    Args:
        folders: models that were trained with a mix.
        out: FILE.png (.svg, .pdf).

    Returns: {"folder", "mix": the layer's name, "gamma", "weights": of each layer, from 0 on} of each mix.

    Raises:
        ValueError: a model without a mix, or another file suffix.
    """
    check_drawable(out)
    entries = []
    for folder in folders:
        mixes = learned_mixes(saving.load(zoo.find(folder))[0])
        if not mixes:
            raise ValueError(f"{folder}: no scalar mix in it; train it with one: `ctxrep train --mix`")
        for name, (weights, gamma) in mixes.items():
            entries.append({"folder": str(folder), "mix": name, "gamma": gamma, "weights": weights.tolist()})
    with drawing(out, map(str, folders)) as figure:
        _bars(figure, entries)
    return entries


def _bars(figure, entries: list[dict]) -> None:
    import matplotlib

    deepest = max(len(entry["weights"]) for entry in entries)
    names = {entry["folder"]: Path(entry["folder"]).resolve().name for entry in entries}
    bar = 0.8 / deepest
    figure.set_size_inches(min(16, max(5.0, 1.5 + len(entries) * (0.6 + 0.28 * deepest))), 4)
    axes, colours = figure.subplots(), matplotlib.colormaps["viridis"]
    for layer in range(deepest):
        groups = [(at, entry["weights"]) for at, entry in enumerate(entries) if layer < len(entry["weights"])]
        drawn = axes.bar(
            [at + (layer - (len(weights) - 1) / 2) * bar for at, weights in groups],
            [weights[layer] for _, weights in groups],
            0.92 * bar,
            color=colours(0.93 * layer / max(1, deepest - 1)),
            label="0 (tokens)" if layer == 0 else str(layer),
        )
        if len(entries) * deepest <= 24:
            axes.bar_label(drawn, fmt="{:.2f}", padding=2, fontsize=8)
    titles = []
    for at, entry in enumerate(entries):
        even, half = 1 / len(entry["weights"]), len(entry["weights"]) / 2 * bar
        label = None if at else "untrained"
        axes.plot([at - half, at + half], [even, even], color="#444444", linestyle=":", linewidth=1.2, label=label)
        folder = entry["folder"]
        unique = list(names.values()).count(names[folder]) == 1
        lines = [names[folder] if unique else folder]
        if [each["folder"] for each in entries].count(folder) > 1:
            lines.append(entry["mix"])
        titles.append("\n".join([*lines, f"γ = {entry['gamma']:.2f}"]))
    axes.set_xticks(range(len(entries)), titles)
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="weight after the softmax", title="Scalar mix of the layers")
    axes.legend(title="layer", frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)
