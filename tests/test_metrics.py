"""Keras metrics, over several batches, against seqeval and NumPy."""

import keras
import numpy as np
import pytest
import seqeval.metrics

from keras_ctxrep import tasks
from keras_ctxrep.metrics import Accuracy, Perplexity, SpanF1
from keras_ctxrep.tasks.tag import Tagged

LABELS = ["B-PER", "O", "I-LOC", "I-PER", "B-LOC"]


def draw(rng, rows, length):
    """(right classes, predicted ones that often agree, weights: 0 where there is no word), the words at the begin."""
    true = rng.integers(0, len(LABELS), (rows, length))
    predicted = np.where(rng.random(true.shape) < 0.8, true, rng.integers(0, len(LABELS), true.shape))
    sizes = rng.integers(0, length + 1, (rows, 1))
    return true, predicted, (np.arange(length) < sizes).astype(np.float32)


def tags(classes, weights):
    return [
        [LABELS[tag] for tag, weight in zip(*row, strict=True) if weight] for row in zip(classes, weights, strict=True)
    ]


def test_span_f1_is_that_of_seqeval(rng):
    metric = SpanF1(LABELS)
    assert float(metric.result()) == 0
    right, predicted = [], []
    for length in (1, 7, 12, 4):
        true, predictions, weights = draw(rng, 20, length)
        logits = np.eye(len(LABELS), dtype=np.float32)[predictions] + rng.uniform(0, 0.5, (20, length, len(LABELS)))
        metric.update_state(true, logits if length % 2 else predictions.astype(np.int32), weights * length)
        right, predicted = right + tags(true, weights), predicted + tags(predictions, weights)
        assert float(metric.result()) == pytest.approx(seqeval.metrics.f1_score(right, predicted, zero_division=0))
    assert 0.3 < float(metric.result()) < 0.9
    gold = [Tagged(("w",) * len(row), tuple(row)) for row in right]
    predictions = [{"words": [{"word": "w", "label": label} for label in row]} for row in predicted]
    answers = [prediction if prediction["words"] else {"error": "no words in this text"} for prediction in predictions]
    assert tasks.get("tag").evaluate(gold, answers, LABELS).scores["span_f1"] == pytest.approx(float(metric.result()))
    metric.reset_state()
    assert float(metric.result()) == 0


def test_span_f1_without_weights():
    metric = SpanF1(["O", "B-X", "I-X"])
    metric.update_state([[1, 2, 1, 2]], [[1, 2, 1, 0]])
    assert float(metric.result()) == 0.5
    metric.update_state([[0, 0]], [[0, 0]])
    assert float(metric.result()) == 0.5


def test_a_word_that_is_none_ends_a_span():
    """A gap in the weights, where word pieces that begin no word would stand."""
    metric = SpanF1(["O", "B-X", "I-X"])
    metric.update_state([[1, 2, 2]], [[1, 0, 2]], [[1, 0, 1]])
    assert float(metric.result()) == 1


@pytest.mark.parametrize("labels", [["O", "NN"], ["O", "S-PER"], ["b-PER"], ["B"]])
def test_labels_that_are_not_iob2(labels):
    with pytest.raises(ValueError, match=f"label '{labels[-1]}': not of IOB2, whose labels are O, B-TYPE and I-TYPE"):
        SpanF1(labels)


def test_span_f1_of_a_model(rng, tmp_path):
    """Compiled beside a loss, weighted, saved with the model and loaded with it."""
    true, predicted, weights = draw(rng, 32, 6)
    x = (2 * np.eye(len(LABELS))[predicted] + 0.1 * rng.random((32, 6, len(LABELS)))).astype(np.float32)
    inputs = keras.Input((None, len(LABELS)))
    dense = keras.layers.Dense(len(LABELS), kernel_initializer="identity")
    model = keras.Model(inputs, dense(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss, weighted_metrics=[SpanF1(LABELS), Accuracy()])
    expected = seqeval.metrics.f1_score(tags(true, weights), tags(predicted, weights))
    accuracy = (true == predicted)[weights > 0].mean()
    fitted = model.fit(x, true, batch_size=5, sample_weight=weights, verbose=0).history
    assert fitted["span_f1"] == [pytest.approx(expected)] and fitted["accuracy"] == [pytest.approx(accuracy)]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    scores = again.evaluate(x, true, batch_size=7, sample_weight=weights, verbose=0, return_dict=True)
    assert scores["span_f1"] == pytest.approx(expected) and scores["accuracy"] == pytest.approx(accuracy)


def test_serialised():
    metric = SpanF1(LABELS, name="f")
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert type(again) is SpanF1 and again.get_config() == metric.get_config() and again.name == "f"
    for kind in (Perplexity, Accuracy):
        again = keras.metrics.deserialize(keras.metrics.serialize(kind()))
        assert type(again) is kind and again.name == kind.__name__.lower()


def test_perplexity_and_accuracy_count_positions(rng):
    """Each position whose weight is not zero once, whatever the weight, the padding and the size of a batch."""
    perplexity, accuracy = Perplexity(), Accuracy()
    losses, right = [], []
    for rows, length in ((1, 2), (4, 9), (3, 3)):
        true, logits = rng.integers(0, 5, (rows, length)), rng.normal(size=(rows, length, 5)).astype(np.float32)
        weights = rng.integers(0, 3, (rows, length)).astype(np.float32)
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        losses.extend(-np.log(np.take_along_axis(shares, true[..., None], -1)[..., 0][weights > 0]))
        right.extend((logits.argmax(-1) == true)[weights > 0])
        perplexity.update_state(true, logits, weights)
        accuracy.update_state(true, logits, weights)
    assert float(perplexity.result()) == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert float(accuracy.result()) == pytest.approx(np.mean(right))
