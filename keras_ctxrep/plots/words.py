"""A word in context: its nearest neighbours, and pictures of its senses."""

import heapq
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep import saving, zoo
from keras_ctxrep.inference.contextual_vectors import learned_mixes, vectors
from keras_ctxrep.plots.drawing import check_drawable, drawing, style
from keras_ctxrep.tasks.classify import Classify
from keras_ctxrep.text.retrieval import unit
from keras_ctxrep.text.tokens import Word, split_words, words

__all__ = ["concordance", "neighbours", "senses"]


def neighbours(
    folder: str | Path,
    word: str,
    sentences: Iterable[str],
    k: int = 10,
    sentence: str | None = None,
    layer: str | None = None,
    batch_size: int = 32,
) -> list[dict]:
    """The words in context whose vectors are nearest to that of a word in its sentence, by cosine similarity.

    Every word is compared, of a BERT by the vector of its first piece. The sentences are read once.

    Args:
        folder: a model of any task.
        word: one word, in lower or upper case.
        sentences: searched for neighbours.
        k: number of neighbours.
        sentence: context of the word, which is its first occurrence in it (default: the first sentence that has it).
        layer: "top"; "mix", the trained one; "mean" of all layers (default: the mix if there is one, else the top).
        batch_size: sentences computed together.

    Returns: the nearest first, {"score": cosine, "sentence", "word", "start", "end": its span in the sentence,
        in characters, "line": the number of the sentence, from 1 on}.

    Raises:
        ValueError: the word does not occur, a sentence is longer than a BERT reads, or there is no such layer.
    """
    if k < 1:
        raise ValueError(f"k={k}: at least 1")
    sentences = iter(sentences)
    before: list[str] = []
    while sentence is None:
        if (candidate := next(sentences, None)) is None:
            raise ValueError(f"the word {word!r} does not occur in the sentences; give one that has it")
        before.append(candidate)
        sentence = candidate if _first_occurrence(word, words(candidate)) is not None else None
    occurrence = word_in(word, sentence)
    nearest: list[tuple[float, int, int, dict]] = []  # a heap: the worst first, of equals the last in the text
    query = None
    contexts = _word_vectors(folder, chain([sentence], before, sentences), layer, batch_size)
    for line, (text, context_words, array) in enumerate(contexts):
        directions = unit(array)  # (T, D)
        if query is None:
            if occurrence not in context_words:
                raise ValueError(f"the model finds no piece in the word {word!r}")
            query = directions[context_words.index(occurrence)]
            continue
        for score, neighbour in zip((directions @ query).tolist(), context_words, strict=True):
            if (len(nearest) == k and score < nearest[0][0]) or (neighbour == occurrence and text == sentence):
                continue
            span = {"word": neighbour.text, "start": neighbour.start, "end": neighbour.end}
            entry = {"score": score, "sentence": text, **span, "line": line}
            add = heapq.heappush if len(nearest) < k else heapq.heappushpop
            add(nearest, (score, -line, -neighbour.start, entry))
    return [entry for *_, entry in sorted(nearest, key=lambda item: item[:3], reverse=True)]


def concordance(entries: Sequence[dict], width: int = 80) -> str:
    """The words of `neighbours` as a table: score, line, and the sentence with «word» aligned in a column.

    >>> entry = {"score": 0.75, "sentence": "They sat on the bank of the river.", "start": 16, "end": 20, "line": 3}
    >>> print(concordance([entry], width=40))
     score  line
     0.750     3  sat on the «bank» of the r
    """
    lines = [f"{'score':>6}  {'line':>4}"]
    for entry in entries:
        sentence, start, end = " ".join(entry["sentence"].splitlines()), entry["start"], entry["end"]
        head = f"{entry['score']:6.3f}  {entry['line']:>4}  "
        room = max(20, width - len(head))
        left = _cut(sentence[:start][::-1], room // 2 - 2)[::-1]
        left = " " * (room // 2 - 2 - _columns(left)) + left
        marked = f"{left}«{sentence[start:end]}»"
        lines.append(head + marked + _cut(sentence[end:], max(0, room - _columns(marked))))
    return "\n".join(lines)


def senses(folder: str | Path, word: str, data: str | Path, out: str | Path, layer: str | None = None) -> dict:
    """Draws the vectors of one word in labelled sentences, projected on two axes, each in the colour of its sense.

    The axes are the first two principal components. The accuracy is measured in the full space: the fraction of vectors
    whose nearest neighbour among the others, by cosine, has the same sense.

    Args:
        folder: a model of any task.
        word: its first occurrence in each sentence is taken.
        data: labelled sentences, as for classification; a label is a sense.
        out: FILE.png (.svg, .pdf).
        layer: as in `neighbours`.

    Returns: {"coordinates": float (K, 2), "labels": K senses, "variance": fractions on the two axes, "accuracy",
        "recall": accuracy for each sense, "majority": fraction of the most frequent sense}.

    Raises:
        ValueError: a sentence without the word or without a label, fewer than two senses, or another file suffix.
    """
    check_drawable(out)
    labels, array = _sense_vectors(folder, word, data, layer)
    names = sorted(set(labels), key=lambda name: (-labels.count(name), name))
    if len(names) < 2:
        raise ValueError(f"{data}: only the sense {names[0]!r}; at least two are needed")
    result = {"labels": labels, **projection(array), **agreement(unit(array), labels, names)}
    with drawing(out, [word, *names], (7.5, 5.4)) as figure:
        axes = figure.subplots()
        draw_projection(axes, labels, result, digits=1, s=26, alpha=0.7)
        accuracy = f"Nearest neighbour of the same sense: {result['accuracy']:.1%}"
        axes.set_title(f"“{word}” in {len(labels):,} sentences. {accuracy}", fontsize=11, loc="left")
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.08), fontsize=9, ncols=2)
    return result


