import keras
import numpy as np
import pytest
from keras import ops

from keras_ctxrep.layers import Embedding, ReversibleEmbedding


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
