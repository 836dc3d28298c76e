"""The interface of a family of encoders to the rest of the library; each family's module defines `FAMILY`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras


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
    """A family's models and the defaults for fine-tuning them.

    Attributes:
        config: dataclass of sizes.
        sizes: name -> config, of published and other sizes.
        encoder: function from a config to an encoder.
        pretraining: name of the pretraining task -> function from (config, vocabulary size) to a model.
        reads_vocabulary: function from the fields of a config to whether the encoder needs the bundle's vocabulary.
        encoder_config: function from (model, fields of its config) to the fields of its encoder's config.
        frozen: fine-tuning does not train the encoder, unless its weights are random.
        mix: heads read a scalar mix of all layers instead of the top one.
        mix_l2: L2 penalty on the weights of the mix.
        dropout: dropout rate on the input of the head or the task network.
        encoder_dropout: dropout rate inside an encoder that is trained; None: it has no dropout.
        epochs: passes over the data.
        learning_rate: function from the width to the peak learning rate.
        enable_lora: function from (encoder, rank) that leaves only low-rank updates of the encoder to train; None: its
            encoders have no such updates.

    >>> from keras_ctxrep.models.families import FAMILIES
    >>> FAMILIES["elmo"].frozen, FAMILIES["bert"].epochs
    (True, 3.0)
    """

    config: type
    sizes: Mapping[str, Any]
    encoder: Callable[[Any], keras.Model]
    pretraining: Mapping[str, Callable[[Any, int], keras.Model]]
    reads_vocabulary: Callable[[dict], bool]
    encoder_config: Callable[[keras.Model, dict], dict] = _same
    frozen: bool = False
    mix: bool = False
    mix_l2: float = 0.0
    dropout: float = 0.5
    encoder_dropout: float | None = 0.1
    epochs: float = 10.0
    learning_rate: Callable[[int], float] = lambda width: 1e-3
    enable_lora: Callable[[keras.Model, int], None] | None = None
