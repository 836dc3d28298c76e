"""KerasHub's BERT, and its relatives there: presets and models.

https://github.com/keras-team/keras-hub, `models/bert/`, `distil_bert/`, `electra/` and `roberta/`.
"""

import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_ctxrep.atomic import atomic_folder
from keras_ctxrep.checks import first_line
from keras_ctxrep.convert import bert as common
from keras_ctxrep.convert import layouts
from keras_ctxrep.convert.options import SourceOptions
from keras_ctxrep.convert.subword_files import merges
from keras_ctxrep.convert.weights import StoredTensor, Tensor, arrays, package
from keras_ctxrep.models import bert
from keras_ctxrep.models.families import FAMILIES, encoder_of
from keras_ctxrep.models.transformer import Config, Layout
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.subwords import ROBERTA_TOKENS

__all__ = ["read", "weight_map", "write"]


class _Family(NamedTuple):
    """What a family has of its own there."""

    classes: str  #: what the names of its classes begin with
    activation: str  #: of its layers
    tables: str = ""  #: start of the paths of the tables of pieces and of positions


FAMILIES_THERE = {
    "bert": _Family("Bert", "gelu_tanh"),
    "distilbert": _Family("DistilBert", "gelu", "token_and_position_embedding/"),
    "electra": _Family("Electra", "gelu_tanh"),
    "roberta": _Family("Roberta", "gelu", "embeddings/"),
}
_ENDINGS = {  # of a class of KerasHub -> of that of `transformers`
    "Backbone": "Model",
    "TextEmbedder": "Model",
    "MaskedLM": "ForMaskedLM",
    "TextClassifier": "ForSequenceClassification",
}
KINDS = {  # class of KerasHub -> family, class of `transformers`
    f"{family.classes}{theirs}": (name, f"{FAMILIES[name].layout.classes}{ending}")
    for name, family in FAMILIES_THERE.items()
    for theirs, ending in _ENDINGS.items()
}
SIZES = {  # argument of a `BertBackbone` -> field of `bert.Config`
    "vocabulary_size": "vocabulary_size",
    "num_layers": "layers",
    "num_heads": "heads",
    "hidden_dim": "width",
    "intermediate_dim": "intermediate",
    "dropout": "dropout",
    "max_sequence_length": "max_positions",
    "num_segments": "segments",
}
NEEDED = "a Backbone, TextEmbedder, MaskedLM or TextClassifier of Bert, DistilBert, Electra or Roberta"
POOLER = "pooled_dense/"  # start of the paths of its weights
TASK = "task.json"  # of a preset with a head
FOREIGN = ("model.safetensors", "pytorch_model.bin", "modules.json")  # whose config.json would be replaced
_CLASSIFIERS = ("BertForSequenceClassification", "BertForNextSentencePrediction")
_MASKED = ("BertForMaskedLM", "BertForPreTraining")
NAMES = {  # our layer -> theirs
    "token_embedding": "token_embedding",
    "segment_embedding": "segment_embedding",
    "position_embedding": "position_embedding",
    "type_embedding": "type_embedding",
    "embedding_norm": "embeddings_layer_norm",
    "embedding_projection": "embeddings_projection",
    "layer_{}/query": "transformer_layer_{}/self_attention_layer/query",
    "layer_{}/key": "transformer_layer_{}/self_attention_layer/key",
    "layer_{}/value": "transformer_layer_{}/self_attention_layer/value",
    "layer_{}/attention_output": "transformer_layer_{}/self_attention_layer/attention_output",
    "layer_{}/attention_norm": "transformer_layer_{}/self_attention_layer_norm",
    "layer_{}/feed_forward": "transformer_layer_{}/feedforward_intermediate_dense",
    "layer_{}/feed_forward_output": "transformer_layer_{}/feedforward_output_dense",
    "layer_{}/feed_forward_norm": "transformer_layer_{}/feedforward_layer_norm",
    "pooler": "pooled_dense",
    "mlm_transform": "mlm_head/intermediate_dense",
    "mlm_norm": "mlm_head/intermediate_layer_norm",
    "mlm_bias": "mlm_head/output",
    "logits": "logits",
}


