"""What the tests of the plots share: the checks of a command that fails."""

import pytest

from keras_ctxrep.cli.main import main


@pytest.fixture
def check_usage(capsys):
    """Checks that a command is wrong usage."""

    def check(argv):
        with pytest.raises(SystemExit) as stop:
            main(argv.split())
        assert stop.value.code == 2 and "ctxrep" in capsys.readouterr().err

    return check


@pytest.fixture
def check_error(models, tmp_path, capsys):
    """Checks that a command ends with one line of error and writes nothing."""

    def check(argv, message):
        (tmp_path / "s.tsv").write_text("text\tlabel\nsnow soup a\tx\nsoup a\ty\nsoup a\t\n")
        (tmp_path / "one.tsv").write_text("text\tlabel\nsnow\tx\nmore snow\tx\n")
        (tmp_path / "two.tsv").write_text("text\tlabel\nsnow\tx\nmore snow\ty\n")
        (tmp_path / "long.txt").write_text("x " * 40)
        before = sorted(tmp_path.iterdir())
        filled = argv.format(bert=models / "bert" / "pretrained", elmo=models / "elmo" / "classifier", tmp=tmp_path)
        assert main(filled.split()) == 1
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and message in lines[0], lines
        assert sorted(tmp_path.iterdir()) == before

    return check
