"""The scripts that letters are written in, and the rule by which a token counts as one that a model cannot read."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = ["UnreadRule", "foreign", "has_letters", "rule_of_pieces", "script", "scripts_of"]

# first words of the names of letters that are written in several scripts
_COMMON = frozenset(
    ("MODIFIER", "MICRO", "MASCULINE", "FEMININE", "KELVIN", "ANGSTROM", "OHM", "DOUBLE-STRUCK", "SCRIPT")
)
SHARE, SHARE_OF_WORDS = 0.05, 0.2  #: of unread tokens that is worth a warning, of word pieces and of words
SHARE_OF_SPLIT = 0.5  #: the same of words that fall to pieces
LONG, SHORT = 4, 3  #: letters of a word that may fall to pieces, and that its pieces then have fewer of
OWN_LANGUAGE = 10_000  #: entries from which on a vocabulary has the words of a language


@lru_cache(1 << 16)
def script(char: str) -> str:
    """The script of a letter, the first word of its Unicode name; "" of other characters, and of letters of several.

    >>> [script(char) for char in "aЖ中1."]
    ['LATIN', 'CYRILLIC', 'CJK', '', '']
    """
    name = unicodedata.name(char, "").partition(" ")[0] if char.isalpha() else ""
    return "" if name in _COMMON else name


def scripts_of(vocab: Iterable[str]) -> frozenset[str]:
    """The scripts of a vocabulary's words or pieces, without those of which it has little but single letters.

    Every vocabulary has letters and names of other scripts. A script counts from one in a thousand of the entries with
    two letters or more on; Chinese characters, which are words by themselves, from one in fifty of all entries on. In a
    vocabulary of single letters every script counts.

    >>> sorted(scripts_of(["the", "##ing", "он", "##ж", "α"])), sorted(scripts_of("aж"))
    (['CYRILLIC', 'LATIN'], ['CYRILLIC', 'LATIN'])
    """
    entries, words, size = Counter(), Counter(), 0
    for entry in vocab:
        names = set() if entry[:1] in ("[", "<") else _scripts_in(entry)  # none of a marker
        entries.update(names)
        words.update(names if sum(map(str.isalpha, entry)) > 1 else ())
        size += 1
    if not words:
        return frozenset(entries)
    least = words.total() / 1000
    chosen = {name for name, count in words.items() if count >= least}
    return frozenset(chosen | ({"CJK"} if entries["CJK"] > size / 50 else set()))


def _scripts_in(word: str) -> set[str]:
    """The scripts of a word's letters."""
    if word.isascii():  # as most are; a vocabulary has tens of thousands
        return {"LATIN"} if any(map(str.isalpha, word)) else set()
    return {script(char) for char in word} - {""}


class UnreadRule(NamedTuple):
    """Which tokens of a model count as unread.

    Attributes:
        reason: what they are, for the warning.
        unknown: whether a token is not in the vocabulary; None: all are.
        foreign: whether it is, and is of a script of which the model has learned no words; None: none is.
        markers: tokens of a row that are not of the text.
        share: of unread tokens that is worth a warning.
        split: the words of some tokens that fall to pieces, see `split_words`, and all that might; None: is not known.
    """

    reason: str
    unknown: Callable[[Any], bool] | None = None
    foreign: Callable[[Any], bool] | None = None
    markers: int = 0
    share: float = SHARE
    split: Callable[[Sequence[int]], tuple[int, int]] | None = None


def rule_of_pieces(vocab: Sequence[str], unknown: int, markers: int) -> UnreadRule:
    """The rule of a vocabulary of word pieces; see the attributes of `UnreadRule`.

    Args:
        vocab: the pieces.
        unknown: the number of [UNK].
        markers: tokens of a row that are not of the text.
    """
    ids = _foreign_pieces(tuple(vocab))
    reason = "word pieces are [UNK], or letters of a script of which this vocabulary has no words"
    split = split_words(tuple(vocab)) if len(vocab) >= OWN_LANGUAGE else None
    return UnreadRule(reason, unknown.__eq__, ids.__contains__, markers, split=split)


@lru_cache(4)
def split_words(vocab: tuple[str, ...]) -> Callable[[Sequence[int]], tuple[int, int]]:
    """A function that counts, of some tokens, the words that fall to pieces of fewer than 3 letters, and all words.

    Of words of four letters or more. A vocabulary of a language has most of its words whole: of 30 words of English
    less than half fall to pieces, with a typing error in every third too, and of German and Czech two thirds and more.

    Args:
        vocab: word pieces, those within a word with "##" before them.

    >>> split_words(("[CLS]", "weather", "we", "##tt", "##er", "."))([0, 1, 2, 3, 4, 5])
    (1, 2)
    """
    inner = [piece.startswith("##") for piece in vocab]
    texts = [piece.removeprefix("##") for piece in vocab]
    letters = [len(text) if text.isalpha() else 0 for text in texts]

    def count(tokens: Sequence[int]) -> tuple[int, int]:
        split = words = size = pieces = 0
        for id in (*tokens, 0):  # and another word, which ends the last one
            if pieces and inner[id]:
                size, pieces = size + letters[id], pieces + 1
                continue
            words += size >= LONG
            split += size >= LONG and size < SHORT * pieces
            size, pieces = letters[id], 1
        return split, words

    return count


@lru_cache(4)  # each predictor of a model asks, of the same vocabulary
def _foreign_pieces(vocab: tuple[str, ...]) -> frozenset[int]:
    """The ids of the pieces of scripts of which the vocabulary has no words."""
    scripts = scripts_of(vocab)
    return frozenset(id for id, piece in enumerate(vocab) if piece[:1] not in ("[", "<") and foreign(piece, scripts))


def foreign(word: str, scripts: Collection[str]) -> bool:
    """Whether most letters of a word are of other scripts.

    Args:
        word: a word or a piece.
        scripts: as `script` names them.

    >>> foreign("да", ["LATIN"]), foreign("yes", ["LATIN"])
    (True, False)
    """
    if word.isascii() and "LATIN" in scripts:
        return False
    names = [name for name in map(script, word) if name]
    return 2 * sum(name in scripts for name in names) < len(names)


def has_letters(word: str) -> bool:
    """Whether a word has letters."""
    return any(map(str.isalpha, word))
