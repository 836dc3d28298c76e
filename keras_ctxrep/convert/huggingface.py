"""Hugging Face folders of BERT and its relatives: config.json, model.safetensors and the tokenizer's files.

https://github.com/huggingface/transformers, `models/*/modeling_*.py`, see the `Layout` of each family;
https://github.com/huggingface/safetensors for the format of the weights.
"""

import importlib.util
import json
import re
import struct
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from keras_ctxrep.atomic import atomic_folder
from keras_ctxrep.checks import check_value, first_line, of_kind, printable, read_json, regular, warn
from keras_ctxrep.convert import bert as common
from keras_ctxrep.convert import gpt2, layouts, subword_files
from keras_ctxrep.convert.bert import ARCHITECTURES, PARTS, Architecture
from keras_ctxrep.convert.options import SourceOptions
from keras_ctxrep.convert.weights import StoredTensor, Tensor, arrays, listed, package
from keras_ctxrep.models.families import FAMILIES, Family
from keras_ctxrep.models.transformer import Config, Layout
from keras_ctxrep.text.artifacts import TOKENIZER, VOCAB
from keras_ctxrep.text.bundle import Bundle, complete_roles
from keras_ctxrep.text.subwords import ROBERTA_TOKENS, Subwords, parse
from keras_ctxrep.text.tokens import SpecialTokens, read_vocab, vocab_text

__all__ = ["read", "weight_map", "write"]

OPTIONS, TOKENIZER_OPTIONS = "config.json", "tokenizer_config.json"
WEIGHTS, PICKLED = "model.safetensors", "pytorch_model.bin"
POSITIONS = "embeddings.position_ids"  # a buffer, not a weight
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64", "I64": "int64"}
TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # beside the one that the family has
ADDED = "added_tokens.json"
SENTENCEPIECE = ("sentencepiece.bpe.model", "spiece.model", "sentencepiece.model", "tokenizer.model")
BPE = ("vocab.json", "merges.txt")
MODULES, MODULE_OPTIONS = "modules.json", "sentence_bert_config.json"  # of sentence-transformers
README = "README.md"
PIPELINES = {  # task -> the Hub's name of what its models do
    "pretrainer": "fill-mask",
    "classify": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
}
SENTENCE_OPTIONS = "config_sentence_transformers.json"  # of sentence-transformers: roles, and cut vectors
# how a text is pooled -> the option of sentence-transformers
POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}
POOLING_MODE = re.compile(r"pooling_mode_(\w+?)(?:_tokens?)?")  # an option of a Pooling module
SUBWORD_TOKENIZERS = [f"{name}Tokenizer{fast}" for name in ("XLMRoberta", "Roberta", "GPT2") for fast in ("", "Fast")]
PROBLEMS = ARCHITECTURES["BertForSequenceClassification"].problems
PAIRS = "ctxrep_pairs"  # our own key in config.json: whether a classifier reads pairs of texts
# files that `write` does not write; those of another model in the folder would be read with this one
_INDICES = (f"{WEIGHTS}.index.json", f"{PICKLED}.index.json")
STALE = (ADDED, *SENTENCEPIECE, *BPE, "special_tokens_map.json", *_INDICES, MODULES, MODULE_OPTIONS, SENTENCE_OPTIONS)
# CVE-2025-32434 and CVE-2026-24747: earlier versions may execute code in a file despite weights_only=True
TORCH = (2, 10)
SPECIAL = ("unk", "sep", "pad", "cls", "mask")  # NAME_token in tokenizer_config.json


