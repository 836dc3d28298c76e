"""States that are carried from batch to batch of running text, in a weight with a row for each stream."""

from typing import Any

import keras
from keras import ops

from keras_ctxrep.layers.layer import Layer
from keras_ctxrep.layers.replicas import replica

__all__ = ["CarriedState"]


class StreamLayer(Layer):
    """Base of layers with a weight `state`, float32 (`streams`, S), to which each replica adds its own rows.

    >>> layer = StreamLayer()
    >>> layer.streams = None
    """

    streams: int | None

    def add_state(self, size: int, dtype: str = "float32") -> None:
        """Makes the weight, zeros at first, as at the beginning of a text."""
        self.state = self.add_weight(
            name="state",
            shape=(self.streams, size),
            initializer="zeros",
            dtype=dtype,
            trainable=False,
            autocast=False,
            aggregation="sum",
        )

    def continued(self, rows: Any) -> Any:
        """The states of the streams in this replica's rows."""
        replicas, number = replica()
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            if replicas == 1:
                message = f"{self.name} keeps {self.streams} streams; the batch has more rows"
                fits = tf.debugging.assert_less_equal(rows, self.streams, message)
            else:
                message = f"{self.name} keeps {self.streams} streams; on {replicas} replicas each batch has all of them"
                fits = tf.debugging.assert_equal(replicas * rows, self.streams, message)
            with tf.control_dependencies([fits] if fits is not None else []):
                rows = tf.identity(rows)
        kept = self.state[number * rows : (number + 1) * rows]
        return ops.copy(kept) if keras.backend.backend() == "torch" else kept  # it is a view of what `keep` changes

    def keep(self, end: Any, rows: Any) -> None:
        """Stores this replica's rows; the assignment sums over the replicas, so rows of the others are zero."""
        replicas, number = replica()
        if replicas == 1:
            self.state.assign(ops.concatenate([end, self.state[rows:]], axis=0))
            return
        import tensorflow as tf

        self.state.assign(tf.pad(end, [[number * rows, self.streams - (number + 1) * rows], [0, 0]]))


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class CarriedState(StreamLayer):
    """The state of a whole language model, carried from call to call without its gradient (truncated BPTT).

    It is called twice in a model: first it gives the state that the previous batch ended with, then it takes the one
    that this batch ends with. Row k of a batch continues row k of the previous batch, over all replicas of a
    `tf.distribute.Strategy`; on one replica a smaller batch continues the first rows.

    Args:
        size: S, numbers of a row's state.
        streams: rows that are kept.

    Call:
        x: any tensor (B, ...).
        state: float32 (B, S), the state to keep; None: gives the state that is kept.

    Returns: float32 (B, S); with `state` x.

    >>> layer = CarriedState(2, streams=3)
    >>> _ = layer(ops.zeros((1, 4)), state=ops.ones((1, 2)))
    >>> ops.convert_to_numpy(layer(ops.zeros((2, 4)))).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """

    def __init__(self, size: int, streams: int, **kwargs):
        super().__init__(**kwargs)
        self.size, self.streams = size, streams

    def build(self, input_shape) -> None:
        self.add_state(self.size)

    def call(self, x, state=None) -> Any:
        rows = ops.shape(x)[0]
        if state is None:
            return ops.stop_gradient(self.continued(rows))
        self.keep(ops.stop_gradient(ops.cast(state, "float32")), rows)
        return x

    def compute_output_spec(self, x, state=None) -> Any:
        return keras.KerasTensor((x.shape[0], self.size) if state is None else x.shape, "float32")
