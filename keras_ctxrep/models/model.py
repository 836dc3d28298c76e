"""The class of all models of this package: a `keras.Model` whose steps are exact under any `tf.distribute.Strategy`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_ctxrep.backend import NAME, TENSORFLOW, tf
from keras_ctxrep.layers.replicas import replica
from keras_ctxrep.losses import VectorLoss
from keras_ctxrep.models.frozen import FROZEN
from keras_ctxrep.models.jax_steps import JAXSteps, counts

__all__ = ["Model", "copy_weights", "reset_streams"]


_Steps = keras.Model if TYPE_CHECKING or NAME != "jax" else JAXSteps


@keras.saving.register_keras_serializable(package="keras_ctxrep")
class Model(_Steps):
    """A functional `keras.Model` that trains to the same weights on one device, several, or several machines.

    Called, compiled, saved and exported as any functional model. On TensorFlow it differs in its steps (on JAX as
    `models.jax_steps` says):

    * each replica's loss counts by its fraction of the batch's rows. Keras gives all replicas the same weight, which is
      wrong where a batch is not split evenly;
    * `fit`, `evaluate` and `predict` work under `tf.distribute.MultiWorkerMirroredStrategy`, where those of Keras 3.15
      raise an error, https://github.com/keras-team/keras/issues/20585;
    * `microbatches` trains on batches that are larger than the memory;
    * where float16 overflows on one replica all of them skip the step;
    * what cannot work on several replicas is refused when `fit` begins, with what to use instead.

    Args:
        inputs, outputs, name: as in `keras.Model`.

    Attributes:
        microbatches: parts of each replica's batch that are computed one after another. Their gradients are summed,
            and there is one update, of the whole batch: the published batch size with the memory of a fraction of it.
            With a `losses.VectorLoss`, which compares all rows, the vectors of the whole batch are computed first.
        counts_tokens: whether the logs of a training step have "tokens", the mean over the replicas of the sum of the
            input "mask", and "positions", that of its size.
        trained_part: function that gives the outputs from {"frozen_0", ...} where a batch has these, as of
            `models.frozen.split`: only what is trained is then computed; None: there is none.

    Raises:
        ValueError: by `fit` and `evaluate`: an option of `compile` or of the optimizer is wrong on several replicas.

    >>> x = keras.Input((2,))
    >>> model = Model(x, keras.layers.Dense(1)(x))
    >>> model.microbatches = 4
    """

    microbatches = 1
    counts_tokens = False
    trained_part: Callable[..., Any] | None = None

    def __call__(self, inputs, *args, **kwargs):
        if self.trained_part is not None and isinstance(inputs, dict) and f"{FROZEN}0" in inputs:
            return self.trained_part(inputs, *args, **kwargs)
        self._check_inputs(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def fit(self, x: Any = None, *args, **kwargs) -> keras.callbacks.History:
        self._check_inputs(x)
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args, **kwargs) -> Any:
        self._check_inputs(x)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x: Any, *args, **kwargs) -> Any:
        self._check_inputs(x)
        return super().predict(x, *args, **kwargs)

    def _check_inputs(self, inputs):
        """Raises an error that says what is needed in place of texts, and of the inputs of another model."""
        if not isinstance(self.input, dict):
            return
        if _are_texts(inputs):
            raise TypeError(
                f"{self.name}: texts; it reads {', '.join(self.input)}: give it bundle.features(texts), or let the "
                "model begin with keras_ctxrep_export.preprocessor.Preprocessor(bundle)"
            )
        missing = [name for name in self.input if name not in inputs] if isinstance(inputs, dict) else []
        if missing:
            remedy = "prepare the texts with the features of its own bundle"
            if {*missing} & {"mlm_positions", "forward_targets"}:
                remedy = "it is a model for pretraining; the encoder in it is load(NAME).encoder.keras_model"
            raise ValueError(f"{self.name}: no {', '.join(missing)} among the inputs {', '.join(inputs)}; {remedy}")

    if TENSORFLOW:

        def make_train_function(self, force=False) -> None:
            self._check_steps()
            optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
            replicas = self.distribute_strategy.num_replicas_in_sync
            remedies = {
                "clipnorm": "use keras_ctxrep.optimizers.AdamW(clip=...): Keras clips before it sums over the replicas",
                "gradient_accumulation_steps": "give larger batches, and set model.microbatches",
                "ema_overwrite_frequency": "use keras.callbacks.SwapEMAWeights",
            }
            remedies |= dict.fromkeys(("global_clipnorm", "clipvalue"), remedies["clipnorm"])
            for name, remedy in remedies.items():
                if replicas > 1 and getattr(optimizer, name, None):
                    raise ValueError(f"{name}={getattr(optimizer, name)}: not on {replicas} replicas; {remedy}")
            super().make_train_function(force)

        def make_test_function(self, force=False) -> None:
            self._check_steps()
            super().make_test_function(force)

        def _check_steps(self):
            replicas = self.distribute_strategy.num_replicas_in_sync
            if replicas > 1 and self.steps_per_execution != 1:
                raise ValueError(f"steps_per_execution={self.steps_per_execution}: must be 1 on {replicas} replicas")
            if replicas > 1 and self.jit_compile is True:
                raise ValueError(f"jit_compile=True: XLA cannot compile a step of {replicas} replicas; leave it out")

        def train_step(self, data) -> dict[str, Any]:
            x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
            gradients = self._gradients(x, y, weights)
            if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
                gradients = _all_finite_or_none(gradients)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            logs = self.get_metrics_result()
            return self._logs(logs | counts(x) if self.counts_tokens else logs)

        def test_step(self, data) -> dict[str, Any]:
            return self._logs(super().test_step(data))

        def _gradients(self, x, y, weights):
            """Gradients of this replica's rows, computed in `microbatches` parts one after another."""
            rows = _rows(x)
            total = _sum_over_replicas(tf.cast(rows, "float32"))
            if self.microbatches == 1:
                return self._gradients_of_part(x, y, weights, total)
            size = tf.maximum(-(-rows // self.microbatches), 1)

            def cut(arrays, index):
                return keras.tree.map_structure(
                    lambda array: None if array is None else array[index * size : (index + 1) * size], arrays
                )

            if any(isinstance(loss, VectorLoss) for loss in keras.tree.flatten(self.loss)):
                return self._gradients_of_vectors(x, y, cut, -(-rows // size), total)

            def part(index):
                x_part, y_part, weights_part = cut((x, y, weights), index)
                return self._gradients_of_part(x_part, y_part, weights_part, total)

            return _sum_of_parts(part, -(-rows // size))

        def _gradients_of_vectors(self, x, y, cut, count, total):
            """Gradients of a loss over the vectors of all rows, with the activations of one part at a time.

            Gao et al. 2021, section 3, https://arxiv.org/abs/2101.06983: the vectors of all parts are computed without
            activations; the gradient of the loss by each vector is kept; each part is computed once more, with the same
            seeds of dropout, and the gradients of its vectors go on to the weights.

            Args:
                x, y: of this replica.
                cut: function from arrays and the number of a part to their rows in it.
                count: parts.
                total: rows of all replicas.
            """
            if not isinstance(self.loss, dict) or len(self.loss) != 1:
                raise ValueError('microbatches of a loss over vectors: compile with loss={"vector": loss}')
            ((name, loss),) = self.loss.items()
            weights = {id(weight) for weight in self.non_trainable_weights}
            seeds = [each for each in self.non_trainable_variables if id(each) not in weights]  # states of generators
            count = tf.maximum(count, 1)

            def forward(index, vectors, states):
                states = [array.write(index, seed.value) for array, seed in zip(states, seeds, strict=True)]
                with tf.control_dependencies([array.flow for array in states]):
                    outputs = self(cut(x, index), training=True)
                return index + 1, vectors.write(index, tf.cast(outputs[name], "float32")), states

            width = self.output[name].shape[-1]
            vectors = tf.TensorArray("float32", count, infer_shape=False, element_shape=[None, width])
            states = [tf.TensorArray(seed.dtype, count, element_shape=seed.shape) for seed in seeds]
            _, vectors, states = tf.while_loop(
                lambda index, *_: index < count, forward, (0, vectors, states), parallel_iterations=1
            )
            vectors, states = vectors.concat(), [array.stack() for array in states]
            with tf.GradientTape() as tape:
                tape.watch(vectors)
                value = loss.call(y[name], vectors)[0]
            self._loss_tracker.update_state(value, sample_weight=_rows(x))
            by_vector = tape.gradient(value, vectors) * tf.cast(_rows(x), "float32") / total

            def part(index):
                for seed, of_parts in zip(seeds, states, strict=True):
                    seed.assign(of_parts[index])
                x_part, gradient = cut(x, index), cut(by_vector, index)
                with tf.GradientTape() as tape:
                    outputs = self(x_part, training=True)
                    regularization = sum(self.losses) * tf.cast(_rows(x_part), "float32") / total
                    surrogate = tf.reduce_sum(tf.cast(outputs[name], "float32") * gradient) + regularization
                    surrogate = self.optimizer.scale_loss(surrogate)
                return tape.gradient(surrogate, self.trainable_weights)

            return _sum_of_parts(part, count)

        def _gradients_of_part(self, x, y, weights, total):
            """Gradients of some rows, which count by their fraction of all rows of the batch."""
            rows, replicas = _rows(x), replica()[0]
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = self.compute_loss(x, y, outputs, weights)  # divided by the number of replicas
                self._loss_tracker.update_state(loss * replicas, sample_weight=rows)
                # 0 / 0 where there are no rows
                loss = tf.math.multiply_no_nan(loss, tf.cast(replicas * rows, loss.dtype) / tf.cast(total, loss.dtype))
                loss = self.optimizer.scale_loss(loss)
            self.compute_metrics(x, y, outputs, weights)
            return tape.gradient(loss, self.trainable_weights)

        def _logs(self, logs):
            """With an axis for the workers, which Keras' reduction needs."""
            from keras_ctxrep.training.strategy import several_workers

            if not several_workers(self.distribute_strategy):
                return logs
            return {name: tf.expand_dims(value, 0) for name, value in logs.items()}

        def _maybe_symbolic_build(self, iterator=None, data_batch=None):
            # Keras takes the mean of a first batch over the replicas, which it cannot if they have different rows
            def spec(value):
                local = self.distribute_strategy.experimental_local_results(value)[0]
                return keras.KerasTensor((local.shape[0] or 1, *local.shape[1:]), local.dtype.name)

            if iterator is not None and self._distribute_strategy is not None:
                for _, _, batches in iterator:
                    data_batch = keras.tree.map_structure(spec, next(batches))
                    break
            super()._maybe_symbolic_build(data_batch=data_batch)


def _are_texts(value):
    if isinstance(value, list | tuple):
        return bool(value) and _are_texts(value[0])
    dtype = getattr(value, "dtype", type(value))
    return getattr(dtype, "name", str(dtype)).lower().startswith(("str", "bytes", "object", "<class 'str"))


def _rows(x):
    return tf.shape(keras.tree.flatten(x)[0])[0]


def _sum_over_replicas(value):
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value) if context.num_replicas_in_sync > 1 else value


def _sum_of_parts(part, count):
    """The sum of the gradients that `part` gives for 0 to `count` - 1; sparse ones stay sparse.

    The first part is computed outside the loop, which needs to know which gradients are sparse. Each part waits for the
    one before it, whose activations are then no longer in memory.
    """
    gradients = part(tf.constant(0))
    dense = [g for g in gradients if g is not None and not isinstance(g, tf.IndexedSlices)]
    sparse = [g for g in gradients if isinstance(g, tf.IndexedSlices)]

    def arrays(first):
        array = tf.TensorArray(
            first.dtype, tf.maximum(count, 1), infer_shape=False, element_shape=[None, *first.shape[1:]]
        )
        return array.write(0, first)

    def body(index, dense, values, indices):
        more = part(index)
        more_dense = [g for g in more if g is not None and not isinstance(g, tf.IndexedSlices)]
        more_sparse = [g for g in more if isinstance(g, tf.IndexedSlices)]
        dense = [total + g for total, g in zip(dense, more_dense, strict=True)]
        values = [array.write(index, g.values) for array, g in zip(values, more_sparse, strict=True)]
        indices = [array.write(index, g.indices) for array, g in zip(indices, more_sparse, strict=True)]
        return index + 1, dense, values, indices

    with tf.control_dependencies(dense):
        start = tf.constant(1)
    loop = start, dense, [arrays(g.values) for g in sparse], [arrays(g.indices) for g in sparse]
    _, dense, values, indices = tf.while_loop(lambda index, *_: index < count, body, loop, parallel_iterations=1)
    parts = zip(values, indices, sparse, strict=True)
    sums, slices = iter(dense), (tf.IndexedSlices(v.concat(), i.concat(), g.dense_shape) for v, i, g in parts)
    return [g if g is None else next(slices if isinstance(g, tf.IndexedSlices) else sums) for g in gradients]


def _all_finite_or_none(gradients):
    """The gradients, all NaN on every replica if one is infinite or NaN on any replica.

    Keras decides on each replica by itself, or by the first one, whether float16 overflowed; workers that decide
    differently wait for each other for ever.
    """
    if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return gradients

    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in values])
    overflows = _sum_over_replicas(tf.cast(~finite, "float32"))
    poison = tf.where(overflows > 0, float("nan"), 0.0)

    def marked(g):
        by = tf.cast(poison, g.dtype)
        return tf.IndexedSlices(g.values + by, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else g + by

    return [g if g is None else marked(g) for g in gradients]


def copy_weights(source: keras.Model, target: keras.Model, skip: Sequence[str] = ()) -> None:
    """Copies the weights of every layer of `target` from the layer of `source` that has its name.

    The state that a layer keeps of its streams is not copied.

    Args:
        source, target: models of the same sizes.
        skip: names of layers that are left as they are.

    Raises:
        ValueError: `source` lacks a layer.

    >>> inputs = keras.Input((2,))
    >>> source, target = (Model(inputs, keras.layers.Dense(1, name="head")(inputs)) for _ in range(2))
    >>> copy_weights(source, target)
    >>> bool((source.get_weights()[0] == target.get_weights()[0]).all())
    True
    """
    for layer in target.layers:
        weights = _without_state(layer)
        if weights and layer.name not in skip:
            for weight, value in zip(weights, _without_state(source.get_layer(layer.name)), strict=True):
                weight.assign(ops.copy(value))  # JAX takes the memory of weights away in its steps


def reset_streams(model: keras.Model) -> None:
    """Sets the state that a biLM keeps of its streams to zero, as at the beginning of a text.

    `fit`, `predict` and `evaluate` all carry this state on.

    >>> inputs = keras.Input((2,))
    >>> reset_streams(Model(inputs, keras.layers.Dense(1)(inputs)))  # without streams nothing is to be done
    """
    for layer in model.layers:
        if getattr(layer, "streams", None):
            layer.state.assign(np.zeros(layer.state.shape))


def _without_state(layer: keras.layers.Layer) -> list:
    return [weight for weight in layer.weights if weight is not getattr(layer, "state", None)]
