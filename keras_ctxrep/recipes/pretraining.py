"""Pretraining, from text files to a model folder: ELMo's biLM, BERT's masked words and next sentences."""

import hashlib
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from tqdm import tqdm

from keras_ctxrep import __version__, optimizers, pipeline, train
from keras_ctxrep.download import cache_folder
from keras_ctxrep.models import elmo
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.options import Preparation, Pretraining, Schedule, Text
from keras_ctxrep.runs import Run
from keras_ctxrep.strategy import choose, is_chief
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import NAME, VOCAB, Bundle, sha256, written_whole
from keras_ctxrep.text.corpus import LONGEST, documents, hold_out, sample, shuffled, without
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.pretraining import (
    PREPARED,
    Masked,
    Masking,
    Vocabulary,
    read_masked,
    segment_pairs,
    single_segments,
    write_masked,
)
from keras_ctxrep.text.tokens import WordPiece, read_vocab, vocab_text, words

Report = Callable[[dict], None]
BUFFER = 200_000  # sentences of BERT's text that are shuffled in memory
ENCODED = 20_000  # of which so many are turned into pieces at once
SHARD = 20_000  # examples of a prepared file
NO_PAIRS = "the held-out text has no pair of segments: one sentence a line, an empty line between documents"


def pretrain(
    family: str, corpus: Sequence[str | Path], out: str | Path, report: Report | None = None, **options
) -> list[dict]:
    """Pretrains a biLM or a BERT encoder from text files and writes a model folder.

    A biLM learns from whole sentences, each by itself, or with `unroll` from running text, as published: then each
    batch starts from the final state of the previous one. A BERT learns from pairs of segments, with new masks in every
    epoch, or from what `prepare` masked once. The corpus may be of any size: it is read again in every epoch, and only
    a part of it is in memory.

    BERT as published learns from short texts first: `max_length=128`, and then 512 for a tenth of the steps, with
    `init` the folder of the first run.

    Args:
        family: "elmo" or "bert".
        corpus: text files, one sentence or document a line, an empty line between documents; or, for BERT, a folder
            that `prepare` wrote.
        out: the model folder; an interrupted run resumes from the checkpoint in it.
        report: called with each evaluation.
        options: fields of `keras_ctxrep.options.Pretraining`; `steps` or `minutes` is needed. `init` gives size, heads
            and, for BERT, the vocabulary, of ELMo the softmax if it has one over the same vocabulary. `learning_rate`
            is 0.001, or 0.2 for Adagrad, whose rate stays at its peak, unless it is given.

    Returns: the evaluations, as of `train.fit`; they are also in OUT/run.json, with all that is needed to
        repeat the run. Each has loss and accuracy of both of BERT's tasks, or the perplexity of both directions.

    Raises:
        TypeError: no such option.
        ValueError: no such size, no text, a vocabulary that does not fit, or an argument out of range.

    Warns:
        UserWarning: `init` lacks a head, which starts at random.
    """
    settings = Pretraining.of(options, "pretrain")
    _check(family, corpus, out, settings)
    strategy = choose(settings.strategy)  # before the first model
    check_batch_size(settings.batch_size, strategy)
    source, initial, config = _start(family, settings)
    plan = _PLANS[family](corpus, settings, initial, config)
    run = Run.of("pretrain", settings, family=family, corpus=[Path(path) for path in corpus])
    Path(out).mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(settings.seed)
    with train.scope(settings.precision, strategy):
        model = plan.model()
        if source is not None:
            _copy_common_layers(source, initial, model, plan.bundle, settings.init)
    eval_model = None if plan.eval_model is None else plan.eval_model()
    history = _fit(model, plan, eval_model, settings, folder=out, identity=run.identity, report=report)
    if eval_model is not None:  # the saved model reads whole sentences
        plain = train.build(plan.bundle)
        train.copy_weights(model, plain)
        model = plain
    if is_chief(strategy):
        run.save(out, history)
        train.save(out, model, plan.bundle)
    return history


def _check(family: str, corpus: Sequence[str | Path], out: str | Path, settings: Pretraining) -> None:
    """Raises an error for arguments that contradict each other."""
    if family not in _PLANS:
        raise ValueError(f"family={family!r}: elmo or bert")
    if isinstance(corpus, str | Path):
        raise TypeError(f"corpus={str(corpus)!r}: give a list of files")
    if settings.init is not None and Path(settings.init).resolve() == Path(out).resolve():
        raise ValueError(f"{out}: the folder of the model to start from; choose another one to write to")
    if settings.optimizer == "adagrad" and settings.decay != "linear":
        raise ValueError(f"decay={settings.decay!r}: Adagrad's learning rate stays as it is; leave decay out")
    names, message = _FOREIGN[family]
    defaults = {entry.name: entry.default for entry in fields(settings)}
    if any(getattr(settings, name) not in (defaults[name], "lamb") for name in names):  # LAMB is for both families
        raise ValueError(message)


