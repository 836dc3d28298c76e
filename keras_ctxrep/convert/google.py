"""Google's BERT checkpoints: bert_config.json, vocab.txt and bert_model.ckpt, a checkpoint of TensorFlow 1.

https://github.com/google-research/bert, `modeling.py` and `run_pretraining.py`.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

import keras

from keras_ctxrep.checks import first_line
from keras_ctxrep.convert import bert as common
from keras_ctxrep.convert import layouts
from keras_ctxrep.convert.options import SourceOptions
from keras_ctxrep.convert.weights import StoredTensor, Tensor, single
from keras_ctxrep.models import bert
from keras_ctxrep.text.artifacts import VOCAB, visible
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import read_vocab
from keras_ctxrep.version import install_hint

__all__ = ["read", "weight_map"]

OPTIONS = "bert_config.json"
SLOTS = ("adam_m", "adam_v")  # optimizer slots of each weight
STEP = "global_step"
PREFIXES = {"pooler": "bert/pooler/", "mlm": "cls/predictions/", "nsp": "cls/seq_relationship/"}
NAMES = {  # regular expressions in the names of `transformers` -> Google's, with dots for slashes
    r"_embeddings\.weight$": "_embeddings",
    r"\.layer\.": ".layer_",
    r"^cls\.seq_relationship\.weight$": "cls.seq_relationship.output_weights",
    r"^cls\.(predictions|seq_relationship)\.bias$": r"cls.\1.output_bias",
    r"\.weight$": ".kernel",
}


def read(source: str | Path, lowercase: bool | None = None) -> tuple[keras.Model, Bundle]:
    """The model of a checkpoint, and its bundle: a pretrainer if the heads are in the checkpoint, else an encoder.

    `hidden_act` "gelu" is read as the exact form with erf, which the models were published with and `transformers`
    computes; later versions of the repository compute the tanh approximation. Outputs differ by about 1e-3.

    Args:
        source: the folder, or the checkpoint's path, with or without ".index" or ".data-00000-of-00001".
        lowercase: whether text is lower-cased and accents removed; None: if the vocabulary has no upper-case letter.

    Raises:
        ValueError: a file is missing or damaged, or the variables do not match the options.
        ImportError: TensorFlow, which is needed to read the format, is not installed.

    >>> read("uncased_L-12_H-768_A-12")
    Traceback (most recent call last):
    ...
    ValueError: uncased_L-12_H-768_A-12: no such folder, and no checkpoint of that name
    """
    prefix = _checkpoint(Path(source))
    options = SourceOptions(_beside(prefix, OPTIONS))
    stored = _variables(prefix)
    present = {part for part, start in PREFIXES.items() if any(name.startswith(start) for name in stored)}
    name, parts = common.architecture(present, None, prefix)
    if "nsp" in parts and "mlm" not in parts:
        raise ValueError(f"{prefix}: a next-sentence head without {PREFIXES['mlm']}; the checkpoint is not whole")
    config = common.config(options, "pooler" in parts)
    ignored = {f"{weight}/{slot}" for weight in stored for slot in SLOTS} | {STEP}
    ignored |= common.unread_pooler(stored, PREFIXES["pooler"], config, prefix)
    vocab_file = _beside(prefix, VOCAB)
    vocab = common.vocabulary(read_vocab(vocab_file), config.vocabulary_size, vocab_file)
    lowercase = common.looks_uncased(vocab) if lowercase is None else lowercase
    task, tensors = common.ARCHITECTURES[name].task, weight_map(config, parts)
    return common.load(prefix, stored, tensors, ignored, config, task, vocab=vocab, lowercase=lowercase)


def weight_map(
    config: bert.Config, parts: Collection[str] = ("pooler", "mlm", "nsp"), classes: int = 2
) -> list[Tensor]:
    """The weight map of a checkpoint: that of `transformers`, renamed, whose dense kernels are transposed ones.

    Args:
        config: sizes.
        parts: the parts above the layers.
        classes: of a part "classifier", which no checkpoint of Google's has.

    >>> len(weight_map(bert.Config())), weight_map(bert.Config())[-2].name
    (206, 'cls/seq_relationship/output_weights')
    """
    heads = [layer for part, layers in common.LAYERS.items() if part in parts for layer in layers]
    tensors = []
    for tensor in layouts.weight_map(config, bert.LAYOUT, heads, classes, "bert.", old_norms=True):
        name = tensor.name
        for pattern, google_name in NAMES.items():
            name = re.sub(pattern, google_name, name)
        if name.endswith(".kernel"):
            tensor = tensor._replace(shape=tensor.shape[::-1], forth=None, back=None)
        tensors.append(tensor._replace(name=name.replace(".", "/")))
    return tensors


def _checkpoint(source: Path) -> Path:
    """The path of the checkpoint, without suffix."""
    if source.is_dir():
        files = visible(source.glob("*.index"))
        files = [path for path in files if path.name == "bert_model.ckpt.index"] or files
        return single(files, f"{source}: one checkpoint, *.index and *.data-*,").with_suffix("")
    prefix = source.with_suffix("") if source.match("*.index") or source.match("*.data-*") else source
    if not prefix.with_name(f"{prefix.name}.index").is_file():
        raise ValueError(f"{source}: no such folder, and no checkpoint of that name")
    return prefix


def _beside(prefix: Path, name: str) -> Path:
    path = prefix.with_name(name)
    if not path.is_file():
        raise ValueError(f"{path}: missing; it belongs beside {prefix.name}.index")
    return path


def _variables(prefix: Path) -> dict[str, Any]:
    """Shape, dtype and value of every variable; the last value is cached, since it is read in parts."""
    try:
        import tensorflow as tf
    except ModuleNotFoundError:
        raise ImportError(f"{prefix}: TensorFlow reads it: {install_hint('tf')}") from None
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except Exception as error:  # of many classes
        raise ValueError(f"{prefix}.index: not a whole checkpoint; copy it again: {first_line(error)}") from None

    @lru_cache(maxsize=1)
    def value(name: str):
        try:
            return reader.get_tensor(name)
        except Exception as error:
            raise OSError(first_line(error)) from None

    def stored(name: str) -> StoredTensor:
        return StoredTensor(tuple(shapes[name]), dtypes[name].name, lambda index: value(name)[index])

    return {name: stored(name) for name in shapes}
