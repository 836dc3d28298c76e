"""Language models in one direction: their numbers against NumPy, reading in parts, and what may not look ahead."""

from dataclasses import asdict, replace

import keras
import numpy as np
import pytest
from keras import ops

from keras_ctxrep.models import lm
from keras_ctxrep.models.families import depths, encoder_of
from keras_ctxrep.models.model import copy_weights, reset_streams
from keras_ctxrep.training import fit

V, B, T = 17, 3, 11
CONFIG = lm.Config(width=8, heads=2, intermediate=12, context=4, kernel_size=3, order=4, dropout=0.0)
CONFIGS = {
    "ngram": replace(CONFIG, kind="ngram", tied=False),
    "ngram direct": replace(CONFIG, kind="ngram", tied=False, direct=True),
    "ngram tied": replace(CONFIG, kind="ngram"),
    "bigram": replace(CONFIG, kind="ngram", order=2),
    "rnn": replace(CONFIG, kind="rnn"),
    "gru": replace(CONFIG, kind="gru"),
    "lstm": CONFIG,
    "lstm projected": replace(CONFIG, cells=12, tied=False),
    "convolution": replace(CONFIG, kind="convolution"),
    "transformer": replace(CONFIG, kind="transformer"),
}
MASK = (np.arange(T) < [[T], [6], [1]]).astype(np.int32)
every_kind = pytest.mark.parametrize("name", CONFIGS)


def build(name, rng, **arguments):
    """A model whose weights are all random, biases too."""
    model = lm.language_model(CONFIGS[name], V, **arguments)
    for weight in model.weights:
        weight.assign(rng.normal(scale=0.5, size=weight.shape))
    return model


def ids(rng):
    return rng.integers(0, V, (B, T)).astype(np.int32)


def read(model, ids, mask=MASK, state=None):
    """The logits and the state, as arrays."""
    state = np.zeros((len(ids), model.input["state"].shape[-1]), np.float32) if state is None else state
    outputs = model({"token_ids": ids, "mask": mask, "state": state})
    return [ops.convert_to_numpy(outputs[name]) for name in ("logits", "state")]


@every_kind
@pytest.mark.parametrize("sizes", [[1] * T, [4, 5, 2]])
def test_parts_of_a_text_give_what_the_whole_gives(name, rng, sizes):
    model, tokens = build(name, rng), ids(rng)
    whole, end = read(model, tokens)
    parts, state, begin = [], None, 0
    for size in sizes:
        logits, state = read(model, tokens[:, begin : begin + size], MASK[:, begin : begin + size], state)
        parts.append(logits)
        begin += size
    np.testing.assert_allclose(np.concatenate(parts, 1)[MASK > 0], whole[MASK > 0], atol=1e-5)
    np.testing.assert_allclose(np.asarray(state), end, atol=1e-5)
    assert whole.std() > 0.1 and end.shape == (B, lm.state_size(CONFIGS[name]))


@every_kind
def test_no_token_is_seen_before_its_time(name, rng):
    model, tokens = build(name, rng), ids(rng)
    changed = tokens.copy()
    changed[0, 7] = (changed[0, 7] + 1) % V
    before, after = read(model, tokens)[0], read(model, changed)[0]
    assert (before[0, :7] == after[0, :7]).all() and (before[1:] == after[1:])[MASK[1:] > 0].all()
    assert np.abs(before[0, 7] - after[0, 7]).max() > 1e-3


@every_kind
def test_what_stands_under_the_padding_changes_nothing(name, rng):
    model, tokens = build(name, rng), ids(rng)
    longer = np.pad(np.where(MASK, tokens, 5), ((0, 0), (0, 3)), constant_values=9).astype(np.int32)
    (logits, state), (padded, end) = read(model, tokens), read(model, longer, np.pad(MASK, ((0, 0), (0, 3))))
    np.testing.assert_allclose(padded[:, :T][MASK > 0], logits[MASK > 0], atol=1e-5)
    np.testing.assert_allclose(end, state, atol=1e-5)


