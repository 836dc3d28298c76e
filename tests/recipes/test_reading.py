"""Examples from lists, files and TensorFlow Datasets."""

import json
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf

import keras_ctxrep
from keras_ctxrep import recipes, saving, tasks
from keras_ctxrep.cli.main import main
from keras_ctxrep.recipes import reading
from keras_ctxrep.recipes.targets import Reader
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.tag import Tagged
from tests import tiny


def read(task, *args, **options):
    return reading.read(tasks.get(task), *args, **options)


@pytest.fixture(scope="module")
def tfds():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("tensorflow_datasets")


@pytest.fixture
def prepare(tfds, tmp_path, monkeypatch):
    """Puts a small data set where TensorFlow Datasets looks for prepared ones."""
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))

    def prepare(name, features, config=None, version="1.0.0", **splits):
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            config=config,
            version=version,
            features=features,
            data_dir=tmp_path,
            split_datasets={split: enumerate(rows) for split, rows in splits.items()},
            disable_shuffling=True,
        )

    return prepare


def test_examples_pass_through():
    examples = [Example("a", "x"), Example("b", "y")]
    assert list(read("classify", examples)) == examples == list(read("classify", (example for example in examples)))


def test_a_file(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("body\tlabel\na\t1\nb\tx\n")
    skipped = []
    for data in (path, str(path)):
        assert list(read("regress", data, {"text": "body"}, skipped)) == [Example("a", 1.0)]
    assert skipped == 2 * [f"{path}:3: label 'x' is not a finite number"]


@pytest.mark.parametrize(
    ("name", "pair"),
    [("glue/sst2", None), ("glue/mrpc", ("sentence1", "sentence2")), ("glue/mnli", ("premise", "hypothesis"))],
)
def test_classes_of_a_prepared_set(tfds, prepare, name, pair):
    info = tfds.builder(name).info
    names = info.features["label"].names
    texts = pair or ("sentence",)
    rows = [dict.fromkeys(texts, f"è {i}") | {"label": i % 2, "idx": i} for i in range(5)]
    unknown = dict.fromkeys(texts, "?") | {"label": -1, "idx": 0}
    prepare(*name.split("/")[:1], info.features, name.split("/")[1], str(info.version), train=rows, test=[unknown])
    examples = list(read("classify", f"tfds:{name}"))
    assert examples == [Example(f"è {i}", names[i % 2], f"è {i}" if pair else None) for i in range(5)]
    assert examples[4].source == f"tfds:{name}:train:5"
    assert [example.text for example in read("classify", f"tfds:{name}:train[1:3]")] == ["è 1", "è 2"]
    assert list(read("classify", f"tfds:{name}", split="test")) == [Example("?", None, "?" if pair else None)]
    with pytest.raises(ValueError, match=rf"tfds:{name}: no split 'validation'; it has train, test"):
        list(read("classify", f"tfds:{name}", split="validation"))


def test_tags_numbers_and_questions_of_prepared_sets(tfds, prepare):
    info = tfds.builder("conll2003").info
    row = {"tokens": ["EU", "rejects"], "ner": ["B-ORG", "O"], "pos": ["NNP", "VBZ"], "chunks": ["B-NP", "B-VP"]}
    prepare("conll2003", info.features, "conll2003", str(info.version), train=[row])
    assert list(read("tag", "tfds:conll2003")) == [Tagged(("EU", "rejects"), ("B-ORG", "O"))]
    assert list(read("tag", "tfds:conll2003", {"label": "pos"})) == [Tagged(("EU", "rejects"), ("NNP", "VBZ"))]

    info = tfds.builder("glue/stsb").info
    row = {"sentence1": "a", "sentence2": "b", "label": 2.5, "idx": 0}
    prepare("glue", info.features, "stsb", str(info.version), train=[row])
    assert list(read("regress", "tfds:glue/stsb")) == [Example("a", 2.5, "b")]

    info = tfds.builder("squad/v2.0").info
    none = {"text": [], "answer_start": []}
    row = {"id": "1", "title": "", "context": "In Rome.", "question": "Where?", "plausible_answers": none}
    answer = {"text": ["Rome"], "answer_start": [3]}
    wrong = {"text": ["Rome"], "answer_start": [4]}
    rows = [
        row | {"answers": answer, "is_impossible": False},
        row | {"answers": none, "is_impossible": True},
        row | {"answers": wrong, "is_impossible": False},
    ]
    prepare("squad", info.features, "v2.0", str(info.version), train=rows)
    skipped = []
    examples = list(read("answer", "tfds:squad/v2.0", skipped=skipped))
    assert examples == [Question("Where?", "In Rome.", answers, "1") for answers in ((("Rome", 3),), ())]
    assert [message.partition(": ")[0] for message in skipped] == ["tfds:squad/v2.0:train:3"]
    with pytest.raises(ValueError, match=r"^tfds:squad/v2\.0:train:3: question '1': answer 'Rome' is not at"):
        list(read("answer", "tfds:squad/v2.0"))


@pytest.mark.trains
def test_a_prepared_set_in_every_command(tfds, prepare, tmp_path, capsys):
    """score, predict and embed read it as train does; without a split predict and embed read the test rows."""
    info = tfds.builder("glue/sst2").info
    rows = [{"sentence": "the cat", "label": 1, "idx": 0}, {"sentence": "rain fell", "label": 0, "idx": 1}]
    unknown = [{"sentence": "she", "label": -1, "idx": 0}]
    prepare("glue", info.features, "sst2", str(info.version), train=rows, test=unknown)
    folder = str(tiny.save(tmp_path / "m", tiny.bundle("classify", labels=("negative", "positive"))))
    capsys.readouterr()
    assert main(["score", folder, "--data", "tfds:glue/sst2:train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 2
    assert main(["predict", folder, "--data", "tfds:glue/sst2"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["sentence"] == "she" and "prediction" in json.loads(line)
    assert main(["embed", folder, "--input", "tfds:glue/sst2:train", "--out", str(tmp_path / "v.npz")]) == 0
    assert "2 sentences" in capsys.readouterr().out
    vectors = tiny.arrays_of(tmp_path / "v.npz")
    model = keras_ctxrep.load(folder)
    np.testing.assert_allclose(vectors["1"], model.encode(["rain fell"])[0], atol=1e-6)
    assert main(["predict", folder, "--data", "tfds:glue/sst2:validation"]) == 1
    assert "no split 'validation'; it has" in capsys.readouterr().err


def test_nothing_is_downloaded(prepare):
    with pytest.raises(
        ValueError, match=r"^tfds:glue/sst2: not prepared in .* prepare it with: python -c .*'glue/sst2'"
    ):
        list(read("classify", "tfds:glue/sst2"))


@pytest.mark.parametrize("name", ["nosuchset", "glue/nosuch"])
def test_an_unknown_data_set(prepare, name):
    with pytest.raises(ValueError, match=f"^tfds:{name}: no such data set in TensorFlow Datasets") as caught:
        list(read("classify", f"tfds:{name}"))
    assert "\n" not in str(caught.value)


def test_errors_are_raised_before_anything_is_read():
    with pytest.raises(ValueError, match="task 'sort': one of"):
        read("sort", "tfds:glue/sst2")
    with pytest.raises(ValueError, match="columns"):
        read("tag", "tfds:glue/sst2", {"pair": "x"})


def test_without_tensorflow_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r'pip install "tensorflow-datasets'):
        list(read("classify", "tfds:glue/sst2"))


# ----------------------------------------------------------------------------------------------------- Python objects


class Series:
    """A column of pandas or Polars, as far as it is read."""

    def __init__(self, *values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        array = np.empty(len(self.values), object)
        array[:] = self.values
        return array


class Frame:
    """A frame of pandas or Polars, as far as it is read."""

    def __init__(self, **columns):
        self.columns, self._columns = list(columns), columns

    def __getitem__(self, name):
        return self._columns[name]


TEXTS, LABELS = ["a fine day", "rain"], ["good", "bad"]


@pytest.mark.parametrize(
    "data",
    [
        (TEXTS, LABELS),
        (np.array(TEXTS), np.array(LABELS, object)),
        (Series(*TEXTS), LABELS),
        {"text": TEXTS, "label": np.array(LABELS)},
        {"label": Series(*LABELS), "sentence": TEXTS, "id": [1, 2]},
        Frame(text=Series(*TEXTS), label=Series(*LABELS)),
        tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)),
        tf.data.Dataset.from_tensor_slices({"text": TEXTS, "label": LABELS}),
    ],
)
def test_columns_tables_and_data_sets(data):
    examples = list(read("classify", data))
    assert examples == [Example("a fine day", "good"), Example("rain", "bad")] == list(read("classify", data))
    assert examples[1].source == "the data: row 2"


def test_columns_of_other_tasks():
    pairs = (["a", "b"], ["c", "d"], np.array([1.5, 2]))
    assert list(read("regress", pairs)) == [Example("a", 1.5, "c"), Example("b", 2.0, "d")]
    words = ([["EU", "rejects"], ["No"]], [["B-ORG", "O"], ["O"]])
    assert list(read("tag", words)) == [Tagged(("EU", "rejects"), ("B-ORG", "O")), Tagged(("No",), ("O",))]
    answers = [{"text": ["Rome"], "answer_start": [3]}]
    assert next(iter(read("answer", (["Where?"], ["In Rome."], answers)))).answers == (("Rome", 3),)
    assert list(read("multilabel", {"text": ["a"], "labels": [["x", "y"]]})) == [Example("a", ("x", "y"))]
    assert list(read("classify", (TEXTS, [np.int64(1), 0]))) == [Example("a fine day", "1"), Example("rain", "0")]


def test_columns_that_have_other_names_or_no_value():
    frame = Frame(Subject=TEXTS, Queue=Series("good", float("nan")))
    examples = list(read("classify", frame, {"text": "Subject", "label": "Queue"}))
    assert examples == [Example("a fine day", "good"), Example("rain", None)]


def missing_in(library):
    """Columns of three labels, of which the second is missing."""
    if library == "numpy":
        dates = np.array(["2020-01-01", "NaT", "2020-01-02"], "datetime64[D]")
        masked = np.ma.array([1, 2, 0], mask=[False, True, False])
        return [
            ["x", None, "y"],
            ["x", np.nan, "y"],
            np.array(["x", None, "y"], object),
            np.array([1, np.nan]),
            masked,
            dates,
        ]
    pandas = pytest.importorskip("pandas")
    kinds = ("Int64", "Float64", "boolean", "int64", "float64", "object", "category")
    columns = [pandas.Series([1, None, 0], dtype=kind if kind != "int64" else "float64") for kind in kinds]
    columns += [pandas.Series(["x", None, "y"], dtype=kind) for kind in ("string", "str", "object", "category")]
    columns += [pandas.Series(["x", none, "y"], dtype=object) for none in (pandas.NA, pandas.NaT, np.nan)]
    return [*columns, pandas.Series(pandas.to_datetime(["2020-01-01", None, "2020-01-02"]))]


@pytest.mark.parametrize("library", ["numpy", "pandas"])
def test_a_missing_label_is_no_class(library):
    """It is refused with its row, its column and the remedy, or left out and counted."""
    for labels in missing_in(library):
        texts = ["a", "b", "c"][: len(labels)]
        for data in ((texts, labels), {"text": texts, "label": labels}):
            with pytest.raises(ValueError) as raised:
                list(Reader(tasks.get("classify"))(data))
            assert str(raised.value) == (
                'the data: row 2: no label: columns={"label": "NAME"} names its column, skip_bad=True leaves such rows '
                "out (looked for in column 'label')"
            )
            skipped = []
            left = [example.text for example in Reader(tasks.get("classify"), skipped=skipped)(data)]
            assert left == [*texts[:1], *texts[2:]] and skipped == ["the data: row 2: no label"]


@pytest.mark.parametrize("none", [None, np.nan, "NA", "NaT"])
@pytest.mark.parametrize(
    ("task", "columns", "message"),
    [
        ("regress", (["a", "b"], [1.0, ...]), "no label: columns="),
        ("multilabel", (["a", "b"], [[], ...]), "no label: columns="),
        ("multilabel", (["a", "b"], [[], ["x", ...]]), r"labels \['x', None\]: one of them is empty"),
        ("tag", ([["a"], ["b", "c"]], [["O"], ...]), "no tags: columns="),
        ("tag", ([["a"], ["b", "c"]], [["O"], ["O", ...]]), "word 2, 'c', has no tag"),
        ("tag", ([["a"], ["b", ...]], [["O"], ["O", "O"]]), "None is not a word"),
        ("answer", (["a", "b"], ["c", "d"], [[], ...]), "no answers: columns="),
        ("answer", (["a", "b"], ["c", ...], [[], []]), "no context in column 'context'"),
        ("similar", (["a", "b"], ["c", ...]), "no pair: columns="),
        (
            "similar",
            (["a", "b"], ["c", "d"], [0.5, ...]),
            "a pair without a score, and the first example is a pair with",
        ),
        ("translate", (["a", "b"], ["c", ...]), "no targets: columns="),
        ("classify", (["a", ...], ["x", "y"]), "no text in column 'text'; fill it"),
        ("classify", (["a", "b"], ["c", ...], ["x", "y"]), "one text; this model reads a pair of texts"),
    ],
)
def test_what_is_missing_in_python_names_its_row(task, columns, message, none):
    if isinstance(none, str):
        none = getattr(pytest.importorskip("pandas"), none)

    def filled(value):
        return none if value is ... else [*map(filled, value)] if isinstance(value, list) else value

    data = tuple(filled(column) for column in columns)
    with pytest.raises(ValueError, match=f"^the data: row 2: {message}"):
        list(Reader(tasks.get(task))(data))
    skipped = []
    assert len(list(Reader(tasks.get(task), skipped=skipped)(data))) == 1
    assert [text.partition(": ")[2].partition(": ")[0] for text in skipped] == ["row 2"]


def test_words_that_look_like_missing_values_are_labels():
    words = ["None", "nan", "NaN", "NA", "<NA>", "NaT", "null"]
    assert [example.label for example in read("classify", (["a"] * len(words), words))] == words


def test_messages_about_python_objects_name_keywords():
    frame = Frame(body=Series(*TEXTS), label=Series(*LABELS))
    with pytest.raises(ValueError, match=r'found \[.*\]: columns={"text": "NAME"} gives it another name$'):
        list(read("classify", frame))
    with pytest.raises(
        ValueError, match=r"^the data: row 2: no text in column 'body'; fill it, or leave the row out as"
    ):
        list(read("classify", Frame(body=Series("a", " "), label=Series(*LABELS)), {"text": "body"}))
    with pytest.raises(ValueError, match=r'a score without a pair: columns={"pair": "NAME"} names'):
        list(read("similar", {"text": ["a"], "score": [1.0]}))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([1, 0], {int}), (np.array([1, 0]), {int}), ([True, False], {bool}), (np.array([1.0, 0.0]), {float})],
)
def test_the_types_of_labels(labels, expected, tmp_path):
    assert {kind for example in read("classify", (TEXTS, labels)) for kind in example.types} == expected
    lists = [[label] for label in labels]
    assert {kind for example in read("multilabel", (TEXTS, lists)) for kind in example.types} == expected
    assert {kind for example in read("tag", ([["a"]] * 2, lists)) for kind in example.types} == expected
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "a", "label": 1}) + "\n" for _ in labels))
    assert not any(example.types for example in read("classify", tmp_path / "a.jsonl"))  # of files they are text


