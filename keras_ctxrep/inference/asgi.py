"""An ASGI application that answers one request at a time, whose hosts and bodies are limited: the base of our servers.

Errors are {"error": MESSAGE}. Neither TensorFlow nor Keras is imported.
"""

import json
import logging
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from keras_ctxrep.checks import printable, read_json
from keras_ctxrep.version import install_hint

__all__ = ["Application", "Limits", "Refused", "json_bytes", "json_object"]

_AROUND = re.compile(r"\{\{.*?\}\}|\[\[.*|\[Op:.*")  # what TensorFlow writes around the reason of an error
_NO_REASON = ("Graph execution error", "Detected at node", "<stack traces")


@dataclass(frozen=True)
class Limits:
    """What a server lets a client have.

    Attributes:
        body: largest body of a request, in bytes.
        bodies: bytes of all bodies that are read or wait to be answered.
        waiting: requests that wait for their turn.
        header_seconds: in which a connection has to send the headers of a request, or to read of its answer.
        body_seconds: in which a body has to be there.
        connections: at the same time.
    """

    body: int = 64 << 20
    bodies: int = 256 << 20
    waiting: int = 64
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    connections: int = 500


class Refused(Exception):
    """A request that gets a status and a message.

    Args:
        status: of HTTP.
        message: the answer is {"error": MESSAGE}.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Application:
    """An ASGI application; one request at a time is answered, as LiteRT needs it, in the order in which they came.

    A subclass says what is answered: `described` to GET, `answering` to requests with a body.

    Args:
        limits: on what clients send (default: `Limits()`).
        hosts: names that a request may have in its header Host, without ports; None: any. A server that this machine
            alone can reach needs them: a web page could give its own name this machine's address, and ask the model.

    Raises:
        ImportError: Starlette is not installed.
    """

    def __init__(self, limits: Limits | None = None, hosts: Collection[str] | None = None):
        try:
            import anyio
            import starlette  # noqa: F401
        except ImportError as error:
            raise ImportError(f"a server needs Starlette and Uvicorn: {install_hint('serve')}: {error}") from None
        self.limits, self.hosts = limits or Limits(), hosts
        self.turn = anyio.Lock()
        self.waiting = 0  # requests that are answered, or wait for their turn
        self.bodies = 0  # bytes that they, and those that are read, hold

    def described(self, path: str) -> tuple[int, bytes]:
        """Status and content of the answer to GET: of "/" a page, else JSON.

        Raises:
            Refused: there is no such path.
        """
        raise Refused(404, f"Malformed request: GET {printable(path)}")

    def answering(self, method: str, path: str) -> Callable[[bytes], dict]:
        """The function from the body of a request, which is read after this, to its answer.

        Args:
            method, path: of the request.

        Raises:
            Refused: there is no such path.
        """
        raise Refused(404, f"Malformed request: {printable(method)} {printable(path)}")

    async def __call__(self, scope: Any, receive: Callable, send: Callable) -> None:
        import anyio
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import Response

        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])  # by which a server knows that there is no lifespan

        async def received() -> dict:
            nonlocal more
            message = await receive()
            more = message.get("more_body", False)
            return message

        request, kind = Request(scope, received), "application/json"
        more = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
        try:
            status, content = await self._answered(request)
            if request.url.path == "/":
                kind = "text/html; charset=utf-8"
        except ClientDisconnect:
            return
        except Refused as error:
            status, content = error.status, json_bytes({"error": str(error)})
        except Exception as error:
            status, content = 500, json_bytes({"error": _unexpected(error)})
        headers = {"Connection": "close"} if more else {}
        response = Response(content, status, headers | ({"Retry-After": "1"} if status == 503 else {}), kind)
        await send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": content, "more_body": True})
        with anyio.move_on_after(1):  # closed at once, a client that still sends would lose the answer
            while more:
                await received()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answered(self, request: Any) -> tuple[int, bytes]:
        """Status and content."""
        from anyio.to_thread import run_sync

        host = _host(request.headers.get("host", ""))
        if host and self.hosts is not None and host not in self.hosts:
            known = ", ".join(self.hosts)
            raise Refused(403, f"Host {printable(host)}: this server is {known}; another name needs --host ADDRESS")
        path = request.url.path
        if request.method in ("GET", "HEAD"):
            return await run_sync(self.described, path)
        answer, body = self.answering(request.method, path), bytearray()
        try:
            await self._read(request, body)
            return await self._in_turn(request, lambda: _reply(answer, body))
        finally:
            self.bodies -= len(body)

    async def _read(self, request: Any, body: bytearray) -> None:
        """Reads a body up to its limits."""
        import anyio

        limits, size = self.limits, request.headers.get("content-length", "0")
        too_long = Refused(413, f"a request of more than {limits.body / 2**20:g} MB")
        if len(size) > 18 or int(size) > limits.body:
            raise too_long
        try:
            with anyio.fail_after(limits.body_seconds):
                async for chunk in request.stream():
                    body += chunk
                    self.bodies += len(chunk)
                    if len(body) > limits.body:
                        raise too_long
                    if self.bodies > limits.bodies:
                        raise Refused(503, "the requests that wait hold too much memory; ask again in a second")
        except TimeoutError:
            raise Refused(408, f"the request was not there in {limits.body_seconds:g} seconds") from None

    async def _in_turn(self, request: Any, reply: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
        """Runs what replies to a request when it is its turn, unless the client has left before."""
        import anyio
        from starlette.requests import ClientDisconnect

        if self.waiting >= self.limits.waiting:
            raise Refused(503, "too many requests wait for their turn; ask again in a second")
        replies = []

        async def stop_when_left() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        self.waiting += 1
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(stop_when_left)
                async with self.turn:
                    replies.append(await anyio.to_thread.run_sync(reply))
                group.cancel_scope.cancel()
        finally:
            self.waiting -= 1
        if not replies:
            raise ClientDisconnect
        return replies[0]


def json_bytes(content: dict) -> bytes:
    """The JSON of an answer.

    >>> json_bytes({"label": "né"}).decode()
    '{"label": "né"}'
    """
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")  # lone surrogates of a request


def json_object(body: bytes) -> dict:
    """The object that a body is.

    Raises:
        Refused: it is not JSON, or no object.
    """
    try:
        request = read_json(body)
    except ValueError as error:
        raise Refused(400, f"JSON Parse error: {printable(error)}") from None
    if not isinstance(request, dict):
        raise Refused(400, "JSON Value: a request is an object")
    return request


def _host(header: str) -> str:
    """The name in a header Host, without the port."""
    host = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
    return host.lower().rstrip(".")


def _reply(answer: Callable[[bytes], dict], body: bytearray) -> tuple[int, bytes]:
    """Status and JSON of an answer of a model."""
    try:
        return 200, json_bytes(answer(bytes(body)))
    except Refused as error:
        status, reason = error.status, str(error)
    except Exception as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
            status, reason = 413, "too much for the memory of this machine; send fewer or shorter texts at once"
        elif type(error) is ValueError or type(error).__module__.startswith("tensorflow"):
            status, reason = 400, _reason(error)
        else:
            status, reason = 500, _unexpected(error)
    return status, json_bytes({"error": reason})


def _reason(error: Exception) -> str:
    """What a model says of its input; of a failed assertion in a graph its message, without the nodes around it."""
    text = str(error)
    if failed := re.search(r"assertion failed: \[(.*?)\]", text):
        return failed[1]
    lines = (_AROUND.sub("", line).strip() for line in text.splitlines())
    reason = next((line for line in lines if line and not line.startswith(_NO_REASON)), "no reason given")
    return printable(f"the model refuses these inputs: {reason}")


def _unexpected(error: Exception) -> str:
    logging.getLogger(__name__).error("an error of the server", exc_info=error)
    return "an error of the server, which has printed it"
