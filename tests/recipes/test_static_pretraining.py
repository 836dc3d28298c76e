"""Word vectors learned from text: the objective against loops over pairs, resumption, replicas, files."""

import itertools
import json
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ctxrep as ctx
from keras_ctxrep import losses, recipes, saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.convert import vectors
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.models import static
from keras_ctxrep.optimizers import SGD, RowwiseAdagrad
from keras_ctxrep.text.corpus import documents
from keras_ctxrep.text.word_blocks import CENTRES, Blocks, blocks, encode_corpus
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import page, quantize, runtime
from tests import tiny

pytestmark = pytest.mark.trains

TOPICS = [["rain", "storm", "wind", "snow", "cloud"], ["bread", "soup", "salt", "oven", "cheese"]]
OTHERS = ["the", "a", "of", "and"]
SMALL = {"dims": 8, "min_count": 1, "batch_size": 64, "sample": 0.0, "epochs": 4}
V, D, W, P, S, NEGATIVES = 9, 5, 2, 4, 3, 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sentences of one topic each."""
    draw = random.Random(0)
    lines = [" ".join(draw.choices(draw.choice(TOPICS) + OTHERS, k=draw.randint(1, 12))) for _ in range(400)]
    path = tmp_path_factory.mktemp("static") / "corpus.txt"
    path.write_text("\n".join(line.capitalize() for line in lines) + "\n")
    return path


@pytest.fixture(scope="module", params=["words", "n-grams"])
def folder(request, corpus):
    """A model that has learned the topics."""
    out = corpus.parent / request.param
    more = {"subwords": True, "buckets": 300} if request.param == "n-grams" else {}
    recipes.pretrain_static([corpus], out, **SMALL | {"epochs": 60} | more)
    return out


def table(folder):
    return saving.load(folder)[0].get_layer("word_embedding").get_weights()[0]


# --------------------------------------------------------------------------------------------------- the objective


def some_blocks(rng, count=6):
    before, after = rng.integers(0, W + 1, (2, count, P))
    words, noise = rng.integers(1, V + 1, (count, P + 2 * W)), rng.integers(1, V + 1, (count, S))
    windows = np.stack([np.where(before + after, before, 1), after], -1)
    windows[0, 1] = 0  # a centre without a window
    return Blocks(words.astype(np.int32), noise.astype(np.int32), windows.astype(np.int32))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_pairs(kind, batch, inputs, outputs, rate, rows):
    """One update as word2vec.c makes it, pair by pair, all from the tables before it; the mean loss of a centre.

    `rows`: of each word in the table of inputs.
    """
    new_inputs, new_outputs, loss = inputs.copy(), outputs.copy(), 0.0
    for words, noise, windows in zip(batch.word_ids, batch.noise_ids, batch.windows, strict=True):
        for centre, (before, after) in enumerate(windows):
            place = centre + W
            context = [words[place + d] for d in range(-before, after + 1) if d]
            examples = [([words[place]], word) for word in context]  # (what predicts, what is predicted)
            if kind == "cbow":
                examples = [(context, words[place])] if context else []
            for sources, target in examples:
                hidden = np.mean([inputs[rows[word]].mean(0) for word in sources], 0)
                gradient = np.zeros(D)
                pairs = [(target, 1.0, 1.0), *((word, 0.0, NEGATIVES / S) for word in noise)]
                for word, label, weight in pairs:
                    x = hidden @ outputs[word]
                    loss -= weight * np.log(sigmoid(x if label else -x))
                    step = rate * weight * (label - sigmoid(x))
                    gradient += step * outputs[word]
                    new_outputs[word] += step * hidden
                for word in sources:
                    for row in rows[word]:
                        new_inputs[row] += gradient
    return new_inputs, new_outputs, loss / batch.windows[..., 0].size


@pytest.mark.parametrize("ngrams", [False, True], ids=["words", "n-grams"])
@pytest.mark.parametrize("kind", static.TRAINERS)
def test_two_updates_are_those_of_loops_over_pairs(kind, ngrams, rng):
    """In one step of two updates, and in two steps of one."""
    batch = some_blocks(rng)
    rows = [[word] for word in range(V + 1)]
    fields = {}
    if ngrams:
        rows = [[], *([word, *rng.integers(V + 1, V + 8, 1 + word % 3)] for word in range(1, V + 1))]
        fields = {"buckets": 7}
    config = static.Config(words=V, width=D, **fields)
    for updates in (2, 1):
        model = static.TRAINERS[kind](config, W, P, S, rows if ngrams else None)
        model.updates = updates
        tables = [model.get_layer(name).embeddings for name in ("word_embedding", "output_embedding")]
        for variable in tables:
            variable.assign(rng.normal(size=variable.shape))
        expected = [variable.numpy().astype(np.float64) for variable in tables]
        model.compile(SGD(0.05, gradient_scale=3.0 * P), {"logits": losses.NegativeSampling(NEGATIVES, S)})
        data = tf.data.Dataset.from_tensor_slices((batch.inputs, {"logits": batch.windows})).batch(3 * updates)
        loss = model.fit(data, shuffle=False, verbose=0).history["loss"][0]
        means = []
        for part in (batch[:3], batch[3:]):
            *expected, mean = by_pairs(kind, part, *expected, 0.05, rows)
            means.append(mean)
        assert loss == pytest.approx(np.mean(means), rel=1e-5)
        for variable, value in zip(tables, expected, strict=True):
            np.testing.assert_allclose(variable, value, atol=2e-6)


def test_two_replicas_give_the_numbers_of_one(rng):
    batch = some_blocks(rng, 8)
    results = []
    for place in (tf.distribute.get_strategy(), tiny.mirrored()):
        keras.utils.set_random_seed(0)
        with place.scope():
            model = static.skipgram(
                static.Config(words=V, width=D, buckets=7), W, P, S, [[i, 10 + i % 7] for i in range(V + 1)]
            )
            loss = {"logits": losses.NegativeSampling(NEGATIVES, S)}
            model.compile(RowwiseAdagrad(0.1, gradient_scale=4.0 * P), loss, jit_compile=False)
        data = tf.data.Dataset.from_tensor_slices((batch.inputs, {"logits": batch.windows})).batch(4).repeat(5)
        history = model.fit(data, shuffle=False, verbose=0)
        results.append([*history.history["loss"], *model.get_weights()])
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_row_wise_adagrad_by_hand(rng):
    """A row's number is the mean of the squares of its summed gradient; other rows stay; dense gradients too."""
    value = rng.normal(size=(4, 3)).astype(np.float32)
    sparse, dense = keras.Variable(value), keras.Variable(value)
    optimizer, other = (RowwiseAdagrad(0.5, gradient_scale=2.0) for _ in range(2))
    optimizer.build([sparse])
    other.build([dense])
    accumulated, expected = np.zeros((4, 1)), value.astype(np.float64)
    for _ in range(3):
        values = rng.normal(size=(3, 3)).astype(np.float32)
        rows = np.array([2, 0, 2])
        gradient = np.zeros((4, 3))
        np.add.at(gradient, rows, 2.0 * values)
        accumulated += (gradient**2).mean(1, keepdims=True)
        expected -= 0.5 * gradient / (np.sqrt(accumulated) + 1e-8)
        optimizer.apply([tf.IndexedSlices(tf.constant(values), tf.constant(rows), (4, 3))], [sparse])
        other.apply([tf.constant(gradient / 2, tf.float32)], [dense])
    np.testing.assert_allclose(sparse, expected, rtol=1e-5)
    np.testing.assert_allclose(dense, expected, rtol=1e-5)
    for each in (optimizer, SGD(0.1, gradient_scale=3.0)):
        again = type(each).from_config(each.get_config())
        assert again.gradient_scale == each.gradient_scale


