"""The text ops against `bundle.features`: every id equal."""

import pydoc_data.topics
import random
import string
import unicodedata
from collections import defaultdict

import numpy as np
import pytest
import tensorflow as tf
from keras_ctxrep_export.text_ops import features
from tokenizers.normalizers import BertNormalizer

from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.tokens import WordPiece

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
    "𝅘𝅥𝅮 \U0001d165\u0301\U0001d16d \u302e\u1b44",
    "$^`~|<>=+ \u2e55 \u061d \u2027 \u30fb a|b x|y",
    *(char * n for char in ("a", "é", "ก", "😀") for n in (47, 48, 49, 99, 100, 101, 102)),
    "a" * 98 + "é" + "\u0301" * 10 + "\u200b" * 10,
    "a" * 46 + "é€😀" + "b" * 10,
    "word " * 300,
    "…" * 300,
    "a" * 90 + " " + "b" * 110 + " c " * 200,
]

# The letters and vowel signs that the docstring excepts: TensorFlow's NFD takes them apart, `tokenizers`' does not.
NEWER = {0x105C9, 0x105E4, 0x11383, 0x11385, 0x1138E, 0x11391, 0x113C5, 0x113C7, 0x113C8, 0x11938}
NEWER |= {*range(0x16121, 0x16129), *range(0x16D68, 0x16D6B)}


def sampled_characters() -> list[str]:
    """Up to 2,000 characters of each Unicode category."""
    by_category = defaultdict(list)
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000 and code not in NEWER:
            by_category[unicodedata.category(chr(code))].append(chr(code))
    pick = random.Random(0)
    return [char for found in by_category.values() for char in pick.sample(found, min(2000, len(found)))]


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


@pytest.fixture(scope="module", params=["elmo", "elmo short", *BERTS])
def prepared(request):
    """A bundle, and its text ops traced as in a SavedModel."""
    if request.param.startswith("elmo"):
        length, width = (3, 5) if "short" in request.param else (128, 50)
        bundle = Bundle("elmo", "embed", {"max_characters": width}, max_length=length)
    else:
        length = 5 if "short" in request.param else 128
        bundle = Bundle("bert", "embed", {}, max_length=length, vocab=vocabulary(), **BERTS[request.param])
    return bundle, tf.function(features(bundle), input_signature=[tf.TensorSpec([None], tf.string)])


def test_a_model_over_words_is_refused():
    words = Bundle("elmo", "embed", {"words": 3}, 8, vocab=("<S>", "</S>", "<UNK>"))
    with pytest.raises(ValueError, match="over words"):
        features(words)


def assert_equal(prepared, texts: list[str], data: list[bytes] | None = None) -> None:
    bundle, function = prepared
    wanted = bundle.features(texts)
    found = function(tf.constant(data or [text.encode() for text in texts], tf.string, [len(texts)]))
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        assert found[key].dtype == tf.int32 and found[key].shape == array.shape, key
        different = np.flatnonzero((found[key].numpy() != array).any(tuple(range(1, array.ndim))))
        assert not different.size, (key, different.size, [texts[row] for row in different[:10]])


@pytest.mark.parametrize("name", TEXTS)
def test_equals_bundle_features(prepared, name):
    assert_equal(prepared, TEXTS[name])


@pytest.mark.parametrize("texts", [[], [""], ["", " ", "\u200b", "\0"], ["one", ""]])
def test_small_batches(prepared, texts):
    assert_equal(prepared, texts)


def test_bytes_that_are_not_utf8(prepared):
    pick = random.Random(2)
    pieces = [
        b"\x80",
        b"\xc3",
        b"\xe4\xb8",
        b"\xed\xa0\x80",
        b"\xf0\x9f",
        b"\xf5",
        b"\xff",
        b"\xc0\xaf",
        "é😀".encode(),
    ]
    data = [b"".join(pick.choice([*pieces, b"a", b" ", b"-"]) for _ in range(20)) for _ in range(500)]
    assert_equal(prepared, [one.decode("utf-8", "replace") for one in data], data)


def test_saved_model_of_stock_ops_without_assets(prepared, tmp_path):
    bundle, function = prepared
    module = tf.Module()
    module.prepare = function
    tf.saved_model.save(module, tmp_path, signatures=function.get_concrete_function())
    loaded = tf.saved_model.load(tmp_path)
    assert_equal((bundle, loaded.signatures["serving_default"]), AWKWARD)
    assert_equal((bundle, loaded.prepare), [])
    assert not [*(tmp_path / "assets").iterdir()]
    graph = function.get_concrete_function().graph.as_graph_def()
    ops = {node.op for node in [*graph.node, *(node for part in graph.library.function for node in part.node_def)]}
    assert not {op for op in ops if "PyFunc" in op or "Table" in op}


@pytest.mark.parametrize("max_length", [4, 5, 6, 9, 40])
def test_pairs(max_length):
    """Of all lengths, so that the first, the second, both or none are cut."""
    vocab = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "c")
    bundle = Bundle("bert", "classify", {}, max_length, vocab=vocab, pairs=True)
    texts, pairs = (
        list(column) for column in zip(*(("ab c " * i, "c ab " * j) for i in range(6) for j in range(6)), strict=True)
    )
    expected, found = bundle.features(texts, pairs), features(bundle)(tf.constant(texts), tf.constant(pairs))
    assert {name: tensor.numpy().tolist() for name, tensor in found.items()} == {
        name: array.tolist() for name, array in expected.items()
    }
