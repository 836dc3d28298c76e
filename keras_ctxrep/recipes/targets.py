"""Examples of a task, checked and encoded, with their targets."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from keras_ctxrep import tasks
from keras_ctxrep.recipes.reading import Data, read
from keras_ctxrep.tasks import Task
from keras_ctxrep.tasks.reading import IN_PYTHON, column_option
from keras_ctxrep.tasks.task import pair_problem, warn_of_unseen
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row
from keras_ctxrep.training import pipeline
from keras_ctxrep.training.frozen import FrozenOutputs

SHUFFLED = 20_000  # examples in the shuffle buffer
ENCODED = 500  # examples that are encoded together


class Reader:
    """Reads the examples of a task one by one and checks their labels.

    Args:
        task: what they are examples of.
        columns: as in `Task.read`.
        skipped: as in `Task.read`.
        labels: those that are known; an example with others is given too, and they are warned of once; none: any. A
            label that is the same number as one of them, 1.0 as 1, is that one.
        pairs: whether they are pairs of texts; None: if the first one is.

    Call:
        data, split: as in `reading.read`.

    Raises:
        ValueError: an example has no label, or is a pair where the others are not, or nothing can be computed of it;
            the message names its source.
    """

    def __init__(self, task: Task, columns=None, skipped: list | None = None, labels: Sequence[str] = (), pairs=None):
        self.task, self.columns, self.skipped, self.pairs = task, columns, skipped, pairs
        self.labels = frozenset(labels)
        self._same = {_number(label): label for label in labels}

    def __call__(self, data: Data, split: str = "train") -> Iterator[Any]:
        pairs, kind, unseen = self.pairs, None, Counter()
        for example in read(self.task, data, self.columns, self.skipped, split):
            pair = self.task.query(example).pair is not None
            pairs = pair if pairs is None else pairs
            message = self._problem(example, pair, pairs)
            if message is None:
                own = self.task.kind(example)
                kind = own if kind is None else kind
                message = None if own == kind else f"{own}, and the first example is {kind}: all must be alike"
            if message is None:
                if unknown := self.task.unseen(example, self.labels):
                    example = self._renamed(example, unknown)
                    unseen.update(self.task.unseen(example, self.labels))
                yield example
                continue
            source = example.source or repr(str(self.task.query(example).text))[:60]
            if self.skipped is None:
                unlabelled = self.task.labels_of(example) is None
                raise ValueError(f"{source}: {message}{self._remedy(data, source) if unlabelled else ''}")
            self.skipped.append(f"{source}: {message}")
        warn_of_unseen(unseen, str(data) if isinstance(data, str | Path) else "the data")

    def _problem(self, example: Any, pair: bool, pairs: bool) -> str | None:
        labels = self.task.labels_of(example)
        if labels is None:
            return f"no {self.task.gold}"
        if message := pair_problem(pair, pairs):
            return message
        if odd := [label for label in labels if not isinstance(label, str) or not label]:
            return f"label {odd[0]!r}: a label is a string" + (" that is not empty" if odd[0] == "" else "")
        return self.task.problem(example)

    def _renamed(self, example: Any, unknown: Sequence[str]) -> Any:
        """An example with the names that the model has for some labels, where these are the same number."""
        names = {label: self._same.get(_number(label), label) for label in unknown}
        gold = getattr(example, self.task.gold)
        gold = names[gold] if isinstance(gold, str) else tuple(names.get(label, label) for label in gold)
        return replace(example, **{self.task.gold: gold})

    def _remedy(self, data: Data, source: str) -> str:
        """What can be done about a row without a label."""
        in_python = not isinstance(data, str | Path)
        if in_python and not source.startswith(f"{IN_PYTHON}:"):
            return ""
        field, reading = self.task.reading.labelled[0], self.task.reading
        option, skip = column_option(field, "NAME", in_python), "skip_bad=True" if in_python else "--skip-bad"
        column = reading.names(self.columns)[field][0]
        return f": {option} names its column, {skip} leaves such rows out (looked for in column {column!r})"


def _number(label: str) -> str:
    """A label in one form for equal numbers of Python: 1, 1.0 and True.

    >>> _number("True"), _number("2.0"), _number("v2.0")
    ('1', '2', 'v2.0')
    """
    whole = label.removesuffix(".0")
    return {"False": "0", "True": "1"}.get(label, whole if whole.removeprefix("-").isdecimal() else label)


def fitting(
    bundle: Bundle,
    data: Data,
    columns: Mapping[str, str] | None = None,
    skipped: list[str] | None = None,
    split: str = "train",
) -> Iterator[Any]:
    """The examples that a model can learn from or be compared with, as in `Reader`."""
    return Reader(tasks.of_model(bundle), columns, skipped, bundle.labels, bundle.pairs)(data, split)


def in_random_order(source: Callable[[], Iterable], seed: int) -> Callable[[int], Iterator]:
    """A function from the number of an epoch to its examples: shuffled within buffers of 20,000."""

    def epoch(number: int) -> Iterator:
        rng = random.Random(f"{seed} {number}")
        examples = iter(source())
        while pool := list(itertools.islice(examples, SHUFFLED)):
            rng.shuffle(pool)
            yield from pool

    return epoch


def encoded(bundle: Bundle, examples: Iterable) -> Iterator[tuple[Row, Any]]:
    """Rows and their targets; a question has one of each for every window of its context."""
    for rows, targets in encoded_examples(bundle, examples):
        yield from zip(rows, targets, strict=True)


def encoded_examples(bundle: Bundle, examples: Iterable) -> Iterator[tuple[list[Row], list]]:
    """The rows of each example and their targets; none of an example in which there is nothing to read."""
    source, task = iter(examples), tasks.get(bundle.task)
    while part := list(itertools.islice(source, ENCODED)):
        queries = [task.training_queries(example) for example in part]
        encodings = iter(task.encode(bundle, [*itertools.chain.from_iterable(queries)]))
        for example, asked in zip(part, queries, strict=True):
            rows = [row for _ in asked for row in next(encodings)]
            if any(map(len, rows)):
                rows = [replace(row, source=getattr(example, "source", "")) for row in rows]
                yield rows, [*task.targets(bundle, example, rows)]
            else:
                yield [], []


def batches(
    bundle: Bundle,
    examples: Callable[[int], Iterable],
    batch_size: int,
    seed: int,
    start: int = 0,
    outputs: FrozenOutputs | None = None,
) -> pipeline.Data:
    """Endless batches, bucketed by length, to train a task model on.

    Args:
        bundle: of the model.
        examples: a function from the number of the epoch to examples.
        batch_size: rows per batch, or examples where those of an example stay together.
        seed: of their order.
        start: batches left out at the beginning; they are not collated.
        outputs: of a frozen encoder, in place of what it reads.
    """
    inputs_of, task = outputs.collate if outputs else bundle.features.collate, tasks.get(bundle.task)

    def collate(part: list, rng):
        inputs = inputs_of([row for rows, _ in part for row in rows])
        targets = [target for _, targets in part for target in targets]
        return inputs | task.target_inputs(targets), *task.batch(bundle, targets, inputs)

    def length(unit: tuple[list[Row], list]) -> int:
        return max(map(len, unit[0]))

    units = partial(_units, bundle, examples, outputs)
    return pipeline.dataset(units, collate, batch_size, length, seed, repeat=True, start=start)


def _units(
    bundle: Bundle, examples: Callable[[int], Iterable], outputs: FrozenOutputs | None, epoch: int
) -> Iterator[tuple[list, list]]:
    """What stays together in a batch: a row and its target, or where the task says so those of an example."""
    encode = partial(encoded_examples, bundle)
    whole = encode(examples(epoch)) if outputs is None else outputs.encoded(encode, examples(epoch))
    if tasks.get(bundle.task).together:
        return ((rows, targets) for rows, targets in whole if rows)
    return (([row], [target]) for rows, targets in whole for row, target in zip(rows, targets, strict=True))
