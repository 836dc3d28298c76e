"""Files for MediaPipe: what is in them, and what its TextClassifier and TextEmbedder answer."""

import json
import os
import subprocess
import unicodedata
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.decode import sigmoid, softmax
from keras_ctxrep.text.features import Row
from keras_ctxrep_tflite import mediapipe, quantize, runtime
from tests import tiny

PYTHON = os.environ.get("CTXREP_PYTHON_MEDIAPIPE")
with_mediapipe = pytest.mark.skipif(
    not PYTHON,
    reason="CTXREP_PYTHON_MEDIAPIPE does not name a Python with MediaPipe; make one: python -m venv V && V/bin/pip "
    "install 'mediapipe>=1.2' && export CTXREP_PYTHON_MEDIAPIPE=V/bin/python",
)
TEXTS = ["the cat fell.", "rain fell on the cat", "a b c", "she"]


@pytest.fixture(scope="module")
def folders(tiny_model, tmp_path_factory):
    """Model folders by task."""
    root = tmp_path_factory.mktemp("folders")
    for task in ("classify", "multilabel", "embed"):
        model, bundle = tiny_model(task)
        saving.save(root / task, model, bundle)
    return root


@pytest.mark.parametrize("task", ["classify", "multilabel", "embed"])
def test_the_runtime_answers_as_before(task, folders, tflite_in_process, tmp_path):
    plain = quantize.convert(folders / task, tmp_path / "plain.tflite", "none", (40,))
    path = quantize.convert(folders / task, tmp_path / "m.tflite", "none", (40,), mediapipe=True)
    for expected, answer in zip(runtime.load(plain)(TEXTS), runtime.load(path)(TEXTS), strict=True):
        if task == "embed":
            np.testing.assert_allclose(answer["vector"], expected["vector"], atol=1e-5)
        else:
            assert answer.get("label") == expected.get("label") and answer.get("labels") == expected.get("labels")
            probabilities = ([*each["probabilities"].values()] for each in (expected, answer))
            np.testing.assert_allclose(*probabilities, atol=1e-5)


def test_metadata(folders, tflite_in_process, tmp_path):
    path = quantize.convert(folders / "classify", tmp_path / "m.tflite", "none", (40,), mediapipe=True)
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    (graph,) = model.subgraphs
    assert [graph.tensors[index].shape.tolist() for index in graph.inputs] == [[1, 40]] * 3
    assert [graph.tensors[index].shape.tolist() for index in graph.outputs] == [[1, 2]]
    (entry,) = (entry for entry in model.metadata if entry.name == b"TFLITE_METADATA")
    data = bytes(model.buffers[entry.buffer].data)
    assert data[4:8] == b"M001" and all(name in data for name in (b"vocab.txt", b"labels.txt", b"segment_ids"))
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == ["bundle.json", "labels.txt", "vocab.txt"]
        assert archive.read("labels.txt") == b"no\nyes\n"
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())


def test_the_default_length_is_that_of_the_model(folders, tflite_in_process, tmp_path):
    path = quantize.convert(folders / "embed", tmp_path / "m.tflite", mediapipe=True)
    (graph,) = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0).subgraphs
    assert graph.tensors[graph.inputs[0]].shape.tolist() == [1, 40]
    assert [graph.tensors[index].shape.tolist() for index in graph.outputs] == [[1, 8]]


def test_a_pretraining_model_is_its_encoder(tiny_model, tflite_in_process, tmp_path):
    bundle = replace(tiny_model("embed")[1], task="pretrainer")
    saving.save(tmp_path / "pretrained", saving.build(bundle), bundle)
    path = quantize.convert(tmp_path / "pretrained", tmp_path / "m.tflite", "none", (40,), mediapipe=True)
    assert bundles.load(path).task == "embed" and len(runtime.load(path)(["the cat"])[0]["vector"]) == 8


def test_one_length(folders, tflite_in_process, tmp_path):
    with pytest.raises(ValueError, match=r"lengths=\[16, 40\]: MediaPipe reads files of one length"):
        quantize.convert(folders / "embed", tmp_path / "m.tflite", "none", (16, 40), mediapipe=True)
    path = quantize.convert(folders / "embed", tmp_path / "m.tflite", "none", (16, 40))
    with pytest.raises(ValueError, match=r"m\.tflite: not for MediaPipe: it reads files of one length, not of 2"):
        mediapipe.describe(path)


