"""Words, character ids and word pieces."""

import itertools
import random
import unicodedata
import weakref
from collections import defaultdict

import numpy as np
import pytest

from keras_ctxrep.text import tokens
from keras_ctxrep.text.tokens import SPECIAL_PIECES, Characters, WordPiece, count_words, read_vocab, split_words, words

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
    split = words(text)
    assert [text[word.start : word.end].translate(removed) for word in split] == [word.text for word in split]
    assert all(first.end <= second.start for first, second in itertools.pairwise(split))


def test_words_of_ascii_are_the_same_by_either_way(rng):
    draw = "".join(map(chr, rng.integers(0, 128, 30_000))) + "a_b don't x-1 [CLS] <S>" * 10
    for begin in range(0, len(draw), 7):
        text = draw[begin : begin + 7]
        assert split_words(text) == [word.text for word in words(text)], text


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
    assert words("a\ud83db \udc00 c") == [("ab", 0, 3), ("c", 6, 7)]
    pieces = WordPiece(VOCAB)
    assert [tuple(piece) for piece in pieces.encode("un\ud83dable \udc00 to")] == [
        (VOCAB.index("un"), 0, 2, 0),
        (VOCAB.index("##able"), 3, 7, 0),
        (VOCAB.index("to"), 10, 12, 1),
    ]
    assert pieces.ids_batch(["to", "\ud83d", "to\ud83d"]) == [[VOCAB.index("to")], [], [VOCAB.index("to")]]
    assert WordPiece.train(["a\ud83db c"], 20).vocab == WordPiece.train(["ab c"], 20).vocab


@pytest.mark.parametrize("text", [None, b"to", 3])
def test_inputs_that_are_not_text(text):
    for encode in (WordPiece(VOCAB).encode_batch, WordPiece(VOCAB).ids_batch):
        with pytest.raises(TypeError, match=f"text 1 is {text!r}: give a string"):
            encode(["to", text])


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


@pytest.mark.parametrize("rules", [(True, None, True), (False, False, True), (True, False, False), (False, True, True)])
@pytest.mark.parametrize("cached", [0, 20, 100_000])
def test_ids_of_chunks_are_those_of_the_text(monkeypatch, rng, rules, cached):
    """`ids_batch` encodes the chunks between spaces, `encode_batch` the text; marks and signs stand anywhere."""
    monkeypatch.setattr(WordPiece, "CACHED", cached)
    letters = [
        *"aeuno  .'\t\n\x00",
        "\u0301",
        "\u0308",
        "\u00a0",
        "\u200b",
        "\u3000",
        "é",
        "İ",
        "Σ",
        "日",
        "각",
        "\ufffd",
    ]
    vocab = dict.fromkeys([*VOCAB, *"aeuno.'日é", "##a", "##e", "##n", "##o", "##\u0301"])
    pieces = WordPiece([*vocab], *rules)
    texts = ["".join(rng.choice(letters, size)) for size in rng.integers(0, 60, 500)]
    for part in (texts[:200], texts[100:], texts):
        assert pieces.ids_batch(part) == [[piece.id for piece in row] for row in pieces.encode_batch(part)]
    assert bool(pieces._ids) == bool(cached) and all(len(chunk) <= 32 for chunk in pieces._ids)


def test_accents_are_stripped_by_choice():
    assert [VOCAB[piece.id] for piece in WordPiece(VOCAB, True, strip_accents=False).encode("José")] == ["[UNK]"]
    assert [VOCAB[piece.id] for piece in WordPiece(VOCAB, False, strip_accents=True).encode("José")] == ["[UNK]"]
    assert [VOCAB[piece.id] for piece in WordPiece(VOCAB, False, strip_accents=False).encode("José")] == ["José"]


@pytest.mark.parametrize("split_cjk", [True, False])
def test_chinese_characters_are_words_by_choice(split_cjk):
    encoded = WordPiece([*VOCAB, "##本"], split_cjk=split_cjk).encode("日本to")
    assert [(piece.id, piece.word) for piece in encoded] == (
        [(VOCAB.index("日"), 0), (VOCAB.index("本"), 1), (VOCAB.index("to"), 2)] if split_cjk else [(1, 0)]
    )
    assert len(WordPiece([*VOCAB, "##本"], split_cjk=split_cjk).encode("日本")) == 2


