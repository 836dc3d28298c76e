"""Model folders: a bundle.json that describes no model, and how often the files of a folder are read."""

import dataclasses
import json
import re
from collections import Counter

import keras
import numpy as np
import pytest

from keras_ctxrep import saving
from keras_ctxrep.cli import main
from keras_ctxrep.models import heads
from keras_ctxrep.text import bundle as bundles
from tests import tiny

ELMO = tiny.bundle("classify", "elmo", labels=("a", "b"), head={"dropout": 0.0}, stack={"kind": "lstm", "units": 3})
BERT = dataclasses.replace(tiny.bundle("embed"), task="pretrainer")
STATIC = tiny.bundle("embed", "static")


def saved(folder, bundle):
    saving.save(folder, saving.build(bundle), bundle)
    return folder


@pytest.mark.trains
@pytest.mark.parametrize(
    ("bundle", "keys", "value", "message"),
    [
        (ELMO, ("config", "layers"), "2", "config.layers='2': must be a whole number"),
        (ELMO, ("config", "layers"), 100_000, "config.layers=100000: must be at least 1 and at most 256"),
        (ELMO, ("config", "highways"), 10**9, "config.highways=1000000000: must be at least 0 and at most 64"),
        (ELMO, ("config", "filters"), [[1, 10**9]], "config.filters=[[1, 1000000000]]: must be at least 1"),
        (ELMO, ("config", "projection"), 9, "config.projection=9, cells=8: no wider"),
        (ELMO, ("config", "surprise"), 1, "config.surprise: no such key"),
        (ELMO, ("config",), [1], "config=[1]: must be an object"),
        (ELMO, ("config", "activation"), "gelu", "config.activation='gelu': relu or tanh"),
        (ELMO, ("head", "surprise"), 1, ""),
        (ELMO, ("head", "dropout"), "much", ""),
        (ELMO, ("stack", "layers"), 100_000, "layers=100000, units=3: both are at least 1, and at most 100"),
        (ELMO, ("stack", "units"), "3", ""),
        (ELMO, ("stack", "kind"), "tree", "task network 'tree': choose one of lstm, gru, cnn"),
        (ELMO, ("extra_embeddings",), {"words": 2}, "extra_embeddings.width is missing"),
        (BERT, ("config", "layers"), 10**9, "config.layers=1000000000: must be at least 1 and at most 256"),
        (BERT, ("config", "heads"), 3, "config.heads=3 does not divide width=8"),
        (STATIC, ("config", "width"), None, "config.width=None: must be a whole number"),
        (STATIC, ("config", "words"), 10**12, "config.words=1000000000000: must be at least"),
    ],
)
def test_a_bundle_that_describes_no_model(tmp_path, bundle, keys, value, message):
    path = saved(tmp_path / "m", bundle) / bundles.NAME
    content = json.loads(path.read_text())
    del content[bundles.CHECKSUM]
    *way, last = keys
    (content[way[0]] if way else content)[last] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"^{re.escape(f'{path}: {message}')}") as raised:
        saving.load(tmp_path / "m")
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_weights_of_another_size(tmp_path):
    path = saved(tmp_path / "m", STATIC) / bundles.NAME
    content = json.loads(path.read_text())
    content["config"]["width"] = 5
    del content[bundles.CHECKSUM]
    path.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"m/model\.weights\.h5: not the weights of the model in bundle\.json: [^\n]+$"
    ):
        saving.load(tmp_path / "m")


@pytest.fixture
def hashed(monkeypatch):
    """How often each file is hashed."""
    counts, digest = Counter(), bundles.hashlib.file_digest

    def counted(file, name):
        counts[file.name] += 1
        return digest(file, name)

    monkeypatch.setattr(bundles.hashlib, "file_digest", counted)
    return counts


