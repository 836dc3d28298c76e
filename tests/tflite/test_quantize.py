import io
import json
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import keras_ctxrep as ctx
from keras_ctxrep.cli import main
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.layers import lstm
from keras_ctxrep.options import Tflite
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.text.bundle import load
from keras_ctxrep_tflite import compare, quantize, runtime
from tests import tiny


@pytest.fixture(scope="module")
def file(models, tmp_path_factory):
    return quantize.convert(
        models / "elmo" / "classifier", tmp_path_factory.mktemp("tflite") / "m.tflite", "dynamic", (8, 16, 64)
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
    kinds = {d["name"]: d["dtype"].__name__ for d in interpreter.get_tensor_details()}
    assert kinds["char_cnn/W_proj"] == kinds["char_cnn/char_embed"] == kinds["forward_0/kernel"] == "int8"


def test_the_bundle_is_inside(file):
    assert sorted(zipfile.ZipFile(file).namelist()) == ["bundle.json", "card.md"]
    assert load(file).labels == ("kitchen", "music", "weather")
    assert load(file).max_length == 32


@pytest.mark.filterwarnings("ignore:.*longer texts are cut")
@pytest.mark.slow  # two conversions of a biLM
def test_the_answer_does_not_depend_on_the_signature(models, tmp_path):
    texts = ["the violin", "snow"]
    result = []
    for lengths in ((8,), (32,)):
        path = quantize.convert(models / "elmo" / "classifier", tmp_path / "m.tflite", "none", lengths)
        result.append(runtime.load(path).probabilities(texts))
    np.testing.assert_allclose(result[0], result[1], atol=1e-6)


def test_long_texts_are_read_in_blocks_of_steps(tflite_in_process, monkeypatch, tmp_path):
    folder = tiny.save(tmp_path / "m", tiny.bundle("embed", "elmo", max_length=10))
    texts = ["the", "the cat fell", "a b c d e f", "a b c d e f g h i j"]
    expected = ctx.load(folder).encode(texts)
    monkeypatch.setattr(lstm, "LOOP", 4)
    monkeypatch.setattr(lstm, "BLOCK", 3)
    file = quantize.convert(folder, tmp_path / "m.tflite", lengths=(10,))
    np.testing.assert_allclose(ctx.load(file).encode(texts), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantize": "int4"}, "must be none, float16, dynamic or int8"),
        ({"out": "m.bin"}, r"must end in \.tflite"),
        ({"lengths": (2,)}, "at least 4"),
        ({"lengths": ()}, "at least 4"),
        ({"quantize": "dynamic", "calibrate": ["a.txt"]}, "are for 'int8'"),
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


def parts(path):
    """The bytes that LiteRT reads, and the files in the archive behind them."""
    with zipfile.ZipFile(path) as archive:
        begin = min(entry.header_offset for entry in archive.infolist())
        return path.read_bytes()[:begin], {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("place", [0.001, 0.5, 0.999])
def test_a_damaged_model_is_refused_before_litert_sees_it(file, tmp_path, monkeypatch, place):
    data = bytearray(file.read_bytes())
    data[int(place * len(parts(file)[0]))] ^= 1
    (tmp_path / "m.tflite").write_bytes(data)
    seen = []
    monkeypatch.setattr("ai_edge_litert.compiled_model.CompiledModel.from_file", lambda *args, **_: seen.append(args))
    with pytest.raises(ValueError, match=r"m\.tflite: the model in it is damaged; copy the file again"):
        runtime.load(tmp_path / "m.tflite")
    assert not seen


def test_files_of_version_0_1_have_no_hash(file, tmp_path):
    model, files = parts(file)
    fields = json.loads(files["bundle.json"])
    assert fields["files"].pop("model.tflite")
    fields |= {"format": 1, "pairs": False, "stride": 128, "max_answer": 30, "null_threshold": None}
    old = {name: value for name, value in fields.items() if name not in ("reads", "settings", "sha256")}
    (tmp_path / "m.tflite").write_bytes(model)
    with zipfile.ZipFile(tmp_path / "m.tflite", "a") as archive:
        archive.writestr("bundle.json", json.dumps(old))
    texts = ["the violin", "snow"]
    assert runtime.load(tmp_path / "m.tflite")(texts) == runtime.load(file)(texts)


def test_int8_without_texts_is_dynamic(long_model, tflite_in_process, tmp_path):
    with pytest.warns(UserWarning, match="the same as dynamic; give texts .*--calibrate FILE"):
        quantize.convert(long_model, tmp_path / "int8.tflite", "int8")
    quantize.convert(long_model, tmp_path / "dynamic.tflite", "dynamic")
    assert parts(tmp_path / "int8.tflite")[0] == parts(tmp_path / "dynamic.tflite")[0]


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """A classifier that reads 20 tokens."""
    return tiny.save(tmp_path_factory.mktemp("long"), tiny.bundle("classify", max_length=20))


def test_the_last_length_is_that_of_the_model(long_model, tflite_in_process, tmp_path):
    path = quantize.convert(long_model, tmp_path / "m.tflite")
    lengths = {int(name.partition("_")[2]) for name in Interpreter(model_path=str(path)).get_signature_list()}
    assert lengths == {16, 20} and load(path).max_length == 20
    assert ["truncated" in answer for answer in runtime.load(path)(["a " * 18, "a " * 19])] == [False, True]
    assert quantize._signature_lengths(None, 300) == [16, 32, 64, 128, 256, 300]


def test_fewer_tokens_than_the_model_reads(long_model, tflite_in_process, tmp_path):
    """A warning, and `compare` counts the texts that were cut."""
    with pytest.warns(
        UserWarning, match=r"lengths=\[.*8\]: the file reads 8 tokens of a text, and the model 20: .* the length 20"
    ):
        quantize.convert(long_model, tmp_path / "m.tflite", lengths=(4, 8))
    engines = [open_model(path) for path in (long_model, tmp_path / "m.tflite")]
    rows = compare.compare(engines, [Example("a " * size) for size in (6, 7, 10, 40)])
    assert [row["truncated"] for row in rows] == [1, 3]
    column = compare.HEADER.index("cut texts")
    assert [row[column] for row in compare.engines_table(rows)[1:]] == ["1", "3"]


def test_words_without_pieces(tflite_in_process, tmp_path):
    """18 words, of which 6 have no piece: their labels are as of Keras."""
    tiny.save(tmp_path / "m", tiny.bundle("tag", max_length=32, sizes={"initializer_range": 1.0}))
    edge = runtime.load(quantize.convert(tmp_path / "m", tmp_path / "m.tflite", "none", (16, 32)))
    sentence = ["a", "b", "\u200b"] * 6
    text = " ".join(word for word in sentence if word != "\u200b")
    expected, actual = (predictor([sentence, text]) for predictor in (keras_engine.predictor(tmp_path / "m"), edge))
    for wanted, entry in zip(expected, actual, strict=True):
        assert [word["label"] for word in wanted["words"]] == [word["label"] for word in entry["words"]]
        np.testing.assert_allclose(*([word["score"] for word in a["words"]] for a in (wanted, entry)), atol=1e-5)
    assert [word["label"] is None for word in actual[0]["words"]] == [False, False, True] * 6
    labels = [word["label"] for word in actual[0]["words"] if word["label"]]
    assert labels == [word["label"] for word in actual[1]["words"]] and len(set(labels)) > 1


def test_lengths_that_are_no_numbers(capsys):
    with pytest.raises(SystemExit):
        main.main(["tflite", "m", "--out", "m.tflite", "--lengths", "16,abc"])
    assert "lambda" not in capsys.readouterr().err


@pytest.mark.usefixtures("tflite_in_process")
def test_the_steps_are_told_on_a_terminal_alone(tmp_path, monkeypatch):
    folder = tiny.save(tmp_path / "m", tiny.bundle("classify"))
    (tmp_path / "d.tsv").write_text("text\tlabel\nthe cat\tno\nrain\tyes\n")
    for terminal in (True, False):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda terminal=terminal: terminal, raising=False)
        monkeypatch.setattr("sys.stderr", stream)
        options = Tflite(quantize="dynamic", max_drop=100)
        quantize.build(folder, load(folder), tmp_path / "m.tflite", options, data=tmp_path / "d.tsv")
        steps = ("converting in a subprocess", "the weights as dynamic", "answers of Keras")
        assert [step in stream.getvalue() for step in steps] == [terminal] * 3


def module_of(tracked):
    """A module over a Keras model that tracks the model itself, or its variables alone; and its signature."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2000), keras.layers.Dense(3)])

    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            self.tracked = tracked(model)
            self.run = tf.function(lambda x: {"y": model(x)}, input_signature=[tf.TensorSpec((1, 4), name="x")])

    module = Module()
    return module, {"serve": module.run.get_concrete_function()}


def test_a_file_without_its_weights_is_not_written(capfd):
    """What the converter makes, without an error, of a module that holds a Keras model."""
    assert quantize._converted(*module_of(lambda model: [weight.value for weight in model.weights]))
    with pytest.raises(RuntimeError, match=r"stored variables without their values \(.*VAR_HANDLE"):
        quantize._converted(*module_of(lambda model: model))


def test_a_file_with_other_answers_is_not_written(monkeypatch):
    from ai_edge_litert import interpreter

    class Wrong(interpreter.Interpreter):
        def get_signature_runner(self, name):
            run = super().get_signature_runner(name)

            def wrong(**inputs):
                return {key: value * self.factor for key, value in run(**inputs).items()}

            wrong.get_input_details = run.get_input_details
            return wrong

    monkeypatch.setattr(interpreter, "Interpreter", Wrong)
    module = module_of(lambda model: [weight.value for weight in model.weights])
    for factor in (1.01, np.nan):
        Wrong.factor = factor
        with pytest.raises(RuntimeError, match="the converted serve gives y that differ by"):
            quantize._converted(*module)
    Wrong.factor = 1
    assert quantize._converted(*module)
