"""Task networks of pairs, ESIM and BiDAF: their numbers, padding, the order of the texts, what trains, saving."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.models import elmo, heads, stack, static
from keras_ctxrep.models.families import encoder_of
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.text.features import CharacterAndWordFeatures, StaticFeatures
from keras_ctxrep.text.pairs import APART, PairFeatures
from tests import tiny

VOCAB = ["<UNK>", "the", "cat", "sat", "on", "mat"]
UNITS = 3
PAIRS = ["the mat", "cats sat on the mat", "", "a dog and a cat"]
every_kind = pytest.mark.parametrize("kind", APART)


filled = partial(tiny.filled, scale=0.4)


def task_model(kind, encoder, **kwargs):
    network = stack.by_name(encoder, kind, units=UNITS, **kwargs)
    return heads.answer(network) if kind == "bidaf" else heads.classify(network, 3, dropout=0.0)


def arrays(outputs):
    return keras.tree.map_structure(np.asarray, outputs)


@pytest.fixture
def words():
    return static.encoder(static.Config(len(VOCAB), 4)), PairFeatures(StaticFeatures(VOCAB))


# ------------------------------------------------------------------------------------------------------------ numbers


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(scores):
    exps = np.exp(scores - scores.max())
    return exps / exps.sum()


def bilstm(x, weights, name):
    """Both directions over float64 (T, D); gates are input, new input, forget, output, and the forget bias is 1."""
    out = np.zeros((len(x), 2 * UNITS))
    for way, place in (("forward", slice(0, UNITS)), ("backward", slice(UNITS, None))):
        h, c = np.zeros(UNITS), np.zeros(UNITS)
        kernel, recurrent, bias = (weights[f"{name}_{way}/{part}"] for part in ("kernel", "recurrent_kernel", "bias"))
        for t in range(len(x)) if way == "forward" else reversed(range(len(x))):
            i, j, f, o = np.split(x[t] @ kernel + h @ recurrent + bias, 4)
            c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
            h = out[t, place] = sigmoid(o) * np.tanh(c)
    return out


def encoded(model, encoder, batch):
    """The words of both texts after the first biLSTM, restated, and the model's weights; float64."""
    weights = {weight.path: np.asarray(weight, np.float64) for weight in model.weights}
    texts = []
    for prefix in ("", "pair_"):
        vectors = np.asarray(encoder({name: batch[prefix + name] for name in encoder.input})["sequence"], np.float64)
        lengths = batch[f"{prefix}mask"].sum(1)
        texts.append([bilstm(x[:n], weights, "rnn_0") for x, n in zip(vectors, lengths, strict=True)])
    return weights, texts


def pooled(x):
    return np.concatenate([x.mean(0), x.max(0)]) if len(x) else np.zeros(2 * x.shape[1])


def test_numbers_of_inference_by_alignment(words, sentences, rng):
    """Chen et al. 2017, eq. 11 to 20, row by row; atol 1e-5."""
    encoder, features = words
    model = filled(stack.esim(encoder, units=UNITS), rng)
    batch = features(sentences, PAIRS)
    out = arrays(model(batch))
    weights, (texts, pairs) = encoded(model, encoder, batch)

    def composed(x, other):
        aligned = np.array([softmax(other @ token) @ other if len(other) else 0 * token for token in x])
        aligned = aligned.reshape(x.shape)
        local = np.concatenate([x, aligned, x - aligned, x * aligned], 1)
        projected = local @ weights["alignment_projection/kernel"] + weights["alignment_projection/bias"]
        return bilstm(np.maximum(projected, 0), weights, "composition")

    for row, (a, b) in enumerate(zip(texts, pairs, strict=True)):
        top = composed(a, b)
        np.testing.assert_allclose(out["sequence"][row, : len(a)], top, atol=1e-5)
        assert not out["sequence"][row, len(a) :].any()
        both = np.concatenate([pooled(top), pooled(composed(b, a))])
        expected = np.tanh(both @ weights["inference/kernel"] + weights["inference/bias"])
        np.testing.assert_allclose(out["pooled"][row], expected, atol=1e-5)


def test_numbers_of_attention_flow(words, sentences, rng):
    """Seo et al. 2017, section 2: from the attention's result to the logits, and those of no answer; atol 1e-5."""
    encoder, features = words
    model = filled(heads.answer(stack.bidaf(encoder, units=UNITS)), rng)
    batch = features(sentences, PAIRS)
    out = arrays(model(batch))
    weights, (questions, contexts) = encoded(model, encoder, batch)
    kernels = [weights[f"attention_flow/{name}_kernel"][:, 0] for name in ("context", "question", "product")]
    for row, (u, h) in enumerate(zip(questions, contexts, strict=True)):
        flow = np.zeros((len(h), 8 * UNITS))
        if len(h):
            scores = (h @ kernels[0])[:, None] + u @ kernels[1] + (h * kernels[2]) @ u.T
            asked = np.array([softmax(own) @ u for own in scores])
            flow = np.concatenate([h, asked, h * asked, h * (softmax(scores.max(1)) @ h)], 1)
        first = bilstm(bilstm(flow, weights, "modeling_0"), weights, "modeling_1")
        tokens = np.concatenate([flow, first, bilstm(first, weights, "modeling_end")], 1)
        vectors = np.concatenate([weights["no_answer/embeddings"], tokens])
        expected = vectors @ weights["span_logits/kernel"] + weights["span_logits/bias"]
        for index, edge in enumerate(("start", "end")):
            np.testing.assert_allclose(out[f"{edge}_logits"][row, : 1 + len(h)], expected[:, index], atol=1e-5)
            assert (out[f"{edge}_logits"][row, 1 + len(h) :] == -1e4).all()


