"""A model on a TF Serving server, over REST or gRPC, as the engine of a `Predictor` or by itself.

Neither TensorFlow nor Keras is imported; gRPC needs the packages of the extra [serving].
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.request import Request

import numpy as np

from keras_ctxrep.checks import errors_of, printable, read_json
from keras_ctxrep.inference.predictor import Engine, Predictor, TextRunner
from keras_ctxrep.text import artifacts
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import SIGNATURE
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.transport import open_url, read_all, reason_of

__all__ = ["ServerEngine", "Target", "bundle_of", "connect", "load"]

Batch = Mapping[str, np.ndarray]  # input or output name -> array over the texts
FIRST, SECOND = ("text", "question"), ("pair", "context")  # names of inputs that are texts


@dataclass(frozen=True)
class Target:
    """Which model is asked, and how long it may take.

    Attributes:
        model: name on the server.
        signature: of the model.
        version: its number; None with no label: the latest.
        label: of a version, e.g. "stable", as the server's model.config has it.
        timeout: seconds for a request.
        largest: size of an answer in MB that is not passed.
    """

    model: str
    signature: str = SIGNATURE
    version: int | None = None
    label: str | None = None
    timeout: float = 10.0
    largest: float = 64.0


class Client(Protocol):
    """A way to a server."""

    def request(self, batch: Batch) -> str:
        """The request in readable form: the JSON that REST sends, or the message of gRPC as text."""
        ...

    def inputs(self) -> tuple[str, ...] | None:
        """The inputs of the signature, or None if the server does not tell."""
        ...

    def run(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs of the signature; strings are bytes in arrays of objects."""
        ...


def connect(url: str, target: Target) -> Client:
    """A client of a server; nothing is sent yet.

    Errors of requests are ConnectionError (the server cannot be reached), TimeoutError, and ValueError with the
    server's own message: no such model, version or signature, or inputs that are not those of the signature; or with
    the beginning of what is not an answer of TF Serving.

    Args:
        url: http://HOST:8501 or https://..., TF Serving's REST port; or grpc://HOST:8500, and grpcs:// with TLS.
        target: the model.

    Raises:
        ValueError: another kind of address.
    """
    kind, separator, rest = url.rstrip("/").partition("://")
    if not separator or not rest or kind not in ("http", "https", "grpc", "grpcs"):
        raise ValueError(f"{url}: http://HOST:PORT or grpc://HOST:PORT is needed (TF Serving: 8501 and 8500)")
    return _Grpc(url, kind, rest, target) if kind.startswith("grpc") else _Rest(url.rstrip("/"), target)


def load(url: str, target: Target, bundle: Bundle, batch_size: int = 32) -> Predictor:
    """A predictor through a server: the same answers as the SavedModel that it serves.

    Args:
        url, target: as in `connect`.
        bundle: of the model, e.g. `text.bundle.load` of the version folder.
        batch_size: texts of a request.
    """
    return ServerEngine(url, target, bundle, batch_size).answer


class ServerEngine(Engine):
    """A model on a server as an engine, with the arguments of `load`."""

    def __init__(self, url: str, target: Target, bundle: Bundle, batch_size: int = 32):
        self.name, self.path, self.bundle = url, None, bundle
        self.answer = Predictor(bundle, _Served(url, connect(url, target)), batch_size)


def bundle_of(folder: str | Path, version: int | None = None) -> Bundle:
    """The bundle of a model folder, of a version of a SavedModel, or of BASE/NAME with its versions.

    Args:
        folder: any of these.
        version: of BASE/NAME; None: the highest.

    Raises:
        ValueError: there is no bundle, or it is damaged.
    """
    folder = Path(folder)
    numbers = artifacts.versions(folder) if folder.is_dir() and not (folder / bundles.NAME).is_file() else []
    if numbers := [name for name in numbers if (folder / name / "assets.extra" / bundles.NAME).is_file()]:
        folder = folder / (numbers[-1] if version is None else str(version))
    return bundles.load(folder)


# dimensions of an output for one text, and whether it is text; others are not read
_VALUES = ("label", "score", "value", "answer", "start", "end", "error")
OUTPUTS = {name: (0, name in ("label", "answer", "error")) for name in _VALUES}
OUTPUTS |= {"null_score": (0, False), "words": (1, True), "labels": (1, True)}
OUTPUTS |= dict.fromkeys(("probabilities", "pooled", "vector", "starts", "ends", "scores"), (1, False))


