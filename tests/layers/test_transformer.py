"""The Transformer block against a restatement in NumPy, and the layers around it."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_ctxrep.layers import (
    Bias,
    PositionEmbedding,
    SinusoidalPositions,
    TakePositions,
    TransformerBlock,
    cpu,
)
from keras_ctxrep.layers.transformer import activated

B, T, D, HEADS = 3, 5, 8, 2
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], np.int32)


def restated(layer, x, mask, bias=None):
    """Devlin et al. 2018 over Vaswani et al. 2017, one head and query at a time; padding is left out.

    A pair for each row: its vectors, and its attention weights.
    """

    def dense(part, x):
        return x @ value(part.kernel) + value(part.bias)

    def value(weight):
        return ops.convert_to_numpy(weight.value).astype(np.float64)

    def norm(part, x):
        deviation = np.sqrt(x.var(-1, keepdims=True) + layer.epsilon)
        return (x - x.mean(-1, keepdims=True)) / deviation * value(part.gamma) + value(part.beta)

    def gelu(x):
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    width, head = x.shape[-1], x.shape[-1] // layer.heads
    rows = []
    bias = np.zeros((1, layer.heads, x.shape[1], x.shape[1])) if bias is None else bias
    for row, real in zip(x.astype(np.float64), mask.astype(bool), strict=True):
        row = row[real]
        query, key, values = np.split(dense(layer.qkv, row), 3, axis=-1)
        mixed, weights = np.zeros((len(row), width)), np.zeros((layer.heads, len(row), len(row)))
        for begin in range(0, width, head):
            part = slice(begin, begin + head)
            for t in range(len(row)):
                scores = [query[t, part] @ key[s, part] / math.sqrt(head) for s in range(len(row))]
                powers = np.exp(scores + bias[0, begin // head, t, : len(row)])
                weights[begin // head, t] = powers / powers.sum()
                mixed[t, part] = weights[begin // head, t] @ values[:, part]
        row = norm(layer.attention_norm, row + dense(layer.attention_output, mixed))
        fed = dense(layer.feed_forward_output, gelu(dense(layer.feed_forward, row)))
        rows.append((norm(layer.feed_forward_norm, row + fed), weights))
    return rows


@pytest.fixture
def block(rng):
    layer = TransformerBlock(HEADS, 12)
    layer.build((None, None, D))
    for weight in layer.weights:
        weight.assign(rng.normal(scale=0.5, size=weight.shape))
    return layer


def test_numbers(block, rng):
    x = rng.normal(size=(B, T, D)).astype(np.float32)
    out = ops.convert_to_numpy(block(x, mask=MASK))
    for row, real, (expected, _) in zip(out, MASK.astype(bool), restated(block, x, MASK), strict=True):
        np.testing.assert_allclose(row[real], expected, atol=2e-5)


def test_a_bias_is_added_to_the_scores(block, rng):
    x, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((B, T, D), (1, HEADS, T, T)))
    out = ops.convert_to_numpy(block(x, mask=MASK, bias=bias))
    for row, real, (expected, _) in zip(out, MASK.astype(bool), restated(block, x, MASK, bias), strict=True):
        np.testing.assert_allclose(row[real], expected, atol=2e-5)
    gradients = []
    for recompute in (False, True):
        block.recompute = recompute
        with tf.GradientTape() as tape:
            variable = tf.Variable(bias)
            loss = tf.reduce_sum(block(x, mask=MASK, bias=variable, training=True)[:, 0])
        gradients.append(tape.gradient(loss, variable).numpy())
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-6)
    assert np.abs(gradients[0][:, :, 0]).min() > 0


def test_attention_on_request(block, rng):
    x = rng.normal(size=(B, T, D)).astype(np.float32)
    looking = TransformerBlock.from_config(block.get_config() | {"return_attention": True})
    looking.build((None, None, D))
    looking.set_weights(block.get_weights())
    out, weights = map(ops.convert_to_numpy, looking(x, mask=MASK))
    assert np.array_equal(out, block(x, mask=MASK)) and weights.shape == (B, HEADS, T, T)
    for row, real, (_, expected) in zip(weights, MASK.astype(bool), restated(block, x, MASK), strict=True):
        np.testing.assert_allclose(row[:, real][:, :, real], expected, atol=1e-6)
        assert not row[:, ~real].any() and not row[:, :, ~real].any()
    assert looking.compute_output_shape((3, None, D)) == ((3, None, D), (3, HEADS, None, None))


ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    x = np.linspace(-4, 4, 512, dtype=np.float32)
    exact = [ACTIVATIONS[name](v) for v in x.tolist()]
    for training in (False, True):
        np.testing.assert_allclose(activated(ops.convert_to_tensor(x), name, training), exact, atol=1e-6)
    assert TransformerBlock(2, 4).activation == "gelu" and TransformerBlock(2, 4).epsilon == 1e-12
    with pytest.raises(ValueError, match="activation='tanh': one of gelu, gelu_tanh, relu"):
        TransformerBlock(2, 12, activation="tanh")


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 2e-9), ("float32", 2e-6), ("bfloat16", 0.02)])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_compiled_activations(name, dtype, bound, rng):
    """In training: outputs, gradients and second derivatives are those of the formula in float64."""
    calls = []
    x = tf.cast(rng.normal(size=(3, 256), scale=2), dtype)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.function(lambda x: calls.append(x) or activated(x, name, training=True))(x)
        first = tape.gradient(y, x)
    second = outer.gradient(first, x)
    exact = tf.cast(x, "float64")
    with tf.GradientTape() as outer:
        outer.watch(exact)
        with tf.GradientTape() as tape:
            tape.watch(exact)
            if name == "gelu":
                expected = exact * tf.math.erfc(-exact * 0.5**0.5) / 2
            else:
                expected = exact * (1 + tf.tanh((2 / math.pi) ** 0.5 * (exact + 0.044715 * exact**3))) / 2
        first_expected = tape.gradient(expected, exact)
    second_expected = outer.gradient(first_expected, exact)
    # in float32 the tanh form's second derivative is off by 1e-5
    for ours, theirs, scale in [(y, expected, 1), (first, first_expected, 1), (second, second_expected, 10)]:
        assert ours.dtype == dtype
        np.testing.assert_allclose(tf.cast(ours, "float64"), theirs, atol=scale * bound, rtol=bound)
    if cpu.compiles(training=True):
        kinds = {operation.type for operation in calls[0].graph.get_operations()}
        assert kinds & {"PartitionedCall", "StatefulPartitionedCall"} and not kinds & {"Erf", "Erfc", "Tanh"}


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "float16"])
@pytest.mark.parametrize("training", [False, True])
def test_fused_norm_equals_the_general_form(block, rng, monkeypatch, policy, training):
    """Outputs and gradients, whatever the CPU is; float16 has the general form alone."""
    layer = TransformerBlock.from_config(block.get_config() | {"dtype": policy})
    layer.build((None, None, D))
    layer.set_weights(block.get_weights())
    x = tf.cast(rng.normal(size=(B, T, D)), layer.compute_dtype)

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = layer(x, mask=tf.constant(MASK), training=training)
            loss = tf.reduce_sum(tf.cast(out, tf.float32) * np.arange(B * T * D, dtype="float32").reshape(B, T, D) / 9)
        return [out, *tape.gradient(loss, [x, *(weight.value for weight in layer.trainable_variables)])]

    outputs = []
    for available in (True, False):
        monkeypatch.setattr(cpu, "_has_one_dnn", lambda available=available: available)
        traced = tf.function(run, input_signature=[tf.TensorSpec((None, None, D), x.dtype)])
        with cpu.on_this_machine():
            kinds = {operation.type for operation in traced.get_concrete_function().graph.get_operations()}
        assert ("FusedBatchNormV3" in kinds) == (available and policy != "float16")
        outputs.append([tf.cast(tensor, tf.float32).numpy() for tensor in traced(x)])
    for first, second in zip(*outputs, strict=True):
        scale = np.abs(second).max()
        np.testing.assert_allclose(first, second, atol=scale * (2e-5 if policy == "float32" else 0.04))


@pytest.mark.parametrize("length", [3, None])
def test_graphs_for_export_have_portable_operations_only(block, monkeypatch, length):
    monkeypatch.setattr(cpu, "_has_one_dnn", lambda: True)
    run = tf.function(lambda x: block(x, mask=tf.ones(tf.shape(x)[:2], tf.int32)))
    graph = run.get_concrete_function(tf.TensorSpec((None, length, D))).graph
    assert "FusedBatchNormV3" not in {operation.type for operation in graph.get_operations()}


def test_masked_positions_do_not_leak(block, rng):
    """Not by a bit, whatever stands there."""
    x = rng.normal(size=(B, T, D)).astype(np.float32)
    before = ops.convert_to_numpy(block(x, mask=MASK))
    for scale in (1, 30, 100):
        noise = scale * rng.normal(size=x.shape)
        other = np.where(MASK[:, :, None] == 1, x, noise).astype(np.float32)
        after = ops.convert_to_numpy(block(other, mask=MASK))
        assert np.array_equal(before[MASK == 1], after[MASK == 1])


@pytest.mark.parametrize("dropouts", [{"dropout": 0.5}, {"attention_dropout": 0.5}])
def test_dropout_only_in_training(rng, dropouts):
    layer = TransformerBlock(HEADS, 12, **dropouts, initializer_range=0.5)
    x = rng.normal(size=(B, T, D)).astype(np.float32)
    first, second, third = (ops.convert_to_numpy(layer(x, mask=MASK, training=way)) for way in (False, False, True))
    assert np.array_equal(first, second) and np.abs(first - third).max() > 0.1


def test_a_row_of_padding_stays_finite(block):
    out = block(np.ones((2, 3, D), np.float32), mask=np.zeros((2, 3), np.int32))
    assert np.isfinite(ops.convert_to_numpy(out)).all()


def test_names_of_weights(block):
    names = {weight.path.split("/", 1)[1] for weight in block.weights}
    dense = ("qkv", "attention_output", "feed_forward", "feed_forward_output")
    expected = {f"{part}/{kind}" for part in dense for kind in ("kernel", "bias")}
    expected |= {f"{part}_norm/{kind}" for part in ("attention", "feed_forward") for kind in ("gamma", "beta")}
    assert names == expected


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="heads=3 does not divide the width 8"):
        TransformerBlock(3, 12)(np.ones((1, 2, 8), np.float32), mask=np.ones((1, 2), np.int32))


def test_position_embedding(rng):
    layer = PositionEmbedding(4)
    x = rng.normal(size=(2, 3, 5)).astype(np.float32)
    out = layer(x)
    np.testing.assert_allclose(out, x + ops.convert_to_numpy(layer.table.value)[:3], atol=1e-6)
    assert layer(x[:, :1]).shape == (2, 1, 5)
    with pytest.raises(ValueError, match="an input of 5 tokens; this model has positions for 4"):
        layer(np.ones((1, 5, 5), np.float32))


def test_position_embedding_of_unknown_length_that_is_too_long(rng):
    layer = PositionEmbedding(4)
    run = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 5))])
    assert run(tf.ones((2, 4, 5))).shape == (2, 4, 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"no positions for .*\[5\] \[the most is\] \[4\]"):
        run(tf.ones((2, 5, 5)))


@pytest.mark.parametrize("width", [5, 6])
def test_sinusoidal_positions(rng, width):
    layer = SinusoidalPositions()
    x = rng.normal(size=(2, 700, width)).astype(np.float32)
    expected = np.zeros((700, width))
    for t in range(700):
        for i in range(width):
            angle = t / 10000 ** ((i - i % 2) / width)
            expected[t, i] = math.cos(angle) if i % 2 else math.sin(angle)
    np.testing.assert_allclose(layer(x) - x, np.stack([expected] * 2), atol=1e-4)
    run = tf.function(layer, input_signature=[tf.TensorSpec((None, None, width))])
    np.testing.assert_allclose(run(x), layer(x), atol=1e-6)
    after = layer(x[:, 300:302], before=np.array([[300], [698]], np.int32)) - x[:, 300:302]
    np.testing.assert_allclose(after, [expected[300:302], expected[698:]], atol=1e-4)
    half = SinusoidalPositions(dtype="bfloat16")(ops.zeros((1, 700, width), "bfloat16"))
    np.testing.assert_allclose(ops.cast(half[0], "float32"), expected, atol=4e-3)


def test_bias(rng):
    layer = Bias()
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    assert np.array_equal(layer(x), x)
    layer.bias.assign([1, 2, 3, 4])
    np.testing.assert_allclose(layer(x), x + np.array([1, 2, 3, 4]), atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_take_positions(rng, count):
    x = rng.normal(size=(3, 5, 4)).astype(np.float32)
    positions = rng.integers(0, 5, (3, count)).astype(np.int32)
    assert np.array_equal(TakePositions()(x, positions), np.take_along_axis(x, positions[:, :, None], axis=1))


def test_take_positions_in_a_traced_function(rng):
    symbols = keras.Input((None, 4)), keras.Input((None,), dtype="int32")
    model = keras.Model(symbols, TakePositions()(*symbols))
    x, positions = rng.normal(size=(3, 5, 4)).astype(np.float32), np.array([[4], [0], [2]], np.int32)
    assert np.array_equal(model.predict([x, positions], verbose=0)[:, 0], x[np.arange(3), positions[:, 0]])


@pytest.mark.parametrize("intermediate", [12, 256])  # 256: GELU is compiled
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_recomputed_activations(rng, policy, intermediate):
    """The same output and gradients, with the same dropout masks, which change from call to call."""
    layer = TransformerBlock(2, intermediate, dropout=0.3, attention_dropout=0.3, initializer_range=0.3, dtype=policy)
    x, mask = (
        tf.constant(rng.normal(size=(3, 5, 8)), layer.compute_dtype),
        np.array([[1] * 5, [1] * 3 + [0] * 2, [1] * 4 + [0]]),
    )
    layer(x, mask=mask)
    state = [
        generator.state.numpy() for generator in (layer.drop_weights.seed_generator, layer.drop_output.seed_generator)
    ]
    results = []
    for recompute in (False, True):
        layer.recompute = recompute
        for generator, value in zip(
            (layer.drop_weights.seed_generator, layer.drop_output.seed_generator), state, strict=True
        ):
            generator.state.assign(value)

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, mask=mask, training=True)
                loss = tf.reduce_sum(tf.cast(y, "float32") ** 3)
            return y, *tape.gradient(loss, [x, *layer.trainable_weights])

        results.append((step(), step()))
    (first, second), (again, last) = results
    assert len(first) == 2 + len(layer.trainable_weights) and np.abs(first[0] - second[0]).max() > 0.1
    # The graph may compute a value in another order: at most 3 units in the last place of the largest one were seen.
    ulp = 2**-10 if policy == "mixed_float16" else 2**-23
    for expected, found in zip([*first, *second], [*again, *last], strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=8 * ulp * np.abs(expected).max())
