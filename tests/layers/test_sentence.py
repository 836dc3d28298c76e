"""Sentence markers, padding and pooling."""

import numpy as np
import pytest
from keras import ops

from keras_ctxrep.layers import MaskedPooling, SentenceMarkers, ZeroPadding
from keras_ctxrep.text.features import CharacterFeatures, WordFeatures
from keras_ctxrep.text.tokens import Characters


def test_markers_are_those_of_the_text_side():
    for name in ("BEGIN_SENTENCE", "END_SENTENCE", "BEGIN_WORD", "END_WORD", "PADDING"):
        assert getattr(SentenceMarkers, name) == getattr(Characters, name)


@pytest.mark.parametrize("width", [3, 6, 50])
def test_markers_stand_around_the_real_words(width):
    features = CharacterFeatures(max_characters=width)
    texts = ["a b c", "", "d"]
    batch = features(texts)
    ids, mask = SentenceMarkers()(batch["char_ids"], mask=batch["mask"])
    expected = features([["<S>", *text.split(), "</S>"] for text in texts])
    assert np.array_equal(ids, expected["char_ids"]) and np.array_equal(mask, expected["mask"])
    assert ops.shape(ids) == (3, 5, width) and ids.dtype == mask.dtype == "int32"


def test_markers_clear_the_padding():
    ids, mask = SentenceMarkers()(np.full((1, 3, 4), 7, np.int32), mask=np.array([[1, 0, 0]]))
    assert ops.convert_to_numpy(mask).tolist() == [[1, 1, 1, 0, 0]]
    assert not ops.convert_to_numpy(ids)[0, 3:].any()


def test_markers_of_word_ids():
    features = WordFeatures(["<S>", "</S>", "<UNK>", "a", "b", "c", "d"])
    texts = ["a b c", "", "d"]
    batch = features(texts)
    batch["word_ids"][2, 1:] = 7  # values under the padding are cleared
    ids, mask = SentenceMarkers()(batch["word_ids"], mask=batch["mask"])
    expected = features([["<S>", *text.split(), "</S>"] for text in texts])
    assert np.array_equal(ids, expected["word_ids"]) and np.array_equal(mask, expected["mask"])
    assert ops.shape(ids) == (3, 5) and ids.dtype == mask.dtype == "int32"


def test_zero_padding(rng):
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    mask = np.array([[1, 1, 0], [0, 0, 0]], np.int32)
    assert np.array_equal(ZeroPadding()(x, mask=mask), x * mask[:, :, None])


@pytest.mark.parametrize("how", ["mean", "max", "mean_max"])
def test_pooling(rng, how):
    x = rng.normal(size=(4, 5, 3)).astype(np.float32) - 4  # all negative: a zero in the padding would win the maximum
    lengths = [5, 2, 1, 0]
    mask = (np.arange(5) < np.array(lengths)[:, None]).astype(np.int32)
    out = ops.convert_to_numpy(MaskedPooling(how)(x, mask=mask))
    for row, length in enumerate(lengths):
        real = x[row, :length].astype(np.float64)
        parts = [real.mean(0), real.max(0)] if length else [np.zeros(3)] * 2
        expected = {"mean": parts[0], "max": parts[1], "mean_max": np.concatenate(parts)}[how]
        np.testing.assert_allclose(out[row], expected, atol=1e-6)


def test_pooling_does_not_need_the_real_tokens_first(rng):
    x = rng.normal(size=(1, 4, 2)).astype(np.float32)
    out = MaskedPooling("mean_max")(x, mask=np.array([[0, 1, 0, 1]]))
    np.testing.assert_allclose(out[0], np.concatenate([x[0, 1::2].mean(0), x[0, 1::2].max(0)]), atol=1e-6)


@pytest.mark.parametrize("how", ["mean", "max", "mean_max"])
def test_pooling_of_subwords(rng, how):
    """Another axis before the tokens'."""
    x = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    mask = rng.integers(0, 2, (2, 3, 4))
    layer = MaskedPooling(how)
    out = ops.convert_to_numpy(layer(x, mask=mask))
    flat = ops.convert_to_numpy(layer(x.reshape(6, 4, 5), mask=mask.reshape(6, 4)))
    assert np.array_equal(out, flat.reshape(2, 3, -1)) and layer.compute_output_shape(x.shape) == out.shape


def test_an_unknown_pooling():
    with pytest.raises(ValueError, match="how='sum': choose"):
        MaskedPooling("sum")
