"""Runs an example, examples/NAME.py, cell by cell, and compares what it prints with what is written in it.

    python tests/run_example.py examples/NAME.py           # prints the difference, exit status 1 if there is one
    python tests/run_example.py examples/NAME.py --write   # writes what it printed

The printed output stands after its cell, in a Markdown cell that begins with ```text. The example runs in a temporary
folder.
"""

import argparse
import difflib
import io
import os
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path

import jupytext
from nbformat.v4 import new_markdown_cell

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "MPLBACKEND": "Agg"}


def is_output(cell) -> bool:
    return cell.cell_type == "markdown" and cell.source.startswith("```text")


def run(notebook) -> None:
    """Runs the code cells of a notebook, and replaces the cells with their output."""
    names: dict = {"__name__": "__main__"}
    cells = []
    for number, cell in enumerate(cell for cell in notebook.cells if not is_output(cell)):
        cells.append(cell)
        if cell.cell_type != "code":
            continue
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(cell.source, f"cell {number}", "exec"), names)
        if printed.getvalue():
            cells.append(new_markdown_cell(f"```text\n{printed.getvalue().rstrip()}\n```"))
    notebook.cells = cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", type=Path)
    parser.add_argument("--write", action="store_true", help="write what it printed into the example")
    args = parser.parse_args()
    before = args.example.read_text("utf-8")
    notebook = jupytext.reads(before, "py:percent")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        run(notebook)
    after = jupytext.writes(notebook, "py:percent")
    after = before[: before.index("# %%")] + after[after.index("# %%") :]  # without jupytext's own header
    if args.write:
        args.example.write_text(after, "utf-8")
        return 0
    difference = [*difflib.unified_diff(before.splitlines(), after.splitlines(), "written", "printed", lineterm="")]
    print("\n".join(difference), file=sys.stderr)
    return bool(difference)


if __name__ == "__main__":
    sys.exit(main())
