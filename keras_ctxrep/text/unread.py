"""Texts that a model cannot read: of a language or a script of which it has learned nothing."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_ctxrep.checks import warn

if TYPE_CHECKING:
    from keras_ctxrep.text.bundle import Bundle
    from keras_ctxrep.text.features import Row

__all__ = ["Unread", "script", "scripts_of"]

# first words of the names of letters that are written in several scripts
_COMMON = frozenset(
    ("MODIFIER", "MICRO", "MASCULINE", "FEMININE", "KELVIN", "ANGSTROM", "OHM", "DOUBLE-STRUCK", "SCRIPT")
)
_FEW = 20
SHARE, SHARE_OF_WORDS = 0.05, 0.2  #: of unread tokens that is worth a warning, of word pieces and of words
_REMEDY = "answers and vectors mean little; use a model that learned from text in this language"


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
        names = set() if entry[:1] in ("[", "<") else {script(char) for char in entry} - {""}  # none of a marker
        entries.update(names)
        words.update(names if sum(map(str.isalpha, entry)) > 1 else ())
        size += 1
    if not words:
        return frozenset(entries)
    least = words.total() / 1000
    chosen = {name for name, count in words.items() if count >= least}
    return frozenset(chosen | ({"CJK"} if entries["CJK"] > size / 50 else set()))


class Unread:
    """Counts the tokens of texts of which a model has learned nothing, and warns of them.

    Of word pieces these are [UNK] and letters of other scripts than those of the vocabulary's words; of a table words
    without a vector; of an ELMo the words of other scripts than those of the text that it was pretrained on, if its
    bundle says which. Emoji do not count.

    Args:
        bundle: of the model.

    >>> from keras_ctxrep.text.bundle import Bundle
    >>> elmo = Bundle("elmo", "embed", {"max_characters": 50}, 8, scripts=("LATIN",))
    >>> counts = Unread(elmo)
    >>> counts.add(["Добрый день"], [elmo.features.encode(["Добрый день"])])
    >>> counts.message("a.txt").partition(";")[0]
    'a.txt: 100% of the words are in another script than the text that this ELMo learned from (LATIN)'
    """

    def __init__(self, bundle: "Bundle"):
        self.bundle, self.unread, self.count, self._watched = bundle, 0, 0, False

    def clear(self) -> None:
        """Begins anew."""
        self.unread = self.count = 0

    def add(self, texts: Sequence[Any], rows: Sequence[Sequence["Row"]]) -> None:
        """Counts the rows of some texts, each a string, a list of words, or a tuple of these, such as a `Query`."""
        rule = self._rule
        for text, of_text in zip(texts, rows, strict=True):
            tokens = [token for row in of_text for part in (row, row.pair) if part for token in part.tokens]
            unknown = sum(map(rule.unknown, tokens)) if rule.unknown else 0
            if unknown:
                unknown = max(0, unknown - len(of_text) * _emoji(text))
            self.unread += unknown + (sum(map(rule.foreign, tokens)) if rule.foreign else 0)
            self.count += len(tokens) - rule.markers * len(of_text)

    def message(self, source: str, before: tuple[int, int] = (0, 0)) -> str | None:
        """A message if more than 5% of at least 20 tokens are unread, or more than half of fewer ones; else None.

        Of a vocabulary of words, which lacks some of every text, more than 20%.

        Args:
            source: where the texts are from.
            before: `unread` and `count` of texts that are not meant.
        """
        unread, count = self.unread - before[0], self.count - before[1]
        if unread <= count * (0.5 if count < _FEW else self._rule.share):
            return None
        return f"{source}: {unread / count:.0%} of the {self._rule.reason}; {_REMEDY}"

    @contextmanager
    def warning(self, source: str = "these texts") -> Iterator[None]:
        """Warns at the end if the texts that are read within are unread; within another one, not."""
        if self._watched:
            yield
            return
        before, self._watched = (self.unread, self.count), True
        try:
            yield
        finally:
            self._watched = False
        if message := self.message(source, before):
            warn(message)

    @cached_property
    def _rule(self) -> "UnreadRule":
        return self.bundle.features.unread_rule(self.bundle.scripts)


class UnreadRule(NamedTuple):
    """Which tokens of a model count as unread.

    Attributes:
        reason: what they are, for the warning.
        unknown: whether a token is not in the vocabulary; None: all are.
        foreign: whether it is, and is of a script of which the model has learned no words; None: none is.
        markers: tokens of a row that are not of the text.
        share: of unread tokens that is worth a warning.
    """

    reason: str
    unknown: Callable[[Any], bool] | None = None
    foreign: Callable[[Any], bool] | None = None
    markers: int = 0
    share: float = SHARE


def rule_of_pieces(vocab: Sequence[str], unknown: int, markers: int) -> UnreadRule:
    """The rule of a vocabulary of word pieces; see the attributes of `UnreadRule`.

    Args:
        vocab: the pieces.
        unknown: the number of [UNK].
        markers: tokens of a row that are not of the text.
    """
    scripts = scripts_of(vocab)
    ids = frozenset(id for id, piece in enumerate(vocab) if not piece.startswith("[") and foreign(piece, scripts))
    reason = "word pieces are [UNK], or letters of a script of which this vocabulary has no words"
    return UnreadRule(reason, unknown.__eq__, ids.__contains__, markers)


def foreign(word: str, scripts: Collection[str]) -> bool:
    """Whether most letters of a word are of other scripts.

    Args:
        word: a word or a piece.
        scripts: as `script` names them.

    >>> foreign("да", ["LATIN"]), foreign("yes", ["LATIN"])
    (True, False)
    """
    names = [name for name in map(script, word) if name]
    return 2 * sum(name in scripts for name in names) < len(names)


def has_letters(word: str) -> bool:
    """Whether a word has letters."""
    return any(map(str.isalpha, word))


def _emoji(text: Any) -> int:
    """The symbols in a text, or in all strings of a tuple."""
    if isinstance(text, str):
        return 0 if text.isascii() else sum(unicodedata.category(char) == "So" for char in text)
    return sum(_emoji(part) for part in text or ()) if not isinstance(text, int) else 0
