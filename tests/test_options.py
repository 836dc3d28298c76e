import ast
import inspect
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import pytest

from keras_ctxrep import options as options_module
from keras_ctxrep.models import static
from keras_ctxrep.options import Fit, Options, Preparation, Pretraining, Training, keywords, option

CLASSES = [Fit, Pretraining, Preparation, Training]


@pytest.mark.parametrize("options", CLASSES)
def test_every_option_has_a_help_text_and_a_default_of_its_type(options):
    options(**({"steps": 1} if options in (Fit, Pretraining) else {}))
    for entry in fields(options):
        assert entry.metadata["help"] and not entry.metadata["help"].endswith(".")


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        (Fit, {"steps": 0}, "^steps=0: must be above 0$"),
        (Fit, {"steps": 1, "warmup": 1.0}, "^warmup=1.0: must be at least 0 and below 1$"),
        (Fit, {"steps": 1, "warmup": -0.1}, "^warmup=-0.1: must be at least 0 and below 1$"),
        (Fit, {}, "^steps=None, minutes=None: give one of the two$"),
        (Pretraining, {"steps": 1, "minutes": 1}, "^steps=1, minutes=1: give one of the two$"),
        (Pretraining, {"steps": 1, "batch_size": 0}, "^batch_size=0: must be above 0$"),
        (Pretraining, {"steps": 1, "optimizer": "sgd"}, "^optimizer='sgd': must be adamw, adagrad or lamb$"),
        (Preparation, {"max_length": 4}, "^max_length=4: must be at least 5$"),
        (Training, {"learning_rate": float("inf")}, "^learning_rate=inf: must be a finite number$"),
        (Training, {"dropout": float("nan")}, "^dropout=nan: must be a finite number$"),
    ],
)
def test_values_out_of_range(options, given, message):
    with pytest.raises(ValueError, match=message):
        options(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": "32"}, "^batch_size='32': must be a whole number$"),
        ({"batch_size": 1.5}, "^batch_size=1.5: must be a whole number$"),
        ({"batch_size": True}, "^batch_size=True: must be a whole number$"),
        ({"batch_size": None}, "^batch_size=None: must be a whole number$"),
        ({"tensorboard": 3}, "^tensorboard=3: must be a text or a path$"),
    ],
)
def test_values_of_another_type(given, message):
    with pytest.raises(TypeError, match=message):
        Training(**given)


def test_values_of_a_wider_type():
    options = Training(batch_size=np.int64(8), learning_rate=1, dropout=np.float32(0.5), tensorboard=Path("a"))
    assert options.plain()["tensorboard"] == "a" and options.batch_size == 8


def test_an_unknown_option_names_the_nearest():
    @keywords(Pretraining)
    def pretrain(*, options):
        return options

    with pytest.raises(TypeError, match=r"^pretrain\(\) has no option 'step'; the nearest one is 'steps'$"):
        pretrain(step=1)


def test_options_on_which_the_result_does_not_depend():
    plain = Training(steps=3).plain(neutral=False)
    assert plain["steps"] == 3 and not {"tensorboard", "checkpoint_minutes"} & set(plain)


def test_a_task_has_options_of_its_own():
    @dataclass(frozen=True)
    class Answering(Options):
        stride: int = option(128, "pieces from one window to the next", above=0)

    with pytest.raises(ValueError, match="stride=-1: must be above 0"):
        Answering(stride=-1)


def test_nothing_but_the_standard_library_is_loaded():
    code = "import sys, keras_ctxrep.options; print({'numpy', 'keras', 'tensorflow', 'tokenizers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_numbers_of_numpy_become_those_of_json():
    assert json.dumps(Training(batch_size=np.int64(8), dropout=np.float32(0.5)).plain())


def test_a_function_takes_options_as_a_dataclass_or_as_keywords():
    @keywords(Training)
    def train(data, report=None, *, options: Training):
        return data, report, options

    given = Training(seed=2, batch_size=8)
    assert train("a", seed=2, batch_size=8) == ("a", None, given) == train("a", options=given)
    assert train("a", print, options=given, seed=3) == ("a", print, Training(seed=3, batch_size=8))
    assert {"data", "report", "batch_size", "seed"} <= {*inspect.signature(train).parameters}


def test_an_unknown_keyword_names_the_nearest_option():
    @keywords(Training)
    def train(*, options: Training):
        return options

    with pytest.raises(TypeError, match=r"^train\(\) has no option 'sede'; the nearest one is 'seed'$"):
        train(sede=3)


# names that options of classes beside each other share, each with a meaning or a type of its own; it may shrink
SHARED = {
    "batch_size", "cache", "epochs", "layers", "learning_rate", "max_length", "sentences", "temperature", "units",
    "vocab_size",
}  # fmt: skip


def repeated(source):
    """Options that a class of the source declares again, whether a base class has them, and those of other classes."""
    declared, bases = {}, {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            declared[node.name] = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
            parents = [base.id for base in node.bases if isinstance(base, ast.Name)]
            bases[node.name] = set().union(*(bases.get(parent, set()) | {parent} for parent in parents))
    of_base = {f"{kind}.{name}" for kind, names in declared.items() for base in bases[kind] if base in declared
               for name in names & declared[base]}  # fmt: skip
    counts = Counter(name for names in declared.values() for name in names)
    return of_base, {name for name, count in counts.items() if count > 1}


def test_no_field_stands_twice():
    of_base, shared = repeated(inspect.getsource(options_module))
    assert not of_base and shared <= SHARED


@pytest.mark.parametrize(
    ("bases", "expected"), [("A", ({"B.x"}, {"x"})), ("C", ({"B.x"}, {"x"})), ("", (set(), {"x"}))]
)
def test_a_field_that_stands_twice_is_seen(bases, expected):
    """Verbatim, in a class derived from another, or in one beside it."""
    field = "    x: int = option(1, 'a number')\n"
    source = f"class A:\n{field}class C(A):\n    pass\nclass B({bases}):\n{field}"
    assert repeated(source) == expected


def test_numbers_of_numpy_in_configs():
    config = static.Config(words=np.int64(3), width=4)
    assert type(config.words) is int and json.dumps(asdict(config))
