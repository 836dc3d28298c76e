"""Losses that Keras does not have."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ctxrep.backend import tf
from keras_ctxrep.layers.layer import Configured
from keras_ctxrep.layers.replicas import replica
from keras_ctxrep.layers.softmax import MASKED
from keras_ctxrep.layers.window import window_mask

__all__ = [
    "CoSENT",
    "CosineRegression",
    "CrossEntropy",
    "Distillation",
    "MultipleNegatives",
    "NegativeSampling",
    "TextDistillation",
    "VectorLoss",
    "WordDistillation",
]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class CrossEntropy(Configured, keras.losses.Loss):
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

    def __init__(
        self,
        labels: keras.losses.Loss,
        activation: str = "softmax",
        temperature: float = 2.0,
        weight: float = 0.9,
        **kwargs,
    ):
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
    def from_config(cls, config: dict) -> Any:
        return cls(**config | {"labels": keras.saving.deserialize_keras_object(config["labels"])})


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class WordDistillation(Configured, keras.losses.Loss):
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
        teacher, student = _scale_to_one(y_true), _scale_to_one(y_pred)
        if not self.relations:
            distances = 1 - ops.mean(ops.sum(teacher * student, axis=-1), axis=-1)  # (B, W)
            return ops.sum(distances * real, axis=-1) / ops.maximum(ops.sum(real, axis=-1), 1)
        teacher, student = (ops.transpose(vectors, (0, 2, 1, 3)) for vectors in (teacher, student))  # (B, N, W, D)
        differences = _cosines(teacher) - _cosines(student)
        pairs = real[:, :, None] * real[:, None, :]  # (B, W, W)
        squares = ops.sum(ops.mean(ops.square(differences), axis=1) * pairs, axis=(-2, -1))
        return squares / ops.maximum(ops.sum(pairs, axis=(-2, -1)), 1)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class TextDistillation(Configured, keras.losses.Loss):
    """How far a student's vectors of texts are from those of a teacher, and their similarities from the teacher's.

    1 - cosine of each text, and the mean squared difference of the cosines between the texts of the batch, as in Tung &
    Mori 2019, https://arxiv.org/abs/1907.09682, with a weight. On several replicas the texts of all of them are
    compared, as `VectorLoss` does; with `microbatches` those of a part.

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
        teacher, student = _scale_to_one(y_true), _scale_to_one(y_pred)
        distances = 1 - ops.sum(teacher * student, axis=-1)  # (B,)
        (teacher, _), (student, rows) = _of_all_replicas(teacher), _of_all_replicas(student)
        differences = ops.mean(ops.square(_cosines(teacher) - _cosines(student)))
        return distances + self.weight * _count_once(differences, rows, ops.shape(student)[0])


def _cosines(vectors):
    """Between all pairs of vectors of length 1, (..., W, D) -> (..., W, W)."""
    return ops.matmul(vectors, ops.swapaxes(vectors, -1, -2))