def read(folder: str | Path, pairs: bool | None = None) -> tuple[keras.Model, Bundle]:
    """The model in a folder, and its bundle.

    The architecture is determined by the tensors, and by config.json where they are ambiguous. Warnings report heads
    in config.json without weights, a pooler that no head reads, tokens added to the vocabulary, which are not
    recognised in texts, and modules of sentence-transformers with weights on top of the model. How these pool a text,
    and their prompts, are kept in the bundle. Weights in float16 and bfloat16 are converted to float32. The only
    unpickling is by `torch.load(weights_only=True)` in PyTorch versions in which that is safe.

    Args:
        folder: a folder with config.json, model.safetensors or pytorch_model.bin (whole or in shards), and vocab.txt,
            tokenizer.json, a model of SentencePiece, or vocab.json and merges.txt.
        pairs: whether a classifier reads pairs of texts, which is not in published files; None: what `write` noted in
            config.json, or true for next-sentence prediction.

    Raises:
        ValueError: a file is missing or damaged, the tensors do not match config.json, or an option is not supported.
        ImportError: `safetensors`, or `torch` for a pytorch_model.bin, is not installed, or `torch` is too old.

    >>> import tempfile
    >>> from dataclasses import asdict
    >>> from keras_ctxrep.models import bert
    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES
    >>> size = bert.Config(vocabulary_size=6, layers=1, width=4, heads=1, intermediate=4, max_positions=8)
    >>> bundle = Bundle("bert", "answer", asdict(size), 8, vocab=(*SPECIAL_PIECES, "a"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(folder, common.build(bundle), bundle)
    ...     model, bundle = read(folder)
    >>> model.name, bundle.task, bundle.config["pooler"]
    ('answerer', 'answer', False)
    """
    folder = Path(folder)
    if not (folder / OPTIONS).is_file():
        problem = f"no {OPTIONS} in it; a Hugging Face folder has one" if folder.is_dir() else "no such folder"
        raise ValueError(f"{folder}: {problem}")
    options = SourceOptions(folder / OPTIONS)
    if options.get("model_type", str, default=None) == "gpt2":
        return _gpt2(folder, options)
    family = _family(options)
    layout = of_kind(family.layout, Layout)
    weights, stored = _tensors(folder)
    prefix = f"{layout.model_type}."
    prefix = prefix if any(name.startswith(prefix) for name in stored) else ""
    name, parts = _architecture(options, stored, prefix, weights, family)
    config = common.config(options, "pooler" in parts, family)
    kind = _architectures()[name][0]
    names = layout.names | (layout.classifier if kind.problems else {})
    classes = _classes(stored, f"{names['logits']}.weight", parts)
    tensors = weight_map(config, name, classes, prefix, any(name.endswith(".LayerNorm.gamma") for name in stored))
    ignored = _copies(stored, prefix, config, options, weights, layout)
    if pooler := layout.names.get("pooler"):
        unread = config if names["pooler"] == pooler else replace(config, pooler=False)  # the head has its own
        ignored |= common.unread_pooler(stored, f"{prefix}{pooler[1:].partition('.')[0]}.", unread, weights)
    for start, what in layout.left_out.items():
        if left_out := {name for name in stored if name.startswith(start)}:
            common.warn_left_out(weights, what)
            ignored |= left_out
    task, fields = _head(options, kind, classes, config, layout)
    if pairs and not (kind.problems or kind.labels):
        raise ValueError(f"{weights}: read as {name}; pairs are for a classifier of texts")
    fields["pairs"] = options.get(PAIRS, bool, default=kind.pairs) if pairs is None else pairs
    fields |= _preparation(folder, options, config, layout)
    fields |= _pooling(folder) | _roles(folder)
    return common.load(weights, stored, tensors, ignored, config, task, family=layout.model_type, **fields)


def write(folder: str | Path, model: keras.Model, bundle: Bundle, architecture: str | None = None) -> None:
    """Writes config.json, model.safetensors, vocab.txt unless it has none, tokenizer.json and tokenizer_config.json.

    Of an encoder also the modules by which sentence-transformers pools a text as the bundle says, and with
    `huggingface_hub` README.md, the model card with the Hub's data. The tensors are exactly those of the model class in
    `transformers`; the rows of positions that no token has are zero. An encoder without a pooler must be loaded as
    BertModel or MPNetModel with add_pooling_layer=False, which cannot be stored in the files; a warning says so.

    Args:
        folder: the folder to write.
        model: a BERT or a relative of it, of any task.
        bundle: the bundle of the model.
        architecture: the model class to write, e.g. "BertModel" for the encoder of a pretrainer; its heads are then
            left out. None: the class with the same heads.

    Raises:
        ValueError: the model is of another family, does not match the bundle, or has no equivalent in `transformers`;
            or the folder has files of another model that would not be overwritten.

    >>> import tempfile
    >>> from dataclasses import asdict
    >>> from keras_ctxrep.models import bert
    >>> from keras_ctxrep.text.tokens import SPECIAL_PIECES
    >>> size = bert.Config(vocabulary_size=6, layers=1, width=4, heads=1, intermediate=4, max_positions=8)
    >>> bundle = Bundle("bert", "pretrainer", asdict(size), 8, vocab=(*SPECIAL_PIECES, "a"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(folder, bert.pretrainer(size), bundle, "BertModel")
    ...     read(folder)[0].name
    'bert_encoder'
    """
    name = common.architecture_to_write(bundle, architecture)
    kind, layout = _architectures()[name]
    encoder = kind.is_encoder
    model, bundle = common.multiplied_out(model, bundle)
    config = FAMILIES[bundle.family].config(**bundle.config)
    if encoder:
        pooler = "pooler" in layout.names and any(layer.name == "pooler" for layer in model.layers)
        config = replace(config, pooler=pooler)
    tensors = weight_map(config, name, len(bundle.labels) or 1)
    tokenizer = {
        "tokenizer_class": f"{layout.classes}Tokenizer",
        "do_lower_case": bundle.lowercase,
        "strip_accents": bundle.strip_accents,
        "tokenize_chinese_chars": bundle.split_cjk,
        "model_max_length": bundle.max_length,
    }
    special = {f"{name}_token": getattr(bundle.special_tokens, name) for name in SPECIAL}
    if bundle.tokenizer:  # whose other options its file has
        tokenizer = {"tokenizer_class": TOKENIZERS[0], "model_max_length": bundle.max_length}
        if "segments" not in bundle.config:
            tokenizer["model_input_names"] = ["input_ids", "attention_mask"]
    files = {
        **({} if bundle.tokenizer else {VOCAB: vocab_text(bundle.vocab)}),
        TOKENIZER: _tokenizer(bundle),
        TOKENIZER_OPTIONS: json.dumps(tokenizer | special, indent=1) + "\n",
        OPTIONS: json.dumps(_config_json(bundle, config, name, kind, layout), indent=1, ensure_ascii=False) + "\n",
    }
    if encoder and bundle.pooling in POOLINGS:
        files |= _modules(bundle, config)
    if importlib.util.find_spec("huggingface_hub"):
        files[README] = _readme(bundle, name, kind.task, MODULES in files)
    stale = [file for file in STALE if file not in files and (Path(folder) / file).exists()]
    if stale:
        raise ValueError(f"{folder}: it has {', '.join(stale)} of another model; write to an empty folder")
    with atomic_folder(folder) as new:
        _write_safetensors(new / WEIGHTS, tensors, arrays(model, tensors))
        for file, text in files.items():
            (new / file).parent.mkdir(exist_ok=True)
            (new / file).write_bytes(text.encode())
    if encoder and not config.pooler and "pooler" in layout.names:
        warnings.warn(
            f"{folder}: an encoder without a pooler; load it with {name}.from_pretrained(..., "
            "add_pooling_layer=False), for AutoModel would make a random one",
            stacklevel=2,
        )


