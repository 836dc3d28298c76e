"""An encoder by itself: its answer to a text is a vector."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.task import Task


class Embed(Task):
    """No head: the vector of a text is the encoder's pooled output."""

    name = "embed"
    help = "a vector"
    model_outputs: ClassVar[tuple[str, ...]] = ("pooled",)
    columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text": ("text", "sentence", "sentence1", "premise", "question1")
    }

    labelled: ClassVar[tuple[str, ...]] = ()

    def examples(self, row, source="", columns=None):
        yield Example(self.text(row, "text", columns), source=source)

    def head(self, encoder, bundle):
        return encoder

    def check(self, bundle):
        if not bundle.config.get("pooler", True):
            raise ValueError("this encoder has no pooler, so no vector of a text; use `ctxrep embed`")

    def cells(self, answer):
        return {"prediction": " ".join(f"{number:.6g}" for number in answer.get("vector", ()))}

    def decode(self, bundle, query, rows, outputs):
        return {"vector": np.asarray(outputs[0]["pooled"]).tolist()}
