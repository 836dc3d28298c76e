"""The biLM files of AllenNLP and bilm-tf: read, restated in NumPy, written back, refused."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from keras_ctxrep import recipes, saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.convert import allennlp, weights
from keras_ctxrep.models import elmo, heads
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.text.tokens import Characters
from keras_ctxrep.training import strategy
from tests import tiny

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT.parent / "shared" / "data" / "elmo_tiny"  # of bilm-tf's own tests
CLOSE = {"atol": 2e-6, "rtol": 2e-6}  # float32 against float64
WORDS = ["<S>", "</S>", "<UNK>", "the", "cat", "sat", "on", "a", "mat"]
BATCHES = [  # of 3, 2, 4, 1, 6 and 3 sentences
    ["the cat sat on the mat", "", "a dog"],
    ["sat", "the the the cat é 世"],
    ["a", "on a mat", "the unbelievably-long-word-of-more-than-eighteen-bytes sat", "cat"],
    ["on the <S> mat"],
    ["the", "a cat", "", "sat on", "mat mat mat mat mat", "dogs"],
    ["a cat sat", "on", "the mat !"],
]
OPTIONS = {
    "lstm": {"dim": 7, "projection_dim": 5, "n_layers": 2, "cell_clip": 0.7, "proj_clip": 0.3},
    "char_cnn": {
        "activation": "relu",
        "embedding": {"dim": 3},
        "filters": [[1, 3], [2, 4], [4, 2]],
        "n_highway": 2,
        "n_characters": 262,
        "max_characters_per_token": 20,
    },
}
OPTIONS["lstm"]["use_skip_connections"] = True
VARIANTS = {
    "published": {},
    "of_training": {"n_characters": 261},
    "one_layer": {"n_layers": 1},
    "one_layer_as_dumped": {"n_layers": 1, "cells": "LSTMCell"},
    "three_layers_no_residual": {"n_layers": 3, "use_skip_connections": False},
    "no_projection": {"projection_dim": 7},
    "no_highway": {"n_highway": 0},
    "highway_not_mentioned": {"n_highway": None},
    "filters_as_wide_as_the_projection": {"filters": [[1, 3], [3, 2]]},
    "tanh": {"activation": "tanh"},
    "unclipped": {"cell_clip": None, "proj_clip": None},
    "words": {"char_cnn": None},
}
CELL = "RNN/MultiRNNCell/Cell0/LSTMCell"
IDENTITIES = {  # that are written for AllenNLP
    "no_projection": [f"RNN_{i}/RNN/MultiRNNCell/Cell{k}/LSTMCell/W_P_0" for i in (0, 1) for k in (0, 1)],
    "filters_as_wide_as_the_projection": ["CNN_proj/W_proj", "CNN_proj/b_proj"],
}
variants = pytest.mark.parametrize("variant", VARIANTS)


def options_of(changes):
    """(OPTIONS with some of them changed, what a layer is called in the file)."""
    options = json.loads(json.dumps(OPTIONS))
    for name, value in changes.items():
        if name in options:
            del options[name]
        elif name != "cells":
            options["lstm" if name in options["lstm"] else "char_cnn"][name] = value
    return options, changes.get("cells", "MultiRNNCell/Cell{}/LSTMCell")


def tensors_of(options, cells, rng):
    """Random tensors under the names of `dump_weights`, large enough for the clips to bite."""

    def draw(*shape, scale=0.5):
        return rng.normal(scale=scale, size=shape).astype(np.float32)

    lstm, cnn, tensors = options["lstm"], options.get("char_cnn"), {}
    width, dim = lstm["projection_dim"], lstm["dim"]
    if cnn is None:
        tensors["embedding"] = draw(len(WORDS), width)
    else:
        total = sum(number for _, number in cnn["filters"])
        tensors["char_embed"] = draw(261, cnn["embedding"]["dim"])
        for i, (size, number) in enumerate(cnn["filters"]):
            tensors[f"CNN/W_cnn_{i}"] = draw(1, size, cnn["embedding"]["dim"], number)
            tensors[f"CNN/b_cnn_{i}"] = draw(number)
        for i in range(cnn["n_highway"] or 0):
            for gate in ("carry", "transform"):
                tensors[f"CNN_high_{i}/W_{gate}"] = draw(total, total)
                tensors[f"CNN_high_{i}/b_{gate}"] = draw(total)
        if total != width:
            tensors["CNN_proj/W_proj"], tensors["CNN_proj/b_proj"] = draw(total, width), draw(width)
    for direction in (0, 1):
        for layer in range(lstm["n_layers"]):
            place = f"RNN_{direction}/RNN/{cells.format(layer)}"
            tensors[f"{place}/W_0"], tensors[f"{place}/B"] = draw(2 * width, 4 * dim), draw(4 * dim)
            if width < dim:
                tensors[f"{place}/W_P_0"] = draw(dim, width)
    return tensors


def write_files(folder, options, tensors, vocab=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "options.json").write_text(json.dumps(options))
    with h5py.File(folder / "lm_weights.hdf5", "w") as file:
        for name, array in tensors.items():
            file[name] = array
    if vocab is not None:
        (folder / "vocab-2.txt").write_text("".join(f"{word}\n" for word in vocab))
    return folder


def stored(path):
    tensors = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: tensors.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return tensors


@pytest.fixture
def published(tmp_path, rng):
    """Files of the first variant."""
    options, cells = options_of({})
    return write_files(tmp_path / "published", options, tensors_of(options, cells, rng))


class Restated:
    """A whole biLM after bilm-tf's description, in float64, one sentence and one step at a time, with its state.

    It takes the tensors by their published names, and shares no code with ours.
    """

    def __init__(self, options, tensors, cells):
        self.lstm, self.cnn, self.cells = options["lstm"], options.get("char_cnn"), cells
        self.tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
        self.states = {}  # (direction, layer, row) -> output and cell
        self.clipped = set()

    def token(self, word):
        t = self.tensors
        if self.cnn is None:
            return t["embedding"][WORDS.index(word) if word in WORDS else WORDS.index("<UNK>")]
        room = self.cnn["max_characters_per_token"]
        inner = {"<S>": [256], "</S>": [257]}.get(word, list(word.encode())[: room - 2])
        ids = [258, *inner, 259]
        letters = t["char_embed"][ids + [260] * (room - len(ids))]  # (W, dim)
        x = []
        for i, (size, _) in enumerate(self.cnn["filters"]):
            windows = [letters[at : at + size] for at in range(room - size + 1)]
            convolved = np.max([np.einsum("wd,wdn->n", window, t[f"CNN/W_cnn_{i}"][0]) for window in windows], axis=0)
            x.extend(convolved + t[f"CNN/b_cnn_{i}"])
        x = np.tanh(x) if self.cnn["activation"] == "tanh" else np.maximum(x, 0)
        for i in range(self.cnn["n_highway"] or 0):
            gate = sigmoid(x @ t[f"CNN_high_{i}/W_carry"] + t[f"CNN_high_{i}/b_carry"])
            new = np.maximum(x @ t[f"CNN_high_{i}/W_transform"] + t[f"CNN_high_{i}/b_transform"], 0)
            x = gate * new + (1 - gate) * x
        return x @ t["CNN_proj/W_proj"] + t["CNN_proj/b_proj"] if "CNN_proj/W_proj" in t else x

    def clip(self, name, x):
        limit = self.lstm[name]
        if limit is not None and np.abs(x).max() > limit:
            self.clipped.add(name)
        return x if limit is None else np.clip(x, -limit, limit)

    def direction(self, number, layer, row, inputs):
        """Outputs of one LSTM, which reads `inputs` in their order."""
        place = f"RNN_{number}/RNN/{self.cells.format(layer)}"
        zeros = (np.zeros(self.lstm["projection_dim"]), np.zeros(self.lstm["dim"]))
        h, c = self.states.get((number, layer, row), zeros)
        out = []
        for x in inputs:
            z = np.concatenate([x, h]) @ self.tensors[f"{place}/W_0"] + self.tensors[f"{place}/B"]
            i, j, f, o = np.split(z, 4)
            c = self.clip("cell_clip", sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j))
            h = sigmoid(o) * np.tanh(c)
            if f"{place}/W_P_0" in self.tensors:
                h = self.clip("proj_clip", h @ self.tensors[f"{place}/W_P_0"])
            out.append(h + x if layer and self.lstm["use_skip_connections"] else h)
        self.states[number, layer, row] = h, c
        return out

    def __call__(self, sentences):
        """For each sentence (layers, words, 2 * width)."""
        outputs = []
        for row, sentence in enumerate(sentences):
            forward = backward = [self.token(word) for word in ["<S>", *sentence.split(), "</S>"]]
            layers = [np.concatenate([forward, backward], axis=1)]
            for layer in range(self.lstm["n_layers"]):
                forward = self.direction(0, layer, row, forward)
                backward = self.direction(1, layer, row, backward[::-1])[::-1]
                layers.append(np.concatenate([forward, backward], axis=1))
            outputs.append(np.stack(layers)[:, 1:-1])
        return outputs


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def embedded(folder, sentences, tmp_path, **kwargs):
    """The arrays that `embed` writes, all layers of words split at spaces."""
    recipes.embed(folder, sentences, tmp_path / "out.npz", words=True, **kwargs)
    arrays = tiny.arrays_of(tmp_path / "out.npz")
    return [arrays[str(index)] for index in range(len(sentences))]


@pytest.mark.trains
@variants
def test_numbers(tmp_path, rng, variant):
    """Six batches of different sizes, the state carried from one to the next, against the restatement."""
    options, cells = options_of(VARIANTS[variant])
    tensors = tensors_of(options, cells, rng)
    model, bundle = allennlp.read(write_files(tmp_path, options, tensors, WORDS))
    assert bundle.family == "elmo" and bundle.task == "embed" and not bundle.labels
    assert bundle.vocab == (tuple(WORDS) if variant == "words" else ())
    config = elmo.Config(**bundle.config)
    encoder = elmo.encoder(config, carry_state=True)
    copy_weights(model, encoder)
    restated = Restated(options, tensors, cells)
    state = np.zeros((6, elmo.state_width(config)), np.float32)
    for sentences in BATCHES:
        rows = len(sentences)
        batch = bundle.features([sentence.split() for sentence in sentences])
        outputs = encoder(batch | {"state": state[:rows].copy()})
        state[:rows] = outputs["state"]
        layers = np.stack([np.asarray(layer) for layer in outputs["layers"]])
        for row, expected in enumerate(restated(sentences)):
            words = expected.shape[1]
            np.testing.assert_allclose(layers[:, row, :words], expected, **CLOSE)
            assert not layers[:, row, words:].any()
    clips = {"unclipped": set(), "no_projection": {"cell_clip"}}
    assert restated.clipped == clips.get(variant, {"cell_clip", "proj_clip"})  # the test sees them
    # without a state, the first batch alone is the same
    first = model(bundle.features([sentence.split() for sentence in BATCHES[0]]))["sequence"]
    for row, expected in enumerate(Restated(options, tensors, cells)(BATCHES[0])):
        np.testing.assert_allclose(np.asarray(first)[row, : expected.shape[1]], expected[-1], **CLOSE)


@pytest.mark.trains
@pytest.mark.parametrize("variant", ["published", "words"])
def test_embed_with_and_without_the_state(tmp_path, rng, variant):
    options, cells = options_of(VARIANTS[variant])
    tensors = tensors_of(options, cells, rng)
    saving.save(tmp_path / "m", *allennlp.read(write_files(tmp_path, options, tensors, WORDS)))
    sentences = [sentence for batch in BATCHES for sentence in batch]
    restated = Restated(options, tensors, cells)
    expected = [layers for at in range(0, len(sentences), 4) for layers in restated(sentences[at : at + 4])]
    carried = embedded(tmp_path / "m", sentences, tmp_path, carry_state=True, batch_size=4)
    for actual, right in zip(carried, expected, strict=True):
        np.testing.assert_allclose(actual, right, **CLOSE)
    alone = [Restated(options, tensors, cells)([sentence])[0] for sentence in sentences]
    for size in (1, 4):
        for actual, right in zip(embedded(tmp_path / "m", sentences, tmp_path, batch_size=size), alone, strict=True):
            np.testing.assert_allclose(actual, right, **CLOSE)
    moved = max(np.abs(first - other).max() for first, other in zip(carried, alone, strict=True) if first.size)
    assert moved > 0.01  # the state matters


@pytest.mark.skipif(
    not PUBLISHED.exists(), reason="the files of bilm-tf's tests are not here: ../shared/data/elmo_tiny"
)
def test_the_published_vectors(tmp_path):
    """bilm-tf's own fixture: ten batches of three sentences, the state carried, the first sentence of each checked."""
    texts = json.loads((PUBLISHED / "lm_embeddings_sentences.json").read_text())
    batches = list(zip(*texts, strict=True))
    (tmp_path / "in.txt").write_text("".join(f"{sentence}\n" for batch in batches for sentence in batch))
    assert main(["convert", str(PUBLISHED), "--from", "allennlp", "--out", str(tmp_path / "m")]) == 0
    arguments = f"embed {tmp_path}/m --input {tmp_path}/in.txt --out {tmp_path}/out.hdf5 --words --layers all"
    assert main([*arguments.split(), "--carry-state", "--batch-size", "3"]) == 0
    written = stored(tmp_path / "out.hdf5")
    expected = stored(PUBLISHED / "lm_embeddings_0.hdf5")
    assert len(written) == 30 and len(expected) == 10
    for number, (forward, backward) in expected.items():
        top = written[str(3 * int(number))][-1]
        assert np.allclose(top, np.concatenate([forward, backward], axis=1), atol=1e-6, rtol=1e-5), number
    assert main(["convert", str(tmp_path / "m"), "--to", "allennlp", "--out", str(tmp_path / "back")]) == 0
    first, other = stored(PUBLISHED / "lm_weights.hdf5"), stored(tmp_path / "back" / "weights.hdf5")
    assert first.keys() == other.keys() and all(first[name].tobytes() == other[name].tobytes() for name in first)
    options = json.loads((tmp_path / "back" / "options.json").read_text())
    for part, fields in json.loads((PUBLISHED / "options.json").read_text()).items():
        assert options[part] == fields


