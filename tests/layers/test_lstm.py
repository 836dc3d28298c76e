"""The projected LSTM: its numbers, its three forms, its gradient, its state."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_ctxrep.layers import ProjectedLSTM, cpu, lstm

B, T, D, UNITS = 4, 7, 5, 6
LENGTHS = np.array([7, 3, 0, 5])  # one row is all padding
MASK = (np.arange(T) < LENGTHS[:, None]).astype(np.int32)
CLIPS = {"cell_clip": 0.5, "projection_clip": 0.3}

both_directions = pytest.mark.parametrize("go_backwards", [False, True])
with_and_without = pytest.mark.parametrize("projection", [3, None])


def make(rng, projection=3, go_backwards=False, scale=1.0, clips=CLIPS, **kwargs):
    """A layer whose clips bite."""
    layer = ProjectedLSTM(UNITS, projection, go_backwards=go_backwards, **clips, **kwargs)
    layer.build((None, None, D))
    for weight in layer.weights:
        weight.assign(rng.normal(scale=scale, size=weight.shape))
    return layer


def restated(layer, x, mask):
    """The equations of the docstring, one row and one step at a time, in float64."""
    return restated_from(layer, x, mask, np.zeros((len(x), layer.width + layer.units)))[0]


def restated_from(layer, x, mask, state):
    """The same with a state to begin with, float64 (B, P + units), and the state at the end."""
    weights = {weight.name: ops.convert_to_numpy(weight.value).astype(np.float64) for weight in layer.weights}

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    def clip(z, limit):
        return z if limit is None else np.clip(z, -limit, limit)

    out, end = np.zeros((*x.shape[:2], layer.width)), np.zeros(state.shape)
    for row in range(len(x)):
        h, c = np.split(state[row], [layer.width])
        steps = range(int(mask[row].sum()))
        for t in reversed(steps) if layer.go_backwards else steps:
            z = x[row, t] @ weights["kernel"] + h @ weights["recurrent_kernel"] + weights["bias"]
            i, j, f, o = np.split(z, 4)
            c = clip(sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j), layer.cell_clip)
            h = sigmoid(o) * np.tanh(c)
            if layer.projection is not None:
                h = h @ weights["projection_kernel"]
            h = out[row, t] = clip(h, layer.projection_clip)
        end[row] = np.concatenate([h, c])
    return out, end


@both_directions
@with_and_without
@pytest.mark.parametrize("clips", [CLIPS, {}, {"cell_clip": 0.5}, {"projection_clip": 0.3}])
@pytest.mark.parametrize("training", [False, True])
def test_numbers(rng, projection, go_backwards, clips, training):
    layer = make(rng, projection, go_backwards, clips=clips)
    x = rng.normal(size=(B, T, D)).astype(np.float32)
    out = ops.convert_to_numpy(layer(x, mask=MASK, training=training))
    np.testing.assert_allclose(out, restated(layer, x, MASK), atol=1e-5)
    assert not out[MASK == 0].any()
    if "projection_clip" in clips:
        at_clip = (np.abs(out[MASK == 1]) == np.float32(0.3)).mean()
        assert 0.05 < at_clip < 0.95


def test_the_forget_bias_is_added_when_running(rng):
    layer = make(rng, clips={})
    for weight in layer.weights:
        weight.assign(0 * weight)
    layer.projection_kernel.assign(np.ones((UNITS, 3)))
    kernel = np.zeros((D, 4 * UNITS))
    kernel[0, UNITS : 2 * UNITS] = 100.0  # the new input is the second quarter
    layer.kernel.assign(kernel)
    x = np.zeros((1, 2, D), np.float32)
    x[0, 0, 0] = 1.0  # c1 = sigmoid(0) tanh(100) = 1/2, then c2 = sigmoid(1) c1
    out = ops.convert_to_numpy(layer(x, mask=np.ones((1, 2), np.int32)))[0, :, 0]
    c = 0.5 * np.array([1, 1 / (1 + np.exp(-1))])
    np.testing.assert_allclose(out, UNITS * 0.5 * np.tanh(c), rtol=1e-6)


FORMS = ("_scan", "_run_on_tensorflow", "_train_on_tensorflow")


def outputs_and_gradients(layer, form, x, mask, factors):
    """The output of one form, and the gradients of a sum over it for the input and every weight."""
    time_major = tf.transpose(tf.cast(mask, x.dtype))[:, :, None]
    with tf.GradientTape() as tape:
        tape.watch(x)
        out, *_ = getattr(layer, form)(x, time_major)
        loss = tf.reduce_sum(out * factors)
    return out, tape.gradient(loss, [x, *(weight.value for weight in layer.weights)])


@pytest.mark.trains
@both_directions
@with_and_without
@pytest.mark.parametrize("clips", [CLIPS, {}])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "unknown batch and length"])
def test_three_forms_are_equal(rng, projection, go_backwards, clips, traced):
    layer = make(rng, projection, go_backwards, clips=clips)
    x = tf.constant(rng.normal(size=(B, T, D)), tf.float32)
    mask = tf.constant(MASK)
    factors = tf.constant(rng.normal(size=(B, T, layer.width)), tf.float32)
    results = []
    for form in FORMS:

        def run(x, mask, factors, form=form):
            return outputs_and_gradients(layer, form, x, mask, factors)

        if traced and form != "_scan":  # keras.ops.scan needs a known length under TensorFlow, where it is not used
            unknown = [
                tf.TensorSpec((None, None, D)),
                tf.TensorSpec((None, None), tf.int32),
                tf.TensorSpec((None,) * 3),
            ]
            run = tf.function(run, input_signature=unknown)
        results.append(run(x, mask, factors))
    out, gradients = results[0]
    assert not out.numpy()[MASK == 0].any() and np.abs(out.numpy()[MASK == 1]).min() > 0
    for other, others in results[1:]:
        np.testing.assert_allclose(other, out, atol=1e-5)
        for gradient, other in zip(gradients, others, strict=True):
            assert np.abs(gradient).max() > 1e-3
            np.testing.assert_allclose(other, gradient, atol=1e-5, rtol=1e-5)
    d_x = gradients[0].numpy()
    assert not d_x[MASK == 0].any()


@both_directions
def test_masked_positions_in_between_leave_the_state_alone(rng, go_backwards):
    layer = make(rng, go_backwards=go_backwards)
    x, factors = (tf.constant(rng.normal(size=(2, T, size)), tf.float32) for size in (D, 3))
    mask = np.array([[1, 0, 1, 1, 0, 0, 1], [0, 0, 1, 0, 1, 1, 0]], np.int32)
    expected = np.zeros((2, T, 3))
    for row, real in enumerate(mask.astype(bool)):
        expected[row, real] = restated(layer, x[row : row + 1].numpy()[:, real], np.ones((1, real.sum())))[0]
    results = [outputs_and_gradients(layer, form, x, tf.constant(mask), factors) for form in FORMS]
    for out, gradients in results:
        np.testing.assert_allclose(out, expected, atol=1e-5)
        for wanted, gradient in zip(results[0][1], gradients, strict=True):
            np.testing.assert_allclose(gradient, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS[1:])
@both_directions
def test_one_traced_function_serves_every_shape(rng, form, go_backwards):
    layer = make(rng, go_backwards=go_backwards)
    run = tf.function(
        lambda x, mask: getattr(layer, form)(x, tf.transpose(tf.cast(mask, x.dtype))[:, :, None])[0],
        input_signature=[tf.TensorSpec((None, None, D)), tf.TensorSpec((None, None), tf.int32)],
    )
    for batch, length in ((1, 1), (3, 2), (2, 9)):
        x = rng.normal(size=(batch, length, D)).astype(np.float32)
        mask = (np.arange(length) < rng.integers(0, length + 1, (batch, 1))).astype(np.int32)
        np.testing.assert_allclose(run(x, mask), restated(layer, x, mask), atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_a_batch_of_padding_gives_zeros(rng, training):
    layer = make(rng)
    out = layer(rng.normal(size=(2, 3, D)).astype(np.float32), mask=np.zeros((2, 3), np.int32), training=training)
    assert out.shape == (2, 3, 3) and not ops.convert_to_numpy(out).any()


@both_directions
@with_and_without
def test_gradient_against_finite_differences(rng, projection, go_backwards):
    layer = make(rng, projection, go_backwards, dtype="float64")
    x = tf.constant(rng.normal(size=(B, T, D)))
    factors = rng.normal(size=(B, T, layer.width))
    assert np.abs(ops.convert_to_numpy(layer(x, mask=MASK))).max() == 0.3
    _, (d_x, *d_weights) = outputs_and_gradients(layer, "_train_on_tensorflow", x, tf.constant(MASK), factors)

    def loss(x=x):
        return (restated(layer, x.numpy(), MASK) * factors).sum()

    step = 1e-6
    for weight, gradient in zip(layer.weights, d_weights, strict=True):
        direction, value = rng.normal(size=weight.shape), ops.convert_to_numpy(weight.value)
        weight.assign(value + step * direction)
        high = loss()
        weight.assign(value - step * direction)
        low = loss()
        weight.assign(value)
        assert (high - low) / (2 * step) == pytest.approx((gradient.numpy() * direction).sum(), rel=1e-5)
    direction = rng.normal(size=x.shape)
    slope = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    assert slope == pytest.approx((d_x.numpy() * direction).sum(), rel=1e-5)


@both_directions
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [1, 2], [2]], ids=["all blocks", "one block", "padding"])
def test_many_steps_in_blocks(rng, go_backwards, rows, monkeypatch):
    layer, mask = make(rng, go_backwards=go_backwards), MASK[rows]
    x, state = rng.normal(size=(len(rows), T, D)).astype(np.float32), random_state(rng, layer, len(rows))
    monkeypatch.setattr(lstm, "LOOP", 2)
    monkeypatch.setattr(lstm, "BLOCK", 3)
    for actual, expected in zip(
        run(layer, "_run_on_tensorflow", x, mask, state), restated_from(layer, x, mask, state), strict=True
    ):
        np.testing.assert_allclose(actual, expected, atol=1e-5)


@both_directions
@pytest.mark.parametrize("length", [257, 259])
def test_long_texts_in_half_precision(rng, length, go_backwards):
    layer = ProjectedLSTM(4, projection=3, go_backwards=go_backwards, dtype="mixed_bfloat16")
    x = rng.normal(size=(2, length, D)).astype(np.float32)
    mask = (np.arange(length) < [[length], [length - 2]]).astype(np.int32)
    layer(x[:, :1], mask=mask[:, :1])
    runs = []
    for training in (False, True):
        run = tf.function(lambda training=training: tf.cast(layer(x, mask=mask, training=training), tf.float32))
        runs.append(run().numpy())
    np.testing.assert_allclose(runs[0], runs[1], atol=0.02)
    assert (np.abs(runs[0]).max(-1) > 0).astype(int).tolist() == mask.tolist()


def run(layer, form, x, mask, state):
    """Output and end of one of the three forms, from a state (B, P + units)."""
    time_major = tf.transpose(tf.cast(mask, x.dtype))[:, :, None]
    out, *end = getattr(layer, form)(x, time_major, tf.split(state, [layer.width, layer.units], axis=1))
    return out, tf.concat(end, axis=1)


def random_state(rng, layer, rows=B):
    return rng.uniform(-0.3, 0.3, (rows, layer.width + layer.units)).astype(np.float32)


@pytest.mark.parametrize("form", FORMS)
@both_directions
@with_and_without
def test_state_in_and_out(rng, form, go_backwards, projection):
    layer = make(rng, projection, go_backwards)
    x, state = rng.normal(size=(B, T, D)).astype(np.float32), random_state(rng, layer)
    expected, expected_end = restated_from(layer, x, MASK, state)
    out, end = run(layer, form, tf.constant(x), MASK, state)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(end, expected_end, atol=1e-5)
    assert np.array_equal(end[2], state[2])  # the row that is all padding


@pytest.mark.parametrize("form", FORMS)
@both_directions
def test_two_halves_with_carried_state_equal_the_whole(rng, form, go_backwards):
    """The first row is longer than a half, the second shorter, the third empty, the fourth in between."""
    layer = make(rng, go_backwards=go_backwards)
    x, state = tf.constant(rng.normal(size=(B, T, D)), tf.float32), random_state(rng, layer)
    whole, end = run(layer, form, x, MASK, state)
    parts = [slice(0, 4), slice(4, T)]
    halves = {}
    for index in (1, 0) if go_backwards else (0, 1):
        halves[index], state = run(layer, form, x[:, parts[index]], MASK[:, parts[index]], state)
    np.testing.assert_allclose(np.concatenate([halves[0], halves[1]], 1), whole, atol=1e-6)
    np.testing.assert_allclose(state, end, atol=1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_the_state_of_a_call(rng, training):
    layer = make(rng)
    x, state = rng.normal(size=(B, T, D)).astype(np.float32), random_state(rng, layer)
    out, end = layer(x, mask=MASK, state=state, training=training)
    expected, expected_end = restated_from(layer, x, MASK, state)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(end, expected_end, atol=1e-5)


@both_directions
@with_and_without
@pytest.mark.parametrize("clips", [CLIPS, {}])
def test_gradients_of_the_state_given_and_returned(rng, go_backwards, projection, clips):
    layer = make(rng, projection, go_backwards, clips=clips)
    x, state = tf.constant(rng.normal(size=(B, T, D)), tf.float32), tf.constant(random_state(rng, layer))
    factors, at_end = rng.normal(size=(B, T, layer.width)), rng.normal(size=state.shape)
    results = []
    for form in FORMS:
        with tf.GradientTape() as tape:
            tape.watch([x, state])
            out, end = run(layer, form, x, MASK, state)
            loss = tf.reduce_sum(out * factors) + tf.reduce_sum(end * at_end)
        results.append(tape.gradient(loss, [x, state, *(weight.value for weight in layer.weights)]))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert np.abs(first).max() > 1e-3
            np.testing.assert_allclose(second, first, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(results[0][1][2], at_end[2], rtol=1e-6)  # nothing happens in a row of padding


@both_directions
def test_gradient_of_the_state_against_finite_differences(rng, go_backwards):
    layer = make(rng, go_backwards=go_backwards, dtype="float64")
    x, state = rng.normal(size=(B, T, D)), random_state(rng, layer).astype(np.float64)
    factors, at_end = rng.normal(size=(B, T, 3)), rng.normal(size=state.shape)

    def loss(state):
        out, end = restated_from(layer, x, MASK, state)
        return (out * factors).sum() + (end * at_end).sum()

    given = tf.constant(state)
    with tf.GradientTape() as tape:
        tape.watch(given)
        out, end = run(layer, "_train_on_tensorflow", tf.constant(x), MASK, given)
        value = tf.reduce_sum(out * factors) + tf.reduce_sum(end * at_end)
    direction, step = rng.normal(size=state.shape), 1e-6
    slope = (loss(state + step * direction) - loss(state - step * direction)) / (2 * step)
    assert slope == pytest.approx((tape.gradient(value, given).numpy() * direction).sum(), rel=1e-5)


def batches_of_streams(rng, sizes, length=4):
    """Batches of so many rows, whose last row is shorter."""
    for size in sizes:
        mask = np.ones((size, length), np.int32)
        mask[-1, 2:] = 0
        yield rng.normal(size=(size, length, D)).astype(np.float32), mask


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "unknown batch and length"])
def test_streams_go_on_from_batch_to_batch(rng, training, traced):
    """As in https://github.com/allenai/bilm-tf: a batch goes on from the first rows, and leaves the others alone."""
    layer = make(rng, streams=5)
    layer.state.assign(np.zeros((5, 9)))

    def call(x, mask):
        return layer(x, mask=mask, training=training)

    if traced:
        call = tf.function(
            call, input_signature=[tf.TensorSpec((None, None, D)), tf.TensorSpec((None, None), tf.int32)]
        )
    state = np.zeros((5, 9))
    for x, mask in batches_of_streams(rng, (3, 2, 4, 1)):
        before = layer.state.numpy()
        expected, state[: len(x)] = restated_from(layer, x, mask, state[: len(x)])
        np.testing.assert_allclose(call(x, mask), expected, atol=1e-5)
        np.testing.assert_allclose(layer.state, state, atol=1e-5)
        assert np.array_equal(layer.state[len(x) :], before[len(x) :])
    assert np.abs(state[:4]).min(1).all() and not state[4].any()


