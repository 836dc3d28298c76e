"""How fast BERT runs on the CPU, against KerasHub, Hugging Face transformers and ONNX Runtime.

    python benchmarks/bert.py --peers peers/bin/python --data shared/data

The peers live in an environment of their own:

    python3.11 -m venv peers
    peers/bin/pip install torch transformers keras-hub onnxruntime onnx onnxscript tensorflow

Every engine is a process that waits for commands. The rounds go over the engines in turn and one runs at a time, so the
machine's moods hit all alike; medians are printed as they come. The spread is the slowest round over the fastest: where
it is far from 1 the machine had other work. CPU seconds, of all threads, feel that less. Memory is the greatest of the
engine's process from its first call on, when the arrays that its weights were made from are gone.

All engines have the sizes of BERT-base and, but for KerasHub, the same random weights. Inference gives the top layer
and the pooled output, but for "keras_ctxrep LiteRT": a classifier's logits, from the file by which `load(FOLDER,
engine="auto")` answers texts that come one at a time. A training step is AdamW's, with dropout 0.1, of a classifier.
Sentences are SST-2's, 32 to a batch, padded as each engine does by itself: ours are bucketed by length, transformers
pads to the longest of a batch in the order of the file, KerasHub to 512 pieces (16 at a time, 8 in training: 32 need
more memory than there is), or to 128 if it is told to. bfloat16 is left out where the CPU has none.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path

import figures
import numpy as np

ROOT = Path(__file__).parents[1]
PATHS = os.pathsep.join(str(ROOT / part) for part in (".", "export", "tflite"))  # of the packages
SIZE = "bert_12_768_12"
SINGLE = "keras_ctxrep LiteRT"  # the engine that takes one text at a time
SIDE = 2048  # of the matrices whose product gives the machine's peak
SHAPES = {  # kind: (sentences, pieces, calls in one round)
    "forward": ((1, 128, 5), (1, 256, 3), (8, 128, 1)),
    "step": ((8, 128, 1),),
}
PADDINGS = {  # to the longest of 32 sentences bucketed by length, of 32 in the file's order, or to a fixed length
    "keras_ctxrep": ["bucketed"],
    "keras_ctxrep bf16": ["bucketed"],
    "KerasHub": [512, 128],
    "transformers": ["longest"],
    "transformers bf16": ["longest"],
    "ONNX Runtime": ["longest"],
}


def arithmetic(rows: int, length: int, layers: int, width: int) -> float:
    """Operations of a forward pass in matrix products: dense layers, and attention."""
    return 2.0 * rows * layers * (12 * width**2 * length + 2 * width * length**2)


def weight(name: str, shape) -> np.ndarray:
    """The value that every engine gives to a weight, by its name in transformers."""
    if name.endswith("bias") or "LayerNorm" in name:
        return np.full(shape, float("LayerNorm.weight" in name), "float32")
    return 0.02 * np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, "float32")


# ------------------------------------------- engines: functions of ids, mask (B, T) and labels (B,), made when needed


def fill(model):
    """Our encoder or classifier with the weights that all engines have."""
    for layer in model.layers:
        if layer.name.startswith("layer_"):
            D, F = layer.feed_forward.kernel.shape
            place = f"encoder.layer.{layer.name[6:]}."
            parts = [weight(f"{place}attention.self.{part}.weight", (D, D)).T for part in ("query", "key", "value")]
            layer.qkv.kernel.assign(np.concatenate(parts, axis=1))
            layer.attention_output.kernel.assign(weight(f"{place}attention.output.dense.weight", (D, D)).T)
            layer.feed_forward.kernel.assign(weight(f"{place}intermediate.dense.weight", (F, D)).T)
            layer.feed_forward_output.kernel.assign(weight(f"{place}output.dense.weight", (D, F)).T)
        for name, theirs in (("pooler", "pooler.dense"), ("logits", "classifier")):
            if layer.name == name:
                layer.kernel.assign(weight(f"{theirs}.weight", layer.kernel.shape[::-1]).T)
    for name, theirs in (("token", "word"), ("position", "position"), ("segment", "token_type")):
        (table,) = model.get_layer(f"{name}_embedding").weights
        table.assign(weight(f"embeddings.{theirs}_embeddings.weight", table.shape))
    return model


def ours(size: str, precision: str) -> dict:
    import keras
    import tensorflow as tf

    from keras_ctxrep.inference import keras_engine
    from keras_ctxrep.models import bert, heads
    from keras_ctxrep.optimizers import AdamW
    from keras_ctxrep.training import fit

    keras.utils.set_random_seed(0)
    config = bert.SIZES[size]

    def inputs(ids, mask):
        return {"token_ids": ids, "segment_ids": np.zeros_like(ids), "mask": mask}

    def forward():
        keras.mixed_precision.set_dtype_policy({"float32": "float32", "bfloat16": "bfloat16"}[precision])
        encoder = fill(bert.encoder(config))
        wanted: dict = {name: encoder.output[name] for name in ("sequence", "pooled")}
        run = keras_engine.runner(keras.Model(encoder.input, wanted))
        return lambda ids, mask, labels: run(inputs(ids, mask))["pooled"].astype("float32")

    def trained():
        keras.mixed_precision.set_dtype_policy({"float32": "float32", "bfloat16": "mixed_bfloat16"}[precision])
        model = fill(heads.classify(bert.encoder(config), classes=2))
        return fit.compile(model, AdamW(5e-5))

    def step():
        model = trained()
        return lambda ids, mask, labels: model.train_on_batch(inputs(ids, mask), {"logits": labels})

    def product():
        a = tf.ones((SIDE, SIDE), precision)
        run = tf.function(lambda: a @ a)
        return lambda *_: run()[0, 0].numpy()  # pyright: ignore

    return {"forward": forward, "step": step, "product": product}


def classifier(size: str, max_length: int):
    """The bundle of a classifier over words that are made up."""
    from keras_ctxrep.models import bert
    from keras_ctxrep.text.bundle import Bundle

    vocab = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocab += tuple(f"w{number}" for number in range(bert.SIZES[size].vocabulary_size - len(vocab)))
    return Bundle("bert", "classify", asdict(bert.SIZES[size]), max_length, ("no", "yes"), vocab)


def litert(size: str) -> dict:
    from keras_ctxrep import saving
    from keras_ctxrep_tflite import quantize, runtime

    def forward():
        bundle = classifier(size, max_length=256)
        with tempfile.TemporaryDirectory() as folder:
            saving.save(f"{folder}/model", fill(saving.build(bundle)), bundle)
            file = quantize.convert(f"{folder}/model", f"{folder}/model.tflite")
            run = runtime.load(file, os.cpu_count() or 1).runner.run
        return lambda ids, mask, labels: np.array(
            run({"token_ids": ids, "segment_ids": np.zeros_like(ids), "mask": mask})["logits"]
        )

    return {"forward": forward}


def kerashub(size: str, jit: bool) -> dict:
    import keras
    import keras_hub  # pyright: ignore[reportMissingImports]
    import tensorflow as tf

    layers, width, heads = map(int, size.split("_")[1:])
    backbone = keras_hub.models.BertBackbone(30522, layers, heads, width, 4 * width, dropout=0.1)

    def inputs(ids, mask):
        return {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": mask}

    def forward():
        run = tf.function(lambda x: backbone(x, training=False), jit_compile=jit, reduce_retracing=not jit)
        return lambda ids, mask, labels: {
            name: value.numpy() for name, value in run(tf.nest.map_structure(tf.constant, inputs(ids, mask))).items()
        }["pooled_output"]

    def step():
        model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(5e-5, weight_decay=0.01), loss, jit_compile=jit)
        return lambda ids, mask, labels: model.train_on_batch(inputs(ids, mask), labels)

    return {"forward": forward, "step": step}


def transformers(size: str, precision: str) -> dict:
    import torch  # pyright: ignore[reportMissingImports]

    half = precision == "bfloat16"

    def tensors(*arrays):
        return [torch.from_numpy(array.astype("int64")) for array in arrays]

    def forward():
        model = _torch_bert("BertModel", size).eval().to(torch.bfloat16 if half else torch.float32)

        def run(ids, mask, labels):
            ids, mask = tensors(ids, mask)
            with torch.inference_mode():
                outputs = model(input_ids=ids, attention_mask=mask)
                return outputs.pooler_output.float().numpy()

        return run

    def step():
        model = _torch_bert("BertForSequenceClassification", size).train()
        optimizer = torch.optim.AdamW(model.parameters(), 5e-5, weight_decay=0.01, fused=True)

        def run(ids, mask, labels):
            ids, mask, labels = tensors(ids, mask, labels)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.item()

        return run

    def product():
        a = torch.ones(SIDE, SIDE, dtype=torch.bfloat16 if half else torch.float32)
        return lambda *_: float((a @ a)[0, 0])

    return {"forward": forward, "step": step, "product": product}


def _torch_bert(kind: str, size: str, **options):
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    layers, width, heads = map(int, size.split("_")[1:])
    config = transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width, **options
    )
    model = getattr(transformers, kind)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weight(name.removeprefix("bert."), tuple(parameter.shape))))
    return model


def onnx(size: str) -> dict:
    import onnxruntime  # pyright: ignore[reportMissingImports]

    def forward():
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/bert.onnx"
            code = f"import bert; bert.export_onnx({size!r}, {file!r})"  # torch's memory is not to be counted here
            subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
            session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

        def run(ids, mask, labels):
            return session.run(None, {"ids": ids.astype("int64"), "mask": mask.astype("int64")})[1]

        return run

    return {"forward": forward}


def export_onnx(size: str, file: str, kind: str = "BertModel", dynamo: bool = True) -> None:
    """Writes a model of transformers.

    Args:
        dynamo: by PyTorch's newer exporter, in whose graphs ONNX Runtime's optimizer finds no attention.
    """
    import torch  # pyright: ignore[reportMissingImports]

    class Outputs(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(input_ids=ids, attention_mask=mask).to_tuple()

    model = Outputs(_torch_bert(kind, size, attn_implementation="eager").eval())
    ids = torch.ones(2, 16, dtype=torch.int64)
    axes = {name: {0: "B", 1: "T"} for name in ("ids", "mask")}
    shapes = {"dynamic_shapes": axes} if dynamo else {"dynamic_axes": axes}
    torch.onnx.export(model, (ids, ids.clone()), file, input_names=["ids", "mask"], dynamo=dynamo, **shapes)


ENGINES = {
    "keras_ctxrep": lambda size: ours(size, "float32"),
    "keras_ctxrep bf16": lambda size: ours(size, "bfloat16"),
    SINGLE: litert,
    "KerasHub": lambda size: kerashub(size, False),
    "KerasHub XLA": lambda size: kerashub(size, True),
    "transformers": lambda size: transformers(size, "float32"),
    "transformers bf16": lambda size: transformers(size, "bfloat16"),
    "ONNX Runtime": onnx,
}

WAVES = (  # engines that train at the same time: a model and its optimizer take up to 4 GB
    ["keras_ctxrep", "keras_ctxrep bf16", "KerasHub", "transformers"],
    ["keras_ctxrep", "keras_ctxrep bf16", "KerasHub XLA", "transformers bf16"],
)


# ------------------------------------------------------------------------------------------------------- processes


def work(name: str, argument: str, engines: dict = ENGINES) -> None:
    """What the process of an engine does.

    It reads {kind, batches: file, calls, keep: file or none, profile: bool} lines, and answers what a call took.
    """
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints
    try:
        makers = engines[name](argument)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=replies)
        return
    print(json.dumps({"missing": None}), file=replies)
    jobs, files, last = {}, {}, None
    for line in sys.stdin:
        order = json.loads(line)
        kind, calls, file = order["kind"], order["calls"], order["batches"]
        if kind not in makers:
            print(json.dumps({"seconds": None}), file=replies)
            continue
        if kind not in jobs:
            if kind != "product":  # a model and its optimizer at a time
                for other in jobs.keys() - {"product"}:
                    del jobs[other]
            jobs[kind] = makers[kind]()
        if file not in files:
            files[file] = [padded(**batch) for batch in json.loads(Path(file).read_text())] if file else [()]
        if order["profile"]:
            print(json.dumps(profile(lambda kind=kind, file=file: [jobs[kind](*b) for b in files[file]])), file=replies)
            continue
        if last != (kind, file):  # its first call: what its making took is not counted
            last = kind, file
            figures.reset_peak()
        spent, outputs, times = time.process_time(), [], []
        for _ in range(calls):
            begin = time.perf_counter()
            outputs = [jobs[kind](*batch) for batch in files[file]]
            times.append(time.perf_counter() - begin)
        cpu = (time.process_time() - spent) / calls
        reply = {"seconds": statistics.fmean(times), "median": statistics.median(times), "cpu": cpu}
        if order["keep"]:
            np.savez(order["keep"], *map(np.asarray, outputs))
        print(json.dumps(reply | {"peak": figures.peak()}), file=replies)


def padded(rows: list[list[int]], labels: list[int], length: int) -> tuple[np.ndarray, ...]:
    ids, mask = np.zeros((len(rows), length), "int32"), np.zeros((len(rows), length), "int32")
    for index, row in enumerate(rows):
        ids[index, : len(row)], mask[index, : len(row)] = row, 1
    return ids, mask, np.array(labels, "int32")


class Worker:
    """The process of an engine, which `script --worker` starts by `work`."""

    def __init__(self, python: str, name: str, folder: Path, argument: str, script: str = __file__):
        self.name, self.log = name, folder / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, "-W", "ignore", script, "--worker", name, argument],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": PATHS},
            )
        self.missing = self.reply().get("missing")

    def reply(self) -> dict:
        line = self.process.stdout.readline()  # pyright: ignore
        return json.loads(line) if line else {"missing": f"failed: {self.log.read_text().strip()[-600:]}"}

    def __call__(self, kind: str, batches: Path | None, calls: int = 1, keep: str = "", profile: bool = False) -> dict:
        order = {"kind": kind, "batches": str(batches or ""), "calls": calls, "keep": keep, "profile": profile}
        if self.missing is None:
            try:
                print(json.dumps(order), file=self.process.stdin, flush=True)
            except BrokenPipeError:
                self.missing = "has ended"
            else:
                reply = self.reply()
                self.missing = reply.get("missing")
                if self.missing is None:
                    return reply
            print(f"{self.name}: {self.missing}")
        return {"seconds": None}

    def end(self) -> None:
        self.process.communicate()


def flags() -> set[str]:
    return {*figures.machine()["flags"]}


def has_bfloat16() -> bool:
    return bool({"avx512_bf16", "amx_bf16"} & flags()) or not Path("/proc/cpuinfo").exists()


# ------------------------------------------------------------------------------------------------------------ parts


def drawn(rows: int, length: int) -> dict:
    """A batch of random pieces."""
    draw = random.Random(0)
    ids = [[draw.randrange(1000, 30000) for _ in range(length)] for _ in range(rows)]
    return {"rows": ids, "labels": [draw.randrange(2) for _ in ids], "length": length}


class Bench:
    """The workers of one part, and what they took."""

    def __init__(self, peers: str, folder: Path, names: list[str], size: str = SIZE):
        self.folder, self.size = folder, size
        self.peaks: dict[str, float] = {}
        self.workers = {}
        for name in names:
            if name.endswith("bf16") and not has_bfloat16():
                print(f"{name}: left out, this CPU has no bfloat16")
                continue
            worker = Worker(sys.executable if name.startswith("keras_ctxrep") else peers, name, folder, size)
            if worker.missing:
                print(f"{name}: left out, {worker.missing}; --help tells how to install it")
            else:
                self.workers[name] = worker

    def file(self, name: str, batches: list[dict]) -> Path:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(batches))
        return path

    def peak(self) -> dict[bool, float]:
        """The best product in float32 and, under True, in bfloat16, GFLOP/s."""
        for worker in self.workers.values():
            for _ in range(5):
                seconds = worker("product", None)["seconds"]
                if seconds:
                    self.peaks[worker.name] = max(self.peaks.get(worker.name, 0), 2 * SIDE**3 / 1e9 / seconds)
        halves = {
            half: [v for name, v in self.peaks.items() if name.endswith("bf16") == half] for half in (False, True)
        }
        return {half: max(values, default=float("nan")) for half, values in halves.items()}

    def race(self, title: str, kind: str, jobs: dict[str, tuple[str, Path, int, float]], calls: int, rounds: int):
        """Measures and prints.

        jobs: line -> (engine, file of batches, sentences in it, operations in it).
        """
        times = defaultdict(list)
        for index in range(rounds + 1):  # the first one warms up
            for line, (name, file, _, _) in jobs.items():
                reply = self.workers[name](kind, file, calls)
                if reply["seconds"] and index:
                    times[line].append(reply)
        peaks = self.peak()
        print(f"\n{title}")
        print(
            f"{'':28}{'ms':>9}{'sentences/s':>13}{'ours is':>9}{'bf16 is':>9}{'GFLOP/s':>9}{'of peak':>9}"
            f"{'spread':>8}{'CPU s':>8}{'memory':>11}"
        )
        medians = {line: statistics.median(reply["seconds"] for reply in replies) for line, replies in times.items()}
        rates = {line: jobs[line][2] / seconds for line, seconds in medians.items()}

        def ratio(ours, line):
            own = next((rate for other, rate in rates.items() if jobs[other][0] == ours), None)
            return f"{own / rates[line]:.2f}x" if own else ""

        for line, replies in times.items():
            seconds = [reply["seconds"] for reply in replies]
            gflops = jobs[line][3] / medians[line] / 1e9
            half, memory = jobs[line][0].endswith("bf16"), replies[-1]["peak"]
            cpu = statistics.median(reply["cpu"] for reply in replies)
            more = {"precision": "bfloat16" if half else "float32", "sentences": jobs[line][2], "memory_mb": memory}
            more["cpu_seconds"] = cpu
            figures.row(f"BERT, {self.size}, {title}", line, seconds, jobs[line][3], 1e9 * peaks[half], **more)
            print(
                f"{line:28}{1000 * medians[line]:9.1f}{rates[line]:13.1f}{ratio('keras_ctxrep', line):>9}"
                f"{ratio('keras_ctxrep bf16', line):>9}{gflops:9.1f}{gflops / peaks[False]:9.0%}"
                f"{max(seconds) / min(seconds):7.1f}x{cpu:8.2f}"
                f"{memory:8,.0f} MB",
                flush=True,
            )

    def shape(self, rows: int, length: int) -> Path:
        return self.file(f"{rows}x{length}", [drawn(rows, length)])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        products = ", ".join(f"{name} {value:.0f}" for name, value in self.peaks.items())
        if products:
            print(f"\nbest products, GFLOP/s: {products}", flush=True)
        for worker in self.workers.values():
            worker.end()


def fixed(bench: Bench, kind: str, rounds: int) -> None:
    layers, width, _ = map(int, bench.size.split("_")[1:])
    passes, title = (3, "training step") if kind == "step" else (1, "inference")
    for rows, length, calls in SHAPES[kind]:
        file = bench.shape(rows, length)
        amount = passes * arithmetic(rows, length, layers, width)
        jobs = {name: (name, file, rows, amount) for name in bench.workers if rows == 1 or name != SINGLE}
        bench.race(f"{title}, batch {rows}, length {length}", kind, jobs, calls, rounds)


def agreement(bench: Bench) -> None:
    """How far the pooled outputs of the same weights are from transformers' in float32."""
    batch = {"rows": [[101, *range(2000, 2000 + length), 102] for length in (30, 7, 1)], "labels": [0] * 3}
    file, outputs = bench.file("agreement", [batch | {"length": 32}]), {}
    for name, worker in bench.workers.items():
        if not name.startswith("KerasHub") and name != SINGLE:
            keep = str(bench.folder / f"{name}.npz")
            if worker("forward", file, keep=keep)["seconds"]:
                outputs[name] = np.load(keep)["arr_0"].astype("float64")
    best = outputs.get("transformers", outputs.get("keras_ctxrep"))
    if best is None:
        return
    print("\npooled outputs, same weights, against transformers in float32:" if "transformers" in outputs else "")
    for name, value in outputs.items():
        cosine = (value * best).sum(1) / np.linalg.norm(value, axis=1) / np.linalg.norm(best, axis=1)
        print(f"{name:28}largest difference {np.abs(value - best).max():.1e}, least cosine {cosine.min():.6f}")


