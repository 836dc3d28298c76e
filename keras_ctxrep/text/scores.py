"""Task metrics as functions over predictions."""

from collections.abc import Sequence

import numpy as np


def accuracy(expected: Sequence, predicted: Sequence) -> float:
    """Share of positions where both agree; of two models' labels it is their agreement.

    Raises:
        ValueError: the lengths differ or there is nothing to compare.

    >>> accuracy(["a", "b"], ["a", "c"])
    0.5
    """
    if len(expected) != len(predicted) or not len(expected):
        raise ValueError(f"cannot compare {len(expected)} expected with {len(predicted)} predicted labels")
    return float(np.mean([one == two for one, two in zip(expected, predicted, strict=True)]))


def standard_error(share: float, count: int) -> float:
    """Standard error of a share measured on `count` examples."""
    return float(np.sqrt(share * (1 - share) / count))
