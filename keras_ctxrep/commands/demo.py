"""`ctxrep demo`: the whole way, from raw text to models on the edge."""

from collections.abc import Sequence
from dataclasses import dataclass

from keras_ctxrep.commands.command import Command, argument
from keras_ctxrep.options import AnyPath

__all__ = ["Demo"]


@dataclass(frozen=True)
class Demo(Command[dict]):
    """The whole way, in about 5 minutes on 2 cores.

    Distils a smaller encoder from the shipped BERT for a minute, searches this package's documentation by
    meaning and by words, fine-tunes the BERT to tag named entities, shows neighbours in context, exports the
    tagger as SavedModel, TFLite and web page, predicts without TensorFlow, and writes report.html. Needs no
    network and no data: the text is Python's language reference, the messages are those of WNUT-2017, which
    come with the package. Ends with status 1 if one of its checks fails.

    Returns: the figures of the report, as in `demo.run.run`.
    """

    any_backend = False

    corpus: Sequence | None = argument("""[--corpus FILE ...]  distil on your own text, one sentence a line, an empty
        line between documents""")
    out: AnyPath = argument("[--out FOLDER]  for the models and report.html; its contents are replaced", "demo")
    minutes: float = argument("[--minutes N] >0  of distillation", 1)
    seed: int = argument("[--seed N]  random seed", 0)

    def run(self) -> dict:
        from keras_ctxrep.demo.run import run

        return run(corpus=self.corpus, out=self.out, minutes=self.minutes, seed=self.seed)

    def show(self, result: dict) -> None:
        if not all(passed for passed, _ in result["checks"]):
            raise SystemExit(1)