def read(source: Any, tokenizer: Any = None) -> tuple[keras.Model, Bundle]:
    """Converts a preset or a model of KerasHub; returns the model and its bundle.

    KerasHub's BERT computes the tanh approximation of gelu in the layers, whatever the weights were trained with, and
    the exact form in the head of a `BertMaskedLM`; there our logits differ by about 1e-3, and a warning says so.

    Args:
        source: a preset's folder; any other name that `from_preset` accepts, of which only the encoder is read; or a
            model: `BertBackbone`, `BertTextEmbedder`, `BertMaskedLM`, `BertTextClassifier`, and those that DistilBERT,
            ELECTRA and RoBERTa have of these.
        tokenizer: a `BertTokenizer` or that of the family, if the model has none.

    Raises:
        ValueError: no such model of KerasHub, no tokenizer, or weights that are not in the weight map.
        ImportError: `keras_hub` is not installed.

    >>> read(None)
    Traceback (most recent call last):
    ...
    ValueError: a NoneType: a Backbone, TextEmbedder, MaskedLM or TextClassifier of Bert, DistilBert, Electra or Roberta
    """
    hub = package("keras_hub", "hub").models
    where = f"the {type(source).__name__}"  # for messages
    if isinstance(source, str | Path):
        where = str(source)
        source, tokenizer = _preset(hub, where, tokenizer)
    known = [kind.__name__ for kind in type(source).__mro__ if kind.__name__ in KINDS]
    if not known or type(source).__name__.startswith("XLM"):  # XLM-R's is a kind of RoBERTa's
        raise ValueError(f"a {type(source).__name__}: {NEEDED}")
    family, name = KINDS[known[0]]
    stored = {weight.path: _stored_tensor(weight) for weight in source.weights}
    task, parts = common.architectures(FAMILIES[family])[name][:2]
    config = _config(getattr(source, "backbone", source), family, "pooler" in parts and f"{POOLER}kernel" in stored)
    fields = {"family": family} | _preparation(source, tokenizer, config, where, family)
    if "classifier" in parts:
        if source.activation is not keras.activations.linear:
            activation = source.activation.__name__
            raise ValueError(f"{where}: its logits pass through {activation}; activation=None is needed")
        labels = tuple(f"LABEL_{index}" for index in range(source.num_classes))  # it does not name them
        fields |= {"labels": labels, "head": {"dropout": source.dropout}}
    if hasattr(source, "pooling_mode"):
        fields |= {"pooling": source.pooling_mode, "normalize": source.normalize}
    if "mlm" in parts and config.activation == "gelu_tanh":
        warnings.warn(f"{where}: its head computes the exact gelu, ours the approximation of its layers", stacklevel=2)
    ignored = common.unread_pooler(stored, POOLER, config, where)
    tensors = _tensors(config, parts, len(fields.get("labels", ())), family)
    if family == "roberta":  # where it is part of the table of positions
        table = np.zeros((config.token_types, config.width), np.float32)
        stored["type_embedding/embeddings"] = StoredTensor(table.shape, "float32", table.__getitem__)
    return common.load(where, stored, tensors, ignored, config, task, **fields)