def projection(array: np.ndarray) -> dict[str, Any]:
    """Vectors, float64 (N, D), on their first two principal components: "coordinates", (N, 2), and "variance", on each.

    The latter are fractions of that of the vectors.
    """
    centred = array - array.mean(0)
    _, deviations, axes = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign([axis[np.argmax(np.abs(axis))] for axis in axes[:2]])  # so that a picture is not mirrored
    variance = deviations**2 / max(np.sum(deviations**2), 1e-300)
    return {"coordinates": centred @ axes[:2].T * signs, "variance": variance[:2].tolist()}


def agreement(vectors: np.ndarray, labels: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """How many vectors of length 1 have the label of their nearest neighbour: "accuracy", and "recall" of each label.

    And "majority", the fraction of the first of the labels' names, the most frequent one.
    """
    numbers, kinds = np.arange(len(vectors)), np.array(labels)
    near = [int(np.argmax(np.where(numbers == at, -2, vectors @ vectors[at]))) for at in numbers]
    right = kinds[near] == kinds
    recall = {name: float(right[kinds == name].mean()) for name in names}
    return {"accuracy": float(right.mean()), "recall": recall, "majority": float((kinds == names[0]).mean())}


def draw_projection(axes: Any, labels: Sequence[str], result: dict[str, Any], digits: int, **points: Any) -> None:
    """Draws what `projection` and `agreement` give, each label in its colour; `points` are as of `axes.scatter`."""
    for number, (name, recall) in enumerate(result["recall"].items()):
        mine = result["coordinates"][[label == name for label in labels]]
        label = f"{name}: {len(mine):,}, of which {recall:.{digits}%}"
        axes.scatter(*mine.T, **style(number), linewidths=0, label=label, **points)
    axes.set_xlabel(f"first principal component: {result['variance'][0]:.0%} of the variance")
    axes.set_ylabel(f"second: {result['variance'][1]:.0%}")
    axes.set(xticks=[], yticks=[])


def _sense_vectors(folder, word: str, data: str | Path, layer: str | None) -> tuple[list[str], np.ndarray]:
    """The sense of the word in each sentence, K of them, and its vectors, float64 (K, D)."""
    examples = [*Classify().read(data)]
    occurrences = []
    for example in examples:
        if example.label is None:
            raise ValueError(f"{example.source}: no label; each sentence needs the sense of {word!r}")
        occurrences.append(word_in(word, example.text, f"{example.source}: "))
    contexts, vectors = _word_vectors(folder, (example.text for example in examples), layer), []
    for example, occurrence, (_, context_words, array) in zip(examples, occurrences, contexts, strict=True):
        if occurrence not in context_words:
            raise ValueError(f"{example.source}: the model finds no piece in the word {word!r}")
        vectors.append(array[context_words.index(occurrence)])
    return [str(example.label) for example in examples], np.asarray(vectors, np.float64)


def _first_occurrence(word: str, candidates: Sequence[Word]) -> Word | None:
    return next((each for each in candidates if each.text.casefold() == word.casefold()), None)


def word_in(word: str, sentence: str, where: str = "") -> Word:
    """The first occurrence of a word in a sentence, in lower or upper case.

    Args:
        word, sentence: the word, and where it is searched.
        where: before the message of the error.

    Raises:
        ValueError: it does not occur.
    """
    occurrence = _first_occurrence(word, words(sentence))
    if occurrence is None:
        parts = [part.text for part in words(word)]
        why = f"; as words it is {' '.join(parts)}: choose one of them" if len(parts) > 1 else ""
        raise ValueError(f"{where}the word {word!r} does not occur in {sentence[:60]!r}{why}")
    return occurrence


def _word_vectors(
    folder: str | Path, sentences: Iterable[str], layer: str | None, batch_size: int = 32
) -> Iterator[tuple[str, list[Word], np.ndarray]]:
    """Each sentence, its words that have a vector, and their vectors, (T, D)."""
    if layer not in (None, "top", "mix", "mean"):
        raise ValueError(f"layer={layer}: choose top, mix or mean")
    model, bundle = saving.load(zoo.find(folder))
    mixes = learned_mixes(model)
    if layer == "mix" and not mixes:
        raise ValueError(f"{folder}: no scalar mix in it; choose top or mean")
    layer = layer or ("mix" if mixes else "top")

    for text, numbers, layers in vectors(model, bundle, sentences, split_words, batch_size=batch_size):
        if layer == "mix":
            weights, gamma = next(iter(mixes.values()))
            array = gamma * np.tensordot(weights, layers, 1)
        else:
            array = layers[-1] if layer == "top" else layers.mean(0)
        context_words = words(text)
        yield text, [context_words[number] for number in numbers], array


def _columns(text: str) -> int:
    """The width of a text in a terminal, in columns."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text if not unicodedata.combining(char))
    return sum(not unicodedata.combining(char) for char in text) + wide


def _cut(text: str, room: int) -> str:
    while _columns(text) > room:
        text = text[: min(len(text) - 1, room)]
    return text
