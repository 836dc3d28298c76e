"""What a language model expects of each token: against the model itself, on a page and on the command line."""

import re

import numpy as np
import pytest

from keras_ctxrep import saving
from keras_ctxrep.cli import main
from keras_ctxrep.models import lm
from keras_ctxrep.plots.probabilities import Token, coloured, probabilities
from keras_ctxrep.text.bundle import Bundle
from tests import tiny

TEXT = "ab <c\nba"


@pytest.fixture
def folder(tmp_path, rng):
    config = lm.Config("lstm", units="characters", layers=1, width=6, dropout=0.0)
    vocab = ("<S>", "</S>", "<UNK>", *"abc <")
    bundle = Bundle("lm", "causal_language_model", vars(config), 32, vocab=vocab)
    model = saving.build(bundle)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    saving.save(tmp_path / "lm", model, bundle)
    return tmp_path / "lm"


def test_the_probabilities_are_the_models(folder, tmp_path):
    """Of one token after the other, which gives the same logits."""
    model, bundle = saving.load(folder)
    tokens = probabilities(folder, TEXT, tmp_path / "page.html")
    assert "".join(token.text for token in tokens) == TEXT
    state, before = np.zeros((1, 12), np.float32), 1
    for token in tokens:
        outputs = model({"token_ids": np.array([[before]]), "mask": np.ones((1, 1)), "state": state})
        logits, state = np.asarray(outputs["logits"][0, 0], np.float64), np.asarray(outputs["state"])
        before = 1 if token.text == "\n" else bundle.vocab.index(token.text)
        assert 2.0**-token.bits == pytest.approx(np.exp(logits[before]) / np.exp(logits).sum(), rel=1e-4)


def test_the_page_and_the_command(folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main.main(["plot", "probabilities", str(folder), "--text", TEXT, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"8 tokens, \d\.\d\d bits each, perplexity [\d.]+\n{re.escape(str(out))}", printed)
    page = out.read_text("utf-8")
    assert "&lt;</span>" in page and page.count(' bits)">') == len(TEXT) and "<script" not in page
    figure = re.search(r"perplexity ([\d.]+)", printed)
    assert figure and f"perplexity {figure[1]}" in page


def test_colours_of_a_terminal():
    assert coloured([Token("a", 0.1), Token("\n", 9.0), Token("b", 20.0)]) == "a\n\x1b[30;48;5;160mb\x1b[0m"


def test_what_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="the text is empty"):
        probabilities(folder, " ")
    with pytest.raises(ValueError, match=r"page\.png: the name must end in \.html"):
        probabilities(folder, "a", tmp_path / "page.png")
    tiny.save(tmp_path / "encoder", tiny.bundle("embed"))
    with pytest.raises(ValueError, match=r"encoder: a bert for the task 'embed' gives no probabilities"):
        probabilities(tmp_path / "encoder", "a")
