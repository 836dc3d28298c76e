"""What an engine does not have is an error that says what has it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from keras_ctxrep.inference import engines
from keras_ctxrep.inference.keras_engine import KerasEngine
from keras_ctxrep.inference.predictor import Engine
from tests import tiny


class File(Engine):
    """An export of a task, with nothing in it."""

    exported = True

    def __init__(self, task):
        self.name, self.path = "export", Path(f"{task}.tflite")
        family = "lm" if task == "causal_language_model" else "bert"
        self.bundle = replace(tiny.bundle("embed"), family=family, task=task)


@pytest.mark.parametrize(
    ("task", "part", "message"),
    [
        ("pretrainer", "answer", r"a masked language model has no answers: call fill\(texts\), as `ctxrep fill` does"),
        ("causal_language_model", "answer", "a language model in one direction has no answers: call generate"),
        ("classify", "encode", "a model for the task 'classify' has no vectors of texts; write one of the encoder"),
        ("classify", "generate", "a model for the task 'classify' generates no text; a language model of `ctxrep"),
        ("classify", "fill", "a model for the task 'classify' without a masked language model; `ctxrep tflite"),
        ("classify", "keras", "not a Keras model; load the model folder that it was made from"),
    ],
)
def test_an_engine_names_what_has_the_part_that_it_lacks(task, part, message):
    with pytest.raises(ValueError, match=f"^{task}.tflite: {message}"):
        getattr(File(task), part)


def test_a_model_in_memory_is_an_engine_with_its_present_weights():
    engine = KerasEngine(*tiny.model("classify"))
    before = engine.answer(["the cat"])[0]["probabilities"]
    for weight in engine.keras.model.weights:
        weight.assign(-weight)
    assert engine.answer(["the cat"])[0]["probabilities"] != before
    with pytest.raises(AttributeError, match="cannot assign"):
        engine.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_the_old_name_of_its_answers(tmp_path):
    folder = tiny.save(tmp_path / "m", tiny.bundle("classify"))
    engine = engines.open_model(folder)
    with pytest.warns(DeprecationWarning, match="engine.answer now"):
        assert engine.predictor is engine.answer


HIDDEN = """
import sys
sys.modules |= dict.fromkeys(sys.argv[1].split(","))
import keras_ctxrep as ctx
print(ctx.load("sentiment_en", engine=sys.argv[2])("A charming film.")["label"])
"""


@pytest.mark.parametrize(
    ("hidden", "engine", "answers", "hints"),
    [
        ("tensorflow", "auto", True, ()),
        ("tensorflow,ai_edge_litert", "auto", False, ('pip install "tensorflow', 'pip install "ai-edge-litert')),
        ("tensorflow,ai_edge_litert", "keras", False, ('pip install "tensorflow',)),
    ],
)
def test_what_a_model_of_the_package_says_to_install(hidden, engine, answers, hints):
    command = [sys.executable, "-c", HIDDEN, hidden, engine]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.stdout == ("positive\n" if answers else "")
    last = (process.stderr.splitlines() or [""])[-1]
    assert last.startswith("ImportError: tensorflow is not installed") is not answers
    assert last.count("pip install") == len(hints) and all(hint in last for hint in hints)
