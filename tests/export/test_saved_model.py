import json
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_ctxrep import saving
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models import heads
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep_export import saved_model
from tests import tiny

pytestmark = pytest.mark.trains

# Operators of tensorflow-text 2.20, which stock TF Serving binaries link, that a SavedModel of ours may hold.
TEXT_OPERATORS = {"FastWordpieceTokenizeWithOffsets"}
VOCAB = (*SPECIAL_PIECES, *"abcdefgh", "##a", "##b", "the", "cat", "##s", ".", "中")
LABELS = ("O", "B-PER", "I-PER", "B-LOC")


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving") / "bert"
    return saved_model.export(*saving.load(models / "bert" / "classifier"), folder)


def test_versions_count_up_and_no_other_files_are_left(exported, models):
    second = saved_model.export(*saving.load(models / "bert" / "classifier"), exported.parent)
    assert (exported.name, second.name) == ("1", "2")
    assert sorted(os.listdir(exported.parent)) == ["1", "2"]
    assert saved_model.latest(exported.parent) == second


def test_signatures(exported):
    loaded = tf.saved_model.load(exported)
    ids, text = (loaded.signatures[name] for name in ("ids", "serving_default"))
    assert set(ids.structured_input_signature[1]) == {"token_ids", "segment_ids", "mask"}
    assert set(ids.structured_outputs) == {"logits"}
    assert text.structured_input_signature[1]["text"].shape.as_list() == [None]
    assert set(text.structured_outputs) == {"logits", "label", "score", "probabilities", "error"}
    ones = tf.ones((2, 3), tf.int32)
    assert ids(token_ids=ones, segment_ids=0 * ones, mask=ones)["logits"].shape == (2, 3)


def fresh(
    task: str, family: str = "bert", max_length: int = 20, pairs: bool = False, **settings
) -> tuple[keras.Model, Bundle]:
    """A tiny model with random weights, and its bundle."""
    fields = {"labels": LABELS} if task in ("classify", "multilabel", "tag") else {}
    fields |= {"vocab": VOCAB, "sizes": {"max_positions": 100}} if family == "bert" else {}
    head = {"crf": settings.pop("crf")} if "crf" in settings else {}
    return tiny.model(task, family, pair=pairs, max_length=max_length, head=head, settings=settings, **fields)


FRESH = {
    "classify": {},
    "classify pairs": {"task": "classify", "pairs": True},
    "multilabel": {},
    "regress": {"pairs": True},
    "embed": {},
    "tag": {"max_length": 8},
    "tag with a CRF": {"task": "tag", "crf": True},
    "tag static": {"task": "tag", "family": "static", "max_length": 5},
    "multilabel static": {"task": "multilabel", "family": "static"},
    "answer": {"pairs": True, "max_length": 70, "stride": 6, "max_answer": 4},
    "answer or none": {"task": "answer", "pairs": True, "max_length": 70, "stride": 9, "null_threshold": 0.0},
}
TEXTS = ["The CATS.  a\u200b b  中", "cats 中 the abab " * 6, "", "Thé\tcats cb", "👩‍👩‍👧 the שלום cats \u0301."]
PAIRS = ["the cats a ab. " * 8, "中", "the", " ", "é a. b. Á b cats the, B. 中 d the a"]


LIKE_OTHERS = ("classify pairs", "multilabel static", "answer")
CASES = [pytest.param(name, marks=pytest.mark.slow) if name in LIKE_OTHERS else name for name in FRESH]


@pytest.fixture(scope="module", params=CASES)
def served(request, tmp_path_factory):
    """A model, its bundle and its SavedModel."""
    model, bundle = fresh(**({"task": request.param} | FRESH[request.param]))
    return model, bundle, saved_model.export(model, bundle, tmp_path_factory.mktemp("served"))


def test_same_answers_as_keras(served):
    model, bundle, version = served
    pairs = PAIRS if bundle.pairs else None
    predictor = Predictor(
        bundle, lambda batch: {name: np.array(value) for name, value in heads.flat(model(batch)).items()}
    )
    expected, actual = predictor(TEXTS, pairs), saved_model.load(version, batch_size=2)(TEXTS, pairs)
    assert len(actual) == len(TEXTS)
    for entry, wanted in zip(actual, expected, strict=True):
        wanted.pop("n_best", None)
        assert_close({name: value for name, value in entry.items() if name != "n_best"}, wanted)
    if bundle.task == "answer":
        assert {wanted["answer"] for wanted in expected} > {""}


