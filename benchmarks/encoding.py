"""What encoders cost from text to vectors or scores: sentences a second, and the cost of a token in long texts.

    python benchmarks/encoding.py sentences FILE MODEL... [--count 50000] [--repeat 3]
    python benchmarks/encoding.py lengths [--quick]

"sentences": FILE has a sentence a line, MODEL is what `keras_ctxrep.load` opens. `Model.encode`, per CPU second of all
threads and per second of wall-clock time, the first time, when no word of the text is known yet, and the best of the
other times.

"lengths": CPU time of one text, on one thread, by its tokens, all of it and of 1,000 tokens. "Compared" is the ratio of
the latter to that of the shortest text: a cost that is linear in the length stays near 1. Weights are random, all words
of a text differ, engines and lengths take turns.

* A BERT of the size that comes with the package reads a long text in windows of 128 tokens, each half of the one before
  and half new: a classifier by `Model.predict`. But for the ends of the text a token is thus read twice: "read" is the
  number of tokens in all windows.
* A biLM, the small published size, reads the whole text at once by `Model.encode`. The .tflite file has one signature
  for each length.
* A book, line by line, by `recipes.embed` with `carry_state`, each line from the state that the one before ended with,
  in a process of its own: also its greatest memory after the first lines.

Prints Markdown tables.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import figures
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_ctxrep as ctx
from keras_ctxrep.text.corpus import lines

SHIPPED = "bert_3_384_12/books_wiki_en"
FIRST = 20  # lines of a book that are not measured


@dataclass(frozen=True)
class Sizes:
    """Of "lengths": the models, the tokens of a window, those of the texts, and the words of the books."""

    bert: str = "bert_3_384_12"
    bilm: str = "elmo_2x1024_128_2048cnn_1xhighway"
    window: int = 128
    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)
    books: tuple[int, ...] = (2_000, 20_000, 100_000)


FULL = Sizes()
QUICK = Sizes("bert_2_64_2", "elmo_2x128_64_256cnn_1xhighway", 16, (16, 48), (800,))


# ---------------------------------------------------------------------------------------------------------- sentences


def sentences(args: argparse.Namespace) -> None:
    texts = list(islice((line for _, line in lines(args.file) if line.strip()), args.count))
    print(f"{len(texts):,} sentences, {sum(map(len, texts)) / len(texts):.0f} characters each\n")
    print("| model | per CPU second, first | best | per second, first | best |\n|---|---|---|---|---|")
    for name in args.models:
        model = ctx.load(name)
        model.encode(["a"])  # which traces it
        rates = []
        for _ in range(1 + args.repeat):
            cpu, wall = time.process_time(), time.perf_counter()
            model.encode(texts)
            rates.append((len(texts) / (time.process_time() - cpu), len(texts) / (time.perf_counter() - wall)))
        cells = [f"{rate:,.0f}" for column in zip(*rates, strict=True) for rate in (column[0], max(column[1:]))]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


# ------------------------------------------------------------------------------------------------------------ lengths


def lengths(args: argparse.Namespace) -> None:
    one_thread()
    sizes = QUICK if args.quick else FULL
    rounds = 1 if args.quick else args.rounds
    with tempfile.TemporaryDirectory() as temporary:
        bert, bilm = build(Path(temporary), sizes)
        measure_texts(bert, bilm, sizes, rounds)
        books = {n: [read_in_process(bilm, n) for _ in range(rounds)] for n in sizes.books}
    seconds = {n: [book["cpu_seconds"] for book in every] for n, every in books.items()}
    memory = {n: statistics.median(book["memory_mb"] for book in every) for n, every in books.items()}
    show(f"{sizes.bilm}, a book line by line, its state carried on", seconds, {n: n for n in books}, memory)


def one_thread() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def measure_texts(bert: Path, bilm: Path, sizes: Sizes, rounds: int) -> None:
    runs: dict[str, dict[int, Callable[[], Any]]] = {}
    read: dict[str, dict[int, int]] = {}
    for engine, model in engines(bert, [sizes.window]).items():
        texts = {n: text(n - 2) for n in sizes.lengths}  # [CLS] and [SEP] too
        title = f"{sizes.bert} in windows of {sizes.window}, {engine}"
        runs[title] = {n: partial(model.predict, [each]) for n, each in texts.items()}
        read[title] = {n: tokens_of_windows(model.bundle, each) for n, each in texts.items()}
    for engine, model in engines(bilm, sizes.lengths).items():
        title = f"{sizes.bilm}, {engine}"
        runs[title] = {n: partial(model.encode, [text(n)]) for n in sizes.lengths}
        read[title] = {n: n for n in sizes.lengths}
    seconds = {title: {n: [] for n in by_length} for title, by_length in runs.items()}
    for number in range(rounds + 1):  # the first one warms up
        for title, by_length in runs.items():
            for n, run in by_length.items():
                begin = time.process_time()
                run()
                if number:
                    seconds[title][n].append(time.process_time() - begin)
    for title, by_length in seconds.items():
        show(title, by_length, read[title])


def build(work: Path, sizes: Sizes) -> tuple[Path, Path]:
    """The model folders of a classifier over a BERT, which reads windows, and of a biLM, with random weights."""
    from keras_ctxrep import saving, tasks
    from keras_ctxrep.models import bert, elmo

    shipped = bundle_of_bert()
    config = asdict(bert.SIZES[sizes.bert]) if sizes.bert in bert.SIZES else shipped.config
    config |= {"vocabulary_size": len(shipped.vocab)}
    fields = {"labels": ("no", "yes"), "vocab": shipped.vocab, "lowercase": True, **tasks.bundle_fields("classify")}
    classifier = ctx.Bundle("bert", config=config, max_length=sizes.window, **fields)
    encoder = ctx.Bundle("elmo", "embed", asdict(elmo.SIZES[sizes.bilm]), max_length=max(sizes.lengths))
    for bundle in (tasks.windowed(classifier, "mean"), encoder):
        saving.save(work / bundle.family, saving.build(bundle), bundle)
    return work / "bert", work / "elmo"


def bundle_of_bert() -> ctx.Bundle:
    """That of the BERT that comes with the package."""
    from keras_ctxrep import zoo
    from keras_ctxrep.text import bundle as bundles

    return bundles.load(zoo.find(SHIPPED))


def engines(folder: Path, every: Sequence[int]) -> dict[str, ctx.Model]:
    """A model in Keras, and in a .tflite file with a signature for each length."""
    from keras_ctxrep_tflite.quantize import convert

    file = convert(folder, folder.with_suffix(".tflite"), lengths=every)
    return {"Keras": ctx.load(folder), ".tflite": ctx.load(file)}


@cache
def words() -> list[str]:
    """Words that are one piece of the BERT, in random order."""
    vocab = bundle_of_bert().vocab
    whole = [piece for piece in vocab if piece.isascii() and piece.isalpha() and len(piece) > 2]
    return np.random.default_rng(0).permutation(whole).tolist()


def text(count: int) -> str:
    """So many different words."""
    return " ".join(words()[:count])


def tokens_of_windows(bundle: ctx.Bundle, text: str) -> int:
    return sum(map(len, bundle.features.text_windows([text], bundle.settings["stride"])[0]))


def read_in_process(folder: Path, count: int) -> dict[str, float]:
    command = [sys.executable, __file__, "book", str(folder), "--words", str(count)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])


def book(args: argparse.Namespace) -> None:
    """Reads a book of so many words, in lines of 5 to 35, and prints what it costs after the first 20 lines."""
    from keras_ctxrep import recipes

    one_thread()
    rng, known, begin, left, first = np.random.default_rng(1), words(), 0.0, args.words, 0

    def book_lines() -> Iterator[str]:
        nonlocal left
        while left > 0:
            size = min(left, int(rng.integers(5, 36)))
            left -= size
            yield " ".join(known[number] for number in rng.integers(len(known), size=size))

    def progress(done: int) -> None:
        nonlocal begin, first
        if done == FIRST:
            figures.reset_peak()
            begin, first = time.process_time(), args.words - left

    with tempfile.TemporaryDirectory() as out:
        options = {"layers": "top", "carry_state": True, "batch_size": 1, "dtype": "float16"}
        recipes.embed(args.folder, book_lines(), Path(out) / "book.npz", progress, **options)
    seconds = (time.process_time() - begin) * args.words / (args.words - first)
    print(json.dumps({"cpu_seconds": seconds, "memory_mb": figures.peak()}))


def show(
    title: str, seconds: dict[int, list[float]], read: dict[int, int], memory: dict[int, float] | None = None
) -> None:
    """Prints a table, and writes its rows for run.py."""
    medians = {n: statistics.median(values) for n, values in seconds.items()}
    first = min(medians)
    print(f"\n{title}, CPU ms\n")
    print("| tokens | read | all | 1,000 tokens | compared | 1,000 read | compared | spread | MB |")
    print("|---" * 9 + "|")
    for n, median in medians.items():
        cells = [f"{n:,}", f"{read[n]:,}", f"{1000 * median:,.1f}"]
        for counts in ({n: n for n in read}, read):
            cells += [f"{1e6 * median / counts[n]:,.1f}", f"{median / counts[n] * counts[first] / medians[first]:.2f}"]
        cells += [f"{max(seconds[n]) / min(seconds[n]):.2f}", f"{memory[n]:,.0f}" if memory else ""]
        print(f"| {' | '.join(cells)} |", flush=True)
        more: dict[str, Any] = {"tokens": n} | ({"memory_mb": memory[n]} if memory else {})
        row = f"{n:,} tokens" + (f", {read[n]:,} in windows" if read[n] > n else "")
        table = f"{title}, CPU time of 1,000 tokens"
        figures.row(table, row, [1000 * value / n for value in seconds[n]], **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("sentences")
    part.add_argument("file")
    part.add_argument("models", nargs="+")
    part.add_argument("--count", type=int, default=50_000)
    part.add_argument("--repeat", type=int, default=3)
    part = parts.add_parser("lengths")
    part.add_argument("--rounds", type=int, default=3)
    part.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    part = parts.add_parser("book", help="one process of `lengths`")
    part.add_argument("folder")
    part.add_argument("--words", type=int, required=True)
    args = parser.parse_args()
    {"sentences": sentences, "lengths": lengths, "book": book}[args.part](args)


if __name__ == "__main__":
    main()
