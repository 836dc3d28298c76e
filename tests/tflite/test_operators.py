"""Every task in every number format: built-in operators only, and files that run."""

import functools

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from keras_ctxrep import saving, tasks
from keras_ctxrep.options import QUANTIZATIONS
from keras_ctxrep_tflite import quantize, weights

BUILTIN = {*weights._names().values()} - {"CUSTOM"}
PAIRS = ("answer", "regress")


@pytest.fixture(scope="module")
def converted(tiny_model, tflite_in_process, tmp_path_factory):
    """A function from the name of a task to its float32 model, with the bundle."""

    @functools.cache
    def convert(task):
        folder = tmp_path_factory.mktemp(task)
        model, bundle = tiny_model(task, pair=task in PAIRS)
        saving.save(folder, model, bundle)
        return quantize.float_model(folder, (16, 40))

    return convert


@pytest.mark.slow  # a conversion for each task
@pytest.mark.parametrize("form", QUANTIZATIONS)
@pytest.mark.parametrize("task", tasks.TASKS)
def test_operators_of_a_task(task, form, converted, monkeypatch):
    monkeypatch.setattr(weights, "SMALLEST", 32)  # so that the weights of a tiny model are quantized too
    model, _ = converted(task)
    watched = weights.watched(model)
    names = list(weights.sizes(model))
    assert names and len(watched) > len(model)
    ranges = {name: weights.Ranges((-4.0, 4.0), (-8.0, 8.0)) for name in names}
    data = weights.quantized(model, form, names, ranges)
    found = weights.operators(data)
    assert set(found) <= BUILTIN and not [name for name in found if name.startswith(("Flex", "CUSTOM"))]
    assert bool(found["QUANTIZE"]) == (form == "int8") and bool(found["CAST"])
    interpreter = Interpreter(model_content=data)
    for signature in ("length_16", "length_40"):
        runner = interpreter.get_signature_runner(signature)
        outputs = runner(
            **{name: np.ones(each["shape"], np.int32) for name, each in runner.get_input_details().items()}
        )
        assert outputs and all(np.isfinite(value).all() for value in outputs.values())
