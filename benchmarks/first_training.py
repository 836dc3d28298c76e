"""What one waits for at the first calls of training, export and serving: CPU seconds of fresh processes.

    python benchmarks/first_training.py
    python benchmarks/first_training.py --rounds 1 --encoder static_128/books_wiki_en

CPU seconds of all threads, the most that is aimed at, and seconds; the median of some rounds. 32 short texts are
classified: the model is fine-tuned twice in one process, exported in the next, and opened in the third; then `ctxrep
serve` answers with its folder. "finetune" and "export" are counted from the import of TensorFlow on, "load the export"
and "serve, ready" from the start of the process. "serve, first line" has what comes before the server says something.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import figures

MARKS = """
import resource, sys, time
def mark(name=None, last=[0.0, time.perf_counter()]):
    usage = resource.getrusage(resource.RUSAGE_SELF)
    now = [usage.ru_utime + usage.ru_stime, time.perf_counter()]
    if name:
        print("MARK", name, now[0] - last[0], now[1] - last[1], sep="\\t", flush=True)
    last[:] = now
import keras_ctxrep as ctx
from keras_ctxrep.inference.silence import start_tensorflow
"""
TRAIN = """
encoder, folder = sys.argv[1:]
start_tensorflow()
mark("tensorflow")
subjects = ("first", "second", "old", "new", "long", "short", "french", "silent")
texts = [f"the {subject} film was {word}" for subject in subjects for word in ("good", "bad", "great", "terrible")]
labels = ["good", "bad"] * 16
for name in ("finetune, first", "finetune, second"):
    model = ctx.finetune((texts, labels), encoder=encoder, verbose=False)
    mark(name)
model.save(folder)
"""
EXPORT = """
folder, out = sys.argv[1:]
start_tensorflow()
model = ctx.load(folder)
mark()
model.export(out)
mark("export")
"""
LOAD = """
model = ctx.load(sys.argv[1])
mark("load the export")
model.predict(["a good film"])
mark("its first answer")
"""
TARGETS = {
    "tensorflow": None,
    "finetune, first": 6.0,
    "finetune, second": 2.0,
    "export": 8.0,
    "load the export": 5.0,
    "its first answer": None,
    "serve, first line": 0.5,
    "serve, ready": 5.0,
    "serve, first answer": 0.2,
}
WAIT = 600  # seconds for a server that does not get ready


def run(code: str, *arguments: str | Path) -> dict[str, dict[str, float]]:
    """The marks of a fresh process."""
    command = [sys.executable, "-c", MARKS + code, *map(str, arguments)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    lines = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.splitlines()
    marks = [line.split("\t")[1:] for line in lines if line.startswith("MARK\t")]
    return {name: {"cpu_seconds": float(cpu), "seconds": float(seconds)} for name, cpu, seconds in marks}


def cpu_of(process: subprocess.Popen) -> float:
    """CPU seconds of a process that runs (Linux)."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(folder: Path) -> dict[str, dict[str, float]]:
    """The first line of a server, when it is ready, and its first answer."""
    command = [sys.executable, "-m", "keras_ctxrep.cli", "serve", str(folder), "--port", "0"]
    result, begin = {}, time.perf_counter()
    server: Any = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:

        def measured(before: float = 0.0, since: float = begin) -> dict[str, float]:
            return {"cpu_seconds": cpu_of(server) - before, "seconds": time.perf_counter() - since}

        server.stderr.readline()
        result["serve, first line"] = measured()
        url = server.stdout.readline().strip()
        result["serve, ready"] = measured()
        before, since = cpu_of(server), time.perf_counter()
        body = json.dumps({"instances": [{"text": "the new film was a great one"}]}).encode()
        with urllib.request.urlopen(f"{url}:predict", body, timeout=WAIT) as answer:
            answer.read()
        result["serve, first answer"] = measured(before, since)
    finally:
        server.terminate()
        server.communicate()
    return result


def measure(encoder: str, folder: Path) -> dict[str, dict[str, float]]:
    """All calls, one after the other."""
    model, export = folder / "model", folder / "export"
    return run(TRAIN, encoder, model) | run(EXPORT, model, export) | run(LOAD, export) | serve(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--encoder", default="bert_3_384_12/books_wiki_en", metavar="NAME", help="(default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rounds = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(measure(args.encoder, Path(folder)))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{'':20} CPU s  target  seconds    ({children.ru_utime + children.ru_stime:.0f} CPU seconds in all)")
    for name, target in TARGETS.items():
        cpu = statistics.median(result[name]["cpu_seconds"] for result in rounds)
        seconds = [result[name]["seconds"] for result in rounds]
        figures.row("first training", name, seconds, cpu_seconds=cpu, target_cpu_seconds=target)
        aimed_at = "" if target is None else f"{target:.1f}"
        print(f"{name:20} {cpu:5.2f}  {aimed_at:>6}  {statistics.median(seconds):7.2f}")


if __name__ == "__main__":
    main()
