"""Fine-tuning for every task, from files to model folders; what is refused; memory."""

import json
import random
from collections import Counter
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest
import tensorflow as tf

from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models import static
from keras_ctxrep.recipes import assembly, finetuning, targets
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import StaticFeatures
from keras_ctxrep.training import fit as training_fit
from keras_ctxrep.training.runs import options_from_run

pytestmark = pytest.mark.trains

TOPICS = {
    "weather": ["rain", "storm", "wind", "cloud", "snow", "frost", "fog"],
    "music": ["violin", "piano", "chord", "drum", "song", "choir", "flute"],
    "kitchen": ["bread", "butter", "oven", "spoon", "soup", "pepper", "onion"],
}


def text_of(draw, *topics, most=3):
    """A few words of each topic, mixed."""
    words = [draw.choice(TOPICS[topic]) for topic in topics for _ in range(draw.randint(1, most))]
    draw.shuffle(words)
    return " ".join(words)


def an_example(task, draw):
    """Of an easy task: every answer can be read off single words."""
    topic = draw.choice(sorted(TOPICS))
    if task == "classify":
        return Example(text_of(draw, topic), topic)
    if task == "pair":  # what it asks for is in the second text alone
        return Example(text_of(draw, draw.choice(sorted(TOPICS))), topic, text_of(draw, topic))
    if task == "multilabel":
        labels = tuple(name for name in sorted(TOPICS) if draw.random() < 0.5)
        return Example(f"the {text_of(draw, *labels)}", labels)
    if task == "regress":
        return Example(text_of(draw, topic), {"weather": -1.0, "kitchen": 0.0, "music": 1.0}[topic])
    if task == "tag":
        words = text_of(draw, *TOPICS, most=2).split()
        named = {"weather": "B-WEATHER", "music": "B-MUSIC", "kitchen": "O"}
        return Tagged(tuple(words), tuple(named[name] for word in words for name in TOPICS if word in TOPICS[name]))
    words = [draw.choice(TOPICS["kitchen"]) for _ in range(draw.randint(2, 6))]
    words.insert(draw.randint(0, len(words)), draw.choice(TOPICS["music"]))
    context = " ".join(words)
    answer = next(word for word in words if word in TOPICS["music"])
    return Question("song ?", context, ((answer, context.index(answer)),), str(draw.random()))


def as_row(example):
    if isinstance(example, Tagged):
        return {"words": example.words, "tags": example.tags}
    if isinstance(example, Question):
        answers = [{"text": text, "start": start} for text, start in example.answers]
        return {"question": example.question, "context": example.context, "answers": answers, "id": example.id}
    row = {"text": example.text, "label": example.label} | ({"pair": example.pair} if example.pair else {})
    return {"labels" if name == "label" and isinstance(value, tuple) else name: value for name, value in row.items()}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A function from a task to its files."""
    folder = tmp_path_factory.mktemp("tasks")

    def files(task):
        paths = [folder / f"{task}.{part}.jsonl" for part in ("train", "dev", "test")]
        if not paths[0].exists():
            draw = random.Random(0)
            for path, count in zip(paths, (400, 40, 60), strict=True):
                rows = [json.dumps(as_row(an_example(task, draw)), ensure_ascii=False) for _ in range(count)]
                path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        return paths

    return files


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """A folder of static vectors, in which a topic's words are near one another."""
    draw = np.random.default_rng(0)
    vocab = ("<UNK>", *(word for words in TOPICS.values() for word in words))
    centres = np.repeat(draw.normal(size=(3, 8)), 7, axis=0)
    config = static.Config(words=len(vocab), width=8, trainable=False)
    model = static.encoder(config)
    table = model.get_layer("word_embedding")
    rows = np.zeros(table.get_weights()[0].shape, np.float32)
    rows[-21:] = centres + 0.1 * draw.normal(size=centres.shape)
    table.set_weights([rows])
    folder = tmp_path_factory.mktemp("vectors")
    saving.save(folder, model, Bundle("static", "embed", asdict(config), 32, vocab=vocab))
    return folder


