"""SentencePiece's precompiled normalization map in a TensorFlow graph, as `normalizers.Precompiled` of `tokenizers`."""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tokenizers import normalizers

from keras_ctxrep_export.words import row_numbers

__all__ = ["Characters", "CharsMap", "CodePoints", "replaced"]

_POINTS = 0x110000
_PROBED = [  # without those blocks whose characters are all alike
    chr(code)
    for code in (
        *range(0x3400),
        *range(0xA000, 0xAC00),
        *range(0xD7A4, 0xD800),
        *range(0xF900, 0x17000),
        *range(0x18D00, 0x20000),
        *range(0xE0000, 0xE1000),
    )
]
_JOIN, _PREPEND, _CONTROL, _PICTURE, _AFTER_PICTURE, _CONSONANT, _LINKER, _AFTER_CONSONANT = (1 << n for n in range(8))
_CR, _LF, _ZWJ = 0x0D, 0x0A, 0x200D
_BYTES = 6  # of the shortest grapheme cluster that is not looked up whole
_HANGUL = ("\u1100", "\u1200"), ("\ua960", "\ua980"), ("\uac00", "\ud800")  # letters that make clusters
_MARK = "\u0301"
_BETWEEN = chr(0x40000)  # of an empty plane


class Characters(NamedTuple):
    """The characters of a batch of texts, flat."""

    codes: tf.Tensor  #: int32 (N,)
    origin: tf.Tensor  #: int32 (N,), which character of its text each comes from
    rows: tf.Tensor  #: int64 (N,), the text that each is of; ascending

    def take(self, index: tf.Tensor) -> "Characters":
        """Those of these numbers."""
        return Characters(*(tf.gather(each, index) for each in self))


class CodePoints:
    """A number for each code point in two tables, of 256 code points and of blocks of which many are alike.

    >>> CodePoints({0x61: 7})(tf.constant([0x61, 0x62])).numpy().tolist()
    [7, 0]
    """

    def __init__(self, numbers: dict[int, int]):
        table = np.zeros(_POINTS, np.int32)
        table[[*numbers.keys()]] = [*numbers.values()]
        blocks: dict[bytes, int] = {}
        rows = [row.tobytes() for row in table.reshape(-1, 256)]
        self.block = np.array([blocks.setdefault(row, len(blocks)) for row in rows], np.int32)
        self.numbers = np.frombuffer(b"".join(blocks), np.int32)

    def __call__(self, codes: tf.Tensor) -> Any:
        block = tf.gather(tf.constant(self.block), tf.bitwise.right_shift(codes, 8))
        return tf.gather(tf.constant(self.numbers), block * 256 + tf.bitwise.bitwise_and(codes, 255))


