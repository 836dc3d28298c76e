import csv
import json
import subprocess
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from keras_ctxrep import optimizers, saving
from keras_ctxrep.models import elmo
from keras_ctxrep.models.model import Model, copy_weights
from keras_ctxrep.optimizers import AdamW, OptimizerSpec
from keras_ctxrep.options import Fit
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import CharacterFeatures
from keras_ctxrep.text.pretraining import Vocabulary, for_sampling, language_model_batch
from keras_ctxrep.training import checkpoints, fit, history, progress, strategy
from tests import tiny

CONFIG = tiny.config("elmo", layers=2)
ONE_LAYER = replace(CONFIG, layers=1)
BUNDLE = Bundle("elmo", "classify", asdict(CONFIG), 8, ("a", "b", "c"), head={"mix": True, "dropout": 0.0})
ADAGRAD = OptimizerSpec(optimizers.Adagrad, {"learning_rate": 0.25}, scheduled=False)
UNTUNED = tf.data.Options()
UNTUNED.autotune.enabled = False  # else an iterator that is collected waits for its tuning thread, up to a minute


def batch(rng, size=8, length=5):
    ids = rng.integers(1, 262, (size, length, 6)).astype(np.int32)
    mask = (np.arange(length) < rng.integers(1, length + 1, (size, 1))).astype(np.int32)
    return {"char_ids": ids * mask[:, :, None], "mask": mask}, {"logits": (ids[:, 0, 0] % 3).astype(np.int32)}


def endless(rng, **kwargs):
    return tf.data.Dataset.from_tensors(batch(rng, **kwargs)).repeat().with_options(UNTUNED)


def linear(classes=3):
    """A model that costs nothing to train."""
    inputs = {"x": keras.Input((4,), name="x")}
    return keras.Model(inputs, {"logits": keras.layers.Dense(classes, name="logits")(inputs["x"])})


@pytest.fixture
def points(rng):
    """Batches for it, endlessly."""
    x = rng.normal(size=(60, 8, 4)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, {"logits": x.argmax(-1) % 3})).repeat().with_options(UNTUNED)


@pytest.mark.trains
def test_fit_learns_and_reports(rng, tmp_path):
    model = saving.build(BUNDLE)
    seen = []
    data = endless(rng)
    history = fit.fit(model, data, data.take(1), steps=60, learning_rate=0.02, evaluations=3, report=seen.append)
    assert seen == history and [entry["step"] for entry in history] == [20, 40, 60]
    assert history[-1]["val_accuracy"] == 1
    assert history[-1]["val_loss"] < 0.1 * history[0]["val_loss"] and history[0]["val_loss"] < 0.7


