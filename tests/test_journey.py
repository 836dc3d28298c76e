"""From strings to answers through Keras, a SavedModel and TFLite: the same answers."""

import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import keras_ctxrep as ctx
from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.inference import keras_engine
from keras_ctxrep.inference.engines import open_model
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.tag import Tagged
from keras_ctxrep.text.bundle import load
from keras_ctxrep.text.scores import accuracy
from keras_ctxrep_export import saved_model
from keras_ctxrep_tflite import compare, quantize, runtime
from tests import tiny

pytestmark = [
    pytest.mark.usefixtures("tflite_in_process"),
    pytest.mark.filterwarnings("ignore:.*longer texts are cut"),  # files of few lengths, for speed
]

AWKWARD = [
    "The CAFÉ\u0301 is good.",
    "soup\u00adpepper\u200bonion \U0001f469\u200d\U0001f373 the chef's 😀",
    "天气 rain 音乐",
    "the " * 200 + "violin",
    "x" * 10_000,
    "½ ﬁ ² … Σίσυφος ΟΔΥΣΣΕΥΣ İstanbul",
    "a\x00b the drum",
    "[SEP] [CLS] <S> </S>",
]


def test_a_card_goes_the_whole_way(tmp_path):
    tiny.save(
        tmp_path / "vectors", tiny.bundle("embed", "static", vocab=("<UNK>", "the", "violin"), card="# Vectors\n")
    )
    examples = [Example("the violin", "music"), Example("the", "other")]
    for name, from_scratch in (("tuned", False), ("scratch", True)):
        options = {"steps": 1, "batch_size": 2, "from_scratch": from_scratch}
        recipes.finetune(examples, examples, tmp_path / "vectors", tmp_path / name, task="classify", **options)
    assert load(tmp_path / "scratch").card.startswith("# Fine-tuned: classify\n")
    assert "pretrained" not in load(tmp_path / "scratch").card
    version = saved_model.export(*saving.load(tmp_path / "tuned"), tmp_path / "served")
    file = quantize.convert(tmp_path / "tuned", tmp_path / "m.tflite", "none", (4,))
    (card,) = {load(path).card for path in (tmp_path / "tuned", version, file)}
    assert (version / "assets.extra" / "card.md").read_text("utf-8") == card
    lines = card.splitlines()
    assert lines[0] == "# Fine-tuned: classify" and "| labels, 2 | `music`, `other` |" in lines
    assert "| data | 2 examples |" in lines and "| encoder | vectors |" in lines
    assert "\n| scores on 2 rows of examples in memory | accuracy " in card
    assert card.endswith("\n## The pretrained weights\n\n# Vectors\n")
    readme = (version / "README.md").read_text("utf-8")
    assert "\n## The pretrained weights\n\n### Vectors\n" in readme and "Fine-tuned" not in readme
    recipes.finetune(examples, examples, tmp_path / "tuned", tmp_path / "again", task="classify", steps=1, batch_size=2)
    again = load(tmp_path / "again").card
    assert "| encoder | tuned |" in again and again.count("# Vectors") == again.count("# Fine-tuned") == 1


FAMILIES = ("bert", pytest.param("elmo", marks=pytest.mark.slow))  # a biLM converts and loads for a minute


@pytest.mark.parametrize("family", FAMILIES)
def test_every_engine_gives_the_same_answers(family, models, tmp_path):
    folder = models / family / "classifier"
    examples = list(tasks.get("classify").read(models / "test.tsv"))
    texts = [example.text for example in examples] + AWKWARD
    keras_predictor = keras_engine.predictor(folder)
    expected = keras_predictor.probabilities(texts)
    labels = [answer["label"] for answer in keras_predictor(texts)]
    assert accuracy([example.label for example in examples], labels[: len(examples)]) > 0.95

    version = saved_model.export(*saving.load(folder), tmp_path / "served")
    np.testing.assert_allclose(saved_model.load(version).probabilities(texts), expected, atol=1e-4)

    quantize.convert(folder, tmp_path / "float32.tflite", "none", (16, 32))
    np.testing.assert_allclose(runtime.load(tmp_path / "float32.tflite").probabilities(texts), expected, atol=1e-4)

    quantize.convert(folder, tmp_path / "int8.tflite", "dynamic", (32,))
    edge = runtime.load(tmp_path / "int8.tflite")
    assert accuracy(labels[: len(examples)], [answer["label"] for answer in edge(texts)][: len(examples)]) >= 0.99
    assert (tmp_path / "int8.tflite").stat().st_size < (tmp_path / "float32.tflite").stat().st_size

    # what differs is seen: a model with other weights is told apart
    model, bundle = saving.load(folder)
    model.get_layer("logits").set_weights(
        [weight + 0.1 * weight**2 for weight in model.get_layer("logits").get_weights()]
    )
    saving.save(tmp_path / "other", model, bundle)
    assert np.abs(keras_engine.predictor(tmp_path / "other").probabilities(texts) - expected).max() > 1e-4


