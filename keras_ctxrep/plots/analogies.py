"""Pairs of words of one relation in two dimensions, joined by arrows: how parallel their differences are."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep.plots.drawing import COLOURS, check_drawable, drawing
from keras_ctxrep.plots.words import projection
from keras_ctxrep.recipes.word_vectors import WordTable, sectioned
from keras_ctxrep.text.retrieval import unit

__all__ = ["analogies"]

RELATIONS = {
    "male and female": """man woman, king queen, prince princess, father mother, son daughter, brother sister,
        uncle aunt, husband wife, actor actress, waiter waitress""",
    "verb tense": """go went, come came, take took, give gave, make made, see saw, say said, tell told, know knew,
        think thought""",
    "country and capital": """Spain Madrid, France Paris, Italy Rome, Germany Berlin, Greece Athens, Poland Warsaw,
        Turkey Ankara, Russia Moscow, China Beijing, Japan Tokyo""",
}
SHIFTS = 10  # ways in which the second words are put to other first words, at most
COLUMNS = 3  # of panels


def analogies(folder: str | Path, out: str | Path, data: str | Path | None = None) -> dict[str, Any]:
    """Draws pairs of words of some relations, with an arrow from the first to the second word of each pair.

    As figure 2 of Mikolov et al. 2013, https://arxiv.org/abs/1310.4546. Each relation has a panel, whose axes are the
    first two principal components of the vectors of its words, which have length 1 as in `WordTable.analogy`. How
    parallel the arrows are is measured in the full space: the mean cosine between the differences of two pairs. The
    cosine of shuffled pairs, where each first word goes with the second word of another pair, is what the two groups
    of words give by themselves, without a relation of the words of a pair.

    Args:
        folder: a model folder of static word vectors, or the name of a published one.
        out: FILE.png (.svg, .pdf).
        data: a file of pairs: lines ": name of a relation" and "first second"; a line of four words, as in
            questions-words.txt, is two pairs (default: male and female, verb tense, country and capital). A pair with a
            word that has no vector is left out, and a relation of which fewer than two pairs remain.

    Returns: {"relations": name -> {"pairs": N pairs, "coordinates": float (N, 2, 2) of both words, "variance":
        fractions on the two axes, "cosine", "shuffled"}, "unknown": words without a vector, "left_out": names of
        relations}.

    Raises:
        ValueError: no relation has two pairs with vectors, a line of the file is malformed, or another file suffix.
    """
    check_drawable(out)
    built_in = {name: [_pair(pair.split()) for pair in pairs.split(",")] for name, pairs in RELATIONS.items()}
    every = built_in if data is None else _read(data)
    vectors, relations, left_out = WordTable(folder), {}, []
    words = [*dict.fromkeys(word for pairs in every.values() for pair in pairs for word in pair)]
    unknown = [word for word, vector in zip(words, vectors.vectors(words), strict=True) if not vector.any()]
    for name, pairs in every.items():
        kept = [pair for pair in pairs if not {*pair} & {*unknown}]
        if len(kept) < 2:
            left_out.append(name)
        else:
            relations[name] = {"pairs": kept, **_measured(vectors, kept)}
    if not relations:
        source = "the pairs that come with the package" if data is None else data
        raise ValueError(f"{source}: no relation has two pairs of words with vectors in {folder}")
    _draw(out, relations)
    return {"relations": relations, "unknown": unknown, "left_out": left_out}


def _pair(words: Sequence[str]) -> tuple[str, str]:
    first, second = words
    return first, second


def _read(path: str | Path) -> dict[str, list[tuple[str, str]]]:
    """The pairs of each relation of a file, each once."""
    relations: dict[str, dict[tuple[str, str], None]] = {}
    for name, words in sectioned(path, (2, 4), "a pair has two, and the name of a relation begins with ':'", "pairs"):
        pairs = [_pair(words[begin : begin + 2]) for begin in range(0, len(words), 2)]
        relations.setdefault(name, {}).update(dict.fromkeys(pairs))
    return {name: [*pairs] for name, pairs in relations.items()}


def _measured(vectors: WordTable, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    both = np.stack([vectors.vectors(words) for words in zip(*pairs, strict=True)], 1).astype(np.float64)  # (N, 2, D)
    axes = projection(both.reshape(-1, both.shape[-1]))
    first, second = both[:, 0], both[:, 1]
    shuffled = [_parallel(first, np.roll(second, shift, 0)) for shift in range(1, min(len(pairs), SHIFTS + 1))]
    cosines = {"cosine": _parallel(first, second), "shuffled": float(np.mean(shuffled))}
    return {"coordinates": axes["coordinates"].reshape(len(pairs), 2, 2), "variance": axes["variance"], **cosines}


def _parallel(first: np.ndarray, second: np.ndarray) -> float:
    """The mean cosine between the differences of two pairs.

    >>> _parallel(np.zeros((3, 2)), np.array([[0, 1], [0, 2], [1, 0]]))  # of three cosines one is 1, and two are 0
    0.3333333333333333
    """
    differences = unit(second - first).astype(np.float64)
    count = len(differences)
    cosines = differences @ differences.T
    return float((cosines.sum() - cosines.trace()) / (count * (count - 1)))


def table(relations: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """Rows of text about relations, the first of them a header.

    >>> [*table({"capitals": {"pairs": [("Spain", "Madrid")] * 2, "cosine": 0.58, "shuffled": 0.2}})][1]
    ['capitals', '2', '0.580', '0.200']
    """
    yield ["relation", "pairs", "mean cosine", "shuffled"]
    for name, relation in relations.items():
        yield [name, str(len(relation["pairs"])), f"{relation['cosine']:.3f}", f"{relation['shuffled']:.3f}"]


def _draw(out: str | Path, relations: Mapping[str, Mapping[str, Any]]) -> None:
    columns = min(COLUMNS, len(relations))
    rows = -(-len(relations) // columns)
    texts = [word for relation in relations.values() for pair in relation["pairs"] for word in pair]
    with drawing(out, [*texts, *relations], (4.6 * columns, 4.6 * rows)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False).flat
        for number, (axes, (name, relation)) in enumerate(zip(grid, relations.items(), strict=False)):
            _panel(axes, relation, COLOURS[number % len(COLOURS)])
            axes.set_title(f"{name}: mean cosine {relation['cosine']:.2f}", fontsize=11, loc="left")
        for axes in grid:  # unused cells
            axes.set_visible(False)


def _panel(axes: Any, relation: Mapping[str, Any], colour: str) -> None:
    for pair, ends in zip(relation["pairs"], relation["coordinates"], strict=True):
        begin, end = ends
        arrow = {"arrowstyle": "->", "color": colour, "alpha": 0.7, "shrinkA": 3, "shrinkB": 3}
        axes.annotate("", end, begin, arrowprops=arrow)
        for word, at in zip(pair, ends, strict=True):
            axes.annotate(word, at, (3, 3), textcoords="offset points", fontsize=8)
    points = relation["coordinates"].reshape(-1, 2)
    axes.scatter(*points.T, s=12, color=colour, linewidths=0)
    axes.set_xlabel(f"first principal component: {relation['variance'][0]:.0%} of the variance", fontsize=9)
    axes.set_ylabel(f"second: {relation['variance'][1]:.0%}", fontsize=9)
    axes.set(xticks=[], yticks=[])
    axes.margins(x=0.14, y=0.08)
