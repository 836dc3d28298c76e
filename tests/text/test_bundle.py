"""The bundle: written, read, damaged."""

import hashlib
import json
import os
import zipfile
from dataclasses import replace

import pytest

from keras_ctxrep import tasks
from keras_ctxrep.atomic import atomic_write, sha256
from keras_ctxrep.text import bundle as bundles
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import (
    CharacterAndWordFeatures,
    CharacterFeatures,
    Reads,
    StaticFeatures,
    WordFeatures,
    WordPieceFeatures,
)
from keras_ctxrep.text.tokens import SPECIAL_PIECES

BERT = Bundle(
    "bert",
    "classify",
    {"width": 4},
    8,
    labels=("süß", "salty"),
    vocab=(*SPECIAL_PIECES, "é", "\u2028", ""),
    lowercase=False,
    strip_accents=True,
    split_cjk=False,
    head={"mix": True},
    versions={"numpy": "2"},
)
ELMO = Bundle("elmo", "embed", {"max_characters": 12}, 5)
ANSWER = replace(
    BERT,
    task="answer",
    labels=(),
    head={},
    reads=Reads(pair=True, windows=True),
    settings={"stride": 7, "max_answer": 5, "null_threshold": -1.5},
)
WITH_EXTRA_EMBEDDINGS = Bundle(
    "elmo",
    "tag",
    {"max_characters": 12},
    5,
    labels=("O", "B-X"),
    vocab=("<UNK>", "a"),
    head={"crf": True},
    stack={"kind": "lstm", "units": 3, "output_mix": True},
    extra_embeddings={"words": 2, "width": 4, "min_n": 0, "max_n": 0, "buckets": 0, "lowercase": True},
)


@pytest.fixture
def folder(tmp_path):
    """A model folder with weights in it."""
    path = tmp_path / "model"
    path.mkdir()
    (path / bundles.WEIGHTS).write_bytes(b"weights")
    bundles.save(BERT, path)
    return path


def rewrite(folder, **fields):
    """Changes fields of bundle.json, and takes its checksum out; None takes one out."""
    path = folder / bundles.NAME
    content = json.loads(path.read_text(encoding="utf-8")) | {bundles.CHECKSUM: None} | fields
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), encoding="utf-8")


def fields_of(bundle):
    return {name: getattr(bundle, name) for name in bundle.__dataclass_fields__ if name != "files"}


@pytest.mark.parametrize("bundle", [BERT, ELMO, ANSWER, WITH_EXTRA_EMBEDDINGS])
def test_round_trip(tmp_path, bundle):
    bundles.save(bundle, tmp_path / "new" / "folder")
    loaded = bundles.load(tmp_path / "new" / "folder")
    assert fields_of(loaded) == fields_of(bundle)
    assert bundles.load(str(tmp_path / "new" / "folder")) == loaded
    names = {"bundle.json", "vocab.txt"} if bundle.vocab else {"bundle.json"}
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == names


def test_a_card_is_a_file_that_a_user_may_edit(tmp_path):
    bundles.save(replace(BERT, card="# Ours\n\nTrained on «books».\n"), tmp_path / "a")
    loaded = bundles.load(tmp_path / "a")
    assert loaded.card == "# Ours\n\nTrained on «books».\n" and "card.md" not in loaded.files
    assert "card" not in json.loads((tmp_path / "a" / bundles.NAME).read_text(encoding="utf-8"))
    (tmp_path / "a" / "card.md").write_text("# Yours\n")
    assert bundles.load(tmp_path / "a").card == "# Yours\n"
    (tmp_path / "a" / "card.md").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"card\.md: 'utf-8' codec"):
        bundles.load(tmp_path / "a")
    bundles.save(BERT, tmp_path / "a")  # a model of its own: the card was another's
    assert bundles.load(tmp_path / "a").card == ""


def test_hashes_of_the_other_files(folder):
    files = bundles.load(folder).files
    assert set(files) == {"vocab.txt", "model.weights.h5"}
    assert files["model.weights.h5"] == hashlib.sha256(b"weights").hexdigest()
    assert files["vocab.txt"] == sha256(folder / "vocab.txt")


def test_in_the_assets_of_a_saved_model(tmp_path):
    bundles.save(BERT, tmp_path / "assets.extra")
    assert fields_of(bundles.load(tmp_path)) == fields_of(BERT)


def test_zipped_at_the_end_of_a_file(tmp_path):
    path = tmp_path / "model.tflite"
    bundles.write_tflite(path, b"\x1c\x00\x00\x00TFL3" + bytes(1000), BERT)
    assert fields_of(bundles.load(path)) == fields_of(BERT)


