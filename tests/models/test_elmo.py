"""The biLM: its layers, its directions, its published sizes."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import optimizers
from keras_ctxrep.models import elmo
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.text.features import WordFeatures
from keras_ctxrep.text.pretraining import Vocabulary, bptt_segments, for_sampling, language_model_batch, stream_batch
from keras_ctxrep.training import fit


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("elmo_2x1024_128_2048cnn_1xhighway", "13.6"),
        ("elmo_2x2048_256_2048cnn_1xhighway", "28.0"),
        ("elmo_2x4096_512_2048cnn_2xhighway", "93.6"),
    ],
)
def test_published_numbers_of_parameters(name, millions, shapes_only):
    assert f"{elmo.encoder(elmo.SIZES[name]).count_params() / 1e6:.1f}" == millions


@pytest.mark.parametrize("name", elmo.SIZES)
def test_names_of_sizes(name):
    config = elmo.SIZES[name]
    filters = sum(number for _, number in config.filters)
    assert name == (
        f"elmo_{config.layers}x{config.cells}_{config.projection}_{filters}cnn_{config.highways}xhighway"
    )  # fmt: skip


def streams(model, batch):
    """{layer: float32} of the token layer, (B, T+2, P), and every LSTM, (B, T+1, P): none reads its last marker."""
    names = ["char_cnn", "forward_0", "backward_0", "forward_1", "backward_1"]
    inside = keras.Model(model.input, {name: model.get_layer(name).output for name in names})
    return {name: np.asarray(array) for name, array in inside(batch).items()}


@pytest.mark.parametrize("residual", [True, False])
def test_layers(elmo_config, characters, sentences, rng, residual):
    model = elmo.encoder(replace(elmo_config, residual=residual))
    batch = characters(sentences)
    outputs = streams(model, batch)
    f0, b0, f1, b1 = (outputs[f"{way}_{index}"] for index in (0, 1) for way in ("forward", "backward"))
    tokens = outputs["char_cnn"]
    expected = [(tokens[:, :-1], tokens[:, 1:]), (f0, b0), (f1 + f0, b1 + b0) if residual else (f1, b1)]
    out = model(batch)
    for layer, (forward, backward) in zip(out["layers"], expected, strict=True):
        words = np.concatenate([forward[:, 1:], backward[:, :-1]], -1) * batch["mask"][:, :, None]
        np.testing.assert_allclose(layer, words, atol=1e-6)
    mean = np.asarray(out["sequence"]).sum(1) / batch["mask"].sum(1, keepdims=True)
    np.testing.assert_allclose(out["pooled"], mean, atol=1e-6)


def test_steps_over_dropped_markers_are_left_out(elmo_config, characters, sentences, rng):
    """The encoder that keeps the markers takes every step, and gives the same words."""
    short, whole = elmo.encoder(elmo_config), elmo.encoder(elmo_config, keep_markers=True)
    copy_weights(short, whole)
    batch = characters(sentences)
    for layer, other in zip(short(batch)["layers"], whole(batch)["layers"], strict=True):
        np.testing.assert_allclose(layer, other[:, 1:-1] * batch["mask"][:, :, None], atol=1e-6)


def test_the_lowest_layer_is_the_token_layer_twice(elmo_config, characters, rng):
    model = elmo.encoder(elmo_config)
    lowest = np.asarray(model(characters(["cat dog cat", "dog"]))["layers"][0])
    assert np.array_equal(lowest[..., :6], lowest[..., 6:])
    np.testing.assert_allclose(lowest[0, 0], lowest[0, 2], atol=1e-6)
    np.testing.assert_allclose(lowest[0, 1], lowest[1, 0], atol=1e-6)
    assert np.abs(lowest[0, 0] - lowest[0, 1]).max() > 1e-3


def test_directions_do_not_mix(elmo_config, characters, rng):
    """A word's forward half knows nothing of what comes after it, its backward half nothing of what comes before."""
    model = elmo.encoder(elmo_config)
    first, second = (model(characters([text]))["layers"] for text in ("a b c d e", "a b X d e"))
    for left, right in zip(first[1:], second[1:], strict=True):
        moved = np.abs(left - right)[0] > 1e-6  # (T, 2 P)
        assert moved[:, :6].any(1).tolist() == [False, False, True, True, True]
        assert moved[:, 6:].any(1).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("place", range(5))
