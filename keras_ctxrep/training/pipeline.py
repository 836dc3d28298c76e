"""Examples to batches, a `tf.data.Dataset` on TensorFlow: shuffled, bucketed by length, prefetched."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import keras
import numpy as np

from keras_ctxrep import backend
from keras_ctxrep.text.corpus import pieces
from keras_ctxrep.text.features import Features, Row, WordPieceFeatures
from keras_ctxrep.text.pretraining import (
    WHOLE,
    BpttSegment,
    Masked,
    Masking,
    Vocabulary,
    bptt_segments,
    for_sampling,
    language_model_batch,
    pretrainer_batch,
    stream_batch,
)
from keras_ctxrep.text.tokens import split_words
from keras_ctxrep.text.units import TokenFeatures, token_batch
from keras_ctxrep.training.strategy import several_workers

__all__ = [
    "bptt_segments_of_text",
    "bucketed_by_length",
    "collated",
    "dataset",
    "distributed",
    "running_text",
    "running_tokens",
    "segments",
    "sentences",
    "whole_sentences",
]

LOGITS = 1 << 27  # numbers that a full softmax may give for one batch: half a gigabyte in each direction
POOL = 64  # batches whose examples are sorted by length together
Data = Any  # a `tf.data.Dataset` of batches on TensorFlow, else `backend.Batches`
# of the machine whose batches are made: number of the first replica on it, replicas on it, replicas in all
_REPLICAS: ContextVar[tuple[int, int, int]] = ContextVar("_REPLICAS", default=(0, 1, 1))


def dataset(
    examples: Callable[[int], Iterable] | Sequence,
    collate: Callable[[list, np.random.Generator], Any],
    batch_size: int,
    length: Callable[[Any], int] = len,
    seed: int | None = None,
    repeat: bool = False,
    start: int = 0,
) -> Data:
    """Batches bucketed by length, to keep padding small.

    Examples are drawn into a pool of 64 batches, shuffled, sorted by length and cut into batches, whose order is
    shuffled again. The same seed gives the same batches; the nth does not depend on whether others were collated.

    Args:
        examples: the examples, or a function from the number of the epoch to them.
        collate: a list of examples and a random generator -> the input of `model.fit`: nested arrays whose first two
            axes may vary from batch to batch.
        batch_size: examples per batch, over all replicas; with `repeat` all batches have this size.
        length: of an example, to sort by.
        seed: shuffle with this seed; None: keep the order of the examples.
        repeat: endless, epoch after epoch.
        start: batches left out at the beginning.

    Raises:
        ValueError: there are no examples, or with `repeat` fewer than a batch in the first epoch.

    >>> data = dataset([[1], [1, 2], [3]], lambda rows, rng: np.array([len(row) for row in rows]), 2)
    >>> [batch.tolist() for batch in data.as_numpy_iterator()]
    [[1, 2], [1]]
    """
    epoch = examples if callable(examples) else lambda number: examples
    batches = partial(_batches, epoch, batch_size, length, seed, repeat)
    size: Any = None if repeat else lambda: sum(1 for _ in batches())
    if not repeat and not callable(examples):
        size = -(-len(examples) // batch_size) - start
    return collated(batches, collate, 0 if seed is None else seed, start, size)


def _batches(
    epoch: Callable[[int], Iterable], batch_size: int, length: Callable[[Any], int], seed: int | None, repeat: bool
) -> Iterator[list]:
    """The batches of `dataset`, before they are collated."""
    pool: list = []
    for number in itertools.count() if repeat else range(1):
        rng = None if seed is None else np.random.default_rng((seed, number))
        count = 0
        for example in epoch(number):
            count += 1
            pool.append(example)
            if len(pool) == POOL * batch_size:
                batches, pool = _cut(pool, batch_size, length, rng, False)
                yield from batches
        if not count:
            raise ValueError("no examples to train or evaluate on")
        if repeat and number == 0 and count < batch_size:  # later epochs may have fewer pairs by chance
            raise ValueError(f"{count} examples are fewer than one batch of {batch_size}: choose a smaller batch size")
        batches, pool = _cut(pool, batch_size, length, rng, not repeat)
        yield from batches


def _cut(
    pool: list, batch_size: int, length: Callable[[Any], int], rng: np.random.Generator | None, last: bool
) -> tuple[list[list], list]:
    """The pool's batches, and what is left over unless this is the last pool."""
    if rng is not None:
        pool = [pool[i] for i in rng.permutation(len(pool))]
    full = len(pool) - (0 if last else len(pool) % batch_size)
    pool, rest = pool[:full], pool[full:]
    if rng is not None:
        pool.sort(key=length)
    batches = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    if rng is not None:
        batches = [batches[i] for i in rng.permutation(len(batches))]
    return batches, rest