def write(folder: str | Path, model: keras.Model, bundle: Bundle) -> None:
    """Writes a preset of KerasHub, which `from_preset` opens: of an encoder a `BertTextEmbedder` that pools as it does.

    An encoder whose pooler makes the vector is a `BertBackbone`. A classifier
    is a `BertTextClassifier`, a pretraining model a `BertMaskedLM`, without its next-sentence prediction. KerasHub has
    no names of labels, always a pooler, zero where the model has none, and one form of gelu; warnings say what differs,
    with the largest difference of the top layer on random pieces.

    Args:
        folder: the folder to write.
        model: a BERT: an encoder, a classifier of texts, or a pretraining model.
        bundle: of the model.

    Raises:
        ValueError: not a BERT, a task that KerasHub has no BERT for, or a folder with files of another format.
        ImportError: `keras_hub` is not installed.
    """
    hub = package("keras_hub", "hub").models
    name = common.architecture_to_write(bundle)
    if name not in ("BertModel", *_CLASSIFIERS, *_MASKED):
        raise ValueError(
            f"KerasHub has no BERT for the task {bundle.task!r}; save the encoder, load(FOLDER).encoder.save(OUT), and "
            "convert OUT"
        )
    model, bundle = common.multiplied_out(model, bundle)
    pooler = any(layer.name == "pooler" for layer in model.layers)
    config = replace(bert.Config(**bundle.config), pooler=pooler)
    if config.activation == "relu":
        raise ValueError("activation='relu': KerasHub's BERT computes gelu")
    if foreign := [file for file in FOREIGN if (Path(folder) / file).exists()]:
        raise ValueError(f"{folder}: it has {', '.join(foreign)} of another model; write to an empty folder")
    backbone = hub.BertBackbone(**{theirs: getattr(config, ours) for theirs, ours in SIZES.items()})
    tokenizer = hub.BertTokenizer(
        list(bundle.vocab),
        lowercase=bundle.lowercase,
        strip_accents=bundle.lowercase if bundle.strip_accents is None else bundle.strip_accents,
        split_on_cjk=bundle.split_cjk,
    )
    theirs = _with_head(hub, name, backbone, tokenizer, bundle)
    weights = {weight.path: weight for part in (backbone, theirs) for weight in part.weights}
    has = {"pooler": pooler, "mlm": name in _MASKED, "classifier": name in _CLASSIFIERS}
    parts = [part for part, there in has.items() if there]
    for path, array in arrays(model, _tensors(config, parts, len(bundle.labels) or 1)):
        weights[path].assign(array)
    for path in ("pooled_dense/kernel", "pooled_dense/bias"):
        if not pooler:
            weights[path].assign(np.zeros(weights[path].shape))
    with atomic_folder(folder) as new:
        for part in (theirs,) if theirs is not backbone else (backbone, tokenizer):
            part.save_to_preset(str(new))
    lost = [f"the names of its classes: {', '.join(bundle.labels)}"] if bundle.labels else []
    lost += [f"that only the first {bundle.dims} numbers of a vector count"] if bundle.dims else []
    lost += ["next-sentence prediction"] if name == "BertForPreTraining" else []
    lost += [] if pooler or name in _MASKED else ["the pooler, of which the model has none: pooled_output is 0"]
    if lost:
        common.warn_left_out(folder, "; ".join(lost))
    if (difference := _difference(model, backbone, config)) > 1e-5:
        why = "tanh form of gelu" if config.activation == "gelu" else "epsilon of layer norms"
        warnings.warn(f"{folder}: KerasHub's top layer differs by up to {difference:.1e}, for its {why}", stacklevel=2)


def _with_head(hub: Any, name: str, backbone: Any, tokenizer: Any, bundle: Bundle) -> Any:
    """The model of KerasHub over an encoder, with its preprocessor; the encoder itself where there is none."""
    prepare = {"tokenizer": tokenizer, "sequence_length": bundle.max_length}
    if name in _CLASSIFIERS:
        dropout = bundle.head.get("dropout", 0.1)
        preprocessor = hub.BertTextClassifierPreprocessor(**prepare)
        return hub.BertTextClassifier(backbone, len(bundle.labels) or 1, preprocessor, dropout=dropout)
    if name in _MASKED:
        return hub.BertMaskedLM(backbone, hub.BertMaskedLMPreprocessor(**prepare))
    if bundle.pooling == "pooler":
        return backbone
    pooling = {"pooling_mode": bundle.pooling, "normalize": bundle.normalize}
    return hub.BertTextEmbedder(backbone, hub.BertTextEmbedderPreprocessor(**prepare), **pooling)


