"""Heads over every encoder."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import tasks
from keras_ctxrep.models import bert, elmo, heads, stack, static
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import StaticFeatures, WordPieceFeatures
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
from keras_ctxrep.text.units import TokenFeatures
from tests.crf import viterbi


def compile_and_build(model, optimizer, loss):
    """Compiles a model, and makes the optimizer's variables: `fit` would trace its first step twice for them."""
    model.compile(optimizer, loss)
    model.optimizer.build(model.trainable_variables)


both_ways = pytest.mark.parametrize("mix", [False, True])


def head_of(encoder, task, classes=0, **options):
    """The task's own head, with so many labels."""
    bundle = Bundle("elmo", task, {}, 8, labels=tuple(map(str, range(classes))), head=options)
    return tasks.get(task).head(encoder, bundle)


@pytest.fixture
def tagged(family, pieces):
    """As `family`, with the features of a tagger."""
    encoder, features = family
    if isinstance(features, TokenFeatures):
        return encoder, TokenFeatures("words", features.vocab, starts=True)
    return encoder, WordPieceFeatures(pieces.wordpiece, 20, starts=True) if features is pieces else features


@both_ways
def test_classifier(family, sentences, mix):
    encoder, features = family
    model = heads.classify(encoder, 3, mix)
    assert set(model.output) == {"logits"} and model.output["logits"].shape == (None, 3)
    assert set(model.input) == set(encoder.input)
    logits = model(features(sentences))["logits"]
    assert logits.shape == (4, 3) and logits.dtype == tf.float32
    padded = model(features(sentences, length=12))["logits"]
    np.testing.assert_allclose(padded, logits, atol=1e-5)
    np.testing.assert_allclose(model(features(sentences[:1]))["logits"][0], logits[0], atol=1e-5)


def test_over_the_pooled_output(family, sentences):
    encoder, features = family
    model = heads.classify(encoder, 3)
    kernel, bias = (weight.numpy() for weight in model.get_layer("logits").weights)
    batch = features(sentences)
    np.testing.assert_allclose(model(batch)["logits"], encoder(batch)["pooled"] @ kernel + bias, atol=1e-5)


def test_over_a_mix_of_all_layers(family, sentences, rng):
    encoder, features = family
    model = heads.classify(encoder, 3, mix=True)
    mix = model.get_layer("scalar_mix")
    mix.w.assign([0.3, -0.7, 0.9])
    mix.gamma.assign(1.5)
    batch = features(sentences)
    powers = np.exp([0.3, -0.7, 0.9])
    mixed = 1.5 * np.tensordot(powers / powers.sum(), np.array(encoder(batch)["layers"]), 1)
    kernel, bias = (weight.numpy() for weight in model.get_layer("logits").weights)
    for row, size in enumerate(batch["mask"].sum(1)):
        real = mixed[row, :size]
        expected = np.concatenate([real.mean(0), real.max(0)]) @ kernel + bias
        np.testing.assert_allclose(model(batch)["logits"][row], expected, atol=1e-5)


def test_penalty_on_the_mix(family):
    model = heads.classify(family[0], 2, mix=True, l2=0.1)
    model.get_layer("scalar_mix").w.assign([1.0, 2.0, 0.0])
    assert float(sum(model.losses)) == pytest.approx(0.5)
    assert not heads.classify(family[0], 2, mix=False, l2=0.1).losses


