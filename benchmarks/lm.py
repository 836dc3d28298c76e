"""Language models: the training step against PyTorch's, six kinds at equal numbers of weights, and WikiText-2.

    python benchmarks/lm.py step --peers peers/bin/python
    python benchmarks/lm.py kinds --data ../shared/data/wikitext-2 --weights 1000000 --tokens 5000000 --out kinds.jsonl
    python benchmarks/lm.py wikitext --data ../shared/data/wikitext-2 --peers peers/bin/python --out wikitext.jsonl

"step": a step of an LSTM of 2 x 650, tied, 20 x 35 tokens, full softmax over 33,278 words, SGD and a clipped norm, as
https://github.com/pytorch/examples, word_language_model, has it; and of a Transformer of 4 x 128 over 65 characters, 12
x 64 tokens, AdamW, as https://github.com/karpathy/nanoGPT has it. Both engines take turns, some steps each, on
`--threads`; the ratio is that of the medians, of wall and of CPU seconds of all threads. The floor is the time that the
products of matrices alone need, at the rate that the same engine has for the largest of them. Our Transformer reads the
64 tokens before a batch's too, from its cache, which the other one does not.

"kinds": n-gram network, RNN, GRU, LSTM, gated CNN and Transformer with as many weights, table and softmax included, of
characters or word pieces, on the same number of tokens of the same text.

"wikitext": an LSTM of 2 x 200, tied, dropout 0.2, over the words of WikiText-2 as they are distributed, by SGD at 20, a
quarter of it after an epoch that did not help, with the same batches in both engines; perplexity of the validation and
the test text after some epochs. An epoch is 22 minutes of a core.

The last two write a line of `--out` for each result, and what is there is not run again; `--table` only prints it.
"PyTorch" needs an environment of its own: python3.11 -m venv peers; peers/bin/pip install torch numpy.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import figures
import numpy as np

STREAMS, UNROLL = 20, 35
# name -> (vocabulary, rows, tokens of a row, layers, width)
STEPS = {"lstm": (33_278, STREAMS, UNROLL, 2, 650), "transformer": (65, 12, 64, 4, 128)}
EPOCHS = (1, 3, 6)
WIDTH, DROPOUT, RATE, CLIP = 200, 0.2, 20.0, 0.25
KINDS = ("ngram", "rnn", "gru", "lstm", "convolution", "transformer")


def timed(function: Callable, *arguments) -> tuple[float, float]:
    """Wall and CPU seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    function(*arguments)
    return time.perf_counter() - wall, time.process_time() - cpu


def products(name: str) -> float:
    """Floating point operations of the products of matrices of a step: forward, and twice as many backward."""
    vocabulary, rows, length, layers, width = STEPS[name]
    layer = 8 * width**2 if name == "lstm" else 12 * width**2 + 2 * length * width
    return 6.0 * rows * length * (layers * layer + width * vocabulary)


def running_ids(name: str, steps: int) -> np.ndarray:
    """Ids of `steps` batches, int32 (steps, rows, length + 1), frequent ones first as in a sorted vocabulary."""
    vocabulary, rows, length, _, _ = STEPS[name]
    draws = np.random.default_rng(0).random((steps, rows, length + 1))
    return (np.exp(draws * np.log(vocabulary)).astype(np.int32) - 1).clip(0, vocabulary - 1)


# ------------------------------------------------------------------------------------------------------------- Keras