def replaced(chars: Characters, number: tf.Tensor, covers: tf.Tensor | None, by: list[str]) -> Characters:
    """Characters of which some are replaced, aligned as `NormalizedString.transform` of `tokenizers` aligns them.

    Args:
        chars: of texts.
        number: int32 (N,), of what a character is replaced by, counted from 1; 0: it stays; -1: it is part of what the
            one before it covers.
        covers: int32 (N,), how many characters are replaced; None: one each.
        by: strings.

    >>> chars = Characters(tf.constant([0xFB01, 0x6E]), tf.range(2), tf.zeros([2], tf.int64))
    >>> [values.numpy().tolist() for values in replaced(chars, tf.constant([1, 0]), None, ["fi"])[:2]]
    [[102, 105, 110], [0, 0, 1]]
    """
    size = tf.size(number)
    sizes = np.array([1, *map(len, by)], np.int64)
    begins = np.cumsum(sizes) - sizes
    letters = np.array([0, *(ord(char) for string in by for char in string)], np.int32)
    # from the characters, followed by the strings
    stays, kept = number == 0, tf.maximum(number, 0)
    length = tf.gather(sizes, kept) * tf.cast(number >= 0, tf.int64)
    begin = tf.where(stays, tf.range(tf.cast(size, tf.int64)), tf.cast(size, tf.int64) + tf.gather(begins, kept))
    source: Any = tf.ragged.range(begin, begin + length)
    codes = tf.gather(tf.concat([chars.codes, letters], 0), source.values)
    parent = row_numbers(source)
    order = tf.cast(tf.range(tf.size(parent, tf.int64)) - tf.gather(source.row_splits, parent), tf.int32)
    many = tf.ones_like(number) if covers is None else covers
    old = tf.gather(many, parent)
    rows = tf.gather(chars.rows, parent)
    last = tf.concat([parent[1:] != parent[:-1], [True]], 0)[: tf.size(parent)]
    after = parent + tf.cast(old, parent.dtype)  # the first character behind those that are replaced
    behind = tf.minimum(after, tf.cast(size, parent.dtype) - 1)
    gone = (after < tf.cast(size, parent.dtype)) & (tf.gather(length, behind) == 0)
    gone &= tf.gather(chars.rows, behind) == rows
    place = tf.cast(parent, tf.int32) + tf.minimum(order, old - 1)
    place += tf.cast((order >= old) & last & gone, tf.int32)
    # Where a text begins with characters of which nothing is left, all others are aligned so many places too early.
    texts = tf.reduce_max(tf.pad(chars.rows + 1, [[0, 1]]))
    begin_of = tf.math.unsorted_segment_min(tf.range(size), chars.rows, texts)
    first = tf.math.unsorted_segment_min(tf.cast(parent, tf.int32), rows, texts)
    place -= tf.gather(first - begin_of, rows)
    return Characters(codes, tf.gather(chars.origin, place), rows)


