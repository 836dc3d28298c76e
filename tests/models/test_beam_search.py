"""Beam search as a graph: the sequences, scores and ends of `text.beam`, with options of its own for each text."""

import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.models import beam_search
from keras_ctxrep.text import beam

V, Z, S = 7, 5, 3


@pytest.fixture(scope="module")
def decoder():
    """One decoder in NumPy and in TensorFlow: the next state is tanh(state R + E[token])."""
    rng = np.random.default_rng(0)
    kernel, table, recurrent = rng.normal(size=(Z, V)) * 2, rng.normal(size=(V, Z)), rng.normal(size=(Z, Z))
    looks = rng.random((V, S))

    def in_numpy(tokens, rows, state):
        state = np.tanh(state @ recurrent + table[tokens])
        return state @ kernel, state, looks[tokens]

    def in_graph(inputs):
        tokens = inputs["token_ids"][:, 0]
        state = tf.tanh(inputs["state"] @ recurrent + tf.gather(table, tokens))
        return {"logits": state @ kernel, "state": state, "attention": tf.gather(looks, tokens)}

    kinds = (tf.float64, tf.int32, tf.int32, tf.float64)
    shapes = ([None, Z], [None], [None], [None])

    @tf.function(input_signature=[tf.TensorSpec(*pair) for pair in zip(shapes, kinds, strict=True)])
    def search(state, max_length, beams, alpha):
        memory = tf.zeros([tf.shape(state)[0], S, 1])
        mask = tf.ones([tf.shape(state)[0], S], tf.int32)
        options = beam_search.Options(0, 1, max_length, beams, alpha, never=(0, 2), attends=True)
        return beam_search.search(in_graph, memory, mask, state, options)

    return in_numpy, search


@pytest.mark.parametrize("seed", range(12))
def test_as_the_definition(decoder, seed):
    in_numpy, search = decoder
    rng = np.random.default_rng(seed)
    texts = int(rng.integers(1, 5))
    state = rng.normal(size=(texts, Z))
    lengths, beams = (rng.integers(1, most, texts).astype(np.int32) for most in (9, 6))
    alpha = rng.choice([0.0, 0.6, 1.0], texts)
    found = search(state, lengths, beams, alpha)
    for row in range(texts):
        (expected,) = beam.search(
            in_numpy, state[row : row + 1], 0, 1, int(lengths[row]), int(beams[row]), float(alpha[row]), never=[0, 2]
        )
        for place, hypothesis in enumerate(expected):
            size = len(hypothesis.tokens)
            assert found.tokens[row, place].numpy().tolist() == [
                *hypothesis.tokens,
                *[-1] * (found.tokens.shape[2] - size),
            ]
            assert float(found.scores[row, place]) == pytest.approx(hypothesis.score, abs=1e-9)
            assert bool(found.finished[row, place]) == hypothesis.finished
            if size:
                np.testing.assert_allclose(found.attention[row, place, :size], hypothesis.attention)
        assert np.isneginf(found.scores[row, len(expected) :]).all()
