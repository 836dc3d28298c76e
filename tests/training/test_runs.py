import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from keras_ctxrep import recipes, saving
from keras_ctxrep.atomic import lock_folder, sha256
from keras_ctxrep.options import Pretraining
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.training.runs import RunRecord, options_from_run


@pytest.fixture
def files(tmp_path):
    """A corpus, a vocabulary and a model folder with something else in it."""
    (tmp_path / "a.txt").write_text("a b\n")
    (tmp_path / "vocab.txt").write_text("a\n")
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / bundles.WEIGHTS).write_text("weights")
    bundles.save(bundles.Bundle("elmo", "embed", {}, 8), tmp_path / "lm")
    (tmp_path / "lm" / "notes.txt").write_text("mine")
    return tmp_path


def make(folder, corpus="a.txt", **options):
    options = {"steps": 3, "vocab": folder / "vocab.txt", "init": folder / "lm"} | options
    return RunRecord.of("pretrain", Pretraining(**options), family="elmo", corpus=[folder / corpus])


def test_fields_of_a_record(files):
    run = make(files, size="a.txt")  # a name, and no file
    run.save(files / "out", [{"step": 3, "loss": 0.5}])
    record = json.loads((files / "out" / "run.json").read_text())
    assert record["command"] == "pretrain" and record["seed"] == 0 and record["history"] == [{"step": 3, "loss": 0.5}]
    assert record["arguments"] == {"family": "elmo", "corpus": [str(files / "a.txt")]}
    assert record["options"]["vocab"] == str(files / "vocab.txt") and record["options"]["size"] == "a.txt"
    names = {"a.txt", "vocab.txt", "lm/bundle.json", f"lm/{bundles.WEIGHTS}"}
    assert {Path(name).relative_to(files).as_posix() for name in record["files"]} == names
    assert record["files"][str(files / "a.txt")] == sha256(files / "a.txt")
    assert {"keras", "tensorflow", "keras_ctxrep"} <= set(record["versions"])
    command, arguments, options = options_from_run(files / "out")
    assert command == "pretrain" and arguments == record["arguments"]
    assert Pretraining(**options) == Pretraining(**record["options"])


def test_the_identity_is_that_of_all_that_the_result_depends_on(files, monkeypatch):
    expected = make(files).identity
    (files / "copy.txt").write_text("a b\n")
    monkeypatch.chdir(files)
    for alike in (
        make(files, "copy.txt"),
        make(files, tensorboard="logs", checkpoint_minutes=1.0),
        make(files, vocab="vocab.txt"),
        RunRecord.of("pretrain", make(files).options, family="elmo", corpus=[Path("a.txt")]),
    ):
        assert alike.identity == expected
    others = {make(files, **given).identity for given in ({"seed": 1}, {"steps": 4}, {"vocab": None}, {"init": None})}
    (files / "a.txt").write_text("a c\n")
    others.add(make(files).identity)
    (files / "a.txt").write_text("a b\n")
    (files / "lm" / bundles.WEIGHTS).write_text("others")
    bundles.save(bundles.Bundle("elmo", "embed", {}, 8), files / "lm")
    others.add(make(files).identity)
    assert len(others) == 6 and expected not in others


def test_files_that_have_changed(files):
    make(files).save(files / "out", [])
    (files / "a.txt").write_text("other\n")
    (files / "vocab.txt").unlink()
    with pytest.warns(UserWarning) as warned:
        options_from_run(files / "out" / "run.json")
    messages = sorted(str(warning.message) for warning in warned)
    assert len(messages) == 2 and "a.txt: has changed since" in messages[0] and "vocab.txt: is missing" in messages[1]


@pytest.mark.parametrize("content", [None, "[]", "{", '{"command": "pretrain"}'])
def test_files_that_are_no_record(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run\.json: not a readable record of a run"):
        options_from_run(tmp_path)


RECIPES = {
    "pretrain": lambda out: recipes.pretrain("lm", ["missing.txt"], out, steps=1),
    "pretrain_static": lambda out: recipes.pretrain_static(["missing.txt"], out),
    "finetune": lambda out: recipes.finetune("missing.tsv", "missing.tsv", "words", out),
    "distill_encoder": lambda out: recipes.distill_encoder("missing", ["missing.txt"], out, steps=1),
    "distill_static": lambda out: recipes.distill_static("missing", ["missing.txt"], out),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_second_run_in_one_folder_is_refused_before_it_reads(name, tmp_path):
    """It would replace the model of the first one, if that ended while it read; the first is another thread here."""
    refused = pytest.raises(ValueError, match="out: another process is writing in it; wait for it, or stop it")
    with ThreadPoolExecutor() as pool, lock_folder(tmp_path / "out"), refused:
        pool.submit(RECIPES[name], tmp_path / "out").result()


def test_a_run_has_its_folder_until_its_model_is_saved(tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text("a b c d e f\n" * 200)
    saved = Mock(side_effect=lambda folder, *_: RECIPES["pretrain_static"](folder))
    options = {"dims": 4, "epochs": 1, "min_count": 1, "batch_size": 32}
    monkeypatch.setattr(saving, "save", lambda *args: ThreadPoolExecutor().submit(saved, *args).result())
    with pytest.raises(ValueError, match="out: another process is writing in it"):
        recipes.pretrain_static([tmp_path / "corpus.txt"], tmp_path / "out", **options)
    assert saved.call_count == 1