@pytest.mark.parametrize("name", ["vocab.txt", "model.weights.h5"])
def test_a_changed_file(folder, name):
    (folder / name).write_bytes(b"[PAD]\n")
    with pytest.raises(ValueError, match=f"model: {name} is not the file the bundle was written with"):
        bundles.load(folder)


def test_a_changed_bundle(folder):
    """Each value of it is part of its checksum; its layout is not, and it may be taken out."""
    path = folder / bundles.NAME
    content = json.loads(path.read_text(encoding="utf-8"))
    changes = {"labels": ["yes", "nn"], "lowercase": not content["lowercase"], "max_length": content["max_length"] + 1}
    for name, value in changes.items():
        path.write_text(json.dumps(content | {name: value}), encoding="utf-8")
        with pytest.raises(ValueError, match=r"model: bundle\.json is damaged .*: it is not as it was written"):
            bundles.load(folder)
    path.write_text(json.dumps(dict(reversed(content.items())), indent=3), encoding="utf-8")
    assert fields_of(bundles.load(folder)) == fields_of(BERT)
    rewrite(folder, lowercase=not BERT.lowercase)
    assert bundles.load(folder).lowercase is not BERT.lowercase


def test_every_bit_of_a_bundle(folder):
    """A flipped bit is found, but for the layout of the file."""
    path, bundle = folder / bundles.NAME, bundles.load(folder)
    data = bytearray(path.read_bytes())
    refused = 0
    for position in range(len(data)):
        data[position] ^= 1 << position % 8
        path.write_bytes(data)
        data[position] ^= 1 << position % 8
        try:
            assert bundles.load(folder) == bundle
        except ValueError as error:
            assert "bundle.json" in str(error) and str(error).isprintable()
            refused += 1
    assert refused > 0.8 * len(data)


@pytest.mark.parametrize("name", ["bundle.json", "vocab.txt", "card.md"])
def test_files_that_would_fill_the_memory(folder, name):
    with (folder / name).open("ab") as file:
        file.truncate(10_000_000_000)
    with pytest.raises(ValueError, match=rf"{name} has 10,000,000,000 bytes; no more than"):
        bundles.load(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("name", ["vocab.txt", "card.md"])
def test_pipes_are_not_waited_for(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=f"{name} is not a regular file"):
        bundles.load(folder)


@pytest.mark.parametrize("name", ["vocab.txt", "model.weights.h5"])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"model: {name} is missing; copy the whole folder again"):
        bundles.load(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/../secret", "a/../../secret", ".."])
def test_file_names_outside_the_folder_are_not_read(folder, name):
    secret = folder.parent / "secret"
    secret.write_bytes(b"x")
    rewrite(folder, files={"vocab.txt": sha256(folder / "vocab.txt"), name: sha256(secret)})
    with pytest.raises(ValueError, match="is missing"):
        bundles.load(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b'"text"', b"null", b"{}", b"[" * 100_000])
def test_damaged_json(folder, content):
    (folder / bundles.NAME).write_bytes(content)
    with pytest.raises(ValueError, match=r"model: bundle\.json is damaged"):
        bundles.load(folder)


