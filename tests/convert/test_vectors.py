"""Word vectors in the formats of word2vec, GloVe and fastText, from files that are written here."""

import bz2
import gzip
import lzma
import struct
import warnings

import numpy as np
import pytest

from keras_ctxrep.convert import vectors
from keras_ctxrep.models import static
from keras_ctxrep.text.features import StaticFeatures

ROWS = {"the": [0.5, -1.25, 3.0], "São": [1e-3, 2.0, -0.75], ",": [4.0, 5.0, 6.5]}
MEAN = np.mean(list(ROWS.values()), axis=0)


def text(rows, header=False, end="\n"):
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in rows.items()]
    return end.join([*([f"{len(rows)} 3"] if header else []), *lines, ""]).encode()


def binary(rows, end=b"\n"):
    """As word2vec.c writes it."""
    body = b"".join(word.encode() + b" " + np.array(row, "<f4").tobytes() + end for word, row in rows.items())
    return f"{len(rows)} 3\n".encode() + body


def fasttext(words, table, ngrams=(3, 4), version=12, model=2, labels=(), pruned=-1, quantised=False):
    """As FastText::saveModel writes it, without the output matrix, which is not read."""
    width, buckets = table.shape[1], len(table) - len(words)
    data = struct.pack("<ii", vectors.MAGIC, version) if version else b""
    data += struct.pack("<12id", width, 5, 5, 1, 5, 1, 2, model, buckets, *ngrams, 100, 1e-4)
    data += struct.pack("<3iq", len(words) + len(labels), len(words), len(labels), 99)
    data += struct.pack("<q", pruned) if version else b""
    for number, word in enumerate([*words, *labels]):
        word = word if isinstance(word, bytes) else word.encode()
        data += word + b"\0" + struct.pack("<qb", 7, number >= len(words))
    data += struct.pack("<?", quantised) if version else b""
    return data + struct.pack("<qq", *table.shape) + table.astype("<f4").tobytes() + b"the output matrix"


