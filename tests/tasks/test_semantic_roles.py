"""Semantic roles: reading, the marked predicate in an encoder, metric, and every engine."""

import io
import json
import random
import subprocess
import sys

import pytest

from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.tasks.reading import Record
from keras_ctxrep.tasks.semantic_roles import Roles
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import compare, quantize, runtime

TASK = tasks.get("semantic_roles")
CONLL = """\
the\tDT\t-\tB-ARG0\tO
cat\tNN\t-\tI-ARG0\tO
sat\tVB\tsit.01\tB-V\tO
and\tCC\t-\tO\tO
ran\tVB\trun.01\tO\tB-V

"""
NO_PREDICATE = "Falls\tNNP\t-\n\n"
NOUNS = ["rain", "storm", "wind", "cloud", "snow", "bread", "butter", "oven", "violin", "piano", "drum", "song"]


def generated(count, seed=0):
    """Nouns with "is" between them: the noun before a predicate is its agent, the one after it its patient."""
    draw, examples = random.Random(seed), []
    for _ in range(count):
        nouns = draw.sample(NOUNS, draw.randint(2, 4))
        words = [word for noun in nouns for word in (noun, "is")][:-1]
        predicate = draw.randrange(1, len(words), 2)
        tags = ["O"] * len(words)
        tags[predicate - 1 : predicate + 2] = "B-ARG0", "B-V", "B-ARG1"
        examples.append(Roles(tuple(words), predicate, tuple(tags)))
    return examples


def test_one_example_for_each_predicate_of_a_conll_sentence(tmp_path):
    (tmp_path / "a.conll").write_text(NO_PREDICATE + CONLL)
    words = ("the", "cat", "sat", "and", "ran")
    assert list(TASK.read(tmp_path / "a.conll")) == [
        Roles(words, 2, ("B-ARG0", "I-ARG0", "B-V", "O", "O")),
        Roles(words, 4, ("O", "O", "O", "O", "B-V")),
    ]
    assert [example.source for example in TASK.read(tmp_path / "a.conll")] == [f"{tmp_path}/a.conll:3"] * 2
    moved = "".join(f"x\t{line}\n" if line else "\n" for line in CONLL.splitlines())
    (tmp_path / "b.conll").write_text(moved)
    assert next(TASK.read(tmp_path / "b.conll", {"text": "2", "predicate": "4"})).words == words


def test_jsonl(tmp_path):
    row = {"words": ["it", "ran"], "predicate": 1, "tags": ["B-ARG0", "B-V"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"tags": None}) + "\n")
    first, second = TASK.read(tmp_path / "a.jsonl")
    assert first == Roles(("it", "ran"), 1, ("B-ARG0", "B-V")) and second.tags is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.conll",
            CONLL.replace("run.01", "-"),
            "a.conll:1: 1 predicates in column 3 (a word that is none has '-') and 2",
        ),
        (
            "a.conll",
            CONLL.replace("B-ARG0\tO\n", "B-ARG0\n", 1),
            "a.conll:2: 5 columns where the words before have 4",
        ),
        ("a.conll", NO_PREDICATE, "no examples in it"),
        ("a.jsonl", '{"words": ["a"], "predicate": 1}', "a.jsonl:1: predicate 1: the number of its word, 0 to 0"),
        ("a.jsonl", '{"words": ["a"], "predicate": true}', "predicate True"),
        ("a.jsonl", '{"words": ["a"]}', "predicate None"),
        ("a.jsonl", '{"words": ["a"], "predicate": 0, "tags": ["O", "O"]}', "1 words and 2 tags"),
    ],
)
def test_malformed(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError) as error:
        list(TASK.read(tmp_path / name))
    assert message in str(error.value)


def test_unknown_keys_of_a_row_are_ignored():
    row = {"words": ["it", "ran"], "predicate": 1, "predicates": [[0, ["O"]]]}
    assert list(TASK.reading.examples(Record(row, TASK.reading.columns))) == [Roles(("it", "ran"), 1)]


def test_the_predicates_own_span_does_not_count():
    gold = [Roles(("it", "ran", "home"), 1, ("B-ARG0", "B-V", "B-ARG4"))]

    def answer(*tags):
        return {"words": [{"word": "", "label": tag} for tag in tags]}

    figures = TASK.evaluate(gold, [answer("B-ARG0", "O", "O")], interval=False).scores
    assert (figures["precision"], figures["recall"], figures["span_f1"]) == (1, 0.5, pytest.approx(2 / 3))
    assert TASK.evaluate(gold, [answer("O", "B-V", "O")], interval=False).scores["span_f1"] == 0
    assert TASK.evaluate(gold, [{"error": "no words"}], interval=False).scores["span_f1"] == 0


