"""The published training of a biLM, step by step, against what other implementations recorded of it."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import optimizers
from keras_ctxrep.models import elmo
from keras_ctxrep.training import fit
from tests import tiny

HERE = Path(__file__).parent
BILM_TF = HERE.parents[1] / "shared" / "data" / "elmo_train_oracle"


def recorded_by_bilm_tf():
    """(sizes, rate and clip; arrays): four steps of https://github.com/allenai/bilm-tf."""
    if not BILM_TF.is_dir():
        pytest.skip(f"the record is not here: {BILM_TF}")
    result = json.loads((BILM_TF / "train_oracle_options.json").read_text())
    lstm, cnn = result["lstm"], result["char_cnn"]
    options = {
        "cells": lstm["dim"],
        "projection": lstm["projection_dim"],
        "layers": lstm["n_layers"],
        "cell_clip": lstm["cell_clip"],
        "projection_clip": lstm["proj_clip"],
        "residual": lstm["use_skip_connections"],
        "filters": cnn["filters"],
        "embedding_dim": cnn["embedding"]["dim"],
        "highways": cnn["n_highway"],
        "activation": cnn["activation"],
        "max_characters": cnn["max_characters_per_token"],
        "words": result["n_tokens_vocab"],
        "streams": result["batch_size"],
        "steps": result["unroll_steps"],
        "clip": result["all_clip_norm_val"],
        "learning_rate": 0.2,
    }
    return options, tiny.arrays_of(BILM_TF / "train_oracle.npz")


def recorded_with_pytorch():
    """Two steps by reference/bilm_two_steps.py; no residual, tanh."""
    arrays = tiny.arrays_of(HERE / "reference" / "bilm_two_steps.npz")
    return json.loads(str(arrays["options"])), arrays


def names(layer):
    """The record's name of each of a layer's weights, in the layer's order."""
    for weight in layer.weights:
        name = weight.name
        if layer.name == "softmax":
            yield {"softmax_kernel": "softmax/W", "softmax_bias": "softmax/b"}[name]
        elif layer.name != "char_cnn":
            direction, index = layer.name.split("_")
            cell = f"RNN_{int(direction == 'backward')}/rnn/multi_rnn_cell/cell_{index}/lstm_cell"
            yield f"{cell}/{name.replace('projection_kernel', 'projection/kernel')}"
        elif name.startswith("high_"):
            yield "CNN_high_{}/{}".format(*name.removeprefix("high_").split("_", 1))
        elif name == "char_embed":
            yield name
        else:
            yield f"CNN_proj/{name}" if name.endswith("proj") else f"CNN/{name}"


def recorded(arrays, when, layer):
    """A layer's weights in the record, without the state of streams."""
    result = {}
    for weight, name in zip(layer.weights, names(layer), strict=True):
        if weight.name == "recurrent_kernel":
            continue
        if weight.name != "state":
            result[weight.name] = arrays[f"{when}|{name}"]
        if weight.name == "kernel":  # one matrix holds both, those of the input first
            width = weight.shape[0]
            result["recurrent_kernel"], result["kernel"] = result["kernel"][width:], result["kernel"][:width]
        if weight.name.startswith("W_cnn"):
            result[weight.name] = result[weight.name][0]
    return result


@pytest.mark.parametrize("record", [recorded_by_bilm_tf, recorded_with_pytorch])
def test_training_step_by_step(record):
    """Losses, the gradient's norm, the carried states and every weight after each step."""
    options, arrays = record()
    sizes = {name: options.pop(name) for name in ("words", "streams", "steps", "clip", "learning_rate")}
    config = elmo.Config(**options | {"filters": tuple(map(tuple, options["filters"])), "dropout": 0.0})
    model = elmo.language_model(config, sizes["words"], streams=sizes["streams"])
    with_weights = [layer for layer in model.layers if layer.weights]
    for layer in with_weights:
        values = recorded(arrays, "init", layer)
        for weight in layer.weights:
            if weight.name != "state":
                weight.assign(values[weight.name])

    norms = []

    class Watched(optimizers.Adagrad):
        def apply(self, gradients, variables=None):
            dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
            norms.append(float(tf.linalg.global_norm(dense)) * self.gradient_scale)
            super().apply(gradients, variables)

    optimizer = Watched(sizes["learning_rate"], sizes["clip"], gradient_scale=float(sizes["steps"]))
    fit.compile(model, optimizer)
    model.run_eagerly = True
    count = len([name for name in arrays if name.endswith("loss_fwd")])
    assert count in (2, 4)
    for step in range(count):
        batch = {name: arrays[f"batch{step}|{name}"] for name in ("tokens_characters", "tokens_characters_reverse")}
        losses = model.train_on_batch(
            {
                "char_ids": batch["tokens_characters"] + 1,  # 0 is no word here
                "char_ids_reverse": batch["tokens_characters_reverse"] + 1,
                "mask": np.ones((sizes["streams"], sizes["steps"]), np.int32),
            },
            {
                "forward_logits": arrays[f"batch{step}|next_token_id"],
                "backward_logits": arrays[f"batch{step}|next_token_id_reverse"],
            },
            return_dict=True,
        )
        assert losses["forward_logits_loss"] == pytest.approx(float(arrays[f"batch{step}|loss_fwd"]), abs=1e-5)
        assert losses["backward_logits_loss"] == pytest.approx(float(arrays[f"batch{step}|loss_bwd"]), abs=1e-5)
        assert norms[step] == pytest.approx(float(arrays[f"batch{step}|grad_norm_before_clip"]), rel=1e-5)
        assert norms[step] > sizes["clip"]  # it is clipped
        for layer in with_weights:
            values = recorded(arrays, f"after{step}", layer)
            for weight in layer.weights:
                if weight.name != "state":
                    np.testing.assert_allclose(weight, values[weight.name], atol=1e-5, err_msg=weight.path)
        for number, direction in enumerate(("forward", "backward")):
            for index in range(config.layers):
                states = [arrays[f"batch{step}|state_{part}_{number}_{index}"] for part in "hc"]
                expected = np.concatenate(states, 1)
                np.testing.assert_allclose(model.get_layer(f"{direction}_{index}").state, expected, atol=1e-5)
