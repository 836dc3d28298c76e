"""Hugging Face folders of BERT: read, against `transformers`' records and a restatement, written back, refused."""

import contextlib
import json
import os
import pickle
import re
import struct
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import keras
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from keras_ctxrep import saving, tasks
from keras_ctxrep.cli.main import main
from keras_ctxrep.convert import bert as common
from keras_ctxrep.convert import huggingface
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models import bert, heads
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.training import checkpoints
from tests import tiny as tiny_models

ROOT = Path(__file__).parents[2]
NER = ROOT.parent / "shared" / "data" / "bert_checkpoints" / "camphr_tiny_hf_ner"
RECORDS = np.load(ROOT / "tests" / "reference" / "transformers_bert.npz")
ARCHITECTURES = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
)
keras_on_numpy_2 = pytest.mark.filterwarnings("ignore:__array__ implementation")  # which pytest.warns shows again
every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
QUERY = "bert.encoder.layer.1.attention.self.query.weight"
WORDS = "bert.embeddings.word_embeddings.weight"
STARTS = np.array([[1, 2, 5, 8], [3, 0, 0, 0]], np.int32)  # of words, as if they stood there
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def record(name, kind):
    start = f"{name}|{kind}|"
    return {key.removeprefix(start): RECORDS[key] for key in RECORDS if key.startswith(start)}


