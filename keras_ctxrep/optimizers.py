"""Optimizers that clip correctly on several replicas, and whose step cost does not grow with the vocabulary."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from keras_ctxrep.backend import TENSORFLOW, tf
from keras_ctxrep.layers.layer import Configured

__all__ = ["LAMB", "SGD", "Adagrad", "AdamW", "LossScale", "OptimizerSpec", "RowwiseAdagrad"]

_HOOKS = ("_all_reduce_sum_gradients" if TENSORFLOW else "_backend_apply_gradients", "_apply_weight_decay")


def _message(fault: str) -> str:
    return (
        f"Keras {keras.__version__} {fault}, without which gradients would not be clipped or weights decay twice: "
        "install the version of Keras that keras_ctxrep asks for"
    )


Rate = float | keras.optimizers.schedules.LearningRateSchedule


_step_values: ContextVar[dict | None] = ContextVar("step_values", default=None)


def _once_a_step(name: str, make: Callable[[], Any]) -> Any:
    """A value that all updates of a step share, made by the first: fewer nodes of a graph to trace and optimize."""
    values = _step_values.get()
    if values is None:
        return make()
    key = name, None if not TENSORFLOW or tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if key not in values:
        values[key] = make()
    return values[key]


class _ByRows(Configured, keras.optimizers.Optimizer):
    """Gradient clipping over all replicas, and updates by row for sparse gradients; base of all optimizers.

    The gradient is summed over the replicas and over repeated rows of embeddings, and then its norm is clipped: Keras
    clips each replica's part before the sum, which lets through up to as many times the limit as there are replicas.
    Rows of a table that a batch does not use are not changed or decayed, nor are their averages, so that a step's cost
    does not grow with the vocabulary, unless float16's loss scaling makes the gradient dense.

    Keras has no public method between the sum and the update; `_HOOKS` are private, so their calls are checked.
    """

    clip: float | None
    gradient_scale = 1.0

    def __init__(self, *args, **kwargs):
        missing = [name for name in _HOOKS if not hasattr(keras.optimizers.Optimizer, name)]
        if missing:
            raise RuntimeError(_message(f"has no Optimizer.{missing[0]}"))
        super().__init__(*args, **kwargs)
        self._hook_calls = dict.fromkeys(_HOOKS, 0)

    def apply(self, grads, trainable_variables=None):
        before = dict(self._hook_calls)
        several = TENSORFLOW and tf.distribute.get_strategy().num_replicas_in_sync > 1  # on devices of their own
        token = _step_values.set(None if several else {})
        try:
            super().apply(grads, trainable_variables)
        finally:
            _step_values.reset(token)
        # with accumulated gradients only some of the steps update
        if len(grads) and not self.gradient_accumulation_steps:
            for name, count in before.items():
                if self._hook_calls[name] == count:
                    raise RuntimeError(_message(f"does not call Optimizer.{name}"))

    def _apply_weight_decay(self, trainable_variables):
        self._hook_calls["_apply_weight_decay"] += 1
        super()._apply_weight_decay(trainable_variables)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        self._hook_calls["_all_reduce_sum_gradients"] += 1
        reduced = super()._all_reduce_sum_gradients(grads_and_vars)
        variables = [variable for _, variable in reduced]
        gradients = self._unfrozen_gradients([_unique_rows(gradient) for gradient, _ in reduced], variables)
        if self.clip is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.clip / self.gradient_scale)
        return [*zip(gradients, variables, strict=True)]

    def _backend_apply_gradients(self, grads, trainable_variables):
        if not TENSORFLOW:  # which has done it after the sum over the replicas
            self._hook_calls["_backend_apply_gradients"] += 1
            grads = self._unfrozen_gradients(grads, trainable_variables)
            if self.clip is not None:
                norm, most = ops.sqrt(sum(ops.sum(ops.square(each)) for each in grads)), self.clip / self.gradient_scale
                scale = ops.where(ops.isfinite(norm), most / ops.maximum(norm, most), float("nan"))
                grads = [each * ops.cast(scale, each.dtype) for each in grads]
        super()._backend_apply_gradients(grads, trainable_variables)

    def _unfrozen_gradients(self, gradients, variables):
        """The gradients, zero of what is not trained yet."""
        return gradients

    def update_step(self, gradient, variable, learning_rate):
        if not _has_rows(gradient, variable):
            return super().update_step(gradient, variable, learning_rate)
        rows, values = (gradient.indices, gradient.values) if TENSORFLOW else (_used_rows(gradient), gradient)
        step = self._row_step(ops.cast(values, variable.dtype), variable, rows)
        rate = ops.cast(learning_rate, variable.dtype)
        self._set_rows(variable, rows, _rows_of(variable, rows) - rate * step)

    def _set_rows(self, table, rows, new):
        """Sets distinct rows of a table, where TensorFlow adds to rows a third as fast; returns their new values."""
        if not TENSORFLOW:
            table.assign(ops.where(_beside(rows, new), new, ops.convert_to_tensor(table)))
            return new
        variable = table.value if isinstance(table, keras.Variable) else table
        variable.scatter_update(tf.IndexedSlices(new, rows, table.shape))
        return new

    def get_config(self):
        return super().get_config() | ({} if self.clip is None else {"clip": self.clip})


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class AdamW(_ByRows, keras.optimizers.AdamW):
    """AdamW, clipped by the norm of the whole gradient, and lazy where a gradient has only some rows.

    Loshchilov & Hutter 2017, https://arxiv.org/abs/1711.05101. No decay on biases and norms, as published for BERT, nor
    on the softmax over a vocabulary of words, of which a batch uses few rows.

    Args:
        learning_rate: the peak.
        weight_decay: per step, times the learning rate.
        clip: largest global norm of the gradient.
        factors: of the learning rate, by the names of layers; 1 for the others. With one for each layer of an encoder
            it is the discriminative fine-tuning of Howard & Ruder 2018, section 3.2, https://arxiv.org/abs/1801.06146.
        starts: steps that the weights of a layer stay as they are, by the names of layers; 0 for the others. Until then
            its gradient does not count for the norm either: the gradual unfreezing of section 3.3 of the same paper.

    >>> AdamW(learning_rate=1e-3, clip=1.0).clip
    1.0
    """

    fields = ("factors", "starts")

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        weight_decay: float = 0.01,
        clip: float | None = 1.0,
        factors: Mapping[str, float] | None = None,
        starts: Mapping[str, int] | None = None,
        **kwargs,
    ):
        super().__init__(learning_rate, weight_decay=weight_decay, **kwargs)
        self.clip, self.factors, self.starts = clip, dict(factors or {}), dict(starts or {})
        self.exclude_from_weight_decay(var_names=["bias", "beta", "gamma", "b_cnn", "_b_", "b_proj", "softmax"])

    def build(self, variables) -> None:
        super().build(variables)
        self._variable_factors = [_of_layer(self.factors, variable, 1.0) for variable in variables]
        self._variable_starts = [_of_layer(self.starts, variable, 0) for variable in variables]

    def _apply_weight_decay(self, trainable_variables):
        self._hook_calls["_apply_weight_decay"] += 1  # done by `update_step`, with half the memory traffic

    def _unfrozen_gradients(self, gradients, variables):
        return [self._unfrozen(*each) for each in zip(gradients, variables, strict=True)]

    def update_step(self, gradient, variable, learning_rate) -> None:
        factor = self._variable_factors[self._get_variable_index(variable)]
        learning_rate = self._unfrozen(learning_rate if factor == 1 else learning_rate * factor, variable)
        if _has_rows(gradient, variable):
            return super().update_step(gradient, variable, learning_rate)
        self._dense_update(gradient, variable, ops.cast(learning_rate, variable.dtype))

    def _dense_update(self, gradient, variable, rate):
        if self._decays(variable):
            self.assign_sub(variable, variable * (rate * self.weight_decay))
        if self.amsgrad:
            return super().update_step(gradient, variable, rate)
        index, dtype = self._get_variable_index(variable), variable.dtype

        def constants():
            return tuple(ops.convert_to_tensor(value, dtype) for value in (self.beta_1, self.beta_2, self.epsilon))

        def powers():
            time = self._time(variable)
            return tuple(ops.power(ops.cast(beta, dtype), time) for beta in (self.beta_1, self.beta_2))

        beta_1, beta_2, epsilon = _once_a_step(f"constants {dtype}", constants)
        power_1, power_2 = _once_a_step(f"powers {dtype} {self._variable_starts[index]}", powers)
        if not TENSORFLOW:
            gradient, m, v = ops.cast(gradient, dtype), self._momentums[index], self._velocities[index]
            self.assign_add(m, (1 - beta_1) * (gradient - m))
            self.assign_add(v, (1 - beta_2) * (ops.square(gradient) - v))
            rate = rate * ops.sqrt(1 - power_2) / (1 - power_1)
            return self.assign_sub(variable, rate * m / (ops.sqrt(v) + epsilon))
        tf.raw_ops.ResourceApplyAdam(  # the same update as in Keras, as one fused kernel
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=power_1,
            beta2_power=power_2,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=ops.cast(gradient, dtype),
        )

    def _unfrozen(self, value, variable):
        """A gradient or a learning rate; zero until the variable's start."""
        start = self._variable_starts[self._get_variable_index(variable)]
        if not start:
            return value
        return _map(lambda values: _where(self.iterations.value >= start, values), value)

    def _time(self, variable):
        """Steps since the variable's start, the present one included."""
        start = self._variable_starts[self._get_variable_index(variable)]
        return ops.cast(ops.maximum(self.iterations + 1 - start, 1) if start else self.iterations + 1, variable.dtype)

    def _row_averages(self, gradient, variable, rows):
        """The averages of some rows' gradients and of their squares, which are set."""
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        mean = self._set_rows(m, rows, self.beta_1 * _rows_of(m, rows) + (1 - self.beta_1) * gradient)
        square = ops.square(gradient)
        return mean, self._set_rows(v, rows, self.beta_2 * _rows_of(v, rows) + (1 - self.beta_2) * square)

    def _row_step(self, gradient, variable, rows):
        time = self._time(variable)
        beta_1, beta_2 = (ops.cast(beta, variable.dtype) for beta in (self.beta_1, self.beta_2))
        mean, square = self._row_averages(gradient, variable, rows)
        scale = ops.sqrt(1 - ops.power(beta_2, time)) / (1 - ops.power(beta_1, time))
        step = scale * mean / (ops.sqrt(square) + self.epsilon)
        return step + self.weight_decay * _rows_of(variable, rows) if self._decays(variable) else step

    def _decays(self, variable) -> bool:
        return bool(self.weight_decay) and self._use_weight_decay(variable)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class LAMB(AdamW):
    """LAMB, for batches of thousands of examples: the norm of a weight's step is the rate times the weight's own norm.

    You et al. 2019, algorithm 2, https://arxiv.org/abs/1904.00962: with the bias-corrected averages m and v, the step
    is r = m / (sqrt(v) + epsilon) + decay x, and x -= rate ||x|| / ||r|| r. Biases and layer norms, which do not decay,
    take the step r itself, and so do weights that are zero. Clipped and lazy as AdamW; where a gradient has only some
    rows of a table, both norms are of these rows. Keras' Lamb decays the weights in a step apart, outside of the norm.

    Args:
        learning_rate, weight_decay, clip, factors, starts: as in `AdamW`.
        epsilon: as published.

    >>> LAMB(learning_rate=1e-3).epsilon
    1e-06
    """

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        weight_decay: float = 0.01,
        clip: float | None = 1.0,
        factors: Mapping[str, float] | None = None,
        starts: Mapping[str, int] | None = None,
        epsilon: float = 1e-6,
        **kwargs,
    ):
        super().__init__(learning_rate, weight_decay, clip, factors, starts, epsilon=epsilon, **kwargs)

    def _dense_update(self, gradient, variable, rate):
        gradient = ops.cast(gradient, variable.dtype)
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        self.assign_add(m, (1 - self.beta_1) * (gradient - m))
        self.assign_add(v, (1 - self.beta_2) * (ops.square(gradient) - v))
        self.assign_sub(variable, rate * self._scale(m, v, variable, variable))

    def _row_step(self, gradient, variable, rows):
        mean, square = self._row_averages(gradient, variable, rows)
        return self._scale(mean, square, variable, _rows_of(variable, rows))

    def _scale(self, mean, square, variable, values):
        """The step of some values of a variable, from the averages of their gradients, times the ratio of norms."""
        time = self._time(variable)
        beta_1, beta_2 = (ops.cast(beta, variable.dtype) for beta in (self.beta_1, self.beta_2))
        mean, square = mean / (1 - ops.power(beta_1, time)), square / (1 - ops.power(beta_2, time))
        step = mean / (ops.sqrt(square) + self.epsilon)
        if not self._use_weight_decay(variable):
            return step
        values = ops.convert_to_tensor(values)
        step = step + self.weight_decay * values
        norms = [ops.sqrt(ops.sum(ops.square(each))) for each in (values, step)]
        return step * ops.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], 1.0)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Adagrad(_ByRows, keras.optimizers.Adagrad):
    """Adagrad as the published biLM was trained with: a += g^2; w -= rate g / sqrt(a), a starting at 1.

    Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html; https://github.com/allenai/bilm-tf, whose rate is 0.2
    and whose gradient is that of the loss times the number of steps unrolled, clipped to a norm of 10.

    Args:
        learning_rate: of every step.
        clip: largest global norm of the gradient.
        gradient_scale: multiplies the gradient before it is clipped.

    >>> Adagrad(0.2, clip=10.0, gradient_scale=20.0).initial_accumulator_value
    1.0
    """

    fields = ("gradient_scale",)

    def __init__(
        self,
        learning_rate: Rate = 0.2,
        clip: float | None = 10.0,
        gradient_scale: float = 1.0,
        initial_accumulator_value: float = 1.0,
        epsilon: float = 0.0,
        **kwargs,
    ):
        super().__init__(learning_rate, initial_accumulator_value, epsilon, **kwargs)
        self.clip, self.gradient_scale = clip, gradient_scale

    def update_step(self, gradient, variable, learning_rate) -> None:
        super().update_step(_map(lambda values: values * self.gradient_scale, gradient), variable, learning_rate)

    def _row_step(self, gradient, variable, rows):
        a = self._accumulators[self._get_variable_index(variable)]
        accumulated = self._set_rows(a, rows, _rows_of(a, rows) + ops.square(gradient))
        return gradient / ops.sqrt(accumulated + self.epsilon)


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class SGD(_ByRows, keras.optimizers.SGD):
    """Stochastic gradient descent that changes only the rows of a table that a gradient has, without clipping.

    Args:
        learning_rate: of a step.
        gradient_scale: multiplies the gradient: with the number of examples of a batch, whose loss is a mean, the steps
            of one example at a time are summed, as word2vec.c makes them.

    >>> SGD(0.025, gradient_scale=1024.0).gradient_scale
    1024.0
    """

    fields = ("gradient_scale",)

    def __init__(self, learning_rate: Rate = 0.01, gradient_scale: float = 1.0, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.clip, self.gradient_scale = None, gradient_scale

    def update_step(self, gradient, variable, learning_rate) -> None:
        super().update_step(gradient, variable, learning_rate * self.gradient_scale)

    def _row_step(self, gradient, variable, rows):
        return gradient


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class RowwiseAdagrad(_ByRows, keras.optimizers.Optimizer):
    """Adagrad with one number for each row of a table: a += mean(g^2); w -= rate g / (sqrt(a) + epsilon), a from 0.

    Mudigere et al. 2021, section 4.1.4, https://arxiv.org/abs/2104.05158, of the tables of recommendation models. The
    step of a row does not grow with the number of its examples in a batch, by which SGD diverges on frequent words.

    Args:
        learning_rate: of every step.
        gradient_scale: multiplies the gradient, as in `SGD`.
        epsilon: against a division by zero.

    >>> RowwiseAdagrad(0.1).epsilon
    1e-08
    """

    fields = ("gradient_scale", "epsilon")

    def __init__(self, learning_rate: Rate = 0.1, gradient_scale: float = 1.0, epsilon: float = 1e-8, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.clip, self.gradient_scale, self.epsilon = None, gradient_scale, epsilon

    def build(self, variables) -> None:
        if self.built:
            return
        super().build(variables)
        self._accumulators = [
            self.add_variable(variable.shape[:1], "zeros", variable.dtype, name=f"accumulator_{number}")
            for number, variable in enumerate(variables)
        ]

    def update_step(self, gradient, variable, learning_rate) -> None:
        gradient = _map(lambda values: values * self.gradient_scale, gradient)
        if _has_rows(gradient, variable):
            return super().update_step(gradient, variable, learning_rate)
        a = self._accumulators[self._get_variable_index(variable)]
        self.assign_add(a, _row_means(gradient))
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * self._scale(gradient, a))

    def _row_step(self, gradient, variable, rows):
        a = self._accumulators[self._get_variable_index(variable)]
        return self._scale(gradient, self._set_rows(a, rows, _rows_of(a, rows) + _row_means(gradient)))

    def _scale(self, gradient, accumulated):
        divisor = ops.sqrt(accumulated) + self.epsilon
        return gradient / ops.reshape(divisor, (-1, *[1] * (len(gradient.shape) - 1)))


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class LossScale(keras.optimizers.LossScaleOptimizer):
    """Keras' loss scaling for mixed_float16, under which sparse gradients stay sparse.

    Micikevicius et al. 2018, section 3.2, https://arxiv.org/abs/1710.03740. Keras' own class makes the gradient of an
    embedding or a sampled softmax as large as the table.

    Args:
        inner_optimizer, kwargs: one of this module, and as in `keras.optimizers.LossScaleOptimizer`.

    >>> LossScale(AdamW(1e-3)).initial_scale
    32768.0
    """

    def check_finite(self, grads: Sequence) -> Any:
        return super().check_finite([g.values if _has_rows(g) else g for g in grads])

    def _stateful_handle_finite_grads(self, grads, trainable_variables):
        scale = self.dynamic_scale.value

        def unscaled(values):
            return None if values is None else values / ops.cast(scale, values.dtype)

        self.inner_optimizer.apply([_map(unscaled, gradient) for gradient in grads], trainable_variables)
        grows = ops.equal(self.step_counter, self.dynamic_growth_steps - 1)
        self.step_counter.assign(ops.where(grows, 0, self.step_counter + 1))
        self.dynamic_scale.assign(ops.where(grows, 2 * scale, scale))


@dataclass(frozen=True)
class OptimizerSpec:
    """The class and the arguments of an optimizer, for functions that make it themselves, as `training.fit.fit`.

    Where it is `scheduled` it is also given weight decay, clip and learning rate of a run, whose schedule the rate then
    follows; otherwise its arguments say all.

    >>> OptimizerSpec(AdamW, {"factors": {"layer_0": 0.5}}).make(1e-3, weight_decay=0.01, clip=1.0).clip
    1.0
    """

    kind: Callable[..., keras.optimizers.Optimizer]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    scheduled: bool = True

    def make(self, learning_rate: float | None, weight_decay: float, clip: float) -> keras.optimizers.Optimizer:
        """The optimizer; only where it is `scheduled` do the arguments count.

        Args:
            learning_rate: of the first step, or the peak of a schedule.
            weight_decay: fraction of each weight, times the learning rate, that a step takes away.
            clip: largest global norm of the gradient.
        """
        shared = {"learning_rate": learning_rate, "weight_decay": weight_decay, "clip": clip}
        arguments = {**(shared if self.scheduled else {}), **self.arguments}
        if isinstance(rate := arguments.get("learning_rate"), int):
            arguments["learning_rate"] = float(rate)  # Keras takes no whole numbers
        return self.kind(**arguments)


def _has_rows(gradient, variable=None) -> bool:
    """Whether a gradient has only some rows of a table: as TensorFlow gives it, or those that are not all zeros."""
    if TENSORFLOW:
        return isinstance(gradient, tf.IndexedSlices)
    return getattr(variable, "read_by", None) == {"rows"}


def _used_rows(gradient):
    """Whether each row of a gradient has a number that is not zero, (rows,)."""
    return ops.any(ops.reshape(gradient, (ops.shape(gradient)[0], -1)) != 0, axis=1)


def _rows_of(table, rows):
    """Some rows of a table; where it is told of each whether it is one of them, all rows, with zeros for the others."""
    if TENSORFLOW:
        return tf.gather(table.value if isinstance(table, keras.Variable) else table, rows)
    return ops.where(_beside(rows, table), ops.convert_to_tensor(table), 0)


def _beside(rows, table):
    """What is told of each row, with as many axes as a table."""
    return ops.reshape(rows, (-1, *[1] * (len(table.shape) - 1)))


def _of_layer(values, variable, default):
    """The value of the outermost layer that has one, of the layers in a variable's path: "sequential/dense/kernel"."""
    return next((values[name] for name in variable.path.split("/")[:-1] if name in values), default)


def _map(function, gradient):
    """A function of a gradient, of which it may have only some rows."""
    if _has_rows(gradient):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def _row_means(gradient):
    """The mean of the squares in each row, (rows,)."""
    return ops.mean(ops.square(ops.reshape(gradient, (ops.shape(gradient)[0], -1))), 1)


def _where(condition, value):
    """A tensor, or zeros, for which none of it is multiplied: it may be infinite."""
    value = ops.convert_to_tensor(value)
    return ops.where(condition, value, ops.zeros_like(value))


def _unique_rows(gradient):
    """Sums the repeated rows of an embedding's gradient, since the square of a sum is not the sum of squares.

    They are sorted first: TensorFlow sums rows that stand together seven times as fast as others.
    """
    if not _has_rows(gradient):
        return gradient
    order = tf.argsort(gradient.indices, stable=True)
    rows = tf.gather(gradient.indices, order)
    first = rows != tf.concat([[-1], rows[:-1]], 0)
    segments = tf.cumsum(tf.cast(first, tf.int32)) - 1
    values = tf.math.segment_sum(tf.gather(gradient.values, order), segments)
    return tf.IndexedSlices(values, tf.boolean_mask(rows, first), gradient.dense_shape)
