"""KerasHub's BERT: presets and models.

https://github.com/keras-team/keras-hub, `models/bert/`.
"""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_ctxrep.convert import bert as common
from keras_ctxrep.convert.options import Options
from keras_ctxrep.convert.weights import Stored, Tensor, check, fill, first_line, package
from keras_ctxrep.models import bert
from keras_ctxrep.text.bundle import Bundle

TASK = "task.json"  # of a preset with a head


def read(source: Any, tokenizer: Any = None) -> tuple[keras.Model, Bundle]:
    """The model of a preset, or of a model of KerasHub's, and its bundle.

    KerasHub computes the tanh approximation of gelu in the layers, whatever the weights were trained with, so the
    config says "gelu_tanh". In the head of a `BertMaskedLM` it computes the exact form, which our model does not: a
    warning says so, and the logits differ by some 1e-3.

    Args:
        source: a preset's folder; any other name of one that `from_preset` knows, whose encoder is read; or a
            `BertBackbone`, `BertMaskedLM` or `BertTextClassifier`.
        tokenizer: a `BertTokenizer`, where the model has none.

    Raises:
        ValueError: no BERT of KerasHub's, a model without a tokenizer, or weights that the table does not know.
        ImportError: `keras_hub` is not installed.

    >>> read(keras.Sequential())
    Traceback (most recent call last):
    ...
    ValueError: a Sequential: a BertBackbone, BertMaskedLM or BertTextClassifier is needed
    """
    hub = package("keras_hub", "hub").models
    place = str(source) if isinstance(source, str | Path) else f"the {type(source).__name__}"
    if isinstance(source, str | Path):
        source, tokenizer = _preset(hub, str(source), tokenizer)
    kinds = {
        hub.BertBackbone: "BertModel",
        hub.BertMaskedLM: "BertForMaskedLM",
        hub.BertTextClassifier: "BertForSequenceClassification",
    }
    name = next((name for kind, name in kinds.items() if isinstance(source, kind)), None)
    if name is None:
        raise ValueError(f"a {type(source).__name__}: a BertBackbone, BertMaskedLM or BertTextClassifier is needed")
    backbone = source if name == "BertModel" else source.backbone
    if tokenizer is None:
        tokenizer = getattr(getattr(source, "preprocessor", None), "tokenizer", None)
    if tokenizer is None:
        raise ValueError(f"{place}: it has no vocabulary; give tokenizer=, a BertTokenizer")
    if not tokenizer.split or tokenizer.suffix_indicator != "##":
        raise ValueError(
            f"{place}: its tokenizer has split={tokenizer.split} and {tokenizer.suffix_indicator!r}; True, '##'"
        )
    task, parts = common.ARCHITECTURES[name]
    sizes = backbone.get_config()
    config = bert.Config(
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
        pooler="pooler" in parts,
    )
    labels: tuple[str, ...] = ()
    head: dict[str, Any] = {}
    if task == "classify":
        if source.activation is not keras.activations.linear:
            raise ValueError(
                f"{place}: its logits pass through {source.activation.__name__}; activation=None is needed"
            )
        labels = tuple(f"LABEL_{index}" for index in range(source.num_classes))  # it does not name them
        head = {"dropout": source.dropout}
    found = {weight.path: _stored(weight) for weight in source.weights}
    known: set[str] = set()
    if task == "pretrainer":
        known = {path for path in found if path.startswith("pooled_dense/")}
        common.left_out(place, "the pooler, which no head reads")
        warnings.warn(f"{place}: its head computes the exact gelu, ours the approximation of its layers", stacklevel=2)
    tensors = table(config, name, len(labels))
    check(tensors, found, place, known, common.KINDS)
    vocab = common.vocabulary(tokenizer.get_vocabulary(), config.vocabulary_size, f"{place}, its vocabulary")
    model = common.build(config, task, len(labels), **head)
    fill(model, tensors, found, place)
    return model, Bundle(
        "bert",
        config=asdict(config),
        max_length=config.max_positions,
        labels=labels,
        vocab=vocab,
        lowercase=tokenizer.lowercase,
        strip_accents=None if tokenizer.strip_accents == tokenizer.lowercase else tokenizer.strip_accents,
        split_cjk=tokenizer.split_on_cjk,
        head=head,
        **common.bundle_fields(task),
    )