def weight_map(
    config: Config, architecture: str, classes: int = 2, prefix: str | None = None, old_norms: bool = False
) -> list[Tensor]:
    """The weight map of an architecture, by the names in the family's `models.transformer.Layout`.

    Args:
        config: sizes.
        architecture: name of a model class of `transformers`, as "BertModel".
        classes: number of classes of a classifier.
        prefix: prefix of the names of the encoder's tensors; None: as `transformers` writes them.
        old_norms: whether the weights of layer norms are named "gamma" and "beta".

    >>> from keras_ctxrep.models import bert
    >>> [tensor.name for tensor in weight_map(bert.Config(layers=1), "BertForTokenClassification")][-1]
    'classifier.bias'
    """
    kind, layout = _architectures()[architecture]
    parts = kind.parts if config.pooler or not kind.is_encoder else ()
    if prefix is None:
        prefix = "" if kind.is_encoder else f"{layout.model_type}."
    names = layout.names | (layout.classifier if kind.problems else {})
    if kind.labels:  # our model is a classifier of two classes
        names |= {"logits": names["nsp_logits"]}
        parts = ("pooler", "classifier")
    heads = [layer for part in common.LAYERS for layer in common.LAYERS[part] if part in parts]
    return layouts.weight_map(config, replace(layout, names=names), heads, classes, prefix, old_norms)


def _gpt2(folder: Path, options: SourceOptions) -> tuple[keras.Model, Bundle]:
    """The language model in a folder of GPT-2."""
    weights, stored = _tensors(folder)
    tokenizer, settings = (
        SourceOptions(folder / name, None if (folder / name).is_file() else {})
        for name in (TOKENIZER, TOKENIZER_OPTIONS)
    )
    subwords = _subwords(folder, tokenizer, settings, options, (gpt2.END,))
    if subwords is None or subwords.kind != "bpe":
        raise ValueError(f"{folder}: no byte-level BPE in it, a {TOKENIZER}, or {' and '.join(BPE)}")
    return gpt2.read(options, stored, weights, subwords)


@cache
def _architectures() -> dict[str, tuple[Architecture, Layout]]:
    """The model classes of all families: name -> its contents, and the layout of its family."""
    return {
        name: (kind, family.layout)
        for family in FAMILIES.values()
        if family.layout is not None
        for name, kind in common.architectures(family).items()
    }


# -------------------------------------------------------------------------------------------------------- config.json


def _family(options: SourceOptions) -> Family:
    """The family of the model that the file describes; raises if it is not supported."""
    families = {}
    for family in FAMILIES.values():
        if layout := family.layout:
            families[layout.model_type] = family
            families |= {layout.unigram[0]: family} if layout.unigram else {}
    for name, kind, supported in (
        ("model_type", str, tuple(families)),
        ("position_embedding_type", str, ("absolute",)),
        ("is_decoder", bool, (False,)),
        ("add_cross_attention", bool, (False,)),
        ("problem_type", str, tuple(PROBLEMS)),
        ("pruned_heads", dict, ({},)),
    ):
        value = options.get(name, kind, default=supported[0])
        if value not in supported:
            readable = " or ".join(map(repr, supported))
            raise ValueError(f"{options.source}: the option {name} is {value!r}; only {readable} is read")
    return families[options.get("model_type", str, default="bert")]


