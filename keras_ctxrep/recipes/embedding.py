"""Vectors of sentences, and of their tokens in context, written to a file."""

import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import keras
import numpy as np

from keras_ctxrep import api, saving, zoo
from keras_ctxrep.atomic import atomic_write, reserve
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Run
from keras_ctxrep.layers import ScalarMix
from keras_ctxrep.models import elmo
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.options import Embedding, keywords
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import CharacterFeatures, Reads, Row, WordPieceFeatures, check_sentences
from keras_ctxrep.text.tokens import Characters, read_vocab

__all__ = ["embed", "learned_mixes", "vectors"]


@keywords(Embedding)
def embed(
    folder: str | Path,
    sentences: Iterable[str],
    out: str | Path,
    progress: Callable[[int], object] = lambda count: None,
    *,
    options: Embedding,
) -> int:
    """Writes the vectors of each sentence to a .npz or .hdf5 file, under "0", "1", ..., in the order of the input.

    Args:
        folder: a model of any task.
        sentences: one string each; read lazily.
        out: FILE.npz or FILE.hdf5, the layout of the published ELMo dumps.
        progress: called with the number of sentences written.
        options: or its fields as keywords. `layers` is "vector": that of `Model.encode`, (D,); a sentence without words
            has zeros, and one longer than the model reads is cut. It is the default, unless `words`, `layer_numbers`,
            `carry_state` or `cache` is given, which are of tokens: then it is "all", (N, T, D). "mix": the scalar mix
            of the layers, trained or else the mean, (T, D); "top": (T, D); "mean": the mean of the mix over the tokens,
            (D,); "pooled": the pooled output, or without a pooler the mean of the top layer over the pieces, (D,). With
            `words` BERT gives one vector per word, else one per piece, without [CLS] and [SEP]. With `carry_state` each
            sentence begins where the one `batch_size` before it ended, as in bilm-tf and AllenNLP: sentence k of a
            batch belongs to row k, and a shorter batch continues the first rows; without it no figure depends on
            `batch_size`.

    Returns: the number of sentences.

    Raises:
        TypeError: there is no such option, or one string instead of sentences.
        ValueError: another file suffix, a sentence longer than a BERT reads, or an option that the model does not have.

    Warns:
        UserWarning: "mix" is asked of a model that has not learned one, or sentences were cut.
    """
    check_sentences(sentences)
    out = Path(out)
    if out.suffix not in (".npz", ".hdf5", ".h5"):
        raise ValueError(f"{out}: the name must end in .npz or .hdf5")
    if options.layers == "vector":
        return _write_vectors(folder, sentences, out, progress, options)
    model, bundle = saving.load(zoo.find(folder))
    weights, gamma = learned_mixes(model).get("scalar_mix", (None, 1.0))
    if options.layers == "mix" and weights is None:
        warnings.warn(f"{folder}: it has no trained scalar mix; the mean of its layers is used", stacklevel=2)
    numbers = _layer_numbers(options.layer_numbers, model, bundle)
    split = str.split if options.words else None
    count = 0
    with atomic_write(out) as path, _array_writer(path) as write:
        for sentence, words, layers, pooled in _vectors(model, bundle, sentences, split, options):
            if split and len(words) < len(split(sentence)):
                raise ValueError(f"sentence {count + 1}: a word without pieces: {sentence[:60]!r}")
            if options.layers == "pooled":
                array = pooled
            else:
                array = _selected(layers if numbers is None else layers[numbers], str(options.layers), weights, gamma)
            write(str(count), array.astype(options.dtype))
            count += 1
            progress(count)
    return count