def sst2(folder: Path, name: str) -> list[tuple[list[int], int]]:
    """(pieces, label) of a file's sentences."""
    sys.path.insert(0, str(ROOT))
    from keras_ctxrep.text.tokens import WordPiece

    vocabulary = folder / "bert_checkpoints" / "vocab" / "bert-base-uncased-vocab.txt"
    pieces = WordPiece(vocabulary.read_text(encoding="utf-8").split("\n")[:30522])
    lines = (folder / "sst2_glue" / name).read_text(encoding="utf-8").splitlines()[1:]
    pairs = [line.rsplit("\t", 1) for line in lines]
    return [([101, *(p.id for p in pieces.encode(text)), 102], int(label)) for text, label in pairs]


def batches(examples: list, padding, size: int = 32) -> list[dict]:
    """Batches as an engine makes them; `padding` as in PADDINGS."""
    if padding == "bucketed":
        examples = sorted(examples, key=lambda example: len(example[0]))
    chunks = [examples[begin : begin + size] for begin in range(0, len(examples), size)]
    if padding == "bucketed":
        random.Random(0).shuffle(chunks)
    return [
        {
            "rows": [row for row, _ in batch],
            "labels": [label for _, label in batch],
            "length": padding if isinstance(padding, int) else max(len(row) for row, _ in batch),
        }
        for batch in chunks
    ]


