"""KerasHub's BERT, and its relatives there: presets and models.

https://github.com/keras-team/keras-hub, `models/bert/`, `distil_bert/`, `electra/` and `roberta/`.
"""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_ctxrep.atomic import atomic_folder
from keras_ctxrep.checks import first_line, of_kind
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

SIZES = {  # argument of all backbones -> field of our config
    "num_layers": "layers",
    "num_heads": "heads",
    "hidden_dim": "width",
    "intermediate_dim": "intermediate",
    "dropout": "dropout",
    "max_sequence_length": "max_positions",
}
PIECES, SEGMENTS = {"vocabulary_size": "vocabulary_size"}, {"num_segments": "segments"}


class _Family(NamedTuple):
    """What a family has of its own there."""

    classes: str  #: what the names of its classes begin with
    activation: str  #: of its layers
    sizes: Mapping[str, str]  #: argument of its backbone -> field of our config
    tables: str = ""  #: start of the paths of the tables of pieces and of positions
    pieces: str = "WordPiece"  #: its tokenizer


FAMILIES_THERE = {
    "bert": _Family("Bert", "gelu_tanh", SIZES | PIECES | SEGMENTS),
    "distilbert": _Family("DistilBert", "gelu", SIZES | PIECES, "token_and_position_embedding/"),
    "electra": _Family(
        "Electra", "gelu_tanh", SIZES | SEGMENTS | {"vocab_size": "vocabulary_size", "embedding_dim": "input_width"}
    ),
    "roberta": _Family("Roberta", "gelu", SIZES | PIECES, "embeddings/", "bpe"),
}
_ENDINGS = {  # of a class of KerasHub -> of that of `transformers`
    "Backbone": "Model",
    "TextEmbedder": "Model",
    "MaskedLM": "ForMaskedLM",
    "TextClassifier": "ForSequenceClassification",
}
KINDS = {  # class of KerasHub -> family, class of `transformers`
    f"{family.classes}{theirs}": (name, f"{of_kind(FAMILIES[name].layout, Layout).classes}{ending}")
    for name, family in FAMILIES_THERE.items()
    for theirs, ending in _ENDINGS.items()
}
NEEDED = "a Backbone, TextEmbedder, MaskedLM or TextClassifier of Bert, DistilBert, Electra or Roberta is needed"
POOLER, TYPES = "pooled_dense/", "type_embedding/embeddings"  # start of the paths of its weights; no table there
TASK = "task.json"  # of a preset with a head
FOREIGN = ("model.safetensors", "pytorch_model.bin", "modules.json")  # whose config.json would be replaced
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

    >>> read(None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: a NoneType: a Backbone, TextEmbedder, MaskedLM or TextClassifier of Bert, ... is needed
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
    fields: dict[str, Any] = {"family": family} | _preparation(source, tokenizer, config, where, family)
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
    if hasattr(config, "token_types"):  # where it is part of the table of positions
        table = np.zeros((config.token_types, config.width), np.float32)
        stored[TYPES] = StoredTensor(table.shape, "float32", table.__getitem__)
    return common.load(where, stored, tensors, ignored, config, task, **fields)


def write(folder: str | Path, model: keras.Model, bundle: Bundle) -> None:
    """Writes a preset of KerasHub, which `from_preset` opens: of an encoder a `BertTextEmbedder` that pools as it does.

    An encoder whose pooler makes the vector is a `BertBackbone`, as are those of the other families. A classifier
    is a `BertTextClassifier`, a pretraining model a `BertMaskedLM`, without its next-sentence prediction. KerasHub has
    no names of labels, a pooler in all models of a family or in none, zero where the model has none, and one form of
    gelu; warnings say what differs, with the largest difference of the top layer on random pieces.

    Args:
        folder: the folder to write.
        model: a BERT, DistilBERT, ELECTRA or RoBERTa: an encoder, a classifier of texts, or a pretraining model.
        bundle: of the model.

    Raises:
        ValueError: another family, a task that KerasHub has no such model for, or a folder with files of another
            format.
        ImportError: `keras_hub` is not installed.
    """
    hub = package("keras_hub", "hub").models
    name = common.architecture_to_write(bundle, families=FAMILIES_THERE)
    own = FAMILIES_THERE[bundle.family]
    kinds = {theirs: there for there, (family, theirs) in KINDS.items() if hasattr(hub, there)}
    kinds |= {"BertForNextSentencePrediction": "BertTextClassifier", "BertForPreTraining": "BertMaskedLM"}
    if name not in kinds:
        raise ValueError(
            f"KerasHub has no {own.classes} for the task {bundle.task!r}; save the encoder, "
            "load(FOLDER).encoder.save(OUT), and convert OUT"
        )
    if (kind := bundle.subwords.kind if bundle.tokenizer else "WordPiece") != own.pieces:
        raise ValueError(f"a model over pieces of {kind}: KerasHub's {own.classes} reads {own.pieces}")
    model, bundle = common.multiplied_out(model, bundle)
    pooler = any(layer.name == "pooler" for layer in model.layers)
    config = replace(FAMILIES[bundle.family].config(**bundle.config), pooler=pooler)
    if config.activation == "relu":
        raise ValueError(f"activation='relu': KerasHub's {own.classes} computes gelu")
    if foreign := [file for file in FOREIGN if (Path(folder) / file).exists()]:
        raise ValueError(f"{folder}: it has {', '.join(foreign)} of another model; write to an empty folder")
    backbone = getattr(hub, f"{own.classes}Backbone")(
        **{theirs: getattr(config, ours) for theirs, ours in own.sizes.items()}
    )
    theirs = _with_head(hub, kinds[name], backbone, bundle)
    weights = {weight.path: weight for part in (backbone, theirs) for weight in part.weights}
    there = f"{POOLER}kernel" in weights
    masked, classifier = (kinds[name].endswith(kind) for kind in ("MaskedLM", "TextClassifier"))
    has = {"pooler": pooler and there, "mlm": masked, "classifier": classifier}
    parts = [part for part, has_part in has.items() if has_part]
    for path, array in arrays(model, _tensors(config, parts, len(bundle.labels) or 1, bundle.family)):
        if path == TYPES:  # which every token has
            table = weights[f"{own.tables}position_embedding/embeddings"]
            table.assign(table + array[0])
        else:
            weights[path].assign(array)
    if there and not pooler:
        for own_name in ("kernel", "bias"):
            weights[f"{POOLER}{own_name}"].assign(np.zeros(weights[f"{POOLER}{own_name}"].shape))
    with atomic_folder(folder) as new:
        for part in (theirs,) if theirs is not backbone else (backbone, _tokenizer(hub, own, bundle)):
            part.save_to_preset(str(new))
    lost = [f"the names of its classes: {', '.join(bundle.labels)}"] if bundle.labels else []
    lost += [f"that only the first {bundle.dims} numbers of a vector count"] if bundle.dims else []
    lost += ["next-sentence prediction"] if name == "BertForPreTraining" else []
    if pooler != there and not masked:
        lost.append("the pooler" if pooler else "the pooler, of which the model has none: pooled_output is 0")
    if lost:
        common.warn_left_out(folder, "; ".join(lost))
    if (difference := _difference(model, backbone, bundle.family, config)) > 1e-5:
        form = "tanh" if own.activation == "gelu_tanh" else "exact"
        why = "epsilon of layer norms" if config.activation == own.activation else f"{form} form of gelu"
        warnings.warn(f"{folder}: KerasHub's top layer differs by up to {difference:.1e}, for its {why}", stacklevel=2)


def _tokenizer(hub: Any, own: _Family, bundle: Bundle) -> Any:
    kind = getattr(hub, f"{own.classes}Tokenizer")
    if bundle.tokenizer:
        merged = [" ".join(pair) for pair in bundle.subwords.merges]
        return kind({piece: number for number, piece in enumerate(bundle.vocab)}, merged)
    return kind(
        list(bundle.vocab),
        lowercase=bundle.lowercase,
        strip_accents=bundle.lowercase if bundle.strip_accents is None else bundle.strip_accents,
        split_on_cjk=bundle.split_cjk,
    )


def _with_head(hub: Any, kind: str, backbone: Any, bundle: Bundle) -> Any:
    """The model of KerasHub over an encoder, with its preprocessor; the encoder itself where there is none."""
    embedder = kind.replace("Backbone", "TextEmbedder")
    if bundle.pooling != "pooler" and hasattr(hub, embedder):
        kind = embedder
    if kind.endswith("Backbone"):
        return backbone
    tokenizer = _tokenizer(hub, FAMILIES_THERE[bundle.family], bundle)
    preprocessor = getattr(hub, f"{kind}Preprocessor")(tokenizer, sequence_length=bundle.max_length)
    more: dict[str, Any] = {}
    if kind.endswith("TextClassifier"):
        more = {"num_classes": len(bundle.labels) or 1, "dropout": bundle.head.get("dropout", 0.1)}
    elif kind.endswith("TextEmbedder"):
        more = {"pooling_mode": bundle.pooling, "normalize": bundle.normalize}
    return getattr(hub, kind)(backbone, preprocessor=preprocessor, **more)


def _difference(model: keras.Model, backbone: Any, family: str, config: Config) -> float:
    """The largest difference of the top layers on random pieces."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, config.vocabulary_size, (2, min(64, config.max_positions))).astype(np.int32)
    ours = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "mask": np.ones_like(ids)}
    output = backbone.output["sequence_output"] if isinstance(backbone.output, dict) else backbone.output
    theirs = keras.Model(backbone.input, output)(
        {name: ours["mask" if name == "padding_mask" else name] for name in backbone.input}
    )
    encoder = encoder_of(model, family, vars(config))
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
    layout = of_kind(FAMILIES[family].layout, Layout)
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
    if shape == joined:
        return tensor
    return tensor._replace(forth=lambda x: x.reshape(joined), back=lambda x: x.reshape(shape))


def _config(backbone: Any, family: str, pooler: bool) -> Any:
    own, theirs = FAMILIES_THERE[family], backbone.get_config()
    sizes = {ours: theirs[name] for name, ours in own.sizes.items()}
    more = {"attention_dropout": sizes["dropout"], "activation": own.activation, "pooler": pooler}
    return FAMILIES[family].config(**sizes, **more)


def _preparation(source: Any, tokenizer: Any, config: Config, where: str, family: str) -> dict[str, Any]:
    """The fields of the bundle for text preparation."""
    tokenizer = tokenizer or getattr(getattr(source, "preprocessor", None), "tokenizer", None)
    if tokenizer is None:
        needed = f"{FAMILIES_THERE[family].classes}Tokenizer"
        raise ValueError(f"{where}: it has no vocabulary; give tokenizer=, a {needed}")
    if hasattr(tokenizer, "merges"):
        subwords = merges(tokenizer.vocabulary, "\n".join(tokenizer.merges), where, ROBERTA_TOKENS.pieces)
        return common.subword_fields(subwords, ROBERTA_TOKENS, config.vocabulary_size, where)
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