@pytest.mark.parametrize("task", ["classify", "multilabel", "tag"])
def test_the_type_of_labels_in_a_bundle(task):
    """One of all labels that is not text; a student has that of its teacher."""
    task = tasks.get(task)
    settings = [task.settings(task.Options(), types) for types in ({int}, {bool}, {int, str}, {str}, {tuple}, set())]
    assert settings == [{"label_type": "int"}, {"label_type": "bool"}, {}, {}, {}, {}]
    teacher = tiny.bundle(task.name, settings={"label_type": "int"})
    assert tasks.of_model(teacher).settings(task.Options(), set()) == {"label_type": "int"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (([*TEXTS, ""], [*LABELS, "bad"]), "^the data: row 3: no text"),
        ((TEXTS, ["good"]), "^columns of different lengths: {'text': 2, 'label': 1}$"),
        ((TEXTS, TEXTS, TEXTS, LABELS), "^columns text, label to text, pair, label are needed, in a tuple or by"),
        (tf.data.Dataset.from_tensor_slices(TEXTS), "^columns text, label to text, pair, label are needed"),
        ({"text": [], "label": []}, "^the data: no examples in it$"),
    ],
)
def test_malformed_objects(data, message):
    with pytest.raises(ValueError, match=message):
        list(read("classify", data))


