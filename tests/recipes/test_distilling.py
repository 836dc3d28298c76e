"""Distillation: targets from the teacher's logits, for every task; what a student learns; what is refused."""

import json
import warnings
from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_ctxrep import options as options_
from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.cli import main
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.losses import Distillation
from keras_ctxrep.recipes import distilling, targets
from keras_ctxrep.tasks.abilities import Distillable
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.coreference import Pronoun
from keras_ctxrep.tasks.semantic_roles import Roles
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.text.bundle import Bundle

pytestmark = pytest.mark.trains

SMALL = "bert_2_64_2"
TEXT = "the cat fell. she a b c"
EXAMPLES = {
    "classify": [Example(TEXT, "yes"), Example("rain", "no"), Example("a b", "no")],
    "multilabel": [Example(TEXT, ("x", "z")), Example("rain", ())],
    "regress": [Example(TEXT, 0.5), Example("rain", -1.0)],
    "tag": [Tagged(("cat", "\u200b", "fell", "ab"), ("B-PER", "O", "O", "O")), Tagged(("she",), ("B-PER",))],
    "semantic_roles": [Roles(("cat", "fell"), 1, ("B-ARG0", "B-V")), Roles(("she", "a", "fell"), 2, ("O", "O", "B-V"))],
    "coreference": [Pronoun(TEXT, (14, 17), (4, 7), (18, 19), "A"), Pronoun(TEXT, (14, 17), (4, 7), (20, 21), "B")],
    "answer": [Question("she", TEXT * 5, (("cat", 4),)), Question("rain", "the cat", (("the", 0),))],
}


@pytest.fixture
def teacher(tiny_model, tmp_path):
    """A function from a task to the folder of a tiny model of it."""

    def make(task, **fields):
        model, bundle = tiny_model(task, pair=task == "answer", **fields)
        saving.save(tmp_path / "teacher", model, bundle)
        return tmp_path / "teacher"

    return make


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_the_loss_of_a_softmax():
    rng = np.random.default_rng(0)
    teacher, logits, labels = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4)), rng.integers(0, 4, (2, 3))
    p, q = softmax(teacher / 3), softmax(logits / 3)
    soft = 9 * (p * np.log(p / q)).sum(-1)
    hard = -np.log(np.take_along_axis(softmax(logits), labels[..., None], -1)[..., 0])
    expected = 0.7 * soft + 0.3 * hard
    teacher[1, 2] = np.nan
    expected[1, 2] = hard[1, 2]
    targets = np.concatenate([labels[..., None], teacher], -1).astype("float32")
    loss = Distillation(keras.losses.SparseCategoricalCrossentropy(from_logits=True), "softmax", 3.0, 0.7)
    np.testing.assert_allclose(loss.call(targets, keras.ops.array(logits, "float32")), expected, rtol=1e-5)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()


@pytest.mark.parametrize("activation", ["sigmoid", "linear"])
def test_the_loss_of_independent_outputs(activation):
    rng = np.random.default_rng(1)
    teacher, logits, labels = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), rng.integers(0, 2, (5, 3))
    p, q, r = (1 / (1 + np.exp(-x)) for x in (teacher / 2, logits / 2, logits))
    if activation == "sigmoid":
        soft = 4 * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean(-1)
        hard = -(labels * np.log(r) + (1 - labels) * np.log(1 - r)).mean(-1)
        of_labels = keras.losses.BinaryCrossentropy(from_logits=True)
    else:
        soft, hard = ((teacher - logits) ** 2).mean(-1), ((labels - logits) ** 2).mean(-1)
        of_labels = keras.losses.MeanSquaredError()
    targets = np.concatenate([labels, teacher], -1).astype("float32")
    loss = Distillation(of_labels, activation, 2.0, 0.6)
    result = loss.call(targets, keras.ops.array(logits, "float32"))
    np.testing.assert_allclose(result, 0.6 * soft + 0.4 * hard, rtol=1e-4)


