"""Language models in one direction: n-grams, recurrent networks, gated convolutions and the causal Transformer.

All have one contract, and a state by which a text can be read a part at a time: token by token, as it is generated, or
segment by segment, as in training. What they have learned is an encoder for other tasks, which reads whole texts.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import keras
from keras import layers as klayers
from keras import ops

from keras_ctxrep import checks
from keras_ctxrep.checks import Fraction, Range, Size, check_config
from keras_ctxrep.layers import (
    CarriedState,
    CausalTransformerBlock,
    Dropout,
    Embedding,
    GatedConvolution,
    MaskedPooling,
    NgramContext,
    PositionEmbedding,
    ProjectedLSTM,
    TiedSoftmax,
    VocabularySoftmax,
    ZeroPadding,
)
from keras_ctxrep.layers.transformer import ACTIVATIONS
from keras_ctxrep.models.model import Model
from keras_ctxrep.text.units import UNITS

__all__ = ["KINDS", "SIZES", "Config", "encoder", "language_model", "state_size"]

POSITIONS = ("rotary", "learned")
KINDS = ("ngram", "rnn", "gru", "lstm", "convolution", "transformer")


@dataclass(frozen=True)
class Config:
    """Sizes of a language model; what is of one kind only is marked so.

    Raises:
        ValueError: a value is of the wrong type or out of range.
    """

    kind: Annotated[str, Range(choices=KINDS)] = "lstm"
    units: Annotated[str, Range(choices=UNITS)] = "words"  # what a token is
    layers: Annotated[int, Range(0, 256)] = 2  # 0: of an encoder alone, the vectors of the tokens
    width: Size = 200  # of the vectors of tokens and of what a layer gives
    tied: bool = True  # the softmax has the vectors of tokens as its kernel, Press & Wolf 2017
    dropout: Fraction = 0.1  # of the vectors of tokens and of what each layer gives, while training
    cells: Size | None = None  # lstm: width of the cells, which are projected to `width`; None: as wide
    order: Annotated[int, Range(2, 64)] = 5  # ngram: n, of which n - 1 words are read
    direct: bool = False  # ngram, not tied: connections from the vectors of words to the softmax
    kernel_size: Annotated[int, Range(2, 64)] = 4  # convolution: positions that a filter reads
    heads: Size = 4  # transformer
    intermediate: Size = 800  # transformer: width of the feed-forward layer; ngram: of the hidden layer
    context: Annotated[int, Range(1, 1 << 16)] = 128  # transformer: tokens before each that it attends to
    positions: Annotated[str, Range(choices=POSITIONS)] = "rotary"  # transformer; "learned": of `context` + 1, as GPT-2
    activation: Annotated[str, Range(choices=tuple(ACTIVATIONS))] = "gelu"  # transformer
    vocabulary_size: Size | None = None  # of an encoder: rows of the table of tokens; of a language model the bundle's

    def __post_init__(self):
        checks.check(self)
        if self.cells is not None and (self.kind != "lstm" or self.cells < self.width):
            raise ValueError(f"cells={self.cells}: of kind='lstm', and no narrower than the width, {self.width}")
        if self.direct and (self.kind != "ngram" or self.tied):
            raise ValueError(f"direct=True: of kind='ngram' with tied=False, not of kind={self.kind!r}")
        if self.layers == 0 and self.kind in ("ngram", "transformer"):
            raise ValueError(f"layers=0: of kind={self.kind!r} at least 1")


_NGRAM = Config("ngram", layers=1, tied=False, direct=True)

# Sizes by name, with what was published under them
SIZES = {
    "lm_lstm_2x200": Config(),  # Zaremba et al. 2014, https://arxiv.org/abs/1409.2329: small
    "lm_lstm_2x650": Config(width=650, dropout=0.5),  # medium
    "lm_lstm_2x1500": Config(width=1500, dropout=0.65),  # large
    "lm_lstm_2x2048_512": Config(width=512, cells=2048),  # Jozefowicz et al. 2016, LSTM-2048-512 has one layer
    "lm_gru_2x200": Config("gru"),
    "lm_gru_2x650": Config("gru", width=650, dropout=0.5),
    "lm_rnn_1x200": Config("rnn", layers=1),
    "lm_ngram_5_60_50": replace(_NGRAM, width=60, intermediate=50),  # Bengio et al. 2003, table 1
    "lm_ngram_6_100_60": replace(_NGRAM, order=6, width=100, intermediate=60),  # table 2
    "lm_convolution_4x128": Config("convolution", layers=4, width=128),
    "lm_convolution_8x256": Config("convolution", layers=8, width=256),
    "lm_transformer_2_128_2": Config("transformer", layers=2, width=128, heads=2, intermediate=512),
    "lm_transformer_4_128_4": Config("transformer", layers=4, width=128, heads=4, intermediate=512),
    "lm_transformer_6_384_6": Config("transformer", layers=6, width=384, heads=6, intermediate=1536, context=256),
    "lm_transformer_12_768_12": Config(  # the sizes of GPT-2, small
        "transformer", layers=12, width=768, heads=12, intermediate=3072, context=1024
    ),
}


def state_size(config: Config) -> int:
    """S, the numbers of a row's state: of a Transformer its cache of keys and values, and their count.

    >>> state_size(SIZES["lm_lstm_2x200"]), state_size(SIZES["lm_ngram_5_60_50"])
    (800, 3)
    """
    return sum(_state_sizes(config))


def _state_sizes(config: Config) -> list[int]:
    """The numbers of each part of a row's state: one part a layer, and of a Transformer the count of what is cached."""
    if config.kind == "ngram":
        return [config.order - 2]
    size = {
        "rnn": config.width,
        "gru": config.width,
        "lstm": config.width + (config.cells or config.width),
        "convolution": (config.kernel_size - 1) * config.width,
        "transformer": config.context * 2 * config.width,
    }[config.kind]
    return [size] * config.layers + [1] * (config.kind == "transformer")


