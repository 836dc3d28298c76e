"""Configs: types, bounds, names."""

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
        ({"layers": "2"}, "config.layers='2': a whole number is needed"),
        ({"layers": 2.0}, "config.layers=2.0: a whole number is needed"),
        ({"layers": True}, "config.layers=True: a whole number is needed"),
        ({"layers": None}, "config.layers=None: a whole number is needed"),
        ({"layers": [1]}, "config.layers=[1]: a whole number is needed"),
        ({"layers": 0}, "config.layers=0: at least 1 and at most 256"),
        ({"layers": 10**9}, "config.layers=1000000000: at least 1 and at most 256"),
        ({"clip": "3"}, "config.clip='3': a number is needed"),
        ({"clip": float("nan")}, "config.clip=nan: a finite number is needed"),
        ({"clip": float("inf")}, "config.clip=inf: a finite number is needed"),
        ({"filters": 3}, "config.filters=3: a list is needed"),
        ({"filters": [[1, 2], [3]]}, "config.filters=[[1, 2], [3]]: 2 values are needed"),
        ({"filters": [[1, "2"]]}, "config.filters=[[1, '2']]: a whole number is needed"),
        ({"filters": "ab"}, "config.filters='ab': a list is needed"),
        ({"name": 3}, "config.name=3: a text is needed"),
        ({"dropout": 1}, "config.dropout=1: at least 0 and below 1"),
        ({"dropout": -0.1}, "config.dropout=-0.1: at least 0 and below 1"),
        ({"options": [1]}, "config.options=[1]: an object is needed"),
        ({"pooler": 1}, "config.pooler=1: true or false is needed"),
        ({"size": 10}, "config.size=10: at least 0 and at most 9"),
        ({"surprise": 1}, "config.surprise: no such key"),
        ({"name": 10**70}, f"config.name={'1' + '0' * 59}: a text is needed"),
    ],
)
def test_invalid_values(values, message):
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}"):
        checks.make(Config, {"layers": 1} | values, "config")


def test_incomplete_objects():
    with pytest.raises(ValueError, match=r"^config=\[1\]: an object is needed$"):
        checks.make(Config, [1], "config")
    with pytest.raises(ValueError, match=r"^config\.layers is missing$"):
        checks.make(Config, {}, "config")
