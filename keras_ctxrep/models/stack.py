"""Task networks over any encoder, recurrent, convolutional or of pairs, with an encoder's outputs for any head."""

from collections.abc import Callable
from dataclasses import dataclass

import keras
from keras import layers as klayers
from keras import ops

from keras_ctxrep.layers import (
    Attention,
    Dropout,
    Embedding,
    MarkIndicator,
    MaskedPooling,
    ProjectedLSTM,
    ScalarMix,
    TwoWayAttention,
    ZeroPadding,
)
from keras_ctxrep.models.heads import encoder_outputs
from keras_ctxrep.models.model import Model
from keras_ctxrep.options import keywords
from keras_ctxrep.text.pairs import APART, PAIR

__all__ = ["Vectors", "bidaf", "by_name", "convolutional", "esim", "recurrent"]

KINDS = ("lstm", "gru", "cnn")
DEFAULTS = {"bidaf": {"units": 100, "dropout": 0.2}, "esim": {"units": 300}}  # of fine-tuning, where they differ
INDICATOR = 100  # width of the embedding of marks


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """What a task network reads of an encoder, and beside it.

    Attributes:
        extra_embeddings: a static encoder of the same tokens, whose vectors are concatenated with the mix.
        mix: "all": a scalar mix of all layers; "top": the last layer, scaled. An encoder of one layer is not mixed.
        l2: L2 penalty on the weights of the mixes.
        marks: number of marked spans per text; an indicator embedding of 100 values (He et al. 2017, section 3.1,
            https://aclanthology.org/P17-1044/) is concatenated with the vectors; 0: none.

    >>> Vectors(mix="top").l2
    0.0
    """

    extra_embeddings: keras.Model | None = None
    mix: str = "all"
    l2: float = 0.0
    marks: int = 0


@keywords(Vectors)
def recurrent(
    encoder: keras.Model,
    units: int = 256,
    layers: int = 1,
    cell: str = "lstm",
    dropout: float = 0.5,
    output_mix: bool = False,
    *,
    options: Vectors,
) -> keras.Model:
    """Bidirectional LSTMs or GRUs over an encoder's vectors.

    The task networks of Peters et al. 2018, section 3.3, https://arxiv.org/abs/1802.05365: a biRNN over a scalar mix of
    the encoder's layers, with dropout, concatenated with static word vectors; optionally a second mix is concatenated
    with the biRNN's output. The LSTM is `layers.ProjectedLSTM` without projection and clips; the GRU is Keras' (Cho et
    al. 2014, https://arxiv.org/abs/1406.1078, with the reset gate applied after the product, as in cuDNN). "pooled" is
    the maximum over the tokens, the best for sentences in Conneau et al. 2017, https://arxiv.org/abs/1705.02364.

    The model shares the encoder's layers: training it trains `encoder` unless `encoder.trainable = False`.

    Args:
        encoder: a model with the encoders' outputs.
        units: width of each direction (half of the output's).
        layers: number of stacked biRNNs.
        cell: "lstm" or "gru".
        dropout: on the mixes, and between the layers (0.5 on ELMo's vectors in AllenNLP).
        output_mix: concatenate a second mix, with weights of its own, with the output (section 3.3).
        options: or its fields as keywords.

    Call: as `encoder`, the ids of `extra_embeddings`, and with `marks` {"marks": int32 (B, M, 2)}, see
        `layers.MarkIndicator`.

    Returns: {"layers": [float32 (B, T, D'), the input of the first biRNN; float32 (B, T, 2 units), ...], "sequence":
        the last of them; "pooled": float32 (B, 2 units)}; with `output_mix` the last layer and "pooled" are D wider.

    Raises:
        ValueError: an unknown cell or mix, no layer, or both encoders read the same ids.

    >>> from keras_ctxrep.models import elmo
    >>> biLM = elmo.encoder(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"])
    >>> recurrent(biLM, units=32, cell="gru").output["sequence"].shape
    (None, None, 64)
    """
    if cell not in ("lstm", "gru"):
        raise ValueError(f"cell={cell!r}: choose 'lstm' or 'gru'")
    _check(layers, units, options.mix)
    inputs, vectors, mask = _vectors(encoder, dropout, options)
    outputs = [vectors]
    for index in range(layers):
        x = Dropout(dropout, name=f"rnn_dropout_{index}")(outputs[-1]) if index else outputs[-1]
        outputs.append(_both_ways(cell, units, f"rnn_{index}")(x, mask))
    if output_mix:
        again = _mix(encoder, dropout, options, "mix_out")
        outputs[-1] = klayers.Concatenate(name="output_mix")([outputs[-1], again])
    return _encoder(inputs, outputs, mask, f"{cell}_stack")


