"""Training of vectors of texts on STS-B: `ctxrep train --task similar` against sentence-transformers.

Both begin with the same weights, all-MiniLM-L6-v2, and train with CoSENT for one epoch over the same rows in the same
order, with batch 32, rate 2e-5, warm-up over 10% of the steps and linear decay, AdamW with a weight decay of 0.01,
gradients clipped to norm 1, and dropout 0.1. Spearman x 100 on the development and test rows, of all numbers of the
vectors and, with Matryoshka at 256, 128 and 64, of their first 64; and seconds a step, median, without the first five.

Needs the files of STS-B (sts-train.csv, sts-dev.csv, sts-test.csv), the model as a model folder (`ctxrep convert`) and
as the folder of sentence-transformers, and for the peer a Python with sentence-transformers.

    python benchmarks/similar.py DATA --ours FOLDER --theirs FOLDER --peer PYTHON [--steps N] [--seeds 0 1]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
BATCH, RATE, WIDTHS = 32, 2e-5, (256, 128, 64)


def rows(path):
    """(score, text, pair) of a file of STS-B."""
    fields = [line.split("\t") for line in path.read_text("utf-8").removesuffix("\n").split("\n")]
    return [(float(field[4]), field[5], field[6]) for field in fields]


def spearman(encode, part, dims=None):
    """Of the cosines of the vectors' first `dims` numbers."""
    import numpy as np
    from scipy.stats import spearmanr

    vectors = [np.asarray(encode([row[side] for row in part]))[:, :dims] for side in (1, 2)]
    first, second = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in vectors)
    return 100 * float(spearmanr([row[0] for row in part], (first * second).sum(1))[0])


def batches(train, seed, steps):
    """The rows of each step."""
    import random

    order = random.Random(seed).sample(range(len(train)), len(train))
    count = len(train) // BATCH if steps is None else steps
    return [[train[index] for index in order[step * BATCH : (step + 1) * BATCH]] for step in range(count)]


def ours(args, train, parts, seed):
    """The step of `training.fit`, over batches in the given order."""
    import keras
    import numpy as np
    import tensorflow as tf

    from keras_ctxrep import losses, options, saving
    from keras_ctxrep.inference import keras_engine
    from keras_ctxrep.inference.predictor import Predictor
    from keras_ctxrep.recipes.assembly import Survey, assemble
    from keras_ctxrep.tasks import get
    from keras_ctxrep.tasks.similar import Pair
    from keras_ctxrep.training import fit

    threads(tf, args.threads)
    keras.utils.set_random_seed(seed)
    task, chosen = get("similar"), batches(train, seed, args.steps)
    pretrained, bundle = saving.load_encoder(args.folder)
    built = assemble(pretrained, bundle, task, options.Finetuning(), task.Options(), Survey(len(train)))
    model, bundle = built.model, built.bundle

    def arrays():
        for batch in chosen:
            pairs = [Pair(text, pair, score) for score, text, pair in batch]
            encoded = bundle.features.encode([text for pair in pairs for text in pair.texts])
            inputs = bundle.features.collate(encoded)
            targets = [target for pair in pairs for target in task.targets(bundle, pair, ())]
            yield inputs, *task.batch(bundle, targets, inputs)

    first = next(arrays())
    spec = tf.nest.map_structure(lambda a: tf.TensorSpec([None, None if a.dtype == "int32" else 2], a.dtype), first)
    data = tf.data.Dataset.from_generator(arrays, output_signature=spec).repeat().prefetch(4)
    times = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            times.append(time.perf_counter())

    fitted = model.fit
    model.fit = lambda *given, callbacks=(), **named: fitted(*given, callbacks=[*callbacks, Clock()], **named)
    loss = losses.CoSENT(nested=WIDTHS if args.matryoshka else ())
    fit.fit(model, data, loss=loss, learning_rate=RATE, steps=len(chosen), warmup=0.1, weight_decay=0.01)
    predictor = Predictor(bundle, keras_engine.runner(model))

    def encode(texts):
        return np.array([answer["vector"] for answer in predictor(texts)])

    return finished(encode, parts, np.diff(times))


def theirs(args, train, parts, seed):
    """A loop over the same batches with the model and the loss of sentence-transformers."""
    import numpy as np
    import sentence_transformers as peer  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]
    from sentence_transformers.losses import CoSENTLoss, MatryoshkaLoss  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(args.threads)
    torch.manual_seed(seed)
    chosen = batches(train, seed, args.steps)
    model = peer.SentenceTransformer(args.folder, device="cpu")
    loss: Any = CoSENTLoss(model)
    if args.matryoshka:
        loss = MatryoshkaLoss(model, loss, [384, *WIDTHS])
    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    names = {id(parameter) for parameter in plain}
    decayed = [parameter for parameter in model.parameters() if id(parameter) not in names]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-8)
    warm = max(1, round(0.1 * len(chosen)))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, max(0.0, (len(chosen) - step) / (len(chosen) - warm)))
    )
    model.train()
    times = []
    prepare = getattr(model, "preprocess", None) or model.tokenize
    for batch in chosen:
        features = [prepare([row[side] for row in batch]) for side in (1, 2)]
        value: Any = loss(features, torch.tensor([row[0] for row in batch]))
        value = sum(value.values()) if isinstance(value, dict) else value
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
    model.eval()
    return finished(lambda texts: model.encode(texts, show_progress_bar=False), parts, np.diff(times))


def finished(encode, parts, seconds):
    """The figures of a trained model."""
    import numpy as np

    figures = {"step": round(float(np.median(seconds[5:])), 4)}
    for name, part in parts.items():
        figures |= {name: round(spearman(encode, part), 2), f"{name}_64": round(spearman(encode, part, 64), 2)}
    return figures


def threads(tf, count):
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--ours", help="model folder")
    parser.add_argument("--theirs", help="folder of sentence-transformers")
    parser.add_argument("--peer", default=sys.executable, help="Python with sentence-transformers")
    parser.add_argument("--steps", type=int, help="of training (default: one epoch)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--matryoshka", action="store_true")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        train, *held_out = (rows(args.data / f"sts-{name}.csv") for name in ("train", "dev", "test"))
        run = {"ours": ours, "theirs": theirs}[args.side]
        figures = run(args, train, dict(zip(("dev", "test"), held_out, strict=True)), args.seeds[0])
        print(json.dumps(figures))
        return
    with tempfile.TemporaryFile() as errors:
        for seed in args.seeds:
            for side, python, folder in (("ours", sys.executable, args.ours), ("theirs", args.peer, args.theirs)):
                steps = [] if args.steps is None else ["--steps", str(args.steps)]
                command = [python, __file__, str(args.data), "--side", side, "--folder", folder, "--seeds", str(seed)]
                command += [*steps, "--threads", str(args.threads), *(["--matryoshka"] if args.matryoshka else [])]
                environment = {
                    name: value for name, value in os.environ.items() if name != "PYTHONPATH" or side == "ours"
                }
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
                if done.returncode:
                    errors.seek(0)
                    sys.exit(f"{side}: {errors.read().decode(errors='replace')[-3000:]}")
                print(f"seed {seed}  {side:7} {done.stdout.decode().splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
