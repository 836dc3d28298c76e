"""What the vectors of each family depend on, against the masks as they are defined."""

import numpy as np
import pytest

from keras_ctxrep.cli.main import main
from keras_ctxrep.plots.masks import masks
from tests.tiny import is_png

WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


@pytest.mark.parametrize(("words", "padding", "context"), [(16, 3, 5), (16, 0, 1), (5, 2, 2), (1, 1, 3), (1, 0, 1)])
def test_vectors_depend_on_what_the_mask_allows(words, padding, context, tmp_path):
    text = " ".join(WORDS.split()[:words])
    result = masks(tmp_path / "a.png", text, padding, context)
    assert is_png(tmp_path / "a.png")
    assert result["tokens"] == [*text.split(), *["[PAD]"] * padding]
    position = np.arange(words + padding)
    query, key = position[:, None], position[None]
    real = (query < words) & (key < words)
    expected = {
        "static vectors": real & (key == query),
        "ELMo, forward": real & (key <= query),
        "ELMo, backward": real & (key >= query),
        f"causal Transformer, window of {context}": real & (key <= query) & (key >= query - context),
        "BERT": real,
    }
    assert result["masks"].keys() == expected.keys()
    for name, mask in expected.items():
        np.testing.assert_array_equal(result["masks"][name], mask, name)


def test_the_command_prints_how_many_tokens_each_vector_depends_on(tmp_path, capsys):
    assert main(["plot", "masks", "--text", "the cat sat on it", "--out", str(tmp_path / "a.svg")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tokens that each vector depends on: the cat sat on it [PAD] [PAD]",
        "static vectors: 1 1 1 1 1 0 0",
        "ELMo, forward: 1 2 3 4 5 0 0",
        "ELMo, backward: 5 4 3 2 1 0 0",
        "causal Transformer, window of 2: 1 2 3 3 3 0 0",
        "BERT: 5 5 5 5 5 0 0",
        str(tmp_path / "a.svg"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": " "}, "0 words; give 1 to 16, between spaces"),
        ({"text": f"{WORDS} more"}, "17 words; give 1 to 16"),
        ({"padding": -1}, "padding=-1: at least 0"),
        ({"context": 0}, "context=0"),
        ({"out": "a.gif"}, "a.gif: the name must end in .png, .svg, .pdf"),
    ],
)
def test_errors(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        masks(**{"out": tmp_path / "a.png"} | arguments)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("argv", ["plot masks a --out b.png", "plot masks --out b.png --data /dev/null"])
def test_wrong_usage_is_exit_2(argv, check_usage):
    check_usage(argv)
