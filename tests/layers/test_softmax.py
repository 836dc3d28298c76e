"""The softmax over words: full, sampled, and what it draws."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_ctxrep.layers import VocabularySoftmax
from keras_ctxrep.layers.softmax import masked_softmax

B, T, D, V, S = 3, 4, 6, 50, 8
P = np.log1p(1 / (np.arange(V) + 1)) / np.log(V + 1)  # the log-uniform distribution


def make(rng, samples=None, **kwargs):
    """A layer with a bias, and something to read."""
    layer = VocabularySoftmax(V, samples, seed=1, **kwargs)
    x = rng.normal(size=(B, T, D)).astype(np.float32)
    layer(x)
    layer.bias.assign(rng.normal(size=V))
    return layer, x


def logits(layer, x):
    return x @ ops.convert_to_numpy(layer.kernel).astype(float).T + ops.convert_to_numpy(layer.bias).astype(float)


def cross_entropy(z, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, z))


def tensorflows(layer, x, targets, samples, **kwargs):
    """The sampled loss by TensorFlow."""
    weights, flat = (layer.kernel.value, layer.bias.value), tf.reshape(x, (-1, D))
    return tf.reduce_mean(tf.nn.sampled_softmax_loss(*weights, targets.reshape(-1, 1), flat, samples, V, **kwargs))


@pytest.mark.parametrize(("samples", "with_targets"), [(None, False), (None, True), (S, False)])
def test_full_logits(rng, samples, with_targets):
    layer, x = make(rng, samples)
    targets = {"targets": np.zeros((B, T), np.int32)} if with_targets else {}
    np.testing.assert_allclose(layer(x, **targets), logits(layer, x), atol=1e-5)


def test_sampled_logits(rng, monkeypatch):
    layer, x = make(rng, S)
    drawn = layer.sample()
    monkeypatch.setattr(layer, "sample", lambda: drawn)
    ids, draws = ops.convert_to_numpy(drawn[0]), float(drawn[1])
    targets = rng.integers(V, size=(B, T)).astype(np.int32)
    targets[0, :3] = ids[[0, 1, 7]]  # true words that are drawn too
    expected_count = 1 - (1 - P) ** draws
    z = logits(layer, x) - np.log(expected_count)
    true = np.take_along_axis(z, targets[:, :, None], -1)
    hit = ids == targets[:, :, None]
    result = ops.convert_to_numpy(layer(x, targets=targets))
    np.testing.assert_allclose(result[..., :1], true, atol=1e-4)
    np.testing.assert_allclose(result[..., 1:][~hit], z[..., ids][~hit], atol=1e-4)
    assert hit.sum() >= 3 and (result[..., 1:][hit] < -1e4).all()
    given = ids.astype(np.int64), expected_count[targets].reshape(-1, 1), expected_count[ids]
    given = [tf.constant(array, array.dtype if array.dtype == np.int64 else tf.float32) for array in given]
    loss = tensorflows(layer, x, targets, S, sampled_values=given)
    np.testing.assert_allclose(cross_entropy(result, np.zeros((B, T), np.int32)), loss, rtol=1e-5)


@pytest.fixture(scope="module")
def many_draws():
    """(how often each word is in a draw, the mean of the expected counts) over 1000 draws."""
    layer = VocabularySoftmax(V, S, seed=7)
    draw = tf.function(layer.sample)
    included, expected = np.zeros(V), np.zeros(V)
    for _ in range(1000):
        ids, draws = (tensor.numpy() for tensor in draw())
        assert len(set(ids.tolist())) == S and draws >= S
        included[ids] += 1
        expected += 1 - (1 - P) ** draws
    return included / 1000, expected / 1000


def standard_error(share, number):
    return np.sqrt(share * (1 - share) / number)


def test_words_are_drawn_as_often_as_tensorflow_draws_them(many_draws):
    sampler = tf.function(lambda: tf.random.log_uniform_candidate_sampler([[0]], 1, S, True, V)[0])
    reference = np.zeros(V)
    tf.random.set_seed(0)
    for _ in range(4000):
        reference[sampler().numpy()] += 1 / 4000
    estimates, _ = many_draws
    assert (abs(estimates - reference) < 4 * standard_error(reference, 800)).all()  # 1 / 800 = 1 / 1000 + 1 / 4000


def test_words_are_drawn_as_often_as_expected(many_draws):
    estimates, expected = many_draws
    assert estimates.sum() == pytest.approx(S)
    assert (abs(estimates - expected) < 4 * standard_error(expected, 1000)).all()


def test_as_many_samples_as_words_are_all_of_them():
    ids, _ = VocabularySoftmax(V, V).sample()
    assert sorted(ops.convert_to_numpy(ids)) == list(range(V))


def test_draws_and_seeds():
    def draw(layer, count=3):
        return [ops.convert_to_numpy(layer.sample()[0]).tolist() for _ in range(count)]

    first, again, other = (draw(VocabularySoftmax(V, S, seed=seed)) for seed in (1, 1, 2))
    assert first == again and not set(map(tuple, first)) & set(map(tuple, other))
    assert len(set(map(tuple, first))) == 3


def test_the_gradient_is_that_of_tensorflow_and_near_the_full_one(rng):
    """In the mean over many draws: few of them pull as TensorFlow's do, and nearly all words pull as all do."""
    _, x = make(rng)
    x, targets = tf.constant(x), rng.integers(V, size=(B, T)).astype(np.int32)

    def mean_gradient(loss, count=200):
        @tf.function
        def gradient():
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = loss()
            return tape.gradient(value, x)

        return sum(gradient() for _ in range(count)) / count

    def gradients(samples):
        layer, _ = make(np.random.default_rng(2), samples)
        layer.kernel.assign(3 * layer.kernel)
        ours = mean_gradient(lambda: cross_entropy(layer(x, targets=targets), np.zeros((B, T), np.int32)))
        theirs = mean_gradient(lambda: tensorflows(layer, x, targets, samples))
        full = mean_gradient(lambda: cross_entropy(layer(x), targets), 1)
        return ours, theirs, full

    def distance(first, other):
        return float(tf.norm(first - other) / tf.norm(other))

    ours, theirs, full = gradients(S)
    assert distance(ours, theirs) < 0.1 < distance(ours, full)
    ours, _, full = gradients(V - 2)
    assert distance(ours, full) < 0.05


