"""Texts that a model cannot read: of a language or a script of which it has learned nothing."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from keras_ctxrep.checks import warn
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row, StaticFeatures, WordFeatures, WordPieceFeatures
from keras_ctxrep.text.pairs import PairFeatures
from keras_ctxrep.text.units import TokenFeatures

__all__ = ["Unread", "script", "scripts_of"]

# first words of the names of letters that are written in several scripts
_COMMON = frozenset(
    ("MODIFIER", "MICRO", "MASCULINE", "FEMININE", "KELVIN", "ANGSTROM", "OHM", "DOUBLE-STRUCK", "SCRIPT")
)
_FEW, _SHARE, _SHARE_OF_WORDS = 20, 0.05, 0.2
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

    >>> elmo = Bundle("elmo", "embed", {"max_characters": 50}, 8, scripts=("LATIN",))
    >>> counts = Unread(elmo)
    >>> counts.add(["Добрый день"], [elmo.features.encode(["Добрый день"])])
    >>> counts.message("a.txt").partition(";")[0]
    'a.txt: 100% of the words are in another script than the text that this ELMo learned from (LATIN)'
    """

    def __init__(self, bundle: Bundle):
        self.bundle, self.unread, self.count, self._watched = bundle, 0, 0, False

    def clear(self) -> None:
        """Begins anew."""
        self.unread = self.count = 0

    def add(self, texts: Sequence[Any], rows: Sequence[Sequence[Row]]) -> None:
        """Counts the rows of some texts, each a string, a list of words, or a tuple of these, such as a `Query`."""
        kind = self._kind
        for text, of_text in zip(texts, rows, strict=True):
            tokens = [token for row in of_text for part in (row, row.pair) if part for token in part.tokens]
            unknown = sum(map(kind.unknown, tokens))
            if unknown:
                unknown = max(0, unknown - len(of_text) * _emoji(text))
            self.unread += unknown + sum(map(kind.foreign, tokens))
            self.count += len(tokens) - kind.markers * len(of_text)

    def message(self, source: str, before: tuple[int, int] = (0, 0)) -> str | None:
        """A message if more than 5% of at least 20 tokens are unread, or more than half of fewer ones; else None.

        Of a vocabulary of words, which lacks some of every text, more than 20%.

        Args:
            source: where the texts are from.
            before: `unread` and `count` of texts that are not meant.
        """
        unread, count = self.unread - before[0], self.count - before[1]
        if unread <= count * (0.5 if count < _FEW else self._kind.share):
            return None
        return f"{source}: {unread / count:.0%} of the {self._kind.reason}; {_REMEDY}"

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
    def _kind(self) -> "_Kind":
        features: Any = self.bundle.features
        features = features.features if isinstance(features, PairFeatures) else features
        if isinstance(features, WordPieceFeatures):
            return _of_pieces(features.wordpiece.vocab, features.wordpiece.unk, 2)
        if isinstance(features, TokenFeatures):
            if features.units == "pieces":
                return _of_pieces(features.vocab, features.unknown, 1)
            share = _SHARE_OF_WORDS if features.units == "words" else _SHARE
            reason = f"{features.units} are not in the vocabulary of this language model"
            return _Kind(features.unknown.__eq__, _never, reason, 1, share)
        if isinstance(features, WordFeatures):
            reason = "words are not in the vocabulary of this model"
            return _Kind(
                lambda word: not features.knows(word) and _has_letters(word), _never, reason, 0, _SHARE_OF_WORDS
            )
        if isinstance(features, StaticFeatures):
            scripts = scripts_of(self.bundle.vocab) if features.ngrams else frozenset()

            def unknown(word: str) -> bool:
                return not features.knows(word) and _has_letters(word) and _foreign(word, scripts)

            return _Kind(unknown, _never, "words have no vector in this table", 0, _SHARE_OF_WORDS)
        scripts = frozenset(self.bundle.scripts)
        names = ", ".join(sorted(scripts))
        reason = f"words are in another script than the text that this ELMo learned from ({names})"
        return _Kind(_never, (lambda word: _foreign(word, scripts)) if scripts else _never, reason, 0, _SHARE)


class _Kind(NamedTuple):
    """What is counted of a model's tokens."""

    unknown: Callable[[Any], bool]  # whether a token is not in the vocabulary
    foreign: Callable[[Any], bool]  # whether it is, and is of a script of which there are no words
    reason: str
    markers: int  # tokens of a row that are not of the text
    share: float  # of unread tokens that is worth a warning


def _of_pieces(vocab: Sequence[str], unknown: int, markers: int) -> _Kind:
    scripts = scripts_of(vocab)
    foreign = frozenset(id for id, piece in enumerate(vocab) if not piece.startswith("[") and _foreign(piece, scripts))
    reason = "word pieces are [UNK], or letters of a script of which this vocabulary has no words"
    return _Kind(unknown.__eq__, foreign.__contains__, reason, markers, _SHARE)


def _foreign(word: str, scripts: frozenset[str]) -> bool:
    """Whether most letters of a word are of other scripts."""
    names = [name for name in map(script, word) if name]
    return 2 * sum(name in scripts for name in names) < len(names)


def _has_letters(word: str) -> bool:
    return any(map(str.isalpha, word))


def _never(token: Any) -> bool:
    return False


def _emoji(text: Any) -> int:
    """The symbols in a text, or in all strings of a tuple."""
    if isinstance(text, str):
        return 0 if text.isascii() else sum(unicodedata.category(char) == "So" for char in text)
    return sum(_emoji(part) for part in text or ()) if not isinstance(text, int) else 0
