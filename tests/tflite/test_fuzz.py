"""Mutated files and odd strings: an answer or an error that names the file, and never a crash or an endless loop."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from keras_ctxrep import saving
from keras_ctxrep_tflite import quantize
from tests import tiny

FUZZ = Path(__file__).parent / "fuzz.py"


@pytest.fixture(scope="module")
def files(tiny_model, tflite_in_process, tmp_path_factory):
    """A tiny .tflite file of every family: BERT for tags, for answers and for vectors, ELMo and static vectors."""
    root = tmp_path_factory.mktemp("fuzz")
    made = {f"bert_{task}": tiny_model(task) for task in ("tag", "answer", "embed")}
    for family in ("elmo", "static"):
        made[family] = tiny.model("classify", family, max_length=24, head={"mix": True})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*softmax over axis")  # the mix of one layer
        for name, (model, bundle) in made.items():
            saving.save(root / name, model, bundle)
            quantize.convert(root / name, root / f"{name}.tflite", "none", (8, bundle.max_length))
    return sorted(root.glob("*.tflite"))


def fuzz(*arguments):
    process = subprocess.run([sys.executable, "-W", "ignore", FUZZ, *arguments], capture_output=True, text=True)
    assert process.returncode == 0, f"exit {process.returncode}: {process.stderr[-3000:]}"
    lines = [line.split(maxsplit=1) for line in process.stdout.splitlines()]
    return {name: int(number) for number, name in lines}


@pytest.mark.slow  # loads 2,000 files
def test_mutated_files(files):
    outcomes = fuzz("files", "2000", *files)
    assert sum(outcomes.values()) == 2000
    of = {name: sum(n for text, n in outcomes.items() if text.startswith(name)) for name in ("cut", "bits")}
    assert of["cut"] >= 200 and not outcomes.get("cut answers")
    # a flipped bit is refused, unless it is in the archive where nothing reads it
    assert outcomes.get("bits answers", 0) < 0.05 * of["bits"]


@pytest.mark.slow  # 10,000 texts through every family
def test_odd_strings(files):
    outcomes = fuzz("texts", "10000", *files)
    assert outcomes == {file.name: 10000 for file in files}
