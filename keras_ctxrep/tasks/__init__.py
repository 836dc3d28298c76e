"""The tasks that models are fine-tuned for, by name: one file a task."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from keras_ctxrep.tasks.answer import Answer
from keras_ctxrep.tasks.classify import Classify
from keras_ctxrep.tasks.coreference import Coreference
from keras_ctxrep.tasks.embed import Embed
from keras_ctxrep.tasks.multilabel import Multilabel
from keras_ctxrep.tasks.regress import Regress
from keras_ctxrep.tasks.semantic_roles import SemanticRoles
from keras_ctxrep.tasks.similar import Similar
from keras_ctxrep.tasks.tag import Tag
from keras_ctxrep.tasks.task import EvaluationReport, Query, Task
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