def collated(
    batches: Callable[[], Iterable[Any]],
    collate: Callable[..., Any],
    seed: int = 0,
    start: int = 0,
    cardinality: int | Callable[[], int] | None = None,
) -> Data:
    """Batches of examples, each collated when it is needed.

    Args:
        batches: gives the batches from the first on, the same ones whenever it is called.
        collate: as in `dataset`; within `distributed` it is also given the slice of the batch that it shall return.
        seed: of the generators that `collate` is given, one for each batch.
        start: batches left out at the beginning, which are not collated.
        cardinality: number of batches after these, or a function that counts all; None: endless.

    Raises:
        ValueError: there is no batch.

    >>> data = collated(lambda: [[1], [2, 3]], lambda rows, rng: np.array(rows), start=1, cardinality=1)
    >>> [batch.tolist() for batch in data.as_numpy_iterator()]
    [[2, 3]]
    """
    first_replica, local_replicas, replicas = _REPLICAS.get()

    def arrays(first: int) -> Iterator:
        for index, batch in enumerate(itertools.islice(batches(), first, None), first):
            rng = np.random.default_rng((seed, 1, index))
            if replicas == 1:
                yield collate(batch, rng)
                continue
            rows = len(batch) // replicas
            part = collate(batch, rng, slice(first_replica * rows, (first_replica + local_replicas) * rows))
            for number in range(local_replicas):
                span = slice(number * rows, (number + 1) * rows)
                yield keras.tree.map_structure(lambda array, span=span: array[span], part)

    return backend.batches(arrays, start, cardinality, local_replicas)


def distributed(make: Callable[[], Data], strategy: Any) -> Any:
    """The batches of `make`, of which each of several workers collates its own rows only.

    Left to itself, tf.data lets each worker make whole batches, and takes its rows of them.

    Args:
        make: gives endless batches by `sentences`, `running_text` or `segments`, whose rows all replicas share equally.
        strategy: of the training.
    """
    if not several_workers(strategy):
        return make()

    def batches_of_worker(context: Any) -> Data:
        replicas = context.num_replicas_in_sync
        local_replicas = replicas // context.num_input_pipelines
        token = _REPLICAS.set((context.input_pipeline_id * local_replicas, local_replicas, replicas))
        try:
            return make()
        finally:
            _REPLICAS.reset(token)

    return strategy.distribute_datasets_from_function(batches_of_worker)


def sentences(
    features: Features,
    vocabulary: Vocabulary,
    documents: Callable[[int], Iterable[list[str]]],
    batch_size: int,
    sampled: bool = False,
    seed: int = 0,
    start: int = 0,
) -> Data:
    """Endless batches of whole sentences, to train `elmo.language_model` on.

    Args:
        features, vocabulary: text to ids, and the words that are predicted.
        documents: a function from the number of the epoch to documents, lists of sentences, which are read lazily.
        batch_size: sentences per batch.
        sampled: for a model with `samples`.
        seed, start: of their order, and batches left out at the beginning.
    """

    def epoch(number: int) -> Iterator[Row]:
        return (row for document in documents(number) for row in features.encode(document) if len(row))

    collate = partial(_language_model, features, vocabulary, sampled)
    return dataset(epoch, collate, batch_size, seed=seed, repeat=True, start=start)


