"""ELMo: the bidirectional language model over characters, and the encoder it pretrains.

Peters et al. 2018, https://arxiv.org/abs/1802.05365; reference implementation https://github.com/allenai/bilm-tf.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import keras
import numpy as np
from keras import layers as klayers
from keras import ops

from keras_ctxrep import checks
from keras_ctxrep.checks import Depth, Fraction, Range, Size, check_config
from keras_ctxrep.layers import (
    CharCNN,
    Dropout,
    Embedding,
    MaskedPooling,
    ProjectedLSTM,
    SentenceMarkers,
    VocabularySoftmax,
    ZeroPadding,
)
from keras_ctxrep.models.model import Model
from keras_ctxrep.text.features import CharacterFeatures

__all__ = ["SIZES", "Config", "encoder", "forward_language_model", "language_model", "state_width", "token_vectors"]


@dataclass(frozen=True)
class Config:
    """Sizes of a biLM; the defaults are those of the original model.

    Raises:
        ValueError: a value is of the wrong type or out of range.
    """

    cells: Size = 4096  # width of each LSTM cell
    projection: Size | None = 512  # width of the token layer and of each direction's output; None: that of the cells
    layers: Depth = 2  # LSTM layers in each direction
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    residual: bool = True  # from the second layer on, the layer's input is added to its output
    # (characters, filters)
    filters: tuple[tuple[Size, Size], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    embedding_dim: Size = 16  # width of a character vector
    highways: Annotated[int, Range(0, 64)] = 2
    activation: str = "relu"  # of the character convolutions
    max_characters: Annotated[int, Range(3, 1000)] = 50  # ids per word: begin, up to 48 bytes, end
    dropout: Fraction = 0.1  # on the input of every LSTM layer and before the softmax, while training
    # rows of a word embedding that is used instead of characters; 0: characters
    words: Annotated[int, Range(0, 1 << 31)] = 0

    def __post_init__(self):
        checks.check(self)
        if self.activation not in ("relu", "tanh"):
            raise ValueError(f"activation={self.activation!r}: relu or tanh")
        if self.width > self.cells:
            raise ValueError(f"projection={self.projection}, cells={self.cells}: no wider than the cells")

    @property
    def width(self) -> int:
        """Width of the token layer and of each direction."""
        return self.projection or self.cells


_SMALL = ((1, 32), (2, 32), (3, 64), (4, 64), (5, 64))
_MEDIUM = (*_SMALL[:3], (4, 128), (5, 256))

# Published sizes under their published names, and two small ones for small corpora.
SIZES = {
    "elmo_2x128_64_256cnn_1xhighway": Config(cells=128, projection=64, filters=_SMALL, highways=1, max_characters=32),
    "elmo_2x512_128_512cnn_1xhighway": Config(cells=512, projection=128, filters=_MEDIUM, highways=1),
    "elmo_2x1024_128_2048cnn_1xhighway": Config(cells=1024, projection=128, highways=1),
    "elmo_2x2048_256_2048cnn_1xhighway": Config(cells=2048, projection=256, highways=1),
    "elmo_2x4096_512_2048cnn_2xhighway": Config(),
}


def encoder(
    config: Config, dropout: float = 0.0, carry_state: bool = False, keep_markers: bool = False, cache: int = 0
) -> keras.Model:
    """Contextual word vectors from characters, or from words.

    Stateless: a sentence has the same vectors in any batch. The sentence markers are added and removed internally.

    Args:
        config: sizes.
        dropout: on the input of every LSTM layer while training (the published encoder has none).
        carry_state: continue from the state of the previous batch, as the reference does. The state is an additional
            input and output, "state", float32 (B, S), initially zeros.
        keep_markers: keep the vectors of <S> and </S>; the outputs then have T+2 positions instead of T, and their mask
            is an additional output, "mask".
        cache: rows of a table of token vectors from `token_vectors`: the layer "token_cache", whose row 0 is zero, rows
            1 and 2 are <S> and </S>, and the others words. An additional input, "word_ids", int32 (B, T), has the row
            of each word, or 0 to compute the vector from the characters.

    Call: {"char_ids": int32 (B, T, W), "mask": int32 (B, T)}; of a model over words {"word_ids": int32 (B, T), "mask"}.

    Returns: {"layers": N x float32 (B, T, 2 P), layer 0 being the context-free token layer twice;
        "sequence": the top layer; "pooled": float32 (B, 2 P), the mean of the top layer over the real words}.

    Raises:
        ValueError: `cache` for a model over words, which has no character encoder.

    >>> model = encoder(SIZES["elmo_2x128_64_256cnn_1xhighway"])
    >>> from keras_ctxrep.text.features import CharacterFeatures
    >>> out = model(CharacterFeatures(max_characters=32)(["Contextual vectors"]))
    >>> len(out["layers"]), out["sequence"].shape
    (3, TensorShape([1, 2, 128]))
    """
    inputs = _inputs(config)
    ids, marked = SentenceMarkers(name="sentence_markers")(inputs[_ids(config)], mask=inputs["mask"])
    state = None
    if carry_state:
        state = inputs["state"] = keras.Input((state_width(config),), name="state")
    tokens = _cached_tokens(config, ids, inputs, cache) if cache else _token_layer(config)(ids)
    if carry_state or keep_markers:
        pairs, end = _stack(config, dropout, (tokens, tokens), marked, state=state)
        crop = {"forward": (1, 1), "backward": (1, 1)}
    else:
        pairs, end = _stack(config, dropout, *_needed(tokens, marked))
        crop = {"forward": (1, 0), "backward": (0, 1)}
    layers, words = _outputs(pairs, crop, inputs["mask"], marked if keep_markers else None)
    pooled = MaskedPooling("mean", name="pooled")(words[-1], mask=inputs["mask"])
    outputs = {"layers": layers, "sequence": layers[-1], "pooled": pooled}
    outputs |= {"mask": marked} if keep_markers else {}
    outputs |= {"state": end} if carry_state else {}
    return Model(inputs, outputs, name="elmo_encoder")


def _cached_tokens(config: Config, ids, inputs: dict, cache: int):
    """Token vectors from a table where it has the word, float32 (B, T+2, P)."""
    if config.words:
        raise ValueError(f"cache={cache}: a model over words reads a table already")
    inputs["word_ids"] = keras.Input((None,), dtype="int32", name="word_ids")
    known, _ = SentenceMarkers(name="cached_markers")(inputs["word_ids"], mask=inputs["mask"])
    others = ids * ops.cast(ops.equal(known, 0), "int32")[:, :, None]  # 0, no word, where the table has the word
    table = klayers.Embedding(cache + 1, config.width, "zeros", trainable=False, name="token_cache")
    return klayers.Add(name="tokens")([_token_layer(config)(others), table(known)])


def _outputs(pairs, crop: dict, mask, marked):
    """The output layers, with the markers if their mask `marked` is given, and the layers of the words alone."""
    layers, words = [], []
    for index, pair in enumerate(pairs):
        ways = zip(crop, pair, strict=True)
        cropped = [klayers.Cropping1D(crop[way], name=f"{way}_words_{index}")(x) for way, x in ways]
        both = klayers.Concatenate(name=f"words_{index}")(cropped)
        words.append(ZeroPadding(carry_mask=True, name=f"layer_{index}")(both, mask=mask))
        if marked is not None:
            both = klayers.Concatenate(name=f"both_{index}")(list(pair))
            layers.append(ZeroPadding(carry_mask=True, name=f"marked_{index}")(both, mask=marked))
        else:
            layers.append(words[-1])
    return layers, words


def token_vectors(
    model: keras.Model, features: CharacterFeatures, words: Iterable[str], batch_size: int = 256
) -> np.ndarray:
    """The context-free vectors of words, for the table of an `encoder` with `cache`.

    Args:
        model: any biLM over characters.
        features: the features of the model.
        words: any words; "<S>" and "</S>" are the sentence markers.
        batch_size: words per batch.

    Returns: float32 (words, P).

    >>> config = SIZES["elmo_2x128_64_256cnn_1xhighway"]
    >>> words = ["<S>", "</S>", "the", "of"]
    >>> model = encoder(config, cache=len(words))
    >>> table = token_vectors(model, CharacterFeatures(max_characters=32), words)
    >>> model.get_layer("token_cache").set_weights([np.pad(table, ((1, 0), (0, 0)))])
    >>> table.shape
    (4, 64)
    """
    layer, words = model.get_layer("char_cnn"), list(words)
    parts = [np.zeros((0, layer.projection or sum(number for _, number in layer.filters)), np.float32)]
    for begin in range(0, len(words), batch_size):
        ids = features.characters(words[begin : begin + batch_size])
        parts.append(ops.convert_to_numpy(layer(ids[None])[0]).astype(np.float32))
    return np.concatenate(parts)


def state_width(config: Config) -> int:
    """Size of the carried state of one row: the output and the cell of each layer and direction.

    >>> state_width(SIZES["elmo_2x4096_512_2048cnn_2xhighway"])
    18432
    """
    return 2 * config.layers * (config.width + config.cells)


def language_model(
    config: Config, vocabulary_size: int, samples: int | None = None, streams: int | None = None
) -> keras.Model:
    """The bidirectional language model, with one softmax for both directions.

    Peters et al. 2018, section 3.1. Without `streams` it is stateless and reads whole sentences, batches of
    `keras_ctxrep.text.pretraining.language_model_batch`. With `streams` it reads BPTT segments, batches of
    `keras_ctxrep.text.pretraining.stream_batch`, and each continues the previous one: the published training, by
    truncated back-propagation through time. The layers have the same names in all cases.

    Args:
        config: sizes and dropout.
        vocabulary_size: number of words that can be predicted.
        samples: words the softmax draws per step, 8192 in the published model; the true words are then inputs too,
            "forward_targets" and "backward_targets", and the label of every position is 0. None: the full softmax.
        streams: rows of each batch, over all replicas.

    Call: {"char_ids": int32 (B, T, W), "mask": int32 (B, T)}; with `streams` also "char_ids_reverse", int32 (B, T, W).

    Returns: {"forward_logits", "backward_logits"}. Sentences: float32 (B, T+1, V), of w1 .. wn, </S> and of
        <S>, w1 .. wn. Streams: float32 (B, T, V), of the word after each and of the word before each (of the reversed
        text). With `samples`, 1 + `samples` instead of V.

    >>> language_model(SIZES["elmo_2x128_64_256cnn_1xhighway"], 100).output["forward_logits"].shape
    (None, None, 100)
    """
    inputs = _inputs(config)
    ids = _ids(config)
    token_layer = _token_layer(config)
    if streams is None:
        marked, mask = SentenceMarkers(name="sentence_markers")(inputs[ids], mask=inputs["mask"])
        tokens, mask = _needed(token_layer(marked), mask)
    else:
        mask = inputs["mask"]
        inputs[f"{ids}_reverse"] = keras.Input(inputs[ids].shape[1:], dtype="int32", name=f"{ids}_reverse")
        # one call for both directions, since each distinct word is computed once per call
        both = klayers.Concatenate(axis=1, name="both_directions")([inputs[ids], inputs[f"{ids}_reverse"]])
        tokens = ops.split(token_layer(both), 2, axis=1)
    tops, _ = _stack(config, config.dropout, tokens, mask, streams=streams)
    softmax = VocabularySoftmax(vocabulary_size, samples, name="softmax")
    outputs = {}
    for direction, x in zip(("forward", "backward"), tops[-1], strict=True):
        x = Dropout(config.dropout, name=f"{direction}_top_dropout")(x)
        targets, name = {}, f"{direction}_targets"
        if samples:
            targets["targets"] = inputs[name] = keras.Input((None,), dtype="int32", name=name)
        name = f"{direction}_logits"
        outputs[name] = klayers.Activation("linear", dtype="float32", name=name)(softmax(x, **targets))
    return Model(inputs, outputs, name="elmo_language_model")


def forward_language_model(config: Config, vocabulary_size: int, bilm: keras.Model | None = None) -> keras.Model:
    """The forward half of the biLM, as a language model in one direction: the probability of each word, given those
    before it in its sentence.

    Its layers have the names of `language_model`, and its logits are that model's "forward_logits", read in parts of
    any length: with <S> as its first word, and the state of zeros, at the beginning of each sentence.

    Args:
        config, vocabulary_size: as in `language_model`.
        bilm: the `language_model`, without `streams`, whose forward half it is: its own token layer and softmax, and
            copies of its LSTMs, which Keras does not let give their state in one of two models alone. None: random
            weights.

    Call: {"char_ids": int32 (B, T, W), or of a model over words "word_ids": int32 (B, T); "mask": int32 (B, T), the
        real words first; "state": float32 (B, S)}.

    Returns: {"logits": float32 (B, T, V), of the word after each; "state": float32 (B, S), after the last real word}.

    >>> model = forward_language_model(SIZES["elmo_2x128_64_256cnn_1xhighway"], 100)
    >>> model.output["logits"].shape, model.output["state"].shape
    ((None, None, 100), (None, 384))
    """
    inputs = _inputs(config)
    inputs["state"] = keras.Input((state_width(config) // 2,), name="state")
    existing = {} if bilm is None else {layer.name: layer for layer in bilm.layers}

    def own(layer):
        return existing.get(layer.name, layer)

    x, size, ends = own(_token_layer(config))(inputs[_ids(config)]), config.width + config.cells, []
    for index in range(config.layers):
        state = inputs["state"][:, index * size : (index + 1) * size]
        layer = _lstm(config, "forward", index)
        out, end = layer(x, mask=inputs["mask"], state=state)
        if bilm is not None:
            layer.set_weights(bilm.get_layer(layer.name).get_weights())
        x = _residual(config, "forward", index, x, out)
        ends.append(ops.cast(end, "float32"))
    logits = own(VocabularySoftmax(vocabulary_size, name="softmax"))(x)
    logits = klayers.Activation("linear", dtype="float32", name="logits")(logits)
    state = ends[0] if len(ends) == 1 else ops.concatenate(ends, axis=1)
    return Model(inputs, {"logits": logits, "state": state}, name="forward_language_model")


def _ids(config: Config) -> str:
    return "word_ids" if config.words else "char_ids"


def _inputs(config: Config) -> dict:
    check_config(config, Config, SIZES)
    shape = (None,) if config.words else (None, config.max_characters)
    return {
        _ids(config): keras.Input(shape, dtype="int32", name=_ids(config)),
        "mask": keras.Input((None,), dtype="int32", name="mask"),
    }


def _token_layer(config: Config) -> keras.layers.Layer:
    """Ids -> context-free token vectors, float32 (B, T, P)."""
    if config.words:  # id 0 is no word
        return Embedding(config.words + 1, config.width, name="word_embedding")
    projection = None if config.width == sum(number for _, number in config.filters) else config.width
    sizes = config.filters, config.embedding_dim, config.highways, projection
    return CharCNN(*sizes, config.activation, name="char_cnn")


def _needed(tokens, mask):
    """The (forward, backward) inputs, float32 (B, T+1, P), and the mask of both, from sentences with markers.

    No output depends on the forward LSTM's step on </S> or the backward LSTM's step on <S>, so these are cropped.
    """
    forward = klayers.Cropping1D((0, 1), name="forward_tokens")(tokens)
    backward = klayers.Cropping1D((1, 0), name="backward_tokens")(tokens)
    return (forward, backward), mask[:, 1:]


def _stack(config: Config, dropout: float, tokens, mask, streams=None, state=None):
    """The (forward, backward) pair of float32 (B, T, P) of each layer, token layer first, and the final state.

    With `streams` the backward input is already reversed, and both directions read from left to right.
    """
    pairs, ends = [tuple(tokens)], []
    size = config.width + config.cells
    for index in range(config.layers):
        pair = []
        for direction, x in zip(("forward", "backward"), pairs[-1], strict=True):
            name = f"{direction}_{index}"
            if dropout:
                x = Dropout(dropout, name=f"{name}_dropout")(x)
            layer = _lstm(config, direction, index, streams)
            if state is None:
                out = layer(x, mask=mask)
            else:
                out, end = layer(x, mask=mask, state=state[:, len(ends) * size : (len(ends) + 1) * size])
                ends.append(end)
            pair.append(_residual(config, direction, index, x, out))
        pairs.append(tuple(pair))
    return pairs, klayers.Concatenate(name="end_state")(ends) if ends else None


def _lstm(config: Config, direction: str, index: int, streams: int | None = None) -> ProjectedLSTM:
    width, clip = (config.width, config.projection_clip) if config.width < config.cells else (None, None)
    sizes, back = (config.cells, width, config.cell_clip, clip), direction == "backward" and not streams
    return ProjectedLSTM(*sizes, go_backwards=back, streams=streams, name=f"{direction}_{index}")


def _residual(config: Config, direction: str, index: int, x, out):
    """What a layer gives, with its input added from the second layer on."""
    if not index or not config.residual:
        return out
    return klayers.Add(name=f"{direction}_{index}_residual")([out, x])
