"""Random initial weights that are not drawn where the weights of a model are set next.

Random numbers are most of what it takes to build a model: 2.7 of 3.0 CPU seconds of a BERT-base on one core.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

_ZEROS: ContextVar[bool] = ContextVar("zeros", default=False)


@contextmanager
def no_random_weights() -> Iterator[None]:
    """Within it `RandomWeights` gives zeros: for models whose weights are all set afterwards.

    >>> with no_random_weights():
    ...     float(RandomWeights("random_normal")((2,))[1])
    0.0
    """
    token = _ZEROS.set(True)
    try:
        yield
    finally:
        _ZEROS.reset(token)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class RandomWeights(keras.initializers.Initializer):
    """An initializer, or zeros within `no_random_weights`.

    Args:
        initializer: of Keras, its name or its config.

    Call:
        shape: of the weight.
        dtype: of the weight.

    Returns: an array of this shape.

    >>> RandomWeights(keras.initializers.TruncatedNormal(stddev=0.02))((2, 3)).shape
    TensorShape([2, 3])
    """

    def __init__(self, initializer: Any):
        self.initializer = keras.initializers.get(initializer)

    def __call__(self, shape, dtype=None) -> Any:
        return ops.zeros(shape, dtype or keras.config.floatx()) if _ZEROS.get() else self.initializer(shape, dtype)

    def get_config(self) -> dict[str, Any]:
        return {"initializer": keras.initializers.serialize(self.initializer)}
