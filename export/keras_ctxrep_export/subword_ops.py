"""Subword tokenizers as a TensorFlow graph: SentencePiece's unigram model and byte-level BPE, as `text.subwords`."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
import tensorflow as tf
from tokenizers import Regex, normalizers

from keras_ctxrep.text.character_rules import lower_case
from keras_ctxrep.text.subwords import BYTES, SPACE, WHITE_SPACE, Subwords
from keras_ctxrep_export.charsmaps import Characters, CharsMap, CodePoints, replaced
from keras_ctxrep_export.words import Ragged, Words, row_numbers

__all__ = ["SubwordOps"]

_SPACE, _META = ord(" "), ord(SPACE)
_OTHER, _LETTER, _NUMBER, _WHITE, _NONE = range(5)  # kinds of characters in GPT-2's pattern; _NONE: there is none
_LAST = np.iinfo(np.int32).max  # the rank of pairs that are not merged
_CODE_BITS = 21  # of a code point


class SubwordOps(tf.Module):
    """`text.subwords.SubwordTokenizer` for a batch of texts, in operators of TensorFlow alone.

    Each distinct word of a batch is cut once, and looked up if it is a piece.

    Args:
        subwords: what it does.

    Raises:
        ValueError: a step of its normalization has no operators (NFC and NFKC), or a piece of a byte is missing.

    >>> from keras_ctxrep.text.subwords import Added
    >>> pieces, scores = ("<unk>", "\u2581", "a", "\u2581a"), (0.0, -2.0, -3.0, -2.5)
    >>> ops = SubwordOps(Subwords("unigram", pieces, scores, unknown=0, added=(Added(0),)))
    >>> ids, start, end = ops.cut(ops.split(tf.constant(["aa  a"])))
    >>> ids.to_list(), start.numpy().tolist(), end.numpy().tolist()
    ([[[3, 2], [1], [3]]], [0, 1, 3, 4], [1, 2, 3, 5])
    """

    def __init__(self, subwords: Subwords):
        super().__init__()
        self.subwords = subwords
        missing = [step for step in subwords.steps if step not in _STEPS and step != "precompiled"]
        if missing:
            raise ValueError(f"normalization {', '.join(missing)}: has no operators of TensorFlow")
        self.charsmap: Any = CharsMap(subwords.charsmap) if "precompiled" in subwords.steps else None
        self.space = CodePoints({ord(char): 1 for char in WHITE_SPACE})
        self.kinds: Any = CodePoints(_kinds()) if subwords.kind == "bpe" else None  # of GPT-2's pattern
        self.model = _Unigram(subwords) if subwords.kind == "unigram" else _BytePairs(subwords)
        whole = _whole_words(subwords)
        lines = tf.lookup.KeyValueTensorInitializer([*whole], [*whole.values()], tf.string, tf.int32)
        self.pieces = tf.lookup.StaticHashTable(lines, -1)

    def shortened(self, texts: tf.Tensor, words: tf.Tensor | int) -> tf.Tensor:
        """The texts, which are read whole."""
        return texts

    beginning = shortened

    def split(self, texts: tf.Tensor, alone: bool = False) -> Words:
        """The parts of texts, string (B,), or of words that come split, that are cut into pieces, normalized."""
        original: Any = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        rows = row_numbers(original)
        begins = tf.gather(original.row_starts(), rows)
        origin = tf.cast(tf.range(tf.size(rows, tf.int64)) - begins, tf.int32)
        chars = Characters(original.values, origin, rows)
        for step in self.subwords.steps:
            chars = self.charsmap(chars) if step == "precompiled" else _STEPS[step](self, chars)
        begin, chars = self._metaspace(chars, alone) if self.kinds is None else self._byte_level(chars, alone)
        first = tf.where(begin)[:, 0]
        splits = tf.concat([first, [tf.size(chars.codes, tf.int64)]], 0)
        number = tf.range(tf.size(first))
        return Words(
            Ragged.from_row_splits(chars.codes, splits, validate=False),
            chars.origin,
            Ragged.from_value_rowids(number, tf.gather(chars.rows, first), original.nrows(), validate=False),
            original,
        )

    def _metaspace(self, chars: Characters, alone: bool) -> tuple[tf.Tensor, Characters]:
        """Whether a part begins at each character, and the characters with "▁" in place of spaces and before parts."""
        codes, begin = chars.codes, _differs(chars.rows)
        if self.subwords.whitespace:
            space = self.space(codes) > 0
            begin |= tf.concat([[True], space[:-1]], 0)[: tf.size(codes)]
            stays = tf.where(~space)[:, 0]
            begin, chars = tf.gather(begin, stays), chars.take(stays)
        else:
            chars = chars._replace(codes=tf.where(codes == _SPACE, _META, codes))
        meta: Any = chars.codes == _META
        prefix = begin & ~meta
        scheme = "always" if alone else self.subwords.prefix
        if scheme == "never":
            return begin | meta, chars
        if scheme == "first":
            prefix &= chars.origin == 0
        new, chars, of = _with_before(chars, prefix, _META)
        return new | (tf.gather(begin | meta, of) & ~tf.gather(prefix, of)), chars

    def _byte_level(self, chars: Characters, alone: bool) -> tuple[tf.Tensor, Characters]:
        """Whether a part begins at each character, by GPT-2's pattern, and the characters."""
        if self.subwords.add_prefix_space or alone:
            _, chars, _ = _with_before(chars, _differs(chars.rows) & (chars.codes != _SPACE), _SPACE)
        codes, kind = chars.codes, self.kinds(chars.codes)
        first, last = _differs(chars.rows), _differs(chars.rows, behind=True)
        before, after = tf.where(first, _NONE, tf.roll(kind, 1, 0)), tf.where(last, _NONE, tf.roll(kind, -1, 0))
        spaced = ~first & (tf.roll(codes, 1, 0) == _SPACE)
        white = kind == _WHITE
        # of white space before something else the last character is apart
        begin = ((kind != before) & (white | ~spaced)) | (white & (after != _WHITE) & (after != _NONE))
        # 's 't 'm 'd 're 've 'll
        apostrophe = (codes == ord("'")) & (before != _OTHER) & ~spaced & ~last
        second, third = tf.roll(codes, -1, 0), tf.where(tf.roll(last, -1, 0), 0, tf.roll(codes, -2, 0))

        def pair(letters: str) -> tf.Tensor:
            return (second == ord(letters[0])) & (third == ord(letters[1]))

        short: Any = apostrophe & tf.reduce_any([second == ord(letter) for letter in "stmd"], 0)
        long = apostrophe & (pair("re") | pair("ve") | pair("ll"))
        begin &= ~tf.roll(short | long, 1, 0)
        return begin | ((kind == _LETTER) & ~first & (tf.roll(short, 2, 0) | tf.roll(long, 3, 0))), chars

    def cut(self, words: Words, most: int | None = None) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """The pieces of each text's first `most` words, (B, ragged, ragged); if of all, where each begins and ends."""
        unique, number = tf.unique(tf.strings.unicode_encode(words.codes, "UTF-8"), tf.int64)
        representative = tf.math.unsorted_segment_min(
            tf.range(tf.size(number, tf.int64)), number, tf.size(unique, tf.int64)
        )
        ids, first, last, begin, size = self._pieces(unique, tf.gather(words.codes, representative))
        # of each word those of the equal one
        numbers = words.numbers.with_values(number)[:, :most]
        begin, size = tf.gather(begin, numbers.values), tf.gather(size, numbers.values)
        of: Any = tf.ragged.range(begin, begin + size)
        pieces = numbers.with_values(of.with_values(tf.gather(ids, of.values)))
        place = tf.gather(words.codes.row_starts(), row_numbers(of))
        start = tf.gather(words.origin, place + tf.gather(first, of.values))
        end = tf.gather(words.origin, place + tf.gather(last, of.values)) + 1
        text = tf.gather(words.original.row_starts(), tf.gather(row_numbers(numbers), row_numbers(of)))
        return pieces, *self._trimmed(words.original.values, text, start, end)

    def _pieces(self, words: tf.Tensor, codes: tf.RaggedTensor) -> tuple[tf.Tensor, ...]:
        """The pieces of words, flat, the characters that each begins and ends with, and each word's first and count."""
        piece = self.pieces.lookup(words)
        known = piece >= 0  # those that are a piece are looked up
        own, others = tf.where(known)[:, 0], tf.where(~known)[:, 0]
        ids, first, last = self.model(tf.gather(codes, others))
        count = tf.size(own, tf.int64)
        places = [tf.cast(own, tf.int32), tf.cast(others, tf.int32)]
        begin = tf.dynamic_stitch(places, [tf.range(count), count + ids.row_starts()])
        size = tf.dynamic_stitch(places, [tf.ones_like(own), ids.row_lengths()])
        lasts = tf.gather(codes.row_lengths(), own) - 1
        first, last = tf.concat([tf.zeros_like(own), first], 0), tf.concat([lasts, last], 0)
        return tf.concat([tf.gather(piece, own), ids.values], 0), first, last, begin, size

    def _trimmed(
        self, codes: tf.Tensor, text: tf.Tensor, start: tf.Tensor, end: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Spans without white space at both ends, in characters of texts that begin at `text` among all `codes`."""
        real = self.space(codes) == 0
        before = tf.pad(tf.cumsum(tf.cast(real, tf.int32)), [[1, 0]])  # characters that are none
        places = tf.pad(tf.cast(tf.where(real)[:, 0], tf.int32), [[1, 1]])
        offset = tf.cast(text, tf.int32)
        first, last = tf.gather(before, offset + start), tf.gather(before, offset + end)
        some = first < last
        return (
            tf.where(some, tf.gather(places, first + 1) - offset, end),
            tf.where(some, tf.gather(places, last) + 1 - offset, end),
        )

    def _lowercase(self, chars: Characters) -> Characters:
        numbers, strings = _lower_case()
        return replaced(chars, CodePoints(numbers)(chars.codes), None, strings)

    def _strip(self, chars: Characters, left: bool = True, right: bool = True) -> Characters:
        real = self.space(chars.codes) == 0
        position = tf.range(tf.size(real))
        texts = tf.reduce_max(tf.pad(chars.rows + 1, [[0, 1]]))
        inside = tf.ones_like(real)
        if left:
            first = tf.math.unsorted_segment_min(tf.where(real, position, tf.size(real)), chars.rows, texts)
            inside &= position >= tf.gather(first, chars.rows)
        if right:
            last = tf.math.unsorted_segment_max(tf.where(real, position, -1), chars.rows, texts)
            inside &= position <= tf.gather(last, chars.rows)
        return chars.take(tf.where(inside)[:, 0])

    def _one_space(self, chars: Characters, by: int) -> Characters:
        space, same = chars.codes == _SPACE, chars.rows[1:] == chars.rows[:-1]
        again = tf.concat([[False], space[:-1] & space[1:] & same], 0)[: tf.size(space)]
        goes: Any = tf.concat([again[1:], [False]], 0)[: tf.size(space)]
        return chars._replace(codes=tf.where(again, by, chars.codes)).take(tf.where(~goes)[:, 0])


def _array(kind: tf.DType) -> tf.TensorArray:
    """An array of vectors of any size, of which the first one is empty."""
    array = tf.TensorArray(kind, 1, dynamic_size=True, infer_shape=False, element_shape=[None])
    return array.write(0, tf.zeros([0], kind))


def _scattered(places: tf.Tensor, size: tf.Tensor, values: Any, others: Any) -> Any:
    """A vector of so many values, some of them at places, which differ; five times as quick as `tf.scatter_nd`."""
    options = {"sparse_values": values, "default_value": others, "validate_indices": False}
    return tf.raw_ops.SparseToDense(sparse_indices=places, output_shape=tf.reshape(size, [1]), **options)


def _differs(rows: tf.Tensor, behind: bool = False) -> Any:
    """Whether each character is the first of its text, or the last."""
    other = rows[1:] != rows[:-1]
    return tf.concat([other, [True]] if behind else [[True], other], 0)[: tf.size(rows)]


def _with_before(chars: Characters, where: tf.Tensor, code: int) -> tuple[tf.Tensor, Characters, tf.Tensor]:
    """Characters with another before some of them: which are new, they, and the one that each of them comes from."""
    index: Any = tf.where(tf.reshape(tf.stack([where, tf.ones_like(where)], 1), [-1]))[:, 0]
    of, new = index // 2, index % 2 == 0
    chars = chars.take(of)
    return new, chars._replace(codes=tf.where(new, code, chars.codes)), of


@cache
def _lower_case() -> tuple[dict[int, int], list[str]]:
    """The number of what each code point is in lower case, of those that change, and these strings."""
    chars = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x20000))]
    becomes = {ord(char): lower for char, lower in zip(chars, lower_case(chars), strict=True) if lower != char}
    strings = sorted({*becomes.values()})
    numbers = {string: number for number, string in enumerate(strings, 1)}
    return {code: numbers[lower] for code, lower in becomes.items()}, strings


@lru_cache(maxsize=4)
def _whole_words(subwords: Subwords) -> dict[bytes, int]:
    """The words that are cut into a single piece, which is known."""
    hidden = {each.id for each in subwords.added}
    pieces = {piece: id for id, piece in enumerate(subwords.pieces) if piece and id not in hidden}
    model: Any = subwords.model()
    words = {piece: piece.encode() for piece in pieces}
    if subwords.kind == "bpe":
        words = {piece: bytes(map(BYTES.__getitem__, piece)) for piece in pieces if {*piece} <= BYTES.keys()}
    return {
        word: pieces[piece]
        for piece, word in words.items()
        if b"\0" not in word and [token.id for token in model.tokenize(piece)] == [pieces[piece]]
    }


@cache
def _kinds() -> dict[int, int]:
    """The kind of each code point in GPT-2's pattern that is not another, as `tokenizers` has it."""
    chars = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE1000))))
    kinds = {}
    for kind, pattern in {_WHITE: r"\s", _NUMBER: r"\p{N}", _LETTER: r"\p{L}"}.items():
        others = normalizers.Replace(Regex(pattern), "").normalize_str(chars)
        kinds |= dict.fromkeys(map(ord, {*chars} - {*others}), kind)
    return kinds


