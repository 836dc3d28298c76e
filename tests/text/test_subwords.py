"""Subword tokenizers: against `tokenizers` on golden texts, what tokenizer.json may say, and features over them."""

import json
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from keras_ctxrep.text.features import Reads, WordPieceFeatures
from keras_ctxrep.text.scripts import rule_of_pieces, split_words
from keras_ctxrep.text.subwords import STEPS, WHITE_SPACE, Added, Subwords, SubwordTokenizer, parse
from keras_ctxrep.text.tokens import SpecialTokens
from tests import golden_text, tiny

NAMES = [*golden_text.TOKENIZERS]
TEXTS = golden_text.texts()


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request):
    return SubwordTokenizer(golden_text.TOKENIZERS[request.param]())


def theirs(subwords, special=True):
    """What `tokenizers` makes of the file, with or without its added tokens."""
    return Tokenizer.from_str(subwords.to_json() if special else replace(subwords, added=()).to_json())


def test_pieces_of_tokenizers(tokenizer):
    """Those of `tokenizers`, where no special piece is in the text; spans of the original text."""
    subwords = tokenizer.subwords
    normalize = theirs(subwords).normalizer.normalize_str if subwords.steps else str
    special = [subwords.pieces[each.id] for each in subwords.added]
    plain = [text for text in TEXTS if not any(piece in normalize(text) for piece in special)]
    assert len(plain) > 0.85 * len(TEXTS)
    expected = theirs(subwords, special=False).encode_batch(plain, add_special_tokens=False)
    found = tokenizer.encode_batch(plain)
    assert tokenizer.ids_batch(plain) == [[piece.id for piece in pieces] for pieces in found]
    for text, pieces, encoding in zip(plain, found, expected, strict=True):
        assert [piece.id for piece in pieces] == encoding.ids, text
        assert [piece.word for piece in pieces] == encoding.word_ids
        for piece, (begin, end) in zip(pieces, encoding.offsets, strict=True):
            inside = text[begin:end].strip("".join(WHITE_SPACE))
            assert text[piece.start : piece.end] == inside and begin <= piece.start <= piece.end <= end


def test_golden_texts_are_of_many_scripts():
    names = {unicodedata.name(char, "").partition(" ")[0] for text in TEXTS for char in text}
    assert len(TEXTS) == 10_000 and len({*TEXTS}) > 9_000 and len(names & {*map(str.upper, golden_text.SCRIPTS)}) >= 16
    assert golden_text.texts.__wrapped__() == TEXTS


def test_no_text_is_a_marker(tokenizer):
    special = {each.id for each in tokenizer.subwords.added} - {tokenizer.unk}
    found = tokenizer.ids_batch([*TEXTS, *golden_text.SPECIAL, "<s>a</s>", "x<mask>", "<pad> <pad>"])
    assert not special & {id for ids in found for id in ids}
    if tokenizer.subwords.kind == "unigram" and not tokenizer.subwords.byte_fallback:
        assert tokenizer.unk in tokenizer.ids_batch(["\U00012345"])[0]


@pytest.mark.parametrize("name", NAMES)
def test_written_and_read(name):
    subwords = golden_text.TOKENIZERS[name]()
    assert parse(subwords.to_json()) == subwords
    mask = subwords.pieces.index("<mask>")
    assert Added(mask, lstrip=True) in subwords.added
    assert theirs(subwords).encode("a <mask>", add_special_tokens=False).offsets[-1] == (1, 8)


def test_a_map_of_normalization():
    """The array of a map is read as that of SentencePiece: of a character, or of a whole cluster of few bytes."""
    pairs = {"ﬁ": "fi", "é": "é", "e": "E", "½": "1⁄2", "\x07": "", "ab": "?"}
    normalize = normalizers.Precompiled(golden_text.precompiled(pairs)).normalize_str
    assert [normalize(text) for text in ("ﬁn", "é½", "x\x07y", "ab", "e")] == ["fin", "é1⁄2", "xy", "ab", "E"]
    letters = [chr(code) for code in range(0x80, 0x3400) if chr(code).isalnum()]
    folded = normalizers.Precompiled(golden_text.nfkc()).normalize_str
    assert [folded(letter) for letter in letters] == [unicodedata.normalize("NFKC", letter) for letter in letters]


