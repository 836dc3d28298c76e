"""Attention to an encoder: numbers, masks, gradients, precision, saving, and a text read whole or token by token."""

from itertools import chain

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_ctxrep.layers import (
    Attention,
    AttentionalRNN,
    ConvolutionalDecoderBlock,
    MemoryAttention,
    TransformerDecoderBlock,
    TwoWayAttention,
)

B, T, S, D = 3, 4, 5, 6
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]], np.int32)
REAL = np.ones((B, T), np.int32)


def inputs_of(kind, rng):
    """Keyword arguments of a layer, the encoder's vectors among them."""

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    if kind == "Attention":
        return {"query": normal(B, T, D), "keys": normal(B, S, D), "mask": MASK, "values": normal(B, S, 7)}
    if kind == "MemoryAttention":
        return {"x": normal(B, T, D), "memory": normal(B, S, 2 * D), "mask": MASK}
    if kind == "AttentionalRNN":
        own = {"x": normal(B, T, 3), "keys": normal(B, S, D), "values": normal(B, S, 7), "mask": MASK}
        return own
    if kind == "ConvolutionalDecoderBlock":
        own = {"x": normal(B, T, D), "mask": REAL, "past": normal(B, 2, D), "tokens": normal(B, T, D)}
        return own | {"memory": normal(B, S, 2 * D), "memory_mask": MASK}
    past = {"past": np.zeros((B, T, 2 * D), np.float32), "count": np.zeros((B, 1), np.int32)}
    return {"x": normal(B, T, D), "mask": REAL, **past, "memory": normal(B, S, 2 * D), "memory_mask": MASK}


CASES = {
    "additive": ("Attention", lambda **kw: Attention("additive", **kw)),
    "dot": ("Attention", lambda **kw: Attention("dot", **kw)),
    "general": ("Attention", lambda **kw: Attention("general", **kw)),
    "heads": ("MemoryAttention", lambda **kw: MemoryAttention(2, initializer_range=0.5, **kw)),
    "lstm": ("AttentionalRNN", lambda **kw: AttentionalRNN(D, layers=2, **kw)),
    "gru": ("AttentionalRNN", lambda **kw: AttentionalRNN(D, "gru", score="general", **kw)),
    "block": (
        "TransformerDecoderBlock",
        lambda **kw: TransformerDecoderBlock(3, 8, epsilon=1e-5, initializer_range=0.5, **kw),
    ),
    "convolution": ("ConvolutionalDecoderBlock", lambda **kw: ConvolutionalDecoderBlock(3, **kw)),
}
every = pytest.mark.parametrize("case", CASES)
OF_MEMORY = ("keys", "values", "memory")


def made(case, rng, **kwargs):
    kind, make = CASES[case]
    layer, inputs = make(**kwargs), inputs_of(kind, rng)
    if kind == "AttentionalRNN":
        inputs["state"] = rng.normal(size=(B, layer.size_of_state)).astype(np.float32)
    return layer, inputs


def arrays(outputs):
    return [ops.convert_to_numpy(ops.cast(output, "float32")) for output in outputs]


def softmax(scores, mask):
    exps = np.exp(scores) * mask
    return exps / exps.sum(-1, keepdims=True)


def test_scores_as_in_the_papers(rng):
    """NumPy restatements of the equations, vector by vector."""
    for score in ("additive", "dot", "general"):
        layer, inputs = made(score, rng)
        mean, weights = arrays(layer(**inputs))
        q, k, h = inputs["query"], inputs["keys"], inputs["values"]
        kernel = None if score == "dot" else layer.kernel.numpy()
        for b in range(B):
            for t in range(T):
                if score == "additive":
                    scores = [np.tanh(q[b, t] @ kernel + k[b, s]) @ layer.scale.numpy() for s in range(S)]
                else:
                    query = q[b, t] if kernel is None else q[b, t] @ kernel
                    scores = [query @ k[b, s] for s in range(S)]
                expected = softmax(np.array(scores), MASK[b])
                np.testing.assert_allclose(weights[b, t], expected, atol=2e-6)
                np.testing.assert_allclose(mean[b, t], expected @ h[b], atol=1e-5)