@pytest.mark.parametrize("task", EXAMPLES)
def test_targets_are_the_labels_and_the_teachers_logits(task, teacher):
    """Of a student that reads the same pieces, the teacher's own outputs; the loss of the teacher is then 0."""
    folder = teacher(task)
    examples = EXAMPLES[task]
    options = options_.Distillation(size=SMALL, teacher_weight=1.0)
    job = distilling.Distilling(folder, examples, examples, folder / "x", None, options)
    survey = job.survey()
    data = job.batches(job.teacher, 2)
    inputs, targets, *_ = next(iter(data(0)))
    outputs = job.model(inputs, training=False)
    loss = job.loss(survey)
    for name, target in targets.items():
        logits = outputs[name].numpy()
        np.testing.assert_array_less(loss.call(target, logits)[np.isfinite(target).all(-1)], 1e-5)
        own = target.numpy()[..., -logits.shape[-1] :]
        known = np.isfinite(own)
        np.testing.assert_allclose(own[known], logits[known], rtol=1e-5, atol=1e-5)
        assert known.any(-1).sum() >= len(logits)


@pytest.mark.parametrize("task", EXAMPLES)
def test_the_teachers_answers_as_labels(task, teacher):
    predictor = keras_engine.predictor(teacher(task))
    examples = EXAMPLES[task]
    taught = [example for example, _ in distilling._taught(predictor, iter(examples), answers=True)]
    assert predictor.task.evaluate(taught, predictor.ask(taught), interval=False).scores.popitem()[1] is not None
    for example, answer in zip(taught, predictor.ask(taught), strict=True):
        assert predictor.task.labelled_by(example, answer) == example


TOPICS = {"weather": ["rain", "storm", "wind", "cloud"], "music": ["violin", "piano", "chord", "drum"]}


def rows(count, seed):
    draw = np.random.default_rng(seed)
    labels = draw.choice(sorted(TOPICS), count)
    return [Example(" ".join(draw.choice(TOPICS[label], 3)), str(label)) for label in labels]


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    """A folder with a fine-tuned teacher and its files."""
    folder = tmp_path_factory.mktemp("topics")
    for name, seed in (("train", 0), ("dev", 1), ("few", 2)):
        lines = [f"{row.label}\t{row.text}\n" for row in rows(8 if name == "few" else 80, seed)]
        (folder / f"{name}.tsv").write_text("kind\tsentence\n" + "".join(lines))
    (folder / "more.txt").write_text("".join(f"{row.text}\n" for row in rows(200, 3)))
    options = {"stack": "cnn", "units": 8, "epochs": 8, "batch_size": 8, "columns": {"label": "kind"}}
    recipes.finetune(folder / "train.tsv", folder / "dev.tsv", "words", folder / "teacher", **options)
    return folder


def test_a_student_learns_from_texts_without_labels(topics, tmp_path, capsys, monkeypatch):
    """From 8 labels, all of them wrong, and the teacher's answers; by the command, twice the same."""
    monkeypatch.chdir(topics)
    wrong = {"weather": "music", "music": "weather"}
    lines = (topics / "few.tsv").read_text().splitlines()[1:]
    swapped = [f"{wrong[label]}\t{text}\n" for label, text in (line.split("\t") for line in lines)]
    (tmp_path / "few.tsv").write_text("kind\tsentence\n" + "".join(swapped))
    argv = f"distill teacher --data {tmp_path}/few.tsv --dev dev.tsv --unlabelled more.txt --encoder words --out "
    options = " --stack cnn --units 8 --epochs 6 --batch-size 8 --seed 1"
    assert main.main(f"{argv}{tmp_path}/one{options}".split()) == 0
    printed = capsys.readouterr()
    assert "208 rows of" in printed.err and f"{tmp_path}/one: accuracy on dev.tsv: " in printed.out
    student, bundle = saving.load(tmp_path / "one")
    dev = rows(80, 1)
    answers = Predictor(bundle, keras_engine.runner(student)).ask(dev)
    assert np.mean([answer["label"] == row.label for answer, row in zip(answers, dev, strict=True)]) > 0.9
    assert bundle.columns == {"label": "kind"} and bundle.labels == ("music", "weather")
    record = json.loads((tmp_path / "one" / "run.json").read_text())
    assert record["command"] == "distill" and f"{topics}/more.txt" in "".join(record["files"])
    recipes.again(tmp_path / "one", tmp_path / "two")
    first, second = (saving.load(tmp_path / name)[0].get_weights() for name in ("one", "two"))
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