def test_every_step_is_that_of_tokenizers():
    made = {
        "nfc": normalizers.NFC(),
        "nfkc": normalizers.NFKC(),
        "lowercase": normalizers.Lowercase(),
        "strip": normalizers.Strip(),
        "strip_left": normalizers.Strip(right=False),
        "strip_right": normalizers.Strip(left=False),
        "one_space": normalizers.Replace(Regex(" {2,}"), " "),
        "one_metaspace": normalizers.Replace(Regex(" {2,}"), "▁"),
    }
    assert {*made, "precompiled"} == {*STEPS}
    base = golden_text.unigram()
    for step, normalizer in made.items():
        tokenizer = theirs(base)
        tokenizer.normalizer = normalizers.Sequence([normalizer])
        assert parse(tokenizer.to_str()).steps == (step,)


def test_a_damaged_map_is_refused():
    """Of 300 maps with other bytes those that are read do not end the process."""
    draw, good = np.random.default_rng(0), golden_text.precompiled({"ﬁ": "fi", "½": "1⁄2", "ab": "é"})
    base, read = replace(golden_text.unigram(), steps=("precompiled",)), 0
    for _ in range(300):
        damaged = bytearray(good[: len(good) - draw.integers(2)])
        for place in draw.integers(0, len(damaged), 3):
            damaged[place] = draw.integers(256)
        text = replace(base, pieces=base.pieces[:9], scores=base.scores[:9], charsmap=bytes(damaged)).to_json()
        try:
            parse(text)
        except ValueError as error:
            assert str(error).endswith("damaged")
            continue
        read += 1
        normalizers.Precompiled(bytes(damaged)).normalize_str("ﬁ½ab xyz é \x01\xff")
    assert 0 < read < 300


def changed(name, path, value):
    """The text of a golden tokenizer.json with another value."""
    content = json.loads(golden_text.TOKENIZERS[name]().to_json())
    part = content
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("unigram", ("model", "type"), "WordLevel", r"model\.type='WordLevel': Unigram or BPE is read"),
        ("unigram", ("model", "unk_id"), None, r"model\.unk_id=None: the id of one of 1,500 pieces is needed"),
        ("unigram", ("model", "vocab", 7), ["a"], r"model\.vocab\[7\]=\['a'\]: a piece and its score are needed"),
        ("unigram", ("model", "vocab", 7), ["<s>", 0.0], r"model\.vocab: '<s>' is there twice"),
        ("unigram", ("normalizer",), {"type": "NFD"}, r'normalizer=\{"type": "NFD"\}: not supported'),
        ("unigram", ("normalizer", "precompiled_charsmap"), "AAAA", r"\.precompiled_charsmap='AAAA': damaged"),
        ("unigram", ("model", "vocab", 7), ["a", 1e999], r"model\.vocab\[7\]=\['a', inf\]: a piece and its score"),
        ("unigram", ("normalizer", "precompiled_charsmap"), "?", r"normalizer\.precompiled_charsmap='\?': not base64"),
        ("unigram", ("pre_tokenizer", "pretokenizers", 1, "replacement"), "_", r"\[1\]\.replacement='_': "),
        ("unigram", ("pre_tokenizer",), {"type": "ByteLevel"}, "pre_tokenizer.type='ByteLevel': .Metaspace. is read"),
        ("unigram", ("added_tokens", 0, "id"), 7, r"added_tokens\[0\]\.id=7: of '<s>', which is no piece of this id"),
        ("bpe", ("model", "dropout"), 0.1, r"model\.dropout=0\.1: null is read"),
        ("bpe", ("model", "ignore_merges"), True, r"model\.ignore_merges=True: null or false is read"),
        ("bpe", ("model", "merges", 0), [1, "a"], r"model\.merges\[0\]=\[1, 'a'\]: two pieces are needed that make a"),
        ("unigram", ("pre_tokenizer", "pretokenizers", 1, "type"), "Sequence", r"\[1\]\.type='Sequence': .Metaspace"),
        ("bpe", ("model", "merges", 0), ["a"], r"model\.merges\[0\]=\['a'\]: two pieces are needed that make a third"),
        ("bpe", ("model", "vocab", "!"), {}, r"model\.vocab: the ids of its 1,500 pieces are not 0 to 1,499"),
        ("bpe", ("model", "vocab", "!"), 9999, r"model\.vocab: the ids of its 1,500 pieces are not 0 to 1,499"),
        ("bpe", ("pre_tokenizer", "use_regex"), False, r"pre_tokenizer\.use_regex=False: null or true is read"),
    ],
)  # fmt: skip
def test_what_is_refused_names_file_key_and_value(name, path, value, message):
    with pytest.raises(ValueError, match=rf"^a/tokenizer\.json: .*{message}"):
        parse(changed(name, path, value), "a/tokenizer.json")


