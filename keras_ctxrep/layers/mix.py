"""From an encoder's layers to one vector per token."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class ScalarMix(keras.layers.Layer):
    """Softmax-weighted sum of an encoder's layers, times gamma.

    Peters et al. 2018, eq. 1, https://arxiv.org/abs/1802.05365. Weights start at zero: a fresh mix is the mean.

    Args:
        l2: coefficient of the L2 penalty on the weights before the softmax, which pulls towards the mean.

    Call:
        layers: N x float32 (B, T, D).

    Returns: float32 (B, T, D).

    >>> float(ScalarMix()([ops.ones((1, 2, 3)), 3 * ops.ones((1, 2, 3))])[0, 0, 0])
    2.0
    """

    def __init__(self, l2=0.0, **kwargs):
        super().__init__(**kwargs)
        self.l2 = l2

    def build(self, input_shape):
        penalty = keras.regularizers.L2(self.l2) if self.l2 else None
        self.w = self.add_weight(name="w", shape=(len(input_shape),), initializer="zeros", regularizer=penalty)
        self.gamma = self.add_weight(name="gamma", shape=(), initializer="ones")

    def call(self, layers):
        shares = ops.softmax(self.w)
        mixed = layers[0] * shares[0]
        for index, layer in enumerate(layers[1:], 1):
            mixed = mixed + layer * shares[index]
        return self.gamma * mixed

    def compute_output_shape(self, input_shape):
        return input_shape[0]

    def get_config(self):
        return super().get_config() | {"l2": self.l2}