def published(
    text: str, vocab: set[str], lowercase: bool, strip_accents: bool, split_cjk: bool, longest: int = 100
) -> list[str]:
    """The rules of https://github.com/google-research/bert, tokenization.py, restated without `tokenizers`.

    Its two tokenizers in one, with `lowercase` and `strip_accents` apart, as in Hugging Face's; there `longest` is 200.
    """
    cleaned = []
    for char in text:
        category = unicodedata.category(char)
        if char in " \t\n\r" or category == "Zs":
            cleaned.append(" ")
        elif split_cjk and any(first <= ord(char) <= last for first, last in CJK):
            cleaned.append(f" {char} ")
        elif char not in "\0\ufffd" and category not in ("Cc", "Cf"):
            cleaned.append(char)
    pieces = []
    for chunk in "".join(cleaned).split():
        if lowercase:
            chunk = chunk.lower()
        if strip_accents:
            chunk = "".join(char for char in unicodedata.normalize("NFD", chunk) if unicodedata.category(char) != "Mn")
        for word in "".join(f" {char} " if is_punctuation(char) else char for char in chunk).split():
            pieces += greedy(word, vocab) if len(word) <= longest else ["[UNK]"]
    return pieces


CJK = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)]
CJK += [(0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


def is_punctuation(char: str) -> bool:
    ascii_sign = "!" <= char <= "/" or ":" <= char <= "@" or "[" <= char <= "`" or "{" <= char <= "~"
    return ascii_sign or unicodedata.category(char).startswith("P")


def greedy(word: str, vocab: set[str]) -> list[str]:
    """The longest piece first; one [UNK] if there is none at some place."""
    pieces, begin = [], 0
    while begin < len(word):
        ends = range(len(word), begin, -1)
        piece = next((p for end in ends if (p := "##" * (begin > 0) + word[begin:end]) in vocab), None)
        if piece is None:
            return ["[UNK]"]
        pieces.append(piece)
        begin += len(piece) - 2 * (begin > 0)
    return pieces


def odd_texts(count: int) -> list[str]:
    """Random strings, of characters that have been what they are since Unicode 3.2, and of some newer emoji."""
    by_category = defaultdict(list)
    for code in range(0x30000):
        category = unicodedata.category(chr(code))
        if category == unicodedata.ucd_3_2_0.category(chr(code)) and category not in ("Cn", "Co", "Cs"):
            by_category[category].append(chr(code))
    by_category["Lu"].remove("Σ")
    pick = random.Random(0)
    sources = [
        *by_category.values(),
        *["ab", "AÉ", ".,'[]-", "日本", "\u0301\u200d", "👩🏽🇫", " ", " \t\n\u00a0\u2028"] * 4,
    ]
    texts = ["".join(pick.choice(pick.choice(sources)) for _ in range(pick.randrange(60))) for _ in range(count)]
    long = [letter * n for letter in "aé日" for n in (99, 100, 101, 102, 200)]
    return [*texts, *long, "e\u0301" * 100, "[CLS] a[SEP] [MASK]##b [unused1]", "a\0b"]


@pytest.mark.parametrize("split_cjk", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("lowercase", [True, False])
def test_pieces_as_published(lowercase, strip_accents, split_cjk):
    rules, texts, pick = (lowercase, strip_accents, split_cjk), odd_texts(5000), random.Random(1)
    letters = sorted(
        {
            letter
            for text in texts
            for form in (text, text.lower())
            for letter in unicodedata.normalize("NFD", form) + form
        }
    )
    letters = [letter for letter in letters if pick.random() < 0.97]  # and so some words are [UNK]
    pairs = {"".join(pick.sample(letters, 2)) for _ in range(2000)} | {"ab", "aa", "aaa", "日本"}
    vocab = [*SPECIAL_PIECES, *dict.fromkeys([*letters, *pairs, *(f"##{piece}" for piece in [*letters, *pairs])])]
    vocab = list(dict.fromkeys(vocab))
    known = set(vocab)
    assert [[vocab[id] for id in ids] for ids in WordPiece(vocab, *rules).ids_batch(texts)] == [
        published(text, known, *rules) for text in texts
    ]


@pytest.mark.parametrize(
    ("text", "google", "ours"),
    [
        ("ΟΔΟΣ", ["οδος"], ["οδοσ"]),
        ("a\ue000", ["a\ue000"], ["a"]),
        ("\U0002b820\U0002b821", ["\U0002b820", "\U0002b821"], ["\U0002b820\U0002b821"]),
        ("x" * 101, ["x" * 101], ["[UNK]"]),
        ("x" * 201, ["[UNK]"], ["[UNK]"]),
        ("a\u166d", ["a\u166d"], ["a", "\u166d"]),  # a symbol since Unicode 12, punctuation before
    ],
)
def test_where_pieces_are_not_those_of_google(text, google, ours):
    vocab = list(dict.fromkeys([*SPECIAL_PIECES, *google, *ours]))
    assert published(text, set(vocab), True, True, True, longest=200) == google
    assert [vocab[piece.id] for piece in WordPiece(vocab).encode(text)] == ours


def test_spans_and_word_numbers_of_pieces():
    text = "  Unable José\u0301 日本"
    encoded = WordPiece(VOCAB).encode(text)
    assert [(text[piece.start : piece.end], piece.word) for piece in encoded] == [
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
    assert pieces.ids_batch(["Unable", "", "to!"]) == [
        [VOCAB.index("un"), VOCAB.index("##able")],
        [],
        [VOCAB.index("to"), VOCAB.index("!")],
    ]


def test_vocabulary_errors_name_piece_and_line():
    with pytest.raises(ValueError, match=r"'un' is on lines 6 and 8"):
        WordPiece([*SPECIAL_PIECES, "un", "to", "un"])
    with pytest.raises(ValueError, match=r"vocabulary: \[CLS\], \[MASK\] missing"):
        WordPiece(["[PAD]", "[UNK]", "[SEP]", "a"])


def test_special_pieces_may_have_any_id():
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


def test_train_reads_a_stream_once_in_any_order():
    texts = ["the cat sat", "on the  mat\tthe end", "日本 the\u3000cat", "", "cat\u200bs", "y" * 101] * 10
    stream = iter(texts)
    pieces = WordPiece.train(stream, 80)
    assert next(stream, None) is None
    assert pieces.vocab == WordPiece.train(reversed(texts), 80).vocab
    assert "the" in pieces.vocab and "y" not in pieces.vocab  # a word of over 100 characters can have no pieces


def test_train_keeps_no_texts():
    class Text(str):
        """A string that can be watched."""

    alive: weakref.WeakSet[Text] = weakref.WeakSet()

    def texts():
        for number in range(1000):
            text = Text(f"some words and {number}")
            alive.add(text)
            yield text
            assert len(alive) <= 2

    assert "words" in WordPiece.train(texts(), 200).vocab


@pytest.mark.parametrize("strip_accents", [True, False, None])
@pytest.mark.parametrize("lowercase", [True, False])
def test_train_with_the_rules_of_the_vocabulary(lowercase, strip_accents):
    pieces = WordPiece.train(["École ÉCOLE 日本語"] * 9, 100, lowercase, strip_accents, split_cjk=False)
    stripped = lowercase if strip_accents is None else strip_accents
    assert (pieces.lowercase, pieces.strip_accents, pieces.split_cjk) == (lowercase, stripped, False)
    wanted = "École" if not lowercase else "école"
    assert ("E" + wanted[1:] if stripped and not lowercase else "ecole" if stripped else wanted) in pieces.vocab
    assert "日本語" in pieces.vocab
    assert "日本語" not in WordPiece.train(["日本語"] * 9, 100).vocab


def test_train_with_a_limited_alphabet():
    texts = ["aaaa bbb cc d"] * 5
    pieces = WordPiece.train(texts, 60, alphabet=2)
    assert {piece for piece in pieces.vocab if len(piece.removeprefix("##")) == 1} == {"a", "b", "##a", "##b"}
    assert pieces.ids_batch(["cc d"]) == [[pieces.unk] * 2]
    assert {"d", "c", "##c"} <= set(WordPiece.train(texts, 60, alphabet=4).vocab)
    with pytest.raises(ValueError, match=r"vocabulary size 8: 5 special pieces and 4 letters.* are 12; raise the size"):
        WordPiece.train(texts, 8, alphabet=4)


def test_train_with_a_given_alphabet():
    pieces = WordPiece.train(["aaaa bbb cc d"] * 5, 60, alphabet="dbz")
    single = {piece for piece in pieces.vocab if len(piece.removeprefix("##")) == 1}
    assert single == {"b", "d", "z", "##b", "##d", "##z"}  # each word of these letters has pieces
    assert pieces.unk not in pieces.ids_batch(["zdb bdz"])[0] and pieces.ids_batch(["a"]) == [[pieces.unk]]


def test_train_with_special_pieces_at_given_ids():
    special = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[ENT]"]
    pieces = WordPiece.train(["[ENT] ent ent [unused0]"] * 5, 60, special=special)
    assert pieces.vocab[:8] == special and (pieces.pad, pieces.unk, pieces.mask) == (0, 3, 6)
    assert not {0, 1, 2, 4, 5, 6, 7} & set(pieces.ids_batch(["[ENT] [unused0][MASK]"])[0])
    assert "ent" in pieces.vocab
    with pytest.raises(ValueError, match=r"\[MASK\] missing"):
        WordPiece.train(["a"], 60, special=special[:6])
    with pytest.raises(ValueError, match=r"'\[ENT\]' is on lines 8 and 9"):
        WordPiece.train(["a"], 60, special=[*special, "[ENT]"])


@pytest.mark.parametrize("at_once", [0, 30, 10_000])
def test_train_with_a_minimum_count(monkeypatch, at_once):
    monkeypatch.setattr(tokens, "_AT_ONCE", at_once)
    texts = ["rare"] * 9 + ["often"] * 10
    assert {"often", "rare"} <= set(WordPiece.train(texts, 60).vocab)
    vocab = WordPiece.train(texts, 60, min_count=10).vocab
    assert "often" in vocab and not {"rare", "ra", "##re"} & set(vocab) and "r" in vocab


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
