"""The loss of runs: what is read of them, and their pictures."""

import json
import re

import pytest

from keras_ctxrep import recipes
from keras_ctxrep.cli.main import main
from keras_ctxrep.plots.history import history
from keras_ctxrep.training import history as files
from tests.tiny import is_png

EVALUATIONS = [{"step": 10, "minutes": 30.0, "loss": 2.0}, {"step": 20, "minutes": 90.0, "loss": 1.5}]


@pytest.fixture
def runs(tmp_path):
    """A run that says its tokens, one that goes on and has a validation loss, and one without evaluations."""
    for name in ("done", "going", "empty"):
        (tmp_path / name).mkdir()
    record = {"history": EVALUATIONS, "tokens_per_step": 35.5}
    (tmp_path / "done" / "run.json").write_text(json.dumps(record))
    files.write(tmp_path / "going", [entry | {"val_loss": entry["loss"] + 1} for entry in EVALUATIONS])
    (tmp_path / "empty" / "run.json").write_text(json.dumps({"history": []}))
    return tmp_path


def test_runs_over_tokens_and_hours(runs, capsys):
    done, going = history([runs / "done", runs / "going"], runs / "a.png")
    assert done["tokens"] == [355.0, 710.0] and done["hours"] == [0.5, 1.5] and done["losses"] == [2.0, 1.5]
    assert done["loss"] == "loss" and done["folder"] == str(runs / "done")
    assert going["tokens"] is None and going["loss"] == "val_loss" and going["losses"] == [3.0, 2.5]
    assert is_png(runs / "a.png")
    assert main(["plot", "history", str(runs / "done"), "--out", str(runs / "b.svg")]) == 0
    assert "loss 1.5000 after 20 steps, 710 tokens, 1.50 hours" in capsys.readouterr().out
    picture = re.sub("<!--|-->", "", (runs / "b.svg").read_text(encoding="utf-8"))
    assert "tokens read" in picture and "hours" in picture and "done, training" in picture
    history([runs / "done", runs / "going"], runs / "c.svg")
    picture = re.sub("<!--|-->", "", (runs / "c.svg").read_text(encoding="utf-8"))
    assert "steps" in picture and "tokens read" not in picture and "going, validation" in picture


def test_what_a_run_of_pretraining_records(tmp_path):
    (tmp_path / "corpus.txt").write_text("".join(f"the rain {number} and\n" for number in range(400)))
    settings = {"dims": 4, "min_count": 2, "batch_size": 64, "sample": 0.0, "epochs": 3, "evaluations": 2}
    recipes.pretrain_static([tmp_path / "corpus.txt"], tmp_path / "static", **settings)
    options = {"size": "lm_lstm_2x200", "units": "characters", "batch_size": 2, "unroll": 5, "steps": 2}
    recipes.pretrain("lm", [tmp_path / "corpus.txt"], tmp_path / "lm", **options)
    static, lm = history([tmp_path / "static", tmp_path / "lm"], tmp_path / "a.png")
    assert static["tokens"][-1] == pytest.approx(3 * 400 * 3) and len(static["tokens"]) == 2
    assert lm["tokens"][-1] == 2 * 2 * 5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("plot history {runs}/empty --out {runs}/a.png", "empty: its run has no evaluations yet"),
        (
            "plot history {runs}/done {runs} --out {runs}/a.png",
            "no evaluations of a run in its run.json",
        ),
        ("plot history {runs}/done --out {runs}/a.gif", "a.gif: the name must end in .png, .svg, .pdf"),
    ],
)
def test_errors_are_one_line(argv, message, runs, capsys):
    before = sorted(runs.iterdir())
    assert main(argv.format(runs=runs).split()) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0], lines
    assert sorted(runs.iterdir()) == before


def test_wrong_usage_is_exit_2(check_usage):
    check_usage("plot history a --out b.png --word c")
