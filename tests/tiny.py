"""Tiny models with random weights: sizes, vocabulary and labels of tests that are not about them.

    config = tiny.config("elmo", layers=1)
    bundle = tiny.bundle("tag", "elmo", max_length=9)
    model, bundle = tiny.model("answer", pair=True)
    folder = tiny.save(tmp_path / "m", tiny.bundle("classify", vocab=VOCAB))

A test that depends on a size names it; everything else may change here.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_ctxrep import saving, tasks
from keras_ctxrep.models import bert, elmo, static
from keras_ctxrep.models.families import FAMILIES
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SPECIAL_PIECES

CONFIGS = {
    "bert": bert.Config(layers=1, width=8, heads=2, intermediate=8, max_positions=64),
    "elmo": elmo.Config(
        8, 4, layers=1, filters=((1, 4), (2, 6)), embedding_dim=3, highways=1, max_characters=6, dropout=0.0
    ),
    "static": static.Config(words=4, width=8),
}
VOCABULARIES = {
    "bert": (*SPECIAL_PIECES, *"abcdefgh", "##a", "##s", "the", "cat", "rain", "fell", "she", ".", "中"),
    "elmo": (),
    "static": ("<UNK>", "the", "cats", "."),
}
LABELS = {
    "classify": ("no", "yes"),
    "multilabel": ("x", "y", "z"),
    "tag": ("O", "B-PER", "I-PER"),
    "semantic_roles": ("O", "B-V", "B-ARG0", "I-ARG0"),
    "coreference": ("A", "B", "neither"),
    "translate": ("<S>", "</S>", "<UNK>", "a", "b"),
}
HEADS = {"translate": {"kind": "recurrent", "units": 8}}
_VOCABULARY_SIZE = {"bert": "vocabulary_size", "static": "words"}
RELATIVES = [name for name, family in FAMILIES.items() if family.layout is not None and name != "bert"]  # of BERT


def vocabulary(family: str) -> tuple[str, ...]:
    """The vocabulary of a family; of a relative of BERT its special pieces in place of BERT's."""
    if family not in RELATIVES:
        return VOCABULARIES[family]
    special = FAMILIES[family].layout.special_tokens
    return (*special.pieces, *VOCABULARIES["bert"][len(SPECIAL_PIECES) :])


for _name in RELATIVES:
    _sizes = {"layers": 1, "width": 8, "heads": 2, "intermediate": 8, "max_positions": 64}
    CONFIGS[_name] = FAMILIES[_name].config(**_sizes, pooler=True)
    _VOCABULARY_SIZE[_name] = "vocabulary_size"


def config(family: str = "bert", **sizes: Any) -> Any:
    """The Config of a family, with some other sizes."""
    return replace(CONFIGS[family], **sizes)


def bundle(
    task: str,
    family: str = "bert",
    *,
    pair: bool = False,
    vocab: Sequence[str] | None = None,
    sizes: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    **fields: Any,
) -> Bundle:
    """The bundle of a tiny model.

    Args:
        task: its task, "embed" for an encoder alone.
        family: "bert", "elmo", "static" or one of `RELATIVES`.
        pair: it reads pairs of texts.
        vocab: its word pieces or words (default: of `VOCABULARIES`).
        sizes: fields of its config that are not those of `CONFIGS`.
        settings: of the task, those that are not its defaults.
        fields: other fields of the bundle; "max_length" is 16 and "labels" and "head" are of `LABELS` and
            `HEADS` unless they are here.
    """
    vocab = vocabulary(family) if vocab is None else tuple(vocab)
    sizes = {_VOCABULARY_SIZE[family]: len(vocab)} | (sizes or {}) if family in _VOCABULARY_SIZE else sizes or {}
    fields = {"max_length": 16, "labels": LABELS.get(task, ()), "head": HEADS.get(task, {})} | fields
    fields |= tasks.bundle_fields(task, pair, **settings or {})
    if family in RELATIVES:
        fields.setdefault("special_tokens", FAMILIES[family].layout.special_tokens)
    return Bundle(family, config=asdict(config(family, **sizes)), vocab=vocab, **fields)


def model(*args: Any, **options: Any) -> tuple[keras.Model, Bundle]:
    """A tiny model whose weights are large enough for its answers to differ, and its bundle: arguments of `bundle`."""
    of_model = bundle(*args, **options)
    keras.utils.set_random_seed(1)
    built = saving.build(of_model)
    for weight in built.weights:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    return built, of_model


def filled(model: keras.Model, rng: np.random.Generator, scale: float) -> keras.Model:
    """Gives every weight of a model a value of its own, biases too."""
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(weight + rng.normal(scale=scale, size=weight.shape))
    return model


def arrays_of(path: Any) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which is closed: one left open is reported where the collector finds it."""
    with np.load(path) as file:
        return dict(file)


def mirrored(count: int = 2) -> Any:
    """A strategy of some replicas on the CPU.

    Not with the default reduction: its collective operations clash with those of any other strategy of the process.
    """
    reduction = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(count)], cross_device_ops=reduction)


def save(folder: Path, of_model: Bundle) -> Path:
    """A model folder of a bundle's model with its initial weights."""
    keras.utils.set_random_seed(0)
    saving.save(folder, saving.build(of_model), of_model)
    return folder


def is_png(path) -> bool:
    """Whether a file is a whole PNG."""
    data = path.read_bytes()
    return data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and data[-8:-4] == b"IEND"