def write_folder(folder, name, pieces, tensors=None, **changes):
    """The recorded model as a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    options = json.loads(str(RECORDS[f"{name}|config"])) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in options.items() if value != "absent"}))
    save_file(record(name, "weights") if tensors is None else tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return folder


@pytest.fixture
def folder(tmp_path, tiny):
    return write_folder(tmp_path / "hub", "BertForPreTraining", tiny.PIECES)


# ----------------------------------------------------------------------------------------------------------- numbers


def outputs_of(model, name):
    given = record(name, "input")
    batch = {
        "token_ids": given["input_ids"],
        "segment_ids": given["token_type_ids"],
        "mask": given["attention_mask"],
        "mlm_positions": np.tile(np.arange(9, dtype=np.int32), (2, 1)),
        "starts": STARTS,
    }
    return model({key: batch[key] for key in model.input}), given["attention_mask"]


@every_architecture
def test_numbers_of_transformers(tmp_path, tiny, name):
    model, bundle = huggingface.read(write_folder(tmp_path, name, tiny.PIECES))
    expected = record(name, "output")
    outputs, mask = outputs_of(model, name)
    outputs = {key: np.asarray(value) for key, value in outputs.items() if key != "layers"}
    real = mask.astype(bool)
    if name == "BertModel":
        layers = np.stack([np.asarray(layer) for layer in outputs_of(model, name)[0]["layers"]])
        np.testing.assert_allclose(layers[:, real], expected["hidden_states"][:, real], **CLOSE)
        assert not layers[:, ~real].any() and np.array_equal(outputs["sequence"], layers[-1])
        np.testing.assert_allclose(outputs["pooled"], expected["pooler_output"], **CLOSE)
    elif name in ("BertForPreTraining", "BertForMaskedLM"):
        right = expected["prediction_logits" if "Pre" in name else "logits"]
        np.testing.assert_allclose(outputs["mlm_logits"][real], right[real], **CLOSE)
        assert ("nsp_logits" in outputs) == ("Pre" in name)
        if "Pre" in name:
            np.testing.assert_allclose(outputs["nsp_logits"], expected["seq_relationship_logits"], **CLOSE)
    elif name == "BertForTokenClassification":
        at_starts = np.take_along_axis(expected["logits"], STARTS[:, :, None], 1)
        np.testing.assert_allclose(outputs["logits"][STARTS > 0], at_starts[STARTS > 0], **CLOSE)
        assert not outputs["logits"][STARTS == 0].any()
    elif name == "BertForQuestionAnswering":
        for key in ("start_logits", "end_logits"):
            np.testing.assert_allclose(outputs[key][real], expected[key][real], **CLOSE)
            assert (outputs[key][~real] == -1e4).all()
    else:
        np.testing.assert_allclose(outputs["logits"], expected["logits"], **CLOSE)
    tasks = ("embed", "pretrainer", "pretrainer", "classify", "classify", "tag", "answer")
    assert bundle.task == dict(zip(ARCHITECTURES, tasks, strict=True))[name]
    labels = {
        "BertForNextSentencePrediction": ("next", "random"),
        "BertForSequenceClassification": ("no", "yes", "both"),
        "BertForTokenClassification": tuple(f"LABEL_{index}" for index in range(5)),
    }
    assert bundle.labels == labels.get(name, ())
    assert bundle.pairs == (name in ("BertForNextSentencePrediction", "BertForQuestionAnswering"))
    assert bundle.head == ({} if not bundle.labels else {"dropout": 0.25 if "Sequence" in name else 0.1})
    activations = dict.fromkeys(("BertForPreTraining", "BertForQuestionAnswering"), "gelu_tanh")
    activations["BertForTokenClassification"] = "relu"
    assert bundle.config["activation"] == activations.get(name, "gelu")
    assert bundle.config["epsilon"] == (1e-5 if name == "BertForMaskedLM" else 1e-12)
    assert bundle.config["segments"] == (4 if "Next" in name else 2)


def in_their_names(tensors, old_norms=False):
    """Google's names and layout as those of PyTorch's port, spelled out without our table."""
    result = {}
    for name, array in tensors.items():
        if name == "cls/predictions/output_bias":
            name = "cls.predictions.bias"
        elif name.startswith("cls/seq_relationship/"):
            name = name.replace("/output_weights", "/weight").replace("/output_bias", "/bias")
        elif name.endswith("/kernel"):
            name, array = name.replace("/kernel", "/weight"), np.ascontiguousarray(array.T)
        elif name.endswith("embeddings"):
            name += ".weight"
        elif not old_norms:
            name = name.replace("/gamma", "/weight").replace("/beta", "/bias")
        result[name.replace("/layer_", "/layer/").replace("/", ".")] = array
    return result


@pytest.mark.parametrize("variant", ["new", "old_norms", "no_prefix", "tied", "positions", "half", "brain", "sharded"])
def test_ways_to_write_a_checkpoint(tmp_path, tiny, rng, variant):
    """Against the restatement, which has the numbers as float32."""
    google_s = tiny.tensors_of(tiny.OPTIONS, rng)
    if variant in ("half", "brain"):
        kind = np.float16 if variant == "half" else ml_dtypes.bfloat16
        google_s = {name: array.astype(kind).astype(np.float32) for name, array in google_s.items()}
    tensors = in_their_names(google_s, variant == "old_norms")
    if variant in ("half", "brain"):
        tensors = {name: array.astype(kind) for name, array in tensors.items()}
    if variant == "no_prefix":
        tensors = {name.removeprefix("bert."): array for name, array in tensors.items()}
    if variant == "tied":
        tensors["cls.predictions.decoder.weight"] = tensors[WORDS].copy()
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    if variant == "positions":
        tensors["bert.embeddings.position_ids"] = np.arange(11)[None]
    write_folder(tmp_path, "BertForPreTraining", tiny.PIECES, tensors, **tiny.OPTIONS)
    if variant == "sharded":
        shard(tmp_path)
    model, bundle = huggingface.read(tmp_path)
    assert {str(weight.dtype) for weight in model.weights if "seed" not in weight.path} == {"float32"}
    batch = tiny.batch_of(tiny.OPTIONS, rng)
    compared = tiny.Restated(tiny.OPTIONS, google_s).compare(model(batch), batch, CLOSE)
    assert compared == {"mlm_logits", "nsp_logits"} and bundle.config["dropout"] == 0.2


def shard(folder, files=2):
    tensors = load_file(folder / "model.safetensors")
    names = [f"model-{number + 1:05}-of-{files:05}.safetensors" for number in range(files)]
    places = {tensor: names[index % files] for index, tensor in enumerate(sorted(tensors))}
    for name in names:
        save_file({tensor: tensors[tensor] for tensor in places if places[tensor] == name}, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "model.safetensors").unlink()
    return places


@keras_on_numpy_2
def test_no_pooler(tmp_path, tiny):
    tensors = {name: array for name, array in record("BertModel", "weights").items() if "pooler" not in name}
    with pytest.warns(UserWarning, match="says BertModel, but there are no weights for: pooled output; read as BertM"):
        model, bundle = huggingface.read(write_folder(tmp_path, "BertModel", tiny.PIECES, tensors))
    assert set(model.output) == {"layers", "sequence", "vector"} and bundle.config["pooler"] is False
    with pytest.warns(UserWarning, match=r"back: an encoder without a pooler; .*add_pooling_layer=False"):
        huggingface.write(tmp_path / "back", model, bundle)
    assert load_file(tmp_path / "back" / "model.safetensors").keys() == tensors.keys()


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForTokenClassification", "BertForQuestionAnswering"])
def test_a_pooler_that_nothing_reads(tmp_path, tiny, name):
    tensors = record(name, "weights")
    pooler = {key: array for key, array in record("BertForPreTraining", "weights").items() if "pooler" in key}
    assert len(pooler) == 2
    with pytest.warns(UserWarning, match=r"model\.safetensors: left out: the pooler, which no head reads"):
        model, bundle = huggingface.read(write_folder(tmp_path, name, tiny.PIECES, tensors | pooler))
    assert bundle.config["pooler"] is False and not any(layer.name == "pooler" for layer in model.layers)


@pytest.mark.parametrize(
    ("claimed", "missing", "task"),
    [
        ("BertForPreTraining", "masked language model, next sentence; read as BertModel", "embed"),
        ("BertForSequenceClassification", "classes; read as BertModel", "embed"),
        ("BertForQuestionAnswering", "answer spans; read as BertModel", "embed"),
        ("SomeEmbedder", None, "embed"),
    ],
)
def test_heads_without_weights_are_reported(tmp_path, tiny, claimed, missing, task, recwarn):
    write_folder(tmp_path, "BertModel", tiny.PIECES, architectures=[claimed])
    model, bundle = huggingface.read(tmp_path)
    assert bundle.task == task and model.name == "bert_encoder"
    messages = [str(warning.message) for warning in recwarn if warning.category is UserWarning]
    assert len(messages) == (missing is not None)
    if missing:
        assert f"config.json says {claimed}, but there are no weights for: {missing}" in messages[0]


def test_the_tensors_say_what_the_model_is(tmp_path, tiny):
    """As in published checkpoints that hold both pretraining heads and are called BertForMaskedLM."""
    write_folder(tmp_path, "BertForPreTraining", tiny.PIECES, architectures=["BertForMaskedLM"])
    assert set(huggingface.read(tmp_path)[0].output) == {"mlm_logits", "nsp_logits"}


# ---------------------------------------------------------------------------------------------------- there and back


@every_architecture
def test_round_trip(tmp_path, tiny, name):
    """safetensors -> Keras -> model folder -> Keras -> safetensors, bit by bit; read again, it is the same model."""
    write_folder(tmp_path / "hub", name, tiny.PIECES)
    saving.save(tmp_path / "m", *huggingface.read(tmp_path / "hub"))
    model, bundle = saving.load(tmp_path / "m")
    huggingface.write(tmp_path / "back", model, bundle)
    first, other = record(name, "weights"), load_file(tmp_path / "back" / "model.safetensors")
    assert first.keys() == other.keys()
    for tensor, array in first.items():
        back = other[tensor]
        assert back.dtype == np.float32 and back.shape == array.shape and back.tobytes() == array.tobytes(), tensor
    again, same = huggingface.read(tmp_path / "back")
    assert same == replace(bundle, versions={}, files={})
    for weight, copy in zip(model.get_weights(), again.get_weights(), strict=True):
        assert weight.tobytes() == copy.tobytes()
    before = json.loads((tmp_path / "hub" / "config.json").read_text())
    after = json.loads((tmp_path / "back" / "config.json").read_text())
    same = {"gelu_pytorch_tanh": "gelu_new"}  # one function
    for key in (before.keys() & after.keys()) - {"id2label", "label2id", "classifier_dropout"}:
        assert after[key] == (same.get(before[key], before[key]) if key == "hidden_act" else before[key]), key
    assert after["architectures"] == [name] and after["model_type"] == "bert" and after["pad_token_id"] == 0
    if name == "BertForSequenceClassification":
        assert after["id2label"] == {"0": "no", "1": "yes", "2": "both"} and after["label2id"]["both"] == 2


def test_written_files(tmp_path, tiny, folder):
    _, bundle = huggingface.read(folder)
    bundle = replace(bundle, lowercase=False, strip_accents=True, split_cjk=False, max_length=9)
    model = common.build(bundle)
    huggingface.write(tmp_path / "back", model, bundle)
    names = {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert {path.name for path in (tmp_path / "back").iterdir()} == names
    data = (tmp_path / "back" / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    assert size % 8 == 0 and json.loads(data[8 : 8 + size])["__metadata__"] == {"format": "pt"}
    for removed in ((), ("vocab.txt",), ("tokenizer_config.json",), ("vocab.txt", "tokenizer.json")):
        for name in removed:
            (tmp_path / "back" / name).rename(tmp_path / name)
        if "vocab.txt" in removed and "tokenizer.json" in removed:
            with pytest.raises(ValueError, match=r"back: no vocab\.txt in it, and no tokenizer\.json"):
                huggingface.read(tmp_path / "back")
        else:
            same = huggingface.read(tmp_path / "back")[1]
            longest = 11 if "tokenizer_config.json" in removed else 9
            assert same == replace(bundle, max_length=longest)
        for name in removed:
            (tmp_path / name).rename(tmp_path / "back" / name)


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"lowercase": False},
        {"strip_accents": False},
        {"split_cjk": False},
        {"lowercase": False, "strip_accents": True},
    ],
)
def test_the_written_tokenizer(tmp_path, kind):
    """The same ids as ours, and the same markers and segments."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "a", "A", "é", "e", "É", "世", "##界", "."]
    bundle = tiny_models.bundle("embed", vocab=pieces, max_length=32, **kind)
    huggingface.write(tmp_path, saving.build(bundle), bundle)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    pairs = [("Unable a A.", "é É"), ("世界 E", "unable. a"), ("", "a"), ("a\tbé", "e")]
    ours = bundle.features([pair for pair, _ in pairs], [pair for _, pair in pairs])
    for row, (first, second) in enumerate(pairs):
        theirs = tokenizer.encode(first, second)
        real = int(ours["mask"][row].sum())
        assert theirs.ids == ours["token_ids"][row, :real].tolist()
        assert theirs.type_ids == ours["segment_ids"][row, :real].tolist()
    assert huggingface.read(tmp_path)[1] == bundle


