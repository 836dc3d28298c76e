"""Fine-tuning with several values and seeds: the table, what is kept, what is not done twice, what is refused."""

import csv
import itertools
import json
import random

import numpy as np
import pytest

from keras_ctxrep import recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.recipes import sweeping
from keras_ctxrep.recipes.finetuning import Run
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.training import fit as training_fit

TOPICS = {"weather": ["rain", "storm", "wind", "fog"], "music": ["violin", "piano", "drum", "song"]}
OPTIONS = {"stack": "cnn", "units": 4, "steps": 6, "batch_size": 4, "evaluations": 2}


@pytest.fixture(scope="module")
def rows():
    draw = random.Random(0)
    return [Example(" ".join(draw.choices(TOPICS[label], k=2)), label) for label in [*TOPICS] * 10]


@pytest.fixture
def file(rows, write):
    return write("rows.tsv", "text\tlabel\n" + "".join(f"{row.text}\t{row.label}\n" for row in rows))


def scripted(monkeypatch, scores):
    """Runs that take no time; the score of each is a function of its options. Returns the calls."""
    calls = []

    def train(run, observers):
        calls.append(vars(run.options))
        run.out.mkdir(parents=True)
        (run.out / "kept").write_text(run.out.name)
        score = scores(calls[-1])
        (run.out / "run.json").write_text(json.dumps({"history": [{"val_f1": score - 0.1}, {"val_f1": score}]}))
        if observers.report is not None:
            observers.report({"val_f1": score})

    monkeypatch.setattr(Run, "train", train)
    return calls


@pytest.mark.trains
def test_the_highest_mean_is_the_best(rows, tmp_path, monkeypatch):
    """Its best seed is kept, though a seed of another combination scored more."""
    scores = {(0.1, 5): 0.9, (0.1, 6): 0.5, (0.2, 5): 0.7, (0.2, 6): 0.8}
    calls = scripted(
        monkeypatch, lambda given: scores[given["learning_rate"], given["seed"]] - given["layer_decay"] / 10
    )
    lines, reports = [], []
    ranked = recipes.sweep(
        {"learning_rate": [0.1, 0.2], "layer_decay": [1.0, 0.5]}, tmp_path, seeds=2, report=reports.append,
        announce=lines.append, data=rows, dev=rows, encoder="words", seed=5, learning_rate=9.0, freeze=False,
    )  # fmt: skip
    assert len(calls) == len(reports) == 8 and all(call["freeze"] is False for call in calls)
    assert lines[0] == "run 1 of 8: learning_rate=0.1,layer_decay=1.0,seed=5" and lines[7].startswith("run 8 of 8: ")
    assert [(*row.values.values(),) for row in ranked] == [(0.2, 0.5), (0.1, 0.5), (0.2, 1.0), (0.1, 1.0)]
    assert ranked[0].scores == pytest.approx((0.65, 0.75)) and ranked[0].mean == pytest.approx(0.7)
    assert (tmp_path / "kept").read_text() == "learning_rate=0.2,layer_decay=0.5,seed=6"
    assert json.loads((tmp_path / "run.json").read_text())["history"][1]["val_f1"] == pytest.approx(0.75)
    with open(tmp_path / "sweep.tsv", encoding="utf-8") as file:
        table = list(csv.reader(file, delimiter="\t"))
    assert table[0] == ["learning_rate", "layer_decay", "f1", "std", "seed 5", "seed 6"]
    assert table[1] == ["0.2", "0.5", "0.7000", "0.0707", "0.6500", "0.7500"] and len(table) == 5
    assert float(table[2][3]) == pytest.approx(np.std([0.9, 0.5], ddof=1), abs=1e-4)


def test_every_run_has_a_folder_of_its_own(rows, tmp_path, monkeypatch):
    scripted(monkeypatch, lambda given: 0.5)
    ranked = recipes.sweep({"positive": ["a b", "a_b"]}, tmp_path, data=rows, dev=rows, encoder="words")
    assert len({folder for row in ranked for folder in row.folders}) == 2
    assert len(sweeping._as_file_name("x" * 300)) < 255


def test_a_folder_that_is_read_is_not_overwritten(rows, tmp_path):
    (tmp_path / "read").mkdir()
    for name in ("encoder", "extra_embeddings"):
        given = {"encoder": "words", name: tmp_path / "read"}
        with pytest.raises(ValueError, match=f"read: the folder of the {name.replace('_', ' ')}"):
            recipes.sweep({"units": [2, 4]}, tmp_path / "read", data=rows, dev=rows, stack="lstm", **given)


def test_one_seed_has_no_deviation(rows, tmp_path, monkeypatch):
    scripted(monkeypatch, lambda given: 0.5)
    ranked = recipes.sweep({"batch_size": [2, 4]}, tmp_path, data=iter(rows), dev=iter(rows), encoder="words")
    assert sweeping.table(ranked) == [["batch_size", "f1"], ["2", "0.5000"], ["4", "0.5000"]]
    assert (tmp_path / "kept").read_text() == "batch_size=2,seed=0"  # of equals the first


