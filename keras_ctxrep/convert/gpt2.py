"""GPT-2 in Hugging Face folders: a causal Transformer with learned positions, over byte-level BPE.

Radford et al. 2019; https://github.com/huggingface/transformers, models/gpt2/modeling_gpt2.py, whose kernels are not
transposed.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_ctxrep.checks import errors_of
from keras_ctxrep.convert.bert import ACTIVATIONS, DTYPES
from keras_ctxrep.convert.options import SourceOptions
from keras_ctxrep.convert.weights import StoredTensor, Tensor, check, fill
from keras_ctxrep.layers.initializers import no_random_weights
from keras_ctxrep.models import lm
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.subwords import Subwords
from keras_ctxrep.text.tokens import SpecialTokens

__all__ = ["read", "weight_map"]

EPSILON = 1e-5  # of the layer norms of `models.lm`
_BUFFERS = (".attn.bias", ".attn.masked_bias")  # of older folders, no weights
END = "<|endoftext|>"


def read(
    options: SourceOptions, stored: Mapping[str, StoredTensor], source: Path, subwords: Subwords
) -> tuple[keras.Model, Bundle]:
    """The language model in a folder, and its bundle.

    Args:
        options: of its config.json.
        stored: its tensors, name -> values that are read when they are needed.
        source: the file of the weights.
        subwords: its tokenizer.

    Raises:
        ValueError: the tensors do not match the options, or an option is not supported.
    """
    for name, value in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        if options.get(name, bool, default=value) is not value:
            raise ValueError(f"{options.source}: the option {name} is {not value}; {value} is read")
    if (epsilon := options.get("layer_norm_epsilon", (int, float), 0, EPSILON)) != EPSILON:
        raise ValueError(f"{options.source}: the option layer_norm_epsilon is {epsilon}; {EPSILON} is read")
    activation = options.get("activation_function", str, default="gelu_new")
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{options.source}: the option activation_function is {activation!r}; {', '.join(ACTIVATIONS)}"
        )
    rows, width = options.get("vocab_size", int, 1, 50257), options.get("n_embd", int, 1, 768)
    if rows != len(subwords.pieces):
        raise ValueError(f"{source}: {rows:,} rows of the embedding, and {len(subwords.pieces):,} pieces")
    positions = options.get("n_positions", int, 2, 1024)
    with errors_of(options.source):
        config = lm.Config(
            kind="transformer",
            units="pieces",
            layers=options.get("n_layer", int, 1, 12),
            width=width,
            dropout=float(options.get("resid_pdrop", (int, float), 0, 0.1)),
            heads=options.get("n_head", int, 1, 12),
            intermediate=options.get("n_inner", int, 1, 4 * width),
            context=positions - 1,
            positions="learned",
            activation=ACTIVATIONS[activation],
        )
    end = SpecialTokens(END, END, END, END, END)
    if END not in subwords.pieces:
        raise ValueError(f"{source.parent}: its tokenizer has no piece {END}")
    fields: dict[str, Any] = {"special_tokens": end, "tokenizer": subwords.to_json(), "lowercase": False}
    bundle = Bundle("lm", "causal_language_model", asdict(config), positions, vocab=subwords.pieces, **fields)
    prefix = "transformer." if any(name.startswith("transformer.") for name in stored) else ""
    tensors = weight_map(config, rows, prefix)
    ignored = {name for name in stored if name.endswith(_BUFFERS)}
    if "lm_head.weight" in stored:
        if not np.array_equal(stored["lm_head.weight"][()], stored[f"{prefix}wte.weight"][()]):
            raise ValueError(f"{source}: lm_head.weight is not {prefix}wte.weight; our model has one for both")
        ignored.add("lm_head.weight")
    zeros = StoredTensor((rows,), "float32", lambda index: np.zeros(rows, np.float32)[index])
    stored = {**stored, tensors[-1].name: zeros}
    check(tensors, stored, source, ignored, DTYPES)
    with no_random_weights():
        model = lm.language_model(config, rows)
    fill(model, tensors, stored, source)
    return model, bundle


def weight_map(config: lm.Config, rows: int, prefix: str = "") -> list[Tensor]:
    """The weight map; the last tensor, the bias of the softmax, is none of the folder's: it is zero.

    Args:
        config: sizes.
        rows: of the embedding.
        prefix: of the names of all tensors.

    >>> [tensor.name for tensor in weight_map(lm.Config("transformer", layers=1), 9)][:2]
    ['wte.weight', 'wpe.weight']
    """
    width, inner = config.width, config.intermediate
    tensors = [
        Tensor(f"{prefix}wte.weight", (rows, width), ("softmax/softmax_kernel",)),
        Tensor(f"{prefix}wpe.weight", (config.context + 1, width), ("position_embedding/table",)),
    ]
    for index in range(config.layers):
        for theirs, ours, inputs, outputs in (
            ("attn.c_attn", "qkv", width, 3 * width),
            ("attn.c_proj", "attention_output", width, width),
            ("mlp.c_fc", "feed_forward", width, inner),
            ("mlp.c_proj", "feed_forward_output", inner, width),
        ):
            name, layer = f"{prefix}h.{index}.{theirs}", f"layer_{index}/{ours}"
            tensors.append(Tensor(f"{name}.weight", (inputs, outputs), (f"{layer}/kernel",)))
            tensors.append(Tensor(f"{name}.bias", (outputs,), (f"{layer}/bias",)))
        for theirs, ours in (("ln_1", "attention_norm"), ("ln_2", "feed_forward_norm")):
            tensors += _norm(f"{prefix}h.{index}.{theirs}", f"layer_{index}/{ours}", width)
    return [
        *tensors,
        *_norm(f"{prefix}ln_f", "final_norm", width),
        Tensor("softmax.bias", (rows,), ("softmax/softmax_bias",)),
    ]


def _norm(name: str, layer: str, width: int) -> list[Tensor]:
    pairs = (("weight", "gamma"), ("bias", "beta"))
    return [Tensor(f"{name}.{theirs}", (width,), (f"{layer}/{ours}",)) for theirs, ours in pairs]
