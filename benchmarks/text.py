"""How fast text is prepared: MB of English per second on one core.

    python benchmarks/text.py FILE            5 MB of it, five passes each, interleaved; the median is printed

Without a file the language reference of Python is repeated up to 5 MB, which flatters the cache of words.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core

import argparse
import platform
import statistics
import time
from collections.abc import Callable

from keras_ctxrep.text.features import CharacterFeatures, WordPieceFeatures
from keras_ctxrep.text.tokens import WordPiece, read_vocab, words

SIZE = 5_000_000


def read(path: str | None) -> list[str]:
    """Lines, 5 MB of them."""
    if path is None:
        from pydoc_data.topics import topics

        text = "\n".join(topics.values())
        return (text * (SIZE // len(text) + 1))[:SIZE].split("\n")
    with open(path, encoding="utf-8") as file:
        return file.read(SIZE).split("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--vocab", help="a BERT vocab.txt (default: 8,000 pieces learned from the text)")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    lines = [line for line in read(args.file) if line]
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    pieces = WordPiece(read_vocab(args.vocab)) if args.vocab else WordPiece.train(lines, 8000)
    wordpiece, characters = WordPieceFeatures(pieces), CharacterFeatures()

    def batched(features) -> Callable[[], None]:
        def run() -> None:
            rows = features.encode(lines)
            for begin in range(0, len(rows), 32):
                features.collate(rows[begin : begin + 32])

        return run

    jobs: dict[str, Callable[[], object]] = {
        "split into words, with offsets": lambda: [words(line) for line in lines],
        "ELMo character ids, in batches of 32": batched(characters),
        "WordPiece with offsets": lambda: [
            pieces.encode_batch(lines[i : i + 1000]) for i in range(0, len(lines), 1000)
        ],
        "BERT's input, in batches of 32": batched(wordpiece),
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(5):
        for name, job in jobs.items():
            begin = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - begin)
    print(f"{megabytes:.1f} MB, {len(lines):,} lines, one core of {platform.machine()}")
    for name, times in seconds.items():
        print(f"{name:40} {megabytes / statistics.median(times):5.1f} MB/s")


if __name__ == "__main__":
    main()
