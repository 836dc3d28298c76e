"""Scoring task models: figures, answers and the worst examples; rows that are malformed, when training and scoring."""

import json
from functools import cache

import pytest
import seqeval.metrics

from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.cli import main
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.options import WORDS, Finetuning
from keras_ctxrep.recipes.finetuning import Run
from keras_ctxrep.tasks.semantic_roles import Roles
from keras_ctxrep.text.tags import to_iob2
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from tests import tiny

VOCAB = (*SPECIAL_PIECES, "x", "y", "z", "?")
LABELS = {"classify": ("a", "b"), "pair": ("a", "b"), "multilabel": ("a", "b"), "tag": ("O", "B-X", "I-X")}
GOOD = {
    "classify": ("g.tsv", "text\tlabel\nx y\ta\ny\tb\nz\tb\n"),
    "pair": ("g.tsv", "text\tpair\tlabel\nx y\tz\ta\ny\tz\tb\nz\tx\tb\n"),
    "multilabel": ("g.tsv", "text\tlabels\nx y\ta,b\ny\t\nz\tb\n"),
    "regress": ("g.tsv", "text\tscore\nx y\t1.5\ny\t-2\nz\t3\n"),
    "tag": ("g.conll", "x B-X\ny I-X\n\ny O\n\nz O\n"),
    "answer": (
        "g.jsonl",
        "".join(
            json.dumps({"question": "x ?", "context": "y z x", "answers": answers}) + "\n"
            for answers in ([{"text": "z", "start": 2}], [], [{"text": "y z", "start": 0}])
        ),
    ),
}


def kind(name):
    """The task of a model: one of pairs is a classifier."""
    return "classify" if name == "pair" else name


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """For each task a model that has learned nothing, and "encoder"."""
    root = tmp_path_factory.mktemp("scoring")
    tiny.save(root / "encoder", tiny.bundle("embed", vocab=VOCAB))
    for task in GOOD:
        options = {"pair": task in ("pair", "answer"), "labels": LABELS.get(task, ())}
        tiny.save(root / task, tiny.bundle(kind(task), vocab=VOCAB, head={"dropout": 0.1}, **options))
    return root


def put(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode())
    return path


@pytest.fixture(scope="module")
def figures_of(folders, tmp_path_factory):
    """A function from a task to the figures of its good rows, which are computed once."""
    data = tmp_path_factory.mktemp("good")

    @cache
    def figures(task):
        scored = recipes.score(folders / task, put(data, *GOOD[task]))
        del scored["worst"]  # names the file
        return scored

    return figures


# ------------------------------------------------------------------------------------------------------- what is told


@pytest.mark.trains
@pytest.mark.parametrize("task", GOOD)
@pytest.mark.parametrize("batch_size", [1, 32])
def test_figures_and_answers(task, batch_size, folders, tmp_path):
    path = put(tmp_path, *GOOD[task])
    scores = recipes.score(folders / task, path, batch_size, predictions=tmp_path / "answers.jsonl")
    assert scores["examples"] == 3 and list(scores)[:3] == ["examples", "metric", scores["metric"]]
    assert len(scores["interval"]) == 2 and {"table", "worst"} < set(scores) and "skipped" not in scores
    json.dumps(scores)
    bundle = saving.load(folders / task)[1]
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    examples = list(tasks.get(bundle.task).read(path))
    expected = keras_engine.predictor(folders / task).ask(examples)
    assert len(answers) == 3
    for answer, wanted, example in zip(answers, expected, examples, strict=True):
        query, gold = tasks.get(bundle.task).query(example), getattr(example, tasks.get(bundle.task).gold)
        assert answer["source"] == example.source and json.dumps(answer["expected"]) == json.dumps(gold)
        assert answer["text"] == (query.text if isinstance(query.text, str) else [*query.text])
        assert answer.get("pair") == (query.pair if task == "pair" else None)
        assert set(answer) - {"source", "text", "pair", "expected"} == set(wanted)
        for name in ("label", "labels", "answer"):
            assert answer.get(name) == wanted.get(name)
        for name in ("probabilities", "value", "score"):
            assert answer.get(name) == pytest.approx(wanted.get(name), abs=1e-6)
    sources = [example["source"] for example in scores["worst"]]
    assert len(set(sources)) == len(sources) <= 3 and all(source.startswith(f"{path}:") for source in sources)


