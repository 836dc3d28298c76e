"""The text preparation of `keras_ctxrep.text.features` as a TensorFlow graph, for models that take raw strings."""

import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import CharacterAndWordFeatures, CharacterFeatures
from keras_ctxrep.text.tokens import Characters, WordPiece

# The rule of each of these code points also holds up to the next one in the list. Surrogates are not characters, planes
# 4 to 13 are empty, and a private-use plane is uniform but for its last two code points.
_PROBED = (
    range(0xD800),
    range(0xE000, 0x40000),
    range(0x40001, 0x40002),
    range(0xE0000, 0xF0001),
    range(0xFFFFE, 0x100001),
    range(0x10FFFE, 0x110000),
)
_BETWEEN = chr(0x40000)  # outside _PROBED, and no rule touches it
_NONE = -0x200000  # added to any code point it is negative
_INSIDE, _SPACE, _APART = range(3)


def features(bundle: Bundle) -> "WordOps | PieceOps":
    """The function `bundle.features` in stock ops of TensorFlow and tensorflow-text, for a batch of texts.

    tensorflow-text's own BERT tokenizers differ: they fold case by NFKC ("½", "ﬁ" and "…" are rewritten)
    and split words at characters that BERT removes. Here the rules are those of `tokenizers`, read from it character by
    character when a graph is traced, so that offsets into the original text come with the words. Bytes that are not
    UTF-8 are U+FFFD, which is removed.

    It differs in one case: where accents are stripped, a musical note of one character before a virama.

    Args:
        bundle: its family, vocabulary and lengths are read.

    Returns: a function from string (B,), and a second one where the bundle reads pairs, to the dict of
        `bundle.features(texts)` or `bundle.features(texts, pairs)`, each int32, padded to the longest row.
        It works in a `tf.function` and in a SavedModel; all its data are constants of the graph, and for a model of
        word ids a table: a `tf.Module`, so that a SavedModel tracks it.

    Raises:
        ValueError: word vectors with character n-grams.
        RuntimeError: tensorflow-text can not take a piece of the vocabulary (over 256 bytes, or beginning with NUL).

    >>> elmo = Bundle("elmo", "embed", {"max_characters": 6}, max_length=2)
    >>> batch = features(elmo)(tf.constant(["Hi!", ""]))
    >>> batch["char_ids"].numpy()[0].tolist(), batch["mask"].numpy().tolist()
    ([[259, 73, 106, 260, 261, 261], [259, 34, 260, 261, 261, 261]], [[1, 1], [0, 0]])
    """
    return FAMILIES[bundle.family](bundle)


class Words(NamedTuple):
    """The words of a batch of texts.

    Attributes:
        codes: code points of each word as the model sees it, (words of all texts, ragged).
        origin: for each of them, which character of its text it comes from.
        numbers: the numbers of each text's words, (B, ragged); `numbers.with_values` gives them other values.
        original: the code points of the texts, (B, ragged).
    """

    codes: tf.RaggedTensor
    origin: tf.Tensor
    numbers: tf.RaggedTensor
    original: tf.RaggedTensor

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
        start, end = (span[:, :most] for span in self.spans())
        words = start.with_values(substrings(self.original, start.value_rowids(), start.values, end.values))
        return {"words": _padded(words, ""), "starts": _padded(start), "ends": _padded(end)}