def test_a_key_twice(folder):
    file = folder / bundles.NAME
    file.write_text(file.read_text(encoding="utf-8").replace('"task":', '"task": "tag",\n "task":', 1), "utf-8")
    with pytest.raises(
        ValueError, match=r"model: bundle\.json is damaged .*: the key 'task' stands twice .*: line \d+ col"
    ):
        bundles.load(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 3}, "another version: format is not 1 to 2"),
        ({"format": None}, "damaged or missing: format"),
        ({"labels": None}, "damaged or missing: labels"),
        ({"labels": 3}, "labels=3: must be a list"),
        ({"config": None}, "config is missing"),
        ({"config": [1]}, r"config=\[1\]: must be an object"),
        (
            {"config": {"max_characters": 10**9}},
            r"config\.max_characters=1000000000: must be at least 3 and at most 1,000",
        ),
        ({"max_length": "8"}, "max_length='8': must be a whole number"),
        ({"max_length": 0}, "max_length=0: must be at least 1 and at most"),
        ({"labels": [1, "a"]}, r"labels=\[1, 'a'\]: must be a text"),
        ({"labels": "ab"}, "labels='ab': must be a list"),
        ({"lowercase": 1}, "lowercase=1: must be true or false"),
        ({"strip_accents": "no"}, "strip_accents='no': must be true or false"),
        ({"settings": {"null_threshold": float("nan")}}, "settings.null_threshold=nan: must be a finite number"),
        ({"settings": {"stride": 0}}, "settings.stride=0: must be at least 1"),
        ({"head": []}, r"head=\[\]: must be an object"),
        ({"files": {"vocab.txt": 3}}, r"files\.vocab\.txt=3: must be a text"),
        ({"surprise": 1}, "surprise: no such key; it is damaged or of another version"),
        ({"family": "gpt"}, "family='gpt': one of elmo, bert, static"),
        ({"reads": {"word": True}}, "reads.word: no such key"),
        ({"reads": {"marks": 99}}, "reads.marks=99: must be at least 0 and at most 16"),
        ({"files": ["vocab.txt"]}, r"files=\['vocab.txt'\]: must be an object"),
        ({"files": "x"}, "files='x': must be an object"),
    ],
)
def test_wrong_fields(folder, fields, message):
    rewrite(folder, **fields)
    with pytest.raises(ValueError, match=rf"model(: |/)bundle\.json.*{message}") as raised:
        bundles.load(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON: Expecting value: line 1 column 1"),
        (b"[" * 100_000, "not JSON: nested too deeply$"),
        (b"\xff", "not JSON: not UTF-8$"),
        (b"9" * 5000, "not JSON: Exceeds the limit"),
        (b"null", "not an object of the keys that it needs$"),
    ],
)
def test_messages_are_for_users(folder, content, message):
    (folder / bundles.NAME).write_bytes(content)
    with pytest.raises(ValueError, match=rf"model: bundle\.json is damaged or of another version: {message}"):
        bundles.load(folder)


@pytest.mark.parametrize("name", ["files", "columns", "reads", "settings", "head"])
def test_names_of_others_are_printable(folder, name):
    rewrite(folder, **{name: {"\x1b[2J\x9b31m": 1}})
    try:
        bundles.load(folder)
    except ValueError as error:
        assert str(error).isprintable()


def test_no_bundle(tmp_path):
    with pytest.raises(ValueError, match=r"no bundle\.json in it"):
        bundles.load(tmp_path)
    with pytest.raises(ValueError, match="none: no such file or folder"):
        bundles.load(tmp_path / "none")
    (tmp_path / "model.tflite").write_bytes(b"TFL3" * 100)
    with pytest.raises(ValueError, match=r"model\.tflite: no bundle in it"):
        bundles.load(tmp_path / "model.tflite")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(ValueError, match=r"other\.zip"):
        bundles.load(tmp_path / "other.zip")


def test_features_follow_the_bundle():
    characters, pieces = ELMO.features, BERT.features
    assert isinstance(characters, CharacterFeatures) and isinstance(pieces, WordPieceFeatures)
    assert characters(["a b c d e f"])["char_ids"].shape == (1, 5, 12)
    words = Bundle("elmo", "embed", {"words": 4}, 2, vocab=("<S>", "</S>", "<UNK>", "a")).features
    assert isinstance(words, WordFeatures) and words(["b a a"])["word_ids"].tolist() == [[3, 4]]
    assert pieces.max_length == 8 and not pieces.wordpiece.lowercase and pieces.wordpiece.vocab == list(BERT.vocab)


def test_a_tagger_of_word_pieces_reads_where_words_begin():
    for task in tasks.SERVED:
        features = replace(BERT, **tasks.bundle_fields(task)).features
        assert features.starts == ("starts" in features.keys) == (task in ("tag", "semantic_roles"))
    assert not any(replace(BERT, task=task).features.starts for task in ("language_model", "pretrainer"))


def test_features_of_static_vectors():
    features = WITH_EXTRA_EMBEDDINGS.features
    assert isinstance(features, CharacterAndWordFeatures) and features.max_length == 5
    assert features([["A", "b"]])["word_ids"].tolist() == [[2, 1]]
    ngrams = {"min_n": 3, "max_n": 6, "buckets": 20, "lowercase": False}
    static = Bundle("static", "embed", ngrams, 5, vocab=("<UNK>", "a")).features
    assert isinstance(static, StaticFeatures) and static.ngrams == (3, 6, 20) and static.keys[0] == "subword_ids"


