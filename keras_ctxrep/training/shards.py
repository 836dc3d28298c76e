"""Shards of prepared text: made from the units of a corpus, in parallel and resumable, and read again in random order.

A shard is a TFRecord file of `tf.train.Example`s, https://www.tensorflow.org/tutorials/load_data/tfrecord, made of one
unit of the corpus by one pass over it. Its bytes are a function of the unit, the pass and the options: they depend
neither on other shards nor on the number of processes. TensorFlow is loaded by the functions that read and write.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_ctxrep.atomic import atomic_write, sha256, temporary_folder
from keras_ctxrep.inference.silence import quiet_stderr
from keras_ctxrep.parallel import run_in_processes, run_on
from keras_ctxrep.text.corpus import pieces
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.pretraining import Masked, Masking, next_sentence_rows, piece_ids
from keras_ctxrep.text.tokens import WordPiece, split_words

__all__ = [
    "Maker",
    "MaskedPairs",
    "SplitSentences",
    "make",
    "make_on",
    "masked_example",
    "masked_record",
    "read",
    "sentences_record",
    "shuffled",
    "split_sentences",
    "write",
]

CYCLE = 16  # shards that are read in turn
Unit = list[list[str]]  # documents, lists of sentences
Record = dict[str, list[int] | list[bytes]]
Examples = Iterator[tuple[Record, Mapping[str, int]]]  # records, and what each adds to the counts


@dataclass(frozen=True)
class MaskedPairs:
    """BERT's examples: pairs of segments, masked anew in each pass over a unit; negative ones are of the same unit.

    Args:
        vocab: the pieces.
        casing: `lowercase`, `strip_accents` and `split_cjk` of `WordPiece`.
        max_length: maximum number of pieces of a pair, with its markers.
        whole_words: mask all pieces of a word together.
        seed: random seed; the generator of a shard depends on it, the pass and the unit.

    Call:
        number, unit: number of the unit, and its documents.
        copies: the passes wanted.

    Returns: the number of each pass, and its examples: records with the fields of `Masked`.
    """

    vocab: tuple[str, ...]
    casing: Mapping[str, Any]
    max_length: int
    whole_words: bool
    seed: int

    @cached_property
    def features(self) -> WordPieceFeatures:
        return WordPieceFeatures(WordPiece(self.vocab, **self.casing), self.max_length)

    @cached_property
    def masking(self) -> Masking:
        return Masking(self.features.wordpiece, whole_words=self.whole_words)

    def __call__(self, number: int, unit: Unit, copies: Sequence[int]) -> Iterator[tuple[int, Examples]]:
        ids = piece_ids(unit, self.features)
        return ((copy, self._examples(ids, np.random.default_rng((self.seed, copy, number)))) for copy in copies)

    def _examples(self, ids: list[list[np.ndarray]], rng: np.random.Generator) -> Examples:
        for pair in next_sentence_rows(ids, self.features, rng):
            example = self.masking(pair, rng)
            yield masked_record(example), {"examples": 1, "pieces": len(example.tokens)}


@dataclass(frozen=True)
class SplitSentences:
    """A biLM's text: documents of up to 100 sentences that are split into words.

    Call:
        number, unit, copies: as in `MaskedPairs`; all passes over a unit are alike.

    Returns: the number of each pass, and its records with "sentences", the words of each joined by spaces.
    """

    def __call__(self, number: int, unit: Unit, copies: Sequence[int]) -> Iterator[tuple[int, Examples]]:
        return ((copy, self._examples(unit)) for copy in copies)

    def _examples(self, unit: Unit) -> Examples:
        for document in pieces(unit):
            if split := [*filter(None, map(split_words, document))]:
                counts = {"documents": 1, "sentences": len(split), "words": sum(map(len, split))}
                yield sentences_record(split), counts


def masked_record(example: Masked) -> Record:
    """A `Masked` as a record; `masked_example` is the inverse."""
    return {
        "tokens": example.tokens,
        "first": [example.first],
        "positions": example.positions,
        "labels": example.labels,
        "follows": [int(example.follows)],
    }


def masked_example(data: bytes) -> Masked:
    """The `Masked` of a record."""
    import tensorflow as tf

    fields = tf.train.Example.FromString(data).features.feature
    tokens, positions, labels = (list(fields[name].int64_list.value) for name in ("tokens", "positions", "labels"))
    first, follows = (fields[name].int64_list.value[0] for name in ("first", "follows"))
    return Masked(tokens, first, positions, labels, bool(follows))


def sentences_record(sentences: Iterable[Sequence[str]]) -> Record:
    """Sentences, each split into words, as a record; `split_sentences` is the inverse."""
    return {"sentences": [" ".join(sentence).encode() for sentence in sentences]}


def split_sentences(data: bytes) -> list[list[str]]:
    """The words of each sentence of a record."""
    import tensorflow as tf

    values = tf.train.Example.FromString(data).features.feature["sentences"].bytes_list.value
    return [sentence.decode().split(" ") for sentence in values]


def write(path: str | Path, records: Iterable[Record]) -> None:
    """Writes a TFRecord file, whole or not at all; the same records give the same bytes.

    Args:
        path: the file.
        records: what `sentences_record` or `masked_record` gives.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/a.tfrecord", [sentences_record([["a", "b"], ["c"]])])
    ...     [split_sentences(record) for record in read(f"{folder}/a.tfrecord")]
    [[['a', 'b'], ['c']]]
    """
    import tensorflow as tf

    with atomic_write(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for record in records:
            writer.write(serialized(record))


def serialized(record: Record) -> bytes:
    """A record as a `tf.train.Example`; the same record gives the same bytes."""
    import tensorflow as tf

    example = tf.train.Example()
    for name, values in record.items():
        feature = example.features.feature[name]
        lists = feature.bytes_list if values and isinstance(values[0], bytes) else feature.int64_list
        lists.SetInParent()  # an empty list is there too
        lists.value.extend(values)
    return example.SerializeToString(deterministic=True)


def read(path: str | Path) -> list[bytes]:
    """The records of a TFRecord file.

    Raises:
        ValueError: it is damaged, or no such file.
    """
    import tensorflow as tf

    if os.path.exists(path) and not os.path.getsize(path):
        return []
    try:
        with tf.device("CPU"):
            return tf.data.TFRecordDataset(str(path)).batch(1 << 40).get_single_element().numpy().tolist()
    except tf.errors.OpError as error:
        raise ValueError(f"{path}: not a file of prepared text; run `ctxrep prepare` again: {error.message}") from None


def shuffled(paths: Sequence[str | Path], seed: int, epoch: int, buffer: int) -> Iterator[bytes]:
    """The records of shards in random order: the shards are shuffled, 16 are read in turn, records drawn from a buffer.

    Args:
        paths: the shards.
        seed, epoch: of the order; it is another one in every epoch.
        buffer: number of records in it.
    """
    rng = random.Random(f"{seed} {epoch}")
    pool: list[bytes] = []
    for record in _interleave(rng.sample([*paths], len(paths))):
        if len(pool) < buffer:
            pool.append(record)
        else:
            index = int(rng.random() * buffer)
            yield pool[index]
            pool[index] = record
    rng.shuffle(pool)
    yield from pool


def _interleave(paths: Sequence[str | Path]) -> Iterator[bytes]:
    rest = (iter(read(path)) for path in paths)
    current = [records for _, records in zip(range(CYCLE), rest, strict=False)]
    while current:
        for index, records in enumerate(current):
            record = next(records, None)
            while record is None and (following := next(rest, None)) is not None:
                current[index] = following
                record = next(following, None)
            if record is None:
                del current[index : index + 1]
                break  # the others' turns come in the next round
            yield record


@dataclass(frozen=True)
class Maker:
    """Makes the shards of a unit that are missing, each with a small file beside it of its counts and its hash.

    Args:
        folder: of the shards.
        identity: of all they depend on besides the unit; a shard with another one is made again.
        copies: passes over a unit, each a shard.
        examples: a `MaskedPairs` or `SplitSentences`.
    """

    folder: Path
    identity: str
    copies: int
    examples: Callable[[int, Unit, Sequence[int]], Iterator[tuple[int, Examples]]]

    def __call__(self, number: int, unit: Unit) -> None:
        for copy, examples in self.examples(number, unit, self.missing(number)):
            counts: Counter[str] = Counter()
            name = self.name(number, copy)
            write(self.folder / name, _count(examples, counts))
            record = {"identity": self.identity, "counts": counts, "sha256": sha256(self.folder / name)}
            with atomic_write(self._record(name)) as path:
                path.write_text(json.dumps(record))

    def name(self, number: int, copy: int) -> str:
        """The file of a shard.

        Args:
            number: of the unit.
            copy: of the pass over it.
        """
        return f"train-{number:05}-{copy:02}.tfrecord"

    def missing(self, number: int) -> list[int]:
        """The passes over a unit whose shards are not there yet."""
        return [copy for copy in range(self.copies) if self.record(self.name(number, copy)) is None]

    def record(self, name: str) -> dict | None:
        """Counts and hash of a finished shard."""
        try:
            record = json.loads(self._record(name).read_text())
            whole = record["identity"] == self.identity and record["sha256"] == sha256(self.folder / name)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return record if whole else None

    def _record(self, name: str) -> Path:
        return (self.folder / name).with_suffix(".json")


def _count(examples: Examples, counts: Counter[str]) -> Iterator[Record]:
    for record, amounts in examples:
        counts.update(amounts)
        yield record


def make(maker: Maker, units: Iterable[tuple[int, Unit]], processes: int = 1) -> None:
    """Makes the shards of units in parallel; a unit per process, and two or three more, are in memory at a time.

    Args:
        maker: makes the shards of a unit.
        units: (number, documents) of each.
        processes: how many; 1: no other process than this one.

    Raises:
        ValueError: a process was killed, for example because memory was short.
    """
    run_in_processes(maker, units, processes, start=_load_tensorflow)


def _load_tensorflow() -> None:
    with quiet_stderr():
        import tensorflow  # noqa: F401


def make_on(runner: str, maker: Maker, units: Iterable[tuple[int, Unit]], options: str | None = None) -> None:
    """Makes the shards of units on the machines of a runner; the bytes are those of `make`.

    The units are first written to files, as large as the corpus, in a folder that all machines of the runner must see.

    Args:
        runner, options: as in `parallel.run_on`.
        maker, units: as in `make`.

    Raises:
        ValueError: the runner is not installed, or there is none of this name.
    """
    with temporary_folder(maker.folder / "units") as folder:
        numbers = []
        for number, unit in units:
            numbers.append(number)
            (folder / f"{number:05}.json").write_text(json.dumps(unit))
        run_on(runner, partial(_remake_from_file, maker, folder), numbers, options)


def _remake_from_file(maker: Maker, folder: Path, number: int) -> None:
    maker(number, json.loads((folder / f"{number:05}.json").read_text()))
