"""Commands on a disk that fills and under a limit on the size of files, then again with room."""

import contextlib
import resource
import shutil
import subprocess

import h5py
import pytest

from keras_ctxrep.cli.main import main
from keras_ctxrep.models import bert, elmo
from tests import tiny

pytestmark = [pytest.mark.slow, pytest.mark.trains]

# name -> the arguments; {of} is the folder of the inputs, {out} where the command writes
COMMANDS = {
    "prepare": "prepare bert --corpus {of}/text.txt --vocab {of}/vocab.txt --max-length 16 --out {out}/prepared",
    "pretrain_bert": "pretrain bert --corpus {of}/text.txt --vocab {of}/vocab.txt --size test --max-length 16 --steps 4"
    " --batch-size 4 --evaluations 1 --checkpoint-minutes 0 --out {out}/m",
    "pretrain_elmo": "pretrain elmo --corpus {of}/text.txt --size test --steps 4 --batch-size 4 --evaluations 1"
    " --out {out}/m",
    "train": "train --data {of}/train.tsv --dev {of}/train.tsv --encoder {of}/bert --epochs 1 --out {out}/m",
    "score": "score {of}/classify --data {of}/train.tsv --predictions {out}/wrong.tsv",
    "embed_npz": "embed {of}/elmo --input {of}/lines.txt --out {out}/vectors.npz",
    "embed_hdf5": "embed {of}/elmo --input {of}/lines.txt --out {out}/vectors.hdf5",
    "index": "index {of}/text.txt --encoder {of}/bert --out {out}/i",
    "convert_allennlp": "convert {of}/elmo --to allennlp --out {out}/m",
    "convert_huggingface": "convert {of}/bert --to huggingface --out {out}/m",
    "export": "export {of}/classify --out {out}/m",
    "tflite": "tflite {of}/classify --out {out}/m.tflite",
    "predict": "predict {of}/classify --input {of}/text.txt --out {out}/answers.jsonl",
    "plot": "plot attention {of}/bert --text rain --out {out}/attention.png",
}


@pytest.fixture(scope="module", autouse=True)
def sizes():
    """Sizes called "test"."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bert.SIZES, "test", tiny.config(width=32, intermediate=64))
        patch.setitem(elmo.SIZES, "test", tiny.config("elmo", cells=64, projection=16))
        yield


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    for task, family in (("embed", "bert"), ("embed", "elmo"), ("classify", "bert")):
        large = {"width": 32, "intermediate": 64} if family == "bert" else {"cells": 64, "projection": 16}
        tiny.save(folder / (family if task == "embed" else task), tiny.bundle(task, family, sizes=large))
    sentences = [f"{a} cat the rain fell {b} ." for a in "abcdefgh" for b in "abcdefgh"]
    documents = (sentences[start : start + 4] for start in range(0, len(sentences), 4))
    (folder / "text.txt").write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    (folder / "lines.txt").write_text("\n".join(sentences) + "\n")
    rows = (f"{sentence}\t{('no', 'yes')[index % 2]}\n" for index, sentence in enumerate(sentences))
    (folder / "train.tsv").write_text("text\tlabel\n" + "".join(rows))
    (folder / "vocab.txt").write_text("\n".join(tiny.VOCABULARIES["bert"]) + "\n")
    return folder


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of so many bytes at `folder`; with `size` as None it gets room."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def small_files(folder, size):
    """A limit on the size of each file that this process writes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def lift():
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield lift
    finally:
        lift()


def written(folder):
    """Name -> size of the files in a folder; the versions of exports and the times in run.json differ."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def weights(folder):
    """The arrays of all weight files; the names of their groups depend on the models built before."""
    arrays = []
    for path in sorted(folder.rglob("*.weights.h5")):
        with h5py.File(path) as file:
            file.visititems(lambda _, item: arrays.append(item[()]) if isinstance(item, h5py.Dataset) else None)
    return sorted(array.tobytes() for array in arrays)


@pytest.fixture(scope="module")
def undisturbed(inputs, tmp_path_factory):
    """The folder that a command writes on a disk with room, made once."""
    made = {}

    def run(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            assert main(COMMANDS[name].format(of=inputs, out=made[name]).split()) == 0
        return made[name]

    return run


ONE_FILE = {"score", "embed_npz", "embed_hdf5", "tflite", "predict", "plot"}  # which a full disk cuts at once
LIMITS = [(small_disk, 0.3), (small_disk, 0.9), (small_files, 0.5)]


@pytest.mark.parametrize(
    ("name", "limit", "share"),
    [
        pytest.param(name, *limit, marks=pytest.mark.release if limit == LIMITS[0] else ())
        for name in COMMANDS
        for limit in LIMITS[name in ONE_FILE :]
    ],
)
def test_a_command_says_what_lacks_and_goes_on_with_room(name, limit, share, inputs, undisturbed, tmp_path, capfd):
    whole = undisturbed(name)
    sizes = written(whole).values()
    if limit is small_files:
        size = int(share * max(sizes))
    else:  # which has whole pages
        size = max(1, int(share * sum(-(-size // 4096) for size in sizes))) * 4096
    out = tmp_path / "room"
    out.mkdir()
    command = COMMANDS[name].format(of=inputs, out=out).split()
    capfd.readouterr()
    with limit(out, size) as lift:
        code, error = main(command), capfd.readouterr().err
        print(error)
        lines = [line for line in error.splitlines() if line.startswith("ctxrep: ")]
        assert code == 1 and len(lines) == 1
        assert str(out) in lines[0] or "/ctxrep-converter: " in lines[0]
        assert "No space left on device" in lines[0] or "File too large" in lines[0]
        assert "Traceback" not in error and "Exception ignored" not in error
        lift()
        assert main(command) == 0
        assert written(out).keys() == written(whole).keys()
        assert weights(out) == weights(whole)
        assert not [path for path in out.rglob(".*")]
        shutil.rmtree(out, ignore_errors=True)
