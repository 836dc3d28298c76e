"""How fast our .tflite files are on the CPU, and how small, against ONNX Runtime and KerasHub's LiteRT export.

    python benchmarks/tflite.py --peers peers/bin/python

The peers live in an environment of their own:

    python3.11 -m venv peers
    peers/bin/pip install torch transformers onnxruntime onnx onnxscript sympy keras-hub tensorflow ai-edge-litert

A classifier of the sizes of BERT-base reads one text of 16 and of 128 pieces, on two threads. Engines are processes
that take turns, as in bert.py. Our files hold both lengths over one copy of the weights; KerasHub's have one
signature, so there is one for each length, and the size is that of one. ONNX Runtime's models went through the
optimizer in onnxruntime.transformers; their int8 is `quantize_dynamic` of the result, unsigned activations and signed
weights. KerasHub's are quantized by TensorFlow's converter, and by our own writer.

"ratio" is the time at 128 over that at 16, "speed" that of our float32 over the engine's time, "of peak" is of the
float32 rate of one large matrix product, which int8 exceeds where the CPU has instructions for it, "logits" how far
they are from our float32's, relative to their norm: ours and ONNX Runtime's have the same random weights.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import bert
import figures
import numpy as np

LENGTHS = {16: 25, 128: 5}  # pieces -> calls in one round
THREADS = 2
QUANTIZATIONS = ("none", "float16", "dynamic", "int8")
ONNX = ("none", "int8", "int8 by channel")
KERASHUB = ("none", "dynamic", "dynamic by our writer")
FLOAT = "keras_ctxrep none"  # what the others are compared with


# ------------------------------------------------------------------------ builders: write the files of their engines


def build_ours(size: str, folder: Path) -> None:
    from keras_ctxrep import saving, tasks
    from keras_ctxrep.text.bundle import write_tflite
    from keras_ctxrep_tflite import calibration, quantize, weights

    bundle = bert.classifier(size, max(LENGTHS))
    saving.save(folder / "model", bert.fill(saving.build(bundle)), bundle)
    texts = folder / "texts.txt"
    drawn = np.random.default_rng(0).choice(bundle.vocab[5:], (60, max(LENGTHS) - 2))
    texts.write_text("\n".join(map(" ".join, drawn)), "utf-8")
    data, bundle = quantize.float_model(folder / "model", sorted(LENGTHS))
    names = list(weights.sizes(data))
    ranges = calibration.ranges(data, calibration.inputs_of([texts], tasks.of_model(bundle), bundle))
    for form in QUANTIZATIONS:
        write_tflite(folder / f"keras_ctxrep {form}.tflite", weights.quantized(data, form, names, ranges), bundle)


def build_onnx(size: str, folder: Path) -> None:
    from onnx import TensorProto  # pyright: ignore[reportMissingImports]
    from onnxruntime.quantization import QuantType, quantize_dynamic  # pyright: ignore[reportMissingImports]
    from onnxruntime.transformers import optimizer  # pyright: ignore[reportMissingImports]

    _, width, heads = map(int, size.split("_")[1:])
    exported, optimized = str(folder / "exported.onnx"), str(folder / "ONNX Runtime none.onnx")
    bert.export_onnx(size, exported, "BertForSequenceClassification", dynamo=False)
    model = optimizer.optimize_model(exported, "bert", num_heads=heads, hidden_size=width)
    fused = {name: count for name, count in model.get_fused_operator_statistics().items() if count}
    print("fused by ONNX Runtime's optimizer:", fused, flush=True)
    model.save_model_to_file(optimized)
    for form in ONNX[1:]:
        target = str(folder / f"ONNX Runtime {form}.onnx")
        by_channel = form == "int8 by channel"
        types = {"DefaultTensorType": TensorProto.FLOAT}  # ONNX does not know what the optimizer's operators return
        quantize_dynamic(optimized, target, weight_type=QuantType.QInt8, per_channel=by_channel, extra_options=types)


def build_kerashub(size: str, folder: Path) -> None:
    import keras_hub  # pyright: ignore[reportMissingImports]
    import tensorflow as tf

    from keras_ctxrep_tflite import weights

    layers, width, heads = map(int, size.split("_")[1:])
    backbone = keras_hub.models.BertBackbone(30522, layers, heads, width, 4 * width)
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)
    for length in LENGTHS:
        inputs = {
            name: tf.TensorSpec((1, length), tf.int32, name) for name in ("token_ids", "segment_ids", "padding_mask")
        }
        for form in KERASHUB[:2]:
            optimizations = [tf.lite.Optimize.DEFAULT] if form == "dynamic" else []
            file = str(folder / f"KerasHub {form}.{length}.tflite")
            model.export(file, format="litert", input_signature=[inputs], optimizations=optimizations, verbose=False)
        data = (folder / f"KerasHub none.{length}.tflite").read_bytes()
        (folder / f"KerasHub {KERASHUB[2]}.{length}.tflite").write_bytes(weights.quantized(data, "dynamic"))


BUILDERS: dict[str, Callable[[str, Path], None]] = {
    "keras_ctxrep": build_ours,
    "ONNX Runtime": build_onnx,
    "KerasHub": build_kerashub,
}


# ------------------------------------------------------------------------- engines: functions of ids, mask and labels


def ours(folder: str, form: str) -> dict:
    from keras_ctxrep_tflite import runtime

    def forward():
        predictor = runtime.load(Path(folder) / f"keras_ctxrep {form}.tflite", THREADS)

        def run(ids, mask, labels):
            inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "mask": mask}
            return np.array(predictor.runner.run(inputs)["logits"])

        return run

    return {"forward": forward}


def onnx(folder: str, form: str) -> dict:
    import onnxruntime  # pyright: ignore[reportMissingImports]

    def forward():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        session = onnxruntime.InferenceSession(f"{folder}/ONNX Runtime {form}.onnx", options, ["CPUExecutionProvider"])
        return lambda ids, mask, labels: session.run(None, {"ids": ids.astype("int64"), "mask": mask.astype("int64")})[
            0
        ]

    return {"forward": forward}


def kerashub(folder: str, form: str) -> dict:
    from ai_edge_litert.compiled_model import CompiledModel
    from ai_edge_litert.options import CpuOptions, Options

    from keras_ctxrep_tflite.runtime import _Signature

    def forward():
        signatures = {}
        for length in LENGTHS:
            options = Options(cpu_options=CpuOptions(num_threads=THREADS))
            model = CompiledModel.from_file(f"{folder}/KerasHub {form}.{length}.tflite", options=options)
            signatures[length] = _Signature(model, *model.get_signature_list())

        def run(ids, mask, labels):
            inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": mask}
            return next(iter(signatures[ids.shape[1]](inputs).values()))

        return run

    return {"forward": forward}


def peak() -> dict:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    return {"product": bert.ours(bert.SIZE, "float32")["product"]}


ENGINES: dict[str, Callable[[str], dict]] = {
    **{f"keras_ctxrep {form}": lambda folder, form=form: ours(folder, form) for form in QUANTIZATIONS},
    **{f"ONNX Runtime {form}": lambda folder, form=form: onnx(folder, form) for form in ONNX},
    **{f"KerasHub {form}": lambda folder, form=form: kerashub(folder, form) for form in KERASHUB},
    "peak": lambda folder: peak(),
}


# ------------------------------------------------------------------------------------------------------ measurement


def start(python: str, size: str, folder: Path) -> dict[str, bert.Worker]:
    """The engines' files and processes; those that cannot be built or started are left out."""
    workers = {}
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": bert.PATHS}
    for builder in BUILDERS:
        interpreter = sys.executable if builder == "keras_ctxrep" else python
        command = [interpreter, "-W", "ignore", __file__, "--build", builder, size, str(folder)]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if process.returncode:
            print(f"{builder}: left out, {process.stderr.strip()[-600:]}; --help tells how to install it")
            continue
        print(process.stdout, end="", flush=True)
        for name in ENGINES:
            if name.startswith(builder):
                workers[name] = bert.Worker(interpreter, name, folder, str(folder), __file__)
    workers["peak"] = bert.Worker(sys.executable, "peak", folder, str(folder), __file__)
    for name, worker in workers.items():
        if worker.missing:
            print(f"{name}: left out, {worker.missing}")
    return {name: worker for name, worker in workers.items() if not worker.missing}


