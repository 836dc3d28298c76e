"""Examples from lists, files and TensorFlow Datasets."""

import sys
import warnings

import pytest

from keras_ctxrep import tasks
from keras_ctxrep.recipes import reading
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.tag import Tagged


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
    with pytest.raises(ImportError, match=r'pip install "keras_ctxrep\[data\]"'):
        list(read("classify", "tfds:glue/sst2"))
