"""Task heads: functions that add the output layers of a task to any encoder, and the outputs of a signature."""

from numbers import Integral

import keras
from keras import layers as klayers
from keras import ops

from keras_ctxrep.layers import CRF, Dropout, MaskedPooling, ScalarMix, SpanPooling, TakePositions, ZeroPadding
from keras_ctxrep.layers.sentence import unit_length
from keras_ctxrep.layers.softmax import MASKED
from keras_ctxrep.models.model import Model

__all__ = ["answer", "classify", "coreference", "embed", "flat", "mixed", "mixes", "regress", "tag"]


def classify(
    encoder: keras.Model, classes: int, mix: bool = False, dropout: float = 0.1, l2: float = 0.0
) -> keras.Model:
    """Text classification: one logit for each class.

    Devlin et al. 2018, section 4.1, for `mix=False`: a dense layer over the pooled output. For `mix=True`, as Peters et
    al. 2018 use a biLM: a trained scalar mix of all layers, pooled by its mean and maximum over the tokens. Trained
    with softmax cross-entropy for a single label, or with a sigmoid per class for any number of labels.

    The model shares the encoder's layers: training it trains `encoder` unless `encoder.trainable = False`.

    Args:
        encoder: a model with the encoders' outputs.
        classes: number of classes, at least 1.
        mix: read a scalar mix of all layers instead of "pooled".
        dropout: before the dense layer.
        l2: on the weights of the mix.

    Call: as `encoder`.

    Returns: {"logits": float32 (B, C)}.

    Raises:
        ValueError: no class, or no "pooled" to read.

    >>> from keras_ctxrep.models import bert
    >>> classify(bert.encoder(bert.SIZES["bert_2_64_2"]), classes=3).output["logits"].shape
    (None, 3)
    """
    _check_classes(classes, 1)
    outputs = encoder_outputs(encoder)
    if mix:
        mixed = ScalarMix(l2, name="scalar_mix")(outputs["layers"])
        x = MaskedPooling("mean_max", name="pooling")(mixed, mask=_mask(encoder))
    elif "pooled" in outputs:
        x = outputs["pooled"]
    else:
        raise ValueError("this encoder gives no pooled output (its config has pooler=False); classify with mix=True")
    x = Dropout(dropout, name="head_dropout")(x)
    logits = klayers.Dense(classes, name="logits", dtype="float32")(x)
    return Model(encoder.input, {"logits": logits}, name="classifier")


def regress(encoder: keras.Model, **kwargs) -> keras.Model:
    """Regression: a number for a text or a pair, e.g. their similarity; `classify` with one output and no softmax.

    Devlin et al. 2018, section 4.1 (STS-B); trained with squared error.

    Args:
        encoder: a model with the encoders' outputs.
        kwargs: `mix`, `dropout` and `l2` as in `classify`.

    Returns: {"logits": float32 (B, 1)}, the number itself.

    >>> from keras_ctxrep.models import bert
    >>> regress(bert.encoder(bert.SIZES["bert_2_64_2"])).output["logits"].shape
    (None, 1)
    """
    return classify(encoder, 1, **kwargs)


