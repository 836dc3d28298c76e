"""Pretraining a BERT and fine-tuning it, from files to model folders."""

import io
import json
import random
from dataclasses import replace

import numpy as np
import pytest

from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.cli import main
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.models import bert, heads
from keras_ctxrep.text.corpus import documents
from keras_ctxrep.text.pretraining import PREPARED
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
from keras_ctxrep.training import shards
from tests import tiny

pytestmark = pytest.mark.trains

WORDS = [f"w{number}" for number in range(30)]
SIZE = tiny.config(width=16, intermediate=32, max_positions=40, initializer_range=0.1)


@pytest.fixture(scope="module", autouse=True)
def size():
    """A size called "test"."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bert.SIZES, "test", SIZE)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sixty documents, each about three words of its own, and a vocabulary of whole words."""
    draw = random.Random(0)
    folder = tmp_path_factory.mktemp("bert")
    text = []
    for _ in range(60):
        own = draw.randrange(10)
        for _ in range(draw.randint(4, 12)):
            text.append(" ".join(draw.choices(WORDS[3 * own : 3 * own + 3], k=draw.randint(3, 9))))
        text.append("")
    (folder / "corpus.txt").write_text("\n".join(text))
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, *WORDS]) + "\n")
    return folder / "corpus.txt"


def pretrain(corpus, out, **options):
    options = {"max_length": 24, "batch_size": 8, "steps": 2, "dropout": 0.0, "evaluations": 1} | options
    if "init" not in options:
        options = {"size": "test", "vocab": corpus.parent / "vocab.txt"} | options
    return recipes.pretrain("bert", [corpus], out, **options)


@pytest.fixture(scope="module")
def folder(corpus):
    """A pretrained BERT that has learned something."""
    pretrain(corpus, corpus.parent / "bert", steps=200, learning_rate=0.02, evaluations=4)
    return corpus.parent / "bert"


@pytest.fixture(scope="module")
def prepared(corpus):
    options = {"vocab": corpus.parent / "vocab.txt", "max_length": 24, "copies": 2, "whole_words": True}
    recipes.prepare([corpus], corpus.parent / "prepared", **options)
    return corpus.parent / "prepared"


def weights(folder):
    return {weight.path: weight.numpy() for weight in saving.load(folder)[0].weights}


def test_both_tasks_are_learned_and_measured(folder, corpus):
    history = json.loads((folder / "run.json").read_text())["history"]
    last = history[-1]
    assert {"val_mlm_logits_loss", "val_mlm_logits_accuracy", "val_nsp_logits_loss", "val_nsp_logits_accuracy"} <= set(
        last
    )
    assert last["val_mlm_logits_loss"] < history[0]["val_mlm_logits_loss"] < np.log(30) + 0.5
    scores = recipes.score(folder, corpus)
    assert scores["mlm_accuracy"] > 0.2  # a guess is right once in thirty times
    again = recipes.score(folder, corpus, batch_size=7)
    assert scores == pytest.approx(again)  # no figure depends on the batch
    shorter = recipes.score(folder, corpus, max_length=12, whole_words=True)
    assert shorter["pairs"] > scores["pairs"] and 0 < shorter["mlm_accuracy"] < 1


