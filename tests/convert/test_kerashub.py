"""KerasHub's BERT: its own outputs against ours, presets, refusals."""

import sys
import warnings
from dataclasses import replace

import keras
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from keras_ctxrep import saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.convert import kerashub
from keras_ctxrep.convert.weights import arrays
from keras_ctxrep.models import bert
from keras_ctxrep.models.model import copy_weights
from tests import golden_text
from tests import tiny as tiny_models

hub = pytest.importorskip("keras_hub", reason="keras_hub is not installed").models
CLOSE = {"atol": 2e-6, "rtol": 2e-5}  # float32 both
SIZES = {
    "vocabulary_size": 23,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 12,
    "intermediate_dim": 20,
    "dropout": 0.15,
    "max_sequence_length": 11,
    "num_segments": 3,
}
NAMES = {"token_ids": "token_ids", "segment_ids": "segment_ids", "padding_mask": "mask"}


@pytest.fixture
def backbone(rng):
    model = hub.BertBackbone(**SIZES)
    randomized(model, rng)
    return model


def randomized(model, rng):
    """Every weight large enough to matter."""
    for weight in model.weights:
        if "float" in str(weight.dtype):
            weight.assign(rng.normal(float(weight.path.endswith("gamma")), 0.4, weight.shape))


@pytest.fixture
def tokenizer(tiny):
    return hub.BertTokenizer(vocabulary=tiny.PIECES, lowercase=True)


@pytest.fixture
def batch(tiny, rng):
    return tiny.batch_of({"vocab_size": 23, "type_vocab_size": 3}, rng)


def theirs(model, batch, **more):
    return model({name: batch[ours] for name, ours in NAMES.items()} | more)


def test_the_encoder(backbone, tokenizer, batch, tiny):
    model, bundle = kerashub.read(backbone, tokenizer)
    actual, expected = model({name: batch[name] for name in model.input}), theirs(backbone, batch)
    real = batch["mask"].astype(bool)
    sequence = np.asarray(expected["sequence_output"])
    np.testing.assert_allclose(np.asarray(actual["sequence"])[real], sequence[real], **CLOSE)
    np.testing.assert_allclose(actual["pooled"], expected["pooled_output"], **CLOSE)
    config = bert.Config(**bundle.config)
    assert config.activation == "gelu_tanh" and config.epsilon == 1e-12 and bundle.task == "embed"
    assert (config.dropout, config.attention_dropout, config.max_positions, config.segments) == (0.15, 0.15, 11, 3)
    assert bundle.vocab == tuple(tiny.PIECES) and bundle.max_length == 11
    assert (bundle.lowercase, bundle.strip_accents, bundle.split_cjk) == (True, False, True)  # as it says of itself
    exact = bert.encoder(replace(config, activation="gelu"))
    copy_weights(model, exact)
    difference = np.abs(
        np.asarray(exact({name: batch[name] for name in model.input})["sequence"])[real] - sequence[real]
    )
    assert difference.max() > 1e-4  # the test tells the forms apart


def test_round_trip(backbone, tokenizer):
    model, bundle = kerashub.read(backbone, tokenizer)
    back = dict(arrays(model, kerashub.weight_map(bert.Config(**bundle.config))))
    before = {weight.path: np.asarray(weight) for weight in backbone.weights if "float" in str(weight.dtype)}
    assert back.keys() == before.keys() and all(back[path].tobytes() == before[path].tobytes() for path in back)


def test_the_classifier(backbone, tokenizer, batch, rng):
    source = hub.BertTextClassifier(backbone, num_classes=4, dropout=0.35)
    randomized(source, rng)
    model, bundle = kerashub.read(source, tokenizer)
    outputs = model({name: batch[name] for name in model.input})
    np.testing.assert_allclose(outputs["logits"], theirs(source, batch), **CLOSE)
    assert bundle.task == "classify" and bundle.labels == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")
    assert bundle.head == {"dropout": 0.35}
    source = hub.BertTextClassifier(backbone, num_classes=4, activation="softmax")
    with pytest.raises(ValueError, match="the BertTextClassifier: its logits pass through softmax; activation=None"):
        kerashub.read(source, tokenizer)