def tag(
    encoder: keras.Model,
    classes: int,
    mix: bool = False,
    crf: bool = False,
    dropout: float = 0.1,
    l2: float = 0.0,
) -> keras.Model:
    """One label for each word.

    Devlin et al. 2018, section 5.3: a dense layer over the top layer at the first piece of each word, or at each word
    for encoders over words; over a language model in one direction at its last token, the first that has read the whole
    word. With `crf` the labels of a sentence are predicted jointly (Lample et al. 2016,
    https://arxiv.org/abs/1603.01360): train with `model.get_layer("crf").loss` on "logits".

    Args:
        encoder: a model with the encoders' outputs; its pooler, if any, is not part of the result.
        classes: number of labels, at least 2.
        mix: read a scalar mix of all layers instead of the top one.
        crf: a linear-chain CRF over the logits.
        dropout: before the dense layer.
        l2: on the weights of the mix.

    Call: as `encoder`; over tokens that are no words also {"starts": int32 (B, W)}, the position of each word's token
        that is read, 0 where there is none.

    Returns: {"logits": float32 (B, W, C)}, zero where there is no word; with `crf` also {"tags": int32 (B, W)}.

    Raises:
        ValueError: fewer than two classes.

    >>> from keras_ctxrep.models import bert
    >>> model = tag(bert.encoder(bert.SIZES["bert_2_64_2"]), classes=9)
    >>> sorted(model.input), model.output["logits"].shape
    (['mask', 'segment_ids', 'starts', 'token_ids'], (None, None, 9))
    """
    _check_classes(classes, 2)
    x = _tokens(encoder, mix, l2)
    inputs, mask = dict(encoder.input), _mask(encoder)
    if "token_ids" in inputs:
        starts = inputs["starts"] = keras.Input((None,), dtype="int32", name="starts")
        x = TakePositions(name="first_pieces")(x, starts)  # (B, W, D)
        mask = ops.cast(ops.greater(starts, 0), "int32")
    x = Dropout(dropout, name="head_dropout")(x)
    x = klayers.Dense(classes, name="logits", dtype="float32")(x)
    outputs = {"logits": ZeroPadding(name="logits_padding", dtype="float32")(x, mask=mask)}
    if crf:
        outputs["tags"] = CRF(name="crf", dtype="float32")(outputs["logits"], mask=mask)
    return Model(inputs, outputs, name="tagger")


def answer(encoder: keras.Model, mix: bool = False, dropout: float = 0.0, l2: float = 0.0) -> keras.Model:
    """Extractive question answering: logits of each token for the start and the end of the answer.

    Devlin et al. 2018, section 4.2: the logits are dot products of the top layer with a start and an end vector; with a
    bias, as in https://github.com/google-research/bert, run_squad.py.

    Args:
        encoder, mix, l2: as in `tag`.
        dropout: before the dense layer (none in the source).

    Call: as `encoder`.

    Returns: {"start_logits", "end_logits": float32 (B, T)}, -10,000 where the mask is 0.

    >>> from keras_ctxrep.models import bert
    >>> sorted(answer(bert.encoder(bert.SIZES["bert_2_64_2"])).output)
    ['end_logits', 'start_logits']
    """
    x = _tokens(encoder, mix, l2)
    if dropout:
        x = Dropout(dropout, name="head_dropout")(x)
    x = klayers.Dense(2, name="span_logits", dtype="float32")(x)  # (B, T, 2)
    x = ops.where(ops.cast(_mask(encoder), "bool")[..., None], x, MASKED)
    outputs = {
        f"{edge}_logits": klayers.Activation("linear", dtype="float32", name=f"{edge}_logits")(x[..., index])
        for index, edge in enumerate(("start", "end"))
    }
    return Model(encoder.input, outputs, name="answerer")


