"""What the class of all models says of inputs that are not its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.models import bert, elmo, heads, static


@pytest.mark.parametrize("make", [list, np.array, lambda texts: np.array(texts, object), tf.constant])
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "__call__"])
def test_texts_are_no_input(bert_config, make, method):
    model = heads.classify(bert.encoder(bert_config), 2)
    model.compile("sgd", {"logits": "mse"})
    with pytest.raises(TypeError, match=r"classifier: texts; it reads .*bundle.features\(texts\).*Preprocessor"):
        getattr(model, method)(make(["a text", "another"]))


def test_inputs_of_another_model(bert_config, pieces):
    model = heads.tag(bert.encoder(bert_config), 3)
    with pytest.raises(ValueError, match=r"tagger: no starts among the inputs .*its own bundle"):
        model(pieces(["a"]))
    text = keras.Input((), dtype="string")  # a model of texts
    assert keras.Model(text, keras.ops.not_equal(text, "a"))(tf.constant(["a", "b"])).numpy().tolist() == [False, True]


@pytest.mark.parametrize(
    ("encoder", "config", "message"),
    [
        (bert.encoder, "bert_4_256_4", r"SIZES\['bert_4_256_4'\] for random weights; .*keras_ctxrep.load\(NAME\)"),
        (bert.pretrainer, "bert_4", "config='bert_4': an object of the class Config"),
        (elmo.encoder, "elmo_2x128_64_256cnn_1xhighway", r"SIZES\['elmo_2x128"),
        (static.encoder, {"words": 4}, "an object of the class Config"),
    ],
)
def test_configs_are_objects(encoder, config, message):
    with pytest.raises(TypeError, match=message):
        encoder(config)
