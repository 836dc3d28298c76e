"""Texts that a model cannot read: of a language or a script of which it has learned nothing."""

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from keras_ctxrep.checks import warn
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row
from keras_ctxrep.text.scripts import SHARE_OF_SPLIT, UnreadRule

__all__ = ["Unread"]

_FEW, _FEW_WORDS = 20, 30
_SAMPLE = 2000  # words of a call that are looked at, whether they fall to pieces
_REMEDY = "answers and vectors mean little; use a model that learned from text in this language"


class Unread:
    """Counts the tokens of texts of which a model has learned nothing, and warns of them.

    Of word pieces these are [UNK], letters of other scripts than those of the vocabulary's words, and words that fall
    to pieces, as those of another language in the same script do, of which a sample is looked at; of a table words
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
        self.bundle, self._watched = bundle, False
        self.clear()

    def clear(self) -> None:
        """Begins anew."""
        self.unread = self.count = self.split = self.words = 0
        self._most = _SAMPLE

    def add(self, texts: Sequence[Any], rows: Sequence[Sequence[Row]]) -> None:
        """Counts the rows of some texts, each a string, a list of words, or a tuple of these, such as a `Query`."""
        rule = self._rule
        for text, of_text in zip(texts, rows, strict=True):
            tokens = [token for row in of_text for part in (row, row.pair) if part for token in part.tokens]
            unknown = sum(map(rule.unknown, tokens)) if rule.unknown else 0
            if unknown:
                unknown = max(0, unknown - len(of_text) * _emoji(text))
            self.unread += unknown + (sum(map(rule.foreign, tokens)) if rule.foreign else 0)
            self.count += len(tokens) - rule.markers * len(of_text)
            if rule.split is not None and self.words < self._most:
                split, words = rule.split(tokens)
                self.split, self.words = self.split + split, self.words + words

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """`unread` of `count` tokens, and `split`, those that fall to pieces, of `words` so far."""
        return self.unread, self.count, self.split, self.words

    def message(self, source: str, before: tuple[int, ...] = (0, 0, 0, 0)) -> str | None:
        """A message if more than 5% of at least 20 tokens are unread, or more than half of fewer ones; else None.

        Of a vocabulary of words, which lacks some of every text, more than 20%. Also if more than half of at least 30
        words fall to pieces.

        Args:
            source: where the texts are from.
            before: `counts` of texts that are not meant.
        """
        unread, count, split, words = (now - then for now, then in zip(self.counts, before, strict=True))
        if unread > count * (0.5 if count < _FEW else self._rule.share):
            return f"{source}: {unread / count:.0%} of the {self._rule.reason}; {_REMEDY}"
        if words < _FEW_WORDS or split <= words * SHARE_OF_SPLIT:
            return None
        return f"{source}: {split / words:.0%} of the words fall to pieces of one or two letters; {_REMEDY}"

    @contextmanager
    def warning(self, source: str = "these texts") -> Iterator[None]:
        """Warns at the end if the texts that are read within are unread; within another one, not."""
        if self._watched:
            yield
            return
        before, self._watched = self.counts, True
        self._most = self.words + _SAMPLE
        try:
            yield
        finally:
            self._watched = False
        if message := self.message(source, before):
            warn(message)

    @cached_property
    def _rule(self) -> UnreadRule:
        return self.bundle.features.unread_rule(self.bundle.scripts)


def _emoji(text: Any) -> int:
    """The symbols in a text, or in all strings of a tuple."""
    if isinstance(text, str):
        return 0 if text.isascii() else sum(unicodedata.category(char) == "So" for char in text)
    return sum(_emoji(part) for part in text or ()) if not isinstance(text, int) else 0
