"""Corpora, whole and damaged."""

import bz2
import gzip
import lzma
from collections import Counter

import pytest

from keras_ctxrep.text import corpus
from keras_ctxrep.text.corpus import (
    BLOCK,
    documents,
    hold_out,
    lines,
    sample,
    shuffled,
    without,
)

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_lines_plain_and_compressed(write, suffix):
    path = write(f"a.txt{suffix}", COMPRESS[suffix]("one\r\n\nzwölf\u2028\x0c\nlast".encode()))
    assert list(lines(path)) == [(1, "one"), (2, ""), (3, "zwölf\u2028\x0c"), (4, "last")]


def test_only_the_first_byte_order_mark_is_taken_off(write):
    assert list(lines(write("a.txt", "\ufeff\ufeffa\n\ufeffb\n"))) == [(1, "\ufeffa"), (2, "\ufeffb")]


def test_not_utf8_names_file_and_line(write):
    with pytest.raises(ValueError, match=r"a\.txt:3: not UTF-8 \(byte 1"):
        list(lines(write("a.txt", b"one\ntwo\nx\xff\n")))


def test_a_nul_names_file_and_line(write):
    with pytest.raises(ValueError, match=r"a\.txt:2: a NUL \(byte 3\), as in UTF-16 .*: save the file as UTF-8"):
        list(lines(write("a.txt", "one\ntwo\0\n")))
    with pytest.raises(ValueError, match=r"b\.txt:1: a NUL"):
        list(lines(write("b.txt", "one\ntwo\n".encode("utf-16-le"))))


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("\ufeffone\r\rtwo\r", ["one", "", "two"]),
        ("one\rtwo", ["one", "two"]),
        ("one\rtwo\n", ["one\rtwo"]),
        ("one\r\ntwo\rthree\r\n", ["one", "two\rthree"]),
        ("one\r", ["one"]),
        ("one", ["one"]),
        ("", []),
    ],
)
def test_lines_of_an_old_mac(write, content, expected, suffix):
    r"""A "\r" ends a line if the file has no "\n"."""
    path = write(f"a.txt{suffix}", COMPRESS[suffix](content.encode()))
    assert list(lines(path)) == [*enumerate(expected, 1)]
    assert [line.decode() for part in corpus.available_lines(path) for line in part] == expected


BODY = "".join(f"line {number} {number * 7919 % 1000}\n" for number in range(5000)).encode()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("damage", ["cut off", "flipped", "flipped at the start", "not compressed", "empty"])
def test_damaged_compression_names_the_file(write, suffix, damage):
    data = COMPRESS[suffix](BODY)
    half = len(data) // 2
    data = {
        "cut off": data[:half],
        "flipped": data[:half] + b"\xff" * 20 + data[half + 20 :],
        "flipped at the start": data[:10] + b"\xff" * 20 + data[30:],
        "not compressed": b"plain text\n",
        "empty": b"",
    }[damage]
    path = write(f"a.txt{suffix}", data)
    if damage == "empty" and suffix == ".gz":  # to the gzip module a file without any stream is an empty one
        assert list(lines(path)) == []
    else:
        with pytest.raises(ValueError, match=rf"a\.txt{suffix}:\d+: damaged compressed file"):
            list(lines(path))


def test_a_missing_file_is_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        list(lines(tmp_path / "none.gz"))


def test_documents(write):
    first = write("one.txt", "\n\na b \nc\n\n \nd\n\n")
    second = write("two.txt.gz", gzip.compress(b"e\nf"))
    assert list(documents([first, second])) == [["a b", "c"], ["d"], ["e", "f"]]
    with pytest.raises(ValueError, match=r"three\.txt: no text in it"):
        list(documents([first, write("three.txt", " \n\t\n")]))


def test_long_documents_come_in_parts(write, monkeypatch):
    monkeypatch.setattr(corpus, "LONGEST", 3)
    path = write("long.txt", "".join(f"{number}\n" for number in range(7)) + "\nnext\n")
    assert list(documents([path])) == [["0", "1", "2"], ["3", "4", "5"], ["6"], ["next"]]
    path = write("exact.txt", "a\nb\nc\n\nd\n")
    assert list(documents([path])) == [["a", "b", "c"], ["d"]]


SIZE = 3 * BLOCK
CORPUS = [[f"{document} {sentence}" for sentence in range(SIZE)] for document in range(40)]


def test_hold_out():
    """Documents of three whole blocks."""
    held = hold_out(iter(CORPUS), fraction=0.25, seed=3)
    assert len(held) == 30 and {len(block) for block in held} == {BLOCK}
    order = [sentence for document in CORPUS for sentence in document]
    places = [order.index(block[0]) for block in held]
    assert places == sorted(places) and not any(place % BLOCK for place in places)
    assert all(block == order[place : place + BLOCK] for place, block in zip(places, held, strict=True))
    assert held == hold_out(CORPUS, fraction=0.25, seed=3) != hold_out(CORPUS, fraction=0.25, seed=4)


