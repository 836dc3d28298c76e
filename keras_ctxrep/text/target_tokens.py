"""The tokens that a decoder writes: characters, words or subwords, learned from the target texts of a data set."""

from collections.abc import Iterable, Mapping, Sequence

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from keras_ctxrep.text.features import WordFeatures

__all__ = ["UNITS", "TargetTokens", "learn"]

UNITS = ("characters", "words", "subwords")
MARKERS = WordFeatures.MARKERS  # <S>, </S> and <UNK>, the first tokens of every vocabulary
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # before a subword that begins a word, as in SentencePiece
LONGEST = 100  # characters of a word that are split into subwords


class TargetTokens:
    """Target texts as ids, and ids as texts.

    Words are what white space separates, and single spaces separate them again; subwords are parts of words, the first
    with a mark in front, split from the left by the longest that is known (as WordPiece does it, Wu et al. 2016,
    https://arxiv.org/abs/1609.08144, section 4.1). Characters are those of the text, all of them.

    Args:
        units: "characters", "words" or "subwords".
        vocab: <S>, </S> and <UNK>, then the tokens, as in `learn`.

    Attributes:
        strings: what each token adds to a text, with the space before it; a text's first space is left out.

    Raises:
        ValueError: other units, or a vocabulary that does not begin with the markers.

    >>> tokens = TargetTokens("subwords", learn("subwords", {"low": 9, "lower": 4, "newer": 5}, 30))
    >>> tokens.text(tokens.ids("newer  low"))
    'newer low'
    """

    BEGIN, END, UNKNOWN = range(3)
    NEVER = (BEGIN, UNKNOWN)  #: ids that are not generated

    def __init__(self, units: str, vocab: Sequence[str]):
        if units not in UNITS:
            raise ValueError(f"units={units!r}: one of {', '.join(UNITS)}")
        if tuple(vocab[: len(MARKERS)]) != MARKERS:
            raise ValueError(f"a target vocabulary begins with {', '.join(MARKERS)}, not {list(vocab[: len(MARKERS)])}")
        self.units, self.vocab = units, tuple(vocab)
        self._numbers = {token: number for number, token in enumerate(self.vocab)}
        self.strings = [*self.vocab]
        if units == "words":
            self.strings = [f" {token}" for token in self.vocab]
        elif units == "subwords":
            self.strings = [token.replace(SPACE, " ") for token in self.vocab]
        self._subwords = _tokenizer(self._numbers) if units == "subwords" else None

    def ids(self, text: str) -> list[int]:
        """The ids of a text, without markers."""
        if self._subwords is not None:
            return self._subwords.encode(_mark(text)).ids
        parts = text if self.units == "characters" else text.split()
        return [self._numbers.get(part, self.UNKNOWN) for part in parts]

    def text(self, ids: Iterable[int]) -> str:
        """The text of some ids."""
        text = "".join(self.strings[token] for token in ids)
        return text if self.units == "characters" else text.removeprefix(" ")


def learn(units: str, counts: Mapping[str, int], size: int) -> tuple[str, ...]:
    """The vocabulary of some target texts: the markers, then the most frequent tokens.

    Subwords are learned by byte-pair encoding (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909).

    Args:
        units: one of `UNITS`.
        counts: word -> how often it occurs; for characters with " ", if there is white space.
        size: tokens at most, the markers among them; all characters are kept.

    >>> learn("words", {"b": 2, "a": 2, "c": 1}, 5)
    ('<S>', '</S>', '<UNK>', 'a', 'b')
    >>> learn("characters", {"ab": 1, "ca": 1, " ": 1}, 5)
    ('<S>', '</S>', '<UNK>', ' ', 'a', 'b', 'c')
    """
    if units == "characters":
        return (*MARKERS, *sorted(set().union(*counts)))
    if units == "words":
        known = sorted(counts.keys() - {*MARKERS, " "}, key=lambda word: (-counts[word], word))
        return (*MARKERS, *known[: max(size - len(MARKERS), 1)])
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=[*MARKERS], continuing_subword_prefix="", show_progress=False
    )
    tokenizer = _tokenizer({marker: number for number, marker in enumerate(MARKERS)})
    words = sorted(word for word in counts if word.strip())
    tokenizer.train_from_iterator((_mark(" ".join([word] * counts[word])) for word in words), trainer)
    learned = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return (*MARKERS, *(token for token, _ in learned if token not in MARKERS))


def _mark(text: str) -> str:
    return "".join(f" {SPACE}{word}" for word in text.split())


def _tokenizer(numbers: Mapping[str, int]) -> Tokenizer:
    model = models.WordPiece(
        dict(numbers), unk_token=MARKERS[2], continuing_subword_prefix="", max_input_chars_per_word=LONGEST
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer
