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
