"""The families of encoders by the names that bundles use."""

import keras

from keras_ctxrep.models import bert, elmo, static
from keras_ctxrep.models.family import Family

FAMILIES: dict[str, Family] = {"elmo": elmo.FAMILY, "bert": bert.FAMILY, "static": static.FAMILY}


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
    >>> from keras_ctxrep.models import heads
    >>> config = bert.SIZES["bert_2_64_2"]
    >>> tagger = heads.tag(bert.encoder(config), classes=3)
    >>> encoder = encoder_of(tagger, "bert", asdict(config))
    >>> sorted(encoder.output), encoder.get_layer("layer_0") is tagger.get_layer("layer_0")
    (['layers', 'sequence'], True)
    """
    kind = FAMILIES[family]
    own = {layer.name: layer for layer in model.layers}

    def shared(layer):
        if not getattr(layer, "weights", None):  # an operation has none
            return layer
        if layer.name not in own:
            raise ValueError(f"the model has no layer {layer.name!r} of its encoder")
        return own[layer.name]

    fresh = kind.encoder(kind.config(**kind.encoder_config(model, config)))
    return keras.models.clone_model(fresh, clone_function=shared)
