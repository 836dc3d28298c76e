"""Subword tokenizers in a graph against `text.subwords` and `bundle.features`: every id and every offset equal."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tokenizers import normalizers

from benchmarks import graph_text
from keras_ctxrep import saving
from keras_ctxrep.inference.predictor import Predictor
from keras_ctxrep.models import heads, lm
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.features import Reads
from keras_ctxrep.text.subwords import Subwords, SubwordTokenizer
from keras_ctxrep.text.tokens import SpecialTokens
from keras_ctxrep_export import saved_model
from keras_ctxrep_export.charsmaps import Characters, CharsMap
from keras_ctxrep_export.subword_ops import SubwordOps
from keras_ctxrep_export.words import row_numbers
from tests import golden_text, tiny

ALL = golden_text.texts()
ODD = [
    "\x01a\x02 \x01b",  # what vanishes before the first letter
    "\ufb01\x01n \u2122\x01x",
    "\uff21\u0301b \u0340\u0301 \u0344\u094d",  # clusters of few bytes
    "\u2122\u200d\u2122\u0301 \u0915\u094d\u0958\u0301 \u0600\u00a0\u0301 \r\n\r \u200b\u0301",
    "\u2581a \u2581\u2581b\u3000 c\u00a0",
    "it's '' 's 'sss 'lla 'L \n's don't've 'v e",
    "a \n b\n\n  c\t ",
    "x" * 600 + "aaa" * 100,
    "",
    "   ",
]
TEXTS = [*ODD, *ALL[::40]]
SHORT = ["The quick fox", "  naïve \t café\n", "日本語 \u3000x", "", "it's 12 aaa", "\x01b 👩‍👩‍👧", " \n "]


def pieces_of(ops: SubwordOps):
    """A function from texts to the pieces of each, as `encode_batch` gives them."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def graph(texts):
        ids, start, end = ops.cut(ops.split(texts))
        rows = ids.merge_dims(1, 2)
        first = tf.gather(ids.row_starts(), row_numbers(ids))
        word = tf.gather(tf.range(tf.size(first, tf.int64)) - first, row_numbers(ids.values))
        return rows, *map(rows.with_values, (start, end, word))

    def run(texts):
        columns = (column.to_list() for column in graph(tf.constant(texts, tf.string)))
        return [[*zip(*row, strict=True)] for row in zip(*columns, strict=True)]

    return run


def assert_same(subwords: Subwords, texts) -> None:
    run, tokenizer = pieces_of(SubwordOps(subwords)), SubwordTokenizer(subwords)
    for begin in range(0, len(texts), 500):
        batch = [*texts[begin : begin + 500]]
        for text, own, pieces in zip(batch, run(batch), tokenizer.encode_batch(batch), strict=True):
            assert own == [*map(tuple, pieces)], text
    assert run([]) == []


@pytest.mark.parametrize("name", golden_text.TOKENIZERS)
def test_pieces_and_spans(name):
    assert_same(golden_text.TOKENIZERS[name](), TEXTS)


OTHERS = {
    "first": {"prefix": "first", "whitespace": False, "steps": ("strip_left", "precompiled", "one_metaspace")},
    "never": {"prefix": "never", "whitespace": False, "steps": ("precompiled", "strip_right")},
    "lower case": {"prefix": "never", "whitespace": False, "steps": ("lowercase", "precompiled")},
    "as it is": {"prefix": "first", "steps": (), "charsmap": b""},
}


@pytest.mark.release
@pytest.mark.parametrize("name", [*golden_text.TOKENIZERS, *OTHERS, "bpe with a space"])
def test_ten_thousand_texts(name):
    if name in OTHERS:
        subwords = replace(golden_text.unigram(), **OTHERS[name])
    else:
        options = {"add_prefix_space": True} if "space" in name else {}
        subwords = replace(golden_text.TOKENIZERS[name.split()[0]](), **options)
    assert_same(subwords, ALL)


def test_merges_out_of_order():
    """A pair that a later merge makes has a lower rank, so that it is merged before the next one like it."""
    base = golden_text.bpe()
    letters = tuple(piece for piece in base.pieces if len(piece) == 1)
    merges = (("ab", "a"), ("b", "c"), ("a", "b"), ("a", "a"))
    made = tuple(dict.fromkeys(left + right for left, right in merges))
    subwords = replace(base, pieces=(*golden_text.SPECIAL, *letters, *made), merges=merges, steps=())
    assert_same(subwords, ["abab", "ababab aab", "abcabc", "aaaaa aaaa", "aba abaaba"])


