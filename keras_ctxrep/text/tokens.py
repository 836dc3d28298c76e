"""Words, ELMo character ids and BERT word pieces, with offsets into the original text.

Unpaired surrogates are removed like control characters wherever text is split.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from tokenizers import Encoding, PreTokenizedString, Tokenizer, models, normalizers, pre_tokenizers, trainers

from keras_ctxrep.checks import Range, check, regular
from keras_ctxrep.text.character_rules import Casing, enough, placed, shortened

__all__ = [
    "SPECIAL_PIECES",
    "Characters",
    "Piece",
    "SpecialTokens",
    "Word",
    "WordPiece",
    "count_words",
    "read_vocab",
    "vocab_text",
    "words",
]

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Word(NamedTuple):
    """A word as the models see it, and its character span, `text[start:end]`."""

    text: str
    start: int
    end: int


_CASED = Casing().normalizer()
_SPLIT = pre_tokenizers.BertPreTokenizer()
_SURROGATE = re.compile("[\ud800-\udfff]")
_REMOVED = "\ufffd"  # replaces an unpaired surrogate, so that offsets stay valid
_ASCII_WORD = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")  # of printable ASCII, the words of `words`
_AT_ONCE = 10_000_000  # characters of a corpus that are held in memory at a time


def words(text: str, most: int | None = None, letters: int = 100) -> list[Word]:
    """Splits raw text into words at white space, punctuation and CJK characters, as BERT does, without lower-casing.

    Control, format and private-use characters are removed, as in BERT's `BasicTokenizer`
    (https://github.com/google-research/bert, tokenization.py). A word's span excludes removed characters at its ends.

    Args:
        text: any.
        most: how many words are needed. Of a longer text there is one more, which says so and may not be whole.
        letters: with `most`, how many letters of a word are needed; the others may be missing in its text.

    >>> words("a  b")[1]
    Word(text='b', start=3, end=4)
    """
    if most is None or len(text) <= enough(most):
        return _words(text)
    found = _words(text[: enough(most)])
    if len(found) <= most:
        short, places = shortened(text, most, letters, Casing(), spans=True)
        found = [Word(word, *placed(start, end, places)) for word, start, end in _words(short)]
    return found[: most + 1]


def _words(text: str) -> list[Word]:
    pieces = PreTokenizedString(_SURROGATE.sub(_REMOVED, text))
    pieces.normalize(_CASED.normalize)
    _SPLIT.pre_tokenize(pieces)
    return [Word(word, *span) for word, span, _ in pieces.get_splits("original", "char")]


def split_words(text: str) -> list[str]:
    """The words of a text, without their spans.

    >>> split_words("Don't stop!")
    ['Don', "'", 't', 'stop', '!']
    """
    if text.isascii() and text.isprintable():  # 20 times as quick
        return _ASCII_WORD.findall(text)
    return [word.text for word in words(text)]


class Characters:
    """ELMo character ids of words: int32, `width` per word.

    Peters et al. 2018, https://arxiv.org/abs/1802.05365; ids as in https://github.com/allenai/bilm-tf at inference:
    a byte b of the word in UTF-8 is b + 1; 257 / 258 begin and end a sentence, 259 / 260 begin and end a word, 261 pads
    the word, and 0 is a position without a word. A word is truncated to `width - 2` bytes, possibly within a character.
    The rows of up to 100,000 words are cached.

    Args:
        width: ids per word (50 in every published model).

    Raises:
        ValueError: `width` leaves no room for a character.

    >>> Characters(width=6)(["cat", "<S>"]).tolist()
    [[259, 100, 98, 117, 260, 261], [259, 257, 260, 261, 261, 261]]
    """

    BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261
    MARKERS = ("<S>", "</S>")  # the words that mark the begin and end of a sentence

    def __init__(self, width: int = 50):
        if width < 3:
            raise ValueError(f"width={width}: a word needs at least 3 ids (begin, one byte, end)")
        self.width = width
        self._rows: dict[str, bytes] = {}

    def __call__(self, words: Sequence[str]) -> np.ndarray:
        """int32 (len(words), W)."""
        rows = self._rows
        if len(rows) > 100_000:
            rows.clear()
        for word in words:
            if word not in rows:
                rows[word] = self._row(word)
        packed = b"".join(map(rows.__getitem__, words))
        return np.frombuffer(packed, np.uint16).reshape(-1, self.width).astype(np.int32)

    def _row(self, word: str) -> bytes:
        if word in self.MARKERS:
            middle = [self.BEGIN_SENTENCE + self.MARKERS.index(word)]
        else:
            middle = [byte + 1 for byte in word.encode("utf-8", "ignore")[: self.width - 2]]
        row = [self.BEGIN_WORD, *middle, self.END_WORD]
        return np.array(row + [self.PADDING] * (self.width - len(row)), np.uint16).tobytes()


class Piece(NamedTuple):
    """A word piece: its id, its character span, `text[start:end]`, and the index of its word."""

    id: int
    start: int
    end: int
    word: int


@dataclass(frozen=True)
class SpecialTokens:
    """The pieces of a vocabulary that stand for no text, and how they mark a text and a pair of texts.

    `cls` TEXT `sep`, and `cls` TEXT `sep` PAIR `sep`. The defaults are BERT's, Devlin et al. 2018,
    https://arxiv.org/abs/1810.04805; other encoders name the pieces differently and have two `sep` inside a pair.

    Attributes:
        pad, unk, cls, sep, mask: the pieces, each of them in the vocabulary.
        separators: number of `sep` between the texts of a pair.

    >>> SpecialTokens(cls="<s>", separators=2).pieces
    ('[PAD]', '[UNK]', '<s>', '[SEP]', '[MASK]')
    """

    pad: str = SPECIAL_PIECES[0]
    unk: str = SPECIAL_PIECES[1]
    cls: str = SPECIAL_PIECES[2]
    sep: str = SPECIAL_PIECES[3]
    mask: str = SPECIAL_PIECES[4]
    separators: Annotated[int, Range(1, 2)] = 1

    __post_init__ = check

    @property
    def pieces(self) -> tuple[str, ...]:
        """The five pieces, in the order of `SPECIAL_PIECES`."""
        return self.pad, self.unk, self.cls, self.sep, self.mask


BERT_TOKENS = SpecialTokens()


class WordPiece:
    """BERT's WordPiece tokenizer, from a `vocab.txt` with one piece per line, by the `tokenizers` library.

    Devlin et al. 2018, https://arxiv.org/abs/1810.04805. Special pieces are never recognised in text: "[SEP]" typed by
    a user is three words, as in Google's own tokenizer, so no input can forge a marker.

    Pieces and offsets are those of Hugging Face's `BertTokenizerFast`, which differs from Google's tokenization.py
    (https://github.com/google-research/bert): "Σ" at the end of a word becomes "σ", not "ς"; private-use characters are
    removed; U+2B820 to U+2B91F are not split; a word of over 100 characters (there 200) is [UNK]; a few hundred
    characters that Unicode has added or reclassified since 2015 are neither punctuation nor accents.

    Args:
        vocab: the pieces in the order of their ids, including the special ones.
        lowercase: lower-case the text (uncased vocabularies).
        strip_accents: remove accents; None: as `lowercase`.
        split_cjk: make each Chinese character a word, as published.
        special_tokens: the special pieces, by default BERT's: `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]`.

    Raises:
        ValueError: a special piece is missing or a piece occurs twice; the message names piece and line.

    >>> pieces = WordPiece([*SPECIAL_PIECES, "un", "##able", "to"])
    >>> [[piece.id for piece in pieces.encode(text)] for text in ["Unable to", "[SEP]"]]
    [[5, 6, 7], [1, 1, 1]]
    """

    MAX_WORD = 100  # characters; a longer word is [UNK]
    TOGETHER = 1024  # texts whose ids are found together
    CACHED, CACHED_LENGTH = 100_000, 32  # chunks whose ids are cached, and the characters of the longest of them

    def __init__(
        self,
        vocab: Sequence[str],
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
        special_tokens: SpecialTokens = BERT_TOKENS,
    ):
        ids: dict[str, int] = {}
        for line, piece in enumerate(vocab, 1):
            if piece in ids:
                lines = f"lines {ids[piece] + 1} and {line}"
                raise ValueError(f"vocabulary: {piece!r} is on {lines}; the pieces must be distinct")
            ids[piece] = line - 1
        missing = [piece for piece in special_tokens.pieces if piece not in ids]
        if missing:
            raise ValueError(f"vocabulary: {', '.join(missing)} missing; a BERT vocab.txt holds one piece a line")
        self.vocab, self.lowercase, self.split_cjk = list(vocab), lowercase, split_cjk
        self.readable: Sequence[str] = self.vocab
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.casing = Casing(lowercase, self.strip_accents, split_cjk)
        self.special_tokens = special_tokens
        self.pad, self.unk, self.cls, self.sep, self.mask = (ids[piece] for piece in special_tokens.pieces)
        model = models.WordPiece(ids, unk_token=special_tokens.unk, max_input_chars_per_word=self.MAX_WORD)
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = self.casing.normalizer()
        self._tokenizer.pre_tokenizer = _SPLIT
        self._ids: dict[str, tuple[int, ...]] = {}

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        size: int = 8000,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
        alphabet: int | Iterable[str] | None = None,
        min_count: int = 1,
        special: Sequence[str] = SPECIAL_PIECES,
    ) -> "WordPiece":
        """Learns a vocabulary from a corpus; the result depends only on the word counts.

        The texts are read once, and only their distinct words are kept. The vocabulary has the special pieces, letters
        inside a word ("##a"), letters, and merged pieces, each of the pair of pieces that is most frequent by then.

        Args:
            texts: the corpus.
            size: maximum number of pieces.
            lowercase, strip_accents, split_cjk: see the class.
            alphabet: the letters to keep, or their number, by frequency (default: 1,000, or a quarter of `size` if that
                is less). A word with any other letter is [UNK].
            min_count: minimum count of a merged piece in the corpus.
            special: the first pieces of the vocabulary: BERT's five special pieces in any order, and others such as
                "[unused1]" or "[ENT]", which are not recognised in text either.

        Raises:
            ValueError: `size` has no room for the special pieces and letters, a special piece is missing or occurs
                twice, or the texts are empty.

        >>> WordPiece.train(["low lower"], 40, special=[*SPECIAL_PIECES, "[ENT]"], min_count=2).vocab[5:]
        ['[ENT]', '##e', '##o', '##r', '##w', 'e', 'l', 'o', 'r', 'w', '##ow', 'low']
        """
        if size <= len(special):
            raise ValueError(f"vocabulary size {size}: must be larger than the {len(special)} special pieces")
        cls(special)  # raises if a special piece is missing or occurs twice
        accents = lowercase if strip_accents is None else strip_accents
        counts = _word_counts(texts, Casing(lowercase, accents, split_cjk).normalizer())
        # unless inner letters are given, the trainer numbers them at random, and these numbers break ties
        letters, inner = _letters(counts, min(1000, size // 4) if alphabet is None else alphabet)
        first = [*special, *(f"##{letter}" for letter in inner)]
        if (count := len({*first, *letters})) > size:
            pieces = (
                f"{len(special)} special pieces and {len(letters)} letters, most of them also inside words, are {count}"
            )
            raise ValueError(f"vocabulary size {size}: {pieces}; raise the size or keep fewer letters (alphabet)")
        alphabet_options = {"initial_alphabet": letters, "limit_alphabet": len(letters)}
        sizes = {"vocab_size": size, "min_frequency": min_count}
        trainer = trainers.WordPieceTrainer(special_tokens=first, show_progress=False, **sizes, **alphabet_options)
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
        tokenizer.train_from_iterator(_words_by_count(counts), trainer)
        ids = tokenizer.get_vocab()
        return cls(sorted(ids, key=ids.__getitem__), lowercase, strip_accents, split_cjk)

    @property
    def of_words(self) -> "WordPiece":
        """The tokenizer of words that come split: itself."""
        return self

    def encode(self, text: str) -> list[Piece]:
        """Pieces of one text, without [CLS] and [SEP]."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], most: int | None = None) -> list[list[Piece]]:
        """Pieces of several texts, on all CPU cores unless TOKENIZERS_PARALLELISM=false.

        Args:
            texts: any.
            most: how many pieces of each text are needed. Of a longer one there is at least one more; those of the last
                word in the result may then be others.
        """
        return self._with_beginnings(texts, most, self._pieces, lambda text: self._beginning(text, most or 0, True))

    def ids_around_masks(self, parts: Sequence[str]) -> list[list[int]]:
        """The ids of each part of a text between which masks stand."""
        return self.ids_batch(parts)

    def ids_batch(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        """The ids of `encode_batch`, faster.

        No rule looks beyond a space, so that the ids of a text are those of its chunks between spaces, one after the
        other. Each chunk is encoded once, and the ids of the first 100,000 chunks are cached.
        """

        def beginning(text: str) -> list[int]:
            return [piece.id for piece in self._beginning(text, most or 0, False)]

        return self._with_beginnings(texts, most, self._ids_of_texts, beginning)

    def _with_beginnings(
        self, texts: Sequence[str], most: int | None, whole: Callable[[list[str]], list], beginning: Callable
    ) -> list:
        """A list for each text: `whole` of all that are short, `beginning` of each that is long."""
        texts = strings(texts)
        if most is None or not any(len(text) > enough(most) for text in texts):
            return whole(texts)
        results = iter(whole([text for text in texts if len(text) <= enough(most)]))
        return [next(results) if len(text) <= enough(most) else beginning(text) for text in texts]

    def _beginning(self, text: str, most: int, spans: bool) -> list[Piece]:
        """`encode` of a long text; where the pieces stand is true with `spans` alone."""
        pieces = self.encode(text[: enough(most)])
        if len(pieces) > most and pieces[most - 1].word < pieces[-1].word:  # the last word may go on
            return pieces
        short, places = shortened(text, most, self.MAX_WORD + 1, self.casing, spans)
        return [Piece(id, *placed(start, end, places), word) for id, start, end, word in self.encode(short)]

    def _pieces(self, texts: list[str]) -> list[list[Piece]]:
        encodings = encoded(texts, self._tokenizer.encode_batch)
        rows = (zip(each.ids, each.offsets, each.word_ids, strict=True) for each in encodings)
        return [[Piece(id, *span, word or 0) for id, span, word in row] for row in rows]

    def _ids_of_texts(self, texts: list[str]) -> list[list[int]]:
        parts = (texts[begin : begin + self.TOGETHER] for begin in range(0, len(texts), self.TOGETHER))
        return [ids for part in parts for ids in self._ids_of_chunks([text.split(" ") for text in part])]

    def _ids_of_chunks(self, texts: Sequence[Sequence[str]]) -> Iterator[list[int]]:
        """The ids of texts that are split at spaces."""
        chunks = {*chain.from_iterable(texts)}
        ids = {chunk: self._ids[chunk] for chunk in chunks if chunk in self._ids}
        if new := list(chunks - ids.keys()):
            encodings = encoded(new, self._tokenizer.encode_batch_fast)
            ids |= {chunk: tuple(encoding.ids) for chunk, encoding in zip(new, encodings, strict=True)}
            if len(self._ids) < self.CACHED:
                self._ids.update((chunk, ids[chunk]) for chunk in new if len(chunk) <= self.CACHED_LENGTH)
        return ([*chain.from_iterable(map(ids.__getitem__, text))] for text in texts)


def encoded(texts: list[str], encode: Callable[..., list[Encoding]]) -> list[Encoding]:
    """What a method of a `Tokenizer` makes of texts, in which an unpaired surrogate is read as U+FFFD."""
    try:
        return encode(texts, add_special_tokens=False)
    except TypeError:  # an unpaired surrogate
        return encode([_SURROGATE.sub(_REMOVED, text) for text in texts], add_special_tokens=False)


def strings(texts: Sequence[str]) -> list[str]:
    """The texts as a list; a TypeError if one is no string."""
    texts = list(texts)
    for index, text in enumerate(texts if {*map(type, texts)} - {str} else ()):
        if not isinstance(text, str):
            raise TypeError(f"text {index} is {text!r}: give a string")
    return texts


def _word_counts(texts: Iterable[str], normalizer: normalizers.Normalizer) -> Counter[str]:
    """Counts of all words that are not too long to have pieces."""
    counts: Counter[str] = Counter()
    # text between spaces: no rule looks beyond a space, so each chunk is split only once
    chunks: Counter[str] = Counter()

    def split() -> None:
        for chunk, count in chunks.items():
            for word, _ in _SPLIT.pre_tokenize_str(normalizer.normalize_str(_SURROGATE.sub(_REMOVED, chunk))):
                if len(word) <= WordPiece.MAX_WORD:
                    counts[word] += count
        chunks.clear()

    read = 0
    for text in texts:
        chunks.update(text.split(" "))
        read += len(text)
        if read > _AT_ONCE:
            split()
            read = 0
    split()
    if not counts:
        raise ValueError("no text to learn a vocabulary from: the corpus is empty")
    return counts


def _letters(counts: Mapping[str, int], alphabet: int | Iterable[str]) -> tuple[list[str], list[str]]:
    """The letters to keep, the most frequent or the given ones, and those of them that occur inside words."""
    if not isinstance(alphabet, int):
        letters = sorted(set(alphabet))
        return letters, letters
    seen: Counter[str] = Counter()
    inner: set[str] = set()
    for word, count in counts.items():
        for letter in word:
            seen[letter] += count
        inner.update(word[1:])
    letters = sorted(seen, key=lambda letter: (-seen[letter], letter))[:alphabet]
    return letters, sorted(inner & set(letters))


def _words_by_count(counts: Counter[str]) -> Iterator[str]:
    """The counted words as text for the trainer, which counts them again, at most 10,000 words at a time."""
    for word, count in counts.items():
        for begin in range(0, count, 10_000):
            yield f"{word} " * min(10_000, count - begin)


def vocab_text(vocab: Iterable[str]) -> str:
    """A vocabulary as the contents of a file that `read_vocab` reads.

    >>> vocab_text(["[PAD]", "a"])
    '[PAD]\\na\\n'
    """
    return "".join(f"{piece}\n" for piece in vocab)


def read_vocab(path: str | Path) -> list[str]:
    """The lines of a vocabulary file, without line ends.

    Raises:
        ValueError: not UTF-8, empty, or a pipe or device; the message names the file and line.
    """
    lines = []
    for number, raw in enumerate(regular(path).read_bytes().removesuffix(b"\n").split(b"\n"), 1):
        try:
            lines.append(raw.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{number}: not UTF-8 ({error.reason})") from None
    if lines == [""]:
        raise ValueError(f"{path}: the vocabulary is empty")
    return lines


def count_words(sentences: Iterable[Sequence[str]]) -> Iterator[tuple[str, int]]:
    """(word, count), most frequent first, ties in alphabetical order."""
    counts = Counter(word for sentence in sentences for word in sentence)
    return iter(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def joined(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Words joined by spaces, and where each stands in the result.

    >>> joined(["a", "day"])
    ('a day', [(0, 1), (2, 5)])
    """
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return " ".join(words), [(int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True)]