def test_the_masked_language_model(backbone, tokenizer, batch, rng):
    """Equal but for the activation of the head, of which ours is given the form of theirs then."""
    source = hub.BertMaskedLM(backbone)
    randomized(source, rng)
    with warnings.catch_warnings(record=True) as caught:  # pytest.warns would pass on those of Keras
        warnings.simplefilter("always")
        model, bundle = kerashub.read(source, tokenizer)
    messages = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert any("left out: the pooler, which no head reads" in text for text in messages)
    assert any("its head computes the exact gelu" in text for text in messages)
    assert bundle.task == "pretrainer" and bundle.config["pooler"] is False
    expected = theirs(source, batch, mask_positions=batch["mlm_positions"])
    np.testing.assert_allclose(model(batch)["mlm_logits"], expected, atol=0.01)
    model.get_layer("mlm_transform").activation = keras.activations.gelu
    same = model(batch)["mlm_logits"]
    np.testing.assert_allclose(same, expected, **CLOSE | {"atol": 2e-5})


def test_half_precision(tokenizer, rng):
    model = hub.BertBackbone(**SIZES, dtype="bfloat16")
    randomized(model, rng)
    ours, _ = kerashub.read(model, tokenizer)
    weight = ours.get_layer("pooler").weights[0]
    expected = np.asarray(keras.ops.cast(model.get_layer("pooled_dense").kernel, "float32"))
    assert str(weight.dtype) == "float32" and np.array_equal(weight, expected)


@pytest.mark.trains
def test_presets(backbone, tokenizer, rng, tmp_path, capsys, tiny):
    """Folders of an encoder and of both heads, by the command."""
    backbone.save_to_preset(tmp_path / "encoder")
    tokenizer.save_to_preset(tmp_path / "encoder")
    prepare = {"tokenizer": tokenizer, "sequence_length": 11}
    classifier = hub.BertTextClassifier(backbone, 2, hub.BertTextClassifierPreprocessor(**prepare))
    masked = hub.BertMaskedLM(backbone, hub.BertMaskedLMPreprocessor(**prepare))
    for model, name in ((classifier, "classifier"), (masked, "masked")):
        randomized(model, rng)
        model.save_to_preset(tmp_path / name)
    backbone.save_to_preset(tmp_path / "encoder")
    for name, task, heads in (
        ("encoder", "embed", "pooled output"),
        ("classifier", "classify", "pooled output, classes"),
        ("masked", "pretrainer", "masked language model"),
    ):
        assert main(["convert", str(tmp_path / name), "--from", "kerashub", "--out", str(tmp_path / "m")]) == 0
        assert f"heads: {heads}\n" in capsys.readouterr().out
        model, bundle = saving.load(tmp_path / "m")
        assert bundle.task == task and bundle.vocab == tuple(tiny.PIECES)
    (kernel,) = (weight for weight in masked.weights if weight.path == "mlm_head/intermediate_dense/kernel")
    assert np.array_equal(model.get_layer("mlm_transform").get_weights()[0], keras.ops.convert_to_tensor(kernel))
    model, _ = kerashub.read(tmp_path / "classifier")
    for weight, other in zip(
        model.get_layer("logits").get_weights(), classifier.get_layer("logits").get_weights(), strict=True
    ):
        assert np.array_equal(weight, other)
    model, bundle = kerashub.read(classifier)  # its own tokenizer
    assert bundle.vocab == tuple(tiny.PIECES)


