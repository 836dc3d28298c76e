"""Speeds are measured once for a processor and a size of model, and kept."""

import json
from types import SimpleNamespace

import pytest

from keras_ctxrep.inference import speeds
from tests import tiny

BUNDLE = tiny.bundle("classify", max_length=64)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CTXREP_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def runs(monkeypatch):
    """Two engines that take 1 ms a token, and 20 ms plus 0.5 ms a token; the sizes of the batches that they ran."""
    given, now = [], [0.0]
    monkeypatch.setattr(speeds, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def engine(seconds, seconds_a_token):
        def run(batch):
            given.append(batch["mask"].shape)
            now[0] += seconds + seconds_a_token * batch["mask"].sum()
            return {}

        return run

    return {"LiteRT": engine(0.0, 0.001), "Keras": engine(0.02, 0.0005)}, given


def test_each_shape_is_measured(cache, runs):
    engines, given = runs
    seconds = speeds.measured(BUNDLE, 1, engines)
    assert {*seconds} == {"LiteRT", "Keras"} and len(seconds["Keras"]) == 4
    assert seconds["LiteRT"]["one short text"] < seconds["Keras"]["one short text"]
    assert seconds["LiteRT"]["many long texts"] > seconds["Keras"]["many long texts"]
    assert {length for _, length in given} == {18, 64} and max(texts for texts, _ in given) <= speeds.MANY
    assert speeds.known(BUNDLE, 1) == seconds


def test_of_this_processor_and_size_alone(cache, runs, monkeypatch):
    seconds = speeds.measured(BUNDLE, 1, runs[0])
    assert speeds.known(BUNDLE, 2) is None and speeds.known(tiny.bundle("tag"), 1) is None
    other = tiny.bundle("classify", max_length=64, sizes={"width": 16})
    assert speeds.known(other, 1) is None
    speeds.measured(other, 1, runs[0])
    assert speeds.known(BUNDLE, 1) == seconds  # both are in the file
    monkeypatch.setattr(speeds, "processor", lambda: "Another (R) processor, 4 cores")
    assert speeds.cache_file().name == "Another-R-processor-4-cores.json"
    assert speeds.known(BUNDLE, 1) is None


@pytest.mark.parametrize("content", ["", "[1]", '{"cut": ', '{"%s": {"Keras": {}}}', '{"%s": 1}'])
def test_a_damaged_file_is_as_none(cache, runs, content):
    speeds.measured(BUNDLE, 1, runs[0])
    (size,) = json.loads(speeds.cache_file().read_text())
    speeds.cache_file().write_text(content.replace("%s", size))
    assert speeds.known(BUNDLE, 1) is None
    assert speeds.measured(BUNDLE, 1, runs[0]) == speeds.known(BUNDLE, 1)


def test_a_cache_that_cannot_be_written(tmp_path, runs, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CTXREP_CACHE", str(tmp_path / "file"))
    assert speeds.measured(BUNDLE, 1, runs[0]) and speeds.known(BUNDLE, 1) is None
