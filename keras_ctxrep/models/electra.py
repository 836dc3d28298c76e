"""ELECTRA: a Transformer encoder whose embeddings may be narrower than its layers, trained to detect replaced tokens.

Clark et al. 2020, https://arxiv.org/abs/2003.10555; reference implementation https://github.com/google-research/electra.
"""

from dataclasses import dataclass

import keras
from keras import layers as klayers

from keras_ctxrep.checks import Size, check_config
from keras_ctxrep.layers import PositionEmbedding
from keras_ctxrep.models import transformer
from keras_ctxrep.models.bert import LAYOUT as BERT_LAYOUT
from keras_ctxrep.models.transformer import OPTIONS, Layout, Stacked

__all__ = ["LAYOUT", "SIZES", "Config", "encoder", "pretrainer"]


@dataclass(frozen=True)
class Config(transformer.Config):
    """Sizes of an ELECTRA encoder; the defaults are those of the published electra-base.

    Raises:
        ValueError: a value is of the wrong type or out of range.
    """

    pooler: bool = False  # published encoders have none; classifiers have one, with a GELU
    input_width: Size = 768  # of the embeddings, which are projected to `width` if that is another
    segments: Size = 2


# electra_LAYERS_WIDTH_HEADS: small, base and large (table 6), and first a tiny one, see `transformer.sized`
SIZES = {
    f"electra_{layers}_{width}_{heads}": transformer.sized(Config, layers, width, heads, input_width=input_width)
    for layers, width, heads, input_width in (
        (2, 64, 2, 32),
        (12, 256, 4, 128),
        (12, 768, 12, 768),
        (24, 1024, 16, 1024),
    )
}


def encoder(config: Config, attention: bool = False) -> keras.Model:
    """Contextual vectors of word pieces; a pooled vector of the text if the config has a pooler.

    Clark et al. 2020, section 3.1, the discriminator or the generator: BERT, whose embeddings are projected to the
    width of the layers.

    Args:
        config, attention: as in `models.bert.encoder`.

    Call: {"token_ids", "segment_ids", "mask"}, each int32 (B, T).

    Returns: as `models.bert.encoder`; "pooled" is the GELU of a dense layer over the first piece.

    >>> model = encoder(SIZES["electra_2_64_2"])
    >>> ones = keras.ops.ones((1, 3), "int32")
    >>> model({"token_ids": ones, "segment_ids": 0 * ones, "mask": ones})["sequence"].shape
    TensorShape([1, 3, 64])
    """
    return transformer.encoder(_stacked(config, attention), "electra_encoder")


def pretrainer(config: Config) -> keras.Model:
    """The generator: the encoder with its masked language model, over the narrower token embedding.

    Args, Call, Returns: as `models.bert.pretrainer`, without next sentences.

    >>> [*pretrainer(SIZES["electra_2_64_2"]).output]
    ['mlm_logits']
    """
    return transformer.pretrainer(config, _stacked(config), "electra_pretrainer")


def _stacked(config: Config, attention: bool = False) -> Stacked:
    check_config(config, Config, SIZES)
    inputs = transformer.inputs()
    embedding = transformer.token_embedding(config, config.input_width)
    segment = klayers.Embedding(config.segments, config.input_width, config.initializer, name="segment_embedding")
    x = klayers.Add(name="embeddings")([embedding(inputs["token_ids"]), segment(inputs["segment_ids"])])
    x = PositionEmbedding(config.max_positions, config.initializer_range, name="position_embedding")(x)
    x = transformer.normed(config, x)
    if config.input_width != config.width:
        x = klayers.Dense(config.width, kernel_initializer=config.initializer, name="embedding_projection")(x)
    return transformer.stacked(config, inputs, embedding, x, attention=attention, pooler_activation="gelu")


# https://github.com/huggingface/transformers, models/electra
LAYOUT = Layout(
    classes="Electra",
    names={
        **{ours: theirs for ours, theirs in BERT_LAYOUT.names.items() if ours not in ("pooler", "nsp_logits")},
        "embedding_projection": ".embeddings_project",
        "mlm_transform": "generator_predictions.dense",
        "mlm_norm": "generator_predictions.LayerNorm",
        "mlm_bias": "generator_lm_head",
    },
    decoder="generator_lm_head",
    classifier={"pooler": "classifier.dense", "logits": "classifier.out_proj"},
    options={
        **OPTIONS,
        "type_vocab_size": ("segments", int, 1, 2),
        "embedding_size": ("input_width", int, 1, 128),
    },
    left_out={"discriminator_predictions.": "the detection of replaced tokens"},
)