@variants
@pytest.mark.parametrize("block", [1 << 18, pytest.param(5, marks=pytest.mark.slow)])  # numbers that are read at once
def test_round_trip(tmp_path, rng, monkeypatch, variant, block):
    """hdf5 -> Keras -> model folder -> Keras -> hdf5, bit by bit; read again, it is the same model."""
    monkeypatch.setattr(weights, "BLOCK", block)
    options, cells = options_of(VARIANTS[variant])
    tensors = tensors_of(options, cells, rng)
    saving.save(tmp_path / "m", *allennlp.read(write_files(tmp_path, options, tensors, WORDS)))
    model, bundle = saving.load(tmp_path / "m")
    allennlp.write(tmp_path / "back", model, bundle)
    result = stored(tmp_path / "back" / "weights.hdf5")
    identities = {
        name: result.pop(name) for name in result.keys() - {name.replace("RNN/LSTMCell", CELL) for name in tensors}
    }
    assert identities.keys() == set(IDENTITIES.get(variant, ()))
    for name, array in identities.items():
        assert array.dtype == np.float32 and np.array_equal(array, np.eye(len(array)) if "W_" in name else 0 * array)
    for name, array in tensors.items():
        back = result[name.replace("RNN/LSTMCell", CELL)]
        assert back.dtype == np.float32 and back.shape == array.shape and back.tobytes() == array.tobytes()
    again, other = allennlp.read(tmp_path / "back")
    assert other.config == json.loads(json.dumps(bundle.config)) | {
        "filters": elmo.Config(**other.config).filters
    } and other.vocab == (tuple(WORDS) if variant == "words" else ())
    for first, second in zip(model.get_weights(), again.get_weights(), strict=True):
        assert first.tobytes() == second.tobytes()
    written = json.loads((tmp_path / "back" / "options.json").read_text())
    if variant != "words":
        # what both loaders ask for
        assert written["char_cnn"]["n_characters"] == 262 and written["char_cnn"]["max_characters_per_token"] == 50


