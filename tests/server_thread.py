"""A server of Uvicorn in a thread, for tests that send requests to it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def running(server) -> Iterator[str]:
    """The address of a server, which ends with the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
