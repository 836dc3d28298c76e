"""A model in two parts: what is frozen, whose outputs never change, and what is trained over them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import keras

__all__ = ["FROZEN", "Parts", "split"]

FROZEN = "frozen_"  # before the number of an output of the frozen part
_COMPUTED, _FIXED, _TRAINED = range(3)  # from the inputs alone; by frozen weights too; by trained ones or at random


class Parts(NamedTuple):
    """The two parts of a model, which share its layers.

    Attributes:
        frozen: from inputs of the model to {"frozen_0", ...}, the tensors that the trained part reads.
        trained: from these, and the inputs of the model that it reads too, to the outputs of the model.
    """

    frozen: keras.Model
    trained: keras.Model


def split(model: keras.Model) -> Parts | None:
    """Cuts a functional model where the results of frozen weights are read by layers that are trained or random.

    Of an ELMo under a scalar mix these are all layers of the biLM, of a BERT with a classifier's head the pooled
    vectors alone. Rows of embedding tables are read again in the trained part: their ids are smaller than they are.

    Args:
        model: with dicts of inputs and outputs; the layers of a frozen encoder have `trainable=False`.

    Returns: None if there is nothing to gain: no frozen layer but embeddings.

    >>> from keras_ctxrep.models import bert, heads
    >>> encoder = bert.encoder(bert.Config(layers=1, width=64, dropout=0.0))
    >>> encoder.trainable = False
    >>> parts = split(heads.classify(encoder, classes=3))
    >>> parts.frozen.output["frozen_0"].shape, [*parts.trained.input]
    ((None, 64), ['frozen_0'])
    >>> encoder.trainable = True
    >>> split(heads.classify(encoder, classes=3)) is None
    True
    """
    kinds: dict[int, int] = {}
    outputs = keras.tree.flatten(model.output)
    for node in _nodes(outputs):
        kind = max([_kind(node.operation), *(kinds[id(tensor)] for tensor in node.input_tensors)])
        kinds |= {id(tensor): kind for tensor in node.output_tensors}
    cut, read = _reached(outputs, lambda tensor: kinds[id(tensor)] == _FIXED)
    if not cut:
        return None
    names = {f"{FROZEN}{number}": tensor for number, tensor in enumerate(cut)}
    frozen = keras.Model(_by_name(model, _reached(cut, lambda tensor: False)[1]), names)
    names |= _by_name(model, read)
    trained = keras.Model([*names.values()], model.output)  # Keras makes new inputs of tensors within a model
    inputs = {name: keras.Input(batch_shape=x.shape, dtype=x.dtype, name=name) for name, x in names.items()}
    return Parts(frozen, keras.Model(inputs, trained([*inputs.values()]), name=model.name))


def _kind(operation: Any) -> int:
    """What the results of an operation depend on beside its inputs."""
    weights = getattr(operation, "weights", [])
    if getattr(operation, "trainable_weights", []) or len(getattr(operation, "variables", [])) > len(weights):
        return _TRAINED  # variables that are no weights are the state of a random generator: dropout
    return _FIXED if weights and not isinstance(operation, keras.layers.Embedding) else _COMPUTED


def _node(tensor: Any) -> Any:
    """The call that a tensor is a result of."""
    operation, index, _ = tensor._keras_history
    return operation._inbound_nodes[index]


def _nodes(tensors: Iterable[Any]) -> list:
    """The calls that lead to some tensors, each after those whose results it reads."""
    ordered, done, waiting = [], set(), [_node(tensor) for tensor in tensors]
    while waiting:
        node = waiting[-1]
        before = [earlier for tensor in node.input_tensors if id(earlier := _node(tensor)) not in done]
        waiting += before
        if not before and id(waiting.pop()) not in done:
            done.add(id(node))
            ordered.append(node)
    return ordered


def _reached(tensors: Iterable[Any], ends) -> tuple[list, list]:
    """What is reached on the way back from some tensors: those where it ends, and inputs."""
    cut, read, seen, waiting = [], [], set(), [*tensors][::-1]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if ends(tensor):
            cut.append(tensor)
        elif _node(tensor).is_input:
            read.append(tensor)
        else:
            waiting += _node(tensor).input_tensors[::-1]
    return cut, read


def _by_name(model: keras.Model, tensors: Iterable[Any]) -> dict[str, Any]:
    ids = {id(tensor) for tensor in tensors}
    return {name: tensor for name, tensor in model.input.items() if id(tensor) in ids}
