"""Pretraining a biLM and scoring with it, from files to model folders."""

import json
import random
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_ctxrep import optimizers, recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.models import elmo
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.recipes import pretraining
from keras_ctxrep.text.features import CharacterFeatures
from keras_ctxrep.text.pretraining import Vocabulary, bptt_segments, language_model_batch, stream_batch
from keras_ctxrep.text.tokens import read_vocab
from keras_ctxrep.training import fit as training_fit
from keras_ctxrep.training.runs import options_from_run
from tests import tiny

pytestmark = pytest.mark.trains

WORDS = [f"w{number}" for number in range(40)]
SIZE = tiny.config("elmo", cells=16, projection=8)


@pytest.fixture(scope="module", autouse=True)
def size():
    """A size called "test"."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(elmo.SIZES, "test", SIZE)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Thirty documents of ten sentences, in which the first words are by far the most frequent."""
    draw = random.Random(0)
    odds = [1 / (rank + 1) for rank in range(len(WORDS))]
    documents = [
        "\n".join(" ".join(draw.choices(WORDS, odds, k=draw.randint(2, 12))) for _ in range(10)) for _ in range(30)
    ]
    path = tmp_path_factory.mktemp("recipes") / "corpus.txt"
    path.write_text("\n\n".join(documents) + "\n")
    return path


def pretrain(corpus, out, **options):
    options = {"size": "test", "max_length": 8, "batch_size": 8, "steps": 1, "dropout": 0.0} | options
    return recipes.pretrain("elmo", [corpus], out, **options)


@pytest.fixture(scope="module")
def folder(corpus):
    """A language model that has learned something."""
    pretrain(corpus, corpus.parent / "lm", steps=30, learning_rate=0.03)
    return corpus.parent / "lm"


def weights(folder, *layers):
    model, _ = saving.load(folder)
    return [weight for name in layers for weight in model.get_layer(name).get_weights()]


def same(first, other):
    return all(a.shape == b.shape and np.allclose(a, b, atol=1e-6) for a, b in zip(first, other, strict=True))


# ---------------------------------------------------------------------------------------------------------- scoring


@pytest.mark.slow  # 9 seconds
def test_scores_of_sentences_make_up_the_perplexity(folder, corpus, capsys):
    assert main.main(["score", str(folder), "--data", str(corpus), "--lm"]) == 0
    scores = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [score["text"] for score in scores] == corpus.read_text().split("\n\n")[0].split("\n") + [
        line for document in corpus.read_text().rstrip("\n").split("\n\n")[1:] for line in document.split("\n")
    ]
    assert main.main(["score", str(folder), "--data", str(corpus), "--json"]) == 0
    total = json.loads(capsys.readouterr().out)
    words = sum(score["words"] + 1 for score in scores)
    assert (total["sentences"], total["words"]) == (len(scores), words) == (300, words)
    sums = {way: sum(score[way] for score in scores) for way in ("forward", "backward")}
    for way, value in sums.items():
        assert total[f"{way}_perplexity"] == pytest.approx(np.exp(-value / words), rel=1e-5)
    assert total["perplexity"] == pytest.approx(np.exp(-sum(sums.values()) / (2 * words)), rel=1e-5)
    assert total["perplexity"] < 25  # a uniform guess would have 43


def log_probabilities(folder, sentence):
    """(forward, backward) of a sentence by itself."""
    model, bundle = saving.load(folder)
    features = CharacterFeatures(1000, SIZE.max_characters)
    inputs, targets, _ = language_model_batch(features, Vocabulary(bundle.vocab), features.encode([sentence]))
    scores = []
    for way in ("forward", "backward"):
        z = np.asarray(model(inputs)[f"{way}_logits"], np.float64)[0]
        z -= np.log(np.exp(z).sum(-1, keepdims=True))
        scores.append(z[np.arange(len(z)), targets[f"{way}_logits"][0]].sum())
    return scores


