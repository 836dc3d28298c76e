import zipfile

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from keras_ctxrep_tflite import quantize, runtime

from keras_ctxrep.text.bundle import load


@pytest.fixture(scope="module")
def file(models, tmp_path_factory):
    return quantize.convert(
        models / "elmo" / "classifier", tmp_path_factory.mktemp("tflite") / "m.tflite", "int8", (8, 16, 64)
    )


def test_signatures_and_builtin_operators(file):
    interpreter = Interpreter(model_path=str(file))
    assert set(interpreter.get_signature_list()) == {"length_8", "length_16", "length_32"}  # 32 is the model's maximum
    runner = interpreter.get_signature_runner("length_8")
    assert {name: tuple(d["shape"]) for name, d in runner.get_input_details().items()} == {
        "char_ids": (1, 8, 12),
        "mask": (1, 8),
    }
    assert set(runner.get_output_details()) == {"logits"}
    assert not [op for op in interpreter._get_ops_details() if op["op_name"].startswith("Flex")]


def test_weights_are_int8(file):
    interpreter = Interpreter(model_path=str(file))
    wide = {
        d["dtype"].__name__ for d in interpreter.get_tensor_details() if "MatMul" in d["name"] and len(d["shape"]) == 2
    }
    assert "int8" in wide


def test_the_bundle_is_inside(file):
    assert sorted(zipfile.ZipFile(file).namelist()) == ["bundle.json"]
    assert load(file).labels == ("kitchen", "music", "weather")
    assert load(file).max_length == 32


def test_the_answer_does_not_depend_on_the_signature(models, tmp_path):
    texts = ["the violin", "snow"]
    found = []
    for lengths in ((8,), (32,)):
        path = quantize.convert(models / "elmo" / "classifier", tmp_path / "m.tflite", "none", lengths)
        found.append(runtime.load(path).probabilities(texts))
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantize": "int4"}, "choose one of none, int8"),
        ({"out": "m.bin"}, r"must end in \.tflite"),
        ({"lengths": (2,)}, "at least 4"),
        ({"lengths": ()}, "at least 4"),
    ],
)
def test_bad_arguments(arguments, message, models, tmp_path):
    arguments = {"folder": models / "bert" / "classifier", "out": "m.tflite"} | arguments
    arguments["out"] = tmp_path / arguments["out"]
    with pytest.raises(ValueError, match=message):
        quantize.convert(**arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_of_the_converter_is_reported(models, tmp_path, monkeypatch):
    monkeypatch.setattr(quantize.sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="the TFLite converter failed"):
        quantize.convert(models / "bert" / "classifier", tmp_path / "m.tflite")
    assert list(tmp_path.iterdir()) == []
