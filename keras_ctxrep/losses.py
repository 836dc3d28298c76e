"""Losses that Keras does not have."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

__all__ = ["CrossEntropy", "Distillation", "TextDistillation", "WordDistillation"]


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


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class WordDistillation(keras.losses.Loss):
    """How far a student's vectors of words are from those of a teacher.

    The mean over the words of 1 - cosine, as DistilBERT's (Sanh et al. 2019, https://arxiv.org/abs/1910.01108) of its
    hidden states; or of the relations of the words (after Wang et al. 2021, https://arxiv.org/abs/2012.15828): the mean
    squared difference of the matrices of the cosines between all words of a sentence, for which the widths may differ.

    Args:
        relations: compare the relations instead of the vectors.

    Call:
        y_true: float32 (B, W, N, D), zero where there is no word.
        y_pred: float32 (B, W, N, D).

    Returns: float32 (B,), before the reduction.

    >>> words = ops.array([[[[3.0, 0.0]], [[0.0, 1.0]], [[0.0, 0.0]]]])
    >>> float(WordDistillation()(words, ops.ones((1, 3, 1, 2)) * ops.array([1.0, 0.0])))
    0.5
    """

    def __init__(self, relations: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.relations = relations

    def call(self, y_true, y_pred) -> Any:
        real = ops.cast(ops.any(y_true != 0, axis=(-2, -1)), y_pred.dtype)  # (B, W)
        teacher, student = ops.normalize(y_true), ops.normalize(y_pred)
        if not self.relations:
            distances = 1 - ops.mean(ops.sum(teacher * student, axis=-1), axis=-1)  # (B, W)
            return ops.sum(distances * real, axis=-1) / ops.maximum(ops.sum(real, axis=-1), 1)
        teacher, student = (ops.transpose(vectors, (0, 2, 1, 3)) for vectors in (teacher, student))  # (B, N, W, D)
        differences = _cosines(teacher) - _cosines(student)
        pairs = real[:, :, None] * real[:, None, :]  # (B, W, W)
        squares = ops.sum(ops.mean(ops.square(differences), axis=1) * pairs, axis=(-2, -1))
        return squares / ops.maximum(ops.sum(pairs, axis=(-2, -1)), 1)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"relations": self.relations}


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class TextDistillation(keras.losses.Loss):
    """How far a student's vectors of texts are from those of a teacher, and their similarities from the teacher's.

    1 - cosine of each text, and the mean squared difference of the cosines between the texts of the batch, as in Tung &
    Mori 2019, https://arxiv.org/abs/1907.09682, with a weight.

    Args:
        weight: of the similarities. A difference of a tenth between cosines is much for a search, and its square a
            hundredth: 10 gives both parts the same size.

    Call:
        y_true, y_pred: float32 (B, D).

    Returns: float32 (B,), before the reduction.

    >>> texts = ops.array([[1.0, 0.0], [0.0, 1.0]])
    >>> round(float(TextDistillation()(texts, -2 * texts)), 4)  # the opposite vectors have the same similarities
    2.0
    """

    def __init__(self, weight: float = 10.0, **kwargs):
        super().__init__(**kwargs)
        self.weight = weight

    def call(self, y_true, y_pred) -> Any:
        teacher, student = ops.normalize(y_true), ops.normalize(y_pred)
        distances = 1 - ops.sum(teacher * student, axis=-1)
        return distances + self.weight * ops.mean(ops.square(_cosines(teacher) - _cosines(student)), axis=-1)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"weight": self.weight}


def _cosines(vectors):
    """Between all pairs of vectors of length 1, (..., W, D) -> (..., W, W)."""
    return ops.matmul(vectors, ops.swapaxes(vectors, -1, -2))
