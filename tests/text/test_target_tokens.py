"""What a decoder writes: vocabularies learned from targets, and texts as ids and back."""

from collections import Counter

import pytest

from keras_ctxrep.text.target_tokens import MARKERS, TargetTokens, learn

TEXTS = ["the lower river", "newer and lower", "a new low", "ünïcode – 日本 words"]


def counts():
    words = Counter(word for text in TEXTS for word in text.split())
    return words | Counter({" ": 4})


@pytest.mark.parametrize("units", ["characters", "words", "subwords"])
def test_texts_come_back(units):
    tokens = TargetTokens(units, learn(units, counts(), 200))
    for text in TEXTS:
        ids = tokens.ids(text)
        assert TargetTokens.UNKNOWN not in ids and tokens.text(ids) == text
    assert tokens.text([]) == ""


def test_sizes():
    assert len(learn("words", counts(), 6)) == 6
    small, large = (learn("subwords", counts(), size) for size in (32, 60))
    characters = {char for word in counts() for char in word} - {" "}
    assert characters <= {*small} and len(small) < len(large) <= 60 and len(set(large)) == len(large)
    assert small[:3] == large[:3] == MARKERS


def test_unknown_parts_and_white_space():
    tokens = TargetTokens("words", learn("words", counts(), 200))
    assert tokens.ids("the  new\tzebra") == [tokens.vocab.index("the"), tokens.vocab.index("new"), 2]
    assert "<S>" not in learn("words", {"<S>": 9, "a": 1}, 10)[1:]
    characters = TargetTokens("characters", learn("characters", {"ab": 1, " ": 1}, 10))
    assert characters.text(characters.ids(" a b ")) == " a b "


def test_the_same_vocabulary_whatever_the_order_of_the_words():
    mixed = dict(sorted(counts().items(), reverse=True))
    for units in ("characters", "words", "subwords"):
        assert learn(units, counts(), 50) == learn(units, mixed, 50)


def test_errors():
    with pytest.raises(ValueError, match="units='bytes': one of characters, words, subwords"):
        TargetTokens("bytes", MARKERS)
    with pytest.raises(ValueError, match="a target vocabulary begins with <S>"):
        TargetTokens("words", ["a", "b", "c"])