def test_more_rows_than_streams_are_refused(rng):
    layer = make(rng, streams=2, name="forward_0")
    ((x, mask),) = batches_of_streams(rng, (3,))
    for call in (layer, tf.function(layer)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="forward_0 keeps 2 streams; the batch has more rows"):
            call(x, mask=mask)


def test_a_given_state_leaves_the_streams_alone(rng):
    layer = make(rng, streams=2)
    ((x, mask),) = batches_of_streams(rng, (2,))
    before = layer.state.numpy()
    layer(x, mask=mask, state=np.zeros((2, 9), np.float32))
    assert np.array_equal(layer.state, before)


@pytest.mark.parametrize("training", [False, True])
def test_no_gradient_goes_through_the_streams(rng, training):
    layer = make(rng, streams=2)
    assert [weight.name for weight in layer.non_trainable_weights] == ["state"]
    (first, mask), (second, _) = batches_of_streams(rng, (2, 2))
    first, second = tf.constant(first), tf.constant(second)
    with tf.GradientTape() as tape:
        tape.watch([first, second, layer.state.value])
        layer(first, mask=mask, training=training)
        loss = tf.reduce_sum(layer(second, mask=mask, training=training))
    before, now, state = tape.gradient(loss, [first, second, layer.state.value])
    assert before is None and state is None and np.abs(now).max() > 0


