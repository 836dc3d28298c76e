"""Files of others that would run code, fill the memory or the disk, or never end: each is a clear error."""

import re

import pytest

from tests import hostile_files


@pytest.fixture(scope="module")
def outcomes():
    """What came of each file, in a process with little memory and time."""
    return hostile_files.outcomes()


@pytest.mark.trains  # one process opens them all
@pytest.mark.parametrize("name", hostile_files.CASES)
def test_hostile_files(name, outcomes):
    outcome = outcomes[name]
    assert outcome["error"], "it was opened"
    assert outcome["written"] == []
    if not name.startswith("keras: ") or hostile_files.CASES[name].message:  # else Keras' own
        assert outcome["error"] in ("ValueError", "WrongType"), outcome
        assert re.search(hostile_files.CASES[name].message, outcome["message"]), outcome["message"]
        assert outcome["message"].isprintable() and len(outcome["message"]) < 700


@pytest.mark.trains
def test_a_lambda_layer_is_refused_by_what_it_is(outcomes):
    """Not by an error of the test's own making."""
    assert "unsafe" in outcomes["keras: a Lambda layer"]["message"]
