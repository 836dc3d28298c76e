"""The base of layers that are told by an argument which tokens are real, and of what has a config."""

import inspect
from collections.abc import Iterator
from typing import Any

import keras


class Configured:
    """Base of layers, losses and optimizers; stands before Keras' own.

    Attributes:
        fields: the attributes that `get_config` returns beside those of Keras' class; None: all named arguments of the
            constructor, and of those of its bases.

    >>> class Scale(Configured, keras.layers.Layer):
    ...     def __init__(self, factor=3.0, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.factor = factor
    >>> Scale().get_config()["factor"]
    3.0
    """

    fields: tuple[str, ...] | None = None

    def get_config(self) -> dict[str, Any]:
        base: Any = super()
        names = _arguments(type(self)) if self.fields is None else self.fields
        return base.get_config() | {name: getattr(self, name) for name in names}


def _arguments(kind: type) -> Iterator[str]:
    """The named arguments of the constructors of a class and of its bases below `Configured`."""
    for each in kind.__mro__:
        if issubclass(each, Configured) and "__init__" in vars(each):
            _, *arguments = inspect.signature(each.__init__).parameters.values()
            yield from (
                entry.name for entry in arguments if entry.kind not in (entry.VAR_POSITIONAL, entry.VAR_KEYWORD)
            )


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
