"""BERT: the Transformer encoder, and its pretraining by masked language modelling and next-sentence prediction.

Devlin et al. 2018, https://arxiv.org/abs/1810.04805; reference implementation https://github.com/google-research/bert.
"""

from dataclasses import dataclass

import keras
import numpy as np
from keras import layers as klayers

from keras_ctxrep import checks
from keras_ctxrep.checks import Depth, Fraction, RowCount, Size, check_config
from keras_ctxrep.layers import (
    Bias,
    Dropout,
    FactorizedEmbedding,
    PositionEmbedding,
    ReversibleEmbedding,
    SinusoidalPositions,
    TakePositions,
    TransformerBlock,
    ZeroPadding,
)
from keras_ctxrep.layers.transformer import ACTIVATIONS
from keras_ctxrep.models.model import Model

__all__ = ["SIZES", "Config", "enable_lora", "encoder", "encoder_config", "pretrainer", "token_vectors"]

NEXT_SENTENCE = ("next", "random")  # the classes of its prediction: the second segment follows the first or does not


@dataclass(frozen=True)
class Config:
    """Sizes of a BERT encoder; the defaults are those of BERT-base.

    Raises:
        ValueError: a value is of the wrong type or out of range.
    """

    vocabulary_size: RowCount = 30522
    layers: Depth = 12
    width: Size = 768
    heads: Size = 12
    intermediate: Size = 3072  # width of the feed-forward layer
    embedding_width: Size | None = None  # of the table of pieces, if it is projected to `width`
    max_positions: RowCount = 512  # maximum input length, if positions are learned
    segments: Size = 2
    dropout: Fraction = 0.1  # of the embeddings and of the sub-layers' outputs
    attention_dropout: Fraction = 0.1  # of the attention weights
    activation: str = "gelu"  # "gelu" is the exact form with erf, as published; "gelu_tanh" its approximation; "relu"
    positions: str = "learned"  # or "sinusoidal"
    pooler: bool = True  # False: no pooled output and no next-sentence prediction
    epsilon: float = 1e-12  # of every layer norm
    initializer_range: float = 0.02  # standard deviation of the truncated normal that initializes kernels

    def __post_init__(self):
        checks.check(self)
        for name, known in (("activation", ACTIVATIONS), ("positions", ("learned", "sinusoidal"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: one of {', '.join(known)}")
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}")
        if self.embedding_width is not None and self.embedding_width > self.width:
            raise ValueError(f"embedding_width={self.embedding_width}: at most width={self.width}")


# bert_LAYERS_WIDTH_HEADS: the published sizes (Devlin et al. 2018; the small ones of Turc et al. 2019,
# https://arxiv.org/abs/1908.08962), and first a tiny one for small corpora. Models narrower than BERT-base get larger
# initial kernels than published, so that the initial outputs of a layer are as large as in BERT-base: they learn much
# faster.
SIZES = {
    f"bert_{layers}_{width}_{heads}": Config(
        layers=layers,
        width=width,
        heads=heads,
        intermediate=4 * width,
        initializer_range=0.02 * max(1.0, 768 / width) ** 0.5,
    )
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
    inputs, _, layers, pooled, weights = _encoder(config, attention)
    outputs = {"layers": layers, "sequence": layers[-1]} | pooled
    return Model(inputs, outputs | ({"attention": weights} if attention else {}), name="bert_encoder")


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
    inputs, embedding, layers, pooled, _ = _encoder(config)
    inputs = inputs | {"mlm_positions": keras.Input((None,), dtype="int32", name="mlm_positions")}
    x = TakePositions(name="take_positions")(layers[-1], inputs["mlm_positions"])  # (B, P, D)
    x = _dense(config, config.width, "mlm_transform", ACTIVATIONS[config.activation])(x)
    x = klayers.LayerNormalization(epsilon=config.epsilon, name="mlm_norm")(x)
    x = Bias(name="mlm_bias")(embedding(x, reverse=True))
    outputs = {"mlm_logits": klayers.Activation("linear", dtype="float32", name="mlm_logits")(x)}
    if pooled:
        outputs["nsp_logits"] = _dense(config, 2, "nsp_logits", dtype="float32")(pooled["pooled"])
    return Model(inputs, outputs, name="bert_pretrainer")


def _encoder(config: Config, attention: bool = False):
    """Inputs, the token embedding, the layers with padding zeroed, {"pooled"} or nothing, and the attention weights."""
    check_config(config, Config, SIZES)
    names = ("token_ids", "segment_ids", "mask")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}

    def start():
        return keras.initializers.TruncatedNormal(stddev=config.initializer_range)

    kwargs = {"embeddings_initializer": start(), "name": "token_embedding"}
    if config.embedding_width is None:
        embedding = ReversibleEmbedding(config.vocabulary_size, config.width, **kwargs)
    else:
        embedding = FactorizedEmbedding(config.vocabulary_size, config.embedding_width, config.width, **kwargs)
    segment = klayers.Embedding(config.segments, config.width, start(), name="segment_embedding")
    x = klayers.Add(name="embeddings")([embedding(inputs["token_ids"]), segment(inputs["segment_ids"])])
    if config.positions == "learned":
        x = PositionEmbedding(config.max_positions, config.initializer_range, name="position_embedding")(x)
    else:
        x = SinusoidalPositions(name="position_embedding")(x)
    x = klayers.LayerNormalization(epsilon=config.epsilon, name="embedding_norm")(x)
    x = Dropout(config.dropout, name="embedding_dropout")(x)
    layers, weights = [x], []
    for index in range(config.layers):
        x = TransformerBlock(
            config.heads,
            config.intermediate,
            config.dropout,
            config.attention_dropout,
            config.activation,
            config.epsilon,
            config.initializer_range,
            attention,
            name=f"layer_{index}",
        )(x, mask=inputs["mask"])
        if attention:
            x, attention_weights = x
            weights.append(attention_weights)
        layers.append(x)
    zeroed = ZeroPadding(carry_mask=True, name="zero_padding")
    layers = [zeroed(layer, mask=inputs["mask"]) for layer in layers]
    pooled = {"pooled": _dense(config, config.width, "pooler", "tanh")(layers[-1][:, 0])} if config.pooler else {}
    return inputs, embedding, layers, pooled, weights


def _dense(config: Config, units: int, name: str, activation=None, dtype=None) -> klayers.Dense:
    start = keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    return klayers.Dense(units, activation, kernel_initializer=start, name=name, dtype=dtype)


def encoder_config(model: keras.Model, config: dict) -> dict:
    """The fields of a model's config with `pooler` set to whether the model has one.

    Args:
        model: an encoder, or a model over one.
        config: the fields of its `Config`.

    >>> config = Config(vocabulary_size=8, layers=1, width=4, heads=1, intermediate=8, pooler=False)
    >>> encoder_config(encoder(config), {"width": 4})
    {'width': 4, 'pooler': False}
    """
    return config | {"pooler": "pooler" in {layer.name for layer in model.layers}}


def token_vectors(model: keras.Model) -> np.ndarray:
    """The vectors of the word pieces of a BERT, float32 (V, D): a table that is projected is multiplied out.

    >>> token_vectors(encoder(Config(vocabulary_size=8, layers=1, width=4, heads=1, embedding_width=2))).shape
    (8, 4)
    """
    table, *projection = model.get_layer("token_embedding").get_weights()
    return table @ projection[0] if projection else table


def enable_lora(model: keras.Model, rank: int) -> None:
    """Freezes an encoder but for low-rank updates of its Transformer blocks; the pooler is trained, as part of a head.

    See `TransformerBlock.enable_lora`. Weights that are saved have the updates merged into them: they are those of a
    plain encoder.

    Args:
        model: an encoder.
        rank: of the updates.

    >>> model = encoder(SIZES["bert_2_64_2"])
    >>> enable_lora(model, rank=4)
    >>> sorted({weight.name for weight in model.trainable_weights})
    ['bias', 'kernel', 'lora_kernel_a', 'lora_kernel_b']
    """
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            layer.enable_lora(rank)
        elif layer.name != "pooler":
            layer.trainable = False
