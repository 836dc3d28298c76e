"""`ctxrep predict --data`: rows of files to predictions beside the rows' own fields; columns that a model remembers."""

import csv
import gzip
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.cli import main
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep_tflite import quantize
from tests import tiny

VOCAB = (*SPECIAL_PIECES, "x", "y", "z", "?")
LABELS = {"classify": ("a", "b"), "pair": ("a", "b"), "multilabel": ("a", "b"), "tag": ("O", "B-X", "I-X")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """For each task a model that has learned nothing, and "encoder"; of "odd" the columns are remembered."""
    root = tmp_path_factory.mktemp("predictions")
    tiny.save(root / "encoder", tiny.bundle("embed", vocab=VOCAB))
    for name in ("classify", "pair", "odd", "multilabel", "regress", "tag", "answer", "numbered"):
        task = {"pair": "classify", "odd": "classify", "numbered": "tag"}.get(name, name)
        columns = {"odd": {"text": "Body", "label": "Queue"}, "numbered": {"text": "2", "label": "3"}}.get(name, {})
        options = {"pair": name in ("pair", "answer"), "labels": LABELS.get(task, ()), "columns": columns}
        tiny.save(root / name, tiny.bundle(task, vocab=VOCAB, head={"dropout": 0.1}, **options))
    return root


@pytest.fixture
def predict(folders, tmp_path, capsys):
    """Runs the command on a file with some content, and returns what it printed."""

    def run(model, name, content, *flags, status=0):
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert main.main(["predict", str(folders / model), "--data", str(tmp_path / name), *flags]) == status
        return capsys.readouterr()

    return run


@pytest.mark.trains
def test_json_lines_keep_the_fields_of_the_row(predict, folders):
    printed = predict("classify", "a.tsv", "id\ttext\tlabel\n7\tx y\t\n8\tz\t\n")
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert [(row["id"], row["text"], row["label"]) for row in rows] == [("7", "x y", ""), ("8", "z", "")]
    expected = keras_engine.predictor(folders / "classify")(["x y", "z"])
    assert [row["prediction"]["label"] for row in rows] == [answer["label"] for answer in expected]
    rows = [{"text": "x", "n": 1, "prediction": "mine"}, {"text": "y", "n": None, "label": {"not": "read"}}]
    printed = predict("classify", "a.jsonl", "\n".join(map(json.dumps, rows)))
    first, second = (json.loads(line) for line in printed.out.splitlines())
    assert first["prediction"] == "mine" and set(first["prediction_of_model"]) == {"label", "score", "probabilities"}
    assert second["n"] is None and second["prediction"]["label"] in "ab"


def test_a_table_in_the_columns_of_the_caller(predict, tmp_path):
    content = "ID\tBody\n7\tx y\n8\tz\n"
    out = tmp_path / "out.tsv"
    assert predict("classify", "a.tsv", content, "--columns", "text=Body", "--out", str(out)).out == ""
    header, *rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert header == ["ID", "Body", "prediction", "score"] and [row[:2] for row in rows] == [["7", "x y"], ["8", "z"]]
    assert all(row[2] in "ab" and 0 < float(row[3]) < 1 for row in rows)
    printed = predict("classify", "a.tsv", "7\tx y\n8\tz\n", "--columns", "text=2", "label=9", "--format", "tsv")
    assert printed.out.splitlines()[0] == "1\t2\tprediction\tscore"


def test_a_csv_file(predict, tmp_path):
    out = tmp_path / "out.csv"
    assert predict("classify", "a.csv", 'id,text\n7,"x ""y"",\nz"\n8,y\n', "--out", str(out)).out == ""
    with out.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["id", "text", "prediction", "score"]
    assert [row[:2] for row in rows] == [["7", 'x "y",\nz'], ["8", "y"]] and rows[0][2] in "ab"


@pytest.mark.filterwarnings("always:.*trained from:UserWarning")
def test_a_column_that_the_model_was_not_trained_from(predict, folders, tmp_path):
    model, bundle = saving.load(folders / "classify")
    saving.save(tmp_path / "m", model, replace(bundle, columns={"text": "Review Text", "label": "stars"}))
    warning = (
        "no column 'Review Text', which the model was trained from; 'text' is read as its text. --columns text=text"
    )
    for name, content in (
        ("a.tsv", "id\ttext\tlabel\n1\tx\ta\n2\ty\tb\n"),
        ("a.jsonl", '{"text": "x", "label": "a"}\n'),
    ):
        assert predict(tmp_path / "m", name, content).err.count(warning) == 1
        assert predict(tmp_path / "m", name, content, "--columns", "text=text").err == ""
    assert predict(tmp_path / "m", "a.tsv", "review text\ttext\nx\ty\n").err == ""


def test_text_that_the_vocabulary_cannot_read(predict):
    """Said above 5% of at least 20 pieces."""
    content = "text\n" + "x y z\n" * 19
    assert predict("classify", "a.tsv", content + "中\n").err == ""
    err = predict("classify", "a.tsv", content + "中中中中\n").err
    assert (
        "a.tsv: 7% of the word pieces are [UNK]" in err and "use a model that learned from text in this language" in err
    )


@pytest.mark.trains
@pytest.mark.parametrize(
    ("model", "name", "content", "header"),
    [
        ("pair", "a.tsv", "sentence1\tsentence2\nx\ty\n", "sentence1 sentence2 prediction score"),
        ("multilabel", "a.tsv", "text\nx\n", "text prediction"),
        ("regress", "a.tsv", "text\tlabel\nx\tunknown\n", "text label prediction"),
        ("answer", "a.jsonl", '{"id": 3, "question": "x ?", "context": "y z"}\n',
            "id question prediction start end score"),
        ("answer", "a.json", json.dumps({"data": [{"paragraphs": [{"context": "x y", "qas": [
            {"id": "q", "question": "z ?", "answers": [{"text": "wrong", "answer_start": 0}]}]}]}]}),
            "id question prediction start end score"),
        ("tag", "a.jsonl", '{"words": ["x", "y"], "id": 1}\n', "words id prediction"),
    ],
)  # fmt: skip
def test_every_task(predict, model, name, content, header):
    lines = predict(model, name, content, "--format", "tsv").out.splitlines()
    assert lines[0].split("\t") == header.split() and len(lines) == 2
    assert len(predict(model, name, content).out.splitlines()) == 1


def test_conll_keeps_its_columns(predict):
    content = "x\tNN\ny\tVB\n\nz\tNN\n"
    blocks = predict("tag", "a.conll", content, "--format", "tsv").out.split("\n\n")
    words = [[line.split("\t") for line in block.splitlines()] for block in blocks if block]
    assert [[word[:2] for word in sentence] for sentence in words] == [[["x", "NN"], ["y", "VB"]], [["z", "NN"]]]
    assert all(word[2] in LABELS["tag"] for sentence in words for word in sentence)
    rows = [json.loads(line) for line in predict("tag", "a.conll", content).out.splitlines()]
    assert [row["source"].rpartition(":")[2] for row in rows] == ["1", "4"]


def test_pairs_and_malformed_rows(predict):
    err = predict("pair", "a.tsv", "text\nx\n", status=1).err
    assert "a.tsv:2: one text; this model reads a pair of texts" in err and err.count("\n") == 1
    assert "a.tsv:3: 1 fields" in predict("classify", "a.tsv", "text\tid\nx\t1\ny\n", status=1).err
    printed = predict("classify", "a.tsv", "text\tid\nx\t1\ny\n", "--skip-bad")
    assert len(printed.out.splitlines()) == 1 and "malformed rows left out: 1" in printed.err


@pytest.mark.trains
def test_rows_without_an_answer(predict, capsys, folders, tmp_path):
    printed = predict("classify", "a.tsv", "text\nx\n\u200b\n" + "x " * 40 + "\n", "--format", "tsv")
    assert printed.out.splitlines()[2] == "\u200b\t\t" and "rows without an answer: 1\n" in printed.err
    assert "1 texts were longer than the model reads" in printed.err
    err = predict("classify", "a.tsv", "text\n\u200b\n", status=1).err
    assert "nothing in it was answered: no words in this text" in err
    for content in ("", "\n\n"):
        (tmp_path / "lines.txt").write_text(content)
        assert main.main(["predict", str(folders / "classify"), "--input", str(tmp_path / "lines.txt")]) == 1
        assert "nothing in it was answered" in capsys.readouterr().err


@pytest.mark.trains
def test_lines_as_a_table(folders, tmp_path, capsys):
    (tmp_path / "lines.txt").write_text("x y\nz\n")
    argv = ["predict", str(folders / "classify"), "--input", str(tmp_path / "lines.txt")]
    assert main.main([*argv, "--format", "tsv"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["text", "x y", "z"]
    with pytest.raises(SystemExit) as stop:
        main.main([*argv, "--columns", "text=a"])
    assert stop.value.code == 2 and "--columns and --skip-bad are for the rows of --data" in capsys.readouterr().err
    (tmp_path / "lines.tsv").write_text("text\nx\n")
    assert main.main([*argv[:-1], str(tmp_path / "lines.tsv")]) == 0
    assert "read line by line; --data" in capsys.readouterr().err


def test_a_tflite_file_without_tensorflow(folders, tflite_in_process, tmp_path):
    quantize.convert(folders / "odd", tmp_path / "m.tflite")
    (tmp_path / "a.tsv").write_text("Id\tBody\n1\tx\n")
    code = (
        "import sys; from keras_ctxrep.cli import main; "
        f"status = main.main(['predict', {str(tmp_path / 'm.tflite')!r}, '--data', {str(tmp_path / 'a.tsv')!r}]); "
        "print({'tensorflow', 'keras'} & set(sys.modules)); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer, loaded = done.stdout.splitlines()
    assert json.loads(answer)["Id"] == "1" and loaded == "set()"


# ------------------------------------------------------------------------------------------ columns that are remembered


@pytest.mark.trains
def test_a_model_knows_the_columns_it_was_trained_from(folders, tmp_path, capsys):
    odd = tmp_path / "odd.tsv"
    odd.write_text("Nr\tBody\tQueue\n1\tx y\ta\n2\ty\tb\n")
    (tmp_path / "dev.tsv").write_text("text\tlabel\nx\ta\n")
    argv = ["train", "--data", odd, "--dev", tmp_path / "dev.tsv", "--encoder", folders / "encoder", "--steps", "1"]
    argv += ["--out", tmp_path / "m", "--columns", "text=body,label=Queue"]
    assert main.main([*map(str, argv)]) == 1  # of the development file
    assert "dev.tsv:1: the header has no column 'body'" in capsys.readouterr().err
    assert main.main([*map(str, argv), "--dev-columns", "text=text"]) == 0
    assert bundles.load(tmp_path / "m").columns == {"text": "body", "label": "Queue"}
    record = json.loads((tmp_path / "m" / "run.json").read_text())["options"]
    assert record["columns"] == {"text": "body", "label": "Queue"} and record["dev_columns"] == {"text": "text"}
    assert recipes.score(tmp_path / "m", odd)["examples"] == 2
    with pytest.warns(UserWarning, match="no column '(body|Queue)'"):
        assert recipes.score(tmp_path / "m", tmp_path / "dev.tsv")["examples"] == 1  # the usual names
    assert bundles.load(tmp_path / "m").columns and not saving.load_encoder(tmp_path / "m")[1].columns


def test_numbered_columns_are_remembered_too(folders, write):
    task = tasks.of_model(bundles.load(folders / "numbered"))
    (sentence,) = task.read(write("a.conll", "1\tx\tB-X\tmore\n2\ty\tO\tmore\n"))
    assert sentence == tasks.tag.Tagged(("x", "y"), ("B-X", "O"))
    classify = tasks.of_model(Bundle("bert", "classify", {}, 8, columns={"text": "2", "label": "1"}))
    assert list(classify.read(write("a.tsv", "a\tx\tmore\nb\ty\tmore\n"))) == [Example("x", "a"), Example("y", "b")]
    assert list(classify.read(write("b.tsv", "label\ttext\na\tx\n"))) == [Example("x", "a")]
    assert list(classify.read(write("c.jsonl", '{"text": "x", "label": "a"}'))) == [Example("x", "a")]


def test_compare_needs_no_columns(folders, tmp_path, capsys, tflite_in_process):
    quantize.convert(folders / "odd", tmp_path / "m.tflite")
    (tmp_path / "a.tsv").write_text("Body\tQueue\nx\ta\n")
    argv = ["compare", folders / "odd", tmp_path / "m.tflite", "--data", tmp_path / "a.tsv", "--json"]
    assert main.main([*map(str, argv)]) == 0
    assert [row["agreement"] for row in json.loads(capsys.readouterr().out)] == [1, 1]


def test_an_encoder_answers_rows_and_is_compared(predict, folders, tmp_path, capsys):
    printed = predict("encoder", "a.tsv", "id\ttext\n1\tx y\n")
    (row,) = map(json.loads, printed.out.splitlines())
    assert row["id"] == "1" and len(row["prediction"]["vector"]) == 8
    encoder, data = str(folders / "encoder"), ["--data", str(tmp_path / "a.tsv")]
    assert main.main(["compare", encoder, encoder, *data, "--json"]) == 0
    for engine in json.loads(capsys.readouterr().out):
        assert engine["agreement"] == 1 and engine["difference"] < 1e-5 and engine["quality"] is None


def test_a_damaged_input(folders, tmp_path, capsys):
    whole = gzip.compress(b"x y\n" * 100)
    (tmp_path / "a.txt.gz").write_bytes(whole[:-12])
    assert main.main(["predict", str(folders / "classify"), "--input", str(tmp_path / "a.txt.gz")]) == 1
    assert "a.txt.gz: damaged compressed file" in capsys.readouterr().err


def test_words_that_were_cut_off_have_no_label(predict):
    lines = predict("tag", "a.conll", "x\n" * 40, "--format", "tsv").out.splitlines()
    assert lines[-1] == "" and lines[-2] == "x\t_" and lines[0] in ("x\tO", "x\tB-X", "x\tI-X")


@pytest.mark.parametrize("read", ["model.tflite", "rows.tsv", "lines.txt"])
def test_predict_does_not_replace_what_it_reads(folders, tmp_path, capsys, tflite_in_process, read):
    quantize.convert(folders / "classify", tmp_path / "model.tflite", lengths=[16])
    (tmp_path / "rows.tsv").write_text("text\tlabel\nx y\ta\n")
    (tmp_path / "lines.txt").write_text("x y\n")
    before = (tmp_path / read).read_bytes()
    source = ["--input", str(tmp_path / "lines.txt")] if read == "lines.txt" else ["--data", str(tmp_path / "rows.tsv")]
    assert main.main(["predict", str(tmp_path / "model.tflite"), *source, "--out", str(tmp_path / read)]) == 1
    assert "it is read" in capsys.readouterr().err and (tmp_path / read).read_bytes() == before
