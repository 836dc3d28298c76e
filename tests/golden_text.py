"""Texts of many scripts, and subword tokenizers that are trained on this repository's own text.

    python -m tests.golden_text FOLDER [TEXTS]

makes FOLDER/pieces/NAME/ for each of `variants()`, with tokenizer.json and pieces.jsonl, {"text", "place", "pieces"}:
[[id, begin, end, word], ...] of a "text", of a "word" of a text that comes split, and of a part of a text behind a mask
("later"), offsets in code points; and FOLDER/models/NAME/ for each of `bundles()`, as golden.py. Everything is ASCII
with JSON's escapes.
"""

import json
import random
import struct
import sys
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from keras_ctxrep import tasks
from keras_ctxrep.text.bundle import Bundle
from keras_ctxrep.text.subwords import ROBERTA_TOKENS, Added, Subwords, SubwordTokenizer, parse
from tests import golden

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXTS, FEW = 10_000, 60
SCRIPTS = {  # ranges of letters
    "latin": (0x41, 0x250), "greek": (0x370, 0x400), "cyrillic": (0x400, 0x530), "armenian": (0x530, 0x590),
    "hebrew": (0x590, 0x600), "arabic": (0x600, 0x700), "devanagari": (0x900, 0x980), "bengali": (0x980, 0xA00),
    "tamil": (0xB80, 0xC00), "telugu": (0xC00, 0xC80), "thai": (0xE00, 0xE80), "lao": (0xE80, 0xF00),
    "tibetan": (0xF00, 0x1000), "myanmar": (0x1000, 0x10A0), "georgian": (0x10A0, 0x1100), "jamo": (0x1100, 0x1200),
    "ethiopic": (0x1200, 0x1380), "khmer": (0x1780, 0x1800), "kana": (0x3040, 0x3100), "han": (0x4E00, 0x9FFF),
    "hangul": (0xAC00, 0xD7A4), "forms": (0xFB00, 0xFFF0), "emoji": (0x1F300, 0x1FA00), "any": (0x20, 0x110000),
}  # fmt: skip


