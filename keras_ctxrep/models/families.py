"""The families of encoders by the names that bundles use."""

from keras_ctxrep.models import bert, elmo, static
from keras_ctxrep.models.family import Family

FAMILIES: dict[str, Family] = {"elmo": elmo.FAMILY, "bert": bert.FAMILY, "static": static.FAMILY}