def _language_model(features, vocabulary: Vocabulary, sampled: bool, rows: Sequence, rng: Any, part: slice = WHOLE):
    """A batch of sentences, or of BPTT segments, for a biLM."""
    make = stream_batch if isinstance(rows[0], BpttSegment) else language_model_batch
    batch = make(features, vocabulary, rows, part)
    return for_sampling(*batch) if sampled else batch


def running_text(
    features: Features,
    vocabulary: Vocabulary,
    documents: Callable[[int], Iterable[list[str]]],
    streams: int,
    steps: int,
    sampled: bool = False,
    start: int = 0,
    epochs: int | None = None,
) -> Data:
    """Batches of running text in the order of the documents, to train `elmo.language_model(..., streams=streams)` on.

    Args:
        features, vocabulary, documents, sampled, start: as in `sentences`; nothing is cut.
        streams: rows of a batch, over all replicas; row k continues row k of the previous batch.
        steps: words per row, 20 in the published model.
        epochs: passes over the text, to its last word; None: endless.

    >>> from keras_ctxrep.text.features import CharacterFeatures
    >>> vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "a", "b"])
    >>> data = running_text(CharacterFeatures(), vocabulary, lambda epoch: [["a b b"]], streams=2, steps=3)
    >>> for inputs, targets, weights in data.take(2).as_numpy_iterator():
    ...     print(targets["forward_logits"][0].tolist())
    [3, 4, 4]
    [1, 3, 4]
    """
    collate = partial(_language_model, features, vocabulary, sampled)
    make = partial(bptt_segments_of_text, streams=streams, steps=steps)
    return _segments(lambda: make(_passes(documents, epochs)), collate, start, epochs)


def _passes(documents: Callable[[int], Iterable[list[str]]], epochs: int | None) -> Iterator[list[str]]:
    """The documents of some passes over a text, or endless ones."""
    for number in itertools.count() if epochs is None else range(epochs):
        words = False
        for document in documents(number):
            words = words or any(map(words_of, document))
            yield document
        if not words:
            raise ValueError("no text to train or evaluate on")


def _segments(batches, collate: Callable[..., Any], start: int, epochs: int | None) -> Data:
    count = None if epochs is None else sum(1 for _ in batches()) - start
    return collated(batches, collate, start=start, cardinality=count)


def running_tokens(
    features: TokenFeatures,
    documents: Callable[[int], Iterable[list[str]]],
    streams: int,
    steps: int,
    sampled: bool = False,
    start: int = 0,
    epochs: int | None = None,
) -> Data:
    """Batches of running text in the order of the documents, to train `lm.language_model(..., streams=streams)` on.

    Args:
        features: text to ids.
        documents, streams, sampled, start, epochs: as in `running_text`.
        steps: tokens per row.

    >>> features = TokenFeatures("words", ["<S>", "</S>", "<UNK>", "a", "b"])
    >>> data = running_tokens(features, lambda epoch: [["a b b", "a"]], streams=1, steps=4)
    >>> for inputs, targets, weights in data.take(2).as_numpy_iterator():
    ...     print(inputs["token_ids"][0].tolist(), targets["logits"][0].tolist())
    [1, 3, 4, 4] [3, 4, 4, 1]
    [1, 3, 1, 3] [3, 1, 3, 4]
    """

    def collate(batch, rng, part=WHOLE):
        return token_batch(batch, part, sampled)

    make = partial(token_segments, features, streams=streams, steps=steps)
    return _segments(lambda: make(_passes(documents, epochs)), collate, start, epochs)


def token_segments(
    features: TokenFeatures, documents: Iterable[list[str]], streams: int, steps: int
) -> Iterator[list[BpttSegment]]:
    """The BPTT segments of ids of raw text, of which a stream takes up to 100 lines at a time; no empty ones.

    >>> features = TokenFeatures("characters", ["<S>", "</S>", "<UNK>", "a", "b"])
    >>> [segment.words for segment in next(token_segments(features, [["ab"], ["b"]], streams=2, steps=2))]
    [[1, 3], [1, 4]]
    """
    ids = (filter(None, features.ids([*map(line_of, document)])) for document in pieces(documents))
    return bptt_segments(ids, streams, steps, (features.end, features.end))