@pytest.mark.parametrize("score", ["additive", "dot"])
def test_equal_to_keras(score, rng):
    """Keras' layers leave the projections to their user."""
    layer, inputs = made(score, rng)
    mean, weights = arrays(layer(**inputs))
    query, (reference) = inputs["query"], keras.layers.AdditiveAttention() if score == "additive" else None
    if score == "additive":
        query = query @ layer.kernel.numpy()
    else:
        reference = keras.layers.Attention()
    values = [query, inputs["values"], inputs["keys"]]
    masks = [np.ones((B, T), bool), MASK.astype(bool)]
    reference(values, mask=masks)
    if score == "additive":
        reference.set_weights([layer.scale.numpy()])
    expected, expected_weights = arrays(reference(values, mask=masks, return_attention_scores=True))
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)


def test_heads_are_those_of_keras(rng):
    layer, inputs = made("heads", rng)
    mean, weights = arrays(layer(**inputs))
    reference = keras.layers.MultiHeadAttention(2, D // 2)
    key, value = np.split(inputs["memory"], 2, axis=-1)
    arguments = {"query": inputs["x"], "key": key, "value": value, "attention_mask": MASK[:, None].astype(bool)}
    reference(**arguments)
    same, zero = np.eye(D, dtype=np.float32).reshape(D, 2, -1), np.zeros((2, D // 2), np.float32)
    kernel, bias = layer.query_dense.get_weights()
    out, out_bias = layer.output_dense.get_weights()
    query = [kernel.reshape(D, 2, -1), bias.reshape(2, -1)]
    reference.set_weights([*query, same, zero, same, zero, out.reshape(2, -1, D), out_bias])
    expected, expected_weights = arrays(reference(**arguments, return_attention_scores=True))
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    np.testing.assert_allclose(weights, expected_weights.mean(1), atol=1e-5)


@every
def test_masked_vectors_do_not_matter(case, rng):
    layer, inputs = made(case, rng)
    before = arrays(layer(**inputs))
    changed = dict(inputs)
    for name in set(OF_MEMORY) & set(inputs):
        noise = 100 * rng.normal(size=inputs[name].shape)
        changed[name] = np.where(MASK[:, :, None], inputs[name], noise).astype(np.float32)
        changed[name] = np.pad(changed[name], ((0, 0), (0, 3), (0, 0)))
    mask = "memory_mask" if "memory_mask" in inputs else "mask"
    changed[mask] = np.pad(MASK, ((0, 0), (0, 3)))
    for left, right in zip(before, arrays(layer(**changed)), strict=True):
        right = right[..., :S] if right.shape[-1] == S + 3 else right
        np.testing.assert_allclose(right, left, atol=1e-5)
    nothing = arrays(layer(**changed | {mask: np.zeros_like(changed[mask])}))
    assert all(np.isfinite(array).all() for array in nothing)
    weights = nothing[{"AttentionalRNN": 1}.get(CASES[case][0], -1)]
    assert not weights.any()


@every
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_gradients_reach_every_weight_and_the_memory(case, rng, dtype):
    layer, inputs = made(case, rng, dtype=dtype)
    full = arrays(made(case, np.random.default_rng(0))[0](**inputs))
    tensors = {name: tf.convert_to_tensor(array) for name, array in inputs.items()}
    layer(**tensors)
    watched = [tensors[name] for name in set(OF_MEMORY) & set(inputs)]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        out = layer(**tensors)[0]
        loss = tf.reduce_sum(tf.cast(out, "float32") * rng.normal(size=out.shape))
    assert out.dtype == ("float32" if dtype == "float32" else "bfloat16")
    assert [array.shape for array in full] == [array.shape for array in arrays(layer(**inputs))]
    for gradient in tape.gradient(loss, [weight.value for weight in layer.trainable_variables] + watched):
        assert gradient is not None
        dense = tf.cast(gradient, "float32").numpy()
        assert np.isfinite(dense).all() and np.abs(dense).max() > 0


@every
def test_bfloat16_is_near_float32(case, rng):
    layer, inputs = made(case, rng, dtype="mixed_bfloat16")
    out = arrays(layer(**inputs))
    full, _ = made(case, rng)
    full(**inputs)
    full.set_weights(layer.get_weights())
    for left, right in zip(out, arrays(full(**inputs)), strict=True):
        np.testing.assert_allclose(left, right, atol=0.15)


@every
def test_saved_and_loaded(case, rng, tmp_path):
    layer, inputs = made(case, rng, name="layer")
    symbols = {
        name: keras.Input((None, *array.shape[2:]) if array.ndim == 3 and name != "past" else array.shape[1:],
                          dtype=array.dtype.name, name=name)
        for name, array in inputs.items()
    }  # fmt: skip
    model = keras.Model(symbols, list(layer(**symbols)))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("layer").get_config() == layer.get_config()
    for left, right in zip(arrays(model(inputs)), arrays(loaded(inputs)), strict=True):
        assert np.array_equal(left, right)
    for output, array in zip(model.outputs, arrays(model(inputs)), strict=True):
        assert all(known in (None, size) for known, size in zip(output.shape, array.shape, strict=True))


@pytest.mark.parametrize("case", ["lstm", "gru"])
def test_a_text_token_by_token(case, rng):
    layer, inputs = made(case, rng)
    whole = arrays(layer(**inputs))
    state, parts = inputs["state"], []
    for t in range(T):
        *out, state = layer(**inputs | {"x": inputs["x"][:, t : t + 1], "state": state})
        parts.append(arrays(out))
    for index in range(2):
        np.testing.assert_allclose(np.concatenate([part[index] for part in parts], 1), whole[index], atol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(state), whole[2], atol=1e-5)


@pytest.mark.parametrize("cell, layers", [("lstm", 1), ("lstm", 2), ("gru", 1), ("gru", 3)])
def test_as_the_equations_say(cell, layers, rng):
    """Luong et al. 2015, eq. 5 and section 3.3, around the cells of Keras."""
    layer = AttentionalRNN(D, cell, layers, score="dot")
    inputs = inputs_of("AttentionalRNN", rng)
    inputs["state"] = rng.normal(size=(B, layer.size_of_state)).astype(np.float32)
    (vectors, _, state) = arrays(layer(**inputs))
    references = [{"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell}[cell](D) for _ in range(layers)]
    *parts, fed = np.split(inputs["state"], layer.size_of_state // D, axis=1)
    each = len(parts) // layers
    states = [parts[i * each : (i + 1) * each] for i in range(layers)]
    for index, (reference, own) in enumerate(zip(references, layer.cells, strict=True)):
        reference.build((None, D if index else 3 + D))
        reference.set_weights(own.get_weights())
    for t in range(T):
        h = np.concatenate([inputs["x"][:, t], fed], 1)
        for index, reference in enumerate(references):
            h, new = reference(h, states[index])
            h, states[index] = ops.convert_to_numpy(h), [*map(ops.convert_to_numpy, new)]
        weights = softmax(np.einsum("bd,bsd->bs", h, inputs["keys"]), MASK)
        mean = np.einsum("bs,bsd->bd", weights, inputs["values"])
        fed = np.tanh(np.concatenate([mean, h], 1) @ layer.combine.kernel.numpy())
        np.testing.assert_allclose(vectors[:, t], fed, atol=1e-5)
    np.testing.assert_allclose(state, np.concatenate([*chain(*states), fed], 1), atol=1e-5)


# ------------------------------------------------------------------------------------------------------- both ways

CONTEXT_MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], np.int32)


@pytest.fixture
def flow(rng):
    """A layer with drawn weights, and its arguments."""
    layer = TwoWayAttention(name="layer")
    arguments = {
        name: rng.normal(size=(B, size, D)).astype("float32") for name, size in (("context", T), ("question", S))
    }
    arguments |= {"mask": CONTEXT_MASK, "question_mask": MASK}
    layer(**arguments)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    return layer, arguments


def test_attention_flow_as_the_equations_say(flow):
    """Seo et al. 2017, eq. 1 and 2, pair by pair; atol 1e-5."""
    layer, arguments = flow
    w = np.concatenate([np.asarray(weight)[:, 0] for weight in layer.weights]).astype(np.float64)
    out = ops.convert_to_numpy(layer(**arguments))
    for b in range(B):
        h, u = arguments["context"][b, : CONTEXT_MASK[b].sum()], arguments["question"][b, : MASK[b].sum()]
        scores = np.array([[w @ np.concatenate([x, y, x * y]) for y in u] for x in h])
        attended = softmax(scores.max(1), 1) @ h
        for t, x in enumerate(h):
            asked = softmax(scores[t], 1) @ u
            np.testing.assert_allclose(out[b, t], np.concatenate([x, asked, x * asked, x * attended]), atol=1e-5)


def test_attention_flow_leaves_out_the_padding_of_both_texts(flow, rng):
    layer, arguments = flow
    before, changed = ops.convert_to_numpy(layer(**arguments)), dict(arguments)
    for name, mask in (("context", "mask"), ("question", "question_mask")):
        noise = 100 * rng.normal(size=arguments[name].shape)
        real = np.where(arguments[mask][:, :, None], arguments[name], noise).astype("float32")
        changed |= {name: np.pad(real, ((0, 0), (0, 2), (0, 0))), mask: np.pad(arguments[mask], ((0, 0), (0, 2)))}
    after = ops.convert_to_numpy(layer(**changed))[:, :T]
    real = CONTEXT_MASK.astype(bool)
    np.testing.assert_allclose(after[real], before[real], atol=1e-5)
    nothing = {"mask": 0 * arguments["mask"], "question_mask": 0 * arguments["question_mask"]}
    out = ops.convert_to_numpy(layer(**arguments | nothing))
    assert np.isfinite(out).all() and not out[..., D : 2 * D].any() and not out[..., 3 * D :].any()


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_attention_flow_is_trained_and_saved(flow, dtype, rng, tmp_path):
    full, arguments = flow
    layer = TwoWayAttention(name="layer", dtype=dtype)
    tensors = {name: tf.convert_to_tensor(array) for name, array in arguments.items()}
    layer(**tensors)
    layer.set_weights(full.get_weights())
    watched = [tensors["context"], tensors["question"]]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        out = tf.cast(layer(**tensors), "float32")
        loss = tf.reduce_sum(out * rng.normal(size=out.shape))
    for gradient in tape.gradient(loss, [weight.value for weight in layer.trainable_variables] + watched):
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0
    expected = ops.convert_to_numpy(full(**arguments))
    np.testing.assert_allclose(out, expected, atol=1e-6 if dtype == "float32" else 0.3)
    symbols = {
        name: keras.Input((None, *array.shape[2:]), dtype=array.dtype.name, name=name)
        for name, array in arguments.items()
    }
    model = keras.Model(symbols, layer(**symbols))
    assert model.output.shape == (None, None, 4 * D)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(tf.cast(loaded(arguments), "float32"), out)


def test_dropout_is_of_training_alone(rng):
    layer, inputs = made("lstm", rng)
    dropped = AttentionalRNN(D, layers=2, dropout=0.5)
    dropped(**inputs)
    layer(**inputs)
    dropped.set_weights(layer.get_weights())
    expected = arrays(layer(**inputs))
    assert all(map(np.array_equal, arrays(dropped(**inputs)), expected))
    vectors = arrays(dropped(**inputs, training=True))[0]
    assert (vectors == 0).mean() == pytest.approx(0.5, abs=0.3)
    assert ((vectors == 0).all(1) == (vectors == 0).any(1)).all()  # one mask of a text


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Attention("cosine"), "score='cosine'"),
        (lambda: AttentionalRNN(4, "rnn"), "cell='rnn'"),
        (lambda: Attention("dot")(np.ones((1, 1, 2)), np.ones((1, 1, 3)), mask=np.ones((1, 1))), "choose 'general'"),
        (lambda: MemoryAttention(4)(np.ones((1, 1, 6)), np.ones((1, 1, 12)), mask=np.ones((1, 1))), "heads=4"),
        (lambda: MemoryAttention(2)(np.ones((1, 1, 4)), np.ones((1, 1, 4)), mask=np.ones((1, 1))), "have 8"),
        (lambda: ConvolutionalDecoderBlock(3).build((1, 1, 4), (1, 1, 4)), "have 8"),
        (lambda: TwoWayAttention().build((1, 1, 4), (1, 1, 3)), "width 4 and a question of width 3"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
