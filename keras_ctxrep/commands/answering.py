"""Commands that answer a text, or each line of their input."""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from keras_ctxrep.checks import printable
from keras_ctxrep.commands.command import Command, Usage, argument
from keras_ctxrep.commands.printing import print_error, print_line, read_sentences, typed_lines


@dataclass(frozen=True, kw_only=True)
class Answering(Command[Iterator[tuple[str, Any]]]):
    """A command that answers its argument `text`, or each line of the input; on a terminal as they are typed."""

    input: str | None = argument("[--input FILE]  a line each, or - for standard input (the default)")
    json: bool = argument("[--json]  print one JSON object a line for each text")

    def __post_init__(self):
        super().__post_init__()
        if self._text is not None and self.input is not None:
            raise Usage("give either TEXT or --input")

    def open(self) -> Callable[[list[str]], Iterable[Any]]:
        """Opens the model, and returns the function from texts to their answers."""
        raise NotImplementedError

    def shown(self, text: str, answer: Any) -> tuple[dict, list[str]]:
        """A text and its answer as JSON has them, and the lines that are printed of the answer."""
        raise NotImplementedError

    def run(self) -> Iterator[tuple[str, Any]]:
        return self._answer(self.open())

    def show(self, result: Iterator[tuple[str, Any]]) -> None:
        for text, answer in result:
            content, lines = self.shown(text, answer)
            if self.json:
                print_line(json.dumps(content, ensure_ascii=False))
                continue
            if self._text is None and not self._typed:
                print_line(f"# {text}")
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
            for line in lines:  # each on one line of the terminal
                line = printable(line.replace("\t", " ").replace("\n", " "), float("inf"))
                print_line(line if len(line) <= width else f"{line[: width - 3]}...")

    @property
    def _text(self) -> str | None:
        return vars(self)["text"]

    @property
    def _typed(self) -> bool:
        return self.input in (None, "-") and sys.stdin.isatty()

    def _answer(self, answer: Callable[[list[str]], Iterable[Any]]) -> Iterator[tuple[str, Any]]:
        if self._text is not None:
            if not self._text.strip():
                raise ValueError("the text is empty")
            yield from zip([self._text], answer([self._text]), strict=True)
            return
        texts = filter(
            str.strip,
            typed_lines(f"{type(self).__name__.lower()}> ") if self._typed else read_sentences(self.input or "-"),
        )
        count = 0
        while part := list(islice(texts, 1 if self._typed else 64)):
            count += len(part)
            try:
                yield from zip(part, answer(part), strict=True)
            except ValueError as error:
                if not self._typed:
                    raise
                print_error(f"ctxrep: {error}")
        if not count and not self._typed:
            raise ValueError(f"{self.input or 'standard input'}: no text in it")
