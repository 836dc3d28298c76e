"""Text and vocabulary of a corpus, for pretraining and for the preparation of its text."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from keras_ctxrep.atomic import atomic_write, sha256
from keras_ctxrep.checks import of_kind
from keras_ctxrep.options import Text
from keras_ctxrep.places import cache_folder
from keras_ctxrep.text.corpus import documents, hold_out, sample, without
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.pretraining import Masked, Masking, Vocabulary, segment_pairs
from keras_ctxrep.text.tokens import WordPiece, read_vocab, split_words, vocab_text
from keras_ctxrep.text.units import TokenFeatures
from keras_ctxrep.version import __version__

NO_PAIRS = "the held-out text has no pair of segments: one sentence a line, an empty line between documents"

CASING = ("lowercase", "strip_accents", "split_cjk")  # of `WordPiece`
Read = Callable[[Sequence[str | Path]], Iterator[list[str]]]  # files -> the documents to train on


def check_corpus(family: str, corpus: Sequence[str | Path], families: tuple[str, ...] = ("elmo", "bert")) -> None:
    """Raises an error for another family, or for one file instead of a list of files."""
    if family not in families:
        raise ValueError(f"family={family!r}: {' or '.join(families)}")
    if isinstance(corpus, str | Path):
        raise TypeError(f"corpus={str(corpus)!r}: give a list of files")


def held_out(corpus: Sequence[str | Path], valid: str | Path | None, seed: int) -> tuple[list[list[str]], Read]:
    """The held-out documents, and a function that reads the others from some files."""
    held = list(documents([valid])) if valid is not None else hold_out(watched(documents(corpus)), seed=seed)

    def read(paths: Sequence[str | Path]) -> Iterator[list[str]]:
        return without(documents(paths), held if valid is None else [])

    if next(read(corpus), None) is None:
        raise ValueError("no text is left to train on after a part is held out: give a file of held-out text")
    return held, read


def learned(
    learn: Callable[[list[str]], list[str]], corpus: Sequence[str | Path], read: Read, options: Text, kind: str
) -> list[str]:
    """A vocabulary learned from `options.vocab_sample` sentences, once for each corpus and kind: kept in the cache."""
    names = ("seed", "vocab_size", "vocab_sample", "min_count", "cased")
    relevant = {name: getattr(options, name) for name in names} | {"held_out": options.valid is None}
    key = json.dumps([kind, relevant, [sha256(path) for path in corpus], __version__])
    path = cache_folder() / "vocabularies" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.txt"
    if path.exists():
        return read_vocab(path)
    vocab = learn(sample(watched(read(corpus)), options.vocab_sample, options.seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(vocab_text(vocab), encoding="utf-8")
    return vocab


def word_pieces(bundle: Any) -> WordPiece:
    """The tokenizer of a model over word pieces; a ValueError for any other."""
    error = f"a model of the family {bundle.family!r} has no word pieces"
    tokenizer = of_kind(bundle.features, WordPieceFeatures, error).wordpiece
    return of_kind(tokenizer, WordPiece, "a model whose tokenizer is a tokenizer.json; one over WordPiece is needed")


def wordpiece_of(initial: Any, options: Text, corpus: Sequence[str | Path], read: Read) -> WordPiece:
    """The tokenizer of the initial model, of the given vocabulary, or one learned from the text."""
    if initial is not None:
        if options.vocab is not None or options.cased:
            raise ValueError("the model to start from keeps its vocabulary and casing: leave out vocab and cased")
        return word_pieces(initial)
    lowercase = not options.cased
    if options.vocab is not None:
        return WordPiece(read_vocab(options.vocab), lowercase)

    def learn(sentences: list[str]) -> list[str]:
        return WordPiece.train(sentences, options.vocab_size, lowercase).vocab

    return WordPiece(learned(learn, corpus, read, options, "pieces"), lowercase)


def word_vocabulary(
    options: Text,
    initial: Any,
    corpus: Sequence[str | Path],
    read: Read,
    split: Callable[[str], list[str]] = split_words,
) -> Vocabulary:
    """The words a biLM predicts, or what `split` gives: of a file, of the initial model, or counted on the text."""

    def count(sentences: list[str]) -> list[str]:
        return Vocabulary.count(map(split, sentences), options.min_count, options.vocab_size).vocab

    words = given_words(options, initial)
    return Vocabulary(learned(count, corpus, read, options, split.__name__) if words is None else words)


def token_features(
    units: str, options: Text, initial: Any, corpus: Sequence[str | Path], read: Read
) -> tuple[TokenFeatures, dict[str, Any]]:
    """The tokens of a language model in one direction, with fields of its bundle: of the initial model, or learned.

    Args:
        units: one of `keras_ctxrep.text.units.UNITS`.
        options, corpus, read: as in `learned`.
        initial: the bundle of the model to start from, if any.
    """
    if initial is not None:
        if options.vocab is not None or options.cased:
            raise ValueError("the model to start from keeps its vocabulary and casing: leave out vocab and cased")
        return initial.features, {
            name: getattr(initial, name) for name in ("vocab", "tokenizer", "special_tokens", *CASING)
        }
    fields: dict[str, Any] = {}
    if units == "pieces":
        wordpiece = wordpiece_of(None, options, corpus, read)
        vocab, fields = wordpiece.vocab, casing(wordpiece)
    else:
        vocab = word_vocabulary(options, None, corpus, read, split_words if units == "words" else list).vocab
    return TokenFeatures(units, vocab, options.max_length, **fields), {"vocab": tuple(vocab)} | fields


def given_words(options: Text, initial: Any) -> list[str] | None:
    """The vocabulary of the given file or of the initial model, if there is one."""
    if options.vocab is not None:
        return read_vocab(options.vocab)
    return list(initial.vocab) or None if initial is not None else None


def casing(wordpiece: WordPiece) -> dict[str, Any]:
    """How a tokenizer treats case, accents and Chinese characters, as arguments of `WordPiece`."""
    return {name: getattr(wordpiece, name) for name in CASING}


def masked_once(
    held: Iterable[list[str]], features: WordPieceFeatures, masking: Masking, seed: int = 0, segments=segment_pairs
) -> list[Masked]:
    """Held-out text, masked once, so that the metrics depend neither on batches nor on the number of passes."""
    rng = np.random.default_rng(seed)
    return [masking(pair, rng) for pair in segments(held, features, rng)]


def watched(items: Iterable[list[str]], label: str = "reading") -> Iterator[list[str]]:
    """Passes documents on and shows a progress bar over their sentences."""
    with tqdm(desc=label, unit=" sentences", file=sys.stderr, leave=False, disable=None, delay=2) as bar:
        for item in items:
            yield item
            bar.update(len(item))