def test_refusals(backbone, tokenizer, tmp_path, tiny, monkeypatch):
    with pytest.raises(ValueError, match="the BertBackbone: it has no vocabulary; give tokenizer=, a BertTokenizer"):
        kerashub.read(backbone)
    with pytest.raises(
        ValueError,
        match=r"a Sequential: a Backbone, .*or TextClassifier of Bert, DistilBert, Electra or Roberta is needed",
    ):
        kerashub.read(keras.Sequential(), tokenizer)
    with pytest.raises(ValueError, match="nothing: KerasHub can not load it"):
        kerashub.read(tmp_path / "nothing")
    for number, error in enumerate((TypeError("not one line\nbut two"), AttributeError("not one line\nbut two"))):
        with monkeypatch.context() as patched, pytest.raises(ValueError, match=r"can not load it: not one line$"):
            patched.setattr(hub.Tokenizer, "from_preset", lambda *args, error=error: (_ for _ in ()).throw(error))
            kerashub.read(tmp_path / f"nothing_{number}")
    with pytest.raises(ValueError, match=r"its tokenizer has split=False and '##'"):
        kerashub.read(backbone, hub.BertTokenizer(vocabulary=tiny.PIECES, split=False))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "task.json").write_text('{"class_name": "BertOther"}')
    with pytest.raises(ValueError, match="other: a BertOther; a Backbone, TextEmbedder, MaskedLM or"):
        kerashub.read(tmp_path / "other")
    adapted = hub.BertBackbone(**SIZES)
    adapted.get_layer("pooled_dense").enable_lora(2)
    with pytest.raises(ValueError, match=r"the BertBackbone: .*left over: pooled_dense/lora_kernel_a"):
        kerashub.read(adapted, tokenizer)
    adapted = hub.BertMaskedLM(hub.BertBackbone(**SIZES))
    adapted.backbone.get_layer("token_embedding").enable_lora(2)
    with warnings.catch_warnings(), pytest.raises(ValueError, match="left over: token_embedding/lora_embeddings_a"):
        warnings.simplefilter("ignore")
        kerashub.read(adapted, tokenizer)
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(ImportError, match=r'keras_hub is not installed.*pip install "keras-hub'):
        kerashub.read(backbone, tokenizer)


# ---------------------------------------------------------------------------------------------------------- relatives


def relative(name, tiny):
    """A small encoder of KerasHub, and its tokenizer."""
    sizes = {key: value for key, value in SIZES.items() if key not in ("vocabulary_size", "num_segments")}
    if name == "Roberta":
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), "ab", "<mask>"]
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
        tokenizer = hub.RobertaTokenizer(vocabulary=vocabulary, merges=["a b"])
        return hub.RobertaBackbone(vocabulary_size=len(pieces), **sizes), tokenizer
    tokenizer = getattr(hub, f"{name}Tokenizer")(vocabulary=tiny.PIECES, lowercase=True)
    if name == "Electra":
        return hub.ElectraBackbone(vocab_size=23, embedding_dim=6, num_segments=2, **sizes), tokenizer
    return hub.DistilBertBackbone(vocabulary_size=23, **sizes), tokenizer


def inputs_of(model, batch):
    names = {tensor.name.split(":")[0] for tensor in model.inputs} - {"mask_positions"}
    return {name: np.minimum(batch[NAMES[name]], 1 if name == "segment_ids" else 99) for name in names}


