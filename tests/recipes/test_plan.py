"""What `train` says it will do, and that it does so: the plan, evaluations at the ends of epochs, lines of progress."""

import io
from functools import partial
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tqdm import tqdm

from keras_ctxrep import recipes
from keras_ctxrep.cli import main
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.recipes import finetuning
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.training import fit, progress

ROWS = [Example(f"{word} {number}", label) for word, label in (("red", "r"), ("blue", "b")) for number in range(50)]
OPTIONS = {"stack": "cnn", "units": 4, "batch_size": 4, "patience": 50}


@pytest.mark.trains
@pytest.mark.parametrize(("epochs", "steps"), [(3.0, [25, 50, 75]), (2.5, [25, 50, 62]), (0.4, [10])])
def test_evaluations_are_at_the_ends_of_epochs(epochs, steps, tmp_path):
    """Also where an epoch is no multiple of the 20 steps after which Keras' own end."""
    history = recipes.finetune(ROWS, ROWS[40:60], "words", tmp_path / "m", epochs=epochs, **OPTIONS)
    assert [entry["step"] for entry in history] == steps


@pytest.mark.trains
def test_a_run_that_was_interrupted_between_them(tmp_path, power_cut):
    def run(out):
        return recipes.finetune(ROWS, ROWS[40:60], "words", out, epochs=2, checkpoint_minutes=1e-9, **OPTIONS)

    expected = run(tmp_path / "one")
    with power_cut(20):
        run(tmp_path / "two")
    history = run(tmp_path / "two")
    for entry, wanted in zip(history, expected, strict=True):
        for name in ("step", "loss", "val_accuracy"):
            assert entry[name] == pytest.approx(wanted[name], abs=1e-6)


@pytest.mark.trains
def test_the_plan_is_printed_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "HALF_MINUTE", 0.0)
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"{row.text}\t{row.label}\n" for row in ROWS))
    argv = f"train --data {tmp_path}/a.tsv --dev {tmp_path}/a.tsv --encoder words --out {tmp_path}/m"
    assert main.main(f"{argv} --epochs 1 --stack cnn --units 4 --batch-size 50 --max-length 1".split()) == 0
    printed = capsys.readouterr()
    lines = dict(line.split(": ", 1) for line in printed.err.splitlines() if ": " in line)
    lines = {name: text.strip() for name, text in lines.items()}
    assert lines["data"] == f"100 rows of {tmp_path}/a.tsv; 100 of {tmp_path}/a.tsv to choose by"
    assert lines["labels"] == "2: b 50, r 50"
    assert lines["length"] == "1 tokens (given); 100 of the development texts are longer, so cut"
    assert lines["rate"].endswith("(default), linear decay") and lines["run"] == "2 steps of 50 rows, 1 epochs"
    assert lines["evaluated"].startswith("at the end of every epoch")
    assert printed.err.count("data: ") == 1 and "step 1 of 2, loss " in printed.err
    assert printed.err.rstrip().endswith("min, at most 0.0 min of training left") and "evaluating" not in printed.err
    assert printed.out.startswith("step ")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Standard error as a terminal, on which every step of an evaluation is shown."""
    stream = Terminal()
    monkeypatch.setattr(progress, "QUICK", 0.0)
    monkeypatch.setattr(progress, "tqdm", partial(tqdm, mininterval=0, ncols=80))
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    return stream


def test_an_evaluation_by_answers_shows_a_bar(tiny_model, terminal):
    model, bundle = tiny_model("classify")
    examples = [Example("the cat", "no")] * 5
    finetuning._evaluation(bundle, examples, 2, keras_engine.answering(model, bundle))(model)
    shown = terminal.getvalue()
    assert all(f" {count}/5 " in shown for count in (0, 2, 4)) and "evaluating" in shown


@pytest.mark.trains
def test_an_evaluation_by_losses_shows_a_bar(tiny_model, terminal):
    model, bundle = tiny_model("classify")
    inputs = bundle.features.collate(bundle.features.encode(["the cat"] * 3))
    data = tf.data.Dataset.from_tensor_slices((inputs, {"logits": [0, 1, 1]})).batch(1)
    evaluate = fit._evaluation(model, data, None, None)
    evaluate()
    assert "evaluating: 2 batches" in terminal.getvalue()
    evaluate()
    assert "3/3" in terminal.getvalue()
