"""`ctxrep plot`: pictures of what models learned, and of how."""

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from keras_ctxrep.checks import printable
from keras_ctxrep.commands.command import Command, Usage, argument
from keras_ctxrep.options import AnyPath

__all__ = ["Plot"]

_FLAGS = {  # of each kind, those that are required and others
    "mix": (set(), set()),
    "attention": ({"text"}, {"pair", "layer", "head"}),
    "alignment": ({"text"}, set()),
    "senses": ({"word", "data"}, {"layer"}),
    "probabilities": ({"text"}, set()),
    "words": ({"data"}, {"columns", "count", "k"}),
    "analogies": (set(), {"data"}),
    "masks": (set(), {"text"}),
    "history": (set(), set()),
}
_SEVERAL, _NONE = ("mix", "history"), ("masks",)  # kinds of several folders, and of none


@dataclass(frozen=True)
class Plot(Command[list[str]]):
    """Draw a scalar mix, alignments, attention, senses, probabilities, word vectors, masks, or the loss of runs.

    mix        the weight of each layer in the scalar mixes of models
    alignment  where a text-to-text model looked while it wrote each token
    attention  what the word pieces of a text attend to in a BERT
    senses     the vectors of a word in labelled sentences, in the colour of their sense
    probabilities  a page of what a language model expects of each token of a text; on a terminal in colours too
    words      static vectors in two dimensions by part of speech, and a table of nearest words
    analogies  arrows between the static vectors of pairs such as man woman, and how parallel they are
    masks      which tokens a vector depends on in an ELMo, a causal Transformer and a BERT; needs no model
    history    the loss of runs against tokens read and against hours

    Returns: lines about what was drawn.
    """

    kind: str = argument("what to draw", choices=tuple(_FLAGS))
    folders: Sequence = argument("FOLDER ...  a model folder; mix, history: one or several; masks: none", nargs="*")
    out: AnyPath = argument("""--out FILE.png writes  the picture; attention: or an HTML page, FILE.html;
        probabilities: FILE.html""")
    text: str | None = argument("[--text TEXT]  alignment, attention, probabilities, masks: the text")
    pair: str | None = argument("[--pair TEXT]  attention: a second text")
    word: str | None = argument("[--word WORD]  senses: the word")
    data: AnyPath | None = argument("""[--data FILE]  senses: sentences labelled with the word's sense, .tsv or
        .jsonl; words: a word and its tag a line (CoNLL); analogies: lines "man woman" under
        ": name of a relation" (default: three relations)""")
    columns: Mapping[str, str] | None = argument("[--columns NAME=N ...]  words: their numbers (default: word=1 tag=2)")
    count: int | None = argument("[--count N] >0  words: how many, the most frequent ones (default: 300)")
    k: int | None = argument("[-k N] >0  words: neighbours of each word in the table (default: 5)")
    layer: int | str | None = argument(
        parse=lambda text: int(text) if text.isdecimal() else text
    )("""[--layer N|NAME]  attention: number, from 1, or all
        (default: the last); senses: top, mix, mean (default: trained mix, else top)""")
    head: int | None = argument("[--head N] >0  attention: its number, from 1 (default: all)")

    def __post_init__(self):
        super().__post_init__()
        needed, optional = _FLAGS[self.kind]
        names = set().union(*(flags for of_kind in _FLAGS.values() for flags in of_kind))
        flags = {name for name in names if getattr(self, name) is not None}
        wrong = [f"--{name} is missing" for name in sorted(needed - flags)]
        wrong += [f"leave out --{name}" for name in sorted(flags - needed - optional)]
        if self.kind in _NONE:
            wrong += ["leave out FOLDER"] * bool(self.folders)
        elif not self.folders:
            wrong.append("FOLDER is missing")
        elif len(self.folders) > 1 and self.kind not in _SEVERAL:
            wrong.append("one FOLDER at a time")
        if wrong:
            raise Usage(f"{self.kind}: {', '.join(wrong)}")

    def run(self) -> list[str]:
        from keras_ctxrep import zoo

        folders = [name if os.path.exists(name) else str(zoo.find(name)) for name in self.folders]
        return [*getattr(self, f"_{self.kind}")(folders), str(self.out)]

    def show(self, result: list[str]) -> None:
        escapes = "\x1b" if self.kind == "probabilities" else ""  # of its colours
        for line in result:
            print(printable(line, math.inf, f"\n\t{escapes}"), flush=True)

    def _mix(self, folders: list[str]) -> Iterator[str]:
        from keras_ctxrep.plots import mix

        for entry in mix.mix(folders, self.out):
            weights = "  ".join(f"{layer}: {weight:.3f}" for layer, weight in enumerate(entry["weights"]))
            yield f"{entry['folder']}: {entry['mix']}  {weights}  gamma: {entry['gamma']:.3f}"

    def _attention(self, folders: list[str]) -> Iterator[str]:
        from keras_ctxrep.plots import attention

        picture = attention.attention(folders[0], str(self.text), self.out, self.pair, self.layer, self.head)
        layers, heads, length, _ = picture["attention"].shape
        yield f"{length} pieces, {layers} layers, {heads} heads"

    def _senses(self, folders: list[str]) -> Iterator[str]:
        from keras_ctxrep.plots import words

        layer = None if self.layer is None else str(self.layer)
        senses = words.senses(folders[0], str(self.word), str(self.data), self.out, layer)
        accuracy = f"{senses['accuracy']:.1%} (the most frequent sense: {senses['majority']:.1%})"
        yield f"{len(senses['labels'])} sentences; nearest neighbour of the same sense: {accuracy}"
        for sense, recall in senses["recall"].items():
            yield f"  {sense}: {recall:.1%} of {senses['labels'].count(sense)}"

    def _history(self, folders: list[str]) -> Iterator[str]:
        from keras_ctxrep.plots.history import history

        for run in history(folders, self.out):
            tokens = "" if run["tokens"] is None else f" {run['tokens'][-1]:,.0f} tokens,"
            last = f"{run['loss']} {run['losses'][-1]:.4f}"
            yield f"{run['folder']}: {last} after {run['steps'][-1]:,.0f} steps,{tokens} {run['hours'][-1]:.2f} hours"

    def _words(self, folders: list[str]) -> Iterator[str]:
        from keras_ctxrep.plots import parts_of_speech as plots

        count, k = self.count or plots.WORDS, self.k or plots.NEIGHBOURS
        words = plots.parts_of_speech(folders[0], str(self.data), self.out, self.columns, count, k)
        accuracy = f"{words['accuracy']:.1%} (the most frequent one: {words['majority']:.1%})"
        yield f"{len(words['words'])} words; nearest neighbour of the same part of speech: {accuracy}"
        yield plots.table(words["neighbours"])

    def _analogies(self, folders: list[str]) -> Iterator[str]:
        from keras_ctxrep.commands.printing import table
        from keras_ctxrep.plots import analogies as plots

        result = plots.analogies(folders[0], self.out, self.data)
        yield table([*plots.table(result["relations"])])
        if result["unknown"]:
            yield f"left out, without a vector: {', '.join(result['unknown'])}"
        if result["left_out"]:
            yield f"left out, of fewer than two pairs: {', '.join(result['left_out'])}"

    def _masks(self, _: list[str]) -> Iterator[str]:
        from keras_ctxrep.plots.masks import TEXT, masks

        result = masks(self.out, self.text or TEXT)
        yield f"tokens that each vector depends on: {' '.join(result['tokens'])}"
        for name, mask in result["masks"].items():
            yield f"{name}: {' '.join(str(count) for count in mask.sum(1))}"

    def _alignment(self, folders: list[str]) -> Iterator[str]:
        from keras_ctxrep.plots.alignment import alignment

        yield alignment(folders[0], str(self.text), self.out)["text"]

    def _probabilities(self, folders: list[str]) -> Iterator[str]:
        from keras_ctxrep.plots.probabilities import coloured, probabilities

        tokens = probabilities(folders[0], str(self.text), self.out)
        if sys.stdout.isatty():
            yield coloured(tokens)
        mean = sum(token.bits for token in tokens) / len(tokens)
        yield f"{len(tokens)} tokens, {mean:.2f} bits each, perplexity {2.0**mean:.1f}"
