"""Vectors of texts: reading, losses against NumPy, replicas and parts of a batch, metrics, training, every engine."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp
from scipy.stats import spearmanr

import keras_ctxrep as ctx
from keras_ctxrep import losses, recipes, saving, tasks
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models.model import Model
from keras_ctxrep.recipes import targets
from keras_ctxrep.tasks.similar import Pair
from tests import tiny

TASK = tasks.get("similar")
SCORED = [Pair("the cat", "a cat", 5.0), Pair("rain fell", "she a b", 0.0), Pair("cat rain", "rain", 3.0)] * 4
POSITIVE = [Pair("a b", "a c"), Pair("the cat", "cat"), Pair("rain", "rain fell"), Pair("d", "e")]
TRIPLETS = [replace(pair, negative="h g") for pair in POSITIVE]


# ----------------------------------------------------------------------------------------------------------- reading


def test_rows(write):
    rows = "sentence1\tsentence2\tscore\na\tb\t2.5\n"
    assert list(TASK.read(write("a.tsv", rows))) == [Pair("a", "b", 2.5)]
    assert list(TASK.read(write("a.csv", "anchor,positive,negative\na,b,c\n"))) == [Pair("a", "b", None, "c")]
    assert list(TASK.read(write("a.jsonl", '{"query": "a", "document": "b"}\n'))) == [Pair("a", "b")]
    assert list(recipes.reading.read(TASK, (["a"], ["b"]))) == [Pair("a", "b")]
    assert list(recipes.reading.read(TASK, (["a"], ["b"], [1]))) == [Pair("a", "b", 1.0)]
    assert list(recipes.reading.read(TASK, (["a"], ["b"], ["c"]))) == [Pair("a", "b", None, "c")]
    ((_, example),) = TASK.reading.read_unlabelled(write("b.tsv", rows))
    assert example == Pair("a")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "text\tpair\tscore\na\tb\t1\na\tb\t\n",
            r"a\.tsv:3: a pair without a score, and the first example is a pair with",
        ),
        ("text\tpair\tscore\na\tb\tgood\n", r"a\.tsv:2: label 'good' is not a finite number"),
        ("text\tscore\na\t1\n", r"a\.tsv:2: a score without a pair: --columns pair=NAME"),
        ("text\tnegative\na\tb\n", r"a\.tsv:2: a negative without a pair: --columns pair=NAME"),
        ("text\tpair\tnegative\tscore\na\tb\tc\t1\n", r"a\.tsv:2: a score and a negative"),
        ("text\tpair\na\t\n", r"a\.tsv:2: no pair: --columns pair=NAME"),
        ("text\tpair\tscore\na\tb\t1\nc\td\t1\n", "all scores are 1; leave them out"),
    ],
)
def test_malformed(rows, message, write, tmp_path):
    data = write("a.tsv", rows)
    with pytest.raises(ValueError, match=message):
        recipes.finetune(data, data, "words", tmp_path / "out", task="similar", freeze=False, steps=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (POSITIVE, {"batch_size": 1}, "batch_size=1: loss='multiple_negatives' compares the examples of a batch"),
        (POSITIVE, {"loss": "cosent"}, "loss='cosent': of pairs with scores; choose multiple_negatives"),
        (SCORED, {"loss": "multiple_negatives"}, "these pairs have scores; choose cosent or cosine"),
        (POSITIVE, {"stack": "lstm"}, "stack='lstm': the vector is of the encoder's top layer; leave it out"),
        (POSITIVE, {"mix": True}, "mix=True: the vector is of the encoder's top layer"),
        (POSITIVE, {"matryoshka": "4,x"}, "matryoshka='4,x': whole numbers with commas"),
        (POSITIVE, {"dims": 9}, "dims=9: the vectors of this encoder have 8 numbers"),
        (POSITIVE, {"matryoshka": [8]}, r"widths \[8\]: vectors of 8 numbers can only be cut to fewer"),
        (POSITIVE, {"freeze": True}, "nothing to train: the bert encoder is frozen"),
    ],
)
def test_options_that_do_not_fit(data, options, message, encoder, tmp_path):
    with pytest.raises(ValueError, match=message):
        recipes.finetune(data, data, encoder, tmp_path / "out", task="similar", steps=1, **options)


# ------------------------------------------------------------------------------------------------------------ losses


@pytest.fixture
def batch(rng):
    """Targets and vectors of 6 triplets, of which some texts are equal."""
    numbers = np.array([[0, 1, 2], [3, 4, 5], [0, 6, 7], [8, 4, 9], [1, 10, 11], [12, 13, 4]])
    scores = rng.integers(0, 4, 6).astype(float)
    made = np.stack([np.repeat(scores, 3), numbers.reshape(-1)], 1).astype(np.float32)
    return made, rng.normal(size=(18, 5)).astype(np.float32)


def cosines(a, b):
    return (a / np.linalg.norm(a, axis=-1, keepdims=True)) @ (b / np.linalg.norm(b, axis=-1, keepdims=True)).T


def pairs_of(batch):
    made, vectors = batch
    return [array.reshape(6, 3, -1)[:, :2].reshape(12, -1) for array in (made, vectors)]


def multiple_negatives(numbers, vectors, scale):
    """Both directions, by loops over queries and candidates."""
    texts = vectors.shape[1]
    total = 0.0
    for query, positive in ((0, 1), (1, 0)):
        sides = range(1, texts) if query == 0 else (0,)
        belongs = {(a, b) for a, b in numbers[:, [query, positive]]}
        for i, own in enumerate(numbers[:, query]):
            logits = []
            for side in sides:
                for j, name in enumerate(numbers[:, side]):
                    right = j == i and side == positive
                    if right or not (name == own or (own, name) in belongs):
                        logits.append(scale * cosines(vectors[i, query][None], vectors[j, side][None])[0, 0])
            right = scale * cosines(vectors[i, query][None], vectors[i, positive][None])[0, 0]
            total += logsumexp(logits) - right
    return total / (2 * len(numbers))


@pytest.mark.parametrize("texts", [2, 3])
def test_multiple_negatives_against_numpy(texts, batch):
    made, vectors = batch if texts == 3 else pairs_of(batch)
    numbers, shaped = made[:, 1].reshape(6, texts), vectors.reshape(6, texts, 5)
    loss = losses.MultipleNegatives(7.0, texts)
    expected = multiple_negatives(numbers, shaped, 7.0)
    assert float(loss(made, vectors)) == pytest.approx(expected, rel=1e-5)
    distinct = np.arange(numbers.size).reshape(numbers.shape)
    assert multiple_negatives(distinct, shaped, 7.0) > expected + 0.01  # equal texts are no negatives
    nested = losses.MultipleNegatives(7.0, texts, nested=(2, 3))
    parts = sum(multiple_negatives(numbers, shaped[..., :width], 7.0) for width in (5, 2, 3))
    assert float(nested(made, vectors)) == pytest.approx(parts, rel=1e-5)


def test_losses_of_scores_against_numpy(batch):
    made, vectors = pairs_of(batch)
    scores, shaped = made[::2, 0], vectors.reshape(6, 2, 5)
    cosine = np.array([cosines(a[None], b[None])[0, 0] for a, b in shaped])
    ranked = [9 * (cosine[j] - cosine[i]) for i in range(6) for j in range(6) if scores[i] > scores[j]]
    assert len(ranked) > 3
    assert float(losses.CoSENT(9.0)(made, vectors)) == pytest.approx(logsumexp([0.0, *ranked]), rel=1e-5)
    squared = np.mean((cosine - (scores - 1) / 4) ** 2)
    assert float(losses.CosineRegression(1.0, 5.0)(made, vectors)) == pytest.approx(squared, rel=1e-5)


LOSSES = {
    "multiple_negatives": lambda: losses.MultipleNegatives(nested=(4,)),
    "cosent": losses.CoSENT,
    "cosine": losses.CosineRegression,
}


@pytest.mark.parametrize("name", LOSSES)
def test_saved_and_read(name, batch):
    loss = LOSSES[name]()
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    made, vectors = pairs_of(batch)
    assert type(again) is type(loss) and again.get_config() == loss.get_config()
    assert float(again(made, vectors)) == float(loss(made, vectors))
    zero = tf.Variable(np.zeros_like(vectors))  # of texts without words
    with tf.GradientTape() as tape:
        value = loss(made, zero)
    assert np.isfinite(np.asarray(tape.gradient(value, zero))).all()


def gradients(loss, microbatches=1, replicas=1, dropout=0.0):
    """Loss and gradients of one step over 8 pairs: the change of the weights at rate 1."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    strategy = tiny.mirrored(replicas) if replicas > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        model, _ = tiny.model("embed", sizes={"dropout": dropout, "attention_dropout": dropout, "pooler": False})
        assert isinstance(model, Model)
        model.microbatches = microbatches
        model.compile(keras.optimizers.SGD(1.0), loss={"vector": loss}, jit_compile=False)
    ids = rng.integers(5, 18, (16, 6)).astype(np.int32)
    inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "mask": np.ones_like(ids)}
    made = np.stack([np.repeat(rng.random(8), 2), rng.integers(0, 14, 16)], 1).astype(np.float32)
    before = [weight.numpy() for weight in model.trainable_weights]
    data = tf.data.Dataset.from_tensors((inputs, {"vector": made})).repeat()
    history = model.fit(data, steps_per_epoch=1, verbose=0, shuffle=False)
    after = [weight.numpy() for weight in model.trainable_weights]
    seeds = [variable.numpy() for variable in model.non_trainable_variables]
    return history.history["loss"][0], [a - b for a, b in zip(before, after, strict=True)], seeds


