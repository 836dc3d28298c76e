"""The record of a run: what its identity depends on, and training again from run.json alone."""

import json

import numpy as np
import pytest

from keras_ctxrep import recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.options import Finetuning
from keras_ctxrep.recipes.finetuning import Run
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from tests import tiny

ROWS = "text\tbody\tlabel\nred fish\tblue\ta\nblue fish\tred\tb\nred\tblue fish\ta\nblue\tred fish\tb\n"


def save_vectors(folder, value):
    model, bundle = tiny.model("embed", "static", vocab=("<UNK>", "red", "blue", "fish"))
    for weight in model.weights:
        weight.assign(np.full(weight.shape, value, np.float32))
    saving.save(folder, model, bundle)


@pytest.fixture
def files(tmp_path):
    """Labelled rows, and two folders of static vectors."""
    (tmp_path / "a.tsv").write_text(ROWS)
    save_vectors(tmp_path / "vectors", 1.0)
    save_vectors(tmp_path / "extra", 1.0)
    return tmp_path


def identity(files, **given):
    task = given.pop("task", "classify")
    own = {name: given.pop(name) for name in [*given] if name == "crf"}
    rows = files / "a.tsv"
    return Run(rows, rows, files / "vectors", files / "out", task, Finetuning(**given), own).record().identity


def test_the_identity_changes_with_all_that_the_result_depends_on(files):
    options = {"steps": 3, "stack": "lstm", "extra_embeddings": str(files / "extra")}
    first = identity(files, **options)
    assert first == identity(files, **options) == identity(files, **options, checkpoint_minutes=1.0, tensorboard="x")
    others = {
        first,
        identity(files, **options, columns={"text": "body"}),
        identity(files, **options | {"steps": 4}),
        identity(files, **options, seed=1),
        identity(files, **options, task="tag", crf=True),
        identity(files, **options, task="tag"),
    }
    save_vectors(files / "vectors", 2.0)
    others.add(identity(files, **options))
    save_vectors(files / "extra", 2.0)
    others.add(identity(files, **options))
    (files / "a.tsv").write_text(ROWS + "red\tred\ta\n")
    others.add(identity(files, **options))
    assert len(others) == 9


@pytest.mark.trains
def test_a_run_is_repeated_from_its_record(files, capsys):
    argv = f"train --data {files}/a.tsv --dev {files}/a.tsv --encoder words --out {files}/one --columns text=body"
    argv += " --stack cnn --units 4 --epochs 6 --batch-size 2 --learning-rate 0.02 --seed 3 --patience 12"
    assert main.main(argv.split()) == 0
    record = json.loads((files / "one" / "run.json").read_text(encoding="utf-8"))
    assert record["command"] == "finetune" and record["options"]["columns"] == {"text": "body"}
    assert record["options"]["learning_rate"] == 0.02 and set(record["files"]) == {f"{files}/a.tsv"}
    assert record["history"][-1]["step"] == 12 and "keras" in record["versions"]
    dev = record["dev"]
    assert dev["accuracy"] == max(entry["val_accuracy"] for entry in record["history"])
    assert dev["interval"][0] <= dev["accuracy"] <= dev["interval"][1] and dev["examples"] == ROWS.count("\n") - 1
    assert main.main(["train", "--config", f"{files}/one/run.json", "--out", f"{files}/two"]) == 0
    assert main.main(["train", "--config", f"{files}/one/run.json", "--out", f"{files}/three", "--seed", "4"]) == 0
    first, second, third = (saving.load(files / name)[0].get_weights() for name in ("one", "two", "three"))
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(first, third, strict=True))
    again = json.loads((files / "two" / "run.json").read_text(encoding="utf-8"))
    assert again["options"] == record["options"] and again["files"] == record["files"]


def test_word_embeddings_read_one_text(files):
    questions = [Question("what ?", "red fish", (("red", 0),))] * 2
    pairs = [Example("red", "a", "blue"), Example("blue", "b", "red")]
    for examples, task in ((questions, "answer"), (pairs, "classify")):
        with pytest.raises(
            ValueError, match=r"pairs of texts, and word(s| embeddings) reads? one text; a BERT reads pairs"
        ):
            recipes.finetune(examples, examples, "words", files / "out", task=task, steps=1)
        assert not (files / "out").exists()


def test_an_unknown_option_names_the_nearest(files):
    rows = [Example("red", "a"), Example("blue", "b")]
    with pytest.raises(
        TypeError, match=r"finetune\(\) has no option 'learning_rat'; the nearest one is 'learning_rate'"
    ):
        recipes.finetune(rows, rows, "words", files / "out", learning_rat=1.0)
    with pytest.raises(TypeError, match=r"embed\(\) has no option 'layer'; the nearest one is 'layers'"):
        recipes.embed(files / "vectors", ["red"], files / "a.npz", layer="top")


@pytest.mark.trains
def test_an_untrained_mix_is_reported(tmp_path):
    tiny.save(tmp_path / "lm", tiny.bundle("embed", "elmo", sizes={"layers": 2}))
    with pytest.warns(UserWarning, match="lm: it has no trained scalar mix; the mean of its layers is used"):
        recipes.embed(tmp_path / "lm", ["red fish"], tmp_path / "mix.npz", layers="mix")
    recipes.embed(tmp_path / "lm", ["red fish"], tmp_path / "all.npz", layers="all")
    np.testing.assert_allclose(
        tiny.arrays_of(tmp_path / "mix.npz")["0"], tiny.arrays_of(tmp_path / "all.npz")["0"].mean(0), atol=1e-6
    )