def _fit(model: keras.Model, plan: "_Plan", eval_model, settings: Pretraining, **more) -> list[dict]:
    optimizer = optimizers.LAMB if settings.optimizer == "lamb" else None
    if settings.optimizer == "adagrad":
        rate, scale = settings.learning_rate or 0.2, float(settings.unroll or 1)
        optimizer = partial(optimizers.Adagrad, rate, gradient_scale=scale)
    shared = {entry.name: getattr(settings, entry.name) for entry in fields(Schedule)}
    shared["learning_rate"] = settings.learning_rate or 1e-3
    return train.fit(model, plan.data, plan.validation, eval_model, optimizer=optimizer, **shared, **more)


def prepare(corpus: Sequence[str | Path], out: str | Path, **options) -> dict:
    """Masks a text for BERT once, and writes the examples to a folder that `pretrain` reads.

    As the reference implementation does it: https://github.com/google-research/bert, create_pretraining_data.py, and
    `copies` is its dupe_factor. Pretraining reads the arrays and needs no tokenizer then.

    Args:
        corpus: as of `pretrain`.
        out: the folder: train-*.npz, valid.npz, vocab.txt and prepared.json, which is written last.
        options: fields of `keras_ctxrep.options.Preparation`.

    Returns: the contents of prepared.json: the settings, the numbers of examples and of pieces.

    Raises:
        TypeError: no such option.
        ValueError: no text, a vocabulary that does not fit, an argument out of range, or `out` is a model folder.
    """
    out, settings = Path(out), Preparation.of(options, "prepare")
    if (out / NAME).exists():
        raise ValueError(f"{out}: a model folder; choose another one to write to")
    initial = None if settings.init is None else bundles.load(settings.init)
    held, read = _held_out(corpus, settings.valid, settings.seed)
    wordpiece = _wordpiece(initial, settings, corpus, read)
    features = WordPieceFeatures(wordpiece, settings.max_length)
    masking = Masking(wordpiece, whole_words=settings.whole_words)
    valid_examples = masked_once(held, features, masking, settings.seed)
    if not valid_examples:
        raise ValueError(NO_PAIRS)
    out.mkdir(parents=True, exist_ok=True)
    (out / PREPARED).unlink(missing_ok=True)
    for path in out.glob("train-[0-9][0-9][0-9][0-9][0-9].npz"):  # of an earlier text
        path.unlink()
    write_masked(out / "valid.npz", valid_examples)
    examples = _copies(corpus, read, features, masking, settings)
    counts, names = _write_shards(out, examples)
    with written_whole(out / VOCAB) as path:
        path.write_bytes(vocab_text(wordpiece.vocab).encode())
    prepared = {
        "family": "bert",
        "max_length": settings.max_length,
        "whole_words": settings.whole_words,
        **_casing(wordpiece),
        "copies": settings.copies,
        "seed": settings.seed,
        **counts,
        "valid_examples": len(valid_examples),
        "files": {name: sha256(out / name) for name in ("valid.npz", *names, VOCAB)},
    }
    with written_whole(out / PREPARED) as path:
        path.write_text(json.dumps(prepared, indent=1))
    return prepared


def _copies(corpus, read, features: WordPieceFeatures, masking: Masking, settings: Preparation) -> Iterator[Masked]:
    for number in range(settings.copies):
        rng = np.random.default_rng((settings.seed, number))
        text = shuffled(corpus, read, settings.seed, number, BUFFER, LONGEST)
        for pair in segment_pairs(text, features, rng, ENCODED):
            yield masking(pair, rng)


def _write_shards(out: Path, examples: Iterator[Masked]) -> tuple[dict[str, int], list[str]]:
    """Numbers of examples and pieces, and the names of the files."""
    counts, names = {"examples": 0, "pieces": 0}, []
    with tqdm(desc="masking", unit=" pairs", file=sys.stderr, leave=False, disable=None) as bar:
        while shard := list(itertools.islice(examples, SHARD)):
            names.append(f"train-{len(names) + 1:05}.npz")
            write_masked(out / names[-1], shard)
            counts["examples"] += len(shard)
            counts["pieces"] += sum(len(example.tokens) for example in shard)
            bar.update(len(shard))
    return counts, names


