"""Every model learns, and learns the same on two devices as on one."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep.models import bert, elmo, heads
from keras_ctxrep.text.pretraining import Vocabulary, language_model_batch, next_sentence_rows, pretrainer_batch


@pytest.fixture(params=["language_model", "pretrainer", "elmo classifier", "bert classifier", "elmo mix", "bert mix"])
def case(request, elmo_config, bert_config, characters, pieces, sentences, rng):
    """(a function that makes the model, its inputs, targets and weights); eight examples, no dropout."""
    rows = [*sentences, "a mat", "dogs and a cat sat", "on", "the dogs"]
    if request.param == "language_model":
        vocabulary = Vocabulary.count([row.split() for row in rows], minimum=1)
        batch = language_model_batch(characters, vocabulary, characters.encode(rows))
        config = replace(elmo_config, dropout=0.0)
        return lambda: elmo.language_model(config, len(vocabulary)), *batch
    if request.param == "pretrainer":
        documents = [pieces.wordpiece.ids_batch(rows), pieces.wordpiece.ids_batch(rows[::-1])]
        pairs = [pair for _ in range(8) for pair in next_sentence_rows(documents, pieces, rng)][:8]
        return lambda: bert.pretrainer(bert_config), *pretrainer_batch(pieces, pairs, rng)
    family, head = request.param.split()
    features = characters if family == "elmo" else pieces
    labels = np.arange(8, dtype=np.int32) % 3

    def make():
        encoder = elmo.encoder(elmo_config) if family == "elmo" else bert.encoder(bert_config)
        return heads.classify(encoder, 3, mix=head == "mix", dropout=0.0)

    return make, features(rows), {"logits": labels}, {"logits": np.ones(8, np.float32)}


def compiled(model, optimizer):
    losses = {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in model.output}
    model.compile(optimizer, losses)
    return model


def test_a_few_steps_lower_the_loss(case):
    make, *batch = case
    model = compiled(make(), keras.optimizers.Adam(0.02))
    history = model.fit(tf.data.Dataset.from_tensors(tuple(batch)), epochs=12, shuffle=False, verbose=0).history["loss"]
    before, after = history[0], history[-1]
    assert np.isfinite(history).all() and after < 0.9 * before


def test_two_devices_give_the_losses_of_one(case):
    make, *batch = case
    start = make().get_weights()
    histories = []
    for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
        with strategy.scope():
            model = compiled(make(), keras.optimizers.SGD(0.1))
            model.set_weights(start)
        history = model.fit(tf.data.Dataset.from_tensors(tuple(batch)), epochs=4, shuffle=False, verbose=0).history
        histories.append(history["loss"])
    assert strategy.num_replicas_in_sync == 2
    assert len(set(np.round(histories[0], 4))) == 4  # it moves
    np.testing.assert_allclose(histories[1], histories[0], rtol=1e-5)
