"""GPT-2 in Hugging Face folders, against a record of `transformers`."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import pre_tokenizers

import keras_ctxrep as ctx
from keras_ctxrep import saving
from keras_ctxrep.convert import huggingface
from keras_ctxrep.models import lm
from keras_ctxrep.text.subwords import Added, Subwords
from tests import tiny

END = "<|endoftext|>"
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = tuple((first, second) for first in "Ġabcdef" for second in "ghijklm")[:43]
BPE = Subwords(
    "bpe", (END, *LETTERS, *map("".join, MERGES)), merges=MERGES, added=(Added(0),)
)  # fmt: skip


@pytest.fixture(scope="module")
def record():
    return tiny.arrays_of(Path(__file__).parents[1] / "reference" / "transformers_gpt2.npz")


@pytest.fixture
def folder(record, tmp_path):
    def write(prefix="transformer.", **options):
        path = tmp_path / "hub"
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(json.loads(str(record["config"])) | options))
        tensors = {key.removeprefix("weights|"): array for key, array in record.items() if key.startswith("weights|")}
        tensors = {name.replace("transformer.", prefix): array for name, array in tensors.items()}
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        (path / "tokenizer.json").write_text(BPE.to_json())
        return path

    return write


def test_logits_of_transformers(record, folder):
    """Read whole and in parts, from the state."""
    model, bundle = huggingface.read(folder())
    assert (bundle.family, bundle.task, bundle.max_length) == ("lm", "causal_language_model", 24)
    ids, mask = record["input"], np.ones_like(record["input"])
    state = np.zeros((3, lm.state_size(lm.Config(**bundle.config))), np.float32)
    whole = np.asarray(model({"token_ids": ids, "mask": mask, "state": state})["logits"])
    np.testing.assert_allclose(whole, record["logits"], rtol=1e-5, atol=1e-5)
    parts = []
    for begin, end in ((0, 3), (3, 4), (4, 7)):
        outputs = model({"token_ids": ids[:, begin:end], "mask": mask[:, begin:end], "state": state})
        parts.append(np.asarray(outputs["logits"]))
        state = np.asarray(outputs["state"])
    np.testing.assert_allclose(np.concatenate(parts, 1), record["logits"], rtol=1e-4, atol=1e-4)


def test_it_generates_what_transformers_does(record, folder, tmp_path):
    """Greedily, from a model folder."""
    saving.save(tmp_path / "m", *huggingface.read(folder(prefix="")))
    model = ctx.load(tmp_path / "m", engine="keras")
    tokens = model.bundle.tokens
    engine = model.engine.generate
    engine.features.prompt = {str(number): row.tolist() for number, row in enumerate(record["input"])}.get
    generated = engine(["0", "1", "2"], ctx.options.Generation(length=12, temperature=0))
    assert generated == [tokens.text(row[7:].tolist()) for row in record["generated"]]


def test_texts(folder):
    features = huggingface.read(folder())[1].tokens
    text = "ag  café\n\n中 " + END
    assert features.text(features.prompt(text)) == text and features.prompt("") == [0]
    assert 0 not in features.prompt(text)
    assert [*features.strings(features.prompt("é!"))] == ["", "é", "!"]
    (row,) = features.encode([["ag", "bh"]])
    assert row.starts == [1, 3]  # of "Ġ", "ag", "Ġ", "bh" the last ones of words


def test_refusals(folder, tmp_path):
    for option, value in (("scale_attn_weights", False), ("layer_norm_epsilon", 1e-6), ("activation_function", "tanh")):
        with pytest.raises(ValueError, match=f"config.json: the option {option} is "):
            huggingface.read(folder(**{option: value}))
    with pytest.raises(ValueError, match="200 rows of the embedding, and 300 pieces"):
        huggingface.read(folder(vocab_size=200))
    with pytest.raises(ValueError, match=r"wpe.weight has the shape \(24, 12\); its options call for \(20, 12\)"):
        huggingface.read(folder(n_positions=20))
    (folder() / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"no byte-level BPE in it, a tokenizer\.json, or vocab\.json and merges\.txt"):
        huggingface.read(tmp_path / "hub")
