"""Decoders over encoders: shared weights, a target read whole or token by token, masks, training, search."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_ctxrep.inference import keras_engine
from keras_ctxrep.losses import CrossEntropy
from keras_ctxrep.models import bert, decoder, elmo, stack, static
from keras_ctxrep.text import beam

V, S, T = 11, 5, 4
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
MAKERS = {
    "lstm": lambda encoder, **kw: decoder.recurrent(encoder, V, units=8, layers=2, **kw),
    "gru general": lambda encoder, **kw: decoder.recurrent(encoder, V, units=8, cell="gru", score="general", **kw),
    "lstm dot": lambda encoder, **kw: decoder.recurrent(encoder, V, units=8, score="dot", **kw),
    "transformer": lambda encoder, **kw: decoder.transformer(encoder, V, width=8, heads=2, context=6, **kw),
    "convolutional": lambda encoder, **kw: decoder.convolutional(encoder, V, width=8, layers=2, **kw),
}
every = pytest.mark.parametrize("kind", MAKERS)


def words():
    return stack.recurrent(static.encoder(static.Config(words=9, width=6)), units=4, dropout=0.0)


def inputs_of(rng):
    return {"word_ids": rng.integers(1, 9, (2, S)).astype(np.int32) * MASK, "mask": MASK}


def targets_of(rng):
    return {"target_ids": rng.integers(0, V, (2, T)).astype(np.int32), "target_mask": np.ones((2, T), np.int32)}


def filled(model, rng):
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(weight + rng.normal(scale=0.3, size=weight.shape))


def numpy(outputs):
    return {name: ops.convert_to_numpy(output) for name, output in outputs.items()}


@every
def test_token_by_token_as_in_training(kind, rng):
    models = MAKERS[kind](words())
    filled(models.model, rng)
    inputs, targets = inputs_of(rng), targets_of(rng)
    whole = numpy(models.model(inputs | targets))
    begun = numpy(models.start(inputs))
    state = begun["state"]
    for t in range(T):
        token = {"token_ids": targets["target_ids"][:, t : t + 1], "state": state}
        out = numpy(models.step(token | {"memory": begun["memory"], "memory_mask": MASK}))
        np.testing.assert_allclose(out["logits"], whole["logits"][:, t], atol=1e-5)
        np.testing.assert_allclose(out["attention"], whole["attention"][:, t], atol=1e-5)
        state = out["state"]
    np.testing.assert_allclose(whole["attention"].sum(-1), 1, atol=1e-5)
    assert not whole["attention"][1, :, 3:].any()
    shared = {id(weight) for weight in models.model.weights}
    assert {id(weight) for weight in models.start.weights + models.step.weights} == shared
    assert models.step.output["state"].shape[-1] == state.shape[-1]


@every
def test_padding_and_later_tokens_do_not_matter(kind, rng):
    models = MAKERS[kind](words())
    filled(models.model, rng)
    inputs, targets = inputs_of(rng), targets_of(rng)
    before = numpy(models.model(inputs | targets))["logits"]
    wide = {name: np.pad(array, ((0, 0), (0, 3))) for name, array in inputs.items()}
    wide["word_ids"] += 1 - wide["mask"]  # other ids under the padding
    other = dict(targets, target_ids=targets["target_ids"].copy())
    other["target_ids"][:, 2:] = (other["target_ids"][:, 2:] + 1) % V
    after = numpy(models.model(wide | other))["logits"]
    np.testing.assert_allclose(after[:, :2], before[:, :2], atol=1e-5)
    assert np.abs(after[:, 2:] - before[:, 2:]).max() > 1e-3
    changed = dict(inputs, word_ids=inputs["word_ids"] % 8 + MASK)
    assert np.abs(numpy(models.model(changed | targets))["logits"] - before).max() > 1e-3  # it reads the text


def test_a_cache_forgets_what_lies_before_its_context(rng):
    """Beyond `context` tokens the state keeps its size, and the step still gives what training gave."""
    models = MAKERS["transformer"](words())
    filled(models.model, rng)
    inputs, long = inputs_of(rng), rng.integers(0, V, (2, 12)).astype(np.int32)
    whole = numpy(models.model(inputs | {"target_ids": long, "target_mask": np.ones_like(long)}))["logits"]
    begun = numpy(models.start(inputs))
    state = begun["state"]
    for t in range(12):
        token = {"token_ids": long[:, t : t + 1], "state": state, "memory": begun["memory"], "memory_mask": MASK}
        out = numpy(models.step(token))
        np.testing.assert_allclose(out["logits"], whole[:, t], atol=1e-5)
        state = out["state"]


@pytest.mark.parametrize("kernel_size", [2, 3])
def test_convolutions_as_the_equations_say(kernel_size, rng):
    """Gehring et al. 2017, section 3, position by position in float64."""
    encoder, width, layers = words(), 8, 2
    models = decoder.convolutional(encoder, V, width, layers, kernel_size)
    filled(models.model, rng)
    inputs, targets = inputs_of(rng), targets_of(rng)
    inner = models.model.get_layer("target_decoder")

    def weights(model, name):
        return [np.asarray(weight, np.float64) for weight in model.get_layer(name).trainable_weights]

    encoded = encoder(inputs)
    z, e = (ops.convert_to_numpy(x).astype(np.float64) for x in (encoded["sequence"], encoded["layers"][0]))
    table, bias = weights(inner, "target_softmax")
    (to_keys, keys_bias), (to_tokens, tokens_bias) = (
        weights(models.model, f"decoder_{name}") for name in ("keys", "tokens")
    )
    last, last_bias = weights(inner, "decoder_output")
    at = np.arange(T)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    positions = np.stack([np.sin(at), np.cos(at)], -1).reshape(T, width)
    logits, attention = np.zeros((2, T, V)), np.zeros((2, T, S))
    for b in range(2):
        m = MASK[b].sum()
        keys = z[b, :m] @ to_keys + keys_bias
        values = (keys + e[b, :m] @ to_tokens + tokens_bias) / np.sqrt(2)
        g = table[targets["target_ids"][b]] * np.sqrt(width) + positions
        x = g
        for index in range(layers):
            kernel, conv_bias, to_query, query_bias = weights(inner, f"decoder_layer_{index}")
            assert kernel.shape == (kernel_size, width, 2 * width)
            new = np.zeros_like(x)
            for t in range(T):
                both = conv_bias.copy()
                for back in range(kernel_size):
                    if t >= back:
                        both += x[t - back] @ kernel[kernel_size - 1 - back]
                h = (x[t] + both[:width] / (1 + np.exp(-both[width:]))) / np.sqrt(2)
                scores = keys @ (h @ to_query + query_bias + g[t]) / np.sqrt(width)
                shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
                attention[b, t, :m] += shares / layers
                new[t] = (h + np.sqrt(m) * shares @ values) / np.sqrt(2)
            x = new
        logits[b] = (x @ last + last_bias) @ table.T + bias
    out = numpy(models.model(inputs | targets))
    np.testing.assert_allclose(out["logits"], logits, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(out["attention"], attention, atol=1e-5)


def test_convolutions_read_as_many_tokens_as_they_say(rng):
    """1 + layers (kernel_size - 1) tokens, here 5, and each of them."""
    models = MAKERS["convolutional"](words())
    filled(models.model, rng)
    inputs, ids = inputs_of(rng), rng.integers(0, V, (2, 9)).astype(np.int32)

    def logits(ids):
        return numpy(models.model(inputs | {"target_ids": ids, "target_mask": np.ones_like(ids)}))["logits"]

    before = logits(ids)
    for changed in (0, 3):
        other = ids.copy()
        other[:, changed] = (other[:, changed] + 1) % V
        differ = np.abs(logits(other) - before).max((0, 2)) > 1e-6
        assert np.flatnonzero(differ).tolist() == list(range(changed, changed + 5))


def test_convolutions_count_tokens_in_half_precision(rng):
    """Bfloat16 has no number between 300 and 302, by which positions would stand still."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        models = MAKERS["convolutional"](words())
    finally:
        keras.config.set_dtype_policy("float32")
    begun, outputs = numpy(models.start(inputs_of(rng))), []
    for count in (300, 301):
        state = np.concatenate([begun["state"][:, :-1], np.full((2, 1), count, np.float32)], 1)
        token = {"token_ids": np.ones((2, 1), np.int32), "memory_mask": MASK, "state": state}
        outputs.append(numpy(models.step(begun | token)))
        assert outputs[-1]["state"][:, -1].tolist() == [count + 1, count + 1]
        assert outputs[-1]["logits"].dtype == "float32"
    assert np.abs(outputs[1]["logits"] - outputs[0]["logits"]).max() > 0