@keras_on_numpy_2
@pytest.mark.parametrize("kind", ["classify", "tag", "answer", "pretrainer"])
def test_written_from_what_was_trained(folder, tmp_path, kind):
    """A head on the encoder of a pretrainer, whose config says that it has a pooler."""
    saving.save(tmp_path / "m", *huggingface.read(folder))
    encoder, bundle = saving.load_encoder(tmp_path / "m")
    if kind == "pretrainer":
        model, bundle = saving.load(tmp_path / "m")
    else:
        bundle = replace(bundle, labels=() if kind == "answer" else ("a", "b"), **tasks.bundle_fields(kind))
        model = tasks.get(kind).head(encoder, bundle)
    model.get_layer("layer_1").weights[0].assign(model.get_layer("layer_1").weights[0] + 1)
    huggingface.write(tmp_path / "back", model, bundle)
    pooler = kind in ("classify", "pretrainer")
    with contextlib.nullcontext() if pooler else pytest.warns(UserWarning, match="an encoder without a pooler"):
        huggingface.write(tmp_path / "encoder", model, bundle, "BertModel")
    before = record("BertForPreTraining", "weights")
    after, encoder = (load_file(tmp_path / name / "model.safetensors") for name in ("back", "encoder"))
    assert any("pooler" in name for name in after) == (kind in ("classify", "pretrainer"))
    assert any("pooler" in name for name in encoder) == (kind in ("classify", "pretrainer"))
    for name, array in encoder.items():
        trained = name.startswith("encoder.layer.1.attention.self") and name.endswith("weight")
        np.testing.assert_array_equal(array, before[f"bert.{name}"] + np.float32(trained))
        np.testing.assert_array_equal(after.get(f"bert.{name}", array), array)


def test_a_folder_of_each_task_is_saved_and_loaded(tmp_path, tiny):
    for name in ("BertForTokenClassification", "BertForQuestionAnswering"):
        model, bundle = huggingface.read(write_folder(tmp_path / name, name, tiny.PIECES))
        saving.save(tmp_path / "m", model, bundle)
        again, _ = saving.load(tmp_path / "m")
        actual, expected = outputs_of(again, name)[0], outputs_of(model, name)[0]
        assert all(np.array_equal(actual[key], expected[key]) for key in expected)
        predictor = Predictor(bundle, lambda batch, model=model: model({key: batch[key] for key in model.input}))
        (answer,) = predictor(["unable"], ["a é a"]) if bundle.task == "answer" else predictor(["a é a"])
        assert len(answer["words" if bundle.task == "tag" else "n_best"]) > 1
        encoder, _ = saving.load_encoder(tmp_path / "m")
        assert encoder.name == "bert_encoder"


