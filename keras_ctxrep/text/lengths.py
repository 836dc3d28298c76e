"""To how many positions the rows of a batch are padded."""

from collections.abc import Iterable

rounded = False  #: whether the lengths are few, since each one is compiled; set by `keras_ctxrep.backend`


def longest(sizes: Iterable[int], most: int | None = None) -> int:
    """The largest size; where each one is compiled, rounded up to 8, 12, 16, 24, 32, 48, 64, 96 and so on.

    Args:
        sizes: positions of the rows; without one it is 1.
        most: that a row may have; None: any number.

    >>> longest([3, 20])
    20
    """
    size = max(1, max(sizes, default=1))
    if not rounded:
        return size
    power = 1 << max(3, (size - 1).bit_length())  # the next power of 2, of which three quarters may do
    up = power * 3 // 4 if 8 < size <= power * 3 // 4 else power
    return up if most is None else max(size, min(up, most))
