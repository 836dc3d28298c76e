"""The table of `ctxrep compare`."""

import pytest
from keras_ctxrep_tflite import compare
from keras_ctxrep_tflite.compare import Engine

from keras_ctxrep import tasks
from keras_ctxrep.predict import Predictor
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.text.bundle import Bundle


def engine(name, path, values):
    """A regressor that answers a text by its number of words."""
    bundle = Bundle("static", "regress", {"words": 1, "width": 1, "lowercase": True, "buckets": 0}, 8, vocab=("<UNK>",))
    return Engine(
        name, path, Predictor(bundle, lambda batch: {"logits": [[values[m.sum() - 1]] for m in batch["mask"]]})
    )


def test_the_difference_from_the_reference(tmp_path):
    engines = [
        engine("Keras", tmp_path, [1.0, 2.0, 4.0]),
        engine("near", tmp_path, [1.0, 2.019, 3.97]),
        engine("far", tmp_path, [1.0, 2.021, 3.9]),
    ]
    examples = [Example(text, gold) for text, gold in (("x", 1.0), ("x x", 2.0), ("x x x", 4.0))]
    rows = compare.compare(engines, examples)
    assert [row["agreement"] for row in rows] == [1, 1, pytest.approx(1 / 3)]
    assert rows[0]["quality_difference"] == 0 and -1e-3 < rows[1]["quality_difference"] < 0
    assert rows[1]["quality_difference"] == rows[1]["quality"] - rows[0]["quality"]
    shown = [row[-1] for row in compare.table(rows)]
    assert shown[0].startswith("pearson 100.0") and len({text.split()[1] for text in shown}) == 3
    assert "(" not in shown[0] and all(text.endswith(")") and "(-0.0" in text for text in shown[1:])
    unlabelled = compare.compare(engines[:2], [Example("x")])
    assert unlabelled[1]["quality_difference"] is None and compare.table(unlabelled)[1][-1] == ""


def test_every_task_says_when_engines_agree():
    assert "within 1% of the reference" in tasks.get("regress").agrees
    assert all(task.agrees for task in tasks.TASKS.values())