@pytest.mark.slow
@pytest.mark.skipif("PEERS" not in os.environ, reason="PEERS: a Python with torch, h5py and allennlp==2.10.1 is needed")
@pytest.mark.parametrize(
    "variant", ["published", "no_projection", "filters_as_wide_as_the_projection", "unclipped", "tanh"]
)
def test_allennlp_opens_what_is_written(tmp_path, rng, variant):
    """AllenNLP itself, in a process without this library, gives our layers to 1e-5."""
    options, cells = options_of(VARIANTS[variant])
    model, bundle = allennlp.read(write_files(tmp_path, options, tensors_of(options, cells, rng), WORDS))
    allennlp.write(tmp_path / "back", model, bundle)
    sentences = ["the cat sat on the mat", "a dog", "é 世 !"]
    ours = bundle.features([sentence.split() for sentence in sentences])
    ids = np.zeros((*ours["mask"].shape, 50), np.int32)  # without the ends of sentences, which AllenNLP adds
    theirs = Characters(50)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence.split())] = theirs(sentence.split())
    np.save(tmp_path / "ids.npy", ids)
    script = str(ROOT / "tests" / "reference" / "allennlp_vectors.py")
    command = [
        os.environ["PEERS"],
        script,
        str(tmp_path / "back"),
        str(tmp_path / "ids.npy"),
        str(tmp_path / "out.npy"),
    ]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})
    layers = np.load(tmp_path / "out.npy")
    expected = np.stack([np.asarray(layer) for layer in model(ours)["layers"]])
    length = layers.shape[2]
    np.testing.assert_allclose(layers, expected[:, :, :length], atol=1e-5)