def test_other_refusals():
    for text, message in (("{", "not JSON"), ("[]", r"the file=\[\]: an object"), ("{}", "model=None: an object")):
        with pytest.raises(ValueError, match=message):
            parse(text)
    missing = json.loads(golden_text.bpe().to_json())
    missing["model"]["vocab"]["?!"] = missing["model"]["vocab"].pop("Ġ")
    missing["model"]["merges"] = []
    with pytest.raises(ValueError, match=r"no piece 'Ġ'; a byte-level BPE has one for each byte"):
        parse(json.dumps(missing))
    first = "".join(golden_text.bpe().merges[0])
    with pytest.raises(ValueError, match="is an added token, which no merge may make"):
        parse(golden_text.bpe().to_json(), special=[first])
    with pytest.raises(ValueError, match=r"no piece \[PAD\], \[UNK\]"):
        SubwordTokenizer(golden_text.bpe(), SpecialTokens())


def test_other_forms_of_the_same():
    """Merges as strings, an add_prefix_space of Metaspace, added tokens after the last piece."""
    bpe, unigram = golden_text.bpe(), golden_text.unigram()
    assert parse(changed("bpe", ("model", "merges"), [" ".join(pair) for pair in bpe.merges])) == bpe
    old = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    assert parse(changed("unigram", ("pre_tokenizer", "pretokenizers", 1), old)) == unigram
    assert parse(changed("unigram", ("pre_tokenizer",), old)) == replace(unigram, whitespace=False)
    more = parse(changed("bpe", ("added_tokens",), [{"id": 1500, "content": "<new>"}]), special=golden_text.SPECIAL)
    assert more.pieces[1500] == "<new>" and [each.id for each in more.added] == [0, 1, 2, 3, 4, 1500]


# ------------------------------------------------------------------------------------------------------------ features


def features(name, **options):
    return WordPieceFeatures(SubwordTokenizer(golden_text.TOKENIZERS[name]()), **options)


@pytest.mark.parametrize("name", NAMES)
def test_single_texts_and_pairs(name):
    made = features(name, max_length=24)
    tokenizer = made.wordpiece
    texts, pairs = ["The quick brown fox", "", "a" * 99], ["Søren Kierkegaard", "x", "b  c"]
    alone, two = made(texts), made(texts, pairs)
    assert alone["token_ids"].shape[1] == two["token_ids"].shape[1] == 24
    assert alone["token_ids"][1].tolist() == [tokenizer.cls, tokenizer.sep, *[tokenizer.pad] * 22]
    ids = tokenizer.ids_batch([texts[0], pairs[0]])
    expected = [tokenizer.cls, *ids[0], tokenizer.sep, tokenizer.sep, *ids[1], tokenizer.sep]
    if len(expected) <= 24:
        assert two["token_ids"][0, : len(expected)].tolist() == expected
    assert not two["segment_ids"].any()  # as of RoBERTa's tokenizers, which mark a pair by two </s>
    row = made.encode(texts, pairs, offsets=True)[0]
    assert row.tokens == two["token_ids"][0, : len(row)].tolist() and len(row.offsets) == len(row)
    assert texts[0][row.offsets[2][0] : row.offsets[2][1]] == texts[0][slice(*row.offsets[2])]


