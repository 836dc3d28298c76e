"""Losses that Keras does not have."""

from collections.abc import Sequence

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class CrossEntropy(keras.losses.Loss):
    """Softmax cross-entropy of class numbers, with label smoothing and weights of the classes.

    Label smoothing is that of Szegedy et al. 2016, section 7, https://arxiv.org/abs/1512.00567: the target is a
    distribution that gives 1 - s to the label and shares s among all classes, the label included. The loss of an
    example is multiplied by the weight of its label, and the mean is over examples, whatever their weights: it is then
    the same however a batch is divided among replicas.

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

    def call(self, y_true, y_pred):
        labels = ops.cast(y_true, "int32")
        log_probabilities = ops.log_softmax(y_pred)  # (..., C)
        of_label = ops.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
        of_all = ops.mean(log_probabilities, axis=-1)
        loss = -(1 - self.label_smoothing) * of_label - self.label_smoothing * of_all
        if self.class_weights is None:
            return loss
        return loss * ops.take(ops.convert_to_tensor(self.class_weights, loss.dtype), labels)

    def get_config(self):
        config = {"label_smoothing": self.label_smoothing, "class_weights": self.class_weights}
        return super().get_config() | config
