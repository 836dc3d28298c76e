"""Metrics of generated texts: equal to sacrebleu and rouge-score, and by hand."""

import random

import numpy as np
import pytest

from keras_ctxrep.text import generation_scores as scores

WORDS = ["the", "cat,", "sat", "on", "a", "mat.", "3.5%", "(of)", "U.S.", "dogs", "-", "don't", "run", "&", "10-20"]
WORDS += ["&amp;", '"quoted"!', "été", "日本"]


def corpora(seed):
    """Texts with two references each, one of which they often share a beginning with."""
    rng = random.Random(seed)
    text = lambda: " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))  # noqa: E731
    texts = [text() for _ in range(rng.randint(1, 6))]
    references = [[text(), text()] for _ in texts]
    for own, several in zip(texts, references, strict=True):
        if rng.random() < 0.5:
            several[0] = " ".join([*own.split()[: 1 + len(own.split()) // 2], "dog"])
    return references, texts


def metric(name, references, texts):
    statistics, value = scores.METRICS[name]
    return value(statistics(references, texts).sum(0))


@pytest.mark.parametrize("seed", range(10))
def test_bleu_and_chrf_are_those_of_sacrebleu(seed):
    sacrebleu = pytest.importorskip("sacrebleu")
    references, texts = corpora(seed)
    columns = [[*column] for column in zip(*references, strict=True)]
    assert metric("bleu", references, texts) == pytest.approx(sacrebleu.corpus_bleu(texts, columns).score / 100)
    assert metric("chrf", references, texts) == pytest.approx(sacrebleu.corpus_chrf(texts, columns).score / 100)


@pytest.mark.parametrize("seed", range(10))
def test_rouge_is_that_of_rouge_score(seed):
    rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer")
    references, texts = corpora(seed)
    peer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
    for kind, name in (("1", "rouge1"), ("2", "rouge2"), ("l", "rougeL")):
        expected = [
            max(peer.score(reference, text)[name].fmeasure for reference in several)
            for several, text in zip(references, texts, strict=True)
        ]
        np.testing.assert_allclose(scores.rouge(references, texts, kind)[:, 0], expected, atol=1e-12)


def test_rates_count_edits_to_the_nearest_reference():
    references, texts = [["K AE T", "K AA T"], ["B IY"]], ["K AA D", ""]
    assert metric("word_error_rate", references, texts) == pytest.approx(3 / 5)
    assert metric("character_error_rate", references, texts) == pytest.approx(5 / 10)
    assert metric("exact_match", references, ["K AA T", "B"]) == 0.5


def test_nothing_was_generated():
    for name in scores.METRICS:
        value = metric(name, [["a b"]], [""])
        assert value == (1.0 if name.endswith("error_rate") else 0.0)
