"""The scripts of benchmarks/ run, at tiny sizes; and docs/performance.md is what the figures beside it give."""

import json
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
MODULES = {"figures", "page", "run", "kserve_server"}  # which are no benchmarks


def module(name: str):
    """A file of benchmarks/, which is no package."""
    spec = spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    sys.path.insert(0, str(FOLDER))  # for the files that it imports
    try:
        loaded = module_from_spec(spec)
        sys.modules[spec.name] = loaded  # where dataclasses look for it
        spec.loader.exec_module(loaded)
    finally:
        sys.path.remove(str(FOLDER))
    return loaded


def test_every_script_is_in_the_table():
    commands = {benchmark.command.split()[0] for benchmark in module("run").BENCHMARKS.values()}
    assert commands == {path.name for path in FOLDER.glob("*.py") if path.stem not in MODULES}


def test_page_has_the_figures():
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    names = re.findall(r"benchmarks/results/([\w.-]+\.json)", page)
    records = {name: json.loads((FOLDER / "results" / name).read_text("utf-8")) for name in names}
    assert records and not any(record["quick"] for record in records.values())
    assert page == module("page").text(records)


def test_page_compares_with_the_first_row():
    page, about = module("page"), {"table": "t", "precision": "float32"}
    rows = [
        {"engine": "ours", "seconds": [0.01, 0.02, 0.04], "operations": 1e9, "rate": 5e10, "memory_mb": 900.0},
        {"engine": "theirs", "seconds": [0.03], "operations": None, "rate": 1e11},
    ]
    *_, ours, theirs = page.table(page.tables({"benchmarks": [{"rows": [about | row for row in rows]}]})["t"])
    assert ours == "| ours | 20.0 | 1.00 | 4.0 | 10.0 | 50% | 900 |"
    assert theirs == "| theirs | 30.0 | 1.50 |  |  |  |  |"


def test_engines_that_read_different_numbers_of_sentences_are_compared_by_sentence():
    page, about = module("page"), {"table": "t", "precision": "float32", "operations": None, "rate": None}
    rows = [
        {"engine": "keras_ctxrep", "seconds": [8.0], "sentences": 4},
        {"engine": "KerasHub", "seconds": [3.0], "sentences": 1},
        {"engine": "keras_ctxrep bf16", "seconds": [4.0], "sentences": 4},
        {"engine": "transformers bf16", "seconds": [2.0], "sentences": 4},
    ]
    found = page.ratios({"benchmarks": [{"rows": [about | row for row in rows]}]})
    assert found == {("t", "float32"): (1.5, "KerasHub"), ("t", "bfloat16"): (0.5, "transformers bf16")}


OFTEN = ("bert", "elmo", "first_calls", "serving", "static", "tflite")


@pytest.mark.slow
@pytest.mark.parametrize("names", [OFTEN, pytest.param(["--all"], marks=pytest.mark.release)], ids=("often", "all"))
def test_benchmarks_run(names, tmp_path):
    command = [sys.executable, str(FOLDER / "run.py"), *names, "--quick", "--out", str(tmp_path / "run.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = {result["name"]: result for result in json.loads((tmp_path / "run.json").read_text())["benchmarks"]}
    skipped = {name for name, result in results.items() if result["status"] == "skipped"}
    without = {"bert sentences", "decoding loop", "kserve_server"}
    assert skipped <= without | {"beams", "decoding peers", "parity", "tokens"}  # which need peers
    more = ("encoding lengths", "lm step") if names == ["--all"] else ()
    for name in {*OFTEN, *more} - {"first_calls"}:
        rows = results[name]["rows"]
        assert rows and all(row["seconds"] and min(row["seconds"]) > 0 for row in rows), name
