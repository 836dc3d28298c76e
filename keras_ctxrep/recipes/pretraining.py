"""Pretraining, from text files to a model folder: ELMo's biLM, BERT's masked words and next sentences."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_ctxrep import saving
from keras_ctxrep.models import elmo
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.optimizers import LAMB, Adagrad, AdamW, OptimizerSpec
from keras_ctxrep.options import Pretraining, keywords
from keras_ctxrep.recipes.corpora import (
    NO_PAIRS,
    casing,
    given_words,
    held_out,
    lines_of_rows,
    masked_once,
    split,
    word_vocabulary,
    wordpiece_of,
)
from keras_ctxrep.recipes.preparing import Prepared, prepared_folder
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import LONGEST, shuffled
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.pretraining import Masked, Masking, Vocabulary, piece_ids, segment_pairs, single_segments
from keras_ctxrep.text.tokens import WordPiece
from keras_ctxrep.training import fit, pipeline
from keras_ctxrep.training.runs import RunRecord
from keras_ctxrep.training.strategy import choose, is_chief, scope

__all__ = ["pretrain"]

BUFFER = 1_000_000  # sentences that are shuffled in memory: 100 MB of English text
ENCODED = 20_000  # of which so many are turned into pieces at once


@keywords(Pretraining)
def pretrain(
    family: str,
    corpus: Sequence[str | Path],
    out: str | Path,
    report: Callable[[dict], None] | None = None,
    *,
    options: Pretraining,
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
        corpus: text files, one sentence or document a line, an empty line between documents; or a folder that
            `prepare` wrote.
        out: the model folder; an interrupted run resumes from the checkpoint in it.
        report: called with each evaluation.
        options: or its fields as keywords; `steps` or `minutes` is needed. `init` gives size, heads and, for BERT, the
            vocabulary, of ELMo the softmax if it has one over the same vocabulary. Adagrad's `learning_rate` stays at
            its peak.

    Returns: the evaluations, as of `train.fit`; they are also in OUT/run.json, with all that is needed to
        repeat the run. Each has loss and accuracy of both of BERT's tasks, or the perplexity of both directions.

    Raises:
        TypeError: no such option.
        ValueError: no such size, no text, a vocabulary that does not fit, or an argument out of range.

    Warns:
        UserWarning: `init` lacks a head, which starts at random.
    """
    _check(family, corpus, out, options)
    strategy = choose(options.strategy)  # before the first model
    check_devices(options.batch_size, options.precision, strategy)
    source, initial, config = _start(family, options)
    plan = _PLANS[family](corpus, options, initial, config)
    run = RunRecord.of("pretrain", options, family=family, corpus=[Path(path) for path in corpus])
    Path(out).mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    with scope(options.precision, strategy):
        model = plan.model()
        if source is not None:
            _copy_common_layers(source, initial, model, plan.bundle, options.init)
    eval_model = None if plan.eval_model is None else plan.eval_model()
    files = [path for path in corpus if Path(path).is_file()]  # not what `prepare` wrote
    history = _fit(model, plan, eval_model, options, files, report, folder=out, identity=run.identity)
    if eval_model is not None:  # the saved model reads whole sentences
        plain = saving.build(plan.bundle)
        copy_weights(model, plain)
        model = plain
    if is_chief(strategy):
        run.save(out, history)
        saving.save(out, model, plan.bundle)
    return history


def _check(family: str, corpus: Sequence[str | Path], out: str | Path, options: Pretraining) -> None:
    """Raises an error for arguments that contradict each other."""
    if family not in _PLANS:
        raise ValueError(f"family={family!r}: elmo or bert")
    if isinstance(corpus, str | Path):
        raise TypeError(f"corpus={str(corpus)!r}: give a list of files")
    if options.init is not None and Path(options.init).resolve() == Path(out).resolve():
        raise ValueError(f"{out}: the folder of the model to start from; choose another one to write to")
    if options.optimizer == "adagrad" and options.decay != "linear":
        raise ValueError(f"decay={options.decay!r}: Adagrad's learning rate stays as it is; leave decay out")
    names, message = _FOREIGN[family]
    if any(getattr(options, name) not in (getattr(Pretraining, name), "lamb") for name in names):  # LAMB is for both
        raise ValueError(message)


def _fit(
    model: keras.Model, plan: "_Plan", eval_model, options: Pretraining, files: Sequence[str | Path], report, **changes
) -> list[dict]:
    optimizer = OptimizerSpec(LAMB if options.optimizer == "lamb" else AdamW)
    rate = options.learning_rate or options.RATES[options.optimizer]
    if options.optimizer == "adagrad":
        arguments = {"learning_rate": rate, "gradient_scale": float(options.unroll or 1)}
        optimizer = OptimizerSpec(Adagrad, arguments, scheduled=False)
    strategy = model.distribute_strategy

    def data(start: int) -> Any:
        return pipeline.distributed(lambda: plan.data(start), strategy)

    def sources(number: int) -> list[str]:
        return lines_of_rows(files, plan.rows(number), plan.ids)

    settings = options.fit(learning_rate=rate, **changes)
    return fit.fit(model, data, plan.validation, eval_model, None, optimizer, report, sources, options=settings)