@pytest.mark.trains
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("how", [{"microbatches": 3}, {"replicas": 2}, {"microbatches": 2, "replicas": 2}])
def test_parts_and_replicas_are_the_whole_batch(name, how):
    whole, parts = gradients(LOSSES[name]()), gradients(LOSSES[name](), **how)
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    assert max(np.abs(each).max() for each in whole[1]) > 0.01
    for own, other in zip(whole[1], parts[1], strict=True):
        np.testing.assert_allclose(other, own, atol=1e-5)


@pytest.mark.trains
def test_parts_are_computed_twice_with_the_same_dropout(monkeypatch):
    """In one part the masks are those of the whole batch: the second computation must draw what the first one drew."""
    whole = gradients(losses.MultipleNegatives(), dropout=0.3)
    of_vectors = Model._gradients_of_vectors

    def in_one_part(self, x, y, cut, count, total):
        return of_vectors(self, x, y, lambda arrays, index: arrays, tf.constant(1), total)

    monkeypatch.setattr(Model, "_gradients_of_vectors", in_one_part)
    once = gradients(losses.MultipleNegatives(), microbatches=2, dropout=0.3)
    assert once[0] == pytest.approx(whole[0], rel=1e-5)
    for own, other in zip(whole[1], once[1], strict=True):
        np.testing.assert_allclose(other, own, atol=1e-5)
    assert all(np.array_equal(a, b) for a, b in zip(whole[2], once[2], strict=True))


