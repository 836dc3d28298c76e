"""Labelled examples, whole and damaged."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import tracemalloc

import pytest

from keras_ctxrep import tasks
from keras_ctxrep.tasks.answer import Question
from keras_ctxrep.tasks.classify import Example
from keras_ctxrep.tasks.reading import Record
from keras_ctxrep.tasks.tag import Tagged

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
TSV = "text\tlabel\nfine day\tgood\nrain\tbad\n"
JSONL = '{"text": "fine day", "label": "good"}\n{"sentence": "rain", "label": 3}\n'
DAMAGED = gzip.compress(JSONL.encode(), mtime=0)[:-9]  # without the time: names of tests are made of it


def read(task, *args, **options):
    return tasks.get(task).read(*args, **options)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("separator", ",;")
def test_csv(write, separator, suffix):
    """Quotes as of RFC 4180; a field may hold line ends, and the line of a row is that where it begins."""
    long = "word " * 40_000
    records = [["id", "text", "label"], ["1", 'a "fine", day; or\ntwo', "good"], ["2", long, "bad"], ["3", "", "x"]]
    file = io.StringIO()
    csv.writer(file, delimiter=separator).writerows(records)
    path = write(f"a.csv{suffix}", COMPRESS[suffix](file.getvalue().encode("utf-8-sig")))
    skipped = []
    examples = list(read("classify", path, skipped=skipped))
    assert examples == [Example('a "fine", day; or\ntwo', "good"), Example(long, "bad")]
    assert [example.source for example in examples] == [f"{path}:2", f"{path}:4"]
    assert len(skipped) == 1 and skipped[0].startswith(f"{path}:5: no text")
    numbered = write("b.csv", "".join(file.getvalue().splitlines(keepends=True)[1:3]))
    assert list(read("classify", numbered, {"text": "2", "label": "3"})) == examples[:1]


def test_a_csv_file_with_tabs_is_read_as_before(write):
    assert list(read("classify", write("a.csv", 'text\tlabel\n"a, b\tx\n'))) == [Example('"a, b', "x")]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_parquet(write, suffix, tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def put(table):
        parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
        return write(f"b.parquet{suffix}", COMPRESS[suffix]((tmp_path / "a.parquet").read_bytes()))

    path = put({"text": ["fine", None, "rain"], "label": [1, 0, 0], "no": [None, "x", "y"]})
    skipped = []
    assert list(read("classify", path, skipped=skipped)) == [Example("fine", "1"), Example("rain", "0")]
    assert len(skipped) == 1 and skipped[0].startswith(f"{path}: row 2: no text")
    assert list(read("tag", put({"words": [["a", "b"]], "tags": [["O", "B-X"]]}))) == [Tagged(("a", "b"), ("O", "B-X"))]
    missing = put({"text": ["fine", "rain"], "label": pyarrow.array([1.0, float("nan")], from_pandas=False)})
    assert list(read("classify", missing)) == [Example("fine", "1.0"), Example("rain", None)]
    assert list(read("regress", missing)) == [Example("fine", 1.0), Example("rain", None)]
    answers = [{"text": ["b"], "answer_start": [2]}]
    (question,) = read("answer", put({"question": ["q"], "context": ["a b"], "answers": answers}))
    assert question.answers == (("b", 2),)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"b\.parquet.*: Parquet is read by pyarrow, .*: pip install pyarrow"):
        list(read("classify", path))


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(("name", "content"), [("a.tsv", TSV), ("a.jsonl", JSONL), ("a.txt", TSV)])
def test_tables(write, name, content, suffix):
    examples = list(read("classify", write(name + suffix, COMPRESS[suffix](content.encode()))))
    assert examples == [Example("fine day", "good"), Example("rain", "3" if "json" in name else "bad")]


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
def test_tables_accepts(write, name, content, expected):
    assert list(read("classify", write(name, content))) == expected


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
        ("a.jsonl", '{"text": 3}', r"a\.jsonl:1: text 3: a text is needed, not int"),
        ("a.jsonl", '{"text": "a", "label": 0.5}', r"a\.jsonl:1: label 0\.5"),
        ("a.jsonl", '{"text": "a", "label": NaN}', r"a\.jsonl:1: label nan"),
        ("a.jsonl", '{"text": "a", "label": ["x"]}', r"a\.jsonl:1: label \['x'\]"),
        ("a.jsonl", '{"text": "a", "pair": 3}', r"a\.jsonl:1: the pair is 3"),
        ("a.jsonl", '{"text": "a", "label": ' + "1" * 5000 + "}", r"a\.jsonl:1: not JSON"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl:1: not JSON"),
        ("a.jsonl.gz", DAMAGED, r"a\.jsonl\.gz:\d: damaged compressed file"),
        ("a.jsonl", '{"text": "a"}\n{"text": "b", "label": "x", "label": "y"}\n',
         r"a\.jsonl:2: not JSON: the key 'label' stands twice in an object at column 29$"),
        ("a.json", '[{"text": "a"},\n{"text": "b",\n"\\u0074ext": "c"}]',
         r"a\.json:3: not JSON: the key 'text' stands twice in an object at column 1$"),
        ("a.jsonl", '{"text": "a", "more": [{"x": 1, "y": "x:", "z": {"x": 2}}, {"x": 1, "x": 2}]}',
         r"the key 'x' .* at column 69$"),
        ("a.tsv", "text\tlabel\na\tx\nb\0c\tx\n", r"a\.tsv:3: a NUL \(byte 1\), as in UTF-16"),
        ("a.tsv", "te\0xt\tlabel\na\tx\n", r"a\.tsv:1: a NUL"),
        ("a.csv", 'text,label\n"a\nb\0",x\n', r"a\.csv:2: (a NUL|not CSV: line contains NUL)"),
        ("a.txt", "a\nb\0\n", r"a\.txt:2: a NUL"),
        ("a.jsonl", '{"text": "a\0"}', r"a\.jsonl:1: a NUL"),
    ],
)  # fmt: skip
def test_tables_refuses(write, name, content, message):
    with pytest.raises(ValueError, match=message):
        list(read("classify", write(name, content)))


ODD = "ID\tsentence_A\tSentence_B\tJudgement\n7\ta a\tb\tx\n"


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        ("classify", ODD, r"--columns text=sentence_A, or, if the file has no header, its number: --columns text=1\. "
         r"Known without it: text, sentence, sentence1, premise, question1$"),
        ("classify", "Ticket No\tCustomer Message\tQueue\n1\tlate\tx\n", r"--columns text=\"Customer Message\", or"),
        ("classify", "no\tsource text\n1\tlate\n", r"--columns text=\"source text\", or"),
        ("classify", "Text\tTEXT\n", r"the header must name a column 'text'; found \['Text', 'TEXT'\]"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_names_the_remedy(write, task, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        list(read(task, write("a.tsv", content)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "columns", "expected"),
    [
        ("a.tsv", "Sentence1\tSENTENCE2\tLabel\na\tb\tx\n", {}, Example("a", "x", "b")),
        ("a.tsv", "Text\ttext\tlabel\na\tb\tx\n", {}, Example("b", "x")),
        ("a.tsv", ODD, {"text": "Sentence_a", "label": "judgement"}, Example("a a", "x")),
        ("a.jsonl", '{"Text": "a", "LABEL": 1}', {}, Example("a", "1")),
        ("a.txt", "Text\tLabel\na\tx\n", {}, Example("a", "x")),
        ("a.jsonl", '{"TEXT": "a", "text": "b", "Label": "x", "label": null}', {}, Example("b", None)),
    ],
)
def test_case_is_ignored_where_one_column_is_meant(write, name, content, columns, expected):
    assert list(read("classify", write(name, content), columns)) == [expected]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz"])
@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_of_objects(write, name, indent):
    rows = [{"text": "fine", "label": 1.0}, {"text": "rain", "label": "b"}]
    text = "\ufeff" + json.dumps(rows, indent=indent)
    path = write(name, gzip.compress(text.encode()) if name.endswith("gz") else text)
    examples = list(read("classify", path))
    assert examples == [Example("fine", "1.0"), Example("rain", "b")]
    assert [example.source for example in examples] == [f"{path}:{line}" for line in ((2, 6) if indent else (1, 1))]
    words = [{"words": ["a"], "tags": ["O"]}]
    assert list(read("tag", write("b.json", json.dumps(words, indent=indent)))) == [Tagged(("a",), ("O",))]
    questions = [row | {"context": CONTEXT} for row in ROWS]
    assert list(read("answer", write("c.json", json.dumps(questions, indent=indent)))) == QUESTIONS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a"},\n 7]', r"a\.json:2: int; each line is an object"),
        ('[{"text": "a"}\n{"text": "b"}]', r"a\.json:1: not JSON: an object is followed by"),
        ('[{"text": "a"},\n{"text": ', r"a\.json:2: not JSON"),
        ('[{"text": "a"}]\n\n[{"text": "b"}]', r"a\.json:1: not JSON: the array is followed by '\[\{\"text"),
    ],
)
def test_an_array_that_is_malformed(write, content, message):
    with pytest.raises(ValueError, match=message):
        list(read("classify", write("a.json", content)))


def test_spaces_around_a_label(write):
    with pytest.warns(UserWarning, match="label ' x ': the spaces around it are left out"):
        examples = list(read("classify", write("a.tsv", "text\tlabel\na\t x \nb\tx\nc\t  \n")))
    assert [example.label for example in examples] == ["x", "x", None]


def test_sources_are_kept_but_not_compared(write):
    path = write("a.tsv", TSV)
    assert [example.source for example in read("classify", path)] == [f"{path}:2", f"{path}:3"]


NAMED = {"text": "#1 String", "pair": "#2 String", "label": "Quality"}
MRPC = '\ufeffQuality\t#1 ID\t#1 String\t#2 String\r\n1\t7\ta "b\td\r\n'
STSB = 'news\t5.000\tone "\ttwo\tlicence\nnews\t0.5\ta\tb\n'
NUMBERED = {"text": "3", "pair": "4", "label": "2"}


@pytest.mark.parametrize(
    ("task", "name", "content", "columns", "expected"),
    [
        ("classify", "a.txt", MRPC, NAMED, [Example('a "b', "1", "d")]),
        ("regress", "a.csv", STSB, NUMBERED, [Example('one "', 5.0, "two"), Example("a", 0.5, "b")]),
        ("regress", "a.tsv", "sentence1\tsentence2\tscore\na\tb\t-1e3\n", {}, [Example("a", -1000.0, "b")]),
        ("regress", "a.jsonl", '{"text": "a", "label": 2}\n{"text": "b", "score": "2.5"}', {}, [2.0, 2.5]),
        ("regress", "a.tsv", "text\tlabel\na\t\n", {}, [None]),
        ("classify", "a.txt", "\ufefffine day\r\n\nrain\tand\n", {}, [Example("fine day"), Example("rain\tand")]),
        ("classify", "a.txt", "text\nrain\n", {}, [Example("text"), Example("rain")]),
        ("classify", "a.tsv", "wrong\ttext\nx\ta\n", {"label": "wrong"}, [Example("a", "x")]),
        ("classify", "a.json", '{"premise": "a", "hypothesis": "b", "y": 1}', {"label": "y"}, [Example("a", "1", "b")]),
        ("multilabel", "a.tsv", "text\tlabel\na\tx, y\nb\t\nc\tx,x\n", {}, [("x", "y"), (), ("x",)]),
        ("multilabel", "a.jsonl", '{"text": "a", "labels": ["x", 3]}\n{"text": "b", "label":[]}', {}, [("x", "3"), ()]),
        ("multilabel", "a.tsv", "text\na\n", {}, [None]),
    ],
)  # fmt: skip
def test_read(write, task, name, content, columns, expected):
    examples = list(read(task, write(name, content), columns))
    assert (examples if isinstance(expected[0], Example) else [example.label for example in examples]) == expected
    assert all(type(example.label) in (str, float, tuple, type(None)) for example in examples)


@pytest.mark.parametrize(
    ("name", "content", "columns", "expected"),
    [
        ("a.conll", "EU\tB-ORG\nsaid\tO\n\n\n\n-\tO\n", {}, [(("EU", "said"), ("B-ORG", "O")), (("-",), ("O",))]),
        ("a.iob", "-DOCSTART- -X- O\n\nEU NNP I-ORG\r\nUN NNP B-ORG\r\n", {}, [(("EU", "UN"), ("B-ORG", "B-ORG"))]),
        ("a.conll", "-DOCSTART- O\nEU  S-ORG \n", {}, [(("EU",), ("B-ORG",))]),
        ("a.bio", "a b\tNN\tO\n#\tSYM\tO\n", {"label": "2"}, [(("a b", "#"), ("NN", "SYM"))]),
        ("a.tsv", "x\ty\tz\n", {"text": "2", "label": "1"}, [(("y",), ("x",))]),
        ("a.txt", "# id = 1\n# text = a b\na X\nb Y\n\n# id = 2\n\n# text = # c\n# X\nc Y\n\n# X\n", {},
         [(("a", "b"), ("X", "Y")), (("#", "c"), ("X", "Y")), (("#",), ("X",))]),
        ("a.conll", "\ufeffDubbz\ufeff\tB-x\n\u00a0z\tI-x", {}, [(("Dubbz\ufeff", "\u00a0z"), ("B-x", "I-x"))]),
        ("a.conll", "one\ntwo\n", {}, [(("one", "two"), None)]),
        ("a.jsonl", '{"tokens": ["a"], "ner_tags": [3]}\n{"words": ["a"]}', {}, [(("a",), ("3",)), (("a",), None)]),
        ("a.jsonl", '{"w": ["a"], "tags": ["I-x"]}', {"text": "w"}, [(("a",), ("B-x",))]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", COMPRESS)
def test_read_tagged(write, name, content, columns, expected, suffix):
    path = write(name + suffix, COMPRESS[suffix](content.encode()))
    assert list(read("tag", path, columns)) == [Tagged(*wanted) for wanted in expected]


def test_the_source_of_a_sentence_is_the_line_of_its_first_word(write):
    path = write("a.conll", "# id\na\tO\nb\tO\n\n-DOCSTART-\tO\nc\tO\n")
    assert [example.source for example in read("tag", path)] == [f"{path}:2", f"{path}:6"]


CONTEXT = "Élan 🎈 rises in Rome and in Roma."
ANSWERS = [{"text": "Rome", "answer_start": 16}, {"text": "Roma", "answer_start": 28}]
ROWS = [
    {"id": "a1", "question": "Where?", "answers": ANSWERS},
    {"id": "a2", "question": "Who?", "answers": [], "is_impossible": True},
    {"id": "a3", "question": "What?"},
]
SQUAD = {
    "version": "v2.0",
    "data": [{"title": "data", "paragraphs": [{"context": CONTEXT, "qas": ROWS}]}, {"paragraphs": []}],
}
QUESTIONS = [
    Question("Where?", CONTEXT, (("Rome", 16), ("Roma", 28)), "a1"),
    Question("Who?", CONTEXT, (), "a2"),
    Question("What?", CONTEXT, None, "a3"),
]


@pytest.mark.parametrize(
    "layout", [{}, {"indent": 1}, {"ensure_ascii": False}, {"separators": (",", ":"), "sort_keys": True}]
)
def test_squad(write, layout):
    text = json.dumps(SQUAD, **layout)
    path = write("a.json", "\ufeff" + text)
    examples = list(read("answer", path))
    assert examples == QUESTIONS
    at = [1 + text[: text.index(f'"{example.id}"')].count("\n") for example in examples]
    assert [example.source for example in examples] == [f"{path}:{line}" for line in at]
    assert (len(set(at)) == 3) == ("indent" in layout)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_questions_in_lines(write, name):
    rows = [{"title": "t"} | row | {"context": CONTEXT} for row in ROWS]
    rows[0]["answers"] = {"text": ["Rome", "Roma"], "answer_start": [16, 28]}
    rows.append({"question": "Where?", "context": CONTEXT, "answers": [{"text": "Rome", "start": 16}], "id": 7})
    examples = list(read("answer", write(name, "\n".join(map(json.dumps, rows)))))
    assert examples == [*QUESTIONS, Question("Where?", CONTEXT, (("Rome", 16),), "7")]


def squad(**changes):
    return json.dumps(
        {"data": [{"paragraphs": [{"context": "In Rome.", "qas": [{"id": "q", "question": "Where?"} | changes]}]}]}
    )


@pytest.mark.parametrize(
    ("task", "name", "content", "columns", "message"),
    [
        ("regress", "a.tsv", "text\tlabel\na\t1\nb\tlow\n", {}, r":3: label 'low' is not a finite number"),
        ("regress", "a.tsv", "text\tlabel\na\tnan\n", {}, r":2: label 'nan' is not"),
        ("regress", "a.tsv", "text\tlabel\na\t1_0\n", {}, r":2: label '1_0' is not"),
        ("regress", "a.jsonl", '{"text": "a", "label": true}', {}, r":1: label True is not"),
        ("regress", "a.jsonl", '{"text": "a", "label": Infinity}', {}, r":1: label inf is not"),
        ("classify", "a.jsonl", '{"text": 5, "label": "x"}', {}, r":1: text 5: a text is needed, not int$"),
        ("multilabel", "a.jsonl", '{"text": "a", "label": 3}', {}, r":1: label 3: several labels are a list"),
        ("multilabel", "a.tsv", "text\tlabel\na\tx,,y\n", {}, r":2: labels \['x', '', 'y'\]: one of them is empty"),
        ("classify", "a.tsv", "text,label\na,x\n", {}, r":1: the header must .* by tabs, and by commas in .* \.csv"),
        ("classify", "a.csv", 'text,label\n"a\n\nb",x\n"c" d,y\n', {}, r":5: not CSV: ',' expected after"),
        ("classify", "a.csv", 'text,label\na,x\n"b,y\nc,z\n', {}, r":3: not CSV: unexpected end of data"),
        ("classify", "a.csv", "text,label\na,b,x\n", {}, r":2: 3 fields where the header has 2"),
        ("classify", "a.csv", b"text,label\na,x\n\xff,y\n", {}, r":3: not UTF-8 \(byte 0"),
        ("classify", "a.csv", "n,label\na,x\n", {}, r":1: the header must name a column 'text'.*--columns text=n"),
        ("classify", "a.tsv", "pair_ID\tsentence_A\tsentence_B\trel\n1\ta b c\ta b c d\t4.5\n", {},
         r"e\.g\. --columns text=sentence_A pair=sentence_B, or,"),
        ("classify", "a.parquet", "PAR1", {}, r"a\.parquet: no readable Parquet file: "),
        ("tag", "a.tsv", "text\tlabel\na b\tx\n", {}, r":1: a header, as in a table"),
        ("tag", "a.tsv", "Review Text\tLabel\na b\tx\n", {}, r":1: a header"),
        ("tag", "a.conll", "a O\nb O\n\nc ORG\n\nd ORG call\n", {}, r":6: 3 columns where the words before have 2"),
        ("classify", "a.tsv", "text\tlabel\tid\tid\tlabel\n", {}, r":1: the header has 'label' twice"),
        ("classify", "a.tsv", TSV, {"label": "gold"}, r":1: the header has no column 'gold'; found"),
        ("classify", "a.tsv", "a\tb\n", {"text": "1", "label": "3"}, r":1: 2 fields where column 3 is needed"),
        ("classify", "a.tsv", TSV, {"text": "1", "label": "gold"}, r"all are names, or all are numbers"),
        ("classify", "a.tsv", TSV, {"text": 1}, r"columns text=1: the name of a column, or its number as a string"),
        ("classify", "a.tsv", TSV, {"tags": "x"}, r"columns \['tags'\]: this task reads text, pair, label"),
        ("sort", "a.tsv", TSV, {}, r"task 'sort': one of classify, "),
        ("classify", "a.jsonl", '{"text": "\\ud83d"}', {}, r":1: half a surrogate pair"),
        ("classify", "a.tsv", b"te\xffxt\n", {}, r":1: not UTF-8"),
        ("tag", "a.conll", "a O\nb\n", {}, r":2: 1 columns where the words before have 2"),
        ("tag", "a.conll", "a O\n#b\n", {}, r":2: 1 columns where"),
        ("tag", "a.conll", "a\tO\n\nb\tO\n\tO\n", {}, r":4: column 1 is empty"),
        ("tag", "a.conll", "a O\n\nb O\n", {"label": "3"}, r":1: 2 columns; column 3 is needed"),
        ("tag", "a.conll", b"a O\n\nb O\nc \xff\n", {}, r":4: not UTF-8"),
        ("tag", "a.conll", "a O\n", {"label": "ner"}, r"those of a CoNLL file are numbers"),
        ("tag", "a.jsonl", '{"words": ["a", "b"], "tags": ["O"]}', {}, r":1: 2 words and 1 tags"),
        ("tag", "a.jsonl", '{"words": "a b"}', {}, r":1: words 'a b': a list of words is needed"),
        ("tag", "a.jsonl", '{"words": ["a", ""]}', {}, r":1: '' is not a word"),
        ("tag", "a.jsonl", '{"words": ["a"], "tags": [null]}', {}, r":1: word 1, 'a', has no tag"),
        ("answer", "a.tsv", "question\n", {}, r"questions are read from \.jsonl and \.parquet files"),
        ("answer", "a.json", squad(answers=[{"text": "Rome", "answer_start": 4}]), {},
         r":1: question 'q': answer 'Rome' is not at character 4 of its context; found 'ome\.'"),
        ("answer", "a.json", squad(answers=[{"text": "Rome", "answer_start": -5}]), {}, r"character -5 .* found ''"),
        ("answer", "a.json", squad(answers="Rome"), {}, r"answers Rome: they are a list"),
        ("answer", "a.json", squad(answers=[{"text": "", "answer_start": 0}]), {}, r"answer '' at 0"),
        ("answer", "a.json", squad(question=" "), {}, r":1: no question"),
        ("answer", "a.json", squad()[:-6], {}, r":1: not JSON"),
        ("answer", "a.json", squad()[:-2], {}, r":1: not JSON: an article is followed by ''"),
        ("answer", "a.json", '{"data": [\n{"title": "x"}]}', {}, r":2: not an article of .*: it lacks 'paragraphs'"),
        ("answer", "a.json", "[]", {}, r":1: neither the JSON of SQuAD"),
        ("answer", "a.json", b'{"data": [\n\xff]}', {}, r":2: not UTF-8"),
        ("answer", "a.json", '{"data": []}', {}, r"a\.json: no examples in it"),
        ("answer", "a.json", "", {}, r"a\.json:1: neither"),
        ("tag", "a.conll", "\n-DOCSTART- O\n\n", {}, r"a\.conll: no examples in it"),
        ("tag", "a.conll", "a\tO\nb\tO\0\n", {}, r":2: a NUL \(byte 1\)"),
        ("answer", "a.json", squad(answers=[{"text": "n", "answer_start": True}]), {},
         r":1: question 'q': answer 'n' at True: a text and a whole number are needed"),
        ("answer", "a.json", squad(answers={"text": ["n"], "answer_start": [True]}), {}, r"answer 'n' at True"),
        ("answer", "a.json", squad().replace('"id": "q"', '"id": "q", "id": "p"'), {}, r":1: .* 'id' stands twice"),
        ("answer", "a.json", '{"version": "1",\n"data": [\n],\n"version": "2"}', {}, r":4: .* 'version' stands twice"),
        ("answer", "a.json", squad()[:-1] + ',\n"data": []}', {}, r":2: not JSON: the key 'data' stands twice"),
    ],
)  # fmt: skip
def test_read_refuses(write, task, name, content, columns, message):
    with pytest.raises(ValueError, match=message) as caught:
        list(read(task, write(name, content), columns))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("task", "name", "content", "count", "bad"),
    [
        ("classify", "a.tsv", b"text\tlabel\na\tx\n\xff\tx\nb\n \tx\nc\ty\n", 2, [3, 4, 5]),
        ("classify", "a.csv", b'text,label\na,x\n\xff,x\n"c"d,x\nb\n" ",x\n"c,\n",y\n', 2, [3, 4, 5, 6]),
        ("classify", "a.jsonl", b'{"text": "a"}\n\xff\n{\n{"text": "\\ud800"}\n7\n', 1, [2, 3, 4, 5]),
        ("tag", "a.conll", b"a\tO\n\nb\tO\nc\nd\tO\n\n\xff\tO\n\ne\tO\n", 2, [4, 7]),
        ("answer", "a.json", json.dumps(SQUAD, indent=0).replace('"Roma"', '"Rome"').encode(), 2, [11]),
    ],
)
def test_malformed_rows_are_left_out_if_asked(write, task, name, content, count, bad):
    skipped = []
    path = write(name, content)
    assert len(list(read(task, path, skipped=skipped))) == count
    assert [message.partition(": ")[0] for message in skipped] == [f"{path}:{line}" for line in bad]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("task", "name", "content", "expected", "lines"),
    [
        ("classify", "a.tsv", "\ufefftext\tlabel\ra\tx\r\rb\ty", [Example("a", "x"), Example("b", "y")], [2, 4]),
        ("classify", "a.txt", "a b\rc\r", [Example("a b"), Example("c")], [1, 2]),
        ("classify", "a.csv", 'text,label\r"a\rb",x\rc,y\r', [Example("a\rb", "x"), Example("c", "y")], [2, 4]),
        ("classify", "a.csv", 'text,label\r"a,\n""b",x\rc,y\r', [Example('a,\n"b', "x"), Example("c", "y")], [2, 4]),
        ("classify", "a.csv", 'text\tlabel\ra\tx\rb\ty', [Example("a", "x"), Example("b", "y")], [2, 3]),
        ("classify", "a.csv", 'text,label\n"a\rb",x\nc,y\n', [Example("a\rb", "x"), Example("c", "y")], [2, 3]),
        ("classify", "a.csv", '"te\rxt",text,label\n1,a,x\n', [Example("a", "x")], [2]),
        ("classify", "a.jsonl", '{"text": "a"}\r{"text": "b"}\r', [Example("a"), Example("b")], [1, 2]),
        ("tag", "a.conll", "a\tO\rb\tX\r\rc\tO\r", [Tagged(("a", "b"), ("O", "X")), Tagged(("c",), ("O",))], [1, 4]),
    ],
)  # fmt: skip
def test_line_ends_of_an_old_mac(write, task, name, content, expected, lines, suffix):
    r"""A "\r" by itself ends a line where no "\n" does, and is text in quotes and in other files."""
    path = write(name + suffix, COMPRESS[suffix](content.encode()))
    examples = list(read(task, path))
    assert examples == expected and [example.source for example in examples] == [f"{path}:{line}" for line in lines]


def test_squad_with_line_ends_of_an_old_mac(write):
    path = write("a.json", json.dumps(SQUAD, indent=1).replace("\n", "\r"))
    assert list(read("answer", path)) == QUESTIONS
    assert [example.source for example in read("answer", path)] == [
        example.source for example in read("answer", write("a.json", json.dumps(SQUAD, indent=1)))
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": " "}, "no text in column 'text'; fill it, or leave the row out as skip_bad does"),
        ({"Text": None}, "no text in column 'Text'; fill it, or"),
        ({"body": "a"}, r"no text \(key or column 'text'\); found \['body'\]: --columns text=NAME gives"),
    ],
)
def test_a_text_that_is_empty_and_one_that_has_no_column(write, row, message):
    with pytest.raises(ValueError, match=rf"a\.jsonl:1: {message}"):
        list(read("classify", write("a.jsonl", json.dumps(row))))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "text,label\n{}\n"), ("a.tsv", "text\tlabel\n{}\n"), ("a.jsonl", '{{"text": "a", "label": "{}"}}\n')],
)
@pytest.mark.parametrize("word", ["None", "NaN", "NA", "nan", "<NA>", "NaT", "null"])
def test_words_that_look_like_missing_values_are_labels(write, name, content, word):
    separator = {"a.csv": "a,", "a.tsv": "a\t"}.get(name, "")
    assert list(read("classify", write(name, content.format(separator + word)))) == [Example("a", word)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"{\n[]\n", r"a\.jsonl: no row of it can be read; the first: .*:1: not JSON"),
        ("a.jsonl", b"", r"a\.jsonl: no examples in it"),
        ("a.jsonl.gz", DAMAGED, "damaged compressed file"),
        ("a.tsv", b"words\na\n", "the header must name a column"),
    ],
)
def test_errors_that_skipping_does_not_catch(write, name, content, message):
    with pytest.raises(ValueError, match=message):
        list(read("classify", write(name, content), skipped=[]))


def test_the_words_of_a_row():
    tag, classify = (tasks.get(name).reading for name in ("tag", "classify"))
    (example,) = tag.examples(Record({"tokens": ["a"], "ner": ["B-x"]}, tag.columns, "here"))
    assert example == Tagged(("a",), ("B-x",))
    with pytest.raises(
        ValueError, match=r"^no text \(key or column 'body'\); found \['text'\]: --columns text=NAME gives"
    ):
        list(classify.examples(Record({"text": "a"}, classify.names({"text": "body"}), "here")))


@pytest.mark.parametrize(
    ("task", "name", "row"), [("classify", "a.tsv", b"a fine day\tgood\n"), ("tag", "a.conll", b"a\tO\n\n")]
)
def test_rows_are_streamed(write, task, name, row):
    path = write(name, (b"text\tlabel\n\n" if task == "classify" else row) + row * 10_000)
    tracemalloc.start()
    count = sum(1 for _ in read(task, path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count >= 10_000 and peak < 500_000
