"""`ctxrep try`: what the models that come with the package do with a text, on a page or in the terminal."""

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_ctxrep.checks import printable
from keras_ctxrep.commands.command import Command, Usage, argument, in_python
from keras_ctxrep.commands.fill import mask_lines
from keras_ctxrep.commands.printing import print_line, print_report, read_sentences, typed_lines
from keras_ctxrep.commands.serve import PORTS, port_number

if TYPE_CHECKING:
    from keras_ctxrep.recipes.trying import Models

__all__ = ["Try"]

HELP = """\
a text              the names in it, and its sentiment; lines in a row are one text
a text with [MASK]  the words that fit in the place of the mask
? QUESTION          the answer to a question in the last text
~ SENTENCE          the lines so far that mean nearly the same
help                these lines; Ctrl-D ends"""
_NEAREST = 5  # lines that are printed
_MASK = "[MASK]"
_COLOURS = (34, 32, 35, 36, 33, 31)  # of types of names, in the order in which they come


def _announce(url: str) -> None:
    print_line(f"{url}/\nOpen this address in a browser; Ctrl-C ends.")


@dataclass(frozen=True)
class Try(Command[None]):
    """Try the models that come with the package: on a page in the browser, or in the terminal.

    The page, which needs no network, shows words for [MASK], the names in a text, its sentiment, the
    nearest of some sentences, the senses of a word as a picture, the answer to a question, and attention.
    A model is loaded when it is first asked. The page is on this machine alone unless --host says otherwise;
    it needs the extra [serve]. With --terminal, lines are typed, or read from standard input.

    Notes:
        `announce` is called with the address when the port is open, `report` with a line for each model that is loaded.

    Raises:
        ValueError: no such panel, or a number out of its range.
        ImportError: Starlette or Uvicorn is not installed.
        OSError: the port is taken, or the address is not one of this machine.
    """

    tensorflow = False  # it is loaded when a model is asked
    terminal: bool = argument(
        "[--terminal]  answer lines that are typed, without a page; `help` lists what they may be"
    )
    panels: Mapping[str, str] | None = argument("""[--models PANEL=MODEL ...]  other models than those of the package,
        for fill, names, sentiment, nearest, senses, answers or attention: folders, names of the zoo, .tflite files""")
    host: str = argument("[--host ADDRESS]  to listen on (default: 127.0.0.1, this machine alone)", "127.0.0.1")
    port: int = argument("[--port N] >=0  0: a free one (default: 8502)", 8502, parse=port_number, most=PORTS)
    announce: Callable[[str], object] = in_python(lambda url: None, prints=_announce)
    report: Callable[[str], object] = in_python(lambda line: None, prints=print_report)

    def run(self) -> None:
        from keras_ctxrep.recipes.trying import Models

        try:
            models = Models(self.panels or {}, self.report)
        except ValueError as error:
            raise Usage(f"--models {error}") from None
        with suppress(KeyboardInterrupt):
            (self._read_lines if self.terminal else self._serve)(models)

    def _serve(self, models: "Models") -> None:
        from keras_ctxrep.recipes.serving import address_of, listening, server_of
        from keras_ctxrep.recipes.trying import application

        with listening(self.host, self.port) as listener:
            url, hosts = address_of(listener, self.host)
            server = server_of(application(models, hosts))
            self.announce(url)
            server.run([listener])

    def _read_lines(self, models: "Models") -> None:
        typed = sys.stdin.isatty()
        session = Session(models, self.report, sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        if typed:
            print_line(HELP)
        for line in typed_lines("try> ") if typed else read_sentences("-"):
            if not typed and line.strip():
                print_line(f"# {line.strip()}")
            for answer in session.lines(line.strip()):
                print(answer, flush=True)


class Session:
    """The lines of a terminal session, and what is printed of their answers.

    Args:
        models: that answer.
        report: called with what cannot be answered, in one line.
        coloured: whether names are in colours, by the escapes of a terminal, or in brackets.
    """

    def __init__(self, models: "Models", report: Callable[[str], object], coloured: bool = False):
        self.models, self.report, self.coloured = models, report, coloured
        self.text: list[str] = []  # lines of the last text
        self.texts: dict[str, None] = {}  # all lines, in their order
        self.reported: set[str] = set()  # models that cannot be loaded
        self.types: list[str] = []
        self.ended = False  # whether the next line begins another text

    def lines(self, line: str) -> Iterator[str]:
        """What is printed of the answer to a line."""
        if line and line.lower() != "help" and line[0] not in "?~" and _MASK not in line:
            self.text = [line] if self.ended else [*self.text, line]
            self.texts[line], self.ended = None, False
            yield from self._tried(self._names, line)
            yield from self._tried(self._sentiment, line)
            return
        self.ended = True
        if line.lower() == "help":
            yield HELP
        elif line:
            command = {"?": self._answer, "~": self._nearest}.get(line[0], self._fill)
            yield from self._tried(command, line if command == self._fill else line[1:].strip(), again=True)

    def _tried(self, command: Callable[[str], Iterator[str]], text: str, again: bool = False) -> Iterator[str]:
        """The lines of a command; of what is wrong a report, which is given only once unless it was asked for."""
        try:
            yield from command(text)
        except ValueError as error:
            if again or str(error) not in self.reported:
                self.report(str(error))
            self.reported.add(str(error))

    def _names(self, text: str) -> Iterator[str]:
        answer = self.models.answer("names", {"text": text})
        entities = answer["entities"]
        shown, end = "", 0
        for entity in entities:
            shown += _shown(text[end : entity["start"]]) + self._name(_shown(entity["text"]), _shown(entity["type"]))
            end = entity["end"]
        yield f"names      {shown + _shown(text[end:]) if entities else 'none'}{_cut(answer)}"

    def _name(self, name: str, kind: str) -> str:
        if not self.coloured:
            return f"[{name} {kind}]"
        self.types += [kind] if kind not in self.types else []
        colour = _COLOURS[self.types.index(kind) % len(_COLOURS)]
        return f"\x1b[1;{colour}m{name}\x1b[0m \x1b[{colour}m{kind}\x1b[0m"

    def _sentiment(self, text: str) -> Iterator[str]:
        answer = self.models.answer("sentiment", {"text": text})
        chance = answer["probabilities"][0]["probability"]
        yield _shown(f"sentiment  {answer['label']} {chance:.1%}  {'█' * round(30 * chance)}{_cut(answer)}")

    def _fill(self, text: str) -> Iterator[str]:
        masks = self.models.answer("fill", {"text": text})["masks"]
        pieces = [[(each["piece"], each["probability"]) for each in of_mask] for of_mask in masks]
        yield from map(_shown, mask_lines(pieces))

    def _answer(self, question: str) -> Iterator[str]:
        if not self.text:
            raise ValueError("no text to answer from; give one before the question")
        context = "\n".join(self.text)
        answer = self.models.answer("answers", {"question": question, "context": context})
        text = f"{answer['answer']}  (score {answer['score']:.2f})" if answer["answer"] else "no answer in the text"
        yield _shown(text)

    def _nearest(self, text: str) -> Iterator[str]:
        if not self.texts:
            raise ValueError("no lines to compare with; give some before")
        from keras_ctxrep.recipes.trying import SENTENCES

        lines = [*self.texts][-SENTENCES:]
        nearest = self.models.answer("nearest", {"text": text, "sentences": lines})["nearest"]
        for each in nearest[:_NEAREST]:
            yield _shown(f"{each['cosine']:6.3f}  {lines[each['number']]}")


def _shown(text: str) -> str:
    return printable(text, math.inf)


def _cut(answer: Mapping[str, object]) -> str:
    return "  (of the beginning: the text is longer than the model reads)" if "truncated" in answer else ""
