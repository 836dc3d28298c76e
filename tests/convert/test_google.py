"""Google's checkpoints of BERT: read, restated in NumPy, accounted for, refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.convert import google, weights
from keras_ctxrep.convert.options import SourceOptions
from keras_ctxrep.models import bert
from keras_ctxrep.training import strategy

DATA = Path(__file__).parents[3] / "shared" / "data" / "bert_checkpoints"
TOY, REAL = DATA / "keras_bert_tiny_tf1", DATA / "google_chinese_L-12_H-768_A-12_index_only"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the public checkpoints are not here: ../shared/data")
QUERY = "bert/encoder/layer_1/attention/self/query/kernel"


def write_variables(prefix, tensors):
    """A checkpoint as `tf.compat.v1.train.Saver` writes it."""
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=[tensors[n] for n in names]
    )


def with_slots(tensors):
    slots = {f"{name}/{slot}": np.ones_like(array) for name, array in tensors.items() for slot in ("adam_m", "adam_v")}
    return tensors | slots | {"global_step": np.int64(7)}


def write_files(folder, options, tensors, pieces):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bert_config.json").write_text(json.dumps(options))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    write_variables(folder / "bert_model.ckpt", tensors)
    return folder


@pytest.fixture
def published(tmp_path, tiny, rng):
    return write_files(tmp_path / "published", tiny.OPTIONS, tiny.tensors_of(tiny.OPTIONS, rng), tiny.PIECES)


def variables(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize(
    "activation", ["gelu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("relu", "gelu_new"))]
)
@pytest.mark.parametrize("parts", [("pooler", "mlm", "nsp"), ("mlm",), ("pooler",), ()])
@pytest.mark.parametrize("slots", [False, True])
def test_numbers(tmp_path, tiny, rng, activation, parts, slots):
    """Every part against the restatement, and back into the variables bit by bit."""
    options = tiny.OPTIONS | {"hidden_act": activation}
    tensors = tiny.tensors_of(options, rng, parts)
    model, bundle = google.read(
        write_files(tmp_path / "c", options, with_slots(tensors) if slots else tensors, tiny.PIECES)
    )
    assert bundle.task == ("pretrainer" if "mlm" in parts else "embed")
    assert bundle.vocab == tuple(tiny.PIECES) and bundle.lowercase and bundle.max_length == 11 and not bundle.labels
    config = bert.Config(**bundle.config)
    assert (config.dropout, config.attention_dropout, config.initializer_range) == (0.2, 0.3, 0.05)
    assert config.activation == {"gelu_new": "gelu_tanh"}.get(activation, activation)
    batch = tiny.batch_of(options, rng)
    outputs = model({name: batch[name] for name in model.input})
    compared = tiny.Restated(options, tensors).compare(outputs, batch, tiny.CLOSE)
    names = {"mlm": {"mlm_logits"}, "nsp": {"nsp_logits"}, "pooler": {"pooled"}}
    expected = set().union(*(names[part] for part in parts)) if parts else set()
    expected = expected - {"pooled"} if "mlm" in parts else expected | {"layers", "sequence", "vector"}
    assert compared == expected
    back = dict(weights.arrays(model, google.weight_map(config, parts)))
    assert back.keys() == tensors.keys() and all(back[name].tobytes() == tensors[name].tobytes() for name in back)
    saving.save(tmp_path / "m", model, bundle)
    again, _ = saving.load(tmp_path / "m")
    assert all(
        np.array_equal(first, second) for first, second in zip(model.get_weights(), again.get_weights(), strict=True)
    )


@pytest.mark.parametrize(("right", "wrong"), [("gelu", "gelu_new"), ("gelu_new", "gelu")])
def test_the_forms_of_gelu_are_told_apart(tmp_path, tiny, rng, right, wrong):
    tensors = tiny.tensors_of(tiny.OPTIONS, rng)
    model, _ = google.read(write_files(tmp_path / "c", tiny.OPTIONS | {"hidden_act": right}, tensors, tiny.PIECES))
    batch = tiny.batch_of(tiny.OPTIONS, rng)
    with pytest.raises(AssertionError):
        tiny.Restated(tiny.OPTIONS | {"hidden_act": wrong}, tensors).compare(model(batch), batch, tiny.CLOSE)


def test_a_pooler_that_nothing_reads(tmp_path, tiny, rng):
    tensors = with_slots(tiny.tensors_of(tiny.OPTIONS, rng, ("pooler", "mlm")))
    folder = write_files(tmp_path / "c", tiny.OPTIONS, tensors, tiny.PIECES)
    with pytest.warns(UserWarning, match="bert_model.ckpt: left out: the pooler, which no head reads"):
        model, bundle = google.read(folder)
    assert set(model.output) == {"mlm_logits"} and bundle.config["pooler"] is False


@pytest.mark.parametrize("block", [1 << 18, 7])  # numbers that are read at once
def test_read_in_blocks(published, tiny, rng, monkeypatch, block):
    monkeypatch.setattr(weights, "BLOCK", block)
    model, bundle = google.read(published)
    expected = variables(published / "bert_model.ckpt")
    for name, array in weights.arrays(model, google.weight_map(bert.Config(**bundle.config))):
        assert array.tobytes() == expected[name].tobytes(), name


def test_every_replica_is_filled(published, monkeypatch):
    monkeypatch.setattr(weights, "BLOCK", 7)
    with strategy.scope(strategy="mirrored"):
        model, _ = google.read(published)
    whole, _ = google.read(published)
    for weight, expected in zip(model.weights, whole.get_weights(), strict=True):
        if "float" in str(weight.dtype):
            assert len(weight.value.values) == 2
            assert all(np.array_equal(replica, expected) for replica in weight.value.values)


@pytest.mark.parametrize(
    ("pieces", "lowercase"), [(["x"], True), (["##X"], False), (["<S>"], True), (["[X]"], True), (["É"], False)]
)
def test_case_is_told_by_the_vocabulary(tmp_path, published, tiny, pieces, lowercase):
    (published / "vocab.txt").write_text("".join(f"{piece}\n" for piece in [*tiny.PIECES[:20], *pieces]))
    assert google.read(published)[1].lowercase is lowercase
    assert google.read(published, lowercase=not lowercase)[1].lowercase is not lowercase


def test_the_command(published, tmp_path, capsys):
    assert main(["convert", str(published), "--from", "google", "--out", str(tmp_path / "m")]) == 0
    printed = capsys.readouterr()
    assert "pretrainer: 3 layers of width 12, 4 heads, 23 pieces, positions for 11" in printed.out
    assert "heads: pooled output, masked language model, next sentence\n" in printed.out
    assert "heads missing: classes, answer spans\n" in printed.out
    assert saving.load(tmp_path / "m")[1].task == "pretrainer"


# --------------------------------------------------------------------------------------------------- published files


@needs_data
def test_the_toy_checkpoint(tiny, rng):
    """All of its 139 variables, and the numbers."""
    model, bundle = google.read(TOY)
    result = variables(TOY / "bert_model.ckpt")
    kinds = ("adam_m", "adam_v", "global_step")
    tensors = {name: array for name, array in result.items() if name.split("/")[-1] not in kinds}
    assert len(result) == 139 and len(result) == 3 * len(tensors) + 1
    assert bundle.vocab[-1] == "boy"
    config = bert.Config(**bundle.config)
    back = dict(weights.arrays(model, google.weight_map(config)))
    assert back.keys() == tensors.keys() and all(back[name].tobytes() == tensors[name].tobytes() for name in back)
    options = json.loads((TOY / "bert_config.json").read_text())
    batch = tiny.batch_of(options, rng)
    assert len(tiny.Restated(options, tensors).compare(model(batch), batch, tiny.CLOSE)) == 2


@needs_data
def test_the_variables_of_a_real_checkpoint():
    """Its index alone is there: 206 names and shapes, none left over on either side."""
    options = SourceOptions(REAL / "bert_config.json")
    expected = {name: tuple(shape) for name, shape in tf.train.list_variables(str(REAL / "bert_model.ckpt"))}
    shapes = {tensor.name: tensor.shape for tensor in google.weight_map(google.common.config(options, pooler=True))}
    assert len(expected) == 206 and shapes == expected
    with pytest.raises(ValueError, match=r"bert_model\.ckpt: bert/embeddings/word_embeddings can not be read"):
        google.read(REAL)


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (QUERY, None, rf"other tensors: missing: {QUERY} \(12, 12\)$"),
        (QUERY, np.zeros((12, 13), np.float32), rf"{QUERY} has the shape \(12, 13\); .* \(12, 12\)"),
        (QUERY, np.zeros((12, 12)), rf"{QUERY} is float64; write it as float32"),
        ("cls/seq_relationship/output_weights", np.zeros((12, 2), np.float32), r"\(12, 2\); .* \(2, 12\)"),
        ("bert/pooler/dense/bias", None, r"missing: bert/pooler/dense/bias \(12,\)$"),
        ("cls/predictions/output_bias", None, r"missing: cls/predictions/output_bias \(23,\)$"),
        ("output_weights", np.zeros((3, 12), np.float32), r"left over: output_weights \(3, 12\)$"),
        ("bert/other/adam_m", np.zeros(2, np.float32), r"left over: bert/other/adam_m \(2,\)$"),
        ("bert/encoder/layer_3/output/dense/bias", np.zeros(12, np.float32), "left over: bert/encoder/layer_3"),
    ],
)
def test_variables_that_are_refused(published, name, array, message):
    tensors = variables(published / "bert_model.ckpt")
    if array is None:
        del tensors[name]
    else:
        tensors[name] = array
    write_variables(published / "bert_model.ckpt", tensors)
    with pytest.raises(ValueError, match=message) as raised:
        google.read(published)
    assert str(raised.value).startswith(f"{published / 'bert_model.ckpt'}: ") and "\n" not in str(raised.value)


def test_heads_that_do_not_belong_together(tmp_path, tiny, rng):
    for parts, message in (
        (("nsp", "pooler"), "a next-sentence head without cls/predictions/"),
        (("mlm", "nsp"), r"missing: bert/pooler/dense/kernel \(12, 12\), bert/pooler/dense/bias"),
    ):
        tensors = tiny.tensors_of(tiny.OPTIONS, rng, parts)
        with pytest.raises(ValueError, match=message):
            google.read(write_files(tmp_path / "c", tiny.OPTIONS, tensors, tiny.PIECES))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("hidden_act", "swish", r"bert_config\.json: the option hidden_act is 'swish'; one of gelu, gelu_new"),
        ("hidden_size", None, r"the option hidden_size is missing"),
        ("hidden_size", "12", "hidden_size='12': must be a whole number"),
        ("num_hidden_layers", 0, r"num_hidden_layers=0: must be at least 1 and at most 256"),
        ("num_hidden_layers", 10**9, r"num_hidden_layers=1000000000: must be at least 1 and at most 256"),
        (
            "intermediate_size",
            10**9,
            r"bert_config\.json: intermediate=1000000000: must be at least 1 and at most 65,536",
        ),
        ("num_attention_heads", 5, r"bert_config\.json: heads=5 does not divide width=12"),
        ("hidden_dropout_prob", -0.1, r"hidden_dropout_prob=-0\.1: must be at least 0"),
        ("hidden_dropout_prob", 1.0, r"bert_config\.json: dropout=1\.0"),
        ("num_hidden_layers", 4, r"missing: bert/encoder/layer_3/attention/self/query/kernel"),
        ("vocab_size", 24, r"word_embeddings has the shape \(23, 12\); .* \(24, 12\)"),
    ],
)
def test_options_that_are_refused(published, option, value, message):
    options = json.loads((published / "bert_config.json").read_text()) | {option: value}
    if value is None:
        del options[option]
    (published / "bert_config.json").write_text(json.dumps(options))
    with pytest.raises(ValueError, match=message) as raised:
        google.read(published)
    assert str(published) in str(raised.value) and "\n" not in str(raised.value)


def test_files_that_are_damaged(published):
    whole = {path: path.read_bytes() for path in published.iterdir()}

    def refused(name, content, message):
        path = published / name
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as raised:
            google.read(published)
        assert str(published) in str(raised.value)
        for path, data in whole.items():
            path.write_bytes(data)

    data, index = "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"
    refused(data, whole[published / data][:-100], "can not be read; copy the file again")
    refused(data, None, "bert/embeddings/word_embeddings can not be read; copy the file again")
    refused(index, whole[published / index][:-20], r"bert_model\.ckpt\.index: not a whole checkpoint; copy it again")
    refused(index, b"", r"bert_model\.ckpt\.index: not a whole checkpoint")
    refused(index, None, "one checkpoint, .* is needed in it; found none")
    refused("bert_config.json", b"{", r"bert_config\.json: not JSON")
    refused("bert_config.json", None, r"bert_config\.json: missing; it belongs beside bert_model\.ckpt\.index")
    refused("vocab.txt", None, r"vocab\.txt: missing")
    refused("vocab.txt", b"[PAD]\n\xff\n", r"vocab\.txt:2: not UTF-8")
    refused("vocab.txt", b"[PAD]\na\nb\n", r"vocab\.txt: vocabulary: \[UNK\], .* missing")
    pieces = whole[published / "vocab.txt"]
    refused("vocab.txt", pieces.replace(b"b\n", b"a\n"), r"vocab\.txt: vocabulary: 'a' is on lines 6 and 7")
    google.read(published)


def test_a_vocabulary_longer_than_the_embedding(published, tiny):
    with (published / "vocab.txt").open("a") as file:
        file.write("x\ny\n")
    with pytest.warns(UserWarning, match="left out: of 25 pieces those from 'x' on, for the embedding has 23 rows"):
        _, bundle = google.read(published)
    assert bundle.vocab == tuple(tiny.PIECES)


def test_paths(published, tmp_path):
    expected = google.read(published)[1]
    prefix = published / "bert_model.ckpt"
    for source in (prefix, f"{prefix}.index", f"{prefix}.data-00000-of-00001", str(published)):
        assert google.read(source)[1] == expected
    for path in published.glob("bert_model.ckpt*"):
        path.rename(path.with_name(path.name.replace("bert_model.ckpt", "model.ckpt-20")))
    assert google.read(published)[1] == expected
    (published / "model.ckpt-30.index").write_bytes(b"")
    with pytest.raises(ValueError, match=r"found several: model\.ckpt-20\.index, model\.ckpt-30\.index; give the path"):
        google.read(published)
    assert google.read(published / "model.ckpt-20")[1] == expected
    with pytest.raises(ValueError, match="nothing: no such folder, and no checkpoint of that name"):
        google.read(tmp_path / "nothing")


def test_hidden_files_next_to_a_checkpoint(published):
    """As macOS leaves them in archives."""
    for path in list(published.glob("bert_model.ckpt.*")):
        path.rename(path.with_name(path.name.replace("bert_model", "model")))
        path.with_name(path.name.replace("bert_model", "._model")).write_bytes(b"Mac OS X")
    assert google.read(published)[1].task == "pretrainer"


def test_without_tensorflow(published, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match=r'TensorFlow reads it: pip install "tensorflow'):
        google.read(published)
