"""Pretraining, from text files to a model folder: ELMo's biLM, BERT's masked words and next sentences."""

import hashlib
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from tqdm import tqdm

from keras_ctxrep import optimizers, pipeline, train
from keras_ctxrep.models import bert, elmo
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import NAME, VOCAB, Bundle, sha256, written_whole
from keras_ctxrep.text.corpus import LONGEST, documents, hold_out, shuffled, without
from keras_ctxrep.text.features import Reads, WordPieceFeatures
from keras_ctxrep.text.pretraining import Masked, Masking, Vocabulary, read_masked, segment_pairs, write_masked
from keras_ctxrep.text.tokens import WordPiece, read_vocab, vocab_text, words

Report = Callable[[dict], None]
PREPARED = "prepared.json"
BUFFER = 200_000  # sentences of BERT's text that are in memory at once
SHARD = 20_000  # examples of a prepared file
NO_PAIRS = "the held-out text has no pair of segments: one sentence a line, an empty line between documents"


def pretrain(
    family: str,
    corpus: Sequence[str | Path],
    out: str | Path,
    size: str | None = None,
    valid: str | Path | None = None,
    vocab: str | Path | None = None,
    vocab_size: int = 8000,
    min_count: int = 2,
    cased: bool = False,
    init: str | Path | None = None,
    read_words: bool = False,
    max_length: int = 128,
    whole_words: bool = False,
    unroll: int | None = None,
    samples: int | None = None,
    batch_size: int = 32,
    steps: int | None = None,
    minutes: float | None = None,
    optimizer: str = "adamw",
    learning_rate: float | None = None,
    dropout: float = 0.1,
    precision: str = "float32",
    seed: int = 0,
    evaluations: int = 10,
    checkpoint_minutes: float = 5.0,
    tensorboard: str | Path | None = None,
    report: Report | None = None,
) -> list[dict]:
    """Pretrains a biLM or a BERT encoder from text files and writes a model folder.

    A biLM learns from whole sentences, each by itself, or with `unroll` from running text, as published: then a stretch
    begins with the state that the one before it left behind. A BERT learns from pairs of segments, masked anew in every
    epoch, or from what `prepare` masked once. The corpus may be of any size: it is read anew in every epoch, and only a
    part of it is in memory.

    BERT as published learns from short texts first: `max_length=128`, and then 512 for a tenth of the steps, with
    `init` the folder of the first run.

    Args:
        family: "elmo" or "bert".
        corpus: text files, one sentence or document a line, an empty line between documents; or, for BERT, a folder
            that `prepare` wrote.
        out: the model folder; a run that was interrupted goes on from the checkpoint in it.
        size: a name in the family's SIZES; None: the smallest one, or that of `init`.
        valid: held-out text; None: a tenth of the corpus, in blocks of sentences.
        vocab: a vocabulary file; None: learned from the corpus, or that of `init`.
        vocab_size: entries of a learned vocabulary, at most.
        min_count: ELMo: a word of a learned vocabulary occurs so often.
        cased: BERT: keep case and accents.
        init: a model folder to start from, as to adapt published weights to a domain: its size and, for BERT, its
            vocabulary; heads too, of ELMo the softmax if it has one over the same vocabulary.
        read_words: ELMo: read the vocabulary's words instead of characters.
        max_length: tokens per example; longer sentences are cut, but for `unroll`.
        whole_words: BERT: mask all pieces of a word together.
        unroll: ELMo: words per stretch of running text (20 in the published model); None: whole sentences.
        samples: ELMo: words that the softmax draws per step (8192 in the published model); None: the full softmax.
        batch_size: sentences or streams (ELMo) or pairs of segments (BERT) per step, over all devices.
        steps, minutes: length of the run, one of the two.
        optimizer: "adamw", with warm-up and decay, or "adagrad", ELMo's published recipe: at its peak all the way.
        learning_rate: its peak; None: 0.001, or 0.2 for Adagrad.
        dropout: while training.
        precision: a Keras dtype policy.
        seed: of every random choice.
        evaluations: how often to validate, evenly over the run.
        checkpoint_minutes: time between two checkpoints.
        tensorboard: folder for TensorBoard logs.
        report: called with each evaluation, as it comes.

    Returns: the evaluations, as of `train.fit`; they are also in OUT/history.json. Each has loss and accuracy of both
        of BERT's tasks, or the perplexity of both directions.

    Raises:
        ValueError: no such size, no text, a vocabulary that does not fit, or an argument out of range.

    Warns:
        UserWarning: `init` lacks a head, which starts at random.
    """
    if family not in ("elmo", "bert"):
        raise ValueError(f"family={family!r}: elmo or bert")
    if isinstance(corpus, str | Path):
        raise TypeError(f"corpus={str(corpus)!r}: give a list of files")
    if (steps is None) == (minutes is None):
        raise ValueError(f"steps={steps}, minutes={minutes}: give one of the two")
    if init is not None and Path(init).resolve() == Path(out).resolve():
        raise ValueError(f"{out}: the folder of the model to start from; choose another one to write to")
    if family == "bert" and (read_words, unroll, samples, optimizer) != (False, None, None, "adamw"):
        raise ValueError("read_words, unroll, samples and adagrad are for ELMo")
    if family == "elmo" and (whole_words or cased):
        raise ValueError("whole_words and cased are for BERT: a biLM masks nothing and reads characters as they are")
    if optimizer not in ("adamw", "adagrad"):
        raise ValueError(f"optimizer={optimizer!r}: choose adamw or adagrad")
    source, before, config = _start(family, size, init, dropout)
    with train.scope(precision) as strategy:
        check_batch_size(batch_size, strategy)
    if family == "elmo":
        plan = _language_modelling(
            corpus, valid, vocab, vocab_size, min_count, read_words, max_length, unroll, samples, batch_size, seed,
            before, config,
        )  # fmt: skip
    else:
        plan = _masked_modelling(
            corpus, valid, vocab, vocab_size, cased, max_length, whole_words, batch_size, seed, before, config
        )
    Path(out).mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(seed)
    with train.scope(precision):
        model = plan.model()
        if source is not None:
            _take_over(source, before, model, plan.bundle, init)
    judge = None if plan.judge is None else plan.judge()
    adagrad = partial(optimizers.Adagrad, learning_rate or 0.2, gradient_scale=float(unroll or 1))
    history = train.fit(
        model,
        plan.data,
        plan.validation,
        judge,
        steps=steps,
        minutes=minutes,
        learning_rate=learning_rate or 1e-3,
        optimizer=adagrad if optimizer == "adagrad" else None,
        evaluations=evaluations,
        folder=out,
        identity=run_identity(
            plan.bundle,
            plan.text,
            (optimizer, learning_rate, batch_size, seed, unroll, samples, whole_words, precision, str(init)),
        ),
        checkpoint_minutes=checkpoint_minutes,
        tensorboard=tensorboard,
        report=report,
    )
    if judge is not None:  # what is kept reads whole sentences
        plain = train.build(plan.bundle)
        train.copy_weights(model, plain)
        model = plain
    train.save(out, model, plan.bundle)
    with written_whole(Path(out) / "history.json") as path:
        path.write_text(json.dumps(history, indent=1))
    return history