def table(config: bert.Config, architecture: str = "BertModel", classes: int = 2) -> list[Tensor]:
    """The weights of a model of KerasHub's by their paths, and the weights of ours that each is.

    Args:
        config: sizes.
        architecture: "BertModel", "BertForMaskedLM" or "BertForSequenceClassification".
        classes: of a classifier.

    >>> table(bert.Config(layers=1))[5].name
    'transformer_layer_0/self_attention_layer/query/kernel'
    """
    width, heads, found = config.width, config.heads, common.Rows()

    def by_head(name: str, there: tuple[int, ...], here: tuple[int, ...], ours: str, **how) -> None:
        found.add(name, there, ours, forth=lambda x: x.reshape(here), back=lambda x: x.reshape(there), **how)

    found.add("token_embedding/embeddings", (config.vocabulary_size, width), "token_embedding/embeddings")
    found.add("position_embedding/embeddings", (config.max_positions, width), "position_embedding/table")
    found.add("segment_embedding/embeddings", (config.segments, width), "segment_embedding/embeddings")
    found.norm("embeddings_layer_norm", "embedding_norm", width)
    for index in range(config.layers):
        there, here = f"transformer_layer_{index}", f"layer_{index}"
        attention, split = f"{there}/self_attention_layer", (heads, width // heads)
        for kind, before in (("kernel", (width,)), ("bias", ())):
            for number, part in enumerate(("query", "key", "value")):
                columns = (number * width, (number + 1) * width)
                name, whole = f"{attention}/{part}/{kind}", (*before, width)
                by_head(name, (*before, *split), whole, f"{here}/qkv/{kind}", columns=columns)
        output, joined = f"{attention}/attention_output", (width, width)
        by_head(f"{output}/kernel", (*split, width), joined, f"{here}/attention_output/kernel")
        found.add(f"{output}/bias", (width,), f"{here}/attention_output/bias")
        found.norm(f"{there}/self_attention_layer_norm", f"{here}/attention_norm", width)
        found.dense(f"{there}/feedforward_intermediate_dense", width, config.intermediate, f"{here}/feed_forward")
        found.dense(f"{there}/feedforward_output_dense", config.intermediate, width, f"{here}/feed_forward_output")
        found.norm(f"{there}/feedforward_layer_norm", f"{here}/feed_forward_norm", width)
    if architecture == "BertForMaskedLM":
        found.dense("mlm_head/intermediate_dense", width, width, "mlm_transform")
        found.norm("mlm_head/intermediate_layer_norm", "mlm_norm", width)
        found.add("mlm_head/output_bias", (config.vocabulary_size,), "mlm_bias/bias")
    else:
        found.dense("pooled_dense", width, width, "pooler")
    if architecture == "BertForSequenceClassification":
        found.dense("logits", width, classes, "logits")
    return found


def _preset(hub: Any, source: str, tokenizer: Any) -> tuple[Any, Any]:
    """The model of a preset, with its head where the folder has one, and its tokenizer."""
    kind = hub.BertBackbone
    if (Path(source) / TASK).is_file():
        named = Options(Path(source) / TASK).get("class_name", str)
        if named not in ("BertMaskedLM", "BertTextClassifier"):
            raise ValueError(f"{source}: a {named}; a BertBackbone, BertMaskedLM or BertTextClassifier is needed")
        kind = getattr(hub, named)
    try:
        tokenizer = hub.BertTokenizer.from_preset(source) if tokenizer is None else tokenizer
        return kind.from_preset(source), tokenizer
    except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{source}: KerasHub can not load it: {first_line(error)}") from None


def _stored(weight: keras.Variable) -> Stored:
    def values(index: Any) -> np.ndarray:
        return keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(weight))[index]

    return Stored(tuple(weight.shape), str(weight.dtype), values)
