"""Static vectors of words in two dimensions, in the colours of their parts of speech, beside their nearest words."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_ctxrep.plots.drawing import check_drawable, drawing, style
from keras_ctxrep.plots.words import agreement, draw_projection, projection
from keras_ctxrep.recipes.word_vectors import WordTable
from keras_ctxrep.text import files

__all__ = ["parts_of_speech"]

WORDS = 300  # that are drawn
NEIGHBOURS = 5  # of a word in the table
NAMES = 8  # parts of speech with a colour of their own
OTHER = "other"
# Tags of the Penn Treebank, Marcus et al. 1993, https://aclanthology.org/J93-2004, by their first two letters
PENN = {"NN": "noun", "VB": "verb", "JJ": "adjective", "RB": "adverb", "PR": "pronoun", "WP": "pronoun"}
PENN |= {"IN": "preposition", "TO": "preposition", "DT": "determiner", "WD": "determiner", "PD": "determiner"}
PENN |= {"CD": "number", "MD": "verb", "CC": "conjunction", "WR": "adverb"}


class _Tagged(NamedTuple):
    word: str  # as it is looked up
    tag: str  # the most frequent one
    times: int


def parts_of_speech(
    folder: str | Path,
    data: str | Path,
    out: str | Path,
    columns: Mapping[str, str] | None = None,
    count: int = WORDS,
    k: int = NEIGHBOURS,
) -> dict[str, Any]:
    """Draws the vectors of frequent words on their first two principal components, in the colour of their tags.

    Beside them stands a table of neighbours: for each part of speech its most frequent word and the `k` nearest words
    of the whole vocabulary by cosine. The accuracy is measured in the full space: the fraction of the drawn words whose
    nearest neighbour among them has the same part of speech. Tags of the Penn Treebank are put together, NN, NNS and
    NNP as "noun"; the most frequent eight parts of speech have colours, and the rest is "other".

    Args:
        folder: a model folder of static word vectors, or the name of a published one.
        data: words with their tags, in columns: a word a line, an empty line between sentences (CoNLL).
        out: FILE.png (.svg, .pdf).
        columns: numbers of the columns "word" and "tag", from 1 on (default: {"word": "1", "tag": "2"}).
        count: words that are drawn, the most frequent ones of `data` that have a vector; a word's tag is the one it
            has most often.
        k: neighbours in the table.

    Returns: {"words", "tags": of the words drawn, "coordinates": float (N, 2), "variance": fractions on the two axes,
        "accuracy", "recall": accuracy for each tag, "majority": fraction of the most frequent tag, "neighbours": word
        -> its nearest words with their cosines}.

    Raises:
        ValueError: words of fewer than two parts of speech have a vector, a column is missing, or another file suffix.
    """
    check_drawable(out)
    vectors = WordTable(folder)
    tagged = _read(data, vectors, columns or {})[:count]
    tags = _coarse([entry.tag for entry in tagged])
    names = [name for name, _ in Counter(tags).most_common()]
    if len(names) < 2:
        raise ValueError(f"{data}: {len(tagged)} words with a vector, of {len(names)} parts of speech; two are needed")
    words = [entry.word for entry in tagged]
    unit = np.asarray(vectors.vectors(words), np.float64)
    result = {"words": words, "tags": tags, **projection(unit), **agreement(unit, tags, names)}
    examples = [words[tags.index(name)] for name in names if name != OTHER]
    result["neighbours"] = {word: vectors.neighbours(word, k) for word in examples}
    _draw(out, names, result)
    return result


def _read(path: str | Path, vectors: WordTable, columns: Mapping[str, str]) -> list[_Tagged]:
    """The words of a file that have a vector, the most frequent first."""
    if unknown := set(columns) - {"word", "tag"}:
        raise ValueError(f"columns: {sorted(unknown)[0]!r} is neither word nor tag")
    numbers = {"word": 0, "tag": 1} | files.conll_columns(Path(path), columns)
    counts: dict[int, Counter[str]] = {}
    for line, sentence in files.conll(Path(path)):
        try:
            tokens = sentence()
            pairs = zip(files.column(tokens, numbers["word"]), files.column(tokens, numbers["tag"]), strict=True)
        except ValueError as error:
            raise ValueError(f"{path}:{getattr(error, 'line', line)}: {error}") from None
        for text, name in pairs:
            if (number := vectors.number(text)) is not None and any(letter.isalnum() for letter in text):
                counts.setdefault(number, Counter())[name] += 1
    tagged = [
        _Tagged(vectors.words[number], tags.most_common(1)[0][0], tags.total()) for number, tags in counts.items()
    ]
    return sorted(tagged, key=lambda entry: (-entry.times, entry.word))


def _coarse(tags: list[str]) -> list[str]:
    """Tags of the Penn Treebank by part of speech, others as they are; the rare ones as "other".

    >>> _coarse(["NN", "NNS", "VBD", "XX"])
    ['noun', 'noun', 'verb', 'XX']
    >>> _coarse(["NOUN", "VERB"])
    ['NOUN', 'VERB']
    """
    if {"NNS", "VBD", "VBZ", "NNP"} & {*tags}:
        tags = [PENN.get(tag[:2], tag) for tag in tags]
    kept = {name for name, _ in Counter(tags).most_common(NAMES)}
    if len(set(tags)) > NAMES:
        kept = {name for name, _ in Counter(tags).most_common(NAMES - 1)}
    return [tag if tag in kept else OTHER for tag in tags]


def table(neighbours: Mapping[str, Iterable[tuple[str, float]]]) -> str:
    """Words and their neighbours as lines of text.

    >>> print(table({"rain": [("storm", 0.81)], "of": [("in", 0.5)]}))
    rain  storm 0.81
    of    in 0.50
    """
    width = max(map(len, neighbours), default=0)
    lines = ((word, "  ".join(f"{near} {score:.2f}" for near, score in near)) for word, near in neighbours.items())
    return "\n".join(f"{word:{width}}  {near}" for word, near in lines)


def _draw(out: str | Path, names: list[str], result: dict[str, Any]) -> None:
    words, tags, near = result["words"], result["tags"], result["neighbours"]
    letters = [*words, *names, *(word for row in near.values() for word, _ in row)]
    with drawing(out, letters, (12.5, 6.6)) as figure:
        axes, side = figure.subplots(1, 2, width_ratios=[2, 1])
        draw_projection(axes, tags, result, digits=0, s=9)
        for at, tag, word in zip(result["coordinates"], tags, words, strict=True):
            color = style(names.index(tag))["color"]
            axes.annotate(word, at, (2, 2), textcoords="offset points", fontsize=6, color=color)
        accuracy = f"Nearest neighbour of the same part of speech: {result['accuracy']:.1%}"
        axes.set_title(f"{len(words):,} words. {accuracy}", fontsize=11, loc="left")
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.06), fontsize=8, ncols=3)
        side.axis("off")
        side.set_title("Nearest words", fontsize=11, loc="left")
        step = 1 / max(8, len(near))
        for row, (word, nearest) in enumerate(near.items()):
            top = 1 - row * step
            colour = style(names.index(tags[words.index(word)]))["color"]
            side.text(0, top, word, fontsize=10, fontweight="bold", color=colour, va="top")
            side.text(0, top - 0.4 * step, ", ".join(other for other, _ in nearest), fontsize=8, va="top", wrap=True)
