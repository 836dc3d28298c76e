"""Examples as a model learns from them: what is refused, where answers lie, what a tagger's targets and weights are."""

import unicodedata
from dataclasses import replace

import numpy as np
import pytest

from keras_ctxrep import tasks
from keras_ctxrep.layers import CRF
from keras_ctxrep.recipes import targets
from keras_ctxrep.recipes.targets import Reader
from keras_ctxrep.tasks.answer import Question, answer_positions
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.similar import Pair
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import WordPieceFeatures
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece

ANSWERS = [
    ("Le Café  Ünïon est là.", "Café  Ünïon"),
    ("un cafe\u0301 noir", "noir"),
    ("我住在東京タワー附近。", "東京タワー"),
    ("see \U0001f469\u200d\U0001f373 cook 😀 now", "😀"),
    ("see \U0001f469\u200d\U0001f373 cook", "\U0001f469\u200d\U0001f373"),
    ("הוא גר בירושלים היום", "בירושלים"),
    ("قال مرحبا، ثم", "مرحبا"),
    ("a\u200bb  c", "b  c"),
    ("the U.S. (1999)", "U.S."),
    ("İstanbul is", "İstanbul"),
    ("x “quoted” y", "“quoted”"),
    ("हिन्दी भाषा", "हिन्दी"),
    ("a\tb\nc", "b\nc"),
]


def letters(lowercase, *texts):
    """Features whose pieces are single characters."""
    chars = sorted({c for text in texts for c in unicodedata.normalize("NFD", text.lower()) + text if not c.isspace()})
    return WordPiece([*SPECIAL_PIECES, *chars, *(f"##{c}" for c in chars)], lowercase)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(("context", "answer"), ANSWERS)
def test_the_target_of_an_answer_decodes_to_it(context, answer, lowercase):
    features = WordPieceFeatures(letters(lowercase, "q", context), 40)
    question = Question("q", context, ((answer, context.index(answer)),))
    (row,) = features.windows(["q"], [context])[0]
    first, last = answer_positions(row, question)
    assert row.first <= first <= last < len(row) - 1
    assert context[row.offsets[first][0] : row.offsets[last][1]] == answer


@pytest.mark.parametrize("answer", ["cafe\u0301", "❤️"])
def test_an_answer_whose_end_is_in_no_piece(answer):
    """A combining accent or a variation selector is stripped with the accents."""
    context = f"un {answer} noir"
    (row,) = WordPieceFeatures(letters(True, "q", context), 40).windows(["q"], [context])[0]
    first, last = answer_positions(row, Question("q", context, ((answer, 3),)))
    assert row.offsets[first][0] == 3 and row.offsets[last][1] == 3 + len(answer) - 1


def test_windows_without_the_answer_point_to_cls():
    """Nor do those that hold a part of it."""
    context = "a b c d e f g h"
    features = WordPieceFeatures(letters(True, "q", context), 7)  # three pieces of the context
    rows = features.windows(["q"], [context], 1)[0]
    question = Question("q", context, (("d e", 6),))
    held = [context[row.offsets[row.first][0] : row.offsets[len(row) - 2][1]] for row in rows]
    assert held == ["a b c", "b c d", "c d e", "d e f", "e f g", "f g h"]
    assert [answer_positions(row, question) for row in rows] == [(0, 0), (0, 0), (4, 5), (3, 4), (0, 0), (0, 0)]
    assert {answer_positions(row, Question("q", context, ())) for row in rows} == {(0, 0)}
    bundle = Bundle(
        "bert", config={}, max_length=7, vocab=features.wordpiece.vocab, **tasks.bundle_fields("answer", stride=1)
    )
    result = list(targets.encoded(bundle, [question, Question("q", "a", (("a", 0),))]))
    assert [target for _, target in result] == [(0, 0), (0, 0), (4, 5), (3, 4), (0, 0), (0, 0), (3, 3)]


# ------------------------------------------------------------------------------------------------------- tagging

VOCAB = (*SPECIAL_PIECES, "a", "b", "##b")
TAGGER = Bundle("bert", config={}, max_length=6, labels=("O", "B-X", "I-X"), vocab=VOCAB, **tasks.bundle_fields("tag"))
SENTENCES = [
    Tagged(("a", "\u200b", "bb", "a"), ("O", "B-X", "I-X", "B-X")),  # the second word has no piece
    Tagged(("a", "bb", "bb", "a"), ("B-X", "I-X", "O", "B-X")),  # the last one is cut off
    Tagged(("a",), ("B-X",)),
]


