"""Pretraining, from text files to a model folder: ELMo's biLM, BERT's masked words and next sentences, and language
models in one direction."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_ctxrep import saving, zoo
from keras_ctxrep.checks import of_kind, warn
from keras_ctxrep.deprecated import moved
from keras_ctxrep.layers.initializers import no_random_weights
from keras_ctxrep.models import elmo, lm
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.optimizers import LAMB, Adagrad, AdamW, OptimizerSpec
from keras_ctxrep.options import Pretraining
from keras_ctxrep.recipes import corpora
from keras_ctxrep.recipes.preparing import Prepared, prepared_folder
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import LONGEST, shuffled
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.pretraining import Masked, Masking, Vocabulary, segment_pairs, single_segments
from keras_ctxrep.text.scripts import scripts_of
from keras_ctxrep.text.tokens import WordPiece, split_words
from keras_ctxrep.training import fit, pipeline
from keras_ctxrep.training.runs import RunRecord, check_replaceable
from keras_ctxrep.training.strategy import check_devices, choose, is_chief, lock_output, of_model, scope

__getattr__ = moved(__name__, "keras_ctxrep.commands.pretrain")

BUFFER = 1_000_000  # sentences that are shuffled in memory: 100 MB of English text
UNROLL = 35  # tokens per step of a language model in one direction, Zaremba et al. 2014
ENCODED = 20_000  # of which so many are turned into pieces at once


def run(
    family: str,
    corpus: Sequence[str | Path],
    out: str | Path,
    report,
    callbacks: Sequence[keras.callbacks.Callback],
    options: Pretraining,
) -> list[dict]:
    """The work of `commands.pretrain.Pretrain`."""
    _check(family, corpus, out, options)
    strategy = choose(options.strategy)  # before the first model
    check_devices(options.batch_size, options.precision, strategy)
    with lock_output(out, strategy):
        return _pretrain(family, corpus, out, report, callbacks, options, strategy)


def _pretrain(
    family: str, corpus: Sequence[str | Path], out, report, callbacks, options: Pretraining, strategy
) -> list[dict]:
    source, initial, config = _start(family, options)
    plan = _RECIPES[family].plan(corpus, options, initial, config)
    run = RunRecord.of("pretrain", options, family=family, corpus=[Path(path) for path in corpus])
    check_replaceable(out, run.identity, options.overwrite)
    Path(out).mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    with scope(options.precision, strategy):
        model = plan.model()
        if source is not None:
            _copy_common_layers(source, initial, model, plan.bundle, options.init)
    eval_model = None if plan.eval_model is None else plan.eval_model()
    source = f"{', '.join(map(str, corpus))}, seed {options.seed}"
    settings = {"folder": out, "identity": run.identity, "source": source}
    history = _fit(model, plan, eval_model, options, report, callbacks, **settings)
    if eval_model is not None:  # the saved model reads whole sentences
        with no_random_weights():
            plain = saving.build(plan.bundle)
        copy_weights(model, plain)
        model = plain
    if is_chief(strategy):
        run.save(out, history, tokens_per_step=plan.tokens)
        saving.save(out, model, plan.bundle)
    return history


def _check(family: str, corpus: Sequence[str | Path], out: str | Path, options: Pretraining) -> None:
    """Raises an error for arguments that contradict each other."""
    corpora.check_corpus(family, corpus, tuple(_RECIPES))
    if options.init is not None and Path(options.init).resolve() == Path(out).resolve():
        raise ValueError(f"{out}: the folder of the model to start from; choose another one to write to")
    if options.optimizer == "adagrad" and options.decay != "linear":
        raise ValueError(f"decay={options.decay!r}: Adagrad's learning rate stays as it is; leave decay out")
    recipe = _RECIPES[family]
    foreign = (name for name in recipe.foreign if getattr(options, name) not in (getattr(Pretraining, name), "lamb"))
    if any(foreign):  # LAMB is for all
        raise ValueError(recipe.message)


def _fit(
    model: keras.Model,
    plan: "_Plan",
    eval_model,
    options: Pretraining,
    report,
    callbacks: Sequence[keras.callbacks.Callback],
    **changes,
) -> list[dict]:
    optimizer = OptimizerSpec(LAMB if options.optimizer == "lamb" else AdamW)
    rate = options.learning_rate or options.RATES[options.optimizer]
    if options.optimizer == "adagrad":
        arguments = {"learning_rate": rate, "gradient_scale": float(options.unroll or 1)}
        optimizer = OptimizerSpec(Adagrad, arguments, scheduled=False)
    strategy = of_model(model)

    return fit.fit(
        model,
        lambda start: pipeline.distributed(lambda: plan.data(start), strategy),
        plan.validation,
        eval_model=eval_model,
        optimizer=optimizer,
        report=report,
        callbacks=callbacks,
        options=options.fit(learning_rate=rate, **changes),
    )


class _Plan(NamedTuple):
    """The parts of a run."""

    bundle: Bundle
    data: Callable[[int], Any]  # number of a batch -> the batches from this one on
    validation: Any  # data
    model: Callable[[], keras.Model]
    eval_model: Callable[[], keras.Model] | None = None
    tokens: int | None = None  # of a batch, padding included; None: sentences of any length


def _start(family: str, options: Pretraining):
    """The model to start from and its bundle, if any, and the config."""
    models = FAMILIES[family]
    sizes: Any = models.sizes
    rates = {entry.name: options.dropout for entry in fields(models.config) if entry.name.endswith("dropout")}
    if options.init is None:
        size = next(iter(sizes)) if options.size is None else options.size
        if size not in sizes:
            raise ValueError(f"size {size!r}: choose one of {', '.join(sizes)}")
        return None, None, replace(sizes[size], **rates)
    if options.size is not None:
        both = f"size={options.size!r} and init={options.init}"
        raise ValueError(f"{both}: the size is that of the model to start from; give one")
    source, initial = saving.load(zoo.find(options.init))
    if FAMILIES[initial.family] is not models:
        raise ValueError(f"{options.init}: a model of the family {initial.family!r}; {family!r} starts from its own")
    return source, initial, replace(models.config(**initial.config), **rates)


def _copy_common_layers(source: keras.Model, initial: Any, model: keras.Model, bundle: Bundle, init) -> None:
    """Copies the weights of the layers that both have; warns which heads start at random."""
    common = {layer.name for layer in source.layers}
    if initial.vocab != bundle.vocab:
        common.discard("softmax")  # over other words
    fresh = [layer.name for layer in model.layers if layer.trainable_weights and layer.name not in common]
    copy_weights(source, model, skip=fresh)
    if fresh:
        warn(f"{init} has no {', '.join(fresh)} that fits: trained from random weights")


def _language_modelling(corpus: Sequence[str | Path], options: Pretraining, initial: Any, config: Any) -> _Plan:
    vocabulary, texts, held = _sentence_text(corpus, options, initial)
    if options.read_words or config.words:
        if initial is not None and (not config.words or list(initial.vocab) != vocabulary.vocab):
            raise ValueError("the model to start from reads characters or other words; it keeps what it reads")
        config = replace(config, words=len(vocabulary))
    vocab, scripts = tuple(vocabulary.vocab), tuple(sorted(scripts_of(vocabulary.vocab)))
    bundle = Bundle("elmo", "language_model", asdict(config), options.max_length, vocab=vocab, scripts=scripts)
    features = bundle.features

    data: Any
    batch_size, unroll, samples = options.batch_size, options.unroll, options.samples
    rows = max(1, min(batch_size, pipeline.LOGITS // ((unroll or 1) * len(vocabulary))))
    if unroll:
        data = partial(pipeline.running_text, features, vocabulary, texts, batch_size, unroll)
        validation = pipeline.running_text(features, vocabulary, lambda _: held, rows, unroll, epochs=1)
    else:
        data = partial(pipeline.sentences, features, vocabulary, texts, batch_size, seed=options.seed)
        validation = pipeline.whole_sentences(features, vocabulary, held, batch_size)
    model, eval_model = partial(saving.build, bundle), None
    if unroll or samples:
        model = partial(elmo.language_model, config, len(vocabulary), samples, batch_size if unroll else None)
        eval_model = partial(elmo.language_model, config, len(vocabulary), streams=rows if unroll else None)

    return _Plan(
        bundle,
        lambda start: data(sampled=bool(samples), start=start),
        validation,
        model,
        eval_model,
        batch_size * unroll if unroll else None,
    )


def _sentence_text(
    corpus: Sequence[str | Path], options: Pretraining, initial: Any
) -> tuple[Vocabulary, Callable, list]:
    """A biLM's vocabulary, its documents by epoch, and held-out documents; of sentences or of split ones."""
    prepared, words = prepared_folder(corpus, "elmo"), corpora.given_words(options, initial)
    if prepared is None:
        held, read = corpora.held_out(corpus, options.valid, options.seed)
        vocabulary = corpora.word_vocabulary(options, initial, corpus, read)
        documents = partial(shuffled, corpus, read, options.seed, buffer=BUFFER)
        first = map(split_words, itertools.chain.from_iterable(read(corpus)))
    else:
        if options.valid is not None:
            raise ValueError(f"{prepared.folder}: held-out text was chosen by `ctxrep prepare`; leave out valid")
        vocabulary = Vocabulary(prepared.vocab if words is None else words)
        documents, held = partial(prepared.documents, options.seed), prepared.held_documents()
        first = itertools.chain.from_iterable(documents(0))
    learned = words is None and (prepared is None or prepared.settings["learned_vocab"])
    samples = options.samples
    if samples and not learned:
        vocabulary.check_order(itertools.islice(first, 10_000))
    if samples and samples > len(vocabulary):
        size = f"the vocabulary has {len(vocabulary)} words"
        raise ValueError(f"samples={samples}: {size}; sample fewer, or none for the full softmax")
    return vocabulary, documents, held