def test_a_projection_that_is_no_identity(tmp_path, rng):
    options, cells = options_of(VARIANTS["no_projection"])
    tensors = tensors_of(options, cells, rng)
    name = f"RNN_1/RNN/{CELL.removeprefix('RNN/').replace('Cell0', 'Cell1')}/W_P_0"
    with pytest.raises(ValueError, match=rf"{name} projects to the same width and is no identity"):
        allennlp.read(write_files(tmp_path, options, tensors | {name: np.ones((7, 7), np.float32)}))


def test_the_vector_of_padding_is_zero(tmp_path, rng):
    options, cells = options_of(VARIANTS["words"])
    tensors = tensors_of(options, cells, rng)
    model, _ = allennlp.read(write_files(tmp_path, options, tensors))
    (table,) = model.get_layer("word_embedding").get_weights()
    assert not table[0].any() and np.array_equal(table[1:], tensors["embedding"])


@pytest.mark.parametrize("kind", ["classifier", "language_model", "streams"])
def test_written_from_any_model(published, tmp_path, kind):
    """What was trained on a biLM goes back into its format; what stands above it is left out."""
    encoder, bundle = allennlp.read(published)
    config = elmo.Config(**bundle.config)
    if kind == "classifier":
        model = heads.classify(encoder, 2, mix=True)
    else:
        model = elmo.language_model(config, 9, streams=2 if kind == "streams" else None)
        copy_weights(encoder, model, skip=["softmax"])
    for layer in ("forward_1", "char_cnn"):
        for weight in model.get_layer(layer).weights:
            if weight.name != "state":
                weight.assign(weight + 1)
    allennlp.write(tmp_path / "back", model, replace(bundle, vocab=tuple(WORDS)))
    before, after = stored(published / "lm_weights.hdf5"), stored(tmp_path / "back" / "weights.hdf5")
    assert before.keys() == after.keys()
    for name, array in before.items():
        trained = "RNN" not in name or name.startswith("RNN_0/RNN/MultiRNNCell/Cell1")
        assert np.array_equal(after[name], array + np.float32(trained))
    assert (tmp_path / "back" / "vocab.txt").read_text().split() == WORDS


