"""Words for masks: what the model computes for them, several in a text, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import saving
from keras_ctxrep.cli import main
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep_tflite import quantize
from tests import tiny

TEXT = "the [MASK] fell [MASK]"


@pytest.fixture
def folder(tmp_path, rng):
    bundle = replace(tiny.bundle("embed"), task="pretrainer")
    model = saving.build(bundle)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    saving.save(tmp_path / "bert", model, bundle)
    return tmp_path / "bert"


def test_the_probabilities_are_the_models(folder):
    """Of texts of several lengths in one batch, against one row at a time."""
    model, bundle = saving.load(folder)
    vocab = list(bundle.vocab)
    texts = [TEXT, "[MASK]", "[MASK]rain she"]
    answers = ctx.load(folder).fill(texts, top=len(vocab))
    ids = [[2, *map(vocab.index, ("the", "[MASK]", "fell", "[MASK]")), 3], [2, 4, 3], [2, 4]]
    ids[2] += [*bundle.features.wordpiece.ids_batch(["rain she"])[0], 3]
    for tokens, masks in zip(ids, answers, strict=True):
        places = [place for place, token in enumerate(tokens) if token == 4]
        batch = {"token_ids": [tokens], "segment_ids": [[0] * len(tokens)], "mask": [[1] * len(tokens)]}
        inputs = {name: np.array(value) for name, value in (batch | {"mlm_positions": [places]}).items()}
        (logits,) = np.asarray(model(inputs)["mlm_logits"], np.float64)
        expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        for pieces, probabilities in zip(masks, expected, strict=True):
            assert [each.probability for each in pieces] == sorted((each.probability for each in pieces), reverse=True)
            for piece, probability in pieces:
                assert probability == pytest.approx(probabilities[vocab.index(piece)], rel=1e-4)
            assert sum(each.probability for each in pieces) == pytest.approx(1)


def test_what_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"'the rain': no \[MASK\] in it"):
        ctx.load(folder).fill(["the rain"])
    with pytest.raises(ValueError, match=r"pieces; the model reads"):
        ctx.load(folder).fill(["[MASK] " * 60])
    tiny.save(tmp_path / "encoder", tiny.bundle("embed"))
    with pytest.raises(ValueError, match="a bert for the task 'embed' has no masked language model"):
        ctx.load(tmp_path / "encoder").fill([TEXT])


@pytest.mark.trains
def test_a_tflite_file(folder, tmp_path, capsys, tflite_in_process):
    """More masks than the file answers in one call, at each of two lengths, without the classifier of sentences."""
    texts = [TEXT, "[MASK] " * 6 + "the cat", "[MASK]"]
    file = ctx.load(folder).tflite(tmp_path / "fill.tflite", fill=True, lengths=(6, 16))
    answers, expected = ctx.load(file).fill(texts, top=3), ctx.load(folder).fill(texts, top=3)
    assert [len(masks) for masks in answers] == [2, 6, 1]
    for masks, others in zip(answers, expected, strict=True):
        for pieces, other in zip(masks, others, strict=True):
            assert [each.piece for each in pieces] == [each.piece for each in other]
            assert [each.probability for each in pieces] == pytest.approx(
                [each.probability for each in other], rel=1e-4
            )
    assert main.main(["fill", str(file), TEXT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["masks"][0][0]["piece"] == answers[0][0][0].piece
    small = ctx.load(folder).tflite(tmp_path / "small.tflite", "dynamic", fill=True)
    assert small.stat().st_size < file.stat().st_size and len(ctx.load(small).fill([TEXT])[0]) == 2
    with pytest.raises(ValueError, match=r"a masked language model has no answers: call fill\(texts\)"):
        ctx.load(file).predict(["the rain"])
    assert main.main(["predict", str(file)]) == 1
    assert "a masked language model has no answers: call fill(texts), as `ctxrep fill` does" in capsys.readouterr().err
    with pytest.raises(ValueError, match="calibrate: of models with answers; a masked language model has logits"):
        ctx.load(folder).tflite(tmp_path / "no.tflite", fill=True, quantize="int8", calibrate=["x"])
    encoder = ctx.load(folder).tflite(tmp_path / "encoder.tflite", lengths=(16,))
    with pytest.raises(ValueError, match=r"encoder\.tflite: .* `ctxrep tflite BERT --fill` keeps that of"):
        ctx.load(encoder).fill([TEXT])
    data, bundle = quantize.float_model(folder, [16], fill=True)
    bundles.write_tflite(tmp_path / "other.tflite", data, replace(bundle, vocab=(*bundle.vocab, "x")))
    with pytest.raises(ValueError, match=r"other\.tflite: its bundle is not of its model: length_16 gives"):
        ctx.load(tmp_path / "other.tflite")


def test_only_a_masked_language_model_is_kept(tmp_path):
    tiny.save(tmp_path / "encoder", tiny.bundle("embed"))
    with pytest.raises(ValueError, match="fill is of a pretrained BERT with its masked language model"):
        ctx.load(tmp_path / "encoder").tflite(tmp_path / "no.tflite", fill=True)


def test_the_command(folder, tmp_path, capsys):
    assert main.main(["fill", str(folder), TEXT, "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("mask")] == ["mask 1", "mask 2"] and len(lines) == 8
    (tmp_path / "in.txt").write_text(f"{TEXT}\n\n[MASK]\n", encoding="utf-8")
    assert main.main(["fill", str(folder), "--input", str(tmp_path / "in.txt"), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["text"] == TEXT and [len(first["masks"]), len(second["masks"])] == [2, 1]
    (best,) = ctx.load(folder).fill(["[MASK]"], top=1)[0]
    assert second["masks"][0][0] == {"piece": best[0].piece, "probability": pytest.approx(best[0].probability)}


def test_the_next_sentence_head_answers_pairs(folder, tmp_path, capsys):
    model, bundle = saving.load(folder)
    batch = bundle.features(["the rain"], ["she fell"]) | {"mlm_positions": np.array([[0]])}
    (logits,) = np.asarray(model(batch)["nsp_logits"], np.float64)
    (answer,) = ctx.load(folder).predict(["the rain"], ["she fell"])
    assert answer["label"] == ("next", "random")[logits.argmax()]
    expected = np.exp(logits) / np.exp(logits).sum()
    assert list(answer["probabilities"].values()) == pytest.approx(expected, rel=1e-4)
    (tmp_path / "pairs.txt").write_text("the rain\tshe fell\n", encoding="utf-8")
    assert main.main(["predict", str(folder), "--input", str(tmp_path / "pairs.txt")]) == 0
    assert answer["label"] in capsys.readouterr().out
