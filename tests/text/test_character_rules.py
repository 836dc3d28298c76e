"""Long texts that are cut before they are tokenized: what is read of them is what all of them would give."""

import random
import tracemalloc

import numpy as np
import pytest

from keras_ctxrep.text import tokens
from keras_ctxrep.text.character_rules import APART, INSIDE, Casing, rules_of, shortened
from keras_ctxrep.text.features import (
    CharacterAndWordFeatures,
    CharacterFeatures,
    Row,
    StaticFeatures,
    WordFeatures,
    WordPieceFeatures,
    truncate_pair,
)
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
from keras_ctxrep.text.units import UNITS, TokenFeatures
from tests import long_texts

PIECES = [
    *SPECIAL_PIECES,
    *"abcdexyé中-.'",
    *(f"##{char}" for char in "abcdexyé\u1b44\u302e"),
    "\u1b44",
    "the",
    "cat",
    "word",
]
WORDS = ["<S>", "</S>", "<UNK>", "a", "the", "cat", "word", "-", "a" * 1200, "中", " "]
WHOLE = 10**9  # tokens, more than any text has: nothing is cut
BERTS = {
    "uncased": {},
    "cased": {"lowercase": False},
    "accents": {"strip_accents": False},
    "stripped": {"lowercase": False, "strip_accents": True, "split_cjk": False},
}
FEATURES = {
    **{
        f"bert {name}{' words' * starts}": lambda most, casing=casing, starts=starts: WordPieceFeatures(
            WordPiece(PIECES, **casing), most, starts
        )
        for name, casing in BERTS.items()
        for starts in (False, True)
    },
    "elmo": lambda most: CharacterFeatures(most, 50),
    "words": lambda most: WordFeatures(WORDS, most),
    "static": lambda most: StaticFeatures(WORDS[2:], most, lowercase=True),
    "n-grams": lambda most: StaticFeatures(WORDS[2:], most, True, (3, 6, 50)),
    "characters and words": lambda most: CharacterAndWordFeatures(
        CharacterFeatures(most, 9), StaticFeatures(WORDS[2:], most)
    ),
    **{
        f"lm {units}{' words' * starts}": lambda most, units=units, starts=starts: TokenFeatures(
            units, PIECES if units == "pieces" else WORDS, most, starts
        )
        for units in UNITS
        for starts in (False, True)
    },
}
QUICK = ("bert uncased", "bert cased", "elmo", "n-grams", "lm words", "lm pieces words")


def cut(row, most, after):
    """What a row of a whole text is cut to, of which `after` tokens are markers at its end."""
    kept = most - after
    if len(row) <= most:
        return row.tokens, row.offsets, row.marks, kept
    ends = [-1] * after
    tokens, offsets = (
        None if values is None else values[:kept] + [values[end] for end in ends]
        for values in (row.tokens, row.offsets)
    )
    marks = row.marks and [(begin, end) if begin < end <= kept else (0, 0) for begin, end in row.marks]
    return tokens, offsets, marks, kept


def assert_rows(name, texts, most, marks=None):
    """The rows of texts that are cut are those of the whole texts, cut."""
    features = FEATURES[name](most)
    for offsets in (False, True):
        whole = FEATURES[name](WHOLE).encode(texts, offsets=offsets, marks=marks)
        rows = features.encode(texts, offsets=offsets, marks=marks)
        for number, (expected, row) in enumerate(zip(whole, rows, strict=True)):
            tokens, places, spans, kept = cut(expected, most, features.markers[1])
            assert row.truncated == (len(expected) > most), number
            if isinstance(tokens[0] if tokens else 0, str):  # of a very long word only what is read
                inputs, actual = (features.collate([Row(each)]) for each in (tokens, row.tokens))
                assert all(np.array_equal(inputs[key], actual[key]) for key in inputs), number
            else:
                assert row.tokens == tokens, number
            assert row.offsets is None or row.offsets == places, number
            assert row.marks == (spans or None if marks is None else spans), number
            wanted, found = (
                [
                    (start, each.words and each.words[word])
                    for word, start in enumerate(each.starts or ())
                    if start is not None and start < kept
                ]
                for each in (expected, row)
            )
            assert found == wanted, number


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FEATURES]
)
@pytest.mark.parametrize("most", [5, 33])
def test_the_beginning_of_odd_texts(name, most):
    texts = long_texts.odd(30, seed=most)
    draw = random.Random(0)
    begins = [draw.randrange(len(text)) for text in texts]
    marks = [[(begin, begin + draw.choice((1, 50, 5000))), (0, 1)] for begin in begins]
    assert_rows(name, texts, most)
    assert_rows(name, texts, most, marks)


@pytest.mark.release
@pytest.mark.parametrize("name", FEATURES)
def test_the_beginning_of_hundreds_of_odd_texts(name):
    assert_rows(name, long_texts.odd(150, seed=1), 8)


