"""The protocol buffer messages that TF Serving's gRPC interface, warm-up files and model.config consist of.

The packages with the generated classes, tensorflow-serving-api and tensorflow, import all of TensorFlow, which takes
seconds and two gigabytes: too much for a client. Here a table describes the fields of the same messages that are used;
protobuf skips fields it does not know, so the bytes are compatible in both directions. `tests/test_messages.py`
compares every entry with the generated classes.

Sources: tensorflow/core/framework/tensor.proto and types.proto, tensorflow/core/protobuf/meta_graph.proto;
https://github.com/tensorflow/serving, tensorflow_serving/apis/*.proto and config/model_server_config.proto.
"""

import math
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError as DecodeError

from keras_ctxrep.text.artifacts import SIGNATURE

MOST = 1 << 24  # values of a tensor that are not sent one by one
# number of a data type -> its name, its NumPy type, and the field of its values
_TYPES: dict[int, tuple[str, Any, str]] = {
    1: ("DT_FLOAT", np.float32, "float_val"),
    2: ("DT_DOUBLE", np.float64, "double_val"),
    3: ("DT_INT32", np.int32, "int_val"),
    7: ("DT_STRING", object, "string_val"),
    9: ("DT_INT64", np.int64, "int64_val"),
    10: ("DT_BOOL", np.bool_, "bool_val"),
}
# message -> field -> (number, type); "[T]" is repeated, "{T}" a map from strings; a capital is a message or enum
FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "TensorShapeDimension": {"size": (1, "int64")},
    "TensorShape": {"dim": (2, "[TensorShapeDimension]"), "unknown_rank": (3, "bool")},
    "Tensor": {
        "dtype": (1, "DataType"),
        "tensor_shape": (2, "TensorShape"),
        "tensor_content": (4, "bytes"),
        "float_val": (5, "[float]"),
        "double_val": (6, "[double]"),
        "int_val": (7, "[int32]"),
        "string_val": (8, "[bytes]"),
        "int64_val": (10, "[int64]"),
        "bool_val": (11, "[bool]"),
    },
    "TensorInfo": {"name": (1, "string"), "dtype": (2, "DataType"), "tensor_shape": (3, "TensorShape")},
    "Signature": {"inputs": (1, "{TensorInfo}"), "outputs": (2, "{TensorInfo}"), "method_name": (3, "string")},
    "Signatures": {"signature_def": (1, "{Signature}")},
    "Version": {"value": (1, "int64")},
    "ModelSpec": {
        "name": (1, "string"),
        "version": (2, "Version"),
        "signature_name": (3, "string"),
        "version_label": (4, "string"),
    },
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "{Tensor}")},
    "PredictResponse": {"outputs": (1, "{Tensor}"), "model_spec": (2, "ModelSpec")},
    "PredictLog": {"request": (1, "PredictRequest")},
    "PredictionLog": {"predict_log": (6, "PredictLog")},
    "Any": {"type_url": (1, "string"), "value": (2, "bytes")},
    "MetadataRequest": {"model_spec": (1, "ModelSpec"), "metadata_field": (2, "[string]")},
    "MetadataResponse": {"model_spec": (1, "ModelSpec"), "metadata": (2, "{Any}")},
}


