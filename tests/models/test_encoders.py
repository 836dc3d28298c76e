"""The contract of every encoder: its outputs, which depend neither on padding nor on the other rows of the batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.layers import MaskedPooling
from keras_ctxrep.models import stack


def arrays(outputs):
    return keras.tree.map_structure(lambda x: np.asarray(x), outputs)


def test_outputs(family, sentences):
    encoder, features = family
    batch = features(sentences)
    assert set(encoder.input) == set(batch) == set(features.keys)
    out = arrays(encoder(batch))
    assert set(out) == {"layers", "sequence", "pooled"}
    rows, length = batch["mask"].shape
    width = out["sequence"].shape[-1]
    assert len(out["layers"]) == 3 and all(layer.shape == (rows, length, width) for layer in out["layers"])
    assert out["pooled"].shape == (rows, width) and np.array_equal(out["sequence"], out["layers"][-1])
    assert encoder.output["sequence"].shape == (None, None, width)
    for layer in out["layers"]:
        assert not layer[batch["mask"] == 0].any()  # padding is zero
        assert np.abs(layer[batch["mask"] == 1]).max(-1).min() > 0


def test_a_sentence_is_the_same_alone_in_a_batch_and_with_more_padding(family, sentences):
    encoder, features = family
    together = arrays(encoder(features(sentences)))
    padded = arrays(encoder(features(sentences, length=11)))
    predicted = encoder.predict(features(sentences), verbose=0)
    for row, sentence in enumerate(sentences):
        alone = arrays(encoder(features([sentence])))
        size = alone["sequence"].shape[1]
        for other in (together, padded, predicted):
            np.testing.assert_allclose(other["pooled"][row], alone["pooled"][0], atol=1e-5)
            for first, second in zip(alone["layers"], other["layers"], strict=True):
                np.testing.assert_allclose(second[row, :size], first[0], atol=1e-5)


def networks(sequence):
    """What Keras' layers, and ours, make of an encoder's vectors; convolutions alone do not know masks."""
    layers = keras.layers
    return {
        "average": layers.GlobalAveragePooling1D()(sequence),
        "lstm": layers.LSTM(3)(sequence),
        "both ways": layers.Bidirectional(layers.GRU(3))(sequence),
        "maximum": MaskedPooling("max")(sequence),
        "convolution": layers.Conv1D(4, 3, padding="same")(sequence)[:, 0],
    }


@pytest.mark.filterwarnings("ignore:Layer 'conv1d.*does not support masking")
@pytest.mark.parametrize("kind", [None, "lstm", "cnn"])
def test_layers_over_an_encoder_leave_padding_out(family, kind, sentences):
    encoder, features = family
    encoder = stack.by_name(encoder, kind, **({"units": 4, "layers": 2} if kind else {}))
    together = features(sentences, length=11)
    assert all(layer._keras_mask is not None for layer in encoder.output["layers"])
    inputs = {name: keras.Input(x.shape[1:], dtype="int32", name=name) for name, x in encoder.input.items()}
    nested = encoder(inputs)["sequence"]
    for symbols, sequence in ((encoder.input, encoder.output["layers"][1]), (inputs, nested)):
        outputs = networks(sequence)
        if sequence is not nested:  # in a model within a model Keras takes the mask away from the layers after it
            attended = keras.layers.MultiHeadAttention(2, 4)(sequence, sequence)
            outputs["attention"] = keras.layers.GlobalAveragePooling1D()(attended)
        model = keras.Model(symbols, outputs)
        padded = arrays(model(together))
        for row, sentence in enumerate(sentences):
            for name, vector in arrays(model(features([sentence]))).items():
                np.testing.assert_allclose(padded[name][row], vector[0], atol=1e-5, err_msg=name)
    pooled = keras.layers.GlobalAveragePooling1D()(encoder(together)["sequence"])
    np.testing.assert_allclose(pooled, padded["average"], atol=1e-5)


def test_values_under_the_padding_do_not_matter(family, sentences, rng):
    encoder, features = family
    batch = features(sentences)
    before = arrays(encoder(batch))
    other = dict(batch)
    for key in set(batch) - {"mask"}:
        real = batch["mask"].astype(bool).reshape(batch["mask"].shape + (1,) * (batch[key].ndim - 2))
        noise = rng.integers(0, 2 if key == "segment_ids" else 10, batch[key].shape)
        other[key] = np.where(real, batch[key], noise).astype(np.int32)
        assert not np.array_equal(other[key], batch[key])
    for first, second in zip(keras.tree.flatten(before), keras.tree.flatten(arrays(encoder(other))), strict=True):
        np.testing.assert_allclose(second, first, atol=1e-6)


def test_a_text_without_words_is_finite(family):
    encoder, features = family
    out = arrays(encoder(features(["", "the cat"])))
    assert all(np.isfinite(array).all() for array in keras.tree.flatten(out))


def test_context_reaches_every_layer_but_the_first(family):
    encoder, features = family
    cat, dog = (arrays(encoder(features([text])))["layers"] for text in ("the cat sat", "the dog sat"))
    last = cat[0].shape[1] - ("segment_ids" in features.keys) - 1  # the last word
    np.testing.assert_allclose(cat[0][0, last], dog[0][0, last], atol=1e-6)
    for first, second in zip(cat[1:], dog[1:], strict=True):
        assert np.abs(first[0, last] - second[0, last]).max() > 1e-4


def test_saved_and_loaded(family, sentences, tmp_path):
    encoder, features = family
    encoder.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    encoder.save_weights(tmp_path / "model.weights.h5")
    batch = features(sentences)
    expected = keras.tree.flatten(arrays(encoder(batch)))
    for wanted, value in zip(expected, keras.tree.flatten(arrays(loaded(batch))), strict=True):
        assert np.array_equal(wanted, value)
    for weight in loaded.weights:
        weight.assign(weight * 0)
    loaded.load_weights(tmp_path / "model.weights.h5")
    for wanted, value in zip(expected, keras.tree.flatten(arrays(loaded(batch))), strict=True):
        assert np.array_equal(wanted, value)


@pytest.mark.parametrize("output", ["sequence", "pooled"])
def test_gradients_reach_every_weight(family, sentences, output, rng):
    encoder, features = family
    batch = features(["the cat"], ["a dog"]) if features.pairs else features(["the cat sat on the mat"])
    factors = None
    with tf.GradientTape() as tape:
        out = encoder(batch, training=True)[output]
        factors = rng.normal(size=out.shape)
        loss = tf.reduce_sum(out * factors)
    gradients = tape.gradient(loss, [weight.value for weight in encoder.trainable_variables])
    for weight, gradient in zip(encoder.trainable_variables, gradients, strict=True):
        if output == "sequence" and "pooler" in weight.path:
            assert gradient is None
        else:
            assert np.abs(tf.convert_to_tensor(gradient)).max() > 0, weight.path
