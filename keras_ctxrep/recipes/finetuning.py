"""Fine-tuning an encoder for a task, from files of labelled examples to a model folder."""

import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
from tqdm import tqdm

from keras_ctxrep import train
from keras_ctxrep.models import static
from keras_ctxrep.recipes.pretraining import Report, check_batch_size, run_identity
from keras_ctxrep.recipes.targets import Data, batches, checked, encoded, fitting, in_random_order, labels_of
from keras_ctxrep.text.bundle import Bundle, sha256
from keras_ctxrep.text.evaluation import evaluate, null_threshold
from keras_ctxrep.text.examples import skipped_rows
from keras_ctxrep.text.features import StaticFeatures
from keras_ctxrep.text.predict import Predictor
from keras_ctxrep.text.tags import is_spans
from keras_ctxrep.text.tokens import words

WORDS = "words"  # in place of an encoder: word embeddings learned from the training data
_BESIDE = "word_embedding"
_LOSSES = {
    "multilabel": partial(keras.losses.BinaryCrossentropy, from_logits=True),
    "regress": keras.losses.MeanSquaredError,
}


def finetune(
    data: Data,
    dev: Data,
    encoder: str | Path,
    out: str | Path,
    task: str = "classify",
    columns: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    max_length: int | None = None,
    batch_size: int = 32,
    steps: int | None = None,
    minutes: float | None = None,
    epochs: float | None = None,
    patience: int | None = None,
    learning_rate: float | None = None,
    dropout: float | None = None,
    mix: bool | None = None,
    freeze: bool | None = None,
    from_scratch: bool = False,
    stack: str | None = None,
    units: int = 256,
    beside: str | Path | None = None,
    both_ends: bool = False,
    top_only: bool = False,
    crf: bool = False,
    stride: int = 128,
    max_answer: int = 30,
    precision: str = "float32",
    seed: int = 0,
    tensorboard: str | Path | None = None,
    report: Report | None = None,
) -> list[dict]:
    """Fine-tunes an encoder for a task and writes a model folder.

    The defaults are those of the papers. BERT (Devlin et al. 2018, appendix A.3): all of it is trained, with AdamW,
    warm-up over 10% of the steps, 3 epochs. ELMo (Peters et al. 2018): the biLM is frozen, its layers are mixed with an
    L2 penalty of 0.001 on the weights, dropout 0.5. The weights that are best by the task's metric on `dev` are kept,
    and if questions have no answer, the threshold that is best there too.
    The examples of `data` are read anew in every epoch and may be more than fit into memory; those of `dev` are kept.

    Args:
        data, dev: examples, files of them (`text.examples.read`), or "tfds:NAME:SPLIT"; labels are those of `data`.
        encoder: a model folder of any task; or "words", for word embeddings learned from `data` alone.
        out: the model folder to write.
        task: "classify" (texts or pairs), "pair" (the same, and all are pairs), "multilabel", "regress", "tag" or
            "answer".
        columns: names of columns, as of `text.examples.read`.
        skip_bad: leave malformed examples out, and count and list them, instead of ending with an error.
        max_length: tokens per text; None: as the encoder was trained, or 384 for answers if it reads as many.
        batch_size: rows per step.
        steps, minutes: length of the run; without both `epochs`.
        epochs: passes over `data`; None: 3 for BERT, else 10.
        patience: ends the run after so many evaluations on `dev` without a better one; None: 3 where the length is
            counted in epochs, with one evaluation in each, and never where there are ten of them in the run.
        learning_rate: its peak; None: 0.001, or for BERT 3e-5 at a width of 768, and more in proportion if narrower.
        dropout: None: 0.1 for BERT, else 0.5 (on what the head or the task network reads).
        mix: read a scalar mix of all layers; None: ELMo does, BERT reads its top layer.
        freeze: train what lies over the encoder alone, without dropout in it; None: ELMo is frozen.
        from_scratch: start from random weights instead of the encoder's, as a baseline.
        stack: a task network over the encoder, "lstm", "gru" (in both directions) or "cnn".
        units: width of the task network, in each direction.
        beside: a folder of static vectors that the task network reads too, beside an ELMo.
        both_ends: put a second mix beside the output of the task network.
        top_only: the top layer instead of a mix, under a task network.
        crf: "tag": choose a sentence's labels together.
        stride, max_answer: "answer": as of `text.bundle.Bundle`.
        precision, seed, tensorboard, report: as in `pretrain`.

    Returns: the evaluations on `dev`.

    Raises:
        ValueError: a row is malformed, a label of `dev` is unknown, there are fewer than two labels, or an option does
            not fit the task or the encoder.

    Warns:
        UserWarning: rows were skipped.
    """
    keras.utils.set_random_seed(seed)
    if crf and task != "tag":
        raise ValueError(f"crf=True: a CRF labels words, and the task is {task!r}")
    if (both_ends or top_only or beside) and not stack:
        raise ValueError("both_ends, top_only and beside are of a task network: choose one, stack='lstm'")
    if Path(out).resolve() == Path(encoder).resolve():
        raise ValueError(f"{out}: the encoder's own folder; choose another one to write to")
    if not isinstance(data, str | Path):
        data = list(data)
    needed, task = (True, "classify") if task == "pair" else (None, task)
    found = _survey(task, data, needed, columns, [] if skip_bad else None, encoder == WORDS)
    name = data if isinstance(data, str | Path) else f"{found.count} examples"
    labels = _labels(task, found, str(name))
    skipped: list[str] | None = [] if skip_bad else None
    dev_set = list(checked(task, dev, labels or None, found.pairs, columns, skipped, "validation"))
    if bad := (found.skipped or []) + (skipped or []):
        warnings.warn(skipped_rows(bad), stacklevel=2)
    with train.scope(precision) as strategy:
        check_batch_size(batch_size, strategy)
        if encoder == WORDS:
            pretrained, bundle = _fresh(found.words)
        else:
            pretrained, bundle = train.load_encoder(encoder)
        is_bert = bundle.family == "bert"
        if (found.pairs or task == "answer") and not is_bert:
            raise ValueError(f"{name}: pairs of texts, and {encoder} reads one text; a BERT reads pairs")
        if freeze is None:
            freeze = bundle.family == "elmo" and not from_scratch
        drop = (0.1 if is_bert else 0.5) if dropout is None else dropout
        inner = 0.0 if freeze or bundle.family == "static" else 0.1 if dropout is None else dropout
        bundle = replace(
            bundle,
            config=bundle.config | {key: inner for key in bundle.config if key.endswith("dropout")},
            max_length=_length(max_length, bundle, task),
        )
        model = train.build(bundle)
        if not from_scratch:
            train.copy_weights(pretrained, model)
        model.trainable = not freeze
        l2 = 1e-3 if bundle.family == "elmo" else 0.0
        plain = stack or (task == "answer" and dropout is None)
        head: dict[str, Any] = {"dropout": 0.0 if plain else drop}
        if stack:
            shape = {"kind": stack, "units": units, "dropout": drop, "mix": "top" if top_only else "all", "l2": l2}
            bundle = replace(bundle, stack=shape | ({"both_ends": True} if both_ends else {}))
        else:
            head |= {"mix": bundle.family == "elmo" if mix is None else mix, "l2": l2}
        if beside is not None:
            vectors, other = _beside(beside, bundle)
            bundle = replace(bundle, beside=other.config, vocab=other.vocab)
        answers = {"stride": stride, "max_answer": max_answer, "null_threshold": 0.0 if found.unanswered else None}
        bundle = replace(
            bundle,
            task=task,
            labels=labels,
            head=head | ({"crf": True} if crf else {}),
            pairs=found.pairs or task == "answer",
            **(answers if task == "answer" else {}),
        )
        model = train.finish(model, bundle)
        if beside is not None:
            model.get_layer(_BESIDE).set_weights(vectors)
    if epochs is None:
        epochs = 3 if is_bert else 10
    if learning_rate is None:
        learning_rate = 3e-5 * max(1.0, 768 / bundle.config["width"]) if is_bert else 1e-3
    by_epoch = steps is None and minutes is None

    def source() -> Iterator:
        return fitting(bundle, data, columns, [] if skip_bad else None)

    if by_epoch:
        rows = sum(1 for _ in encoded(bundle, source())) if task == "answer" else found.count
        steps = max(1, round(epochs * rows / batch_size))
    identity = (
        bundle,
        sha256(data) if isinstance(data, str | Path) and Path(data).is_file() else data,
        dev_set,
        (learning_rate, batch_size, seed, freeze, from_scratch, precision, str(encoder)),
    )
    Path(out).mkdir(parents=True, exist_ok=True)
    history = train.fit(
        model,
        partial(
            batches, bundle, in_random_order(source, seed), min(batch_size, _most(found.count, strategy)), seed, crf
        ),
        _judged(bundle, dev_set, batch_size),
        loss=_LOSSES.get(task, lambda: None)(),
        steps=steps,
        minutes=minutes,
        learning_rate=learning_rate,
        evaluations=max(1, math.ceil(epochs)) if by_epoch else 10,
        patience=3 if patience is None and by_epoch else patience,
        folder=out,
        identity=run_identity(*identity),
        tensorboard=tensorboard,
        report=report,
    )
    if found.unanswered and not all(one.answers for one in dev_set):
        answers = Predictor(bundle, train.runner(model), batch_size).ask(dev_set)
        bundle = replace(bundle, null_threshold=null_threshold(dev_set, answers))
    train.save(out, model, bundle)
    return history


