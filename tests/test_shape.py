"""The size of functions, their types and the arguments in their docstrings, read from the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST = 8  # parameters; more of them want a dataclass
# what Keras or a base class calls, by tensors and shapes of any kind
CALLED_BY_KERAS = (
    "apply", "build", "call", "compute_mask", "compute_output_shape", "compute_output_spec", "of_batch",
    "train_step", "update_state", "update_step",
)  # fmt: skip
TYPED = ("layers/*.py", "models/*.py", "training/*.py", "losses.py", "metrics.py", "optimizers.py", "saving.py",
         "checks.py", "text/scores.py")  # fmt: skip


def parameters(function):
    """Those that have a name, but for self and cls."""
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [each for each in every if each.arg not in ("self", "cls")]


def long_signatures(source):
    """Name, line and number of parameters of each function that has too many; self and cls do not count."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            count = len(parameters(node))
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


def public_functions(source):
    """Of a module and of its classes, with the constructors, but for what Keras calls."""
    body = ast.parse(source).body
    classes = [node for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for node in (*body, *(part for kind in classes for part in kind.body)):
        named = isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__")
        if named and node.name not in CALLED_BY_KERAS:
            yield node


def without_types(source):
    return [
        f"{node.name}({each.arg})"
        for node in public_functions(source)
        for each in parameters(node)
        if each.annotation is None
    ]


def without_arguments(source):
    """Public functions of two or more parameters whose docstring has none; `on_...` are Keras' callbacks."""
    names = next((ast.literal_eval(node.value) for node in ast.parse(source).body
                  if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"), [])  # fmt: skip
    body = [node for node in ast.parse(source).body if getattr(node, "name", None) in names]
    return [
        node.name
        for node in public_functions("\n".join(map(ast.unparse, body)))
        if len(parameters(node)) > 1
        and not node.name.startswith(("__", "on_"))
        and "Args:" not in (ast.get_docstring(node) or "")
    ]


@pytest.mark.parametrize("missing", [without_types, without_arguments])
def test_public_functions_have_types_and_arguments(missing):
    paths = [path for pattern in TYPED for path in sorted((ROOT / "keras_ctxrep").glob(pattern))]
    messages = [f"{path.name}: {name}" for path in paths for name in missing(path.read_text(encoding="utf-8"))]
    assert len(paths) > 30 and not messages, "\n".join(messages)


def test_a_missing_type_and_missing_arguments_are_seen():
    source = "__all__ = ['f', 'A']\ndef f(a: int, b):\n    'F.'\ndef _f(a, b): pass\n"
    source += "class A:\n    def __init__(self, a): pass\n    def call(self, x): pass\n    def g(self, a: int): 'G.'\n"
    assert without_types(source) == ["f(b)", "__init__(a)"] and without_arguments(source) == ["f"]
    assert without_arguments(source.replace("'F.'", "'F.\\n\\n    Args:\\n        a: one'")) == []
