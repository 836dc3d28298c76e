"""Makes CharacterData.java, of the runtime in Java, from tflite/web/unicode.json.

    python tests/reference/character_data.py

The tables of unicode.json are described in unicode_tables.py beside this file. Of the canonical decompositions only the
characters that have one are taken: `java.text.Normalizer` has the same, and on some releases of Android those of newer
characters too.
"""

import json
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tflite" / "web" / "unicode.json"
FILE = ROOT / "tflite/android/src/main/java/org/keras_ctxrep/CharacterData.java"
HANGUL = range(0xAC00, 0xD7A4)  # which the file leaves out, since they follow a rule
SURROGATES = range(0xD800, 0xE000)
HEADER = """package org.keras_ctxrep;

/**
 * Characters by their class, as the Python package {@code tokenizers} has them; written by character_data.py.
 *
 * <p>Each table is a list of ranges: the number of code points between the range before and this one, and those in it,
 * then the values of the table if it has any, all in base 36.
 */
final class CharacterData {
"""
COMMENTS = {
    "removed": "Characters that are removed: control, format and private-use characters, U+FFFD and surrogates.",
    "space": "White space.",
    "cjk": "Characters that are words of their own, unless that is switched off.",
    "punctuation": "Characters that are words of their own.",
    "mark": "Accents, which are removed if they are stripped.",
    "decomposed": "Characters with a canonical decomposition.",
    "letter": "Letters.",
    "number": "Numbers.",
    "compatible": "Characters with a compatible decomposition that is no canonical one.",
    "graphemes": "Classes of characters in clusters, the constants of Characters.java.",
    "order": "Characters that canonical ordering may move, and the combining class of each range.",
    "lower": "Characters in upper case, not a range but every STEP-th of them, the step, and how far lower case is.",
}


def tables() -> dict[str, list[int]]:
    """The tables by name, in the form of the Java file."""
    tables = json.loads(SOURCE.read_text(encoding="ascii"))
    removed = {*codes(tables["removed"]), *SURROGATES}
    decomposed = {*HANGUL}
    for size, numbers in tables["decomposed"].items():
        code = 0
        for gap in numbers[:: 1 + int(size)]:
            code += gap
            decomposed.add(code)
    lower = {}
    for code, count, step, difference in zip(*[iter(tables["lower"])] * 4, strict=True):
        lower |= dict.fromkeys(range(code, code + count * step, step), difference)
    if tables["lower_more"] != {"304": [0x69, 0x307]}:
        raise ValueError("another character than U+0130 has a lower case of several: Characters.java knows that alone")
    return tables | {"removed": ranges(removed), "decomposed": ranges(decomposed), "lower": runs(lower)}


def codes(numbers: Iterable[int]) -> Iterable[int]:
    """The code points of a table without values.

    >>> [*codes([5, 2, 1, 1])]
    [5, 6, 8]
    """
    end, numbers = 0, iter(numbers)
    for gap, size in zip(numbers, numbers, strict=True):
        yield from range(end + gap, end + gap + size)
        end += gap + size


def ranges(codes: Iterable[int]) -> list[int]:
    """The table of which these are the code points."""
    numbers, end = [], 0
    for code in sorted(codes):
        if numbers and code == end:
            numbers[-1] += 1
        else:
            numbers += [code - end, 1]
        end = code + 1
    return numbers


def runs(differences: dict[int, int]) -> list[int]:
    """[gap, count, step, difference, ...] of code points, where no run begins within another.

    >>> runs({5: 1, 7: 1, 9: 1, 10: 8, 11: 8})
    [5, 3, 2, 1, 2, 2, 1, 8]
    """
    numbers, end, last, left = [], 0, -1, dict(sorted(differences.items()))
    for code in [*left]:
        if code <= last:
            continue
        step = 1 if code + 1 in left else 2
        for last in range(code, 0x110000, step):
            if left.get(last + step) != left[code]:
                break
        count = (last - code) // step + 1
        numbers += [code - end, count, step, left[code]]
        end = code + count
    return numbers


def base36(number: int) -> str:
    """A number as Java's `Integer.parseInt(text, 36)` reads it.

    >>> base36(35), base36(-36)
    ('z', '-10')
    """
    if number < 0:
        return "-" + base36(-number)
    last = "0123456789abcdefghijklmnopqrstuvwxyz"[number % 36]
    return base36(number // 36) + last if number >= 36 else last


def java() -> str:
    """The contents of the file."""
    data, fields = tables(), []
    for name, comment in COMMENTS.items():
        lines = [""]
        for number in map(base36, data[name]):
            if len(lines[-1]) + len(number) > 100:
                lines.append("")
            lines[-1] += f"{number} "
        text = "\n            + ".join(f'"{line}"' for line in lines)
        fields.append(f"    /** {comment} */\n    static final String {name.upper()} =\n            {text};\n")
    return HEADER + "\n".join(fields) + "\n    private CharacterData() {}\n}\n"


if __name__ == "__main__":
    FILE.write_text(java(), encoding="ascii")
