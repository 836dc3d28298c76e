"""The base of layers that are told by an argument which tokens are real."""

from typing import Any

import keras


class Layer(keras.layers.Layer):
    """A layer whose output carries no Keras mask: `call` takes the mask of the tokens as an argument.

    Attributes:
        fields: the constructor's own arguments, each an attribute: what `get_config` returns.

    >>> class Scale(Layer):
    ...     fields = ("factor",)
    ...
    ...     def __init__(self, factor=2.0, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.factor = factor
    >>> Scale(3.0).get_config()["factor"]
    3.0
    """

    fields: tuple[str, ...] = ()

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True  # without it Keras warns of a mask that ends here

    def compute_mask(self, inputs, previous_mask) -> Any:
        return None

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {name: getattr(self, name) for name in self.fields}
