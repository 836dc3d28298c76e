"""Published models by name: those in the package, and those that are downloaded, checked, converted and kept."""

from keras_ctxrep.zoo.cache import cached, describe, find, get, load
from keras_ctxrep.zoo.entries import ENTRIES, Entry, lookup

__all__ = ["ENTRIES", "Entry", "cached", "describe", "find", "get", "load", "lookup"]
