"""The learning-rate schedule: a linear warm-up, then a decay."""

import math
from collections.abc import Callable

__all__ = ["DECAYS", "learning_rate"]

# name -> function from (completed fraction of the run, fraction of the warm-up) to the factor of the peak. The inverse
# square root is that of Vaswani et al. 2017, eq. 3, https://arxiv.org/abs/1706.03762
DECAYS: dict[str, Callable[[float, float], float]] = {
    "linear": lambda completed, warmup: (1 - completed) / (1 - warmup),
    "cosine": lambda completed, warmup: (1 + math.cos(math.pi * (completed - warmup) / (1 - warmup))) / 2,
    "inverse_sqrt": lambda completed, warmup: math.sqrt(max(warmup, 1e-3) / completed),
    "none": lambda completed, warmup: 1.0,
}


def learning_rate(completed: float, peak: float, warmup: float = 0.1, decay: str = "linear") -> float:
    """The learning rate at a point of a run, never below a thousandth of the peak.

    Args:
        completed: fraction of the run, 0 to 1, of its steps or of its time.
        peak: the largest rate.
        warmup: fraction of the run until the peak, to which the rate rises linearly.
        decay: a name in `DECAYS`, how the rate falls after the peak.

    >>> [learning_rate(completed, peak=1.0, warmup=0.2) for completed in (0.1, 0.2, 0.6)]
    [0.5, 1.0, 0.5]
    """
    completed = max(completed, 1e-3)
    factor = completed / warmup if completed < warmup else DECAYS[decay](completed, warmup)
    return peak * max(factor, 1e-3)
