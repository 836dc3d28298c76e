"""Label smoothing, class weights and distillation, against NumPy, in a batch as in its parts, and in fine-tuning."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax

from keras_ctxrep import recipes, tasks
from keras_ctxrep.cli import main
from keras_ctxrep.losses import CrossEntropy, TextDistillation
from keras_ctxrep.models.model import Model
from keras_ctxrep.tasks.classify import Example
from tests import tiny

ROWS = [Example("red fish", "a"), Example("blue fish", "b"), Example("red", "a"), Example("red bird", "a")]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5]])
def test_against_numpy(smoothing, weights, rng):
    labels, logits = rng.integers(0, 3, (4, 5)), rng.normal(size=(4, 5, 3)).astype(np.float32)
    target = (1 - smoothing) * np.eye(3)[labels] + smoothing / 3
    expected = -(target * log_softmax(logits, -1)).sum(-1) * np.take(weights or [1.0] * 3, labels)
    loss = CrossEntropy(smoothing, weights)
    assert float(loss(labels, logits)) == pytest.approx(expected.mean(), rel=1e-6)
    of_words = rng.integers(0, 2, (4, 5)).astype(np.float32)
    assert float(loss(labels, logits, of_words)) == pytest.approx((expected * of_words).mean(), rel=1e-6)
    again = CrossEntropy.from_config(loss.get_config())
    assert float(again(labels, logits)) == float(loss(labels, logits))


def test_parts_of_a_batch_are_its_whole(rng):
    """Parts have other classes, as on replicas: weights divided by their sum in a part would give another result."""
    x, y = rng.normal(size=(10, 4)).astype(np.float32), np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
    trained = []
    for parts in (1, 4):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,))
        model = Model(inputs, keras.layers.Dense(3)(inputs))
        model.microbatches = parts
        model.compile(keras.optimizers.SGD(0.1), CrossEntropy(0.1, [5.0, 1.0, 0.2]))
        model.fit(x, y, batch_size=10, epochs=3, shuffle=False, verbose=0)
        trained.append(model.get_weights())
    for whole, in_parts in zip(*trained, strict=True):
        np.testing.assert_allclose(whole, in_parts, atol=1e-6)


@pytest.mark.parametrize("replicas", [1, 2])
def test_distillation_of_texts_compares_those_of_all_replicas(replicas):
    """One step at rate 1 over 7 texts, of which a replica has 4 and the other 3, against NumPy's differences."""
    rng = np.random.default_rng(0)
    x, teacher, kernel = (rng.normal(size=size).astype(np.float32) for size in ((7, 4), (7, 3), (4, 3)))

    def value(kernel):
        first, second = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (teacher, x @ kernel))
        return np.mean(1 - (first * second).sum(1)) + 3 * np.mean((first @ first.T - second @ second.T) ** 2)

    steps = 1e-5 * np.eye(12).reshape(12, 4, 3)
    expected = [(value(kernel + step) - value(kernel - step)) / 2e-5 for step in steps]
    strategy = tiny.mirrored(replicas)
    with strategy.scope():
        inputs = keras.Input((4,))
        model = Model(inputs, {"texts": keras.layers.Dense(3, use_bias=False, name="texts")(inputs)})
        model.set_weights([kernel])
        model.compile(keras.optimizers.SGD(1.0), loss={"texts": TextDistillation(3.0)}, jit_compile=False)
    data = tf.data.Dataset.from_tensors((x, {"texts": teacher}))
    loss = model.fit(data, verbose=0, shuffle=False).history["loss"][0]
    assert loss == pytest.approx(value(kernel), rel=1e-5)
    np.testing.assert_allclose(np.ravel(kernel - model.get_weights()[0]), expected, atol=1e-5)


def test_balanced_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    counts = {"a": 6, "b": 3, "c": 1}
    task = tasks.get("classify")
    loss = task.loss(task.Options(class_weights="balanced"), counts)
    labels = np.repeat(list(counts), list(counts.values()))
    expected = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=labels)
    np.testing.assert_allclose(loss.class_weights, expected)
    assert task.loss(task.Options(class_weights={"b": 4}), counts).class_weights == [1.0, 4.0, 1.0]
    assert task.loss(task.Options(), counts) is None
    never = tasks.get("coreference").loss(task.Options(class_weights="balanced"), {"A": 3, "B": 1, "neither": 0})
    assert np.isfinite(never.class_weights).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": {"c": 2.0}}, "class_weights: 'c' is no label of the data, which has a, b"),
        ({"class_weights": "even"}, "class_weights='even': balanced, or a weight for each of some labels, LABEL=X"),
        ({"class_weights": {"a": 0.0}}, r"class_weights: a=0\.0: must be above 0"),
        ({"label_smoothing": 1.0}, r"label_smoothing=1\.0: must be at least 0 and below 1"),
        (
            {"task": "regress", "label_smoothing": 0.1},
            "label_smoothing is an option of the tasks 'classify', 'tag', 'semantic_roles', 'coreference' and "
            "'translate', and the task is 'regress'",
        ),
        (
            {"task": "tag", "class_weights": "balanced"},
            "class_weights is an option of the tasks 'classify' and 'coreference', and the task is 'tag'",
        ),
        ({"task": "tag", "crf": True, "label_smoothing": 0.1}, r"label_smoothing=0\.1: a CRF's loss is over whole"),
    ],
)
def test_options_that_do_not_fit(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        recipes.finetune(ROWS, ROWS, "words", tmp_path / "out", steps=1, **options)
    assert not (tmp_path / "out").exists()


def test_options_of_the_command(write, tmp_path, capsys):
    """The weights reach the loss: that of the only step is the weighted mean of the smoothed cross-entropies."""
    data = write("a.tsv", "text\tlabel\n" + "".join(f"{row.text}\t{row.label}\n" for row in ROWS))
    argv = ["train", "--data", data, "--dev", data, "--encoder", "words", "--stack", "cnn", "--units", "4"]
    argv = [*map(str, argv), "--steps", "1", "--dropout", "0", "--out"]
    losses = {}
    for name, flags in {
        "plain": [],
        "balanced": ["--class-weights", "balanced"],
        "equal": ["--class-weights", "a=2", "b=2"],
        "smooth": ["--label-smoothing", "0.3"],
    }.items():
        assert main.main([*argv, str(tmp_path / name), *flags]) == 0, capsys.readouterr().err
        losses[name] = float(capsys.readouterr().out.partition("loss ")[2].split()[0])
    assert losses["equal"] == pytest.approx(2 * losses["plain"], abs=2e-3)
    assert len(set(losses.values())) == 4
    with pytest.raises(SystemExit) as ended:
        main.main([*argv, str(tmp_path / "wrong"), "--class-weights", "a=much"])
    assert ended.value.code == 2 and "a=much: write LABEL=X with a number, e.g. a=2.5" in capsys.readouterr().err
    assert main.main(["train", "--config", str(tmp_path / "equal" / "run.json"), "--out", str(tmp_path / "again")]) == 0
    assert float(capsys.readouterr().out.partition("loss ")[2].split()[0]) == losses["equal"]
