"""Training in half precision: every kind of model, and what stays in float32."""

import runpy
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import optimizers
from keras_ctxrep.layers import VocabularySoftmax
from keras_ctxrep.models.model import Model
from keras_ctxrep.optimizers import AdamW, OptimizerSpec
from keras_ctxrep.training import fit, strategy

KINDS = runpy.run_path(str(Path(__file__).parent / "training" / "replicas.py"))["KINDS"]
halves = pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])


@cache
def trained(kind, precision, steps=12):
    """A model after some steps, and the loss of each; the one in float32 is compared with both halves."""
    build, data, loss = KINDS[kind]()
    keras.utils.set_random_seed(0)
    with strategy.scope(precision):
        model = build()
    optimizer = OptimizerSpec(AdamW, {"learning_rate": 0.01, "epsilon": 1e-4}, scheduled=False)
    history = fit.fit(model, data, steps=steps, evaluations=steps, loss=loss, optimizer=optimizer)
    return model, [entry["loss"] for entry in history]


@pytest.mark.trains
@halves
@pytest.mark.parametrize("kind", ["language_model", "sampled_streams", "pretrainer", "tagger", "crf", "classifier"])
def test_losses_in_half_precision(kind, precision):
    model, losses = trained(kind, precision)
    np.testing.assert_allclose(losses, trained(kind, "float32")[1], rtol=5e-3)  # a bfloat16 has 8 bits
    assert isinstance(model.optimizer, optimizers.LossScale) == (precision == "mixed_float16")


def test_an_overflow_lowers_the_scale_and_is_overcome():
    model, losses = trained("answerer", "mixed_float16", steps=20)
    assert 0 < float(model.optimizer.dynamic_scale.numpy()) < 2.0**15
    assert losses[-1] < losses[0] / 4


@halves
@pytest.mark.parametrize("kind", ["pretrainer", "sampled_streams", "crf"])
def test_softmax_norm_cells_and_loss_are_in_float32(kind, precision, graph_nodes):
    build, data, loss = KINDS[kind]()
    with strategy.scope(precision):
        model = fit.compile(build(), optimizers.AdamW(), loss)
    x, y, weights = keras.utils.unpack_x_y_sample_weight(next(iter(data(0))))
    traced = tf.function(lambda: model.compute_loss(x, y, model(x, training=True), weights)).get_concrete_function()
    nodes = graph_nodes(traced)
    # a FusedBatchNormV3 of half precision has its statistics in float32
    exact = {"Softmax", "SparseSoftmaxCrossEntropyWithLogits", "Rsqrt", "Log", "Exp"}
    exact |= {"Tanh"} if kind == "sampled_streams" else set()  # of the LSTM cells; BERT's pooler has one too
    kinds = {(node.op, node.attr["T"].type) for node in nodes if node.op in exact}
    half = {tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum}
    assert kinds and not [op for op, dtype in kinds if dtype in half]
    products = [node for node in nodes if node.op in ("MatMul", "BatchMatMulV2") and node.attr["T"].type in half]
    assert bool(products) == (kind != "crf")


def test_the_gradient_of_a_sampled_softmax_stays_sparse(rng):
    """Under loss scaling too: the rows that a batch did not use are neither changed nor decayed."""
    with strategy.scope("mixed_float16"):
        x, y = keras.Input((None, 4), name="x"), keras.Input((None,), dtype="int32", name="y")
        softmax = VocabularySoftmax(1000, samples=5, seed=1, name="softmax")
        model = Model({"x": x, "y": y}, {"logits": softmax(x, targets=y)})
    fit.compile(model, optimizers.AdamW(0.1, weight_decay=0.5))
    before = softmax.kernel.numpy()
    targets = {"logits": np.zeros((2, 3), "int32")}
    inputs = {"x": rng.normal(size=(2, 3, 4)).astype("float32"), "y": rng.integers(0, 1000, (2, 3)).astype("int32")}
    model.fit(inputs, targets, batch_size=2, verbose=0)
    changed = (softmax.kernel.numpy() != before).any(axis=1).sum()
    assert 6 <= changed <= 11  # six true words and five samples
    assert float(model.optimizer.dynamic_scale.numpy()) == 2.0**15


def test_the_scale_grows():
    optimizer = optimizers.LossScale(optimizers.AdamW(0.1), initial_scale=4.0, dynamic_growth_steps=2)
    variable = keras.Variable(np.zeros(2, "float32"))
    scales = []
    for gradient in (1.0, 1.0, 1.0, np.inf, 1.0):
        optimizer.apply([tf.constant([gradient, 1.0])], [variable])
        scales.append(float(optimizer.dynamic_scale.numpy()))
    assert scales == [4.0, 8.0, 8.0, 4.0, 4.0]