@dataclass
class _Survey:
    """What one pass over the examples has found."""

    count: int = 0
    labels: set = field(default_factory=set)
    pairs: bool = False
    unanswered: bool = False
    words: Counter = field(default_factory=Counter)
    skipped: list[str] | None = None


def _survey(
    task: str, data: Data, pairs: bool | None, columns, skipped: list[str] | None, count_words: bool
) -> _Survey:
    """Every example is read once before anything is trained, so that what is malformed is known at once."""
    found = _Survey(skipped=skipped)
    features = StaticFeatures(StaticFeatures.MARKERS, lowercase=True)
    bar = tqdm(desc="reading", unit=" examples", file=sys.stderr, leave=False, disable=None, delay=2)
    with bar:
        for example in checked(task, data, None, pairs, columns, skipped):
            if not found.count:
                found.pairs = getattr(example, "pair", None) is not None
            found.count += 1
            found.labels.update(labels_of(task, example) or ())
            found.unanswered |= task == "answer" and not example.answers
            if count_words:
                text = example.words if task == "tag" else [word.text for word in words(example.text)]
                found.words.update(features.normalized(text))
            bar.update()
    return found


def _labels(task: str, found: _Survey, name: str) -> tuple[str, ...]:
    """In the order of the logits; "O" first, and of each type of span both B- and I-."""
    labels = set(found.labels)
    if task == "tag" and is_spans(labels):
        kinds = {label[2:] for label in labels - {"O"}}
        labels = {"O"} | {f"{edge}-{kind}" for kind in kinds for edge in "BI"}
    if task in ("classify", "tag") and len(labels) < 2:
        only = f"only the label {next(iter(labels))!r}" if labels else "no labels"
        raise ValueError(f"{name}: {only}; a {'classifier' if task == 'classify' else 'tagger'} needs at least two")
    if task == "multilabel" and not labels:
        raise ValueError(f"{name}: no labels")
    return tuple(sorted(labels, key=lambda label: (label != "O", label)))