def test_the_command(folder, tmp_path, capsys):
    assert main(["convert", str(folder), "--from", "huggingface", "--out", str(tmp_path / "m")]) == 0
    printed = capsys.readouterr()
    assert "heads: pooled output, masked language model, next sentence\n" in printed.out
    assert "heads missing: classes, answer spans\n" in printed.out
    assert main(["convert", str(tmp_path / "m"), "--to", "huggingface", "--out", str(tmp_path / "back")]) == 0
    first, other = load_file(folder / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert first.keys() == other.keys() and all(first[name].tobytes() == other[name].tobytes() for name in first)
    (folder / "config.json").write_text("{}")
    capsys.readouterr()
    assert main(["convert", str(folder), "--from", "huggingface", "--out", str(tmp_path / "m")]) == 1
    assert "config.json: the option vocab_size is missing" in capsys.readouterr().err


def test_the_command_keeps_nothing_of_an_earlier_model(folder, tmp_path):
    out = tmp_path / "m"
    out.mkdir()
    for name in ("card.md", "run.json", "notes.txt"):
        (out / name).write_text("of the earlier model")
    state = out / "checkpoint" / "state.json"
    state.parent.mkdir()
    state.write_text(json.dumps({"format": checkpoints.CHECKPOINT}))
    command = ["convert", str(folder), "--from", "huggingface", "--out", str(out)]
    assert main(command) == 0
    assert {path.name for path in out.iterdir()} == {"bundle.json", "model.weights.h5", "vocab.txt", "notes.txt"}
    assert saving.load(out)[1].card == ""


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint/mine.txt"])
def test_the_command_keeps_a_checkpoint_that_is_not_of_a_run(folder, tmp_path, name):
    """Such as the file of that name beside the checkpoints of TensorFlow 1."""
    path = tmp_path / "m" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert main(["convert", str(folder), "--from", "huggingface", "--out", str(tmp_path / "m")]) == 0
    assert path.read_text() == "mine"


@pytest.mark.parametrize("direction", [("--from", "huggingface"), ("--to", "huggingface")])
def test_the_command_checks_its_output_before_it_reads(folder, tmp_path, capsys, direction):
    (tmp_path / "file").write_text("mine")
    (folder / "model.safetensors").unlink()
    assert main(["convert", str(folder), *direction, "--out", str(tmp_path / "file")]) == 1
    assert f"{tmp_path / 'file'}: a file; name a folder" in capsys.readouterr().err


def test_the_command_says_what_is_missing(tmp_path, tiny, capsys):
    write_folder(tmp_path / "hub", "BertModel", tiny.PIECES, architectures=["BertForMaskedLM"])
    assert main(["convert", str(tmp_path / "hub"), "--from", "huggingface", "--out", str(tmp_path / "m")]) == 0
    printed = capsys.readouterr()
    assert "no weights for: masked language model; read as BertModel" in printed.err
    assert "heads missing: masked language model, next sentence, classes, answer spans" in printed.out


# -------------------------------------------------------------------------------------------------------- tokenizers


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, (True, None, True, 11)),
        ({"do_lower_case": False}, (False, None, True, 11)),
        ({"do_lower_case": True, "strip_accents": True}, (True, None, True, 11)),
        ({"do_lower_case": True, "strip_accents": False}, (True, False, True, 11)),
        ({"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": False}, (False, None, False, 11)),
        ({"do_lower_case": False, "strip_accents": True}, (False, True, True, 11)),
        ({"do_lower_case": True, "model_max_length": 8}, (True, None, True, 8)),
        ({"do_lower_case": True, "model_max_length": 1000000000000000019884624838656}, (True, None, True, 11)),
    ],
)
def test_how_text_is_prepared(folder, options, expected):
    if options is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
    bundle = huggingface.read(folder)[1]
    assert (bundle.lowercase, bundle.strip_accents, bundle.split_cjk, bundle.max_length) == expected


def test_a_tokenizer_json_alone(folder, tiny):
    (folder / "vocab.txt").unlink()
    ids = {piece: index for index, piece in enumerate(tiny.PIECES)}
    normalizer = {"type": "BertNormalizer", "lowercase": False, "strip_accents": None, "handle_chinese_chars": True}
    whole = {"model": {"type": "WordPiece", "vocab": dict(reversed(ids.items()))}, "normalizer": normalizer}
    whole["pre_tokenizer"] = {"type": "BertPreTokenizer"}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(whole))
    bundle = huggingface.read(folder)[1]
    assert bundle.vocab == tuple(tiny.PIECES) and bundle.lowercase is False
    for change, message in (
        (
            {"model": whole["model"] | {"type": "WordLevel"}},
            r"tokenizer\.json: a WordLevel with None; WordPiece with '##' is needed",
        ),
        ({"model": whole["model"] | {"type": "BPE"}}, r"tokenizer\.json: model\.vocab: no piece '!'; a byte-level BPE"),
        ({"model": whole["model"] | {"vocab": ids | {"a": 7}}}, "the ids in model.vocab are not 0 to 22, each once"),
        ({"model": whole["model"] | {"vocab": ids | {"a": "7"}}}, "the ids in model.vocab are not 0 to 22"),
        ({"model": {}}, r"tokenizer\.json: the option model\.vocab is missing"),
        (
            {"normalizer": {"type": "Lowercase"}},
            "its normalizer is Lowercase; BertNormalizer is needed, or a tokenizer",
        ),
        ({"normalizer": None}, r"tokenizer\.json: its normalizer is missing; BertNormalizer is needed"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre_tokenizer is Whitespace; BertPreTokenizer is needed"),
        ({"pre_tokenizer": None}, "its pre_tokenizer is missing; BertPreTokenizer is needed"),
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(ValueError, match=message):
            huggingface.read(folder)
    for options in ({"do_lower_case": True}, {"tokenizer_class": "BertTokenizer"}):
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
        with pytest.raises(ValueError, match="its pre_tokenizer is missing"):
            huggingface.read(folder)
    stated = {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    assert huggingface.read(folder)[1].lowercase is True
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertJapaneseTokenizer"}))
    with pytest.raises(ValueError, match="tokenizer_class is 'BertJapaneseTokenizer'; one of BertTokenizer"):
        huggingface.read(folder)


def test_a_tokenizer_named_in_config_json(tmp_path, tiny):
    """As in cl-tohoku/bert-base-japanese, whose tokenizer_config.json does not name MeCab's tokenizer."""
    folder = write_folder(tmp_path / "hub", "BertModel", tiny.PIECES, tokenizer_class="BertJapaneseTokenizer")
    for options in (None, {"do_lower_case": False, "word_tokenizer_type": "mecab"}):
        if options is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(options))
        with pytest.raises(
            ValueError, match=r"hub/config\.json: the option tokenizer_class is 'BertJapaneseTokenizer'"
        ):
            huggingface.read(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    assert huggingface.read(folder)[1].vocab == tuple(tiny.PIECES)  # as in `transformers`, this one counts


@pytest.mark.parametrize("file", ["tokenizer.json", "added_tokens.json", "tokenizer_config.json"])
def test_added_tokens_are_reported(folder, file):
    """In the vocabulary or not, our pieces do not look for them; those that every BERT has are no news."""
    names = ["[CLS]", "[MASK]", "<user>", "a"]
    if file == "tokenizer.json":
        parts = {"normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"}}
        content = parts | {"added_tokens": [{"id": index, "content": name} for index, name in enumerate(names)]}
    elif file == "added_tokens.json":
        content = {name: index for index, name in enumerate(names)}
    else:
        content = {"added_tokens_decoder": {str(index): {"content": name} for index, name in enumerate(names)}}
    (folder / file).write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="hub: left out: added tokens, which are not looked for in texts: <user>, a$"):
        huggingface.read(folder)


def test_what_sentence_transformers_adds(tmp_path, tiny):
    write_folder(tmp_path, "BertModel", tiny.PIECES)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    modules = [{"idx": i, "path": path, "type": kind} for i, (path, kind) in enumerate(kinds.items())]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 7, "do_lower_case": false}')
    for path in list(kinds)[1:]:
        (tmp_path / path).mkdir()
    assert huggingface.read(tmp_path)[1].max_length == 7
    (tmp_path / "2_Dense" / "model.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="left out: 2_Dense, weights of sentence-transformers on top") as caught:
        huggingface.read(tmp_path)
    assert len(caught) == 1
    for content in ("{}]", "[1]", '[{"path": 1}, {}]', "1"):
        (tmp_path / "modules.json").write_text(content)
        with pytest.raises(ValueError, match=r"modules\.json: a list of objects that have a path is needed"):
            huggingface.read(tmp_path)


@pytest.mark.parametrize(
    ("options", "normalize", "expected"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "include_prompt": True}, True, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, False, "cls"),
        ({"pooling_mode_max_tokens": True}, False, "max"),
        ({"pooling_mode": "cls"}, True, "cls"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, False, None),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}, False, None),
    ],
)
def test_how_sentence_transformers_pools(tmp_path, tiny, options, normalize, expected):
    write_folder(tmp_path, "BertModel", tiny.PIECES)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in zip(kinds, paths, strict=False)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 12} | options))
    warned = contextlib.nullcontext() if expected else pytest.warns(UserWarning, match="1_Pooling, which pools by m")
    with warned:
        model, bundle = huggingface.read(tmp_path)
    assert (bundle.pooling, bundle.normalize) == (expected or "mean", normalize)
    outputs = {name: np.asarray(model(bundle.features(["the"]))[name])[0] for name in ("sequence", "vector")}
    pools = {"mean": lambda top: top.mean(0), "cls": lambda top: top[0], "max": lambda top: top.max(0)}
    vector = pools[bundle.pooling](outputs["sequence"])
    np.testing.assert_allclose(outputs["vector"], vector / np.linalg.norm(vector) if normalize else vector, atol=1e-6)
    saving.save(tmp_path / "m", model, bundle)
    assert saving.load(tmp_path / "m").bundle.pooling == bundle.pooling


