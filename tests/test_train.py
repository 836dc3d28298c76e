import json
import subprocess
import sys
from dataclasses import asdict, replace

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import train
from keras_ctxrep.models import bert, elmo
from keras_ctxrep.text.bundle import Bundle

CONFIG = elmo.Config(8, 4, filters=((1, 4), (2, 6)), embedding_dim=3, highways=1, max_characters=6, dropout=0.0)
BUNDLE = Bundle("elmo", "classify", asdict(CONFIG), 8, ("a", "b", "c"), head={"mix": True, "dropout": 0.0})


def batch(rng, size=8, length=5):
    ids = rng.integers(1, 262, (size, length, 6)).astype(np.int32)
    mask = (np.arange(length) < rng.integers(1, length + 1, (size, 1))).astype(np.int32)
    return {"char_ids": ids * mask[:, :, None], "mask": mask}, {"logits": (ids[:, 0, 0] % 3).astype(np.int32)}


def endless(rng, **kwargs):
    return tf.data.Dataset.from_tensors(batch(rng, **kwargs)).repeat()


def test_fit_learns_and_reports(rng, tmp_path):
    model = train.build(BUNDLE)
    seen = []
    data = endless(rng)
    history = train.fit(model, data, data.take(1), steps=60, learning_rate=0.02, evaluations=3, report=seen.append)
    assert seen == history and [entry["step"] for entry in history] == [20, 40, 60]
    assert history[-1]["val_accuracy"] > history[0]["val_accuracy"] or history[0]["val_accuracy"] == 1
    assert history[-1]["val_loss"] < 0.7


def test_plain_keras_does_as_well(rng):
    """The README says so: nothing but compile and fit."""
    model = train.build(BUNDLE)
    model.compile(
        "adam", {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}, metrics=["accuracy"]
    )
    inputs, targets = batch(rng)
    losses = model.fit(inputs, targets, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_the_schedule_warms_up_and_decays(rng):
    model = train.build(BUNDLE)
    rates = []
    data = endless(rng)

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    fit = model.fit
    model.fit = lambda *args, callbacks, **kwargs: fit(*args, callbacks=[*callbacks, Watch()], **kwargs)
    train.fit(model, data, steps=40, learning_rate=1.0, warmup=0.25, clip=1e-6)
    assert np.argmax(rates) == 10 and rates[10] == 1.0
    np.testing.assert_allclose(rates[5], 0.5)
    np.testing.assert_allclose(rates[25], 0.5)


def test_a_deadline_ends_the_run(rng):
    history = train.fit(train.build(BUNDLE), endless(rng), minutes=0.02, evaluations=2)
    assert 0.02 <= history[-1]["minutes"] < 0.3


def test_the_best_weights_are_kept(rng):
    model = train.build(BUNDLE)
    data, other = endless(rng), endless(rng)  # other: its labels are not those learned
    history = train.fit(model, data, other.take(1), steps=200, learning_rate=0.05, evaluations=10)
    best = min(entry["val_loss"] for entry in history)
    assert best < history[-1]["val_loss"]
    found = train.compile(model).evaluate(other.take(1), verbose=0, return_dict=True)
    np.testing.assert_allclose(found["loss"], best, rtol=1e-5)


def test_a_killed_run_goes_on_to_the_same_weights(rng, tmp_path):
    """No dropout here, so an undisturbed run and one that was killed twice end alike."""

    class Killed(Exception):
        pass

    def run(folder, kills):
        keras.utils.set_random_seed(1)
        model = train.build(BUNDLE)
        fit = model.fit

        class Kill(keras.callbacks.Callback):
            count = 0

            def on_train_batch_end(self, batch, logs=None):
                Kill.count += 1
                if kills and Kill.count == kills[0]:
                    raise Killed

        model.fit = lambda *args, callbacks, **kwargs: fit(*args, callbacks=[*callbacks, Kill()], **kwargs)
        try:
            train.fit(model, stream, stream.take(1), steps=50, folder=folder, checkpoint_minutes=0)
        except Killed:
            return run(folder, kills[1:])
        return model

    batches = [batch(np.random.default_rng(i)) for i in range(50)]
    stream = tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda *x: np.stack(x), *batches)).repeat()
    one, other = run(tmp_path / "one", []), run(tmp_path / "other", [13, 19])
    for expected, found in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (tmp_path / "other" / "checkpoint" / "state.json").exists()
    train.save(tmp_path / "other", other, BUNDLE)
    assert not (tmp_path / "other" / "checkpoint").exists()


def test_a_checkpoint_of_another_model_is_refused(rng, tmp_path):
    train.fit(train.build(BUNDLE), endless(rng), steps=2, folder=tmp_path)
    larger = replace(BUNDLE, config=asdict(replace(CONFIG, cells=16)))
    with pytest.raises(ValueError, match="holds a checkpoint of another model"):
        train.fit(train.build(larger), endless(rng), steps=4, folder=tmp_path)


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
        train.fit(train.build(BUNDLE), endless(rng), **arguments)


