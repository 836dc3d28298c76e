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
        ValueError: fewer than two classes, or no "pooled" to read.

    >>> from keras_ctxrep.models import bert
    >>> classify(bert.encoder(bert.SIZES["bert_2_64_2"]), classes=3).output["logits"].shape
    (None, 3)
    """
    if classes < 2:
        raise ValueError(f"classes={classes}: a classifier needs at least two")
    outputs: dict = encoder.output
    if mix:
        mixed = ScalarMix(l2, name="scalar_mix")(outputs["layers"])
        x = MaskedPooling("mean_max", name="pooling")(mixed, mask=_mask(encoder))
    elif "pooled" in outputs:
        x = outputs["pooled"]
    else:
        raise ValueError("this encoder gives no pooled output (its config has pooler=False); classify with mix=True")
    x = klayers.Dropout(dropout, name="head_dropout")(x)
    logits = klayers.Dense(classes, name="logits", dtype="float32")(x)
    return keras.Model(encoder.input, {"logits": logits}, name="classifier")


def tag(encoder: keras.Model, classes: int, dropout: float = 0.1) -> keras.Model:
    """One label for each token.

    Devlin et al. 2018, section 5.3: a dense layer over the top layer.

    Args:
        encoder: a model with the encoders' outputs; a pooler in it is no part of the tagger.
        classes: number of labels, at least 2.
        dropout: before the dense layer.

    Call: as `encoder`.

    Returns: {"logits": float32 (B, T, C)}, zero where the mask is 0.

    Raises:
        ValueError: fewer than two classes.

    >>> from keras_ctxrep.models import bert
    >>> tag(bert.encoder(bert.SIZES["bert_2_64_2"]), classes=9).output["logits"].shape
    (None, None, 9)
    """
    if classes < 2:
        raise ValueError(f"classes={classes}: a tagger needs at least two")
    x = klayers.Dropout(dropout, name="head_dropout")(encoder.output["sequence"])
    x = klayers.Dense(classes, name="logits", dtype="float32")(x)
    logits = ZeroPadding(name="logits_padding", dtype="float32")(x, mask=_mask(encoder))
    return keras.Model(encoder.input, {"logits": logits}, name="tagger")


def answer(encoder: keras.Model) -> keras.Model:
    """The span of the text that answers a question: how well each token begins and ends it.

    Devlin et al. 2018, section 4.2: two vectors, of start and end, whose products with the top layer are the logits;
    with a bias, as in https://github.com/google-research/bert, run_squad.py.

    Args:
        encoder: a model with the encoders' outputs; a pooler in it is no part of the result.

    Call: as `encoder`.

    Returns: {"start_logits", "end_logits": float32 (B, T)}, -10,000 where the mask is 0.

    >>> from keras_ctxrep.models import bert
    >>> sorted(answer(bert.encoder(bert.SIZES["bert_2_64_2"])).output)
    ['end_logits', 'start_logits']
    """
    x = klayers.Dense(2, name="span_logits", dtype="float32")(encoder.output["sequence"])  # (B, T, 2)
    x = ops.where(ops.cast(_mask(encoder), "bool")[..., None], x, -1e4)
    return keras.Model(encoder.input, {"start_logits": x[..., 0], "end_logits": x[..., 1]}, name="answerer")


def by_task(encoder: keras.Model, task: str, classes: int = 0, **kwargs) -> keras.Model:
    """The head that a task's name stands for, or the encoder itself for "embed".

    Args:
        encoder: a model with the encoders' outputs.
        task: "classify", "tag", "answer" or "embed".
        classes: of a classifier or a tagger.
        kwargs: the head's other arguments.

    Raises:
        ValueError: no such task.

    >>> from keras_ctxrep.models import bert
    >>> by_task(bert.encoder(bert.SIZES["bert_2_64_2"]), "tag", classes=9).name
    'tagger'
    """
    if task == "embed":
        return encoder
    if task == "answer":
        return answer(encoder, **kwargs)
    if task not in ("classify", "tag"):
        raise ValueError(f"task {task!r}: embed, classify, tag or answer")
    return {"classify": classify, "tag": tag}[task](encoder, classes, **kwargs)


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
    return {
        name: ops.stack(value, axis=1) if isinstance(value, list | tuple) else value for name, value in outputs.items()
    }


def _mask(encoder: keras.Model):
    """Of the positions in the encoder's outputs, which have more than its inputs where markers are kept."""
    return encoder.output.get("mask", encoder.input["mask"])
