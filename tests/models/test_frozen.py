"""The cut of a model between what is frozen and what is trained."""

import keras
import numpy as np
import pytest

from keras_ctxrep.models import elmo, frozen, heads, stack, static
from tests import tiny


def encoder(family="elmo", **sizes):
    kinds = {"elmo": elmo.encoder, "static": static.encoder}
    made = kinds[family](tiny.config(family, **sizes))
    made.trainable = False
    return made


def test_both_parts_together_give_the_outputs_of_the_model():
    words = encoder("static", trainable=False)
    network = stack.recurrent(encoder(), units=3, extra_embeddings=words, output_mix=True)
    model = heads.tag(network, classes=3, crf=True)
    parts = frozen.split(model)
    assert parts is not None
    inputs = {
        "char_ids": np.random.default_rng(0).integers(1, 255, (2, 4, 6)).astype(np.int32),
        "word_ids": np.array([[1, 2, 3, 4], [2, 2, 0, 0]], np.int32),
        "mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32),
    }
    inputs = {name: keras.ops.array(values) for name, values in inputs.items()}
    outputs = parts.frozen({name: inputs[name] for name in parts.frozen.input})
    # the biLM's layers are computed once; rows of a table of vectors are read by their ids, which are smaller
    assert [*parts.frozen.input] == ["char_ids", "mask"]
    assert [*parts.trained.input] == ["frozen_0", "frozen_1", "mask", "word_ids"]
    outputs = {name: keras.ops.array(np.asarray(values)) for name, values in outputs.items()}  # without Keras' masks
    both = parts.trained({"mask": inputs["mask"], "word_ids": inputs["word_ids"], **outputs})
    for name, expected in model(inputs).items():
        np.testing.assert_allclose(both[name], expected, rtol=0, atol=1e-6)
    assert {id(w) for w in parts.trained.trainable_weights} == {id(w) for w in model.trainable_weights}


@pytest.mark.parametrize("change", ["trained", "dropout", "table"])
def test_what_changes_in_training_is_no_part_of_what_is_frozen(change):
    if change == "table":
        assert frozen.split(heads.classify(encoder("static"), classes=2)) is None
        return
    made = encoder() if change == "trained" else elmo.encoder(tiny.config("elmo"), 0.5)
    made.trainable = change == "trained"
    parts = frozen.split(heads.classify(made, classes=2, mix=True))
    assert (parts is None) == (change == "trained")
    if parts is not None:  # the layers over the words are dropped at random
        assert not any(isinstance(layer, keras.layers.Dropout) and layer.rate for layer in parts.frozen.layers)
        assert "forward_0" not in {layer.name for layer in parts.frozen.layers}
