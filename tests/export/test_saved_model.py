import os

import numpy as np
import pytest
import tensorflow as tf
from keras_ctxrep_export import saved_model
from tensorflow.core.protobuf import saved_model_pb2

from keras_ctxrep import train

# Operators of tensorflow-text 2.20, which stock TF Serving binaries link, that a SavedModel of ours may hold.
TEXT_OPERATORS = {"FastWordpieceTokenizeWithOffsets", "NormalizeUTF8"}


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving") / "bert"
    return saved_model.export(*train.load(models / "bert" / "classifier"), folder)


def test_versions_count_up_and_nothing_else_is_left(exported, models):
    second = saved_model.export(*train.load(models / "bert" / "classifier"), exported.parent)
    assert (exported.name, second.name) == ("1", "2")
    assert sorted(os.listdir(exported.parent)) == ["1", "2"]
    assert saved_model.latest(exported.parent) == second


def test_signatures(exported):
    loaded = tf.saved_model.load(exported)
    ids, text = (loaded.signatures[name] for name in ("ids", "serving_default"))
    assert set(ids.structured_input_signature[1]) == {"token_ids", "segment_ids", "mask"}
    assert set(ids.structured_outputs) == {"logits"}
    assert text.structured_input_signature[1]["text"].shape.as_list() == [None]
    assert set(text.structured_outputs) == {"logits", "label", "score", "probabilities"}
    ones = tf.ones((2, 3), tf.int32)
    assert ids(token_ids=ones, segment_ids=0 * ones, mask=ones)["logits"].shape == (2, 3)


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_only_operators_that_tf_serving_knows(family, models, tmp_path):
    version = saved_model.export(*train.load(models / family / "classifier"), tmp_path / "m")
    message = saved_model_pb2.SavedModel()
    message.ParseFromString((version / "saved_model.pb").read_bytes())
    graph = message.meta_graphs[0].graph_def
    used = {node.op for node in graph.node} | {node.op for f in graph.library.function for node in f.node_def}
    core = {name for name in dir(tf.raw_ops) if name[0].isupper()}
    functions = {function.signature.name for function in graph.library.function}
    strange = {op for op in used - functions if op not in core} - {"_EagerConst", "Const"}
    assert strange <= TEXT_OPERATORS, strange
    assert not any("PyFunc" in op for op in used)
    assert os.listdir(version / "assets") == []
    assert (version / "assets.extra" / "bundle.json").exists()


def test_empty_batch(exported):
    loaded = tf.saved_model.load(exported)
    found = loaded.signatures["serving_default"](tf.constant([], tf.string))
    assert found["probabilities"].shape == (0, 3)


def test_what_cannot_be_served(models, tmp_path):
    with pytest.raises(ValueError, match="pretrainer has nothing to serve"):
        saved_model.export(*train.load(models / "bert" / "pretrained"), tmp_path / "m")
    with pytest.raises(ValueError, match="no SavedModel in it"):
        saved_model.load(tmp_path)


def test_a_failed_export_leaves_nothing(models, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        saved_model.export(*train.load(models / "bert" / "classifier"), tmp_path / "m")
    assert os.listdir(tmp_path / "m") == []


def test_predictor_answers_in_order(exported, models):
    texts = ["the violin " * 8, "snow", "the soup and the bread"]
    expected = train.predictor(models / "bert" / "classifier")(texts)
    found = saved_model.load(exported, batch_size=2)(texts)
    assert [answer["label"] for answer in found] == [answer["label"] for answer in expected]
    assert [answer.get("truncated") for answer in found] == [answer.get("truncated") for answer in expected]
    assert np.isfinite([answer["score"] for answer in found]).all()
