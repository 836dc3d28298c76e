"""Training under JAX and PyTorch: the numbers of TensorFlow; the same commands, where TensorFlow cannot be imported."""

import importlib.util
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_ctxrep import backend, saving
from keras_ctxrep.text import lengths
from keras_ctxrep.training import fit
from tests import tiny

ROOT = Path(__file__).parents[2]
REPLICAS = Path(__file__).with_name("replicas.py")
STEPS = "50"
SAME = ("language_model", "streams", "pretrainer", "tagger", "crf", "answerer", "similar", "translator", "classifier")
SHARED = ("streams", "sampled_streams", "pretrainer", "crf", "similar")  # on two devices too
WITHOUT_TENSORFLOW = """
import sys, importlib.abc

class NotThere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "tensorflow_text", "tensorboard"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotThere())
"""
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name} here"))
    for name in ("jax", "torch")
]
needs_jax = BACKENDS[0].marks


def under(name, script, *arguments, devices=1, **environment):
    """What a script prints, in a process with a backend on the CPU and, under JAX, without TensorFlow."""
    flags = f"--xla_backend_optimization_level=0 --xla_force_host_platform_device_count={devices}"
    given = {"KERAS_BACKEND": name, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)}
    hidden = WITHOUT_TENSORFLOW if name == "jax" else "import sys\n"  # PyTorch looks for it
    done = subprocess.run(
        [sys.executable, "-c", hidden + script, *map(str, arguments)],
        env=os.environ | given | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


RUN_REPLICAS = f"import runpy; runpy.run_path({str(REPLICAS)!r}, run_name='__main__')"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function from a backend and a strategy to what replicas.py gives, each from the same weights."""
    folder = tmp_path_factory.mktemp("backends")

    @cache
    def result(name, strategy="one"):
        path, kinds = folder / f"{name}-{strategy}.npz", SAME if name == "torch" else (*SAME, "sampled_streams")
        if name == "tensorflow":
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "STEPS": STEPS}
            subprocess.run([sys.executable, REPLICAS, strategy, path, *kinds], env=environment, check=True)
        else:
            start, several = result("tensorflow"), strategy == "mirrored"
            kinds = SHARED if several else kinds
            environment = {"START_WEIGHTS": str(start), "STEPS": STEPS}
            under(name, RUN_REPLICAS, strategy, path, *kinds, devices=1 + several, **environment)
        return path

    return lambda *of: tiny.arrays_of(result(*of))


@pytest.mark.slow  # processes with some trainings in each
@pytest.mark.parametrize("kind", SAME)
@pytest.mark.parametrize("name", BACKENDS)
def test_the_loss_falls_as_under_tensorflow(name, kind, trained):
    """In each of 50 steps in float32."""
    ours, theirs = (trained(of)[f"{kind}/loss"] for of in (name, "tensorflow"))
    assert len(ours) == len(theirs) >= 49
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.release
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=needs_jax) for kind in SHARED])
def test_two_devices_train_as_one(kind, trained):
    one, two = trained("jax"), trained("jax", "mirrored")
    assert (one["replicas"], two["replicas"]) == (1, 2)
    for what in ("loss", "weights"):
        np.testing.assert_allclose(two[f"{kind}/{what}"], one[f"{kind}/{what}"], atol=2e-5)


COMMANDS = """
import contextlib, io
import numpy as np
from keras_ctxrep.cli.main import main

def ctxrep(line):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(line.split())
    assert status == 0, (line, out.getvalue())
    return out.getvalue()

text = "--corpus text.txt --valid held.txt --max-length 16 --batch-size 8 --steps 6 --evaluations 2"
ctxrep(f"pretrain elmo {text} --size elmo_2x128_64_256cnn_1xhighway --vocab-size 40 --out elmo")
ctxrep(f"pretrain bert {text} --size bert_2_64_2 --vocab-size 60 --out bert")
learn = "words texts masked_words next_sentence"
ctxrep(f"distill bert {text} --size bert_2_64_2 --learn {learn} --out student")
files = "--data train.tsv --dev train.tsv --epochs 1 --batch-size 8"
ctxrep(f"train {files} --encoder elmo --out frozen")
ctxrep(f"train {files} --encoder student --out tuned")
print(ctxrep("score tuned --data train.tsv"))
print(ctxrep("score elmo --data held.txt"))
assert ctxrep("predict tuned --input held.txt").count("label") > 10
ctxrep("embed student --input held.txt --out vectors.npz")
assert "%" in ctxrep("fill bert the[MASK]")
import keras
from keras_ctxrep import saving
model, bundle = saving.load("tuned")
inputs = bundle.features(["the good day", "a bad one"])
weights = {str(number): weight for number, weight in enumerate(model.get_weights())}
np.savez("tuned.npz", logits=model.predict_on_batch(inputs)["logits"], **weights)
if keras.backend.backend() == "jax":
    assert "tensorflow" not in sys.modules
"""


@pytest.mark.slow  # a process that pretrains, distils, fine-tunes and scores
@pytest.mark.parametrize("name", BACKENDS)
def test_the_commands_run(name, tmp_path):
    """What they write is read, and exported, under TensorFlow, with the same weights."""
    words = np.random.default_rng(0).choice(["the", "good", "bad", "day", "a", "one"], (120, 6))
    lines = [" ".join(row) for row in words]
    documents = ["\n".join(lines[begin : begin + 5]) for begin in range(0, 120, 5)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents[:20]), encoding="utf-8")
    (tmp_path / "held.txt").write_text("\n\n".join(documents[20:]), encoding="utf-8")
    rows = [f"{line}\t{'yes' if 'good' in line else 'no'}" for line in lines[:40]]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
    printed = under(name, "import os; os.chdir(sys.argv[1])" + COMMANDS, tmp_path)
    assert "accuracy" in printed and "perplexity" in printed
    model, bundle = saving.load(tmp_path / "tuned")
    found = tiny.arrays_of(tmp_path / "tuned.npz")
    for number, weight in enumerate(model.get_weights()):
        np.testing.assert_array_equal(weight, found[str(number)])
    logits = model.predict_on_batch(bundle.features(["the good day", "a bad one"]))["logits"]
    np.testing.assert_allclose(logits, found["logits"], atol=1e-5)


RESUMED = """
import numpy as np
import keras
from keras_ctxrep import saving
from keras_ctxrep.recipes import pretrain

class Stop(keras.callbacks.Callback):
    count = 0
    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count == 5:
            raise KeyboardInterrupt

def run(out, *callbacks):
    options = {"steps": 12, "evaluations": 3, "batch_size": 4, "dropout": 0.2, "max_length": 16, "vocab_size": 60}
    pretrain("bert", ["text.txt"], out, callbacks=callbacks, size="bert_2_64_2", valid="held.txt", **options)

run("whole")
try:
    run("parts", Stop())
except KeyboardInterrupt:
    print("stopped")
run("parts")
whole, parts = (saving.load(folder).model.get_weights() for folder in ("whole", "parts"))
for one, other in zip(whole, parts, strict=True):
    np.testing.assert_array_equal(one, other)
shared = {"size": "bert_2_64_2", "valid": "held.txt", "steps": 2, "vocab_size": 60}
for options, message in (({"microbatches": 2}, "microbatches=2"), ({"tensorboard": "logs"}, "tensorboard='logs'")):
    try:
        pretrain("bert", ["text.txt"], "refused", **shared, **options)
    except ValueError as error:
        assert message in str(error) and f"backend {keras.backend.backend()}" in str(error), error
    else:
        raise AssertionError(options)
"""


@pytest.mark.release
@pytest.mark.parametrize("name", BACKENDS)
def test_an_interrupted_run_resumes_exactly(name, tmp_path):
    """With dropout, and with evaluations between the steps; and what cannot be is refused by name."""
    (tmp_path / "text.txt").write_text("a good day\nthe bad one\n\n" * 40, encoding="utf-8")
    (tmp_path / "held.txt").write_text("a bad day\nthe good one\n\n" * 5, encoding="utf-8")
    assert "stopped" in under(name, "import os; os.chdir(sys.argv[1])" + RESUMED, tmp_path)


# ------------------------------------------------------------------------------------------------- in this process


@pytest.fixture
def counted():
    """Endless batches of their numbers."""
    made = []

    def arrays(first):
        for number in range(first, 1_000_000):
            made.append(number)
            yield (np.full(2, number),)

    return backend.Batches(arrays, None), made


def test_batches_are_made_ahead_and_begin_where_they_are_asked_for(counted):
    data, made = counted
    assert [int(x[0]) for (x,) in data.skip(3).take(2)] == [3, 4]
    assert data.num_batches is None and data.take(2).num_batches == 2
    assert [int(data[index][0][0]) for index in (0, 1, 2, 0, 1, 7)] == [0, 1, 2, 0, 1, 7]
    ended = time.monotonic() + 10
    while max(made) <= 7 and time.monotonic() < ended:
        time.sleep(0.01)
    assert max(made) > 7


def test_an_error_of_a_batch_is_raised_where_it_is_asked_for():
    def arrays(first):
        yield (np.zeros(1),)
        raise ValueError("text.txt:3: no text")

    data = iter(backend.Batches(arrays, None))
    next(data)
    with pytest.raises(ValueError, match=r"text\.txt:3: no text"):
        next(data)


def test_lengths_are_few_where_each_is_compiled(monkeypatch):
    monkeypatch.setattr(lengths, "rounded", True)
    assert [lengths.longest([size]) for size in (1, 8, 9, 12, 13, 17, 25, 33, 49, 65, 100)] == [
        *(8, 8, 12, 12, 16, 24, 32, 48, 64, 96, 128)
    ]
    assert lengths.longest([100], 100) == 100 and lengths.longest([], 50) == 8
    assert len({lengths.longest([size]) for size in range(1, 513)}) == 13


def test_the_strategies_of_another_backend(monkeypatch):
    monkeypatch.setattr(backend, "NAME", "torch")
    assert backend.devices("auto").num_replicas_in_sync == backend.present_devices().num_replicas_in_sync == 1
    with pytest.raises(
        ValueError, match="strategy='multiworker': choose auto, one or mirrored under the backend torch"
    ):
        backend.devices("multiworker")
    with pytest.raises(ValueError, match="one device here"):
        backend.devices("mirrored")
    assert keras.distribution.distribution() is None


def test_under_jax_a_model_of_the_package_is_needed(monkeypatch):
    monkeypatch.setattr(fit, "NAME", "jax")
    x = keras.Input((2,))
    model = keras.Model(x, {"logits": keras.layers.Dense(2)(x)})
    with pytest.raises(ValueError, match=r"keras_ctxrep\.models\.model\.Model"):
        fit.fit(model, lambda start: None, steps=1)