def measure(workers: dict[str, bert.Worker], folder: Path, rounds: int) -> tuple[dict, dict, float]:
    """Seconds of the rounds of (engine, length), logits of an engine, and the machine's peak, operations a second."""
    times, logits, kept = defaultdict(list), {}, folder / "logits.npz"
    for length, calls in LENGTHS.items():
        batch = folder / f"{length}.json"
        batch.write_text(json.dumps([bert.drawn(1, length)]))
        for number in range(rounds + 1):  # the first one warms up
            for name, worker in workers.items():
                if name == "peak":
                    times[name].append(worker("product", None)["seconds"])
                elif number:
                    times[name, length].append(worker("forward", batch, calls)["median"])
                else:
                    worker("forward", batch, 1, str(kept))
                    logits[name] = np.load(kept)["arr_0"].ravel()
    best = 2 * bert.SIDE**3 / min(times.pop("peak"))
    return times, logits, best


def table(times: dict, logits: dict, best: float, sizes: dict[str, int], size: str) -> Iterator[str]:
    """Rows of Markdown: engines, with the time that the arithmetic takes at the machine's peak."""
    seconds = {key: statistics.median(values) for key, values in times.items()}
    layers, width, _ = map(int, size.split("_")[1:])
    short, long = LENGTHS
    least = {length: bert.arithmetic(1, length, layers, width) / best for length in LENGTHS}
    yield f"| engine | MB | ms, {short} | ms, {long} | ratio | speed, {short} | speed, {long} | of peak | logits |"
    yield "|" + "---|" * 9
    milliseconds = " | ".join(f"{1000 * value:.1f}" for value in least.values())
    yield f"| at {best / 1e9:.0f} GFLOP/s | | {milliseconds} | {least[long] / least[short]:.1f} | | | 100% | |"
    for name in sizes:
        for length in LENGTHS:
            title = f".tflite, {size}, 1 text of {length} pieces, {THREADS} threads"
            figures.row(title, name, times[name, length], least[length] * best, best, file_mb=sizes[name] / 1e6)
        own = {length: seconds[name, length] for length in LENGTHS}
        cells = [name, f"{sizes[name] / 1e6:.1f}", *(f"{1000 * value:.1f}" for value in own.values())]
        cells.append(f"{own[long] / own[short]:.1f}")
        cells += [f"{seconds[FLOAT, length] / own[length]:.2f}" for length in LENGTHS]
        cells.append(f"{least[long] / own[long]:.0%}")
        error = np.linalg.norm(logits[name] - logits[FLOAT]) / np.linalg.norm(logits[FLOAT])
        cells.append("" if name.startswith("KerasHub") else f"{error:.1e}")
        yield "| " + " | ".join(cells) + " |"