def language_model(
    config: Config, vocabulary_size: int, samples: int | None = None, streams: int | None = None
) -> keras.Model:
    """A language model: the probability of each token, given those before it.

    Without `streams` the state is an input and an output, zeros at the beginning of a text: texts may be read whole or
    in parts of any length, with the same logits. With `streams` the model keeps the state itself, for training on
    running text. The layers have the same names in all cases.

    Bengio et al. 2003 (ngram); Mikolov et al. 2010 (rnn); Zaremba et al. 2014 (lstm, whose dropout all recurrent models
    have); Dauphin et al. 2017 (convolution); Radford et al. 2019 (transformer).

    Args:
        config: sizes and dropout.
        vocabulary_size: number of tokens.
        samples: tokens the softmax draws per step; the true ones are then an input too, "targets", and the label of
            every position is 0. None: the full softmax.
        streams: rows of each batch, over all replicas.

    Call: {"token_ids": int32 (B, T), "mask": int32 (B, T), the real tokens first, "state": float32 (B, S)}; with
        `streams` no "state".

    Returns: {"logits": float32 (B, T, V), of the token after each; "state": float32 (B, S), after the last real token}.
        With `samples`, 1 + `samples` instead of V.

    >>> model = language_model(SIZES["lm_gru_2x200"], 100)
    >>> inputs = {"token_ids": ops.ones((1, 3), "int32"), "mask": ops.ones((1, 3), "int32")}
    >>> model(inputs | {"state": ops.zeros((1, 400))})["logits"].shape
    TensorShape([1, 3, 100])
    """
    check_config(config, Config, SIZES)
    ids, mask = (keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "mask"))
    inputs = {"token_ids": ids, "mask": mask}
    carried = None
    if streams:
        carried = CarriedState(state_size(config), streams, dtype="float32", name="carried_state")
        state = carried(ids)
    else:
        state = inputs["state"] = keras.Input((state_size(config),), name="state")
    softmax, embed = _table(config, vocabulary_size, samples)
    _, top, end = _BODIES[config.kind](config, embed, ids, mask, _parts(config, state))
    arguments = {}
    if samples:
        arguments["targets"] = inputs["targets"] = keras.Input((None,), dtype="int32", name="targets")
    logits = klayers.Activation("linear", dtype="float32", name="logits")(softmax(top, **arguments))
    flat = [
        ops.cast(ops.reshape(part, (-1, size)), "float32") for part, size in zip(end, _state_sizes(config), strict=True)
    ]
    state = flat[0] if len(flat) == 1 else ops.concatenate(flat, axis=1)
    if carried is not None:
        return Model(inputs, {"logits": carried(logits, state=state)}, name="language_model")
    return Model(inputs, {"logits": logits, "state": state}, name="language_model")