def _causal_modelling(corpus: Sequence[str | Path], options: Pretraining, initial: Any, config: Any) -> _Plan:
    if folder := next((path for path in corpus if Path(path).is_dir()), None):
        raise ValueError(f"{folder}: a folder; a language model in one direction reads text files")
    if options.units is not None:
        if initial is not None and options.units != config.units:
            raise ValueError(f"units={options.units!r}: the model to start from reads {config.units}; leave it out")
        config = replace(config, units=options.units)
    held, read = corpora.held_out(corpus, options.valid, options.seed)
    features, entries = corpora.token_features(config.units, options, initial, corpus, read)
    size, samples = len(features.vocab), options.samples
    if samples and config.units != "words":
        raise ValueError(
            f"samples={samples}: of words; leave it out, since {config.units} are few enough for the softmax"
        )
    if samples and samples > size:
        raise ValueError(f"samples={samples}: the vocabulary has {size} words; sample fewer, or none")
    if samples and (initial is not None or options.vocab is not None):
        first = map(split_words, itertools.chain.from_iterable(read(corpus)))
        features.vocabulary.check_order(itertools.islice(first, 10_000))
    bundle = Bundle("lm", "causal_language_model", asdict(config), options.max_length, **entries)
    batch_size, unroll = options.batch_size, options.unroll or UNROLL
    documents = partial(shuffled, corpus, read, options.seed, buffer=BUFFER)
    data = partial(pipeline.running_tokens, features, documents, batch_size, unroll)
    rows = max(1, min(batch_size, pipeline.LOGITS // (unroll * size)))

    return _Plan(
        bundle,
        lambda start: data(sampled=bool(samples), start=start),
        pipeline.running_tokens(features, lambda _: held, rows, unroll, epochs=1),
        partial(lm.language_model, config, size, samples, batch_size),
        partial(lm.language_model, config, size, streams=rows),
        batch_size * unroll,
    )


def _masked_modelling(corpus: Sequence[str | Path], options: Pretraining, initial: Any, config: Any) -> _Plan:
    if options.max_length > config.max_positions:
        raise ValueError(f"max_length={options.max_length}: this size has {config.max_positions} positions")
    if options.next_sentence is not None:
        config = replace(config, pooler=options.next_sentence)
    prepared = prepared_folder(corpus, "bert")
    raw = prepared is None
    text = _raw_text(corpus, options, initial, config) if raw else _prepared_text(prepared, options, initial)
    wordpiece, examples, masking, held = text
    if not held:
        raise ValueError(corpora.NO_PAIRS)
    config = replace(config, vocabulary_size=len(wordpiece.vocab))
    # only the encoder of an initial model is used: no task network, no task options
    fields = {"vocab": tuple(wordpiece.vocab), **corpora.casing(wordpiece)}
    bundle = Bundle("bert", "pretrainer", asdict(config), options.max_length, **fields)
    features = of_kind(bundle.features, WordPieceFeatures)
    batch_size = options.batch_size
    data = partial(pipeline.segments, features, examples, batch_size, masking, config.pooler, options.seed)
    validation = pipeline.segments(features, held, batch_size, next_sentence=config.pooler)

    model = partial(saving.build, bundle)
    tokens = batch_size * options.max_length
    return _Plan(bundle, data, validation, model, tokens=tokens)


# BERT's text: its tokenizer, pairs by epoch, masking (None: they are masked already), and held-out pairs
_PairText = tuple[WordPiece, Callable[[int], Iterable], Masking | None, list[Masked]]


def _prepared_text(prepared: Prepared, options: Pretraining, initial: Any) -> _PairText:
    folder, made = prepared.folder, prepared.settings
    if options.valid is not None or options.vocab is not None or options.cased or options.whole_words:
        raise ValueError(f"{folder}: vocabulary, casing, masks and held-out text were chosen by `ctxrep prepare`")
    if made["max_length"] != options.max_length:
        longest = made["max_length"]
        raise ValueError(f"{folder}: its examples have up to {longest} pieces: choose max_length={longest}")
    wordpiece = WordPiece(prepared.vocab, **{name: made[name] for name in corpora.CASING})
    if initial is not None:
        start = corpora.word_pieces(initial)
        if (start.vocab, corpora.casing(start)) != (wordpiece.vocab, corpora.casing(wordpiece)):
            reason = "prepared with another vocabulary or casing than that of the model to start from"
            raise ValueError(f"{folder}: {reason}; prepare it with init")
    return wordpiece, partial(prepared.pairs, options.seed), None, prepared.held_pairs()


def _raw_text(corpus: Sequence[str | Path], options: Pretraining, initial: Any, config: Any) -> _PairText:
    held, read = corpora.held_out(corpus, options.valid, options.seed)
    wordpiece = corpora.wordpiece_of(initial, options, corpus, read)
    features = WordPieceFeatures(wordpiece, options.max_length)
    masking = Masking(wordpiece, whole_words=options.whole_words)
    segments = segment_pairs if config.pooler else single_segments

    def examples(epoch: int) -> Iterator:
        rng = np.random.default_rng((options.seed, epoch))
        return segments(shuffled(corpus, read, options.seed, epoch, BUFFER, LONGEST), features, rng, ENCODED)

    return wordpiece, examples, masking, corpora.masked_once(held, features, masking, options.seed, segments)


class _Recipe(NamedTuple):
    """How models of a family are pretrained."""

    plan: Callable[[Sequence[str | Path], Pretraining, Any, Any], _Plan]  #: function to the parts of a run
    foreign: tuple[str, ...]  #: options of other families
    message: str  #: the error where one of them is given


_RECIPES = {
    "elmo": _Recipe(
        _language_modelling,
        ("whole_words", "cased", "next_sentence", "units"),
        "whole_words, cased and next_sentence are for BERT: a biLM masks nothing and reads characters as they are, or "
        "words with read_words in place of units",
    ),
    "bert": _Recipe(
        _masked_modelling,
        ("read_words", "unroll", "samples", "optimizer", "units"),
        "read_words, unroll, samples and adagrad are for ELMo, units for lm",
    ),
    "lm": _Recipe(
        _causal_modelling,
        ("whole_words", "next_sentence", "read_words"),
        "whole_words and next_sentence are for BERT, read_words is for ELMo; units says what an lm reads",
    ),
}