def test_every_replica_is_filled(published, monkeypatch):
    monkeypatch.setattr(weights, "BLOCK", 5)
    with strategy.scope(strategy="mirrored"):
        model, _ = allennlp.read(published)
    whole, _ = allennlp.read(published)
    for weight, expected in zip(model.weights, whole.get_weights(), strict=True):
        if "float" in str(weight.dtype):
            assert len(weight.value.values) == 2
            assert all(np.array_equal(replica, expected) for replica in weight.value.values)


@pytest.mark.trains
def test_it_can_be_fine_tuned_and_exported(published, tmp_path):
    saving.save(tmp_path / "m", *allennlp.read(published))
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "a cat\tx\nthe mat\ty\n" * 8)
    data = tmp_path / "a.tsv"
    recipes.finetune(data, data, tmp_path / "m", tmp_path / "c", steps=2, batch_size=8, freeze=False)
    assert main(["convert", str(tmp_path / "c"), "--to", "allennlp", "--out", str(tmp_path / "back")]) == 0
    assert stored(tmp_path / "back" / "weights.hdf5").keys() == stored(published / "lm_weights.hdf5").keys()


# -------------------------------------------------------------------------------------------------- where files are


def test_paths(published, tmp_path):
    weights_file, options = published / "lm_weights.hdf5", published / "options.json"
    expected = allennlp.read(published)[1]
    assert allennlp.read(weights_file)[1] == allennlp.read(str(published))[1] == expected
    with h5py.File(published / "embeddings.hdf5", "w") as file:  # vectors beside the weights, as in bilm-tf's tests
        file["0"] = np.zeros(3)
    assert allennlp.read(published)[1] == expected
    # the published names: each weight file has options of its own
    weights_file.rename(published / "small_weights.h5")
    options.rename(published / "small_options.json")
    assert allennlp.read(published)[1] == expected
    (published / "other_options.json").write_text("{}")
    assert allennlp.read(published)[1] == expected
    (published / "small_options.json").unlink()
    with pytest.raises(ValueError, match=r"other_options\.json: the option lstm"):
        allennlp.read(published)
    (published / "other_options.json").unlink()
    with pytest.raises(ValueError, match=r"small_weights\.h5: options\.json is needed beside it; found none"):
        allennlp.read(published)


def test_hidden_files_next_to_the_weights(published):
    """As macOS leaves them in archives."""
    (published / "options.json").rename(published / "other_options.json")
    for path in list(published.iterdir()):
        path.with_name(f"._{path.name}").write_bytes(b"Mac OS X")
    assert allennlp.read(published)[1].family == "elmo"


