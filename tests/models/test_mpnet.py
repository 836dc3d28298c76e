"""MPNet: its bias of attention, its positions, its size."""

import numpy as np
import pytest

from keras_ctxrep.layers import RelativePositionBias
from keras_ctxrep.models import mpnet
from tests import tiny


def test_published_number_of_parameters(shapes_only):
    assert f"{mpnet.encoder(mpnet.SIZES['mpnet_12_768_12']).count_params() / 1e6:.1f}" == "109.5"
    assert mpnet.SIZES["mpnet_12_768_12"] == mpnet.Config()


def test_distances_near_and_far():
    """Raffel et al. 2020, section 2.1: exact to a fourth of the buckets, then bounds that grow in equal ratios."""
    layer = RelativePositionBias(2, buckets=32, max_distance=128)
    rows = [layer.bucket(-distance) for distance in range(200)]
    assert rows[:8] == [*range(8)] and rows == sorted(rows) and max(rows) == 15
    assert [rows.index(bucket) for bucket in range(8, 16)] == [8, 12, 16, 23, 32, 46, 64, 91]  # 8 * 2 ** (n / 2)
    assert [layer.bucket(distance) for distance in range(1, 200)] == [16 + row for row in rows[1:]]


def test_the_bias_is_of_key_minus_query(rng):
    layer = RelativePositionBias(2, buckets=8, max_distance=6)
    x = np.zeros((3, 9, 4), np.float32)
    layer(x)
    table = rng.normal(size=(8, 2)).astype(np.float32)
    layer.table.assign(table)
    bias = np.asarray(layer(x))
    assert bias.shape == (1, 2, 9, 9)
    for query in range(9):
        for key in range(9):
            assert np.array_equal(bias[0, :, query, key], table[layer.bucket(key - query)])


@pytest.mark.parametrize("options", [{"buckets": 6}, {"buckets": 0}, {"max_distance": 8}])
def test_impossible_buckets(options):
    with pytest.raises(ValueError, match="a multiple of 4, and more than a fourth of it"):
        RelativePositionBias(2, **options)


def test_the_order_of_pieces_is_read_by_the_bias_alone(rng):
    """Without vectors of positions, which are zero here, only the bias tells an order."""
    model = tiny.filled(mpnet.encoder(tiny.config("mpnet", initializer_range=0.3)), rng, 0.3)
    model.get_layer("position_embedding").set_weights([np.zeros((64, 8))])
    ids = np.array([[5, 6, 7, 8]], np.int32)
    batch = {"token_ids": ids, "segment_ids": 0 * ids, "mask": np.ones_like(ids)}
    first, other = (
        np.asarray(model(batch | {"token_ids": order})["sequence"]) for order in (ids, ids[:, [0, 3, 2, 1]])
    )
    assert np.abs(first[:, 0] - other[:, 0]).max() > 1e-4
    segments = np.asarray(model(batch | {"segment_ids": np.ones_like(ids)})["sequence"])
    assert np.array_equal(first, segments)
