"""Training data for the two pretraining objectives: ELMo's bidirectional language model, BERT's MLM and NSP."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_ctxrep.text.features import CharacterFeatures, Row, WordFeatures, WordPieceFeatures, truncate_pair
from keras_ctxrep.text.tokens import Characters, count_words

UNKNOWN = "<UNK>"
MARKERS = (*Characters.MARKERS, UNKNOWN)


class Vocabulary:
    """The words a language model predicts: <S>, </S>, <UNK>, then the corpus' words, most frequent first.

    The order is that of the published vocabularies, which sampled softmax relies on. Characters of unknown words are
    read all the same: <UNK> is a target only.

    Args:
        vocab: the words in order; a line !!!MAXTERMID, which some published files have, is left out.

    Raises:
        ValueError: the markers do not come first, or a word occurs twice.

    >>> Vocabulary.count([["a", "b", "a"]], minimum=1).ids(["b", "c"]).tolist()
    [4, 2]
    """

    def __init__(self, vocab: Sequence[str]):
        vocab = [word for word in vocab if word != "!!!MAXTERMID"]
        if tuple(vocab[:3]) != MARKERS:
            raise ValueError(
                f"vocabulary: the first three lines must be {', '.join(MARKERS)}; found {vocab[:3]}: put them there, "
                "above the words sorted by count"
            )
        self.vocab = vocab
        self._ids = {word: index for index, word in enumerate(vocab)}
        if len(self._ids) < len(vocab):
            twice = next(word for index, word in enumerate(vocab) if self._ids[word] != index)
            raise ValueError(f"vocabulary: {twice!r} stands in it twice")

    @classmethod
    def count(cls, sentences: Iterable[Sequence[str]], minimum: int = 2, size: int | None = None) -> "Vocabulary":
        """The words that occur at least `minimum` times, the `size` most frequent of them."""
        counted = [word for word, count in count_words(sentences) if count >= minimum and word not in MARKERS]
        return cls([*MARKERS, *counted[:size]])

    def __len__(self) -> int:
        return len(self.vocab)

    def check_order(self, sentences: Iterable[Sequence[str]]) -> None:
        """Refuses a vocabulary that is not sorted by count, which sampled softmax would draw its words wrongly from.

        Args:
            sentences: of the text to train on, a few thousand of them.

        Raises:
            ValueError: the words of the first half are hardly more frequent than those of the second.
        """
        counts = Counter(id for sentence in sentences for id in self.ids(sentence).tolist())
        middle = (len(self.vocab) + 3) // 2
        first = sum(counts[id] for id in range(3, middle))
        second = sum(counts[id] for id in range(middle, len(self.vocab)))
        if first < 2 * second:
            last = self.vocab[middle - 1]
            raise ValueError(
                f"vocabulary: not sorted by count, as sampled softmax needs: the words up to {last!r} occur {first} "
                f"times, those after it {second} times; sort it, most frequent first, or use the full softmax"
            )

    def ids(self, sentence: Sequence[str]) -> np.ndarray:
        """int32 (len(sentence),), <UNK> where a word is not in the vocabulary."""
        return np.array([self._ids.get(word, 2) for word in sentence], np.int32)


def language_model_batch(
    features: CharacterFeatures | WordFeatures, vocabulary: Vocabulary, rows: Sequence[Row]
) -> tuple[dict, dict, dict]:
    """(inputs, targets, weights) of the bidirectional language model for some sentences.

    Peters et al. 2018, eq. 1 of section 3.1: the forward direction predicts w1 .. wn, </S> and the backward direction
    <S>, w1 .. wn, each from the words on its other side.

    Returns: inputs as of `features`; targets {"forward_logits", "backward_logits"}, int32 (B, T+1); weights with the
        same keys, float32 (B, T+1), scaled so that the mean over all positions is the mean over the real ones: the loss
        and its gradient are then exact on any number of replicas.
    """
    inputs = features.collate(rows)
    mask = inputs["mask"]
    batch, length = mask.shape
    ids = np.zeros((batch, length), np.int32)
    ids[mask.astype(bool)] = vocabulary.ids([word for row in rows for word in row.tokens])
    sizes = mask.sum(1)
    forward = np.concatenate([ids, np.zeros((batch, 1), np.int32)], 1)
    forward[np.arange(batch), sizes] = 1  # </S>
    backward = np.concatenate([np.zeros((batch, 1), np.int32), ids], 1)  # <S> is 0
    weights = (np.arange(length + 1) <= sizes[:, None]).astype(np.float32)
    weights *= weights.size / weights.sum()
    targets = {"forward_logits": forward, "backward_logits": backward}
    # An array for each: TensorFlow takes over their memory and may write into it.
    return inputs, targets, {name: weights.copy() for name in targets}


class Stretch(NamedTuple):
    """Running text of one stream, and its words one step on, in both directions; lists of the same length."""

    words: list[str]
    following: list[str]
    reverse: list[str]
    preceding: list[str]


def stretches(documents: Iterable[Iterable[Sequence[str]]], streams: int, steps: int) -> Iterator[list[Stretch]]:
    """Batches for truncated back-propagation through time: row k of each goes on where row k of the one before ended.

    https://github.com/allenai/bilm-tf, data.py: each stream takes a sentence, <S> w1 .. wn </S>, whenever it needs one;
    n+1 words of it are read and n+1 predicted, in either direction, and the sentences of a stream follow each other
    without padding. Here a stream takes a whole document before the next one, so that its sentences stay together.

    Args:
        documents: sentences, split into words; read as they are needed.
        streams: rows per batch.
        steps: words per row; only at the end of the text there are fewer, and rows may be empty.
    """
    source = iter(documents)
    rest: list[Iterator] = [iter(()) for _ in range(streams)]  # of each stream's document
    waiting: list[list[tuple[str, ...]]] = [[] for _ in range(streams)]  # words that were taken and not yet read
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
                marked = [MARKERS[0], *sentence, MARKERS[1]]
                back = marked[::-1]
                waiting[row].extend(zip(marked, marked[1:], back, back[1:], strict=False))
            taken, waiting[row] = waiting[row][:steps], waiting[row][steps:]
            batch.append(
                Stretch(*(list(words) for words in zip(*taken, strict=True))) if taken else Stretch([], [], [], [])
            )
        if not any(stretch.words for stretch in batch):
            return
        yield batch


def stream_batch(
    features: CharacterFeatures | WordFeatures, vocabulary: Vocabulary, batch: Sequence[Stretch]
) -> tuple[dict, dict, dict]:
    """(inputs, targets, weights) of a biLM with `streams`, from a batch of `stretches`.

    Returns: inputs {"char_ids", "char_ids_reverse": int32 (B, T, W), "mask": int32 (B, T)}; targets
        {"forward_logits", "backward_logits"}, int32 (B, T); weights with the same keys, scaled as in
        `language_model_batch`.
    """
    inputs, reverse = (
        features.collate([Row(words) for words in rows])
        for rows in ([stretch.words for stretch in batch], [stretch.reverse for stretch in batch])
    )
    real = inputs["mask"].astype(bool)
    targets = {}
    for name, words in (
        ("forward_logits", [word for stretch in batch for word in stretch.following]),
        ("backward_logits", [word for stretch in batch for word in stretch.preceding]),
    ):
        targets[name] = np.zeros(real.shape, np.int32)
        targets[name][real] = vocabulary.ids(words)
    weights = real * np.float32(real.size / real.sum())
    ids = features.keys[0]
    return inputs | {f"{ids}_reverse": reverse[ids]}, targets, {name: weights.copy() for name in targets}


def for_sampling(inputs: dict, targets: dict, weights: dict) -> tuple[dict, dict, dict]:
    """A batch of a biLM with `samples`: the true words become inputs, and every position's label is 0."""
    given = {name.replace("_logits", "_targets"): ids for name, ids in targets.items()}
    return inputs | given, {name: np.zeros_like(ids) for name, ids in targets.items()}, weights


