"""One .tflite file of several models over the same encoder: their answers, and what is stored once."""

import gc
import json
from dataclasses import replace

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import places, saving, updates, zoo
from keras_ctxrep.cli.main import main
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.recipes import serving
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep_tflite import compare, quantize, runtime, weights
from tests import tiny

pytestmark = [pytest.mark.trains, pytest.mark.usefixtures("tflite_in_process")]
TEXTS = ["the cats fell", "rain", "she had a cat"]
BASE = "bert_3_384_12/books_wiki_en"
KERNEL = "layer_0/qkv/kernel"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A pretrained BERT that comes with the package, and two models of changes over it; by the names in a file."""
    root = tmp_path_factory.mktemp("several")
    sizes = {"width": 32, "intermediate": 64}
    bundle = replace(tiny.bundle("embed", sizes=sizes), task="pretrainer")
    model, rng = saving.build(bundle), np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight + 0.1 * rng.normal(size=weight.shape))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "SHIPPED", root / "weights")
        saving.save(root / "weights" / BASE, model, bundle)
        found = {"filled": zoo.find(BASE)}
        options = {"steps": 6, "batch_size": 8, "learning_rate": 0.05, "lora": 2, "dev": 0.2}
        data = {
            "sentiment": {"text": TEXTS * 8, "label": [*"aba"] * 8},
            "names": {
                "words": [text.split() for text in TEXTS] * 8,
                "tags": [["B-X", *"OOO"][: len(t.split())] for t in TEXTS] * 8,
            },
        }
        for name, task in (("sentiment", "classify"), ("names", "tag")):
            ctx.finetune(data[name], encoder=BASE, task=task, out=root / f"{name}-whole", verbose=False, **options)
            found[name] = root / name
            saving.save_changes(found[name], *saving.load(root / f"{name}-whole"), BASE, rank=2)
        yield found


@pytest.fixture(scope="module")
def file(folders, tmp_path_factory):
    return quantize.convert_several(
        folders, tmp_path_factory.mktemp("out") / "answers.tflite", lengths=[8, 16], fill=True
    )


def test_each_answers_as_its_folder(folders, file):
    for name, rows in (("sentiment", lambda answer: [answer]), ("names", lambda answer: answer["words"])):
        expected, found = ctx.load(folders[name])(TEXTS), ctx.load(f"{file}/{name}")(TEXTS)
        for one, other in zip(found, expected, strict=True):
            assert [row["label"] for row in rows(one)] == [row["label"] for row in rows(other)]
            np.testing.assert_allclose(*([row["score"] for row in rows(answer)] for answer in (one, other)), atol=1e-5)
    expected, found = (ctx.load(path).fill("the [MASK] fell") for path in (folders["filled"], f"{file}/filled"))
    assert [piece for piece, _ in found[0]] == [piece for piece, _ in expected[0]]
    assert runtime.load(f"{file}/sentiment")(["rain"])[0]["label"] in "ab"


def test_the_encoder_is_in_it_once(folders, file, tmp_path):
    model = weights.read(file.read_bytes())
    kernels = [t for graph in model.subgraphs for t in graph.tensors if t.name == KERNEL.encode()]
    assert len(kernels) == 6 and len({tensor.buffer for tensor in kernels}) == 1  # three models of two lengths
    merged = {name: quantize.float_model(folders[name], [8, 16])[0] for name in ("sentiment", "names")}
    apart = weights.read(weights.joined(merged))
    kernels = [t for graph in apart.subgraphs for t in graph.tensors if t.name == KERNEL.encode()]
    assert len({tensor.buffer for tensor in kernels}) == 2  # with the updates in them


def test_updates_beside_a_layer_give_what_merged_ones_give(folders):
    merged, beside = (saving.load_served(folders["sentiment"], merged) for merged in (True, False))
    block, base = beside.model.get_layer("layer_0"), saving.load(folders["filled"]).model.get_layer("layer_0")
    assert isinstance(block.qkv, updates.Updated)
    np.testing.assert_array_equal(block.qkv.dense.get_weights()[0], base.qkv.get_weights()[0])
    inputs = merged.bundle.features.collate(merged.bundle.features.encode(TEXTS))
    expected, found = (np.asarray(each.model(inputs)["logits"]) for each in (merged, beside))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    without = {key: parts for key, parts in updates.read(folders["sentiment"]).items() if len(parts) == 1}
    assert len(without) < len(updates.read(folders["sentiment"]))


def test_it_is_served_and_compared(folders, file):
    served = serving.opened(file / "sentiment")
    answer = served.run("serving_default", {"text": np.array([b"rain"], object)})
    assert served.name == "sentiment" and {*answer["label"]} <= {*"ab"}
    engines = [open_model(path) for path in (folders["sentiment"], file / "sentiment")]
    rows = compare.compare(engines, [Example(text) for text in TEXTS])
    assert rows[1]["agreement"] == 1 and rows[1]["bytes"] == file.stat().st_size


def test_by_commands(folders, tmp_path, capsys, monkeypatch):
    out = tmp_path / "answers.tflite"
    command = [
        "tflite",
        *map(str, (folders["sentiment"], folders["names"])),
        "--quantize",
        "dynamic",
        "--lengths",
        "16",
    ]
    assert main([*command, "--out", str(out)]) == 0
    (tmp_path / "lines.txt").write_text("the cats fell\n")
    assert main(["predict", f"{out}/names", "--input", str(tmp_path / "lines.txt")]) == 0
    assert "entities" in json.loads(capsys.readouterr().out.splitlines()[-1])
    assert bundles.load(f"{out}/sentiment").labels == ("a", "b")


def test_what_is_refused(folders, file, tmp_path, capsys):
    for path in (file, f"{file}/other"):
        with pytest.raises(ValueError, match=r"in it: .*answers.tflite/filled, .*answers.tflite/names, .*/sentiment"):
            ctx.load(path)
    with pytest.raises(ValueError, match=r"nowhere\.tflite/names: no such file"):
        ctx.load(tmp_path / "nowhere.tflite" / "names")
    with pytest.raises(ValueError, match="'int8': of several models none, float16 or dynamic"):
        quantize.convert_several(folders, tmp_path / "x.tflite", "int8")
    with pytest.raises(ValueError, match="'a/b': a name of a model in a file"):
        quantize.convert_several({"a/b": folders["names"]}, tmp_path / "x.tflite")
    pair = [str(folders["sentiment"]), str(folders["sentiment"])]
    with pytest.raises(SystemExit):
        main(["tflite", *pair, "--out", str(tmp_path / "x.tflite")])
    with pytest.raises(SystemExit):
        main(["tflite", *pair, "--out", str(tmp_path / "x.tflite"), "--web", str(tmp_path / "page")])
    assert "each model needs a name of its own" in capsys.readouterr().err
    (tmp_path / "cut.tflite").write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="no bundle in it"):
        ctx.load(tmp_path / "cut.tflite" / "names")


def test_the_models_of_a_file_share_it(file):
    def opened():
        gc.collect()
        return [key for key in runtime._SHARED if key[0] == str(file)]

    engines = [runtime.LiteRTEngine(file / name, bundles.load(file / name)) for name in ("names", "sentiment")]
    assert len(opened()) == 1
    del engines
    assert not opened()