def real(bench: Bench, kind: str, data: Path, rounds: int) -> None:
    """Real sentences, padded as each engine pads them."""
    layers, width, _ = map(int, bench.size.split("_")[1:])
    examples = sst2(data, "dev.tsv" if kind == "forward" else "train.tsv")
    random.Random(0).shuffle(examples)
    # padding -> (sentences, in batches of); to 512 pieces training takes more memory than there is for 32
    amounts = {
        "bucketed": (512, 32),
        "longest": (512, 32),
        128: (64, 32),
        512: (16, 16) if kind == "forward" else (8, 8),
    }
    jobs = {}
    for name in bench.workers:
        for padding in PADDINGS.get(name, []):
            count, size = amounts[padding]
            batched = batches(examples[:count], padding, size)
            file = bench.file(f"{kind}-{padding}", batched)
            amount = sum(arithmetic(len(b["rows"]), b["length"], layers, width) for b in batched)
            text = {"bucketed": "bucketed by length", "longest": "longest"}.get(padding, f"to {padding}")
            jobs[f"{name}, {text}"] = (name, file, count, amount * (3 if kind == "step" else 1))
    mean = statistics.mean(len(row) for row, _ in examples)
    title = "SST-2 dev, inference" if kind == "forward" else "SST-2 train, training"
    bench.race(f"{title}, batches of 32, {mean:.0f} pieces a sentence", kind, jobs, 1, rounds)