def test_targets_of_words():
    tags = [target for _, target in targets.encoded(TAGGER, SENTENCES)]
    assert tags == [[0, 2, 1], [1, 2, 0], [1]]
    data = targets.batches(replace(TAGGER, head={"crf": True}), lambda epoch: SENTENCES, 3, 0)
    inputs, crf = next(data.as_numpy_iterator())
    assert sorted(crf["logits"].tolist()) == sorted([[0, 2, 1], [1, 2, 0], [1, -1, -1]])
    assert ((inputs["starts"] > 0) == (crf["logits"] >= 0)).all()


def test_weights_of_words(rng):
    """The mean over all positions is that over the words."""
    data = targets.batches(TAGGER, lambda epoch: SENTENCES, 3, 0)
    inputs, y, weights = next(data.as_numpy_iterator())
    real = inputs["starts"] > 0
    assert real.sum() == 7 and y["logits"].min() == 0
    losses = rng.normal(size=real.shape)
    np.testing.assert_allclose((losses * weights["logits"]).mean(), losses[real].mean(), rtol=1e-6)


def test_words_of_another_encoder_than_bert():
    bundle = Bundle("elmo", "tag", {"max_characters": 6}, 2, ("O", "X"))
    rows = [Tagged(("a", "b", "c"), ("X", "O", "X")), Tagged(("d",), ("O",))]
    assert [target for _, target in targets.encoded(bundle, rows)] == [[1, 0], [0]]
    _, y, weights = next(targets.batches(bundle, lambda epoch: rows, 2, 0).as_numpy_iterator())
    assert sorted(zip(y["logits"].tolist(), weights["logits"].tolist(), strict=True)) == [
        ([0, 0], [pytest.approx(4 / 3), 0.0]),
        ([1, 0], [pytest.approx(4 / 3)] * 2),
    ]


def test_labels_that_are_not_in_the_training_data_have_no_weight_in_the_loss():
    """The CRF skips their words, and a softmax has weight 0 there."""
    bundle = Bundle("elmo", "tag", {"max_characters": 6}, 4, ("O", "X"))
    rows = [Tagged(("a", "b", "c"), ("X", "NEW", "O"))]
    _, y, weights = next(targets.batches(bundle, lambda epoch: rows, 1, 0).as_numpy_iterator())
    assert (y["logits"].tolist(), weights["logits"].tolist()) == ([[1, 0, 0]], [[1.5, 0, 1.5]])
    joint = replace(bundle, head={"crf": True})
    _, y = next(targets.batches(joint, lambda epoch: rows, 1, 0).as_numpy_iterator())
    logits = np.array([[[0.3, 1.0], [5.0, -5.0], [0.1, 0.2]]], np.float32)
    layer = CRF()
    layer(logits, mask=np.ones((1, 3), np.int32))
    losses = [
        float(layer.loss(labels, part)[0]) for labels, part in ((y["logits"], logits), ([[1, 0]], logits[:, ::2]))
    ]
    assert losses[0] == pytest.approx(losses[1])
    bundle = Bundle("elmo", "classify", {"max_characters": 6}, 4, ("a", "b"))
    texts = [Example("x", "b"), Example("y", "new")]
    _, y, weights = next(targets.batches(bundle, lambda epoch: texts, 2, 0).as_numpy_iterator())
    assert sorted(zip(y["logits"].tolist(), weights["logits"].tolist(), strict=True)) == [(0, 0.0), (1, 1.0)]


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("task", "example", "options", "message"),
    [
        ("classify", Example("x", None, None, "f:2"), {}, "f:2: no label"),
        (
            "classify",
            Example("x", "a", "y", "f:2"),
            {"pairs": False},
            "f:2: a pair of texts; this model reads one text",
        ),
        ("regress", Example("x", 1.0, None, "f:2"), {"pairs": True}, "f:2: one text; this model reads a pair of texts"),
        (
            "regress",
            Example("\u200b", 1.0, " ", "f:2"),
            {"pairs": True},
            "f:2: no words in this text, of which a number could be computed",
        ),
        ("tag", Tagged(("x",), None, "f:2"), {}, "f:2: no tags"),
        ("answer", Question("q", "c", None, "", "f:2"), {}, "f:2: no answers"),
        ("classify", Example("a text", None), {}, "'a text': no label"),
        ("classify", Example("x", 1, None, "f:2"), {}, "f:2: label 1: a label is a string"),
        (
            "regress",
            Example("\u0301\u0301", 1.0, None, "f:2"),
            {},
            "f:2: no words in this text, of which a number could be computed",
        ),
    ],
)
def test_examples_that_do_not_fit(task, example, options, message):
    with pytest.raises(ValueError) as raised:
        list(Reader(tasks.get(task), **options)([example]))
    assert str(raised.value) == message
    skipped = []
    assert list(Reader(tasks.get(task), **options, skipped=skipped)([example])) == [] and skipped == [message]


