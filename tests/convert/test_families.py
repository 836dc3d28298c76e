"""Hugging Face folders of BERT's relatives: read, against `transformers`' records, and written back."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_ctxrep as ctx
from keras_ctxrep import saving
from keras_ctxrep.convert import bert as common
from keras_ctxrep.convert import huggingface
from keras_ctxrep.models.families import FAMILIES
from tests import tiny

REFERENCE = Path(__file__).parents[1] / "reference"
RECORDED = tiny.RELATIVES
CASES = [(family, name) for family in RECORDED for name in common.architectures(FAMILIES[family])]
STARTS = np.array([[1, 2, 5, 8], [3, 0, 0, 0]], np.int32)  # of words, as if they stood there
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
TASKS = {"Model": "embed", "MaskedLM": "pretrainer", "SequenceClassification": "classify"}
TASKS |= {"TokenClassification": "tag", "QuestionAnswering": "answer"}
every_case = pytest.mark.parametrize(("family", "name"), CASES)


SHARED = Path(__file__).parents[3] / "shared" / "data"
MPNET = Path(os.environ.get("CTXREP_MPNET", SHARED / "all-mpnet-base-v2"))
VECTORS = {  # by transformers 5.24 in float64: the first numbers, and the cosines with the first text
    "The river burst its banks after three days of rain.": ([-0.023899, -0.049823, -0.019459, 0.019489], 1.0),
    "Schön, naïve café: 12.5% of 300 people!": ([-0.015536, -0.004074, -0.009989, 0.007948], 0.061205),
    "a " * 500: ([0.00318, 0.001506, -0.017671, 0.018392], 0.046263),  # cut
}


@pytest.fixture(scope="module")
def records():
    return {family: tiny.arrays_of(REFERENCE / f"transformers_{family}.npz") for family in RECORDED}


def record(records, family, name, kind):
    arrays, start = records[family], f"{name}|{kind}|"
    values = {key.removeprefix(start): array for key, array in arrays.items() if key.startswith(start)}
    first = f"{FAMILIES[family].layout.classes}Model|weights|"  # has the values of the encoder that all share
    return {
        key: array if array.size else arrays[first + key.removeprefix(f"{family}.")] for key, array in values.items()
    }


def write_folder(folder, records, family, name, tensors=None, **changes):
    """The recorded model as a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    options = json.loads(str(records[family][f"{name}|config"])) | changes
    (folder / "config.json").write_text(json.dumps(options))
    tensors = record(records, family, name, "weights") if tensors is None else tensors
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    vocab = tiny.vocabulary(family)
    pieces = [*vocab, *(f"##{letter}" for letter in "bcdefghijklmnopq")][: options["vocab_size"]]
    if options["pad_token_id"] == 1:
        pieces[:2] = pieces[1::-1]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return folder


def ending(family, name):
    return name.removeprefix(FAMILIES[family].layout.classes).removeprefix("For")


@every_case
def test_numbers_of_transformers(tmp_path, records, family, name):
    model, bundle = huggingface.read(write_folder(tmp_path, records, family, name))
    given, expected = (record(records, family, name, kind) for kind in ("input", "output"))
    mask = given["attention_mask"]
    batch = {
        "token_ids": given["input_ids"],
        "segment_ids": given.get("token_type_ids", np.zeros_like(mask)),
        "mask": mask,
        "mlm_positions": np.tile(np.arange(9, dtype=np.int32), (2, 1)),
        "starts": STARTS,
    }
    outputs = model({key: batch[key] for key in model.input})
    arrays = {key: np.asarray(value) for key, value in outputs.items() if key != "layers"}
    real, head = mask.astype(bool), ending(family, name)
    assert (bundle.family, bundle.task) == (family, TASKS[head])
    if head == "Model":
        layers = np.stack([np.asarray(layer) for layer in outputs["layers"]])
        np.testing.assert_allclose(layers[:, real], expected["hidden_states"][:, real], **CLOSE)
        assert ("pooled" in arrays) == ("pooler_output" in expected) == bundle.config["pooler"]
        if "pooled" in arrays:
            np.testing.assert_allclose(arrays["pooled"], expected["pooler_output"], **CLOSE)
    elif head == "MaskedLM":
        np.testing.assert_allclose(arrays["mlm_logits"][real], expected["logits"][real], **CLOSE)
    elif head == "SequenceClassification":
        np.testing.assert_allclose(arrays["logits"], expected["logits"], **CLOSE)
        assert bundle.labels == ("no", "yes", "both")
    elif head == "TokenClassification":
        at_starts = np.take_along_axis(expected["logits"], STARTS[:, :, None], 1)
        np.testing.assert_allclose(arrays["logits"][STARTS > 0], at_starts[STARTS > 0], **CLOSE)
    else:
        for key in ("start_logits", "end_logits"):
            np.testing.assert_allclose(arrays[key][real], expected[key][real], **CLOSE)