def assert_close(first, other) -> None:
    if isinstance(other, dict):
        assert first.keys() == other.keys()
        first, other = [*first.values()], [*other.values()]
    if isinstance(other, list):
        assert len(first) == len(other)
        for pair in zip(first, other, strict=True):
            assert_close(*pair)
    else:
        assert first == (pytest.approx(other, abs=1e-4) if isinstance(other, float) else other)


def test_only_operators_that_tf_serving_knows(served):
    model, _, version = served
    message = saved_model_pb2.SavedModel()
    message.ParseFromString((version / "saved_model.pb").read_bytes())
    used = {operator.name for operator in message.meta_graphs[0].meta_info_def.stripped_op_list.op}
    core = {name for name in dir(tf.raw_ops) if name[0].isupper()}
    strange = used - core - {"_EagerConst", "Const"}
    assert len(used) > 20
    assert strange <= TEXT_OPERATORS, strange
    assert not any("PyFunc" in op for op in used)
    assert os.listdir(version / "assets") == []
    assert (version / "assets.extra" / "bundle.json").exists()
    taken = message.meta_graphs[0].signature_def["ids"].inputs
    assert set(taken) == set(model.input)


def test_outputs_for_a_client(served):
    _, bundle, version = served
    loaded = tf.saved_model.load(version)
    names = {"answer": ("question", "context")}.get(bundle.task, ("text", "pair")[: 1 + bundle.pairs])
    texts = {name: tf.constant([b"\xff the cats.", b"", "中 é".encode()]) for name in names}
    outputs = loaded.signatures["serving_default"](**texts)
    words, classes, strings = 3, len(LABELS), tf.string
    shapes = {
        "classify": {"logits": [3, classes], "label": [3], "score": [3], "probabilities": [3, classes]},
        "multilabel": {"logits": [3, classes], "labels": [3, classes], "probabilities": [3, classes]},
        "regress": {"logits": [3, 1], "value": [3]},
        "tag": {"logits": [3, words, classes], **{name: [3, words] for name in TAGGED}}
        | ({"tags": [3, words]} if bundle.head else {}),
        "answer": {name: [3] for name in ("answer", "start", "end", "score", "null_score")},
        "embed": {"layers": [3, 2, None, 8], "sequence": [3, None, 8], "pooled": [3, 8], "vector": [3, 8]},
    }[bundle.task] | {"error": [3]}
    assert outputs.keys() == shapes.keys()
    for name, tensor in outputs.items():
        tensor.shape.assert_is_compatible_with(shapes[name])
        text, whole = (
            name in ("label", "labels", "words", "answer", "error"),
            name in ("starts", "ends", "start", "end", "tags"),
        )
        assert tensor.dtype == (strings if text else tf.int32 if whole else tf.float32), name
    nothing = loaded.signatures["serving_default"](**{name: tf.constant([], strings) for name in names})
    assert {tensor.shape[0] for tensor in nothing.values()} == {0}


TAGGED = ("words", "starts", "ends", "labels", "scores")


def test_words_that_are_not_read_have_no_label():
    model, bundle = fresh("tag", max_length=5)  # three pieces
    outputs = saved_model.Signatures(model, bundle).functions["serving_default"](
        tf.constant(["a  the cats b", "é c", ""])
    )
    rows = {name: outputs[name].numpy() for name in TAGGED}
    assert rows["words"].tolist() == [[b"a", b"the", b"cats", b"b"], ["é".encode(), b"c", b"", b""], [b""] * 4]
    assert rows["starts"].tolist() == [[0, 3, 7, 12], [0, 2, 0, 0], [0] * 4]
    assert rows["ends"].tolist() == [[1, 6, 11, 13], [1, 3, 0, 0], [0] * 4]
    assert (rows["labels"] != b"").tolist() == [[True, True, True, False], [True, True, False, False], [False] * 4]
    logits = model(bundle.features(["a  the cats b", "é c", ""]))["logits"].numpy()
    named = [LABELS[i].encode() for i in logits[0, :3].argmax(-1)]
    assert rows["labels"][0, :3].tolist() == named
    shares = np.exp(logits[0, :3]) / np.exp(logits[0, :3]).sum(-1, keepdims=True)
    np.testing.assert_allclose(rows["scores"][0], [*shares.max(-1), 0], atol=1e-5)


