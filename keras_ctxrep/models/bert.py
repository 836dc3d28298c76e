"""BERT: the Transformer encoder, and its pretraining by masked language modelling and next-sentence prediction.

Devlin et al. 2018, https://arxiv.org/abs/1810.04805; reference implementation https://github.com/google-research/bert.
"""

from dataclasses import dataclass

import keras
from keras import layers as klayers

from keras_ctxrep.checks import Size, check_config
from keras_ctxrep.layers import FactorizedEmbedding, PositionEmbedding, SinusoidalPositions
from keras_ctxrep.models import transformer
from keras_ctxrep.models.transformer import OPTIONS, Layout, Stacked, enable_lora, encoder_config, token_vectors

__all__ = ["LAYOUT", "SIZES", "Config", "enable_lora", "encoder", "encoder_config", "pretrainer", "token_vectors"]

NEXT_SENTENCE = ("next", "random")  # the classes of its prediction: the second segment follows the first or does not


@dataclass(frozen=True)
class Config(transformer.Config):
    """Sizes of a BERT encoder; the defaults are those of BERT-base.

    Raises:
        ValueError: a value is of the wrong type or out of range.
    """

    embedding_width: Size | None = None  # of the table of pieces, if it is projected to `width`
    segments: Size = 2
    positions: str = "learned"  # or "sinusoidal"

    def __post_init__(self):
        super().__post_init__()
        if self.positions not in ("learned", "sinusoidal"):
            raise ValueError(f"positions={self.positions!r}: one of learned, sinusoidal")
        if self.embedding_width is not None and self.embedding_width > self.width:
            raise ValueError(f"embedding_width={self.embedding_width}: at most width={self.width}")


# bert_LAYERS_WIDTH_HEADS: the published sizes (Devlin et al. 2018; the small ones of Turc et al. 2019,
# https://arxiv.org/abs/1908.08962), and first a tiny one for small corpora; see `transformer.sized`
SIZES = {
    f"bert_{layers}_{width}_{heads}": transformer.sized(Config, layers, width, heads)
    for layers, width, heads in (
        (2, 64, 2),
        *((layers, width, width // 64) for layers in (2, 4, 6, 8, 10, 12) for width in (128, 256, 512, 768)),
        (24, 1024, 16),
    )
}


def encoder(config: Config, attention: bool = False) -> keras.Model:
    """Contextual vectors of word pieces, and a pooled vector of the text.

    Args:
        config: sizes.
        attention: return the attention weights too.

    Call: {"token_ids", "segment_ids", "mask"}, each int32 (B, T).

    Returns: {"layers": N x float32 (B, T, D), layer 0 being the embeddings; "sequence": the top layer;
        "pooled": float32 (B, D), tanh of a dense layer over the first piece, if `config.pooler`;
        "attention": N x float32 (B, H, T, T), a row of weights for each query, zero where query or key is padding}.

    >>> model = encoder(SIZES["bert_2_64_2"])
    >>> ones = keras.ops.ones((1, 3), "int32")
    >>> model({"token_ids": ones, "segment_ids": 0 * ones, "mask": ones})["pooled"].shape
    TensorShape([1, 64])
    """
    return transformer.encoder(_stacked(config, attention), "bert_encoder")


def pretrainer(config: Config) -> keras.Model:
    """The encoder with both pretraining heads: masked language model and next-sentence prediction.

    Devlin et al. 2018, section 3.1; the MLM head is a dense layer with layer norm and the tied token embedding. Trained
    on batches of `keras_ctxrep.text.pretraining.pretrainer_batch`.

    Args:
        config: sizes.

    Call: {"token_ids", "segment_ids", "mask": int32 (B, T), "mlm_positions": int32 (B, P)}

    Returns: {"mlm_logits": float32 (B, P, V), "nsp_logits": float32 (B, 2), 0 = the second segment follows the first;
        only if `config.pooler`}.

    >>> pretrainer(SIZES["bert_2_64_2"]).output["mlm_logits"].shape
    (None, None, 30522)
    """
    return transformer.pretrainer(config, _stacked(config), "bert_pretrainer", next_sentence=config.pooler)


def _stacked(config: Config, attention: bool = False) -> Stacked:
    check_config(config, Config, SIZES)
    inputs = transformer.inputs()
    if config.embedding_width is None:
        embedding = transformer.token_embedding(config, config.width)
    else:
        sizes = config.vocabulary_size, config.embedding_width, config.width
        embedding = FactorizedEmbedding(*sizes, embeddings_initializer=config.initializer, name="token_embedding")
    segment = klayers.Embedding(config.segments, config.width, config.initializer, name="segment_embedding")
    x = klayers.Add(name="embeddings")([embedding(inputs["token_ids"]), segment(inputs["segment_ids"])])
    if config.positions == "learned":
        x = PositionEmbedding(config.max_positions, config.initializer_range, name="position_embedding")(x)
    else:
        x = SinusoidalPositions(name="position_embedding")(x)
    return transformer.stacked(config, inputs, embedding, transformer.normed(config, x), attention=attention)


# https://github.com/huggingface/transformers, models/bert
LAYOUT = Layout(
    classes="Bert",
    names={
        "token_embedding": ".embeddings.word_embeddings",
        "segment_embedding": ".embeddings.token_type_embeddings",
        "position_embedding": ".embeddings.position_embeddings",
        "embedding_norm": ".embeddings.LayerNorm",
        "layer_{}/query": ".encoder.layer.{}.attention.self.query",
        "layer_{}/key": ".encoder.layer.{}.attention.self.key",
        "layer_{}/value": ".encoder.layer.{}.attention.self.value",
        "layer_{}/attention_output": ".encoder.layer.{}.attention.output.dense",
        "layer_{}/attention_norm": ".encoder.layer.{}.attention.output.LayerNorm",
        "layer_{}/feed_forward": ".encoder.layer.{}.intermediate.dense",
        "layer_{}/feed_forward_output": ".encoder.layer.{}.output.dense",
        "layer_{}/feed_forward_norm": ".encoder.layer.{}.output.LayerNorm",
        "pooler": ".pooler.dense",
        "mlm_transform": "cls.predictions.transform.dense",
        "mlm_norm": "cls.predictions.transform.LayerNorm",
        "mlm_bias": "cls.predictions",
        "nsp_logits": "cls.seq_relationship",
        "logits": "classifier",
        "span_logits": "qa_outputs",
    },
    decoder="cls.predictions.decoder",
    options={**OPTIONS, "type_vocab_size": ("segments", int, 1, 2)},
)
# of relatives without segments and next sentences
NAMES = {ours: theirs for ours, theirs in LAYOUT.names.items() if ours not in ("segment_embedding", "nsp_logits")}
