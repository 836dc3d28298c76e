"""Flipped bytes in the files of models: a clear error, or the same answers."""

import json
from pathlib import Path

import pytest

from tests import flips


@pytest.mark.trains
def test_flips(capsys):
    """Of the smallest model that comes with the package; `python -m tests.flips` tries all kinds."""
    code = flips.main(["--count", "4", "g2p_en"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    files = {Path(line["file"]).name: line for line in map(json.loads, printed.splitlines())}
    assert files.keys() == {"bundle.json", "card.md", "graph.xz", "model.weights.h5", "vocab.txt"}
    assert all(line.get("refused", 0) + line.get("the same", 0) == 4 for line in files.values())
    assert files["model.weights.h5"]["refused"] == files["vocab.txt"]["refused"] == 4


def test_other_answers_are_told_from_the_same(tmp_path):
    (tmp_path / "bytes.txt").write_bytes(b"123")
    flip = flips.Flip("bytes.txt", 1, 4)

    def number(path):
        return int(path.read_bytes())

    assert flips.outcome(number, tmp_path / "bytes.txt", flip, 163) == ("the same", "")
    assert flips.outcome(number, tmp_path / "bytes.txt", flip, 123) == ("other", "")
    unclear, message = flips.outcome(number, tmp_path / "bytes.txt", flip._replace(change=128), 123)
    assert unclear == "unclear" and message.startswith("ValueError: invalid literal")
    assert (tmp_path / "bytes.txt").read_bytes() == b"123"