class _Served(TextRunner):
    """Answers of a server, each checked against the bundle."""

    def __init__(self, url: str, client: Client):
        super().__init__(client.run)
        self.url = url

    def answer(self, task, bundle, query, rows, outputs):
        try:
            wrong = [name for name in outputs[0].keys() & OUTPUTS.keys() if _kind(outputs[0][name]) != OUTPUTS[name]]
            answer = {} if wrong else super().answer(task, bundle, query, rows, outputs)
            problem = (
                f"other values of {', '.join(sorted(wrong))} are needed" if wrong else _problem(answer, bundle, query)
            )
        except KeyError as error:
            answer, problem = {}, f"the output {error} is missing"
        except (ValueError, TypeError, IndexError, AttributeError, OverflowError):
            answer, problem = {}, f"a model of the task {bundle.task} does not answer so"
        if problem:
            row = next(rows_of({name: np.asarray(value)[None] for name, value in outputs[0].items()}), {})
            raise _strange(self.url, json.dumps(row, ensure_ascii=False), f"{problem}; is --bundle that of this model?")
        return answer


def _kind(value: Any) -> tuple[int, bool]:
    return np.ndim(value), np.asarray(value).dtype.kind in "SO"


def _problem(answer: Mapping[str, Any], bundle: Bundle, query: Any) -> str | None:
    """What an answer names that is not in the bundle or not in the text."""
    if "error" in answer:
        return None
    length = len(query.pair or query.text)
    for part in (answer, *(part for name in ("words", "entities", "arguments") for part in answer.get(name, ()))):
        if part.get("label") not in (None, *bundle.labels):
            return f"{part['label']!r:.60} is no label of the bundle"
        if "start" in part and not 0 <= part["start"] <= part["end"] <= length:
            return f"{part['start']} to {part['end']} is not in a text of {length} characters"
    if not all(0 <= value <= 1.001 for value in answer.get("probabilities", {}).values()):
        return "probabilities from 0 to 1 are needed"
    return None if all(type(value) is float for value in answer.get("vector", ())) else "a vector is needed"


