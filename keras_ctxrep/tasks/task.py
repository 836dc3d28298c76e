"""The interface of a task: everything that the rest of the library asks of one, with common defaults."""

import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from keras_ctxrep.checks import warn
from keras_ctxrep.tasks.abilities import Distillable, InGraph, LabelsWords, Searches
from keras_ctxrep.tasks.abilities import Query as Query
from keras_ctxrep.tasks.answering import Answering
from keras_ctxrep.tasks.evaluation import Evaluation, Metrics
from keras_ctxrep.tasks.evaluation import EvaluationReport as EvaluationReport
from keras_ctxrep.tasks.learning import LABEL_TYPE, Learning
from keras_ctxrep.tasks.reading import Columns, Skipped
from keras_ctxrep.text.bundle import Bundle

__all__ = [
    "Distillable",
    "InGraph",
    "LabelsWords",
    "Metrics",
    "Searches",
    "Task",
    "pair_problem",
    "warn_of_unseen",
]


class Task(Learning, Answering, Evaluation, InGraph):
    """One task: its examples, what it reads, its head and loss, its answers and its metrics.

    A subclass sets the attributes and overrides what is different for it; `tasks.abilities` has what some tasks can do
    beside. Everything outside this package asks the task and compares no names; NumPy alone is imported here, Keras and
    TensorFlow inside the functions that need them.

    Attributes:
        name: as in bundles and on the command line.
        help: one line for the command line: what it is, and its columns.
        page: title of a page in the browser, and what the model does there; None: there is no page for the task.
        mediapipe: the text task of MediaPipe that gives its answers, if there is one.
    """

    name: str
    help: str
    page: tuple[str, str] | None = None
    mediapipe: str | None = None

    def of_model(self, bundle: Bundle) -> Self:
        """This task as a model has it, which reads the columns that the model was trained from before others."""
        task = copy.copy(self)
        task.reading = self.reading.of_model(bundle.columns)
        task.label_type = bundle.settings.get(LABEL_TYPE)
        return task

    def read(self, path: str | Path, columns: Columns | None = None, skipped: Skipped = None) -> Iterator[Any]:
        """The examples of a file, one by one: `Reading.read`."""
        return self.reading.read(path, columns, skipped)


def pair_problem(pair: bool, pairs: bool, model: str | Path = "this model") -> str | None:
    """What is wrong with one text where a model reads pairs of texts, or with a pair where it reads one.

    Args:
        pair: whether a pair is given.
        pairs: whether the model reads pairs.
        model: its name, for the message.

    >>> pair_problem(False, True)
    'one text; this model reads a pair of texts'
    """
    kinds = ("one text", "a pair of texts")
    return None if pair == pairs else f"{kinds[pair]}; {model} reads {kinds[pairs]}"


def warn_of_unseen(unseen: Counter[str], source: str) -> None:
    """Warns once of the labels of some data that were not in the training data, with their counts.

    Args:
        unseen: label -> how often it occurs.
        source: name of the data.
    """
    if unseen:
        listed = ", ".join(f"{label!r} ({count:,})" for label, count in unseen.most_common(10))
        more = f" and {len(unseen) - 10:,} more" if len(unseen) > 10 else ""
        warn(f"{source}: labels that the model cannot predict count as errors: {listed}{more}")
