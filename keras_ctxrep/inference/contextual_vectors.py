"""Vectors of tokens in context: the layers of any model's encoder, sentence after sentence."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import keras
import numpy as np

from keras_ctxrep import saving
from keras_ctxrep.checks import of_kind
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Run
from keras_ctxrep.layers import ScalarMix
from keras_ctxrep.layers.initializers import no_random_weights
from keras_ctxrep.models import elmo
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.options import Embedding
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import CharacterFeatures, Reads, Row
from keras_ctxrep.text.tokens import Characters, read_vocab

__all__ = ["layer_count", "learned_mixes", "vectors", "vectors_and_pooled"]


def vectors(
    model: keras.Model,
    bundle: Bundle,
    sentences: Iterable[str],
    split: Callable[[str], Sequence[str]] | None = None,
    carry_state: bool = False,
    batch_size: int = 32,
    cache: str | Path | None = None,
    run: Run | None = None,
) -> Iterator[tuple[str, list[int], np.ndarray]]:
    """The layers of each sentence, in the order of the input.

    Args:
        model, bundle: of any task.
        sentences: read lazily, `batch_size` at a time.
        split: from a sentence to its words; BERT then gives one vector per word, that of its first piece, and otherwise
            one per piece, without [CLS] and [SEP].
        carry_state, batch_size, cache: as in `recipes.embed`.
        run: as in `keras_engine.runner`, of an encoder that is traced already.

    Returns: of each sentence itself, the numbers of its tokens that have a vector (BERT finds no piece in some words),
        and the vectors of those, float32 (N, T, D).

    Raises:
        ValueError: a sentence longer than a BERT reads, or an option that the model does not have.
    """
    options = Embedding(carry_state=carry_state, batch_size=batch_size, cache=cache)
    return (entry[:3] for entry in vectors_and_pooled(model, bundle, sentences, split, options, run))


def vectors_and_pooled(
    model: keras.Model,
    bundle: Bundle,
    sentences: Iterable[str],
    split: Callable[[str], Sequence[str]] | None,
    options: Embedding,
    run: Run | None = None,
) -> Iterator[tuple[str, list[int], np.ndarray, np.ndarray]]:
    """As `vectors`, with a vector of each sentence, (D,): the pooled output, or the mean of the top over the pieces."""
    features, layers_of = _layers(model, bundle, options.carry_state, options.cache, run)
    sentences, done = iter(sentences), 0
    while batch := list(islice(sentences, options.batch_size)):
        rows = features.encode([split(sentence) for sentence in batch] if split else batch)
        for number, (sentence, row) in enumerate(zip(batch, rows, strict=True), done + 1):
            if row.truncated:
                limit = f"longer than the {bundle.max_length} tokens this model reads"
                raise ValueError(f"sentence {number}: {limit}: {sentence[:60]!r} ...")
        done += len(batch)
        layers, pooled = layers_of(rows)  # (N, B, T, D)
        for index, (sentence, row) in enumerate(zip(batch, rows, strict=True)):
            positions = {number: at for number, at in enumerate(features.positions(row)) if at is not None}
            first, after = features.markers
            end = len(row) - after
            if split and features.by_first_token and options.pieces == "mean":
                edges = [*positions.values(), end]
                means = [layers[:, index, a:b].mean(1) for a, b in pairwise(edges)]
                vectors = np.stack(means, 1) if means else layers[:, index, :0]
            else:
                vectors = layers[:, index, [*positions.values()]]
            mean = layers[-1, index, first:end].mean(0) if end > first else np.zeros(layers.shape[-1])
            yield sentence, [*positions], vectors, mean if pooled is None else pooled[index]


def learned_mixes(model: keras.Model) -> dict[str, tuple[np.ndarray, float]]:
    """The weights of each scalar mix in a model, float32 (N,) with a sum of 1, and its gamma, by the layer's name."""
    return {layer.name: layer.learned() for layer in model.layers if isinstance(layer, ScalarMix)}


def layer_count(model: keras.Model, bundle: Bundle) -> int:
    """The number of layers that a model's encoder gives, the one without context among them."""
    return len(_encoder(model, bundle).output["layers"])


def _layers(model: keras.Model, bundle: Bundle, carry_state: bool, cache: str | Path | None, call: Run | None):
    """A model's features, and a function from rows to its encoder's layers, (N, B, T, D), and pooled output or None."""
    bundle = replace(bundle, reads=Reads())  # of a tagger too every piece has a vector
    features, numbers, table = bundle.features, {}, None
    bidirectional = "filters" in bundle.config
    if not bidirectional and (carry_state or cache is not None):
        raise ValueError("only a biLM carries a state and reads characters: leave out carry_state and cache")
    if FAMILIES[bundle.family].any_length:
        features = replace(bundle, max_length=sys.maxsize).features
    if cache is not None:
        error = f"cache {cache}: a model over words reads a table already; leave it out"
        features = of_kind(features, CharacterFeatures, error)
        listed = dict.fromkeys([*Characters.MARKERS, *read_vocab(cache)])
        numbers = {word: number for number, word in enumerate(listed, 1)}
        table = np.pad(elmo.token_vectors(model, features, numbers), ((1, 0), (0, 0)))
    if carry_state or numbers:
        encoder = elmo.encoder(elmo.Config(**bundle.config), carry_state=carry_state, cache=len(numbers))
    else:
        encoder = _encoder(model, bundle)
    if encoder is not model:
        copy_weights(model, encoder, skip=["token_cache"])
    if table is not None:
        encoder.get_layer("token_cache").set_weights([table])
    call = call or keras_engine.runner(encoder)
    state = np.zeros((0, encoder.input["state"].shape[-1] if carry_state else 0), np.float32)

    def run(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray | None]:
        nonlocal state
        batch, size = features.collate(rows), len(rows)
        if numbers:
            word_ids = np.zeros(batch["mask"].shape, np.int32)
            word_ids[batch["mask"].astype(bool)] = [numbers.get(word, 0) for row in rows for word in row.tokens]
            batch["word_ids"] = word_ids
        if carry_state:
            state = np.pad(state, ((0, max(0, size - len(state))), (0, 0)))  # more rows begin with zeros
            batch["state"] = state[:size].copy()
        outputs = call(batch)
        if carry_state:
            state[:size] = outputs["state"]  # the other rows keep theirs
        return np.moveaxis(outputs["layers"], 1, 0), outputs.get("pooled")

    return features, run


def _encoder(model: keras.Model, bundle: Bundle) -> keras.Model:
    """The model itself if it is an encoder; else a new one of its sizes, to which the weights are yet to be copied."""
    if "layers" in model.output:
        return model
    with no_random_weights():
        return saving.build(saving.encoder_bundle(model, bundle))
