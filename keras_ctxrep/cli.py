"""The command `ctxrep`: parses, calls one function, prints."""

import argparse
import contextlib
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from keras_ctxrep import __version__, options
from keras_ctxrep.flags import Flags, given, grid

DESCRIPTION = """\
Contextual text representations in Keras, from raw text to TF Serving and to the edge.

  ctxrep demo                                                the whole pipeline on a small text, in a few minutes

  ctxrep pretrain elmo --corpus text.txt --minutes 30 --out lm            learn a language model from text
  ctxrep train --data train.tsv --dev dev.tsv --encoder lm --out mine     fine-tune it to classify
  ctxrep score mine --data test.tsv                                       evaluate it
  ctxrep export mine --out serving/mine                                   a SavedModel for TF Serving
  ctxrep tflite mine --quantize int8 --out mine.tflite                    a file for phones and boards
  echo "Some text" | ctxrep predict mine.tflite                           answers, without TensorFlow
"""


_FOLDER = "a model folder, or a name of `ctxrep zoo list` that is here"

# ------------------------------------------------------------------------------------------------------ subcommands


def _pretrain(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    values = given(args)
    if "steps" not in values and "minutes" not in values:
        values["minutes"] = 30.0
    history = recipes.pretrain(report=_print_evaluation, **values)
    _print_line(f"{args.out}: {history[-1]['step']} steps, {history[-1]['minutes']:.1f} minutes")


def _pretrain_flags(flags: Flags) -> None:
    flags.add("family", "what to train", choices=("elmo", "bert"))
    flags.add("--corpus", "text files, or a folder that `prepare` wrote", nargs="+", required=True, metavar="FILE")
    flags.add("--out", "the model folder to write", required=True, metavar="FOLDER")
    flags.add_options(
        options.Pretraining,
        minutes={"help": "length of the run in minutes (default: 30, unless --steps is given)"},
        learning_rate={"help": "peak learning rate, after a linear warm-up (default: 0.001, adagrad: 0.2)"},
    )


def _prepare(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    counts = recipes.prepare(**given(args))
    if counts["family"] == "elmo":
        text = f"{counts['sentences']:,} sentences of {counts['words'] / 1e6:.1f} million words"
    else:
        text = f"{counts['examples']:,} pairs of segments, {counts['pieces'] / 1e6:.1f} million pieces, "
        text += f"{counts['copies']} passes, {counts['valid_examples']:,} more pairs held out"
    _print_line(f"{args.out}: {text}, {len(counts['shards'])} shards")


def _prepare_flags(flags: Flags) -> None:
    flags.add("family", "whose pretraining", choices=("elmo", "bert"))
    flags.add("--corpus", "text files", nargs="+", required=True, metavar="FILE")
    flags.add("--out", "the folder to write", required=True, metavar="FOLDER")
    flags.add_options(options.Preparation)


def _train(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    values = given(args)
    if "sweep" in values or "seeds" in values:
        _sweep(values)
        return
    history = recipes.finetune(report=_print_evaluation, **values)
    metric = next(name for name in history[0] if name.startswith("val_"))
    best = max(entry[metric] for entry in history)
    _print_line(f"{args.out}: {metric.removeprefix('val_').replace('_', ' ')} on {args.dev}: {best:.4f}")


def _sweep(values: dict) -> None:
    from keras_ctxrep import recipes, tasks
    from keras_ctxrep.recipes import sweeping

    task = tasks.get(values.get("task", "classify"))
    try:
        options_to_try = grid(values.pop("sweep", []), options.Finetuning, task.Options)
    except ValueError as error:
        raise _Usage(f"train: --sweep {error}") from None
    rows = recipes.sweep(options_to_try, report=_print_evaluation, announce=_print_line, **values)
    print(f"\n{table(sweeping.table(rows, values.get('seed', 0)))}\n")
    best = rows[0]
    metric = best.metric.replace("_", " ")
    _print_line(f"{values['out']}: {best.best.name}: {metric} on {values['dev']}: {max(best.scores):.4f}")


def _train_flags(flags: Flags) -> None:
    from keras_ctxrep import tasks

    width = max(map(len, tasks.TASKS)) + 2
    listed = "\n".join(f"  {name:{width}}{task.help}" for name, task in tasks.TASKS.items())
    flags.parser.description = (
        f"Fine-tune a pretrained encoder.\n\n{listed}\n\n"
        "Files are .tsv with a header, .jsonl, CoNLL columns, SQuAD's JSON, also compressed, or tfds:NAME:SPLIT."
    )
    flags.add("--data", "labelled examples to learn from", required=True, metavar="FILE")
    flags.add("--dev", "labelled examples to choose the best weights by", required=True, metavar="FILE")
    flags.add(
        "--encoder",
        "a model folder of any task, a name of `ctxrep zoo list`, or `words`: embeddings learned from the data alone",
        required=True,
        metavar="FOLDER",
    )
    flags.add("--out", "the model folder to write", required=True, metavar="FOLDER")
    flags.add("--task", "the task (default: classify)", choices=tuple(tasks.TASKS))
    flags.add(
        "--sweep",
        "train with each of these values of an option, in every combination of several options; OUT is the best model, "
        "OUT/sweep has all, OUT/sweep.tsv the table",
        nargs="+",
        action="extend",
        metavar="NAME=X,Y",
    )
    flags.add(
        "--seeds",
        "train with N seeds each, from --seed on; combinations are compared by their mean (default: 1)",
        type=_positive,
        metavar="N",
    )
    flags.add_options(
        options.Finetuning,
        learning_rate={"help": "peak learning rate, after a linear warm-up (default: 0.001, BERT-base 3e-5)"},
    )
    for name, task in tasks.TASKS.items():
        flags.add_options(task.Options, prefix=f"{name}: ")


def _score(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    if args.lm:
        _score_sentences(args)
        return
    values = given(args)
    as_json = values.pop("json", False)
    values.pop("lm", None)
    figures = recipes.score(values.pop("folder"), values.pop("data"), **values)
    if as_json:
        print(json.dumps(figures, ensure_ascii=False))
    else:
        _print_figures(figures)


def _score_sentences(args: argparse.Namespace) -> None:
    refused = [name for name in ("carry_state", "columns", "skip_bad", "predictions", "json") if getattr(args, name)]
    if refused:
        flag = f"--{refused[0].replace('_', '-')}"
        reason = (
            "one JSON object for each sentence is what it prints" if refused[0] == "json" else "it scores sentences"
        )
        raise _Usage(f"score: leave out {flag} with --lm: {reason} of a text, each by itself")
    from keras_ctxrep import recipes
    from keras_ctxrep.text.corpus import documents

    sentences = (sentence for document in documents([args.data]) for sentence in document)
    for entry in recipes.score_sentences(args.folder, sentences):
        print(json.dumps(entry, ensure_ascii=False), flush=True)


def _print_figures(figures: dict) -> None:
    metric, interval = figures.get("metric"), figures.get("interval")
    for name, value in figures.items():
        if isinstance(value, int | float):
            shown = f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
            note = f"   95% of resamples: {interval[0]:.4f} to {interval[1]:.4f}" if name == metric and interval else ""
            print(f"{name.replace('_', ' '):20} {shown}{note}")
    if figures.get("table"):
        print(f"\n{table(figures['table'])}")
    if figures.get("worst"):
        print("\nworst")
    for entry in figures.get("worst", ()):
        print(f"  {entry['source']}\n    {_short(entry['input'])}")
        print(f"    expected  {_short(entry['expected'])}\n    answered  {_short(entry['answer'])}")
    if figures.get("skipped"):
        from keras_ctxrep.text.files import skipped_rows

        print(f"\n{skipped_rows(figures['skipped'])}")


def _score_flags(flags: Flags) -> None:
    flags.add("folder", _FOLDER)
    flags.add("--data", "labelled examples, or text for a language model", required=True, metavar="FILE")
    flags.add_options(options.Rows)
    flags.add("--predictions", "write the predictions here, one JSON object a line", metavar="FILE.jsonl")
    flags.add("--json", "print one JSON object", action="store_true", default=None)
    flags.add(
        "--carry-state",
        "a biLM: carry the state through the text, instead of scoring each sentence by itself",
        action="store_true",
        default=None,
    )
    flags.add(
        "--lm",
        "a biLM: the log-probability of each sentence, one JSON object a line",
        action="store_true",
        default=None,
    )


def _embed(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from keras_ctxrep import recipes

    values = given(args)
    sentences = _sentences(values.pop("input"))
    with tqdm(desc="embedding", unit=" sentences", file=sys.stderr, disable=None) as bar:
        count = recipes.embed(sentences=sentences, progress=lambda n: bar.update(n - bar.n), **values)
    _print_line(f"{args.out}: {count} sentences")


def _embed_flags(flags: Flags) -> None:
    flags.add("folder", _FOLDER)
    flags.add("--input", "a text file, or - for standard input", required=True, metavar="FILE")
    flags.add("--out", "FILE.npz or FILE.hdf5", required=True, metavar="FILE")
    flags.add_options(options.Embedding)


def _neighbours(args: argparse.Namespace) -> None:
    import shutil

    from keras_ctxrep import pictures

    values = given(args)
    as_json, sentences = values.pop("json", False), _sentences(values.pop("input"))
    neighbours = pictures.neighbours(sentences=sentences, **values)
    width = shutil.get_terminal_size().columns
    print(json.dumps(neighbours, ensure_ascii=False) if as_json else pictures.concordance(neighbours, width))


def _neighbours_flags(flags: Flags) -> None:
    flags.add("folder", _FOLDER)
    flags.add("--word", "the word", required=True)
    flags.add("--input", "a text file, or - for standard input", default="-", metavar="FILE")
    flags.add("--sentence", "a sentence with the word (default: the first one in the text)", metavar="TEXT")
    flags.add("-k", "how many (default: 10)", type=_positive, metavar="N")
    flags.add("--layer", "which vectors (default: the trained mix, else the top)", choices=("top", "mix", "mean"))
    flags.add("--json", "print one JSON array", action="store_true", default=None)


_PLOTS: dict[str, tuple[set[str], set[str]]] = {  # required and optional flags of each
    "mix": (set(), set()),
    "attention": ({"text"}, {"pair", "layer", "head"}),
    "senses": ({"word", "data"}, {"layer"}),
}


def _plot(args: argparse.Namespace) -> None:
    needed, optional = _PLOTS[args.kind]
    values = given(args)
    kind, folders, out = values.pop("kind"), values.pop("folders"), values.pop("out")
    wrong = [f"--{name} is missing" for name in sorted(needed - {*values})]
    wrong += [f"leave out --{name}" for name in sorted({*values} - needed - optional)]
    if len(folders) > 1 and needed:
        wrong.append("one FOLDER at a time")
    if wrong:
        raise _Usage(f"plot {kind}: {', '.join(wrong)}")
    from keras_ctxrep import zoo

    folders = [name if os.path.exists(name) else str(zoo.find(name)) for name in folders]
    {"mix": _plot_mix, "attention": _plot_attention, "senses": _plot_senses}[kind](folders, out, **values)
    _print_line(out)


def _plot_mix(folders: list[str], out: str) -> None:
    from keras_ctxrep import pictures

    for entry in pictures.mix(folders, out):
        weights = "  ".join(f"{layer}: {weight:.3f}" for layer, weight in enumerate(entry["weights"]))
        print(f"{entry['folder']}: {entry['mix']}  {weights}  gamma: {entry['gamma']:.3f}")


def _plot_attention(folders: list[str], out: str, **values) -> None:
    from keras_ctxrep import pictures

    layers, heads, length, _ = pictures.attention(folders[0], out=out, **values)["attention"].shape
    print(f"{length} pieces, {layers} layers, {heads} heads")


def _plot_senses(folders: list[str], out: str, **values) -> None:
    from keras_ctxrep import pictures

    senses = pictures.senses(folders[0], out=out, **values)
    accuracy = f"{senses['accuracy']:.1%} (the most frequent sense: {senses['majority']:.1%})"
    print(f"{len(senses['labels'])} sentences; nearest neighbour of the same sense: {accuracy}")
    for sense, recall in senses["recall"].items():
        print(f"  {sense}: {recall:.1%} of {senses['labels'].count(sense)}")


def _plot_flags(flags: Flags) -> None:
    flags.add("kind", "what to draw", choices=tuple(_PLOTS))
    flags.add("folders", "a model folder; mix: one or several", nargs="+", metavar="FOLDER")
    flags.add("--out", "the picture; attention: or an HTML page, FILE.html", required=True, metavar="FILE.png")
    flags.add("--text", "attention: the text")
    flags.add("--pair", "attention: a second text", metavar="TEXT")
    flags.add("--word", "senses: the word")
    flags.add("--data", "senses: sentences labelled with the word's sense, .tsv or .jsonl", metavar="FILE")
    flags.add(
        "--layer",
        "attention: its number, from 1, or all (default: the last); senses: top, mix or mean (default: the trained "
        "mix, else the top)",
        type=lambda text: int(text) if text.isdecimal() else text,
        metavar="N|NAME",
    )
    flags.add("--head", "attention: its number, from 1 (default: all)", type=_positive, metavar="N")


def _convert(args: argparse.Namespace) -> None:
    if (args.source_format is None) == (args.target_format is None):
        raise _Usage("convert: give either --from or --to")
    if args.pairs and args.source_format != "huggingface":
        raise _Usage("convert: --pairs is for --from huggingface")
    from keras_ctxrep import train, zoo
    from keras_ctxrep.convert import bert
    from keras_ctxrep.text.bundle import written_whole_folder

    converter = importlib.import_module(f"keras_ctxrep.convert.{args.source_format or args.target_format}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if args.source_format:
            model, bundle = converter.read(args.source, **({"pairs": True} if args.pairs else {}))
            with written_whole_folder(args.out, without=("checkpoint",)) as folder:
                train.save(folder, model, bundle)
        else:
            model, bundle = train.load(zoo.find(args.source))
            converter.write(args.out, model, bundle)
    for warning in caught:
        if warning.category is UserWarning:
            print(f"ctxrep: {warning.message}", file=sys.stderr)
    weights = f"{bundle.task}: {model.count_params() / 1e6:.1f} million weights"
    _print_line(f"{args.out}: {bert.summary(model, bundle) if 'heads' in bundle.config else weights}")


def _convert_flags(flags: Flags) -> None:
    flags.add(
        "source", "published weights (a folder, or the weight file); with --to, a model folder or a name of the zoo"
    )
    flags.add(
        "--from",
        "the format that is read",
        choices=("allennlp", "google", "huggingface", "kerashub", "vectors"),
        dest="source_format",
    )
    flags.add("--to", "the format that is written", choices=("allennlp", "huggingface"), dest="target_format")
    flags.add(
        "--pairs",
        "huggingface: the classifier reads pairs of texts (its files do not record this)",
        action="store_true",
    )
    flags.add("--out", "the folder to write", required=True, metavar="FOLDER")


def _zoo(args: argparse.Namespace) -> None:
    if (args.name is None) != (args.action == "list"):
        raise _Usage(f"zoo {args.action}: {'leave out NAME' if args.name else 'NAME is missing'}")
    if args.action == "get":
        _zoo_get(args)
        return
    if args.source is not None or args.mirror is not None:
        raise _Usage(f"zoo {args.action}: --from and --mirror are for get")
    from keras_ctxrep import zoo
    from keras_ctxrep.text import bundle

    entries = []
    for entry in zoo.ENTRIES if args.action == "list" else [zoo.lookup(args.name)]:
        folder = zoo.cached(entry, args.cache)
        entries.append(entry.as_dict() | {"cached": folder and str(folder)})
        if args.action == "show" and folder is not None and (card := bundle.load(folder).card):
            entries[-1]["card"] = card
    if args.json:
        print(json.dumps(entries if args.action == "list" else entries[0], indent=1, ensure_ascii=False))
    elif args.action == "list":
        rows = [["name", "family", "parameters", "casing", "licence", "source"]]
        for entry in entries:
            source = entry["format"] or "none"
            source = "cached" if entry["cached"] and source != "shipped" else source
            million = f"{entry['parameters'] / 1e6:.1f} M"
            rows.append([entry["name"], entry["family"], million, entry["casing"], entry["licence"], source])
        print(table(rows))
    else:
        _print_entry(entries[0])


def _zoo_get(args: argparse.Namespace) -> None:
    if args.json:
        raise _Usage("zoo get: --json is for list and show")
    from keras_ctxrep import hub, zoo

    if args.name.startswith(hub.PREFIX) or zoo.cached(zoo.lookup(args.name), args.cache) is None:
        _start_tensorflow()  # else its messages appear during the conversion
    print(zoo.get(args.name, args.source, args.mirror, args.cache, lambda line: print(line, file=sys.stderr)))


def _print_entry(entry: dict) -> None:
    card = entry.pop("card", "")
    for name, value in entry.items():
        lines = [f"{key} {item}" for key, item in value.items()] if isinstance(value, dict) else value
        for line in (lines or ["none"]) if isinstance(lines, list) else [lines or "none"]:
            print(f"{name:15} {f'{line:,}' if isinstance(line, int) else line}")
            name = ""
    if card:
        print(f"\n{card.strip()}")


def _zoo_flags(flags: Flags) -> None:
    flags.add("action", "what to do", choices=("list", "show", "get"))
    flags.add(
        "name",
        "SIZE/DATASET, or one of the two if no other model has it; get: hf://OWNER/NAME too, of the Hugging Face Hub",
        nargs="?",
        metavar="NAME",
    )
    flags.add("--json", "list, show: print JSON", action="store_true")
    flags.add(
        "--from",
        "get: a local copy of the published files: folder, archive or weight file",
        dest="source",
        metavar="PATH",
    )
    flags.add("--mirror", "get: address to download from in place of the publisher's", metavar="URL")
    flags.add("--cache", "folder of models (default: $CTXREP_CACHE, or ~/.cache/keras_ctxrep)", metavar="FOLDER")


def _export(args: argparse.Namespace) -> None:
    from keras_ctxrep_export import saved_model

    from keras_ctxrep import train

    print(saved_model.export(*train.load_served(args.folder), args.out))


def _export_flags(flags: Flags) -> None:
    flags.add("folder", _FOLDER)
    flags.add("--out", "where TF Serving looks for versions", required=True, metavar="BASE/NAME")


def _tflite(args: argparse.Namespace) -> None:
    from keras_ctxrep_tflite import quantize

    if sys.stderr.isatty():
        print("converting in a subprocess: about ten seconds for a small model", file=sys.stderr)
    values = given(args)
    out = quantize.convert(values.pop("folder"), values.pop("out"), **values)
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB")


def _tflite_flags(flags: Flags) -> None:
    from keras_ctxrep_tflite import quantize

    default = ",".join(map(str, quantize.LENGTHS))
    flags.add("folder", _FOLDER)
    flags.add("--out", "the file to write", required=True, metavar="FILE.tflite")
    flags.add("--quantize", "number format of weights and products (default: none)", choices=quantize.QUANTIZATIONS)
    flags.add(
        "--lengths",
        f"input lengths, in tokens; a text runs at the smallest that holds it (default: {default})",
        type=lambda text: tuple(int(part) for part in text.split(",")),
        metavar="N,N,...",
    )


def _predict(args: argparse.Namespace) -> None:
    from keras_ctxrep_tflite.compare import open_engine

    from keras_ctxrep.text.corpus import open_binary

    predictor = open_engine(args.artifact).predictor
    with contextlib.ExitStack() as stack:
        stream = sys.stdin.buffer if args.input == "-" else stack.enter_context(open_binary(args.input))
        for answer in predictor.lines(stream):
            print(json.dumps(answer, ensure_ascii=False), flush=True)


def _predict_flags(flags: Flags) -> None:
    flags.add("artifact", "a model folder, a SavedModel folder or a .tflite file")
    flags.add("--input", "a text file, or - for standard input", default="-", metavar="FILE")


def _compare(args: argparse.Namespace) -> None:
    from keras_ctxrep_tflite import compare

    values = given(args)
    engines = [compare.open_engine(path) for path in (args.folder, *args.artifacts)]
    rows = compare.compare(engines, list(engines[0].predictor.task.read(args.data, values.get("columns"))))
    print(json.dumps(rows) if args.json else table([list(compare.HEADER), *compare.table(rows)]))


def _compare_flags(flags: Flags) -> None:
    flags.add("folder", "the model folder, which is the reference")
    flags.add("artifacts", "SavedModel folders and .tflite files", nargs="+")
    flags.add("--data", "examples of the model's task", required=True, metavar="FILE")
    flags.add_options(options.Rows, without=("skip_bad",))
    flags.add("--json", "print one JSON array", action="store_true")


def _demo(args: argparse.Namespace) -> None:
    from keras_ctxrep import demo

    if not all(passed for passed, _ in demo.run(**given(args))["checks"]):
        raise SystemExit(1)


def _demo_flags(flags: Flags) -> None:
    flags.add(
        "--corpus",
        "pretrain on your own text, one sentence a line, an empty line between documents",
        nargs="+",
        metavar="FILE",
    )
    flags.add(
        "--out", "folder for the models and report.html; its contents are replaced (default: demo)", metavar="FOLDER"
    )
    flags.add("--minutes", "of pretraining (default: 1)", type=_positive_float, metavar="N")
    flags.add("--seed", "random seed (default: 0)", type=int, metavar="N")


# ----------------------------------------------------------------------------------------------------------- parser


@dataclass(frozen=True)
class _Command:
    """A subcommand: what it runs, its flags, and its help."""

    run: Callable[[argparse.Namespace], None]
    flags: Callable[[Flags], None]
    help: str
    description: str
    configurable: bool = False  # takes --config


COMMANDS = {
    "pretrain": _Command(
        _pretrain,
        _pretrain_flags,
        "learn an ELMo biLM or a BERT encoder from text",
        "Learn from plain text: UTF-8, one sentence a line, an empty line between documents; .gz, .bz2 and .xz are\n"
        "read as they are. The same command resumes an interrupted run.",
        True,
    ),
    "prepare": _Command(
        _prepare,
        _prepare_flags,
        "split a large text, and for BERT mask it, once before pretraining",
        "Writes shards to a folder, for `ctxrep pretrain FAMILY --corpus FOLDER`: for ELMo sentences split into\n"
        "words, for BERT pairs of segments with their masks. Without it, text is split and masked anew in every pass.\n"
        "The shards are the same for any number of processes and any runner, and the same command resumes an\n"
        "interrupted preparation.",
        True,
    ),
    "train": _Command(_train, _train_flags, "fine-tune an encoder for a task", "", True),
    "score": _Command(
        _score,
        _score_flags,
        "evaluate on held-out data",
        "A task's metrics, with an interval and the worst examples; a biLM's\n"
        "full-softmax perplexity, or a BERT's MLM and NSP accuracy.",
    ),
    "embed": _Command(
        _embed,
        _embed_flags,
        "write the vectors of sentences to a file",
        "One sentence a line in; one array per sentence out, under '0', '1', ...: (layers, tokens, width), or\n"
        "(tokens, width) for mix and top, (width,) for mean.",
    ),
    "neighbours": _Command(
        _neighbours,
        _neighbours_flags,
        "nearest neighbours of a word in context",
        "One sentence a line in; the words with the nearest vectors out, in their sentences. Every word is compared.",
    ),
    "plot": _Command(
        _plot,
        _plot_flags,
        "draw a scalar mix, attention, or the senses of a word",
        "mix        the weight of each layer in the scalar mixes of models\n"
        "attention  what the word pieces of a text attend to in a BERT\n"
        "senses     the vectors of a word in labelled sentences, in the colour of their sense",
    ),
    "convert": _Command(
        _convert,
        _convert_flags,
        "published weights to a model folder, and back",
        "With --from, reads published weights and writes a model folder; with --to, reads a model folder and writes\n"
        "the published format, and prints which heads were there.\n"
        "  allennlp     the options.json and hdf5 of AllenNLP and bilm-tf: ELMo\n"
        "  google       bert_config.json and a TensorFlow 1 checkpoint: BERT\n"
        "  huggingface  config.json and safetensors of `transformers`: BERT\n"
        "  kerashub     a preset of KerasHub, by its folder or name: BERT\n"
        "  vectors      word2vec text and binary, GloVe, fastText .vec and .bin: static word vectors",
    ),
    "zoo": _Command(
        _zoo,
        _zoo_flags,
        "published models by name",
        "list shows the published models, first those that come with the package; show gives the details of one,\n"
        "with its model card if it is here; get makes a model folder of it in the cache and prints its path. The\n"
        "same command resumes an interrupted download.",
    ),
    "export": _Command(
        _export,
        _export_flags,
        "write a SavedModel for TF Serving",
        "Writes the next version, BASE/NAME/1, 2, ..., with raw strings as its input.",
    ),
    "tflite": _Command(
        _tflite,
        _tflite_flags,
        "write a .tflite file for phones and boards",
        "One file that holds the model, its vocabulary and its labels.",
    ),
    "predict": _Command(
        _predict,
        _predict_flags,
        "predict line by line",
        "Prints one JSON object for each line of input, as soon as it is read: a text, or two with a tab\n"
        "between them for a model that reads pairs; JSON for tasks over marked spans. A .tflite file runs without\n"
        "TensorFlow.",
    ),
    "compare": _Command(
        _compare,
        _compare_flags,
        "agreement, quality, size and latency of a model's exports",
        "Runs the same texts through a model folder and its exports. Latencies are of single texts,\n"
        "alternating between the engines.",
    ),
    "demo": _Command(
        _demo,
        _demo_flags,
        "the whole way, in five minutes",
        "Goes on with the shipped BERT's pretraining for a minute, fine-tunes it and the same network with random\n"
        "weights to tag named entities, shows neighbours in context, exports the tagger as SavedModel and TFLite,\n"
        "predicts without TensorFlow, and writes report.html. Needs no network and no data: the text is Python's\n"
        "language reference, the messages are those of WNUT-2017, which come with the package. Ends with status 1\n"
        "if one of its checks fails.",
    ),
}


class _Usage(Exception):
    """Arguments that contradict each other."""


def parser(name: str | None = None) -> tuple[argparse.ArgumentParser, Flags | None]:
    """The command's parser; to start fast, only the named subcommand gets its flags."""
    main = argparse.ArgumentParser("ctxrep", description=DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter)
    main.add_argument("--version", action="version", version=f"keras_ctxrep {__version__}")
    subparsers = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = None
    for command_name, command in COMMANDS.items():
        sub = subparsers.add_parser(
            command_name,
            help=command.help,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(run=command.run)
        sub.add_argument("--debug", action="store_true", help="print the whole traceback of an error")
        if command.configurable:
            sub.add_argument(
                "--config", metavar="FILE.yaml", help="options from a file, or from the run.json of a model folder"
            )
        if command_name == name:
            chosen = Flags(sub)
            command.flags(chosen)
    return main, chosen


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    name = next((word for word in argv if not word.startswith("-")), None)
    main, flags = parser(name)
    if flags is not None and COMMANDS[str(name)].configurable:
        config = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        config.add_argument("--config")
        path = config.parse_known_args(argv)[0].config
        if path is not None:
            try:
                flags.configure(path, argv)
            except (OSError, ValueError) as error:
                main.error(str(error))
    return main.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit status: 0 done, 1 failed, 2 wrong usage."""
    args = _parse(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # off by default on some CPUs, where it is twice as fast
    os.environ["KERAS_BACKEND"] = "tensorflow"
    warnings.showwarning = lambda message, *_: print(f"ctxrep: {message}", file=sys.stderr)
    try:
        if not _without_tensorflow(args):
            _start_tensorflow()
        _published(args)
        config = getattr(args, "config", None) or ""
        if os.path.isdir(config) or os.path.basename(config) == "run.json":
            from keras_ctxrep.runs import options_from_run

            options_from_run(config)  # which warns of files that have changed
        args.run(args)
        return 0
    except _Usage as error:
        parser()[0].error(str(error))
    except BrokenPipeError:  # the reader of the output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("ctxrep: interrupted; the same command goes on from the last checkpoint, if it had one", file=sys.stderr)
    except Exception as error:
        message = _message(error)
        if message is None or args.debug:
            raise
        print(f"ctxrep: {message}", file=sys.stderr)
    return 1


# ---------------------------------------------------------------------------------------------------------- details


_EXTRAS = {"ai_edge_litert": "edge", "sklearn": "demo", "matplotlib": "plot"}  # module -> what installs it; else "tf"


def _message(error: Exception) -> str | None:
    """The message of an expected error; None for an internal one, which is raised again."""
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get(str(error.name).partition(".")[0], "tf")
        return f'{error.name} is not installed: pip install "keras_ctxrep[{extra}]"'
    if isinstance(error, ValueError | OSError | RuntimeError | ImportError):
        return str(error)
    if type(error).__module__.partition(".")[0] == "tensorflow":
        return f"TensorFlow: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return None


def _start_tensorflow() -> None:
    from keras_ctxrep_tflite.compare import quiet_stderr

    with quiet_stderr():
        import tensorflow as tf

        tf.get_logger().setLevel("ERROR")


def _without_tensorflow(args: argparse.Namespace) -> bool:
    return args.command == "zoo" or (args.command == "predict" and args.artifact.endswith(".tflite"))


def _published(args: argparse.Namespace) -> None:
    """Replaces the names of published models by their folders in the cache."""
    for option in ("folder", "encoder", "init", "extra_embeddings"):
        name = getattr(args, option, None)
        if name is not None and name != "words" and not os.path.exists(name):
            from keras_ctxrep import zoo

            setattr(args, option, str(zoo.find(name)))


def _positive(text: str, kind: Callable = int):
    value = kind(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0")
    return value


def _positive_float(text: str) -> float:
    return _positive(text, float)


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
    _print_line(f"step {entry['step']:>6}  {entry['minutes']:5.1f} min  loss {entry['loss']:.3f}  " + "  ".join(parts))


def _print_line(text: str) -> None:
    print(text, flush=True)


def _short(value) -> str:
    """A value on one line of at most 100 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a table, the first of them a header: the first column to the left, the others to the right."""
    from tabulate import tabulate

    align = ["left", *["right"] * (len(rows[0]) - 1)]
    return tabulate(rows[1:], rows[0], colalign=align, disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())
