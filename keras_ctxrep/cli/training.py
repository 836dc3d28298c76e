"""Learning: pretraining, preparation of its text, fine-tuning, evaluation."""

import argparse
import json

from keras_ctxrep import options
from keras_ctxrep.cli.command import (
    FOLDER,
    Command,
    Usage,
    positive,
    print_error,
    print_evaluation,
    print_line,
    short,
    table,
)
from keras_ctxrep.cli.flags import Flags, given, grid


def _pretrain(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    values = given(args)
    if "steps" not in values and "minutes" not in values:
        values["minutes"] = 30.0
    history = recipes.pretrain(report=print_evaluation, **values)
    print_line(f"{args.out}: {history[-1]['step']} steps, {history[-1]['minutes']:.1f} minutes")


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
    print_line(f"{args.out}: {text}, {len(counts['shards'])} shards")


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
    history = recipes.finetune(report=print_evaluation, announce=print_error, **values)
    _print_best(values, history)


def _print_best(values: dict, history: list[dict]) -> None:
    from keras_ctxrep import tasks

    metric = next(name for name in history[0] if name.startswith("val_")).removeprefix("val_")
    choose = min if tasks.smaller_is_better(metric) else max
    best = choose(entry[f"val_{metric}"] for entry in history)
    print_line(f"{values['out']}: {metric.replace('_', ' ')} on {values['dev']}: {best:.4f}")


def _distill(args: argparse.Namespace) -> None:
    from keras_ctxrep import recipes

    values = given(args)
    _print_best(values, recipes.distill(report=print_evaluation, announce=print_error, **values))


def _sweep(values: dict) -> None:
    from keras_ctxrep import recipes, tasks
    from keras_ctxrep.recipes import sweeping

    task = tasks.get(values.get("task", "classify"))
    try:
        options_to_try = grid(values.pop("sweep", []), options.Finetuning, task.Options)
    except ValueError as error:
        raise Usage(f"train: --sweep {error}") from None
    rows = recipes.sweep(options_to_try, report=print_evaluation, announce=print_line, **values)
    print(f"\n{table(sweeping.table(rows, values.get('seed', 0)))}\n")
    best = rows[0]
    metric = best.metric.replace("_", " ")
    score = task.best(best.metric, best.scores)
    print_line(f"{values['out']}: {best.best.name}: {metric} on {values['dev']}: {score:.4f}")


def _train_flags(flags: Flags) -> None:
    from keras_ctxrep import tasks

    width = max(map(len, tasks.TASKS)) + 2
    listed = "\n".join(f"  {name:{width}}{task.help}" for name, task in tasks.TASKS.items())
    flags.parser.description = (
        f"Fine-tune a pretrained encoder.\n\n{listed}\n\n"
        "Files are .tsv with a header, .jsonl, CoNLL columns, SQuAD's JSON, also compressed, or tfds:NAME:SPLIT."
    )
    _example_flags(flags)
    flags.add(
        "--encoder",
        "a model folder of any task, a name of `ctxrep zoo list`, or `words`: embeddings learned from the data alone",
        required=True,
        metavar="FOLDER",
    )
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
        type=positive,
        metavar="N",
    )
    flags.add_options(
        options.Finetuning,
        learning_rate=LEARNING_RATE,
    )
    _task_flags(flags)


LEARNING_RATE = {"help": "peak learning rate, after a linear warm-up (default: 0.001, BERT-base 3e-5)"}


def _example_flags(flags: Flags) -> None:
    flags.add("--data", "labelled examples to learn from", required=True, metavar="FILE")
    flags.add("--dev", "labelled examples to choose the best weights by", required=True, metavar="FILE")
    flags.add("--out", "the model folder to write", required=True, metavar="FOLDER")


def _task_flags(flags: Flags) -> None:
    from keras_ctxrep import tasks

    for name, task in tasks.TASKS.items():
        flags.add_options(task.Options, prefix=f"{name}: ")


def _distill_flags(flags: Flags) -> None:
    flags.add("teacher", "a model folder that was fine-tuned")
    _example_flags(flags)
    flags.add("--encoder", "what the student begins with, as of `ctxrep train`; or give --size", metavar="FOLDER")
    flags.add_options(options.Distillation, learning_rate=LEARNING_RATE)
    _task_flags(flags)


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
    refused = [
        name
        for name in ("carry_state", "columns", "skip_bad", "positive", "predictions", "json")
        if getattr(args, name)
    ]
    if refused:
        flag = f"--{refused[0].replace('_', '-')}"
        reason = (
            "one JSON object for each sentence is what it prints" if refused[0] == "json" else "it scores sentences"
        )
        raise Usage(f"score: leave out {flag} with --lm: {reason} of a text, each by itself")
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
            of = f" of {figures[f'{name}_of']}" if f"{name}_of" in figures else ""
            print(f"{name.replace('_', ' ') + of:20} {shown}{note}")
    if figures.get("table"):
        print(f"\n{table(figures['table'])}")
    if figures.get("worst"):
        print("\nworst")
    for entry in figures.get("worst", ()):
        texts = entry.get("texts") or [entry["input"]]
        print("\n    ".join([f"  {entry['source']}", *map(short, texts)]))
        confidence = f"   ({entry['confidence']:.1%} sure)" if "confidence" in entry else ""
        print(f"    expected  {short(entry['expected'])}\n    answered  {short(entry['answer'])}{confidence}")
    if figures.get("skipped"):
        from keras_ctxrep.text.files import skipped_rows

        print(f"\n{skipped_rows(figures['skipped'])}")


def _score_flags(flags: Flags) -> None:
    flags.add("folder", f"{FOLDER}; of a task model also a SavedModel folder or a .tflite file")
    flags.add("--data", "labelled examples, or text for a language model", required=True, metavar="FILE")
    flags.add_options(options.Scoring)
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


COMMANDS = {
    "pretrain": Command(
        _pretrain,
        _pretrain_flags,
        "learn an ELMo biLM or a BERT encoder from text",
        "Learn from plain text: UTF-8, one sentence a line, an empty line between documents; .gz, .bz2 and .xz are\n"
        "read as they are. The same command resumes an interrupted run.",
        True,
    ),
    "prepare": Command(
        _prepare,
        _prepare_flags,
        "split a large text, and for BERT mask it, once before pretraining",
        "Writes shards to a folder, for `ctxrep pretrain FAMILY --corpus FOLDER`: for ELMo sentences split into\n"
        "words, for BERT pairs of segments with their masks. Without it, text is split and masked anew in every pass.\n"
        "The shards are the same for any number of processes and any runner, and the same command resumes an\n"
        "interrupted preparation.",
        True,
    ),
    "train": Command(_train, _train_flags, "fine-tune an encoder for a task", "", True),
    "distill": Command(
        _distill,
        _distill_flags,
        "train a small model on the outputs of a fine-tuned one",
        "The student learns from the labels and from what the teacher answers, of texts without labels from its\n"
        "answers alone. Task, labels, columns and length are the teacher's.\n\n"
        "  ctxrep distill large --data train.tsv --dev dev.tsv --unlabelled more.txt --size bert_2_128_2 --out small\n"
        "  ctxrep tflite small --quantize dynamic --out small.tflite",
        True,
    ),
    "score": Command(
        _score,
        _score_flags,
        "evaluate on held-out data",
        "A task's metrics, with an interval and the worst examples; a biLM's\n"
        "full-softmax perplexity, or a BERT's MLM and NSP accuracy.",
    ),
}
