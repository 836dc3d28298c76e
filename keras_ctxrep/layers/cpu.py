"""Whether a graph may use operations that are fast on this machine's CPU and perhaps nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

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
