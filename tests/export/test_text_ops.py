"""The text ops against `bundle.features` and `keras_ctxrep.text.tokens`: every id and every offset equal."""

import itertools
import pydoc_data.topics
import random
import string
import subprocess
import sys
import unicodedata
from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tokenizers.normalizers import BertNormalizer

from keras_ctxrep import tasks
from keras_ctxrep.tasks.answer import answers_in_graph
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Reads, window_begins, words_of_pieces
from keras_ctxrep.text.tokens import SPECIAL_PIECES, WordPiece, words
from keras_ctxrep_export.text_ops import Windows, features, in_parts
from keras_ctxrep_export.words import lowered, split
from tests import long_texts

AWKWARD = [
    "",
    " ",
    " \t\r\n\u00a0\u2003\u3000\u2028 ",
    "\u00ad\u200b\ufeff",
    "\0",
    "a\0b \0 c\0",
    "Don't stop, José! [CLS] [SEP] [UNK] ##ing <S> </S> <unk>",
    "Crème brûlée, naïve coöperation, ÅNGSTRÖM Å \u212b, Dvořák",
    "e\u0301\u0323 \u0323\u0301e a\u200d\u0301b \u0301 x\u0338=y ≠ ≮",
    "½ ﬁ ² № … ™ ㎏ Ⅷ ß ẞ ﷺ K \u2126 ſ ŉ",
    "ΟΔΥΣΣΕΥΣ Σ ΣΑΣ. ὈΔΥΣΣΕΎΣ ᾈ ᾼ Ὦ",
    "İstanbul Iğdır ı I i\u0307 J\u0307 Į\u0300",
    "中文abc漢字，。『』 \uf900 \U0002f800\U00020000x ひらがな カタカナ がガ 한국어 각 \u1100\u1161",
    "ＦＵＬＬ　ｗｉｄｔｈ！ １２ ﾊﾝｶｸ",
    "👩‍👩‍👧‍👦 👍🏽 ❤️ 🇫🇷 1️⃣ \U000e0067",
    "שָׁלוֹם \u202eעברית\u202c العَرَبِيَّة \u0600 हिन्दी ক্ষ কো ไทย မြန်မာ",
    "soft\u00adhyphen zero\u200bwidth bom\ufeff left\u200eright \ufffd \ue000 \U000f0000 \U0010fffd",
    "\ufffe \uffff \U0001ffff \U00040000 \U000dffff \U000ffffe \U0010ffff",
    "Ⱟ Ꟁ \ua7cb \ua7dc 𐕰 𐵐 \U00016ea0 ꭰ Ꭰ ꮿ Ა ა ა᳐",
    "𝅘𝅥𝅮 \U0001d165\u0301\U0001d16d \u302e\u1b44 \u0308\U0001134d e\u0308\U00011c3f",
    "$^`~|<>=+ \u2e55 \u061d \u2027 \u30fb a|b x|y",
    *(char * n for char in ("a", "é", "ก", "😀") for n in (47, 48, 49, 99, 100, 101, 102)),
    "a" * 98 + "é" + "\u0301" * 10 + "\u200b" * 10,
    "a" * 46 + "é€😀" + "b" * 10,
    "word " * 300,
    "…" * 300,
    "a" * 90 + " " + "b" * 110 + " c " * 200,
]


def sampled_characters() -> list[str]:
    """Up to 1,000 characters of each Unicode category."""
    by_category = defaultdict(list)
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            by_category[unicodedata.category(chr(code))].append(chr(code))
    pick = random.Random(0)
    return [char for chars in by_category.values() for char in pick.sample(chars, min(1000, len(chars)))]


def random_texts(chars: list[str]) -> list[str]:
    pick = random.Random(1)
    sources = [chars, string.ascii_letters, string.punctuation, " \t\n\u00a0", "\u0301\u0308\u200d\u00ad", "ÉΣΆЙİ中각"]
    return ["".join(pick.choice(pick.choice(sources)) for _ in range(pick.randrange(80))) for _ in range(2000)]


CHARACTERS = sampled_characters()
PROSE = [line for topic in pydoc_data.topics.topics.values() for line in topic.split("\n")][::2]
TEXTS = {
    "awkward": AWKWARD,
    "characters": [f"a{char}b" for char in CHARACTERS],
    "upper-case neighbours": [f"A{char} {char}B" for char in CHARACTERS],
    "random": random_texts(CHARACTERS),
    "prose": PROSE,
}


@cache
def vocabulary() -> tuple[str, ...]:
    """Trained pieces, and every character before and after the uncased rules, so that no difference hides in [UNK]."""
    text = "".join(map("".join, TEXTS.values()))
    rules = [(False, True), (True, False), (True, True)]
    changed = [BertNormalizer(False, False, strip, lower).normalize_str(text) for strip, lower in rules]
    chars = dict.fromkeys("".join([text, *changed]))
    for char in "…\0\x11":  # "…" stays [UNK]; tensorflow-text fails at a piece "\0" and crashes at "\x11"
        chars.pop(char, None)
    trained = WordPiece.train(PROSE, 2000, lowercase=False).vocab
    return tuple(dict.fromkeys([*trained, *chars, *("##" + char for char in chars)]))


