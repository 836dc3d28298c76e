"""Preparing corpora: the same shards from any number of processes, after an interruption, and through Beam."""

import gzip
import json
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_ctxrep import recipes, saving
from keras_ctxrep.atomic import lock_folder, sha256
from keras_ctxrep.cli import main
from keras_ctxrep.models import bert, elmo
from keras_ctxrep.recipes import preparing
from keras_ctxrep.recipes.corpora import held_out
from keras_ctxrep.text.corpus import units
from keras_ctxrep.text.pretraining import PREPARED
from keras_ctxrep.text.tokens import SPECIAL_PIECES, words
from keras_ctxrep.training import shards
from tests import tiny

WORDS = [f"w{number}" for number in range(30)]
UNIT = 2_000  # bytes, so that the corpus has several units
KILLED = f"""
import os, signal, sys
from keras_ctxrep import recipes
from keras_ctxrep.recipes import preparing
from keras_ctxrep.training import shards

preparing.UNIT, write, count = {UNIT}, shards.write, 0

def dying(path, records):
    global count
    def endless():
        for record in records:
            if count == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            yield record
    write(path, endless())
    count += 1

shards.write = dying
recipes.prepare([sys.argv[1]], sys.argv[2], vocab=sys.argv[3], max_length=24, copies=2)
"""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small units, and sizes called "test"."""
    monkeypatch.setattr(preparing, "UNIT", UNIT)
    monkeypatch.setitem(bert.SIZES, "test", tiny.config(width=16, initializer_range=0.1))
    monkeypatch.setitem(elmo.SIZES, "test", tiny.config("elmo", cells=16, projection=8))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Eighty documents of 1 to 200 sentences, and a vocabulary of whole words."""
    draw = random.Random(0)
    folder = tmp_path_factory.mktemp("corpus")
    sizes = [200, *(draw.randint(1, 12) for _ in range(79))]
    text = [[" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(size)] for size in sizes]
    text[5].append("\u200b")  # without a word
    (folder / "corpus.txt").write_text("\n\n".join("\n".join(document) for document in text))
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, *WORDS]) + "\n")
    return folder / "corpus.txt"


def prepare(corpus, out, **options):
    options = {"vocab": corpus.parent / "vocab.txt", "max_length": 24, "copies": 2} | options
    return recipes.prepare([corpus], out, **options)


def test_two_at_once_in_one_folder(corpus, tmp_path):
    """The other one is a thread, which has its own locks."""
    refused = pytest.raises(ValueError, match="another process is writing in it")
    with ThreadPoolExecutor() as pool, lock_folder(tmp_path / "prepared"), refused:
        pool.submit(prepare, corpus, tmp_path / "prepared").result()


@pytest.fixture
def prepared(corpus, tmp_path):
    prepare(corpus, tmp_path / "prepared")
    return tmp_path / "prepared"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def files(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("train-*.tfrecord")}


def pretrain(family, corpus, out, **options):
    options = {"size": "test", "max_length": 24, "batch_size": 8, "steps": 2, "dropout": 0.0} | options
    return recipes.pretrain(family, [corpus], out, **options)


def test_the_manifest(prepared):
    manifest = json.loads((prepared / PREPARED).read_text())
    names = sorted(path.name for path in prepared.glob("train-*"))
    assert len(names) == 2 * manifest["units"] == len(manifest["shards"]) > 8
    assert manifest["files"] == {name: sha256(prepared / name) for name in ["valid.tfrecord", "vocab.txt", *names]}
    examples = {name: [*map(shards.masked_example, shards.read(prepared / name))] for name in names}
    for name, counts in manifest["shards"].items():
        pieces = sum(len(example.tokens) for example in examples[name])
        assert counts == {"examples": len(examples[name]), "pieces": pieces}
    assert manifest["examples"] == sum(map(len, examples.values()))
    first, second, other = (examples[f"train-{name}.tfrecord"] for name in ("00001-00", "00001-01", "00002-00"))
    assert first != second and first != other
    assert {path.name for path in prepared.iterdir()} == {*manifest["files"], PREPARED}


