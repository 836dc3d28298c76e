"""The runtime: errors that name the file and the remedy, threads, what a process needs to start."""

import gc
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keras_ctxrep import saving
from keras_ctxrep.text import artifacts
from keras_ctxrep.text.artifacts import TFLITE
from keras_ctxrep.text.bundle import Bundle, load, write_tflite
from keras_ctxrep_tflite import quantize, runtime, weights


def test_files_without_a_bundle(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        runtime.load(tmp_path / "missing.tflite")
    (tmp_path / "a.tflite").write_bytes(b"TFL3" * 100)
    with pytest.raises(ValueError, match=r"a\.tflite: no bundle in it; copy the file again .* `ctxrep tflite`"):
        runtime.load(tmp_path / "a.tflite")


def test_a_damaged_model_with_a_bundle(tmp_path):
    path = tmp_path / "a.tflite"
    write_tflite(path, b"not a flatbuffer" * 100, Bundle("elmo", "classify", {"max_characters": 9}, 8, ("a", "b")))
    with pytest.raises(ValueError, match=r"a\.tflite: not a TFLite file that LiteRT can run"):
        runtime.load(path)


@pytest.fixture(scope="module")
def file(tiny_model, tflite_in_process, tmp_path_factory):
    """A classifier of two labels at the lengths 8 and 40."""
    folder = tmp_path_factory.mktemp("runtime")
    saving.save(folder / "m", *tiny_model("classify"))
    return quantize.convert(folder / "m", folder / "m.tflite", "none", (8, 40))


def model_of(path):
    with zipfile.ZipFile(path) as archive:
        return path.read_bytes()[: min(entry.header_offset for entry in archive.infolist())]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": ("a", "b", "c")}, "length_8 has 2 logits for 3 labels"),
        ({"labels": ("a", "b"), "max_length": 64}, "it has no signature length_64; its longest has 40"),
        ({"task": "embed", "labels": ()}, "has no output 'vector', which a model for embed has"),
        ({"task": "tag", "reads": {"words": True}}, "reads mask, segment_ids, token_ids, not mask, .*starts"),
        ({"task": "pretrainer"}, "its bundle cannot be used: a pretrainer answers nothing"),
        ({"vocab": ("[PAD]", "[PAD]")}, "its bundle cannot be used: vocabulary: .* distinct"),
    ],
)
def test_the_bundle_of_another_model(fields, message, file, tmp_path):
    bundle = load(file)
    reads = replace(bundle.reads, **fields.pop("reads", {}))
    write_tflite(tmp_path / "other.tflite", model_of(file), replace(bundle, reads=reads, **fields))
    with pytest.raises(ValueError, match=rf"other\.tflite: .*{message}.*; copy the file again, or convert the model"):
        runtime.load(tmp_path / "other.tflite")


def test_every_file_in_the_archive_is_checked(file, tmp_path):
    """A vocabulary that is not the bundle's, a bundle without a hash of the model, a compressed one."""
    with zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    path = tmp_path / "m.tflite"

    def written(files, compression=zipfile.ZIP_STORED):
        path.write_bytes(model_of(file))
        with zipfile.ZipFile(path, "a", compression) as archive:
            for name, data in files.items():
                archive.writestr(name, data)

    written(files | {"vocab.txt": files["vocab.txt"].replace(b"cat", b"dog")})
    with pytest.raises(ValueError, match=r"m\.tflite: vocab\.txt in it is damaged"):
        runtime.load(path)
    fields = json.loads(files["bundle.json"])
    del fields["files"][TFLITE], fields["sha256"]
    written(files | {"bundle.json": json.dumps(fields).encode()})
    with pytest.raises(ValueError, match=r"m\.tflite.*no hash of model\.tflite"):
        runtime.load(path)
    written(files, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"m\.tflite: .* in it is compressed"):
        runtime.load(path)


def test_the_model_is_hashed_once(file, monkeypatch):
    sizes, sha256 = [], hashlib.sha256
    monkeypatch.setattr(artifacts, "sha256", lambda path, size=None: sizes.append(size) or _digest(path, size, sha256))
    runtime.load(file)
    assert sizes == [len(model_of(file))]