@pytest.mark.parametrize("name", ["DistilBert", "Electra", "Roberta"])
def test_relatives(name, tiny, batch, rng, tmp_path):
    """The outputs of KerasHub's encoder, classifier and masked language model, and of a preset's folder."""
    encoder, tokenizer = relative(name, tiny)
    sources = [encoder]
    if name != "Electra":  # of which there is the encoder alone
        sources += [
            getattr(hub, f"{name}TextClassifier")(encoder, num_classes=3),
            getattr(hub, f"{name}MaskedLM")(encoder),
        ]
    batch["segment_ids"] = np.minimum(batch["segment_ids"], 1)
    for source in sources:
        randomized(source, rng)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model, bundle = kerashub.read(source, tokenizer)
        outputs = model({key: batch[key] for key in model.input})
        more = {"mask_positions": batch["mlm_positions"]} if "mlm_logits" in outputs else {}
        expected = source(inputs_of(source, batch) | more)
        found = outputs.get("logits", outputs.get("mlm_logits", outputs.get("sequence")))
        real = batch["mask"].astype(bool) if "sequence" in outputs else slice(None)
        expected = expected["sequence_output"] if isinstance(expected, dict) else expected
        np.testing.assert_allclose(np.asarray(found)[real], np.asarray(expected)[real], **CLOSE | {"atol": 2e-5})
        assert bundle.family == name.lower() and bundle.max_length == 11
        left_out = [str(one.message) for one in caught if "left out" in str(one.message)]
        assert left_out == ["the ElectraBackbone: left out: the pooler, which no head reads"] * (name == "Electra")
    encoder.save_to_preset(tmp_path / "preset")
    tokenizer.save_to_preset(tmp_path / "preset")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, again = kerashub.read(tmp_path / "preset")
    assert again.vocab == bundle.vocab and again.tokenizer == bundle.tokenizer
    texts = ["abcab", "bad"] if name == "Roberta" else ["the cats fell", "a bad cab."]
    assert [row.tokens[1:-1] for row in again.features.encode(texts)] == [[*map(int, row)] for row in tokenizer(texts)]
    message = f"the {name}Backbone: it has no vocabulary; give tokenizer=, a {name}Tokenizer"
    with pytest.raises(ValueError, match=message):
        kerashub.read(encoder)


@pytest.mark.parametrize("family", ["distilbert", "electra", "roberta"])
@pytest.mark.parametrize("task", ["embed", "classify", "pretrainer"])
def test_relatives_are_written(task, family, tmp_path, rng):
    """What is written is read again with the same outputs, but for a pooler and labels that KerasHub has not."""
    sizes = {"activation": "gelu_tanh" if family == "electra" else "gelu"}
    fields = {}
    if family == "roberta":
        subwords = golden_text.bpe()
        fields = {"vocab": subwords.pieces, "tokenizer": subwords.to_json()}
    bundle = tiny_models.bundle("embed" if task == "pretrainer" else task, family, sizes=sizes, **fields)
    bundle = replace(bundle, task=task)
    model = tiny_models.filled(saving.build(bundle), rng, 0.3)
    if family == "electra" and task != "embed":
        with pytest.raises(ValueError, match="KerasHub has no Electra for the task"):
            kerashub.write(tmp_path / "hub", model, bundle)
        return
    said = warnings_of(tmp_path / "hub", model, bundle)
    assert ("the names of its classes" in said) == (task == "classify") and "differs" not in said, said
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again, other = kerashub.read(tmp_path / "hub")
    assert (other.task, other.vocab, other.tokenizer) == (bundle.task, bundle.vocab, bundle.tokenizer)
    batch = bundle.features(TEXTS)
    batch |= {"mlm_positions": np.array([[1], [1], [2]])} if task == "pretrainer" else {}
    key = {"embed": "sequence", "classify": "logits", "pretrainer": "mlm_logits"}[task]
    np.testing.assert_allclose(again(batch)[key], model(batch)[key], **CLOSE | {"atol": 5e-5})


def test_what_is_no_relative():
    sizes = {key: value for key, value in SIZES.items() if key != "num_segments"}
    with pytest.raises(ValueError, match="a XLMRobertaBackbone: a Backbone, TextEmbedder"):
        kerashub.read(hub.XLMRobertaBackbone(**sizes))


# ------------------------------------------------------------------------------------------------------------ written


def ours(task, tmp_path, rng, activation="gelu_tanh", **fields):
    """A model folder of ours with large weights: its model and its bundle."""
    bundle = tiny_models.bundle(task, sizes={"activation": activation, **fields.pop("sizes", {})}, **fields)
    model = saving.build(bundle)
    for weight in model.weights:
        weight.assign(weight + rng.normal(scale=0.3, size=weight.shape))
    saving.save(tmp_path / "m", model, bundle)
    return model, bundle


