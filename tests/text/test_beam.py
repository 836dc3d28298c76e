"""Beam search: against a search over all sequences, and its rules one by one."""

import itertools

import numpy as np
import pytest

from keras_ctxrep.text import beam

END = 0


def random_step(rng, vocabulary, length):
    """A decoder whose logits depend on all tokens before: its state is their history as one number."""
    tables = {}

    def step(tokens, rows, state):
        state = state * vocabulary + tokens[:, None] + 1
        for row, history in zip(rows, state[:, 0], strict=True):
            if (row, history) not in tables:
                tables[row, history] = rng.normal(size=vocabulary) * 2
        return np.array([tables[key] for key in zip(rows, state[:, 0], strict=True)]), state

    return step


def logs_of(step, row, tokens, begin):
    """The log-probability of each token of a sequence, run by itself."""
    state, before, logs = np.zeros((1, 1), np.int64), begin, []
    for token in tokens:
        logits, state = step(np.array([before]), np.array([row]), state)
        logs.append(logits[0, token] - np.log(np.exp(logits[0]).sum()))
        before = token
    return logs


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_with_enough_beams_it_is_a_search_over_all_sequences(alpha, seed):
    vocabulary, length, begin, texts = 3, 4, 1, 2
    step = random_step(np.random.default_rng(seed), vocabulary, length)
    found = beam.search(step, np.zeros((texts, 1), np.int64), begin, END, length, 200, alpha)
    for row in range(texts):
        every = []
        for size in range(1, length + 1):
            for tokens in itertools.product(range(vocabulary), repeat=size):
                ends = tokens[-1] == END
                if END in tokens[:-1] or not (ends or size == length):
                    continue
                score = sum(logs_of(step, row, tokens, begin)) / beam.length_penalty(size, alpha)
                every.append((tokens[:-1] if ends else tokens, score, ends))
        every.sort(key=lambda entry: -entry[1])
        assert [(h.tokens, h.finished) for h in found[row]] == [(tokens, ends) for tokens, _, ends in every]
        np.testing.assert_allclose([h.score for h in found[row]], [score for _, score, _ in every], atol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("beams", [2, 3, 5])
def test_with_few_beams_as_restated(alpha, beams):
    """Without stopping early: live hypotheses of each step by one sort of all their continuations."""
    vocabulary, length, begin = 6, 6, 1
    for seed in range(20):
        step = random_step(np.random.default_rng(seed), vocabulary, length)
        (found,) = beam.search(step, np.zeros((1, 1), np.int64), begin, END, length, beams, alpha)
        live, finished = [()], []
        for _ in range(1, length + 1):
            new = [(*tokens, token) for tokens in live for token in range(vocabulary)]
            new.sort(key=lambda tokens: -sum(logs_of(step, 0, tokens, begin)))
            finished += [tokens for tokens in new[:beams] if tokens[-1] == END]
            live = [tokens for tokens in new if tokens[-1] != END][:beams]
        scored = {
            tokens: sum(logs_of(step, 0, tokens, begin)) / beam.length_penalty(len(tokens), alpha)
            for tokens in finished + live
        }
        best = sorted(scored, key=lambda tokens: -scored[tokens])[:beams]
        assert [h.tokens for h in found] == [tokens[:-1] if tokens[-1] == END else tokens for tokens in best]
        np.testing.assert_allclose([h.score for h in found], [scored[tokens] for tokens in best], atol=1e-9)


def test_greedy_is_the_likeliest_token_to_the_first_end():
    for seed in range(20):
        step = random_step(np.random.default_rng(seed), 4, 5)
        ((hypothesis,),) = beam.search(step, np.zeros((1, 1), np.int64), 1, END, 5, 1, 0.9)
        state, token, expected = np.zeros((1, 1), np.int64), 1, []
        while len(expected) < 5 and token != END:
            logits, state = step(np.array([token]), np.array([0]), state)
            token = int(logits.argmax())
            expected.append(token)
        assert hypothesis.tokens == tuple(token for token in expected if token != END)
        assert hypothesis.finished == (expected[-1] == END)


def test_a_text_does_not_depend_on_the_others():
    step = random_step(np.random.default_rng(1), 5, 6)
    together = beam.search(step, np.zeros((4, 1), np.int64), 1, END, 6, 3, 0.6)
    for row in range(4):

        def alone(tokens, rows, state, row=row):
            return step(tokens, np.full(len(rows), row), state)

        assert beam.search(alone, np.zeros((1, 1), np.int64), 1, END, 6, 3, 0.6) == [together[row]]


def test_tokens_that_are_never_generated_share_no_probability():
    logits = np.log([[0.2, 0.4, 0.4]])
    (found,) = beam.search(lambda t, r, s: (logits[[0] * len(t)], s), np.zeros((1, 1)), 1, END, 1, 3, never=[2])
    assert [h.tokens for h in found] == [(1,), ()]
    np.testing.assert_allclose(np.exp([h.score for h in found]), [2 / 3, 1 / 3])


def test_no_text():
    assert beam.search(lambda *_: pytest.fail("runs"), np.zeros((0, 1)), 1, END, 5) == []


@pytest.mark.parametrize("wrong", [{"beams": 0}, {"max_length": 0}, {"alpha": -1.0}])
def test_errors(wrong):
    arguments = {"begin": 1, "end": 0, "max_length": 3} | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        beam.search(lambda *_: None, np.zeros((1, 1)), **arguments)
