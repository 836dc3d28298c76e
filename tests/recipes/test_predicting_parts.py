"""`ctxrep predict --processes` and `--runner`: the parts are the bytes of one file, whoever writes them."""

import gzip
import io
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest

import keras_ctxrep as ctx
from keras_ctxrep.cli import main
from keras_ctxrep.inference.engines import opened_once
from keras_ctxrep.options import Prediction
from keras_ctxrep.recipes import predict, predicting_parts
from keras_ctxrep.recipes.predicting_parts import predict_parts
from keras_ctxrep.text.corpus import available_lines
from keras_ctxrep_tflite import quantize
from tests import tiny

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "scaling.md"
LINES = [
    b"the cat",
    b"",
    b"rain\r",
    b"\xef\xbb\xbfshe fell",
    b"a \xff b",
    "中 c".encode(),
    b" ",
    b"the " * 20,
    b"d e f",
]
TEXT = b"\xef\xbb\xbf" + b"\r\n".join(LINES)  # the last line without an end


@pytest.fixture(scope="module")
def file(tflite_in_process, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    tiny.save(folder / "m", tiny.bundle("classify"))
    return quantize.convert(folder / "m", folder / "mine.tflite", "none", (8, 16))


@pytest.fixture
def lines(write):
    return write("lines.txt", TEXT)


@pytest.fixture
def expected(file, lines, tmp_path):
    """What `predict` writes."""
    predict(file, lines, tmp_path / "one.jsonl", report=[].append)
    return (tmp_path / "one.jsonl").read_bytes()


def parts(out):
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def run(file, lines, out, part_lines=2, **options):
    reports = []
    predict_parts(file, lines, out, Prediction(part_lines=part_lines, **options), report=reports.append)
    return reports


@pytest.mark.parametrize("count", [1, 2, 100])
def test_the_parts_are_the_bytes_of_one_file(count, file, lines, expected, tmp_path):
    assert expected.count(b"\n") == len(LINES) and b"warning" in expected and b"empty line" in expected
    run(file, lines, tmp_path / "out", count)
    assert len(parts(tmp_path / "out")) == -(-len(LINES) // count)
    assert b"".join(parts(tmp_path / "out").values()) == expected


@pytest.mark.parametrize("count", [1, 2, 100])
def test_the_lines_of_parts_are_those_of_the_text(count):
    read = [line for part in available_lines(io.BytesIO(TEXT)) for line in part]
    texts = [*predicting_parts._parts(read, count)]
    assert len(texts) == -(-len(LINES) // count) and read == LINES
    assert [line for text in texts for part in available_lines(io.BytesIO(text)) for line in part] == LINES


def test_compressed_text_and_streams(file, lines, expected, write, tmp_path):
    run(file, write("lines.txt.gz", gzip.compress(TEXT)), tmp_path / "a")
    with open(lines, "rb") as stream:
        run(file, stream, tmp_path / "b")
    assert parts(tmp_path / "a") == parts(tmp_path / "b") and b"".join(parts(tmp_path / "a").values()) == expected


def test_an_interrupted_run_goes_on_with_the_missing_parts(file, lines, expected, tmp_path, monkeypatch):
    out, written = tmp_path / "out", []
    answer = predicting_parts._answer_part

    def counted(model, texts, folder, name):
        written.append(name)
        if len(written) == 3:
            with monkeypatch.context() as patch:  # the power fails when a part is half written
                patch.setattr(predicting_parts, "json_line", lambda answer: 1 / 0)
                answer(model, texts, folder, name)
        answer(model, texts, folder, name)

    monkeypatch.setattr(predicting_parts, "_answer_part", counted)
    with pytest.raises(ZeroDivisionError):
        run(file, lines, out)
    before = parts(out)
    assert [*before] == written[:2] and [path.name for path in tmp_path.glob(".*")] == []
    assert run(file, lines, out) == ["5 parts, 2 of them were there"]
    assert written[3:] == [*parts(out)][2:] and b"".join(parts(out).values()) == expected
    assert run(file, lines, out) == ["5 parts, 5 of them were there"] and len(written) == 6


def test_parts_of_another_run_are_refused(file, lines, write, tmp_path):
    out = tmp_path / "out"
    run(file, lines, out)
    before = parts(out)
    other = tmp_path / "other.tflite"
    shutil.copyfile(file, other)
    run(other, lines, out)  # another name of the same model
    cases = [(file, write("other.txt", b"a\nb\n"), 2), (file, lines, 3), (file.parent / "m", lines, 2)]
    for model, text, count in cases:
        with pytest.raises(ValueError, match=r"part-00000\d-\w{12}\.jsonl: one of \d parts of another text, model or"):
            run(model, text, out, count)
    assert parts(out) == before


def test_nothing_to_answer(file, write, tmp_path):
    with pytest.raises(ValueError, match="the input is empty"):
        run(file, write("empty.txt", b""), tmp_path / "a")
    with pytest.raises(ValueError, match="nothing was answered; the parts say why"):
        run(file, write("blank.txt", b"\n \n"), tmp_path / "b")
    with pytest.raises(ValueError, match=r"a\.txt: a file; --processes and --runner write a folder"):
        run(file, write("a.txt", b"a\n"), tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"missing\.tflite"):
        run("missing.tflite", write("a.txt", b"a\n"), tmp_path / "c")


def test_two_processes(file, lines, expected, tmp_path, capsys):
    command = f"predict {file} --input {lines} --processes 2 --part-lines 4 --out {tmp_path}/out"
    assert main.main(command.split()) == 0
    assert b"".join(parts(tmp_path / "out").values()) == expected
    assert capsys.readouterr().err == "ctxrep: 3 parts, 0 of them were there\n"


@pytest.mark.parametrize(("runner", "module", "name"), [("direct", "apache_beam", "Beam"), ("spark", "pyspark", "Py")])
def test_a_runner_that_is_not_installed(runner, module, name, file, lines, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    assert main.main(f"predict {file} --input {lines} --runner {runner} --out {tmp_path}/out".split()) == 1
    assert f"needs {'Apache ' if runner == 'direct' else ''}{name}" in capsys.readouterr().err


def test_an_export_is_pickled_by_its_path(file):
    model = ctx.load(file)
    copies = [pickle.loads(pickle.dumps(model)) for _ in range(2)]
    assert copies[0] is copies[1] and copies[0].predict(["the cat"]) == model.predict(["the cat"])
    assert len(pickle.dumps(model)) < 300
    assert opened_once(file) is opened_once(file)


# ------------------------------------------------------------------------------------------- behind the extras

TEXTS = ["the cat", "rain", "she fell"]
RECIPES = {"beam": "import json\n\nimport apache_beam", "spark": "import json\n\nfrom pyspark"}


def recipe(name):
    """The block of the page."""
    return next(block for block in PAGE.read_text().split("```python\n") if block.startswith(RECIPES[name])).split(
        "```"
    )[0]


def in_folder(folder, file, monkeypatch):
    """Goes to a folder with the files that the recipes read; the answers to the texts."""
    shutil.copyfile(file, folder / "mine.tflite")
    monkeypatch.chdir(folder)
    Path("texts.txt").write_text("\n".join(TEXTS))
    return dict(zip(TEXTS, ctx.load("mine.tflite").predict(TEXTS), strict=True))


@pytest.mark.filterwarnings("ignore")  # of Beam
def test_beam(file, lines, expected, tmp_path, monkeypatch):
    pytest.importorskip("apache_beam", reason="Apache Beam is missing: pip install '.[beam]'")
    command = f"predict {file} --input {lines} --runner direct --part-lines 4 --out {tmp_path}/out"
    assert main.main(command.split()) == 0
    assert b"".join(parts(tmp_path / "out").values()) == expected
    answers = in_folder(tmp_path, file, monkeypatch)
    exec(recipe("beam"), {"__name__": "recipe"})
    rows = [json.loads(line) for path in Path().glob("answers-*.jsonl") for line in path.read_text().splitlines()]
    assert len(rows) == len(TEXTS) and dict(rows) == answers


@pytest.mark.filterwarnings("ignore")  # of PySpark
@pytest.mark.slow  # the JVM starts
def test_spark(file, lines, expected, tmp_path, monkeypatch):
    pytest.importorskip("pyspark", reason="PySpark is missing: pip install '.[spark]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or later")
    from pyspark.sql import SparkSession

    options = "--master local[2] --conf spark.ui.enabled=false"
    command = f"predict {file} --input {lines} --runner spark --part-lines 4 --out {tmp_path}/out"
    answers = in_folder(tmp_path, file, monkeypatch)  # where the JVM starts
    try:
        assert main.main([*command.split(), "--runner-options", options]) == 0
        assert b"".join(parts(tmp_path / "out").values()) == expected
        exec(recipe("spark"), {"__name__": "recipe"})
    finally:
        SparkSession.builder.getOrCreate().stop()
    rows = [json.loads(line) for path in Path("answers").glob("*.json") for line in path.read_text().splitlines()]
    assert {row["value"]: json.loads(row["answer"]) for row in rows} == answers