def prepare(
    corpus: Sequence[str | Path],
    out: str | Path,
    valid: str | Path | None = None,
    vocab: str | Path | None = None,
    vocab_size: int = 8000,
    cased: bool = False,
    init: str | Path | None = None,
    max_length: int = 128,
    whole_words: bool = False,
    copies: int = 10,
    seed: int = 0,
) -> dict:
    """Masks a text for BERT once and for all, and writes the examples to a folder that `pretrain` reads.

    As the reference implementation does it: https://github.com/google-research/bert, create_pretraining_data.py, and
    `copies` is its dupe_factor. Pretraining reads the arrays and needs no tokenizer then.

    Args:
        corpus, valid, vocab, vocab_size, cased, max_length, whole_words: as of `pretrain`.
        out: the folder: train-*.npz, valid.npz, vocab.txt and prepared.json, which is written last.
        init: the model folder that `pretrain` will start from: its vocabulary and casing.
        copies: passes over the text, each with pairs and masks of its own.
        seed: of every random choice.

    Returns: what prepared.json says: the settings, the numbers of examples and of pieces.

    Raises:
        ValueError: no text, a vocabulary that does not fit, an argument out of range, or `out` is a model folder.
    """
    out = Path(out)
    if (out / NAME).exists():
        raise ValueError(f"{out}: a model folder; choose another one to write to")
    for name, value, least in (("max_length", max_length, 5), ("copies", copies, 1), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name}={value}: must be at least {least}")
    before = None if init is None else bundles.load(init)
    held, read = _held_out(corpus, valid, seed)
    wordpiece = _wordpiece(before, vocab, cased, read(corpus), vocab_size)
    features, masking = WordPieceFeatures(wordpiece, max_length), Masking(wordpiece, whole_words=whole_words)
    valid_examples = masked_once(held, features, masking, seed)
    if not valid_examples:
        raise ValueError(NO_PAIRS)
    out.mkdir(parents=True, exist_ok=True)
    (out / PREPARED).unlink(missing_ok=True)
    for path in out.glob("train-[0-9][0-9][0-9][0-9][0-9].npz"):  # of an earlier text
        path.unlink()
    files: dict[str, str] = {}
    counts = {"examples": 0, "pieces": 0, "valid_examples": 0}

    def write(name: str, examples: list[Masked]) -> None:
        write_masked(out / name, examples)
        files[name] = sha256(out / name)

    counts["valid_examples"] = len(valid_examples)
    write("valid.npz", valid_examples)
    with tqdm(desc="masking", unit=" pairs", file=sys.stderr, leave=False, disable=None) as bar:
        rest: list[Masked] = []
        for number in range(copies):
            rng = np.random.default_rng((seed, number))
            text = shuffled(corpus, read, seed, number, BUFFER, LONGEST)
            for pair in segment_pairs(text, features, rng, BUFFER):
                rest.append(masking(pair, rng))
                counts["examples"] += 1
                counts["pieces"] += len(pair[0])
                if len(rest) == SHARD:
                    write(f"train-{len(files):05}.npz", rest)
                    bar.update(len(rest))
                    rest = []
        if rest:
            write(f"train-{len(files):05}.npz", rest)
    with written_whole(out / VOCAB) as path:
        path.write_bytes(vocab_text(wordpiece.vocab).encode())
    files[VOCAB] = sha256(out / VOCAB)
    settings = {"max_length": max_length, "whole_words": whole_words} | _casing(wordpiece)
    found = {"family": "bert"} | settings | {"copies": copies, "seed": seed} | counts | {"files": files}
    with written_whole(out / PREPARED) as path:
        path.write_text(json.dumps(found, indent=1))
    return found


