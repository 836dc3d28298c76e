"""TF Serving's REST interface over a model's signatures, as an ASGI application: for a desk, and for tests of clients.

https://www.tensorflow.org/tfx/serving/api_rest: predict in the row and the column format, classify, regress, metadata
and status; errors as {"error": MESSAGE}. Neither TensorFlow nor Keras is imported. It answers one request at a time,
and is no production server: that is TF Serving itself.
"""

import base64
import binascii
import functools
import html
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from string import Template
from typing import Any

import numpy as np

from keras_ctxrep.checks import printable
from keras_ctxrep.inference.asgi import Application, Limits, Refused, json_bytes, json_object
from keras_ctxrep.text.artifacts import SIGNATURE

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


def application(
    served: Served | Versions, limits: Limits | None = None, hosts: Collection[str] | None = None
) -> Application:
    """The ASGI application of a model, by Starlette.

    Args:
        served: the model; of `Versions` requests get 503 until there is one that answers.
        limits, hosts: as in `asgi.Application`.

    Raises:
        ImportError: Starlette is not installed.
    """
    if isinstance(served, Versions):
        return _Models(served, limits, hosts)
    versions = Versions(served.name)
    versions.answer_with(served)
    return _Models(versions, limits, hosts)


class _Models(Application):
    """The REST interface of the versions of a model."""

    def __init__(self, versions: Versions, limits: Limits | None, hosts: Collection[str] | None):
        super().__init__(limits, hosts)
        self.versions = versions

    def described(self, path: str) -> tuple[int, bytes]:
        """The answer to GET: the page, whether the server is there and ready, a model's status or metadata."""
        versions = self.versions
        if path == "/" and versions.served is None:
            return 503, Template(_LOADING_PAGE).substitute(name=html.escape(versions.name)).encode()
        if path == "/":
            return 200, _page(self._ready())
        if path == "/healthz":
            return 200, json_bytes({"status": "ok"})
        if path == "/readyz":
            self._ready()
            return 200, json_bytes({"status": "ready"})
        version, metadata, verb = self._route("GET", path)
        if verb:
            raise Refused(404, f"Malformed request: GET {printable(path)}")
        if metadata:
            return 200, json_bytes(_metadata(self._version(version)))
        status = [
            {
                "version": str(number),
                "state": state,
                "status": {"error_code": "UNKNOWN" if message else "OK", "error_message": message},
            }
            for number, (state, message) in sorted(versions.states.items(), reverse=True)
            if version in (None, number)
        ]
        return 200, json_bytes({"model_version_status": status})

    def answering(self, method: str, path: str) -> Callable[[bytes], dict]:
        version, metadata, verb = self._route(method, path)
        if method != "POST" or metadata or verb not in ("predict", "classify", "regress"):
            raise Refused(404, f"Malformed request: {printable(method)} {printable(path)}")
        served = self._version(version)
        of_verb = _predict if verb == "predict" else functools.partial(_of_examples, verb=verb)
        return lambda body: of_verb(served, json_object(body))

    def _ready(self) -> Served:
        if self.versions.served is None:
            raise Refused(503, f"loading: {self.versions.name} is not ready; ask again in a second")
        return self.versions.served

    def _route(self, method: str, path: str) -> tuple[int | None, bool, str | None]:
        """Version, whether it is of the metadata, and verb of a path, whose model, version and label are there."""
        match = _ROUTE.fullmatch(path)
        if match is None:
            raise Refused(404, f"Malformed request: {printable(method)} {printable(path)}")
        name, number, label, metadata, verb = match.groups()
        version = None if number is None else int(number)
        if name != self.versions.name or (version is not None and version not in self.versions.states):
            raise self._not_found(name, version)
        if label is not None:
            raise Refused(404, f"Unrecognized servable version label: {printable(label)}; this server has no labels")
        return version, bool(metadata), verb

    def _version(self, version: int | None) -> Served:
        """The version that answers, if it is the one that is asked for."""
        served = self._ready()
        if version not in (None, served.version):
            raise self._not_found(served.name, version)
        return served

    def _not_found(self, name: str, version: int | None) -> Refused:
        wanted = f"Latest({printable(name)})" if version is None else f"Specific({printable(name)}, {version})"
        served = self.versions.served
        known = f"{self.versions.name}, {served.version if served else 'which is loading'}"
        return Refused(404, f"Servable not found for request: {wanted}; this server has {known}")


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
        raise Refused(400, 'JSON Value: "signature_name" is a string')
    if name not in served.signatures:
        known = ", ".join(served.signatures)
        raise Refused(404, f'Serving signature key "{printable(name)}" not found; this model has {known}')
    return served.signatures[name]


