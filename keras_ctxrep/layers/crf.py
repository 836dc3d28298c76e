"""Labels of a sequence that are chosen together."""

from typing import Any

import keras
from keras import ops

from keras_ctxrep.layers.layer import Layer

__all__ = ["CRF"]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class CRF(Layer):
    """Linear-chain conditional random field: the best sequence of labels, and the loss that trains it.

    Lafferty et al. 2001, https://dl.acm.org/doi/10.5555/645530.655813; over a neural network as in Lample et al. 2016,
    https://arxiv.org/abs/1603.01360, section 2.3. The score of labels y over the real words 1 .. n is

        begin[y_1] + sum_t logits[t, y_t] + sum_t transitions[y_t-1, y_t] + end[y_n]

    The best labels are those of the Viterbi algorithm. Words where the mask is 0 may be anywhere and are skipped.

    Call:
        logits: float32 (B, T, C).
        mask: int32 (B, T).

    Returns: int32 (B, T), 0 where the mask is 0.

    >>> layer = CRF()
    >>> ops.convert_to_numpy(layer(ops.array([[[0.0, 2.0], [1.0, 0.0]]]), mask=ops.ones((1, 2), "int32"))).tolist()
    [[1, 0]]
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        # XLA cannot differentiate the loss's loop, whose number of steps it does not know; where there is a GPU,
        # Keras' jit_compile="auto" is XLA
        self.supports_jit = keras.backend.backend() != "tensorflow"

    def build(self, input_shape) -> None:
        classes = input_shape[-1]
        self.transitions = self.add_weight(name="transitions", shape=(classes, classes), initializer="zeros")
        self.begin = self.add_weight(name="begin", shape=(classes,), initializer="zeros")
        self.end = self.add_weight(name="end", shape=(classes,), initializer="zeros")

    def call(self, logits, mask) -> Any:
        logits, real = self._by_time(logits, mask)

        def forward(states, inputs):
            return self._step(states, inputs, lambda paths: ops.max(paths, axis=1))

        _, scores = _scan(forward, self._start(logits[0]), (logits, real))

        def back(states, inputs):
            after, ended = states  # (B, C), one-hot, and (B, 1)
            score, real = inputs
            followed = ops.matmul(after, ops.transpose(ops.cast(self.transitions, score.dtype)))
            best = _first_best(score + ended * followed + (1 - ended) * ops.cast(self.end, score.dtype))
            best = ops.one_hot(best, score.shape[-1], dtype=score.dtype)
            return real * best + (1 - real) * after, ops.maximum(real, ended)

        _, labels = _scan(back, self._start(logits[0]), (scores, real), reverse=True)
        number = ops.sum(real * labels * ops.arange(labels.shape[-1], dtype=labels.dtype), axis=-1)  # (T, B)
        return ops.cast(ops.transpose(number), "int32")

    def loss(self, y_true: Any, logits: Any) -> Any:
        """Negative log-likelihood of the labels, in nats.

        Args:
            y_true: int32 (B, T), -1 where there is no word.
            logits: float32 (B, T, C).

        Returns: float32 (B,).
        """
        logits, real = self._by_time(logits, ops.cast(ops.greater_equal(y_true, 0), "int32"))
        classes = logits.shape[-1]
        gold = ops.transpose(ops.one_hot(ops.maximum(y_true, 0), classes, dtype=logits.dtype), (1, 0, 2)) * real
        transitions, begin, end = (
            ops.cast(weight, logits.dtype) for weight in (self.transitions, self.begin, self.end)
        )

        def step(states, inputs):
            score, started, total, before = states
            logit, real, label = inputs
            score, now = self._step((score, started), (logit, real), lambda paths: ops.logsumexp(paths, axis=1))
            edge = started * ops.matmul(before, transitions) + (1 - started) * begin
            total = total + ops.sum((edge + logit) * label, axis=-1, keepdims=True)
            return score, now, total, label + (1 - real) * before

        score, started = self._start(logits[0])
        states = score, started, ops.zeros_like(started), ops.zeros_like(score)
        (score, started, total, last), _ = _scan(step, states, (logits, real, gold))
        whole = ops.logsumexp(score + end, axis=-1) - ops.squeeze(total, -1) - ops.sum(last * end, axis=-1)
        return whole * ops.squeeze(started, -1)

    def _by_time(self, logits, mask):
        logits = ops.cast(logits, "float32")
        return ops.transpose(logits, (1, 0, 2)), ops.transpose(ops.cast(mask, "float32"))[:, :, None]

    def _start(self, like):
        return ops.zeros_like(like), ops.zeros_like(
            like[:, :1]
        )  # scores (B, C), and whether a real word came before (B, 1)

    def _step(self, states, inputs, join):
        score, started = states
        logit, real = inputs
        paths = join(score[:, :, None] + ops.cast(self.transitions, score.dtype))  # (B, C)
        new = logit + started * paths + (1 - started) * ops.cast(self.begin, score.dtype)
        return real * new + (1 - real) * score, ops.maximum(real, started)

    def compute_output_spec(self, logits, mask) -> Any:
        return keras.KerasTensor(logits.shape[:2], "int32")


def _scan(step, states, inputs, reverse=False):
    """Scans over the first axis of `inputs`; returns the last states, and the first of the states at every step."""
    if keras.backend.backend() != "tensorflow":

        def both(states, inputs):
            states = step(states, inputs)
            return states, states

        states, (outputs, *_) = ops.scan(both, states, inputs, reverse=reverse)
        return states, outputs
    import tensorflow as tf  # `ops.scan` needs a static number of steps

    steps, fixed = tf.shape(inputs[0])[0], inputs[0].shape[0]
    outputs = tf.TensorArray(states[0].dtype, size=steps if fixed is None else fixed, element_shape=states[0].shape)

    def body(index, states, outputs):
        position = steps - 1 - index if reverse else index
        states = step(states, [tensor[position] for tensor in inputs])
        return index + 1, tuple(states), outputs.write(position, states[0])

    _, states, outputs = tf.while_loop(lambda index, *_: index < steps, body, (tf.constant(0), tuple(states), outputs))
    return states, outputs.stack()


def _first_best(x):
    """argmax over the last axis, int32; unlike in `ops.argmax`, -0.0 and 0.0 are equal, as in TFLite."""
    numbers = ops.arange(x.shape[-1], dtype="int32")
    return ops.min(ops.where(x >= ops.max(x, axis=-1, keepdims=True), numbers, x.shape[-1]), axis=-1)
