"""Metrics of generated texts: exact match, error rates of words and characters, BLEU, chrF and ROUGE."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from keras_ctxrep.text.scores import nearest

__all__ = ["METRICS", "Statistics", "bleu", "character_error_rate", "chrf", "exact_match", "rouge", "word_error_rate"]

# The tokens of mteval-v13a, https://www.nist.gov/itl/iad/mig/metrics-machine-translation-2010-evaluation, in which
# punctuation stands apart unless it is between digits.
_ENTITIES = (("<skipped>", ""), ("-\n", ""), ("\n", " "), ("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_APART = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
ORDER, CHARACTERS, BETA = 4, 6, 2.0  # of BLEU in words, of chrF in characters, and its weight of recall

Statistics = np.ndarray  # float64 (texts, K): sums over texts of which a metric is computed


def exact_match(references: Sequence[Sequence[str]], texts: Sequence[str]) -> Statistics:
    """Whether each text is one of its references as it is, not as in SQuAD: (texts, 2), 1 or 0, and 1.

    Args:
        references: the right texts of each.
        texts: those that are scored.
    """
    return np.array([[float(text in several), 1.0] for several, text in zip(references, texts, strict=True)])


def word_error_rate(
    references: Sequence[Sequence[str]], texts: Sequence[str], split: Callable = str.split
) -> Statistics:
    """Edits to the nearest reference, and tokens of that reference: (texts, 2).

    Args:
        references: of each text one or more.
        texts: generated ones.
        split: from a text to its tokens.
    """
    rows = [
        nearest([split(reference) for reference in several], split(text))
        for several, text in zip(references, texts, strict=True)
    ]
    return np.array(rows, np.float64)


def character_error_rate(references: Sequence[Sequence[str]], texts: Sequence[str]) -> Statistics:
    """As `word_error_rate`, of characters.

    Args:
        references, texts: as in `exact_match`.
    """
    return word_error_rate(references, texts, list)


def bleu(references: Sequence[Sequence[str]], texts: Sequence[str]) -> Statistics:
    """Matches and counts of n-grams of 1 to 4 words, the words, and those of the nearest reference: (texts, 10).

    Papineni et al. 2002, https://aclanthology.org/P02-1040/; words as in mteval-v13a, which is what sacrebleu reports
    (Post 2018, https://arxiv.org/abs/1804.08771).

    Args:
        references, texts: as in `exact_match`.
    """
    rows = []
    for several, text in zip(references, texts, strict=True):
        own, options = _words_13a(text), [_words_13a(reference) for reference in several]
        row = []
        for order in range(1, ORDER + 1):
            counts = _ngrams(own, order)
            most: Counter = Counter()
            for option in options:
                most |= _ngrams(option, order)
            row += [sum((counts & most).values()), sum(counts.values())]
        nearest = min((abs(len(option) - len(own)), len(option)) for option in options)[1]
        rows.append([*row, len(own), nearest])
    return np.array(rows, np.float64)


def chrf(references: Sequence[Sequence[str]], texts: Sequence[str]) -> Statistics:
    """N-grams of 1 to 6 characters: of the text, of the best reference, and of both: (texts, 18).

    Popović 2015, https://aclanthology.org/W15-3049/, without white space; of several references the one with the
    highest score of the text counts.

    Args:
        references, texts: as in `exact_match`.
    """
    rows = []
    for several, text in zip(references, texts, strict=True):
        own = [_ngrams("".join(text.split()), order) for order in range(1, CHARACTERS + 1)]
        best: list = []
        for reference in several:
            row = []
            for order, counts in enumerate(own, 1):
                other = _ngrams("".join(reference.split()), order)
                row += [sum(counts.values()) if other else 0, sum(other.values()), sum((counts & other).values())]
            if not best or _chrf(np.array(row, np.float64)) > _chrf(np.array(best, np.float64)):
                best = row
        rows.append(best)
    return np.array(rows, np.float64)


def rouge(references: Sequence[Sequence[str]], texts: Sequence[str], kind: str = "l") -> Statistics:
    """F1 with the best reference, and 1: (texts, 2); of n-grams of words, or of the longest common subsequence.

    Lin 2004, https://aclanthology.org/W04-1013/: words are lower-case letters and digits, without stemming.

    Args:
        references, texts: as in `word_error_rate`.
        kind: "1", "2" or "l".
    """

    def f1(own: list[str], other: list[str]) -> float:
        if kind == "l":
            both, sizes = _longest_common(own, other), (len(own), len(other))
        else:
            left, right = _ngrams(own, int(kind)), _ngrams(other, int(kind))
            both, sizes = sum((left & right).values()), (sum(left.values()), sum(right.values()))
        precision, recall = (both / max(size, 1) for size in sizes)
        return 2 * precision * recall / (precision + recall) if both else 0.0

    rows = []
    for several, text in zip(references, texts, strict=True):
        own = _letters(text)
        rows.append([max(f1(own, _letters(reference)) for reference in several), 1.0])
    return np.array(rows)


def _ratio(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1]) if sums[1] else 0.0


def _bleu(sums: np.ndarray) -> float:
    """BLEU from 0 to 1; orders without matches are smoothed by halves, as sacrebleu does by default."""
    matches, counts, (length, reference) = sums[0:8:2], sums[1:8:2], sums[8:]
    if not counts[0] or not matches.any():
        return 0.0
    precisions, smooth = [], 1.0
    for match, count in zip(matches, counts, strict=True):
        if not count:
            break
        smooth *= 1 if match else 2
        precisions.append(match / count if match else 1 / (smooth * count))
    brevity = 1.0 if length > reference else float(np.exp(1 - reference / length))
    return brevity * float(np.exp(np.sum(np.log(precisions)) / ORDER)) if len(precisions) == ORDER else 0.0


def _chrf(sums: np.ndarray) -> float:
    """chrF from 0 to 1: the F-score of the mean precision and recall over the orders that both sides have."""
    texts, references, both = sums[0::3], sums[1::3], sums[2::3]
    real = (texts > 0) & (references > 0)
    if not real.any():
        return 0.0
    precision, recall = (float((both[real] / side[real]).mean()) for side in (texts, references))
    return (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall) if precision + recall else 0.0


# name of a metric -> the statistics of texts, and from their sums to the metric
METRICS: dict[str, tuple[Callable[..., Statistics], Callable[[np.ndarray], float]]] = {
    "chrf": (chrf, _chrf),
    "bleu": (bleu, _bleu),
    "exact_match": (exact_match, _ratio),
    "word_error_rate": (word_error_rate, _ratio),
    "character_error_rate": (character_error_rate, _ratio),
    "rouge_1": (lambda references, texts: rouge(references, texts, "1"), _ratio),
    "rouge_2": (lambda references, texts: rouge(references, texts, "2"), _ratio),
    "rouge_l": (rouge, _ratio),
}


def _words_13a(text: str) -> list[str]:
    for old, new in _ENTITIES:
        text = text.replace(old, new)
    text = f" {text} "
    for pattern, replacement in _APART:
        text = pattern.sub(replacement, text)
    return text.split()


def _letters(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).split()


def _ngrams(tokens: Sequence, order: int) -> Counter:
    if isinstance(tokens, str):
        return Counter(tokens[i : i + order] for i in range(len(tokens) - order + 1))
    return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))


def _longest_common(left: Sequence, right: Sequence) -> int:
    best = [0] * (len(right) + 1)
    for token in left:
        diagonal = 0
        for column, other in enumerate(right, 1):
            diagonal, best[column] = (
                best[column],
                diagonal + 1 if token == other else max(best[column], best[column - 1]),
            )
    return best[-1]
