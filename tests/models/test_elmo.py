"""The biLM: its layers, its directions, its published sizes."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.models import elmo


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("elmo_2x1024_128_2048cnn_1xhighway", "13.6"),
        ("elmo_2x2048_256_2048cnn_1xhighway", "28.0"),
        ("elmo_2x4096_512_2048cnn_2xhighway", "93.6"),
    ],
)
def test_published_numbers_of_parameters(name, millions, shapes_only):
    assert f"{elmo.encoder(elmo.SIZES[name]).count_params() / 1e6:.1f}" == millions


@pytest.mark.parametrize("name", elmo.SIZES)
def test_names_of_sizes(name):
    config = elmo.SIZES[name]
    filters = sum(number for _, number in config.filters)
    assert name == (
        f"elmo_{config.layers}x{config.cells}_{config.projection}_{filters}cnn_{config.highways}xhighway"
    )  # fmt: skip


def streams(model, batch):
    """{layer: float32 (B, T+2, P)} of the token layer and every LSTM."""
    names = ["char_cnn", "forward_0", "backward_0", "forward_1", "backward_1"]
    inside = keras.Model(model.input, {name: model.get_layer(name).output for name in names})
    return {name: np.asarray(array) for name, array in inside(batch).items()}


@pytest.mark.parametrize("residual", [True, False])
def test_layers(elmo_config, characters, sentences, rng, residual):
    model = elmo.encoder(replace(elmo_config, residual=residual))
    batch = characters(sentences)
    found = streams(model, batch)
    f0, b0, f1, b1 = (found[f"{way}_{index}"] for index in (0, 1) for way in ("forward", "backward"))
    expected = [(found["char_cnn"],) * 2, (f0, b0), (f1 + f0, b1 + b0) if residual else (f1, b1)]
    out = model(batch)
    for layer, pair in zip(out["layers"], expected, strict=True):
        words = np.concatenate(pair, -1)[:, 1:-1] * batch["mask"][:, :, None]
        np.testing.assert_allclose(layer, words, atol=1e-6)
    mean = np.asarray(out["sequence"]).sum(1) / batch["mask"].sum(1, keepdims=True)
    np.testing.assert_allclose(out["pooled"], mean, atol=1e-6)


def test_the_lowest_layer_is_the_token_layer_twice(elmo_config, characters, rng):
    model = elmo.encoder(elmo_config)
    lowest = np.asarray(model(characters(["cat dog cat", "dog"]))["layers"][0])
    assert np.array_equal(lowest[..., :6], lowest[..., 6:])
    np.testing.assert_allclose(lowest[0, 0], lowest[0, 2], atol=1e-6)
    np.testing.assert_allclose(lowest[0, 1], lowest[1, 0], atol=1e-6)
    assert np.abs(lowest[0, 0] - lowest[0, 1]).max() > 1e-3


def test_directions_do_not_mix(elmo_config, characters, rng):
    """A word's forward half knows nothing of what comes after it, its backward half nothing of what comes before."""
    model = elmo.encoder(elmo_config)
    one, two = (model(characters([text]))["layers"] for text in ("a b c d e", "a b X d e"))
    for left, right in zip(one[1:], two[1:], strict=True):
        moved = np.abs(left - right)[0] > 1e-6  # (T, 2 P)
        assert moved[:, :6].any(1).tolist() == [False, False, True, True, True]
        assert moved[:, 6:].any(1).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("place", range(5))
def test_no_logit_sees_its_own_word(elmo_config, characters, rng, place):
    model = elmo.language_model(replace(elmo_config, dropout=0.0), 9)
    words = list("abcde")
    changed = [*words[:place], "X", *words[place + 1 :]]
    one, two = (model(characters([sentence, ["a"] * 7])) for sentence in (words, changed))
    moved = {key: (np.abs(one[key] - two[key])[0, :6] > 1e-7).any(1).tolist() for key in one}
    # forward logits: of a b c d e </S>; backward logits: of <S> a b c d e
    assert moved["forward_logits"] == [index > place for index in range(6)]
    assert moved["backward_logits"] == [index <= place for index in range(6)]


def test_logits_of_a_language_model(elmo_config, characters, sentences, rng):
    model = elmo.language_model(elmo_config, 9)
    out = model(characters(sentences))
    assert {key: value.shape for key, value in out.items()} == dict.fromkeys(
        ("forward_logits", "backward_logits"), (4, 7, 9)
    )
    softmax = model.get_layer("softmax")
    assert [tuple(weight.shape) for weight in softmax.weights] == [(6, 9), (9,)]  # one for both directions
    encoder = elmo.encoder(elmo_config)
    assert model.count_params() == encoder.count_params() + 7 * 9
    top = streams(model, characters(sentences))
    states = (top["forward_1"] + top["forward_0"])[:, :-1], (top["backward_1"] + top["backward_0"])[:, 1:]
    for key, state in zip(("forward_logits", "backward_logits"), states, strict=True):
        np.testing.assert_allclose(out[key], state @ softmax.kernel.numpy() + softmax.bias.numpy(), atol=1e-5)


def test_the_encoder_takes_the_weights_of_the_language_model(elmo_config, characters, sentences, rng):
    model, encoder = elmo.language_model(elmo_config, 9), elmo.encoder(elmo_config)
    for weight in encoder.weights:
        owner, _, name = weight.path.rpartition("/")
        weight.assign(next(w for w in model.get_layer(owner).weights if w.name == name))
    batch = characters(sentences)
    for name, array in streams(model, batch).items():
        np.testing.assert_allclose(array, streams(encoder, batch)[name], atol=1e-6)


def test_dropout_only_in_training(elmo_config, characters, sentences, rng):
    model = elmo.language_model(replace(elmo_config, dropout=0.5), 9)
    batch = characters(sentences)
    one, two, three = (model(batch, training=way)["forward_logits"] for way in (False, False, True))
    assert np.array_equal(one, two) and np.abs(one - three).max() > 1e-3
    names = {layer.name for layer in model.layers if isinstance(layer, keras.layers.Dropout)}
    assert names == {f"{way}_{place}_dropout" for way in ("forward", "backward") for place in ("0", "1", "top")}
    assert not [layer for layer in elmo.encoder(elmo_config).layers if isinstance(layer, keras.layers.Dropout)]


def test_without_projection(elmo_config, characters, sentences, rng):
    model = elmo.encoder(replace(elmo_config, projection=None, cells=7))
    assert model(characters(sentences))["sequence"].shape == (4, 6, 14)
    assert not [weight for weight in model.weights if weight.name == "projection_kernel"]
    filters = elmo.encoder(replace(elmo_config, projection=None, cells=14))  # as wide as the filters
    assert not [weight for weight in filters.weights if weight.name == "W_proj"]


def test_mixed_precision(elmo_config, characters, sentences, mixed_precision):
    out = elmo.language_model(elmo_config, 9)(characters(sentences))
    assert all(logits.dtype == tf.float32 and np.isfinite(logits).all() for logits in out.values())
    out = elmo.encoder(elmo_config)(characters(sentences))
    assert out["sequence"].dtype == tf.bfloat16
