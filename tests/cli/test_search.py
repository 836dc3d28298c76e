"""The commands index, search and ask: what they print, read and refuse."""

import io
import json

import pytest

from keras_ctxrep.cli import main
from keras_ctxrep.commands import COMMANDS
from tests import tiny
from tests.hostile import ESCAPES

pytestmark = pytest.mark.trains

TEXTS = ["the cat fell", "rain", "she fell . a b c", "d e f g h " * 30]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """m, an encoder; r, a reader; rows.tsv; and i, their index."""
    folder = tmp_path_factory.mktemp("search")
    tiny.save(folder / "m", tiny.bundle("embed", max_length=300, sizes={"max_positions": 320}))
    tiny.save(folder / "r", tiny.bundle("answer", max_length=32))
    rows = "".join(f"r{n}\t{text}\t{n}\n" for n, text in enumerate(TEXTS))
    (folder / "rows.tsv").write_text("id\ttext\tn\n" + rows)
    assert (
        main.main(["index", str(folder / "rows.tsv"), "--encoder", str(folder / "m"), "--out", str(folder / "i")]) == 0
    )
    return folder


def run(capsys, *argv, status=0):
    """What a command prints to standard output, or where it fails to standard error."""
    capsys.readouterr()
    assert main.main([*map(str, argv)]) == status
    printed = capsys.readouterr()
    return printed.err if status else printed.out


def test_a_table_of_hits(files, capsys):
    lines = run(capsys, "search", files / "i", "rain", "--top", "2").splitlines()
    assert lines[0].split() == ["1", "1.000", "r1", "rain"] and len(lines) == 2
    whole = run(capsys, "search", files / "i", TEXTS[3], "--top", "1")
    assert TEXTS[3].strip() in whole  # not cut where it is no terminal


