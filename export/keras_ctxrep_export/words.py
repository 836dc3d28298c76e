"""Words of texts in a TensorFlow graph: split and normalized by the rules of `tokenizers`, character by character."""

from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_ctxrep.text.character_rules import APART, INSIDE, Casing, lower_case, rules_of

__all__ = [
    "Rules",
    "Words",
    "character_rules",
    "lowered",
    "ngram_hashes",
    "padded",
    "row_numbers",
    "spelled",
    "split",
    "substrings",
]

# The rule of each of these code points also holds up to the next one in the list. Surrogates are not characters, planes
# 4 to 13 are empty, and a private-use plane is uniform but for its last two code points.
_PROBED = (range(0xD800), range(0xE000, 0x40000), range(0x40001, 0x40002))
_PROBED += (range(0xE0000, 0xF0001), range(0xFFFFE, 0x100001), range(0x10FFFE, 0x110000))
_NONE = -0x200000  # added to any code point it is negative
Ragged: Any = tf.RaggedTensor  # whose constructors have no types


class Words(NamedTuple):
    """The words of a batch of texts."""

    codes: tf.RaggedTensor  #: code points of each word as the model sees it, (words of all texts, ragged)
    origin: tf.Tensor  #: for each of them, which character of its text it comes from
    numbers: tf.RaggedTensor  #: of each text's words, (B, ragged); `numbers.with_values` gives them other values
    original: tf.RaggedTensor  #: the code points of the texts, (B, ragged)

    def strings(self, most: int | None = None) -> tf.RaggedTensor:
        """The first `most` words of each text, string (B, ragged)."""
        return self.numbers.with_values(tf.strings.unicode_encode(self.codes, "UTF-8"))[:, :most]

    def spans(self) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Where each word begins and ends in its text, in characters: int32 (B, ragged)."""
        splits = self.codes.row_splits
        start, end = tf.gather(self.origin, splits[:-1]), tf.gather(self.origin, splits[1:] - 1) + 1
        return self.numbers.with_values(start), self.numbers.with_values(end)

    def dense(self, most: int | None = None) -> dict[str, tf.Tensor]:
        """The words as they stand in the text, their "starts" and "ends", each (B, W), padded to the longest row."""
        return spelled(self.original, *(span[:, :most] for span in self.spans()))


def split(texts: tf.Tensor, lowercase: bool = False, strip_accents: bool = False, split_cjk: bool = True) -> Words:
    """`tokens.words`, or the words of a BERT with these rules: of string (B,).

    >>> start, end = split(tf.constant(["a\\t(é"])).spans()
    >>> start.to_list(), end.to_list()
    ([[0, 2, 3]], [[1, 3, 4]])
    """
    rules = character_rules(lowercase, strip_accents, split_cjk)
    original = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
    code, text = original.flat_values, row_numbers(original)
    rule = tf.cast(tf.searchsorted(rules.first, code, side="right"), tf.int64) - 1
    if strip_accents:  # marks are put in canonical order, since some of them are kept
        rank = tf.gather(rules.rank, rule)
        marks = tf.where(rank > 0)[:, 0]
        between = tf.gather(tf.cumsum(tf.cast(rank == 0, tf.int64)) + text, marks)
        order = tf.gather(marks, tf.argsort(between * 256 + tf.gather(rank, marks), stable=True))
        code, rule = (
            tf.tensor_scatter_nd_update(values, marks[:, None], tf.gather(values, order)) for values in (code, rule)
        )
    kind = tf.gather(rules.kind, rule)
    word = tf.cumsum(kind) - tf.cast(kind == APART, tf.int64) + text  # grows from one word to the next
    becomes = tf.reshape(code[:, None] + tf.gather(rules.shifts, rule), [-1])
    index = tf.where(becomes >= 0)[:, 0]
    codes, parent = tf.gather(becomes, index), index // rules.shifts.shape[1]
    word = tf.gather(word, parent)
    first = tf.where(word != tf.concat([[-1], word[:-1]], 0))[:, 0]
    row = tf.gather(text, parent)
    origin = tf.cast(parent - tf.gather(original.row_splits, row), tf.int32)
    nrows = tf.size(texts, tf.int64)
    splits = tf.concat([first, [tf.size(codes, tf.int64)]], 0)
    return Words(
        Ragged.from_row_splits(codes, splits, validate=False),
        origin,
        Ragged.from_value_rowids(tf.range(tf.size(first)), tf.gather(row, first), nrows, validate=False),
        original,
    )


def lowered(words: tf.Tensor) -> tf.Tensor:
    """Words in lower case, as static vectors look them up; nothing else of them changes.

    >>> [word.decode() for word in lowered(tf.constant(["ÉTÉ", "İx", "ΣΑΣ"])).numpy()]
    ['été', 'i̇x', 'σασ']
    """
    first, shifts = _lower_case()
    codes = tf.strings.unicode_decode(words, "UTF-8", errors="replace")
    becomes = codes.values[:, None] + tf.gather(shifts, tf.searchsorted(first, codes.values, side="right") - 1)
    lower = tf.ragged.boolean_mask(becomes, becomes >= 0)
    return tf.strings.unicode_encode(codes.with_values(lower).merge_dims(1, 2), "UTF-8")


def ngram_hashes(words: tf.Tensor, shortest: int, longest: int, most: int) -> tf.RaggedTensor:
    """The hashes of words' character n-grams, of which `text.features.StaticFeatures` makes the rows of a table.

    Args:
        words: string (n,), UTF-8.
        shortest, longest: characters of an n-gram.
        most: characters of a word that are read.

    Returns: int64 (n, ragged), in fastText's order.

    >>> (ngram_hashes(tf.constant(["on", ""]), 4, 5, 100) % 100).to_list()
    [[0], []]
    """
    codes = tf.strings.unicode_decode(words, "UTF-8", errors="replace")[:, :most]
    bracket = tf.ones([codes.nrows(), 1], tf.int32)
    letters: Any = tf.concat([ord("<") * bracket, codes, ord(">") * bracket], 1)
    word, position = row_numbers(letters), tf.range(tf.size(letters.values, tf.int64))
    first, last = tf.gather(letters.row_starts(), word), tf.gather(letters.row_limits(), word) - 1
    encoded = tf.strings.unicode_encode(letters.values[:, None], "UTF-8")
    size = tf.strings.length(encoded)
    data = tf.cast(tf.io.decode_raw(encoded, tf.uint8, fixed_length=4), tf.int64)  # (letters, 4)
    data = tf.where(data < 128, data, data + 0xFFFFFF00)  # fastText extends the sign
    value, hashes, real = tf.fill(tf.shape(position), tf.constant(2166136261, tf.int64)), [], []
    for length in range(longest):  # 32-bit FNV-1a of the n-gram from each letter on, a letter longer each time
        letter = position + length
        inside, letter = letter <= last, tf.minimum(letter, last)
        for byte in range(4):
            product = tf.bitwise.bitwise_xor(value, tf.gather(data[:, byte], letter)) * 16777619
            value = tf.where(tf.gather(size, letter) > byte, tf.bitwise.bitwise_and(product, 0xFFFFFFFF), value)
        if length + 1 >= shortest:
            hashes.append(value)
            real.append(inside & (position > first) & (position < last) if length == 0 else inside)
    kept: Any = tf.ragged.boolean_mask(tf.stack(hashes, 1), tf.stack(real, 1))  # (letters, ragged)
    return letters.with_values(kept).merge_dims(1, 2)


def substrings(texts: tf.RaggedTensor, rows: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Characters [start, end) of the texts with these numbers: code points (B, ragged) -> string (n,).

    >>> substrings(tf.strings.unicode_decode(["one", "two"], "UTF-8"), tf.constant([1]), [0], [2]).numpy()
    array([b'tw'], dtype=object)
    """
    begin = tf.gather(texts.row_starts(), rows)
    characters = tf.ragged.range(begin + tf.cast(start, tf.int64), begin + tf.cast(end, tf.int64))
    return tf.strings.unicode_encode(tf.gather(texts.values, characters), "UTF-8")


