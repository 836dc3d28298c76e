"""The CRF, against a search of all label sequences."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_ctxrep.layers import CRF
from tests.crf import viterbi

B, T, C = 6, 5, 3
MASK = np.array(
    [[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [1, 0, 0, 0, 1]], np.int32
)


@pytest.fixture
def layer(rng):
    """A CRF whose every weight has a value of its own."""
    layer = CRF(name="crf")
    layer.build((None, None, C))
    layer.set_weights([rng.normal(size=weight.shape).astype(np.float32) for weight in layer.weights])
    return layer


@pytest.fixture
def logits(rng):
    return rng.normal(size=(B, T, C)).astype(np.float32)


def score(logits, labels, transitions, begin, end):
    """As the layer's docstring has it, in float64."""
    steps = sum(transitions[first, second] for first, second in itertools.pairwise(labels))
    return begin[labels[0]] + sum(logits[t, label] for t, label in enumerate(labels)) + steps + end[labels[-1]]


def every(logits, layer):
    """{labels: score} of all sequences of labels."""
    weights = [np.asarray(weight, np.float64) for weight in layer.get_weights()]
    logits = np.asarray(logits, np.float64)
    return {labels: score(logits, labels, *weights) for labels in itertools.product(range(C), repeat=len(logits))}


def targets(rng):
    return np.where(MASK == 1, rng.integers(0, C, (B, T)), -1).astype(np.int32)


def test_best_labels_of_all(layer, logits):
    tags = np.asarray(layer(logits, mask=MASK))
    assert tags.dtype == np.int32 and not tags[MASK == 0].any()
    for row, real, decoded in zip(logits, MASK.astype(bool), tags, strict=True):
        scores = every(row[real], layer) if real.any() else {(): 0.0}
        best = max(scores, key=scores.__getitem__)
        assert tuple(decoded[real]) == best == tuple(viterbi(row[real], *layer.get_weights()))
    assert not np.array_equal(tags, logits.argmax(-1) * MASK)  # the transitions matter


def test_many_sequences_as_text_decode_has_them(layer, rng):
    logits = rng.normal(size=(50, 20, C)).astype(np.float32)
    mask = (rng.random((50, 20)) < 0.7).astype(np.int32)
    for row, real, decoded in zip(logits, mask.astype(bool), np.asarray(layer(logits, mask=mask)), strict=True):
        assert decoded[real].tolist() == viterbi(row[real], *layer.get_weights())


def test_ties_go_to_the_first_label(layer):
    layer.set_weights([np.zeros_like(weight) for weight in layer.get_weights()])
    logits = np.array([[[0.0, -0.0, 0.0], [1, 2, 2], [-0.0, 0.0, -0.0]]], np.float32)
    assert np.asarray(layer(logits, mask=np.ones((1, 3), np.int32))).tolist() == [[0, 1, 0]]
    assert viterbi(logits[0], *layer.get_weights()) == [0, 1, 0]


def test_loss_over_all(layer, logits, rng):
    y = targets(rng)
    losses = np.asarray(layer.loss(y, logits))
    assert losses.shape == (B,) and losses[3] == 0
    for row, real, labels, loss in zip(logits, MASK.astype(bool), y, losses, strict=True):
        if real.any():
            scores = every(row[real], layer)
            expected = np.logaddexp.reduce(list(scores.values())) - scores[tuple(labels[real])]
            assert loss == pytest.approx(expected, abs=1e-5)


def test_loss_without_transitions_is_cross_entropy(logits, rng):
    layer = CRF()
    layer.build((None, None, C))
    y = targets(rng)
    each = keras.losses.sparse_categorical_crossentropy(np.maximum(y, 0), logits, from_logits=True)
    np.testing.assert_allclose(layer.loss(y, logits), (np.asarray(each) * MASK).sum(1), atol=1e-5)


def test_gradient(layer, logits, rng):
    """Expected counts less those of the labels, by central differences in float64."""
    y, big = targets(rng), tf.constant(100 * logits)
    x = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer.loss(y, x))
    gradients = tape.gradient(loss, [x, *(weight.value for weight in layer.weights)])
    shares = np.zeros((B, T, C))
    for row, (real, labels) in enumerate(zip(MASK.astype(bool), y, strict=True)):
        if real.any():
            scores = every(logits[row][real], layer)
            whole = np.logaddexp.reduce(list(scores.values()))
            for path, value in scores.items():
                shares[row, np.flatnonzero(real), path] += np.exp(value - whole)
            shares[row, np.flatnonzero(real), labels[real]] -= 1
    np.testing.assert_allclose(gradients[0], shares, atol=1e-5)
    assert all(np.abs(gradient).max() > 0.1 for gradient in gradients)
    with tf.GradientTape() as tape:
        tape.watch(big)
        loss = tf.reduce_sum(layer.loss(y, big))
    assert np.isfinite(loss) and np.isfinite(tape.gradient(loss, big)).all()