def test_the_state_of_streams_is_saved(rng, tmp_path):
    def model():
        inputs = keras.Input((None, D)), keras.Input((None,), dtype="int32")
        return keras.Model(inputs, ProjectedLSTM(UNITS, 3, streams=2)(inputs[0], mask=inputs[1]))

    ((x, mask),) = batches_of_streams(rng, (2,))
    first, second = model(), model()
    first([x, mask])
    first.save_weights(tmp_path / "a.weights.h5")
    second.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(first([x, mask]), second([x, mask]))


def test_streams_in_half_precision(rng):
    layer = make(rng, streams=2, dtype="mixed_bfloat16")
    ((x, mask),) = batches_of_streams(rng, (2,))
    out = layer(x, mask=mask, training=True)
    assert out.dtype == tf.bfloat16 and layer.state.dtype == "float32"
    np.testing.assert_array_equal(tf.cast(layer.state[0, :3], tf.bfloat16), out[0, -1])


@pytest.mark.trains
@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("training", [False, True])
def test_the_cell_is_in_float32_in_half_precision(training, dtype):
    """A cell that gains 0.003 in each step stops at 1 in bfloat16, whose numbers lie 0.008 apart there."""
    layer = ProjectedLSTM(4, streams=1, dtype=dtype)
    x, mask = np.zeros((1, 500, 4), np.float32), np.ones((1, 500), np.int32)
    layer(x, mask=mask)
    layer.state.assign(tf.zeros((1, 8)))
    layer.recurrent_kernel.assign(tf.zeros((4, 16)))
    layer.bias.assign(np.repeat([20.0, 0.003, 20.0, 0.0], 4))
    layer(x, mask=mask, training=training)
    np.testing.assert_allclose(layer.state[0, 4:], 500 * 0.003, rtol=0.01)


