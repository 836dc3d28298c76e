"""What is installed: three names, and an edge that predicts without TensorFlow."""

import email
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import pytest

import keras_ctxrep
from keras_ctxrep import saving, tasks
from keras_ctxrep_tflite import quantize

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    return next(out.glob("*.whl"))


def test_the_wheel_holds_exactly_three_packages(wheel):
    """Every file of theirs, and nothing else: a file that `package-data` in pyproject.toml lacks fails."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    folders = {
        "keras_ctxrep": ROOT / "keras_ctxrep",
        "keras_ctxrep_export": ROOT / "export" / "keras_ctxrep_export",
        "keras_ctxrep_tflite": ROOT / "tflite" / "keras_ctxrep_tflite",
        "keras_ctxrep_tflite/web": ROOT / "tflite" / "web",
    }
    assert names == {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {name.split("/")[0] for name in names} == {"keras_ctxrep", "keras_ctxrep_export", "keras_ctxrep_tflite"}
    assert {f"{package}/py.typed" for package in list(folders)[:3]} < names


def test_the_metadata_of_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        folder = f"keras_ctxrep-{keras_ctxrep.__version__}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        for name in ("LICENSE", "NOTICE"):
            assert archive.read(f"{folder}/licenses/{name}") == (ROOT / name).read_bytes()
    assert metadata["Version"] == keras_ctxrep.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    required = metadata.get_all("Requires-Dist")
    assert [line for line in required if "extra ==" not in line] == ["numpy>=1.26", "tokenizers>=0.20"]
    assert {line.partition(",")[0] for line in metadata.get_all("Project-URL")} == {
        *("Homepage", "Documentation", "Source", "Issues", "Changelog")
    }


def test_the_changelog_has_a_section_of_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    versions = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", heading) for heading in headings[1:]]
    assert all(versions) and versions[0][1] == keras_ctxrep.__version__
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert {*re.findall(r"^### (.*)$", text, re.MULTILINE)} <= kinds


def test_the_wheel_is_small(wheel):
    assert wheel.stat().st_size < 90e6  # the shipped weights may have so much


# This Python, and others that are to be tested, for example the newest one: their paths, with ":" between them.
PYTHONS = [sys.executable, *os.environ.get("CTXREP_PYTHONS", "").split(os.pathsep)]

ASK = """
import importlib.util, json, sys
from keras_ctxrep_tflite import runtime
answers = {}
for path in sys.argv[1:]:
    predictor = runtime.load(path, threads=2)
    reads = predictor.bundle.reads
    texts = ["the cat fell", "she"]
    marks = [[(0, 3)] * reads.marks] * 2
    answers[path] = predictor(texts, ["the rain fell"] * 2 if reads.pair else None, marks)
print(json.dumps([answers, sorted({"tensorflow", "keras"} & {name.partition(".")[0] for name in sys.modules}),
                  [name for name in ("tensorflow", "keras") if importlib.util.find_spec(name)]]))
"""


@pytest.fixture(scope="module")
def tflite_files(tiny_model, tflite_in_process, models, tmp_path_factory):
    """A .tflite file of every task, and one of an ELMo; the answers of this process to each."""
    root = tmp_path_factory.mktemp("files")
    files = [quantize.convert(models / "elmo" / "classifier", root / "elmo.tflite", "dynamic", (16, 32))]
    for task in tasks.SERVED:
        saving.save(root / task, *tiny_model(task))
        files.append(quantize.convert(root / task, root / f"{task}.tflite", "none", (40,)))
    process = subprocess.run([sys.executable, "-c", ASK, *files], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    return files, json.loads(process.stdout)[0]


@pytest.mark.slow  # pip installs into a new environment
@pytest.mark.parametrize("python", [path for path in PYTHONS if path])
def test_the_edge_predicts_in_a_bare_environment(python, wheel, tflite_files, models, tmp_path):
    files, expected = tflite_files
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # wheels alone: nothing is compiled
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    process = subprocess.run([*command, f"{wheel}[edge]"], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr[-2000:]

    options = {"capture_output": True, "text": True, "env": environment, "cwd": tmp_path}
    process = subprocess.run([python, "-c", ASK, *files], **options)
    assert process.returncode == 0, process.stderr[-2000:]
    answers, loaded, installed = json.loads(process.stdout)
    assert loaded == installed == []
    assert flat(answers) == pytest.approx(flat(expected), abs=1e-5)

    command = [tmp_path / "venv" / "bin" / "ctxrep", "predict", files[0], "--threads", "2"]
    process = subprocess.run(command, input="the violin\n", **options)
    assert json.loads(process.stdout)["label"] == "music" and process.stderr == ""
    process = subprocess.run([tmp_path / "venv" / "bin" / "ctxrep", "zoo", "list"], **options)
    assert "bert_3_384_12/books_wiki_en" in process.stdout and process.stderr == ""
    ask = "import keras_ctxrep as ctx; print(ctx.load('sentiment_en')('A charming film.')['label'])"
    process = subprocess.run([python, "-c", ask], **options)  # a model of the package, not a .tflite file
    assert process.stdout == "positive\n", process.stderr[-2000:]
    # what needs TensorFlow says in one line what to install
    command = [tmp_path / "venv" / "bin" / "ctxrep", "score", str(models / "elmo" / "classifier"), "--data", files[0]]
    process = subprocess.run(command, **options)
    assert process.returncode == 1 and process.stderr.count("\n") == 1
    assert 'pip install "tensorflow<2.22,>=2.21" "tensorflow-text' in process.stderr


def flat(node, name="") -> dict:
    """The leaves of nested objects and lists, by their paths."""
    if not isinstance(node, dict | list):
        return {name: node}
    items = node.items() if isinstance(node, dict) else enumerate(node)
    return {path: leaf for key, value in items for path, leaf in flat(value, f"{name}/{key}").items()}


@pytest.mark.slow  # starts TensorFlow four times
def test_the_wheel_alone_has_weights_and_data(wheel, tmp_path):
    """With the other packages of this environment, but neither this checkout nor a network."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*command, str(tmp_path / "site"), str(wheel)], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = os.pathsep.join([str(tmp_path / "site"), sysconfig.get_path("purelib")])
    nowhere = "http://127.0.0.1:9"
    environment |= {"PYTHONPATH": path, "CTXREP_CACHE": str(tmp_path / "cache"), "https_proxy": nowhere}
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "a good film\tyes\na bad film\tno\n" * 8)
    (tmp_path / "text.txt").write_text("She sat on the bank.\n")
    train = "--data train.tsv --dev train.tsv --steps 2 --batch-size 4 --out mine"
    for argv in (
        "embed elmo_2x512_128_512cnn_1xhighway/books_wiki_en --input text.txt --layers top --out words.npz",
        "embed bert_3_384_12/books_wiki_en --input text.txt --layers top --out vectors.npz",
        f"train --encoder bert_3_384_12/books_wiki_en {train}",
        "zoo show bert_3_384_12/books_wiki_en",
    ):
        program = [
            sys.executable,
            "-S",
            "-c",
            "import sys, keras_ctxrep.cli.main as c; sys.exit(c.main())",
            *argv.split(),
        ]
        process = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert process.returncode == 0, process.stderr[-2000:]
    assert str(tmp_path / "site") in process.stdout
    for name, width in {"vectors": 384, "words": 256}.items():
        with np.load(tmp_path / f"{name}.npz") as arrays:
            assert arrays["0"].shape == (6, width)