def test_no_logit_sees_its_own_word(elmo_config, characters, rng, place):
    model = elmo.language_model(replace(elmo_config, dropout=0.0), 9)
    words = list("abcde")
    changed = [*words[:place], "X", *words[place + 1 :]]
    first, second = (model(characters([sentence, ["a"] * 7])) for sentence in (words, changed))
    moved = {key: (np.abs(first[key] - second[key])[0, :6] > 1e-7).any(1).tolist() for key in first}
    # forward logits: of a b c d e </S>; backward logits: of <S> a b c d e
    assert moved["forward_logits"] == [index > place for index in range(6)]
    assert moved["backward_logits"] == [index <= place for index in range(6)]


def test_logits_of_a_language_model(elmo_config, characters, sentences, rng):
    model = elmo.language_model(elmo_config, 9)
    out = model(characters(sentences))
    assert {key: value.shape for key, value in out.items()} == dict.fromkeys(
        ("forward_logits", "backward_logits"), (4, 7, 9)
    )
    softmax = model.get_layer("softmax")
    assert [tuple(weight.shape) for weight in softmax.weights] == [(9, 6), (9,)]  # one for both directions
    encoder = elmo.encoder(elmo_config)
    assert model.count_params() == encoder.count_params() + 7 * 9
    top = streams(model, characters(sentences))
    states = top["forward_1"] + top["forward_0"], top["backward_1"] + top["backward_0"]
    for key, state in zip(("forward_logits", "backward_logits"), states, strict=True):
        np.testing.assert_allclose(out[key], state @ softmax.kernel.numpy().T + softmax.bias.numpy(), atol=1e-5)


def test_the_encoder_takes_the_weights_of_the_language_model(elmo_config, characters, sentences, rng):
    model, encoder = elmo.language_model(elmo_config, 9), elmo.encoder(elmo_config)
    for weight in encoder.weights:
        owner, _, name = weight.path.rpartition("/")
        weight.assign(next(w for w in model.get_layer(owner).weights if w.name == name))
    batch = characters(sentences)
    for name, array in streams(model, batch).items():
        np.testing.assert_allclose(array, streams(encoder, batch)[name], atol=1e-6)


def test_a_cache_of_token_vectors(elmo_config, characters, sentences, rng):
    """The same layers, of which the words in the table are looked up and no character is read."""
    plain = elmo.encoder(elmo_config)
    words = ["<S>", "</S>", "the", "sat", "dogs"]
    table = elmo.token_vectors(plain, characters, words, batch_size=2)
    assert table.shape == (5, 6) and table.dtype == np.float32
    batch = characters([sentence.split() for sentence in sentences])
    lowest = np.asarray(plain(batch)["layers"][0])
    np.testing.assert_allclose(table[2], lowest[0, 0, :6], atol=1e-6)  # "the"
    np.testing.assert_allclose(table[4], lowest[2, 2, 6:], atol=1e-6)  # "dogs"

    cached = elmo.encoder(elmo_config, cache=len(words))
    for layer in plain.layers:
        cached.get_layer(layer.name).set_weights(layer.get_weights())
    cached.get_layer("token_cache").set_weights([np.pad(table, ((1, 0), (0, 0)))])
    assert {weight.path for weight in plain.weights} == {weight.path for weight in cached.trainable_weights}
    numbers = {word: number for number, word in enumerate(words, 1)}
    word_ids = np.zeros_like(batch["mask"])
    for row, sentence in enumerate(sentences):
        for place, word in enumerate(sentence.split()):
            word_ids[row, place] = numbers.get(word, 0)
    assert 0 < (word_ids > 0).sum() < batch["mask"].sum()
    unread = np.where(word_ids[:, :, None] > 0, rng.integers(0, 261, batch["char_ids"].shape), batch["char_ids"])
    expected = plain(batch)
    for char_ids in (batch["char_ids"], unread):
        outputs = cached(batch | {"char_ids": char_ids, "word_ids": word_ids})
        for layer, other in zip(outputs["layers"], expected["layers"], strict=True):
            np.testing.assert_allclose(layer, other, atol=1e-6)
    for layer, other in zip(cached(batch | {"word_ids": 0 * word_ids})["layers"], expected["layers"], strict=True):
        np.testing.assert_allclose(layer, other, atol=1e-6)  # nothing is looked up but the sentence markers
    assert elmo.token_vectors(plain, characters, []).shape == (0, 6)
    with pytest.raises(ValueError, match="cache=3: a model over words reads a table already"):
        elmo.encoder(replace(elmo_config, words=4), cache=3)


