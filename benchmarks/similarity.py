"""Similarity of words by their contextual vectors, against people's judgements: Spearman's correlation on WordSim-353.

    python benchmarks/similarity.py FOLDER... --pairs EN-WS-353-ALL.txt --text train.txt [--glove glove.6B.50d.5k.txt]

A word's vector is the mean over up to `--contexts` sentences of the text in which it occurs, of each layer and of the
mean of all layers, as in Bommasani et al. 2020, https://aclanthology.org/2020.acl-main.431/. Layer 0 has no context.
Pairs of which a word is not in the text are left out, for all models alike. Prints the Markdown table of
docs/explanation/results.md.
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from keras_ctxrep import zoo
from keras_ctxrep.text.corpus import documents
from keras_ctxrep.text.tokens import words

LONGEST = 120  # characters of a sentence: at most so many pieces


def occurrences(text: Iterable[str], wanted: set[str], contexts: int) -> dict[str, list[str]]:
    """Word -> the first sentences that it occurs in."""
    found: dict[str, list[str]] = defaultdict(list)
    for sentence in text:
        if len(sentence) <= LONGEST:
            for word in {word.text.lower() for word in words(sentence)} & wanted:
                if len(found[word]) < contexts:
                    found[word].append(sentence)
    return found


def contextual(folder: Path, found: dict[str, list[str]]) -> dict[str, np.ndarray]:
    """Word -> its mean vectors, (N, D), of the encoder's layers."""
    from keras_ctxrep import saving
    from keras_ctxrep.inference.contextual_vectors import vectors

    model, bundle = saving.load(folder)

    def split(sentence: str) -> list[str]:
        return [word.text for word in words(sentence)]

    sums: dict[str, list[np.ndarray]] = defaultdict(list)
    owners: dict[str, list[str]] = defaultdict(list)
    for word, sentences in found.items():
        for sentence in sentences:
            owners[sentence].append(word)
    for sentence, numbers, layers in vectors(model, bundle, owners, split):
        tokens = split(sentence)
        at = {tokens[number].lower(): position for position, number in reversed([*enumerate(numbers)])}
        for word in owners[sentence]:
            if word in at:
                sums[word].append(layers[:, at[word]])
    return {word: np.mean(arrays, 0) for word, arrays in sums.items()}


def static(path: Path, found: dict[str, list[str]]) -> dict[str, np.ndarray]:
    """Word -> its vector in a file of GloVe's, (1, D)."""
    rows = (line.split() for line in path.read_text("utf-8").splitlines())
    return {row[0]: np.array([row[1:]], np.float32) for row in rows if row[0] in found}


def correlations(vectors: dict[str, np.ndarray], pairs: list[tuple[str, str, float]]) -> list[float]:
    """Spearman's correlation of each layer's cosines with the judgements, and that of the mean of all layers."""
    from scipy.stats import spearmanr

    words = [[first for first, _, _ in pairs], [second for _, second, _ in pairs]]
    sides = [np.stack([vectors[word] for word in side]) for side in words]  # (K, N, D)
    sides = [np.concatenate([side, side.mean(1, keepdims=True)], 1) for side in sides]
    cosines = (sides[0] * sides[1]).sum(-1) / np.prod([np.linalg.norm(side, axis=-1) for side in sides], 0)
    return [float(spearmanr(column, [score for *_, score in pairs]).statistic) for column in cosines.T]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="model folders, or names of the zoo")
    parser.add_argument("--pairs", type=Path, required=True, metavar="FILE")
    parser.add_argument("--text", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--glove", type=Path, metavar="FILE")
    parser.add_argument("--contexts", type=int, default=20, help="sentences for each word (default: 20)")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rows = (line.split() for line in args.pairs.read_text("utf-8").lower().splitlines())
    pairs = [(first, second, float(score)) for first, second, score in rows]
    text = (sentence for document in documents(args.text) for sentence in document)
    found = occurrences(text, {word for pair in pairs for word in pair[:2]}, args.contexts)
    models = {str(folder): contextual(zoo.find(folder), found) for folder in args.folders}
    if args.glove:
        models["GloVe"] = static(args.glove, found)
    used = [pair for pair in pairs if all(word in vectors for word in pair[:2] for vectors in models.values())]
    print(f"{len(used)} of {len(pairs)} pairs, up to {args.contexts} sentences a word\n")
    print("| model | layers | mean of the layers |\n|---|---|---|")
    for name, vectors in models.items():
        *layers, mean = correlations(vectors, used)
        print(f"| {name} | {', '.join(f'{value:.3f}' for value in layers)} | {mean:.3f} |")


if __name__ == "__main__":
    main()
