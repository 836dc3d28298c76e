"""Search against brute force in NumPy, figures of faiss, ties, storages, and folders that are damaged."""

import json
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from keras_ctxrep.text import index_files, search
from keras_ctxrep.text.retrieval import unit
from keras_ctxrep.text.search import Index, nearest


def clustered(rows, width=48, clusters=40, seed=0):
    """Vectors around centers, as those of texts are."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(clusters, width))
    return unit(centers[rng.integers(0, clusters, rows)] + 0.7 * rng.normal(size=(rows, width)))


def brute_force(queries, vectors, top):
    scores = queries.astype(np.float64) @ np.asarray(vectors, np.float64).T
    return np.array([np.lexsort((np.arange(len(row)), -row))[:top] for row in scores]), scores


@pytest.mark.parametrize("storage", index_files.STORAGES)
@pytest.mark.parametrize("block", [7, 1000, 8192])
def test_the_nearest_rows_are_those_of_brute_force(storage, block):
    arrays = index_files.encoded(clustered(3000), storage)
    queries = clustered(70, seed=1)
    rows, scores = nearest(queries, arrays["vectors"], 10, arrays.get("codes"), arrays.get("scales"), block)
    expected, every = brute_force(queries, arrays["vectors"], 10)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(every, expected, 1), atol=1e-12)


def test_codes_lose_nothing_against_float32():
    """recall@10 of int8 with rescoring by float16, against the float32 vectors themselves."""
    vectors, queries = clustered(5000, 384), clustered(100, 384, seed=1)
    arrays = index_files.encoded(vectors, "int8")
    rows, _ = nearest(queries, arrays["vectors"], 10, arrays["codes"], arrays["scales"])
    expected, every = brute_force(queries, vectors, 10)
    recall = np.mean([len({*a} & {*b}) / 10 for a, b in zip(rows, expected, strict=True)])
    assert recall >= 0.998  # here 0.999, as of float16 without codes
    alone = queries @ (arrays["codes"] * arrays["scales"][:, None]).T
    of_codes = np.argsort(-alone, 1)[:, :10]
    assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(of_codes, expected, strict=True)]) < recall
    assert np.abs(alone - every).max() < search.DEVIATIONS * arrays["scales"].max() / np.sqrt(12)


def test_of_equal_scores_the_lower_row_is_first():
    vectors = clustered(500)
    vectors[[3, 77, 78, 300, 499]] = vectors[200]
    for storage in index_files.STORAGES:
        for block in (1, 64, 8192):
            arrays = index_files.encoded(vectors, storage)
            rows, scores = nearest(
                vectors[200:201], arrays["vectors"], 4, arrays.get("codes"), arrays.get("scales"), block
            )
            assert rows[0].tolist() == [3, 77, 78, 200] and len({*scores[0]}) == 1


def test_figures_of_faiss():
    """IndexFlatIP of faiss 1.15.1 over the same vectors: `index.add(vectors); index.search(queries, 5)`."""
    rows, scores = nearest(clustered(2, 16, seed=1), clustered(1000, 16), 5)
    assert rows.tolist() == FAISS_ROWS
    np.testing.assert_allclose(scores, FAISS_SCORES, atol=1e-6)


FAISS_ROWS = [[948, 742, 775, 113, 741], [616, 982, 2, 222, 561]]
FAISS_SCORES = [
    [0.9161956, 0.9150696, 0.9104384, 0.9033168, 0.9030089],
    [0.7632459, 0.7599702, 0.7329533, 0.7048101, 0.6880411],
]


def test_more_hits_than_rows_and_one_row():
    assert [hit.number for hit in Index([[1, 0], [0, 1]]).search([[1, 2]], top=10)[0]] == [1, 0]
    assert Index([[1, 0]]).search([[-1, 0]])[0][0].score == -1
    assert Index([[1, 0]]).search(np.zeros((0, 2))) == []


def test_rows_are_returned_as_they_were_given():
    index = Index([[1, 0], [0, 1]], ["a", "b"], ["x", "y"], [{"year": 1999, "tags": ["q"]}, {}])
    hit = index.search([[1, 0.1]], top=1)[0][0]
    assert (hit.id, hit.text, hit.fields, hit.number) == ("x", "a", {"year": 1999, "tags": ["q"]}, 0)
    assert hit.score == pytest.approx(1 / np.sqrt(1.01), abs=1e-7)


def test_rows_are_added_and_deleted(tmp_path):
    vectors = clustered(30)
    index = Index(vectors[:20])
    index.delete(["3", "19"])
    index.add(vectors[20:], texts=[f"text {n}" for n in range(20, 30)])
    assert [row.id for row in index.rows][-11:] == ["18", *map(str, range(20, 30))]  # 19 is given to no other row
    with pytest.raises(ValueError, match="id '19': there is no row with it"):
        index.delete(["0", "19"])
    assert len(index) == 28
    kept = np.delete(vectors, [3, 19], 0)
    expected, _ = brute_force(vectors, kept, 5)
    found = [[hit.number for hit in hits] for hits in index.search(vectors, 5)]
    assert found == expected.tolist()
    opened = Index.open(index.save(tmp_path / "i"))
    assert opened.search(vectors, 5) == index.search(vectors, 5)
    opened.delete(["29"])
    opened.add(vectors[:1])
    assert opened.rows[-1].id == "30"  # also after deleting the last one and saving
    index.delete([row.id for row in index.rows])
    with pytest.raises(ValueError, match="the index has no rows"):
        index.search(vectors[:1])
    with pytest.raises(ValueError, match="no rows to write"):
        index.save(tmp_path / "i")
    assert len(Index.open(tmp_path / "i")) == 28


@pytest.mark.parametrize("storage", index_files.STORAGES)
def test_a_folder_gives_what_memory_gives(storage, tmp_path):
    texts = [f"text\n{n} \ud800 é" for n in range(300)]
    index = Index(clustered(300), texts, fields=[{"n": n} for n in range(300)], storage=storage)
    opened = Index.open(index.save(tmp_path / "i"))
    assert opened.storage == storage and isinstance(opened.vectors, np.memmap) and opened.width == 48
    assert opened.search(clustered(9, seed=1)) == index.search(clustered(9, seed=1))
    assert opened.rows[-1].text == texts[-1] and [row.fields["n"] for row in opened.rows[:2]] == [0, 1]
    opened.save(tmp_path / "i")  # over the files that it reads
    assert sorted(path.name.split(".")[0] for path in (tmp_path / "i").iterdir()) == sorted(
        ["index", "offsets", "rows", "vectors", *(("codes", "scales") if storage == "int8" else ())]
    )
    assert Index.open(tmp_path / "i").search(clustered(9, seed=1)) == index.search(clustered(9, seed=1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Index([[1, 0], [0, 0]]), "vector 1: only zeros, which have no direction"),
        (lambda: Index([[1, 0], [np.nan, 0]]), "vector 1: a number that is not finite"),
        (lambda: Index([1, 0]), r"vectors: int64 of shape \(2,\); a table of numbers"),
        (lambda: Index([["a", "b"]]), "a table of numbers"),
        (lambda: Index([[1, 0]], ["a", "b"]), "2 texts for 1 vectors"),
        (lambda: Index([[1, 0], [0, 1]], ids=["a", "a"]), "id 'a': row 0 has it already"),
        (lambda: Index([[1, 0]], storage="int4"), "storage='int4': one of float32, float16, int8"),
        (lambda: Index([[1, 0]]).search([[1, 0, 0]]), "queries of width 3: the vectors of this index have 2"),
        (lambda: Index([[1, 0]]).search([[0, 0]]), "query 0: only zeros"),
        (lambda: Index([[1, 0]]).search(["a"]), "this index has no encoder: give vectors"),
        (lambda: Index([[1, 0]]).search([[1, 0]], top=0), "top=0: must be above 0"),
        (lambda: Index([[1, 0]]).add([[1, 0, 0]]), "vectors of width 3: those of this index have 2"),
        (lambda: Index.open("nowhere"), "nowhere: no such folder"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ------------------------------------------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    index = Index(clustered(40), [f"text {n}" for n in range(40)], storage="int8")
    return index.save(tmp_path_factory.mktemp("search") / "i")


def damaged(folder, kind, change):
    path = next(folder.glob(f"{kind}.*"))
    path.write_bytes(change(path.read_bytes()))


def manifest(folder, **values):
    path = folder / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def swap(folder, kind, array):
    """Another array under the name of a file, of which the manifest says the size."""
    path = next(folder.glob(f"{kind}.*"))
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=True)
    sizes = json.loads((folder / "index.json").read_text())["sizes"]
    manifest(folder, sizes=sizes | {kind: path.stat().st_size})


FILES = {"vectors": "../../secret.npy", "codes": "codes.1.npy", "scales": "scales.1.npy"}
FILES |= {"offsets": "offsets.1.npy", "rows": "rows.1.jsonl"}


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda f: damaged(f, "vectors", lambda data: data[:-1]),
            r"vectors\.1\.npy: 3,967 bytes, and the manifest says",
        ),
        (lambda f: damaged(f, "rows", lambda data: data + b"\n"), r"rows\.1\.jsonl: .* bytes, and the manifest says"),
        (lambda f: next(f.glob("codes.*")).unlink(), r"codes\.1\.npy: missing"),
        (lambda f: swap(f, "vectors", np.array([{}] * 40)), "not a whole .npy file of numbers"),
        (lambda f: swap(f, "vectors", np.zeros((40, 47), np.float16)), r"float16 \(40, 47\), and the manifest says"),
        (lambda f: swap(f, "codes", np.zeros((40, 48), np.uint8)), r"uint8 \(40, 48\), and the manifest says int8"),
        (lambda f: swap(f, "vectors", np.zeros((48, 40), np.float16).T), "and the manifest says"),
        (lambda f: swap(f, "offsets", np.zeros(41, np.int64)), "of another size than its offsets say"),
        (lambda f: damaged(f, "vectors", lambda data: pickle.dumps([1]).ljust(len(data))), "not a whole .npy file"),
        (lambda f: damaged(f, "index", lambda data: data[:-9]), r"index\.json: not JSON"),
        (lambda f: damaged(f, "index", lambda data: b"[" * 99_999), r"index\.json: not JSON: nested too deeply"),
        (lambda f: damaged(f, "index", lambda data: b"[]"), r"index\.json"),
        (lambda f: manifest(f, rows=39), r"float16 \(40, 48\), and the manifest says float16 \(39, 48\)"),
        (lambda f: manifest(f, rows="40"), r"index\.rows='40': must be a whole number"),
        (lambda f: manifest(f, format=2), "index.format=2: this version of the package reads 1"),
        (lambda f: manifest(f, more=1), "more: no such key"),
        (lambda f: manifest(f, storage="float64"), "storage='float64': one of"),
        (lambda f: manifest(f, files=FILES), r"files\.vectors='\.\./\.\./secret\.npy': not the name of such a file"),
        (lambda f: manifest(f, graph="hnswlib"), "files=.*they are codes, graph, offsets"),
        (lambda f: manifest(f, hashes={"vectors": "0"}), "hashes=.*they are of codes, offsets"),
    ],
)
def test_a_damaged_folder_is_refused(harm, message, saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "i")
    harm(folder)
    with pytest.raises(ValueError, match=message) as error:
        Index.open(folder)
    assert str(error.value).startswith(str(folder)) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.replace(b'"text"', b'"tex"\xff'), "row 0: not JSON: not UTF-8"),
        (lambda data: data.replace(b'"text 0"', b'["text0"]')[: len(data)], "row 0: "),
        (lambda data: b"x" * len(data), "row 0: not JSON"),
    ],
)
def test_a_damaged_row_is_named(change, message, saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "i")
    damaged(folder, "rows", lambda data: change(data)[: len(data)].ljust(len(data)))
    manifest(folder, hashes={})  # as indexes were written before they had some
    with pytest.raises(ValueError, match=message):
        _ = Index.open(folder).rows[0]


@pytest.mark.parametrize("storage", index_files.STORAGES)
def test_a_flipped_bit_gives_an_error_or_the_same_hits(storage, graphs, tmp_path, rng):
    index, queries = Index(clustered(120), [f"text {n}" for n in range(120)], storage=storage), clustered(3, seed=1)
    folder = index.save(tmp_path / "i")
    expected = [Index.open(folder).search(queries, 5, exact=exact) for exact in (False, True)]
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for place in rng.integers(len(whole), size=20):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << rng.integers(8)
            path.write_bytes(flipped)
            try:
                opened = Index.open(folder)
                assert [opened.search(queries, 5, exact=exact) for exact in (False, True)] == expected, (path, place)
                assert path.name == "index.json", (path, place)
            except ValueError as error:
                assert str(folder) in str(error), (path, place)
        path.write_bytes(whole)


def test_an_index_without_hashes_opens(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "i")
    values = json.loads((folder / "index.json").read_text())
    del values["hashes"]
    (folder / "index.json").write_text(json.dumps(values))
    assert Index.open(folder).search(clustered(1)) == Index.open(saved).search(clustered(1))


def test_a_damaged_vector_is_named(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "i")
    damaged(folder, "vectors", lambda data: data[:-2] + np.float16(np.nan).tobytes())
    manifest(folder, hashes={})
    with pytest.raises(ValueError, match="row 39: its vector is damaged"):
        Index.open(folder).search(clustered(1), top=40)


def test_a_folder_of_other_files_is_not_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"a folder with other files and without index\.json"):
        Index([[1, 0]]).save(tmp_path)
    with pytest.raises(ValueError, match="a file; name a folder"):
        Index([[1, 0]]).save(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_failed_write_leaves_the_old_index(tmp_path):
    folder = Index(clustered(20)).save(tmp_path / "i")

    def batches():
        yield clustered(5), [index_files.Row(None)] * 5
        raise RuntimeError("no more")

    for target in (folder, tmp_path / "new"):
        with pytest.raises(RuntimeError, match="no more"):
            index_files.write(target, batches(), "int8", {})
    assert len(Index.open(folder)) == 20
    assert [path.name for path in tmp_path.iterdir()] == ["i"] and len(list(folder.iterdir())) == 4


def test_an_index_that_was_replaced_meanwhile_is_not_lost(tmp_path):
    folder = Index(clustered(20)).save(tmp_path / "i")
    before = index_files.manifest_of(folder)
    Index(clustered(30)).save(folder)
    batches = index_files.batches_of(clustered(20), [index_files.Row(None)] * 20)
    with pytest.raises(ValueError, match="another process has written it meanwhile"):
        index_files.write(folder, batches, "float32", {}, replaces=before)
    assert len(Index.open(folder)) == 30


def test_of_two_writers_the_second_is_refused(tmp_path):
    folder = Index(clustered(20)).save(tmp_path / "i")
    first, second = Index.open(folder), Index.open(folder)
    first.add(clustered(5, seed=1))
    first.save(folder)
    first.delete(["0"])
    first.save(folder)  # it knows what it has saved
    second.add(clustered(7, seed=2))
    with pytest.raises(ValueError, match=f"{folder}: another process has written it meanwhile.*open the index again"):
        second.save(folder)
    assert len(Index.open(folder)) == 24
    again = Index.open(folder)
    again.add(clustered(7, seed=2))
    assert len(Index.open(again.save(folder))) == 31
    shutil.rmtree(folder)
    Index(clustered(3)).save(folder)  # another index, of the version that `second` has read
    with pytest.raises(ValueError, match="another process has written it meanwhile"):
        second.save(folder)
    shutil.rmtree(folder)
    assert len(Index.open(second.save(folder))) == 27  # nothing there that would be lost


ADDS_ROWS = """
import sys
from keras_ctxrep.text.search import Index