@pytest.mark.parametrize("split_cjk", [True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("lowercase", [True, False])
def test_features_follow_the_rules_of_the_vocabulary(lowercase, strip_accents, split_cjk):
    bundle = Bundle("bert", "embed", {}, 8, (), BERT.vocab, lowercase, strip_accents, split_cjk)
    pieces = bundle.features.wordpiece
    stripped = lowercase if strip_accents is None else strip_accents
    assert (pieces.lowercase, pieces.strip_accents, pieces.split_cjk) == (lowercase, stripped, split_cjk)
    accent = BERT.vocab.index("é")
    ids = {text: [piece.id for piece in pieces.encode(text)] for text in ("é", "É", "日本")}
    assert (ids["é"] == [accent]) == (not stripped)
    assert (ids["É"] == [accent]) == (lowercase and not stripped)
    assert len(ids["日本"]) == (2 if split_cjk else 1)


FORMAT_1 = {"format": 1, "reads": None, "settings": None}  # which format 1 does not have
ASKING = {"stride": 128, "max_answer": 30, "null_threshold": None}


def test_bundles_without_later_fields(folder):
    later = ("strip_accents", "split_cjk", "stack", "extra_embeddings", "stride", "max_answer", "null_threshold")
    for task, settings in (("classify", {}), ("answer", ASKING)):
        rewrite(folder, **dict.fromkeys(later), **FORMAT_1, task=task)
        loaded = bundles.load(folder)
        assert loaded.strip_accents is None and loaded.split_cjk is True
        assert loaded.stack == loaded.extra_embeddings == {}
        assert loaded.settings == settings
        bundles.save(BERT, folder)


@pytest.mark.parametrize(
    ("task", "pairs", "reads"),
    [
        ("classify", False, Reads()),
        ("classify", True, Reads(pair=True)),
        ("regress", True, Reads(pair=True)),
        ("multilabel", False, Reads()),
        ("embed", False, Reads()),
        ("pretrainer", False, Reads()),
        ("tag", False, Reads(words=True)),
        ("answer", True, Reads(pair=True, windows=True)),
    ],
)
def test_bundles_of_format_1(folder, task, pairs, reads):
    """All of it lay in fields of the bundle, which every task had."""
    answering = {"stride": 64, "max_answer": 9, "null_threshold": -0.5}
    rewrite(folder, **FORMAT_1, task=task, pairs=pairs, **answering)
    loaded = bundles.load(folder)
    assert loaded.reads == reads and loaded.pairs == pairs and loaded.features.starts == (task == "tag")
    assert loaded.settings == (answering if task == "answer" else {})
    bundles.save(loaded, folder / "again")
    assert json.loads((folder / "again" / bundles.NAME).read_text(encoding="utf-8"))["format"] == 2
    assert fields_of(bundles.load(folder / "again")) == fields_of(loaded)


def test_names_of_format_1(tmp_path):
    bundles.save(WITH_EXTRA_EMBEDDINGS, tmp_path)
    stack = {"kind": "lstm", "units": 3, "both_ends": True}
    rewrite(tmp_path, **FORMAT_1, stack=stack, beside=WITH_EXTRA_EMBEDDINGS.extra_embeddings, extra_embeddings=None)
    assert fields_of(bundles.load(tmp_path)) == fields_of(replace(WITH_EXTRA_EMBEDDINGS, reads=Reads(words=True)))
    rewrite(tmp_path, format=2, reads={}, settings={})
    with pytest.raises(ValueError, match="beside: no such key"):
        bundles.load(tmp_path)


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    (tmp_path / "a.weights.h5").write_text("old")
    with pytest.raises(RuntimeError), atomic_write(tmp_path / "a.weights.h5") as path:
        assert path.name == "a.weights.h5" and path.parent != tmp_path
        path.write_text("half")
        raise RuntimeError
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.weights.h5"]
    assert (tmp_path / "a.weights.h5").read_text() == "old"
    with atomic_write(tmp_path / "a.weights.h5") as path:
        path.write_text("new")
    assert (tmp_path / "a.weights.h5").read_text() == "new" and len(list(tmp_path.iterdir())) == 1


def test_how_a_vector_of_a_text_is_made():
    bundle = Bundle("elmo", "embed", {}, 8)
    assert (bundle.pooling, bundle.vector) == (
        "mean",
        "the mean of the top layer over the tokens",
    )  # of earlier ones too
    bundle = replace(bundle, pooling="cls", normalize=True)
    assert bundle.vector == "the top layer at the first token, scaled to length 1"
    assert bundles.from_files(bundle.files_as_bytes(), "memory") == bundle
    with pytest.raises(ValueError, match="pooling='sum': one of mean, max, cls, pooler"):
        bundles.from_files(replace(bundle, pooling="sum").files_as_bytes(), "memory")
