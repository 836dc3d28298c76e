"""Marked spans against NumPy."""

import numpy as np
import pytest
from keras import ops

from keras_ctxrep.layers import MarkIndicator, SpanPooling

B, T, D = 3, 7, 4
MARKS = np.array([[[0, 2], [1, 5], [6, 7]], [[3, 4], [0, 0], [0, 7]], [[0, 0], [0, 0], [2, 3]]], np.int32)


def test_the_number_of_the_span_that_a_token_lies_in():
    kinds = ops.convert_to_numpy(MarkIndicator()(np.ones((B, T), np.int32), MARKS))
    expected = np.zeros((B, T), np.int32)
    for row, spans in enumerate(MARKS):
        for number, (begin, end) in enumerate(spans, 1):
            expected[row, begin:end] = number  # the last one where they overlap
    assert kinds.tolist() == expected.tolist() and kinds.dtype == np.int32
    assert expected[0].tolist() == [1, 2, 2, 2, 2, 0, 3]


def pooled(sequence, marks, score):
    """[first, last, attention-weighted mean] of each span, zero for (0, 0)."""
    out = np.zeros((*marks.shape[:2], 3 * sequence.shape[-1]))
    for row, spans in enumerate(marks):
        for number, (begin, end) in enumerate(spans):
            if begin < end:
                tokens = sequence[row, begin:end]
                weights = np.exp(tokens @ score)
                mean = weights @ tokens / weights.sum()
                out[row, number] = np.concatenate([tokens[0], tokens[-1], mean])
    return out


@pytest.mark.parametrize("scale", [0.0, 1.0, 20.0])
def test_a_vector_of_each_span(rng, scale):
    sequence = rng.normal(size=(B, T, D)).astype(np.float32)
    layer = SpanPooling()
    layer(sequence, MARKS)
    score = scale * rng.normal(size=D)
    layer.set_weights([score])
    vectors = ops.convert_to_numpy(layer(sequence, MARKS))
    np.testing.assert_allclose(vectors, pooled(sequence, MARKS, score), atol=1e-5)
    assert not vectors[1, 1].any() and not vectors[2, :2].any()


def test_tokens_outside_the_spans_do_not_matter(rng):
    sequence = rng.normal(size=(B, T, D)).astype(np.float32)
    layer = SpanPooling()
    layer(sequence, MARKS)
    layer.set_weights([rng.normal(size=D)])
    inside = np.zeros((B, T), bool)
    for row, spans in enumerate(MARKS):
        for begin, end in spans:
            inside[row, begin:end] = True
    other = np.where(inside[..., None], sequence, 100 * rng.normal(size=sequence.shape)).astype(np.float32)
    other = np.pad(other, ((0, 0), (0, 4), (0, 0)), constant_values=50)
    assert not inside.all()
    np.testing.assert_allclose(layer(other, MARKS), layer(sequence, MARKS), atol=1e-5)