@pytest.mark.slow  # two trainings
def test_plain_keras_does_as_well(rng):
    """The README says so: nothing but compile and fit."""
    model = saving.build(BUNDLE)
    model.compile(
        "adam", {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}, metrics=["accuracy"]
    )
    inputs, targets = batch(rng)
    losses = model.fit(inputs, targets, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("losses", [1, 2])
def test_a_step_is_traced_once(losses, monkeypatch):
    """The metrics of several losses would be made by the first trace, and TensorFlow would trace again."""
    x = keras.Input((4,), name="x")
    names = ("logits", "other_logits")[:losses]
    model = keras.Model({"x": x}, {name: keras.layers.Dense(3, name=name)(x) for name in names})
    calls = []
    for name in ("train_step", "test_step"):
        step = getattr(model, name)
        monkeypatch.setattr(model, name, lambda data, name=name, step=step: calls.append(name) or step(data))
    targets = dict.fromkeys(names, np.array([0, 1]))
    data = tf.data.Dataset.from_tensors(({"x": np.eye(2, 4, dtype=np.float32)}, targets))
    fit.fit(model, data.repeat(), steps=3)
    assert calls == ["train_step"]
    fit.compile(model).evaluate(data, verbose=0)
    assert calls == ["train_step", "test_step"]


def test_a_loss_of_ones_own_for_several_logits():
    """Its targets may have the shape of the logits."""
    x = keras.Input((4,), name="x")
    names = ("logits", "other_logits")
    model = keras.Model({"x": x}, {name: keras.layers.Dense(3, name=name)(x) for name in names})
    fit.compile(model, keras.optimizers.SGD(), keras.losses.BinaryCrossentropy(from_logits=True))
    data = tf.data.Dataset.from_tensors(({"x": np.eye(2, 4)}, dict.fromkeys(names, np.ones((2, 3)))))
    assert np.isfinite(model.fit(data.repeat(), steps_per_epoch=1, shuffle=False, verbose=0).history["loss"]).all()


def test_the_schedule_warms_up_and_decays(points):
    model = linear()
    rates = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    model_fit = model.fit
    model.fit = lambda *args, callbacks, **kwargs: model_fit(*args, callbacks=[*callbacks, Watch()], **kwargs)
    fit.fit(model, points, steps=40, learning_rate=1.0, warmup=0.25, clip=1e-6)
    assert np.argmax(rates) == 10 and rates[10] == 1.0
    np.testing.assert_allclose(rates[5], 0.5)
    np.testing.assert_allclose(rates[25], 0.5)


def test_factors_of_the_learning_rate(points):
    steps, before = [], linear().get_weights()
    for factors in ({}, {"logits": 0.25}):
        model = linear()
        model.set_weights(before)
        fit.fit(
            model,
            points,
            steps=1,
            warmup=0.0,
            decay="none",
            weight_decay=0.1,
            optimizer=OptimizerSpec(AdamW, {"factors": factors}),
        )
        steps.append([after - weight for after, weight in zip(model.get_weights(), before, strict=True)])
    for plain, slowed in zip(*steps, strict=True):
        np.testing.assert_allclose(slowed, 0.25 * plain, atol=2e-7)


def test_factors_and_starts_in_a_sequential_model():
    """Its weights are called sequential/head/kernel."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1, name="head")])
    optimizer = AdamW(factors={"head": 0.25}, starts={"head": 2})
    optimizer.build(model.trainable_variables)
    assert optimizer._variable_factors == [1.0, 1.0, 0.25, 0.25]
    assert optimizer._variable_starts == [0, 0, 2, 2]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_layer_starts_as_with_a_new_optimizer(rng, sparse):
    """Until then nothing of it changes, and its gradient is not part of the norm."""
    values, draws = rng.normal(size=(2, 3, 2)).astype(np.float32), rng.normal(size=(8, 2, 3, 2)).astype(np.float32)

    def gradient(value):
        return tf.IndexedSlices(tf.constant(value[1:]), tf.constant([1, 2]), (3, 2)) if sparse else tf.constant(value)

    def variables():
        with keras.name_scope("below"):
            below = keras.Variable(values[0], name="kernel")
        with keras.name_scope("above"):
            return below, keras.Variable(values[1], name="kernel")

    below, above = variables()
    assert below.path == "below/kernel"
    optimizer = AdamW(0.01, weight_decay=0.1, clip=1.0, starts={"below": 5})
    optimizer.build([below, above])
    alone_below, alone_above = variables()
    new, old = (AdamW(0.01, weight_decay=0.1, clip=1.0) for _ in range(2))
    for step, (first, second) in enumerate(draws):
        optimizer.apply([gradient(first), gradient(second)], [below, above])
        if step < 5:
            np.testing.assert_array_equal(below, values[0])
            old.apply([gradient(second)], [alone_above])
            np.testing.assert_allclose(above, alone_above, atol=1e-7)
        else:
            clipped, _ = tf.clip_by_global_norm([tf.convert_to_tensor(gradient(g)) for g in (first, second)], 1.0)
            part = [gradient(clipped[0].numpy())]
            new.apply(part, [alone_below])
            np.testing.assert_allclose(below, alone_below, atol=1e-6)
    assert np.abs(below - values[0]).max() > 0.02
    again = AdamW.from_config(optimizer.get_config())
    assert again.starts == {"below": 5}


def test_a_deadline_ends_the_run(points):
    history = fit.fit(linear(), points, minutes=0.02, evaluations=2)
    assert 0.02 <= history[-1]["minutes"] < 0.3


@pytest.mark.trains
def test_the_best_weights_are_kept(rng):
    model = saving.build(BUNDLE)
    data, other = endless(rng), endless(rng)  # other: its labels are not those learned
    history = fit.fit(model, data, other.take(1), steps=200, learning_rate=0.05, evaluations=10)
    best = min(entry["val_loss"] for entry in history)
    assert best < history[-1]["val_loss"]
    metrics = fit.compile(model).evaluate(other.take(1), verbose=0, return_dict=True)
    np.testing.assert_allclose(metrics["loss"], best, rtol=1e-5)


@pytest.mark.skipif(sys.platform == "win32", reason="no fcntl there")
def test_two_runs_in_one_folder(points, tmp_path):
    program = "import sys; from keras_ctxrep.atomic import lock_folder\nwith lock_folder(sys.argv[1]): print(); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "run")], **pipes) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match="run: another process is writing in it; wait for it, or stop it"):
            fit.fit(linear(), points, steps=2, folder=tmp_path / "run")
        other.communicate(b"\n")
    fit.fit(linear(), points, steps=2, folder=tmp_path / "run")  # and again once it has ended
    fit.fit(linear(), points, steps=2, folder=tmp_path / "run")


class Killed(Exception):
    """Ends a run without anything being tidied up."""


def killed_after(model, step):
    """The model, whose training ends so after so many batches."""

    class Kill(keras.callbacks.Callback):
        count = 0

        def on_train_batch_end(self, batch, logs=None):
            self.count += 1
            if self.count == step:
                raise Killed

    model_fit = model.fit
    model.fit = lambda *args, callbacks, **kwargs: model_fit(*args, callbacks=[*callbacks, Kill()], **kwargs)
    return model


@pytest.mark.parametrize("step", [5, 7])
def test_an_interruption_does_not_move_the_evaluations(points, tmp_path, step):
    """Else other weights may be the best ones."""
    options = {"steps": 20, "evaluations": 4, "checkpoint_minutes": 0, "folder": tmp_path}
    with pytest.raises(Killed):
        fit.fit(killed_after(linear(), step), points, points.take(2), **options)
    history = fit.fit(linear(), points, points.take(2), **options)
    assert [entry["step"] for entry in history] == [5, 10, 15, 20]


def test_a_run_that_is_killed_while_it_is_evaluated(points, tmp_path):
    def killed(entry):
        raise Killed

    options = {"steps": 4, "evaluations": 1, "checkpoint_minutes": 0, "folder": tmp_path}
    with pytest.raises(Killed):
        fit.fit(linear(), points, points.take(2), **options, report=killed)
    history = fit.fit(linear(), points, points.take(2), **options)
    assert [entry["step"] for entry in history] == [4]


def scripted(*figures):
    """An evaluation that gives these, one after the other, and the weights it was given."""
    left, seen = iter(figures), []

    def evaluate(model):
        seen.append(model.get_weights())
        return {"metric": next(left), "other": -float(len(seen))}

    return evaluate, seen


def test_a_function_evaluates_and_patience_ends_the_run(points):
    """The first figure counts, and the larger is the better; an equal one is not better."""
    evaluate, seen = scripted(0.1, 0.5, 0.5, 0.4, 0.9)
    model = linear()
    history = fit.fit(model, points, evaluate, steps=20, evaluations=10, patience=2)
    assert [(entry["step"], entry["val_metric"]) for entry in history] == [(2, 0.1), (4, 0.5), (6, 0.5), (8, 0.4)]
    assert history[0]["val_other"] == -1 and "val_loss" not in history[0]
    for first, second in zip(model.get_weights(), seen[1], strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(seen[1][0], seen[3][0])


def test_a_metric_of_which_smaller_is_better(points):
    """Any metric of the function may decide; `patience` counts from the first evaluation."""
    evaluate, seen = scripted(0.0, -0.1, 0.2, 0.4, 0.9)
    model, metric = linear(), fit.Metric("metric", smaller_is_better=True)
    history = fit.fit(model, points, evaluate, metric=metric, steps=20, evaluations=10, patience=2)
    assert [entry["val_metric"] for entry in history] == [0.0, -0.1, 0.2, 0.4]
    for first, second in zip(model.get_weights(), seen[1], strict=True):
        np.testing.assert_array_equal(first, second)
    evaluate, seen = scripted(0.4, 0.2)
    fit.fit(model, points, evaluate, metric=fit.Metric("other"), steps=4, evaluations=2)  # -1, -2
    np.testing.assert_array_equal(model.get_weights()[0], seen[0][0])


def test_options_as_an_object(points):
    """The same run as of the same options as keywords."""
    weights = []
    for options in ({"options": Fit(steps=3, learning_rate=0.1)}, {"steps": 3, "learning_rate": 0.1}):
        keras.utils.set_random_seed(0)
        model = linear()
        fit.fit(model, points, **options)
        weights.append(model.get_weights()[0])
    np.testing.assert_array_equal(*weights)
    assert fit.fit(linear(), points, options=Fit(steps=3), steps=2)[-1]["step"] == 2


def test_an_improvement_resets_the_patience(points):
    evaluate, seen = scripted(0.1, 0.0, 0.2, 0.1, 0.3, 0.2, 0.1)
    history = fit.fit(linear(), points, evaluate, steps=20, evaluations=10, patience=2)
    assert len(history) == len(seen) == 7
    evaluate, _ = scripted(*[0.5] * 10)
    assert len(fit.fit(linear(), points, evaluate, steps=20, evaluations=10)) == 10  # without patience


def test_patience_begins_when_something_has_been_learned(points):
    evaluate, _ = scripted(0.0, -0.1, 0.0, 0.0, 0.2, 0.0, 0.2)
    history = fit.fit(linear(), points, evaluate, steps=20, evaluations=10, patience=2)
    assert [entry["val_metric"] for entry in history] == [0.0, -0.1, 0.0, 0.0, 0.2, 0.0, 0.2]


@pytest.mark.parametrize("step", [5, 7])
def test_patience_outlives_an_interruption(points, tmp_path, step):
    """Killed with one evaluation without a better one, or none yet; after it was over nothing is trained any more."""
    options = {"steps": 20, "evaluations": 10, "patience": 2}
    figures = (0.5, 0.9, 0.3, 0.2, 0.1)

    def make():
        keras.utils.set_random_seed(0)
        return linear()

    undisturbed, model = make(), make()
    expected = fit.fit(undisturbed, points, scripted(*figures)[0], **options)
    folder = {"folder": tmp_path, "checkpoint_minutes": 0}
    with pytest.raises(Killed):
        fit.fit(killed_after(make(), step), points, scripted(*figures)[0], **options, **folder)
    state = json.loads((tmp_path / "checkpoint" / "state.json").read_text())
    assert state["stale"] == (step == 7)
    history = fit.fit(model, points, scripted(*figures[step // 2 :])[0], **options, **folder)
    assert [entry["val_metric"] for entry in history] == [entry["val_metric"] for entry in expected] == [*figures[:4]]
    for first, second in zip(model.get_weights(), undisturbed.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)
    again = make()
    assert fit.fit(again, points, scripted()[0], **options, **folder) == history  # no figure is asked for
    np.testing.assert_array_equal(again.get_weights()[0], undisturbed.get_weights()[0])


@pytest.mark.parametrize(
    ("loss", "target", "expected"),
    [
        (keras.losses.BinaryCrossentropy(from_logits=True), [[1.0, 0.0, 1.0]], np.log(2)),
        (keras.losses.MeanSquaredError(), [[3.0, 0.0, 3.0]], 6.0),
        (lambda y, logits: keras.ops.mean(y, axis=-1), [[3.0, 0.0, 3.0]], 2.0),
        (None, [1], np.log(3)),
    ],
)
def test_losses(loss, target, expected):
    """On logits that are all zero."""
    model = fit.compile(linear(), AdamW(), loss)
    model.set_weights([weight * 0 for weight in model.get_weights()])
    y = {"logits": np.array(target, "int32" if loss is None else "float32")}
    assert model.evaluate({"x": np.ones((1, 4), "float32")}, y, verbose=0) == pytest.approx(expected, rel=1e-5)


def test_an_infinite_loss_says_which_rate_was_too_high(points):
    spoiled = points.map(lambda x, y: ({"x": x["x"] * np.inf}, y))
    with pytest.raises(ValueError, match=r"^step 1: the loss became nan; try a learning rate below 0\.5$"):
        fit.fit(linear(), spoiled, spoiled.take(1), steps=4, learning_rate=0.5)
    with pytest.raises(ValueError, match=r"below 0\.5; its batch is from train\.tsv, seed 3$"):
        fit.fit(linear(), spoiled, steps=4, learning_rate=0.5, source="train.tsv, seed 3")


def test_a_nan_loss_ends_the_run_and_keeps_the_checkpoint(points, tmp_path):
    """Without validation too, and whatever the optimizer."""
    spoiled = points.take(5).concatenate(points.map(lambda x, y: ({"x": x["x"] * np.inf}, y)))
    options = {"folder": tmp_path, "checkpoint_minutes": 0, "evaluations": 4, "steps": 8}
    kept = r"; the checkpoint of step 4 is kept in .*checkpoint$"
    with pytest.raises(ValueError, match=r"^step 6: the loss became nan; try a learning rate below 0\.25" + kept):
        fit.fit(linear(), spoiled, optimizer=ADAGRAD, **options)
    state = json.loads((tmp_path / "checkpoint" / "state.json").read_text())
    assert state["step"] == 4
    model = linear()
    model.load_weights(tmp_path / "checkpoint" / state["weights"], skip_mismatch=True)
    assert np.isfinite(model.get_weights()[0]).all()


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of file sizes there")
def test_a_full_disk_leaves_the_last_checkpoint(points, tmp_path):
    """A limit of the size of files stands for the disk."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    class FullDisk(keras.callbacks.Callback):
        """Between two steps, since HDF5 ends a process whose disk fills while it writes."""

        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))

    def trained(**options):
        keras.utils.set_random_seed(3)
        model = linear()
        fit.fit(model, points, steps=8, evaluations=4, **options)
        return model.get_weights()

    options = {"folder": tmp_path, "checkpoint_minutes": 0}
    try:
        with pytest.raises(OSError, match=r"; the checkpoint of step 4 is kept in .*checkpoint$"):
            trained(**options, callbacks=[FullDisk()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    state = json.loads((tmp_path / "checkpoint" / "state.json").read_text())
    files = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    assert files == sorted(["state.json", state["weights"], state["random"]])
    for weight, value in zip(trained(**options), trained(), strict=True):
        np.testing.assert_array_equal(weight, value)


@pytest.mark.parametrize("kind", [FileNotFoundError, ValueError])
def test_an_error_of_the_data_is_told_as_it_is(kind, points, tmp_path):
    """Not as TensorFlow's, which runs the function that makes the batches; with the checkpoint that is kept."""

    def batches(start):
        yield from points.skip(start).take(5 - start).as_numpy_iterator()
        raise kind("text.txt: it is gone")

    def data(start):
        return tf.data.Dataset.from_generator(lambda: batches(start), output_signature=points.element_spec)

    kept = r"^text\.txt: it is gone; the checkpoint of step 4 is kept in .*checkpoint$"
    with pytest.raises(OSError if kind is FileNotFoundError else ValueError, match=kept):
        fit.fit(linear(), data, steps=8, evaluations=4, folder=tmp_path, checkpoint_minutes=0)


@pytest.mark.trains
def test_a_run_leaves_a_table_and_curves(rng, points, tmp_path, monkeypatch):
    """The curves are drawn at the end, and meanwhile if it takes long; also with columns that some evaluations lack."""
    pytest.importorskip("matplotlib")
    drawn, draw = [], history.draw
    monkeypatch.setattr(history, "draw", lambda folder, entries: drawn.append(len(entries)) or draw(folder, entries))
    keras.utils.set_random_seed(0)
    data = endless(rng)
    entries = fit.fit(saving.build(BUNDLE), data, data.take(1), steps=4, evaluations=2, folder=tmp_path)
    with open(tmp_path / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(value) for name, value in row.items()} for row in rows] == entries
    assert {"step", "loss", "val_loss", "tokens_per_second"} <= set(rows[0]) and float(rows[1]["tokens_per_second"]) > 1
    assert (tmp_path / "history.png").read_bytes()[:4] == b"\x89PNG" and drawn == [2]
    with pytest.raises(Killed):
        fit.fit(killed_after(linear(), 3), points, steps=4, evaluations=2, folder=tmp_path / "killed")
    assert drawn == [2, 1]
    monkeypatch.setattr(progress, "DRAWN_EVERY", 0.0)
    fit.fit(linear(), points, steps=4, evaluations=2, folder=tmp_path / "other")
    assert drawn == [2, 1, 1, 2]
    lacking = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0, "val_f1": 0.5}]
    history.write(tmp_path, lacking)
    assert (tmp_path / "history.csv").read_text().splitlines() == ["step,loss,val_f1", "1,2.0,", "2,1.0,0.5"]
    (tmp_path / "history.png").unlink()
    history.draw(tmp_path, lacking)
    assert tiny.is_png(tmp_path / "history.png")