def test_no_files(published, tmp_path):
    with pytest.raises(ValueError, match="nothing: no such file or folder"):
        allennlp.read(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: one weight file, \.hdf5 or \.h5, is needed in it; found none"):
        allennlp.read(tmp_path / "empty")
    (published / "b.hdf5").write_bytes((published / "lm_weights.hdf5").read_bytes())
    with pytest.raises(ValueError, match=r"found several: b\.hdf5, lm_weights\.hdf5; give the path of one"):
        allennlp.read(published)


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("lstm", None, "the option lstm.* is missing"),
        ("lstm.dim", None, r"the option lstm\.dim is missing"),
        ("lstm.projection_dim", None, r"the option lstm\.projection_dim is missing"),
        ("lstm.use_skip_connections", None, r"the option lstm\.use_skip_connections is missing"),
        ("char_cnn", None, "the option char_cnn is missing, and there is no tensor embedding"),
        ("char_cnn.filters", None, r"the option char_cnn\.filters is missing"),
        ("char_cnn.embedding", None, r"the option char_cnn\.embedding\.dim is missing"),
        ("char_cnn.activation", None, r"the option char_cnn\.activation is missing"),
        ("char_cnn.n_characters", None, r"the option char_cnn\.n_characters is missing"),
        ("lstm.dim", "7", r"lstm\.dim='7': must be a whole number"),
        ("lstm.dim", 7.5, r"lstm\.dim=7\.5: must be a whole number"),
        ("lstm.dim", True, r"lstm\.dim=True: must be a whole number"),
        ("lstm.n_layers", 0, r"lstm\.n_layers=0: must be at least 1 and at most 256"),
        ("lstm.cell_clip", -3, r"lstm\.cell_clip=-3: must be at least 1e-06"),
        ("lstm.cell_clip", float("nan"), r"lstm\.cell_clip=nan: must be a finite number"),
        ("lstm.use_skip_connections", "no", r"use_skip_connections='no': must be true or false"),
        ("lstm.projection_dim", 8, "options.json: projection=8, cells=7: no wider than the cells"),
        ("char_cnn.activation", "gelu", r"the option char_cnn\.activation is 'gelu'; relu or tanh"),
        ("char_cnn.n_characters", 300, r"n_characters is 300; 261 \(of training\) or 262"),
        ("char_cnn.filters", [], r"filters is \[\]; \[characters, filters\] pairs"),
        ("char_cnn.filters", [[1, 3], [2]], r"filters is \[\[1, 3\], \[2\]\]"),
        ("char_cnn.filters", [[1, -3]], "pairs are needed"),
        ("char_cnn.filters", [[21, 3]], "a filter 21 characters wide; .*max_characters_per_token is 20"),
        ("char_cnn.max_characters_per_token", 2, "max_characters_per_token=2: must be at least 3"),
        ("lstm.n_layers", 10**9, r"lstm\.n_layers=1000000000: must be at least 1 and at most 256"),
        ("char_cnn.n_highway", 10**9, r"n_highway=1000000000: must be at least 0 and at most 64"),
        ("char_cnn.filters", [[1, 10**9]], "filters=.*must be at least 1 and at most 65,536"),
        ("lstm.dim", 10**9, "cells=1000000000: must be at least 1 and at most 65,536"),
        # right by themselves, but of another file
        ("lstm.dim", 8, r"RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0 has the shape \(10, 28\); .* \(10, 32\)"),
        ("lstm.projection_dim", 4, r"CNN_proj/W_proj has the shape \(9, 5\); .* \(9, 4\)"),
        ("lstm.n_layers", 3, r"missing: RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0 \(10, 28\), "),
        ("lstm.n_layers", 1, r"left over: RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/B \(28,\), "),
        ("char_cnn.n_highway", 3, r"missing: CNN_high_2/W_carry \(9, 9\), "),
        ("char_cnn.n_highway", 0, r"left over: CNN_high_0/W_carry \(9, 9\), .* and 2 more"),
        ("char_cnn.embedding.dim", 4, r"char_embed has the shape \(261, 3\); .* \(261, 4\)"),
        ("char_cnn.filters", [[1, 3], [3, 4], [4, 2]], r"W_cnn_1 has the shape \(1, 2, 3, 4\); .* \(1, 3, 3, 4\)"),
    ],
)
def test_options_that_are_refused(published, option, value, message):
    options = json.loads((published / "options.json").read_text())
    *way, last = option.split(".")
    place = options
    for key in way:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    (published / "options.json").write_text(json.dumps(options))
    with pytest.raises(ValueError, match=message) as raised:
        allennlp.read(published)
    assert str(published) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["char_embed", "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/B", "CNN/W_cnn_1"])
def test_numbers_that_are_not_finite(published, name, value):
    with h5py.File(published / "lm_weights.hdf5", "r+") as file:
        array = file[name][()]
        array.flat[-1] = value
        file[name][...] = array
    with pytest.raises(ValueError, match=rf"lm_weights\.hdf5: {name}: a number that is not finite$"):
        allennlp.read(published)


