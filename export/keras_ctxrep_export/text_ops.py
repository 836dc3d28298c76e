"""The text preparation of `keras_ctxrep.text.features` as a TensorFlow graph, for models that take raw strings."""

from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain, count
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_text as tf_text
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import CharacterFeatures, WordFeatures
from keras_ctxrep.text.tokens import Characters, WordPiece

# Surrogates are no characters; planes 4 to 13 are empty; one code point of planes 15 and 16 stands for all of them.
_PROBED = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xF0001), range(0x100000, 0x100001))
_STANDS_FOR = {0xF0000: 0xFFFFD, 0x100000: 0x10FFFD}
_BETWEEN = chr(0x40000)  # outside _PROBED, and no rule touches it


def features(bundle: Bundle) -> Callable[..., dict[str, tf.Tensor]]:
    """The function `bundle.features` in stock ops of TensorFlow and tensorflow-text, for a batch of texts.

    tensorflow-text's own BERT tokenizers are something else: they fold case by NFKC ("½", "ﬁ" and "…" are rewritten)
    and split words at characters that BERT removes. Here the character rules are those of `tokenizers`, read from it
    when a graph is traced. Bytes that are not UTF-8 are U+FFFD, which is removed.

    It differs, only where accents are stripped, where TensorFlow's NFD knows characters that `tokenizers`' does not:
    21 letters and vowel signs of Unicode 13 to 16 are taken apart, and a few new combining marks change places with a
    virama of another script. With no such characters in the vocabulary the ids are the same.

    Args:
        bundle: its family, vocabulary and lengths are read.

    Returns: a function from string (B,), and a second one where the bundle reads pairs, to the dict of
        `bundle.features(texts)` or `bundle.features(texts, pairs)`, each int32, padded to the longest row.
        It works in a `tf.function` and in a SavedModel; all it needs are constants of the graph, so that there is
        nothing to track and no asset.

    Raises:
        ValueError: a biLM over words.
        RuntimeError: tensorflow-text can not take a piece of the vocabulary (over 256 bytes, or beginning with NUL).

    >>> elmo = Bundle("elmo", "embed", {"max_characters": 6}, max_length=2)
    >>> batch = features(elmo)(tf.constant(["Hi!", ""]))
    >>> batch["char_ids"].numpy()[0].tolist(), batch["mask"].numpy().tolist()
    ([[259, 73, 106, 260, 261, 261], [259, 34, 260, 261, 261, 261]], [[1, 1], [0, 0]])
    """
    prepared = bundle.features
    if isinstance(prepared, CharacterFeatures):
        return _character_features(prepared.max_length, prepared.characters.width)
    if isinstance(prepared, WordFeatures):
        raise ValueError("a biLM over words has no graph of its text preparation: use it in Keras")
    return _word_piece_features(prepared.wordpiece, prepared.max_length)


def _character_features(max_length: int, width: int) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    def call(texts: tf.Tensor) -> dict[str, tf.Tensor]:
        # "<S>" and "</S>" do not come out of the split, so every word is its bytes.
        words = _words(texts, lowercase=False, strip_accents=False, split_cjk=True)[:, :max_length]
        data = tf.cast(tf.io.decode_raw(words.flat_values, tf.uint8, fixed_length=width - 2), tf.int32)
        end = tf.minimum(tf.strings.length(words.flat_values), width - 2)[:, None]
        place = tf.range(width - 1)
        ids = tf.where(place < end, tf.pad(data + 1, [[0, 0], [0, 1]]), Characters.PADDING)
        ids = tf.where(place == end, Characters.END_WORD, ids)
        ids = tf.pad(ids, [[0, 0], [1, 0]], constant_values=Characters.BEGIN_WORD)
        char_ids, mask = _padded(words.with_flat_values(ids), 0)
        return {"char_ids": char_ids, "mask": mask}

    return call


