"""Commands of `ctxrep` whose batches are counted, and which are stopped or ended by a signal after so many of them.

    python interrupted.py LOG ARGUMENT ...    runs one command; LOG.batches gets a byte for each batch
    python interrupted.py < requests

Each line of standard input is a JSON object, and so is each answer, {"process", "status", "batches"}: the exit status,
negative for a signal, null if the command is stopped, and the batches that it has trained on.

{"argv", "log", "number", "after"} starts a command: its arguments, the file that gets what it prints, and the signal
that it sends itself when Keras has ended so many batches (0: none). {"process", "log"} lets one go on that is stopped.

Every command is a fork of this process, which has imported TensorFlow, and used nothing of it.
"""

import gc
import json
import os
import signal
import sys
from contextlib import suppress

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"

import keras
import tensorflow  # noqa: F401

import keras_ctxrep.recipes  # noqa: F401
from keras_ctxrep.cli import main

with suppress(ImportError):
    import matplotlib.figure  # noqa: F401  # which a run draws with


def count_batches(log: str, number: int, after: int) -> None:
    """Has Keras write a byte into LOG.batches for every batch, and then send this process a signal after some."""
    counter, count = os.open(f"{log}.batches", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 0
    ended = keras.callbacks.CallbackList.on_train_batch_end

    def end(self, *args, **kwargs):
        nonlocal count
        count += os.write(counter, b".")
        if number and count == after:
            os.kill(os.getpid(), number)
        return ended(self, *args, **kwargs)

    keras.callbacks.CallbackList.on_train_batch_end = end


def start(argv: list[str], log: str, number: int, after: int) -> int:
    """The process of a command."""
    if process := os.fork():
        return process
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
    for stream, path in ((0, os.devnull), (1, log), (2, log)):
        os.dup2(os.open(path, (os.O_WRONLY | os.O_CREAT | os.O_APPEND) if stream else os.O_RDONLY), stream)
    count_batches(log, number, after)
    sys.exit(main.main(argv))


def serve() -> None:
    """Answers requests until there are no more."""
    gc.freeze()  # so that the collector does not look at what was imported
    for line in sys.stdin:
        request = json.loads(line)
        if process := request.get("process"):
            os.kill(process, signal.SIGCONT)
        else:
            process = start(**request)
        ended = os.waitpid(process, os.WUNTRACED)[1]
        status = None if os.WIFSTOPPED(ended) else os.waitstatus_to_exitcode(ended)
        batches = os.path.getsize(f"{request['log']}.batches")
        print(json.dumps({"process": process, "status": status, "batches": batches}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        count_batches(sys.argv[1], 0, 0)
        sys.exit(main.main(sys.argv[2:]))
    serve()