def inputs_of(texts: Sequence[str], names: Sequence[str] | None) -> Batch:
    """The inputs of a signature from lines of text.

    Args:
        texts: each a text; or two, separated by a tab, for a signature that takes two.
        names: inputs of the signature, None if they are not known: then "text", and "pair" where there is a tab.

    Raises:
        ValueError: a line has not as many texts as the others or as the signature has inputs, or the signature has
            other inputs than texts.

    >>> {name: column.tolist() for name, column in inputs_of(["a\\tb"], ("context", "question")).items()}
    {'question': ['a'], 'context': ['b']}
    """
    rows = [[text] if names is not None and len(names) == 1 else text.split("\t") for text in texts]
    if names is None:
        names = ("text", "pair")[: len(rows[0])]
    elif others := sorted({*names} - {*FIRST, *SECOND}):
        raise ValueError(f"this signature has the inputs {', '.join(sorted(names))}: give JSON for {', '.join(others)}")
    names = sorted(names, key=(*FIRST, *SECOND).index)
    for text, row in zip(texts, rows, strict=True):
        if len(row) != len(names):
            raise ValueError(f"{text!r}: {len(names)} needed, {' and '.join(names)}, with a tab between two texts")
    return {name: np.array(column, object) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def inputs_of_json(lines: Sequence[str]) -> Batch:
    """The inputs of a signature from lines of JSON, each an object with one value for each input.

    Raises:
        ValueError: a line is no such object, or the lines differ in their inputs or their shapes.

    >>> batch = inputs_of_json(['{"text": "She left.", "marks": [[0, 3]]}'])
    >>> batch["text"].dtype, batch["marks"].dtype, batch["marks"].shape
    (dtype('O'), dtype('int32'), (1, 1, 2))
    """
    rows = []
    for line in lines:
        with errors_of(f"{line!r:.200}"):
            row = read_json(line)
            if not isinstance(row, dict) or row.keys() != (rows[0] if rows else row).keys():
                raise ValueError("a JSON object is needed, with the same keys in each line")
        rows.append(row)
    batch = {}
    for name in rows[0]:
        with errors_of(name):
            batch[name] = _array([row[name] for row in rows])
    return batch


def rows_of(outputs: Batch) -> Iterator[dict[str, Any]]:
    """The outputs of each text as JSON values."""
    lists = {name: _plain(array.tolist()) for name, array in outputs.items()}
    for values in zip(*lists.values(), strict=True):
        yield dict(zip(lists, values, strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _array(values: list) -> np.ndarray:
    """An array of JSON values, in the types of TensorFlow: int32, float32, bool and strings as bytes."""
    first = values
    while isinstance(first, list) and first:
        first = first[0]
    try:
        # of strings no array of a fixed width: it would have the longest one's for each
        array = np.array(values, object if isinstance(first, str) else None)
    except ValueError:
        raise ValueError("values of different shapes cannot be in one request") from None
    if isinstance(first, str):
        if not all(isinstance(text, str) for text in array.flat):
            raise ValueError("values of different shapes or types cannot be in one request")
        flat = np.empty(array.size, object)
        flat[:] = [text.encode("utf-8", "replace") for text in array.flat]
        return flat.reshape(array.shape)
    if array.dtype.kind not in "ifb":
        raise ValueError("strings, numbers or truth values are needed, all of one type")
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise ValueError("a number is not finite, or too large for 32 bits")
    if array.dtype.kind == "i" and (array != array.astype(np.int32)).any():
        raise ValueError("a number is too large for 32 bits")
    return array.astype(np.int32 if array.dtype.kind == "i" else array.dtype)


# ------------------------------------------------------------------------------------------------------------- REST


class _Rest:
    """TF Serving's REST interface, https://www.tensorflow.org/tfx/serving/api_rest, in its row format."""

    def __init__(self, url: str, target: Target):
        self.url, self.target = url, target
        version = "" if target.version is None else f"/versions/{target.version}"
        version = version if target.label is None else f"/labels/{target.label}"
        self.model_url = f"{url}/v1/models/{target.model}{version}"

    def request(self, batch: Batch) -> str:
        body: dict[str, Any] = {"instances": [*rows_of(batch)]}
        if self.target.signature != SIGNATURE:
            body = {"signature_name": self.target.signature} | body
        return json.dumps(body, ensure_ascii=False)

    def inputs(self) -> tuple[str, ...] | None:
        url = f"{self.model_url}/metadata"
        try:
            content = self._send(url, None)
        except _Refused:  # other servers have no metadata; a request will say what is wrong
            return None
        try:
            signatures = _parse(content)["metadata"]["signature_def"]["signature_def"]
            inputs = {name: tuple({**each["inputs"]}) for name, each in signatures.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _strange(url, content, "signatures are needed") from None
        return _of_signature(self.url, self.target, inputs)

    def run(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        content = self._send(f"{self.model_url}:predict", self.request(batch).encode("utf-8", "replace"))
        try:
            return _outputs(_parse(content), _count(batch))
        except ValueError as error:
            raise _strange(self.url, content, error) from None

    def _send(self, url: str, body: bytes | None) -> bytes:
        """The body of an answer."""
        target, reason = self.target, ""
        request = Request(url, body, {"Content-Type": "application/json", "Accept-Encoding": "identity"})
        try:
            try:
                response, status = open_url(request, target.timeout), 200
            except HTTPError as error:
                response, status, reason = error, error.code, error.reason
            with response:
                content = read_all(response, int(target.largest * 1e6))
        except OSError as error:
            if isinstance(getattr(error, "reason", error), TimeoutError):
                raise TimeoutError(_late(self.url, target)) from None
            raise ConnectionError(f"{self.url}: cannot be reached: {reason_of(error)}") from None
        except HTTPException as error:
            begin = error.partial if isinstance(error, IncompleteRead) else ""
            raise _strange(url, begin, reason_of(error)) from None
        except ValueError as error:
            raise ValueError(f"{self.url}: an answer {error}: {_SMALLER}") from None
        if status != 200:
            raise _Refused(f"{url}: {_refusal(status, content, reason, target.model)}")
        return content


_SMALLER = "send fewer texts at once with --batch-size, or allow more with --max-answer"


class _Refused(ValueError):
    """The server's own error."""


def _strange(url: str, content: Any, problem: object) -> ValueError:
    return ValueError(f"{url}: not an answer of TF Serving: {printable(content)} ({printable(problem)})")


def _count(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def _parse(content: bytes) -> Any:
    """JSON; NaN and infinity, which Python reads, are none."""

    def no_json(name: str):
        raise ValueError(name)

    return read_json(content, parse_constant=no_json)


def _outputs(answer: Any, count: int) -> dict[str, np.ndarray]:
    """The outputs in an answer of the row format."""
    rows = answer.get("predictions") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or len(rows) != count:
        raise ValueError(f"predictions of {count} texts are needed")
    if not isinstance(rows[0], dict):  # of one output the name is left out
        rows = [{"output": row} for row in rows]
    names = rows[0].keys()
    if not names or not all(isinstance(row, dict) and row.keys() == names for row in rows):
        raise ValueError("the same outputs of each text are needed")
    return {name: _array([row[name] for row in rows]) for name in names}


def _refusal(status: int, content: bytes, reason: str, model: str) -> str:
    """What a server says about a request it refused."""
    try:
        content = _parse(content)["error"]
    except (ValueError, KeyError, TypeError):
        content = content.strip() or reason.encode("utf-8", "replace")
    missing = f"no model {model!r} (or not this version of it) on this server: " if status == 404 else ""
    return f"{missing}{status}: {printable(content)}"


def _late(url: str, target: Target) -> str:
    return f"{url}: no answer within {target.timeout:g} s"


def _of_signature(url: str, target: Target, signatures: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    if target.signature not in signatures:
        names = ", ".join(sorted(name for name in signatures if not name.startswith("__")))
        raise ValueError(f"{url}: {target.model!r} has no signature {target.signature!r}; it has {printable(names)}")
    return tuple(signatures[target.signature])


# ------------------------------------------------------------------------------------------------------------- gRPC


class _Grpc:
    """TF Serving's gRPC interface, tensorflow_serving/apis/prediction_service.proto."""

    def __init__(self, url: str, kind: str, address: str, target: Target):
        import grpc

        from keras_ctxrep.inference import messages

        self.url, self.target, self.messages = url, target, messages
        options = [("grpc.max_receive_message_length", min(int(target.largest * 1e6), 2**31 - 1))]
        if kind == "grpcs":
            channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(), options)
        else:
            channel = grpc.insecure_channel(address, options)
        service = "/tensorflow.serving.PredictionService/"

        def method(name, request, response):
            return channel.unary_unary(f"{service}{name}", request.SerializeToString, response.FromString)

        self.predict = method("Predict", messages.PredictRequest, messages.PredictResponse)
        self.metadata = method("GetModelMetadata", messages.MetadataRequest, messages.MetadataResponse)

    def _request(self, batch: Batch):
        target = self.target
        return self.messages.predict_request(dict(batch), target.model, target.signature, target.version, target.label)

    def request(self, batch: Batch) -> str:
        from google.protobuf import text_format

        return text_format.MessageToString(self._request(batch), as_utf8=True).rstrip()

    def inputs(self) -> tuple[str, ...] | None:
        request = self.messages.MetadataRequest(metadata_field=["signature_def"])
        self.messages.specify(request.model_spec, self.target.model, self.target.version, self.target.label)
        try:
            response = self._send(self.metadata, request)
        except _Refused:
            return None
        content = response.metadata["signature_def"].value
        try:
            signatures = self.messages.Signatures.FromString(content).signature_def
        except self.messages.DecodeError:
            raise _strange(self.url, content, "signatures are needed") from None
        return _of_signature(self.url, self.target, {name: [*each.inputs] for name, each in signatures.items()})

    def run(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        response = self._send(self.predict, self._request(batch))
        try:
            outputs = {name: self.messages.array_of(tensor) for name, tensor in response.outputs.items()}
            if not outputs or any(array.shape[:1] != (_count(batch),) for array in outputs.values()):
                raise ValueError(f"outputs of {_count(batch)} texts are needed")
            if not all(np.isfinite(array).all() for array in outputs.values() if array.dtype.kind == "f"):
                raise ValueError("a number is not finite")
        except ValueError as error:
            shapes = {name: [dim.size for dim in each.tensor_shape.dim] for name, each in response.outputs.items()}
            raise _strange(self.url, shapes, error) from None
        return outputs

    def _send(self, method, request):
        import grpc

        try:
            return method(request, timeout=self.target.timeout)
        except grpc.RpcError as error:
            code, reason = error.code(), printable(error.details())
        if code == grpc.StatusCode.UNAVAILABLE:
            raise ConnectionError(f"{self.url}: cannot be reached: {reason}")
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise TimeoutError(_late(self.url, self.target))
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in reason:
            raise ValueError(f"{self.url}: an answer longer than {self.target.largest:g} MB: {_SMALLER}")
        if code == grpc.StatusCode.INTERNAL and "deserializing" in reason:
            raise _strange(self.url, reason, "a message of TensorFlow Serving is needed")
        missing = f"no model {self.target.model!r} (or not this version of it) on this server: "
        raise _Refused(f"{self.url}: {missing if code == grpc.StatusCode.NOT_FOUND else ''}{code.name}: {reason}")
