"""Learning: pretraining, preparation of its text, fine-tuning, evaluation."""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from keras_ctxrep import options
from keras_ctxrep.cli.command import (
    FOLDER,
    Command,
    Kind,
    Usage,
    positive,
    print_error,
    print_evaluation,
    print_line,
    short,
    table,
)
from keras_ctxrep.cli.flags import Flags, file_or_fraction, grid, options_of, values_of
from keras_ctxrep.models import tuning

MINUTES = 30.0  # of pretraining and of distillation from text, unless --steps is given
PRETRAIN = """\
Text files are UTF-8, one sentence a line, an empty line between documents; .gz, .bz2 and .xz are read as
they are. The same command resumes an interrupted run."""
PREPARE = """\
Writes shards to a folder, for `ctxrep pretrain FAMILY --corpus FOLDER`: for ELMo sentences split into
words, for BERT pairs of segments with their masks. Without it, text is split and masked anew in every pass.
The shards are the same for any number of processes and any runner, and the same command resumes an
interrupted preparation."""
PREPARED = {  # family -> help, and the options that it does not have
    "elmo": ("sentences split into words, for `ctxrep pretrain elmo --corpus FOLDER`", ("max_length",)),
    "bert": ("pairs of segments with their masks, for `ctxrep pretrain bert --corpus FOLDER`", ()),
}
DEV = 0.1  # fraction of the labelled examples that is held out, unless --dev is given