def curve(bench: Bench, data: Path | None, steps: int) -> None:
    """Losses of the same steps from the same weights."""
    if data is None:
        draw = random.Random(0)
        texts = [[draw.randrange(1000, 1100) for _ in range(draw.randint(4, 20))] for _ in range(32 * steps)]
        examples = [([101, *text, 102], int(sum(text) % 7 > 3)) for text in texts]
    else:
        examples = sst2(data, "train.tsv")
        random.Random(0).shuffle(examples)
    file = bench.file("curve", batches(examples[: 32 * steps], "longest"))
    print(f"\nlosses of {steps} training steps of {bench.size}, means of tenths of the run")
    for name, worker in bench.workers.items():
        keep = str(bench.folder / f"{name} curve.npz")
        if worker("step", file, keep=keep)["seconds"]:
            losses = [float(value) for value in np.load(keep).values()]
            tenths = [statistics.mean(losses[i * steps // 10 : (i + 1) * steps // 10]) for i in range(10)]
            print(f"{name:28}" + "".join(f"{value:8.4f}" for value in tenths), flush=True)


# ---------------------------------------------------------------------------------------------------------- profile

SHARES = (  # where an operation belongs: the first that its name or its kind fits
    ("optimizer", r"adam|L2Loss|clip_by_global_norm|global_norm"),
    ("matrix products", r":.*MatMul"),
    ("dropout", r"drop_|dropout|stateless"),
    ("GELU", r"[Gg]elu|Erf"),
    ("softmax", r"[Ss]oftmax"),
    ("layer norm", r"_norm|FusedBatchNorm"),
    ("biases", r"BiasAdd"),
    ("embeddings", r"embedding"),
)


def profile(run) -> dict:
    """Milliseconds of each kind of operation in one call, and of the call; TensorFlow only."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # pyright: ignore[reportMissingImports]

    run()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        begin = time.perf_counter()
        run()
        wall = 1000 * (time.perf_counter() - begin)
        tf.profiler.experimental.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
    spent = Counter()
    for plane in space.planes:
        for event in (event for line in plane.lines for event in line.events):
            name = plane.event_metadata[event.metadata_id].name
            if re.fullmatch(r"[^:]+:\w+", name):  # node:operation
                spent[name] += event.duration_ps / 1e9
    return {"wall": wall, "operations": spent}


def shares(bench: Bench) -> None:
    """Where the time of a training step goes."""
    for name, worker in bench.workers.items():
        rows, length, _ = SHAPES["step"][0]
        reply = worker("step", bench.shape(rows, length), profile=True)
        if "operations" not in reply:
            continue
        parts, rest = Counter(), Counter()
        for operation, milliseconds in reply["operations"].items():
            part = next((part for part, pattern in SHARES if re.search(pattern, operation)), None)
            parts[part or "the rest"] += milliseconds
            rest[operation.split(":")[-1]] += milliseconds if part is None else 0
        total = sum(parts.values())
        print(
            f"\n{name}: training step of {bench.size}, {rows} x {length}: {reply['wall']:.0f} ms; of operations' time:"
        )
        for part, milliseconds in parts.most_common():
            print(f"    {part:20}{milliseconds:9.1f} ms{milliseconds / total:6.0%}")
        print("    the rest:", ", ".join(f"{kind} {value:.0f} ms" for kind, value in rest.most_common(6)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="interpreter with the peers")
    parser.add_argument("--rounds", type=int, default=5, help="of inference; of training three fifths as many")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with sst2_glue/ and bert_checkpoints/vocab/")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES), metavar="NAME")
    parser.add_argument("--size", default=SIZE, help="of all parts but the curve")
    parts = ["inference", "training", "sentences", "curve", "profile"]
    parser.add_argument("--only", choices=parts, action="append", help="these parts")
    parser.add_argument("--loss-curve", type=int, default=200, metavar="N", help="steps of the curve")
    parser.add_argument("--curve-size", default="bert_4_256_4")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker)
        return
    wanted = args.only or parts
    begin = time.perf_counter()
    print(f"{os.cpu_count()} cores: {' '.join(sorted(flags()))}")
    print(f"TF_ENABLE_ONEDNN_OPTS: {os.environ.get('TF_ENABLE_ONEDNN_OPTS', 'unset, TensorFlow decides')}", flush=True)
    few = max(1, args.rounds * 3 // 5)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        own = [name for name in args.engines if name.startswith("keras_ctxrep") and name != SINGLE]
        if "inference" in wanted:
            with Bench(args.peers, folder, args.engines, args.size) as bench:
                agreement(bench)
                fixed(bench, "forward", args.rounds)
        waves = [[name for name in wave if name in args.engines] for wave in WAVES]
        waves = [wave for wave in waves if set(wave) - set(own)] or [own]
        if "training" in wanted:
            for wave in waves:
                with Bench(args.peers, folder, wave, args.size) as bench:
                    fixed(bench, "step", few)
        if "sentences" in wanted and args.data is None:
            print("\nreal sentences: left out, they need --data")
        elif "sentences" in wanted:
            with Bench(args.peers, folder, args.engines, args.size) as bench:
                real(bench, "forward", args.data, few)
            for wave in waves:
                with Bench(args.peers, folder, [name for name in wave if "XLA" not in name], args.size) as bench:
                    real(bench, "step", args.data, 1)
        if "curve" in wanted:
            torch = [name for name in args.engines if name == "transformers"]
            with Bench(args.peers, folder, own + torch, args.curve_size) as bench:
                curve(bench, args.data, args.loss_curve)
        if "profile" in wanted:
            with Bench(args.peers, folder, own, args.size) as bench:
                shares(bench)
    print(f"\n{(time.perf_counter() - begin) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
