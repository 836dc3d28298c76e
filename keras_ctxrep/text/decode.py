"""Converts model outputs to predictions: probabilities, labels of words, spans of text."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from keras_ctxrep.text.features import Row
from keras_ctxrep.text.tags import spans, to_iob2

__all__ = ["best_answers", "entities", "sigmoid", "softmax"]

N_BEST = 20  # answers kept for each window, and returned


def softmax(logits: np.ndarray) -> np.ndarray:
    """float64 probabilities over the last axis."""
    shifted = np.asarray(logits, np.float64)
    shifted = np.exp(shifted - shifted.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Independent float64 probabilities."""
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(logits, np.float64)))


def entities(labels: Sequence[str | None]) -> list[tuple[str, int, int]]:
    """(type, first word, word after the last) of each span that tags of any scheme mark; None counts as "O".

    >>> entities(["B-PER", "I-PER", None, "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4)]
    """
    return spans(to_iob2([label or "O" for label in labels]))


def best_answers(
    windows: Sequence[Row], outputs: Sequence[Mapping[str, np.ndarray]], context: str, max_answer: int
) -> tuple[list[dict], float]:
    """The best answer spans in a context, and the score of "no answer".

    Devlin et al. 2018, sections 4.2 and 4.3: a span's score is the sum of its start logit and its end logit; the score
    of "no answer" is that sum at position 0, of a BERT [CLS], the minimum over all windows. Ties go to the earlier
    window and position. An answer begins and ends with whole words of BERT's basic split; the published code may cut a
    word between its pieces.

    Args:
        windows: the windows of one question, from `windows` of the features.
        outputs: {"start_logits", "end_logits": float (T,)} for each window.
        context: the whole text.
        max_answer: maximum number of pieces in an answer.

    Returns: up to 20 spans, the best first, each {"answer", "start", "end", "score", "probability"}: character
        offsets into `context`, the end exclusive, and the softmax over these scores; and the score of "no answer".
    """
    scores: dict[tuple[int, int], float] = {}
    null = np.inf
    for row, output in zip(windows, outputs, strict=True):
        assert row.words is not None and row.context is not None
        start_logits, end_logits = (np.asarray(output[f"{edge}_logits"], np.float64) for edge in ("start", "end"))
        null = min(null, float(start_logits[0] + end_logits[0]))
        inside = np.arange(row.context.start, row.context.stop)
        # band[i, j] is the score of the answer from piece i to piece i + j. With the end logits e0, e1, e2 and
        # max_answer 2, `ends` is [[e0, e1], [e1, e2], [e2, -inf], [-inf, -inf]].
        ends = sliding_window_view(np.append(end_logits[inside], np.full(max_answer, -np.inf)), max_answer)
        band = start_logits[inside][:, None] + ends[:-1]  # (starts, pieces after the first)
        for position in np.argsort(-band, axis=None, kind="stable")[:N_BEST]:
            first, more = divmod(int(position), max_answer)
            score = float(band[first, more])
            if np.isfinite(score):
                span = (row.words[inside[first]][0], row.words[inside[first + more]][1])
                if score > scores.get(span, -np.inf):
                    scores[span] = score
    best = sorted(scores.items(), key=lambda item: -item[1])[:N_BEST]
    probabilities = softmax(np.array([score for _, score in best])) if best else []
    answers = [
        {"answer": context[begin:end], "start": begin, "end": end, "score": score, "probability": float(probability)}
        for ((begin, end), score), probability in zip(best, probabilities, strict=True)
    ]
    return answers, null