BERTS = {
    "bert cased": {"lowercase": False},
    "bert uncased": {},
    "bert lower-case with accents": {"strip_accents": False},
    "bert cased without accents": {"lowercase": False, "strip_accents": True},
    "bert cased, CJK whole": {"lowercase": False, "split_cjk": False},
    "bert uncased, CJK whole": {"split_cjk": False},
    "bert uncased short": {},
}


QUICK = ("bert cased", "bert uncased", "bert uncased short")
VARIANTS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BERTS]


@pytest.fixture(scope="module", params=["elmo", "elmo short", *VARIANTS])
def prepared(request):
    """A bundle, and its text ops traced as in a SavedModel."""
    if request.param.startswith("elmo"):
        length, width = (3, 5) if "short" in request.param else (128, 50)
        bundle = Bundle("elmo", "embed", {"max_characters": width}, max_length=length)
    else:
        length = 5 if "short" in request.param else 128
        bundle = Bundle("bert", "embed", {}, max_length=length, vocab=vocabulary(), **BERTS[request.param])
    return bundle, tf.function(features(bundle), input_signature=[tf.TensorSpec([None], tf.string)])


UNKNOWN = ("<UNK>", "one", "two", "the", ",", "été", "Été", "straße", "中", "i̇stanbul")
TABLE = {"width": 8, "words": len(UNKNOWN), "buckets": 0, "min_n": 3, "max_n": 6, "lowercase": True}
NGRAMS = {"buckets": 2_000_000, "lowercase": False}


WORD_IDS = {
    "static lower-case": Bundle("static", "embed", TABLE, 8, vocab=UNKNOWN),
    "static": Bundle("static", "embed", TABLE | {"lowercase": False}, 8, vocab=UNKNOWN),
    "biLM over words": Bundle("elmo", "embed", {"words": 6, "max_characters": 9}, 8, vocab=("<S>", "</S>", *UNKNOWN)),
    "characters and words": Bundle("elmo", "embed", {"max_characters": 9}, 8, vocab=UNKNOWN, extra_embeddings=TABLE),
    "n-grams": Bundle("static", "embed", TABLE | NGRAMS, 8, vocab=UNKNOWN),
    "characters and n-grams": Bundle(
        "elmo", "embed", {"max_characters": 9}, 8, vocab=UNKNOWN, extra_embeddings=TABLE | NGRAMS
    ),
}


@pytest.mark.parametrize("bundle", WORD_IDS.values(), ids=WORD_IDS)
def test_word_ids(bundle, tmp_path):
    texts = ["One, TWO THE été ÉTÉ Straße unseen", "", "İstanbul 中中 <UNK> ", *(text[:40] for text in AWKWARD)]
    module = tf.Module()
    module.ops = features(bundle)
    module.prepare = tf.function(module.ops, input_signature=[tf.TensorSpec([None], tf.string)])
    assert_equal((bundle, module.prepare), texts)
    assert_equal((bundle, module.prepare), [])
    tf.saved_model.save(module, tmp_path)
    assert_equal((bundle, tf.saved_model.load(tmp_path).prepare), texts)
    assert not [*(tmp_path / "assets").iterdir()]


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_memory_of_a_long_text_among_short_ones(family):
    """All rows at the length of the longest one would be 160 GB."""
    if family == "bert":
        bundle = Bundle("bert", "tag", {}, 9, ("O",), LETTERS, reads=Reads(words=True))
    else:
        bundle = Bundle("elmo", "tag", {"max_characters": 9}, 9, reads=Reads(words=True))
    texts = ["ab c"] * 20_000 + ["é" * 1_000_000]
    batch = features(bundle)(tf.constant(texts))
    assert batch["mask"].shape[0] == len(texts)
    batch, number, _ = features(bundle).given(tf.constant([texts]))
    assert number.shape == (1, len(texts))


@pytest.mark.parametrize("lengths", [(3, 6), (1, 1), (1, 3), (2, 4), (9, 9)], ids=str)
def test_rows_of_ngrams(lengths):
    """Of words in any script, of any length, known and unknown: those of the definition, in its order."""
    draw = random.Random(0)
    letters = "abcdefgh<>'éßñΣжш中文字한국กी\u0301\U0001f600\u200d\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff"
    odd = ["".join(draw.choices(letters, k=draw.randint(1, 12))) for _ in range(1000)]
    odd += [*UNKNOWN, "</s>", "<", ">", "<>", "a", "中", *(char * n for char in "aé中😀" for n in (99, 100, 101, 3000))]
    sizes = dict(zip(("min_n", "max_n", "buckets"), (*lengths, 2_000_003), strict=True))
    reads = Reads(words=True)
    bundle = Bundle("static", "tag", TABLE | NGRAMS | sizes, 8, ("O",), vocab=(*UNKNOWN, "</s>"), reads=reads)
    rows = [odd[at : at + 7] for at in range(0, len(odd), 7)]
    wanted = bundle.features(rows)
    width = max(map(len, rows))
    actual = features(bundle).given(tf.constant([[*row, *[""] * (width - len(row))] for row in rows])).inputs
    for key, array in wanted.items():
        np.testing.assert_array_equal(actual[key], array, key)
    assert (wanted["subword_ids"][wanted["mask"] > 0] == 1).sum() > 1 or lengths != (9, 9)  # words without any row
    assert features(bundle)(tf.constant([], tf.string))["subword_ids"].shape == (0, 1, 1)


