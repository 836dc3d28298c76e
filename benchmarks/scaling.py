"""How training scales over worker processes: tokens per second of 1 and of N workers, and what agreement costs.

    python benchmarks/scaling.py [--workers 2] [--rounds 3]

Each worker is a process with one thread, on a core of its own, and trains on a batch of its own size: weak scaling, as
more GPUs are used. With one worker there is nothing to agree on; with N workers their gradients are summed over the
loopback interface in each step. Efficiency is (tokens/s of N) / (N x tokens/s of 1). The rounds go over the numbers of
workers in turn; the median is printed. On a machine whose cores share their memory's bandwidth, N independent processes
are slower than one already: the column "independent" has N single workers at once, without any agreement.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

from tabulate import tabulate

from keras_ctxrep.training.strategy import choose, local_cluster

SIZES = {"bert": "bert_4_256_4", "elmo": "elmo_2x512_128_512cnn_1xhighway"}
ROWS = {"bert": (16, 128), "elmo": (32, 32)}  # rows of each worker, and tokens of each row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--families", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--worker", choices=SIZES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measured(args.worker, args.steps)))
        return
    rows = []
    for family in args.families:
        rates: dict[str, list[float]] = {"one": [], "independent": [], "together": []}
        for _ in range(args.rounds):
            rates["one"].append(sum(run(family, 1, False, args.steps)))
            rates["independent"].append(sum(run(family, args.workers, False, args.steps)))
            rates["together"].append(run(family, args.workers, True, args.steps)[0])
        one, independent, together = (statistics.median(values) for values in rates.values())
        efficiency = (independent / (args.workers * one), together / (args.workers * one), together / independent)
        figures = [f"{rate:,.0f}" for rate in (one, independent, together)]
        rows.append([SIZES[family], *figures, *(f"{fraction:.0%}" for fraction in efficiency)])
    count = f"{args.workers} workers"
    header = ["model", "1 worker", f"{args.workers} independent", count, "independent", "efficiency", "of independent"]
    print("tokens/s\n" + tabulate(rows, header))


def run(family: str, workers: int, together: bool, steps: int) -> list[float]:
    """Tokens per second of each process; of all of them together where they train one model."""
    processes = []
    for number, config in enumerate(local_cluster(workers)):
        environment = os.environ | {
            "TF_NUM_INTRAOP_THREADS": "1",
            "TF_NUM_INTEROP_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if together and workers > 1:
            environment["TF_CONFIG"] = config
        command = [sys.executable, __file__, "--worker", family, "--steps", str(steps)]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(processes[-1].pid, {cores[number % len(cores)]})
    return [json.loads(process.communicate(timeout=600)[0].splitlines()[-1]) for process in processes]


def measured(family: str, steps: int) -> float:
    """Tokens per second, over all workers of the cluster, after the first steps."""
    import numpy as np

    from keras_ctxrep.models import bert, elmo
    from keras_ctxrep.training import fit, pipeline

    strategy = choose()
    (rows, length), rng = ROWS[family], np.random.default_rng(0)
    rows *= strategy.num_replicas_in_sync
    mask = np.ones((rows, length), np.int32)

    def batch(_, __):
        if family == "bert":
            ids = rng.integers(5, 8000, (rows, length)).astype(np.int32)
            positions = np.tile(np.arange(0, length, 7, dtype=np.int32), (rows, 1))
            inputs = {"token_ids": ids, "segment_ids": mask * 0, "mask": mask, "mlm_positions": positions}
            targets = {"mlm_logits": positions, "nsp_logits": mask[:, 0]}
            return inputs, targets
        ids = rng.integers(1, 261, (rows, length, 50)).astype(np.int32)
        words = {name: rng.integers(3, 8000, (rows, length + 1)).astype(np.int32) for name in ("forward", "backward")}
        return {"char_ids": ids, "mask": mask}, {f"{name}_logits": value for name, value in words.items()}

    with strategy.scope():
        if family == "bert":
            model = bert.pretrainer(bert.SIZES[SIZES[family]])
        else:
            model = elmo.language_model(elmo.SIZES[SIZES[family]], 8000)
    data = pipeline.collated(lambda: ([number] for number in range(1_000_000)), batch)
    return fit.fit(model, data, steps=steps, evaluations=1)[0]["tokens_per_second"]


if __name__ == "__main__":
    main()