def learn(data, task, encoder, out, **options):
    """Fine-tunes and returns the folder's figures on the test set."""
    learned, dev, test = data(task)
    options = {"steps": 150, "learning_rate": 0.005, "batch_size": 16, "dropout": 0.1, "patience": 10} | options
    recipes.finetune(learned, dev, encoder, out, task="classify" if task == "pair" else task, **options)
    return recipes.score(out, test, predictions=out / "answers.jsonl")


# -------------------------------------------------------------------------------------------------- every task learns

CHANCE = {"classify": 0.34, "pair": 0.34, "multilabel": 0.5, "regress": 0.0, "tag": 0.35, "answer": 0.3}
METRICS = {
    "classify": "accuracy",
    "pair": "accuracy",
    "multilabel": "micro_f1",
    "regress": "pearson",
    "tag": "span_f1",
    "answer": "f1",
}


SLOW = [
    pytest.param(task, marks=pytest.mark.release) for task in ("classify", "pair", "multilabel", "regress", "answer")
]  # a minute


@pytest.mark.parametrize("task", ["tag", *SLOW])
def test_a_bert_learns_every_task(task, data, models, tmp_path):
    crf = {"crf": True} if task == "tag" else {}
    scores = learn(data, task, models / "bert" / "pretrained", tmp_path, **crf)
    assert scores["examples"] == 60 and scores["metric"] == METRICS[task]
    assert scores[scores["metric"]] > max(0.8, CHANCE[task] + 0.4)
    low, high = scores["interval"]
    assert low <= scores[scores["metric"]] <= high
    assert (scores["table"] is not None) == (task in ("classify", "pair", "multilabel", "tag"))
    assert all(set(example) >= {"source", "input", "expected", "answer"} for example in scores["worst"])
    assert all(f"{task}.test.jsonl:" in example["source"] for example in scores["worst"])
    bundle = saving.load(tmp_path)[1]
    assert bundle.task == ("classify" if task == "pair" else task) and bundle.pairs == (task in ("pair", "answer"))
    examples = list(tasks.get(bundle.task).read(data(task)[2]))
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    for first, second in zip(answers, keras_engine.predictor(tmp_path).ask(examples), strict=True):
        names = {"tag": "words", "answer": "answer", "regress": "value", "multilabel": "labels"}
        first, second = (answer[names.get(task, "label")] for answer in (first, second))
        if task == "tag":
            first, second = ([word["label"] for word in words] for words in (first, second))
        assert first == (pytest.approx(second, abs=1e-5) if task == "regress" else second)
    if task == "tag":
        assert bundle.labels == ("O", "B-MUSIC", "B-WEATHER", "I-MUSIC", "I-WEATHER")


