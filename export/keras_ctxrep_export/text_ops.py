"""The text preparation of `keras_ctxrep.text.features` as a TensorFlow graph, for models that take raw strings."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_text as tf_text

from keras_ctxrep.checks import of_kind
from keras_ctxrep.tasks.abilities import GraphFeatures
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.character_rules import Casing, enough
from keras_ctxrep.text.families import TEXT_SIDES, TRANSFORMER
from keras_ctxrep.text.features import StaticFeatures, WordPieceFeatures, WordRows, letters_read
from keras_ctxrep.text.pairs import PAIR, PairFeatures
from keras_ctxrep.text.tokens import Characters, WordPiece
from keras_ctxrep.text.units import SubwordTokens, TokenFeatures
from keras_ctxrep_export.shortening import beginning, shortened
from keras_ctxrep_export.subword_ops import SubwordOps
from keras_ctxrep_export.words import (
    Ragged,
    Words,
    lowered,
    ngram_hashes,
    padded,
    row_numbers,
    spelled,
    split,
    substrings,
)

__all__ = [
    "PairOps",
    "PieceOps",
    "Sentences",
    "SubwordTokenOps",
    "TextWindows",
    "TokenOps",
    "Windows",
    "WordOps",
    "features",
    "in_parts",
]


def features(bundle: Bundle) -> GraphFeatures:
    """The function `bundle.features` for a batch, in operators of TensorFlow and, for WordPiece, of tensorflow-text.

    tensorflow-text's own BERT tokenizers differ: they fold case by NFKC ("½", "ﬁ" and "…" are rewritten) and split at
    characters that BERT removes. Here the rules are those of `tokenizers`, read from it character by character when a
    graph is traced; one case differs: where accents are stripped, a musical note of one character before a virama.
    Bytes that are not UTF-8 are U+FFFD, which is removed.

    Args:
        bundle: its family, vocabulary and lengths are read.

    Returns: `WordOps`, `PieceOps`, `TokenOps`, `SubwordTokenOps` or, of texts that the encoder reads apart, `PairOps`:
        a function from string (B,), and a second one where the bundle reads pairs, to the dict of
        `bundle.features(texts)` or `bundle.features(texts, pairs)`, each int32, padded to the longest row; a
        `tf.Module`, so that a SavedModel tracks the table of a model of word ids.

    Raises:
        ValueError: a subword tokenizer has no operators, see `subword_ops`.
        RuntimeError: tensorflow-text can not take a piece of the vocabulary (over 256 bytes, or beginning with NUL).

    >>> elmo = Bundle("elmo", "embed", {"max_characters": 6}, max_length=2)
    >>> batch = features(elmo)(tf.constant(["Hi!", ""]))
    >>> batch["char_ids"].numpy()[0].tolist(), batch["mask"].numpy().tolist()
    ([[259, 73, 106, 260, 261, 261], [259, 34, 260, 261, 261, 261]], [[1, 1], [0, 0]])
    """
    ops: Any = PairOps(bundle) if bundle.apart else GRAPH_SIDES[bundle.family](bundle)
    return ops


class Sentences(NamedTuple):
    """A batch of sentences for a task over words."""

    inputs: dict[str, tf.Tensor]  #: of the model, whose outputs have a row for each word that it reads
    number: tf.Tensor  #: int32 (B, W), which of these rows each word has; -1 if it is not read: cut, or without pieces
    words: dict[str, tf.Tensor]  #: as in `Words.dense`; empty if the sentences came split

    def by_word(self, values: tf.Tensor, fill: Any = 0) -> tf.Tensor:
        """From a row for each word that is read, (B, K, ...), to one for each word, (B, W, ...)."""
        rows = tf.gather(values, tf.maximum(self.number, 0), batch_dims=1)
        read = tf.reshape(self.number >= 0, tf.concat([tf.shape(self.number), [1] * (values.shape.rank - 2)], 0))
        return tf.where(read, rows, tf.cast(fill, values.dtype))


class WordOps(tf.Module):
    """`features` of a model that reads words: as character ids, as ids from a vocabulary, or both."""

    def __init__(self, bundle: Bundle):
        super().__init__()
        prepared = of_kind(bundle.features, WordRows)
        self.max_length, self.width, self.table, self.lowercase = prepared.max_length, prepared.width, None, False
        self.letters = prepared.letters
        self.ngrams, self.first_bucket = prepared.ngrams, len(bundle.vocab) + 1
        if {"word_ids", "subword_ids"} & {*prepared.keys}:
            numbers = [*range(1, len(bundle.vocab) + 1)]
            lines = tf.lookup.KeyValueTensorInitializer([*bundle.vocab], numbers, tf.string, tf.int32)
            self.table = tf.lookup.StaticHashTable(lines, 0 if self.ngrams else 1 + bundle.vocab.index("<UNK>"))
            self.lowercase = (bundle.extra_embeddings or bundle.config).get("lowercase", False)

    def __call__(self, text: tf.Tensor, marks: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        return self.plain(text) if marks is None else self.tagging(text, marks).inputs

    def plain(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The input of an encoder alone."""
        text = shortened(text, Casing(), self.max_length, self.letters)
        return self._inputs(*(rows[:, : self.max_length] for rows in self._strings(text, split(text))))

    def inner(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """The mask of an input's tokens that are of the text, int32 (B, T)."""
        return inputs["mask"]

    def tagging(self, text: tf.Tensor, marks: tf.Tensor | None = None) -> Sentences:
        """Sentences from texts, with the words that are read."""
        text = beginning(text, Casing(), self.max_length)
        words = split(text)
        inputs = self._inputs(*(rows[:, : self.max_length] for rows in self._strings(text, words)))
        if marks is not None:
            lengths = tf.reduce_sum(inputs["mask"], 1)
            inputs["marks"] = _mark(*words.spans(), marks, lengths)
        number = tf.range(tf.shape(inputs["mask"])[1])
        return Sentences(inputs, tf.where(inputs["mask"] > 0, number, -1), words.dense(self.max_length))

    def given(self, words: tf.Tensor, marks: tf.Tensor | None = None) -> Sentences:
        """Sentences that are split already, string (B, W), with spans of words as their marks; "" is no word."""
        words = tf.strings.unicode_transcode(words, "UTF-8", "UTF-8", errors="replace")
        real = words != ""
        order = tf.cumsum(tf.cast(real, tf.int32), 1)
        number = tf.where(real & (order <= self.max_length), order - 1, -1)
        rows = tf.ragged.boolean_mask(words, number >= 0)
        inputs = self._inputs(rows, rows.with_values(lowered(rows.values)) if self.lowercase else rows)
        if self.width:  # the words that stand for a sentence's begin and end
            char_ids = inputs["char_ids"]
            markers = Characters(self.width)(Characters.MARKERS)
            for marker, row in zip(Characters.MARKERS, markers, strict=True):
                char_ids = tf.where(tf.expand_dims(padded(rows, "") == marker, -1), row, char_ids)
            inputs["char_ids"] = char_ids
        if marks is not None:
            before = tf.pad(order, [[0, 0], [1, 0]])
            inputs["marks"] = _tokens_of(before, marks, tf.reduce_sum(inputs["mask"], 1))
        return Sentences(inputs, number, {})

    def text_windows(self, text: tf.Tensor, stride: int) -> "TextWindows":
        """`features.text_windows` for a batch."""
        rows = self._strings(text, split(text))
        inside, *windows = _windows(rows[0], self.max_length, stride)
        return TextWindows(self._inputs(*(tf.gather(strings.values, inside) for strings in rows)), *windows)

    def token_spans(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.RaggedTensor]:
        """Where the word of each token of all texts begins and ends, and the code points of the texts."""
        words = split(text)
        start, end = words.spans()
        return start.values, end.values, words.original

    def _strings(self, text: tf.Tensor, words: Words) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """The words of each text, and as they are looked up in the vocabulary, string (B, ragged)."""
        return words.strings(), (split(text, lowercase=True) if self.lowercase else words).strings()

    def _inputs(self, words: tf.RaggedTensor, seen: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        """The model's input of words that fit."""
        ids = {"char_ids": self._characters(words)} if self.width else {}
        if self.table is not None:
            lines = self.table.lookup(seen)
            ids |= {"subword_ids": self._subwords(seen, lines)} if self.ngrams else {"word_ids": lines}
        ids["mask"] = words.with_values(tf.ones_like(words.values, tf.int32))
        return {key: padded(rows) for key, rows in ids.items()}

    def _subwords(self, words: tf.RaggedTensor, lines: tf.RaggedTensor) -> tf.RaggedTensor:
        """The rows of words, (B, ragged, G), by their lines in the vocabulary, 0 for none; as `StaticFeatures.rows`."""
        shortest, longest, buckets = self.ngrams or (0, 0, 1)
        hashes = ngram_hashes(words.flat_values, shortest, longest, StaticFeatures.MAX_WORD)  # (words, ragged)
        real = tf.gather(words.flat_values != StaticFeatures.END, row_numbers(hashes))
        hashes = tf.ragged.boolean_mask(hashes, hashes.with_values(real))
        line = lines.flat_values[:, None]
        own = tf.ragged.boolean_mask(tf.maximum(line, 1), (line > 0) | (hashes.row_lengths() == 0)[:, None])
        rows: Any = tf.concat([own, self.first_bucket + tf.cast(hashes % buckets, tf.int32)], 1)
        return words.with_flat_values(padded(rows))

    def _characters(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        # "<S>" and "</S>" do not come out of the split, so every word is its bytes.
        flat, most = words.flat_values, self.width - 2
        data = tf.cast(tf.io.decode_raw(flat, tf.uint8, fixed_length=most), tf.int32)
        end = tf.minimum(tf.strings.length(flat), most)[:, None]
        position = tf.range(most + 1)
        ids = tf.where(position < end, tf.pad(data + 1, [[0, 0], [0, 1]]), Characters.PADDING)
        ids = tf.where(position == end, Characters.END_WORD, ids)
        return words.with_flat_values(tf.pad(ids, [[0, 0], [1, 0]], constant_values=Characters.BEGIN_WORD))


class TextWindows(NamedTuple):
    """Texts, each in overlapping windows."""

    inputs: dict[str, tf.Tensor]  #: of the model, a row for each window (R)
    example: tf.Tensor  #: int64 (R,), which text it is of; ascending
    begin: tf.Tensor  #: int64 (R,), the number of its first token among those of all texts
    size: tf.Tensor  #: int64 (R,), its tokens

    def run(self, model: Callable[[dict], dict]) -> dict[str, tf.Tensor]:
        """The model's outputs of all rows."""
        return in_parts(model, self.inputs)


class Windows(NamedTuple):
    """Questions, each with every window of its context."""

    inputs: dict[str, tf.Tensor]  #: of the model, a row for each window (R)
    example: tf.Tensor  #: int64 (R,), which question it is of; ascending
    first: tf.Tensor  #: int64 (R,), the position of the part's first token among the logits
    size: tf.Tensor  #: int64 (R,), tokens of the part
    piece: tf.Tensor  #: int64 (R,), the number of the part's first token among those of all contexts
    start: tf.Tensor  #: int32, of the word that each of these tokens is of, in characters of its context
    end: tf.Tensor
    contexts: tf.RaggedTensor  #: code points, (B, ragged)

    def run(self, model: Callable[[dict], dict]) -> dict[str, tf.Tensor]:
        """The model's outputs of all rows."""
        return in_parts(model, self.inputs)

    def substrings(self, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Characters [start, end) of each context, int32 (B,) -> string (B,)."""
        return substrings(self.contexts, tf.range(tf.size(start, tf.int64)), start, end)


class WordPieceOps:
    """`text.tokens.WordPiece` for a batch of texts."""

    def __init__(self, pieces: WordPiece):
        self.casing, known = pieces.casing, set(pieces.vocab)
        self.unknown = next(char for char in map(chr, count(0xE000)) if char not in known)
        self.tokenizer = tf_text.FastWordpieceTokenizer(
            pieces.vocab,
            unknown_token=pieces.special_tokens.unk,
            max_bytes_per_word=4 * WordPiece.MAX_WORD,
            token_out_type=tf.int32,
            no_pretokenization=True,
        )

    def split(self, texts: tf.Tensor, alone: bool = False) -> Words:
        """The words of texts, string (B,), or of words that come split."""
        return split(texts, *self.casing)

    def shortened(self, texts: tf.Tensor, words: tf.Tensor | int) -> tf.Tensor:
        """Texts with so many first words, of which each has at least one piece."""
        return shortened(texts, self.casing, words, WordPiece.MAX_WORD + 1)

    def beginning(self, texts: tf.Tensor, words: int) -> tf.Tensor:
        """As much of each text as its first words take."""
        return beginning(texts, self.casing, words)

    def cut(self, words: Words, most: int | None = None) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """The pieces of each text's first `most` words, (B, ragged, ragged); if of all, where each begins and ends."""
        long = words.codes.row_lengths() > WordPiece.MAX_WORD
        strings = words.strings()
        strings = strings.with_values(tf.where(long, self.unknown, strings.values))[:, :most]
        ids, begin, end = self.tokenizer.tokenize_with_offsets(strings)
        # Bytes of a word to its code points.
        code, word = words.codes.values, row_numbers(ids.values)
        before = tf.cumsum(sum(tf.cast(code >= least, tf.int32) for least in (0, 0x80, 0x800, 0x10000)), exclusive=True)
        base = tf.gather(before, tf.gather(words.codes.row_starts(), word))
        first, last = (
            tf.searchsorted(before, base + tf.cast(byte, tf.int32), side="right") - 1
            for byte in (begin.flat_values, end.flat_values - 1)
        )
        last = tf.where(tf.gather(long, word), tf.cast(tf.gather(words.codes.row_limits(), word), tf.int32) - 1, last)
        return ids, tf.gather(words.origin, first), tf.gather(words.origin, last) + 1


class PieceOps(tf.Module):
    """`features` of a model that reads word pieces; as `WordOps`, and sentences have all of their words."""

    last = False  #: whether a word's position is that of its last piece, or of its first one

    def __init__(self, bundle: Bundle):
        super().__init__()
        prepared = of_kind(bundle.features, WordPieceFeatures)
        self.indicate = prepared.indicate
        self.pieces, self.max_length = prepared.wordpiece, prepared.max_length
        self.starts, self.max_question = prepared.starts, prepared.max_question
        self.separators = self.pieces.special_tokens.separators
        self.before, self.room = 1, self.max_length - 2  # [CLS], and the pieces between it and [SEP]
        pieces = self.pieces
        self.tokenizer: Any = WordPieceOps(pieces) if isinstance(pieces, WordPiece) else SubwordOps(pieces.subwords)

    def __call__(
        self, text: tf.Tensor, pair: tf.Tensor | None = None, marks: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        if self.starts:
            return self.tagging(self.tokenizer.beginning(text, self.max_length), marks).inputs
        if pair is None and marks is None:
            return self.plain(text)
        if pair is None:
            text = self.tokenizer.beginning(text, self.max_length)
        else:
            text, pair = self._comparable(text, pair, marks is not None)
        cut = self.tokenizer.cut(self.tokenizer.split(text))
        first, second = cut[0].merge_dims(1, 2), None
        if pair is None:
            first = first[:, : self.max_length - 2]
        else:
            second = self.tokenizer.cut(self.tokenizer.split(pair))[0].merge_dims(1, 2)
            first, second = _truncated_pair(first, second, self.max_length - 2 - self.separators)
        inputs = self._rows(first, second)
        return inputs if marks is None else self._with_marks(inputs, self._spans(cut, marks, first.row_lengths()))

    def plain(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        pieces = self.ids(self.tokenizer.shortened(text, self.max_length), self.max_length)
        return self._rows(pieces[:, : self.max_length - 2])

    def ids(self, text: tf.Tensor, most: int | None = None) -> tf.RaggedTensor:
        """The pieces of each text, (B, ragged), of its first `most` words or all, and no others."""
        return self.tokenizer.cut(self.tokenizer.split(text), most)[0].merge_dims(1, 2)

    def inner(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """As in `WordOps`: without [CLS] and [SEP]."""
        return tf.pad(inputs["mask"][:, 2:], [[0, 0], [1, 1]])

    def tagging(self, text: tf.Tensor, marks: tf.Tensor | None = None) -> Sentences:
        words = self.tokenizer.split(text)
        cut = self.tokenizer.cut(words)
        ids, *spans = cut  # (B, ragged W, ragged)
        begin, limit = ids.values.row_starts(), ids.values.row_limits()
        first = tf.gather(begin, tf.gather(ids.row_starts(), row_numbers(ids)))  # of the text
        at = limit - 1 if self.last else begin
        position = tf.cast(self.before + at - first, tf.int32)
        spans = tf.gather(spans[0], begin), tf.gather(spans[1], limit - 1)
        real = ids.with_values(spans[0] < spans[1])  # others are of white space alone
        position, *spans = (tf.ragged.boolean_mask(ids.with_values(each), real) for each in (position, *spans))
        read = position < self.before + self.room
        number = tf.where(read.values, tf.ragged.range(position.row_lengths()).values, -1)
        starts = tf.ragged.boolean_mask(position, read)
        pieces = ids.merge_dims(1, 2)[:, : self.room]
        inputs = self._rows(pieces) | {"starts": padded(starts)}
        if marks is not None:
            inputs = self._with_marks(inputs, self._spans(cut, marks, pieces.row_lengths()))
        number = position.with_values(tf.cast(number, tf.int32))
        return Sentences(inputs, padded(number, -1), spelled(words.original, *spans))

    def given(self, words: tf.Tensor, marks: tf.Tensor | None = None) -> Sentences:
        ids = self.tokenizer.cut(self.tokenizer.split(tf.reshape(words, [-1]), alone=True))[0].merge_dims(1, 2)
        sizes = tf.reshape(tf.cast(ids.row_lengths(), tf.int32), tf.shape(words))
        ends = self.before + tf.cumsum(sizes, 1)
        begins = tf.concat([tf.fill([tf.shape(words)[0], 1], self.before), ends], 1)  # (B, W+1)
        position = ends - 1 if self.last else begins[:, :-1]  # of a word without pieces that of the next one
        read = (sizes > 0) & (position < self.before + self.room)
        number = tf.where(read, tf.cumsum(tf.cast(read, tf.int32), 1) - 1, -1)
        pieces = Ragged.from_row_lengths(ids.values, tf.reduce_sum(tf.cast(sizes, tf.int64), 1), validate=False)
        pieces = pieces[:, : self.room]
        inputs = self._rows(pieces) | {"starts": padded(tf.ragged.boolean_mask(position, read))}
        if marks is not None:
            last = self.before + tf.cast(pieces.row_lengths(), tf.int32)  # the position after these pieces
            inputs = self._with_marks(inputs, _tokens_of(begins, marks, last))
        return Sentences(inputs, number, {})

    def text_windows(self, text: tf.Tensor, stride: int) -> TextWindows:
        pieces = self.ids(text)
        inside, *windows = _windows(pieces, self.room, stride)
        return TextWindows(self._rows(tf.gather(pieces.values, inside)), *windows)

    def token_spans(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.RaggedTensor]:
        words = self.tokenizer.split(text)
        return *_spans_of_words(*self.tokenizer.cut(words)), words.original

    def _spans(self, cut: tuple, marks: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """The positions of the pieces that spans of characters are, int32 (B, M, 2)."""
        ids, start, end = cut
        pieces = ids.merge_dims(1, 2)
        return _mark(pieces.with_values(start), pieces.with_values(end), marks, lengths, self.before)

    def _with_marks(self, inputs: dict[str, tf.Tensor], spans: tf.Tensor) -> dict[str, tf.Tensor]:
        """The model's input with the marked spans of the first text, as "marks" or in the second segment."""
        if not self.indicate:
            return inputs | {"marks": spans}
        position = tf.range(tf.shape(inputs["mask"])[1])
        begin, end = tf.split(spans, 2, -1)  # each (B, M, 1)
        inside = (begin <= position) & (position < end)  # (B, M, T)
        segments = tf.where(tf.reduce_any(inside, 1), 1, inputs["segment_ids"])
        return inputs | {"segment_ids": segments}

    def windows(self, questions: tf.Tensor, contexts: tf.Tensor, stride: int) -> Windows:
        """`WordPieceFeatures.windows` for a batch."""
        questions = self.tokenizer.shortened(questions, self.max_question)
        question = self.ids(questions, self.max_question)[:, : self.max_question]
        room = self.max_length - 2 - self.separators - question.row_lengths()
        words = self.tokenizer.split(contexts)
        ids, *spans = self.tokenizer.cut(words)
        context = ids.merge_dims(1, 2)
        inside, example, piece, size = _windows(context, room, stride)
        asked, part = tf.gather(question, example), tf.gather(context.values, inside)
        start, end = _spans_of_words(ids, *spans)
        first = 1 + asked.row_lengths() + self.separators
        return Windows(self._rows(asked, part), example, first, size, piece, start, end, words.original)

    def _comparable(self, text: tf.Tensor, pair: tf.Tensor, marks: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Pairs of which the longer one stays the longer one, since it may have a piece more; without `marks` shorter.

        A text has no more pieces than bytes, so that of two texts one is cut where the other one is of ordinary length.
        """
        size = enough(self.max_length)
        sizes = [tf.cast(tf.strings.length(each), tf.int64) for each in (text, pair)]
        words = tf.fill(tf.shape(text), tf.constant(self.max_length, tf.int64))
        if self.max_length % 2 == 0:
            words = tf.where(tf.minimum(*sizes) > size, tf.maximum(*sizes), size)
        shortened = self.tokenizer.shortened
        return text if marks else shortened(text, words), shortened(pair, words)

    def _rows(self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None) -> dict[str, tf.Tensor]:
        """The model's input from pieces that fit."""
        marker: Any = tf.ones([first.nrows(), 1], tf.int32)
        cls, sep = self.pieces.cls * marker, self.pieces.sep * marker
        between = [sep] if second is None else [sep] * self.separators
        rows: Any = tf.concat([cls, first, *between], 1)
        segments: Any = tf.zeros_like(rows)
        if second is not None:
            added: Any = tf.concat([second, sep], 1)
            of_pair = tf.ones_like(added) if self.separators == 1 else tf.zeros_like(added)
            rows, segments = tf.concat([rows, added], 1), tf.concat([segments, of_pair], 1)
        mask = tf.ones_like(rows)
        return {"token_ids": padded(rows, self.pieces.pad), "segment_ids": padded(segments), "mask": padded(mask)}


class SubwordTokenOps(PieceOps):
    """`features` of a language model over a byte-level BPE.

    No token is added to a text; one without pieces is read as the token of a text's end.
    """

    last = True

    def __init__(self, bundle: Bundle):
        tf.Module.__init__(self)
        prepared = of_kind(bundle.features, SubwordTokens)
        self.max_length, self.starts, self.end = prepared.max_length, prepared.starts, prepared.end
        self.before, self.room, self.indicate = 0, prepared.max_length, False
        self.tokenizer = SubwordOps(bundle.subwords)

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  of no pairs
        self, text: tf.Tensor, marks: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        if marks is None and not self.starts:
            return self.plain(text)
        inputs = self.tagging(text, marks).inputs
        return inputs if self.starts else {name: inputs[name] for name in inputs if name != "starts"}

    def plain(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._rows(self.ids(text)[:, : self.room])

    def ids(self, text: tf.Tensor, most: int | None = None) -> tf.RaggedTensor:
        """`SubwordTokens.prompt` of each text, int32 (B, ragged)."""
        return self._filled(super().ids(text, most), self.end)

    def inner(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return inputs["mask"]

    def token_spans(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.RaggedTensor]:
        words = self.tokenizer.split(text)
        ids, *spans = self.tokenizer.cut(words)
        rows = ids.merge_dims(1, 2)
        start, end = (self._filled(rows.with_values(each), 0).flat_values for each in _spans_of_words(ids, *spans))
        return start, end, words.original

    def _filled(self, rows: Any, value: int) -> Any:
        """The rows, (B, ragged), each empty one with `value` in it."""
        empty = tf.cast(rows.row_lengths() == 0, tf.int64)
        return tf.concat([rows, Ragged.from_row_lengths(tf.fill([tf.reduce_sum(empty)], value), empty)], 1)

    def _rows(self, first: Any, second: tf.RaggedTensor | None = None) -> dict[str, tf.Tensor]:
        rows = self._filled(first, self.end)
        return {"token_ids": padded(rows), "mask": padded(tf.ones_like(rows))}


class TokenOps(tf.Module):
    """`features` of a language model in one direction, which reads words, word pieces or characters; as `PieceOps`."""

    def __init__(self, bundle: Bundle):
        super().__init__()
        prepared = of_kind(bundle.features, TokenFeatures)
        self.units, self.end, self.max_length = prepared.units, prepared.end, prepared.max_length
        self.starts, self.pieces = prepared.starts, None
        if self.units == "pieces":
            self.pieces = PieceOps(replace(bundle, family="bert", task="embed"))
        else:
            vocab = prepared.vocab
            lines = tf.lookup.KeyValueTensorInitializer(vocab, range(len(vocab)), tf.string, tf.int32)
            self.table = tf.lookup.StaticHashTable(lines, prepared.unknown)
        self.casing = self.pieces.tokenizer.casing if self.pieces else Casing()
        self.letters = max(letters_read(prepared.vocab), WordPiece.MAX_WORD + 1)

    def __call__(self, text: tf.Tensor, marks: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        if marks is None and not self.starts:
            return self.plain(text)
        if marks is None and self.units != "characters":  # whose words may end behind characters that are removed
            text = beginning(text, self.casing, self.max_length, lines=True)
        return self.tagging(text, marks).inputs

    def ids(self, text: tf.Tensor) -> Any:
        """`TokenFeatures.prompt` of each text, int32 (B, ragged)."""
        lines = _lines(text)
        return lines.with_values(self._mark(self._split(lines.values)[0])).merge_dims(1, 2)

    def plain(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        if self.units == "characters":  # of at most 4 bytes
            text = tf.strings.substr(
                text, tf.zeros(tf.shape(text), tf.int32), tf.fill(tf.shape(text), 4 * self.max_length)
            )
        else:
            text = shortened(text, self.casing, self.max_length, self.letters, lines=True)
        return self._inputs(self.ids(text))

    def inner(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """As in `WordOps`: without the mark of the text's beginning."""
        return tf.pad(inputs["mask"][:, 1:], [[0, 0], [1, 0]])

    def tagging(self, text: tf.Tensor, marks: tf.Tensor | None = None) -> Sentences:
        lines = _lines(text)
        ids, start, end, last, words = self._split(lines.values)
        position = _last_tokens(lines, ids, last, words)
        read = position < self.max_length
        number = tf.where(read.values, tf.ragged.range(position.row_lengths()).values, -1)
        rows = lines.with_values(self._mark(ids)).merge_dims(1, 2)
        starts = tf.ragged.boolean_mask(position, read)
        inputs = self._inputs(rows, starts)
        if marks is not None:  # a line stands behind those before it and one character after each
            characters = _before(lines.with_values(1 + tf.strings.length(lines.values, "UTF8_CHAR")))
            shift = tf.gather(characters, row_numbers(ids))
            begins, limits = (
                lines.with_values(self._mark(ids.with_values(edge + shift), 0)).merge_dims(1, 2)
                for edge in (start, end)
            )
            inputs["marks"] = _mark(begins, limits, marks, tf.reduce_sum(inputs["mask"], 1))
        whole = split(text) if self.pieces is None else self.pieces.tokenizer.split(text)
        return Sentences(inputs, padded(position.with_values(tf.cast(number, tf.int32)), -1), whole.dense())

    def given(self, words: tf.Tensor, marks: tf.Tensor | None = None) -> Sentences:
        words = tf.strings.unicode_transcode(words, "UTF-8", "UTF-8", errors="replace")
        shape = tf.shape(words)
        ids = self._split(tf.reshape(words, [-1]))[0]
        sizes = tf.reshape(tf.cast(ids.row_lengths(), tf.int32), shape)
        spaces = tf.zeros_like(sizes)
        if self.units == "characters":  # one before each word but the first
            spaces = tf.cast((sizes > 0) & (tf.cumsum(tf.cast(sizes > 0, tf.int32), 1) > 1), tf.int32)
            blanks = tf.fill([tf.reduce_sum(spaces)], self.table.lookup(tf.constant(" ")))
            lengths = tf.cast(tf.reshape(spaces, [-1]), tf.int64)
            ids = tf.concat([Ragged.from_row_lengths(blanks, lengths, validate=False), ids], 1)
        ends = tf.cumsum(sizes + spaces, 1)  # with the mark before them, the position of each word's last token
        read = (sizes > 0) & (ends < self.max_length)
        number = tf.where(read, tf.cumsum(tf.cast(read, tf.int32), 1) - 1, -1)
        lengths = tf.cast(tf.reduce_sum(sizes + spaces, 1), tf.int64)
        rows = self._mark(Ragged.from_row_lengths(ids.values, lengths, validate=False))
        inputs = self._inputs(rows, tf.ragged.boolean_mask(ends, read))
        if marks is not None:
            position = tf.range(shape[1])
            left, right = tf.split(marks, 2, -1)  # each (B, M, 1)
            inside = (left <= position) & (position < right) & (sizes > 0)[:, None]  # (B, M, W)
            longest = tf.reduce_max(tf.pad(ends, [[0, 0], [0, 1]])) + 1
            firsts = (ends - sizes + 1)[:, None]
            begin = tf.reduce_min(tf.where(inside, firsts, longest), -1)
            end = tf.reduce_max(tf.where(inside, ends[:, None], -1), -1) + 1
            fits = (begin < end) & (end <= tf.reduce_sum(inputs["mask"], 1)[:, None])
            inputs["marks"] = tf.where(tf.expand_dims(fits, -1), tf.stack([begin, end], -1), 0)
        return Sentences(inputs, number, {})

    def text_windows(self, text: tf.Tensor, stride: int) -> TextWindows:
        ids = self.ids(text)[:, 1:]
        inside, *windows = _windows(ids, self.max_length - 1, stride)
        return TextWindows(self._inputs(self._mark(tf.gather(ids.values, inside))), *windows)

    def token_spans(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.RaggedTensor]:
        """Where the word of each token of all texts begins and ends, as `TokenFeatures.token_spans`, and code points.

        A token is of the first word whose last token does not stand before it, after all words of the last one.
        """
        lines, words = _lines(text), split(text) if self.pieces is None else self.pieces.tokenizer.split(text)
        ids, _, _, last, of_line = self._split(lines.values)
        rows = lines.with_values(self._mark(ids)).merge_dims(1, 2)[:, 1:]
        last = _last_tokens(lines, ids, last, of_line)
        at = tf.gather(rows.row_starts(), row_numbers(last)) + tf.cast(last.values, tf.int64) - 1
        ended = tf.scatter_nd(at[:, None], tf.ones_like(at), [tf.size(rows.values, tf.int64)])
        row = row_numbers(rows)
        word = tf.minimum(tf.cumsum(ended, exclusive=True), tf.gather(last.row_limits(), row) - 1)
        known = tf.gather(last.row_lengths(), row) > 0
        start, end = (
            tf.where(known, tf.gather(tf.pad(edge.values, [[0, 1]]), tf.maximum(word, 0)), 0) for edge in words.spans()
        )
        return start, end, words.original

    def _split(self, lines: tf.Tensor) -> tuple:
        """The tokens of lines, string (L,): ids, int32 (L, ragged); where each begins and ends in its line, flat; of
        each word, flat, how many tokens of its line there are up to its last; and any ragged tensor of these words."""
        if self.pieces is not None:
            ids, start, end = self.pieces.tokenizer.cut(self.pieces.tokenizer.split(lines))
            first = tf.gather(ids.values.row_starts(), tf.gather(ids.row_starts(), row_numbers(ids)))
            last = tf.cast(ids.values.row_limits() - first, tf.int32)
            return ids.merge_dims(1, 2), start, end, last, ids.with_values(last)
        words = split(lines)
        if self.units == "words":
            strings, (start, end) = words.strings(), words.spans()
            last = tf.cast(tf.ragged.range(1, 1 + strings.row_lengths()).values, tf.int32)
            ids = strings.with_values(self.table.lookup(strings.values))
            return ids, start.values, end.values, last, words.numbers
        characters: Any = tf.strings.unicode_split(lines, "UTF-8")
        start = tf.cast(tf.ragged.range(characters.row_lengths()).values, tf.int32)
        ids = characters.with_values(self.table.lookup(characters.values))
        return ids, start, start + 1, words.spans()[1].values, words.numbers

    def _mark(self, rows: Any, mark: int | None = None) -> Any:
        """Rows with a mark before each, int32 (L, ragged)."""
        return tf.concat([tf.fill([rows.nrows(), 1], self.end if mark is None else mark), rows], 1)

    def _inputs(self, rows: Any, starts: Any = None) -> dict[str, tf.Tensor]:
        """The model's input of rows, which are cut."""
        rows = rows[:, : self.max_length]
        inputs = {"token_ids": padded(rows), "mask": padded(rows.with_values(tf.ones_like(rows.values)))}
        return inputs if starts is None or not self.starts else inputs | {"starts": padded(starts)}


class PairOps(tf.Module):
    """`features` of a model whose encoder reads the texts of a pair apart, with methods of `PieceOps`."""

    def __init__(self, bundle: Bundle):
        super().__init__()
        prepared = of_kind(bundle.features, PairFeatures)
        self.before, _ = prepared.features.markers
        alone = replace(bundle, stack={})
        self.one: Any = GRAPH_SIDES[bundle.family](alone)
        self.first: Any = self.one
        if prepared.max_question is not None and prepared.max_question < bundle.max_length:
            self.first = GRAPH_SIDES[bundle.family](replace(alone, max_length=prepared.max_question))

    def __call__(self, text: tf.Tensor, pair: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._join(self.first.plain(text), self.one.plain(pair))

    def plain(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.one.plain(text)

    def inner(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return self.one.inner(inputs)

    def windows(self, questions: tf.Tensor, contexts: tf.Tensor, stride: int) -> Windows:
        """`PairFeatures.windows` for a batch."""
        parts = self.one.text_windows(contexts, stride)
        asked = {name: tf.gather(ids, parts.example) for name, ids in self.first.plain(questions).items()}
        first = tf.fill(tf.shape(parts.size), tf.constant(1 + self.before, tf.int64))
        spans = self.one.token_spans(contexts)
        return Windows(self._join(asked, parts.inputs), parts.example, first, parts.size, parts.begin, *spans)

    def _join(self, text: dict[str, tf.Tensor], pair: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return text | {PAIR + name: ids for name, ids in pair.items()}


def _spans_of_words(ids: tf.RaggedTensor, start: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Where the word of each piece begins and ends, from pieces (B, ragged, ragged) and where each of them does."""
    word = row_numbers(ids.values)
    return (
        tf.gather(start, tf.gather(ids.values.row_starts(), word)),
        tf.gather(end, tf.gather(ids.values.row_limits(), word) - 1),
    )


def _lines(text: tf.Tensor) -> Any:
    """The lines of each text, string (B, ragged)."""
    return tf.strings.split(tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace"), "\n")


def _last_tokens(lines: tf.RaggedTensor, ids: tf.RaggedTensor, last: tf.Tensor, words: tf.RaggedTensor) -> Any:
    """The position of each word's last token in its text, of whose lines each has a mark before it, (B, ragged).

    The lines are string (B, ragged); the others as in `TokenOps._split`.
    """
    tokens = _before(lines.with_values(1 + tf.cast(ids.row_lengths(), tf.int32)))
    return lines.with_values(words.with_values(tf.gather(tokens, row_numbers(words)) + last)).merge_dims(1, 2)


def _before(sizes: tf.RaggedTensor) -> tf.Tensor:
    """The sum of the values before each in its row, flat."""
    sums = tf.cumsum(sizes.values, exclusive=True)
    return sums - tf.gather(tf.pad(sums, [[0, 1]]), tf.gather(sizes.row_starts(), row_numbers(sizes)))


def _windows(tokens: tf.RaggedTensor, room: tf.Tensor | int, stride: int) -> tuple[Any, ...]:
    """The tokens in each overlapping window, int64 (R, ragged), by their numbers among those of all texts.

    And which text it is of, its first token, and how many it has; int64 (R,). Tokens are (B, ragged); a window has room
    for so many of them, for all or int64 (B,); `stride` as in `window_begins`.
    """
    sizes = tokens.row_lengths()
    room = tf.broadcast_to(tf.cast(room, tf.int64), tf.shape(sizes))
    step = tf.where(stride < room, tf.cast(stride, tf.int64), tf.maximum(room // 2, 1))
    numbers = tf.ragged.range(1 + (tf.maximum(sizes - room, 0) + step - 1) // step)  # (B, windows)
    example = row_numbers(numbers)
    begin = numbers.values * tf.gather(step, example)
    size = tf.minimum(tf.gather(room, example), tf.gather(sizes, example) - begin)
    begin += tf.gather(tokens.row_starts(), example)
    return tf.ragged.range(begin, begin + size), example, begin, size


def in_parts(model: Callable[[dict], dict], inputs: dict[str, tf.Tensor], rows: int = 64) -> dict[str, tf.Tensor]:
    """A model's outputs of many rows, some at a time, so that the memory they need does not grow with their number.

    Args:
        model: a function from a dict of tensors to a dict of tensors.
        inputs: tensors of the same number of rows.
        rows: how many are computed at once.
    """
    count = tf.shape(next(iter(inputs.values())))[0]

    def part(begin) -> dict[str, tf.Tensor]:
        return model({name: tensor[begin : begin + rows] for name, tensor in inputs.items()})

    def array(first: tf.Tensor) -> tf.TensorArray:
        shape = [None, *first.shape[1:]]
        return tf.TensorArray(first.dtype, 1, dynamic_size=True, infer_shape=False, element_shape=shape).write(0, first)

    def body(begin, arrays):
        return begin + rows, {name: arrays[name].write(begin // rows, value) for name, value in part(begin).items()}

    first = part(0)
    start = tf.constant(rows), {name: array(value) for name, value in first.items()}
    _, arrays = tf.while_loop(lambda begin, _: begin < count, body, start, parallel_iterations=1)
    return {name: arrays[name].concat() for name in first}


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


def _mark(
    start: tf.RaggedTensor, end: tf.RaggedTensor, marks: tf.Tensor, lengths: tf.Tensor, first: int = 0
) -> tf.Tensor:
    """`features.tokens_in_span` for a batch: int32 (B, M, 2), the first token of each span and the one after its last.

    (0, 0) if it is not all there. Tokens stand at `start` to `end`, in characters (B, ragged), as the `marks` do; each
    text has `lengths` tokens after truncation, the first of them at the position `first`.
    """
    begin, stop = padded(start)[:, None], padded(end)[:, None]  # (B, 1, T), 0 to 0 in padding
    left, right = tf.split(marks, 2, -1)  # (B, M, 1)
    inside = tf.cast((begin < right) & (stop > left), tf.int32)  # (B, M, T)
    before = tf.argmax(inside, -1, tf.int32)
    after = tf.shape(inside)[-1] - tf.argmax(tf.reverse(inside, [-1]), -1, tf.int32)
    complete = tf.reduce_any(inside > 0, -1) & (after <= tf.cast(lengths, tf.int32)[:, None])
    return tf.where(complete[..., None], first + tf.stack([before, after], -1), 0)


def _tokens_of(begins: tf.Tensor, marks: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """The tokens of marked spans of words, int32 (B, M, 2); (0, 0) for those that are not all there.

    `begins`, int32 (B, W+1), has the first token of each word and the one after all of them; `last`, int32 (B,), is the
    greatest end of a span.
    """
    spans = tf.gather(begins, tf.clip_by_value(marks, 0, tf.shape(begins)[1] - 1), batch_dims=1)
    begin, end = tf.split(spans, 2, -1)  # (B, M, 1)
    return tf.where((begin < end) & (end <= last[:, None, None]), spans, 0)


GRAPH_SIDES: dict[str, Callable[[Bundle], WordOps | PieceOps | TokenOps]] = {
    "elmo": WordOps,
    "static": lambda bundle: PieceOps(bundle) if bundle.config.get("pieces") else WordOps(bundle),
    "lm": lambda bundle: SubwordTokenOps(bundle) if bundle.tokenizer else TokenOps(bundle),
    **{name: PieceOps for name, side in TEXT_SIDES.items() if side is TRANSFORMER},
}
