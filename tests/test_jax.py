"""The models under JAX: the same weights give what TensorFlow gives, and a training step works."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_ctxrep.models import bert, decoder, elmo, heads, lm
from keras_ctxrep.text.features import CharacterFeatures, Row, WordPieceFeatures
from keras_ctxrep.text.pretraining import Masking, Vocabulary, bptt_segments, language_model_batch, pretrainer_batch
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
from keras_ctxrep.text.units import token_batch
from tests import tiny

ROOT = Path(__file__).parents[1]
BILM = tiny.config("elmo", layers=2, max_characters=10, highways=2, cell_clip=0.3, projection_clip=0.1)
BERT = tiny.config(vocabulary_size=30, layers=2, dropout=0.0, attention_dropout=0.0, initializer_range=0.3)
LM = lm.Config("transformer", width=8, heads=2, intermediate=12, context=4, dropout=0.0)
MODELS = {
    "lm": (lm.language_model, (LM, 9)),
    "bilm": (elmo.language_model, (BILM, 9)),
    "bert": (bert.pretrainer, (BERT,)),
    "tagger": (lambda config: heads.tag(bert.encoder(config), 3, crf=True, dropout=0.0), (BERT,)),
    "recurrent": (lambda config: decoder.recurrent(bert.encoder(config), 9, units=8, dropout=0.0).model, (BERT,)),
    "transformer": (lambda config: decoder.transformer(bert.encoder(config), 9, 8, dropout=0.0).model, (BERT,)),
    "convolutional": (lambda config: decoder.convolutional(bert.encoder(config), 9, 8, dropout=0.0).model, (BERT,)),
}

# Runs in a process of its own: reads weights and batch, writes the outputs and the losses of two training steps.
SCRIPT = """
import sys
import keras
import numpy as np
from keras_ctxrep.models import bert, decoder, elmo, heads, lm

assert keras.backend.backend() == "jax"
folder = sys.argv[1]
models = {
    "lm": (lm.language_model, (lm.%r, 9)),
    "bilm": (elmo.language_model, (elmo.%r, 9)),
    "bert": (bert.pretrainer, (bert.%r,)),
    "tagger": (lambda config: heads.tag(bert.encoder(config), 3, crf=True, dropout=0.0), (bert.%r,)),
    "recurrent": (lambda config: decoder.recurrent(bert.encoder(config), 9, units=8, dropout=0.0).model, (bert.%r,)),
    "transformer": (lambda config: decoder.transformer(bert.encoder(config), 9, 8, dropout=0.0).model, (bert.%r,)),
    "convolutional": (lambda config: decoder.convolutional(bert.encoder(config), 9, 8, dropout=0.0).model, (bert.%r,)),
}
for name, (make, arguments) in models.items():
    stored = np.load(f"{folder}/{name}.npz")
    inputs, targets, weights = (
        {key.split("/")[1]: stored[key] for key in stored if key.startswith(f"{kind}/")}
        for kind in ("inputs", "targets", "weights")
    )
    model = make(*arguments)
    model.load_weights(f"{folder}/{name}.weights.h5")
    outputs = {key: np.asarray(value) for key, value in model.predict_on_batch(inputs).items()}
    losses = {key: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for key in targets}
    if name == "tagger":
        losses = {"logits": model.get_layer("crf").loss}
    model.compile(keras.optimizers.SGD(0.01), losses)
    steps = [float(np.ravel(model.train_on_batch(inputs, targets, weights or None))[0]) for _ in range(2)]
    np.savez(f"{folder}/{name}.found.npz", steps=steps, **outputs)
assert "tensorflow" not in sys.modules
"""


def batches():
    """(inputs, targets, weights) of both pretraining objectives, and of a tagger with a CRF."""
    rng = np.random.default_rng(0)
    characters = CharacterFeatures(max_characters=10)
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *"abcdef"])
    sentences = characters.encode(["a b c d", "e", "f unknown a"])
    pieces = WordPieceFeatures(WordPiece([*SPECIAL_PIECES, *(chr(97 + i) for i in range(25))]), max_length=16)
    masking = Masking(pieces.wordpiece)
    pairs = [(Row([2, 7, 8, 9, 3, 10, 11, 3], first=5), True), (Row([2, 12, 3, 13, 3], first=3), False)]
    tagged = WordPieceFeatures(pieces.wordpiece, starts=True)([["a", "", "b", "c"], ["d", "e"]])
    running = next(bptt_segments([[[3, 4, 5, 6]], [[7, 8, 3]]], 2, 5, (1, 1)))
    inputs, targets, weights = token_batch(running)
    inputs["state"] = np.zeros((2, lm.state_size(LM)), np.float32)
    target = {"target_ids": np.array([[1, 3, 4], [1, 5, 0]], np.int32), "target_mask": np.array([[1, 1, 1], [1, 1, 0]])}
    text = {name: tagged[name] for name in ("token_ids", "segment_ids", "mask")} | target
    translated = text, {"logits": np.array([[3, 4, 2], [5, 2, 0]], np.int32)}, {}
    return {
        "recurrent": translated,
        "transformer": translated,
        "convolutional": translated,
        "tagger": (tagged, {"logits": np.array([[0, 2, 1], [1, 2, -1]], np.int32)}, {}),
        "bilm": language_model_batch(characters, vocabulary, sentences),
        "bert": pretrainer_batch(pieces, [masking(pair, rng) for pair in pairs]),
        "lm": (inputs, targets, weights),
    }


@pytest.mark.release  # two processes that import Keras
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed: pip install jax")
def test_jax_gives_what_tensorflow_gives(tmp_path, rng):
    import keras

    expected = {}
    for name, (inputs, targets, weights) in batches().items():
        make, arguments = MODELS[name]
        model = make(*arguments)
        for weight in model.weights:  # biases too
            weight.assign(weight + rng.normal(scale=0.1, size=weight.shape))
        model.save_weights(tmp_path / f"{name}.weights.h5")
        named = {"inputs": inputs, "targets": targets, "weights": weights}
        arrays = {f"{kind}/{key}": array for kind, group in named.items() for key, array in group.items()}
        np.savez(tmp_path / f"{name}.npz", **arrays)
        outputs = {key: np.asarray(value) for key, value in model(inputs).items()}
        losses = {key: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for key in targets}
        if name == "tagger":
            losses = {"logits": model.get_layer("crf").loss}
        model.compile(keras.optimizers.SGD(0.01), losses, run_eagerly=True)
        steps = [float(np.ravel(model.train_on_batch(inputs, targets, weights or None))[0]) for _ in range(2)]
        expected[name] = outputs | {"steps": np.array(steps)}

    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # compiles in half the time
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT % (LM, BILM, BERT, BERT, BERT, BERT, BERT), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for name, arrays in expected.items():
        actual = tiny.arrays_of(tmp_path / f"{name}.found.npz")
        assert set(actual) == set(arrays)
        for key, array in arrays.items():
            np.testing.assert_allclose(actual[key], array, atol=1e-5, err_msg=f"{name} {key}")
        assert actual["steps"][1] < actual["steps"][0]
