"""How fast ELMo runs on the CPU, at its original size of 93.6 M weights, against AllenNLP and a plain torch.nn.LSTM.

    python benchmarks/elmo.py --peers peers/bin/python

The peers may live in an environment of their own:

    python3.11 -m venv peers
    peers/bin/pip install torch numpy h5py
    peers/bin/pip install --no-deps allennlp==2.10.1

Every engine is a process that waits for commands. The rounds go over the engines in turn and one runs at a time, so the
machine's moods hit all alike; medians are printed, and the largest difference between our vectors and AllenNLP's from
the same weights; bfloat16 is left out where the CPU has none. The spread is the slowest round over the fastest: where
it is far from 1 the machine had other work, which slows the peers most, and the ratios flatter us.

Memory is the greatest of the engine's process from the first call of a kind on.

GFLOP/s count the arithmetic as published, for each word of a sentence and its two markers. Ours does about a ninth
less: each distinct word once (nearly all differ here, except the markers), no convolution over what is padding in every
word, and no LSTM step that no vector depends on.
"""

import argparse
import importlib.abc
import importlib.machinery
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import types
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import figures
import numpy as np

WORDS = 20  # in each sentence
SIDE = 2048  # of the matrices whose product gives the machine's peak
JOBS = {  # title: (kind, sentences, calls in one round, arithmetic in forward passes)
    f"forward, 1 sentence of {WORDS} words": ("forward", 1, 5, 1),
    f"forward, 32 sentences of {WORDS} words": ("forward", 32, 1, 1),
    f"gradients of all weights, no optimizer step, 32 sentences of {WORDS} words": ("train", 32, 1, 3),
}
UNUSED = {  # packages that AllenNLP imports and ELMo makes no use of
    *("transformers", "spacy", "cached_path", "lmdb", "tqdm", "dill", "base58"),
    *("huggingface_hub", "more_itertools", "torchvision", "fairscale"),
}