def _word_piece_features(pieces: WordPiece, max_length: int) -> Callable[..., dict[str, tf.Tensor]]:
    known = set(pieces.vocab)
    unknown = next(char for char in map(chr, count(0xE000)) if char not in known)
    tokenizer = tf_text.FastWordpieceTokenizer(
        pieces.vocab, max_bytes_per_word=4 * WordPiece.MAX_WORD, token_out_type=tf.int32, no_pretokenization=True
    )

    def ids(texts: tf.Tensor, most: int | None = None) -> tf.RaggedTensor:
        """The pieces of each text, (B, ragged), of its first `most` words."""
        words = _words(texts, pieces.lowercase, pieces.strip_accents, pieces.split_cjk)[:, :most]
        long = tf.strings.length(words.flat_values, unit="UTF8_CHAR") > WordPiece.MAX_WORD
        words = words.with_flat_values(tf.where(long, unknown, words.flat_values))
        return tokenizer.tokenize(words).merge_dims(1, 2)

    def call(texts: tf.Tensor, pairs: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        one = ids(texts, max_length if pairs is None else None)  # each word has a piece or more
        marker = tf.ones([one.nrows(), 1], tf.int32)
        cls, sep = pieces.cls * marker, pieces.sep * marker
        if pairs is None:
            rows = _joined(cls, one[:, : max_length - 2], sep)
            segments = tf.zeros_like(rows)
        else:
            one, two = _truncated_pair(one, ids(pairs), max_length - 3)
            first, second = _joined(cls, one, sep), _joined(two, sep)
            rows = _joined(first, second)
            segments = _joined(tf.zeros_like(first), tf.ones_like(second))
        token_ids, mask = _padded(rows, pieces.pad)
        segment_ids, _ = _padded(segments, 0)
        return {"token_ids": token_ids, "segment_ids": segment_ids, "mask": mask}

    return call


def _joined(*rows: Any) -> Any:
    """Ragged rows, one behind the other."""
    return tf.concat(rows, 1)


def _truncated_pair(one: tf.RaggedTensor, two: tf.RaggedTensor, room: int) -> list[tf.RaggedTensor]:
    """`keras_ctxrep.text.features.truncate_pair` for a batch."""
    sizes = one.row_lengths(), two.row_lengths()
    shorter = tf.minimum(tf.minimum(*sizes), room // 2)
    keep_one = tf.where(sizes[0] <= sizes[1], shorter, room - shorter)
    fits = tf.reduce_sum(sizes, 0) <= room
    return [
        tf.ragged.boolean_mask(part, fits[:, None] | (tf.ragged.range(part.row_lengths()) < keep[:, None]))
        for part, keep in ((one, keep_one), (two, room - keep_one))
    ]


def _words(texts: tf.Tensor, lowercase: bool, strip_accents: bool, split_cjk: bool) -> tf.RaggedTensor:
    """The words of `tokens.words`, or of a BERT with these rules: string (B,) -> string (B, ragged)."""
    rules = _rules(lowercase, strip_accents, split_cjk)
    if rules.before:
        # Not `tf.strings.lower`: ICU's depends on the server's locale, on the place in the word ("ς") and on its age.
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        before, after, flat = tf.constant(rules.before), tf.constant(rules.after), codes.flat_values
        place = tf.minimum(tf.searchsorted(before, flat), len(rules.before) - 1)
        flat = tf.where(tf.gather(before, place) == flat, tf.gather(after, place), flat)
        texts = tf.strings.unicode_encode(codes.with_flat_values(flat), "UTF-8")
    else:
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    for char, several in rules.longer:
        texts = tf.strings.regex_replace(texts, char, several)
    texts = tf.strings.regex_replace(texts, rules.removed, "")
    texts = tf.strings.regex_replace(texts, rules.space, " ")
    if strip_accents:
        texts = tf.strings.regex_replace(tf_text.normalize_utf8(texts, "NFD"), rules.accent, "")
    return tf.strings.split(tf.strings.regex_replace(texts, rules.apart, r" \0 "))


def _padded(rows: tf.RaggedTensor, fill: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Dense rows of at least one position, and their mask."""
    sizes, inner = rows.row_lengths(), rows.flat_values.shape[1:]
    longest = tf.maximum(tf.reduce_max(sizes), 1)
    dense = rows.to_tensor(fill, shape=tf.stack([rows.nrows(), longest, *inner]))
    return tf.ensure_shape(dense, [None, None, *inner]), tf.sequence_mask(sizes, longest, tf.int32)


class _Rules(NamedTuple):
    """What becomes of each character: classes in RE2's syntax, and a map of code points."""

    removed: str
    space: str  # without " " itself
    apart: str  # punctuation, and ideographs where they are split: each a word of its own
    accent: str
    before: list[int]  # ascending: lower-cased and without its accents, each is the one in `after`
    after: list[int]
    longer: list[tuple[str, str]]  # lower-cased, each is several


@cache
def _rules(lowercase: bool, strip_accents: bool, split_cjk: bool) -> _Rules:
    """The rules of `tokenizers`, found by asking it about every character."""
    chars = [*map(chr, chain(*_PROBED))]
    words = [f"x{char}y" for char in chars]

    def normalized(**steps: bool) -> list[tuple[str, str]]:
        text = BertNormalizer(**steps).normalize_str(_BETWEEN.join(words))
        return [*zip(chars, text.split(_BETWEEN), strict=True)]

    cleaned = normalized(clean_text=True, handle_chinese_chars=split_cjk, strip_accents=False, lowercase=False)
    changed = normalized(clean_text=False, handle_chinese_chars=False, strip_accents=strip_accents, lowercase=lowercase)
    split = {piece for piece, _ in BertPreTokenizer().pre_tokenize_str(" ".join(words)) if len(piece) == 1} - {*"xy"}
    single = [(ord(char), ord(to[1])) for char, to in changed if len(to) == 3 and to[1] != char]
    return _Rules(
        removed=_regex(char for char, to in cleaned if to == "xy"),
        space=_regex(char for char, to in cleaned if to == "x y" and char != " "),
        apart=_regex(char for char, to in cleaned if to == f"x {char} y" or char in split),
        accent=_regex(char for char, to in changed if to == "xy"),
        before=[char for char, _ in single],
        after=[to for _, to in single],
        # what NFD takes apart needs no entry
        longer=[] if strip_accents else [(char, to[1:-1]) for char, to in changed if len(to) > 3],
    )


def _regex(chars: Iterable[str]) -> str:
    """One RE2 class of the characters, given in ascending order."""
    ranges: list[list[int]] = []
    for code in map(ord, chars):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(f"\\x{{{first:x}}}-\\x{{{_STANDS_FOR.get(last, last):x}}}" for first, last in ranges) + "]"
