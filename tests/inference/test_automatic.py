"""LiteRT or Keras answers for a model folder, whichever is quicker, the same but for rounding."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving
from keras_ctxrep.inference import automatic, speeds
from keras_ctxrep.inference.engines import open_model
from tests import tiny

pytestmark = pytest.mark.trains
TEXTS = ["the cat", "dogs run", "the the the cat", ""]
WORDS = [*"abcdefgh", "the", "cat", "rain", "fell", "she", ".", "as"]
KERAS_FOR_MANY = {
    engine: dict(zip(speeds.SHAPES, seconds, strict=True))
    for engine, seconds in {"LiteRT": (1, 2, 1, 2), "Keras": (2, 1, 2, 1)}.items()
}


def random_texts(words, count=2000):
    """Texts of one word to sixty, most of them short."""
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(words, 1 + int(59 * rng.random() ** 6))) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tflite_in_process, tmp_path_factory):
    """A classifier that is in the cache, and finds texts of both labels."""
    out = tmp_path_factory.mktemp("single") / "classifier"
    model, bundle = tiny.model("classify")
    kernel, bias = model.get_layer("logits").get_weights()
    logits = model(bundle.features(random_texts(WORDS, 50)))["logits"].numpy()
    model.get_layer("logits").set_weights([kernel, bias - logits.mean(axis=0)])
    saving.save(out, model, bundle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CTXREP_CACHE", str(out.with_name("cache")))
        assert ctx.load(out).engine.name == "Keras"  # and nothing is converted
        with pytest.warns(UserWarning, match="is converted for LiteRT, once, into"):
            automatic.converted(out)
        yield out


@pytest.fixture(scope="module")
def encoder(folder):
    """The encoder of `folder`, in the cache too."""
    out = ctx.load(folder).encoder.save(folder.with_name("encoder"))
    with pytest.warns(UserWarning, match="converted") as caught:
        ctx.load(out, engine="litert")
    assert {each.filename for each in caught} == {__file__}
    return out


@pytest.fixture
def measured(monkeypatch):
    """Has LiteRT be the quicker one for one text, and Keras for many."""
    monkeypatch.setattr(speeds, "known", lambda *_: KERAS_FOR_MANY)


@pytest.fixture
def without_tensorflow(monkeypatch):
    """As if nothing had imported TensorFlow."""
    monkeypatch.setattr(automatic, "sys", SimpleNamespace(modules={}))


@pytest.fixture
def asked(monkeypatch):
    """Grows when a model is made in Keras."""
    asked, make = [], saving.restore
    monkeypatch.setattr(saving, "restore", lambda *args: asked.append(args) or make(*args))
    return asked


def test_answers_of_both(folder, asked, measured):
    expected = ctx.load(folder, engine="keras")
    asked.clear()
    model = ctx.load(folder)
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


def test_litert_until_keras_would_have_paid_for_its_start(folder, asked, measured, without_tensorflow):
    model = ctx.load(folder)
    model.predict(TEXTS[:3])  # Keras gains a second a text
    model.predict(TEXTS[:3])
    assert not asked
    model.predict(TEXTS[:3])
    assert len(asked) == 1


def test_litert_where_nothing_is_measured(folder, asked, monkeypatch, without_tensorflow):
    monkeypatch.setattr(automatic, "START", 0.0)
    model = ctx.load(folder)
    model.predict(TEXTS * 20)
    assert not asked


def test_litert_alone(folder, asked, measured):
    ctx.load(folder, engine="litert").predict(TEXTS)
    assert not asked


@pytest.mark.parametrize("cause", ["a GPU", "no LiteRT"])
def test_keras_alone(folder, monkeypatch, cause):
    if cause == "a GPU":
        monkeypatch.setattr(automatic, "has_gpu", lambda: True)
    else:
        monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    assert ctx.load(folder).engine.name == "Keras"


@pytest.mark.parametrize("engine", ["auto", "litert"])
def test_once_the_keras_model_is_taken_it_answers(folder, engine):
    model = ctx.load(folder, engine=engine)
    before = model.predict(["the cat"])[0]["probabilities"]
    for weight in model.keras_model.weights:
        weight.assign(-weight)
    after = model.predict(["the cat"])[0]["probabilities"]
    assert after != before and after == model.engine.keras.answer(["the cat"])[0]["probabilities"]


def test_other_weights_are_another_file(folder, tmp_path):
    first = automatic.converted(folder)  # without a warning: it is there
    model = ctx.load(folder)
    model.keras_model.weights[0].assign_add(np.ones(model.keras_model.weights[0].shape))
    model.save(tmp_path / "other")
    with pytest.warns(UserWarning, match="converted"):
        assert automatic.converted(tmp_path / "other") != first


def test_one_vector_and_one_query(encoder, tmp_path, asked, measured):
    """Through LiteRT; several through Keras."""
    (tmp_path / "rows.txt").write_text("dogs run\nthe cat\n")
    recipes.index([tmp_path / "rows.txt"], encoder, tmp_path / "i")
    expected, [hits] = (
        ctx.load(encoder, engine="keras").encode(TEXTS[:2]),
        recipes.open_index(tmp_path / "i").search(TEXTS[:1]),
    )
    asked.clear()
    recipes.embed(encoder, TEXTS[:1], tmp_path / "a.npz")
    np.testing.assert_allclose(tiny.arrays_of(tmp_path / "a.npz")["0"], expected[0], atol=1e-5)
    index = recipes.open_index(tmp_path / "i")
    for hit, other in zip(index.search(TEXTS[:1])[0], hits, strict=True):
        assert hit.id == other.id and hit.score == pytest.approx(other.score, abs=1e-5)
    assert not asked
    recipes.embed(encoder, TEXTS[:2], tmp_path / "a.npz")
    assert len(asked) == 1
    np.testing.assert_allclose(tiny.arrays_of(tmp_path / "a.npz")["1"], expected[1], atol=1e-5)
    assert len(index.search(TEXTS[:2])) == 2 and len(asked) == 2


def test_the_commands_start_without_tensorflow(encoder, tmp_path):
    (tmp_path / "rows.txt").write_text("the cat\n")
    recipes.index([tmp_path / "rows.txt"], encoder, tmp_path / "i")
    code = (
        "import sys; sys.modules |= {'tensorflow': None, 'keras': None}; from keras_ctxrep.cli.main import main\n"
        "sys.exit(main(['search', 'i', 'the cat']) or "
        "main(['embed', sys.argv[1], '--input', 'rows.txt', '--out', 'a.npz']))"
    )
    done = subprocess.run([sys.executable, "-c", code, encoder], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.splitlines()[0].split()[:2] == ["1", "1.000"], done.stderr
    assert (tmp_path / "a.npz").is_file()


def test_what_is_refused(folder, encoder, tmp_path):
    with pytest.raises(ValueError, match="engine='lite': auto, keras, litert"):
        ctx.load(folder, engine="lite")
    with pytest.raises(ValueError, match="engine='litert': for layers='vector', and they are 'all'; leave it out"):
        recipes.embed(encoder, TEXTS[:1], tmp_path / "a.npz", words=True, engine="litert")


def test_equal_labels_of_many_texts(folder):
    texts = random_texts(WORDS)
    answers = [ctx.load(folder, engine=engine).predict(texts) for engine in ("litert", "keras")]
    assert [answer["label"] for answer in answers[0]] == [answer["label"] for answer in answers[1]]
    assert len({answer["label"] for answer in answers[0]}) == 2


def test_equal_vectors_of_many_texts():
    name = "bert_3_384_12/books_wiki_en"
    words = [piece for piece in ctx.load(name).bundle.vocab if not piece.startswith("[")][::7]
    texts = random_texts(words)
    vectors, expected = (ctx.load(name, engine=engine).encode(texts) for engine in ("litert", "keras"))
    distances = np.linalg.norm(vectors - expected, axis=1)
    assert distances.any() and (distances <= 1e-5 * np.linalg.norm(expected, axis=1)).all()


def test_vectors_of_a_model_with_answers(asked, without_tensorflow, monkeypatch):
    """By the graph of its encoder, until its Keras model is asked for."""
    monkeypatch.setattr(speeds, "known", lambda *_: None)
    model = ctx.load("sentiment_en")
    vectors = model.encode(TEXTS[:3])
    assert not asked
    expected = ctx.load("sentiment_en", engine="keras").encode(TEXTS[:3])
    np.testing.assert_allclose(vectors, expected, atol=2e-5)
    assert model.keras_model is not None
    np.testing.assert_array_equal(model.encode(TEXTS[:3]), expected)


def test_models_of_the_package_answer_without_tensorflow(tmp_path):
    """Nor is anything written into the cache, which need not be writable."""
    code = """
import sys
sys.modules |= {"tensorflow": None, "keras": None}
import keras_ctxrep as ctx
text = "Angela Merkel met Tim Cook in Berlin."
print(ctx.load("sentiment_en")(f"{text} It was wonderful.")["label"])
print(ctx.load("names_en")(text)["entities"][0]["text"])
print(ctx.load("answers_en")("Who met Tim Cook?", text)["answer"])
print(ctx.load("masked_en")("Paris is the capital of [MASK].")[0][0].piece)
print(ctx.load("g2p_en")("cat")["text"])
answers = ("sentiment_en", "names_en", "answers_en")
encoders = ("similar_en", "bert_3_384_12/books_wiki_en", "static_128", "glove_50", "elmo_2x512_128_512cnn_1xhighway")
for name in answers + encoders:
    assert ctx.load(name).encode([text, "A cat."]).any(axis=1).all()
"""
    (tmp_path / "cache").write_text("a file, where no folder can be made")
    environment = os.environ | {"CTXREP_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.split("\n")[:-1] == ["positive", "Angela Merkel", "Angela Merkel", "paris", "K AE T"]
