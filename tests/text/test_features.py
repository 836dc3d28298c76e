"""Texts to padded batches."""

import ctypes
import itertools

import numpy as np
import pytest

from keras_ctxrep.text.features import (
    CharacterAndWordFeatures,
    CharacterFeatures,
    Row,
    StaticFeatures,
    WordFeatures,
    WordPieceFeatures,
    truncate_pair,
)
from keras_ctxrep.text.tokens import SPECIAL_PIECES, Characters, WordPiece

VOCAB = [*SPECIAL_PIECES, *"abcdefghij", "##x"]
PAD, _, CLS, SEP, _ = range(5)
A, B, C, X = VOCAB.index("a"), VOCAB.index("b"), VOCAB.index("c"), VOCAB.index("##x")


@pytest.fixture
def pieces():
    return WordPieceFeatures(WordPiece(VOCAB), max_length=8)


def longest_first(first, second, room):
    """What Rust's `tokenizers` keeps of a pair (truncation.rs, LongestFirst), in its own terms."""
    short, long = sorted((first, second))
    if short + long > room:
        long = short if short > room else max(short, room - short)
        if short + long > room:
            short, long = room // 2, room // 2 + room % 2
    return (long, short) if first > second else (short, long)


def test_truncate_pair():
    for left, right, room in itertools.product(range(12), range(12), range(14)):
        first, second = list(range(left)), list(range(100, 100 + right))
        keep_one, keep_two = longest_first(left, right, room)
        assert truncate_pair(first, second, room) == (first[:keep_one], second[:keep_two])
    assert truncate_pair([1, 2, 3], None, 2) == ([1, 2], None)


def test_character_features():
    batch = CharacterFeatures(max_length=3, max_characters=6)(["Hé yo", "", ["one", "two", "three", "four"]])
    assert list(batch) == list(CharacterFeatures.keys)
    assert batch["char_ids"].shape == (3, 3, 6) and batch["char_ids"].dtype == batch["mask"].dtype == np.int32
    assert batch["mask"].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert np.array_equal(batch["char_ids"][0, :2], Characters(6)(["Hé", "yo"]))
    assert np.array_equal(batch["char_ids"][2], Characters(6)(["one", "two", "three"]))
    assert not batch["char_ids"][batch["mask"] == 0].any()


@pytest.mark.parametrize("texts", [[], [""], ["\u200b", " "]])
def test_character_features_of_no_text(texts):
    batch = CharacterFeatures(max_characters=6)(texts)
    assert batch["char_ids"].shape == (len(texts), 1, 6) and not batch["mask"].any()


def test_character_rows():
    rows = CharacterFeatures(max_length=2).encode(["a b", "a b c", ["x"]])
    assert rows[0] == Row(["a", "b"], False, starts=[0, 1])
    assert rows[1] == Row(["a", "b"], True, starts=[0, 1, None])
    assert [len(row) for row in rows] == [2, 2, 1]
    assert CharacterFeatures().encode(["a"], [None]) == [Row(["a"], starts=[0])]
    with pytest.raises(ValueError, match="not a pair"):
        CharacterFeatures().encode(["a"], ["b"])


def test_word_features():
    features = WordFeatures(["<S>", "</S>", "<UNK>", "a", "b"], max_length=3)
    batch = features(["b a", "", ["A", "<S>", "a", "b"], "a c"])
    assert list(batch) == list(WordFeatures.keys)
    assert batch["word_ids"].dtype == batch["mask"].dtype == np.int32
    assert batch["word_ids"].tolist() == [[5, 4, 0], [0, 0, 0], [3, 1, 4], [4, 3, 0]]
    assert batch["mask"].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert features(["a"], length=2)["word_ids"].tolist() == [[4, 0]]
    assert features.encode(["a b a b"]) == CharacterFeatures(3).encode(["a b a b"])  # words, whatever reads them
    with pytest.raises(ValueError, match="not a pair"):
        features.encode(["a"], ["b"])


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ([], "there is no vocabulary"),
        (["a", "<S>", "</S>", "<UNK>"], "first lines must be <S>, </S>, <UNK>; found"),
        (["<S>", "</S>", "<UNK>", "a", "b", "a"], "'a' occurs twice"),
    ],
)
def test_vocabularies_of_word_features(vocab, message):
    with pytest.raises(ValueError, match=message):
        WordFeatures(vocab)


