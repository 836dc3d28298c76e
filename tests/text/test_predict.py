"""From text to answers, around an engine that only counts characters."""

import io
import os
from types import SimpleNamespace

import numpy as np
import pytest

from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.decode import softmax
from keras_ctxrep.text.predict import Predictor
from keras_ctxrep.text.tokens import SPECIAL_PIECES

CONFIG = {"max_characters": 50}
EMPTY = {"error": "no words in this text"}


@pytest.fixture
def predictor():
    """An encoder whose vector is [words, first byte of the first word]; `shapes` collects those of its batches."""
    shapes = []

    def run(batch):
        shapes.append(batch["char_ids"].shape[:2])
        return {"pooled": np.stack([batch["mask"].sum(1), batch["char_ids"][:, 0, 1] - 1], 1).astype(np.float32)}

    predictor = Predictor(Bundle("elmo", "embed", CONFIG, 40), run, batch_size=4)
    predictor.shapes = shapes
    return predictor


def vector(text):
    return {"vector": [float(len(text.split())), float(text.encode()[0])]}


def test_answers_come_in_the_order_of_the_texts(predictor, rng):
    texts = [" ".join([chr(97 + int(rng.integers(26)))] * int(n)) for n in rng.integers(1, 40, 50)]
    assert predictor(texts) == [vector(text) for text in texts]
    assert all(rows <= 4 for rows, _ in predictor.shapes)
    lengths = [length for _, length in predictor.shapes]
    assert lengths == sorted(lengths)  # rows of like length share a batch


def test_texts_without_words(predictor):
    texts = ["", "a", " \t", "\x00\x07\u200b", "b", "\ufffd"]
    assert predictor(texts) == [EMPTY, vector("a"), EMPTY, EMPTY, vector("b"), EMPTY]
    assert predictor([]) == [] and predictor([""]) == [EMPTY]
    assert predictor.shapes == [(2, 1)]


def test_truncated(predictor):
    exact, over = predictor(["a " * 40, "a " * 41])
    assert exact == {"vector": [40.0, 97.0]} and over == {"vector": [40.0, 97.0], "truncated": True}


@pytest.mark.parametrize("text", ["x" * 10_000, "x " * 5_000, "👍" * 2_500, "日" * 10_000])
def test_long_lines(predictor, text):
    (answer,) = predictor.lines(io.BytesIO(text.encode() + b"\n"))
    assert answer["vector"][1] == text.encode()[0]
    assert answer.get("truncated", False) == (text[1] != text[0] or text[0] == "日")


def test_classifier():
    bundle = Bundle("elmo", "classify", CONFIG, 8, ("no", "maybe", "yes"))

    def run(batch):
        return {"logits": np.array([[0.0, 0.0, np.log(2.0)]] * len(batch["mask"]), np.float32)}

    predictor = Predictor(bundle, run)
    (answer, empty) = predictor(["a text", ""])
    assert answer["label"] == "yes" and answer["score"] == pytest.approx(0.5)
    assert answer["probabilities"] == pytest.approx({"no": 0.25, "maybe": 0.25, "yes": 0.5})
    assert empty == EMPTY
    np.testing.assert_allclose(predictor.probabilities(["a", "b"]), [[0.25, 0.25, 0.5]] * 2, atol=1e-7)
    with pytest.raises(ValueError, match="no words in this text: ' '"):
        predictor.probabilities(["a", " "])


def test_labels_and_logits_must_agree_in_number():
    predictor = Predictor(Bundle("elmo", "classify", CONFIG, 8, ("a", "b")), lambda batch: {"logits": np.zeros((1, 3))})
    with pytest.raises(ValueError, match="zip"):
        predictor(["text"])


def test_word_pieces():
    bundle = Bundle("bert", "embed", {}, 6, vocab=(*SPECIAL_PIECES, "a", "b"))
    predictor = Predictor(bundle, lambda batch: {"pooled": batch["token_ids"][:, 1:2].astype(np.float32)})
    assert predictor(["b a", "", "a", "zzz", "a a a a a"]) == [
        {"vector": [6.0]},
        EMPTY,
        {"vector": [5.0]},
        {"vector": [1.0]},
        {"vector": [5.0], "truncated": True},
    ]


