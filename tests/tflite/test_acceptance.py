"""Exports that are measured before they are accepted, and what each layer costs."""

import functools
import io
import json
import zipfile
from dataclasses import replace

import pytest
import tqdm

from keras_ctxrep import saving
from keras_ctxrep.cli import main
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.options import Tflite
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import load
from keras_ctxrep_export import kit, saved_model
from keras_ctxrep_tflite import compare, quantize, runtime
from tests import tiny


@pytest.fixture(scope="module", autouse=True)
def converted_once(tflite_in_process):
    """The converter runs once for the same model and lengths."""
    with pytest.MonkeyPatch.context() as patch:
        convert = functools.cache(quantize.float_model)
        patch.setattr(quantize, "float_model", lambda folder, lengths: convert(str(folder), tuple(lengths)))
        yield


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("m")
    saving.save(path, *tiny_model("classify", card="Trained on tales."))
    return path


@pytest.fixture(scope="module")
def data(folder, tmp_path_factory):
    """Labelled rows, and the same texts alone."""
    path = tmp_path_factory.mktemp("data")
    texts = ["the cat fell", "she fell", "rain", "the rain fell .", "a b c d e", "cats", "f g h", "中 cat"]
    labels = [answer["label"] for answer in keras_engine.predictor(folder)(texts)]
    rows = "".join(f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True))
    (path / "labelled.tsv").write_text(f"text\tlabel\n{rows}")
    (path / "plain.txt").write_text("\n".join(texts))
    return path


def card(path):
    with zipfile.ZipFile(path) as archive:
        return archive.read(bundles.CARD).decode()


def test_the_figures_are_in_the_card(folder, data, tmp_path):
    options = Tflite(quantize="float16")
    result = quantize.build(folder, load(folder), tmp_path / "m.tflite", options, (16, 40), data / "labelled.tsv")
    assert not [*tmp_path.iterdir()]
    result.write(tmp_path / "m.tflite")
    assert result.rows[1]["quality"] == result.rows[0]["quality"] == 1.0
    text = card(tmp_path / "m.tflite")
    assert text.startswith("Trained on tales.\n\n## Export to .tflite\n\n- Number format: float16\n")
    assert "- Measured on 8 examples of labelled.tsv: accuracy 100.00% (100.00% in Keras, +0.00 points)" in text
    assert [path.name for path in tmp_path.iterdir()] == ["m.tflite"]
    assert load(folder).card == "Trained on tales." and runtime.load(tmp_path / "m.tflite")(["the cat"])


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_conversion_shows_what_it_does(folder, data, tmp_path, monkeypatch):
    """Bars on a terminal: of the calibration, of every layer, of the answers and of the latencies."""
    stream = Terminal()
    monkeypatch.setattr(quantize.sys, "stderr", stream)
    monkeypatch.setattr("tqdm.tqdm", functools.partial(tqdm.tqdm, mininterval=0, miniters=1, ncols=100))
    options = Tflite(quantize="int8", calibrate=[str(data / "plain.txt")], explain=True)
    quantize.build(folder, load(folder), tmp_path / "m.tflite", options, (16, 40), data / "labelled.tsv")
    shown = stream.getvalue()
    for text in ("converting in a subprocess", "calibrating: 100%", "measuring what each layer costs",
                 "writing the weights as int8", "answers of Keras: 100%", "answers of m.tflite: 100%"):  # fmt: skip
        assert text in shown
    assert "latency of single texts: 100%" in shown and " 8/8 " in shown


def test_without_a_terminal_a_line_from_time_to_time(folder, data, tmp_path, monkeypatch, capsys):
    arguments = folder, load(folder), tmp_path / "m.tflite", Tflite(), (16, 40), data / "labelled.tsv"
    quantize.build(*arguments)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(quantize, "HALF_MINUTE", 0.0)
    quantize.build(*arguments)
    assert "latency of single texts: 8 of 8 texts\n" in capsys.readouterr().err


@pytest.fixture
def broken(monkeypatch):
    """A quantizer that ruins one layer."""
    quantized = quantize.weights.quantized

    def ruin(model, form, only=None, ranges=None):
        model = quantized(model, form, only, ranges)
        if only is not None and "logits/kernel" in only:
            parsed = quantize.weights.read(model)
            for tensor in (tensor for graph in parsed.subgraphs for tensor in graph.tensors):
                if tensor.name == b"logits/kernel":
                    buffer = parsed.buffers[tensor.buffer]
                    buffer.data = (-buffer.data.astype("i1")).view("u1")
            model = quantize.weights.packed(parsed)
        return model

    monkeypatch.setattr(quantize.weights, "quantized", ruin)
    monkeypatch.setattr(quantize.weights, "SMALLEST", 16)


