"""The tasks that models are fine-tuned for, by name: one file a task."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from keras_ctxrep.checks import of_kind
from keras_ctxrep.tasks.abilities import ChoosesPositive, Query, ReadsWindows, Searches
from keras_ctxrep.tasks.answer import Answer
from keras_ctxrep.tasks.classify import Classify
from keras_ctxrep.tasks.coreference import Coreference
from keras_ctxrep.tasks.embed import Embed
from keras_ctxrep.tasks.evaluation import EvaluationReport
from keras_ctxrep.tasks.multilabel import Multilabel
from keras_ctxrep.tasks.regress import Regress
from keras_ctxrep.tasks.semantic_roles import SemanticRoles
from keras_ctxrep.tasks.similar import Similar
from keras_ctxrep.tasks.tag import Tag
from keras_ctxrep.tasks.task import Task
from keras_ctxrep.tasks.translate import Translate
from keras_ctxrep.text.bundle import Bundle

__all__ = [
    "SERVED",
    "TASKS",
    "EvaluationReport",
    "Query",
    "Task",
    "bundle_fields",
    "get",
    "of_model",
    "windowed",
    "with_positive",
    "with_search",
]

# the tasks of `ctxrep train`
TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Classify(),
        Multilabel(),
        Regress(),
        Tag(),
        Answer(),
        SemanticRoles(),
        Coreference(),
        Similar(),
        Translate(),
    )
}
SERVED: Mapping[str, Task] = TASKS | {"embed": Embed()}  # those with answers


def get(name: str) -> Task:
    """The task of a name that gives answers.

    Raises:
        ValueError: there is none.

    >>> get("tag").gold
    'tags'
    """
    if name not in SERVED:
        raise ValueError(f"task {name!r}: one of {', '.join(SERVED)}")
    return SERVED[name]


def of_model(bundle: Bundle) -> Task:
    """The task of a model, which also knows the columns that the model was trained from.

    Raises:
        ValueError: the model has no answers.

    >>> bundle = Bundle("elmo", "classify", {}, 8, columns={"text": "Subject"})
    >>> of_model(bundle).reading.columns["text"][:2]
    ('Subject', 'text')
    """
    return get(bundle.task).of_model(bundle)


def with_positive(bundle: Bundle, label: str) -> Bundle:
    """The bundle of a model whose `f1` is that of a label.

    Args:
        bundle: of a task model.
        label: one of its labels.

    Raises:
        ValueError: it is no classifier, or has no such label.
    """
    error = f"positive={label!r}: of a classifier alone, and the task is {bundle.task!r}"
    return of_kind(get(bundle.task), ChoosesPositive, error).with_positive(bundle, label)


def with_search(bundle: Bundle, **options: Any) -> Bundle:
    """The bundle of the same model whose answers are searched for with other options.

    Args:
        bundle: of a task model.
        options: of the search, `beams` and `alpha`.

    Raises:
        ValueError: the task has no such answers, or an option is out of range.
    """
    name, value = next(iter(options.items()))
    error = f"{name}={value}: of the task translate alone, and the task is {bundle.task!r}"
    return of_kind(get(bundle.task), Searches, error).with_search(bundle, **options)


def windowed(bundle: Bundle, how: str) -> Bundle:
    """The bundle of the same model that reads a long text in overlapping windows instead of cutting it.

    Args:
        bundle: of a task model.
        how: its answer comes from the "mean" or the "max" over the windows.

    Raises:
        ValueError: the task has no such answers, or it reads more than one text.
    """
    error = f"windows={how!r}: a {bundle.task} model gives no scores of a whole text to pool; leave it out"
    return of_kind(get(bundle.task), ReadsWindows, error).windowed(bundle, how)


def bundle_fields(name: str, pair: bool = False, **settings: Any) -> dict[str, Any]:
    """The fields of a bundle that follow from its task: "task", "reads" and "settings".

    Args:
        name: of the task.
        pair: it reads pairs of texts; a task that always does needs no word of it.
        settings: those that are not the task's defaults.

    Raises:
        ValueError: there is no such task.

    >>> bundle_fields("answer", stride=64)["settings"]
    {'stride': 64, 'max_answer': 30, 'null_threshold': None}
    """
    task = get(name)
    reads = replace(task.reads, pair=pair or bool(task.reads.pair))
    return {"task": name, "reads": reads, "settings": task.settings(task.Options(), set()) | settings}