class StopAt(keras.callbacks.Callback):
    """Asks to stop at a step, at the end of the step or of its epoch."""

    def __init__(self, step, hook):
        super().__init__()
        setattr(self, hook, lambda number, logs=None: setattr(self.model, "stop_training", self.steps() >= step))

    def steps(self):
        return int(self.model.optimizer.iterations)


@pytest.mark.parametrize(
    ("step", "hook", "steps"),
    [
        (7, "on_train_batch_end", [5, 7]),  # within an epoch of 5 steps
        (5, "on_train_batch_end", [5]),
        (10, "on_epoch_end", [5, 10]),
        (8, "on_epoch_end", [5, 10]),
    ],
)
def test_a_callback_ends_the_run(points, tmp_path, step, hook, steps):
    """With an evaluation, whose weights may be the best, and a checkpoint from which nothing is left to be done."""
    evaluate, _ = scripted(0.1, 0.2, 0.3)
    options = {"steps": 20, "evaluations": 4, "folder": tmp_path}
    history = fit.fit(linear(), points, evaluate, callbacks=[StopAt(step, hook)], **options)
    assert [entry["step"] for entry in history] == steps
    assert [entry["val_metric"] for entry in history] == [0.1, 0.2][: len(steps)]


def test_a_callback_sees_the_evaluations_and_ends_a_run_by_minutes(points):
    class Watch(StopAt):
        logs = ()

        def on_epoch_end(self, epoch, logs=None):
            self.logs = (*self.logs, {**logs})

    watch = Watch(30, "on_train_batch_end")
    history = fit.fit(linear(), points, points.take(1), callbacks=[watch], minutes=60, evaluations=1)
    assert [entry["step"] for entry in history] == [30] and "val_loss" in history[0]
    assert len(watch.logs) == 2 and {"loss"} <= {*watch.logs[0]}


