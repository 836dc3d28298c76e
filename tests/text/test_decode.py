"""Outputs to answers, against a search of all label sequences and all spans."""

import itertools

import numpy as np
import pytest

from keras_ctxrep.text.decode import N_BEST, best_answers, entities, sigmoid, softmax
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece
from tests.crf import viterbi

LETTERS = "abcdefghij"


def test_softmax():
    np.testing.assert_allclose(softmax(np.array([[1e4, 1e4], [-1e4, 0]])), [[0.5, 0.5], [0, 1]])
    assert softmax(np.zeros((2, 3), np.float32)).dtype == np.float64


def test_sigmoid():
    assert sigmoid(np.float32([-1e4, 0, 1e4])).tolist() == [0, 0.5, 1]
    np.testing.assert_allclose(sigmoid(np.array([np.log(3)])), [0.75])


def test_viterbi_is_the_best_of_all(rng):
    for words, classes in itertools.product(range(6), (1, 2, 3)):
        logits, transitions = rng.normal(size=(words, classes)), rng.normal(size=(classes, classes))
        begin, end = rng.normal(size=(2, classes))

        def score(labels, logits=logits, transitions=transitions, begin=begin, end=end):
            steps = sum(transitions[first, second] for first, second in itertools.pairwise(labels))
            return begin[labels[0]] + sum(map(np.take, logits, labels)) + steps + end[labels[-1]] if labels else 0

        best = max(itertools.product(range(classes), repeat=words), key=score)
        assert viterbi(logits, transitions, begin, end) == list(best)


def test_entities():
    assert entities([]) == [] and entities([None, "O"]) == []
    assert entities(["I-PER", "I-PER", None, "I-PER", "B-LOC", "B-LOC"]) == [
        ("PER", 0, 2), ("PER", 3, 4), ("LOC", 4, 5), ("LOC", 5, 6)
    ]  # fmt: skip
    assert entities(["S-A", "B-A", "E-A", "U-B", "L-B"]) == [("A", 0, 1), ("A", 1, 3), ("B", 3, 4), ("B", 4, 5)]


# ---------------------------------------------------------------------------------------------------------- answers


def asked(context, max_length=200, stride=128, question="a"):
    vocab = [*SPECIAL_PIECES, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    return WordPieceFeatures(WordPiece(vocab), max_length).windows([question], [context], stride)[0]


def drawn(rng, windows):
    """Logits for everything, [CLS], question and [SEP] too."""
    return [{f"{edge}_logits": rng.normal(size=len(row) + 2) for edge in ("start", "end")} for row in windows]


def every_span(windows, outputs, max_answer):
    """{(start, end) in characters: the best score}, of the best 20 spans of pieces in each window."""
    result = {}
    for row, output in zip(windows, outputs, strict=True):
        inside = range(row.first, len(row) - 1)
        pairs = [(a, b) for a, b in itertools.product(inside, inside) if a <= b < a + max_answer]
        scores = {(a, b): output["start_logits"][a] + output["end_logits"][b] for a, b in pairs}
        for first, last in sorted(scores, key=lambda pair: -scores[pair])[:N_BEST]:
            span = row.words[first][0], row.words[last][1]
            result[span] = max(scores[first, last], result.get(span, -np.inf))
    return result


@pytest.mark.parametrize("max_answer", [1, 3, 30])
@pytest.mark.parametrize(("max_length", "stride"), [(24, 128), (12, 3), (9, 128), (7, 1)])
def test_best_of_all_spans(rng, max_length, stride, max_answer):
    for _ in range(5):
        context = " ".join("".join(rng.choice([*LETTERS], rng.integers(1, 3))) for _ in range(8))
        windows = asked(context, max_length, stride)
        assert (len(windows) > 1) == (max_length < 24)
        outputs = drawn(rng, windows)
        answers, null = best_answers(windows, outputs, context, max_answer)
        expected = sorted(every_span(windows, outputs, max_answer).items(), key=lambda item: -item[1])[:N_BEST]
        assert [(answer["start"], answer["end"]) for answer in answers] == [span for span, _ in expected]
        np.testing.assert_allclose([answer["score"] for answer in answers], [score for _, score in expected])
        np.testing.assert_allclose([answer["probability"] for answer in answers], softmax([x for _, x in expected]))
        assert all(answer["answer"] == context[answer["start"] : answer["end"]] for answer in answers)
        assert null == min(output["start_logits"][0] + output["end_logits"][0] for output in outputs)


@pytest.mark.parametrize("max_length", [200, 7])
def test_answers_end_with_words(max_length):
    """A span of pieces within words stands for these words, even where a window cuts one."""
    context = "b cde, (fgh) i"
    windows = asked(context, max_length=max_length)
    outputs = [{f"{edge}_logits": np.zeros(len(row)) for edge in ("start", "end")} for row in windows]
    pieces = [context[slice(*span)] for span in windows[0].offsets]
    outputs[0]["start_logits"][pieces.index("d")] = outputs[0]["end_logits"][pieces.index("d")] = 5
    answers, _ = best_answers(windows, outputs, context, 30)
    assert answers[0]["answer"] == "cde" and {answer["answer"] for answer in answers} <= {
        context[a:b] for a in (0, 2, 5, 7, 8, 11, 13) for b in (1, 5, 6, 8, 11, 12, 14)
    }


def test_the_best_20_spans_of_a_window(rng):
    """Of 100 pieces every span of up to 30 is looked at."""
    context = " ".join(rng.choice([*LETTERS], 100))
    windows = asked(context)
    (output,) = outputs = drawn(rng, windows)
    scores = {
        (2 * first - 6, 2 * last - 5): output["start_logits"][first] + output["end_logits"][last]
        for first, last in itertools.product(range(3, 103), repeat=2)
        if first <= last < first + 30
    }
    answers, _ = best_answers(windows, outputs, context, 30)
    expected = sorted(scores, key=lambda span: -scores[span])[:N_BEST]
    assert [(answer["start"], answer["end"]) for answer in answers] == expected and len(answers) == N_BEST


def test_the_best_window_wins():
    """The same span in two windows counts once, with the better score."""
    context = "b c d e f g"
    windows = asked(context, max_length=8, stride=2)
    assert len(windows) == 2 and all(len(row) == 8 for row in windows)
    outputs = [{f"{edge}_logits": np.zeros(8, np.float32) for edge in ("start", "end")} for _ in windows]
    outputs[0]["start_logits"][5] = outputs[0]["end_logits"][5] = 2  # "d" in the first
    outputs[1]["start_logits"][3] = outputs[1]["end_logits"][3] = 3  # and in the second
    outputs[0]["start_logits"][0], outputs[1]["end_logits"][0] = 1, -4
    answers, null = best_answers(windows, outputs, context, 30)
    best = answers[0]
    assert (best["answer"], best["start"], best["end"], best["score"]) == ("d", 4, 5, 6.0)
    assert len({(answer["start"], answer["end"]) for answer in answers}) == len(answers) and null == -4


def test_a_context_without_pieces():
    windows = asked("")
    outputs = [{"start_logits": np.array([1.0, 9, 9, 9]), "end_logits": np.array([2.0, 9, 9, 9])}]
    assert len(windows[0]) == 4 and best_answers(windows, outputs, "", 30) == ([], 3.0)


def test_equal_scores_keep_their_order():
    windows = asked("b c d")
    outputs = [{f"{edge}_logits": np.zeros(len(windows[0])) for edge in ("start", "end")}]
    answers, _ = best_answers(windows, outputs, "b c d", 2)
    assert [answer["answer"] for answer in answers] == ["b", "b c", "c", "c d", "d"]
