"""How fast models train and run on one GPU: under JAX, against transformers and torch.nn.LSTM under PyTorch.

    python benchmarks/gpu.py --out gpu.json
    python benchmarks/gpu.py --quick                         # tiny sizes, on any machine
    python benchmarks/gpu.py --table gpu.json                # the table of docs/performance.md, and runs nothing

It needs Keras with JAX, or PyTorch with transformers, and no TensorFlow; an engine that is not there is left out. Every
engine is a process of its own, the rounds go over the engines in turn, and one runs at a time. A call is a number of
steps on one batch that is on the device already; the first one, which compiles, is not counted.

"step" is a training step of a classifier over BERT-base in bfloat16 with AdamW, clipped gradients and dropout 0.1:
PyTorch's is compiled, with its fused attention and optimizer. "biLM" is ELMo's language model over words, two layers of
LSTM with projections in each direction and a softmax over 10,000 words, in bfloat16; PyTorch's LSTM is cuDNN's.
"student" learns a teacher's vectors of words and texts, with the sizes of the BERT of three layers that comes with the
package. "forward" is the encoder of BERT-base in bfloat16.

"of peak" is the rate of the operations in matrix products over that of one large product on the same device.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import bert
import numpy as np

OURS, THEIRS = "keras_ctxrep", "PyTorch"
NEEDS = {OURS: ("keras", "jax"), THEIRS: ("torch", "transformers")}


class Case(NamedTuple):
    """What is timed: rows and tokens of a batch, steps of a call, and the size of the model."""

    kind: str
    rows: int
    length: int
    steps: int
    size: str

    def __str__(self) -> str:
        return f"{self.kind} {self.rows} x {self.length}"


BASE, BILM, STUDENT = "bert_12_768_12", "elmo_2x1024_128_2048cnn_1xhighway", "bert_3_384_12"
CASES = (
    Case("product", 8192, 8192, 50, ""),
    *(Case("step", rows, 128, 20, BASE) for rows in (32, 128)),
    Case("biLM", 128, 20, 20, BILM),
    Case("student", 512, 64, 20, STUDENT),
    *(Case("forward", rows, 128, 50, BASE) for rows in (1, 8, 64, 256)),
)
QUICK = (
    Case("product", 64, 64, 2, ""),
    Case("step", 2, 8, 2, "bert_2_64_2"),
    Case("biLM", 2, 4, 2, "elmo_2x128_64_256cnn_1xhighway"),
    Case("student", 2, 8, 2, "bert_2_64_2"),
    Case("forward", 2, 8, 2, "bert_2_64_2"),
)
WORDS = 10_000  # of the biLM


def operations(case: Case) -> float:
    """Operations of a step's matrix products; of a training step three times those of the forward pass."""
    if case.kind == "product":
        return 2.0 * case.rows**3
    if case.kind == "biLM":
        units, width = (int(part) for part in case.size.split("x")[1].split("_")[:2])
        tokens = case.rows * case.length
        cell = 4 * units * 2 * width + units * width  # of one layer in one direction
        return 3 * 2.0 * tokens * 2 * (2 * cell + width * WORDS)
    layers, width = map(int, case.size.split("_")[1:3])
    return (1 if case.kind == "forward" else 3) * bert.arithmetic(case.rows, case.length, layers, width)


# --------------------------------------------------------------------------------- engines: a case -> a call's function


