"""Words, character ids and word pieces."""

import itertools

import numpy as np
import pytest

from keras_ctxrep.text.tokens import SPECIAL_PIECES, Characters, WordPiece, count_words, read_vocab, words

VOCAB = [*SPECIAL_PIECES, "un", "##able", "##a", "to", "jose", "José", "to", "日", "本", "!", "[", "]", "mask"]
VOCAB = list(dict.fromkeys(VOCAB))
ONES = [1] * 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n\u3000", []),
        ("Don't  stop!", ["Don", "'", "t", "stop", "!"]),
        ("José said: “naïve”", ["José", "said", ":", "“", "naïve", "”"]),
        ("e\u0301tude", ["e\u0301tude"]),  # a combining accent stays as it is
        ("日本語text", ["日", "本", "語", "text"]),
        ("a\tb\u00a0c\u3000d", ["a", "b", "c", "d"]),
        ("$5^2`~", ["$", "5", "^", "2", "`", "~"]),
        ("<S>", ["<", "S", ">"]),
        ("\u200bze\u200bro\u00ad\x00\ufffd\ue000", ["zero"]),  # format, control, private-use characters
        ("👍🏽 ok", ["👍🏽", "ok"]),
        ("ﬁne İstanbul ß", ["ﬁne", "İstanbul", "ß"]),  # nothing is lower-cased or composed
    ],
)
def test_words(text, expected):
    assert [word.text for word in words(text)] == expected


@pytest.mark.parametrize(
    "text",
    [
        "Two  spaces, José! 日本 👍🏽 end",
        "\ufeffstart e\u0301a \u00a0x",
        "😀😀 emoji😀inside",
        "naïve—dash…dots",
    ],
)
def test_spans_of_words_point_into_the_original_text(text):
    removed = dict.fromkeys([0xFEFF])
    found = words(text)
    assert [text[word.start : word.end].translate(removed) for word in found] == [word.text for word in found]
    assert all(one.end <= two.start for one, two in itertools.pairwise(found))


def test_spans_with_removed_characters():
    text = "\u200bab\u200b c\u200bd 👨\u200d👩"
    assert [tuple(word) for word in words(text)] == [("ab", 1, 3), ("cd", 5, 8), ("👨👩", 9, 12)]


def test_character_ids_as_published():
    ids = Characters()(["cat", "é", "<S>", "</S>", ""])
    assert ids.shape == (5, 50) and ids.dtype == np.int32
    assert ids[0].tolist() == [259, ord("c") + 1, ord("a") + 1, ord("t") + 1, 260] + [261] * 45
    assert ids[1].tolist() == [259, 0xC3 + 1, 0xA9 + 1, 260] + [261] * 46
    assert ids[2].tolist() == [259, 257, 260] + [261] * 47
    assert ids[3].tolist() == [259, 258, 260] + [261] * 47
    assert ids[4].tolist() == [259, 260] + [261] * 48


def test_character_ids_of_every_byte():
    ids = Characters()(["\x00\x7f", "\U0010ffff"])
    assert ids[0, :4].tolist() == [259, 1, 128, 260]
    assert ids[1, :6].tolist() == [259, *(byte + 1 for byte in b"\xf4\x8f\xbf\xbf"), 260]
    assert ids.min() > 0


def test_a_long_word_keeps_48_bytes_and_may_lose_half_a_character():
    long, cut, exact = Characters()(["x" * 1000, "a" * 47 + "é", "a" * 48])
    assert long.tolist() == [259] + [ord("x") + 1] * 48 + [260]
    assert cut.tolist() == [259] + [ord("a") + 1] * 47 + [0xC3 + 1, 260]
    assert exact.tolist() == [259] + [ord("a") + 1] * 48 + [260]


def test_half_a_surrogate_pair_is_left_out():
    assert Characters(6)(["a\ud83d"]).tolist() == [[259, ord("a") + 1, 260, 261, 261, 261]]


def test_rows_are_the_same_when_seen_again():
    characters = Characters(8)
    characters._rows.update((str(number), b"") for number in range(100_001))  # full: the next call starts afresh
    first = characters(["one", "two", "one"])
    assert np.array_equal(first, characters(["one", "two", "one"])) and len(characters._rows) == 2
    assert np.array_equal(first[0], first[2]) and characters([]).shape == (0, 8)


def test_words_without_room_for_a_character():
    assert Characters(3)(["abc"]).tolist() == [[259, ord("a") + 1, 260]]
    with pytest.raises(ValueError, match="width=2"):
        Characters(2)