@pytest.fixture
def written(tmp_path):
    def write(data, name="vectors.txt"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def table_of(model):
    return model.get_layer("word_embedding").get_weights()[0]


FORMATS = {
    "glove.txt": text(ROWS),
    "word2vec.txt": text(ROWS, header=True),
    "windows.txt": b"\xef\xbb\xbf" + text(ROWS, header=True, end="\r\n"),
    "fasttext.vec": text(ROWS, header=True, end=" \n"),
    "word2vec.bin": binary(ROWS),
    "google.bin": binary(ROWS, end=b""),
    "glove.txt.gz": gzip.compress(text(ROWS)),
    "glove.txt.bz2": bz2.compress(text(ROWS)),
    "glove.txt.xz": lzma.compress(text(ROWS)),
    "word2vec.bin.gz": gzip.compress(binary(ROWS)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name, written):
    model, bundle = vectors.read(written(FORMATS[name], name))
    assert bundle.vocab == ("<UNK>", *ROWS) and (bundle.family, bundle.task, bundle.max_length) == (
        "static",
        "embed",
        128,
    )
    config = static.Config(**bundle.config)
    assert config == static.Config(words=4, width=3, lowercase=False) and config.ngrams is None
    np.testing.assert_allclose(table_of(model), [[0, 0, 0], MEAN, *ROWS.values()], rtol=1e-6)
    out = model(StaticFeatures(bundle.vocab, lowercase=config.lowercase)(["São unseen"]))
    np.testing.assert_allclose(out["sequence"][0], [ROWS["São"], MEAN], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "data"),
    [("GoogleNews.bin.txt", text(ROWS)), ("wiki.bin.vec", text(ROWS, header=True)), ("x.BIN", binary(ROWS))],
)
def test_the_last_suffix_tells_text_from_binary(name, data, written):
    assert vectors.read(written(data, name))[1].vocab == ("<UNK>", *ROWS)


@pytest.mark.parametrize(("words", "lowercase"), [(["a", "é", "7"], True), (["a", "É"], False)])
def test_lower_case_is_detected(words, lowercase, written):
    _, bundle = vectors.read(written(text({word: [1, 2, 3] for word in words})))
    assert bundle.config["lowercase"] == lowercase


@pytest.mark.parametrize("name", ["<unk>", "<UNK>"])
def test_a_vector_of_unseen_words(name, written):
    rows = {"a": [1, 2, 3], name: [7, 8, 9], "b": [4, 5, 6]}
    for path in (written(text(rows)), written(binary(rows), "x.bin")):
        model, bundle = vectors.read(path)
        assert bundle.vocab == ("<UNK>", "a", "b")
        assert table_of(model).tolist() == [[0, 0, 0], [7, 8, 9], [1, 2, 3], [4, 5, 6]]


def test_words_with_spaces(written):
    rows = {"the": [1, 2, 3], ". . .": [4, 5, 6], "at name@domain.com": [7, 8, 9], "\u00a0": [0, 1, 0]}
    for header in (False, True):
        model, bundle = vectors.read(written(text(rows, header)))
        assert bundle.vocab[1:] == tuple(rows) and table_of(model)[2:].tolist() == list(rows.values())


@pytest.mark.parametrize("name", ["x.txt", "x.bin"])
def test_repeated_words(name, written):
    data = {".txt": b"3 2\na 1 2\nb 3 4\na 5 6\n", ".bin": b"3 2\n" + b"".join(
        word + b" " + np.array(row, "<f4").tobytes() for word, row in ((b"a", [1, 2]), (b"b", [3, 4]), (b"a", [5, 6]))
    )}[name[1:]]  # fmt: skip
    with pytest.warns(UserWarning, match=rf"{name}: 1 words occur again, the first of them 'a' \(word 3\)"):
        model, bundle = vectors.read(written(data, name))
    assert bundle.vocab == ("<UNK>", "a", "b") and table_of(model)[1:].tolist() == [[2, 3], [1, 2], [3, 4]]


def test_many_words(written, rng):
    """More than one block of rows, in text and binary."""
    rows = {f"word{number}": row.tolist() for number, row in enumerate(rng.normal(size=(3000, 3)).astype(np.float32))}
    for path in (written(text(rows)), written(binary(rows), "x.bin")):
        model, bundle = vectors.read(path)
        assert len(bundle.vocab) == 3001 and np.array_equal(table_of(model)[2:], np.array(list(rows.values()), "f4"))


# -------------------------------------------------------------------------------------------------------- fastText

WORDS = ["the", "São", "</s>", "of"]


@pytest.mark.parametrize("version", [12, 11, 0], ids=["12", "11", "before the magic number"])
@pytest.mark.parametrize("width", [5, 50])  # 50 is the digit "2"
def test_fasttext(version, width, written, rng):
    table = rng.normal(size=(4 + 30, width)).astype(np.float32)
    model, bundle = vectors.read(written(fasttext(WORDS, table, version=version), "model.bin"))
    config = static.Config(**bundle.config)
    assert bundle.vocab == ("<UNK>", *WORDS) and config.ngrams == (3, 4, 30) and config.width == width
    assert np.array_equal(table_of(model), np.concatenate([np.zeros((2, width)), table]))
    features = StaticFeatures(bundle.vocab, lowercase=config.lowercase, ngrams=config.ngrams)
    out = np.asarray(model(features([["São", "Sã", "</s>", "the"]]))["sequence"])[0]

    def vector(word, *own):
        letters = f"<{word}>"
        grams = [letters[i : i + n] for i in range(len(letters)) for n in (3, 4) if i + n <= len(letters)]
        rows = []
        for ngram in grams:
            value = 2166136261
            for byte in np.frombuffer(ngram.encode(), np.int8).tolist():  # with its sign
                value = (value ^ byte % 2**32) * 16777619 % 2**32
            rows.append(4 + value % 30)
        return table[[*own, *rows]].mean(0)

    expected = [vector("São", 1), vector("Sã"), table[2], vector("the", 0)]
    np.testing.assert_allclose(out, expected, atol=1e-6)


def test_fasttext_without_ngrams(written, rng):
    """A classifier's buckets are of word n-grams, and its labels are no words; of an old one too."""
    table = rng.normal(size=(4 + 30, 5)).astype(np.float32)
    for version, ngrams in ((12, (0, 0)), (11, (3, 6))):
        data = fasttext(WORDS, table, ngrams, version, model=3, labels=["__label__a", "__label__b"])
        model, bundle = vectors.read(written(data, "model.bin"))
        assert bundle.vocab == ("<UNK>", *WORDS) and static.Config(**bundle.config).ngrams is None
        np.testing.assert_allclose(table_of(model)[1], table[:4].mean(0), atol=1e-6)
        assert np.array_equal(table_of(model)[2:], table[:4])
    model, _ = vectors.read(written(fasttext(WORDS, table[:4]), "model.bin"))  # n-grams, and no row for them
    assert len(table_of(model)) == 6


def test_unseen_words_of_fasttext(written, rng):
    table = rng.normal(size=(4 + 3, 2)).astype(np.float32)
    model, bundle = vectors.read(written(fasttext(["a", "<unk>", "b", "<UNK>"], table), "model.bin"))
    assert bundle.vocab == ("<UNK>", "a", "b") and bundle.config["words"] == 3
    assert np.array_equal(table_of(model)[1:], table[[3, 0, 2, 4, 5, 6]])


def test_words_that_are_not_utf8(written, rng):
    """They keep their rows, so that all others keep theirs."""
    table = rng.normal(size=(2, 3)).astype(np.float32)
    model, bundle = vectors.read(written(fasttext([b"caf\xe9", "b"], table), "model.bin"))
    assert bundle.vocab == ("<UNK>", "caf\\xe9", "b") and np.array_equal(table_of(model)[2:], table)


# ---------------------------------------------------------------------------------------------------------- errors

GOOD = fasttext(WORDS, np.ones((10, 5)))
MATRIX = GOOD.index(struct.pack("<qq", 10, 5))
BAD = {
    "no numbers": ("x.txt", b"the\n", ":1: 0 numbers behind a word; 1 are needed"),
    "too few": ("x.txt", b"a 1 2\nb 3\n", ":2: 1 numbers behind a word; 2 are needed"),
    "too many": ("x.txt", b"a 1 2\nb 3 4 5\n", ":2: 3 numbers behind a word; 2 are needed"),
    "empty line": ("x.txt", b"a 1 2\n\nb 3 4\n", ":2: 0 numbers behind a word; 2 are needed"),
    "not a number": ("x.txt", b"2 2\na 1 2\nb 3 x\n", ":3: 'x' is not a number; 2 stand behind each word"),
    "first line": ("x.txt", b"a b 1 2\n", ":1: 'b' is not a number; 3 stand behind each word"),
    "two spaces": ("x.txt", b"a 1 2\nb 1  2\n", ":2: 3 numbers behind a word; 2 are needed"),
    "not finite": ("x.txt", b"a 1 nan\n", ":1: a number that is not finite"),
    "too large": ("x.txt", b"a 1 1e60\n", ":1: a number that is not finite"),
    "not UTF-8": ("x.txt", b"a 1 2\n\xe9 1 2\n", ":2: not UTF-8"),
    "fewer words": ("x.txt", b"3 2\na 1 2\n", ":1: the header counts 3 words; 1 follow"),
    "no words": ("x.txt", b"", ": no word vectors in it"),
    "header alone": ("x.txt", b"0 2\n", ": no word vectors in it"),
    "header of no width": ("x.txt", b"1 0\na\n", ":2: 0 numbers behind a word"),
    "damaged gz": ("x.txt.gz", gzip.compress(text(ROWS) * 99)[:-20], r":\d+: damaged compressed file"),
    "damaged gz of a binary": ("x.bin.gz", gzip.compress(binary(ROWS) * 99)[:-20], ": damaged compressed file"),
    "no gz": ("x.bin.gz", b"plain", ": damaged compressed file"),
    "empty bin": ("x.bin", b"", ": no word vectors in it"),
    "short bin": ("x.bin", binary(ROWS)[:-3], ": ends within word 3 of 3; copy the file again"),
    "long bin": ("x.bin", binary(ROWS) + b"x", ": more than the 3 words that its header counts"),
    "long word": ("x.bin", b"1 2\n" + b"x" * 20_000, ": word 1 of 1 does not end"),
    "header of a bin": ("x.bin", b"1 2 3\n", ": the header is b'1 2 3'; words and dimensions are needed"),
    "no header of a bin": ("x.bin", b"7 " * 9000, ": the header does not end"),
    "wide bin": ("x.bin", b"1 999999999999\na ", ": the header is b'1 999999999999'"),
    "line end in a word": ("x.bin", b"1 1\na\nb \0\0\0\0", r": word 1 of 1 is 'a\\nb', with a line end"),
    "not finite in a bin": ("x.bin", b"1 1\na \xff\xff\xff\xff", ": word 1 of 1: a number that is not finite"),
    "text called bin": ("x.bin", text(ROWS) * 9, ": neither a fastText model nor word vectors of word2vec"),
    "version": ("x.bin", fasttext(WORDS, np.ones((10, 5)), version=13), ": version 13 of fastText's format; 11 and 12"),
    "pruned": ("x.bin", fasttext(WORDS, np.ones((10, 5)), pruned=4), ": a pruned model of fastText; give the .bin"),
    "quantised": ("x.bin", fasttext(WORDS, np.ones((10, 5)), quantised=True), ": a quantised model of fastText"),
    "matrix": (
        "x.bin",
        GOOD[:MATRIX] + struct.pack("<q", 11) + GOOD[MATRIX + 8 :],
        r": an input matrix of shape \(11, 5\); its arguments call for \(10, 5\)",
    ),
    "short matrix": ("x.bin", GOOD[: MATRIX + 200], ": ends within the input matrix"),
    "word twice": ("x.bin", fasttext(["a", "b", "a"], np.ones((9, 2))), ": word 3 of 3 in the dictionary, 'a', is out"),
    "no dictionary": ("x.bin", fasttext([], np.ones((9, 2))), ": neither a fastText model"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case, written):
    name, data, message = BAD[case]
    with pytest.raises(ValueError, match=rf"{name}{message}") as error:
        vectors.read(written(data, name))
    assert "\n" not in str(error.value)


def test_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(ValueError, match="no such file; give one file of word vectors"):
            vectors.read(path)


@pytest.mark.parametrize("form", ["fasttext", "word2vec"])
def test_a_damaged_binary_is_an_error_and_no_crash(form, written, rng):
    """Cut anywhere it is an error; with bytes changed it is one, or numbers and words are others."""
    whole = fasttext(["the", "of"], np.ones((5, 2))) if form == "fasttext" else binary(ROWS)
    read = whole.index(b"the output") if form == "fasttext" else len(whole) - 1
    for size in range(0, read, 3):
        with pytest.raises(ValueError, match=r"x\.bin: "):
            vectors.read(written(whole[:size], "x.bin"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a word that now comes again
        for _ in range(100):
            data = bytearray(whole)
            for place in rng.integers(0, len(data), 2):
                data[place] = rng.integers(256)
            try:
                vectors.read(written(bytes(data), "x.bin"))
            except ValueError as error:
                assert "x.bin: " in str(error)