def _architecture(
    options: SourceOptions, stored: Collection[str], prefix: str, source: Path, family: Family
) -> tuple[str, tuple[str, ...]]:
    """The name and the parts of the model, by its tensors; warns if config.json names heads that have no weights."""
    kinds, layout = common.architectures(family), of_kind(family.layout, Layout)
    present = set()
    for part, layers in common.LAYERS.items():
        for names in (layout.names, layout.classifier):
            modules = [names[layer] for layer in layers if layer in names]
            starts = [f"{prefix}{name[1:]}." if name[0] == "." else f"{name}." for name in modules]
            if any(name.startswith(start) for name in stored for start in starts):
                present.add(part)
    names = [printable(name, 60) for name in options.get("architectures", list, default=[])]
    if layout.unigram:  # which has the same modules
        names = [re.sub(f"^{layout.unigram[1]}", layout.classes, name) for name in names]
    supported = next((name for name in names if name in kinds), None)
    name, parts = common.architecture(present, supported or ", ".join(names) or None, source, kinds)
    missing = set(kinds[supported].parts) - present if supported else ()
    if missing:
        heads = ", ".join(words for part, words in PARTS.items() if part in missing)
        message = f"{OPTIONS} says {supported}, but there are no weights for: {heads}; read as {name}"
        warn(f"{source}: {message}")
    return name, parts


def _classes(stored: Mapping[str, Any], name: str, parts: Collection[str]) -> int:
    kernel = stored.get(name)
    return kernel.shape[0] if "classifier" in parts and kernel is not None and kernel.shape else 2


def _head(
    options: SourceOptions, kind: Architecture, classes: int, config: Config, layout: Layout
) -> tuple[str, dict[str, Any]]:
    """The task, and the fields of the bundle for its head."""
    if not (kind.labels or "classifier" in kind.parts):
        return kind.task, {}
    dropout = options.get(layout.classifier_dropout, (float, int), 0, config.dropout, most=1)
    problem = options.get("problem_type", str, default="")
    if problem == common.REGRESSION and kind.problems and classes != 1:
        raise ValueError(f"{options.source}: the option problem_type is {problem!r}, of {classes} classes; one is read")
    problem = common.REGRESSION if classes == 1 else problem
    task = kind.problems.get(problem, kind.task)
    regression = problem == common.REGRESSION and kind.problems
    labels = () if regression else kind.labels or _labels(options, classes)
    return task, {"head": {"dropout": float(dropout)}, "labels": labels}


def _labels(options: SourceOptions, classes: int) -> tuple[str, ...]:
    if classes < 2:
        raise ValueError(f"{options.source}: a classifier of one class; such a regression is not read, two are needed")
    label_of = options.get("id2label", dict, default={})
    if not label_of:
        return tuple(f"LABEL_{index}" for index in range(classes))  # as `transformers` calls them
    labels = tuple(label_of.get(str(index)) for index in range(classes))
    if len(label_of) != classes or not all(isinstance(label, str) for label in labels) or len(set(labels)) < classes:
        raise ValueError(
            f"{options.source}: the option id2label has {len(label_of)} entries; {classes} different names are needed, "
            f"for '0' to '{classes - 1}'"
        )
    return labels


def _config_json(bundle: Bundle, config: Config, name: str, kind: Architecture, layout: Layout) -> dict[str, Any]:
    fields = vars(config) | {
        "activation": {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}[config.activation],
        "max_positions": config.max_positions + layout.unread_positions,
    }
    model_type, classes = layout.model_type, layout.classes
    if layout.unigram and bundle.tokenizer and bundle.subwords.kind == "unigram":
        model_type, classes = layout.unigram
    options: dict[str, Any] = {
        "architectures": [classes + name.removeprefix(layout.classes)],
        "model_type": model_type,
        **{option: fields[field] for option, (field, *_) in layout.options.items()},
        "position_embedding_type": "absolute",
        "pad_token_id": bundle.vocab.index(bundle.special_tokens.pad),
        "tie_word_embeddings": True,
    }
    if "classifier" in kind.parts:
        labels = bundle.labels or ("LABEL_0",)
        options |= {
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
            layout.classifier_dropout: bundle.head.get("dropout", 0.1),
        }
    problem = {task: name for name, task in kind.problems.items()}.get(bundle.task)
    if problem and problem != "single_label_classification":  # which is the default
        options["problem_type"] = problem
    if bundle.pairs and (kind.problems or kind.labels):
        options[PAIRS] = True
    return options


# ----------------------------------------------------------------------------------------------------------- tensors


def _tensors(folder: Path) -> tuple[Path, dict[str, StoredTensor]]:
    """The weight file, or the index of its shards, and the tensors, whose values are not read yet."""
    for name, read_file in ((WEIGHTS, _safetensors), (PICKLED, _refuse_pickle)):
        path, index = folder / name, folder / f"{name}.index.json"
        if path.is_file():
            return path, read_file(_whole(path))
        if index.is_file():
            return index, _read_shards(index, read_file)
    raise ValueError(f"{folder}: no {WEIGHTS} in it, and no {PICKLED}; nor {WEIGHTS}.index.json, of shards")


