"""Dropout by 16 random bits a value."""

import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.layers import Dropout


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_rate(dtype, rate):
    """A tenth, not 13 of 128, the numbers that a bfloat16 has; the kept ones are divided by what is kept."""
    x = tf.ones((3001, 999), dtype)  # an odd number of values
    y = tf.cast(Dropout(rate, seed=1, dtype=dtype)(x, training=True), "float32").numpy()
    deviation = np.sqrt(rate * (1 - rate) / y.size)
    assert abs((y == 0).mean() - rate) < 5 * deviation + 2**-17
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-5 if dtype == "float32" else 2**-8)


def test_neighbours_are_independent():
    """Two values share a number of 32 bits."""
    y = np.asarray(Dropout(0.5, seed=1)(tf.ones((1000, 1000)), training=True)) > 0
    for first, second in ((y[:, ::2], y[:, 1::2]), (y[:-1], y[1:])):
        assert abs((first == second).mean() - 0.5) < 5 * 0.5 / np.sqrt(first.size)


def test_the_gradient_has_the_mask():
    layer, x = Dropout(0.3, seed=1), tf.Variable(tf.ones((7, 5)))
    with tf.GradientTape() as tape:
        y = layer(x, training=True)
    np.testing.assert_array_equal(tape.gradient(y, x), y)


def test_each_call_has_a_mask_of_its_own():
    layer, x = Dropout(0.5, seed=1), tf.ones((40, 40))
    masks = [np.asarray(layer(x, training=True)) for _ in range(2)]
    assert (masks[0] != masks[1]).mean() == pytest.approx(0.5, abs=0.1)
    again = np.asarray(Dropout(0.5, seed=1)(x, training=True))
    np.testing.assert_array_equal(again, masks[0])


def test_the_ends_of_the_range():
    x = tf.ones((100, 100))
    assert not np.any(Dropout(1.0)(x, training=True))
    assert np.all(Dropout(1e-6)(x, training=True) == x)