def split(texts: tf.Tensor, lowercase: bool = False, strip_accents: bool = False, split_cjk: bool = True) -> Words:
    """`tokens.words`, or the words of a BERT with these rules: of string (B,).

    >>> start, end = split(tf.constant(["a\\t(é"])).spans()
    >>> start.to_list(), end.to_list()
    ([[0, 2, 3]], [[1, 3, 4]])
    """
    rules = _rules(lowercase, strip_accents, split_cjk)
    original = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
    code, text = original.flat_values, original.value_rowids()
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
    word = tf.cumsum(kind) - tf.cast(kind == _APART, tf.int64) + text  # grows from one word to the next
    becomes = tf.reshape(code[:, None] + tf.gather(rules.shifts, rule), [-1])
    index = tf.where(becomes >= 0)[:, 0]
    codes, parent = tf.gather(becomes, index), index // rules.shifts.shape[1]
    word = tf.gather(word, parent)
    first = tf.where(word != tf.concat([[-1], word[:-1]], 0))[:, 0]
    row = tf.gather(text, parent)
    origin = tf.cast(parent - tf.gather(original.row_splits, row), tf.int32)
    nrows = tf.size(texts, tf.int64)
    ragged: Any = tf.RaggedTensor
    splits = tf.concat([first, [tf.size(codes, tf.int64)]], 0)
    return Words(
        ragged.from_row_splits(codes, splits, validate=False),
        origin,
        ragged.from_value_rowids(tf.range(tf.size(first)), tf.gather(row, first), nrows, validate=False),
        original,
    )


