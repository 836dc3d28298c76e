"""Preparing a corpus for pretraining: from text files to a folder of shards, and reading such folders."""

import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from keras_ctxrep import zoo
from keras_ctxrep.atomic import atomic_write, lock_folder, sha256
from keras_ctxrep.deprecated import moved
from keras_ctxrep.options import Preparation
from keras_ctxrep.recipes import corpora
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.artifacts import NAME, VOCAB
from keras_ctxrep.text.corpus import UNIT, units
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.pretraining import PREPARED, Masked, Masking, read_masked
from keras_ctxrep.text.tokens import read_vocab, vocab_text
from keras_ctxrep.training import shards
from keras_ctxrep.training.runs import RunRecord
from keras_ctxrep.training.shards import Maker, MaskedPairs, SplitSentences
from keras_ctxrep.version import __version__

__getattr__ = moved(__name__, "keras_ctxrep.commands.prepare")

VALID = "valid.tfrecord"
PAIRS, DOCUMENTS = 10_000, 1_000  # in the buffer that BERT's and a biLM's records are drawn from


def run(corpus: Sequence[str | Path], out: str | Path, family: str, options: Preparation) -> dict:
    """The work of `commands.prepare.Prepare`."""
    out = Path(out)
    _check(family, corpus, out, options)
    initial = None if options.init is None else bundles.load(zoo.find(options.init))
    files = [Path(path) for path in corpus]
    run = RunRecord.of("prepare", options, family=family, corpus=files, made=[__version__, UNIT])
    if (finished := _finished(out, run.identity)) is not None:
        return finished
    held, read = corpora.held_out(corpus, options.valid, options.seed)
    examples, copies, valid, vocab, settings = _PLANS[family].make(options, initial, corpus, read, held)
    maker = Maker(out, run.identity, copies, examples)
    with lock_folder(out):
        _begin(maker)
        shards.write(out / VALID, valid)
        with atomic_write(out / VOCAB) as path:
            path.write_bytes(vocab_text(vocab).encode())
        count = _make(maker, read(corpus), options)
        return _finish(maker, count, {"family": family, "identity": run.identity, **settings, "seed": options.seed})


def _check(family: str, corpus: Sequence[str | Path], out: Path, options: Preparation) -> None:
    corpora.check_corpus(family, corpus)
    if (out / NAME).exists():
        raise ValueError(f"{out}: a model folder; choose another one to write to")
    for other, plan in _PLANS.items():
        for name in plan.options if other != family else ():
            if getattr(options, name) != getattr(Preparation, name):
                raise ValueError(f"{name}={getattr(options, name)}: an option of `prepare {other}`")


# examples of a unit, passes, held-out records, vocabulary, and settings for prepared.json
_Plan = tuple[Any, int, list[shards.Record], Sequence[str], dict[str, Any]]


def _bert(options: Preparation, initial: Any, corpus, read, held) -> _Plan:
    wordpiece = corpora.wordpiece_of(initial, options, corpus, read)
    features = WordPieceFeatures(wordpiece, options.max_length)
    masking = Masking(wordpiece, whole_words=options.whole_words)
    valid = [shards.masked_record(example) for example in corpora.masked_once(held, features, masking, options.seed)]
    if not valid:
        raise ValueError(corpora.NO_PAIRS)
    kept = {"max_length": options.max_length, "whole_words": options.whole_words, **corpora.casing(wordpiece)}
    vocab = tuple(wordpiece.vocab)
    examples = MaskedPairs(vocab, corpora.casing(wordpiece), options.max_length, options.whole_words, options.seed)
    return examples, options.copies, valid, vocab, kept | {"copies": options.copies}


def _elmo(options: Preparation, initial: Any, corpus, read, held) -> _Plan:
    vocab = corpora.word_vocabulary(options, initial, corpus, read).vocab
    examples = SplitSentences()
    valid = [record for _, records in examples(0, held, [0]) for record, _ in records]
    return examples, 1, valid, vocab, {"learned_vocab": corpora.given_words(options, initial) is None}


class _Family(NamedTuple):
    """How the text of a family is prepared, and the options that are for it alone."""

    make: Callable[..., _Plan]
    options: tuple[str, ...]


_PLANS = {
    "elmo": _Family(_elmo, ("min_count",)),
    "bert": _Family(_bert, ("whole_words", "cased", "copies", "max_length")),
}


def _finished(out: Path, identity: str) -> dict | None:
    """The contents of prepared.json if the same command has ended before and its files are unchanged."""
    try:
        prepared = json.loads((out / PREPARED).read_text())
        if prepared["identity"] == identity and not _changed(out, prepared["files"]):
            return prepared
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _begin(maker: Maker) -> None:
    """Removes what an earlier preparation left, except the shards of an interrupted one with the same options."""
    maker.folder.mkdir(parents=True, exist_ok=True)
    (maker.folder / PREPARED).unlink(missing_ok=True)
    (maker.folder / "valid.npz").unlink(missing_ok=True)
    for pattern in (f"train-{'[0-9]' * 5}.npz", f"train-{'[0-9]' * 5}*-[0-9][0-9]*.tfrecord"):
        for path in maker.folder.glob(pattern):
            if maker.record(path.name) is None:
                path.unlink()
                path.with_suffix(".json").unlink(missing_ok=True)