ENCODERS = {
    "bert": lambda: bert.encoder(
        bert.Config(vocabulary_size=9, layers=1, width=8, heads=2, intermediate=8, max_positions=8)
    ),
    "elmo": lambda: elmo.encoder(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"]),
}


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("kind", ["lstm", "transformer", "convolutional"])
def test_over_any_encoder(encoder, kind, rng):
    model = ENCODERS[encoder]()
    model.trainable = False
    models = MAKERS[kind](model)
    inputs = {name: np.ones([d or S for d in tensor.shape[1:]], np.int32)[None] for name, tensor in model.input.items()}
    out = numpy(models.model(inputs | {"target_ids": np.ones((1, T), np.int32), "target_mask": np.ones((1, T))}))
    assert out["logits"].shape == (1, T, V) and out["attention"].shape == (1, T, S)
    names = {weight.path for weight in model.weights}
    assert not names & {weight.path for weight in models.model.trainable_weights}


@pytest.mark.trains
@pytest.mark.parametrize("kind", ["lstm", "transformer", "convolutional"])
def test_learns_to_write_backwards(kind, rng):
    """A text of three words is written backwards."""
    keras.utils.set_random_seed(1)
    make, sizes = {
        "lstm": (decoder.recurrent, {"units": 48}),
        "transformer": (decoder.transformer, {"width": 48, "layers": 1, "heads": 2, "context": 6}),
        "convolutional": (decoder.convolutional, {"width": 48, "layers": 2}),
    }[kind]
    encoder = stack.recurrent(static.encoder(static.Config(words=9, width=24)), units=24, dropout=0.0)
    models = make(encoder, V, dropout=0.0, **sizes)
    texts = rng.integers(2, 9, (512, 3)).astype(np.int32)
    targets = np.pad(texts[:, ::-1], ((0, 0), (0, 1)))  # 0 is the end
    before = np.pad(texts[:, ::-1], ((0, 0), (1, 0)), constant_values=1)  # 1 is the beginning
    ones = np.ones_like(before)
    inputs = {"word_ids": texts, "mask": np.ones_like(texts), "target_ids": before, "target_mask": ones}
    model = keras.Model(models.model.input, {"logits": models.model.output["logits"]})
    model.compile(keras.optimizers.Adam(0.01), {"logits": CrossEntropy(label_smoothing=0.1)})
    model.fit(inputs, {"logits": targets}, epochs=40, batch_size=64, verbose=0)
    start, step = keras_engine.runner(models.start), keras_engine.runner(models.step)
    inputs = {"word_ids": texts[:8], "mask": np.ones((8, 3), np.int32)}
    for beams in (1, 3):
        found = beam.generate(start, step, inputs, begin=1, end=0, max_length=6, beams=beams, alpha=0.6)
        assert [list(hypotheses[0].tokens) for hypotheses in found] == texts[:8, ::-1].tolist()
        assert all(hypotheses[0].finished for hypotheses in found)


def test_errors():
    for wrong in ({"units": 0}, {"layers": 0}, {"score": "cosine"}, {"cell": "rnn"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            decoder.recurrent(words(), V, **wrong)
    with pytest.raises(ValueError, match="heads=3"):
        decoder.transformer(words(), V, width=8, heads=3)
    for size in (0, 1):
        with pytest.raises(ValueError, match=f"kernel_size={size}"):
            decoder.convolutional(words(), V, kernel_size=size)
    with pytest.raises(ValueError, match="decoder 'cnn': choose one of recurrent, transformer, convolutional"):
        decoder.by_name(words(), V, "cnn")
