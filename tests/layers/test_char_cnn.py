"""The character convolutions against a restatement in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_ctxrep.layers import CharCNN
from keras_ctxrep.text.features import CharacterFeatures

FILTERS = [(1, 4), (2, 3), (3, 5), (5, 2)]


def restated(layer, char_ids):
    """https://github.com/allenai/bilm-tf, model.py: convolution, max over time, activation, highways, projection."""
    weights = {weight.name: ops.convert_to_numpy(weight.value).astype(np.float64) for weight in layer.weights}
    activation = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[layer.activation]
    table = np.concatenate([np.zeros((1, layer.embedding_dim)), weights["char_embed"]])  # row 0: no word
    out = np.zeros((*char_ids.shape[:2], layer.projection or sum(n for _, n in layer.filters)))
    for place in np.ndindex(char_ids.shape[:2]):
        if not char_ids[place].any():
            continue
        letters = table[char_ids[place]]
        maxima = []
        for index, (width, number) in enumerate(layer.filters):
            kernel, bias = weights[f"W_cnn_{index}"], weights[f"b_cnn_{index}"]
            at = [
                [(letters[i : i + width] * kernel[:, :, n]).sum() + bias[n] for n in range(number)]
                for i in range(len(letters) - width + 1)
            ]
            maxima.append(activation(np.max(at, axis=0)))
        x = np.concatenate(maxima)
        for index in range(layer.highways):
            carry, transform = (
                x @ weights[f"high_{index}_W_{name}"] + weights[f"high_{index}_b_{name}"]
                for name in ("carry", "transform")
            )
            gate = 1 / (1 + np.exp(-carry))
            x = gate * np.maximum(transform, 0) + (1 - gate) * x
        out[place] = x if layer.projection is None else x @ weights["W_proj"] + weights["b_proj"]
    return out


def filled(layer, rng, char_ids):
    layer(char_ids)
    for weight in layer.weights:
        weight.assign(rng.normal(scale=0.5, size=weight.shape))
    return layer


def of_unknown_size(layer, width):
    """The layer in a graph that knows neither batch nor length, where each distinct word is computed once."""
    return tf.function(layer, input_signature=[tf.TensorSpec((None, None, width), tf.int32)], autograph=False)


def batch(width, *sentences):
    """Character ids of sentences that are split at spaces."""
    return CharacterFeatures(max_characters=width)([sentence.split(" ") for sentence in sentences])["char_ids"]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("highways", "projection"), [(2, 6), (1, None), (0, 6), (0, None)])
def test_numbers(rng, activation, highways, projection):
    layer = CharCNN(FILTERS, 5, highways, projection, activation)
    char_ids = batch(9, "a wonderful <S> é", " </S>")
    filled(layer, rng, char_ids)
    out = ops.convert_to_numpy(layer(char_ids))
    np.testing.assert_allclose(out, restated(layer, char_ids), atol=1e-5)
    assert not out[1, 2:].any() and np.abs(out[1, 0]).max() > 0.01  # no word, and a word without letters


@pytest.mark.parametrize(
    "char_ids",
    [
        batch(9, "a wonderful <S> é", " </S>"),
        batch(30, "a bb a", "bb", "a"),  # words that come again; most columns are padding
        batch(30, "é"),
        batch(30, "a" * 28, "b" * 23, "c" * 22),  # as long as possible, and around one filter's width less
        batch(7, "abcde ab"),
        np.zeros((2, 3, 9), np.int32),
        np.pad(batch(30, "a"), ((0, 1), (0, 4), (0, 0))),
    ],
)
def test_graphs_of_unknown_size_give_the_same(rng, char_ids):
    layer = filled(CharCNN(FILTERS, 5, 1, 6, "tanh"), rng, char_ids)
    factors = rng.normal(size=(*char_ids.shape[:2], 6))
    results = []
    for run in (layer, of_unknown_size(layer, char_ids.shape[2])):
        with tf.GradientTape() as tape:
            out = run(tf.constant(char_ids))
            loss = tf.reduce_sum(out * factors)
        weights = [weight.value for weight in layer.weights]
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, weights)]
        results.append((out.numpy(), gradients))
    (out, gradients), (other, others) = results
    np.testing.assert_allclose(out, restated(layer, char_ids), atol=1e-5)
    np.testing.assert_allclose(other, out, atol=1e-6)
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(other, gradient, atol=1e-5)


def test_a_filter_as_wide_as_a_word(rng):
    layer = CharCNN([(6, 3)], 4, highways=0)
    char_ids = rng.integers(1, 262, (1, 2, 6)).astype(np.int32)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(char_ids)), restated(layer, char_ids), atol=1e-5)
    with pytest.raises(ValueError, match=r"filters=\[\(6, 3\)\]: the widest needs words of as many characters, not 5"):
        CharCNN([(6, 3)])(char_ids[:, :, :5])


def test_word_padding_is_read_like_any_character(rng):
    layer = CharCNN([(1, 8)], 4, highways=0, activation="tanh")
    first, second = (layer(np.array([[row]], np.int32)) for row in ([259, 5, 260, 261], [259, 5, 260, 5]))
    assert np.abs(ops.convert_to_numpy(first - second)).max() > 1e-3


def test_initial_weights_as_published():
    layer = CharCNN([(1, 64), (2, 64)], 16, highways=1, projection=32)
    layer(np.ones((1, 1, 6), np.int32))
    weights = {weight.name: ops.convert_to_numpy(weight.value) for weight in layer.weights}
    assert weights["char_embed"].shape == (261, 16) and 0.95 < np.abs(weights["char_embed"]).max() <= 1
    assert np.abs(weights["W_cnn_1"]).max() <= 0.05 and weights["W_cnn_1"].shape == (2, 16, 64)
    assert (weights["high_0_b_carry"] == -2).all() and not weights["high_0_b_transform"].any()
    assert weights["high_0_W_carry"].std() == pytest.approx(128**-0.5, rel=0.1)
    assert weights["W_proj"].std() == pytest.approx(128**-0.5, rel=0.1)
