"""Converts texts to the models' input dict: {"char_ids", "mask"} for ELMo, {"word_ids", "mask"} for an ELMo over words
or static word vectors, {"subword_ids", "mask"} for word vectors with character n-grams, {"token_ids", "segment_ids",
"mask"} for BERT.

The classes work in two steps, so that a pipeline can bucket by length in between: `encode` tokenizes each text into a
`Row` of at most `max_length` tokens, `collate` pads rows to a batch. Calling the object does both, for one batch: all
its rows are as long as the longest, so that many texts are better encoded at once and padded batch by batch, as
`training.pipeline.dataset` does.
"""

import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from keras_ctxrep.checks import Range, check
from keras_ctxrep.text.character_rules import LOWER_CASE, enough
from keras_ctxrep.text.lengths import longest
from keras_ctxrep.text.scripts import SHARE_OF_WORDS, UnreadRule, foreign, has_letters, rule_of_pieces, scripts_of
from keras_ctxrep.text.subwords import SubwordTokenizer
from keras_ctxrep.text.tokens import Characters, Piece, Word, WordPiece, words

__all__ = [
    "CharacterAndWordFeatures",
    "CharacterFeatures",
    "Features",
    "Reads",
    "Row",
    "StaticFeatures",
    "WordFeatures",
    "WordPieceFeatures",
]


@dataclass(frozen=True)
class Reads:
    """The inputs that a task needs from the encoders' features.

    Attributes:
        words: one vector per word; the input may already be split ("starts" over word pieces).
        pair: pairs of texts; None: whatever the data has.
        marks: number of marked spans per text ("marks", int32 (B, M, 2), the first token of each and the one after its
            last; (0, 0) where it was cut off).
        indicate: the encoder or the task network reads which tokens are marked: BERT as the second segment, others by
            an indicator embedding in the task network. Otherwise only the head reads the marks.
        windows: long second texts are split into overlapping windows.
    """

    words: bool = False
    pair: bool | None = False
    marks: Annotated[int, Range(0, 16)] = 0
    indicate: bool = False
    windows: bool = False
    __post_init__ = check


@dataclass(frozen=True)
class Row:
    """One encoded example, before padding.

    Attributes:
        tokens: words (ELMo) or piece ids with [CLS] and [SEP] (BERT).
        truncated: whether tokens were cut off.
        first: length of the first segment (BERT), [CLS] and [SEP] included.
        starts: index of each word's first token, of a language model's last one, for input that was already split and
            for features with starts; None where the word was cut off or is empty.
        offsets: (start, end) of each token in its text, or in its word if the input was already split, in characters;
            (0, 0) for [CLS] and [SEP]; only if requested.
        words: (start, end) of each word in its text, in characters; for BERT only with starts; of a window of a context
            those of the words that its tokens are of, (0, 0) for those of the question.
        marks: the first token of each marked span and the one after its last; (0, 0) where it was cut off.
        context: of a window of a context, where its tokens stand among the logits; `offsets` and `words` are then of
            the logits too.
        pair: the row of the second text, where the encoder reads the texts of a pair apart.
        source: the file and line that it comes from, if known.
    """

    tokens: list
    truncated: bool = False
    first: int = 0
    starts: list[int | None] | None = None
    offsets: list[tuple[int, int]] | None = None
    words: list[tuple[int, int]] | None = None
    marks: list[tuple[int, int]] | None = None
    context: range | None = None
    pair: "Row | None" = None
    source: str = field(default="", compare=False)

    def __len__(self) -> int:
        return len(self.tokens) if self.pair is None else max(len(self.tokens), len(self.pair))


MAX_QUESTION = 64  # tokens of a question, as in https://github.com/google-research/bert, run_squad.py
Texts = Sequence[str | Sequence[str]]  # each a string, or the words of a text that is already split
Pairs = Sequence[str | None] | None  # the second text of each; None: there are none
Span = tuple[int, int]
Marks = Sequence[Sequence[Span]]  # the marked spans of each text: in characters, or in words if it was already split


