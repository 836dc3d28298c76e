"""Settings that must be made before TensorFlow is imported, and the fixtures that every room shares."""

import gc
import os
import random
import runpy
import shutil
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"
# A worker of pytest-xdist has one core, and so have its subprocesses; 0 is TensorFlow's own choice.
os.environ["TF_NUM_INTRAOP_THREADS"] = "1" if "PYTEST_XDIST_WORKER" in os.environ else "0"
os.environ["TF_NUM_INTEROP_THREADS"] = os.environ["TF_NUM_INTRAOP_THREADS"]

if "PYTEST_XDIST_WORKER" in os.environ and sys.platform == "linux":
    import resource

    # A test that never stops allocating fails with a MemoryError; else the kernel ends whatever process it chooses.
    resource.setrlimit(resource.RLIMIT_DATA, (16 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))

import keras
import numpy as np
import pytest
import tensorflow as tf
from filelock import FileLock

from tests.hooks import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_itemcollected,
    pytest_make_collect_report,
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_terminal_summary,
)

# Two logical devices, for MirroredStrategy(["CPU:0", "CPU:1"]).
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def pytest_collection_finish() -> None:
    """What the imports have made stays: the garbage collector, called after every training, need not look at it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 20)  # not at each of the few thousand objects of a traced function


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_session(tmp_path_factory) -> None:
    """Downloads and learned vocabularies of the tests are not kept in the home folder."""
    os.environ["CTXREP_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def rng() -> np.random.Generator:
    """A random generator with a fixed seed; Keras' initializers are seeded too."""
    keras.utils.set_random_seed(0)
    return np.random.default_rng(0)


@contextmanager
def converter_in_process():
    """`quantize.convert` runs the converter here, not in a process that first imports TensorFlow for five seconds."""
    from keras_ctxrep_tflite import quantize

    python, start = sys.executable, subprocess.run

    def run(command, **options):
        if [*command[:3]] != [python, "-m", quantize.__name__]:
            return start(command, **options)
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            patch.setattr(sys, "argv", [*command[2:]])
            warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)  # of runpy
            try:
                runpy.run_module(quantize.__name__, run_name="__main__")
            except Exception:
                return subprocess.CompletedProcess(command, 1, "", traceback.format_exc())
        return subprocess.CompletedProcess(command, 0, "", "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize.subprocess, "run", run)
        yield


@pytest.fixture(scope="module")
def tflite_in_process():
    """The converter runs in this process."""
    with converter_in_process():
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], object]], Path]:
    """A function from a name to a folder, which `make(folder)` fills; one folder for all workers of pytest-xdist.

    The folder is shared: a test that changes it works on a copy.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder of its own in that of the session
        root = root.parent

    def folder_of(name: str, make: Callable[[Path], object]) -> Path:
        folder = root / name
        with FileLock(root / f"{name}.lock"):
            if not folder.exists():
                unfinished = root / f"{name}.unfinished"  # of a worker that failed
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(folder)
        return folder

    return folder_of


@pytest.fixture(scope="session")
def models(made_once) -> Path:
    """ELMO/ and BERT/ pretrained/ and classifier/ folders, trained for seconds on sentences told apart by their words.

    With the labelled test sentences in test.tsv and the plain ones in corpus.txt.
    """
    return made_once("models", train_models)


def train_models(root: Path) -> None:
    from keras_ctxrep import recipes
    from keras_ctxrep.models import bert, elmo
    from keras_ctxrep.tasks.classify import Example

    topics = {
        "weather": ["rain", "storm", "wind", "cloud", "snow", "thunder", "frost", "fog", "sunny", "drizzle"],
        "kitchen": ["bread", "butter", "oven", "spoon", "soup", "pepper", "onion", "plate", "knife", "café"],
        "music": ["violin", "piano", "chord", "rhythm", "drum", "song", "choir", "flute", "melody", "tune"],
    }
    draw = random.Random(0)
    examples = []
    for _ in range(600):
        label = draw.choice(sorted(topics))
        nouns = draw.choices(topics[label], k=draw.randint(1, 6))
        words = [draw.choice(["the ", "the ", ""]) + noun for noun in nouns]
        end = draw.choice([" is good.", " was bad!", " — number 7?", ""])
        examples.append(Example(" ".join(words) + end, label))
    (root / "corpus.txt").write_text("\n".join(example.text for example in examples), encoding="utf-8")
    rows = "".join(f"{example.text}\t{example.label}\n" for example in examples[400:])
    (root / "test.tsv").write_text("text\tlabel\n" + rows, encoding="utf-8")
    sizes = {
        "elmo": replace(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"], cells=32, projection=16, max_characters=12),
        "bert": replace(bert.SIZES["bert_2_64_2"], width=32, initializer_range=0.1),
    }
    for family, rate, steps in (("elmo", 0.02, 80), ("bert", 0.005, 200)):
        table = {"elmo": elmo, "bert": bert}[family].SIZES
        table["test"] = sizes[family]
        try:
            recipes.pretrain(
                family,
                [root / "corpus.txt"],
                root / family / "pretrained",
                size="test",
                max_length=32,
                vocab_size=200,
                steps=60,
                learning_rate=rate,
            )
        finally:
            del table["test"]
        recipes.finetune(
            examples[:360],
            examples[360:400],
            root / family / "pretrained",
            root / family / "classifier",
            steps=steps,
            learning_rate=rate / 2,
            dropout=0.1,
            freeze=False,
        )


@pytest.fixture(scope="session")
def golden_strings(made_once) -> Path:
    """The folder of `golden.write`: what other languages' runtimes must give."""
    from tests import golden

    return made_once("golden", golden.write)


