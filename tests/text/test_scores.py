"""Task metrics."""

import numpy as np
import pytest

from keras_ctxrep.text.scores import accuracy, standard_error


def test_accuracy():
    assert accuracy(["a", "b", "a", "c"], ["a", "b", "b", "c"]) == 0.75
    assert accuracy(np.array([1, 2]), [1, 2]) == 1.0 and isinstance(accuracy([1], [2]), float)


@pytest.mark.parametrize(("expected", "predicted"), [(["a"], []), ([], []), (["a"], ["a", "b"])])
def test_accuracy_of_nothing_or_different_lengths(expected, predicted):
    with pytest.raises(ValueError, match=f"{len(expected)} expected with {len(predicted)} predicted"):
        accuracy(expected, predicted)


def test_standard_error(rng):
    shares = (rng.random((20_000, 50)) < 0.3).mean(1)
    assert standard_error(0.3, 50) == pytest.approx(shares.std(), rel=0.03)
    assert standard_error(1.0, 10) == 0
