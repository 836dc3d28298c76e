"""DistilBERT: its size, and its pooled output."""

import numpy as np

from keras_ctxrep.models import distilbert
from tests import tiny


def test_published_number_of_parameters(shapes_only):
    assert f"{distilbert.encoder(distilbert.SIZES['distilbert_6_768_12']).count_params() / 1e6:.1f}" == "66.4"
    assert distilbert.SIZES["distilbert_6_768_12"] == distilbert.Config()


def test_pooled_is_a_relu_over_the_first_piece(rng):
    model = tiny.filled(distilbert.encoder(tiny.config("distilbert")), rng, 0.5)
    ids = np.array([[5, 6, 7]], np.int32)
    out = model({"token_ids": ids, "segment_ids": 1 - 0 * ids, "mask": np.ones_like(ids)})
    kernel, bias = model.get_layer("pooler").get_weights()
    expected = np.maximum(out["sequence"][:, 0] @ kernel + bias, 0)
    np.testing.assert_allclose(out["pooled"], expected, atol=1e-5)
    assert "pooled" not in distilbert.encoder(tiny.config("distilbert", pooler=False)).output