def next_sentence_rows(
    documents: Sequence[Sequence[Sequence[int]]],
    features: WordPieceFeatures,
    rng: np.random.Generator,
    short: float = 0.1,
) -> Iterator[tuple[Row, bool]]:
    """(pair of segments, whether the second follows the first) from documents of piece ids.

    Devlin et al. 2018, appendix A.2, and `create_instances_from_document` of https://github.com/google-research/bert:
    sentences are joined up to `max_length`, cut in two at a random sentence, and half of the time the second part is
    taken from another document instead. With a single document a part of it that lies elsewhere is taken.

    Args:
        documents: piece ids of each sentence of each document.
        features: gives `max_length` and the markers.
        rng: source of randomness.
        short: share of pairs made shorter at random.

    Raises:
        ValueError: `max_length` leaves no room for a pair.
    """
    cls, sep = features.wordpiece.cls, features.wordpiece.sep
    room = features.max_length - 3
    if room < 2:
        raise ValueError(f"max_length={features.max_length}: a pair and its markers need at least 5")

    def draw_target() -> int:
        return int(rng.integers(2, room + 1)) if rng.random() < short else room

    for number, document in enumerate(documents):
        begin, target = 0, draw_target()
        while begin < len(document):
            end, size = begin, 0
            while end < len(document) and (size < target or end - begin < 2):  # one sentence alone has no next one
                size += len(document[end])
                end += 1
            cut = begin + (int(rng.integers(1, end - begin)) if end - begin > 1 else 1)
            first = [piece for sentence in document[begin:cut] for piece in sentence]
            follows = cut < end and rng.random() < 0.5
            if follows:
                second = [piece for sentence in document[cut:end] for piece in sentence]
                begin = end
            else:
                second = _elsewhere(documents, number, cut, target - len(first), rng)
                begin = cut
            target = draw_target()
            first, second = truncate_pair(first, second, room)
            if first and second:
                yield Row([cls, *first, sep, *second, sep], first=len(first) + 2), follows


