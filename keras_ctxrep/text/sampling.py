"""Sampling of the next token from a language model's logits: the one definition, which graphs are tested against.

A token is the argmax of its log-probability plus Gumbel noise (Gumbel 1954; Maddison et al. 2014,
https://arxiv.org/abs/1411.0030), which is a draw from the softmax. The noise is a function of the seed, the number of
the step and the id of the token alone: a counter-based generator, Threefry-2x32 with 20 rounds (Salmon et al. 2011,
https://doi.org/10.1145/2063384.2063405), of 32-bit additions, rotations and exclusive ors, which is the same in NumPy,
in a graph and in JavaScript. So the same seed gives the same text in every engine, on every machine and in any batch.

All numbers are float64. Engines differ in their logits by about 1e-6 in float32; a token differs where the two largest
sums lie closer than that, about once in a million tokens, or where a filter's bound does. Equal sums: the lower id.
"""

import numpy as np

__all__ = ["filtered", "gumbel", "sample", "threefry"]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: tuple[int, int], first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 with 20 rounds: 64 random bits of each counter.

    Args:
        key: two numbers of 32 bits.
        first, second: both halves of the counters, uint32.

    Returns: two uint32 arrays.

    >>> [f"{int(x):08x}" for x in threefry((0x13198A2E, 0x03707344), np.uint32(0x243F6A88), np.uint32(0x85A308D3))]
    ['c4923a9c', '483df7a0']
    """
    keys = [np.uint32(key[0]), np.uint32(key[1]), np.uint32(key[0] ^ key[1] ^ 0x1BD11BDA)]
    a, b = np.atleast_1d(np.asarray(first, np.uint32)), np.atleast_1d(np.asarray(second, np.uint32))
    shape = np.broadcast_shapes(np.shape(first), np.shape(second))
    a, b = a + keys[0], b + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            a = a + b
            b = (b << np.uint32(distance) | b >> np.uint32(32 - distance)) ^ a
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a.reshape(shape), b.reshape(shape)


def gumbel(seed: int, step: int, ids: np.ndarray) -> np.ndarray:
    """The noise of some tokens in a step: -log(-log(u)), where u = (bits + 1/2) / 2^32.

    Args:
        seed: of the text, a whole number, of which 64 bits count: the key.
        step: number of the token that is drawn, from 0 on: the second half of the counter.
        ids: of tokens: the first half.

    Returns: float64, as `ids`.

    >>> gumbel(0, 0, np.arange(2)).round(6).tolist()
    [0.137906, -0.145133]
    """
    bits, _ = threefry(
        (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF), np.asarray(ids).astype(np.uint32), np.asarray(step)
    )
    return -np.log(-np.log((bits + 0.5) / 2.0**32))


def filtered(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> np.ndarray:
    """The log-probabilities, up to a constant, of the tokens that may be drawn; -inf of the others.

    In this order, each over what the ones before it leave:

    * `temperature` divides the logits; 0 leaves the likeliest token alone, of equal ones the lowest id.
    * `top_k` leaves the k likeliest tokens (Fan et al. 2018), and those that are as likely as the last of them.
    * `top_p` leaves the smallest set of likeliest tokens whose probabilities sum to p (Holtzman et al. 2020), of equal
      ones the lower ids first.
    * `min_p` leaves tokens of at least p times the probability of the likeliest one (Nguyen et al. 2024).

    Args:
        logits: (V,); -inf of a token that is never drawn.

    Returns: float64 (V,).

    >>> filtered(np.log([0.5, 0.3, 0.15, 0.05]), top_p=0.7).round(2).tolist()
    [-0.69, -1.2, -inf, -inf]
    """
    logits = np.asarray(logits, np.float64)
    if temperature == 0:
        return np.where(np.arange(len(logits)) == logits.argmax(), 0.0, -np.inf)
    scores = logits / temperature
    if top_k is not None and top_k < len(scores):
        scores = np.where(scores >= np.partition(scores, -top_k)[-top_k], scores, -np.inf)
    if top_p is not None and top_p < 1:
        order = np.argsort(-scores, kind="stable")
        likely = np.exp(scores[order] - scores[order[0]])
        likely /= likely.sum()
        before = np.cumsum(likely) - likely  # probability of all that are likelier
        scores = scores.copy()
        scores[order[before >= top_p]] = -np.inf
    if min_p is not None and min_p > 0:
        scores = np.where(scores >= scores.max() + np.log(min_p), scores, -np.inf)
    return scores


def sample(
    logits: np.ndarray,
    seed: int,
    step: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> int:
    """Draws a token.

    Args:
        logits: (V,), of a language model.
        seed, step: as in `gumbel`.
        temperature, top_k, top_p, min_p: as in `filtered`.

    >>> [sample(np.log([0.5, 0.3, 0.2]), seed=1, step=step) for step in range(8)]
    [0, 0, 0, 0, 0, 1, 1, 0]
    """
    scores = filtered(logits, temperature, top_k, top_p, min_p)
    ids = np.flatnonzero(scores > -np.inf)
    return int(ids[np.argmax(scores[ids] + gumbel(seed, step, ids))])