@pytest.mark.parametrize(
    ("task", "options"),
    [
        pytest.param("tag", {"stack": "lstm"}, marks=pytest.mark.release),  # the four together take a minute
        pytest.param("classify", {"stack": "gru", "output_mix": True}, marks=pytest.mark.release),
        pytest.param("tag", {"stack": "cnn", "top_only": True, "extra_embeddings": "words"}, marks=pytest.mark.slow),
        ("classify", {}),
        pytest.param("tag", {"stack": "lstm", "crf": True, "extra_embeddings": True}, marks=pytest.mark.slow),
        ("classify", {"stack": "lstm", "extra_embeddings": "words"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)) or "alone",
)
def test_a_task_network_over_a_frozen_elmo(task, options, data, models, vectors, tmp_path):
    words = options.get("extra_embeddings") == "words"
    options = options | ({"extra_embeddings": vectors} if "extra_embeddings" in options and not words else {})
    encoder = models / "elmo" / "pretrained"
    options |= {"learning_rate": 0.02, "batch_size": 32, "dropout": 0.0}
    options |= {"units": 32, "steps": 200} if "stack" in options else {"steps": 800}
    scores = learn(data, task, encoder, tmp_path, **options)
    assert scores[scores["metric"]] > 0.6  # of an encoder of 16 numbers
    model, bundle = saving.load(tmp_path)
    names = {layer.name for layer in model.layers}
    before = saving.load_encoder(encoder)[0]
    for name in ("char_cnn", "forward_1", "backward_1"):
        for first, second in zip(
            before.get_layer(name).get_weights(), model.get_layer(name).get_weights(), strict=True
        ):
            np.testing.assert_array_equal(first, second)
    assert ("output_mix" in names) == ("output_mix" in options)
    assert "scalar_mix" in names
    if "top_only" in options:
        assert bundle.stack["mix"] == "top"
    if words:
        table = model.get_layer("word_embedding").get_weights()[0]
        assert table.shape == (len(bundle.vocab) + 1, 100)
        assert np.abs(table).max() > 0.06  # it was drawn from [-0.05, 0.05]: trained
        assert options_from_run(tmp_path).options["extra_embeddings"] == "words"
    elif "extra_embeddings" in options:
        assert "word_ids" in model.input
        kept = saving.load(vectors)[0].get_layer("word_embedding").get_weights()
        np.testing.assert_array_equal(model.get_layer("word_embedding").get_weights()[0], kept[0])


@pytest.mark.parametrize("kind", ["words", "vectors"])
def test_words_without_a_context(kind, data, vectors, tmp_path):
    """Embeddings learned from the data alone, and static vectors that are frozen."""
    frozen = kind == "vectors"
    options = {"freeze": True} if frozen else {}
    encoder = vectors if frozen else "words"
    scores = learn(data, "tag", encoder, tmp_path, stack="cnn", units=16, learning_rate=0.02, steps=80, **options)
    assert scores["span_f1"] > 0.8
    model, bundle = saving.load(tmp_path)
    assert bundle.family == "static" and bundle.vocab[0] == "<UNK>" and len(bundle.vocab) == 22
    if frozen:
        kept = saving.load(vectors)[0].get_layer("word_embedding").get_weights()
        np.testing.assert_array_equal(model.get_layer("word_embedding").get_weights()[0], kept[0])


# ----------------------------------------------------------------------------------------------------- what is kept


def test_the_best_by_the_metric_is_kept_and_patience_ends_the_run(data, vectors, tmp_path, monkeypatch):
    """Figures as in a script: the second evaluation is the best one."""
    figures = iter([0.5, 0.9, 0.8, 0.7, 0.95])
    seen = []

    def judged(bundle, examples, batch_size, outputs):
        def judge(model):
            seen.append(model.get_weights())
            return {"accuracy": next(figures), "loss": float(-len(seen))}  # the loss would keep the last one

        return judge

    monkeypatch.setattr(finetuning, "_evaluation", judged)
    learned, dev, _ = data("classify")
    options = {"stack": "cnn", "units": 4, "steps": 30, "batch_size": 4, "patience": 2}
    history = recipes.finetune(learned, dev, vectors, tmp_path, **options)
    assert [entry["step"] for entry in history] == [3, 6, 9, 12]
    assert [entry["val_accuracy"] for entry in history] == [0.5, 0.9, 0.8, 0.7]
    for first, second in zip(saving.load(tmp_path)[0].get_weights(), seen[1], strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(seen[1][-1], seen[3][-1])


def test_an_interrupted_run_resumes_to_the_result_of_an_undisturbed_one(data, vectors, tmp_path, power_cut):
    learned, dev, _ = data("classify")
    options = {"stack": "cnn", "units": 4, "steps": 40, "batch_size": 4, "learning_rate": 1e-3, "patience": 30}

    def run(out):
        return recipes.finetune(learned, dev, vectors, out, **options)

    expected = run(tmp_path / "one")
    options["checkpoint_minutes"] = 1e-9
    with power_cut(12):
        run(tmp_path / "two")
    assert {path.name for path in (tmp_path / "two").iterdir()} <= {"checkpoint", "history.csv", "history.png"}
    resumed = run(tmp_path / "two")
    assert [entry["step"] for entry in resumed] == [entry["step"] for entry in expected] == [*range(4, 44, 4)]
    assert [e["val_accuracy"] for e in resumed] == [e["val_accuracy"] for e in expected]
    for first, second in zip(*(saving.load(tmp_path / name)[0].get_weights() for name in ("one", "two")), strict=True):
        np.testing.assert_array_equal(first, second)
    assert not (tmp_path / "two" / "checkpoint").exists()


def test_a_resumed_run_does_not_collate_earlier_batches(data, vectors, tmp_path, monkeypatch):
    fit, given, collated = training_fit.fit, [], []
    monkeypatch.setattr(
        training_fit, "fit", lambda model, data, *args, **kw: given.append(data) or fit(model, data, *args, **kw)
    )
    learned, dev, _ = data("classify")
    recipes.finetune(learned, dev, vectors, tmp_path, stack="cnn", units=4, steps=2, batch_size=4)
    collate = StaticFeatures.collate
    monkeypatch.setattr(StaticFeatures, "collate", lambda self, rows: collated.append(1) or collate(self, rows))
    later = next(given[0](40).as_numpy_iterator())
    assert len(collated) < 12  # the first for the shapes, and those that are prefetched
    undisturbed = next(given[0](0).skip(40).as_numpy_iterator())
    tf.nest.map_structure(np.testing.assert_array_equal, later, undisturbed)


# ------------------------------------------------------------------------------------------------ how much is held


@dataclass(frozen=True)
class Counted(Example):
    """An example that is counted while it is held."""

    held = most = 0

    def __post_init__(self):
        Counted.held += 1
        Counted.most = max(Counted.most, Counted.held)

    def __del__(self):
        Counted.held -= 1


@pytest.mark.slow  # 900 steps
def test_the_examples_are_not_all_held_in_memory(vectors, tmp_path, monkeypatch):
    passes = []

    def read(task, data, columns=None, skipped=None, split="train"):
        if split == "validation":
            yield from (Example(*row) for row in (("rain", "weather"), ("drum", "music")))
            return
        passes.append(0)
        draw = random.Random(0)
        for number in range(3000):
            passes[-1] += 1
            topic = draw.choice(["weather", "music"])
            yield Counted(text_of(draw, topic), topic, None, f"rows:{number}")

    monkeypatch.setattr(targets, "read", read)
    monkeypatch.setattr(targets, "SHUFFLED", 100)
    monkeypatch.setattr(targets, "ENCODED", 20)
    options = {"stack": "cnn", "units": 4, "batch_size": 4, "epochs": 1.2, "learning_rate": 0.02}
    history = recipes.finetune("rows", "dev", vectors, tmp_path, **options)
    assert history[-1]["step"] == 900 and history[-1]["val_accuracy"] == 1
    assert passes[0] == 3000 and passes.count(3000) == 2  # to check them, and to learn; Keras asks for the first twice
    assert 100 <= Counted.most < 300


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crf": True}, "crf is an option of the tasks 'tag' and 'semantic_roles', and the task is 'classify'"),
        ({"output_mix": True}, "output_mix is for a task network, and there is none: choose one, e.g. stack='lstm'"),
        ({"extra_embeddings": "vectors"}, "extra_embeddings is for a task network, and there is none"),
        ({"units": 8}, "units is for a task network, and there is none"),
        ({"stack": "lstm", "mix": False}, "mix=False: a task network reads a mix, or the top layer with top_only"),
        ({"stack": "rnn"}, "stack='rnn': must be lstm, gru, cnn, esim or bidaf"),
        (
            {"stack": "lstm", "extra_embeddings": "vectors"},
            "extra embeddings are static vectors, with an ELMo over characters",
        ),
        ({"task": "rank"}, "task 'rank'"),
        ({"columns": {"texts": "x"}}, r"columns \['texts'\]"),
        ({"max_length": 1000}, "max_length=1000: this encoder has"),
        ({"task": "pair"}, "task 'pair': one of classify, multilabel, regress, tag, answer"),
    ],
)
def test_options_that_do_not_fit(options, message, data, models, vectors, tmp_path):
    learned, dev, _ = data("classify")
    options = {name: vectors if name == "extra_embeddings" else value for name, value in options.items()}
    with pytest.raises(ValueError, match=message) as raised:
        recipes.finetune(learned, dev, models / "bert" / "pretrained", tmp_path / "out", **{"steps": 1} | options)
    assert "\n" not in str(raised.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("task", ["pair", "answer"])
def test_pairs_over_an_encoder_of_one_text(task, data, vectors, tmp_path):
    learned, dev, _ = data(task)
    with pytest.raises(ValueError, match=r"pairs of texts, and .* reads one text; a BERT reads pairs"):
        recipes.finetune(learned, dev, vectors, tmp_path / "out", task="classify" if task == "pair" else task, steps=1)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="the folder of the encoder; choose another one"):
        recipes.finetune(learned, dev, vectors, vectors, task="classify" if task == "pair" else task, steps=1)


