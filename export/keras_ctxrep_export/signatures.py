"""The signatures of a SavedModel as functions of tensors, over one text preparation and one set of weights."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_ctxrep import tasks
from keras_ctxrep.layers import ScalarMix
from keras_ctxrep.models import families, heads
from keras_ctxrep.tasks.abilities import ExampleApi, LabelsWords, Searches
from keras_ctxrep.tasks.answering import NO_WORDS
from keras_ctxrep.text.artifacts import SIGNATURE
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.search import PASSAGE, QUERY
from keras_ctxrep.training.shards import serialized
from keras_ctxrep_export import text_ops

__all__ = ["Signatures"]


class Signatures(tf.Module):
    """The functions that `saved_model.export` saves, with their variables.

    Every function gives a row of answers for each row of its input, which does not depend on the other rows; a batch
    may have no rows. Bytes that are not UTF-8 are read as U+FFFD, which is removed. A text without words, of a pair
    both texts, has zeros and empty strings, and says so in "error", which is "" of other texts.

    Args:
        model, bundle: as in `saved_model.export`.

    Attributes:
        functions: name of a signature -> `tf.function`.
    """

    def __init__(self, model: keras.Model, bundle: Bundle):
        super().__init__()
        self.task, self.bundle = tasks.get(bundle.task), bundle
        self.features = text_ops.features(bundle)
        self.weights = [weight.value for weight in model.weights]  # tracked, hence saved
        parts = {name: self._ids(part) for name, part in self.task.parts(model).items()}
        ids = parts if len(parts) > 1 else parts["ids"]
        names = self.task.inputs(self.bundle)
        text = self._answers(ids, names, self.task.in_graph)
        self.functions: dict[str, Callable] = {SIGNATURE: text, **parts, "embed": self._embed(model)}
        for role in (QUERY, PASSAGE):
            if role in bundle.roles and bundle.encodes:
                self.functions[role] = self._in_role(ids, bundle.prefix(role))
        if isinstance(self.task, Searches):
            with_options = [*names, *self.task.search_options(bundle)]
            self.functions["search"] = self._answers(ids, with_options, self.task.searched_in_graph)
        if isinstance(self.task, LabelsWords):
            names_of_words = ["words" if name == "text" else name for name in names]
            self.functions["words"] = self._answers(ids, names_of_words, self.task.words_in_graph)
        if isinstance(self.task, ExampleApi):
            self.functions[self.task.example_api] = self._examples(text, self.task)

    def _ids(self, model: keras.Model) -> Callable:
        """The model's own dict of tensors in and out."""
        spec = {name: tf.TensorSpec(tensor.shape, tensor.dtype, name) for name, tensor in model.input.items()}

        @tf.function(autograph=False, input_signature=[spec])
        def ids(inputs):
            return heads.flat(model(inputs, training=False))

        return ids

    def _answers(self, ids: Any, names: Sequence[str], answers: Callable) -> Callable:
        """Raw strings, or sentences that are split already, to answers."""

        @tf.function(autograph=False, input_signature=[self._spec(name) for name in names])
        def text(*inputs):
            return _with_errors(*answers(self.bundle, self.features, ids, _check(names, inputs)))

        return text

    def _in_role(self, ids: Any, prefix: str) -> Callable:
        """Raw strings to vectors, of the strings behind a prefix."""
        nothing = self.bundle.features([prefix])  # of a text without any words
        known = next((name for name in ("token_ids", "word_ids") if name in nothing), "mask")
        size = nothing["mask"].shape[1]

        @tf.function(autograph=False, input_signature=[self._spec("text")])
        def text(text):
            inputs = self.features.plain(prefix + _check(["text"], [text])["text"])
            given: Any = tf.ensure_shape(tf.pad(inputs[known], [[0, 0], [0, size]])[:, :size], [None, size])
            longer = tf.reduce_sum(inputs["mask"], 1) != size  # or shorter, where it made one piece with the text
            return _with_errors(ids(inputs), longer | tf.reduce_any(given != nothing[known], 1))

        return text

    def _embed(self, model: keras.Model) -> Callable:
        """Raw strings to vectors of the encoder alone, whatever is above it."""
        encoder = families.encoder_of(model, self.bundle.family, self.bundle.config)
        encoder = heads.embed(encoder, self.bundle.pooling, self.bundle.normalize, self.bundle.dims)
        mixes = [layer for layer in model.layers if isinstance(layer, ScalarMix) and layer.name == "scalar_mix"]
        weights, gamma = mixes[0].learned() if mixes else (None, 1.0)

        @tf.function(autograph=False, input_signature=[self._spec("text")])
        def embed(text):
            inputs = self.features.plain(**_check(["text"], [text]))
            outputs: Any = encoder({name: inputs[name] for name in encoder.input}, training=False)
            layers = tf.stack([tf.cast(layer, tf.float32) for layer in outputs["layers"]], 1)  # (B, N, T, D)
            mixed = tf.reduce_mean(layers, 1) if weights is None else gamma * tf.tensordot(layers, weights, [[1], [0]])
            inner = tf.cast(self.features.inner(inputs), tf.float32)[..., None]  # (B, T, 1)
            count = tf.reduce_sum(inner, 1)  # (B, 1)
            mean = tf.math.divide_no_nan(tf.reduce_sum(mixed * inner, 1), count)
            vectors = _with_errors({"vector": outputs["vector"], "mean": mean}, count[:, 0] > 0)
            return vectors | {"layers": layers, "mask": inputs["mask"]}

        return embed

    def _examples(self, text: Callable, task: ExampleApi) -> Callable:
        """Serialized tf.Examples to the answers that TF Serving's Classify or Regress take."""
        names = self.task.inputs(self.bundle)

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
        def over_examples(inputs):
            (examples,) = _check(["inputs"], [inputs]).values()
            answers = text(*self._parse(examples, names))
            return task.example_answers_in_graph(self.bundle, answers)

        return over_examples

    def _parse(self, examples: tf.Tensor, names: Sequence[str]) -> list[tf.Tensor]:
        """The features of serialized tf.Examples that have the names of inputs.

        A data set parses them, since it can drop what does not parse, and the signature say what is wrong with it.
        """
        specs, features, needed, valid = {name: self._spec(name) for name in names}, {}, [], {}
        for name, spec in specs.items():
            shape, strings = spec.shape[1:], spec.dtype == tf.string
            features[name] = tf.io.FixedLenFeature(shape, tf.string if strings else tf.int64)
            needed.append(f"{name} ({shape.num_elements()} {'string' if strings else 'int64'})")
            valid[name] = [b"" if strings else 0] * shape.num_elements()
        rows = tf.concat([[serialized(valid)], examples], 0)  # a data set without elements cannot be read whole
        parsed = tf.data.Dataset.from_tensor_slices(rows).map(lambda row: tf.io.parse_single_example(row, features))
        columns: Any = parsed.ignore_errors().batch(tf.size(rows, tf.int64)).get_single_element()
        message = f"each row of inputs must be a serialized tf.Example with the features {' and '.join(needed)}"
        tf.debugging.assert_equal(tf.shape(columns[names[0]])[0], tf.size(rows), message)
        return [tf.cast(columns[name][1:], spec.dtype) for name, spec in specs.items()]

    def _spec(self, name: str) -> tf.TensorSpec:
        """Of an input of strings, of marked spans, or of an option."""
        if name == "marks":
            return tf.TensorSpec([None, self.bundle.reads.marks, 2], tf.int32, name)
        if isinstance(self.task, Searches) and name in self.task.search_options(self.bundle):
            return tf.TensorSpec([None], tf.int32, name)
        return tf.TensorSpec([None, None] if name == "words" else [None], tf.string, name)


def _with_errors(outputs: dict[str, tf.Tensor], read: tf.Tensor) -> dict[str, tf.Tensor]:
    """Outputs, 0 and "" in the rows that were not `read`, bool (B,), and "error", string (B,), which says why."""
    blank = {
        name: tf.where(tf.reshape(read, [-1] + [1] * (value.shape.rank - 1)), value, tf.zeros_like(value))
        for name, value in outputs.items()
    }
    return blank | {"error": tf.where(read, "", NO_WORDS)}


def _check(names: Sequence[str], inputs: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """A signature's inputs by name; of the right rank, which servers do not check, and of the same number of rows."""
    tensors = [tf.ensure_shape(tensor, tensor.shape) for tensor in inputs]
    if len(tensors) > 1:
        message = f"{' and '.join(names)} must have the same number of rows"
        for tensor in tensors[1:]:
            tf.debugging.assert_equal(tf.shape(tensor)[0], tf.shape(tensors[0])[0], message)
    return dict(zip(names, tensors, strict=True))