def test_sentences_are_scored_whole_and_in_order(folder):
    """A pool of four batches, and sentences longer than `max_length`; those without a word are left out."""
    draw = random.Random(1)
    sentences = [" ".join(draw.choices([*WORDS, "unknown"], k=draw.randint(1, 30))) for _ in range(150)]
    sentences[70], sentences[140] = "\u200b", " ".join(["w1"] * 300)
    scores = list(recipes.score_sentences(folder, iter(sentences), batch_size=2))
    assert [score["text"] for score in scores] == [text for text in sentences if text != "\u200b"]
    assert [score["words"] for score in scores] == [len(text.split()) for text in sentences if text != "\u200b"]
    for number in (0, 100, 139):
        entry = scores[number]
        forward, backward = log_probabilities(folder, entry["text"])
        assert entry["forward"] == pytest.approx(forward, rel=1e-5)
        assert entry["backward"] == pytest.approx(backward, rel=1e-5)
        assert entry["perplexity"] == pytest.approx(np.exp(-(forward + backward) / (2 * entry["words"] + 2)), rel=1e-5)


def test_running_text_is_scored_with_carried_state(folder, tmp_path):
    """One document, in BPTT segments of 20 words, against the whole document."""
    draw = random.Random(2)
    sentences = [draw.choices(WORDS, k=draw.randint(1, 12)) for _ in range(15)]
    (tmp_path / "a.txt").write_text("\n".join(map(" ".join, sentences)))
    model, bundle = saving.load(folder)
    whole = elmo.language_model(SIZE, len(bundle.vocab), streams=1)
    copy_weights(model, whole)
    count = sum(map(len, sentences)) + len(sentences)
    (batch,) = bptt_segments([sentences], 1, count)
    inputs, targets, _ = stream_batch(bundle.features, Vocabulary(bundle.vocab), batch)
    logits = whole(inputs)
    scores = recipes.score(folder, tmp_path / "a.txt", batch_size=2, carry_state=True)
    assert (scores["sentences"], scores["words"]) == (15, count)
    for way in ("forward", "backward"):
        z = np.asarray(logits[f"{way}_logits"], np.float64)[0]
        z -= np.log(np.exp(z).sum(-1, keepdims=True))
        mean = z[np.arange(count), targets[f"{way}_logits"][0]].mean()
        assert scores[f"{way}_perplexity"] == pytest.approx(np.exp(-mean), rel=1e-5)
    alone = recipes.score(folder, tmp_path / "a.txt")
    assert alone["words"] == count and alone["perplexity"] != pytest.approx(scores["perplexity"], rel=1e-4)


def test_only_a_language_model_scores_sentences(folder, tmp_path):
    saving.save(tmp_path / "encoder", *saving.load_encoder(folder))
    with pytest.raises(ValueError, match="its task is 'embed'; sentences are scored by an ELMo language model"):
        list(recipes.score_sentences(tmp_path / "encoder", ["w1"]))
    with pytest.raises(ValueError, match="carry_state is of a biLM"):
        recipes.score(tmp_path / "encoder", "any.txt", carry_state=True)


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.fixture
def vocabularies(tmp_path):
    """Files of words: sorted, in the wrong order, and without the markers."""
    markers = ["<S>", "</S>", "<UNK>"]
    for name, lines in (("sorted", markers + WORDS), ("unsorted", markers + WORDS[::-1]), ("plain", WORDS)):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 100}, r"samples=100: the vocabulary has \d\d words"),
        ({"samples": 44, "vocab": "sorted.txt"}, "samples=44: the vocabulary has 43 words"),
        ({"vocab": "plain.txt"}, "its first lines must be <S>, </S>, <UNK>"),
        ({"vocab": "unsorted.txt", "samples": 5}, "not sorted by count, as sampled softmax needs"),
        ({"init": "lm"}, "size='test' and init=.*: the size is that of the model to start from; give one"),
        ({"init": "lm", "size": None, "read_words": True}, "reads characters or other words"),
        ({"optimizer": "sgd"}, "optimizer='sgd': must be adamw, adagrad or lamb"),
        ({"optimizer": "adagrad", "decay": "cosine"}, "decay='cosine': Adagrad's learning rate stays as it is"),
        ({"size": "huge"}, "size 'huge': choose one of elmo_2x128"),
    ],
)
def test_pretraining_that_is_refused(folder, corpus, vocabularies, options, message):
    options = {k: vocabularies / v if k == "vocab" else folder if k == "init" else v for k, v in options.items()}
    with pytest.raises(ValueError, match=message):
        pretrain(corpus, vocabularies / "out", **options)
    assert not (vocabularies / "out" / "bundle.json").exists()


@pytest.mark.parametrize("options", [{"unroll": 5}, {"samples": 5}, {"read_words": True}, {"optimizer": "adagrad"}])
def test_options_that_are_not_for_bert(corpus, tmp_path, options):
    with pytest.raises(ValueError, match="read_words, unroll, samples and adagrad are for ELMo"):
        recipes.pretrain("bert", [corpus], tmp_path, steps=1, **options)


