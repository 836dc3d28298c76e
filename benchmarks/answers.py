"""Fine-tunes the models that come with the package with answers: low-rank updates of its BERT, and a head.

    python benchmarks/answers.py sentiment names answers --data ../shared/data --out answers
    python benchmarks/answers.py similar --data ../shared/data --out answers
    python benchmarks/answers.py sentiment --data ../shared/data --out answers --whole

A run that was stopped goes on when the same command is given again. OUT/NAME is the fine-tuned model, OUT/NAME-changes
what is shipped of it, as `ctxrep convert --to changes` writes it; with `--whole` all weights are trained, to compare.
Each prints its figures on the test set, of SST-2 and SQuAD the development set, and the sizes, as a line of JSON.
`similar` has no training: it is the encoder under a name of its own. benchmarks/release.py puts OUT/NAME-changes into
the package, with a card that is written by hand.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from keras_ctxrep import recipes, saving, tasks, zoo
from keras_ctxrep.commands.score import score
from keras_ctxrep.tasks.classify import Example

BASE = "bert_6_384_12/books_wiki_en"
RANK = 16
SENTIMENT = {"0": "negative", "1": "positive"}


@dataclass(frozen=True)
class Answers:
    """A model with answers.

    Attributes:
        name: in the package.
        task: of the model.
        files: to learn from, to choose the best weights by, and to score, in the folder of data.
        options: of `recipes.finetune`.
        rate: peak learning rate where all weights are trained.
    """

    name: str
    task: str = "embed"
    files: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    rate: float = 3e-4


MODELS = {
    "sentiment": Answers(
        "sentiment_en/sst2",
        "classify",
        tuple(f"sst2_glue/{part}.tsv" for part in ("train", "train_heldout", "dev")),
        {"epochs": 3, "batch_size": 32, "learning_rate": 1e-3, "max_length": 64},
        1e-4,
    ),
    "names": Answers(
        "names_en/wnut17",
        "tag",
        tuple(f"wnut17/{part}.conll" for part in ("train", "dev", "test")),
        {"epochs": 8, "batch_size": 16, "learning_rate": 2e-3, "max_length": 128},
    ),
    "answers": Answers(
        "answers_en/squad",
        "answer",
        ("squad_v1.1/train-slice-v1.1.json", "squad_v1.1/train-slice-v1.1.json", "squad_v1.1/dev-v1.1.json"),
        {"epochs": 2, "batch_size": 16, "learning_rate": 1e-3, "max_length": 256, "patience": 9},
        2e-4,
    ),
    "similar": Answers("similar_en/books_wiki_en"),
}


def examples(model: Answers, data: Path) -> list[Sequence[Any]]:
    """The examples of the three files; of SQuAD the last twentieth of the questions chooses the weights."""
    parts: list[Any] = [list(tasks.get(model.task).read(data / name)) for name in model.files]
    if model.task == "classify":
        parts = [[_named(example) for example in part] for part in parts]
    if model.files[0] == model.files[1]:
        held = max(1, len(parts[0]) // 20)
        parts[:2] = parts[0][:-held], parts[0][-held:]
    return parts


def _named(example: Example) -> Example:
    return replace(example, label=SENTIMENT[str(example.label)])


def run(key: str, args: argparse.Namespace) -> dict[str, Any]:
    """Trains and scores a model; its line."""
    model, folder = MODELS[key], args.out / (f"{key}-whole" if args.whole else key)
    small = args.out / f"{key}-changes"
    if key == "similar":
        saving.save_changes(small, *saving.load_encoder(zoo.find(BASE)), BASE, RANK)
        return {"name": model.name, "bytes": _bytes(small)}
    train, dev, test = examples(model, args.data)
    options: dict[str, Any] = model.options | ({"learning_rate": model.rate} if args.whole else {"lora": RANK})
    options |= {"steps": args.steps, "epochs": None} if args.steps else {}
    begin = time.process_time()
    recipes.finetune(
        train, dev, zoo.find(BASE), folder, task=model.task, report=print, precision=args.precision, **options
    )
    line = {"name": model.name, "whole": args.whole, "rows": len(train), "cpu_seconds": time.process_time() - begin}
    if not args.whole:
        saving.save_changes(small, *saving.load(folder), BASE, RANK)
        line["bytes"] = _bytes(small)
    return line | {"figures": _figures(folder if args.whole else small, test)}


def _figures(folder: Path, test: Sequence[Any]) -> dict[str, float]:
    found = score(folder, test)
    return {name: round(value, 5) for name, value in found.items() if isinstance(value, float)}


def _bytes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=MODELS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--whole", action="store_true", help="train all weights, to compare")
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument("--steps", type=int, help="instead of all epochs, to try it")
    args = parser.parse_args()
    for key in args.models:
        print(json.dumps(run(key, args)), flush=True)


if __name__ == "__main__":
    main()
