"""Subword tokenizers as a TensorFlow graph: SentencePiece's unigram model and byte-level BPE, as `text.subwords`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tokenizers import pre_tokenizers

from keras_ctxrep.text.subwords import SPACE, WHITE_SPACE, Subwords
from keras_ctxrep_export.charsmaps import Characters, CharsMap, CodePoints, replaced
from keras_ctxrep_export.words import Words, row_numbers

__all__ = ["SubwordOps"]

_SPACE, _META = ord(" "), ord(SPACE)
_CODE_BITS = 21  # of a code point


class SubwordOps(tf.Module):
    """`text.subwords.SubwordTokenizer` for a batch of texts.

    Args:
        subwords: what it does.

    Raises:
        ValueError: a step of normalization has no operators.
    """

    def __init__(self, subwords: Subwords):
        super().__init__()
        self.subwords = subwords
        missing = [step for step in subwords.steps if step not in _STEPS and step != "precompiled"]
        if missing:
            raise ValueError(f"normalization {', '.join(missing)}: has no operators of TensorFlow")
        self.charsmap = CharsMap(subwords.charsmap) if "precompiled" in subwords.steps else None
        self.space = CodePoints({ord(char): 1 for char in WHITE_SPACE})
        self.model = _Unigram(subwords)

    def split(self, texts: tf.Tensor) -> Words:
        """The parts of texts, string (B,), that are cut into pieces, normalized."""
        original: Any = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        rows = row_numbers(original)
        begins = tf.gather(original.row_starts(), rows)
        origin = tf.cast(tf.range(tf.size(rows, tf.int64)) - begins, tf.int32)
        chars = Characters(original.values, origin, rows)
        for step in self.subwords.steps:
            chars = self.charsmap(chars) if step == "precompiled" else _STEPS[step](self, chars)
        begin, chars = self._metaspace(chars)
        first = tf.where(begin)[:, 0]
        ragged: Any = tf.RaggedTensor
        splits = tf.concat([first, [tf.size(chars.codes, tf.int64)]], 0)
        number = tf.range(tf.size(first))
        return Words(
            ragged.from_row_splits(chars.codes, splits, validate=False),
            chars.origin,
            ragged.from_value_rowids(number, tf.gather(chars.rows, first), original.nrows(), validate=False),
            original,
        )

    def _metaspace(self, chars: Characters) -> tuple[tf.Tensor, Characters]:
        """Whether a part begins at each character, and the characters with "▁" in place of spaces and before parts."""
        codes, rows = chars.codes, chars.rows
        begin = tf.concat([[True], rows[1:] != rows[:-1]], 0)[: tf.size(rows)]
        stays = tf.ones_like(begin)
        if self.subwords.whitespace:
            space = self.space(codes) > 0
            stays = ~space
            begin |= tf.concat([[True], space[:-1]], 0)[: tf.size(rows)]
        else:
            codes = tf.where(codes == _SPACE, _META, codes)
        meta = codes == _META
        prefix = begin & stays & ~meta
        if self.subwords.prefix == "never":
            prefix = tf.zeros_like(prefix)
        elif self.subwords.prefix == "first":
            prefix &= chars.origin == 0
        # each character and what is before it
        two = tf.stack([prefix, stays], 1)
        index = tf.where(tf.reshape(two, [-1]))[:, 0]
        parent, second = index // 2, index % 2 > 0
        starts = tf.gather(begin | meta, parent) & ~(second & tf.gather(prefix, parent))
        codes = tf.where(second, tf.gather(codes, parent), _META)
        return starts, Characters(codes, tf.gather(chars.origin, parent), tf.gather(rows, parent))

    def cut(self, words: Words, most: int | None = None) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """The pieces of each text's first `most` words, (B, ragged, ragged); if of all, where each begins and ends."""
        unique, number = tf.unique(tf.strings.unicode_encode(words.codes, "UTF-8"), tf.int64)
        representative = tf.math.unsorted_segment_min(
            tf.range(tf.size(number, tf.int64)), number, tf.size(unique, tf.int64)
        )
        codes = tf.gather(words.codes, representative)
        ids, first, last = self.model(codes)
        # of each word those of the equal one
        numbers = words.numbers.with_values(number)[:, :most]
        begin = tf.gather(ids.row_starts(), numbers.values)
        of: Any = tf.ragged.range(begin, tf.gather(ids.row_limits(), numbers.values))
        pieces = numbers.with_values(of.with_values(tf.gather(ids.values, of.values)))
        place = tf.gather(words.codes.row_starts(), row_numbers(of))
        start = tf.gather(words.origin, place + tf.gather(first, of.values))
        end = tf.gather(words.origin, place + tf.gather(last, of.values)) + 1
        text = tf.gather(words.original.row_starts(), tf.gather(row_numbers(numbers), row_numbers(of)))
        return pieces, *self._trimmed(words.original.values, text, start, end)

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
        stays = ~tf.concat([again[1:], [False]], 0)[: tf.size(space)]
        return Characters(tf.where(again, by, chars.codes), *chars[1:]).take(tf.where(stays)[:, 0])


