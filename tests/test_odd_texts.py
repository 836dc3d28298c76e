"""Odd texts: the same answers on every engine."""

import pytest

from tests import odd_texts

WORDS = [{"word": "a", "start": 0, "end": 1, "label": "X", "score": 0.5}]


@pytest.mark.trains
@pytest.mark.parametrize("name", ["elmo", "tagger"])
def test_odd_texts(name, tflite_in_process, tmp_path, capsys):
    """The rest of `python -m tests.odd_texts` is run by hand."""
    result = odd_texts.compare(name, 200, 0, tmp_path)
    assert result["saved_model"] == [200, 0, 0], capsys.readouterr().out
    assert result["tflite"] == [200, 0, 0], capsys.readouterr().out
    assert result.get("javascript", [200, 0, 0]) == [200, 0, 0], capsys.readouterr().err
    assert result["errors"] < 30 and len(result["labels"]) > 3
    assert max(result["labels"].values()) < 0.7 * sum(result["labels"].values())


def test_texts_are_odd():
    texts = odd_texts.texts(2000, 0)
    assert texts == odd_texts.texts(2000, 0) != odd_texts.texts(2000, 1)
    letters = set("".join(texts))
    assert {ord(letter) >> 16 for letter in letters} == set(range(17))
    assert {"", "\x00", "\ufffd", "\u200b", "\u202e", "\t", "\n"} <= letters | set(texts)
    assert any("\ud800" <= letter <= "\udfff" for letter in letters)
    assert min(map(len, texts)) == 0 and max(map(len, texts)) == odd_texts.LONGEST
    assert sum("<" in text for text in texts) > 100 and sum("://" in text for text in texts) > 100


@pytest.mark.parametrize(
    ("answer", "expected", "outcome"),
    [
        ({"label": "a", "score": 0.5}, {"label": "a", "score": 0.50005}, "equal"),
        ({"label": "b", "score": 0.5}, {"label": "a", "score": 0.50005}, "a tie"),
        ({"label": "b", "score": 0.5}, {"label": "a", "score": 0.51}, "different"),
        ({"label": "a", "score": 0.5}, {"label": "a", "score": 0.51}, "different"),
        ({"label": "a", "score": 0.5, "probabilities": [0.5, 0.2]}, {"label": "a", "score": 0.5}, "different"),
        ({"error": "x"}, {"error": "y"}, "equal"),
        ({"error": "x"}, {"label": "a", "score": 0.5}, "different"),
        ({"words": WORDS}, {"words": WORDS}, "equal"),
        ({"words": [WORDS[0] | {"label": "Y"}]}, {"words": WORDS}, "a tie"),
        ({"words": [WORDS[0] | {"label": "Y", "score": 0.6}]}, {"words": WORDS}, "different"),
        ({"words": [WORDS[0] | {"end": 2}]}, {"words": WORDS}, "different"),
        ({"words": []}, {"words": WORDS}, "different"),
        (
            {"answer": "b", "start": 1, "end": 2, "score": 9.0},
            {"answer": "a", "start": 0, "end": 1, "score": 9.0},
            "a tie",
        ),
        (
            {"answer": "b", "start": 1, "end": 2, "score": 8.0},
            {"answer": "a", "start": 0, "end": 1, "score": 9.0},
            "different",
        ),
    ],
)
def test_what_is_different(answer, expected, outcome):
    assert odd_texts.compared(answer, expected) == outcome