@pytest.mark.trains
def test_the_worst_examples_in_readable_form(folders, tmp_path):
    shown = {}
    for task in GOOD:
        worst = recipes.score(folders / task, put(tmp_path, *GOOD[task]))["worst"]
        shown[task] = {example["source"].rpartition(":")[2]: example for example in worst}
    for entry in shown["pair"].values():
        assert " | " in entry["input"] and {entry["expected"], entry["answer"]} == {"a", "b"}
    for entry in shown["classify"].values():
        assert {entry["expected"], entry["answer"]} == {"a", "b"}
    assert all(isinstance(entry["answer"], float) for entry in shown["regress"].values()) and shown["regress"]
    assert all("/" in entry["expected"] + entry["answer"] for entry in shown["tag"].values()) and shown["tag"]
    if "1" in shown["tag"]:
        assert (shown["tag"]["1"]["input"], shown["tag"]["1"]["expected"]) == ("x y", "x/B-X y/I-X")
    expected = {"1": "z", "2": "(none)", "3": "y z"}
    assert shown["answer"] and all(entry["expected"] == expected[line] for line, entry in shown["answer"].items())


@pytest.mark.trains
@pytest.mark.parametrize("task", GOOD)
def test_a_byte_order_mark_and_windows_line_ends(task, folders, figures_of, tmp_path):
    name, content = GOOD[task]
    scores = recipes.score(folders / task, put(tmp_path, name, "\ufeff" + content.replace("\n", "\r\n")))
    del scores["worst"]
    assert scores == figures_of(task)


def test_a_text_without_words_is_a_wrong_answer(folders, tmp_path):
    scores = recipes.score(folders / "classify", put(tmp_path, "a.tsv", "text\tlabel\n\u200b\ta\n\u200b\tb\n"))
    assert scores["accuracy"] == 0 and scores["worst"][0]["answer"] == "no words in this text"


def test_what_people_read(folders, tmp_path, capsys):
    """Which side of the table is expected, the class of F1, both texts of a pair, the confidence; rounded numbers."""
    long = "x " * 70
    data = put(tmp_path, "a.tsv", f"text\tpair\tlabel\n{long}\tz\ta\n{long}\tz\tb\n")
    scores = recipes.score(folders / "pair", data)
    assert scores["table"][0] == ["expected \\ answered", "a", "b"] and scores["f1_of"] == "b"
    (worst,) = scores["worst"]
    assert worst["texts"] == [long, "z"] and worst["input"] == f"{long} | z" and 0.5 <= worst["confidence"] <= 1
    assert main.main(["score", str(folders / "pair"), "--data", str(data)]) == 0
    out = capsys.readouterr().out
    assert (
        "\nf1 of b " in out and "expected \\ answered" in out and "\n    z\n    expected  " in out and "% sure)" in out
    )
    assert "precision" in out and "support" in out
    data = put(tmp_path, "b.tsv", "text\tlabel\nx\t1.23456789\ny\t2\n")
    assert main.main(["score", str(folders / "regress"), "--data", str(data)]) == 0
    shown = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    assert "1.235" in shown and all(len(number) <= 9 for number in shown if number not in "xy")


@pytest.mark.trains
def test_the_positive_class(folders, tmp_path, capsys):
    data = put(tmp_path, *GOOD["classify"])
    figures = {label: recipes.score(folders / "classify", data, positive=label) for label in "ab"}
    assert [figures[label]["f1_of"] for label in "ab"] == ["a", "b"] and figures["a"]["f1"] != figures["b"]["f1"]
    argv = ["score", str(folders / "classify"), "--data", str(data), "--positive"]
    assert main.main([*argv, "a"]) == 0 and "\nf1 of a " in capsys.readouterr().out
    assert main.main([*argv, "c"]) == 1
    assert "positive='c': no label of this model, which has a, b" in one_line(capsys)
    argv = ["train", "--data", data, "--dev", data, "--encoder", folders / "encoder", "--steps", "1"]
    argv = [*map(str, argv), "--out", str(tmp_path / "m"), "--positive"]
    assert main.main([*argv, "c"]) == 1
    assert "positive='c': no label of the data, which has a, b" in one_line(capsys)
    assert main.main([*argv, "a"]) == 0
    assert recipes.score(tmp_path / "m", data)["f1_of"] == "a"
    with pytest.raises(ValueError, match="positive='a': of a classifier alone, and the task is 'multilabel'"):
        recipes.score(folders / "multilabel", put(tmp_path, *GOOD["multilabel"]), positive="a")


