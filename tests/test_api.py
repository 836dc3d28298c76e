"""The face: `import keras_ctxrep as ctx` and what it gives."""

import ast
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.inference import keras_engine, model
from keras_ctxrep.models import bert
from keras_ctxrep.options import Finetuning
from keras_ctxrep.training import runs
from tests import tiny

SHIPPED = "bert_3_384_12/books_wiki_en"
PRETRAINED = "elmo_2x512_128_512cnn_1xhighway/books_wiki_en"  # with its softmax
TEXTS = ["The bank of the river", "A good film"]
PIECES = tiny.VOCABULARIES["bert"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "films.tsv"
    path.write_text("text\tlabel\n" + "a good film\tyes\na bad film\tno\n" * 8)
    return path


@pytest.fixture(scope="module")
def encoder():
    return ctx.load(SHIPPED)


@pytest.fixture(scope="module")
def classifier(encoder, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "films"
    return ctx.finetune(data, data, encoder, out=out, steps=2, batch_size=8, max_length=16)


def test_import_loads_nothing_heavy():
    code = "import sys, keras_ctxrep; print(sorted({n.partition('.')[0] for n in sys.modules} & set(sys.argv[1:])))"
    heavy = ["tensorflow", "keras", "numpy", "tokenizers", "ai_edge_litert"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def public_names():
    """MODULE.NAME of all that stands in an `__all__`."""
    root = Path(__file__).parents[1]
    for folder in ("keras_ctxrep", "export/keras_ctxrep_export", "tflite/keras_ctxrep_tflite"):
        for path in sorted((root / folder).rglob("*.py")):
            module = ".".join(path.relative_to((root / folder).parent).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    yield from (f"{module}.{name}" for name in ast.literal_eval(node.value))


def test_the_public_names_are_those_of_the_list():
    """A name that is added, renamed or removed is a change of the interface: the list and CHANGELOG.md tell of it."""
    listed = Path(__file__).with_name("public_names.txt").read_text("utf-8").split()
    names = sorted(public_names())
    assert len({*names}) == len(names)
    assert not {*names} - {*listed}, "new names: add them to tests/public_names.txt"
    assert not {*listed} - {*names}, "names that are gone: take them out of tests/public_names.txt"


def test_every_public_name_exists():
    for name in ctx.__all__:
        assert getattr(ctx, name) is not None and name in dir(ctx)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = ctx.lod


def test_a_pretraining_model_has_vectors_and_no_answers():
    encoder = ctx.load(PRETRAINED)
    assert encoder.bundle.task == "language_model" and "over elmo: LiteRT and Keras" in repr(encoder)
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (2, 256) and vectors.dtype == np.float32
    model, _ = saving.load_encoder(encoder.engine.path)
    top = keras.layers.GlobalAveragePooling1D()(model(encoder.features(TEXTS))["sequence"])
    np.testing.assert_allclose(vectors, top, atol=1e-5)
    with pytest.raises(ValueError, match="a language_model answers nothing"):
        encoder.predict(TEXTS)


def test_the_vectors_of_no_texts_have_their_width(encoder, monkeypatch):
    monkeypatch.setattr(type(encoder), "encodings", None)  # the model does not run
    assert encoder.encode([]).shape == (0, 384) and encoder.encode([]).dtype == np.float32


def test_many_texts_are_encoded_in_parts(encoder, monkeypatch):
    texts = [f"{'a ' * (n % 5)}bank" for n in range(7)]
    whole = encoder.encode(texts)
    monkeypatch.setattr(model, "TOGETHER", 3)
    np.testing.assert_allclose(encoder.encode(texts), whole, atol=1e-6)
    with pytest.warns(
        UserWarning, match=r"^1 of 8 texts have vectors of zeros, the first of them text 5, ' ': no words"
    ):
        vectors = encoder.encode([*texts[:5], " ", *texts[5:]])
    np.testing.assert_allclose(vectors, np.insert(whole, 5, 0, axis=0), atol=1e-6)


def test_answers_take_only_the_outputs_that_they_are_made_of(encoder, classifier):
    outputs = [
        keras_engine.predictor_of(each.keras_model, each.bundle).runner.run(each.features(TEXTS))
        for each in (encoder, classifier)
    ]
    assert [[*each] for each in outputs] == [["vector"], ["logits"]]
    static = ctx.load("static_128/books_wiki_en", engine="keras").engine.answer.runner
    assert encoder.engine.answer.runner.tokens == 0 < static.tokens


def test_words_of_strings_and_of_split_sentences(encoder):
    plain, split = encoder.words(["The bank, flooded!", ["The", "bank,", "flooded!"]])
    assert plain.words == ("The", "bank", ",", "flooded", "!")
    assert [plain.offsets[1], plain.offsets[2]] == [(4, 8), (8, 9)]
    assert split.words == ("The", "bank,", "flooded!") and split.offsets == ((0, 3), (4, 9), (10, 18))
    assert plain.vectors.shape == (4, 5, 384)
    np.testing.assert_allclose(plain.vectors[:, 3], split.vectors[:, 2], atol=2e-6)
    model, _ = saving.load_encoder(encoder.engine.path)
    features = encoder.features(["The bank, flooded!"])
    layers = np.stack([layer[0] for layer in model(features)["layers"]])
    np.testing.assert_allclose(plain.vectors[:, :3], layers[:, 1:4], atol=1e-5)


def test_the_encoder_is_traced_once_for_words(encoder, monkeypatch):
    encoder.words(TEXTS)
    monkeypatch.setattr(keras_engine, "runner", None)
    assert len(encoder.words(TEXTS)) == 2


def test_one_string_is_no_list_of_words(encoder):
    with pytest.raises(TypeError, match="one string"):
        encoder.words("The bank")


def test_one_string_and_generators(encoder, classifier):
    vectors, answers = encoder.encode(TEXTS), classifier.predict(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), vectors[0], atol=1e-6)
    np.testing.assert_allclose(encoder.encode(text for text in TEXTS), vectors, atol=1e-6)
    assert classifier.predict(TEXTS[1])["label"] == answers[1]["label"]
    assert classifier.predict(iter(TEXTS)) == answers and encoder.encode(iter([])).shape == (0, 384)
    assert encoder.encode({TEXTS[0]: 1}.keys()).shape == (1, 384)
    for texts, message in ((b"a", "bytes, b'a'; decode it"), ({"a": 1}, "dict, not texts in memory")):
        for method in (encoder.encode, classifier.predict):
            with pytest.raises(TypeError, match=message):
                method(texts)


def test_a_model_is_called():
    """One string and a list, in each kind of model: of an encoder vectors, of a task its answers."""
    texts = ["the cat", "rain fell"]
    encoder, classifier, reader = (api_model(task) for task in ("embed", "classify", "answer"))
    np.testing.assert_array_equal(encoder(texts), encoder.encode(texts))
    assert encoder("the cat").shape == (8,)
    assert classifier(texts) == classifier(iter(texts)) == classifier.predict(texts)
    assert classifier("the cat") == classifier.predict("the cat")
    assert reader("rain", "the rain fell") == reader.predict("rain", "the rain fell")
    with pytest.raises(ValueError, match="one text at a time"):
        classifier(texts, texts)


def test_vectors_that_are_not_finite_are_an_error():
    network, bundle = tiny.model("embed")
    broken = model.Model(keras_engine.KerasEngine(network, bundle), bundle)
    weights = network.get_weights()
    network.set_weights([np.full_like(weight, np.inf) for weight in weights])
    with pytest.raises(ValueError, match="text 0, 'the cat': the model's outputs for this text are not finite"):
        broken.encode(["the cat"])


def test_one_pair_and_one_text_with_marks():
    pairs = api_model("classify", pair=True)
    first, second = ["the cat", "rain"], ["she fell", ""]
    answers = pairs.predict(first, second)
    assert pairs.predict(first[0], second[0])["label"] == answers[0]["label"]
    assert pairs.predict(iter(first), iter(second)) == answers
    for texts, others in ((first, second[0]), (first[0], second)):
        with pytest.raises(TypeError, match=r"^texts is \w+ and pairs is \w+: give two strings, or two lists"):
            pairs.predict(texts, others)
    marked = api_model("coreference")
    marks = [(0, 3), (4, 7), (0, 1)]
    assert marked.predict("the cat", marks=marks)["label"] == marked.predict(["the cat"], marks=[marks])[0]["label"]


def api_model(task, family="bert", **fields):
    """A tiny model in memory."""
    engine = keras_engine.KerasEngine(*tiny.model(task, family, **fields))
    return model.Model(engine, engine.bundle)


def test_texts_that_are_cut_and_texts_without_words():
    """One warning of each for a list, at the caller's line; `predict` says so in the answers."""
    encoder, texts = api_model("embed"), ["the cat", "\u200b", "the " * 30, "", "rain " * 20]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vectors = encoder.encode(texts, batch_size=2)
    assert [str(each.message) for each in caught] == [
        "2 of 5 texts have vectors of zeros, the first of them text 1, '\\u200b': no words in this text",
        "2 of 5 texts were longer than the 16 tokens that the model reads, and were cut",
    ]
    assert {each.filename for each in caught} == {__file__}
    assert vectors.any(1).tolist() == [True, False, True, False, True] and np.isfinite(vectors).all()
    assert [sorted(answer) for answer in encoder.encodings(texts[:3])] == [
        ["vector"], ["error", "vector"], ["truncated", "vector"],
    ]  # fmt: skip
    with pytest.warns(UserWarning, match="1 of 1 texts have vectors of zeros"):
        assert encoder.encode("").tolist() == [0] * 8
    with pytest.warns(UserWarning, match="2 of 2 texts"):
        assert encoder.encode(["", " "], normalize=True).tolist() == [[0] * 8] * 2


def test_vectors_of_length_one_and_their_cosines():
    encoder, texts = api_model("embed"), ["the cat", "rain fell", "she"]
    vectors, unit = encoder.encode(texts), encoder.encode(texts, normalize=True)
    np.testing.assert_allclose(unit, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=1e-6)
    expected = unit @ unit[:2].T
    for a, b in ((vectors, vectors[:2]), (unit, 3 * unit[:2]), (vectors.tolist(), vectors[:2].tolist())):
        cosines = encoder.similarity(a, b)
        np.testing.assert_allclose(cosines, expected, atol=1e-6)
        assert cosines.dtype == np.float32 and cosines.shape == (3, 2)
    assert encoder.similarity(vectors[0], vectors).shape == (1, 3)
    assert encoder.similarity(np.zeros(8), vectors).tolist() == [[0, 0, 0]]
    for a, b in ((vectors, vectors[:, :3]), (texts, texts), (vectors[None], vectors)):
        with pytest.raises(ValueError, match="tables of numbers"):
            encoder.similarity(a, b)


def test_the_batch_size_and_the_bar(monkeypatch, capsys):
    encoder, texts, sizes = api_model("embed"), ["the cat"] * 7, []
    runner = encoder.engine.encode.runner
    run = runner.run
    monkeypatch.setattr(runner, "run", lambda batch: sizes.append(len(batch["mask"])) or run(batch))
    monkeypatch.setattr(runner, "tokens", 0)
    encoder.encode(texts, batch_size=3)
    assert sizes == [3, 3, 1] and not capsys.readouterr().err
    encoder.encode(texts, show_progress=True)
    assert sizes[3:] == [7]
    assert "encoding" in (err := capsys.readouterr().err) and "/7" in err
    with pytest.raises(ValueError, match="batch_size=0: at least 1"):
        encoder.encode(texts, batch_size=0)


@pytest.mark.usefixtures("tflite_in_process")
def test_zeros_in_every_engine(tmp_path):
    """A text without words, and a piece whose vector is zero, as a table may have it for an emoji."""
    folder = tmp_path / "m"
    own = api_model("embed", "static", vocab=PIECES, sizes={"pieces": True}, normalize=True)
    table = own.keras_model.get_layer("word_embedding")
    rows = table.embeddings.numpy()
    rows[PIECES.index("[UNK]")] = rows[PIECES.index("[CLS]")] = rows[PIECES.index("[SEP]")] = 0
    table.embeddings.assign(rows)
    own.save(folder)
    texts = ["the cat", "\U0001f600", "\u200b"]
    for engine in (
        ctx.load(folder),
        ctx.load(own.export(tmp_path / "served")),
        ctx.load(own.tflite(tmp_path / "m.tflite")),
    ):
        with pytest.warns(UserWarning, match="^1 of 3 texts have vectors of zeros, the first of them text 2"):
            vectors = engine.encode(texts)
        assert np.linalg.norm(vectors[0]) == pytest.approx(1, abs=1e-5) and not vectors[1:].any()
        assert not engine.similarity(vectors[1:], vectors).any()
        for query in texts[1:]:
            with (
                warnings.catch_warnings(),
                pytest.raises(ValueError, match=r"text 0, .*: only zeros, which have no dir"),
            ):
                warnings.simplefilter("ignore")
                ctx.Index.of_texts(texts[:1], engine).search([query])
        with warnings.catch_warnings(), pytest.raises(ValueError, match="text 1, '\U0001f600': only zeros"):
            warnings.simplefilter("ignore")
            ctx.Index.of_texts(texts, engine)


@pytest.mark.usefixtures("tflite_in_process")
def test_all_engines_predict_and_encode_the_same(classifier, data, tmp_path):
    answers, vectors = classifier.predict(TEXTS), classifier.encode(TEXTS)
    assert {answer["label"] for answer in answers} <= {"yes", "no"}
    served = ctx.load(classifier.export(tmp_path / "served").parent)
    edge = ctx.load(classifier.tflite(tmp_path / "films.tflite", data=data, max_drop=0.5))
    assert "Measured on 16 examples of films.tsv: accuracy" in edge.bundle.card
    with pytest.raises(ValueError, match="explain: needs data to measure the layers with"):
        classifier.tflite(tmp_path / "no.tflite", explain=True)
    for other in (served, edge):
        for answer, expected in zip(other.predict(TEXTS), answers, strict=True):
            assert answer["label"] == expected["label"] and abs(answer["score"] - expected["score"]) < 1e-5
        for method in (other.save, other.export, other.tflite):
            with pytest.raises(ValueError, match="not a Keras model; load the model folder"):
                method(tmp_path / "no.tflite")
        with pytest.raises(ValueError, match="not a Keras model"):
            other.words(TEXTS)
    np.testing.assert_allclose(served.encode(TEXTS), vectors, atol=1e-5)
    with pytest.warns(UserWarning, match="1 of 3 texts have vectors of zeros, the first of them text 0, ''"):
        padded = served.encode(["", *TEXTS])  # a SavedModel of a classifier
    assert not padded[0].any() and padded[1:].any(1).all()
    with pytest.raises(ValueError, match="has no vectors of texts; write one of the encoder"):
        edge.encode(TEXTS)
    edge = ctx.load(classifier.encoder.tflite(tmp_path / "encoder.tflite"))
    np.testing.assert_allclose(edge.encode(TEXTS), vectors, atol=1e-5)


@pytest.mark.usefixtures("tflite_in_process")
def test_a_saved_model_has_the_present_weights(classifier, tmp_path):
    copy = ctx.load(classifier.save(tmp_path / "copy"))
    assert copy.predict(TEXTS) == classifier.predict(TEXTS)
    assert (tmp_path / "copy" / runs.NAME).read_bytes() == (classifier.engine.path / runs.NAME).read_bytes()
    copy.encode(TEXTS)
    copy.keras_model.compile("sgd", {"logits": "mse"})
    copy.keras_model.fit(copy.features(TEXTS), {"logits": np.array([[9.0, -9.0]] * 2)}, epochs=3, verbose=0)
    changed = copy.predict(TEXTS)
    assert changed != classifier.predict(TEXTS)
    reloaded = ctx.load(copy.save(tmp_path / "changed"))
    assert reloaded.predict(TEXTS) == changed
    np.testing.assert_allclose(copy.encode(TEXTS), reloaded.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(copy.words(TEXTS)[0].vectors, reloaded.words(TEXTS)[0].vectors, atol=1e-6)
    assert np.abs(copy.encode(TEXTS) - classifier.encode(TEXTS)).max() > 1e-4
    edge = ctx.load(copy.tflite(tmp_path / "changed.tflite"))
    assert abs(edge.predict(TEXTS)[0]["score"] - changed[0]["score"]) < 1e-5


def test_without_a_folder_the_model_is_in_memory(classifier, data, tmp_path):
    model = ctx.finetune(data, data, classifier, steps=1, batch_size=8)
    assert model.engine.path is None and "in memory" in repr(model)
    again = ctx.finetune(data, data, model, steps=1, batch_size=8)
    assert again.predict(TEXTS)[0].keys() == classifier.predict(TEXTS)[0].keys()


def test_columns_and_a_fraction_to_choose_by(encoder):
    texts, labels = ["a good film", "a bad film"] * 8, np.array(["yes", "no"] * 8)
    steps = {"steps": 1, "batch_size": 8, "max_length": 16, "seed": 3}
    model = ctx.finetune((texts, labels), dev=0.25, encoder=encoder, **steps)
    assert model.bundle.labels == ("no", "yes")
    named = ctx.finetune({"text": texts, "label": labels}, 0.25, encoder, options=Finetuning(**steps))
    for weight, same in zip(model.keras_model.get_weights(), named.keras_model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, same)
    with pytest.raises(TypeError, match="no option 'epoch'; the nearest one is 'epochs'"):
        ctx.finetune((texts, labels), encoder=encoder, epoch=1)


@pytest.mark.trains
@pytest.mark.usefixtures("tflite_in_process")
def test_labels_keep_their_type(tmp_path, capsys):
    """In Python, on every engine; in a bundle, a SavedModel, tables and metrics they are text."""
    texts = [f"{word} {number}" for word in ("red", "blue") for number in range(12)]
    labels: list = [1] * 12 + [0] * 12
    data = ([*texts, "red blue"], [*labels, None])
    options = {"stack": "cnn", "units": 4, "steps": 40, "batch_size": 8, "learning_rate": 0.02}
    with pytest.raises(ValueError, match=r"the data: row 25: no label: .*skip_bad=True leaves such rows out"):
        ctx.finetune(data, 0.25, "words", **options)
    dev = texts, np.array(labels, float)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ctx.finetune(data, dev, "words", out=tmp_path / "m", skip_bad=True, **options)
    assert "malformed rows left out: 1\n  the data: row 25: no label" in [str(warning.message) for warning in caught]
    assert model.bundle.labels == ("0", "1") and model.bundle.settings == {"label_type": "int"}
    expected = model.predict(texts)
    assert [answer["label"] for answer in expected] == labels
    assert all(list(map(type, answer["probabilities"])) == [int, int] for answer in expected)
    figures = json.loads((tmp_path / "m" / runs.NAME).read_text())["dev"]
    assert figures["accuracy"] == 1
    assert recipes.score(tmp_path / "m", (texts, [*map(str, labels)]))["accuracy"] == 1
    version = model.export(tmp_path / "served")
    file = model.tflite(tmp_path / "m.tflite")
    for other in (ctx.load(tmp_path / "m"), ctx.load(version.parent), ctx.load(file)):
        answers = other.predict(texts)
        assert [(type(answer["label"]), answer["label"]) for answer in answers] == [(int, label) for label in labels]
        assert [*answers[0]["probabilities"]] == [0, 1]
    (tmp_path / "a.txt").write_text("red 1\nblue 2\n")
    assert main(["predict", str(tmp_path / "m"), "--input", str(tmp_path / "a.txt")]) == 0
    answer, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert answer["label"] == 1 and [*answer["probabilities"]] == ["0", "1"]
    assert main(["predict", str(tmp_path / "m"), "--input", str(tmp_path / "a.txt"), "--format", "tsv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("red 1\t1\t")


class Stop(keras.callbacks.Callback):
    """Ends a run after two steps."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.model.stop_training = self.steps == 2


def test_a_model_says_how_good_it_is(data, tmp_path, capsys):
    """By its record: of a model in memory, once it is saved, and once it is loaded."""
    texts, labels = ["a good film", "a bad film", "a good bad film"] * 8, ["yes", "no", "no"] * 8
    stop = Stop()
    model = ctx.finetune(
        (texts, labels), dev=0.25, encoder="words", epochs=4, batch_size=6, seed=1, callbacks=[stop], report=print
    )
    printed = capsys.readouterr()
    assert re.fullmatch(r"classify: accuracy \d\.\d{4} on 6 development examples; 2 steps \(0\.667 epochs\) in \d+ s\n",
                        printed.err)  # fmt: skip
    assert [entry["step"] for entry in model.history] == [2] and stop.steps == 2
    assert printed.out == f"{model.history[0]}\n"
    assert {"accuracy", "macro_f1"} <= {*model.metrics}
    assert model.metrics["accuracy"] == model.history[0]["val_accuracy"]
    for saved in (model, ctx.load(model.save(tmp_path / "saved"))):
        assert saved.history == model.history and saved.metrics == model.metrics
        figures = saved.evaluate(data)
        right = [answer["label"] == label for answer, label in zip(saved.predict(texts[:2]), labels, strict=False)]
        assert figures["examples"] == 16 and figures["accuracy"] == np.mean(right)
    assert model.evaluate({"a": texts, "b": labels}, columns={"text": "a", "label": "b"})["examples"] == 24
    assert ctx.load(SHIPPED).history == [] and ctx.load(SHIPPED).metrics == {}


@pytest.mark.usefixtures("tflite_in_process")
def test_exports_are_evaluated_as_the_model(classifier, data, tmp_path):
    expected = classifier.evaluate(data)
    assert expected == recipes.score(classifier.engine.path, data) == recipes.score(classifier, data)
    for other in (classifier.export(tmp_path / "films").parent, classifier.tflite(tmp_path / "films.tflite")):
        figures = ctx.load(other).evaluate(data)
        assert {name: figures[name] for name in ("examples", "accuracy")} == {
            name: expected[name] for name in ("examples", "accuracy")
        }
        assert ctx.load(other).history == []


def test_nothing_is_printed_where_it_is_not_wanted(capsys):
    ctx.finetune((["a good film", "a bad film"] * 8, ["yes", "no"] * 8), encoder="words", steps=1, verbose=False)
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_a_learning_rate_that_is_far_too_high_is_warned_of():
    """A whole number too, which Keras would refuse."""
    columns = (["a good film", "a bad film"] * 8, ["yes", "no"] * 8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = ctx.finetune(columns, encoder="words", steps=1, learning_rate=100, verbose=False)
        ctx.finetune(columns, encoder="words", steps=1, learning_rate=0.5, verbose=False)
    (warning,) = [str(each.message) for each in caught if each.category is UserWarning]
    assert warning.startswith("learning_rate=100: AdamW moves") and "default of this encoder is 0.001" in warning
    assert len(model.history) == 1


@pytest.mark.trains
def test_pretrain(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\nthe dog ran\n" * 10)
    stop, size = Stop(), "elmo_2x128_64_256cnn_1xhighway"
    model = ctx.pretrain("elmo", [text], valid=text, size=size, steps=9, batch_size=4, callbacks=[stop])
    assert model.encode(TEXTS).shape == (2, 128)
    assert [entry["step"] for entry in model.history] == [1, 2] and stop.steps == 2
    assert model.metrics["loss"] == min(entry["val_loss"] for entry in model.history)
    error = capsys.readouterr().err
    assert error.startswith("language_model: backward perplexity ") and " on held-out text; 2 steps in " in error
    assert model.evaluate(text)["sentences"] == 20


def test_what_is_no_model(tmp_path):
    with pytest.raises(ValueError, match=r"none.tflite: no such file or folder"):
        ctx.load("none.tflite")
    with pytest.raises(ValueError, match="no such folder; as a published model"):
        ctx.load("bert_of_nobody")
    with pytest.raises(ValueError, match="no SavedModel in it"):
        ctx.load(tmp_path)


def test_names_are_read_wherever_a_folder_is(encoder, tmp_path):
    assert recipes.embed(SHIPPED, ["a text"], tmp_path / "vectors.npz", layers="mean") == 1
    assert saving.load_encoder(ctx.zoo.find(SHIPPED)).bundle == encoder.encoder.bundle
    with pytest.raises(ValueError, match=r"no such folder; zoo.find\('bert_4'\) gives that of a published model"):
        saving.load_encoder("bert_4")
    with pytest.raises(ValueError, match="bert_4: no such folder; as a published model"):
        recipes.embed("bert_4", ["a text"], tmp_path / "vectors.npz")


def test_a_pretraining_model_called_like_an_encoder():
    model, ones = bert.pretrainer(bert.SIZES["bert_2_64_2"]), np.ones((1, 3), np.int32)
    with pytest.raises(ValueError, match=r"no mlm_positions .*for pretraining; the encoder in it is load\(NAME\)\.enc"):
        model({"token_ids": ones, "segment_ids": ones, "mask": ones})


@pytest.mark.parametrize("data", [[("a film", "yes")], [{"text": "a film", "label": "yes"}], ["a film"], [None]])
def test_rows_that_are_no_examples(encoder, data):
    with pytest.raises(TypeError, match=r"example 1 is .*; give columns, \(texts, labels\)"):
        ctx.finetune(data * 4, 0.25, encoder, steps=1)


@pytest.mark.slow  # a process that imports TensorFlow
def test_nothing_is_logged_while_tensorflow_starts():
    code = f"import keras_ctxrep as ctx; ctx.load({SHIPPED!r})"
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow  # four models in a process that imports TensorFlow
def test_several_trainings_in_a_process_log_nothing(tmp_path):
    """Neither INFO of TensorFlow's services and compilers, nor a warning that models of one process are a retracing."""
    code = (
        "import keras_ctxrep as ctx\n"
        "rows = ['a good film', 'a bad film'] * 8, ['yes', 'no'] * 8\n"
        "for number in range(3):\n"
        f"    model = ctx.finetune(rows, 0.25, {SHIPPED!r}, steps=2, batch_size=4, max_length=16)\n"
        "    model.predict(rows[0]), model.encode(rows[0])\n"
        f"print(ctx.load(model.save({str(tmp_path / 'm')!r})).predict(['a film'])[0]['label'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) == 3, done.stderr
    assert all(line.startswith("classify: accuracy ") for line in lines), done.stderr
    assert done.stdout.strip() in ("yes", "no")


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("train", "fit", "training.fit"),
        ("train", "load", "saving"),
        ("train", "scope", "training.strategy"),
        ("train", "predictor", "inference.keras_engine"),
        ("pipeline", "dataset", "training.pipeline"),
        ("predict", "Predictor", "inference.predictor"),
    ],
)
def test_old_names_of_modules_warn(old, name, new):
    import importlib

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = importlib.import_module(f"keras_ctxrep.{old}")
    with pytest.warns(DeprecationWarning, match=rf"keras_ctxrep.{old}.{name} is keras_ctxrep.{new}.{name} now"):
        value = getattr(module, name)
    assert value is getattr(importlib.import_module(f"keras_ctxrep.{new}"), name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing
