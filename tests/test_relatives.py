"""What works with a BERT works with its relatives: tasks, engines, low-rank updates, distillation, pictures."""

import json
from dataclasses import replace

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.filling import Filler
from keras_ctxrep.plots.attention import attention_of
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.tokens import SpecialTokens
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import quantize
from tests import golden_text, tiny

every_relative = pytest.mark.parametrize("family", tiny.RELATIVES)
TEXTS, PAIRS = ["the cat fell", "she", "rain a b"], ["rain fell .", "a b c d e f g h the cat", "中"]


def test_there_are_relatives():
    assert {"mpnet", "distilbert"} <= set(tiny.RELATIVES)


@pytest.mark.trains
@every_relative
def test_engines_agree(family, tmp_path):
    """Pairs, whose template is the family's, in Keras, in a .tflite file and in a SavedModel's graph."""
    model, bundle = tiny.model("classify", family, pair=True)
    saving.save(tmp_path / "m", model, bundle)
    others = [quantize.convert(tmp_path / "m", tmp_path / "m.tflite", lengths=[16])]
    others.append(saved_model.export(model, bundle, tmp_path / "served").parent)
    expected = ctx.load(tmp_path / "m", engine="keras").predict(TEXTS, PAIRS)
    for other in others:
        for answer, right in zip(ctx.load(other).predict(TEXTS, PAIRS), expected, strict=True):
            assert answer["label"] == right["label"]
            for label, probability in right["probabilities"].items():
                assert answer["probabilities"][label] == pytest.approx(probability, abs=2e-4)
    assert bundles.load(tmp_path / "m.tflite").special_tokens == bundle.special_tokens


@pytest.mark.trains
@every_relative
def test_fine_tuned_with_low_rank_updates(family, tmp_path):
    """An encoder without a pooler gets one with its head; what is not updated stays."""
    bundle = tiny.bundle("embed", family, sizes={"pooler": family == "mpnet", "layers": 2})
    encoder = tiny.save(tmp_path / "e", bundle)
    data = ["the cat", "rain fell"] * 4, ["no", "yes"] * 4
    recipes.finetune(data, data, encoder, tmp_path / "m", task="classify", steps=1, batch_size=4, lora=2)
    tuned, before = saving.load(tmp_path / "m"), saving.load(encoder)
    assert tuned.bundle.family == family and "pooler" in {layer.name for layer in tuned.model.layers}
    for name in ("token_embedding", "embedding_norm"):
        for first, second in zip(
            before.model.get_layer(name).weights, tuned.model.get_layer(name).weights, strict=True
        ):
            assert np.array_equal(first, second)
    changed = [model.get_layer("layer_1").get_weights()[0] for model in (before.model, tuned.model)]
    assert not np.array_equal(*changed)


@pytest.mark.trains
@pytest.mark.parametrize("name", ["unigram", "bpe"])
def test_tasks_over_subwords(name, tmp_path):
    """A tagger and an answerer over a tokenizer.json: spans are of the text, in Keras and in a .tflite file."""
    subwords = golden_text.TOKENIZERS[name]()
    fields = {"vocab": subwords.pieces, "tokenizer": subwords.to_json(), "max_length": 32}
    encoder = tiny.save(tmp_path / "e", tiny.bundle("embed", "roberta", **fields))
    data = [["The", "quick", "fox", ","], ["Søren", "wrote"]] * 4, [["O", "B-X", "I-X", "O"], ["B-X", "O"]] * 4
    recipes.finetune(data, data, encoder, tmp_path / "tagger", task="tag", steps=1, batch_size=4, lora=2)
    tagger = ctx.load(tmp_path / "tagger", engine="keras")
    words = [word["word"] for word in tagger.predict(["The  quick fox\nran"])[0]["words"]]
    assert words == ["The", "quick", "fox", "ran"]
    file = quantize.convert(tmp_path / "tagger", tmp_path / "m.tflite", lengths=[32])
    answers = [model.predict(["The quick fox ran"])[0]["words"] for model in (tagger, ctx.load(file))]
    assert [word["label"] for word in answers[0]] == [word["label"] for word in answers[1]]
    row = {
        "question": "where?",
        "context": "Søren wrote  it in København",
        "answers": [{"text": "København", "start": 19}],
    }
    (tmp_path / "data.jsonl").write_text(f"{json.dumps(row)}\n" * 8)
    options = {"task": "answer", "steps": 40, "batch_size": 8, "learning_rate": 0.01}
    recipes.finetune(tmp_path / "data.jsonl", tmp_path / "data.jsonl", encoder, tmp_path / "answerer", **options)
    answerer = ctx.load(tmp_path / "answerer", engine="keras")
    (answer,) = answerer.predict([row["question"]], [row["context"]])
    assert (answer["answer"], answer["start"]) == ("København", 19)