@both_directions
@with_and_without
@pytest.mark.parametrize("rows", [1, 3])
def test_products_on_this_machine(rng, go_backwards, projection, rows, monkeypatch):
    """Transposed kernels, of a single row by XLA, round the sums of the same products; no exported graph has them."""
    layer = make(rng, projection, go_backwards, dtype="bfloat16")
    x = tf.cast(rng.normal(size=(rows, T, D)), tf.bfloat16)
    monkeypatch.setattr(lstm, "LARGE", 0)
    monkeypatch.setattr(cpu, "_has_one_dnn", lambda: True)
    signature = [tf.TensorSpec((None, None, D), tf.bfloat16)]

    def run(x):
        return tf.cast(layer(x, mask=tf.ones(tf.shape(x)[:2], tf.int32)), tf.float32)

    portable, traced = (tf.function(run, input_signature=signature) for _ in range(2))
    expected = portable(x)
    with cpu.on_this_machine():
        actual = traced(x)
    np.testing.assert_allclose(actual, expected, atol=0.01)  # 0.3 at most, of which the last bit is 0.001
    for function, compiled in ((portable, False), (traced, True)):
        graph = function.get_concrete_function().graph.as_graph_def()
        assert ("_XlaMustCompile" in str(graph)) == compiled


def test_config_and_name_of_weights(rng):
    layer = make(rng, go_backwards=True)
    assert [weight.name for weight in layer.weights] == ["kernel", "recurrent_kernel", "bias", "projection_kernel"]
    assert [tuple(weight.shape) for weight in layer.weights] == [(5, 24), (3, 24), (24,), (6, 3)]
    again = ProjectedLSTM.from_config(layer.get_config())
    assert again.get_config() == layer.get_config() and again.go_backwards and again.width == 3
    assert ProjectedLSTM.from_config(make(rng, streams=3).get_config()).streams == 3
