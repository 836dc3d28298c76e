"""Every signature of an export, for every task, against the Keras `Predictor`, and with whatever a client may send."""

import json
import lzma
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep_export import saved_model
from keras_ctxrep_export.signatures import Signatures
from tests import tiny

pytestmark = pytest.mark.trains

REFERENCE = Path(__file__).parents[1] / "reference"
VOCAB = (*SPECIAL_PIECES, *"abcdefgh", "##a", "##b", "the", "cat", "##s", ".", "中", "'")
SIZES = {
    "bert": {"layers": 2, "max_positions": 100},
    "elmo": {"layers": 2, "cells": 12, "projection": 6, "max_characters": 9},
    "static": {"lowercase": True},
}
LABELS = ("O", "B-PER", "I-PER", "B-LOC")


def fresh(task: str, family: str = "bert", max_length: int = 12, **kwargs) -> tuple[keras.Model, Bundle]:
    """A tiny model with random weights, and its bundle."""
    labels = {"coreference": ("A", "B", "neither"), "regress": (), "embed": (), "answer": ()}.get(task, LABELS)
    fields = {"max_length": max_length, "labels": labels, "sizes": SIZES[family]} | kwargs
    fields |= {"vocab": VOCAB} if family == "bert" else {}
    bundle = tiny.bundle(task, family, pair=fields.pop("pairs", False), **fields)
    model, draw = saving.build(bundle), np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(draw.normal(0, 0.7, weight.shape))
    return model, bundle


TASKS = {
    "classify": {"task": "classify"},
    "classify pairs": {"task": "classify", "pairs": True},
    "classify elmo": {"task": "classify", "family": "elmo", "head": {"mix": True}},
    "multilabel": {"task": "multilabel", "family": "static"},
    "regress": {"task": "regress"},
    "tag": {"task": "tag"},
    "tag with a CRF": {"task": "tag", "head": {"crf": True}},
    "tag elmo": {"task": "tag", "family": "elmo", "head": {"mix": True}},
    "tag static": {"task": "tag", "family": "static"},
    "semantic_roles": {"task": "semantic_roles"},
    "semantic_roles elmo": {"task": "semantic_roles", "family": "elmo", "stack": {"kind": "lstm", "units": 4}},
    "coreference": {"task": "coreference"},
    "answer": {"task": "answer", "max_length": 72, "settings": {"stride": 300, "max_answer": 4}},
    "embed": {"task": "embed"},
    "embed elmo": {"task": "embed", "family": "elmo"},
    "classify in windows": {"task": "classify", "settings": {"windows": "mean", "stride": 4}},
    "multilabel elmo in windows": {
        "task": "multilabel", "family": "elmo", "settings": {"windows": "max", "stride": 4}, "head": {"mix": True}
    },
}  # fmt: skip


QUICK = ("classify pairs", "multilabel elmo in windows", "tag with a CRF", "semantic_roles elmo", "answer")
CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TASKS]


@cache
def signatures(name: str) -> tuple[keras.Model, Bundle, dict]:
    """A model, its bundle and the functions that are exported."""
    model, bundle = fresh(**TASKS[name])
    return model, bundle, Signatures(model, bundle).functions


def keras_predictor(model: keras.Model, bundle: Bundle) -> Predictor:
    return Predictor(bundle, keras_engine.runner(model))


TEXTS = ["The CATS. a\u200bb 中", "cats 中 the abab " * 9, "the", "Thé\tcats cb", "👩‍👩‍👧 the שלום cats \u0301."]
SPLIT = [
    ["The", "CATS", ".", "a\u200bb"],
    ["the"],
    ["cats", "\u200b", "don't", "a b", "中a", "İa"],
    ["<S>", "x" * 120, "</S>", "ab", "É"] + ["abab"] * 12,
]


