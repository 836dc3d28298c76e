"""BERT: its embeddings, its pooled output, its pretraining heads, its published sizes."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.inference import keras_engine
from keras_ctxrep.layers.transformer import gelu_tanh
from keras_ctxrep.models import bert
from keras_ctxrep.models.model import copy_weights


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("bert_2_128_2", "4.4"),
        ("bert_10_256_4", "15.9"),
        ("bert_6_768_12", "67.0"),
        ("bert_4_256_4", "11.2"),
        ("bert_4_512_8", "28.8"),
        ("bert_8_512_8", "41.4"),
        ("bert_12_768_12", "109.5"),
        ("bert_24_1024_16", "335.1"),
    ],
)
def test_published_numbers_of_parameters(name, millions, shapes_only):
    assert f"{bert.encoder(bert.SIZES[name]).count_params() / 1e6:.1f}" == millions


@pytest.mark.parametrize("name", bert.SIZES)
def test_names_of_sizes(name):
    config = bert.SIZES[name]
    assert config.heads in (2, config.width // 64)
    assert name == f"bert_{config.layers}_{config.width}_{config.heads}" and config.intermediate == 4 * config.width


def test_sizes():
    names = list(bert.SIZES)
    assert names[0] == "bert_2_64_2" and len(names) == len(set(names)) == 26
    assert {"bert_2_128_2", "bert_12_512_8", "bert_12_768_12", "bert_24_1024_16"} < set(names)
    assert replace(bert.SIZES["bert_12_768_12"]) == bert.Config()


def values(model, name):
    """The arrays of a layer's weights."""
    return [weight.numpy() for weight in model.get_layer(name).weights]


def test_the_lowest_layer_is_the_sum_of_three_embeddings(bert_config, pieces, sentences, rng):
    model = bert.encoder(bert_config)
    for weight in model.get_layer("embedding_norm").weights:
        weight.assign(rng.normal(size=weight.shape))
    batch = pieces(sentences, ["a dog", None, "the mat", None])
    (token,), (segment,), (position,) = (
        values(model, f"{name}_embedding") for name in ("token", "segment", "position")
    )  # fmt: skip
    x = token[batch["token_ids"]] + segment[batch["segment_ids"]] + position[: batch["mask"].shape[1]]
    x = x.astype(np.float64)
    gamma, beta = values(model, "embedding_norm")
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * gamma + beta
    np.testing.assert_allclose(model(batch)["layers"][0], x * batch["mask"][:, :, None], atol=1e-5)


def test_pooled_is_a_dense_layer_over_the_first_piece(bert_config, pieces, sentences, rng):
    model = bert.encoder(bert_config)
    out = model(pieces(sentences))
    kernel, bias = values(model, "pooler")
    np.testing.assert_allclose(out["pooled"], np.tanh(out["sequence"][:, 0] @ kernel + bias), atol=1e-6)


def test_segments_and_positions_are_read(bert_config, pieces, rng):
    model = bert.encoder(bert_config)
    first, second = pieces(["the cat"], ["cat"]), pieces(["the cat"], ["cat"])
    second["segment_ids"] = 0 * second["segment_ids"]
    assert np.abs(model(first)["pooled"] - model(second)["pooled"]).max() > 1e-4
    swapped = pieces(["cat the"], ["cat"])
    assert np.abs(model(first)["pooled"] - model(swapped)["pooled"]).max() > 1e-4


def test_an_input_longer_than_the_positions(bert_config, pieces):
    model = bert.encoder(replace(bert_config, max_positions=4))
    assert model(pieces(["the cat"]))["sequence"].shape == (1, 4, 8)
    batch = pieces(["the cat sat"])
    with pytest.raises(ValueError, match="an input of 5 tokens; this model has positions for 4"):
        model(batch)
    for run in (
        keras_engine.runner(model),
        lambda batch: model.predict(batch, verbose=0),
    ):  # the length is not known before
        assert run(pieces(["the cat"]))["sequence"].shape == (1, 4, 8)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[5\] \[the most is\] \[4\]"):
            run(batch)


