"""Metrics of models on held-out data: of tasks, of language models, and of pretrainers."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_ctxrep import saving, tasks, zoo
from keras_ctxrep.atomic import atomic_write
from keras_ctxrep.checks import of_kind, warn
from keras_ctxrep.deprecated import moved
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models import elmo, lm
from keras_ctxrep.models.model import copy_weights
from keras_ctxrep.options import Scoring
from keras_ctxrep.recipes.corpora import masked_once, watched
from keras_ctxrep.recipes.reading import Data
from keras_ctxrep.recipes.targets import fitting
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import documents
from keras_ctxrep.text.features import WordPieceFeatures, check_sentences
from keras_ctxrep.text.ngrams import KneserNey
from keras_ctxrep.text.pretraining import (
    Masking,
    Vocabulary,
    language_model_batch,
    segment_pairs,
    single_segments,
    stream_batch,
)
from keras_ctxrep.text.tokens import split_words
from keras_ctxrep.text.units import token_batch
from keras_ctxrep.training import fit, pipeline

__getattr__ = moved(__name__, "keras_ctxrep.commands.score")

__all__ = ["score_sentences"]


def check_options(folder: str | Path, bundle: Bundle, options: Scoring) -> None:
    """Raises a ValueError where an option is of another kind of model: n-grams of a language model, masks of a BERT."""
    if bundle.task != "pretrainer" and (options.whole_words or options.max_length):
        raise ValueError(f"{folder}: its task is {bundle.task!r}; whole_words and max_length are of a BERT pretrainer")
    if bundle.task not in ("causal_language_model", "language_model"):
        for name in ("compare_ngram", "order"):
            if getattr(options, name) != getattr(Scoring, name):
                raise ValueError(f"{folder}: its task is {bundle.task!r}; {name} is of a language model")
    elif options.compare_ngram is None and options.order != Scoring.order:
        raise ValueError(f"order={options.order}: of the n-grams of compare_ngram; give the text that they count")


def score_counts(bundle: Bundle, data: str | Path, figures: dict, options: Scoring) -> dict:
    """The figures of n-grams over the tokens that a language model predicts, unknown ones and ends of lines too."""
    features = bundle.tokens

    def rows(paths: Sequence[str | Path], doing: str) -> Iterator[list[int]]:
        for document in watched(documents(paths), doing):
            yield from features.ids(document)

    size, end = len(features.vocab), features.end
    counts = KneserNey(rows(options.compare_ngram or (), "counting"), options.order, size, end, end, modified=True)
    log_probability, tokens = counts.log_probability(rows([data], "scoring"))
    nats = -log_probability
    shown = {"ngram_order": options.order, "ngram_perplexity": float(np.exp(nats / tokens))}
    if "characters" in figures:
        shown["ngram_perplexity_per_word"] = float(np.exp(nats / figures["words"]))
        shown["ngram_bits_per_character"] = float(nats / np.log(2) / figures["characters"])
    return shown


def _score_language_model(model, bundle: Bundle, data: str | Path, batch_size: int, _: Scoring) -> dict:
    sentences = (sentence for document in watched(documents([data]), "scoring") for sentence in document)
    scores = _sentence_scores(model, bundle, sentences, batch_size)
    rows = ((1, entry["words"] + 1, entry["forward"], entry["backward"]) for entry in scores)
    return _perplexities(rows, data)


def _score_carrying(model, bundle: Bundle, data: str | Path, batch_size: int, _: Scoring) -> dict:
    return _perplexities(_carried_scores(model, bundle, watched(documents([data]), "scoring"), batch_size), data)


def _perplexities(rows: Iterable[tuple], data: str | Path) -> dict:
    """Of rows (sentences, words and ends, log-probability forward, backward)."""
    totals = np.zeros(4)  # sentences, words and ends, and the log-probabilities of both directions
    for row in rows:
        totals += row
    if not totals[0]:
        raise ValueError(f"{data}: no words in it")
    return {
        "sentences": int(totals[0]),
        "words": int(totals[1]),
        "forward_perplexity": float(np.exp(-totals[2] / totals[1])),
        "backward_perplexity": float(np.exp(-totals[3] / totals[1])),
        "perplexity": float(np.exp(-(totals[2] + totals[3]) / (2 * totals[1]))),
    }


def score_task(predictor: Predictor, data: Data, predictions: str | Path | None, options: Scoring) -> dict:
    if options.positive is not None:
        bundle = tasks.with_positive(predictor.bundle, options.positive)
        predictor = Predictor(bundle, predictor.runner, predictor.batch_size)
    task, bundle, skipped = predictor.task, predictor.bundle, [] if options.skip_bad else None
    examples = list(fitting(bundle, data, options.columns, skipped, "validation"))
    answers = predictor.ask(examples)
    if message := predictor.unread.message(str(data) if isinstance(data, str | Path) else "the data"):
        warn(message)
    if predictions is not None:
        with atomic_write(predictions) as path:
            rows = [_answer(predictor, *pair) for pair in zip(examples, answers, strict=True)]
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    report = task.evaluate(examples, answers, bundle.labels)
    worst = [{"source": examples[i].source} | task.shown(examples[i], answers[i]) for i in report.worst]
    return (
        {"examples": len(examples), "metric": report.metric}
        | report.scores
        | {f"{name}_of": label for name, label in report.of.items()}
        | {"interval": list(report.interval or ()), "table": report.table}
        | ({} if report.by_label is None else {"by_label": report.by_label})
        | {"worst": worst}
        | ({} if skipped is None else {"skipped": skipped})
    )


def _answer(predictor: Predictor, example: Any, answer: dict) -> dict:
    """An answer with the text and the expected answer of its example; a question's context is left out."""
    query, reads = predictor.task.query(example), predictor.bundle.reads
    pair = {"pair": query.pair} if reads.pair and not reads.windows else {}
    expected = getattr(example, predictor.task.gold)
    return {"source": example.source, "text": query.text} | pair | {"expected": expected} | answer