def spelled(texts: tf.RaggedTensor, start: tf.RaggedTensor, end: tf.RaggedTensor) -> dict[str, tf.Tensor]:
    """Words as they stand in texts, code points (B, ragged), with their "starts" and "ends", each (B, W), padded."""
    words = start.with_values(substrings(texts, row_numbers(start), start.values, end.values))
    return {"words": padded(words, ""), "starts": padded(start), "ends": padded(end)}


def row_numbers(rows: tf.RaggedTensor) -> tf.Tensor:
    """The row of each value, int64 (values,), in memory that grows with the values alone.

    `rows.value_rowids()` takes that of all rows at the length of the longest one: of a thousand texts and one of a
    megabyte, gigabytes.

    >>> row_numbers(tf.ragged.constant([[5, 6], [], [7]])).numpy().tolist()
    [0, 0, 2]
    """
    ends, count = rows.row_splits[1:], rows.row_splits[-1]
    return tf.cumsum(tf.math.unsorted_segment_sum(tf.ones_like(ends), ends, count + 1))[:count]


def padded(rows: tf.RaggedTensor, fill: int | str = 0) -> tf.Tensor:
    """Dense rows of at least one position."""
    inner = rows.flat_values.shape[1:]
    longest = tf.maximum(tf.reduce_max(rows.row_lengths()), 1)
    shape = [tf.stack([rows.nrows(), longest]), tf.shape(rows.flat_values, rows.row_splits.dtype)[1:]]
    dense = rows.to_tensor(fill, shape=tf.concat(shape, 0))
    return tf.ensure_shape(dense, [None, None, *inner])


