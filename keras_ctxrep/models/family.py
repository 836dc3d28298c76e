"""The interface of a family of encoders to the rest of the library; each family's module defines `FAMILY`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from keras_ctxrep.models.tuning import Tuning


def depths(encoder: keras.Model) -> dict[str, int]:
    """Layer of an encoder -> its depth, 0 for what makes token vectors; a pooler counts to the head, and is left out.

    >>> from keras_ctxrep.models import bert
    >>> sorted(depths(bert.encoder(bert.SIZES["bert_2_64_2"])).items(), key=lambda item: item[1])[-2:]
    [('layer_0', 1), ('layer_1', 2)]
    """
    names = [layer.name for layer in encoder.layers if layer.weights and layer.name != "pooler"]
    numbered = {name: re.fullmatch(r"(?:layer|forward|backward)_(\d+)", name) for name in names}
    return {name: 1 + int(match[1]) if match else 0 for name, match in numbered.items()}


def _same(model: keras.Model, config: dict) -> dict:
    return config


@dataclass(frozen=True)
class Family:
    """A family's models.

    Attributes:
        config: dataclass of sizes.
        sizes: name -> config, of published and other sizes.
        encoder: function from a config to an encoder.
        pretraining: name of the pretraining task -> function from (config, vocabulary size) to a model.
        reads_vocabulary: function from the fields of a config to whether the encoder needs the bundle's vocabulary.
        encoder_config: function from (model, fields of its config) to the fields of its encoder's config.
        tuning: the defaults of fine-tuning.
        enable_lora: function from (encoder, rank) that leaves only low-rank updates of the encoder to train; None: its
            encoders have no such updates.

    >>> from keras_ctxrep.models.families import FAMILIES
    >>> FAMILIES["elmo"].tuning.frozen, [*FAMILIES["elmo"].pretraining]
    (True, ['language_model'])
    """

    config: type
    sizes: Mapping[str, Any]
    encoder: Callable[[Any], keras.Model]
    pretraining: Mapping[str, Callable[[Any, int], keras.Model]]
    reads_vocabulary: Callable[[dict], bool]
    tuning: Tuning
    encoder_config: Callable[[keras.Model, dict], dict] = _same
    enable_lora: Callable[[keras.Model, int], None] | None = None