@pytest.mark.parametrize("task", ["classify", "tag", "answer"])
def test_a_student_of_a_size(task, teacher, tmp_path):
    """It has the teacher's pieces, length and labels, and its distances between token vectors."""
    folder, examples = teacher(task), EXAMPLES[task]
    history = recipes.distill(folder, examples, examples, tmp_path / "out", size=SMALL, steps=2, batch_size=2)
    assert len(history) == 2
    model, bundle = saving.load(tmp_path / "out")
    own = saving.load(folder)[1]
    assert (bundle.vocab, bundle.labels, bundle.max_length, bundle.reads) == (
        own.vocab,
        own.labels,
        own.max_length,
        own.reads,
    )
    assert bundle.config["width"] == 64 and "token_embedding" in [layer.name for layer in model.layers]


def test_token_vectors_keep_their_distances():
    table = np.random.default_rng(0).normal(size=(30, 8)).astype("float32")
    fresh = np.random.default_rng(1).normal(size=(30, 8)).astype("float32")
    projected = distilling._projected(table, fresh)

    def distances(vectors):
        return np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)

    ratio = distances(projected)[0, 1:] / distances(table)[0, 1:]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    assert projected.std() == pytest.approx(fresh.std(), rel=1e-4)
    wide = distilling._projected(table, np.random.default_rng(1).normal(size=(30, 12)).astype("float32"))
    assert wide.shape == (30, 12) and not wide[:, 8:].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "encoder=None, size=None: give one of the two"),
        ({"size": SMALL, "encoder": "words"}, "give one of the two"),
        ({"size": "bert_9_9_9"}, "size='bert_9_9_9': one of "),
        ({"size": SMALL, "lora": 4}, "lora=4: a student of a size has random weights"),
        ({"size": SMALL, "data": [Example("a", "maybe"), Example("b", "no")]}, "has no label 'maybe': no, yes"),
    ],
)
def test_what_is_refused(arguments, message, teacher, tmp_path):
    data = EXAMPLES["classify"]
    arguments = {"data": data, "dev": data, "steps": 1} | arguments
    with pytest.raises(ValueError, match=message):
        recipes.distill(teacher("classify"), out=tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_the_teacher_is_not_overwritten(teacher):
    folder, data = teacher("classify"), EXAMPLES["classify"]
    with pytest.raises(ValueError, match="teacher: the folder of the teacher; choose another one to write to"):
        recipes.distill(folder, data, data, folder, size=SMALL, steps=1)


def test_malformed_rows_are_listed_once(topics, tmp_path):
    (tmp_path / "bad.tsv").write_text((topics / "few.tsv").read_text() + "music\n")
    options = {"stack": "cnn", "units": 8, "steps": 1, "skip_bad": True}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        recipes.distill(
            topics / "teacher", tmp_path / "bad.tsv", topics / "dev.tsv", tmp_path / "out", "words", **options
        )
    (message,) = [str(entry.message) for entry in warned if "malformed" in str(entry.message)]
    assert "malformed rows left out: 1\n" in message and message.count("bad.tsv:10") == 1


def test_words_that_the_teacher_did_not_read_have_no_label():
    """They are no words that it called "O"; a student that reads them does not learn from them."""
    task = tasks.get("tag")
    answer = {"words": [{"label": "B-X"}, {"label": None}]}
    taught = task.labelled_by(Tagged(("a", "b"), None), answer)
    assert taught.tags == ("B-X", "")
    bundle = Bundle("elmo", "tag", {"max_characters": 6}, 4, ("O", "B-X"))
    ((row, target),) = targets.encoded(bundle, [taught])
    assert target == [1, -1]
    _, weights = task.batch(bundle, [target], bundle.features.collate([row]))
    assert weights["logits"].tolist() == [[2.0, 0.0]]


def test_teachers_that_are_none(teacher, tiny_model, tmp_path):
    model, bundle = tiny_model("embed")
    saving.save(tmp_path / "encoder", model, bundle)
    with pytest.raises(ValueError, match="its task is 'embed'; a teacher is fine-tuned with `ctxrep train`"):
        recipes.distill(tmp_path / "encoder", [], [], tmp_path / "out", size=SMALL)
    _, bundle = tiny_model("tag")
    bundle = replace(bundle, head={"crf": True})
    saving.save(tmp_path / "crf", saving.build(bundle), bundle)
    with pytest.raises(ValueError, match=r"crf: the logits of a CRF are no distribution"):
        recipes.distill(tmp_path / "crf", EXAMPLES["tag"], EXAMPLES["tag"], tmp_path / "out", size=SMALL)


def test_every_task_is_here():
    assert set(EXAMPLES) == {name for name, task in tasks.TASKS.items() if isinstance(task, Distillable)}