def test_a_step_moves_the_rows_it_read_and_no_others(rng, monkeypatch):
    layer, x = make(rng, S)
    drawn = layer.sample()
    monkeypatch.setattr(layer, "sample", lambda: drawn)
    targets = rng.integers(V, size=(B, T)).astype(np.int32)
    with tf.GradientTape() as tape:
        loss = cross_entropy(layer(x, targets=targets), np.zeros((B, T), np.int32))
    before = [weight.numpy() for weight in layer.weights]
    touched = sorted({*targets.ravel().tolist(), *ops.convert_to_numpy(drawn[0]).tolist()})
    for weight, old, gradient in zip(
        layer.weights, before, tape.gradient(loss, [weight.value for weight in layer.weights]), strict=True
    ):
        assert isinstance(gradient, tf.IndexedSlices)
        assert sorted(set(gradient.indices.numpy().tolist())) == touched
        weight.value.scatter_sub(gradient)
        moved = np.abs(weight.numpy() - old).reshape(V, -1).max(1) > 0
        assert np.flatnonzero(moved).tolist() == touched


@pytest.mark.parametrize("samples", [0, V + 1])
def test_more_samples_than_words_are_refused(samples):
    with pytest.raises(ValueError, match=f"samples={samples}: there are {V} words"):
        VocabularySoftmax(V, samples)


def test_half_precision(rng):
    """Close to single precision, and the weights stay in that."""
    layer, x = make(rng, S, dtype="mixed_bfloat16")
    full, _ = make(rng, S)
    full.set_weights(layer.get_weights())
    layer.seed_generator.state.assign(full.seed_generator.state)
    targets = rng.integers(V, size=(B, T)).astype(np.int32)
    with tf.GradientTape() as tape:
        first = layer(x, targets=targets)
    assert first.dtype == tf.bfloat16 and layer.kernel.dtype == layer.bias.dtype == "float32"
    assert isinstance(tape.gradient(first, layer.kernel.value), tf.IndexedSlices)  # the kernel is not cast as a whole
    second = full(x, targets=targets)
    first, second = tf.cast(first, tf.float32).numpy(), second.numpy()
    real = second > -1e4
    np.testing.assert_allclose(first[real], second[real], atol=0.1)
    assert (first[~real] < -1e4).all()


def test_shapes_that_are_not_known(rng):
    layer = VocabularySoftmax(V, S)
    run = tf.function(
        lambda x, targets: layer(x, targets=targets),
        input_signature=[tf.TensorSpec((None, None, D)), tf.TensorSpec((None, None), tf.int32)],
    )
    for batch, length in ((1, 1), (2, 5)):
        x = rng.normal(size=(batch, length, D)).astype(np.float32)
        assert run(x, np.zeros((batch, length), np.int32)).shape == (batch, length, 1 + S)


def test_config_and_names_of_weights(rng):
    layer, _ = make(rng, S)
    assert [weight.name for weight in layer.weights] == ["softmax_kernel", "softmax_bias"]
    assert [tuple(weight.shape) for weight in layer.weights] == [(V, D), (V,)]
    again = VocabularySoftmax.from_config(layer.get_config())
    assert again.get_config() == layer.get_config() and (again.samples, again.seed) == (S, 1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_masked_softmax_is_over_real_scores_alone(rng, dtype):
    scores = rng.normal(0, 50, (3, 5)).astype(dtype)
    mask = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0]])
    weights = ops.convert_to_numpy(masked_softmax(ops.array(scores), mask))
    for row, real, ours in zip(scores.astype("float64"), mask > 0, weights, strict=True):
        exact = np.exp(row[real] - row[real].max())
        np.testing.assert_allclose(
            ours[real], exact / exact.sum(), rtol=1e-5 if dtype == "float32" else 4e-3, atol=1e-7
        )
        assert not ours[~real].any()
    # of one score Keras' softmax warns
    assert ops.convert_to_numpy(masked_softmax(ops.array(scores[:, :1]), mask[:, :1])).tolist() == [[1.0]] * 3
