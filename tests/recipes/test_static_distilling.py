"""Distillation to static vectors: the first table, what it learns, what is kept, resumed and refused."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from keras_ctxrep import recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.options import StaticDistillation
from keras_ctxrep.recipes import static_distilling as distilling
from keras_ctxrep.text.retrieval import unit
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from tests import tiny

pytestmark = pytest.mark.trains

WORDS = ("the", "cats", "ab", "fell", "rain", "she", "a", "had", "bead", "cat")


@pytest.fixture
def teacher(tmp_path):
    letters = sorted(set("".join(WORDS)))
    pieces = (*tiny.VOCABULARIES["bert"], *letters, *(f"##{letter}" for letter in letters))
    vocab = tuple(dict.fromkeys(pieces))
    model, bundle = tiny.model("embed", pooling="mean", normalize=True, vocab=vocab)
    saving.save(tmp_path / "teacher", model, bundle)
    return tmp_path / "teacher"


@pytest.fixture
def corpus(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(500)), encoding="utf-8")
    return path


def distill(teacher, corpus, out, **options):
    settings = {"dims": 6, "passes": 4, "batch_size": 32, "evaluations": 2} | options
    return recipes.distill_static(teacher, [corpus], out, **settings)


def table_of(folder):
    return saving.load(folder).model.get_layer("word_embedding").get_weights()[0]


def test_the_first_table(teacher):
    """Against NumPy: each piece between markers through the teacher, centred, on the axes, by frequency."""
    source = saving.load(teacher)
    axes = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 3)))[0]
    vocab = source.bundle.vocab[:-3]
    bundle = distilling._student(replace(source.bundle, vocab=vocab), Counter(), StaticDistillation(dims=3))
    counts = Counter({vocab.index("the"): 6, vocab.index("cat"): 2})
    table = distilling._first_table(source, bundle, axes, counts, 0.1)
    ids = np.array([[2, number, 3] for number in range(len(vocab))], np.int32)
    vectors = source.model({"token_ids": ids, "segment_ids": 0 * ids, "mask": 0 * ids + 1})["vector"].numpy()
    expected = (vectors - vectors.mean(0)) @ axes
    expected[vocab.index("the")] *= 0.1 / (0.1 + 0.75)
    expected[vocab.index("cat")] *= 0.1 / (0.1 + 0.25)
    expected[:5] = 0
    np.testing.assert_allclose(table / table.std(), expected / expected.std(), atol=1e-5)
    assert table.std() == pytest.approx(distilling.SCALE)


def test_axes_keep_the_cosines():
    rng = np.random.default_rng(0)
    vectors = unit(rng.normal(size=(300, 4)) @ rng.normal(size=(4, 20)) + 0.5 * rng.normal(size=20))
    axes = distilling.principal_axes(vectors, 5)  # four, and the mean
    np.testing.assert_allclose(axes.T @ axes, np.eye(5), atol=1e-6)
    projected = vectors @ axes
    np.testing.assert_allclose(projected @ projected.T, vectors @ vectors.T, atol=1e-5)


def test_a_table_learns(teacher, corpus, tmp_path):
    before = distill(teacher, corpus, tmp_path / "untaught", passes=1, learning_rate=1e-9)
    history = distill(teacher, corpus, tmp_path / "s", passes=20, learning_rate=0.03)
    assert history[-1]["val_loss"] < 0.5 * before[-1]["val_loss"]
    model, bundle = saving.load(tmp_path / "s")
    assert (bundle.family, bundle.task, bundle.pooling, bundle.normalize) == ("static", "embed", "mean", True)
    assert bundle.config["pieces"] and bundle.max_length == 512 and "# Distilled from teacher" in bundle.card
    assert not any(path.is_dir() for path in (tmp_path / "s").iterdir())
    table = table_of(tmp_path / "s")
    assert not table[:5].any() and np.abs(table[5:]).max(1).all()
    vectors = model(bundle.features(["the cats", "rain"]))["vector"]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    record = json.loads((tmp_path / "s" / "run.json").read_text())
    assert record["command"] == "distill_static" and record["options"]["dims"] == 6


def test_the_row_of_a_piece_that_is_never_read_stays(teacher, corpus, tmp_path, monkeypatch):
    first = {}
    made = distilling._first_table

    def keep(*args):
        first["table"] = made(*args)
        return first["table"]

    monkeypatch.setattr(distilling, "_first_table", keep)
    distill(teacher, corpus, tmp_path / "s")
    changed = np.abs(table_of(tmp_path / "s") - first["table"]).max(1) > 0
    vocab = saving.load(tmp_path / "s").bundle.vocab
    assert {"the", "cat", "rain"} <= {piece for piece, moved in zip(vocab, changed, strict=True) if moved}
    assert not {".", "中", *SPECIAL_PIECES} & {piece for piece, moved in zip(vocab, changed, strict=True) if moved}


def test_fewer_pieces(teacher, corpus, tmp_path):
    distill(teacher, corpus, tmp_path / "s", vocab_size=34)
    bundle = saving.load(tmp_path / "s").bundle
    whole = saving.load(teacher).bundle
    assert len(bundle.vocab) == 34 == bundle.config["words"] and set(bundle.vocab) < set(whole.vocab)
    for word in WORDS:  # no word is unknown that was not
        assert not any(1 in each.features([word])["token_ids"][0, 1:] for each in (bundle, whole))
    assert "the" in bundle.vocab and not {*WORDS} & {*whole.vocab} <= {*bundle.vocab}


def test_the_same_again_and_after_an_interruption(teacher, corpus, tmp_path, monkeypatch):
    distill(teacher, corpus, tmp_path / "a")
    monkeypatch.setattr(distilling, "SHARD", 100)
    read, whole = [], distilling.Predictor.__call__

    def call(self, texts):
        read.append(len(texts))
        if len(read) == 3:
            raise RuntimeError("power cut")
        return whole(self, texts)

    monkeypatch.setattr(distilling.Predictor, "__call__", call)
    with pytest.raises(RuntimeError, match="power cut"):
        distill(teacher, corpus, tmp_path / "b")
    assert len([*(tmp_path / "b").glob("teacher-*/*.npy")]) == 2 and not (tmp_path / "b" / "bundle.json").exists()
    distill(teacher, corpus, tmp_path / "b")
    assert read[:3] == [100] * 3 and sum(read[3:]) == sum(read[:2]) + sum(read[3:]) - 200  # the first two are kept
    monkeypatch.setattr(distilling, "SHARD", 4096)
    np.testing.assert_array_equal(table_of(tmp_path / "a"), table_of(tmp_path / "b"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": 9}, "dims=9: at most 8, the width of"),
        ({"batch_size": 500}, "distinct sentences of at least 4 words in .*corpus.txt: a batch of 500 and held-out"),
        ({"vocab_size": 7}, "vocab_size=7: special pieces and letters are"),
    ],
)
def test_refused(options, message, teacher, corpus, tmp_path):
    with pytest.raises(ValueError, match=message):
        distill(teacher, corpus, tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_teachers_that_cannot_teach(teacher, corpus, tmp_path):
    tiny.save(tmp_path / "elmo", tiny.bundle("embed", "elmo"))
    with pytest.raises(ValueError, match="family 'elmo' over words; a BERT is needed"):
        distill(tmp_path / "elmo", corpus, tmp_path / "s")
    with pytest.raises(ValueError, match="the folder of the teacher"):
        distill(teacher, corpus, teacher)
    distill(teacher, corpus, tmp_path / "s")
    with pytest.raises(ValueError, match="finished model of another run"):
        distill(teacher, corpus, tmp_path / "s", dims=5)


def test_the_command(teacher, corpus, tmp_path, capsys):
    command = ["distill", str(teacher), "--corpus", str(corpus), "--static", "--dims", "5", "--batch-size", "32"]
    assert main.main([*command, "--passes", "1", "--out", str(tmp_path / "s")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{tmp_path / 's'}: ")
    assert saving.load(tmp_path / "s").bundle.config["width"] == 5
    for more, message in (
        (["--layers", "0"], "leave out --layers with --static"),
        (["--data", str(corpus)], "leave out --data with --corpus"),
    ):
        try:
            status = main.main([*command, *more, "--out", str(tmp_path / "t")])
        except SystemExit as error:
            status = error.code
        assert status == 2 and message in capsys.readouterr().err