def test_units():
    draw = random.Random(0)
    documents = [["x" * draw.randint(1, 30)] * draw.randint(1, 5) for _ in range(300)]
    cut = list(units(documents, 500))
    assert [document for unit in cut for document in unit] == documents
    sizes = [sum(len(sentence) + 1 for document in unit for sentence in document) for unit in cut]
    assert len(sizes) > 20 and min(sizes[:-1]) >= 500 and max(sizes[:-1]) < 500 + 5 * 31 and 250 <= sizes[-1] < 1000
    assert list(units([], 500)) == [] and list(units(documents[:1], 500)) == [documents[:1]]


@pytest.mark.trains
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_two_processes_make_the_same_files(family, corpus, tmp_path):
    options = {} if family == "bert" else {"vocab": None, "max_length": 128, "copies": 10}
    for count in (1, 2):
        prepare(corpus, tmp_path / str(count), family=family, processes=count, **options)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_beam_makes_the_same_files(prepared, corpus, tmp_path):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    prepare(corpus, tmp_path / "beam", runner="DirectRunner", runner_options="--direct_num_workers=1")
    assert contents(prepared) == contents(tmp_path / "beam")


def test_a_runner_without_beam(corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ValueError, match=r"needs Apache Beam: pip install .*apache-beam"):
        prepare(corpus, tmp_path, runner="DirectRunner")


@pytest.mark.trains
def test_a_killed_preparation_continues_with_the_missing_shards(prepared, corpus, tmp_path):
    out = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, corpus, out, corpus.parent / "vocab.txt"]
    assert subprocess.run(command, env=None, capture_output=True).returncode == -9
    before = files(out)
    assert len(before) == 3  # the first file is the held-out text
    with pytest.raises(ValueError, match=r"no prepared\.json that can be read"):
        pretrain("bert", out, tmp_path / "model")
    prepare(corpus, out)
    assert contents(out) == contents(prepared)
    assert before.items() <= files(out).items()
    done = files(out)
    assert prepare(corpus, out) == json.loads((out / PREPARED).read_text())
    assert files(out) == done  # nothing was left to do


def test_other_options_and_damaged_shards_are_made_again(prepared, corpus, tmp_path):
    out = tmp_path / "again"
    prepare(corpus, out, seed=1)
    assert contents(out) != contents(prepared)
    (out / "train-1-note.txt").write_text("mine")
    prepare(corpus, out)
    (out / "train-1-note.txt").unlink()
    assert contents(out) == contents(prepared)
    (out / "train-00001-01.tfrecord").write_bytes(b"damaged")
    prepare(corpus, out)
    assert contents(out) == contents(prepared)


@pytest.mark.trains
def test_an_error_in_another_process(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "SplitSentences", Failing)
    with pytest.raises(ValueError, match="memory short"):
        recipes.prepare([corpus], tmp_path, family="elmo", processes=2)
    assert not (tmp_path / PREPARED).exists()


class Failing(shards.SplitSentences):
    """Ends the process, like the kernel where memory is short."""

    def __call__(self, number, unit, copies):
        import multiprocessing
        import os

        if multiprocessing.parent_process() is not None:
            os._exit(1)
        return super().__call__(number, unit, copies)


# ------------------------------------------------------------------------------------------------------- reading


