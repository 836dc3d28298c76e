"""ELMo: the bidirectional language model over characters, and the encoder it pretrains.

Peters et al. 2018, https://arxiv.org/abs/1802.05365; reference implementation https://github.com/allenai/bilm-tf.
"""

from dataclasses import dataclass, replace

import keras
from keras import layers as klayers

from keras_ctxrep.layers import CharCNN, MaskedPooling, ProjectedLSTM, SentenceMarkers, ZeroPadding


@dataclass(frozen=True)
class Config:
    """Sizes of a biLM; the defaults are those of the original model."""

    cells: int = 4096  # width of each LSTM cell
    projection: int | None = 512  # width of the token layer and of each direction's output
    layers: int = 2  # LSTM layers in each direction
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    residual: bool = True  # from the second layer on, the layer's input is added to its output
    filters: tuple = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))  # (characters, filters)
    embedding_dim: int = 16  # width of a character vector
    highways: int = 2
    activation: str = "relu"  # of the character convolutions
    max_characters: int = 50  # ids per word: begin, up to 48 bytes, end
    dropout: float = 0.1  # on the input of every LSTM layer and before the softmax, while training


_ORIGINAL = Config()
_SMALL_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 64), (5, 64))

# Published sizes under their published names, and two small ones for little text.
SIZES = {
    "elmo_2x128_64_256cnn_1xhighway": replace(
        _ORIGINAL, cells=128, projection=64, filters=_SMALL_FILTERS, highways=1, max_characters=32
    ),
    "elmo_2x512_128_512cnn_1xhighway": replace(
        _ORIGINAL, cells=512, projection=128, filters=(*_SMALL_FILTERS[:3], (4, 128), (5, 256)), highways=1
    ),
    "elmo_2x1024_128_2048cnn_1xhighway": replace(_ORIGINAL, cells=1024, projection=128, highways=1),
    "elmo_2x2048_256_2048cnn_1xhighway": replace(_ORIGINAL, cells=2048, projection=256, highways=1),
    "elmo_2x4096_512_2048cnn_2xhighway": _ORIGINAL,
}


def encoder(config: Config, dropout: float = 0.0) -> keras.Model:
    """Contextual word vectors from characters.

    Stateless: the same sentence gives the same vectors, alone or in any batch. The sentence markers are added and taken
    off inside.

    Args:
        config: sizes.
        dropout: on the input of every LSTM layer while training (the published encoder has none).

    Call: {"char_ids": int32 (B, T, W), "mask": int32 (B, T)}

    Returns: {"layers": N x float32 (B, T, 2 P), layer 0 being the context-free token layer twice;
        "sequence": the top layer; "pooled": float32 (B, 2 P), the mean of the top layer over the real words}.

    >>> model = encoder(SIZES["elmo_2x128_64_256cnn_1xhighway"])
    >>> from keras_ctxrep.text.features import CharacterFeatures
    >>> out = model(CharacterFeatures(max_characters=32)(["Contextual vectors"]))
    >>> len(out["layers"]), out["sequence"].shape
    (3, TensorShape([1, 2, 128]))
    """
    inputs, streams = _bilm(config, dropout)
    layers = []
    for index, pair in enumerate(streams):
        words = klayers.Cropping1D(1, name=f"words_{index}")(klayers.Concatenate(name=f"both_{index}")(list(pair)))
        layers.append(ZeroPadding(name=f"layer_{index}")(words, mask=inputs["mask"]))
    pooled = MaskedPooling("mean", name="pooled")(layers[-1], mask=inputs["mask"])
    return keras.Model(inputs, {"layers": layers, "sequence": layers[-1], "pooled": pooled}, name="elmo_encoder")


def language_model(config: Config, vocabulary_size: int) -> keras.Model:
    """The bidirectional language model, with one full softmax for both directions.

    Peters et al. 2018, section 3.1. Trained on what `keras_ctxrep.text.pretraining.language_model_batch` makes.

    Args:
        config: sizes and dropout.
        vocabulary_size: words that can be predicted.

    Call: {"char_ids": int32 (B, T, W), "mask": int32 (B, T)}

    Returns: {"forward_logits", "backward_logits"}, each float32 (B, T+1, V): of w1 .. wn, </S> and of <S>, w1 .. wn.

    >>> language_model(SIZES["elmo_2x128_64_256cnn_1xhighway"], 100).output["forward_logits"].shape
    (None, None, 100)
    """
    inputs, streams = _bilm(config, config.dropout)
    width = config.projection or config.cells
    softmax = klayers.Dense(
        vocabulary_size, kernel_initializer=keras.initializers.RandomNormal(0, width**-0.5), name="softmax"
    )
    outputs = {}
    for direction, top in zip(("forward", "backward"), streams[-1], strict=True):
        # forward: every position but the last predicts the next one; backward: every one but the first the one before
        cropping = klayers.Cropping1D((0, 1) if direction == "forward" else (1, 0), name=f"{direction}_states")
        states = klayers.Dropout(config.dropout, name=f"{direction}_top_dropout")(cropping(top))
        outputs[f"{direction}_logits"] = klayers.Activation("linear", dtype="float32", name=f"{direction}_logits")(
            softmax(states)
        )
    return keras.Model(inputs, outputs, name="elmo_language_model")


def _bilm(config: Config, dropout: float):
    """Inputs, and for each layer the (forward, backward) pair of float32 (B, T+2, P)."""
    inputs = {
        "char_ids": keras.Input((None, config.max_characters), dtype="int32", name="char_ids"),
        "mask": keras.Input((None,), dtype="int32", name="mask"),
    }
    char_ids, mask = SentenceMarkers(name="sentence_markers")(inputs["char_ids"], mask=inputs["mask"])
    width = config.projection or config.cells
    tokens = CharCNN(
        config.filters,
        config.embedding_dim,
        config.highways,
        None if width == sum(number for _, number in config.filters) else width,
        config.activation,
        name="char_cnn",
    )(char_ids)
    streams = [(tokens, tokens)]
    for index in range(config.layers):
        pair = []
        for direction, x in zip(("forward", "backward"), streams[-1], strict=True):
            name = f"{direction}_{index}"
            if dropout:
                x = klayers.Dropout(dropout, name=f"{name}_dropout")(x)
            out = ProjectedLSTM(
                config.cells,
                config.projection if config.projection and config.projection < config.cells else None,
                config.cell_clip,
                config.projection_clip,
                go_backwards=direction == "backward",
                name=name,
            )(x, mask=mask)
            pair.append(klayers.Add(name=f"{name}_residual")([out, x]) if index and config.residual else out)
        streams.append(tuple(pair))
    return inputs, streams