@pytest.mark.trains
@pytest.mark.parametrize("command", ["predict", "export", "train", "convert"])
def test_every_file_is_hashed_once(tmp_path, command, hashed, capsys, rng):
    folder = saved(tmp_path / "m", ELMO)
    data = tmp_path / "a.tsv"
    data.write_text("text\tlabel\n" + "a b\ta\nb a\tb\n" * 4)
    arguments = {
        "predict": [folder, "--input", data],
        "export": [folder, "--out", tmp_path / "served"],
        "train": ["--data", data, "--dev", data, "--encoder", folder, "--out", tmp_path / "out", "--steps", "1"],
        "convert": [folder, "--to", "allennlp", "--out", tmp_path / "out"],
    }[command]
    hashed.clear()
    assert main.main([command, *map(str, arguments)]) == 0, capsys.readouterr()
    assert hashed[str(folder / bundles.WEIGHTS)] == 1 and set(hashed.values()) == {1}, hashed


@pytest.mark.parametrize("own", ["an output", "a named output", "a layer", "another head"])
def test_a_model_that_its_bundle_does_not_describe(tmp_path, own):
    encoder, bundle = tiny.model("embed")
    pooled, dense = encoder.output["pooled"], keras.layers.Dense
    if own == "a layer":
        bundle = tiny.bundle("classify")
        hidden = dense(3, name="mine")(pooled)
        model, lost = keras.Model(encoder.input, {"logits": dense(2, name="logits")(hidden)}), "the layer 'mine'"
    elif own == "another head":
        model, lost = heads.classify(encoder, 2), "the output 'logits'"
    else:
        head = dense(2, name="mine")(pooled)
        outputs = {**encoder.output, "mine": head} if own == "a named output" else head
        model, lost = keras.Model(encoder.input, outputs), "the output 'mine'"
    with pytest.raises(ValueError, match=rf"would lose {lost} .*model.save\(\"FILE.keras\"\)"):
        saving.save(tmp_path / "m", model, bundle)
    assert not (tmp_path / "m").exists()
    copy = keras.Model(encoder.input, encoder.output)  # of the user's own, and described
    saving.save(tmp_path / "m", copy, tiny.bundle("embed"))
    np.testing.assert_array_equal(saving.load(tmp_path / "m").model.get_weights()[0], encoder.get_weights()[0])


@pytest.mark.trains
def test_the_encoder_of_a_pretraining_model_is_served(tmp_path, hashed):
    folder = saved(tmp_path / "m", BERT)
    hashed.clear()
    encoder, bundle = saving.load_served(folder)
    assert bundle.task == "embed" and encoder.name == "bert_encoder" and set(hashed.values()) == {1}
    expected = saving.load(folder)[0].get_layer("layer_0").get_weights()
    for weight, value in zip(encoder.get_layer("layer_0").get_weights(), expected, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert saving.load_served(saved(tmp_path / "c", ELMO))[1].task == "classify"


def test_a_model_folder_as_one_object(tmp_path):
    """Loaded, saved again and reduced to its encoder; what is served of a task model is the model itself."""
    folder = saving.load(saved(tmp_path / "one", ELMO))
    folder.save(tmp_path / "two")
    model, bundle = saving.load(tmp_path / "two")
    assert bundle.labels == ELMO.labels and folder.served() is folder
    for weight, expected in zip(model.get_weights(), folder.model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
    encoder = folder.encoder()
    assert encoder.bundle == saving.load_encoder(tmp_path / "two").bundle and encoder.bundle.task == "embed"
    pretrained = saving.load(saved(tmp_path / "bert", BERT))
    assert pretrained.served().bundle.task == "embed" and "layers" in pretrained.served().model.output


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_not_loaded(value, tmp_path):
    model, bundle = tiny.model("classify")
    kernel = model.get_layer("layer_0").weights[0]
    values = np.copy(keras.ops.convert_to_numpy(kernel))
    values[0, 0] = value
    kernel.assign(values)
    saving.save(tmp_path / "m", model, bundle)
    with pytest.raises(ValueError, match=rf"model\.weights\.h5: the weights '{kernel.path}' have 1 of \d+ values"):
        saving.load(tmp_path / "m")
