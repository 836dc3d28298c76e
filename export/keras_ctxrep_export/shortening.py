"""Long texts in a TensorFlow graph, without what a model does not read of them; see `text.character_rules`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_ctxrep.text.character_rules import APART, INSIDE, SPACE, Casing, enough
from keras_ctxrep_export.words import Ragged, character_rules, row_numbers

__all__ = ["beginning", "shortened"]

_BLOCK, _LARGEST = 1 << 14, 1 << 18  # bytes of each text that are read at once, at first and at most
_KIND, _GONE, _BAR, _MARK = 3, 4, 8, 16  # flags of a character


def shortened(texts: tf.Tensor, casing: Casing, words: tf.Tensor | int, letters: int, lines: bool = False) -> tf.Tensor:
    """Texts that have the same first words, in the memory of these words; those of an ordinary length as they are.

    Args:
        texts: string (B,).
        casing: how words are made of them.
        words: how many words are the same, for all or int64 (B,). There is one more if the text has more.
        letters: of a word that are the same, at least 101 for word pieces; the others may be missing.
        lines: line ends stay, and count as words.

    >>> texts = tf.constant(["a" * 9000 + " b \\u200b c d", "b  c d"])
    >>> [text[100:] for text in shortened(texts, Casing(), 2, 101).numpy()]
    [b'a b c', b'']
    """
    return _where_long(texts, words, lambda long, most: _blocks(long, casing, most, letters, lines)[0])


def beginning(texts: tf.Tensor, casing: Casing, words: int, lines: bool = False) -> tf.Tensor:
    """As much of each text, string (B,), as its first words take, and one more; all of texts of an ordinary length."""

    def cut(long: tf.Tensor, most: tf.Tensor) -> tf.Tensor:
        ends = _blocks(long, casing, most, 1, lines)[1]
        return tf.strings.substr(long, tf.zeros_like(ends), ends)

    return _where_long(texts, words, cut)


def _where_long(
    texts: tf.Tensor, words: tf.Tensor | int, function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """The texts, with a function of the long ones, and of the words that are needed of each, in place of these."""
    least = enough(words) if isinstance(words, int) else tf.cast(tf.maximum(64 * words, enough(0)), tf.int32)

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})  # else each of its nodes takes time
    def replaced(texts: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        long = tf.strings.length(texts) > least
        others, rows = tf.where(~long)[:, 0], tf.where(long)[:, 0]
        most = tf.broadcast_to(tf.cast(words, tf.int64), tf.shape(texts, tf.int64))
        results = function(tf.gather(texts, rows), tf.gather(most, rows))
        return tf.dynamic_stitch(
            [tf.cast(others, tf.int32), tf.cast(rows, tf.int32)], [tf.gather(texts, others), results]
        )

    return tf.cond(
        tf.reduce_any(tf.strings.length(texts) > least),
        lambda: replaced(texts, tf.convert_to_tensor(words)),
        lambda: texts,
    )


def _blocks(
    texts: tf.Tensor, casing: Casing, words: tf.Tensor, letters: int, lines: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """`shortened`, block after block until there are enough words, and how many bytes of each text are read for it."""
    sizes = tf.strings.length(texts)

    def body(short, ends, done, size):
        block = tf.strings.substr(texts, ends, tf.where(done, 0, size))
        block = tf.where(ends + tf.strings.length(block) < sizes, _whole_characters(block), block)
        ends += tf.strings.length(block)
        if letters <= 1000:  # as many repetitions as RE2 takes; seven times as quick for a word of millions of letters
            block = tf.strings.regex_replace(block, f"([0-9A-Za-z]{{{letters}}})[0-9A-Za-z]+", r"\1")
        short, complete = _keep(tf.strings.join([short, block]), casing, words, letters, lines)
        return short, ends, complete | (ends == sizes), tf.minimum(2 * size, _LARGEST)

    start = tf.zeros_like(texts), tf.zeros_like(sizes), tf.zeros_like(sizes, tf.bool), tf.constant(_BLOCK)
    short, ends, *_ = tf.while_loop(
        lambda short, ends, done, size: tf.reduce_any(~done), body, start, parallel_iterations=1
    )
    return short, ends


def _whole_characters(blocks: tf.Tensor) -> tf.Tensor:
    """Strings of at least 3 bytes without the beginning of a character at their end, of which bytes are missing."""
    size = tf.strings.length(blocks)
    last = tf.io.decode_raw(
        tf.strings.substr(blocks, tf.maximum(size - 3, 0), tf.fill(tf.shape(size), 3)), tf.uint8, fixed_length=3
    )
    third, second, first = tf.unstack(last, axis=1)
    missing = tf.where(
        first >= 0xC0,
        1,
        tf.where(
            first < 0x80,
            0,
            tf.where(second >= 0xE0, 2, tf.where((second >= 0x80) & (second < 0xC0) & (third >= 0xF0), 3, 0)),
        ),
    )
    return tf.strings.substr(blocks, tf.zeros_like(size), tf.maximum(size - missing, 0))


def _keep(texts: tf.Tensor, casing: Casing, words: tf.Tensor, letters: int, lines: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """What matters for the first words of texts, and whether more words than these are there."""
    rules = character_rules(*casing)
    accents = rules.vanishing & (rules.rank != 0) if casing.strip_accents else rules.vanishing
    flags = rules.kind | _GONE * accents | _BAR * (rules.vanishing & ~accents) | _MARK * (rules.rank > 0)
    decoded: Any = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
    code, row = decoded.values, row_numbers(decoded)
    flag = tf.gather(tf.constant(flags, tf.int32), tf.searchsorted(rules.first, code, side="right") - 1)
    if lines:
        flag = tf.where(code == ord("\n"), APART, flag)

    def has(bit: int) -> Any:
        return tf.bitwise.bitwise_and(flag, bit) > 0

    def only(mask: tf.Tensor) -> tuple:
        index = tf.where(mask)[:, 0]
        return tuple(tf.gather(each, index) for each in (code, row, flag))

    code, row, flag = only(~has(_GONE))
    base, same = ~has(_MARK), row[1:] == row[:-1]
    # what vanishes but is no mark keeps the marks before it from those behind it
    code, row, flag = only(~(has(_BAR) & tf.concat([base[1:] & same, [False]], 0)[: tf.size(row)]))
    space = tf.bitwise.bitwise_and(flag, _KIND) == SPACE
    again = tf.concat([[True], space[:-1] | (row[1:] != row[:-1])], 0)[: tf.size(row)]
    code, row, flag = only(~(space & again))
    kind = tf.cast(tf.bitwise.bitwise_and(flag, _KIND), tf.int64)
    letter = (kind == INSIDE) & ~has(_BAR)
    word = tf.cumsum(kind) - tf.cast(kind == APART, tf.int64) + row  # grows from one word to the next
    # the number of each letter in its word
    count = tf.cumsum(tf.cast(letter, tf.int64))
    first = tf.where(word != tf.concat([[-1], word[:-1]], 0)[: tf.size(word)])[:, 0]
    before = tf.gather(count - tf.cast(letter, tf.int64), first)
    number = count - tf.repeat(before, tf.concat([first[1:], [tf.size(word, tf.int64)]], 0)[: tf.size(first)] - first)
    # the first letter of each word, and the number of the word in its text
    found = tf.where(letter | (kind == APART))[:, 0]
    of_word = tf.gather(word, found)
    begins = tf.gather(found, tf.where(of_word != tf.concat([[-1], of_word[:-1]], 0)[: tf.size(of_word)])[:, 0])
    text = tf.gather(row, begins)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(text), text, tf.size(texts))
    order = tf.range(tf.size(begins, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), text)
    last = tf.boolean_mask(begins, order == tf.gather(words, text))
    complete = counts > words
    limit = tf.tensor_scatter_nd_update(tf.fill(tf.shape(counts), tf.size(word, tf.int64)), tf.where(complete), last)
    inside = tf.range(tf.size(word, tf.int64)) <= tf.gather(limit, row)
    code, row, flag = only(inside & ~(letter & (number > letters)))
    rows = Ragged.from_value_rowids(code, row, tf.size(texts, tf.int64), validate=False)
    return tf.strings.unicode_encode(rows, "UTF-8"), complete
