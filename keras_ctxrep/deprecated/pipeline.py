"""Deprecated: it is `keras_ctxrep.training.pipeline`."""

from keras_ctxrep.deprecated import moved

__getattr__ = moved(__name__, "keras_ctxrep.training.pipeline")
