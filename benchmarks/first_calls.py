"""What the first calls of a user cost: each in a fresh process, from its start to its end.

    python benchmarks/first_calls.py
    python benchmarks/first_calls.py import sentiment_en --rounds 1
    python benchmarks/first_calls.py sentiment_en --engine keras

CPU seconds of all threads, and the most that is aimed at; seconds; of a model the bytes of its files, with those of
the encoder that it changes. The median of some rounds, in which the calls take turns. "tensorflow" is its import
alone, for comparison.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import figures

MODEL = """
import sys, keras_ctxrep as ctx
name, engine, *arguments = sys.argv[1:]
ctx.load(name, engine=engine)(*arguments)
"""
TEXT = "Angela Merkel met Tim Cook in Berlin, and the talks went well."


class Call(NamedTuple):
    """A call that is measured.

    Attributes:
        code: of Python, which finds in `sys.argv` the name of the call, the engine and then `arguments`.
        target: CPU seconds that are aimed at; None: none.
        model: whether the call's name is that of a model of the package, whose size is shown.
    """

    code: str
    arguments: tuple[str, ...] = ()
    target: float | None = None
    model: bool = False


def first_answer(*arguments: str) -> Call:
    """The first answer of the model of this name, to these arguments."""
    return Call(MODEL, arguments, 3.0, model=True)


CALLS = {
    "tensorflow": Call("import tensorflow"),
    "import": Call("import keras_ctxrep", target=0.1),
    "help": Call("from keras_ctxrep.cli.main import main; main(['--help'])", target=0.3),
    "sentiment_en": first_answer(TEXT),
    "names_en": first_answer(TEXT),
    "answers_en": first_answer("Who met Tim Cook?", TEXT),
    "similar_en": first_answer(TEXT),
    "masked_en": first_answer("Deep learning [MASK] fun."),
    "bert_3_384_12/books_wiki_en": first_answer(TEXT),
    "elmo_2x512_128_512cnn_1xhighway/books_wiki_en": first_answer(TEXT),
    "static_128/books_wiki_en": first_answer(TEXT),
    "glove_50/6b": first_answer(TEXT),
    "g2p_en": first_answer("knight"),
}


def measure(name: str, engine: str) -> dict[str, float]:
    """One fresh process."""
    call = CALLS[name]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", call.code, name, engine, *call.arguments]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": time.perf_counter() - begin, "cpu_seconds": cpu}


def size(name: str) -> int:
    """Bytes of the files of a model, and of its encoder."""
    from keras_ctxrep import zoo
    from keras_ctxrep.text import bundle as bundles

    folder = zoo.find(name)
    base = bundles.load(folder).base.get("name")
    return sum(path.stat().st_size for path in Path(folder).iterdir()) + (size(base) if base else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"(default: {', '.join(CALLS)})")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="auto", choices=("auto", "keras"), help="of models (default: auto)")
    args = parser.parse_args()
    if unknown := {*args.names} - {*CALLS}:
        parser.error(f"{unknown.pop()}: one of {', '.join(CALLS)}")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in args.names or CALLS}
    for _ in range(args.rounds):
        for name, runs in rounds.items():
            runs.append(measure(name, args.engine))
    print(f"{'':45} CPU s  target  seconds     MB")
    for name, runs in rounds.items():
        cpu = statistics.median(run["cpu_seconds"] for run in runs)
        seconds, target = [run["seconds"] for run in runs], CALLS[name].target
        megabytes = size(name) / 1e6 if CALLS[name].model else 0
        figures.row("first calls", name, seconds, cpu_seconds=cpu, target_cpu_seconds=target, megabytes=megabytes)
        aimed_at = "" if target is None else f"{target:.1f}"
        shown = f"{megabytes:6.1f}" if megabytes else ""
        print(f"{name:45} {cpu:5.2f}  {aimed_at:>6}  {statistics.median(seconds):7.2f} {shown}".rstrip())


if __name__ == "__main__":
    main()