@keywords(Vectors)
def convolutional(
    encoder: keras.Model,
    units: int = 256,
    layers: int = 2,
    window: int = 3,
    dropout: float = 0.1,
    *,
    options: Vectors,
) -> keras.Model:
    """Convolutions along the text, over an encoder's vectors.

    A dense layer to `units`, then residual layers, x = LayerNorm(x + Dropout(ReLU(Conv(x)))): the convolutions of Kim
    2014, https://arxiv.org/abs/1408.5882, with its maximum over the tokens as "pooled", in the residual form of
    Transformer layers (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762) so that several can be stacked. Masked
    positions are zero before every convolution, as the zero padding beyond the ends of the batch is.

    Args:
        encoder, options: as in `recurrent`; the model shares the encoder's layers.
        units: width of all layers.
        layers: number of stacked convolutions.
        window: width of the convolutions in tokens; odd, so that it is centred.
        dropout: on the mix, and on the output of each convolution.

    Call: as `encoder`, the ids of `extra_embeddings`, and with `marks` {"marks": int32 (B, M, 2)}.

    Returns: {"layers": [float32 (B, T, D'), the input of the dense layer; float32 (B, T, units), ...], "sequence": the
        last of them; "pooled": float32 (B, units)}.

    Raises:
        ValueError: an unknown mix, no layer, an even window, or both encoders read the same ids.

    >>> from keras_ctxrep.models import static
    >>> convolutional(static.encoder(static.Config(words=9, width=8)), units=32).output["pooled"].shape
    (None, 32)
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window={window}: an odd number of tokens is needed")
    _check(layers, units, options.mix)
    inputs, vectors, mask = _vectors(encoder, dropout, options)
    x = klayers.Dense(units, name="cnn_input")(vectors)
    x = ZeroPadding(name="cnn_input_padding")(x, mask=mask)
    outputs, masked = [vectors], ZeroPadding(carry_mask=True, name="cnn_layers")
    for index in range(layers):
        name = f"cnn_{index}"
        more = klayers.Conv1D(units, window, padding="same", activation="relu", name=name)(x)
        more = Dropout(dropout, name=f"{name}_dropout")(more)
        x = klayers.Add(name=f"{name}_residual")([x, more])
        x = klayers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm")(x)
        outputs.append(masked(x, mask=mask))
        x = ZeroPadding(name=f"{name}_padding")(x, mask=mask)  # without a Keras mask, which Keras' convolutions end
    return _encoder(inputs, outputs, mask, "cnn_stack")


def esim(encoder: keras.Model, units: int = 300, layers: int = 1, dropout: float = 0.5, **kwargs) -> keras.Model:
    """Inference by alignment of two texts, each of which the encoder reads by itself.

    ESIM without its tree-LSTM, Chen et al. 2017, https://arxiv.org/abs/1609.06038, section 3: `recurrent` over each
    text, with the same weights (eq. 1 and 2); each token attends to those of the other text by the softmax of dot
    products (eq. 11 to 13); its vector a, the attended vector b, a - b and a * b are concatenated (eq. 14 and 15), go
    through a dense layer with a ReLU and another biLSTM (eq. 16 and 17); mean and maximum over the tokens of both texts
    (eq. 18 to 20), and a dense layer with tanh. Dropout is on the vectors of the encoder, as in `recurrent`, and before
    both dense layers.

    Args:
        encoder: of any family, as in `recurrent`; the model shares its layers.
        units: width of each direction, and of the dense layers (300 in the source).
        layers: number of stacked biLSTMs over each text.
        dropout: see above (0.5 in the source).
        kwargs: `output_mix`, see `recurrent`, and `extra_embeddings`, `mix` and `l2`, see `Vectors`.

    Call: as `encoder`, and with "pair_" before the names the inputs of the second text, as of
        `text.pairs.PairFeatures`.

    Returns: {"layers": [those of `recurrent` over the first text; float32 (B, T, 2 units)], "sequence": the last of
        them; "pooled": float32 (B, units), of both texts}.

    Raises:
        ValueError: an argument that `recurrent` refuses.

    >>> from keras_ctxrep.models import static
    >>> model = esim(static.encoder(static.Config(words=9, width=8)), units=16)
    >>> sorted(model.input), model.output["pooled"].shape
    (['mask', 'pair_mask', 'pair_word_ids', 'word_ids'], (None, 16))
    """
    inputs, text, pair = _both(recurrent(encoder, units, layers, dropout=dropout, **kwargs))
    mask, pair_mask = inputs["mask"], inputs[f"{PAIR}mask"]
    (a, b), align = (part.output["sequence"] for part in (text, pair)), Attention("dot", name="alignment")
    project = klayers.Dense(units, activation="relu", name="alignment_projection")
    drop, padded = Dropout(dropout, name="alignment_dropout"), ZeroPadding(carry_mask=True, name="alignment_padding")
    composed = []
    compose = _both_ways("lstm", units, "composition")
    for x, other, own, mask_of_other in ((a, b, mask, pair_mask), (b, a, pair_mask, mask)):
        aligned, _ = align(x, other, mask=mask_of_other)
        x = klayers.Concatenate()([x, aligned, x - aligned, x * aligned])
        composed.append(compose(padded(project(drop(x)), mask=own), own))
    pool = MaskedPooling("mean_max", name="mean_and_max")
    pools = [pool(x, mask=own) for x, own in zip(composed, (mask, pair_mask), strict=True)]
    both = klayers.Concatenate(name="both_texts")(pools)
    pooled = klayers.Dense(units, activation="tanh", name="inference")(Dropout(dropout, name="inference_dropout")(both))
    outputs = {"layers": [*text.output["layers"], composed[0]], "sequence": composed[0], "pooled": pooled}
    return Model(inputs, outputs, name="esim_stack")


def bidaf(encoder: keras.Model, units: int = 100, layers: int = 2, dropout: float = 0.2, **kwargs) -> keras.Model:
    """Attention flow between a question and its context, each of which the encoder reads by itself.

    BiDAF, Seo et al. 2017, https://arxiv.org/abs/1611.01603, section 2, over an encoder in place of its word and
    character embeddings and their highway layers: a biLSTM over each text, with the same weights; `TwoWayAttention`,
    whose result G goes through biLSTMs to M, and through another one to M'. Both logits of an answer's head read [G; M;
    M'], where in the source the first reads [G; M] and the second [G; M']. A trained vector before the tokens of the
    context is that of no answer (Levy et al. 2017, https://arxiv.org/abs/1706.04115, section 4).

    Args:
        encoder, kwargs: as in `esim`.
        units: width of each direction (100 in the source).
        layers: number of biLSTMs from G to M (2 in the source).
        dropout: on the vectors of the encoder, and on what each layer above reads (0.2 in the source).

    Call: as `encoder`, the question, and with "pair_" before the names the inputs of the context, as of
        `text.pairs.PairFeatures`.

    Returns: {"layers": ["sequence"], "sequence": float32 (B, 1 + S, 12 units), of no answer and of the S tokens of the
        context, wider with `output_mix`; "mask": int32 (B, 1 + S); "pooled": its maximum}.

    Raises:
        ValueError: an argument that `recurrent` refuses.

    >>> from keras_ctxrep.models import static
    >>> model = bidaf(static.encoder(static.Config(words=9, width=8)), units=16)
    >>> sorted(model.input), model.output["sequence"].shape
    (['mask', 'pair_mask', 'pair_word_ids', 'word_ids'], (None, None, 192))
    """
    _check(layers, units, "all")
    inputs, question, context = _both(recurrent(encoder, units, dropout=dropout, **kwargs))
    question_mask, mask = inputs["mask"], inputs[f"{PAIR}mask"]
    flow = TwoWayAttention(name="attention_flow")(
        context.output["sequence"], question.output["sequence"], mask=mask, question_mask=question_mask
    )
    flow = ZeroPadding(carry_mask=True, name="attention_flow_padding")(flow, mask=mask)
    x, drops = flow, iter(Dropout(dropout, name=f"modeling_dropout_{index}") for index in range(layers + 2))
    for index in range(layers):
        x = _both_ways("lstm", units, f"modeling_{index}")(next(drops)(x), mask)
    end = _both_ways("lstm", units, "modeling_end")(next(drops)(x), mask)
    tokens = next(drops)(klayers.Concatenate(name="flow_and_modeling")([flow, x, end]))
    none = Embedding(1, tokens.shape[-1], name="no_answer")(0 * ops.cast(question_mask[:, :1], "int32"))  # (B, 1, D)
    sequence = klayers.Concatenate(axis=1, name="answers")([none, tokens])
    positions = ops.pad(ops.cast(mask, "int32"), ((0, 0), (1, 0)), constant_values=1)
    made = _encoder(inputs, [sequence], positions, "bidaf_stack")
    return Model(inputs, made.output | {"mask": positions}, name=made.name)


def by_name(encoder: keras.Model, kind: str | None = None, **kwargs) -> keras.Model:
    """The task network with a given name, or the encoder itself for None.

    Args:
        encoder: a model with the encoders' outputs.
        kind: "lstm", "gru" or "cnn"; of pairs "esim" or "bidaf".
        kwargs: the network's other arguments.

    Raises:
        ValueError: no such network.

    >>> from keras_ctxrep.models import static
    >>> by_name(static.encoder(static.Config(words=9, width=8)), "gru", units=16).name
    'gru_stack'
    """
    if kind is None:
        return encoder
    if kind not in (*KINDS, *APART):
        raise ValueError(f"task network {kind!r}: choose one of {', '.join((*KINDS, *APART))}")
    if kind in APART:
        return (esim if kind == "esim" else bidaf)(encoder, **kwargs)
    return convolutional(encoder, **kwargs) if kind == "cnn" else recurrent(encoder, cell=kind, **kwargs)


def _check(layers: int, units: int, mix: str) -> None:
    if not (1 <= layers <= 100 and 1 <= units <= 1 << 16):
        raise ValueError(f"layers={layers}, units={units}: both are at least 1, and at most 100 and {1 << 16:,}")
    if mix not in ("all", "top"):
        raise ValueError(f"mix={mix!r}: choose 'all' or 'top'")


def _mix(encoder: keras.Model, dropout: float, options: Vectors, name: str):
    """One vector per token from all layers, float32 (B, T, D)."""
    layers = encoder_outputs(encoder)["layers"]
    x = layers[0]
    if len(layers) > 1:
        x = ScalarMix(options.l2, top_only=options.mix == "top", name=f"scalar_{name}")(layers)
    return Dropout(dropout, name=f"{name}_dropout")(x)


def _vectors(encoder: keras.Model, dropout: float, options: Vectors):
    """The inputs of the model, the input of the first layer, float32 (B, T, D'), and the mask."""
    x = _mix(encoder, dropout, options, "mix")
    inputs, extra_embeddings, marks = dict(encoder.input), options.extra_embeddings, options.marks
    if extra_embeddings is not None:
        ids = {name: tensor for name, tensor in extra_embeddings.input.items() if name != "mask"}
        both = set(ids) & set(inputs)
        if both:
            raise ValueError(f"{encoder.name} and {extra_embeddings.name} both read {', '.join(both)}; leave out one")
        inputs |= ids
        static = keras.models.clone_model(
            extra_embeddings, input_tensors=ids | {"mask": inputs["mask"]}, clone_function=lambda layer: layer
        )  # the same layers, on the encoder's mask
        x = klayers.Concatenate(name="mix_and_words")([x, static.output["sequence"]])
    if marks:
        inputs["marks"] = keras.Input((marks, 2), dtype="int32", name="marks")
        kinds = MarkIndicator(name="marked")(inputs["mask"], inputs["marks"])  # (B, T)
        kinds = Embedding(1 + marks, INDICATOR, name="mark_embedding")(kinds)
        kinds = ZeroPadding(carry_mask=True, name="mark_padding")(kinds, mask=inputs["mask"])
        x = klayers.Concatenate(name="vectors_and_marks")([x, kinds])
    return inputs, x, inputs["mask"]


def _both_ways(cell: str, units: int, name: str) -> Callable:
    """A bidirectional layer: a function from float32 (B, T, D) and its mask to float32 (B, T, 2 units)."""
    ways = {}
    for way, back in (("forward", False), ("backward", True)):
        if cell == "lstm":
            ways[back] = ProjectedLSTM(units, go_backwards=back, name=f"{name}_{way}")
            continue
        # cuDNN does not accept a text without words, and graphs exported on a GPU machine would contain its operator
        ways[back] = klayers.GRU(units, return_sequences=True, go_backwards=back, use_cudnn=False, name=f"{name}_{way}")
    join = klayers.Concatenate(name=f"{name}_both_ways")
    padded = ZeroPadding(carry_mask=True, name=name)

    def apply(x, mask):
        of_layer = mask if cell == "lstm" else ops.cast(mask, "bool")
        forward, backward = (ways[back](x, mask=of_layer) for back in (False, True))
        if cell == "gru":  # its output is in the order of processing
            backward = ops.flip(backward, axis=1)
        return padded(join([forward, backward]), mask=mask)

    return apply


def _both(model: keras.Model) -> tuple[dict, keras.Model, keras.Model]:
    """The inputs of two texts, a model of the first one, and the same layers over the inputs of the second one."""
    own = [*model.input.values()]
    others = [keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=PAIR + tensor.name) for tensor in own]
    listed = keras.Model(own, model.output)
    twin = keras.models.clone_model(listed, input_tensors=others, clone_function=lambda layer: layer)
    return model.input | {tensor.name: tensor for tensor in others}, model, twin


def _encoder(inputs: dict, layers: list, mask, name: str) -> keras.Model:
    pooled = MaskedPooling("max", name="max_over_tokens")(layers[-1], mask=mask)
    return Model(inputs, {"layers": layers, "sequence": layers[-1], "pooled": pooled}, name=name)
