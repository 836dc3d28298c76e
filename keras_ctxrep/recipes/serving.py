"""A server for the desk: any artifact behind TF Serving's REST interface."""

import errno
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_ctxrep import zoo
from keras_ctxrep.checks import first_line
from keras_ctxrep.deprecated import moved
from keras_ctxrep.inference.asgi import Application
from keras_ctxrep.inference.client import OUTPUTS
from keras_ctxrep.inference.server import Limits, Served, Versions, application
from keras_ctxrep.inference.silence import start_tensorflow
from keras_ctxrep.text import artifacts
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import SIGNATURE
from keras_ctxrep.version import install_hint

if TYPE_CHECKING:
    import uvicorn

__getattr__ = moved(__name__, "keras_ctxrep.commands.serve")

__all__ = ["http_server", "opened"]

_INTEGERS = ("start", "end", "starts", "ends")


def http_server(
    served: Served | Versions, limits: Limits | None = None, hosts: Collection[str] | None = None
) -> "uvicorn.Server":
    """Uvicorn with the application of a model, which closes connections that are slow.

    Args:
        served, limits, hosts: as in `server.application`.

    Raises:
        ImportError: Starlette or Uvicorn is not installed.
    """
    return server_of(application(served, limits, hosts))


def server_of(app: Application) -> "uvicorn.Server":
    """Uvicorn with an application, see `http_server`."""
    limits = app.limits
    try:
        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol
    except ImportError as error:
        raise ImportError(f"a server needs Starlette and Uvicorn: {install_hint('serve')}: {error}") from None

    class Protocol(H11Protocol):
        """Closes a connection that does not send the headers of a request in time, or read its answer.

        Uvicorn itself closes those alone that send nothing after an answer. A body is the application's.
        """

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait(0)

        def on_response_complete(self) -> None:
            self._wait(self.transport.get_write_buffer_size())
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self.waiting.cancel()
            super().connection_lost(exc)

        def _wait(self, unread: int) -> None:
            if hasattr(self, "waiting"):
                self.waiting.cancel()
            self.waiting = self.loop.call_later(limits.header_seconds, self._end, unread)

        def _end(self, before: int) -> None:
            unread = self.transport.get_write_buffer_size()
            if unread and unread < before:
                self._wait(unread)
            elif self.cycle is None or self.cycle.response_complete:  # else a request is read or answered
                self.transport.abort()

    options = {"lifespan": "off", "ws": "none", "log_config": None, "access_log": False, "proxy_headers": False}
    options |= {"log_level": "error"}  # malformed requests are the client's fault, and are not told
    return uvicorn.Server(uvicorn.Config(app, http=Protocol, limit_concurrency=limits.connections, **options))