def test_an_engine_that_reads_raw_text():
    seen = []

    def run(batch):
        seen.extend(batch["text"])
        return {"pooled": np.array([[len(text)] for text in batch["text"]], np.float32)}

    predictor = Predictor(Bundle("elmo", "embed", CONFIG, 2), run, raw=True)
    answers = predictor(["one two three", "", "four"])
    assert answers == [{"vector": [13.0], "truncated": True}, EMPTY, {"vector": [4.0]}]
    assert sorted(seen) == ["four", "one two three"]


@pytest.mark.parametrize(("family", "task"), [("elmo", "language_model"), ("bert", "pretrainer")])
def test_a_model_without_a_head_has_no_answers(family, task):
    with pytest.raises(ValueError, match=f"a {task} gives no answers; put a head on it"):
        Predictor(Bundle(family, task, CONFIG, 8, vocab=SPECIAL_PIECES), lambda batch: {})


@pytest.mark.parametrize("task", ["tag", "answer", "embed"])
def test_a_model_whose_outputs_are_no_answers(task):
    bundle = Bundle("bert", task, {"pooler": False}, 9, vocab=tuple(SPECIAL_PIECES))
    message = "has no pooler, so no vector" if task == "embed" else f"the task '{task}': its outputs are not decoded"
    with pytest.raises(ValueError, match=message):
        Predictor(bundle, lambda batch: batch)


def in_chunks(data, size):
    """A stream that gives at most `size` bytes at a time."""
    chunks = iter([data[i : i + size] for i in range(0, len(data), size)])
    return SimpleNamespace(read1=lambda limit: next(chunks, b""), read=None)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_lines_however_the_stream_is_cut(predictor, size, end):
    lines = ["a b", "", "é è ê", "日", "\u200b", "👍 👍", "last"]
    data = "\n".join(lines).encode() + end
    expected = [vector(line) if line.strip("\u200b") else EMPTY for line in lines]
    expected[1] = {"error": "empty line"}
    assert list(predictor.lines(in_chunks(data, size))) == expected


def test_lines_of_other_streams(predictor):
    assert list(predictor.lines(io.BytesIO(b""))) == []
    assert list(predictor.lines(io.BytesIO(b"\n\n"))) == [{"error": "empty line"}] * 2
    assert list(predictor.lines(SimpleNamespace(read=io.BytesIO(b"a\r\nb").read))) == [vector("a"), vector("b")]
    assert list(predictor.lines(io.BytesIO("\ufeffa\n".encode()))) == [vector("a")]  # a byte-order mark


@pytest.mark.parametrize("line", [b"a \xff\xfe b", b"a \xe6\x97 b", b"a \xed\xa0\x80 b"])
def test_bytes_that_are_not_utf8(predictor, line):
    (answer, after) = predictor.lines(io.BytesIO(line + b"\nc\n"))
    assert answer == vector("a b") | {"warning": "not UTF-8: the bytes that are not were left out"}
    assert after == vector("c")
    (answer,) = predictor.lines(io.BytesIO(b"\xff"))
    assert answer["error"] == EMPTY["error"] and "not UTF-8" in answer["warning"]


def test_a_replacement_character_that_was_typed_is_no_warning(predictor):
    assert list(predictor.lines(io.BytesIO("a \ufffd".encode()))) == [vector("a")]


def test_control_characters_within_a_line(predictor):
    line = "a\x00b\x0b\x0c c\u2028d\x85e"
    (answer,) = predictor.lines(io.BytesIO(line.encode()))
    assert "error" not in answer and answer["vector"][1] == ord("a")


def test_an_answer_comes_as_soon_as_its_line_does(predictor):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as sink:
        answers = predictor.lines(stream)
        for line in ("one", "two two"):
            sink.write(f"{line}\n".encode())
            assert next(answers) == vector(line)
        sink.write(b"rest")
        sink.close()
        assert list(answers) == [vector("rest")]


def test_softmax():
    np.testing.assert_allclose(softmax(np.array([[1e4, 1e4], [-1e4, 0]])), [[0.5, 0.5], [0, 1]])
    assert softmax(np.zeros((2, 3), np.float32)).dtype == np.float64
