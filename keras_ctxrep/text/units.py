"""The tokens of a language model: words, word pieces or characters of texts as ids, and ids as text again."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_ctxrep.text.features import Row, check_texts
from keras_ctxrep.text.pretraining import WHOLE, BpttSegment, Vocabulary
from keras_ctxrep.text.tokens import WordPiece, split_words

__all__ = ["UNITS", "TokenFeatures", "token_batch"]

UNITS = ("words", "pieces", "characters")


class TokenFeatures:
    """Texts as ids of tokens, and ids as text.

    A text is one or several lines. Before the first one and after each stands one mark, the end of a line: what is
    predicted after a line's last token is what is read before the next line's first one. Words are those of BERT's
    split without lower-casing, as ELMo reads them, and are joined by spaces; characters are those of Unicode.

    Args:
        units: one of `UNITS`.
        vocab: of words and characters <S>, </S>, <UNK>, then the others; </S> is the end of a line, and <S> is not
            read. Of pieces a BERT's vocabulary, of which [SEP] is the end of a line.
        max_length: tokens of a row.
        casing: `lowercase`, `strip_accents` and `split_cjk` of `WordPiece`.

    Returns: {"token_ids", "mask"}, each int32 (B, T): the mark and the text.

    Raises:
        ValueError: a vocabulary without these entries, or with one twice.

    >>> features = TokenFeatures("words", ["<S>", "</S>", "<UNK>", "a", "day"])
    >>> features(["a day", "one"])["token_ids"].tolist()
    [[1, 3, 4], [1, 2, 0]]
    >>> features.text([3, 4, 1, 3])
    'a day\\na'
    """

    keys = ("token_ids", "mask")
    pairs = indicate = False

    def __init__(self, units: str, vocab: Sequence[str], max_length: int = 128, **casing: Any):
        if units not in UNITS:
            raise ValueError(f"units={units!r}: one of {', '.join(UNITS)}")
        self.units, self.max_length = units, max_length
        if units == "pieces":
            self.wordpiece = WordPiece(vocab, **casing)
            self.vocab, self.end, self.unknown = self.wordpiece.vocab, self.wordpiece.sep, self.wordpiece.unk
            self.never = [self.wordpiece.pad, self.wordpiece.unk, self.wordpiece.cls, self.wordpiece.mask]
        else:
            self.vocabulary = Vocabulary(vocab)
            self.vocab, self.end, self.unknown = self.vocabulary.vocab, 1, 2
            self.never = [0, 2]  #: ids that are not generated

    def __call__(self, texts: Sequence[str], length: int | None = None) -> dict[str, np.ndarray]:
        return self.collate(self.encode(texts), length)

    def ids(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, without marks."""
        if self.units == "pieces":
            return self.wordpiece.ids_batch(lines)
        return [self.vocabulary.ids(split(line, self.units)).tolist() for line in lines]

    def prompt(self, text: str) -> list[int]:
        """The ids of a text that is to be continued: a mark before each of its lines, and none at its end.

        >>> TokenFeatures("characters", ["<S>", "</S>", "<UNK>", "a"]).prompt("a\\n")
        [1, 3, 1]
        """
        return [token for line in self.ids(text.split("\n")) for token in (self.end, *line)]

    def encode(self, texts: Sequence[str], pairs: Any = None, offsets: bool = False, marks: Any = None) -> list[Row]:
        """Rows of ids, cut at `max_length`."""
        rows = map(self.prompt, check_texts(texts))
        return [Row(ids[: self.max_length], len(ids) > self.max_length) for ids in rows]

    def collate(self, rows: Sequence[Row], length: int | None = None) -> dict[str, np.ndarray]:
        """One batch, padded to the longest row, or to `length`."""
        return padded([row.tokens for row in rows], length)

    def text(self, ids: Iterable[int], before: int | None = None) -> str:
        """The text of some ids, which continue a text whose last token is `before`; None: they begin it."""
        return "".join(self.strings(ids, before))

    def strings(self, ids: Iterable[int], before: int | None = None) -> Iterator[str]:
        """What each token adds to the text.

        >>> [*TokenFeatures("words", ["<S>", "</S>", "<UNK>", "a"]).strings([3, 3, 1, 3])]
        ['a', ' a', '\\n', 'a']
        """
        before = self.end if before is None else before
        for token in ids:
            begins, inside = self.forms(token)
            yield begins if before == self.end else inside
            before = token

    def forms(self, token: int) -> tuple[str, str]:
        """What a token adds to a text, at the beginning of a line and elsewhere."""
        if token == self.end:
            return "\n", "\n"
        word = self.vocab[token]
        if self.units == "characters":
            return word, word
        if self.units == "pieces" and word.startswith("##"):
            return word[2:], word[2:]
        return word, f" {word}"


def split(line: str, units: str) -> list[str]:
    """The words or characters of a line.

    >>> split("a b", "words"), split("a b", "characters")
    (['a', 'b'], ['a', ' ', 'b'])
    """
    return split_words(line) if units == "words" else list(line)


def padded(rows: Sequence[Sequence[int]], length: int | None = None) -> dict[str, np.ndarray]:
    """{"token_ids", "mask"}, int32 (B, T), of rows of ids.

    >>> padded([[5], [6, 7]])["mask"].tolist()
    [[1, 0], [1, 1]]
    """
    sizes = np.array([len(row) for row in rows], np.int32)
    longest = max(1, sizes.max(initial=1)) if length is None else length
    if sizes.max(initial=0) > longest:
        raise ValueError(
            f"a row of {sizes.max()} tokens does not fit into length={length}; encode with that max_length"
        )
    mask = (np.arange(longest) < sizes[:, None]).astype(np.int32)
    ids = np.zeros(mask.shape, np.int32)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return {"token_ids": ids, "mask": mask}


def token_batch(batch: Sequence[BpttSegment], part: slice = WHOLE, sampled: bool = False) -> tuple[dict, dict, dict]:
    """(inputs, targets, weights) of `lm.language_model` with `streams`, from segments of ids of `bptt_segments`.

    Args:
        batch: a segment for each stream.
        part: the rows to return, padded and weighted as in the whole batch.
        sampled: for a model with `samples`, whose targets are inputs and whose labels are all 0.

    Returns: inputs {"token_ids", "mask"}, targets {"logits"}, int32 (B, T), and weights {"logits"}, float32 (B, T),
        scaled so that the mean over all positions is that over real ones, on any replicas.
    """
    sizes = [len(segment.words) for segment in batch]
    length, batch = max(sizes), batch[part]
    inputs = padded([segment.words for segment in batch], length)
    targets = padded([segment.following for segment in batch], length)["token_ids"]
    weights = inputs["mask"] * np.float32(len(sizes) * length / sum(sizes))
    if sampled:
        return inputs | {"targets": targets}, {"logits": np.zeros_like(targets)}, {"logits": weights}
    return inputs, {"logits": targets}, {"logits": weights}
