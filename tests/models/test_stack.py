"""Task networks over encoders: the encoders' contract, their numbers, what trains, TFLite, JAX."""

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_ctxrep.models import elmo, heads, stack, static
from keras_ctxrep.text.features import CharacterAndWordFeatures, StaticFeatures
from tests import tiny

VOCAB = ["<UNK>", "the", "cat", "sat", "on", "mat"]
UNITS, D = 5, 4
KINDS = {
    "lstm": {"kind": "lstm"},
    "gru": {"kind": "gru", "layers": 2},
    "output mix": {"kind": "lstm", "output_mix": True, "mix": "top"},
    "cnn": {"kind": "cnn"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


filled = partial(tiny.filled, scale=0.3)


def word_vectors(**kwargs):
    return static.encoder(static.Config(len(VOCAB), D, **kwargs))


@pytest.fixture(params=["elmo", "elmo and n-grams", "static"])
def under(request, elmo_config, characters):
    """(an encoder, its extra embeddings, the features of both)."""
    if request.param == "static":
        return word_vectors(), None, StaticFeatures(VOCAB)
    if request.param == "elmo":
        return elmo.encoder(elmo_config), None, characters
    extra_embeddings = word_vectors(buckets=20, trainable=False)
    return elmo.encoder(elmo_config), extra_embeddings, CharacterAndWordFeatures(
        characters, StaticFeatures(VOCAB, ngrams=(3, 6, 20))
    )  # fmt: skip


def make(kind, encoder, extra_embeddings=None, **kwargs):
    return stack.by_name(encoder, units=UNITS, extra_embeddings=extra_embeddings, **(KINDS[kind] | kwargs))


def arrays(outputs):
    return keras.tree.map_structure(np.asarray, outputs)


@pytest.mark.trains
@every_kind
def test_the_contract_of_encoders(kind, under, sentences, rng):
    encoder, extra_embeddings, features = under
    model = filled(make(kind, encoder, extra_embeddings), rng)
    batch = features(sentences, length=8)
    assert set(model.input) == set(batch) == set(features.keys)
    out = arrays(model(batch))
    assert set(out) == {"layers", "sequence", "pooled"} and np.array_equal(out["sequence"], out["layers"][-1])
    width = encoder.output["sequence"].shape[-1]
    read = width + (D if extra_embeddings else 0)
    top = UNITS if kind == "cnn" else 2 * UNITS + (width if kind == "output mix" else 0)
    assert [layer.shape[-1] for layer in out["layers"]] == [read, *[top] * (1 if kind in ("lstm", "output mix") else 2)]
    assert [layer.shape[-1] for layer in model.output["layers"]] == [layer.shape[-1] for layer in out["layers"]]
    real = batch["mask"] == 1
    for layer in model(batch)["layers"]:
        np.testing.assert_array_equal(layer._keras_mask, real)
    for layer in out["layers"]:
        assert not layer[~real].any() and np.abs(layer[real]).max(-1).min() > 0
    for row, text in enumerate(sentences):
        np.testing.assert_allclose(out["pooled"][row], out["sequence"][row][real[row]].max(0), atol=1e-6)
        alone = arrays(model(features([text])))
        for first, second in zip(alone["layers"], out["layers"], strict=True):
            np.testing.assert_allclose(first[0], second[row, real[row]], atol=1e-5)
    # what is under the padding does not matter
    noise = {}
    for key in set(batch) - {"mask"}:
        cells = real.reshape(real.shape + (1,) * (batch[key].ndim - 2))
        noise[key] = np.where(cells, batch[key], rng.integers(0, 6, batch[key].shape)).astype(np.int32)
        assert not np.array_equal(noise[key], batch[key])
    for first, second in zip(keras.tree.flatten(arrays(model(batch | noise))), keras.tree.flatten(out), strict=True):
        np.testing.assert_allclose(first, second, atol=1e-6)
    empty = arrays(model(features([""])))
    assert all(np.isfinite(array).all() for array in keras.tree.flatten(empty)) and not empty["pooled"].any()


@pytest.mark.trains
@every_kind
def test_a_head_is_saved_and_loaded(kind, under, sentences, rng, tmp_path):
    encoder, extra_embeddings, features = under
    model = filled(heads.classify(make(kind, encoder, extra_embeddings), 3), rng)
    batch = features(sentences)
    expected = np.asarray(model(batch)["logits"])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert np.array_equal(np.asarray(loaded(batch)["logits"]), expected)
    model.save_weights(tmp_path / "model.weights.h5")
    for weight in loaded.weights:
        weight.assign(0 * weight)
    loaded.load_weights(tmp_path / "model.weights.h5")
    assert np.array_equal(np.asarray(loaded(batch)["logits"]), expected)


@pytest.mark.trains
@every_kind
@pytest.mark.parametrize("frozen", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_reach_what_trains(kind, under, sentences, rng, frozen):
    encoder, extra_embeddings, features = under
    encoder.trainable = not frozen
    model = filled(make(kind, encoder, extra_embeddings, dropout=0.0), rng)
    names = {weight.path for weight in model.trainable_variables}
    assert bool(names & {weight.path for weight in encoder.weights}) != frozen
    if extra_embeddings:  # its config says trainable=False
        assert not names & {weight.path for weight in extra_embeddings.weights}
    with tf.GradientTape() as tape:
        out = model(features(sentences), training=True)["sequence"]
        loss = tf.reduce_sum(out * rng.normal(size=out.shape))
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    for weight, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 0, weight.path


def test_layers_have_names_of_their_own(elmo_config):
    """As weights are copied by the layer's name, a second model of the same sizes must have the same ones."""

    def named():
        encoder, extra_embeddings = elmo.encoder(elmo_config), word_vectors()
        for kind in KINDS:
            model = heads.classify(make(kind, encoder, extra_embeddings), 2)
            yield {weight.path: weight.shape for weight in model.weights if "seed" not in weight.path}

    for first, second in zip(named(), named(), strict=True):
        assert first == second and len(first) > 15


def test_what_the_first_layer_reads(elmo_config, characters, sentences, rng):
    """The mean of the layers at first, and the word vectors."""
    encoder, extra_embeddings = elmo.encoder(elmo_config), word_vectors()
    features = CharacterAndWordFeatures(characters, StaticFeatures(VOCAB))
    batch = features(sentences)
    below, words = arrays(encoder(characters(sentences))), arrays(extra_embeddings(StaticFeatures(VOCAB)(sentences)))
    model = make("output mix", encoder, extra_embeddings, mix="all")
    model.get_layer("scalar_mix_out").w.assign([5.0, -100.0, -100.0])
    out = arrays(model(batch))
    mean = np.mean(below["layers"], axis=0)
    np.testing.assert_allclose(out["layers"][0], np.concatenate([mean, words["sequence"]], -1), atol=1e-6)
    np.testing.assert_allclose(out["sequence"][..., 2 * UNITS :], below["layers"][0], atol=1e-6)
    top = arrays(make("lstm", encoder, mix="top")(characters(sentences)))
    np.testing.assert_allclose(top["layers"][0], below["sequence"], atol=1e-6)
    trained = arrays(model(batch, training=True))["layers"][0]
    assert 0.3 < (trained[batch["mask"] == 1][:, : mean.shape[-1]] == 0).mean() < 0.7  # dropout on the mix
    np.testing.assert_allclose(trained[..., mean.shape[-1] :], words["sequence"], atol=1e-6)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_numbers_of_the_gru(sentences, rng):
    """Cho et al. 2014, with the reset gate after the product, one row and one step at a time."""
    model = filled(make("gru", word_vectors(), layers=1), rng)
    batch = StaticFeatures(VOCAB)(sentences)
    out = arrays(model(batch))
    weights = {weight.path: np.asarray(weight, np.float64) for weight in model.weights}
    expected = np.zeros(out["sequence"].shape)
    for way, place in (("forward", slice(0, UNITS)), ("backward", slice(UNITS, None))):
        kernel, recurrent, bias = (
            weights[f"rnn_0_{way}/gru_cell/{name}"] for name in ("kernel", "recurrent_kernel", "bias")
        )
        for row, x in enumerate(out["layers"][0]):
            h = np.zeros(UNITS)
            steps = range(batch["mask"][row].sum())
            for t in reversed(steps) if way == "backward" else steps:
                (z, r, new), (z_h, r_h, new_h) = (
                    np.split(part, 3) for part in (x[t] @ kernel + bias[0], h @ recurrent + bias[1])
                )
                z, r = sigmoid(z + z_h), sigmoid(r + r_h)
                h = expected[row, t, place] = z * h + (1 - z) * np.tanh(new + r * new_h)
    np.testing.assert_allclose(out["sequence"], expected, atol=1e-5)


def test_numbers_of_the_convolutions(sentences, rng):
    model = filled(make("cnn", word_vectors(), window=5), rng)
    batch = StaticFeatures(VOCAB)(sentences)
    out = arrays(model(batch))
    weights = {weight.path: np.asarray(weight, np.float64) for weight in model.weights}
    for row, x in enumerate(out["layers"][0]):
        x = x[: batch["mask"][row].sum()] @ weights["cnn_input/kernel"] + weights["cnn_input/bias"]
        for index in range(2):
            wide = np.pad(x, ((2, 2), (0, 0)))
            windows = np.stack([wide[t : t + 5] for t in range(len(x))])  # (T, 5, units)
            more = np.einsum("twd,wde->te", windows, weights[f"cnn_{index}/kernel"]) + weights[f"cnn_{index}/bias"]
            x = x + np.maximum(more, 0)
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
            x = x * weights[f"cnn_{index}_norm/gamma"] + weights[f"cnn_{index}_norm/beta"]
            np.testing.assert_allclose(out["layers"][1 + index][row, : len(x)], x, atol=1e-5)


@pytest.mark.trains
@pytest.mark.parametrize("kind", ["lstm", "gru", "cnn"])
def test_tflite(kind, rng, tmp_path):
    """With built-in operators alone, for one text of 16 tokens."""
    config = static.Config(50, 24)
    model = filled(stack.by_name(static.encoder(config), kind, units=16), rng)

    class Signature(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = [weight.value for weight in model.weights]
            self.outputs = tf.function(lambda inputs: {"sequence": model(inputs, training=False)["sequence"]})

    module = Signature()
    spec = {name: tf.TensorSpec((1, 16), tf.int32, name) for name in model.input}
    tf.saved_model.save(module, tmp_path, signatures={"length_16": module.outputs.get_concrete_function(spec)})
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path), signature_keys=["length_16"])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    for int8 in (False, True):
        converter.optimizations = [tf.lite.Optimize.DEFAULT] if int8 else []
        run = Interpreter(model_content=converter.convert()).get_signature_runner("length_16")
        for length in (16, 9, 1, 0):
            mask = (np.arange(16) < length).astype(np.int32)[None]
            batch = {"word_ids": rng.integers(0, 51, (1, 16)).astype(np.int32), "mask": mask}
            actual, expected = run(**batch)["sequence"], np.asarray(model(batch)["sequence"])
            np.testing.assert_allclose(actual, expected, atol=0.2 if int8 else 1e-4)
            assert not actual[mask == 0].any()


# Runs in a process of its own: reads weights and a batch, writes the outputs.
SCRIPT = """
import sys
import keras
import numpy as np
from keras_ctxrep.models import stack, static

assert keras.backend.backend() == "jax"
folder = sys.argv[1]
batch = dict(np.load(f"{folder}/batch.npz"))
for kind in stack.KINDS:
    model = stack.by_name(static.encoder(static.Config(6, 4)), kind, units=5)
    model.load_weights(f"{folder}/{kind}.weights.h5")
    out = model.predict_on_batch(batch)
    np.savez(f"{folder}/{kind}.npz", sequence=np.asarray(out["sequence"]), pooled=np.asarray(out["pooled"]))
assert "tensorflow" not in sys.modules
"""


@pytest.mark.trains
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed: pip install jax")
def test_jax_gives_what_tensorflow_gives(tmp_path, sentences, rng):
    batch = StaticFeatures(VOCAB)(sentences)
    np.savez(tmp_path / "batch.npz", **batch)
    expected = {}
    for kind in stack.KINDS:
        model = filled(stack.by_name(word_vectors(), kind, units=5), rng)
        model.save_weights(tmp_path / f"{kind}.weights.h5")
        expected[kind] = arrays(model(batch))
    root = Path(__file__).parents[2]
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
    environment["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for kind, arrays_of in expected.items():
        actual = tiny.arrays_of(tmp_path / f"{kind}.npz")
        for key in ("sequence", "pooled"):
            np.testing.assert_allclose(actual[key], arrays_of[key], atol=1e-5, err_msg=f"{kind} {key}")


def test_by_name(elmo_config):
    encoder = word_vectors()
    assert stack.by_name(encoder) is encoder
    names = [stack.by_name(encoder, kind).name for kind in stack.KINDS]
    assert names == ["lstm_stack", "gru_stack", "cnn_stack"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"kind": "rnn"}, "task network 'rnn': choose one of lstm, gru, cnn"),
        ({"kind": "lstm", "layers": 0}, "layers=0, units=256: both are at least 1"),
        ({"kind": "cnn", "units": 0}, "layers=2, units=0: both are at least 1"),
        ({"kind": "gru", "mix": "mean"}, "mix='mean': choose 'all' or 'top'"),
        ({"kind": "cnn", "window": 4}, "window=4: an odd number"),
        ({"kind": "lstm", "extra_embeddings": "itself"}, "static_encoder and static_encoder both read word_ids"),
    ],
)
def test_bad_arguments(kwargs, message):
    if "extra_embeddings" in kwargs:
        kwargs = kwargs | {"extra_embeddings": word_vectors()}
    with pytest.raises(ValueError, match=message):
        stack.by_name(word_vectors(), **kwargs)
    with pytest.raises(ValueError, match="cell='rnn': choose 'lstm' or 'gru'"):
        stack.recurrent(word_vectors(), cell="rnn")