# ---------------------------------------------------------------------------------------------------------- details


class _Plan(NamedTuple):
    """The parts of a run.

    Attributes:
        bundle: of the model.
        data: number of a batch -> the batches from this one on.
        validation: data.
        rows: number of a batch -> the ids of each of its rows, unmasked.
        ids: lines of text -> the ids of each.
        model, eval_model: make the models.
    """

    bundle: Bundle
    data: Callable[[int], Any]
    validation: Any
    rows: Callable[[int], list[np.ndarray]]
    ids: Callable[[list[str]], list[np.ndarray]]
    model: Callable[[], keras.Model]
    eval_model: Callable[[], keras.Model] | None = None


def _start(family: str, options: Pretraining):
    """The model to start from and its bundle, if any, and the config."""
    own = FAMILIES[family]
    sizes: Any = own.sizes
    names = [entry.name for entry in fields(own.config) if entry.name.endswith("dropout")]
    rates: dict[str, Any] = dict.fromkeys(names, options.dropout)
    if options.init is None:
        size = next(iter(sizes)) if options.size is None else options.size
        if size not in sizes:
            raise ValueError(f"size {size!r}: choose one of {', '.join(sizes)}")
        return None, None, replace(sizes[size], **rates)
    if options.size is not None:
        raise ValueError(
            f"size={options.size!r} and init={options.init}: the size is that of the model to start from; give one"
        )
    source, initial = saving.load(options.init)
    if FAMILIES[initial.family] is not own:
        raise ValueError(f"{options.init}: a model of the family {initial.family!r}; {family!r} starts from its own")
    return source, initial, replace(own.config(**initial.config), **rates)


def _copy_common_layers(source: keras.Model, initial: Any, model: keras.Model, bundle: Bundle, init) -> None:
    """Copies the weights of the layers that both have; warns which heads start at random."""
    common = {layer.name for layer in source.layers}
    if initial.vocab != bundle.vocab:
        common.discard("softmax")  # over other words
    fresh = [layer.name for layer in model.layers if layer.weights and layer.name not in common]
    copy_weights(source, model, skip=fresh)
    if fresh:
        warnings.warn(f"{init} has no {', '.join(fresh)} that fits: trained from random weights", stacklevel=3)


def _language_modelling(corpus: Sequence[str | Path], options: Pretraining, initial: Any, config: Any) -> _Plan:
    vocabulary, texts, held = _sentence_text(corpus, options, initial)
    if options.read_words or config.words:
        if initial is not None and (not config.words or list(initial.vocab) != vocabulary.vocab):
            raise ValueError("the model to start from reads characters or other words; it keeps what it reads")
        config = replace(config, words=len(vocabulary))
    bundle = Bundle("elmo", "language_model", asdict(config), options.max_length, vocab=tuple(vocabulary.vocab))
    features: Any = bundle.features

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

    def batches(start: int) -> Any:
        return data(sampled=bool(samples), start=start)

    def rows_of(number: int) -> list[np.ndarray]:
        _, targets, weights = next(data(start=number).as_numpy_iterator())
        real = weights["forward_logits"] > 0
        return [ids[mask][: None if unroll else -1] for ids, mask in zip(targets["forward_logits"], real, strict=True)]

    def line_ids(text: list[str]) -> list[np.ndarray]:
        return [vocabulary.ids(words) for words in split(text)]

    return _Plan(bundle, batches, validation, rows_of, line_ids, model, eval_model)


class _SentenceText(NamedTuple):
    """A biLM's text: its vocabulary, documents by epoch, and held-out documents; of sentences or of split ones."""

    vocabulary: Vocabulary
    documents: Callable[[int], Iterable[list]]
    held: list


def _sentence_text(corpus: Sequence[str | Path], options: Pretraining, initial: Any) -> _SentenceText:
    prepared = prepared_folder(corpus, "elmo")
    if prepared is None:
        held, read = held_out(corpus, options.valid, options.seed)
        vocabulary = word_vocabulary(options, initial, corpus, read)

        def texts(epoch: int) -> Iterator[list[str]]:
            return shuffled(corpus, read, options.seed, epoch, BUFFER)

        text = _SentenceText(vocabulary, texts, held)
        first = split(itertools.chain.from_iterable(read(corpus)))
        given = given_words(options, initial) is not None
    else:
        if options.valid is not None:
            raise ValueError(f"{prepared.folder}: held-out text was chosen by `ctxrep prepare`; leave out valid")
        words = given_words(options, initial)
        vocabulary = Vocabulary(prepared.vocab if words is None else words)
        text = _SentenceText(vocabulary, partial(prepared.documents, options.seed), prepared.held_documents())
        first = itertools.chain.from_iterable(text.documents(0))
        given = words is not None or not prepared.settings["learned_vocab"]
    samples = options.samples
    if samples and given:
        vocabulary.check_order(itertools.islice(first, 10_000))
    if samples and samples > len(vocabulary):
        raise ValueError(
            f"samples={samples}: the vocabulary has {len(vocabulary)} words; sample fewer, or none for the full softmax"
        )
    return text