def test_exports_are_scored(folders, tflite_in_process, tmp_path, capsys):
    from keras_ctxrep_export import saved_model
    from keras_ctxrep_tflite import quantize

    folder, data = folders / "classify", put(tmp_path, *GOOD["classify"])
    quantize.convert(folder, tmp_path / "m.tflite")
    saved_model.export(*saving.load(folder), tmp_path / "served")
    expected = recipes.score(folder, data)
    for path in ("m.tflite", "served", "served/1"):
        assert main.main(["score", str(tmp_path / path), "--data", str(data), "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert figures["examples"] == 3 and figures["accuracy"] == expected["accuracy"]


# ------------------------------------------------------------------------------------------------------ malformed rows

ANSWER = '{"question": "x ?", "context": "y z x", "answers": [{"text": "z", "start": %s}]}\n'
MALFORMED = [
    ("classify", "a.tsv", "text\tlabel\nx\ta\ny\n", ":3: 1 fields where the header has 2"),
    ("classify", "a.tsv", "text\tlabel\nx\ta\ny\tb\tc\n", ":3: 3 fields where the header has 2"),
    ("classify", "a.tsv", "text\tlabel\nx\ta\ny\t\n", ":3: no label"),
    ("classify", "a.tsv", "text,label\nx,a\n", ":1: the header must name a column 'text'"),
    ("classify", "a.jsonl", '{"text": "x", "label": "a"}\n{"text": "x"\n', ":2: not JSON"),
    ("classify", "a.jsonl", '{"text": "x", "label": "a"}\n{"text": "x", "pair": "y", "label": "b"}\n', ":2: a pair of"),
    ("classify", "a.tsv", "", "a.tsv: no examples in it"),
    ("pair", "a.tsv", "text\tpair\tlabel\nx\ty\ta\nx\tb\n", ":3: 2 fields where the header has 3"),
    (
        "pair",
        "a.jsonl",
        '{"text": "x", "pair": "y", "label": "a"}\n{"text": "x", "label": "b"}\n',
        ":2: one text; this",
    ),
    (
        "multilabel",
        "a.jsonl",
        '{"text": "x", "labels": ["a", "b"]}\n{"text": "x", "labels": {"a": 1}}\n',
        ":2: label {",
    ),
    ("regress", "a.tsv", "text\tlabel\nx\t1\ny\tmuch\n", ":3: label 'much' is not a finite number"),
    ("regress", "a.tsv", "text\tlabel\nx\t1\ny\tnan\n", ":3: label 'nan' is not a finite number"),
    ("tag", "a.conll", "x O\n\nx O\ny B-X O\n", ":4: 3 columns where the words before have 2"),
    ("tag", "a.jsonl", '{"words": ["x", "y"], "tags": ["O"]}\n', ":1: 2 words and 1 tags"),
    ("answer", "a.jsonl", ANSWER % 2 + ANSWER % 3, ":2: answer 'z' is not at character 3 of its context"),
    ("answer", "a.jsonl", ANSWER % 2 + ANSWER % -1, ":2: answer 'z' is not at character -1 of its context"),
    (
        "answer",
        "a.tsv",
        "question\tcontext\n",
        "questions are read from .jsonl and .parquet files and the .json of SQuAD",
    ),
]
ONE_LABEL = [
    ("classify", "a.tsv", "text\tlabel\nx\ta\ny\ta\n", "only the label 'a'; a classifier needs at least two"),
    ("tag", "a.conll", "x O\n\ny O\n", "only the label 'O'; a tagger needs at least two"),
    ("multilabel", "a.tsv", "text\tlabels\nx\t\n", "no labels"),
]
UNKNOWN = [
    ("classify", "a.tsv", "text\tlabel\nx\ta\ny\tc\nz\tc\n", "'c' (2)"),
    ("pair", "a.tsv", "text\tpair\tlabel\nx\ty\tc\n", "'c' (1)"),
    ("multilabel", "a.tsv", "text\tlabels\nx\ta,c\n", "'c' (1)"),
    ("tag", "a.conll", "x O\ny B-Z\n", "'B-Z' (1)"),
]


def one_line(capsys):
    err = capsys.readouterr().err
    assert err.startswith("ctxrep: ") and err.count("\n") == 1 and "Traceback" not in err
    return err


@pytest.mark.parametrize(("task", "name", "content", "message"), [*MALFORMED, *ONE_LABEL])
def test_training_on_malformed_rows(task, name, content, message, folders, tmp_path, capsys):
    """Nothing is trained and nothing is written; the same in what is learned from and in the development set."""
    bad, good = put(tmp_path, name, content), put(tmp_path, *GOOD[task])
    out = tmp_path / "out"
    both = [(bad, good), (good, bad)] if (task, name, content, message) in MALFORMED else [(bad, good)]
    for data, dev in both:
        argv = [
            "train",
            "--task",
            kind(task),
            "--data",
            data,
            "--dev",
            dev,
            "--encoder",
            folders / "encoder",
            "--out",
            out,
        ]
        assert main.main([*map(str, argv), "--steps", "1"]) == 1
        err = one_line(capsys)
        assert message in err and str(bad) in err and not out.exists()


@pytest.mark.trains
@pytest.mark.filterwarnings("always:.*count as errors:UserWarning")
@pytest.mark.parametrize(("task", "name", "content", "message"), UNKNOWN)
def test_an_unknown_label_in_the_development_set(task, name, content, message, folders, tmp_path, capsys):
    bad, good = put(tmp_path, name, content), put(tmp_path, *GOOD[task])
    argv = ["train", "--task", kind(task), "--data", good, "--dev", bad, "--encoder", folders / "encoder"]
    warning = f"ctxrep: {bad}: labels that the model cannot predict count as errors: {message}\n"
    assert main.main([*map(str, argv), "--out", str(tmp_path / "out"), "--steps", "1"]) == 0
    assert capsys.readouterr().err.count(warning) == 1
    assert main.main(["score", str(tmp_path / "out"), "--data", str(bad), "--json", "--skip-bad"]) == 0
    output = capsys.readouterr()
    assert output.err == warning
    figures = json.loads(output.out)
    assert figures["skipped"] == [] and figures["examples"] == len(list(tasks.get(kind(task)).read(bad)))
    if task == "classify":
        assert figures["accuracy"] <= 1 / 3 and figures["f1_of"] == "b"


def test_held_out_roles_with_unseen_labels_score_as_in_seqeval(tmp_path, rng):
    """An argument of a new type is a span that was not found, as conlleval and seqeval count it."""
    labels = ("O", "B-ARG0", "I-ARG0", "B-ARG1", "I-ARG1")
    saving.save(tmp_path / "m", *tiny.model("semantic_roles", vocab=VOCAB, labels=labels))
    examples = [Roles(tuple(rng.choice([*"xyz"], 6).tolist()), 0) for _ in range(30)]
    answers = open_model(tmp_path / "m").answer.ask(examples)
    predicted = [list(to_iob2([word["label"] for word in answer["words"]])) for answer in answers]
    gold = [to_iob2([tag if rng.random() < 0.7 else "B-R-ARGM-ADJ" for tag in tags]) for tags in predicted]
    path = put(
        tmp_path,
        "a.conll",
        "\n".join(
            "".join(
                f"{word} _ {'x' if i == 0 else '-'} {tag}\n"
                for i, (word, tag) in enumerate(zip(e.words, tags, strict=True))
            )
            for e, tags in zip(examples, gold, strict=True)
        ),
    )
    with pytest.warns(UserWarning, match=r"a\.conll: labels .* count as errors: 'B-R-ARGM-ADJ' \(\d+\)") as caught:
        figures = recipes.score(tmp_path / "m", path)
    sides = [[*map(list, gold)], predicted]
    assert len(caught) == 1 and 0 < figures["span_f1"] < 1
    assert figures["span_f1"] == pytest.approx(seqeval.metrics.f1_score(*sides))
    assert figures["recall"] == pytest.approx(seqeval.metrics.recall_score(*sides))
    assert figures["recall"] > 0


@pytest.mark.parametrize(("task", "name", "content", "message"), MALFORMED)
def test_scoring_on_malformed_rows(task, name, content, message, folders, tmp_path, capsys):
    bad = put(tmp_path, name, content)
    argv = ["score", str(folders / task), "--data", str(bad), "--predictions", str(tmp_path / "answers.jsonl")]
    assert main.main(argv) == 1
    err = one_line(capsys)
    assert message in err and str(bad) in err and not (tmp_path / "answers.jsonl").exists()


BAD_ROWS = {
    "classify": "x\n" + "\ta\n",
    "pair": "x\ty\n" + "\ty\ta\n",
    "multilabel": "x\n" + "\ta\n",
    "regress": "x\n" + "x\tmuch\n",
    "tag": "\nx O\ny B-X O\n\ny\n",
    "answer": ANSWER % 3 + "{\n",
}


@pytest.mark.parametrize("task", GOOD)
def test_malformed_rows_are_left_out_of_a_score(task, folders, figures_of, tmp_path, capsys):
    name, content = GOOD[task]
    bad = put(tmp_path, name, content + BAD_ROWS[task])
    answers = tmp_path / "answers.jsonl"
    argv = ["score", str(folders / task), "--data", str(bad), "--skip-bad", "--predictions", str(answers)]
    assert main.main([*argv, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    skipped = scores.pop("skipped")
    assert len(skipped) == 2 and all(message.startswith(f"{bad}:") for message in skipped)
    assert len(answers.read_text(encoding="utf-8").splitlines()) == scores["examples"] == 3
    del scores["worst"]
    assert scores == json.loads(json.dumps(figures_of(task)))
    assert main.main(argv) == 0
    out = capsys.readouterr().out
    assert "\nmalformed rows left out: 2\n" in out and all(f"\n  {message}\n" in out for message in skipped)


def test_nothing_but_malformed_rows(folders, tmp_path, capsys):
    bad = put(tmp_path, "a.tsv", "text\tlabel\nx\ny\n")
    assert main.main(["score", str(folders / "classify"), "--data", str(bad), "--skip-bad"]) == 1
    assert f"{bad}: no row of it can be read; the first: {bad}:2: 1 fields" in one_line(capsys)


@pytest.mark.trains
@pytest.mark.filterwarnings("always::UserWarning")  # which the command prints
def test_malformed_rows_are_left_out_of_training(folders, tmp_path, capsys):
    name, content = GOOD["regress"]
    data, dev = put(tmp_path, name, content + BAD_ROWS["regress"]), put(tmp_path, "dev.tsv", content + "x\n")
    argv = ["train", "--task", "regress", "--data", data, "--dev", dev, "--encoder", folders / "encoder", "--skip-bad"]
    assert main.main([*map(str, argv), "--out", str(tmp_path / "out"), "--steps", "2", "--freeze"]) == 0
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "ctxrep: malformed rows left out: 3"
    assert [line.strip().partition(": ")[0] for line in err[1:4]] == [f"{data}:5", f"{data}:6", f"{dev}:5"]
    assert saving.load(tmp_path / "out")[1].task == "regress"


# ------------------------------------------------------------------------------------------------- other models


def test_options_of_task_models_alone(folders, models, tmp_path):
    for options in ({"columns": {"text": "x"}}, {"skip_bad": True}, {"predictions": tmp_path / "a"}):
        with pytest.raises(ValueError, match="columns, skip_bad and predictions are for task models"):
            recipes.score(models / "bert" / "pretrained", "any.txt", **options)
    texts = put(tmp_path, "texts.txt", "x y\n")
    with pytest.raises(ValueError, match=r"texts\.txt:1: no pair: --columns pair=NAME names its column"):
        recipes.score(folders / "encoder", texts)
    with pytest.raises(ValueError, match="give a text file"):
        recipes.score(models / "bert" / "pretrained", ["a"])


def test_a_sentence_without_pieces_among_the_worst(folders, tmp_path):
    scores = recipes.score(
        folders / "tag", put(tmp_path, "a.conll", "\u200b B-X\n\u200b I-X\n\nx B-X\n\u200b I-X\ny O\n")
    )
    shown = {example["source"].rpartition(":")[2]: example for example in scores["worst"]}
    assert scores["examples"] == 2 and shown["1"]["answer"] == "no words in this text"
    assert shown["1"]["expected"] == "\u200b/B-X \u200b/I-X"


def test_one_string_is_not_its_characters():
    with pytest.raises(TypeError, match="sentences='a text': one string; give a list of sentences"):
        list(recipes.score_sentences("no folder", "a text"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x O\ny B-X\nz B-Y\n", "a.conll: one sentence in it; an empty line stands between sentences"),
        ("x a\n\ny b\nz c\n", "a.conll: each of its 3 labels is used once; the label is in the last column"),
    ],
)
def test_sentences_that_were_hardly_meant_so(content, message, tmp_path):
    path = put(tmp_path, "a.conll", content)
    with pytest.warns(UserWarning, match=message) as caught:
        Run(path, path, WORDS, tmp_path / "out", "tag", Finetuning()).survey()
    assert len(caught) == 1
