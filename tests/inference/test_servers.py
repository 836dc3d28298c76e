"""SavedModels of every task behind a real HTTP server in a process of its own: KServe's, in the JSON of TF Serving."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from keras_ctxrep.inference import client, keras_engine
from keras_ctxrep.inference.client import Target
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep_export import saved_model

SERVER = Path(__file__).parents[2] / "benchmarks" / "kserve_server.py"
PAIRED = ("answer", "regress")
TASKS = ("classify", "multilabel", "regress", "tag", "answer", "semantic_roles", "coreference", "embed")
TEXTS = ["The rain fell. She left.", "中 she the cats", "a b c d e f g h " * 6]
PAIRS = ["the cats a ab. " * 8, "中", "the rain fell. she"]
MARKS = [[(0, 3), (4, 8), (16, 19)], [(2, 5), (6, 9), (0, 1)], [(0, 1), (2, 3), (4, 5)]]

pytestmark = [
    pytest.mark.slow,  # exports every task, and starts a process with TensorFlow
    pytest.mark.skipif(
        importlib.util.find_spec("kserve") is None, reason='KServe is missing: pip install ".[serving-test]"'
    ),
]


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory):
    """(address, task -> its Predictor on Keras, task -> its version folder) of a server with a model of each task."""
    base, predictors, versions = tmp_path_factory.mktemp("base"), {}, {}
    for task in TASKS:
        model, bundle = tiny_model(task, pair=task in PAIRED)
        predictors[task] = Predictor(bundle, keras_engine.runner(model))
        versions[task] = saved_model.export(model, bundle, base / task)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = base / "server.log"
    with log.open("w") as file:
        command = [sys.executable, str(SERVER), *(str(base / task) for task in TASKS), "--port", str(port)]
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    url = f"http://127.0.0.1:{port}"
    try:
        wait(url, process, log)
        yield url, predictors, versions
    finally:
        process.kill()
        process.wait()


def wait(url, process, log) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{url}/v1/models/embed", timeout=5) as response:
                if json.load(response)["ready"]:
                    return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


def rounded(answer: dict) -> dict:
    answer = {name: value for name, value in answer.items() if name != "n_best"}
    return json.loads(json.dumps(answer), parse_float=lambda number: pytest.approx(float(number), abs=2e-4))


@pytest.mark.parametrize("task", TASKS)
def test_same_answers_as_keras(task, server):
    url, predictors, versions = server
    bundle = bundles.load(versions[task])
    marks = [spans[: bundle.reads.marks] for spans in MARKS] if bundle.reads.marks else None
    query = (TEXTS, PAIRS if bundle.pairs else None, marks)
    answers = client.load(url, Target(task, timeout=120), bundle, batch_size=2)(*query)
    expected = predictors[task](*query)
    assert [rounded(answer) for answer in expected] == [
        {name: value for name, value in answer.items() if name != "n_best"} for answer in answers
    ]


@pytest.mark.parametrize("task", TASKS)
def test_a_thousand_requests_of_eight_clients(task, server, record_property):
    """Every answer is that of Keras; p50 and p95 in milliseconds are in the JUnit report, and printed with -s."""
    url, predictors, versions = server
    bundle = bundles.load(versions[task])
    texts = [f"{text} {number % 7}" for number, text in enumerate(TEXTS * 7)]
    pairs = (PAIRS * 7) if bundle.pairs else None
    marks = ([spans[: bundle.reads.marks] for spans in MARKS] * 7) if bundle.reads.marks else None
    expected = [rounded(answer) for answer in predictors[task](texts, pairs, marks)]
    asked = client.load(url, Target(task, timeout=120), bundle)

    def ask(number):
        own = (None if column is None else [column[number % 21]] for column in (texts, pairs, marks))
        begin = time.perf_counter()
        (answer,) = asked(*own)
        return answer, 1000 * (time.perf_counter() - begin)

    with ThreadPoolExecutor(8) as pool:
        answers, times = zip(*pool.map(ask, range(1000)), strict=True)
    for number, answer in enumerate(answers):
        assert {name: value for name, value in answer.items() if name != "n_best"} == expected[number % 21]
    p50, p95 = np.percentile(times, [50, 95])
    record_property("milliseconds", {"p50": p50, "p95": p95})
    print(f"\n{task}: 1,000 requests of 8 clients: p50 {p50:.0f} ms, p95 {p95:.0f} ms")


def test_errors(server):
    url, _, _ = server
    texts = dict(client.inputs_of(["rain"], ("text",)))
    with pytest.raises(ValueError, match=r"no model 'none' .* on this server: 404"):
        client.connect(url, Target("none")).run(texts)
    with pytest.raises(ValueError, match="signature 'fly': one of"):
        client.connect(url, Target("classify", "fly")).run(texts)