def test_updates_are_for_one_replica(rng):
    batch = some_blocks(rng, 8)
    with tiny.mirrored().scope():
        model = static.skipgram(static.Config(words=V, width=D), W, P, S)
        model.compile(SGD(0.1), {"logits": losses.NegativeSampling(NEGATIVES, S)}, jit_compile=False)
    model.updates = 2
    with pytest.raises(ValueError, match="updates=2: on one replica"):
        model.fit(tf.data.Dataset.from_tensors((batch.inputs, {"logits": batch.windows})), shuffle=False, verbose=0)


# --------------------------------------------------------------------------------------------------------- the data


def test_blocks_have_the_words_of_the_text_with_their_windows(corpus, tmp_path):
    """Of a pass without subsampling every word is a centre once, with neighbours of its own sentence alone."""
    encoded = encode_corpus(documents([corpus]), tmp_path / "ids", lowercase=True)
    counts = encoded.counts(1)
    text = corpus.read_text().lower().split()
    assert counts.counts.sum() == len(text) and set(counts.words) == set(text)
    assert all(text.count(word) == count for word, count in zip(counts.words, counts.counts, strict=True))
    assert [*counts.counts] == sorted(counts.counts, reverse=True)
    size = -(-len(text) // CENTRES)
    first = next(blocks(encoded, counts, 2, 3, 0.0, size, seed=1))
    assert first.word_ids.shape == (size, CENTRES + 6) and first.noise_ids.shape == (size, 32)
    centres = first.word_ids[:, 3:-3]
    names = ["", "", *counts.words]
    assert sorted(names[word] for word in centres[centres > 0]) == sorted(text)
    pairs, ends = {}, {}
    for line in corpus.read_text().lower().splitlines():
        words = line.split()
        for word, follower in itertools.pairwise(words):
            pairs[word, follower] = pairs.get((word, follower), 0) + 1
        ends[words[-1]] = ends.get(words[-1], 0) + 1
    seen, last = {}, {}
    for words, windows in zip(first.word_ids, first.windows, strict=True):
        for place, (_, after) in enumerate(windows, 3):
            if words[place] and after:
                pair = names[words[place]], names[words[place + 1]]
                seen[pair] = seen.get(pair, 0) + 1
            elif words[place]:
                last[names[words[place]]] = last.get(names[words[place]], 0) + 1
    assert seen == pairs and last == ends
    assert {*np.unique(first.windows)} == {0, 1, 2, 3}


def test_subsampling_and_noise_have_the_published_frequencies(corpus, tmp_path):
    encoded = encode_corpus(documents([corpus]), tmp_path / "ids", lowercase=True)
    counts = encoded.counts(1)
    frequency = counts.counts / counts.counts.sum()
    source = blocks(encoded, counts, 2, 3, 0.02, 16, seed=0)
    parts = [next(source) for _ in range(300)]
    centres = np.bincount(np.concatenate([part.word_ids[:, 3:-3].ravel() for part in parts]), minlength=2)[2:]
    expected = frequency * np.minimum(1, (np.sqrt(frequency / 0.02) + 1) * 0.02 / frequency)
    np.testing.assert_allclose(centres / centres.sum(), expected / expected.sum(), rtol=0.06)
    noise = np.bincount(np.concatenate([part.noise_ids.ravel() for part in parts]))[2:]
    power = counts.counts**0.75
    np.testing.assert_allclose(noise / noise.sum(), power / power.sum(), rtol=0.06)


def test_no_words(tmp_path):
    (tmp_path / "a.txt").write_text("one two\n")
    with pytest.raises(ValueError, match="no word occurs 5 times"):
        recipes.pretrain_static([tmp_path / "a.txt"], tmp_path / "out")


# ------------------------------------------------------------------------------------------------------- the recipe


def test_words_of_a_topic_are_near_each_other(folder):
    """By the vectors of the encoder, for texts as they are written."""
    model, bundle = saving.load(folder)
    words = [word for topic in TOPICS for word in topic]
    of_words = np.asarray(model(bundle.features([word.upper() for word in words]))["vector"])
    cosines = np.corrcoef(of_words)
    same = np.kron(np.eye(2), np.ones((5, 5))) - np.eye(10)
    assert cosines[same > 0].min() > cosines[np.kron(1 - np.eye(2), np.ones((5, 5))) > 0].max()
    rows = model.get_layer("word_embedding").get_weights()[0]
    assert not rows[0].any() and bundle.config["lowercase"]
    if not bundle.config["buckets"]:
        np.testing.assert_allclose(rows[1], rows[2:].mean(0), atol=1e-6)
    record = json.loads((folder / "run.json").read_text())
    assert record["command"] == "pretrain_static" and record["history"][-1]["loss"] < record["history"][0]["loss"]
    assert not [*folder.glob("words-*")]


@pytest.mark.parametrize("more", [{}, {"model": "cbow", "subwords": True, "buckets": 50, "adagrad": True}])
def test_an_interrupted_run_resumes_exactly(more, corpus, tmp_path):
    def interrupt(entry):
        if entry["step"] > 40:
            raise KeyboardInterrupt

    recipes.pretrain_static([corpus], tmp_path / "whole", **SMALL | more)
    with pytest.raises(KeyboardInterrupt):
        recipes.pretrain_static([corpus], tmp_path / "parts", interrupt, **SMALL | more)
    assert [*(tmp_path / "parts").glob("words-*")] and not (tmp_path / "parts" / "bundle.json").exists()
    recipes.pretrain_static([corpus], tmp_path / "parts", **SMALL | more)
    assert np.array_equal(table(tmp_path / "whole"), table(tmp_path / "parts"))
    recipes.again(tmp_path / "whole", tmp_path / "again")
    assert np.array_equal(table(tmp_path / "whole"), table(tmp_path / "again"))


def test_errors(corpus, tmp_path, capsys):
    for options, message in (
        ({"batch_size": 100}, "batch_size=100: a multiple of 32"),
        ({"batch_size": 4096}, "batch_size=4096: SGD diverges above 2048 words"),
        ({"min_n": 5, "max_n": 4}, "min_n=5: at most max_n=4"),
    ):
        with pytest.raises(ValueError, match=message):
            recipes.pretrain_static([corpus], tmp_path / "out", **options)
    with pytest.raises(TypeError, match="give a list of files"):
        recipes.pretrain_static(str(corpus), tmp_path / "out")
    shared = ["--corpus", str(corpus), "--out", str(tmp_path / "out")]
    for family, flag, owners in (("static", "--unroll", "elmo and lm"), ("bert", "--window", "static")):
        with pytest.raises(SystemExit):
            main(["pretrain", family, *shared, flag, "3"])
        assert f"pretrain {family}: leave out {flag}: it is for {owners}, not for {family}" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- files and exports


@pytest.mark.parametrize("target", vectors.WRITTEN)
def test_written_files_are_read_again(target, folder, tmp_path):
    out = tmp_path / ("vectors.bin" if target != "word2vec" else "vectors.txt")
    assert main(["convert", str(folder), "--to", target, "--out", str(out)]) == 0
    (model, bundle), (again, of_file) = saving.load(folder), vectors.read(out)
    assert of_file.vocab == bundle.vocab
    words = [*bundle.vocab[1:], "stormy"] if target == "fasttext" else bundle.vocab
    for word in words:
        expected = static.vectors_of(model, bundle.features.ids([word]))
        if word != "<UNK>" or not bundle.config["buckets"]:
            np.testing.assert_allclose(static.vectors_of(again, of_file.features.ids([word])), expected, atol=1e-6)


@pytest.mark.parametrize("target", vectors.WRITTEN)
def test_gensim_and_fasttext_read_the_files(target, folder, tmp_path):
    out = tmp_path / "vectors.bin"
    recipes.convert(folder, out, target_format=target)
    model, bundle = saving.load(folder)
    if target == "fasttext":
        fasttext = pytest.importorskip("fasttext", reason="fastText's own loader is not installed")
        get = fasttext.load_model(str(out)).get_word_vector
    else:
        gensim = pytest.importorskip("gensim.models", reason="gensim is not installed")
        get = gensim.KeyedVectors.load_word2vec_format(str(out), binary=target == "word2vec-binary").get_vector
    for word in bundle.vocab[1:]:
        np.testing.assert_allclose(get(word), static.vectors_of(model, bundle.features.ids([word]))[0], atol=1e-6)


def test_what_cannot_be_written(folder, tmp_path):
    model, bundle = saving.load(folder)
    spaced = type(bundle)(**{**vars(bundle), "vocab": (*bundle.vocab[:-1], "new york")})
    with pytest.raises(ValueError, match="the word 'new york' has white space"):
        vectors.write(tmp_path / "a", model, spaced, "word2vec")
    with pytest.raises(ValueError, match="target_format='glove'"):
        vectors.write(tmp_path / "a", model, bundle, "glove")
    assert not (tmp_path / "a").exists()


@pytest.mark.usefixtures("tflite_in_process")
def test_exports_answer_raw_text_as_keras_does(folder, tmp_path):
    model, bundle = saving.load(folder)
    texts = ["The storm, a cloud.", "unseen soup", "Sturmwolken über Zürich 雨", "x" * 70 + " " + "y" * 200, "rain"]
    expected = np.asarray(model(bundle.features(texts))["vector"])
    version = saved_model.export(model, bundle, tmp_path / "served")
    quantize.convert(folder, tmp_path / "m.tflite", "none", (128,))
    for predictor in (saved_model.load(version), runtime.load(tmp_path / "m.tflite")):
        answers = [answer["vector"] for answer in predictor(texts)]
        np.testing.assert_allclose(answers, expected, atol=1e-6)


@pytest.mark.usefixtures("tflite_in_process")
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_tasks_over_ngrams_in_every_engine(task, tmp_path):
    """Words in and out of the vocabulary, of more n-grams than those before, in every number format."""
    model, bundle = tiny.model(task, "static", sizes={"buckets": 5000, "width": 40})
    saving.save(tmp_path / "model", model, bundle)
    expected = keras_engine.predictor(tmp_path / "model")
    texts = ["the cats .", "an unseen Wort 雨", "z" * 30 + " the " + "é" * 120, "the"]
    of_texts = [expected([text])[0] for text in texts]

    def scores(answers):
        if task == "tag":
            return np.array([word["score"] for answer in answers for word in answer["words"]])
        return np.array([answer["score"] for answer in answers])

    assert len({*scores(of_texts).tolist()}) > 2
    version = saved_model.export(model, bundle, tmp_path / "served")
    np.testing.assert_allclose(scores(saved_model.load(version)(texts)), scores(of_texts), atol=1e-5)
    sizes = {}
    for form, tolerance in (("none", 1e-5), ("float16", 2e-3), ("dynamic", 3e-2)):
        path = quantize.convert(tmp_path / "model", tmp_path / f"{form}.tflite", form, (8, 16))
        answers = runtime.load(path)(texts)
        np.testing.assert_allclose(scores(answers), scores(of_texts), atol=tolerance)
        np.testing.assert_allclose(scores(runtime.load(path)(texts[::-1])[::-1]), scores(answers), atol=1e-6)
        sizes[form] = path.stat().st_size
    assert sizes["dynamic"] < 0.35 * sizes["none"] and sizes["float16"] < 0.6 * sizes["none"]
    with pytest.raises(ValueError, match=r"n-grams.*Python"):
        page.write_page(tmp_path / "none.tflite", tmp_path / "page")


def test_it_is_an_encoder_of_any_task(folder, tmp_path):
    rows = ["the storm and rain", "salt of the soup"] * 10, ["weather", "kitchen"] * 10
    out = tmp_path / "out"
    recipes.finetune(rows, rows, folder, out, "classify", steps=60, learning_rate=0.02)
    answers = ctx.load(out).predict(["the storm and rain", "salt of the soup"])
    assert [answer["label"] for answer in answers] == ["weather", "kitchen"]