def _pretrain(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    if _is_static(args.family):
        chosen = options_of(options.StaticPretraining, args)
        history = recipes.pretrain_static(args.corpus, args.out, print_evaluation, options=chosen)
    else:
        if args.steps is None and args.minutes is None:
            args.minutes = MINUTES
        chosen = options_of(options.Pretraining, args)
        history = recipes.pretrain(args.family, args.corpus, args.out, print_evaluation, options=chosen)
    print_line(f"{args.out}: {history[-1]['step']} steps, {history[-1]['minutes']:.1f} minutes")


def _is_static(family: str) -> bool:
    """Whether it is pretrained by other recipes, with options of its own."""
    return family == "static"


def _pretrain_flags(flags: Flags, family: str) -> None:
    prepared = ", or a folder that `prepare` wrote" if family in PREPARED else ""
    flags.add("--corpus", f"text files{prepared}", nargs="+", required=True, metavar="FILE")
    flags.add("--out", "the model folder to write", required=True, metavar="FOLDER")
    if _is_static(family):
        rates = "of skipgram 0.025, of cbow 0.05, with --adagrad 0.1"
        flags.add_options(options.StaticPretraining, defaults={"learning_rate": rates})
        return
    rates = ", ".join(
        f"{name} {rate:g}"
        for name, rate in options.Pretraining.RATES.items()
        if (family, name) != ("bert", "adagrad")  # which it does not have
    )
    defaults = {"minutes": f"{MINUTES:g}, unless --steps is given", "learning_rate": rates}
    flags.add_options(options.Pretraining, defaults=defaults, family=family)


def _prepare(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    chosen = options_of(options.Preparation, args)
    counts = recipes.prepare(args.corpus, args.out, args.family, options=chosen)
    if "sentences" in counts:
        text = f"{counts['sentences']:,} sentences of {counts['words'] / 1e6:.1f} million words"
    else:
        text = f"{counts['examples']:,} pairs of segments, {counts['pieces'] / 1e6:.1f} million pieces, "
        text += f"{counts['copies']} passes, {counts['valid_examples']:,} more pairs held out"
    print_line(f"{args.out}: {text}, {len(counts['shards'])} shards")


def _prepare_flags(flags: Flags, family: str) -> None:
    flags.add("--corpus", "text files", nargs="+", required=True, metavar="FILE")
    flags.add("--out", "the folder to write", required=True, metavar="FOLDER")
    flags.add_options(options.Preparation, without=PREPARED[family][1], family=family)


def _train(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    if args.sweep is not None or args.seeds is not None:
        _sweep(args)
        return
    history = recipes.finetune(
        args.data,
        args.dev,
        args.encoder,
        args.out,
        args.task,
        print_evaluation,
        print_error,
        options=options_of(options.Finetuning, args),
        task_options=_task_options(args),
    )
    _print_best(args, history)


def _print_best(args: argparse.Namespace, history: list[dict]) -> None:
    from keras_ctxrep import tasks

    metric = next(name for name in history[0] if name.startswith("val_")).removeprefix("val_")
    choose = min if any(metric in task.smaller for task in tasks.TASKS.values()) else max
    best = choose(entry[f"val_{metric}"] for entry in history)
    print_line(f"{args.out}: {metric.replace('_', ' ')} on {_dev_name(args)}: {best:.4f}")


def _dev_name(args: argparse.Namespace) -> str:
    return args.dev if isinstance(args.dev, str) else f"{100 * args.dev:g}% of {args.data}, held out"


def _distill(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    if args.corpus:
        _distill_from_text(args)
        return
    if args.data is None:
        raise Usage("distill: give --data, labelled examples of a fine-tuned teacher, or --corpus, text")
    args.dev = DEV if args.dev is None else args.dev
    history = recipes.distill(
        args.teacher,
        args.data,
        args.dev,
        args.out,
        args.encoder,
        print_evaluation,
        print_error,
        options=options_of(options.Distillation, args),
        task_options=_task_options(args),
    )
    _print_best(args, history)


def _distill_from_text(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    kind, other = options.EncoderDistillation, options.StaticDistillation
    if args.static:
        kind, other = other, kind
    own, of_other = ({entry.name for entry in dataclasses.fields(each)} for each in (kind, other))
    others = ["data", "dev", "encoder", *values_of(options.Distillation, args), *_task_options(args), *of_other]
    if foreign := [name for name in others if name not in own and getattr(args, name) is not None]:
        flag = f"--{foreign[0].replace('_', '-')}"
        reason = "with --corpus: it is for labelled examples"
        if foreign[0] in of_other:
            reason = "with --static: it is for a student of layers" if args.static else "without --static"
        raise Usage(f"distill: leave out {flag} {reason}")
    if not args.static and args.steps is None and args.minutes is None:
        args.minutes = MINUTES
    recipe = recipes.distill_static if args.static else recipes.distill_encoder
    history = recipe(args.teacher, args.corpus, args.out, print_evaluation, options=options_of(kind, args))
    print_line(f"{args.out}: {history[-1]['step']} steps, {history[-1]['minutes']:.1f} minutes")


def _task_options(args: argparse.Namespace) -> dict:
    """The options of any task that were given."""
    return {name: value for kind in _options_of_tasks() for name, value in values_of(kind, args).items()}


def _options_of_tasks() -> list[type[options.Options]]:
    from keras_ctxrep import tasks

    return [task.Options for task in tasks.TASKS.values()]


def _sweep(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes
    from keras_ctxrep.recipes import sweeping

    chosen = options_of(options.Finetuning, args)
    try:
        options_to_try = grid(args.sweep or [], options.Finetuning, *_options_of_tasks())
    except ValueError as error:
        raise Usage(f"train: --sweep {error}") from None
    rows = recipes.sweep(
        options_to_try,
        args.out,
        args.seeds or 1,
        print_evaluation,
        print_line,
        data=args.data,
        dev=args.dev,
        encoder=args.encoder,
        task=args.task,
        options=chosen,
        task_options=_task_options(args),
    )
    print(f"\n{table(sweeping.table(rows, chosen.seed))}\n")
    best = rows[0]
    print_line(f"{args.out}: {best.best.name}: {best.metric.replace('_', ' ')} on {_dev_name(args)}: {best.score:.4f}")


def _train_flags(flags: Flags) -> None:
    from keras_ctxrep import tasks

    width = max(map(len, tasks.TASKS)) + 2
    listed = "\n".join(f"  {name:{width}}{task.help}" for name, task in tasks.TASKS.items())
    flags.parser.description = (
        f"Fine-tune a pretrained encoder.\n\n{listed}\n\n"
        "Files are .tsv or .csv with a header, .jsonl, .parquet, CoNLL columns, SQuAD's JSON, also compressed, or\n"
        "tfds:NAME:SPLIT."
    )
    _example_flags(flags)
    flags.add(
        "--encoder",
        "a model folder of any task, a name of `ctxrep zoo list`, or embeddings that are learned from the data alone: "
        "`words` or `characters`",
        model=True,
        required=True,
        metavar="FOLDER",
    )
    flags.add("--task", "the task (default: classify)", choices=tuple(tasks.TASKS), default="classify")
    flags.add(
        "--sweep",
        "train with each of these values of an option, in every combination of several options; OUT is the best model, "
        "OUT/sweep has all, OUT/sweep.tsv the table",
        group="schedule",
        nargs="+",
        action="extend",
        metavar="NAME=X,Y",
    )
    flags.add(
        "--seeds",
        "train with N seeds each, from --seed on; combinations are compared by their mean (default: 1)",
        group="schedule",
        type=positive,
        metavar="N",
    )
    _finetuning_flags(flags, options.Finetuning)


def _example_flags(flags: Flags, required: bool = True) -> None:
    flags.add("--data", "labelled examples to learn from", required=required, metavar="FILE")
    help = f"labelled examples to choose the best weights by, or the fraction of --data to hold out (default: {DEV})"
    flags.add("--dev", help, default=DEV if required else None, type=file_or_fraction, metavar="FILE")
    flags.add("--out", "the model folder to write", required=True, metavar="FOLDER")


def _finetuning_flags(
    flags: Flags, kind: type[options.Finetuning], of_text: Mapping[str, str] = MappingProxyType({})
) -> None:
    """The options of fine-tuning; `of_text` has the defaults of distillation from text, where they are others."""
    from keras_ctxrep import tasks

    evaluations = "one per epoch, or 10 of a run of --steps or --minutes"
    patience = "3 of a run of --epochs with one evaluation each"
    defaults = tuning.default_texts() | {"evaluations": evaluations, "patience": patience}
    for name, value in of_text.items():
        default = defaults.get(name, getattr(kind, name))
        defaults[name] = f"{default}; with --corpus {value}" if default else f"with --corpus: {value}"
    flags.add_options(kind, defaults=defaults)
    for name, task in tasks.TASKS.items():
        flags.add_options(task.Options, prefix=f"{name}: ", group="task")


def _glue(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes
    from keras_ctxrep.recipes.benchmarking import MARKDOWN, results_table

    cells = recipes.glue(
        args.data,
        args.encoder,
        args.out,
        args.sets,
        args.table,
        args.rows,
        args.seeds or 1,
        print_evaluation,
        print_line,
        options=options_of(options.Finetuning, args),
    )
    print(f"\n{table([line[:-1] for line in results_table(cells)])}\n")
    print_line(f"{args.out}/{MARKDOWN}: this table, with the command of each row")


def _glue_flags(flags: Flags) -> None:
    flags.parser.description = (
        "Fine-tune an encoder on each set of GLUE with each seed, and write one table of the figures.\n\n"
        "The folder has a folder of each set in its original files: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE,\n"
        "WNLI, AX; and Yahoo for `--sets Yahoo`. The same command goes on where it was interrupted."
    )
    flags.add("--data", "the folder with the sets, or `tfds`", required=True, metavar="FOLDER")
    flags.add("--encoder", "as in `ctxrep train`", model=True, required=True, metavar="FOLDER")
    flags.add("--out", "the folder to write: a model of each run, and the table", required=True, metavar="FOLDER")
    flags.add("--sets", "these sets alone (default: all that there are)", nargs="+", metavar="NAME")
    flags.add("--table", "sets of one's own: names, and under each train and dev, files in --data", metavar="FILE.yaml")
    flags.add("--rows", "learn from N random rows of each set", type=positive, metavar="N")
    flags.add("--seeds", "runs of each set, from --seed on (default: 1)", type=positive, metavar="N")
    defaults = tuning.default_texts() | {"evaluations": "1, so that the weights at the end are scored"}
    without = ("columns", "dev_columns", "skip_bad")
    flags.add_options(options.Finetuning, without=without, defaults=defaults)


def _distill_flags(flags: Flags) -> None:
    flags.add("teacher", "a model folder that was fine-tuned; with --corpus any BERT", model=True)
    flags.add("--corpus", "text files: the student learns the teacher's vectors", nargs="+", metavar="FILE")
    _example_flags(flags, required=False)
    flags.add(
        "--encoder", "what the student begins with, as in `ctxrep train`; or give --size", model=True, metavar="FOLDER"
    )
    _finetuning_flags(flags, options.Distillation, {"learning_rate": "2e-4", "batch_size": "64", "max_length": "128"})
    own = {"minutes": f"--corpus: {MINUTES:g}, unless --steps is given"}
    flags.add_options(options.EncoderDistillation, prefix="--corpus: ", defaults=own)
    help = "--corpus: a table of vectors of word pieces, instead of a BERT, in minutes; thousands of texts a second"
    flags.add("--static", help, action="store_true")
    flags.add_options(options.StaticDistillation, prefix="--static: ")


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
    "pretrain": Command(
        _pretrain,
        None,
        "learn an ELMo biLM, a BERT, a language model (lm) or static word vectors from text",
        f"{PRETRAIN} `ctxrep pretrain FAMILY --help` lists the\noptions of a family.\n\n"
        "  ctxrep pretrain bert --corpus text.txt --minutes 60 --out bert\n"
        "  ctxrep pretrain static --corpus text.txt --model skipgram --subwords --out vectors",
        True,
        kinds={
            name: Kind(
                partial(_pretrain_flags, family=name),
                help,
                f"Learn {help}.\n\n{PRETRAIN}\n\n  ctxrep pretrain {name} {example}",
            )
            for name, help, example in (
                (
                    "elmo",
                    "a biLM over the characters of words, whose layers are ELMo's vectors",
                    "--corpus text.txt --minutes 30 --out lm",
                ),
                (
                    "bert",
                    "a BERT, by masked words and next sentences",
                    "--corpus text.txt --minutes 60 --out bert",
                ),
                (
                    "lm",
                    "a language model in one direction, over words, word pieces or characters",
                    "--corpus text.txt --size lm_lstm_2x200 --units characters --out lm",
                ),
                (
                    "static",
                    "static word vectors: skip-gram or CBOW, of words alone or with n-grams",
                    "--corpus text.txt --model skipgram --subwords --out vectors",
                ),
            )
        },
    ),
    "prepare": Command(
        _prepare,
        None,
        "split a large text, and for BERT mask it, once before pretraining",
        PREPARE,
        True,
        kinds={name: Kind(partial(_prepare_flags, family=name), help, PREPARE) for name, (help, _) in PREPARED.items()},
    ),
    "train": Command(_train, _train_flags, "fine-tune an encoder for a task", "", True),
    "glue": Command(_glue, _glue_flags, "fine-tune on the sets of GLUE, with several seeds", "", True),
    "distill": Command(
        _distill,
        _distill_flags,
        "train a small model on the outputs of a larger one",
        "From labelled examples: the student learns from the labels and from what a fine-tuned teacher answers, of\n"
        "texts without labels from its answers alone. Task, labels, columns and length are the teacher's.\n"
        "From text (--corpus): the student, a smaller encoder, learns the vectors of words and texts of any BERT;\n"
        "with --static it is a table of word pieces.\n\n"
        "  ctxrep distill TEACHER --corpus text.txt --layers 0,3,5 --vocab-size 12000 --minutes 60 --out small\n"
        "  ctxrep distill TEACHER --corpus text.txt --static --vocab-size 13000 --out table\n"
        "  ctxrep distill large --data train.tsv --dev dev.tsv --unlabelled more.txt --size bert_2_128_2 --out small\n"
        "  ctxrep tflite small --quantize dynamic --out small.tflite",
        True,
    ),
    "score": Command(
        _score,
        _score_flags,
        "evaluate on held-out data",
        "A task's metrics, with an interval and the worst examples; a biLM's\n"
        "full-softmax perplexity, or a BERT's MLM and NSP accuracy; of static word vectors analogies and similarities.",
    ),
}
