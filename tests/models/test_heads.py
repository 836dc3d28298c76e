"""Heads over every encoder."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.models import bert, elmo, heads

both_ways = pytest.mark.parametrize("mix", [False, True])


@both_ways
def test_classifier(family, sentences, mix):
    encoder, features = family
    model = heads.classify(encoder, 3, mix)
    assert set(model.output) == {"logits"} and model.output["logits"].shape == (None, 3)
    assert set(model.input) == set(encoder.input)
    logits = model(features(sentences))["logits"]
    assert logits.shape == (4, 3) and logits.dtype == tf.float32
    padded = model(features(sentences, length=12))["logits"]
    np.testing.assert_allclose(padded, logits, atol=1e-5)
    np.testing.assert_allclose(model(features(sentences[:1]))["logits"][0], logits[0], atol=1e-5)


def test_over_the_pooled_output(family, sentences):
    encoder, features = family
    model = heads.classify(encoder, 3)
    kernel, bias = (weight.numpy() for weight in model.get_layer("logits").weights)
    batch = features(sentences)
    np.testing.assert_allclose(model(batch)["logits"], encoder(batch)["pooled"] @ kernel + bias, atol=1e-5)


def test_over_a_mix_of_all_layers(family, sentences, rng):
    encoder, features = family
    model = heads.classify(encoder, 3, mix=True)
    mix = model.get_layer("scalar_mix")
    mix.w.assign([0.3, -0.7, 0.9])
    mix.gamma.assign(1.5)
    batch = features(sentences)
    powers = np.exp([0.3, -0.7, 0.9])
    mixed = 1.5 * np.tensordot(powers / powers.sum(), np.array(encoder(batch)["layers"]), 1)
    kernel, bias = (weight.numpy() for weight in model.get_layer("logits").weights)
    for row, size in enumerate(batch["mask"].sum(1)):
        real = mixed[row, :size]
        expected = np.concatenate([real.mean(0), real.max(0)]) @ kernel + bias
        np.testing.assert_allclose(model(batch)["logits"][row], expected, atol=1e-5)


def test_penalty_on_the_mix(family):
    model = heads.classify(family[0], 2, mix=True, l2=0.1)
    model.get_layer("scalar_mix").w.assign([1.0, 2.0, 0.0])
    assert float(sum(model.losses)) == pytest.approx(0.5)
    assert not heads.classify(family[0], 2, mix=False, l2=0.1).losses


@both_ways
def test_a_frozen_encoder_stays_as_it_is(family, sentences, mix):
    encoder, features = family
    encoder.trainable = False
    model = heads.classify(encoder, 2, mix)
    assert len(model.trainable_weights) == (4 if mix else 2)
    before = [weight.numpy() for weight in encoder.weights]
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(features(sentences), {"logits": np.array([0, 1, 0, 1])}, verbose=0)
    for weight, old in zip(encoder.weights, before, strict=True):
        assert np.array_equal(weight.numpy(), old)


@both_ways
def test_training_the_classifier_trains_the_encoder(family, sentences, mix):
    encoder, features = family
    model = heads.classify(encoder, 2, mix, dropout=0.0)
    before = encoder.get_weights()
    model.compile(keras.optimizers.SGD(0.3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch, labels = features(sentences), {"logits": np.array([0, 1, 0, 1])}
    losses = model.fit(batch, labels, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    moved = [not np.array_equal(one, two) for one, two in zip(before, encoder.get_weights(), strict=True)]
    assert sum(moved) > len(moved) / 2


@both_ways
def test_saved_and_loaded(family, sentences, mix, tmp_path):
    encoder, features = family
    model = heads.classify(encoder, 3, mix, l2=0.1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    batch = features(sentences)
    assert np.array_equal(loaded(batch)["logits"], model(batch)["logits"])


def test_one_class_is_not_enough(family):
    with pytest.raises(ValueError, match="classes=1"):
        heads.classify(family[0], 1)


@pytest.mark.parametrize("keep_markers", [False, True])
def test_mixes(elmo_config, characters, sentences, keep_markers):
    """Two mixes of one pass, normalised over the words alone or with the markers, as each source defines it."""
    encoder = elmo.encoder(elmo_config, keep_markers=keep_markers)
    batch = characters(sentences)
    model = heads.mixes(encoder, count=2, layer_norm=True)
    model.get_layer("scalar_mix_1").w.assign([0.3, -0.7, 1.1])
    out, encoded = model(batch), encoder(batch)
    mask = np.asarray(encoded["mask"] if keep_markers else batch["mask"])
    shares = np.exp([[0, 0, 0], [0.3, -0.7, 1.1]])
    for name, share in zip(("mix_0", "mix_1"), shares / shares.sum(1, keepdims=True), strict=True):
        expected = 0
        for part, layer in zip(share, encoded["layers"], strict=True):
            layer = np.asarray(layer, np.float64)
            real = layer[mask == 1]
            expected = expected + part * (layer - real.mean()) / real.std()
        expected = expected[:, 1:-1] if keep_markers else expected
        np.testing.assert_allclose(out[name], expected * batch["mask"][:, :, None], atol=1e-4)
    assert out["mix_0"].shape[1] == batch["mask"].shape[1]


def test_fixed_mixes_have_nothing_to_train(elmo_config, characters, sentences):
    encoder = elmo.encoder(elmo_config)
    encoder.trainable = False
    model = heads.mixes(encoder, weights=[-9e10, 1, -9e10])
    assert not model.trainable_weights
    batch = characters(sentences)
    np.testing.assert_allclose(model(batch)["mix_0"], encoder(batch)["layers"][1], atol=1e-6)


# ------------------------------------------------------------------------------------------------- tokens and spans


def test_tagger(family, sentences, rng):
    encoder, features = family
    model = heads.tag(encoder, 5, dropout=0.0)
    batch = features(sentences)
    logits, real = np.asarray(model(batch)["logits"]), batch["mask"].astype(bool)
    assert set(model.output) == {"logits"} and logits.shape == (*real.shape, 5) and logits.dtype == np.float32
    kernel, bias = model.get_layer("logits").get_weights()
    model.get_layer("logits").set_weights([kernel, bias + 1])  # a bias would reach masked positions
    logits = np.asarray(model(batch)["logits"])
    expected = np.asarray(encoder(batch)["sequence"]) @ kernel + bias + 1
    np.testing.assert_allclose(logits[real], expected[real], atol=1e-5)
    assert not logits[~real].any() and (~real).any()
    assert not any(layer.name == "pooler" for layer in model.layers)


def test_answerer(family, sentences):
    encoder, features = family
    model = heads.answer(encoder)
    batch = features(sentences)
    outputs, real = model(batch), batch["mask"].astype(bool)
    kernel, bias = model.get_layer("span_logits").get_weights()
    expected = np.asarray(encoder(batch)["sequence"]) @ kernel + bias
    assert set(outputs) == {"start_logits", "end_logits"}
    for column, name in enumerate(("start_logits", "end_logits")):
        found = np.asarray(outputs[name])
        np.testing.assert_allclose(found[real], expected[real][:, column], atol=1e-5)
        assert found.dtype == np.float32 and (found[~real] == -1e4).all()


@pytest.mark.parametrize("head", [lambda encoder: heads.tag(encoder, 3), heads.answer])
def test_what_is_masked_changes_nothing(family, sentences, head):
    encoder, features = family
    model = head(encoder)
    batch = features(sentences)
    length = batch["mask"].shape[1]
    padded = model(features(sentences, length=15))
    for name, array in model(batch).items():
        np.testing.assert_allclose(np.asarray(padded[name])[:, :length], array, atol=1e-5)


@pytest.mark.parametrize("task", ["tag", "answer"])
def test_token_heads_learn_and_are_saved(family, sentences, task, tmp_path, rng):
    encoder, features = family
    model = heads.by_task(encoder, task, 3)
    batch = features(sentences)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if task == "tag":
        targets = {"logits": rng.integers(0, 3, batch["mask"].shape)}
    else:
        targets = {"start_logits": np.array([1, 0, 1, 0]), "end_logits": np.array([2, 1, 1, 1])}
    model.compile(keras.optimizers.Adam(0.05), dict.fromkeys(targets, loss))
    losses = model.fit(batch, targets, epochs=30, batch_size=4, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for name, array in model(batch).items():
        assert np.array_equal(loaded(batch)[name], array)


def test_by_task(family):
    encoder, _ = family
    assert heads.by_task(encoder, "embed") is encoder
    assert heads.by_task(encoder, "classify", 2, mix=True).name == "classifier"
    assert heads.by_task(encoder, "tag", 2, dropout=0.3).get_layer("head_dropout").rate == 0.3
    with pytest.raises(ValueError, match="task 'sing': embed, classify, tag or answer"):
        heads.by_task(encoder, "sing")
    with pytest.raises(ValueError, match="classes=1: a tagger needs at least two"):
        heads.tag(encoder, 1)


def test_no_pooled_output_to_classify_by(bert_config):
    encoder = bert.encoder(replace(bert_config, pooler=False))
    with pytest.raises(ValueError, match=r"no pooled output \(its config has pooler=False\); classify with mix=True"):
        heads.classify(encoder, 2)
    assert heads.classify(encoder, 2, mix=True).name == "classifier"


def test_markers_are_tagged_where_they_are_kept(elmo_config, characters, sentences):
    model = heads.tag(elmo.encoder(elmo_config, keep_markers=True), 3)
    batch = characters(sentences)
    assert model(batch)["logits"].shape[1] == batch["mask"].shape[1] + 2
