"""A SavedModel behind KServe's HTTP server, in the JSON of TF Serving's REST interface.

    pip install ".[serving-test]"
    python benchmarks/kserve_server.py BASE/NAME --port 8501
    ctxrep client --url http://localhost:8501 --model NAME "Some text"

It stands in for TF Serving, which pip cannot install, in tests and measurements: real HTTP, many clients, one process.
It has no versions, no labels, no metadata and no batching of requests.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import kserve  # pyright: ignore[reportMissingImports]
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers its operators
from starlette.concurrency import run_in_threadpool  # pyright: ignore[reportMissingImports]


class SavedModel(kserve.Model):
    """The signatures of a SavedModel."""

    def __init__(self, name: str, folder: Path):
        super().__init__(name)
        self.saved = tf.saved_model.load(str(folder))
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        name = payload.get("signature_name", "serving_default")
        if name not in self.saved.signatures:
            raise kserve.errors.InvalidInput(f"signature {name!r}: one of {', '.join(self.saved.signatures)}")
        return {"predictions": await run_in_threadpool(self._rows, payload["instances"], self.saved.signatures[name])}

    def _rows(self, rows: list[dict], signature) -> list[dict]:
        spec = signature.structured_input_signature[1]
        inputs = {key: tf.constant([row[key] for row in rows], spec[key].dtype) for key in spec}
        columns = {key: _texts(value.numpy().tolist()) for key, value in signature(**inputs).items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _texts(value):
    if isinstance(value, list):
        return [_texts(part) for part in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", help="BASE/NAME, whose latest version is served", nargs="+", type=Path)
    parser.add_argument("--port", type=int, default=8501)
    args = parser.parse_args()
    models = []
    for folder in args.folders:
        versions = [int(child.name) for child in folder.iterdir() if child.name.isdecimal()]
        models.append(SavedModel(folder.name, folder / str(max(versions))))
    kserve.ModelServer(http_port=args.port, enable_grpc=False, workers=1).start(models)


if __name__ == "__main__":
    main()