def test_dropout_only_in_training(elmo_config, characters, sentences, rng):
    model = elmo.language_model(replace(elmo_config, dropout=0.5), 9)
    batch = characters(sentences)
    first, second, third = (model(batch, training=way)["forward_logits"] for way in (False, False, True))
    assert np.array_equal(first, second) and np.abs(first - third).max() > 1e-3
    names = {layer.name for layer in model.layers if isinstance(layer, keras.layers.Dropout)}
    assert names == {f"{way}_{place}_dropout" for way in ("forward", "backward") for place in ("0", "1", "top")}
    assert not [layer for layer in elmo.encoder(elmo_config).layers if isinstance(layer, keras.layers.Dropout)]


def test_without_projection(elmo_config, characters, sentences, rng):
    model = elmo.encoder(replace(elmo_config, projection=None, cells=7))
    assert model(characters(sentences))["sequence"].shape == (4, 6, 14)
    assert not [weight for weight in model.weights if weight.name == "projection_kernel"]
    filters = elmo.encoder(replace(elmo_config, projection=None, cells=14))  # as wide as the filters
    assert not [weight for weight in filters.weights if weight.name == "W_proj"]


def test_mixed_precision(elmo_config, characters, sentences, mixed_precision):
    out = elmo.language_model(elmo_config, 9)(characters(sentences))
    assert all(logits.dtype == tf.float32 and np.isfinite(logits).all() for logits in out.values())
    out = elmo.encoder(elmo_config)(characters(sentences))
    assert out["sequence"].dtype == tf.bfloat16


def stateless(model, config):
    """The same encoder, stateless."""
    encoder = elmo.encoder(config)
    copy_weights(model, encoder)
    return encoder


def test_an_initial_state(elmo_config, characters, rng):
    """One sentence after the other through the layers themselves, without markers taken off and put on in between."""
    model = elmo.encoder(elmo_config, carry_state=True)
    first_batch, second_batch = (characters([text]) for text in ("a b c", "d e"))
    first = model(first_batch | {"state": np.zeros((1, elmo.state_width(elmo_config)), np.float32)})
    second = model(second_batch | {"state": first["state"].numpy()})
    tokens = [streams(stateless(model, elmo_config), batch)["char_cnn"] for batch in (first_batch, second_batch)]
    for direction, half in (("forward", slice(0, 6)), ("backward", slice(6, 12))):
        order = tokens if direction == "forward" else tokens[::-1]  # backward the first sentence is read first, too
        x = np.concatenate(order, 1)
        second_words = slice(6, 8) if direction == "forward" else slice(1, 3)
        for index in (0, 1):
            layer = model.get_layer(f"{direction}_{index}")
            out = np.asarray(layer(x, mask=np.ones(x.shape[:2], np.int32), state=np.zeros((1, 14), np.float32))[0])
            x = out + x if index else out
            np.testing.assert_allclose(second["layers"][index + 1][..., half], x[:, second_words], atol=1e-6)


def test_without_a_state_an_encoder_begins_at_zero(elmo_config, characters, sentences, rng):
    model = elmo.encoder(elmo_config, carry_state=True)
    batch = characters(sentences)
    zeros = np.zeros((4, elmo.state_width(elmo_config)), np.float32)
    actual, expected = model(batch | {"state": zeros}), stateless(model, elmo_config)(batch)
    for first, second in zip(actual["layers"], expected["layers"], strict=True):
        np.testing.assert_allclose(first, second, atol=1e-6)
    assert actual["state"].shape == zeros.shape == (4, 2 * 2 * (6 + 8))
    again = model(batch | {"state": actual["state"].numpy()})
    assert np.abs(again["sequence"] - actual["sequence"]).max() > 1e-3
    assert np.array_equal(again["layers"][0], actual["layers"][0])  # the token layer has no context