@pytest.mark.parametrize("most", [6, 7, 9, 64, 65])
def test_pairs_of_long_texts(most):
    """The longer one has a piece more where the room is odd, however long both are."""
    draw, wordpiece = random.Random(0), WordPiece(PIECES)
    texts = ["the cat " * count for count in (1, 2, 600, 3000, 3001, 9000)] + long_texts.odd(12, seed=0)
    pairs = [(text, other) for text in texts for other in draw.sample(texts, 4)]
    rows = WordPieceFeatures(wordpiece, most).encode(*zip(*pairs, strict=True))
    for row, pair in zip(rows, pairs, strict=True):
        ids = wordpiece.ids_batch(pair)
        first, second = truncate_pair(*ids, most - 3)
        assert row.tokens == [wordpiece.cls, *first, wordpiece.sep, *second, wordpiece.sep]
        assert row.truncated == (sum(map(len, ids)) > most - 3)


@pytest.mark.parametrize("given", [["the cat"] * 5000, ["", "a" * 200] * 900, ["\u200b"] * 9000 + ["a"]])
@pytest.mark.parametrize("name", ["bert uncased words", "elmo"])
def test_long_texts_that_are_split_already(name, given):
    marks = [[(0, 1), (1, 9), (len(given) - 1, len(given))]]
    (row,), (whole,) = (FEATURES[name](most).encode([given], marks=marks) for most in (9, WHOLE))
    tokens, _, spans, kept = cut(whole, 9, FEATURES[name](9).markers[1])
    assert (row.tokens, row.marks, row.truncated) == (tokens, spans, len(whole) > 9)
    assert row.starts == [start if start is not None and start < kept else None for start in whole.starts]


MEGABYTES = {
    "words": "the cat " * 1_250_000,
    "a word": "a" * 10_000_000,
    "letters": "é" * 10_000_000,
    "spaces": " \t" * 5_000_000 + "cat",
    "control characters": "\u200b\0" * 5_000_000 + "cat",
    "ideographs": "中文" * 5_000_000,
}


@pytest.mark.parametrize("kind", MEGABYTES)
@pytest.mark.parametrize("name", ["bert uncased", "bert cased words", "elmo", "static", "lm words", "lm characters"])
def test_memory_of_ten_million_characters(name, kind):
    """All of its words or code points would be gigabytes; a block of it and some copies are 100 MB."""
    features, text = FEATURES[name](32), MEGABYTES[kind]
    tracemalloc.start()
    try:
        (row,) = features.encode([text], offsets="words" in name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(row) <= 32 and peak < 150e6
    assert row.truncated == (kind in ("words", "ideographs") or name.startswith("lm char"))


def test_what_reaches_the_tokenizer(monkeypatch):
    """Of a text of 10 MB a few thousand characters."""
    seen = []
    features = WordPieceFeatures(WordPiece(PIECES), 32)
    encoded = tokens.encoded
    monkeypatch.setattr(tokens, "encoded", lambda texts, run: seen.extend(texts) or encoded(texts, run))
    for text in MEGABYTES.values():
        features.encode([text])
    assert 0 < sum(map(len, seen)) < 100_000


def test_no_more_letters_than_bytes():
    """So that a text has no more pieces than bytes, by which pairs are cut in the graph."""
    chars = [chr(code) for code in [*range(0xD800), *range(0xE000, 0x30000)]]
    for casing in (Casing(True, True), Casing(True, False)):
        becomes = rules_of(chars, casing).becomes
        assert all(len(new) <= len(char.encode()) for char, new in zip(chars, becomes, strict=True))


def test_what_is_left_of_a_text():
    text, places = shortened("\0 \t é" + "\u200b" * 9000 + "a" * 9000 + " , b c", 3, 101, Casing(), spans=True)
    assert text == "é" + "a" * 100 + "a , b c" and places[[0, -1]].tolist() == [4, 18_010]
    assert shortened("a\nb c", 2, 101, Casing(), lines=True)[0] == "a\nb"


@pytest.mark.parametrize("casing", [Casing(), Casing(True, True), Casing(False, False, False)])
def test_characters_together_have_the_rules_of_each(casing):
    """Blocks of characters of one kind, of several, and of marks, which stay as they are but change places."""
    for begin in (0, 0x300, 0x3100, 0x4E00, 0xAC00, 0xE000, 0xFB00, 0x16F00, 0x1D100, 0x20000):
        chars = [chr(code) for code in range(begin, begin + 300)]
        each = [rules_of([char], casing) for char in chars]
        assert tuple(rules_of(chars, casing)) == tuple([rules[part][0] for rules in each] for part in range(3))
    cjk, mark = rules_of(["\u4e00"] * 2, casing), rules_of(["\u302e"] * 2, Casing(True, True))
    assert cjk.kinds == [APART if casing.split_cjk else INSIDE] * 2 and mark.ranks == [224] * 2