class Rules(NamedTuple):
    """The normalization of each character, one row for each range of code points."""

    first: np.ndarray  # int32 (ranges,), ascending
    kind: np.ndarray  # int64 (ranges,), INSIDE a word, SPACE, or APART: a word of its own
    rank: np.ndarray  # int64 (ranges,), canonical combining class; -1 if removed before the order matters
    shifts: np.ndarray  # int32 (ranges, most), added to the code point give the new ones; _NONE: no more of them

    @property
    def vanishing(self) -> np.ndarray:
        """bool (ranges,): nothing is left of the character, and it is no white space."""
        return (self.shifts == _NONE).all(1) & (self.kind == INSIDE)


@cache
def character_rules(lowercase: bool, strip_accents: bool, split_cjk: bool) -> Rules:
    """The rules of `tokenizers`, for every character."""
    chars = [*map(chr, chain(*_PROBED))]
    kinds, ranks, becomes = rules_of(chars, Casing(lowercase, strip_accents, split_cjk))
    rows = [
        (kind, rank, 0) if inner == char else (kind, rank, *(ord(new) - ord(char) for new in inner))
        for char, kind, rank, inner in zip(chars, kinds, ranks, becomes, strict=True)
    ]
    first, rows = _ranges(chars, rows)
    kinds, ranks = zip(*(row[:2] for row in rows), strict=True)
    return Rules(first, np.array(kinds), np.array(ranks), _rectangle([row[2:] for row in rows]))


@cache
def _lower_case() -> tuple[np.ndarray, np.ndarray]:
    """First code points of ranges, and what is added to each of a range to have it in lower case, as in `Rules`."""
    chars = [*map(chr, chain(*_PROBED))]
    rows = zip(chars, lower_case(chars), strict=True)
    first, shifts = _ranges(chars, [tuple(ord(new) - ord(char) for new in becomes) for char, becomes in rows])
    return first, _rectangle(shifts)


def _ranges(chars: list[str], rows: list[tuple]) -> tuple[np.ndarray, list[tuple]]:
    """The first code point of each range of characters with equal rows, int32 (ranges,), and these rows."""
    begins = [number for number, row in enumerate(rows) if number == 0 or row != rows[number - 1]]
    return np.array([ord(chars[number]) for number in begins], np.int32), [rows[number] for number in begins]


def _rectangle(shifts: list[tuple]) -> np.ndarray:
    """Rows of the same length, int32 (ranges, most)."""
    most = max(map(len, shifts))
    return np.array([[*row, *[_NONE] * (most - len(row))] for row in shifts], np.int32)
