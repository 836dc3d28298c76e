"""Keras metrics of this package's models, exact over any batches and replicas."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

__all__ = ["Accuracy", "Perplexity", "SpanF1"]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Perplexity(keras.metrics.Mean):
    """exp of the mean cross-entropy, in nats, of the positions whose weight is not zero; exact over any batches.

    >>> metric = Perplexity()
    >>> metric.update_state(ops.array([[0, 1]]), ops.zeros((1, 2, 4)), ops.array([[2.0, 0.0]]))
    >>> round(float(metric.result()), 4)
    4.0
    """

    def __init__(self, name: str = "perplexity", **kwargs):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        super().update_state(ops.reshape(loss, (-1,)), _count(sample_weight))

    def result(self) -> Any:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Accuracy(keras.metrics.SparseCategoricalAccuracy):
    """Fraction of correct labels among the positions whose weight is not zero.

    >>> metric = Accuracy()
    >>> metric.update_state(ops.array([[1, 1]]), ops.array([[[0.0, 1.0], [1.0, 0.0]]]), ops.array([[2.0, 0.0]]))
    >>> float(metric.result())
    1.0
    """

    def __init__(self, name: str = "accuracy", **kwargs):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_pred = ops.reshape(y_pred, (-1, y_pred.shape[-1]))
        super().update_state(ops.reshape(y_true, (-1,)), y_pred, _count(sample_weight))


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class SpanF1(keras.metrics.Metric):
    """F1 of the spans that tags in IOB2 mark, of all batches together: a span counts if type, begin and end are right.

    Tjong Kim Sang & De Meulder 2003, https://aclanthology.org/W03-0419/; as lenient as conlleval, as `Tag`'s figure.

    Args:
        labels: names of the classes, "O", "B-..." and "I-...", in the order of the logits.

    Call:
        y_true: int32 (B, W), the right classes.
        y_pred: float32 (B, W, C), logits; or int32 (B, W), classes, as a CRF's "tags" are.
        sample_weight: (B, W), 0 where there is no word.

    Raises:
        ValueError: a label is none of IOB2's.

    >>> metric = SpanF1(["O", "B-PER", "I-PER"])
    >>> metric.update_state(ops.array([[1, 2, 0, 1]]), ops.array([[1, 2, 0, 0]]))
    >>> round(float(metric.result()), 4)
    0.6667
    """

    def __init__(self, labels: Sequence[str], name: str = "span_f1", **kwargs):
        super().__init__(name=name, **kwargs)  # pyright: ignore[reportCallIssue]
        self.labels = list(labels)
        odd = [label for label in self.labels if label != "O" and label[:2] not in ("B-", "I-")]
        if odd:
            raise ValueError(f"label {odd[0]!r}: not of IOB2, whose labels are O, B-TYPE and I-TYPE")
        kinds = sorted({label[2:] for label in self.labels if label != "O"})
        self._kinds = [-1 if label == "O" else kinds.index(label[2:]) for label in self.labels]
        self._begins = [label.startswith("B-") for label in self.labels]
        self.right, self.predicted, self.true = (
            self.add_variable((), "zeros", name=name, aggregation="sum") for name in ("right", "predicted", "true")
        )

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_pred = ops.convert_to_tensor(y_pred)
        tags = ops.argmax(y_pred, axis=-1) if len(y_pred.shape) == 3 else y_pred
        true, predicted = (self._spans(classes, sample_weight) for classes in (y_true, tags))
        both = [ops.equal(gold, answer) for gold, answer in zip(true, predicted, strict=True)]
        right = ops.logical_and(ops.logical_and(both[0], both[1]), ops.greater_equal(true[0], 0))
        self.right.assign_add(ops.sum(ops.cast(right, "float32")))
        for total, (kind, _) in ((self.true, true), (self.predicted, predicted)):
            total.assign_add(ops.sum(ops.cast(ops.greater_equal(kind, 0), "float32")))

    def _spans(self, tags, sample_weight):
        """(B, W) the type of the span that begins at each word, or -1; and the end of the span at each word."""
        tags = ops.cast(tags, "int32")
        kind = ops.take(ops.array(self._kinds, "int32"), tags)
        if sample_weight is not None:
            kind = ops.where(ops.convert_to_tensor(sample_weight) > 0, kind, -1)
        before = ops.pad(kind[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        begins = ops.logical_or(ops.take(ops.array(self._begins), tags), ops.not_equal(kind, before))
        begins = ops.logical_and(begins, ops.greater_equal(kind, 0))
        over = ops.logical_or(begins, ops.less(kind, 0))  # the previous span has ended
        position = ops.arange(ops.shape(kind)[1], dtype="int32")
        later = ops.logical_and(over[:, None, :], (position[None, :] > position[:, None])[None])  # (B, W, W)
        end = ops.min(ops.where(later, position, ops.shape(kind)[1]), axis=-1)
        return ops.where(begins, kind, -1), end

    def result(self) -> Any:
        return 2 * self.right / ops.maximum(self.predicted + self.true, 1)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"labels": self.labels}


def _count(sample_weight):
    """1 where the weight is not zero, flattened: Keras would weigh each row of a matrix by its padded length."""
    if sample_weight is None:
        return None
    return ops.cast(ops.reshape(ops.convert_to_tensor(sample_weight), (-1,)) > 0, "float32")
