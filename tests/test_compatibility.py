"""Model folders, SavedModels and .tflite files of earlier versions still load, and give the answers they gave.

The files and how they were made: reference/artifacts_0_1_0.py.
"""

import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from keras_ctxrep import recipes, saving
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models import heads
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import runtime

REFERENCE = Path(__file__).parent / "reference" / "0_1_0"
RECORDED = json.loads((REFERENCE / "answers.json").read_text("ascii"))
TOLERANCE = 2e-5  # absolute: kernels differ between processors, each at most 1e-5 from the answer in float64


def artifacts(engine: str) -> list[str]:
    """Names of the models that have recorded answers of an engine."""
    return [name for name, entry in RECORDED["answers"].items() if engine in entry]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """The folder with the files."""
    folder = tmp_path_factory.mktemp("artifacts_0_1_0")
    with tarfile.open(REFERENCE / "artifacts.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def assert_same_answers(predictor, name: str, engine: str) -> None:
    entry = RECORDED["answers"][name]
    texts, expected = entry["texts"], entry[engine]
    if engine == "saved_model":  # splits text into words itself
        texts = [text for text in texts if isinstance(text, str)]
    if name.startswith("embed"):  # one by one: 0.1.0's Keras predictor fails on more texts than the encoder has layers
        answers = [predictor([text])[0] for text in texts]
    else:
        answers = predictor(texts) if entry["pairs"] is None else predictor(texts, entry["pairs"])
    assert len(answers) == len(texts) == len(expected)
    for index, (answer, wanted) in enumerate(zip(answers, expected, strict=True)):
        if "error" in wanted:  # since 0.3.0 with the keys of an answer, which are empty
            assert not any(value for key, value in answer.items() if key != "error") and len(answer) > 1
            answer = {"error": answer["error"]}
        if predictor.bundle.reads.windows:  # since 0.2.0 an answer says that its question was cut
            features, pieces = predictor.bundle.features, predictor.bundle.features.wordpiece.ids_batch([texts[index]])
            assert answer.pop("truncated", False) == (len(pieces[0]) > features.max_question)
        assert_same(answer, wanted, f"{name}, {engine}, text {index}")


def assert_same(value, expected, path: str) -> None:
    """Floats within TOLERANCE, all else equal, in dicts and lists of any depth."""
    if isinstance(expected, dict):
        assert list(value) == list(expected), path
        for key in expected:
            assert_same(value[key], expected[key], f"{path}, {key}")
    elif isinstance(expected, list):
        assert len(value) == len(expected), path
        for index, pair in enumerate(zip(value, expected, strict=True)):
            assert_same(*pair, f"{path}, {index}")
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, rel=0, abs=TOLERANCE), path
    else:
        assert value == expected and type(value) is type(expected), path


@pytest.mark.parametrize("name", artifacts("keras"))
def test_model_folder(name, root):
    model, bundle = saving.load(root / name)
    if bundle.task == "embed":  # since 0.3 the mean of the top layer; until then the pooled output
        model = heads.embed(model, pooling="pooler")
    assert_same_answers(Predictor(bundle, keras_engine.runner(model)), name, "keras")


@pytest.mark.parametrize("name", artifacts("saved_model"))
def test_saved_model(name, root):
    assert_same_answers(saved_model.load(root / "saved_models" / name), name, "saved_model")


@pytest.mark.parametrize("name", artifacts("tflite"))
def test_tflite_file(name, root):
    assert_same_answers(runtime.load(root / f"{name}.tflite"), name, "tflite")


@pytest.mark.parametrize("name", RECORDED["outputs"])
def test_pretraining_model(name, root):
    model, _ = saving.load(root / name)
    entry = RECORDED["outputs"][name]
    outputs = model({key: np.array(value, np.int32) for key, value in entry["inputs"].items()})
    assert outputs.keys() == entry["outputs"].keys()
    for key, expected in entry["outputs"].items():
        np.testing.assert_allclose(outputs[key], expected, rtol=0, atol=TOLERANCE, err_msg=key)


def test_perplexity(root, tmp_path):
    entry = RECORDED["outputs"]["language_model_elmo"]
    (tmp_path / "text.txt").write_text("\n".join(entry["text"]) + "\n", "utf-8")
    scores = recipes.score(root / "language_model_elmo", tmp_path / "text.txt")
    for key, expected in entry["score"].items():
        assert scores[key] == pytest.approx(expected, rel=TOLERANCE), key


def test_the_files_are_those_of_0_1_0(root):
    """They are not to be made again by later code."""
    folders = {path.name for path in root.iterdir() if path.is_dir()} - {"saved_models"}
    assert folders == {*RECORDED["answers"], *RECORDED["outputs"]}
    bundles = [(root / name / "bundle.json").read_text("utf-8") for name in folders]
    bundles += [path.read_text("utf-8") for path in root.glob("saved_models/*/1/assets.extra/bundle.json")]
    bundles += [zipfile.ZipFile(path).read("bundle.json").decode() for path in root.glob("*.tflite")]
    assert len(bundles) == len(folders) + len(artifacts("saved_model")) + len(artifacts("tflite"))
    for bundle in map(json.loads, bundles):
        assert (bundle["format"], bundle["versions"]["keras_ctxrep"]) == (1, "0.1.0")