def test_masked_positions_change_nothing(layer, logits, rng):
    y = targets(rng)
    other = np.where(MASK[:, :, None] == 1, logits, 100 * rng.normal(size=logits.shape)).astype(np.float32)
    wide, mask = np.pad(other, ((0, 0), (2, 3), (0, 0)), constant_values=9), np.pad(MASK, ((0, 0), (2, 3)))
    y_wide = np.pad(y, ((0, 0), (2, 3)), constant_values=-1)
    tags, losses = np.asarray(layer(logits, mask=MASK)), np.asarray(layer.loss(y, logits))
    assert np.array_equal(layer(other, mask=MASK), tags) and np.array_equal(layer(wide, mask=mask)[:, 2:-3], tags)
    np.testing.assert_allclose(layer.loss(y, other), losses, atol=1e-5)
    np.testing.assert_allclose(layer.loss(y_wide, wide), losses, atol=1e-5)
    for row in range(B):  # alone
        assert np.array_equal(layer(logits[row : row + 1], mask=MASK[row : row + 1])[0], tags[row])


def network(layer):
    inputs = {"logits": keras.Input((None, C), name="logits"), "mask": keras.Input((None,), dtype="int32", name="mask")}
    logits = keras.layers.Activation("linear", name="out")(inputs["logits"])
    return keras.Model(inputs, {"logits": logits, "tags": layer(logits, mask=inputs["mask"])})


@pytest.mark.trains
def test_tflite_gives_the_same_tags(layer, logits, tmp_path):
    """With built-in operators alone."""
    model = network(layer)
    module = tf.Module()
    module.weights = [weight.value for weight in model.weights]
    shapes = {"logits": tf.TensorSpec((1, T, C), tf.float32, "logits"), "mask": tf.TensorSpec((1, T), tf.int32, "mask")}
    module.tags = tf.function(lambda inputs: {"tags": model(inputs)["tags"]})
    signature = module.tags.get_concrete_function(shapes)
    tf.saved_model.save(module, str(tmp_path), signatures={"ids": signature})
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path), signature_keys=["ids"])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    run = Interpreter(model_content=converter.convert()).get_signature_runner("ids")
    expected = np.asarray(layer(logits, mask=MASK))
    for row in range(B):
        actual = run(logits=logits[row : row + 1], mask=MASK[row : row + 1])["tags"]
        assert actual.dtype == np.int32 and np.array_equal(actual[0], expected[row])


@pytest.mark.trains
def test_transitions_are_learned(rng):
    """Labels that take turns after a first word that tells the first of them, and others that tell nothing."""
    first = rng.integers(0, 2, (64, 1))
    y = ((first + np.arange(6)) % 2).astype(np.int32)
    y[::3, 4:] = -1
    real = (y >= 0).astype(np.int32)
    words = np.where(np.arange(6) == 0, 2 * first - 1, 0)[:, :, None].astype(np.float32)
    inputs, mask = keras.Input((None, 1)), keras.Input((None,), dtype="int32")
    logits = keras.layers.Dense(2, name="logits")(inputs)
    layer = CRF(name="crf")
    model = keras.Model((inputs, mask), {"logits": logits, "tags": layer(logits, mask=mask)})
    model.compile(keras.optimizers.Adam(0.3), {"logits": layer.loss})
    data = tf.data.Dataset.from_tensors(((words, real), {"logits": y})).repeat(25)
    history = model.fit(data, shuffle=False, verbose=0, epochs=2).history["loss"]
    assert history[-1] < 0.2 < history[0]
    out = model((words, real))
    assert np.array_equal(np.asarray(out["tags"])[real == 1], y[real == 1])
    assert (np.asarray(out["logits"]).argmax(-1) == y)[real == 1].mean() < 0.8


def test_saved_and_loaded(layer, logits, tmp_path):
    model = network(layer)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    batch = {"logits": logits, "mask": MASK}
    assert np.array_equal(loaded(batch)["tags"], model(batch)["tags"])
    assert np.array_equal(loaded.get_layer("crf").transitions, layer.transitions)


def test_a_plain_compile_does_not_choose_xla(rng):
    """With XLA, as Keras chooses it where there is a GPU, the gradient of the loss could not be compiled."""
    inputs, crf = {"x": keras.Input((None, 2), name="x"), "mask": keras.Input((None,), name="mask")}, CRF()
    logits = keras.layers.Dense(C)(inputs["x"])
    model = keras.Model(inputs, {"logits": logits, "tags": crf(logits, mask=inputs["mask"])})
    with pytest.warns(UserWarning, match="jit_compile"):
        model.compile("sgd", {"logits": crf.loss}, jit_compile=True)
    assert model.jit_compile is False
    x = {"x": rng.normal(size=(B, T, 2)), "mask": np.ones((B, T))}
    assert np.isfinite(model.fit(x, {"logits": np.zeros((B, T), np.int32)}, verbose=0).history["loss"][0])