class Features(Protocol):
    """From texts to a model's input dict: what the text side of every family has.

    Attributes:
        keys: names of the inputs.
        max_length: tokens of a row.
        markers: tokens of a row before those of the text, and after them.
        pairs: whether pairs of texts are read.
        indicate: whether the inputs say which tokens are marked.
        by_first_token: whether `positions` are those of the first tokens of words, whose others follow.
        padding: name of an input -> what it is padded with, if that is not 0.
    """

    keys: tuple[str, ...]
    max_length: int
    markers: tuple[int, int] = (0, 0)
    pairs: bool = False
    indicate: bool = False
    by_first_token: bool = False
    padding: Mapping[str, int] = MappingProxyType({})

    @abstractmethod
    def __call__(self, texts: Texts, *args: Any, **options: Any) -> dict[str, np.ndarray]:
        """One batch of texts, and of the second texts of pairs where they are read."""

    @abstractmethod
    def encode(self, texts: Texts, pairs: Pairs = None, offsets: bool = False, marks: Marks | None = None) -> list[Row]:
        """A row of each text or pair, with offsets if requested, and the positions of the marked spans."""

    @abstractmethod
    def collate(self, rows: Sequence[Row], length: int | None = None) -> dict[str, np.ndarray]:
        """One batch, padded to the longest row, or to `length`."""

    @abstractmethod
    def text_windows(self, texts: Texts, stride: int) -> list[list[Row]]:
        """Each text in overlapping windows of `max_length` tokens, see `window_begins`."""

    @abstractmethod
    def token_spans(self, texts: Sequence[str]) -> list[tuple[list[Span], list[Span]]]:
        """Where each token of a text stands, and the word that it is of, in characters."""

    @abstractmethod
    def positions(self, row: Row) -> list[int | None]:
        """The position in a row of each word or, where words are not asked for, of each token of the text."""

    @abstractmethod
    def unread_rule(self, scripts: Collection[str]) -> UnreadRule:
        """Which tokens the model has learned nothing of; `scripts`: of the text that it was pretrained on."""

    def size(self, name: str, length: int) -> int:
        """The tokens of an input where the longest one has `length`."""
        return length


@runtime_checkable
class WindowFeatures(Features, Protocol):
    """Features of questions, each with its context in overlapping windows."""

    def windows(self, questions: Sequence[str], contexts: Sequence[str], stride: int = 128) -> list[list[Row]]:
        """A row for each window of the context of each question."""
        ...


def check_texts(texts: Any) -> Sequence[Any]:
    """The texts, strings or lists of words, of a list, an array, or a series of pandas or Polars.

    Raises:
        TypeError: it is something else, or one of the texts is no string and no list of words.

    >>> check_texts(np.array(["one text", "another"]))
    ['one text', 'another']
    """
    if isinstance(texts, str):
        raise TypeError(f"one string, {texts[:60]!r}; give a list of texts")
    if isinstance(texts, bytes | bytearray):
        raise TypeError(f"{type(texts).__name__}, {bytes(texts[:60])!r}; decode it, and give a list of texts")
    if hasattr(texts, "__array__"):
        try:
            texts = np.asarray(texts, object).tolist()
        except (NotImplementedError, TypeError, ValueError):  # of a tensor whose values are not known yet
            raise TypeError(
                f"{type(texts).__name__}: a tensor in a graph, as in tf.data.Dataset.map, has no text yet; use the "
                "layer keras_ctxrep_export.preprocessor.Preprocessor(bundle) in place of bundle.features"
            ) from None
    if not isinstance(texts, Sequence):
        raise TypeError(f"{type(texts).__name__}, not texts in memory; give a list of texts")
    for number, text in enumerate(texts if {*map(type, texts)} - {str} else ()):
        if not _is_text(text):
            remedies = {bytes: "decode it", dict: "give its text alone", tuple: "give its text alone"}
            remedy = remedies.get(type(text), "a row without a text is left out")
            raise TypeError(
                f"text {number} is {type(text).__name__}, {str(text)[:60]}; a string is needed, or a list of words: "
                f"{remedy}"
            )
    return texts


def _is_text(value: Any) -> bool:
    """Whether it is a string, or words."""
    words = isinstance(value, Sequence | np.ndarray) and not isinstance(value, bytes)
    return isinstance(value, str) or (words and all(isinstance(word, str) for word in value))


def check_sentences(sentences: Iterable[str]) -> None:
    """Raises a TypeError for one string, which is an iterable of its characters; sentences may be read lazily."""
    if isinstance(sentences, str):
        raise TypeError(f"sentences={sentences[:60]!r}: one string; give a list of sentences, or the lines of a file")


class TextRows(Features):
    """Features of a row of tokens for each text, between the `markers`."""

    @abstractmethod
    def tokens(self, texts: Texts) -> Iterable[Sequence]:
        """The tokens of each text, whole and without markers."""

    def marked(self, tokens: Sequence) -> Row:
        """The row of some tokens, with its markers."""
        return Row([*tokens])

    def text_windows(self, texts: Texts, stride: int) -> list[list[Row]]:
        """Each text in overlapping windows of `max_length` tokens with the markers, see `window_begins`.

        >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
        >>> features = WordPieceFeatures(WordPiece([*SPECIAL_PIECES, "a", "b", "c"]), max_length=4)
        >>> [row.tokens for row in features.text_windows(["a b c"], stride=1)[0]]
        [[2, 5, 6, 3], [2, 6, 7, 3]]
        """
        room = self.max_length - sum(self.markers)
        return [
            [self.marked(tokens[begin : begin + room]) for begin in window_begins(len(tokens), room, stride)]
            for tokens in self.tokens(check_texts(texts))
        ]

    def positions(self, row: Row) -> list[int | None]:
        """The `starts` of a row, or without them the position of each token of the text."""
        before, after = self.markers
        return row.starts or [*range(before, len(row) - after)]