def _read_shards(index: Path, read_file: Callable[[Path], dict[str, StoredTensor]]) -> dict[str, StoredTensor]:
    shard_of = {name: str(file) for name, file in SourceOptions(index).get("weight_map", dict).items()}
    files = sorted(set(shard_of.values()))
    for file in files:
        if file != Path(file).name or "\\" in file or file in ("", ".", ".."):
            raise ValueError(f"{index}: {file!r} is not the name of a file in its folder")
        if not (index.parent / file).is_file():
            raise ValueError(f"{index.parent / file}: missing; {index.name} names it")
    stored, shards = {}, {file: read_file(_whole(index.parent / file)) for file in files}
    for name, file in shard_of.items():
        if name not in shards[file]:
            raise ValueError(f"{index.parent / file}: {name} is not in it, though {index.name} says so")
        stored[name] = shards[file].pop(name)
    for file, rest in shards.items():
        if rest:
            names = ", ".join(sorted(rest)[:6])
            raise ValueError(f"{index.parent / file}: left over, for {index.name} does not name them: {names}")
    return stored


def _whole(path: Path) -> Path:
    """The path; raises a ValueError for what git leaves in place of a large file where git-lfs is not installed."""
    with open(regular(path), "rb") as file:
        if file.read(24).startswith(b"version https://git-lfs."):
            raise ValueError(f"{path}: a pointer of Git LFS, not the file itself; run `git lfs pull` in its folder")
    return path


