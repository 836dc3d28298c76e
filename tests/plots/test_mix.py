"""Scalar mixes against restatements in NumPy, and their pictures."""

import re

import numpy as np
import pytest

from keras_ctxrep import saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.plots import mix
from tests.tiny import is_png


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


@pytest.mark.parametrize(
    "argv",
    [
        "plot mix a --out b.png --text c",
    ],
)
def test_wrong_usage_is_exit_2(argv, check_usage):
    check_usage(argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("plot mix {bert} --out {tmp}/a.png", "bert/pretrained: no scalar mix in it"),
        ("plot mix {elmo} --out {tmp}/a.gif", "a.gif: the name must end in .png, .svg, .pdf"),
    ],
)
def test_errors_are_one_line(argv, message, check_error):
    check_error(argv, message)
