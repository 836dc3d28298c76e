"""Ways to fine-tune: low-rank updates, gradual unfreezing, outputs of a frozen encoder that are computed once."""

import random
import warnings

import numpy as np
import pytest

from keras_ctxrep import recipes, saving
from keras_ctxrep.recipes import finetuning, targets
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.training import fit as training_fit
from keras_ctxrep.training import frozen
from tests import tiny

pytestmark = pytest.mark.trains

TOPICS = {"weather": ["rain", "storm", "wind", "fog"], "music": ["violin", "piano", "drum", "song"]}


@pytest.fixture(scope="module")
def rows():
    draw = random.Random(0)
    return [Example(" ".join(draw.choices(TOPICS[label], k=4)), label) for label in [*TOPICS] * 40]


def moved(before, after):
    """(layer, weight) -> the largest difference, of the weights that both models have."""
    differences = {}
    for layer in filter(lambda layer: layer.weights, before.layers):
        for old, new in zip(layer.weights, after.get_layer(layer.name).weights, strict=True):
            name = (layer.name, old.path.partition("/")[2] or old.name)
            differences[name] = float(np.abs(old.numpy() - new.numpy()).max())
    return differences


def check_resume(rows, encoder, folder, power_cut, **options):
    """An interrupted run ends with the weights and the evaluations of an undisturbed one, which it returns."""
    options = {"steps": 12, "batch_size": 8, "learning_rate": 5e-3, "patience": 30, "evaluations": 6} | options

    def run(name, **more):
        return recipes.finetune(rows, rows[:16], encoder, folder / name, **options, **more)

    expected = run("one")
    with power_cut(5):
        run("two", checkpoint_minutes=1e-9)
    resumed = run("two")
    figures = [[(e["step"], e["loss"], e["val_accuracy"]) for e in history] for history in (expected, resumed)]
    assert figures[0] == figures[1] and len(expected) == 6
    for first, second in zip(*(saving.load(folder / name)[0].get_weights() for name in ("one", "two")), strict=True):
        np.testing.assert_array_equal(first, second)


# -------------------------------------------------------------------------------------------------- low-rank updates


def test_lora_trains_updates_of_its_rank_and_the_head(rows, models, tmp_path, monkeypatch):
    """The folder is a plain model: the updates are in its kernels, and it predicts what the trained model did."""
    encoder, trained = models / "bert" / "pretrained", []
    save = saving.save
    monkeypatch.setattr(
        saving, "save", lambda folder, model, bundle: trained.append(model) or save(folder, model, bundle)
    )
    recipes.finetune(rows, rows[:16], encoder, tmp_path, lora=2, steps=40, batch_size=16, learning_rate=1e-2)
    before, (after, bundle) = saving.load_encoder(encoder)[0], saving.load(tmp_path)
    changes = moved(before, after)
    changed = {name for name, difference in changes.items() if difference}
    kernels = ("qkv", "attention_output", "feed_forward", "feed_forward_output")
    expected = {name for name in changes if name[0].startswith("layer_") and name[1].endswith("kernel")}
    assert len(expected) == 2 * len(kernels)
    assert changed == expected | {name for name in changes if name[0] == "pooler"}
    for layer in ("layer_0", "layer_1"):
        for kernel in kernels:
            old, new = (np.asarray(getattr(model.get_layer(layer), kernel).kernel) for model in (before, after))
            singular = np.linalg.svd(new - old, compute_uv=False)
            assert singular[1] > 1e-4 and singular[2] < 1e-5
    assert not any("lora" in weight.name for weight in after.weights)
    assert any("lora" in weight.name for weight in trained[0].weights)
    inputs, _ = next(iter(targets.batches(bundle, lambda _: rows[:16], 16, 0)))
    logits = [model(inputs, training=False)["logits"] for model in (trained[0], after)]
    np.testing.assert_allclose(*logits, atol=1e-5)
    assert np.abs(np.asarray(logits[0])).max() > 0.1


def test_an_interrupted_run_with_lora(rows, models, tmp_path, power_cut):
    check_resume(rows, models / "bert" / "pretrained", tmp_path, power_cut, lora=4)


def test_the_default_rate_with_lora(rows, models, tmp_path, monkeypatch):
    rates, fit = [], training_fit.fit
    monkeypatch.setattr(
        training_fit, "fit", lambda *args, **more: rates.append(more["options"].learning_rate) or fit(*args, **more)
    )
    for name, options in {"all": {}, "lora": {"lora": 1}}.items():
        recipes.finetune(rows, rows[:4], models / "bert" / "pretrained", tmp_path / name, steps=1, **options)
    assert rates[1] == pytest.approx(10 * rates[0])


# ------------------------------------------------------------------------------------------------ gradual unfreezing


def test_layers_are_unfrozen_from_the_top(rows, models, tmp_path, monkeypatch):
    """80 rows in batches of 8 are 10 steps an epoch; the encoder has two layers and its embeddings."""
    encoder, starts, fit = models / "bert" / "pretrained", [], training_fit.fit
    monkeypatch.setattr(
        training_fit,
        "fit",
        lambda *args, **more: starts.append(args[4].arguments["starts"]) or fit(*args, **more),
    )
    options = {"batch_size": 8, "unfreeze": 0.2, "learning_rate": 1e-3, "evaluations": 1}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recipes.finetune(rows, rows[:16], encoder, tmp_path / "short", steps=4, **options)
    messages = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert messages == ["unfreeze=0.2: 2 of 3 layers stay frozen to the end; unfreeze=0.1 would train all of them"]
    assert {starts[0][name] for name in ("token_embedding", "embedding_norm", "position_embedding")} == {6}
    assert (starts[0]["layer_0"], starts[0]["layer_1"]) == (4, 2) and not {"pooler", "logits"} & set(starts[0])
    before = saving.load_encoder(encoder)[0]
    changes = moved(before, saving.load(tmp_path / "short")[0])
    assert {layer for (layer, _), difference in changes.items() if difference} == {"layer_1", "pooler"}
    recipes.finetune(rows, rows[:16], encoder, tmp_path / "whole", epochs=0.8, **options)
    changes = moved(before, saving.load(tmp_path / "whole")[0])
    assert {layer for (layer, _), difference in changes.items() if difference} >= {"token_embedding", "layer_0"}


