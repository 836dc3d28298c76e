"""Both engines of `engine="auto"` give the same answers, each its part of them, of the weights that are there."""

import subprocess
import sys

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving
from keras_ctxrep.inference import single_texts
from keras_ctxrep.inference.engines import open_model
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


@pytest.fixture(scope="module")
def encoder(folder):
    """The encoder of `folder`, in the cache too."""
    out = ctx.load(folder).encoder.save(folder.with_name("encoder"))
    with pytest.warns(UserWarning, match="converted") as caught:
        ctx.load(out, engine="auto")
    assert {each.filename for each in caught} == {__file__}
    return out


@pytest.fixture
def asked(monkeypatch):
    """Grows when a model is made in Keras."""
    asked, make = [], saving.restore
    monkeypatch.setattr(saving, "restore", lambda *args: asked.append(args) or make(*args))
    return asked


def test_answers_of_both(folder, asked):
    expected = ctx.load(folder)
    asked.clear()
    model = ctx.load(folder, engine="auto")
    assert "LiteRT" in repr(model)
    one_by_one = [model.predict([text])[0] for text in TEXTS]
    assert not asked
    together = model.predict(TEXTS)
    assert len(asked) == 1
    for own, other, answer in zip(one_by_one, together, expected.predict(TEXTS), strict=True):
        assert own.get("label") == other.get("label") == answer.get("label")
        assert own.get("error") == answer.get("error")
        if "error" not in answer:
            np.testing.assert_allclose([own["score"], other["score"]], answer["score"], atol=1e-5)
    np.testing.assert_allclose(model.encode(TEXTS[:2]), expected.encode(TEXTS[:2]), atol=1e-5)
    again = open_model(folder, "auto")
    assert again.name == "LiteRT and Keras" and again.answer(["the cat"])[0]["label"] == one_by_one[0]["label"]


def test_once_the_keras_model_is_taken_it_answers(folder):
    model = ctx.load(folder, engine="auto")
    before = model.predict(["the cat"])[0]["probabilities"]
    for weight in model.keras_model.weights:
        weight.assign(-weight)
    after = model.predict(["the cat"])[0]["probabilities"]
    assert after != before and after == model.engine.keras.answer(["the cat"])[0]["probabilities"]


def test_other_weights_are_another_file(folder, tmp_path):
    first = single_texts.converted(folder)  # without a warning: it is there
    model = ctx.load(folder)
    model.keras_model.weights[0].assign_add(np.ones(model.keras_model.weights[0].shape))
    model.save(tmp_path / "other")
    with pytest.warns(UserWarning, match="converted"):
        assert single_texts.converted(tmp_path / "other") != first


def test_one_vector_and_one_query(encoder, tmp_path, asked):
    """Through LiteRT; several through Keras."""
    (tmp_path / "rows.txt").write_text("dogs run\nthe cat\n")
    recipes.index([tmp_path / "rows.txt"], encoder, tmp_path / "i")
    expected, [hits] = ctx.load(encoder).encode(TEXTS[:2]), recipes.open_index(tmp_path / "i").search(TEXTS[:1])
    asked.clear()
    recipes.embed(encoder, TEXTS[:1], tmp_path / "a.npz", engine="auto")
    np.testing.assert_allclose(tiny.arrays_of(tmp_path / "a.npz")["0"], expected[0], atol=1e-5)
    index = recipes.open_index(tmp_path / "i", engine="auto")
    for hit, other in zip(index.search(TEXTS[:1])[0], hits, strict=True):
        assert hit.id == other.id and hit.score == pytest.approx(other.score, abs=1e-5)
    assert not asked
    recipes.embed(encoder, TEXTS[:2], tmp_path / "a.npz", engine="auto")
    assert len(asked) == 1
    np.testing.assert_allclose(tiny.arrays_of(tmp_path / "a.npz")["1"], expected[1], atol=1e-5)
    assert len(index.search(TEXTS[:2])) == 2 and len(asked) == 2


def test_the_commands_start_without_tensorflow(encoder, tmp_path):
    (tmp_path / "rows.txt").write_text("the cat\n")
    recipes.index([tmp_path / "rows.txt"], encoder, tmp_path / "i")
    code = (
        "import sys; sys.modules |= {'tensorflow': None, 'keras': None}; from keras_ctxrep.cli.main import main\n"
        "sys.exit(main(['search', 'i', 'the cat', '--engine', 'auto']) or "
        "main(['embed', sys.argv[1], '--input', 'rows.txt', '--out', 'a.npz', '--engine', 'auto']))"
    )
    done = subprocess.run([sys.executable, "-c", code, encoder], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.splitlines()[0].split()[:2] == ["1", "1.000"], done.stderr
    assert (tmp_path / "a.npz").is_file()


def test_what_is_refused(folder, encoder, tmp_path):
    with pytest.raises(ValueError, match="engine='lite': keras or auto"):
        ctx.load(folder, engine="lite")
    with pytest.raises(ValueError, match="engine='auto': for layers='vector', and they are 'all'; leave it out"):
        recipes.embed(encoder, TEXTS[:1], tmp_path / "a.npz", words=True, engine="auto")