# ---------------------------------------------------------------------------------------------------------- details


class _Plan(NamedTuple):
    """The parts of a run: a function to the batches from the nth on, validation data, and functions to the models."""

    bundle: Bundle
    data: Callable[[int], Any]
    validation: Any
    model: Callable[[], keras.Model]
    eval_model: Callable[[], keras.Model] | None = None


def _start(family: str, settings: Pretraining):
    """The model to start from and its bundle, if any, and the config."""
    own = FAMILIES[family]
    sizes: Any = own.sizes
    names = [entry.name for entry in fields(own.config) if entry.name.endswith("dropout")]
    rates: dict[str, Any] = dict.fromkeys(names, settings.dropout)
    if settings.init is None:
        size = next(iter(sizes)) if settings.size is None else settings.size
        if size not in sizes:
            raise ValueError(f"size {size!r}: choose one of {', '.join(sizes)}")
        return None, None, replace(sizes[size], **rates)
    if settings.size is not None:
        raise ValueError(
            f"size={settings.size!r} and init={settings.init}: the size is that of the model to start from; give one"
        )
    source, initial = train.load(settings.init)
    if FAMILIES[initial.family] is not own:
        raise ValueError(f"{settings.init}: a model of the family {initial.family!r}; {family!r} starts from its own")
    return source, initial, replace(own.config(**initial.config), **rates)


def _copy_common_layers(source: keras.Model, initial: Any, model: keras.Model, bundle: Bundle, init) -> None:
    """Copies the weights of the layers that both have; warns which heads start at random."""
    common = {layer.name for layer in source.layers}
    if initial.vocab != bundle.vocab:
        common.discard("softmax")  # over other words
    fresh = [layer.name for layer in model.layers if layer.weights and layer.name not in common]
    train.copy_weights(source, model, skip=fresh)
    if fresh:
        warnings.warn(f"{init} has no {', '.join(fresh)} that fits: trained from random weights", stacklevel=3)


def _held_out(corpus: Sequence[str | Path], valid: str | Path | None, seed: int):
    """The held-out documents, and a function that reads the others from some files."""
    held = list(documents([valid])) if valid is not None else hold_out(watched(documents(corpus)), seed=seed)

    def read(paths: Sequence[str | Path]) -> Iterator[list[str]]:
        return without(documents(paths), held if valid is None else [])

    if next(read(corpus), None) is None:
        raise ValueError("no text is left to train on after a part is held out: give a file of held-out text")
    return held, read


