"""One device, two replicas and two worker processes give the same numbers; what cannot work is refused."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import weakref
from multiprocessing.pool import ThreadPool
from pathlib import Path
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import optimizers, saving
from keras_ctxrep.models.model import Model
from keras_ctxrep.training import fit, strategy
from tests import tiny

pytestmark = pytest.mark.trains

SCRIPT = Path(__file__).with_name("replicas.py")
COUNTED = Path(__file__).parents[1] / "interrupted.py"
REPLICAS = runpy.run_path(str(SCRIPT))
# What workers reduce in ways of their own; of the others, one process with two devices shows it.
OF_WORKERS = ("language_model", "sampled_streams", "pretrainer", "crf", "similar", *REPLICAS["PLAIN"])
LIMIT = 600  # seconds that a process of a test may take, on a busy machine


def workers(command, count=2):
    """Processes of one command, each a worker of one cluster."""
    return [start(command, config) for config in strategy.local_cluster(count)]


def start(command, config=None):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    if config is not None:
        environment["TF_CONFIG"] = config
    return subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def ended(processes, status=0):
    """The outputs of processes, which must end with a status within the time limit; they are killed after it."""
    deadline = time.monotonic() + LIMIT
    try:
        outputs = [
            process.communicate(timeout=max(1, deadline - time.monotonic()))[0].decode() for process in processes
        ]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert status is None or process.returncode == status, output[-3000:]
    return outputs


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of replicas.py under each strategy, each in processes of its own."""
    folder = tmp_path_factory.mktemp("replicas")
    command = lambda name, *kinds: [str(SCRIPT), name, str(folder / f"{name}.npz"), *kinds]  # noqa: E731
    ended([start(command("one"))])
    ended([start(command("mirrored"))])
    ended(workers(command("multiworker", *OF_WORKERS)))
    return {name: tiny.arrays_of(folder / f"{name}.npz") for name in ("one", "mirrored", "multiworker")}


several = pytest.mark.parametrize("name", ["mirrored", "multiworker"])


@pytest.mark.slow  # four processes, up to sixteen trainings in each
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in (*REPLICAS["KINDS"], "plain", "plain_microbatches")
        for name in ("mirrored", "multiworker")
        if name == "mirrored" or kind in OF_WORKERS
    ],
)
def test_the_same_numbers_on_one_device_and_on_several(kind, name, results):
    """Losses, weights and the norm of Adam's average of the gradients after 20 steps."""
    one, two = results["one"], results[name]
    assert (one["replicas"], two["replicas"]) == (1, 2)
    keys = [key for key in one if key.startswith(f"{kind}/")]
    assert len(keys) >= 3
    for key in keys:
        np.testing.assert_allclose(two[key], one[key], atol=1e-5, err_msg=key)
    assert one[f"{kind}/loss"].min() < one[f"{kind}/loss"][0] - 0.01


@pytest.mark.slow
@several
def test_float16_on_several_devices(name, results):
    for key in ("plain_float16/loss", "plain_float16/weights"):
        np.testing.assert_allclose(results[name][key], results["one"][key], atol=2e-3)  # 11 bits are 5e-4


@pytest.mark.slow
@several
def test_an_overflow_on_one_replica_skips_the_step_on_all(name, results):
    """Keras decides by the first replica, and workers that decide differently wait for ever."""
    assert results["one"]["overflow/changed"] == results[name]["overflow/changed"] == 0
    assert results["one"]["overflow/scale"] == results[name]["overflow/scale"] == 2.0**14


@pytest.mark.slow
@several
def test_dropout_differs_between_replicas(name, results):
    one, two = results["one"]["masks/masks"], results[name]["masks/masks"]
    assert two.shape == (2, 64) and 10 < (two[0] != two[1]).sum() < 54
    np.testing.assert_array_equal(two[0], one[0])


@pytest.mark.parametrize("kind", ["language_model", "pretrainer", "crf", "answerer", "classifier", "lamb"])
def test_microbatches_are_one_large_batch(kind):
    whole, parts = (REPLICAS["run"](kind, "one", count) for count in (1, 3))
    for key, value in whole.items():
        np.testing.assert_allclose(parts[key], value, atol=1e-5, err_msg=key)


def test_sparse_gradients_of_microbatches_stay_sparse(rng):
    """Rows of a table that no part of the batch used are neither decayed nor copied."""
    ids = keras.Input((None,), dtype="int32")
    model = Model(ids, keras.layers.Dense(1)(keras.ops.mean(keras.layers.Embedding(9, 2)(ids), axis=1)))
    model.compile(optimizers.AdamW(0.1, weight_decay=0.5), "mse")
    model.microbatches = 2
    before = model.get_weights()[0]
    model.fit(np.array([[1, 2], [3, 3], [1, 4], [2, 2]]), np.ones((4, 1)), batch_size=4, verbose=0)
    changed = (model.get_weights()[0] != before).any(axis=1)
    assert changed.tolist() == [False, True, True, True, True, False, False, False, False]


# --------------------------------------------------------------------------------------------- workers of a command

PRETRAIN = "--steps 60 --unroll 4 --samples 20 --min-count 1 --batch-size 4 --checkpoint-minutes 0 --evaluations 3"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("corpus") / "corpus.txt", np.random.default_rng(0)
    path.write_text("\n".join(" ".join(map("".join, rng.choice(list("abcdefgh"), (8, 2)))) + "\n" for _ in range(200)))
    return path