# -------------------------------------------------------------------------------------------------- to start from


STANDING_STILL = {"size": None, "learning_rate": 1e-12}
ENCODER = ("char_cnn", "forward_0", "backward_0")


def test_init_from_a_language_model(folder, corpus, tmp_path):
    pretrain(corpus, tmp_path, init=folder, **STANDING_STILL)
    assert same(weights(tmp_path, *ENCODER, "softmax"), weights(folder, *ENCODER, "softmax"))
    assert saving.load(tmp_path)[1].vocab == saving.load(folder)[1].vocab


@pytest.mark.filterwarnings("ignore:__array__")  # of NumPy, on Keras' variables; `warns` lets it out
def test_init_with_another_vocabulary(folder, corpus, vocabularies):
    """A softmax over running text, sampled, too."""
    (vocabularies / "short.txt").write_text("\n".join(["<S>", "</S>", "<UNK>", *WORDS[:20]]))
    out, vocab = vocabularies / "out", vocabularies / "short.txt"
    with pytest.warns(UserWarning, match="has no softmax that fits: trained from random weights"):
        pretrain(corpus, out, init=folder, vocab=vocab, unroll=4, samples=5, **STANDING_STILL)
    assert same(weights(out, *ENCODER), weights(folder, *ENCODER))
    assert list(saving.load(out)[1].vocab) == read_vocab(vocab) and weights(out, "softmax")[0].shape == (23, 8)


@pytest.mark.filterwarnings("ignore:__array__")  # of NumPy, on Keras' variables; `warns` lets it out
def test_init_from_an_encoder(folder, corpus, tmp_path):
    """Its vocabulary is counted anew, and is the same; its softmax is a fresh one."""
    saving.save(tmp_path / "encoder", *saving.load_encoder(folder))
    with pytest.warns(UserWarning, match="encoder has no softmax that fits"):
        pretrain(corpus, tmp_path / "out", init=tmp_path / "encoder", **STANDING_STILL)
    assert same(weights(tmp_path / "out", *ENCODER), weights(folder, *ENCODER))
    assert saving.load(tmp_path / "out")[1].vocab == saving.load(folder)[1].vocab
    assert not same(weights(tmp_path / "out", "softmax"), weights(folder, "softmax"))


# ----------------------------------------------------------------------------------------------------- other models


@pytest.mark.slow  # two trainings: 10 seconds
def test_a_model_over_words(corpus, tmp_path):
    history = pretrain(corpus, tmp_path, read_words=True, steps=30, learning_rate=0.03)
    assert json.loads((tmp_path / "run.json").read_text())["history"] == history
    scores = recipes.score(tmp_path, corpus)
    assert scores["perplexity"] < 25
    first, second = recipes.score_sentences(tmp_path, ["w1 w2 neverseen", "w1 w2 norseen"])
    assert first["forward"] == second["forward"] and first["words"] == 3
    recipes.embed(tmp_path, ["w1 w2", "neverseen"], tmp_path / "x.npz", layers="all")
    assert tiny.arrays_of(tmp_path / "x.npz")["0"].shape == (2, 2, 16)
    encoder, bundle = saving.load_encoder(tmp_path)
    assert encoder(bundle.features(["w1 w2"]))["sequence"].shape == (1, 2, 16)


def test_a_model_is_trained_again_from_its_record(corpus, tmp_path, monkeypatch):
    """From run.json alone, and from another folder, to the same weights."""
    monkeypatch.chdir(corpus.parent)
    options = {"read_words": True, "dropout": 0.2, "steps": 3, "seed": 5, "tensorboard": None}
    history = pretrain(corpus.name, tmp_path / "one", **options)
    monkeypatch.chdir(tmp_path)
    command, arguments, options = options_from_run(tmp_path / "one")
    assert command == "pretrain"
    again = recipes.pretrain(**arguments, out=tmp_path / "two", **options)
    assert [entry["val_loss"] for entry in again] == [entry["val_loss"] for entry in history]
    first, second = (saving.load(tmp_path / name)[0].get_weights() for name in ("one", "two"))
    assert all(np.array_equal(left, right) for left, right in zip(first, second, strict=True))