def test_a_whole_number_as_the_learning_rate(points):
    """Keras' optimizers take none."""
    model = linear()
    fit.fit(model, points, steps=1, warmup=0.0, learning_rate=1, decay="none")
    assert float(model.optimizer.learning_rate) == 1.0


def test_a_run_says_where_it_resumes(points, tmp_path, capsys):
    options = {"steps": 6, "folder": tmp_path, "checkpoint_minutes": 0}
    with pytest.raises(Killed):
        fit.fit(killed_after(linear(), 3), points, **options)
    assert "resuming" not in capsys.readouterr().err
    fit.fit(linear(), points, **options)
    assert capsys.readouterr().err == "resuming from step 2 of 6\n"


def test_the_time_left_is_that_of_steps_that_were_measured(points, monkeypatch, capsys):
    """The first step is traced, and so is the third, of a new length: a minute each, where others take a second."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress, "HALF_MINUTE", 0.0)

    class Steps(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            clock.now += 60 if int(self.model.optimizer.iterations) in (0, 2) else 1

    fit.fit(linear(), points, steps=10, callbacks=[Steps()])
    lines = capsys.readouterr().err.splitlines()
    assert [" left" in line for line in lines] == [False] * 3 + [True] * 7
    assert lines[0].endswith(", 1.0 min")
    assert [line.split(", ")[-1] for line in lines[3:]] == [
        f"at most {(10 - step) / 60:.1f} min of training left" for step in range(4, 11)
    ]


def test_the_time_left_does_not_count_the_first_step_of_a_size(monkeypatch, capsys):
    """Three sizes, each compiled in a minute, then a second for each row; an evaluation of 100 s; pauses of 2 s."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress, "HALF_MINUTE", 0.0)
    inputs = {"mask": keras.Input((1,), dtype="int32", name="mask")}
    model = Model(inputs, {"logits": keras.layers.Dense(2, name="logits")(inputs["mask"])})
    sizes = [1, 2, 3] * 20

    def batches():
        for size in sizes:
            yield {"mask": np.ones((size, 1), np.int32)}, {"logits": np.zeros(size, np.int32)}

    shapes = {"mask": tf.TensorSpec([None, 1], tf.int32)}, {"logits": tf.TensorSpec([None], tf.int32)}
    data = tf.data.Dataset.from_generator(batches, output_signature=shapes).with_options(UNTUNED)

    class Steps(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            step = int(self.model.optimizer.iterations)
            clock.now += 60 if step < 3 else sizes[step]

        def on_epoch_end(self, epoch, logs=None):
            clock.now += 2

    def evaluate(model):
        clock.now += 100
        return {"accuracy": 1.0}

    fit.fit(model, data, evaluate, steps=40, evaluations=2, callbacks=[Steps()])
    lines = [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line.startswith("at most") for line in lines] == [False] * 5 + [True] * 35
    assert lines[5] == f"at most {34 * 2 / 60:.1f} min of training left beside evaluations"
    assert lines[20] == f"at most {(19 * (2 + 2 / 21) + 100 * 19 / 20) / 60:.1f} min of training left"
    assert lines[-1] == "at most 0.0 min of training left"


def test_a_function_from_the_number_of_batches(points, tmp_path):
    """Called with where the run is, so that nothing has to be skipped."""
    starts = []

    def data(start):
        starts.append(start)
        return points.skip(start)

    with pytest.raises(Killed):
        fit.fit(killed_after(linear(), 3), data, steps=6, folder=tmp_path, checkpoint_minutes=0)
    model = linear()
    fit.fit(model, data, steps=6, folder=tmp_path, checkpoint_minutes=0)
    assert starts == [0, 2]  # the third batch was not in a checkpoint yet


def test_a_killed_run_resumes_to_the_same_weights(points, tmp_path):
    """Killed twice, with dropout: the random states are in the checkpoint."""

    def make():
        keras.utils.set_random_seed(3)
        inputs = {"x": keras.Input((4,), name="x")}
        x = keras.layers.Dropout(0.5)(keras.layers.Dense(16, "relu", name="hidden")(inputs["x"]))
        return keras.Model(inputs, {"logits": keras.layers.Dense(3, name="logits")(x)})

    undisturbed, last = make(), make()
    fit.fit(undisturbed, points, steps=20)
    for step in (7, 4):
        with pytest.raises(Killed):
            fit.fit(killed_after(make(), step), points, steps=20, folder=tmp_path, checkpoint_minutes=0)
    fit.fit(last, points, steps=20, folder=tmp_path)
    for expected, actual in zip(undisturbed.get_weights(), last.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert (tmp_path / "checkpoint" / "state.json").exists()
    checkpoints.remove(tmp_path)
    assert not (tmp_path / "checkpoint").exists()


def interrupted_at(model, point, count, monkeypatch):
    """The model, whose training is interrupted as by Ctrl-C when it comes to a point the nth time.

    A point is a callback, before ("<") or after (">") those of `train.fit`, "step" before or after a batch was trained
    on, an "evaluation", or the "write" of a checkpoint.
    """
    left = [count]

    def interrupt(*_, **__):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    name, before = point.rstrip("<>"), point.endswith("<")

    def around(function):
        def run(*args, **kwargs):
            if before:
                interrupt()
            result = function(*args, **kwargs)
            if not before:
                interrupt()
            return result

        return run

    if name == "step":
        make = model.make_train_function

        def make_train_function(force=False):
            make(force)
            if not hasattr(model.train_function, "around"):
                model.train_function = around(model.train_function)
                model.train_function.around = True

        model.make_train_function = make_train_function
    elif name == "write":
        monkeypatch.setattr(np, "savez", around(np.savez))
    elif name != "evaluation":
        fit, callback = model.fit, keras.callbacks.Callback()
        setattr(callback, name, interrupt)
        model.fit = lambda *args, callbacks, **kwargs: fit(
            *args, callbacks=[callback, *callbacks] if before else [*callbacks, callback], **kwargs
        )
    return model, interrupt if name == "evaluation" else lambda: None


@pytest.fixture(scope="module")
def undisturbed():
    """Weights and history of runs that were not interrupted, by what they are called."""
    return {}


@pytest.mark.trains
@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("on_train_begin<", 1),
        ("on_epoch_begin>", 2),
        ("on_train_batch_begin<", 1),
        ("on_train_batch_begin>", 5),
        ("step<", 4),
        ("step>", 1),
        ("step>", 5),
        ("step>", 6),
        ("on_train_batch_end<", 5),
        ("on_train_batch_end>", 6),
        ("on_epoch_end<", 2),
        ("evaluation", 1),
        ("evaluation", 2),
        ("evaluation", 4),
        ("on_epoch_end>", 2),
        ("on_epoch_end>", 4),
        ("write<", 2),
        ("write>", 4),
    ],
)
def test_an_interrupted_run_resumes_to_the_result_of_an_undisturbed_one(
    points, tmp_path, monkeypatch, undisturbed, point, count
):
    """Ctrl-C at any point: the same weights and the same evaluations, with dropout and a best one in the middle."""

    def make():
        keras.utils.set_random_seed(3)
        inputs = {"x": keras.Input((4,), name="x")}
        x = keras.layers.Dropout(0.5)(keras.layers.Dense(4, "relu", name="hidden")(inputs["x"]))
        return keras.Model(inputs, {"logits": keras.layers.Dense(3, name="logits")(x)})

    figures = {3: 0.1, 6: 0.5, 9: 0.4, 12: 0.3}
    options = {"steps": 12, "evaluations": 4, "learning_rate": 0.01}

    def run(model, interrupt=lambda: None, **more):
        def evaluate(_):
            interrupt()
            return {"metric": figures[int(model.optimizer.iterations)]}

        return fit.fit(model, points, evaluate, **options, **more)

    if not undisturbed:
        model = make()
        undisturbed.update(history=run(model), weights=model.get_weights())
    last = make()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        run(*interrupted_at(make(), point, count, patch), folder=tmp_path, checkpoint_minutes=0)
    history = run(last, folder=tmp_path)
    for expected_weight, weight in zip(undisturbed["weights"], last.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected_weight)
    for entry, expected_entry in zip(history, undisturbed["history"], strict=True):
        assert entry.keys() == expected_entry.keys()
        assert all(entry[name] == pytest.approx(expected_entry[name], rel=1e-6) for name in entry if name != "minutes")


