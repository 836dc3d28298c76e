"""Tokens of language models: texts to ids and back, and batches of running text."""

import numpy as np
import pytest

from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.pretraining import bptt_segments
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep.text.units import TokenFeatures, token_batch

MARKERS = ("<S>", "</S>", "<UNK>")
FEATURES = {
    "words": TokenFeatures("words", [*MARKERS, "The", "day", "'", "s", "."]),
    "pieces": TokenFeatures("pieces", [*SPECIAL_PIECES, "the", "un", "##able", "day", "."]),
    "characters": TokenFeatures("characters", [*MARKERS, *"aT dhey中"]),
}


@pytest.mark.parametrize(
    ("units", "text", "ids", "back"),
    [
        ("words", "The day's\nX.", [1, 3, 4, 5, 6, 1, 2, 7], "The day ' s\n<UNK> ."),
        ("pieces", "Unable the\nDAY.", [3, 6, 7, 5, 3, 8, 9], "unable the\nday ."),
        ("characters", "The day\n中", [1, 4, 7, 8, 5, 6, 3, 9, 1, 10], "The day\n中"),
        ("words", "", [1], ""),
        ("characters", "a\n", [1, 3, 1], "a\n"),
    ],
)
def test_there_and_back(units, text, ids, back):
    features = FEATURES[units]
    assert features.prompt(text) == ids
    assert features.text(ids[1:]) == back


def test_what_continues_a_line_has_a_space_before_it():
    words = FEATURES["words"]
    assert words.text([4, 7], before=3) == " day ." and words.text([4], before=1) == "day"
    assert FEATURES["pieces"].text([7, 5], before=6) == "able the"


@pytest.mark.parametrize("units", FEATURES)
def test_marks_and_the_unknown_are_never_generated(units):
    features = FEATURES[units]
    names = [features.vocab[token] for token in features.never]
    assert names == (["<S>", "<UNK>"] if units != "pieces" else ["[PAD]", "[UNK]", "[CLS]", "[MASK]"])
    assert features.end not in features.never


def test_rows_are_cut_and_padded():
    features = TokenFeatures("characters", [*MARKERS, *"ab"], max_length=3)
    rows = features.encode(["abab", ""])
    assert [row.truncated for row in rows] == [True, False]
    batch = features.collate(rows)
    assert batch["token_ids"].tolist() == [[1, 3, 4], [1, 0, 0]] and batch["mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    with pytest.raises(ValueError, match="a row of 3 tokens does not fit into length=2"):
        features.collate(rows, 2)


def test_the_bundle_makes_them():
    bundle = Bundle("lm", "causal_language_model", {"units": "words"}, 8, vocab=(*MARKERS, "a"))
    assert bundle.tokens.ids(["a b"]) == [[3, 2]]
    with pytest.raises(ValueError, match="units='letters': one of words, pieces, characters"):
        TokenFeatures("letters", MARKERS)


def test_running_text():
    """Two streams of a document each; every token is predicted once, and lines follow each other."""
    batches = [token_batch(batch) for batch in bptt_segments([[[3, 4], [5]], [[6, 7, 3]]], 2, 3, (1, 1))]
    (inputs, targets, weights), (last, last_targets, last_weights) = batches
    assert inputs["token_ids"].tolist() == [[1, 3, 4], [1, 6, 7]] and targets["logits"].tolist() == [
        [3, 4, 1],
        [6, 7, 3],
    ]
    assert last["token_ids"].tolist() == [[1, 5], [3, 0]] and last_targets["logits"].tolist() == [[5, 1], [1, 0]]
    np.testing.assert_allclose(weights["logits"], 1)
    np.testing.assert_allclose(last_weights["logits"], np.array([[4, 4], [4, 0]]) / 3)
    sampled = token_batch(next(bptt_segments([[[3, 4]]], 1, 3, (1, 1))), sampled=True)
    assert sampled[0]["targets"].tolist() == [[3, 4, 1]] and sampled[1]["logits"].tolist() == [[0, 0, 0]]
