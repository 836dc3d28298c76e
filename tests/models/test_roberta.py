"""RoBERTa and XLM-R: their sizes, and inputs that change nothing."""

import numpy as np
import pytest

from keras_ctxrep.models import roberta
from tests import tiny


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("roberta_12_768_12", "124.6"),
        ("roberta_24_1024_16", "355.4"),
        ("xlm_r_12_384_12", "117.6"),
        ("xlm_r_12_768_12", "278.0"),
        ("xlm_r_24_1024_16", "559.9"),
    ],
)
def test_published_numbers_of_parameters(name, millions, shapes_only):
    assert f"{roberta.encoder(roberta.SIZES[name]).count_params() / 1e6:.1f}" == millions


def test_every_piece_is_of_the_first_kind(rng):
    config = tiny.config("roberta", vocabulary_size=20, token_types=2)
    model = tiny.filled(roberta.encoder(config), rng, 0.3)
    ids = rng.integers(0, 20, (2, 5)).astype(np.int32)
    batch = {"token_ids": ids, "segment_ids": 0 * ids, "mask": np.ones_like(ids)}
    before = model(batch)["sequence"]
    assert np.array_equal(before, model(batch | {"segment_ids": np.ones_like(ids)})["sequence"])
    table = model.get_layer("type_embedding").embeddings
    table.assign(np.stack([table[0], table[1] + 1]))
    assert np.array_equal(before, model(batch)["sequence"])
    table.assign(table + 1.0)
    assert not np.array_equal(before, model(batch)["sequence"])
    assert roberta.SIZES["roberta_12_768_12"] == roberta.Config()