ALONE = """
import json, sys
import tensorflow_text
import tensorflow as tf
tag, answer = (tf.saved_model.load(path).signatures["serving_default"] for path in sys.argv[1:])
words = tag(text=tf.constant(["Thé  cats.", "中a"]))
spans = answer(question=tf.constant(["a", "the"]), context=tf.constant(["", "the cats é中. " * 9]))
plain = lambda found: {name: [str(x) for x in tensor.numpy().ravel()] for name, tensor in found.items()}
print(json.dumps([plain(words), plain(spans)]))
"""


@pytest.mark.slow  # a process that imports TensorFlow
def test_moved_to_a_process_of_its_own(tmp_path):
    folders, expected = [], []
    for task in ("tag", "answer"):
        made = saved_model.export(*fresh(task, **FRESH[task]), tmp_path / "made")
        predictor = saved_model.load(made)
        folders.append(shutil.move(made, tmp_path / task))
        texts = (["Thé  cats.", "中a"],) if task == "tag" else (["a", "the"], ["", "the cats é中. " * 9])
        expected.append(predictor(*texts))
    command = [sys.executable, "-c", ALONE, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert done.returncode == 0, done.stderr[-3000:]
    words, spans = json.loads(done.stdout)
    assert (words["starts"], words["ends"]) == ([*"059010"], ["3", "9", "10", "1", "2", "0"])
    labels = [label.removeprefix("b'").removesuffix("'") for label in words["labels"]]
    assert [label for label in labels if label] == [word["label"] for wanted in expected[0] for word in wanted["words"]]
    assert spans["start"] == [str(wanted["start"]) for wanted in expected[1]]
    assert spans["end"] == [str(wanted["end"]) for wanted in expected[1]]


def test_empty_batch(exported):
    loaded = tf.saved_model.load(exported)
    outputs = loaded.signatures["serving_default"](tf.constant([], tf.string))
    assert outputs["probabilities"].shape == (0, 3)


def test_models_that_cannot_be_served(models, tmp_path):
    with pytest.raises(ValueError, match="pretrainer has nothing to serve"):
        saved_model.export(*saving.load(models / "bert" / "pretrained"), tmp_path / "m")
    with pytest.raises(ValueError, match="no SavedModel in it"):
        saved_model.load(tmp_path)


def test_a_failed_export_leaves_nothing(models, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        saved_model.export(*saving.load(models / "bert" / "classifier"), tmp_path / "m")
    assert os.listdir(tmp_path / "m") == []


def test_files_of_a_killed_export_are_removed_by_the_next(tmp_path, monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(os, "getpid", lambda: ended.pid)
        killed.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
        killed.setattr(os, "rename", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        saved_model.export(*fresh("classify"), tmp_path / "m")
    (left,) = os.listdir(tmp_path / "m")
    assert not left.isdecimal()
    saved_model.export(*fresh("classify"), tmp_path / "m")
    assert os.listdir(tmp_path / "m") == ["1"]


def test_predictor_answers_in_order(exported, models):
    texts = ["the violin " * 8, "snow", "the soup and the bread"]
    expected = keras_engine.predictor(models / "bert" / "classifier")(texts)
    answers = saved_model.load(exported, batch_size=2)(texts)
    assert [answer["label"] for answer in answers] == [answer["label"] for answer in expected]
    assert [answer.get("truncated") for answer in answers] == [answer.get("truncated") for answer in expected]
    assert np.isfinite([answer["score"] for answer in answers]).all()


def test_keep_removes_versions_alone(tiny_model, tmp_path):
    (tmp_path / "2020").mkdir()
    (tmp_path / "2020" / "thesis.txt").write_text("years of work")
    saved_model.export(*tiny_model("classify"), tmp_path, keep=1)
    saved_model.export(*tiny_model("classify"), tmp_path, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2020", "2022"]


def test_weights_that_are_not_finite_are_not_loaded(tiny_model, tmp_path):
    version = saved_model.export(*tiny_model("classify"), tmp_path / "m")
    loaded = tf.saved_model.load(str(version))
    variable = next(iter(loaded.signatures["serving_default"].variables))
    variable.assign(np.full(variable.shape, np.nan))
    (tmp_path / "other").mkdir()
    tf.saved_model.save(loaded, str(tmp_path / "other"), loaded.signatures)
    with pytest.raises(ValueError, match=r"other: the weights '.*' have [\d,]+ of [\d,]+ values that are NaN"):
        saved_model.loaded(tmp_path / "other")