@pytest.mark.parametrize("kind", ["external link", "soft link", "group", "external storage", "virtual"])
def test_files_that_lead_to_others(published, kind):
    """What they lead to is right, and is not read."""
    path, name = published / "lm_weights.hdf5", "CNN/b_cnn_1"
    with h5py.File(published / "other.bin", "w") as other, h5py.File(path, "r+") as file:
        array = file[name][()]
        file.copy("CNN", other)
        del file["CNN" if kind == "group" else name]
        if kind == "group":
            file["CNN"] = h5py.ExternalLink("other.bin", "/CNN")
        elif kind == "external link":
            file[name] = h5py.ExternalLink("other.bin", name)
        elif kind == "soft link":
            file[name] = h5py.SoftLink("/elsewhere")
        elif kind == "external storage":
            (published / "raw.bin").write_bytes(array.tobytes())
            file.create_dataset(name, array.shape, array.dtype, external=[("raw.bin", 0, array.nbytes)])
        else:
            layout = h5py.VirtualLayout(array.shape, array.dtype)
            layout[:] = h5py.VirtualSource("other.bin", name, array.shape)
            file.create_virtual_dataset(name, layout)
    link = "is a link to" if "link" in kind or kind == "group" else "lies in another file"
    for source in (published, path):
        with pytest.raises(ValueError, match=rf"lm_weights\.hdf5: CNN(/b_cnn_1)? {link}"):
            allennlp.read(source)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100000])
def test_options_that_are_not_json(published, content):
    (published / "options.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"options\.json: not JSON"):
        allennlp.read(published)
    (published / "options.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"options\.json: list; an object"):
        allennlp.read(published)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("CNN/b_cnn_1", None, r"missing: CNN/b_cnn_1 \(4,\)$"),
        ("RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_P_0", None, r"missing: RNN_1/.*/W_P_0 \(7, 5\)$"),
        ("CNN/b_cnn_1", np.zeros(5, np.float32), r"CNN/b_cnn_1 has the shape \(5,\); its options call for \(4,\)"),
        ("CNN/W_cnn_0", np.zeros((1, 3, 3), np.float32), r"W_cnn_0 has the shape \(1, 3, 3\); .* \(1, 1, 3, 3\)"),
        ("char_embed", np.zeros((262, 3), np.float32), r"char_embed has the shape \(262, 3\); .* \(261, 3\)"),
        ("char_embed", np.zeros((261, 3)), "char_embed is float64; write it as float32"),
        ("extra/group/array", np.zeros((2, 2)), r"left over: extra/group/array \(2, 2\)$"),
        ("softmax", np.zeros(()), r"left over: softmax \(\)$"),
    ],
)
def test_tensors_that_are_refused(published, name, array, message):
    with h5py.File(published / "lm_weights.hdf5", "a") as file:
        if name in file:
            del file[name]
        if array is not None:
            file[name] = array
    with pytest.raises(ValueError, match=message) as raised:
        allennlp.read(published)
    assert str(raised.value).startswith(f"{published / 'lm_weights.hdf5'}: ")


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_a_truncated_file(published, share):
    path = published / "lm_weights.hdf5"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    for source in (published, path):
        with pytest.raises(ValueError, match=r"lm_weights\.hdf5: not a whole hdf5 file; copy it again"):
            allennlp.read(source)


def test_a_file_that_ends_while_it_is_read(published, monkeypatch):
    class Broken:
        shape, dtype = (4,), np.dtype(np.float32)

        def __getitem__(self, key):
            raise OSError("read failed")

    def check(table, tensors, place):
        tensors["CNN/b_cnn_1"] = Broken()

    monkeypatch.setattr(allennlp, "check", check)
    with pytest.raises(ValueError, match=r"lm_weights\.hdf5: CNN/b_cnn_1 can not be read; copy the file again: read f"):
        allennlp.read(published)


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (WORDS[:-1], "8 words; the tensor embedding has 9 rows"),
        ([*WORDS[3:], *WORDS[:3]], "its first lines must be <S>, </S>, <UNK>; found"),
        ([*WORDS[:-1], "cat"], "'cat' occurs twice"),
    ],
)
def test_vocabularies_that_are_refused(tmp_path, rng, vocab, message):
    options, cells = options_of(VARIANTS["words"])
    write_files(tmp_path, options, tensors_of(options, cells, rng), vocab)
    with pytest.raises(ValueError, match=rf"vocab-2\.txt: .*{message}"):
        allennlp.read(tmp_path)
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    with pytest.raises(ValueError, match=r"several vocabularies: vocab-2\.txt, vocab\.txt; leave one"):
        allennlp.read(tmp_path)


def test_vocabularies(tmp_path, rng):
    options, cells = options_of(VARIANTS["words"])
    tensors = tensors_of(options, cells, rng)
    write_files(tmp_path, options, tensors, [*(f" {word} " for word in WORDS), "!!!MAXTERMID"])
    assert allennlp.read(tmp_path)[1].vocab == tuple(WORDS)
    (tmp_path / "vocab-2.txt").unlink()
    model, bundle = allennlp.read(tmp_path)  # word ids alone will do
    assert model({"word_ids": np.array([[4, 5]]), "mask": np.ones((1, 2), np.int32)})["sequence"].shape == (1, 2, 10)
    with pytest.raises(ValueError, match="there is no vocabulary"):
        bundle.features(["the cat"])
    write_files(tmp_path, options | {"n_tokens_vocab": 10}, tensors)
    with pytest.raises(ValueError, match=r"embedding has the shape \(9, 5\); its options call for \(10, 5\)"):
        allennlp.read(tmp_path)