@pytest.mark.slow  # 10 seconds
def test_the_null_threshold_is_chosen_on_dev(models, tmp_path):
    """Questions whose context has no answer: the threshold is the best one of `dev`."""
    draw = random.Random(2)
    asked = [an_example("answer", draw) for _ in range(80)]
    asked[::3] = [Question("song ?", text_of(draw, "kitchen", "weather"), ()) for _ in asked[::3]]
    encoder = models / "bert" / "pretrained"
    options = {"task": "answer", "steps": 10, "learning_rate": 0.005, "batch_size": 16}
    recipes.finetune(asked[:50], asked[50:], encoder, tmp_path, **options)
    model, bundle = saving.load(tmp_path)
    assert bundle.settings["null_threshold"] not in (None, 0.0)

    def f1(threshold):
        settings = bundle.settings | {"null_threshold": threshold}
        predictor = Predictor(replace(bundle, settings=settings), keras_engine.runner(model))
        return tasks.get("answer").evaluate(asked[50:], predictor.ask(asked[50:]), interval=False).value

    best = f1(bundle.settings["null_threshold"])
    assert best == recipes.score(tmp_path, asked[50:])["f1"]
    assert best >= max(map(f1, [-100.0, 0.0, 100.0, *np.linspace(-3, 3, 7)])) and best > min(f1(-100.0), f1(100.0))