def _language_modelling(corpus: Sequence[str | Path], settings: Pretraining, initial: Any, config: Any) -> _Plan:
    held, read = _held_out(corpus, settings.valid, settings.seed)
    initial_vocab = list(initial.vocab) or None if initial is not None else None
    vocabulary = _vocabulary(read_vocab(settings.vocab) if settings.vocab else initial_vocab, corpus, read, settings)
    if settings.read_words or config.words:
        if initial is not None and (not config.words or list(initial.vocab) != vocabulary.vocab):
            raise ValueError("the model to start from reads characters or other words; it keeps what it reads")
        config = replace(config, words=len(vocabulary))
    bundle = Bundle("elmo", "language_model", asdict(config), settings.max_length, vocab=tuple(vocabulary.vocab))
    features: Any = bundle.features

    def texts(epoch: int) -> Iterator[list[str]]:
        return shuffled(corpus, read, settings.seed, epoch)

    data: Any
    batch_size, unroll, samples = settings.batch_size, settings.unroll, settings.samples
    rows = max(1, min(batch_size, pipeline.LOGITS // ((unroll or 1) * len(vocabulary))))
    if unroll:
        data = partial(pipeline.running_text, features, vocabulary, texts, batch_size, unroll)
        validation = pipeline.running_text(features, vocabulary, lambda _: held, rows, unroll, epochs=1)
    else:
        data = partial(pipeline.sentences, features, vocabulary, texts, batch_size, seed=settings.seed)
        validation = pipeline.whole_sentences(features, vocabulary, held, batch_size)
    model, eval_model = partial(train.build, bundle), None
    if unroll or samples:
        model = partial(elmo.language_model, config, len(vocabulary), samples, batch_size if unroll else None)
        eval_model = partial(elmo.language_model, config, len(vocabulary), streams=rows if unroll else None)

    def batches(start: int) -> Any:
        return data(sampled=bool(samples), start=start)

    return _Plan(bundle, batches, validation, model, eval_model)


Read = Callable[[Sequence[str | Path]], Iterator[list[str]]]  # files -> the documents to train on


def _vocabulary(vocab, corpus: Sequence[str | Path], read: Read, settings: Pretraining) -> Vocabulary:
    """The given one, or one counted on the text; refused where the softmax cannot draw from it."""

    def split(sentences: Iterable[str]) -> Iterator[list[str]]:
        return ([word.text for word in words(sentence)] for sentence in sentences)

    def count(sentences: list[str]) -> list[str]:
        return Vocabulary.count(split(sentences), settings.min_count, settings.vocab_size).vocab

    samples = settings.samples
    if vocab is None:
        vocabulary = Vocabulary(_learned(count, corpus, read, settings))
    else:
        vocabulary = Vocabulary(vocab)
        if samples:
            sentences = itertools.chain.from_iterable(read(corpus))
            vocabulary.check_order(split(itertools.islice(sentences, 10_000)))
    if samples and samples > len(vocabulary):
        raise ValueError(
            f"samples={samples}: the vocabulary has {len(vocabulary)} words; sample fewer, or none for the full softmax"
        )
    return vocabulary


class _PairText(NamedTuple):
    """BERT's text: its tokenizer, pairs by epoch (already masked if `masking` is None), and held-out pairs."""

    wordpiece: WordPiece
    examples: Callable[[int], Iterable]
    masking: Masking | None
    held: list[Masked]


def _masked_modelling(corpus: Sequence[str | Path], settings: Pretraining, initial: Any, config: Any) -> _Plan:
    if settings.max_length > config.max_positions:
        raise ValueError(f"max_length={settings.max_length}: this size has {config.max_positions} positions")
    if settings.next_sentence is not None:
        config = replace(config, pooler=settings.next_sentence)
    prepared = len(corpus) == 1 and Path(corpus[0]).is_dir()
    text = (
        _prepared_text(Path(corpus[0]), settings, initial) if prepared else _raw_text(corpus, settings, initial, config)
    )
    if not text.held:
        raise ValueError(NO_PAIRS)
    wordpiece = text.wordpiece
    config = replace(config, vocabulary_size=len(wordpiece.vocab))
    # only the encoder of an initial model is used: no task network, no task settings
    bundle = Bundle(
        "bert",
        "pretrainer",
        asdict(config),
        settings.max_length,
        vocab=tuple(wordpiece.vocab),
        **_casing(wordpiece),
    )
    features: Any = bundle.features
    batch_size = settings.batch_size
    data = partial(pipeline.segments, features, text.examples, batch_size, text.masking, config.pooler, settings.seed)
    validation = pipeline.segments(features, text.held, batch_size, next_sentence=config.pooler)
    return _Plan(bundle, data, validation, partial(train.build, bundle))


def _prepared_text(folder: Path, settings: Pretraining, initial: Any) -> _PairText:
    if settings.valid is not None or settings.vocab is not None or settings.cased or settings.whole_words:
        raise ValueError(f"{folder}: vocabulary, casing, masks and held-out text were chosen by `ctxrep prepare`")
    prepared = _prepared(folder, settings.max_length)
    casing = {name: prepared[name] for name in ("lowercase", "strip_accents", "split_cjk")}
    wordpiece = WordPiece(read_vocab(folder / VOCAB), **casing)
    if initial is not None:
        own = initial.features.wordpiece
        if (own.vocab, _casing(own)) != (wordpiece.vocab, casing):
            raise ValueError(
                f"{folder}: prepared with another vocabulary or casing than that of the model to start from; "
                "prepare it with init"
            )
    shards = [folder / name for name in prepared["files"] if name.startswith("train-")]

    def examples(epoch: int) -> Iterator[Masked]:
        rng = np.random.default_rng((settings.seed, epoch))
        return (example for i in rng.permutation(len(shards)) for example in read_masked(shards[i], rng.permutation))

    return _PairText(wordpiece, examples, None, list(read_masked(folder / "valid.npz")))


def _raw_text(corpus: Sequence[str | Path], settings: Pretraining, initial: Any, config: Any) -> _PairText:
    held, read = _held_out(corpus, settings.valid, settings.seed)
    wordpiece = _wordpiece(initial, settings, corpus, read)
    features = WordPieceFeatures(wordpiece, settings.max_length)
    masking = Masking(wordpiece, whole_words=settings.whole_words)
    segments = segment_pairs if config.pooler else single_segments

    def examples(epoch: int) -> Iterator:
        rng = np.random.default_rng((settings.seed, epoch))
        return segments(shuffled(corpus, read, settings.seed, epoch, BUFFER, LONGEST), features, rng, ENCODED)

    return _PairText(wordpiece, examples, masking, masked_once(held, features, masking, settings.seed, segments))


def _casing(wordpiece: WordPiece) -> dict[str, Any]:
    return {name: getattr(wordpiece, name) for name in ("lowercase", "strip_accents", "split_cjk")}


def _learned(
    learn: Callable[[list[str]], list[str]], corpus: Sequence[str | Path], read: Read, settings: Text
) -> list[str]:
    """A vocabulary learned from `settings.vocab_sample` sentences, once for each corpus: it is kept in the cache."""
    names = ("seed", "vocab_size", "vocab_sample", "min_count", "cased")
    options = {name: getattr(settings, name, None) for name in names} | {"held_out": settings.valid is None}
    key = json.dumps([learn.__qualname__, options, [sha256(path) for path in corpus], __version__])
    path = cache_folder() / "vocabularies" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.txt"
    if path.exists():
        return read_vocab(path)
    vocab = learn(sample(watched(read(corpus)), settings.vocab_sample, settings.seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as temporary:
        temporary.write_text(vocab_text(vocab), encoding="utf-8")
    return vocab


def _wordpiece(initial: Any, settings: Text, corpus: Sequence[str | Path], read: Read) -> WordPiece:
    """The tokenizer of the initial model, of the given vocabulary, or one learned from the text."""
    if initial is not None:
        if settings.vocab is not None or settings.cased:
            raise ValueError("the model to start from keeps its vocabulary and casing: leave out vocab and cased")
        if not isinstance(initial.features, WordPieceFeatures):
            raise ValueError(f"a model of the family {initial.family!r} has no word pieces")
        return initial.features.wordpiece
    lowercase = not settings.cased
    if settings.vocab is not None:
        return WordPiece(read_vocab(settings.vocab), lowercase)

    def learn(sentences: list[str]) -> list[str]:
        return WordPiece.train(sentences, settings.vocab_size, lowercase).vocab

    return WordPiece(_learned(learn, corpus, read, settings), lowercase)


def masked_once(
    held: Iterable[list[str]], features: WordPieceFeatures, masking: Masking, seed: int = 0, segments=segment_pairs
) -> list[Masked]:
    """Held-out text, masked once, so that the metrics depend neither on batches nor on the number of passes."""
    rng = np.random.default_rng(seed)
    return [masking(pair, rng) for pair in segments(held, features, rng)]


def _prepared(folder: Path, max_length: int) -> dict:
    """The contents of prepared.json, after a check of its files' hashes."""
    try:
        settings = json.loads((folder / PREPARED).read_text())
        longest, files = settings["max_length"], settings["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: no {PREPARED} that can be read; run `ctxrep prepare` into it: {error}") from None
    for name, digest in files.items():
        path = folder / Path(name).name
        if not path.is_file() or sha256(path) != digest:
            raise ValueError(f"{path}: not what `ctxrep prepare` wrote; copy the whole folder again, or prepare again")
    if longest != max_length:
        raise ValueError(f"{folder}: its examples have up to {longest} pieces: choose max_length={longest}")
    return settings


def watched(items: Iterable[list[str]], label: str = "reading") -> Iterator[list[str]]:
    """Passes documents on and shows a progress bar over their sentences."""
    with tqdm(desc=label, unit=" sentences", file=sys.stderr, leave=False, disable=None, delay=2) as bar:
        for item in items:
            yield item
            bar.update(len(item))


def run_identity(*parts) -> str:
    """A hash of a run's text and settings, by which a checkpoint is matched to its run."""
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:16]


def check_batch_size(batch_size: int, strategy) -> None:
    if batch_size % strategy.num_replicas_in_sync:
        raise ValueError(f"batch_size={batch_size}: {strategy.num_replicas_in_sync} devices share it in equal parts")


_PLANS = {"elmo": _language_modelling, "bert": _masked_modelling}
# family -> options of the other family, and the error where one of them is given
_FOREIGN = {
    "bert": (
        ("read_words", "unroll", "samples", "optimizer"),
        "read_words, unroll, samples and adagrad are for ELMo",
    ),
    "elmo": (
        ("whole_words", "cased", "next_sentence"),
        "whole_words, cased and next_sentence are for BERT: a biLM masks nothing and reads characters as they are",
    ),
}
