"""Model folders of what fine-tuning changed: the same answers in less space, whole again where they are saved."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import places, recipes, saving, updates, zoo
from keras_ctxrep.cli.main import main
from keras_ctxrep.text.bundle import Bundle
from tests import tiny

pytestmark = pytest.mark.trains
TEXTS = ["the cats fell", "rain", "she had a cat"]


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The name of an encoder that comes with the package."""
    monkeypatch.setattr(places, "SHIPPED", tmp_path / "weights")
    name = "bert_3_384_12/books_wiki_en"
    tiny.save(tmp_path / "weights" / name, tiny.bundle("embed"))
    return name


@pytest.fixture
def tuned(published, tmp_path):
    """A classifier over it, trained by low-rank updates."""
    data, dev = (TEXTS * 8, [*"aba"] * 8), (TEXTS, [*"aba"])
    options = {"steps": 6, "batch_size": 8, "learning_rate": 0.05, "lora": 2}
    recipes.finetune(data, dev, zoo.find(published), tmp_path / "tuned", **options)
    return tmp_path / "tuned"


def probabilities(model):
    return np.array([[*answer["probabilities"].values()] for answer in model.predict(TEXTS)])


def write(tuned, published, folder, rank=2):
    model, bundle = saving.load(tuned)
    saving.save_changes(folder, model, bundle, published, rank)
    return folder


def test_the_same_answers_in_less(tuned, published, tmp_path):
    small = write(tuned, published, tmp_path / "small")
    assert not (small / "model.weights.h5").exists()
    changed = updates.read(small)
    assert {"logits/0", "pooler/0"} <= changed.keys() and not [key for key in changed if key.startswith("token_emb")]
    assert all(parts[0].shape[1] == 2 for key, parts in changed.items() if len(parts) == 2)
    assert any(len(parts) == 2 for parts in changed.values())
    expected, found = probabilities(ctx.load(tuned)), probabilities(ctx.load(small))
    np.testing.assert_allclose(found, expected, atol=2e-3)  # the changes are in float16
    assert np.abs(expected - 0.5).max() > 0.05  # and there is something to tell apart
    base = saving.load(zoo.find(published)).model.get_layer("layer_0").get_weights()[0]
    assert np.abs(saving.load(small).model.get_layer("layer_0").get_weights()[0] - base).max() > 1e-3


def test_whole_again_when_it_is_saved_and_converted(tuned, published, tmp_path, tflite_in_process):
    small = ctx.load(write(tuned, published, tmp_path / "small"))
    expected = probabilities(small)
    small.save(tmp_path / "whole")
    small.tflite(tmp_path / "small.tflite")
    shutil.rmtree(tmp_path / "weights")
    whole = ctx.load(tmp_path / "whole")
    assert "base" not in json.loads((tmp_path / "whole" / "bundle.json").read_text())
    np.testing.assert_array_equal(probabilities(whole), expected)
    np.testing.assert_allclose(probabilities(ctx.load(tmp_path / "small.tflite")), expected, atol=1e-4)
    small.save(tmp_path / "small")  # in its own place
    assert not (tmp_path / "small" / "updates.npz").exists()
    np.testing.assert_array_equal(probabilities(ctx.load(tmp_path / "small")), expected)


def test_the_nearest_changes_of_a_lower_rank():
    """Against the singular value decomposition of NumPy, the tail of whose values is the error."""
    base, model = tiny.model("embed")[0], tiny.model("classify")[0]
    rng = np.random.default_rng(0)
    kernel = model.get_layer("layer_0").get_weights()[0]
    difference = rng.normal(size=kernel.shape).astype("float32")
    saved = model.get_layer("layer_0").get_weights()
    start = base.get_layer("layer_0").get_weights()
    model.get_layer("layer_0").set_weights([start[0] + difference, *start[1:]])
    left, right = updates.changes(model, base, rank=3)["layer_0/0"]
    assert left.dtype == right.dtype == np.float16 and left.shape[1] == right.shape[0] == 3 and len(saved) > 1
    error = np.linalg.norm(left.astype(float) @ right.astype(float) - difference)
    tail = np.linalg.svd(difference, compute_uv=False)[3:]
    np.testing.assert_allclose(error, np.linalg.norm(tail), rtol=1e-3)


