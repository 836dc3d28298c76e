"""`ctxrep generate`: text that a language model generates."""

from collections.abc import Iterator
from dataclasses import dataclass

from keras_ctxrep.commands.command import Command, argument, function
from keras_ctxrep.commands.printing import output
from keras_ctxrep.options import AnyPath, Generation

__all__ = ["Generate", "generate"]


@dataclass(frozen=True)
class Generate(Generation, Command[Iterator[str]]):
    """Continue a text by a language model.

    Prints the prompt and what a model of `ctxrep pretrain lm` samples after it, token by token. The same seed
    gives the same text, in every engine.

      ctxrep generate lm --prompt "The river" --temperature 0.8 --top-p 0.9 --length 50

    Returns: what each token adds to the prompt, as soon as it is drawn.

    Raises:
        ValueError: another model.
    """

    tensorflow = "model"
    model: AnyPath = argument("published  a language model, in any form that `keras_ctxrep.load` opens")
    prompt: str = argument("[--prompt TEXT]  the text to continue (default: none, the beginning of a text)", "")

    def run(self) -> Iterator[str]:
        from keras_ctxrep.inference.model import load

        return load(self.model).stream(self.prompt, options=self)

    def show(self, result: Iterator[str]) -> None:
        out = output()
        out.write(self.prompt)
        for text in result:
            out.write(text)
            out.flush()
        out.write("\n")


generate = function(Generate, "generate")
