"""Training data of static word vectors: the words of a corpus as numbers in a file, and blocks of them with windows."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_ctxrep.atomic import atomic_folder
from keras_ctxrep.text.features import StaticFeatures
from keras_ctxrep.text.tokens import split_words

__all__ = ["Blocks", "EncodedCorpus", "WordCounts", "blocks", "encode_corpus", "kept"]

CHUNK = 1 << 20  # words that are in memory at a time, and whose blocks are shuffled together
CENTRES = 32  # words of a block whose vectors or contexts are learned together
NOISE = 32  # noise words that the centres of a block share
POWER = 0.75  # of a word's count in the noise distribution
_CACHED = 1 << 20  # strings between two spaces whose words are kept
_IDS, _WORDS = "ids.bin", "words.json"


@dataclass(frozen=True)
class WordCounts:
    """Words and how often each occurs, most frequent first."""

    words: tuple[str, ...]
    counts: np.ndarray  #: int64 (V,)


class EncodedCorpus:
    """The words of a corpus in a folder, as numbers in the order of their first occurrence.

    Args:
        folder: written by `encode_corpus`.

    Attributes:
        size: words and ends of sentences.
    """

    def __init__(self, folder: str | Path):
        self.path = Path(folder) / _IDS
        listed = json.loads((Path(folder) / _WORDS).read_text(encoding="utf-8"))
        self._words, self._counts = listed["words"], np.array(listed["counts"], np.int64)
        self.size = self.path.stat().st_size // 4

    def counts(self, minimum: int, size: int | None = None) -> WordCounts:
        """The words that occur at least `minimum` times, the `size` most frequent of them, ties in alphabetic order."""
        numbers = np.flatnonzero(self._counts >= minimum).tolist()
        numbers = sorted(numbers, key=lambda number: (-self._counts[number], self._words[number]))[:size]
        return WordCounts(tuple(self._words[number] for number in numbers), self._counts[numbers])

    def rows(self, vocab: Sequence[str], first: int) -> np.ndarray:
        """From a number in the file, 0 the end of a sentence, to that of the word in a vocabulary.

        Args:
            vocab: the words.
            first: number of the first of them.

        Returns: int32 (numbers,), -1 for words that are not in the vocabulary, 0 for ends of sentences.
        """
        lines = {word: number for number, word in enumerate(vocab, first)}
        return np.array([0, *(lines.get(word, -1) for word in self._words)], np.int32)

    def chunk(self, number: int) -> np.ndarray:
        """One of the chunks of `CHUNK` numbers, int32."""
        return np.fromfile(self.path, "<i4", CHUNK, offset=4 * CHUNK * number)

    @property
    def chunks(self) -> int:
        return -(-self.size // CHUNK)


def encode_corpus(documents: Iterable[list[str]], folder: str | Path, lowercase: bool) -> EncodedCorpus:
    """Writes the words of a corpus to a folder, 4 bytes each; in memory are the distinct words alone.

    Args:
        documents: lists of sentences, which are split as `text.tokens.words` does.
        folder: to write, whole or not at all.
        lowercase: as in `StaticFeatures`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     corpus = encode_corpus([["A cat.", "a dog"]], Path(folder) / "ids", lowercase=True)
    ...     corpus.chunk(0).tolist(), corpus.counts(2).words
    ([1, 2, 3, 0, 1, 4, 0], ('a',))
    """
    normalized = StaticFeatures(StaticFeatures.MARKERS, lowercase=lowercase).normalized
    numbers: dict[str, int] = {}

    class Cache(dict[str, tuple[int, ...]]):
        """What stands between two spaces -> the numbers of its words."""

        def __missing__(self, text: str) -> tuple[int, ...]:
            if len(self) >= _CACHED:
                self.clear()
            words = normalized(split_words(text))
            ids = self[text] = tuple(numbers.setdefault(word, len(numbers) + 1) for word in words)
            return ids

    def written(ids: list[int], counts: np.ndarray) -> np.ndarray:
        """Writes some ids, and returns the counts of all numbers so far."""
        array = np.array(ids, "<i4")
        file.write(array.tobytes())
        more = np.bincount(array, minlength=len(counts))
        more[: len(counts)] += counts
        return more

    encoded = Cache().__getitem__
    counts, ids = np.zeros(1, np.int64), []
    with atomic_folder(folder) as temporary:
        with (temporary / _IDS).open("wb") as file:
            for sentence in itertools.chain.from_iterable(documents):
                ids += itertools.chain.from_iterable(map(encoded, sentence.split(" ")))
                ids.append(0)
                if len(ids) >= CHUNK:
                    counts, ids = written(ids, counts), []
            counts = written(ids, counts)
        listed = {"words": [*numbers], "counts": counts[1:].tolist()}
        (temporary / _WORDS).write_text(json.dumps(listed, ensure_ascii=False), encoding="utf-8")
    return EncodedCorpus(folder)


def kept(counts: np.ndarray, sample: float) -> np.ndarray:
    """The probability that an occurrence of a word is kept, float64 (V,).

    The formula of word2vec.c, (sqrt(f / t) + 1) t / f with the frequency f and the threshold t; Mikolov et al. 2013,
    https://arxiv.org/abs/1310.4546, section 2.3, has sqrt(t / f).

    Args:
        counts: of each word.
        sample: the threshold t.

    >>> kept(np.array([90, 10]), 0.1).round(2).tolist()
    [0.44, 1.0]
    """
    if not sample:
        return np.ones(len(counts))
    ratio = sample / (counts / counts.sum())
    return np.minimum(1.0, np.sqrt(ratio) + ratio)


class _Noise(NamedTuple):
    """The distribution of noise words, and how many a block has."""

    cumulated: np.ndarray  #: float64 (V,), to 1
    size: int


@dataclass(frozen=True)
class Blocks:
    """Blocks of consecutive words of a text after subsampling, rows of a batch."""

    word_ids: np.ndarray  #: int32 (B, P + 2 W), the centres and W words on both sides
    noise_ids: np.ndarray  #: int32 (B, S)
    windows: np.ndarray  #: int32 (B, P, 2), words before and after each centre that are in its window

    def __len__(self) -> int:
        return len(self.word_ids)

    def __getitem__(self, part: slice | np.ndarray) -> "Blocks":
        return Blocks(self.word_ids[part], self.noise_ids[part], self.windows[part])

    def __add__(self, other: "Blocks") -> "Blocks":
        return Blocks(*(np.concatenate(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return dict(vars(self))


def blocks(
    corpus: EncodedCorpus,
    counts: WordCounts,
    first: int,
    window: int,
    sample: float,
    batch_size: int,
    seed: int,
    noise: int = NOISE,
) -> Iterator[Blocks]:
    """Endless batches of blocks, pass after pass; a function of the seed.

    As word2vec.c goes over a text: words that are not counted are left out; frequent ones are, at random; each centre's
    window has a random size from 1 to `window`, and ends with the sentence. The chunks of the text come in random
    order, and so do the blocks of a chunk.

    Args:
        corpus, counts: the text and the vocabulary.
        first: number of the first word.
        window: W.
        sample: as in `kept`.
        batch_size: blocks of a batch.
        seed: of all that is random.
        noise: S, noise words of a block.

    Raises:
        ValueError: no word of the vocabulary is in the text.
    """
    rows, keep = corpus.rows(counts.words, first), kept(counts.counts, sample)
    cumulated = np.cumsum(counts.counts**POWER)
    draw = _Noise(cumulated / cumulated[-1], noise)
    rest: Blocks | None = None
    epoch = 0
    while True:
        any_words = False
        for chunk in np.random.default_rng((seed, epoch)).permutation(corpus.chunks).tolist():
            rng = np.random.default_rng((seed, epoch, chunk))
            made = _blocks_of_chunk(rows[corpus.chunk(chunk)], first, keep, draw, window, rng)
            any_words = any_words or len(made) > 0
            rest = made if rest is None else rest + made
            whole = len(rest) - len(rest) % batch_size
            for begin in range(0, whole, batch_size):
                yield rest[begin : begin + batch_size]
            rest = rest[whole:]
        if not any_words:
            raise ValueError("no words to train on: lower min_count, or give more text")
        epoch += 1


def _blocks_of_chunk(
    ids: np.ndarray, first: int, keep: np.ndarray, noise: _Noise, window: int, rng: np.random.Generator
) -> Blocks:
    """The blocks of a piece of text, -1 for words that are left out and 0 after each sentence, in random order."""
    ids = ids[ids >= 0]
    dropped = np.zeros(first, keep.dtype)
    dropped[0] = 1.0  # ends of sentences are kept
    ids = ids[rng.random(len(ids)) < np.concatenate([dropped, keep])[ids]]
    words = np.flatnonzero(ids)
    sentence = np.cumsum(ids == 0)[words]  # (n,)
    ids = ids[words]
    count = len(ids)
    order = np.arange(count)
    starts = np.flatnonzero(np.diff(sentence, prepend=-1))
    lengths = np.diff(starts, append=count)
    before = order - np.repeat(starts, lengths)
    after = np.repeat(lengths, lengths) - 1 - before
    size = rng.integers(1, window + 1, count)
    number = -(-count // CENTRES)  # blocks
    windows = np.zeros((number * CENTRES, 2), np.int32)
    windows[:count] = np.minimum(np.stack([before, after], 1), size[:, None])
    padded = np.pad(ids, (window, window + number * CENTRES - count))
    begins = CENTRES * rng.permutation(number)
    draws = np.searchsorted(noise.cumulated, rng.random((number, noise.size)), side="right")
    return Blocks(
        padded[begins[:, None] + np.arange(CENTRES + 2 * window)].astype(np.int32),
        (first + np.minimum(draws, len(noise.cumulated) - 1)).astype(np.int32),
        windows.reshape(number, CENTRES, 2)[begins // CENTRES],
    )
