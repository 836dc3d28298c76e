"""Dropout that differs between the replicas of a `tf.distribute.Strategy`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

__all__ = ["Dropout"]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Dropout(keras.layers.Dropout):
    """Keras' dropout, with a mask of its own on each replica.

    Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html. `keras.layers.Dropout` draws the same mask
    on every replica, since the state of its generator is mirrored; here the replica's number is added to the seed. On
    one device both are the same.

    Args:
        rate: fraction of the values that are set to 0 in training; the others are divided by 1 - `rate`.
        kwargs: as of `keras.layers.Dropout`.

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
        return keras.random.dropout(inputs, self.rate, self.noise_shape, _Given(seed))

    def next_seed(self) -> Any:
        """The seed of the next mask on this replica, uint32 (2,); None where nothing is dropped."""
        if self.rate == 0:
            return None
        seed = self.seed_generator.next()
        return seed + ops.cast(ops.stack([replica()[1], 0]), seed.dtype)

    @contextmanager
    def seeded(self, seeds) -> Iterator[None]:
        """Within it, calls take these seeds instead of new ones."""
        self._given = iter(seeds)
        try:
            yield
        finally:
            self._given = None


class _Given(keras.random.SeedGenerator):
    """One seed as a generator, which `keras.random` needs."""

    def __init__(self, seed):
        self.seed = seed  # nothing else: it has no state

    def next(self, ordered=True):
        return self.seed


def replica():
    """(number of replicas, index of the current one).

    >>> replica()
    (1, 0)
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        if context is not None:
            return context.num_replicas_in_sync, context.replica_id_in_sync_group
    return 1, 0
