"""Beam search over a decoder's steps as a TensorFlow graph, by the rules of `keras_ctxrep.text.beam`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from keras_ctxrep.backend import tf

__all__ = ["Found", "Options", "search"]


@dataclass(frozen=True)
class Options:
    """What is searched for, of each text.

    Attributes:
        begin, end, never: tokens, as in `text.beam.search`.
        max_length: int32 (B,), tokens of a sequence at most, the end included.
        beams: int32 (B,), hypotheses that are kept.
        alpha: (B,), of the length penalty.
        dtype: of the sums of log-probabilities; float64 is that of the definition.
        attends: whether the attention is wanted, which takes B K T S numbers.

    >>> Options(begin=0, end=2, max_length=[3], beams=[2], alpha=[0.0]).dtype
    'float64'
    """

    begin: int
    end: int
    max_length: Any
    beams: Any
    alpha: Any
    never: Sequence[int] = ()
    dtype: str = "float64"
    attends: bool = False


class Found(NamedTuple):
    """The best sequences of each text, the best first.

    Attributes:
        tokens: int32 (B, K, T), -1 after the last one, without the mark of the end.
        scores: (B, K), -inf where there are fewer than K sequences.
        finished: bool (B, K), whether each ended by itself.
        attention: (B, K, T, S), the weights of the text's tokens when each token was generated; None if not asked for.

    >>> Found(tokens=[[[4, -1]]], scores=[[-0.5]], finished=[[True]]).attention is None
    True
    """

    tokens: Any
    scores: Any
    finished: Any
    attention: Any = None


def search(
    step: Callable[[dict], dict],
    memory: Any,
    mask: Any,
    state: Any,
    options: Options | None = None,
    **fields: Any,
) -> Found:
    """`keras_ctxrep.text.beam.search` of a batch; each text may have its own options.

    K is the largest of `beams`, T of `max_length`. The hypotheses of all texts are rows of one call of `step`.

    Args:
        step: runs the model of this name of `models.decoder.Decoder`.
        memory, mask, state: of each text, what `start` gives, and the mask of its inputs.
        options: what is searched for; or its fields one by one, as keywords.

    >>> import tensorflow as tf
    >>> table = tf.math.log([[0.1, 0.6, 0.3], [0.1, 0.5, 0.4], [0.8, 0.1, 0.1]])  # token -> the next one
    >>> step = lambda inputs: {"logits": tf.gather(table, inputs["token_ids"][:, 0]), "state": inputs["state"]}
    >>> memory, mask, state = tf.zeros([1, 1, 1]), tf.ones([1, 1], tf.int32), tf.zeros([1, 1])
    >>> options = {"max_length": tf.constant([3]), "beams": tf.constant([2]), "alpha": tf.constant([0.0], tf.float64)}
    >>> found = search(step, memory, mask, state, begin=0, end=2, **options)
    >>> found.tokens.numpy().tolist(), tf.exp(found.scores).numpy().round(2).tolist()
    ([[[-1, -1, -1], [1, -1, -1]]], [[0.3, 0.24]])
    """
    options = options or Options(**fields)
    max_length, beams, dtype, attends = options.max_length, options.beams, options.dtype, options.attends
    lowest = tf.constant(-float("inf"), dtype)
    rows, width, longest = (_static(x) for x in (tf.shape(state)[0], tf.reduce_max(beams), tf.reduce_max(max_length)))
    alpha = tf.cast(options.alpha, dtype)
    slots = tf.range(width)[None]  # (1, K)
    own = slots < beams[:, None]  # (B, K), the slots that a text has

    def repeated(x):
        return tf.repeat(x, width, axis=0)

    memory, mask = repeated(memory), repeated(mask)

    def penalty(length):
        return ((5 + tf.cast(length, dtype)) / 6) ** alpha

    def taken(x, indices):
        return tf.gather(x, indices, batch_dims=1)

    def merged(scores, paths, new_scores, new_paths):
        """The best K of the finished sequences and new ones; of equal ones the earlier."""
        best, order = tf.math.top_k(tf.concat([scores, new_scores], 1), width)
        both = [tf.concat([path, new], 1) for path, new in zip(paths, new_paths, strict=True)]
        return tf.where(own, best, lowest), [taken(path, order) for path in both]

    # the paths of hypotheses: tokens and, if it is wanted, attention; of finished ones also whether they have ended
    def body(number, last, state, totals, live, done, scores, finished):
        length = number + 1
        inputs = {"token_ids": tf.reshape(last, [-1, 1]), "memory": memory, "memory_mask": mask, "state": state}
        outputs = step(inputs)
        logits = tf.cast(outputs["logits"], dtype)
        size = _static(tf.shape(logits)[1])
        banned = tf.reduce_any(tf.range(size)[:, None] == tf.constant([*options.never, -1])[None], 1)
        logs = tf.nn.log_softmax(tf.where(banned, lowest, logits))
        sums = tf.reshape(totals[:, :, None] + tf.reshape(logs, [rows, width, size]), [rows, -1])
        values, order = tf.math.top_k(sums, _static(tf.minimum(2 * width, width * size)))
        parents, chosen = order // size, order % size
        rank = tf.range(tf.shape(order)[1])[None]
        count = tf.where(beams > 1, 2 * beams, 1)[:, None]
        valid = (rank < count) & (values > lowest) & ~done[:, None]
        ends = chosen == options.end
        history = [taken(path, parents) for path in live]
        new = tf.where(valid & ends & (rank < beams[:, None]), values / penalty(length)[:, None], lowest)
        scores, finished = merged(scores, finished, new, [*history, ends])
        totals, best = tf.math.top_k(tf.where(valid & ~ends, values, lowest), width)
        totals = tf.where(own, totals, lowest)
        parents, last = taken(parents, best), taken(chosen, best)
        live, now = [taken(path, best) for path in history], tf.range(longest) == number
        live[0] = tf.where(now, last[:, :, None], live[0])
        if attends:
            weights = taken(tf.reshape(tf.cast(outputs["attention"], dtype), [rows, width, -1]), parents)
            live[1] = tf.where(now[:, None], weights[:, :, None], live[1])
        at_end = ~done & (length >= max_length)
        new = tf.where(at_end[:, None], totals / penalty(length)[:, None], lowest)
        scores, finished = merged(scores, finished, new, [*live, tf.zeros_like(totals, tf.bool)])
        full = tf.reduce_sum(tf.cast(scores > lowest, tf.int32), 1) == beams
        hopeless = tf.reduce_max(totals, 1) / penalty(max_length) <= taken(scores, beams[:, None] - 1)[:, 0]
        done |= at_end | (full & hopeless) | tf.reduce_all(totals == lowest, 1)
        state = tf.gather(outputs["state"], tf.reshape(tf.range(rows)[:, None] * width + parents, [-1]))
        after = length, last, state, totals, live, done, scores, finished
        return tf.nest.map_structure(lambda x, before: tf.ensure_shape(x, before.shape), after, start)

    blank = [tf.fill([rows, width, longest], -1)]
    if attends:
        blank.append(tf.zeros([rows, width, longest, _static(tf.shape(mask)[1])], dtype))
    start = (
        tf.constant(0),
        tf.fill([rows, width], options.begin),
        repeated(state),
        tf.where(slots == 0, tf.zeros([rows, width], dtype), lowest),
        blank,
        max_length < 1,
        tf.fill([rows, width], lowest),
        [*blank, tf.zeros([rows, width], tf.bool)],
    )
    *_, scores, (tokens, *attention, ended) = tf.while_loop(
        lambda number, last, state, totals, live, done, *_: (number < longest) & ~tf.reduce_all(done),
        body,
        start,
        parallel_iterations=1,
    )
    return Found(tokens, scores, ended, *attention)


def _static(x: Any) -> Any:
    """A scalar as an int where its value is known while the graph is made, as a converter for fixed shapes needs."""
    value = tf.get_static_value(x)
    return x if value is None else int(value)
