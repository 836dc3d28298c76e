"""Folders that the worker processes of pytest-xdist share; the hooks of this test suite."""

from collections import Counter

import pytest

from tests import hooks

pytest_plugins = "pytester"


def test_a_shared_folder_is_made_once_and_whole_or_not_at_all(made_once):
    calls = []

    def make(folder):
        calls.append(folder)
        (folder / "part.txt").write_text("a part")
        if len(calls) == 1:
            raise OSError("disk full")
        (folder / "rest.txt").write_text("the rest")

    with pytest.raises(OSError, match="disk full"):
        made_once("shared_by_workers", make)
    folder = made_once("shared_by_workers", make)
    assert sorted(path.name for path in folder.iterdir()) == ["part.txt", "rest.txt"]
    assert made_once("shared_by_workers", make) == folder and len(calls) == 2
    assert not [path for path in calls if path.exists()]


@pytest.fixture
def suite(pytester, monkeypatch):
    """A test suite with the hooks of this one."""
    monkeypatch.setattr(hooks, "_seconds_of_test", Counter())
    pytester.makeini("[pytest]\nmarkers = slow: x\n  release: x\n  gpu: x\n  trains: x\n")
    pytester.makeconftest("from tests.hooks import *\n")
    return pytester


SKIPS = """
    import pytest

    @pytest.fixture
    def hub():
        return pytest.importorskip("no_such_hub.layers")

    def test_in_the_body():
        pytest.importorskip("no_such_module", reason="No-Such-Module is not installed: pip install it")

    def test_in_a_fixture(hub):
        assert False

    @pytest.mark.skipif(True, reason="no_such_module is not installed")
    def test_by_a_mark():
        assert False

    @pytest.mark.xfail(reason="no_such_module is not installed")
    def test_that_is_known_to_fail():
        assert False

    def test_for_another_reason():
        pytest.importorskip("no_such_module_2")

    @pytest.mark.skipif(True, reason="no_such_module could be installed in another environment: pip install it")
    def test_for_a_third_reason():
        assert False

    def test_that_passes():
        pass
"""


@pytest.mark.parametrize(
    ("required", "failed"),
    [("", 0), ("json", 0), ("json,no_such_module", 2), ("no_such_hub", 1), ("no_such_module, no_such_hub", 3)],
)
def test_skips_for_lack_of_a_required_module_fail(suite, monkeypatch, required, failed):
    monkeypatch.setenv(hooks.REQUIRED_MODULES, required)
    suite.makepyfile(SKIPS)
    result = suite.runpytest_inprocess("-p", "no:cacheprovider")
    # what fails in a fixture is an error in pytest's count, as is a mark's skip
    counts = result.parseoutcomes()
    assert counts.get("failed", 0) + counts.get("errors", 0) == failed
    assert (counts["passed"], counts["xfailed"], counts["skipped"]) == (1, 1, 5 - failed)
    assert result.ret == bool(failed)
    if failed:
        result.stdout.fnmatch_lines([f"*({hooks.REQUIRED_MODULES} says that no_such_* must be installed)"])


@pytest.mark.parametrize(("required", "code"), [("", 5), ("no_such_module", 2)])
def test_a_file_that_is_skipped_for_lack_of_a_required_module_fails(suite, monkeypatch, required, code):
    monkeypatch.setenv(hooks.REQUIRED_MODULES, required)
    suite.makepyfile("import pytest\n\npytest.importorskip('no_such_module')\n\ndef test():\n    pass\n")
    assert suite.runpytest_inprocess("-p", "no:cacheprovider").ret == code


def test_the_fixtures_that_train_mark_their_tests(suite):
    suite.makepyfile(
        "import pytest\n\n@pytest.fixture\ndef models(): pass\n\n@pytest.fixture\ndef folder(models): pass\n\n"
        "def test_direct(models): pass\n\ndef test_through_another(folder): pass\n\ndef test_quick(): pass\n"
    )
    result = suite.runpytest_inprocess("-m", "not trains", "-v", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines(["*::test_quick PASSED*"])


def test_long_tests_without_a_mark_are_named(suite, monkeypatch):
    monkeypatch.setattr(hooks, "QUICK_LIMIT", 0.0)
    suite.makepyfile("import pytest\n\ndef test():\n    pass\n\n@pytest.mark.slow\ndef test_slow():\n    pass\n")
    result = suite.runpytest_inprocess("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*without the mark `trains` or `slow`*", "*s  *::test"])
    assert "::test_slow" not in result.stdout.str()


def test_files_that_take_long_start_first(suite):
    files = {
        "a": ("", "", ""),
        "b": ("trains", ""),
        "c": ("", "slow"),
        "d": ("trains", "trains"),
        "e": ("slow", "slow", "release"),
    }
    for name, marks in files.items():
        lines = (f"@pytest.mark.{mark}\n" * bool(mark) + f"def test_{i}(): pass\n" for i, mark in enumerate(marks))
        suite.makepyfile(**{f"test_{name}": "import pytest\n\n" + "\n".join(lines)})
    for marks, order in (("not gpu", "ecdba"), ("not release", "ecdba"), ("not slow", "dbac")):
        result = suite.runpytest_inprocess("--collect-only", "-q", "-m", marks, "-p", "no:cacheprovider")
        names = [line.split(".py::")[0] for line in result.stdout.lines if "::" in line]
        assert [*dict.fromkeys(names)] == [f"test_{name}" for name in order]
