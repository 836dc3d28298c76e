"""Standard error silenced while TensorFlow or LiteRT starts, and when LiteRT ends."""

import atexit
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from keras_ctxrep.version import install_hint

_redirecting = threading.RLock()  # two threads that redirect at once could leave standard error silent


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Silences standard error while TensorFlow or LiteRT starts: both log before their log level is read."""
    with _redirecting:
        try:
            stderr = os.dup(2)
        except OSError:  # closed, as for a daemon
            yield
            return
        if sys.stderr is not None:
            sys.stderr.flush()
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 2)
            try:
                yield
            finally:
                if sys.stderr is not None:
                    sys.stderr.flush()
                os.dup2(stderr, 2)
                os.close(stderr)


@contextmanager
def missing(packages: Iterable[str]) -> Iterator[None]:
    """Has the first import of a package fail, within it.

    >>> with missing(["antigravity"]):
    ...     import antigravity
    Traceback (most recent call last):
    ModuleNotFoundError: import of antigravity halted; None in sys.modules
    """
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # pyright: ignore[reportCallIssue, reportArgumentType]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


# JAX, for which TensorFlow has a converter to .tflite, takes it a second of CPU time where it is installed
_unused: list[str] = ["jax"]


def leave_out_unused() -> None:
    """Has TensorFlow, when it starts, find none of the packages that it imports for uses that no command has.

    They are 270 MB and three seconds where they are installed. A script may use them with Keras, but for JAX.
    """
    _unused[:] = "jax", "matplotlib", "pandas", "sklearn"


@cache
def start_tensorflow() -> None:
    """Imports TensorFlow and looks for its devices, without the lines of absl, oneDNN and CUDA on standard error.

    Afterwards TensorFlow logs warnings and no INFO, unless TF_CPP_MIN_LOG_LEVEL is set or it has been imported already.
    It uses oneDNN, which is off by default on some CPUs where it is twice as fast, unless TF_ENABLE_ONEDNN_OPTS is set.

    Raises:
        ImportError: TensorFlow is not installed; the message says what to install.
    """
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with quiet_stderr(), missing(_unused), _log_level("1"):
        try:
            import tensorflow
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            raise ImportError(f"tensorflow is not installed: {install_hint('tf')}") from None
        tensorflow.config.list_physical_devices()


def start_backend() -> None:
    """Starts TensorFlow, as `start_tensorflow`, unless KERAS_BACKEND names another backend or Keras has one already."""
    keras = sys.modules.get("keras")
    name = keras.backend.backend() if keras is not None else os.environ.get("KERAS_BACKEND", "tensorflow")
    if name == "tensorflow":
        start_tensorflow()


@contextmanager
def _log_level(level: str) -> Iterator[None]:
    """TF_CPP_MIN_LOG_LEVEL where it is not set, for the libraries that read it once, as they start."""
    name = "TF_CPP_MIN_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = level
    try:
        yield
    finally:
        del os.environ[name]


@cache
def end_silently() -> None:
    """Drops what C++ libraries will write to standard error after Python has ended, as LiteRT does."""

    def silence() -> None:
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    atexit.register(silence)