class WordRows(TextRows):
    """Features of words: rows of words and batches of them; subclasses define the ids of a word."""

    letters: int  # of a word that are read
    width = 0  # character ids of a word, if there are any
    ngrams: tuple[int, int, int] | None = None

    def __call__(self, texts: Texts, length: int | None = None) -> dict[str, np.ndarray]:
        return self.collate(self.encode(texts), length)

    def encode(self, texts: Texts, pairs: Pairs = None, offsets: bool = False, marks: Marks | None = None) -> list[Row]:
        """Rows of words, with their offsets if requested, and the word positions of the marked spans."""
        texts = check_texts(texts)
        if pairs is not None and any(pair is not None for pair in pairs):
            raise ValueError("a model of words reads one text, not a pair")
        rows = []
        for number, text in enumerate(texts):
            if isinstance(text, str):
                tokens = words(text, self.max_length, self.letters)
            else:
                tokens = [Word(word, 0, len(word)) for word in text]
            kept = tokens[: self.max_length]
            starts = [*range(len(kept)), *[None] * (len(tokens) - len(kept))]
            spans = [(word.start, word.end) for word in kept] if offsets else None
            positions = None
            if marks is not None:
                positions = marks[number]
                if isinstance(text, str):
                    positions = [
                        tokens_in_span([(word.start, word.end) for word in tokens], span) for span in positions
                    ]
                positions = [(begin, end) if begin < end <= len(kept) else (0, 0) for begin, end in positions]
            rows.append(Row([word.text for word in kept], len(kept) < len(tokens), 0, starts, spans, spans, positions))
        return rows

    def collate(self, rows: Sequence[Row], length: int | None = None) -> dict[str, np.ndarray]:
        mask = _mask([row.tokens for row in rows], length, self.max_length)
        word_ids = self.ids([word for row in rows for word in row.tokens])
        ids = np.zeros((*mask.shape, *word_ids.shape[1:]), np.int32)
        ids[mask.astype(bool)] = word_ids
        return {self.keys[0]: ids, "mask": mask} | marks_of(rows)

    def tokens(self, texts: Texts) -> Iterable[Sequence]:
        return ([word.text for word in words(text)] if isinstance(text, str) else text for text in texts)

    def token_spans(self, texts: Sequence[str]) -> list[tuple[list[Span], list[Span]]]:
        spans = [[(word.start, word.end) for word in words(text)] for text in texts]
        return [(tokens, tokens) for tokens in spans]

    @abstractmethod
    def ids(self, words: Sequence[str]) -> np.ndarray:
        """The ids of each word, int32 (words,) or (words, W)."""

    def positions(self, row: Row) -> list[int | None]:
        """The position of each token of the text in its row."""
        return [*range(len(row))]

    def unread_rule(self, scripts: Collection[str]) -> UnreadRule:
        names = ", ".join(sorted(scripts))
        reason = f"words are in another script than the text that this ELMo learned from ({names})"
        return UnreadRule(reason, foreign=(lambda word: foreign(word, scripts)) if scripts else None)


class CharacterFeatures(WordRows):
    """ELMo's input from texts, or from sentences already split into words.

    Args:
        max_length: maximum number of words per text.
        max_characters: ids per word (50 in every published model).

    Returns: {"char_ids": int32 (B, T, W), "mask": int32 (B, T)}; sentence markers are added by the encoder, not here.

    >>> batch = CharacterFeatures()(["One two three", "four"])
    >>> batch["char_ids"].shape, batch["mask"].tolist()
    ((2, 3, 50), [[1, 1, 1], [1, 0, 0]])
    """

    keys = ("char_ids", "mask")

    def __init__(self, max_length: int = 128, max_characters: int = 50):
        self.max_length, self.characters = max_length, Characters(max_characters)
        self.width = max_characters
        self.letters = max_characters - 2  # of a byte or more

    def ids(self, words: Sequence[str]) -> np.ndarray:
        return self.characters(words)


class WordFeatures(WordRows):
    """The input of a biLM over words from texts, or from sentences already split into words.

    A word's id is the number of its line in the vocabulary, from 1 on, as in the `TokenBatcher` of
    https://github.com/allenai/bilm-tf; an unseen word has that of <UNK>.

    Args:
        vocab: <S>, </S>, <UNK>, then the words.
        max_length: maximum number of words per text.

    Returns: {"word_ids": int32 (B, T), "mask": int32 (B, T)}; sentence markers are added by the encoder, not here.

    Raises:
        ValueError: the vocabulary does not begin with the markers, or a word occurs twice.

    >>> WordFeatures(["<S>", "</S>", "<UNK>", "one", "two"])(["two thousand", "one"])["word_ids"].tolist()
    [[5, 3], [4, 0]]
    """

    keys = ("word_ids", "mask")
    MARKERS = (*Characters.MARKERS, "<UNK>")

    def __init__(self, vocab: Sequence[str], max_length: int = 128):
        self._lines, self.max_length = line_numbers(vocab, self.MARKERS), max_length
        self.letters = letters_read(vocab)

    def knows(self, word: str) -> bool:
        """Whether a word is in the vocabulary."""
        return word in self._lines

    def ids(self, words: Sequence[str]) -> np.ndarray:
        return np.array([self._lines.get(word, 3) for word in words], np.int32)

    def unread_rule(self, scripts: Collection[str]) -> UnreadRule:
        reason = "words are not in the vocabulary of this model"
        return UnreadRule(reason, lambda word: not self.knows(word) and has_letters(word), share=SHARE_OF_WORDS)


