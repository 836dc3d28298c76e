"""pytest's hooks of this test suite: marks, tests that take long without one, and skips that CI does not allow.

Seconds are those of the processor, of subprocesses too, so that other work on the machine does not change them.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Iterable

import pytest

# Import names, separated by commas: a test that is skipped for lack of one of these fails.
REQUIRED_MODULES = "CTXREP_CI_EXTRAS"
QUICK_LIMIT = 5.0  # seconds; a longer test without a mark is named at the end of a run
TRAINING_FIXTURES = {"models", "tflite_in_process"}  # of conftest.py: a test that needs one has the mark `trains`

_seconds_of_test: Counter[tuple[str, str]] = Counter()  # by id and mark, in the process that reports
_used = 0.0  # at the end of the last phase of a test


def pytest_itemcollected(item) -> None:
    if TRAINING_FIXTURES & {*getattr(item, "fixturenames", ())}:
        item.add_marker("trains")
    if item.get_closest_marker("release"):
        item.add_marker("slow")


def mark_of(item) -> str:
    """The mark that decides by which target of the Makefile a test is run."""
    return next((mark for mark in ("gpu", "slow", "trains") if item.get_closest_marker(mark)), "quick")


@pytest.hookimpl(trylast=True)  # without the tests that `-m` and `-k` leave out
def pytest_collection_modifyitems(items) -> None:
    """Files with many slow tests come first, then those with many that train: no worker ends with a long file alone."""
    marks: dict[object, Counter[str]] = {}
    for item in items:
        marks.setdefault(item.path, Counter())[mark_of(item)] += 1
    items.sort(key=lambda item: [-marks[item.path][mark] for mark in ("slow", "trains")])


def processor_seconds() -> float:
    """Of this process and of its subprocesses that ended."""
    return time.process_time() + os.times().children_user + os.times().children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    global _used
    _used = processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    global _used
    report = yield
    report.mark, report.processor_seconds = mark_of(item), (now := processor_seconds()) - _used
    _used = now
    fail_if_required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    fail_if_required(report)
    return report


def fail_if_required(report) -> None:
    """Makes a skip for lack of a module a failure, if `CTXREP_CI_EXTRAS` names the module."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2]
    required = filter(None, os.environ.get(REQUIRED_MODULES, "").split(","))
    if missing := missing_modules(reason, required):
        report.outcome = "failed"
        report.longrepr = f"{reason} ({REQUIRED_MODULES} says that {', '.join(missing)} must be installed)"


def missing_modules(reason: str, modules: Iterable[str]) -> list[str]:
    """Those of some modules for lack of which a test was skipped: "could not import 'NAME'" or "NAME is not installed".

    >>> missing_modules("Skipped: could not import 'jax.numpy': No module named 'jax'", ["jax", "jaxlib"])
    ['jax']
    """
    text = reason.replace("-", "_")
    forms = r"(?:import|named) '{0}\b|(?<!\w){0} is (?:not installed|missing)\b"
    return [name for name in modules if re.search(forms.format(re.escape(name.strip())), text, re.IGNORECASE)]


def pytest_runtest_logreport(report) -> None:
    if hasattr(report, "mark"):  # xdist's own report of a crash has none
        _seconds_of_test[report.nodeid, report.mark] += report.processor_seconds


def pytest_terminal_summary(terminalreporter) -> None:
    long = {test: used for (test, mark), used in _seconds_of_test.items() if mark == "quick" and used > QUICK_LIMIT}
    if long:
        terminalreporter.section(f"tests over {QUICK_LIMIT:.0f} s without the mark `trains` or `slow`")
        for test, used in sorted(long.items(), key=lambda entry: -entry[1]):
            terminalreporter.write_line(f"{used:6.1f} s  {test}")