@pytest.mark.trains
@both_ways
def test_a_frozen_encoder_stays_as_it_is(family, sentences, mix):
    encoder, features = family
    encoder.trainable = False
    model = heads.classify(encoder, 2, mix)
    assert len(model.trainable_weights) == (4 if mix else 2)
    before = [weight.numpy() for weight in encoder.weights]
    compile_and_build(model, keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(features(sentences), {"logits": np.array([0, 1, 0, 1])}, verbose=0)
    for weight, old in zip(encoder.weights, before, strict=True):
        assert np.array_equal(weight.numpy(), old)


@pytest.mark.trains
@both_ways
def test_training_the_classifier_trains_the_encoder(family, sentences, mix):
    encoder, features = family
    model = heads.classify(encoder, 2, mix, dropout=0.0)
    before = encoder.get_weights()
    compile_and_build(model, keras.optimizers.SGD(0.3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch, labels = features(sentences), {"logits": np.array([0, 1, 0, 1])}
    losses = model.fit(batch, labels, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    moved = [not np.array_equal(first, second) for first, second in zip(before, encoder.get_weights(), strict=True)]
    assert sum(moved) > len(moved) / 2


@both_ways
def test_saved_and_loaded(family, sentences, mix, tmp_path):
    encoder, features = family
    model = heads.classify(encoder, 3, mix, l2=0.1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    batch = features(sentences)
    assert np.array_equal(loaded(batch)["logits"], model(batch)["logits"])


def test_a_regression_is_one_number(family, sentences):
    model = heads.regress(family[0], mix=True, l2=0.1)
    assert model(family[1](sentences))["logits"].shape == (4, 1) and model.get_layer("scalar_mix").l2 == 0.1


def test_no_class(family):
    with pytest.raises(ValueError, match="classes=0: at least 1"):
        heads.classify(family[0], 0)


@pytest.mark.parametrize("keep_markers", [False, True])
def test_mixes(elmo_config, characters, sentences, keep_markers):
    """Two mixes of one pass, normalised over the words alone or with the markers, as each source defines it."""
    encoder = elmo.encoder(elmo_config, keep_markers=keep_markers)
    batch = characters(sentences)
    model = heads.mixes(encoder, count=2, layer_norm=True)
    model.get_layer("scalar_mix_1").w.assign([0.3, -0.7, 1.1])
    out, encoded = model(batch), encoder(batch)
    mask = np.asarray(encoded["mask"] if keep_markers else batch["mask"])
    shares = np.exp([[0, 0, 0], [0.3, -0.7, 1.1]])
    for name, share in zip(("mix_0", "mix_1"), shares / shares.sum(1, keepdims=True), strict=True):
        expected = 0
        for part, layer in zip(share, encoded["layers"], strict=True):
            layer = np.asarray(layer, np.float64)
            real = layer[mask == 1]
            expected = expected + part * (layer - real.mean()) / real.std()
        expected = expected[:, 1:-1] if keep_markers else expected
        np.testing.assert_allclose(out[name], expected * batch["mask"][:, :, None], atol=1e-4)
    assert out["mix_0"].shape[1] == batch["mask"].shape[1]


def test_fixed_mixes_have_nothing_to_train(elmo_config, characters, sentences):
    encoder = elmo.encoder(elmo_config)
    encoder.trainable = False
    model = heads.mixes(encoder, weights=[-9e10, 1, -9e10])
    assert not model.trainable_weights
    batch = characters(sentences)
    np.testing.assert_allclose(model(batch)["mix_0"], encoder(batch)["layers"][1], atol=1e-6)


# ------------------------------------------------------------------------------------------------- tokens and spans


def words_of(batch):
    """bool (B, W): where there is a word."""
    return (batch["starts"] if "starts" in batch else batch["mask"]) > 0


def test_tagger(tagged, sentences):
    encoder, features = tagged
    model = heads.tag(encoder, 5, dropout=0.0)
    batch = features(sentences)
    logits, real = np.asarray(model(batch)["logits"]), words_of(batch)
    assert set(model.input) == set(features.keys)
    assert set(model.output) == {"logits"} and model.output["logits"].shape == (None, None, 5)
    assert logits.shape == (*real.shape, 5) and logits.dtype == np.float32
    kernel, bias = model.get_layer("logits").get_weights()
    model.get_layer("logits").set_weights([kernel, bias + 1])  # a bias would reach masked positions
    logits = np.asarray(model(batch)["logits"])
    expected = np.asarray(encoder({key: batch[key] for key in encoder.input})["sequence"]) @ kernel + bias + 1
    if "starts" in batch:  # the first piece of each word
        expected = np.take_along_axis(expected, batch["starts"][:, :, None], 1)
    np.testing.assert_allclose(logits[real], expected[real], atol=1e-5)
    assert not logits[~real].any() and (~real).any() and real.sum(1).tolist() == [6, 2, 4, 2]
    assert not any(layer.name == "pooler" for layer in model.layers)


def test_words_without_pieces_and_cut_ones_have_no_logits(bert_config, sentences):
    pieces = WordPiece([*SPECIAL_PIECES, "a", "##b", "c"])
    features = WordPieceFeatures(pieces, max_length=7, starts=True)
    model = heads.tag(bert.encoder(bert_config), 3, crf=True)
    batch = features([["ab", "\u200b", "c", "abb", "a", "c"], ["c"]])
    assert batch["starts"].tolist() == [[1, 3, 4], [1, 0, 0]]
    out = {name: np.asarray(array) for name, array in model(batch).items()}
    assert (out["logits"].any(-1) == (batch["starts"] > 0)).all() and not out["tags"][batch["starts"] == 0].any()


def test_tagger_with_a_crf(tagged, sentences, rng, tmp_path):
    encoder, features = tagged
    model = heads.tag(encoder, 3, mix=True, crf=True)
    batch, crf = features(sentences), model.get_layer("crf")
    crf.set_weights([rng.normal(size=weight.shape) for weight in crf.weights])
    out = {name: np.asarray(array) for name, array in model(batch).items()}
    real = words_of(batch)
    assert out["tags"].dtype == np.int32 and not out["tags"][~real].any()
    for logits, tags, words in zip(out["logits"], out["tags"], real, strict=True):
        assert viterbi(logits[words], *crf.get_weights()) == tags[words].tolist()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert all(np.array_equal(loaded(batch)[name], array) for name, array in out.items())


@pytest.mark.trains
@pytest.mark.parametrize("head", ["tag", "tag crf", "classify", "multilabel", "regress", "answer"])
@pytest.mark.parametrize("kind", ["elmo", "bert", "static", "elmo lstm", "bert cnn", "static gru"])
def test_every_head_over_every_encoder(elmo_config, bert_config, characters, pieces, sentences, kind, head):
    """Shapes, and that padding and company change nothing."""
    name, network = [*kind.split(), None][:2]
    task, crf = [*head.split(), None][:2]
    vocab = ["<UNK>", "the", "cat", "sat"]
    encoder, features = {
        "elmo": lambda: (elmo.encoder(elmo_config), characters),
        "bert": lambda: (bert.encoder(bert_config), WordPieceFeatures(pieces.wordpiece, starts=task == "tag")),
        "static": lambda: (static.encoder(static.Config(len(vocab), 4)), StaticFeatures(vocab)),
    }[name]()
    encoder = stack.by_name(encoder, **({"kind": network, "units": 4} if network else {}))
    model = head_of(encoder, task, 3, **({"crf": True} if crf else {}))
    batch = features(sentences)
    out = {key: np.asarray(array) for key, array in model(batch).items()}
    shapes = {
        "tag": {"logits": (*words_of(batch).shape, 3)} | ({"tags": words_of(batch).shape} if crf else {}),
        "regress": {"logits": (4, 1)},
        "answer": dict.fromkeys(("start_logits", "end_logits"), batch["mask"].shape),
    }
    assert {key: array.shape for key, array in out.items()} == shapes.get(task, {"logits": (4, 3)})
    wider = model(features(sentences, length=15))
    alone = model(features(sentences[1:2]))
    for key, array in out.items():
        for other, rows in ((np.asarray(wider[key]), slice(None)), (np.asarray(alone[key]), slice(1, 2))):
            if array.ndim > 1 and task in ("tag", "answer"):
                length = min(array.shape[1], other.shape[1])
                np.testing.assert_allclose(other[:, :length], array[rows, :length], atol=1e-5)
            else:
                np.testing.assert_allclose(other, array[rows], atol=1e-5)


def test_answerer(family, sentences):
    encoder, features = family
    model = heads.answer(encoder)
    batch = features(sentences)
    outputs, real = model(batch), batch["mask"].astype(bool)
    kernel, bias = model.get_layer("span_logits").get_weights()
    expected = np.asarray(encoder(batch)["sequence"]) @ kernel + bias
    assert set(outputs) == {"start_logits", "end_logits"}
    for column, name in enumerate(("start_logits", "end_logits")):
        logits = np.asarray(outputs[name])
        np.testing.assert_allclose(logits[real], expected[real][:, column], atol=1e-5)
        assert logits.dtype == np.float32 and (logits[~real] == -1e4).all()


@pytest.mark.trains
@pytest.mark.parametrize("family", ["bert", pytest.param("elmo", marks=pytest.mark.slow)], indirect=True)  # 15 seconds
@pytest.mark.parametrize("task", ["tag", "answer"])
def test_token_heads_learn_and_are_saved(family, tagged, sentences, task, tmp_path, rng):
    encoder, features = tagged if task == "tag" else family
    model = head_of(encoder, task, 3)
    batch = features(sentences)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if task == "tag":
        targets = {"logits": rng.integers(0, 3, words_of(batch).shape)}
    else:
        targets = {"start_logits": np.array([1, 0, 1, 0]), "end_logits": np.array([2, 1, 1, 1])}
    compile_and_build(model, keras.optimizers.Adam(0.05), dict.fromkeys(targets, loss))
    losses = model.fit(batch, targets, epochs=30, batch_size=4, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for name, array in model(batch).items():
        assert np.array_equal(loaded(batch)[name], array)


def test_by_task(family):
    encoder, _ = family
    assert set(head_of(encoder, "embed").output) == {*encoder.output, "vector"}
    assert head_of(encoder, "classify", 2, mix=True).name == "classifier"
    assert head_of(encoder, "tag", 2, dropout=0.3).get_layer("head_dropout").rate == 0.3
    assert head_of(encoder, "multilabel", 1).output["logits"].shape == (None, 1)
    assert head_of(encoder, "regress", 7, mix=True).output["logits"].shape == (None, 1)
    assert head_of(encoder, "answer", 7, dropout=0.3).get_layer("head_dropout").rate == 0.3
    with pytest.raises(ValueError, match=f"task 'sing': one of {', '.join(tasks.SERVED)}$"):
        head_of(encoder, "sing")
    for task in ("classify", "tag"):
        with pytest.raises(ValueError, match="classes=1: at least 2"):
            head_of(encoder, task, 1)


def test_no_pooled_output_to_classify_by(bert_config):
    encoder = bert.encoder(replace(bert_config, pooler=False))
    with pytest.raises(ValueError, match=r"no pooled output \(its config has pooler=False\); classify with mix=True"):
        heads.classify(encoder, 2)
    assert heads.classify(encoder, 2, mix=True).name == "classifier"


def test_markers_are_tagged_where_they_are_kept(elmo_config, characters, sentences):
    model = heads.tag(elmo.encoder(elmo_config, keep_markers=True), 3)
    batch = characters(sentences)
    assert model(batch)["logits"].shape[1] == batch["mask"].shape[1] + 2


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "pooler"])
def test_the_vector_of_a_text(family, sentences, pooling, normalize):
    encoder, features = family
    model = heads.embed(encoder, pooling, normalize)
    out = {name: np.asarray(value) for name, value in model(features(sentences)).items() if name != "layers"}
    assert set(model.output) == {*encoder.output, "vector"} and model.name == encoder.name
    for row, sentence in enumerate(sentences):
        top = np.asarray(encoder(features([sentence]))["sequence"])[0]
        expected = {"mean": top.mean(0), "max": top.max(0), "cls": top[0], "pooler": out["pooled"][row]}[pooling]
        expected = expected / np.linalg.norm(expected) if normalize else expected
        np.testing.assert_allclose(out["vector"][row], expected, atol=1e-5)
    assert np.isfinite(np.asarray(model(features([""]))["vector"])).all()
    assert model.weights == encoder.weights
    with pytest.raises(ValueError, match="how='sum': choose 'mean', 'max'"):
        heads.embed(encoder, "sum")


@pytest.mark.parametrize("head", [heads.regress, heads.answer, heads.mixes, heads.embed, stack.recurrent])
def test_what_is_no_encoder(bert_config, head):
    with pytest.raises(ValueError, match=r"bert_pretrainer is no encoder.*mlm_logits.*load\(NAME\).encoder"):
        head(bert.pretrainer(bert_config))


def test_classes_are_a_number(bert_config):
    with pytest.raises(TypeError, match=r"classes=\['neg', 'pos'\]: the number of classes"):
        heads.classify(bert.encoder(bert_config), classes=["neg", "pos"])


@pytest.mark.parametrize("task", ["classify", "tag", "answer", "coreference"])
def test_logits_carry_no_keras_mask(family, task):
    """Keras' losses would weigh by it."""
    outputs = keras.tree.flatten(head_of(family[0], task, 3).output)
    assert outputs and all(getattr(output, "_keras_mask", None) is None for output in outputs)
