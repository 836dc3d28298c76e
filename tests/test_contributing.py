"""The recipes of CONTRIBUTING.md for a task and a family: their steps, on a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRAIN = """
from dataclasses import asdict, replace

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.models import conv
from keras_ctxrep.text.bundle import Bundle

vocab = ("<UNK>", "a", "good", "bad", "film")
config = conv.Config(words=len(vocab), width=8)
bundle = Bundle("conv", "embed", asdict(config), 16, vocab=vocab)
saving.save("encoder", saving.build(bundle), bundle)
assert ctx.load("encoder").encode(["a good film"]).shape == (1, 8)

rows = ["a good film", "a bad film"] * 8, ["5", "1"] * 8
history = recipes.finetune(rows, rows, "encoder", "stars", task="stars", steps=2, batch_size=4)
assert history[-1]["step"] == 2 and {"val_accuracy", "val_mean_absolute_error"} <= history[-1].keys()
model = ctx.load("stars")
assert model.bundle.labels == tuple("12345")
(answer,) = model.predict(["A good film"])
assert answer["label"] in model.bundle.labels
saving.save("again", *saving.load("stars"))
(again,) = ctx.load("again").predict(["A good film"])
assert again["probabilities"] == answer["probabilities"]

from keras_ctxrep_export import saved_model

(served,) = ctx.load(saved_model.export(*saving.load("stars"), "served").parent).predict(["A good film"])
assert served["label"] == answer["label"]
"""


def blocks():
    """The Python and diff blocks of the two sections."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    sections = text.partition("## Adding a task")[2].partition("## Adding an option")[0]
    return re.findall(r"^```(python|diff)\n(.*?)^```$", sections, re.DOTALL | re.MULTILINE)


def follow(folder: Path) -> None:
    """Writes the files of the Python blocks, and changes those of the diffs."""
    for language, code in blocks():
        if language == "python":
            path, _, source = code.removeprefix("# ").partition("\n")
            (folder / path).write_text(source, encoding="utf-8")
            continue
        for change in code.split("--- ")[1:]:
            path, *lines = change.splitlines()
            old, new = ("\n".join(line[1:] for line in lines if line[0] in f" {sign}") + "\n" for sign in "-+")
            source = (folder / path).read_text(encoding="utf-8")
            assert source.count(f"\n{old}") == 1, f"{path} has no line {old!r}"
            (folder / path).write_text(source.replace(f"\n{old}", f"\n{new}"), encoding="utf-8")


@pytest.mark.trains
def test_a_task_and_a_family_are_added_by_the_steps(tmp_path):
    for name in ("keras_ctxrep", "export", "tflite/keras_ctxrep_tflite"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("weights", "__pycache__"))
    follow(tmp_path)
    path = os.pathsep.join(str(tmp_path / folder) for folder in (".", "export", "tflite"))
    done = subprocess.run(
        [sys.executable, "-c", TRAIN],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_steps_are_those_of_one_task_and_one_family():
    assert [language for language, _ in blocks()] == ["python", "diff", "python", "diff"]
