"""Words in context against restatements in NumPy."""

import json

import numpy as np
import pytest

from keras_ctxrep import saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.plots.words import _columns, concordance, neighbours, senses
from keras_ctxrep.text.tokens import words
from tests.tiny import is_png

SENTENCES = ["the violin is good.", "snow", "", "The soup, the bread!", "violin snow storm", "Soup was bad!"]


def unit(vector):
    return vector / np.linalg.norm(vector)


def word_vectors(folder, sentence, layer):
    """Of one sentence by itself: a vector for each word."""
    model, _ = saving.load(folder)
    encoder, bundle = saving.load_encoder(folder)
    standing = [word.text for word in words(sentence)]
    (row,) = bundle.features.encode([standing])
    outputs = encoder(bundle.features.collate([row]))
    layers = np.stack([np.asarray(array)[0] for array in outputs["layers"]])[:, row.starts]
    if layer == "mix":
        w, gamma = model.get_layer("scalar_mix").get_weights()
        return np.tensordot(gamma * np.exp(w) / np.exp(w).sum(), layers, 1)
    return layers[-1] if layer == "top" else layers.mean(0)


@pytest.mark.parametrize(
    ("family", "layer", "used"),
    [
        pytest.param("elmo", None, "mix", marks=pytest.mark.slow),
        pytest.param("elmo", "mean", "mean", marks=pytest.mark.slow),
        ("bert", None, "top"),
        ("bert", "mean", "mean"),
    ],
)
def test_neighbours_are_those_of_every_pair(family, layer, used, models):
    folder = models / family / "classifier"
    query = "the soup was good"
    expected = []
    own = unit(word_vectors(folder, query, used)[1])
    for line, sentence in enumerate(SENTENCES, 1):
        if sentence:
            for word, vector in zip(words(sentence), word_vectors(folder, sentence, used), strict=True):
                expected.append((float(own @ unit(vector)), line, *word))
    expected.sort(key=lambda wanted: -wanted[0])
    actual = neighbours(folder, "SOUP", iter(SENTENCES), 100, query, layer, batch_size=2)
    assert len(actual) == len(expected) == 19
    np.testing.assert_allclose([entry["score"] for entry in actual], [wanted[0] for wanted in expected], atol=1e-5)
    for entry in actual:
        assert entry["sentence"] == SENTENCES[entry["line"] - 1]
        assert entry["sentence"][entry["start"] : entry["end"]] == entry["word"]
    assert {(entry["line"], entry["start"]) for entry in actual} == {(wanted[1], wanted[3]) for wanted in expected}
    assert neighbours(folder, "soup", SENTENCES, 3, query, layer)[2]["line"] == actual[2]["line"]


def test_neighbours_of_the_first_occurrence_leave_it_out(models):
    folder = models / "elmo" / "classifier"
    given = neighbours(folder, "soup", SENTENCES, 50, SENTENCES[3])
    result = neighbours(folder, "soup", iter(SENTENCES), 50)
    assert [entry["line"] for entry in given] == [entry["line"] for entry in result] and len(result) == 18
    assert (4, "soup") not in [(entry["line"], entry["word"]) for entry in result]


def test_concordance_is_aligned():
    result = [
        {
            "score": 0.5,
            "sentence": "a" * 200 + " bank " + "b" * 200,
            "word": "bank",
            "start": 201,
            "end": 205,
            "line": 7,
        },
        {"score": -0.25, "sentence": "bank", "word": "bank", "start": 0, "end": 4, "line": 12345},
        {
            "score": 1.0,
            "sentence": "中文中文中文中文中文中文中文 bank 中文",
            "word": "bank",
            "start": 15,
            "end": 19,
            "line": 2,
        },
    ]
    _, first, second, third = concordance(result, 60).splitlines()
    assert first.index("«") == 35 and len(first) == 60 and first.startswith(" 0.500     7  ") and "«bank» b" in first
    assert second.index("«") == 35 and second.startswith("-0.250  12345")
    assert _columns(third[: third.index("«")]) == 35
    assert "«bank»" in concordance(result, 1)


