"""Conversions into an existing folder that are killed between two files: the folder is unchanged."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from keras_ctxrep import saving
from keras_ctxrep.convert import allennlp, huggingface
from keras_ctxrep.models import bert
from keras_ctxrep.text.bundle import Bundle
from tests import tiny as tiny_models

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from keras_ctxrep.cli import main

write = Path.write_bytes

def killed(path, data):
    if path.name == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(path, data)

Path.write_bytes = killed
main.main(sys.argv[2:])
"""


def biLM(cells):
    bundle = tiny_models.bundle("embed", "elmo", sizes={"cells": cells, "max_characters": 50})
    return saving.build(bundle), bundle


def pieces(width, tiny):
    config = bert.Config(len(tiny.PIECES), 1, width, 2, 8, 8)
    return bert.encoder(config), Bundle("bert", "embed", asdict(config), 8, vocab=tuple(tiny.PIECES))


@pytest.mark.slow  # a process for each
@pytest.mark.parametrize(
    ("direction", "file"),
    [("--to allennlp", "options.json"), ("--to huggingface", "config.json"), ("--from allennlp", "bundle.json")],
)
def test_a_killed_conversion_leaves_the_folder_as_it_was(tmp_path, tiny, direction, file):
    out, source = tmp_path / "out" / "model", tmp_path / "source"
    option, form = direction.split()
    if option == "--from":
        allennlp.write(source, *biLM(12))
        saving.save(out, *biLM(8))
    elif form == "allennlp":
        saving.save(source, *biLM(12))
        allennlp.write(out, *biLM(8))
    else:
        saving.save(source, *pieces(12, tiny))
        huggingface.write(out, *pieces(8, tiny))
    (out / "notes.txt").write_text("mine")
    before = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    command = [sys.executable, "-c", KILLED, file, "convert", str(source), option, form, "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "export", ROOT / "tflite")))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    command[3] = "no file"
    subprocess.run(command, env=environment, capture_output=True, check=True)
    after = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert after.keys() == before.keys() and after[Path("notes.txt")] == b"mine"
    assert after[Path(file)] != before[Path(file)]
    assert os.listdir(out.parent) == ["model"]
