"""From text to answers, around an engine that only counts characters."""

import io
import os
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from keras_ctxrep import tasks
from keras_ctxrep.inference.predictor import Predictor, TextRunner
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.multilabel import Multilabel
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.corpus import available_lines
from keras_ctxrep.text.features import Reads
from keras_ctxrep.text.tokens import SPECIAL_PIECES

CONFIG = {"max_characters": 50}
EMPTY = {"error": "no words in this text", "vector": []}


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
    assert lengths == sorted(lengths)  # rows are bucketed by length
    predictor.shapes.clear()
    predictor.runner.tokens = 60
    assert predictor(texts) == [vector(text) for text in texts]
    assert all(rows <= max(4, 60 // length) for rows, length in predictor.shapes)
    assert max(rows for rows, _ in predictor.shapes) > 4  # short ones run more together


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
    assert empty == {"error": EMPTY["error"], "label": None, "score": None, "probabilities": {}}
    np.testing.assert_allclose(predictor.probabilities(["a", "b"]), [[0.25, 0.25, 0.5]] * 2, atol=1e-7)
    with pytest.raises(ValueError, match="no words in this text: ' '"):
        predictor.probabilities(["a", " "])


def test_labels_and_logits_must_agree_in_number():
    predictor = Predictor(Bundle("elmo", "classify", CONFIG, 8, ("a", "b")), lambda batch: {"logits": np.zeros((1, 3))})
    with pytest.raises(ValueError, match="zip"):
        predictor(["text"])


def test_word_pieces():
    bundle = Bundle("bert", "embed", {}, 6, vocab=(*SPECIAL_PIECES, "a", "b"))
    for name in ("vector", "pooled"):  # which exports of 0.2 have
        predictor = Predictor(bundle, lambda batch, name=name: {name: batch["token_ids"][:, 1:2].astype(np.float32)})
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
        return {"vector": np.array([[len(text)] for text in batch["text"]], np.float32)}

    predictor = Predictor(Bundle("elmo", "embed", CONFIG, 2), TextRunner(run))
    answers = predictor(["one two three", "", "four"])
    assert answers == [{"vector": [13.0], "truncated": True}, EMPTY, {"vector": [4.0]}]
    assert sorted(seen) == ["four", "one two three"]


def test_an_engine_that_says_which_text_has_no_words():
    """A SavedModel may split words by other rules of Unicode than the tokenizer here."""

    def run(batch):
        return {"vector": np.ones((2, 1), np.float32), "error": np.array([b"", b"no words in this text"], object)}

    predictor = Predictor(Bundle("elmo", "embed", CONFIG, 2), TextRunner(run))
    assert predictor(["one", "two"]) == [{"vector": [1.0]}, EMPTY]


def test_a_batch_size_for_one_call(predictor):
    texts = ["a", "a b"] * 4
    assert predictor(texts, batch_size=3) == [vector(text) for text in texts]
    assert [rows for rows, _ in predictor.shapes] == [3, 3, 2]
    predictor.shapes.clear()
    predictor(texts)
    assert [rows for rows, _ in predictor.shapes] == [4, 4]


@pytest.mark.parametrize(("family", "task"), [("elmo", "language_model"), ("bert", "pretrainer")])
def test_a_model_without_a_head_has_no_answers(family, task):
    with pytest.raises(ValueError, match=f"a {task} answers nothing; fine-tune it with `ctxrep train`, or use `ctxrep"):
        Predictor(Bundle(family, task, CONFIG, 8, vocab=SPECIAL_PIECES), lambda batch: {})


def test_a_model_without_a_pooler_has_answers():
    bundle = Bundle("bert", "embed", {"pooler": False}, 9, vocab=tuple(SPECIAL_PIECES))
    for task in ("embed", "tag", "answer"):
        Predictor(replace(bundle, **tasks.bundle_fields(task)), lambda batch: batch)


def in_chunks(data, size):
    """A stream that gives at most `size` bytes at a time."""
    chunks = iter([data[i : i + size] for i in range(0, len(data), size)])
    return SimpleNamespace(read1=lambda limit: next(chunks, b""), read=None)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_lines_do_not_depend_on_the_chunks_of_a_stream(predictor, size, end):
    lines = ["a b", "", "é è ê", "日", "\u200b", "👍 👍", "last"]
    data = "\n".join(lines).encode() + end
    expected = [vector(line) if line.strip("\u200b") else EMPTY for line in lines]
    expected[1] = EMPTY | {"error": "empty line"}
    assert list(predictor.lines(in_chunks(data, size))) == expected


def test_lines_of_other_streams(predictor):
    assert list(predictor.lines(io.BytesIO(b""))) == []
    assert list(predictor.lines(io.BytesIO(b"\n\n"))) == [EMPTY | {"error": "empty line"}] * 2
    assert list(predictor.lines(SimpleNamespace(read=io.BytesIO(b"a\r\nb").read))) == [vector("a"), vector("b")]
    for end in ("\n", ""):  # a byte-order mark
        assert [*predictor.answered_lines(available_lines(io.BytesIO(f"\ufeffa{end}".encode())))] == [
            ("a", vector("a"))
        ]


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


# --------------------------------------------------------------------------------- several labels, numbers, pairs


def test_several_labels():
    logits = np.array([[-9, 0, 9], [-1, -1, -1]], np.float32)
    predictor = Predictor(Bundle("elmo", "multilabel", CONFIG, 8, ("a", "b", "c")), lambda batch: {"logits": logits})
    both, none, empty = predictor(["one", "two", " "])
    assert both["labels"] == ["b", "c"] and list(both["probabilities"]) == ["a", "b", "c"]
    assert both["probabilities"] == pytest.approx({"a": 1 / (1 + np.exp(9)), "b": 0.5, "c": 1 / (1 + np.exp(-9))})
    assert none["labels"] == [] and none["probabilities"]["a"] == pytest.approx(1 / (1 + np.e))
    assert empty == {"error": EMPTY["error"], "labels": [], "probabilities": {}}


def test_numbers():
    bundle = Bundle("bert", config={}, max_length=8, vocab=VOCAB, **tasks.bundle_fields("regress", pair=True))
    predictor = Predictor(bundle, lambda batch: {"logits": batch["mask"].sum(1, keepdims=True) / 2})
    answers = predictor(["a b", "", "a b c d e", ""], ["c", "d", "f", ""])
    assert answers == [
        {"value": 3.0},
        {"value": 2.0},
        {"value": 4.0, "truncated": True},
        {"error": EMPTY["error"], "value": None},
    ]
    assert predictor.ask([Example("a", 1.0, "b")]) == [{"value": 2.5}]
    with pytest.raises(ValueError, match="this model reads pairs of texts"):
        predictor(["a"])


# --------------------------------------------------------------------------------------------------- labels of words

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
# text -> its words, as they stand in it
AWKWARD = {
    "caf\u00e9 \u00fcber na\u00efve": ["caf\u00e9", "\u00fcber", "na\u00efve"],
    "u\u0308ber ne\u0301e ": ["u\u0308ber", "ne\u0301e"],
    "\u6771\u4eac\u30bf\u30ef\u30fc abc": ["\u6771", "\u4eac", "\u30bf\u30ef\u30fc", "abc"],
    f"go {FAMILY} x\U0001f44dy": ["go", FAMILY, "x\U0001f44dy"],
    "  a  b\t\tc ": ["a", "b", "c"],
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd, abc": [
        "\u05e9\u05dc\u05d5\u05dd", "\u05e2\u05d5\u05dc\u05dd", ",", "abc",
    ],
    "ze\u200bro \u200bwidth\u200b \u200b x": ["ze\u200bro", "width", "x"],
    "\u202eabc\u202c d\u00a0e\u3000f\ufffd": ["abc", "d", "e", "f"],
    "don't; U.S.": ["don", "'", "t", ";", "U", ".", "S", "."],
    "\u0130stanbul \ufb01t \u1e9e": ["\u0130stanbul", "\ufb01t", "\u1e9e"],
}  # fmt: skip
LETTERS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
VOCAB = (*SPECIAL_PIECES, *LETTERS, *(f"##{letter}" for letter in LETTERS), ",", "\u6771")
LABELS = ("O", "B-X", "I-X", "B-Y")


def taken_in_turn(crf=False):
    """A tagger whose nth word has the label n modulo 4, with the probability 1/2; by its CRF the label O."""

    def run(batch):
        real = batch.get("starts", batch["mask"])
        which = np.tile(np.arange(real.shape[1]) % 4, (len(real), 1))
        logits = np.where(which[..., None] == np.arange(4), np.float32(np.log(3)), 0)
        return {"logits": logits} | ({"tags": np.where(which == 1, 1, 0)} if crf else {})

    return run


def tagger(family, run=None, max_length=60, labels=LABELS, **kwargs):
    fields = {"vocab": VOCAB} if family == "bert" else {}
    fields |= {"config": CONFIG, "max_length": max_length, "labels": labels} | tasks.bundle_fields("tag")
    return Predictor(Bundle(family, **fields), run or taken_in_turn(), **kwargs)


@pytest.mark.parametrize("family", ["elmo", "bert"])
@pytest.mark.parametrize("text", AWKWARD)
def test_words_and_their_offsets(family, text):
    (answer,) = tagger(family)([text])
    words = answer["words"]
    assert [word["word"] for word in words] == AWKWARD[text]
    assert [text[word["start"] : word["end"]] for word in words] == AWKWARD[text]
    assert all(first["end"] <= second["start"] for first, second in pairwise(words))
    assert [word["label"] for word in words] == [LABELS[number % 4] for number in range(len(words))]
    assert all(word["score"] == pytest.approx(0.5) for word in words)
    for entity in answer["entities"]:
        assert entity["text"] == text[entity["start"] : entity["end"]]
    assert "truncated" not in answer


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_entities(family):
    text = "ab  cd ef, gh ij"  # O B-X I-X B-Y O B-X
    (answer,) = tagger(family)([text])
    assert answer["entities"] == [
        {"type": "X", "text": "cd ef", "start": 4, "end": 9},
        {"type": "Y", "text": ",", "start": 9, "end": 10},
        {"type": "X", "text": "ij", "start": 14, "end": 16},
    ]
    assert "entities" not in tagger(family, labels=("NN", "VB", "IN", "DT"))([text])[0]


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_an_accent_that_is_taken_off_at_the_end_of_a_word(family):
    """It is no part of the word where the model does not read it."""
    (answer,) = tagger(family)(["cafe\u0301 x"])
    assert [word["word"] for word in answer["words"]] == ["cafe" if family == "bert" else "cafe\u0301", "x"]


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_words_that_are_already_split(family):
    sentence = ["New York", "don't", "ab", "e\u0301", "x"]
    (answer,) = tagger(family)([sentence])
    joined = " ".join(sentence)
    assert [word["word"] for word in answer["words"]] == sentence
    assert [joined[word["start"] : word["end"]] for word in answer["words"]] == sentence
    assert [word["label"] for word in answer["words"]] == ["O", "B-X", "I-X", "B-Y", "O"]
    assert answer["entities"][0] == {"type": "X", "text": "don't ab", "start": 9, "end": 17}
    assert tagger(family)([tuple(sentence)]) == [answer] == tagger(family).ask([Tagged(sentence, None)])


@pytest.mark.parametrize(("family", "max_length"), [("elmo", 3), ("bert", 6)])
def test_words_that_are_cut_off(family, max_length):
    predictor = tagger(family, max_length=max_length)
    sentence = ["a", "b", "cd" if family == "bert" else "c", "e", "f"]
    raw, split = predictor([" ".join(sentence), sentence])
    assert raw["truncated"] and split["truncated"] and raw["words"] == split["words"][:3]
    assert [word["label"] for word in split["words"]] == ["O", "B-X", "I-X", None, None]
    assert [word["score"] for word in split["words"][3:]] == [0.0, 0.0]
    assert raw["entities"] == split["entities"] and split["entities"][0]["end"] == raw["words"][2]["end"]
    assert "truncated" not in predictor([sentence[:3]])[0]


def test_words_without_pieces():
    predictor = tagger("bert")
    first, empty, none, last = predictor([["a", "\u200b", "", "b"], [], ["\u200b", ""], [" ", "c"]])
    assert [word["label"] for word in first["words"]] == ["O", None, None, "B-X"] and "truncated" not in first
    assert empty == none == {"error": EMPTY["error"], "words": [], "entities": []} and [
        word["label"] for word in last["words"]
    ] == [None, "O"]
    assert [(word["start"], word["end"]) for word in first["words"]] == [(0, 1), (2, 3), (4, 4), (5, 6)]


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_the_labels_of_a_crf_win(family):
    (answer,) = tagger(family, taken_in_turn(crf=True))(["a b c d"])
    assert [word["label"] for word in answer["words"]] == ["O", "B-X", "O", "O"]
    np.testing.assert_allclose([word["score"] for word in answer["words"]], [1 / 2, 1 / 2, 1 / 6, 1 / 6])


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_sentences_in_batches_are_as_alone(family, rng):
    sentences = [["ab"] * int(size) for size in rng.integers(1, 12, 20)]
    texts = [sentence if index % 2 else " ".join(sentence) for index, sentence in enumerate(sentences)]
    predictor = tagger(family, batch_size=3)
    assert predictor(texts) == [predictor([text])[0] for text in texts]
    assert [len(answer["words"]) for answer in predictor(texts)] == [len(sentence) for sentence in sentences]


def test_a_tagger_that_reads_raw_text():
    """What the signature of a SavedModel gives: words and labels as bytes, offsets in characters, "" for padding."""
    columns = {
        "words": np.array([["\u00e9e".encode(), b"b", b"c"], [b"x", b"", b""]], object),
        "starts": np.array([[1, 4, 7], [0, -1, -1]]),
        "ends": np.array([[3, 5, 8], [1, -1, -1]]),
        "labels": np.array([[b"B-X", b"I-X", b"O"], [b"B-Y", b"", b""]], object),
        "scores": np.array([[0.5, 0.25, 1], [0.75, 0, 0]], np.float32),
    }

    def run(batch):
        assert set(batch) == {"text"}
        order = [[" \u00e9e b  c", "x"].index(text) for text in batch["text"]]
        return {name: column[order] for name, column in columns.items()}

    predictor = tagger("elmo", TextRunner(run))
    first, empty, second = predictor([" \u00e9e b  c", "", "x"])
    assert first["words"][0] == {"word": "\u00e9e", "start": 1, "end": 3, "label": "B-X", "score": 0.5}
    assert first["entities"] == [{"type": "X", "text": "\u00e9e b", "start": 1, "end": 5}]
    assert empty == {"error": EMPTY["error"], "words": [], "entities": []}
    assert [word["label"] for word in second["words"]] == ["B-Y"] and len(first["words"]) == 3
    assert predictor.ask([Tagged(("x",), None)]) == [second]
    with pytest.raises(ValueError, match="this SavedModel splits text into words itself: give strings"):
        predictor([["x"]])


# ------------------------------------------------------------------------------------------------- answers to questions


def drawn(batch):
    """Logits that follow from a window's tokens alone, the best of all where there is no context."""
    place = np.arange(batch["mask"].shape[1])
    seen = batch["mask"] * (batch["segment_ids"] + (place == 0))
    wave = {edge: np.sin(batch["token_ids"] * rate + place) for edge, rate in (("start", 1.7), ("end", 2.3))}
    return {f"{edge}_logits": np.where(seen, entry, 50.0) for edge, entry in wave.items()}


def answerer(run=drawn, max_length=60, batch_size=32, **settings):
    fields = tasks.bundle_fields("answer", **settings)
    bundle = Bundle("bert", config={}, max_length=max_length, vocab=VOCAB, **fields)
    return Predictor(bundle, run, batch_size)


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("max_length", [60, 8])
def test_answers_are_slices_of_the_context(text, max_length):
    (answer,) = answerer(max_length=max_length, stride=2)(["a b"], [text])
    spans = {(candidate["start"], candidate["end"]) for candidate in answer["n_best"]}
    assert 1 <= len(spans) == len(answer["n_best"]) <= 20
    for entry in [answer, *answer["n_best"]]:
        assert entry["answer"] == text[entry["start"] : entry["end"]] != "" and entry["start"] < entry["end"]
    best = answer["n_best"][0]
    assert all(answer[name] == best[name] for name in ("answer", "start", "end", "score"))
    assert sum(candidate["probability"] for candidate in answer["n_best"]) == pytest.approx(1)
    scores = [candidate["score"] for candidate in answer["n_best"]]
    assert scores == sorted(scores, reverse=True)


def test_whole_words_are_answers():
    """The span from a word's first piece to its last is the word, however it is written."""
    for text, words in AWKWARD.items():
        at = 0
        for word in words:
            at = text.index(word, at)
            pieces = answerer().bundle.features.windows(["a"], [text])[0][0]
            inside = range(pieces.first, len(pieces) - 1)
            own = [i for i in inside if at <= pieces.offsets[i][0] < at + len(word)]

            def run(batch, own=own):
                place = np.arange(batch["mask"].shape[1])
                return {"start_logits": [(place == own[0]) * 9.0], "end_logits": [(place == own[-1]) * 9.0]}

            (answer,) = answerer(run)(["a"], [text])
            assert (answer["answer"], answer["start"], answer["score"]) == (word, at, 18.0)
            at += len(word)


def test_answers_in_batches_are_as_alone(rng):
    """Windows of all questions are mixed by length, and come back to their own."""
    contexts = [" ".join(rng.choice([*"abcdefgh"], int(size))) for size in rng.integers(0, 40, 12)]
    questions = [" ".join("xyz"[: 1 + index % 3]) for index in range(12)]
    predictor = answerer(max_length=16, batch_size=5, stride=4)
    together = predictor(questions, contexts)
    assert together == [
        predictor([question], [context])[0] for question, context in zip(questions, contexts, strict=True)
    ]
    assert len({answer["answer"] for answer in together}) > 5
    asked = [Question(question, context, None) for question, context in zip(questions, contexts, strict=True)]
    assert predictor.ask(asked) == together and predictor([], []) == []
    lines = "".join(f"{question}\t{context}\n" for question, context in zip(questions, contexts, strict=True))
    assert list(predictor.lines(io.BytesIO(lines.encode()))) == together
    (wrong,) = answerer().lines(io.BytesIO(b"a b\n"))
    assert wrong["error"] == "a pair has one tab between its texts" and wrong["answer"] is None


def test_max_answer():
    context = "a b c d e f g"
    for most in (1, 2, 4):
        (answer,) = answerer(max_answer=most)(["x"], [context])
        assert max(len(candidate["answer"].split()) for candidate in answer["n_best"]) == most


@pytest.mark.parametrize(("threshold", "answered"), [(None, True), (0.0, False), (1.9, False), (2.0, True), (3, True)])
def test_no_answer_where_that_is_better_by_the_threshold(threshold, answered):
    def run(batch):
        place = np.arange(batch["mask"].shape[1])
        return {
            f"{edge}_logits": [np.where(place == 0, 2.0, np.where(place == 4, 1.0, -1))] for edge in ("start", "end")
        }

    (answer,) = answerer(run, null_threshold=threshold)(["x"], ["ab cd"])
    assert answer["null_score"] == 4 and answer["n_best"][0]["score"] == 2
    top = ("ab", 0, 2, 2.0) if answered else ("", 0, 0, 4.0)
    assert tuple(answer[name] for name in ("answer", "start", "end", "score")) == top


@pytest.mark.parametrize("context", ["", " ", "\u200b\x00"])
def test_a_context_without_words(context):
    (answer,) = answerer()(["a"], [context])
    assert answer["n_best"] == [] and answer["score"] == answer["null_score"]
    assert (answer["answer"], answer["start"], answer["end"]) == ("", 0, 0)


def test_long_questions():
    question = "a " * 80
    (answer,) = answerer(max_length=70)([question], ["b c d e f"])
    assert answer["answer"] in "b c d e f"
    (answer,) = answerer()([question], ["b"])
    assert answer["answer"] == "b"
    (answer,) = answerer()([""], ["b c"])
    assert answer["answer"] in "b c"


def test_a_question_and_a_context_are_a_pair():
    with pytest.raises(ValueError, match="this model reads pairs of texts"):
        answerer()(["a"])


def test_an_answerer_that_reads_raw_text():
    seen = []

    def run(batch):
        assert set(batch) == {"question", "context"}
        seen.append(len(batch["question"]))
        rows = len(batch["question"])
        return {
            "answer": np.array([text.split()[0].encode() for text in batch["context"]], object),
            "start": np.zeros(rows, np.int32),
            "end": np.array([len(text.split()[0]) for text in batch["context"]], np.int32),
            "score": np.arange(rows, dtype=np.float32),
            "null_score": np.full(rows, -1, np.float32),
        }

    bundle = Bundle("bert", config={}, max_length=60, vocab=VOCAB, **tasks.bundle_fields("answer"))
    answers = Predictor(bundle, TextRunner(run), batch_size=2)(["a", "b", "c"], ["\u00e9t\u00e9 x", "y", "zz"])
    assert answers[0] == {"answer": "\u00e9t\u00e9", "start": 0, "end": 3, "score": 0.0, "null_score": -1.0}
    assert [answer["answer"] for answer in answers] == ["\u00e9t\u00e9", "y", "zz"] and seen == [2, 1]


def test_a_question_that_is_cut_is_reported():
    fits, cut = answerer(max_length=12)(["a b c d", "a b c d e"], ["f g"] * 2)
    assert "truncated" not in fits and cut["truncated"] is True


# ------------------------------------------------------------------------------------------------------- marked spans


class Marking(Multilabel):
    """Whether each of two marked spans has a label: what it is given are the marks themselves."""

    name = "marking"

    def decode(self, bundle, query, rows, outputs):
        return {"marks": np.asarray(outputs[0]["marks"]).tolist()}


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_marked_spans_reach_the_model(family, monkeypatch):
    monkeypatch.setattr(tasks, "SERVED", tasks.SERVED | {"marking": Marking()})
    fields = {"vocab": VOCAB} if family == "bert" else {}
    bundle = Bundle(family, "marking", CONFIG, 60, ("a",), reads=Reads(marks=2), **fields)
    predictor = Predictor(bundle, lambda batch: {"marks": batch["marks"]}, batch_size=2)
    texts = ["ab cd, ef", ["ab", "cd", ",", "ef"], "x"]
    answers = predictor(texts, marks=[[(3, 5), (3, 9)], [(1, 2), (1, 4)], [(0, 1), (0, 0)]])
    begin, end, last = (3, 5, 8) if family == "bert" else (1, 2, 4)
    assert answers[0] == answers[1] == {"marks": [[begin, end], [begin, last]]}
    assert answers[2] == {"marks": [[1, 2] if family == "bert" else [0, 1], [0, 0]]}
    for wrong in ([(0, 1), (0, 2)], [(0, 1), (-1, 1)], [(0, 1), (1, 1)]):
        with pytest.raises(ValueError, match=r"of text 0: not \[begin, end\) within its 1 characters"):
            predictor(["x"], marks=[wrong])
    with pytest.raises(ValueError, match="2 texts, 2 pairs and marks of 1"):
        predictor(["x", "y"], marks=[[(0, 1), (0, 1)]])
    assert predictor(["x"], marks=np.array([[[0, 1], [0, 0]]])) == answers[2:]
    with pytest.raises(ValueError, match=r"this model reads 2 marked spans of each text"):
        predictor(["x"], marks=[[(0, 1)]])
    with pytest.raises(ValueError, match=r"marks \(\) of text 0: this model reads 2 marked spans"):
        predictor(["x"])
