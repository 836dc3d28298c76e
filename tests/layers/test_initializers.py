"""Random weights are drawn for a fresh model, and are not for one whose weights are set next."""

import keras
import numpy as np
import pytest

from keras_ctxrep import saving
from keras_ctxrep.layers import initializers
from keras_ctxrep.layers.initializers import RandomWeights, no_random_weights


def test_values_are_those_of_keras():
    ours, theirs = (keras.initializers.RandomNormal(seed=3), RandomWeights(keras.initializers.RandomNormal(seed=3)))
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(each((4, 5))) for each in (ours, theirs)))


def test_config():
    made = RandomWeights(keras.initializers.TruncatedNormal(stddev=0.3))
    again = keras.initializers.deserialize(keras.initializers.serialize(made))
    assert isinstance(again, RandomWeights) and again.get_config() == made.get_config()
    assert again.initializer.stddev == 0.3


def test_zeros_have_the_type_of_the_weight_and_end_with_the_block():
    with no_random_weights():
        zeros = RandomWeights("glorot_uniform")((2, 3), dtype="float16")
    assert keras.backend.standardize_dtype(zeros.dtype) == "float16"
    assert not keras.ops.convert_to_numpy(zeros).any()
    assert keras.ops.convert_to_numpy(RandomWeights("glorot_uniform")((2, 3))).all()


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_loading_draws_nothing_that_is_large(family, models, monkeypatch):
    drawn = []

    def noted(self, shape, dtype=None):
        if not initializers._ZEROS.get():
            drawn.append(shape)
        return call(self, shape, dtype)

    call = RandomWeights.__call__
    monkeypatch.setattr(RandomWeights, "__call__", noted)
    _, bundle = saving.load_encoder(models / family / "pretrained")
    assert not drawn
    fresh = saving.build(bundle)
    assert drawn and all(weight.numpy().any() for weight in fresh.weights if weight.path.endswith("kernel"))


def test_weights_of_a_decoder_differ():
    """Two kernels of one shape do not begin with the same numbers."""
    from keras_ctxrep.layers import MemoryAttention

    layer = MemoryAttention(2)
    layer.build((None, None, 4), (None, None, 8))
    query, output = layer.query_dense.kernel.numpy(), layer.output_dense.kernel.numpy()
    assert not np.array_equal(query, output)