def test_a_nan_loss_ends_the_command(corpus, tmp_path, capsys):
    options = "--size test --max-length 8 --batch-size 8 --steps 40 --learning-rate 1e38"
    assert main.main(f"pretrain elmo --corpus {corpus} --out {tmp_path} {options}".split()) == 1
    message = r"ctxrep: step \d+: the loss became (nan|inf); try a learning rate below 1e\+38; its batch is from "
    assert re.search(message + re.escape(f"{corpus}, seed 0"), capsys.readouterr().err)
    assert not (tmp_path / "bundle.json").exists()


def test_an_unknown_option(corpus, tmp_path):
    with pytest.raises(TypeError, match=r"pretrain\(\) has no option 'batchsize'; the nearest one is 'batch_size'"):
        pretrain(corpus, tmp_path, batchsize=3)
    with pytest.raises(TypeError, match=r"prepare\(\) has no option 'copy'; the nearest one is 'copies'"):
        recipes.prepare([corpus], tmp_path, copy=3)


@pytest.mark.slow  # three epochs: 10 seconds
def test_the_published_recipe_learns(corpus, tmp_path):
    history = pretrain(corpus, tmp_path, unroll=5, samples=20, optimizer="adagrad", steps=40)
    assert history[-1]["val_loss"] < history[0]["val_loss"] < np.log(43) + 0.1
    assert recipes.score(tmp_path, corpus)["perplexity"] < 25
    assert not [weight for weight in saving.load(tmp_path)[0].weights if weight.name == "state"]


@pytest.mark.release  # three processes that import TensorFlow and train
def test_a_killed_run_resumes_to_the_result_of_an_undisturbed_one(corpus, tmp_path):
    """Killed hard, with dropout, sampled words and carried states, and started again by the same command."""
    options = "--unroll 5 --samples 20 --steps 20 --batch-size 8 --learning-rate 0.0003 --checkpoint-minutes 0.001"

    def start(name):
        command = (
            f"{sys.executable} -m keras_ctxrep.cli pretrain elmo --corpus {corpus} --out {tmp_path}/{name} {options}"
        )
        return subprocess.Popen(command.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def step():
        state = tmp_path / "killed" / "checkpoint" / "state.json"
        return json.loads(state.read_text())["step"] if state.exists() else 0

    undisturbed, killed = start("undisturbed"), start("killed")
    while step() < 5 and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    at = step()
    assert 5 <= at < 20 and not (tmp_path / "killed" / "bundle.json").exists()
    again = start("killed")
    out, err = again.communicate()
    assert again.returncode == 0, err
    undisturbed.communicate()
    assert int(out.split()[1]) > at  # it goes on: the first line is "step N"
    first, other = (saving.load(tmp_path / name)[0].get_weights() for name in ("undisturbed", "killed"))
    assert all(np.array_equal(left, right) for left, right in zip(first, other, strict=True))


def test_a_vocabulary_is_learned_once(corpus, tmp_path, monkeypatch):
    """From a sample of the sentences; kept under a hash of the text and of the options it depends on."""
    changed = tmp_path / "changed.txt"
    changed.write_text(corpus.read_text() + "\nw1 new new new\n")
    sizes, count = [], Vocabulary.count

    def counting(sentences, *options):
        sentences = list(sentences)
        sizes.append(len(sentences))
        return count(sentences, *options)

    monkeypatch.setattr(Vocabulary, "count", counting)
    monkeypatch.setattr(pretraining, "_fit", lambda *_, **__: [])  # the model is not trained
    for path, options in ((corpus, {}), (corpus, {"learning_rate": 0.1}), (corpus, {"vocab_size": 20}), (changed, {})):
        pretrain(path, tmp_path / "model", vocab_sample=100, **options)
        shutil.rmtree(tmp_path / "model")
    assert sizes == [100] * 3


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_lamb_is_for_both_families(family, corpus, tmp_path, monkeypatch):
    given, fit = [], training_fit.fit
    monkeypatch.setattr(
        training_fit, "fit", lambda *args, **more: given.append(more["optimizer"]) or fit(*args, **more)
    )
    sizes = {"elmo": {"size": "test", "max_length": 8}, "bert": {"size": "bert_2_64_2", "max_length": 16}}
    options = {"steps": 2, "batch_size": 4, "optimizer": "lamb", "decay": "cosine"} | sizes[family]
    history = recipes.pretrain(family, [corpus], tmp_path, **options)
    assert given == [optimizers.OptimizerSpec(optimizers.LAMB)] and np.isfinite(history[-1]["loss"])
