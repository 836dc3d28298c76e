"""`ctxrep neighbours`: the nearest neighbours of a word, in context or of static vectors."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from keras_ctxrep.commands.command import FOLDER, Command, Usage, argument
from keras_ctxrep.commands.printing import print_line, print_scored, read_sentences
from keras_ctxrep.options import AnyPath

__all__ = ["Neighbours"]


@dataclass(frozen=True)
class Neighbours(Command[list | dict]):
    """Nearest neighbours of a word, in context or of static vectors.

    One sentence a line in; the words with the nearest vectors out, in their sentences, with the cosines.
    Every word is compared.

      ctxrep neighbours MODEL --word bank --input text.txt
      ctxrep neighbours VECTORS river soup
      ctxrep neighbours VECTORS river --distance euclidean

    Returns: in context those of `plots.words.neighbours`; of static vectors each word with its neighbours.
    """

    tensorflow = "word"  # of static vectors a table is read without it

    folder: AnyPath = argument(f"published  {FOLDER}")
    words: Sequence | None = argument("[WORD ...]  static vectors: words, compared with the whole vocabulary")
    word: str | None = argument("[--word WORD]  the word in context")
    input: str | None = argument("[--input FILE]  a text file, or - for standard input")
    sentence: str | None = argument("[--sentence TEXT]  a sentence with the word (default: the first one in the text)")
    k: int = argument("[-k N] >0  how many", 10)
    layer: str | None = argument("[--layer top|mix|mean]  which vectors (default: the trained mix, else the top)")
    distance: str = argument(
        "[--distance cosine|euclidean]  static vectors: the largest cosine or the smallest distance is first", "cosine"
    )
    json: bool = argument("[--json]  print one JSON array")

    def __post_init__(self):
        super().__post_init__()
        if bool(self.words) == bool(self.word):
            raise Usage("give WORD ... of static vectors, or --word in the sentences of --input")
        for name in ("sentence", "layer"):
            if self.words and getattr(self, name):
                raise Usage(f"leave out --{name}: static vectors have no context")
        if self.word and self.distance != "cosine":
            raise Usage("leave out --distance: words in context are compared by the cosine")

    def run(self) -> list | dict:
        if self.words:
            from keras_ctxrep.recipes.word_vectors import WordTable

            vectors = WordTable(self.folder)
            return {word: vectors.neighbours(word, self.k, self.distance) for word in self.words}
        from keras_ctxrep.plots import words

        sentences = read_sentences(self.input or "-")
        return words.neighbours(self.folder, str(self.word), sentences, self.k, self.sentence, self.layer)

    def show(self, result: list | dict) -> None:
        if self.json:
            print_line(json.dumps(result, ensure_ascii=False))
        elif isinstance(result, dict):
            for word, neighbours in result.items():
                if len(result) > 1:
                    print_line(word)
                print_scored(neighbours)
        else:
            from keras_ctxrep.plots import words

            print_line(words.concordance(result, shutil.get_terminal_size().columns))
