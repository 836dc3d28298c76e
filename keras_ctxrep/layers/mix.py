"""From an encoder's layers to one vector per token."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ctxrep.layers.layer import Layer

__all__ = ["ScalarMix"]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class ScalarMix(Layer):
    """Softmax-weighted sum of an encoder's layers, times gamma.

    Peters et al. 2018, eq. 1, https://arxiv.org/abs/1802.05365. Weights start at zero: a fresh mix is the mean.

    Args:
        l2: coefficient of the L2 penalty on the weights before the softmax, which pulls the mix towards the mean.
        layer_norm: normalise each layer first, by one mean and one variance over all its real positions and
            dimensions, without affine weights. Without sentence markers, as from our encoders, this is the definition
            of https://github.com/allenai/bilm-tf; AllenNLP includes the markers, as `heads.mixes` does over an encoder
            with `keep_markers=True`. In both a sentence's vectors depend on the other sentences of its batch.
        top_only: gamma times the last layer, without weights.
        weights: fixed weights, one per layer, before the softmax; gamma is then fixed to 1.
        epsilon: added to the variance (1e-12 in bilm-tf, 1e-13 in AllenNLP).

    Call:
        layers: N x float32 (B, T, D).
        mask: int32 (B, T); read only when `layer_norm`.

    Returns: float32 (B, T, D), with the Keras mask that the layers carry.

    Raises:
        ValueError: the number of `weights` is not that of the layers, or `layer_norm` without a mask.

    >>> float(ScalarMix()([ops.ones((1, 2, 3)), 3 * ops.ones((1, 2, 3))])[0, 0, 0])
    2.0
    """

    fields = ("l2", "layer_norm", "top_only", "epsilon")

    def __init__(
        self,
        l2: float = 0.0,
        layer_norm: bool = False,
        top_only: bool = False,
        weights: Sequence[float] | None = None,
        epsilon: float = 1e-12,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.l2, self.layer_norm, self.top_only, self.epsilon = l2, layer_norm, top_only, epsilon
        self.fixed = None if weights is None else [float(weight) for weight in weights]

    def compute_mask(self, inputs, previous_mask) -> Any:  # which is the argument `mask`, if that is given
        return getattr(inputs[0], "_keras_mask", None)

    def build(self, input_shape) -> None:
        layers, fixed = len(input_shape), self.fixed
        if fixed is not None and len(fixed) != layers:
            raise ValueError(f"weights={fixed}: there are {layers} layers, and each needs one")
        start = "zeros" if fixed is None else lambda shape, dtype=None: ops.convert_to_tensor(fixed, dtype)
        if not self.top_only:
            self.w = self.add_weight(
                name="w",
                shape=(layers,),
                initializer=start,
                regularizer=keras.regularizers.L2(self.l2) if self.l2 and fixed is None else None,
                trainable=fixed is None,
                autocast=False,
            )
        self.gamma = self.add_weight(name="gamma", shape=(), initializer="ones", trainable=fixed is None)

    def call(self, layers, mask=None) -> Any:
        if self.top_only:
            layers, weights = layers[-1:], [1.0]
        else:
            weights = ops.cast(ops.softmax(self.w), layers[0].dtype)
        if self.layer_norm:
            mask = _first(mask)
            if mask is None:
                raise ValueError(f"{self.name}: layer_norm=True needs the mask: mix(layers, mask=mask)")
            layers = [self._normalise(layer, mask) for layer in layers]
        mixed = layers[0] * weights[0]
        for index, layer in enumerate(layers[1:], 1):
            mixed = mixed + layer * weights[index]
        return self.gamma * mixed

    def _normalise(self, layer, mask):
        x = ops.cast(layer, "float32")
        real = ops.cast(mask, "float32")[:, :, None]  # (B, T, 1)
        count = ops.maximum(ops.sum(real) * x.shape[-1], 1)
        mean = ops.sum(x * real) / count
        variance = ops.sum(ops.square((x - mean) * real)) / count
        return ops.cast((x - mean) / ops.sqrt(variance + self.epsilon), layer.dtype)

    def learned(self) -> tuple[np.ndarray, float]:
        """The weights of the layers, float32 (N,) with a sum of 1, and gamma, of a mix that belongs to a model."""
        *w, gamma = self.get_weights()
        weights = ops.convert_to_numpy(ops.softmax(w[0])) if w else np.eye(len(self.input))[-1]
        return weights.astype(np.float32), float(gamma)

    def compute_output_shape(self, input_shape) -> Any:
        return input_shape[0]

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"weights": self.fixed}


def _first(mask):
    """The mask, of a list the first: Keras fills in those that the layers carry, each None if it carries none."""
    return mask[0] if isinstance(mask, list | tuple) else mask
