"""Attention against restatements in NumPy, and its pictures and pages."""

import base64
import html
import re

import numpy as np
import pytest

from keras_ctxrep import saving
from keras_ctxrep.plots import attention
from tests.tiny import is_png


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


@pytest.mark.parametrize(
    "argv",
    [
        "plot attention a --out b.png",
        "plot attention a b --text c --out b.png",
    ],
)
def test_wrong_usage_is_exit_2(argv, check_usage):
    check_usage(argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            "plot attention {elmo} --text a --out {tmp}/a.png",
            "no attention in a model of the family 'elmo'; give a BERT",
        ),
        ("plot attention {bert} --text a --out {tmp}/a.txt", "a.txt: the name must end in .png, .svg, .pdf, or .html"),
        ("plot attention {bert} --text a --out {tmp}/a.png --layer 3", "layer=3: this model has layers 1 to 2"),
        ("plot attention {bert} --text a --out {tmp}/a.png --layer top", "layer=top: this model has layers 1 to 2"),
        ("plot attention {bert} --text a --out {tmp}/a.html --head 3", "head=3: this model has heads 1 to 2"),
        ("plot attention {bert} --text " + "a," * 40 + " --out {tmp}/a.png", "longer than the 32 pieces"),
    ],
)
def test_errors_are_one_line(argv, message, check_error):
    check_error(argv, message)
