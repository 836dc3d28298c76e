"""Makes retrieval.npz: metrics of rankings by trec_eval and ranx, to which ours must be equal.

    pip install pytrec-eval-terrier==0.5.11 ranx==0.3.21
    python tests/reference/retrieval.py

Queries are drawn at random, with scores on a grid so that many documents tie; the names of the documents are their
numbers with leading zeros, by which trec_eval orders ties, descending. ranx leaves the order of ties open, so it is
given scores without ties, in trec_eval's order.
"""

from pathlib import Path

import numpy as np

QUERIES, DOCUMENTS = 40, 150
NAMES = {  # ours -> of trec_eval, of ranx
    "ndcg_at_10": ("ndcg_cut_10", "ndcg@10"),
    "mrr_at_10": (None, "mrr@10"),
    "recall_at_1": ("recall_1", "recall@1"),
    "recall_at_10": ("recall_10", "recall@10"),
    "map_at_100": ("map_cut_100", "map@100"),
}


def drawn():
    """Scores float32 (Q, C) on a grid of eighths, and the numbers of relevant documents, bool (Q, C)."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 40, (QUERIES, DOCUMENTS)) / 8
    relevant = rng.random((QUERIES, DOCUMENTS)) < rng.choice([0.01, 0.05], (QUERIES, 1))
    relevant[np.arange(QUERIES), rng.integers(0, DOCUMENTS, QUERIES)] = True
    return scores.astype(np.float32), relevant


def by_trec_eval(scores, relevant):
    """Metric -> float64 (Q,)."""
    import pytrec_eval

    qrel = {f"q{q}": {f"{d:04}": 1 for d in np.flatnonzero(row)} for q, row in enumerate(relevant)}
    run = {f"q{q}": {f"{d:04}": float(score) for d, score in enumerate(row)} for q, row in enumerate(scores)}
    measures = {"ndcg_cut.10", "recall.1,10", "map_cut.100"}
    results = pytrec_eval.RelevanceEvaluator(qrel, measures).evaluate(run)
    return {
        ours: np.array([results[f"q{q}"][name] for q in range(len(scores))])
        for ours, (name, _) in NAMES.items()
        if name
    }


def by_ranx(scores, relevant):
    """Metric -> float64 (Q,)."""
    from ranx import Qrels, Run, evaluate

    ranks = [sorted(range(DOCUMENTS), key=lambda d, row=row: (-row[d], -d)) for row in scores]
    qrels = Qrels({f"q{q:03}": {f"{d:04}": 1 for d in np.flatnonzero(row)} for q, row in enumerate(relevant)})
    run = Run({f"q{q:03}": {f"{d:04}": float(DOCUMENTS - n) for n, d in enumerate(row)} for q, row in enumerate(ranks)})
    results = evaluate(qrels, run, [name for _, name in NAMES.values()], return_mean=False)
    return {ours: np.asarray(results[name]) for ours, (_, name) in NAMES.items()}


if __name__ == "__main__":
    data = drawn()
    values = {f"trec_eval_{name}": value for name, value in by_trec_eval(*data).items()}
    values |= {f"ranx_{name}": value for name, value in by_ranx(*data).items()}
    np.savez_compressed(Path(__file__).with_suffix(".npz"), **values)