def encoder(config: Config) -> keras.Model:
    """What a language model has read at each token, in the form of an encoder: its hidden states over a whole text.

    A token's vector knows the tokens before it and none after it: in a task over words, a word's vector is that of its
    last token, the first one that has read the word. An n-gram network has one hidden layer, and where it is not as
    wide as the vectors of tokens, zeros are added to the narrower ones. A Transformer's top layer is normalized.

    Args:
        config: of the language model, with `vocabulary_size`; weights of layers of the same names are the same.

    Call: {"token_ids": int32 (B, T), "mask": int32 (B, T), the real tokens first}, as in `text.units.TokenFeatures`.

    Returns: {"layers": N x float32 (B, T, D), layer 0 being the vectors of the tokens; "sequence": the top layer;
        "pooled": float32 (B, D), the top layer at the last token, which has read the whole text (Radford et al. 2018,
        section 3.2)}.

    Raises:
        ValueError: no `vocabulary_size`.

    >>> model = encoder(replace(SIZES["lm_gru_2x200"], vocabulary_size=100))
    >>> outputs = model({"token_ids": ops.ones((1, 3), "int32"), "mask": ops.ones((1, 3), "int32")})
    >>> len(outputs["layers"]), outputs["pooled"].shape
    (3, TensorShape([1, 200]))
    """
    check_config(config, Config, SIZES)
    if config.vocabulary_size is None:
        raise ValueError("vocabulary_size=None: of an encoder it is the number of tokens of its vocabulary")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "mask")}
    ids, mask = inputs.values()
    _, embed = _table(config, config.vocabulary_size, only_embeds=True)
    layers, _, _ = _BODIES[config.kind](config, embed, ids, mask)
    width = max(x.shape[-1] for x in layers)
    wide = [ops.pad(x, ((0, 0), (0, 0), (0, width - x.shape[-1]))) if x.shape[-1] < width else x for x in layers]
    layers = [ZeroPadding(carry_mask=True, name=f"padded_{i}")(x, mask=mask) for i, x in enumerate(wide)]
    pooled = MaskedPooling("last", name="last_token")(layers[-1], mask=mask)
    return Model(inputs, {"layers": layers, "sequence": layers[-1], "pooled": pooled}, name="lm_encoder")


def encoder_config(model: keras.Model, config: dict) -> dict:
    """The fields of the config of the encoder in a model, of which the table of tokens says how many there are.

    >>> from dataclasses import asdict
    >>> config = SIZES["lm_gru_2x200"]
    >>> encoder_config(language_model(config, 100), asdict(config))["vocabulary_size"]
    100
    """
    table = model.get_layer("softmax" if config["tied"] else "embedding")
    return config | {"vocabulary_size": table.vocabulary_size if config["tied"] else table.input_dim}


def _table(config: Config, vocabulary_size: int, samples: int | None = None, only_embeds: bool = False) -> Any:
    """The softmax, None of an encoder that has no use for it, and the function from ids to vectors."""
    if config.tied:
        softmax = TiedSoftmax(vocabulary_size, config.width, samples, only_embeds=only_embeds, name="softmax")
        return softmax, partial(softmax, embed=True)
    softmax = None if only_embeds else VocabularySoftmax(vocabulary_size, samples, name="softmax")
    return softmax, Embedding(vocabulary_size, config.width, name="embedding")


def _parts(config: Config, state) -> list:
    """The parts of a flat state, float32 (B, S)."""
    parts, begin = [], 0
    for size in _state_sizes(config):
        parts.append(state[:, begin : begin + size])
        begin += size
    return parts