def listening(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; errors as in `serve`."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason = "another program has this port: --port 0 takes any that is free, --port N another one"
        raise OSError(f"{host}:{port}: {reason}") from None


def address_of(listener: socket.socket, host: str) -> tuple[str, list[str] | None]:
    """The address of a server that was asked to listen on a host, and the names that requests may give it; None: any.

    Of one that this machine alone can reach these are its own, see `asgi.Application`.
    """
    address, port = listener.getsockname()[:2]
    local = ipaddress.ip_address(address).is_loopback
    hosts = ["localhost", "127.0.0.1", "::1", host.lower()] if local else None
    return f"http://{f'[{host}]' if ':' in host else host}:{port}", hosts


def opened(path: str | Path, name: str | None = None) -> Served:
    """A model to serve; arguments and errors are those of `serve`."""
    source = Source(path, name)
    return source.load(Versions(source.name))


class Source:
    """Where the versions of a model come from; errors as in `serve`."""

    def __init__(self, path: str | Path, name: str | None):
        self.path = Path(zoo.find(path))
        self.open: Callable[[Path, str, int], Served]
        if artifacts.part(self.path)[0].is_file():
            self.kind, self.open, default = "a .tflite file", _of_file, self.path.stem
        elif (self.path / bundles.NAME).is_file():
            self.kind, self.open, default = "a model folder", _of_model_folder, self.path.resolve().name
        else:
            self.kind, self.open, folder = "a SavedModel", _of_saved_model, artifacts.latest(self.path).resolve()
            default = folder.parent.name if folder.name.isdecimal() else folder.name
        self.name = name or default
        self.loads = 0
        self.loaded = self.seen = self._state()

    def _state(self) -> tuple:
        """The folder or file of the version that is there now, and what changes where its files do."""
        if self.open is _of_saved_model:
            path = artifacts.latest(self.path)
            files = sorted(file for file in path.rglob("*") if file.is_file())
        else:
            path, (file, _) = self.path, artifacts.part(self.path)
            files = [file if file.is_file() else path / bundles.NAME]  # has the hashes of the other files
        stats = [file.stat() for file in files]
        return path, *((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)

    def load(self, versions: Versions) -> Served:
        """Answers with the version that is there now."""
        self.loaded = self._state()
        self.loads += 1
        path = self.loaded[0]
        numbered = self.open is _of_saved_model and path.resolve().name.isdecimal()
        version = int(path.resolve().name) if numbered else self.loads
        return versions.load(version, lambda: self.open(path, self.name, version))

    def load_changed(self, versions: Versions, report: Callable[[str], object]) -> None:
        """Answers with the version that is there now if it is another one, and the same as at the last look."""
        try:
            state = self._state()
        except (OSError, ValueError):  # removed, or being replaced
            return
        written, self.seen = state == self.seen, state
        if not written or state == self.loaded:
            return
        before = versions.served
        try:
            served = self.load(versions)
            report(f"{self.loaded[0]}: version {served.version} answers")
        except Exception as error:
            message = f"cannot be loaded, and version {before and before.version} goes on"
            report(f"{self.loaded[0]}: {message}: {first_line(error)}")


def _of_model_folder(path: Path, name: str, version: int) -> Served:
    """A model folder, with the signatures of its export, which is not written."""
    start_tensorflow()
    import tensorflow as tf

    from keras_ctxrep import saving
    from keras_ctxrep_export import saved_model
    from keras_ctxrep_export.generation import Generation
    from keras_ctxrep_export.signatures import Signatures

    model, bundle = saving.load_served(path)
    signatures: Any = Generation(model, bundle) if bundle.generates else Signatures(model, bundle)
    traced = cache(lambda name: signatures.functions[name].get_concrete_function())

    def run(signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        specs = traced(signature).structured_input_signature[0]
        arguments = tf.nest.map_structure(lambda spec: saved_model.tensor(inputs[spec.name]), specs)
        return {key: value.numpy() for key, value in signatures.functions[signature](*arguments).items()}

    return Served(name, version, _Signatures(sorted(signatures.functions), traced), run, str(path))


class _Signatures(Mapping[str, Mapping[str, Mapping[str, dict]]]):
    """The signatures of a model, as `Served` has them; each is traced, which takes a second, when it is asked for."""

    def __init__(self, names: Collection[str], traced: Callable[[str], Any]):
        self._names, self._traced = names, traced

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Mapping[str, Mapping[str, dict]]:
        if name not in self._names:
            raise KeyError(name)
        import tensorflow as tf

        function = self._traced(name)
        inputs = tf.nest.flatten(function.structured_input_signature)
        return {
            "inputs": _described({spec.name: spec for spec in inputs}),
            "outputs": _described(function.structured_outputs),
        }


def _described(tensors: Mapping[str, Any]) -> dict[str, dict]:
    return {
        key: {"dtype": tensor.dtype.name, "shape": [-1 if size is None else size for size in tensor.shape]}
        for key, tensor in sorted(tensors.items())
    }


def _of_saved_model(path: Path, name: str, version: int) -> Served:
    start_tensorflow()
    from keras_ctxrep_export import manifest, saved_model

    loaded = saved_model.loaded(path)

    def run(signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {key: saved_model.tensor(value) for key, value in inputs.items()}
        return {key: value.numpy() for key, value in loaded.signatures[signature](**tensors).items()}

    return Served(name, version, manifest.described(path), run, str(path))


def _of_file(path: Path, name: str, version: int) -> Served:
    """A .tflite file, whose answers are made the outputs of the same model's SavedModel."""
    from keras_ctxrep.inference.engines import open_model

    predictor = open_model(path).answer
    bundle, task = predictor.bundle, predictor.task
    names = task.inputs(bundle)

    def run(signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        texts, *pairs = ([text.decode("utf-8", "replace") for text in inputs[n]] for n in names if n != "marks")
        marks: Any = inputs.get("marks")  # an array
        answers = predictor.answers(texts, pairs[0] if pairs else None, marks)
        return _outputs([_values(answer, bundle.labels) for answer in answers], outputs, sizes)

    inputs = {n: {"dtype": "string", "shape": [-1]} for n in names}
    if "marks" in inputs:
        inputs["marks"] = {"dtype": "int32", "shape": [-1, bundle.reads.marks, 2]}
    outputs = {
        key: {"dtype": _kind(key), "shape": [-1] * (1 + OUTPUTS[key][0])}
        for key in (*(task.outputs or ("vector",)), "error")
        if key in OUTPUTS
    }
    sizes: dict[str, int] = {} if "words" in outputs else dict.fromkeys(("labels", "probabilities"), len(bundle.labels))
    if "vector" in outputs:
        sizes = {"vector": len(predictor(["a"])[0]["vector"])}
    return Served(name, version, {SIGNATURE: {"inputs": inputs, "outputs": outputs}}, run, str(path))


def _kind(name: str) -> str:
    return "string" if OUTPUTS[name][1] else "int32" if name in _INTEGERS else "float32"


def _values(answer: Mapping[str, Any], labels: tuple[str, ...]) -> dict[str, Any]:
    """An answer of a `Predictor` as a row of the outputs of a SavedModel: those of words as lists, one value each.

    Of a text without words it is {"error"}.

    >>> _values({"words": [{"word": "Ann", "start": 0, "end": 3, "label": "B-PER", "score": 0.5}]}, ("O", "B-PER"))
    {'words': ['Ann'], 'starts': [0], 'ends': [3], 'labels': ['B-PER'], 'scores': [0.5]}
    """
    if "error" in answer:
        return {"error": answer["error"]}
    if "words" in answer:
        keys = {"words": "word", "starts": "start", "ends": "end", "labels": "label", "scores": "score"}
        return {name: [word[key] for word in answer["words"]] for name, key in keys.items()}
    values = {key: value for key, value in answer.items() if key in OUTPUTS}
    if "labels" in values:
        values["labels"] = [label if label in values["labels"] else "" for label in labels]
    if "probabilities" in values:
        values["probabilities"] = [*values["probabilities"].values()]
    return values


def _outputs(rows: list[dict[str, Any]], names: Collection[str], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Rows as arrays with these names: 0 and "" where a row has none, lists padded to the longest one, or to a size."""
    outputs = {}
    for name in names:
        dimensions, string = OUTPUTS[name]
        blank: Any = "" if string else 0
        values = [row.get(name, [] if dimensions else blank) for row in rows]
        if dimensions:
            longest = max(sizes.get(name, 0), *map(len, values))
            values = [[*value, *[blank] * (longest - len(value))] for value in values]
        outputs[name] = np.array(values, object if string else _kind(name))
    return outputs
