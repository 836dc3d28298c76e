import threading
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.text.features import CharacterFeatures, WordPieceFeatures
from keras_ctxrep.text.pretraining import Masking, Vocabulary
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
from keras_ctxrep.training import pipeline


def collate(rows, rng):
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows]), rng.integers(1 << 30, size=len(rows))


def taken(data, count):
    return [tuple(array.tolist() for array in batch) for batch in data.take(count).as_numpy_iterator()]


ROWS = [[i + 1] * (1 + i % 7) for i in range(100)]


def test_one_pass_gives_every_example_once_and_pads_little():
    batches = taken(pipeline.dataset(ROWS, collate, 8, seed=1), 100)
    seen = sorted(row[0] for batch, _ in batches for row in batch)
    assert seen == list(range(1, 101))
    real = sum(value > 0 for batch, _ in batches for row in batch for value in row)
    assert real / sum(len(row) for batch, _ in batches for row in batch) > 0.9


@pytest.mark.parametrize("kind", ["sentences", "segments"])
def test_padding_is_under_a_tenth_of_the_tokens(kind, rng):
    """Lengths as of English sentences (24 words, up to 128) and of BERT's pairs (one in ten is shorter)."""
    if kind == "sentences":
        lengths = np.clip(rng.lognormal(np.log(20), 0.6, 20_000), 1, 128).astype(int)
    else:
        lengths = np.where(rng.random(20_000) < 0.1, rng.integers(5, 129, 20_000), rng.integers(110, 129, 20_000))
    data = pipeline.dataset(lengths.tolist(), lambda rows, rng: np.array(rows), 32, lambda row: row, 1, repeat=True)
    batches = list(data.take(600).as_numpy_iterator())
    real, size = sum(batch.sum() for batch in batches), sum(len(batch) * batch.max() for batch in batches)
    assert 1 - real / size < 0.1


def test_without_a_seed_the_order_is_kept():
    batches = taken(pipeline.dataset(ROWS, collate, 8), 100)
    assert [row[0] for batch, _ in batches for row in batch] == list(range(1, 101))
    assert len(batches) == 13


def test_endless_batches_are_full_and_every_epoch_has_every_example():
    batches = taken(pipeline.dataset(ROWS, collate, 8, seed=1, repeat=True), 25)  # two epochs
    assert {len(batch) for batch, _ in batches} == {8}
    counts = np.bincount([row[0] for batch, _ in batches for row in batch], minlength=101)[1:]
    assert set(counts) == {2}


def test_skipping_gives_the_batches_of_the_undisturbed_run():
    data = pipeline.dataset(ROWS, collate, 8, seed=3, repeat=True)
    assert taken(data.skip(9), 5) == taken(data, 14)[9:]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("repeat", [False, True])
def test_a_later_start_gives_the_batches_of_the_undisturbed_run(seed, repeat):
    whole = taken(pipeline.dataset(ROWS, collate, 8, seed=seed, repeat=repeat), 20)
    data = pipeline.dataset(ROWS, collate, 8, seed=seed, repeat=repeat, start=9)
    assert taken(data, 11) == whole[9:]
    assert data.cardinality() == (tf.data.INFINITE_CARDINALITY if repeat else 4)


def test_batches_that_are_left_out_are_not_collated():
    collated = []

    def watched(rows, rng):
        collated.append(rows)
        return collate(rows, rng)

    taken(pipeline.dataset(ROWS, watched, 8, start=9), 20)
    assert [rows[0] for rows in collated] == [ROWS[i] for i in (0, 72, 80, 88, 96)]  # the first one for the shapes


def test_nothing_is_tuned_while_it_runs():
    """An iterator's end waits for the tuning thread, which may sleep for a minute."""
    assert pipeline.dataset(ROWS, collate, 8).options().autotune.enabled is False