def test_tensorboard_logs(rng, tmp_path):
    pytest.importorskip("tensorboard")
    train.fit(train.build(BUNDLE), endless(rng), steps=4, tensorboard=tmp_path)
    assert list(tmp_path.rglob("events*"))


def test_mixed_precision(rng):
    with train.scope("mixed_bfloat16"):
        model = train.build(BUNDLE)
    assert keras.mixed_precision.dtype_policy().name == "float32"  # as it was before
    assert model.get_layer("forward_0").compute_dtype == "bfloat16"
    data = endless(rng)
    history = train.fit(model, data, data.take(1), steps=60, learning_rate=0.02)
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    assert model(batch(rng)[0])["logits"].dtype == tf.float32


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_model_folders(family, rng, tmp_path):
    if family == "elmo":
        language_model = Bundle("elmo", "language_model", asdict(CONFIG), 8, vocab=("<S>", "</S>", "<UNK>", "x"))
        inputs = batch(rng)[0]
    else:
        config = bert.Config(9, 2, 8, 2, 16, 12)
        vocab = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d")
        language_model = Bundle("bert", "pretrainer", asdict(config), 8, vocab=vocab)
        ids = rng.integers(0, 9, (2, 5)).astype(np.int32)
        inputs = {"token_ids": ids, "segment_ids": ids * 0, "mask": ids * 0 + 1, "mlm_positions": ids[:, :2] % 5}
    model = train.build(language_model)
    train.compile(model, train.AdamW())
    train.save(tmp_path, model, language_model)
    found, bundle = train.load(tmp_path)
    expected = model(inputs)
    for name, tensor in found(inputs).items():
        np.testing.assert_array_equal(tensor, expected[name])
    assert bundle.vocab == language_model.vocab and bundle.versions["keras"] == keras.__version__
    with h5py.File(tmp_path / "model.weights.h5") as file:
        assert "layers" in file and "optimizer" not in file

    encoder, embed = train.load_encoder(tmp_path)
    layer = "char_cnn" if family == "elmo" else "layer_1"
    for one, other in zip(encoder.get_layer(layer).weights, model.get_layer(layer).weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert embed.task == "embed"

    (tmp_path / "model.weights.h5").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"model\.weights\.h5 is not the file"):
        train.load(tmp_path)


def test_load_names_a_folder_that_is_none(tmp_path):
    with pytest.raises(ValueError, match=r"no bundle\.json in it"):
        train.load(tmp_path)


MIRRORED = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from keras_ctxrep import train
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import CharacterFeatures
from keras_ctxrep.text.pretraining import Vocabulary, language_model_batch
from keras_ctxrep import pipeline

bundle = Bundle(vocab=("<S>", "</S>", "<UNK>", *"abcdefgh"), **json.loads(sys.argv[1]))
features, vocabulary = CharacterFeatures(8, 6), Vocabulary(bundle.vocab)
rng = np.random.default_rng(0)
rows = features.encode([" ".join("abcdefgh"[: rng.integers(1, 8)]) for _ in range(64)])
collate = lambda rows, rng: language_model_batch(features, vocabulary, rows)
data = pipeline.dataset(rows, collate, 8, seed=0, repeat=True)
results = []
for devices in (["CPU:0"], ["CPU:0", "CPU:1"]):
    keras.utils.set_random_seed(0)
    with train.scope(devices=devices) as strategy:
        model = train.build(bundle)
    history = train.fit(model, data, data.take(2), steps=40, learning_rate=0.01, evaluations=4)
    results.append([strategy.num_replicas_in_sync, [e["val_loss"] for e in history]])
with strategy.scope():  # of two replicas
    variable, optimizer = keras.Variable(np.ones(4, "float32")), train.AdamW(clip=0.5)
    optimizer.build([variable])
strategy.run(tf.function(lambda: optimizer.apply([tf.ones(4)], [variable])))
results.append(float(tf.norm(optimizer._momentums[0].value)) / 0.1)  # a tenth of the clipped gradient
print(json.dumps(results))
"""


def test_two_replicas_train_as_one(tmp_path):
    """Language-model losses with unequal lengths, and the clipped norm; a process of its own, as strategies need."""
    config = asdict(CONFIG)
    argument = json.dumps({"family": "elmo", "task": "language_model", "config": config, "max_length": 8})
    found = subprocess.run([sys.executable, "-c", MIRRORED, argument], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
    (one, single), (two, mirrored), norm = json.loads(found.stdout.splitlines()[-1])
    assert (one, two) == (1, 2)
    assert len(single) == 4 and single[-1] < single[0] - 0.05
    np.testing.assert_allclose(mirrored, single, atol=1e-4)
    np.testing.assert_allclose(norm, 0.5, rtol=1e-5)  # 1.0 if each replica's part were clipped
