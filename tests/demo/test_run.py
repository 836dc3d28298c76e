"""The demo: its data, its checks, its report, and all of it on a few examples."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from keras_ctxrep import tasks
from keras_ctxrep.cli.main import main
from keras_ctxrep.demo import run
from keras_ctxrep.demo.report import write_report
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece

QUESTION = {
    "question": "Where is <it>?",
    "found": {"meaning": ["a.b"], "words": ["a.c"]},
    "right": {"meaning": True, "words": False},
}
METHOD = {"span_f1": 0.35, "precision": 0.3, "recall": 0.15, "token_accuracy": 0.9, "interval": (0.3, 0.4)}
ROW = {
    "quality_difference": 0.0,
    "quality_interval": (0.0, 0.0),
    "engine": "Keras",
    "bytes": 4e6,
    "milliseconds": 2.0,
    "agreement": 1.0,
    "difference": 0.0,
    "truncated": 0,
    "metric": "span_f1",
}


@pytest.fixture
def figures():
    """Of a demo that went well."""
    engines = [ROW | {"engine": name, "quality": 0.2} for name in ("Keras", "SavedModel", "float32", "int8")]
    neighbour = {"score": 0.9, "sentence": "A <b> bank.", "word": "bank", "start": 6, "end": 10, "line": 1}
    return {
        "version": "1",
        "seed": 0,
        "minutes": 4.0,
        "cores": 2,
        "processor": "CPU & more",
        "card": "# Card <1>\n\n| a | b |\n|---|---|\n| <i>x</i> | **y** `z` |\n\n- [l](javascript:x)\n",
        "ready": {
            "masks": [("It is [MASK] <x>.", [("a<", 0.5), ("b", 0.25)])],
            "names": [("Ann", "B-person"), ("fell", "O")],
        },
        "distilling": {"text": "text", "words": 1000, "curve": [(0.2, 0.6), (1.0, 0.7)]},
        "search": {"texts": 100, "entries": [QUESTION, QUESTION], "right": {"meaning": 2, "words": 0}},
        "tagging": {
            "sizes": {"train": 10, "dev": 5, "test": 20},
            "methods": {name: METHOD for name in run.METHODS},
            "gains": {name: {"gain": 0.1, "interval": (0.05, 0.15)} for name in run.METHODS[1:]},
        },
        "senses": {
            "queries": [{"sentence": "The bank.", "neighbours": [neighbour]}],
            "sentences": 24,
            "accuracy": 1.0,
            "majority": 0.5,
        },
        "engines": {"rows": engines, "loaded": [], "same_on_edge": True, "sentences": 20},
        "examples": [[("in", "O"), ("New", "B-location"), ("<York>", "I-location"), ("!", "O")]],
        "checks": [(True, "a < b"), (False, "c")],
    }


# -------------------------------------------------------------------------------------------------------------- data


PAGES = ("README.md", "docs/how-to/install.md", "docs/tutorials/demo.md")


@pytest.mark.parametrize("name", [*PAGES, "keras_ctxrep/commands/demo.py", "keras_ctxrep/demo/run.py"])
def test_its_time_is_the_same_everywhere(name):
    text = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")
    assert re.findall(r"about \w+ minutes on \w+ cores", text) == ["about 5 minutes on 2 cores"]


def test_the_data_that_comes_with_it():
    data = run._sample(0)
    assert {name: len(side) for name, side in data.items()} == run.EXAMPLES
    assert run._sample(0) == data and run._sample(1)["train"] != data["train"]
    kinds = {tag[2:] for example in data["train"] for tag in example.tags} - {""}
    assert kinds == {"corporation", "creative-work", "group", "location", "person", "product"}
    assert "creativecommons.org/licenses/by/4.0" in (run.ENTITIES / "LICENCE.txt").read_text("utf-8")
    assert sum(path.stat().st_size for path in run.DATA.rglob("*") if path.is_file()) < 1e6
    senses = [*tasks.get("classify").read(run.SENSES)]
    assert all(re.search(r"\bbank\b", example.text) for example in senses)
    assert {label: sum(e.label == label for e in senses) for label in ("river", "money")} == {"river": 12, "money": 12}


def test_the_reference_is_prose_without_repetition():
    sentences = [sentence for document in run._reference() for sentence in document]
    assert len(sentences) > 1500 and len(set(sentences)) == len(sentences)
    assert not any("::=" in sentence or ">>>" in sentence for sentence in sentences)


def test_messages_that_every_engine_splits_alike():
    wordpiece = WordPiece([*SPECIAL_PIECES, "a", "b", "#"])
    test = [Tagged(words) for words in (("a", "b"), ("a", "#b"), ("a",) * 7)]
    assert run._comparable(test, WordPieceFeatures(wordpiece, 6)) == test[:1]


# --------------------------------------------------------------------------------------------------------- baselines


def test_documentation_that_is_searched():
    texts = dict(run._documentation())
    assert len(texts) > 100 and all(len(text) > 10 for text in texts.values())
    for targets in run.QUESTIONS.values():
        assert all(any(name.startswith(target) for name in texts) for target in targets)


def test_hits_by_words():
    texts = ["a cat and a dog", "the dog", "rain", "the the the"]
    rows = run._bm25(texts, ["dog", "rain"])
    assert rows[0, :2].tolist() == [1, 0] and rows[1, 0] == 2
    # by the formula: the second text has length 2 of a mean of 2.5, "dog" is in 2 of 4 texts
    k1, b, lengths = 1.2, 0.75, np.array([3, 2, 1, 3])  # "a" is no word of CountVectorizer's
    idf = np.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    scores = [idf * (k1 + 1) / (1 + k1 * (1 - b + b * length / lengths.mean())) for length in lengths[:2]]
    assert scores[1] > scores[0]


def test_tags_from_words_alone():
    draw = random.Random(0)

    def side(count):
        rows = [[(draw.choice(["Rome", "bread"]), "in")[::-1] for _ in range(3)] for _ in range(count)]
        words = [tuple(word for pair in row for word in pair) for row in rows]
        return [Tagged(own, tuple("B-place" if word == "Rome" else "O" for word in own)) for own in words]

    data = {"train": side(40), "dev": side(5), "test": side(10)}
    assert run._tags_by_words(data) == [list(example.tags) for example in data["test"]]


# ------------------------------------------------------------------------------------------------- checks and report


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f["distilling"].update(curve=[(0.2, 0.6), (1.0, 0.6)]),
        lambda f: f["search"].update(right={"meaning": 2, "words": 2}),
        lambda f: f["tagging"]["gains"]["words alone"].update(interval=(-0.01, 0.1)),
        lambda f: f["senses"].update(accuracy=0.7),
        lambda f: f["engines"]["rows"][1].update(difference=1e-3),
        lambda f: f["engines"]["rows"][3].update(agreement=0.98),
        lambda f: f["engines"].update(same_on_edge=False),
        lambda f: f["engines"].update(loaded=["tensorflow"]),
    ],
)
def test_each_check_can_fail(figures, change):
    assert all(passed for passed, _ in run._checks(figures))
    change(figures)
    assert [passed for passed, _ in run._checks(figures)].count(False) == 1


@pytest.mark.parametrize("passed", [True, False])
def test_the_status_is_that_of_the_checks(monkeypatch, passed):
    monkeypatch.setattr(run, "run", lambda **options: {"checks": [(True, "a"), (passed, "b")]})
    if passed:
        assert main(["demo"]) == 0
    else:
        with pytest.raises(SystemExit) as stop:
            main(["demo"])
        assert stop.value.code == 1


def test_the_report_is_one_file(figures, tmp_path):
    (tmp_path / "bank.svg").write_text("<svg/>")
    write_report(figures, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count("data:image/svg+xml;base64,") == 3
    assert not re.search(r'(src|href)="(?!data:)', page)  # nothing is loaded from elsewhere
    assert "<td>Where is &lt;it&gt;?</td><td>✓ a.b</td><td>✗ a.c</td>" in page
    assert "<mark>New &lt;York&gt; <i>location</i></mark>" in page and "A &lt;b&gt; <b>bank</b>." in page
    assert '<li class="yes">a &lt; b</li><li class="no">c</li>' in page
    card = page.partition("The shipped weights</h2>")[2]
    assert "<h1>Card &lt;1&gt;</h1>" in card and "<td>&lt;i&gt;x&lt;/i&gt;</td>" in card
    assert "<strong>y</strong> <code>z</code>" in card and "<li>[l](javascript:x)</li>" in card
    assert "CPU &amp; more" in page and "$" not in page
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_colours_are_for_terminals(monkeypatch, capsys):
    assert run._coloured("yes", 32) == "yes"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run._coloured("yes", 32) == "\033[32myes\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert run._coloured("yes", 32) == "yes"


# -------------------------------------------------------------------------------------------------------- all of it


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="not empty, and no earlier demo"):
        run.run(out=tmp_path)
    assert (tmp_path / "mine.txt").exists()


@pytest.mark.parametrize("kind", ["the current folder", "a link"])
def test_a_folder_that_cannot_be_removed_is_emptied(kind, tmp_path, monkeypatch):
    folder = out = tmp_path / "demo"
    (folder / "sub").mkdir(parents=True)
    for path in (folder / run.MARKER, folder / "report.html", folder / "sub" / "model.tflite"):
        path.write_text("old")
    if kind == "a link":
        out = tmp_path / "link"
        out.symlink_to(folder)
    else:
        monkeypatch.chdir(folder)
        out = Path(".")
    assert run._empty_folder(out) == out
    assert [path.name for path in folder.iterdir()] == [run.MARKER]


@pytest.mark.release  # `make demo` is in .ci/run
def test_the_whole_demo(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "EXAMPLES", {"train": 200, "dev": 40, "test": 100})
    monkeypatch.setattr(run, "COMPARED", 10)
    figures = run.run(out=tmp_path / "demo", minutes=0.05)
    assert len(figures["checks"]) == 8
    out = capsys.readouterr().out
    assert "shipped weights against words alone" in out and "\033" not in out
    assert (tmp_path / "demo" / "page" / "index.html").exists()
    saved = json.loads((tmp_path / "demo" / "report.json").read_text("utf-8"))
    assert saved["tagging"]["sizes"] == {"train": 200, "dev": 40, "test": 100}
    assert "From raw text to int8" in (tmp_path / "demo" / "report.html").read_text("utf-8")
    np.testing.assert_equal(figures["engines"]["same_on_edge"], True)
    run._empty_folder(tmp_path / "demo")  # that of an earlier demo
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [run.MARKER]