# ----------------------------------------------------------------------------------------------- batches and metrics


@pytest.fixture
def encoder(tmp_path):
    model, bundle = tiny.model("embed")
    saving.save(tmp_path / "encoder", model, bundle)
    return tmp_path / "encoder"


def test_texts_of_an_example_stay_together():
    bundle = tiny.bundle("embed")
    data = targets.batches(bundle, lambda epoch: TRIPLETS, 2, seed=0)
    vocab = bundle.vocab
    for inputs, made in data.take(4).as_numpy_iterator():
        texts = [" ".join(vocab[i] for i in row if i > 4) for row in inputs["token_ids"]]
        triples = {tuple(texts[begin : begin + 3]) for begin in (0, 3)}
        assert triples <= {example.texts for example in TRIPLETS}
        numbers = made["vector"][:, 1]
        assert numbers[2] == numbers[5] and len({*numbers}) == 5  # the same negative


def test_metrics():
    vectors = {"q": [1.0, 0.0], "p": [0.9, 0.1], "d": [0.0, 1.0], "r": [0.1, 1.0], "n": [1.0, 0.01]}

    def answered(examples):
        return [TASK.joined([{"vector": vectors[text]} for text in example.texts]) for example in examples]

    scored = [Pair("q", "p", 4.0), Pair("q", "d", 1.0), Pair("p", "n", 3.0)]
    answers = answered(scored)
    report = TASK.evaluate(scored, answers)
    expected = spearmanr([4, 1, 3], [answer["similarity"] for answer in answers])[0]
    assert report.metric == "spearman" and report.value == pytest.approx(expected)
    found = [Pair("q", "p"), Pair("d", "r", None, "n"), Pair("q", "r")]
    report = TASK.evaluate(found, answered(found))
    # of q: n, p (relevant), r (relevant); of d: r (relevant)
    ideal = 1 + 1 / np.log2(3)
    assert report.scores == pytest.approx(
        {
            "ndcg_at_10": ((1 / np.log2(3) + 1 / 2) / ideal + 1) / 2,
            "mrr_at_10": (1 / 2 + 1) / 2,
            "recall_at_1": (0 + 1) / 2,
            "recall_at_10": 1.0,
            "map_at_100": ((1 / 2 + 2 / 3) / 2 + 1) / 2,
        }
    )
    with pytest.raises(ValueError, match="'q': no words in this text, so no vector"):
        TASK.evaluate([Pair("q", "p")], [{"error": "no words in this text"}])