@pytest.mark.parametrize("name", ["notes.txt", "step-3.weights.h5", "state.json"])
def test_a_folder_called_checkpoint_keeps_what_the_run_did_not_write(points, tmp_path, name):
    (tmp_path / "checkpoint" / "mine").mkdir(parents=True)
    (tmp_path / "checkpoint" / name).write_text('{"epoch": 3}')
    options = {"steps": 2, "folder": tmp_path, "checkpoint_minutes": 0}
    if name == "state.json":
        with pytest.raises(ValueError, match=r"state\.json: not a checkpoint of this version: move it away"):
            fit.fit(linear(), points, **options)
    else:
        fit.fit(linear(), points, **options)
    saving.save(tmp_path, saving.build(BUNDLE), BUNDLE)
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == sorted(["mine", name])
    assert (tmp_path / "checkpoint" / name).read_text() == '{"epoch": 3}'


def test_a_checkpoint_of_another_run_is_refused(points, tmp_path):
    fit.fit(linear(), points, steps=2, folder=tmp_path, identity="one")
    with pytest.raises(ValueError, match="holds a checkpoint of a run with other text or settings"):
        fit.fit(linear(), points, steps=4, folder=tmp_path, identity="two")


def test_a_checkpoint_of_another_model_is_refused(points, tmp_path):
    fit.fit(linear(), points, steps=2, folder=tmp_path)
    with pytest.raises(ValueError, match="holds a checkpoint of another model"):
        fit.fit(linear(classes=5), points, steps=4, folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give one of the two"),
        ({"steps": 1, "minutes": 1.0}, "give one of the two"),
        ({"steps": 0}, "steps=0: must be above 0"),
        ({"steps": 1, "learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"steps": 1, "warmup": 1.5}, "warmup=1.5"),
    ],
)
def test_bad_arguments(rng, arguments, message):
    with pytest.raises(ValueError, match=message):
        fit.fit(saving.build(BUNDLE), endless(rng), **arguments)


@pytest.mark.trains
def test_tensorboard_logs(points, tmp_path):
    pytest.importorskip("tensorboard")
    fit.fit(saving.build(BUNDLE), endless(np.random.default_rng(0)), steps=4, evaluations=2, tensorboard=tmp_path)
    tags = set()
    for path in tmp_path.rglob("events*"):
        for record in tf.data.TFRecordDataset(str(path)):
            tags |= {value.tag for value in event_pb2.Event.FromString(record.numpy()).summary.value}
    assert {"scalar_mix/weights", "scalar_mix/layer_2", "epoch_loss", "epoch_tokens_per_second"} <= tags


@pytest.mark.trains
def test_mixed_precision(rng):
    with strategy.scope("mixed_bfloat16"):
        model = saving.build(BUNDLE)
    assert keras.mixed_precision.dtype_policy().name == "float32"  # as it was before
    assert model.get_layer("forward_0").compute_dtype == "bfloat16"
    data = endless(rng)
    history = fit.fit(model, data, data.take(1), steps=60, learning_rate=0.02)
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    assert model(batch(rng)[0])["logits"].dtype == tf.float32


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_model_folders(family, rng, tmp_path):
    if family == "elmo":
        language_model = Bundle("elmo", "language_model", asdict(CONFIG), 8, vocab=("<S>", "</S>", "<UNK>", "x"))
        inputs = batch(rng)[0]
    else:
        config = tiny.config(vocabulary_size=9, layers=2)
        vocab = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d")
        language_model = Bundle("bert", "pretrainer", asdict(config), 8, vocab=vocab)
        ids = rng.integers(0, 9, (2, 5)).astype(np.int32)
        inputs = {"token_ids": ids, "segment_ids": ids * 0, "mask": ids * 0 + 1, "mlm_positions": ids[:, :2] % 5}
    model = saving.build(language_model)
    fit.compile(model, AdamW())
    saving.save(tmp_path, model, language_model)
    loaded, bundle = saving.load(tmp_path)
    expected = model(inputs)
    for name, tensor in loaded(inputs).items():
        np.testing.assert_array_equal(tensor, expected[name])
    assert bundle.vocab == language_model.vocab and bundle.versions["keras"] == keras.__version__
    with h5py.File(tmp_path / "model.weights.h5") as file:
        assert "layers" in file and "optimizer" not in file

    encoder, embed = saving.load_encoder(tmp_path)
    layer = "char_cnn" if family == "elmo" else "layer_1"
    for weight, other in zip(encoder.get_layer(layer).weights, model.get_layer(layer).weights, strict=True):
        np.testing.assert_array_equal(weight, other)
    assert embed.task == "embed"

    (tmp_path / "model.weights.h5").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"model\.weights\.h5 is not the file"):
        saving.load(tmp_path)


