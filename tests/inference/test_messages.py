"""The table of TF Serving's messages against the generated classes of tensorflow-serving-api and TensorFlow."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.inference import messages


def generated() -> dict:
    """Our name -> the descriptor of the generated class, of those that are installed."""
    from google.protobuf import any_pb2, wrappers_pb2
    from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2
    from tensorflow.core.protobuf import meta_graph_pb2

    classes = {
        "TensorShapeDimension": tensor_shape_pb2.TensorShapeProto.Dim,
        "TensorShape": tensor_shape_pb2.TensorShapeProto,
        "Tensor": tensor_pb2.TensorProto,
        "TensorInfo": meta_graph_pb2.TensorInfo,
        "Signature": meta_graph_pb2.SignatureDef,
        "Version": wrappers_pb2.Int64Value,
        "Any": any_pb2.Any,
    }
    try:
        from tensorflow_serving.apis import (
            get_model_metadata_pb2,
            model_pb2,
            predict_pb2,
            prediction_log_pb2,
        )
    except ModuleNotFoundError:
        return classes
    return classes | {
        "Signatures": get_model_metadata_pb2.SignatureDefMap,
        "ModelSpec": model_pb2.ModelSpec,
        "PredictRequest": predict_pb2.PredictRequest,
        "PredictResponse": predict_pb2.PredictResponse,
        "PredictLog": prediction_log_pb2.PredictLog,
        "PredictionLog": prediction_log_pb2.PredictionLog,
        "MetadataRequest": get_model_metadata_pb2.GetModelMetadataRequest,
        "MetadataResponse": get_model_metadata_pb2.GetModelMetadataResponse,
    }


@pytest.mark.parametrize("name", messages.FIELDS)
def test_fields_are_those_of_the_generated_classes(name):
    classes = generated()
    if name not in classes:
        pytest.skip('tensorflow_serving is not installed: pip install ".[dev]"')
    own = {field.name: field for field in messages._CLASSES[name].DESCRIPTOR.fields}
    theirs = classes[name].DESCRIPTOR.fields_by_name
    for field, description in own.items():
        other = theirs[field]
        assert description.number == other.number and description.is_repeated == other.is_repeated, field
        assert description.type == other.type, field
        for number, value in description.enum_type.values_by_number.items() if description.enum_type else ():
            assert other.enum_type.values_by_number[number].name == value.name
        if other.message_type is not None and other.message_type.GetOptions().map_entry:
            assert description.message_type.GetOptions().map_entry, field


ARRAYS = [
    np.array(["the rain", "", "é 中"], object),
    np.arange(6, dtype=np.int32).reshape(2, 3),
    np.linspace(0, 1, 4, dtype=np.float32).reshape(2, 2),
    np.zeros((0, 2), np.float64),
    np.array([True, False]),
    np.array(7, np.int64),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_as_tensorflow_reads_and_writes_them(array):
    from tensorflow.core.framework import tensor_pb2

    request = messages.predict_request({"x": array}, "m", "s", 3)
    expected = np.array([text.encode() for text in array], object) if array.dtype == object else array
    theirs = tensor_pb2.TensorProto.FromString(request.inputs["x"].SerializeToString())
    np.testing.assert_array_equal(tf.make_ndarray(theirs), expected)
    tensor = messages._CLASSES["Tensor"].FromString(tf.make_tensor_proto(array).SerializeToString())
    np.testing.assert_array_equal(messages.array_of(tensor), expected)
    assert messages.array_of(tensor).dtype == array.dtype


def test_a_value_that_stands_for_all():
    proto = tf.compat.v1.make_tensor_proto(2.5, tf.float32, [2, 3])
    tensor = messages._CLASSES["Tensor"].FromString(proto.SerializeToString())
    assert len(tensor.float_val) == 1
    assert messages.array_of(tensor).tolist() == [[2.5] * 3] * 2


def test_types_that_are_not_served():
    with pytest.raises(ValueError, match="an array of uint8: one of float32"):
        messages.predict_request({"x": np.zeros(2, np.uint8)}, "m")
    tensor = messages._CLASSES["Tensor"].FromString(tf.make_tensor_proto(1, tf.uint8).SerializeToString())
    with pytest.raises(ValueError, match="TensorFlow's type 4"):
        messages.array_of(tensor)


def test_the_version_that_is_asked():
    spec = messages.predict_request({}, "m", "ids", label="stable").model_spec
    assert (spec.name, spec.signature_name, spec.version_label) == ("m", "ids", "stable")
    assert not spec.HasField("version")
    assert messages.predict_request({}, "m", version=0).model_spec.HasField("version")


def test_without_tensorflow():
    code = "import sys, keras_ctxrep.inference.messages; print('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
