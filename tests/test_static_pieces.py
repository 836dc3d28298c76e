"""Static vectors of word pieces: the same answers from Keras, a SavedModel and .tflite files, for every task."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from keras_ctxrep import saving, tasks
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.models import static
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import StaticFeatures, WordPieceFeatures
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import mediapipe, quantize, runtime
from tests import tiny

pytestmark = [
    pytest.mark.usefixtures("tflite_in_process"),
    pytest.mark.filterwarnings("ignore:.*longer texts are cut"),
    pytest.mark.filterwarnings("ignore:int8 without texts"),
]

VOCAB = tiny.VOCABULARIES["bert"]
CONFIG = static.Config(len(VOCAB), 64, pieces=True)  # wide enough for its rows to be stored in 8 bits
TEXTS = ["The CATS fell.", "rain fell on the cat \U0001f600 中", "a b c d e f g h " * 5, "she", "Thé cats"]
CONTEXTS = ["the cat fell. she fell", "rain", "a b c cats " * 9, "中 中", "The rain fell."]


def bundle_of(task, **fields):
    settings = {"stride": 6} if task == "answer" else {}
    fields |= {"labels": tiny.LABELS.get(task, ())} | tasks.bundle_fields(task, task == "answer", **settings)
    return Bundle("static", config=asdict(CONFIG), max_length=24, vocab=VOCAB, **fields)


def save(folder, bundle):
    """A model folder with random weights, and zeros for the markers."""
    model, rng = saving.build(bundle), np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    table = model.get_layer("word_embedding").get_weights()[0]
    table[:5] = 0
    model.get_layer("word_embedding").set_weights([table])
    saving.save(folder, model, bundle)
    return table


def close(actual, expected, tolerance):
    if isinstance(expected, dict | list):
        keys = expected if isinstance(expected, dict) else range(len(expected))
        assert len(actual) == len(expected)
        for key in keys:
            close(actual[key], expected[key], tolerance)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=tolerance)
    else:
        assert actual == expected


@pytest.mark.parametrize("task", ["embed", "classify", "tag", "answer"])
def test_every_engine_gives_the_same_answers(task, tmp_path):
    save(tmp_path / "m", bundle_of(task))
    pairs = CONTEXTS if task == "answer" else None
    expected = keras_engine.predictor(tmp_path / "m")(TEXTS, pairs)
    version = saved_model.export(*saving.load(tmp_path / "m"), tmp_path / "served")
    quantize.convert(tmp_path / "m", tmp_path / "m.tflite", "none", (8, 24))
    for predictor in (saved_model.load(version), runtime.load(tmp_path / "m.tflite")):
        for answer, wanted in zip(predictor(TEXTS, pairs), expected, strict=True):
            wanted = {name: value for name, value in wanted.items() if name != "n_best"}
            close({name: answer[name] for name in wanted}, wanted, 1e-5)


@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_means_of_rows_without_those_of_the_markers(normalize, tmp_path):
    table = save(tmp_path / "m", bundle_of("embed", normalize=normalize))
    vectors = [answer["vector"] for answer in keras_engine.predictor(tmp_path / "m")(["the cats", "a 中 ab"])]
    ids = [[VOCAB.index(piece) for piece in text.split()] for text in ("the cat ##s", "a 中 [UNK]")]
    for vector, rows in zip(vectors, ids, strict=True):
        mean = table[rows].sum(0) / (len(rows) + 2)  # [CLS] and [SEP] count, and add zero
        np.testing.assert_allclose(vector, mean / (np.linalg.norm(mean) if normalize else 1), atol=1e-6)


@pytest.mark.parametrize(("quantized", "tolerance"), [("float16", 1e-3), ("dynamic", 0.01), ("int8", 0.01)])
def test_small_files_give_nearly_the_same_vectors(quantized, tolerance, tmp_path):
    save(tmp_path / "m", bundle_of("embed", normalize=True))
    expected = keras_engine.predictor(tmp_path / "m")(TEXTS)
    plain = quantize.convert(tmp_path / "m", tmp_path / "plain.tflite", "none", (24,))
    path = quantize.convert(tmp_path / "m", tmp_path / "m.tflite", quantized, (24,))
    assert path.stat().st_size < plain.stat().st_size
    for answer, wanted in zip(runtime.load(path)(TEXTS), expected, strict=True):
        np.testing.assert_allclose(answer["vector"], wanted["vector"], atol=tolerance)


def test_mediapipe_reads_them(tmp_path):
    save(tmp_path / "m", bundle_of("embed", normalize=True))
    path = quantize.convert(tmp_path / "m", tmp_path / "m.tflite", "none", (24,), mediapipe=True)
    expected = keras_engine.predictor(tmp_path / "m")(TEXTS[:2])
    for answer, wanted in zip(runtime.load(path)(TEXTS[:2]), expected, strict=True):
        np.testing.assert_allclose(answer["vector"], wanted["vector"], atol=1e-5)
    words = replace(bundle_of("embed"), config=asdict(static.Config(3, 4)), vocab=("<UNK>", "the", "cat"))
    with pytest.raises(ValueError, match="over word pieces, not static over words for embed"):
        mediapipe.check(words, "m")


def test_segment_ids_change_nothing_and_marks_are_an_input():
    """As with words, marks are for a task network's indicator; only BERT has them in its second segment."""
    roles = bundle_of("semantic_roles")
    assert isinstance(roles.features, WordPieceFeatures) and roles.reads.indicate and not roles.features.indicate
    batch = bundle_of("embed").features(["the cat"])
    model = static.encoder(CONFIG)
    other = batch | {"segment_ids": 1 - batch["segment_ids"]}
    np.testing.assert_array_equal(model(batch)["sequence"], model(other)["sequence"])
    words = replace(bundle_of("embed"), config=asdict(static.Config(3, 4)), vocab=("<UNK>",))
    assert isinstance(words.features, StaticFeatures)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"buckets": 5}, "buckets=5: for words; with pieces leave it out"),
        ({"lowercase": True}, "lowercase=True: for words; .* their case is that of the bundle"),
    ],
)
def test_what_is_for_words_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        static.Config(9, 4, pieces=True, **fields)
