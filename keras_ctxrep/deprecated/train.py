"""Deprecated: training is in `keras_ctxrep.training.fit`, model folders are in `keras_ctxrep.saving`."""

from keras_ctxrep.deprecated import moved

__getattr__ = moved(
    __name__,
    "keras_ctxrep.training.fit",
    "keras_ctxrep.saving",
    "keras_ctxrep.models.model",
    "keras_ctxrep.training.strategy",
    "keras_ctxrep.inference.keras_engine",
)