def test_threads_do_not_share_an_iterator():
    """One that was begun here and went on in a thread of tf.data was seen to stop, in a long pretraining run."""
    iterators = []

    def batches():
        threads = set()
        iterators.append(threads)
        for row in ROWS:
            threads.add(threading.get_ident())
            yield [row]

    taken(pipeline.collated(batches, collate), 20)
    assert len(iterators) == 2  # for the shapes, and for the batches
    here = threading.get_ident()
    assert iterators[0] == {here} and here not in iterators[1]


def test_a_later_start_in_a_later_epoch():
    data = pipeline.dataset(lambda epoch: [[epoch + 1]] * 4, collate, 4, repeat=True, start=5)
    assert [batch[0][0] for batch, _ in taken(data, 3)] == [6, 7, 8]


def test_collated():
    def batches():
        return iter([ROWS[i : i + 1 + i] for i in range(6)])

    whole = taken(pipeline.collated(batches, collate, seed=5, cardinality=6), 10)
    assert [len(rows) for rows, _ in whole] == [1, 2, 3, 4, 5, 6]
    for start in (0, 2, 5):
        data = pipeline.collated(batches, collate, seed=5, start=start, cardinality=6 - start)
        assert taken(data, 10) == taken(data, 10) == whole[start:]
    assert taken(pipeline.collated(batches, collate, seed=6, cardinality=6), 10) != whole
    with pytest.raises(ValueError, match="no text to train or evaluate on"):
        pipeline.collated(list, collate)


VOCABULARY = Vocabulary(["<S>", "</S>", "<UNK>", "a", "b", "c"])
FEATURES = CharacterFeatures(max_length=3, max_characters=5)


def test_running_text_without_a_word():
    documents = [["\u200b", "\u200b\u200b"], ["\u200b"]]
    for epochs in (None, 1):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="no text to train or evaluate on"):
            data = pipeline.running_text(FEATURES, VOCABULARY, lambda epoch: documents, 2, 3, epochs=epochs)
            next(iter(data))


def text(epoch):
    """Another order of the documents in the second epoch, with a sentence without a word."""
    documents = [["a b", "c"], ["\u200b", "b b a c"]]
    return documents[:: -1 if epoch % 2 else 1]


def targets(data, count, direction="forward"):
    return [batch[f"{direction}_logits"].tolist() for _, batch, _ in data.take(count).as_numpy_iterator()]


def test_running_text_goes_on_epoch_after_epoch():
    data = pipeline.running_text(FEATURES, VOCABULARY, text, streams=1, steps=4)
    # a b </S>, c </S>, b b a c </S>; then the documents in the other order; nothing is cut
    assert targets(data, 4) == [[[3, 4, 1, 5]], [[1, 4, 4, 3]], [[5, 1, 4, 4]], [[3, 5, 1, 3]]]
    assert targets(data, 2, "backward") == [[[4, 3, 0, 5]], [[0, 5, 3, 4]]]
    later = pipeline.running_text(FEATURES, VOCABULARY, text, streams=1, steps=4, start=2)
    assert targets(later, 2) == [[[5, 1, 4, 4]], [[3, 5, 1, 3]]]


def test_one_pass_over_running_text():
    data = pipeline.running_text(FEATURES, VOCABULARY, text, streams=1, steps=4, epochs=1)
    assert data.cardinality() == 3
    assert targets(data, 9) == [[[3, 4, 1, 5]], [[1, 4, 4, 3]], [[5, 1]]]


def test_sentences_are_cut_and_shuffled():
    data = pipeline.sentences(FEATURES, VOCABULARY, text, batch_size=3, seed=1)
    batches = [sorted(map(tuple, rows)) for rows in targets(data, 2)]
    assert batches == [[(3, 4, 1, 0), (4, 4, 3, 1), (5, 1, 0, 0)]] * 2  # the longest without its last word
    assert targets(pipeline.sentences(FEATURES, VOCABULARY, text, 3, seed=1, start=3), 2) == targets(data, 5)[3:]


def test_whole_sentences_are_not_cut():
    data = pipeline.whole_sentences(FEATURES, VOCABULARY, text(0), batch_size=2)
    assert data.cardinality() == 2
    assert targets(data, 5) == [[[5, 1, 0], [3, 4, 1]], [[4, 4, 3, 5, 1]]]