def test_markers_that_are_kept(elmo_config, characters, sentences, rng):
    model = elmo.encoder(elmo_config, keep_markers=True)
    batch = characters(sentences)
    actual, expected = model(batch), stateless(model, elmo_config)(batch)
    assert actual["mask"].numpy().tolist() == [[1] * (n + 2) + [0] * (6 - n) for n in (6, 2, 4, 2)]
    for kept, words in zip(actual["layers"], expected["layers"], strict=True):
        assert kept.shape == (4, 8, 12)
        np.testing.assert_allclose(kept[:, 1:-1] * batch["mask"][:, :, None], words, atol=1e-6)
        assert np.array_equal(np.abs(kept).max(-1) > 0, actual["mask"])
    np.testing.assert_allclose(actual["pooled"], expected["pooled"], atol=1e-6)  # of the words alone
    assert np.array_equal(actual["sequence"], actual["layers"][-1])


def test_markers_and_state_together(elmo_config, characters, sentences, rng):
    model = elmo.encoder(elmo_config, carry_state=True, keep_markers=True)
    zeros = np.zeros((4, elmo.state_width(elmo_config)), np.float32)
    out = model(characters(sentences) | {"state": zeros})
    assert set(out) == {"layers", "sequence", "pooled", "mask", "state"}
    ends = np.asarray(out["layers"][1])  # of the LSTMs without a residual
    np.testing.assert_allclose(out["state"][0, :6], ends[0, 7, :6], atol=1e-6)  # forward ends on </S>
    np.testing.assert_allclose(out["state"][0, 14:20], ends[0, 0, 6:], atol=1e-6)  # backward on <S>


def test_a_model_over_words(elmo_config, rng):
    config = replace(elmo_config, words=9, dropout=0.0)
    features = WordFeatures(["<S>", "</S>", "<UNK>", *"abcdef"])
    model = elmo.encoder(config)
    batch = features(["a b c", "e unknown"])
    layers = model(batch)["layers"]
    table = model.get_layer("word_embedding").embeddings.numpy()
    assert table.shape == (10, 6) and len(layers) == 3
    np.testing.assert_allclose(layers[0][1], np.tile(table[[8, 3, 0]], 2) * [[1], [1], [0]], atol=1e-6)
    other = model(features(["a b f", "e unknown"]))["layers"]
    assert (np.abs(other[1] - layers[1])[0].max(-1) > 1e-6).all()  # backward all words see the last one
    assert np.array_equal(other[1][0, :2, :6], layers[1][0, :2, :6]) and np.array_equal(other[1][1], layers[1][1])
    out = elmo.language_model(config, 9)(batch)
    assert out["forward_logits"].shape == out["backward_logits"].shape == (2, 4, 9)
    assert set(elmo.language_model(config, 9, streams=2).input) == {"word_ids", "word_ids_reverse", "mask"}


@pytest.mark.parametrize(
    ("changes", "gone"),
    [({"highways": 0}, "high_"), ({"projection": 8}, "projection_kernel"), ({"layers": 1}, "forward_1")],
)
def test_other_sizes(elmo_config, characters, sentences, rng, changes, gone):
    config = replace(elmo_config, **changes)
    model = elmo.encoder(config, carry_state=True)
    zeros = np.zeros((4, elmo.state_width(config)), np.float32)
    out = model(characters(sentences) | {"state": zeros})
    assert len(out["layers"]) == config.layers + 1 and out["state"].shape == zeros.shape
    assert not [weight.path for weight in model.weights if gone in weight.path]
    assert elmo.language_model(config, 9)(characters(sentences))["forward_logits"].shape == (4, 7, 9)