@pytest.mark.trains
@every_relative
def test_layer_decay(family, tmp_path):
    """Each layer changes by the factor of the one above it, in the one step that is taken."""
    encoder = tiny.save(tmp_path / "e", tiny.bundle("embed", family, sizes={"layers": 2}))
    data = [f"{a} {b} rain" for a in ("cat", "she") for b in "abcdefgh"], ["no", "yes"] * 8
    options = {"steps": 1, "batch_size": 16, "learning_rate": 1e-3, "dropout": 0.0, "layer_decay": 0.5, "seed": 0}
    recipes.finetune(data, data, encoder, tmp_path / "m", task="classify", **options)
    before, after = (saving.load(folder).model for folder in (encoder, tmp_path / "m"))
    moved = []
    for name in ("token_embedding", "layer_0", "layer_1"):
        weights = zip(*(model.get_layer(name).get_weights() for model in (before, after)), strict=True)
        moved.append(max(np.abs(new - old).max() for old, new in weights))
    np.testing.assert_allclose(np.divide(moved[1:], moved[:-1]), 2.0, rtol=0.1)


@every_relative
def test_search(family, tmp_path):
    model = ctx.load(tiny.save(tmp_path / "e", tiny.bundle("embed", family)), engine="keras")
    ctx.Index.of_texts(TEXTS, model).save(tmp_path / "index")
    hits = ctx.Index.open(tmp_path / "index", model).search(["rain a b", "she"], top=2)
    assert [found[0].text for found in hits] == ["rain a b", "she"]
    assert [found[0].score for found in hits] == pytest.approx([1, 1], abs=1e-5)


@every_relative
def test_attention_and_masks(family, rng):
    bundle = replace(tiny.bundle("embed", family), task="pretrainer")
    model = tiny.filled(saving.build(bundle), rng, 0.3)
    pieces, weights = attention_of(model, bundle, "m")("the cat", "rain")
    special = bundle.special_tokens
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    ((filling,),) = Filler(bundle, keras_engine.runner(model))(["the [MASK] fell"], top=1)
    assert filling[0].piece in bundle.vocab
    assert pieces == [special.cls, "the", "cat", *[special.sep] * special.separators, "rain", special.sep]


def test_a_bundle_of_earlier_versions_has_the_tokens_of_bert():
    bundle = tiny.bundle("embed")
    assert b"special_tokens" not in bundle.files_as_bytes()[bundles.NAME]
    other = tiny.bundle("embed", "mpnet")
    again = bundles.from_files(other.files_as_bytes(), "memory")
    assert again == replace(other, files=again.files)
    assert other.special_tokens == SpecialTokens("<pad>", "[UNK]", "<s>", "</s>", "<mask>", separators=2)


@pytest.mark.trains
@every_relative
def test_distilled_from_and_into(family, tmp_path):
    """A teacher of the family, and students: of its own layers, and of another family with the same pieces."""
    teacher = tiny.save(tmp_path / "teacher", tiny.bundle("embed", family, sizes={"layers": 2}))
    corpus = tmp_path / "corpus.txt"
    sentences = [f"the cat {a} rain {b} fell {c} ." for a in "abcdefgh" for b in "abcdefgh" for c in "abcdef"]
    corpus.write_text("\n".join("\n".join(sentences[i : i + 8]) + "\n" for i in range(0, len(sentences), 8)))
    settings = {"steps": 1, "batch_size": 16, "evaluations": 1}
    recipes.distill_encoder(teacher, [corpus], tmp_path / "same", layers="1", **settings)
    other = "bert" if family != tiny.RELATIVES[0] else tiny.RELATIVES[1]
    recipes.distill_encoder(teacher, [corpus], tmp_path / "other", size=f"{other}_2_64_2", **settings)
    for name, expected in (("same", family), ("other", other)):
        student = ctx.load(tmp_path / name)
        assert student.bundle.family == expected
        assert student.bundle.special_tokens == saving.load(teacher).bundle.special_tokens
        assert np.isfinite(student.encode(["the cat fell"])).all()