def _elsewhere(documents, number: int, cut: int, size: int, rng: np.random.Generator) -> list[int]:
    """Some sentences, about `size` pieces, from another document, or from another place in the only one."""
    other = number
    if len(documents) > 1:
        other = (number + 1 + int(rng.integers(len(documents) - 1))) % len(documents)
    document = documents[other]
    start = int(rng.integers(len(document)))
    if other == number and start == cut and len(document) > 1:
        start = (start + 1) % len(document)
    found: list[int] = []
    for sentence in document[start:]:
        found.extend(sentence)
        if len(found) >= size:
            break
    return found


def pretrainer_batch(
    features: WordPieceFeatures,
    pairs: Sequence[tuple[Row, bool]],
    rng: np.random.Generator,
    share: float = 0.15,
) -> tuple[dict, dict, dict]:
    """(inputs, targets, weights) of BERT's pretraining for some segment pairs, masked anew at each call.

    Devlin et al. 2018, section 3.1: `share` of the pieces are to be predicted; of these 80% become [MASK], 10% a random
    piece and 10% stay. Random pieces are drawn from the vocabulary without its special pieces.

    Returns: inputs with "mlm_positions", int32 (B, P); targets {"mlm_logits": int32 (B, P), "nsp_logits": int32 (B,)},
        0 = the second segment follows, as published; weights with the same keys, those of the MLM scaled so that the
        mean over all P is the mean over the real ones.
    """
    wordpiece = features.wordpiece
    inputs = features.collate([row for row, _ in pairs])
    token_ids = inputs["token_ids"]
    special = np.array([wordpiece.pad, wordpiece.unk, wordpiece.cls, wordpiece.sep, wordpiece.mask])
    ordinary = np.setdiff1d(np.arange(len(wordpiece.vocab)), special)
    candidate = inputs["mask"].astype(bool) & ~np.isin(token_ids, [wordpiece.cls, wordpiece.sep])

    count = np.maximum(1, np.round(share * inputs["mask"].sum(1))).astype(int)
    count = np.minimum(count, candidate.sum(1))
    order = np.argsort(np.where(candidate, rng.random(token_ids.shape), 2.0), axis=1)[:, : max(1, count.max())]
    real = np.arange(order.shape[1]) < count[:, None]
    positions = np.sort(np.where(real, order, token_ids.shape[1]), axis=1)  # padding sorts to the end
    positions = np.where(real, positions, 0).astype(np.int32)
    labels = np.where(real, np.take_along_axis(token_ids, positions, 1), 0).astype(np.int32)

    kind = rng.random(positions.shape)
    replaced = np.where(kind < 0.8, wordpiece.mask, np.where(kind < 0.9, rng.choice(ordinary, positions.shape), labels))
    rows = np.broadcast_to(np.arange(len(pairs))[:, None], positions.shape)
    token_ids[rows[real], positions[real]] = replaced[real]

    weights = real.astype(np.float32)
    targets = {"mlm_logits": labels, "nsp_logits": np.array([not follows for _, follows in pairs], np.int32)}
    scaled = {"mlm_logits": weights * (weights.size / weights.sum()), "nsp_logits": np.ones(len(pairs), np.float32)}
    return inputs | {"mlm_positions": positions}, targets, scaled
