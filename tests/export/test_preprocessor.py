"""The layer gives the ids of `bundle.features`, in data sets, in models and after loading."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.models import bert
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Reads
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep_export.preprocessor import Preprocessor
from tests import tiny

TEXTS = ["Crème brûlée, naïve!", "", "the the unaffable cat " * 9, "中文 abc \u200b x", "a"]
PAIRS = ["the cat", "a" * 30, "", "cat cat", "the " * 40]
PIECES = (*SPECIAL_PIECES, "the", "cat", "un", "##aff", "##able", "a", "##a", "creme", ",", "!", "中")
CONFIG = {"vocabulary_size": len(PIECES)}
BUNDLES = {
    "elmo": Bundle("elmo", "embed", {"max_characters": 8}, 12),
    "elmo of words": Bundle("elmo", "embed", {"words": 5}, 12, vocab=("<S>", "</S>", "<UNK>", "the", "cat")),
    "bert": Bundle("bert", "classify", CONFIG, 16, ("x", "y"), PIECES),
    "bert, cased": Bundle("bert", "classify", CONFIG, 16, ("x", "y"), PIECES, lowercase=False),
    "tagger": Bundle("bert", "tag", CONFIG, 16, ("O",), PIECES, reads=Reads(words=True)),
}


def same(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("name", BUNDLES)
def test_the_ids_of_a_data_set(name):
    bundle = BUNDLES[name]
    data = tf.data.Dataset.from_tensor_slices((TEXTS, range(5), np.ones(5))).batch(3).map(Preprocessor(bundle))
    for start, (inputs, y, weight) in zip((0, 3), data.as_numpy_iterator(), strict=True):
        same(inputs, bundle.features(TEXTS[start : start + 3]))
        assert y.tolist() == list(range(5))[start : start + 3] and weight.shape == y.shape


@pytest.mark.trains
def test_pairs():
    bundle = replace(BUNDLES["bert"], reads=Reads(pair=True))
    data = tf.data.Dataset.from_tensor_slices({"text": TEXTS, "pair": PAIRS}).batch(5).map(Preprocessor(bundle))
    same(next(data.as_numpy_iterator()), bundle.features(TEXTS, PAIRS))


@pytest.mark.parametrize("name", BUNDLES)
def test_rows_of_one_length(name):
    """Of texts one by one, which are batched later; cut texts keep their last marker."""
    bundle = BUNDLES[name]
    prepare = Preprocessor(bundle, length=10)
    found = next(tf.data.Dataset.from_tensor_slices(TEXTS).map(prepare).batch(5).as_numpy_iterator())
    expected = replace(bundle, max_length=10).features(TEXTS)
    for key, array in expected.items():
        missing = 10 - array.shape[1]
        fill = PIECES.index("[PAD]") if key == "token_ids" else 0
        padding = [(0, 0), (0, max(missing, 0)), *[(0, 0)] * (array.ndim - 2)]
        np.testing.assert_array_equal(found[key], np.pad(array, padding, constant_values=fill)[:, :10], err_msg=key)
    if "token_ids" in found:
        assert found["token_ids"][2, -1] == PIECES.index("[SEP]")


def test_a_model_that_takes_strings(tmp_path):
    bundle = BUNDLES["bert"]
    encoder = bert.encoder(tiny.config(**CONFIG))
    text = keras.Input((), dtype="string", name="text")
    model = keras.Model(text, encoder(Preprocessor(bundle)(text))["sequence"])
    expected = encoder(bundle.features(TEXTS))["sequence"]
    np.testing.assert_allclose(model(tf.constant(TEXTS)), expected, atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(tf.constant(TEXTS)), expected, atol=1e-6)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="a answer model reads a text in windows: prepare it with"):
        Preprocessor(replace(BUNDLES["bert"], task="answer", reads=Reads(pair=True, windows=True)))
    with pytest.raises(ValueError, match="length=17: from 1 to the 16 tokens"):
        Preprocessor(BUNDLES["bert"], length=17)
    with pytest.raises(ValueError, match="the input has sentence: give text, and pair or marks if there are any"):
        Preprocessor(BUNDLES["bert"])({"sentence": tf.constant(["a"])})
