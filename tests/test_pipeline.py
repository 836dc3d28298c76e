import numpy as np
import pytest

from keras_ctxrep import pipeline


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
