"""Beam search over a decoder's steps as a TensorFlow graph, by the rules of `keras_ctxrep.text.beam`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["Found", "search"]


class Found(NamedTuple):
    """The best sequences of each text, the best first.

    Attributes:
        tokens: int32 (B, K, T), -1 after the last one, without the mark of the end.
        scores: (B, K), -inf where there are fewer than K sequences.
        finished: bool (B, K), whether each ended by itself.
    """

    tokens: Any
    scores: Any
    finished: Any


def search(
    step: Callable[[dict], dict],
    memory: Any,
    mask: Any,
    state: Any,
    begin: int,
    end: int,
    max_length: Any,
    beams: Any,
    alpha: Any,
    never: Sequence[int] = (),
    dtype: str = "float64",
) -> Found:
    """`keras_ctxrep.text.beam.search` of a batch; each text may have its own options.

    K is the largest of `beams`, T of `max_length`. The hypotheses of all texts are rows of one call of `step`.

    Args:
        step: runs the model of this name of `models.decoder.Decoder`.
        memory, mask, state: of each text, what `start` gives, and the mask of its inputs.
        begin, end, never: as of `text.beam.search`.
        max_length: int32 (B,), tokens of a sequence at most, the end included.
        beams: int32 (B,), hypotheses that are kept.
        alpha: (B,), of the length penalty.
        dtype: of the sums of log-probabilities; float64 is that of the definition.

    >>> import tensorflow as tf
    >>> table = tf.math.log([[0.1, 0.6, 0.3], [0.1, 0.5, 0.4], [0.8, 0.1, 0.1]])  # token -> the next one
    >>> step = lambda inputs: {"logits": tf.gather(table, inputs["token_ids"][:, 0]), "state": inputs["state"]}
    >>> memory, mask, state = tf.zeros([1, 1, 1]), tf.ones([1, 1], tf.int32), tf.zeros([1, 1])
    >>> options = {"max_length": tf.constant([3]), "beams": tf.constant([2]), "alpha": tf.constant([0.0], tf.float64)}
    >>> found = search(step, memory, mask, state, begin=0, end=2, **options)
    >>> found.tokens.numpy().tolist(), tf.exp(found.scores).numpy().round(2).tolist()
    ([[[-1, -1, -1], [1, -1, -1]]], [[0.3, 0.24]])
    """
    import tensorflow as tf

    lowest = tf.constant(-float("inf"), dtype)
    rows, width, longest = tf.shape(state)[0], tf.reduce_max(beams), tf.reduce_max(max_length)
    alpha = tf.cast(alpha, dtype)
    slots = tf.range(width)[None]  # (1, K)
    own = slots < beams[:, None]  # (B, K), the slots that a text has

    def repeated(x):
        return tf.repeat(x, width, axis=0)

    memory, mask = repeated(memory), repeated(mask)

    def penalty(length):
        return ((5 + tf.cast(length, dtype)) / 6) ** alpha

    def taken(x, indices):
        return tf.gather(x, indices, batch_dims=1)

    def merged(scores, tokens, ended, new_scores, new_tokens, new_ended):
        """The best K of the finished sequences and new ones; of equal ones the earlier."""
        scores = tf.concat([scores, new_scores], 1)
        best, order = tf.math.top_k(scores, width)
        tokens, ended = tf.concat([tokens, new_tokens], 1), tf.concat([ended, new_ended], 1)
        return tf.where(own, best, lowest), taken(tokens, order), taken(ended, order)

    def body(number, last, state, totals, tokens, done, scores, finished, ended):
        length = number + 1
        inputs = {"token_ids": tf.reshape(last, [-1, 1]), "memory": memory, "memory_mask": mask, "state": state}
        outputs = step(inputs)
        logits = tf.cast(outputs["logits"], dtype)
        size = tf.shape(logits)[1]
        banned = tf.reduce_any(tf.range(size)[:, None] == tf.constant([*never, -1])[None], 1)
        logs = tf.nn.log_softmax(tf.where(banned, lowest, logits))
        sums = tf.reshape(totals[:, :, None] + tf.reshape(logs, [rows, width, size]), [rows, -1])
        values, order = tf.math.top_k(sums, tf.minimum(2 * width, width * size))
        parents, chosen = order // size, order % size
        rank = tf.range(tf.shape(order)[1])[None]
        count = tf.where(beams > 1, 2 * beams, 1)[:, None]
        valid = (rank < count) & (values > lowest) & ~done[:, None]
        ends = chosen == end
        history = taken(tokens, parents)
        new = tf.where(valid & ends & (rank < beams[:, None]), values / penalty(length)[:, None], lowest)
        scores, finished, ended = merged(scores, finished, ended, new, history, ends)
        totals, best = tf.math.top_k(tf.where(valid & ~ends, values, lowest), width)
        totals = tf.where(own, totals, lowest)
        parents, last = taken(parents, best), taken(chosen, best)
        tokens = tf.where(tf.range(longest) == number, last[:, :, None], taken(history, best))
        at_end = ~done & (length >= max_length)
        new = tf.where(at_end[:, None], totals / penalty(length)[:, None], lowest)
        scores, finished, ended = merged(scores, finished, ended, new, tokens, tf.zeros_like(own))
        full = tf.reduce_sum(tf.cast(scores > lowest, tf.int32), 1) == beams
        hopeless = tf.reduce_max(totals, 1) / penalty(max_length) <= taken(scores, beams[:, None] - 1)[:, 0]
        done |= at_end | (full & hopeless) | tf.reduce_all(totals == lowest, 1)
        state = tf.gather(outputs["state"], tf.reshape(tf.range(rows)[:, None] * width + parents, [-1]))
        state.set_shape([None, outputs["state"].shape[1]])
        return length, last, state, totals, tokens, done, scores, finished, ended

    shape = tf.stack([rows, width, longest])
    blank = tf.fill(shape, -1)
    start = (
        tf.constant(0),
        tf.fill(shape[:2], begin),
        repeated(state),
        tf.where(slots == 0, tf.zeros(shape[:2], dtype), lowest),
        blank,
        max_length < 1,
        tf.fill(shape[:2], lowest),
        blank,
        tf.zeros_like(own),
    )
    *_, scores, tokens, ended = tf.while_loop(
        lambda number, last, state, totals, tokens, done, *_: (number < longest) & ~tf.reduce_all(done),
        body,
        start,
        tuple(tf.TensorShape(state.shape) if x is start[2] else tf.TensorShape([None] * x.shape.rank) for x in start),
        parallel_iterations=1,
    )
    return Found(tokens, scores, ended)
