"""Batches of pretraining from text: the words and targets of ELMo's biLM, the masked pairs of BERT's MLM and NSP."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_ctxrep.text.artifacts import read_arrays
from keras_ctxrep.text.features import Features, Row, WordPieceFeatures, line_numbers
from keras_ctxrep.text.lengths import longest
from keras_ctxrep.text.subwords import SubwordTokenizer
from keras_ctxrep.text.tokens import Characters, WordPiece, count_words

__all__ = [
    "BpttSegment",
    "Masked",
    "Masking",
    "Vocabulary",
    "bptt_segments",
    "for_sampling",
    "language_model_batch",
    "next_sentence_rows",
    "piece_ids",
    "pretrainer_batch",
    "read_masked",
    "segment_pairs",
    "single_segments",
    "stream_batch",
]

UNKNOWN = "<UNK>"
PREPARED = "prepared.json"  # in a folder of examples that were masked in advance
MARKERS = (*Characters.MARKERS, UNKNOWN)


class Vocabulary:
    """The words a language model predicts: <S>, </S>, <UNK>, then the corpus' words, most frequent first.

    The order is that of the published vocabularies, which sampled softmax relies on. <UNK> is only a target: in the
    input, unknown words are read by their characters.

    Args:
        vocab: the words in order; the entry !!!MAXTERMID of some published files is dropped.

    Raises:
        ValueError: the markers do not come first, or a word occurs twice.

    >>> Vocabulary.count([["a", "b", "a"]], minimum=1).ids(["b", "c"]).tolist()
    [4, 2]
    """

    def __init__(self, vocab: Sequence[str]):
        self.vocab = [word for word in vocab if word != "!!!MAXTERMID"]
        self._lines = line_numbers(self.vocab, MARKERS)

    @classmethod
    def count(cls, sentences: Iterable[Sequence[str]], minimum: int = 2, size: int | None = None) -> "Vocabulary":
        """The words that occur at least `minimum` times, the `size` most frequent of them."""
        frequent = [word for word, count in count_words(sentences) if count >= minimum and word not in MARKERS]
        return cls([*MARKERS, *frequent[:size]])

    def __len__(self) -> int:
        return len(self.vocab)

    def check_order(self, sentences: Iterable[Sequence[str]]) -> None:
        """Checks on some thousand sentences that the vocabulary is sorted by count, as sampled softmax assumes.

        Raises:
            ValueError: the words of the first half are less than twice as frequent as those of the second.
        """
        counts = Counter(id for sentence in sentences for id in self.ids(sentence).tolist())
        middle = (len(self.vocab) + 3) // 2
        first = sum(counts[id] for id in range(3, middle))
        second = sum(counts[id] for id in range(middle, len(self.vocab)))
        if first < 2 * second:
            halves = f"the words up to {self.vocab[middle - 1]!r} occur {first} times, those after it {second} times"
            remedy = "sort it, most frequent first, or use the full softmax"
            raise ValueError(f"vocabulary: not sorted by count, as sampled softmax needs: {halves}; {remedy}")

    def ids(self, sentence: Sequence[str]) -> np.ndarray:
        """int32 (len(sentence),), <UNK> where a word is not in the vocabulary."""
        return np.array([self._lines.get(word, 3) - 1 for word in sentence], np.int32)


WHOLE = slice(None)


def language_model_batch(
    features: Features, vocabulary: Vocabulary, rows: Sequence[Row], part: slice = WHOLE
) -> tuple[dict, dict, dict]:
    """(inputs, targets, weights) of the bidirectional language model, from rows of sentences.

    Peters et al. 2018, eq. 1 of section 3.1: the forward direction predicts w1 .. wn, </S> and the backward direction
    <S>, w1 .. wn, each from the words on its other side.

    Args:
        features, vocabulary: text to ids.
        rows: of the batch.
        part: the rows to return, padded and weighted as in the whole batch.

    Returns: inputs as from `features`; targets {"forward_logits", "backward_logits"}, int32 (B, T+1); weights with the
        same keys, float32 (B, T+1), scaled so that the mean over all positions is that over real ones, on any replicas.
    """
    length = longest(map(len, rows), features.max_length)
    scale = np.float32(len(rows) * (length + 1)) / np.float32(sum(map(len, rows)) + len(rows))
    rows = rows[part]
    inputs = features.collate(rows, length)
    sizes = inputs["mask"].sum(1)
    ids = np.zeros((len(rows), length), np.int32)
    ids[inputs["mask"].astype(bool)] = vocabulary.ids([word for row in rows for word in row.tokens])
    forward = np.pad(ids, ((0, 0), (0, 1)))
    forward[np.arange(len(rows)), sizes] = 1  # </S>
    backward = np.pad(ids, ((0, 0), (1, 0)))  # <S> is 0
    weights = (np.arange(length + 1) <= sizes[:, None]).astype(np.float32) * scale
    targets = {"forward_logits": forward, "backward_logits": backward}
    # a copy for each output: TensorFlow takes over the memory and may write into it
    return inputs, targets, {name: weights.copy() for name in targets}


class BpttSegment(NamedTuple):
    """A BPTT segment of one stream: the words and the words to predict, in both directions; lists of equal length.

    The words are strings, or of a model of one direction ids.
    """

    words: list
    following: list
    reverse: list
    preceding: list


def bptt_segments(
    documents: Iterable[Iterable[Sequence]], streams: int, steps: int, markers: tuple = Characters.MARKERS
) -> Iterator[list[BpttSegment]]:
    """Batches of BPTT segments: row k of each batch continues row k of the previous one.

    https://github.com/allenai/bilm-tf, data.py: a stream that runs out of words takes the next sentence, <S> w1 .. wn
    </S>, of which n+1 words are read and n+1 predicted in each direction, without padding between sentences. Here a
    stream takes whole documents, so that the sentences of a document stay together.

    Args:
        documents: documents of sentences, split into words, or as ids; read lazily.
        streams: rows per batch.
        steps: words per row; at the end of the text rows may be shorter or empty.
        markers: what begins and what ends a sentence.
    """
    source = iter(documents)
    rest: list[Iterator] = [iter(()) for _ in range(streams)]  # the rest of each stream's document
    waiting: list[list[tuple[str, ...]]] = [[] for _ in range(streams)]  # words not yet returned
    while True:
        batch = []
        for row in range(streams):
            while len(waiting[row]) < steps:
                sentence = next(rest[row], None)
                if sentence is None:
                    document = next(source, None)
                    if document is None:
                        break
                    rest[row] = iter(document)
                    continue
                marked = [markers[0], *sentence, markers[1]]
                back = marked[::-1]
                waiting[row].extend(zip(marked, marked[1:], back, back[1:], strict=False))
            taken, waiting[row] = waiting[row][:steps], waiting[row][steps:]
            batch.append(BpttSegment(*([words[field] for words in taken] for field in range(4))))
        if not any(segment.words for segment in batch):
            return
        yield batch


def stream_batch(
    features: Features,
    vocabulary: Vocabulary,
    batch: Sequence[BpttSegment],
    part: slice = WHOLE,
) -> tuple[dict, dict, dict]:
    """(inputs, targets, weights) of a biLM with `streams`, from a batch that `bptt_segments` yields.

    Args:
        features, vocabulary, part: as in `language_model_batch`.
        batch: a segment for each stream.

    Returns: as `language_model_batch`, (B, T), with "char_ids_reverse" beside "char_ids", int32 (B, T, W).
    """
    sizes = [len(segment.words) for segment in batch]
    length, batch = max(sizes), batch[part]
    scale = np.float32(len(sizes) * length / sum(sizes))
    inputs = features.collate([Row(segment.words) for segment in batch], length)
    reverse = features.collate([Row(segment.reverse) for segment in batch], length)
    real = inputs["mask"].astype(bool)
    targets = {name: np.zeros(real.shape, np.int32) for name in ("forward_logits", "backward_logits")}
    targets["forward_logits"][real] = vocabulary.ids([word for segment in batch for word in segment.following])
    targets["backward_logits"][real] = vocabulary.ids([word for segment in batch for word in segment.preceding])
    weights = real * scale
    ids = features.keys[0]
    return inputs | {f"{ids}_reverse": reverse[ids]}, targets, {name: weights.copy() for name in targets}


def for_sampling(inputs: dict, targets: dict, weights: dict) -> tuple[dict, dict, dict]:
    """Converts a batch for a biLM with `samples`: the targets become inputs, and every label is 0.

    Args:
        inputs, targets, weights: of `language_model_batch` or `stream_batch`.
    """
    label_inputs = {name.replace("_logits", "_targets"): ids for name, ids in targets.items()}
    return inputs | label_inputs, {name: np.zeros_like(ids) for name, ids in targets.items()}, weights


class Masked(NamedTuple):
    """A training example of BERT: a masked pair of segments."""

    tokens: list[int]  #: piece ids with [CLS] and [SEP], some of them replaced
    first: int  #: length of the first segment, [CLS] and [SEP] included
    positions: list[int]  #: of the pieces to predict, ascending
    labels: list[int]  #: the original piece ids at these positions
    follows: bool  #: whether the second segment follows the first


def next_sentence_rows(
    documents: Sequence[Sequence[Sequence[int] | np.ndarray]],
    features: WordPieceFeatures,
    rng: np.random.Generator,
    short: float = 0.1,
) -> Iterator[tuple[Row, bool]]:
    """Yields (pair of segments, whether the second follows the first) from documents of piece ids.

    Devlin et al. 2018, appendix A.2, and `create_instances_from_document` of https://github.com/google-research/bert:
    sentences are joined up to `max_length` and split at a random sentence; in half of the pairs the second segment is
    replaced by text of another document, or of another part of the only document.

    The pair of a document's last sentence is always negative. To keep half of all pairs positive (the reference
    implementation gives fewer), for every two such pairs one that was drawn as negative is made positive. A corpus of
    single-sentence documents has no positive pairs at all.

    Args:
        documents: piece ids of each sentence of each document.
        features: gives `max_length` and the markers.
        rng: source of randomness.
        short: fraction of pairs that get a random shorter length.

    Raises:
        ValueError: `max_length` leaves no room for a pair.
    """
    cls, sep = features.wordpiece.cls, features.wordpiece.sep
    room = features.max_length - 3
    if room < 2:
        raise ValueError(f"max_length={features.max_length}: a pair and its markers need at least 5")
    documents = [[sentence for sentence in document if len(sentence)] for document in documents]
    documents = [document for document in documents if document]
    surplus = 0  # negative pairs of last sentences that are not yet compensated

    def draw_target() -> int:
        return int(rng.integers(2, room + 1)) if rng.random() < short else room

    for number, document in enumerate(documents):
        begin, target = 0, draw_target()
        while begin < len(document):
            end = _end(document, begin, target, len(document), 2)
            alone = end - begin == 1
            cut = end if alone else begin + int(rng.integers(1, end - begin))
            first = _concatenate(document[begin:cut])
            follows = not alone and rng.random() < 0.5
            if alone:
                surplus += 1
            elif not follows and surplus > 0:
                follows, surplus = True, surplus - 2  # one negative pair fewer, one positive pair more
            if follows:
                second, begin = _concatenate(document[cut:end]), end
            else:
                # neither from the first segment nor the sentence after it
                second = _random_text(documents, number, range(begin, cut + 1), target - len(first), rng)
                begin = cut
            target = draw_target()
            first, second = _truncate(first, second, room, rng)
            if second:  # empty if the whole text is one sentence
                yield Row([cls, *first, sep, *second, sep], first=len(first) + 2), follows


def _end(document: Sequence, begin: int, size: int, stop: int, least: int) -> int:
    """The end of the sentences from `begin` that have `size` pieces; at least `least` of them, and none from `stop`."""
    end, pieces = begin, 0
    while end < stop and (pieces < size or end - begin < least):
        pieces += len(document[end])
        end += 1
    return end


def _truncate(first: list[int], second: list[int], room: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """`truncate_seq_pair` of the reference: the longer segment loses its first or last piece until both fit.

    Not piece by piece: of lengths 5 and 4 with room for 6, `most` is (1, 0), which makes them equal, and the remaining
    2 are split evenly; of 6 and 3 with room for 7 it is (2, 0).
    """
    excess = max(0, len(first) + len(second) - room)
    most = min(max(0, len(first) - len(second)), excess), min(max(0, len(second) - len(first)), excess)
    rest = excess - sum(most)
    cut_first, cut_second = most[0] + rest // 2, most[1] + (rest + 1) // 2
    begin_first, begin_second = rng.binomial(cut_first, 0.5), rng.binomial(cut_second, 0.5)
    end_first, end_second = begin_first + len(first) - cut_first, begin_second + len(second) - cut_second
    return first[begin_first:end_first], second[begin_second:end_second]


def _concatenate(sentences: Sequence[Sequence[int] | np.ndarray]) -> list[int]:
    return np.concatenate(sentences).tolist()


def _random_text(documents, number: int, taken: range, size: int, rng: np.random.Generator) -> list[int]:
    """About `size` pieces of another document; of the only document, from outside of the sentences `taken`."""
    if len(documents) > 1:
        document = documents[(number + 1 + int(rng.integers(len(documents) - 1))) % len(documents)]
        start, stop = int(rng.integers(len(document))), len(document)
    else:
        document = documents[number]
        starts = [index for index in range(len(document)) if index not in taken]
        if not starts:
            return []
        start = starts[rng.integers(len(starts))]
        stop = taken.start if start < taken.start else len(document)
    return _concatenate(document[start : _end(document, start, size, stop, 1)])


def segment_pairs(
    documents: Iterable[list[str]], features: WordPieceFeatures, rng: np.random.Generator, buffer: int = 200_000
) -> Iterator[tuple[Row, bool]]:
    """The `next_sentence_rows` of a text of any size, with about `buffer` sentences in memory at a time.

    Args:
        documents: each a list of sentences.
        features: give `max_length` and the markers.
        rng: random numbers.
        buffer: sentences in memory.

    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
    >>> features = WordPieceFeatures(WordPiece([*SPECIAL_PIECES, "a", "b"]), max_length=8)
    >>> next(segment_pairs([["a", "b"]], features, np.random.default_rng(0)))[0].tokens
    [2, 5, 3, 6, 3]
    """
    for encoded in _encoded_documents(documents, features, buffer):
        yield from next_sentence_rows(encoded, features, rng)


def single_segments(
    documents: Iterable[list[str]], features: WordPieceFeatures, rng: np.random.Generator, buffer: int = 200_000
) -> Iterator[tuple[Row, bool]]:
    """Yields (text, True): as many whole sentences of a document as fit, to train without next-sentence prediction.

    The "doc-sentences" of Liu et al. 2019, section 4.2, https://arxiv.org/abs/1907.11692. A sentence that is too long
    for one text is continued in the next.

    Args:
        documents, features, buffer: as in `segment_pairs`.
        rng: not used.

    Raises:
        ValueError: `max_length` leaves no room for a piece.

    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
    >>> features = WordPieceFeatures(WordPiece([*SPECIAL_PIECES, "a", "b"]), max_length=5)
    >>> rows = single_segments([["a", "b b", "a a a a"]], features, np.random.default_rng(0))
    >>> [row.tokens for row, _ in rows]
    [[2, 5, 6, 6, 3], [2, 5, 5, 5, 3], [2, 5, 3]]
    """
    cls, sep, room = features.wordpiece.cls, features.wordpiece.sep, features.max_length - 2
    if room < 1:
        raise ValueError(f"max_length={features.max_length}: a text and its markers need at least 3")
    for document in itertools.chain.from_iterable(_encoded_documents(documents, features, buffer)):
        for pieces in _pack(document, room):
            yield Row([cls, *pieces, sep], first=len(pieces) + 2), True


def _pack(sentences: Iterable[np.ndarray], room: int) -> Iterator[list[int]]:
    """Whole sentences joined to at most `room` pieces; one that is too long alone is split."""
    pieces: list[int] = []
    for sentence in sentences:
        if pieces and len(pieces) + len(sentence) > room:
            yield pieces
            pieces = []
        pieces = pieces + sentence.tolist()
        while len(pieces) > room:
            yield pieces[:room]
            pieces = pieces[room:]
    if pieces:
        yield pieces


def _encoded_documents(
    documents: Iterable[list[str]], features: WordPieceFeatures, buffer: int
) -> Iterator[list[list[np.ndarray]]]:
    """The `piece_ids` of a text, for about `buffer` sentences at a time."""
    pool, size = [], 0
    for document in documents:
        pool.append(document)
        size += len(document)
        if size >= buffer:
            yield piece_ids(pool, features)
            pool, size = [], 0
    if pool:
        yield piece_ids(pool, features)


def piece_ids(documents: Sequence[Sequence[str]], features: WordPieceFeatures) -> list[list[np.ndarray]]:
    """The piece ids of each sentence of each document, int32 (pieces,).

    Args:
        documents: each some sentences.
        features: give the pieces.

    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
    >>> features = WordPieceFeatures(WordPiece([*SPECIAL_PIECES, "a", "b"]))
    >>> [[ids.tolist() for ids in document] for document in piece_ids([["a", "b a"], ["b"]], features)]
    [[[5], [6, 5]], [[6]]]
    """
    ids = iter(features.wordpiece.ids_batch([sentence for document in documents for sentence in document]))
    return [[np.array(next(ids), np.int32) for _ in document] for document in documents]


class Masking:
    """Chooses the pieces to predict and masks them.

    Devlin et al. 2018, section 3.1: of the pieces to predict 80% become [MASK], 10% a random piece, which is no special
    one, and 10% stay. Special pieces are never chosen, and `fraction` is of the others; a fractional number of pieces
    is rounded up or down at random. With `whole_words` all pieces of a word (a piece and the "##" pieces after it) are
    chosen together, as in the reference implementation since May 2019; a word with more pieces than are still to be
    chosen is skipped.

    Args:
        wordpiece: the vocabulary.
        fraction: of the pieces, to predict.
        whole_words: choose words instead of pieces.

    Call:
        pair: an item of `next_sentence_rows`.
        rng: source of randomness.

    Returns: a Masked.

    Raises:
        ValueError: `fraction` is not between 0 and 1, or the vocabulary has special pieces only.

    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
    >>> masking = Masking(WordPiece([*SPECIAL_PIECES, "play", "##ing"]), fraction=0.5, whole_words=True)
    >>> masking((Row([2, 5, 6, 3, 5, 6, 3], first=4), True), np.random.default_rng(0)).positions
    [1, 2]
    """

    def __init__(self, wordpiece: WordPiece | SubwordTokenizer, fraction: float = 0.15, whole_words: bool = False):
        if not 0 < fraction < 1:
            raise ValueError(f"fraction={fraction}: of the pieces, between 0 and 1")
        self.mask, self.fraction, self.whole_words = wordpiece.mask, fraction, whole_words
        self._special = np.zeros(len(wordpiece.vocab), bool)
        self._special[[wordpiece.pad, wordpiece.unk, wordpiece.cls, wordpiece.sep, wordpiece.mask]] = True
        self._ordinary = np.flatnonzero(~self._special)
        if not len(self._ordinary):
            raise ValueError("vocabulary: only special pieces, and so nothing to predict")
        self._inner = np.array([piece.startswith("##") for piece in wordpiece.readable])

    def __call__(self, pair: tuple[Row, bool], rng: np.random.Generator) -> Masked:
        row, follows = pair
        tokens = np.array(row.tokens, np.int64)
        candidates = np.flatnonzero(~self._special[tokens])
        count = int(self.fraction * len(candidates) + rng.random())
        if self.whole_words:
            positions = self._words(tokens, candidates, count, rng)
        else:
            positions = np.sort(rng.permutation(candidates)[:count])
        labels = tokens[positions]
        kind = rng.random(len(positions))
        random = self._ordinary[rng.integers(len(self._ordinary), size=len(positions))]
        tokens[positions] = np.where(kind < 0.8, self.mask, np.where(kind < 0.9, random, labels))
        return Masked(tokens.tolist(), row.first, positions.tolist(), labels.tolist(), follows)

    def _words(self, tokens, candidates, count: int, rng: np.random.Generator) -> np.ndarray:
        """Positions of the pieces of random whole words: `count` positions or a few less."""
        begins = ~self._inner[tokens[candidates]]
        # a word begins after a marker too, even one that lost its first piece
        begins |= np.diff(candidates, prepend=-1) > 1
        starts, pieces = np.flatnonzero(begins).tolist(), candidates.tolist()
        ends = [*starts[1:], len(pieces)]
        positions: list[int] = []
        for index in rng.permutation(len(starts)).tolist():
            if len(positions) + ends[index] - starts[index] <= count:
                positions.extend(pieces[starts[index] : ends[index]])
                if len(positions) == count:
                    break
        return np.array(sorted(positions), np.int64)


def pretrainer_batch(
    features: WordPieceFeatures, examples: Sequence[Masked], part: slice = WHOLE
) -> tuple[dict, dict, dict]:
    """(inputs, targets, weights) of BERT's pretraining.

    Args:
        features: gives padding.
        examples, part: of the batch, and the rows to return, as in `language_model_batch`.

    Returns: inputs with "mlm_positions", int32 (B, P), padded with 0; targets {"mlm_logits": int32 (B, P),
        "nsp_logits": int32 (B,)}, 0 = the second segment follows, as published; weights with the same keys, those of
        the MLM scaled so that the mean over all positions is the mean over the real ones.
    """
    length = longest((len(example.tokens) for example in examples), features.max_length)
    sizes = np.array([len(example.positions) for example in examples])
    most = longest(sizes.tolist())
    scale = np.float32(sizes.size * most / max(1, sizes.sum()))
    examples, sizes = examples[part], sizes[part]
    inputs = features.collate([Row(example.tokens, first=example.first) for example in examples], length)
    real = np.arange(most) < sizes[:, None]  # (B, P)
    positions, labels = np.zeros(real.shape, np.int32), np.zeros(real.shape, np.int32)
    positions[real] = [position for example in examples for position in example.positions]
    labels[real] = [label for example in examples for label in example.labels]
    weights = real * scale
    targets = {"mlm_logits": labels, "nsp_logits": np.array([not example.follows for example in examples], np.int32)}
    scaled = {"mlm_logits": weights, "nsp_logits": np.ones(len(examples), np.float32)}
    return inputs | {"mlm_positions": positions}, targets, scaled


def read_masked(path: str | Path, order: Callable[[int], np.ndarray] = np.arange) -> Iterator[Masked]:
    """The examples of a .npz file, as `ctxrep prepare` wrote them before there were shards.

    Args:
        path: the file.
        order: function from the number of examples to the indices in the order to yield them.

    Raises:
        ValueError: it is no such file, or is damaged.
    """
    try:
        parts = read_arrays(path, ("tokens", "sizes", "first", "positions", "labels", "counts", "follows"))
    except ValueError as error:
        raise ValueError(f"{path}: not a file of pretraining examples; run `ctxrep prepare` again: {error}") from None
    ends, stops, follows = np.cumsum(parts["sizes"]), np.cumsum(parts["counts"]), parts["follows"]
    for index in order(len(follows)):
        span = slice(ends[index] - parts["sizes"][index], ends[index])
        predicted = slice(stops[index] - parts["counts"][index], stops[index])
        tokens, first, positions = parts["tokens"][span], int(parts["first"][index]), parts["positions"][predicted]
        labels = parts["labels"][predicted].tolist()
        yield Masked(tokens.tolist(), first, positions.tolist(), labels, bool(follows[index]))
