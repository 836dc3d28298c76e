"""Labelled examples, whole and damaged."""

import bz2
import gzip
import lzma

import pytest

from keras_ctxrep.text.examples import Example, read_examples

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
TSV = "text\tlabel\nfine day\tgood\nrain\tbad\n"
JSONL = '{"text": "fine day", "label": "good"}\n{"sentence": "rain", "label": 3}\n'


@pytest.fixture
def write(tmp_path):
    """Writes a file of some name and returns its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(("name", "content"), [("a.tsv", TSV), ("a.jsonl", JSONL), ("a.txt", TSV)])
def test_read_examples(write, name, content, suffix):
    found = read_examples(write(name + suffix, COMPRESS[suffix](content.encode())))
    assert found == [Example("fine day", "good"), Example("rain", "3" if "json" in name else "bad")]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tsv", "\ufefftext\tlabel\r\na\tx\r\n\r\nb\ty", [Example("a", "x"), Example("b", "y")]),
        ("a.tsv", "id\tsentence\n7\ta", [Example("a", None)]),
        ("a.tsv", "sentence1\tsentence2\tlabel\na\tb\t1", [Example("a", "1", "b")]),
        ("a.tsv", 'text\tlabel\n"a\tx\nb"\ty', [Example('"a', "x"), Example('b"', "y")]),  # quotes are text
        ("a.tsv", "text\tlabel\na\rb\tx", [Example("a\rb", "x")]),
        ("a.tsv", f"text\tlabel\n{'a' * 200_000}\tx", [Example("a" * 200_000, "x")]),
        ("a.jsonl", '\ufeff{"text": "a\\u00e9", "label": 0}\r\n\n', [Example("aé", "0")]),
        ("a.jsonl", '{"text": "a", "label": null, "pair": "b"}', [Example("a", None, "b")]),
        ("a.jsonl", '{"text": "a\u2028b", "label": "x"}', [Example("a\u2028b", "x")]),
    ],
)
def test_read_examples_accepts(write, name, content, expected):
    assert read_examples(write(name, content)) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "", r"a\.tsv: no examples in it"),
        ("a.tsv", "text\tlabel\n", r"a\.tsv: no examples in it"),
        (
            "a.tsv",
            "words\tlabel\na\tx\n",
            r"a\.tsv:1: the header must name a column 'text'; found \['words', 'label'\]",
        ),
        ("a.tsv", "text\tlabel\na\tx\nb\n", r"a\.tsv:3: 1 fields where the header has 2"),
        ("a.tsv", "text\tlabel\na\tx\ty\n", r"a\.tsv:2: 3 fields where the header has 2"),
        ("a.tsv", "text\tlabel\n \tx\n", r"a\.tsv:2: no text"),
        ("a.tsv", b"text\tlabel\na\tx\n\xe9\ty\n", r"a\.tsv:3: not UTF-8"),
        ("a.jsonl", "", r"a\.jsonl: no examples in it"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not JSON: .* at column"),
        ("a.jsonl", '["a"]', r"a\.jsonl:1: list; each line is an object"),
        ("a.jsonl", '{"label": "x"}', r"a\.jsonl:1: no text .* found \['label'\]"),
        ("a.jsonl", '{"text": 3}', r"a\.jsonl:1: no text"),
        ("a.jsonl", '{"text": "a", "label": 0.5}', r"a\.jsonl:1: label 0\.5"),
        ("a.jsonl", '{"text": "a", "label": NaN}', r"a\.jsonl:1: label nan"),
        ("a.jsonl", '{"text": "a", "label": ["x"]}', r"a\.jsonl:1: label \['x'\]"),
        ("a.jsonl", '{"text": "a", "pair": 3}', r"a\.jsonl:1: the pair is 3"),
        ("a.jsonl", '{"text": "a", "label": ' + "1" * 5000 + "}", r"a\.jsonl:1: not JSON"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl:1: not JSON"),
        ("a.jsonl.gz", gzip.compress(JSONL.encode())[:-9], r"a\.jsonl\.gz:\d: damaged compressed file"),
    ],
)
def test_read_examples_refuses(write, name, content, message):
    with pytest.raises(ValueError, match=message):
        read_examples(write(name, content))
