"""A task's examples as a model learns from them and is asked about them: checked, encoded, with their targets."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_ctxrep import pipeline
from keras_ctxrep.recipes.reading import read
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.examples import GOLD, Question
from keras_ctxrep.text.features import Row, WordPieceFeatures
from keras_ctxrep.text.tokens import words

Data = str | Path | Sequence[Any]
SHUFFLED = 20_000  # examples in memory, whose order is drawn
ENCODED = 500  # examples that are encoded together


def checked(
    task: str,
    data: Data,
    labels: Sequence[str] | None = None,
    pairs: bool | None = None,
    columns: Mapping[str, str] | None = None,
    skipped: list[str] | None = None,
    split: str = "train",
) -> Iterator[Any]:
    """The examples of a task, one by one, each with a label that is known.

    Args:
        task, data, columns, skipped, split: as of `reading.read`.
        labels: those that are known; None: any.
        pairs: whether they are pairs of texts; None: if the first one is.

    Raises:
        ValueError: an example has no label, an unknown one, or is a pair where the others are not, or a text has no
            words to compute its number of; the message names its place.
    """
    known = None if labels is None else set(labels)
    for example in read(task, data, columns, skipped, split):
        place = example.place or repr(getattr(example, "text", "") or getattr(example, "question", ""))[:60]
        pair = getattr(example, "pair", None) is not None
        pairs = pair if pairs is None else pairs
        found = labels_of(task, example)
        message = None
        if found is None:
            message = f"{place}: no {GOLD[task]}"
        elif pairs != pair:
            kinds = ("one text", "a pair of texts") if pairs else ("a pair of texts", "one text")
            message = f"{place}: {kinds[0]}; this model reads {kinds[1]}"
        elif known is not None and not known.issuperset(found):
            unknown = next(label for label in found if label not in known)
            message = f"{place}: label {unknown!r} is not one of {', '.join(sorted(known))}"
        elif task == "regress" and not words(example.text) and not words(example.pair or ""):
            message = f"{place}: no words in this text, of which a number could be computed"
        if message is None:
            yield example
        elif skipped is None:
            raise ValueError(message)
        else:
            skipped.append(message)


def fitting(
    bundle: Bundle,
    data: Data,
    columns: Mapping[str, str] | None = None,
    skipped: list[str] | None = None,
    split: str = "train",
) -> Iterator[Any]:
    """The examples that a model can learn from or be compared with, as of `checked`."""
    pairs = bundle.pairs and bundle.task != "answer"
    return checked(bundle.task, data, bundle.labels or None, pairs, columns, skipped, split)


def labels_of(task: str, example: Any) -> tuple | None:
    """The labels an example uses, or None if it has not been labelled."""
    found = getattr(example, GOLD[task])
    if found is None or task in ("multilabel", "tag"):
        return found
    return (found,) if task == "classify" else ()


def in_random_order(source: Callable[[], Iterable], seed: int) -> Callable[[int], Iterator]:
    """A function from the number of an epoch to its examples: 20,000 at a time are drawn into an order of their own."""

    def epoch(number: int) -> Iterator:
        rng = random.Random(f"{seed} {number}")
        examples = iter(source())
        while pool := list(itertools.islice(examples, SHUFFLED)):
            rng.shuffle(pool)
            yield from pool

    return epoch


def encoded(bundle: Bundle, examples: Iterable) -> Iterator[tuple[Row, Any]]:
    """Rows and their targets; a question has one of each for every window of its context."""
    source = iter(examples)
    while part := list(itertools.islice(source, ENCODED)):
        if bundle.task == "answer":
            assert isinstance(bundle.features, WordPieceFeatures)
            texts = [one.question for one in part], [one.context for one in part]
            for one, windows in zip(part, bundle.features.windows(*texts, bundle.stride), strict=True):
                yield from ((row, answer_place(row, one)) for row in windows)
            continue
        numbers = {label: number for number, label in enumerate(bundle.labels)}
        pairs = [one.pair for one in part] if bundle.pairs else None
        rows = bundle.features.encode([one.words if bundle.task == "tag" else one.text for one in part], pairs)
        for row, one in zip(rows, part, strict=True):
            if not len(row):
                continue  # nothing to read
            if bundle.task == "tag":
                starts = row.starts or []
                yield row, [-1 if i is None else numbers[tag] for i, tag in zip(starts, one.tags, strict=True)]
            elif bundle.task == "classify":
                yield row, numbers[one.label]
            elif bundle.task == "multilabel":
                yield row, [float(label in one.label) for label in bundle.labels]
            else:
                yield row, [one.label]


def answer_place(row: Row, question: Question) -> tuple[int, int]:
    """The first and the last piece of a window that hold the first answer, or [CLS], (0, 0), if it is not all there.

    As https://github.com/google-research/bert, run_squad.py.
    """
    assert question.answers is not None and row.offsets is not None
    if question.answers:
        text, begin = question.answers[0]
        inside = range(row.first, len(row) - 1)
        held = [i for i in inside if row.offsets[i][1] > begin and row.offsets[i][0] < begin + len(text)]
        if held:
            first, last = row.offsets[held[0]][0], row.offsets[held[-1]][1]
            # at its ends a window may cut the answer; elsewhere what no piece holds, like an accent, is in no piece
            begins, ends = first <= begin, begin + len(text.rstrip()) <= last
            if (begins or held[0] > inside[0]) and (ends or held[-1] < inside[-1]):
                return held[0], held[-1]
    return 0, 0


def batches(
    bundle: Bundle, examples: Callable[[int], Iterable], batch_size: int, seed: int, crf: bool, start: int = 0
) -> tf.data.Dataset:
    """Endless batches of like length to train a task model on.

    Args:
        bundle: of the model.
        examples: a function from the number of the epoch to examples.
        batch_size: rows per batch.
        seed: of their order.
        crf: a tagger's targets without a word are -1; else they are 0, with the weight 0.
        start: batches left out at the beginning; they are not collated.
    """
    features = bundle.features

    def collate(found: list, rng):
        inputs = features.collate([row for row, _ in found])
        targets = [target for _, target in found]
        if bundle.task == "answer":
            starts, ends = np.array(targets, np.int32).T.copy()
            return inputs, {"start_logits": starts, "end_logits": ends}
        if bundle.task != "tag":
            return inputs, {"logits": np.array(targets, np.int32 if bundle.task == "classify" else np.float32)}
        y = np.full(inputs.get("starts", inputs["mask"]).shape, -1, np.int32)
        for row, target in zip(y, targets, strict=True):
            kept = target[: len(row)]
            row[: len(kept)] = kept
        if crf:
            return inputs, {"logits": y}
        real = (y >= 0).astype(np.float32)
        real *= real.size / max(1.0, real.sum())  # so that the mean over all positions is that over words
        return inputs, {"logits": np.maximum(y, 0)}, {"logits": real}

    return pipeline.dataset(
        lambda epoch: encoded(bundle, examples(epoch)),
        collate,
        batch_size,
        lambda one: len(one[0]),
        seed,
        repeat=True,
        start=start,
    )