def test_sinusoidal_positions_of_any_length(bert_config, pieces):
    model = bert.encoder(replace(bert_config, max_positions=4, positions="sinusoidal"))
    assert not model.get_layer("position_embedding").weights
    text = " ".join(["the cat sat"] * 5)
    assert np.isfinite(keras_engine.runner(model)(pieces([text]))["sequence"]).all()
    assert np.abs(model(pieces(["the cat"]))["pooled"] - model(pieces(["cat the"]))["pooled"]).max() > 1e-4


def test_attention_on_request(bert_config, pieces, sentences, rng):
    plain, model = bert.encoder(bert_config), bert.encoder(bert_config, attention=True)
    copy_weights(plain, model)
    assert [weight.path for weight in model.weights] == [weight.path for weight in plain.weights]
    batch = pieces(sentences)
    expected, out = plain(batch), model(batch)
    for name in expected:
        for first, second in zip(tf.nest.flatten(expected[name]), tf.nest.flatten(out[name]), strict=True):
            assert np.array_equal(first, second)
    attention = out["attention"]
    assert [layer.shape for layer in attention] == [(4, 2, 8, 8)] * 2
    real = batch["mask"].astype(np.float32)
    for layer in attention:
        np.testing.assert_allclose(np.sum(layer, axis=-1), np.stack([real, real], axis=1), atol=1e-6)
        assert not np.asarray(layer)[np.broadcast_to(real[:, None, None, :] == 0, layer.shape)].any()


def test_activation_and_dropouts_reach_every_layer(bert_config, pieces, sentences):
    config = replace(bert_config, activation="gelu_tanh", dropout=0.2, attention_dropout=0.3)
    model = bert.pretrainer(config)
    assert model.get_layer("mlm_transform").activation is gelu_tanh
    assert model.get_layer("embedding_dropout").rate == 0.2
    for index in range(config.layers):
        result = model.get_layer(f"layer_{index}").get_config()
        assert (result["activation"], result["dropout"], result["attention_dropout"]) == ("gelu_tanh", 0.2, 0.3)
    exact = bert.pretrainer(bert_config)
    copy_weights(model, exact)
    batch = pretraining_batch(pieces, sentences, [[1], [2], [1], [0]])
    assert 1e-6 < np.abs(model(batch)["mlm_logits"] - exact(batch)["mlm_logits"]).max() < 0.01


def test_without_pooler(bert_config, pieces, sentences):
    config = replace(bert_config, pooler=False)
    encoder, whole = bert.encoder(config), bert.encoder(bert_config)
    copy_weights(whole, encoder)
    assert set(encoder.output) == {"layers", "sequence"}
    assert encoder.count_params() == whole.count_params() - 8 * 8 - 8
    batch = pieces(sentences)
    assert np.array_equal(encoder(batch)["sequence"], whole(batch)["sequence"])
    assert set(bert.pretrainer(config).output) == {"mlm_logits"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "swish"}, "activation='swish': one of gelu, gelu_tanh, relu"),
        ({"positions": "rotary"}, "positions='rotary': one of learned, sinusoidal"),
        ({"heads": 3}, "heads=3 does not divide width=8"),
        ({"dropout": 1.0}, "dropout=1.0: must be at least 0 and below 1"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1: must be at least 0 and below 1"),
        ({"layers": 0}, "layers=0: must be at least 1"),
        ({"layers": 100_000}, "layers=100000: must be at least 1 and at most 256"),
        ({"width": "8"}, "width='8': must be a whole number"),
        ({"pooler": "yes"}, "pooler='yes': must be true or false"),
    ],
)
def test_invalid_configs(bert_config, change, message):
    with pytest.raises(ValueError, match=message):
        replace(bert_config, **change)


def pretraining_batch(pieces, sentences, positions):
    return pieces(sentences) | {"mlm_positions": np.array(positions, np.int32)}