# ------------------------------------------------------------------------------------------------- contract of a model


@every_kind
def test_over_every_family(kind, family, sentences, rng):
    """A row alone is as in its batch, whatever is under the padding."""
    encoder, one = family
    features = PairFeatures(one)
    model = filled(task_model(kind, encoder), rng)
    batch = features(sentences, PAIRS)
    assert set(model.input) == set(batch) == set(features.keys)
    out = arrays(model(batch))
    for row, (text, pair) in enumerate(zip(sentences, PAIRS, strict=True)):
        for name, values in arrays(model(features([text], [pair]))).items():
            np.testing.assert_allclose(values[0], out[name][row, : values.shape[1]], atol=1e-5)
    noise = {}
    for name in batch:
        mask = batch["pair_mask" if name.startswith("pair_") else "mask"].astype(bool)
        real = mask.reshape(mask.shape + (1,) * (batch[name].ndim - 2))
        noise[name] = np.where(real, batch[name], rng.integers(0, 2, batch[name].shape)).astype(np.int32)
    noise |= {name: batch[name] for name in ("mask", "pair_mask")}
    for name, values in arrays(model(noise)).items():
        np.testing.assert_allclose(values, out[name], atol=1e-5)


@every_kind
def test_with_word_vectors_and_a_second_mix(kind, elmo_config, characters, sentences, rng, tmp_path):
    """Of an ELMo; saved and loaded, and copied by the layers' names."""
    extra = static.encoder(static.Config(len(VOCAB), 4, buckets=20, trainable=False))
    features = PairFeatures(CharacterAndWordFeatures(characters, StaticFeatures(VOCAB, ngrams=(3, 6, 20))))

    def made():
        encoder = elmo.encoder(elmo_config)
        encoder.trainable = False
        return task_model(kind, encoder, extra_embeddings=extra, output_mix=True)

    model = filled(made(), rng)
    batch = features(sentences, PAIRS)
    assert set(model.input) == set(batch)
    out = arrays(model(batch))
    model.save(tmp_path / "model.keras")
    copy = made()
    copy_weights(model, copy)
    for other in (keras.models.load_model(tmp_path / "model.keras"), copy):
        for name, values in arrays(other(batch)).items():
            np.testing.assert_allclose(values, out[name], atol=1e-6)
    inside = encoder_of(model, "elmo", vars(elmo_config))
    assert inside.get_layer("char_cnn") is model.get_layer("char_cnn")
    names = {weight.path.partition("/")[0] for weight in model.trainable_variables}
    assert {"scalar_mix", "scalar_mix_out", "rnn_0_forward"} <= names
    assert not names & {"char_cnn", "forward_0", "word_embedding"}


@every_kind
def test_gradients_reach_every_weight(kind, words, sentences, rng):
    encoder, features = words
    model = filled(task_model(kind, encoder), rng)
    with tf.GradientTape() as tape:
        outputs = model(features(sentences, PAIRS), training=True)
        loss = sum(tf.reduce_sum(tf.tanh(out) * rng.normal(size=out.shape)) for out in outputs.values())
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    for weight, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 0, weight.path


def test_the_order_of_the_texts(words, sentences, rng):
    """A swapped pair has another answer; it is the same where the halves of the last layer's kernel are swapped too."""
    encoder, features = words
    model = filled(stack.esim(encoder, units=UNITS), rng)
    first, second = (
        np.asarray(model(features(*texts))["pooled"]) for texts in ((sentences, PAIRS), (PAIRS, sentences))
    )
    assert np.abs(first - second).max(1).min() > 1e-3
    layer = model.get_layer("inference")
    kernel, bias = layer.get_weights()
    layer.set_weights([np.concatenate([*np.split(kernel, 2)][::-1]), bias])
    np.testing.assert_allclose(np.asarray(model(features(PAIRS, sentences))["pooled"]), first, atol=1e-6)


def test_bad_arguments(words):
    encoder, _ = words
    for kind, kwargs, message in (
        ("esim", {"layers": 0}, "layers=0, units=300"),
        ("bidaf", {"layers": 0}, "layers=0, units=100"),
        ("bidaf", {"mix": "mean"}, "mix='mean': choose 'all' or 'top'"),
        ("esim", {"extra_embeddings": encoder}, "both read word_ids; leave out one"),
    ):
        with pytest.raises(ValueError, match=message):
            stack.by_name(encoder, kind, **kwargs)
