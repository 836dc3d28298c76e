"""Deprecated: it is `keras_ctxrep.inference.predictor`."""

from keras_ctxrep.deprecated import moved

__getattr__ = moved(__name__, "keras_ctxrep.inference.predictor")
