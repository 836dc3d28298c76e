"""How fast pretraining data is prepared, how much of it is padding, and how long a training step waits for it.

    python benchmarks/pipeline.py --corpus FILE... [--vocab vocab.txt] [--steps 50] [--family elmo|bert ...]

Preparation: MB of text and pass per second of CPU time, all threads and kernel time included, in this process with one
thread for the tokenizer; TensorFlow is loaded before, and the figure includes held-out text and hashes.

Training: the model learns for some steps from raw text and from the prepared folder. The share of waiting is the time
in `next(iterator)` over the time of a step with it, after five steps of warm-up. Padding is the share of positions
without a token in the batches of the input alone. On a CPU a step takes so long that waiting is near zero for any
input; the speed of the input alone, without a model, shows what one process could feed an accelerator with.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import tempfile
import time
from pathlib import Path

import tensorflow as tf

from keras_ctxrep import optimizers, recipes
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.options import Pretraining
from keras_ctxrep.recipes import pretraining
from keras_ctxrep.training import fit, strategy

SIZES = {"bert": "bert_4_256_4", "elmo": "elmo_2x1024_128_2048cnn_1xhighway"}
WARM = 5


def training(family: str, corpus: list[Path], args: argparse.Namespace) -> None:
    """Prints padding, the share of waiting, and the speed of the input alone."""
    given = {"vocab": args.vocab} if args.vocab and family == "bert" and not corpus[0].is_dir() else {}
    settings = Pretraining(steps=1, size=args.size or SIZES[family], batch_size=args.batch_size, **given)
    _, initial, config = pretraining._start(family, settings)
    plan = pretraining._RECIPES[family].plan(corpus, settings, initial, config)
    with strategy.scope(args.precision):
        model = fit.compile(plan.model(), optimizers.AdamW(1e-3))
    iterator = iter(plan.data(0))
    waited = begin = 0.0
    for number in range(args.steps + WARM):
        if number == WARM:
            begin, waited = time.perf_counter(), 0.0
        before = time.perf_counter()
        batch = next(iterator)
        waited += time.perf_counter() - before
        model.train_on_batch(*batch)  # gives the loss, and so waits for the device
    total = time.perf_counter() - begin
    print(f"    {args.steps / total:.2f} steps/s, waiting {waited / total:.2%} of step time")
    begin, real, size = time.perf_counter(), 0, 0
    for batch in plan.data(0).take(args.batches):
        real, size = real + int(tf.reduce_sum(batch[0]["mask"])), size + int(tf.size(batch[0]["mask"]))
    rate, padding = args.batches * args.batch_size / (time.perf_counter() - begin), 1 - real / size
    print(f"    input alone, from the first batch on: {rate:,.0f} examples/s, padding {padding:.1%} of tokens")


def preparation(family: str, corpus: list[Path], out: Path, copies: int, args: argparse.Namespace, **more) -> None:
    options = {"vocab": args.vocab, "copies": copies} if family == "bert" else {}
    megabytes = sum(path.stat().st_size for path in corpus) / 1e6 * (copies if family == "bert" else 1)
    wall, cpu = time.perf_counter(), time.process_time()
    recipes.prepare(corpus, out, family=family, **options, **more)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    kind = f"{copies} passes" if family == "bert" else "split into words"
    print(f"  prepared, {kind} {more or ''}: {megabytes:.0f} MB, {cpu:.1f} s of CPU, {wall:.1f} s elapsed: ", end="")
    print(f"{megabytes / cpu:.2f} MB/s per core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="plain text files")
    parser.add_argument("--family", nargs="+", choices=sorted(FAMILIES.keys() & SIZES.keys()), default=[*SIZES])
    parser.add_argument("--vocab", type=Path, help="BERT's pieces; learned from the corpus if left out")
    parser.add_argument("--size", help="a published size (default: a small one)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batches", type=int, default=1000, help="of the input alone")
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for family in args.family:
            folder = Path(temporary) / family
            print(f"{family}, {args.size or SIZES[family]}, batches of {args.batch_size}:")
            if family == "bert":
                preparation(family, args.corpus, folder / "whole", 1, args, whole_words=True)
                preparation(family, args.corpus, folder / "ten", 10, args)
            preparation(family, args.corpus, folder / "one", 1, args)
            for title, corpus in (("raw text", args.corpus), ("prepared", [folder / "one"])):
                print(f"  training from {title}:")
                training(family, corpus, args)


if __name__ == "__main__":
    main()
