"""Greedy and beam search over a decoder's steps: the one definition, which graphs are tested against.

A hypothesis is a sequence of tokens with the sum of their log-probabilities. In each step every live hypothesis is
continued by every token. Of the best `beams` continuations those that end are finished, and frozen; the best `beams` of
those that do not end live on. A finished one has the score sum / lp(n), where lp(n) = ((5 + n) / 6)^alpha is the length
penalty of Wu et al. 2016, https://arxiv.org/abs/1609.08144, eq. 14, and n the number of its tokens with the end; alpha
0 is no penalty. A text is done when `beams` hypotheses are finished and no live one can be better than the worst of
them, or at `max_length` tokens, where the live ones count as they are. Greedy search is that with one beam, whose
likeliest token alone goes on.

Sums are float64, so that engines whose logits differ by rounding alone find the same sequences; of equal sums the
earlier hypothesis and the lower token come first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Hypothesis", "Step", "generate", "length_penalty", "search"]

# int32 (N,) of the last tokens, the rows of their hypotheses, int (N,), and the state of these -> logits (N, V), state,
# and if the decoder attends to a text the attention's weights (N, S)
Step = Callable[[np.ndarray, np.ndarray, Any], tuple]


class Hypothesis(NamedTuple):
    """A sequence that was found.

    Attributes:
        tokens: without the mark of the end.
        score: the sum of the log-probabilities, the end's included, over the length penalty.
        finished: whether it ended by itself, before `max_length`.
        attention: of each token the weights of the text's tokens, (S,), when it was generated; () of a step without.
    """

    tokens: tuple[int, ...]
    score: float
    finished: bool
    attention: tuple[np.ndarray, ...] = ()


def length_penalty(length: int, alpha: float) -> float:
    """((5 + n) / 6)^alpha.

    Args:
        length: n, tokens of a hypothesis.
        alpha: 0 for no penalty.

    >>> length_penalty(7, 0.0), length_penalty(7, 1.0)
    (1.0, 2.0)
    """
    return ((5 + length) / 6) ** alpha


class _Live(NamedTuple):
    """A hypothesis that has not ended: the sum of its log-probabilities, its tokens and their attention."""

    total: float = 0.0
    tokens: tuple[int, ...] = ()
    attention: tuple[np.ndarray, ...] = ()


@dataclass
class _Text:
    """The search of one text."""

    finished: list[Hypothesis] = field(default_factory=list)
    live: list[_Live] = field(default_factory=lambda: [_Live()])


def search(
    step: Step,
    state: np.ndarray,
    begin: int,
    end: int,
    max_length: int,
    beams: int = 1,
    alpha: float = 0.0,
    never: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """The best sequences of each text of a batch, the best first: up to `beams` of them.

    Args:
        step: runs the decoder for the live hypotheses of all texts.
        state: of each text at the beginning, (B, ...).
        begin: the token that is read first.
        end: the token that ends a sequence.
        max_length: tokens of a sequence at most, the end included.
        beams: hypotheses that are kept.
        alpha: of the length penalty, 0 to 1; 0.6 to 0.7 in the paper.
        never: tokens that are not generated.

    Raises:
        ValueError: no beam, no length, or a penalty below 0.

    >>> table = np.log([[0.1, 0.6, 0.3], [0.1, 0.5, 0.4], [0.8, 0.1, 0.1]])  # token -> the next one
    >>> step = lambda tokens, rows, state: (table[tokens], state)
    >>> (found,) = search(step, np.zeros((1, 1)), begin=0, end=2, max_length=3, beams=2)
    >>> [(hypothesis.tokens, round(float(np.exp(hypothesis.score)), 2)) for hypothesis in found]
    [((), 0.3), ((1,), 0.24)]
    """
    for name, value, least in (("beams", beams, 1), ("max_length", max_length, 1), ("alpha", alpha, 0)):
        if value < least:
            raise ValueError(f"{name}={value}: at least {least}")
    texts = [_Text() for _ in range(len(state))]
    rows, tokens = np.arange(len(state)), np.full(len(state), begin, np.int32)
    for length in range(1, max_length + 1):
        if not len(rows):
            break
        logits, state, *attention = step(tokens, rows, state)
        logs = _log_softmax(logits, never)
        parents, nexts, kept = [], [], []
        for row in dict.fromkeys(rows.tolist()):
            first = int(np.searchsorted(rows, row))
            own = slice(first, first + len(texts[row].live))
            weights = attention[0][own] if attention else None
            for parent, token in _advance(texts[row], logs[own], weights, end, length, max_length, beams, alpha):
                parents.append(first + parent)
                nexts.append(token)
                kept.append(row)
        state, rows, tokens = state[np.array(parents, int)], np.array(kept, int), np.array(nexts, np.int32)
    return [_best(text, beams) for text in texts]


def generate(
    start: Callable[[dict[str, np.ndarray]], Mapping[str, Any]],
    step: Callable[[dict[str, np.ndarray]], Mapping[str, Any]],
    inputs: dict[str, np.ndarray],
    **options: Any,
) -> list[list[Hypothesis]]:
    """The best target sequences of each text, by the models of a decoder in any engine.

    Args:
        start, step: run the two models of `models.decoder.Decoder` of these names: arrays by name -> arrays by name.
        inputs: of the encoder, of a batch of texts, "mask" among them.
        options: `begin`, `end`, `max_length` and the others of `search`.

    Returns: as in `search`.

    >>> texts = {"mask": np.ones((2, 3), np.int32)}
    >>> start = lambda inputs: {"memory": np.zeros((2, 3, 1)), "state": np.zeros((2, 1))}
    >>> step = lambda inputs: {"logits": np.eye(3)[inputs["token_ids"][:, 0] - 1], "state": inputs["state"]}
    >>> [found[0].tokens for found in generate(start, step, texts, begin=2, end=0, max_length=5)]
    [(1,), (1,)]
    """
    begun = start(inputs)
    memory, mask = np.asarray(begun["memory"]), np.asarray(inputs["mask"])

    def run(tokens: np.ndarray, rows: np.ndarray, state: np.ndarray) -> tuple:
        outputs = step(
            {"token_ids": tokens[:, None], "memory": memory[rows], "memory_mask": mask[rows], "state": state}
        )
        attention = [np.asarray(outputs["attention"])] if "attention" in outputs else []
        return np.asarray(outputs["logits"]), np.asarray(outputs["state"]), *attention

    return search(run, np.asarray(begun["state"]), **options)


def _advance(
    text: _Text,
    logs: np.ndarray,
    attention: np.ndarray | None,
    end: int,
    length: int,
    max_length: int,
    beams: int,
    alpha: float,
) -> list[tuple[int, int]]:
    """Continues the live hypotheses by one token; gives the parent and the token of each that lives on."""
    sums = np.array([hypothesis.total for hypothesis in text.live])[:, None] + logs  # (live, V)
    flat = sums.ravel()
    count = min(2 * beams if beams > 1 else 1, flat.size)  # each live hypothesis ends in one way
    likely = np.flatnonzero(flat >= np.partition(flat, -count)[-count])
    order = likely[np.argsort(-flat[likely], kind="stable")][:count]
    live, chosen = [], []
    for rank, index in enumerate(order.tolist()):
        if flat[index] == -np.inf or len(live) == beams:
            break
        parent, token = divmod(index, logs.shape[1])
        _, tokens, looked = text.live[parent]
        if token == end:
            if rank < beams:
                score = float(flat[index]) / length_penalty(length, alpha)
                text.finished.append(Hypothesis(tokens, score, True, looked))
            continue
        looked = looked if attention is None else (*looked, attention[parent])
        live.append(_Live(float(flat[index]), (*tokens, token), looked))
        chosen.append((parent, token))
    text.finished = _best(_Text(text.finished, []), beams)
    if length == max_length:
        penalty = length_penalty(length, alpha)
        text.finished += [Hypothesis(tokens, total / penalty, False, looked) for total, tokens, looked in live]
        return []
    best = max((hypothesis.total for hypothesis in live), default=-np.inf) / length_penalty(max_length, alpha)
    if len(text.finished) == beams and best <= text.finished[-1].score:
        return []
    text.live = live
    return chosen


def _best(text: _Text, beams: int) -> list[Hypothesis]:
    return sorted(text.finished, key=lambda hypothesis: -hypothesis.score)[:beams]


def _log_softmax(logits: np.ndarray, never: Sequence[int]) -> np.ndarray:
    """Log-probabilities over the tokens that may be generated, float64 (N, V)."""
    logits = np.array(logits, np.float64)
    logits[:, list(never)] = -np.inf
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