@pytest.mark.parametrize(
    ("lowercase", "text", "expected"),
    [
        (True, "Unable TO José", ["un", "##able", "to", "jose"]),
        (False, "José to", ["José", "to"]),
        (False, "jose Un", ["jose", "[UNK]"]),
        (True, "日本!", ["日", "本", "!"]),
        (True, "una", ["un", "##a"]),
        (True, "unknown", ["[UNK]"]),
        (True, "x" * 101, ["[UNK]"]),
        (True, "\u200b \x00", []),
    ],
)
def test_word_pieces(lowercase, text, expected):
    pieces = WordPiece(VOCAB, lowercase)
    ids = [piece.id for piece in pieces.encode(text)]
    assert [VOCAB[id] for id in ids] == expected
    assert pieces.ids_batch([text, text]) == [ids, ids]


def test_accents_are_stripped_by_choice():
    assert [VOCAB[piece.id] for piece in WordPiece(VOCAB, True, strip_accents=False).encode("José")] == ["[UNK]"]
    assert [VOCAB[piece.id] for piece in WordPiece(VOCAB, False, strip_accents=True).encode("José")] == ["[UNK]"]
    assert [VOCAB[piece.id] for piece in WordPiece(VOCAB, False, strip_accents=False).encode("José")] == ["José"]


def test_spans_and_word_numbers_of_pieces():
    text = "  Unable José\u0301 日本"
    found = WordPiece(VOCAB).encode(text)
    assert [(text[piece.start : piece.end], piece.word) for piece in found] == [
        ("Un", 0),
        ("able", 0),
        ("José", 1),  # an accent that is stripped at the end of a word is left out
        ("日", 2),
        ("本", 3),
    ]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("special", SPECIAL_PIECES)
def test_special_pieces_are_not_found_in_text(special, lowercase):
    pieces = WordPiece(VOCAB, lowercase)
    ids = [piece.id for piece in pieces.encode(f"to {special} to{special}")]
    markers = {pieces.pad, pieces.cls, pieces.sep, pieces.mask}
    assert not markers & set(ids)
    assert [VOCAB[id] for id in ids][:2] == ["to", "["]


def test_pieces_of_words_that_are_split_already():
    pieces = WordPiece(VOCAB)
    assert pieces.ids_of_words(["Unable", "", "to!"]) == [
        [VOCAB.index("un"), VOCAB.index("##able")],
        [],
        [VOCAB.index("to"), VOCAB.index("!")],
    ]


def test_vocabulary_errors_name_piece_and_line():
    with pytest.raises(ValueError, match=r"'un' stands on lines 6 and 8"):
        WordPiece([*SPECIAL_PIECES, "un", "to", "un"])
    with pytest.raises(ValueError, match=r"vocabulary: \[CLS\], \[MASK\] missing"):
        WordPiece(["[PAD]", "[UNK]", "[SEP]", "a"])


def test_special_pieces_may_stand_anywhere():
    pieces = WordPiece(["a", *reversed(SPECIAL_PIECES), "b"])
    assert (pieces.mask, pieces.sep, pieces.cls, pieces.unk, pieces.pad) == (1, 2, 3, 4, 5)
    assert [piece.id for piece in pieces.encode("b a c")] == [6, 0, 4]


def test_train():
    texts = ["the cat sat on the mat", "The cats sit on Mats", "a café"] * 5
    pieces = WordPiece.train(texts, size=60)
    assert len(pieces.vocab) <= 60 and tuple(pieces.vocab[:5]) == SPECIAL_PIECES
    assert pieces.unk not in pieces.ids_batch(texts)[0]
    assert "cafe" in "".join(pieces.vocab[id].removeprefix("##") for id in pieces.ids_batch(["Café"])[0])
    cased = WordPiece.train(texts, size=60, lowercase=False)
    assert not cased.lowercase and any("T" in piece for piece in cased.vocab[5:])
    with pytest.raises(ValueError, match="vocabulary size 5"):
        WordPiece.train(texts, size=5)
    with pytest.raises(ValueError, match="corpus is empty"):
        WordPiece.train(["", " "], size=60)


def test_train_learns_the_same_vocabulary_again(rng):
    texts = [" ".join("".join(rng.choice(list("abcdefgh"), 5)) for _ in range(10)) for _ in range(100)]
    assert WordPiece.train(texts, size=200).vocab == WordPiece.train(texts, size=200).vocab


def test_read_vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("[PAD]\r\né\n\u2028\n last ".encode())
    assert read_vocab(path) == ["[PAD]", "é", "\u2028", " last "]  # line ends are \n and \r\n only
    path.write_bytes(b"one\ntwo\n\xff\n")
    with pytest.raises(ValueError, match=r"vocab\.txt:3: not UTF-8"):
        read_vocab(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"vocab\.txt: the vocabulary is empty"):
        read_vocab(path)


def test_count_words_breaks_ties_in_alphabetical_order():
    assert list(count_words([["b", "a"], ["c", "b", "a"], []])) == [("a", 2), ("b", 2), ("c", 1)]
