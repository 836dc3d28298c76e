"""Generation in a graph: the samples of NumPy's definition, prompts in and texts out, and every row by itself."""

from dataclasses import asdict

import numpy as np
import pytest
import tensorflow as tf

import keras_ctxrep as ctx
from keras_ctxrep import saving
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.models import lm
from keras_ctxrep.options import Generation as Options
from keras_ctxrep.text import sampling
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SPECIAL_PIECES, SpecialTokens
from keras_ctxrep_export import saved_model
from keras_ctxrep_export.generation import OPTIONS, Generation, sampled
from tests import golden_text

MARKERS = ("<S>", "</S>", "<UNK>")
VOCABULARIES = {
    "words": (*MARKERS, "the", "Cat", "sat", ".", "'", "s", "中"),
    "pieces": (*SPECIAL_PIECES, "the", "cat", "##s", "sat", ".", "中"),
    "characters": (*MARKERS, *"theCas. '中\t"),
    "subwords": golden_text.bpe().pieces,
}
KINDS = {"words": "lstm", "pieces": "convolution", "characters": "transformer", "subwords": "transformer"}
PROMPTS = ["", "the Cat", "the Cat's\n", "\n\nsat ", "unheard-of 中文 \t", "the\u00a0", "\ud800x"]
every_unit = pytest.mark.parametrize("units", VOCABULARIES)


def fresh(units):
    """A tiny model with random weights, and its bundle."""
    vocab, draw, fields = VOCABULARIES[units], np.random.default_rng(0), {}
    sizes = {"width": 8, "heads": 2, "intermediate": 12, "context": 5, "kernel_size": 3, "dropout": 0.0}
    if units == "subwords":  # as GPT-2
        special = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")
        fields = {"tokenizer": golden_text.bpe().to_json(), "special_tokens": special}
        config = lm.Config(KINDS[units], "pieces", **sizes)
    else:
        config = lm.Config(KINDS[units], units, **sizes)
    bundle = Bundle("lm", "causal_language_model", asdict(config), 16, vocab=vocab, **fields)
    model = saving.build(bundle)
    for weight in model.weights:
        weight.assign(draw.normal(0, 0.7, weight.shape))
    return model, bundle


def ask(function, prompts, **options):
    """The texts of a signature, with options of each row or of all."""
    inputs = {"text": tf.constant([prompt.encode("utf-8", "replace") for prompt in prompts], tf.string)}
    for name, (kind, default) in OPTIONS.items():
        values = np.broadcast_to(options.get(name, default), (len(prompts),))
        inputs[name] = tf.constant(values, kind)
    return [text.decode() for text in function(*inputs.values())["text"].numpy()]


@every_unit
def test_prompts(units):
    model, bundle = fresh(units)
    ids = Generation(model, bundle).text.ids(tf.constant([p.encode("utf-8", "replace") for p in PROMPTS]))
    assert ids.to_list() == [bundle.tokens.prompt(prompt.replace("\ud800", "?")) for prompt in PROMPTS]


@every_unit
def test_texts_are_those_of_the_loop_in_python(units):
    model, bundle = fresh(units)
    graph, generator = Generation(model, bundle).functions["serving_default"], keras_engine.generator(model, bundle)
    prompts = PROMPTS[:-1]
    for options in ({"length": 9}, {"length": 7, "temperature": 0.6, "top_p": 0.9, "top_k": 4, "min_p": 0.05}):
        expected = generator(prompts, Options(seed=40, **options))
        assert ask(graph, prompts, seed=40 + np.arange(len(prompts)), **options) == expected
    assert len({*expected}) > 3
    assert ask(graph, [], seed=0) == []


def test_bytes_of_subwords_are_the_text_of_python():
    """Of letters that are cut off, begun anew, and bytes that begin none."""
    model, bundle = fresh("subwords")
    text, draw = Generation(model, bundle).text, np.random.default_rng(0)
    chosen = [bytes([byte]) for byte in (0x61, 0xC3, 0xA9, 0xE0, 0xA0, 0x80, 0xED, 0xF0, 0x9F, 0x98, 0xF4, 0xFF, 0xC0)]
    ids = [text.bytes.index(byte) for byte in chosen]
    rows = draw.choice(ids, (3000, 6)).astype(np.int32)
    found = text.strings(tf.fill([3000], ""), tf.zeros([3000], tf.int32), tf.constant(rows)).numpy()
    assert [each.decode() for each in found] == [bundle.tokens.text(row.tolist()) for row in rows]


def test_every_row_has_its_own_options():
    model, bundle = fresh("words")
    graph, generator = Generation(model, bundle).functions["serving_default"], keras_engine.generator(model, bundle)
    rows = [
        {"seed": 3, "length": 4},
        {"seed": 2**40 + 1, "length": 11, "temperature": 0.0},
        {"seed": 5, "length": 30, "lines": 1, "temperature": 1.5},
        {"seed": 6, "length": 2, "top_k": 1},
    ]
    columns = {name: [row.get(name, default) for row in rows] for name, (_, default) in OPTIONS.items()}
    expected = [generator(["the"], Options(**row))[0] for row in rows]
    assert ask(graph, ["the"] * 4, **columns) == expected
    assert expected[2].count("\n") == 1 and expected[2].endswith("\n")
    with pytest.raises(tf.errors.InvalidArgumentError, match="temperature must be at least 0"):
        ask(graph, ["the"], temperature=-1.0)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 6, "top_p": 0.5}]
)
def test_sampling_in_a_graph_is_that_of_numpy(options, rng):
    logits = rng.normal(0, 2, (40, 23)).round(1)  # with ties
    logits[:, 4] = -np.inf
    seeds, step = rng.integers(-(2**62), 2**62, 40), 7
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options
    filters = {name: tf.constant(np.full(40, value), OPTIONS[name][0]) for name, value in defaults.items()}
    drawn = tf.function(sampled)(tf.constant(logits), tf.constant(step), tf.constant(seeds), **filters).numpy()
    rows = zip(logits, seeds, strict=True)
    assert drawn.tolist() == [sampling.sample(row, int(seed), step, **options) for row, seed in rows]


@pytest.mark.trains
@pytest.mark.parametrize("units", ["pieces", "subwords"])
def test_an_export_is_loaded_and_generates_the_same(units, tmp_path):
    model, bundle = fresh(units)
    saving.save(tmp_path / "m", model, bundle)
    loaded = ctx.load(tmp_path / "m")
    version = loaded.export(tmp_path / "serving" / "lm")
    assert saved_model.check(version)[1] == {"files": 9, "signatures": 2, "answers": 2}
    assert (version / "README.md").read_text().startswith("# lm\n")
    expected = loaded.generate(["the", ""], length=8, seed=2)
    assert ctx.load(tmp_path / "serving" / "lm").generate(["the", ""], length=8, seed=2) == expected
    with pytest.raises(ValueError, match="has no answers"):
        ctx.load(version).predict(["a"])
    with pytest.raises(ValueError, match="windows and tflite are of models with answers"):
        loaded.export(tmp_path / "serving" / "lm", windows="mean")
