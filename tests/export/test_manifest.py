"""Versions of an export and its manifest: what a folder of SavedModels holds, whatever happens while one is written."""

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from keras_ctxrep import saving, tasks
from keras_ctxrep.cli.main import main
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep.version import __version__
from keras_ctxrep_export import kit, manifest, saved_model
from tests import tiny

pytestmark = pytest.mark.trains

ROOT = Path(__file__).parents[2]
VOCAB = (*SPECIAL_PIECES, "a", "b", "the")


def fresh(task: str = "classify"):
    bundle = tiny.bundle(task, labels=("x", "y"), vocab=VOCAB)
    return saving.build(bundle), bundle


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return saved_model.export(*fresh(), tmp_path_factory.mktemp("served"), windows="max")


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "served" / "7")


def content(version):
    return json.loads((version / manifest.NAME).read_text(encoding="utf-8"))


def test_what_the_manifest_says(exported):
    said = content(exported)
    assert said["least_server"] == "2.20.0"
    assert said["versions"] == {"keras_ctxrep": __version__, "tensorflow": tf.__version__}
    assert said["signatures"].keys() == {"serving_default", "ids", "embed", "classify"}
    classify = said["signatures"]["classify"]
    assert classify["inputs"] == {"inputs": {"dtype": "string", "shape": [-1]}}
    assert classify["outputs"] == {
        "classes": {"dtype": "string", "shape": [-1, 2]},
        "scores": {"dtype": "float32", "shape": [-1, 2]},
    }
    assert said["signatures"]["embed"]["outputs"]["layers"] == {"dtype": "float32", "shape": [-1, 2, -1, 8]}
    files = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()}
    assert said["files"].keys() == files - {manifest.NAME}
    assert {"saved_model.pb", "assets.extra/bundle.json", "assets.extra/vocab.txt"} <= said["files"].keys()


def test_check_of_a_copy(copy):
    (copy / "assets.extra" / "README.md").write_text("added later")
    version, counts = saved_model.check(copy.parent)
    assert version == copy and counts["signatures"] == counts["answers"] == 4
    assert counts["files"] == len(content(copy)["files"])


def change(version, entry) -> None:
    said = content(version)
    entry(said)
    (version / manifest.NAME).write_text(json.dumps(said), encoding="utf-8")


DAMAGES = {
    "is not the file that was exported": lambda v: (v / "assets.extra/vocab.txt").write_text("other"),
    "is missing": lambda v: (v / "variables/variables.index").unlink(),
    "no assets.extra/manifest.json in it": lambda v: (v / manifest.NAME).unlink(),
    "damaged": lambda v: (v / manifest.NAME).write_text("{"),
    "format 9 is not 1": lambda v: change(v, lambda said: said.update(format=9)),
    "its signatures are not those of": lambda v: change(v, lambda said: said["signatures"].pop("ids")),
    "signature embed: the output 'vector' is not what it was": lambda v: change(
        v, lambda said: answer(said, "embed", "vector")["values"].__setitem__(0, 5.0)
    ),
    "signature serving_default: the output 'label' is not what": lambda v: change(
        v, lambda said: answer(said, "serving_default", "label")["values"].__setitem__(0, "z")
    ),
}


def answer(said: dict, signature: str, output: str) -> dict:
    (entry,) = [entry for entry in said["answers"] if entry["signature"] == signature]
    return entry["outputs"][output]


@pytest.mark.parametrize("damage", DAMAGES)
def test_check_finds(copy, damage):
    DAMAGES[damage](copy)
    with pytest.raises(ValueError, match=damage):
        saved_model.check(copy)


def test_an_export_without_a_manifest_still_loads(copy):
    (copy / manifest.NAME).unlink()
    (answer,) = saved_model.load(copy)(["the a b"])
    assert set(answer["probabilities"]) == {"x", "y"}


@pytest.mark.parametrize(
    "name", ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"]
)
def test_a_damaged_file_is_not_loaded(copy, name):
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    for load in (saved_model.load, saved_model.encoder, lambda path: open_model(path.parent)):
        with pytest.raises(ValueError, match=f"7/{name}: is not the file that was exported; copy the whole folder"):
            load(copy)
    if name != "saved_model.pb":  # which TensorFlow does not check
        (copy / manifest.NAME).unlink()
        with pytest.raises(ValueError, match=r"served/7: TensorFlow cannot load it: .*; copy the whole folder"):
            saved_model.load(copy)


def test_what_tensorflow_does_not_read_may_be_edited(copy):
    (copy / "README.md").write_text("edited")
    (copy / "batching_params.pbtxt").unlink()
    assert saved_model.load(copy)(["the a b"])