@pytest.mark.parametrize("piece", ["a\nb", "a\r", "\n"])
def test_pieces_that_no_vocabulary_file_holds(folder, tiny, piece):
    (folder / "vocab.txt").unlink()
    ids = {piece: 0} | {name: index + 1 for index, name in enumerate(tiny.PIECES[:-1])}
    parts = {"normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    (folder / "tokenizer.json").write_text(json.dumps(parts | {"model": {"vocab": ids}}))
    with pytest.raises(ValueError, match=r"tokenizer\.json: the piece '.*' has a line end in it"):
        huggingface.read(folder)


# ------------------------------------------------------------------------------------------------------------ torch


@pytest.mark.parametrize("version", ["2.9.1", "1.13.0", "2.10.0+cpu", "3.0.0a0", "nightly"])
def test_pickled_weights_are_read_by_a_safe_torch_only(folder, monkeypatch, version):
    expected, tensors = huggingface.read(folder)[0].get_weights(), load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    asked = []

    class Array(np.ndarray):
        def detach(self):
            return self

        def float(self):
            return self.astype(np.float32)

        def numpy(self):
            return np.asarray(self)

    def load(path, **how):
        asked.append((path, how))
        return {name: array.view(Array) for name, array in tensors.items()}

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version, load=load, Tensor=np.ndarray))
    if version in ("2.10.0+cpu", "3.0.0a0"):
        weights = huggingface.read(folder)[0].get_weights()
        assert all(np.array_equal(weight, other) for weight, other in zip(weights, expected, strict=True))
        assert asked == [(folder / "pytorch_model.bin", {"map_location": "cpu", "weights_only": True})]
    else:
        message = (
            f"torch {version} may run what is in such a file; install torch 2.10 or later, or save the model as model"
        )
        with pytest.raises(ImportError, match=re.escape(message)):
            huggingface.read(folder)
        assert asked == []


def test_pickled_weights_without_torch(folder, monkeypatch):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r'pytorch_model\.bin: torch is not installed.*pip install "torch'):
        huggingface.read(folder)


def test_the_extra_installs_a_safe_torch():
    assert f'"torch>={".".join(map(str, huggingface.TORCH))}"' in (ROOT / "pyproject.toml").read_text()


def test_safetensors_not_installed(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r'safetensors is not installed.*pip install "safetensors'):
        huggingface.read(folder)


