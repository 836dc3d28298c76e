"""Pairs of words as arrows, against loops over the pairs."""

from contextlib import contextmanager
from itertools import combinations

import numpy as np
import pytest

from keras_ctxrep import recipes
from keras_ctxrep.cli.main import main
from keras_ctxrep.plots import analogies as plots
from keras_ctxrep.plots.analogies import analogies
from tests.tiny import is_png

CAPITALS = [("c0", "d0"), ("c1", "d1"), ("c2", "d2"), ("c3", "d3")]
PAIRS = ": capitals\nc0 D0\nc1 d1\nc0 D0\n\nc2 d2 c3 d3\nc0 nowhere\n: plural\na b\nc d\n: one\na b\nzz b\n"


@pytest.fixture(scope="module")
def table():
    """Random vectors; those of d0 to d3 are those of c0 to c3 with nearly the same difference."""
    rng = np.random.default_rng(0)
    vectors = {word: rng.normal(size=6) for word in ("a", "b", "c", "d", "c0", "c1", "c2", "c3")}
    difference = 2 * rng.normal(size=6)
    return vectors | {f"d{number}": vectors[f"c{number}"] + difference for number in range(4)}


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors")
    rows = (f"{word} {' '.join(map(str, vector.tolist()))}\n" for word, vector in table.items())
    (path / "vectors.txt").write_text("".join(rows))
    (path / "pairs.txt").write_text(PAIRS)
    recipes.convert(path / "vectors.txt", path / "model", source_format="vectors")
    return path / "model"


def unit(vector):
    return vector / np.linalg.norm(vector)


def mean_cosine(table, pairs):
    differences = [unit(unit(table[second]) - unit(table[first])) for first, second in pairs]
    return np.mean([one @ other for one, other in combinations(differences, 2)])


def test_arrows_are_measured_in_the_full_space(table, folder, tmp_path, monkeypatch, capsys):
    figures, real = [], plots.drawing

    @contextmanager
    def kept(*args):
        with real(*args) as figure:
            yield figure
            figures.append(figure)

    monkeypatch.setattr(plots, "drawing", kept)
    result = analogies(folder, tmp_path / "a.png", folder.parent / "pairs.txt")
    assert is_png(tmp_path / "a.png")
    assert result["relations"].keys() == {"capitals", "plural"}
    assert (result["unknown"], result["left_out"]) == (["nowhere", "zz"], ["one"])
    capitals, plural = result["relations"].values()
    assert capitals["pairs"] == [("c0", "D0"), *CAPITALS[1:]]
    assert capitals["cosine"] == pytest.approx(mean_cosine(table, CAPITALS), abs=1e-6)
    firsts, seconds = zip(*CAPITALS, strict=True)
    others = [zip(firsts, seconds[-shift:] + seconds[:-shift], strict=True) for shift in (1, 2, 3)]
    shuffled = np.mean([mean_cosine(table, [*pairs]) for pairs in others])
    assert capitals["shuffled"] == pytest.approx(shuffled, abs=1e-6) and shuffled < capitals["cosine"]
    assert plural["cosine"] == pytest.approx(mean_cosine(table, [("a", "b"), ("c", "d")]), abs=1e-6)
    vectors = np.array([unit(table[word]) for pair in CAPITALS for word in pair])
    centred = vectors - vectors.mean(0)
    values, axes = np.linalg.eigh(centred.T @ centred)
    expected = np.abs(centred @ axes[:, [-1, -2]]).reshape(4, 2, 2)
    np.testing.assert_allclose(np.abs(capitals["coordinates"]), expected, atol=1e-6)
    np.testing.assert_allclose(capitals["variance"], values[[-1, -2]] / values.sum(), atol=1e-6)

    panel, _ = figures[0].axes[:2]
    arrows = [text for text in panel.texts if text.arrow_patch is not None]
    np.testing.assert_allclose([[arrow.xyann, arrow.xy] for arrow in arrows], capitals["coordinates"])
    words = {text.get_text(): text.xy for text in panel.texts if text.get_text()}
    np.testing.assert_allclose(words["d2"], capitals["coordinates"][2, 1])

    command = ["plot", "analogies", str(folder), "--data", str(folder.parent / "pairs.txt")]
    assert main([*command, "--out", str(tmp_path / "a.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    numbers = [f"{capitals['cosine']:.3f}", f"{capitals['shuffled']:.3f}"]
    assert lines[0].split() == ["relation", "pairs", "mean", "cosine", "shuffled"]
    assert lines[2].split() == ["capitals", "4", *numbers] and lines[3].split()[:2] == ["plural", "2"]
    assert lines[4] == "left out, without a vector: nowhere, zz"
    assert lines[5] == "left out, of fewer than two pairs: one"


def test_pairs_that_come_with_the_package(tmp_path):
    result = analogies("glove_50/6b", tmp_path / "a.png")
    assert (result["unknown"], result["left_out"]) == ([], []) and len(result["relations"]) == 3
    for relation in result["relations"].values():
        assert len(relation["pairs"]) == 10
        assert relation["cosine"] > max(0.55, relation["shuffled"] + 0.2)


@pytest.mark.parametrize(
    ("pairs", "argv", "message"),
    [
        ("a b\nc\n", "--data {tmp}/p.txt --out {tmp}/a.png", "p.txt:2: 1 words; a pair has two, and the name of a"),
        ("a b\nc x\n", "--data {tmp}/p.txt --out {tmp}/a.png", "p.txt: no relation has two pairs of words with"),
        ("", "--data {tmp}/p.txt --out {tmp}/a.png", "p.txt: no relation has two pairs of words with vectors in "),
        ("", "--out {tmp}/a.png", "the pairs that come with the package: no relation has two pairs"),
        ("", "--out {tmp}/a.gif", "a.gif: the name must end in .png, .svg, .pdf"),
    ],
)
def test_errors_are_one_line(pairs, argv, message, folder, tmp_path, capsys):
    (tmp_path / "p.txt").write_text(pairs)
    assert main(["plot", "analogies", str(folder), *argv.format(tmp=tmp_path).split()]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0], lines
    assert [path.name for path in tmp_path.iterdir()] == ["p.txt"]


@pytest.mark.parametrize("argv", ["plot analogies --out a.png", "plot analogies a b --out a.png"])
def test_wrong_usage_is_exit_2(argv, check_usage):
    check_usage(argv)
