"""Retrieval by vectors: the documents of each query in order of their cosine, and metrics of such rankings."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

__all__ = ["average_precision", "ndcg", "ranked", "recall", "reciprocal_rank", "unit"]

TOGETHER = 1 << 24  # similarities that are computed at once: 64 MB


def mean_rows(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Rows of a table, or where several are of one vector their means, float32 (N, D).

    Args:
        table: (R, D), whose row 0 is for none.
        ids: int32 (N,), or (N, G), padded with 0.

    >>> mean_rows(np.array([[0.0], [2.0], [4.0]]), np.array([[1, 2], [2, 0]])).tolist()
    [[3.0], [4.0]]
    """
    if ids.ndim == 1:
        return table[ids]
    vectors = np.zeros((len(ids), table.shape[1]), np.float32)
    for begin in range(0, len(ids), 4096):
        part = ids[begin : begin + 4096]
        real = (part > 0)[..., None]
        vectors[begin : begin + 4096] = (table[part] * real).sum(1) / np.maximum(real.sum(1), 1)
    return vectors


def unit(vectors: Any, kind: str | None = None) -> np.ndarray:
    """Vectors scaled to length 1, float32 (N, D); those of length 0 stay 0.

    Args:
        vectors: a table of numbers.
        kind: what a vector is called in errors, if the table and each length is to be checked.

    Raises:
        ValueError: with `kind`, they are no table of numbers, or one has the length 0 or is not finite; the message
            says which.

    >>> unit([[3, 4], [0, 0]]).round(2).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    >>> unit([[3, 4], [0, 0]], "vector")
    Traceback (most recent call last):
    ValueError: vector 1: only zeros, which have no direction
    """
    array = np.asarray(vectors)
    if kind and (array.ndim != 2 or array.dtype.kind not in "fiu" or not array.shape[1]):
        raise ValueError(f"{kind}s: {array.dtype} of shape {array.shape}; a table of numbers (N, D) is needed")
    array = array.astype(np.float64)
    lengths = np.linalg.norm(array, axis=-1, keepdims=True)
    if kind and len(wrong := np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))):
        reason = "a number that is not finite" if lengths[wrong[0], 0] else "only zeros, which have no direction"
        raise ValueError(f"{kind} {wrong[0]}: {reason}")
    return (array / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def ranked(queries: np.ndarray, documents: np.ndarray, count: int) -> np.ndarray:
    """The numbers of the most similar documents of each query, the best first.

    Of documents that are equally similar the last one comes first, as in trec_eval, which orders ties by the name of
    the document, descending: the order does not depend on which of them is relevant.

    Args:
        queries, documents: float (Q, D) and (C, D), of length 1 where cosines are meant.
        count: documents of each query, at most.

    Returns: int64 (Q, min(count, C)).

    >>> ranked(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), 2).tolist()
    [[1, 2]]
    """
    count = min(count, len(documents))
    at_once = max(1, TOGETHER // max(1, len(documents)))
    parts = [np.zeros((0, count), np.int64)]
    for begin in range(0, len(queries), at_once):
        similarities = queries[begin : begin + at_once] @ documents.T  # (q, C)
        # ties at the border of the first `count` are all kept until they are sorted
        least = np.partition(similarities, -count, axis=1)[:, -count]
        for row, bound in zip(similarities, least, strict=True):
            candidates = np.flatnonzero(row >= bound)[::-1]
            best = candidates[np.argsort(-row[candidates], kind="stable")]
            parts.append(best[None, :count])
    return np.concatenate(parts)


def ndcg(ranking: Sequence[int], relevant: Collection[int], cut: int = 10) -> float:
    """Normalized discounted cumulative gain of the first documents of a ranking; every relevant document gains 1.

    Järvelin & Kekäläinen 2002, https://doi.org/10.1145/582415.582418, with the discount log2(rank + 1), as `ndcg_cut`
    of trec_eval.

    Args:
        ranking: numbers of documents, the best first.
        relevant: numbers of the documents that are meant.
        cut: documents of the ranking that count.

    >>> round(ndcg([7, 3], {3}), 4)  # 1 / log2(3)
    0.6309
    """
    discounts = 1 / np.log2(np.arange(2, cut + 2))
    gains = np.array([document in relevant for document in ranking[:cut]], np.float64)
    return float(gains @ discounts[: len(gains)] / discounts[: len(relevant)].sum())


def reciprocal_rank(ranking: Sequence[int], relevant: Collection[int], cut: int = 10) -> float:
    """1 / the rank of the first relevant document, 0 if none is among the first; its mean over queries is MRR.

    Voorhees 1999, https://trec.nist.gov/pubs/trec8/papers/qa_report.pdf.

    Args:
        ranking, relevant, cut: as in `ndcg`.

    >>> reciprocal_rank([7, 3], {3})
    0.5
    """
    return next((1 / rank for rank, document in enumerate(ranking[:cut], 1) if document in relevant), 0.0)


def recall(ranking: Sequence[int], relevant: Collection[int], cut: int = 10) -> float:
    """Fraction of the relevant documents that are among the first of a ranking.

    Args:
        ranking, relevant, cut: as in `ndcg`.

    >>> recall([7, 3], {3, 4})
    0.5
    """
    return sum(document in relevant for document in ranking[:cut]) / len(relevant)


def average_precision(ranking: Sequence[int], relevant: Collection[int], cut: int = 100) -> float:
    """Mean over all relevant documents of the precision at the rank of each, 0 of those that are not among the first.

    Its mean over queries is MAP; as `map_cut` of trec_eval, https://github.com/usnistgov/trec_eval.

    Args:
        ranking, relevant, cut: as in `ndcg`.

    >>> average_precision([3, 7, 4], {3, 4})  # (1 / 1 + 2 / 3) / 2
    0.8333333333333333
    """
    hits = np.array([document in relevant for document in ranking[:cut]], np.float64)
    precisions = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float(precisions @ hits / len(relevant))