def test_examples_in_memory(vectors, tmp_path):
    """A generator is read once and kept."""
    draw = random.Random(1)
    rows = (an_example("classify", draw) for _ in range(60))
    dev = [an_example("classify", draw) for _ in range(10)]
    history = recipes.finetune(rows, dev, vectors, tmp_path, stack="cnn", units=4, epochs=2, batch_size=8)
    assert history[-1]["step"] == 15 and len(history) == 2
    with pytest.raises(ValueError, match="3 examples: only the label 'a'; a classifier needs at least two"):
        recipes.finetune([Example("x", "a")] * 3, dev, vectors, tmp_path / "out", steps=1)


def test_all_evaluations_have_one_graph(vectors, tmp_path, monkeypatch):
    """And the last answers too: tracing one takes as long as some hundred of them."""
    models, runner = [], keras_engine.runner
    monkeypatch.setattr(keras_engine, "runner", lambda model, *rest: models.append(model) or runner(model, *rest))
    rows = ["rain", "violin"] * 4, ["weather", "music"] * 4
    history = recipes.finetune(rows, rows, vectors, tmp_path / "m", stack="cnn", units=4, epochs=2, cache=False)
    assert len(history) == 2 and len(models) == 1


def test_fewer_examples_than_a_batch_are_seen_as_often_as_asked(vectors, tmp_path):
    rows = [Example("red fish", "a"), Example("blue fish", "b"), Example("red", "a")]
    history = recipes.finetune(rows, rows, vectors, tmp_path, stack="cnn", units=4, epochs=4)
    assert [entry["step"] for entry in history] == [1, 2, 3, 4]


