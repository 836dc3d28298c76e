"""How fast a SavedModel answers raw strings, against our Keras runner and KerasHub's exported encoder.

    python benchmarks/serving.py                              a BERT of 4 layers; SIZE: any of models.bert.SIZES
    python benchmarks/serving.py --size bert_12_768_12 --rounds 20
    python benchmarks/serving.py --texts 1,2,4,8,16,32 --words 30     which batches pay off
    python benchmarks/serving.py --soak 10 --clients 8        one KServe process under full load, its memory sampled

The engines are a classifier over an encoder with random weights, and go in turn in every round, so that the machine's
moods hit all alike; medians are printed, and their ratios to the first. Texts are of 6 to 90 words, and 32 of them
one batch; the batch of one text has 16 words.

    Keras            `Predictor` over our Keras runner, text preparation by `tokenizers`
    Keras, exported  the same graph without the kernels that are kept out of exports, see layers/transformer.py
    SavedModel       the raw-string signature
    ids              its `ids` signature alone: the raw-string signature without its text preparation and answers
    bfloat16         the raw-string signature of an export in bfloat16 (--precision bfloat16)
    KerasHub         the ids signature of KerasHub's encoder of the same size, if keras_hub is installed

The share of the text preparation is that of its operators run alone. First requests are those of a process that has
just loaded the SavedModel, with its warm-up requests replayed, as TF Serving does, or without.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import figures
import numpy as np

from keras_ctxrep.inference import client

ROOT = Path(__file__).parents[1]
PIECES = 8000  # of the vocabulary, learned from the passage and Python's language reference
Engine = Callable[[list[str]], object]


def model_of(size: str):
    """A classifier with random weights, and its bundle."""
    from dataclasses import asdict, replace
    from pydoc_data.topics import topics

    import keras

    from keras_ctxrep import saving
    from keras_ctxrep.models import bert
    from keras_ctxrep.text.bundle import Bundle
    from keras_ctxrep.text.tokens import WordPiece

    keras.utils.set_random_seed(0)
    vocab = WordPiece.train("\n".join(topics.values()).split("\n"), PIECES).vocab
    config = replace(bert.SIZES[size], vocabulary_size=len(vocab))
    bundle = Bundle("bert", "classify", asdict(config), 128, ("no", "yes"), tuple(vocab))
    return saving.build(bundle), bundle


def in_bfloat16(model, bundle):
    """The same model computing in bfloat16, with float32 logits."""
    import keras

    from keras_ctxrep import saving
    from keras_ctxrep.models.model import copy_weights

    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        half = saving.build(bundle)
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    copy_weights(model, half)
    return half


def texts_of(count: int, length: int | None = None) -> list[str]:
    """Texts like those of the warm-up requests, or all of one length, in words."""
    from keras_ctxrep_export import kit

    words, lengths = kit.PASSAGE.split(" "), kit.LENGTHS if length is None else (length,)
    return [" ".join(words[: lengths[number % len(lengths)]]) for number in range(count)]


# ---------------------------------------------------------------------------------------------------------- engines


def engines(size: str, base: Path, precision: str) -> dict[str, Engine]:
    """Name -> function of texts."""
    import tensorflow as tf

    from keras_ctxrep.inference import keras_engine
    from keras_ctxrep.inference.predictor import Predictor
    from keras_ctxrep.models import heads
    from keras_ctxrep_export import saved_model, text_ops

    model, bundle = model_of(size)
    version = saved_model.export(model, bundle, base / "float32")
    loaded = tf.saved_model.load(str(version))
    features = text_ops.features(bundle)
    spec = [{name: tf.TensorSpec(tensor.shape, tf.int32) for name, tensor in model.input.items()}]
    graph = tf.function(lambda inputs: heads.flat(model(inputs, training=False)), input_signature=spec)
    prepare = tf.function(lambda text: features(text=text), input_signature=[tf.TensorSpec([None], tf.string)])

    def tensors(texts):
        return {name: tf.constant(array) for name, array in bundle.features(texts).items()}

    def plain(batch):
        return {name: value.numpy() for name, value in graph({key: tf.constant(batch[key]) for key in spec[0]}).items()}

    made: dict[str, Engine] = {
        "Keras": Predictor(bundle, keras_engine.runner(model)),
        "Keras, exported": Predictor(bundle, plain),
        "SavedModel": lambda texts: loaded.signatures["serving_default"](text=tf.constant(texts)),
        "ids": lambda texts: loaded.signatures["ids"](**tensors(texts)),
        "text preparation": lambda texts: prepare(tf.constant(texts)),
    }
    if precision == "bfloat16":
        half = tf.saved_model.load(str(saved_model.export(in_bfloat16(model, bundle), bundle, base / "bfloat16")))
        made["bfloat16"] = lambda texts: half.signatures["serving_default"](text=tf.constant(texts))
    if (run := kerashub(size, base)) is not None:
        made["KerasHub"] = lambda texts: run(tensors(texts))
    return made


def kerashub(size: str, base: Path) -> Callable | None:
    """KerasHub's encoder as a SavedModel, from the same token ids."""
    try:
        import keras_hub  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    import tensorflow as tf

    layers, width, heads = map(int, size.split("_")[1:])
    backbone = keras_hub.models.BertBackbone(PIECES, layers, heads, width, 4 * width)
    backbone.export(str(base / "kerashub"), verbose=False)
    loaded = tf.saved_model.load(str(base / "kerashub"))

    def run(inputs):
        ids = {"token_ids": inputs["token_ids"], "segment_ids": inputs["segment_ids"], "padding_mask": inputs["mask"]}
        return loaded.serve(ids)

    return run


