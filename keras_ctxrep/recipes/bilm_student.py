"""An ELMo that learns the vectors of a BERT from text, while it stays a language model in both directions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
from keras import layers as klayers

from keras_ctxrep.layers import MaskedPooling, ZeroPadding
from keras_ctxrep.models import elmo
from keras_ctxrep.models.model import Model, copy_weights
from keras_ctxrep.options import EncoderDistillation
from keras_ctxrep.saving import ModelFolder
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Row
from keras_ctxrep.text.pretraining import Vocabulary, for_sampling, language_model_batch

LOGITS = ("forward_logits", "backward_logits")  # the outputs of a biLM


def begin(initial: ModelFolder, options: EncoderDistillation) -> ModelFolder:
    """The student before it has learned anything: a copy with the dropout of this run.

    Args:
        initial: an ELMo with its language model.
        options: of the run.
    """
    config: dict[str, Any] = initial.bundle.config | {"dropout": options.dropout or 0.0}
    size, samples = len(initial.bundle.vocab), options.samples
    if samples is not None and samples > size:
        raise ValueError(f"samples={samples}: {options.init} has {size} words; sample fewer, or none")
    model = elmo.language_model(elmo.Config(**config), size, samples)
    copy_weights(initial.model, model)
    return ModelFolder(model, initial.bundle)


def learner(model: keras.Model, learn: Sequence[str]) -> keras.Model:
    """The student with an output for each of the losses: its logits, and its vectors.

    Words and texts are those of the top layer, as `Model.encode` gives them.

    Args:
        model: `elmo.language_model`.
        learn: the losses.

    >>> model = elmo.language_model(elmo.SIZES["elmo_2x128_64_256cnn_1xhighway"], 9)
    >>> sorted(learner(model, ["words", "texts"]).output), learner(model, ["words"]).output["words"].shape
    (['backward_logits', 'forward_logits', 'texts', 'words'], (None, None, 1, 128))
    """
    tops = []
    for direction, crop in (("forward", (1, 0)), ("backward", (0, 1))):
        top = model.get_layer(f"{direction}_top_dropout").input
        tops.append(klayers.Cropping1D(crop, name=f"{direction}_top")(top))
    both = klayers.Concatenate(name="top")(tops)  # (B, T, 2 P)
    mask = model.input["mask"]
    top = ZeroPadding(carry_mask=True, name="top_words")(both, mask=mask)
    text = MaskedPooling("mean", name="top_mean")(top, mask=mask)
    outputs = {"words": both[:, :, None], "relations": both[:, :, None], "texts": text}
    chosen = {name: outputs[name] for name in learn if name in outputs}
    return Model(model.input, chosen | {name: model.output[name] for name in LOGITS}, name="learner")


class BilmReader:
    """How an ELMo that learns reads sentences, and what its language model is to predict.

    Args:
        bundle: of the student.
        max_length: words of a sentence.
        sampled: for a model with `samples`.
    """

    def __init__(self, bundle: Bundle, max_length: int, sampled: bool = False):
        self.sampled = sampled
        self.features = replace(bundle, max_length=min(max_length, bundle.max_length)).features
        self.vocabulary = Vocabulary(bundle.vocab)

    def encode(self, sentences: Sequence[str]) -> list[Row]:
        """The rows of sentences."""
        return self.features.encode(sentences)

    def words(self, row: Row) -> int:
        """How many words a row has."""
        return len(row)

    def batch(self, rows: Sequence[Row]) -> tuple[dict, dict, dict]:
        """(inputs of the learner, targets of its own, their weights)."""
        batch = language_model_batch(self.features, self.vocabulary, rows)
        return for_sampling(*batch) if self.sampled else batch
