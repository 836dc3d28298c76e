"""Configs: types, bounds, names."""

import json
import math
import re
from dataclasses import dataclass
from typing import Annotated

import pytest

from keras_ctxrep import checks
from keras_ctxrep.checks import Depth, Fraction, Range


@dataclass(frozen=True)
class Config:
    layers: Depth
    clip: float | None = 3.0
    filters: tuple[tuple[int, int], ...] = ((1, 2),)
    name: str = "relu"
    dropout: Fraction = 0.1
    options: dict = None  # type: ignore[assignment]
    pooler: bool = True
    size: Annotated[int, Range(0, 9)] | None = None

    def __post_init__(self):
        checks.check_values(checks.annotations(Config), {k: v for k, v in vars(self).items() if k != "options" or v})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"clip": None},
        {"clip": 3},
        {"filters": [[1, 2], (3, 4)]},
        {"filters": ()},
        {"dropout": 0},
        {"options": {"a": 1}},
        {"size": 0},
    ],
)
def test_valid_values(values):
    config = checks.make(Config, {"layers": 1} | values, "config")
    assert all(getattr(config, name) == value for name, value in values.items())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": "2"}, "config.layers='2': must be a whole number"),
        ({"layers": 2.0}, "config.layers=2.0: must be a whole number"),
        ({"layers": True}, "config.layers=True: must be a whole number"),
        ({"layers": None}, "config.layers=None: must be a whole number"),
        ({"layers": [1]}, "config.layers=[1]: must be a whole number"),
        ({"layers": 0}, "config.layers=0: must be at least 1 and at most 256"),
        ({"layers": 10**9}, "config.layers=1000000000: must be at least 1 and at most 256"),
        ({"clip": "3"}, "config.clip='3': must be a number"),
        ({"clip": float("nan")}, "config.clip=nan: must be a finite number"),
        ({"clip": float("inf")}, "config.clip=inf: must be a finite number"),
        ({"filters": 3}, "config.filters=3: must be a list"),
        ({"filters": [[1, 2], [3]]}, "config.filters=[[1, 2], [3]]: must be a list of 2 values"),
        ({"filters": [[1, "2"]]}, "config.filters=[[1, '2']]: must be a whole number"),
        ({"filters": "ab"}, "config.filters='ab': must be a list"),
        ({"name": 3}, "config.name=3: must be a text"),
        ({"dropout": 1}, "config.dropout=1: must be at least 0 and below 1"),
        ({"dropout": -0.1}, "config.dropout=-0.1: must be at least 0 and below 1"),
        ({"options": [1]}, "config.options=[1]: must be an object"),
        ({"pooler": 1}, "config.pooler=1: must be true or false"),
        ({"size": 10}, "config.size=10: must be at least 0 and at most 9"),
        ({"surprise": 1}, "config.surprise: no such key"),
        ({"name": 10**70}, f"config.name={'1' + '0' * 59}: must be a text"),
    ],
)
def test_invalid_values(values, message):
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}"):
        checks.make(Config, {"layers": 1} | values, "config")


def test_what_is_printable():
    assert checks.printable("中文 café \u3000 עברית") == "中文 café \u3000 עברית"
    assert checks.printable("a\nb\tc\x9b\u202e\ud800") == "a\\nb\\tc\\u009b\\u202e\\ud800"
    assert checks.printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert checks.printable(b"\xff\x1b[2J") == "\\xff\\x1b[2J"
    assert checks.printable("x" * 300) == "x" * 200 + "..."
    line = json.dumps({"\x00\x1b\x7f\x9b\u202e": "\n"}, ensure_ascii=False)
    assert json.loads(checks.printable(line, math.inf)) == json.loads(line)


def test_incomplete_objects():
    with pytest.raises(ValueError, match=r"^config=\[1\]: must be an object$"):
        checks.make(Config, [1], "config")
    with pytest.raises(ValueError, match=r"^config\.layers is missing$"):
        checks.make(Config, {}, "config")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": 1, "a": 1}', "'a' stands twice in an object: line 1 column 10 (char 9)"),
        (
            b'{"x": {"a": 1},\n"y": {"b": [{"a": 1}, {"a": "}\\"{"}], "a": 2,\n"\\u0061": 3}}',
            "'a' .*: line 3 column 1 ",
        ),
        ('[{"a": "a", "b": "\\"a\\":"}, {"b": 1, "b": 2}]', "'b' .*: line 1 column 38 "),
        ('{"\\u001b;": 1, "\\u001b;": 2}', r"'\\x1b;' .*: line 1 column 16 "),
    ],
)
def test_a_key_twice_is_refused(text, place):
    """The reader of requests and of files of JSON that others wrote; `json` takes the last value."""
    message = place if ".*" in place else re.escape(place)
    with pytest.raises(ValueError, match=f"^not JSON: the key {message}"):
        checks.read_json(text)


@pytest.mark.parametrize("text", ['{"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}], "c": "a"}', "[1, [2], {}]", " 3 ", '""'])
def test_other_json_is_read_as_by_json(text):
    assert checks.read_json(text) == checks.read_json(text.encode()) == json.loads(text)
    with pytest.raises(ValueError, match=r"^not JSON: Extra data: line 1 column \d+"):
        checks.read_json(text + ", 1")
