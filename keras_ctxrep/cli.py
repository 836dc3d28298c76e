"""The command `ctxrep`: parses, calls one function, prints."""

import argparse
import ast
import contextlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from keras_ctxrep import __version__
from keras_ctxrep.options import Preparation, Pretraining

DESCRIPTION = """\
Contextual text representations in Keras, from raw text to TF Serving and to the edge.

  ctxrep demo                                                the whole way on a small text, in a few minutes

  ctxrep pretrain elmo --corpus text.txt --minutes 30 --out lm            learn a language model from text
  ctxrep train --data train.tsv --dev dev.tsv --encoder lm --out mine     fine-tune it to classify
  ctxrep score mine --data test.tsv                                       how good is it
  ctxrep export mine --out serving/mine                                   a SavedModel for TF Serving
  ctxrep tflite mine --quantize int8 --out mine.tflite                    a file for phones and boards
  echo "Some text" | ctxrep predict mine.tflite                           answers, without TensorFlow
"""


# ------------------------------------------------------------------------------------------------------ subcommands


def _pretrain(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    if args.steps is None and args.minutes is None:
        args.minutes = 30.0
    history = recipes.pretrain(report=_print_evaluation, **_given(args))
    _say(f"{args.out}: {history[-1]['step']} steps, {history[-1]['minutes']:.1f} minutes")


def _prepare(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    given = _given(args)
    given.pop("family")
    found = recipes.prepare(**given)
    share = f"{found['copies']} passes, {found['valid_examples']:,} more pairs held out"
    _say(f"{args.out}: {found['examples']:,} pairs of segments, {found['pieces'] / 1e6:.1f} million pieces, {share}")


def _train(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    given: dict = _given(args) | {"columns": _named(args)}
    history = recipes.finetune(report=_print_evaluation, **given)
    metric = next(name for name in history[0] if name.startswith("val_"))
    best = max(entry[metric] for entry in history)
    _say(f"{args.out}: {metric.removeprefix('val_').replace('_', ' ')} on {args.dev}: {best:.4f}")


def _score(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    if args.lm:
        if args.carry_state:
            parser().error("score: --lm scores each sentence by itself; leave out --carry-state")
        from keras_ctxrep.text.corpus import documents

        sentences = (sentence for document in documents([args.data]) for sentence in document)
        for found in recipes.score_sentences(args.folder, sentences):
            print(json.dumps(found, ensure_ascii=False), flush=True)
        return
    found = recipes.score(
        args.folder,
        args.data,
        carry_state=args.carry_state,
        columns=_named(args),
        skip_bad=args.skip_bad,
        predictions=args.predictions,
    )
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
        return
    metric, interval = found.get("metric"), found.get("interval")
    for name, value in found.items():
        if isinstance(value, int | float):
            shown = f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
            note = f"   95% of resamples: {interval[0]:.4f} to {interval[1]:.4f}" if name == metric and interval else ""
            print(f"{name.replace('_', ' '):20} {shown}{note}")
    if found.get("table"):
        print(f"\n{_columns(found['table'])}")
    if found.get("worst"):
        print("\nworst")
    for one in found.get("worst", ()):
        print(f"  {one['place']}\n    {_short(one['input'])}")
        print(f"    expected  {_short(one['expected'])}\n    answered  {_short(one['answer'])}")
    if found.get("skipped"):
        from keras_ctxrep.text.examples import skipped_rows

        print(f"\n{skipped_rows(found['skipped'])}")


def _embed(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from keras_ctxrep import recipes

    given = _given(args)
    sentences = _sentences(given.pop("input"))
    with tqdm(desc="embedding", unit=" sentences", file=sys.stderr, disable=None) as bar:
        count = recipes.embed(sentences=sentences, progress=lambda n: bar.update(n - bar.n), **given)
    _say(f"{args.out}: {count} sentences")


def _neighbours(args: argparse.Namespace) -> None:
    import shutil

    from keras_ctxrep import pictures

    given = _given(args)
    as_json, sentences = given.pop("json"), _sentences(given.pop("input"))
    found = pictures.neighbours(sentences=sentences, **given)
    width = shutil.get_terminal_size().columns
    print(json.dumps(found, ensure_ascii=False) if as_json else pictures.concordance(found, width))


def _plot(args: argparse.Namespace) -> None:
    needed, optional = {
        "mix": (set(), set()),
        "attention": ({"text"}, {"pair", "layer", "head"}),
        "senses": ({"word", "data"}, {"layer"}),
    }[args.kind]
    given = _given(args)
    kind, folders, out = given.pop("kind"), given.pop("folders"), given.pop("out")
    wrong = [f"--{name} is missing" for name in sorted(needed - {*given})]
    wrong += [f"leave out --{name}" for name in sorted({*given} - needed - optional)]
    if kind != "mix" and len(folders) > 1:
        wrong.append("one FOLDER at a time")
    if wrong:
        parser().error(f"plot {kind}: {', '.join(wrong)}")
    from keras_ctxrep import pictures, zoo

    folders = [name if os.path.exists(name) else str(zoo.find(name)) for name in folders]
    if kind == "mix":
        for one in pictures.mix(folders, out):
            shares = "  ".join(f"{layer}: {share:.3f}" for layer, share in enumerate(one["weights"]))
            print(f"{one['folder']}: {one['mix']}  {shares}  gamma: {one['gamma']:.3f}")
    elif kind == "attention":
        layers, heads, length, _ = pictures.attention(folders[0], out=out, **given)["attention"].shape
        print(f"{length} pieces, {layers} layers, {heads} heads")
    else:
        found = pictures.senses(folders[0], out=out, **given)
        shares = f"{found['accuracy']:.1%} (the most frequent sense: {found['majority']:.1%})"
        print(f"{len(found['labels'])} sentences; nearest neighbour of the same sense: {shares}")
        for sense, share in found["recall"].items():
            print(f"  {sense}: {share:.1%} of {found['labels'].count(sense)}")
    _say(out)


def _convert(args: argparse.Namespace) -> None:
    if (args.source_format is None) == (args.target_format is None):
        parser().error("convert: give either --from or --to")
    if args.pairs and args.source_format != "huggingface":
        parser().error("convert: --pairs is for --from huggingface")
    from keras_ctxrep import train
    from keras_ctxrep.convert import bert

    converter = importlib.import_module(f"keras_ctxrep.convert.{args.source_format or args.target_format}")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if args.source_format:
            model, bundle = converter.read(args.source, **({"pairs": True} if args.pairs else {}))
            train.save(args.out, model, bundle)
        else:
            model, bundle = train.load(args.source)
            converter.write(args.out, model, bundle)
    for warning in found:
        if warning.category is UserWarning:
            print(f"ctxrep: {warning.message}", file=sys.stderr)
    weights = f"{bundle.task}: {model.count_params() / 1e6:.1f} million weights"
    _say(f"{args.out}: {bert.summary(model, bundle) if bundle.family == 'bert' else weights}")


def _zoo(args: argparse.Namespace) -> None:
    from keras_ctxrep import zoo

    if (args.name is None) != (args.action == "list"):
        parser().error(f"zoo {args.action}: {'leave out NAME' if args.name else 'NAME is missing'}")
    if args.action == "get":
        if args.json:
            parser().error("zoo get: --json is for list and show")
        if zoo.cached(zoo.lookup(args.name), args.cache) is None:
            from keras_ctxrep_tflite.compare import quiet_stderr

            with quiet_stderr():
                import tensorflow  # noqa: F401, which would talk in the middle of the conversion
        print(zoo.get(args.name, args.source, args.mirror, args.cache, lambda line: print(line, file=sys.stderr)))
        return
    if args.source is not None or args.mirror is not None:
        parser().error(f"zoo {args.action}: --from and --mirror are for get")
    found = []
    for entry in zoo.ENTRIES if args.action == "list" else [zoo.lookup(args.name)]:
        folder = zoo.cached(entry, args.cache)
        found.append(entry.as_dict() | {"cached": folder and str(folder)})
    if args.json:
        print(json.dumps(found if args.action == "list" else found[0], indent=1, ensure_ascii=False))
    elif args.action == "list":
        rows = [["name", "family", "parameters", "casing", "licence", "source"]]
        for one in found:
            source = "cached" if one["cached"] else one["format"] or "none"
            million = f"{one['parameters'] / 1e6:.1f} M"
            rows.append([one["name"], one["family"], million, one["casing"], one["licence"], source])
        print(_columns(rows))
    else:
        for name, value in found[0].items():
            lines = [f"{key} {entry}" for key, entry in value.items()] if isinstance(value, dict) else value
            for line in (lines or ["none"]) if isinstance(lines, list) else [lines or "none"]:
                print(f"{name:15} {f'{line:,}' if isinstance(line, int) else line}")
                name = ""


def _export(args: argparse.Namespace) -> None:
    from keras_ctxrep_export import saved_model

    from keras_ctxrep import train

    print(saved_model.export(*train.load_served(args.folder), args.out))


def _tflite(args: argparse.Namespace) -> None:
    from keras_ctxrep_tflite import quantize

    if sys.stderr.isatty():
        print("converting, in a process of its own: some ten seconds for a small model", file=sys.stderr)
    out = quantize.convert(args.folder, args.out, args.quantize, args.lengths)
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB")


def _predict(args: argparse.Namespace) -> None:
    from keras_ctxrep_tflite.compare import open_engine

    from keras_ctxrep.text.corpus import open_binary

    predictor = open_engine(args.artifact).predictor
    with contextlib.ExitStack() as stack:
        stream = sys.stdin.buffer if args.input == "-" else stack.enter_context(open_binary(args.input))
        for answer in predictor.lines(stream):
            print(json.dumps(answer, ensure_ascii=False), flush=True)


def _compare(args: argparse.Namespace) -> None:
    from keras_ctxrep_tflite import compare

    from keras_ctxrep.text.examples import read

    engines = [compare.open_engine(path) for path in (args.folder, *args.artifacts)]
    task = engines[0].predictor.bundle.task
    rows = compare.compare(engines, list(read("classify" if task == "embed" else task, args.data, _named(args))))
    if args.json:
        print(json.dumps(rows))
    else:
        print(_columns([list(compare.HEADER), *compare.table(rows)]))


def _demo(args: argparse.Namespace) -> None:
    from keras_ctxrep import demo

    demo.run(**_given(args))


# ----------------------------------------------------------------------------------------------------------- parser


def parser() -> argparse.ArgumentParser:
    """The command's parser, with one subparser per subcommand."""
    main = argparse.ArgumentParser("ctxrep", description=DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter)
    main.add_argument("--version", action="version", version=f"keras_ctxrep {__version__}")
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run, function: str | None, help: str, description: str):
        """A subcommand, and a function that adds an option whose default is that of `function`'s parameter."""
        sub = commands.add_parser(
            name, help=help, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        sub.set_defaults(run=run)

        def option(flag: str, help: str, **kwargs):
            dest = flag.lstrip("-").replace("-", "_")
            if function is not None and flag.startswith("-") and not kwargs.get("required"):
                default = _default(function, dest)
                if default is not None and "action" not in kwargs:
                    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
                    kwargs["default"], help = default, f"{help} (default: {shown})"
            sub.add_argument(flag, help=help, **kwargs)

        return option

    def columns(option) -> None:
        option(
            "--columns",
            "what a text, pair or label is called in the files, or its number where they have no header:\n"
            "text=sentence label=gold, text=6 pair=7 label=5",
            nargs="+",
            type=_column,
            metavar="NAME=COLUMN",
        )

    def rows(option) -> None:
        columns(option)
        option("--skip-bad", "leave malformed rows out, and count and list them", action="store_true")

    def training(option) -> None:
        option("--steps", "length of the run in steps", type=_positive(int), metavar="N")
        option(
            "--minutes",
            "length of the run in minutes (pretrain: 30, unless --steps is given)",
            type=_positive(float),
            metavar="N",
        )
        option("--batch-size", "examples per step, over all devices", type=_positive(int), metavar="N")
        option(
            "--learning-rate",
            "its peak, after a linear warm-up (pretrain: 0.001, adagrad: 0.2; train: 0.001, BERT-base 3e-5)",
            type=_positive(float),
            metavar="X",
        )
        option("--dropout", "while training", type=float, metavar="X")
        option("--precision", "a Keras dtype policy, e.g. mixed_bfloat16", metavar="NAME")
        option("--seed", "of every random choice", type=int, metavar="N")
        option("--tensorboard", "write TensorBoard logs into this folder", metavar="FOLDER")

    option = command(
        "pretrain",
        _pretrain,
        "keras_ctxrep.recipes.pretraining.pretrain",
        "learn an ELMo biLM or a BERT encoder from text",
        "Learn from plain text: UTF-8, one sentence a line, an empty line between documents; .gz, .bz2 and .xz are\n"
        "read as they are. A run that was interrupted goes on where it was when the same command is given again.",
    )
    option("family", "what to train", choices=("elmo", "bert"))
    option("--corpus", "text files; BERT: or a folder that `prepare` wrote", nargs="+", required=True, metavar="FILE")
    option("--out", "the model folder to write", required=True, metavar="FOLDER")
    option(
        "--size", "a published size, e.g. elmo_2x1024_128_2048cnn_1xhighway or bert_12_768_12 (default: a small one)"
    )
    option("--valid", "held-out text (default: a tenth of the corpus)", metavar="FILE")
    option("--vocab", "a vocabulary file, one entry a line (default: learned from the corpus)", metavar="FILE")
    option("--vocab-size", "entries of a learned vocabulary, at most", type=_positive(int), metavar="N")
    option("--cased", "BERT: keep case and accents", action="store_true")
    option("--min-count", "ELMo: a word of a learned vocabulary occurs so often", type=_positive(int), metavar="N")
    option(
        "--init",
        "start from this model folder, as to adapt it to a domain, or to go on with longer texts",
        metavar="FOLDER",
    )
    option("--read-words", "ELMo: read the vocabulary's words instead of characters", action="store_true")
    option("--max-length", "tokens per example; longer ones are cut", type=_positive(int), metavar="N")
    option("--whole-words", "BERT: mask all pieces of a word together", action="store_true")
    option(
        "--unroll",
        "ELMo: learn from running text, N words at a step, the state carried on (published: 20; default: from whole "
        "sentences)",
        type=_positive(int),
        metavar="N",
    )
    option(
        "--samples",
        "ELMo: words that the softmax draws at a step (published: 8192; default: the full softmax)",
        type=_positive(int),
        metavar="N",
    )
    option("--optimizer", "adagrad is ELMo's published recipe", choices=("adamw", "adagrad"))
    option("--evaluations", "how often to validate, evenly over the run", type=_positive(int), metavar="N")
    option("--checkpoint-minutes", "time between two checkpoints", type=_positive(float), metavar="N")
    training(option)

    option = command(
        "prepare",
        _prepare,
        "keras_ctxrep.recipes.pretraining.prepare",
        "mask a text for BERT's pretraining, once and for all",
        "Writes pairs of segments with their masks to a folder, for `ctxrep pretrain bert --corpus FOLDER`: every run\n"
        "over it then reads the same examples. Without it, masks are drawn anew in every pass.",
    )
    option("family", "whose pretraining", choices=("bert",))
    option("--corpus", "text files", nargs="+", required=True, metavar="FILE")
    option("--out", "the folder to write", required=True, metavar="FOLDER")
    option("--valid", "held-out text (default: a tenth of the corpus)", metavar="FILE")
    option("--vocab", "a vocabulary file, one piece a line (default: learned from the corpus)", metavar="FILE")
    option("--vocab-size", "pieces of a learned vocabulary, at most", type=_positive(int), metavar="N")
    option("--cased", "keep case and accents", action="store_true")
    option("--init", "the model folder that will be started from: its vocabulary and casing", metavar="FOLDER")
    option("--max-length", "pieces per example", type=_positive(int), metavar="N")
    option("--whole-words", "mask all pieces of a word together", action="store_true")
    option("--copies", "passes over the text, each with masks of its own", type=_positive(int), metavar="N")
    option("--seed", "of every random choice", type=int, metavar="N")

    option = command(
        "train",
        _train,
        "keras_ctxrep.recipes.finetuning.finetune",
        "fine-tune an encoder for a task",
        "Fine-tune a pretrained encoder.\n\n"
        "  classify    one label for a text or a pair        text, label[, pair]\n"
        "  pair        the same, and all must be pairs       text, pair, label\n"
        "  multilabel  any number of labels                  text, label (a,b,c)\n"
        "  regress     a number for a text or a pair         text, label[, pair]\n"
        "  tag         one label for each word               CoNLL columns, or words, tags\n"
        "  answer      the span that answers a question      SQuAD's JSON, or question, context, answers\n\n"
        "Files are .tsv with a header, .jsonl, CoNLL columns, SQuAD's JSON, also compressed, or tfds:NAME:SPLIT.",
    )
    option(
        "--task",
        "what to learn",
        choices=("classify", "pair", "multilabel", "regress", "tag", "answer"),
    )
    option("--data", "labelled examples to learn from", required=True, metavar="FILE")
    option("--dev", "labelled examples to choose the best weights by", required=True, metavar="FILE")
    option(
        "--encoder",
        "a model folder of any task, a name of `ctxrep zoo list`, or `words`: embeddings learned from the data alone",
        required=True,
        metavar="FOLDER",
    )
    option("--out", "the model folder to write", required=True, metavar="FOLDER")
    rows(option)
    option(
        "--epochs",
        "passes over the data, unless --steps or --minutes is given (default: 3 for BERT, else 10)",
        type=_positive(float),
        metavar="X",
    )
    option(
        "--patience",
        "end after so many evaluations without a better one (default: 3, one an epoch)",
        type=_positive(int),
        metavar="N",
    )
    option("--max-length", "tokens per text (default: as the encoder was trained)", type=_positive(int), metavar="N")
    option("--mix", "read a scalar mix of all layers, as ELMo does anyway", action="store_true", default=None)
    option(
        "--freeze",
        "train the head alone (default: for ELMo)",
        action=argparse.BooleanOptionalAction,
        default=None,
    )
    option("--stack", "a task network over the encoder", choices=("lstm", "gru", "cnn"))
    option("--units", "width of the task network, in each direction", type=_positive(int), metavar="N")
    option("--beside", "static vectors that the task network reads too, beside an ELMo", metavar="FOLDER")
    option("--both-ends", "ELMo at the task network's output too", action="store_true")
    option("--top-only", "the top layer instead of a mix, under a task network", action="store_true")
    option("--crf", "tag: choose a sentence's labels together", action="store_true")
    option("--stride", "answer: pieces from one window of a long text to the next", type=_positive(int), metavar="N")
    option("--max-answer", "answer: pieces of the longest one", type=_positive(int), metavar="N")
    option("--from-scratch", "start from random weights, as a baseline", action="store_true")
    training(option)

    option = command(
        "score",
        _score,
        None,
        "measure a model on held-out data",
        "The figures of a task model with a bootstrap interval, where it goes wrong, and its worst examples; a biLM's\n"
        "full-softmax perplexity, or a BERT's MLM and NSP accuracy.",
    )
    option("folder", "a model folder")
    option("--data", "labelled examples, or text for a language model", required=True, metavar="FILE")
    rows(option)
    option("--predictions", "write the answers here, one JSON object a line", metavar="FILE.jsonl")
    option("--json", "print one JSON object", action="store_true")
    option("--carry-state", "a biLM: score the text as it runs on, not sentence by sentence", action="store_true")
    option("--lm", "a biLM: the log-probability of each sentence, one JSON object a line", action="store_true")

    option = command(
        "embed",
        _embed,
        "keras_ctxrep.recipes.embedding.embed",
        "write the vectors of sentences to a file",
        "One sentence a line in; one array per sentence out, under '0', '1', ...: (layers, tokens, width), or\n"
        "(tokens, width) for mix and top, (width,) for mean.",
    )
    option("folder", "a model folder of any task")
    option("--input", "a text file, or - for standard input", required=True, metavar="FILE")
    option("--out", "FILE.npz or FILE.hdf5", required=True, metavar="FILE")
    option("--layers", "which vectors", choices=("all", "mix", "top", "mean"))
    option("--words", "the input is split into words already, at spaces", action="store_true")
    option("--carry-state", "ELMo: go on from batch to batch in each row, as bilm-tf does", action="store_true")
    option("--batch-size", "sentences computed together", type=_positive(int), metavar="N")
    option("--cache", "ELMo: words, one a line, whose token vectors are computed once and kept", metavar="VOCAB.txt")

    option = command(
        "neighbours",
        _neighbours,
        "keras_ctxrep.pictures.neighbours",
        "the words in context nearest to a word in its own",
        "One sentence a line in; the words with the nearest vectors out, in their sentences. Every word is compared.",
    )
    option("folder", "a model folder of any task")
    option("--word", "the word", required=True)
    option("--input", "a text file, or - for standard input", default="-", metavar="FILE")
    option("--sentence", "where the word stands (default: the first sentence that has it)", metavar="TEXT")
    option("-k", "how many", type=_positive(int), metavar="N")
    option("--layer", "which vectors (default: the trained mix, else the top)", choices=("top", "mix", "mean"))
    option("--json", "print one JSON array", action="store_true")

    option = command(
        "plot",
        _plot,
        None,
        "draw a scalar mix, attention, or the senses of a word",
        "mix        how much of each layer the scalar mixes of models take\n"
        "attention  what the word pieces of a text attend to in a BERT\n"
        "senses     the vectors of a word in labelled sentences, in the colour of their sense",
    )
    option("kind", "what to draw", choices=("mix", "attention", "senses"))
    option("folders", "a model folder; mix: or several", nargs="+", metavar="FOLDER")
    option("--out", "the picture; attention: or a page, FILE.html", required=True, metavar="FILE.png")
    option("--text", "attention: the text")
    option("--pair", "attention: a second text", metavar="TEXT")
    option("--word", "senses: the word")
    option("--data", "senses: sentences labelled with the word's sense, .tsv or .jsonl", metavar="FILE")
    option(
        "--layer",
        "attention: its number, from 1, or all (default: the last); senses: top, mix or mean (default: the trained "
        "mix, else the top)",
        type=lambda text: int(text) if text.isdecimal() else text,
        metavar="N|NAME",
    )
    option("--head", "attention: its number, from 1 (default: all)", type=_positive(int), metavar="N")

    option = command(
        "convert",
        _convert,
        None,
        "published weights to a model folder, and back",
        "With --from, reads published weights and writes a model folder; with --to, reads a model folder and writes\n"
        "the published format, and prints which heads were there.\n"
        "  allennlp     the options.json and hdf5 of AllenNLP and bilm-tf: ELMo\n"
        "  google       bert_config.json and a TensorFlow 1 checkpoint: BERT\n"
        "  huggingface  config.json and safetensors of `transformers`: BERT\n"
        "  kerashub     a preset of KerasHub, by its folder or name: BERT\n"
        "  vectors      word2vec text and binary, GloVe, fastText .vec and .bin: static word vectors",
    )
    option("source", "published weights (a folder, or the weight file), or a model folder")
    option(
        "--from",
        "the format that is read",
        choices=("allennlp", "google", "huggingface", "kerashub", "vectors"),
        dest="source_format",
    )
    option("--to", "the format that is written", choices=("allennlp", "huggingface"), dest="target_format")
    option("--pairs", "huggingface: a classifier of pairs of texts, which its files do not say", action="store_true")
    option("--out", "the folder to write", required=True, metavar="FOLDER")

    option = command(
        "zoo",
        _zoo,
        "keras_ctxrep.zoo.get",
        "published models by name",
        "list shows the published models, show what is known of one, and get makes a model folder of it in the cache\n"
        "and prints its path. The same command given again goes on with a download that was interrupted.",
    )
    option("action", "what to do", choices=("list", "show", "get"))
    option("name", "SIZE/DATASET, or one of the two if no other model has it", nargs="?", metavar="NAME")
    option("--json", "list, show: print JSON", action="store_true")
    option(
        "--from",
        "get: the published files, already here: folder, archive or weight file",
        dest="source",
        metavar="PATH",
    )
    option("--mirror", "get: address to download from in place of the publisher's", metavar="URL")
    option("--cache", "folder of models (default: $CTXREP_CACHE, or ~/.cache/keras_ctxrep)", metavar="FOLDER")

    option = command(
        "export",
        _export,
        None,
        "write a SavedModel for TF Serving",
        "Writes the next version, BASE/NAME/1, 2, ..., with raw strings as its input.",
    )
    option("folder", "a model folder")
    option("--out", "where TF Serving looks for versions", required=True, metavar="BASE/NAME")

    option = command(
        "tflite",
        _tflite,
        "keras_ctxrep_tflite.quantize.convert",
        "write a .tflite file for phones and boards",
        "One file that holds the model, its vocabulary and its labels.",
    )
    option("folder", "a model folder")
    option("--out", "the file to write", required=True, metavar="FILE.tflite")
    option("--quantize", "of weights and products", choices=("none", "int8"))
    option(
        "--lengths",
        "input lengths, in tokens; a text runs at the smallest that holds it",
        type=_lengths,
        metavar="N,N,...",
    )

    option = command(
        "predict",
        _predict,
        None,
        "answer line by line",
        "Prints one JSON object for each line of input, as soon as the line is there. A .tflite file runs without\n"
        "TensorFlow.",
    )
    option("artifact", "a model folder, a SavedModel folder or a .tflite file")
    option("--input", "a text file, or - for standard input", default="-", metavar="FILE")

    option = command(
        "compare",
        _compare,
        None,
        "agreement, quality, size and latency of a model's exports",
        "Runs the same texts through a model folder and its exports. Latencies are of single texts, in turns.",
    )
    option("folder", "the model folder, which is the reference")
    option("artifacts", "SavedModel folders and .tflite files", nargs="+")
    option("--data", "examples of the model's task", required=True, metavar="FILE")
    columns(option)
    option("--json", "print one JSON array", action="store_true")

    option = command(
        "demo",
        _demo,
        "keras_ctxrep.demo.run",
        "the whole way, in a few minutes",
        "Pretrains a small biLM and a small BERT, fine-tunes both beside baselines, exports them as SavedModel\n"
        "and TFLite, predicts without TensorFlow, and writes a report. Without --corpus the text is the language\n"
        "reference that every Python carries.",
    )
    option("--corpus", "your own text, one sentence a line, an empty line between documents", nargs="+", metavar="FILE")
    option("--out", "folder for the models and report.md; it is written anew", metavar="FOLDER")
    option("--minutes", "time for the two pretrainings together", type=_positive(float), metavar="N")
    option("--seed", "of every random choice", type=int, metavar="N")
    return main


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit status: 0 done, 1 failed, 2 wrong usage."""
    args = parser().parse_args(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # off by default on some CPUs, where it is twice as fast
    os.environ["KERAS_BACKEND"] = "tensorflow"
    warnings.showwarning = lambda message, *_: print(f"ctxrep: {message}", file=sys.stderr)
    try:
        if not _without_tensorflow(args):
            from keras_ctxrep_tflite.compare import quiet_stderr

            with quiet_stderr():
                import tensorflow as tf

                tf.get_logger().setLevel("ERROR")
        _published(args)
        args.run(args)
        return 0
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("ctxrep: interrupted; the same command goes on from the last checkpoint, if it had one", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        extra = "edge" if "litert" in str(error.name) else "tf"
        print(f'ctxrep: {error.name} is not installed: pip install "keras_ctxrep[{extra}]"', file=sys.stderr)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"ctxrep: {error}", file=sys.stderr)
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "tensorflow":
            raise  # a fault of ours
        print(f"ctxrep: TensorFlow: {type(error).__name__}: {str(error).strip().splitlines()[0]}", file=sys.stderr)
    return 1


# ---------------------------------------------------------------------------------------------------------- details


def _without_tensorflow(args: argparse.Namespace) -> bool:
    return args.command == "zoo" or (args.command == "predict" and args.artifact.endswith(".tflite"))


def _published(args: argparse.Namespace) -> None:
    """Where a model folder is meant, the name of a published model in the cache does as well."""
    for option in ("folder", "encoder", "init", "beside"):
        name = getattr(args, option, None)
        if name is not None and name != "words" and not os.path.exists(name):
            from keras_ctxrep import zoo

            setattr(args, option, str(zoo.find(name)))


def _given(args: argparse.Namespace) -> dict:
    """The arguments as keywords of the function behind the command; what was not given is left to its defaults."""
    return {name: value for name, value in vars(args).items() if name not in ("command", "run") and value is not None}


def _column(text: str) -> tuple[str, str]:
    name, sign, column = text.partition("=")
    if not (name and sign and column):
        raise argparse.ArgumentTypeError(f"{text}: write NAME=COLUMN, e.g. text=sentence")
    return name, column


def _named(args: argparse.Namespace) -> dict[str, str] | None:
    """The columns' names that were given."""
    return dict(args.columns) if args.columns else None


@cache
def _signatures(module: str) -> dict[str, dict]:
    """The parameters' literal defaults of every function of a module, read from its source: nothing is imported."""
    package, *names = module.split(".")
    spec = importlib.util.find_spec(package)  # of a module in a folder this would import the folder's __init__.py
    assert spec is not None and spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0], *names).with_suffix(".py")
    found = {}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names = [arg.arg for arg in node.args.args][len(node.args.args) - len(node.args.defaults) :]
            found[node.name] = {
                name: ast.literal_eval(default) if isinstance(default, ast.Constant | ast.Tuple) else None
                for name, default in zip(names, node.args.defaults, strict=True)
            }
    return found


def _default(function: str, parameter: str):
    module, _, name = function.rpartition(".")
    if name in ("pretrain", "prepare"):
        return getattr({"pretrain": Pretraining, "prepare": Preparation}[name], parameter, None)
    return _signatures(module)[name].get(parameter)


def _positive(kind: type):
    def parse(text: str):
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text}: must be above 0")
        return value

    parse.__name__ = kind.__name__  # what argparse calls it in its message
    return parse


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _sentences(path: str) -> Iterator[str]:
    """Lines of a file or of standard input, without line ends."""
    from keras_ctxrep.text.corpus import lines

    if path == "-":
        yield from (line.rstrip("\r\n") for line in sys.stdin)
    else:
        yield from (line for _, line in lines(path))


def _print_evaluation(entry: dict) -> None:
    shown = {name: value for name, value in entry.items() if name.startswith("val_") and "loss" not in name}
    parts = [f"{name.removeprefix('val_').replace('_logits_', ' ')} {value:.4g}" for name, value in shown.items()]
    _say(f"step {entry['step']:>6}  {entry['minutes']:5.1f} min  loss {entry['loss']:.3f}  " + "  ".join(parts))


def _say(text: str) -> None:
    print(text, flush=True)


def _short(value) -> str:
    """A value on one line of at most 100 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """A table: the first column to the left, the others to the right, a rule under the first row."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


if __name__ == "__main__":
    sys.exit(main())