def test_senses_are_measured_in_the_full_space(models, tmp_path, capsys):
    folder = models / "bert" / "pretrained"
    rows = [("the soup is good", "x"), ("Soup, bread", "x"), ("oven soup", "y"), ("soup soup", "y"), ("rain soup", "x")]
    data, out = tmp_path / "senses.tsv", tmp_path / "s.png"
    data.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    result = senses(folder, "soup", data, out)
    labels = [label for _, label in rows]
    at = [[word.text.lower() for word in words(text)].index("soup") for text, _ in rows]
    array = np.stack([word_vectors(folder, text, "top")[place] for (text, _), place in zip(rows, at, strict=True)])
    similar = np.array([[unit(row) @ unit(other) for other in array] for row in array]) - 3 * np.eye(5)
    right = [labels[nearest] == label for nearest, label in zip(similar.argmax(1), labels, strict=True)]
    assert result["labels"] == labels and result["accuracy"] == np.mean(right) and result["majority"] == 0.6
    assert result["recall"] == {"x": np.mean([right[0], right[1], right[4]]), "y": np.mean(right[2:4])}
    centred = array - array.mean(0)
    values = np.sort(np.linalg.eigvalsh(centred @ centred.T))[::-1]
    np.testing.assert_allclose(result["variance"], values[:2] / values.sum(), rtol=1e-3)
    np.testing.assert_allclose((result["coordinates"] ** 2).sum(0), values[:2], rtol=1e-3)
    assert is_png(out)
    command = f"plot senses {folder} --word soup --data {data} --out {out} --layer mean"
    assert main(command.split()) == 0
    assert capsys.readouterr().out.startswith("5 sentences; nearest neighbour of the same sense: ")


def test_neighbours_command(models, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    command = ["neighbours", str(models / "bert" / "pretrained"), "--word", "soup", "--input", str(tmp_path / "in.txt")]
    assert main([*command, "-k", "3", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [sorted(entry) for entry in output] == [["end", "line", "score", "sentence", "start", "word"]] * 3
    assert main([*command, "--sentence", "soup is good", "-k", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[0].split() == ["score", "line"] and all("«" in line for line in lines[1:])


@pytest.mark.parametrize(
    "argv",
    [
        "plot senses a --word b --out c.png",
        "plot senses a --word b --data /dev/null --out c.png --head 1",
        "neighbours a --word b -k 0",
    ],
)
def test_wrong_usage_is_exit_2(argv, check_usage):
    check_usage(argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            "plot senses {bert} --word snow --data {tmp}/s.tsv --out {tmp}/a.png",
            "s.tsv:3: the word 'snow' does not occur",
        ),
        ("plot senses {bert} --word soup --data {tmp}/s.tsv --out {tmp}/a.png", "s.tsv:4: no label"),
        ("plot senses {bert} --word snow --data {tmp}/one.tsv --out {tmp}/a.png", "one.tsv: only the sense 'x'"),
        (
            "plot senses {bert} --word snow --data {tmp}/two.tsv --out {tmp}/a.png --layer 1",
            "layer=1: choose top, mix or mean",
        ),
        ("neighbours {bert} --word snow --input {tmp}/s.tsv --layer mix", "bert/pretrained: no scalar mix in it"),
        ("neighbours {bert} --word zzz --input {tmp}/s.tsv", "the word 'zzz' does not occur in the sentences"),
        ("neighbours {bert} --word don't --sentence don't --input {tmp}/s.tsv", "as words it is don ' t: choose one"),
        ("neighbours {bert} --word x --input {tmp}/long.txt", "longer than the 32 tokens this model reads: 'x x"),
    ],
)
def test_errors_are_one_line(argv, message, check_error):
    check_error(argv, message)