@pytest.fixture(scope="session")
def golden_subwords(made_once) -> Path:
    """The folder of `golden_text.write`: what subword tokenizers and models over them must give elsewhere."""
    from tests import golden_text

    return made_once("golden_subwords", golden_text.write)


@pytest.fixture(scope="session")
def golden_generation(made_once) -> Path:
    """The folder of `golden_generation.write`: what sampling, language models and filling must give elsewhere."""
    from tests import golden_generation

    return made_once("golden_generation", golden_generation.write)


@pytest.fixture(scope="session")
def golden_translation(made_once) -> Path:
    """The folder of `golden_translation.write`: a file of the task translate, and what it must give elsewhere."""
    from tests import golden_translation

    with converter_in_process():
        return made_once("golden_translation", golden_translation.write)


@pytest.fixture(scope="session")
def tiny_model() -> Callable:
    """A function from a task and fields of its bundle to a tiny BERT with random weights, and its bundle."""
    from tests import tiny

    return lambda task, pair=False, **fields: tiny.model(task, pair=pair, **{"max_length": 40} | fields)


@pytest.fixture
def write(tmp_path):
    """Writes a file of some name and returns its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def graph_nodes():
    """The nodes of a concrete function, with those of the functions that it calls; calls of these are left out."""

    def nodes(function):
        called = function.graph._functions
        bodies = [function.graph, *(each.graph for each in called.values())]
        every = (node for graph in bodies for node in graph.as_graph_def().node)
        return [node for node in every if node.op not in called]

    return nodes


@pytest.fixture
def power_cut(monkeypatch):
    """`with power_cut(step): ...` ends a run with the first checkpoint at that step or after it."""
    from keras_ctxrep.training.checkpoints import Checkpoint

    @contextmanager
    def cut(step):
        write = Checkpoint.write

        def last(self):
            write(self)
            if self.progress.state.step >= step:
                raise RuntimeError("power cut")

        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
            patch.setattr(Checkpoint, "write", last)
            yield

    return cut


@pytest.fixture
def write_masked():
    """Writes pretraining examples as `ctxrep prepare` did before there were shards."""

    def write(path, examples):
        flat = lambda name: np.array([x for example in examples for x in getattr(example, name)], np.int32)  # noqa: E731
        each = lambda value, kind: np.array([value(example) for example in examples], kind)  # noqa: E731
        np.savez(
            path,
            tokens=flat("tokens"),
            sizes=each(lambda example: len(example.tokens), np.int32),
            first=each(lambda example: example.first, np.int32),
            positions=flat("positions"),
            labels=flat("labels"),
            counts=each(lambda example: len(example.positions), np.int32),
            follows=each(lambda example: example.follows, bool),
        )

    return write