def _difference(model: keras.Model, backbone: Any, config: bert.Config) -> float:
    """The largest difference of the top layers on random pieces."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, config.vocabulary_size, (2, min(64, config.max_positions))).astype(np.int32)
    ours = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "mask": np.ones_like(ids)}
    top = keras.Model(backbone.input, backbone.output["sequence_output"])
    theirs = top({"padding_mask" if name == "mask" else name: array for name, array in ours.items()})
    encoder = encoder_of(model, "bert", vars(config))
    return float(np.abs(keras.ops.convert_to_numpy(encoder(ours)["sequence"]) - np.asarray(theirs)).max())


def weight_map(config: bert.Config, architecture: str = "BertModel", classes: int = 2) -> list[Tensor]:
    """The weight map of a KerasHub model of BERT, by the paths of its weights.

    Args:
        config: sizes.
        architecture: "BertModel", "BertForMaskedLM" or "BertForSequenceClassification".
        classes: number of classes of a classifier.

    >>> weight_map(bert.Config(layers=1))[5].name
    'transformer_layer_0/self_attention_layer/query/kernel'
    """
    return _tensors(config, common.ARCHITECTURES[architecture].parts, classes)


def _tensors(config: Config, parts: Collection[str], classes: int, family: str = "bert") -> list[Tensor]:
    tables = FAMILIES_THERE[family].tables
    layout: Layout = FAMILIES[family].layout
    names = {ours: NAMES[ours] for ours in layout.names | layout.classifier if ours in NAMES}
    names |= {ours: f"{tables}{names[ours]}" for ours in ("token_embedding", "position_embedding")}
    heads = [layer for part in parts if part != "pooler" or config.pooler for layer in common.LAYERS[part]]
    layout = replace(layout, names=names, unread_positions=0)
    return [_as_in_kerashub(tensor, config) for tensor in layouts.weight_map(config, layout, heads, classes, "", True)]


def _as_in_kerashub(tensor: Tensor, config: Config) -> Tensor:
    """A row of a weight map whose dense kernels are not transposed; those of attention have an axis of heads."""
    module, _, own = tensor.name.rpartition(".")
    kernel = own == "weight" and tensor.forth is np.transpose
    name = f"{module}/{'kernel' if kernel else 'embeddings' if own == 'weight' else own}"
    joined = shape = tensor.shape[::-1] if kernel else tensor.shape
    heads = (config.heads, config.width // config.heads)
    if module.endswith(("/query", "/key", "/value")):
        shape = (*joined[:-1], *heads)
    elif name.endswith("/attention_output/kernel"):
        shape = (*heads, config.width)
    tensor = tensor._replace(name=name.replace("/output/bias", "/output_bias"), shape=shape, forth=None, back=None)
    return (
        tensor
        if shape == joined
        else tensor._replace(forth=lambda x: x.reshape(joined), back=lambda x: x.reshape(shape))
    )


def _config(backbone: Any, family: str, pooler: bool) -> Any:
    theirs = backbone.get_config()
    names = SIZES | {"vocab_size": "vocabulary_size", "embedding_dim": "input_width"}  # ELECTRA's
    sizes = {own: theirs[name] for name, own in names.items() if name in theirs}
    own = {"attention_dropout": sizes["dropout"], "activation": FAMILIES_THERE[family].activation, "pooler": pooler}
    return FAMILIES[family].config(**sizes, **own)


def _preparation(source: Any, tokenizer: Any, config: Config, where: str, family: str) -> dict[str, Any]:
    """The fields of the bundle for text preparation."""
    tokenizer = tokenizer or getattr(getattr(source, "preprocessor", None), "tokenizer", None)
    if tokenizer is None:
        needed = f"{FAMILIES_THERE[family].classes}Tokenizer"
        raise ValueError(f"{where}: it has no vocabulary; give tokenizer=, a {needed}")
    if hasattr(tokenizer, "merges"):
        special = ROBERTA_TOKENS
        subwords = merges(tokenizer.vocabulary, "\n".join(tokenizer.merges), where, special.pieces)
        if missing := [piece for piece in special.pieces if piece not in subwords.pieces]:
            raise ValueError(f"{where}: its tokenizer has no piece {', '.join(missing)}, of the special tokens")
        if (count := len(subwords.pieces)) != config.vocabulary_size:
            raise ValueError(
                f"{where}: its tokenizer has {count:,} pieces, and {config.vocabulary_size:,} have a vector"
            )
        return {
            "vocab": subwords.pieces,
            "tokenizer": subwords.to_json(),
            "lowercase": False,
            "special_tokens": special,
        }
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
    kind = hub.Backbone
    if (Path(source) / TASK).is_file():
        name = SourceOptions(Path(source) / TASK).get("class_name", str)
        if name not in KINDS:
            raise ValueError(f"{source}: a {name}; {NEEDED}")
        kind = getattr(hub, name)
    try:
        tokenizer = hub.Tokenizer.from_preset(source) if tokenizer is None else tokenizer
        return kind.from_preset(source), tokenizer
    except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{source}: KerasHub can not load it: {first_line(error)}") from None


def _stored_tensor(weight: keras.Variable) -> StoredTensor:
    def values(index: Any) -> np.ndarray:
        return keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(weight))[index]

    return StoredTensor(tuple(weight.shape), str(weight.dtype), values)
