"""The embeddings of Keras, of which a step reads the rows it needs: one that reads a whole table that is updated row by
row makes TensorFlow copy it. Their names are Keras' own, since those are in the names of saved weights."""

import keras
from keras import ops


def take_rows(weight, ids):
    """Rows of a weight, without reading the rest of it.

    >>> ops.convert_to_numpy(take_rows(keras.Variable([[1.0], [2.0]]), [1, 1])).tolist()
    [[2.0], [2.0]]
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(getattr(weight, "value", weight), ids)
    return ops.take(weight, ids, axis=0)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Embedding(keras.layers.Embedding):
    """`keras.layers.Embedding`, at a cost that does not grow with the table.

    Call:
        inputs: int32 (...), each at least 0.

    Returns: float32 (..., D).

    >>> Embedding(9, 2)(ops.array([[3, 8, 0]])).shape
    TensorShape([1, 3, 2])
    """

    def call(self, inputs):
        return ops.cast(take_rows(self.embeddings, inputs), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class ReversibleEmbedding(keras.layers.ReversibleEmbedding):
    """`keras.layers.ReversibleEmbedding`, at a cost that does not grow with the table unless it is reversed.

    Call:
        inputs: int32 (...), each at least 0; or with `reverse` float32 (..., D).
        reverse: gives logits over the table.

    Returns: float32 (..., D), or with `reverse` (..., V).

    >>> ReversibleEmbedding(9, 2)(ops.array([[3, 8, 0]])).shape
    TensorShape([1, 3, 2])
    """

    def call(self, inputs, reverse=False):
        if reverse:
            return super().call(inputs, reverse=True)
        return ops.cast(take_rows(self.embeddings, inputs), self.compute_dtype)