class VectorLoss(Configured, keras.losses.Loss):
    """Base of the losses over the vectors of the texts of a whole batch.

    The rows of a batch are texts, those of an example one after the other: a text and its pair, or a text, its positive
    and its negative. Every text may be compared with all the others, so the loss is no mean over rows: on several
    replicas the vectors of all of them are gathered, and value and gradient are those of the whole batch;
    `models.model.Model` computes them for parts of a batch too (`microbatches`).

    With `nested` it is the sum of the losses of the whole vectors and of their first components: Kusupati et al. 2022,
    eq. 1, https://arxiv.org/abs/2205.13147, with all weights 1. A vector may then be cut to any of these widths.

    Args:
        texts: rows of an example, 2 or 3.
        nested: widths of the shorter vectors, each smaller than the vectors'.

    Call:
        y_true: float32 (B * texts, 2), of every row the score of its example, and the number of its text, which texts
            that are equal share. A part of the numbers that a loss does not need may be anything.
        y_pred: float32 (B * texts, D).

    Returns: float32 (1,), of the whole batch.
    """

    def __init__(self, texts: int = 2, nested: Sequence[int] = (), **kwargs):
        super().__init__(**kwargs)
        self.texts, self.nested = int(texts), [int(width) for width in nested]

    def call(self, y_true, y_pred) -> Any:
        width = y_pred.shape[-1]
        if self.nested and not 0 < min(self.nested) <= max(self.nested) < width:
            raise ValueError(f"widths {self.nested}: vectors of {width} numbers can only be cut to fewer")
        targets, _ = _of_all_replicas(ops.cast(y_true, "float32"))
        vectors, rows = _of_all_replicas(ops.cast(y_pred, "float32"))
        targets = ops.reshape(targets, (-1, self.texts, 2))  # (B, texts, 2)
        scores, numbers = targets[:, 0, 0], targets[:, :, 1]
        losses = [
            self.of_batch(scores, numbers, ops.reshape(_scale_to_one(vectors[:, :size]), (-1, self.texts, size)))
            for size in (width, *self.nested)
        ]
        loss = _count_once(sum(losses[1:], losses[0]), rows, ops.shape(vectors)[0])
        return loss[None]  # Keras does not divide a scalar by the number of replicas

    def of_batch(self, scores, numbers, vectors) -> Any:
        """The loss of a batch.

        Args:
            scores: float32 (B,).
            numbers: float32 (B, texts), equal for equal texts.
            vectors: float32 (B, texts, D) of length 1.

        Returns: float32 ().
        """
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class MultipleNegatives(VectorLoss):
    """InfoNCE: which of the texts of a batch belongs to a text? Trained from pairs that belong together.

    Henderson et al. 2017, section 4.4, https://arxiv.org/abs/1705.00652; van den Oord et al. 2018, eq. 4,
    https://arxiv.org/abs/1807.03748: softmax cross-entropy of a text's similarities to the pairs of all examples of the
    batch, and to their negatives if they have some. The similarity is the cosine times `scale`, the inverse of the
    temperature. The loss is the mean of both directions, from the texts to the pairs and back (Radford et al. 2021,
    figure 3, https://arxiv.org/abs/2103.00020); negatives are candidates of the first alone.

    A text that occurs several times in the batch is no negative of what it belongs to in another example: candidates
    that are equal to the text itself, or to what any equal text belongs to, are left out.

    Args:
        scale: factor of the cosines.
        texts, nested: as in `VectorLoss`.

    >>> vectors = ops.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])  # two pairs
    >>> targets = ops.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    >>> round(float(MultipleNegatives(scale=1.0)(targets, vectors)), 4)  # log(1 + 1 / e)
    0.3133
    """

    def __init__(self, scale: float = 20.0, texts: int = 2, nested: Sequence[int] = (), **kwargs):
        super().__init__(texts, nested, **kwargs)
        self.scale = scale

    def of_batch(self, scores, numbers, vectors) -> Any:
        anchors, positives = vectors[:, 0], vectors[:, 1]
        candidates = ops.concatenate([vectors[:, index] for index in range(1, self.texts)])  # the positives first
        names = ops.concatenate([numbers[:, index] for index in range(1, self.texts)])
        there = self._direction(anchors, candidates, numbers[:, 0], numbers[:, 1], names)
        back = self._direction(positives, anchors, numbers[:, 1], numbers[:, 0], numbers[:, 0])
        return (there + back) / 2

    def _direction(self, queries, candidates, own, positive, names):
        """Cross-entropy of the i-th candidate for the i-th query.

        Args:
            queries, candidates: float32 (B, D) and (C, D).
            own, positive, names: numbers of the texts of the queries, of what they belong to (B,), and of the
                candidates (C,).
        """
        same = ops.cast(own[:, None] == own[None, :], "float32")  # (B, B)
        belongs = ops.matmul(same, ops.cast(positive[:, None] == names[None, :], "float32")) > 0  # (B, C)
        count = ops.shape(own)[0]
        itself = ops.arange(count)[:, None] == ops.arange(ops.shape(names)[0])[None, :]
        no_negative = ops.logical_and(ops.logical_or(belongs, own[:, None] == names[None, :]), ops.logical_not(itself))
        logits = self.scale * ops.matmul(queries, ops.transpose(candidates))  # (B, C)
        logits = ops.where(no_negative, MASKED, logits)
        of_positive = self.scale * ops.sum(queries * candidates[:count], -1)
        return ops.mean(ops.logsumexp(logits, -1) - of_positive)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class CoSENT(VectorLoss):
    """Ranks the cosines of pairs as their scores are ranked.

    Su 2022, https://kexue.fm/archives/8847: log(1 + sum of exp(scale (cos_j - cos_i))) over all pairs i and j of the
    batch of which i has the higher score.

    Args:
        scale: factor of the cosines.
        texts, nested: as in `VectorLoss`; two texts.

    >>> vectors = ops.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])  # cosines 1 and 0
    >>> loss = CoSENT(scale=1.0)
    >>> [round(float(loss(ops.array([[a, 0], [a, 0], [b, 0], [b, 0]]), vectors)), 4) for a, b in ((5, 1), (1, 5))]
    [0.3133, 1.3133]
    """

    def __init__(self, scale: float = 20.0, texts: int = 2, nested: Sequence[int] = (), **kwargs):
        super().__init__(texts, nested, **kwargs)
        self.scale = scale

    def of_batch(self, scores, numbers, vectors) -> Any:
        cosines = self.scale * ops.sum(vectors[:, 0] * vectors[:, 1], -1)  # (B,)
        differences = cosines[None, :] - cosines[:, None]  # (B, B), of j to i
        ranked = ops.where(scores[:, None] > scores[None, :], differences, MASKED)
        return ops.logsumexp(ops.concatenate([ops.zeros((1,)), ops.reshape(ranked, (-1,))]))


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class CosineRegression(VectorLoss):
    """Mean squared difference of the cosine of a pair and its score.

    Reimers & Gurevych 2019, section 3, https://arxiv.org/abs/1908.10084, "regression objective function".

    Args:
        lowest, highest: the scores that stand for the cosines 0 and 1.
        texts, nested: as in `VectorLoss`; two texts.

    >>> vectors = ops.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])  # cosines 1 and 0
    >>> float(CosineRegression(highest=5.0)(ops.array([[5.0, 0], [5.0, 0], [2.5, 0], [2.5, 0]]), vectors))
    0.125
    """

    def __init__(self, lowest: float = 0.0, highest: float = 1.0, texts: int = 2, nested: Sequence[int] = (), **kwargs):
        super().__init__(texts, nested, **kwargs)
        self.lowest, self.highest = lowest, highest

    def of_batch(self, scores, numbers, vectors) -> Any:
        wanted = (scores - self.lowest) / (self.highest - self.lowest)
        return ops.mean(ops.square(ops.sum(vectors[:, 0] * vectors[:, 1], -1) - wanted))


