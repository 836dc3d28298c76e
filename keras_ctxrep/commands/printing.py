"""What commands print, and the lines that they read."""

import html
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from keras_ctxrep.checks import printable


def read_sentences(path: str) -> Iterator[str]:
    """Lines of a file or of standard input, without line ends."""
    from keras_ctxrep.text.corpus import lines

    if path == "-":
        yield from (line.rstrip("\r\n") for line in sys.stdin)
    else:
        yield from (line for _, line in lines(path))


def typed_lines(prompt: str) -> Iterator[str]:
    """Lines that are typed, to the end of the input."""
    while True:
        print(prompt, end="", file=sys.stderr, flush=True)
        if not (line := sys.stdin.readline()):
            print(file=sys.stderr)
            return
        yield line.rstrip("\r\n")


@contextmanager
def progress_bar(description: str, unit: str) -> Iterator[Callable[[int], object]]:
    """A progress bar on standard error, moved by a function that is called with how many are done."""
    from tqdm import tqdm

    with tqdm(desc=description, unit=f" {unit}", file=sys.stderr, disable=None) as bar:
        yield lambda count: bar.update(count - bar.n)


def print_scored(words: Sequence[tuple[str, float]]) -> None:
    for word, score in words:
        print_line(f"{score:.3f}  {word}")


def print_evaluation(entry: dict) -> None:
    shown = {name: value for name, value in entry.items() if name.startswith("val_") and "loss" not in name}
    parts = [f"{name.removeprefix('val_').replace('_logits_', ' ')} {value:.4g}" for name, value in shown.items()]
    print_line(f"step {entry['step']:>6}  {entry['minutes']:5.1f} min  loss {entry['loss']:.3f}  " + "  ".join(parts))


def print_error(text: str) -> None:
    """Prints to standard error, so that what a script reads stays the same."""
    print(printable(text, 4000, "\n\t"), file=sys.stderr, flush=True)


def print_report(text: str) -> None:
    """Prints what a command tells beside its results."""
    print_error(f"ctxrep: {text}")


def print_line(text: str) -> None:
    print(printable(text, math.inf, "\n\t"), flush=True)


class _Terminal:
    def write(self, text: str) -> int:
        return sys.stdout.write(printable(text, math.inf, "\n\t"))

    def flush(self) -> None:
        sys.stdout.flush()


def output() -> Any:
    """Standard output for data: where it is a terminal, only what is printable reaches it."""
    return _Terminal() if sys.stdout.isatty() else sys.stdout


def short(value) -> str:
    """A value on one line of at most 100 characters; a number with four digits."""
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
    return printable(text if len(text) <= 100 else f"{text[:97]}...", math.inf)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a table, the first of them a header: the first column to the left, the others to the right.

    >>> print(table([["name", "size"], ["a", "1.5"], ["bb", "20"]]))
    name      size
    ------  ------
    a          1.5
    bb          20
    """
    rows = [[printable(cell, 100) for cell in row] for row in rows]
    widths = [max([len(header) + 2, *map(len, cells)]) for header, *cells in zip(*rows, strict=True)]
    lines = [rows[0], ["-" * width for width in widths], *rows[1:]]
    padded = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a table of a page, the first of them a header.

    >>> html_table([["name"], ["a < b"]])
    '<table><tr><th>name</th></tr><tr><td>a &lt; b</td></tr></table>'
    """
    tags = ["th", *["td"] * (len(rows) - 1)]
    cells = ("".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in row) for tag, row in zip(tags, rows, strict=True))
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