@dataclass(frozen=True)
class Size:
    """Of the two LSTM layers, and of the token encoder: (characters, number) of its filters."""

    cells: int
    projection: int
    filters: tuple[tuple[int, int], ...]
    highways: int
    characters: int = 50

    @property
    def convolved(self) -> int:
        return sum(number for _, number in self.filters)

    def macs(self) -> float:
        """Of one position in the forward pass."""
        C, D, F = self.cells, self.projection, self.convolved
        cnn = sum(16 * width * number * (self.characters - width + 1) for width, number in self.filters)
        return cnn + self.highways * 2 * F * F + F * D + 4 * (2 * D * 4 * C + C * D)

    def tokens(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the token encoder's weights in the published files."""
        D, F, shapes = self.projection, self.convolved, {"char_embed": (261, 16)}
        for index, (width, number) in enumerate(self.filters):
            shapes |= {f"CNN/W_cnn_{index}": (1, width, 16, number), f"CNN/b_cnn_{index}": (number,)}
        for index in range(self.highways):
            for gate in ("carry", "transform"):
                shapes |= {f"CNN_high_{index}/W_{gate}": (F, F), f"CNN_high_{index}/b_{gate}": (F,)}
        return shapes | {"CNN_proj/W_proj": (F, D), "CNN_proj/b_proj": (D,)}

    def cell(self) -> dict[str, tuple[int, ...]]:
        C, D = self.cells, self.projection
        return {"W_0": (2 * D, 4 * C), "B": (4 * C,), "W_P_0": (C, D)}


FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
ORIGINAL, SMALL = "elmo_2x4096_512_2048cnn_2xhighway", "elmo_2x128_64_256cnn_1xhighway"
SIZES = {  # as keras_ctxrep.models.elmo has them, which the peers' Python lacks
    ORIGINAL: Size(4096, 512, FILTERS, 2),
    SMALL: Size(128, 64, (*FILTERS[:3], (4, 64), (5, 64)), 1, 32),
}
CELLS = {  # our layer: where its weights are in the file
    f"{direction}_{layer}": f"RNN_{index}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"
    for index, direction in enumerate(("forward", "backward"))
    for layer in range(2)
}


def sentences(lengths: list[int], size: Size) -> tuple[np.ndarray, float]:
    """Random lower-case words as int32 ids (B, T, W), 0 where there is no word, and the share of distinct words."""
    draw = random.Random(0)
    ids = np.zeros((len(lengths), max(lengths), size.characters), "int32")
    words = set()
    for row, length in zip(ids, lengths, strict=True):
        for place in row[:length]:
            word = bytes(draw.choices(range(97, 123), k=draw.randint(2, 10)))
            words.add(word)
            place[:] = 261
            place[: len(word) + 2] = [259, *(byte + 1 for byte in word), 260]
    return ids, len(words) / sum(lengths)


def write_weights(path: Path, size: Size) -> None:
    """Random weights in the published format."""
    import h5py

    rng = np.random.default_rng(0)
    shapes = size.tokens() | {place + name: shape for place in CELLS.values() for name, shape in size.cell().items()}
    with h5py.File(path, "w") as file:
        for name, shape in shapes.items():
            limit = 1 if name == "char_embed" else (6 / sum(shape)) ** 0.5
            file[name] = limit * (2 * rng.random(shape, "float32") - 1)


# ----------------------------------------------------------------------- engines: what they can do, as functions of ids


def ours(folder: Path, name: str, precision: str = "float32") -> dict:
    import bert
    import h5py
    import keras
    import tensorflow as tf

    from keras_ctxrep.inference import keras_engine
    from keras_ctxrep.models import elmo

    if precision == "bfloat16" and not bert.has_bfloat16():
        raise ImportError("this CPU has no bfloat16")
    keras.config.set_dtype_policy(precision)
    model, size = elmo.encoder(elmo.SIZES[name]), SIZES[name]
    with h5py.File(folder / "weights.hdf5") as file:
        for weight, name in zip(model.get_layer("char_cnn").weights, size.tokens(), strict=True):
            weight.assign(np.reshape(file[name], weight.shape))
        for layer, place in CELLS.items():
            kernel, bias, projection = (np.array(file[place + name]) for name in size.cell())
            model.get_layer(layer).set_weights([*np.split(kernel, 2), bias, projection])
    run = keras_engine.runner(model)
    signature = {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in model.input.items()}

    @tf.function(input_signature=[signature])
    def gradients(inputs):
        with tf.GradientTape() as tape:
            layers = model(inputs, training=True)["layers"]  # pyright: ignore
            loss = tf.reduce_mean(tf.add_n(layers)) / len(layers)
        return tf.cast(loss, tf.float32), tape.gradient(loss, [weight.value for weight in model.trainable_weights])

    def batch(ids):
        return {"char_ids": ids, "mask": (ids > 0).any(2).astype("int32")}

    return {
        "forward": lambda ids: np.mean(np.asarray(run(batch(ids))["layers"], np.float32), axis=1),
        "train": lambda ids: gradients(batch(ids))[0].numpy(),
    }


def allennlp(folder: Path, name: str) -> dict:
    import torch  # pyright: ignore[reportMissingImports]

    sys.meta_path.append(_Stubs())
    from allennlp.modules import elmo, elmo_lstm  # pyright: ignore[reportMissingImports]

    elmo.cached_path = elmo_lstm.cached_path = str
    size = SIZES[name]
    if size.characters != 50:
        raise ImportError(f"AllenNLP's words have 50 characters, these {size.characters}")
    lstm = {"dim": size.cells, "projection_dim": size.projection, "n_layers": 2, "cell_clip": 3, "proj_clip": 3}
    cnn = {"activation": "relu", "embedding": {"dim": 16}, "filters": size.filters, "n_highway": size.highways}
    cnn |= {"n_characters": 262, "max_characters_per_token": size.characters}
    options = {"lstm": lstm | {"use_skip_connections": True}, "char_cnn": cnn}
    (folder / "options.json").write_text(json.dumps(options))
    model = elmo.Elmo(folder / "options.json", folder / "weights.hdf5", 1, requires_grad=True, dropout=0)

    def call(ids):
        model._elmo_lstm._elmo_lstm.reset_states()  # or the vectors would depend on the call before
        return model(torch.from_numpy(ids))["elmo_representations"][0]  # the mean of the layers

    return _torch_jobs(model, call)


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules in place of the unused ones that are not installed."""

    def find_spec(self, fullname, path, target=None):
        unused = fullname.split(".")[0] in UNUSED
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if unused else None

    def create_module(self, spec):
        class Stub(types.ModuleType):
            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {})

        return Stub(spec.name)

    def exec_module(self, module):
        pass


def plain_torch(folder: Path, name: str) -> dict:
    """The same arithmetic from torch's own modules, its fused LSTM among them; random weights."""
    import torch  # pyright: ignore[reportMissingImports]

    nn, size = torch.nn, SIZES[name]
    D, F, W = size.projection, size.convolved, size.characters
    model = nn.Module()
    model.embed, model.out = nn.Embedding(262, 16), nn.Linear(F, D)
    model.convolutions = nn.ModuleList([nn.Conv1d(16, number, width) for width, number in size.filters])
    model.highways = nn.ModuleList([nn.Linear(F, 2 * F) for _ in range(size.highways)])
    model.lstms = nn.ModuleList([nn.LSTM(D, size.cells, proj_size=D, batch_first=True) for _ in range(4)])
    markers = torch.full((2, 1, 1, W), 261)
    markers[:, 0, 0, :3] = torch.tensor([[259, 257, 260], [259, 258, 260]])

    def call(ids):
        begin, end = markers.expand(2, len(ids), 1, W)
        ids = torch.cat([begin, torch.from_numpy(ids), end], 1)
        x = model.embed(ids.reshape(-1, W)).transpose(1, 2)
        x = torch.cat([convolution(x).amax(2).relu() for convolution in model.convolutions], 1)
        for highway in model.highways:
            gate, new = highway(x).chunk(2, 1)
            x = torch.lerp(x, new.relu(), gate.sigmoid())
        tokens = model.out(x).view(*ids.shape[:2], D)
        streams = [tokens, tokens.flip(1)]
        layers = [torch.cat([tokens, tokens], 2)]
        for index in range(2):
            new = [model.lstms[2 * index + direction](x)[0] for direction, x in enumerate(streams)]
            streams = [y + x if index else y for x, y in zip(streams, new, strict=True)]
            layers.append(torch.cat([streams[0], streams[1].flip(1)], 2))
        return sum(layers[1:], layers[0])[:, 1:-1] / len(layers)

    return _torch_jobs(model, call)


def _torch_jobs(model, call) -> dict:
    import torch  # pyright: ignore[reportMissingImports]

    def train(ids):
        model.zero_grad(set_to_none=True)
        call(ids).mean().backward()

    return {"forward": torch.no_grad()(call), "train": train}


def tensorflow_product(*_) -> dict:
    import tensorflow as tf

    a = tf.ones((SIDE, SIDE))
    return {"product": lambda _: float((a @ a)[0, 0])}


def torch_product(*_) -> dict:
    import torch  # pyright: ignore[reportMissingImports]

    a = torch.ones(SIDE, SIDE)
    return {"product": lambda _: float((a @ a)[0, 0])}


OURS = {"keras_ctxrep": ours, "keras_ctxrep bfloat16": partial(ours, precision="bfloat16")}
PEERS = {"AllenNLP": allennlp, "torch.nn.LSTM, no clips": plain_torch}
PEAKS = {"TensorFlow": tensorflow_product, "torch": torch_product}
ENGINES = OURS | PEERS | PEAKS


# ------------------------------------------------------------------------------------------------------- processes


def work(name: str, folder: Path, size: str) -> None:
    """Reads [kind, lengths, calls, file for the result] lines; answers seconds per call and peak memory in MB.

    The peak is that since the first call of this kind and these lengths.
    """
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints
    try:
        jobs = ENGINES[name](folder, size)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=replies)
        return
    print(json.dumps({"missing": None}), file=replies)
    last = None
    for line in sys.stdin:
        kind, lengths, calls, keep = json.loads(line)
        ids, _ = sentences(lengths, SIZES[size])
        if last != (kind, lengths):
            last = kind, lengths
            figures.reset_peak()
        begin = time.perf_counter()
        out = np.empty(0)
        for _ in range(calls):
            out = jobs[kind](ids)
        seconds = (time.perf_counter() - begin) / calls
        if keep:
            np.save(keep, out)
        print(json.dumps({"seconds": seconds, "peak": figures.peak()}), file=replies)