def test_held_out_blocks_depend_on_the_text_alone():
    """Not on the order of the files, and little on how many blocks are wanted."""
    held = {tuple(block) for block in hold_out(CORPUS, fraction=0.25)}
    assert {tuple(block) for block in hold_out(CORPUS[::-1], fraction=0.25)} == held
    assert {tuple(block) for block in hold_out(CORPUS, fraction=0.1)} < held


def test_hold_out_has_a_limit():
    held = hold_out(CORPUS, fraction=0.25)
    some = hold_out(CORPUS, fraction=0.25, limit=7)
    assert len(some) == 7 and all(block in held for block in some)


def test_a_sentence_is_held_out_once():
    held = hold_out([*CORPUS, *CORPUS], fraction=0.25)
    sentences = [sentence for block in held for sentence in block]
    assert len(sentences) == len(set(sentences)) and all(held)


def test_too_little_to_hold_out():
    with pytest.raises(ValueError, match="the corpus has 2 blocks of 10 sentences: too few to hold 10% out"):
        hold_out([["one"], ["two"]])
    with pytest.raises(ValueError, match="0 blocks"):
        hold_out([])


def test_the_rest_of_the_corpus():
    held = hold_out(CORPUS, fraction=0.25)
    rest = list(without(iter(CORPUS), held))
    assert {len(part) for part in rest} <= {BLOCK, 2 * BLOCK, SIZE}  # neighbours of one document stay together
    out = {sentence for block in held for sentence in block}
    assert [s for part in rest for s in part] == [s for document in CORPUS for s in document if s not in out]
    assert list(without([["a", "x", "b"], ["x"], ["x", "c"]], [["x"]])) == [["a"], ["b"], ["c"]]
    assert list(without(CORPUS, [])) == CORPUS


@pytest.fixture
def files(write):
    """Three files of documents of one to five sentences, numbered."""
    parts = [CORPUS[i : i + 13] for i in (0, 13, 26)]
    return [
        write(f"{number}.txt", "\n\n".join("\n".join(document[: 1 + i % 5]) for i, document in enumerate(part)))
        for number, part in enumerate(parts)
    ]


@pytest.mark.parametrize("buffer", [1, 10, 20_000])
def test_every_epoch_has_every_document_once(files, buffer):
    expected = sorted(documents(files))
    orders = [list(shuffled(files, documents, seed, epoch, buffer)) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert all(sorted(order) == expected for order in orders)
    first, same, epoch, seed = orders
    assert first == same and list(documents(files)) != first
    if buffer > 1:
        assert first != epoch != seed != first


def test_a_small_buffer_keeps_little_and_shuffles_within_it(files):
    seen = []

    def read(paths):
        for document in documents(paths):
            seen.append(document)
            yield document

    stream = shuffled(files, read, 0, 0, buffer=10)
    next(stream)
    assert 10 <= sum(map(len, seen)) < 15 and sum(map(len, seen[:-1])) < 10


def test_files_are_read_in_another_order_too(files):
    def numbers(epoch):
        read = []
        list(shuffled(files, lambda paths: (read.append(path) or [str(path)] for path in paths), 0, epoch))
        return [path.name for path in read]

    orders = [numbers(epoch) for epoch in range(6)]
    assert all(sorted(order) == ["0.txt", "1.txt", "2.txt"] for order in orders) and len(set(map(tuple, orders))) > 1


def test_a_sample_has_every_sentence_with_the_same_probability():
    documents = [[str(number) for number in range(start, start + 10)] for start in range(0, 50, 10)]
    counts = Counter(sentence for seed in range(2000) for sentence in sample(documents, 10, seed))
    assert len(counts) == 50 and sum(counts.values()) == 20_000
    assert max(abs(count - 400) for count in counts.values()) < 4.5 * 18  # the standard deviation is 18
    assert sample(documents, 100) == [sentence for document in documents for sentence in document]
    assert sample(documents, 10, seed=1) == sample(documents, 10, seed=1) != sample(documents, 10, seed=2)


def test_translations(tmp_path):
    rows = tmp_path / "rows.tsv"
    rows.write_text("a cat\t eine Katze\n\nrain\tRegen\n", "utf-8")
    assert [*corpus.translated([rows])] == [["a cat\0eine Katze"], ["rain\0Regen"]]
    for bad in ("alone", "a\tb\tc", "a\t "):
        rows.write_text(f"a\tb\n{bad}\n", "utf-8")
        with pytest.raises(ValueError, match=r"rows\.tsv:2: .*: write a sentence, a tab and its translation"):
            [*corpus.translated([rows])]
    rows.write_text(" \n", "utf-8")
    with pytest.raises(ValueError, match=r"rows\.tsv: no text in it"):
        [*corpus.translated([rows])]