def measure(made: dict[str, Engine], sizes: list[int], rounds: int, title: str, length: int | None = None) -> None:
    print(f"{'texts':>6} {'engine':18} {'median':>9} {'texts/s':>8} {'ratio':>6}")
    for size in sizes:
        texts, seconds = texts_of(size, length), {name: [] for name in made}
        for _ in range(2):
            for engine in made.values():
                engine(texts)
        for _ in range(rounds):
            for name, engine in made.items():
                begin = time.perf_counter()
                engine(texts)
                seconds[name].append(time.perf_counter() - begin)
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        first = next(iter(medians.values()))
        for name, median in medians.items():
            figures.row(f"SavedModel, {title}, batch {size}", name, seconds[name], texts=size)
            print(f"{size:6} {name:18} {1000 * median:6.2f} ms {size / median:8.0f} {median / first:6.2f}")
        print(f"{'':6} the text preparation is {medians['text preparation'] / medians['SavedModel']:.1%} of SavedModel")


# ---------------------------------------------------------------------------------------------------- first requests

FIRST = """
import json, sys, time
import tensorflow as tf, tensorflow_text
from keras_ctxrep.inference import messages
version, warm = sys.argv[1], sys.argv[2] == "warm"
signatures = (loaded := tf.saved_model.load(version)).signatures
if warm:
    for record in tf.data.TFRecordDataset([f"{version}/assets.extra/tf_serving_warmup_requests"]):
        request = messages.PredictionLog.FromString(record.numpy()).predict_log.request
        arrays = {name: messages.array_of(tensor) for name, tensor in request.inputs.items()}
        signatures[request.model_spec.signature_name](**{name: tf.constant(array) for name, array in arrays.items()})
seconds = []
for _ in range(21):
    begin = time.perf_counter()
    signatures["serving_default"](text=tf.constant(json.loads(sys.argv[3])))
    seconds.append(time.perf_counter() - begin)
print(json.dumps(seconds))
"""


def first_requests(version: Path) -> None:
    for mode in ("cold", "warm"):
        command = [sys.executable, "-c", FIRST, str(version), mode, json.dumps(texts_of(1))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=_environment())
        first, *others = json.loads(done.stdout)
        median = statistics.median(others)
        print(f"first request, {mode}: {1000 * first:.2f} ms, {first / median:.1f} times the median of the next 20")


def _environment() -> dict[str, str]:
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "export", ROOT / "tflite")))
    return os.environ | {"PYTHONPATH": paths}


# ------------------------------------------------------------------------------------------------- a server under load


def load_server(size: str, base: Path, args: argparse.Namespace) -> None:
    """Requests of one text each from several clients, for some minutes or up to a number of them."""
    import psutil

    from keras_ctxrep_export import saved_model

    saved_model.export(*model_of(size), base / "model")
    command = [sys.executable, str(ROOT / "benchmarks" / "kserve_server.py"), str(base / "model"), "--port", "18501"]
    with open(base / "server.log", "w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            url = "http://127.0.0.1:18501"
            _wait(f"{url}/v1/models/model", process, base / "server.log")
            seconds, samples = _drive(url, args, lambda: psutil.Process(process.pid).memory_info().rss / 1e6)
        finally:
            process.kill()
    times = np.sort([spent for spent, _ in seconds])
    p50, p95 = (1000 * times[int(share * len(times))] for share in (0.5, 0.95))
    elapsed = max(at for _, at in seconds)
    print(
        f"{len(times):,} requests of {args.clients} clients: {len(times) / elapsed:.0f}/s, "
        f"p50 {p50:.1f} ms, p95 {p95:.1f} ms"
    )
    settled = [(at, size) for at, size in samples if at >= min(60.0, samples[-1][0] / 2)]
    (_, begin), (_, end) = settled[0], settled[-1]
    print(f"memory after {settled[0][0]:.0f} s {begin:.1f} MB, after {settled[-1][0]:.0f} s {end:.1f} MB", end="")
    print(f": {end / begin - 1:+.2%}")


def _drive(url: str, args: argparse.Namespace, memory: Callable[[], float]):
    """((seconds of a request, when it ended), ...) and ((when, memory), ...) of a loaded server."""
    asked = client.connect(url, client.Target("model", timeout=300))
    texts, seconds, samples, errors = texts_of(64), [], [], []
    numbers, begin = itertools.count(), time.perf_counter()
    deadline = begin + 60 * args.soak if args.soak else float("inf")

    def ask():
        try:
            while (number := next(numbers)) < (args.requests if not args.soak else float("inf")):
                if (started := time.perf_counter()) > deadline:
                    return
                asked.run({"text": np.array([texts[number % len(texts)]], object)})
                ended = time.perf_counter()
                seconds.append((ended - started, ended - begin))
        except Exception as error:  # of a thread: raised below
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(args.clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        samples.append((time.perf_counter() - begin, memory()))
        time.sleep(1.0)
    samples.append((time.perf_counter() - begin, memory()))
    if errors:
        raise errors[0]
    return seconds, samples


def _wait(url: str, process: subprocess.Popen, log: Path) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(log.read_text()[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="bert_4_256_4")
    parser.add_argument("--texts", help="batch sizes (default: 1,32)", default="1,32")
    parser.add_argument("--words", help="all texts of this length, to compare batch sizes", type=int)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--requests", help="to a KServe process, instead of the engines", type=int)
    parser.add_argument("--soak", help="minutes of requests to a KServe process, instead of the engines", type=float)
    parser.add_argument("--clients", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        if args.soak or args.requests:
            load_server(args.size, base, args)
            return
        sizes = [int(size) for size in args.texts.split(",")]
        measure(engines(args.size, base, args.precision), sizes, args.rounds, args.size, args.words)
        first_requests(base / "float32" / "1")


if __name__ == "__main__":
    main()
