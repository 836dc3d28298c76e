"""The backend of Keras: all that training, inference and saving need to know of it stands here."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_ctxrep.text import lengths

NAME = keras.backend.backend()
TENSORFLOW = NAME == "tensorflow"
AHEAD = 4  # batches that are made before they are needed

if TYPE_CHECKING or TENSORFLOW:
    import tensorflow as tf

    OUT_OF_MEMORY: type[Exception] = tf.errors.ResourceExhaustedError
    # what a data set raises for an error of Python's in it, and a worker that has lost another one
    OF_DATA: tuple[type[Exception], ...] = tf.errors.UnknownError, tf.errors.InvalidArgumentError
    LOST_WORKER: tuple[type[Exception], ...] = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.InternalError,
    )
else:
    tf = None
    OUT_OF_MEMORY, OF_DATA, LOST_WORKER = MemoryError, (), ()
    lengths.rounded = True  # each shape is compiled


def versions() -> dict[str, str]:
    """The versions of Keras and of its backend."""
    return {NAME: version(NAME), "keras": keras.__version__}


# --------------------------------------------------------------------------------------------------------------- data


class Batches(keras.utils.PyDataset):
    """Batches of NumPy arrays, which a thread makes ahead; what `model.fit` reads where there is no `tf.data`.

    Args:
        arrays: function from the number of a batch to the batches from this one on, the same whenever it is called.
        count: how many there are; None: endless.
        start: batches that are left out at the beginning.

    >>> data = Batches(lambda first: iter([(np.zeros(1),), (np.ones(1),)][first:]), 2)
    >>> [float(x[0]) for (x,) in data.skip(1)]
    [1.0]
    """

    def __init__(self, arrays: Callable[[int], Iterator], count: int | None, start: int = 0):
        super().__init__()
        self.arrays, self.count, self.start = arrays, count, start
        self._next, self._running = 0, iter(())

    @property
    def num_batches(self) -> int | None:
        return None if self.count is None else self.count - self.start

    def __getitem__(self, index: int) -> Any:
        if index != self._next or not index:
            self._running, self._next = self._ahead(self.start + index), index
        self._next += 1
        return next(self._running)

    def __iter__(self) -> Iterator:
        return self._ahead(self.start)

    as_numpy_iterator = __iter__

    def skip(self, count: int) -> "Batches":
        """The batches after some of them."""
        return Batches(self.arrays, self.count, self.start + count)

    def take(self, count: int) -> "Batches":
        """The first batches."""
        return Batches(lambda first: itertools.islice(self.arrays(first), count), count, self.start)

    def _ahead(self, first: int) -> Iterator:
        source, ended = self.arrays(first), object()
        pool = ThreadPoolExecutor(1)
        try:
            made = deque(pool.submit(next, source, ended) for _ in range(AHEAD))
            while (batch := made.popleft().result()) is not ended:
                made.append(pool.submit(next, source, ended))
                yield batch
        finally:  # the batch that is being made is left to its thread, for which Python waits as it ends, however long
            pool.shutdown(wait=False, cancel_futures=True)


def batches(
    arrays: Callable[[int], Iterator], start: int, count: int | Callable[[], int] | None, copies: int = 1
) -> Any:
    """Batches of NumPy arrays as a `tf.data.Dataset`, or where there is none as `Batches`.

    Args:
        arrays: as of `Batches`; nested, and their first two axes may vary from batch to batch.
        start: batches that are left out at the beginning.
        count: how many there are from `start` on, or a function that counts all; None: endless.
        copies: elements in place of each batch.

    Raises:
        ValueError: there is no batch.
    """
    example = next(arrays(0), None)
    if example is None:
        raise ValueError("no text to train or evaluate on")
    if not TENSORFLOW:
        all_of_them = count() if callable(count) else None if count is None else start + count
        return Batches(arrays, all_of_them, start)

    def spec(array: np.ndarray) -> Any:
        return tf.TensorSpec([None] * min(array.ndim, 2) + list(array.shape[2:]), array.dtype)

    signature = tf.nest.map_structure(spec, example)
    data = tf.data.Dataset.from_generator(lambda: arrays(start), output_signature=signature)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    options.autotune.enabled = False  # there is nothing to tune, and its thread delays the iterator's end by up to 60 s
    if not callable(count):
        size = tf.data.INFINITE_CARDINALITY if count is None else count * copies
        data = data.apply(tf.data.experimental.assert_cardinality(size))
    return data.with_options(options).prefetch(AHEAD)


def zipped(first: Any, second: Any, merged: Callable[[Any, Any], Any]) -> Any:
    """The batches of two data sets in pairs, as what a function of both gives."""
    if TENSORFLOW:
        return tf.data.Dataset.zip((first, second)).map(merged)
    counts = [data.num_batches for data in (first, second) if data.num_batches is not None]

    def arrays(begin: int) -> Iterator:
        return itertools.starmap(merged, zip(first.skip(begin), second.skip(begin), strict=False))

    return Batches(arrays, min(counts, default=None))


# ------------------------------------------------------------------------------------------------------------ devices


@dataclass(frozen=True)
class Devices:
    """Devices that train one model, where there is no `tf.distribute.Strategy`; Keras shares the batches among them."""

    num_replicas_in_sync: int = 1

    def scope(self) -> AbstractContextManager:
        """Nothing has to be entered."""
        return nullcontext()


def devices(name: str) -> Devices:
    """The devices of a name, see `training.strategy.choose`, among which Keras shares the batches from now on."""
    if name not in ("auto", "one", "mirrored"):
        raise ValueError(f"strategy={name!r}: choose auto, one or mirrored under the backend {NAME}")
    if name == "auto" and keras.distribution.distribution() is not None:
        return present_devices()
    found = keras.distribution.list_devices() if NAME == "jax" else []
    if name == "mirrored" and len(found) < 2:
        raise ValueError(f"strategy='mirrored': one device here under the backend {NAME}; choose one")
    several = len(found) > 1 and (name == "mirrored" or (name == "auto" and found[0].startswith("gpu")))
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=found) if several else None)
    return present_devices()


def present_devices() -> Devices:
    """The devices among which Keras shares the batches."""
    distribution = keras.distribution.distribution()
    return Devices(1 if distribution is None else distribution.device_mesh.devices.size)


@contextmanager
def undistributed() -> Iterator[None]:
    """Within it Keras shares no batch, whose rows may then be any number, among the devices of `devices`."""
    distribution = None if TENSORFLOW else keras.distribution.distribution()
    if distribution is not None:
        keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        if distribution is not None:
            keras.distribution.set_distribution(distribution)


# -------------------------------------------------------------------------------------------------------------- steps


def sync(model: keras.Model) -> None:
    """Writes the weights into a model's variables, which JAX has taken out of them within `fit`."""
    if not TENSORFLOW and getattr(model, "_jax_state", None) is not None:
        model.jax_state_sync()


