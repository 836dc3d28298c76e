"""Makes tflite/web/unicode.json: what `tokenizers` does with each code point, for runtimes in other languages.

    python -m tests.reference.unicode_tables [FILE]

`tokenizers` has tables of several Unicode versions, which no engine's regular expressions, lower-casing and normal
forms equal; so the file has all of them, and text preparation depends on no version of a browser or of Java:

* "removed", "space", "punctuation", "cjk", "mark": the code points of a class as [gap, size, gap, size, ...]: a gap of
  code points outside the class after the range before, and the size of the next range. Marks are removed with accents.
* "lower": what is lower-cased to one code point, as runs [code, count, step, difference]: `count` code points from
  `code` on, `step` apart, each plus `difference`; "lower_more": {code: [codes]} of the others.
* "decomposed": the canonical decompositions but those of Hangul syllables, by their lengths: of length 2 [gap, first,
  second, gap, ...], where the gap is the distance to the code point before, at first to 0.
* "order": canonical combining classes other than 0 as [gap, size, class, ...].
* "letter", "number": general categories L and N, of the rule by which GPT-2 splits text. "compatible": what normal form
  KD changes and D does not.
* "graphemes": what `CLASSES` says of clusters of characters, as [gap, size, number in CLASSES from 1 on, ...]. Hangul
  syllables and regional indicators, which follow a rule, are left out.
"""

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from tests.golden_text import precompiled

FILE = Path(__file__).parents[2] / "tflite" / "web" / "unicode.json"
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)
# values of Grapheme_Cluster_Break and Indic_Conjunct_Break, Unicode's annex 29
CLASSES = ("control", "extend", "linker", "spacing", "prepend", "consonant", "pictograph", "l", "v", "t")


def tables() -> dict:
    """The contents of the file."""
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    clean, cjk, lower, accents = (
        normalizers.BertNormalizer(**off | {name: True}).normalize_str
        for name in ("clean_text", "handle_chinese_chars", "lowercase", "strip_accents")
    )
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    cleaned = {code: clean(chr(code)) for code in CODES}
    lowered = {code: lower(chr(code)) for code in CODES}
    decomposed = {code: normalizers.NFD().normalize_str(chr(code)) for code in CODES if code not in HANGUL}
    return {
        "tokenizers": tokenizers.__version__,
        "removed": _ranges(code for code in CODES if not cleaned[code]),
        "space": _ranges(code for code in CODES if cleaned[code] == " "),
        "punctuation": _ranges(code for code in CODES if len(split(f"a{chr(code)}b")) == 3),
        "cjk": _ranges(code for code in CODES if cjk(chr(code)) != chr(code)),
        "mark": _ranges(code for code in CODES if not accents(chr(code))),
        "lower": _runs({code: ord(to) for code, to in lowered.items() if len(to) == 1 and to != chr(code)}),
        "lower_more": {str(code): [*map(ord, to)] for code, to in lowered.items() if len(to) > 1},
        "decomposed": _by_length({code: to for code, to in decomposed.items() if to != chr(code)}),
        "order": _classes(),
        "letter": _ranges(code for code in CODES if len(words(f"a{chr(code)}")) == 1),
        "number": _ranges(code for code in CODES if len(words(f"1{chr(code)}")) == 1),
        "compatible": _ranges(
            code
            for code in CODES
            if code not in HANGUL and decomposed[code] == chr(code) != normalizers.NFKD().normalize_str(chr(code))
        ),
        "graphemes": _valued(graphemes()),
    }


def _ranges(codes: Iterable[int]) -> list[int]:
    result, end = [], 0
    for code in codes:
        if result and code == end:
            result[-1] += 1
        else:
            result += [code - end, 1]
        end = code + 1
    return result


def _runs(mapping: dict[int, int]) -> list[int]:
    """Runs of one difference and step, as long as they can be."""
    result, left = [], dict(mapping)
    while left:
        code = min(left)
        run = max(([*_run(left, code, step)] for step in (1, 2)), key=len)
        result += [code, len(run), run[1] - code if len(run) > 1 else 1, left[code] - code]
        for other in run:
            del left[other]
    return result