def test_an_epoch_has_every_record_once_in_an_order_of_its_own(prepared):
    paths = sorted(prepared.glob("train-*.tfrecord"))
    every = Counter(record for path in paths for record in shards.read(path))
    orders = [list(shards.shuffled(paths, seed, epoch, 50)) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert all(Counter(order) == every for order in orders)
    assert orders[0] == orders[1] and orders[0] != orders[2] != orders[3]
    first = shards.read(paths[0])
    positions = [index for index, record in enumerate(orders[0]) if record in first]
    assert max(positions) - min(positions) > 2 * len(first)  # mixed with other shards


def test_empty_shards(tmp_path):
    for number, count in enumerate([0, 3, 0, 0, 2, *[0] * 20, 1]):
        shards.write(tmp_path / f"{number:02}", [shards.sentences_record([["a"]])] * count)
    paths = sorted(tmp_path.iterdir())
    assert len(list(shards.shuffled(paths, 0, 0, 2))) == 6
    (tmp_path / "bad").write_bytes(b"no records at all")
    with pytest.raises(ValueError, match="bad: not a file of prepared text"):
        shards.read(tmp_path / "bad")
    with pytest.raises(ValueError, match="missing: not a file of prepared text"):
        shards.read(tmp_path / "missing")


def test_split_sentences_are_those_of_the_text(corpus, tmp_path):
    out = tmp_path / "elmo"
    counts = recipes.prepare([corpus], out, family="elmo", min_count=1)
    _, read = held_out([corpus], None, 0)
    expected = Counter(
        tuple(word.text for word in split)
        for document in read([corpus])
        for sentence in document
        if (split := words(sentence))
    )
    folder = preparing.prepared_folder([out], "elmo")
    documents = list(folder.documents(0, 0))
    assert Counter(tuple(sentence) for document in documents for sentence in document) == expected
    assert counts["sentences"] == expected.total() and counts["documents"] == len(documents)
    assert counts["words"] == sum(len(sentence) * count for sentence, count in expected.items())
    assert max(map(len, documents)) <= 100 and sorted(folder.vocab[3:]) == sorted(WORDS)
    sentences = {" ".join(sentence) for document in documents for sentence in document}
    held = {" ".join(sentence) for document in folder.held_documents() for sentence in document}
    assert held and not held & sentences


@pytest.mark.trains
@pytest.mark.parametrize("options", [{}, {"unroll": 5, "samples": 8, "learning_rate": 0.01}])
def test_a_bilm_of_prepared_text(options, corpus, tmp_path):
    recipes.prepare([corpus], tmp_path / "text", family="elmo")
    kept, kept_again = (pretrain("elmo", tmp_path / "text", tmp_path / name, **options) for name in ("one", "two"))
    raw = pretrain("elmo", corpus, tmp_path / "raw", **options)
    assert kept[-1]["val_loss"] == kept_again[-1]["val_loss"] == pytest.approx(raw[-1]["val_loss"], rel=0.02)
    models = {name: saving.load(tmp_path / name) for name in ("one", "two", "raw")}
    assert models["one"][1].vocab == models["raw"][1].vocab
    for first, second in zip(models["one"][0].get_weights(), models["two"][0].get_weights(), strict=True):
        assert np.array_equal(first, second)


@pytest.mark.slow  # five trainings
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_an_interrupted_run_over_prepared_text_resumes_to_the_same_weights(family, corpus, tmp_path, power_cut):
    if family == "bert":
        prepare(corpus, tmp_path / "text")
    else:
        recipes.prepare([corpus], tmp_path / "text", family="elmo")
    options = {"steps": 12, "dropout": 0.3, "evaluations": 2, "checkpoint_minutes": 1e-9}
    pretrain(family, tmp_path / "text", tmp_path / "one", **options)
    with power_cut(5):
        pretrain(family, tmp_path / "text", tmp_path / "two", **options)
    pretrain(family, tmp_path / "text", tmp_path / "two", **options)
    first, second = (saving.load(tmp_path / name)[0].get_weights() for name in ("one", "two"))
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


@pytest.mark.trains
def test_folders_of_the_first_format_are_read(prepared, corpus, tmp_path, write_masked):
    """train-*.npz, without shards of units."""
    manifest = json.loads((prepared / PREPARED).read_text())
    folder = tmp_path / "old"
    folder.mkdir()
    records = [record for path in sorted(prepared.glob("train-*")) for record in shards.read(path)]
    examples = [*map(shards.masked_example, records)]
    held = [*map(shards.masked_example, shards.read(prepared / "valid.tfrecord"))]
    write_masked(folder / "train-00001.npz", examples[:100])
    write_masked(folder / "train-00002.npz", examples[100:])
    write_masked(folder / "valid.npz", held)
    (folder / "vocab.txt").write_bytes((prepared / "vocab.txt").read_bytes())
    names = ("family", "max_length", "whole_words", "lowercase", "strip_accents", "split_cjk", "copies", "seed")
    old = {name: manifest[name] for name in names} | {"examples": len(examples), "valid_examples": len(held)}
    old["files"] = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    (folder / PREPARED).write_text(json.dumps(old))
    read = preparing.prepared_folder([folder], "bert")
    assert read.held_pairs() == held
    assert sorted(read.pairs(0, 0)) == sorted(examples) and list(read.pairs(0, 0)) != examples
    assert pretrain("bert", folder, tmp_path / "model")[-1]["step"] == 2
    prepare(corpus, folder)  # another preparation replaces it
    assert contents(folder) == contents(prepared)


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 2, "runner": "DirectRunner"}, "processes=2, runner='DirectRunner': give one of the two"),
        ({"runner_options": "--x"}, "runner_options='--x': without a runner"),
        ({"family": "gpt"}, "family='gpt': elmo or bert"),
        ({"min_count": 3}, "min_count=3: an option of `prepare elmo`"),
        ({"family": "elmo"}, "copies=2: an option of `prepare bert`"),
    ],
)
def test_options_that_contradict_each_other(options, message, corpus, tmp_path):
    with pytest.raises(ValueError, match=message):
        prepare(corpus, tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_text_that_cannot_be(corpus, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match=r"empty\.txt: no text in it"):
        prepare(tmp_path / "empty.txt", tmp_path / "out", vocab=corpus.parent / "vocab.txt")
    with pytest.raises(TypeError, match="give a list of files"):
        recipes.prepare(str(corpus), tmp_path / "out")
    (tmp_path / "lines.txt").write_text("w1\n")
    with pytest.raises(ValueError, match="nothing to train on"):
        options = {"vocab": corpus.parent / "vocab.txt", "valid": corpus}
        prepare(tmp_path / "lines.txt", tmp_path / "out", **options)


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_damaged_model_to_start_from(content, corpus, tmp_path):
    (tmp_path / "bundle.json").write_text(content)
    with pytest.raises(ValueError, match=r"bundle\.json is damaged"):
        recipes.prepare([corpus], tmp_path / "out", init=tmp_path)


def test_folders_that_do_not_fit(prepared, corpus, tmp_path):
    with pytest.raises(ValueError, match="prepared: prepared for bert; run `ctxrep prepare elmo`"):
        pretrain("elmo", prepared, tmp_path / "out")
    with pytest.raises(ValueError, match="give either one folder that `ctxrep prepare` wrote, or text files"):
        recipes.pretrain("bert", [prepared, corpus], tmp_path / "out", steps=1)
    recipes.prepare([corpus], tmp_path / "elmo", family="elmo")
    with pytest.raises(ValueError, match="held-out text was chosen by `ctxrep prepare`; leave out valid"):
        pretrain("elmo", tmp_path / "elmo", tmp_path / "out", valid=corpus)


@pytest.mark.trains
def test_commands(corpus, tmp_path, capsys):
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    argv = f"prepare elmo --corpus {tmp_path}/text.txt.gz --out {tmp_path}/elmo --min-count 1"
    assert main.main(argv.split()) == 0
    assert "sentences of 0.0 million words" in capsys.readouterr().out
    plain = recipes.prepare([corpus], tmp_path / "plain", family="elmo", min_count=1)
    compressed = json.loads((tmp_path / "elmo" / PREPARED).read_text())
    assert compressed["files"] == plain["files"]
    assert main.main(f"pretrain elmo --corpus {tmp_path}/elmo --size test --steps 1 --out {tmp_path}/lm".split()) == 0