@every_kind
def test_streams_carry_the_state(name, rng):
    model, tokens = build(name, rng), ids(rng)
    streams = lm.language_model(CONFIGS[name], V, streams=B)
    copy_weights(model, streams)
    mask = np.ones((B, T), np.int32)
    whole = read(model, tokens, mask)[0]

    def parts():
        cuts = [slice(0, 4), slice(4, 9), slice(9, T)]
        return [streams({"token_ids": tokens[:, cut], "mask": mask[:, cut]})["logits"] for cut in cuts]

    np.testing.assert_allclose(ops.concatenate(parts(), 1), whole, atol=1e-5)
    reset_streams(streams)
    np.testing.assert_allclose(ops.concatenate(parts(), 1), whole, atol=1e-5)


# ------------------------------------------------------------------------------------------------- numbers, in NumPy


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm(x, gamma, beta):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta


def vectors_and_logits(model, tokens):
    """The token vectors of one row, and a function from top vectors to logits."""
    kernel, bias = (ops.convert_to_numpy(weight).astype(float) for weight in model.get_layer("softmax").weights[:2])
    tied = "embedding" not in [layer.name for layer in model.layers]
    table = kernel if tied else model.get_layer("embedding").get_weights()[0]
    return table[tokens], lambda top: top @ kernel.T + bias


def lstm(model, tokens, config):
    """Zaremba et al. 2014, section 3.1, with the forget bias of 1 and a projection."""
    x, logits = vectors_and_logits(model, tokens)
    for index in range(config.layers):
        kernel, recurrent, bias, *projection = model.get_layer(f"layer_{index}").get_weights()
        h, c, rows = np.zeros(config.width), np.zeros(config.cells or config.width), []
        for vector in x:
            i, j, f, o = np.split(vector @ kernel + h @ recurrent + bias, 4)
            c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
            h = sigmoid(o) * np.tanh(c)
            h = h @ projection[0] if projection else h
            rows.append(h)
        x = np.array(rows)
    return logits(x)


def rnn(model, tokens, config):
    x, logits = vectors_and_logits(model, tokens)
    for index in range(config.layers):
        kernel, recurrent, bias = model.get_layer(f"layer_{index}").get_weights()
        h, rows = np.zeros(config.width), []
        for vector in x:
            h = np.tanh(vector @ kernel + h @ recurrent + bias)
            rows.append(h)
        x = np.array(rows)
    return logits(x)


def gru(model, tokens, config):
    """Cho et al. 2014, in the form of cuDNN: the reset gate is applied after the product."""
    x, logits = vectors_and_logits(model, tokens)
    for index in range(config.layers):
        kernel, recurrent, bias = model.get_layer(f"layer_{index}").get_weights()
        h, rows = np.zeros(config.width), []
        for vector in x:
            xz, xr, xh = np.split(vector @ kernel + bias[0], 3)
            hz, hr, hh = np.split(h @ recurrent + bias[1], 3)
            z = sigmoid(xz + hz)
            h = z * h + (1 - z) * np.tanh(xh + sigmoid(xr + hr) * hh)
            rows.append(h)
        x = np.array(rows)
    return logits(x)


def ngram(model, tokens, config):
    """Bengio et al. 2003, eq. 1: b + W x + U tanh(d + H x), x the vectors of the last n - 1 words."""
    kernel, bias = model.get_layer("layer_0").get_weights()
    padded = np.concatenate([np.zeros(config.order - 2, int), tokens])
    rows, (_, logits) = [], vectors_and_logits(model, tokens)
    for position in range(len(tokens)):
        x = vectors_and_logits(model, padded[position : position + config.order - 1])[0].reshape(-1)
        hidden = np.tanh(x @ kernel + bias)
        rows.append(np.concatenate([x, hidden]) if config.direct else hidden)
    x = np.array(rows)
    if config.tied:
        kernel, bias = model.get_layer("output_projection").get_weights()
        x = x @ kernel + bias
    return logits(x)


