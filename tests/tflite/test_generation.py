"""Language models as .tflite files: the step against Keras, the same texts, and what is refused."""

from dataclasses import asdict

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import saving
from keras_ctxrep.models import lm
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep_tflite import quantize, runtime, weights

pytestmark = pytest.mark.trains

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
            step = ctx.load(tmp_path / name)._generator.run(inputs | {"state": states[number]})
            states[number] = np.asarray(step["state"])
            np.testing.assert_allclose(np.asarray(step["logits"]), outputs["logits"], atol=tolerance)
        expected.append(outputs["logits"])
    assert np.std(expected) > 0.3
    names = {tensor.type for graph in weights.read(quantized).subgraphs for tensor in graph.tensors}
    assert len(names) > 1
    data = (tmp_path / "lm.tflite").read_bytes()
    kinds = {weights._kind(weights.read(data), operator) for operator in weights.read(data).subgraphs[0].operators}
    assert not {kind for kind in kinds if "VAR_HANDLE" in str(kind) or "CUSTOM" in str(kind)}


def test_what_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="quantize='int8': of a language model in one direction none, float16"):
        quantize.convert(folder, tmp_path / "lm.tflite", "int8")
    with pytest.raises(ValueError, match="lengths: of models with answers"):
        quantize.convert(folder, tmp_path / "lm.tflite", lengths=[16])
    assert not [*tmp_path.iterdir()]


def test_a_bundle_of_another_model(folder, tmp_path):
    quantize.convert(folder, tmp_path / "lm.tflite")
    data, bundle = quantize.float_model(folder, [1])
    longer = Bundle(bundle.family, bundle.task, bundle.config, 16, vocab=(*VOCAB, "x"))
    bundles.write_tflite(tmp_path / "other.tflite", data, longer)
    with pytest.raises(ValueError, match=r"other\.tflite: its bundle is not of its model: step gives"):
        ctx.load(tmp_path / "other.tflite")
    with pytest.raises(ValueError, match="threads=0"):
        runtime.generator(tmp_path / "lm.tflite", bundle, 0)