def _run(mapping: dict[int, int], code: int, step: int) -> Iterable[int]:
    difference = mapping[code] - code
    while mapping.get(code, code) - code == difference:
        yield code
        code += step


def _by_length(mapping: dict[int, str]) -> dict[str, list[int]]:
    result: dict[str, list[int]] = {}
    for size in sorted({len(to) for to in mapping.values()}):
        own, before = result.setdefault(str(size), []), 0
        for code in (code for code, to in mapping.items() if len(to) == size):
            own += [code - before, *map(ord, mapping[code])]
            before = code
    return result


def _valued(values: Mapping[int, int]) -> list[int]:
    result, end = [], 0
    for code, value in sorted(values.items()):
        if result and code == end and value == result[-1]:
            result[-2] += 1
        else:
            result += [code - end, 1, value]
        end = code + 1
    return result


def graphemes() -> dict[int, int]:
    """The class of each code point that has one, from what a `Precompiled` normalizer looks up as one cluster.

    It looks up clusters of less than 6 bytes as a whole, and of these the shortest beginning that its map has: an
    accent behind one of the letters of the map is lost if both are a cluster, and stays in a longer cluster.
    """
    letters = dict.fromkeys("a\xa9\u0915\u0300\u1100\u1161\u11a8", "p")
    normalize = normalizers.Precompiled(precompiled(letters)).normalize_str

    def ends(before: str, after: str, end: str) -> set[int]:
        """The code points of which the text with `before` and `after` them ends so."""
        result = set()
        for begin in range(0, len(CODES), 4096):
            block = [code for code in CODES[begin : begin + 4096] if code != ord("\n")]
            texts = normalize("\n".join(f"{before}{chr(code)}{after}" for code in block)).split("\n")
            result.update(code for code, text in zip(block, texts, strict=True) if text.endswith(end))
        return result

    def joined(before: str, after: str) -> set[int]:
        return ends(before, f"{after}\u0301", "\u0301")

    prepend, attached = joined("", "a"), ends("a", "", "p") - ends("a", "", "pp")
    extend = attached & joined("\xa9", "\u200d\xa9")
    leading, voweled, trailing = (joined("", jamo) - prepend - {*HANGUL} for jamo in "\u1100\u1161\u11a8")
    members = {
        "control": {*CODES} - joined("", "\u0300") - {ord("a")},
        "extend": extend,
        "linker": extend & joined("\u0915", "\u0915"),
        "spacing": attached - extend,
        "prepend": prepend,
        "consonant": joined("", "\u094d\u0915") - prepend,
        "pictograph": joined("", "\u200d\xa9") - prepend - attached,
        "l": leading,
        "v": voweled - leading,
        "t": trailing - voweled,
    }
    inside = joined("\u0915", "\u094d\u0915")
    if extend - inside != {0x200C}:
        raise ValueError("other characters than U+200C are of class extend and end a conjunct")
    return {code: number for number, name in enumerate(CLASSES, 1) for code in members[name]}


def _classes() -> list[int]:
    """Python's classes of the code points that `tokenizers` orders; classes never change once they are assigned."""
    nfd = normalizers.NFD().normalize_str
    classes = {}
    for letter in map(chr, CODES):
        # U+0334 has class 1 and U+0345 class 240, the lowest and the highest
        ordered = nfd(f"{letter}\u0334")[0] == "\u0334" or nfd(f"\u0345{letter}")[0] == letter
        if nfd(letter) != letter or not ordered:
            continue
        if not (own := unicodedata.combining(letter)):
            raise ValueError(f"U+{ord(letter):04X}: Python {unicodedata.unidata_version} has no class of it")
        classes[ord(letter)] = own
    return _valued(classes)


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    file.write_text(json.dumps(tables(), separators=(",", ":")) + "\n", encoding="ascii")