def test_an_interrupted_run_with_unfreezing(rows, models, tmp_path, power_cut):
    """The power cut is before the embeddings are unfrozen."""
    options = {"unfreeze": 0.3, "layer_decay": 0.9}
    check_resume(rows, models / "bert" / "pretrained", tmp_path, power_cut, **options)


@pytest.mark.parametrize(
    ("encoder", "options", "message"),
    [
        ("bert", {"lora": 2, "freeze": False}, "lora=2, freeze=False: .* leave freeze out"),
        ("bert", {"lora": 2, "freeze": True}, "lora=2, freeze=True: .* leave freeze out"),
        ("bert", {"lora": 2, "layer_decay": 0.9}, r"lora=2, layer_decay=0\.9: .* leave layer_decay out"),
        ("bert", {"lora": 2, "from_scratch": True}, "lora=2, from_scratch=True: .* leave from_scratch out"),
        ("bert", {"lora": 2, "unfreeze": 1.0}, r"lora=2, unfreeze=1\.0: .* leave unfreeze out"),
        ("bert", {"unfreeze": 1.0, "freeze": True}, r"unfreeze=1\.0, freeze=True: a frozen encoder stays so"),
        ("elmo", {"unfreeze": 1.0}, r"unfreeze=1\.0: the encoder is frozen; train it with freeze=False"),
        ("elmo", {"layer_decay": 0.5}, r"layer_decay=0\.5: the encoder is frozen; train it with freeze=False"),
        ("bert", {"lora": 0}, "lora=0: must be above 0"),
        ("elmo", {"lora": 2}, "lora=2: low-rank updates are to a BERT's dense layers, and .* has none; freeze=True"),
        ("words", {"lora": 2}, "lora=2: low-rank updates are to a BERT's dense layers, and words has none"),
    ],
)
def test_options_that_do_not_fit(encoder, options, message, models, tmp_path):
    """Refused before the data is read."""
    encoder = encoder if encoder == "words" else models / encoder / "pretrained"
    with pytest.raises(ValueError, match=message):
        recipes.finetune("missing.tsv", "missing.tsv", encoder, tmp_path / "out", steps=1, **options)
    assert not (tmp_path / "out").exists()


# -------------------------------------------------------------------------------------------------- a frozen encoder


@pytest.fixture
def computed(monkeypatch):
    """The number of rows in each batch that the frozen part computes."""
    runner, rows = frozen.runner, []

    def counting(model, **options):
        run = runner(model, **options)
        return lambda inputs: rows.append(len(inputs["mask"])) or run(inputs)

    monkeypatch.setattr(frozen, "runner", counting)
    return rows


def same(first, second):
    """Two runs had the same losses and figures."""
    for one, other in zip(first, second, strict=True):
        for name in one.keys() - {"minutes", "tokens_per_second"}:
            assert one[name] == pytest.approx(other[name], rel=0, abs=1e-5), name


def same_weights(*folders):
    for first, second in zip(*(saving.load(folder)[0].get_weights() for folder in folders), strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=1e-5)


def test_outputs_that_are_computed_once_train_the_same_model(tmp_path, power_cut, computed):
    """A biLSTM with dropout and a CRF over a mix, also where the run is interrupted in its second epoch."""
    draw = random.Random(0)
    words = [draw.choices(["rain", "wind", "drum", "song"], k=draw.randint(1, 6)) for _ in range(24)]
    rows = [Tagged(tuple(each), tuple("B-X" if word == "drum" else "O" for word in each)) for each in words]
    encoder = tiny.save(tmp_path / "encoder", tiny.bundle("embed", "elmo"))
    options = {"task": "tag", "stack": "lstm", "units": 4, "crf": True, "epochs": 3, "batch_size": 4}
    expected = recipes.finetune(rows, rows[:8], encoder, tmp_path / "one", cache=False, **options)
    assert not computed
    with power_cut(8):
        recipes.finetune(rows, rows[:8], encoder, tmp_path / "two", checkpoint_minutes=1e-9, **options)
    distinct = len({tuple(each) for each in words})
    assert sum(computed) == distinct + 8  # and the batch of the evaluations
    same(recipes.finetune(rows, rows[:8], encoder, tmp_path / "two", **options), expected)
    same_weights(tmp_path / "one", tmp_path / "two")


def test_outputs_that_are_computed_once_on_two_replicas(rows, tmp_path, computed, monkeypatch):
    """Of a frozen BERT the head reads the pooled vectors alone, which have no axis of tokens."""
    vocab = (*tiny.VOCABULARIES["bert"][:5], *(word for words in TOPICS.values() for word in words))
    encoder = tiny.save(tmp_path / "encoder", tiny.bundle("embed", vocab=vocab))
    options = {"freeze": True, "dropout": 0.0, "epochs": 2, "batch_size": 8, "learning_rate": 0.01}
    expected = recipes.finetune(rows[:32], rows[:8], encoder, tmp_path / "one", cache=False, **options)
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "choose", lambda name: tiny.mirrored())
        same(recipes.finetune(rows[:32], rows[:8], encoder, tmp_path / "two", **options), expected)
    assert sum(computed) == len({row.text for row in rows[:32]}) + 8
    same_weights(tmp_path / "one", tmp_path / "two")