def test_load_of_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(ValueError, match=r"no bundle\.json in it"):
        saving.load(tmp_path)


def clipped(gradients, limit):
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
    return [gradient * min(1, limit / norm) for gradient in gradients]


def test_adagrad_by_hand(rng):
    """a += g^2 from 1, no epsilon; the norm of the scaled gradient is clipped, in the second step only."""
    values = [rng.normal(size=(3, 2)), rng.normal(size=5)]
    variables = [keras.Variable(value) for value in values]
    optimizer = optimizers.Adagrad(0.2, clip=3.0, gradient_scale=10.0)
    optimizer.build(variables)
    accumulators = [np.ones_like(value) for value in values]
    for size in (0.01, 1.0, 0.02):
        gradients = [size * rng.normal(size=value.shape) for value in values]
        optimizer.apply([tf.constant(gradient, tf.float32) for gradient in gradients], variables)
        for value, a, gradient in zip(values, accumulators, clipped([10 * g for g in gradients], 3.0), strict=True):
            a += gradient**2
            value -= 0.2 * gradient / np.sqrt(a)
        for value, variable in zip(values, variables, strict=True):
            np.testing.assert_allclose(variable, value, rtol=1e-5)
    again = optimizers.Adagrad.from_config(optimizer.get_config())
    assert (again.clip, again.gradient_scale, again.epsilon, again.initial_accumulator_value) == (3.0, 10.0, 0.0, 1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdamW(0.1, weight_decay=0.0, clip=0.5),
        lambda: AdamW(0.1, weight_decay=0.5, clip=0.5),
        lambda: optimizers.Adagrad(0.1, clip=0.5, gradient_scale=3.0),
    ],
    ids=["adam", "adamw", "adagrad"],
)
def test_gradients_of_some_rows(rng, make):
    """In the first step what a dense gradient does; afterwards the other rows, and what is known of them, stay."""
    value, values = rng.normal(size=(6, 3)).astype(np.float32), rng.normal(size=(4, 3)).astype(np.float32)
    rows = np.array([4, 1, 4, 2])
    dense = np.zeros((6, 3), np.float32)
    np.add.at(dense, rows, values)
    some, all_rows = (keras.Variable(value) for _ in range(2))
    first, second = make(), make()
    for optimizer, variable, gradient in (
        (first, some, tf.IndexedSlices(tf.constant(values), tf.constant(rows), (6, 3))),
        (second, all_rows, tf.constant(dense)),
    ):
        optimizer.build([variable])
        optimizer.apply([gradient], [variable])
    expected = all_rows.numpy()
    if first.weight_decay:  # of the other rows too, if the gradient is dense
        np.testing.assert_allclose(expected[[0, 3, 5]], value[[0, 3, 5]] * (1 - 0.1 * 0.5), rtol=1e-5)
        expected[[0, 3, 5]] = value[[0, 3, 5]]
    np.testing.assert_allclose(some, expected, atol=5e-6)
    assert (np.abs(some - value).max(1) > 0).tolist() == [False, True, True, False, True, False]
    slots = [slot for slot in first.variables if slot.shape == (6, 3)]
    for slot, other in zip(slots, [slot for slot in second.variables if slot.shape == (6, 3)], strict=True):
        np.testing.assert_allclose(slot, other, rtol=1e-4)
    before = [array.numpy() for array in (some, *slots)]
    first.apply([tf.IndexedSlices(tf.ones((1, 3)), tf.constant([0]), (6, 3))], [some])
    for old, array in zip(before, (some, *slots), strict=True):
        assert (np.abs(array - old).max(1) > 0).tolist() == [True, False, False, False, False, False]
    assert slots


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adamw_is_the_one_of_keras(rng, amsgrad):
    values = {"kernel": rng.normal(size=(3, 4)).astype(np.float32), "bias": rng.normal(size=4).astype(np.float32)}
    theirs = keras.optimizers.AdamW(0.01, weight_decay=0.1, amsgrad=amsgrad)
    theirs.exclude_from_weight_decay(var_names=["bias"])
    result = []
    for optimizer in (AdamW(0.01, weight_decay=0.1, clip=1e9, amsgrad=amsgrad), theirs):
        variables = [keras.Variable(value, name=name) for name, value in values.items()]
        draw = np.random.default_rng(1)
        for _ in range(20):
            optimizer.apply([tf.constant(draw.normal(size=v.shape), tf.float32) for v in variables], variables)
        result.append([variable.numpy() for variable in [*variables, *optimizer.variables[2:]]])
    for first, second in zip(*result, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)
    assert all(np.abs(entry - start).max() > 0.01 for entry, start in zip(result[0], values.values(), strict=False))


