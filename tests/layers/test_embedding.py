import keras
import numpy as np
import pytest
from keras import ops

from keras_ctxrep.layers import Embedding, FactorizedEmbedding, ReversibleEmbedding


@pytest.mark.parametrize("make", [Embedding, ReversibleEmbedding])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_ids_of_other_types_are_those_of_keras(make, dtype):
    ids = np.array([[3, 8, 0]])
    layer = make(9, 2)
    expected = layer(ids.astype("int32"))
    assert np.array_equal(ops.convert_to_numpy(layer(ids.astype(dtype))), ops.convert_to_numpy(expected))


def test_ids_in_a_sequential_model():
    """Without an Input, Keras makes them float32."""
    model = keras.Sequential([Embedding(9, 2), keras.layers.GlobalMaxPooling1D()])
    assert model.predict(np.array([[3, 8, 0]]), verbose=0).shape == (1, 2)


def test_a_factorized_table_is_the_product(rng):
    """In both directions, and with the deviation that its initializer names."""
    layer = FactorizedEmbedding(2000, 16, 64, embeddings_initializer=keras.initializers.TruncatedNormal(stddev=0.5))
    ids = np.array([[3, 8, 0]])
    vectors = ops.convert_to_numpy(layer(ids))
    table = ops.convert_to_numpy(layer.embeddings) @ ops.convert_to_numpy(layer.projection)
    np.testing.assert_allclose(vectors, table[ids], atol=1e-6)
    x = rng.normal(size=(2, 3, 64)).astype("float32")
    np.testing.assert_allclose(layer(x, reverse=True), x @ table.T, atol=1e-4)
    assert layer(keras.KerasTensor((None, 3, 64)), reverse=True).shape == (None, 3, 2000)
    assert table.std() == pytest.approx(0.5 * 0.88, rel=0.05)  # a truncated normal has 0.88 of its deviation


def test_both_factors_are_in_a_file(tmp_path):
    model = keras.Sequential([keras.Input((3,), dtype="int32"), FactorizedEmbedding(9, 2, 4)])
    for name in ("whole.keras", "m.weights.h5"):
        (model.save if name.endswith(".keras") else model.save_weights)(tmp_path / name)
    other = keras.models.load_model(tmp_path / "whole.keras")
    for first, second in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)
    other.layers[0].projection.assign(np.zeros((2, 4)))
    other.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(other.layers[0].projection, model.layers[0].projection)