def _scale_to_one(vectors):
    """Vectors (..., D) of length 1; those shorter than 1e-12, of texts without words, are left as they are.

    `layers.sentence.unit_length` multiplies the gradient of such a vector by 1e7.

    >>> [round(x, 2) for x in ops.convert_to_numpy(_scale_to_one(ops.array([3.0, 4.0]))).tolist()]
    [0.6, 0.8]
    """
    squares = ops.sum(ops.square(vectors), -1, keepdims=True)
    # the gradient of a square root at 0 is infinite
    return vectors * ops.where(squares > 1e-24, ops.rsqrt(ops.maximum(squares, 1e-24)), 1.0)


def _of_all_replicas(rows) -> tuple[Any, Any]:
    """The rows (N, ...) of all replicas in order, and the number of those of this one, which alone have gradients.

    Every replica computes the whole loss, so the gradient of its own rows is complete without those of the others.
    """
    if replica()[0] == 1:
        return rows, ops.shape(rows)[0]
    count = tf.shape(rows)[0]
    context: Any = tf.distribute.get_replica_context()
    counts = context.all_gather(count[None], axis=0)  # (replicas,)
    begin = tf.reduce_sum(counts[: context.replica_id_in_sync_group])
    gathered = tf.stop_gradient(context.all_gather(tf.stop_gradient(rows), axis=0))
    return tf.concat([gathered[:begin], rows, gathered[begin + count :]], 0), count