def _digest(path, size, sha256):
    with open(path, "rb") as stream:
        return sha256(stream.read(size)).hexdigest()


def test_threads(file):
    with pytest.raises(ValueError, match="threads=0: at least 1"):
        runtime.load(file, 0)
    texts = ["the cat fell", "a b c d e f", "rain"] * 20
    predictor = runtime.load(file, 2)
    expected, results = predictor(texts), {}

    def ask(number):
        results[number] = [predictor([text])[0] for text in texts]

    workers = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(results[number] == expected for number in range(4))


def test_an_error_of_litert_names_the_file(file, monkeypatch):
    predictor = runtime.load(file)
    batch = predictor.bundle.features(["the cat"])
    batch["token_ids"] = np.full_like(batch["token_ids"], 10**6)
    with pytest.raises(ValueError, match=r"m\.tflite: LiteRT cannot run this text: .*; convert the model again"):
        predictor.runner.run(batch)


def test_files_loaded_by_several_threads_leave_standard_error_open(file, capfd):
    workers = [threading.Thread(target=runtime.load, args=(file,)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    gc.collect()  # LiteRT logs while a model is freed
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


START = """
import json, re, sys
def peak(name="VmHWM"):
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
from keras_ctxrep_tflite import runtime
import ai_edge_litert.compiled_model, ai_edge_litert.options
before = peak("VmRSS")
answers = runtime.load(sys.argv[1])(["the cat fell", "a " * 30])
print(json.dumps({"peak": peak() - before, "modules": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_loads_and_predicts(file):
    """Half a second of one CPU, and neither TensorFlow nor Keras; docs/how-to/mediapipe.md has a MiniLM's."""
    folders = [str(Path(module.__file__).parents[1]) for module in (saving, runtime)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", START, str(file)]
    for _ in range(2):  # the first one compiles the modules
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.run(command, capture_output=True, text=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert process.returncode == 0, process.stderr[-2000:]
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report = json.loads(process.stdout)
    assert not {"tensorflow", "keras"} & set(report["modules"])
    assert seconds < 1.0 and report["peak"] < 40e6


@pytest.mark.skipif(os.name != "posix", reason="Windows lets nobody change a mapped file")
@pytest.mark.parametrize("change", ["cut", "overwritten", "cut, and no temporary folder"])
def test_a_file_that_changes_in_place_answers_as_before(change, file, tmp_path):
    """A mapped file that is cut ends a process by SIGBUS, without a word."""
    path = tmp_path / "m.tflite"
    path.write_bytes(file.read_bytes())
    code = """if True:
        import os, sys, tempfile
        from keras_ctxrep_tflite import runtime
        tempfile.tempdir = "/missing" if "folder" in sys.argv[2] else None
        path, texts = sys.argv[1], ["the cat", "she fell . the rain a b c d e f"]
        size, predictor = os.path.getsize(path), runtime.load(path)
        with open(path, "r+b") as file:
            file.truncate(0) if "cut" in sys.argv[2] else file.write(b"\\xff" * size)
        changed = predictor(texts)
        with open(path, "wb") as file:
            file.write(open(sys.argv[3], "rb").read())
        assert changed == runtime.load(path)(texts), changed
        print("the same answers")
    """
    process = subprocess.run(
        [sys.executable, "-c", code, path, change, file], capture_output=True, text=True, encoding="utf-8"
    )
    assert (process.returncode, process.stdout) == (0, "the same answers\n"), process.stderr[-2000:]


@pytest.mark.parametrize("form", ["none", "float16", "dynamic"])
def test_weights_that_are_not_finite_are_not_loaded(form, file, tmp_path):
    """A kernel, of a quantized file the scales of one."""
    data = bytearray(weights.quantized(model_of(file), form))
    views = dict(weights.floats(data))
    name, values = max(views.items(), key=lambda entry: (entry[0].endswith("scale"), entry[1].size))
    values.setflags(write=True)
    values[0] = np.nan
    path = tmp_path / "m.tflite"
    write_tflite(path, bytes(data), load(file))
    with pytest.raises(ValueError, match=rf"m\.tflite: the weights '{re.escape(name)}' have 1 of [\d,]+ values that"):
        runtime.load(path)