def test_models_that_are_not_written(published, tmp_path):
    model, bundle = allennlp.read(published)
    with pytest.raises(ValueError, match="family 'bert': this format holds a biLM"):
        allennlp.write(tmp_path / "x", model, replace(bundle, family="bert"))
    with pytest.raises(ValueError, match=r"'elmo_encoder' is not the one of its config: missing: backward_2/bias, "):
        allennlp.write(tmp_path / "x", model, replace(bundle, config=bundle.config | {"layers": 3}))
    with pytest.raises(ValueError, match="left over: char_cnn/high_1_W_carry"):
        allennlp.write(tmp_path / "x", model, replace(bundle, config=bundle.config | {"highways": 1}))
    with pytest.raises(
        ValueError, match=r"forward_0/kernel and .* the shape \(10, 28\); its config calls for \(10, 24\)"
    ):
        allennlp.write(tmp_path / "x", model, replace(bundle, config=bundle.config | {"cells": 6}))
    assert not list(tmp_path.glob("*x*"))  # nothing is left behind


def test_the_command(published, tmp_path, capsys):
    assert main(["convert", str(published), "--from", "allennlp", "--out", str(tmp_path / "m")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'm'}: embed: 0.0 million weights\n"
    (published / "options.json").unlink()
    assert main(["convert", str(published), "--from", "allennlp", "--out", str(tmp_path / "n")]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("ctxrep: ") and printed.count("\n") == 1 and not (tmp_path / "n").exists()
    assert main(["convert", str(published), "--to", "allennlp", "--out", str(tmp_path / "n")]) == 1
    assert "no bundle.json" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- cache


@pytest.mark.slow  # traces a dozen encoders
def test_embed_with_a_cache(published, tmp_path):
    """The same vectors, of which those of the cache's words are looked up."""
    saving.save(tmp_path / "m", *allennlp.read(published))
    sentences = [sentence for batch in BATCHES for sentence in batch]
    plain = embedded(tmp_path / "m", sentences, tmp_path)
    for vocab in (WORDS, ["the", "the", "cat", "世"], [*WORDS, "dog", "dogs", "é", "!"], ["never"]):
        (tmp_path / "cache.txt").write_text("".join(f"{word}\n" for word in vocab))
        for options in ({"batch_size": 4}, {"batch_size": 3, "carry_state": True}):
            expected = plain
            if "carry_state" in options:
                expected = embedded(tmp_path / "m", sentences, tmp_path, **options)
            cached = embedded(tmp_path / "m", sentences, tmp_path, cache=tmp_path / "cache.txt", **options)
            for first, other in zip(cached, expected, strict=True):
                np.testing.assert_allclose(first, other, atol=1e-6)


def test_long_sentences_are_read_whole(published, tmp_path):
    saving.save(tmp_path / "m", *allennlp.read(published))
    long = " ".join(["the cat sat"] * 100)
    assert allennlp.read(published)[1].max_length < 300
    (vectors,) = embedded(tmp_path / "m", [long], tmp_path)
    assert vectors.shape == (3, 300, 10)


# ------------------------------------------------------------------------------------------------------ original size


@pytest.mark.release
def test_memory_at_the_original_size(tmp_path):
    """93.6 million weights, read in a fresh process."""
    options, _ = options_of({})
    options["lstm"] |= {"dim": 4096, "projection_dim": 512}
    options["char_cnn"] |= {"embedding": {"dim": 16}, "filters": elmo.Config().filters, "max_characters_per_token": 50}
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        for tensor in allennlp.weight_map(elmo.Config()):
            file[tensor.name] = np.ones(tensor.shape, np.float32)
    (tmp_path / "options.json").write_text(json.dumps(options))
    # not ru_maxrss, which begins with the memory of the process that started this one
    code = (
        "import sys, tensorflow\n"
        "peak = lambda: 1024 * int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
        "imported = peak()\n"
        "from keras_ctxrep.convert import allennlp; model, _ = allennlp.read(sys.argv[1])\n"
        "print(model.count_params(), peak() - imported)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    parameters, peak = map(int, done.stdout.split())
    # 1.2 GB in all, of which TensorFlow's import is 0.7 GB or more, by the machine
    assert 93.5e6 < parameters < 93.7e6 and peak < 0.5e9, peak / 1e9
