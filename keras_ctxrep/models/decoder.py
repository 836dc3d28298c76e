"""Decoders with attention over any encoder: text to text, one token after another.

A decoder reads the "sequence" of an encoder's outputs. It is three models over the same layers: one to train, with the
true tokens before each, and two to generate with, of which the first runs once a text and the second once a token.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import layers as klayers
from keras import ops

from keras_ctxrep.layers import (
    AttentionalRNN,
    ConvolutionalDecoderBlock,
    Dropout,
    SinusoidalPositions,
    TiedSoftmax,
    TransformerDecoderBlock,
    ZeroPadding,
)
from keras_ctxrep.layers.attention import by_inputs
from keras_ctxrep.models.heads import encoder_outputs, mixed
from keras_ctxrep.models.model import Model

__all__ = ["Decoder", "by_name", "convolutional", "parts", "recurrent", "transformer"]


class Decoder(NamedTuple):
    """The models of a decoder, which share all weights.

    S is the length of a text, T that of its target, Z the numbers of a row's state, K what the decoder keeps of each
    vector of the encoder.

    Attributes:
        model: to train: the inputs of the encoder and {"target_ids": int32 (B, T), "target_mask": int32 (B, T)}, the
            tokens before each, the mark of the beginning first -> {"logits": float32 (B, T, V), of the token after
            each, "attention": float32 (B, T, S)}, the weights of the encoder's vectors.
        start: the inputs of the encoder -> {"memory": float32 (B, S, K), "state": float32 (B, Z)}, before the first
            token.
        step: {"token_ids": int32 (B, 1), "memory", "memory_mask": int32 (B, S), "state"} -> {"logits": float32 (B, V),
            "attention": float32 (B, S), "state"}.

    >>> from keras_ctxrep.models import static
    >>> model, start, step = recurrent(static.encoder(static.Config(words=9, width=8)), 20, units=16)
    >>> text = {"word_ids": ops.ones((1, 5), "int32"), "mask": ops.ones((1, 5), "int32")}
    >>> begin = start(text) | {"token_ids": ops.zeros((1, 1), "int32"), "memory_mask": text["mask"]}
    >>> sorted(step(begin))
    ['attention', 'logits', 'state']
    """

    model: keras.Model
    start: keras.Model
    step: keras.Model


def recurrent(
    encoder: keras.Model,
    vocabulary_size: int,
    units: int = 256,
    layers: int = 1,
    cell: str = "lstm",
    score: str = "additive",
    dropout: float = 0.3,
) -> Decoder:
    """A recurrent decoder with attention and input feeding.

    Luong et al. 2015, https://arxiv.org/abs/1508.04025, with any of the scores of `layers.Attention`; see
    `layers.AttentionalRNN`. It begins with the states tanh(W m), where m is the mean of the encoder's vectors (Sennrich
    et al. 2017, https://arxiv.org/abs/1703.04357, section 2), and the table of the tokens' vectors is the kernel of the
    softmax too (Press & Wolf 2017, https://arxiv.org/abs/1608.05859).

    The models share the encoder's layers: training trains `encoder` unless `encoder.trainable = False`.

    Args:
        encoder: a model with the encoders' outputs, of any width.
        vocabulary_size: number of target tokens, V.
        units: width of the tokens' vectors, the cells and the attentional vectors.
        layers: number of cells.
        cell: "lstm" or "gru".
        score: "additive", "dot" or "general"; with "dot" the encoder's vectors are projected to `units`.
        dropout: of the tokens' vectors, of what each cell gives and of the attentional vectors (0.2 in Luong et al.).

    Returns: the models.

    Raises:
        ValueError: an unknown cell or score, or a size below 1.

    >>> from keras_ctxrep.models import static
    >>> decoder = recurrent(static.encoder(static.Config(words=9, width=8)), 20, units=16)
    >>> sorted(decoder.model.input), decoder.model.output["logits"].shape
    (['mask', 'target_ids', 'target_mask', 'word_ids'], (None, None, 20))
    """
    _check(vocabulary_size=vocabulary_size, units=units, layers=layers)
    softmax = TiedSoftmax(vocabulary_size, units, name="target_softmax")
    rnn = AttentionalRNN(units, cell, layers, score, dropout, name="decoder")
    drop = Dropout(dropout, name="target_dropout")
    vectors, mask = _memory(encoder)
    width = vectors.shape[-1]
    keys = [] if score == "general" else [klayers.Dense(units, use_bias=False, name="attention_keys")(vectors)]
    memory = klayers.Concatenate(name="memory")([*keys, vectors]) if keys else vectors
    real = ops.cast(mask, vectors.dtype)[:, :, None]
    mean = ops.sum(vectors * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1)
    state = klayers.Dense(rnn.size_of_state - units, "tanh", name="first_state")(mean)
    state = ops.cast(ops.concatenate([state, ops.zeros_like(state[:, :units])], axis=1), "float32")

    def decode(ids, ids_mask, memory, memory_mask, state):
        kept = memory[:, :, :units] if keys else memory
        x = drop(softmax(ids, embed=True))
        x, weights, end = rnn(x, kept, memory[:, :, -width:], memory_mask, state)
        return softmax(x), weights, end

    return _models(encoder, decode, memory, mask, state)


def transformer(
    encoder: keras.Model,
    vocabulary_size: int,
    width: int = 256,
    layers: int = 2,
    heads: int = 4,
    intermediate: int | None = None,
    dropout: float = 0.1,
    context: int = 64,
) -> Decoder:
    """A Transformer decoder with a cache of keys and values.

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.1, in the pre-norm form with rotary positions of
    `layers.TransformerDecoderBlock`; over a pretrained encoder as in Rothe et al. 2020,
    https://arxiv.org/abs/1907.12461, with a fresh decoder. The table of the tokens' vectors is the kernel of the
    softmax too. Its state is the cache, of fixed size: a token attends to `context` tokens before it.

    Args:
        encoder, vocabulary_size: as in `recurrent`; the models share the encoder's layers.
        width: of the tokens' vectors and of each layer.
        layers: number of blocks.
        heads: of self-attention and of the attention to the encoder.
        intermediate: width of the feed-forward layers; None: 4 `width`.
        dropout: of the tokens' vectors, the attention's weights, and the sub-layers' outputs.
        context: tokens before each that it attends to.

    Returns: the models.

    Raises:
        ValueError: `heads` does not divide the width into even parts, or a size is below 1.

    >>> from keras_ctxrep.models import static
    >>> decoder = transformer(static.encoder(static.Config(words=9, width=8)), 20, width=16, heads=2, context=10)
    >>> decoder.start.output["memory"].shape, decoder.step.output["state"].shape
    ((None, None, 64), (None, 641))
    """
    _check(vocabulary_size=vocabulary_size, width=width, layers=layers, heads=heads, context=context)
    softmax = TiedSoftmax(vocabulary_size, width, name="target_softmax")
    drop = Dropout(dropout, name="target_dropout")
    norm = klayers.LayerNormalization(epsilon=1e-5, name="decoder_norm")
    sizes = heads, intermediate or 4 * width, dropout, dropout
    blocks = [TransformerDecoderBlock(*sizes, epsilon=1e-5, name=f"decoder_layer_{i}") for i in range(layers)]
    vectors, mask = _memory(encoder)
    pairs = [klayers.Dense(2 * width, name=f"decoder_memory_{index}")(vectors) for index in range(layers)]
    memory = klayers.Concatenate(name="memory")(pairs) if layers > 1 else pairs[0]
    shape = context, 2 * width

    def decode(ids, ids_mask, memory, memory_mask, state):
        x, count = drop(softmax(ids, embed=True)), ops.cast(state[:, -1:], "int32")
        own = [memory[:, :, index * 2 * width : (index + 1) * 2 * width] for index in range(layers)]
        given = {"mask": ids_mask, "count": count, "memory_mask": memory_mask}
        x, weights, ends = _through(blocks, x, own, state, shape, **given)
        count = ops.minimum(count + ops.sum(ids_mask, axis=1, keepdims=True), context)
        return softmax(norm(x)), weights, ops.concatenate([*ends, ops.cast(count, "float32")], axis=1)

    return _models(encoder, decode, memory, mask, _zeros(mask, layers * math.prod(shape) + 1))


def convolutional(
    encoder: keras.Model,
    vocabulary_size: int,
    width: int = 256,
    layers: int = 3,
    kernel_size: int = 3,
    dropout: float = 0.1,
) -> Decoder:
    """A decoder of causal convolutions with attention in each block.

    Gehring et al. 2017, https://arxiv.org/abs/1705.03122, section 3: the blocks of `layers.ConvolutionalDecoderBlock`
    over the sums of the tokens' vectors and those of their positions, and a dense layer before the softmax. A block
    reads `kernel_size` - 1 tokens more than the one below it, so that a prediction depends on 1 + `layers`
    (`kernel_size` - 1) tokens, and on the text. Its state has the last `kernel_size` - 1 inputs of each block, and the
    number of tokens.

    As in the paper, all blocks have the same keys, a projection z_j of the encoder's vectors, and the values z_j + e_j
    (eq. 2, over sqrt(2)); e_j is a projection of the encoder's layer 0, the vectors of the tokens without their
    context. Unlike in the paper, positions are the fixed sines and cosines of Vaswani et al. 2017, section 3.5, added
    to vectors of unit variance: a learned table would have no vectors for targets longer than those of the training,
    which a search may write. The table of the tokens' vectors is the kernel of the softmax too; the kernel of the dense
    layer is drawn ten times smaller than in section 3.5, so that the first predictions are about uniform, as with the
    smaller vectors of the paper. The gradients of the encoder are not divided by the number of blocks (section 3.4),
    which optimizers such as Adam would undo.

    Args:
        encoder, vocabulary_size: as in `recurrent`; the models share the encoder's layers.
        width: of the tokens' vectors and of each block.
        layers: number of blocks.
        kernel_size: tokens that a convolution reads; 3 or 5 in the paper, where 3 with more blocks was better.
        dropout: of the tokens' vectors, the inputs of each convolution and what the softmax reads.

    Returns: the models; their "attention" is the mean over the blocks.

    Raises:
        ValueError: a kernel of fewer than 2 tokens, or a size below 1.

    >>> from keras_ctxrep.models import static
    >>> decoder = convolutional(static.encoder(static.Config(words=9, width=8)), 20, width=16, layers=2)
    >>> decoder.start.output["memory"].shape, decoder.step.output["state"].shape
    ((None, None, 32), (None, 65))
    """
    _check(vocabulary_size=vocabulary_size, width=width, layers=layers, kernel_size=kernel_size)
    if kernel_size < 2:
        raise ValueError(f"kernel_size={kernel_size}: at least 2, or no token before another one would be read")
    softmax = TiedSoftmax(vocabulary_size, width, name="target_softmax")
    drop = Dropout(dropout, name="target_dropout")
    positions = SinusoidalPositions(name="target_positions")
    blocks = [ConvolutionalDecoderBlock(kernel_size, dropout, name=f"decoder_layer_{i}") for i in range(layers)]
    last = klayers.Dense(width, kernel_initializer=by_inputs(0.01 * (1 - dropout)), name="decoder_output")
    vectors, mask = _memory(encoder)
    table = ZeroPadding(name="encoded_tokens")(encoder_outputs(encoder)["layers"][0], mask=mask)
    keys = klayers.Dense(width, kernel_initializer=by_inputs(), name="decoder_keys")(vectors)
    more = klayers.Dense(width, kernel_initializer=by_inputs(), name="decoder_tokens")(table)
    memory = klayers.Concatenate(name="memory")([keys, (keys + more) * 0.5**0.5])
    shape = kernel_size - 1, width

    def decode(ids, ids_mask, memory, memory_mask, state):
        count = ops.cast(state[:, -1:], "int32")
        x = drop(positions(softmax(ids, embed=True) * width**0.5, count))
        given = {"mask": ids_mask, "tokens": x, "memory_mask": memory_mask}
        x, weights, ends = _through(blocks, x, [memory] * layers, state, shape, **given)
        count = ops.cast(count + ops.sum(ids_mask, axis=1, keepdims=True), "float32")
        return softmax(drop(last(x))), weights, ops.concatenate([*ends, count], axis=1)

    return _models(encoder, decode, memory, mask, _zeros(mask, layers * math.prod(shape) + 1))


def by_name(
    encoder: keras.Model,
    vocabulary_size: int,
    kind: str,
    mix: bool = False,
    l2: float = 0.0,
    units: int = 256,
    **kwargs,
) -> keras.Model:
    """The training model of the decoder with a given name.

    Args:
        encoder, vocabulary_size: as in `recurrent`.
        kind: "recurrent", "transformer" or "convolutional".
        mix: it reads a trained scalar mix of all layers instead of the top one.
        l2: on the weights of the mix.
        units: width of the decoder.
        kwargs: the decoder's other arguments.

    Raises:
        ValueError: no such decoder.

    >>> from keras_ctxrep.models import static
    >>> by_name(static.encoder(static.Config(words=9, width=8)), 20, "recurrent", units=16).name
    'encoder_decoder'
    """
    if mix:
        encoder = mixed(encoder, l2)
    kinds = {"recurrent": recurrent, "transformer": transformer, "convolutional": convolutional}
    if kind not in kinds:
        raise ValueError(f"decoder {kind!r}: choose one of {', '.join(kinds)}")
    return kinds[kind](encoder, vocabulary_size, units, **kwargs).model


def _check(**sizes: Any) -> None:
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r}: a whole number, at least 1")


def _memory(encoder: keras.Model) -> tuple[Any, Any]:
    """The encoder's vectors, float32 (B, S, D), zero where there is none, and their mask, int32 (B, S)."""
    mask = encoder.input["mask"]
    vectors = encoder_outputs(encoder)["sequence"]
    return ZeroPadding(name="encoded")(vectors, mask=mask), mask


def _zeros(mask, size):
    """The state before the first token, float32 (B, size)."""
    return ops.reshape(ops.tile(ops.zeros_like(ops.cast(mask[:, :1], "float32")), (1, size)), (-1, size))


def _through(blocks, x, memories: Sequence, state, shape: tuple[int, ...], **arguments) -> tuple[Any, Any, list]:
    """Blocks over x, each of which has its own part of the state as `past`, (B, *shape).

    Returns: what the last block gives, the mean of their weights of the memory, and the new parts of the state.
    """
    size, ends, each = math.prod(shape), [], []
    for index, (block, memory) in enumerate(zip(blocks, memories, strict=True)):
        past = ops.reshape(state[:, index * size : (index + 1) * size], (-1, *shape))
        x, end, weights = block(x, past=past, memory=memory, **arguments)
        ends.append(ops.cast(ops.reshape(end, (-1, size)), "float32"))
        each.append(weights)
    return x, sum(each[1:], each[0]) / len(blocks), ends


def _models(encoder: keras.Model, decode, memory, mask, state) -> Decoder:
    """The models of a decoder, of which one model inside the first is all that runs token by token.

    Args:
        decode: tokens and their mask, memory, its mask and state -> logits, weights of the attention, state.
        memory, mask, state: of `start`.
    """

    def float32(x, name):
        return klayers.Activation("linear", dtype="float32", name=name)(x)

    memory, state = float32(memory, "decoder_memory"), float32(state, "decoder_state")
    ids, ids_mask = (keras.Input((None,), dtype="int32", name=name) for name in ("target_ids", "target_mask"))
    inputs = {"target_ids": ids, "target_mask": ids_mask, **_begin(memory, state)}
    names = ("logits", "attention", "state")
    decoded = {name: float32(x, f"decoded_{name}") for name, x in zip(names, decode(*inputs.values()), strict=True)}
    tokens = Model(inputs, decoded, name="target_decoder")
    targets = {name: keras.Input((None,), dtype="int32", name=name) for name in ("target_ids", "target_mask")}
    outputs = tokens(targets | {"memory": memory, "memory_mask": mask, "state": state})
    outputs = {name: outputs[name] for name in ("logits", "attention")}
    model = Model({**encoder.input, **targets}, outputs, name="encoder_decoder")
    return Decoder(model, *parts(model))


def parts(model: keras.Model) -> tuple[keras.Model, keras.Model]:
    """`start` and `step` of a decoder's training model, of the same layers.

    >>> from keras_ctxrep.models import static
    >>> start, step = parts(recurrent(static.encoder(static.Config(words=9, width=8)), 20, units=16).model)
    >>> sorted(start.output), sorted(step.input)
    (['memory', 'state'], ['memory', 'memory_mask', 'state', 'token_ids'])
    """
    memory, state = (model.get_layer(f"decoder_{name}").output for name in ("memory", "state"))
    read = {name: tensor for name, tensor in model.input.items() if not name.startswith("target_")}
    start = Model(read, {"memory": memory, "state": state}, name="decoder_start")
    ids, begun = keras.Input((1,), dtype="int32", name="token_ids"), _begin(memory, state)
    outputs = model.get_layer("target_decoder")({"target_ids": ids, "target_mask": ops.ones_like(ids), **begun})
    single = {name: outputs[name][:, 0] for name in ("logits", "attention")}
    return start, Model({"token_ids": ids, **begun}, single | {"state": outputs["state"]}, name="decoder_step")


def _begin(memory, state) -> dict:
    """Inputs for what `start` gives, and the mask of the text."""
    return {
        "memory": keras.Input(memory.shape[1:], name="memory"),
        "memory_mask": keras.Input((None,), dtype="int32", name="memory_mask"),
        "state": keras.Input(state.shape[1:], name="state"),
    }
