"""A server over HTTP that answers whatever a test says, byte for byte: cut, garbled, slow or without an end."""

import itertools
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

ESCAPES = "\x1b]0;pwned\x07\x1b[2J\u202e\x9b31m"
Answer = bytes | Iterable[bytes]  # the whole answer, headers too


def http(body: bytes = b"", status: str = "200 OK", length: object = None, **headers: object) -> bytes:
    """An answer of HTTP; `length` is what it says of its length, "" for nothing, None for the truth."""
    headers = {"Content-Length": len(body) if length is None else length} | headers
    lines = [
        f"HTTP/1.1 {status}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items() if value != ""),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def drip(begin: bytes, rest: bytes = b"", pause: float = 0.05) -> Iterator[bytes]:
    """One byte at a time, for ever, after a beginning that comes at once."""
    yield begin
    for number in itertools.count():
        time.sleep(pause)
        yield rest[number : number + 1] or b" "


def endless(begin: bytes, block: bytes = b" " * 65536) -> Iterator[bytes]:
    """At full speed, for ever."""
    return itertools.chain([begin], itertools.repeat(block))


@contextmanager
def server(answer: Callable[..., Answer], headers: bool = False) -> Iterator[str]:
    """The address of a server.

    Args:
        answer: function of the request's target, path and query, to what is sent.
        headers: `answer` is given the request's headers too, with names in lower case.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            try:
                target = self.rfile.readline().decode("latin-1").split(" ")[1]
                lines = (line.decode("latin-1").partition(":") for line in iter(self.rfile.readline, b"\r\n"))
                asked = {name.lower(): value.strip() for name, _, value in lines}
                self.rfile.read(int(asked.get("content-length", 0)))
                content = answer(target, asked) if headers else answer(target)
                for part in [content] if isinstance(content, bytes) else content:
                    self.wfile.write(part)
            except (OSError, IndexError):  # the client has enough
                pass

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
