"""Language models in one direction from a text file to text: pretraining, perplexity, generation."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.models import lm
from keras_ctxrep.text.ngrams import KneserNey
from keras_ctxrep.text.sampling import sample
from keras_ctxrep.text.tokens import split_words
from tests import tiny

pytestmark = pytest.mark.trains

SIZE = lm.Config(width=16, heads=2, intermediate=24, context=12, kernel_size=3, dropout=0.0)
SIZES = {
    "words": SIZE,
    "characters": lm.Config("transformer", width=16, heads=2, intermediate=24, context=12, dropout=0.0),
    "pieces": lm.Config("convolution", width=16, kernel_size=3, dropout=0.0),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sixty documents of five different lines."""
    draw = random.Random(0)
    parts = (["the cat", "the dog", "a bird", "she"], ["sees", "hears", "finds", "likes"], ["rain", "the tree", "us"])
    lines = [" ".join([*map(draw.choice, parts), str(number % 60), "."]) for number in range(300)]
    path = tmp_path_factory.mktemp("lm") / "corpus.txt"
    path.write_text("\n\n".join("\n".join(lines[i : i + 5]) for i in range(0, 300, 5)) + "\n")
    return path


def pretrain(corpus, out, units="words", **options):
    options = {"batch_size": 8, "unroll": 10, "steps": 12, "dropout": 0.0, "learning_rate": 0.02} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(lm.SIZES, "test", SIZES[units])
        return recipes.pretrain("lm", [corpus], out, size="test", units=units, **options)


@pytest.fixture(scope="module", params=[*SIZES])
def folder(request, corpus):
    out = corpus.parent / request.param
    history = pretrain(corpus, out, request.param, steps=40, evaluations=2)
    assert history[1]["val_perplexity"] < history[0]["val_perplexity"] < 60
    return out


def test_perplexity(folder, corpus, tmp_path):
    """Against log-softmax in NumPy over the whole text in one call."""
    text = "the cat sees rain 7 .\nunheard of\n\nshe finds us 8 .\n"
    (tmp_path / "text.txt").write_text(text)
    scores = recipes.score(folder, tmp_path / "text.txt")
    model, bundle = saving.load(folder)
    lines = [line for line in text.split("\n") if line]
    tokens = np.array([*bundle.tokens.prompt("\n".join(lines)), bundle.tokens.end], np.int32)[None]
    state = np.zeros((1, model.input["state"].shape[-1]), np.float32)
    outputs = model({"token_ids": tokens[:, :-1], "mask": np.ones_like(tokens[:, :-1]), "state": state})
    logits = np.asarray(outputs["logits"], float)[0]
    normalized = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nats = -normalized[np.arange(len(logits)), tokens[0, 1:]].sum()
    words = 6 + 2 + 5 + 3
    assert scores["lines"] == 3 and scores["tokens"] == len(logits) and scores["words"] == words
    assert scores["perplexity"] == pytest.approx(np.exp(nats / len(logits)), rel=1e-4)
    assert scores["perplexity_per_word"] == pytest.approx(np.exp(nats / words), rel=1e-4)
    assert scores["bits_per_character"] == pytest.approx(nats / np.log(2) / (21 + 10 + 16 + 3), rel=1e-4)
    assert scores["unknown"] == pytest.approx((tokens[0, 1:] == bundle.tokens.unknown).mean())


def test_beside_n_grams(folder, corpus, tmp_path):
    """The same tokens are counted and predicted, unknown ones and ends of lines among them."""
    text = "the cat sees rain 7 .\nunheard of\n\nshe finds us 8 .\n"
    (tmp_path / "text.txt").write_text(text)
    scores = recipes.score(folder, tmp_path / "text.txt", compare_ngram=[corpus], order=3)
    features = saving.load(folder).bundle.tokens
    rows = [
        [ids for line in name.split("\n") if line for ids in features.ids([line])]
        for name in (corpus.read_text(), text)
    ]
    model = KneserNey(rows[0], 3, len(features.vocab), features.end, features.end, modified=True)
    nats = -np.log(model.perplexity(rows[1])) * -scores["tokens"]
    assert scores["ngram_order"] == 3 and scores["ngram_perplexity"] == pytest.approx(model.perplexity(rows[1]))
    assert scores["ngram_bits_per_character"] == pytest.approx(nats / np.log(2) / scores["characters"])
    assert scores["ngram_perplexity_per_word"] == pytest.approx(np.exp(nats / scores["words"]))
    with pytest.raises(ValueError, match="order=3: of the n-grams of compare_ngram"):
        recipes.score(folder, corpus, order=3)


