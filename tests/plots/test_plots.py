"""Pictures against restatements in NumPy, and the files they are written to."""

import base64
import html
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import font_manager

from keras_ctxrep import saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.plots import attention, mix
from keras_ctxrep.plots.words import _columns, concordance, neighbours, senses
from keras_ctxrep.text.tokens import words

SENTENCES = ["the violin is good.", "snow", "", "The soup, the bread!", "violin snow storm", "Soup was bad!"]


def is_png(path) -> bool:
    data = path.read_bytes()
    return data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and data[-8:-4] == b"IEND"


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


# ------------------------------------------------------------------------------------------------------ scalar mixes


def test_mix_gives_the_weights_of_the_layers(models, tmp_path, capsys):
    folder = models / "elmo" / "classifier"
    model, bundle = saving.load(folder)
    model.get_layer("scalar_mix").set_weights([np.array([1.0, 0.0, -1.0]), np.array(0.5)])
    saving.save(tmp_path / "other", model, bundle)
    trained, other = mix.mix([folder, tmp_path / "other"], tmp_path / "mix.png")
    w, gamma = saving.load(folder)[0].get_layer("scalar_mix").get_weights()
    np.testing.assert_allclose(trained["weights"], np.exp(w) / np.exp(w).sum(), rtol=1e-5)
    assert trained["gamma"] == gamma and trained["mix"] == "scalar_mix" and trained["folder"] == str(folder)
    np.testing.assert_allclose(other["weights"], [0.66524, 0.24473, 0.09003], atol=1e-5)
    assert other["gamma"] == 0.5 and is_png(tmp_path / "mix.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mix.png", "other"]
    assert main(["plot", "mix", str(tmp_path / "other"), "--out", str(tmp_path / "one.svg")]) == 0
    assert "0: 0.665  1: 0.245  2: 0.090  gamma: 0.500" in capsys.readouterr().out
    assert "γ = 0.50" in re.sub("<!--|-->", "", (tmp_path / "one.svg").read_text(encoding="utf-8"))


# --------------------------------------------------------------------------------------------------------- attention