def test_hyperbolic_tangent(elmo_config, characters, sentences, rng):
    model = elmo.encoder(replace(elmo_config, activation="tanh", highways=0, projection=None, cells=14))
    lowest = np.asarray(model(characters(sentences))["layers"][0])
    assert -1 < lowest.min() < -0.1 and 0.1 < lowest.max() < 1  # with relu there is nothing below 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers=0: must be at least 1"),
        ({"projection": 9}, "projection=9, cells=.*: no wider than the cells"),
        ({"activation": "gelu"}, "activation='gelu': relu or tanh"),
        ({"highways": 10**9}, "highways=1000000000: must be at least 0 and at most 64"),
        ({"filters": [[1, "8"]]}, "filters=.*: must be a whole number"),
        ({"cell_clip": float("inf")}, "cell_clip=inf: must be a finite number"),
    ],
)
def test_sizes_that_are_refused(elmo_config, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(elmo_config, **changes)


@pytest.mark.parametrize("samples", [None, 5])
def test_all_language_models_have_the_same_layers(elmo_config, rng, samples):
    def named(model):
        return {w.path: tuple(w.shape) for w in model.weights if not w.path.endswith("/state")}

    plain, other = elmo.language_model(elmo_config, 9), elmo.language_model(elmo_config, 9, samples, streams=2)
    assert named(other) == named(plain)
    assert [tuple(w.shape) for w in other.non_trainable_weights] == [(2, 14)] * 4
    copy_weights(plain, other)
    copied = {w.path: w.numpy() for w in other.weights}
    assert all(np.array_equal(copied[w.path], w) for w in plain.weights)
    copy_weights(other, plain)  # without the state


VOCABULARY = Vocabulary(["<S>", "</S>", "<UNK>", *"abcdef"])


def test_a_bptt_segment_of_one_sentence_equals_the_sentence(elmo_config, characters, rng):
    """From zero; the backward text comes reversed, and so do its logits."""
    config = replace(elmo_config, dropout=0.0)
    sentences = [list("abcd"), list("fe")]
    by_sentence, by_segment = elmo.language_model(config, 9), elmo.language_model(config, 9, streams=2)
    copy_weights(by_sentence, by_segment)
    whole, labels, _ = language_model_batch(characters, VOCABULARY, characters.encode(sentences))
    (batch,) = bptt_segments([[sentence] for sentence in sentences], streams=2, steps=5)
    inputs, targets, _ = stream_batch(characters, VOCABULARY, batch)
    first, second = by_sentence(whole), by_segment(inputs)
    for row, size in enumerate((5, 3)):  # words and one marker
        for key, step in (("forward_logits", 1), ("backward_logits", -1)):
            np.testing.assert_allclose(second[key][row, :size][::step], first[key][row, :size], atol=1e-6)
            assert targets[key][row, :size][::step].tolist() == labels[key][row, :size].tolist()


def test_bptt_segments_equal_the_whole_text(elmo_config, characters, rng):
    config = replace(elmo_config, dropout=0.0)
    text = [[list("abcd"), list("fe"), list("c")]]
    outputs = []
    source = elmo.language_model(config, 9)
    for steps in (3, 20):
        model = elmo.language_model(config, 9, streams=1)
        copy_weights(source, model)
        out = [model(stream_batch(characters, VOCABULARY, batch)[0]) for batch in bptt_segments(text, 1, steps)]
        outputs.append({key: np.concatenate([part[key] for part in out], 1) for key in out[0]})
    for key, output in outputs[0].items():
        assert output.shape == (1, 10, 9)
        np.testing.assert_allclose(outputs[1][key], output, atol=1e-6)


@pytest.mark.trains
def test_a_sampled_loss_of_all_words_is_near_the_full_one(elmo_config, characters, sentences, rng):
    config = replace(elmo_config, dropout=0.0)
    vocabulary = Vocabulary.count([text.split() for text in sentences], minimum=1)
    size = len(vocabulary)
    full, sampled = elmo.language_model(config, size), elmo.language_model(config, size, samples=size)
    copy_weights(full, sampled)
    batch = language_model_batch(characters, vocabulary, characters.encode(sentences))
    for model in (full, sampled):
        fit.compile(model, optimizers.Adagrad())
    expected = full.test_on_batch(*batch, return_dict=True)
    inputs, labels, weights = for_sampling(*batch)
    assert set(inputs) == {"char_ids", "mask", "forward_targets", "backward_targets"} == set(sampled.input)
    assert sampled(inputs)["forward_logits"].shape == (4, 7, 1 + size)
    estimate = np.mean([sampled.test_on_batch(inputs, labels, weights, return_dict=True)["loss"] for _ in range(20)])
    assert estimate == pytest.approx(expected["loss"], rel=0.03)
