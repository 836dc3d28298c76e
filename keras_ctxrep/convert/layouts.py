"""Weight maps of Transformer encoders in Hugging Face folders, made from the layouts of their families."""

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from keras_ctxrep.convert.bert import LAYERS
from keras_ctxrep.convert.weights import TRANSPOSED, Tensor
from keras_ctxrep.models.transformer import Config, Layout

__all__ = ["weight_map"]

HEADS = frozenset(chain.from_iterable(LAYERS.values()))  # layers above the blocks
# our layer -> function from (config, classes) to the shape of its kernel or table
SHAPES: dict[str, Callable[[Any, int], tuple[int, ...]]] = {
    "token_embedding": lambda c, _: (c.vocabulary_size, _input_width(c)),
    "segment_embedding": lambda c, _: (c.segments, _input_width(c)),
    "type_embedding": lambda c, _: (c.token_types, c.width),
    "position_embedding": lambda c, _: (c.max_positions, _input_width(c)),
    "embedding_norm": lambda c, _: (_input_width(c),),
    "embedding_projection": lambda c, _: (_input_width(c), c.width),
    "attention_bias": lambda c, _: (c.buckets, c.heads),
    "layer_{}/query": lambda c, _: (c.width, c.width),
    "layer_{}/key": lambda c, _: (c.width, c.width),
    "layer_{}/value": lambda c, _: (c.width, c.width),
    "layer_{}/attention_output": lambda c, _: (c.width, c.width),
    "layer_{}/attention_norm": lambda c, _: (c.width,),
    "layer_{}/feed_forward": lambda c, _: (c.width, c.intermediate),
    "layer_{}/feed_forward_output": lambda c, _: (c.intermediate, c.width),
    "layer_{}/feed_forward_norm": lambda c, _: (c.width,),
    "pooler": lambda c, _: (c.width, c.width),
    "mlm_transform": lambda c, _: (c.width, _input_width(c)),
    "mlm_norm": lambda c, _: (_input_width(c),),
    "mlm_bias": lambda c, _: (c.vocabulary_size,),
    "nsp_logits": lambda c, _: (c.width, 2),
    "logits": lambda c, classes: (c.width, classes),
    "span_logits": lambda c, _: (c.width, 2),
}


def weight_map(
    config: Config, layout: Layout, heads: Sequence[str], classes: int, prefix: str, old_norms: bool = False
) -> list[Tensor]:
    """The weight map of an encoder with some heads.

    Args:
        config: sizes.
        layout: of the family.
        heads: our layers above the blocks.
        classes: number of classes of a classifier.
        prefix: of the names of the encoder's tensors.
        old_norms: whether the weights of layer norms are named "gamma" and "beta".

    >>> from keras_ctxrep.models import mpnet
    >>> [tensor.name for tensor in weight_map(mpnet.Config(layers=1), mpnet.LAYOUT, ["pooler"], 2, "")][-1]
    'pooler.dense.bias'
    """
    below = [layer for layer in layout.names if "{}" not in layer and layer not in HEADS]
    if _input_width(config) == config.width:
        below = [layer for layer in below if layer != "embedding_projection"]
    blocks = [layer for layer in layout.names if "{}" in layer]
    tensors = []
    for layer in [*below, *(block.format(index) for index in range(config.layers) for block in blocks), *heads]:
        pattern = re.sub(r"^layer_(\d+)/", "layer_{}/", layer)
        module = layout.names[pattern].format(layer.partition("/")[0].removeprefix("layer_"))
        module = f"{prefix}{module[1:]}" if module.startswith(".") else module
        tensors += _tensors_of(layer, module, SHAPES[pattern](config, classes), layout, old_norms)
    order: dict[tuple[str, ...], int] = {}
    for tensor in tensors:
        order.setdefault(tensor.ours, len(order))
    return sorted(tensors, key=lambda tensor: order[tensor.ours])  # the parts of one weight of ours are consecutive


def _input_width(config: Any) -> int:
    """The width of the embeddings, where they are projected to that of the layers."""
    return getattr(config, "input_width", config.width)


def _tensors_of(layer: str, module: str, shape: tuple[int, ...], layout: Layout, old_norms: bool) -> list[Tensor]:
    """The rows of a weight map for one of our layers."""
    block, _, part = layer.rpartition("/")
    if layer == "mlm_bias":
        return [Tensor(f"{module}.bias", shape, (f"{layer}/bias",))]
    if layer.endswith("norm"):
        theirs = ("gamma", "beta") if old_norms else ("weight", "bias")
        return [
            Tensor(f"{module}.{name}", shape, (f"{layer}/{own}",))
            for own, name in zip(("gamma", "beta"), theirs, strict=True)
        ]
    if layer == "position_embedding":
        return [_positions(f"{module}.weight", shape, layout.unread_positions)]
    if layer in ("token_embedding", "segment_embedding", "type_embedding", "attention_bias"):
        own = "table" if layer == "attention_bias" else "embeddings"
        return [Tensor(f"{module}.weight", shape, (f"{layer}/{own}",))]
    kernel, bias = f"{layer}/kernel", f"{layer}/bias"
    columns = None
    if part in ("query", "key", "value"):  # one weight of ours
        first = ("query", "key", "value").index(part) * shape[1]
        kernel, bias, columns = f"{block}/qkv/kernel", f"{block}/qkv/bias", (first, first + shape[1])
    return [
        Tensor(f"{module}.weight", shape[::-1], (kernel,), columns=columns, **TRANSPOSED),
        Tensor(f"{module}.bias", shape[1:], (bias,), columns=columns),
    ]


def _positions(name: str, shape: tuple[int, ...], unread: int) -> Tensor:
    """The table of positions; its first rows, which no token has, are left out, and written as zeros."""
    tensor = Tensor(name, (shape[0] + unread, shape[1]), ("position_embedding/table",))
    if not unread:
        return tensor
    return tensor._replace(forth=lambda table: table[unread:], back=lambda table: np.pad(table, ((unread, 0), (0, 0))))