def pretraining(corpus, out):
    size = "elmo_2x128_64_256cnn_1xhighway"
    command = f"-m keras_ctxrep.cli pretrain elmo --size {size} {PRETRAIN}"
    return [*command.split(), "--corpus", str(corpus), "--out", str(out)]


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    """The weights of a run of two workers, with dropout."""
    out = tmp_path_factory.mktemp("undisturbed")
    ended(workers(pretraining(corpus, out)))
    return saving.load(out)[0].get_weights()


@pytest.mark.slow  # ten processes
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.release), 1])
def test_a_worker_that_is_killed_comes_back(victim, corpus, undisturbed, tmp_path):
    """The other one ends by itself; started again, both go on to the weights of an undisturbed run."""
    command = pretraining(corpus, tmp_path / "two")
    processes = workers(command)
    state = tmp_path / "two" / "checkpoint" / "state.json"
    deadline = time.monotonic() + LIMIT
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    processes[victim].send_signal(signal.SIGKILL)
    outputs = ended(processes, None)
    assert processes[1 - victim].returncode != 0
    if victim == 1:  # without the first worker, TensorFlow itself ends the process
        assert "another worker has ended" in outputs[0] and "Traceback" not in outputs[0]
    assert (step := json.loads(state.read_text())["step"]) < 60
    counts = [tmp_path / name for name in ("first", "second")]
    counted = [[str(COUNTED), str(log), *command[2:]] for log in counts]
    first, second = ended([*map(start, counted, strategy.local_cluster(2))])
    assert [log.with_suffix(".batches").stat().st_size for log in counts] == [60 - step] * 2
    assert first.count("perplexity") >= 3 and not second.count("perplexity")
    found, _ = saving.load(tmp_path / "two")
    for weight, value in zip(found.get_weights(), undisturbed, strict=True):
        np.testing.assert_allclose(weight, value, atol=1e-5)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # nobody closed the pool
def test_the_threads_of_a_failed_reduction_are_released(monkeypatch):
    """Left to the end of Python, TensorFlow's pool writes a traceback after the error's message."""
    pools = []

    def failing(*_):
        pool = ThreadPool(1)
        pools.append(weakref.ref(pool))
        pool.map(int, ["1"])
        raise tf.errors.UnavailableError(None, None, "gone")

    monkeypatch.setattr(fit, "_train", failing)
    monkeypatch.setattr(fit, "several_workers", lambda strategy: True)
    with pytest.raises(ConnectionError, match="another worker has ended") as info:
        fit._run(keras.Sequential(), None, Mock(), None, [])
    assert isinstance(info.value.__cause__, tf.errors.UnavailableError)
    deadline = time.monotonic() + 10
    while pools[0]() is not None and time.monotonic() < deadline:  # its own thread drops it last
        time.sleep(0.01)
    assert pools[0]() is None


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("all", "", "strategy='all': choose auto, one, mirrored or multiworker"),
        ("multiworker", "", "TF_CONFIG names no other machine"),
        ("auto", "{", r"TF_CONFIG='\{': must be like \{"),
        ("auto", '{"cluster": 1}', "must be like"),
        ("auto", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "must be like"),
        (
            "multiworker",
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}',
            "chosen too late; enter scope",
        ),
    ],
)
def test_a_strategy_that_cannot_be(name, config, message, monkeypatch):
    keras.layers.Dropout(0.5)  # so that TensorFlow has begun
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match=message):
        strategy.choose(name)


def test_the_strategy_of_the_scope():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope() as _, strategy.scope() as chosen:
        assert isinstance(chosen, tf.distribute.OneDeviceStrategy)


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        (lambda: keras.optimizers.SGD(clipnorm=1.0), {}, "clipnorm=1.0: not on 2 replicas; use keras_ctxrep"),
        (lambda: keras.optimizers.SGD(global_clipnorm=1.0), {}, r"use keras_ctxrep.optimizers.AdamW\(clip=...\)"),
        (lambda: keras.optimizers.SGD(clipvalue=1.0), {}, "clipvalue=1.0: not"),
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), {}, "larger batches, and set model.microbatches"),
        (lambda: keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=2), {}, "keras.callbacks.SwapEMAWeights"),
        (keras.optimizers.SGD, {"steps_per_execution": 2}, "steps_per_execution=2: must be 1 on 2 replicas"),
        (keras.optimizers.SGD, {"jit_compile": True}, "jit_compile=True: XLA cannot"),
    ],
)
def test_what_is_wrong_on_several_replicas(optimizer, options, message, rng):
    with strategy.choose("mirrored").scope():
        x = keras.Input((2,))
        model = Model(x, keras.layers.Dense(1)(x))
        model.compile(optimizer(), "mse", **options)
    with pytest.raises(ValueError, match=message):
        model.fit(rng.normal(size=(4, 2)), rng.normal(size=(4, 1)), verbose=0)


def test_microbatches_that_cannot_be(rng):
    build, data, _ = REPLICAS["KINDS"]["streams"]()
    with pytest.raises(
        ValueError, match="microbatches=2: a model that carries its state on is trained on whole batches"
    ):
        fit.fit(build(), data, steps=1, microbatches=2)
    x = keras.Input((2,))
    with pytest.raises(ValueError, match=r"microbatches=2: build the model as keras_ctxrep.models.model.Model\("):
        fit.fit(keras.Model(x, {"logits": keras.layers.Dense(1)(x)}), data, steps=1, microbatches=2)
