"""A decoder in one .tflite file: `start` and `step` of built-in operators, searched through as in Keras."""

from functools import partial
from itertools import chain

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_ctxrep.inference import keras_engine
from keras_ctxrep.models import decoder, stack, static
from keras_ctxrep.text import beam
from keras_ctxrep_tflite import quantize

S = 5
MAKERS = {
    "recurrent": lambda encoder: decoder.recurrent(encoder, 11, units=8, layers=2),
    "transformer": lambda encoder: decoder.transformer(encoder, 11, width=8, heads=2, context=6),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_beams_of_litert_are_those_of_keras(kind, rng):
    encoder = stack.recurrent(static.encoder(static.Config(words=9, width=6)), units=4, dropout=0.0)
    models = MAKERS[kind](encoder)
    for weight in models.model.trainable_weights:
        weight.assign(weight + rng.normal(scale=0.5, size=weight.shape))
    module, functions = tf.Module(), {}
    module.weights = [weight.value for weight in models.model.weights]
    for name in ("start", "step"):
        model = getattr(models, name)
        spec = {
            key: tf.TensorSpec((1, *(S if size is None else size for size in tensor.shape[1:])), tensor.dtype, key)
            for key, tensor in model.input.items()
        }
        traced = tf.function(partial(model, training=False))
        functions[name] = traced.get_concrete_function(spec)
    interpreter = Interpreter(model_content=quantize._converted(module, functions, 9))

    def engine(name):
        runner = interpreter.get_signature_runner(name)

        def run(inputs):
            count = len(next(iter(inputs.values())))
            rows = [runner(**{key: array[i : i + 1] for key, array in inputs.items()}) for i in range(count)]
            return {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}

        return run

    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]], np.int32)
    inputs = {"word_ids": rng.integers(1, 9, (3, S)).astype(np.int32) * mask, "mask": mask}
    for beams in (1, 4):
        options = {"begin": 0, "end": 1, "max_length": 8, "beams": beams, "alpha": 0.6}
        expected = beam.generate(*map(keras_engine.runner, models[1:]), inputs, **options)
        found = beam.generate(engine("start"), engine("step"), inputs, **options)
        for left, right in zip(chain(*found), chain(*expected), strict=True):
            assert left.tokens == right.tokens and left.finished == right.finished
            assert left.score == pytest.approx(right.score, abs=1e-5)