# ------------------------------------------------------------------------------------------------ rates of the layers


def test_lower_layers_change_less(data, models, tmp_path):
    """Each by the factor of the layer above it, in the one step that is taken: Adam's first step is the rate itself."""
    learned, dev, _ = data("classify")
    before, _ = saving.load_encoder(models / "bert" / "pretrained")
    options = {"steps": 1, "batch_size": 16, "learning_rate": 1e-3, "dropout": 0.0, "layer_decay": 0.5, "seed": 0}
    recipes.finetune(learned, dev, models / "bert" / "pretrained", tmp_path, task="classify", **options)
    after, _ = saving.load(tmp_path)
    moved = {}
    for layer in filter(lambda layer: layer.weights, before.layers):
        weights = zip(layer.get_weights(), after.get_layer(layer.name).get_weights(), strict=True)
        moved[layer.name] = max((np.abs(new - old).max() for old, new in weights), default=0.0)
    layers = [moved[name] for name in ("token_embedding", "layer_0", "layer_1", "pooler")]
    np.testing.assert_allclose(np.divide(layers[1:], layers[:-1]), 2.0, rtol=0.1)


def test_a_frozen_encoder_has_no_layer_decay(data, models, tmp_path):
    learned, dev, _ = data("classify")
    with pytest.raises(ValueError, match=r"layer_decay=0\.5: the encoder is frozen; train it with freeze=False"):
        recipes.finetune(learned, dev, models / "elmo" / "pretrained", tmp_path, layer_decay=0.5, steps=1)


def test_an_infinite_loss_names_the_file(tmp_path):
    """In the second epoch's order too; the checkpoint before it is named."""
    rows = [f"{number}.0\train {number}" for number in range(12)]
    rows[7] = "1e30\tstorm"  # whose square is infinite
    (tmp_path / "train.tsv").write_text("\n".join(["label\ttext", *rows]))
    dev = [Example("rain", 1.0)] * 2
    message = r"the loss became inf; try .*; its batch is from .*train\.tsv, seed 0; the checkpoint"
    with pytest.raises(ValueError, match=message):
        options = {"task": "regress", "batch_size": 3, "checkpoint_minutes": 0, "steps": 12, "evaluations": 12}
        recipes.finetune(tmp_path / "train.tsv", dev, "words", tmp_path / "out", **options)


def test_extra_embeddings_are_not_overwritten(data, models, vectors):
    learned, dev, _ = data("classify")
    options = {"stack": "lstm", "extra_embeddings": vectors, "steps": 1}
    with pytest.raises(ValueError, match="the folder of the extra embeddings"):
        recipes.finetune(learned, dev, models / "elmo" / "pretrained", vectors, **options)


def test_texts_without_words_are_no_part_of_a_batch(tmp_path):
    """Of 9 texts 8 have words: one batch of at most 9."""
    rows = [Example("rain" if number % 2 else "violin", str(number % 2)) for number in range(8)]
    recipes.finetune([*rows, Example("\u200b", "0")], rows, "words", tmp_path / "out", epochs=1, batch_size=9)
    with pytest.raises(ValueError, match="2 examples: no words in any of its texts"):
        nothing = [Example("\u200b", "0"), Example("\u200b", "1")]
        recipes.finetune(nothing, rows, "words", tmp_path / "none", epochs=1)


def test_a_learned_vocabulary_is_one_word_a_line():
    _, bundle = assembly.fresh_embeddings(Counter({"a\nb": 3, "c": 2, "d": 1}))
    assert bundle.vocab == ("<UNK>", "c")
