"""The table of tasks, and what follows from a task's name."""

from functools import partial
from pathlib import Path

import pytest

from keras_ctxrep import tasks
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.tasks.task import Task
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Reads


def test_tasks():
    pretraining = {name for family in FAMILIES.values() for name in family.pretraining}
    assert pretraining == {"language_model", "pretrainer", "causal_language_model"} and not pretraining & set(
        tasks.SERVED
    )
    assert set(tasks.SERVED) - set(tasks.TASKS) == {"embed"}
    assert all(name == task.name for name, task in tasks.SERVED.items())


def test_fields_of_a_bundle():
    assert tasks.bundle_fields("classify") == {"task": "classify", "reads": Reads(), "settings": {}}
    assert tasks.bundle_fields("regress", pair=True)["reads"] == Reads(pair=True)
    answer = tasks.bundle_fields("answer", stride=7)
    assert answer["reads"] == Reads(pair=True, windows=True)
    assert answer["settings"] == {"stride": 7, "max_answer": 30, "null_threshold": None}
    assert tasks.bundle_fields("tag")["reads"] == Reads(words=True)
    with pytest.raises(ValueError, match=f"task 'summarize': one of {', '.join(tasks.SERVED)}$"):
        tasks.bundle_fields("summarize")


def test_labels_of_tags():
    task = tasks.get("tag")
    labels = partial(task.labels, options=task.Options())
    assert labels({"O", "B", "I"}, "a.conll") == labels({"O", "B"}, "a.conll") == ("O", "B", "I")
    assert labels({"O", "I-X", "B-Y"}, "a.conll") == ("O", "B-X", "B-Y", "I-X", "I-Y")
    assert labels({"O", "NN"}, "a.conll") == ("O", "NN")
    with pytest.raises(ValueError, match=r"a\.conll: only the label 'O'; a tagger needs at least two"):
        labels({"O"}, "a.conll")


def test_a_model_without_the_settings_of_its_answers():
    bundle = Bundle(
        "bert", config={}, max_length=8, **tasks.bundle_fields("answer", True) | {"settings": {"stride": 2}}
    )
    with pytest.raises(ValueError, match="settings max_answer, null_threshold are missing"):
        Predictor(bundle, lambda inputs: inputs)


def test_what_a_task_can_do_is_a_base_class():
    """No method raises by default: a task that lacks one cannot be made, or has not the base class of the ability."""
    for path in Path(tasks.__file__).parent.glob("*.py"):
        assert "NotImplementedError" not in path.read_text(encoding="utf-8"), path.name
    with pytest.raises(TypeError, match=r"abstract methods? .*compute_metrics"):
        Task()
    with pytest.raises(ValueError, match="positive='a': of a classifier alone, and the task is 'coreference'"):
        tasks.with_positive(Bundle("bert", "coreference", {}, 8), "a")
    with pytest.raises(ValueError, match="windows='mean': a tag model gives no scores of a whole text to pool"):
        tasks.windowed(Bundle("bert", "tag", {}, 8), "mean")
