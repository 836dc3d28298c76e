"""Contextual text representations in Keras, from raw text to TF Serving and TFLite.

    import keras_ctxrep as ctx

    model = ctx.load("bert_6_384_12/books_wiki_en")
    vectors = model.encode(["The bank of the river", "The bank robbed him"])
    classifier = ctx.finetune((texts, labels), dev=0.1, encoder=model, task="classify")

Importing this package loads neither Keras nor TensorFlow; what a name needs is imported when the name is used. For
one's own Keras script, `keras.models.load_model` then reads what is made of our layers, and layers, models and text
preparation are in the modules:

    keras_ctxrep.layers    CharCNN, ProjectedLSTM, ScalarMix, ...       Keras
    keras_ctxrep.models    elmo, bert, heads: functions -> keras.Model  Keras
    keras_ctxrep.text      tokens, features, bundle                     NumPy and `tokenizers` only

Axes are letters, the same in every file:

    B batch   T tokens   W characters per word   D width   H heads   N layers   V vocabulary   C classes
    P masked positions per example

and `mask` is int32, 1 at a real token, 0 at padding.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from keras_ctxrep.registration import register
from keras_ctxrep.version import __version__ as __version__

if TYPE_CHECKING:
    from keras_ctxrep import tasks, zoo
    from keras_ctxrep.api import Model, finetune, load, pretrain
    from keras_ctxrep.text.bundle import Bundle
    from keras_ctxrep.text.search import Index

__all__ = ["Bundle", "Index", "Model", "finetune", "load", "pretrain", "tasks", "zoo"]

__path__.append(os.path.join(__path__[0], "deprecated"))  # `keras_ctxrep.train` and others, with a warning

register()

# name -> its module, if not `api` or a module of that name
_MODULES = {"Bundle": "text.bundle", "Index": "text.search"}


def __getattr__(name: str) -> Any:
    if name in ("tasks", "zoo"):
        return importlib.import_module(f"{__name__}.{name}")
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'api')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
