"""What the rest of the library asks of a family of encoders; each says it in its own file, as `FAMILY`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras


def _same(model: keras.Model, config: dict) -> dict:
    return config


@dataclass(frozen=True)
class Family:
    """A family's models and the defaults of fine-tuning them.

    Attributes:
        config: its dataclass of sizes.
        sizes: the published ones and others, by name.
        encoder: config -> encoder.
        pretraining: name of the pretraining task -> (config, words of the vocabulary) -> model.
        reads_vocabulary: fields of the config -> whether the encoder needs the bundle's vocabulary.
        encoder_config: a model, fields of its config -> the fields of its encoder alone.
        frozen: fine-tuning leaves the encoder's weights as they are, unless they are random.
        mix: heads read a scalar mix of all layers instead of the top one.
        mix_l2: penalty on the weights of the mix.
        dropout: on what the head or the task network reads.
        encoder_dropout: inside an encoder that is trained; None: it has none.
        epochs: passes over the data.
        learning_rate: width -> its peak.

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
