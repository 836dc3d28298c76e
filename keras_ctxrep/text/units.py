"""The tokens of a language model: words, word pieces or characters of texts as ids, and ids as text again."""

import codecs
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_ctxrep.text.character_rules import Casing, enough, placed, shortened
from keras_ctxrep.text.features import (
    Features,
    Marks,
    Pairs,
    Row,
    Span,
    TextRows,
    Texts,
    check_texts,
    letters_read,
    marks_of,
    padded,
    spans_of_pieces,
    starts_of,
    tokens_in_span,
    words_of_pieces,
)
from keras_ctxrep.text.pretraining import WHOLE, BpttSegment, Vocabulary
from keras_ctxrep.text.scripts import SHARE, SHARE_OF_WORDS, UnreadRule, rule_of_pieces
from keras_ctxrep.text.subwords import SubwordTokenizer
from keras_ctxrep.text.tokens import Piece, WordPiece, split_words, words

__all__ = ["UNITS", "SentenceTokens", "SubwordTokens", "TokenFeatures", "token_batch"]

UNITS = ("words", "pieces", "characters")


class TokenFeatures(TextRows):
    """Texts as ids of tokens, and ids as text.

    A text is one or several lines. Before the first one and after each stands one mark, the end of a line: what is
    predicted after a line's last token is what is read before the next line's first one. Words are those of BERT's
    split without lower-casing, as ELMo reads them, and are joined by spaces; characters are those of Unicode.

    Args:
        units: one of `UNITS`.
        vocab: of words and characters <S>, </S>, <UNK>, then the others; </S> is the end of a line, and <S> is not
            read. Of pieces a BERT's vocabulary, of which [SEP] is the end of a line.
        max_length: tokens of a row.
        starts: add the position of each word's last token, for a tagger: only there has the model read the whole word,
            since it reads in one direction. Words are those of BERT's split, or of input that is already split.
        casing: `lowercase`, `strip_accents` and `split_cjk` of `WordPiece`.

    Returns: {"token_ids", "mask"}, each int32 (B, T): the mark and the text; with `starts` also "starts", int32
        (B, words), padded with 0, without the words that were cut off or have no token.

    Raises:
        ValueError: a vocabulary without these entries, or with one twice.

    >>> features = TokenFeatures("words", ["<S>", "</S>", "<UNK>", "a", "day"])
    >>> features(["a day", "one"])["token_ids"].tolist()
    [[1, 3, 4], [1, 2, 0]]
    >>> features.text([3, 4, 1, 3])
    'a day\\na'
    """

    markers = (1, 0)
    by_line = False  #: whether each line is read by itself, from the state of zeros

    def __init__(self, units: str, vocab: Sequence[str], max_length: int = 128, starts: bool = False, **casing: Any):
        if units not in UNITS:
            raise ValueError(f"units={units!r}: one of {', '.join(UNITS)}")
        self.units, self.max_length, self.starts = units, max_length, starts
        self.keys = ("token_ids", "mask", *(("starts",) if starts else ()))
        if units == "pieces":
            self.wordpiece = WordPiece(vocab, **casing)
            self.vocab, self.end, self.unknown = self.wordpiece.vocab, self.wordpiece.sep, self.wordpiece.unk
            self.never = [self.wordpiece.pad, self.wordpiece.unk, self.wordpiece.cls, self.wordpiece.mask]
        else:
            self.vocabulary = Vocabulary(vocab)
            self.vocab, self.end, self.unknown = self.vocabulary.vocab, 1, 2
            self.never = [0, 2]  #: ids that are not generated
        self._letters = max(letters_read(self.vocab), WordPiece.MAX_WORD + 1)

    def __call__(self, texts: Texts, length: int | None = None) -> dict[str, np.ndarray]:
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

    def encode(self, texts: Texts, pairs: Pairs = None, offsets: bool = False, marks: Marks | None = None) -> list[Row]:
        """Rows of ids, cut at `max_length`, with their offsets if requested, and the positions of the marked spans.

        Raises:
            ValueError: a text has a pair.
        """
        texts = check_texts(texts)
        if pairs is not None and any(pair is not None for pair in pairs):
            raise ValueError("a language model in one direction reads one text, not a pair")
        if offsets or self.starts or marks is not None or not all(isinstance(text, str) for text in texts):
            spans = [None] * len(texts) if marks is None else marks
            return [self._row(text, each) for text, each in zip(texts, spans, strict=True)]
        rows = (self._prompt(str(text)) for text in texts)
        return [Row(ids[: self.max_length], len(ids) > self.max_length) for ids in rows]

    def _prompt(self, text: str) -> list[int]:
        """`prompt`, of which `max_length` ids and one more are needed."""
        if len(text) <= enough(self.max_length):
            return self.prompt(text)
        if self.units == "characters":
            return self.prompt(text[: self.max_length])
        return [token.id for token in self._beginning(text, spans=False)[0]]

    def _beginning(self, text: str, spans: bool = True, marks: bool = False) -> tuple[list[Piece], list[Span]]:
        """`_read`, of which `max_length` tokens and one more are needed, for `marks` a word; places if `spans`."""
        if len(text) <= enough(self.max_length):
            return self._read(text)
        tokens, words = self._read(text[: enough(self.max_length)])
        numbers = [token.word for token in tokens]
        if self.units == "characters":  # a word's position is that of its last one
            numbers.reverse()
        last = numbers.index(len(words) - 1) if words else 0  # which may go on
        if self.units == "characters":
            return (tokens, words) if len(tokens) - 1 - last >= self.max_length else self._read(text)
        if last >= self.max_length:
            return tokens, words
        if marks:  # what is behind the tokens may be line ends alone
            return self._read(text)
        casing = self.wordpiece.casing if self.units == "pieces" else Casing()
        short, places = shortened(text, self.max_length, self._letters, casing, spans, lines=True)
        tokens, words = self._read(short)
        return (
            [Piece(id, *placed(start, end, places), word) for id, start, end, word in tokens],
            [placed(*span, places) for span in words],
        )

    def _row(self, text: str | Sequence[str], marks: Sequence[Span] | None) -> Row:
        """One row with all that may be known of it."""
        raw = isinstance(text, str)
        tokens, spans = self._beginning(text, marks=marks is not None) if raw else (self._read_words(text), None)
        count, kept = len(spans or ()) if raw else len(text), tokens[: self.max_length]
        lasts: list[int | None] = [None] * count
        firsts = list(lasts)
        for position, token in enumerate(tokens):
            if token.word >= 0:
                lasts[token.word] = position
                firsts[token.word] = position if firsts[token.word] is None else firsts[token.word]
        starts = [last if last is not None and last < len(kept) else None for last in lasts]
        positions = None
        if marks is not None and raw:
            positions = [tokens_in_span([(token.start, token.end) for token in tokens], span) for span in marks]
        elif marks is not None:  # from the first token of the first word that has one to the last of the last
            inside = [
                [position for position in (*firsts[begin:end], *lasts[begin:end]) if position is not None]
                for begin, end in marks
            ]
            positions = [(min(found), max(found) + 1) if found else (0, 0) for found in inside]
        if positions is not None:
            positions = [(begin, end) if begin < end <= len(kept) else (0, 0) for begin, end in positions]
        known = starts if self.starts or not raw else None
        ids, offsets = [token.id for token in kept], [(token.start, token.end) for token in kept]
        return Row(ids, len(kept) < len(tokens), 0, known, offsets, spans, positions)

    def _read(self, text: str) -> tuple[list[Piece], list[Span]]:
        """The tokens of a text, marks and white space with the word -1, and where its words stand."""
        tokens, spans, begin = [], [], 0
        for line in text.split("\n"):
            tokens.append(Piece(self.end, 0, 0, -1))
            first = len(spans)
            if self.units == "pieces":
                read = self.wordpiece.encode(line)
                inside: dict[int, list[Piece]] = {}
                for piece in read:
                    inside.setdefault(piece.word, []).append(piece)
                spans += [(begin + each[0].start, begin + each[-1].end) for each in inside.values()]
                numbers = [number for number, each in enumerate(inside.values(), first) for _ in each]
            else:
                split_line = words(line)
                spans += [(begin + word.start, begin + word.end) for word in split_line]
                if self.units == "words":
                    ids = self.vocabulary.ids([word.text for word in split_line]).tolist()
                    read = [Piece(id, word.start, word.end, 0) for id, word in zip(ids, split_line, strict=True)]
                    numbers = [*range(first, len(spans))]
                else:
                    read = [Piece(id, at, at + 1, 0) for at, id in enumerate(self.vocabulary.ids(list(line)).tolist())]
                    numbers = [-1] * len(line)
                    for number, word in enumerate(split_line, first):
                        numbers[word.start : word.end] = [number] * (word.end - word.start)
            tokens += [
                Piece(piece.id, begin + piece.start, begin + piece.end, number)
                for piece, number in zip(read, numbers, strict=True)
            ]
            begin += len(line) + 1
        return tokens, spans

    def token_spans(self, texts: Sequence[str]) -> list[tuple[list[Span], list[Span]]]:
        """Where each token of a text stands, and the word that it is of, in characters.

        A mark or white space counts to the word that follows, at the end of the text to the last one.
        """
        spans = []
        for text in texts:
            tokens, words = self._read(text)
            of_words, following = [], words[-1] if words else (0, 0)
            for token in reversed(tokens[1:]):
                following = words[token.word] if token.word >= 0 else following
                of_words.append(following)
            spans.append(([(token.start, token.end) for token in tokens[1:]], of_words[::-1]))
        return spans

    def _read_words(self, given: Sequence[str]) -> list[Piece]:
        """The tokens of a text that is split into words, which are joined by spaces."""
        tokens, space = [Piece(self.end, 0, 0, -1)], self.units == "characters"
        for number, (word, ids) in enumerate(zip(given, self.ids(given), strict=True)):
            if space and ids and len(tokens) > 1:
                (blank,) = self.vocabulary.ids([" "]).tolist()
                tokens.append(Piece(blank, 0, 0, -1))
            tokens += [Piece(id, 0, len(word), number) for id in ids]
        return tokens

    def tokens(self, texts: Texts) -> Iterable[Sequence]:
        for text in texts:
            ids = self.prompt(text) if isinstance(text, str) else [token.id for token in self._read_words(text)]
            yield ids[self.markers[0] :]

    def marked(self, tokens: Sequence) -> Row:
        """The row of some tokens, with its mark.

        >>> features = TokenFeatures("characters", ["<S>", "</S>", "<UNK>", "a", "b"], max_length=3)
        >>> [row.tokens for row in features.text_windows(["aab"], stride=1)[0]]
        [[1, 3, 3], [1, 3, 4]]
        """
        return Row([*[self.end] * self.markers[0], *tokens])

    def collate(self, rows: Sequence[Row], length: int | None = None) -> dict[str, np.ndarray]:
        batch = padded([row.tokens for row in rows], length, self.max_length) | marks_of(rows)
        return batch | {"starts": starts_of(rows)} if self.starts else batch

    def unread_rule(self, scripts: Collection[str]) -> UnreadRule:
        if self.units == "pieces":
            return rule_of_pieces(self.vocab, self.unknown, 1)
        share = SHARE_OF_WORDS if self.units == "words" else SHARE
        reason = f"{self.units} are not in the vocabulary of this language model"
        return UnreadRule(reason, self.unknown.__eq__, None, 1, share)

    def inputs(self, rows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
        """One batch of rows of ids, as in `prompt`."""
        return padded(rows)

    def following(self, ids: Sequence[int]) -> list[list[int]]:
        """What is read after each of some predicted tokens: of each row the token itself."""
        return [[token] for token in ids]

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


class SubwordTokens(TokenFeatures):
    """Texts as ids of a byte-level BPE, and ids as text: as GPT-2 reads them, with no marks at line ends.

    A text without tokens is read as the mark of a text's end, which is `sep` of the special tokens.

    Args:
        tokenizer: of the pieces.
        max_length: tokens of a row.
        starts: as in `TokenFeatures`.

    Returns: as `TokenFeatures`.

    Raises:
        ValueError: the tokenizer is of another kind.

    >>> from tokenizers import pre_tokenizers
    >>> from keras_ctxrep.text.subwords import Added, Subwords
    >>> from keras_ctxrep.text.tokens import SpecialTokens
    >>> letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    >>> mark = SpecialTokens(*["<end>"] * 5)
    >>> bpe = Subwords("bpe", (*letters, "<end>"), added=(Added(256),))
    >>> features = SubwordTokens(SubwordTokenizer(bpe, mark))
    >>> features(["a\\nb", ""])["token_ids"].tolist()
    [[64, 198, 65], [256, 0, 0]]
    >>> features.text([64, 198, 65])
    'a\\nb'
    """

    markers = (0, 0)
    never = ()

    def __init__(self, tokenizer: SubwordTokenizer, max_length: int = 128, starts: bool = False):
        if tokenizer.subwords.kind != "bpe":
            raise ValueError(f"a {tokenizer.subwords.kind} tokenizer: a language model over a byte-level BPE is read")
        self.units, self.max_length, self.starts = "subwords", max_length, starts
        self.keys = ("token_ids", "mask", *(("starts",) if starts else ()))
        self.wordpiece, self.vocab = tokenizer, tokenizer.vocab
        self.end, self.unknown = tokenizer.sep, tokenizer.unk
        self._mark = Piece(self.end, 0, 0, -1)  # of a text without tokens

    def ids(self, lines: Sequence[str]) -> list[list[int]]:
        return self.wordpiece.ids_batch(lines)

    def prompt(self, text: str) -> list[int]:
        """The ids of a text that is to be continued."""
        return self.ids([text])[0] or [self.end]

    def _prompt(self, text: str) -> list[int]:
        return self.prompt(text)

    def _beginning(self, text: str, spans: bool = True, marks: bool = False) -> tuple[list[Piece], list[Span]]:
        return self._read(text)

    def _read(self, text: str) -> tuple[list[Piece], list[Span]]:
        pieces = self.wordpiece.encode(text)
        places = {
            word: span for word, span in zip((each.word for each in pieces), words_of_pieces(pieces), strict=True)
        }
        places = {word: (start, end) for word, (start, end) in places.items() if start < end}  # not of white space
        numbers = {word: number for number, word in enumerate(places)}
        tokens = [piece._replace(word=numbers.get(piece.word, -1)) for piece in pieces]
        return tokens or [self._mark], [*places.values()]

    def _read_words(self, given: Sequence[str]) -> list[Piece]:
        pieces = self.wordpiece.of_words.encode_batch(given)
        tokens = [piece._replace(word=number) for number, word in enumerate(pieces) for piece in word]
        return tokens or [self._mark]

    def token_spans(self, texts: Sequence[str]) -> list[tuple[list[Span], list[Span]]]:
        return [spans_of_pieces(self.wordpiece.encode(text) or [self._mark]) for text in texts]

    def unread_rule(self, scripts: Collection[str]) -> UnreadRule:
        return rule_of_pieces(self.wordpiece.readable, self.unknown, 0)

    def strings(self, ids: Iterable[int], before: int | None = None) -> Iterator[str]:
        """What each token adds to the text: that of a letter of several bytes with the last one."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in ids:
            yield "" if token == self.end else decoder.decode(self.wordpiece.bytes_of(token))

    def forms(self, token: int) -> tuple[str, str]:
        raise ValueError("a model over a byte-level BPE: its pieces are bytes, not text")


class SentenceTokens:
    """The words that the forward half of a biLM reads and predicts, in the form of `TokenFeatures`.

    It reads words by their characters, those that it cannot predict too, and sentence by sentence, a line each: what
    is before the last line of a text has no influence, and after a line's end the next one begins from <S>.

    Args:
        features: of the biLM, whose tokens are words.
        vocab: the words that it predicts: <S>, </S>, <UNK>, then the others.

    >>> from keras_ctxrep.text.features import CharacterFeatures
    >>> tokens = SentenceTokens(CharacterFeatures(), ["<S>", "</S>", "<UNK>", "a", "day"])
    >>> tokens.prompt("A day\\na day"), tokens.following([4, 1]), [*tokens.strings([4, 1], before=3)]
    (['<S>', 'a', 'day'], [['day'], ['<S>']], [' day', '\\n'])
    """

    units, by_line = "words", True
    end, unknown = 1, 2
    never = (0, 2)

    def __init__(self, features: Features, vocab: Sequence[str]):
        self.features, self.vocabulary = features, Vocabulary(vocab)
        self.vocab = self.vocabulary.vocab

    def ids(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of the words of each line that has some, without markers."""
        return [ids for ids in (self.vocabulary.ids(split_words(line)).tolist() for line in lines) if ids]

    def prompt(self, text: str) -> list[str]:
        """The words of the last line of a text that is to be continued, after <S>."""
        return [self.vocab[0], *split_words(text.rpartition("\n")[2])]

    def inputs(self, rows: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
        """One batch of rows of words."""
        return self.features.collate([Row([*row]) for row in rows])

    def following(self, ids: Sequence[int]) -> list[list[str]]:
        """The word that is read after each of some predicted words: the word itself, or <S> after a line's end."""
        return [[self.vocab[0 if token == self.end else token]] for token in ids]

    def strings(self, ids: Iterable[int], before: int | str) -> Iterator[str]:
        """What each token adds to the text, whose last token is `before`, an id, or a word as in `prompt`."""
        begins = before in (self.end, self.vocab[0])
        for token in ids:
            word = "\n" if token == self.end else self.vocab[token]
            yield word if begins or token == self.end else f" {word}"
            begins = token == self.end


def split(line: str, units: str) -> list[str]:
    """The words or characters of a line.

    Args:
        line: of a text.
        units: "words" or "characters".

    >>> split("a b", "words"), split("a b", "characters")
    (['a', 'b'], ['a', ' ', 'b'])
    """
    return split_words(line) if units == "words" else list(line)


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
