"""A small BERT pretrained for some minutes, and what that is worth on two tasks beside the same network untrained.

    python benchmarks/pretraining.py --train train.txt --valid valid.txt --data ../shared/data --minutes 30 --out bert

Two phases, as published: short texts first, then longer ones for the last fifth of the time. Prints the curve and the
results as Markdown tables, as docs/results.md has them. With `--out` of an interrupted run it goes on. The folder
`--data` holds SST-2 and MRPC as they are distributed: sst2_glue/{train,dev}.tsv and mrpc/msr_paraphrase_*.txt.
"""

import argparse
import json
import os
from pathlib import Path

from keras_ctxrep.text.examples import Example, lines, read_examples

SHARE = 0.8  # of the time, for the first phase


def mrpc(path: Path) -> list[Example]:
    """The paraphrase corpus as it was released: quality, two numbers, two texts."""
    rows = [(f"{path}:{number}", line.split("\t")) for number, line in lines(path)][1:]
    return [Example(row[3], row[0], row[4], place) for place, row in rows]


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
        "--batch-size", type=int, default=64, help="pairs, in the first phase; half as many in the second"
    )
    parser.add_argument("--learning-rates", type=float, nargs=2, default=(1.5e-3, 5e-4), metavar="X")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each fine-tuning")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    from keras_ctxrep import recipes

    out = Path(args.out)
    folders = [out / "short", out / "long"]
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
                None if phase else args.size,
                args.valid,
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
            history = json.loads((folder / "history.json").read_text())
            for entry in history:
                show(entry)
        before += history[-1]["minutes"]
    if args.data is None:
        return
    data = Path(args.data)
    tasks = {
        "SST-2": (*(read_examples(data / "sst2_glue" / f"{part}.tsv") for part in ("train", "dev")), 1, 64),
        "MRPC": (*(mrpc(data / "mrpc" / f"msr_paraphrase_{part}.txt") for part in ("train", "test")), 3, 128),
    }
    print("\n| task | examples | epochs | seed | pretrained | random weights |\n|" + "---|" * 6, flush=True)
    for task, (train_set, dev_set, epochs, length) in tasks.items():
        for seed in range(args.seeds):
            found = []
            for random in (False, True):
                history = recipes.finetune(
                    train_set,
                    dev_set,
                    folders[1],
                    out / "task",
                    max_length=length,
                    epochs=epochs,
                    learning_rate=5e-4,
                    from_scratch=random,
                    seed=seed,
                )
                found.append(f"{min(history, key=lambda entry: entry['val_loss'])['val_accuracy']:.1%}")
            print(f"| {task} | {len(train_set):,} | {epochs} | {seed} | {found[0]} | {found[1]} |", flush=True)


if __name__ == "__main__":
    main()
