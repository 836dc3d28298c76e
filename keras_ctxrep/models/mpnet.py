"""MPNet: a Transformer encoder without segments, with a bias of attention for each distance between two pieces.

Song et al. 2020, https://arxiv.org/abs/2004.09297; reference implementation https://github.com/microsoft/MPNet.
"""

from dataclasses import dataclass
from typing import Annotated

import keras

from keras_ctxrep.checks import Range, check_config
from keras_ctxrep.layers import PositionEmbedding, RelativePositionBias
from keras_ctxrep.models import transformer
from keras_ctxrep.models.bert import NAMES
from keras_ctxrep.models.transformer import OPTIONS, Layout, Stacked
from keras_ctxrep.text.tokens import SpecialTokens

__all__ = ["LAYOUT", "SIZES", "Config", "encoder", "pretrainer"]


@dataclass(frozen=True)
class Config(transformer.Config):
    """Sizes of an MPNet encoder; the defaults are those of the published mpnet-base.

    Raises:
        ValueError: a value is of the wrong type or out of range.
    """

    vocabulary_size: int = 30527
    epsilon: float = 1e-5
    buckets: Annotated[int, Range(4, 4096)] = 32  # of distances, see `layers.RelativePositionBias`


# mpnet_LAYERS_WIDTH_HEADS: the published size, and first a tiny one, see `transformer.sized`
SIZES = {
    f"mpnet_{layers}_{width}_{heads}": transformer.sized(Config, layers, width, heads)
    for layers, width, heads in ((2, 64, 2), (12, 768, 12))
}


def encoder(config: Config, attention: bool = False) -> keras.Model:
    """Contextual vectors of word pieces, and a pooled vector of the text.

    Song et al. 2020; the bias of attention is that of Raffel et al. 2020, section 2.1,
    https://arxiv.org/abs/1910.10683, one table for all layers. There is no embedding of segments.

    Args:
        config, attention: as in `models.bert.encoder`.

    Call: {"token_ids", "segment_ids", "mask"}, each int32 (B, T); segment ids change nothing.

    Returns: as `models.bert.encoder`.

    >>> model = encoder(SIZES["mpnet_2_64_2"])
    >>> ones = keras.ops.ones((1, 3), "int32")
    >>> model({"token_ids": ones, "segment_ids": 0 * ones, "mask": ones})["pooled"].shape
    TensorShape([1, 64])
    """
    return transformer.encoder(_stacked(config, attention), "mpnet_encoder")


def pretrainer(config: Config) -> keras.Model:
    """The encoder with its masked language model; the permuted language model of the paper is not part of it.

    Args, Call, Returns: as `models.bert.pretrainer`, without next sentences.

    >>> [*pretrainer(SIZES["mpnet_2_64_2"]).output]
    ['mlm_logits']
    """
    return transformer.pretrainer(config, _stacked(config), "mpnet_pretrainer")


def _stacked(config: Config, attention: bool = False) -> Stacked:
    check_config(config, Config, SIZES)
    inputs = transformer.inputs()
    embedding = transformer.token_embedding(config, config.width)
    positions = PositionEmbedding(config.max_positions, config.initializer_range, name="position_embedding")
    x = transformer.normed(config, positions(embedding(inputs["token_ids"])))
    table = {"buckets": config.buckets, "initializer_range": config.initializer_range}
    bias = RelativePositionBias(config.heads, **table, name="attention_bias")(x)
    return transformer.stacked(config, inputs, embedding, x, bias, attention)


# https://github.com/huggingface/transformers, models/mpnet; positions count from 2, after that of padding
LAYOUT = Layout(
    classes="MPNet",
    names={
        **NAMES,
        "attention_bias": ".encoder.relative_attention_bias",
        "layer_{}/query": ".encoder.layer.{}.attention.attn.q",
        "layer_{}/key": ".encoder.layer.{}.attention.attn.k",
        "layer_{}/value": ".encoder.layer.{}.attention.attn.v",
        "layer_{}/attention_output": ".encoder.layer.{}.attention.attn.o",
        "layer_{}/attention_norm": ".encoder.layer.{}.attention.LayerNorm",
        "mlm_transform": "lm_head.dense",
        "mlm_norm": "lm_head.layer_norm",
        "mlm_bias": "lm_head",
    },
    decoder="lm_head.decoder",
    classifier={"pooler": "classifier.dense", "logits": "classifier.out_proj"},
    options={**OPTIONS, "relative_attention_num_buckets": ("buckets", int, 4, 32)},
    unread_positions=2,
    special_tokens=SpecialTokens("<pad>", "[UNK]", "<s>", "</s>", "<mask>", separators=2),
)
