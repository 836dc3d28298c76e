"""Coreference of a pronoun: GAP's format and metric, spans in the model, and every engine."""

import json
import random

import numpy as np
import pytest

from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.tasks.coreference import Pronoun
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import compare, quantize

TASK = tasks.get("coreference")
HEADER = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
ROW = "x-1\tAda met Bea and her dog.\ther\t16\tAda\t0\tTRUE\tBea\t8\tFALSE\thttp://x\n"
NOUNS = ["rain", "storm", "wind", "cloud", "snow", "bread", "butter", "oven", "violin", "piano", "drum", "song"]


def generated(count, seed=0):
    """The pronoun behind "is" means the name before it, that behind "was" the other one, and "him" neither."""
    draw, examples = random.Random(seed), []
    for _ in range(count):
        first, second = draw.sample(NOUNS, 2)
        verb, label = draw.choice([("is", "A"), ("was", "B"), ("bad", "neither")])
        text = f"the {first} and the {second} {verb} she"
        a, b = (4, 4 + len(first)), (13 + len(first), 13 + len(first) + len(second))
        assert text[slice(*a)] == first and text[slice(*b)] == second
        examples.append(Pronoun(text, (len(text) - 3, len(text)), a, b, label))
    return examples


def test_gap_rows(tmp_path):
    (tmp_path / "gap.tsv").write_text(HEADER + ROW + ROW.replace("TRUE", "FALSE"))
    first, second = TASK.read(tmp_path / "gap.tsv")
    assert first == Pronoun("Ada met Bea and her dog.", (16, 19), (0, 3), (8, 11), "A") and second.label == "neither"
    row = {"text": "Ada met Bea and her dog.", "pronoun": "her", "pronoun_offset": 16}
    row |= {"a": "Ada", "a_offset": 0, "b": "Bea", "b_offset": 8}
    (tmp_path / "gap.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"a_coref": False, "b_coref": True}))
    assert [example.label for example in TASK.read(tmp_path / "gap.jsonl")] == [None, "B"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\t16\t", "\t15\t", "gap.tsv:2: pronoun 'her' is not at character 15 of its text; found ' he'"),
        ("\t16\t", "\t-1\t", "pronoun_offset '-1': the character of the text where 'her' begins is needed"),
        ("FALSE", "TRUE", "both true"),
        ("TRUE", "yes", "a_coref 'yes': TRUE or FALSE is needed"),
        ("\tBea\t8", "\t\t8", "no b "),
    ],
)
def test_malformed(old, new, message, tmp_path):
    (tmp_path / "gap.tsv").write_text(HEADER + ROW.replace(old, new, 1))
    with pytest.raises(ValueError) as error:
        list(TASK.read(tmp_path / "gap.tsv"))
    assert message in str(error.value)


def test_figures_are_those_of_the_gap_scorer():
    """Counted by hand: true and false positives and false negatives of the decisions A and B."""

    def row(pronoun, label):
        return Pronoun(f"{pronoun} Ada Bea", (0, len(pronoun)), (0, 1), (0, 1), label)

    gold = [row("He", "A"), row("his", "B"), row("him", "neither"), row("she", "A"), row("hers", "B"), row("Her", "B")]
    predictions = ["A", "A", "A", "A", "neither", "B"]
    figures = TASK.evaluate(gold, [{"label": label} for label in predictions], interval=False).scores
    # masculine: tp 1, fp 2, fn 1; feminine: tp 2, fp 0, fn 1
    masculine, feminine = 2 / (2 + 2 + 1), 4 / (4 + 0 + 1)
    assert figures["masculine_f1"] == pytest.approx(masculine) and figures["feminine_f1"] == pytest.approx(feminine)
    assert figures["f1"] == pytest.approx(6 / (6 + 2 + 2)) and figures["bias"] == pytest.approx(feminine / masculine)
    assert figures["accuracy"] == 0.5
    none = TASK.evaluate(gold, [{"error": "no words in this text"}] * 6, interval=False).scores
    assert none["f1"] == 0 and "bias" not in none


def test_swapped_names_swap_their_logits(models):
    """Names that change places change the places of their logits: the same network scores both."""
    encoder, bundle = saving.load_encoder(models / "bert" / "pretrained")
    from keras_ctxrep.models import heads

    model = heads.coreference(encoder, units=8)
    rows = bundle.features.encode(["the rain and the snow is she"], marks=[[(25, 28), (4, 8), (17, 21)]])
    batch = bundle.features.collate(rows)
    logits = np.asarray(model(batch)["logits"])[0]
    swapped = np.asarray(model(batch | {"marks": batch["marks"][:, [0, 2, 1]]})["logits"])[0]
    np.testing.assert_allclose(swapped, logits[[1, 0, 2]], atol=1e-6)
    assert logits[2] == 0 and logits[0] != logits[1]


@pytest.fixture(scope="module", params=["bert", pytest.param("words", marks=pytest.mark.slow)])
def trained(request, models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("coreference") / request.param
    encoder = "words" if request.param == "words" else models / request.param / "pretrained"
    rate = 0.005 if request.param == "bert" else 0.01
    own = {} if request.param == "bert" else {"stack": "lstm", "units": 16}
    recipes.finetune(
        generated(320),
        generated(40, seed=1),
        encoder,
        folder,
        task="coreference",
        steps=150,
        evaluations=3,
        learning_rate=rate,
        dropout=0.0,
        max_length=32,
        **own,
    )
    return folder


@pytest.mark.usefixtures("tflite_in_process")
@pytest.mark.filterwarnings("ignore:.*longer texts are cut")
@pytest.mark.slow  # three engines: 20 seconds
def test_every_engine(trained, tmp_path):
    """The same names in Keras, in the SavedModel and in the int8 file."""
    examples = generated(40, seed=2)
    figures = recipes.score(trained, examples)
    assert figures["metric"] == "f1" and figures["f1"] > 0.95 and figures["feminine_f1"] == figures["f1"]
    quantize.convert(trained, tmp_path / "a.tflite", "dynamic", (16, 32))
    saved_model.export(*saving.load(trained), tmp_path / "served")
    engines = [open_model(path) for path in (trained, tmp_path / "served", tmp_path / "a.tflite")]
    for row in compare.compare(engines, examples):
        assert row["agreement"] == 1 and row["quality"] > 0.95
    text, marks = "the rain  and the snow\u00ad was she", [(28, 31), (4, 8), (18, 22)]
    for engine in engines:
        (answer,) = engine.answer([text], marks=[marks])
        assert (answer["label"], answer["name"]) == ("B", "snow")
    (cut,) = engines[0].answer(["the " * 40 + text], marks=[[(160 + a, 160 + b) for a, b in marks]])
    assert cut["truncated"] and cut["label"] in ("A", "B", "neither")