def _safetensors(path: Path) -> dict[str, StoredTensor]:
    library = package("safetensors", "convert")

    def stored(name: str, part: Any) -> StoredTensor:
        def values(index: Any) -> np.ndarray:
            with library.safe_open(str(path), "np") as file:  # again, since an open file keeps what was read in memory
                part = file.get_slice(name)
                return part[:] if index == () else part[index]

        dtype = part.get_dtype()
        return StoredTensor(tuple(part.get_shape()), str(DTYPES.get(dtype, dtype)), values)

    try:
        with library.safe_open(str(path), "np") as file:
            return {name: stored(name, file.get_slice(name)) for name in file.keys()}  # noqa: SIM118, not a dict
    except (library.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a whole safetensors file; copy it again: {error}") from None


def _refuse_pickle(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a PyTorch file, read without executing code in it."""
    try:
        torch = package("torch", "torch")
    except ImportError as error:
        raise ImportError(f"{path}: {error}; or save it as {WEIGHTS} where torch is") from None
    version = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if version is None or tuple(map(int, version.groups())) < TORCH:
        needed = ".".join(map(str, TORCH))
        raise ImportError(
            f"{path}: torch {torch.__version__} may run what is in such a file; install torch {needed} or later, or "
            f"save the model as {WEIGHTS}"
        )
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many classes
        raise ValueError(f"{path}: not a whole file of tensors alone: {first_line(error)}") from None
    if not isinstance(tensors, dict) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise ValueError(f"{path}: {type(tensors).__name__}; a dict of tensors is needed, as `state_dict()` gives it")

    def stored(tensor) -> StoredTensor:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return StoredTensor(tuple(tensor.shape), dtype, lambda index: tensor.detach()[index].float().numpy())

    return {str(name): stored(tensor) for name, tensor in tensors.items()}


def _copies(
    stored: dict[str, StoredTensor],
    prefix: str,
    config: Config,
    options: SourceOptions,
    source: Path,
    layout: Layout,
) -> set[str]:
    """Names of tensors that are no weights or copies of other tensors; checks that the copies are equal."""
    names, positions = set(), f"{prefix}{POSITIONS}"
    if positions in stored:
        rows = config.max_positions + layout.unread_positions
        if not np.array_equal(stored[positions][()].ravel(), np.arange(rows)):
            raise ValueError(f"{source}: {positions} is not 0 to {rows - 1}, the order of positions")
        names.add(positions)
    bias, tied_bias, tied_words = (
        f"{name}.{kind}"
        for name, kind in ((layout.names["mlm_bias"], "bias"), (layout.decoder, "bias"), (layout.decoder, "weight"))
    )
    if tied_bias in stored and bias not in stored:
        stored[bias] = stored.pop(tied_bias)
    tied = options.get("tie_word_embeddings", bool, default=True)
    words = f"{prefix}{layout.names['token_embedding'][1:]}.weight"
    for copy, original in ((tied_bias, bias), (tied_words, words)):
        if copy == original:  # the layer has its bias itself
            continue
        if copy in stored and original in stored:
            if not np.array_equal(stored[copy][()], stored[original][()]):
                raise ValueError(f"{source}: {copy} is not {original}; our model has one for both")
            names.add(copy)
        elif copy == tied_words and bias in stored and not tied:
            raise ValueError(f"{source}: missing: {copy}; {options.source} says tie_word_embeddings: false")
    return names


def _write_safetensors(path: Path, tensors: Sequence[Tensor], values: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes one tensor at a time; the library needs all at once, and transposed kernels are copies.

    Besides the model itself, writing BERT-base (418 MB) takes 180 MB of memory; safetensors 0.8 takes 430 MB. Of
    BERT-large, `convert` as a whole stays below 2.7 GB; with safetensors 0.8 it takes 3.7 GB.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + 4 * int(np.prod(tensor.shape))
        header[tensor.name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, value in values:
            file.write(np.ascontiguousarray(value, "<f4").data)


# ---------------------------------------------------------------------------------------------------------- tokenizer


def _preparation(folder: Path, model: SourceOptions, config: Config, layout: Layout) -> dict[str, Any]:
    """The fields of the bundle for text preparation; `model` is config.json."""
    paths = {name: folder / name for name in (VOCAB, TOKENIZER, TOKENIZER_OPTIONS)}
    exists = {name: path.is_file() for name, path in paths.items()}
    options = SourceOptions(paths[TOKENIZER_OPTIONS], None if exists[TOKENIZER_OPTIONS] else {})
    tokenizer_class = options.get("tokenizer_class", str, default=None)
    own = f"{layout.classes}Tokenizer", f"{layout.classes}TokenizerFast"
    tokenizer = SourceOptions(paths[TOKENIZER], None if exists[TOKENIZER] else {})
    subwords = _subwords(folder, tokenizer, options, model, _special_tokens(options, ROBERTA_TOKENS).pieces)
    known = (*own, *TOKENIZERS, *(SUBWORD_TOKENIZERS if subwords else ()))
    kind = tokenizer_class or model.get("tokenizer_class", str, default=own[0])  # the order of `transformers`
    if kind not in known:
        source = options.source if tokenizer_class else model.source
        raise ValueError(f"{source}: the option tokenizer_class is {kind!r}; one of {', '.join(known)}")
    longest = options.get("model_max_length", (int, float), 1, config.max_positions)
    if (folder / MODULE_OPTIONS).is_file():
        longest = SourceOptions(folder / MODULE_OPTIONS).get("max_seq_length", int, 1, longest)
    max_length = int(min(longest, config.max_positions))
    special = _special_tokens(options, ROBERTA_TOKENS if subwords else layout.special_tokens)
    if subwords:
        special = replace(special, separators=_separators(tokenizer) or special.separators)
        fields = common.subword_fields(subwords, special, config.vocabulary_size, folder)
        _warn_of_added_tokens(folder, tokenizer, options, special)
        return fields | {"max_length": max_length}
    if exists[VOCAB]:
        source, pieces = paths[VOCAB], read_vocab(paths[VOCAB])
    elif exists[TOKENIZER]:
        source, pieces = paths[TOKENIZER], _pieces(tokenizer)
    else:
        raise ValueError(f"{folder}: no {VOCAB} in it, and no {TOKENIZER}")
    vocab = common.vocabulary(pieces, config.vocabulary_size, source, special)
    complete = tokenizer_class in own and options.get("do_lower_case", bool, default=None) is not None
    if exists[TOKENIZER] and not complete:
        for part, needed in (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer")):
            actual = tokenizer.get(f"{part}.type", str, default=None)
            if actual != needed:
                raise ValueError(
                    f"{tokenizer.source}: its {part} is {actual or 'missing'}; {needed} is needed, or a "
                    f"{TOKENIZER_OPTIONS} with tokenizer_class {own[0]} and do_lower_case"
                )
    normalizer = SourceOptions(paths[TOKENIZER], tokenizer.get("normalizer", dict, default={}))
    _warn_of_added_tokens(folder, tokenizer, options, special)

    def setting(name: str, fallback: str, default: bool | None) -> Any:
        return options.get(name, bool, default=normalizer.get(fallback, bool, default=default))

    lowercase = setting("do_lower_case", "lowercase", None)
    lowercase = common.looks_uncased(vocab) if lowercase is None else lowercase
    accents = setting("strip_accents", "strip_accents", None)
    return {
        "vocab": vocab,
        "special_tokens": special,
        "lowercase": lowercase,
        "strip_accents": None if accents == lowercase else accents,
        "split_cjk": setting("tokenize_chinese_chars", "handle_chinese_chars", True),
        "max_length": max_length,
    }


def _subwords(
    folder: Path, tokenizer: SourceOptions, options: SourceOptions, model: SourceOptions, special: Sequence[str]
) -> Subwords | None:
    """The tokenizer of a folder that has one other than WordPiece, of which `special` are never made of text."""
    prefix = options.get("add_prefix_space", bool, default=None)
    if tokenizer.get("model.type", str, default=None) in ("Unigram", "BPE"):
        subwords = parse(tokenizer.values, tokenizer.source, special)
        return subwords if prefix is None else replace(subwords, add_prefix_space=prefix and subwords.kind == "bpe")
    if tokenizer.values or (folder / VOCAB).is_file():
        return None
    if path := next((folder / name for name in SENTENCEPIECE if (folder / name).is_file()), None):
        kinds = model.get("model_type", str, default=""), options.get("tokenizer_class", str, default="")
        fairseq = any(kind.lower().replace("-", "").startswith("xlmroberta") for kind in kinds)
        return subword_files.sentencepiece(regular(path).read_bytes(), path, fairseq)
    if all((folder / name).is_file() for name in BPE):
        vocab, merges = (regular(folder / name) for name in BPE)
        values = SourceOptions(vocab).values
        return subword_files.merges(
            values, merges.read_bytes().decode("utf-8", "replace"), folder, special, bool(prefix)
        )
    return None


def _separators(tokenizer: SourceOptions) -> int | None:
    """The separators between the texts of a pair, as tokenizer.json marks them; None: it does not say so."""
    whole = tokenizer.get("post_processor", dict, default={})
    found = None
    for part in SourceOptions(tokenizer.source, whole).get("processors", list, default=[whole]):
        processor = SourceOptions(tokenizer.source, part if isinstance(part, dict) else {})
        found = {"RobertaProcessing": 2, "BertProcessing": 1}.get(processor.get("type", str, default=""), found)
        entries = [entry for entry in processor.get("pair", list, default=[]) if isinstance(entry, dict)]
        ids = [token.get("id") for entry in entries for token in entry.values() if isinstance(token, dict)]
        if "A" in ids and "B" in ids:
            found = min(2, max(1, ids.index("B") - ids.index("A") - 1))
    return found


def _special_tokens(options: SourceOptions, own: SpecialTokens) -> SpecialTokens:
    """The special tokens that tokenizer_config.json names; of others those of the family."""
    names = {}
    for name in SPECIAL:
        token = options.get(f"{name}_token", (str, dict), default=getattr(own, name))
        names[name] = token if isinstance(token, str) else SourceOptions(options.source, token).get("content", str)
    return replace(own, **names)


def _warn_of_added_tokens(
    folder: Path, tokenizer: SourceOptions, options: SourceOptions, special: SpecialTokens
) -> None:
    """Warns of added tokens, which `transformers` recognises in texts and our tokenizer does not."""
    entries = tokenizer.get("added_tokens", list, default=[])
    entries = [*entries, *options.get("added_tokens_decoder", dict, default={}).values()]
    tokens = [entry.get("content") for entry in entries if isinstance(entry, dict)]
    if (folder / ADDED).is_file():
        tokens += SourceOptions(folder / ADDED).values
    names = [printable(name, 60) for name in dict.fromkeys(map(str, tokens)) if name not in special.pieces]
    if names:
        common.warn_left_out(folder, f"added tokens, which are not looked for in texts: {listed(names)}")


def _pooling(folder: Path) -> dict[str, Any]:
    """How sentence-transformers makes a vector of a text, as fields of a bundle; warns of what is not read.

    https://github.com/huggingface/sentence-transformers, models/Pooling.py, whose options are in 1_Pooling/config.json.
    """
    if not (folder / MODULES).is_file():
        return {}
    try:
        entries = read_json((folder / MODULES).read_bytes())
        kinds = {entry["path"]: str(entry.get("type")).rpartition(".")[2] for entry in entries}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f" ({error})" if isinstance(error, ValueError) else ""
        raise ValueError(f"{folder / MODULES}: a list of objects that have a path is needed{reason}") from None
    fields: dict[str, Any] = {}
    for path, kind in kinds.items():
        if not isinstance(path, str) or not path or path != Path(path).name:
            continue
        if any((folder / path / file).is_file() for file in (WEIGHTS, PICKLED)):
            common.warn_left_out(folder, f"{path}, weights of sentence-transformers on top of the model")
        if kind == "Normalize":
            fields["normalize"] = True
        elif kind == "Pooling" and (folder / path / OPTIONS).is_file():
            options = SourceOptions(folder / path / OPTIONS)
            if options.get("include_prompt", bool, default=True) is False:
                common.warn_left_out(folder, f"{path}, which pools without the tokens of a prompt; they are pooled")
            names = [POOLING_MODE.fullmatch(name) for name, on in options.values.items() if on is True]
            modes = [name[1] for name in names if name] or [str(options.values.get("pooling_mode", "mean"))]
            fields["pooling"] = modes[0] if modes in (["cls"], ["mean"], ["max"]) else "mean"
            if modes != [fields["pooling"]]:
                common.warn_left_out(folder, f"{path}, which pools by {', '.join(modes)}; the mean is used")
    return fields


def _roles(folder: Path) -> dict[str, Any]:
    """The prompts of sentence-transformers as the roles of a bundle; those of "document" or "corpus" are of "passage".

    https://sbert.net/examples/sentence_transformer/applications/computing-embeddings, "Prompt Templates".
    """
    if not (folder / SENTENCE_OPTIONS).is_file():
        return {}
    options = SourceOptions(folder / SENTENCE_OPTIONS)
    prompts = dict(options.get("prompts", dict, default={}))
    for name, prefix in prompts.items():
        check_value(f"{options.source}: prompts: {printable(name, 60)}", prefix, str)
    for name in ("document", "corpus"):
        if name in prompts:
            prompts.setdefault("passage", prompts[name])
    default = options.get("default_prompt_name", str, default=None)
    if default is not None and default not in prompts:
        raise ValueError(
            f"{options.source}: the option default_prompt_name is {default!r}, which is none of the prompts"
        )
    return {"roles": complete_roles(prompts | ({} if default is None else {"": prompts[default]}))}


def _readme(bundle: Bundle, architecture: str, task: str, sentences: bool) -> str:
    """The model card, and before it what the Hub sorts models by, see https://huggingface.co/docs/hub/model-cards."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name="sentence-transformers" if sentences else "transformers",
        pipeline_tag=PIPELINES.get(task, "sentence-similarity" if sentences else "feature-extraction"),
        tags=["keras_ctxrep", bundle.family],
    )
    card = bundle.card.strip() or f"# {architecture}\n\nWritten by `ctxrep convert --to huggingface`."
    return f"---\n{data.to_yaml()}\n---\n\n{card}\n"


def _modules(bundle: Bundle, config: Config) -> dict[str, str]:
    """The files by which sentence-transformers makes the same vector of a text: name -> content."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if bundle.normalize else [])]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    pooling: dict[str, Any] = {"word_embedding_dimension": config.width}
    pooling |= {option: kind == bundle.pooling for kind, option in POOLINGS.items()}
    contents = {
        MODULES: [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(zip(paths, kinds, strict=True))
        ],
        MODULE_OPTIONS: {"max_seq_length": bundle.max_length, "do_lower_case": False},
        f"{paths[1]}/{OPTIONS}": pooling,
    }
    sentences: dict[str, Any] = {} if bundle.dims is None else {"truncate_dim": bundle.dims}
    if bundle.roles:
        default = next((role for role in bundle.roles if role and bundle.roles[role] == bundle.roles.get("")), None)
        prompts = {role: prefix for role, prefix in bundle.roles.items() if role}
        sentences |= {"prompts": prompts, "default_prompt_name": default}
    if sentences:
        contents[SENTENCE_OPTIONS] = sentences
    return {name: json.dumps(content, indent=1) + "\n" for name, content in contents.items()}


def _pieces(tokenizer: SourceOptions) -> list[str]:
    """The vocabulary in a tokenizer.json, in the order of ids."""
    kind, prefix = (tokenizer.get(f"model.{name}", str, default=None) for name in ("type", "continuing_subword_prefix"))
    if (kind or "WordPiece", prefix or "##") != ("WordPiece", "##"):
        raise ValueError(f"{tokenizer.source}: a {kind} with {prefix!r}; WordPiece with '##' is needed")
    ids = tokenizer.get("model.vocab", dict)
    if sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str):
        raise ValueError(f"{tokenizer.source}: the ids in model.vocab are not 0 to {len(ids) - 1}, each once")
    return sorted(ids, key=ids.__getitem__)


def _tokenizer(bundle: Bundle) -> str:
    """The text of tokenizer.json, with the markers of a text and a pair."""
    ids = {piece: index for index, piece in enumerate(bundle.vocab)}
    special = bundle.special_tokens
    template = processors.TemplateProcessing(
        single=f"{special.cls}:0 $A:0 {special.sep}:0",
        pair=" ".join([f"{special.cls}:0 $A:0", *[f"{special.sep}:0"] * special.separators, f"$B:1 {special.sep}:1"]),
        special_tokens=[(piece, ids[piece]) for piece in (special.cls, special.sep)],
    )
    if bundle.tokenizer:
        tokenizer = Tokenizer.from_str(bundle.tokenizer)
        unigram, prefix = bundle.subwords.kind == "unigram", bundle.subwords.add_prefix_space
        trimming = processors.ByteLevel(trim_offsets=True, add_prefix_space=prefix)
        tokenizer.post_processor = template if unigram else processors.Sequence([trimming, template])
        tokenizer.decoder = decoders.Metaspace() if unigram else decoders.ByteLevel()
        exact = {"model": json.loads(bundle.tokenizer)["model"]}  # `tokenizers` rounds the scores of pieces
        return json.dumps(json.loads(tokenizer.to_str()) | exact, indent=2, ensure_ascii=False)
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=special.unk))
    tokenizer.add_special_tokens([getattr(special, name) for name in SPECIAL])
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bundle.split_cjk,
        strip_accents=bundle.strip_accents,
        lowercase=bundle.lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = template
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer.to_str(pretty=True)