def damaged(folder, change):
    arrays = dict(np.load(folder / "updates.npz"))
    change(arrays)
    np.savez(folder / "updates.npz", **arrays)
    bundle = saving.bundles.load
    fields = json.loads((folder / "bundle.json").read_text())
    del fields["sha256"]
    fields["files"]["updates.npz"] = saving.bundles.sha256(folder / "updates.npz")
    (folder / "bundle.json").write_text(json.dumps(fields))
    assert bundle(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("logits/0:0"), "logits/0 is missing"),
        (lambda arrays: arrays.update({"logits/1:0": np.full(2, np.nan, "float16")}), "NaN or infinite"),
        (lambda arrays: arrays.update({"other/0:0": np.zeros(2, "float16")}), "other/0 left over"),
        (lambda arrays: arrays.update({"logits/1:0": np.zeros(9, "float16")}), r"logits/1 has the shape \(9,\)"),
    ],
)
def test_changes_of_another_model(change, message, tuned, published, tmp_path):
    folder = write(tuned, published, tmp_path / "small")
    damaged(folder, change)
    with pytest.raises(ValueError, match=message):
        saving.load(folder)


def test_another_encoder_than_it_was_made_over(tuned, published, tmp_path):
    folder = write(tuned, published, tmp_path / "small")
    model, bundle = saving.load(zoo.find(published))
    model.get_layer("layer_0").set_weights([array + 1 for array in model.get_layer("layer_0").get_weights()])
    saving.save(zoo.find(published), model, bundle)
    with pytest.raises(ValueError, match=f"made over another version of {published} .*; train it again, or"):
        saving.load(folder)
    fields = json.loads((folder / "bundle.json").read_text())
    for name in ("../../elsewhere", str(tmp_path), "bert_12_768_12/book_corpus_wiki_en_uncased"):
        fields["base"]["name"] = name
        fields.pop("sha256", None)
        (folder / "bundle.json").write_text(json.dumps(fields))
        with pytest.raises(ValueError, match=r"small: it changes .*, which is not here"):
            saving.load(folder)
    (folder / "updates.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"updates\.npz is not the file the bundle was written with"):
        saving.load(folder)
    with pytest.raises(ValueError, match="not a file of changes"):
        updates.read(folder)
    assert Bundle("bert", "embed", {}, 8).base == {}


def test_the_command(tuned, published, tmp_path, capsys):
    assert main(["convert", str(tuned), "--to", "changes", "--rank", "2", "--out", str(tmp_path / "small")]) == 0
    assert f"small: classify over {published}: 0.0" in capsys.readouterr().out
    expected, found = probabilities(ctx.load(tuned)), probabilities(ctx.load(tmp_path / "small"))
    np.testing.assert_allclose(found, expected, atol=2e-3)
    named = ["--base", published, "--out", str(tmp_path / "named")]
    assert main(["convert", str(tuned), "--to", "changes", *named]) == 0
    (tuned / "run.json").unlink()
    assert main(["convert", str(tuned), "--to", "changes", "--out", str(tmp_path / "none")]) == 1
    assert "no record of the encoder that it was trained from; name it by --base" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["convert", str(tuned), "--to", "huggingface", *named])
    assert "--base is for --to changes" in capsys.readouterr().err


def test_over_another_encoder(tuned, published, tmp_path):
    model, bundle = saving.load(tuned)
    other = saving.replace(bundle, vocab=(*bundle.vocab[:-1], "other"))
    with pytest.raises(ValueError, match="the model is not over this encoder"):
        saving.save_changes(tmp_path / "small", model, other, published, 2)


def test_an_encoder_that_is_all_of_its_base(tmp_path, monkeypatch, rng):
    """The encoder of a pretraining model, under a name of its own: no changes, and the same vectors."""
    monkeypatch.setattr(places, "SHIPPED", tmp_path / "weights")
    name = "bert_3_384_12/books_wiki_en"
    bundle = replace(tiny.bundle("embed"), task="pretrainer")
    model = saving.build(bundle)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    saving.save(zoo.find(tmp_path) / "weights" / name, model, bundle)
    saving.save_changes(tmp_path / "similar", *saving.load_encoder(zoo.find(name)), name, rank=4)
    similar, whole = ctx.load(tmp_path / "similar"), ctx.load(name)
    assert similar.bundle.encodes and whole.bundle.fills and not updates.read(tmp_path / "similar")
    np.testing.assert_array_equal(similar(TEXTS), whole.encode(TEXTS))
    assert similar("rain").shape == (8,)
    assert whole("the [MASK] fell") == whole.fill(["the [MASK] fell"])[0] == whole(["the [MASK] fell"])[0]