def test_a_bert_is_told_by_the_second_segment(models):
    _, bundle = saving.load_encoder(models / "bert" / "pretrained")
    features = bundle.__class__(**vars_of(bundle) | tasks.bundle_fields("semantic_roles")).features
    (row,) = features.encode([("rain", "unbelievable", "rain")], marks=[[(1, 2)]])
    batch = features.collate([row])
    start, end = row.starts[1], row.starts[2]
    assert end - start > 1 and batch["segment_ids"][0].nonzero()[0].tolist() == [*range(start, end)]
    assert "marks" not in batch


def vars_of(bundle):
    from dataclasses import fields

    return {field.name: getattr(bundle, field.name) for field in fields(bundle)}


@pytest.fixture(
    scope="module", params=["bert", *(pytest.param(name, marks=pytest.mark.release) for name in ("elmo", "words"))]
)
def trained(request, models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles") / request.param
    encoder = "words" if request.param == "words" else models / request.param / "pretrained"
    rate = 0.005 if request.param == "bert" else 0.02
    own = {} if request.param == "bert" else {"units": 16}
    recipes.finetune(
        generated(320),
        generated(40, seed=1),
        encoder,
        folder,
        task="semantic_roles",
        steps=150,
        evaluations=3,
        learning_rate=rate,
        dropout=0.0,
        **own,
    )
    return folder


@pytest.mark.filterwarnings("ignore:.*longer texts are cut")
@pytest.mark.slow  # two models in three engines: half a minute
def test_every_engine(trained, tmp_path):
    """The predicate that is marked decides, in Keras, the SavedModel and, without TensorFlow, the int8 file."""
    examples = generated(40, seed=2)
    assert recipes.score(trained, examples)["span_f1"] > 0.95
    model, bundle = saving.load(trained)
    assert bool(bundle.stack) == ("token_ids" not in model.input) == ("marks" in model.input)
    predict = open_model(trained).answer
    expected = predict.ask(examples)
    quantize.convert(trained, tmp_path / "a.tflite", "dynamic", (16, 32))
    saved_model.export(model, bundle, tmp_path / "served")
    engines = [open_model(path) for path in (trained, tmp_path / "served", tmp_path / "a.tflite")]
    for row in compare.compare(engines, examples):
        assert row["agreement"] == 1 and row["quality"] > 0.95
    # one text, two predicates, in characters
    text, spans = "rain  is snow is piano", [(6, 8), (14, 16)]
    for engine in engines:
        answers = engine.answer([text] * 2, marks=[[span] for span in spans])
        texts = [[text[a["start"] : a["end"]] for a in answer["arguments"]] for answer in answers]
        assert texts == [["rain", "snow"], ["snow", "piano"]]
    script = (
        "import sys\nfrom keras_ctxrep_tflite import runtime\n"
        "print([a for a in runtime.load(sys.argv[1]).lines(sys.stdin.buffer)])\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    )
    lines = [json.dumps({"words": list(e.words), "predicate": e.predicate}) for e in examples]
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.tflite")],
        input="\n".join(lines),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    labels = [[word["label"] for word in answer["words"]] for answer in eval(ran.stdout)]
    assert labels == [[word["label"] for word in answer["words"]] for answer in expected]


@pytest.mark.filterwarnings("ignore:.*longer texts are cut")
def test_lines(models, tflite_in_process, tmp_path):
    recipes.finetune(
        generated(8), generated(8), "words", tmp_path / "m", task="semantic_roles", steps=1, units=4, batch_size=8
    )
    lines = [
        {"text": "rain is snow", "predicate": [5, 7]},
        {"words": ["rain", "is"], "predicate": 1},
        {"text": "rain", "predicate": [0, 9]},
        {"words": ["rain"]},
        ["rain"],
    ]
    raw = "\n".join(map(json.dumps, lines)).encode() + b"\nrain is snow\n"
    answers = list(open_model(tmp_path / "m").answer.lines(io.BytesIO(raw)))
    assert ["error" in answer for answer in answers] == [False, False, True, True, True, True]
    assert "[begin, end)" in answers[2]["error"] and "not JSON" in answers[5]["error"]
    with pytest.raises(ValueError, match="reads 1 marked spans"):
        open_model(tmp_path / "m").answer(["rain is snow"])
    quantize.convert(tmp_path / "m", tmp_path / "m.tflite", lengths=(8,))
    assert len(runtime.load(tmp_path / "m.tflite")(["rain is snow"], marks=[[(5, 7)]])[0]["words"]) == 3