def test_lamb_by_hand(rng):
    """Algorithm 2 of the paper, in float64; neither biases nor a kernel that is zero have a ratio."""
    values = {"kernel": 3 * rng.normal(size=(3, 4)), "bias": rng.normal(size=4), "empty/kernel": np.zeros((2, 2))}
    variables = [keras.Variable(value, name=name.rpartition("/")[2]) for name, value in values.items()]
    optimizer = optimizers.LAMB(0.02, weight_decay=0.1, clip=2.5)
    optimizer.build(variables)
    m, v = ([np.zeros_like(value) for value in values.values()] for _ in range(2))
    ratios = []
    for time, size in enumerate((0.01, 1.0, 3.0, 0.1, 0.5), 1):
        gradients = [size * rng.normal(size=value.shape) for value in values.values()]
        optimizer.apply([tf.constant(gradient, tf.float32) for gradient in gradients], variables)
        for index, (name, gradient) in enumerate(zip(values, clipped(gradients, 2.5), strict=True)):
            m[index] = 0.9 * m[index] + 0.1 * gradient
            v[index] = 0.999 * v[index] + 0.001 * gradient**2
            step = m[index] / (1 - 0.9**time) / (np.sqrt(v[index] / (1 - 0.999**time)) + 1e-6)
            ratio = 1.0
            if name != "bias":
                step += 0.1 * values[name]
                ratio = np.linalg.norm(values[name]) / np.linalg.norm(step) if values[name].any() else 1.0
            ratios.append(ratio)
            values[name] = values[name] - 0.02 * ratio * step
        for value, variable in zip(values.values(), variables, strict=True):
            np.testing.assert_allclose(variable, value, rtol=1e-6, atol=1e-6)
    assert max(ratios) > 2 and min(ratios) < 0.1
    again = optimizers.LAMB.from_config(optimizer.get_config())
    assert (again.clip, again.weight_decay, again.epsilon) == (2.5, 0.1, 1e-6)


def test_lamb_of_all_rows_is_that_of_the_table(rng):
    value, gradients = rng.normal(size=(3, 2)), rng.normal(size=(4, 3, 2)).astype(np.float32)
    tables = [keras.Variable(value, name="kernel") for _ in range(2)]
    dense, by_rows = optimizers.LAMB(0.1), optimizers.LAMB(0.1)
    for gradient in gradients:
        dense.apply([tf.constant(gradient)], tables[:1])
        by_rows.apply([tf.IndexedSlices(tf.constant(gradient[::-1]), tf.constant([2, 1, 0]), (3, 2))], tables[1:])
    np.testing.assert_allclose(*tables, atol=1e-6)
    before = tables[1].numpy()
    by_rows.apply([tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1]), (3, 2))], tables[1:])
    assert (np.abs(tables[1] - before).max(1) > 0).tolist() == [False, True, False]
    moved, mean, size = np.linalg.norm(tables[1] - before), np.linalg.norm(before[1]), 0.1
    assert moved == pytest.approx(size * mean, rel=1e-5)


