"""Texts of thousands of characters around the bounds by which long ones are cut."""

import random

# of words, of what is removed, of what stands alone, and of accents that go, stay, or keep others apart
CHARACTERS = [
    "a",
    "é",
    "中",
    "😀",
    "-",
    " ",
    "\t",
    "\n",
    "\0",
    "\u200b",
    "\ufffd",
    "\xa0",
    "İ",
    "한",
    "\U00040000",
    "\ue000",
]
MARKS = [
    "\u0301",
    "\u0323",
    "\u1b44",
    "\u302e",
    "\u034f",
    "a\u0301",
    "\u034f\u0301",
    "\u0301\u1b44",
    "x\u200b",
    "\u0f71\u034f",
]
COUNTS = [1, 1, 2, 3, 47, 48, 49, 99, 100, 101, 102, 999, 1001, 4000, 4095, 4096, 4097, 9000, 17_000]
PARTS = ["word", "the cat", "e\u0301\u0323", " ", "\u200b", "a\0b", "ab.c", "\u034f", "中文", "x" * 101, "\n", "Don't"]


def odd(count: int, seed: int, more: tuple[str, ...] = ("\ud800", "\U0001d15e")) -> list[str]:
    """Some texts; `more` are characters beside those above."""
    draw = random.Random(seed)
    fillers = [*CHARACTERS, *MARKS, *more]

    def part() -> str:
        if draw.random() < 0.6:
            return draw.choice(fillers) * draw.choice(COUNTS)
        return "".join(draw.choices(PARTS, k=draw.randint(1, 12)))

    return ["".join(part() for _ in range(draw.randint(1, 7))) for _ in range(count)]
