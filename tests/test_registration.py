"""Models in .keras files are loaded by `import keras_ctxrep` alone."""

import ast
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import losses, metrics, optimizers, registration
from keras_ctxrep.layers.transformer import gelu_tanh
from keras_ctxrep.models import bert, elmo, heads, stack
from keras_ctxrep_export.preprocessor import Preprocessor
from tests import tiny

ROOT = Path(__file__).parents[1]


def test_every_name_that_a_module_registers_is_in_the_table():
    registered = set()
    for folder in ("keras_ctxrep", "export", "tflite"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    decorators = map(ast.unparse, node.decorator_list)
                    if any("register_keras_serializable(package='keras_ctxrep')" in text for text in decorators):
                        registered.add(node.name)
    assert registered == {name for names in registration.NAMES.values() for name in names.split()}


def saved(folder):
    """A .keras file of each kind of model, and its outputs beside it."""
    models = {}
    for family in ("elmo", "static", "bert"):
        models[family], bundle = tiny.model("embed", family)
    text = keras.Input((), dtype="string", name="text")
    vectors = models["bert"](Preprocessor(bundle)(text))["sequence"]
    models["strings"] = keras.Model(text, keras.layers.GlobalAveragePooling1D()(vectors))
    for kind in stack.KINDS:
        models[kind] = heads.tag(stack.by_name(models["static"], kind, units=4, layers=2), 3, crf=kind == "gru")
    for task in ("classify", "answer", "coreference"):
        models[task], bundle = tiny.model(task, pair=task == "answer")
    models["pretrainer"] = bert.pretrainer(tiny.config())
    models["language_model"] = elmo.language_model(tiny.config("elmo"), 9)
    models["mix"] = tiny.model("classify", "elmo", head={"mix": True})[0]
    x = keras.Input((3,))
    models["activation"] = keras.Model(x, keras.layers.Dense(2, gelu_tanh)(x))
    y = keras.Input((3,))
    models["compiled"] = keras.Model(y, keras.layers.Dense(2)(y))
    models["compiled"].compile(optimizers.LAMB(0.1), losses.CrossEntropy(), metrics=[metrics.Accuracy()])
    models["compiled"].fit(np.ones((2, 3)), np.zeros(2), verbose=0)
    for name, model in models.items():
        model.save(folder / f"{name}.keras")
        inputs = keras.tree.map_structure(example, model.input)
        np.savez(folder / f"{name}.npz", *map(np.asarray, keras.tree.flatten([inputs, model(inputs)])))
    return models


def example(spec):
    if spec.dtype == "string":
        return tf.constant(["the cat", "a . b"])
    return np.ones([2 if size is None else size for size in spec.shape], spec.dtype)


LOAD = """
import pathlib, sys
import keras_ctxrep
assert not {"keras", "tensorflow", "numpy"} & {*sys.modules}
import keras, numpy as np
assert "keras_ctxrep.layers" not in sys.modules
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.keras")):
    keras.backend.clear_session()
    model = keras.models.load_model(path)
    arrays = [array.astype(str) if array.dtype == object else array for array in
              np.load(path.with_suffix(".npz"), allow_pickle=True).values()]
    count = len(keras.tree.flatten(model.input))
    inputs = keras.tree.pack_sequence_as(model.input, [keras.ops.convert_to_tensor(x) for x in arrays[:count]])
    for array, output in zip(arrays[count:], keras.tree.flatten(model(inputs)), strict=True):
        np.testing.assert_allclose(np.asarray(output), array, atol=1e-6, err_msg=path.name)
    model.save(path.with_name("again.keras"))
    path.with_name("again.keras").unlink()
    print(path.stem)
"""


@pytest.mark.slow  # a process that imports TensorFlow
def test_every_kind_of_model_is_loaded_by_the_import_alone(tmp_path):
    names = saved(tmp_path)
    done = subprocess.run([sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {*done.stdout.split()} == {*names}


@pytest.mark.slow
def test_keras_that_was_imported_before(tmp_path):
    tiny.model("classify")[0].save(tmp_path / "m.keras")
    code = "import sys, keras, keras_ctxrep; print(keras.models.load_model(sys.argv[1]).name)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.keras"], capture_output=True, text=True)
    assert done.stdout.split() == ["classifier"], done.stderr[-3000:]
