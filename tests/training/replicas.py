"""Trains each kind of model; test_strategy.py compares what strategies give, test_backends.py JAX.

python tests/training/replicas.py one|mirrored|multiworker OUT.npz [KIND ...]

Variables of the environment: STEPS, how many there are, 20 unless it says; START_WEIGHTS, such a file, whose weights
are those at first.
"""

import os
import sys
from dataclasses import asdict
from functools import partial

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np

from keras_ctxrep import saving, tasks
from keras_ctxrep.backend import TENSORFLOW, tf
from keras_ctxrep.layers import Dropout
from keras_ctxrep.models import bert, elmo, static
from keras_ctxrep.models.model import Model
from keras_ctxrep.optimizers import LAMB, AdamW, OptimizerSpec
from keras_ctxrep.recipes import targets
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.similar import Pair
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.tasks.translate import Translation
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.pretraining import Masking, Vocabulary
from keras_ctxrep.training import fit, pipeline, strategy

BATCH = 8
LETTERS = list("abcdefgh")
ELMO = {"layers": 2, "cells": 6, "projection": 4, "filters": ((1, 4), (2, 4)), "max_characters": 8, "highways": 1}
BERT = {"layers": 1, "width": 8, "heads": 2, "intermediate": 256, "max_positions": 32}  # wide enough for XLA's GELU
STATIC = asdict(static.Config(words=9, width=4))
WORDS = ("<S>", "</S>", "<UNK>", *LETTERS)
START = np.load(os.environ["START_WEIGHTS"]) if "START_WEIGHTS" in os.environ else None
STEPS = int(os.environ.get("STEPS", "20"))
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS)


def text(count, longest=8):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(LETTERS, rng.integers(1, longest))) for _ in range(count)]


def language_model(samples=None, streams=False):
    bundle = Bundle("elmo", "language_model", ELMO | {"dropout": 0.0}, 8, vocab=WORDS)
    vocabulary, documents = Vocabulary(WORDS), [[sentence] for sentence in text(64)]
    source, more = (pipeline.running_text, {"steps": 4}) if streams else (pipeline.sentences, {})

    def data(start):
        epoch = lambda _: documents  # noqa: E731
        return source(bundle.features, vocabulary, epoch, BATCH, sampled=bool(samples), start=start, **more)

    config = elmo.Config(**bundle.config)
    return lambda: elmo.language_model(config, len(WORDS), samples, BATCH if streams else None), data, None


def pretrainer():
    config = BERT | {"vocabulary_size": len(PIECES), "dropout": 0.0, "attention_dropout": 0.0}
    bundle = Bundle("bert", "pretrainer", config, 16, vocab=PIECES)
    rows = bundle.features.encode(text(64))
    pairs = [(row, bool(number % 2)) for number, row in enumerate(rows)]
    masking = Masking(bundle.features.wordpiece)

    def data(start):
        return pipeline.segments(bundle.features, lambda _: pairs, BATCH, masking, seed=0, start=start)

    return lambda: bert.pretrainer(bert.Config(**config)), data, None


def task(name, examples, family="static", head=(), **more):
    config, vocab = {"static": (STATIC, ("<UNK>", *LETTERS)), "bert": (BERT, PIECES)}[family]
    config = config | {key: 0.0 for key in ("dropout", "attention_dropout") if family == "bert"}
    config = config | ({"vocabulary_size": len(vocab)} if family == "bert" else {})
    head = {"dropout": 0.0, **dict(head)} if name != "similar" else {}
    bundle = Bundle(family, name, config, 16, vocab=vocab, head=head, **more)
    data = partial(targets.batches, bundle, lambda _: examples, BATCH, 0)
    return lambda: saving.build(bundle), data, tasks.get(name).loss(tasks.get(name).Options(), {})


def tagger(crf):
    rows = [sentence.split() for sentence in text(40)]
    examples = [Tagged(tuple(row), tuple("O" if word < "d" else "X" for word in row)) for row in rows]
    return task("tag", examples, labels=("O", "X"), head={"crf": crf})


def answerer():
    examples = [Question("a", row, ((row.split()[0], 0),), str(number)) for number, row in enumerate(text(40))]
    return task("answer", examples, "bert", reads=tasks.get("answer").reads, settings={"stride": 8})


def similar():
    examples = [Pair(f"{row} a", f"b {row}") for row in text(40)]
    return task("similar", examples, "bert", reads=tasks.get("similar").reads, pooling="mean")


def translator():
    examples = [Translation(row, (row[::-1],)) for row in text(40)]
    vocab = ("<S>", "</S>", "<UNK>", *LETTERS)
    head = {"kind": "recurrent", "units": 8}
    return task(
        "translate", examples, "bert", labels=vocab, head=head, settings={"units": "words", "target_length": 12}
    )


