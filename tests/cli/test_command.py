"""What commands print of others: labels, cards, names of files."""

import json

import pytest

from keras_ctxrep import places, saving
from keras_ctxrep.cli.main import main
from keras_ctxrep.commands import printing as command
from keras_ctxrep.zoo import entries
from tests import tiny
from tests.hostile import ESCAPES


def is_safe(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.parametrize("write", [command.print_error, command.print_line])
def test_lines(write, capsys):
    write(f"a\nb {ESCAPES}")
    printed = "".join(capsys.readouterr())
    assert printed.startswith("a\nb \\x1b]0;pwned\\x07") and is_safe(printed)


def test_long_errors_are_cut(capsys):
    command.print_error("x" * 10_000_000)
    assert len(capsys.readouterr().err) < 5000


def test_cells_of_a_table():
    assert command.table([["label"], [ESCAPES]]).splitlines()[2].startswith("\\x1b]0;pwned")
    assert is_safe(command.table([[ESCAPES, "n"], ["x" * 1000, "1"]]))
    assert is_safe(command.short(ESCAPES))


@pytest.mark.parametrize("terminal", [True, False])
def test_data_is_escaped_on_terminals_alone(terminal, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    print(ESCAPES, file=command.output(), flush=True)
    assert is_safe(capsys.readouterr().out) is terminal


def test_labels_of_a_model(tmp_path, capsys):
    """Of `score`: the table, the worst examples and the errors."""
    labels = ("no", f"yes{ESCAPES}")
    tiny.save(tmp_path / "m", tiny.bundle("classify", labels=labels))
    rows = [{"text": "the cat", "label": label} for label in labels]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for more in ([], ["--json"]):
        assert main(["score", str(tmp_path / "m"), "--data", str(tmp_path / "data.jsonl"), *more]) == 0
        printed = capsys.readouterr()
        assert "\\x1b]0;pwned" in printed.out or json.loads(printed.out)
        assert is_safe(printed.out) and is_safe(printed.err)


def test_cards_and_warnings(tmp_path, capsys, monkeypatch):
    entry = next(entry for entry in entries.ENTRIES if entry.shipped)
    saving.save(tmp_path / entry.name, *tiny.model("embed", card=f"# {ESCAPES}\n\nline\n"))
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    assert main(["zoo", "show", entry.name]) == 0
    assert is_safe(shown := capsys.readouterr().out) and "# \\x1b]0;pwned" in shown and "\n\nline\n" in shown


def test_names_of_files(tmp_path, capsys):
    assert main(["predict", str(tmp_path / f"{ESCAPES}.tflite")]) == 1
    assert is_safe(err := capsys.readouterr().err) and "\\x1b]0;pwned" in err
