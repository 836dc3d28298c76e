"""Pairs of texts for encoders that read one text: both texts apart, each with inputs of its own."""

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from keras_ctxrep.text.features import (
    MAX_QUESTION,
    Features,
    Marks,
    Pairs,
    Row,
    Span,
    Texts,
    check_texts,
    window_begins,
)
from keras_ctxrep.text.scripts import UnreadRule

__all__ = ["APART", "PAIR", "PairFeatures"]

APART = ("esim", "bidaf")  #: the task networks whose encoder reads the texts of a pair apart
PAIR = "pair_"  #: before the name of an input of the second text


class PairFeatures(Features):
    """The input of a model over an encoder that reads the two texts of a pair apart.

    Args:
        features: of the encoder, of any family.
        windows: the first text is a question, the second one a context that is read in windows.

    Returns: what `features` make of the texts, and of the second ones under names with "pair_" before them: for an
        ELMo {"char_ids": int32 (B, T, W), "mask": int32 (B, T), "pair_char_ids": int32 (B, S, W), "pair_mask": int32
        (B, S)}.

    >>> from keras_ctxrep.text.features import StaticFeatures
    >>> features = PairFeatures(StaticFeatures(["<UNK>", "one", "two"]))
    >>> {name: ids.tolist() for name, ids in features(["one"], ["one two"]).items()}
    {'word_ids': [[2]], 'mask': [[1]], 'pair_word_ids': [[2, 3]], 'pair_mask': [[1, 1]]}
    """

    pairs = True

    def __init__(self, features: Features, windows: bool = False):
        self.features, self.max_length, self.padding = features, features.max_length, features.padding
        self.keys = (*features.keys, *(PAIR + key for key in features.keys))
        self.max_question = None
        self._first = features  # of the first text
        if windows:
            self._first = copy(features)
            self._first.max_length = self.max_question = min(MAX_QUESTION, self.max_length)

    def __call__(self, texts: Sequence[str], pairs: Sequence[str], length: int | None = None) -> dict[str, np.ndarray]:
        return self.collate(self.encode(texts, pairs), length)

    def encode(self, texts: Texts, pairs: Pairs = None, offsets: bool = False, marks: Marks | None = None) -> list[Row]:
        """Rows of both texts, each cut at `max_length`.

        Raises:
            ValueError: a text has no pair, or there are marked spans.
        """
        texts = check_texts(texts)
        if marks is not None:
            raise ValueError("marked spans are of single texts, and this model reads pairs")
        if pairs is None or len(pairs) != len(texts) or any(pair is None for pair in pairs):
            count = sum(pair is not None for pair in pairs or ())
            raise ValueError(f"{len(texts)} texts and {count} pairs; give one for each text")
        seconds = self.features.encode([pair for pair in pairs if pair is not None])
        rows = zip(self._first.encode(texts), seconds, strict=True)
        return [replace(row, truncated=row.truncated or pair.truncated, pair=pair) for row, pair in rows]

    def windows(self, questions: Sequence[str], contexts: Sequence[str], stride: int = 128) -> list[list[Row]]:
        """Each question with overlapping windows of its context, see `window_begins`.

        Questions are truncated to 64 tokens; `truncated` of the rows says so. Logits of a window are first of no
        answer, then of each token of the context's row.

        Args:
            questions, contexts: sequences of the same length.
            stride: tokens from one window to the next, at least 1.

        Returns: for each question one or more rows.

        Raises:
            ValueError: `stride` is below 1.

        >>> from keras_ctxrep.text.features import WordFeatures
        >>> features = PairFeatures(WordFeatures(["<S>", "</S>", "<UNK>"], max_length=2), windows=True)
        >>> [(row.pair.tokens, row.context, row.offsets) for row in features.windows(["c"], ["a b c"], stride=1)[0]]
        [(['a', 'b'], range(1, 3), [(0, 0), (0, 1), (2, 3)]), (['b', 'c'], range(1, 3), [(0, 0), (2, 3), (4, 5)])]
        """
        before, after = self.features.markers
        room, around = self.max_length - before - after, [(0, 0)] * (1 + before)
        windows = []
        for question, parts, (offsets, words) in zip(
            self._first.encode(questions),
            self.features.text_windows(contexts, stride),
            self.features.token_spans(contexts),
            strict=True,
        ):
            rows = []
            for part, begin in zip(parts, window_begins(len(offsets), room, stride), strict=True):
                spans = ([*around, *of_tokens[begin : begin + room]] for of_tokens in (offsets, words))
                row = replace(question, pair=part, **dict(zip(("offsets", "words"), spans, strict=True)))
                rows.append(replace(row, context=range(1 + before, len(row.offsets or ()))))
            windows.append(rows)
        return windows

    def collate(self, rows: Sequence[Row], length: int | None = None) -> dict[str, np.ndarray]:
        """One batch, both texts padded to the longest of each, or to their `size` for `length`."""
        texts, pairs = (None if length is None else self.size(name, length) for name in ("mask", f"{PAIR}mask"))
        batch = self.features.collate(rows, texts)
        second = self.features.collate([row.pair or Row([]) for row in rows], pairs)
        return batch | {PAIR + name: values for name, values in second.items()}

    def text_windows(self, texts: Texts, stride: int) -> list[list[Row]]:
        """Single texts in overlapping windows, as the encoder's features have it."""
        return self.features.text_windows(texts, stride)

    def token_spans(self, texts: Sequence[str]) -> list[tuple[list[Span], list[Span]]]:
        return self.features.token_spans(texts)

    def positions(self, row: Row) -> list[int | None]:
        """The positions of the first text's words or tokens in its row."""
        return self.features.positions(row)

    def unread_rule(self, scripts: Collection[str]) -> UnreadRule:
        return self.features.unread_rule(scripts)

    def size(self, name: str, length: int) -> int:
        """The tokens of an input where the longest has `length`: of a question no more than it is cut to."""
        return length if self.max_question is None or name.startswith(PAIR) else min(length, self.max_question)