class Worker:
    def __init__(self, python: str, name: str, folder: Path, size: str):
        self.log = folder / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, "-W", "ignore", __file__, "--worker", name, str(folder), size],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.missing = self.reply()["missing"]

    def reply(self) -> dict:
        line = self.process.stdout.readline()  # pyright: ignore
        return json.loads(line) if line else sys.exit(self.log.read_text())

    def __call__(self, kind: str, lengths: list[int], calls: int = 1, keep: str = "") -> dict:
        print(json.dumps([kind, lengths, calls, keep]), file=self.process.stdin, flush=True)
        return self.reply()


def measure(workers: dict[str, Worker], rounds: int) -> tuple[dict, dict]:
    """(title, engine) -> seconds of each round; -> peak memory."""
    seconds, memory = {}, {}
    for title, (kind, size, calls, _) in JOBS.items():
        for index in range(rounds + 1):  # the first one warms up
            for name, worker in workers.items():
                reply = worker(*(("product", [1], 3) if name in PEAKS else (kind, [WORDS] * size, calls)))
                if index:
                    seconds.setdefault((title, name), []).append(reply["seconds"])
                memory[title, name] = reply["peak"]
    return seconds, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="interpreter with torch and allennlp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", choices=list(SIZES), default=ORIGINAL)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, folder, size = args.worker
        work(name, Path(folder), size)
        return
    size = SIZES[args.size]
    machine = figures.machine()
    print(f"{machine['cores']} cores, {machine['processor']}: {' '.join(machine['flags'])}")
    print(f"TF_ENABLE_ONEDNN_OPTS: {os.environ.get('TF_ENABLE_ONEDNN_OPTS', 'unset, TensorFlow decides')}")
    print(f"words that differ: {sentences([WORDS] * 32, size)[1]:.0%} of 32 sentences")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_weights(folder / "weights.hdf5", size)
        theirs = {*PEERS, "torch"}
        workers = {
            name: Worker(args.peers if name in theirs else sys.executable, name, folder, args.size) for name in ENGINES
        }
        for name, worker in workers.items():
            if worker.missing:
                print(f"{name}: skipped, {worker.missing}; --help tells how to install it")
        present = {name: worker for name, worker in workers.items() if not worker.missing}
        if "AllenNLP" in present:
            lengths = [WORDS, 13, 7, 1]
            files = {name: folder / f"{name}.npy" for name in (*OURS, "AllenNLP") if name in present}
            for name, file in files.items():
                present[name]("forward", lengths, keep=str(file))
            vectors = {name: np.load(file)[sentences(lengths, size)[0].any(2)] for name, file in files.items()}
            theirs = vectors.pop("AllenNLP")
            print(f"mean of the layers, sentences of {lengths} words, same weights, values up to {theirs.max():.1f}:")
            for name, values in vectors.items():
                print(f"  {name}: largest difference to AllenNLP {np.abs(values - theirs).max():.1e}")
        seconds, memory = measure(present, args.rounds)
        for worker in workers.values():
            worker.process.communicate()
    show(seconds, memory, args.size)