def convolution(model, tokens, config):
    """Dauphin et al. 2017, eq. 1, with a residual sum over each layer."""
    x, logits = vectors_and_logits(model, tokens)
    for index in range(config.layers):
        kernel, bias = model.get_layer(f"layer_{index}").get_weights()
        padded = np.concatenate([np.zeros((config.kernel_size - 1, config.width)), x])
        windows = [padded[position : position + config.kernel_size] for position in range(len(tokens))]
        linear, gate = np.split(np.einsum("tkd,kdo->to", windows, kernel) + bias, 2, axis=1)
        x = x + linear * sigmoid(gate)
    return logits(x)


def transformer(model, tokens, config):
    """GPT-2's pre-norm block with a causal mask of `context` tokens and rotary positions, position by position."""
    x, logits = vectors_and_logits(model, tokens)
    half = config.width // config.heads // 2

    def rotated(vector, position):
        """As complex numbers: Su et al. 2021, section 3.2.1."""
        angles = position * 10000.0 ** (-np.arange(half) / half)
        turned = (vector[:half] + 1j * vector[half:]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag])

    erf = np.vectorize(__import__("math").erf)
    for index in range(config.layers):
        block = model.get_layer(f"layer_{index}")
        weights = {part: getattr(block, part).get_weights() for part in ("qkv", "attention_output", "feed_forward")}
        weights |= {p: getattr(block, p).get_weights() for p in ("attention_norm", "feed_forward_norm")}
        weights["feed_forward_output"] = block.feed_forward_output.get_weights()

        def dense(name, x, weights=weights):
            return x @ weights[name][0] + weights[name][1]

        query, key, value = np.split(dense("qkv", norm(x, *weights["attention_norm"])), 3, axis=1)
        mixed = np.zeros_like(x)
        for head in range(config.heads):
            cut = slice(head * 2 * half, (head + 1) * 2 * half)
            for t in range(len(tokens)):
                seen = range(max(0, t - config.context), t + 1)
                scores = [rotated(query[t, cut], t) @ rotated(key[j, cut], j) / np.sqrt(2 * half) for j in seen]
                likely = np.exp(scores - np.max(scores))
                mixed[t, cut] = likely / likely.sum() @ value[seen, cut]
        x = x + dense("attention_output", mixed)
        fed = dense("feed_forward", norm(x, *weights["feed_forward_norm"]))
        x = x + dense("feed_forward_output", fed * 0.5 * (1 + erf(fed / np.sqrt(2))))
    return logits(norm(x, *model.get_layer("final_norm").get_weights()))


@every_kind
def test_numbers(name, rng):
    model, tokens, config = build(name, rng), ids(rng), CONFIGS[name]
    expected = globals()[config.kind](model, tokens[0], config)
    np.testing.assert_allclose(read(model, tokens)[0][0], expected, atol=2e-4, rtol=1e-4)


# ----------------------------------------------------------------------------------------------------------- training


@every_kind
def test_it_learns(name):
    """A text of period 4, with the state carried on; chance is 2.8."""
    keras.utils.set_random_seed(0)
    model = lm.language_model(CONFIGS[name], V, streams=2)
    text = np.tile([3, 5, 5, 7], 11).astype(np.int32)
    inputs = {"token_ids": np.stack([text[:-1], text[:-1]]), "mask": np.ones((2, 43), np.int32)}
    fit.compile(model, keras.optimizers.Adam(0.03))
    losses = [model.train_on_batch(inputs, {"logits": np.stack([text[1:], text[1:]])}) for _ in range(40)]
    assert losses[0] > 2 and losses[-1] < 0.8


def test_the_sampled_softmax_learns_the_same_weights(rng):
    model = build("lstm", rng, samples=V - 2, streams=B)
    tokens = ids(rng)
    outputs = model({"token_ids": tokens, "mask": MASK, "targets": tokens}, training=True)
    assert outputs["logits"].shape == (B, T, V - 1)
    assert {weight.path for weight in model.trainable_weights} == {
        weight.path for weight in lm.language_model(CONFIGS["lstm"], V).trainable_weights
    }