class WordOps(tf.Module):
    """`features` of a model that reads words: as character ids, as ids from a vocabulary, or both."""

    def __init__(self, bundle: Bundle):
        super().__init__()
        prepared = bundle.features
        if "subword_ids" in prepared.keys:
            raise ValueError("word vectors with character n-grams have no graph of their text preparation: use Keras")
        characters = prepared.characters if isinstance(prepared, CharacterAndWordFeatures) else prepared
        self.max_length, self.width, self.table = prepared.max_length, 0, None
        if isinstance(characters, CharacterFeatures):
            self.width = characters.characters.width
        if "word_ids" in prepared.keys:
            lines = tf.lookup.KeyValueTensorInitializer(
                [*bundle.vocab], [*range(1, len(bundle.vocab) + 1)], tf.string, tf.int32
            )
            self.table = tf.lookup.StaticHashTable(lines, 1 + bundle.vocab.index("<UNK>"))
            self.lowercase = (bundle.extra_embeddings or bundle.config).get("lowercase", False)

    def __call__(self, text: tf.Tensor, marks: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        return self.tagging(text, marks)[0]

    def tagging(
        self, text: tf.Tensor, marks: tf.Tensor | None = None
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """The model's input, and "words", "starts" and "ends" of what it reads, each (B, T)."""
        words = split(text)
        ids = {}
        if self.width:
            ids["char_ids"] = self._characters(words.strings(self.max_length))
        if self.table is not None:
            seen = split(text, lowercase=True) if self.lowercase else words
            ids["word_ids"] = self.table.lookup(seen.strings(self.max_length))
        mask = ids["mask"] = tf.ones_like(words.numbers[:, : self.max_length])
        inputs = {key: _padded(rows) for key, rows in ids.items()}
        if marks is not None:
            inputs["marks"] = _marked(*words.spans(), marks, mask.row_lengths())
        return inputs, words.dense(self.max_length)

    def _characters(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        # "<S>" and "</S>" do not come out of the split, so every word is its bytes.
        flat, most = words.flat_values, self.width - 2
        data = tf.cast(tf.io.decode_raw(flat, tf.uint8, fixed_length=most), tf.int32)
        end = tf.minimum(tf.strings.length(flat), most)[:, None]
        position = tf.range(most + 1)
        ids = tf.where(position < end, tf.pad(data + 1, [[0, 0], [0, 1]]), Characters.PADDING)
        ids = tf.where(position == end, Characters.END_WORD, ids)
        return words.with_flat_values(tf.pad(ids, [[0, 0], [1, 0]], constant_values=Characters.BEGIN_WORD))


class Windows(NamedTuple):
    """Questions, each with every window of its context.

    Attributes:
        inputs: of the model, a row for each window (R).
        example: int64 (R,), which question it is of; ascending.
        first: int64 (R,), the position of the part's first piece in the row.
        size: int64 (R,), pieces of the part.
        piece: int64 (R,), the number of the part's first piece among those of all contexts.
        start, end: int32, of each of these pieces, in characters of its context.
        contexts: code points, (B, ragged).
    """

    inputs: dict[str, tf.Tensor]
    example: tf.Tensor
    first: tf.Tensor
    size: tf.Tensor
    piece: tf.Tensor
    start: tf.Tensor
    end: tf.Tensor
    contexts: tf.RaggedTensor

    def substrings(self, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Characters [start, end) of each context, int32 (B,) -> string (B,)."""
        return substrings(self.contexts, tf.range(tf.size(start, tf.int64)), start, end)


class PieceOps(tf.Module):
    """`features` of a model that reads word pieces."""

    def __init__(self, bundle: Bundle):
        super().__init__()
        prepared: Any = bundle.features
        self.indicate = prepared.indicate
        self.pieces, self.max_length = prepared.wordpiece, prepared.max_length
        self.starts, self.max_question = prepared.starts, prepared.max_question
        known = set(self.pieces.vocab)
        self.unknown = next(char for char in map(chr, count(0xE000)) if char not in known)
        self.tokenizer = tf_text.FastWordpieceTokenizer(
            self.pieces.vocab,
            max_bytes_per_word=4 * WordPiece.MAX_WORD,
            token_out_type=tf.int32,
            no_pretokenization=True,
        )

    def __call__(
        self, text: tf.Tensor, pair: tf.Tensor | None = None, marks: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        if self.starts:
            return self.tagging(text, marks)[0]
        # Each word has at least one piece.
        cut = self._cut(self._split(text), self.max_length if pair is None and marks is None else None)
        first, second = cut[0].merge_dims(1, 2), None
        if pair is None:
            first = first[:, : self.max_length - 2]
        else:
            second = self._cut(self._split(pair))[0].merge_dims(1, 2)
            first, second = _truncated_pair(first, second, self.max_length - 3)
        return self._with_marks(self._rows(first, second), cut, first.row_lengths(), marks)

    def _with_marks(
        self, inputs: dict[str, tf.Tensor], cut: tuple, lengths: tf.Tensor, marks: tf.Tensor | None
    ) -> dict[str, tf.Tensor]:
        """The model's input with the marked spans of the first text, as "marks" or in the second segment."""
        if marks is None:
            return inputs
        ids, start, end = cut
        pieces = ids.merge_dims(1, 2)
        spans = _marked(pieces.with_values(start), pieces.with_values(end), marks, lengths, 1)
        if not self.indicate:
            return inputs | {"marks": spans}
        position = tf.range(tf.shape(inputs["mask"])[1])
        begin, end = tf.split(spans, 2, -1)  # each (B, M, 1)
        inside = (begin <= position) & (position < end)  # (B, M, T)
        segments = tf.where(tf.reduce_any(inside, 1), 1, inputs["segment_ids"])
        return inputs | {"segment_ids": segments}

    def tagging(
        self, text: tf.Tensor, marks: tf.Tensor | None = None
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """The model's input, and "words", "starts" and "ends" of all words of the texts, each (B, W)."""
        words = self._split(text)
        cut = self._cut(words)
        ids = cut[0]  # (B, ragged W, ragged)
        begin = ids.values.row_starts()
        position = 1 + begin - tf.gather(begin, tf.gather(ids.row_starts(), ids.value_rowids()))
        starts = ids.with_values(tf.cast(tf.where(position < self.max_length - 1, position, 0), tf.int32))
        pieces = ids.merge_dims(1, 2)[:, : self.max_length - 2]
        inputs = self._with_marks(self._rows(pieces), cut, pieces.row_lengths(), marks)
        return inputs | {"starts": _padded(starts)}, words.dense()

    def windows(self, questions: tf.Tensor, contexts: tf.Tensor, stride: int) -> Windows:
        """`WordPieceFeatures.windows` for a batch."""
        question = self._cut(self._split(questions), self.max_question)[0].merge_dims(1, 2)[:, : self.max_question]
        room = self.max_length - 3 - question.row_lengths()
        words = self._split(contexts)
        ids, start, end = self._cut(words)
        context = ids.merge_dims(1, 2)
        # as `features.window_step`
        step, sizes = (
            tf.where(stride < room, tf.cast(stride, room.dtype), tf.maximum(room // 2, 1)),
            context.row_lengths(),
        )
        numbers = tf.ragged.range(1 + (tf.maximum(sizes - room, 0) + step - 1) // step)  # (B, windows)
        example = numbers.value_rowids()
        begin = numbers.values * tf.gather(step, example)
        size = tf.minimum(tf.gather(room, example), tf.gather(sizes, example) - begin)
        piece = tf.gather(context.row_starts(), example) + begin
        asked = tf.gather(question, example)
        part = tf.gather(context.values, tf.ragged.range(piece, piece + size))
        first = asked.row_lengths() + 2
        return Windows(self._rows(asked, part), example, first, size, piece, start, end, words.original)

    def _split(self, texts: tf.Tensor) -> Words:
        return split(texts, self.pieces.lowercase, self.pieces.strip_accents, self.pieces.split_cjk)

    def _cut(self, words: Words, most: int | None = None) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """The pieces of each text's first `most` words, (B, ragged, ragged); if of all, where each begins and ends."""
        long = words.codes.row_lengths() > WordPiece.MAX_WORD
        strings = words.strings()
        strings = strings.with_values(tf.where(long, self.unknown, strings.values))[:, :most]
        ids, begin, end = self.tokenizer.tokenize_with_offsets(strings)
        # Bytes of a word to its code points.
        code, word = words.codes.values, ids.values.value_rowids()
        before = tf.cumsum(sum(tf.cast(code >= least, tf.int32) for least in (0, 0x80, 0x800, 0x10000)), exclusive=True)
        base = tf.gather(before, tf.gather(words.codes.row_starts(), word))
        first, last = (
            tf.searchsorted(before, base + tf.cast(byte, tf.int32), side="right") - 1
            for byte in (begin.flat_values, end.flat_values - 1)
        )
        last = tf.where(tf.gather(long, word), tf.cast(tf.gather(words.codes.row_limits(), word), tf.int32) - 1, last)
        return ids, tf.gather(words.origin, first), tf.gather(words.origin, last) + 1

    def _rows(self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None) -> dict[str, tf.Tensor]:
        """The model's input from pieces that fit."""
        marker = tf.ones([first.nrows(), 1], tf.int32)
        cls, sep = self.pieces.cls * marker, self.pieces.sep * marker
        rows = _joined(cls, first, sep)
        segments = tf.zeros_like(rows)
        if second is not None:
            added = _joined(second, sep)
            rows, segments = _joined(rows, added), _joined(segments, tf.ones_like(added))
        mask = tf.ones_like(rows)
        return {"token_ids": _padded(rows, self.pieces.pad), "segment_ids": _padded(segments), "mask": _padded(mask)}


def substrings(texts: tf.RaggedTensor, rows: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Characters [start, end) of the texts with these numbers: code points (B, ragged) -> string (n,).

    >>> substrings(tf.strings.unicode_decode(["one", "two"], "UTF-8"), tf.constant([1]), [0], [2]).numpy()
    array([b'tw'], dtype=object)
    """
    begin = tf.gather(texts.row_starts(), rows)
    characters = tf.ragged.range(begin + tf.cast(start, tf.int64), begin + tf.cast(end, tf.int64))
    return tf.strings.unicode_encode(tf.gather(texts.values, characters), "UTF-8")


def _joined(*rows: Any) -> Any:
    """Ragged rows, one behind the other."""
    return tf.concat(rows, 1)


def _truncated_pair(first: tf.RaggedTensor, second: tf.RaggedTensor, room: int) -> list[tf.RaggedTensor]:
    """`keras_ctxrep.text.features.truncate_pair` for a batch."""
    sizes = first.row_lengths(), second.row_lengths()
    shorter = tf.minimum(tf.minimum(*sizes), room // 2)
    keep_first = tf.where(sizes[0] <= sizes[1], shorter, room - shorter)
    fits = tf.reduce_sum(sizes, 0) <= room
    return [
        tf.ragged.boolean_mask(part, fits[:, None] | (tf.ragged.range(part.row_lengths()) < keep[:, None]))
        for part, keep in ((first, keep_first), (second, room - keep_first))
    ]


def _marked(
    start: tf.RaggedTensor, end: tf.RaggedTensor, marks: tf.Tensor, lengths: tf.Tensor, first: int = 0
) -> tf.Tensor:
    """`features.covered` for a batch.

    Args:
        start, end: where each token stands, in characters, int32 (B, ragged).
        marks: spans of characters, int32 (B, M, 2).
        lengths: number of tokens of each text, after truncation, int64 (B,).
        first: position of a text's first token.

    Returns: int32 (B, M, 2), the first token of each span and the one after its last, (0, 0) if it is not all there.
    """
    begin, stop = _padded(start)[:, None], _padded(end)[:, None]  # (B, 1, T), 0 to 0 in padding
    left, right = tf.split(marks, 2, -1)  # (B, M, 1)
    inside = tf.cast((begin < right) & (stop > left) & (begin < stop), tf.int32)  # (B, M, T)
    before = tf.argmax(inside, -1, tf.int32)
    after = tf.shape(inside)[-1] - tf.argmax(tf.reverse(inside, [-1]), -1, tf.int32)
    complete = tf.reduce_any(inside > 0, -1) & (after <= tf.cast(lengths, tf.int32)[:, None])
    return tf.where(complete[..., None], first + tf.stack([before, after], -1), 0)


def _padded(rows: tf.RaggedTensor, fill: int | str = 0) -> tf.Tensor:
    """Dense rows of at least one position."""
    inner = rows.flat_values.shape[1:]
    longest = tf.maximum(tf.reduce_max(rows.row_lengths()), 1)
    dense = rows.to_tensor(fill, shape=tf.stack([rows.nrows(), longest, *inner]))
    return tf.ensure_shape(dense, [None, None, *inner])


FAMILIES: dict[str, Callable[[Bundle], WordOps | PieceOps]] = {"elmo": WordOps, "bert": PieceOps, "static": WordOps}


class _Rules(NamedTuple):
    """The normalization of each character, one row for each range of code points."""

    first: np.ndarray  # int32 (ranges,), ascending
    kind: np.ndarray  # int64 (ranges,), _INSIDE a word, _SPACE, or _APART: a word of its own
    rank: np.ndarray  # int64 (ranges,), canonical combining class; -1 if removed before the order matters
    shifts: np.ndarray  # int32 (ranges, most), added to the code point give the new ones; _NONE: no more of them


@cache
def _rules(lowercase: bool, strip_accents: bool, split_cjk: bool) -> _Rules:
    """The rules of `tokenizers`, read from its output for every character."""
    chars = [*map(chr, chain(*_PROBED))]

    rules = BertNormalizer(
        clean_text=True, handle_chinese_chars=split_cjk, strip_accents=strip_accents, lowercase=lowercase
    )

    def normalized(template: str) -> list[str]:
        return rules.normalize_str(_BETWEEN.join(map(template.format, chars))).split(_BETWEEN)

    results = normalized("x{}y")
    inside = [becomes[1:-1].strip(" ") for becomes in results]
    single = {piece for piece, _ in BertPreTokenizer().pre_tokenize_str("x".join(inside)) if len(piece) == 1} - {"x"}
    # Canonical order: U+1B44 (class 9) moves before U+302E (class 224), unless a character between them is a base.
    ordered = normalized("x\u302e{}\u1b44y") if strip_accents else results
    lines: list[tuple] = []
    firsts = []
    for char, becomes, inner, order in zip(chars, results, inside, ordered, strict=True):
        kind = _SPACE if becomes == "x y" else _APART if inner in single or becomes[1] == " " else _INSIDE
        passes = order.find("\u1b44") < order.find("\u302e")
        rank = (unicodedata.combining(char) or -1) if passes else 0
        line = (kind, rank, *(ord(new) - ord(char) for new in inner))
        if not lines or line != lines[-1]:
            lines.append(line)
            firsts.append(ord(char))
    most = max(map(len, lines)) - 2
    shifts = [[*line[2:], *[_NONE] * (most + 2 - len(line))] for line in lines]
    kinds, ranks = zip(*(line[:2] for line in lines), strict=True)
    return _Rules(np.array(firsts, np.int32), np.array(kinds), np.array(ranks), np.array(shifts, np.int32))