@pytest.mark.parametrize(("name", "figure"), [("labelled.tsv", "points"), ("plain.txt", "percent of the answers")])
def test_a_file_beyond_the_bound_is_put_aside(name, figure, folder, data, broken, tmp_path, capsys):
    out = tmp_path / "m.tflite"
    arguments = ["tflite", str(folder), "--out", str(out), "--quantize", "dynamic", "--lengths", "40"]
    assert main.main([*arguments, "--data", str(data / name)]) == 1
    message = capsys.readouterr().err
    assert "m.tflite is not written: " in message and figure in message and "--max-drop is 1. The file" in message
    assert "--quantize float16; --explain" in message and "--keep-float LAYER" in message
    assert [path.name for path in tmp_path.iterdir()] == ["m.rejected.tflite"]
    assert "## Export to .tflite" in card(tmp_path / "m.rejected.tflite")
    assert main.main([*arguments, "--data", str(data / name), "--max-drop", "100"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["m.tflite"]


def test_a_page_beyond_the_bound(folder, data, broken, tmp_path, capsys):
    """The file of a page has no name of its own; where the message says, it is kept."""
    arguments = ["tflite", str(folder), "--web", str(tmp_path / "page"), "--quantize", "dynamic", "--lengths", "40"]
    assert main.main([*arguments, "--data", str(data / "labelled.tsv")]) == 1
    kept = tmp_path / "page.rejected.tflite"
    assert f"The file is kept as {kept}. " in capsys.readouterr().err and list(tmp_path.iterdir()) == [kept]
    assert main.main([*arguments, "--data", str(data / "labelled.tsv"), "--max-drop", "100"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


def test_the_layer_that_costs_most(folder, data, broken, tmp_path, capsys):
    """It heads the table and the picture, and is the one that stays float32."""
    out = tmp_path / "m.tflite"
    arguments = ["tflite", str(folder), "--out", str(out), "--quantize", "dynamic", "--lengths", "40", "--explain"]
    assert main.main([*arguments, "--data", str(data / "labelled.tsv"), "--keep-float", "auto"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["layer", "mean", "difference"] and lines[2].split()[0] == "logits/kernel"
    assert "in float32: logits/kernel" in lines
    assert (tmp_path / "m.layers.png").read_bytes().startswith(b"\x89PNG")
    assert "- Number format: dynamic; in float32: logits/kernel\n" in card(out)
    assert main.main([*arguments[:-1], "--keep-float", "logits", "--data", str(data / "labelled.tsv")]) == 0


def test_layers_are_measured_on_data(folder, tmp_path, capsys):
    for flags in (["--explain"], ["--keep-float", "auto"]):
        assert main.main(["tflite", str(folder), "--out", str(tmp_path / "m.tflite"), *flags]) == 1
        assert "needs data to measure the layers with" in capsys.readouterr().err


def test_a_saved_model_cites_the_figures(folder, data, tmp_path, capsys):
    file, out = tmp_path / "m.tflite", tmp_path / "served"
    convert = ["tflite", str(folder), "--quantize", "float16", "--lengths", "16,40", "--out", str(file)]
    export = ["export", str(folder), "--tflite", str(file), "--out", str(out)]
    assert main.main(convert) == 0
    assert (
        main.main(export) == 1 and "it was not measured; write it with `ctxrep tflite --data" in capsys.readouterr().err
    )
    assert main.main([*convert, "--data", str(data / "labelled.tsv")]) == 0
    assert main.main(export) == 0, capsys.readouterr().err
    text = (out / "1" / "README.md").read_text()
    weights, _, figures = text.partition("\n## Export to .tflite\n")
    assert "## The pretrained weights\n\nTrained on tales." in weights
    assert "- Measured on 8 examples of labelled.tsv: accuracy 100.00% (100.00% in Keras, +0.00 points)" in figures
    assert "| licence of the weights | see below |" in weights
    model, bundle = saving.load_served(folder)
    without = kit.Readme("m", out / "1", replace(bundle, card=bundles.TFLITE_FIGURES), {}, 1, {})._card()
    assert "| as .tflite | see below |" in without and "none is recorded" in without
    with pytest.raises(ValueError, match=r"m\.tflite: of another model: its task, labels or vocabulary differ"):
        saved_model.export(model, replace(bundle, labels=("a", "b")), tmp_path / "other", tflite=file)
    assert not (tmp_path / "other").exists()


def test_a_label_that_the_model_does_not_know_is_an_error(tiny_model, tmp_path):
    saving.save(tmp_path / "m", *tiny_model("classify"))
    engines = [open_model(tmp_path / "m")] * 2
    (answer,) = engines[0].answer(["the cat"])
    examples = [Example("the cat", answer["label"]), Example("rain", "maybe")]
    with pytest.warns(UserWarning, match=r"count as errors: 'maybe' \(1\)") as caught:
        rows = compare.compare(engines, examples)
    assert len(caught) == 1 and [row["quality"] for row in rows] == [0.5, 0.5]


@pytest.mark.parametrize(
    "model, examples, message",
    [
        ("one", [Example("the cat", "no"), Example("\u200b", "no", source="f:3")], "f:3: no words"),
        ("one", [Example("the cat", "no", "she", source="f:2")], "f:2: a pair of texts; .*one reads one text"),
        ("two", [Example("the cat", "no", source="f:2")], "f:2: one text; .*two reads a pair"),
    ],
)
def test_examples_that_a_model_cannot_read(tiny_model, tmp_path, model, examples, message):
    saving.save(tmp_path / model, *tiny_model("classify", pair=model == "two"))
    rows = "".join(json.dumps({"text": e.text, "label": e.label, "pair": e.pair}) + "\n" for e in examples)
    (tmp_path / "rows.jsonl").write_text(rows)
    with pytest.raises(ValueError, match=message.split(": ")[1]):
        quantize.build(
            tmp_path / model, load(tmp_path / model), tmp_path / "m.tflite", Tflite(), [40], tmp_path / "rows.jsonl"
        )
    with pytest.raises(ValueError, match=message):
        compare.compare([open_model(tmp_path / model)], examples)


def test_calibration_reads_the_given_columns(folder, tmp_path):
    (tmp_path / "rows.tsv").write_text("foo\tbar\nthe cat\tno\nrain\tyes\n")
    options = Tflite(quantize="int8", calibrate=[tmp_path / "rows.tsv"], columns={"text": "foo", "label": "bar"})
    assert (
        quantize.build(folder, load(folder), tmp_path / "m.tflite", options, [40])
        .write(tmp_path / "m.tflite")
        .is_file()
    )


def test_calibration_skips_texts_without_words(tmp_path):
    sizes = {"cells": 32, "projection": 32, "filters": ((1, 32), (2, 32))}  # weights that are large enough to quantize
    tiny.save(tmp_path / "m", tiny.bundle("tag", "elmo", labels=tuple(f"l{i}" for i in range(40)), sizes=sizes))
    (tmp_path / "t.txt").write_text("the cat\n\u200b\nrain\n")
    assert quantize.convert(tmp_path / "m", tmp_path / "m.tflite", "int8", calibrate=[tmp_path / "t.txt"]).is_file()


@pytest.mark.parametrize(
    ("texts", "message"),
    [("the cat\tshe ran\nrain\n", r"t\.txt:2: a pair has one tab"), ("\n", r"t\.txt: no text in it that the model re")],
)
def test_calibration_texts_are_read_before_the_conversion(tiny_model, monkeypatch, tmp_path, texts, message):
    monkeypatch.setattr(quantize, "float_model", None)
    saving.save(tmp_path / "m", *tiny_model("classify", pair=True))
    (tmp_path / "t.txt").write_text(texts)
    with pytest.raises(ValueError, match=message):
        quantize.convert(tmp_path / "m", tmp_path / "m.tflite", "int8", calibrate=[tmp_path / "t.txt"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"calibrate": "t.txt"}, r"calibrate='t\.txt': must be a list"),
        ({"keep_float": "pooler"}, "keep_float='pooler': must be a list"),
    ],
)
def test_one_string_is_no_list(folder, tmp_path, given, message):
    with pytest.raises(TypeError, match=message):
        quantize.convert(folder, tmp_path / "m.tflite", "int8", **given)
    with pytest.raises(TypeError, match=message):
        Tflite(**given)


def test_what_is_refused_before_the_conversion(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(quantize, "float_model", None)
    (tmp_path / "m.tflite").mkdir()
    arguments = ["tflite", str(folder), "--out", str(tmp_path / "m.tflite")]
    assert main.main(arguments) == 1
    assert f"{tmp_path / 'm.tflite'}: a folder; name a file" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main.main([*arguments, "--max-drop", "2"])
    assert "--max-drop is for --data" in capsys.readouterr().err
