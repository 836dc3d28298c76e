"""A small BERT pretrained for some minutes, fine-tuned on two tasks, against the same network without pretraining.

    python benchmarks/pretraining.py --train train.txt --valid valid.txt --data ../shared/data --minutes 30 --out bert

Two phases, as published: short texts first, then longer ones for the last fifth of the time. Prints the curve and the
results as the Markdown tables of docs/explanation/results.md. With `--out` of an interrupted run it goes on. A task's
best weights are chosen by some of its training examples; the figure is that of its dev (SST-2) or test set (MRPC).
Folder `--data` holds both as they are distributed: sst2_glue/{train,dev}.tsv and mrpc/msr_paraphrase_*.txt.
"""

import argparse
import json
import os
import random as random_order
from pathlib import Path

from keras_ctxrep import tasks
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.text.corpus import lines
from keras_ctxrep.text.scores import accuracy

SHARE = 0.8  # of the time, for the first phase
SELECT = 400  # examples of a task's training set, by which the best weights are chosen


def mrpc(path: Path) -> list[Example]:
    """The paraphrase corpus as it was released: quality, two numbers, two texts."""
    rows = [(f"{path}:{number}", line.split("\t")) for number, line in lines(path)][1:]
    return [Example(row[3], row[0], row[4], source) for source, row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, metavar="FILE")
    parser.add_argument("--valid", required=True, metavar="FILE")
    parser.add_argument("--data", metavar="FOLDER", help="of SST-2 and MRPC; without it nothing is fine-tuned")
    parser.add_argument("--out", required=True, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--size", default="bert_4_256_4")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--lengths", type=int, nargs=2, default=(64, 128), help="pieces of a pair, in both phases")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="pairs, in the first phase; half as many in the second"
    )
    parser.add_argument("--learning-rates", type=float, nargs=2, default=(1e-3, 5e-4), metavar="X")
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each fine-tuning")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    folders = [Path(args.out) / "short", Path(args.out) / "long"]
    pretrain(args, folders)
    if args.data is not None:
        finetune(args, folders[1])


def pretrain(args: argparse.Namespace, folders: list[Path]) -> None:
    """Both phases, and their curve as a Markdown table."""
    from keras_ctxrep import recipes

    print(
        "| minutes | pieces | steps | MLM loss | MLM accuracy | NSP loss | NSP accuracy |\n|" + "---|" * 7, flush=True
    )
    before = 0.0
    for phase, (folder, share) in enumerate(zip(folders, (SHARE, 1 - SHARE), strict=True)):

        def show(entry, phase=phase, before=before):
            figures = [
                f"{entry[f'val_{task}_logits_{what}']:.4g}" for task in ("mlm", "nsp") for what in ("loss", "accuracy")
            ]
            minutes = before + entry["minutes"]
            print(
                f"| {minutes:.1f} | {args.lengths[phase]} | {entry['step']:,} | " + " | ".join(figures) + " |",
                flush=True,
            )

        if not (folder / "bundle.json").exists():
            history = recipes.pretrain(
                "bert",
                [args.train],
                folder,
                size=None if phase else args.size,
                valid=args.valid,
                vocab_size=args.vocab_size,
                init=folders[0] if phase else None,
                max_length=args.lengths[phase],
                batch_size=args.batch_size // (phase + 1),
                minutes=share * args.minutes,
                learning_rate=args.learning_rates[phase],
                dropout=0.0,
                precision=args.precision,
                evaluations=2 if phase else 8,
                report=show,
            )
        else:
            history = json.loads((folder / "run.json").read_text())["history"]
            for entry in history:
                show(entry)
        before += history[-1]["minutes"]


def finetune(args: argparse.Namespace, encoder: Path) -> None:
    """From the pretrained weights and from random ones, as a Markdown table."""
    from keras_ctxrep import recipes
    from keras_ctxrep.inference.engines import open_model

    out, data = encoder.parent, Path(args.data)
    read = tasks.get("classify").read
    learned = {
        "SST-2": (*(list(read(data / "sst2_glue" / f"{part}.tsv")) for part in ("train", "dev")), 1, 64),
        "MRPC": (*(mrpc(data / "mrpc" / f"msr_paraphrase_{part}.txt") for part in ("train", "test")), 3, 128),
    }
    print("\n| task | examples | epochs | seed | pretrained | random weights |\n|" + "---|" * 6, flush=True)
    for task, (train_set, test_set, epochs, length) in learned.items():
        random_order.Random(0).shuffle(train_set)
        for seed in range(args.seeds):
            figures = []
            for random in (False, True):
                folder = out / f"{task}-{seed}-{'random' if random else 'pretrained'}"
                if not (folder / "bundle.json").exists():
                    recipes.finetune(
                        train_set[:-SELECT],
                        train_set[-SELECT:],
                        encoder,
                        folder,
                        max_length=length,
                        epochs=epochs,
                        learning_rate=5e-4,
                        from_scratch=random,
                        seed=seed,
                    )
                answers = open_model(folder).answer(
                    [example.text for example in test_set], [example.pair for example in test_set]
                )
                share = accuracy([example.label for example in test_set], [answer.get("label") for answer in answers])
                figures.append(f"{share:.1%} +- {(share * (1 - share) / len(test_set)) ** 0.5:.1%}")  # standard error
            print(f"| {task} | {len(train_set):,} | {epochs} | {seed} | {figures[0]} | {figures[1]} |", flush=True)


if __name__ == "__main__":
    main()
