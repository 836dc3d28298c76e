"""Imports only run downward, and the floor for the edge loads without TensorFlow and Keras."""

import ast
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "keras_ctxrep": "keras_ctxrep",
    "keras_ctxrep_export": "export/keras_ctxrep_export",
    "keras_ctxrep_tflite": "tflite/keras_ctxrep_tflite",
}
ROW = re.compile(r"^\| *(\d*) *\| `([^`]+\.py)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def table():
    """Module -> (floor, what it imports outside and inside of functions), from docs/architecture.md."""
    rooms, floor = {}, ""
    for number, path, imported in ROW.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")):
        floor = number or floor
        folder = path.partition("/")[0]
        package = f"keras_ctxrep_{folder}." if folder in ("export", "tflite") else "keras_ctxrep."
        name = package + path.removeprefix(f"{folder}/" if folder in ("export", "tflite") else "")
        outside, _, inside = imported.partition(";")
        rooms[name.removesuffix(".py").replace("/", ".")] = int(floor), outside, inside
    return rooms


TABLE = table()
STRANGERS = ("keras_ctxrep.text", "keras_ctxrep.layers")  # on one floor, and do not know each other
LIBRARIES = {"tensorflow": "TensorFlow", "tensorflow_text": "TensorFlow", "keras": "Keras"}
# module or room -> all that it imports beside the standard library, outside of functions
AT_IMPORT = {
    "keras_ctxrep.options": ("keras_ctxrep.checks",),
    "keras_ctxrep.tasks": (
        "numpy",
        "keras_ctxrep.checks",
        "keras_ctxrep.options",
        "keras_ctxrep.text",
        "keras_ctxrep.tasks",
    ),
    "keras_ctxrep.inference.predictor": ("numpy", "keras_ctxrep.tasks", "keras_ctxrep.text"),
    "keras_ctxrep.inference.client": (
        "numpy",
        "keras_ctxrep.checks",
        "keras_ctxrep.inference.predictor",
        "keras_ctxrep.text",
        "keras_ctxrep.transport",
    ),
}


def test_the_places_that_are_named_exist():
    """The first table says where to look: each file is there, and has the name after the colon."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The modules")[0]
    places = re.findall(r"`([\w/]+\.(?:py|md))(?:: (\w+))?`", text)
    assert len(places) > 20
    for path, name in places:
        folder, _, rest = path.partition("/")
        of_package = {"export": f"export/keras_ctxrep_export/{rest}", "tflite": f"tflite/keras_ctxrep_tflite/{rest}"}
        files = [ROOT / path, ROOT / of_package.get(folder, f"keras_ctxrep/{path}")]
        found = [file for file in files if file.is_file()]
        assert found or "NAME" in path, path
        if name:
            tree = ast.parse(found[0].read_text(encoding="utf-8"))
            assert name in {getattr(node, "name", None) for node in tree.body}, (path, name)


def within(name, places):
    """The first of `places` that a module is, or lies in."""
    return next((place for place in places if name == place or name.startswith(f"{place}.")), None)


def modules(root):
    """(dotted name, file) of every module; a package is called `package.__init__`."""
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            yield ".".join([package, *path.relative_to(root / folder).with_suffix("").parts]), path


def imports(tree):
    """(imported name, line, whether it stands inside a function, whether it is relative); types alone are left out."""

    def walk(node, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield alias.name, child.lineno, inside, False
            elif isinstance(child, ast.ImportFrom):
                for alias in child.names:
                    yield f"{child.module}.{alias.name}", child.lineno, inside, child.level > 0
            else:
                yield from walk(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    return walk(tree, False)


def offences(root):
    """Every import that the house does not allow, as "file:line: what is wrong"."""
    messages = []
    for name, path in modules(root):
        if name not in TABLE and not (name.endswith(".__init__") and is_bare(path)):
            messages.append(f"{path.relative_to(root)}: has no row in docs/architecture.md")
            continue
        floor, outside, within_functions = TABLE.get(name, (0, "", ""))
        for target, line, inside, relative in imports(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path.relative_to(root)}:{line}: {target}"
            other = imported_module(target)
            if relative:
                messages.append(f"{place} is relative")
                continue
            if other and TABLE[other][0] > floor:
                messages.append(f"{place} lies on floor {TABLE[other][0]}, above floor {floor}")
            if {within(name, STRANGERS), within(target, STRANGERS)} == set(STRANGERS):
                messages.append(f"{place} is a stranger to {name}")
            room_of_few = within(name, AT_IMPORT)
            standard = target.partition(".")[0] in sys.stdlib_module_names
            if room_of_few and not (inside or standard or within(target, AT_IMPORT[room_of_few])):
                messages.append(f"{place} is imported with {room_of_few}, which takes no more than it has to")
                continue
            library = LIBRARIES.get(target.partition(".")[0])
            allowed = outside + within_functions if inside else outside
            if library and library not in allowed and not (library == "Keras" and "TensorFlow" in allowed):
                messages.append(f"{place} in a file without {library}")
    return messages


def is_bare(path):
    """Whether a file has nothing but a docstring."""
    return all(isinstance(node, ast.Expr) for node in ast.parse(path.read_text(encoding="utf-8")).body)


def imported_module(target):
    """The module of the table that `target` names, or that defines it; of a package its `__init__`."""
    names = [target, target.rpartition(".")[0]]
    return next((name for part in names for name in (part, f"{part}.__init__") if name in TABLE), None)


def test_imports_run_downward():
    assert not offences(ROOT), "\n".join(offences(ROOT))


def circle(root):
    """Modules that import each other, inside functions too, the first of them once more at the end; [] of none."""
    graph = {
        name: {imported_module(target) for target, *_ in imports(ast.parse(path.read_text(encoding="utf-8")))} - {None}
        for name, path in modules(root)
    }
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        graph = {name: targets for name, targets in graph.items() if name not in leaves}
    path = [min(graph)] if graph else []
    while path and path[-1] not in path[:-1]:
        path.append(min(graph[path[-1]] & graph.keys()))
    return path[path.index(path[-1]) :] if path else []


def test_no_modules_import_each_other():
    assert not circle(ROOT), " -> ".join(circle(ROOT))


@pytest.mark.parametrize("source", ["from keras_ctxrep import saving", "def f():\n    import keras_ctxrep.saving as s"])
def test_a_circle_is_seen(tmp_path, source):
    (tmp_path / "keras_ctxrep" / "zoo").mkdir(parents=True)
    (tmp_path / "keras_ctxrep" / "checks.py").write_text("from keras_ctxrep import zoo")
    (tmp_path / "keras_ctxrep" / "zoo" / "__init__.py").write_text(source)
    assert circle(tmp_path) == []
    (tmp_path / "keras_ctxrep" / "saving.py").write_text("from keras_ctxrep.zoo import find")
    assert circle(tmp_path) == ["keras_ctxrep.zoo.__init__", "keras_ctxrep.saving", "keras_ctxrep.zoo.__init__"]


def test_every_room_is_found():
    names = {name for name, _ in modules(ROOT)}
    assert {"keras_ctxrep.text.tokens", "keras_ctxrep.layers.lstm", "keras_ctxrep.models.bert"} <= names


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("keras_ctxrep/options.py", "import numpy as np", "is imported with keras_ctxrep.options"),
        ("keras_ctxrep/options.py", "from keras_ctxrep.text import files", "is imported with keras_ctxrep.options"),
        ("keras_ctxrep/options.py", "import dataclasses\nfrom collections.abc import Mapping", None),
        ("keras_ctxrep/tasks/tag.py", "import keras", "is imported with keras_ctxrep.tasks"),
        ("keras_ctxrep/tasks/tag.py", "from keras_ctxrep.models import heads", "is imported with keras_ctxrep.tasks"),
        ("keras_ctxrep/tasks/tag.py", "from keras_ctxrep.inference.predictor import Predictor", "is imported with"),
        ("keras_ctxrep/tasks/tag.py", "class A:\n    def f():\n        import keras, tensorflow", None),
        ("keras_ctxrep/tasks/tag.py", "def f():\n    from keras_ctxrep.models import heads", None),
        ("keras_ctxrep/tasks/tag.py", "def f():\n    from keras_ctxrep import saving", ":2: .* floor 4, above floor 2"),
        ("keras_ctxrep/tasks/tag.py", "import numpy\nfrom keras_ctxrep import options\nimport re", None),
        ("keras_ctxrep/inference/predictor.py", "import numpy\nfrom keras_ctxrep import tasks", None),
        ("keras_ctxrep/inference/predictor.py", "def f():\n    import keras", "without Keras"),
        ("keras_ctxrep/inference/predictor.py", "def f():\n    import tensorflow", "without TensorFlow"),
        ("keras_ctxrep/text/files.py", "from keras_ctxrep import tasks", "tasks lies on floor 2, above floor 1"),
        ("keras_ctxrep/training/fit.py", "from keras_ctxrep import recipes", "recipes lies on floor 4, above floor 3"),
        (
            "keras_ctxrep/recipes/corpora.py",
            "from keras_ctxrep.cli import flags",
            "flags lies on floor 5, above floor 4",
        ),
        ("keras_ctxrep/models/bert.py", "from keras_ctxrep import saving", "saving lies on floor 4, above floor 2"),
        ("keras_ctxrep/models/bert.py", "import keras_ctxrep.saving as s", "saving lies on floor 4, above floor 2"),
        ("keras_ctxrep/text/tokens.py", "def f():\n    from keras_ctxrep.models.bert import x", ":2: .* above floor 1"),
        ("keras_ctxrep/text/tokens.py", "from keras_ctxrep.layers.mix import ScalarMix", "stranger"),
        ("keras_ctxrep/layers/mix.py", "from keras_ctxrep.text import tokens", "stranger"),
        ("keras_ctxrep/training/fit.py", "from keras_ctxrep.cli.main import main", "above floor 3"),
        ("keras_ctxrep/training/fit.py", "from keras_ctxrep_export import saved_model", None),
        ("export/keras_ctxrep_export/kit.py", "import keras_ctxrep_tflite.quantize", "floor 4, above floor 2"),
        (
            "tflite/keras_ctxrep_tflite/quantize.py",
            "from keras_ctxrep import saving\ndef f():\n    import tensorflow",
            None,
        ),
        ("keras_ctxrep/layers/mix.py", "import tensorflow as tf", "without TensorFlow"),
        ("keras_ctxrep/layers/mix.py", "def f():\n    import tensorflow as tf", "without TensorFlow"),
        ("keras_ctxrep/layers/lstm.py", "def f():\n    import tensorflow as tf", None),
        ("keras_ctxrep/layers/lstm.py", "if True:\n    import tensorflow as tf", "without TensorFlow"),
        ("keras_ctxrep/convert/google.py", "def f():\n    import tensorflow as tf", None),
        ("keras_ctxrep/convert/google.py", "import tensorflow as tf", "without TensorFlow"),
        ("keras_ctxrep/convert/huggingface.py", "def f():\n    import tensorflow as tf", "without TensorFlow"),
        ("keras_ctxrep/models/elmo.py", "from tensorflow.python import ops", "without TensorFlow"),
        ("keras_ctxrep/text/files.py", "def f():\n    import tensorflow_text", "without TensorFlow"),
        ("keras_ctxrep/text/files.py", "from keras import ops", "without Keras"),
        ("tflite/keras_ctxrep_tflite/runtime.py", "def f():\n    import tensorflow.lite", "without TensorFlow"),
        ("tflite/keras_ctxrep_tflite/runtime.py", "from keras_ctxrep.text import bundle\nimport numpy", None),
        ("keras_ctxrep/backend.py", "import tensorflow as tf", None),
        ("keras_ctxrep/models/bert.py", "from . import elmo", "relative"),
        ("keras_ctxrep/models/bert.py", "from .elmo import encoder", "relative"),
        ("keras_ctxrep/__init__.py", "from keras_ctxrep.text import tokens", "above floor 0"),
        ("keras_ctxrep/new.py", "", "has no row"),
    ],
)
def test_a_bad_import_is_seen(tmp_path, path, source, expected):
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(source)
    messages = offences(tmp_path)
    if expected is None:
        assert not messages
    else:
        (message,) = messages
        assert message.startswith(path) and re.search(expected, message)


def test_text_tasks_and_the_edge_runtime_load_neither_tensorflow_nor_keras():
    rooms = {
        room: [module.name for module in pkgutil.iter_modules([str(ROOT / "keras_ctxrep" / room)], prefix)]
        for room in ("text", "tasks")
        for prefix in [f"keras_ctxrep.{room}."]
    }
    assert len(rooms["text"]) > 5 and len(rooms["tasks"]) > 5
    names = [*rooms["text"], *rooms["tasks"], "keras_ctxrep.inference.predictor", "keras_ctxrep_tflite.runtime"]
    script = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tflite")])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert {"keras_ctxrep", "numpy", "tokenizers"} <= loaded
    assert not loaded & {"tensorflow", "keras", "jax", "torch", "h5py"}