def test_attention_is_that_of_the_queries_and_keys(models, tmp_path):
    folder = models / "bert" / "classifier"
    result = attention.attention(folder, "The violin is good.", tmp_path / "a.png")
    pieces, weights = result["pieces"], result["attention"]
    assert (pieces[0], pieces[1], pieces[-1]) == ("[CLS]", "The", "[SEP]") and is_png(tmp_path / "a.png")
    length = len(pieces)
    assert weights.shape == (2, 2, length, length)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    encoder, bundle = saving.load_encoder(folder)
    layers = encoder(bundle.features(["The violin is good."]))["layers"]
    for number in range(2):
        kernel, bias = encoder.get_layer(f"layer_{number}").qkv.get_weights()
        query, key, _ = np.split(np.asarray(layers[number])[0] @ kernel + bias, 3, axis=-1)
        for head in range(2):
            part = slice(16 * head, 16 * head + 16)
            scores = np.exp(query[:, part] @ key[:, part].T / 4)
            np.testing.assert_allclose(weights[number, head], scores / scores.sum(-1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("options", [{"layer": 1}, {"layer": "all"}, {"layer": 2, "head": 1}, {"head": 2}])
def test_attention_of_a_layer_or_a_head(options, models, tmp_path):
    attention.attention(models / "bert" / "pretrained", "snow is 5$ or 6$", tmp_path / "a.png", pair="soup", **options)
    assert is_png(tmp_path / "a.png")


def test_a_page_holds_all_of_it_and_escapes_the_text(models, tmp_path):
    text, pair = '</script><b on="x">&amp; של 中', "$café"
    result = attention.attention(models / "bert" / "classifier", text, tmp_path / "a.html", pair, layer=1, head=2)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    shown = result["pieces"] * 2
    assert re.findall("<bdi>(.*?)</bdi>", page) == [html.escape(piece) for piece in shown]
    assert page.count(html.escape(text)) == 2 and text not in page
    kept = [piece for piece in shown[: len(result["pieces"])] if piece not in ("[CLS]", "[SEP]")]
    assert "".join(kept) == (text + pair).replace(" ", "") and "中" in kept
    assert shown.count("[CLS]") == 2 and shown.count("[SEP]") == 4
    assert page.count("<script>") == page.count("</script>") == 1 and "<b " not in page
    assert not re.search(r"https?:|src=|href=|@import|url\(", page)
    assert page.count(" selected>") == 2 and '<option value="2" selected>head 2' in page
    (data,) = re.findall(r'atob\("([^"]*)"\)', page)
    weights = np.frombuffer(base64.b64decode(data), "<u2").reshape(result["attention"].shape) / 65535
    np.testing.assert_allclose(weights, result["attention"], atol=1e-5)


def test_characters_missing_from_the_font_are_reported(models, tmp_path, monkeypatch):
    real = font_manager.findfont("DejaVu Sans")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", font_manager.fontManager.ttflist[:0])
    monkeypatch.setattr(font_manager, "findfont", lambda *_, **__: real)
    with pytest.warns(UserWarning, match=r"a\.png: no installed font has the characters 中; install one, or .* \.html"):
        attention.attention(models / "bert" / "pretrained", "snow 中", tmp_path / "a.png")
    assert is_png(tmp_path / "a.png")


# -------------------------------------------------------------------------------------------------- words in context


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


# ----------------------------------------------------------------------------------------------------------- command


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
        "plot mix a --out b.png --text c",
        "plot attention a --out b.png",
        "plot attention a b --text c --out b.png",
        "plot senses a --word b --out c.png",
        "plot senses a --word b --data c --out c.png --head 1",
        "plot tree a --out b.png",
        "neighbours a",
        "neighbours a --word b -k 0",
    ],
)
def test_wrong_usage_is_exit_2(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv.split())
    assert stop.value.code == 2 and "ctxrep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("plot mix {bert} --out {tmp}/a.png", "bert/pretrained: no scalar mix in it"),
        ("plot mix {elmo} --out {tmp}/a.gif", "a.gif: the name must end in .png, .svg, .pdf"),
        (
            "plot attention {elmo} --text a --out {tmp}/a.png",
            "no attention in a model of the family 'elmo'; give a BERT",
        ),
        ("plot attention {bert} --text a --out {tmp}/a.txt", "a.txt: the name must end in .png, .svg, .pdf, or .html"),
        ("plot attention {bert} --text a --out {tmp}/a.png --layer 3", "layer=3: this model has layers 1 to 2"),
        ("plot attention {bert} --text a --out {tmp}/a.png --layer top", "layer=top: this model has layers 1 to 2"),
        ("plot attention {bert} --text a --out {tmp}/a.html --head 3", "head=3: this model has heads 1 to 2"),
        ("plot attention {bert} --text " + "a," * 40 + " --out {tmp}/a.png", "longer than the 32 pieces"),
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
def test_errors_are_one_line(argv, message, models, tmp_path, capsys):
    (tmp_path / "s.tsv").write_text("text\tlabel\nsnow soup a\tx\nsoup a\ty\nsoup a\t\n")
    (tmp_path / "one.tsv").write_text("text\tlabel\nsnow\tx\nmore snow\tx\n")
    (tmp_path / "two.tsv").write_text("text\tlabel\nsnow\tx\nmore snow\ty\n")
    (tmp_path / "long.txt").write_text("x " * 40)
    before = sorted(tmp_path.iterdir())
    filled = argv.format(bert=models / "bert" / "pretrained", elmo=models / "elmo" / "classifier", tmp=tmp_path)
    assert main(filled.split()) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0], lines
    assert sorted(tmp_path.iterdir()) == before


def test_pictures_need_matplotlib_and_pages_do_not(models, tmp_path):
    code = (
        "import importlib.util, sys; real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'matplotlib' else real(name, *a)\n"
        "sys.modules['matplotlib'] = None\n"
        "from keras_ctxrep.cli.main import main\n"
        f"statuses = [main(['plot', 'attention', {str(models / 'bert' / 'pretrained')!r}, '--text', 'snow', '--out',"
        f" {str(tmp_path)!r} + name]) for name in ('/a.png', '/a.html')]; print(statuses)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[1, 0]", done.stderr
    assert done.stderr == 'ctxrep: matplotlib is not installed: pip install "matplotlib>=3.8"\n'