def test_prepared_examples(prepared, corpus):
    manifest = json.loads((prepared / PREPARED).read_text())
    text = {line for document in documents([corpus]) for line in document}
    names = [name for name in manifest["files"] if name.startswith("train-")]
    examples = [shards.masked_example(record) for name in names for record in shards.read(prepared / name)]
    assert manifest["examples"] == len(examples)
    assert manifest["pieces"] == sum(len(example.tokens) for example in examples)
    pieces = WordPiece([*SPECIAL_PIECES, *WORDS])
    for example in examples:
        tokens = list(example.tokens)
        for position, label in zip(example.positions, example.labels, strict=True):
            tokens[position] = label
        assert tokens[0] == pieces.cls and tokens[example.first - 1] == tokens[-1] == pieces.sep
        first = " ".join(pieces.vocab[id] for id in tokens[1:4])
        assert any(first in line for line in text) and len(tokens) <= 24
    assert examples[0] != examples[len(examples) // 2]


def test_a_run_over_prepared_examples(prepared, tmp_path):
    history = recipes.pretrain("bert", [prepared], tmp_path, size="test", max_length=24, steps=200, learning_rate=0.02)
    assert history[-1]["val_mlm_logits_loss"] < history[0]["val_mlm_logits_loss"]
    bundle = saving.load(tmp_path)[1]
    assert bundle.vocab == (*SPECIAL_PIECES, *WORDS) and bundle.max_length == 24


def test_prepared_examples_are_the_same_in_every_run(prepared, corpus, tmp_path):
    options = f"--vocab {corpus.parent}/vocab.txt --max-length 24 --copies 2 --whole-words"
    assert main.main(f"prepare bert --corpus {corpus} --out {tmp_path} {options}".split()) == 0
    assert (tmp_path / PREPARED).read_text() == (prepared / PREPARED).read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 16}, "its examples have up to 24 pieces: choose max_length=24"),
        ({"max_length": 50}, "max_length=50: this size has 40 positions"),
        ({"whole_words": True}, "masks and held-out text were chosen by `ctxrep prepare`"),
        ({"valid": "corpus.txt"}, "masks and held-out text were chosen by `ctxrep prepare`"),
        ({"vocab": "corpus.txt"}, "masks and held-out text were chosen by `ctxrep prepare`"),
    ],
)
def test_prepared_examples_that_do_not_fit(prepared, tmp_path, options, message):
    options = {"max_length": 24, "steps": 1} | options
    with pytest.raises(ValueError, match=message):
        recipes.pretrain("bert", [prepared], tmp_path, size="test", **options)


def test_a_folder_that_is_not_prepared_or_was_changed(prepared, tmp_path):
    with pytest.raises(ValueError, match=r"no prepared\.json that can be read; run `ctxrep prepare`"):
        recipes.pretrain("bert", [tmp_path], tmp_path / "out", size="test", max_length=24, steps=1)
    for path in prepared.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "train-00000-01.tfrecord").write_bytes(b"")
    with pytest.raises(ValueError, match=r"train-00000-01\.tfrecord: not what `ctxrep prepare` wrote"):
        recipes.pretrain("bert", [tmp_path], tmp_path / "out", size="test", max_length=24, steps=1)


def test_longer_texts_in_a_second_phase(folder, corpus, tmp_path):
    """It begins where the first ended, heads included, and says nothing of random weights."""
    pretrain(corpus, tmp_path, init=folder, max_length=40, learning_rate=1e-12)
    bundle = saving.load(tmp_path)[1]
    assert bundle.max_length == 40 and bundle.vocab == saving.load(folder)[1].vocab
    before, after = weights(folder), weights(tmp_path)
    assert set(before) == set(after)
    assert all(np.allclose(before[path], after[path], atol=1e-6) for path in before)


@pytest.mark.filterwarnings("ignore:__array__")
def test_init_from_the_encoder_of_a_task_network(folder, corpus, pairs, tmp_path):
    """Nothing of the task network comes along, else the new folder could not be loaded."""
    options = {"stack": "cnn", "units": 4, "steps": 1, "batch_size": 8}
    (tmp_path / "texts.tsv").write_text("text\tlabel\n" + "w1 w2\tyes\nw3 w4\tno\n" * 8)
    recipes.finetune(tmp_path / "texts.tsv", tmp_path / "texts.tsv", folder, tmp_path / "task", **options)
    with pytest.warns(UserWarning, match="task has no .*mlm_transform"):
        pretrain(corpus, tmp_path / "out", init=tmp_path / "task", learning_rate=1e-12)
    fresh, bundle = saving.load(folder)[1], saving.load(tmp_path / "out")[1]
    assert bundle == replace(fresh, config=bundle.config, versions=bundle.versions, files=bundle.files)
    assert recipes.embed(tmp_path / "out", ["w1 w2"], tmp_path / "a.npz") == 1


