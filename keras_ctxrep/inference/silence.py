"""Standard error silenced while TensorFlow or LiteRT starts, and when LiteRT ends."""

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

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


@cache
def start_tensorflow() -> None:
    """Imports TensorFlow and looks for its devices, without the lines of absl, oneDNN and CUDA on standard error."""
    with quiet_stderr():
        import tensorflow

        tensorflow.config.list_physical_devices()


def end_silently() -> None:
    """Drops what C++ libraries will write to standard error after Python has ended, as LiteRT does."""

    def silence() -> None:
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    atexit.register(silence)