def test_logits_only_at_the_given_positions(bert_config, pieces, sentences, rng):
    model = bert.pretrainer(bert_config)
    every = pretraining_batch(pieces, sentences, [list(range(8))] * 4)
    full = model(every)
    assert full["mlm_logits"].shape == (4, 8, 40) and full["nsp_logits"].shape == (4, 2)
    some = model(every | {"mlm_positions": np.array([[1, 6], [2, 2], [0, 3], [3, 1]], np.int32)})
    assert some["mlm_logits"].shape == (4, 2, 40)
    for row, positions in enumerate([[1, 6], [2, 2], [0, 3], [3, 1]]):
        np.testing.assert_allclose(some["mlm_logits"][row], full["mlm_logits"].numpy()[row, positions], atol=1e-5)


def test_the_kernel_of_the_masked_language_model_is_the_token_embedding(bert_config, pieces, sentences, rng):
    model = bert.pretrainer(bert_config)
    table = model.get_layer("token_embedding").embeddings
    assert [weight is table for weight in model.weights if tuple(weight.shape) == (40, 8)] == [True]
    extra = 8 * 8 + 8 + 2 * 8 + 40 + 2 * 8 + 2  # transform, norm, bias, next sentence
    assert model.count_params() == bert.encoder(bert_config).count_params() + extra
    batch = pretraining_batch(pieces, sentences, [[1], [2], [1], [0]])
    inside = keras.Model(model.input, model.get_layer("mlm_norm").output)
    bias = rng.normal(size=40)
    model.get_layer("mlm_bias").bias.assign(bias)
    np.testing.assert_allclose(model(batch)["mlm_logits"], inside(batch) @ table.numpy().T + bias, atol=1e-5)


def test_padding_does_not_reach_the_logits(bert_config, pieces, sentences, rng):
    model = bert.pretrainer(bert_config)
    batch = pretraining_batch(pieces, sentences, [[1], [2], [1], [0]])
    wider = pieces(sentences, length=15) | {"mlm_positions": batch["mlm_positions"]}
    wider["token_ids"] = np.where(wider["mask"] == 1, wider["token_ids"], 9)
    first, second = model(batch), model(wider)
    for key in first:
        np.testing.assert_allclose(first[key], second[key], atol=1e-5)


def test_dropout_only_in_training(bert_config, pieces, sentences, rng):
    model = bert.encoder(replace(bert_config, dropout=0.5))
    batch = pieces(sentences)
    first, second, third = (model(batch, training=way)["pooled"] for way in (False, False, True))
    assert np.array_equal(first, second) and np.abs(first - third).max() > 1e-3


def test_initial_weights_as_published(rng):
    model = bert.encoder(replace(bert.SIZES["bert_2_64_2"], vocabulary_size=500, initializer_range=0.02))
    for weight in model.weights:
        array = weight.numpy()
        if weight.name in ("bias", "beta"):
            assert not array.any()
        elif weight.name == "gamma":
            assert (array == 1).all()
        else:
            assert np.abs(array).max() <= 0.0401, weight.path  # truncated at two standard deviations
            if array.size > 5000:
                assert array.std() == pytest.approx(0.0176, rel=0.05), weight.path


def test_narrow_models_start_larger():
    ranges = {config.width: config.initializer_range for config in bert.SIZES.values()}
    assert ranges[768] == ranges[1024] == bert.Config().initializer_range == 0.02  # as published
    for width, spread in ranges.items():
        assert spread >= 0.02 and (width > 768 or spread * width**0.5 == pytest.approx(0.02 * 768**0.5))


def test_mixed_precision(bert_config, pieces, sentences, mixed_precision):
    out = bert.pretrainer(bert_config)(pretraining_batch(pieces, sentences, [[1], [2], [1], [0]]))
    assert all(logits.dtype == tf.float32 and np.isfinite(logits).all() for logits in out.values())
    assert bert.encoder(bert_config)(pieces(sentences))["sequence"].dtype == tf.bfloat16
