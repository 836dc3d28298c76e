"""TF Serving's REST interface over a model's signatures, as an ASGI application: for a desk, and for tests of clients.

https://www.tensorflow.org/tfx/serving/api_rest: predict in the row and the column format, classify, regress, metadata
and status; errors as {"error": MESSAGE}. Neither TensorFlow nor Keras is imported. It answers one request at a time,
and is no production server: that is TF Serving itself.
"""

import base64
import binascii
import html
import json
import logging
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from string import Template
from typing import Any

import numpy as np

from keras_ctxrep.checks import printable, read_json
from keras_ctxrep.text.artifacts import SIGNATURE
from keras_ctxrep.version import install_hint

__all__ = ["Limits", "Served", "Versions", "application"]

_PAGE = Path(__file__).with_suffix(".html")
_ROUTE = re.compile(r"/v1/models/([^/:]+)(?:/versions/([0-9]{1,18})|/labels/([^/:]+))?(?:/(metadata)|:(\w+))?")
_KINDS = {"string": object, "int32": np.int32, "int64": np.int64, "float32": np.float32, "float64": np.float64}
_KINDS |= {"bool": np.bool_}
_TYPES = {"string": "DT_STRING", "int32": "DT_INT32", "int64": "DT_INT64", "float32": "DT_FLOAT"}
_TYPES |= {"float64": "DT_DOUBLE", "bool": "DT_BOOL"}
_METHODS = {"classify": "tensorflow/serving/classify", "regress": "tensorflow/serving/regress"}
_LOADING, _AVAILABLE, _END = "LOADING", "AVAILABLE", "END"  # of TF Serving's ModelVersionStatus
_LOADING_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="1"><title>$name</title>
<p style="font: 17px system-ui, sans-serif; margin: 2.5rem">$name is loading; this page shows it when it is ready.</p>
"""
_AROUND = re.compile(r"\{\{.*?\}\}|\[\[.*|\[Op:.*")  # what TensorFlow writes around the reason of an error
_NO_REASON = ("Graph execution error", "Detected at node", "<stack traces")


@dataclass(frozen=True)
class Served:
    """A version of a model to serve.

    Attributes:
        name: on the server.
        version: a number.
        signatures: name -> {"inputs", "outputs"}: name -> {"dtype", "shape"}, -1 for any size.
        run: from the name of a signature and its inputs, strings as bytes in arrays of objects, to its outputs.
        title: the artifact, for the page.
    """

    name: str
    version: int
    signatures: Mapping[str, Mapping[str, Mapping[str, dict]]]
    run: Callable[[str, dict[str, np.ndarray]], Mapping[str, np.ndarray]]
    title: str = ""

    def warm_up(self) -> None:
        """Runs the default signature once: the first request to a graph takes tens of times as long as the next."""
        inputs = {}
        for name, info in self.signatures[SIGNATURE]["inputs"].items():
            array = np.ones([abs(size) for size in info["shape"]], _KINDS[info["dtype"]])
            if info["dtype"] == "string":
                array[:] = b"warm up"
            elif name == "marks":
                array[:] = 0, 4  # a word of it
            inputs[name] = array
        self.run(SIGNATURE, inputs)


class Versions:
    """The version of a model that a server answers with, and the states of all that it has had.

    Another thread may replace the version while requests are answered: each is answered by one version as a whole.

    Args:
        name: of the model on the server.

    Attributes:
        served: the version that answers; None until one is loaded.
        states: version -> its state, by TF Serving's names, and what was wrong with it, or "".
    """

    def __init__(self, name: str):
        self.name = name
        self.served: Served | None = None
        self.states: dict[int, tuple[str, str]] = {}

    def load(self, version: int, open_version: Callable[[], Served]) -> Served:
        """Replaces the version that answers by another one, which has to answer a text before.

        Raises:
            Exception: of opening and of the text; the version that answers goes on.
        """
        self._tell(version, _LOADING)
        try:
            served = open_version()
            served.warm_up()
        except Exception as error:
            self._tell(version, _END, printable(error))
            raise
        self.answer_with(served)
        return served

    def answer_with(self, served: Served) -> None:
        """Answers all requests from now on with a version."""
        old, self.served = self.served, served
        ended = {old.version: (_END, "")} if old else {}
        self.states = self.states | ended | {served.version: (_AVAILABLE, "")}

    def _tell(self, version: int, state: str, message: str = "") -> None:
        if self.served is None or self.served.version != version:  # else the version answers meanwhile
            self.states = self.states | {version: (state, message)}


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


class _Refused(Exception):
    """A request that gets a status and a message."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def application(served: Served | Versions, limits: Limits | None = None, hosts: Collection[str] | None = None) -> Any:
    """The ASGI application of a model, by Starlette.

    Args:
        served: the model; of `Versions` requests get 503 until there is one that answers.
        limits: on what clients send (default: `Limits()`).
        hosts: names that a request may have in its header Host, without ports; None: any. A server that this machine
            alone can reach needs them: a web page could give its own name this machine's address, and ask the model.

    Raises:
        ImportError: Starlette is not installed.
    """
    try:
        import anyio  # noqa: F401  comes with Starlette
        import starlette  # noqa: F401
    except ImportError as error:
        raise ImportError(f"a server needs Starlette and Uvicorn: {install_hint('serve')}: {error}") from None
    if isinstance(served, Versions):
        return _Application(served, limits or Limits(), hosts)
    versions = Versions(served.name)
    versions.answer_with(served)
    return _Application(versions, limits or Limits(), hosts)


