"""Makes operators_2_20.txt.xz: the operators of TensorFlow 2.20 and tensorflow-text 2.20, which TF Serving 2.20 links.

    python tests/reference/operators_2_20.py       (made with tensorflow 2.20.0, tensorflow-text 2.20.1)

A line for each operator, its name and the names of its attributes.
"""

import lzma
from pathlib import Path

import tensorflow_text  # noqa: F401  registers its operators
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

operators = op_def_pb2.OpList()
operators.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
lines = sorted(" ".join([op.name, *sorted(attr.name for attr in op.attr)]) for op in operators.op)
with lzma.open(Path(__file__).with_suffix(".txt.xz"), "wt") as file:
    file.write("\n".join(lines) + "\n")
