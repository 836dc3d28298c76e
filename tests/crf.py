"""The reference of the CRF layer: its best labels in NumPy."""

import numpy as np


def viterbi(logits: np.ndarray, transitions: np.ndarray, begin: np.ndarray, end: np.ndarray) -> list[int]:
    """The best labels of one sequence under a linear-chain CRF.

    Lafferty et al. 2001; the recursion of Rabiner 1989, section III.B, with sums of scores instead of products.

    `transitions` (C, C) has the score of a label, the row, being followed by another.
    """
    if not len(logits):
        return []
    score, back = begin + logits[0], []
    for step in logits[1:]:
        paths = score[:, None] + transitions
        back.append(paths.argmax(0))
        score = paths.max(0) + step
    best = [int((score + end).argmax())]
    for before in reversed(back):
        best.append(int(before[best[-1]]))
    return best[::-1]
