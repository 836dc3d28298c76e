"""Runs that are killed at random moments, and go on: do they end with the weights of an undisturbed run?

    python benchmarks/kills.py --corpus TEXT [--kills 20] [--signals SIGKILL SIGTERM SIGINT]

Each command runs undisturbed once. In another folder it is ended by one of the signals `--kills` times, each time at a
moment drawn uniformly from the first third of the time that the undisturbed run took (`--within`), and started again;
the last start runs to its end. What the ended commands printed last is shown, and tracebacks in it are counted. Two
workers are ended one at a time; the other one ends by itself, or after a minute of waiting for this one to begin. The
largest difference of any weight is printed (infinite where prepared files differ); exit status 1 if it is above 0, or
above 1e-5 for two workers.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from tabulate import tabulate

from keras_ctxrep.training.strategy import local_cluster

ELMO = "pretrain elmo --size elmo_2x128_64_256cnn_1xhighway --steps 200 --batch-size 8 --unroll 8 --samples 50"
BERT = "pretrain bert --size bert_2_64_2 --steps 200 --batch-size 8 --max-length 32 --vocab-size 500"
RUN = "--evaluations 4 --checkpoint-minutes 0 --corpus {corpus}"
FINE = "--data {data} --dev {data} --batch-size 8 --evaluations 4 --checkpoint-minutes 0"
COMMANDS = {
    "pretrain elmo": f"{ELMO} {RUN}",
    "pretrain bert": f"{BERT} {RUN}",
    "pretrain lm": f"pretrain lm --steps 200 --batch-size 8 --unroll 8 {RUN}",
    "pretrain static": f"pretrain static --dims 16 --epochs 20 --batch-size 32 {RUN}",
    "train": f"train --task classify --encoder words --steps 400 --stack lstm --units 32 {FINE}",
    "similar": "train --task similar --data {pairs} --dev {few_pairs} --encoder {teacher} --steps 200 --batch-size 8 "
    "--evaluations 4 --checkpoint-minutes 0",
    "distill": f"distill {{classifier}} --encoder {{teacher}} --steps 200 {FINE}",
    "distill from text": f"distill {{teacher}} --layers 1 --steps 200 --batch-size 8 {RUN}",
    "distill static": f"distill {{teacher}} --static --dims 16 --batch-size 32 --passes 10 {RUN}",
    "prepare": "prepare bert --corpus {corpus} --max-length 64 --vocab-size 500 --copies 4",
    "two workers": f"{ELMO} {RUN}",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="text, one sentence a line, of which 3,000 lines are read")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--signals", choices=["SIGKILL", "SIGTERM", "SIGINT"], nargs="+", default=["SIGKILL"])
    parser.add_argument("--within", type=float, default=1 / 3, help="fraction of the undisturbed run")
    parser.add_argument("--only", choices=COMMANDS, nargs="+", default=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = written(args.corpus, folder)
        if any("{teacher}" in COMMANDS[name] for name in args.only):
            files |= taught(files, folder)
        for name in args.only:
            command = cli(COMMANDS[name], files)
            workers = 2 if name == "two workers" else 1
            began = time.monotonic()
            finished(started(command, folder / f"{name} undisturbed", workers))
            seconds = time.monotonic() - began
            within, out = args.within * seconds, folder / f"{name} killed"
            kills, tracebacks = killed(command, out, workers, args.kills, within, args.signals)
            difference = compared(folder / f"{name} undisturbed", out)
            within_bounds = difference <= (1e-5 if workers == 2 else 0)
            rows.append([name, kills, tracebacks, f"{seconds:.0f} s", difference, within_bounds])
            print(f"{name}: {kills} kills, {tracebacks} tracebacks, largest difference {difference:.3g}", flush=True)
    print(tabulate(rows, ["command", "kills", "tracebacks", "undisturbed", "largest difference", "within bounds"]))
    return 0 if all(row[-1] for row in rows) else 1


def written(corpus: str, folder: Path) -> dict[str, Path]:
    """The text, in documents of ten lines, and its lines labelled by whether they have a comma."""
    with open(corpus, encoding="utf-8") as file:
        lines = [" ".join(line.split()) for line in islice(file, 3000) if line.strip()]
    text, table = folder / "text.txt", folder / "rows.tsv"
    text.write_text("\n".join(line + "\n" * (number % 10 == 9) for number, line in enumerate(lines)))
    labels = (
        "label\ttext",
        *("\t".join(("no" if "," not in line else "yes", line)) for line in lines),
    )
    table.write_text("\n".join(labels))
    files = {"corpus": text, "data": table, "pairs": folder / "pairs.tsv", "few_pairs": folder / "few_pairs.tsv"}
    pairs = ["text\tpair", *("\t".join(pair).replace('"', "'") for pair in pairwise(lines))]
    files["pairs"].write_text("\n".join(pairs))
    files["few_pairs"].write_text("\n".join(pairs[:100]))
    return files


def taught(files: dict[str, Path], folder: Path) -> dict[str, Path]:
    """A small BERT, and a classifier of the labels."""
    teacher, classifier = folder / "teacher", folder / "classifier"
    finished(started(cli(BERT.replace("200", "20") + " --corpus {corpus}", files), teacher, 1))
    train = "train --encoder {teacher} --data {data} --dev {data} --steps 20"
    finished(started(cli(train, files | {"teacher": teacher}), classifier, 1))
    return {"teacher": teacher, "classifier": classifier}


def cli(arguments: str, files: dict[str, Path]) -> list[str]:
    return [sys.executable, "-m", "keras_ctxrep.cli", *(part.format(**files) for part in arguments.split())]


def started(command: list[str], out: Path, workers: int) -> list[subprocess.Popen]:
    """A process, or one for each worker of a cluster on this machine."""
    processes = []
    for number, config in enumerate(local_cluster(workers)):
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | ({"TF_CONFIG": config} if workers > 1 else {})
        with open(f"{out}.{number}.log", "w") as log:
            process = subprocess.Popen(
                [*command, "--out", str(out)],
                env=environment,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
            )
            processes.append(process)
    return processes


def finished(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.wait(timeout=1800):
            logs = Path(process.args[-1]).parent.glob("*.log")  # pyright: ignore
            ends = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(logs))
            raise RuntimeError(f"{process.args}: exit status {process.returncode}\n{ends}")


def killed(
    command: list[str], out: Path, workers: int, kills: int, within: float, signals: list[str]
) -> tuple[int, int]:
    """Ends a run again and again, and then lets it end: how often, less where it ended before, and the tracebacks."""
    tracebacks = 0
    for count in range(kills):
        processes = started(command, out, workers)
        victim = random.choice(processes)
        try:
            victim.wait(timeout=random.uniform(0, within))
            if victim.returncode == 0:
                finished(processes)
                return count, tracebacks
        except subprocess.TimeoutExpired:
            victim.send_signal(signal.Signals[random.choice(signals)])
        for process in processes:
            try:
                process.wait(timeout=60)  # the other worker ends by itself, unless it still waits for this one to begin
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        log = Path(f"{out}.{processes.index(victim)}.log").read_text()
        tracebacks += "Traceback" in log
        print(f"  {victim.returncode}: {''.join(log.splitlines()[-1:])}", flush=True)
    finished(started(command, out, workers))
    return kills, tracebacks


def compared(expected: Path, found: Path) -> float:
    """The largest difference of a weight; infinite where other files differ."""
    if (expected / "bundle.json").exists():
        from keras_ctxrep import saving

        pairs = zip(saving.load(expected)[0].get_weights(), saving.load(found)[0].get_weights(), strict=True)
        return max(float(np.abs(one - two).max()) for one, two in pairs)
    digests = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}
        for folder in (expected, found)
    ]
    return 0.0 if digests[0] == digests[1] else float("inf")


if __name__ == "__main__":
    sys.exit(main())
