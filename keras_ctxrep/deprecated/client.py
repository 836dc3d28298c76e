"""Deprecated: it is `keras_ctxrep.inference.client`."""

from keras_ctxrep.deprecated import moved

__getattr__ = moved(__name__, "keras_ctxrep.inference.client")
