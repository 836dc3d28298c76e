"""The size of functions, read from the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST = 8  # parameters; more of them want a dataclass


def long_signatures(source):
    """Name, line and number of parameters of each function that has too many; self and cls do not count."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = node.args
            names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            count = len([name for name in names if name not in ("self", "cls")])
            if count > MOST:
                yield getattr(node, "name", "lambda"), node.lineno, count


def test_functions_have_few_parameters():
    folders = ("keras_ctxrep", "export", "tflite")
    messages = [
        f"{path.relative_to(ROOT)}:{line}: {name} has {count} parameters, and {MOST} are the most: group them"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line, count in long_signatures(path.read_text(encoding="utf-8"))
    ]
    assert not messages, "\n".join(messages)


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ("a, b, c, d, e, f, g, h", None),
        ("a, b, c, d, e, f, g, h, i", 9),
        ("self, a, b, c, d, e, f, g, h", None),
        ("a, /, b, c, d, e, f, g, *, h, i", 9),
    ],
)
def test_a_long_signature_is_seen(parameters, count):
    found = [number for *_, number in long_signatures(f"class A:\n    def f({parameters}): pass")]
    assert found == ([] if count is None else [count])
