"""Index folders of texts: reading, ids, passages, encoders, adding and deleting, and answers from what is found."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import recipes
from keras_ctxrep.commands.index import delete
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.recipes import passages as splitting
from keras_ctxrep.text import search
from keras_ctxrep.text.search import Index
from tests import tiny

pytestmark = pytest.mark.trains

TEXTS = ["the cat fell", "rain", "she fell . a b c", "d e f g h", "the rain fell"]
ROWS = [{"id": f"r{n}", "sentence": text, "n": n} for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return ctx.load(tiny.save(tmp_path_factory.mktemp("indexing") / "m", tiny.bundle("embed", max_length=12)))


@pytest.fixture
def source(write):
    return write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))


def same(opened, texts, model):
    np.testing.assert_allclose(opened.vectors, ctx.Index(model.encode(texts)).vectors, atol=1e-6)


def test_rows_keep_their_ids_and_columns(source, model, tmp_path):
    assert recipes.index([source], model, tmp_path / "i") == 5
    opened = recipes.open_index(tmp_path / "i")  # with the encoder that made it
    assert [(row.id, row.text, row.fields) for row in opened.rows] == [
        (row["id"], row["sentence"], {"n": row["n"]}) for row in ROWS
    ]
    assert opened.rows[1].source == f"{source}:2"
    same(opened, TEXTS, model)
    hit = opened.search(["rain"], top=1)[0][0]
    assert hit.id == "r1" and hit.score == pytest.approx(1, abs=1e-6)
    assert Index.of_texts(TEXTS, model).search(["rain"], top=1)[0][0].score == hit.score


@pytest.mark.parametrize(
    ("name", "content", "options", "ids"),
    [
        ("a.tsv", "text\tlabel\nthe cat\tx\nrain\ty\n", {}, ["0", "1"]),
        ("a.csv", "Key,Body\nk1,the cat\nk2,rain\n", {"columns": {"text": "Body", "id": "Key"}}, ["k1", "k2"]),
        ("a.tsv", "k1\tthe cat\nk2\train\n", {"columns": {"text": "2", "id": "1"}}, ["k1", "k2"]),
        ("a.txt", "the cat\n\nrain\n", {}, ["0", "1"]),
        ("a.json", '[{"_id": 7, "text": "the cat"}, {"_id": 8, "text": "rain"}]', {}, ["7", "8"]),
    ],
)
def test_formats(name, content, options, ids, write, model, tmp_path):
    recipes.index([write(name, content)], model, tmp_path / "i", **options)
    rows = Index.open(tmp_path / "i").rows
    assert [row.id for row in rows] == ids and [row.text for row in rows] == ["the cat", "rain"]
    assert rows[0].fields == ({"label": "x"} if "label" in content else {})


def test_passages(write, model, tmp_path):
    path = write("a.txt", "a b c d\ne f g\n\nthe cat\n")
    recipes.index([path], model, tmp_path / "i", passages=4, overlap=1)
    rows = Index.open(tmp_path / "i").rows
    assert [(row.text, row.source.split(":")[-1], row.fields) for row in rows] == [
        ("a b c d", "1", {"begin": 0}),
        ("d e f g", "1", {"begin": 6}),
        ("the cat", "4", {}),
    ]
    table = write("a.tsv", "id\ttext\nx\ta b  c d e\n")
    recipes.index([table], model, tmp_path / "i", passages=3, overwrite=True)
    assert [(row.id, row.text) for row in Index.open(tmp_path / "i").rows] == [("x#0", "a b  c"), ("x#1", "d e")]


def test_passages_cover_every_word():
    for count in range(1, 30):
        text = "  ".join(str(n) for n in range(count))
        for words, overlap in ((2, 0), (5, 1), (5, 4), (7, 3)):
            spans = list(splitting.passages(text, words, overlap))
            parts = [text[begin:end].split() for begin, end in spans]
            assert parts[0] + [word for part in parts[1:] for word in part[overlap:]] == text.split()
            assert all(len(part) <= words for part in parts)


def test_rows_are_added_and_deleted(source, write, model, tmp_path):
    out = tmp_path / "i"
    recipes.index([source], model, out, storage="int8")
    more = write("more.txt", "g h\n")
    assert recipes.index([more], model, out, add=True) == 6
    assert delete(out, ["0", "r0"]) == 4
    assert recipes.index([more], model, out, add=True) == 5
    opened = recipes.open_index(out, model)
    assert [row.id for row in opened.rows] == ["r1", "r2", "r3", "r4", "1"] and opened.storage == "int8"
    same(opened, [*TEXTS[1:], "g h"], model) if opened.storage == "float32" else None
    for call, message in [
        (lambda: recipes.index([source], model, out), "there is an index already; --add adds rows to it"),
        (lambda: recipes.index([source], model, tmp_path / "j", add=True), "no index to add rows to"),
        (lambda: recipes.index([source], model, out, add=True), r"rows\.jsonl:2: id 'r1': row 0 has it already"),
        (lambda: delete(out, ["r9"]), "id 'r9': there is no row with it"),
        (lambda: delete(out, ["r1", "r2", "r3", "r4", "1"]), "no row would be left"),
        (lambda: recipes.index([source], model, out, add=True, overwrite=True), "add and overwrite"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    assert len(Index.open(out)) == 5 and not (tmp_path / "j").exists()


def test_what_is_left_out_and_cut_is_reported(write, model, tmp_path):
    path, messages = write("a.txt", "\u0001\nthe cat\n" + "a " * 30 + "\n"), []
    assert recipes.index([path], model, tmp_path / "i", report=messages.append) == 2
    assert messages[0] == f"texts left out: 1\n  {path}:1: no words in this text"
    assert messages[1].startswith("1 texts were longer than the model reads, and were cut; --passages N")
    with pytest.raises(ValueError, match=r"no text with words in the files: .*b\.txt:1: no words"):
        recipes.index([write("b.txt", "\u0001\n")], model, tmp_path / "j")
    with pytest.raises(ValueError, match="no rows to write"):
        recipes.index([write("c.txt", "\n")], model, tmp_path / "j")
    bad = write("bad.jsonl", '{"text": "rain"}\n{"text": 3}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:2: text 3"):
        recipes.index([bad], model, tmp_path / "j")
    assert recipes.index([bad], model, tmp_path / "j", report=messages.append, skip_bad=True) == 1
    assert "malformed rows left out: 1" in messages[-1]
    with pytest.raises(TypeError, match="one file; give a list"):
        recipes.index(str(bad), model, tmp_path / "j")


def test_a_large_index_says_what_makes_it_faster(write, model, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "GRAPH_ROWS", 2)
    monkeypatch.setattr(search, "graph_library", lambda: None)
    messages: list[str] = []
    recipes.index([write("a.txt", "a\nb\n")], model, tmp_path / "i", report=messages.append)
    assert "every row is compared in a search; for a faster, approximate one pip install" in messages[0]


def test_the_encoder_of_an_index(source, model, tmp_path, tflite_in_process):
    recipes.index([source], model, tmp_path / "i")
    for options, message in [({"width": 16}, r"\(its vectors have 16 numbers and were 8 wide\)"), ({}, None)]:
        sizes = tiny.bundle("embed", max_length=12, sizes=options)
        other = tiny.save(tmp_path / f"other{len(options)}", sizes)
        if message is None:  # the same weights
            assert recipes.open_index(tmp_path / "i", other).search(["rain"], 1)[0][0].id == "r1"
        else:
            with pytest.raises(ValueError, match=f"it was made by .*m; search it with that, .*{message}"):
                recipes.open_index(tmp_path / "i", other)
    exported = model.export(tmp_path / "s")
    lite = model.tflite(tmp_path / "m.tflite", lengths=(12,))
    for path in (exported.parent, lite):
        hits = recipes.open_index(tmp_path / "i", path).search(["rain fell"])[0]
        expected = recipes.open_index(tmp_path / "i").search(["rain fell"])[0]
        assert [hit.id for hit in hits] == [hit.id for hit in expected]
        np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in expected], atol=1e-5)
        recipes.index([source], path, tmp_path / "by_it", overwrite=True) if path == lite else None
    same(Index.open(tmp_path / "by_it"), TEXTS, model)
    path = tmp_path / "i" / "index.json"
    for name, message in (
        (None, "it does not say which encoder made it"),
        ("/gone", "its encoder, /gone, is not there"),
    ):
        values = json.loads(path.read_text())
        path.write_text(json.dumps(values | {"encoder": values["encoder"] | {"name": name}}))
        with pytest.raises(ValueError, match=message):
            recipes.open_index(tmp_path / "i")


# --------------------------------------------------------------------------------------------------------------- ask


class Reader(Predictor):
    """Answers with the first word of the context; its score is that of a table, of no answer 1."""

    def __init__(self, scores):
        self.bundle, self.scores, self.asked = tiny.bundle("answer"), scores, []

    def __call__(self, texts, pairs=None, marks=None):
        self.asked += zip(texts, pairs or [], strict=True)
        answers = []
        for context in pairs or []:
            word = context.split()[0] if context in self.scores else ""
            score = self.scores.get(context, 1.0)
            answers.append({"answer": word, "score": score, "null_score": 1.0, "start": 0, "end": len(word)})
        return answers


@pytest.fixture
def passages():
    vectors = [[1, 0], [1, 0.1], [1, 0.2], [0, 1]]
    encoder = SimpleNamespace(encode=lambda texts: np.array([[1.0, 0.0]] * len(texts)))
    return Index(vectors, ["a one", "b two", "c three", "d four"], encoder=encoder)


def test_the_best_answer_is_that_of_the_largest_margin(passages):
    reader = Reader({"a one": 2.0, "b two": 6.0, "c three": 6.0, "d four": 99.0})
    (first, *others), second = recipes.ask(passages, ["who?", "what?"], reader, top=3)
    assert (first.answer, first.score, first.hit.text) == ("b", 5.0, "b two")  # of equal ones the better hit
    assert [other.answer for other in others] == ["c", "a"] and [answer.answer for answer in second] == ["b", "c", "a"]
    assert reader.asked[0] == ("who?", "a one") and len(reader.asked) == 6


def test_a_passage_without_an_answer_has_none(passages):
    assert [answer.answer for answer in recipes.ask(passages, ["who?"], Reader({"c three": 0.0}))[0]] == ["c"]
    assert recipes.ask(passages, ["who?"], Reader({}))[0] == []


def test_what_cannot_answer_is_refused(passages, model):
    with pytest.raises(
        ValueError, match="the reader is a model of the task 'embed'; one that answers questions is made"
    ):
        recipes.ask(passages, ["who?"], model)
    with pytest.raises(ValueError, match="row '0': it has no text to read an answer from"):
        recipes.ask(Index([[1, 0]], encoder=passages.encoder), ["who?"], Reader({}))


def test_answers_of_a_model(source, model, tmp_path):
    recipes.index([source], model, tmp_path / "i")
    reader = tiny.save(tmp_path / "reader", tiny.bundle("answer", max_length=24))
    (answers,) = recipes.ask(tmp_path / "i", ["rain ?"], reader, top=3)
    expected = {hit.text for hit in recipes.open_index(tmp_path / "i").search(["rain ?"], 3)[0]}
    assert {answer.hit.text for answer in answers} == expected
    assert [answer.score for answer in answers] == sorted((answer.score for answer in answers), reverse=True)
    for answer in answers:
        assert answer.hit.text[answer.start : answer.end] == answer.answer
        (alone,) = ctx.load(reader).predict(["rain ?"], [answer.hit.text])
        assert answer.score == pytest.approx(alone["score"] - alone["null_score"], abs=1e-4)
