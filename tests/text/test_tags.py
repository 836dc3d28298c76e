"""Span tags, against seqeval."""

import warnings

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from keras_ctxrep.text.tags import is_spans, spans, to_iob2

SENTENCE = [("PER", 0, 2), ("PER", 2, 3), ("LOC", 3, 4), ("A-b", 5, 9)]
SCHEMES = {
    "IOB1": "I-PER I-PER B-PER I-LOC O I-A-b I-A-b I-A-b I-A-b O",
    "IOB2": "B-PER I-PER B-PER B-LOC O B-A-b I-A-b I-A-b I-A-b O",
    "BIOES": "B-PER E-PER S-PER S-LOC O B-A-b I-A-b I-A-b E-A-b O",
    "BILOU": "B-PER L-PER U-PER U-LOC O B-A-b I-A-b I-A-b L-A-b O",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_gives_the_same_spans(scheme):
    tags = SCHEMES[scheme].split()
    assert to_iob2(tags) == tuple(SCHEMES["IOB2"].split())
    assert spans(tags) == SENTENCE


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O I-x", "O B-x"),
        ("B-x I-y I-y", "B-x B-y I-y"),
        ("S-x I-x E-x", "B-x B-x I-x"),
        ("B-x E-x E-x", "B-x I-x B-x"),
        ("I O I I B", "B O B I B"),
        ("NN I-x VB", "NN I-x VB"),  # no scheme: as it is
        ("O o", "O o"),
        ("B- O", "B- O"),
        ("", ""),
    ],
)
def test_to_iob2(tags, expected):
    assert to_iob2(tags.split()) == tuple(expected.split())


def test_spans_are_those_of_seqeval(rng):
    tags = ["O", "O", *(f"{mark}-{kind}" for mark in "BIES" for kind in ("x", "y", "y-z"))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3000):
            sentence = rng.choice(tags, size=rng.integers(1, 10)).tolist()
            expected = [(kind, begin, end + 1) for kind, begin, end in get_entities(sentence)]
            assert spans(sentence) == expected == spans(to_iob2(sentence)), sentence


def test_invalid_tags_are_outside():
    assert spans(["B-x", None, "I-x", "VB", ""]) == [("x", 0, 1), ("x", 2, 3)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["O", "B-x"], True),
        (["B", "I"], True),
        (["U-x"], True),
        ([], False),
        (["O"], False),
        (["O", "B-x", "NN"], False),
    ],
)
def test_is_spans(labels, expected):
    assert is_spans(labels) is expected
