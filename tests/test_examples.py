"""The examples run, and print what is written in them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="jupytext is missing: pip install '.[docs]'")
pytest.importorskip("pandas", reason="pandas is missing: pip install '.[dev]'")

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUNNER = ROOT / "tests" / "run_example.py"


def run(path: Path, *options: str) -> subprocess.CompletedProcess:
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "export", "tflite"))
    command = [sys.executable, str(RUNNER), str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths})


LONG = ("course", "language_model_that_writes", "question_answering", "summaries", "tagger_to_a_phone")  # 40 s and more


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.release if path.stem in LONG else ()) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_an_example(path):
    result = run(path)
    assert result.returncode == 0, result.stderr[-3000:]


def test_another_output_is_found(tmp_path):
    path = tmp_path / "example.py"
    path.write_text("# %% [markdown]\n# # Title\n\n# %%\nprint(1 + 1)\n\n# %% [markdown]\n# ```text\n# 3\n# ```\n")
    result = run(path)
    assert result.returncode == 1 and "-# 3" in result.stderr and "+# 2" in result.stderr
    assert run(path, "--write").returncode == 0 and run(path).returncode == 0
    assert path.read_text().startswith("# %% [markdown]\n# # Title\n") and "# 2\n" in path.read_text()


def test_every_example_is_on_a_page():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [path for path in EXAMPLES if f"examples/{path.stem}\n" not in index] == []
