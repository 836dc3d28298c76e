"""Pairs of texts whose encoder reads each by itself: rows, batches, windows."""

import numpy as np
import pytest

from keras_ctxrep.text.features import CharacterFeatures, StaticFeatures, WordPieceFeatures
from keras_ctxrep.text.pairs import PairFeatures
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
from keras_ctxrep.text.units import TokenFeatures
from tests import tiny

WORDS = ["<UNK>", "the", "cat", "sat", "a"]
ONE = {
    "words": StaticFeatures(WORDS, max_length=4),
    "n-grams": StaticFeatures(WORDS, max_length=4, ngrams=(3, 4, 20)),
    "characters": CharacterFeatures(max_length=4, max_characters=6),
    "pieces": WordPieceFeatures(WordPiece([*SPECIAL_PIECES, *WORDS[1:], "##s"]), max_length=5),
    "lm pieces": TokenFeatures("pieces", [*SPECIAL_PIECES, *WORDS[1:], "##s"], max_length=5),
    "lm words": TokenFeatures("words", ["<S>", "</S>", *WORDS], max_length=5),
    "lm characters": TokenFeatures("characters", ["<S>", "</S>", "<UNK>", *"thecaso "], max_length=9),
}
every = pytest.mark.parametrize("one", ONE.values(), ids=ONE)


@every
def test_each_text_is_read_as_it_is_alone(one):
    texts, pairs = ["the cats sat on a mat", "the"], ["a", "cats"]
    both = PairFeatures(one)
    rows = both.encode(texts, pairs)
    assert [row.truncated for row in rows] == [True, False]
    alone = zip(one.encode(texts), one.encode(pairs), strict=True)
    assert [len(row) for row in rows] == [max(map(len, parts)) for parts in alone]
    batch = both(texts, pairs)
    assert tuple(batch) == both.keys
    for prefix, alone in (("", one(texts)), ("pair_", one(pairs))):
        for name, ids in alone.items():
            np.testing.assert_array_equal(batch[prefix + name], ids)
    assert {values.shape[1] for values in both.collate(rows, 12).values()} == {12}


@every
def test_windows_together_are_the_context(one):
    """Every token of the context, in order, with the place it has in the text and that of its word."""
    context = "the cats sat\n on a  cat "
    both = PairFeatures(one, windows=True)
    (rows,) = both.windows(["a cat"], [context], stride=2)
    ((whole,),) = PairFeatures(type(one)(**options_of(one)), windows=True).windows(["a cat"], [context], stride=2)
    assert len(rows) > 1
    seen, (before, after) = [], one.markers
    for row in rows:
        tokens = row.pair.tokens[before : len(row.pair) - after]
        assert row.tokens == one.encode(["a cat"])[0].tokens[: len(row.tokens)]
        assert row.context == range(1 + before, 1 + before + len(tokens)) and len(tokens) <= one.max_length
        spans = [row.offsets[at] for at in row.context], [row.words[at] for at in row.context]
        seen.append([*zip(tokens, *spans, strict=True)])
    tokens = [*seen[0]]
    for part in seen[1:]:
        overlap = next(size for size in range(len(part), -1, -1) if tokens[len(tokens) - size :] == part[:size])
        tokens += part[overlap:]
    assert tokens == [
        (token, whole.offsets[at], whole.words[at])
        for token, at in zip(whole.pair.tokens[before:], whole.context, strict=False)
    ]
    words = {context[slice(*word)] for _, _, word in tokens}
    assert words == {"the", "cats", "sat", "on", "a", "cat"}
    for _, (start, end), (begin, stop) in tokens:
        assert (begin <= start and end <= stop) or context[start:end].isspace() or start == end == 0


def options_of(one):
    """The same features, of long texts."""
    if isinstance(one, StaticFeatures):
        return {"vocab": WORDS, "max_length": 99, "ngrams": one.ngrams}
    if isinstance(one, CharacterFeatures):
        return {"max_length": 99, "max_characters": 6}
    if isinstance(one, WordPieceFeatures):
        return {"wordpiece": one.wordpiece, "max_length": 99}
    return {"units": one.units, "vocab": one.vocab, "max_length": 99}


def test_questions_are_cut():
    both = PairFeatures(StaticFeatures(WORDS, max_length=200), windows=True)
    ((row,),) = both.windows(["the " * 65], ["a cat"])
    assert len(row.tokens) == len(row) == 64 and row.truncated
    batch = both.collate([row], 100)
    assert batch["mask"].shape == (1, 64) and batch["pair_mask"].shape == (1, 100)
    assert both.size("word_ids", 16) == 16 and both.size("pair_word_ids", 100) == 100


@pytest.mark.parametrize("pairs", [None, ["a"], ["a", None]])
def test_a_text_without_a_pair(pairs):
    both = PairFeatures(ONE["words"])
    with pytest.raises(ValueError, match=r"2 texts and [01] pairs; give one for each text"):
        both.encode(["a", "the"], pairs)


def test_errors():
    both = PairFeatures(ONE["words"], windows=True)
    with pytest.raises(ValueError, match="stride=0: at least 1"):
        both.windows(["a"], ["a"], 0)
    with pytest.raises(ValueError, match="marked spans are of single texts"):
        both.encode(["a"], ["a"], marks=[[(0, 1)]])


def test_the_bundle_says_so():
    bundle = tiny.bundle("classify", "static", pair=True, stack={"kind": "esim"})
    assert bundle.apart and bundle.features.keys == ("word_ids", "mask", "pair_word_ids", "pair_mask")
    assert not tiny.bundle("classify", "static", stack={"kind": "lstm"}).apart
