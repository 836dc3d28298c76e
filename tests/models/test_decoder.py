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


ENCODERS = {
    "bert": lambda: bert.encoder(
        bert.Config(vocabulary_size=9, layers=1, width=8, heads=2, intermediate=8, max_positions=8)
    ),
    "elmo": lambda: elmo.encoder(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"]),
}


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("kind", ["lstm", "transformer"])
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
@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_learns_to_write_backwards(kind, rng):
    """A text of three words is written backwards."""
    keras.utils.set_random_seed(1)
    make = {"lstm": decoder.recurrent, "transformer": decoder.transformer}[kind]
    sizes = {"lstm": {"units": 48}, "transformer": {"width": 48, "layers": 1, "heads": 2, "context": 6}}[kind]
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
