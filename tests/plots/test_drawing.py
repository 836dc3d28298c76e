"""Pictures: the fonts they need, and Matplotlib, which pages do without."""

import subprocess
import sys

import pytest
from matplotlib import font_manager

from keras_ctxrep.plots import attention
from tests.tiny import is_png


def test_characters_missing_from_the_font_are_reported(models, tmp_path, monkeypatch):
    real = font_manager.findfont("DejaVu Sans")
    own = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findfont", lambda *_, **__: real)
    with pytest.warns(UserWarning, match=r"a\.png: no installed font has the characters 中; install one, or .* \.html"):
        attention.attention(models / "bert" / "pretrained", "snow 中", tmp_path / "a.png")
    assert is_png(tmp_path / "a.png")


@pytest.mark.parametrize(
    "argv",
    [
        "plot tree a --out b.png",
    ],
)
def test_wrong_usage_is_exit_2(argv, check_usage):
    check_usage(argv)


def test_pictures_need_matplotlib_and_pages_do_not(models, tmp_path):
    code = (
        "import importlib.util, sys; real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'matplotlib' else real(name, *a)\n"
        "sys.modules['matplotlib'] = None\n"
        "from keras_ctxrep.cli.main import main\n"
        f"statuses = [main(['plot', 'attention', {str(models / 'bert' / 'pretrained')!r}, '--text', 'snow', '--out',"
        f" {str(tmp_path)!r} + name]) for name in ('/a.png', '/a.html')]; print(statuses)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[1, 0]", done.stderr
    assert done.stderr == 'ctxrep: matplotlib is not installed: pip install "matplotlib>=3.8"\n'
