"""Neighbours, analogies and similarities of static word vectors, against loops over the words."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from keras_ctxrep import recipes
from keras_ctxrep.cli.main import main
from keras_ctxrep.recipes import word_vectors
from keras_ctxrep.recipes.word_vectors import WordTable
from tests import tiny

WORDS = [f"w{number}" for number in range(30)]


@pytest.fixture(scope="module")
def table():
    return dict(zip(WORDS, np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32), strict=True))


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors")
    rows = (f"{word} {' '.join(map(str, vector.tolist()))}\n" for word, vector in table.items())
    (path / "vectors.txt").write_text("".join(rows))
    recipes.convert(path / "vectors.txt", path / "model", source_format="vectors")
    return path / "model"


def unit(vector):
    return np.asarray(vector, np.float64) / np.linalg.norm(np.asarray(vector, np.float64))


def nearest(table, query, without):
    scores = {word: float(unit(query) @ unit(vector)) for word, vector in table.items() if word not in without}
    return sorted(scores.items(), key=lambda item: -item[1])


def same(found, expected):
    assert [word for word, _ in found] == [word for word, _ in expected]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=1e-6)


def test_neighbours_and_analogies(table, folder, capsys):
    vectors = WordTable(folder)
    same(vectors.neighbours("W3", 5), nearest(table, table["w3"], {"w3"})[:5])
    a, b, c = (unit(table[word]) for word in ("w1", "w2", "w4"))
    expected = nearest(table, a - b + c, {"w1", "w2", "w4"})
    same(vectors.analogy("w1", "w2", "w4", 40), expected)
    assert main(["neighbours", str(folder), "w3", "W5", "-k", "2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.keys() == {"w3", "W5"} and [*map(tuple, printed["w3"])] == vectors.neighbours("w3", 2)
    assert main(["analogy", str(folder), "w1", "w2", "w4", "-k", "1"]) == 0
    assert capsys.readouterr().out.split() == [f"{expected[0][1]:.3f}", expected[0][0]]


def test_neighbours_by_euclidean_distance(table, folder, monkeypatch, capsys):
    scaled = {
        word: np.linalg.norm(vector.astype(float) - table["w3"]) for word, vector in table.items() if word != "w3"
    }
    expected = sorted(scaled.items(), key=lambda item: item[1])
    monkeypatch.setattr(word_vectors, "BLOCK", 7)  # of 30 words
    vectors = WordTable(folder)
    same(vectors.neighbours("W3", 40, "euclidean"), expected)
    assert [word for word, _ in expected[:5]] != [word for word, _ in vectors.neighbours("w3", 5)]
    argv = ["neighbours", str(folder), "w3", "-k", "1"]
    assert main([*argv, "--distance", "euclidean"]) == 0
    assert capsys.readouterr().out.split() == [f"{expected[0][1]:.3f}", expected[0][0]]
    assert main([*argv, "--distance", "cosine"]) == 0
    assert capsys.readouterr().out.split()[1] == nearest(table, table["w3"], {"w3"})[0][0]
    with pytest.raises(ValueError, match="no vector for 'elsewhere'; its vocabulary has 30 words"):
        vectors.neighbours("elsewhere", distance="euclidean")
    with pytest.raises(ValueError, match="distance='manhattan': cosine or euclidean"):
        vectors.neighbours("w3", distance="manhattan")


def test_the_words_that_come_with_the_package(capsys):
    assert main(["analogy", "glove_50/6b", "king", "man", "woman", "-k", "1"]) == 0
    assert capsys.readouterr().out.split()[1] == "queen"
    assert main(["neighbours", "glove_50/6b", "Berlin", "-k", "1"]) == 0
    assert capsys.readouterr().out.split()[1] == "vienna"
    assert main(["neighbours", "glove_50/6b", "zzyzx"]) == 1
    assert "no vector for 'zzyzx'; its vocabulary has 60,000 words" in capsys.readouterr().err
    assert main(["analogy", "static_128/books_wiki_en", "king", "man", "woman"]) == 1
    assert "it has no vectors of words; take a table of words, such as glove_50/6b" in capsys.readouterr().err


def test_analogies_of_a_file(table, folder, tmp_path, capsys):
    """Half of the questions have the right fourth word, one of all has an unknown one."""
    rng = np.random.default_rng(1)
    sections, right = {": capitals": 9, ": gram1-adjective": 5}, {": capitals": 0, ": gram1-adjective": 0}
    text = ""
    for section, count in sections.items():
        text += f"{section}\n"
        for number in range(count):
            a, b, c = rng.choice(WORDS, 3, replace=False).tolist()
            best, other = nearest(table, unit(table[b]) - unit(table[a]) + unit(table[c]), {a, b, c})[:2]
            right[section] += number % 2
            text += f"{a.upper()} {b} {c} {(best if number % 2 else other)[0]}\n"
    (tmp_path / "questions.txt").write_text(text + "w1 w2 w3 elsewhere\n")
    figures = WordTable(folder).score_analogies(tmp_path / "questions.txt")
    assert (figures["questions"], figures["unknown"]) == (14, 1)
    assert figures["accuracy"] == pytest.approx(sum(right.values()) / 14)
    assert (figures["semantic"], figures["syntactic"]) == (right[": capitals"] / 9, right[": gram1-adjective"] / 5)
    assert figures["table"][1][:2] == ["capitals", "9"]
    assert main(["score", str(folder), "--analogies", str(tmp_path / "questions.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == figures


def test_pairs_of_a_file(table, folder, tmp_path, capsys):
    rng = np.random.default_rng(2)
    rows = [(*rng.choice(WORDS, 2, replace=False).tolist(), float(rng.integers(0, 11))) for _ in range(20)]
    gaps = ["\t", " ", ", "]
    text = "\n".join(
        f"{first}{gaps[number % 3]}{second.upper()}{gaps[number % 3]}{score}"
        for number, (first, second, score) in enumerate(rows)
    )
    (tmp_path / "pairs.txt").write_text(f"Word 1,Word 2,Human (mean)\n{text}\nw1\tunseen\t3\n")
    cosines = [unit(table[first]) @ unit(table[second]) for first, second, _ in rows]
    figures = WordTable(folder).score_pairs(tmp_path / "pairs.txt")
    assert (figures["pairs"], figures["unknown"]) == (20, 1)
    judged = [score for *_, score in rows]
    assert figures["spearman"] == pytest.approx(spearmanr(judged, cosines).statistic, abs=1e-6)
    assert figures["pearson"] == pytest.approx(pearsonr(judged, cosines).statistic, abs=1e-6)
    assert main(["score", str(folder), "--word-pairs", str(tmp_path / "pairs.txt")]) == 0
    assert f"spearman             {figures['spearman']:.4f}" in capsys.readouterr().out


def test_errors(folder, models, tmp_path, capsys):
    vectors = WordTable(folder)
    with pytest.raises(ValueError, match="no vector for 'elsewhere'; its vocabulary has 30 words"):
        vectors.analogy("w1", "elsewhere", "w2")
    (tmp_path / "a.txt").write_text("w1 w2 7\nw1 w2\n")
    with pytest.raises(ValueError, match=r"a\.txt:2: 'w1 w2'; two words and a number"):
        vectors.score_pairs(tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"a\.txt:1: 3 words; a question has four"):
        vectors.score_analogies(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="it has no vectors of words"):
        WordTable(models / "bert" / "pretrained")
    for argv, message in (
        (["score", str(folder)], "give one of --data"),
        (["score", str(folder), "--word-pairs", str(tmp_path / "a.txt"), "--lm"], "leave out --lm"),
        (["neighbours", str(folder)], "give WORD ..."),
        (["neighbours", str(folder), "w1", "--layer", "top"], "leave out --layer"),
        (["neighbours", str(folder), "--word", "w1", "--distance", "euclidean"], "leave out --distance"),
    ):
        with pytest.raises(SystemExit):
            main(argv)
        assert message in capsys.readouterr().err


def test_a_table_is_read_without_keras():
    """Of the shipped words, and they are those of the model."""
    script = """
import sys
from keras_ctxrep.recipes.word_vectors import WordTable
table = WordTable("glove_50/6b")
print(table.analogy("king", "man", "woman", 1)[0][0], len({"tensorflow", "keras", "jax"} & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["queen", "0"]


def test_a_table_that_is_a_link_to_another_file_is_not_followed(tmp_path):
    folder = tiny.save(tmp_path / "table", tiny.bundle("embed", "static"))
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["table"] = np.ones((6, 8), np.float32)
    with h5py.File(folder / "model.weights.h5", "a") as file:
        del file["layers/embedding/vars/0"]
        file["layers/embedding/vars/0"] = h5py.ExternalLink(str(other), "table")
    with pytest.raises(ValueError, match="weights"):
        WordTable(folder)