def _predict(served: Served, request: dict) -> dict:
    name = request.get("signature_name", SIGNATURE)
    inputs = _signature(served, name)["inputs"]
    if ("instances" in request) == ("inputs" in request):
        raise Refused(400, 'JSON Value: not formatted correctly for a request: give "instances" or "inputs"')
    rows = "instances" in request
    columns = _columns(request["instances"], inputs) if rows else request["inputs"]
    if not isinstance(columns, dict):
        columns = {next(iter(inputs)): columns}
    if columns.keys() != inputs.keys():
        given, needed = printable(", ".join(sorted(columns)) or "none"), ", ".join(sorted(inputs))
        raise Refused(400, f"the signature {name} has the inputs {needed}, and the request has {given}")
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
        raise Refused(400, 'JSON Value: "instances" is a list of at least one row')
    named = [isinstance(row, dict) and row.keys() != {"b64"} for row in rows]
    if not any(named):
        if len(inputs) > 1:
            raise Refused(400, f"the inputs {', '.join(sorted(inputs))} are needed, by their names")
        return {next(iter(inputs)): rows}
    if not all(named) or any(row.keys() != rows[0].keys() for row in rows):
        raise Refused(400, 'JSON Value: all rows of "instances" need the same names')
    return {name: [row[name] for row in rows] for name in rows[0]}


def _array(name: str, values: Any, info: dict) -> np.ndarray:
    """An input from its JSON."""
    sizes, flat = [], [values]
    while flat and len(sizes) <= len(info["shape"]) and any(isinstance(part, list) for part in flat):
        if len({len(part) if isinstance(part, list) else None for part in flat}) > 1:
            raise Refused(400, f"{name}: rows of different shapes cannot be in one request")
        sizes.append(len(flat[0]))
        flat = [item for part in flat for item in part]
    if len(sizes) != len(info["shape"]) or any(n not in (-1, m) for n, m in zip(info["shape"], sizes, strict=True)):
        raise Refused(400, f"{name}: of shape {sizes}, where {info['shape']} is needed")
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
                raise Refused(400, f"{name}: {short(value)} is not base64") from None
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
    raise Refused(400, f"{name}: {short(value)} is no {kind}")


def _plain(name: str, value: Any) -> Any:
    """JSON of an output: strings are UTF-8, or base64 of an output whose name ends in _bytes."""
    if isinstance(value, list):
        return [_plain(name, part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused(400, f"{name}: of these inputs the model makes {value}, which JSON has no number for")
    if not isinstance(value, bytes):
        return value
    return {"b64": base64.b64encode(value).decode()} if name.endswith("_bytes") else value.decode("utf-8", "replace")


def _of_examples(served: Served, request: dict, verb: str) -> dict:
    """Classify and Regress: serialized tf.Examples of the features that a request has."""
    name = request.get("signature_name", verb if verb in served.signatures else SIGNATURE)
    if [*_signature(served, name)["inputs"]] != ["inputs"]:
        raise Refused(400, f'the signature {name} takes no tf.Examples: this model has no "{verb}"; use :predict')
    examples, context = request.get("examples"), request.get("context", {})
    if not isinstance(examples, list) or not examples or not all(isinstance(row, dict) for row in [*examples, context]):
        raise Refused(400, 'JSON Value: "examples" is a list of objects, and "context" an object')
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
        raise Refused(400, f'the signature {name} gives no "{needed}" for :{verb}')
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
    raise Refused(400, f"{printable(name)}: {short(value)}: strings or whole numbers of 64 bits are needed")


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
