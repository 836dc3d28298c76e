"""Both engines of `engine="auto"` give the same answers, each its part of them, of the weights that are there."""

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import saving
from keras_ctxrep.inference import single_texts
from tests import tiny

pytestmark = pytest.mark.trains
TEXTS = ["the cat", "dogs run", "the the the cat", ""]


@pytest.fixture(scope="module")
def folder(tflite_in_process, tmp_path_factory):
    """A classifier that is in the cache."""
    out = tmp_path_factory.mktemp("single") / "classifier"
    saving.save(out, *tiny.model("classify"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CTXREP_CACHE", str(out.with_name("cache")))
        with pytest.warns(UserWarning, match="is converted for LiteRT, once, into"):
            single_texts.converted(out)
        yield out


def test_answers_of_both(folder, monkeypatch):
    expected, asked, make = ctx.load(folder), [], saving.restore
    monkeypatch.setattr(saving, "restore", lambda *args: asked.append(args) or make(*args))
    model = ctx.load(folder, engine="auto")
    assert "LiteRT" in repr(model)
    one_by_one = [model.predict([text])[0] for text in TEXTS]
    assert not asked
    together = model.predict(TEXTS)
    assert len(asked) == 1
    for own, other, answer in zip(one_by_one, together, expected.predict(TEXTS), strict=True):
        assert own.get("label") == other.get("label") == answer.get("label")
        assert own.get("error") == answer.get("error")
        if "score" in answer:
            np.testing.assert_allclose([own["score"], other["score"]], answer["score"], atol=1e-5)
    np.testing.assert_allclose(model.encode(TEXTS[:2]), expected.encode(TEXTS[:2]), atol=1e-5)
    again = single_texts.open_both(folder)
    assert again.name == single_texts.NAME and again.predictor(["the cat"])[0]["label"] == one_by_one[0]["label"]


def test_once_the_keras_model_is_taken_it_answers(folder):
    model = ctx.load(folder, engine="auto")
    before = model.predict(["the cat"])[0]["probabilities"]
    for weight in model.keras_model.weights:
        weight.assign(-weight)
    assert model.predict(["the cat"])[0]["probabilities"] != before and model.engine.name == "Keras"


def test_other_weights_are_another_file(folder, tmp_path):
    first = single_texts.converted(folder)  # without a warning: it is there
    model = ctx.load(folder)
    model.keras_model.weights[0].assign_add(np.ones(model.keras_model.weights[0].shape))
    model.save(tmp_path / "other")
    with pytest.warns(UserWarning, match="converted"):
        assert single_texts.converted(tmp_path / "other") != first


def test_an_encoder_and_a_name_of_no_engine(folder, tmp_path):
    ctx.load(folder).encoder.save(tmp_path / "encoder")
    with pytest.warns(UserWarning, match="converted"):
        encoder = ctx.load(tmp_path / "encoder", engine="auto")
    np.testing.assert_allclose(encoder.encode(["the cat"]), ctx.load(folder).encode(["the cat"]), atol=1e-5)
    assert encoder.engine.name == single_texts.NAME
    with pytest.raises(ValueError, match="engine='lite': keras or auto"):
        ctx.load(folder, engine="lite")
