"""Text to text: from a file to a model folder, a SavedModel and a .tflite file, with the same answers."""

import json
from dataclasses import asdict, replace

import keras
import numpy as np
import pytest

from keras_ctxrep import saving, tasks
from keras_ctxrep.cli.main import main
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.inference.keras_engine import predictor_of
from keras_ctxrep.models import lm
from keras_ctxrep.recipes import finetune
from keras_ctxrep.tasks.translate import DECODERS, TranslateOptions, Translation
from keras_ctxrep.text import target_tokens
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.target_tokens import TargetTokens

task = tasks.get("translate")
WORDS = ["cat", "tack", "at", "act", "cab", "tab", "back", "attack"]
SOUNDS = {"c": "K", "a": "AE", "t": "T", "k": "K", "b": "B"}
ROWS = [Translation(word, (" ".join(SOUNDS[letter] for letter in word),)) for word in WORDS]
CHARACTERS = ("<S>", "</S>", "<UNK>", *"abckt")


def bundle_of(decoder="recurrent", units="words", **settings):
    """An untrained model over characters."""
    config = lm.Config(units="characters", layers=0, width=8, dropout=0.0, vocabulary_size=len(CHARACTERS))
    labels = target_tokens.learn(units, {"K": 3, "AE": 3, "T": 2, "B": 1, " ": 1}, 30)
    own = {"transformer": {"heads": 2, "context": 6}, "convolutional": {"layers": 2}}
    head = {"kind": decoder, "units": 8, "dropout": 0.0} | own.get(decoder, {})
    stack = {"kind": "lstm", "units": 4, "dropout": 0.0}
    settings = {"units": units, "target_length": 6, "beams": 3, "alpha": 0.6} | settings
    parts = {"vocab": CHARACTERS, "head": head, "stack": stack, "settings": settings}
    return Bundle("lm", "translate", asdict(config), 16, labels, **parts)


def random_model(bundle, seed=0):
    rng = np.random.default_rng(seed)
    model = saving.build(bundle)
    for weight in model.trainable_weights:
        weight.assign(weight + rng.normal(scale=0.5, size=weight.shape))
    return model


def texts_of(answers):
    return [[answer["text"], *(each["text"] for each in answer.get("n_best", ()))] for answer in answers]


def test_rows_of_files(tmp_path):
    table, lines = tmp_path / "rows.tsv", tmp_path / "rows.jsonl"
    table.write_text("text\ttarget\ncat\tK AE T\n")
    rows = [{"text": "a", "targets": ["AH", "EY"]}, {"source": "b", "translation": "B IY"}]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [*task.read(table)] == [Translation("cat", ("K AE T",))]
    assert [*task.read(lines)] == [Translation("a", ("AH", "EY")), Translation("b", ("B IY",))]
    lines.write_text('{"text": "a", "target": [3]}\n')
    with pytest.raises(ValueError, match=r"rows.jsonl:1: target 3: a text is needed"):
        list(task.read(lines))