def assert_equal(prepared, texts: list[str], data: list[bytes] | None = None) -> None:
    bundle, function = prepared
    wanted = bundle.features(texts)
    actual = function(tf.constant(data or [text.encode() for text in texts], tf.string, [len(texts)]))
    assert actual.keys() == wanted.keys()
    for key, array in wanted.items():
        assert actual[key].dtype == tf.int32 and actual[key].shape == array.shape, key
        different = np.flatnonzero((actual[key].numpy() != array).any(tuple(range(1, array.ndim))))
        assert not different.size, (key, different.size, [texts[row] for row in different[:10]])


@pytest.mark.parametrize("name", TEXTS)
def test_equals_bundle_features(prepared, name):
    assert_equal(prepared, TEXTS[name])


@pytest.mark.parametrize("texts", [[], [""], ["", " ", "\u200b", "\0"], ["one", ""]])
def test_small_batches(prepared, texts):
    assert_equal(prepared, texts)


def not_utf8(count: int) -> list[bytes]:
    pick = random.Random(2)
    broken = "80 c3 e4b8 eda080 f09f f09f98 f5 ff c0af"
    pieces = [*map(bytes.fromhex, broken.split()), "é😀".encode(), b"a", b"bc", b" ", b"-"]
    return [b"".join(pick.choices(pieces, k=20)) for _ in range(count)]


def test_bytes_that_are_not_utf8(prepared):
    data = not_utf8(500)
    assert_equal(prepared, [item.decode("utf-8", "replace") for item in data], data)


def test_saved_model_of_stock_ops_without_assets(prepared, tmp_path):
    bundle, function = prepared
    module = tf.Module()
    module.prepare = function
    tf.saved_model.save(module, tmp_path, signatures=function.get_concrete_function())
    loaded = tf.saved_model.load(tmp_path)
    assert_equal((bundle, loaded.signatures["serving_default"]), AWKWARD)
    assert_equal((bundle, loaded.prepare), [])
    assert not [*(tmp_path / "assets").iterdir()]
    message = saved_model_pb2.SavedModel()
    message.ParseFromString((tmp_path / "saved_model.pb").read_bytes())
    used = {operator.name for operator in message.meta_graphs[0].meta_info_def.stripped_op_list.op}
    assert len(used) > 20 and not {op for op in used if "PyFunc" in op or "Table" in op}


LONG = long_texts.odd(30, seed=2, more=())


def test_long_texts(prepared):
    assert_equal(prepared, LONG)


def test_long_texts_that_are_not_utf8(prepared):
    """Blocks end within characters, true and broken ones."""
    data = [begin * 4000 + b"the cat" + part * 90 for begin in not_utf8(10) for part in not_utf8(2)]
    assert_equal(prepared, [item.decode("utf-8", "replace") for item in data], data)


@pytest.mark.parametrize("bundle", WORD_IDS.values(), ids=WORD_IDS)
def test_word_ids_of_long_texts(bundle):
    long = max(map(len, bundle.vocab))
    texts = [*LONG, *(f"{'a' * count} the" * 2000 for count in (long - 1, long, long + 1))]
    assert_equal((bundle, tf.function(features(bundle))), texts)


@pytest.mark.parametrize("units", ["words", "pieces", "characters"])
@pytest.mark.parametrize("words", [False, True])
def test_long_texts_of_language_models(units, words):
    bundle = causal(units, 8, words=words)
    assert_equal((bundle, tf.function(features(bundle))), LONG)


def test_words_and_marks_of_long_texts():
    """What a tagger of ELMo's words says of a text, and where spans of characters are."""
    bundle = Bundle("elmo", "tag", {"max_characters": 9}, 7, reads=Reads(words=True, marks=1))
    draw = random.Random(0)
    begins = [draw.randrange(len(text)) for text in LONG]
    marks = [[(begin, begin + draw.choice([1, 50, 9000]))] for begin in begins]
    rows = bundle.features.encode(LONG, offsets=True, marks=marks)
    inputs, _, words = features(bundle).tagging(tf.constant(LONG), tf.constant(marks, tf.int32))
    assert inputs["marks"].numpy().tolist() == [[list(span) for span in row.marks] for row in rows]
    for text, row, *columns in zip(
        LONG, rows, *(words[name].numpy() for name in ("words", "starts", "ends")), strict=True
    ):
        found = [(word.decode(), begin, end) for word, begin, end in zip(*columns, strict=True) if end]
        assert found == [(text[begin:end], begin, end) for begin, end in row.words]
    pieces = Bundle("bert", "classify", {}, 7, ("x",), vocabulary(), reads=Reads(marks=1, indicate=True))
    inputs = features(pieces)(tf.constant(LONG), marks=tf.constant(marks, tf.int32))
    assert_same_arrays(inputs, pieces.features.collate(pieces.features.encode(LONG, marks=marks)))


