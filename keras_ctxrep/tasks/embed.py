"""An encoder by itself: its answer to a text is a vector."""

from typing import ClassVar

import numpy as np

from keras_ctxrep.tasks.classify import COLUMNS, TextReading
from keras_ctxrep.tasks.task import Task

__all__ = ["Embed"]


class Embed(Task):
    """No head: the vector of a text is the encoder's pooled output."""

    name = "embed"
    help = "a vector"
    reading = TextReading({"text": COLUMNS["text"]}, labelled=())
    model_outputs: ClassVar[tuple[str, ...]] = ("pooled",)

    def head(self, encoder, bundle):
        return encoder

    def check(self, bundle):
        if not bundle.config.get("pooler", True):
            raise ValueError("this encoder has no pooler, so no vector of a text; use `ctxrep embed`")

    def decode(self, bundle, query, rows, outputs):
        return {"vector": np.asarray(outputs[0]["pooled"]).tolist()}

    def cells(self, answer):
        return {"prediction": " ".join(f"{number:.6g}" for number in answer.get("vector", ()))}

    def in_graph(self, bundle, features, ids, inputs):
        return ids(features(**inputs))

    def served(self, bundle, query, output):
        return self.decode(bundle, query, (), (output,))