def ours(case: Case) -> Callable[[], Any]:
    """Under JAX; a call ends when the device has finished."""
    import jax
    import keras
    from jax import numpy as jnp

    from keras_ctxrep.models import bert as models
    from keras_ctxrep.models import elmo, heads

    keras.utils.set_random_seed(0)
    if case.kind == "product":
        a = jnp.ones((case.rows, case.rows), jnp.bfloat16)
        product = jax.jit(lambda a: a @ a)
        return lambda: jax.block_until_ready([product(a) for _ in range(case.steps)][-1])
    keras.mixed_precision.set_dtype_policy("bfloat16" if case.kind == "forward" else "mixed_bfloat16")
    ids, ones = batch(case)
    inputs: dict[str, Any] = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "mask": ones}
    if case.kind == "forward":
        encoder = models.encoder(models.SIZES[case.size])
        parts = (encoder.trainable_variables, encoder.non_trainable_variables)
        weights = [[variable.value for variable in part] for part in parts]
        run = jax.jit(lambda weights, inputs: encoder.stateless_call(*weights, inputs, training=False)[0]["pooled"])
        inputs = jax.device_put(inputs)
        return lambda: jax.block_until_ready([run(weights, inputs) for _ in range(case.steps)][-1])
    if case.kind == "step":
        model, targets = heads.classify(models.encoder(models.SIZES[case.size]), classes=2), {"logits": ids[:, 0] % 2}
        losses: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    elif case.kind == "biLM":
        config = replace(elmo.SIZES[case.size], words=WORDS)
        model = elmo.language_model(config, WORDS, streams=case.rows)
        inputs = {"word_ids": ids % WORDS, "word_ids_reverse": ids % WORDS, "mask": ones}
        targets = dict.fromkeys(("forward_logits", "backward_logits"), ids % WORDS)
        losses = dict.fromkeys(targets, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    else:
        encoder = models.encoder(models.SIZES[case.size])
        width = encoder.output["sequence"].shape[-1]
        model = keras.Model(encoder.input, {name: encoder.output[name] for name in ("sequence", "pooled")})
        draw = np.random.default_rng(0).standard_normal
        targets = {
            "sequence": draw((case.rows, case.length, width), "float32"),
            "pooled": draw((case.rows, width), "float32"),
        }
        losses = keras.losses.CosineSimilarity()
    model.compile(keras.optimizers.AdamW(5e-5, global_clipnorm=1.0), losses)
    same = jax.device_put((inputs, targets))

    def endless() -> Iterator:
        while True:
            yield same

    return lambda: model.fit(endless(), steps_per_epoch=case.steps, shuffle=False, verbose=0)


def theirs(case: Case) -> Callable[[], Any]:
    """Under PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]

    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.manual_seed(0)

    def repeated(step: Callable[[], Any]) -> Callable[[], None]:
        def call():
            for _ in range(case.steps):
                step()
            wait()

        return call

    if case.kind == "product":
        a = torch.ones(case.rows, case.rows, dtype=torch.bfloat16, device=device)
        return repeated(lambda: a @ a)
    ids, ones = (torch.from_numpy(array).long().to(device) for array in batch(case))
    if case.kind == "forward":
        model = torch.compile(_bert("BertModel", case).eval().to(device, torch.bfloat16))

        def forward():
            with torch.inference_mode():
                return model(input_ids=ids, attention_mask=ones).pooler_output

        return repeated(forward)
    kinds = {"step": "BertForSequenceClassification", "student": "BertModel"}
    plain = _bilm(case) if case.kind == "biLM" else _bert(kinds[case.kind], case)
    model = plain.train().to(device) if case.kind == "biLM" else torch.compile(plain.train().to(device))
    width = plain.config.hidden_size if case.kind == "student" else 1
    words, texts = (torch.randn(*shape, width, device=device) for shape in (ids.shape, ids.shape[:1]))

    def loss():
        if case.kind == "biLM":
            return model(ids % WORDS, ids % WORDS)
        if case.kind == "step":
            return model(input_ids=ids, attention_mask=ones, labels=ids[:, 0] % 2).loss
        outputs = model(input_ids=ids, attention_mask=ones)
        similarity = torch.nn.functional.cosine_similarity
        of_words, of_texts = (outputs.last_hidden_state, words), (outputs.pooler_output, texts)
        return -(similarity(*of_words, dim=-1).mean() + similarity(*of_texts, dim=-1).mean())

    optimizer = torch.optim.AdamW(model.parameters(), 5e-5, weight_decay=0.004, fused=True)

    def step():
        with torch.autocast(device, torch.bfloat16):
            value = loss()
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return repeated(step)


def _bert(kind: str, case: Case):
    import transformers  # pyright: ignore[reportMissingImports]

    layers, width, heads = map(int, case.size.split("_")[1:])
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    config = transformers.BertConfig(**sizes, intermediate_size=4 * width, attn_implementation="sdpa")
    return getattr(transformers, kind)(config)


def _bilm(case: Case):
    """The same sizes by torch.nn.LSTM: in each direction layers with projections, and one softmax for both."""
    import torch  # pyright: ignore[reportMissingImports]

    layers, rest = case.size.removeprefix("elmo_").split("x", 1)
    units, width = map(int, rest.split("_")[:2])

    class Bilm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(WORDS, width)
            sides = (torch.nn.LSTM(width, units, int(layers), batch_first=True, proj_size=width) for _ in range(2))
            self.sides = torch.nn.ModuleList(sides)
            self.softmax = torch.nn.Linear(width, WORDS)

        def forward(self, ids, targets):
            tops = [side(self.table(ids))[0] for side in self.sides]
            losses = (
                torch.nn.functional.cross_entropy(self.softmax(top).flatten(0, 1).float(), targets.flatten())
                for top in tops
            )
            return sum(losses)

    return Bilm()


def batch(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask, int32 (rows, length)."""
    ids = np.random.default_rng(0).integers(1000, 30_000, (case.rows, case.length), np.int32)
    return ids, np.ones_like(ids)


def about(engine: str) -> dict:
    """The device, and the most memory that the process has had on it, in MB; None where that is not counted."""
    if engine == OURS:
        import jax

        device = jax.local_devices()[0]
        peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
        return {"device": device.device_kind, "memory_mb": peak and peak / 1e6}
    import torch  # pyright: ignore[reportMissingImports]

    if not torch.cuda.is_available():
        return {"device": "cpu", "memory_mb": None}
    return {"device": torch.cuda.get_device_name(), "memory_mb": torch.cuda.max_memory_allocated() / 1e6}


# --------------------------------------------------------------------------------------------------------- processes


def work(engine: str) -> None:
    """What the process of an engine does: it reads cases and answers with the seconds of a step, compiled before."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints
    made: tuple[Case, Callable[[], Any]] | None = None
    for line in sys.stdin:
        case = Case(*json.loads(line))
        if made is None or made[0] != case:
            made = None  # a model at a time
            made = case, {OURS: ours, THEIRS: theirs}[engine](case)
            made[1]()
            made[1]()
        begin = time.perf_counter()
        made[1]()
        seconds = (time.perf_counter() - begin) / case.steps
        print(json.dumps({"seconds": seconds} | about(engine)), file=replies)


def measured(cases: tuple[Case, ...], rounds: int, engines: list[str]) -> Iterator[dict]:
    """A line for each case and engine."""
    environment = os.environ | {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    environment["PYTHONPATH"] = bert.PATHS
    for case in cases:
        seconds, last = defaultdict(list), {}
        command = [sys.executable, __file__, "--work"]
        workers: dict[str, Any] = {engine: subprocess.Popen([*command, engine], **pipes) for engine in engines}
        for _ in range(rounds):
            for engine, worker in workers.items():
                worker.stdin.write(json.dumps(case) + "\n")
                worker.stdin.flush()
                if not (reply := worker.stdout.readline()):
                    raise SystemExit(f"{engine}, {case}: the process has ended")
                last[engine] = json.loads(reply)
                seconds[engine].append(last[engine]["seconds"])
        for engine, worker in workers.items():
            worker.stdin.close()
            worker.wait()
            yield {"case": str(case), "engine": engine, "tokens": case.rows * case.length} | {
                "seconds": seconds[engine], "operations": operations(case)
            } | {name: last[engine][name] for name in ("device", "memory_mb")}  # fmt: skip


def table(lines: list[dict]) -> Iterator[str]:
    """Rows of Markdown; the peak is that of the quickest engine's product."""
    peak = max(line["operations"] / min(line["seconds"]) for line in lines if line["case"].startswith("product"))
    yield f"{lines[0]['device']}: {peak / 1e12:.3g} TFLOP/s in one product of bfloat16"
    yield ""
    yield "| case | engine | ms | tokens/s | of peak | memory, MB | ratio |"
    yield "|---|---|---|---|---|---|---|"
    best = {line["case"]: statistics.median(line["seconds"]) for line in lines if line["engine"] == THEIRS}
    for line in lines:
        if line["case"].startswith("product"):
            continue
        seconds = statistics.median(line["seconds"])
        ratio = f"{best[line['case']] / seconds:.2f}" if line["case"] in best else ""
        memory = f"{line['memory_mb']:,.0f}" if line["memory_mb"] else ""
        share = line["operations"] / seconds / peak
        cells = [line["case"], line["engine"], f"{1000 * seconds:.2f}", f"{line['tokens'] / seconds:,.0f}"]
        yield "| " + " | ".join([*cells, f"{share:.0%}", memory, ratio]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a file of JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--only", nargs="+", help="kinds of cases, beside product")
    parser.add_argument("--table", type=Path, help="print what is in this file, and run nothing")
    parser.add_argument("--work", choices=NEEDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        return work(args.work)
    if args.table:
        lines = json.loads(args.table.read_text("utf-8"))
    else:
        engines = [name for name, needs in NEEDS.items() if all(map(importlib.util.find_spec, needs))]
        if not engines:
            raise SystemExit("neither Keras and JAX nor PyTorch and transformers are installed")
        kinds = {"product", *(args.only or (case.kind for case in CASES))}
        cases = tuple(case for case in (QUICK if args.quick else CASES) if case.kind in kinds)
        lines = []
        for line in measured(cases, args.rounds, engines):
            print(json.dumps(line), file=sys.stderr, flush=True)
            lines.append(line)
            if args.out:
                args.out.write_text(json.dumps(lines, indent=1) + "\n", "utf-8")
    print("\n".join(table(lines)))


if __name__ == "__main__":
    main()