def test_generation(folder):
    """The tokens are those of NumPy's definition over the logits of the whole text so far."""
    model = ctx.load(folder)
    prompts, options = ["the cat", "she\nthe dog sees"], {"temperature": 0.9, "top_k": 20, "top_p": 0.95}
    texts = model.generate(prompts, length=12, seed=5, **options)
    features = model.bundle.tokens
    logits_of = tf.function(lambda inputs: model.keras_model(inputs)["logits"], reduce_retracing=True)
    for number, prompt in enumerate(prompts):
        tokens = features.prompt(prompt)
        begin = len(tokens)
        for step in range(12):
            inputs = {"token_ids": np.array([tokens], np.int32), "mask": np.ones((1, len(tokens)), np.int32)}
            state = np.zeros((1, model.keras_model.input["state"].shape[-1]), np.float32)
            logits = logits_of(inputs | {"state": state}).numpy()[0, -1]
            logits[features.never] = -np.inf
            tokens.append(sample(logits, 5 + number, step, **options))
        assert texts[number] == features.text(tokens[begin:], tokens[begin - 1])
    assert "".join(model.stream(prompts[0], length=12, seed=5, **options)) == texts[0]
    assert model.generate(prompts, length=12, seed=5, **options) == texts
    assert model.generate(prompts, length=12, seed=6, **options) != texts
    assert all(text.count("\n") == 1 for text in model.generate(prompts, length=400, lines=1))


def test_the_command(folder, capsys):
    argv = ["generate", str(folder), "--prompt", "the cat", "--length", "9", "--seed", "3", "--temperature", "0.5"]
    assert main.main(argv) == 0
    printed = capsys.readouterr().out
    assert printed == "the cat" + ctx.load(folder).generate(["the cat"], length=9, seed=3, temperature=0.5)[0] + "\n"


def test_an_interrupted_run_ends_as_an_undisturbed_one(corpus, tmp_path):
    pretrain(corpus, tmp_path / "whole", evaluations=3)

    def stop(entry):
        if entry["step"] == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(corpus, tmp_path / "parts", evaluations=3, report=stop)
    names = {path.name for path in (tmp_path / "parts").rglob("*")}
    assert "bundle.json" not in names and any(name.endswith("state.json") for name in names), names
    steps = []
    pretrain(corpus, tmp_path / "parts", evaluations=3, report=lambda entry: steps.append(entry["step"]))
    assert steps == [12]
    whole, parts = (saving.load(tmp_path / name).model.get_weights() for name in ("whole", "parts"))
    for expected, actual in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_sampled_softmax_and_a_model_to_start_from(corpus, tmp_path):
    history = pretrain(corpus, tmp_path / "first", samples=20, steps=30)
    options = {"steps": 5, "batch_size": 4, "learning_rate": 1e-4}
    more = recipes.pretrain("lm", [corpus], tmp_path / "more", init=tmp_path / "first", **options)
    assert more[0]["val_perplexity"] < 1.3 * history[-1]["val_perplexity"]
    assert saving.load(tmp_path / "more").bundle.vocab == saving.load(tmp_path / "first").bundle.vocab


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": "characters", "samples": 5}, "samples=5: of words"),
        ({"samples": 5000}, "samples=5000: the vocabulary has"),
        ({"whole_words": True}, "whole_words and next_sentence are for BERT"),
        ({"read_words": True}, "units says what an lm reads"),
    ],
)
def test_options_that_are_refused(options, message, corpus, tmp_path):
    with pytest.raises(ValueError, match=message):
        pretrain(corpus, tmp_path / "m", **options)
    with pytest.raises(ValueError, match="text files"):
        pretrain(tmp_path, tmp_path / "m")


def test_other_models_generate_nothing(folder, tmp_path):
    for family, message in (("bert", "text is generated by a language model"), ("elmo", "no softmax and no words")):
        encoder = tiny.save(tmp_path / family, tiny.bundle("embed", family))
        with pytest.raises(ValueError, match=message):
            ctx.load(encoder).generate(["a"])
    with pytest.raises(ValueError, match=r"has no answers: call generate\(prompts\)"):
        ctx.load(folder).predict(["a"])
    with pytest.raises(TypeError, match=r"generate\(\) has no option 'temprature'; the nearest one is 'temperature'"):
        ctx.load(folder).generate(["a"], temprature=1.0)
    with pytest.raises(ValueError, match="carry_state is of a biLM"):
        recipes.score(folder, "x.txt", carry_state=True)


