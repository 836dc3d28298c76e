"""`ctxrep analogy`: what is to C as A is to B, by static word vectors."""

import json
from dataclasses import dataclass

from keras_ctxrep.commands.command import Command, argument
from keras_ctxrep.commands.printing import print_line, print_scored
from keras_ctxrep.options import AnyPath

__all__ = ["Analogy"]


@dataclass(frozen=True)
class Analogy(Command[list[tuple[str, float]]]):
    """What is to C as A is to B, by static word vectors.

    Prints the words nearest to A - B + C, such as king - man + woman. The three words themselves are left out.

    Returns: words and the cosines of their vectors.
    """

    tensorflow = False  # a table is read without it

    folder: AnyPath = argument("published  a model folder of static word vectors")
    a: str = argument("A  the word to start from, king")
    b: str = argument("B  taken from it, man")
    c: str = argument("C  added, woman")
    k: int = argument("[-k N] >0  how many", 10)
    json: bool = argument("[--json]  print one JSON array")

    def run(self) -> list[tuple[str, float]]:
        from keras_ctxrep.recipes.word_vectors import WordTable

        return WordTable(self.folder).analogy(self.a, self.b, self.c, self.k)

    def show(self, result: list[tuple[str, float]]) -> None:
        if self.json:
            print_line(json.dumps(result, ensure_ascii=False))
        else:
            print_scored(result)