def goals(times: dict, sizes: dict[str, int]) -> Iterator[str]:
    """What was reached of each goal."""
    seconds = {key: statistics.median(values) for key, values in times.items()}
    short, long = LENGTHS

    def best(*names: str) -> float:
        return min((seconds[name, long] for name in names if name in sizes), default=float("nan"))

    def line(text: str, value: float, least: float) -> str:
        result = "not measured" if np.isnan(value) else f"{value:.2f}, {'met' if value >= least else 'missed'}"
        return f"* {text}: {result} (goal: {least})"

    for form in ("dynamic", "int8"):
        own = seconds[f"keras_ctxrep {form}", long]
        onnx_int8 = best(*(f"ONNX Runtime {kind}" for kind in ONNX[1:]))
        yield line(f"{form}, speed over float32", seconds[FLOAT, long] / own, 4)
        yield line(f"{form}, float32's size over its size", sizes[FLOAT] / sizes[f"keras_ctxrep {form}"], 3.9)
        yield line(f"{form}, speed over ONNX Runtime's best int8", onnx_int8 / own, 1.15)
        yield line(f"{form}, speed over KerasHub's dynamic", best("KerasHub dynamic") / own, 1.05)
        yield line(f"{form}, speed at {short} over {long}", own / seconds[f"keras_ctxrep {form}", short], 3)
    yield line("float32, speed over ONNX Runtime's float32", best("ONNX Runtime none") / seconds[FLOAT, long], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="interpreter with the peers")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--size", default=bert.SIZE)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--build", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, folder = args.worker
        return bert.work(name, folder, ENGINES)
    if args.build:
        builder, size, folder = args.build
        return BUILDERS[builder](size, Path(folder))
    begin = time.perf_counter()
    print(f"{os.cpu_count()} cores: {' '.join(sorted(bert.flags()))}; {THREADS} threads", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        workers = start(args.peers, args.size, folder)
        times, logits, best = measure(workers, folder, args.rounds)
        for worker in workers.values():
            worker.end()
        # the model is the largest of an engine's files
        sizes = {name: max(path.stat().st_size for path in folder.glob(f"{name}.*")) for name in logits}
    print("\n".join(["", *table(times, logits, best, sizes, args.size), "", *goals(times, sizes)]))
    print(f"\n{(time.perf_counter() - begin) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