def test_lamb_is_scheduled(points):
    """Given as a class it has the rates of AdamW; that of the last step is an eighth of the peak."""
    model = linear()
    before = model.get_weights()
    fit.fit(model, points, steps=10, learning_rate=0.5, warmup=0.2, optimizer=OptimizerSpec(optimizers.LAMB))
    assert isinstance(model.optimizer, optimizers.LAMB)
    assert float(model.optimizer.learning_rate.numpy()) == pytest.approx(0.5 * 0.125)
    assert not np.array_equal(before[0], model.get_weights()[0])


def test_repeated_rows_count_once_in_the_norm():
    variable, optimizer = keras.Variable(np.zeros((2, 1), "float32")), optimizers.Adagrad(1.0, clip=1.0)
    optimizer.build([variable])
    rows = tf.IndexedSlices(tf.constant([[3.0], [1.0]]), tf.constant([1, 1]), (2, 1))
    optimizer.apply([rows], [variable])  # 4, clipped to 1; the squares of its parts would give 4 / sqrt(10)
    np.testing.assert_allclose(variable, [[0.0], [-1 / np.sqrt(2)]], rtol=1e-6)


@pytest.mark.parametrize("make", [AdamW, optimizers.Adagrad, optimizers.LAMB])
def test_a_step_of_a_sampled_softmax_leaves_the_other_words_alone(rng, make):
    """No decay of the weights, either."""
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *(f"w{number}" for number in range(97))])
    model = elmo.language_model(ONE_LAYER, len(vocabulary), samples=3)
    softmax = model.get_layer("softmax")
    softmax.bias.assign(rng.normal(size=100))
    before = softmax.get_weights()
    fit.compile(model, make(0.01))
    model.run_eagerly = True
    features = CharacterFeatures(max_characters=6)
    given = for_sampling(*language_model_batch(features, vocabulary, features.encode(["w5 w90"])))
    model.train_on_batch(*given)
    for weight, old in zip(softmax.weights, before, strict=True):
        moved = set(np.flatnonzero(np.abs(weight - old).reshape(100, -1).max(1)))
        assert {0, 1, 8, 93} <= moved and len(moved) <= 4 + 2 * 3  # <S>, </S>, both words and two draws of three


@pytest.mark.trains
def test_an_eval_model_is_given_the_weights_of_the_model(rng):
    """The full softmax over whole sentences evaluates a sampled one."""
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *"abcdef"])
    features = CharacterFeatures(max_characters=6)
    batch = language_model_batch(features, vocabulary, features.encode(["a b c", "d e", "f"]))
    model, eval_model = (elmo.language_model(ONE_LAYER, 9, samples) for samples in (5, None))
    data, valid = (tf.data.Dataset.from_tensors(part) for part in (for_sampling(*batch), batch))
    history = fit.fit(model, data.repeat(), valid, eval_model=eval_model, steps=40, learning_rate=0.02, evaluations=2)
    assert history[-1]["val_loss"] < history[0]["val_loss"] < np.log(9)
    again = elmo.language_model(ONE_LAYER, 9)
    copy_weights(model, again)
    metrics = fit.compile(again).evaluate(valid, verbose=0, return_dict=True)
    np.testing.assert_allclose(metrics["loss"], min(entry["val_loss"] for entry in history), rtol=1e-5)


def test_another_optimizer_keeps_its_rate(points):
    model, rates = linear(), []
    model_fit = model.fit

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    model.fit = lambda *args, callbacks, **kwargs: model_fit(*args, callbacks=[*callbacks, Watch()], **kwargs)
    fit.fit(model, points, steps=8, optimizer=ADAGRAD)
    assert rates == [0.25] * 8


def test_both_private_hooks_of_keras_are_called_in_a_step_of_fit(points):
    """Were one renamed, gradients would not be clipped, or weights decay twice, without a word."""
    for optimizer in (AdamW(clip=1e-3), optimizers.Adagrad(clip=1e-3), optimizers.LAMB(clip=1e-3)):
        model = fit.compile(linear(), optimizer)
        model.fit(points, steps_per_epoch=1, shuffle=False, verbose=0)
        assert min(optimizer._hook_calls.values()) >= 1 and len(optimizer._hook_calls) == 2


def test_variables_share_what_is_the_same_in_a_step(monkeypatch):
    """The powers of the decays are computed once, and the steps are those of an optimizer that shares nothing."""
    values, gradients = [np.full(3, k + 1.0, "float32") for k in range(4)], [tf.fill([3], 0.1 * k) for k in range(4)]

    def trained():
        variables, optimizer = [*map(keras.Variable, values)], AdamW(0.1, starts={"a": 1})
        optimizer.build(variables)

        @tf.function(autograph=False)
        def step():
            optimizer.apply(gradients, variables)

        for _ in range(3):
            step()
        graph = step.get_concrete_function().graph
        return [variable.numpy() for variable in variables], sum(node.type == "Pow" for node in graph.get_operations())

    shared, powers = trained()
    monkeypatch.setattr(optimizers, "_once_a_step", lambda name, make: make())
    alone, powers_alone = trained()
    assert (powers, powers_alone) == (2, 8)
    np.testing.assert_array_equal(shared, alone)


@pytest.mark.parametrize("make", [AdamW, optimizers.Adagrad, optimizers.LAMB])
@pytest.mark.parametrize("hook", optimizers._HOOKS)
def test_a_keras_without_a_hook_or_that_does_not_call_it(make, hook, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(optimizers, "_HOOKS", (hook, "_renamed"))
        with pytest.raises(RuntimeError, match=r"Keras [\d.]+ has no Optimizer\._renamed, without which"):
            make()
    variable, optimizer = keras.Variable(np.zeros(2, "float32")), make()
    monkeypatch.setattr(type(optimizer), hook, getattr(keras.optimizers.Optimizer, hook))  # ours is never called
    with pytest.raises(RuntimeError, match=rf"does not call Optimizer\.{hook}, without which"):
        optimizer.apply([tf.ones(2)], [variable])
