"""Dropout that differs between the replicas of a `tf.distribute.Strategy`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from keras_ctxrep.layers.replicas import replica

__all__ = ["Dropout"]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Dropout(keras.layers.Dropout):
    """Keras' dropout, with a mask of its own on each replica, and on TensorFlow in half of the time.

    Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html. `keras.layers.Dropout` draws the same mask
    on every replica, since the state of its generator is mirrored; here the replica's number is added to the seed. On
    TensorFlow a value has 16 random bits instead of a float of its own dtype, which in bfloat16 would be one of 128
    numbers. On other backends, and with a `noise_shape`, the mask on one device is that of Keras.

    Args:
        rate: fraction of the values that are set to 0 in training; the others are divided by 1 - `rate`. On TensorFlow
            it is rounded to a multiple of 1 / 65,536.
        kwargs: as in `keras.layers.Dropout`.

    Call:
        inputs: any float tensor.
        training: whether values are dropped.

    Returns: as `inputs`.

    >>> float(ops.sum(Dropout(0.5)(ops.ones((2, 3)), training=False)))
    6.0
    """

    _given = None

    def call(self, inputs, training=False) -> Any:
        if not training or self.rate == 0:
            return inputs
        seed = self.next_seed() if self._given is None else next(self._given)
        if keras.backend.backend() == "tensorflow" and self.noise_shape is None and self.rate < 1:
            return _drop(inputs, self.rate, seed)
        return keras.random.dropout(inputs, self.rate, self.noise_shape, _Given(seed))

    def next_seed(self) -> Any:
        """The seed of the next mask on this replica, uint32 (2,); None where nothing is dropped."""
        if self.rate == 0:
            return None
        seed = self.seed_generator.next()
        return seed + ops.cast(ops.stack([replica()[1], 0]), seed.dtype)

    @contextmanager
    def seeded(self, seeds: Iterable) -> Iterator[None]:
        """Within it, calls take these seeds instead of new ones."""
        self._given = iter(seeds)
        try:
            yield
        finally:
            self._given = None


class _Given(keras.random.SeedGenerator):
    """One seed as a generator, which `keras.random` needs."""

    _initial_seed = 0  # else PyTorch takes its own generator

    def __init__(self, seed):
        self.seed = seed  # nothing else: it has no state

    def next(self, ordered=True):
        return self.seed


def _drop(inputs, rate, seed):
    """Dropout on TensorFlow, two values for each number of 32 bits; one product in each direction."""
    import tensorflow as tf

    count, dropped = tf.size(inputs), min(round(rate * 65536), 65535)
    whole: Any = None  # numbers of all bits, which the type of the function does not allow for
    numbers = tf.random.stateless_uniform([(count + 1) // 2], tf.cast(seed, tf.int32), whole, whole, tf.uint32)
    draws = tf.reshape(tf.bitcast(numbers, tf.int16), [-1])[:count]  # from -32768; uint16 is not compared on GPUs
    kept = tf.cast(tf.reshape(draws, tf.shape(inputs)) >= dropped - 32768, inputs.dtype)
    return inputs * (kept * tf.cast(65536 / (65536 - dropped), inputs.dtype))