@pytest.mark.trains
def test_an_interrupted_sweep_goes_on(rows, tmp_path, monkeypatch):
    """A run is the same as by itself; those that are finished are not repeated, unless the data have changed."""
    grid, given = {"learning_rate": [0.02, 0.001]}, {"data": rows, "dev": rows, "encoder": "words", **OPTIONS}
    fit, fits, calls = training_fit.fit, [], itertools.count(1)

    def third_fails(*args, **more):
        fits.append(more["options"].folder.name)
        if next(calls) == 3:
            raise KeyboardInterrupt
        return fit(*args, **more)

    monkeypatch.setattr(training_fit, "fit", third_fails)
    with pytest.raises(KeyboardInterrupt):
        recipes.sweep(grid, tmp_path / "out", seeds=2, **given)
    assert not (tmp_path / "out" / "bundle.json").exists()
    lines = []
    ranked = recipes.sweep(grid, tmp_path / "out", seeds=2, announce=lines.append, **given)
    names = [f"learning_rate={rate},seed={seed}" for rate in (0.02, 0.001) for seed in (0, 1)]
    assert fits == [*names[:3], *names[2:]]
    assert [line.endswith("(finished before)") for line in lines] == [True, True, False, False]
    alone = recipes.finetune(out=tmp_path / "alone", learning_rate=0.001, seed=1, **given)
    row = next(row for row in ranked if row.values == {"learning_rate": 0.001})
    assert row.scores[1] == max(entry["val_accuracy"] for entry in alone)
    kept = saving.load(ranked[0].best)[0].get_weights()
    for folder, other in (("alone", row.folders[1]), ("out", ranked[0].best)):
        weights = saving.load(tmp_path / folder)[0].get_weights()
        for first, second in zip(weights, saving.load(other)[0].get_weights(), strict=True):
            np.testing.assert_array_equal(first, second)
    assert recipes.score(tmp_path / "out", rows)["accuracy"] == max(ranked[0].scores) and kept
    fits.clear()
    monkeypatch.setattr(training_fit, "fit", lambda *_, options, **__: fits.append(options.folder.name) or alone)
    recipes.sweep(grid, tmp_path / "out", seeds=2, **given | {"data": rows[:-2]})
    assert fits == names


@pytest.mark.trains
def test_the_command(file, tmp_path, capsys):
    argv = ["train", "--data", file, "--dev", file, "--encoder", "words", "--stack", "cnn", "--steps", "2"]
    argv = [*map(str, argv), "--out", str(tmp_path / "out"), "--seeds", "2", "--sweep"]
    assert main.main([*argv, "units=2,4", "--sweep", "label-smoothing=0.1", "layer_decay=1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "run 2 of 4: units=2,label_smoothing=0.1,layer_decay=1.0,seed=1" in printed
    header = next(line for line in printed if line.startswith("units"))
    assert header.split() == ["units", "label_smoothing", "layer_decay", "accuracy", "std", "seed", "0", "seed", "1"]
    assert printed[-1].startswith(f"{tmp_path / 'out'}: units=") and f" accuracy on {file}: " in printed[-1]
    assert len(list((tmp_path / "out" / "sweep").iterdir())) == 4
    assert main.main(["score", str(tmp_path / "out"), "--data", str(file)]) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("lr=1", "'lr' is no option; the nearest one is 'learning_rate'"),
        ("learning_rates=1", "'learning_rates' is no option; the nearest one is 'learning_rate'"),
        ("learning_rate=1e-3,x", "learning_rate='x': must be a number"),
        ("batch_size=8,1.5", "batch_size='1.5': must be a whole number"),
        ("learning_rate=1e-3,0", "learning_rate=0.0: must be above 0"),
        ("decay=linear,up", "decay='up': must be linear, cosine, inverse_sqrt or none"),
        ("mix=maybe", "mix='maybe': must be true or false"),
        ("units", "units: write units=VALUE,VALUE,... once"),
        ("columns=a,b", "columns='a': must be a mapping"),
    ],
)
def test_values_are_checked_before_the_first_run(wrong, message, file, tmp_path, capsys):
    argv = ["train", "--data", str(file), "--dev", str(file), "--encoder", "words", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main.main([*argv, "--sweep", wrong])
    assert ended.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("grid", "more", "message"),
    [
        ({"seed": [1, 2]}, {}, "seed cannot be swept: give the number of seeds"),
        ({"strategy": ["one"]}, {}, "strategy cannot be swept: the result does not depend on it"),
        ({"decay": "linear"}, {}, "decay='linear': a list of values is needed"),
        ({"decay": ["linear", "linear"]}, {}, "a value is there twice"),
        ({"decay": ["linear"]}, {"seeds": 0}, "seeds=0: must be at least 1"),
        ({"learning_rate": [0.1, -1.0]}, {}, r"learning_rate=-1\.0: must be above 0"),
        ({"lora": [None, 4]}, {}, "lora=4: low-rank updates are to a BERT's dense layers"),
        ({"crf": [True]}, {}, "crf is an option of the tasks 'tag'"),
    ],
)
def test_sweeps_that_are_refused(grid, more, message, rows, tmp_path):
    with pytest.raises(ValueError, match=message):
        recipes.sweep(grid, tmp_path / "out", data=rows, dev=rows, encoder="words", **more)
    assert not (tmp_path / "out").exists()
