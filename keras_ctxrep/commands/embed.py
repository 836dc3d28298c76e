"""`ctxrep embed`: vectors of sentences, and of their tokens in context, written to a file."""

import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_ctxrep import options
from keras_ctxrep.checks import warn
from keras_ctxrep.commands.command import FOLDER, Command, argument, function, in_python
from keras_ctxrep.commands.printing import print_line, progress_bar, read_sentences
from keras_ctxrep.options import AnyPath

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Embed", "embed"]


class _Source(str):
    """The name of a text file, of standard input or of a data set on the command line."""

    def sentences(self) -> Iterable[str]:
        from keras_ctxrep import tasks
        from keras_ctxrep.recipes.reading import TFDS, read_unlabelled

        if not self.startswith(TFDS):
            return read_sentences(self)
        return (example.text for _, example in read_unlabelled(tasks.get("classify"), self))


@dataclass(frozen=True)
class Embed(options.Embedding, Command[int]):
    """Write the vectors of sentences to a file.

    One sentence a line in; one array per sentence out, under '0', '1', ...: by --layers

      vector  (width,)                 the vector of the text, as the model card describes it: the default
      all     (layers, tokens, width)  every layer, from 0, without context, to the top; --layer-numbers chooses
      mix     (tokens, width)          the sum of the layers by trained weights, without such their mean
      top     (tokens, width)          the last layer
      mean    (width,)                 the mean of the mix over the tokens: a vector of the sentence
      pooled  (width,)                 BERT's pooler, or the mean of the top layer

    With --words, --layer-numbers, --carry-state or --cache it is all, the layout of published ELMo files.
    Tokens are words (ELMo, static vectors) or word pieces without markers (BERT; --words: words). All layers of
    many sentences are large: --layers mix or top, --layer-numbers and --dtype float16 write less.

    Notes:
        In Python, `sentences` are strings, read lazily. A sentence without words has a vector of zeros, and one longer
        than the model reads is cut. With `carry_state` each sentence begins where the one `batch_size` before it ended,
        as in bilm-tf and AllenNLP: sentence k of a batch belongs to row k, and a shorter batch continues the first
        rows; without it no figure depends on `batch_size`.

    Returns: the number of sentences.

    Raises:
        TypeError: there is no such option, or one string instead of sentences.
        ValueError: another file suffix, a sentence longer than a BERT reads, or an option that the model does not have.

    Warns:
        UserWarning: "mix" is asked of a model that has not learned one, or sentences were cut or have no words.
    """

    tensorflow = "folder"
    folder: AnyPath = argument(f"published  {FOLDER}")
    sentences: Any = argument(
        "--input FILE  a text file, - for standard input, or tfds:NAME:SPLIT: the first text of each row", parse=_Source
    )
    out: AnyPath = argument("--out FILE writes  FILE.npz or FILE.hdf5")
    progress: Callable[[int], object] = in_python(lambda count: None)

    def main(self) -> None:
        with progress_bar("embedding", "sentences") as progress:
            count = replace(self, progress=progress).run()
        print_line(f"{self.out}: {count} sentences")

    def run(self) -> int:
        from keras_ctxrep.text.features import check_sentences

        sentences = self.sentences.sentences() if isinstance(self.sentences, _Source) else self.sentences
        check_sentences(sentences)
        out = Path(self.out)
        if out.suffix not in (".npz", ".hdf5", ".h5"):
            raise ValueError(f"{out}: the name must end in .npz or .hdf5")
        return self._write_vectors(sentences, out) if self.layers == "vector" else self._write_layers(sentences, out)

    def _write_layers(self, sentences: Iterable[str], out: Path) -> int:
        from keras_ctxrep import saving, zoo
        from keras_ctxrep.atomic import atomic_write
        from keras_ctxrep.inference.contextual_vectors import layer_count, learned_mixes, vectors_and_pooled

        model, bundle = saving.load(zoo.find(self.folder))
        weights, gamma = learned_mixes(model).get("scalar_mix", (None, 1.0))
        if self.layers == "mix" and weights is None:
            warn(f"{self.folder}: it has no trained scalar mix; the mean of its layers is used")
        numbers = None
        if self.layer_numbers is not None:
            numbers = _layer_numbers(self.layer_numbers, layer_count(model, bundle))
        split = str.split if self.words else None
        count = 0
        with atomic_write(out) as path, _array_writer(path) as write:
            for sentence, words, layers, pooled in vectors_and_pooled(model, bundle, sentences, split, self):
                if split and len(words) < len(split(sentence)):
                    raise ValueError(f"sentence {count + 1}: a word without pieces: {sentence[:60]!r}")
                if self.layers == "pooled":
                    array = pooled
                else:
                    array = _select(layers if numbers is None else layers[numbers], str(self.layers), weights, gamma)
                write(str(count), array.astype(self.dtype))
                count += 1
                self.progress(count)
        return count

    def _write_vectors(self, sentences: Iterable[str], out: Path) -> int:
        """Writes one vector of each sentence."""
        import numpy as np

        from keras_ctxrep.atomic import atomic_write
        from keras_ctxrep.inference.model import load
        from keras_ctxrep.tasks.answering import NO_WORDS

        encoder, sentences = load(self.folder, engine=self.engine), iter(sentences)
        zeros = np.zeros_like(encoder.encode(["a"])[0])
        count = cut = 0
        empty: list[int] = []
        with encoder.unread.warning("the sentences"), atomic_write(out) as path, _array_writer(path) as write:
            while batch := list(islice(sentences, self.batch_size)):
                for answer in encoder.encodings(batch, role=self.role):
                    vector = zeros if "error" in answer else answer["vector"]
                    write(str(count), np.asarray(vector, np.float32).astype(self.dtype))
                    empty += [count] if "error" in answer else []
                    count, cut = count + 1, cut + ("truncated" in answer)
                    self.progress(count)
        if empty:
            warn(f"{len(empty):,} sentences have vectors of zeros, the first of them {empty[0]:,}: {NO_WORDS}")
        if cut:
            warn(f"{cut:,} sentences were longer than the model reads, and were cut")
        return count


