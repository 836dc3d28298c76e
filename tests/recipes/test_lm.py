"""Language models in one direction from a text file to text: pretraining, perplexity, generation."""

import json
import random

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.models import lm
from keras_ctxrep.text.sampling import sample
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


def test_generation(folder):
    """The tokens are those of NumPy's definition over the logits of the whole text so far."""
    model = ctx.load(folder)
    prompts, options = ["the cat", "she\nthe dog sees"], {"temperature": 0.9, "top_k": 20, "top_p": 0.95}
    texts = model.generate(prompts, length=12, seed=5, **options)
    features = model.bundle.tokens
    for number, prompt in enumerate(prompts):
        tokens = features.prompt(prompt)
        begin = len(tokens)
        for step in range(12):
            inputs = {"token_ids": np.array([tokens], np.int32), "mask": np.ones((1, len(tokens)), np.int32)}
            state = np.zeros((1, model.keras_model.input["state"].shape[-1]), np.float32)
            logits = np.array(model.keras_model(inputs | {"state": state})["logits"])[0, -1]
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


def test_other_models_generate_nothing_and_this_one_has_no_vectors(folder, tmp_path):
    encoder = tiny.save(tmp_path / "m", tiny.bundle("embed"))
    with pytest.raises(ValueError, match="text is generated by a language model in one direction"):
        ctx.load(encoder).generate(["a"])
    with pytest.raises(ValueError, match="a language model in one direction is no encoder"):
        ctx.load(folder).encode(["a"])
    with pytest.raises(TypeError, match=r"generate\(\) has no option 'temprature'; the nearest one is 'temperature'"):
        ctx.load(folder).generate(["a"], temprature=1.0)
    with pytest.raises(ValueError, match="carry_state is of a biLM"):
        recipes.score(folder, "x.txt", carry_state=True)


def test_the_record_of_the_run(folder):
    record = json.loads((folder / "run.json").read_text())
    assert record["command"] == "pretrain" and record["options"]["units"] == folder.name