class StaticFeatures(WordRows):
    """The input of a table of word vectors from texts, or from sentences already split into words.

    A word's id is the number of its line in the vocabulary, from 1 on; unknown words have the id of <UNK>, 1.

    With character n-grams a word has several rows of the table: its own if it is in the vocabulary, and those of its
    n-grams, enumerated and hashed as in fastText (Bojanowski et al. 2017, https://arxiv.org/abs/1607.04606;
    https://github.com/facebookresearch/fastText, dictionary.cc). A word with neither has the row of <UNK>. Of longer
    words than `MAX_WORD` characters the n-grams of the first ones are read, so that the memory that a text takes is
    bounded; fastText reads all.

    Args:
        vocab: <UNK>, then the words.
        max_length: maximum number of words per text.
        lowercase: look the words up in lower case (accents stay).
        ngrams: minimum and maximum length of the n-grams in characters, and the number of rows that they are hashed
            to, which follow those of the words; None: no n-grams.

    Returns: {"word_ids": int32 (B, T), "mask": int32 (B, T)}, or with n-grams {"subword_ids": int32 (B, T, G), "mask"},
        where G is the maximum number of rows of a word in the batch, padded with 0.

    Raises:
        ValueError: the vocabulary does not begin with <UNK>, a word occurs twice, or `ngrams` is out of range.

    >>> StaticFeatures(["<UNK>", "one", "two"], lowercase=True)(["Two thousand", "one"])["word_ids"].tolist()
    [[3, 1], [2, 0]]
    >>> StaticFeatures(["<UNK>", "one"], ngrams=(4, 5, 100))(["one on"])["subword_ids"].tolist()
    [[[2, 96, 16, 86], [3, 0, 0, 0]]]
    """

    MARKERS = ("<UNK>",)
    MAX_WORD = 100  #: characters of a word whose n-grams are read
    END = "</s>"  #: fastText's end-of-line token, which has no n-grams

    def __init__(
        self,
        vocab: Sequence[str],
        max_length: int = 128,
        lowercase: bool = False,
        ngrams: tuple[int, int, int] | None = None,
    ):
        if ngrams is not None and not (1 <= ngrams[0] <= ngrams[1] and ngrams[2] >= 1):
            raise ValueError(
                f"ngrams={ngrams}: shortest, longest and rows, with 1 <= shortest <= longest and rows >= 1"
            )
        self._lines, self.max_length, self.ngrams = line_numbers(vocab, self.MARKERS), max_length, ngrams
        self.letters = max(letters_read(vocab), self.MAX_WORD if ngrams else 0)
        self.keys = ("word_ids" if ngrams is None else "subword_ids", "mask")
        self._normalizer = LOWER_CASE if lowercase else None
        self._rows: dict[str, list[int]] = {}  # cache of up to 100,000 words

    def normalized(self, words: Sequence[str]) -> Sequence[str]:
        """The words as they are looked up."""
        if self._normalizer is None:
            return words
        lower = self._normalizer.normalize_str
        return [word.lower() if word.isascii() else lower(word.encode("utf-8", "ignore").decode()) for word in words]

    def knows(self, word: str) -> bool:
        """Whether a word is in the vocabulary, as it is looked up."""
        return self.normalized([word])[0] in self._lines

    def ids(self, words: Sequence[str]) -> np.ndarray:
        words = self.normalized(words)
        if self.ngrams is None:
            return np.array([self._lines.get(word, 1) for word in words], np.int32)
        if len(self._rows) > 100_000:
            self._rows.clear()
        rows = []
        for word in words:
            if (row := self._rows.get(word)) is None:  # read once: another thread may empty the cache
                row = self._rows[word] = self.rows(word)
            rows.append(row)
        return padded(rows, max(map(len, rows), default=1))["token_ids"]

    def rows(self, word: str) -> list[int]:
        """The rows of a word as it is looked up: with n-grams its own, if it is in the vocabulary, and theirs."""
        rows = [self._lines[word]] if word in self._lines else []
        if self.ngrams is not None and word != self.END:
            shortest, longest, buckets = self.ngrams
            rows += [
                len(self._lines) + 1 + value % buckets
                for value in _ngram_hashes(word[: self.MAX_WORD], shortest, longest)
            ]
        return rows or [1]

    def unread_rule(self, scripts: Collection[str]) -> UnreadRule:
        own = scripts_of(self._lines) if self.ngrams else frozenset()

        def unknown(word: str) -> bool:
            return not self.knows(word) and has_letters(word) and foreign(word, own)

        return UnreadRule("words have no vector in this table", unknown, share=SHARE_OF_WORDS)