embed = function(Embed, "embed")


def _layer_numbers(text: str, count: int) -> list[int]:
    """The layers of `options.Embedding.layer_numbers`, of so many, counted from 0."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"layer_numbers={text!r}: write numbers with commas between them, e.g. 0,-1") from None
    if wrong := [number for number in numbers if not -count <= number < count]:
        raise ValueError(f"layer_numbers={text!r}: no layer {wrong[0]}; this encoder has 0 to {count - 1}")
    return [number % count for number in numbers]


def _select(vectors: "np.ndarray", layers: str, weights: "np.ndarray | None", gamma: float) -> "np.ndarray":
    """The array that `embed` writes of a sentence's layers (N, T, D)."""
    import numpy as np

    if layers == "all":
        return vectors
    if layers == "top":
        return vectors[-1]
    mixed = vectors.mean(0) if weights is None else gamma * np.tensordot(weights, vectors, 1)
    if layers == "mix":
        return mixed
    return mixed.mean(0) if len(mixed) else np.zeros(mixed.shape[-1])


@contextmanager
def _array_writer(path: Path) -> Iterator[Callable[[str, "np.ndarray"], None]]:
    """A function that writes arrays one by one into a .npz or an hdf5 file, by the suffix."""
    import numpy as np

    if path.suffix != ".npz":
        import h5py

        from keras_ctxrep.atomic import reserve

        size = 1 << 16

        with h5py.File(path, "w") as arrays:

            def write(name: str, array: "np.ndarray") -> None:
                nonlocal size
                size += array.nbytes + 1024  # HDF5's own part of an array is less
                reserve(path, size)
                arrays[name] = array

            yield write
        return
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:

        def write(name: str, array: "np.ndarray") -> None:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array))

        yield write
