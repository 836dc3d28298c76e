"""Task heads: functions that put a task on top of any encoder, and what a signature gives out."""

import keras
from keras import layers as klayers
from keras import ops

from keras_ctxrep.layers import MaskedPooling, ScalarMix, ZeroPadding


def classify(
    encoder: keras.Model, classes: int, mix: bool = False, dropout: float = 0.1, l2: float = 0.0
) -> keras.Model:
    """Text classification.

    Devlin et al. 2018, section 4.1, for `mix=False`: a dense layer over the pooled output. For `mix=True`, as Peters et
    al. 2018 use a biLM: a trained scalar mix of all layers, here with its mean and maximum over the tokens.

    The head is laid over the encoder's own tensors: training it trains `encoder` unless `encoder.trainable = False`.

    Args:
        encoder: a model with the encoders' outputs.
        classes: number of classes, at least 2.
        mix: read a scalar mix of all layers instead of "pooled".
        dropout: before the dense layer.
        l2: on the weights of the mix.

    Call: as `encoder`.

    Returns: {"logits": float32 (B, C)}.

    Raises:
        ValueError: fewer than two classes.

    >>> from keras_ctxrep.models import bert
    >>> classify(bert.encoder(bert.SIZES["bert_2_64_2"]), classes=3).output["logits"].shape
    (None, 3)
    """
    if classes < 2:
        raise ValueError(f"classes={classes}: a classifier needs at least two")
    outputs: dict = encoder.output
    if mix:
        mixed = ScalarMix(l2, name="scalar_mix")(outputs["layers"])
        x = MaskedPooling("mean_max", name="pooling")(mixed, mask=outputs.get("mask", encoder.input["mask"]))
    else:
        x = outputs["pooled"]
    x = klayers.Dropout(dropout, name="head_dropout")(x)
    logits = klayers.Dense(classes, name="logits", dtype="float32")(x)
    return keras.Model(encoder.input, {"logits": logits}, name="classifier")


def mixes(
    encoder: keras.Model,
    count: int = 1,
    dropout: float = 0.5,
    l2: float = 0.0,
    layer_norm: bool = False,
    top_only: bool = False,
    weights: list[float] | None = None,
) -> keras.Model:
    """Several scalar mixes from one pass of an encoder, as AllenNLP's `Elmo` gives for a model's input and its output.

    Over an ELMo encoder with `keep_markers=True` the statistics of `layer_norm` count the sentence markers, as
    AllenNLP's do, and the markers are taken off afterwards; else they are those of bilm-tf, over words alone.

    Args:
        encoder: a model with the encoders' outputs; `encoder.trainable = False` trains the mixes alone.
        count: number of mixes.
        dropout: on each mix (AllenNLP's default).
        l2, layer_norm, top_only, weights: as of `layers.ScalarMix`.

    Call: as `encoder`.

    Returns: {"mix_0", "mix_1", ...}, each float32 (B, T, D), zero where the mask is 0.

    >>> from keras_ctxrep.models import elmo
    >>> sorted(mixes(elmo.encoder(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"]), count=2).output)
    ['mix_0', 'mix_1']
    """
    outputs, mask = encoder.output, encoder.input["mask"]
    marked = outputs.get("mask")
    epsilon = 1e-12 if marked is None else 1e-13
    found = {}
    for index in range(count):
        name = f"mix_{index}"
        mix = ScalarMix(l2, layer_norm, top_only, weights, epsilon, name=f"scalar_{name}")
        x = mix(outputs["layers"], mask=mask if marked is None else marked)
        if marked is not None:
            x = klayers.Cropping1D(1, name=f"words_{name}")(x)
        x = ZeroPadding(name=f"padded_{name}")(x, mask=mask)
        found[name] = klayers.Dropout(dropout, name=name)(x)
    return keras.Model(encoder.input, found, name="mixes")


def flat(outputs: dict) -> dict:
    """A model's outputs as a signature gives them: an encoder's layers as one tensor, float32 (B, N, T, D).

    >>> flat({"layers": [ops.ones((2, 3, 4))] * 5})["layers"].shape
    TensorShape([2, 5, 3, 4])
    """
    return outputs | {"layers": ops.stack(outputs["layers"], axis=1)} if "layers" in outputs else outputs
