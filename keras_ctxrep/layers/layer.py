"""The base of layers that are told by an argument which tokens are real, and of what has a config."""

from typing import Any

import keras


class Configured:
    """Base of layers, losses and optimizers; stands before Keras' own.

    Attributes:
        fields: constructor's arguments, each an attribute, that `get_config` returns beside those of Keras' class.

    >>> class Scale(Configured, keras.layers.Layer):
    ...     fields = ("factor",)
    ...     factor = 3.0
    >>> Scale().get_config()["factor"]
    3.0
    """

    fields: tuple[str, ...] = ()

    def get_config(self) -> dict[str, Any]:
        base: Any = super()
        return base.get_config() | {name: getattr(self, name) for name in self.fields}


class Layer(Configured, keras.layers.Layer):
    """A layer whose output carries no Keras mask: `call` takes the mask of the tokens as an argument.

    >>> Layer().supports_masking
    True
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True  # without it Keras warns of a mask that ends here

    def compute_mask(self, inputs, previous_mask) -> Any:
        return None
