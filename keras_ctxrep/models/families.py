"""The families of encoders, by the names that bundles use."""

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from keras_ctxrep.models import elmo, lm, static, transformer, tuning
from keras_ctxrep.models.transformer import Layout
from keras_ctxrep.models.tuning import Tuning
from keras_ctxrep.text.families import TEXT_SIDES, TRANSFORMER

__all__ = ["FAMILIES", "Family", "depths", "encoder_of"]


@dataclass(frozen=True)
class Family:
    """A family's models.

    Attributes:
        config: dataclass of sizes.
        sizes: name -> config, of published and other sizes.
        encoder: function from a config to an encoder.
        pretraining: name of the pretraining task -> function from (config, vocabulary size) to a model.
        tuning: the defaults of fine-tuning.
        reads_vocabulary: function from the fields of a config to whether the encoder needs the bundle's vocabulary.
        encoder_config: function from (model, fields of its config) to the fields of its encoder's config.
        any_length: its encoders have no positions, which would limit how long a text may be.
        enable_lora: function from (encoder, rank) that leaves only low-rank updates of the encoder to train; None: its
            encoders have no such updates.
        layout: the form of its folders as `transformers` writes them; None: it has none.

    >>> FAMILIES["elmo"].tuning.frozen, [*FAMILIES["elmo"].pretraining]
    (True, ['language_model'])
    """

    config: type
    sizes: Mapping[str, Any]
    encoder: Callable[..., keras.Model]
    pretraining: Mapping[str, Callable[[Any, int], keras.Model]]
    tuning: Tuning = Tuning()  # noqa: RUF009  frozen
    reads_vocabulary: Callable[[dict], bool] = lambda config: True
    encoder_config: Callable[[keras.Model, dict], dict] = lambda model, config: config
    any_length: bool = False
    enable_lora: Callable[[keras.Model, int], None] | None = None
    layout: Layout | None = None


def _transformer(name: str) -> Family:
    """A family of Transformer encoders, by the name of its module."""
    models = importlib.import_module(f"keras_ctxrep.models.{name}")
    return Family(
        models.Config,
        models.SIZES,
        models.encoder,
        {"pretrainer": lambda config, words: models.pretrainer(config)},
        tuning.BERT,
        encoder_config=transformer.encoder_config,
        enable_lora=transformer.enable_lora,
        layout=models.LAYOUT,
    )


FAMILIES = {
    "elmo": Family(
        elmo.Config,
        elmo.SIZES,
        lambda config: elmo.encoder(config, config.dropout),
        {"language_model": elmo.language_model},
        tuning.ELMO,
        reads_vocabulary=lambda config: bool(config.get("words")),
        any_length=True,
    ),
    **{name: _transformer(name) for name, side in TEXT_SIDES.items() if side is TRANSFORMER},
    "static": Family(static.Config, {}, static.encoder, {}, tuning.STATIC),
    "lm": Family(
        lm.Config,
        lm.SIZES,
        lm.encoder,
        {"causal_language_model": lm.language_model},
        tuning.LM,
        encoder_config=lm.encoder_config,
        any_length=True,
    ),
}


def depths(encoder: keras.Model) -> dict[str, int]:
    """Layer of an encoder -> its depth, 0 for what makes token vectors; a pooler counts to the head, and is left out.

    >>> from keras_ctxrep.models import bert
    >>> sorted(depths(bert.encoder(bert.SIZES["bert_2_64_2"])).items(), key=lambda item: item[1])[-2:]
    [('layer_0', 1), ('layer_1', 2)]
    """
    names = [layer.name for layer in encoder.layers if layer.weights and layer.name != "pooler"]
    numbered = {name: re.fullmatch(r"(?:layer|forward|backward)_(\d+)", name) for name in names}
    by_name = {name: 1 + int(match[1]) if match else 0 for name, match in numbered.items()}
    tops = {name: max(by_name.values()) for name in ("final_norm", "output_projection") if name in by_name}
    return by_name | tops  # of a language model, over the last layer


def encoder_of(model: keras.Model, family: str, config: dict) -> keras.Model:
    """The encoder inside a model of any task, of the model's own layers: no weight is copied.

    Args:
        model: an encoder, or a model over one.
        family: the name of its family.
        config: fields of the family's config.

    Returns: a model with the outputs of an encoder; without "pooled" where the model has no pooler.

    Raises:
        ValueError: the model lacks a layer of the encoder.

    >>> from dataclasses import asdict
    >>> from keras_ctxrep.models import bert, heads
    >>> config = bert.SIZES["bert_2_64_2"]
    >>> tagger = heads.tag(bert.encoder(config), classes=3)
    >>> encoder = encoder_of(tagger, "bert", asdict(config))
    >>> sorted(encoder.output), encoder.get_layer("layer_0") is tagger.get_layer("layer_0")
    (['layers', 'sequence'], True)
    """
    kind = FAMILIES[family]
    layers = {layer.name: layer for layer in model.layers}

    def shared(layer):
        if not getattr(layer, "weights", None):  # an operation has none
            return layer
        if layer.name not in layers:
            raise ValueError(f"the model has no layer {layer.name!r} of its encoder")
        return layers[layer.name]

    fresh = kind.encoder(kind.config(**kind.encoder_config(model, config)))
    return keras.models.clone_model(fresh, clone_function=shared)
