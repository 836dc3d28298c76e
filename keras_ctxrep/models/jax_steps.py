"""What differs in the steps of a model under JAX."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_ctxrep.models.frozen import FROZEN


class JAXSteps(keras.Model):
    """A `keras.Model` of JAX, whose `fit` takes the weights out of the variables until a callback asks for them.

    * A learning rate that a callback sets counts from the next step on, without all variables being written and read.
    * What a step gives is the model's state at once, since the memory of what it was given is used again: an interrupt
      finds the last whole step, and `steps_taken` says how many there were.
    * `sizes` says for how many sizes of batches a step was compiled.
    * A batch of the outputs of a frozen encoder is computed by `trained_part`, as `models.model.Model` does.

    >>> JAXSteps().steps_taken
    0
    """

    counts_tokens = False
    sizes = 0  # of batches, each of which has been compiled
    trained_part: Callable[..., Any] | None = None
    steps_taken = 0

    def call(self, inputs, *args, **kwargs) -> Any:
        if self.trained_part is not None and isinstance(inputs, dict) and f"{FROZEN}0" in inputs:
            return self.trained_part(inputs, *args, **kwargs)
        return super().call(inputs, *args, **kwargs)

    def make_train_function(self, force: bool = False) -> None:
        made = self.train_function
        super().make_train_function(force)
        if self.train_function is not made:
            self.train_function = self._counting(self.train_function)

    def _counting(self, step: Callable) -> Callable:
        def train(state, iterator):
            trained, others, optimizer, metrics = state
            optimizer = [*optimizer]
            for index, variable in enumerate(self.optimizer.variables):
                if variable.path.endswith("/learning_rate") and variable._value is not None:  # set since it was taken
                    optimizer[index] = variable.value
            logs, state = step((trained, others, optimizer, metrics), iterator)
            kinds = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
            self._jax_state = dict(zip(kinds, state, strict=True))
            self.steps_taken += 1
            return logs, state

        return train

    def train_step(self, *args) -> Any:
        self.sizes += 1  # this is traced
        step: Any = super().train_step
        logs, state = step(*args)  # the state and the data
        inputs, *_ = keras.utils.unpack_x_y_sample_weight(args[-1])
        return (logs | counts(inputs) if self.counts_tokens else logs), state


def counts(inputs: dict) -> dict[str, Any]:
    """The tokens and the positions, padding included, of a batch: of its "mask".

    >>> {name: float(value) for name, value in counts({"mask": ops.array([[1, 1, 0]])}).items()}
    {'tokens': 2.0, 'positions': 3.0}
    """
    mask = ops.cast(inputs["mask"], "float32")
    return {"tokens": ops.sum(mask), "positions": ops.cast(ops.size(mask), "float32")}