class CharsMap(tf.Module):
    """A map of which SentencePiece's normalization is made, looked up as `tokenizers` does.

    A grapheme cluster of less than 6 bytes is replaced by what the shortest of its beginnings that is in the map
    becomes; where none is, and in longer clusters, each character by itself. The classes of characters that make
    clusters (https://unicode.org/reports/tr29/) are read from the output of `tokenizers`.

    Args:
        charsmap: the size of a double-array trie as uint32, the trie, and the strings that it points to.

    Raises:
        ValueError: the map has keys that are looked up by rules which no published map needs.
    """

    def __init__(self, charsmap: bytes):
        super().__init__()
        mapped = dict(_keys(charsmap))
        self.by = sorted({*mapped.values()})
        numbers = {string: number for number, string in enumerate(self.by, 1)}
        single = {ord(key): numbers[value] for key, value in mapped.items() if len(key) == 1}
        several = {
            key: numbers[value]
            for key, value in mapped.items()
            if len(key) > 1 and not any(key[:size] in mapped for size in range(1, len(key)))
        }
        self.single, self.longest = CodePoints(single), max(map(len, several), default=1)
        self.classes = CodePoints(_classes(charsmap))
        if any(begin <= key < end for key in mapped for begin, end in _HANGUL):
            raise ValueError("charsmap: keys of less than 6 bytes that begin with Hangul letters have no operators")
        self.table = None
        if several:
            lines = tf.lookup.KeyValueTensorInitializer([*several], [*several.values()], tf.string, tf.int32)
            self.table = tf.lookup.StaticHashTable(lines, 0)

    def __call__(self, chars: Characters) -> Characters:
        codes = chars.codes
        number, classes = self.single(codes), self.classes(codes)
        some = (tf.bitwise.bitwise_and(classes, _JOIN | _PREPEND) > 0) | (codes == _CR)
        number, covers = tf.cond(
            tf.reduce_any(some),
            lambda: self._of_clusters(chars, number, classes),
            lambda: (number, tf.ones_like(number)),
        )
        changed = tf.reduce_any(number != 0)
        return Characters(
            *tf.cond(changed, lambda: tuple(replaced(chars, number, covers, self.by)), lambda: tuple(chars))
        )

    def _of_clusters(self, chars: Characters, number: tf.Tensor, classes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The numbers of what characters become, and how many are replaced, where some are in clusters."""
        codes = chars.codes
        goes_on = _goes_on(chars, classes)
        begins = tf.where(~goes_on)[:, 0]
        cluster = tf.cumsum(tf.cast(~goes_on, tf.int32)) - 1
        sizes = sum(tf.cast(codes >= least, tf.int32) for least in (0, 0x80, 0x800, 0x10000))
        ends = tf.concat([begins[1:], [tf.size(codes, tf.int64)]], 0)
        before = tf.pad(tf.cumsum(sizes), [[1, 0]])
        many = tf.cast(ends - begins, tf.int32)
        short = (many > 1) & (tf.gather(before, ends) - tf.gather(before, begins) < _BYTES)
        first, last = tf.boolean_mask(begins, short), tf.boolean_mask(ends, short)
        becomes = tf.gather(number, first)
        if self.table is not None:
            for size in range(2, self.longest + 1):
                inside: Any = tf.ragged.range(first, tf.minimum(first + size, last))
                keys = tf.strings.unicode_encode(inside.with_values(tf.gather(codes, inside.values)), "UTF-8")
                becomes = tf.where(becomes == 0, self.table.lookup(keys), becomes)
        # Where the cluster is replaced, its first character stands for all.
        whole = tf.boolean_mask(first, becomes > 0)[:, None]
        becomes = tf.boolean_mask(becomes, becomes > 0)
        many = tf.gather(many, tf.gather(cluster, whole[:, 0]))
        of_whole = tf.scatter_nd(whole, tf.ones_like(becomes), tf.shape(codes, tf.int64))
        of_whole = tf.gather(of_whole, tf.gather(begins, cluster)) > 0
        number = tf.tensor_scatter_nd_update(tf.where(of_whole, -1, number), whole, becomes)
        return number, tf.tensor_scatter_nd_update(tf.ones_like(number), whole, many)


def _goes_on(chars: Characters, classes: tf.Tensor) -> Any:
    """Whether a grapheme cluster goes on at each character, bool (N,)."""

    def has(which: int) -> Any:
        return tf.bitwise.bitwise_and(classes, which) > 0

    def before(flags: tf.Tensor) -> Any:
        """The flag of the character before each in its text."""
        shifted = tf.concat([[False], flags[:-1]], 0)[: tf.size(flags)]
        return shifted & tf.concat([[False], chars.rows[1:] == chars.rows[:-1]], 0)[: tf.size(flags)]

    def base(skipped: tf.Tensor) -> tf.Tensor:
        """The last character up to each that is not skipped, or the first of its text."""
        stays = ~(skipped & before(tf.ones_like(skipped)))
        return tf.gather(tf.where(stays)[:, 0], tf.cumsum(tf.cast(stays, tf.int32)) - 1)

    control = has(_CONTROL)
    picture = tf.gather(has(_PICTURE), base(has(_AFTER_PICTURE)))
    picture = has(_PICTURE) & before((chars.codes == _ZWJ) & before(picture))
    linkers = tf.cumsum(tf.cast(has(_LINKER), tf.int32))
    letter = base(has(_LINKER | _AFTER_CONSONANT))
    linked = tf.gather(has(_CONSONANT), letter) & (linkers > tf.gather(linkers, letter))
    consonant = has(_CONSONANT) & before(linked)
    joined = has(_JOIN) | before(has(_PREPEND)) | picture | consonant
    free = before(~control) & ~control
    return (joined & free) | (before(chars.codes == _CR) & (chars.codes == _LF))


def _keys(charsmap: bytes) -> Iterator[tuple[str, str]]:
    """The keys of a map that are shorter than a cluster which is looked up by character, and what they become."""
    (size,) = struct.unpack_from("<I", charsmap)
    units, strings = np.frombuffer(charsmap, "<u4", size // 4, 4), charsmap[4 + size :]
    offsets = (units >> 10) << ((units & 1 << 9) >> 6)
    bytes_ = np.arange(1, 256, dtype=np.uint32)
    nodes = [(b"", int(offsets[0]))]
    while nodes:
        key, node = nodes.pop()
        places = node ^ bytes_
        inside = places < len(units)
        places, labels = places[inside], bytes_[inside]
        own = (units[places] & 0x800000FF) == labels
        for place, label in zip(places[own].tolist(), labels[own].tolist(), strict=True):
            child, longer = place ^ int(offsets[place]), key + bytes([label])
            if units[place] >> 8 & 1:
                begin = int(units[child]) & 0x7FFFFFFF
                yield longer.decode(), strings[begin : strings.index(0, begin)].decode()
            if len(longer) < _BYTES - 1:
                nodes.append((longer, child))


@lru_cache(maxsize=4)
def _classes(charsmap: bytes) -> dict[int, int]:
    """The flags of code points, as far as they matter for what the map has."""
    rules, mapped = normalizers.Precompiled(charsmap), dict(_keys(charsmap))
    classes: dict[int, int] = {}
    singles = [key for key in mapped if len(key) == 1 and len(key.encode()) < 4]

    def kept(texts: list[str], begin: str | None = None) -> np.ndarray:
        """Whether the mark is left at the end of each text, or behind a beginning."""
        results = rules.normalize_str(_BETWEEN + _BETWEEN.join(texts) + _BETWEEN)[1:-1].split(_BETWEEN)
        return np.array([text.endswith(_MARK) if begin is None else text.startswith(begin + _MARK) for text in results])

    def key_after(begin: str) -> str:
        """The first key that does not begin a cluster behind something; "" if there is none."""
        return next((key for key in plain if kept([begin + key + _MARK])[0]), "")

    def probe(flag: int, template: str, only: np.ndarray | bool = True, **options) -> np.ndarray:
        flags = kept([template.format(char) for char in _PROBED], **options) & only
        for index in np.flatnonzero(flags):
            classes[ord(_PROBED[index])] = classes.get(ord(_PROBED[index]), 0) | flag
        return flags

    # Of a cluster that is replaced whole the mark is not left.
    marks = [key for key in singles if not rules.normalize_str(key + _MARK).endswith(_MARK)]
    whole = [key for key in marks if rules.normalize_str(f"{_BETWEEN}{key}{_MARK}").endswith(_MARK)]
    plain = [key for key in marks if key not in whole]
    key = next((key for key in plain if len(key) < len(key.encode())), None)
    if key is None:
        if any(len(key) > 1 for key in mapped):
            raise ValueError("charsmap: it has keys of several characters, but none of one, of at least two bytes")
        return classes
    joins = probe(_JOIN, f"{key}{_MARK}{{}}", begin=mapped[key])
    probe(_PREPEND, f"{{}}{key}{_MARK}")
    if mark := next((key for key in whole if not mapped[key].endswith(_MARK)), ""):
        control = ~kept([f"{char}{mark}{_MARK}" for char in _PROBED])
    else:
        control = kept([char + _MARK for char in _PROBED]) & np.array([char in mapped for char in _PROBED])
    for index, char in enumerate(_PROBED):
        if (char < " " or char == "\x7f") if char < "\x80" else control[index] and not joins[index]:
            classes[ord(char)] = classes.get(ord(char), 0) | _CONTROL
    if picture := key_after("\u00a9\u200d"):
        probe(_PICTURE, f"{{}}\u200d{picture}{_MARK}")
        probe(_AFTER_PICTURE, f"\u00a9{{}}\u200d{picture}{_MARK}", joins)
    if consonant := key_after("\u0915\u094d"):
        probe(_CONSONANT, f"{{}}\u094d{consonant}{_MARK}")
        probe(_LINKER, f"\u0915{{}}{consonant}{_MARK}", joins)
        probe(_AFTER_CONSONANT, f"\u0915\u094d{{}}{consonant}{_MARK}", joins)
    return classes
