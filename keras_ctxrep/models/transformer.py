"""What the families of Transformer encoders share: sizes, blocks and heads, and the form of their published folders.

A family is a file with its `Config`, `SIZES`, `encoder` and `pretrainer`, which make the input of the first block and
hand it to `stacked`, and with a `Layout`; see `models/mpnet.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import keras
import numpy as np
from keras import layers as klayers

from keras_ctxrep import checks
from keras_ctxrep.checks import Depth, Fraction, RowCount, Size
from keras_ctxrep.layers import Bias, Dropout, ReversibleEmbedding, TakePositions, TransformerBlock, ZeroPadding
from keras_ctxrep.layers.initializers import RandomWeights
from keras_ctxrep.layers.transformer import ACTIVATIONS
from keras_ctxrep.models.model import Model
from keras_ctxrep.text.tokens import SpecialTokens

__all__ = [
    "OPTIONS",
    "Config",
    "Layout",
    "Stacked",
    "enable_lora",
    "encoder",
    "encoder_config",
    "inputs",
    "normed",
    "pretrainer",
    "sized",
    "stacked",
    "token_embedding",
    "token_vectors",
]


@dataclass(frozen=True)
class Config:
    """Sizes of a Transformer encoder; the defaults are those of BERT-base, Devlin et al. 2018.

    Raises:
        ValueError: a value is of the wrong type or out of range.
    """

    vocabulary_size: RowCount = 30522
    layers: Depth = 12
    width: Size = 768
    heads: Size = 12
    intermediate: Size = 3072  # width of the feed-forward layer
    max_positions: RowCount = 512  # maximum input length, if positions are learned
    dropout: Fraction = 0.1  # of the embeddings and of the sub-layers' outputs
    attention_dropout: Fraction = 0.1  # of the attention weights
    activation: str = "gelu"  # "gelu" is the exact form with erf, as published; "gelu_tanh" its approximation; "relu"
    pooler: bool = True  # False: no pooled output, and of BERT no next-sentence prediction
    epsilon: float = 1e-12  # of every layer norm
    initializer_range: float = 0.02  # standard deviation of the truncated normal that initializes kernels

    def __post_init__(self):
        checks.check(self)
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r}: one of {', '.join(ACTIVATIONS)}")
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}")

    @property
    def initializer(self) -> keras.initializers.Initializer:
        """Of kernels and tables."""
        return RandomWeights(keras.initializers.TruncatedNormal(stddev=self.initializer_range))


_C = TypeVar("_C", bound=Config)


def sized(config: type[_C], layers: int, width: int, heads: int, **fields: Any) -> _C:
    """A size of a family: feed-forward layers four times as wide, and larger initial kernels where it is narrow.

    Models narrower than BERT-base get larger initial kernels than published, so that the initial outputs of a layer are
    as large as in BERT-base: they learn much faster.

    Args:
        config: the family's `Config`.
        layers, width, heads: of the encoder.
        fields: others of the config.

    >>> sized(Config, 2, 192, 3).intermediate, sized(Config, 2, 192, 3).initializer_range
    (768, 0.04)
    """
    spread = 0.02 * max(1.0, 768 / width) ** 0.5
    sizes: dict[str, Any] = {"layers": layers, "width": width, "heads": heads}
    return config(**sizes, intermediate=4 * width, initializer_range=spread, **fields)


# option of config.json -> field of the `Config`, type, minimum, and default if it has one
OPTIONS: Mapping[str, tuple] = {
    "vocab_size": ("vocabulary_size", int, 1),
    "hidden_size": ("width", int, 1),
    "num_hidden_layers": ("layers", int, 1),
    "num_attention_heads": ("heads", int, 1),
    "intermediate_size": ("intermediate", int, 1),
    "hidden_dropout_prob": ("dropout", float, 0, 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", float, 0, 0.1),
    "max_position_embeddings": ("max_positions", int, 1),
    "initializer_range": ("initializer_range", float, 0, 0.02),
    "layer_norm_eps": ("epsilon", float, 0, 1e-12),
    "hidden_act": ("activation", str, None, "gelu"),
}


@dataclass(frozen=True, eq=False)
class Layout:
    """The form of a family's folders as `transformers` writes them, which `convert.huggingface` reads and writes.

    Attributes:
        classes: what the names of the model classes begin with; in lower case it is "model_type" in config.json, the
            prefix of the encoder's tensors under a head, and the name of the family.
        names: our layer -> their module; "{}" is the number of a block, and a leading "." stands for the prefix. What
            is missing the family does not have.
        decoder: their module whose kernel is the token embedding once more.
        classifier: the modules of a text classifier whose names differ from those in `names`.
        options: see `OPTIONS`.
        classifier_dropout: option of the dropout before a classifier.
        unread_positions: rows of the table of positions before that of the first token, which no input reads.
        left_out: start of the names of tensors that our models do not have -> what they are.
        special_tokens: of a vocabulary whose folder does not name them.
        unigram: "model_type" and `classes` where the tokenizer is a unigram model, if they are others.

    >>> Layout("MPNet", {}, "lm_head.decoder").model_type
    'mpnet'
    """

    classes: str
    names: dict[str, str]
    decoder: str
    classifier: dict[str, str] = field(default_factory=dict)
    options: Mapping[str, tuple] = field(default_factory=lambda: OPTIONS)
    classifier_dropout: str = "classifier_dropout"
    unread_positions: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    unigram: tuple[str, str] | None = None

    @property
    def model_type(self) -> str:
        """The name of the family there, and here."""
        return self.classes.lower()


class Stacked(NamedTuple):
    """The parts of an encoder that its heads read.

    Attributes:
        inputs: of the model, by name.
        embedding: the layer of the token embedding.
        layers: N x float32 (B, T, D), layer 0 being the input of the first block; padding is zero.
        pooled: {"pooled": float32 (B, D)}, if the config has a pooler.
        attention: N x float32 (B, H, T, T), if it was asked for.

    >>> config = Config(vocabulary_size=9, layers=1, width=4, heads=1, intermediate=4)
    >>> read, table = inputs(), token_embedding(config, 4)
    >>> parts = stacked(config, read, table, table(read["token_ids"]))
    >>> sorted(parts.inputs), sorted(parts.pooled)
    (['mask', 'segment_ids', 'token_ids'], ['pooled'])
    """

    inputs: dict[str, Any]
    embedding: ReversibleEmbedding
    layers: list
    pooled: dict[str, Any]
    attention: list


def inputs() -> dict[str, Any]:
    """The inputs of every encoder over word pieces, int32 (B, T); one without segments does not read "segment_ids".

    >>> [*inputs()]
    ['token_ids', 'segment_ids', 'mask']
    """
    return {name: keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "segment_ids", "mask")}


def token_embedding(config: Config, width: int) -> ReversibleEmbedding:
    """The table of the pieces' vectors, "token_embedding".

    Args:
        config: sizes.
        width: of a vector.

    >>> token_embedding(Config(vocabulary_size=9), 4).name
    'token_embedding'
    """
    own = {"embeddings_initializer": config.initializer, "name": "token_embedding"}
    return ReversibleEmbedding(config.vocabulary_size, width, **own)


def normed(config: Config, x: Any) -> Any:
    """Layer norm and dropout of the sum of embeddings, float32 (B, T, D).

    Args:
        config: sizes.
        x: the sum.

    >>> normed(Config(), keras.Input((None, 8))).shape
    (None, None, 8)
    """
    x = klayers.LayerNormalization(epsilon=config.epsilon, name="embedding_norm")(x)
    return Dropout(config.dropout, name="embedding_dropout")(x)


def stacked(
    config: Config,
    inputs: dict[str, Any],
    embedding: ReversibleEmbedding,
    x: Any,
    bias: Any = None,
    attention: bool = False,
    pooler_activation: str = "tanh",
) -> Stacked:
    """The blocks of an encoder over its embeddings, and its pooler.

    Args:
        config: sizes.
        inputs: of the model.
        embedding: the layer of the token embedding.
        x: float32 (B, T, D), the input of the first block.
        bias: float32 (1, H, T, T), of the scores of attention in all blocks; None: none.
        attention: keep the attention weights.
        pooler_activation: of the dense layer over the first piece.

    >>> config = Config(vocabulary_size=9, layers=1, width=4, heads=1, intermediate=4)
    >>> read, table = inputs(), token_embedding(config, 4)
    >>> len(stacked(config, read, table, table(read["token_ids"])).layers)
    2
    """
    mask = inputs["mask"]
    biased = {} if bias is None else {"bias": bias}
    sizes = config.heads, config.intermediate, config.dropout, config.attention_dropout
    others = config.activation, config.epsilon, config.initializer_range
    layers, weights = [x], []
    for index in range(config.layers):
        x = TransformerBlock(*sizes, *others, attention, name=f"layer_{index}")(x, mask=mask, **biased)
        if attention:
            x, attention_weights = x
            weights.append(attention_weights)
        layers.append(x)
    zeroed = ZeroPadding(carry_mask=True, name="zero_padding")
    layers = [zeroed(layer, mask=mask) for layer in layers]
    pooled = {}
    if config.pooler:
        pooled["pooled"] = _dense(config, config.width, "pooler", pooler_activation)(layers[-1][:, 0])
    return Stacked(inputs, embedding, layers, pooled, weights)


def encoder(parts: Stacked, name: str) -> keras.Model:
    """The model of an encoder, with the inputs and outputs of `models.bert.encoder`.

    Args:
        parts: of the encoder.
        name: of the model.

    >>> config = Config(vocabulary_size=9, layers=1, width=4, heads=1, intermediate=4)
    >>> read, table = inputs(), token_embedding(config, 4)
    >>> parts = stacked(config, read, table, table(read["token_ids"]))
    >>> sorted(encoder(parts, "small").output)
    ['layers', 'pooled', 'sequence']
    """
    outputs = {"layers": parts.layers, "sequence": parts.layers[-1]} | parts.pooled
    return Model(parts.inputs, outputs | ({"attention": parts.attention} if parts.attention else {}), name=name)


def pretrainer(config: Config, parts: Stacked, name: str, next_sentence: bool = False) -> keras.Model:
    """An encoder with its masked language model: a dense layer with layer norm, and the tied token embedding.

    Devlin et al. 2018, section 3.1. The dense layer is as wide as the vectors of the token embedding.

    Args:
        config: sizes.
        parts: of the encoder.
        name: of the model.
        next_sentence: two logits over the pooled output too.

    Call: the encoder's inputs, and {"mlm_positions": int32 (B, P)}.

    Returns: {"mlm_logits": float32 (B, P, V)}, with `next_sentence` also {"nsp_logits": float32 (B, 2)}.

    >>> config = Config(vocabulary_size=9, layers=1, width=4, heads=1, intermediate=4)
    >>> read, table = inputs(), token_embedding(config, 4)
    >>> parts = stacked(config, read, table, table(read["token_ids"]))
    >>> [*pretrainer(config, parts, "small", next_sentence=True).output]
    ['mlm_logits', 'nsp_logits']
    """
    read = parts.inputs | {"mlm_positions": keras.Input((None,), dtype="int32", name="mlm_positions")}
    x = TakePositions(name="take_positions")(parts.layers[-1], read["mlm_positions"])  # (B, P, D)
    width = parts.embedding.compute_output_shape((None, None))[-1]
    x = _dense(config, width, "mlm_transform", ACTIVATIONS[config.activation])(x)
    x = klayers.LayerNormalization(epsilon=config.epsilon, name="mlm_norm")(x)
    x = Bias(name="mlm_bias")(parts.embedding(x, reverse=True))
    outputs = {"mlm_logits": klayers.Activation("linear", dtype="float32", name="mlm_logits")(x)}
    if next_sentence:
        outputs["nsp_logits"] = _dense(config, 2, "nsp_logits", dtype="float32")(parts.pooled["pooled"])
    return Model(read, outputs, name=name)


def _dense(config: Config, units: int, name: str, activation=None, dtype=None) -> klayers.Dense:
    return klayers.Dense(units, activation, kernel_initializer=config.initializer, name=name, dtype=dtype)


def encoder_config(model: keras.Model, config: dict) -> dict:
    """The fields of a model's config with `pooler` set to whether the model has one.

    Args:
        model: an encoder, or a model over one.
        config: the fields of its `Config`.

    >>> from keras_ctxrep.models import bert
    >>> config = bert.Config(vocabulary_size=8, layers=1, width=4, heads=1, intermediate=8, pooler=False)
    >>> encoder_config(bert.encoder(config), {"width": 4})
    {'width': 4, 'pooler': False}
    """
    return config | {"pooler": "pooler" in {layer.name for layer in model.layers}}


def token_vectors(model: keras.Model) -> np.ndarray:
    """The vectors of an encoder's word pieces, float32 (V, D): a table that is projected is multiplied out.

    >>> from keras_ctxrep.models import bert
    >>> config = bert.Config(vocabulary_size=8, layers=1, width=4, heads=1, embedding_width=2)
    >>> token_vectors(bert.encoder(config)).shape
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

    >>> from keras_ctxrep.models import bert
    >>> model = bert.encoder(bert.SIZES["bert_2_64_2"])
    >>> enable_lora(model, rank=4)
    >>> sorted({weight.name for weight in model.trainable_weights})
    ['bias', 'kernel', 'lora_kernel_a', 'lora_kernel_b']
    """
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            layer.enable_lora(rank)
        elif layer.name != "pooler":
            layer.trainable = False