@pytest.mark.parametrize(
    ("task", "fields", "message"),
    [
        ("tag", {}, "its text tasks are a classifier and an embedder over word pieces, not bert for tag"),
        ("classify", {"pair": True}, "read single texts, and this model pairs"),
        ("classify", {"lowercase": False}, "lower-cases text, and this model is cased"),
        ("classify", {"labels": ("a", "b\nc")}, "one of them is empty or has a line break"),
    ],
)
def test_models_that_mediapipe_cannot_run(task, fields, message, tiny_model, tmp_path):
    model, bundle = tiny_model(task, **fields)
    saving.save(tmp_path / "m", model, bundle)
    with pytest.raises(ValueError, match=rf"m: not for MediaPipe: .*{message}"):
        quantize.convert(tmp_path / "m", tmp_path / "m.tflite", mediapipe=True)


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_logits_of_probabilities(task):
    scores = {"classify": softmax, "multilabel": sigmoid}[task]
    values = np.array([[-30.0, 2.0, 1.0], [0.0, 0.0, 3.0]])
    back = mediapipe.logits(scores(values).astype(np.float32), tasks.get(task))
    np.testing.assert_allclose(scores(back), scores(values), atol=1e-6)
    assert np.isfinite(mediapipe.logits(np.array([0.0, 1.0], np.float32), tasks.get(task))).all()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, tflite_in_process):
    """A Keras encoder with mean pooling and vectors of length 1, and a float32 file of it for MediaPipe."""
    root = tmp_path_factory.mktemp("encoder")
    saving.save(root / "m", *tiny.model("embed", pooling="mean", normalize=True))
    return ctx.load(root / "m"), quantize.convert(root / "m", root / "m.tflite", "none", (16,), mediapipe=True)


def test_the_only_output_is_pooled_and_scaled(encoder):
    """What MediaPipe reads: the cosines of Keras, and vectors of length 1."""
    model, path = encoder
    vectors = ctx.load(path).encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors, model.encode(TEXTS), atol=1e-5)


# ------------------------------------------------------------------------------------------- MediaPipe as the client

CLIENT = """
import json, sys
from mediapipe.tasks.python import text
from mediapipe.tasks.python.core.base_options import BaseOptions
task, path, texts = sys.argv[1], sys.argv[2], json.load(sys.stdin)
base = BaseOptions(model_asset_path=path)
if task == "classify":
    with text.TextClassifier.create_from_options(text.TextClassifierOptions(base_options=base)) as client:
        results = [client.classify(each).classifications for each in texts]
    answers = [{category.category_name: category.score for category in head[0].categories} for head in results]
else:
    with text.TextEmbedder.create_from_options(text.TextEmbedderOptions(base_options=base)) as client:
        answers = [client.embed(each).embeddings[0].embedding.tolist() for each in texts]
json.dump(answers, sys.stdout)
"""


def of_mediapipe(task: str, path: Path, texts: list[str]) -> list:
    process = subprocess.run(
        [str(PYTHON), "-c", CLIENT, task, str(path)], input=json.dumps(texts), capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout)


def pieces(text: str, ids: dict[str, int]) -> list[int]:
    """MediaPipe's tokenizer: ASCII alone is lower-cased, no accent and no control character is removed.

    Text is split at ASCII white space, punctuation and CJK characters; a word of over 100 bytes is unknown.
    """
    words = [""]
    for letter in "".join(letter.lower() if letter < "\x80" else letter for letter in text):
        symbol = letter < "\x7f" and letter in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
        if letter in "\t\n\f\r ":
            words.append("")
        elif symbol or unicodedata.category(letter).startswith("P") or is_cjk(ord(letter)):
            words += [letter, ""]
        else:
            words[-1] += letter
    return [piece for word in words if word for piece in word_pieces(word, ids)]


def is_cjk(point: int) -> bool:
    ranges = "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF F900-FAFF 2F800-2FA1F"
    return any(int(begin, 16) <= point <= int(end, 16) for begin, end in (part.split("-") for part in ranges.split()))