_STEPS: dict[str, Callable[[SubwordOps, Characters], Characters]] = {
    "strip": SubwordOps._strip,
    "strip_left": lambda ops, chars: ops._strip(chars, right=False),
    "strip_right": lambda ops, chars: ops._strip(chars, left=False),
    "one_space": lambda ops, chars: ops._one_space(chars, _SPACE),
    "one_metaspace": lambda ops, chars: ops._one_space(chars, _META),
}


class _Unigram:
    """The pieces of words of the greatest sum of scores, by Viterbi's algorithm."""

    PENALTY = 10.0  # of an unknown character, below the least score

    def __init__(self, subwords: Subwords):
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
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        if subwords.byte_fallback:
            self.fallback = np.array([ids[name] for name in names], np.int32)

    def __call__(self, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """The pieces of words, code points (U, ragged): (U, ragged), and which characters each begins and ends with."""
        codes, word = words.values, row_numbers(words)
        limit, size = tf.gather(words.row_limits(), word), tf.size(word, tf.int64)
        end, length, piece, longest = self._matches(codes, limit)
        # Rows of characters: the first ones of all words, from the longest to the shortest, then the second ones, ...
        lengths = words.row_lengths()
        order = tf.argsort(lengths, direction="DESCENDING", stable=True)
        rank = tf.math.invert_permutation(order)
        place = tf.range(size) - tf.gather(words.row_starts(), word)
        most = tf.reduce_max(tf.pad(lengths, [[0, 1]]))
        counts = tf.math.unsorted_segment_sum(tf.ones_like(place), place, most)  # of words that have so many characters
        begins = tf.cumsum(counts, exclusive=True)
        row = tf.gather(begins, place) + tf.cast(tf.gather(rank, word), tf.int64)
        # of each character and each length of a piece that ends there, from the longest one on
        cell = (tf.gather(row, end) * longest + longest - length)[:, None]
        shape = tf.reshape(size * longest, [1])
        ids = tf.tensor_scatter_nd_update(tf.fill(shape, -1), cell, piece)
        scores = tf.fill(shape, tf.constant(-np.inf, tf.float64))
        scores = tf.tensor_scatter_nd_update(scores, cell, tf.gather(self.scores, piece))
        scores = tf.reshape(scores, tf.stack([size, longest]))
        single = scores[:, -1:]
        scores = tf.concat([scores[:, :-1], tf.where(single > -np.inf, single, self.worst)], 1)
        best = tf.gather(self._lengths(scores, begins, counts, longest), row)
        ends = self._path(best, words)
        start = ends - tf.gather(best, ends) + 1
        id = tf.gather(ids, tf.gather(row, ends) * longest + longest - tf.gather(best, ends))
        id = tf.where(id < 0, self.unknown, id)
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
        ragged: Any = tf.RaggedTensor
        return ragged.from_value_rowids(id, of, words.nrows(), validate=False), first - base, last - base

    def _matches(self, codes: tf.Tensor, limit: tf.Tensor) -> tuple:
        """The pieces that are in words: at which character each ends, its length, itself; and the greatest length."""
        arrays = [tf.TensorArray(kind, 1, dynamic_size=True, infer_shape=False, element_shape=[None]) for kind in _KINDS]

        def body(step, start, node, ends, lengths, pieces):
            inside = tf.where(start + step < tf.gather(limit, start))[:, 0]
            start, node = tf.gather(start, inside), tf.gather(node, inside)
            letter = tf.cast(tf.gather(codes, start + step), tf.int64)
            node = self.children.lookup(tf.bitwise.left_shift(node, _CODE_BITS) + letter)
            some = tf.where(node > 0)[:, 0]
            start, node = tf.gather(start, some), tf.gather(node, some)
            piece = tf.gather(self.piece, node)
            whole = tf.where(piece >= 0)[:, 0]
            end = tf.gather(start, whole) + step
            step += 1
            values = end, tf.fill(tf.shape(end), step), tf.gather(piece, whole)
            written = [array.write(tf.cast(step, tf.int32) - 1, value) for array, value in zip((ends, lengths, pieces), values)]
            return step, start, node, *written

        start = tf.range(tf.size(codes, tf.int64))
        begin = tf.constant(0, tf.int64), start, tf.zeros_like(start), *arrays
        steps, _, _, *arrays = tf.while_loop(lambda _, start, *rest: tf.size(start) > 0, body, begin)
        return *(array.concat() for array in arrays), tf.maximum(steps, 1)

    def _lengths(self, scores: tf.Tensor, begins: tf.Tensor, counts: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
        """The length of the last piece of the best path to each character, int64."""
        words = tf.reduce_max(tf.pad(counts, [[0, 1]]))
        none = tf.fill(tf.stack([words, longest - 1]), tf.constant(-np.inf, tf.float64))
        recent: Any = tf.concat([none, tf.zeros(tf.stack([words, 1]), tf.float64)], 1)  # best scores before the last characters
        steps = tf.size(counts)
        array = tf.TensorArray(tf.int64, steps, infer_shape=False, element_shape=[None])

        def body(step, recent, array):
            begin, count = begins[step], counts[step]
            sums = recent[:count] + scores[begin : begin + count]
            best = tf.reduce_max(sums, 1, keepdims=True)
            array = array.write(step, longest - tf.argmax(sums, 1))
            return step + 1, tf.concat([recent[:count, 1:], best], 1), array

        shapes = tf.TensorShape([]), tf.TensorShape([None, None]), None
        _, _, array = tf.while_loop(lambda step, *_: step < steps, body, (tf.constant(0), recent, array))
        return array.concat()

    def _path(self, best: tf.Tensor, words: tf.RaggedTensor) -> tf.Tensor:
        """The characters at which pieces end, ascending, of all words."""
        array = tf.TensorArray(tf.int64, 1, dynamic_size=True, infer_shape=False, element_shape=[None])

        def body(step, end, start, array):
            array = array.write(step, end)
            end -= tf.gather(best, end)
            inside = tf.where(end >= start)[:, 0]
            return step + 1, tf.gather(end, inside), tf.gather(start, inside), array

        begin = tf.constant(0), words.row_limits() - 1, words.row_starts(), array
        *_, array = tf.while_loop(lambda _, end, *rest: tf.size(end) > 0, body, begin)
        ends = array.concat()
        return tf.where(tf.scatter_nd(ends[:, None], tf.ones_like(ends), tf.shape(best, tf.int64)) > 0)[:, 0]

    def _bytes(self, codes: tf.Tensor, id: tf.Tensor, of: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> tuple:
        raise NotImplementedError


_KINDS = tf.int64, tf.int64, tf.int32