@pytest.mark.parametrize("shards", [False, True])
def test_pickled_weights(folder, shards):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    expected = huggingface.read(folder)[0].get_weights()
    tensors = {name: torch.tensor(array) for name, array in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    if shards:
        torch.save({WORDS: tensors.pop(WORDS)}, folder / "a.bin")
        torch.save(tensors, folder / "b.bin")
        places = {WORDS: "a.bin"} | dict.fromkeys(tensors, "b.bin")
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    else:
        torch.save(tensors, folder / "pytorch_model.bin")
    weights = huggingface.read(folder)[0].get_weights()
    assert all(np.array_equal(weight, other) for weight, other in zip(weights, expected, strict=True))


class Malicious:
    def __reduce__(self):
        return Path.touch, (Path("run"),)


def test_nothing_is_unpickled(folder, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    for content in (pickle.dumps({"x": Malicious()}), b"", b"\x80"):
        (folder / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(ValueError, match=r"pytorch_model\.bin: not a whole file of tensors alone"):
            huggingface.read(folder)
    torch.save({"x": Malicious()}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="not a whole file of tensors alone"):
        huggingface.read(folder)
    assert not (tmp_path / "run").exists()
    torch.save([1], folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: list; a dict of tensors is needed"):
        huggingface.read(folder)


@pytest.mark.skipif(not NER.exists(), reason="the public checkpoints are not here: ../shared/data")
def test_the_toy_tagger():
    """All of its tensors; its vocabulary is longer than its embedding."""
    pytest.importorskip("torch", reason="torch is not installed")
    with pytest.warns(UserWarning, match="left out: of 405 pieces those from"):
        model, bundle = huggingface.read(NER)
    assert bundle.task == "tag" and bundle.labels[:2] == ("O", "B-MISC") and len(bundle.vocab) == 402
    batch = bundle.features(["a test"])
    assert model({key: batch[key] for key in model.input})["logits"].shape[-1] == 9


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("model_type", "albert", "the option model_type is 'albert'; only 'bert' or 'mpnet' or"),
        ("position_embedding_type", "relative_key", "position_embedding_type is 'relative_key'; only 'absolute'"),
        ("is_decoder", True, "the option is_decoder is True; only False"),
        ("add_cross_attention", True, "the option add_cross_attention is True"),
        ("pruned_heads", {"0": [1]}, "the option pruned_heads is {'0': .1.}; only {}"),
        ("problem_type", "ranking", "problem_type is 'ranking'; only 'single_label_classification' or 'regression' or"),
        ("hidden_act", "gelu_fast", "hidden_act is 'gelu_fast'; one of gelu, gelu_new, gelu_pytorch_tanh, relu"),
        ("hidden_size", None, "the option hidden_size is missing"),
        ("hidden_size", 12.0, r"hidden_size=12\.0: must be a whole number"),
        ("num_hidden_layers", 10**9, r"num_hidden_layers=1000000000: must be at least 1 and at most 256"),
        ("num_attention_heads", 5, "config.json: heads=5 does not divide width=12"),
        ("num_hidden_layers", 3, r"missing: bert\.encoder\.layer\.2\.attention\.self\.query\.weight \(12, 12\)"),
        ("num_hidden_layers", 1, r"left over: bert\.encoder\.layer\.1\."),
        ("intermediate_size", 17, r"intermediate\.dense\.weight has the shape \(16, 12\); .* \(17, 12\)"),
        ("max_position_embeddings", 12, r"position_embeddings\.weight has the shape \(11, 12\); .* \(12, 12\)"),
        ("layer_norm_eps", "small", "layer_norm_eps='small': must be a number"),
        ("tie_word_embeddings", False, r"missing: cls\.predictions\.decoder\.weight; .*tie_word_embeddings: false"),
        ("architectures", "BertModel", "architectures='BertModel': must be a list"),
    ],
)
def test_options_that_are_refused(folder, option, value, message):
    options = json.loads((folder / "config.json").read_text()) | {option: value}
    (folder / "config.json").write_text(json.dumps(options))
    with pytest.raises(ValueError, match=message) as raised:
        huggingface.read(folder)
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100000])
def test_a_config_that_is_not_json(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        huggingface.read(folder)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (QUERY, None, rf"other tensors: missing: {QUERY} \(12, 12\)$"),
        (QUERY, np.zeros((12, 13), np.float32), rf"{QUERY} has the shape \(12, 13\); .* \(12, 12\)"),
        (QUERY, np.zeros((12, 12)), rf"{QUERY} is float64; write it as float32"),
        (QUERY, np.zeros((12, 12), np.int8), rf"{QUERY} is I8; write it as float32"),
        ("bert.pooler.dense.bias", None, r"missing: bert\.pooler\.dense\.bias \(12,\)$"),
        ("cls.predictions.bias", None, r"missing: cls\.predictions\.bias \(23,\)$"),
        ("pooler.dense.bias", np.zeros(12, np.float32), r"left over: pooler\.dense\.bias \(12,\)$"),
        ("bert.adapter.weight", np.zeros((2, 2), np.float32), r"left over: bert\.adapter\.weight \(2, 2\)$"),
        ("classifier.weight", np.zeros((2, 12), np.float32), "no model has these parts together: pooled output, mas"),
        ("bert.embeddings.LayerNorm.gamma", np.zeros(12, np.float32), "left over: .*missing|missing: .*left over: "),
        ("bert.embeddings.position_ids", np.arange(11)[::-1].copy(), "position_ids is not 0 to 10, the order of pos"),
        ("bert.embeddings.position_ids", np.arange(12), "position_ids is not 0 to 10"),
        ("cls.predictions.decoder.weight", np.zeros((23, 12), np.float32), "decoder.weight is not bert.embeddings.wo"),
        ("cls.predictions.decoder.bias", np.zeros(23, np.float32), "decoder.bias is not cls.predictions.bias"),
    ],
)
def test_tensors_that_are_refused(folder, name, array, message):
    tensors = load_file(folder / "model.safetensors")
    if array is None:
        del tensors[name]
    else:
        tensors[name] = array
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message) as raised:
        huggingface.read(folder)
    assert str(raised.value).startswith(f"{folder / 'model.safetensors'}: ") and "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", [QUERY, WORDS, "bert.pooler.dense.bias"])
def test_numbers_that_are_not_finite(folder, name, dtype, value):
    tensors = {key: array.copy() for key, array in load_file(folder / "model.safetensors").items()}
    tensors[name] = tensors[name].astype(dtype)
    tensors[name].flat[-1] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=rf"model\.safetensors: {re.escape(name)}: a number that is not finite$"):
        huggingface.read(folder)


@pytest.mark.parametrize("cut", [1, 100, 10**5, 10**7])
def test_files_that_are_cut(folder, cut):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a whole safetensors file; copy it again"):
        huggingface.read(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_pointers_of_git_lfs(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 90000000\n")
    with pytest.raises(ValueError, match=rf"{re.escape(name)}: a pointer of Git LFS, not the file itself; run `git l"):
        huggingface.read(folder)


def test_files_that_are_missing(folder, tmp_path):
    with pytest.raises(ValueError, match="nothing: no such folder"):
        huggingface.read(tmp_path / "nothing")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors in it, and no pytorch_model\.bin; nor .*index\.json"):
        huggingface.read(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"hub: no config\.json in it"):
        huggingface.read(folder)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "..", "sub/x.safetensors", "..\\x.safetensors", "", "."]
)
def test_shards_outside_the_folder(folder, name):
    places = shard(folder)
    save_file(load_file(folder / "model-00001-of-00002.safetensors"), folder.parent / "outside.safetensors")
    (folder / "sub").mkdir()
    (folder / "sub" / "x.safetensors").write_bytes((folder / "model-00001-of-00002.safetensors").read_bytes())
    index = folder / "model.safetensors.index.json"
    places = {tensor: name if "00001" in file else file for tensor, file in places.items()}
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ValueError, match=r"index\.json: .* is not the name of a file in its folder"):
        huggingface.read(folder)