@pytest.mark.parametrize("words", [0, 9])
def test_the_forward_half_of_a_bilm(words, tmp_path):
    """Each word is drawn from the biLM's own forward softmax over the sentence so far; a line is a sentence."""
    vocab = ("<S>", "</S>", "<UNK>", "the", "cat", "sat", "rain", ".", "fell")
    sizes = {"words": words, "layers": 2, "dropout": 0.1}
    bilm, bundle = tiny.model("embed", "elmo", vocab=vocab, sizes=sizes)
    bundle = replace(bundle, task="language_model")
    bilm = saving.build(bundle)
    for weight in bilm.weights:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    saving.save(tmp_path / "m", bilm, bundle)
    logits_of = tf.function(lambda inputs: bilm(inputs)["forward_logits"], reduce_retracing=True)
    model, options = ctx.load(tmp_path / "m"), {"temperature": 0.9, "top_k": 8}
    prompts = ["the unheard-of cat", "", "no matter\nrain"]
    texts = model.generate(prompts, length=25, seed=3, **options)
    assert any("\n" in text.rstrip("\n") for text in texts)
    for number, prompt in enumerate(prompts):
        sentence, text = split_words(prompt.split("\n")[-1]), ""
        for step in range(25):
            logits = logits_of(bundle.features([sentence])).numpy()[0, len(sentence)]
            logits[[0, 2]] = -np.inf
            token = sample(logits, 3 + number, step, **options)
            text += "\n" if token == 1 else (" " if sentence else "") + vocab[token]
            sentence = [] if token == 1 else [*sentence, vocab[token]]
        assert texts[number] == text
    assert "".join(model.stream(prompts[0], length=25, seed=3, **options)) == texts[0]


@pytest.mark.usefixtures("tflite_in_process")
@pytest.mark.parametrize(("folder", "task"), [("characters", "tag"), ("pieces", "classify")], indirect=["folder"])
def test_as_the_encoder_of_a_task(task, folder, tmp_path):
    """Fine-tuned, the same answers from raw strings in Keras, a SavedModel and a .tflite file."""
    given = [["the", "cat", "sees", "us"], ["a", "bird", "."], ["she", "likes", "the", "dogs", "!"]] * 4
    if task == "tag":
        data = given, [["O", "B-A", "O", "O", "O"][: len(words)] for words in given]
    else:
        data = [" ".join(words) for words in given], ["yes", "no", "no"] * 4
    tuned = ctx.finetune(data, dev=0.3, encoder=folder, task=task, epochs=1, max_length=32)
    assert tuned.bundle.family == "lm" and tuned.bundle.config["vocabulary_size"] == len(tuned.bundle.vocab)
    texts = ["the cat sees us", "she\nlikes rain.", "unheard-of"]
    expected = tuned.predict(texts)
    saved = tuned.export(tmp_path / "serving" / "m")
    (tmp_path / "lite").mkdir()
    lite = tuned.tflite(tmp_path / "lite" / "m.tflite", lengths=[32])
    for artifact in (saved, lite, tuned.save(tmp_path / "saved")):
        assert_same_answers(ctx.load(artifact).predict(texts), expected)
    if task == "classify":
        vectors = tuned.encode(texts)
        np.testing.assert_allclose(ctx.load(saved).encode(texts), vectors, atol=1e-5)
        assert ctx.load(folder).encode(texts).shape == vectors.shape == (3, 16)
    else:
        (first, *_) = ctx.load(folder).words([given[0]])
        assert first.words == tuple(given[0]) and first.vectors.shape[1:] == (4, 16)


def assert_same_answers(actual, expected):
    """Equal, but for rounding of the numbers in them."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        actual, expected = [*actual.values()], [*expected.values()]
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same_answers(one, other)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=1e-4)
    else:
        assert actual == expected


def test_the_record_of_the_run(folder):
    record = json.loads((folder / "run.json").read_text())
    assert record["command"] == "pretrain" and record["options"]["units"] == folder.name