class _Application:
    """An ASGI application; one request at a time is answered, as LiteRT needs it, in the order in which they came."""

    def __init__(self, versions: Versions, limits: Limits, hosts: Collection[str] | None):
        import anyio

        self.versions, self.limits, self.hosts = versions, limits, hosts
        self.turn = anyio.Lock()
        self.waiting = 0  # requests that are answered, or wait for their turn
        self.bodies = 0  # bytes that they, and those that are read, hold

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
        except _Refused as error:
            status, content = error.status, _json({"error": str(error)})
        except Exception as error:
            status, content = 500, _json({"error": _unexpected(error)})
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
            raise _Refused(403, f"Host {printable(host)}: this server is {known}; another name needs --host ADDRESS")
        path, versions = request.url.path, self.versions
        if request.method in ("GET", "HEAD"):
            return await run_sync(_described, versions, path)
        served, verb = _ask(versions, request.method, path)
        body = bytearray()
        try:
            await self._read(request, body)
            return await self._in_turn(request, lambda: _reply(served, verb, body))
        finally:
            self.bodies -= len(body)

    async def _read(self, request: Any, body: bytearray) -> None:
        """Reads a body up to its limits."""
        import anyio

        limits, size = self.limits, request.headers.get("content-length", "0")
        too_long = _Refused(413, f"a request of more than {limits.body / 2**20:g} MB")
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
                        raise _Refused(503, "the requests that wait hold too much memory; ask again in a second")
        except TimeoutError:
            raise _Refused(408, f"the request was not there in {limits.body_seconds:g} seconds") from None

    async def _in_turn(self, request: Any, reply: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
        """Runs what replies to a request when it is its turn, unless the client has left before."""
        import anyio
        from starlette.requests import ClientDisconnect

        if self.waiting >= self.limits.waiting:
            raise _Refused(503, "too many requests wait for their turn; ask again in a second")
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


def _json(content: dict) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")  # lone surrogates of a request


def _host(header: str) -> str:
    """The name in a header Host, without the port."""
    host = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
    return host.lower().rstrip(".")


def _reply(served: Served, verb: str, body: bytearray) -> tuple[int, bytes]:
    """Status and JSON of an answer of a model."""
    try:
        return 200, _json(_answer(served, verb, body))
    except _Refused as error:
        status, reason = error.status, str(error)
    except Exception as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
            status, reason = 413, "too much for the memory of this machine; send fewer or shorter texts at once"
        elif type(error) is ValueError or type(error).__module__.startswith("tensorflow"):
            status, reason = 400, _reason(error)
        else:
            status, reason = 500, _unexpected(error)
    return status, _json({"error": reason})


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


def _ready(versions: Versions) -> Served:
    if versions.served is None:
        raise _Refused(503, f"loading: {versions.name} is not ready; ask again in a second")
    return versions.served


def _route(versions: Versions, method: str, path: str) -> tuple[int | None, bool, str | None]:
    """Version, whether it is of the metadata, and verb of a path, whose model, version and label are there."""
    match = _ROUTE.fullmatch(path)
    if match is None:
        raise _Refused(404, f"Malformed request: {printable(method)} {printable(path)}")
    name, number, label, metadata, verb = match.groups()
    version = None if number is None else int(number)
    if name != versions.name or (version is not None and version not in versions.states):
        raise _not_found(versions, name, version)
    if label is not None:
        raise _Refused(404, f"Unrecognized servable version label: {printable(label)}; this server has no labels")
    return version, bool(metadata), verb


def _version(versions: Versions, version: int | None) -> Served:
    """The version that answers, if it is the one that is asked for."""
    served = _ready(versions)
    if version not in (None, served.version):
        raise _not_found(versions, served.name, version)
    return served


def _not_found(versions: Versions, name: str, version: int | None) -> _Refused:
    wanted = f"Latest({printable(name)})" if version is None else f"Specific({printable(name)}, {version})"
    known = f"{versions.name}, {versions.served.version if versions.served else 'which is loading'}"
    return _Refused(404, f"Servable not found for request: {wanted}; this server has {known}")


def _described(versions: Versions, path: str) -> tuple[int, bytes]:
    """The answer to GET: the page, whether the server is there and ready, a model's status or metadata."""
    if path == "/":
        served = versions.served
        return (
            (200, _page(served))
            if served
            else (503, Template(_LOADING_PAGE).substitute(name=html.escape(versions.name)).encode())
        )
    if path == "/healthz":
        return 200, _json({"status": "ok"})
    if path == "/readyz":
        _ready(versions)
        return 200, _json({"status": "ready"})
    version, metadata, verb = _route(versions, "GET", path)
    if verb:
        raise _Refused(404, f"Malformed request: GET {printable(path)}")
    if metadata:
        return 200, _json(_metadata(_version(versions, version)))
    status = [
        {
            "version": str(number),
            "state": state,
            "status": {"error_code": "UNKNOWN" if message else "OK", "error_message": message},
        }
        for number, (state, message) in sorted(versions.states.items(), reverse=True)
        if version in (None, number)
    ]
    return 200, _json({"model_version_status": status})


def _ask(versions: Versions, method: str, path: str) -> tuple[Served, str]:
    """The version that is to answer a request with a body, and what of it is asked for."""
    version, metadata, verb = _route(versions, method, path)
    if method != "POST" or metadata or verb not in ("predict", "classify", "regress"):
        raise _Refused(404, f"Malformed request: {printable(method)} {printable(path)}")
    return _version(versions, version), verb


def _answer(served: Served, verb: str, body: bytearray) -> dict:
    try:
        request = read_json(bytes(body))
    except ValueError as error:
        raise _Refused(400, f"JSON Parse error: {printable(error)}") from None
    if not isinstance(request, dict):
        raise _Refused(400, "JSON Value: a request is an object")
    return _predict(served, request) if verb == "predict" else _of_examples(served, request, verb)


def _metadata(served: Served) -> dict:
    def tensors(signature: str, infos: Mapping[str, dict]) -> dict:
        return {
            name: {
                "dtype": _TYPES[info["dtype"]],
                "tensor_shape": {"dim": [{"size": str(n), "name": ""} for n in info["shape"]], "unknown_rank": False},
                "name": f"{signature}_{name}:0",
            }
            for name, info in infos.items()
        }

    definitions = {
        name: {part: tensors(name, signature[part]) for part in ("inputs", "outputs")}
        | {"method_name": _METHODS.get(name, "tensorflow/serving/predict")}
        for name, signature in served.signatures.items()
    }
    spec = {"name": served.name, "signature_name": "", "version": str(served.version)}
    return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": definitions}}}


def _signature(served: Served, name: Any) -> Mapping[str, Mapping[str, dict]]:
    if not isinstance(name, str):
        raise _Refused(400, 'JSON Value: "signature_name" is a string')
    if name not in served.signatures:
        known = ", ".join(served.signatures)
        raise _Refused(404, f'Serving signature key "{printable(name)}" not found; this model has {known}')
    return served.signatures[name]


def _predict(served: Served, request: dict) -> dict:
    name = request.get("signature_name", SIGNATURE)
    inputs = _signature(served, name)["inputs"]
    if ("instances" in request) == ("inputs" in request):
        raise _Refused(400, 'JSON Value: not formatted correctly for a request: give "instances" or "inputs"')
    rows = "instances" in request
    columns = _columns(request["instances"], inputs) if rows else request["inputs"]
    if not isinstance(columns, dict):
        columns = {next(iter(inputs)): columns}
    if columns.keys() != inputs.keys():
        given, needed = printable(", ".join(sorted(columns)) or "none"), ", ".join(sorted(inputs))
        raise _Refused(400, f"the signature {name} has the inputs {needed}, and the request has {given}")
    batch = {key: _array(key, columns[key], info) for key, info in inputs.items()}
    outputs = {key: _plain(key, np.asarray(value).tolist()) for key, value in served.run(name, batch).items()}
    if not rows:
        return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
    if len(outputs) == 1:
        return {"predictions": next(iter(outputs.values()))}
    return {"predictions": [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]}


def _columns(rows: Any, inputs: Mapping[str, dict]) -> dict[str, list]:
    """The values of each input from rows, each an object, or the value of the only input."""
    if not isinstance(rows, list) or not rows:
        raise _Refused(400, 'JSON Value: "instances" is a list of at least one row')
    named = [isinstance(row, dict) and row.keys() != {"b64"} for row in rows]
    if not any(named):
        if len(inputs) > 1:
            raise _Refused(400, f"the inputs {', '.join(sorted(inputs))} are needed, by their names")
        return {next(iter(inputs)): rows}
    if not all(named) or any(row.keys() != rows[0].keys() for row in rows):
        raise _Refused(400, 'JSON Value: all rows of "instances" need the same names')
    return {name: [row[name] for row in rows] for name in rows[0]}


def _array(name: str, values: Any, info: dict) -> np.ndarray:
    """An input from its JSON."""
    sizes, flat = [], [values]
    while flat and len(sizes) <= len(info["shape"]) and any(isinstance(part, list) for part in flat):
        if len({len(part) if isinstance(part, list) else None for part in flat}) > 1:
            raise _Refused(400, f"{name}: rows of different shapes cannot be in one request")
        sizes.append(len(flat[0]))
        flat = [item for part in flat for item in part]
    if len(sizes) != len(info["shape"]) or any(n not in (-1, m) for n, m in zip(info["shape"], sizes, strict=True)):
        raise _Refused(400, f"{name}: of shape {sizes}, where {info['shape']} is needed")
    array = np.empty(sizes, _KINDS[info["dtype"]])
    array.reshape(-1)[:] = [_value(name, item, info["dtype"]) for item in flat]
    return array


def _value(name: str, value: Any, kind: str) -> Any:
    """A value of an input from its JSON."""
    if kind == "string":
        if isinstance(value, dict) and value.keys() == {"b64"}:
            try:
                return base64.b64decode(value["b64"], validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise _Refused(400, f"{name}: {short(value)} is not base64") from None
        if isinstance(value, str):
            return value.encode("utf-8", "replace")
    elif kind == "bool":
        if isinstance(value, bool):
            return value
    elif kind.startswith("int"):
        if type(value) is int and np.iinfo(kind).min <= value <= np.iinfo(kind).max:
            return value
    elif type(value) in (int, float) and abs(value) <= float(np.finfo(kind).max):  # NaN is not
        return value
    raise _Refused(400, f"{name}: {short(value)} is no {kind}")


def _plain(name: str, value: Any) -> Any:
    """JSON of an output: strings are UTF-8, or base64 of an output whose name ends in _bytes."""
    if isinstance(value, list):
        return [_plain(name, part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise _Refused(400, f"{name}: of these inputs the model makes {value}, which JSON has no number for")
    if not isinstance(value, bytes):
        return value
    return {"b64": base64.b64encode(value).decode()} if name.endswith("_bytes") else value.decode("utf-8", "replace")


def _of_examples(served: Served, request: dict, verb: str) -> dict:
    """Classify and Regress: serialized tf.Examples of the features that a request has."""
    name = request.get("signature_name", verb if verb in served.signatures else SIGNATURE)
    if [*_signature(served, name)["inputs"]] != ["inputs"]:
        raise _Refused(400, f'the signature {name} takes no tf.Examples: this model has no "{verb}"; use :predict')
    examples, context = request.get("examples"), request.get("context", {})
    if not isinstance(examples, list) or not examples or not all(isinstance(row, dict) for row in [*examples, context]):
        raise _Refused(400, 'JSON Value: "examples" is a list of objects, and "context" an object')
    from keras_ctxrep.training.shards import serialized

    rows = [
        serialized(
            {key.encode("utf-8", "replace").decode(): _feature(key, value) for key, value in (context | row).items()}
        )
        for row in examples
    ]
    batch = np.empty(len(rows), object)
    batch[:] = rows
    outputs = {
        key: _plain(key, np.asarray(value).tolist()) for key, value in served.run(name, {"inputs": batch}).items()
    }
    if (needed := "outputs" if verb == "regress" else "classes") not in outputs:
        raise _Refused(400, f'the signature {name} gives no "{needed}" for :{verb}')
    if verb == "regress":
        return {"results": outputs["outputs"]}
    pairs = zip(outputs["classes"], outputs["scores"], strict=True)
    return {"results": [[[label, score] for label, score in zip(*pair, strict=True)] for pair in pairs]}


def _feature(name: str, value: Any) -> list:
    values = value if isinstance(value, list) else [value]
    if all(isinstance(part, str) for part in values):
        return [part.encode("utf-8", "replace") for part in values]
    if all(type(part) is int and -(2**63) <= part < 2**63 for part in values):
        return values
    raise _Refused(400, f"{printable(name)}: {short(value)}: strings or whole numbers of 64 bits are needed")


def _page(served: Served) -> bytes:
    inputs = served.signatures[SIGNATURE]["inputs"]
    described = json.dumps({"model": served.name, "inputs": {name: info["dtype"] for name, info in inputs.items()}})
    return (
        Template(_PAGE.read_text("utf-8"))
        .substitute(
            name=html.escape(served.name),
            title=html.escape(served.title or served.name),
            version=served.version,
            model=described.replace("<", "\\u003c"),
        )
        .encode()
    )