def keras_engine(name: str, threads: int) -> tuple[Callable, Callable]:
    """A function that trains for some steps, and one that computes the largest product."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    import keras
    import tensorflow as tf

    from keras_ctxrep.models import lm
    from keras_ctxrep.optimizers import AdamW
    from keras_ctxrep.training import fit

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    vocabulary, rows, length, layers, width = STEPS[name]
    if name == "lstm":
        config = lm.Config(layers=layers, width=width, dropout=0.5)
        optimizer = keras.optimizers.SGD(1.0, global_clipnorm=CLIP)
    else:
        config = lm.Config(
            "transformer", "characters", layers, width, dropout=0.0, heads=4, intermediate=4 * width, context=length
        )
        optimizer = AdamW(1e-3, clip=1.0)
    model = fit.compile(lm.language_model(config, vocabulary, streams=rows), optimizer)
    side = tf.ones((rows * length, width)), tf.ones((width, vocabulary if name == "lstm" else 4 * width))
    product = tf.function(lambda: tf.matmul(*side))

    def run(steps: int) -> None:
        ids = running_ids(name, steps)
        inputs = {"token_ids": ids[..., :-1], "mask": np.ones_like(ids[..., :-1])}
        data: Any = inputs, {"logits": ids[..., 1:]}
        batches = tf.data.Dataset.from_tensor_slices(data)
        model.fit(batches, shuffle=False, verbose=0)

    return run, lambda: [product() for _ in range(10)]


# ----------------------------------------------------------------------------------------------------------- PyTorch


def torch_engine(name: str, threads: int) -> tuple[Callable, Callable]:
    """As `keras_engine`, by PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    vocabulary, rows, length, layers, width = STEPS[name]
    model = torch_lstm(vocabulary, width, 0.5) if name == "lstm" else torch_transformer(vocabulary, layers, width, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3) if name == "transformer" else None
    state = None

    def step(ids) -> None:
        nonlocal state
        model.train()
        if optimizer is None:
            state = torch_sgd_step(model, ids[:, :-1].T, ids[:, 1:].T, state, 1.0)
            return
        optimizer.zero_grad(set_to_none=True)
        logits = model(ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    a, b = torch.ones(rows * length, width), torch.ones(width, vocabulary if name == "lstm" else 4 * width)

    def run(steps: int) -> None:
        for ids in torch.from_numpy(running_ids(name, steps).astype("int64")):
            step(ids)

    return run, lambda: [a @ b for _ in range(10)]


def torch_lstm(vocabulary: int, width: int, dropout: float) -> Any:
    """An LSTM of two layers under a tied softmax, with the initial weights of word_language_model."""
    import torch  # pyright: ignore[reportMissingImports]

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = torch.nn.Dropout(dropout)
            self.table = torch.nn.Embedding(vocabulary, width)
            self.lstm = torch.nn.LSTM(width, width, 2, dropout=dropout)
            self.out = torch.nn.Linear(width, vocabulary)
            self.out.weight = self.table.weight
            torch.nn.init.uniform_(self.table.weight, -0.1, 0.1)
            torch.nn.init.zeros_(self.out.bias)

        def forward(self, ids, state):
            x, state = self.lstm(self.drop(self.table(ids)), state)
            return self.out(self.drop(x)), state

    return Network()


def torch_sgd_step(model: Any, ids: Any, targets: Any, state: Any, rate: float) -> Any:
    """A step over (T, B) ids from the state of the last one, which it gives; plain SGD over a clipped norm."""
    import torch  # pyright: ignore[reportMissingImports]

    model.zero_grad()
    state = None if state is None else tuple(part.detach() for part in state)
    logits, state = model(ids, state)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(weight.grad, alpha=-rate)
    return state


def torch_transformer(vocabulary: int, layers: int, width: int, heads: int) -> Any:
    """A pre-norm causal Transformer with learned positions under a tied softmax."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            shape = (*x.shape[:2], heads, width // heads)
            parts = [part.view(shape).transpose(1, 2) for part in self.qkv(self.norms[0](x)).split(width, 2)]
            mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.feed(self.norms[1](x))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
            self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(width)

        def forward(self, ids):
            x = self.table(ids) + self.positions(torch.arange(ids.shape[1]))
            return self.norm(self.blocks(x)) @ self.table.weight.T

    return Network()


# -------------------------------------------------------------------------------------------------------------- step


class Worker:
    """A process that trains in one engine, on request."""

    def __init__(self, python: str, engine: str, name: str, threads: int):
        argv = [python, __file__, "worker", "--engine", engine, "--name", name, "--threads", str(threads)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str) -> list[float]:
        """Wall and CPU seconds of "N", so many steps, or of "product", ten of the largest product."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("an engine has ended; its message is above")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def worker(args: argparse.Namespace) -> None:
    run, product = (keras_engine if args.engine == "Keras" else torch_engine)(args.name, args.threads)
    for line in sys.stdin:
        what = line.strip()
        seconds = timed(product) if what == "product" else timed(run, int(what))
        print(json.dumps(seconds), flush=True)


def has_torch(python: str) -> bool:
    found = not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode
    if not found:
        print(f"PyTorch: left out, {python} does not have it; --help tells how to install it")
    return found


def step(args: argparse.Namespace) -> None:
    print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs, {args.threads} threads, {args.rounds} rounds\n")
    pythons = {"Keras": sys.executable} | ({"PyTorch": args.peers} if has_torch(args.peers) else {})
    print("| step | engine | wall s | CPU s | floor, CPU s | Keras / PyTorch, wall | CPU |\n|" + "---|" * 7)
    for name in args.only:
        steps = args.steps if name == "lstm" else 10 * args.steps
        workers = {engine: Worker(python, engine, name, args.threads) for engine, python in pythons.items()}
        seconds: dict[str, list] = {engine: [] for engine in workers}
        products_of: dict[str, list] = {engine: [] for engine in workers}
        for number in range(args.rounds + 1):
            for engine, process in workers.items():
                timing, product = process.ask(str(steps)), process.ask("product")
                if number:  # the first one compiles
                    seconds[engine].append([value / steps for value in timing])
                    products_of[engine].append(product[1] / 10)
        medians = {engine: [*map(statistics.median, zip(*rows, strict=True))] for engine, rows in seconds.items()}
        vocabulary, rows, length, _, width = STEPS[name]
        largest = 2.0 * rows * length * width * (vocabulary if name == "lstm" else 4 * width)
        ratios = [f"{a / b:.2f}" for a, b in zip(*medians.values(), strict=True)] if len(medians) > 1 else ["", ""]
        for engine, (wall, cpu) in medians.items():
            floor = products(name) * min(products_of[engine]) / largest
            times = [own for own, _ in seconds[engine]]
            title = f"language model, {name}, training step, {args.threads} threads"
            figures.row(title, engine, times, products(name), args.threads * largest / min(products_of[engine]))
            cells = [
                name,
                engine,
                f"{wall:.4f}",
                f"{cpu:.4f}",
                f"{floor:.4f}",
                *(ratios if engine == "Keras" else "  "),
            ]
            print("| " + " | ".join(cells) + " |", flush=True)
        for process in workers.values():
            process.close()


# ------------------------------------------------------------------------------------------------------------- kinds


def width_of(kind: str, weights: int, vocabulary: int) -> Any:
    """The config of a kind with about as many weights, by a search over its width."""
    from keras_ctxrep.models import lm

    def config(width: int) -> Any:
        common = {"units": "characters", "width": width, "dropout": 0.0}
        if kind == "ngram":
            return lm.Config(kind, **common, layers=1, order=8, intermediate=2 * width)
        return lm.Config(
            kind, **common, layers=4 if kind in ("convolution", "transformer") else 2, intermediate=4 * width
        )

    def count(width: int) -> int:
        w = width
        body = {
            "ngram": 7 * w * 2 * w + 2 * w + 2 * w * w + w,
            "rnn": 2 * (2 * w * w + w),
            "gru": 2 * 3 * (2 * w * w + 2 * w),
            "lstm": 2 * 4 * (2 * w * w + w),
            "convolution": 4 * (4 * w * 2 * w + 2 * w),
            "transformer": 4 * (12 * w * w + 13 * w) + 2 * w,
        }[kind]
        return vocabulary * (w + 1) + body

    return config(min(range(16, 4096, 8), key=lambda width: abs(count(width) - weights)))


def kinds(args: argparse.Namespace) -> None:
    from dataclasses import replace

    done = read_lines(args.out)
    if not args.table:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
        from keras_ctxrep import recipes, saving
        from keras_ctxrep.models import lm
        from keras_ctxrep.options import Pretraining
        from keras_ctxrep.recipes import corpora

        data, folder = Path(args.data), args.out.with_suffix("")
        steps = max(1, args.tokens // (args.batch_size * args.unroll))
        learning = Pretraining(
            units=args.units, vocab_size=args.vocab_size, valid=data / "valid.txt", seed=args.seed, steps=steps
        )
        _, read = corpora.held_out([data / "train.txt"], learning.valid, args.seed)
        tokens, _ = corpora.token_features(args.units, learning, None, [data / "train.txt"], read)
        for kind in args.kinds:
            names = ("units", "weights", "tokens", "batch_size", "unroll", "learning_rate", "seed")
            settings = {name: getattr(args, name) for name in names}
            if any(entry["kind"] == kind and settings.items() <= entry.items() for entry in done):
                continue
            lm.SIZES["benchmark"] = replace(width_of(kind, args.weights, len(tokens.vocab)), units=args.units)
            out = folder / f"{kind}-{args.units}-{args.weights}-{args.tokens}-{args.learning_rate}-{args.seed}"
            run: dict[str, Any] = {"size": "benchmark", "units": args.units, "vocab_size": args.vocab_size}
            cpu = time.process_time()
            history = recipes.pretrain(
                "lm", [data / "train.txt"], out, valid=data / "valid.txt", steps=steps, evaluations=1, seed=args.seed,
                batch_size=args.batch_size, unroll=args.unroll, learning_rate=args.learning_rate, dropout=0.0, **run,
            )  # fmt: skip
            cpu = time.process_time() - cpu
            scores = recipes.score(out, args.text or data / "test.txt")
            model = saving.load(out).model
            entry = {"kind": kind, **settings, "weights_made": model.count_params()}
            entry |= {"minutes": history[-1]["minutes"], "cpu_s": cpu, "load": os.getloadavg()[0]}
            done.append(
                entry | {name: scores[name] for name in ("perplexity_per_word", "bits_per_character", "unknown")}
            )
            write_line(args.out, done[-1])
    columns = ["kind", "weights", "rate", "tokens/s", "tokens/CPU s", "perplexity per word", "bits per character"]
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for entry in done:
        rates = [entry["tokens"] / entry["minutes"] / 60, entry["tokens"] / entry["cpu_s"]]
        figures = [f"{entry['perplexity_per_word']:.1f}", f"{entry['bits_per_character']:.3f}"]
        made = f"{entry['weights_made']:,}"
        cells = [entry["kind"], made, str(entry["learning_rate"]), *(f"{rate:,.0f}" for rate in rates), *figures]
        print("| " + " | ".join(cells) + " |")


# ---------------------------------------------------------------------------------------------------------- wikitext


def words_of(data: Path) -> tuple[int, dict[str, np.ndarray]]:
    """The number of words, and the ids of each part: words between spaces, and <eos> after each line."""
    numbers: dict[str, int] = {}
    parts = {}
    for part in ("train", "valid", "test"):
        text = (data / f"{part}.txt").read_text(encoding="utf-8")
        read = [word for line in text.split("\n")[:-1] for word in [*line.split(), "<eos>"]]
        parts[part] = np.array([numbers.setdefault(word, len(numbers)) for word in read], np.int32)
    return len(numbers), parts


def segments(ids: np.ndarray, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches (B, T) of ids and of those that follow, each row a part of the text, each batch after the last one."""
    streams = ids[: len(ids) // rows * rows].reshape(rows, -1)
    for begin in range(0, streams.shape[1] - 1, UNROLL):
        end = min(begin + UNROLL, streams.shape[1] - 1)
        yield streams[:, begin:end], streams[:, begin + 1 : end + 1]


def keras_wikitext(vocabulary: int, checkpoint: Path) -> tuple[Callable, Callable, Callable, Callable]:
    """Functions that train over an epoch at a rate, give the nats of a text, and write and read a checkpoint."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    import keras
    import tensorflow as tf

    from keras_ctxrep.inference import keras_engine
    from keras_ctxrep.models import lm
    from keras_ctxrep.models.model import copy_weights, reset_streams
    from keras_ctxrep.training import fit

    keras.utils.set_random_seed(0)
    config = lm.Config(width=WIDTH, dropout=DROPOUT)
    optimizer = keras.optimizers.SGD(RATE, global_clipnorm=CLIP)
    model = fit.compile(lm.language_model(config, vocabulary, streams=STREAMS), optimizer)
    eval_model = lm.language_model(config, vocabulary, streams=10)
    draw = np.random.default_rng(0)
    for weight in model.trainable_weights:  # as in word_language_model
        bound = 0.1 if weight.name == "softmax_kernel" else 0.0 if weight.name == "softmax_bias" else WIDTH**-0.5
        drawn = draw.uniform(-bound, bound, weight.shape)
        if weight.name == "bias":  # PyTorch adds two of them; ours adds 1 to the third quarter, the forget gates
            drawn += draw.uniform(-bound, bound, weight.shape) - np.repeat([0, 0, 1, 0], WIDTH)
        weight.assign(drawn)
    path = checkpoint.with_suffix(".weights.h5")

    def train(ids: np.ndarray, rate: float) -> None:
        def batches():
            for inputs, targets in segments(ids, STREAMS):
                yield {"token_ids": inputs, "mask": np.ones_like(inputs)}, {"logits": targets}

        shape = tf.TensorSpec((STREAMS, None), tf.int32)
        spec = ({"token_ids": shape, "mask": shape}, {"logits": shape})
        optimizer.learning_rate.assign(rate)
        reset_streams(model)
        data = tf.data.Dataset.from_generator(batches, output_signature=spec).prefetch(4)
        count = tf.data.experimental.assert_cardinality(sum(1 for _ in segments(ids, STREAMS)))
        model.fit(data.apply(count), shuffle=False, verbose=0)

    def nats(ids: np.ndarray) -> tuple[float, int]:
        copy_weights(model, eval_model)
        reset_streams(eval_model)
        run, total, count = keras_engine.scorer(eval_model), 0.0, 0
        for inputs, targets in segments(ids, 10):
            ones = np.ones_like(inputs)
            total += float(
                run({"token_ids": inputs, "mask": ones}, {"logits": targets}, {"logits": ones})["logits"].sum()
            )
            count += targets.size
        return total, count

    return train, nats, lambda: model.save_weights(path), lambda: model.load_weights(path)


def torch_wikitext(vocabulary: int, checkpoint: Path) -> tuple[Callable, Callable, Callable, Callable]:
    """As `keras_wikitext`, by PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    model, path = torch_lstm(vocabulary, WIDTH, DROPOUT), checkpoint.with_suffix(".pt")

    def tensors(pair):
        return [torch.from_numpy(np.ascontiguousarray(part.T)).long() for part in pair]

    def train(ids: np.ndarray, rate: float) -> None:
        model.train()
        state = None
        for inputs, targets in map(tensors, segments(ids, STREAMS)):
            state = torch_sgd_step(model, inputs, targets, state, rate)

    def nats(ids: np.ndarray) -> tuple[float, int]:
        model.eval()
        state, total, count = None, 0.0, 0
        with torch.inference_mode():
            for inputs, targets in map(tensors, segments(ids, 10)):
                logits, state = model(inputs, state)
                flat = logits.flatten(0, 1), targets.flatten()
                total += float(torch.nn.functional.cross_entropy(*flat, reduction="sum"))
                count += targets.numel()
        return total, count

    return train, nats, lambda: torch.save(model.state_dict(), path), lambda: model.load_state_dict(torch.load(path))


def train_epochs(args: argparse.Namespace) -> None:
    """Trains one engine, a line of `--out` for each epoch."""
    vocabulary, parts = words_of(Path(args.data))
    parts = {name: ids[: args.words] for name, ids in parts.items()}
    settings = {"engine": args.engine, "words": args.words}
    make = keras_wikitext if args.engine == "Keras" else torch_wikitext
    train, nats, save, restore = make(vocabulary, args.out.with_name(f"{args.out.stem}-{args.engine}"))
    done = [entry for entry in read_lines(args.out) if settings.items() <= entry.items()]
    rate = RATE
    if done:
        restore()
        rate = done[-1]["next_rate"]
    best = min((entry["valid"] for entry in done), default=math.inf)
    for epoch in range(len(done) + 1, args.epochs + 1):
        wall, cpu = timed(train, parts["train"], rate)
        figures = {name: math.exp(total / count) for name in ("valid", "test") for total, count in [nats(parts[name])]}
        next_rate, best = (rate, figures["valid"]) if figures["valid"] < best else (rate / 4, best)
        save()
        entry = {**settings, "epoch": epoch, **figures, "wall_s": wall, "cpu_s": cpu, "rate": rate}
        write_line(args.out, entry | {"next_rate": next_rate, "load": os.getloadavg()[0]})
        rate = next_rate


def wikitext(args: argparse.Namespace) -> None:
    if args.engine:
        train_epochs(args)
        return
    if not args.table:
        pythons = {"Keras": sys.executable} | ({"PyTorch": args.peers} if has_torch(args.peers) else {})
        for epoch in range(1, args.epochs + 1):  # the engines take turns
            for engine, python in pythons.items():
                argv = [python, __file__, "wikitext", "--engine", engine, "--data", args.data, "--out", str(args.out)]
                argv += ["--epochs", str(epoch), *(["--words", str(args.words)] if args.words else [])]
                subprocess.run(argv, check=True)
    print("\n| engine | epochs | valid | test | CPU s an epoch |\n|" + "---|" * 5)
    entries = [entry for entry in read_lines(args.out) if entry["words"] == args.words]
    for entry in sorted(entries, key=lambda entry: (entry["epoch"], entry["engine"])):
        if entry["epoch"] in EPOCHS or entry["epoch"] == args.epochs:
            cells = [entry["engine"], str(entry["epoch"]), *(f"{entry[name]:.1f}" for name in ("valid", "test"))]
            print("| " + " | ".join([*cells, f"{entry['cpu_s']:.0f}"]) + " |")


# ------------------------------------------------------------------------------------------------------------- lines


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_line(path: Path, entry: dict) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(entry) + "\n")
    print(json.dumps(entry), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(required=True)
    one = modes.add_parser("step")
    one.add_argument("--steps", type=int, default=5, help="of the LSTM in a round; ten times as many of the other")
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="these models")
    one.set_defaults(run=step)
    six = modes.add_parser("kinds")
    six.add_argument("--units", choices=("characters", "pieces"), default="characters")
    six.add_argument("--weights", type=int, default=1_000_000)
    six.add_argument("--tokens", type=int, default=5_000_000)
    six.add_argument("--vocab-size", type=int, default=2000, help="word pieces")
    six.add_argument("--batch-size", type=int, default=32)
    six.add_argument("--unroll", type=int, default=64)
    six.add_argument("--learning-rate", type=float, default=2e-3)
    six.add_argument("--seed", type=int, default=0)
    six.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    six.add_argument("--text", type=Path, help="that is scored (default: test.txt of --data)")
    six.set_defaults(run=kinds)
    words = modes.add_parser("wikitext")
    words.add_argument("--epochs", type=int, default=max(EPOCHS))
    words.add_argument("--words", type=int, help="of each part, the first ones, for a trial (default: all)")
    words.add_argument("--engine", choices=("Keras", "PyTorch"), help=argparse.SUPPRESS)
    words.set_defaults(run=wikitext)
    for mode in (six, words):
        mode.add_argument("--data", required=True, metavar="FOLDER", help="train.txt, valid.txt and test.txt")
        mode.add_argument("--out", required=True, type=Path, metavar="FILE.jsonl")
        mode.add_argument("--table", action="store_true", help="print what is there")
    inner = modes.add_parser("worker", help=argparse.SUPPRESS)
    inner.add_argument("--engine", required=True)
    inner.add_argument("--name", required=True)
    inner.set_defaults(run=worker)
    for mode in (one, inner):
        mode.add_argument("--threads", type=int, default=1)
    for mode in (one, words):
        mode.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="interpreter with PyTorch")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
