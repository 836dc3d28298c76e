"""From strings to answers through Keras, a SavedModel and TFLite: the same answers."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import compare, quantize, runtime

from keras_ctxrep import train
from keras_ctxrep.text.examples import read
from keras_ctxrep.text.predict import Predictor
from keras_ctxrep.text.scores import accuracy

AWKWARD = [
    "The CAFÉ\u0301 is good.",
    "soup\u00adpepper\u200bonion \U0001f469\u200d\U0001f373 the chef's 😀",
    "天气 rain 音乐",
    "the " * 200 + "violin",
    "x" * 10_000,
    "½ ﬁ ² … Σίσυφος ΟΔΥΣΣΕΥΣ İstanbul",
    "a\x00b the drum",
    "[SEP] [CLS] <S> </S>",
]


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_every_engine_gives_the_same_answers(family, models, tmp_path):
    folder = models / family / "classifier"
    examples = list(read("classify", models / "test.tsv"))
    texts = [example.text for example in examples] + AWKWARD
    keras_predictor = train.predictor(folder)
    expected = keras_predictor.probabilities(texts)
    labels = [answer["label"] for answer in keras_predictor(texts)]
    assert accuracy([example.label for example in examples], labels[: len(examples)]) > 0.95

    version = saved_model.export(*train.load(folder), tmp_path / "served")
    np.testing.assert_allclose(saved_model.load(version).probabilities(texts), expected, atol=1e-4)

    quantize.convert(folder, tmp_path / "float32.tflite", "none", (8, 16, 32))
    np.testing.assert_allclose(runtime.load(tmp_path / "float32.tflite").probabilities(texts), expected, atol=1e-4)

    quantize.convert(folder, tmp_path / "int8.tflite", "int8", (8, 16, 32))
    edge = runtime.load(tmp_path / "int8.tflite")
    assert accuracy(labels[: len(examples)], [answer["label"] for answer in edge(texts)][: len(examples)]) >= 0.99
    assert (tmp_path / "int8.tflite").stat().st_size < (tmp_path / "float32.tflite").stat().st_size

    # what differs is seen: a model with other weights is told apart
    model, bundle = train.load(folder)
    model.get_layer("logits").set_weights(
        [weight + 0.1 * weight**2 for weight in model.get_layer("logits").get_weights()]
    )
    train.save(tmp_path / "other", model, bundle)
    assert np.abs(train.predictor(tmp_path / "other").probabilities(texts) - expected).max() > 1e-4


FRESH = """
import json, sys
import tensorflow_text
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
texts = tf.constant([b"the violin", b"", b"\\xff\\xfe the soup", "天 rain".encode()])
found = loaded.signatures["serving_default"](texts)
print(json.dumps([found["probabilities"].numpy().tolist(), [label.decode() for label in found["label"].numpy()]]))
"""


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_a_saved_model_needs_nothing_else(family, models, tmp_path):
    """Moved elsewhere, its sources deleted, loaded by a process that knows nothing of us."""
    shutil.copytree(models / family / "classifier", tmp_path / "source")
    made = saved_model.export(*train.load(tmp_path / "source"), tmp_path / "served")
    predictor = train.predictor(tmp_path / "source")
    shutil.move(made, tmp_path / "moved")
    shutil.rmtree(tmp_path / "source")
    command = [sys.executable, "-c", FRESH, str(tmp_path / "moved")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert found.returncode == 0, found.stderr[-3000:]
    probabilities, labels = json.loads(found.stdout)
    texts = ["the violin", "\ufffd\ufffd the soup", "天 rain"]
    np.testing.assert_allclose([probabilities[0], *probabilities[2:]], predictor.probabilities(texts), atol=1e-5)
    assert [labels[0], *labels[2:]] == [answer["label"] for answer in predictor(texts)]


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_encoders_travel_too(family, models, tmp_path):
    """A pretrained encoder without a head: pooled vectors from the SavedModel and from TFLite equal Keras'."""
    model, bundle = train.load_encoder(models / family / "pretrained")
    texts = ["the violin is good.", "snow"]
    expected = np.array([model(bundle.features([text]))["pooled"][0] for text in texts])
    version = saved_model.export(model, bundle, tmp_path / "served")
    quantize.convert(models / family / "pretrained", tmp_path / "encoder.tflite", lengths=(16,))
    for predictor in (saved_model.load(version), runtime.load(tmp_path / "encoder.tflite")):
        np.testing.assert_allclose([answer["vector"] for answer in predictor(texts)], expected, atol=1e-4)


def test_compare(models, tmp_path):
    folder = models / "bert" / "classifier"
    quantize.convert(folder, tmp_path / "a.tflite", lengths=(32,))
    examples = list(read("classify", models / "test.tsv"))[:20]
    engines = [compare.open_engine(folder), compare.open_engine(tmp_path / "a.tflite")]
    reference, edge = compare.compare(engines, [e.text for e in examples], [e.label or "" for e in examples])
    assert reference["agreement"] == edge["agreement"] == 1 and reference["difference"] == 0 < edge["difference"] < 1e-4
    assert edge["bytes"] == (tmp_path / "a.tflite").stat().st_size and edge["milliseconds"] > 0
    assert reference["accuracy"] == edge["accuracy"]
    with pytest.raises(ValueError, match="not the reference's"):
        other = Predictor(replace(edge_bundle := engines[1].predictor.bundle, labels=edge_bundle.labels[::-1]), dict)
        compare.compare([engines[0], engines[1]._replace(predictor=other)], ["x"])
