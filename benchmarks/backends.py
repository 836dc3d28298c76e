"""Training under each backend of Keras on this machine: tokens a second of `training.fit.fit`, and the first steps.

    python benchmarks/backends.py
    python benchmarks/backends.py --torch PYTHON      # PyTorch's backend too, in a Python that has PyTorch

Each backend is a process of its own for every run, and the rounds go over the backends in turn. "classifier" fine-tunes
a BERT of three layers, 384 wide, on batches of 32 texts; "biLM" is ELMo's language model, two layers of 512, with a
softmax over 10,000 words, on batches of 16. Lengths are drawn from those up to 64: `first` is the seconds until every
size of batch has been traced or compiled, and the tokens a second are those of the steps after it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from functools import partial
from typing import Any

import bert

CASES, STEPS = ("classifier", "biLM"), 60


def work(case: str, steps: int, layers: int) -> dict:
    """The figures of a run, in a process of its own."""
    import keras
    import numpy as np

    from keras_ctxrep.models import bert as models
    from keras_ctxrep.models import elmo, heads
    from keras_ctxrep.text.features import Row, WordFeatures, WordPieceFeatures
    from keras_ctxrep.text.pretraining import Vocabulary, language_model_batch
    from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
    from keras_ctxrep.training import fit, pipeline

    rng, rows = np.random.default_rng(0), 32 if case == "classifier" else 16
    words = [f"w{number}" for number in range(10_000)]
    texts = [[words[i] for i in rng.integers(0, 10_000, rng.integers(4, 62))] for _ in range(64 * rows)]
    if case == "classifier":
        vocab = [*SPECIAL_PIECES, *words]
        config = models.Config(len(vocab), layers=layers, width=384, heads=6, intermediate=1536)
        model, features = heads.classify(models.encoder(config), classes=2), WordPieceFeatures(WordPiece(vocab), 64)
        examples = features.encode(texts)

        def labelled(part):
            inputs = features.collate(part)
            return {name: inputs[name] for name in model.input}, {"logits": np.zeros(len(part), np.int32)}

        batch_of: Any = labelled
    else:
        vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *words])
        config = elmo.Config(512, 128, layers=layers - 1, words=len(vocabulary.vocab))
        model = elmo.language_model(config, len(vocabulary.vocab))
        features = WordFeatures(vocabulary.vocab, 64)
        examples = [Row(text) for text in texts]
        batch_of = partial(language_model_batch, features, vocabulary)

    ends: list[float] = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter()))
    sizes: list[int] = []

    def counted(part, rng):
        batch = batch_of(part)
        sizes.append(int(batch[0]["mask"].sum()))
        return batch

    data = pipeline.dataset(examples, counted, rows, seed=0, repeat=True)
    begin, warm = time.perf_counter(), 64 if steps > 20 else 2
    fit.fit(model, data, steps=warm + steps, learning_rate=1e-4, callbacks=[count])
    tokens = sum(sizes[1 : 1 + warm + steps][warm:])  # the first one was made for its shapes
    return {"tokens_per_second": tokens / (ends[-1] - ends[warm - 1]), "first": ends[warm - 1] - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", metavar="PYTHON", help="a Python with PyTorch; it gets the packages of this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--backends", nargs="+", default=["tensorflow", "jax"])
    parser.add_argument("--work", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        print(json.dumps(work(args.work, args.steps, args.layers)))
        return
    site = next(path for path in sys.path if path.endswith("site-packages"))
    found = defaultdict(list)
    for _ in range(args.rounds):
        for case in CASES:
            for name in [*args.backends, *(["torch"] if args.torch else [])]:
                python = args.torch if name == "torch" else sys.executable
                paths = f"{bert.PATHS}{os.pathsep}{site}" if name == "torch" else bert.PATHS
                environment = os.environ | {"KERAS_BACKEND": name, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
                command = [python, __file__, "--work", case, "--steps", str(args.steps), "--layers", str(args.layers)]
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(f"{name}, {case}: {done.stderr[-2000:]}")
                found[case, name].append(json.loads(done.stdout.splitlines()[-1]))
                print(case, name, found[case, name][-1], file=sys.stderr, flush=True)
    print("| case | backend | tokens/s | of TensorFlow's | first, s |\n|---|---|---|---|---|")
    for (case, name), runs in found.items():
        rate, first = (statistics.median(run[key] for run in runs) for key in ("tokens_per_second", "first"))
        base = found.get((case, "tensorflow"))
        ratio = f"{rate / statistics.median(run['tokens_per_second'] for run in base):.2f}" if base else ""
        print(f"| {case} | {name} | {rate:,.0f} | {ratio} | {first:.1f} |")


if __name__ == "__main__":
    main()
