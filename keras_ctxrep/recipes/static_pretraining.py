"""Pretraining of static word vectors, from text files to a model folder: skip-gram and CBOW, words and n-grams."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_ctxrep import losses, saving
from keras_ctxrep.atomic import lock_folder
from keras_ctxrep.backend import NAME, TENSORFLOW
from keras_ctxrep.checks import of_kind
from keras_ctxrep.models import static
from keras_ctxrep.optimizers import SGD, OptimizerSpec, RowwiseAdagrad
from keras_ctxrep.options import StaticPretraining
from keras_ctxrep.recipes import corpora
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import documents
from keras_ctxrep.text.features import StaticFeatures
from keras_ctxrep.text.word_blocks import CENTRES, Blocks, EncodedCorpus, WordCounts, blocks, encode_corpus, kept
from keras_ctxrep.training import fit, pipeline
from keras_ctxrep.training.runs import RunRecord, check_replaceable
from keras_ctxrep.training.strategy import choose, is_chief, scope, several_workers

NOISE = {"skipgram": 32, "cbow": 8}  # noise words of a block: of 5 for a pair, of which a centre has 6 and 1
FIRST = 2  # row of the first word, after those of no word and of <UNK>
UPDATES = 32  # in one step of one device
LENGTH = 128  # words that the encoder reads of a text
STEPS = 100  # in a short run too: the learning rate falls between steps
LARGEST = 2048  # words of an update by SGD, above which the sums for frequent words diverge


def run(corpus: Sequence[str | Path], out: str | Path, report, options: StaticPretraining) -> list[dict]:
    """The work of `commands.pretrain.PretrainStatic`."""
    if isinstance(corpus, str | Path):
        raise TypeError(f"corpus={str(corpus)!r}: give a list of files")
    strategy = choose(options.strategy)
    if not TENSORFLOW:
        raise ValueError(
            f"static word vectors are trained by TensorFlow, not by the backend {NAME}; unset KERAS_BACKEND"
        )
    if several_workers(strategy):
        raise ValueError("static word vectors are trained by one machine; leave out TF_CONFIG")
    with lock_folder(out):
        return _pretrain(corpus, out, report, options, strategy)


def _pretrain(corpus: Sequence[str | Path], out, report, options: StaticPretraining, strategy) -> list[dict]:
    adagrad, batch_size = _batch_size(options, strategy.num_replicas_in_sync)
    run = RunRecord.of("pretrain_static", options, corpus=[Path(path) for path in corpus])
    check_replaceable(out, run.identity, options.overwrite)
    Path(out).mkdir(parents=True, exist_ok=True)
    ids = _encoded(corpus, Path(out) / f"words-{run.identity}", options)
    counts = ids.counts(options.min_count, options.vocab_size)
    if not counts.words:
        raise ValueError(f"no word occurs {options.min_count} times (min_count): lower it, or give more text")
    bundle = _bundle(counts, options)
    keras.utils.set_random_seed(options.seed)
    with scope("float32", strategy):
        model = _trainer(bundle, options)
    total = options.epochs * float(counts.counts @ kept(counts.counts, options.sample))  # centres, expected
    if strategy.num_replicas_in_sync == 1:
        model.updates = int(np.clip(total / STEPS / batch_size, 1, UPDATES))
    in_step = batch_size * model.updates
    steps = max(1, round(total / in_step))
    rate = options.learning_rate or options.RATES["adagrad" if adagrad else options.model]
    settings = {"steps": steps, "learning_rate": rate, "folder": out, "identity": run.identity}
    noise = NOISE[options.model]
    windows = FIRST, options.window, options.sample, in_step // CENTRES, options.seed, noise
    kind = RowwiseAdagrad if adagrad else SGD

    def collate(batch: Blocks, rng: Any) -> tuple[dict, dict]:
        return batch.inputs, {"logits": batch.windows}

    def scaled(learning_rate: float, **others: Any) -> keras.optimizers.Optimizer:
        return kind(learning_rate, gradient_scale=float(batch_size))  # the sum over the words, as word2vec.c makes it

    history = fit.fit(
        model,
        lambda start: pipeline.collated(partial(blocks, ids, counts, *windows), collate, start=start),
        loss={"logits": losses.NegativeSampling(options.negatives, noise)},
        optimizer=OptimizerSpec(scaled),
        report=report,
        options=options.fit(warmup=0.0, decay="linear", **settings),
    )
    if is_chief(strategy):
        run.save(out, history, tokens_per_step=options.epochs * float(counts.counts.sum()) / steps)
        saving.save(out, _encoder(model, bundle), bundle)
        shutil.rmtree(ids.path.parent, ignore_errors=True)
    return history


def _batch_size(options: StaticPretraining, replicas: int) -> tuple[bool, int]:
    """Whether the optimizer is Adagrad, and the words of an update."""
    adagrad = replicas > 1 if options.adagrad is None else options.adagrad
    size = options.batch_size or (LARGEST * replicas if adagrad else 1024)
    if size % (CENTRES * replicas):
        of = f" on {replicas} devices" if replicas > 1 else ""
        raise ValueError(f"batch_size={size}: a multiple of {CENTRES * replicas} is needed{of}")
    if not adagrad and size > LARGEST:
        raise ValueError(f"batch_size={size}: SGD diverges above {LARGEST} words; choose adagrad")
    return adagrad, size


def _encoded(corpus: Sequence[str | Path], folder: Path, options: StaticPretraining) -> EncodedCorpus:
    """The corpus as numbers, of an interrupted run those that are there."""
    for old in set(folder.parent.glob("words-*")) - {folder}:  # of a run with other options
        shutil.rmtree(old)
    if folder.is_dir():
        return EncodedCorpus(folder)
    return encode_corpus(corpora.watched(documents(corpus)), folder, lowercase=not options.cased)


def _bundle(counts: WordCounts, options: StaticPretraining) -> Bundle:
    ngrams: dict[str, Any] = {}
    if options.subwords:
        ngrams = {name: getattr(options, name) for name in ("buckets", "min_n", "max_n")}
    vocab = ("<UNK>", *counts.words)
    config = static.Config(words=len(vocab), width=options.dims, lowercase=not options.cased, **ngrams)
    return Bundle("static", "embed", asdict(config), LENGTH, vocab=vocab)


def _trainer(bundle: Bundle, options: StaticPretraining) -> static.Trainer:
    subwords = None
    if options.subwords:
        features = of_kind(bundle.features, StaticFeatures)
        subwords = [[], [], *(features.rows(word) for word in bundle.vocab[1:])]
    config = static.Config(**bundle.config)
    return static.TRAINERS[options.model](config, options.window, CENTRES, NOISE[options.model], subwords)


def _encoder(model: keras.Model, bundle: Bundle) -> keras.Model:
    """The encoder with the words' table, and the row of <UNK>."""
    layer: Any = model.get_layer("word_embedding")
    table = keras.ops.convert_to_numpy(layer.embeddings).copy()
    words = table[FIRST : 1 + len(bundle.vocab)]
    table[0] = 0
    table[1] = 0 if bundle.config["buckets"] else words.mean(0, dtype=np.float64)
    encoder = saving.build(bundle)
    encoder.get_layer("word_embedding").set_weights([table])
    return encoder
