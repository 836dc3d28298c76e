"""Texts of many scripts, and subword tokenizers that are trained on this repository's own text.

    python tests/golden_text.py FOLDER

makes FOLDER/NAME/tokenizer.json for each of `TOKENIZERS`, and FOLDER/texts.json, a list of the texts of `texts()`, and
FOLDER/NAME/pieces.jsonl, for each of them a line [[id, begin, end, word], ...] as `SubwordTokenizer.encode` gives it,
offsets in code points. Everything is ASCII with JSON's escapes.
"""

import json
import random
import struct
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from keras_ctxrep.text.subwords import ROBERTA_TOKENS, Subwords, SubwordTokenizer, parse
from tests import golden

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXTS = 10_000
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


def with_mask(subwords: Subwords) -> tuple:
    """The added tokens, of which <mask> takes the space before it."""
    return tuple(each._replace(lstrip=subwords.pieces[each.id] == "<mask>") for each in subwords.added)


TOKENIZERS = {"unigram": unigram, "unigram_of_bytes": unigram_of_bytes, "bpe": bpe}


def main(folder: Path, count: int = TEXTS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.json").write_text(json.dumps(texts(count)))
    for name, make in TOKENIZERS.items():
        (folder / name).mkdir(exist_ok=True)
        subwords = make()
        (folder / name / "tokenizer.json").write_text(json.dumps(json.loads(subwords.to_json())))
        pieces: Sequence[Sequence] = SubwordTokenizer(subwords, ROBERTA_TOKENS).encode_batch(texts(count))
        lines = [json.dumps(row) + "\n" for row in pieces]
        (folder / name / "pieces.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
