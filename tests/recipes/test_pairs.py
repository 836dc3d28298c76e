"""Pairs of texts and questions over encoders that read one text: trained, in every engine, and what is refused."""

import json
import random

import numpy as np
import pytest

from keras_ctxrep import recipes, saving
from keras_ctxrep.cli import main
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import page, quantize
from tests import tiny

pytestmark = pytest.mark.trains

COLOURS, THINGS = ["red", "blue", "green", "black"], ["cat", "dog", "hat", "house", "tree", "bird", "fish"]
OPTIONS = {"units": 12, "batch_size": 16, "learning_rate": 0.01, "dropout": 0.1, "evaluations": 1}


def a_pair(draw):
    """Whether both texts name the same colour."""
    first, second = draw.choice(COLOURS), draw.choice(COLOURS)
    second = first if draw.random() < 0.5 else second
    texts = (f"the {colour} {draw.choice(THINGS)}" + " here" * draw.randint(0, 2) for colour in (first, second))
    text, pair = texts
    return Example(text, "same" if first == second else "other", pair)


def a_question(draw):
    """Which colour a thing has, of three things."""
    things, colours = draw.sample(THINGS, 3), draw.sample(COLOURS, 3)
    context = " and ".join(f"a {colour} {thing}" for thing, colour in zip(things, colours, strict=True))
    answer = draw.randrange(3)
    return Question(f"which {things[answer]}", context, ((colours[answer], context.index(colours[answer])),))


def drawn(make, count, seed):
    draw = random.Random(seed)
    return [make(draw) for _ in range(count)]


def test_a_network_learns_to_compare(tmp_path):
    """Colours, from the data alone; embeddings are learned of the words of both texts."""
    rows, test = drawn(a_pair, 300, 0), drawn(a_pair, 60, 1)
    recipes.finetune(rows, test[:20], "words", tmp_path, stack="esim", steps=60, **OPTIONS)
    assert recipes.score(tmp_path, test)["accuracy"] > 0.85
    bundle = bundles.load(tmp_path)
    assert bundle.stack["kind"] == "esim" and bundle.pairs and {"cat", "here"} <= set(bundle.vocab)


