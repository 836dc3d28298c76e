"""Losses that Keras does not have."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

__all__ = ["CrossEntropy", "Distillation"]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class CrossEntropy(keras.losses.Loss):
    """Softmax cross-entropy of class numbers, with label smoothing and weights of the classes.

    Label smoothing is that of Szegedy et al. 2016, section 7, https://arxiv.org/abs/1512.00567: the target gives 1 - s
    to the label and shares s among all classes. The loss of an example is multiplied by the weight of its label, and
    the mean is over examples, whatever their weights: the same however a batch is divided among replicas.

    Args:
        label_smoothing: s, from 0 to 1.
        class_weights: the weight of each class; None: 1.

    Call:
        y_true: int32 (...), class numbers.
        y_pred: float32 (..., C), logits.

    >>> # log(1 + e^2) - 1.5
    >>> round(float(CrossEntropy(label_smoothing=0.5)(ops.array([0]), ops.array([[2.0, 0.0]]))), 4)
    0.6269
    """

    def __init__(self, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None, **kwargs):
        super().__init__(**kwargs)
        self.label_smoothing = label_smoothing
        self.class_weights = None if class_weights is None else [float(weight) for weight in class_weights]

    def call(self, y_true, y_pred) -> Any:
        labels = ops.cast(y_true, "int32")
        log_probabilities = ops.log_softmax(y_pred)  # (..., C)
        of_label = ops.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
        of_all = ops.mean(log_probabilities, axis=-1)
        loss = -(1 - self.label_smoothing) * of_label - self.label_smoothing * of_all
        if self.class_weights is None:
            return loss
        return loss * ops.take(ops.convert_to_tensor(self.class_weights, loss.dtype), labels)

    def get_config(self) -> dict[str, Any]:
        config = {"label_smoothing": self.label_smoothing, "class_weights": self.class_weights}
        return super().get_config() | config


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Distillation(keras.losses.Loss):
    """The loss of a student: its distance from a teacher's outputs, and from the labels.

    Hinton et al. 2015, section 2, https://arxiv.org/abs/1503.02531: with the teacher's logits v and the student's z,
    w T^2 KL(softmax(v / T) || softmax(z / T)) + (1 - w) L(label, z). The same with sigmoids, and of numbers, without a
    temperature, the mean squared difference. The teacher's logits are a part of the targets, computed once for all
    epochs; where they are NaN, L alone counts.

    Args:
        labels: L, a loss of logits, of which `call` is used: one number for each distribution.
        activation: "softmax", "sigmoid" or "linear".
        temperature: T.
        weight: w, from 0 to 1.

    Call:
        y_true: float32 (..., K + C), the label and the teacher's logits. K is 1, a number, for "softmax", else C.
        y_pred: float32 (..., C), logits.

    >>> loss = Distillation(CrossEntropy(), temperature=2.0, weight=1.0)
    >>> float(loss(ops.array([[0.0, 1.0, 3.0]]), ops.array([[0.0, 2.0]])))  # equal distributions, another label
    0.0
    """

    def __init__(self, labels: keras.losses.Loss, activation="softmax", temperature=2.0, weight=0.9, **kwargs):
        super().__init__(**kwargs)
        self.labels, self.activation, self.temperature, self.weight = labels, activation, temperature, weight

    def call(self, y_true, y_pred) -> Any:
        numbers = ops.shape(y_true)[-1] - ops.shape(y_pred)[-1]  # of the label
        label, teacher = y_true[..., :numbers], y_true[..., numbers:]
        of_label = self.labels.call(label[..., 0] if self.activation == "softmax" else label, y_pred)
        known = ops.logical_not(ops.isnan(teacher))
        of_teacher = self._distance(ops.where(known, teacher, 0.0), y_pred)
        mixed = self.weight * of_teacher + (1 - self.weight) * of_label
        return ops.where(ops.all(known, axis=-1), mixed, of_label)

    def _distance(self, teacher, student):
        """From one distribution to the other, (...)."""
        if self.activation == "linear":
            return ops.mean(ops.square(teacher - student), axis=-1)
        teacher, student = teacher / self.temperature, student / self.temperature
        if self.activation == "softmax":
            logs = ops.log_softmax(teacher)
            divergence = ops.sum(ops.exp(logs) * (logs - ops.log_softmax(student)), axis=-1)
        else:
            logs, negative = ops.log_sigmoid(teacher), ops.log_sigmoid(-teacher)
            yes = ops.exp(logs) * (logs - ops.log_sigmoid(student))
            divergence = ops.mean(yes + ops.exp(negative) * (negative - ops.log_sigmoid(-student)), axis=-1)
        return self.temperature**2 * divergence

    def get_config(self) -> dict[str, Any]:
        config = {"activation": self.activation, "temperature": self.temperature, "weight": self.weight}
        return super().get_config() | config | {"labels": keras.saving.serialize_keras_object(self.labels)}

    @classmethod
    def from_config(cls, config):
        return cls(**config | {"labels": keras.saving.deserialize_keras_object(config["labels"])})
