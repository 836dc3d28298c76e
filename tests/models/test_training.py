"""Every model learns, and learns the same on two devices as on one."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.models import bert, elmo, heads
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.pretraining import (
    Masking,
    Vocabulary,
    language_model_batch,
    next_sentence_rows,
    pretrainer_batch,
)
from tests import tiny

pytestmark = pytest.mark.trains

NAMES = ("language_model", "elmo mix", "bert pooled", "bert crf")
SLOW = [pytest.param(name, marks=pytest.mark.release) for name in NAMES]  # 40 seconds


@pytest.fixture(params=["pretrainer", *SLOW])
def case(request, elmo_config, bert_config, characters, pieces, sentences, rng):
    """(a function that makes the model, its inputs, targets and weights); eight examples, no dropout."""
    rows = [*sentences, "a mat", "dogs and a cat sat", "on", "the dogs"]
    if request.param == "language_model":
        vocabulary = Vocabulary.count([row.split() for row in rows], minimum=1)
        batch = language_model_batch(characters, vocabulary, characters.encode(rows))
        config = replace(elmo_config, dropout=0.0)
        return lambda: elmo.language_model(config, len(vocabulary)), *batch
    if request.param == "pretrainer":
        masking = Masking(pieces.wordpiece)
        documents = [pieces.wordpiece.ids_batch(rows), pieces.wordpiece.ids_batch(rows[::-1])]
        pairs = [pair for _ in range(8) for pair in next_sentence_rows(documents, pieces, rng)][:8]
        return lambda: bert.pretrainer(bert_config), *pretrainer_batch(pieces, [masking(pair, rng) for pair in pairs])
    if request.param == "bert crf":
        features = WordPieceFeatures(pieces.wordpiece, starts=True)
        batch = features(rows)
        y = np.where(batch["starts"] > 0, rng.integers(0, 3, batch["starts"].shape), -1)
        return lambda: heads.tag(bert.encoder(bert_config), 3, crf=True, dropout=0.0), batch, {"logits": y}
    family, head = request.param.split()
    features = characters if family == "elmo" else pieces
    labels = np.arange(8, dtype=np.int32) % 3

    def make():
        encoder = elmo.encoder(elmo_config) if family == "elmo" else bert.encoder(bert_config)
        return heads.classify(encoder, 3, mix=head == "mix", dropout=0.0)

    return make, features(rows), {"logits": labels}, {"logits": np.ones(8, np.float32)}


def losses_of(model):
    if "tags" in model.output:
        return {"logits": model.get_layer("crf").loss}
    return {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in model.output}


def losses_of_training(make, batch, strategy, start):
    """The loss of each of eight steps of plain gradient descent on one batch."""
    with strategy.scope():
        model = make()
        model.compile(keras.optimizers.SGD(0.2 if "tags" in model.output else 0.5), losses_of(model))
        model.set_weights(start)
    data = tf.data.Dataset.from_tensor_slices(tuple(batch)).batch(8).repeat(8)  # of which each replica takes its part
    losses = []
    seen = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
    model.fit(data, epochs=8, steps_per_epoch=1, shuffle=False, verbose=0, callbacks=[seen])
    return losses


def test_training_lowers_the_loss_and_two_devices_agree_with_one(case):
    make, *batch = case
    start = make().get_weights()
    mirrored = tiny.mirrored()
    one_device, two_devices = (
        losses_of_training(make, batch, strategy, start) for strategy in (tf.distribute.get_strategy(), mirrored)
    )
    parts = mirrored.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(8))
    assert [part.shape for part in mirrored.experimental_local_results(next(iter(parts)))] == [(4,), (4,)]
    assert np.isfinite(one_device).all() and one_device[-1] < 0.97 * one_device[0]
    np.testing.assert_allclose(two_devices, one_device, rtol=1e-5)