def _carried_scores(model, bundle, text: Iterable[list[str]], batch_size: int) -> Iterator[tuple]:
    """(sentences, words, forward, backward) of each BPTT segment of running text."""
    features, vocabulary = bundle.features, Vocabulary(bundle.vocab)
    batch_size = max(1, min(batch_size, pipeline.LOGITS // (20 * len(vocabulary))))
    streams = elmo.language_model(elmo.Config(**bundle.config), len(vocabulary), streams=batch_size)
    copy_weights(model, streams)
    run = keras_engine.scorer(streams)
    for batch in pipeline.bptt_segments_of_text(text, batch_size, 20):
        inputs, targets, weights = stream_batch(features, vocabulary, batch)
        masks = {name: weight > 0 for name, weight in weights.items()}
        sums = run(inputs, targets, masks)
        real = masks["forward_logits"]
        ends = (targets["forward_logits"] == 1)[real].sum()
        yield ends, real.sum(), -sums["forward_logits"].sum(), -sums["backward_logits"].sum()


def _score_pretrainer(model: keras.Model, bundle: Bundle, data: str | Path, batch_size: int, options: Scoring) -> dict:
    if options.max_length is not None:
        if options.max_length > (most := bundle.config["max_positions"]):
            raise ValueError(f"max_length={options.max_length}: this model reads {most} pieces at most")
        bundle = replace(bundle, max_length=options.max_length)
    features = of_kind(bundle.features, WordPieceFeatures)
    text, masking = watched(documents([data]), "reading"), Masking(features.wordpiece, whole_words=options.whole_words)
    next_sentence = "nsp_logits" in model.output
    segments = segment_pairs if next_sentence else single_segments
    examples = masked_once(text, features, masking, segments=segments)
    if not examples:
        raise ValueError("no pair of segments in this text: one sentence a line, an empty line between documents")
    batches = pipeline.segments(features, examples, batch_size, next_sentence=next_sentence)
    metrics = fit.compile(model).evaluate(batches, verbose=0, return_dict=True)
    if not next_sentence:  # Keras does not name the only output
        return {"texts": len(examples), "mlm_accuracy": metrics["accuracy"]}
    accuracies = {f"{name}_accuracy": metrics[f"{name}_logits_accuracy"] for name in ("mlm", "nsp")}
    return {"pairs": len(examples)} | accuracies


def score_sentences(
    folder: str | Path,
    sentences: Iterable[str],
    batch_size: int = 32,
) -> Iterator[dict]:
    """Log-probability of each sentence under a biLM, by the full softmax, each sentence by itself.

    Args:
        folder: a language model.
        sentences: read lazily; those without a word are left out.
        batch_size: sentences computed together; no figure depends on it.

    Returns: for each, in order, {"text", "words": n, "forward" and "backward": the log-probability of w1 .. wn, </S>
        and of <S>, w1 .. wn, in nats; "perplexity": exp of their mean over both directions and n+1 words, negative}.

    Raises:
        TypeError: one string instead of sentences.
        ValueError: the folder is no language model.
    """
    check_sentences(sentences)
    model, bundle = saving.load(zoo.find(folder))
    if bundle.task not in CARRYING:
        raise ValueError(f"{folder}: its task is {bundle.task!r}; sentences are scored by an ELMo language model")
    return _sentence_scores(model, bundle, sentences, batch_size)


def _sentence_scores(model, bundle, sentences, batch_size) -> Iterator[dict]:
    features, vocabulary = bundle.features, Vocabulary(bundle.vocab)
    run = keras_engine.scorer(model)
    source = iter(sentences)
    while pool := list(itertools.islice(source, pipeline.POOL * batch_size)):
        scores: dict[int, dict] = {}
        for batch in pipeline.bucketed_by_length(pool, batch_size, len(vocabulary)):
            inputs, targets, weights = language_model_batch(features, vocabulary, [row for _, row in batch])
            sums = run(inputs, targets, {name: weight > 0 for name, weight in weights.items()})
            for index, (number, row) in enumerate(batch):
                forward, backward = (-float(sums[f"{way}_logits"][index]) for way in ("forward", "backward"))
                scores[number] = {
                    "text": pool[number],
                    "words": len(row),
                    "forward": forward,
                    "backward": backward,
                    "perplexity": float(np.exp(-(forward + backward) / (2 * len(row) + 2))),
                }
        yield from (scores[number] for number in sorted(scores))


SEGMENT = 256  # tokens that a language model in one direction reads at a time; no figure depends on it


def _score_causal_model(model, bundle: Bundle, data: str | Path, batch_size: int, _: Scoring) -> dict:
    """Perplexity of running text, read in one stream from its first line to its last.

    Per word: of the words of BERT's split and the ends of lines, whatever the tokens are; bits per character: of the
    lines and their ends. Both are of what the model predicts, which of an unknown word is that it is one.
    """
    features, counts = bundle.tokens, np.zeros(3, np.int64)  # lines, words with ends, characters with ends
    stream = lm.language_model(lm.Config(**bundle.config), len(features.vocab), streams=1)
    copy_weights(model, stream)
    run = keras_engine.scorer(stream)

    def counted() -> Iterator[list[str]]:
        for document in watched(documents([data]), "scoring"):
            for line in document:
                counts[:] += (1, len(split_words(line)) + 1, len(line) + 1)
            yield document

    nats, tokens, unknown = 0.0, 0, 0
    steps = max(1, min(SEGMENT, pipeline.LOGITS // len(features.vocab)))
    for batch in pipeline.token_segments(features, counted(), 1, steps):
        inputs, targets, weights = token_batch(batch)
        nats += float(run(inputs, targets, {"logits": weights["logits"] > 0})["logits"].sum())
        tokens += len(batch[0].following)
        unknown += batch[0].following.count(features.unknown)
    if not tokens:
        raise ValueError(f"{data}: no {features.units} in it")
    lines, words, characters = counts.tolist()
    return {
        "lines": lines,
        "tokens": tokens,
        "unknown": unknown / tokens,
        "perplexity": float(np.exp(nats / tokens)),
        "words": words,
        "perplexity_per_word": float(np.exp(nats / words)),
        "characters": characters,
        "bits_per_character": float(nats / np.log(2) / characters),
    }


# pretraining task -> its scoring function on text; and the one that carries the state
PRETRAINING = {
    "language_model": _score_language_model,
    "pretrainer": _score_pretrainer,
    "causal_language_model": _score_causal_model,
}
CARRYING = {"language_model": _score_carrying}