def test_a_malformed_row_is_left_out():
    skipped = []
    assert list(read("classify", ([*TEXTS, ""], [*LABELS, "x"]), skipped=skipped)) == list(
        read("classify", (TEXTS, LABELS))
    )
    assert [message.partition(": no")[0] for message in skipped] == ["the data: row 3"]


def test_a_fraction_is_held_out():
    learned, held_out = reading.split(range(100), 0.2, seed=1)
    assert len(held_out) == 20 and sorted(learned + held_out) == [*range(100)] and learned == sorted(learned)
    assert (learned, held_out) == reading.split(range(100), 0.2, seed=1) != reading.split(range(100), 0.2, seed=2)
    assert (
        [len(part) for part in reading.split("ab", 0.01)] == [1, 1] == [len(part) for part in reading.split("ab", 0.99)]
    )
    for examples, fraction in (("abc", 1.0), ("abc", 0.0), ("a", 0.5)):
        with pytest.raises(ValueError, match="a fraction above 0 and below 1"):
            reading.split(examples, fraction)


@pytest.mark.trains
def test_training_and_scoring_of_columns(tmp_path):
    """With a part of them as development data, which run.json says."""
    data = ([f"{word} {number}" for word in ("red", "blue") for number in range(20)], ["r"] * 20 + ["b"] * 20)
    options = {"stack": "cnn", "units": 4, "steps": 60, "batch_size": 8, "learning_rate": 0.02}
    recipes.finetune(data, 0.25, "words", tmp_path / "m", **options)
    record = json.loads((tmp_path / "m" / "run.json").read_text())
    assert record["arguments"]["dev"] == 0.25 and record["arguments"]["data"].startswith("40 examples in memory")
    assert record["dev"]["examples"] == 10
    report = recipes.score(tmp_path / "m", {"text": data[0], "label": data[1]})
    assert report["examples"] == 40 and report["accuracy"] > 0.7
    (tmp_path / "a.tsv").write_text(
        "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in zip(*data, strict=False))
    )
    recipes.finetune(tmp_path / "a.tsv", 0.25, "words", tmp_path / "f", **options)
    again = recipes.again(tmp_path / "f", tmp_path / "again")
    assert again[-1]["step"] == 60
    for one, two in zip(*(saving.load(tmp_path / name)[0].get_weights() for name in ("m", "f")), strict=True):
        np.testing.assert_array_equal(one, two)
