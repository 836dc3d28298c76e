"""Metrics of retrieval: equal to trec_eval and ranx, ties included."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from keras_ctxrep.text import retrieval

REFERENCE = Path(__file__).parents[1] / "reference" / "retrieval.npz"
FUNCTIONS = {
    "ndcg_at_10": retrieval.ndcg,
    "mrr_at_10": retrieval.reciprocal_rank,
    "recall_at_1": lambda ranking, relevant: retrieval.recall(ranking, relevant, 1),
    "recall_at_10": retrieval.recall,
    "map_at_100": retrieval.average_precision,
}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("retrieval_reference", REFERENCE.with_suffix(".py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ours(script):
    """Metric -> float64 (Q,): the scores are dot products of the queries' rows with unit vectors of the documents."""
    scores, relevant = script.drawn()
    ranking = retrieval.ranked(scores, np.eye(scores.shape[1], dtype=np.float32), 100).tolist()
    sets = [set(np.flatnonzero(row).tolist()) for row in relevant]
    return {name: np.array([of(*pair) for pair in zip(ranking, sets, strict=True)]) for name, of in FUNCTIONS.items()}


def test_equal_to_the_stored_references(ours):
    with np.load(REFERENCE) as stored:
        assert len(stored.files) == 9
        for name in stored.files:
            own = ours[name.removeprefix("trec_eval_").removeprefix("ranx_")]
            np.testing.assert_allclose(own, stored[name], atol=1e-12, err_msg=name)
            assert 0 < own.mean() < 1


@pytest.mark.parametrize("package", ["pytrec_eval", "ranx"])
def test_equal_to_the_packages(package, ours, script):
    pytest.importorskip(package)
    results = {"pytrec_eval": script.by_trec_eval, "ranx": script.by_ranx}[package](*script.drawn())
    for name, values in results.items():
        np.testing.assert_allclose(ours[name], values, atol=1e-12, err_msg=name)


def test_rankings_in_parts_and_short(monkeypatch, rng):
    queries, documents = rng.normal(size=(7, 4)), rng.normal(size=(5, 4))
    expected = np.argsort(-(queries @ documents.T), axis=1)
    np.testing.assert_array_equal(retrieval.ranked(queries, documents, 9), expected)
    monkeypatch.setattr(retrieval, "TOGETHER", 10)
    np.testing.assert_array_equal(retrieval.ranked(queries, documents, 2), expected[:, :2])


def test_ties_at_the_border_go_to_the_last_document():
    documents = np.array([[1.0], [2.0], [1.0], [1.0]])
    assert retrieval.ranked(np.array([[1.0]]), documents, 2).tolist() == [[1, 3]]