def _make(maker: Maker, text: Iterable[list[str]], options: Preparation) -> int:
    """Makes the shards; the number of units."""
    count = 0

    def unfinished() -> Iterator[tuple[int, shards.Unit]]:
        nonlocal count
        with tqdm(desc="preparing", unit=" units", file=sys.stderr, leave=False, disable=None) as bar:
            for count, unit in enumerate(units(text, UNIT), 1):
                if maker.missing(count - 1):
                    yield count - 1, unit
                bar.update()

    if options.runner is None:
        shards.make(maker, unfinished(), options.processes)
    else:
        shards.make_on(options.runner, maker, unfinished(), options.runner_options)
    return count


def _finish(maker: Maker, units_: int, settings: dict) -> dict:
    """Writes prepared.json, and removes the shards' own records, whose contents are in it."""
    names = [maker.name(number, copy) for number in range(units_) for copy in range(maker.copies)]
    records: dict[str, dict] = {}
    totals: Counter[str] = Counter()
    for name in names:
        if (record := maker.record(name)) is None:
            raise ValueError(f"{maker.folder / name}: was not made; do all machines write to this folder?")
        records[name] = record
        totals.update(record["counts"])
    if not totals:
        raise ValueError("nothing to train on: one sentence a line, an empty line between documents")
    hashes = {name: sha256(maker.folder / name) for name in (VALID, VOCAB)}
    prepared = {
        **settings,
        "units": units_,
        **totals,
        f"valid_{next(iter(totals))}": len(shards.read(maker.folder / VALID)),
        "shards": {name: record["counts"] for name, record in records.items()},
        "files": hashes | {name: record["sha256"] for name, record in records.items()},
    }
    with atomic_write(maker.folder / PREPARED) as path:
        path.write_text(json.dumps(prepared, indent=1))
    for name in names:
        (maker.folder / name).with_suffix(".json").unlink()
    return prepared


class Prepared(NamedTuple):
    """A folder that `prepare` wrote."""

    folder: Path
    settings: dict[str, Any]  # the contents of prepared.json

    @property
    def vocab(self) -> list[str]:
        return read_vocab(self.folder / VOCAB)

    @property
    def files(self) -> list[Path]:
        """The shards."""
        return [self.folder / name for name in self.settings["files"] if name.startswith("train-")]

    def pairs(self, seed: int, epoch: int) -> Iterator[Masked]:
        """BERT's examples in the random order of an epoch."""
        if self.files[0].suffix == ".npz":  # of version 0.1
            rng, files = np.random.default_rng((seed, epoch)), self.files
            orders = (read_masked(files[index], rng.permutation) for index in rng.permutation(len(files)))
            return itertools.chain.from_iterable(orders)
        return map(shards.masked_example, shards.shuffled(self.files, seed, epoch, PAIRS))

    def held_pairs(self) -> list[Masked]:
        """BERT's held-out examples."""
        if (self.folder / VALID).exists():
            return [*map(shards.masked_example, shards.read(self.folder / VALID))]
        return list(read_masked(self.folder / "valid.npz"))

    def documents(self, seed: int, epoch: int) -> Iterator[list[list[str]]]:
        """A biLM's documents in the random order of an epoch, each sentence split into words."""
        return map(shards.split_sentences, shards.shuffled(self.files, seed, epoch, DOCUMENTS))

    def held_documents(self) -> list[list[list[str]]]:
        """A biLM's held-out documents."""
        return [*map(shards.split_sentences, shards.read(self.folder / VALID))]


def prepared_folder(corpus: Sequence[str | Path], family: str) -> Prepared | None:
    """The prepared folder that a corpus is, if it is one; its hashes are checked.

    Raises:
        ValueError: a folder that was not prepared, or for the other family, or that has changed, or one among others.
    """
    folders = [Path(path) for path in corpus if Path(path).is_dir()]
    if not folders:
        return None
    folder = folders[0]
    if len(corpus) > 1:
        raise ValueError(f"{folder}: a folder; give either one folder that `ctxrep prepare` wrote, or text files")
    try:
        settings = json.loads((folder / PREPARED).read_text())
        prepared_for, files = settings["family"], dict(settings["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: no {PREPARED} that can be read; run `ctxrep prepare` into it: {error}") from None
    if prepared_for != family:
        raise ValueError(f"{folder}: prepared for {prepared_for}; run `ctxrep prepare {family}`")
    for name in _changed(folder, files):
        remedy = "copy the whole folder again, or prepare again"
        raise ValueError(f"{folder / name}: not what `ctxrep prepare` wrote; {remedy}")
    return Prepared(folder, settings)


def _changed(folder: Path, files: dict[str, str]) -> list[str]:
    """The names of files whose hash differs, or that are missing."""
    paths = {name: folder / Path(name).name for name in files}
    return [name for name, path in paths.items() if not path.is_file() or sha256(path) != files[name]]
