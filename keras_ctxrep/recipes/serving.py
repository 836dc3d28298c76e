"""A server for the desk: any artifact behind TF Serving's REST interface."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep import zoo
from keras_ctxrep.inference.client import OUTPUTS
from keras_ctxrep.inference.server import Served, application
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import SIGNATURE
from keras_ctxrep.version import install_hint

__all__ = ["opened", "serve"]

_INTEGERS = ("start", "end", "starts", "ends")


def serve(
    path: str | Path,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8501,
    announce: Callable[[str], object] | None = None,
) -> None:
    """Serves a model until it is interrupted, by the REST interface of TF Serving, with a page to try it in a browser.

    One request at a time: for trying a model and for tests of clients. In production the server is TF Serving.

    Args:
        path: a SavedModel, BASE/NAME or one version; a model folder, which is exported to a temporary folder first; or
            a .tflite file, which needs no TensorFlow and has the signature of texts alone.
        name: of the model on the server; None: that of the folder or file.
        host, port: the address; 127.0.0.1 is reached from this machine alone.
        announce: called with the address once it is served.

    Raises:
        ValueError: the path is none of these.
        ImportError: Starlette or Uvicorn is not installed.
        OSError: the port is taken.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError(f"a server needs Starlette and Uvicorn: {install_hint('serve')}: {error}") from None
    with opened(path, name) as served:
        config = uvicorn.Config(application(served), host, port, log_level="warning", lifespan="off")
        socket = config.bind_socket()
        socket.listen()  # so that who reads the address can connect to it
        if announce is not None:
            announce(f"http://{host}:{socket.getsockname()[1]}/v1/models/{served.name}")
        uvicorn.Server(config).run([socket])


@contextmanager
def opened(path: str | Path, name: str | None = None) -> Iterator[Served]:
    """A model to serve, as long as its temporary files are there; arguments and errors are those of `serve`."""
    path = Path(zoo.find(path))
    if path.is_file():
        yield _of_file(path, name or path.stem)
        return
    if not (path / bundles.NAME).is_file():
        yield _of_saved_model(path, name)
        return
    from keras_ctxrep.recipes.exporting import export

    with tempfile.TemporaryDirectory() as folder:
        yield _of_saved_model(export(path, Path(folder) / "model"), name or path.resolve().name, str(path))


def _of_saved_model(path: Path, name: str | None, title: str = "") -> Served:
    import tensorflow as tf

    from keras_ctxrep_export import manifest, saved_model

    folder = saved_model.latest(path)
    loaded: Any = tf.saved_model.load(str(folder))

    def run(signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {key: saved_model.tensor(value) for key, value in inputs.items()}
        return {key: value.numpy() for key, value in loaded.signatures[signature](**tensors).items()}

    version = int(folder.name) if folder.name.isdecimal() else 1
    base = folder.resolve().parent if folder.name.isdecimal() else folder.resolve()
    return Served(name or base.name, version, manifest.described(folder), run, title or str(folder))


def _of_file(path: Path, name: str) -> Served:
    """A .tflite file, whose answers are made the outputs of the same model's SavedModel."""
    from keras_ctxrep.inference.engines import open_engine

    predictor = open_engine(path).predictor
    bundle, task = predictor.bundle, predictor.task
    names = task.inputs(bundle)

    def run(signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        texts, *pairs = ([text.decode("utf-8", "replace") for text in inputs[n]] for n in names if n != "marks")
        answers = predictor(texts, pairs[0] if pairs else None, inputs.get("marks"))
        return _outputs([_values(answer, bundle.labels) for answer in answers], outputs, sizes)

    inputs = {n: {"dtype": "string", "shape": [-1]} for n in names}
    if "marks" in inputs:
        inputs["marks"] = {"dtype": "int32", "shape": [-1, bundle.reads.marks, 2]}
    outputs = {
        key: {"dtype": _kind(key), "shape": [-1] * (1 + OUTPUTS[key][0])}
        for key in (*(task.outputs or ("vector",)), "error")
        if key in OUTPUTS
    }
    sizes = {} if "words" in outputs else dict.fromkeys(("labels", "probabilities"), len(bundle.labels))
    if "vector" in outputs:
        sizes = {"vector": len(predictor(["a"])[0]["vector"])}
    return Served(name, 1, {SIGNATURE: {"inputs": inputs, "outputs": outputs}}, run, str(path))


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