def classifier():
    examples = [Example(row, "x" if row < "d" else "y") for row in text(41)]
    build, data, _ = task("classify", examples, labels=("x", "y"))
    classify = tasks.get("classify")
    options = classify.Options(label_smoothing=0.1, class_weights={"x": 3.0})
    return build, data, classify.loss(options, {"x": 20, "y": 21})


def plain(microbatches=1, rows=9, dropout=0.0):
    """A Keras script: `compile` with our optimizer, `fit`, `evaluate` and `predict` with uneven batches."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(rows, 6)).astype("float32"), rng.integers(0, 20, (rows, 4)).astype("int32")
    vector, ids = keras.Input((6,)), keras.Input((None,), dtype="int32")
    x = keras.ops.mean(keras.layers.Embedding(20, 5)(ids), axis=1)
    x = Dropout(dropout)(keras.layers.Concatenate()([vector, x]))
    x = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")(x)
    model = Model([vector, ids], keras.layers.Dense(3, dtype="float32")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(AdamW(0.01, clip=0.1, epsilon=1e-4), loss, metrics=["accuracy"])
    model.microbatches = microbatches
    data = tf.data.Dataset.from_tensor_slices((inputs, rng.integers(0, 3, rows))).batch(8)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return model, data.with_options(options)


def run_plain(name, microbatches=1, precision="float32"):
    keras.utils.set_random_seed(0)
    with strategy.scope(precision, strategy=name):
        model, data = plain(microbatches)
    history = model.fit(data, epochs=10, shuffle=False, verbose=0).history
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    scores = model.evaluate(data, verbose=0)
    return {"loss": history["loss"], "scores": scores, "outputs": model.predict(data, verbose=0), "weights": weights}


def overflow(name):
    """float16 overflows in the first row, which is on one replica: (weights before and after, scale of the loss)."""
    keras.utils.set_random_seed(0)
    with strategy.scope("mixed_float16", strategy=name):
        model, data = plain(rows=8)
    before = model.get_weights()
    data = data.map(lambda x, y: ((x[0] * tf.constant([[1e9]] + [[1.0]] * 7), x[1]), y))
    model.fit(data, epochs=1, shuffle=False, verbose=0)
    changed = max(np.abs(a - b).max() for a, b in zip(before, model.get_weights(), strict=True))
    return {"changed": changed, "scale": float(model.optimizer.dynamic_scale.numpy())}


def masks(name):
    """Dropout's masks on every replica, (replicas, 64)."""
    chosen = strategy.choose(name)
    with chosen.scope():
        dropout = Dropout(0.5)

    @tf.function
    def call():
        return chosen.run(lambda: dropout(tf.ones((1, 64)), training=True))

    return {"masks": chosen.gather(call(), axis=0).numpy()}


KINDS = {
    "language_model": language_model,
    "sampled_streams": lambda: language_model(6, True),
    "streams": lambda: language_model(None, True),
    "pretrainer": pretrainer,
    "tagger": lambda: tagger(False),
    "crf": lambda: tagger(True),
    "answerer": answerer,
    "similar": similar,
    "translator": translator,
    "classifier": classifier,
    "lamb": classifier,
}


PRETRAINING = ("language_model", "sampled_streams", "streams", "pretrainer")  # a worker collates its own rows of these
PLAIN = {
    "plain": run_plain,
    "plain_microbatches": lambda name: run_plain(name, 3),
    "plain_float16": lambda name: run_plain(name, precision="mixed_float16"),
    "overflow": overflow,
    "masks": masks,
}


def run(kind, name, microbatches=1):
    build, data, loss = KINDS[kind]()
    keras.utils.set_random_seed(0)
    with strategy.scope(strategy=name):
        model = build()
    if START is not None:
        model.set_weights([START[f"{kind}/start/{number}"] for number in range(len(model.weights))])
    start = {f"start/{number}": weight for number, weight in enumerate(model.get_weights())}
    history = fit.fit(
        model,
        data
        if kind not in PRETRAINING
        else lambda start: pipeline.distributed(lambda: data(start), strategy.choose(name)),
        steps=STEPS,
        evaluations=STEPS,
        loss=loss,
        optimizer=OptimizerSpec(
            LAMB if kind == "lamb" else AdamW, {"learning_rate": 0.01, "epsilon": 1e-4}, scheduled=False
        ),
        microbatches=microbatches,
    )
    moments = [np.asarray(momentum) for momentum in model.optimizer._momentums]
    norm = np.sqrt(sum(np.square(moment).sum() for moment in moments))
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    return {"loss": [entry["loss"] for entry in history], "norm": norm, "weights": weights} | start


def main(name, out, kinds):
    if name == "mirrored" and TENSORFLOW:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    chosen = strategy.choose(name)
    results = {}
    for kind in kinds or [*KINDS, *(PLAIN if TENSORFLOW else ())]:
        for key, value in (PLAIN[kind](name) if kind in PLAIN else run(kind, name)).items():
            results[f"{kind}/{key}"] = value
    if strategy.is_chief(chosen):
        np.savez(out, replicas=chosen.num_replicas_in_sync, **results)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