def test_static_features():
    features = StaticFeatures(["<UNK>", "a", "É", "é", "b"], max_length=3)
    batch = features(["É a", "", ["c", "<UNK>", "b", "a"], "A é"])
    assert tuple(batch) == features.keys == ("word_ids", "mask")
    assert batch["word_ids"].dtype == batch["mask"].dtype == np.int32
    assert batch["word_ids"].tolist() == [[3, 2, 0], [0, 0, 0], [1, 1, 5], [1, 4, 0]]
    assert batch["mask"].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert features([])["word_ids"].shape == (0, 1)
    lower = StaticFeatures(["<UNK>", "a", "é", "ǆ", "σ", "ς"], lowercase=True)
    texts = [["A", "É", "Ǆ", "ǅ", "Σ", "ς", "a\ud800", "ı", ""]]
    assert lower(texts)["word_ids"].tolist() == [[2, 3, 4, 4, 5, 6, 2, 1, 1]]
    with pytest.raises(ValueError, match="not a pair"):
        features.encode(["a"], ["b"])


class Series:
    """A column of pandas: no sequence, but an array."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


class Tensor:
    """A tensor in a graph."""

    def __array__(self, dtype=None, copy=None):
        raise NotImplementedError("cannot convert a symbolic tensor")


@pytest.mark.parametrize("kind", [list, tuple, np.array, Series, lambda texts: np.array(texts, object)])
def test_columns_are_texts(kind):
    features = WordPieceFeatures(WordPiece([*SPECIAL_PIECES, "a", "b"]))
    assert features(kind(["a", "b"]))["token_ids"].tolist() == features(["a", "b"])["token_ids"].tolist()
    assert CharacterFeatures()(kind(["a", "b"]))["mask"].tolist() == [[1], [1]]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], "text 1 is NoneType, None; .*left out"),
        (Series(["a", float("nan")]), "text 1 is float, nan; .*left out"),
        (["a", b"b"], "text 1 is bytes, b'b'; .*: decode it"),
        ([b""], "text 0 is bytes"),
        ([{"text": "a"}], "text 0 is dict, {'text': 'a'}; .*: give its text alone"),
        ([("a", 1)], r"text 0 is tuple, \('a', 1\); .*: give its text alone"),
        ("a b", "one string, 'a b'; give a list of texts"),
        (7, "int, not texts in memory"),
        (Tensor(), "Tensor: a tensor in a graph, .*keras_ctxrep_export.preprocessor.Preprocessor"),
    ],
)
def test_what_is_no_text(texts, message):
    with pytest.raises(TypeError, match=message):
        CharacterFeatures()(texts)


def rows_by_fasttext(word, known, words, shortest, longest, buckets):
    """`Dictionary::computeSubwords`, over bytes, with the integers of C."""
    rows = [known] if known else []
    data = f"<{word}>".encode()
    for i in range(len(data)):
        if data[i] & 0xC0 == 0x80:
            continue
        ngram, j, n = b"", i, 1
        while j < len(data) and n <= longest:
            ngram, j = ngram + data[j : j + 1], j + 1
            while j < len(data) and data[j] & 0xC0 == 0x80:
                ngram, j = ngram + data[j : j + 1], j + 1
            if n >= shortest and not (n == 1 and (i == 0 or j == len(data))):
                h = ctypes.c_uint32(2166136261)
                for byte in ngram:
                    h.value ^= ctypes.c_uint32(ctypes.c_int8(byte).value).value
                    h.value *= 16777619
                rows.append(words + 1 + h.value % buckets)
            n += 1
    return rows


@pytest.mark.parametrize("sizes", [(3, 6), (1, 2), (2, 2), (4, 9)])
@pytest.mark.parametrize("buckets", [2_000_000, 7])
def test_ngrams_of_fasttext(sizes, buckets):
    vocab = ["<UNK>", "ab", "naïve", "東京"]
    ngrams = (*sizes, buckets)
    texts = [["ab", "abc", "naïve", "Zürich", "東京", "東", "x" * 40, "<a>", "é", "𝄞"]]
    batch = StaticFeatures(vocab, ngrams=ngrams)(texts)
    assert tuple(batch) == ("subword_ids", "mask") and batch["subword_ids"].dtype == np.int32
    known = {word: line for line, word in enumerate(vocab, 1)}
    expected = [rows_by_fasttext(word, known.get(word), 4, *ngrams) or [1] for word in texts[0]]
    assert batch["subword_ids"].shape == (1, len(expected), max(map(len, expected)))
    for actual, rows in zip(batch["subword_ids"][0].tolist(), expected, strict=True):
        assert actual == rows + [0] * (len(actual) - len(rows))
    assert StaticFeatures(vocab, ngrams=ngrams)(["", "ab"])["subword_ids"][0].max() == 0


def test_hash_of_ngrams():
    """FNV-1a's published values, and fastText's own where a byte has a sign."""
    big = StaticFeatures(["<UNK>"], ngrams=(6, 6, 2**32))
    assert big.rows("foob") == [2 + fnv(b"<foob>")]
    assert fnv(b"foobar") == 0xBF9CF968 and fnv(b"a") == 0xE40C292C


def fnv(data):
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) % 2**32
    return value


def test_words_without_ngrams():
    features = StaticFeatures(["<UNK>", "</s>", "a"], ngrams=(5, 6, 10))
    assert features([["</s>", "a", "b", ""]])["subword_ids"].tolist() == [[[2], [3], [1], [1]]]


@pytest.mark.parametrize("ngrams", [(0, 3, 5), (4, 3, 5), (3, 4, 0)])
def test_bad_ngrams(ngrams):
    with pytest.raises(ValueError, match="1 <= shortest <= longest and rows >= 1"):
        StaticFeatures(["<UNK>"], ngrams=ngrams)


def test_many_words_are_not_all_kept():
    features = StaticFeatures(["<UNK>"], ngrams=(3, 3, 10))
    features._rows = {str(number): [1] for number in range(100_001)}
    assert features([["ab"]])["subword_ids"].shape == (1, 1, 2) and len(features._rows) == 1


@pytest.mark.parametrize("ngrams", [None, (3, 6, 50)])
def test_characters_and_words(ngrams):
    characters, words = CharacterFeatures(2, 6), StaticFeatures(["<UNK>", "a"], lowercase=True, ngrams=ngrams)
    both = CharacterAndWordFeatures(characters, words)
    texts = ["A b c", ["a"], ""]
    rows = both.encode(texts, offsets=True)
    assert rows == characters.encode(texts, offsets=True)
    batch = both.collate(rows, length=4)
    assert tuple(batch) == both.keys == ("char_ids", "word_ids" if ngrams is None else "subword_ids", "mask")
    for key, array in (characters.collate(rows, 4) | words.collate(rows, 4)).items():
        assert np.array_equal(batch[key], array)
    assert both(texts)["mask"].tolist() == [[1, 1], [1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ([], "its first line must be <UNK>; there is no vocabulary"),
        (["a", "<UNK>"], r"its first line must be <UNK>; found \['a'\]: put them there"),
        (["<UNK>", "a", "a"], "'a' occurs twice"),
    ],
)
def test_vocabularies_of_static_features(vocab, message):
    with pytest.raises(ValueError, match=message):
        StaticFeatures(vocab)


def test_padding_to_a_length(pieces):
    characters = CharacterFeatures(max_characters=6)
    batch = characters(["a b"], length=5)
    assert batch["char_ids"].shape == (1, 5, 6) and batch["mask"].tolist() == [[1, 1, 0, 0, 0]]
    batch = pieces(["a b"], length=6)
    assert batch["token_ids"].tolist() == [[CLS, A, B, SEP, PAD, PAD]] and batch["mask"].sum() == 4


def test_word_piece_features(pieces):
    batch = pieces(["A b", "ax", ""], ["c", None, "a b"])
    assert list(batch) == list(pieces.keys)
    assert all(array.dtype == np.int32 and array.shape == (3, 6) for array in batch.values())
    assert batch["token_ids"].tolist() == [
        [CLS, A, B, SEP, C, SEP],
        [CLS, A, X, SEP, PAD, PAD],
        [CLS, SEP, A, B, SEP, PAD],
    ]
    assert batch["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6, [0, 0, 1, 1, 1, 0]]
    assert batch["mask"].tolist() == [[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]]


def test_padding_id_is_that_of_the_vocabulary():
    features = WordPieceFeatures(WordPiece(["a", *SPECIAL_PIECES]))
    assert features(["a a", "a"])["token_ids"].tolist() == [[3, 0, 0, 4], [3, 0, 4, 1]]


def test_truncated_word_pieces(pieces):
    rows = pieces.encode(["a a a a a a", "a a a a a a a", "a a a a", "a a a"], [None, None, "b b", "b b"])
    assert [len(row) for row in rows] == [8, 8, 8, 8]
    assert [row.truncated for row in rows] == [False, True, True, False]
    assert rows[2].tokens == [CLS, A, A, A, SEP, B, B, SEP] and rows[2].first == 5


def test_mixed_texts_and_words(pieces):
    rows = pieces.encode(["a", ["ax", "", "b"], "b"], [None, "c", "a"])
    assert rows[0].tokens == [CLS, A, SEP] and rows[0].starts is None
    assert rows[1].tokens == [CLS, A, X, B, SEP, C, SEP] and rows[1].starts == [1, None, 3]
    assert rows[2].tokens == [CLS, B, SEP, A, SEP]


def test_starts_of_words_that_are_cut_off(pieces):
    row = pieces.encode([["a", "ax", "b", "ax", "c"]])[0]
    assert row.tokens == [CLS, A, A, X, B, A, X, SEP] and row.truncated
    assert row.starts == [1, 2, 4, 5, None]
    row = pieces.encode([["a", "b", "ax", "axx"]])[0]  # the last word's first piece is kept, its rest is not
    assert row.tokens == [CLS, A, B, A, X, A, X, SEP] and row.starts == [1, 2, 3, 5] and row.truncated


def test_offsets_of_pieces(pieces):
    rows = pieces.encode(["a  Ax", "ä\u200bxx b", ["a", "", "bax"]], ["", None, "c dx e"], offsets=True)
    assert rows == [
        Row([CLS, A, A, X, SEP, SEP], False, 5, None, [(0, 0), (0, 1), (3, 4), (4, 5), (0, 0), (0, 0)]),
        Row([CLS, A, X, X, B, SEP], False, 6, None, [(0, 0), (0, 1), (2, 3), (3, 4), (5, 6), (0, 0)]),
        # each word has offsets of its own
        Row(
            [CLS, A, 1, SEP, C, VOCAB.index("d"), X, SEP],
            True,
            4,
            [1, None, 2],
            [(0, 0), (0, 1), (0, 3), (0, 0), (0, 1), (2, 3), (3, 4), (0, 0)],
        ),
    ]


def test_offsets_are_cut_as_the_pieces_are(pieces):
    texts, pairs = ["a b c d e f g", "ax bx cx dx", "a", ["a", "bx", "cxx"]], [None, "d e f", "b c d e f g h", "ax bx"]
    rows = pieces.encode(texts, pairs, offsets=True)
    assert [row.truncated for row in rows] == [True] * 4
    for row, plain, text, pair in zip(rows, pieces.encode(texts, pairs), texts, pairs, strict=True):
        assert plain.offsets is None and row.tokens == plain.tokens and row.starts == plain.starts
        assert len(row.offsets) == len(row)
        strings = [
            (pair if place >= row.first else text)[start:end]
            for place, (start, end) in enumerate(row.offsets)
            if isinstance(text, str) or place >= row.first
        ]
        known = [VOCAB[id].removeprefix("##") if id > 4 else "" for id in row.tokens[len(row) - len(strings) :]]
        assert strings == known


def test_offsets_of_words():
    for features in (CharacterFeatures(max_length=3), WordFeatures([*WordFeatures.MARKERS, "a"], max_length=3)):
        text, split = features.encode([" Hé  yo. ab", ["one", "t"]], offsets=True)
        assert text == Row(
            ["Hé", "yo", "."], True, 0, [0, 1, 2, None], [(1, 3), (5, 7), (7, 8)], [(1, 3), (5, 7), (7, 8)]
        )
        assert split.offsets == [(0, 3), (0, 1)]
        assert features.encode(["a"])[0].offsets is None


def test_strings_of_any_kind(pieces):
    texts = ["\0", "a\0b", "\ud83d", "a\udc00", "", "\ufffe\U0010ffff", "a" * 101, " \n"]
    rows = pieces.encode([*texts, texts], [*texts[::-1], None])
    assert [row.tokens[1 : row.first - 1] for row in rows] == [
        [],
        [1],
        [],
        [A],
        [],
        [1],
        [1],
        [],
        [1, A, 1, 1],
    ]
    assert rows[-1].starts == [None, 1, None, 2, None, 3, 4, None]
    assert CharacterFeatures()(texts)["mask"].sum(1).tolist() == [0, 1, 0, 1, 0, 1, 1, 0]


@pytest.mark.parametrize("pairs", [[], ["a"], ["a", None, "b"]])
def test_as_many_pairs_as_texts(pieces, pairs):
    with pytest.raises(ValueError, match=f"2 texts and {len(pairs)} pairs; give one for each text"):
        pieces.encode(["a", "b"], pairs)


def test_too_short_for_a_pair():
    with pytest.raises(ValueError, match="max_length=3"):
        WordPieceFeatures(WordPiece(VOCAB), max_length=3)
    assert len(WordPieceFeatures(WordPiece(VOCAB), 4).encode(["a b c"], ["d e f"])[0]) == 4


# -------------------------------------------------------------------------------------------------- words and windows


@pytest.fixture
def tagged():
    return WordPieceFeatures(WordPiece(VOCAB), max_length=8, starts=True)


def test_starts_of_raw_text(tagged):
    text = " ax, \u00e4bx\u200b  b"
    row = tagged.encode([text])[0]
    assert row.tokens == [CLS, A, X, 1, 1, B, SEP] and row.starts == [1, 3, 4, 5] and not row.truncated
    assert [text[begin:end] for begin, end in row.words] == ["ax", ",", "\u00e4bx", "b"]
    assert row.offsets == [(0, 0), (1, 2), (2, 3), (3, 4), (5, 8), (11, 12), (0, 0)]
    assert tagged.encode(["", " \u200b"]) == [Row([CLS, SEP], False, 2, [], [(0, 0)] * 2, [])] * 2


def test_starts_of_raw_text_that_is_cut(tagged):
    row = tagged.encode(["a axxx b c d"])[0]  # six pieces are kept: the word behind is cut off
    assert row.tokens == [CLS, A, A, X, X, X, B, SEP] and row.truncated
    assert row.starts == [1, 2, 6, None, None] and row.words == [(0, 1), (2, 6), (7, 8), (9, 10), (11, 12)]
    row = tagged.encode(["a b c d axxx"])[0]
    assert row.starts == [1, 2, 3, 4, 5] and row.words[-1] == (8, 12)  # its first piece is kept


def test_starts_in_a_batch(tagged, pieces):
    texts = ["ax b", ["a", "", "ax", "axx", "c", "d"], "", "b"]
    batch = tagged(texts)
    assert tuple(batch) == tagged.keys == ("token_ids", "segment_ids", "mask", "starts")
    assert batch["starts"].dtype == np.int32
    assert batch["starts"].tolist() == [[1, 3, 0], [1, 2, 4], [0] * 3, [1, 0, 0]]
    plain = pieces(texts)
    assert tuple(plain) == pieces.keys and all(np.array_equal(plain[key], batch[key]) for key in plain)
    assert tagged([""])["starts"].tolist() == [[0]] and tagged([])["starts"].shape == (0, 1)
    assert tagged(["a"], length=8)["starts"].shape == (1, 1)
    assert tagged.encode(texts)[1].words is None and tagged.encode(texts)[1].truncated


def test_raw_and_split_text_have_the_same_pieces(tagged):
    raw, split = tagged.encode(["ax b axx", ["ax", "b", "axx"]])
    assert raw.tokens == split.tokens and raw.starts == split.starts == [1, 3, 4]


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("max_length", [7, 8, 9, 12, 40])
def test_windows(stride, max_length):
    """Every piece of the context is in a window; one begins `stride` after the other, or half a window."""
    features = WordPieceFeatures(WordPiece(VOCAB), max_length)
    room = max_length - 5
    for size in range(25):
        context = " ".join("abcdefghij"[number % 10] for number in range(size))
        (rows,) = features.windows(["ax"], [context], stride)
        step, places = stride if stride < room else max(1, room // 2), []
        for number, row in enumerate(rows):
            begin = number * step
            place = [*range(begin, min(begin + room, size))]
            assert row.tokens == [CLS, A, X, SEP, *(A + i % 10 for i in place), SEP] and row.first == 4
            assert row.offsets == [(0, 0), (0, 1), (1, 2), (0, 0), *((2 * i, 2 * i + 1) for i in place), (0, 0)]
            assert len(row) <= max_length and row.starts is None
            places.extend(place)
        assert set(places) == set(range(size))
        assert len(rows) == 1 or (len(rows) - 2) * step + room < size  # none that is not needed
    batch = features.collate(features.windows(["ax"], ["a b c d e f g h"], stride)[0])
    assert (
        batch["segment_ids"][0, :5].tolist() == [0, 0, 0, 0, 1] and not batch["segment_ids"][batch["mask"] == 0].any()
    )


def test_windows_of_several_questions(pieces):
    result = pieces.windows(["a", "", "b c"], ["d e f g h", "i j", ""], stride=2)
    assert [[len(row) for row in rows] for rows in result] == [[8, 7], [5], [5]]
    assert [[row.first for row in rows] for rows in result] == [[3, 3], [2], [4]] and pieces.windows([], []) == []
    with pytest.raises(ValueError, match="zip"):
        pieces.windows(["a"], ["a", "b"])


@pytest.mark.parametrize(("max_length", "kept"), [(131, 64), (384, 64), (130, 63), (6, 1), (5, 1), (4, 0)])
def test_a_long_question_keeps_its_first_64_pieces_or_half_of_a_row(max_length, kept):
    features = WordPieceFeatures(WordPiece(VOCAB), max_length)
    rows = features.windows(["a " * (kept - 1) + "bx c"], ["d e f"], stride=2)[0]
    question = [*[A] * (kept - 1), B][:kept]
    assert all(row.tokens[: row.first] == [CLS, *question, SEP] for row in rows)
    assert rows[0].offsets[rows[0].first] == (0, 1) and rows[-1].offsets[-2] == (4, 5)
    assert all(row.first + 1 < len(row) <= max_length for row in rows)


def test_windows_need_a_stride():
    features = WordPieceFeatures(WordPiece(VOCAB), max_length=6)
    for stride in (0, -1):
        with pytest.raises(ValueError, match=f"stride={stride}: at least 1"):
            features.windows(["a"], ["b"], stride)


@pytest.mark.parametrize("max_length", [8, 9, 13, 40])
def test_windows_that_hold_no_more_than_a_stride_overlap(max_length):
    """Else an answer where one ends and the next begins would be in none of them."""
    features = WordPieceFeatures(WordPiece(VOCAB), max_length)
    room = max_length - 4
    context = " ".join("abcdefghij"[number % 10] for number in range(90))
    for stride in (room, room + 1, 128):
        (rows,) = features.windows(["a"], [context], stride)
        held = [{span for span in row.offsets[row.first : -1]} for row in rows]
        assert len(rows) > 2 and all(first & second for first, second in itertools.pairwise(held))
        for begin in range(90 - room // 2 + 1):  # an answer of half a window
            answer = {(2 * i, 2 * i + 1) for i in range(begin, begin + room // 2)}
            assert any(answer <= window for window in held)


def test_a_question_that_is_cut_is_reported():
    features = WordPieceFeatures(WordPiece(VOCAB), 10)
    assert features.max_question == 3
    fits, cut = features.windows(["a b c", "a b c d"], ["e f g h i j"] * 2)
    assert not any(row.truncated for row in fits) and all(row.truncated for row in cut)


# ------------------------------------------------------------------------------------------------------- marked spans


@pytest.mark.parametrize("indicate", [False, True])
def test_marks_of_pieces(indicate):
    """Any piece that a span touches is in it; a span that is not all there is (0, 0)."""
    features = WordPieceFeatures(WordPiece(VOCAB), max_length=7, indicate=indicate)
    texts = ["ax b axx c", "ax b axx c", ["ax", "", "b", "axx", "c"]]
    marks = [[(0, 2), (3, 4)], [(1, 4), (5, 8)], [(0, 3), (1, 2)]]
    rows = features.encode(texts, marks=marks)
    assert [row.tokens for row in rows] == [[CLS, A, X, B, A, X, SEP]] * 3
    assert [row.marks for row in rows] == [[(1, 3), (3, 4)], [(2, 4), (0, 0)], [(1, 4), (0, 0)]]
    batch = features.collate(rows)
    if indicate:
        assert "marks" not in batch and batch["segment_ids"].tolist() == [
            [0, 1, 1, 1, 0, 0, 0],
            [0, 0, 1, 1, 0, 0, 0],
            [0, 1, 1, 1, 0, 0, 0],
        ]
    else:
        assert batch["marks"].dtype == np.int32 and batch["marks"].tolist() == [
            [list(m) for m in r.marks] for r in rows
        ]
        assert not batch["segment_ids"].any()


def test_marks_of_words():
    features = CharacterFeatures(max_length=3, max_characters=6)
    texts = ["one two, three", ["one", "two", ",", "three"]]
    rows = features.encode(texts, marks=[[(1, 5), (9, 14)], [(0, 2), (2, 4)]])
    assert [row.marks for row in rows] == [[(0, 2), (0, 0)]] * 2
    assert features.collate(rows)["marks"].tolist() == [[[0, 2], [0, 0]]] * 2


@pytest.mark.parametrize("features", [CharacterFeatures(), WordPieceFeatures(WordPiece(VOCAB), starts=True)])
def test_a_symbolic_tensor_has_no_text(features):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(["a b", "c"]).batch(2)
    with pytest.raises(TypeError, match=r"as in tf\.data\.Dataset\.map, has no text yet; use the layer .*Preprocessor"):
        data.map(features)