folder, name, added = sys.argv[1], sys.argv[2], 0
for _ in range(10_000):
    index = Index.open(folder)
    index.add([[1, added]], ids=[f"{name}{added}"])
    try:
        index.save(folder)
    except ValueError as error:
        assert "another process" in str(error), error
        continue
    added += 1
    if added == 35:
        break
"""


def test_two_processes_that_add_rows_lose_none(tmp_path):
    folder = Index([[1, 0]], ids=["first"]).save(tmp_path / "i")
    writers = [subprocess.Popen([sys.executable, "-c", ADDS_ROWS, str(folder), name]) for name in "ab"]
    assert [writer.wait(100) for writer in writers] == [0, 0]
    ids = {row.id for row in Index.open(folder).rows}
    assert ids == {"first"} | {f"{name}{number}" for name in "ab" for number in range(35)}


def test_fields_that_json_cannot_hold_are_refused(tmp_path):
    for value in (float("nan"), object()):
        with pytest.raises(ValueError, match="row '0': fields that JSON cannot hold"):
            Index([[1, 0]], fields=[{"a": value}]).save(tmp_path / "i")


# ----------------------------------------------------------------------------------------------------------- encoders


@dataclass
class Letters:
    """An encoder that counts letters."""

    files: dict
    scale: float = 1.0
    pooling: str = "mean"

    @property
    def bundle(self):
        return SimpleNamespace(family="bert", pooling=self.pooling, normalize=False, files=self.files)

    def encode(self, texts):
        return np.array([[text.count(letter) + self.scale for letter in "abcdefgh"] for text in texts], np.float32)


def test_texts_are_searched_with_their_encoder_alone(tmp_path):
    files = {"vocab.txt": "1", "model.weights.h5": "2"}
    index = Index.of_texts(["aab", "cd", "hhh"], Letters(files), ids=["x", "y", "z"])
    assert index.search(["a"], 1)[0][0].id == "x"
    folder = index.save(tmp_path / "i")
    assert Index.open(folder, Letters(files)).search(["hg"], 1)[0][0].id == "z"
    again = Letters(files | {"model.weights.h5": "0"})  # the vectors tell that it is the same
    lite = Letters({"vocab.txt": "1", "model.tflite": "3"}, scale=1.1)
    for same in (again, lite):
        assert Index.open(folder, same).search(["hg"], 1)[0][0].id == "z"
    for other, reason in [
        (Letters(files | {"model.weights.h5": "0"}, scale=1.5), r"a cosine of 0\.9"),
        (Letters({"vocab.txt": "0", "model.tflite": "3"}), "another vocab.txt"),
        (Letters({"model.tflite": "3"}, scale=-1.5), "a cosine of -?0"),
        (Letters(files | {}, pooling="cls"), "pooling is cls and was mean"),
    ]:
        with pytest.raises(ValueError, match=f"it was made by another encoder; .*{reason}"):
            Index.open(folder, other)
    with pytest.raises(TypeError, match="one string, 'a'"):
        index.search("a")


# ------------------------------------------------------------------------------------------------------------- graphs


class Half:
    """What `search` uses of usearch, by brute force over each second row: an approximate search that misses rows."""

    class Index:
        def __init__(self, ndim, metric="ip", **options):
            assert metric == "ip"
            self.ndim, self.vectors = ndim, np.zeros((0, ndim), np.float32)

        @classmethod
        def restore(cls, path, view):
            graph = cls(0)
            graph.vectors = np.load(path)
            graph.ndim = graph.vectors.shape[1]
            return graph

        def add(self, numbers, vectors):
            assert numbers[0] == len(self.vectors)
            self.vectors = np.concatenate([self.vectors, vectors])

        def save(self, path):
            with open(path, "wb") as file:
                np.save(file, self.vectors)

        def __len__(self):
            return len(self.vectors)

        def search(self, query, count):
            even = np.arange(0, len(self.vectors), 2)
            rows = even[np.argsort(-(self.vectors[::2] @ query))[:count]]
            return SimpleNamespace(keys=rows.astype(np.uint64))


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(search, "GRAPH_ROWS", 100)
    monkeypatch.setattr(search, "graph_library", lambda: SimpleNamespace(Index=Half.Index))


def test_a_large_index_is_searched_by_its_graph(graphs, tmp_path, monkeypatch):
    folder = Index(clustered(200), storage="int8").save(tmp_path / "i")
    queries, opened = clustered(5, seed=1), Index.open(tmp_path / "i")
    approximate, exact = opened.search(queries, 5), opened.search(queries, 5, exact=True)
    assert all(hit.number % 2 == 0 for hits in approximate for hit in hits) and approximate != exact
    even = [[hit for hit in hits if hit.number % 2 == 0] for hits in opened.search(queries, 200, exact=True)]
    assert approximate == [hits[:5] for hits in even]  # with the same scores
    opened.delete(["0"])
    assert any(hit.number % 2 for hit in opened.search(queries, 5)[0])  # a changed index has none
    monkeypatch.setattr(search, "graph_library", lambda: None)
    with pytest.warns(UserWarning, match="usearch is not installed, and every row is compared: pip install"):
        assert Index.open(folder).search(queries, 5) == exact


def test_a_graph_by_an_earlier_version_is_left_aside(graphs, tmp_path):
    folder = Index(clustered(200)).save(tmp_path / "i")
    manifest(folder, graph="hnswlib")
    queries = clustered(5, seed=1)
    with pytest.warns(
        UserWarning, match=r"one of hnswlib, and every row is compared: Index\.open\(FOLDER\)\.save"
    ) as caught:
        opened = Index.open(folder)
    assert caught[0].filename == __file__
    assert opened.search(queries) == opened.search(queries, exact=True)
    opened.save(folder)
    assert Index.open(folder).search(queries) != opened.search(queries)


def test_a_graph_that_was_changed_is_not_read(graphs, tmp_path):
    folder = Index(clustered(200)).save(tmp_path / "i")
    damaged(folder, "graph", lambda data: data[:-1] + b"x")
    with pytest.raises(ValueError, match="not the graph that the index was written with"):
        Index.open(folder)


def test_a_small_index_has_no_graph(graphs, tmp_path):
    assert not list(Index(clustered(99)).save(tmp_path / "i").glob("graph.*"))


def test_the_graph_of_usearch(tmp_path, monkeypatch):
    pytest.importorskip("usearch")
    monkeypatch.setattr(search, "GRAPH_ROWS", 100)
    folder = Index(clustered(3000)).save(tmp_path / "i")
    opened, queries = Index.open(folder), clustered(50, seed=1)
    approximate, exact = opened.search(queries), opened.search(queries, exact=True)
    numbers = [[{hit.number for hit in hits} for hits in found] for found in (approximate, exact)]
    assert np.mean([len(a & b) / 10 for a, b in zip(*numbers, strict=True)]) > 0.95
    assert re.fullmatch(r"graph\.1\.bin", next(folder.glob("graph.*")).name)