class _PairText(NamedTuple):
    """BERT's text: its tokenizer, pairs by epoch (already masked if `masking` is None), and held-out pairs."""

    wordpiece: WordPiece
    examples: Callable[[int], Iterable]
    masking: Masking | None
    held: list[Masked]


def _masked_modelling(corpus: Sequence[str | Path], options: Pretraining, initial: Any, config: Any) -> _Plan:
    if options.max_length > config.max_positions:
        raise ValueError(f"max_length={options.max_length}: this size has {config.max_positions} positions")
    if options.next_sentence is not None:
        config = replace(config, pooler=options.next_sentence)
    prepared = prepared_folder(corpus, "bert")
    if prepared is None:
        text = _raw_text(corpus, options, initial, config)
    else:
        text = _prepared_text(prepared, options, initial)
    if not text.held:
        raise ValueError(NO_PAIRS)
    wordpiece = text.wordpiece
    config = replace(config, vocabulary_size=len(wordpiece.vocab))
    # only the encoder of an initial model is used: no task network, no task options
    bundle = Bundle(
        "bert",
        "pretrainer",
        asdict(config),
        options.max_length,
        vocab=tuple(wordpiece.vocab),
        **casing(wordpiece),
    )
    features: Any = bundle.features
    batch_size = options.batch_size
    data = partial(pipeline.segments, features, text.examples, batch_size, text.masking, config.pooler, options.seed)
    validation = pipeline.segments(features, text.held, batch_size, next_sentence=config.pooler)

    def rows_of(number: int) -> list[np.ndarray]:
        inputs, targets, weights = next(data(number).as_numpy_iterator())
        positions, real = inputs["mlm_positions"], weights["mlm_logits"] > 0
        rows = inputs["token_ids"].copy()
        rows[np.nonzero(real)[0], positions[real]] = targets["mlm_logits"][real]
        return [ids[mask > 0] for ids, mask in zip(rows, inputs["mask"], strict=True)]

    def line_ids(text: list[str]) -> list[np.ndarray]:
        return piece_ids([text], features)[0]

    return _Plan(bundle, data, validation, rows_of, line_ids, partial(saving.build, bundle))


def _prepared_text(prepared: Prepared, options: Pretraining, initial: Any) -> _PairText:
    folder, made = prepared.folder, prepared.settings
    if options.valid is not None or options.vocab is not None or options.cased or options.whole_words:
        raise ValueError(f"{folder}: vocabulary, casing, masks and held-out text were chosen by `ctxrep prepare`")
    if made["max_length"] != options.max_length:
        longest = made["max_length"]
        raise ValueError(f"{folder}: its examples have up to {longest} pieces: choose max_length={longest}")
    own_casing = {name: made[name] for name in ("lowercase", "strip_accents", "split_cjk")}
    wordpiece = WordPiece(prepared.vocab, **own_casing)
    if initial is not None:
        own = initial.features.wordpiece
        if (own.vocab, casing(own)) != (wordpiece.vocab, own_casing):
            raise ValueError(
                f"{folder}: prepared with another vocabulary or casing than that of the model to start from; "
                "prepare it with init"
            )
    return _PairText(wordpiece, partial(prepared.pairs, options.seed), None, prepared.held_pairs())


def _raw_text(corpus: Sequence[str | Path], options: Pretraining, initial: Any, config: Any) -> _PairText:
    held, read = held_out(corpus, options.valid, options.seed)
    wordpiece = wordpiece_of(initial, options, corpus, read)
    features = WordPieceFeatures(wordpiece, options.max_length)
    masking = Masking(wordpiece, whole_words=options.whole_words)
    segments = segment_pairs if config.pooler else single_segments

    def examples(epoch: int) -> Iterator:
        rng = np.random.default_rng((options.seed, epoch))
        return segments(shuffled(corpus, read, options.seed, epoch, BUFFER, LONGEST), features, rng, ENCODED)

    return _PairText(wordpiece, examples, masking, masked_once(held, features, masking, options.seed, segments))


def check_devices(batch_size: int, precision: str, strategy) -> None:
    """Raises a ValueError for options of a run that its devices or Keras do not support."""
    if batch_size % strategy.num_replicas_in_sync:
        raise ValueError(f"batch_size={batch_size}: {strategy.num_replicas_in_sync} devices share it in equal parts")
    try:
        keras.DTypePolicy(precision)
    except ValueError:
        raise ValueError(f"precision={precision!r}: no dtype policy of Keras, such as mixed_bfloat16") from None


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
