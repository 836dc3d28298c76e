"""ELECTRA: its sizes, its projected embeddings, and the head that is left out."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_ctxrep import saving
from keras_ctxrep.convert import huggingface
from keras_ctxrep.models import electra
from tests import tiny


@pytest.mark.parametrize(
    ("name", "millions"),
    [("electra_12_256_4", "13.5"), ("electra_12_768_12", "108.9"), ("electra_24_1024_16", "334.1")],
)
def test_published_numbers_of_parameters(name, millions, shapes_only):
    assert f"{electra.encoder(electra.SIZES[name]).count_params() / 1e6:.1f}" == millions


def test_embeddings_are_projected_where_they_are_narrower():
    narrow, wide = (electra.encoder(tiny.config("electra", input_width=width)) for width in (4, 8))
    assert narrow.get_layer("token_embedding").embeddings.shape[-1] == 4
    assert narrow.get_layer("embedding_projection").kernel.shape == (4, 8)
    assert "embedding_projection" not in {layer.name for layer in wide.layers}
    assert electra.SIZES["electra_12_768_12"] == electra.Config()


def test_the_discriminator_is_left_out(tmp_path):
    """As of the published google/electra-*-discriminator, whose encoder is what they are for."""
    bundle = tiny.bundle("embed", "electra", sizes={"pooler": False})
    huggingface.write(tmp_path, saving.build(bundle), bundle)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"discriminator_predictions.dense.weight": np.zeros((8, 8), np.float32)}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match="left out: the detection of replaced tokens"):
        model, bundle = huggingface.read(tmp_path)
    assert bundle.task == "embed" and model.name == "electra_encoder"
