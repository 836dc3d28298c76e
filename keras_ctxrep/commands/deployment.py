"""Exports, and predictions with them; the demo of all."""

import argparse
import contextlib
import json
import sys

from keras_ctxrep import options
from keras_ctxrep.commands.command import FOLDER, Command, positive_float, table
from keras_ctxrep.flags import Flags, given


def _export(args: argparse.Namespace) -> None:
    from keras_ctxrep_export import saved_model

    from keras_ctxrep import train

    print(saved_model.export(*train.load_served(args.folder), args.out))


def _export_flags(flags: Flags) -> None:
    flags.add("folder", FOLDER)
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
    flags.add("folder", FOLDER)
    flags.add("--out", "the file to write", required=True, metavar="FILE.tflite")
    flags.add("--quantize", "number format of weights and products (default: none)", choices=quantize.QUANTIZATIONS)
    flags.add(
        "--lengths",
        "input lengths, in tokens; a text runs at the smallest that holds it, and is cut if none does (default: "
        f"{default} up to the length of the model, and that itself)",
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
    flags.add("--minutes", "of pretraining (default: 1)", type=positive_float, metavar="N")
    flags.add("--seed", "random seed (default: 0)", type=int, metavar="N")


COMMANDS = {
    "export": Command(
        _export,
        _export_flags,
        "write a SavedModel for TF Serving",
        "Writes the next version, BASE/NAME/1, 2, ..., with raw strings as its input.",
    ),
    "tflite": Command(
        _tflite,
        _tflite_flags,
        "write a .tflite file for phones and boards",
        "One file that holds the model, its vocabulary and its labels.",
    ),
    "predict": Command(
        _predict,
        _predict_flags,
        "predict line by line",
        "Prints one JSON object for each line of input, as soon as it is read: a text, or two with a tab\n"
        "between them for a model that reads pairs; JSON for tasks over marked spans. A .tflite file runs without\n"
        "TensorFlow.",
    ),
    "compare": Command(
        _compare,
        _compare_flags,
        "agreement, quality, size and latency of a model's exports",
        "Runs the same texts through a model folder and its exports. Latencies are of single texts,\n"
        "alternating between the engines.",
    ),
    "demo": Command(
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