def _ngram_hashes(word: str, shortest: int, longest: int) -> Iterator[int]:
    """32-bit FNV-1a hashes of the n-grams of "<word>", in fastText's order; as there, bytes are sign-extended."""
    letters = [letter.encode("utf-8", "ignore") for letter in f"<{word}>"]
    for begin in range(len(letters)):
        value = 2166136261
        for end in range(begin, min(begin + longest, len(letters))):
            for byte in letters[end]:
                value = (value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619 & 0xFFFFFFFF
            alone = begin == end and end in (0, len(letters) - 1)  # "<" or ">"
            if end - begin + 1 >= shortest and not alone:
                yield value


class CharacterAndWordFeatures(WordRows):
    """The input of an ELMo encoder with extra static embeddings of the same words.

    Args:
        characters: makes "char_ids"; its `max_length` applies.
        words: makes "word_ids" or "subword_ids".

    Returns: {"char_ids", "word_ids" or "subword_ids", "mask"}, each as from its own class.

    >>> both = CharacterAndWordFeatures(CharacterFeatures(max_characters=6), StaticFeatures(["<UNK>", "one"]))
    >>> {key: array.shape for key, array in both(["one two"]).items()}
    {'char_ids': (1, 2, 6), 'word_ids': (1, 2), 'mask': (1, 2)}
    """

    def __init__(self, characters: CharacterFeatures, words: StaticFeatures):
        self.characters, self.words, self.max_length = characters, words, characters.max_length
        self.letters = max(characters.letters, words.letters)
        self.width, self.ngrams = characters.width, words.ngrams
        self.keys = (characters.keys[0], *words.keys)

    def ids(self, words: Sequence[str]) -> np.ndarray:
        return self.characters.ids(words)

    def collate(self, rows: Sequence[Row], length: int | None = None) -> dict[str, np.ndarray]:
        batch = self.characters.collate(rows, length) | self.words.collate(rows, length)
        return {key: batch[key] for key in self.keys} | marks_of(rows)


def letters_read(vocab: Sequence[str]) -> int:
    """The letters of a word that tell whether it is one of a vocabulary.

    >>> letters_read(["<UNK>", "one"])
    6
    """
    return 1 + max(map(len, vocab), default=0)


def line_numbers(vocab: Sequence[str], markers: Sequence[str]) -> dict[str, int]:
    """Word -> line number in the vocabulary, from 1 on.

    Args:
        vocab: the words.
        markers: the entries that it must begin with.

    Raises:
        ValueError: it does not begin with the markers, or a word occurs twice.

    >>> line_numbers(["<UNK>", "one"], ["<UNK>"])
    {'<UNK>': 1, 'one': 2}
    """
    if list(vocab[: len(markers)]) != list(markers):
        first = f"found {list(vocab[: len(markers)])}: put them there" if vocab else "there is no vocabulary"
        lines = "line" if len(markers) == 1 else "lines"
        raise ValueError(f"vocabulary: its first {lines} must be {', '.join(markers)}; {first}")
    ids = {word: line for line, word in enumerate(vocab, 1)}
    if len(ids) < len(vocab):
        twice = next(word for line, word in enumerate(vocab, 1) if ids[word] != line)
        raise ValueError(f"vocabulary: {twice!r} occurs twice; the words must be distinct")
    return ids


class _Pieces(NamedTuple):
    """A text's pieces, the positions of its words' first pieces after [CLS], and the words' character spans."""

    pieces: list
    starts: list[int | None] | None = None
    words: list[tuple[int, int]] | None = None


class WordPieceFeatures(TextRows):
    """BERT's input from texts, pairs of texts, or sentences already split into words.

    [CLS] text [SEP], or [CLS] text [SEP] pair [SEP], with the special tokens of the vocabulary; if this is too long,
    the longer of text and pair is truncated at its end, piece by piece (Devlin et al. 2018,
    https://arxiv.org/abs/1810.04805, and its `_truncate_seq_pair`). If both are truncated and the room is odd, the
    longer one gets the odd piece, or the pair if both are equal, as in Hugging Face's `BertTokenizerFast`; in Google's
    code it depends on the lengths.

    Args:
        wordpiece: the vocabulary, or another tokenizer of subwords.
        max_length: maximum number of pieces, markers included.
        starts: add the position of each word's first piece, for a tagger; rows then have offsets.
        indicate: marked spans get segment id 1; otherwise the batch has "marks" if there are any.

    Returns: {"token_ids", "segment_ids", "mask"}, each int32 (B, T); with `starts` also "starts", int32 (B, words): the
        positions of the words' first pieces, padded with 0, without the words that were cut off or have no piece.

    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
    >>> features = WordPieceFeatures(WordPiece([*SPECIAL_PIECES, "good", "day"]))
    >>> features(["Good day", "day"])["token_ids"].tolist()
    [[2, 5, 6, 3], [2, 6, 3, 0]]
    """

    pairs = by_first_token = True
    markers = (1, 1)

    def __init__(
        self,
        wordpiece: WordPiece | SubwordTokenizer,
        max_length: int = 128,
        starts: bool = False,
        indicate: bool = False,
    ):
        special = wordpiece.special_tokens
        self._separators = special.separators
        self._markers_of_pair = 2 + special.separators
        if max_length <= self._markers_of_pair:
            needed = f"at least {self._markers_of_pair + 1} are needed"
            count = {1: "two", 2: "three"}[special.separators]
            raise ValueError(f"max_length={max_length}: {needed}, for {special.cls}, {count} {special.sep} and a piece")
        self.wordpiece, self.max_length, self.starts, self.indicate = wordpiece, max_length, starts, indicate
        self.max_question = min(MAX_QUESTION, (max_length - self._markers_of_pair) // 2)
        self.keys = ("token_ids", "segment_ids", "mask", *(("starts",) if starts else ()))
        self.padding = {"token_ids": wordpiece.pad}

    def __call__(self, texts: Texts, pairs: Pairs = None, length: int | None = None) -> dict[str, np.ndarray]:
        return self.collate(self.encode(texts, pairs), length)

    def encode(self, texts: Texts, pairs: Pairs = None, offsets: bool = False, marks: Marks | None = None) -> list[Row]:
        """Rows of piece ids, with their offsets if requested, and the piece positions of the marked spans.

        Raises:
            ValueError: there are more or fewer pairs than texts.
        """
        texts = check_texts(texts)
        if pairs is None:
            pairs = [None] * len(texts)
        elif len(pairs) != len(texts):
            raise ValueError(
                f"{len(texts)} texts and {len(pairs)} pairs; give one for each text, None where it has none"
            )
        offsets = offsets or self.starts or marks is not None
        tokenize, of_words = (_tokenizing(pieces, offsets) for pieces in (self.wordpiece, self.wordpiece.of_words))
        most = self.max_length - 2
        strings = [text for text in texts if isinstance(text, str)]
        pieces = iter(tokenize(strings + [pair for pair in pairs if pair is not None], most))
        firsts = [
            self._pieces_of_text(next(pieces)) if isinstance(text, str) else _pieces_of_words(of_words, text, most)
            for text in texts
        ]
        seconds = [None if pair is None else next(pieces) for pair in pairs]
        for number in range(len(texts)) if self.max_length % 2 == 0 else ():  # the longer one gets the odd piece
            needed = most
            while _undecided(firsts[number].pieces, seconds[number], texts[number], pairs[number], needed):
                needed *= 4
                if isinstance(texts[number], str):
                    firsts[number] = self._pieces_of_text(*tokenize([texts[number]], needed))
                seconds[number] = tokenize([pairs[number]], needed)[0]
        rows = [self._row(first, second, offsets) for first, second in zip(firsts, seconds, strict=True)]
        if marks is None:
            return rows
        return [
            replace(row, marks=_marked_pieces(first, isinstance(text, str), spans, row.first - markers))
            for row, first, text, spans, markers in zip(
                rows, firsts, texts, marks, [1 if pair is None else self._separators for pair in pairs], strict=True
            )
        ]

    def collate(self, rows: Sequence[Row], length: int | None = None) -> dict[str, np.ndarray]:
        ids, mask = padded([row.tokens for row in rows], length, self.max_length, self.wordpiece.pad).values()
        firsts = np.array([row.first for row in rows], np.int32).reshape(-1, 1)
        of_pair = np.arange(mask.shape[1]) >= firsts if self._separators == 1 else False  # RoBERTa's have one segment
        segment_ids = np.where(of_pair, mask, 0)
        for index, row in enumerate(rows if self.indicate else ()):
            for begin, end in row.marks or ():
                segment_ids[index, begin:end] = 1
        batch = {"token_ids": ids, "segment_ids": segment_ids, "mask": mask}
        if self.starts:
            batch["starts"] = starts_of(rows)
        return batch if self.indicate else batch | marks_of(rows)

    def windows(self, questions: Sequence[str], contexts: Sequence[str], stride: int = 128) -> list[list[Row]]:
        """Each question with overlapping windows of its context: [CLS] question [SEP] window [SEP], with offsets.

        As in https://github.com/google-research/bert, run_squad.py: a window begins `stride` pieces after the previous
        one, or half a window after it if windows are not longer than `stride`, so that they always overlap. Questions
        are truncated to 64 pieces and at most half of the row; `truncated` of the rows says so.

        Args:
            questions, contexts: sequences of the same length.
            stride: pieces, at least 1.

        Returns: for each question one or more rows.

        Raises:
            ValueError: `stride` is below 1.

        >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
        >>> features = WordPieceFeatures(WordPiece([*SPECIAL_PIECES, "a", "b", "c"]), max_length=6)
        >>> [row.tokens for row in features.windows(["c"], ["a b c"], stride=1)[0]]
        [[2, 7, 3, 5, 6, 3], [2, 7, 3, 6, 7, 3]]
        """
        cls, sep = (Piece(marker, 0, 0, 0) for marker in (self.wordpiece.cls, self.wordpiece.sep))
        between = [sep] * self._separators
        windows = []
        asked = self.wordpiece.encode_batch(questions, self.max_question)
        for question, context in zip(asked, self.wordpiece.encode_batch(contexts), strict=True):
            first = question[: self.max_question]
            room, truncated = self.max_length - len(first) - self._markers_of_pair, len(first) < len(question)
            words, rows = words_of_pieces(context), []
            for begin in window_begins(len(context), room, stride):
                pieces = [cls, *first, *between, *context[begin : begin + room], sep]
                spans = [(piece.start, piece.end) for piece in pieces]
                row = Row([piece.id for piece in pieces], truncated, 1 + len(first) + len(between), offsets=spans)
                around = [(0, 0)] * row.first
                inside = range(row.first, len(row) - 1)
                rows.append(replace(row, words=[*around, *words[begin : begin + room], (0, 0)], context=inside))
            windows.append(rows)
        return windows

    def tokens(self, texts: Texts) -> Iterable[Sequence]:
        tokenize, of_words = self.wordpiece.ids_batch, self.wordpiece.of_words.ids_batch
        strings = iter(tokenize([text for text in texts if isinstance(text, str)]))
        return (next(strings) if isinstance(text, str) else _pieces_of_words(of_words, text).pieces for text in texts)

    def marked(self, tokens: Sequence) -> Row:
        return Row([self.wordpiece.cls, *tokens, self.wordpiece.sep], first=len(tokens) + 2)

    def token_spans(self, texts: Sequence[str]) -> list[tuple[list[Span], list[Span]]]:
        return [*map(spans_of_pieces, self.wordpiece.encode_batch(texts))]

    def unread_rule(self, scripts: Collection[str]) -> UnreadRule:
        return rule_of_pieces(self.wordpiece.readable, self.wordpiece.unk, 2)

    def _pieces_of_text(self, pieces: list) -> _Pieces:
        """The pieces of a text; with `starts` also its words' first positions after [CLS], and their spans."""
        if not self.starts:
            return _Pieces(pieces)
        begins = [i for i, piece in enumerate(pieces) if not i or piece.word != pieces[i - 1].word]
        words = {1 + a: (pieces[a].start, pieces[b - 1].end) for a, b in pairwise([*begins, len(pieces)])}
        words = {place: (start, end) for place, (start, end) in words.items() if start < end}  # not of white space
        return _Pieces(pieces, [*words], [*words.values()])

    def _row(self, first: _Pieces, second: list | None, offsets: bool) -> Row:
        room = self.max_length - (2 if second is None else self._markers_of_pair)
        pieces, second_pieces = truncate_pair(first.pieces, second, room)
        truncated = len(first.pieces) + len(second or []) > len(pieces) + len(second_pieces or [])
        cls, sep = self.wordpiece.cls, self.wordpiece.sep
        if offsets:
            cls, sep = Piece(cls, 0, 0, 0), Piece(sep, 0, 0, 0)
        tokens: list = [cls, *pieces, sep]
        if second_pieces is not None:
            tokens = [cls, *pieces, *[sep] * self._separators, *second_pieces, sep]
        spans = starts = None
        if offsets:
            tokens, spans = [piece.id for piece in tokens], [(piece.start, piece.end) for piece in tokens]
        if first.starts is not None:
            starts = [start if start is not None and start <= len(pieces) else None for start in first.starts]
        first_length = 1 + len(pieces) + (1 if second_pieces is None else self._separators)
        return Row(tokens, truncated, first_length, starts, spans, first.words)


def _tokenizing(pieces: WordPiece | SubwordTokenizer, offsets: bool) -> Callable[..., list[list]]:
    return pieces.encode_batch if offsets else pieces.ids_batch


def _pieces_of_words(tokenize: Callable[..., list[list]], words: Sequence[str], most: int = sys.maxsize) -> _Pieces:
    """The pieces of a sentence's words, and each word's first position after [CLS]; None for a word without pieces.

    After more than `most` pieces the other words are not read, and have none.
    """
    pieces, starts = [], []
    for begin in range(0, len(words), WordPiece.TOGETHER):
        for word in tokenize(words[begin : begin + WordPiece.TOGETHER], most):
            starts.append(1 + len(pieces) if word else None)
            pieces.extend(word)
        if len(pieces) > most:
            break
    return _Pieces(pieces, starts + [None] * (len(words) - len(starts)))


def _undecided(first: list, second: list | None, text: str | Sequence[str], pair: str | None, most: int) -> bool:
    """Whether it is not known yet which text of a pair is longer: of both only `most` pieces or more are known."""
    cut = [isinstance(each, str) and len(each) > enough(most) for each in (text, pair)]
    return any(cut) and len(first) > most and len(second or ()) > most


def words_of_pieces(pieces: Sequence[Piece]) -> list[Span]:
    """(start, end) of the word that each piece of a text is of.

    >>> words_of_pieces([Piece(5, 0, 2, 0), Piece(6, 2, 5, 0), Piece(7, 5, 6, 1)])
    [(0, 5), (0, 5), (5, 6)]
    """
    begins = {piece.word: piece.start for piece in reversed(pieces)}
    ends = {piece.word: piece.end for piece in pieces}
    return [(begins[piece.word], ends[piece.word]) for piece in pieces]


def spans_of_pieces(pieces: Sequence[Piece]) -> tuple[list[Span], list[Span]]:
    """(start, end) of each piece of a text, and of the word that it is of."""
    return [(piece.start, piece.end) for piece in pieces], words_of_pieces(pieces)


def window_begins(size: int, room: int, stride: int) -> range:
    """Where the windows of a text begin that together have all of its tokens.

    Args:
        size: tokens of the text.
        room: tokens of a window; the last one may have fewer.
        stride: tokens from one window to the next; half of `room` if `stride` is not below it, so that they overlap.

    Raises:
        ValueError: `stride` is below 1.

    >>> [*window_begins(10, 4, 2)], [*window_begins(0, 4, 2)], window_begins(600, 110, 128).step
    ([0, 2, 4, 6], [0], 55)
    """
    if stride < 1:
        raise ValueError(f"stride={stride}: at least 1")
    step = stride if stride < room else max(1, room // 2)
    return range(0, max(size - room, 0) + step, step)


def tokens_in_span(tokens: Sequence[Span], span: Span) -> Span:
    """The first token that overlaps a span of characters, and the one after the last; (0, 0) if there is none.

    Args:
        tokens: where each stands, in characters.
        span: [begin, end) in characters.

    >>> tokens_in_span([(0, 3), (4, 7), (8, 9)], (4, 9))
    (1, 3)
    """
    inside = [i for i, (start, end) in enumerate(tokens) if start < span[1] and end > span[0]]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def _marked_pieces(text: _Pieces, raw: bool, spans: Sequence[Span], last: int) -> list[Span]:
    """The piece positions of marked spans, which are in characters if the text was `raw`, else in words.

    `last` is the position after the text's pieces, of [SEP].
    """
    if raw:
        inside = [tokens_in_span([(piece.start, piece.end) for piece in text.pieces], span) for span in spans]
        positions = [(1 + begin, 1 + end) for begin, end in inside]
    else:
        starts = text.starts or []
        # a word without pieces begins where the next word does: [1, None, 3] with 4 pieces becomes [1, 3, 3, 5]
        begins = [*starts, 1 + len(text.pieces)]
        for i in reversed(range(len(starts))):
            begins[i] = begins[i + 1] if begins[i] is None else begins[i]
        positions = [(begins[begin], begins[end]) for begin, end in spans]
    return [(begin, end) if begin < end <= last else (0, 0) for begin, end in positions]


def starts_of(rows: Sequence[Row]) -> np.ndarray:
    """The `starts` of rows, without the words that have none, int32 (B, words), padded with 0.

    >>> starts_of([Row([5, 6, 7], starts=[1, None, 2]), Row([5])]).tolist()
    [[1, 2], [0, 0]]
    """
    words = [[start for start in row.starts or [] if start is not None] for row in rows]
    return padded(words)["token_ids"]


def marks_of(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """{"marks": int32 (B, M, 2)} where rows have marked spans.

    >>> marks_of([Row([5, 6], marks=[(0, 1)])])["marks"].tolist()
    [[[0, 1]]]
    """
    if not rows or rows[0].marks is None:
        return {}
    return {"marks": np.array([row.marks for row in rows], np.int32).reshape(len(rows), -1, 2)}


def truncate_pair(first: list, second: list | None, room: int) -> tuple[list, list | None]:
    """Truncates both at the end to `room` items in total; the shorter keeps up to half of it, rounded down.

    Args:
        first, second: the items; None: there is no second.
        room: items in total.

    >>> truncate_pair(["a", "b", "c", "d"], ["e", "f"], 5)
    (['a', 'b', 'c'], ['e', 'f'])
    """
    if second is None or len(first) + len(second) <= room:
        return first[:room], second
    shorter = min(len(first), len(second), room // 2)
    keep_first = shorter if len(first) <= len(second) else room - shorter
    return first[:keep_first], second[: room - keep_first]


def padded(
    rows: Sequence[Sequence[int]], length: int | None = None, most: int | None = None, pad: int = 0
) -> dict[str, np.ndarray]:
    """{"token_ids", "mask"}, int32 (B, T), of rows of ids.

    Args:
        rows: the ids of each.
        length: tokens of a row; None: as many as the longest has.
        most: tokens that a row may have.
        pad: the id of padding.

    >>> padded([[5], [6, 7]])["mask"].tolist()
    [[1, 0], [1, 1]]
    """
    mask = _mask(rows, length, most)
    ids = np.full(mask.shape, pad, np.int32)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return {"token_ids": ids, "mask": mask}


def _mask(rows: Sequence[Sequence], length: int | None, most: int | None) -> np.ndarray:
    sizes = [len(row) for row in rows]
    length = longest(sizes, most) if length is None else length
    if sizes and max(sizes) > length:
        raise ValueError(f"a row of {max(sizes)} tokens does not fit into length={length}; encode with that max_length")
    return (np.arange(length) < np.array(sizes, np.int32).reshape(-1, 1)).astype(np.int32)