@pytest.mark.parametrize("max_length", [8, 9])
def test_pairs_of_long_texts(max_length):
    """In which the longer one has a piece more, of even lengths."""
    bundle = Bundle("bert", "classify", {}, max_length, vocab=vocabulary(), reads=Reads(pair=True))
    texts = [*LONG, *("the cat " * count for count in (2, 600, 601, 3000, 3001))]
    pairs = random.Random(0).sample(texts, len(texts))
    for some, others in ((texts, pairs), (pairs, texts), (texts[-4:], texts[-5:-1]), (texts[-5:-1], texts[-4:])):
        inputs = features(bundle)(tf.constant(some), tf.constant(others))
        assert_same_arrays(inputs, bundle.features.collate(bundle.features.encode(some, others)))


def test_memory_of_thirty_megabytes():
    """In a process of its own; the words of all of a text take gigabytes."""
    script = """
import resource, sys
import tensorflow as tf
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import SPECIAL_PIECES
from keras_ctxrep_export.text_ops import features

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
bert = Bundle("bert", "embed", {}, 32, vocab=(*SPECIAL_PIECES, "the", "cat"))
run = tf.function(features(bert).plain, input_signature=[tf.TensorSpec([None], tf.string)])
run(tf.constant(["the cat " * 1000]))
before = peak()
for text in ("the cat " * 3_750_000, "a" * 30_000_000):
    run(tf.constant([text]))
    assert peak() - before < 600, (text[:9], peak() - before)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("max_length", [4, 5, 6, 9, 40])
def test_pairs(max_length):
    """Of all lengths, so that the first, the second, both or none are cut."""
    vocab = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "c")
    bundle = Bundle("bert", "classify", {}, max_length, vocab=vocab, reads=Reads(pair=True))
    texts, pairs = (
        list(column) for column in zip(*(("ab c " * i, "c ab " * j) for i in range(6) for j in range(6)), strict=True)
    )
    expected, actual = bundle.features(texts, pairs), features(bundle)(tf.constant(texts), tf.constant(pairs))
    assert {name: tensor.numpy().tolist() for name, tensor in actual.items()} == {
        name: array.tolist() for name, array in expected.items()
    }


def offsets(bundle: Bundle):
    """A function from texts to (begin, end) of their words, or of their pieces where the bundle is a BERT's."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def call(texts):
        if bundle.family == "elmo":
            return [span.values for span in split(texts).spans()]
        ops = features(bundle)
        return ops.tokenizer.cut(ops.tokenizer.split(texts))[1:]

    return call


def expected_offsets(bundle: Bundle, texts: list[str]) -> list[list[tuple[int, int]]]:
    if bundle.family == "elmo":
        return [[(word.start, word.end) for word in words(text)] for text in texts]
    return [[(piece.start, piece.end) for piece in row] for row in bundle.features.wordpiece.encode_batch(texts)]


def assert_offsets(bundle: Bundle, function, texts: list[str], data: list[bytes] | None = None) -> None:
    wanted = expected_offsets(bundle, texts)
    actual = function(tf.constant(data or [text.encode() for text in texts]))
    actual = [*zip(*(edge.numpy().tolist() for edge in actual), strict=True)]
    assert len(actual) == sum(map(len, wanted))
    spans = iter(actual)
    rows = [(text, [next(spans) for _ in row], row) for text, row in zip(texts, wanted, strict=True)]
    assert not [row for row in rows if row[1] != row[2]][:5]


def answerer(max_length: int, vocab: tuple[str, ...], **rules) -> Bundle:
    return Bundle("bert", config={}, max_length=max_length, vocab=vocab, **rules, **tasks.bundle_fields("answer"))


@cache  # tracing takes as long as the texts
def answering(name: str):
    """A bundle and its `offsets`."""
    if name == "words":
        bundle = Bundle("elmo", "embed", {"max_characters": 50}, 128)
    else:
        bundle = answerer(128, vocabulary(), **BERTS[name])
    return bundle, offsets(bundle)


ACCENTS = [unicodedata.normalize(form, text) for form in ("NFC", "NFD") for text in [*AWKWARD, *PROSE[:20]]]


@pytest.mark.parametrize("name", ["words", "bert cased", "bert uncased", "bert cased without accents"])
@pytest.mark.parametrize("texts", [AWKWARD + ACCENTS, TEXTS["random"], PROSE[:500]], ids=["awkward", "random", "prose"])
def test_offsets(name, texts):
    assert_offsets(*answering(name), texts)


@pytest.mark.parametrize("name", ["words", "bert uncased"])
def test_offsets_in_bytes_that_are_not_utf8(name):
    data = not_utf8(300)
    assert_offsets(*answering(name), [item.decode("utf-8", "replace") for item in data], data)


@pytest.mark.slow  # a million code points
@pytest.mark.parametrize("rules", [(False, False, True), (True, True, True), (True, False, False)])
def test_offsets_of_every_code_point(rules):
    """Between letters, a hundred in a text."""
    points = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and not 0x41000 <= code < 0xDF000]
    texts = [" ".join(f"x{char}y" for char in points[i : i + 100]) for i in range(0, len(points), 100)]
    vocab = (*SPECIAL_PIECES, "x", "##y")
    bundle = answerer(128, vocab, **dict(zip(RULES, rules, strict=True)))
    assert_offsets(bundle, offsets(bundle), texts)


RULES = ("lowercase", "strip_accents", "split_cjk")
LETTERS = (*SPECIAL_PIECES, "a", "##b", "c", "d", "é")


