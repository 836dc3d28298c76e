"""Which replica of a `tf.distribute.Strategy` a layer or a loss computes for."""

from typing import Any

import keras


def replica() -> tuple[int, Any]:
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
