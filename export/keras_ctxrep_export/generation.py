"""Generation of text as a TensorFlow graph: prompts in, texts out, by the rules of `keras_ctxrep.text.sampling`."""

from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from keras_ctxrep.text.artifacts import SIGNATURE
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep_export import text_ops

__all__ = ["Generation", "sampled"]

# what a request says of each of its prompts, and what it may say to leave a filter out
OPTIONS = {
    "seed": (tf.int64, 0),
    "length": (tf.int32, 100),
    "lines": (tf.int32, 0),
    "temperature": (tf.float64, 1.0),
    "top_k": (tf.int32, 0),
    "top_p": (tf.float64, 1.0),
    "min_p": (tf.float64, 0.0),
}
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


class Generation(tf.Module):
    """The functions that `saved_model.export` saves of a language model in one direction, with their variables.

    * serving_default: {"text": string (B,), prompts, and for each of them "seed" int64, "length", "lines" and "top_k"
      int32, "temperature", "top_p" and "min_p" float64 (B,)} to {"text": string (B,)}, the continuations. 0 `lines`, 0
      `top_k`, 1 `top_p` and 0 `min_p` leave these out. Rows do not depend on each other, so that a server may join
      requests. The noise is that of `text.sampling`: the same seed gives the text of `ctxrep generate`.
    * step: the model's own {"token_ids", "mask", "state"} to {"logits", "state"}.

    Args:
        model: `models.lm.language_model`, with its weights.
        bundle: of the model.

    Attributes:
        functions: name of a signature -> `tf.function`.
    """

    def __init__(self, model: keras.Model, bundle: Bundle):
        super().__init__()
        self.tokens, size = bundle.tokens, int(model.input["state"].shape[-1])
        self.weights = [weight.value for weight in model.weights]  # tracked, hence saved
        self.text = _Subwords(bundle) if bundle.tokenizer else _Tokens(bundle)
        never = np.isin(np.arange(len(self.tokens.vocab)), self.tokens.never)
        specs = {name: tf.TensorSpec(tensor.shape, tensor.dtype, name) for name, tensor in model.input.items()}

        @tf.function(autograph=False, input_signature=[specs])
        def step(inputs):
            return model(inputs, training=False)

        specs = [tf.TensorSpec([None], kind, name) for name, (kind, _) in OPTIONS.items()]

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string, "text"), *specs])
        def text(text, *values):
            rows = tf.size(text)
            options = dict(zip(OPTIONS, (tf.ensure_shape(value, [None]) for value in values), strict=True))
            for name, value in options.items():
                tf.debugging.assert_equal(tf.size(value), rows, f"text and {name} must have the same number of rows")
            tf.debugging.assert_non_negative(options["temperature"], "temperature must be at least 0")
            extra = tf.maximum(1 - rows, 0)  # a row, where there is none, since TensorFlow's convolution needs one
            text = tf.concat([text, tf.fill([extra], "")], 0)
            options = {name: tf.concat([value, tf.ones([extra], value.dtype)], 0) for name, value in options.items()}
            prompts = self.text.ids(text)
            sizes = tf.cast(prompts.row_lengths(), tf.int32)
            padded = prompts.to_tensor()
            mask = tf.sequence_mask(sizes, tf.shape(padded)[1], tf.int32)
            first = step({"token_ids": padded, "mask": mask, "state": tf.zeros([rows + extra, size])})
            last = sizes - 1
            logits = tf.gather(first["logits"], last, batch_dims=1)
            ids = _loop(step, logits, first["state"], options, never, self.tokens.end)
            continued = self.text.strings(text, tf.gather(padded, last, batch_dims=1), ids)
            return {"text": continued[:rows]}

        self.functions: dict[str, Callable] = {SIGNATURE: text, "step": step}
        self._size = size

    def requests(self, size: int) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """An input of each signature, of some rows, to try it and to warm a server up."""
        prompts = np.array((["", "The ferry left the harbour", "Why was\nit "] * size)[:size], object)
        values = {name: np.full(size, 8 if name == "length" else value) for name, (_, value) in OPTIONS.items()}
        kinds = {name: kind.as_numpy_dtype for name, (kind, _) in OPTIONS.items()}
        yield SIGNATURE, {"text": prompts} | {name: value.astype(kinds[name]) for name, value in values.items()}
        ones = np.ones((size, 1), np.int32)
        yield "step", {"token_ids": ones, "mask": ones, "state": np.zeros((size, self._size), np.float32)}


