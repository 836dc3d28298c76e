"""Words, ELMo character ids and BERT word pieces, with offsets into the original text."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import PreTokenizedString, Tokenizer, models, normalizers, pre_tokenizers, trainers

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Word(NamedTuple):
    """A word as the models see it, and where it stands: `text[start:end]`, in characters."""

    text: str
    start: int
    end: int


_CASED = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False)
_SPLIT = pre_tokenizers.BertPreTokenizer()


def words(text: str) -> list[Word]:
    """Splits raw text into words: BERT's basic split (white space, punctuation, CJK) without lower-casing.

    Control, format and private-use characters are removed, as in BERT's `BasicTokenizer`
    (https://github.com/google-research/bert, tokenization.py). A word's span leaves out removed characters at its ends.

    Args:
        text: any string.

    Returns: the words in order; an empty list if nothing is left.

    >>> [word.text for word in words("Don't stop, José!")]
    ['Don', "'", 't', 'stop', ',', 'José', '!']
    >>> words("a  b")[1]
    Word(text='b', start=3, end=4)
    """
    pieces = PreTokenizedString(text)
    pieces.normalize(_CASED.normalize)
    _SPLIT.pre_tokenize(pieces)
    return [Word(word, *span) for word, span, _ in pieces.get_splits("original", "char")]


class Characters:
    """ELMo character ids of words: int32, `width` per word.

    Peters et al. 2018, https://arxiv.org/abs/1802.05365; ids as in https://github.com/allenai/bilm-tf at inference:
    a byte b of the word's UTF-8 form is b + 1; 257 / 258 begin and end a sentence, 259 / 260 begin and end a word,
    261 fills up the word, and 0 is a position without a word. A word keeps its first `width - 2` bytes, which may cut
    a character in two. The rows of seen words are kept, up to 100,000 of them.

    Args:
        width: ids per word (50 in every published model).

    Raises:
        ValueError: `width` leaves no room for a character.

    >>> Characters(width=6)(["cat", "<S>"]).tolist()
    [[259, 100, 98, 117, 260, 261], [259, 257, 260, 261, 261, 261]]
    """

    BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261
    MARKERS = ("<S>", "</S>")  # the words that stand for a sentence's begin and end

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
        packed = []
        for word in words:
            row = rows.get(word)
            if row is None:
                row = rows[word] = self._row(word)
            packed.append(row)
        return np.frombuffer(b"".join(packed), np.uint16).reshape(-1, self.width).astype(np.int32)

    def _row(self, word: str) -> bytes:
        if word in self.MARKERS:
            middle = [self.BEGIN_SENTENCE + self.MARKERS.index(word)]
        else:
            middle = [byte + 1 for byte in word.encode("utf-8", "ignore")[: self.width - 2]]
        row = [self.BEGIN_WORD, *middle, self.END_WORD]
        return np.array(row + [self.PADDING] * (self.width - len(row)), np.uint16).tobytes()


class Piece(NamedTuple):
    """A word piece: its id, where it stands (`text[start:end]`, in characters) and the number of its word."""

    id: int
    start: int
    end: int
    word: int


class WordPiece:
    """BERT's WordPiece, by the `tokenizers` library, from a `vocab.txt` (one piece a line, the line number is the id).

    Devlin et al. 2018, https://arxiv.org/abs/1810.04805. Special pieces are never found in text: "[SEP]" typed by a
    user is three words, as in Google's own tokenizer, so no input can forge a marker.

    Args:
        vocab: the pieces in order, `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]` among them.
        lowercase: lower-case and strip accents (uncased vocabularies).
        strip_accents: only where it differs from `lowercase`.

    Raises:
        ValueError: a special piece is missing or a piece occurs twice; the message names piece and line.

    >>> pieces = WordPiece([*SPECIAL_PIECES, "un", "##able", "to"])
    >>> [[piece.id for piece in pieces.encode(text)] for text in ["Unable to", "[SEP]"]]
    [[5, 6, 7], [1, 1, 1]]
    """

    def __init__(self, vocab: Sequence[str], lowercase: bool = True, strip_accents: bool | None = None):
        ids: dict[str, int] = {}
        for line, piece in enumerate(vocab, 1):
            if piece in ids:
                raise ValueError(f"vocabulary: {piece!r} stands on lines {ids[piece] + 1} and {line}; each once only")
            ids[piece] = line - 1
        missing = [piece for piece in SPECIAL_PIECES if piece not in ids]
        if missing:
            raise ValueError(f"vocabulary: {', '.join(missing)} missing; a BERT vocab.txt holds one piece a line")
        self.vocab, self.lowercase, self.strip_accents = list(vocab), lowercase, strip_accents
        self.pad, self.unk, self.cls, self.sep, self.mask = (ids[piece] for piece in SPECIAL_PIECES)
        self._tokenizer = _bert_tokenizer(models.WordPiece(ids, unk_token="[UNK]"), lowercase, strip_accents)

    @classmethod
    def train(cls, texts: Iterable[str], size: int = 8000, lowercase: bool = True) -> "WordPiece":
        """A vocabulary of at most `size` pieces from a corpus, the same whenever it is learned from the same texts.

        Raises:
            ValueError: `size` has no room for pieces beside the special ones, or the texts are empty.
        """
        if size <= len(SPECIAL_PIECES):
            raise ValueError(f"vocabulary size {size}: must be larger than the {len(SPECIAL_PIECES)} special pieces")
        tokenizer = _bert_tokenizer(models.WordPiece(unk_token="[UNK]"), lowercase, None)
        texts = list(texts)
        letters: Counter[str] = Counter()
        inner: set[str] = set()
        for text in texts:
            for word, _ in _SPLIT.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
                letters.update(word)
                inner.update(word[1:])
        alphabet = sorted(letters, key=lambda letter: (-letters[letter], letter))[: min(1000, size // 4)]
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            # the trainer numbers inner letters at random unless they are given, and the numbers decide ties
            special_tokens=[*SPECIAL_PIECES, *(f"##{letter}" for letter in sorted(inner & set(alphabet)))],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        ids = tokenizer.get_vocab()
        if len(ids) == len(SPECIAL_PIECES):
            raise ValueError("no text to learn a vocabulary from: the corpus is empty")
        return cls(sorted(ids, key=ids.__getitem__), lowercase)

    def encode(self, text: str) -> list[Piece]:
        """Pieces of one text, without [CLS] and [SEP]."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[Piece]]:
        """Pieces of several texts; on all cores unless TOKENIZERS_PARALLELISM=false."""
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [
            [Piece(id, *span, word or 0) for id, span, word in zip(one.ids, one.offsets, one.word_ids, strict=True)]
            for one in found
        ]

    def ids_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Only the ids of `encode_batch`, faster."""
        return [one.ids for one in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def ids_of_words(self, sentence: Sequence[str]) -> list[list[int]]:
        """Piece ids of each word of a sentence that is split already; a word may have none."""
        return self.ids_batch(sentence)


def _bert_tokenizer(model: models.Model, lowercase: bool, strip_accents: bool | None) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = _SPLIT
    return tokenizer


def read_vocab(path: str | Path) -> list[str]:
    """The lines of a vocabulary file, without line ends.

    Raises:
        ValueError: not UTF-8, or empty; the message names the file and line.
    """
    lines = []
    for number, raw in enumerate(Path(path).read_bytes().removesuffix(b"\n").split(b"\n"), 1):
        try:
            lines.append(raw.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{number}: not UTF-8 ({error.reason})") from None
    if lines == [""]:
        raise ValueError(f"{path}: the vocabulary is empty")
    return lines


def count_words(sentences: Iterable[Sequence[str]]) -> Iterator[tuple[str, int]]:
    """(word, count), most frequent first, ties in alphabetical order."""
    counts: dict[str, int] = {}
    for sentence in sentences:
        for word in sentence:
            counts[word] = counts.get(word, 0) + 1
    return iter(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