def _classes() -> dict[str, Any]:
    """Message -> its class, of the table, in a descriptor pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(name="messages.proto", package="keras_ctxrep", syntax="proto3")
    types = file.enum_type.add(name="DataType")
    types.value.add(name="DT_INVALID", number=0)
    for number, (name, _, _) in _TYPES.items():
        types.value.add(name=name, number=number)

    def add(message, name: str, number: int, kind: str) -> None:
        inner = kind.strip("[]{}")
        field = message.field.add(name=name, number=number)
        field.label = field.LABEL_OPTIONAL if kind == inner else field.LABEL_REPEATED
        if kind.startswith("{"):
            entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            add(entry, "key", 1, "string")
            add(entry, "value", 2, inner)
            inner = f"{message.name}.{entry.name}"
        if inner == file.enum_type[0].name:
            field.type, field.type_name = field.TYPE_ENUM, f".keras_ctxrep.{inner}"
        elif inner[0].isupper():
            field.type, field.type_name = field.TYPE_MESSAGE, f".keras_ctxrep.{inner}"
        else:
            field.type = getattr(field, f"TYPE_{inner.upper()}")

    for message_name, fields in FIELDS.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind) in fields.items():
            add(message, name, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"keras_ctxrep.{name}")) for name in FIELDS
    }


_CLASSES = _classes()
PredictRequest: Any = _CLASSES["PredictRequest"]
PredictResponse: Any = _CLASSES["PredictResponse"]
PredictionLog: Any = _CLASSES["PredictionLog"]
MetadataRequest: Any = _CLASSES["MetadataRequest"]
MetadataResponse: Any = _CLASSES["MetadataResponse"]
Signatures: Any = _CLASSES["Signatures"]


def predict_request(
    inputs: dict[str, np.ndarray],
    model: str,
    signature: str = SIGNATURE,
    version: int | None = None,
    label: str | None = None,
) -> Any:
    """A `PredictRequest`.

    Args:
        inputs: arrays by name, those of strings with the type object.
        model: name of the model on the server.
        signature: of the model.
        version, label: of the version that is asked; neither: the server's choice, the latest.

    >>> predict_request({"text": np.array(["snow"], object)}, "topics").inputs["text"].string_val
    [b'snow']
    """
    request = PredictRequest()
    specify(request.model_spec, model, version, label)
    request.model_spec.signature_name = signature
    for name, array in inputs.items():
        fill_tensor(request.inputs[name], array)
    return request


def specify(spec: Any, model: str, version: int | None, label: str | None) -> None:
    """Sets name and version of a `ModelSpec`."""
    spec.name = model
    if version is not None:
        spec.version.value = version
    if label is not None:
        spec.version_label = label


def fill_tensor(tensor: Any, array: np.ndarray) -> None:
    """Sets a `Tensor` to an array.

    Raises:
        ValueError: an array of a type that no model of ours reads.
    """
    kinds = {np.dtype(kind): number for number, (_, kind, _) in _TYPES.items()}
    if array.dtype not in kinds:
        raise ValueError(f"an array of {array.dtype}: one of {', '.join(map(str, kinds))}")
    tensor.dtype = kinds[array.dtype]
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    flat = array.ravel().tolist()
    if array.dtype == object:
        flat = [text.encode("utf-8", "replace") if isinstance(text, str) else text for text in flat]
    getattr(tensor, _TYPES[tensor.dtype][2]).extend(flat)


def array_of(tensor: Any) -> np.ndarray:
    """The array of a `Tensor`; strings are bytes in an array of objects.

    Raises:
        ValueError: a tensor of a type that no model of ours answers with.

    >>> request = predict_request({"text": np.array([[1, 2]], np.int32)}, "topics")
    >>> array_of(request.inputs["text"]).tolist()
    [[1, 2]]
    """
    if tensor.dtype not in _TYPES:
        raise ValueError(f"a tensor of TensorFlow's type {tensor.dtype}, see types.proto")
    _, kind, field = _TYPES[tensor.dtype]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    count = math.prod(shape)
    if min(shape, default=0) < 0:
        raise ValueError(f"a tensor of the shape {shape}")
    content = tensor.tensor_content
    if content and (kind is object or len(content) != count * np.dtype(kind).itemsize):
        raise ValueError(f"{len(content):,} bytes of a tensor of the shape {shape}")
    values = np.frombuffer(content, kind) if content else np.array([*getattr(tensor, field)], kind)
    if 0 < len(values) < count <= MOST:  # the last value stands for all that follow
        values = np.concatenate([values, np.repeat(values[-1:], count - len(values))])
    if len(values) != count:
        raise ValueError(f"{len(values):,} values of a tensor of the shape {shape}")
    return values.reshape(shape)
