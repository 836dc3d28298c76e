"""Language models as .tflite files: the step against Keras, the same texts, and what is refused."""

import random
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving
from keras_ctxrep.models import lm
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.decode import softmax
from keras_ctxrep_export.generation import OPTIONS
from keras_ctxrep_tflite import quantize, runtime, weights

pytestmark = [pytest.mark.trains, pytest.mark.usefixtures("tflite_in_process")]

VOCAB = ("<S>", "</S>", "<UNK>", *"abcdefgh ")


@pytest.fixture(scope="module", params=["lstm", "transformer", pytest.param("gru", marks=pytest.mark.slow)])
def folder(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("lm") / request.param
    config = lm.Config(request.param, "characters", width=64, heads=2, intermediate=64, context=6, dropout=0.0)
    bundle = Bundle("lm", "causal_language_model", asdict(config), 16, vocab=VOCAB)
    model, draw = saving.build(bundle), np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(draw.normal(0, 0.2, weight.shape))
    saving.save(out, model, bundle)
    return out


def test_the_same_texts_and_logits(folder, tmp_path):
    """For all kinds and number formats by hand once; here float32, and int8 weights within their error."""
    model = ctx.load(folder)
    model.tflite(tmp_path / "lm.tflite")
    file = ctx.load(tmp_path / "lm.tflite")
    options = {"length": 25, "seed": 8, "temperature": 0.9, "top_k": 8, "top_p": 0.95}
    assert file.generate(["abc", "", "a\nb"], **options) == model.generate(["abc", "", "a\nb"], **options)
    quantized = weights.quantized((tmp_path / "lm.tflite").read_bytes(), "dynamic")
    bundles.write_tflite(tmp_path / "small.tflite", quantized, model.bundle)
    assert (tmp_path / "small.tflite").stat().st_size < (tmp_path / "lm.tflite").stat().st_size
    state = np.zeros((1, model.keras_model.input["state"].shape[1]), np.float32)
    expected, states = [], [state, state]
    for token in (3, 5, 4, 9):
        inputs = {"token_ids": np.array([[token]], np.int32), "mask": np.ones((1, 1), np.int32)}
        outputs = {name: np.array(value) for name, value in model.keras_model(inputs | {"state": state}).items()}
        state = outputs["state"]
        for number, (name, tolerance) in enumerate([("lm.tflite", 1e-4), ("small.tflite", 0.3)]):
            step = ctx.load(tmp_path / name).engine.generate.run(inputs | {"state": states[number]})
            states[number] = np.asarray(step["state"])
            np.testing.assert_allclose(np.asarray(step["logits"]), outputs["logits"], atol=tolerance)
        expected.append(outputs["logits"])
    assert np.std(expected) > 0.3
    names = {tensor.type for graph in weights.read(quantized).subgraphs for tensor in graph.tensors}
    assert len(names) > 1
    data = (tmp_path / "lm.tflite").read_bytes()
    kinds = {weights._kind(weights.read(data), operator) for operator in weights.read(data).subgraphs[0].operators}
    assert not {kind for kind in kinds if "VAR_HANDLE" in str(kind) or "CUSTOM" in str(kind)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", lm.KINDS)
def test_forty_texts_of_each_kind_in_every_engine(kind, tmp_path):
    """Keras, the step of a SavedModel, the loop in its graph, and a .tflite file draw the same from the same seeds."""
    config = lm.Config(kind, "characters", 1, 16, heads=2, intermediate=16, context=6, kernel_size=3, order=3)
    bundle = Bundle("lm", "causal_language_model", asdict(config), 16, vocab=VOCAB)
    model, draw = saving.build(bundle), np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(draw.normal(0, 0.4, weight.shape))
    saving.save(tmp_path / "lm", model, bundle)
    folder = ctx.load(tmp_path / "lm")
    prompts, options = ["", "abc", "a\nb", "hg fe"] * 10, {"length": 12, "seed": 7, "top_p": 0.95}
    expected = folder.generate(prompts, **options)
    assert len({*expected}) == 40
    version = folder.export(tmp_path / "serving")
    assert ctx.load(version).generate(prompts, **options) == expected
    assert ctx.load(folder.tflite(tmp_path / "lm.tflite")).generate(prompts, **options) == expected
    rows = {name: tf.fill(40, tf.cast(options.get(name, value), dtype)) for name, (dtype, value) in OPTIONS.items()}
    rows |= {"text": tf.constant(prompts), "seed": rows["seed"] + tf.range(40, dtype=tf.int64)}
    loop = tf.saved_model.load(str(version)).signatures["serving_default"]
    assert [text.decode() for text in loop(**rows)["text"].numpy()] == expected


@pytest.mark.slow
def test_perplexity_of_the_number_formats(tmp_path, monkeypatch):
    """Of a trained model on text that it has not seen: Keras' own of the float32 file, within 1% of the others."""
    draw = random.Random(0)
    parts = [["the cat", "the dog", "a bird", "she"], ["sees", "hears", "finds"], ["rain", "the tree", "us"]]
    lines = [" ".join(map(draw.choice, parts)) for _ in range(500)]
    (tmp_path / "train.txt").write_text("\n".join(lines[:450]))
    (tmp_path / "test.txt").write_text("\n".join(lines[450:]))
    config = lm.Config("lstm", "characters", 1, 48, dropout=0.0)
    monkeypatch.setitem(lm.SIZES, "test", config)
    options = {"units": "characters", "batch_size": 8, "unroll": 20, "steps": 120, "learning_rate": 0.01}
    recipes.pretrain("lm", [tmp_path / "train.txt"], tmp_path / "lm", size="test", **options)
    keras = recipes.score(tmp_path / "lm", tmp_path / "test.txt")["perplexity"]
    assert keras < 2.5
    model = ctx.load(tmp_path / "lm")
    features = model.bundle.tokens
    tokens = [*features.prompt("\n".join(lines[450:])), features.end]
    for quantize_as, tolerance in (("none", 1e-4), ("float16", 0.01), ("dynamic", 0.01)):
        file = ctx.load(model.tflite(tmp_path / f"{quantize_as}.tflite", quantize_as))
        run, state, nats = file.engine.generate.run, np.zeros((1, file.engine.generate.state_size), np.float32), 0.0
        for token, following in pairwise(tokens):
            inputs = {"token_ids": np.array([[token]], np.int32), "mask": np.ones((1, 1), np.int32), "state": state}
            outputs = run(inputs)
            state = np.asarray(outputs["state"])
            nats -= np.log(softmax(np.asarray(outputs["logits"])[0, 0])[following])
        assert np.exp(nats / (len(tokens) - 1)) == pytest.approx(keras, rel=tolerance), quantize_as


def test_what_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="quantize='int8': of a language model in one direction none, float16"):
        quantize.convert(folder, tmp_path / "lm.tflite", "int8")
    with pytest.raises(ValueError, match="lengths: of models with answers"):
        quantize.convert(folder, tmp_path / "lm.tflite", lengths=[16])
    assert not [*tmp_path.iterdir()]


def test_a_bundle_of_another_model(folder, tmp_path):
    data, bundle = quantize.float_model(folder, [1])
    bundles.write_tflite(tmp_path / "lm.tflite", data, bundle)
    longer = Bundle(bundle.family, bundle.task, bundle.config, 16, vocab=(*VOCAB, "x"))
    bundles.write_tflite(tmp_path / "other.tflite", data, longer)
    with pytest.raises(ValueError, match=r"other\.tflite: its bundle is not of its model: step gives"):
        ctx.load(tmp_path / "other.tflite")
    with pytest.raises(ValueError, match="threads=0"):
        runtime.generator(tmp_path / "lm.tflite", bundle, 0)
