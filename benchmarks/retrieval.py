"""Encoders as they are, without training: similarity of sentences, and the paragraph that answers a question.

    python benchmarks/retrieval.py MODEL... --sts sts-dev.csv --squad dev-v1.1.json [--questions 2000]

Each MODEL is what `keras_ctxrep.load` opens. STS-B: Spearman's correlation of the cosines with the scores, x 100.
SQuAD: every paragraph of the file is a row of an index, and each question looks for its own; of the questions a random
sample, seed 0. nDCG@10, MRR@10 and recall@k are those of `keras_ctxrep.text.retrieval`, with one
relevant row a query. Prints a Markdown table.
"""

import argparse
import csv
import random
import time
from functools import partial
from pathlib import Path

import numpy as np

import keras_ctxrep as ctx
from keras_ctxrep.text import files, retrieval, scores

KS = (1, 5, 10, 100)


def sts(path: Path) -> tuple[list[str], list[str], list[float]]:
    """First sentences, second sentences and scores of STS-Benchmark."""
    with open(path, encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row[5] for row in rows], [row[6] for row in rows], [float(row[4]) for row in rows]


def squad(path: Path, count: int) -> tuple[list[str], list[tuple[str, int]]]:
    """The paragraphs, and some questions with the number of their paragraph."""
    numbers: dict[str, int] = {}
    questions = []
    for _, read in files.squad(path, ["question"]):
        row = read()
        questions.append((row["question"], numbers.setdefault(row["context"], len(numbers))))
    return [*numbers], random.Random(0).sample(questions, min(count, len(questions)))


def metrics(rankings: list[list[int]], relevant: list[int]) -> dict[str, float]:
    """The means over queries, of each of which one row is relevant."""
    pairs = [(ranking, {number}) for ranking, number in zip(rankings, relevant, strict=True)]
    measures = {"nDCG@10": partial(retrieval.ndcg, cut=10), "MRR@10": partial(retrieval.reciprocal_rank, cut=10)}
    measures |= {f"recall@{k}": partial(retrieval.recall, cut=k) for k in KS}
    return {name: float(np.mean([measure(*pair) for pair in pairs])) for name, measure in measures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--sts", type=Path)
    parser.add_argument("--squad", type=Path)
    parser.add_argument("--questions", type=int, default=2000)
    args = parser.parse_args()
    columns = (["STS-B"] if args.sts else []) + ([*metrics([[0]], [0])] if args.squad else [])
    print(f"| encoder | {' | '.join(columns)} | s |\n|---|{'---|' * (len(columns) + 1)}", flush=True)
    for name in args.models:
        begin, model, values = time.perf_counter(), ctx.load(name), {}
        if args.sts:
            first, second, gold = sts(args.sts)
            left, right = model.encode(first), model.encode(second)
            lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
            values["STS-B"] = 100 * scores.spearman((left * right).sum(1) / lengths, np.array(gold))
        if args.squad:
            paragraphs, questions = squad(args.squad, args.questions)
            index = ctx.Index.of_texts(paragraphs, model)
            found = index.search([question for question, _ in questions], max(KS))
            rankings = [[hit.number for hit in hits] for hits in found]
            values |= {name: 100 * value for name, value in metrics(rankings, [n for _, n in questions]).items()}
        seconds = time.perf_counter() - begin
        print(f"| {name} | {' | '.join(f'{values[column]:.1f}' for column in columns)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
