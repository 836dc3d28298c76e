"""The scalar mix."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_ctxrep.layers import ScalarMix


@pytest.fixture
def layers(rng):
    return [rng.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(3)]


def test_a_fresh_mix_is_the_mean(layers):
    np.testing.assert_allclose(ScalarMix()(layers), np.mean(layers, 0), atol=1e-6)


def test_numbers(layers):
    mix = ScalarMix()
    mix(layers)
    mix.w.assign([0.5, -1.0, 2.0])
    mix.gamma.assign(1.7)
    powers = np.exp([0.5, -1.0, 2.0])
    expected = 1.7 * sum(p * layer.astype(np.float64) for p, layer in zip(powers / powers.sum(), layers, strict=True))
    np.testing.assert_allclose(mix(layers), expected, atol=1e-6)
    assert sum(int(np.prod(weight.shape)) for weight in mix.trainable_weights) == 4


def test_one_layer_can_be_chosen(layers):
    mix = ScalarMix()
    mix(layers)
    mix.w.assign([-9e10, 1.0, -9e10])
    np.testing.assert_allclose(mix(layers), layers[1], atol=1e-6)


def test_penalty_is_on_the_weights_before_the_softmax(layers):
    mix = ScalarMix(l2=0.5)
    mix(layers)
    assert float(mix.losses[0]) == 0
    mix.w.assign([1.0, -2.0, 0.0])
    mix.gamma.assign(10.0)
    mix(layers)
    (penalty,) = mix.losses
    assert float(penalty) == pytest.approx(0.5 * 5)
    with tf.GradientTape() as tape:
        penalty = ops.sum(mix.losses)
    np.testing.assert_allclose(tape.gradient(penalty, mix.w.value), [1.0, -2.0, 0.0], atol=1e-6)
    assert not ScalarMix().losses


def normalised(layers, real, epsilon=1e-12):
    """One mean and one biased variance per layer, of the real positions; applied everywhere."""
    layers = [layer.astype(np.float64) for layer in layers]
    return [(layer - layer[real].mean()) / np.sqrt(layer[real].var() + epsilon) for layer in layers]


def test_layer_norm(layers):
    mask = np.array([[1, 1, 0], [1, 0, 0]], np.int32)
    layers = [3 + 2 * layer for layer in layers]
    mix = ScalarMix(layer_norm=True)
    out = mix(layers, mask=mask)
    np.testing.assert_allclose(out, np.mean(normalised(layers, mask == 1), 0), atol=1e-5)
    assert sum(int(np.prod(weight.shape)) for weight in mix.trainable_weights) == 4  # no affine weights
    other = [np.where(mask[:, :, None], layer, 99) for layer in layers]
    np.testing.assert_allclose(mix(other, mask=mask)[mask == 1], out[mask == 1], atol=1e-5)


def test_the_epsilon_of_layer_norm(layers):
    mask = np.ones((2, 3), np.int32)
    out = ScalarMix(layer_norm=True, epsilon=2.0)(layers, mask=mask)
    np.testing.assert_allclose(out, np.mean(normalised(layers, mask == 1, 2.0), 0), atol=1e-5)


def test_layer_norm_of_nothing_but_padding(layers):
    assert np.isfinite(ScalarMix(layer_norm=True)(layers, mask=np.zeros((2, 3), np.int32))).all()


def test_layer_norm_needs_the_mask(layers):
    with pytest.raises(ValueError, match=r"layer_norm=True needs the mask: mix\(layers, mask=mask\)"):
        ScalarMix(layer_norm=True)(layers)


def test_top_only(layers):
    mix = ScalarMix(l2=0.5, top_only=True)
    mix(layers)
    mix.gamma.assign(1.7)
    np.testing.assert_allclose(mix(layers), 1.7 * layers[-1], atol=1e-6)
    assert [weight.name for weight in mix.weights] == [weight.name for weight in mix.trainable_weights] == ["gamma"]
    assert not mix.losses


def test_fixed_weights(layers):
    mix = ScalarMix(l2=0.5, weights=[0.5, -1.0, 2.0])
    powers = np.exp([0.5, -1.0, 2.0])
    expected = sum(p * layer for p, layer in zip(powers / powers.sum(), layers, strict=True))
    np.testing.assert_allclose(mix(layers), expected, atol=1e-6)
    assert not mix.trainable_weights and not mix.losses


def test_fixed_weights_choose_one_layer(layers):
    np.testing.assert_allclose(ScalarMix(weights=[-9e10, 1.0, -9e10])(layers), layers[1], atol=1e-6)


@pytest.mark.parametrize("top_only", [False, True])
def test_each_layer_needs_a_weight(layers, top_only):
    with pytest.raises(ValueError, match=r"weights=\[1\.0, 2\.0\]: there are 3 layers"):
        ScalarMix(weights=[1, 2], top_only=top_only)(layers)


@pytest.mark.parametrize(
    "options", [{}, {"weights": [1.0, 2.0, 3.0]}, {"layer_norm": True, "top_only": True, "epsilon": 1e-3, "l2": 0.1}]
)
def test_config(layers, options):
    mask = np.array([[1, 1, 0], [1, 0, 0]], np.int32)
    first = ScalarMix(**options)
    second = ScalarMix.from_config(first.get_config())
    assert first.get_config() == second.get_config()
    assert {name: first.get_config()[name] for name in options} == options
    np.testing.assert_array_equal(first(layers, mask=mask), second(layers, mask=mask))