FRESH = """
import json, sys
import tensorflow_text
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
texts = tf.constant([b"the violin", b"", b"\\xff\\xfe the soup", "天 rain".encode()])
found = loaded.signatures["serving_default"](texts)
print(json.dumps([found["probabilities"].numpy().tolist(), [label.decode() for label in found["label"].numpy()]]))
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_needs_nothing_else(family, models, tmp_path):
    """Moved elsewhere, its sources deleted, loaded by a process that knows nothing of us."""
    shutil.copytree(models / family / "classifier", tmp_path / "source")
    made = saved_model.export(*saving.load(tmp_path / "source"), tmp_path / "served")
    predictor = keras_engine.predictor(tmp_path / "source")
    shutil.move(made, tmp_path / "moved")
    shutil.rmtree(tmp_path / "source")
    command = [sys.executable, "-c", FRESH, str(tmp_path / "moved")]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert process.returncode == 0, process.stderr[-3000:]
    probabilities, labels = json.loads(process.stdout)
    texts = ["the violin", "\ufffd\ufffd the soup", "天 rain"]
    np.testing.assert_allclose([probabilities[0], *probabilities[2:]], predictor.probabilities(texts), atol=1e-5)
    assert [labels[0], *labels[2:]] == [answer["label"] for answer in predictor(texts)]


@pytest.mark.parametrize("family", ["elmo", "bert"])
def test_encoders_in_every_engine(family, models, tmp_path):
    """A pretrained encoder without a head: the vectors of the SavedModel and of TFLite equal Keras'."""
    model, bundle = saving.load_encoder(models / family / "pretrained")
    texts = ["the violin is good.", "snow"]
    expected = np.array([np.mean(model(bundle.features([text]))["sequence"][0], 0) for text in texts])
    version = saved_model.export(model, bundle, tmp_path / "served")
    quantize.convert(models / family / "pretrained", tmp_path / "encoder.tflite", lengths=(16,))
    for predictor in (saved_model.load(version), runtime.load(tmp_path / "encoder.tflite")):
        np.testing.assert_allclose([answer["vector"] for answer in predictor(texts)], expected, atol=1e-4)


@pytest.mark.filterwarnings(
    "ignore:.* of 6 texts were longer:UserWarning", "ignore:1 of 5 texts were longer:UserWarning"
)
@pytest.mark.parametrize(
    ("family", "pooling", "normalize"),
    [("bert", "mean", True), ("bert", "max", False), ("elmo", "mean", True), ("static", "mean", True)],
)
def test_vectors_of_texts_in_every_engine(family, pooling, normalize, tmp_path):
    """The vectors of `encode`, and their cosines, of Keras, of the SavedModel and of a float32 .tflite file."""
    vocab = None if family == "bert" else () if family == "elmo" else ("<UNK>", "the", "cat", "fell", ".", "rain", "中")
    saving.save(tmp_path / "m", *tiny.model("embed", family, vocab=vocab, pooling=pooling, normalize=normalize))
    texts = ["the cat fell.", "rain", "The rain 中 fell", "a cab fed the cats " * 9, "She fell \U0001f600 a b", "rain"]
    model = ctx.load(tmp_path / "m")
    expected = model.encode(texts)
    assert expected.dtype == np.float32
    if normalize:
        np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-6)
    cosines = cosines_of(expected)
    assert np.ptp(cosines) > 0.01  # the texts differ
    engines = (model.export(tmp_path / "served"), model.tflite(tmp_path / "m.tflite", "none", lengths=(4, 6, 16)))
    for path in engines:
        engine = ctx.load(path)
        vectors = np.concatenate([engine.encode(texts[:-1]), engine.encode(texts[-1:])])  # with others, and alone
        np.testing.assert_allclose(vectors, expected, atol=1e-5 * np.abs(expected).max(), err_msg=str(path))
        np.testing.assert_allclose(cosines_of(vectors), cosines, atol=1e-5, err_msg=str(path))


def cosines_of(vectors):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