def test_normalization_of_clusters():
    """What the map makes of grapheme clusters, and where each character comes from."""
    charsmap = golden_text.nfkc()
    rules, ops = normalizers.Precompiled(charsmap), CharsMap(charsmap)
    texts = [text for text in TEXTS if text]
    chars: list = [*map(ord, "".join(texts))]
    rows = np.repeat(np.arange(len(texts)), [*map(len, texts)])
    origin = np.concatenate([np.arange(len(text)) for text in texts]).astype(np.int32)
    result = ops(Characters(tf.constant(chars), tf.constant(origin), tf.constant(rows)))
    codes, row = result.codes.numpy(), result.rows.numpy()
    made = ["".join(map(chr, codes[row == number])) for number in range(len(texts))]
    assert made == [rules.normalize_str(text) for text in texts]


def subword_bundle(name, task="classify", **fields):
    subwords = golden_text.TOKENIZERS[name]()
    return tiny.bundle(task, "roberta", vocab=subwords.pieces, tokenizer=subwords.to_json(), **fields)


SLOW = pytest.mark.slow
PATHS = {"unigram": ("words", "question"), "bpe": ("split",), "unigram_of_bytes": ()}
CASES = [
    pytest.param(name, path, marks=() if path in PATHS[name] else SLOW)
    for name in PATHS
    for path in ("text", "pair", "windows", "words", "split", "question")
]


@pytest.mark.parametrize(("name", "path"), CASES)
def test_features(name, path):
    compare = graph_text.paths(subword_bundle(name, max_length=40))[path]
    texts = [text for text in (*SHORT, *TEXTS[::5]) if path != "split" or text.strip(" ")]
    actual, expected = compare(texts)
    for text, own, wanted in zip(texts, actual, expected, strict=True):
        assert own == wanted, text


def of_language_model(task="classify", max_length=40):
    subwords = golden_text.bpe()
    config = lm.Config(
        "transformer",
        layers=1,
        width=8,
        heads=2,
        intermediate=8,
        context=64,
        positions="learned",
        vocabulary_size=len(subwords.pieces),
    )
    fields = {"vocab": subwords.pieces, "tokenizer": subwords.to_json()}
    special = SpecialTokens("</s>", "</s>", "</s>", "</s>", "</s>")
    return Bundle("lm", task, asdict(config), max_length, ("no", "yes"), **fields, special_tokens=special)


@pytest.mark.parametrize("path", ["text", "words", pytest.param("windows", marks=SLOW), "split"])
def test_features_of_a_language_model(path):
    compare = graph_text.paths(of_language_model())[path]
    texts = [text for text in (*SHORT, *TEXTS[::5]) if path != "split" or text.strip(" ")]
    actual, expected = compare(texts)
    for text, own, wanted in zip(texts, actual, expected, strict=True):
        assert own == wanted, text


@pytest.mark.parametrize("name", ["unigram", pytest.param("bpe", marks=SLOW)])
def test_saved_model_answers_as_keras_does(name, tmp_path):
    subwords = golden_text.TOKENIZERS[name]()
    fields = {"vocab": subwords.pieces, "tokenizer": subwords.to_json()}
    model, bundle = tiny.model("classify", "roberta", max_length=16, **fields)
    version = saved_model.export(model, bundle, tmp_path / "model")
    predictor = Predictor(
        bundle, lambda batch: {name: np.array(value) for name, value in heads.flat(model(batch)).items()}
    )
    for own, wanted in zip(saved_model.load(version)(SHORT), predictor(SHORT), strict=True):
        assert own["label"] == wanted["label"] and own["score"] == pytest.approx(wanted["score"], abs=1e-4)
    message = saved_model_pb2.SavedModel()
    message.ParseFromString((version / "saved_model.pb").read_bytes())
    used = {operator.name for operator in message.meta_graphs[0].meta_info_def.stripped_op_list.op}
    assert len(used) > 20 and used <= {*dir(tf.raw_ops), "_EagerConst"}  # those of TensorFlow alone
    assert not any("PyFunc" in op for op in used)


@pytest.mark.trains
def test_a_tagger_over_a_language_model(tmp_path):
    """Words of raw text and sentences that come split, in batches with texts that have no tokens."""
    bundle = replace(of_language_model("tag"), labels=("O", "B-X", "I-X"), reads=Reads(words=True))
    model = saving.build(bundle)
    version = saved_model.export(model, bundle, tmp_path / "model")
    loaded = saved_model.load(version)
    own = Predictor(bundle, lambda batch: {"logits": np.array(model(batch)["logits"])})
    split = [["The", "quick", "fox"], [""], ["café", "12", "aaa"] * 9]
    for texts in (SHORT, split):
        for found, wanted in zip(loaded(texts), own(texts), strict=True):
            assert [word | {"score": 0} for word in found["words"]] == [word | {"score": 0} for word in wanted["words"]]
            scores = [[word["score"] for word in each["words"]] for each in (found, wanted)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_what_has_no_operators_is_refused():
    with pytest.raises(ValueError, match="normalization nfc: has no operators"):
        SubwordOps(replace(golden_text.bpe(), steps=("nfc",)))