@pytest.mark.parametrize("max_length", [4, 5, 9, 200])
def test_starts_of_words(max_length):
    bundle = Bundle("bert", "tag", {}, max_length, ("O",), LETTERS, strip_accents=False, reads=Reads(words=True))
    texts = ["", "ab c, Ab\u200b  É", "c" * 101 + " ab", "ab " * 7, " \t", "👩‍👩‍👧 a", "e\u0301a שלום ab"]
    batch, number, spans = features(bundle).tagging(tf.constant(texts))
    rows = [bundle.features.wordpiece.encode(text) for text in texts]
    first = [[i for i, piece in enumerate(row) if not i or piece.word != row[i - 1].word] for row in rows]
    width = max(map(len, first))
    numbers = [[n if 1 + i < max_length - 1 else -1 for n, i in enumerate(row)] for row in first]
    assert number.numpy().tolist() == [row + [-1] * (width - len(row)) for row in numbers]
    for name, array in bundle.features(texts).items():
        assert np.array_equal(batch[name], array) and batch[name].dtype == tf.int32, name
    for i, (text, row, begins) in enumerate(zip(texts, rows, first, strict=True)):
        edges = [(row[a].start, row[b - 1].end) for a, b in itertools.pairwise([*begins, len(row)])]
        expected = [(text[start:end].encode(), start, end) for start, end in edges]
        words_of_row = [*zip(*(spans[name][i].numpy() for name in SPANS), strict=True)]
        assert words_of_row == expected + [(b"", 0, 0)] * (width - len(expected)), text


SPANS = ("words", "starts", "ends")


GIVEN = [
    ["ab", "c,", "", "\u200b", "É", "c" * 101, "a b", "<S>", "</S>", "\ufffd", "ǅ İ"],
    ["ab"] * 9,
    ["One", "straße", "İSTANBUL", "\x01", "ÉTÉ", "<UNK>", "x" * 60, "👩‍👩‍👧"],
    [],
]


@pytest.mark.parametrize("max_length", [4, 6, 200])
@pytest.mark.parametrize("family", ["bert", "elmo", "both", "static"])
def test_sentences_that_are_split_already(family, max_length):
    reads = Reads(words=True, marks=1)
    bundle = {
        "bert": Bundle("bert", "tag", {}, max_length, ("O",), LETTERS, strip_accents=False, reads=reads),
        "elmo": Bundle("elmo", "tag", {"max_characters": 9}, max_length, reads=reads),
        "both": Bundle(
            "elmo", "tag", {"max_characters": 9}, max_length, vocab=UNKNOWN, extra_embeddings=TABLE, reads=reads
        ),
        "static": Bundle("static", "tag", TABLE, max_length, vocab=UNKNOWN, reads=reads),
    }[family]
    given = GIVEN if family == "bert" else [[word for word in words if word] for words in GIVEN]
    marks = [[(0, 2)], [(2, 3)], [(1, 8)], [(0, 0)]]
    rows = bundle.features.encode(given, marks=marks)
    longest = max(map(len, given))
    strings = tf.constant([[*words, *[""] * (longest - len(words))] for words in given])
    batch, number, spans = features(bundle).given(strings, marks=tf.constant(marks))
    expected = bundle.features.collate(rows)
    assert batch.keys() == expected.keys() and not spans
    for name, array in expected.items():
        assert np.array_equal(batch[name], array) and batch[name].dtype == tf.int32, name
    for row, own in zip(rows, number.numpy().tolist(), strict=True):
        read = [start is not None for start in row.starts or []]
        assert own[: len(read)] == [sum(read[:i]) if there else -1 for i, there in enumerate(read)]
        assert set(own[len(read) :]) <= {-1}


def test_lower_case_of_every_code_point():
    chars = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    words = ["".join(chars[i : i + 1000]) for i in range(0, len(chars), 1000)]
    normalizer = BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=True)
    expected = [normalizer.normalize_str(word) for word in words]
    assert [word.decode() for word in lowered(tf.constant(words)).numpy()] == expected


@pytest.mark.parametrize("max_length", [2, 100])
def test_tokens_of_word_models_are_words(max_length):
    texts = ["one, Été  中", "", "a b c d e"]
    batch, number, spans = features(Bundle("elmo", "tag", {"max_characters": 5}, max_length)).tagging(
        tf.constant(texts)
    )
    assert batch["mask"].shape == spans["words"].shape
    assert np.array_equal(number, np.where(batch["mask"], np.arange(number.shape[1]), -1))
    for text, *columns in zip(texts, *(spans[name].numpy() for name in SPANS), strict=True):
        expected = [(text[w.start : w.end].encode(), w.start, w.end) for w in words(text)][:max_length]
        assert [*zip(*columns, strict=True)] == expected + [(b"", 0, 0)] * (batch["mask"].shape[1] - len(expected))


