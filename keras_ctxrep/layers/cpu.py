"""Whether a graph may use what is fast on this machine's CPU and perhaps nowhere else; functions compiled by XLA."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import keras

_here = ContextVar("here", default=False)


@contextmanager
def on_this_machine() -> Iterator[None]:
    """Within this context, traced graphs may use operations that are fast, or exact, only on this machine's CPU.

    Training always uses them. An inference graph may be exported, so it uses them only within this context.

    >>> with on_this_machine():
    ...     isinstance(one_dnn(), bool)
    True
    """
    token = _here.set(True)
    try:
        yield
    finally:
        _here.reset(token)


def one_dnn(training: bool | None = False) -> bool:
    """Whether what is traced now is not exported and runs on a CPU for which TensorFlow has oneDNN.

    Args:
        training: it is a training step.

    >>> one_dnn()
    False
    """
    return keras.backend.backend() == "tensorflow" and bool(training or _here.get()) and _has_one_dnn()


@cache
def _has_one_dnn():
    """It depends on the CPU and on TF_ENABLE_ONEDNN_OPTS."""
    import tensorflow as tf

    try:
        from tensorflow.python.util import _pywrap_util_port
    except ImportError:  # not public
        return False
    return _pywrap_util_port.IsMklEnabled() and not tf.config.list_physical_devices("GPU")


def compiles(training: bool | None) -> bool:
    """Whether what is traced now is a training step on a CPU for which XLA compiles.

    Args:
        training: it is a training step.

    >>> compiles(training=False)
    False
    """
    return keras.backend.backend() == "tensorflow" and bool(training) and _has_xla()


@cache
def _has_xla():
    """TensorFlow for Windows has no XLA."""
    import tensorflow as tf

    if any(device.device_type != "CPU" for device in tf.config.list_physical_devices()):
        return False
    with tf.init_scope():
        try:
            tf.function(lambda x: x + 1.0, jit_compile=True)(0.0)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
            return False
    return True


@cache
def compiled(function: Callable) -> Callable:
    """An elementwise function of a tensor, and its gradient, as one loop each, which XLA compiles for each shape.

    TensorFlow makes a pass over the memory for each operation: GELU and its gradient have fourteen. The gradient is
    calculated from the input again. Half precision is calculated in float32.

    Args:
        function: of a tensor to one of the same shape, of TensorFlow's operations or `keras.ops`.

    >>> float(compiled(keras.ops.square)(keras.ops.ones((2,)))[0])
    1.0
    """
    import tensorflow as tf

    def exact(x):
        return tf.cast(function(tf.cast(x, tf.float32) if x.dtype.size == 2 else x), x.dtype)

    @tf.function(autograph=False, jit_compile=True, reduce_retracing=True)
    def gradient(x, upstream) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = exact(x)
        return tape.gradient(y, x, upstream)

    value = tf.function(exact, autograph=False, jit_compile=True, reduce_retracing=True)
    return tf.custom_gradient(lambda x: (value(x), lambda upstream: gradient(x, upstream)))
