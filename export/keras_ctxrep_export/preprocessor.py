"""Text preparation as a Keras layer, for `tf.data` and for models that take strings."""

from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from keras_ctxrep import tasks
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.pairs import PAIR
from keras_ctxrep_export import text_ops

__all__ = ["Preprocessor"]


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Preprocessor(keras.layers.Layer):
    """Texts to a model's input, in stock operators of TensorFlow and tensorflow-text.

    The same ids as `bundle.features(texts)`, token for token, but as a graph: `dataset.map(preprocessor)` prepares any
    `tf.data.Dataset` of strings, those of TFDS included, and a model that begins with the layer takes strings.

    Args:
        bundle: of the model, as `train.load(folder)` returns it; its family, vocabulary and lengths are read.
        length: tokens of every row, for XLA, or for a data set that is batched after the layer; longer texts are cut,
            and rows of an ELMo have `length` words. None: as many as the longest text of the batch has.

    Call:
        text: string (B,) or (); or a dict {"text"}, with "pair" for a second text, and "marks", int32 (B, M, 2), for
            spans of characters.
        y, sample_weight: anything; returned as they are, so that a data set of (text, label) can be mapped.

    Returns: the model's input dict, int32 (B, T, ...), or (T, ...) of a single text; with `y` a tuple (inputs, y), with
        `sample_weight` (inputs, y, sample_weight).

    Raises:
        ValueError: a question answering model, which reads a text in windows, or an input with other keys.

    >>> elmo = Bundle("elmo", "embed", {"max_characters": 6}, max_length=2)
    >>> data = tf.data.Dataset.from_tensor_slices((["Hi!", "a"], [1, 0])).batch(2).map(Preprocessor(elmo))
    >>> inputs, labels = next(data.as_numpy_iterator())
    >>> inputs["mask"].tolist(), labels.tolist()
    ([[1, 1], [1, 0]], [1, 0])
    """

    def __init__(self, bundle: Bundle, length: int | None = None, **kwargs):
        super().__init__(**kwargs)
        if bundle.task in tasks.TASKS and tasks.get(bundle.task).reads.windows:
            raise ValueError(f"a {bundle.task} model reads a text in windows: prepare it with `recipes.finetune`")
        if length is not None and not 0 < length <= bundle.max_length:
            raise ValueError(f"length={length}: from 1 to the {bundle.max_length} tokens that the model reads")
        self.bundle, self.length = bundle, length
        cut = bundle if length is None else replace(bundle, max_length=length)
        self.features = text_ops.features(cut)
        self._padding = cut.features.padding

    def call(self, text, y=None, sample_weight=None) -> Any:
        tensors = text if isinstance(text, dict) else {"text": text}
        if "text" not in tensors or set(tensors) - {"text", "pair", "marks"}:
            names = ", ".join(sorted(tensors))
            raise ValueError(f"the input has {names}: give text, and pair or marks if there are any")
        single = tensors["text"].shape.rank == 0
        inputs = self.features(**{name: tensor[None] if single else tensor for name, tensor in tensors.items()})
        inputs = {name: self._size(name, tensor) for name, tensor in inputs.items()}
        inputs = {name: tensor[0] if single else tensor for name, tensor in inputs.items()}
        return keras.utils.pack_x_y_sample_weight(inputs, y, sample_weight)

    def _size(self, name, tensor):
        """With `length` tokens in every row."""
        if self.length is None or name == "marks":
            return tensor
        missing = [[0, 0], [0, self.length - tf.shape(tensor)[1]], *[[0, 0]] * (tensor.shape.rank - 2)]
        padded = tf.pad(tensor, missing, constant_values=self._padding.get(name.removeprefix(PAIR), 0))
        return tf.ensure_shape(padded, [None, self.length, *tensor.shape[2:]])

    def get_config(self) -> dict[str, Any]:
        files = {name: data.decode() for name, data in self.bundle.files_as_bytes().items()}
        return super().get_config() | {"bundle": files, "length": self.length}

    @classmethod
    def from_config(cls, config):
        files = {name: text.encode() for name, text in config["bundle"].items()}
        return cls(**config | {"bundle": bundles.from_files(files, "the saved Preprocessor")})