def test_an_example_with_several_targets_is_learned_once_for_each():
    bundle = bundle_of()
    example = Translation("cat", ("K AE T", "K T"))
    assert len(task.training_queries(example)) == 2 and len(task.queries(example)) == 1
    rows = [row for own in task.encode(bundle, task.training_queries(example)) for row in own]
    targets = task.targets(bundle, example, rows)
    numbers = [[bundle.labels.index(word) for word in target.split()] for target in example.targets]
    assert targets == numbers
    labels, weights = task.batch(bundle, targets, {})
    read = task.target_inputs(targets)
    assert labels["logits"].tolist() == [[*numbers[0], 1], [*numbers[1], 1, 0]]
    assert read["target_ids"].tolist() == [[0, *numbers[0]], [0, *numbers[1], 0]]
    assert read["target_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    np.testing.assert_allclose(weights["logits"], read["target_mask"] * 8 / 7, rtol=1e-6)


def test_targets_of_a_text_count_wherever_they_stand():
    expected = [Translation("a", ("AH",)), Translation("a", ("EY",)), Translation("b", ("B IY",))]
    metrics = task.compute_metrics(expected, [{"text": "EY"}, {"text": "EY"}, {"error": "no words"}], ())
    assert metrics.scores["exact_match"] == 0.5  # of two texts
    assert metrics.scores["word_error_rate"] == 2 / 3  # two edits of B IY, none of EY
    assert metrics.errors.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_decoder_is_built_of_the_options(decoder):
    options = TranslateOptions(decoder=decoder, decoder_units=8, decoder_layers=2, target_length=6, attention="dot")
    model = saving.build(replace(bundle_of(), head=task.head_options(options)))
    start, step = task.parts(model).values()
    state = {"recurrent": 2 * 2 * 8 + 8, "transformer": 2 * 6 * 2 * 8 + 1, "convolutional": 2 * 2 * 8 + 1}[decoder]
    assert start.output["state"].shape[-1] == step.input["state"].shape[-1] == state


@pytest.mark.parametrize("decoder", ["recurrent", "transformer"])
def test_other_options_of_the_search(decoder):
    bundle = bundle_of(decoder)
    model = random_model(bundle)
    answers = predictor_of(model, bundle)(WORDS)
    greedy = predictor_of(model, task.with_search(bundle, beams=1))(WORDS)
    assert all("n_best" not in answer for answer in greedy)
    assert all(best["score"] >= own["score"] - 1e-6 for best, own in zip(answers, greedy, strict=True) if own == best)
    assert all(len(answer["n_best"]) == 3 and answer["n_best"][0]["text"] == answer["text"] for answer in answers)
    for answer, word in zip(answers, WORDS, strict=True):
        for token in answer["alignment"]:
            assert 0 <= token["start"] < token["end"] <= len(word) and 0 < token["weight"] <= 1
    with pytest.raises(ValueError, match="beams=0: must be above 0"):
        task.with_search(bundle, beams=0)
    with pytest.raises(ValueError, match="beams=2: of the task translate alone"):
        tasks.with_search(replace(bundle, task="classify"), beams=2)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "beam"),
        ({"beams": 1}, "greedy"),
        ({"beams": 3, "alpha": 0.6}, "beam"),
        ({"beams": 2}, "ids"),
        ({"alpha": 0.5}, "ids"),
        ({"beams": 1, "alpha": 0.5}, "ids"),
    ],
)
def test_a_file_searches_by_its_own_loop_where_it_has_one(options, part):
    def named(name):
        def run(inputs):
            raise LookupError(name)

        return run

    bundle = task.with_search(bundle_of(), **options)
    run = task.run(bundle, {name: named(name) for name in ("ids", "step", "greedy", "beam")})
    with pytest.raises(LookupError, match=part):
        run({"mask": np.ones((1, 1), np.int32)})
    again = task.with_search(bundle, beams=3)  # it may not know the beams of the file any more
    assert again.settings["beams"] == 3 and not (part != "beam" and again.settings["in_graph"])


def test_saved_and_loaded(tmp_path):
    bundle = bundle_of()
    model = random_model(bundle)
    saving.save(tmp_path / "model", model, bundle)
    loaded = saving.load(tmp_path / "model")
    assert loaded.bundle.labels == bundle.labels
    assert predictor_of(*loaded)(WORDS) == predictor_of(model, bundle)(WORDS)
    encoder = loaded.encoder()
    assert encoder.bundle.task == "embed" and encoder.bundle.labels == ()


