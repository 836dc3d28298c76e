"""Tables of word vectors in the form of an encoder."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.models import heads, static
from keras_ctxrep.text.features import StaticFeatures

VOCAB = ["<UNK>", "the", "cat", "sat", "on", "mat"]
NGRAMS = (3, 4, 20)
D = 7


@pytest.fixture(params=[None, NGRAMS], ids=["words", "n-grams"])
def static_family(request, rng):
    """(an encoder, the features it reads), with n-grams and without."""
    fields = {} if request.param is None else dict(zip(("min_n", "max_n", "buckets"), NGRAMS, strict=True))
    config = static.Config(len(VOCAB), D, **fields)
    assert config.ngrams == request.param
    return static.encoder(config), StaticFeatures(VOCAB, ngrams=request.param)


def arrays(outputs):
    return keras.tree.map_structure(np.asarray, outputs)


def test_numbers(static_family):
    model, features = static_family
    table = model.get_layer("word_embedding").get_weights()[0]
    assert table.shape == (len(VOCAB) + 1 + (NGRAMS[2] if features.ngrams else 0), D)
    assert -0.05 <= table.min() < -0.04 and 0.04 < table.max() <= 0.05
    sentences = ["the cat sat on the mat", "a dog", ""]
    batch = features(sentences)
    out = arrays(model(batch))
    assert set(model.input) == set(batch) == set(features.keys)
    assert set(out) == {"layers", "sequence", "pooled"} and len(out["layers"]) == 1
    expected = np.zeros((3, 6, D))
    for row, sentence in enumerate(sentences):
        for place, word in enumerate(sentence.split()):
            ids = features.ids([word]).reshape(-1)
            expected[row, place] = table[ids[ids > 0]].mean(0)
    np.testing.assert_allclose(out["sequence"], expected, atol=1e-6)
    assert np.array_equal(out["layers"][0], out["sequence"]) and not out["sequence"][batch["mask"] == 0].any()
    np.testing.assert_allclose(out["pooled"], expected.sum(1) / [[6], [2], [1]], atol=1e-6)


def test_values_under_the_padding_do_not_matter(static_family, rng):
    model, features = static_family
    batch = features(["the cat sat", "a dog"], length=5)
    ids = features.keys[0]
    real = batch["mask"].astype(bool).reshape(2, 5, *[1] * (batch[ids].ndim - 2))
    other = batch | {ids: np.where(real, batch[ids], rng.integers(0, 6, batch[ids].shape)).astype(np.int32)}
    assert not np.array_equal(other[ids], batch[ids])
    before, after = arrays(model(batch)), arrays(model(other))
    for key in ("sequence", "pooled"):
        np.testing.assert_allclose(after[key], before[key], atol=1e-6)
    if features.ngrams:  # more room for sub-words
        wide = batch | {ids: np.pad(batch[ids], ((0, 0), (0, 0), (0, 3)))}
        np.testing.assert_allclose(model(wide)["sequence"], model(batch)["sequence"], atol=1e-6)


@pytest.mark.parametrize("trainable", [True, False])
def test_a_frozen_table_is_not_trained(trainable):
    features = StaticFeatures(VOCAB)
    model = heads.classify(static.encoder(static.Config(len(VOCAB), D, trainable=trainable)), 2)
    before = model.get_layer("word_embedding").get_weights()[0]
    assert len(model.trainable_variables) == (3 if trainable else 2)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    model.train_on_batch(features(["the cat", "a mat"]), {"logits": np.array([0, 1])})
    changed = np.abs(model.get_layer("word_embedding").get_weights()[0] - before).max(1) > 0
    assert changed.tolist() == [False, trainable, trainable, trainable, False, False, trainable]  # <UNK> the cat, mat


def test_dropout_while_training_only():
    model = static.encoder(static.Config(len(VOCAB), 100, dropout=0.5))
    batch = StaticFeatures(VOCAB)(["the cat"])
    assert 0.3 < (np.asarray(model(batch, training=True)["sequence"]) == 0).mean() < 0.7
    assert np.asarray(model(batch)["sequence"]).all()


def test_saved_and_loaded(static_family, tmp_path):
    model, features = static_family
    head = heads.tag(model, 3)
    head.save(tmp_path / "model.keras")
    batch = features(["the cat sat", "a"])
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert np.array_equal(np.asarray(loaded(batch)["logits"]), np.asarray(head(batch)["logits"]))


def test_gradients_are_rows(static_family):
    model, features = static_family
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(features(["the cat"]))["pooled"])
    assert isinstance(tape.gradient(loss, model.trainable_variables[0].value), tf.IndexedSlices)


@pytest.mark.parametrize(
    "fields", [{"words": 0}, {"width": 0}, {"buckets": -1}, {"min_n": 0}, {"min_n": 7}, {"width": 10**9}]
)
def test_bad_sizes(fields):
    (name,) = fields
    with pytest.raises(ValueError, match=f"{name}={fields[name]}.*at least {0 if name == 'buckets' else 1}"):
        static.Config(**({"words": 2, "width": 3} | fields))
