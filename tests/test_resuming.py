"""Runs that are killed, terminated and interrupted go on where they were; a folder that is lost or taken is named.

Every run is a command whose batches are counted, see `interrupted.py`.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from keras_ctxrep.atomic import sha256
from tests import tiny

pytestmark = [
    pytest.mark.slow,  # five commands of each kind, in forks of a process that imports TensorFlow
    pytest.mark.trains,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork there"),
]

LIMIT = 300  # seconds that a command may take, on a busy machine
WORDS = ("the", "cats", "ab", "fell", "rain", "she", "a", "had", "bead", "cat")

Done = namedtuple("Done", "process status batches text")

RUN = "--steps 12 --evaluations 4 --batch-size 8"
KINDS = {
    "train": f"train --data {{rows}} --dev {{few_rows}} --encoder {{teacher}} {RUN}",
    "similar": f"train --task similar --data {{pairs}} --dev {{few_pairs}} --encoder {{teacher}} {RUN}",
    "pretrain elmo": f"pretrain elmo --corpus {{corpus}} --unroll 5 --samples 9 {RUN}",
    "pretrain bert": f"pretrain bert --corpus {{corpus}} --size bert_2_64_2 --max-length 16 {RUN}",
    "pretrain lm": f"pretrain lm --corpus {{corpus}} --unroll 5 {RUN}",
    "pretrain static": "pretrain static --corpus {corpus} --dims 8 --batch-size 32 --epochs 1 --evaluations 4",
    "distill": f"distill {{classifier}} --data {{rows}} --dev {{few_rows}} --encoder {{teacher}} {RUN}",
    "distill from text": f"distill {{teacher}} --corpus {{corpus}} --layers 1 {RUN}",
    "distill static": "distill {teacher} --corpus {corpus} --static --dims 4 --batch-size 32 --evaluations 4",
}


class Commands:
    """The commands of KINDS, whose logs are in a folder."""

    def __init__(self, server, folder, files):
        self.server, self.folder, self.files = server, folder, files
        self.logs = {}  # of each process

    def __call__(self, kind, out, number=0, after=0):
        """Starts one, which sends itself a signal after so many batches; returns when it has ended, or is stopped."""
        log = str(self.folder / f"{len(self.logs)}.log")
        argv = f"{KINDS[kind]} --checkpoint-minutes 0 --out {out}".format(**self.files).split()
        return self._answer(log, argv=argv, number=number, after=after)

    def go_on(self, stopped):
        return self._answer(self.logs[stopped.process], process=stopped.process)

    def _answer(self, log, **request):
        timer = threading.Timer(LIMIT, os.killpg, (self.server.pid, signal.SIGKILL))
        timer.start()
        self.server.stdin.write(json.dumps(request | {"log": log}) + "\n")
        self.server.stdin.flush()
        line = self.server.stdout.readline()
        timer.cancel()
        assert line, f"no answer in {LIMIT} seconds: {request}"
        found = json.loads(line)
        self.logs[found["process"]] = log
        return Done(**found, text=Path(log).read_text())


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.choice(WORDS, rng.integers(4, 9))) for _ in range(400)]
    rows = [f"{text}\t{'yes' if 'cat' in text else 'no'}" for text in sentences]
    pairs = [f"{text}\t{pair}" for text, pair in itertools.pairwise(sentences)]
    lines = {
        "corpus": [line for i in range(0, 400, 8) for line in (*sentences[i : i + 8], "")],
        "rows": ["text\tlabel", *rows],
        "few_rows": ["text\tlabel", *rows[:40]],
        "pairs": ["text\tpair", *pairs],
        "few_pairs": ["text\tpair", *pairs[:40]],
    }
    files = {name: folder / f"{name}.tsv" for name in lines}
    for name, path in files.items():
        path.write_text("\n".join(lines[name]) + "\n")
    letters = sorted(set("".join(WORDS)))
    vocab = tuple(dict.fromkeys((*tiny.VOCABULARIES["bert"], *letters, *(f"##{letter}" for letter in letters))))
    fields = {"vocab": vocab, "sizes": {"layers": 2, "dropout": 0.1}}
    files["teacher"] = tiny.save(folder / "teacher", tiny.bundle("embed", **fields))
    files["classifier"] = tiny.save(folder / "classifier", tiny.bundle("classify", **fields))
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("interrupted.py"))],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        yield Commands(server, folder, files)
        os.killpg(server.pid, signal.SIGKILL)


def step_of(out):
    """Of the checkpoint in a model folder."""
    return json.loads((out / "checkpoint" / "state.json").read_text())["step"]


def evaluations(out):
    """Of a finished run, without what depends on the clock."""
    history = json.loads((out / "run.json").read_text())["history"]
    return [{name: entry[name] for name in entry.keys() - {"minutes", "tokens_per_second"}} for entry in history]


def check_whole(out, finished=False):
    """Nothing half-written is in a folder, or beside it."""
    names = {path.name for path in [*out.iterdir(), *out.parent.iterdir()]}
    assert not [name for name in names if name.startswith(".")]
    assert ("bundle.json" in names) == ("model.weights.h5" in names) == ("checkpoint" not in names) == finished


OFTEN = ("train", "pretrain elmo", "distill from text")  # of each kind of data one


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.release) for kind in KINDS]
)
def test_a_run_goes_on_where_it_was(kind, commands, tmp_path):
    """After SIGKILL from the last checkpoint, after SIGTERM and Ctrl-C from the last step; to the same weights.

    The first run is not disturbed by another one with the same folder, which is refused before it trains.
    """
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    first = commands(kind, whole, signal.SIGSTOP, 2)
    other = commands(kind, whole)
    assert (first.status, other.status, other.batches) == (None, 1, 0)
    assert other.text == f"ctxrep: {whole}: another process is writing in it; wait for it, or stop it\n"
    first = commands.go_on(first)
    assert first.status == 0, first.text
    steps, part = first.batches, first.batches // 4
    killed = commands(kind, parts, signal.SIGKILL, part + 2)
    assert (killed.status, killed.batches) == (-signal.SIGKILL, part + 2)
    assert (step := step_of(parts)) == part and not (parts / "bundle.json").exists()
    terminated = commands(kind, parts, signal.SIGTERM, part + 1)
    assert (terminated.status, terminated.batches) == (143, part + 1)
    assert (step := step + part + 1) == step_of(parts)
    check_whole(parts)
    interrupted = commands(kind, parts, signal.SIGINT, part - 1)
    assert (interrupted.status, interrupted.batches) == (1, part - 1)
    assert (step := step + part - 1) == step_of(parts)
    check_whole(parts)
    for stopped, words in (
        (terminated, f"terminated; the same command goes on from step {2 * part + 1}"),
        (interrupted, "ctxrep: interrupted; the same command goes on from the last checkpoint, if it had one"),
    ):
        assert stopped.text.splitlines()[-1] == words and stopped.text.count(words) == 1, stopped.text
        assert "Traceback" not in stopped.text
    rest = commands(kind, parts)
    assert (rest.status, rest.batches) == (0, steps - step), rest.text
    check_whole(parts, finished=True)
    assert sorted(os.listdir(parts)) == sorted(os.listdir(whole))
    assert evaluations(parts) == evaluations(whole)
    assert sha256(parts / "model.weights.h5") == sha256(whole / "model.weights.h5")


# ------------------------------------------------------------------------------------------- a folder that is lost


def replaced(folder):
    """A file is where the folder was; returns how it comes back."""
    moved = folder.rename(folder.with_name("moved"))
    folder.write_text("")
    return lambda: moved.replace(folder) if folder.unlink() is None else None


def read_only(folder):
    """The folder cannot be written, not by root either; returns how it can again."""
    if os.geteuid():
        folder.chmod(0o500)
        return lambda: folder.chmod(0o700)
    mount = subprocess.run(["mount", "--bind", folder, folder], capture_output=True)
    if mount.returncode:
        pytest.skip("root that may not mount")
    subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
    return lambda: subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("kind", "lose"),
    [
        ("pretrain lm", replaced),
        ("pretrain lm", lambda folder: replaced(folder.parent)),
        ("pretrain lm", read_only),
        ("distill", read_only),
    ],
)
def test_a_folder_that_cannot_be_written_any_more(kind, lose, commands, tmp_path):
    """It is named, with what to do; the run goes on from its checkpoint when the folder is back."""
    out = tmp_path / "parent" / "out"
    stopped = commands(kind, out, signal.SIGSTOP, 4)
    give_back = lose(out)
    try:
        failed = commands.go_on(stopped)
    finally:
        give_back()
    assert failed.status == 1 and "Traceback" not in failed.text
    last = failed.text.splitlines()[-1]
    assert last.startswith(f"ctxrep: {out}: make it a folder that can be written, and start again: [Errno "), last
    assert step_of(out) == 3
    check_whole(out)
    rest = commands(kind, out)
    assert (rest.status, rest.batches) == (0, 9), rest.text
    check_whole(out, finished=True)


@pytest.mark.parametrize("kind", ["pretrain static", "distill from text"])
def test_a_folder_that_vanishes_is_made_again(kind, commands, tmp_path):
    out = tmp_path / "parent" / "out"
    stopped = commands(kind, out, signal.SIGSTOP, 2)
    shutil.rmtree(out.parent)
    whole = commands.go_on(stopped)
    assert whole.status == 0 and "Traceback" not in whole.text, whole.text
    assert (out / "run.json").exists()
    check_whole(out, finished=True)