def coreference(
    encoder: keras.Model, units: int = 150, mix: bool = False, dropout: float = 0.1, l2: float = 0.0
) -> keras.Model:
    """Pronoun resolution: which of two marked names a marked pronoun refers to.

    Lee et al. 2017, https://arxiv.org/abs/1707.07045, reduced to one mention and two given candidates: a span is
    represented by its first token, its last token and an attention-weighted mean (section 4); a pair is scored by a
    feed-forward network of two layers over [g_i, g_j, g_i * g_j], and "no antecedent" has the score 0 (section 3). The
    mention scores and the distance and speaker features are left out.

    Args:
        encoder, mix, l2: as in `tag`.
        units: width of the feed-forward network's layers (150 in the source).
        dropout: on the tokens' vectors and in the feed-forward network.

    Call: as `encoder`, and {"marks": int32 (B, 3, 2)}: pronoun, A and B, as in `layers.MarkIndicator`.

    Returns: {"logits": float32 (B, 3)}, of A, of B and of neither.

    >>> from keras_ctxrep.models import bert
    >>> coreference(bert.encoder(bert.SIZES["bert_2_64_2"])).output["logits"].shape
    (None, 3)
    """
    inputs = dict(encoder.input)
    inputs["marks"] = keras.Input((3, 2), dtype="int32", name="marks")
    x = Dropout(dropout, name="head_dropout")(_tokens(encoder, mix, l2))
    spans = SpanPooling(name="spans")(x, inputs["marks"])  # (B, 3, 3 D)
    pronoun, names = ops.repeat(spans[:, :1], 2, axis=1), spans[:, 1:]  # (B, 2, 3 D)
    x = klayers.Concatenate(name="pairs")([pronoun, names, klayers.Multiply(name="pair_product")([pronoun, names])])
    for index in range(2):
        x = klayers.Dense(units, activation="relu", name=f"pair_{index}")(x)
        x = Dropout(dropout, name=f"pair_dropout_{index}")(x)
    scores = klayers.Dense(1, name="pair_score", dtype="float32")(x)[..., 0]  # (B, 2)
    logits = ops.pad(scores, ((0, 0), (0, 1)))
    return Model(inputs, {"logits": logits}, name="coreference")


def mixes(
    encoder: keras.Model,
    count: int = 1,
    dropout: float = 0.5,
    l2: float = 0.0,
    layer_norm: bool = False,
    top_only: bool = False,
    weights: list[float] | None = None,
) -> keras.Model:
    """Several scalar mixes of one encoder, as AllenNLP's `Elmo` has for a model's input and its output.

    Over an ELMo encoder with `keep_markers=True` the statistics of `layer_norm` include the sentence markers, as in
    AllenNLP, and the markers are removed afterwards; otherwise they are over words alone, as in bilm-tf.

    Args:
        encoder: a model with the encoders' outputs; `encoder.trainable = False` trains the mixes alone.
        count: number of mixes.
        dropout: on each mix (AllenNLP's default).
        l2, layer_norm, top_only, weights: as in `layers.ScalarMix`.

    Call: as `encoder`.

    Returns: {"mix_0", "mix_1", ...}, each float32 (B, T, D), zero where the mask is 0.

    >>> from keras_ctxrep.models import elmo
    >>> sorted(mixes(elmo.encoder(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"]), count=2).output)
    ['mix_0', 'mix_1']
    """
    outputs, mask = encoder_outputs(encoder), encoder.input["mask"]
    marked = outputs.get("mask")
    epsilon = 1e-12 if marked is None else 1e-13
    mixed = {}
    for index in range(count):
        name = f"mix_{index}"
        mix = ScalarMix(l2, layer_norm, top_only, weights, epsilon, name=f"scalar_{name}")
        x = mix(outputs["layers"], mask=mask if marked is None else marked)
        if marked is not None:
            x = x[:, 1:-1]
        x = ZeroPadding(carry_mask=True, name=f"padded_{name}")(x, mask=mask)
        mixed[name] = Dropout(dropout, name=name)(x)
    return Model(encoder.input, mixed, name="mixes")