def python_windows(pieces: WordPiece, question: str, context: str, max_length: int, stride: int) -> list[tuple]:
    """(ids of the row, first context piece, number of them), as run_squad.py cuts; a question has half of a row."""
    asked = [piece.id for piece in pieces.encode(question)][: min(64, (max_length - 3) // 2)]
    ids = [piece.id for piece in pieces.encode(context)]
    room, begin, windows = max_length - len(asked) - 3, 0, []
    while True:
        part = ids[begin : begin + room]
        windows.append(([pieces.cls, *asked, pieces.sep, *part, pieces.sep], begin, len(part)))
        if begin + room >= len(ids):
            return windows
        begin += stride if stride < room else max(1, room // 2)


@pytest.mark.parametrize("max_length", [4, 5, 9])
@pytest.mark.parametrize("family", ["bert", "elmo", "static"])
def test_text_windows(family, max_length):
    if family == "bert":
        bundle = Bundle("bert", "classify", {}, max_length, (), LETTERS)
    elif family == "elmo":
        bundle = Bundle("elmo", "classify", {"max_characters": 9}, max_length)
    else:
        bundle = Bundle("static", "classify", TABLE, max_length, vocab=UNKNOWN)
    texts = ["", "\u200b", *("ab c, ONE " * count + "d" for count in range(8))]
    for stride in (1, 2, 7):
        rows = bundle.features.text_windows(texts, stride)
        windows = features(bundle).text_windows(tf.constant(texts), stride)
        assert windows.example.numpy().tolist() == [number for number, own in enumerate(rows) for _ in own]
        expected = bundle.features.collate([row for own in rows for row in own])
        assert {name: tensor.numpy().tolist() for name, tensor in windows.inputs.items()} == {
            name: array.tolist() for name, array in expected.items()
        }
    for text, own in zip(texts, rows, strict=True):  # together they have the whole text
        (whole,) = replace(bundle, max_length=1000).features.encode([text])
        tokens = whole.tokens[1:-1] if family == "bert" else whole.tokens
        room = max_length - 2 if family == "bert" else max_length
        step, joined = window_begins(0, room, stride).step, []
        for row in own:
            joined = joined[: len(joined) - max(0, room - step) if joined else 0]
            joined += row.tokens[1:-1] if family == "bert" else row.tokens
        assert joined == tokens


@pytest.mark.parametrize("rows", [0, 1, 5, 6, 12])
def test_rows_in_parts(rows):
    inputs = {"x": tf.reshape(tf.range(2 * rows), [rows, 2])}
    seen = []

    def model(batch):
        seen.append(batch["x"].shape[0])
        return {"y": batch["x"] * 2, "z": batch["x"][:, :1]}

    outputs = in_parts(model, inputs, 5)
    assert outputs["y"].numpy().tolist() == (2 * inputs["x"]).numpy().tolist() and outputs["z"].shape == (rows, 1)
    assert max(seen) <= 5


QUESTIONS = ["a", "", "c ab", "ab " * 40]
CONTEXTS = ["", "\u200b", "ab c", *("d, É ab c  中" * n for n in range(1, 12, 2))]
ASKED = [(q, c) for q, c in itertools.product(QUESTIONS, CONTEXTS)]


@pytest.mark.parametrize(("max_length", "stride"), [(69, 128), (69, 1), (70, 3), (200, 128), (70, 4), (8, 2), (4, 1)])
def test_windows(max_length, stride):
    bundle = answerer(max_length, LETTERS)
    questions, contexts = map(list, zip(*ASKED, strict=True))
    actual = features(bundle).windows(tf.constant(questions), tf.constant(contexts), stride)
    pieces = bundle.features.wordpiece
    expected = [python_windows(pieces, *pair, max_length, stride) for pair in ASKED]
    assert actual.example.numpy().tolist() == [i for i, rows in enumerate(expected) for _ in rows]
    spans = [span for context in contexts for span in words_of_pieces(pieces.encode(context))]
    assert [*zip(actual.start.numpy(), actual.end.numpy(), strict=True)] == spans
    before = np.cumsum([0, *(len(pieces.encode(context)) for context in contexts)])
    rows = [(*row, before[i]) for i, windows in enumerate(expected) for row in windows]
    for number, (ids, begin, size, offset) in enumerate(rows):
        mask = actual.inputs["mask"][number].numpy().astype(bool)
        assert actual.inputs["token_ids"][number].numpy()[mask].tolist() == ids
        segments = [0] * (len(ids) - size - 1) + [1] * (size + 1)
        assert actual.inputs["segment_ids"][number].numpy()[mask].tolist() == segments
        assert (actual.piece[number], actual.size[number]) == (begin + offset, size)
        assert actual.first[number] == len(ids) - size - 1
    python = bundle.features.windows(questions, contexts, stride)
    assert [row.tokens for rows in python for row in rows] == [row[0] for row in rows]


def fake_logits(inputs) -> dict:
    """Few different whole numbers, so that there are ties."""
    ids, mask = np.array(inputs["token_ids"], np.int64), np.array(inputs["mask"], bool)
    place = np.arange(ids.shape[1])
    edges = {"start_logits": (ids * 7 + place * 3) % 5, "end_logits": (ids * 3 + place * 5) % 7}
    return {name: np.where(mask, values, -1e4).astype(np.float32) for name, values in edges.items()}


@pytest.mark.parametrize("null_threshold", [None, 0.0, -6.0])
@pytest.mark.parametrize(("max_length", "stride", "max_answer"), [(70, 3, 30), (69, 128, 2), (72, 2, 1), (90, 5, 4)])
def test_answers_against_every_span(max_length, stride, max_answer, null_threshold):
    bundle = answerer(max_length, LETTERS)
    pieces = bundle.features.wordpiece
    windows: Windows = features(bundle).windows(*map(tf.constant, zip(*ASKED, strict=True)), stride)
    result = answers_in_graph(
        fake_logits(windows.inputs), windows, {"max_answer": max_answer, "null_threshold": null_threshold}
    )
    result = [*zip(*(result[name].numpy() for name in ("answer", "start", "end", "score", "null_score")), strict=True)]
    assert len(result) == len(ASKED)
    for (question, context), entry in zip(ASKED, result, strict=True):
        best, null, spans = None, np.inf, words_of_pieces(pieces.encode(context))
        for ids, begin, size in python_windows(pieces, question, context, max_length, stride):
            logits = fake_logits({"token_ids": [ids], "mask": [[1] * len(ids)]})
            starts, ends = logits["start_logits"][0], logits["end_logits"][0]
            null, first = min(null, starts[0] + ends[0]), len(ids) - size - 1
            for i in range(size):
                for j in range(i, min(size, i + max_answer)):
                    score = starts[first + i] + ends[first + j]
                    if best is None or score > best[0]:
                        best = score, spans[begin + i][0], spans[begin + j][1]
        if best is None or (null_threshold is not None and null - best[0] > null_threshold):
            assert entry == (b"", 0, 0, null, null)
        else:
            score, start, end = best
            assert entry == (context[start:end].encode(), start, end, score, null)


def test_no_question():
    bundle = answerer(70, LETTERS)
    empty = tf.constant([], tf.string)
    windows = features(bundle).windows(empty, empty, 128)
    settings = {"max_answer": 30, "null_threshold": None}
    assert answers_in_graph(fake_logits(windows.inputs), windows, settings)["answer"].shape == (0,)


# ------------------------------------------------------------------------------------------------------- marked spans


def marked_spans(texts: list[str]) -> list[list[tuple[int, int]]]:
    """Two spans of each text: whole words, parts of words, what is between them, nothing, and beyond the end."""
    pick, spans = random.Random(3), []
    for number, text in enumerate(texts):
        result = [(word.start, word.end) for word in words(text)]
        edges = sorted(pick.choices(range(len(text) + 1), k=2))
        drawn = [(0, 0), tuple(edges), (edges[0], edges[0]), (edges[0], len(text) + 5)]
        if result:
            first, last = sorted(pick.choices(result, k=2))
            drawn += [first, (first[0], last[1]), result[-1]] * 2
        spans.append([drawn[number % len(drawn)], pick.choice(drawn)])
    return spans


READING = {"marks": {}, "indicated": {"indicate": True}, "words": {"words": True}}
CUT = {"short": 7, "long": 128}


@pytest.mark.parametrize("length", CUT)
@pytest.mark.parametrize("reads", READING)
@pytest.mark.parametrize("name", ["words", *BERTS])
def test_marks(name, reads, length):
    """Which tokens the spans of characters are, in NumPy and in the graph."""
    own = Reads(marks=2, **READING[reads])
    if name == "words":
        bundle = Bundle("elmo", "embed", {"max_characters": 9}, CUT[length], reads=own)
    else:
        bundle = Bundle("bert", "embed", {}, CUT[length], vocab=vocabulary(), reads=own, **BERTS[name])
    texts = [*ACCENTS, *TEXTS["random"][:300], *PROSE[:100]]
    spans = marked_spans(texts)
    expected = bundle.features.collate(bundle.features.encode(texts, marks=spans))
    actual = features(bundle)(tf.constant(texts), marks=tf.constant(spans, tf.int32))
    assert actual.keys() == expected.keys()
    for key, array in expected.items():
        different = [
            i for i, (a, b) in enumerate(zip(actual[key].numpy(), array, strict=True)) if not np.array_equal(a, b)
        ]
        assert not different, (key, len(different), [(texts[i], spans[i]) for i in different[:3]])
    if "marks" in expected:
        real = expected["marks"][..., 1] > 0
        assert real.mean() > 0.1 and (~real).any()
    else:
        assert expected["segment_ids"].any()


def test_marks_of_the_first_of_a_pair():
    bundle = Bundle("bert", "classify", {}, 9, (), LETTERS, reads=Reads(pair=True, marks=2))
    texts = ["ab c d", "ab c d ab c d", "", "c"]
    pairs = ["ab c", "d d", "c", "ab " * 9]
    spans = [[(0, 2), (3, 6)], [(0, 1), (7, 13)], [(0, 0), (0, 3)], [(0, 1), (0, 0)]]
    expected = bundle.features.collate(bundle.features.encode(texts, pairs, marks=spans))
    actual = features(bundle)(tf.constant(texts), tf.constant(pairs), tf.constant(spans, tf.int32))
    assert {name: tensor.numpy().tolist() for name, tensor in actual.items()} == {
        name: array.tolist() for name, array in expected.items()
    }
    assert expected["marks"].tolist() == [[[1, 3], [0, 0]], [[1, 2], [0, 0]], [[0, 0], [0, 0]], [[1, 2], [0, 0]]]


# ---------------------------------------------------------------------------- language models in one direction


UNITS = {
    "words": ("<S>", "</S>", "<UNK>", "word", "Don", "'", "the", "a", "b", "ab", "."),
    "pieces": LETTERS,
    "characters": ("<S>", "</S>", "<UNK>", *"abcdeorwDhst' .,é中"),
}


def causal(units: str, length: int, **reads) -> Bundle:
    return Bundle("lm", "tag", {"units": units}, length, ("O",), vocab=UNITS[units], reads=Reads(**reads))


def lines_of_text() -> list[str]:
    """Texts of one line and of several, empty ones among them."""
    pick = random.Random(5)
    parts = [text.replace("\r", "") for text in (*AWKWARD[:-2], *TEXTS["random"][:150], *PROSE[:60])]
    return ["\n".join(pick.choices(parts, k=pick.randrange(1, 4))) for _ in range(250)] + ["", "\n", "\na\n"]


@pytest.mark.parametrize("length", [5, 200])
@pytest.mark.parametrize("units", UNITS)
def test_tokens_of_language_models(units, length):
    """Rows, last tokens of words, spans of words, marked spans and windows, in NumPy and in the graph."""
    texts = lines_of_text()
    strings = tf.constant([text.encode() for text in texts])
    plain = causal(units, length)
    assert_equal((plain, features(plain)), texts)
    for words_too in (False, True):
        bundle, spans = causal(units, length, marks=2, words=words_too), marked_spans(texts)
        rows = bundle.features.encode(texts, marks=spans)
        actual = features(bundle)(strings, marks=tf.constant(spans, tf.int32))
        assert_same_arrays(actual, bundle.features.collate(rows))
    _, number, read = features(bundle).tagging(strings)
    for row, own, text, *columns in zip(rows, number.numpy().tolist(), texts, *read.values(), strict=True):
        stands = [start is not None for start in row.starts]
        assert own[: len(stands)] == [sum(stands[:i]) if there else -1 for i, there in enumerate(stands)]
        assert {*own[len(stands) :]} <= {-1}
        expected = [(text[begin:end].encode(), begin, end) for begin, end in row.words]
        assert [*zip(*(column.numpy()[: len(expected)] for column in columns), strict=True)] == expected
    windows = features(plain).text_windows(strings, 2)
    wanted = [row for text in plain.features.text_windows(texts, 2) for row in text]
    assert_same_arrays(windows.inputs, plain.features.collate(wanted))


# ---------------------------------------------------------------------------------------- pairs that are read apart

APART = {
    "elmo": {"config": {"max_characters": 9}},
    "static": {"config": TABLE | NGRAMS | {"buckets": 50}, "vocab": UNKNOWN},
    "static pieces": {"config": TABLE | {"pieces": True}, "vocab": LETTERS},
    "bert": {"vocab": LETTERS},
    **{f"lm {units}": {"config": {"units": units}, "vocab": UNITS[units]} for units in UNITS},
}


@pytest.mark.parametrize("max_length", [5, 70])
@pytest.mark.parametrize("name", APART)
def test_pairs_that_are_read_apart(name, max_length):
    """Inputs of pairs, and of questions with windows: where their tokens are and the words they are of; NumPy's."""
    texts = lines_of_text()[:80]
    others, task = texts[::-1], tasks.bundle_fields("answer", stride=3)
    fields = {"config": {}, "max_length": max_length, "stack": {"kind": "bidaf"}} | APART[name] | task
    bundle = Bundle(name.split()[0], **fields)
    plain = replace(bundle, reads=Reads(pair=True))
    inputs = features(plain)(tf.constant(texts), tf.constant(others))
    assert_same_arrays(inputs, plain.features.collate(plain.features.encode(texts, others)))
    windows = features(bundle).windows(tf.constant(texts), tf.constant(others), 3)
    rows = [(number, row) for number, own in enumerate(bundle.features.windows(texts, others, 3)) for row in own]
    assert_same_arrays(windows.inputs, bundle.features.collate([row for _, row in rows]))
    assert windows.example.numpy().tolist() == [number for number, _ in rows]
    spans = np.stack([windows.start, windows.end], 1)
    columns = (column.numpy().tolist() for column in (windows.first, windows.size, windows.piece))
    for (_, row), first, size, piece in zip(rows, *columns, strict=True):
        assert row.context == range(first, first + size)
        assert [tuple(span) for span in spans[piece : piece + size].tolist()] == row.words[first:]


def assert_same_arrays(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(actual[name], array) and actual[name].dtype == tf.int32, name


@pytest.mark.parametrize("length", [4, 200])
@pytest.mark.parametrize("units", UNITS)
def test_words_of_language_models_that_are_split_already(units, length):
    bundle = causal(units, length, marks=1, words=True)
    marks = [[(0, 2)], [(2, 3)], [(1, 8)], [(0, 0)]]
    rows = bundle.features.encode(GIVEN, marks=marks)
    longest = max(map(len, GIVEN))
    strings = tf.constant([[*given, *[""] * (longest - len(given))] for given in GIVEN])
    batch, number, _ = features(bundle).given(strings, marks=tf.constant(marks))
    assert_same_arrays(batch, bundle.features.collate(rows))
    for row, own in zip(rows, number.numpy().tolist(), strict=True):
        stands = [start is not None for start in row.starts or []]
        assert own[: len(stands)] == [sum(stands[:i]) if there else -1 for i, there in enumerate(stands)]