@pytest.mark.parametrize("name", NAMES)
def test_words(name):
    """Words that come split, each as within a text; of raw text those between white space, or of GPT-2's pattern."""
    made = features(name, starts=True)
    tokenizer = made.wordpiece
    split, raw = made.encode([["The", "quick", "", "fox"], "The  quick\nfox "])
    begun = ["▁The"[:1], "▁"] if tokenizer.subwords.kind == "unigram" else ["Ġ", "Ġ"]
    for start, begin in zip((split.starts[0], split.starts[1]), begun, strict=True):
        assert tokenizer.vocab[split.tokens[start]].startswith(begin)
    assert split.starts[2] is None and split.starts[3] is not None
    text = "The  quick\nfox "
    assert [text[begin:end] for begin, end in raw.words] == ["The", "quick", "fox"]
    assert len(raw.starts) == 3
    assert made.collate([split, raw])["starts"].shape == (2, 3)


@pytest.mark.parametrize("name", NAMES)
def test_windows_marks_and_spans(name):
    made = features(name, max_length=16)
    context = "The quick brown foxes were jumping over lazy dogs, and Søren wrote."
    (rows,) = made.windows(["Who wrote?"], [context], stride=4)
    assert len(rows) > 2 and all(len(row) <= 16 for row in rows)
    last = rows[-1]
    begin, end = last.offsets[-2]
    assert context[begin:end] == "." or context[begin:end].endswith(".")
    spans, words = made.token_spans([context])[0]
    assert {*words} >= {(0, 3), (4, 9)} or name != "unigram"
    quick = (context.index("quick"), context.index("quick") + 5)
    (marked,) = made.encode([context], marks=[[quick]])
    begin, end = marked.marks[0]
    pieces = "".join(context[slice(*span)] for span in marked.offsets[begin:end])
    assert pieces == "quick" and spans[begin - 1][0] == 4
    windows = made.text_windows([context, ["The", "quick"]], 4)
    assert len(windows[0]) > 2 and windows[1][0].tokens[1:-1] == [
        id for ids in made.wordpiece.of_words.ids_batch(["The", "quick"]) for id in ids
    ]


@pytest.mark.parametrize("scheme", ["always", "first", "never", "bpe"])
def test_masks_stand_where_tokenizers_puts_them(scheme):
    subwords = golden_text.bpe() if scheme == "bpe" else replace(golden_text.unigram(), prefix=scheme, whitespace=False)
    tokenizer = SubwordTokenizer(subwords)
    for text in ("The quick <mask> fox<mask>.", "<mask> fox", "a <mask>", "a<mask> <mask> b"):
        parts = tokenizer.ids_around_masks(text.split("<mask>"))
        ids = [id for part in parts for id in [tokenizer.mask, *part]][1:]
        assert ids == theirs(subwords).encode(text, add_special_tokens=False).ids, text


def test_odd_texts():
    tokenizer = SubwordTokenizer(golden_text.bpe())
    assert tokenizer.encode("\ud800") == tokenizer.encode("\ufffd")
    with pytest.raises(TypeError, match="text 1 is 7: give a string"):
        tokenizer.encode_batch(["a", 7])
    assert SubwordTokenizer(golden_text.unigram()).encode_batch(["", " \n"]) == [[], []]
    readable = dict(zip(tokenizer.vocab, tokenizer.readable, strict=True))
    forms = {"Ġthe": "the", "ing": "##ing", "Ã¸": "##ø", ",": ",", "Ġ": " ", "<mask>": "<mask>"}
    assert {piece: readable[piece] for piece in forms} == forms
    unigram = SubwordTokenizer(golden_text.unigram())
    assert [unigram.readable[unigram.vocab.index(piece)] for piece in ("<mask>", "▁", "s")] == ["<mask>", " ", "##s"]


