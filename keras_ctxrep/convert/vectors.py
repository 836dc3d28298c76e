"""Files of word vectors: word2vec (text and binary), GloVe (text) and fastText (.vec and .bin), read and written.

https://code.google.com/archive/p/word2vec, word2vec.c; https://nlp.stanford.edu/projects/glove;
https://github.com/facebookresearch/fastText, fasttext.cc and dictionary.cc.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import keras
import numpy as np

from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.checks import errors_of, of_kind, warn
from keras_ctxrep.convert.weights import check_finite
from keras_ctxrep.layers.initializers import no_random_weights
from keras_ctxrep.models import static
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import OPENERS, lines, naming_damage, open_binary
from keras_ctxrep.text.features import StaticFeatures

__all__ = ["WRITTEN", "read", "write"]

UNKNOWN = ("<UNK>", "<unk>")  # names of the vector of unknown words in files
MAGIC, VERSIONS = 793712314, (11, 12)  # of fastText; the oldest files have neither magic number nor version
SKIPGRAM, SUPERVISED, NEGATIVE_SAMPLING = 2, 3, 2  # fastText's model types, the latter one of classifiers, and loss
WRITTEN = ("word2vec", "word2vec-binary", "fasttext")  # formats that `write` writes
_BLOCK = 1 << 20  # bytes read at a time
_LONGEST = 10_000  # maximum bytes of a word
_WIDEST = 100_000  # maximum width of a vector


def read(source: str | Path) -> tuple[keras.Model, Bundle]:
    """Converts a file of published word vectors; returns the encoder and its bundle.

    Files named .bin (also with .gz, .bz2 or .xz after it) are read as binary files of word2vec or fastText, all others
    as text, whose first line may have the numbers of words and dimensions. Words in text files may contain spaces; in
    binary ones what is not UTF-8 is escaped. The vector of unknown words is that of <unk> if the file has one, else the
    mean of all vectors, or with n-grams zero, as in fastText. Words are looked up in lower case if all are lower-cased.

    Args:
        source: the file.

    Raises:
        ValueError: another number of values than in other lines or of words than in the header, or the file is damaged
            or of another format; the message names file and line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "glove.txt"
    ...     _ = path.write_text("the 0.5 1.0\\nof 1.5 -1.0\\n")
    ...     model, bundle = read(path)
    >>> bundle.vocab, model.get_layer("word_embedding").get_weights()[0].tolist()
    (('<UNK>', 'the', 'of'), [[0.0, 0.0], [1.0, 0.0], [0.5, 1.0], [1.5, -1.0]])
    """
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"{path}: no such file; give one file of word vectors")
    builder = _Vectors(path)
    ngrams: dict[str, Any] = {}
    suffixes = path.suffixes[:-1] if path.suffix.lower() in OPENERS else path.suffixes
    if [suffix.lower() for suffix in suffixes[-1:]] != [".bin"]:
        _read_text(builder)
    else:
        with open_binary(path) as file:
            stream = _Stream(path, file)
            start = stream.peek(4)
            if start[:1].isdigit() and b"\0" not in start:
                _read_word2vec(builder, stream)
            elif len(start) == 4:
                ngrams = _read_fasttext(builder, stream)
    if not builder.words:
        raise ValueError(f"{path}: no word vectors in it")
    rows, vocab = builder.with_unknown(mean=not ngrams)
    lowercase = all(word == word.lower() for word in vocab[1:])
    with errors_of(path):
        config = static.Config(words=len(vocab), width=rows.shape[1], lowercase=lowercase, **ngrams)
    with no_random_weights():
        model = static.encoder(config)
    model.get_layer("word_embedding").set_weights([rows])
    return model, Bundle("static", "embed", asdict(config), max_length=128, vocab=vocab)


def write(path: str | Path, model: keras.Model, bundle: Bundle, target_format: str) -> None:
    """Writes the word vectors of a model to a file that gensim, fastText and `read` read.

    "word2vec" and "word2vec-binary", https://code.google.com/archive/p/word2vec: the words of the vocabulary, whose
    vectors have those of n-grams in them. "fasttext", https://github.com/facebookresearch/fastText: a .bin
    file, words and n-grams; the counts of its words are 1 and its output matrix is zero, since a model folder has
    neither: it gives vectors and neighbours, and is no model to train further. The vector of <UNK> is left out if it is
    what `read` makes without it. Words of a model that looks them up in lower case are written so.

    Args:
        path: the file; of "fasttext" FILE.bin.
        model, bundle: of the static family, over words.
        target_format: one of `WRITTEN`.

    Raises:
        ValueError: another family or format, word pieces, or a word with white space in it.

    >>> import tempfile
    >>> model = static.encoder(static.Config(words=2, width=2))
    >>> model.set_weights([np.array([[0.0, 0.0], [0.5, 1.0], [0.5, 1.0]])])
    >>> bundle = Bundle("static", "embed", asdict(static.Config(words=2, width=2)), 9, vocab=("<UNK>", "the"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "the.txt", model, bundle, "word2vec")
    ...     (Path(folder) / "the.txt").read_text()
    '1 2\\nthe 0.5 1.0\\n'
    """
    if target_format not in WRITTEN:
        raise ValueError(f"target_format={target_format!r}: one of {', '.join(WRITTEN)}")
    error = f"a {bundle.family} model without vectors of words; {target_format} files have nothing else"
    features = of_kind(bundle.features, StaticFeatures, error)
    words = bundle.vocab[1:]
    if wrong := next((word for word in words if not word or any(c.isspace() or c == "\0" for c in word)), None):
        raise ValueError(f"the word {wrong!r} has white space, which ends a word in {target_format} files")
    if target_format == "fasttext":
        _write_fasttext(path, model, bundle.vocab[1:], features.ngrams)
        return
    rows = static.vectors_of(model, features.ids(words)).astype("<f4")
    unknown = static.vectors_of(model, np.array([1]))
    if not bundle.config["buckets"] and not np.allclose(unknown, rows.mean(0, dtype=np.float64), atol=1e-6):
        words, rows = ("<UNK>", *words), np.concatenate([unknown, rows])
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(f"{len(words)} {rows.shape[1]}\n".encode())
        for word, row in zip(words, rows, strict=True):
            if target_format == "word2vec":
                file.write(f"{word} {' '.join(map(str, row.tolist()))}\n".encode())
            else:
                file.write(word.encode() + b" " + row.tobytes() + b"\n")


def _write_fasttext(
    path: str | Path, model: keras.Model, words: Sequence[str], ngrams: tuple[int, int, int] | None
) -> None:
    layer: Any = model.get_layer("word_embedding")
    table = keras.ops.convert_to_numpy(layer.embeddings)[2:].astype("<f4")  # without the rows of no word and <UNK>
    width, (shortest, longest, buckets) = table.shape[1], ngrams or (0, 0, 0)
    arguments = (width, 5, 5, 1, 5, 1, NEGATIVE_SAMPLING, SKIPGRAM, buckets, shortest, longest, 100, 1e-4)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(struct.pack("<2i12id", MAGIC, VERSIONS[-1], *arguments))
        file.write(struct.pack("<3iqq", len(words), len(words), 0, len(words), -1))
        for word in words:
            file.write(word.encode() + struct.pack("<xqb", 1, 0))
        file.write(struct.pack("<?qq", False, len(words) + buckets, width))
        file.write(table.data)
        file.write(struct.pack("<?qq", False, len(words), width))
        for _ in range(len(words)):
            file.write(bytes(4 * width))


class _Vectors:
    """The words of a file and their rows in a growing float32 array, whose first rows are for no word and <UNK>."""

    def __init__(self, path: Path):
        self.path, self.words = path, {}
        self.word_count = 0  # words of the file
        self.row_count = 2
        self.rows = np.zeros((0, 0), np.float32)
        self.repeated: list[tuple[str, int]] = []  # (word, number)

    def add(self, word: str, row: np.ndarray) -> None:
        """Adds a word and its vector; repeated words are ignored."""
        self.word_count += 1
        if word in self.words:
            self.repeated.append((word, self.word_count))
            return
        self.words[word] = self.row_count
        self.add_rows(row[None])

    def add_rows(self, rows: np.ndarray) -> None:
        """Appends rows without adding words."""
        end = self.row_count + len(rows)
        if end > len(self.rows):
            if self.rows.size == 0:
                self.rows = np.zeros((1024, rows.shape[1]), np.float32)
            self.rows.resize((max(end, len(self.rows) * 3 // 2), rows.shape[1]), refcheck=False)
        self.rows[self.row_count : end] = rows
        self.row_count = end

    def with_unknown(self, mean: bool) -> tuple[np.ndarray, tuple[str, ...]]:
        """The rows and their vocabulary, with the row of <UNK>: of the file, else the mean or zero."""
        if self.repeated:
            word, number = self.repeated[0]
            message = f"{len(self.repeated)} words occur again, the first of them {word!r} (word {number})"
            warn(f"{self.path}: {message}; the first vector of each is kept")
        self.rows.resize((self.row_count, self.rows.shape[1]), refcheck=False)
        if mean:
            self.rows[1] = self.rows[2 : 2 + len(self.words)].mean(axis=0, dtype=np.float64)
        rows, unknown = self.rows, [word for word in UNKNOWN if word in self.words]
        if unknown:
            rows[1] = rows[self.words[unknown[0]]]
            rows = np.delete(rows, [self.words[word] for word in unknown], axis=0)
        return rows, ("<UNK>", *(word for word in self.words if word not in unknown))


def _read_text(builder: _Vectors) -> None:
    path, count, width = builder.path, None, 0
    for number, line in lines(path, _LONGEST + 32 * _WIDEST):
        fields = line.rstrip(" ").split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            count, width = map(int, fields)
            continue
        width = width or len(fields) - 1
        extra = len(fields) - 1 - width  # spaces in the word
        if width < 1 or extra < 0 or (extra and _is_number(fields[extra])):
            raise ValueError(f"{path}:{number}: {len(fields) - 1} numbers behind a word; {max(width, 1)} are needed")
        try:
            with np.errstate(over="ignore"):
                row = np.array(fields[extra + 1 :], np.float32)
        except ValueError:
            wrong = next(field for field in fields[extra + 1 :] if not _is_number(field))
            raise ValueError(f"{path}:{number}: {wrong!r} is not a number; {width} stand behind each word") from None
        check_finite(row, f"{path}:{number}")
        builder.add(" ".join(fields[: extra + 1]), row)
    if count is not None and count != builder.word_count:
        raise ValueError(f"{path}:1: the header counts {count} words; {builder.word_count} follow: copy the file again")


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


class _Stream:
    """Reads a binary file in parts of known size or terminator; errors name the part in which the file ends."""

    def __init__(self, path: Path, file: IO[bytes]):
        self.path, self._file, self._buffer, self._position = path, file, b"", 0

    def peek(self, size: int) -> bytes:
        """The next bytes, or fewer at the end of the file, without consuming them."""
        missing = size - (len(self._buffer) - self._position)
        if missing > 0:
            with naming_damage(lambda: str(self.path)):
                block = self._file.read(max(missing, _BLOCK))
            self._buffer, self._position = self._buffer[self._position :] + block, 0
        return self._buffer[self._position : self._position + size]

    def take(self, size: int, what: str) -> bytes:
        data = self.peek(size)
        if len(data) < size:
            raise ValueError(f"{self.path}: ends within {what}; copy the file again")
        self._position += size
        return data

    def until(self, end: bytes, what: str) -> bytes:
        """Consumes and returns the bytes before `end`, and consumes `end`."""
        length = self.peek(_LONGEST).find(end)
        if length < 0:
            raise ValueError(f"{self.path}: {what} does not end; the file is damaged, or of another format")
        return self.take(length + len(end), what)[:length]

    def numbers(self, form: str, what: str) -> tuple:
        """Numbers in a format of `struct`, little-endian."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}"), what))

    def rows(self, count: int, width: int, what: str) -> Iterator[np.ndarray]:
        """Yields `count` rows as float32 (n, width), a megabyte or one row at a time."""
        step = max(1, _BLOCK // (4 * width))
        for begin in range(0, count, step):
            size = min(step, count - begin)
            rows = np.frombuffer(self.take(4 * size * width, what), "<f4").reshape(size, width)
            check_finite(rows, f"{self.path}: {what}")
            yield rows

    def word(self, end: bytes, what: str) -> str:
        word = self.until(end, what).lstrip(b"\n").decode("utf-8", "backslashreplace")
        if "\n" in word or word.endswith("\r"):
            raise ValueError(f"{self.path}: {what} is {word[:60]!r}, with a line end; the file is damaged")
        return word


def _read_word2vec(builder: _Vectors, stream: _Stream) -> None:
    fields = stream.until(b"\n", "the header").split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or not 1 <= int(fields[1]) <= _WIDEST:
        raise ValueError(f"{builder.path}: the header is {b' '.join(fields)[:60]!r}; words and dimensions are needed")
    count, width = map(int, fields)
    for number in range(1, count + 1):
        what = f"word {number} of {count}"
        word = stream.word(b" ", what)
        for row in stream.rows(1, width, what):
            builder.add(word, row[0])
    if stream.peek(2).strip():
        raise ValueError(f"{builder.path}: more than the {count} words that its header counts; copy the file again")


def _read_fasttext(builder: _Vectors, stream: _Stream) -> dict[str, int]:
    """Adds all rows, those of n-grams after those of words; returns the fields of `static.Config` for n-grams."""
    path = builder.path
    magic = stream.peek(4) == struct.pack("<i", MAGIC)
    version = stream.numbers("ii", "the header")[1] if magic else 0
    if magic and version not in VERSIONS:
        raise ValueError(f"{path}: version {version} of fastText's format; {VERSIONS[0]} and {VERSIONS[1]} are read")
    width, _, _, _, _, _, _, model, buckets, shortest, longest, _, _ = stream.numbers("12id", "the arguments")
    size, words, labels, _ = stream.numbers("3iq", "the dictionary")
    if version == 11 and model == SUPERVISED:
        longest = 0  # as fastText reads them
    if not 1 <= width <= _WIDEST or words < 1 or min(labels, buckets, longest, shortest) < 0 or size != words + labels:
        raise ValueError(f"{path}: neither a fastText model nor word vectors of word2vec; a text file is called .txt")
    if magic and stream.numbers("q", "the dictionary")[0] > 0:
        raise ValueError(f"{path}: a pruned model of fastText; give the .bin that it was made of")
    names: dict[str, int] = {}
    for number in range(1, size + 1):
        what = f"word {number} of {size} in the dictionary"
        name = stream.word(b"\0", what)
        _, label = stream.numbers("qb", what)
        if label != (number > words) or (not label and names.setdefault(name, number + 1) != number + 1):
            raise ValueError(f"{path}: {what}, {name[:60]!r}, is out of place; the file is damaged")
    if magic and stream.numbers("?", "the input matrix")[0]:
        raise ValueError(f"{path}: a quantised model of fastText; give the .bin that it was made of")
    shape = stream.numbers("qq", "the input matrix")
    if shape != (words + buckets, width):
        raise ValueError(f"{path}: an input matrix of shape {shape}; its arguments call for {(words + buckets, width)}")
    if not longest or shortest > longest:
        buckets = 0  # the remaining buckets are of word n-grams
    for rows in stream.rows(words + buckets, width, "the input matrix"):
        builder.add_rows(rows)
    builder.words, builder.word_count = names, words
    fields = {"buckets": buckets, "min_n": max(1, shortest), "max_n": longest}
    return fields if buckets else {}