@every_case
def test_round_trip(tmp_path, records, family, name):
    """safetensors -> Keras -> model folder -> Keras -> safetensors, bit by bit; read again, it is the same model."""
    write_folder(tmp_path / "hub", records, family, name)
    saving.save(tmp_path / "m", *huggingface.read(tmp_path / "hub"))
    model, bundle = saving.load(tmp_path / "m")
    huggingface.write(tmp_path / "back", model, bundle)
    first, other = record(records, family, name, "weights"), load_file(tmp_path / "back" / "model.safetensors")
    assert first.keys() == other.keys()
    for tensor, array in first.items():
        assert other[tensor].tobytes() == array.tobytes(), tensor
    assert huggingface.read(tmp_path / "back")[1] == replace(bundle, versions={}, files={})
    before, after = (json.loads((tmp_path / place / "config.json").read_text()) for place in ("hub", "back"))
    for key in (before.keys() & after.keys()) - {"id2label", "label2id", "classifier_dropout"}:
        assert after[key] == before[key], key
    options = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    assert options["cls_token"] == bundle.special_tokens.cls
    assert options["tokenizer_class"] == f"{FAMILIES[family].layout.classes}Tokenizer"


@pytest.mark.parametrize("family", RECORDED)
def test_special_tokens_are_those_of_the_folder(tmp_path, records, family):
    name = f"{FAMILIES[family].layout.classes}Model"
    folder = write_folder(tmp_path, records, family, name)
    own = FAMILIES[family].layout.special_tokens
    assert huggingface.read(folder)[1].special_tokens == own
    pieces = (folder / "vocab.txt").read_text().replace(f"{own.cls}\n", "<begin>\n")
    (folder / "vocab.txt").write_text(pieces)
    with pytest.raises(
        ValueError, match=f"vocab.txt: vocabulary: {own.cls.replace('[', '.').replace(']', '.')} missing"
    ):
        huggingface.read(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"cls_token": {"content": "<begin>"}}))
    assert huggingface.read(folder)[1].special_tokens == replace(own, cls="<begin>")


def test_an_encoder_is_written_from_a_classifier(tmp_path, records):
    """Its pooler is a layer of the head there, and of no encoder."""
    model, bundle = huggingface.read(write_folder(tmp_path / "hub", records, "mpnet", "MPNetForSequenceClassification"))
    huggingface.write(tmp_path / "back", model, bundle, "MPNetModel")
    tensors = load_file(tmp_path / "back" / "model.safetensors")
    assert tensors.keys() == record(records, "mpnet", "MPNetModel", "weights").keys()


def test_positions_that_no_token_has(tmp_path, records):
    folder = write_folder(tmp_path, records, "mpnet", "MPNetModel", max_position_embeddings=2)
    with pytest.raises(ValueError, match="max_position_embeddings is too small: 2 are of no token"):
        huggingface.read(folder)


def test_unknown_families(tmp_path, records):
    folder = write_folder(tmp_path, records, "mpnet", "MPNetModel", model_type="albert")
    with pytest.raises(ValueError, match=r"model_type is 'albert'; only 'bert' or 'mpnet' or .* is read"):
        huggingface.read(folder)


@pytest.mark.parametrize("family", RECORDED)
def test_other_formats_hold_a_bert_alone(family):
    bundle = tiny.bundle("embed", family)
    assert asdict(tiny.config(family))["width"] == 8
    with pytest.raises(ValueError, match=f"a model of the family '{family}': this format holds a BERT"):
        common.architecture_to_write(bundle, families=["bert"])


@pytest.mark.skipif(not MPNET.exists(), reason="sentence-transformers/all-mpnet-base-v2 is not here: CTXREP_MPNET")
@pytest.mark.trains
@pytest.mark.filterwarnings("ignore:.*(is converted, once|read as MPNetModel|left out|were longer than)")
def test_the_published_mpnet(tmp_path, monkeypatch):
    monkeypatch.setenv("CTXREP_CACHE", str(tmp_path))
    model = ctx.load(MPNET, engine="keras")
    vectors = model.encode([*VECTORS])
    np.testing.assert_allclose(vectors[:, :4], [numbers for numbers, _ in VECTORS.values()], atol=2e-6)
    np.testing.assert_allclose(vectors @ vectors[0], [cosine for _, cosine in VECTORS.values()], atol=5e-6)
    assert (model.bundle.max_length, model.bundle.roles) == (384, {})
