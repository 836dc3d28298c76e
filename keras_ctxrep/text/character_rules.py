"""What `tokenizers` makes of each character, and long texts without what a model does not read of them.

No word depends on what follows it but for its own end, so that the first words of a text are those of its beginning.
Where this has few words, since it is white space, characters that are removed or a word of millions of letters, these
are left out, block by block.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from tokenizers import normalizers, pre_tokenizers

__all__ = [
    "APART",
    "INSIDE",
    "SPACE",
    "Casing",
    "CharacterRules",
    "enough",
    "lower_case",
    "placed",
    "rules_of",
    "shortened",
]

INSIDE, SPACE, APART = range(3)  #: what a character is: of a word, white space, a word of its own
_BLOCK, _LARGEST = 1 << 14, 1 << 20  # characters that are read at once, at first and at most
_BETWEEN = chr(0x40000)  # of an empty plane; no rule touches it
# of static vectors: accents and all else stay
LOWER_CASE = normalizers.BertNormalizer(
    clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=True
)


class Casing(NamedTuple):
    """The options of BERT's normalizer that differ between models; the default are those of ELMo's words."""

    lowercase: bool = False
    strip_accents: bool = False
    split_cjk: bool = True

    def normalizer(self) -> normalizers.Normalizer:
        """That of `tokenizers`."""
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.split_cjk,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )


class CharacterRules(NamedTuple):
    """The normalization of some characters."""

    kinds: list[int]  #: INSIDE a word, SPACE, or APART: a word of its own
    ranks: list[int]  #: canonical combining class; -1 if removed before the order matters; 0 where accents stay
    becomes: list[str]  #: what is left of it, without spaces


def rules_of(chars: Sequence[str], casing: Casing) -> CharacterRules:
    """The rules of `tokenizers`, read from its output for each of some characters, which are not U+40000.

    Args:
        chars: the characters.
        casing: of the tokenizer.

    >>> rules_of(["é", " ", "."], Casing(lowercase=True, strip_accents=True))
    CharacterRules(kinds=[0, 1, 2], ranks=[0, 0, 0], becomes=['e', '', '.'])
    """
    rules, split = casing.normalizer(), pre_tokenizers.BertPreTokenizer()
    total = CharacterRules([], [], [])
    for begin in range(0, len(chars), 256):
        block = chars[begin : begin + 256]
        own = _rules_of_alike(block, rules, split) or _rules_of_each(block, rules, split, casing.strip_accents)
        total.kinds.extend(own.kinds)
        total.ranks.extend(own.ranks)
        total.becomes.extend(own.becomes)
    return total


def _rules_of_alike(
    chars: Sequence[str], rules: normalizers.Normalizer, split: pre_tokenizers.PreTokenizer
) -> CharacterRules | None:
    """The rules of characters that all stay, alone or in words, and are no marks, as most of Unicode's; None: others.

    It takes a third of the time of `_rules_of_each`.
    """
    text = "".join(chars)
    normalized = rules.normalize_str(text)
    if normalized == text and len(split.pre_tokenize_str(f"x{text}x")) == 1:
        kind = INSIDE
    elif normalized == "".join(f" {char} " for char in chars):
        kind = APART
    else:
        return None
    # of class 224 and 9: a mark between them changes places with one of them
    marked = "".join(f"\u302e{char}\u1b44" for char in chars)
    if rules.normalize_str(marked).replace(" ", "") != marked:
        return None
    return CharacterRules([kind] * len(chars), [0] * len(chars), [*chars])


def _rules_of_each(
    chars: Sequence[str], rules: normalizers.Normalizer, split: pre_tokenizers.PreTokenizer, strip_accents: bool
) -> CharacterRules:
    def normalized(template: str) -> list[str]:
        return rules.normalize_str(_BETWEEN.join(map(template.format, chars))).split(_BETWEEN)

    results = normalized("x{}y")
    inside = [becomes[1:-1].strip(" ") for becomes in results]
    single = {piece for piece, _ in split.pre_tokenize_str("x".join(["", *inside, ""])) if len(piece) == 1} - {"x"}
    # Canonical order: U+1B44 (class 9) moves before U+302E (class 224), unless a character between them is a base.
    ordered = normalized("x\u302e{}\u1b44y") if strip_accents else results
    kinds, ranks = [], []
    for char, becomes, inner, order in zip(chars, results, inside, ordered, strict=True):
        kinds.append(SPACE if becomes == "x y" else APART if inner in single or becomes[1] == " " else INSIDE)
        passes = order.find("\u1b44") < order.find("\u302e")
        ranks.append((unicodedata.combining(char) or -1) if passes else 0)
    return CharacterRules(kinds, ranks, inside)


def lower_case(chars: Sequence[str]) -> list[str]:
    """Each of some characters in lower case, as static vectors look words up.

    >>> lower_case(["Σ", "İ"])
    ['σ', 'i̇']
    """
    return LOWER_CASE.normalize_str(_BETWEEN.join(chars)).split(_BETWEEN)


def enough(tokens: int) -> int:
    """Characters of which a text that is no oddity has more than so many tokens."""
    return max(4096, 64 * tokens)


def placed(start: int, end: int, places: np.ndarray) -> tuple[int, int]:
    """A span of characters of a shortened text in the text that it comes from; (0, 0) is none.

    Args:
        start, end: of the span.
        places: of each character of the shortened text where it stands in the other.

    >>> placed(1, 3, np.array([0, 5, 9]))
    (5, 10)
    """
    return (int(places[start]), int(places[end - 1]) + 1) if start < end else (start, end)


_KIND, _REMOVED, _VANISHING, _MARK, _KNOWN = 3, 4, 8, 16, 32  # flags of a character


@cache
def _table(casing: Casing) -> np.ndarray:
    """The flags of each code point, uint8; 0 where they are not known yet."""
    return np.zeros(0x110000, np.uint8)


def _flags(codes: np.ndarray, casing: Casing) -> np.ndarray:
    table = _table(casing)
    if len(new := np.unique(codes[table[codes] == 0])):
        rules = rules_of([chr(code + (code == ord(_BETWEEN))) for code in new], casing)  # the next one is as this is
        for code, kind, rank, becomes in zip(new, *rules, strict=True):
            vanishing = not becomes and kind == INSIDE
            removed = vanishing and (rank < 0 or not casing.strip_accents)
            table[code] = _KNOWN | kind | _REMOVED * removed | _VANISHING * vanishing | _MARK * (rank > 0)
    return table[codes]


def shortened(
    text: str, words: int, letters: int, casing: Casing, spans: bool = False, lines: bool = False
) -> tuple[str, np.ndarray]:
    """A text that has the same first words as another one, in time that grows with its length and memory that does not.

    Args:
        text: any.
        words: how many words are the same. There is one more in the result if there is in the text.
        letters: of a word that are the same, at least 101, of which WordPiece makes [UNK]; the others may be missing.
        casing: how words are made of it.
        spans: the words stand at the same places too. A word with millions of accents is not shortened then.
        lines: line ends stay, and count as words.

    Returns: the shorter text, and the place of each of its characters in the text, int64.

    >>> text, places = shortened("a" * 5000 + " " * 5000 + "b c d", 2, 101, Casing(), spans=True)
    >>> len(text), text[-5:], places[-4:]
    (106, 'a b c', array([ 5000, 10000, 10001, 10002]))
    """
    codes, places = np.zeros(0, np.uint32), np.zeros(0, np.int64)
    begin, size = 0, _BLOCK
    while begin < len(text):
        block = np.frombuffer(text[begin : begin + size].encode("utf-32-le", "surrogatepass"), np.uint32)
        block = np.where((block >= 0xD800) & (block < 0xE000), 0xFFFD, block)  # surrogates are removed as this is
        codes = np.concatenate([codes, block.astype(np.uint32)])
        places = np.concatenate([places, np.arange(begin, begin + len(block))])
        flags = _flags(codes, casing)
        if lines:
            flags[codes == ord("\n")] = _KNOWN | APART
        kept, complete = _keep(flags, words, letters, spans)
        codes, places = codes[kept], places[kept]
        if complete:
            break
        begin, size = begin + size, min(2 * size, _LARGEST)
    return codes.tobytes().decode("utf-32-le"), places


def _keep(flags: np.ndarray, words: int, letters: int, spans: bool) -> tuple[np.ndarray, bool]:
    """Which characters matter for the first words, ascending, and whether more words than these are there."""
    gone = flags & _REMOVED > 0
    if not spans:  # without accents the order of other marks stays the same
        gone |= flags & (_MARK | _VANISHING) == _MARK | _VANISHING
    kept = np.flatnonzero(~gone)
    flags = flags[kept]
    base = np.append(flags & _MARK == 0, False)
    # what vanishes but is no mark keeps the marks before it from those behind it
    real = ~((flags & (_MARK | _VANISHING) == _VANISHING) & base[1:])
    kept, flags = kept[real], flags[real]
    space = flags & _KIND == SPACE
    real = ~(space & np.insert(space, 0, True)[:-1])
    kept, flags = kept[real], flags[real]
    kind, letter = flags & _KIND, (flags & (_KIND | _VANISHING) == INSIDE)
    # number of each letter in its word, and of the word of each character
    count = np.cumsum(letter)
    number = count - np.maximum.accumulate(np.where(kind != INSIDE, count, 0))
    word = np.cumsum(kind, dtype=np.int64) - (kind == APART)
    found = np.flatnonzero(letter | (kind == APART))
    begins = np.flatnonzero(np.diff(word[found], prepend=-1))
    long = letter & (number > letters)
    if spans:
        base = np.append(flags & _MARK == 0, False)
        long &= base[:-1] & base[1:]
        long[found[np.append(begins, len(found))[1:] - 1]] = False  # where words end
    complete = len(begins) > words
    if complete:
        long[found[begins[words]] + 1 :] = True
    return kept[~long], complete
