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