def test_rows_of_a_file_without_a_label_name_the_remedy(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tgold\nx\ty\n")
    with pytest.raises(ValueError, match=r"a\.tsv:2: no label: --columns label=NAME names its column, --skip-bad"):
        list(Reader(tasks.get("classify"))(tmp_path / "a.tsv"))
    (tmp_path / "a.tsv").write_text("text\tgold\nx\t\n")
    with pytest.raises(ValueError, match=r"a\.tsv:2: no label: .* such rows out \(looked for in column 'gold'\)$"):
        list(Reader(tasks.get("classify"), {"label": "gold"})(tmp_path / "a.tsv"))


@pytest.mark.parametrize(
    ("task", "example", "message"),
    [
        ("classify", Example("x", ""), "label '': a label is a string that is not empty"),
        ("multilabel", Example("x", ("a", None)), "label None: a label is a string"),
        ("tag", Tagged(("x", "y"), ("O", "")), "label '': a label is a string that is not empty"),
        ("regress", Example("x", float("nan")), "label nan is not a finite number"),
        ("similar", Pair("x", "y", float("nan")), "label nan is not a finite number"),
    ],
)
def test_missing_labels_of_examples(task, example, message):
    with pytest.raises(ValueError, match=f": {message}$"):
        list(Reader(tasks.get(task))([example]))


@pytest.mark.parametrize(
    ("known", "labels", "expected"),
    [
        ("01", [1, 0.0, True, "1", "1.0"], list("10111")),
        (["0.0", "1.0"], [1, 0.0, "0"], ["1.0", "0.0", "0.0"]),
        (["False", "True"], [True, 1, 0.0], ["True", "True", "False"]),
    ],
)
def test_a_label_is_the_known_one_that_is_the_same_number(known, labels, expected):
    """Of development data in another type than the training data."""
    examples = Reader(tasks.get("classify"), labels=known)((["a text"] * len(labels), labels))
    assert [example.label for example in examples] == expected
    (example,) = Reader(tasks.get("multilabel"), labels=known)({"text": ["x"], "labels": [labels]})
    assert set(example.label) == {*expected}


@pytest.mark.parametrize("label", ["2", "01", "1.00", "v1.0", "1.5"])
def test_a_label_that_is_no_known_number_stays(label):
    with pytest.warns(UserWarning, match="labels that the model cannot predict"):
        (example,) = Reader(tasks.get("classify"), labels=["0", "1", "v1"])((["a text"], [label]))
    assert example.label == label


def test_false_values_are_labels():
    assert list(Reader(tasks.get("multilabel"), labels=["a"])([Example("x", ())])) == [Example("x", ())]
    assert list(Reader(tasks.get("regress"))([Example("x", 0.0)])) == [Example("x", 0.0)]
    assert list(Reader(tasks.get("answer"))([Question("q", "c", ())])) == [Question("q", "c", ())]


def test_every_epoch_has_an_order_of_its_own_and_few_are_held(monkeypatch):
    monkeypatch.setattr(targets, "SHUFFLED", 10)
    read = []

    def source():
        for number in range(100):
            read.append(number)
            yield number

    epoch = targets.in_random_order(source, 0)
    examples = epoch(0)
    assert next(examples) < 10 and len(read) == 10  # only those are read
    first, second, again = list(epoch(0)), list(epoch(1)), list(epoch(0))
    assert first != second and first == again and sorted(first) == sorted(second) == list(range(100))