@pytest.mark.slow  # 10 seconds
def test_a_network_learns_to_answer(tmp_path, capsys):
    """By the command. A context that is asked about twice is counted once: of rare words <UNK> learns."""
    for name, count in (("train", 600), ("dev", 60)):
        rows = drawn(a_question, count, len(name)) + [Question("a cat", "rare", (("rare", 0),))] * 2
        lines = [
            {"question": row.question, "context": row.context, "answers": [{"text": row.answers[0][0], "start": at}]}
            for row in rows
            for _, at in row.answers
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = f"train --task answer --data {tmp_path}/train.jsonl --dev {tmp_path}/dev.jsonl --encoder words --stack bidaf"
    argv += " --units 16 --steps 240 --batch-size 16 --learning-rate 0.01 --dropout 0 --stride 4 --max-length 16"
    assert main.main([*argv.split(), "--evaluations", "2", "--out", str(tmp_path / "m")]) == 0
    assert "bidaf over words" in capsys.readouterr().err
    assert recipes.score(tmp_path / "m", tmp_path / "dev.jsonl")["exact_match"] > 0.7
    assert "rare" not in bundles.load(tmp_path / "m").vocab


NAMES = {"classify": ("label", "probabilities"), "multilabel": ("labels", "probabilities"), "regress": ("value",)}
NAMES |= {"answer": ("answer", "start", "end", "score", "null_score")}
NGRAMS = {"buckets": 20, "min_n": 3, "max_n": 4}


@pytest.mark.parametrize(
    ("task", "family", "kind", "sizes"),
    [
        ("classify", "static", "esim", NGRAMS),
        ("answer", "static", "bidaf", {}),
        pytest.param("multilabel", "bert", "esim", {}, marks=pytest.mark.slow),
        pytest.param("regress", "elmo", "esim", {}, marks=pytest.mark.release),
        pytest.param("answer", "elmo", "bidaf", {}, marks=pytest.mark.release),
        pytest.param("answer", "bert", "bidaf", {}, marks=pytest.mark.release),
    ],
)
def test_every_engine(task, family, kind, sizes, tflite_in_process, tmp_path):
    """The same decisions, and numbers within 1e-5, of pairs, swapped pairs, empty and long texts."""
    settings = {"stride": 3} if task == "answer" else None
    stack = {"kind": kind, "units": 4}
    model, bundle = tiny.model(task, family, pair=True, stack=stack, sizes=sizes, settings=settings, max_length=8)
    texts = ["the cats . she", "the", "a" * 40, "cats the . . the rain the the . cats fell .", ""]
    pairs = ["she fell. the rain . cats\n the  É . the .", "", "中 É the cat", "rain", "the cat"]
    asked, against = [*texts, *pairs], [*pairs, *texts]  # the second half is the first one swapped
    saving.save(tmp_path / "m", model, bundle)
    saved_model.export(model, bundle, tmp_path / "serving" / "m")
    quantize.convert(tmp_path / "m", tmp_path / "m.tflite", lengths=(8,))
    paths = (tmp_path / "m", tmp_path / "serving" / "m", tmp_path / "m.tflite")
    reference, *others = [open_model(path).answer(asked, against) for path in paths]
    for answers in others:
        for first, second in zip(reference, answers, strict=True):
            assert first.keys() - {"n_best"} == second.keys() - {"n_best"}
            for name in NAMES[task]:
                assert first[name] == pytest.approx(second[name], abs=1e-5), (first, second)
    assert reference[: len(texts)] != reference[len(texts) :]
    if task == "answer":
        for answer, context in zip(reference, against, strict=True):
            assert context[answer["start"] : answer["end"]] == answer["answer"]
        assert any(answer["answer"] for answer in reference)


def test_neither_text_has_words():
    _, bundle = tiny.model("classify", "elmo", pair=True, stack={"kind": "esim", "units": 2})
    run = Predictor(bundle, lambda batch: {"logits": np.zeros((len(batch["mask"]), 2))})
    empty = {"error": "no words in this text", "label": None, "score": None, "probabilities": {}}
    assert run(["", "a"], ["", ""]) == [empty, run(["a"], [""])[0]]


def test_no_page_for_the_browser(tmp_path):
    bundle = tiny.bundle("answer", "elmo", pair=True, stack={"kind": "bidaf"})
    with pytest.raises(
        ValueError, match=r"m: the task network bidaf is not supported in the browser: use the \.tflite"
    ):
        page.check(bundle, "m", tmp_path / "page")


@pytest.mark.parametrize(
    ("task", "stack", "message"),
    [
        ("classify", "bidaf", "stack='bidaf': not of the task 'classify'; choose stack='esim'"),
        ("answer", "esim", "stack='esim': not of the task 'answer'; choose stack='bidaf'"),
        ("tag", "esim", "stack='esim': of pairs of texts, and the task 'tag' reads one text"),
        ("single", "esim", "stack='esim': of pairs of texts, and 3 examples has single texts; leave it out"),
        ("classify", "lstm", "reads one text; a BERT reads pairs, and stack='esim' compares two texts"),
        ("answer", None, "reads one text; a BERT reads pairs, and stack='bidaf' compares two texts"),
    ],
)
def test_what_does_not_fit(task, stack, message, tmp_path):
    rows = {
        "answer": drawn(a_question, 3, 0),
        "tag": [Tagged(("red", "cat"), ("O", "B-X"))] * 3,
        "single": [Example("red", "a"), Example("blue", "b"), Example("cat", "a")],
    }.get(task, drawn(a_pair, 9, 0))
    options = {"task": "classify" if task == "single" else task, "stack": stack, "steps": 1}
    with pytest.raises(ValueError, match=message):
        recipes.finetune(rows, rows, "words", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