def test_lines_are_cut_to_the_width_of_a_terminal(files, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    lines = run(capsys, "search", files / "i", TEXTS[3]).splitlines()
    assert max(map(len, lines)) == 50 and lines[0].endswith("...") and len(lines) == 4


def test_json_lines_of_several_queries(files, capsys, tmp_path):
    (tmp_path / "queries.txt").write_text("rain\n\nthe cat fell\n")
    printed = run(capsys, "search", files / "i", "--input", tmp_path / "queries.txt", "--json", "--top", "1")
    first, second = map(json.loads, printed.splitlines())
    assert first == {
        "query": "rain",
        "hits": [
            {"rank": 1, "score": 1.0, "id": "r1", "text": "rain", "source": f"{files}/rows.tsv:3", "fields": {"n": "1"}}
        ],
    }
    assert second["hits"][0]["id"] == "r0"
    plain = run(capsys, "search", files / "i", "--input", tmp_path / "queries.txt", "--top", "1").splitlines()
    assert plain[0] == "# rain" and plain[2] == "# the cat fell" and len(plain) == 4


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_queries_are_typed_on_a_terminal(files, capsys, monkeypatch):
    """One that has no words is told of, and the next is answered."""
    monkeypatch.setattr("sys.stdin", Terminal("rain\n\u0001\nthe cat fell\n"))
    assert main.main(["search", str(files / "i"), "--top", "1"]) == 0
    printed = capsys.readouterr()
    assert [line.split()[2] for line in printed.out.splitlines()] == ["r1", "r0"]
    assert printed.err.count("search> ") == 4 and "no words in this text" in printed.err


def test_rows_are_added_and_deleted(files, capsys, tmp_path):
    (tmp_path / "more.txt").write_text("a b c\n")
    out = tmp_path / "i"
    index = ("index", "--encoder", files / "m", "--out", out)
    assert run(capsys, *index, files / "rows.tsv", "--storage", "int8") == f"{out}: 4 rows\n"
    assert run(capsys, *index, tmp_path / "more.txt", "--add") == f"{out}: 5 rows\n"
    assert run(capsys, "index", "--out", out, "--delete", "r0", "0") == f"{out}: 3 rows are left\n"
    assert "r0" not in run(capsys, "search", out, "the cat fell")


def test_an_answer_with_its_passage(files, capsys):
    printed = run(capsys, "ask", files / "i", "what fell ?", "--reader", files / "r", "--top", "2", "--json")
    content = json.loads(printed)
    assert content["question"] == "what fell ?" and len(content["answers"]) == 2
    best = content["answers"][0]
    assert best["passage"]["text"][best["start"] : best["end"]] == best["answer"]
    first, second = run(capsys, "ask", files / "i", "what fell ?", "--reader", files / "r", "--top", "2").splitlines()
    assert first.startswith(f"{best['answer']}  (score {best['score']:.2f}; {best['passage']['source']}")
    assert best["answer"] in second


def test_no_answer_is_told(files, capsys, monkeypatch):
    monkeypatch.setattr("keras_ctxrep.commands.ask.ask", lambda *args: [[]])
    assert "no answer in the passages" in run(capsys, "ask", files / "i", "what ?", "--reader", files / "r")


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        ("search {f}/nowhere rain", 1, "nowhere: no such folder"),
        ("search {f}/m rain", 1, "no index.json in it; an index is made by `ctxrep index`"),
        ("search {f}/i \u0001", 1, "no words in this text"),
        ("search {f}/i rain --input {f}/rows.tsv", 2, "search: give either TEXT or --input"),
        ("search {f}/i --input {f}/empty.txt", 1, "empty.txt: no text in it"),
        ("search {f}/i rain --encoder {f}/r", 1, "search it with that, or make it again"),
        ("search {f}/i rain --top 0", 2, "must be above 0"),
        ("ask {f}/i rain --reader {f}/m", 1, "the reader is a model of the task 'embed'"),
        ("index --out {f}/j", 2, "index: FILE... and --encoder are needed, or --delete ID..."),
        ("index {f}/rows.tsv --out {f}/i --delete r0", 2, "leave out FILE and --encoder"),
        ("index {f}/rows.tsv --encoder {f}/m --out {f}/i", 1, "--add adds rows to it, --overwrite replaces it"),
        ("index {f}/empty.txt --encoder {f}/m --out {f}/j", 1, "no rows to write"),
        ("index {f}/none.tsv --encoder {f}/m --out {f}/j", 1, "--sources {f}/none.tsv: no such file"),
        ("index {f}/rows.tsv --encoder {f}/m --out {f}/j --overlap 3", 1, "overlap=3: of passages"),
        ("index {f}/rows.tsv --encoder {f}/m --out {f}/m", 1, "a folder with other files and without index.json"),
    ],
)
def test_what_is_refused(argv, status, message, files, capsys):
    (files / "empty.txt").write_text("\n")
    argv = [part.format(f=files) for part in argv.split(" ")]
    if status == 2:
        with pytest.raises(SystemExit) as stop:
            main.main(argv)
        assert stop.value.code == 2 and message in capsys.readouterr().err
        return
    err = run(capsys, *argv, status=1)
    assert message.format(f=files) in err and err.count("\n") == 1
    assert not (files / "j").exists()


def test_what_a_text_holds_does_not_reach_the_terminal(files, capsys, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": f"i{ESCAPES}", "text": f"rain {ESCAPES}"}))
    assert main.main(f"index {tmp_path}/rows.jsonl --encoder {files}/m --out {tmp_path}/i".split()) == 0
    for more in ([], ["--json"]):
        printed = run(capsys, "search", tmp_path / "i", "rain", *more)
        assert printed.replace("\n", "").isprintable() and "pwned" in printed


def test_a_tflite_file_needs_no_tensorflow():
    commands = (
        COMMANDS["index"](sources=["a.tsv"], encoder="m.tflite", out="i"),
        COMMANDS["search"](index="i", encoder="m.tflite"),
        COMMANDS["ask"](index="i", reader="m.tflite"),
    )
    assert not any(command.needs_tensorflow() for command in commands)
