"""Writes a .tflite file of the task translate, and what it answers, for tests of runtimes in other languages.

    python -m tests.golden_translation FOLDER

makes FOLDER/model.tflite and FOLDER/golden/model/, which has bundle.json, vocab.txt, cases.jsonl and answers.jsonl in
the form of `tests/golden.py`: the outputs are those of LiteRT. The model has random weights, and reads characters.
"""

import random
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from keras_ctxrep import saving, tasks
from keras_ctxrep.models import lm
from keras_ctxrep.text import target_tokens
from keras_ctxrep.text.bundle import Bundle
from tests import golden

LENGTH = 16
LETTERS = "abcd \t中\U0001f600"  # known ones
TEXTS = ("a cab", "", "abc\nbad", "\n", "d" * 20)


def texts() -> list[str]:
    draw = random.Random(0)
    return [*TEXTS, *("".join(draw.choices(f"{LETTERS}\n!é", k=draw.randint(1, 18))) for _ in range(55))]


def write(folder: str | Path) -> None:
    """Writes the files; the conversion is most of the time."""
    from ai_edge_litert.interpreter import Interpreter

    from keras_ctxrep_tflite import quantize

    folder = Path(folder)
    vocab = (*target_tokens.MARKERS, *LETTERS)
    config = lm.Config(units="characters", layers=0, width=8, dropout=0.0, vocabulary_size=len(vocab))
    fields = tasks.bundle_fields("translate", units="words", target_length=6, beams=3)
    fields |= {"head": {"kind": "recurrent", "units": 8, "dropout": 0.0}}
    fields |= {"stack": {"kind": "lstm", "units": 4, "dropout": 0.0}}
    labels = (*target_tokens.MARKERS, *"VWXYZ")
    bundle = Bundle("lm", config=asdict(config), max_length=LENGTH, labels=labels, vocab=vocab, **fields)
    model, rng = saving.build(bundle), np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(2 * rng.normal(size=weight.shape))
    saving.save(folder / "model", model, bundle)
    file = quantize.convert(folder / "model", folder / "model.tflite", lengths=[LENGTH])
    search = Interpreter(model_path=str(file)).get_signature_runner(f"beam_{LENGTH}")

    def outputs(ids: np.ndarray) -> dict[str, np.ndarray]:
        values = np.array([ids, np.ones(len(ids))], np.int32)
        padded = np.pad(values, ((0, 0), (0, LENGTH - len(ids))))[:, None]
        return {name: value[0] for name, value in search(token_ids=padded[0], mask=padded[1]).items()}

    golden.write_model(folder / "golden" / "model", bundle, texts(), outputs)


if __name__ == "__main__":
    write(sys.argv[1])