def embed(encoder: keras.Model, pooling: str = "mean", normalize: bool = False, dims: int | None = None) -> keras.Model:
    """The encoder with a vector of the text as one more output.

    Reimers & Gurevych 2019, https://arxiv.org/abs/1908.10084, section 3: the mean of the top layer over all tokens, of
    a BERT [CLS] and [SEP] too, compares meanings better than a pooler that was trained on next sentences alone.

    Args:
        encoder: a model with the encoders' outputs.
        pooling: "mean", "max" or "cls" of the top layer, as in `layers.MaskedPooling`; or "pooler": its pooled output,
            of an encoder without one the mean.
        normalize: scale the vector to length 1.
        dims: cut the vector to its first numbers, before it is scaled; None: all.

    Call: as `encoder`.

    Returns: the encoder's outputs, and "vector": float32 (B, D), or (B, dims).

    Raises:
        ValueError: an unknown pooling, or the vector has fewer than `dims` numbers.

    >>> from keras_ctxrep.models import bert
    >>> embed(bert.encoder(bert.SIZES["bert_2_64_2"])).output["vector"].shape
    (None, 64)
    """
    outputs = encoder_outputs(encoder)
    width = outputs["sequence"].shape[-1]
    if dims is not None and not 0 < dims <= width:
        raise ValueError(f"dims={dims}: the vectors of this encoder have {width} numbers")
    cut = dims is not None and dims < width
    if pooling == "pooler" and "pooled" in outputs:
        vector = klayers.Activation("linear", name="vector", dtype="float32")(outputs["pooled"])
        vector = unit_length(vector) if normalize and not cut else vector
    else:
        how = "mean" if pooling == "pooler" else pooling
        pool = MaskedPooling(how, normalize and not cut, name="vector", dtype="float32")
        vector = pool(outputs["sequence"], mask=_mask(encoder))
    if cut:
        vector = vector[:, :dims]
        vector = unit_length(vector) if normalize else vector
    return Model(encoder.input, outputs | {"vector": vector}, name=encoder.name)


def mixed(encoder: keras.Model, l2: float = 0.0) -> keras.Model:
    """The encoder with a trained scalar mix of its layers as "sequence".

    Args:
        encoder: a model with the encoders' outputs.
        l2: on the weights of the mix.

    >>> from keras_ctxrep.models import bert
    >>> sorted(mixed(bert.encoder(bert.SIZES["bert_2_64_2"])).output)
    ['layers', 'pooled', 'sequence']
    """
    outputs = encoder_outputs(encoder)
    return Model(encoder.input, outputs | {"sequence": _tokens(encoder, True, l2)}, name=encoder.name)


def flat(outputs: dict) -> dict:
    """A model's outputs in the form of a signature: an encoder's layers as one tensor, float32 (B, N, T, D).

    >>> flat({"layers": [ops.ones((2, 3, 4))] * 5})["layers"].shape
    TensorShape([2, 5, 3, 4])
    """
    return {
        name: ops.stack(value, axis=1) if isinstance(value, list | tuple) else value for name, value in outputs.items()
    }


def encoder_outputs(model: keras.Model) -> dict:
    """The outputs of an encoder.

    Raises:
        ValueError: the model is no encoder.

    >>> from keras_ctxrep.models import static
    >>> sorted(encoder_outputs(static.encoder(static.Config(words=9, width=8))))
    ['layers', 'pooled', 'sequence']
    """
    outputs = model.output
    if not isinstance(outputs, dict) or "layers" not in outputs:
        raise ValueError(
            f"{model.name} is no encoder, whose outputs are layers and sequence: it gives "
            f"{', '.join(model.output_names)}; the encoder in it is load(NAME).encoder.keras_model, or "
            "saving.load_encoder(zoo.find(NAME)).model"
        )
    return outputs


def _check_classes(classes: int, least: int) -> None:
    if not isinstance(classes, Integral):
        raise TypeError(f"classes={classes!r}: the number of classes is needed; their names are `labels` of the bundle")
    if classes < least:
        raise ValueError(f"classes={classes}: at least {least}")


def _tokens(encoder: keras.Model, mix: bool, l2: float):
    """One vector per token: the top layer, or a trained mix of all."""
    outputs = encoder_outputs(encoder)
    return ScalarMix(l2, name="scalar_mix")(outputs["layers"]) if mix else outputs["sequence"]


def _mask(encoder: keras.Model):
    """The mask of the encoder's outputs, which with `keep_markers` have more positions than its inputs."""
    return encoder.output.get("mask", encoder.input["mask"])