@pytest.mark.parametrize("make", [pipeline.sentences, pipeline.running_text])
def test_text_for_a_sampled_softmax(make):
    steps = {"steps": 4} if make is pipeline.running_text else {}
    given, expected = (make(FEATURES, VOCABULARY, text, 2, sampled=sampled, **steps) for sampled in (True, False))
    inputs, labels, _ = next(given.as_numpy_iterator())
    _, words, _ = next(expected.as_numpy_iterator())
    for direction in ("forward", "backward"):
        assert np.array_equal(inputs[f"{direction}_targets"], words[f"{direction}_logits"])
        assert not labels[f"{direction}_logits"].any()


def test_long_sentences_come_in_smaller_batches():
    sentences = ["x " * size for size in (100, 1, 0, 30, 2, 45)]
    batches = [[(number, len(row)) for number, row in batch] for batch in pipeline.bucketed_by_length(sentences, 2)]
    assert batches == [[(1, 1), (4, 2)], [(3, 30)], [(5, 45)], [(0, 100)]]


@pytest.mark.parametrize("kind", ["sentences", "running_text", "segments"])
def test_the_rows_of_each_worker_are_those_of_the_whole_batch(kind):
    """Two workers of two replicas each: their elements in turn are the batch, padded and weighted as a whole."""
    if kind == "segments":
        features = WordPieceFeatures(WordPiece([*SPECIAL_PIECES, "a", "b"]), 16)
        rows = features.encode([" ".join("ab"[i % 2] for i in range(1 + n % 9)) for n in range(24)])
        pairs = [(row, bool(n % 2)) for n, row in enumerate(rows)]
        make = partial(pipeline.segments, features, lambda _: pairs, 8, Masking(features.wordpiece), seed=0)
    elif kind == "sentences":
        make = partial(pipeline.sentences, FEATURES, VOCABULARY, lambda _: [["a b", "c", "b", "a c b"]] * 3, 8)
    else:
        make = partial(pipeline.running_text, FEATURES, VOCABULARY, lambda _: [["a b", "c"], ["b b a c"]] * 5, 8, 4)
    whole = list(make(start=1).take(3).as_numpy_iterator())
    parts = []
    for worker in range(2):
        token = pipeline._REPLICAS.set((2 * worker, 2, 4))
        parts.append(list(make(start=1).take(6).as_numpy_iterator()))
        pipeline._REPLICAS.reset(token)
    for number, batch in enumerate(whole):
        replicas = [part[2 * number + index] for part in parts for index in range(2)]
        joined = tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *replicas)
        tf.nest.map_structure(np.testing.assert_array_equal, joined, batch)


def test_seeds():
    runs = [taken(pipeline.dataset(ROWS, collate, 8, seed=seed, repeat=True), 13) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_function_of_the_epoch():
    data = pipeline.dataset(lambda epoch: [[epoch + 1]] * 4, collate, 4, repeat=True)
    assert [batch[0][0] for batch, _ in taken(data, 3)] == [1, 2, 3]


def test_too_few_examples():
    with pytest.raises(ValueError, match="no examples"):
        pipeline.dataset([], collate, 4)
    with pytest.raises(ValueError, match="3 examples are fewer than one batch of 4"):
        pipeline.dataset([[1]] * 3, collate, 4, repeat=True)


def test_later_epochs_may_have_fewer_examples_than_a_batch():
    """As of next-sentence pairs, whose number is random: what is left over is completed by the next epoch."""
    data = pipeline.dataset(lambda epoch: [[epoch + 1]] * (4 if epoch == 0 else 3), collate, 4, seed=0, repeat=True)
    batches = [sorted(row[0] for row in rows) for rows, _ in taken(data, 4)]
    assert batches == [[1, 1, 1, 1], [2, 2, 2, 3], [3, 3, 4, 4], [4, 5, 5, 5]]