# ---------------------------------------------------------------------------------------------------------- details


class _Plan(NamedTuple):
    """What a run is made of: text as batches from the nth on, its hashes, and functions that make the models."""

    bundle: Bundle
    data: Callable[[int], Any]
    validation: Any
    text: list
    model: Callable[[], keras.Model]
    judge: Callable[[], keras.Model] | None = None


def _start(family: str, size: str | None, init: str | Path | None, dropout: float):
    """The model to start from and its bundle, if any, and the config."""
    sizes: dict[str, Any] = {"elmo": elmo.SIZES, "bert": bert.SIZES}[family]
    rates = {"dropout": dropout} if family == "elmo" else {"dropout": dropout, "attention_dropout": dropout}
    if init is None:
        size = next(iter(sizes)) if size is None else size
        if size not in sizes:
            raise ValueError(f"size {size!r}: choose one of {', '.join(sizes)}")
        return None, None, replace(sizes[size], **rates)
    if size is not None:
        raise ValueError(f"size={size!r} and init={init}: the size is that of the model to start from; give one")
    source, before = train.load(init)
    if before.family != family:
        raise ValueError(f"{init}: a model of the family {before.family!r}; {family!r} starts from its own")
    return source, before, replace({"elmo": elmo.Config, "bert": bert.Config}[family](**before.config), **rates)


