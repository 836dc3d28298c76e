"""Trains each kind of model for 20 steps; test_strategy.py compares what the strategies give.

python tests/replicas.py one|mirrored|multiworker OUT.npz [KIND ...]
"""

import os
import sys
from dataclasses import asdict

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf

from keras_ctxrep import optimizers, pipeline, strategy, tasks, train
from keras_ctxrep.models import bert, elmo, static
from keras_ctxrep.recipes import targets
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.pretraining import Masking, Vocabulary

STEPS, BATCH = 20, 8
LETTERS = list("abcdefgh")
ELMO = {"layers": 2, "cells": 6, "projection": 4, "filters": ((1, 4), (2, 4)), "max_characters": 8, "highways": 1}
BERT = {"layers": 1, "width": 8, "heads": 2, "intermediate": 16, "max_positions": 32}
STATIC = asdict(static.Config(words=9, width=4))
WORDS = ("<S>", "</S>", "<UNK>", *LETTERS)
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS)


def text(count, longest=8):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(LETTERS, rng.integers(1, longest))) for _ in range(count)]


def language_model(samples=None, streams=False):
    bundle = Bundle("elmo", "language_model", ELMO | {"dropout": 0.0}, 8, vocab=WORDS)
    vocabulary, documents = Vocabulary(WORDS), [[sentence] for sentence in text(64)]
    if streams:
        data = pipeline.running_text(bundle.features, vocabulary, lambda _: documents, BATCH, 4, bool(samples))
    else:
        data = pipeline.sentences(bundle.features, vocabulary, lambda _: documents, BATCH, bool(samples))
    config = elmo.Config(**bundle.config)
    return lambda: elmo.language_model(config, len(WORDS), samples, BATCH if streams else None), data, None


def pretrainer():
    config = BERT | {"vocabulary_size": len(PIECES), "dropout": 0.0, "attention_dropout": 0.0}
    bundle = Bundle("bert", "pretrainer", config, 16, vocab=PIECES)
    rows = bundle.features.encode(text(64))
    pairs = [(row, bool(number % 2)) for number, row in enumerate(rows)]
    data = pipeline.segments(bundle.features, lambda _: pairs, BATCH, Masking(bundle.features.wordpiece), seed=0)
    return lambda: bert.pretrainer(bert.Config(**config)), data, None


def task(name, examples, family="static", **more):
    config, vocab = {"static": (STATIC, ("<UNK>", *LETTERS)), "bert": (BERT, PIECES)}[family]
    config = config | {key: 0.0 for key in ("dropout", "attention_dropout") if family == "bert"}
    config = config | ({"vocabulary_size": len(vocab)} if family == "bert" else {})
    head = {"dropout": 0.0} | more.pop("head", {})
    bundle = Bundle(family, name, config, 16, vocab=vocab, head=head, **more)
    data = targets.batches(bundle, lambda _: examples, BATCH, 0)
    return lambda: train.build(bundle), data, tasks.get(name).loss()


def tagger(crf):
    rows = [sentence.split() for sentence in text(40)]
    examples = [Tagged(tuple(row), tuple("O" if word < "d" else "X" for word in row)) for row in rows]
    return task("tag", examples, labels=("O", "X"), head={"crf": crf})


def answerer():
    examples = [Question("a", row, ((row.split()[0], 0),), str(number)) for number, row in enumerate(text(40))]
    return task("answer", examples, "bert", reads=tasks.get("answer").reads, settings={"stride": 8})


def classifier():
    examples = [Example(row, "x" if row < "d" else "y") for row in text(41)]
    return task("classify", examples, labels=("x", "y"))


KINDS = {
    "language_model": language_model,
    "sampled_streams": lambda: language_model(6, True),
    "streams": lambda: language_model(None, True),
    "pretrainer": pretrainer,
    "tagger": lambda: tagger(False),
    "crf": lambda: tagger(True),
    "answerer": answerer,
    "classifier": classifier,
}


def run(kind, name, microbatches=1):
    build, data, loss = KINDS[kind]()
    keras.utils.set_random_seed(0)
    with train.scope(strategy=name):
        model = build()
    history = train.fit(
        model,
        data,
        steps=STEPS,
        evaluations=STEPS,
        loss=loss,
        optimizer=lambda: optimizers.AdamW(0.01, epsilon=1e-4),
        microbatches=microbatches,
    )
    moments = [np.asarray(momentum) for momentum in model.optimizer._momentums]
    norm = np.sqrt(sum(np.square(moment).sum() for moment in moments))
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    return {"loss": [entry["loss"] for entry in history], "norm": norm, "weights": weights}


def main(name, out, kinds):
    if name == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    chosen = strategy.choose(name)
    results = {}
    for kind in kinds or KINDS:
        for key, value in run(kind, name).items():
            results[f"{kind}/{key}"] = value
    if strategy.is_chief(chosen):
        np.savez(out, replicas=chosen.num_replicas_in_sync, **results)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