@cache
def texts(count: int = TEXTS) -> tuple[str, ...]:
    """Oddities, sentences, mixtures of both, and random strings of each script; the same ones each time.

    The first quarter of the `count` are those of `golden.strings()`.
    """
    draw = random.Random(7)
    made = golden.strings()[: count // 4]
    words = [word for text in (*golden.ODDITIES, *golden.SENTENCES) for word in (text.split() or [text])]
    odd = (*SPECIAL, "▁", " ", "  ", "\n", "\r\n", "\t", "\u3000", "'s", "'ll", "12", "Ġ", "<0x41>", "\u0301", "!?")
    while len(made) < count:
        first, last = SCRIPTS[[*SCRIPTS][len(made) % len(SCRIPTS)]]
        parts = []
        for _ in range(draw.choice((1, 2, 3, 5, 8))):
            kind = draw.randrange(6)
            letters = [chr(draw.randrange(first, last)) for _ in range(draw.choice((1, 2, 3, 6, 10)))]
            parts.append(draw.choice(words) if kind == 0 else draw.choice(odd) if kind == 1 else "".join(letters))
        made.append(draw.choice((" ", " ", "", "  ")).join(parts))
    return tuple(text.encode("utf-8", "replace").decode() for text in made)


@cache
def corpus() -> tuple[str, ...]:
    """The sentences of `golden`, and lines of this repository's documentation."""
    pages = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    lines = [line for page in pages for line in page.read_text("utf-8").splitlines() if line.strip()]
    return (*golden.SENTENCES * 3, *lines[:1500])


@cache
def nfkc() -> bytes:
    """A precompiled map like that of SentencePiece's nmt_nfkc: of letters and what composes to them, and of spaces."""
    pairs = {chr(code): " " for code in (9, 10, 13, 0x2028, 0x2029, 0xFEFF, 0xFFFD, 0x200B, 0x200F, 0x00A0)}
    pairs |= {chr(code): "" for code in (*range(1, 9), 11, *range(14, 32), 127, 0x8F, 0x9F)}
    for code in (*range(0x80, 0xD800), *range(0xF900, 0x10000), *range(0x1D400, 0x1D800), *range(0x2F800, 0x2FA20)):
        if 0xAC00 <= code < 0xD7A4:  # syllables of letters, of which there are 11,172
            continue
        letter, folded = chr(code), unicodedata.normalize("NFKC", chr(code))
        if folded != letter:
            pairs.setdefault(letter, folded)
        apart = unicodedata.normalize("NFD", letter)
        if apart != letter and unicodedata.normalize("NFC", apart) == letter:
            pairs.setdefault(apart, folded)
    return precompiled(pairs)


def precompiled(pairs: Mapping[str, str]) -> bytes:
    """SentencePiece's precompiled map of strings to what stands for them.

    The size of a Darts-clone double array in bytes, the array, and the targets, each with a NUL after it; the array
    gives the place of a string's target. https://github.com/google/sentencepiece, src/normalizer.cc.
    """
    places: dict[str, int] = {}
    targets = b""
    for target in sorted({*pairs.values()}):
        places[target] = len(targets)
        targets += target.encode() + b"\0"
    root: dict = {}
    for key, target in pairs.items():
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = places[target]
    units: dict[int, int] = {0: 0}
    bases, free = {0}, 1
    waiting = [(0, root)]
    while waiting:
        index, node = waiting.pop()
        free = max(free, len(units) - 256)  # before it are few
        while free in units:
            free += 1
        base = next(
            base
            for base in (slot ^ min(node) for slot in range(free, 1 << 21))
            if base not in bases and not any(base ^ byte in units for byte in node)
        )
        bases.add(base)
        assert base ^ index < 1 << 21
        units[index] |= (base ^ index) << 10 | (0 in node) << 8
        for byte, below in node.items():
            units[base ^ byte] = 1 << 31 | below if byte == 0 else byte
            if byte:
                waiting.append((base ^ byte, below))
    size = (max(units) // 256 + 1) * 256
    array = struct.pack(f"<{size}I", *(units.get(index, 0) for index in range(size)))
    return struct.pack("<I", len(array)) + array + targets


@cache
def unigram() -> Subwords:
    """A unigram model as XLM-R's, with a precompiled map; its text is split at white space first."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    splitters = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splitters)
    options = {"vocab_size": 1500, "special_tokens": SPECIAL, "unk_token": "<unk>", "show_progress": False}
    tokenizer.train_from_iterator(corpus(), trainers.UnigramTrainer(**options))
    subwords = parse(tokenizer.to_str())
    return replace(subwords, steps=("precompiled",), charsmap=nfkc(), added=with_mask(subwords))


@cache
def unigram_of_bytes() -> Subwords:
    """The same pieces where bytes stand for what has none, and spaces at the ends are left out, as in SentencePiece."""
    known = unigram()
    pieces = (*known.pieces, *(f"<0x{byte:02X}>" for byte in range(256)))
    scores = (*known.scores, *[0.0] * 256)
    options = {"byte_fallback": True, "whitespace": False, "steps": ("precompiled", "strip", "one_space")}
    return replace(known, pieces=pieces, scores=scores, **options)


@cache
def bpe() -> Subwords:
    """A byte-level BPE as RoBERTa's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": 1500, "special_tokens": SPECIAL, "initial_alphabet": letters, "show_progress": False}
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(**options))
    subwords = parse(tokenizer.to_str())
    return replace(subwords, added=with_mask(subwords))


def letters() -> Subwords:
    """A unigram model of few letters, not trained, with equal sums, and a piece worse than an unknown letter."""
    pieces = (*SPECIAL, "▁", "a", "b", "ab", "ba", "aa", "aab", "x", "xy")
    scores = (*[0.0] * len(SPECIAL), -1.0, -2.0, -2.0, -4.0, -4.0, -4.0, -6.0, 10.5, -9.0)
    return Subwords("unigram", pieces, scores, unknown=SPECIAL.index("<unk>"), added=tuple(map(Added, range(5))))


def with_mask(subwords: Subwords) -> tuple:
    """The added tokens, of which <mask> takes the space before it."""
    return tuple(each._replace(lstrip=subwords.pieces[each.id] == "<mask>") for each in subwords.added)


TOKENIZERS = {"unigram": unigram, "unigram_of_bytes": unigram_of_bytes, "bpe": bpe}


# what is looked up as a cluster or alone, composes, is a space or a mark, or is split by a rule
LETTERS = (
    *"aefnsl1 '\r\n\x00\x85\xa9\u00a0\u00bd\u00df\u0130\u0300\u0301\u0307\u0323\u0344\u0345\u03a3\u0600\u0903",
    *"\u0915\u0930\u093c\u094d\u0958\u0d15\u0d3b\u0d4d\u0d4e\u0e33\u1100\u115f\u1161\u11a8\u1b44\u1e69\u200c",
    *"\u200d\u2028\u212b\u3000\u4e2d\uac00\ud7b0\ufb01\ufeff\U00016d63\U0001f1e9\U0001f1ea\U0001f468\U0001f600",
    "\U000e0041",
)
CLUSTERS = (  # longer than the accent behind their last letter, which would be lost
    *("\u0915\u094d\u0915\u0300", "\u0915\u093c\u094d\u200d\u0915\u0300", "\u0915\u094d\u200c\u0915\u0300"),
    *("\xa9\u200d\xa9\u0300", "\xa9\u0300\u200d\xa9\u0300", "\xa9\u200d\u0300\xa9\u0300"),
    *("\u1100\u1161\u0300", "\uac00\u1161\u0300", "\uac01\u1161\u0300", "\u1161\u1161\u0300"),
)


def clusters(count: int) -> list[str]:
    """Random mixtures of `LETTERS`, and words of thousands of letters."""
    draw = random.Random(3)
    mixtures = ["".join(draw.choices(LETTERS, k=draw.choice((1, 2, 3, 5, 8, 14)))) for _ in range(count)]
    mixtures += ["".join(draw.choices("abxy ", k=draw.choice((3, 8, 14)))) for _ in range(40)]
    return [*mixtures, *CLUSTERS, "a" * 5000, "é" * 700 + " x", "'" * 300, "ab " * 2000]


def variants() -> dict[str, Subwords]:
    """The tokenizers, and others with each step of normalization and rule of spaces, over an odd map."""
    odd = {"a": "", "e\u0301": "XYZ", "f": "ffi", "n": " n ", "\u0915": "ka", "\u1161": "v", "\xa9": "(c)"}
    odd |= {"\u0301": "", "\u0600": "", "\u0e33": "\u0e4d\u0e32", "\uac00": "q", "\U0001f600": ":)"}
    odd |= {"\r\n": " ", "\u3000": "  "}
    mapped = replace(unigram(), charsmap=precompiled(odd))
    plain = replace(unigram(), charsmap=b"")
    known = tuple(each for each in plain.added if each.id != plain.unknown)
    steps = {
        "odd": ("precompiled", "nfkc", "lowercase", "strip"),
        "marked": ("nfkc", "strip_left", "one_metaspace"),
        "first": ("lowercase", "strip_right", "one_space"),
    }
    return {name: make() for name, make in TOKENIZERS.items()} | {
        "odd": replace(mapped, prefix="never", whitespace=False),
        "odd_steps": replace(unigram_of_bytes(), charsmap=mapped.charsmap, steps=steps["odd"], prefix="first"),
        "marked": replace(plain, steps=steps["marked"], prefix="first", whitespace=False),
        "first": replace(plain, steps=steps["first"], prefix="first", added=known),
        "letters": letters(),
        "nfc": replace(bpe(), steps=("nfc",), add_prefix_space=True),
    }


def bundles() -> dict[str, Bundle]:
    """Models over the tokenizers, for each kind of input."""

    def bundle(family: str, subwords: Subwords, task: str, labels=(), pair: bool = False, **settings) -> Bundle:
        fields = tasks.bundle_fields(task, pair, **settings)
        fields |= {"vocab": subwords.pieces, "tokenizer": subwords.to_json(), "special_tokens": ROBERTA_TOKENS}
        return Bundle(family, config={"heads": 1, "units": "pieces"}, max_length=24, labels=labels, **fields)

    return {
        "roberta_tag": bundle("roberta", bpe(), "tag", golden.SPANS),
        "roberta_answer": bundle("roberta", bpe(), "answer", stride=5, max_answer=4),
        "xlm_r_tag": bundle("roberta", unigram(), "tag", golden.PARTS),
        "xlm_r_pairs": bundle("roberta", unigram(), "multilabel", ("x", "y"), pair=True),
        "bert_windows": bundle("bert", unigram_of_bytes(), "classify", ("no", "yes"), windows="max", stride=12),
        "gpt2_embed": bundle("lm", bpe(), "embed"),
        "gpt2_windows": bundle("lm", bpe(), "regress", windows="mean", stride=12),
        "bert_embed": bundle("bert", variants()["marked"], "embed"),
    }


def write(folder: str | Path, count: int = 120, names: Collection[str] = ()) -> None:
    """Writes the files of some texts by some tokenizers (default: all); the same ones each time."""
    for name, subwords in variants().items():
        if names and name not in names:
            continue
        own = Path(folder) / "pieces" / name
        own.mkdir(parents=True, exist_ok=True)
        (own / "tokenizer.json").write_text(json.dumps(json.loads(subwords.to_json())))
        tokenizer = SubwordTokenizer(subwords, ROBERTA_TOKENS)
        mixtures = clusters(min(count, 2000))
        places = {"text": tokenizer, "word": tokenizer.of_words, "later": tokenizer.after_others}
        rows = [
            {"text": text, "place": place, "pieces": pieces}
            for place, kind in places.items()
            for each in ([*texts()[:: TEXTS // count], *mixtures] if place == "text" else mixtures,)
            for text, pieces in zip(each, kind.encode_batch(each), strict=True)
        ]
        golden.write_lines(own / "pieces.jsonl", rows)
    for name, bundle in bundles().items():
        outputs = partial(golden.outputs_of, bundle)
        golden.write_model(Path(folder) / "models" / name, bundle, golden.strings()[:FEW], outputs)


if __name__ == "__main__":
    write(sys.argv[1], *map(int, sys.argv[2:]))
