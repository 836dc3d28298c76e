"""`ctxrep client`: answers of a model on a TF Serving server."""

import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from keras_ctxrep.commands.command import Command, Usage, argument
from keras_ctxrep.commands.printing import print_line, read_sentences
from keras_ctxrep.options import SIGNATURE, AnyPath

__all__ = ["Client"]


@dataclass(frozen=True, kw_only=True)
class Client(Command[Iterator[dict | str]]):
    """Ask a model on a TF Serving server.

    Prints one JSON object for each text: the outputs of the signature. A text is an argument or a line of
    standard input. Runs without TensorFlow; gRPC needs the extra [serving].

    Returns: the outputs for each text, or with `dry_run` the requests.
    """

    tensorflow = False
    texts: Sequence | None = argument("[TEXT ...]  texts (default: the lines of standard input)")
    url: str = argument("--url URL  of the server: http://HOST:8501, or grpc://HOST:8500")
    model: str = argument("--model NAME  its name on the server")
    pair: Sequence | None = argument("[--pair TEXT ...]  the second text of each; or both as one, with a tab between")
    json: bool = argument("[--json]  each text is a JSON object with all inputs of the signature")
    signature: str = argument("[--signature NAME]  of the model", SIGNATURE)
    version: int | None = argument("[--version N]  number of the version (default: the latest)")
    label: str | None = argument("[--label NAME]  label of the version, of the server's model.config")
    bundle: AnyPath | None = argument("""[--bundle FOLDER]  a local copy of the SavedModel, with its versions or one
        of them, or the model folder: answers have the form of `ctxrep predict`""")
    batch_size: int = argument("[--batch-size N] >0  texts of a request", 32)
    timeout: float = argument("[--timeout S] >0  seconds for a request", 10)
    max_answer: float = argument("[--max-answer MB] >0  largest answer to a request in MB", 64)
    dry_run: bool = argument("[--dry-run]  print the requests, JSON or gRPC's message as text, and send nothing")

    def __post_init__(self):
        super().__post_init__()
        texts = self.texts or ()
        if self.pair is not None and len(self.pair) != len(texts):
            raise Usage(f"{len(texts)} texts and {len(self.pair)} of --pair; give one for each text")
        if self.json and (self.pair is not None or self.bundle is not None):
            raise Usage("leave out --pair and --bundle with --json, whose lines have every input")
        if self.bundle is not None and (self.signature != SIGNATURE or self.dry_run):
            raise Usage("leave out --signature and --dry-run with --bundle")
        if self.version is not None and self.label is not None:
            raise Usage("give either --version or --label")

    def run(self) -> Iterator[Any]:
        from keras_ctxrep.inference import client

        target = client.Target(self.model, self.signature, self.version, self.label, self.timeout, self.max_answer)
        if self.bundle is None:
            return self._answers(client.connect(self.url, target))
        predictor = client.load(self.url, target, client.bundle_of(self.bundle, self.version), self.batch_size)
        text = "".join(line.replace("\n", " ") + "\n" for line in self._lines()) if self.texts else None
        return predictor.lines(sys.stdin.buffer if text is None else io.BytesIO(text.encode("utf-8", "replace")))

    def show(self, result: Iterator[Any]) -> None:
        for answer in result:
            print_line(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))

    def _lines(self) -> Iterable[str]:
        """The lines of the input; a tab separates the two texts of a pair."""
        if self.pair is not None:
            return [f"{text}\t{pair}" for text, pair in zip(self.texts or (), self.pair, strict=True)]
        return self.texts or read_sentences("-")

    def _answers(self, server: Any) -> Iterator[dict | str]:
        from keras_ctxrep.inference.client import inputs_of, inputs_of_json, rows_of

        lines = iter(self._lines())
        size = 1 if not self.texts and sys.stdin.isatty() else self.batch_size
        names = None if self.json or self.dry_run else server.inputs()
        while chunk := list(islice(lines, size)):
            batch = inputs_of_json(chunk) if self.json else inputs_of(chunk, names)
            if self.dry_run:
                yield server.request(batch)
            else:
                yield from rows_of(server.run(dict(batch)))
