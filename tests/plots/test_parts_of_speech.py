"""Static vectors by part of speech, against restatements in NumPy."""

import numpy as np
import pytest

from keras_ctxrep import saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.plots.parts_of_speech import parts_of_speech
from keras_ctxrep.recipes.word_vectors import WordTable
from tests import tiny
from tests.tiny import is_png

NOUNS, VERBS = ("rain", "snow", "fog", "run"), ("eat", "sing", "walk")
TAGGED = "Rain NN\nsnow NNS\nrain NN\nrun VB\nrun NN\nrun NN\n. .\n\neat VB\nsing VBD\nwalk VBZ\nunknown NN\nfog NN\n"


@pytest.fixture
def folder(tmp_path):
    """Vectors whose first number says the part of speech, but that of one verb, which is near a noun."""
    vocab = ("<UNK>", *NOUNS, *VERBS, ".")
    bundle = tiny.bundle("embed", "static", vocab=vocab, sizes={"lowercase": True})
    model = saving.build(bundle)
    table = np.random.default_rng(0).normal(size=(len(vocab) + 1, 8)).astype(np.float32)
    table[2:6, 0] += 20
    table[6:9, 0] -= 20
    table[8] = table[3] + 0.01
    model.get_layer("word_embedding").set_weights([table])
    saving.save(tmp_path / "vectors", model, bundle)
    (tmp_path / "tagged.txt").write_text(TAGGED)
    return tmp_path / "vectors"


def test_words_are_measured_in_the_full_space(folder, tmp_path, capsys):
    data, out = tmp_path / "tagged.txt", tmp_path / "a.png"
    result = parts_of_speech(folder, data, out, k=2)
    assert result["words"] == ["run", "rain", "eat", "fog", "sing", "snow", "walk"]  # by frequency, then by name
    assert result["tags"] == ["noun", "noun", "verb", "noun", "verb", "noun", "verb"]
    assert is_png(out)
    table = WordTable(folder)
    unit = table.vectors(result["words"]).astype(float)
    cosines = unit @ unit.T - 9 * np.eye(len(unit))
    right = np.array(result["tags"])[cosines.argmax(1)] == result["tags"]
    assert result["accuracy"] == right.mean() and 0 < right.mean() < 1 and not right[result["words"].index("walk")]
    nouns = np.array(result["tags"]) == "noun"
    assert result["recall"] == {"noun": right[nouns].mean(), "verb": right[~nouns].mean()}
    assert result["majority"] == 4 / 7
    centred = unit - unit.mean(0)
    values, axes = np.linalg.eigh(centred.T @ centred)
    np.testing.assert_allclose(np.abs(result["coordinates"]), np.abs(centred @ axes[:, [-1, -2]]), atol=1e-9)
    np.testing.assert_allclose(result["variance"], values[[-1, -2]] / values.sum(), atol=1e-9)
    assert result["neighbours"] == {"run": table.neighbours("run", 2), "eat": table.neighbours("eat", 2)}

    command = ["plot", "words", str(folder), "--data", str(data), "--out", str(tmp_path / "a.svg"), "--count", "4"]
    assert main([*command, "-k", "1", "--columns", "word=1", "tag=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 words; nearest neighbour of the same part of speech: ")
    assert lines[1].split()[0] == "run" and len(lines[1].split()) == 3 and lines[2].split()[0] == "eat"


def test_many_tags_of_another_set(folder, tmp_path):
    rows = [f"x\t{word}\t{tag}" for word, tag in zip((*NOUNS, *VERBS), "ABCDEFG", strict=True)] + ["y\train\tA"]
    (tmp_path / "own.tsv").write_text("\n".join(rows) + "\n")
    result = parts_of_speech(folder, tmp_path / "own.tsv", tmp_path / "a.png", {"word": "2", "tag": "3"})
    assert result["tags"][0] == "A" and sorted(result["tags"]) == [*"ABCDEFG"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--data {tmp}/one.txt --out {tmp}/a.png", "one.txt: 1 words with a vector, of 1 parts of speech; two are"),
        ("--data {tmp}/tagged.txt --columns tag=7 --out {tmp}/a.png", "tagged.txt:1: "),
        ("--data {tmp}/tagged.txt --columns tag=x --out {tmp}/a.png", "those of a CoNLL file are numbers from 1 on"),
        ("--data {tmp}/tagged.txt --columns part=2 --out {tmp}/a.png", "'part' is neither word nor tag"),
        ("--data {tmp}/tagged.txt --out {tmp}/a.gif", "a.gif: the name must end in .png, .svg, .pdf"),
    ],
)
def test_errors_are_one_line(argv, message, folder, tmp_path, capsys):
    (tmp_path / "one.txt").write_text("rain NN\n")
    before = sorted(tmp_path.iterdir())
    assert main(["plot", "words", str(folder), *argv.format(tmp=tmp_path).split()]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0], lines
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("argv", ["plot words a --out b.png", "plot words a b --data /dev/null --out d.png"])
def test_wrong_usage_is_exit_2(argv, check_usage):
    check_usage(argv)