def taken(model: keras.Model) -> int:
    """The training steps that a model has taken, to the last one, whether a callback has been told of it or not."""
    return getattr(model, "steps_taken", 0) if NAME == "jax" else int(model.optimizer.iterations.numpy())


def compiled(
    compute: Callable, model: keras.Model, inputs: Mapping[str, Any] | None = None, frozen: bool = False
) -> Callable:
    """A function of nested arrays that a model is in, which uses its present weights; it gives nested arrays.

    TensorFlow traces it once for all sizes, or for each kind of input; JAX compiles it for each size.

    Args:
        compute: function of nested tensors to nested tensors.
        model: that is called in it.
        inputs: tensors with the shapes and types of its one argument, a dict, of which others are left out; None: any.
        frozen: its weights stay as they are: JAX keeps a copy, since in `fit` it takes the model's own away.
    """
    if not TENSORFLOW:
        run = _compiled_statelessly(compute, model, frozen)
        return run if inputs is None else lambda batch: run({name: batch[name] for name in inputs})
    if inputs is None:
        function: Any = tf.function(compute, autograph=False, reduce_retracing=True)
        return lambda *batch: tf.nest.map_structure(lambda tensor: tensor.numpy(), function(*batch))
    signature = {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in inputs.items()}

    @cache
    def traced() -> Callable:
        # called by itself, as the only graph: TensorFlow counts by source line, and would warn of other models' graphs
        function: Any = tf.function(compute, autograph=False, input_signature=[signature])
        return function.get_concrete_function()

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {name: tf.convert_to_tensor(batch[name]) for name in signature}
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), traced()(tensors))

    return run


def _compiled_statelessly(compute: Callable, model: keras.Model, frozen: bool) -> Callable:
    def stateless(values: list, *batch: Any) -> Any:
        with keras.StatelessScope([*zip(model.variables, values, strict=True)]):
            return compute(*batch)

    kept = [keras.ops.copy(variable.value) for variable in model.variables] if frozen else None
    if NAME == "jax":
        import jax

        stateless = jax.jit(stateless)

    def run(*batch: Any) -> Any:
        given = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)
        outputs = stateless(kept or [variable.value for variable in model.variables], *given)
        return keras.tree.map_structure(keras.ops.convert_to_numpy, outputs)

    return run