def _take_over(source: keras.Model, before: Any, model: keras.Model, bundle: Bundle, init) -> None:
    """Copies the weights of the layers that both have; says which head starts at random."""
    there = {layer.name for layer in source.layers}
    if before.vocab != bundle.vocab:
        there.discard("softmax")  # over other words
    fresh = [layer.name for layer in model.layers if layer.weights and layer.name not in there]
    train.copy_weights(source, model, skip=fresh)
    if fresh:
        warnings.warn(f"{init} has no {', '.join(fresh)} that fits: trained from random weights", stacklevel=3)


def _held_out(corpus: Sequence[str | Path], valid: str | Path | None, seed: int):
    """The held-out documents, and a function that reads the others from some files."""
    held = list(documents([valid])) if valid is not None else hold_out(watched(documents(corpus)), seed=seed)

    def read(paths: Sequence[str | Path]) -> Iterator[list[str]]:
        return without(documents(paths), held if valid is None else [])

    if next(read(corpus), None) is None:
        raise ValueError(
            "nothing to train on is left of the corpus once a part is held out: give held-out text of its own"
        )
    return held, read


def _language_modelling(
    corpus, valid, vocab, vocab_size, min_count, read_words, max_length, unroll, samples, batch_size, seed, before,
    config,
) -> _Plan:  # fmt: skip
    held, read = _held_out(corpus, valid, seed)
    given = list(before.vocab) or None if before is not None else None
    vocabulary = _vocabulary(read_vocab(vocab) if vocab else given, read(corpus), min_count, vocab_size, samples)
    if read_words or config.words:
        if before is not None and (not config.words or list(before.vocab) != vocabulary.vocab):
            raise ValueError("the model to start from reads characters or other words; it keeps what it reads")
        config = replace(config, words=len(vocabulary))
    bundle = Bundle("elmo", "language_model", asdict(config), max_length, vocab=tuple(vocabulary.vocab))
    features: Any = bundle.features

    def texts(epoch: int) -> Iterator[list[str]]:
        return shuffled(corpus, read, seed, epoch)

    data: Any
    rows = max(1, min(batch_size, pipeline.LOGITS // ((unroll or 1) * len(vocabulary))))
    if unroll:
        data = partial(pipeline.running_text, features, vocabulary, texts, batch_size, unroll)
        validation = pipeline.running_text(features, vocabulary, lambda _: held, rows, unroll, epochs=1)
    else:
        data = partial(pipeline.sentences, features, vocabulary, texts, batch_size)
        validation = pipeline.whole_sentences(features, vocabulary, held, batch_size)
    model, judge = partial(train.build, bundle), None
    if unroll or samples:
        model = partial(elmo.language_model, config, len(vocabulary), samples, batch_size if unroll else None)
        judge = partial(elmo.language_model, config, len(vocabulary), streams=rows if unroll else None)
    text = [[sha256(path) for path in corpus], held]
    return _Plan(bundle, partial(data, bool(samples), seed), validation, text, model, judge)


def _vocabulary(given, documents: Iterable[list[str]], min_count, vocab_size, samples) -> Vocabulary:
    """The given one, or one counted on all documents; refused where the softmax cannot draw from it."""
    sentences = ([word.text for word in words(sentence)] for document in watched(documents) for sentence in document)
    if given is None:
        vocabulary = Vocabulary.count(sentences, min_count, vocab_size)
    else:
        vocabulary = Vocabulary(given)
        if samples:
            vocabulary.check_order(itertools.islice(sentences, 10_000))
    if samples and samples > len(vocabulary):
        raise ValueError(
            f"samples={samples}: the vocabulary has {len(vocabulary)} words; sample fewer, or none for the full softmax"
        )
    return vocabulary


def _masked_modelling(
    corpus, valid, vocab, vocab_size, cased, max_length, whole_words, batch_size, seed, before, config
) -> _Plan:
    if max_length > config.max_positions:
        raise ValueError(f"max_length={max_length}: this size has {config.max_positions} positions")
    data: Any
    if len(corpus) == 1 and Path(corpus[0]).is_dir():
        if valid is not None or vocab is not None or cased or whole_words:
            raise ValueError(
                f"{corpus[0]}: vocabulary, casing, masks and held-out text were chosen by `ctxrep prepare`"
            )
        settings = _prepared(Path(corpus[0]), max_length)
        text = [settings["files"]]
        casing = {name: settings[name] for name in ("lowercase", "strip_accents", "split_cjk")}
        wordpiece = WordPiece(read_vocab(Path(corpus[0]) / VOCAB), **casing)
        if before is not None:
            own = before.features.wordpiece
            if (own.vocab, _casing(own)) != (wordpiece.vocab, casing):
                raise ValueError(
                    f"{corpus[0]}: prepared with another vocabulary or casing than that of the model to start from; "
                    "prepare it with init"
                )
        masking, held = None, list(read_masked(Path(corpus[0]) / "valid.npz"))
        shards = [Path(corpus[0]) / name for name in settings["files"] if name.startswith("train-")]

        def examples(epoch: int) -> Iterator:
            rng = np.random.default_rng((seed, epoch))
            return (one for i in rng.permutation(len(shards)) for one in read_masked(shards[i], rng.permutation))

    else:
        blocks, read = _held_out(corpus, valid, seed)
        text = [[sha256(path) for path in corpus], blocks]
        wordpiece = _wordpiece(before, vocab, cased, read(corpus), vocab_size)
        masking = Masking(wordpiece, whole_words=whole_words)
        held = masked_once(blocks, WordPieceFeatures(wordpiece, max_length), masking, seed)

        def examples(epoch: int) -> Iterator:
            rng = np.random.default_rng((seed, epoch))
            return segment_pairs(shuffled(corpus, read, seed, epoch, BUFFER, LONGEST), features, rng, BUFFER)

    if not held:
        raise ValueError(NO_PAIRS)
    config = replace(config, vocabulary_size=len(wordpiece.vocab))
    bundle = replace(
        before or Bundle("bert", "", {}, 0, vocab=tuple(wordpiece.vocab), **_casing(wordpiece)),
        task="pretrainer",
        config=asdict(config),
        max_length=max_length,
        labels=(),
        head={},
        reads=Reads(),
    )
    features: Any = bundle.features
    data = partial(pipeline.segments, features, examples, batch_size, masking, config.pooler, seed)
    validation = pipeline.segments(features, held, batch_size, next_sentence=config.pooler)
    return _Plan(bundle, data, validation, text, partial(train.build, bundle))


def _casing(wordpiece: WordPiece) -> dict[str, Any]:
    return {name: getattr(wordpiece, name) for name in ("lowercase", "strip_accents", "split_cjk")}


def _wordpiece(before: Any, vocab, cased: bool, text: Iterable[list[str]], size: int) -> WordPiece:
    """That of the model to start from, the given vocabulary, or one learned from the text."""
    if before is not None:
        if vocab is not None or cased:
            raise ValueError("the model to start from keeps its vocabulary and casing: leave out vocab and cased")
        if before.family != "bert":
            raise ValueError(f"a model of the family {before.family!r} has no word pieces")
        return before.features.wordpiece
    if vocab is not None:
        return WordPiece(read_vocab(vocab), not cased)
    return WordPiece.train((sentence for document in watched(text) for sentence in document), size, not cased)


def masked_once(
    held: Iterable[list[str]], features: WordPieceFeatures, masking: Masking, seed: int = 0
) -> list[Masked]:
    """Held-out text, masked once, so that figures depend neither on batches nor on how often it is read."""
    rng = np.random.default_rng(seed)
    return [masking(pair, rng) for pair in segment_pairs(held, features, rng)]


def _prepared(folder: Path, max_length: int) -> dict:
    """What prepared.json says, once its files are found to be what they were."""
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


def watched(items: Iterable[list[str]], what: str = "reading") -> Iterator[list[str]]:
    """Documents, with a bar on the screen that counts their sentences while they are read."""
    with tqdm(desc=what, unit=" sentences", file=sys.stderr, leave=False, disable=None, delay=2) as bar:
        for item in items:
            yield item
            bar.update(len(item))


def run_identity(*parts) -> str:
    """A short name of a run's text and settings, to tell whether a checkpoint belongs to it."""
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:16]


def check_batch_size(batch_size: int, strategy) -> None:
    if batch_size % strategy.num_replicas_in_sync:
        raise ValueError(f"batch_size={batch_size}: {strategy.num_replicas_in_sync} devices share it in equal parts")