def test_on_the_command_line(tmp_path, capsys):
    saving.save(tmp_path / "model", *fresh())
    out = str(tmp_path / "served")
    command = ["export", str(tmp_path / "model"), "--out", out]
    assert main([*command, "--windows", "mean"]) == 0
    assert main([*command, "--keep", "1"]) == 0
    assert os.listdir(out) == ["2"]
    capsys.readouterr()
    assert main(["export", "--check", out]) == 0
    assert capsys.readouterr().out.endswith("4 signatures, 4 answers as they were exported\n")
    (tmp_path / "served" / "2" / "assets.extra" / "vocab.txt").unlink()
    assert main(["export", "--check", out]) == 1
    assert "vocab.txt: is missing" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["."], ["--out", "x"], [".", "--out", "x", "--check", "y"]])
def test_usage(arguments):
    with pytest.raises(SystemExit) as ended:
        main(["export", *arguments])
    assert ended.value.code == 2


# --------------------------------------------------------------------------------------------------------- versions


@pytest.fixture
def quick(monkeypatch):
    """Exports that only write a file, which says who wrote it."""

    def save(module, folder, signatures):
        os.mkdir(folder)
        with open(f"{folder}/saved_model.pb", "w") as file:
            file.write(threading.current_thread().name)

    monkeypatch.setattr(saved_model, "Signatures", lambda model, bundle: SimpleNamespace(functions={}))
    monkeypatch.setattr(tf.saved_model, "save", save)
    monkeypatch.setattr(tf.saved_model, "load", lambda folder: None)
    monkeypatch.setattr(manifest, "write", lambda folder, loaded: None)
    monkeypatch.setattr(kit, "write", lambda *args: None)
    bundle = Bundle("bert", config={}, max_length=16, vocab=VOCAB, **tasks.bundle_fields("embed"))
    return lambda folder, **given: saved_model.export(None, bundle, folder, **given)


def test_exports_at_once_get_versions_of_their_own(quick, tmp_path):
    made, start = {}, threading.Barrier(8)

    def run():
        start.wait()
        for _ in range(5):
            version = quick(tmp_path)
            made.setdefault(threading.current_thread().name, []).append(version)

    threads = [threading.Thread(target=run, name=f"exporter {number}") for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, os.listdir(tmp_path))) == [*range(1, 41)]
    for name, versions in made.items():
        assert [(version / "saved_model.pb").read_text() for version in versions] == [name] * 5


RACE = """
import os, pathlib, sys, time
from keras_ctxrep.cli.main import main

meeting, rename = pathlib.Path(sys.argv[1]), os.rename

def together(source, target):
    own = meeting / str(os.getpid())
    if pathlib.Path(target).name.isdecimal() and not own.exists():
        own.touch()
        while len(os.listdir(meeting)) < 2:
            time.sleep(0.01)
    rename(source, target)

os.rename = together
sys.exit(main(["export", sys.argv[2], "--out", sys.argv[3]]))
"""


@pytest.mark.slow  # two processes with TensorFlow
def test_exports_of_two_processes_at_once(tmp_path):
    """Both have chosen the number 1 when the first renames its version."""
    served, meeting = tmp_path / "served" / "m", tmp_path / "meeting"
    meeting.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "export", ROOT / "tflite")))}
    processes = []
    for labels in (("p", "q"), ("r", "s")):
        model, bundle = fresh()
        saving.save(tmp_path / "".join(labels), model, replace(bundle, labels=labels))
        command = [sys.executable, "-c", RACE, str(meeting), str(tmp_path / "".join(labels)), str(served)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen(command, env=environment, **pipes))
    try:
        ended = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(ended)
    assert len(os.listdir(meeting)) == 2
    assert sorted(os.listdir(served)) == ["1", "2"]
    assert {saved_model.load(served / version).bundle.labels for version in "12"} == {("p", "q"), ("r", "s")}
    for version in "12":
        assert saved_model.check(served / version)[1]["answers"] == 4


def test_a_version_is_never_replaced(quick, tmp_path, monkeypatch):
    """Another export takes the number between the look at the folder and the renaming."""
    rename, taken = os.rename, []

    def late(source, target):
        if not taken:
            taken.append(target)
            target.mkdir()
            (target / "saved_model.pb").write_text("of the other")
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    assert quick(tmp_path).name == "2"
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "of the other"


def test_keep(quick, tmp_path):
    for _ in range(4):
        quick(tmp_path)
    (tmp_path / "notes").mkdir()
    assert quick(tmp_path, keep=2).name == "5"
    assert sorted(os.listdir(tmp_path)) == ["4", "5", "notes"]
    assert quick(tmp_path, keep=9).name == "6"
    assert sorted(os.listdir(tmp_path)) == ["4", "5", "6", "notes"]
    with pytest.raises(ValueError, match="keep=0: at least 1"):
        quick(tmp_path, keep=0)


def test_nothing_is_removed_by_an_export_that_fails(quick, tmp_path, monkeypatch):
    for _ in range(3):
        quick(tmp_path)

    def fail(folder, loaded):
        raise OSError("disk full")

    monkeypatch.setattr(manifest, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        quick(tmp_path, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "3"]


def test_a_damaged_manifest(copy):
    path = copy / "assets.extra" / "manifest.json"
    for content in ("[]", '{"format": 1}', path.read_text().replace('"values"', '"value"')):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"manifest\.json"):
            saved_model.check(copy)