def line_of(sentence: str | Sequence[str]) -> str:
    """A text, or the words of one with spaces between them."""
    return sentence if isinstance(sentence, str) else " ".join(sentence)


def bptt_segments_of_text(documents: Iterable[list[str]], streams: int, steps: int) -> Iterator[list[BpttSegment]]:
    """The BPTT segments (`bptt_segments`) of raw text, of which a stream takes up to 100 sentences at a time.

    Args:
        documents: sentences, words split by spaces.
        streams: B, rows of a batch.
        steps: T, words of a segment.

    >>> [segment.words for segment in next(bptt_segments_of_text([["a b"], ["c"]], streams=2, steps=2))]
    [['<S>', 'a'], ['<S>', 'c']]
    """
    return bptt_segments((filter(None, map(words_of, document)) for document in pieces(documents)), streams, steps)


def whole_sentences(
    features: Features, vocabulary: Vocabulary, documents: Iterable[list[str]], batch_size: int
) -> Data:
    """One pass over sentences, uncut, to evaluate `elmo.language_model` by its full softmax.

    Args:
        features: of the model's inputs.
        vocabulary: of its softmax.
        documents: sentences, words split by spaces.
        batch_size: sentences per batch, at most.
    """
    texts = (sentence for document in documents for sentence in document)
    batches = [[row for _, row in batch] for batch in bucketed_by_length(texts, batch_size, len(vocabulary))]
    collate = partial(_language_model, features, vocabulary, False)
    return collated(lambda: batches, collate, cardinality=len(batches))


def bucketed_by_length(sentences: Iterable[str], batch_size: int, logits: int = 1) -> Iterator[list[tuple[int, Row]]]:
    """Batches of (number of the sentence, its words), uncut, bucketed by length; those of long sentences are smaller.

    64 batches are sorted together; sentences without a word are left out.

    Args:
        sentences: any text.
        batch_size: sentences per batch, at most.
        logits: numbers computed for each word: a batch is made smaller to stay within half a gigabyte of them.

    >>> [[number for number, _ in batch] for batch in bucketed_by_length(["one two", "", "three", "four"], 2, 100)]
    [[2, 3], [0]]
    """
    room = min(40 * batch_size, LOGITS // logits)
    rows = (Row(words_of(sentence)) for sentence in sentences)
    numbered = ((number, row) for number, row in enumerate(rows) if len(row))
    while pool := list(itertools.islice(numbered, POOL * batch_size)):
        pool.sort(key=lambda pair: len(pair[1]))
        batch: list[tuple[int, Row]] = []
        for number, row in pool:
            if len(batch) == batch_size or (batch and len(row) * (len(batch) + 1) > room):
                yield batch
                batch = []
            batch.append((number, row))
        yield batch


def words_of(sentence: str | Sequence[str]) -> list[str]:
    """The words of a text, or those that are given."""
    return split_words(sentence) if isinstance(sentence, str) else [*sentence]


def segments(
    features: WordPieceFeatures,
    examples: Callable[[int], Iterable[tuple[Row, bool] | Masked]] | Sequence[Masked],
    batch_size: int,
    masking: Masking | None = None,
    next_sentence: bool = True,
    seed: int | None = None,
    start: int = 0,
) -> Data:
    """Batches of segment pairs, to train or evaluate `bert.pretrainer` on.

    Args:
        features: gives padding.
        examples: pairs, or a function from the number of the epoch to them; masked already unless `masking` is given.
        batch_size: pairs per batch.
        masking: gives pairs new masks in every pass.
        next_sentence: whether the model predicts it.
        seed: endless batches, shuffled with this seed; None: one pass in the order of the examples.
        start: batches left out at the beginning.
    """

    def collate(pairs, rng, part=WHOLE):
        masked = pairs if masking is None else [masking(pair, rng) for pair in pairs]
        inputs, targets, weights = pretrainer_batch(features, masked, part)
        if not next_sentence:
            del targets["nsp_logits"], weights["nsp_logits"]
        return inputs, targets, weights

    # of pairs that are masked or not, the first field has the tokens
    return dataset(examples, collate, batch_size, lambda pair: len(pair[0]), seed, seed is not None, start)
