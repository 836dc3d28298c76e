"""A biLM trained for some minutes against counted n-grams of the same text: full-softmax perplexity on held-out text.

    python benchmarks/perplexity.py --train train.txt --valid valid.txt --minutes 30 --out lm
    python benchmarks/perplexity.py --train train.txt... --valid valid.txt --counts FOLDER      the n-grams alone

Prints the curve as the Markdown table of docs/explanation/results.md. The n-gram models predict the same words of the
same vocabulary, sentence ends included, of the same sentences, from left to right. The folder keeps the model; with
`--out` of an interrupted run it goes on. `--counts` takes the vocabulary of a trained biLM, and scores it too.
"""

import argparse
import os
import platform
from collections.abc import Sequence

import numpy as np

from keras_ctxrep.text.corpus import documents
from keras_ctxrep.text.ngrams import KneserNey
from keras_ctxrep.text.pretraining import Vocabulary
from keras_ctxrep.text.tokens import words


def counted(train: Sequence[str], valid: str, vocabulary: Vocabulary, orders=(1, 2, 3, 5)) -> dict[int, float]:
    """Order -> perplexity of interpolated Kneser-Ney."""

    def ids(paths: Sequence[str]) -> list[np.ndarray]:
        sentences = ([word.text for word in words(line)] for document in documents(paths) for line in document)
        return [vocabulary.ids(sentence) for sentence in sentences if sentence]

    text, held = ids(train), ids([valid])
    scores = {}
    for order in orders:
        scores[order] = KneserNey(text, order, len(vocabulary), 0, 1).perplexity(held)
        print(f"  {order}-gram {scores[order]:.1f}", flush=True)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, nargs="+", metavar="FILE")
    parser.add_argument("--valid", required=True, metavar="FILE")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", metavar="FOLDER", help="of the biLM that is trained")
    where.add_argument("--counts", metavar="FOLDER", help="of a biLM that is trained already")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--size", default="elmo_2x128_64_256cnn_1xhighway")
    parser.add_argument("--vocab-size", type=int, default=30_000)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=48, help="sentences")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--no-counts", action="store_true", help="leave the n-grams out")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    from keras_ctxrep import recipes
    from keras_ctxrep.text import bundle

    if args.counts:
        print(recipes.score(args.counts, args.valid))
        counted(args.train, args.valid, Vocabulary(bundle.load(args.counts).vocab))
        return
    history = recipes.pretrain(
        "elmo",
        args.train,
        args.out,
        size=args.size,
        valid=args.valid,
        vocab_size=args.vocab_size,
        samples=args.samples or None,
        batch_size=args.batch_size,
        minutes=args.minutes,
        learning_rate=args.learning_rate,
        dropout=args.dropout,
        evaluations=6,
        report=lambda entry: print({name: round(value, 3) for name, value in entry.items()}, flush=True),
    )
    vocabulary = Vocabulary(bundle.load(args.out).vocab)
    score = recipes.score(args.out, args.valid)
    print(f"{args.size}, {len(vocabulary):,} words, on {platform.processor() or platform.machine()}")
    print("| minutes | steps | forward | backward |\n|---|---|---|---|")
    for entry in history:
        forward, backward = (entry[f"val_{way}_logits_perplexity"] for way in ("forward", "backward"))
        print(f"| {entry['minutes']:.1f} | {entry['step']:,} | {forward:.1f} | {backward:.1f} |")
    count = sum(len(words(line)) + 1 for document in documents(args.train) for line in document)
    lines = sum(len(document) for document in documents(args.train))
    read = history[-1]["step"] * args.batch_size * count / lines
    rate = read / (60 * history[-1]["minutes"])
    print(f"about {read / 1e6:.1f} million words, {read / count:.1f} passes, {rate:,.0f} words/s with validation")
    print(score)
    if not args.no_counts:
        print("counted on the same text:")
        counted(args.train, args.valid, vocabulary)


if __name__ == "__main__":
    main()
