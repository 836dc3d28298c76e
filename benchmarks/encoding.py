"""Sentences a second that `Model.encode` reads, from text to vectors.

    python benchmarks/encoding.py FILE MODEL... [--count 50000] [--repeat 3]

FILE has a sentence a line, MODEL is what `keras_ctxrep.load` opens. Per CPU second of all threads and per second of
wall-clock time, the first time, when no word of the text is known yet, and the best of the other times. Prints a
Markdown table.
"""

import argparse
import os
import time
from itertools import islice

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_ctxrep as ctx
from keras_ctxrep.text.corpus import lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    sentences = list(islice((line for _, line in lines(args.file) if line.strip()), args.count))
    print(f"{len(sentences):,} sentences, {sum(map(len, sentences)) / len(sentences):.0f} characters each\n")
    print("| model | per CPU second, first | best | per second, first | best |\n|---|---|---|---|---|")
    for name in args.models:
        model = ctx.load(name)
        model.encode(["a"])  # which traces it
        rates = []
        for _ in range(1 + args.repeat):
            cpu, wall = time.process_time(), time.perf_counter()
            model.encode(sentences)
            rates.append((len(sentences) / (time.process_time() - cpu), len(sentences) / (time.perf_counter() - wall)))
        cells = [f"{rate:,.0f}" for column in zip(*rates, strict=True) for rate in (column[0], max(column[1:]))]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