TOPICS = {
    "kitchen": ["bread", "butter", "oven", "spoon", "soup", "pepper", "onion", "plate", "knife", "café"],
    "music": ["violin", "piano", "chord", "rhythm", "drum", "song", "choir", "flute", "melody", "tune"],
    "weather": ["rain", "storm", "wind", "cloud", "snow", "thunder", "frost", "fog", "sunny", "drizzle"],
}
ODD_CONTEXTS = [
    "the  CAFE\u0301 was bad!\t the violin is good.",
    "天气 the \U0001f469\u200d\U0001f373 soup is good. the rain\u00ad was bad! 😀",
    "שלום the  piano is good. עולם the  frost was bad!",
    "the drum is good. " * 6 + "the snow was bad! " + "the knife is good. " * 6,
    "",
]
SHORTER = ("classify", "pair", "multilabel", "regress", "tag", "crf")  # together two minutes
TASKS = ("answer", *(pytest.param(task, marks=pytest.mark.slow) for task in SHORTER))


def examples_of(task: str, count: int = 400) -> list:
    """Examples told apart by their words."""
    draw, examples = random.Random(task), []
    for _ in range(count):
        topic = draw.choice(sorted(TOPICS))
        other = draw.choice(sorted({*TOPICS} - {topic}))
        (first, second), third = draw.sample(TOPICS[topic], 2), draw.choice(TOPICS[other])
        end = draw.choice([" is good.", " was bad!", ""])
        if task == "classify":
            examples.append(Example(f"the {first} {second}{end}", topic))
        elif task == "pair":
            examples.append(Example(third, topic, f"the {first} {second}{end}"))
        elif task == "regress":
            examples.append(Example(f"the {first} {second}{end}", float(sorted(TOPICS).index(topic))))
        elif task == "multilabel":
            both = draw.random() < 0.5
            examples.append(
                Example(f"the {first} {third if both else second}{end}", (topic, other) if both else (topic,))
            )
        elif task in ("tag", "crf"):
            tags = ("O", f"B-{topic}", f"I-{topic}", "O", "O", "O", f"B-{other}")
            examples.append(Tagged(("The", first, second, "is", "good", ".", third), tags))
        else:
            parts = [f"the  {first} is good.", f"the {third} was bad!"]
            context = " ".join(parts if draw.random() < 0.5 else parts[::-1])
            examples.append(Question(f"{TOPICS[topic][0]} number?", context, ((first, context.index(first)),)))
    return examples


def compared(task: str, answer: dict):
    """What of an answer must be the same in every engine."""
    if task == "tag":
        return [(word["word"], word["start"], word["end"], word["label"]) for word in answer["words"]]
    if task == "answer":
        return answer["answer"], answer["start"], answer["end"]
    return answer.get("label", answer.get("labels", answer.get("value")))


@pytest.fixture(scope="module")
def trained(models, tmp_path_factory):
    """A function from a journey's name to its model folder, its examples and its task; each is trained once."""
    root, done = tmp_path_factory.mktemp("journeys"), {}

    def of(name: str) -> tuple[Path, list, str]:
        if name not in done:
            task, examples = {"crf": "tag", "pair": "classify"}.get(name, name), examples_of(name)
            recipes.finetune(
                examples[:320],
                examples[320:],
                models / "bert" / "pretrained",
                root / name,
                task=task,
                **({"crf": True} if name == "crf" else {}),
                steps=400 if name == "answer" else 120,
                learning_rate=0.005,
                dropout=0.0,
            )
            done[name] = root / name, examples[320:], task
        return done[name]

    return of


@pytest.fixture(scope="module")
def converted(trained, tmp_path_factory):
    """A function from a journey's name to its float32 .tflite file; each is converted once."""
    root, done = tmp_path_factory.mktemp("converted"), {}

    def of(name: str) -> Path:
        if name not in done:
            lengths = (16, 96) if name == "answer" else (16, 32)  # windows would have answers of their own
            done[name] = quantize.convert(trained(name)[0], root / f"{name}.tflite", "none", lengths)
        return done[name]

    return of


