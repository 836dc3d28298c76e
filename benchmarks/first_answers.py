"""What the first answer of each model that comes with the package costs: a fresh process, from `import` to the answer.

    python benchmarks/first_answers.py
    python benchmarks/first_answers.py sentiment_en --rounds 1 --engine auto

CPU seconds of all threads, seconds, and the bytes of the model's files, with those of the
encoder that it changes. "none" is the import of TensorFlow alone, in which most of the time goes. With `--engine auto`
texts are answered by LiteRT, from a file that the first call writes into the cache; the second call counts.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import figures

CODE = """
import sys, keras_ctxrep as ctx
name, engine, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
if name == "none":
    import tensorflow
else:
    ctx.load(name, engine=engine)(*arguments)
"""
TEXT = "Angela Merkel met Tim Cook in Berlin, and the talks went well."
CALLS = {
    "none": (),
    "sentiment_en": (TEXT,),
    "names_en": (TEXT,),
    "answers_en": ("Who fell?", TEXT),
    "similar_en": (TEXT,),
    "masked_en": ("Deep learning [MASK] fun.",),
    "static_128/books_wiki_en": (TEXT,),
    "glove_50/6b": (TEXT,),
    "g2p_en": ("knight",),
}


def measure(name: str, engine: str) -> dict[str, float]:
    """One fresh process."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", CODE, name, engine, *CALLS[name]]
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
    parser.add_argument("names", nargs="*", help=f"(default: {', '.join(CALLS)})")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="keras", choices=("keras", "auto"))
    args = parser.parse_args()
    names = args.names or [*CALLS]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for name in names if args.engine == "auto" else ():
        measure(name, args.engine)
    for _ in range(args.rounds):
        for name, runs in rounds.items():
            runs.append(measure(name, args.engine))
    for name, runs in rounds.items():
        cpu = statistics.median(run["cpu_seconds"] for run in runs)
        seconds = [run["seconds"] for run in runs]
        megabytes = 0 if name == "none" else size(name) / 1e6
        figures.row("the first answer", name, seconds, cpu_seconds=cpu, megabytes=megabytes)
        print(f"{name:26} {cpu:6.1f} CPU s  {statistics.median(seconds):6.1f} s  {megabytes:6.1f} MB")


if __name__ == "__main__":
    main()
