"""Task networks over any encoder: recurrent or convolutional, with an encoder's outputs, so that any head fits."""

import keras
from keras import layers as klayers
from keras import ops

from keras_ctxrep.layers import Dropout, Embedding, MarkIndicator, MaskedPooling, ProjectedLSTM, ScalarMix, ZeroPadding
from keras_ctxrep.models.heads import encoder_outputs
from keras_ctxrep.models.model import Model

__all__ = ["by_name", "convolutional", "recurrent"]

KINDS = ("lstm", "gru", "cnn")
INDICATOR = 100  # width of the embedding of marks


def recurrent(
    encoder: keras.Model,
    units: int = 256,
    layers: int = 1,
    cell: str = "lstm",
    dropout: float = 0.5,
    extra_embeddings: keras.Model | None = None,
    mix: str = "all",
    output_mix: bool = False,
    l2: float = 0.0,
    marks: int = 0,
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
        extra_embeddings: a static encoder of the same tokens, whose vectors are concatenated with the mix.
        mix: "all": a scalar mix of all layers; "top": the last layer, scaled. An encoder of one layer is not mixed.
        output_mix: concatenate a second mix, with weights of its own, with the output (section 3.3).
        l2: L2 penalty on the weights of the mixes.
        marks: number of marked spans per text; an indicator embedding of 100 values (He et al. 2017, section 3.1,
            https://aclanthology.org/P17-1044/) is concatenated with the vectors; 0: none.

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
    _check(layers, units, mix)
    inputs, vectors, mask = _vectors(encoder, dropout, extra_embeddings, mix, l2, marks)
    outputs = [vectors]
    for index in range(layers):
        x = Dropout(dropout, name=f"rnn_dropout_{index}")(outputs[-1]) if index else outputs[-1]
        outputs.append(_both_ways(cell, x, units, mask, f"rnn_{index}"))
    if output_mix:
        again = _mixed(encoder, dropout, mix, l2, "mix_out")
        outputs[-1] = klayers.Concatenate(name="output_mix")([outputs[-1], again])
    return _encoder(inputs, outputs, mask, f"{cell}_stack")


def convolutional(
    encoder: keras.Model,
    units: int = 256,
    layers: int = 2,
    window: int = 3,
    dropout: float = 0.1,
    extra_embeddings: keras.Model | None = None,
    mix: str = "all",
    l2: float = 0.0,
    marks: int = 0,
) -> keras.Model:
    """Convolutions along the text, over an encoder's vectors.

    A dense layer to `units`, then residual layers, x = LayerNorm(x + Dropout(ReLU(Conv(x)))): the convolutions of Kim
    2014, https://arxiv.org/abs/1408.5882, with its maximum over the tokens as "pooled", in the residual form of
    Transformer layers (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762) so that several can be stacked. Masked
    positions are zero before every convolution, as the zero padding beyond the ends of the batch is.

    The model shares the encoder's layers: training it trains `encoder` unless `encoder.trainable = False`.

    Args:
        encoder: a model with the encoders' outputs.
        units: width of all layers.
        layers: number of stacked convolutions.
        window: width of the convolutions in tokens; odd, so that it is centred.
        dropout: on the mix, and on the output of each convolution.
        extra_embeddings, mix, l2, marks: see `recurrent`.

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
    _check(layers, units, mix)
    inputs, vectors, mask = _vectors(encoder, dropout, extra_embeddings, mix, l2, marks)
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


def by_name(encoder: keras.Model, kind: str | None = None, **kwargs) -> keras.Model:
    """The task network with a given name, or the encoder itself for None.

    Args:
        encoder: a model with the encoders' outputs.
        kind: "lstm", "gru" or "cnn".
        kwargs: the network's other arguments.

    Raises:
        ValueError: no such network.

    >>> from keras_ctxrep.models import static
    >>> by_name(static.encoder(static.Config(words=9, width=8)), "gru", units=16).name
    'gru_stack'
    """
    if kind is None:
        return encoder
    if kind not in KINDS:
        raise ValueError(f"task network {kind!r}: choose one of {', '.join(KINDS)}")
    return convolutional(encoder, **kwargs) if kind == "cnn" else recurrent(encoder, cell=kind, **kwargs)


def _check(layers: int, units: int, mix: str) -> None:
    if not (1 <= layers <= 100 and 1 <= units <= 1 << 16):
        raise ValueError(f"layers={layers}, units={units}: both are at least 1, and at most 100 and {1 << 16:,}")
    if mix not in ("all", "top"):
        raise ValueError(f"mix={mix!r}: choose 'all' or 'top'")


def _mixed(encoder: keras.Model, dropout: float, mix: str, l2: float, name: str):
    """One vector per token from all layers, float32 (B, T, D)."""
    layers = encoder_outputs(encoder)["layers"]
    x = layers[0]
    if len(layers) > 1:
        x = ScalarMix(l2, top_only=mix == "top", name=f"scalar_{name}")(layers)
    return Dropout(dropout, name=f"{name}_dropout")(x)


def _vectors(
    encoder: keras.Model, dropout: float, extra_embeddings: keras.Model | None, mix: str, l2: float, marks: int
):
    """The inputs of the model, the input of the first layer, float32 (B, T, D'), and the mask."""
    x = _mixed(encoder, dropout, mix, l2, "mix")
    inputs = dict(encoder.input)
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
        x = klayers.Concatenate(name="vectors_and_marks")(
            [x, ZeroPadding(carry_mask=True, name="mark_padding")(kinds, mask=inputs["mask"])]
        )
    return inputs, x, inputs["mask"]


def _both_ways(cell: str, x, units: int, mask, name: str):
    """A bidirectional layer, float32 (B, T, 2 units)."""
    pair = []
    for way, back in (("forward", False), ("backward", True)):
        if cell == "lstm":
            pair.append(ProjectedLSTM(units, go_backwards=back, name=f"{name}_{way}")(x, mask=mask))
            continue
        # cuDNN does not accept a text without words, and graphs exported on a GPU machine would contain its operator
        layer = klayers.GRU(units, return_sequences=True, go_backwards=back, use_cudnn=False, name=f"{name}_{way}")
        y = layer(x, mask=ops.cast(mask, "bool"))
        pair.append(ops.flip(y, axis=1) if back else y)  # the output is in the order of processing
    both = klayers.Concatenate(name=f"{name}_both_ways")(pair)
    return ZeroPadding(carry_mask=True, name=name)(both, mask=mask)


def _encoder(inputs: dict, layers: list, mask, name: str) -> keras.Model:
    pooled = MaskedPooling("max", name="max_over_tokens")(layers[-1], mask=mask)
    return Model(inputs, {"layers": layers, "sequence": layers[-1], "pooled": pooled}, name=name)