@pytest.mark.trains
@pytest.mark.parametrize(
    ("units", "decoder"), [("characters", "recurrent"), ("subwords", "transformer"), ("words", "convolutional")]
)
def test_all_engines_give_the_same_text(units, decoder, tmp_path):
    from keras_ctxrep_export import saved_model
    from keras_ctxrep_tflite import quantize, runtime

    bundle = bundle_of(decoder, units)
    model = random_model(bundle)
    saving.save(tmp_path / "model", model, bundle)
    strange = [*WORDS, "cat zebra", "日本 kat", ""]
    expected = predictor_of(model, bundle)(strange)
    assert expected[-1] == {"error": "no words in this text", "text": None, "score": None, "alignment": []}
    saved = saved_model.export(model, bundle, tmp_path / "served")
    quantize.convert(tmp_path / "model", tmp_path / "model.tflite", lengths=[16])
    file = runtime.load(tmp_path / "model.tflite")
    for engine in (saved_model.load(saved), file):
        answers = engine(strange)
        assert texts_of(answers[:-1]) == texts_of(expected[:-1]) and "error" in answers[-1]
        assert answers[-1] == expected[-1]
        for answer, own in zip(answers[:-1], expected[:-1], strict=True):
            assert answer["score"] == pytest.approx(own["score"], abs=1e-5)
            assert answer.get("unfinished") == own.get("unfinished")
    for answer, own in zip(file(strange)[:-1], expected[:-1], strict=True):
        assert [(t["token"], t["start"], t["end"]) for t in answer["alignment"]] == [
            (t["token"], t["start"], t["end"]) for t in own["alignment"]
        ]
    for beams in (1, 2):  # a signature with options; the greedy loop of the file; its steps instead of a loop
        expected = predictor_of(model, task.with_search(bundle, beams=beams))(WORDS)
        for path in (saved, tmp_path / "model.tflite"):
            answers = open_model(path, search={"beams": beams}).answer(WORDS)
            assert texts_of(answers) == texts_of(expected)
            for answer, own in zip(answers, expected, strict=True):
                assert answer["score"] == pytest.approx(own["score"], abs=1e-5)
    with pytest.raises(ValueError, match="alpha=1: a SavedModel has that of its export"):
        open_model(saved, search={"alpha": 1})


@pytest.mark.trains
def test_from_files_to_answers(tmp_path, capsys):
    """Letters to sounds, which a text in memory, a folder and the command line agree on."""
    keras.utils.set_random_seed(1)
    options = {"target_units": "words", "target_length": 12, "decoder_units": 32, "decoder_dropout": 0.0, "beams": 2}
    settings = {"units": 16, "dropout": 0.0, "epochs": 40, "evaluations": 2, "batch_size": 16, "learning_rate": 1e-2}
    out = tmp_path / "g2p"
    history = finetune(ROWS * 8, ROWS, "characters", out, "translate", task_options=options, **settings)
    assert history[-1]["val_exact_match"] == 1.0
    bundle = saving.load(out).bundle
    assert bundle.stack["kind"] == "lstm"  # characters alone know nothing of their context
    assert bundle.labels[:3] == target_tokens.MARKERS and {*bundle.labels[3:]} == {*SOUNDS.values()}
    (tmp_path / "words.txt").write_text("back\ntab\n")
    assert main(["predict", str(out), "--input", str(tmp_path / "words.txt"), "--beams", "1"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["text"] for answer in answers] == ["B AE K K", "T AE B"]


def test_target_tokens_of_a_model_are_its_labels():
    bundle = bundle_of(units="subwords")
    tokens = TargetTokens("subwords", bundle.labels)
    assert tokens.text(tokens.ids("AE  K")) == "AE K"


@pytest.mark.trains
def test_operators_of_the_oldest_server(graph_nodes):
    from keras_ctxrep_export.signatures import Signatures
    from tests.export.test_signatures import operators

    known, bundle = operators(), bundle_of()
    functions = Signatures(random_model(bundle), bundle).functions
    assert {"serving_default", "search", "ids", "step", "embed"} == functions.keys()
    for function in functions.values():
        for node in graph_nodes(function.get_concrete_function()):
            unknown = {attr for attr in node.attr if not attr.startswith("_")} - known[node.op]
            assert not unknown, (node.op, unknown)
            assert "PyFunc" not in node.op