def test_half_precision_keeps_ids_and_counts(rng):
    """bfloat16 has whole numbers up to 256 only: ids of an n-gram's state and the count of a cache are not among it."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = lm.language_model(CONFIGS["ngram"], 5000)
        _, state = read(model, np.full((1, 5), 4097, np.int32), np.ones((1, 5), np.int32))
        assert state.tolist() == [[4097.0, 4097.0]]
        wide = lm.language_model(replace(CONFIGS["transformer"], context=600), V)
        _, state = read(wide, np.ones((1, 513), np.int32), np.ones((1, 513), np.int32))
        assert state[0, -1] == 513
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "lsmt"}, "kind='lsmt'"),
        ({"units": "letters"}, "units='letters'"),
        ({"cells": 4}, "cells=4: of kind='lstm', and no narrower than the width, 8"),
        ({"kind": "gru", "cells": 9}, "cells=9: of kind='lstm'"),
        ({"direct": True}, "direct=True: of kind='ngram'"),
    ],
)
def test_configs_that_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **values)


def test_heads_need_halves():
    with pytest.raises(ValueError, match="heads=8: heads of odd width 1"):
        lm.language_model(replace(CONFIGS["transformer"], heads=8), V)


def test_every_size_is_a_config():
    assert all(name.startswith(f"lm_{config.kind}_") for name, config in lm.SIZES.items())


@every_kind
def test_the_encoder_has_the_hidden_states_that_the_softmax_reads(name, rng):
    """What the model predicts, in NumPy from its encoder's vectors; the encoder is made of the model's own layers."""
    model, config = build(name, rng), CONFIGS[name]
    encoder = encoder_of(model, "lm", asdict(config))
    tokens = ids(rng)
    outputs = encoder({"token_ids": tokens, "mask": MASK})
    layers, top = [ops.convert_to_numpy(x) for x in outputs["layers"]], ops.convert_to_numpy(outputs["sequence"])
    softmax = model.get_layer("softmax")
    table = ops.convert_to_numpy(softmax.kernel if config.tied else model.get_layer("embedding").embeddings)
    real = MASK.astype(bool)
    np.testing.assert_allclose(layers[0][real][:, : config.width], table[tokens[real]], atol=1e-6)
    assert not any(layer[~real].any() for layer in layers) and len({layer.shape for layer in layers}) == 1
    hidden = top[..., : softmax.kernel.shape[1] - config.direct * (config.order - 1) * config.width]
    if config.direct:
        past = np.pad(tokens, ((0, 0), (config.order - 2, 0)))
        context = np.concatenate([table[past[:, i : i + T]] for i in range(config.order - 1)], -1)
        hidden = np.concatenate([context, hidden], -1)
    expected = hidden @ ops.convert_to_numpy(softmax.kernel).T + ops.convert_to_numpy(softmax.bias)
    np.testing.assert_allclose(read(model, tokens)[0][real], expected[real], atol=2e-4)
    lasts = top[np.arange(B), MASK.sum(1) - 1]
    np.testing.assert_allclose(outputs["pooled"], lasts, atol=1e-6)


def test_layers_of_an_encoder_by_depth(rng):
    for name, top in (("transformer", "final_norm"), ("ngram tied", "output_projection"), ("lstm", "layer_1")):
        by_depth = depths(encoder_of(build(name, rng), "lm", asdict(CONFIGS[name])))
        assert by_depth[top] == max(by_depth.values()) and by_depth["softmax"] == 0
    with pytest.raises(ValueError, match="vocabulary_size=None"):
        lm.encoder(CONFIG)


def test_the_bias_of_the_softmax_is_no_weight_of_a_trained_encoder():
    encoder = lm.encoder(replace(CONFIG, vocabulary_size=V))
    encoder.trainable = True
    names = [weight.name for weight in encoder.trainable_weights]
    assert "softmax_kernel" in names and "softmax_bias" not in names
