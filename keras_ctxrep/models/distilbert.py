"""DistilBERT: a BERT of half the layers, without segments and without a pooler, distilled from BERT-base.

Sanh et al. 2019, https://arxiv.org/abs/1910.01108; reference implementation
https://github.com/huggingface/transformers, models/distilbert.
"""

from dataclasses import dataclass

import keras

from keras_ctxrep.checks import Depth, check_config
from keras_ctxrep.layers import PositionEmbedding
from keras_ctxrep.models import transformer
from keras_ctxrep.models.transformer import OPTIONS, Layout, Stacked

__all__ = ["LAYOUT", "SIZES", "Config", "encoder", "pretrainer"]


@dataclass(frozen=True)
class Config(transformer.Config):
    """Sizes of a DistilBERT encoder; the defaults are those of the published distilbert-base.

    Raises:
        ValueError: a value is of the wrong type or out of range.
    """

    layers: Depth = 6
    pooler: bool = False  # published encoders have none; classifiers have one, with a ReLU


# distilbert_LAYERS_WIDTH_HEADS: the published size, and first a tiny one, see `transformer.sized`
SIZES = {
    f"distilbert_{layers}_{width}_{heads}": transformer.sized(Config, layers, width, heads)
    for layers, width, heads in ((2, 64, 2), (6, 768, 12))
}


def encoder(config: Config, attention: bool = False) -> keras.Model:
    """Contextual vectors of word pieces; a pooled vector of the text if the config has a pooler.

    Sanh et al. 2019, section 3: BERT without segments and pooler.

    Args:
        config, attention: as in `models.bert.encoder`.

    Call: {"token_ids", "segment_ids", "mask"}, each int32 (B, T); segment ids change nothing.

    Returns: as `models.bert.encoder`; "pooled" is the ReLU of a dense layer over the first piece.

    >>> model = encoder(SIZES["distilbert_2_64_2"])
    >>> ones = keras.ops.ones((1, 3), "int32")
    >>> model({"token_ids": ones, "segment_ids": 0 * ones, "mask": ones})["sequence"].shape
    TensorShape([1, 3, 64])
    """
    return transformer.encoder(_stacked(config, attention), "distilbert_encoder")


def pretrainer(config: Config) -> keras.Model:
    """The encoder with its masked language model.

    Args, Call, Returns: as `models.bert.pretrainer`, without next sentences.

    >>> [*pretrainer(SIZES["distilbert_2_64_2"]).output]
    ['mlm_logits']
    """
    return transformer.pretrainer(config, _stacked(config), "distilbert_pretrainer")


def _stacked(config: Config, attention: bool = False) -> Stacked:
    check_config(config, Config, SIZES)
    inputs = transformer.inputs()
    embedding = transformer.token_embedding(config, config.width)
    positions = PositionEmbedding(config.max_positions, config.initializer_range, name="position_embedding")
    x = transformer.normed(config, positions(embedding(inputs["token_ids"])))
    return transformer.stacked(config, inputs, embedding, x, attention=attention, pooler_activation="relu")


# https://github.com/huggingface/transformers, models/distilbert; the epsilon of its layer norms is fixed
_RENAMED = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "hidden_act": "activation",
}
LAYOUT = Layout(
    classes="DistilBert",
    names={
        "token_embedding": ".embeddings.word_embeddings",
        "position_embedding": ".embeddings.position_embeddings",
        "embedding_norm": ".embeddings.LayerNorm",
        "layer_{}/query": ".transformer.layer.{}.attention.q_lin",
        "layer_{}/key": ".transformer.layer.{}.attention.k_lin",
        "layer_{}/value": ".transformer.layer.{}.attention.v_lin",
        "layer_{}/attention_output": ".transformer.layer.{}.attention.out_lin",
        "layer_{}/attention_norm": ".transformer.layer.{}.sa_layer_norm",
        "layer_{}/feed_forward": ".transformer.layer.{}.ffn.lin1",
        "layer_{}/feed_forward_output": ".transformer.layer.{}.ffn.lin2",
        "layer_{}/feed_forward_norm": ".transformer.layer.{}.output_layer_norm",
        "mlm_transform": "vocab_transform",
        "mlm_norm": "vocab_layer_norm",
        "mlm_bias": "vocab_projector",
        "logits": "classifier",
        "span_logits": "qa_outputs",
    },
    decoder="vocab_projector",
    classifier={"pooler": "pre_classifier"},
    options={_RENAMED.get(name, name): option for name, option in OPTIONS.items() if name != "layer_norm_eps"},
    classifier_dropout="seq_classif_dropout",
)
