"""A model in two parts: what is frozen, whose outputs never change, and what is trained over them."""

from collections.abc import Collection, Iterable
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

    >>> from keras_ctxrep.models import elmo, heads
    >>> encoder = elmo.encoder(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"])
    >>> encoder.trainable = False
    >>> parts = split(heads.tag(encoder, classes=3))
    >>> parts.frozen.output["frozen_0"].shape, [*parts.trained.output]
    ((None, None, 128), ['logits'])
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

    >>> from keras_ctxrep.models import elmo, heads
    >>> encoder = elmo.encoder(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"])
    >>> encoder.trainable = False
    >>> parts = split(heads.classify(encoder, classes=3, mix=True))
    >>> [*parts.frozen.input], [*parts.trained.input]
    (['char_ids', 'mask'], ['frozen_0', 'frozen_1', 'frozen_2', 'mask'])
    >>> encoder.trainable = True
    >>> split(heads.classify(encoder, classes=3, mix=True)) is None
    True
    """
    kinds: dict[int, int] = {}
    outputs, read = keras.tree.flatten(model.output), []
    for node in _nodes(outputs):
        kind = max([_kind(node.operation), *(kinds[id(tensor)] for tensor in node.input_tensors)])
        kinds |= {id(tensor): kind for tensor in node.output_tensors}
        read += node.input_tensors if kind == _TRAINED else ()
    cut = {id(tensor): tensor for tensor in [*read, *outputs] if kinds[id(tensor)] == _FIXED}
    if not cut:
        return None
    names = {f"{FROZEN}{number}": tensor for number, tensor in enumerate(cut.values())}
    frozen = keras.Model(_inputs(model, _nodes(cut.values())), names)
    trained = _nodes(outputs, cut)
    names |= _inputs(model, trained)
    inputs = {name: keras.Input(batch_shape=x.shape, dtype=x.dtype, name=name) for name, x in names.items()}
    values = {id(tensor): inputs[name] for name, tensor in names.items()}
    for node in trained:
        if not node.is_input:  # the same layer again, on the new inputs
            args, kwargs = node.arguments.fill_in(values)
            results = keras.tree.flatten(node.operation(*args, **kwargs))
            values |= {id(tensor): result for tensor, result in zip(node.output_tensors, results, strict=True)}
    results = keras.tree.map_structure(lambda tensor: values[id(tensor)], model.output)
    return Parts(frozen, keras.Model(inputs, results, name=model.name))


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


def _nodes(tensors: Iterable[Any], known: Collection[int] = ()) -> list:
    """The calls that lead to some tensors, each after those whose results it reads; `known`: ids of given tensors."""
    ordered, done, waiting = [], set(), [_node(tensor) for tensor in tensors if id(tensor) not in known]
    while waiting:
        node = waiting[-1]
        read = [_node(tensor) for tensor in node.input_tensors if id(tensor) not in known]
        before = [earlier for earlier in read if id(earlier) not in done]
        waiting += before
        if not before and id(waiting.pop()) not in done:
            done.add(id(node))
            ordered.append(node)
    return ordered


def _inputs(model: keras.Model, nodes: Iterable[Any]) -> dict[str, Any]:
    """The inputs of a model that are among some calls."""
    read = {id(tensor) for node in nodes if node.is_input for tensor in node.output_tensors}
    return {name: tensor for name, tensor in model.input.items() if id(tensor) in read}
