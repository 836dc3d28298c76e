"""Outputs of a frozen encoder: stored once for each row, and read as the encoder would give them."""

import numpy as np
import pytest

from keras_ctxrep.models import elmo, frozen, heads
from keras_ctxrep.text.features import CharacterFeatures
from keras_ctxrep.training.frozen import FrozenOutputs
from tests import tiny

FEATURES = CharacterFeatures(8, max_characters=6)
TEXTS = ["one two three", "four", "five six seven", "one two three"]


@pytest.fixture(scope="module")
def parts():
    encoder = elmo.encoder(tiny.config("elmo"))
    encoder.trainable = False
    return frozen.split(heads.tag(encoder, classes=3, mix=True))


class Counting(FrozenOutputs):
    """With the number of rows that the encoder computed."""

    rows = 0

    def __init__(self, parts, folder, **options):
        super().__init__(parts, FEATURES.collate, folder, **options)
        run = self._run

        def counting(inputs):
            self.rows += len(inputs["mask"])
            return run(inputs)

        self._run = counting


@pytest.fixture
def outputs(parts, tmp_path):
    return Counting(parts, tmp_path / "new")


def test_a_batch_has_what_the_encoder_gives_for_it(outputs, parts, tmp_path):
    for texts in (TEXTS[:2], TEXTS, TEXTS[1:2]):  # none of the rows is known, then some, then all
        rows = FEATURES.encode(texts)
        inputs, batch = FEATURES.collate(rows), outputs.collate(rows)
        expected = parts.frozen(inputs) | {"mask": inputs["mask"]}
        assert batch.keys() == expected.keys()  # characters are read by the encoder alone
        for name, array in batch.items():
            assert array.shape == expected[name].shape and array.dtype == expected[name].dtype
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6)
    assert outputs.rows == 3  # the distinct ones
    assert not [*tmp_path.iterdir()]  # the file has no name


def test_stored_rows_are_not_encoded_again(outputs):
    asked = []

    def encode(examples):
        for example in examples:
            asked.append(example)
            yield FEATURES.encode([example]) if example else [], [len(example)]

    first = [*outputs.encoded(encode, ["one two", "", "three"])]
    assert asked == ["one two", "", "three"]
    outputs.collate(first[0][0])
    again = [*outputs.encoded(encode, ["three", "one two", ""])]
    assert asked == ["one two", "", "three", "three"]  # no batch has had it
    assert [(len(rows), targets) for rows, targets in again] == [(1, [5]), (1, [7]), (0, [0])]
    assert len(again[1][0][0]) == 2  # words
    for name, array in outputs.collate(again[1][0]).items():
        np.testing.assert_array_equal(array, outputs.collate(first[0][0])[name])


def test_what_does_not_fit_is_computed_every_time(parts, tmp_path):
    rows = FEATURES.encode(TEXTS)
    whole = Counting(parts, tmp_path)
    expected = whole.collate(rows)
    small = Counting(parts, tmp_path, limit=whole._size // 2)
    with pytest.warns(
        UserWarning, match="outputs of the frozen encoder: 0 MB are used, half of what was free; those of"
    ):
        small.collate(rows)
    again = small.collate(rows)
    assert small.rows == 5 and small._size <= whole._size // 2
    for name, array in expected.items():
        np.testing.assert_array_equal(again[name], array)


def test_an_evaluation_computes_a_batch_once(outputs, parts):
    inputs = FEATURES(TEXTS)
    answer = outputs.answering(lambda batch: parts.trained({name: batch[name] for name in parts.trained.input}))
    first, second = answer(inputs), answer(dict(inputs))
    assert outputs.rows == len(TEXTS)
    np.testing.assert_array_equal(first["logits"], second["logits"])
    shorter = {name: array[:2] for name, array in inputs.items()}
    np.testing.assert_allclose(answer(shorter)["logits"], first["logits"][:2], rtol=0, atol=1e-6)
    assert outputs.rows == len(TEXTS) + 2