def show(seconds: dict, memory: dict, label: str) -> None:
    engines = dict.fromkeys(name for _, name in seconds)
    products = {
        name: 2 * SIDE**3 / 1e9 / min(value for title in JOBS for value in seconds[title, name])
        for name in engines
        if name in PEAKS
    }
    print("peak, best float32 product, GFLOP/s:", ", ".join(f"{name} {value:.0f}" for name, value in products.items()))
    for title, (_, rows, _, passes) in JOBS.items():
        operations = 2.0 * rows * (WORDS + 2) * SIZES[label].macs() * passes
        heads = f"{'words/s':>9}{'to AllenNLP':>13}{'GFLOP/s':>9}{'of peak':>9}{'spread':>8}{'memory':>10}"
        print(f"\n{title}\n{'':26}{heads}")
        rates = {name: rows * WORDS / statistics.median(seconds[title, name]) for name in engines if name not in PEAKS}
        for name, rate in rates.items():
            gflops = operations * rate / rows / WORDS / 1e9
            more = {"words": rows * WORDS, "memory_mb": memory[title, name]}
            best = 1e9 * max(products.values())
            counted = operations if "bfloat16" not in name else None  # the product is float32's
            figures.row(f"ELMo, {label}, {title}", name, seconds[title, name], counted, best, **more)
            ratio = f"{rate / rates['AllenNLP']:.2f}x" if "AllenNLP" in rates else ""
            share = f"{gflops / max(products.values()):.0%}"
            spread = f"{max(seconds[title, name]) / min(seconds[title, name]):.1f}x"
            print(f"{name:26}{rate:9.1f}{ratio:>13}{gflops:9.1f}{share:>9}{spread:>8}{memory[title, name]:7,.0f} MB")


if __name__ == "__main__":
    main()