def _count_once(loss, rows, total) -> Any:
    """A loss of all replicas whose gradients add up to its own.

    The step of `models.model.Model` weighs the loss of each replica by its fraction of the rows, which is right for
    means over rows. This one has its value on every replica, and its gradient is divided by that fraction.
    """
    if replica()[0] == 1:
        return loss
    scaled = loss * ops.cast(total, loss.dtype) / ops.cast(rows, loss.dtype)
    return scaled + ops.stop_gradient(loss - scaled)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class NegativeSampling(Configured, keras.losses.Loss):
    """The loss of skip-gram and CBOW over blocks of words: negative sampling, with noise words that a block shares.

    Mikolov et al. 2013, https://arxiv.org/abs/1310.4546, eq. 4: -log s(x) of a true pair and -log s(-x) of `negatives`
    noise words for it. Here each centre of a block has the S noise words of the block, each with the weight n
    `negatives` / S, where n is its number of true pairs: the same expectation, in one product of matrices (Ji et al.
    2016, https://arxiv.org/abs/1604.04661). A noise word that is the true one is not left out, as word2vec.c does.

    Args:
        negatives: noise words for each true pair.
        noise: S.

    Call:
        y_true: int32 (B, P, 2), as in `window_mask`.
        y_pred: float32 (B, P, P + 2 W + S), logits of skip-gram: the words of the block, of which those in the window
            are true, then the noise words; or (B, P, 1 + S), logits of CBOW: the centre, then the noise words.

    Returns: float32 (B, P), the loss of each centre.

    >>> loss = NegativeSampling(negatives=2, noise=1)
    >>> round(float(loss(ops.array([[[1, 1]]]), ops.array([[[9.0, 0.0, 9.0, 0.0]]]))), 4)  # 4 of log 2 and 2 of 0.0001
    2.7728
    """

    def __init__(self, negatives: int = 5, noise: int = 32, **kwargs):
        super().__init__(**kwargs)
        self.negatives, self.noise = negatives, noise

    def call(self, y_true, y_pred) -> Any:
        windows, split = ops.reshape(ops.cast(y_true, "int32"), (-1, y_pred.shape[1], 2)), y_pred.shape[-1] - self.noise
        # -log s(x) is log(1 + e^x) - x; whole arrays, since gradients of slices are padded with zeros
        softplus, weight = ops.softplus(y_pred), self.negatives / self.noise
        if split == 1:
            true = ops.cast(ops.sum(windows, -1) > 0, y_pred.dtype)  # (B, P)
            weights, first = np.array([1.0, *[weight] * self.noise]), np.eye(1, 1 + self.noise)
            return true * ops.sum(softplus * weights.astype(np.float32) - y_pred * first.astype(np.float32), -1)
        true = ops.cast(window_mask(windows, split), y_pred.dtype)
        pairs = ops.sum(windows, -1, keepdims=True)
        of_noise = ops.repeat(ops.cast(pairs, y_pred.dtype) * weight, self.noise, -1)
        true_of_all = ops.concatenate([true, ops.zeros_like(of_noise)], -1)
        return ops.sum(ops.concatenate([true, of_noise], -1) * softplus - true_of_all * y_pred, -1)