def _drop(config: Config, x, name: str):
    return Dropout(config.dropout, name=f"{name}_dropout")(x) if config.dropout else x


# A body gives the layers, the vectors of tokens first; what the softmax reads; and the parts of the state after the
# last token. Without a state it reads a whole text, and gives no state.


def _ngram(config: Config, embed, ids, mask, state=None) -> tuple[list, Any, list]:
    """tanh(d + H x) of the vectors x of the last words, Bengio et al. 2003, eq. 1, with x itself if `direct`."""
    words, end = config.order - 1, []
    if state is None:
        context = NgramContext(words, name="context")(ids, mask=mask)
    else:
        context, *end = NgramContext(words, name="context")(ids, mask=mask, past=state[0])
    vectors = embed(context)  # (B, T, words, D)
    x = klayers.Reshape((-1, words * config.width), name="concatenated")(vectors)
    x = _drop(config, x, "embedding")
    hidden = klayers.Dense(config.intermediate, "tanh", name="layer_0")(x)
    hidden = _drop(config, hidden, "layer_0")
    top = hidden
    if config.direct:
        top = klayers.Concatenate(name="direct")([x, hidden])
    elif config.tied:
        top = hidden = klayers.Dense(config.width, name="output_projection")(hidden)
    return [vectors[:, :, -1], hidden], top, end


def _stacked(config: Config, embed, ids, mask, state=None) -> tuple[list, Any, list]:
    """Layers of one kind, each of which has a part of the state."""
    layers, ends = [_drop(config, embed(ids), "embedding")], []
    for index in range(config.layers):
        name, past = f"layer_{index}", None if state is None else state[index]
        if config.kind == "lstm":
            projection = None if config.cells in (None, config.width) else config.width
            layer = ProjectedLSTM(config.cells or config.width, projection, name=name)
            arguments = {"mask": mask, "state": past}
        elif config.kind == "convolution":
            layer = GatedConvolution(config.kernel_size, name=name)
            shape = (-1, config.kernel_size - 1, config.width)
            arguments = {"mask": mask, "past": None if past is None else ops.reshape(past, shape)}
        else:
            kind = klayers.GRU if config.kind == "gru" else klayers.SimpleRNN
            layer = kind(config.width, return_sequences=True, return_state=state is not None, name=name)
            arguments = {"mask": ops.cast(mask, "bool"), "initial_state": past}
        _add(layers, ends, layer(layers[-1], **arguments))
        layers[-1] = _drop(config, layers[-1], name)
    return layers, layers[-1], ends


def _add(layers: list, ends: list, outputs) -> None:
    """Adds what a layer gives: its vectors, or these and the end of its state."""
    x, *end = outputs if isinstance(outputs, list | tuple) else [outputs]
    layers.append(x)
    ends.extend(end)


def _transformer(config: Config, embed, ids, mask, state=None) -> tuple[list, Any, list]:
    x, count = embed(ids), None if state is None else ops.cast(state[-1], "int32")
    if config.positions == "learned":
        x = PositionEmbedding(config.context + 1, name="position_embedding")(x, count=count)
    layers, ends, before = [_drop(config, x, "embedding")], [], {"context": config.context}
    for index in range(config.layers):
        options = {"activation": config.activation, "epsilon": 1e-5, "rotary": config.positions == "rotary"}
        block = CausalTransformerBlock(
            config.heads, config.intermediate, config.dropout, config.dropout, **options, name=f"layer_{index}"
        )
        if state is not None:
            past = ops.reshape(state[index], (-1, config.context, 2 * config.width))
            before = {"past": past, "count": count}
        _add(layers, ends, block(layers[-1], mask=mask, **before))
    if state is not None:
        seen = count + ops.sum(mask, axis=1, keepdims=True)
        ends.append(ops.minimum(seen, config.context))
    layers[-1] = klayers.LayerNormalization(epsilon=1e-5, name="final_norm")(layers[-1])
    return layers, layers[-1], ends


_BODIES = {"ngram": _ngram, "transformer": _transformer} | dict.fromkeys(
    ("rnn", "gru", "lstm", "convolution"), _stacked
)
