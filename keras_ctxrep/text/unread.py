"""Texts that a model cannot read: of a language or a script of which it has learned nothing."""

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from keras_ctxrep.checks import warn
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row
from keras_ctxrep.text.scripts import UnreadRule

__all__ = ["Unread"]

_FEW = 20
_REMEDY = "answers and vectors mean little; use a model that learned from text in this language"


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
    def _rule(self) -> UnreadRule:
        return self.bundle.features.unread_rule(self.bundle.scripts)


def _emoji(text: Any) -> int:
    """The symbols in a text, or in all strings of a tuple."""
    if isinstance(text, str):
        return 0 if text.isascii() else sum(unicodedata.category(char) == "So" for char in text)
    return sum(_emoji(part) for part in text or ()) if not isinstance(text, int) else 0
