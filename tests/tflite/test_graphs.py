"""A graph and the weights beside it are the .tflite model that the folder is converted to, bit for bit."""

import shutil
import sys
from dataclasses import replace

import pytest

from keras_ctxrep import places, saving, tasks
from keras_ctxrep.options import Tflite
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import UPDATES
from keras_ctxrep_tflite import graphs, quantize
from tests import tiny

SHIPPED = sorted(folder.parent for folder in places.SHIPPED.glob("*/*/bundle.json"))
BASE = "bert_3_384_12/books_wiki_en"  # the name of an encoder that is changed


def with_graph(folder, lengths=(16,), fill=False):
    """The float32 model of a folder and its bundle, and its graph."""
    data, bundle = quantize.float_model(folder, lengths, fill)
    name = graphs.MASKED if fill else graphs.GRAPH
    graphs.write(folder, data, bundle, name)
    return data, bundle, graphs.Graph.of(folder, bundles.load(folder), name)


def changed(tmp_path, monkeypatch):
    """A classifier in a folder of low-rank changes."""
    monkeypatch.setattr(places, "SHIPPED", tmp_path / "weights")
    base = tiny.save(tmp_path / "weights" / BASE, tiny.bundle("embed"))
    model, bundle = tiny.model("classify")
    for layer in saving.load(base).model.layers:
        if layer.weights and layer.name != "layer_0":
            model.get_layer(layer.name).set_weights(layer.get_weights())
    saving.save_changes(tmp_path / "changed", model, bundle, BASE, rank=2)
    return tmp_path / "changed"


def saved(folder, task, family):
    if task == "pretrainer":
        return tiny.save(folder, replace(tiny.bundle("embed"), task=task))
    saving.save(folder, *tiny.model(task, family, sizes={"width": 32} if family == "static" else None))
    return folder


@pytest.mark.trains
@pytest.mark.parametrize("case", ["bert tag", "bert pretrainer", "elmo classify", "static embed", "changed"])
def test_equal_to_the_conversion(case, tmp_path, monkeypatch, tflite_in_process):
    family, _, task = case.partition(" ")
    folder = saved(tmp_path / "m", task, family) if task else changed(tmp_path, monkeypatch)
    data, bundle, graph = with_graph(folder, fill=task == "pretrainer")
    assert graph is not None and graph.model() == data and graph.bundle.files_as_bytes() == bundle.files_as_bytes()
    names = [name for constant in graph._constants for name in constant.names]
    assert any("/vars/" in name for name in names)
    assert any(len(constant.names) == 2 for constant in graph._constants) == (case == "changed")
    shutil.rmtree(tmp_path / "weights", ignore_errors=True)  # of the encoder that is changed
    assert (graphs.Graph.of(folder, bundles.load(folder), graph.path.name) is None) == (case == "changed")


@pytest.mark.trains
def test_which_graph_is_used(tmp_path, monkeypatch, tflite_in_process):
    folder = saved(tmp_path / "m", "embed", "static")
    with_graph(folder)
    model, bundle = saving.load(folder)
    path = folder / graphs.GRAPH
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    with pytest.raises(ValueError, match=r"graph\.xz: damaged: .*; copy the whole folder again"):
        graphs.Graph.of(folder, bundle)
    path.write_bytes(content)
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert graphs.Graph.of(folder, bundle) is None
    monkeypatch.undo()
    assert graphs.Graph.of(folder, bundle) is not None
    model.weights[0].assign(model.weights[0] + 1)
    saving.save(folder, model, bundle)
    assert path.is_file() and graphs.Graph.of(folder, bundles.load(folder)) is None  # it is of other weights
    path.unlink()
    assert graphs.Graph.of(folder, bundles.load(folder)) is None


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.parent.name)
def test_of_the_models_of_the_package(folder):
    """Each has a graph of its present bundle and weights: `benchmarks/release.py --graphs` writes them anew."""
    bundle = bundles.load(folder)
    others = {graphs.MASKED: bundle.fills, graphs.ENCODER: UPDATES in bundle.files and not bundle.encodes}
    for name in (graphs.GRAPH, *(name for name, has in others.items() if has)):
        graph = graphs.Graph.of(folder, bundle, name)
        assert graph is not None and graph.path.stat().st_size < 100_000
        kept = name == graphs.MASKED or (bundle.task in tasks.SERVED and name == graphs.GRAPH)
        assert graph.bundle.task == (bundle.task if kept else "embed")


@pytest.mark.trains
def test_a_model_of_the_package_is_the_converted_one(tflite_in_process):
    folder = places.SHIPPED / "glove_50" / "6b"
    bundle = bundles.load(folder)
    conversion = quantize.build(folder, bundle, "glove.tflite", Tflite())
    graph = graphs.Graph.of(folder, bundle)
    assert graph is not None and graph.model() == conversion.data
    assert graph.bundle.files_as_bytes() == conversion.bundle.files_as_bytes()