def word_pieces(word: str, ids: dict[str, int]) -> list[int]:
    result, begin = [], 0
    while begin < len(word):
        prefix = "##" if begin else ""
        end = next((end for end in range(len(word), begin, -1) if prefix + word[begin:end] in ids), 0)
        if not end or len(word.encode()) > 100:
            return [ids["[UNK]"]]
        result.append(ids[prefix + word[begin:end]])
        begin = end
    return result


@with_mediapipe
def test_text_embedder_gives_the_cosines_of_keras(encoder):
    model, path = encoder
    vectors = np.array(of_mediapipe("embed", path, TEXTS))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-5)


@pytest.fixture(scope="module")
def sentences():
    """500 messages of WNUT-2017, with user names, emoji, hashtags and some other languages' letters."""
    data = Path(recipes.__file__).parents[1] / "demo" / "data" / "wnut17" / "dev.conll.xz"
    return [" ".join(example.words) for example in tasks.get("tag").read(data)][:500]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The shipped BERT as an encoder and, with a random head, as a classifier of three classes, each as int8."""
    root = tmp_path_factory.mktemp("shipped")
    (folder,) = (Path(recipes.__file__).parents[1] / "zoo" / "weights" / "bert_3_384_12").iterdir()
    encoder, bundle = saving.load_encoder(folder)
    saving.save(root / "embed", encoder, saving.encoder_bundle(encoder, bundle))
    fields = tasks.bundle_fields("classify") | {"labels": ("x", "y", "z")}
    bundle = replace(bundle, max_length=64, **fields)
    model = saving.finish(encoder, bundle)
    head = model.get_layer("logits")
    head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    saving.save(root / "classify", model, bundle)
    for task in ("embed", "classify"):
        quantize.convert(root / task, root / f"{task}.tflite", "dynamic", (64,), mediapipe=True)
    return root


@pytest.mark.filterwarnings("ignore:.*longer texts are cut")
@pytest.mark.slow  # two conversions of a BERT
@with_mediapipe
def test_text_classifier_gives_our_labels(shipped, sentences):
    """On 500 sentences; where one differs, MediaPipe's tokenizer cut the text into other pieces."""
    predictor = runtime.load(shipped / "classify.tflite")
    ids = {piece: number for number, piece in enumerate(predictor.bundle.vocab)}
    actual = of_mediapipe("classify", shipped / "classify.tflite", sentences)
    own = [row.tokens for row in predictor.bundle.features.encode(sentences)]
    theirs = [[ids["[CLS]"], *pieces(text, ids)[:62], ids["[SEP]"]] for text in sentences]
    same = [a == b for a, b in zip(own, theirs, strict=True)]
    assert 450 < sum(same) < 500
    # on its own pieces, every answer is the same
    batch = predictor.bundle.features.collate([Row(row, first=len(row)) for row in theirs])
    logits = predictor.runner.run(batch)["logits"]
    scores = predictor.task.scores(np.array(logits))
    np.testing.assert_allclose([[answer[label] for label in "xyz"] for answer in actual], scores, atol=0.02)
    # and on text the label is that of the predictor, unless the pieces differ
    labels = [max(answer, key=answer.__getitem__) for answer in actual]
    expected = [answer["label"] for answer in predictor(sentences)]
    margins = np.sort(scores)[:, -1] - np.sort(scores)[:, -2]
    different = [i for i in range(500) if labels[i] != expected[i]]
    assert all(not same[i] or margins[i] < 0.02 for i in different)
    assert len(different) <= 500 - sum(same)


@pytest.mark.filterwarnings("ignore:.*longer texts are cut")
@pytest.mark.slow  # two conversions of a BERT
@with_mediapipe
def test_text_embedder_gives_our_cosines(shipped, sentences):
    predictor = runtime.load(shipped / "embed.tflite")
    ids = {piece: number for number, piece in enumerate(predictor.bundle.vocab)}
    rows = predictor.bundle.features.encode(sentences)
    chosen = [text for text, row in zip(sentences, rows, strict=True) if row.tokens[1:-1] == pieces(text, ids)][:100]
    vectors = [of_mediapipe("embed", shipped / "embed.tflite", chosen)]
    vectors.append([answer["vector"] for answer in predictor(chosen)])
    unit = [np.array(each) / np.linalg.norm(each, axis=1, keepdims=True) for each in vectors]
    cosines = [each @ each.T for each in unit]
    assert np.abs(cosines[0] - cosines[1]).max() < 0.01