@pytest.mark.parametrize("name", TASKS)
def test_every_head_in_every_engine(name, trained, converted, tmp_path):
    """Train, score, SavedModel with raw strings, TFLite int8: the same answers, without TensorFlow at the end."""
    folder, examples, task = trained(name)
    scores = recipes.score(folder, examples, predictions=tmp_path / "answers.jsonl")
    low, high = scores["interval"]
    assert scores[scores["metric"]] > 0.95 and low <= scores[scores["metric"]] <= high
    assert len((tmp_path / "answers.jsonl").read_text("utf-8").splitlines()) == len(examples)

    texts = [getattr(example, "text", "") or " ".join(getattr(example, "words", ())) for example in examples] + AWKWARD
    pairs = None
    if name == "pair":
        pairs = [example.pair for example in examples] + AWKWARD[::-1]
    if name == "answer":
        texts = [example.question for example in examples] + ["snow number?"] * len(ODD_CONTEXTS)
        pairs = [example.context for example in examples] + ODD_CONTEXTS
    expected = keras_engine.predictor(folder)(texts, pairs)

    served = saved_model.load(saved_model.export(*saving.load(folder), tmp_path / "served"))(texts, pairs)
    edge = runtime.load(converted(name))(texts, pairs)
    for text, wanted, *others in zip(texts, expected, served, edge, strict=True):
        if name == "regress":
            np.testing.assert_allclose([other["value"] for other in others], wanted["value"], atol=1e-4, err_msg=text)
        else:
            assert all(compared(task, other) == compared(task, wanted) for other in others), text

    quantize.convert(folder, tmp_path / "int8.tflite", "dynamic", (16, 32))
    script = (
        "import json, sys\nfrom keras_ctxrep_tflite import runtime\n"
        "texts, pairs = json.load(sys.stdin)\nanswers = runtime.load(sys.argv[1])(texts, pairs)\n"
        "print(json.dumps([answers, 'tensorflow' in sys.modules or 'keras' in sys.modules]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "int8.tflite")]
    known = [texts[: len(examples)], pairs and pairs[: len(examples)]]
    ran = subprocess.run(command, input=json.dumps(known), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    small, tensorflow = json.loads(ran.stdout)
    assert not tensorflow
    if name == "regress":
        np.testing.assert_allclose(
            [answer["value"] for answer in small], [wanted["value"] for wanted in expected[:80]], atol=0.05
        )
    else:
        assert [compared(task, answer) for answer in small] == [
            compared(task, wanted) for wanted in expected[: len(examples)]
        ]


def test_answers_and_entities_are_exact_spans_of_the_original_text(trained):
    predict = keras_engine.predictor(trained("answer")[0])
    features = predict.bundle.features
    for context in ODD_CONTEXTS:
        (rows,) = features.windows(["snow number?"], [context])
        pieces = [context[begin:end] for row in rows for begin, end in row.offsets[row.first : -1]]
        assert not any(char in piece for piece in pieces for char in " \u00ad\t")
        (answer,) = predict(["snow number?"], [context])
        assert answer["answer"] == context[answer["start"] : answer["end"]]
        for other in answer["n_best"]:
            assert other["answer"] == context[other["start"] : other["end"]]
    tagger = keras_engine.predictor(trained("crf")[0])
    for text in (*AWKWARD, *ODD_CONTEXTS[:-1]):
        (answer,) = tagger([text])
        assert all(entity["text"] == text[entity["start"] : entity["end"]] for entity in answer["entities"])
        assert all(word["word"] == text[word["start"] : word["end"]] for word in answer["words"])
    (answer,) = tagger(["the  soup\u00ad  pepper is good.\tviolin"])
    assert [(entity["type"], entity["text"]) for entity in answer["entities"]] == [
        ("kitchen", "soup\u00ad  pepper"),
        ("music", "violin"),
    ]


@pytest.mark.parametrize(
    "name", ["crf", *(pytest.param(name, marks=pytest.mark.slow) for name in ("answer", "multilabel"))]
)
def test_compare_every_task(name, trained, converted):
    folder, examples, _ = trained(name)
    engines = [open_model(folder), open_model(converted(name))]
    reference, edge = compare.compare(engines, examples[:10])
    assert reference["agreement"] == edge["agreement"] == 1 and edge["difference"] < 1e-3
    assert reference["quality"] == edge["quality"] > 0.9 and edge["milliseconds"] > 0


def test_compare(models, tmp_path):
    folder = models / "bert" / "classifier"
    quantize.convert(folder, tmp_path / "a.tflite", lengths=(32,))
    examples = list(tasks.get("classify").read(models / "test.tsv"))[:20]
    engines = [open_model(folder), open_model(tmp_path / "a.tflite")]
    reference, edge = compare.compare(engines, examples)
    assert reference["agreement"] == edge["agreement"] == 1 and reference["difference"] == 0 < edge["difference"] < 1e-4
    assert edge["bytes"] == (tmp_path / "a.tflite").stat().st_size and edge["milliseconds"] > 0
    assert reference["metric"] == "accuracy" and reference["quality"] == edge["quality"]
    with pytest.raises(ValueError, match="not the reference's"):
        edge_bundle = engines[1].bundle
        engines[1].answer = Predictor(replace(edge_bundle, labels=edge_bundle.labels[::-1]), dict)
        compare.compare(engines, examples)