@pytest.mark.filterwarnings("ignore:__array__")  # of NumPy, on Keras' variables; `warns` lets it out
def test_init_from_an_encoder(folder, corpus, tmp_path):
    saving.save(tmp_path / "encoder", *saving.load_encoder(folder))
    with pytest.warns(UserWarning, match="encoder has no mlm_transform, mlm_norm, .*trained from random weights"):
        pretrain(corpus, tmp_path / "out", init=tmp_path / "encoder", learning_rate=1e-12)
    before, after = weights(folder), weights(tmp_path / "out")
    assert np.allclose(before["layer_0/qkv/kernel"], after["layer_0/qkv/kernel"], atol=1e-6)
    assert not np.allclose(before["nsp_logits/kernel"], after["nsp_logits/kernel"], atol=1e-6)


@pytest.mark.slow  # two trainings: 9 seconds
@pytest.mark.filterwarnings("ignore:__array__")  # as above
def test_a_model_without_next_sentences_learns_them_later(corpus, tmp_path):
    history = pretrain(corpus, tmp_path / "first", next_sentence=False)
    assert "val_loss" in history[-1] and not [name for name in history[-1] if "nsp" in name]
    scores = recipes.score(tmp_path / "first", corpus)
    sentences = sum(len(document) for document in documents([corpus]))
    assert set(scores) == {"texts", "mlm_accuracy"} and scores["texts"] < sentences / 2  # several in a text
    assert "nsp" not in str(pretrain(corpus, tmp_path / "same", init=tmp_path / "first")[-1])
    with pytest.warns(UserWarning, match="has no pooler, nsp_logits that fits: trained from random weights"):
        history = pretrain(corpus, tmp_path / "second", init=tmp_path / "first", next_sentence=True)
    assert "val_nsp_logits_loss" in history[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": "bert", "cased": True}, "keeps its vocabulary and casing"),
        ({"init": "bert", "vocab": "vocab.txt"}, "keeps its vocabulary and casing"),
        ({"init": "bert", "size": "test"}, "the size is that of the model to start from; give one"),
        ({"size": "huge"}, "size 'huge': choose one of bert_2_64_2"),
    ],
)
def test_pretraining_that_is_refused(folder, corpus, tmp_path, options, message):
    options = {k: corpus.parent / v if k in ("init", "vocab") else v for k, v in options.items()}
    with pytest.raises(ValueError, match=message):
        pretrain(corpus, tmp_path / "out", **options)


@pytest.mark.slow  # three trainings
def test_an_interrupted_run_resumes_to_the_result_of_an_undisturbed_one(corpus, tmp_path, power_cut):
    """With dropout and dynamic masks: the weights are those of an undisturbed run, to the last bit."""
    options = {"steps": 12, "dropout": 0.3, "learning_rate": 1e-3, "evaluations": 2, "checkpoint_minutes": 1e-9}
    pretrain(corpus, tmp_path / "one", **options)
    with power_cut(5):
        pretrain(corpus, tmp_path / "two", **options)
    assert not (tmp_path / "two" / "bundle.json").exists()
    pretrain(corpus, tmp_path / "two", **options)
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(np.array_equal(first[path], second[path]) for path in first)


# ------------------------------------------------------------------------------------------------- pairs of texts


@pytest.fixture(scope="module")
def pairs(corpus):
    """Whether two texts begin with the same word."""
    draw = random.Random(1)
    rows = ["sentence1\tsentence2\tlabel"]
    for _ in range(64):
        first, second = draw.sample(WORDS, 2)
        same = draw.random() < 0.5
        rows.append(f"{first} {draw.choice(WORDS)}\t{first if same else second}\t{'yes' if same else 'no'}")
    path = corpus.parent / "pairs.tsv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def classifier(folder, pairs):
    out = folder.parent / "classifier"
    recipes.finetune(pairs, pairs, folder, out, steps=60, batch_size=16, learning_rate=0.01, dropout=0.0)
    return out