def _length(wanted: int | None, bundle: Bundle, task: str) -> int:
    most = bundle.config.get("max_positions", math.inf)
    if (wanted or 0) > most:
        raise ValueError(f"max_length={wanted}: this encoder has {most} positions")
    if wanted is None and task == "answer":
        return int(max(bundle.max_length, min(384, most)))
    return wanted or bundle.max_length


def _fresh(counts: Counter) -> tuple[keras.Model, Bundle]:
    """Word embeddings to be learned, of the words that occur twice: so the vector of unseen ones is learned too."""
    vocab = ("<UNK>", *sorted((word for word, count in counts.items() if count > 1), key=lambda w: (-counts[w], w)))
    config = static.Config(words=len(vocab), width=100, lowercase=True)
    return static.encoder(config), Bundle("static", "embed", asdict(config), 128, vocab=vocab)


def _beside(folder: str | Path, bundle: Bundle) -> tuple[list, Bundle]:
    """The weights of static vectors, and their bundle; they stay as they are."""
    model, other = train.load_encoder(folder)
    if other.family != "static" or bundle.family != "elmo" or bundle.config.get("words"):
        raise ValueError(f"{folder}: static vectors are read beside an ELMo over characters")
    return model.get_layer(_BESIDE).get_weights(), replace(other, config=other.config | {"trainable": False})


def _most(count: int, strategy) -> int:
    return max(1, count // strategy.num_replicas_in_sync) * strategy.num_replicas_in_sync


def _judged(bundle: Bundle, examples: list, batch_size: int):
    """A function from a model to its figures on some examples, the task's metric first."""
    predictors: dict[int, Predictor] = {}

    def judge(model: keras.Model) -> dict[str, float]:
        if id(model) not in predictors:
            predictors[id(model)] = Predictor(bundle, train.runner(model), batch_size)
        answers = predictors[id(model)].ask(examples)
        return evaluate(bundle.task, examples, answers, bundle.labels, interval=False).scores

    return judge
