"""Tokens of language models: texts to ids and back, and batches of running text."""

import copy

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


@pytest.mark.parametrize(
    ("units", "starts", "kept"),
    [
        ("words", [1, 2, 3, 4, 6, 7], "The day ' s X ."),
        ("pieces", [1, 2, 3, 4, 6, 7], "The day ' s X ."),
        ("characters", [3, 7, 8, 9, 11, 12], "The day ' s X ."),
    ],
)
def test_a_word_is_at_its_last_token(units, starts, kept):
    """Where the marks of lines stand at 0 and before X; in offsets of the whole text."""
    features, text = copy.copy(FEATURES[units]), "The day's\nX."
    features.starts = True
    (row,) = features.encode([text], offsets=True)
    assert row.starts == starts and features.positions(row) == starts
    assert [text[begin:end] for begin, end in row.words] == kept.split(" ")
    ends = [row.offsets[start][1] for start in starts]
    assert ends == [end for _, end in row.words]
    assert row.tokens == features.prompt(text)
    batch = features.collate([row, *features.encode([""])])
    assert batch["starts"].tolist() == [starts, [0] * 6] and {*batch} == {"token_ids", "mask", "starts"}


def test_pieces_of_a_word_that_came_split():
    features = TokenFeatures("pieces", FEATURES["pieces"].vocab, max_length=6, starts=True)
    given = ["Unable", "", "the", "unable", "day"]
    (row,) = features.encode([given], marks=[[(0, 1), (1, 3), (1, 2), (3, 4)]])
    assert row.tokens == [3, 6, 7, 5, 6, 7] and row.starts == [2, None, 3, 5, None] and row.truncated
    assert row.marks == [(1, 3), (3, 4), (0, 0), (4, 6)]
    assert features.collate([row])["starts"].tolist() == [[2, 3, 5]]
    (raw,) = features.encode(["Unable the unable day"], marks=[[(0, 6), (2, 10), (18, 21)]])
    assert raw.marks == [(1, 3), (2, 4), (0, 0)] and raw.starts == [2, 3, 5, None]


def test_characters_of_words_that_came_split_are_those_of_the_line():
    features = TokenFeatures("characters", FEATURES["characters"].vocab, starts=True)
    given, line = (features.encode([text])[0] for text in (["The", "day"], "The day"))
    assert given.tokens == line.tokens and given.starts == line.starts == [3, 7]
    with pytest.raises(ValueError, match="reads one text, not a pair"):
        features.encode(["a"], ["b"])
