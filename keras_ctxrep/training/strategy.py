"""Where a model trains: one device, all GPUs of a machine, or on TensorFlow several machines."""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import keras

from keras_ctxrep import backend
from keras_ctxrep.atomic import lock_folder
from keras_ctxrep.backend import TENSORFLOW, tf

__all__ = [
    "check_devices",
    "choose",
    "is_chief",
    "local_cluster",
    "lock_output",
    "mean_over_workers",
    "scope",
    "several_workers",
]

_TF_CONFIG = (
    '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, "task": {"type": "worker", "index": 0}}, where index '
    "is the number of this machine"
)


def choose(name: str = "auto") -> Any:
    """The strategy of a name; the same object for the whole process, since the collectives of two would interfere.

    Args:
        name: "one": the first GPU, or the CPU. "mirrored": all GPUs of this machine, or all logical CPU devices where
            there is no GPU. "multiworker": all machines of the cluster in the environment variable TF_CONFIG,
            https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras; it must be chosen before the
            process makes any model, optimizer or data set. "auto": the strategy of the scope this is called in, if
            any; else multiworker if TF_CONFIG names more than one machine, mirrored if there is more than one GPU, and
            one otherwise.

    Raises:
        ValueError: no such name, fewer devices or machines than the name needs, or multiworker chosen too late.

    >>> choose("one").num_replicas_in_sync
    1
    """
    if not TENSORFLOW:
        return backend.devices(name)
    if name == "auto" and tf.distribute.has_strategy():
        return tf.distribute.get_strategy()
    if name == "multiworker" or (name == "auto" and len(_cluster()) > 1):
        return _multi_worker()
    if name == "mirrored" or (name == "auto" and len(tf.config.list_physical_devices("GPU")) > 1):
        return _mirrored()
    if name not in ("auto", "one"):
        raise ValueError(f"strategy={name!r}: choose auto, one, mirrored or multiworker")
    return tf.distribute.get_strategy()


def check_devices(batch_size: int, precision: str, strategy: Any) -> None:
    """Raises a ValueError for options of a run that its devices or Keras do not support.

    Args:
        batch_size: examples of a step, over all devices.
        precision: name of a Keras dtype policy.
        strategy: where the run trains.
    """
    if batch_size % strategy.num_replicas_in_sync:
        raise ValueError(f"batch_size={batch_size}: {strategy.num_replicas_in_sync} devices share it in equal parts")
    try:
        keras.DTypePolicy(precision)
    except ValueError:
        raise ValueError(f"precision={precision!r}: no dtype policy of Keras, such as mixed_bfloat16") from None


@contextmanager
def scope(precision: str = "float32", strategy: Any = "auto") -> Iterator:
    """Where models are built: a distribution strategy, which it gives, and a precision.

    Args:
        precision: a Keras dtype policy, e.g. "mixed_bfloat16".
        strategy: a name, as in `choose`, or a strategy of your own.
    """
    strategy_object = choose(strategy) if isinstance(strategy, str) else strategy
    policy = keras.mixed_precision.dtype_policy()
    with ExitStack() as stack:
        stack.callback(keras.mixed_precision.set_dtype_policy, policy)
        keras.mixed_precision.set_dtype_policy(precision)
        stack.enter_context(strategy_object.scope())
        yield strategy_object


def of_model(model: keras.Model) -> Any:
    """The strategy that a model was made under, or of other backends than TensorFlow the process's devices."""
    return model.distribute_strategy if TENSORFLOW else backend.present_devices()


def several_workers(strategy: Any) -> bool:
    """Whether other processes train the same model."""
    if not TENSORFLOW or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    return strategy.num_replicas_in_sync > len(strategy.extended.worker_devices)


def is_chief(strategy: Any) -> bool:
    """Whether this process is the one that writes files: the first worker, or the only one."""
    if not several_workers(strategy):
        return True
    resolver = strategy.cluster_resolver
    first = "chief" if "chief" in resolver.cluster_spec().jobs else "worker"
    return (resolver.task_type, resolver.task_id) == (first, 0)


def local_cluster(workers: int) -> list[str]:
    """The value of TF_CONFIG for each worker of a cluster on this machine, to try several workers without a second one.

    >>> [json.loads(config)["task"]["index"] for config in local_cluster(2)]
    [0, 1]
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(workers)]
        cluster = {"worker": [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]}
    tasks = ({"type": "worker", "index": number} for number in range(workers))
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


def mean_over_workers(strategy: Any, metrics: Mapping[str, float]) -> dict[str, float]:
    """The mean of each metric over the workers, so that all of them take the same decisions.

    Rounding differs from machine to machine: workers that ended a run at different steps would wait for each other.

    Args:
        strategy: where the run trains.
        metrics: of this worker, the same names in each.
    """
    if not several_workers(strategy):
        return dict(metrics)
    values = strategy.reduce("MEAN", tf.constant([float(value) for value in metrics.values()], "float64"), axis=None)
    return dict(zip(metrics, values.numpy().tolist(), strict=True))


def _cluster() -> list[str]:
    """The addresses of the machines in TF_CONFIG; none if it is not set."""
    text = os.environ.get("TF_CONFIG", "").strip()
    if not text:
        return []
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        cluster[task["type"]][task["index"]]  # this machine
        return [address for kind in ("chief", "worker") for address in cluster.get(kind, [])]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise ValueError(f"TF_CONFIG={text!r}: must be like {_TF_CONFIG}") from None


@cache
def _mirrored() -> Any:
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) < 2:
        raise ValueError(f"strategy='mirrored': one device here, {devices[0].name}; choose one")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


@cache
def _multi_worker() -> Any:
    if len(_cluster()) < 2:
        raise ValueError(f"strategy='multiworker': TF_CONFIG names no other machine; set it to {_TF_CONFIG}")
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        remedy = "enter scope(strategy='multiworker') before the process makes any model, optimizer or data set"
        raise ValueError(f"strategy='multiworker': chosen too late; {remedy}") from error


def lock_output(folder: str | Path, strategy: Any) -> AbstractContextManager[None]:
    """Within it no other run can write the model folder, see `lock_folder`; of several workers the first one locks it.

    From before its data are read until its model is saved: a run that began later would replace that model.

    Args:
        folder: the model folder.
        strategy: where the run trains.
    """
    return lock_folder(folder) if is_chief(strategy) else nullcontext()
