"""KerasHub's BERT: presets and models.

https://github.com/keras-team/keras-hub, `models/bert/`.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_ctxrep.checks import first_line
from keras_ctxrep.convert import bert as common
from keras_ctxrep.convert import google
from keras_ctxrep.convert.options import Options
from keras_ctxrep.convert.weights import StoredTensor, Tensor, package
from keras_ctxrep.models import bert
from keras_ctxrep.text.bundle import Bundle

__all__ = ["read", "weight_map"]

TASK = "task.json"  # of a preset with a head
NAMES = {  # regular expressions in Google's names -> KerasHub's
    r"^bert/embeddings/word_embeddings$": "token_embedding/embeddings",
    r"^bert/embeddings/token_type_embeddings$": "segment_embedding/embeddings",
    r"^bert/embeddings/position_embeddings$": "position_embedding/embeddings",
    r"^bert/embeddings/LayerNorm/": "embeddings_layer_norm/",
    r"^bert/encoder/layer_": "transformer_layer_",
    r"/attention/self/": "/self_attention_layer/",
    r"/attention/output/dense/": "/self_attention_layer/attention_output/",
    r"/attention/output/LayerNorm/": "/self_attention_layer_norm/",
    r"/intermediate/dense/": "/feedforward_intermediate_dense/",
    r"/output/dense/": "/feedforward_output_dense/",
    r"/output/LayerNorm/": "/feedforward_layer_norm/",
    r"^bert/pooler/dense/": "pooled_dense/",
    r"^cls/predictions/transform/dense/": "mlm_head/intermediate_dense/",
    r"^cls/predictions/transform/LayerNorm/": "mlm_head/intermediate_layer_norm/",
    r"^cls/predictions/": "mlm_head/",
}


def read(source: Any, tokenizer: Any = None) -> tuple[keras.Model, Bundle]:
    """Converts a preset or a model of KerasHub; returns the model and its bundle.

    KerasHub computes the tanh approximation of gelu in the layers, whatever the weights were trained with, and the
    exact form in the head of a `BertMaskedLM`; there our logits differ by about 1e-3, and a warning says so.

    Args:
        source: a preset's folder; any other name that `from_preset` accepts, of which only the encoder is read; or a
            `BertBackbone`, `BertMaskedLM` or `BertTextClassifier`.
        tokenizer: a `BertTokenizer`, if the model has none.

    Raises:
        ValueError: not a BERT of KerasHub, no tokenizer, or weights that are not in the weight map.
        ImportError: `keras_hub` is not installed.

    >>> read(keras.Sequential())
    Traceback (most recent call last):
    ...
    ValueError: a Sequential: a BertBackbone, BertMaskedLM or BertTextClassifier is needed
    """
    hub = package("keras_hub", "hub").models
    where = f"the {type(source).__name__}"  # for messages
    if isinstance(source, str | Path):
        where = str(source)
        source, tokenizer = _preset(hub, where, tokenizer)
    kinds = {hub.BertBackbone: "BertModel", hub.BertMaskedLM: "BertForMaskedLM"}
    kinds[hub.BertTextClassifier] = "BertForSequenceClassification"
    name = next((name for kind, name in kinds.items() if isinstance(source, kind)), None)
    if name is None:
        raise ValueError(f"a {type(source).__name__}: a BertBackbone, BertMaskedLM or BertTextClassifier is needed")
    task, parts = common.ARCHITECTURES[name][:2]
    config = _config(getattr(source, "backbone", source), "pooler" in parts)
    fields = _preparation(source, tokenizer, config, where)
    if "classifier" in parts:
        if source.activation is not keras.activations.linear:
            activation = source.activation.__name__
            raise ValueError(f"{where}: its logits pass through {activation}; activation=None is needed")
        labels = tuple(f"LABEL_{index}" for index in range(source.num_classes))  # it does not name them
        fields |= {"labels": labels, "head": {"dropout": source.dropout}}
    stored = {weight.path: _stored_tensor(weight) for weight in source.weights}
    if "mlm" in parts:
        warnings.warn(f"{where}: its head computes the exact gelu, ours the approximation of its layers", stacklevel=2)
    ignored = common.unread_pooler(stored, "pooled_dense/", config, where)
    tensors = weight_map(config, name, len(fields.get("labels", ())))
    return common.load(where, stored, tensors, ignored, config, task, **fields)


def weight_map(config: bert.Config, architecture: str = "BertModel", classes: int = 2) -> list[Tensor]:
    """The weight map of a KerasHub model, by the paths of its weights: Google's, renamed.

    Args:
        config: sizes.
        architecture: "BertModel", "BertForMaskedLM" or "BertForSequenceClassification".
        classes: number of classes of a classifier.

    >>> weight_map(bert.Config(layers=1))[5].name
    'transformer_layer_0/self_attention_layer/query/kernel'
    """
    parts = common.ARCHITECTURES[architecture].parts
    classifier = common.dense("logits", config.width, classes, "logits") if "classifier" in parts else []
    return [_as_in_kerashub(tensor, config) for tensor in google.weight_map(config, parts)] + classifier


def _as_in_kerashub(tensor: Tensor, config: bert.Config) -> Tensor:
    """A row of Google's weight map with KerasHub's path; attention kernels have an axis of heads there."""
    name, shape, joined = tensor.name, tensor.shape, tensor.shape
    for pattern, kerashub_name in NAMES.items():
        name = re.sub(pattern, kerashub_name, name)
    heads = (config.heads, config.width // config.heads)
    if re.search(r"/(query|key|value)/", name):
        shape = (*joined[:-1], *heads)
    elif name.endswith("/attention_output/kernel"):
        shape = (*heads, config.width)
    if shape == joined:
        return tensor._replace(name=name)
    return tensor._replace(name=name, shape=shape, forth=lambda x: x.reshape(joined), back=lambda x: x.reshape(shape))


def _config(backbone: Any, pooler: bool) -> bert.Config:
    sizes = backbone.get_config()
    return bert.Config(
        vocabulary_size=sizes["vocabulary_size"],
        layers=sizes["num_layers"],
        width=sizes["hidden_dim"],
        heads=sizes["num_heads"],
        intermediate=sizes["intermediate_dim"],
        max_positions=sizes["max_sequence_length"],
        segments=sizes["num_segments"],
        dropout=sizes["dropout"],
        attention_dropout=sizes["dropout"],
        activation="gelu_tanh",
        pooler=pooler,
    )


def _preparation(source: Any, tokenizer: Any, config: bert.Config, where: str) -> dict[str, Any]:
    """The fields of the bundle for text preparation."""
    tokenizer = tokenizer or getattr(getattr(source, "preprocessor", None), "tokenizer", None)
    if tokenizer is None:
        raise ValueError(f"{where}: it has no vocabulary; give tokenizer=, a BertTokenizer")
    if not tokenizer.split or tokenizer.suffix_indicator != "##":
        settings = f"split={tokenizer.split} and {tokenizer.suffix_indicator!r}"
        raise ValueError(f"{where}: its tokenizer has {settings}; True, '##'")
    return {
        "vocab": common.vocabulary(tokenizer.get_vocabulary(), config.vocabulary_size, f"{where}, its vocabulary"),
        "lowercase": tokenizer.lowercase,
        "strip_accents": None if tokenizer.strip_accents == tokenizer.lowercase else tokenizer.strip_accents,
        "split_cjk": tokenizer.split_on_cjk,
    }


def _preset(hub: Any, source: str, tokenizer: Any) -> tuple[Any, Any]:
    """The model of a preset, with its head if the folder has one, and its tokenizer."""
    kind = hub.BertBackbone
    if (Path(source) / TASK).is_file():
        name = Options(Path(source) / TASK).get("class_name", str)
        if name not in ("BertMaskedLM", "BertTextClassifier"):
            raise ValueError(f"{source}: a {name}; a BertBackbone, BertMaskedLM or BertTextClassifier is needed")
        kind = getattr(hub, name)
    try:
        tokenizer = hub.BertTokenizer.from_preset(source) if tokenizer is None else tokenizer
        return kind.from_preset(source), tokenizer
    except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{source}: KerasHub can not load it: {first_line(error)}") from None


def _stored_tensor(weight: keras.Variable) -> StoredTensor:
    def values(index: Any) -> np.ndarray:
        return keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(weight))[index]

    return StoredTensor(tuple(weight.shape), str(weight.dtype), values)