def call(functions: dict, name: str, **columns) -> dict[str, np.ndarray]:
    """A signature's outputs."""
    outputs = functions[name](*(tf.constant(column, dtype) for column, dtype in columns.values()))
    return {key: value.numpy() for key, value in outputs.items()}


def strings(texts) -> tuple:
    return texts, tf.string


# ----------------------------------------------------------------------------------------------------- classic APIs


def example(**features) -> bytes:
    def feature(value):
        if isinstance(value, str):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(value)))

    features = {name: feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.mark.parametrize("name", ["classify", "classify pairs", "multilabel", "classify in windows"])
def test_classify_takes_examples(name):
    model, bundle, functions = signatures(name)
    pairs = TEXTS[::-1] if bundle.pairs else None
    rows = [{"text": text} for text in TEXTS] if pairs is None else [
        {"text": text, "pair": pair} for text, pair in zip(TEXTS, pairs, strict=True)
    ]  # fmt: skip
    outputs = call(functions, "classify", inputs=strings([example(**row) for row in rows]))
    assert outputs.keys() == {"classes", "scores"}
    assert outputs["classes"].tolist() == [[label.encode() for label in LABELS]] * len(TEXTS)
    expected = keras_predictor(model, bundle).probabilities(TEXTS, pairs)
    assert outputs["scores"].dtype == np.float32
    np.testing.assert_allclose(outputs["scores"], expected, atol=1e-5)
    nothing = call(functions, "classify", inputs=strings([]))
    assert nothing["classes"].shape == nothing["scores"].shape == (0, len(LABELS))


def test_classify_with_marked_spans():
    model, bundle, functions = signatures("coreference")
    marks = [[(0, 3), (4, 8), (4, 9)]]
    outputs = call(functions, "classify", inputs=strings([example(text="the cats.", marks=marks)]))
    (answer,) = keras_predictor(model, bundle)(["the cats."], marks=marks)
    np.testing.assert_allclose(outputs["scores"][0], [*answer["probabilities"].values()], atol=1e-5)


def test_regress_takes_examples():
    model, bundle, functions = signatures("regress")
    outputs = call(functions, "regress", inputs=strings([example(text=text) for text in TEXTS]))
    assert outputs.keys() == {"outputs"} and outputs["outputs"].shape == (len(TEXTS),)
    expected = [answer["value"] for answer in keras_predictor(model, bundle)(TEXTS)]
    np.testing.assert_allclose(outputs["outputs"], expected, atol=1e-5)


def feature_of(name: str, values: list) -> bytes:
    """A tf.Example of one feature with these strings or floats."""
    filled = tf.train.Example()
    kind = "bytes_list" if isinstance(values[0], str) else "float_list"
    texts = [value.encode() if isinstance(value, str) else value for value in values]
    getattr(filled.features.feature[name], kind).value.extend(texts)
    return filled.SerializeToString()


MALFORMED = {
    "not a tf.Example": b"the cats.",
    "cut off": example(text="the cats.")[:-1],
    "nothing": b"",
    "another feature": example(sentence="a"),
    "numbers": example(text=[1]),
    "floats": feature_of("text", [1.0]),
    "two texts": feature_of("text", ["a", "b"]),
    "no value": tf.train.Example(
        features=tf.train.Features(feature={"text": tf.train.Feature(bytes_list=tf.train.BytesList())})
    ).SerializeToString(),
}


@pytest.mark.parametrize("row", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_example(row):
    """The signature's own error, and no operator's, wherever the row is."""
    for name, signature in (("classify", "classify"), ("regress", "regress")):
        for rows in ([row], [row, example(text="a")], [example(text="a"), row]):
            with pytest.raises(tf.errors.InvalidArgumentError) as raised:
                call(signatures(name)[2], signature, inputs=strings(rows))
            message = "each row of inputs must be a serialized tf.Example with the features text (1 string)"
            assert message in str(raised.value) and "{{node assert_equal" in str(raised.value)


@pytest.mark.parametrize("marks", [[(0, 3)], [(0, 3), (4, 8), (4, 9), (0, 1)]])
def test_an_example_with_other_marked_spans(marks):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"the features text \(1 string\) and marks \(6 int64\)"):
        call(signatures("coreference")[2], "classify", inputs=strings([example(text="the cats.", marks=marks)]))


def test_examples_of_any_text():
    """Not UTF-8, empty, a megabyte: answers, as of the raw-string signature."""
    texts = [b"\xff\xfe", b"", b"a" * 1_000_000, b"the \xe4\xb8 cats"]
    rows = []
    for text in texts:
        filled = tf.train.Example()
        filled.features.feature["text"].bytes_list.value.append(text)
        rows.append(filled.SerializeToString())
    functions = signatures("classify")[2]
    expected = call(functions, "serving_default", text=strings(texts))["probabilities"]
    np.testing.assert_array_equal(call(functions, "classify", inputs=strings(rows))["scores"], expected)


def test_only_signatures_that_a_task_can_have():
    text = {"serving_default", "ids", "embed"}
    for name in TASKS:
        task = TASKS[name]["task"]
        more = {
            "classify": {"classify"}, "coreference": {"classify"}, "multilabel": {"classify"}, "regress": {"regress"},
            "tag": {"words"}, "semantic_roles": {"words"},
        }  # fmt: skip
        assert signatures(name)[2].keys() == text | more.get(task, set()), name


# ------------------------------------------------------------------------------------------------------------ words


def padded(sentences: list[list[str]]) -> np.ndarray:
    longest = max(map(len, sentences))
    return np.array([[*words, *[""] * (longest - len(words))] for words in sentences], object)


@pytest.mark.parametrize("name", [name for name, entry in TASKS.items() if entry["task"] == "tag"])
def test_words_as_the_predictor_reads_them(name):
    model, bundle, functions = signatures(name)
    outputs = call(functions, "words", words=strings(padded(SPLIT)))
    expected = keras_predictor(model, bundle)(SPLIT)
    assert outputs["labels"].shape == outputs["scores"].shape == padded(SPLIT).shape
    for row, (words, answer) in enumerate(zip(SPLIT, expected, strict=True)):
        labels = [word["label"] or "" for word in answer["words"]]
        assert [label.decode() for label in outputs["labels"][row]] == labels + [""] * (18 - 1 - len(labels)), words
        scores = [word["score"] for word in answer["words"]]
        np.testing.assert_allclose(outputs["scores"][row, : len(scores)], scores, atol=1e-5)
    assert "" in [word["label"] or "" for word in expected[3]["words"]]  # cut off


@pytest.mark.parametrize("name", ["semantic_roles", "semantic_roles elmo"])
def test_words_with_marks(name):
    model, bundle, functions = signatures(name)
    marks = [[(1, 3)], [(0, 1)], [(2, 3)], [(16, 17)]]
    outputs = call(functions, "words", words=strings(padded(SPLIT)), marks=(marks, tf.int32))
    expected = keras_predictor(model, bundle)(SPLIT, marks=marks)
    other = call(functions, "words", words=strings(padded(SPLIT)), marks=(np.zeros_like(marks), tf.int32))
    for row, answer in enumerate(expected):
        scores = [word["score"] for word in answer["words"]]
        assert [word["label"] or "" for word in answer["words"]] == [
            label.decode() for label in outputs["labels"][row, : len(scores)]
        ]
        np.testing.assert_allclose(outputs["scores"][row, : len(scores)], scores, atol=1e-5)
    assert np.abs(other["logits"][0] - outputs["logits"][0]).max() > 1e-3


@pytest.mark.parametrize("name", ["tag with a CRF", "tag elmo"])
def test_an_empty_string_is_no_word(name):
    *_, functions = signatures(name)
    outputs = call(functions, "words", words=strings([["the", "cats", "", "a"], ["", "the", "cats", "a"]]))
    without = call(functions, "words", words=strings([["the", "cats", "a"]] * 2))
    for row, columns in enumerate(([0, 1, 3], [1, 2, 3])):
        assert outputs["labels"][row, columns].tolist() == without["labels"][row].tolist()
        np.testing.assert_allclose(outputs["logits"][row, columns], without["logits"][row], atol=1e-5)
    assert outputs["labels"][0, 2] == outputs["labels"][1, 0] == b""


# ------------------------------------------------------------------------------------------------------------ embed


@pytest.mark.parametrize("name", ["embed", "embed elmo", "classify elmo", "tag", "semantic_roles elmo"])
def test_embed_as_ctxrep_embed(name, tmp_path):
    model, bundle, functions = signatures(name)
    texts = ["The CATS. a", "cats 中 the", "", "the"]
    outputs = call(functions, "embed", text=strings(texts))
    saving.save(tmp_path, model, bundle)
    for layers, name in (("mean", "mean"), ("all", "layers")):
        recipes.embed(tmp_path, texts, tmp_path / "vectors.npz", layers=layers)
        vectors = tiny.arrays_of(tmp_path / "vectors.npz")
        for row in range(len(texts)):
            value, expected = outputs[name][row], vectors[str(row)]
            if layers == "all":  # without [CLS] and [SEP]
                count = expected.shape[1]
                first = int(outputs["mask"][row].sum() - count) // 2
                value = value[:, first : first + count]
            np.testing.assert_allclose(value, expected, atol=1e-5)
    encoder, embed = saving.load_encoder(tmp_path)
    texts = ["The CATS. a", "cats 中 the", "the"]
    vectors = [answer["vector"] for answer in keras_predictor(encoder, embed)(texts)]
    np.testing.assert_allclose(outputs["vector"][[0, 1, 3]], vectors, atol=1e-5)


def test_embed_shares_the_weights():
    model, bundle, _ = signatures("tag")
    exported = Signatures(model, bundle)
    saved = {id(variable) for variable in exported.weights}
    captured = exported.functions["embed"].get_concrete_function().graph.variables
    assert captured and {id(variable) for variable in captured} <= saved


# --------------------------------------------------------------------------------------------------------- anything


def columns(bundle: Bundle, texts: list) -> dict:
    """Inputs of the raw-string signature; the same text in each."""
    given = {name: strings(texts) for name in tasks.get(bundle.task).inputs(bundle)}
    if "marks" in given:
        given["marks"] = (
            np.array([[(0, 3)] * bundle.reads.marks] * len(texts)).reshape(-1, bundle.reads.marks, 2),
            tf.int32,
        )
    return given


def assert_rows_equal(outputs: dict, expected: dict, row: int, name: str) -> None:
    """Row `row` of a batch is the only row of another, but for the padding."""
    for key, value in expected.items():
        one, other = outputs[key][row : row + 1], value
        cut = tuple(slice(0, min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
        if one.dtype == object:
            assert one[cut].tolist() == other[cut].tolist(), (name, key)
            assert all(text == b"" for text in one[:, other.shape[1] :].ravel()) if one.ndim > 1 else True
        else:
            # a float32 of some hundreds has no more digits
            np.testing.assert_allclose(one[cut], other[cut], rtol=1e-6, atol=1e-5, err_msg=f"{name}, {key}")


MANY = [*TEXTS, "", " ", "the the cats", "\ufffd", "a" * 300]


@pytest.mark.parametrize("name", CASES)
def test_rows_do_not_depend_on_each_other(name):
    """As a server joins requests, cuts batches, and pads them with copies of the first row."""
    _, bundle, functions = signatures(name)
    for signature in ("serving_default", "embed"):
        given = columns(bundle, MANY) if signature == "serving_default" else {"text": strings(MANY)}

        def take(rows, given=given):
            return {key: (np.array(value)[rows], kind) for key, (value, kind) in given.items()}

        everything = call(functions, signature, **take([*range(len(MANY))]))
        padded = call(functions, signature, **take([3, 0, 2, 3, 3, 3, 3, 3]))
        for row in range(len(MANY)):
            alone = call(functions, signature, **take([row]))
            assert_rows_equal(everything, alone, row, name)
            if row in (0, 2, 3):
                assert_rows_equal(padded, alone, [3, 0, 2].index(row), name)


EMPTY = ["", " \t", "\x00\u200b", "\ufffd"]


@pytest.mark.parametrize("name", CASES)
def test_a_text_without_words_has_an_error_and_no_prediction(name):
    """In every signature of strings; texts beside it are answered as they are alone, and as Keras answers them."""
    model, bundle, functions = signatures(name)
    texts = ["the cats.", *EMPTY, "a"]
    own, own_texts, message = [0, len(texts) - 1], (texts[0], texts[-1]), "no words in this text"
    for signature in functions.keys() & {"serving_default", "embed", "words"}:
        given = columns(bundle, texts) if signature != "embed" else {"text": strings(texts)}
        if signature == "words":  # "" is no word; to an ELMo everything else is one
            words = [["" if text in EMPTY else text] for text in texts]
            given = {"words": strings(words)} | {key: value for key, value in given.items() if key == "marks"}
        outputs = call(functions, signature, **given)
        assert outputs.pop("error").tolist() == [b"", *[message.encode()] * len(EMPTY), b""], signature
        described = {"layers", "mask"} if signature == "embed" else set()
        for key in outputs.keys() - described:
            assert not outputs[key][1:-1].any(), (signature, key)
            assert outputs[key].dtype == object or np.isfinite(outputs[key]).all()
        alone = call(functions, signature, **{key: (value[own], kind) for key, (value, kind) in arrays(given).items()})
        for row in range(2):
            one = {key: value[row : row + 1] for key, value in alone.items() if key not in ("error", *described)}
            assert_rows_equal(outputs, one, own[row], name)
    marks = [[(0, 1) if text in own_texts else (0, 0)] * bundle.reads.marks for text in texts]
    first, *empty, _ = keras_predictor(model, bundle)(
        texts, texts if bundle.pairs else None, marks if bundle.reads.marks else None
    )
    assert {each["error"] for each in empty} == {message} and "error" not in first
    for answer in empty:
        assert answer.keys() - {"error"} == first.keys()
        assert not any(value for key, value in answer.items() if key != "error")


def arrays(given: dict) -> dict:
    return {key: (np.array(value), kind) for key, (value, kind) in given.items()}


@pytest.mark.parametrize("name", ["classify pairs", "answer"])
def test_a_pair_has_words_if_one_of_its_texts_has(name):
    model, bundle, functions = signatures(name)
    pairs = [("the cats", "a"), ("the", ""), ("\u200b", "the"), ("", "\u200b")]
    first, second = zip(*pairs, strict=True)
    names = tasks.get(bundle.task).inputs(bundle)
    outputs = call(functions, "serving_default", **dict(zip(names, map(strings, (first, second)), strict=True)))
    assert [bool(error) for error in outputs["error"]] == [False, False, False, True]
    answers = keras_predictor(model, bundle)(first, second)
    assert ["error" in answer for answer in answers] == [False, False, False, True]
    if bundle.task == "answer":  # of an empty context there is no span, and so no answer
        assert answers[1]["answer"] == "" and outputs["answer"][1] == b""
    for row in range(3):
        key = "score" if bundle.task == "answer" else "label"
        assert (
            outputs[key][row] == pytest.approx(answers[row][key], abs=1e-5)
            if key == "score"
            else (outputs[key][row].decode() == answers[row][key])
        )


@pytest.mark.parametrize("name", ["classify", "multilabel elmo in windows", "regress"])
def test_an_example_without_words(name):
    """Classify has no label for it and Regress 0: these interfaces of TF Serving have no room for more."""
    *_, functions = signatures(name)
    api = "regress" if "regress" in functions else "classify"
    outputs = call(functions, api, inputs=strings([example(text=text) for text in ("", "the cats")]))
    if api == "regress":
        assert outputs["outputs"][0] == 0 != outputs["outputs"][1] and outputs.keys() == {"outputs"}
    else:
        assert outputs["classes"].tolist() == [[b""] * len(LABELS), [label.encode() for label in LABELS]]
        assert not outputs["scores"][0].any() and outputs["scores"][1].all() and outputs.keys() == {"classes", "scores"}


ODD = [b"", b" ", b"\xff\xfe", b"the \xe4\xb8 cats", b"\0\0", b"\xed\xa0\x80", b"a" * 500]
LARGE = [b"the cats. " * 100_000, b"a" * 1_000_000, "é\u0301".encode() * 300_000, b"\xff\xfe" * 500_000]


@pytest.mark.parametrize("name", CASES)
def test_any_bytes_any_length_and_no_row(name):
    _, bundle, functions = signatures(name)
    for signature in functions.keys() & {"serving_default", "words", "embed"}:
        for texts in (ODD, [], *([text] for text in LARGE if name in QUICK)):
            if signature == "words":
                given = {"words": (np.array(texts, object).reshape(len(texts), 1), tf.string)}
                given |= {key: value for key, value in columns(bundle, texts).items() if key == "marks"}
            else:
                given = columns(bundle, texts) if signature == "serving_default" else {"text": strings(texts)}
            for key, value in call(functions, signature, **given).items():
                assert len(value) == len(texts), (signature, key)
                if value.dtype == np.float32:
                    assert np.isfinite(value).all(), (signature, key)
                elif value.dtype == object:
                    [text.decode("utf-8") for text in value.ravel()]
    ids = {key: tf.zeros([0, 3, *tensor.shape[2:]], tf.int32) for key, tensor in fresh_inputs(name).items()}
    if "marks" in ids:
        ids["marks"] = tf.zeros([0, bundle.reads.marks, 2], tf.int32)
    assert {value.shape[0] for value in functions["ids"](ids).values()} == {0}


def fresh_inputs(name: str) -> dict:
    return signatures(name)[0].input


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    model, bundle, _ = signatures("classify pairs")
    return tf.saved_model.load(saved_model.export(model, bundle, tmp_path_factory.mktemp("served")))


WRONG = {
    "dtype": ("expected to be a string tensor but is a int32", {"text": [1], "pair": ["a"]}),
    "rank": (r"tensor text \[1,1\] is not compatible with expected shape \[\?\]", {"text": [["a"]], "pair": ["a"]}),
    "a scalar": (r"tensor pair \[\] is not compatible with expected shape \[\?\]", {"text": ["a"], "pair": "b"}),
    "a name": ("pair", {"text": ["a"], "other": ["a"]}),
    "missing": ("pair", {"text": ["a"]}),
    "rows": ("text and pair must have the same number of rows", {"text": ["a", "b"], "pair": ["a"]}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_inputs_are_the_signatures_error(loaded, wrong):
    """Nothing but TensorFlow looks at the shapes of what a client sends: not the server, not a loaded signature."""
    message, given = WRONG[wrong]
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError), match=message):
        loaded.signatures["serving_default"](**{name: tf.constant(value) for name, value in given.items()})


# ---------------------------------------------------------------------------------------------------------- windows


LONG = ["the cats. " * 30, "a b c d e f g h " * 2 + "the cat", "the", "cab " * 4 + "."]


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("name", ["classify", "multilabel", "regress"])
def test_windows_against_numpy(name, how):
    """Every window by itself through the model, its scores pooled by hand."""
    task, family = TASKS[name]["task"], TASKS[name].get("family", "bert")
    model, bundle = fresh(task, family, max_length=8)
    windowed = tasks.windowed(bundle, how)
    assert windowed.settings["stride"] == 4
    scores = []
    for text in LONG:
        if family == "bert":
            pieces = bundle.features.wordpiece
            (ids,) = pieces.ids_batch([text])
            room, width, edges = 6, 4, ([pieces.cls], [pieces.sep])
        else:
            lines = {word: line for line, word in enumerate(bundle.vocab, 1)}
            ids = [lines.get(word, 1) for word in text.replace(".", " .").split()]
            room, width, edges = 8, 4, ([], [])
        begins = [0]
        while begins[-1] + room < len(ids):
            begins.append(begins[-1] + width)
        rows = []
        for begin in begins:
            row = np.array([[*edges[0], *ids[begin : begin + room], *edges[1]]], np.int32)
            batch = {key: row if key.endswith("_ids") else np.ones_like(row) for key in model.input}
            batch |= {"segment_ids": np.zeros_like(row)} if "segment_ids" in model.input else {}
            rows.append(model(batch)["logits"].numpy()[0].astype(np.float64))
        logits = np.array(rows)
        each = {
            "classify": np.exp(logits) / np.exp(logits).sum(-1, keepdims=True),
            "multilabel": 1 / (1 + np.exp(-logits)),
            "regress": logits,
        }[task]
        pooled = each.mean(0) if how == "mean" else each.max(0)
        scores.append(pooled / pooled.sum() if task == "classify" else pooled)
    outputs = call(Signatures(model, windowed).functions, "serving_default", text=strings(LONG))
    key = "value" if task == "regress" else "probabilities"
    np.testing.assert_allclose(outputs[key].reshape(len(LONG), -1), scores, atol=1e-5)
    answers, cut = keras_predictor(model, windowed)(LONG), keras_predictor(model, bundle)(LONG)
    values, first = (
        [[answer["value"]] if task == "regress" else [*answer["probabilities"].values()] for answer in each]
        for each in (answers, cut)
    )
    np.testing.assert_allclose(values, scores, atol=1e-5)
    assert not any("truncated" in answer for answer in answers) and "logits" not in outputs
    assert cut[0]["truncated"] and "truncated" not in cut[2]
    changed = np.abs(np.subtract(first, scores)).max(axis=1) > 1e-3  # by the windows after the first
    assert changed[[0, 1, 3]].any() and not changed[2]


@pytest.mark.parametrize("name", ["classify pairs", "coreference", "tag", "answer", "embed"])
def test_windows_that_a_model_does_not_have(name, tmp_path):
    model, bundle, _ = signatures(name)
    with pytest.raises(ValueError, match=r"^windows='mean': .*leave it out"):
        saved_model.export(model, bundle, tmp_path / "m", windows="mean")
    assert not (tmp_path / "m").exists()


def test_windows_are_pooled_in_one_of_two_ways():
    _, bundle = fresh("classify")
    with pytest.raises(ValueError, match="windows='median': choose mean or max"):
        tasks.get("classify").windowed(bundle, "median")


# ---------------------------------------------------------------------------------------------------------- servers


def operators() -> dict[str, set[str]]:
    """The attributes of each operator of the oldest server."""
    with lzma.open(REFERENCE / "operators_2_20.txt.xz", "rt") as file:
        return {line.split()[0]: {*line.split()[1:]} for line in file}


@pytest.mark.parametrize("name", CASES)
def test_operators_of_the_oldest_server(name, graph_nodes):
    """An operator or an attribute that a server does not know, and the version fails to load."""
    known, used = operators(), set()
    for function in signatures(name)[2].values():
        for node in graph_nodes(function.get_concrete_function()):
            assert node.op in known, node.op
            unknown = {attr for attr in node.attr if not attr.startswith("_")} - known[node.op]
            assert not unknown, (node.op, unknown)
            used.add(node.op)
    assert len(used) > 20 and not any("PyFunc" in op for op in used)


REPLAY = """
import base64, importlib.util, json, pathlib, sys
import numpy as np
import tensorflow as tf
import tensorflow_text

outputs = {}
for version in sorted(pathlib.Path(sys.argv[1]).glob("*/1")):
    manifest = json.loads((version / "assets.extra/manifest.json").read_text())
    loaded = tf.saved_model.load(str(version))
    for entry in manifest["answers"]:
        signature = loaded.signatures[entry["signature"]]
        kinds = manifest["signatures"][entry["signature"]]["inputs"]
        inputs = {name: tf.constant(value, kinds[name]["dtype"]) for name, value in entry["inputs"].items()}
        if "inputs" in inputs:
            inputs["inputs"] = tf.constant([base64.b64decode(value) for value in entry["inputs"]["inputs"]])
        for name, value in signature(**inputs).items():
            value = value.numpy()
            key = f"{version.parent.name}|{entry['signature']}|{name}"
            outputs[key] = value.astype("S") if value.dtype == object else value
assert "keras_ctxrep" not in sys.modules
np.savez(sys.argv[2], **outputs)
print(tf.__version__)
"""


# Every task, and every family with one vector a text and one a word; the functions themselves are compared above
MOVED = (
    "classify pairs", "multilabel", "multilabel elmo in windows", "regress", "tag with a CRF", "tag elmo", "tag static",
    "semantic_roles elmo", "coreference", "answer", "embed",
)  # fmt: skip


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Exports, moved after they were made, and all answers to the manifests' inputs."""
    assert {TASKS[name]["task"] for name in MOVED} == {case["task"] for case in TASKS.values()}
    folder = tmp_path_factory.mktemp("exports")
    for name in MOVED:
        model, bundle, _ = signatures(name)
        made = saved_model.export(model, bundle, folder / "made" / name)
        (folder / "moved" / name).mkdir(parents=True)
        shutil.move(made, folder / "moved" / name)
    shutil.rmtree(folder / "made")
    return folder / "moved", replayed(sys.executable, folder)


def replayed(python: str, folder: Path) -> dict[str, np.ndarray]:
    """All answers of the exports in folder/moved, by a process that does not have this library."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [python, "-c", REPLAY, str(folder / "moved"), str(folder / "answers.npz")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return {"version": done.stdout.strip(), **tiny.arrays_of(folder / "answers.npz")}


@pytest.mark.slow
def test_moved_exports_in_a_process_without_this_library(exports):
    folder, answers = exports
    for name in MOVED:
        version = folder / name / "1"
        counts = saved_model.check(version)[1]  # against the answers that were stored when it was exported
        assert counts["answers"] == counts["signatures"] == len(signatures(name)[2])
        for entry in json.loads((version / "assets.extra" / "manifest.json").read_text())["answers"]:
            for output, summary in entry["outputs"].items():
                value = answers[f"{name}|{entry['signature']}|{output}"]
                assert [*value.shape] == summary["shape"]
                if value.dtype.kind == "f" and value.size:
                    chosen = np.linspace(0, value.size - 1, min(64, value.size)).round().astype(int)
                    np.testing.assert_allclose(value.ravel()[chosen], summary["values"], atol=1e-5)


OLDER = os.environ.get("CTXREP_PYTHON_2_20")


@pytest.mark.slow
@pytest.mark.skipif(
    not OLDER,
    reason="CTXREP_PYTHON_2_20 does not name a Python with TensorFlow 2.20; make one: python -m venv V && V/bin/pip "
    "install 'tensorflow-cpu==2.20.*' 'tensorflow-text==2.20.*' && export CTXREP_PYTHON_2_20=V/bin/python",
)
def test_same_answers_in_tensorflow_2_20(exports):
    folder, expected = exports
    answers = replayed(str(OLDER), folder.parent)
    assert str(answers.pop("version")).startswith("2.20.")
    assert answers.keys() == expected.keys() - {"version"}
    for key, value in answers.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, expected[key], rtol=1e-6, atol=1e-6, err_msg=key)
        else:
            np.testing.assert_array_equal(value, expected[key], err_msg=key)