def test_words_that_fall_to_pieces_are_counted():
    """As those of WordPiece, of which a warning of texts in another language is made."""
    for name in ("unigram", "bpe"):
        tokenizer = SubwordTokenizer(golden_text.TOKENIZERS[name]())
        count = split_words(tuple(tokenizer.readable))
        assert count(tokenizer.ids_batch(["the model with files"])[0]) == (0, 3)
        assert count(tokenizer.ids_batch(["xqzw vkjqx"])[0]) == (2, 2)
        assert not rule_of_pieces(tokenizer.readable, tokenizer.unk, 2).foreign(tokenizer.cls)


# -------------------------------------------------------------------------------------------------------------- bundle


@pytest.mark.parametrize("name", ["unigram", "bpe"])
def test_in_a_bundle(name, tmp_path):
    """tokenizer.json beside bundle.json with its hash, in a folder and in the archive of a .tflite file."""
    from keras_ctxrep.text import bundle as bundles

    made = subword_bundle(name)
    bundles.save(made, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle.json", "tokenizer.json"]
    assert "tokenizer" not in json.loads((tmp_path / "bundle.json").read_text())
    again = bundles.load(tmp_path)
    assert again == replace(made, files=again.files) and [*again.files] == ["tokenizer.json"]
    ids = again.features(["The quick fox"])["token_ids"]
    assert np.array_equal(ids, made.features(["The quick fox"])["token_ids"])
    bundles.write_several(tmp_path / "two.tflite", b"model", {"a": made, "b": made})
    assert bundles.load(tmp_path / "two.tflite" / "b").tokenizer == made.tokenizer
    bundles.write_tflite(tmp_path / "m.tflite", b"model", made)
    (tmp_path / "m.tflite").write_bytes((tmp_path / "m.tflite").read_bytes().replace(b'"type":"', b'"tYpe":"', 1))
    with pytest.raises(ValueError, match="tokenizer"):
        bundles.load(tmp_path / "m.tflite")
    (tmp_path / "tokenizer.json").write_text(made.tokenizer.replace("-", "- ", 1) + " ")
    with pytest.raises(ValueError, match="tokenizer"):
        bundles.load(tmp_path)


def subword_bundle(name, task="embed", **fields):
    subwords: Subwords = golden_text.TOKENIZERS[name]()
    return tiny.bundle(task, "roberta", vocab=subwords.pieces, tokenizer=subwords.to_json(), **fields)


def test_a_tagger_reads_words():
    assert subword_bundle("bpe", "tag").features.encode([["a", "b"]])[0].starts == [1, 2]
    assert Reads(words=True) == subword_bundle("bpe", "tag").reads


def test_a_text_of_one_token_has_words():
    """Of a language model whose rows have no marks; of an empty text a mark is read."""
    made = golden_text.bundles()["gpt2_embed"]
    assert [len(row) for row in made.features.encode(["", "a"])] == [1, 1] and made.empty_length == 0


@pytest.mark.parametrize("added", ["<end>", "new line", "a€", "é"])
def test_the_bytes_of_added_tokens(added):
    """Text of tokens that a byte-level BPE has beside its pieces, as the decoder of `tokenizers` gives it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Subwords("bpe", (*letters, "<s>", added), added=(Added(256), Added(257)))
    tokenizer = SubwordTokenizer(bpe, SpecialTokens(*["<s>"] * 5))
    ids = [64, 257, 65]
    decoded = b"".join(tokenizer.bytes_of(number) for number in ids).decode(errors="replace")
    assert decoded == decoders.ByteLevel().decode([tokenizer.vocab[number] for number in ids])