def test_shards_that_do_not_fit(folder):
    places = shard(folder)
    index, last = folder / "model.safetensors.index.json", folder / "model-00002-of-00002.safetensors"

    def refused(content, message):
        index.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            huggingface.read(folder)

    refused({}, r"index\.json: the option weight_map is missing")
    refused({"weight_map": places | {WORDS: "x.safetensors"}}, r"x\.safetensors: missing; .* names it")
    other = {"model-00001-of-00002.safetensors": last.name, last.name: "model-00001-of-00002.safetensors"}
    refused({"weight_map": places | {WORDS: other[places[WORDS]]}}, f"{WORDS} is not in it, though")
    refused({"weight_map": {name: file for name, file in places.items() if name != WORDS}}, f"left over, .*: {WORDS}")
    last.write_bytes(last.read_bytes()[:-1])
    refused({"weight_map": places}, r"model-00002-of-00002\.safetensors: not a whole safetensors file")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"0": "a", "1": "b"}, "the option id2label has 2 entries; 3 different names are needed, for '0' to '2'"),
        ({"0": "a", "1": "b", "2": "c", "3": "d"}, "the option id2label has 4 entries; 3 different names are needed"),
        ({"0": "a", "1": "b", "2": "a"}, "3 different names are needed"),
        ({"0": "a", "1": "b", "3": "c"}, "3 different names are needed"),
        ({"0": "a", "1": "b", "2": 3}, "3 different names are needed"),
        (["a", "b", "c"], "id2label=.*: must be an object"),
    ],
)
def test_labels_that_are_refused(tmp_path, tiny, labels, message):
    write_folder(tmp_path, "BertForSequenceClassification", tiny.PIECES, id2label=labels)
    with pytest.raises(ValueError, match=message):
        huggingface.read(tmp_path)


