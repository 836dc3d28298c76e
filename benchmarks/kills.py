"""Runs that are killed at random moments, and go on: do they end with the weights of an undisturbed run?

    python benchmarks/kills.py --corpus TEXT [--kills 20]

Each command runs undisturbed once. In another folder it is killed by SIGKILL `--kills` times, each time at a moment
drawn uniformly from the first third of the time that the undisturbed run took, and started again; the last start runs
to its end. Two workers are killed one at a time; the other one ends by itself, or after a minute of waiting for this
one to begin. The largest difference of any weight is printed (infinite where prepared files differ); exit status 1 if
it is above 0, or above 1e-5 for two workers.
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
from itertools import islice
from pathlib import Path

import numpy as np
from tabulate import tabulate

from keras_ctxrep.training.strategy import local_cluster

ELMO = "pretrain elmo --size elmo_2x128_64_256cnn_1xhighway --steps 200 --batch-size 8 --unroll 8 --samples 50"
BERT = "pretrain bert --size bert_2_64_2 --steps 200 --batch-size 8 --max-length 32 --vocab-size 500"
RUN = "--evaluations 4 --checkpoint-minutes 0 --corpus {corpus}"
COMMANDS = {
    "pretrain elmo": f"{ELMO} {RUN}",
    "pretrain bert": f"{BERT} {RUN}",
    "train": "train --task classify --data {data} --dev {data} --encoder words --steps 400 --batch-size 8 --stack lstm "
    "--units 32 --evaluations 4 --checkpoint-minutes 0",
    "prepare": "prepare bert --corpus {corpus} --max-length 64 --vocab-size 500 --copies 4",
    "two workers": f"{ELMO} {RUN}",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="text, one sentence a line, of which 3,000 lines are read")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", choices=COMMANDS, nargs="+", default=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = written(args.corpus, folder)
        for name in args.only:
            command = [sys.executable, "-m", "keras_ctxrep.cli", *COMMANDS[name].format(**files).split()]
            workers = 2 if name == "two workers" else 1
            began = time.monotonic()
            finished(started(command, folder / f"{name} undisturbed", workers))
            seconds = time.monotonic() - began
            kills = killed(command, folder / f"{name} killed", workers, args.kills, seconds)
            difference = compared(folder / f"{name} undisturbed", folder / f"{name} killed")
            rows.append([name, kills, f"{seconds:.0f} s", difference, difference <= (1e-5 if workers == 2 else 0)])
            print(f"{name}: {kills} kills, largest difference {difference:.3g}", flush=True)
    print(tabulate(rows, ["command", "kills", "undisturbed", "largest difference", "within bounds"]))
    return 0 if all(row[-1] for row in rows) else 1


def written(corpus: str, folder: Path) -> dict[str, Path]:
    """The text, in documents of ten lines, and its lines labelled by whether they have a comma."""
    with open(corpus, encoding="utf-8") as file:
        lines = [line.strip() for line in islice(file, 3000) if line.strip()]
    text, table = folder / "text.txt", folder / "rows.tsv"
    text.write_text("\n".join(line + "\n" * (number % 10 == 9) for number, line in enumerate(lines)))
    labels = (
        "label\ttext",
        *("\t".join(("no" if "," not in line else "yes", line.replace("\t", " "))) for line in lines),
    )
    table.write_text("\n".join(labels))
    return {"corpus": text, "data": table}


def started(command: list[str], out: Path, workers: int) -> list[subprocess.Popen]:
    """A process, or one for each worker of a cluster on this machine."""
    processes = []
    for number, config in enumerate(local_cluster(workers)):
        environment = os.environ | ({"TF_CONFIG": config} if workers > 1 else {})
        with open(f"{out}.{number}.log", "w") as log:
            processes.append(subprocess.Popen([*command, "--out", str(out)], env=environment, stdout=log, stderr=log))
    return processes


def finished(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.wait(timeout=1800):
            logs = Path(process.args[-1]).parent.glob("*.log")  # pyright: ignore
            ends = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(logs))
            raise RuntimeError(f"{process.args}: exit status {process.returncode}\n{ends}")


def killed(command: list[str], out: Path, workers: int, kills: int, seconds: float) -> int:
    """Kills a run again and again, and then lets it end; the number of kills, fewer where the run ended before."""
    for count in range(kills):
        processes = started(command, out, workers)
        victim = random.choice(processes)
        try:
            victim.wait(timeout=random.uniform(0, seconds / 3))
            if victim.returncode == 0:
                finished(processes)
                return count
        except subprocess.TimeoutExpired:
            victim.send_signal(signal.SIGKILL)
        for process in processes:
            try:
                process.wait(timeout=60)  # the other worker ends by itself, unless it still waits for this one to begin
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finished(started(command, out, workers))
    return kills


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
