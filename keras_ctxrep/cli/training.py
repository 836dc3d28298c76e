"""Learning: pretraining, preparation of its text, fine-tuning, evaluation."""

import argparse
import json

from keras_ctxrep import options
from keras_ctxrep.cli.command import Command
from keras_ctxrep.cli.flags import Flags, options_of
from keras_ctxrep.commands.command import FOLDER, Usage
from keras_ctxrep.commands.printing import print_line, short, table


def _score(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    if [args.data, args.analogies, args.word_pairs].count(None) != 2:
        raise Usage("score: give one of --data, --analogies and --word-pairs")
    if args.data is None:
        _score_words(args)
        return
    if args.lm:
        _score_sentences(args)
        return
    figures = recipes.score(
        args.folder,
        args.data,
        carry_state=args.carry_state,
        predictions=args.predictions,
        options=options_of(options.Scoring, args),
    )
    if args.json:
        print_line(json.dumps(figures, ensure_ascii=False))
    else:
        _print_figures(figures)


def _score_words(args: argparse.Namespace) -> None:
    from keras_ctxrep.recipes.word_vectors import WordTable

    for name in ("carry_state", "columns", "skip_bad", "positive", "predictions", "lm"):
        if getattr(args, name):
            raise Usage(f"score: leave out --{name.replace('_', '-')}: word vectors are scored by words alone")
    words = WordTable(args.folder)
    figures = words.score_pairs(args.word_pairs) if args.analogies is None else words.score_analogies(args.analogies)
    if args.json:
        print_line(json.dumps(figures, ensure_ascii=False))
    else:
        _print_figures(figures)


def _score_sentences(args: argparse.Namespace) -> None:
    names = ("carry_state", "columns", "skip_bad", "positive", "predictions", "json")
    for name in names:
        if getattr(args, name):
            prints = "one JSON object for each sentence is what it prints"
            reason = prints if name == "json" else "it scores sentences"
            flag = f"--{name.replace('_', '-')}"
            raise Usage(f"score: leave out {flag} with --lm: {reason} of a text, each by itself")
    from keras_ctxrep import recipes
    from keras_ctxrep.text.corpus import documents

    sentences = (sentence for document in documents([args.data]) for sentence in document)
    for entry in recipes.score_sentences(args.folder, sentences):
        print_line(json.dumps(entry, ensure_ascii=False))


def _print_figures(figures: dict) -> None:
    metric, interval = figures.get("metric"), figures.get("interval")
    for name, value in figures.items():
        if isinstance(value, int | float):
            shown = f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
            note = f"   95% of resamples: {interval[0]:.4f} to {interval[1]:.4f}" if name == metric and interval else ""
            of = f" of {figures[f'{name}_of']}" if f"{name}_of" in figures else ""
            print_line(f"{name.replace('_', ' ') + of:20} {shown}{note}")
    for name in ("table", "by_label"):
        if figures.get(name):
            print(f"\n{table(figures[name])}")
    if figures.get("worst"):
        print("\nworst")
    for entry in figures.get("worst", ()):
        texts = entry.get("texts") or [entry["input"]]
        print_line("\n    ".join([f"  {entry['source']}", *map(short, texts)]))
        confidence = f"   ({entry['confidence']:.1%} sure)" if "confidence" in entry else ""
        print(f"    expected  {short(entry['expected'])}\n    answered  {short(entry['answer'])}{confidence}")
    if figures.get("skipped"):
        from keras_ctxrep.text.files import skipped_rows

        print_line(f"\n{skipped_rows(figures['skipped'])}")


def _score_flags(flags: Flags) -> None:
    flags.add("folder", f"{FOLDER}; of a task model also a SavedModel folder or a .tflite file", model=True)
    flags.add("--data", "labelled examples, or text for a language model", metavar="FILE")
    flags.add("--analogies", "static word vectors: questions such as those of questions-words.txt", metavar="FILE")
    help = "static word vectors: pairs of words and how similar they are, such as those of WordSim-353"
    flags.add("--word-pairs", help, metavar="FILE")
    flags.add_options(options.Scoring)
    flags.add(
        "--predictions",
        "write text, expected and predicted label here, one JSON object a line",
        metavar="FILE.jsonl",
        writes=True,
    )
    flags.add("--json", "print one JSON object", action="store_true")
    flags.add(
        "--carry-state",
        "a biLM: carry the state through the text, instead of scoring each sentence by itself",
        action="store_true",
    )
    flags.add(
        "--lm",
        "a biLM: the log-probability of each sentence, one JSON object a line",
        action="store_true",
    )


COMMANDS = {
    "score": Command(
        _score,
        _score_flags,
        "evaluate on held-out data",
        "A task's metrics, with an interval and the worst examples; a biLM's\n"
        "full-softmax perplexity, or a BERT's MLM and NSP accuracy; of static word vectors analogies and similarities.",
    ),
}