class _Tokens(text_ops.TokenOps):
    """The tokens of prompts, and the text of tokens."""

    def __init__(self, bundle: Bundle):
        super().__init__(bundle)
        tokens = bundle.tokens
        self.begins, self.inside = zip(*map(tokens.forms, range(len(tokens.vocab))), strict=True)

    def strings(self, text: tf.Tensor, before: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """What ids, int32 (B, N), -1 after the end, add to texts whose last id is `before`, int32 (B,); string (B,)."""
        before, drawn = tf.concat([before[:, None], ids[:, :-1]], 1), tf.maximum(ids, 0)
        strings = tf.where(before == self.end, tf.gather(self.begins, drawn), tf.gather(self.inside, drawn))
        continued = tf.strings.reduce_join(tf.where(ids < 0, "", strings), 1)
        if self.units == "characters":
            return continued
        spaced = tf.strings.regex_full_match(text, r"(?s).*[\s\p{Z}]")  # the space is in the prompt already
        return tf.where(spaced, tf.strings.regex_replace(continued, "^ ", ""), continued)


class _Subwords(tf.Module):
    """The same of a byte-level BPE."""

    def __init__(self, bundle: Bundle):
        super().__init__()
        tokens = bundle.tokens
        self.ops, self.end = text_ops.SubwordTokenOps(bundle), tokens.end
        self.ids = self.ops.ids
        self.bytes = [b"" if id == tokens.end else tokens.wordpiece.bytes_of(id) for id in range(len(tokens.vocab))]

    def strings(self, text: tf.Tensor, before: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """As of `_Tokens`; bytes at the end that begin a letter are left out, others that are none are U+FFFD."""
        joined = tf.strings.reduce_join(tf.where(ids < 0, b"", tf.gather(self.bytes, tf.maximum(ids, 0))), 1)
        size = tf.strings.length(joined)
        tail = tf.strings.substr(tf.strings.join([b"\0\0\0", joined]), size, tf.fill(tf.shape(size), 3))
        a, b, c = tf.unstack(tf.cast(tf.io.decode_raw(tail, tf.uint8), tf.int32), 3, 1)

        def begins(first: tf.Tensor, second: tf.Tensor, least: int) -> tf.Tensor:
            """Whether two bytes begin a letter of more bytes, table 3-7 of the Unicode standard, or a surrogate."""
            low = tf.where(first == 0xE0, 0xA0, tf.where(first == 0xF0, 0x90, 0x80))
            high = tf.where(first == 0xF4, 0x8F, 0xBF)
            return (least <= first) & (first <= 0xF4) & (low <= second) & (second <= high)

        three = begins(a, b, 0xF0) & (c & 0xC0 == 0x80)
        cut = tf.where((c >= 0xC2) & (c <= 0xF4), 1, tf.where(begins(b, c, 0xE0), 2, tf.where(three, 3, 0)))
        return tf.strings.unicode_transcode(
            tf.strings.substr(joined, tf.zeros_like(size), size - cut), "UTF-8", "UTF-8", errors="replace"
        )


def _loop(step: Callable, logits, state, options: dict, never: np.ndarray, end: int) -> tf.Tensor:
    """The ids that continue each row, int32 (B, N), -1 after its end."""
    banned = tf.constant(np.where(never, -np.inf, 0.0), tf.float64)
    longest = tf.reduce_max(options["length"])
    filters = {name: options[name] for name in ("seed", "temperature", "top_k", "top_p", "min_p")}

    def body(number, logits, state, lines, ids):
        real = (number < options["length"]) & ((options["lines"] <= 0) | (lines < options["lines"]))
        token = sampled(tf.cast(logits, tf.float64) + banned, number, **filters)
        ids = ids.write(number, tf.where(real, token, -1))
        lines += tf.cast(token == end, tf.int32)
        inputs = {"token_ids": token[:, None], "mask": tf.cast(real, tf.int32)[:, None], "state": state}
        outputs = step(inputs)
        return number + 1, outputs["logits"][:, 0], outputs["state"], lines, ids

    def goes_on(number, logits, state, lines, ids):
        going = (options["lines"] <= 0) | (lines < options["lines"])
        return (number < longest) & tf.reduce_any(going & (number < options["length"]))

    rows = tf.size(options["length"])
    ids = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[None])
    start = (tf.constant(0), logits, state, tf.zeros([rows], tf.int32), ids)
    number, *_, ids = tf.while_loop(goes_on, body, start, parallel_iterations=1)
    empty = tf.zeros([0, rows], tf.int32)
    return tf.transpose(tf.cond(number > 0, ids.stack, lambda: empty))


def sampled(logits, step, seed, temperature, top_k, top_p, min_p) -> tf.Tensor:
    """`text.sampling.sample` for a batch: int32 (B,).

    Args:
        logits: float64 (B, V).
        step: int32 ().
        seed: int64 (B,).
        temperature, top_p, min_p: float64 (B,); 1 `top_p` and 0 `min_p` leave nothing out.
        top_k: int32 (B,); 0 leaves nothing out.

    >>> one = tf.constant([1.0], tf.float64)
    >>> logits = tf.constant([[0.5, 0.3, 0.2]], tf.float64)
    >>> arguments = {"temperature": one, "top_k": tf.constant([0]), "top_p": one, "min_p": 0 * one}
    >>> [int(sampled(tf.math.log(logits), step, tf.constant([1], tf.int64), **arguments)[0]) for step in range(8)]
    [0, 0, 0, 0, 0, 1, 1, 0]
    """
    size, lowest = tf.shape(logits)[1], tf.constant(-np.inf, tf.float64)
    temperature, top_p, min_p = (value[:, None] for value in (temperature, top_p, min_p))
    greedy = tf.argmax(logits, 1, tf.int32)
    scores = logits / tf.where(temperature == 0, tf.ones_like(temperature), temperature)
    kept = tf.where((top_k <= 0) | (top_k > size), size, top_k)
    least = tf.gather(tf.sort(scores, 1, "DESCENDING"), kept - 1, batch_dims=1)[:, None]
    scores = tf.where(scores >= least, scores, lowest)
    order = tf.argsort(scores, 1, "DESCENDING", stable=True)
    ordered = tf.gather(scores, order, batch_dims=1)
    likely = tf.exp(ordered - ordered[:, :1])
    likely /= tf.reduce_sum(likely, 1, keepdims=True)
    before = tf.gather(tf.cumsum(likely, 1) - likely, tf.argsort(order, 1), batch_dims=1)
    scores = tf.where((top_p >= 1) | (before < top_p), scores, lowest)
    likeliest = tf.reduce_max(scores, 1, keepdims=True)
    scores = tf.where((min_p <= 0) | (scores >= likeliest + tf.math.log(min_p)), scores, lowest)
    drawn = tf.argmax(scores + _gumbel(seed, step, size), 1, tf.int32)
    return tf.where(temperature[:, 0] == 0, greedy, drawn)


def _gumbel(seed, step, size) -> tf.Tensor:
    """`text.sampling.gumbel` of all tokens, float64 (B, V)."""
    low = tf.cast(seed, tf.uint32)[:, None]
    high = tf.cast(tf.bitwise.right_shift(seed, tf.constant(32, tf.int64)), tf.uint32)[:, None]
    keys = [low, high, tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(low, high), tf.constant(0x1BD11BDA, tf.uint32))]
    a, b = tf.cast(tf.range(size), tf.uint32)[None] + keys[0], tf.cast(step, tf.uint32) + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            a = a + b
            left, right = (tf.constant(number, tf.uint32) for number in (distance, 32 - distance))
            turned = tf.bitwise.bitwise_or(tf.bitwise.left_shift(b, left), tf.bitwise.right_shift(b, right))
            b = tf.bitwise.bitwise_xor(turned, a)
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + tf.constant(group + 1, tf.uint32)
    return -tf.math.log(-tf.math.log((tf.cast(a, tf.float64) + 0.5) / 2.0**32))
