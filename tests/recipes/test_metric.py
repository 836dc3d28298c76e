"""`metric`: the figure of the development data that chooses the best weights."""

import json

import pytest

from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.cli import main
from keras_ctxrep.recipes import finetuning
from keras_ctxrep.tasks.classify import Example

ROWS = [Example(f"{word} {number}", label) for word, label in (("red", "r"), ("blue", "b")) for number in range(4)]
OPTIONS = {"stack": "cnn", "units": 4, "steps": 3, "evaluations": 3, "batch_size": 8}


@pytest.mark.trains
@pytest.mark.parametrize(
    ("task", "metric", "best"),
    [("classify", None, 0), ("classify", "matthews", 1), ("regress", "mean_squared_error", 2), ("regress", None, 0)],
)
def test_the_best_weights_by_a_metric(task, metric, best, tmp_path, monkeypatch):
    """Figures as in a script: each evaluation is the best by another one."""
    main, other = ("accuracy", "matthews") if task == "classify" else ("pearson", "spearman")
    script = [{main: 0.9, other: 0.1}, {main: 0.8, other: 0.9}, {main: 0.7, other: 0.2}]
    errors = [9.0, 5.0, 1.0] if task == "regress" else [None] * 3
    figures = [
        row | ({} if error is None else {"mean_squared_error": error})
        for row, error in zip(script, errors, strict=True)
    ]
    seen = []

    def evaluation(bundle, examples, batch_size, outputs):
        def evaluate(model):
            seen.append(model.get_weights())
            return figures[(len(seen) - 1 - (metric is not None)) % 3]  # with a metric, once before the training

        return evaluate

    monkeypatch.setattr(finetuning, "_evaluation", evaluation)
    rows = ROWS if task == "classify" else [Example(row.text, float(row.label == "r")) for row in ROWS]
    given = {} if metric is None else {"metric": metric}
    history = recipes.finetune(rows, rows, "words", tmp_path / "m", task=task, **OPTIONS, **given)
    assert len(history) == 3 and next(name for name in history[0] if name.startswith("val_")) == f"val_{metric or main}"
    kept, expected = saving.load(tmp_path / "m")[0].get_weights(), seen[best + (metric is not None)]
    assert all((a == b).all() for a, b in zip(kept, expected, strict=True))
    assert json.loads((tmp_path / "m" / "run.json").read_text())["options"]["metric"] == metric


@pytest.mark.trains
def test_metrics_that_do_not_exist(tmp_path, capsys):
    with pytest.raises(ValueError, match="metric='bleu': the task 'classify' has accuracy, macro_f1, matthews, f1"):
        recipes.finetune(ROWS, ROWS, "words", tmp_path / "m", metric="bleu", **OPTIONS)
    three = [*ROWS, Example("green", "g")]
    with pytest.raises(ValueError, match="metric='f1': no figure of these labels and data; they have accuracy, "):
        recipes.finetune(three, three, "words", tmp_path / "m", metric="f1", **OPTIONS)
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"{row.text}\t{row.label}\n" for row in ROWS))
    argv = f"train --data {tmp_path}/a.tsv --dev {tmp_path}/a.tsv --encoder words --out {tmp_path}/m --steps 2"
    assert main.main([*argv.split(), "--metric", "matthews"]) == 0
    assert "m: matthews on" in capsys.readouterr().out


def test_every_figure_of_a_task_may_be_chosen():
    """Those that `figures` gives, and no others, but for a ratio."""
    examples, answers = [Example("x", "a"), Example("y", "b")], [{"label": "a"}, {"label": "a"}]
    classify = tasks.get("classify").evaluate(examples, answers, ("a", "b"), interval=False).scores
    assert {*classify} == {*tasks.get("classify").metrics}
    examples = [Example("x", 1.0), Example("y", 2.0)]
    regress = tasks.get("regress").evaluate(examples, [{"value": 1.0}, {"value": 3.0}], interval=False).scores
    assert {*regress} == {*tasks.get("regress").metrics}
    assert tasks.get("regress").best("mean_squared_error", [3.0, 1.0]) == 1
