"""TF Serving's REST interface over a model's signatures, as an ASGI application: for a desk, and for tests of clients.

https://www.tensorflow.org/tfx/serving/api_rest: predict in the row and the column format, classify, regress, metadata
and status; errors as {"error": MESSAGE}. Neither TensorFlow nor Keras is imported. It answers one request at a time,
and is no production server: that is TF Serving itself.
"""

import base64
import binascii
import html
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from keras_ctxrep.checks import printable, read_json
from keras_ctxrep.text.bundle import SIGNATURE
from keras_ctxrep.version import install_hint

__all__ = ["Served", "application"]

LARGEST = 64 << 20  # bytes of a request
_PAGE = Path(__file__).with_suffix(".html")
_ROUTE = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/[^/:]+)?(?:/(metadata)|:(\w+))?")
_KINDS = {"string": object, "int32": np.int32, "int64": np.int64, "float32": np.float32, "bool": np.bool_}
_TYPES = {"string": "DT_STRING", "int32": "DT_INT32", "int64": "DT_INT64", "float32": "DT_FLOAT", "bool": "DT_BOOL"}
_METHODS = {"classify": "tensorflow/serving/classify", "regress": "tensorflow/serving/regress"}


@dataclass(frozen=True)
class Served:
    """A model to serve.

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


class _Refused(Exception):
    """A request that gets a status and a message."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def application(served: Served) -> Any:
    """The ASGI application of a model, by Starlette.

    Raises:
        ImportError: Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import HTMLResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise ImportError(f"a server needs Starlette and Uvicorn: {install_hint('serve')}: {error}") from None
    lock = threading.Lock()  # LiteRT runs one request at a time
    page = _page(served)

    def reply(path: str, body: bytes | None) -> tuple[int, dict]:
        try:
            with lock:
                return 200, _answer(served, path, body)
        except _Refused as error:
            return error.status, {"error": str(error)}
        except Exception as error:  # of the model: an input that it refuses
            return 400, {"error": _reason(error)}

    async def api(request: Any) -> Any:
        body = None
        if request.method == "POST":
            body = b""
            async for chunk in request.stream():
                body += chunk
                if len(body) > LARGEST:
                    break
        status, content = await run_in_threadpool(reply, request.url.path, body)
        return Response(json.dumps(content, ensure_ascii=False), status, media_type="application/json")

    async def index(request: Any) -> Any:
        return HTMLResponse(page)

    return Starlette(
        routes=[Route("/", index), Route("/v1/models/{rest:path}", api, methods=["GET", "POST"])],
    )


def _reason(error: Exception) -> str:
    """What a model says of its input; of a failed assertion in a graph its message, without the nodes around it."""
    text = str(error)
    failed = re.search(r"assertion failed: \[(.*?)\]", text)
    return failed[1] if failed else printable(f"{type(error).__name__}: {' '.join(text.split())}")


def _answer(served: Served, path: str, body: bytes | None) -> dict:
    match = _ROUTE.fullmatch(path)
    if match is None:
        raise _Refused(404, f"Malformed request: {'GET' if body is None else 'POST'} {path}")
    name, version, metadata, verb = match.groups()
    if name != served.name or (version and int(version) != served.version):
        wanted = f"Specific({name}, {version})" if version else f"Latest({name})"
        raise _Refused(
            404, f"Servable not found for request: {wanted}; this server has {served.name}, {served.version}"
        )
    if body is None and metadata:
        return _metadata(served)
    if body is None and not verb:
        status = {"version": str(served.version), "state": "AVAILABLE"}
        return {"model_version_status": [status | {"status": {"error_code": "OK", "error_message": ""}}]}
    if body is None or verb not in ("predict", "classify", "regress"):
        raise _Refused(404, f"Malformed request: {'GET' if body is None else 'POST'} {path}")
    if len(body) > LARGEST:
        raise _Refused(413, f"a request of more than {LARGEST >> 20} MB")
    try:
        request = read_json(body)
    except ValueError as error:
        raise _Refused(400, f"JSON Parse error: {error}") from None
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
    if name not in served.signatures:
        raise _Refused(404, f'Serving signature key "{name}" not found; this model has {", ".join(served.signatures)}')
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
        given, needed = ", ".join(sorted(columns)) or "none", ", ".join(sorted(inputs))
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
    kind, rank = info["dtype"], len(info["shape"])

    def value(part: Any) -> Any:
        if kind != "string":
            if isinstance(part, bool) != (kind == "bool") or not isinstance(part, int | float):
                raise _Refused(400, f"{name}: {part!r:.60} is no {kind}")
            return part
        if isinstance(part, dict) and part.keys() == {"b64"}:
            try:
                return base64.b64decode(part["b64"], validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise _Refused(400, f"{name}: {part!r:.60} is not base64") from None
        if not isinstance(part, str):
            raise _Refused(400, f"{name}: {part!r:.60} is no string")
        return part.encode("utf-8", "replace")

    def shape(part: Any) -> tuple[int, ...]:
        if not isinstance(part, list):
            return ()
        inner = {shape(item) for item in part}
        if len(inner) > 1:
            raise _Refused(400, f"{name}: rows of different shapes cannot be in one request")
        return (len(part), *(inner.pop() if inner else ()))

    sizes = shape(values)
    if len(sizes) != rank or any(n not in (-1, m) for n, m in zip(info["shape"], sizes, strict=True)):
        raise _Refused(400, f"{name}: of shape {[*sizes]}, where {info['shape']} is needed")
    array, flat = np.empty(sizes, _KINDS[kind]), [values]
    for _ in sizes:
        flat = [item for part in flat for item in part]
    try:
        array.reshape(-1)[:] = [value(item) for item in flat]
    except OverflowError as error:
        raise _Refused(400, f"{name}: {error}") from None
    return array


def _plain(name: str, value: Any) -> Any:
    """JSON of an output: strings are UTF-8, or base64 of an output whose name ends in _bytes."""
    if isinstance(value, list):
        return [_plain(name, part) for part in value]
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

    rows = [serialized({key: _feature(key, value) for key, value in (context | row).items()}) for row in examples]
    batch = np.empty(len(rows), object)
    batch[:] = rows
    outputs = {
        key: _plain(key, np.asarray(value).tolist()) for key, value in served.run(name, {"inputs": batch}).items()
    }
    if verb == "regress":
        return {"results": outputs["outputs"]}
    pairs = zip(outputs["classes"], outputs["scores"], strict=True)
    return {"results": [[[label, score] for label, score in zip(*pair, strict=True)] for pair in pairs]}


def _feature(name: str, value: Any) -> list:
    values = value if isinstance(value, list) else [value]
    if all(isinstance(part, str) for part in values):
        return [part.encode("utf-8", "replace") for part in values]
    if all(type(part) is int for part in values):
        return values
    raise _Refused(400, f"{name}: {value!r:.60}: strings or whole numbers are needed")


def _page(served: Served) -> str:
    inputs = served.signatures[SIGNATURE]["inputs"]
    described = json.dumps({"model": served.name, "inputs": {name: info["dtype"] for name, info in inputs.items()}})
    return Template(_PAGE.read_text("utf-8")).substitute(
        name=html.escape(served.name),
        title=html.escape(served.title or served.name),
        version=served.version,
        model=described.replace("<", "\\u003c"),
    )
