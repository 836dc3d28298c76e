"""RoBERTa and XLM-R: BERT without segments, pretrained longer, over byte-level BPE or a unigram model's pieces.

Liu et al. 2019, https://arxiv.org/abs/1907.11692; Conneau et al. 2020, https://arxiv.org/abs/1911.02116; reference
implementation https://github.com/facebookresearch/fairseq.
"""

from dataclasses import dataclass

import keras
from keras import layers as klayers

from keras_ctxrep.checks import Size, check_config
from keras_ctxrep.layers import PositionEmbedding
from keras_ctxrep.models import transformer
from keras_ctxrep.models.bert import LAYOUT as BERT_LAYOUT
from keras_ctxrep.models.bert import NAMES
from keras_ctxrep.models.transformer import OPTIONS, Layout, Stacked
from keras_ctxrep.text.subwords import ROBERTA_TOKENS

__all__ = ["LAYOUT", "SIZES", "Config", "encoder", "pretrainer"]


@dataclass(frozen=True)
class Config(transformer.Config):
    """Sizes of a RoBERTa encoder; the defaults are those of the published roberta-base.

    Raises:
        ValueError: a value is of the wrong type or out of range.
    """

    vocabulary_size: int = 50265
    epsilon: float = 1e-5
    token_types: Size = 1  # rows of a table of which the first one is added to every piece


XLM_R = 250_002  # pieces of XLM-R
# roberta_LAYERS_WIDTH_HEADS, xlm_r_...: base and large, XLM-R's also of multilingual-e5, and the sizes of multilingual
# MiniLM and multilingual-e5-small; first a tiny one, see `transformer.sized`
SIZES = {
    f"{name}_{layers}_{width}_{heads}": transformer.sized(Config, layers, width, heads, vocabulary_size=pieces)
    for name, pieces, layers, width, heads in (
        ("roberta", 50_265, 2, 64, 2),
        ("roberta", 50_265, 12, 768, 12),
        ("roberta", 50_265, 24, 1024, 16),
        ("xlm_r", XLM_R, 12, 384, 12),
        ("xlm_r", XLM_R, 12, 768, 12),
        ("xlm_r", XLM_R, 24, 1024, 16),
    )
}


def encoder(config: Config, attention: bool = False) -> keras.Model:
    """Contextual vectors of pieces, and a pooled vector of the text.

    Liu et al. 2019, section 2: BERT, of which every piece is of the first segment.

    Args:
        config, attention: as in `models.bert.encoder`.

    Call: {"token_ids", "segment_ids", "mask"}, each int32 (B, T); segment ids change nothing.

    Returns: as `models.bert.encoder`.

    >>> model = encoder(SIZES["roberta_2_64_2"])
    >>> ones = keras.ops.ones((1, 3), "int32")
    >>> model({"token_ids": ones, "segment_ids": 0 * ones, "mask": ones})["pooled"].shape
    TensorShape([1, 64])
    """
    return transformer.encoder(_stacked(config, attention), "roberta_encoder")


def pretrainer(config: Config) -> keras.Model:
    """The encoder with its masked language model.

    Args, Call, Returns: as `models.bert.pretrainer`, without next sentences.

    >>> [*pretrainer(SIZES["roberta_2_64_2"]).output]
    ['mlm_logits']
    """
    return transformer.pretrainer(config, _stacked(config), "roberta_pretrainer")


def _stacked(config: Config, attention: bool = False) -> Stacked:
    check_config(config, Config, SIZES)
    inputs = transformer.inputs()
    embedding = transformer.token_embedding(config, config.width)
    kind = klayers.Embedding(config.token_types, config.width, config.initializer, name="type_embedding")
    x = klayers.Add(name="embeddings")([embedding(inputs["token_ids"]), kind(0 * inputs["segment_ids"])])
    x = PositionEmbedding(config.max_positions, config.initializer_range, name="position_embedding")(x)
    return transformer.stacked(config, inputs, embedding, transformer.normed(config, x), attention=attention)


# https://github.com/huggingface/transformers, models/roberta and models/xlm_roberta, which has the same modules;
# positions count from 2, after that of padding
LAYOUT = Layout(
    classes="Roberta",
    names={
        **NAMES,
        "type_embedding": BERT_LAYOUT.names["segment_embedding"],
        "mlm_transform": "lm_head.dense",
        "mlm_norm": "lm_head.layer_norm",
        "mlm_bias": "lm_head",
    },
    decoder="lm_head.decoder",
    classifier={"pooler": "classifier.dense", "logits": "classifier.out_proj"},
    options={**OPTIONS, "type_vocab_size": ("token_types", int, 1, 2)},
    unread_positions=2,
    special_tokens=ROBERTA_TOKENS,
    unigram=("xlm-roberta", "XLMRoberta"),
)
