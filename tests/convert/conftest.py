"""BERT restated in NumPy, and random tensors for it under the names of Google's checkpoints."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

OPTIONS = {
    "vocab_size": 23,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 11,
    "type_vocab_size": 3,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "initializer_range": 0.05,
}
HEADS = ("pooler", "mlm", "nsp")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopq", "##r"]
_ERF = np.vectorize(math.erf)


def tensors_of(options, rng, parts=HEADS):
    """float32 tensors, large enough for every one to matter."""
    width, inner, tensors = options["hidden_size"], options["intermediate_size"], {}

    def draw(name, *shape, mean=0.0):
        tensors[name] = rng.normal(mean, 0.4, shape).astype(np.float32)

    def dense(name, inputs, units):
        draw(f"{name}/kernel", inputs, units)
        draw(f"{name}/bias", units)

    def norm(name):
        draw(f"{name}/gamma", width, mean=1.0)
        draw(f"{name}/beta", width)

    draw("bert/embeddings/word_embeddings", options["vocab_size"], width)
    draw("bert/embeddings/token_type_embeddings", options.get("type_vocab_size", 2), width)
    draw("bert/embeddings/position_embeddings", options["max_position_embeddings"], width)
    norm("bert/embeddings/LayerNorm")
    for i in range(options["num_hidden_layers"]):
        place = f"bert/encoder/layer_{i}"
        for part in ("query", "key", "value"):
            dense(f"{place}/attention/self/{part}", width, width)
        dense(f"{place}/attention/output/dense", width, width)
        norm(f"{place}/attention/output/LayerNorm")
        dense(f"{place}/intermediate/dense", width, inner)
        dense(f"{place}/output/dense", inner, width)
        norm(f"{place}/output/LayerNorm")
    if "pooler" in parts:
        dense("bert/pooler/dense", width, width)
    if "mlm" in parts:
        dense("cls/predictions/transform/dense", width, width)
        norm("cls/predictions/transform/LayerNorm")
        draw("cls/predictions/output_bias", options["vocab_size"])
    if "nsp" in parts:
        draw("cls/seq_relationship/output_weights", 2, width)
        draw("cls/seq_relationship/output_bias", 2)
    return tensors


class Restated:
    """BERT after Devlin et al. 2018 and the names of Google's checkpoints, in float64, one text at a time.

    It shares no code with ours: three projections, loops over heads and queries, only the real tokens are computed.
    """

    def __init__(self, options, tensors):
        self.options = options
        self.tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
        self.epsilon = options.get("layer_norm_eps", 1e-12)

    def dense(self, name, x):
        return x @ self.tensors[f"{name}/kernel"] + self.tensors[f"{name}/bias"]

    def norm(self, name, x):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.epsilon)
        return scaled * self.tensors[f"{name}/gamma"] + self.tensors[f"{name}/beta"]

    def activation(self, x):
        name = self.options.get("hidden_act", "gelu")
        if name == "relu":
            return np.maximum(x, 0)
        if name == "gelu":
            return x * (1 + _ERF(x / math.sqrt(2))) / 2
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    def attention(self, place, x):
        heads = self.options["num_attention_heads"]
        size = x.shape[-1] // heads
        q, k, v = (self.dense(f"{place}/attention/self/{part}", x) for part in ("query", "key", "value"))
        out = np.zeros_like(x)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            for at in range(len(x)):
                scores = k[:, part] @ q[at, part] / math.sqrt(size)
                weights = np.exp(scores - scores.max())
                out[at, part] = (weights / weights.sum()) @ v[:, part]
        return out

    def layers(self, ids, segments):
        """(layers + 1) x (T, D) of one text."""
        t = self.tensors
        x = t["bert/embeddings/word_embeddings"][ids] + t["bert/embeddings/token_type_embeddings"][segments]
        x = self.norm("bert/embeddings/LayerNorm", x + t["bert/embeddings/position_embeddings"][: len(ids)])
        outputs = [x]
        for i in range(self.options["num_hidden_layers"]):
            place = f"bert/encoder/layer_{i}"
            attended = self.dense(f"{place}/attention/output/dense", self.attention(place, x))
            x = self.norm(f"{place}/attention/output/LayerNorm", x + attended)
            inner = self.activation(self.dense(f"{place}/intermediate/dense", x))
            x = self.norm(f"{place}/output/LayerNorm", x + self.dense(f"{place}/output/dense", inner))
            outputs.append(x)
        return outputs

    def pooled(self, top):
        return np.tanh(self.dense("bert/pooler/dense", top[0]))

    def nsp(self, top):
        t = self.tensors
        weights = t["cls/seq_relationship/output_weights"]
        return weights @ self.pooled(top) + t["cls/seq_relationship/output_bias"]

    def mlm(self, top, positions):
        x = self.activation(self.dense("cls/predictions/transform/dense", top[positions]))
        x = self.norm("cls/predictions/transform/LayerNorm", x)
        return x @ self.tensors["bert/embeddings/word_embeddings"].T + self.tensors["cls/predictions/output_bias"]

    def compare(self, outputs, batch, close):
        """That a model's outputs are these, and that what is masked is zero; the names of what was compared."""
        for row, mask in enumerate(batch["mask"]):
            real = int(mask.sum())
            layers = self.layers(batch["token_ids"][row, :real], batch["segment_ids"][row, :real])
            top = layers[-1]
            if "layers" in outputs:
                assert len(outputs["layers"]) == len(layers)
                for actual, expected in zip(outputs["layers"], layers, strict=True):
                    actual = np.asarray(actual[row])
                    np.testing.assert_allclose(actual[:real], expected, **close)
                    assert not actual[real:].any()
                np.testing.assert_allclose(np.asarray(outputs["sequence"])[row, :real], top, **close)
            for name, right in (
                ("pooled", lambda top: self.pooled(top)),
                ("nsp_logits", lambda top: self.nsp(top)),
                ("mlm_logits", lambda top, row=row: self.mlm(top, batch["mlm_positions"][row])),
            ):
                if name in outputs:
                    np.testing.assert_allclose(np.asarray(outputs[name])[row], right(top), **close)
        return set(outputs)


def batch_of(options, rng):
    """Three rows of 9, 4 and 1 tokens, and two positions in each."""
    mask = np.array([[1] * 9, [1] * 4 + [0] * 5, [1] + [0] * 8], np.int32)
    return {
        "token_ids": rng.integers(0, options["vocab_size"], mask.shape).astype(np.int32),
        "segment_ids": rng.integers(0, options.get("type_vocab_size", 2), mask.shape).astype(np.int32),
        "mask": mask,
        "mlm_positions": np.array([[8, 2], [3, 0], [0, 0]], np.int32),
    }


@pytest.fixture(scope="session")
def tiny():
    """What the tests of this folder share."""
    close = {"atol": 1e-5, "rtol": 1e-5}  # float32 against float64
    return SimpleNamespace(
        OPTIONS=OPTIONS, PIECES=PIECES, CLOSE=close, Restated=Restated, tensors_of=tensors_of, batch_of=batch_of
    )