def warnings_of(folder, model, bundle):
    """The warnings of writing a preset; pytest.warns would raise those of Keras."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kerashub.write(folder, model, bundle)
    return " ".join(str(warning.message) for warning in caught)


TEXTS = ["the cat fell", "she", "rain , rain. the cab"]


@pytest.mark.trains
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_an_embedder_is_written(pooling, tmp_path, rng, capsys):
    """KerasHub reads strings, and its vectors are ours; of a factorised table too."""
    fields = {"pooling": pooling, "normalize": pooling != "max", "sizes": {"embedding_width": 3}}
    model, bundle = ours("embed", tmp_path, rng, **fields)
    assert main(["convert", str(tmp_path / "m"), "--to", "kerashub", "--out", str(tmp_path / "hub")]) == 0
    assert "differs" not in capsys.readouterr().err
    embedder = hub.TextEmbedder.from_preset(str(tmp_path / "hub"))
    vectors = model(bundle.features(TEXTS))["vector"]
    np.testing.assert_allclose(embedder.encode_text(TEXTS, verbose=0), vectors, atol=1e-5)
    again, other = kerashub.read(tmp_path / "hub")
    assert (other.pooling, other.normalize) == (pooling, bundle.normalize)
    read = saving.finish(again, replace(other, max_length=16))
    np.testing.assert_allclose(read(bundle.features(TEXTS))["vector"], vectors, atol=1e-5)


@pytest.mark.trains
def test_what_a_preset_lacks_is_reported(tmp_path, rng):
    """No pooler, another form of gelu, and names of labels."""
    model, bundle = ours("embed", tmp_path, rng, "gelu", sizes={"pooler": False}, dims=4)
    messages = warnings_of(tmp_path / "hub", model, bundle)
    assert "the first 4 numbers" in messages and "pooled_output is 0" in messages
    assert "differs by up to" in messages and "tanh form of gelu" in messages
    backbone = hub.BertBackbone.from_preset(str(tmp_path / "hub"))
    assert not np.asarray(theirs(backbone, bundle.features(TEXTS))["pooled_output"]).any()


@pytest.mark.trains
def test_a_classifier_and_a_masked_language_model_are_written(tmp_path, rng):
    model, bundle = ours("classify", tmp_path, rng, pair=True)
    assert "the names of its classes: no, yes" in warnings_of(tmp_path / "classifier", model, bundle)
    classifier = hub.TextClassifier.from_preset(str(tmp_path / "classifier"))
    answers = classifier.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(answers, model(bundle.features(TEXTS))["logits"], atol=1e-5)
    pairs = [*reversed(TEXTS)]
    expected = model(bundle.features(TEXTS, pairs))["logits"]
    np.testing.assert_allclose(theirs(classifier, bundle.features(TEXTS, pairs)), expected, atol=1e-5)

    bundle = replace(tiny_models.bundle("embed", sizes={"activation": "gelu_tanh"}), task="pretrainer")
    model = saving.build(bundle)
    for weight in model.weights:  # so large that the epsilon of its head, 1e-5, does not matter
        weight.assign(weight + rng.normal(scale=0.4, size=weight.shape))
    assert "next-sentence prediction" in warnings_of(tmp_path / "masked", model, bundle)
    masked = hub.MaskedLM.from_preset(str(tmp_path / "masked"))
    batch = bundle.features(TEXTS) | {"mlm_positions": np.array([[1], [1], [2]])}
    logits = theirs(masked, batch, mask_positions=batch["mlm_positions"])
    model.get_layer("mlm_transform").activation = keras.activations.gelu  # the form that KerasHub's head has
    np.testing.assert_allclose(logits, model(batch)["mlm_logits"], **CLOSE | {"atol": 5e-5})


def test_what_is_not_written(tmp_path, rng):
    model, bundle = ours("tag", tmp_path, rng)
    with pytest.raises(ValueError, match="KerasHub has no Bert for the task 'tag'; save the encoder"):
        kerashub.write(tmp_path / "hub", model, bundle)
    model, bundle = ours("embed", tmp_path, rng, "relu")
    with pytest.raises(ValueError, match="activation='relu'"):
        kerashub.write(tmp_path / "hub", model, bundle)
    model, bundle = ours("embed", tmp_path, rng)
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"it has model\.safetensors of another model"):
        kerashub.write(tmp_path / "hub", model, bundle)
