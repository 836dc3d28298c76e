"""Vectors of sentences, and of their tokens in context, written to a file."""

import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np

from keras_ctxrep import zoo
from keras_ctxrep.atomic import atomic_write, reserve
from keras_ctxrep.checks import warn
from keras_ctxrep.inference.model import load
from keras_ctxrep.options import Embedding, keywords
from keras_ctxrep.tasks.answering import NO_WORDS
from keras_ctxrep.text.features import check_sentences

__all__ = ["embed"]


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
            `batch_size`. `engine` is that of `inference.model.load`, for "vector".

    Returns: the number of sentences.

    Raises:
        TypeError: there is no such option, or one string instead of sentences.
        ValueError: another file suffix, a sentence longer than a BERT reads, or an option that the model does not have.

    Warns:
        UserWarning: "mix" is asked of a model that has not learned one, or sentences were cut or have no words.
    """
    check_sentences(sentences)
    out = Path(out)
    if out.suffix not in (".npz", ".hdf5", ".h5"):
        raise ValueError(f"{out}: the name must end in .npz or .hdf5")
    if options.layers == "vector":
        return _write_vectors(folder, sentences, out, progress, options)
    from keras_ctxrep import saving
    from keras_ctxrep.inference.contextual_vectors import layer_count, learned_mixes, vectors_and_pooled

    model, bundle = saving.load(zoo.find(folder))
    weights, gamma = learned_mixes(model).get("scalar_mix", (None, 1.0))
    if options.layers == "mix" and weights is None:
        warnings.warn(f"{folder}: it has no trained scalar mix; the mean of its layers is used", stacklevel=2)
    numbers = None
    if options.layer_numbers is not None:
        numbers = _layer_numbers(options.layer_numbers, layer_count(model, bundle))
    split = str.split if options.words else None
    count = 0
    with atomic_write(out) as path, _array_writer(path) as write:
        for sentence, words, layers, pooled in vectors_and_pooled(model, bundle, sentences, split, options):
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
    encoder, sentences = load(folder, engine=options.engine), iter(sentences)
    zeros = np.zeros_like(encoder.encode(["a"])[0])
    count = cut = 0
    empty: list[int] = []
    with encoder.unread.warning("the sentences"), atomic_write(out) as path, _array_writer(path) as write:
        while batch := list(islice(sentences, options.batch_size)):
            for answer in encoder.encodings(batch):
                vector = zeros if "error" in answer else answer["vector"]
                write(str(count), np.asarray(vector, np.float32).astype(options.dtype))
                empty += [count] if "error" in answer else []
                count, cut = count + 1, cut + ("truncated" in answer)
                progress(count)
    if empty:
        warn(f"{len(empty):,} sentences have vectors of zeros, the first of them {empty[0]:,}: {NO_WORDS}")
    if cut:
        warn(f"{cut:,} sentences were longer than the model reads, and were cut")
    return count


def _layer_numbers(text: str, count: int) -> list[int]:
    """The layers of `options.Embedding.layer_numbers`, of so many, counted from 0."""
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
