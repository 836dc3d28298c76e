"""Vectors of texts, and of words in context: to files, as neighbours, as pictures."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable

from keras_ctxrep import options
from keras_ctxrep.cli.command import Command, positive
from keras_ctxrep.cli.flags import Flags, options_of, pairs
from keras_ctxrep.commands.command import FOLDER, Usage
from keras_ctxrep.commands.printing import print_line, read_sentences


def _embed(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from keras_ctxrep import recipes

    chosen = options_of(options.Embedding, args)
    with tqdm(desc="embedding", unit=" sentences", file=sys.stderr, disable=None) as bar:
        sentences = _sentences(args.input)
        count = recipes.embed(args.folder, sentences, args.out, lambda n: bar.update(n - bar.n), options=chosen)
    print_line(f"{args.out}: {count} sentences")


def _sentences(source: str) -> Iterable[str]:
    """The lines of a file or of standard input, or the texts of a data set."""
    from keras_ctxrep import tasks
    from keras_ctxrep.recipes.reading import TFDS, read_unlabelled

    if not source.startswith(TFDS):
        return read_sentences(source)
    return (example.text for _, example in read_unlabelled(tasks.get("classify"), source))


def _embed_flags(flags: Flags) -> None:
    flags.add("folder", FOLDER, model=True)
    texts = "a text file, - for standard input, or tfds:NAME:SPLIT: the first text of each row"
    flags.add("--input", texts, required=True, metavar="FILE")
    flags.add("--out", "FILE.npz or FILE.hdf5", required=True, metavar="FILE", writes=True)
    flags.add_options(options.Embedding)


def _plot(args: argparse.Namespace) -> None:
    draw, needed, optional = _PLOTS[args.kind]
    names = ("text", "pair", "word", "data", "layer", "head", "columns", "count", "k")
    flags = {name for name in names if getattr(args, name) is not None}
    wrong = [f"--{name} is missing" for name in sorted(needed - flags)]
    wrong += [f"leave out --{name}" for name in sorted(flags - needed - optional)]
    if len(args.folders) > 1 and needed:
        wrong.append("one FOLDER at a time")
    if wrong:
        raise Usage(f"plot {args.kind}: {', '.join(wrong)}")
    from keras_ctxrep import zoo

    args.folders = [name if os.path.exists(name) else str(zoo.find(name)) for name in args.folders]
    draw(args)
    print_line(args.out)


def _plot_mix(args: argparse.Namespace) -> None:
    from keras_ctxrep.plots import mix

    for entry in mix.mix(args.folders, args.out):
        weights = "  ".join(f"{layer}: {weight:.3f}" for layer, weight in enumerate(entry["weights"]))
        print(f"{entry['folder']}: {entry['mix']}  {weights}  gamma: {entry['gamma']:.3f}")


def _plot_attention(args: argparse.Namespace) -> None:
    from keras_ctxrep.plots import attention

    picture = attention.attention(args.folders[0], args.text, args.out, args.pair, args.layer, args.head)
    layers, heads, length, _ = picture["attention"].shape
    print(f"{length} pieces, {layers} layers, {heads} heads")


def _plot_senses(args: argparse.Namespace) -> None:
    from keras_ctxrep.plots import words

    senses = words.senses(args.folders[0], args.word, args.data, args.out, args.layer)
    accuracy = f"{senses['accuracy']:.1%} (the most frequent sense: {senses['majority']:.1%})"
    print(f"{len(senses['labels'])} sentences; nearest neighbour of the same sense: {accuracy}")
    for sense, recall in senses["recall"].items():
        print_line(f"  {sense}: {recall:.1%} of {senses['labels'].count(sense)}")


def _plot_history(args: argparse.Namespace) -> None:
    from keras_ctxrep.plots.history import history

    for run in history(args.folders, args.out):
        tokens = "" if run["tokens"] is None else f" {run['tokens'][-1]:,.0f} tokens,"
        last = f"{run['loss']} {run['losses'][-1]:.4f}"
        print_line(f"{run['folder']}: {last} after {run['steps'][-1]:,.0f} steps,{tokens} {run['hours'][-1]:.2f} hours")


def _plot_words(args: argparse.Namespace) -> None:
    from keras_ctxrep.plots import parts_of_speech

    columns = dict(pair for part in args.columns or () for pair in part)
    count, k = args.count or parts_of_speech.WORDS, args.k or parts_of_speech.NEIGHBOURS
    words = parts_of_speech.parts_of_speech(args.folders[0], args.data, args.out, columns, count, k)
    accuracy = f"{words['accuracy']:.1%} (the most frequent one: {words['majority']:.1%})"
    print(f"{len(words['words'])} words; nearest neighbour of the same part of speech: {accuracy}")
    print_line(parts_of_speech.table(words["neighbours"]))


def _plot_alignment(args: argparse.Namespace) -> None:
    from keras_ctxrep.plots.alignment import alignment

    print_line(alignment(args.folders[0], args.text, args.out)["text"])


def _plot_probabilities(args: argparse.Namespace) -> None:
    from keras_ctxrep.plots.probabilities import coloured, probabilities

    tokens = probabilities(args.folders[0], args.text, args.out)
    if sys.stdout.isatty():
        print(coloured(tokens))
    mean = sum(token.bits for token in tokens) / len(tokens)
    print(f"{len(tokens)} tokens, {mean:.2f} bits each, perplexity {2.0**mean:.1f}")


_PLOTS: dict[str, tuple[Callable, set[str], set[str]]] = {  # its function, required and optional flags
    "mix": (_plot_mix, set(), set()),
    "attention": (_plot_attention, {"text"}, {"pair", "layer", "head"}),
    "alignment": (_plot_alignment, {"text"}, set()),
    "senses": (_plot_senses, {"word", "data"}, {"layer"}),
    "probabilities": (_plot_probabilities, {"text"}, set()),
    "words": (_plot_words, {"data"}, {"columns", "count", "k"}),
    "history": (_plot_history, set(), set()),
}


def _plot_flags(flags: Flags) -> None:
    flags.add("kind", "what to draw", choices=tuple(_PLOTS))
    flags.add("folders", "a model folder; mix, history: one or several", nargs="+", metavar="FOLDER")
    flags.add(
        "--out",
        "the picture; attention: or an HTML page, FILE.html; probabilities: FILE.html",
        required=True,
        metavar="FILE.png",
        writes=True,
    )
    flags.add("--text", "alignment, attention, probabilities: the text")
    flags.add("--pair", "attention: a second text", metavar="TEXT")
    flags.add("--word", "senses: the word")
    data = "senses: sentences labelled with the word's sense, .tsv or .jsonl; words: a word and its tag a line (CoNLL)"
    flags.add("--data", data, metavar="FILE")
    columns = "words: numbers of the columns (default: word=1 tag=2)"
    flags.add("--columns", columns, type=pairs, nargs="+", metavar="NAME=N")
    flags.add("--count", "words: how many, the most frequent ones (default: 300)", type=positive, metavar="N")
    flags.add("-k", "words: neighbours of each word in the table (default: 5)", type=positive, metavar="N")
    layer = (
        "attention: number, from 1, or all (default: the last); senses: top, mix, mean (default: trained mix, else top)"
    )
    flags.add("--layer", layer, type=lambda text: int(text) if text.isdecimal() else text, metavar="N|NAME")
    flags.add("--head", "attention: its number, from 1 (default: all)", type=positive, metavar="N")


COMMANDS = {
    "embed": Command(
        _embed,
        _embed_flags,
        "write the vectors of sentences to a file",
        "One sentence a line in; one array per sentence out, under '0', '1', ...: by --layers\n\n"
        "  vector  (width,)                 the vector of the text, as the model card describes it: the default\n"
        "  all     (layers, tokens, width)  every layer, from 0, without context, to the top; --layer-numbers chooses\n"
        "  mix     (tokens, width)          the sum of the layers by trained weights, without such their mean\n"
        "  top     (tokens, width)          the last layer\n"
        "  mean    (width,)                 the mean of the mix over the tokens: a vector of the sentence\n"
        "  pooled  (width,)                 BERT's pooler, or the mean of the top layer\n\n"
        "With --words, --layer-numbers, --carry-state or --cache it is all, the layout of published ELMo files.\n"
        "Tokens are words (ELMo, static vectors) or word pieces without markers (BERT; --words: words). All layers of\n"
        "many sentences are large: --layers mix or top, --layer-numbers and --dtype float16 write less.",
        tensorflow=lambda args: args.engine != options.AUTO,
    ),
    "plot": Command(
        _plot,
        _plot_flags,
        "draw a scalar mix, alignments, attention, senses, probabilities, word vectors, or the loss of runs",
        "mix        the weight of each layer in the scalar mixes of models\n"
        "alignment  where a text-to-text model looked while it wrote each token\n"
        "attention  what the word pieces of a text attend to in a BERT\n"
        "senses     the vectors of a word in labelled sentences, in the colour of their sense\n"
        "probabilities  a page of what a language model expects of each token of a text; on a terminal in colours too\n"
        "words      static vectors in two dimensions by part of speech, and a table of nearest words\n"
        "history    the loss of runs against tokens read and against hours",
    ),
}
