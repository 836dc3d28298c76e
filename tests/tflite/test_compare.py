"""The table of `ctxrep compare`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_ctxrep import saving, tasks
from keras_ctxrep.cli import main
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.plots import engines
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep_tflite import compare, quantize


def engine(name, path, values) -> Any:
    """A regressor that answers a text by its number of words."""
    bundle = Bundle("static", "regress", {"words": 1, "width": 1, "lowercase": True, "buckets": 0}, 8, vocab=("<UNK>",))
    predictor = Predictor(bundle, lambda batch: {"logits": [[values[m.sum() - 1]] for m in batch["mask"]]})
    return SimpleNamespace(name=name, path=path, answer=predictor)


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
    shown = [row[-1] for row in compare.engines_table(rows)[1:]]
    assert shown[0].startswith("pearson 100.0") and len({text.split()[1] for text in shown}) == 3
    assert "(" not in shown[0] and all(text.endswith(")") and "(-0.0" in text for text in shown[1:])
    low, high = rows[2]["quality_interval"]
    assert low <= rows[2]["quality_difference"] <= high and low < high and rows[0]["quality_interval"] == (0, 0)
    unlabelled = compare.compare(engines[:2], [Example("x")])
    assert unlabelled[1]["quality_difference"] is None and compare.engines_table(unlabelled)[2][-1] == ""


def test_engines_agree_that_a_text_has_no_words(tmp_path):
    engines = [engine(name, tmp_path, [1.0]) for name in ("one", "other")]
    rows = compare.measured(engines, [Example("x"), Example("\u200b")])
    assert rows[1]["agreement"] == 1 and rows[1]["difference"] == 0
    answers = engines[0].answer(["x", ""])
    measured = compare.measure(engines[0].answer, [Example("x")], answers[:1], answers[1:])
    assert measured["agreement"] == 0 and measured["difference"] == 1


def test_the_interval_is_that_of_pairs(tmp_path):
    """Two engines that err on the same texts do not differ, however uncertain the figure of each is."""
    engines = [engine(name, tmp_path, [1.0, 2.0, 4.0]) for name in ("one", "other")]
    draw = np.random.default_rng(0)
    examples = [Example("x " * draw.integers(1, 4), draw.normal()) for _ in range(50)]
    rows = compare.compare(engines, examples)
    assert rows[1]["quality_interval"] == (0, 0)


def test_latencies_by_length(tmp_path, monkeypatch):
    """Each text under the next power of two of its tokens, from 16 on; p50 and p95 as NumPy has them."""
    bundle = Bundle(
        "static", "regress", {"words": 1, "width": 1, "lowercase": True, "buckets": 0}, 99, vocab=("<UNK>",)
    )
    predictor = Predictor(bundle, lambda batch: {"logits": np.ones((len(batch["mask"]), 1))})
    clock = iter(np.cumsum([0.0, 0.001, 0.0, 0.003, 0.0, 0.01]))
    monkeypatch.setattr(compare.time, "perf_counter", lambda: next(clock))
    examples = [Example("x " * size) for size in (3, 16, 40)]
    only: Any = SimpleNamespace(name="only", path=tmp_path, answer=predictor)
    rows = compare.compare([only], examples)
    assert rows[0]["lengths"] == [
        {"tokens": 16, "texts": 2, "p50": pytest.approx(2.0), "p95": pytest.approx(2.9)},
        {"tokens": 64, "texts": 1, "p50": pytest.approx(10.0), "p95": pytest.approx(10.0)},
    ]
    header, line = compare.lengths_table(rows)
    assert header[1:] == ["to 16 tokens (2)", "to 64 tokens (1)"] and line[1] == "2.00 / 2.90 ms"
    header, line = compare.lengths_table([rows[0] | {"start_seconds": 0.25, "peak_bytes": 73e6}])
    assert line[-2:] == ["0.25 s", "73 MB"] and header[-2:] == ["first answer", "peak memory"]


def test_start(tiny_model, tflite_in_process, tmp_path):
    """In a process of its own, whose memory is its own."""
    saving.save(tmp_path / "model", *tiny_model("answer"))
    path = quantize.convert(tmp_path / "model", tmp_path / "m.tflite")
    started = compare.start(path)
    assert 0 < started["start_seconds"] < 120 and 10e6 < started["peak_bytes"] < 400e6  # without TensorFlow
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RuntimeError, match=r"m\.tflite: a process that opens it failed:\n(.|\n)*m\.tflite: "):
        compare.start(path)


def test_the_picture_of_engines(tmp_path):
    pytest.importorskip("matplotlib")
    row = {"bytes": 5e6, "milliseconds": 1.5, "agreement": 0.99, "metric": None, "quality": None}
    engines.draw_engines(
        [row | {"engine": "a"}, row | {"engine": "b", "metric": "f1", "quality": 0.5}], tmp_path / "p.svg"
    )
    drawn = (tmp_path / "p.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<?xml") and len(drawn) > 5000
    with pytest.raises(ValueError, match=r"p\.gif: the name must end in"):
        engines.draw_engines([row], tmp_path / "p.gif")


def test_every_task_says_when_engines_agree():
    assert "within 1% of the reference" in tasks.get("regress").agrees
    assert all(task.agrees for task in tasks.TASKS.values())


@pytest.mark.parametrize(
    "argv, message",
    [
        (["predict", "{root}/missing"], "missing: no such folder; as a published model: no published model"),
        (["tflite", "{root}/one.tflite", "--out", "{root}/x.tflite"], "name the model folder"),
        (["compare", "{root}/one", "{root}/regress.tflite", "--data", "{root}/rows.tsv"], "its task is 'regress'"),
    ],
)
def test_models_that_cannot_be_opened_or_compared(tiny_model, tflite_in_process, tmp_path, capsys, argv, message):
    (tmp_path / "rows.tsv").write_text("text\tlabel\nthe cat\tno\n")
    for name, task in (("one", "classify"), ("regress", "regress")):
        saving.save(tmp_path / name, *tiny_model(task))
        if any(f"{name}.tflite" in word for word in argv):
            quantize.convert(tmp_path / name, tmp_path / f"{name}.tflite", lengths=[40])
    assert main.main([word.format(root=tmp_path) for word in argv]) == 1
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and 'File "' not in error
