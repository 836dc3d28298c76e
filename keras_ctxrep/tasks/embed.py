"""An encoder by itself: its answer to a text is a vector."""

from typing import Any, ClassVar

import numpy as np

from keras_ctxrep.tasks.classify import COLUMNS, TextReading
from keras_ctxrep.tasks.task import Task

__all__ = ["Embed"]


class Embed(Task):
    """No weights: the vector of a text is pooled from the encoder's outputs, as the bundle says."""

    name = "embed"
    help = "a vector"
    reading = TextReading({"text": COLUMNS["text"]}, labelled=())
    model_outputs: ClassVar[tuple[str, ...]] = ("vector",)

    def head(self, encoder, bundle) -> Any:
        from keras_ctxrep.models import heads

        return heads.embed(encoder, bundle.pooling, bundle.normalize)

    def decode(self, bundle, query, rows, outputs) -> dict:
        name = "vector" if "vector" in outputs[0] else "pooled"  # of exports before 0.3
        return {"vector": np.asarray(outputs[0][name]).tolist()}

    def cells(self, answer) -> dict[str, Any]:
        return {"prediction": " ".join(f"{number:.6g}" for number in answer.get("vector", ()))}

    def in_graph(self, bundle, features, ids, inputs) -> dict:
        return ids(features(**inputs))

    def served(self, bundle, query, output) -> dict:
        return self.decode(bundle, query, (), (output,))