def test_pairs_are_classified(classifier, pairs, capsys, monkeypatch):
    scores = recipes.score(classifier, pairs)
    assert scores["examples"] == 64 and scores["accuracy"] > 0.7
    assert saving.load(classifier)[1].pairs
    predictor = keras_engine.predictor(classifier)
    first, second = predictor(["w1 w2", "w1 w2"], ["w1", "w5"])
    assert first["probabilities"] != second["probabilities"]
    lines = list(predictor.lines(io.BytesIO(b"w1 w2\tw1\nw1 w2\tw5\n")))
    for line, answer in zip(lines, (first, second), strict=True):
        assert line["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-6)
    with pytest.raises(ValueError, match="this model reads pairs of texts"):
        predictor(["w1"])


def test_a_pair_among_single_texts(folder, pairs, tmp_path):
    single = tmp_path / "single.tsv"
    single.write_text("text\tlabel\nw1 w2\tyes\nw3\tno\n")
    with pytest.raises(ValueError, match=r"single.tsv:2: one text; this model reads a pair of texts"):
        recipes.finetune(pairs, single, folder, tmp_path / "out", steps=1)
    with pytest.raises(ValueError, match=r"pairs.tsv:2: a pair of texts; this model reads one text"):
        recipes.finetune(single, pairs, folder, tmp_path / "out", steps=1)


@pytest.mark.slow  # three engines: 10 seconds
@pytest.mark.usefixtures("tflite_in_process")
def test_every_engine_classifies_pairs_alike(classifier, pairs, tmp_path, capsys):
    assert main.main(["export", str(classifier), "--out", str(tmp_path / "serving")]) == 0
    assert main.main(["tflite", str(classifier), "--out", str(tmp_path / "a.tflite"), "--lengths", "8,24"]) == 0
    (tmp_path / "lines.txt").write_text("w1 w2\tw1\nw1 w2\tw5\nw9\t\n")
    answers = []
    for artifact in (classifier, tmp_path / "serving", tmp_path / "a.tflite"):
        capsys.readouterr()
        assert main.main(["predict", str(artifact), "--input", str(tmp_path / "lines.txt")]) == 0
        answers.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    for result in answers[1:]:
        for answer, other in zip(answers[0], result, strict=True):
            assert answer["label"] == other["label"]
            assert answer["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    files = [str(classifier), str(tmp_path / "serving"), str(tmp_path / "a.tflite")]
    assert main.main(["compare", *files, "--data", str(pairs), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["agreement"] for row in rows] == [1.0, 1.0, 1.0] and rows[0]["quality"] > 0.7


def test_lines_of_pairs(classifier):
    lines = list(keras_engine.predictor(classifier).lines(io.BytesIO(b"w1\nw1\tw2\tw3\nw1\tw\xff2\n\tw3\n\n")))
    empty = {"label": None, "score": None, "probabilities": {}}
    assert lines[0] == lines[1] == {"error": "a pair has one tab between its texts"} | empty
    assert lines[2]["warning"].startswith("not UTF-8") and "label" in lines[2] and "label" in lines[3]
    assert lines[4] == {"error": "empty line"} | empty


# ------------------------------------------------------------------------------------- what a folder is good for


def test_the_encoder_of_a_model_whose_head_reads_no_pooler(folder, tmp_path):
    encoder, bundle = saving.load_encoder(folder)
    tagger = replace(bundle, **tasks.bundle_fields("tag"), labels=("a", "b"), head={"dropout": 0.1})
    saving.save(tmp_path / "tagger", heads.tag(encoder, 2), tagger)
    result, bundle = saving.load_encoder(tmp_path / "tagger")
    assert bundle.config["pooler"] is False and "pooled" not in result.output
    assert recipes.embed(tmp_path / "tagger", ["w1 w2"], tmp_path / "a.npz") == 1
    assert [word["word"] for word in keras_engine.predictor(tmp_path / "tagger")(["w1 w2"])[0]["words"]] == ["w1", "w2"]


@pytest.mark.filterwarnings("ignore:__array__")
def test_the_encoder_of_a_classifier_of_pairs(classifier, corpus, tmp_path):
    encoder, bundle = saving.load_encoder(classifier)
    assert not bundle.pairs
    saving.save(tmp_path / "encoder", encoder, bundle)
    assert len(keras_engine.predictor(tmp_path / "encoder")(["w1 w2"])[0]["vector"]) == 16
    with pytest.warns(UserWarning, match="has no mlm_transform"):
        pretrain(corpus, tmp_path / "on", init=classifier)
    assert not saving.load(tmp_path / "on")[1].pairs


def test_a_failed_prepare_deletes_nothing(prepared, folder, corpus, tmp_path):
    options = {"vocab": corpus.parent / "vocab.txt"}
    for wrong, message in (
        ({"max_length": 4}, "max_length=4"),
        ({"copies": 0}, "copies=0"),
        ({"seed": -1}, "seed=-1"),
        ({"valid": tmp_path / "one.txt"}, "the held-out text has no pair"),
    ):
        (tmp_path / "one.txt").write_text("w1\n")
        before = sorted(path.name for path in prepared.iterdir())
        with pytest.raises(ValueError, match=message):
            recipes.prepare([corpus], prepared, **(options | wrong))
        assert sorted(path.name for path in prepared.iterdir()) == before
    with pytest.raises(ValueError, match="a model folder; choose another one"):
        recipes.prepare([corpus], folder, **options)
    (tmp_path / "train-images.npz").write_bytes(b"mine")
    recipes.prepare([corpus], tmp_path, copies=1, **options)
    assert (tmp_path / "train-images.npz").read_bytes() == b"mine"


def test_text_is_prepared_as_the_model_to_start_from_reads_it(folder, corpus, tmp_path):
    model, bundle = saving.load(folder)
    saving.save(tmp_path / "cased", model, replace(bundle, lowercase=False))
    options = {"max_length": 24, "copies": 1}
    recipes.prepare([corpus], tmp_path / "one", vocab=corpus.parent / "vocab.txt", **options)
    recipes.prepare([corpus], tmp_path / "two", init=tmp_path / "cased", **options)
    run = {"init": tmp_path / "cased", "max_length": 24, "steps": 1}
    with pytest.raises(ValueError, match="prepared with another vocabulary or casing"):
        recipes.pretrain("bert", [tmp_path / "one"], tmp_path / "out", **run)
    recipes.pretrain("bert", [tmp_path / "two"], tmp_path / "out", **run)
    assert saving.load(tmp_path / "out")[1].lowercase is False


def test_arguments_of_the_wrong_kind(folder, corpus, tmp_path):
    with pytest.raises(ValueError, match="family='gpt': elmo or bert"):
        recipes.pretrain("gpt", [corpus], tmp_path, steps=1)
    with pytest.raises(TypeError, match="give a list of files"):
        recipes.pretrain("bert", str(corpus), tmp_path, steps=1)
    with pytest.raises(ValueError, match="steps=None, minutes=None"):
        recipes.pretrain("bert", [corpus], tmp_path)
    with pytest.raises(ValueError, match="the folder of the model to start from"):
        recipes.pretrain("bert", [corpus], folder, init=folder, steps=1)
    with pytest.raises(TypeError, match="give a list of texts"):
        keras_engine.predictor(train_encoder(folder, tmp_path))("w1 w2")


def train_encoder(folder, out):
    saving.save(out / "encoder", *saving.load_encoder(folder))
    return out / "encoder"


@pytest.mark.slow  # two trainings
def test_a_checkpoint_of_another_dev_set(folder, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "save", lambda *_: None)  # as if the run had been killed at its end
    options = {"steps": 2, "batch_size": 8, "seed": 0}
    recipes.finetune(pairs, pairs, folder, tmp_path / "out", **options)
    (tmp_path / "dev.tsv").write_text("\n".join(pairs.read_text().split("\n")[:20]) + "\n")
    with pytest.raises(ValueError, match="a run with other text or settings"):
        recipes.finetune(pairs, tmp_path / "dev.tsv", folder, tmp_path / "out", **options)