_STEPS: dict[str, Callable[[SubwordOps, Characters], Characters]] = {
    "lowercase": SubwordOps._lowercase,
    "strip": SubwordOps._strip,
    "strip_left": lambda ops, chars: ops._strip(chars, right=False),
    "strip_right": lambda ops, chars: ops._strip(chars, left=False),
    "one_space": lambda ops, chars: ops._one_space(chars, _SPACE),
    "one_metaspace": lambda ops, chars: ops._one_space(chars, _META),
}


class _Unigram(tf.Module):
    """The pieces of words of the greatest sum of scores, by Viterbi's algorithm."""

    PENALTY = 10.0  # of an unknown character, below the least score

    def __init__(self, subwords: Subwords):
        super().__init__("unigram")
        hidden = {each.id for each in subwords.added}
        self.unknown, self.fallback = subwords.unknown, None
        nodes: dict[int, int] = {}  # node and character -> node
        pieces = {}  # node -> piece
        for id, piece in enumerate(subwords.pieces):
            if id in hidden or not piece:
                continue
            node = 0
            for char in piece:
                node = nodes.setdefault(node << _CODE_BITS | ord(char), len(nodes) + 1)
            pieces[node] = id
        self.piece = np.full(len(nodes) + 1, -1, np.int32)
        self.piece[[*pieces]] = [*pieces.values()]
        self.scores = np.array(subwords.scores)
        self.worst = self.scores.min() - self.PENALTY
        keys = np.fromiter(nodes, np.int64, len(nodes))
        lines = tf.lookup.KeyValueTensorInitializer(keys, np.arange(1, len(nodes) + 1, dtype=np.int64))
        self.children = tf.lookup.StaticHashTable(lines, 0)
        ids = {piece: id for id, piece in enumerate(subwords.pieces) if id not in hidden}
        if subwords.byte_fallback:
            names = [f"<0x{byte:02X}>" for byte in range(256)]
            if missing := [name for name in names if name not in ids]:
                raise ValueError(f"byte_fallback: no piece {missing[0]}, so that it has no operators")
            self.fallback = np.array([ids[name] for name in names], np.int32)

    def __call__(self, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """The pieces of words, code points (U, ragged): (U, ragged), and which characters each begins and ends with."""
        codes, word = words.values, row_numbers(words)
        limit, size = tf.gather(words.row_limits(), word), tf.size(word, tf.int64)
        keys, pieces, longest = self._matches(codes, limit)
        end, length = keys % size, keys // size + 1
        # Rows of characters: the first ones of all words, from the longest to the shortest, then the second ones, ...
        lengths = words.row_lengths()
        order = tf.argsort(lengths, direction="DESCENDING", stable=True)
        rank = tf.math.invert_permutation(order)
        place = tf.range(size) - tf.gather(words.row_starts(), word)
        most = tf.reduce_max(tf.pad(lengths, [[0, 1]]))
        counts = tf.math.unsorted_segment_sum(tf.ones_like(place), place, most)  # of words that have so many characters
        row = tf.gather(tf.cumsum(counts, exclusive=True), place) + tf.cast(tf.gather(rank, word), tf.int64)
        # of each character and each length of a piece that ends there, from the longest one on
        missing = tf.where(_scattered(tf.boolean_mask(end, length == 1), size, False, True))[:, 0]
        end, length = tf.concat([end, missing], 0), tf.concat([length, tf.ones_like(missing)], 0)
        values = tf.concat([tf.gather(self.scores, pieces), tf.fill(tf.shape(missing), self.worst)], 0)
        cell = tf.gather(row, end) * longest + longest - length
        scores = _scattered(cell, size * longest, values, tf.constant(-np.inf, tf.float64))
        scores = tf.reshape(scores, tf.stack([size, longest]))
        best = tf.gather(self._lengths(scores, counts, longest), row)
        ends = self._path(best, words)
        length = tf.gather(best, ends)
        start = ends - length + 1
        wanted, keys = (length - 1) * size + ends, tf.concat([keys, [tf.int64.max]], 0)
        index = tf.searchsorted(keys, wanted)
        known = tf.gather(keys, index) == wanted
        id = tf.where(known, tf.gather(tf.concat([pieces, [-1]], 0), index), self.unknown)
        # Unknown characters one after the other are one piece.
        unknown, of = id == self.unknown, tf.gather(word, ends)
        goes_on = unknown[1:] & unknown[:-1] & (of[1:] == of[:-1])
        first = tf.where(tf.concat([[True], ~goes_on], 0)[: tf.size(id)])[:, 0]
        last = tf.where(tf.concat([~goes_on, [True]], 0)[: tf.size(id)])[:, 0]
        id, of = tf.gather(id, first), tf.gather(of, first)
        first, last = tf.gather(start, first), tf.gather(ends, last)
        if self.fallback is not None:
            id, of, first, last = self._bytes(codes, id, of, first, last)
        base = tf.gather(words.row_starts(), of)
        return Ragged.from_value_rowids(id, of, words.nrows(), validate=False), first - base, last - base

    def _matches(self, codes: tf.Tensor, limit: tf.Tensor) -> tuple:
        """The pieces that are in words, in the order of their keys, and the greatest length of one.

        Its key is the number of the character that it ends at, and for each character of it but one that of them all.
        """
        size = tf.size(codes, tf.int64)

        def body(step, start, node, keys, pieces):
            inside = tf.where(start + step < tf.gather(limit, start))[:, 0]
            start, node = tf.gather(start, inside), tf.gather(node, inside)
            letter = tf.cast(tf.gather(codes, start + step), tf.int64)
            node = self.children.lookup(tf.bitwise.left_shift(node, _CODE_BITS) + letter)
            some = tf.where(node > 0)[:, 0]
            start, node = tf.gather(start, some), tf.gather(node, some)
            piece = tf.gather(self.piece, node)
            whole = tf.where(piece >= 0)[:, 0]
            number = tf.cast(step, tf.int32) + 1
            keys = keys.write(number, step * size + step + tf.gather(start, whole))
            return step + 1, start, node, keys, pieces.write(number, tf.gather(piece, whole))

        start = tf.range(size)
        begin = tf.constant(0, tf.int64), start, tf.zeros_like(start), _array(tf.int64), _array(tf.int32)
        steps, _, _, keys, pieces = tf.while_loop(lambda _, start, *rest: tf.size(start) > 0, body, begin)
        return keys.concat(), pieces.concat(), tf.maximum(steps, 1)

    def _lengths(self, scores: tf.Tensor, counts: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
        """The length of the last piece of the best path to each character, int64."""
        steps = tf.size(counts)
        words = tf.reduce_max(tf.pad(counts, [[0, 1]]))

        def body(step, begin, recent, array):
            """`recent` has the scores of the best paths that end before the last characters of each word."""
            count, size = counts[step], tf.shape(recent, tf.int64)[1]
            sums = recent[:count] + scores[begin : begin + count, longest - size :]
            array = array.write(step + 1, size - tf.argmax(sums, 1))
            best = tf.reduce_max(sums, 1, keepdims=True)
            recent = tf.concat([recent[:count, tf.cast(size == longest, tf.int64) :], best], 1)
            return step + 1, begin + count, recent, array

        shape = tf.stack([words, tf.minimum(longest, 1)])  # 1, but not for the shapes of the loop
        begin = tf.constant(0), tf.constant(0, tf.int64), tf.zeros(shape, tf.float64), _array(tf.int64)
        *_, array = tf.while_loop(lambda step, *_: step < steps, body, begin)
        return array.concat()

    def _path(self, best: tf.Tensor, words: tf.RaggedTensor) -> tf.Tensor:
        """The characters at which pieces end, ascending, of all words."""

        def body(step, end, start, array):
            array = array.write(step, end)
            end -= tf.gather(best, end)
            inside = tf.where(end >= start)[:, 0]
            return step + 1, tf.gather(end, inside), tf.gather(start, inside), array

        begin = tf.constant(1), words.row_limits() - 1, words.row_starts(), _array(tf.int64)
        *_, array = tf.while_loop(lambda _, end, *rest: tf.size(end) > 0, body, begin)
        ends = array.concat()
        return tf.where(_scattered(ends, tf.size(best, tf.int64), True, False))[:, 0]

    def _bytes(self, codes: tf.Tensor, id: tf.Tensor, of: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> tuple:
        """The pieces with those of bytes in place of unknown ones, each with the span of all of them."""
        letters = _utf8(codes)
        before = tf.pad(tf.cumsum(tf.reduce_sum(tf.cast(letters >= 0, tf.int64), 1)), [[1, 0]])
        letters = tf.boolean_mask(letters, letters >= 0)
        known = id != self.unknown
        begin, end = tf.gather(before, first), tf.gather(before, last + 1)
        index: Any = tf.ragged.range(begin, tf.where(known, begin + 1, end))
        number = row_numbers(index)
        id = tf.where(
            tf.gather(known, number), tf.gather(id, number), tf.gather(self.fallback, tf.gather(letters, index.values))
        )
        return id, *(tf.gather(each, number) for each in (of, first, last))


class _BytePairs(tf.Module):
    """The pieces of words by byte-pair encoding: the pair of least rank is merged, then the next one, ..."""

    def __init__(self, subwords: Subwords):
        super().__init__("byte_pairs")
        ids = {piece: id for id, piece in enumerate(subwords.pieces)}
        self.bytes = np.array([ids[letter] for letter in BYTES], np.int64)
        ranks = {(ids[left], ids[right]): rank for rank, (left, right) in enumerate(subwords.merges)}
        merged = [ids[left + right] for left, right in subwords.merges]
        self.merged = np.array([*merged, 0], np.int64)
        # a merge of which nothing that it makes is merged before it can be made wherever it is possible at once
        first = np.full(len(ids), _LAST)
        for (left, right), rank in ranks.items():
            first[[left, right]] = np.minimum(first[[left, right]], rank)
        self.at_once = first[self.merged] > np.arange(len(self.merged))
        keys = np.array([left << 32 | right for left, right in ranks] or [-1], np.int64)
        lines = tf.lookup.KeyValueTensorInitializer(keys, np.array([*ranks.values()] or [_LAST], np.int32))
        self.ranks = tf.lookup.StaticHashTable(lines, _LAST)

    def __call__(self, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """The pieces of words, code points (U, ragged): (U, ragged), and which characters each begins and ends with."""
        codes = words.values
        letters = _utf8(codes)  # (N, 4)
        index = tf.where(tf.reshape(letters, [-1]) >= 0)[:, 0]
        char = index // 4  # of each byte
        word = tf.gather(row_numbers(words), char)
        symbol = tf.gather(self.bytes, tf.gather(tf.reshape(letters, [-1]), index))
        size, count = tf.size(word, tf.int64), words.nrows()
        place = tf.range(size)
        arrays = [_array(tf.int64) for _ in range(2)]

        def body(step, place, word, symbol, rank, places, symbols):
            low = tf.gather(tf.math.unsorted_segment_min(rank, word, count), word)
            over, on = (tf.where(flag)[:, 0] for flag in (low == _LAST, low < _LAST))
            places, symbols = (
                array.write(step, tf.gather(values, over)) for array, values in ((places, place), (symbols, symbol))
            )
            place, word, symbol, rank, low = (tf.gather(each, on) for each in (place, word, symbol, rank, low))
            at = tf.where(rank == low)[:, 0]
            # in a row of equal symbols each second one; of a merge that can not be made at once the first of the word
            number = tf.range(tf.size(at, tf.int64))
            follows = tf.concat([[False], at[1:] == at[:-1] + 1], 0)[: tf.size(at)]
            head = tf.where(~follows)[:, 0]
            head = tf.gather(head, tf.cumsum(tf.cast(~follows, tf.int64)) - 1)
            own = tf.gather(word, at)
            alone = tf.concat([[True], own[1:] != own[:-1]], 0)[: tf.size(at)]
            now = ((number - head) % 2 == 0) & (tf.gather(self.at_once, tf.gather(low, at)) | alone)
            at = tf.boolean_mask(at, now)
            symbol = tf.tensor_scatter_nd_update(symbol, at[:, None], tf.gather(self.merged, tf.gather(low, at)))
            stays = tf.where(_scattered(at + 1, tf.size(symbol, tf.int64), False, True))[:, 0]
            place, word, symbol, rank = (tf.gather(each, stays) for each in (place, word, symbol, rank))
            at -= tf.range(tf.size(at, tf.int64))
            changed = tf.concat([at, tf.maximum(at - 1, 0)], 0)
            rank = tf.tensor_scatter_nd_update(rank, changed[:, None], self._ranks(word, symbol, changed))
            return step + 1, place, word, symbol, rank, places, symbols

        begin = tf.constant(1), place, word, symbol, self._ranks(word, symbol, place), *arrays
        *_, places, symbols = tf.while_loop(lambda _, place, *rest: tf.size(place) > 0, body, begin)
        pieces = _scattered(places.concat(), size, symbols.concat(), tf.constant(-1, tf.int64))
        first = tf.where(pieces >= 0)[:, 0]
        of = tf.gather(word, first)
        last = tf.gather(char, tf.concat([first[1:], [size]], 0)[: tf.size(first)] - 1)
        base = tf.gather(words.row_starts(), of)
        ids = tf.cast(tf.gather(pieces, first), tf.int32)
        return (
            Ragged.from_value_rowids(ids, of, count, validate=False),
            tf.gather(char, first) - base,
            last - base,
        )

    def _ranks(self, word: tf.Tensor, symbol: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """The rank of the pair of symbols that begins at each of some places."""
        behind = tf.minimum(places + 1, tf.size(word, tf.int64) - 1)
        pair = tf.bitwise.left_shift(tf.gather(symbol, places), 32) + tf.gather(symbol, behind)
        inside = (tf.gather(word, places) == tf.gather(word, behind)) & (behind > places)
        return tf.where(inside, self.ranks.lookup(pair), _LAST)


def _utf8(codes: tf.Tensor) -> tf.Tensor:
    """The bytes of code points, int32 (N, 4), -1 behind the last one."""
    shift = tf.bitwise.right_shift
    parts = [tf.bitwise.bitwise_and(shift(codes, 6 * n), 63) + 128 for n in range(3)]
    none = tf.fill(tf.shape(codes), -1)
    one, two = [codes, none, none, none], [192 + shift(codes, 6), parts[0], none, none]
    three, four = [224 + shift(codes, 12), *parts[1::-1], none], [240 + shift(codes, 18), *parts[2::-1]]
    rows = [tf.stack(each, 1) for each in (one, two, three, four)]
    wide = codes[:, None]
    return tf.where(wide < 0x80, rows[0], tf.where(wide < 0x800, rows[1], tf.where(wide < 0x10000, rows[2], rows[3])))
