"""Sampling: the generator by its published numbers, filters by hand, and the distribution of what is drawn."""

import numpy as np
import pytest

from keras_ctxrep.text.sampling import filtered, gumbel, sample, threefry

PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.25, 0.2])
LOGITS = np.log(PROBABILITIES)
GOLDEN = [
    [0.13790565971121707, -0.14513320112199235, 1.5477577929697994],
    [-0.03321754754629217, 0.22205340149211186, 0.2079822421491028],
    [-0.31286875349724813, 0.7539181356775644, 0.8075124172026814],
    [0.6111417151520636, 0.1771614190288467, 0.04874610878879611],
]


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [  # https://github.com/DEShawResearch/random123, tests/kat_vectors: threefry2x32 20
        ((0, 0), (0, 0), ("6b200159", "99ba4efe")),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), ("1cb996fc", "bb002be7")),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), ("c4923a9c", "483df7a0")),
    ],
)
def test_threefry(key, counter, expected):
    assert tuple(f"{int(bits):08x}" for bits in threefry(key, *map(np.asarray, counter))) == expected


def test_golden_noise():
    """What a graph and JavaScript must give too, for any seed of 64 bits."""
    noise = [gumbel(seed, step, np.array([0, 1, 32000])) for seed, step in [(0, 0), (7, 3), (-1, 0), (2**40 + 5, 9)]]
    np.testing.assert_allclose(
        noise,
        GOLDEN,
        rtol=1e-12,
    )


def test_noise_is_gumbel():
    noise = gumbel(3, 0, np.arange(200_000))
    assert noise.mean() == pytest.approx(0.5772, abs=0.01) and noise.var() == pytest.approx(np.pi**2 / 6, abs=0.03)
    points = np.linspace(-1.5, 4, 12)
    np.testing.assert_allclose((noise[:, None] < points).mean(0), np.exp(-np.exp(-points)), atol=0.004)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"temperature": 0}, [1]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.4}, [1]),
        ({"top_p": 0.41}, [1, 3]),
        ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.3}, [1, 3, 4]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 3, "top_p": 0.7}, [1, 3]),  # 0.4, 0.25 and 0.2 of 0.85: 0.47 and 0.76
        ({"temperature": 0.5, "top_p": 0.6}, [1, 3]),  # squares: 0.57 and 0.79 of their sum
        ({"temperature": 0.5, "min_p": 0.3}, [1, 3]),
    ],
)
def test_filters(options, left):
    scores = filtered(LOGITS, **options)
    assert np.flatnonzero(scores > -np.inf).tolist() == left
    if options.get("temperature", 1) == 1:
        np.testing.assert_allclose(scores[left], LOGITS[left])


def test_ties():
    equal = np.zeros(4)
    assert filtered(equal, temperature=0).tolist() == [0, -np.inf, -np.inf, -np.inf]
    assert (filtered(equal, top_k=1) == 0).all()  # all are as likely as the first
    assert np.flatnonzero(filtered(equal, top_p=0.5) == 0).tolist() == [0, 1]


def test_tokens_that_are_never_drawn():
    banned = LOGITS.copy()
    banned[1] = -np.inf
    assert 1 not in {sample(banned, 0, step) for step in range(200)}
    assert sample(banned, 0, 0, temperature=0) == 3


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.3, "temperature": 0.7}]
)
def test_distribution(options):
    """5,000 draws against the softmax of what the filters leave, by chi-squared; 18.5 is beyond 99.9% of 4 degrees."""
    expected = np.exp(filtered(LOGITS, **options))
    expected /= expected.sum()
    draws = np.bincount([sample(LOGITS, 11, step, **options) for step in range(5000)], minlength=5)
    kept = expected > 0
    assert draws[~kept].sum() == 0
    assert (((draws - 5000 * expected) ** 2)[kept] / (5000 * expected[kept])).sum() < 18.5


def test_seeds_and_steps_are_independent():
    draws = np.array([[sample(LOGITS, seed, step) for step in range(300)] for seed in range(3)])
    for first, second in ((draws[0], draws[1]), (draws[1], draws[2]), (draws[0][1:], draws[0][:-1])):
        agreement = (first == second).mean()
        assert agreement == pytest.approx((PROBABILITIES**2).sum(), abs=0.09)
    assert sample(LOGITS, 5, 6) == sample(LOGITS + 1e-7, 5, 6)