@pytest.mark.trains
@pytest.mark.parametrize("data", [SCORED, POSITIVE, TRIPLETS], ids=["scored", "positive", "triplets"])
def test_trained_and_loaded_again(data, encoder, tmp_path):
    before = recipes.score(encoder, data)
    model = ctx.finetune(
        data,
        data,
        encoder,
        "similar",
        tmp_path / "out",
        steps=60,
        batch_size=12,
        learning_rate=0.01,
        dropout=0.0,
        evaluations=2,
        matryoshka=[4],
        normalize=True,
    )
    assert model.bundle.task == "embed" and model.bundle.normalize and not model.bundle.config["pooler"]
    after = recipes.score(tmp_path / "out", data)
    main = "spearman" if data is SCORED else "ndcg_at_10"
    assert after["metric"] == main and after[main] > max(0.9, before[main])
    vectors = ctx.load(tmp_path / "out").encode(["the cat", "rain"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose([answer["vector"] for answer in model.predict(["the cat", "rain"])], vectors, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "pooler"])
def test_cut_vectors_are_the_first_numbers(pooling):
    model, bundle = tiny.model("embed", pooling=pooling)
    short = saving.build(replace(bundle, dims=3, normalize=True))
    short.set_weights(model.get_weights())
    inputs = bundle.features(["the cat", "rain fell she"])
    whole = np.asarray(model(inputs)["vector"])[:, :3]
    expected = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    np.testing.assert_allclose(np.asarray(short(inputs)["vector"]), expected, atol=1e-6)
    assert replace(bundle, dims=3).vector.endswith("its first 3 numbers")


def test_every_engine(tflite_in_process, tmp_path):
    """The same vectors of raw strings, cut and scaled, and the same metrics, in Keras, SavedModel and .tflite."""
    model, bundle = tiny.model("embed", normalize=True, dims=5)
    saving.save(tmp_path / "m", model, bundle)
    loaded = ctx.load(tmp_path / "m")
    loaded.export(tmp_path / "served")
    loaded.tflite(tmp_path / "m.tflite", lengths=(8, 16))
    texts = ["the cat", "rain fell . she", "a b c d e f g h"]
    vectors = loaded.encode(texts)
    assert vectors.shape == (3, 5)
    figures = recipes.score(tmp_path / "m", SCORED)
    for path in (tmp_path / "served", tmp_path / "m.tflite"):
        np.testing.assert_allclose(ctx.load(path).encode(texts), vectors, atol=1e-5)
        other = recipes.score(path, SCORED)
        assert other["spearman"] == pytest.approx(figures["spearman"])
    (row,) = [Predictor(bundle, open_model(tmp_path / "m.tflite").answer.runner).ask([POSITIVE[0]])]
    assert row[0]["similarity"] == pytest.approx(
        float(cosines(*loaded.encode(["a b", "a c"])[:, None])[0, 0]), abs=1e-5
    )
