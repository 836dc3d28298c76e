"""The base of layers that are told by an argument which tokens are real, and of what has a config."""

import inspect
from typing import Any

import keras


class Configured:
    """Base of layers, losses and optimizers; stands before Keras' own.

    Attributes:
        fields: the attributes that `get_config` returns beside those of Keras' class; of a class that does not set it
            all named arguments of its constructor, and those of its base.

    >>> class Scale(Configured, keras.layers.Layer):
    ...     def __init__(self, factor=3.0, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.factor = factor
    >>> Scale().get_config()["factor"]
    3.0
    """

    fields: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "fields" not in vars(cls) and "__init__" in vars(cls):
            _, *arguments = inspect.signature(cls.__init__).parameters.values()
            own = [each.name for each in arguments if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
            cls.fields = tuple(dict.fromkeys((*cls.fields, *own)))

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