def _write_vectors(
    folder: str | Path, sentences: Iterable[str], out: Path, progress: Callable[[int], object], options: Embedding
) -> int:
    """As `embed`, one vector of each sentence."""
    encoder, sentences = api.load(folder), iter(sentences)
    zeros = np.zeros_like(encoder.encode(["a"])[0])
    count = cut = 0
    with atomic_write(out) as path, _array_writer(path) as write:
        while batch := list(islice(sentences, options.batch_size)):
            for answer in encoder.encodings(batch):
                write(str(count), np.asarray(answer.get("vector", zeros), np.float32).astype(options.dtype))
                count, cut = count + 1, cut + ("truncated" in answer)
                progress(count)
    if cut:
        warnings.warn(f"{cut:,} sentences were longer than the model reads, and were cut", stacklevel=4)
    return count


def _layer_numbers(text: str | None, model: keras.Model, bundle: Bundle) -> list[int] | None:
    """The layers of `options.Embedding.layer_numbers`, counted from 0."""
    if text is None:
        return None
    count = len(_encoder(model, bundle).output["layers"])
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"layer_numbers={text!r}: write numbers with commas between them, e.g. 0,-1") from None
    if wrong := [number for number in numbers if not -count <= number < count]:
        raise ValueError(f"layer_numbers={text!r}: no layer {wrong[0]}; this encoder has 0 to {count - 1}")
    return [number % count for number in numbers]


def _selected(vectors: np.ndarray, layers: str, weights: np.ndarray | None, gamma: float) -> np.ndarray:
    """The array that `embed` writes of a sentence's layers (N, T, D)."""
    if layers == "all":
        return vectors
    if layers == "top":
        return vectors[-1]
    mixed = vectors.mean(0) if weights is None else gamma * np.tensordot(weights, vectors, 1)
    if layers == "mix":
        return mixed
    return mixed.mean(0) if len(mixed) else np.zeros(mixed.shape[-1])


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
        carry_state, batch_size, cache: as of `embed`.
        run: as of `keras_engine.runner`, of an encoder that is traced already.

    Returns: of each sentence itself, the numbers of its tokens that have a vector (BERT finds no piece in some words),
        and the vectors of those, float32 (N, T, D).

    Raises:
        ValueError: a sentence longer than a BERT reads, or an option that the model does not have.
    """
    options = Embedding(carry_state=carry_state, batch_size=batch_size, cache=cache)
    return (entry[:3] for entry in _vectors(model, bundle, sentences, split, options, run))


def _vectors(
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
            pieces = isinstance(features, WordPieceFeatures)
            first, end = (1, len(row) - 1) if pieces else (0, len(row))  # without [CLS] and [SEP]
            if split and pieces and options.pieces == "mean":
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


def _layers(model: keras.Model, bundle: Bundle, carry_state: bool, cache: str | Path | None, call: Run | None):
    """A model's features, and a function from rows to its encoder's layers, (N, B, T, D), and pooled output or None."""
    bundle = replace(bundle, reads=Reads())  # of a tagger too every piece has a vector
    features, numbers, table = bundle.features, {}, None
    recurrent = "cells" in bundle.config
    if not recurrent and (carry_state or cache is not None):
        raise ValueError("only a biLM carries a state and reads characters: leave out carry_state and cache")
    if recurrent:
        features = replace(bundle, max_length=sys.maxsize).features  # it has no limit of positions
    if cache is not None:
        if not isinstance(features, CharacterFeatures):
            raise ValueError(f"cache {cache}: a model over words reads a table already; leave it out")
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
    return model if "layers" in model.output else saving.build(saving.encoder_bundle(model, bundle))


@contextmanager
def _array_writer(path: Path) -> Iterator[Callable[[str, np.ndarray], None]]:
    """A function that writes arrays one by one into a .npz or an hdf5 file, by the suffix."""
    if path.suffix != ".npz":
        import h5py

        size = 1 << 16

        with h5py.File(path, "w") as arrays:

            def write(name: str, array: np.ndarray) -> None:
                nonlocal size
                size += array.nbytes + 1024  # HDF5's own part of an array is less
                reserve(path, size)
                arrays[name] = array

            yield write
        return
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:

        def write(name: str, array: np.ndarray) -> None:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array))

        yield write