@pytest.mark.parametrize("claimed", ["BertForMultipleChoice", None, ["x"]])
def test_a_classifier_without_a_known_architecture(tmp_path, tiny, claimed):
    write_folder(tmp_path, "BertForTokenClassification", tiny.PIECES, architectures=claimed and [claimed])
    with pytest.raises(
        ValueError, match=rf"it has a classifier, and its architecture is {re.escape(str(claimed))}; BertForSeq"
    ):
        huggingface.read(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architectures": ["\x1b[2J" * 99]}, r"its architecture is \\x1b\[2J"),
        ({"classifier_dropout": 7, "architectures": ["BertForTokenClassification"]}, "classifier_dropout=7: must be"),
    ],
)
def test_options_of_others(tmp_path, tiny, options, message):
    write_folder(tmp_path, "BertForTokenClassification", tiny.PIECES, **options)
    with pytest.raises(ValueError, match=message) as caught:
        huggingface.read(tmp_path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_a_regression(tmp_path, tiny):
    tensors = record("BertForSequenceClassification", "weights")
    tensors |= {name: tensors[name][:1] for name in ("classifier.weight", "classifier.bias")}
    write_folder(tmp_path, "BertForSequenceClassification", tiny.PIECES, tensors, id2label={"0": "LABEL_0"})
    model, bundle = huggingface.read(tmp_path)
    assert (bundle.task, bundle.labels, model.output["logits"].shape[-1]) == ("regress", (), 1)


@pytest.mark.parametrize("task", ["regress", "multilabel"])
def test_round_trip_of_regression_and_several_labels(task, tmp_path, folder):
    _, bundle = huggingface.read(folder)
    labels = ("a", "b", "c") if task == "multilabel" else ()
    bundle = replace(bundle, labels=labels, head={}, **tasks.bundle_fields(task, pair=True))
    model = tasks.get(task).head(bert.encoder(bert.Config(**bundle.config)), bundle)
    huggingface.write(tmp_path / "there", model, bundle)
    kind = {"regress": "regression", "multilabel": "multi_label_classification"}[task]
    assert json.loads((tmp_path / "there" / "config.json").read_text())["problem_type"] == kind
    again, other = huggingface.read(tmp_path / "there")
    assert (other.task, other.labels, other.pairs) == (task, bundle.labels, True)
    for first, second in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_factorized_table_is_written_multiplied_out(tmp_path, folder, rng):
    """Both directions of it, so that the file is the same model."""
    _, bundle = huggingface.read(folder)
    narrow = replace(bundle, config=bundle.config | {"embedding_width": 3})
    model = common.build(narrow)
    for weight in model.weights:
        weight.assign(weight + rng.normal(scale=0.1, size=weight.shape))
    huggingface.write(tmp_path / "out", model, narrow)
    other, read = huggingface.read(tmp_path / "out")
    assert read.config["embedding_width"] is None and model.count_params() < other.count_params()
    batch = bundle.features(["a", "b a"])
    if "mlm_logits" in model.output:
        batch |= {"mlm_positions": np.array([[1], [1]], "int32")}
    for ours, theirs in zip(keras.tree.flatten(model(batch)), keras.tree.flatten(other(batch)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "normalize", "dims"), [("mean", True, None), ("max", False, None), ("cls", True, 4)]
)
def test_an_encoder_is_written_with_its_pooling(pooling, normalize, dims, tmp_path, rng):
    """As sentence-transformers reads it, and we do."""
    bundle = tiny_models.bundle("embed", pooling=pooling, normalize=normalize, dims=dims)
    model = common.build(bundle)
    for weight in model.weights:
        weight.assign(weight + rng.normal(scale=0.1, size=weight.shape))
    huggingface.write(tmp_path / "out", model, bundle)
    _, other = huggingface.read(tmp_path / "out")
    assert (other.pooling, other.normalize, other.max_length) == (pooling, normalize, bundle.max_length)
    assert (tmp_path / "out" / "README.md").read_text("utf-8").startswith("---\nlibrary_name: sentence-transformers\n")
    files = "modules.json, sentence_bert_config.json" + ("" if dims is None else ", config_sentence_transformers.json")
    with pytest.raises(ValueError, match=re.escape(f"it has {files} of another model")):
        huggingface.write(tmp_path / "out", heads.tag(model, 2), replace(bundle, task="tag", labels=("O", "B-A")))
    peer = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    texts = ["the cat fell", "she", "rain , rain. the cab"]
    vectors = peer.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    np.testing.assert_allclose(vectors, model(bundle.features(texts))["vector"], atol=1e-5)


def test_a_crf_and_a_task_network_are_not_written(tmp_path, folder):
    _, bundle = huggingface.read(folder)
    bundle = replace(bundle, task="tag", labels=("O", "B-A"), head={})
    model = heads.tag(bert.encoder(bert.Config(**bundle.config)), 2)
    for other, message in (({"head": {"crf": True}}, "reads a CRF"), ({"stack": {"kind": "lstm"}}, "a task network")):
        with pytest.raises(ValueError, match=message):
            huggingface.write(tmp_path / "out", model, replace(bundle, **other))


@pytest.mark.parametrize("task", ["classify", "answer"])
def test_pairs_need_two_segments(tmp_path, tiny, task):
    size = bert.Config(len(tiny.PIECES), layers=1, width=8, heads=2, intermediate=8, max_positions=11, segments=1)
    labels = ("a", "b") if task == "classify" else ()
    bundle = Bundle("bert", task, asdict(size), 11, labels, vocab=tuple(tiny.PIECES), head={"dropout": 0.1})
    huggingface.write(tmp_path, common.build(bundle), bundle)
    with pytest.raises(ValueError, match=r"model\.safetensors: its options have one segment \(type_vocab_size\)"):
        huggingface.read(tmp_path, pairs=True if task == "classify" else None)


def test_pairs(tmp_path, tiny, capsys):
    """What the files of others do not say, ours do."""
    write_folder(tmp_path / "hub", "BertForSequenceClassification", tiny.PIECES)
    assert not huggingface.read(tmp_path / "hub")[1].pairs
    model, bundle = huggingface.read(tmp_path / "hub", pairs=True)
    assert bundle.pairs
    huggingface.write(tmp_path / "back", model, bundle)
    assert huggingface.read(tmp_path / "back")[1] == bundle
    assert not huggingface.read(tmp_path / "back", pairs=False)[1].pairs
    write_folder(tmp_path / "encoder", "BertModel", tiny.PIECES)
    with pytest.raises(ValueError, match="read as BertModel; pairs are for a classifier of texts"):
        huggingface.read(tmp_path / "encoder", pairs=True)
    command = ["convert", str(tmp_path / "hub"), "--pairs", "--out", str(tmp_path / "m")]
    assert main([*command, "--from", "huggingface"]) == 0 and saving.load(tmp_path / "m")[1].pairs
    for form in (["--from", "google"], ["--to", "huggingface"]):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main([*command, *form])
        assert "--pairs is for --from huggingface" in capsys.readouterr().err
    write_folder(tmp_path / "nsp", "BertForNextSentencePrediction", tiny.PIECES)
    text = common.summary(*huggingface.read(tmp_path / "nsp"))
    assert "heads: pooled output, next sentence\n" in text
    assert "answer spans\nclasses: next, random" in text


def test_a_folder_is_written_whole(folder, tmp_path, monkeypatch):
    """Neither beside the files of another model, nor in part."""
    model, bundle = huggingface.read(folder)
    out = tmp_path / "out"
    huggingface.write(out, model, bundle)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(huggingface, "_tokenizer", lambda bundle: 1 / 0)
        huggingface.write(out, bert.pretrainer(bert.Config(**bundle.config)), bundle)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    write = Path.write_bytes

    def full(path, content):
        if path.name == "vocab.txt":
            raise OSError("full")
        return write(path, content)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="full"):
        patched.setattr(Path, "write_bytes", full)
        huggingface.write(out, bert.pretrainer(bert.Config(**bundle.config)), bundle)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    huggingface.write(out, model, bundle)
    for name in ("added_tokens.json", "special_tokens_map.json", "model.safetensors.index.json", "modules.json"):
        (out / name).write_text("{}")
        with pytest.raises(ValueError, match=rf"out: it has {re.escape(name)} of another model; write to an empty"):
            huggingface.write(out, model, bundle)
        (out / name).unlink()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_models_that_are_not_written(folder, tmp_path):
    model, bundle = huggingface.read(folder)
    config = bert.Config(**bundle.config)
    encoder = bert.encoder(config)
    mixed = replace(bundle, task="classify", labels=("a", "b"), head={"mix": True})
    for first, other, architecture, message in (
        (model, replace(bundle, family="elmo"), None, "a model of the family 'elmo': this format holds a BERT"),
        (model, replace(bundle, config=bundle.config | {"positions": "sinusoidal"}), None, "learned ones only"),
        (heads.classify(encoder, 2, mix=True), mixed, None, "reads a mix of all layers"),
        (model, bundle, "RobertaModel", "architecture 'RobertaModel': one of BertForPreTraining"),
        (encoder, bundle, None, "is not the one of its config: missing: cls?|mlm_transform"),
        (model, replace(bundle, config=bundle.config | {"layers": 3}), None, "missing: layer_2/"),
        (model, replace(bundle, config=bundle.config | {"width": 24}), None, "its config calls for"),
        (
            model,
            bundle,
            "BertForQuestionAnswering",
            "'BertForQuestionAnswering': it does not hold the task 'pretrainer'$",
        ),
        (model, bundle, "BertForNextSentencePrediction", "it does not hold the task 'pretrainer'"),
        (encoder, replace(bundle, task="embed"), "BertForMaskedLM", "it does not hold the task 'embed'"),
        (
            heads.classify(encoder, 2),
            replace(bundle, labels=("a", "b"), **tasks.bundle_fields("classify", pair=True)),
            "BertForNextSentencePrediction",
            "it does not hold the task 'classify' of a, b",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            huggingface.write(tmp_path / "out", first, other, architecture)
    assert not list((tmp_path / "out").glob("*"))


# ------------------------------------------------------------------------------------------------------ original size


@pytest.mark.release
def test_memory_at_the_original_size(tmp_path):
    """BERT-large, 335 million weights, is written and read in TensorFlow's own memory and 1.75 copies of the weights.

    The memory of TensorFlow differs between machines, by the number of cores; each copy has 4 bytes a weight.
    """
    code = """
import resource, sys
from dataclasses import asdict
from keras_ctxrep.convert import huggingface
from keras_ctxrep.models import bert
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SPECIAL_PIECES
imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[2] == "write":
    config = bert.SIZES["bert_24_1024_16"]
    vocab = (*SPECIAL_PIECES, *(f"w{i}" for i in range(config.vocabulary_size - 5)))
    model = bert.encoder(config)
    huggingface.write(sys.argv[1], model, Bundle("bert", "embed", asdict(config), 512, vocab=vocab))
else:
    model, _ = huggingface.read(sys.argv[1])
print(model.count_params(), 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - imported))
"""
    for step in ("write", "read"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path), step],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        parameters, peak = map(int, done.stdout.split())
        assert 335e6 < parameters < 336e6 and peak < 1.75 * 4 * parameters, (step, peak / 1e9)


def test_a_head_that_transformers_lacks_is_not_written(tmp_path, folder):
    _, bundle = huggingface.read(folder)
    encoder = bert.encoder(bert.Config(**bundle.config))
    bundle = replace(bundle, head={}, **tasks.bundle_fields("coreference"))
    model = tasks.get("coreference").head(encoder, bundle)
    with pytest.raises(ValueError, match=r"what the task 'coreference' needs, .* architecture=.BertModel."):
        huggingface.write(tmp_path / "out", model, bundle)
